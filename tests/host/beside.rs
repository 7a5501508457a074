//! Beside others: another agent, a kubelet, pods and pins that are not ours. None of them comes to
//! harm, and what stands in the way is told.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::kube::{Driver, KubeTree, Naming};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::{until, wait_for};
use ballast_tests::{cgroup, scrape};
use nix::mount::{MsFlags, mount};
use serde_json::json;

use super::files::Mounted;
use super::look::{is_running, pid_of, pod_path, refusal};
use super::readings::Process;

/// The output of a program that ends by itself.
fn output_of(command: &mut Command) -> Result<Output> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    if wait_for("it ends", || Ok(child.try_wait()?.is_some())).is_err() {
        child.kill()?;
    }
    Ok(child.wait_with_output()?)
}

/// Checks that `ballast run` ends with status 1 and says all of `words`.
fn is_refused(agent: &Agent, words: &[&str]) -> Result<()> {
    ends_with(1, agent, words)
}

fn ends_with(code: i32, agent: &Agent, words: &[&str]) -> Result<()> {
    says(code, &mut agent.run_command()?, words)
}

/// The configuration is at fault, by `check` as by `run`, which makes nothing then.
fn is_at_fault(agent: &Agent, words: &[&str]) -> Result<()> {
    for command in [&mut agent.check_command()?, &mut agent.run_command()?] {
        says(2, command, words)?;
    }
    ensure!(!agent.state().exists(), "it has begun");
    Ok(())
}

fn says(code: i32, command: &mut Command, words: &[&str]) -> Result<()> {
    let output = output_of(command)?;
    let said = String::from_utf8_lossy(&output.stderr);
    let found = output.status;
    ensure!(found.code() == Some(code), "{found}: {said}");
    for word in words {
        ensure!(said.contains(word), "{word:?} is not in: {said}");
    }
    Ok(())
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

fn pod() -> Manifest {
    Manifest::new("pod").container(Container::idle("app"))
}

/// Whatever of the three they share, the second one says who holds it, and the first one has not
/// noticed. `check` finds what is a matter of the configuration.
#[cfg_attr(feature = "privileged", test)]
fn a_second_agent_on_the_same_state_pins_or_cgroups_refuses_to_start() -> Result<()> {
    let mut first = Agent::new("second")?;
    first.start()?;
    first.put(&pod())?;
    let before = first.wait_pod("pod", "runs", is_running)?;
    let holder = format!("process {}", first.pid().context("it runs")?);
    is_refused(&first, &["another agent uses the state directory", &holder])?;

    let checked = output_of(&mut first.check_command()?)?;
    let said = String::from_utf8_lossy(&checked.stderr);
    ensure!(!said.contains("in use"), "its own are: {said}");

    let holder = format!("(pid {})", first.pid().context("it runs")?);
    let pin_directory = first.pin_directory.display().to_string();
    let words = ["bpf.pinDirectory", &pin_directory, "in use by", &holder];
    let mut pins = Agent::new("second-pins")?;
    pins.pin_directory.clone_from(&first.pin_directory);
    is_at_fault(&pins, &words)?;
    let mut observer = Agent::observing_below("second-observer", &first.cgroup_root)?;
    observer.pin_directory.clone_from(&first.pin_directory);
    is_at_fault(&observer, &words)?;

    let mut cgroups = Agent::new("second-cgroups")?;
    let own = std::mem::replace(&mut cgroups.cgroup_root, first.cgroup_root.clone());
    let words = [
        "kubelet.cgroupRoot",
        &first.cgroup_root,
        "in use by",
        &holder,
    ];
    let refused = is_at_fault(&cgroups, &words);
    // What it is dropped with is its own.
    cgroups.cgroup_root = own;
    refused?;

    assert_eq!(Some(first.status()?.agent.pid), first.pid());
    let after = first.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&before, "app"));
    // A lock that goes with its holder, however that ends.
    first.kill()?;
    first.start()
}

/// An agent that runs holds its own addresses. For another configuration they are in use.
#[cfg_attr(feature = "privileged", test)]
fn an_address_of_a_running_agent_is_in_use_for_others_alone() -> Result<()> {
    let mut first = Agent::new("holder")?;
    first.metrics = scrape::free_address()?;
    first.start()?;
    let checked = output_of(&mut first.check_command()?)?;
    let said = String::from_utf8_lossy(&checked.stderr);
    ensure!(!said.contains("in use"), "{said}");
    let mut second = Agent::new("held")?;
    second.metrics.clone_from(&first.metrics);
    let holder = format!("(pid {})", first.pid().context("it runs")?);
    let words = ["metrics.address", &first.metrics, "in use by", &holder];
    is_at_fault(&second, &words)
}

/// Where the names do not show it, the links do.
#[cfg_attr(feature = "privileged", test)]
fn manifests_in_the_state_directory_are_refused_and_kept() -> Result<()> {
    let agent = Agent::new("nested-dirs")?;
    fs::create_dir_all(agent.state())?;
    fs::remove_dir(agent.dir.join("pods"))?;
    let inside = agent.state().join("pods");
    fs::create_dir(&inside)?;
    std::os::unix::fs::symlink(&inside, agent.dir.join("pods"))?;
    fs::write(inside.join("mine.json"), "not a record")?;
    ends_with(2, &agent, &["one in the other", "pods.manifestDirectory"])?;
    let left: Vec<_> = fs::read_dir(&inside)?.collect::<std::io::Result<_>>()?;
    assert!(
        matches!(&left[..], [it] if it.file_name() == "mine.json"),
        "{left:?}"
    );
    Ok(())
}

/// `run` makes the judgement of `check` before it touches anything.
#[cfg_attr(feature = "privileged", test)]
fn what_check_calls_fatal_stops_run() -> Result<()> {
    let agent = Agent::new("fatal")?;
    fs::create_dir(agent.dir.join("bin"))?;
    let program = agent.dir.join("bin/kubelet");
    fs::copy(hog()?, &program)?;
    let kubelet = Process(Command::new(&program).args(["hold", "4096"]).spawn()?);
    let found = format!("kubelet (pid {})", kubelet.0.id());
    let checked = agent.check_command()?.output()?;
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    let words: Vec<&str> = said
        .lines()
        .skip_while(|it| !it.starts_with("fatal"))
        .take(2)
        .flat_map(|it| it.split("  ").map(str::trim).filter(|it| !it.is_empty()))
        .collect();
    assert!(words.iter().any(|it| it.contains(&found)), "{words:?}");
    is_refused(&agent, &words)?;
    assert!(!agent.state().exists() && agent.cgroup_dirs().is_empty());
    drop(kubelet);
    let mut agent = agent;
    agent.start()
}

/// Whoever mends one fault has not to start again for the next.
#[cfg_attr(feature = "privileged", test)]
fn what_does_not_fit_is_found_at_once_and_by_check_as_by_run() -> Result<()> {
    let mut agent = Agent::new("faults")?
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet("cpuManagerPolicyOptions: {no-such-option: \"true\"}")
        .with_kubelet("reservedSystemCPUs: \"99\"")
        .with_kubelet("memoryManagerPolicy: Static")
        .with_kubelet("reservedMemory: [{numaNode: 0, limits: {memory: 7Mi}}]")
        .with_kubelet("systemReserved: {memory: 100Ti, ephemeral-storage: 1Ei}")
        .with_kubelet("maxPods: -1");
    agent.metrics = scrape::free_address()?;
    let program = agent.run_command()?.get_program().to_owned();
    let path = agent.dir.join("config.yaml");
    let mut text = fs::read_to_string(&path)?;
    for (from, to) in [
        (
            "statsInterval",
            "tls: {certificateFile: /none/cert, keyFile: /none/key}, bearerTokenFile: /none/token, statsInterval",
        ),
        ("stateDirectory: ", "stateDirectory: /proc/self/stat"),
        ("log: {format: text}", "log: {level: loud}"),
        (
            &format!("cgroupRoot: /{}", agent.cgroup_root),
            "cgroupRoot: /cgroup.procs",
        ),
    ] {
        ensure!(text.contains(from), "{from} in {text}");
        text = text.replace(from, to);
    }
    fs::write(&path, text)?;
    for verb in ["check", "run"] {
        let said = refusal(&program, verb, &path)?;
        for fault in [
            "stateDirectory",
            "/none/cert",
            "/none/key",
            "/none/token",
            "kubelet.cpuManagerPolicyOptions",
            "kubelet.reservedSystemCPUs: 99",
            "kubelet.reservedMemory",
            "kubelet.systemReserved.memory: more memory is kept from pods",
            "more ephemeral-storage is kept from pods",
            "cgroupRoot",
            "kubelet.maxPods: -1",
            "log.level: `loud`",
            &path.display().to_string(),
        ] {
            assert!(said.contains(fault), "{verb}: no {fault} in {said}");
        }
    }
    Ok(())
}

/// Below another root nothing would hold for the pods that run, and nothing would end them.
#[cfg_attr(feature = "privileged", test)]
fn another_cgroup_root_waits_for_the_pods_that_run() -> Result<()> {
    let mut agent = Agent::new("elsewhere")?;
    agent.start()?;
    agent.put(&pod())?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    agent.stop()?;
    let root = agent.cgroup_root.clone();
    agent.cgroup_root = format!("{root}-other");
    let kubepods = agent.kubepods();
    let words = [
        "kubelet.cgroupRoot",
        &format!("(1) run in cgroups below /{root}/kubepods"),
        &kubepods,
    ];
    ends_with(2, &agent, &words)?;
    let checked = agent.check_command()?.output()?;
    let said = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(2), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
    }
    assert!(!cgroup::dir_of("memory", &kubepods).exists());
    agent.cgroup_root = root;
    agent.start()?;
    let after = agent.wait_pod("pod", "goes on", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&before, "app"));
    Ok(())
}

/// A cgroup namespace hides nothing where the node's tree is mounted. What a container mounts itself is
/// its own part of it, and is told.
#[cfg_attr(feature = "privileged", test)]
fn a_part_of_the_cgroup_tree_is_told_whatever_its_namespace_calls_it() -> Result<()> {
    let agent = Agent::new("part")?;
    let run = agent.run_command()?;
    let (kind, shown) = match cgroup::is_unified() {
        true => ("-t cgroup2", cgroup::mount_of("memory")),
        false => ("-t cgroup -o pids", cgroup::mount_of("pids")),
    };
    let own = shown.join(&agent.cgroup_root);
    fs::create_dir(&own)?;
    let check = |first: &str| -> Result<String> {
        let program = run.get_program().to_string_lossy().into_owned();
        let config = agent.dir.join("config.yaml");
        let script = format!("{first}exec {program} check --config {}", config.display());
        let output = Command::new(hog()?)
            .args(["in", "1"])
            .arg(own.join("cgroup.procs"))
            .args(["own-namespaces", "sh", "-c", &script])
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = said.lines().find(|it| it.contains("cgroup-tree"));
        let line = line.with_context(|| format!("{output:?}"))?;
        Ok(line.to_owned())
    };
    let told = check("")?;
    assert!(told.contains("that of the node"), "{told}");
    let told = check(&format!(
        "umount {0} && mount {kind} none {0} && ",
        shown.display()
    ))?;
    let expected = format!("{} shows a part of it", shown.display());
    assert!(told.contains(&expected), "{told}");
    Ok(fs::remove_dir(&own)?)
}

/// Pods of an agent with another state directory run on, are told once and counted.
#[cfg_attr(feature = "privileged", test)]
fn pods_of_others_are_told_and_left() -> Result<()> {
    let mut other = Agent::new("stranger")?;
    other.start()?;
    other.put(&pod())?;
    let theirs = other.wait_pod("pod", "runs", is_running)?;
    let pid = pid_of(&theirs, "app").context("it runs")?;
    let path = pod_path(&theirs)?.to_owned();
    other.kill()?;

    let mut agent = Agent::new("householder")?.with_quick_passes();
    agent.cgroup_root.clone_from(&other.cgroup_root);
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    agent.put(&Manifest::new("own").container(Container::idle("app")))?;
    let own = agent.wait_pod("own", "runs", is_running)?;
    // And whatever else would have looked at them.
    agent.wait_full_passes(3)?;
    assert!(is_alive(pid) && !cgroup::dirs_in_all(&path).is_empty());
    let told = agent.events("node")?;
    let told = told
        .iter()
        .filter(|it| it.event.reason == "UnknownPodCgroup");
    let told: Vec<&str> = told.map(|it| it.event.message.as_str()).collect();
    assert!(matches!(told[..], [it] if it.contains(&path)), "{told:#?}");
    let page = scrape::text(&agent.metrics, "/metrics")?;
    assert!(page.contains("\nballast_unknown_cgroups 1\n"), "{page}");
    agent.remove_pod("own")?;
    agent.wait("the own pod is gone", |it| it.pods.is_empty())?;
    assert!(cgroup::dirs_in_all(pod_path(&own)?).is_empty());

    agent.stop()?;
    agent.pods = ", removeUnknownCgroups: true".to_owned();
    agent.start()?;
    agent.wait_for("what is told to be removed is", || {
        Ok(!is_alive(pid) && cgroup::dirs_in_all(&path).is_empty())
    })
}

/// What the pods of others have of their class stays, though no pod of this agent needs it; and what they have not
/// asked for is given.
#[cfg_attr(feature = "privileged", test)]
fn nothing_is_taken_from_the_pods_of_others() -> Result<()> {
    let mut other = Agent::new("lodger")?;
    other.start()?;
    let wants = |cpu: &str| json!({"cpu": cpu, "memory": "16Mi"});
    let container = Container::idle("app").resources(wants("600m"), json!({}));
    other.put(&Manifest::new("pod").container(container))?;
    let theirs = other.wait_pod("pod", "runs", is_running)?;
    let class = format!("{}/burstable", other.kubepods());
    let file = match cgroup::is_unified() {
        true => "cpu.weight",
        false => "cpu.shares",
    };
    let weight = || -> Result<u64> { Ok(cgroup::read("cpu", &class, file)?.trim().parse()?) };
    let before = weight()?;
    other.kill()?;

    let mut agent = Agent::new("landlord")?.with_quick_passes();
    agent.cgroup_root.clone_from(&other.cgroup_root);
    agent.start()?;
    agent.wait_full_passes(2)?;
    assert_eq!(weight()?, before);
    agent.wait_events("it is told", "node", |it| {
        let mut told = it.iter().filter(|it| it.event.reason == "LimitKept");
        told.any(|it| it.event.message.contains(file))
    })?;
    let container = Container::idle("app").resources(wants("900m"), json!({}));
    agent.put(&Manifest::new("own").container(container))?;
    agent.wait_pod("own", "runs", is_running)?;
    agent.wait_for("it has what it needs itself", || Ok(weight()? > before))?;
    agent.remove_pod("own")?;
    agent.wait("the own pod is gone", |it| it.pods.is_empty())?;
    let pid = pid_of(&theirs, "app").context("it runs")?;
    assert!(is_alive(pid) && weight()? >= before);
    // Once they are gone the class is as the agent needs it.
    let pod = pod_path(&theirs)?.to_owned();
    agent.wait_for("they have ended and their cgroup is removed", || {
        Ok(cgroup::dirs_in_all(&pod).iter().all(|it| {
            cgroup::clear(it);
            !it.exists()
        }))
    })?;
    agent.wait_for("the class is lowered", || Ok(weight()? < before))
}

/// After the loss of the state directory the container that still runs is nobody's: no second one
/// is put beside it, it is not killed, and the pod goes on when it has ended.
#[cfg_attr(feature = "privileged", test)]
fn a_lost_state_directory_doubles_and_kills_nothing() -> Result<()> {
    let mut agent = Agent::new("amnesia")?.with_quick_passes();
    agent.start()?;
    agent.put(&pod())?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    let pid = pid_of(&before, "app").context("it runs")?;
    let path = pod_path(&before)?.to_owned();
    agent.kill()?;
    fs::remove_dir_all(agent.state())?;
    agent.start()?;
    let told = agent.wait_pod("pod", "says what it waits for", |it| {
        let message = it.message.as_deref().unwrap_or_default();
        it.reason.as_deref() == Some("Blocked") && message.contains(&pid.to_string())
    })?;
    assert!(told.containers.iter().all(|it| it.restarts == 0));
    agent.wait_full_passes(3)?;
    let dir = cgroup::dir_of("memory", &path);
    let processes = |dir: &Path| -> Vec<u32> {
        let below = cgroup::sub_dirs(dir);
        below.iter().flat_map(|it| cgroup::procs(it)).collect()
    };
    assert_eq!(processes(&dir), [pid]);
    // A pod that comes and goes meanwhile does it no harm either.
    agent.remove_pod("pod")?;
    agent.wait("the pod is gone", |it| it.pods.is_empty())?;
    assert_eq!(processes(&dir), [pid]);
    agent.put(&pod())?;
    let process = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
    nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL)?;
    let after = agent.wait_pod("pod", "runs", is_running)?;
    assert!(pid_of(&after, "app").is_some_and(|it| it != pid));
    Ok(())
}

/// A kubelet with the systemd driver is stopped, and its containers run on: none runs a second time, none is ended,
/// and the pod begins when its container has ended.
#[cfg_attr(feature = "privileged", test)]
fn pods_that_a_kubelet_has_left_do_not_run_twice() -> Result<()> {
    let uid = "6f1e2d3c-0b1a-4958-8776-a5b4c3d2e1f0";
    let tree = KubeTree::new("left", Driver::Systemd)?;
    let theirs = tree.pod(uid)?;
    let container = theirs.container(Naming::Containerd, 1)?;
    let program = container.run_on_host("sleep 3600")?;
    let mut agent = Agent::new("heir")?.with_quick_passes();
    agent.cgroup_root = tree.root.trim_end_matches(".slice").to_owned();
    agent.metrics = scrape::free_address()?;
    let said = String::from_utf8(agent.check_command()?.output()?.stdout)?;
    assert!(said.contains("1 of its pods run on"), "{said}");

    agent.start()?;
    agent.put(&pod().with_uid(uid))?;
    agent.put(&Manifest::new("own").container(Container::idle("app")))?;
    agent.wait_pod("own", "runs", is_running)?;
    agent.wait_pod("pod", "says what it waits for", |it| {
        let message = it.message.as_deref().unwrap_or_default();
        it.reason.as_deref() == Some("Blocked") && message.contains(&theirs.path)
    })?;
    agent.wait_full_passes(3)?;
    assert!(is_alive(program.id()) && cgroup::dir_of("memory", &container.path).exists());
    let told = agent.events("node")?;
    let told = told
        .iter()
        .filter(|it| it.event.reason == "UnknownPodCgroup");
    let told: Vec<&str> = told.map(|it| it.event.message.as_str()).collect();
    assert!(
        matches!(told[..], [it] if it.contains(&theirs.path)),
        "{told:#?}"
    );
    let page = scrape::text(&agent.metrics, "/metrics")?;
    assert!(page.contains("\nballast_unknown_cgroups 1\n"), "{page}");

    drop(program);
    container.kill();
    container.remove();
    agent.wait_pod("pod", "runs", is_running)?;
    Ok(())
}

/// A bpffs whose root is the pin directory, and what somebody else has pinned there.
#[cfg_attr(feature = "privileged", test)]
fn pins_of_others_outlive_every_start() -> Result<()> {
    let mut agent = Agent::new("bpffs")?;
    let pins = agent.dir.join("bpf");
    fs::create_dir(&pins)?;
    let kind = Some("bpf");
    mount(kind, &pins, kind, MsFlags::empty(), None::<&str>)?;
    // Unmounted before the agent's directory is removed.
    let _mounted = Mounted(pins.clone());
    agent.pin_directory.clone_from(&pins);
    let theirs = ["theirs", "oom-v1", "new-oom", "oom-v1-3f2a91c0-old"];
    for name in theirs {
        fs::create_dir_all(pins.join(name).join("maps"))?;
    }
    // Of an agent of another build: this one is ours.
    fs::create_dir(pins.join("oom-v0-00000000"))?;
    for _ in 0..2 {
        agent.start()?;
        agent.stop()?;
    }
    let mut left: Vec<String> = fs::read_dir(&pins)?
        .map(|it| Ok(it?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    left.sort();
    for name in theirs {
        ensure!(pins.join(name).join("maps").is_dir(), "{name}: {left:?}");
    }
    ensure!(!pins.join("oom-v0-00000000").exists(), "{left:?}");
    // Some kernels have two files of their own there.
    let is_theirs = |it: &str| theirs.contains(&it) || it.ends_with(".debug");
    let ours = left.iter().filter(|it| !is_theirs(it));
    assert_eq!(ours.count(), 2, "{left:?}");
    Ok(())
}

/// Two edits within the grace of the running pod: the first replacement never runs, and does not
/// keep the second one waiting for ever.
#[cfg_attr(feature = "privileged", test)]
fn a_manifest_that_is_rewritten_twice_within_the_grace_runs_as_written_last() -> Result<()> {
    let mut agent = Agent::new("rewritten")?;
    agent.start()?;
    let version = |n: u32, grace: u32| {
        Manifest::new("pod")
            .with("terminationGracePeriodSeconds", json!(grace))
            .container(Container::sh(
                "app",
                &format!("trap '' TERM; : {n}; while :; do sleep 1; done"),
            ))
    };
    agent.put(&version(1, 3))?;
    let first = agent.wait_pod("pod", "runs", is_running)?;
    agent.put(&version(2, 3))?;
    agent.wait("it is to be replaced", |it| it.pods.len() == 2)?;
    agent.put(&version(3, 1))?;
    let last = agent.wait(
        "the last one runs alone",
        |it| matches!(&it.pods[..], [pod] if pod.uid != first.uid && is_running(pod)),
    )?;
    assert_eq!(last.pods.len(), 1);
    agent.remove_pod("pod")?;
    agent.wait("all are gone", |it| it.pods.is_empty())?;
    Ok(())
}

/// Somebody removes the cgroup of all pods while it is empty. It is made again with another id, and
/// what the kernel reports by that id goes on: processes of pods, kills with their pod.
#[cfg_attr(feature = "privileged", test)]
fn events_follow_kubepods_when_it_is_made_again() -> Result<()> {
    let mut agent = Agent::new("remade")?;
    agent.start()?;
    agent.wait("kubepods is there", |_| {
        !cgroup::dirs_in_all(&agent.kubepods()).is_empty()
    })?;
    let hungry = |name: &str| -> Result<()> {
        let eats = Container::new("app", &[&hog()?, "child", "67108864"]).limited_to(16);
        agent.put(&Manifest::new(name).container(eats))?;
        for kind in ["process", "oom"] {
            agent.wait_events(&format!("{kind} events of {name}"), kind, |it| {
                let mut of = it.iter().filter_map(|it| it.event.pod.as_ref());
                of.any(|it| it.name == name)
            })?;
        }
        agent.remove_pod(name)?;
        agent.wait("it is gone", |it| it.pods.is_empty())?;
        Ok(())
    };
    hungry("before")?;
    let inode = || cgroup::id("memory", &agent.kubepods());
    let first = inode()?;
    for dir in cgroup::dirs_in_all(&agent.kubepods()) {
        until("it is removed", || {
            for below in ["burstable", "besteffort"] {
                fs::remove_dir(dir.join(below)).ok();
            }
            fs::remove_dir(&dir).with_context(|| dir.display().to_string())
        })?;
    }
    agent.wait_for("it is made again", || {
        Ok(inode().is_ok_and(|it| it != first))
    })?;
    hungry("after")?;
    let of_system = agent.events("oom")?;
    assert!(
        of_system.iter().all(|it| it.event.pod.is_some()),
        "{of_system:#?}"
    );
    Ok(())
}

/// What does not fit this node in a configuration is found by `check` in the words of `run`, which
/// makes nothing then. Each case is a line of it by its beginning, what stands there instead, and what
/// is named.
#[cfg_attr(feature = "privileged", test)]
fn a_configuration_that_does_not_fit_is_found_by_check() -> Result<()> {
    let agent = Agent::new("unfit")?;
    let run = agent.run_command()?;
    let good = fs::read_to_string(agent.dir.join("config.yaml"))?;
    fs::write(agent.dir.join("token"), "")?;
    let file = agent.dir.join("token").display().to_string();
    let tls = format!(
        "metrics: {{address: \"127.0.0.1:0\", tls: {{certificateFile: {file}, keyFile: {file}}}}}"
    );
    let token = "metrics: {address: \"127.0.0.1:0\", bearerTokenFile: /none/token}";
    let manifests = format!("pods: {{source: manifests, manifestDirectory: {file}}}");
    let read_only = agent.dir.join("read-only");
    fs::create_dir(&read_only)?;
    let kind = Some("tmpfs");
    mount(kind, &read_only, kind, MsFlags::MS_RDONLY, None::<&str>)?;
    // Unmounted before the agent's directory is removed.
    let _mounted = Mounted(read_only.clone());
    let read_only = read_only.display();
    let state = format!("stateDirectory: {read_only}/a/state");
    let socket = format!("socket: {read_only}/agent.sock");
    let closed = |field: &str| {
        format!("{field}: nothing can be made in {read_only}, whose file system is read-only")
    };
    let (closed_state, closed_socket) = (closed("stateDirectory"), closed("socket"));
    let link = agent.dir.join("link");
    std::os::unix::fs::symlink("nowhere", &link)?;
    let link = link.display();
    let linked_state = format!("stateDirectory: {link}");
    let linked_socket = format!("socket: {link}/agent.sock");
    let to_nothing = |field: &str| format!("{field}: {link} is a link to nowhere");
    let (state_to_nothing, socket_to_nothing) =
        (to_nothing("stateDirectory"), to_nothing("socket"));
    let taken = agent.dir.join("taken");
    fs::create_dir(&taken)?;
    fs::write(taken.join("pods"), "")?;
    let taken = taken.display();
    let taken_state = format!("stateDirectory: {taken}");
    let is_file = format!("stateDirectory: {taken}/pods is no directory");
    let cases = [
        ("stateDirectory:", &*state, &*closed_state),
        ("socket:", &socket, &closed_socket),
        ("stateDirectory:", &linked_state, &state_to_nothing),
        ("socket:", &linked_socket, &socket_to_nothing),
        ("stateDirectory:", &taken_state, &is_file),
        (
            "stateDirectory:",
            "stateDirectory: /proc/ballast",
            "stateDirectory: nothing can be made in /proc",
        ),
        (
            "stateDirectory:",
            "stateDirectory: /sys/ballast",
            "stateDirectory: nothing can be made in /sys",
        ),
        (
            "socket:",
            "socket: /proc/ballast.sock",
            "socket: nothing can be made in /proc",
        ),
        (
            "stateDirectory:",
            "stateDirectory: /dev/null/a",
            "stateDirectory: /dev/null is no directory",
        ),
        (
            "kubeletDirectory:",
            "kubeletDirectory: /dev/null",
            "kubeletDirectory: /dev/null is no directory",
        ),
        (
            "socket:",
            "socket: /dev/null/a",
            "socket: /dev/null is no directory",
        ),
        (
            "bpf:",
            "bpf: {pinDirectory: /dev/null}",
            "bpf.pinDirectory: /dev/null is no directory",
        ),
        ("pods:", &manifests, "pods.manifestDirectory:"),
        (
            "metrics:",
            "metrics: {address: \"192.0.2.1:9000\"}",
            "metrics.address",
        ),
        ("metrics:", &tls, "metrics.tls.certificateFile"),
        ("metrics:", token, "metrics.bearerTokenFile"),
        (
            "  cgroupRoot:",
            "  cgroupRoot: /cgroup.procs",
            "kubelet.cgroupRoot",
        ),
        (
            "kubelet:",
            "kubelet:\n  cpuManagerPolicy: static",
            "kubelet.cpuManagerPolicy",
        ),
        (
            "kubelet:",
            "kubelet:\n  memoryManagerPolicy: Static",
            "kubelet.reservedMemory",
        ),
        (
            "kubelet:",
            "kubelet:\n  reservedSystemCPUs: \"500\"",
            "kubelet.reservedSystemCPUs",
        ),
        (
            "kubelet:",
            "kubelet:\n  systemReserved: {memory: 100Ti}",
            "kubelet.systemReserved",
        ),
        (
            "kubelet:",
            "kubelet:\n  kubeReserved: {cpu: 5000}",
            "kubelet.kubeReserved.cpu",
        ),
        // Beside a fault of the text.
        (
            "kubelet:",
            "kubelet:\n  maxPods: -1\n  systemReserved: {cpu: 1m}\n  systemReservedCgroup: /ballast-no-such-cgroup\n  \
             enforceNodeAllocatable: [pods, system-reserved]",
            "kubelet.systemReservedCgroup: there is no cgroup /ballast-no-such-cgroup",
        ),
    ];
    // What the settings forbid, where the machine has it.
    let v1 = (
        "kubelet:",
        "kubelet:\n  failCgroupV1: true",
        "kubelet.failCgroupV1",
    );
    let swap = ("  failSwapOn:", "  failSwapOn: true", "kubelet.failSwapOn");
    let is_swap_on = fs::read_to_string("/proc/swaps")?.lines().count() > 1;
    let v1 = (!cgroup::is_unified()).then_some(v1);
    let forbidden = v1.into_iter().chain(is_swap_on.then_some(swap));
    for (line, instead, named) in cases.into_iter().chain(forbidden) {
        let text: Vec<&str> = good
            .lines()
            .map(|it| if it.starts_with(line) { instead } else { it })
            .collect();
        let config = agent.dir.join("unfit.yaml");
        fs::write(&config, text.join("\n") + "\n")?;
        for command in ["check", "run"] {
            let mut ballast = Command::new(run.get_program());
            let output = output_of(ballast.args([command, "--config"]).arg(&config))?;
            let said = String::from_utf8_lossy(&output.stderr);
            let code = output.status.code();
            ensure!(code == Some(2), "{command} {instead}: {code:?}: {said}");
            let is_named = said.contains(named) && said.contains(&config.display().to_string());
            ensure!(is_named, "{command} {instead}: {said}");
        }
        ensure!(!agent.state().exists(), "{instead}: it has begun");
        ensure!(agent.cgroup_dirs().is_empty(), "{instead}: it has begun");
    }
    Ok(())
}

/// It stands against nothing, so the agent starts; both verbs say so, with the file that sets it.
#[cfg_attr(feature = "privileged", test)]
fn a_soft_threshold_that_a_hard_one_hides_is_told_of_its_file() -> Result<()> {
    let mut agent = Agent::new("hidden")?;
    let file = agent.dir.join("kubelet.yaml");
    let text = "apiVersion: kubelet.config.k8s.io/v1beta1\n\
                kind: KubeletConfiguration\n\
                evictionSoft: {memory.available: 50Mi}\n\
                evictionSoftGracePeriod: {memory.available: 1m}\n";
    fs::write(&file, text)?;
    agent.sections = format!("kubeletConfigFile: {}\n", file.display());
    let told = format!(
        "{}: evictionSoft[\"memory.available\"]: 50Mi has no effect: evictionHard of 100Mi is met no later",
        file.display()
    );
    let config = agent.dir.join("config.yaml").display().to_string();
    let is_told = |said: &str| {
        let mut lines = said.lines();
        lines.any(|it| it.contains(&told) && it.contains(&config))
    };
    let output = agent.check_command()?.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && is_told(&said), "{output:?}");
    agent.start()?;
    let log = agent.dir.join("agent.log");
    agent.wait_for("the agent tells it too", || {
        Ok(is_told(&fs::read_to_string(&log)?))
    })
}
