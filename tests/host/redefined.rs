//! Manifests that are edited while their pod runs, under the UID that they name themselves.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ballast::model::record::EventRecord;
use ballast::model::status::PodEntry;
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::on_this_machine;
use serde_json::json;

use super::crash::{after, fails_once};
use super::look::{container_path, is_running, pid_of, pod_dir, pod_path};

/// Two containers: `sleep 36NN` with a limit, and one that stays as it is.
fn pod(seconds: u32, mib: u64) -> Manifest {
    let app = Container::new("app", &["sleep", &seconds.to_string()]);
    pod_of(app.limited_to(mib))
}

fn pod_of(app: Container) -> Manifest {
    let other = Container::idle("other").limited_to(16);
    Manifest::new("static")
        .with_uid("0b1c2d3e-static")
        .with("restartPolicy", json!("Always"))
        .container(app)
        .container(other)
}

fn memory_limit(path: &str) -> Result<u64> {
    let file = cgroup::memory_limit_file();
    Ok(cgroup::read("memory", path, file)?.parse()?)
}

fn command(pid: u32) -> Result<String> {
    let text = fs::read(format!("/proc/{pid}/cmdline"))?;
    Ok(String::from_utf8_lossy(&text).replace('\0', " "))
}

fn redefinitions(agent: &Agent) -> Result<Vec<String>> {
    let events = agent.events("pod")?;
    let of = events
        .into_iter()
        .filter(|it| it.event.reason == "PodRedefined");
    Ok(of.map(|it| it.event.message).collect())
}

#[cfg_attr(feature = "privileged", test)]
fn an_edited_manifest_changes_its_pod_and_no_more_of_it_than_it_says() -> Result<()> {
    let mut agent = Agent::new("redefined")?;
    agent.start()?;
    agent.put(&pod(3601, 32))?;
    let first = agent.wait_pod("static", "runs", is_running)?;
    let [app, other] = [pid_of(&first, "app"), pid_of(&first, "other")];
    let (app, other) = (app.context("it runs")?, other.context("it runs")?);
    // A limit, in place.
    agent.put(&pod(3601, 64))?;
    let limit = |of: &str, mib: u64| {
        let pod = first.clone();
        let path = match of {
            "" => pod_path(&pod)?.to_owned(),
            of => container_path(&pod, of)?,
        };
        Ok::<_, anyhow::Error>(memory_limit(&path)? == mib << 20)
    };
    agent.wait_for("the limit is another", || limit("app", 64))?;
    agent.wait_for("that of the pod too", || limit("", 80))?;
    let status = agent.wait_pod("static", "has it", |it| it.redefined.is_some())?;
    ensure!(pid_of(&status, "app") == Some(app), "{status:#?}");
    // A program: its container alone.
    agent.put(&pod(3602, 64))?;
    let status = agent.wait_pod("static", "runs another program", |it| {
        pid_of(it, "app").is_some_and(|it| it != app)
    })?;
    let now = pid_of(&status, "app").context("it runs")?;
    agent.wait_for("it is the program", || Ok(command(now)? == "sleep 3602 "))?;
    ensure!(pid_of(&status, "other") == Some(other), "{status:#?}");
    assert_eq!(memory_limit(&container_path(&status, "app")?)?, 64 << 20);
    assert_eq!(
        redefinitions(&agent)?,
        [
            "has another definition now: spec.containers[0].resources",
            "has another definition now: spec.containers[0].args",
        ]
        .map(|it| it.replace("args", "command"))
    );
    let explained = agent.command(&["explain", "pod", "default/static"])?;
    ensure!(
        explained.contains("another definition since") && explained.contains("[0].command"),
        "{explained}"
    );
    // While no agent runs, and what cannot change while it is there.
    agent.stop()?;
    agent.put(&pod(3602, 64).with("volumes", json!([])))?;
    agent.start()?;
    let anew = agent.wait_pod("static", "begins anew", |it| {
        is_running(it) && pid_of(it, "other").is_some_and(|it| it != other)
    })?;
    let redefined = anew.redefined.context("it is known")?;
    assert_eq!(redefined.fields, ["spec.volumes"]);
    assert_eq!(
        redefinitions(&agent)?,
        ["ends, and begins anew with another definition: spec.volumes"]
    );
    Ok(())
}

/// A program that takes its size from its limit once says so in the policy of its container.
#[cfg_attr(feature = "privileged", test)]
fn a_container_is_restarted_for_another_limit_where_its_policy_says_so() -> Result<()> {
    let mut agent = Agent::new("resize-policy")?;
    agent.start()?;
    let with_policy = |mib: u64| {
        let policy = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        pod_of(
            Container::idle("app")
                .limited_to(mib)
                .with("resizePolicy", policy),
        )
    };
    agent.put(&with_policy(32))?;
    let first = agent.wait_pod("static", "runs", is_running)?;
    let [app, other] = [pid_of(&first, "app"), pid_of(&first, "other")];
    let (app, other) = (app.context("it runs")?, other.context("it runs")?);
    agent.put(&with_policy(64))?;
    let status = agent.wait_pod("static", "has its container restarted", |it| {
        is_running(it) && pid_of(it, "app").is_some_and(|it| it != app)
    })?;
    let app = pid_of(&status, "app");
    ensure!(pid_of(&status, "other") == Some(other), "{status:#?}");
    assert_eq!(memory_limit(&container_path(&status, "app")?)?, 64 << 20);
    let of_app = status.containers.iter().find(|it| it.name == "app");
    assert_eq!(of_app.map(|it| it.restarts), Some(1));
    // Without the policy it goes on, whatever its limit is; and the policy by itself changes nothing that runs.
    for (edit, field) in [
        (
            pod_of(Container::idle("app").limited_to(64)),
            "resizePolicy",
        ),
        (pod_of(Container::idle("app").limited_to(48)), "resources"),
    ] {
        agent.put(&edit)?;
        let field = format!("spec.containers[0].{field}");
        let status = agent.wait_pod("static", "has the next definition", |it| {
            let redefined = it.redefined.as_ref();
            redefined.is_some_and(|it| it.fields == [field.as_str()])
        })?;
        ensure!(
            is_running(&status) && pid_of(&status, "app") == app,
            "{status:#?}"
        );
        let limit = if field.ends_with("resources") { 48 } else { 64 };
        let path = container_path(&status, "app")?;
        agent.wait_for("its limit is that", || {
            Ok(memory_limit(&path)? == limit << 20)
        })?;
    }
    let status = agent.wait_pod("static", "runs", is_running)?;
    assert_eq!(
        (pid_of(&status, "app"), pid_of(&status, "other")),
        (app, Some(other))
    );
    Ok(())
}

/// It takes the limit of its pod for its size, be that raised or lowered; where it holds more, once it holds less,
/// by another agent too.
#[cfg_attr(feature = "privileged", test)]
fn a_volume_in_memory_follows_the_memory_limit_of_its_pod() -> Result<()> {
    let mut agent = Agent::new("resized-volume")?.with_quick_passes();
    agent.start()?;
    let volumes = json!([{"name": "memory", "emptyDir": {"medium": "Memory"}}]);
    // 16 MiB are those of the other container.
    let put =
        |agent: &Agent, mib: u64| agent.put(&pod(3601, mib - 16).with("volumes", volumes.clone()));
    put(&agent, 48)?;
    let first = agent.wait_pod("static", "runs", is_running)?;
    let volume = pod_dir(&agent.state(), &first).join("volumes/memory");
    let size = || -> Result<u64> {
        let stat = nix::sys::statvfs::statvfs(&volume)?;
        Ok((stat.blocks() * stat.fragment_size()) >> 20)
    };
    assert_eq!(size()?, 48);
    for mib in [80, 48, 80] {
        put(&agent, mib)?;
        agent.wait_for("it has the size", || Ok(size()? == mib))?;
    }
    let held = volume.join("held");
    fs::write(&held, vec![1_u8; 64 << 20])?;
    put(&agent, 48)?;
    let is_told = |agent: &Agent, what: &str| -> Result<bool> {
        let told = redefinitions(agent)?;
        Ok(told.iter().any(|it| it.starts_with(what)))
    };
    agent.wait_for("it is told", || {
        is_told(&agent, "volume memory keeps its size: it cannot have 48Mi")
    })?;
    // The next agent knows it too.
    agent.stop()?;
    agent.start()?;
    agent.wait_full_passes(2)?;
    assert_eq!(size()?, 80);
    assert_eq!(fs::metadata(&held)?.len(), 64 << 20);
    fs::remove_file(&held)?;
    agent.wait_for("it has its size", || Ok(size()? == 48))?;
    agent.wait_for("that is told", || {
        is_told(&agent, "volume memory has 48Mi now")
    })?;
    let status = agent.wait_pod("static", "runs", is_running)?;
    for container in ["app", "other"] {
        assert_eq!(pid_of(&status, container), pid_of(&first, container));
    }
    Ok(())
}

/// A pod that ends is never taken back: its manifest begins another one, at once when the first is gone, edited or not.
#[cfg_attr(feature = "privileged", test)]
fn a_manifest_that_is_put_back_while_its_pod_ends_begins_it_anew() -> Result<()> {
    let mut agent = Agent::new("put-back")?;
    agent.start()?;
    let go = agent.dir.join("go");
    let slow = format!(
        "trap '{}' TERM; echo up > up; while :; do sleep 0.05; done",
        after(&go, "exit 0")
    );
    let pod = |name: &str, app: Container| {
        let pod = Manifest::new(name).with_uid(&format!("0b1c2d3e-{name}"));
        pod.with("terminationGracePeriodSeconds", json!(600))
            .container(app)
    };
    let slow = Container::sh("app", &slow);
    let other = Container::new("app", &["sleep", "3602"]);
    let cases = [("same", slow.clone()), ("edited", other)];
    let mut first = Vec::new();
    for (name, _) in &cases {
        agent.put(&pod(name, slow.clone()))?;
        let it = agent.wait_pod(name, "runs", is_running)?;
        let up = pod_dir(&agent.state(), &it).join("up");
        agent.wait_for("its trap is set", || Ok(up.exists()))?;
        first.push(it);
    }
    for (name, app) in &cases {
        agent.remove_pod(name)?;
        let is_ending = |it: &PodEntry| it.reason.as_deref() == Some("Terminating");
        agent.wait_pod(name, "ends", is_ending)?;
        agent.put(&pod(name, app.clone()))?;
    }
    // When this one is there, so are the manifests that were put back.
    let last = Manifest::new("last").container(Container::idle("app"));
    agent.put(&last)?;
    agent.wait_pod("last", "runs", is_running)?;
    fs::write(&go, "")?;
    for ((name, _), first) in cases.iter().zip(&first) {
        let again = agent.wait_pod(name, "runs again", |it| {
            is_running(it) && pid_of(it, "app") != pid_of(first, "app")
        })?;
        assert_eq!(again.uid, first.uid);
        assert_eq!(again.containers[0].restarts, 0);
        if *name == "edited" {
            let pid = pid_of(&again, "app").context("it runs")?;
            agent.wait_for("it is the program", || Ok(command(pid)? == "sleep 3602 "))?;
        }
    }
    let events = agent.events("pod")?;
    for first in &first {
        let times = |reason: &str| -> Vec<u64> {
            let of = |it: &&EventRecord| it.event.reason == reason;
            let of_pod = events
                .iter()
                .filter(|it| it.event.uid() == Some(&first.uid));
            of_pod.filter(of).map(|it| it.event.boottime_ns).collect()
        };
        let (added, removed) = (times("PodAdded"), times("PodRemoved"));
        let ([_, again], [gone]) = (&added[..], &removed[..]) else {
            bail!("{events:#?}");
        };
        // Each 10 s all manifests are read whatever happens.
        let later = Duration::from_nanos(again.saturating_sub(*gone));
        ensure!(later < on_this_machine(Duration::from_secs(5)), "{later:?}");
    }
    Ok(())
}

/// More than the node has: what runs goes on, and the definition is taken when there is room.
#[cfg_attr(feature = "privileged", test)]
fn a_definition_without_room_waits_while_the_pod_goes_on() -> Result<()> {
    let mut agent = Agent::new("redefined-room")?.with_quick_passes();
    agent.start()?;
    agent.put(&pod(3601, 32))?;
    let first = agent.wait_pod("static", "runs", is_running)?;
    let pid = pid_of(&first, "app");
    let large = Container::new("app", &["sleep", "3602"])
        .resources(json!({"cpu": "1000"}), json!({"memory": "32Mi"}));
    let other = Container::idle("other").limited_to(16);
    agent.put(
        &Manifest::new("static")
            .with_uid("0b1c2d3e-static")
            .with("restartPolicy", json!("Always"))
            .container(large)
            .container(other),
    )?;
    let is_told = |text: &Option<String>| text.as_ref().is_some_and(|it| it.contains("OutOfcpu"));
    agent.wait_pod("static", "says why", |it| is_told(&it.message))?;
    agent.wait_full_passes(2)?;
    let status = agent.wait_pod("static", "goes on", |it| {
        is_running(it) && is_told(&it.message)
    })?;
    ensure!(pid_of(&status, "app") == pid, "{status:#?}");
    let told = agent.events("pod")?;
    let told = told
        .iter()
        .filter(|it| it.event.reason == "PodDefinitionWaits");
    assert_eq!(told.count(), 1);
    agent.put(&pod(3602, 32))?;
    agent.wait_pod("static", "takes what fits", |it| {
        it.message.is_none() && pid_of(it, "app").is_some() && pid_of(it, "app") != pid
    })?;
    Ok(())
}

/// A limit below what is in use is lowered as far as that.
#[cfg_attr(feature = "privileged", test)]
fn a_limit_that_is_refused_keeps_no_neighbour_from_starting() -> Result<()> {
    let mut agent = Agent::new("refused-limit")?.with_quick_passes();
    agent.start()?;
    let go = agent.dir.join("go");
    let script = fails_once(&agent, &go);
    let pod = |mib: u64| -> Result<Manifest> {
        let held = (48 << 20).to_string();
        let app = Container::new("app", &[&hog()?, "hold", &held]).limited_to(mib);
        let other = Container::sh("other", &script).limited_to(16);
        let pod = Manifest::new("pod").with_uid("0b1c2d3e-refused");
        let pod = pod.with("restartPolicy", json!("Always"));
        Ok(pod.container(app).container(other))
    };
    agent.put(&pod(96)?)?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    let path = container_path(&before, "app")?;
    agent.wait_for("it holds its memory", || {
        Ok(cgroup::memory_usage(&path)? >= 48 << 20)
    })?;
    agent.put(&pod(20)?)?;
    agent.wait_for("the new definition is taken", || {
        Ok(!redefinitions(&agent)?.is_empty())
    })?;
    agent.wait_full_passes(2)?;
    fs::write(&go, "")?;
    let after = agent.wait_pod("pod", "has its second container again", |it| {
        let mut containers = it.containers.iter();
        is_running(it) && containers.any(|it| it.name == "other" && it.restarts == 1)
    })?;
    assert_eq!(pid_of(&after, "app"), pid_of(&before, "app"));
    assert_eq!(after.oom_kills, 0);
    Ok(())
}

/// The manifest of a running pod is edited while no agent runs, and something else cannot be read when the next one
/// starts: not everything is known then, and still no pod runs twice.
#[cfg_attr(feature = "privileged", test)]
fn an_edit_beside_a_fault_does_not_run_beside_what_it_edits() -> Result<()> {
    let web = |seconds: u32| {
        let app = Container::new("app", &["sleep", &seconds.to_string()]);
        Manifest::new("web").container(app)
    };
    let mut agent = Agent::new("twice")?.with_quick_passes();
    agent.start()?;
    agent.put(&web(3601))?;
    let first = agent.wait_pod("web", "runs", is_running)?;
    agent.kill()?;
    agent.put(&web(3602))?;
    agent.put_file("broken.yaml", "kind: [")?;
    agent.start()?;
    let status = agent.wait("the edit runs alone", |it| match &*it.pods {
        [only] => only.uid != first.uid && is_running(only),
        _ => false,
    })?;
    let second = &status.pods[0];
    let pid = pid_of(&first, "app").context("it ran")?;
    // Nobody may collect it.
    ensure!(
        command(pid).unwrap_or_default().is_empty(),
        "the first runs on"
    );
    // Its own manifest is broken, and a copy of what it was lies beside it.
    agent.kill()?;
    agent.put_file("web.yaml", "kind: [")?;
    agent.put_file("web-old.yaml", &web(3603).to_string())?;
    agent.start()?;
    let status = agent.wait_full_passes(2)?;
    let pids: Vec<_> = status.pods.iter().map(|it| pid_of(it, "app")).collect();
    assert_eq!(pids, [pid_of(second, "app")]);
    // Mended, it is the same pod as before.
    agent.put(&web(3602))?;
    fs::remove_file(agent.dir.join("pods/web-old.yaml"))?;
    agent.put_file(
        "broken.yaml",
        &Manifest::new("other")
            .container(Container::idle("app"))
            .to_string(),
    )?;
    agent.wait_pod("other", "runs", is_running)?;
    let after = agent.wait_pod("web", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(second, "app"));
    Ok(())
}
