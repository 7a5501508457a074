//! Pods from manifest to end, as Kubernetes has it: order of containers, restarts, stops, edits,
//! faults, logs.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ballast::model::record::{EventDetail, EventRecord};
use ballast::model::status::{EntryState, ManifestFault, PodEntry};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use nix::fcntl::{FcntlArg, fcntl};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;

use super::crash::after;
use super::leave_out;
use super::look::{
    container, container_path, end_of, has_ended, is_running, pid_of, pod_dir, whose,
};

fn agent(test: &str) -> Result<Agent> {
    let mut agent = Agent::new(test)?;
    agent.start()?;
    Ok(agent)
}

/// Appends a word to a file in the volume that the containers of a pod share.
fn note(word: &str) -> String {
    format!("echo {word} >> volumes/shared/notes")
}

fn notes(agent: &Agent, pod: &PodEntry) -> Result<String> {
    let path = pod_dir(&agent.state(), pod).join("volumes/shared/notes");
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// What the agent cannot do for a start is no end of the container: a pod that never restarts begins when it can.
#[cfg_attr(feature = "privileged", test)]
fn a_start_that_the_agent_cannot_make_is_none() -> Result<()> {
    let mut agent = Agent::new("unmade")?.with_quick_passes();
    agent.start()?;
    let uid = "unmade-1";
    // A file where the logs of the pod are to be.
    let in_the_way = agent.state().join(format!("logs/default_pod_{uid}"));
    fs::create_dir_all(agent.state().join("logs"))?;
    fs::write(&in_the_way, "")?;
    agent.put(
        &Manifest::new("pod")
            .with_uid(uid)
            .container(Container::idle("app")),
    )?;
    agent.wait_events("the start is held", "container", |it| {
        it.iter().any(|it| it.event.reason == "StartHeld")
    })?;
    agent.wait_full_passes(2)?;
    fs::remove_file(&in_the_way)?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pod.containers[0].restarts, 0);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn init_containers_run_in_order_and_hand_over_files() -> Result<()> {
    let agent = agent("init")?;
    let first = format!("sleep 0.3; {}", note("first"));
    let main = format!("{}; exec sleep 3600", note("main"));
    let pod = Manifest::new("pod")
        .init(Container::sh("first", &first))
        .init(Container::sh("second", &note("second")))
        .container(Container::sh("app", &main));
    agent.put(&pod)?;
    let pod = agent.wait_pod("pod", "runs", |it| pid_of(it, "app").is_some())?;
    agent.wait_for("the notes of all three", || {
        Ok(notes(&agent, &pod)? == "first\nsecond\nmain\n")
    })?;
    assert_eq!(pod.phase.to_string(), "Running");
    let completed = Some(("Completed".to_owned(), Some(0)));
    assert_eq!(end_of(&pod, "first"), completed);
    assert_eq!(end_of(&pod, "second"), completed);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_failed_init_container_ends_a_pod_that_is_not_restarted() -> Result<()> {
    let agent = agent("init-fails")?;
    let pod = Manifest::new("pod")
        .init(Container::sh(
            "first",
            &format!("{}; exit 3", note("first")),
        ))
        .init(Container::sh("second", &note("second")))
        .container(Container::sh("app", &note("main")));
    agent.put(&pod)?;
    let pod = agent.wait_pod("pod", "fails", |it| it.phase.to_string() == "Failed")?;
    assert_eq!(notes(&agent, &pod)?, "first\n");
    assert_eq!(end_of(&pod, "first"), Some(("Error".to_owned(), Some(3))));
    assert!(!has_ended(&pod, "app"));
    Ok(())
}

/// For two seconds its file is never at rest.
#[cfg_attr(feature = "privileged", test)]
fn a_manifest_that_is_renamed_all_the_time_keeps_its_pod() -> Result<()> {
    let agent = agent("renamed")?;
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let file = |name: &str| agent.dir.join("pods").join(name);
    let (a, b) = (file("pod.yaml"), file("renamed.yaml"));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        for _ in 0..100 {
            fs::rename(&a, &b)?;
            fs::rename(&b, &a)?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let again = agent.wait_pod("pod", "runs on", is_running)?;
    assert_eq!(pid_of(&again, "app"), pid_of(&pod, "app"));
    let events = agent.events("pod")?;
    let deletions = events.iter().filter(|it| it.event.reason == "Killing");
    assert_eq!(deletions.count(), 0);
    Ok(())
}

/// As by a slow copy: the part that is there is a manifest too, of fewer pods.
#[cfg_attr(feature = "privileged", test)]
fn a_manifest_that_is_still_written_is_not_read() -> Result<()> {
    let mut agent = Agent::new("slow-copy")?.with_quick_passes();
    agent.start()?;
    let pod = |name: &str| Manifest::new(name).container(Container::idle("app"));
    let text = |pods: &[&str]| {
        let pods: Vec<String> = pods.iter().map(|it| pod(it).to_string()).collect();
        pods.join("\n---\n")
    };
    let old = text(&["one", "two"]);
    agent.put_file("pods.yaml", &old)?;
    let before = agent.wait("both run", |it| {
        it.pods.len() == 2 && it.pods.iter().all(is_running)
    })?;
    let new = text(&["one", "two", "three"]);
    let first = new.find("---").context("a second document")?;
    let mut file = File::create(agent.dir.join("pods/pods.yaml"))?;
    file.write_all(&new.as_bytes()[..first])?;
    let status = agent.wait("it is told", |it| {
        let mut faults = it.manifest_faults.iter();
        faults.any(|it| it.message.contains("is being written"))
    })?;
    assert_eq!(status.pods.len(), 2);
    agent.wait_full_passes(3)?;
    file.write_all(&new.as_bytes()[first..])?;
    drop(file);
    let after = agent.wait("all run", |it| {
        it.pods.len() == 3 && it.pods.iter().all(is_running)
    })?;
    assert_eq!(after.manifest_faults, []);
    for pod in &before.pods {
        let now = after.pods.iter().find(|it| it.uid == pod.uid);
        assert_eq!(now.and_then(|it| pid_of(it, "app")), pid_of(pod, "app"));
    }
    Ok(())
}

/// A sidecar runs before the main containers, beside them, and not longer than they do.
#[cfg_attr(feature = "privileged", test)]
fn a_sidecar_surrounds_the_main_container() -> Result<()> {
    let agent = agent("sidecar")?;
    let sidecar = format!("{}; exec sleep 3600", note("sidecar"));
    let go = agent.dir.join("go");
    let main = format!(
        "{}; while [ ! -e {} ]; do sleep 0.1; done",
        note("main"),
        go.display()
    );
    let pod = Manifest::new("pod")
        .init(Container::sh("sidecar", &sidecar).with("restartPolicy", json!("Always")))
        .init(Container::sh("init", &note("init")))
        .container(Container::sh("app", &main));
    agent.put(&pod)?;
    let running = agent.wait_pod("pod", "runs both", |it| {
        pid_of(it, "app").is_some() && pid_of(it, "sidecar").is_some()
    })?;
    let path = running.cgroup_path.context("it has a cgroup")?;
    std::fs::write(&go, "")?;
    let pod = agent.wait_pod("pod", "succeeds", |it| it.phase.to_string() == "Succeeded")?;
    let notes = notes(&agent, &pod)?;
    assert_eq!(notes.lines().last(), Some("main"), "{notes}");
    assert_eq!(notes.lines().count(), 3, "{notes}");
    assert!(has_ended(&pod, "sidecar"));
    agent.wait_for("the pod's cgroup is gone", || {
        Ok(cgroup::dirs_in_all(&path).is_empty())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn restart_policies_decide_by_exit_code_and_back_off() -> Result<()> {
    let agent = agent("restart")?;
    let cases = [
        ("always-0", "Always", 0, true),
        ("always-1", "Always", 1, true),
        ("onfailure-0", "OnFailure", 0, false),
        ("onfailure-1", "OnFailure", 1, true),
        ("never-0", "Never", 0, false),
        ("never-1", "Never", 1, false),
    ];
    for (name, policy, code, _) in cases {
        let pod = Manifest::new(name)
            .container(Container::sh("app", &format!("exit {code}")))
            .with("restartPolicy", json!(policy));
        agent.put(&pod)?;
    }
    for (name, _, _, restarts) in cases {
        if restarts {
            agent.wait_pod(name, "restarts twice", |it| it.containers[0].restarts >= 2)?;
            agent.wait_pod(name, "backs off", is_backing_off)?;
        }
    }
    let told = agent.events("container")?;
    for (name, _, code, restarts) in cases {
        let is_told = |it: &EventRecord| it.event.reason == "BackOff" && whose(it).0 == name;
        assert_eq!(told.iter().any(is_told), restarts, "{name}");
        if !restarts {
            let phase = if code == 0 { "Succeeded" } else { "Failed" };
            let pod = agent.wait_pod(name, "is over", |it| it.phase.to_string() == phase)?;
            assert_eq!(pod.containers[0].restarts, 0, "{name}");
            let reason = if code == 0 { "Completed" } else { "Error" };
            let end = Some((reason.to_owned(), Some(code)));
            assert_eq!(end_of(&pod, "app"), end, "{name}");
        }
    }
    Ok(())
}

fn is_backing_off(pod: &PodEntry) -> bool {
    matches!(
        container(pod, "app").map(|it| &it.state),
        Some(EntryState::Waiting { reason: Some(reason), until: Some(_), .. })
            if reason == "CrashLoopBackOff"
    )
}

#[cfg_attr(feature = "privileged", test)]
fn a_program_that_cannot_start_is_told() -> Result<()> {
    let agent = agent("start-error")?;
    agent.put(&Manifest::new("pod").container(Container::new("app", &["/no/such/program"])))?;
    let pod = agent.wait_pod("pod", "fails", |it| it.phase.to_string() == "Failed")?;
    let end = Some(("StartError".to_owned(), Some(128)));
    assert_eq!(end_of(&pod, "app"), end);
    let told = agent.events("container")?;
    let failed = told.iter().find(|it| it.event.reason == "Failed");
    let message = &failed.context("it is told")?.event.message;
    assert!(message.contains("/no/such/program"), "{message}");
    Ok(())
}

/// SIGTERM, the grace, SIGKILL; and no longer than a container needs.
#[cfg_attr(feature = "privileged", test)]
fn a_container_is_killed_after_its_grace() -> Result<()> {
    let agent = agent("grace")?;
    let deaf = "trap '' TERM; echo up > up; while :; do sleep 0.1; done";
    let polite = "trap 'exit 3' TERM; echo up > up; while :; do sleep 0.1; done";
    for (name, script, grace) in [("deaf", deaf, 2), ("polite", polite, 600)] {
        let pod = Manifest::new(name)
            .container(Container::sh("app", script))
            .with("terminationGracePeriodSeconds", json!(grace));
        agent.put(&pod)?;
        let pod = agent.wait_pod(name, "runs", is_running)?;
        let up = pod_dir(&agent.state(), &pod).join("up");
        agent.wait_for("its trap is set", || Ok(up.exists()))?;
    }
    let began = Instant::now();
    agent.remove_pod("deaf")?;
    agent.remove_pod("polite")?;
    agent.wait("the polite one is gone", |status| {
        !status.pods.iter().any(|it| it.name == "polite")
    })?;
    agent.wait("both are gone", |status| status.pods.is_empty())?;
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(2), "{took:?}");
    let told = agent.events("container")?;
    for (name, exit) in [("deaf", "signal 9"), ("polite", "exit code 3")] {
        let died = told
            .iter()
            .find(|it| it.event.reason == "ContainerDied" && whose(it).0 == name);
        let message = &died.context("its end is told")?.event.message;
        assert!(message.contains(exit), "{name}: {message}");
    }
    Ok(())
}

/// What a container leaves behind goes with it.
#[cfg_attr(feature = "privileged", test)]
fn processes_that_outlive_the_main_one_are_killed() -> Result<()> {
    let agent = agent("leftover")?;
    // Deaf to the signals that ask.
    let gate = agent.dir.join("gate");
    let script = after(
        &gate,
        "trap '' TERM HUP; (while :; do sleep 0.1; done) & exit 0",
    );
    agent.put(&Manifest::new("pod").container(Container::sh("app", &script)))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let path = pod.cgroup_path.context("it has a cgroup")?;
    fs::write(&gate, "")?;
    agent.wait_pod("pod", "succeeds", |it| it.phase.to_string() == "Succeeded")?;
    agent.wait_for("nothing is left", || {
        Ok(cgroup::dirs_in_all(&path).is_empty())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn an_edit_of_a_manifest_replaces_its_pod() -> Result<()> {
    let agent = agent("edit")?;
    let version = |text: &str| {
        let app = Container::idle("app").with("env", json!([{"name": "VERSION", "value": text}]));
        Manifest::new("pod").container(app)
    };
    agent.put(&version("one"))?;
    let one = agent.wait_pod("pod", "runs", is_running)?;
    let path = container_path(&one, "app")?;
    // The same again is no edit.
    agent.put(&version("one"))?;
    agent.put(&Manifest::new("other").container(Container::idle("app")))?;
    let other = agent.wait_pod("other", "runs", is_running)?;
    let same = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pid_of(&same, "app"), pid_of(&one, "app"));

    agent.put(&version("two"))?;
    let two = agent.wait_pod("pod", "is another one and runs", |it| {
        it.uid != one.uid && is_running(it)
    })?;
    agent.wait_for("nothing of the first is left", || {
        Ok(cgroup::dirs_in_all(&path).is_empty())
    })?;
    let pid = pid_of(&two, "app").context("it runs")?;
    let env = fs::read(format!("/proc/{pid}/environ"))?;
    let env = String::from_utf8_lossy(&env);
    assert!(env.split('\0').any(|it| it == "VERSION=two"), "{env}");
    assert!(!pod_dir(&agent.state(), &one).exists());
    let after = agent.wait_pod("other", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&other, "app"));
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_bad_manifest_is_told_and_harms_no_pod() -> Result<()> {
    let agent = agent("faults")?;
    for name in ["good", "edited"] {
        agent.put(&Manifest::new(name).container(Container::idle("app")))?;
    }
    let before = agent.wait("two running pods", |status| {
        status.pods.len() == 2 && status.pods.iter().all(is_running)
    })?;
    let bad = Container::idle("app").resources(json!({}), json!({"memory": "12 quarts"}));
    agent.put(&Manifest::new("bad").container(bad.clone()))?;
    // A pod that was good keeps running as it was.
    agent.put(&Manifest::new("edited").container(bad))?;
    agent.put_file(
        "torn.yaml",
        "apiVersion: v1\nkind: Pod\nmetadata: {name: torn\n",
    )?;
    let status = agent.wait("three files with faults", |status| {
        let files: Vec<_> = status.manifest_faults.iter().map(|it| &it.file).collect();
        ["bad.yaml", "edited.yaml", "torn.yaml"]
            .iter()
            .all(|name| files.iter().any(|it| it.ends_with(name)))
    })?;
    let of_bad = status
        .manifest_faults
        .iter()
        .find(|it| it.file.ends_with("bad.yaml"))
        .context("it is there")?;
    assert_eq!(of_bad.pod.as_deref(), Some("default/bad"));
    let field = of_bad.field.as_deref().unwrap_or_default();
    assert!(
        field.starts_with("spec.containers[0].resources.limits"),
        "{of_bad:?}"
    );
    assert!(of_bad.message.contains("12 quarts"), "{of_bad:?}");
    let told = agent.events("agent")?;
    let is_told = |it: &EventRecord| {
        it.event.reason == "ManifestFault" && it.event.message.contains("bad.yaml")
    };
    assert!(told.iter().any(is_told), "{told:#?}");
    let after = agent.wait("both run", |status| {
        status.pods.len() == 2 && status.pods.iter().all(is_running)
    })?;
    for (before, after) in before.pods.iter().zip(&after.pods) {
        assert_eq!(
            pid_of(before, "app"),
            pid_of(after, "app"),
            "{}",
            after.name
        );
    }
    // Corrected, it is as if nothing had been.
    agent.put(&Manifest::new("bad").container(Container::idle("app")))?;
    agent.wait_pod("bad", "runs", is_running)?;
    agent.wait("its fault is gone", |status| {
        !status
            .manifest_faults
            .iter()
            .any(|it| it.file.ends_with("bad.yaml"))
    })?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn the_output_of_a_container_is_in_its_log() -> Result<()> {
    let agent = agent("output")?;
    // Once more, and no third time, with which the log of the first would go.
    let ran = agent.dir.join("ran");
    let script = format!(
        "echo to the one; echo to the other >&2; [ -e {0} ] && exec sleep 3600; touch {0}; exit 1",
        ran.display()
    );
    let pod = Manifest::new("pod")
        .container(Container::sh("app", &script))
        .with("restartPolicy", json!("Always"));
    agent.put(&pod)?;
    let pod = agent.wait_pod("pod", "restarts", |it| it.containers[0].restarts >= 1)?;
    let dir = agent
        .state()
        .join("logs")
        .join(format!("default_pod_{}", pod.uid))
        .join("app");
    let text = fs::read_to_string(dir.join("0.log"))?;
    assert_eq!(text, "to the one\nto the other\n");
    agent.wait_for("the log of the second instance", || {
        Ok(fs::read_to_string(dir.join("1.log")).is_ok_and(|it| it == text))
    })
}

/// The exit of a container in its record has the number that the kernel gave.
#[cfg_attr(feature = "privileged", test)]
fn exit_codes_and_signals_are_kept_apart() -> Result<()> {
    let agent = agent("exits")?;
    // Kubernetes takes two dollar signs for one.
    let cases = [
        ("code", "exit 137", "exit code 137", 137),
        ("kill", "kill -KILL $$$$", "signal 9", 137),
        ("term", "kill -TERM $$$$", "signal 15", 143),
        ("most", "exit 255", "exit code 255", 255),
    ];
    for (name, script, _, _) in cases {
        agent.put(&Manifest::new(name).container(Container::sh("app", script)))?;
    }
    for (name, _, words, code) in cases {
        let pod = agent.wait_pod(name, "ends", |it| has_ended(it, "app"))?;
        // No kill of the OOM killer among them.
        assert_eq!(end_of(&pod, "app"), Some(("Error".to_owned(), Some(code))));
        let told = agent.events("container")?;
        let died = told
            .iter()
            .find(|it| it.event.reason == "ContainerDied" && whose(it).0 == name)
            .context("its end is told")?;
        assert!(died.event.message.contains(words), "{died:?}");
        let detail = match &died.event.detail {
            Some(EventDetail::Container(detail)) => detail,
            other => anyhow::bail!("not of a container: {other:?}"),
        };
        assert_eq!(detail.oom_kills, 0);
        assert!(detail.exit.is_some());
    }
    Ok(())
}

/// What a program does that knows nothing of its runtime.
#[cfg_attr(feature = "privileged", test)]
fn a_user_opens_the_output_of_his_container_again_and_has_a_home() -> Result<()> {
    let agent = agent("output")?;
    let script = "echo one; echo two >>/dev/stdout; echo three >>/dev/stderr; echo $HOME";
    for (name, user, home) in [("root", 0, "/root"), ("nobody", 54321, "/")] {
        let app = Container::sh("app", script).with("securityContext", json!({"runAsUser": user}));
        agent.put(&Manifest::new(name).container(app))?;
        let pod = agent.wait_pod(name, "has ended", |it| has_ended(it, "app"))?;
        assert_eq!(end_of(&pod, "app"), Some(("Completed".to_owned(), Some(0))));
        let log = format!("logs/default_{name}_{}/app/0.log", pod.uid);
        let log = agent.state().join(log);
        let log = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
        assert_eq!(log, format!("one\ntwo\nthree\n{home}\n"));
    }
    Ok(())
}

/// The pipe is full before the first line.
#[cfg_attr(feature = "privileged", test)]
fn a_log_that_nobody_reads_holds_up_nothing() -> Result<()> {
    let (mut log, mut stderr) = std::io::pipe()?;
    // At least a page.
    let size = fcntl(&stderr, FcntlArg::F_SETPIPE_SZ(4096))?;
    let filling = vec![b'\n'; usize::try_from(size)?];
    stderr.write_all(&filling)?;
    let mut agent = Agent::new("deaf")?;
    agent.stderr = Some(stderr.into());
    agent.start()?;
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    agent.wait_pod("pod", "runs", is_running)?;
    agent.remove_pod("pod")?;
    agent.wait("no pod", |status| status.pods.is_empty())?;
    // A reader that comes late misses nothing.
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).map(|_| text)
    });
    agent.stop()?;
    agent.stderr = None;
    let text = reader.join().expect("no panic")?;
    for part in ["effective configuration", "AgentStopping"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    Ok(())
}

/// As `CPUAffinity=` of its unit does.
#[cfg_attr(feature = "privileged", test)]
fn what_an_agent_is_bound_to_binds_no_container() -> Result<()> {
    let agent = agent("affinity")?;
    let pid = agent.pid().context("it runs")?;
    let cpus = |pid: u32| -> Result<String> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mut lines = status.lines();
        let list = lines.find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
        Ok(list.context("it has a list of CPUs")?.trim().to_owned())
    };
    let all = cpus(pid)?;
    let first: usize = all.split([',', '-']).next().context("a CPU")?.parse()?;
    let mut one = CpuSet::new();
    one.set(first)?;
    // Column 19 of proc_pid_stat(5), 2 of which may have blanks.
    let nice = |pid: u32| -> Result<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, stat) = stat.rsplit_once(')').context("it has a name")?;
        let nice = stat
            .split_whitespace()
            .nth(16)
            .context("it has a nice value")?;
        Ok(nice.parse()?)
    };
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.file_name();
        let thread = thread.to_str().context("a number")?;
        sched_setaffinity(Pid::from_raw(thread.parse()?), &one)?;
        let reniced = Command::new("renice")
            .args(["-n", "5", "-p", thread])
            .output()?;
        assert!(reniced.status.success(), "{reniced:?}");
    }
    assert_eq!(nice(pid)?, 5);
    agent.put(&Manifest::new("free").container(Container::idle("app")))?;
    let pod = agent.wait_pod("free", "runs", is_running)?;
    let app = pid_of(&pod, "app").context("it runs")?;
    assert_eq!(nice(app)?, 0);
    if cpus(pid)? == all {
        leave_out("an agent that is bound to a part of the CPUs: there is one");
        return Ok(());
    }
    agent.wait_for("it may use all of them", || Ok(cpus(app)? == all))
}

/// kubelet waits for the volumes of a pod, whatever its restart policy is.
#[cfg_attr(feature = "privileged", test)]
fn a_volume_that_cannot_be_made_holds_the_start_of_a_pod() -> Result<()> {
    const UID: &str = "5d1c5c8a-6f0e-4b4a-8a1c-3f6b1f5f7a10";
    let agent = agent("volume-later")?;
    let pod_dir = agent.state().join("pods").join(UID);
    fs::create_dir_all(&pod_dir)?;
    let in_the_way = pod_dir.join("volumes");
    fs::write(&in_the_way, "")?;
    agent.put(
        &Manifest::new("pod")
            .with_uid(UID)
            .container(Container::idle("app")),
    )?;
    agent.wait_pod("pod", "waits", |it| {
        let why = it.message.as_ref();
        why.is_some_and(|it| it.contains("Not a directory"))
    })?;
    fs::remove_file(&in_the_way)?;
    agent.wait_pod("pod", "runs", is_running)?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_manifest_directory_that_comes_back_is_watched_again() -> Result<()> {
    let agent = agent("watched-again")?;
    agent.put(&Manifest::new("before").container(Container::idle("app")))?;
    let before = agent.wait_pod("before", "runs", is_running)?;
    let manifests = agent.dir.join("pods");
    let away = agent.dir.join("away");
    fs::rename(&manifests, &away)?;
    agent.wait("it is told", |it| !it.manifest_faults.is_empty())?;
    fs::rename(&away, &manifests)?;
    agent.wait_for("it is watched again", || {
        Ok(agent.log_tail().contains("are noticed at once again"))
    })?;
    agent.put(&Manifest::new("after").container(Container::idle("app")))?;
    agent.wait_pod("after", "runs", is_running)?;
    let still = agent.wait_pod("before", "runs", is_running)?;
    assert_eq!(pid_of(&still, "app"), pid_of(&before, "app"));
    Ok(())
}

/// A disk was full while somebody copied the manifest, or a backup lies beside it, and the agent is started again.
#[cfg_attr(feature = "privileged", test)]
fn an_empty_manifest_and_a_copy_end_no_pod_at_a_start() -> Result<()> {
    let mut agent = Agent::new("emptied")?.with_quick_passes();
    agent.start()?;
    for name in ["emptied", "web"] {
        agent.put(&Manifest::new(name).container(Container::idle("app")))?;
    }
    let pids = |agent: &Agent| -> Result<Vec<Option<u32>>> {
        let pods = ["emptied", "web"].map(|it| agent.wait_pod(it, "runs", is_running));
        pods.into_iter().map(|it| Ok(pid_of(&it?, "app"))).collect()
    };
    let before = pids(&agent)?;
    agent.stop()?;
    agent.put_file("emptied.yaml", "")?;
    let copy = Manifest::new("web").container(Container::new("app", &["sleep", "7200"]));
    agent.put_file("web-old.yaml", &copy.to_string())?;
    agent.start()?;
    assert_eq!(pids(&agent)?, before);
    agent.wait_full_passes(2)?;
    assert_eq!(pids(&agent)?, before);
    let faults = agent.status()?.manifest_faults;
    let is_told = |it: &ManifestFault| it.message.contains("is already defined in web.yaml");
    assert!(faults.iter().any(is_told), "{faults:?}");
    fs::remove_file(agent.dir.join("pods/emptied.yaml"))?;
    agent.wait("the one without a manifest goes", |it| it.pods.len() == 1)?;
    Ok(())
}
