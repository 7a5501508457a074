//! What others do to the cgroups is put right without harm to what runs in them, and an untouched
//! node is left alone.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::apply::checkpoint::write as write_checkpoint;
use ballast::decide::pod_state::PodState;
use ballast::model::container::ContainerState;
use ballast::model::status::PodEntry;
use ballast::sources::checkpoint;
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::STEP;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::look::{container_path, has_ended, is_running, pid_of, pod_path};

fn agent_with_pod(test: &str) -> Result<(Agent, PodEntry)> {
    let mut agent = Agent::new(test)?
        .with_kubelet("podPidsLimit: 64")
        .with_quick_passes();
    agent.start()?;
    agent.put(
        &Manifest::new("pod").container(Container::idle("app").resources(
            json!({"cpu": "100m", "memory": "32Mi"}),
            json!({"cpu": "500m", "memory": "64Mi"}),
        )),
    )?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    Ok((agent, pod))
}

/// The same process, and not another one in its place.
#[track_caller]
fn check_unharmed(agent: &Agent, before: &PodEntry) -> Result<()> {
    let after = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(before, "app"));
    assert_eq!(after.containers[0].restarts, 0);
    assert_eq!(after.uid, before.uid);
    Ok(())
}

/// The record of a pod is spoilt, then gone: its containers go on, its init container does not run a
/// second time, and the pod ends with its manifest as any other.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_whose_record_is_lost_goes_on() -> Result<()> {
    let mut agent = Agent::new("lost")?.with_quick_passes();
    agent.start()?;
    let journal = agent.dir.join("journal");
    let init = Container::sh("init", &format!("echo ran >>{}", journal.display()));
    let pod = Manifest::new("pod").with("restartPolicy", "Always".into());
    let pod = pod.init(init).container(Container::idle("app"));
    agent.put(&pod.container(Container::idle("other")))?;
    let runs = |pod: &PodEntry| ["app", "other"].iter().all(|it| pid_of(pod, it).is_some());
    let before = agent.wait_pod("pod", "runs", runs)?;
    let pids = |pod: &PodEntry| (pid_of(pod, "app"), pid_of(pod, "other"));
    let record = agent.state().join(format!("pods/{}.json", before.uid));
    type Spoil = fn(&Path) -> std::io::Result<()>;
    let spoils: [Spoil; 2] = [|it| fs::write(it, "{\"kind\""), |it| fs::remove_file(it)];
    for spoil in spoils {
        agent.kill()?;
        spoil(&record)?;
        agent.start()?;
        let after = agent.wait_pod("pod", "runs", runs)?;
        assert_eq!((&after.uid, pids(&after)), (&before.uid, pids(&before)));
        let told = agent.wait_events("that it was rebuilt", "pod", |it| {
            it.iter().any(|it| it.event.reason == "PodRebuilt")
        })?;
        let orphans = told.iter().filter(|it| it.event.reason == "OrphanCgroup");
        assert_eq!(orphans.count(), 0);
        agent.wait_for("it is stored again", || Ok(record.exists()))?;
    }
    agent.wait_full_passes(2)?;
    let after = agent.wait_pod("pod", "runs", runs)?;
    assert_eq!(pids(&after), pids(&before));
    assert_eq!(fs::read_to_string(&journal)?, "ran\n");
    agent.remove_pod("pod")?;
    agent.wait("it is gone", |it| it.pods.is_empty())?;
    Ok(())
}

/// As of a disk that fails. A pod that has succeeded does not run again, and what runs goes on, also while the records
/// cannot be read.
#[cfg_attr(feature = "privileged", test)]
fn records_that_the_kernel_fails_to_read_are_not_lost() -> Result<()> {
    let mut agent = Agent::new("unread")?.with_quick_passes();
    agent.start()?;
    let journal = agent.dir.join("journal");
    let once = Container::sh("app", &format!("echo ran >>{}", journal.display()));
    let once = Manifest::new("once").container(once);
    agent.put(&once.with("restartPolicy", "Never".into()))?;
    agent.put(&Manifest::new("long").container(Container::idle("app")))?;
    let once = agent.wait_pod("once", "has ended", |it| has_ended(it, "app"))?;
    let long = agent.wait_pod("long", "runs", is_running)?;
    agent.kill()?;
    let records = [&once, &long].map(|it| agent.state().join(format!("pods/{}.json", it.uid)));
    for record in &records {
        fs::rename(record, record.with_extension("kept"))?;
        // ELOOP.
        symlink(record, record)?;
    }
    agent.start()?;
    let told = agent.wait_events("the records that were not read", "node", |it| {
        let unread = it.iter().filter(|it| it.event.reason == "PodRecordUnread");
        unread.count() == records.len()
    })?;
    let status = agent.wait_full_passes(2)?;
    assert!(status.pods.is_empty(), "{:?}", status.pods);
    let orphans = told.iter().filter(|it| it.event.reason == "OrphanCgroup");
    assert_eq!(orphans.count(), 0);
    for record in &records {
        fs::rename(record.with_extension("kept"), record)?;
    }
    let after = agent.wait_pod("long", "goes on", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&long, "app"));
    agent.wait_pod("once", "is known to have ended", |it| has_ended(it, "app"))?;
    agent.wait_full_passes(2)?;
    assert_eq!(fs::read_to_string(&journal)?, "ran\n");
    Ok(())
}

/// The records of containers are gone, all of them or one that is damaged: what runs is found by its cgroup, and no
/// second copy starts beside it.
#[cfg_attr(feature = "privileged", test)]
fn containers_whose_records_are_lost_go_on() -> Result<()> {
    let mut agent = Agent::new("found")?.with_quick_passes();
    agent.start()?;
    let child = "sleep 3600 & exec sleep 3601";
    let pod = Manifest::new("pod").with("restartPolicy", "Always".into());
    let pod = pod.container(Container::sh("app", child));
    agent.put(&pod.container(Container::idle("other")))?;
    let runs = |pod: &PodEntry| ["app", "other"].iter().all(|it| pid_of(pod, it).is_some());
    let before = agent.wait_pod("pod", "runs", runs)?;
    let pids = |pod: &PodEntry| (pid_of(pod, "app"), pid_of(pod, "other"));
    let records = agent.state().join("containers");
    let of_app = |name: &Path| name.to_string_lossy().contains("/app-");
    type Spoil = fn(&Path) -> std::io::Result<()>;
    let spoils: [Spoil; 2] = [|it| fs::write(it, "spoilt"), |it| fs::remove_file(it)];
    for (n, spoil) in spoils.into_iter().enumerate() {
        agent.kill()?;
        for entry in fs::read_dir(&records)? {
            let path = entry?.path();
            let is_record = path.extension().is_some_and(|it| it == "json");
            if is_record && (n > 0 || of_app(&path)) {
                spoil(&path)?;
            }
        }
        agent.start()?;
        agent.wait_full_passes(2)?;
        let after = agent.wait_pod("pod", "runs", runs)?;
        assert_eq!(pids(&after), pids(&before));
        let restarts: Vec<u32> = after.containers.iter().map(|it| it.restarts).collect();
        assert_eq!(restarts, [0, 0]);
        let told = agent.events("pod")?;
        let found = told.iter().filter(|it| it.event.reason == "ContainerFound");
        assert_eq!(found.count(), [1, 2][n]);
    }
    // Its end is seen as that of any other.
    let app = pid_of(&before, "app").context("it runs")?;
    kill(Pid::from_raw(app.try_into()?), Signal::SIGKILL)?;
    agent.wait_pod("pod", "runs again", |it| {
        runs(it) && pid_of(it, "app") != Some(app)
    })?;
    Ok(())
}

/// The agent dies before it has stored that a program runs, and the record of the container is damaged, or cannot be read.
#[cfg_attr(feature = "privileged", test)]
fn a_start_that_was_not_stored_is_found_by_its_cgroup() -> Result<()> {
    let mut agent = Agent::new("started")?.with_quick_passes();
    agent.start()?;
    let journal = agent.dir.join("journal").display().to_string();
    let alone = Container::new("app", &[&hog()?, "lone", &journal, "0", "0"]);
    let pod = Manifest::new("pod").with("restartPolicy", "Always".into());
    agent.put(&pod.container(alone))?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    let record = agent.state().join(format!("pods/{}.json", before.uid));
    type Spoil = fn(&Path) -> std::io::Result<()>;
    let spoils: [Spoil; 2] = [
        |it| fs::write(it, "spoilt"),
        // ELOOP.
        |it| fs::remove_file(it).and_then(|()| symlink(it, it)),
    ];
    for spoil in spoils {
        agent.kill()?;
        let mut state: PodState = checkpoint::read(&record, PodState::KIND, PodState::VERSION)?;
        state.containers[0].state = ContainerState::Starting;
        write_checkpoint(&record, PodState::KIND, PodState::VERSION, &state)?;
        for entry in fs::read_dir(agent.state().join("containers"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "json") {
                spoil(&path)?;
            }
        }
        agent.start()?;
        agent.wait_full_passes(2)?;
        check_unharmed(&agent, &before)?;
    }
    assert_eq!(fs::read_to_string(&journal)?.lines().count(), 1);
    Ok(())
}

/// The first process is gone with the record, and a child is left, which the next one is not to meet.
#[cfg_attr(feature = "privileged", test)]
fn what_is_left_of_a_lost_container_ends_before_the_next_begins() -> Result<()> {
    let mut agent = Agent::new("left")?;
    agent.start()?;
    let journal = agent.dir.join("journal");
    let script = format!("{} lone {} 0 0 & wait", hog()?, journal.display());
    let pod = Manifest::new("pod").with("restartPolicy", "Always".into());
    agent.put(&pod.container(Container::sh("app", &script)))?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    let lines = || Ok::<_, anyhow::Error>(fs::read_to_string(&journal)?.lines().count());
    agent.wait_for("its child runs", || Ok(lines().unwrap_or(0) == 1))?;
    agent.kill()?;
    fs::remove_dir_all(agent.state().join("containers"))?;
    let first = pid_of(&before, "app").context("it runs")?;
    kill(Pid::from_raw(first.try_into()?), Signal::SIGKILL)?;
    agent.start()?;
    agent.wait_pod("pod", "runs again", |it| {
        is_running(it) && it.containers[0].restarts == 1
    })?;
    agent.wait_for("its child runs again", || Ok(lines()? == 2))?;
    let notes = fs::read_to_string(&journal)?;
    assert!(!notes.contains("doubled"), "{notes}");
    Ok(())
}

/// Neither the record of a pod nor its manifest can be read: what runs goes on until somebody knows what it is, with
/// what its class has by its requests, and what ended meanwhile is known then. Once a reading without a fault lacks the
/// pod, it goes.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_nobody_can_name_goes_on() -> Result<()> {
    let mut agent = Agent::new("unnamed")?.with_quick_passes();
    agent.start()?;
    let pod = Manifest::new("pod").with("restartPolicy", "Always".into());
    let app = Container::idle("app").resources(json!({"cpu": "600m"}), json!({}));
    let pod = pod.container(app);
    let pod = pod.container(Container::idle("other"));
    agent.put(&pod)?;
    let runs = |pod: &PodEntry| ["app", "other"].iter().all(|it| pid_of(pod, it).is_some());
    let before = agent.wait_pod("pod", "runs", runs)?;
    let class = format!("{}/burstable", agent.kubepods());
    let file = match cgroup::is_unified() {
        true => "cpu.weight",
        false => "cpu.shares",
    };
    let weight = || cgroup::read("cpu", &class, file);
    let with_pod = weight()?;
    let path = container_path(&before, "app")?;
    let pid = pid_of(&before, "app").context("it runs")?;
    let other = pid_of(&before, "other").context("it runs")?;
    let dir = cgroup::dir_of("memory", &path);
    let record = agent.state().join(format!("pods/{}.json", before.uid));
    let aside = record.with_extension("json.corrupt");
    let lose = |agent: &mut Agent| -> Result<()> {
        agent.kill()?;
        fs::write(&record, "spoilt")?;
        agent.put_file("pod.yaml", "kind: Pod\nmetadata: {name: pod\n")?;
        agent.start()?;
        agent.wait_events("that nobody knows the pod", "node", |it| {
            it.iter().any(|it| it.event.reason == "PodUndecided")
        })?;
        agent.wait_full_passes(2)?;
        ensure!(cgroup::procs(&dir).contains(&pid), "{pid} has ended");
        let weight = weight()?;
        ensure!(
            weight == with_pod,
            "{file} of its class is {weight} and was {with_pod}"
        );
        Ok(())
    };

    lose(&mut agent)?;
    kill(Pid::from_raw(other.try_into()?), Signal::SIGKILL)?;
    agent.wait_full_passes(1)?;
    agent.put(&pod)?;
    let after = agent.wait_pod("pod", "runs again", |it| {
        runs(it) && pid_of(it, "other") != Some(other)
    })?;
    assert_eq!(pid_of(&after, "app"), Some(pid));
    let restarts: Vec<u32> = after.containers.iter().map(|it| it.restarts).collect();
    assert_eq!(restarts, [0, 1]);
    agent.wait_for("the record is whole again, and alone", || {
        Ok(record.exists() && !aside.exists())
    })?;

    lose(&mut agent)?;
    let told = agent.events("node")?;
    let orphans = told.iter().filter(|it| it.event.reason == "OrphanCgroup");
    assert_eq!(orphans.count(), 0);
    agent.remove_pod("pod")?;
    agent.wait_for("it is gone, with what was kept of its record", || {
        Ok(!dir.exists() && !aside.exists())
    })?;
    agent.wait_for("its class is lowered", || Ok(weight()? != with_pod))
}

#[cfg_attr(feature = "privileged", test)]
fn foreign_writes_are_put_back() -> Result<()> {
    let (agent, pod) = agent_with_pod("foreign")?;
    let pod_path = pod_path(&pod)?;
    let container = container_path(&pod, "app")?;
    let kubepods = format!("/{}/kubepods", agent.cgroup_root);
    let besteffort = format!("{kubepods}/besteffort");
    let files = match cgroup::is_unified() {
        true => [
            (&container, "cpu", "cpu.weight", "777"),
            (&container, "memory", "memory.max", "1073741824"),
            (&besteffort, "cpu", "cpu.weight", "5000"),
            (&kubepods, "cpu", "cpu.weight", "3"),
        ],
        false => [
            (&container, "cpu", "cpu.shares", "777"),
            (&container, "cpu", "cpu.cfs_quota_us", "1234"),
            (&besteffort, "cpu", "cpu.shares", "5000"),
            (&kubepods, "cpu", "cpu.shares", "3"),
        ],
    };
    let pod_path = pod_path.to_owned();
    let files = files
        .into_iter()
        .chain([(&pod_path, "pids", "pids.max", "7")]);
    let n_writes = agent.status()?.agent.writes;
    let mut wanted = Vec::new();
    for (path, controller, file, foreign) in files {
        let value = cgroup::read(controller, path, file)?;
        assert_ne!(value, foreign, "{file}");
        cgroup::write(controller, path, file, foreign)?;
        wanted.push((path.clone(), controller, file, value));
    }
    for (path, controller, file, value) in &wanted {
        agent.wait_for(&format!("{file} of {path} put back"), || {
            Ok(cgroup::read(controller, path, file)? == *value)
        })?;
    }
    agent.wait("the agent wrote them", |it| {
        it.agent.writes >= n_writes + wanted.len() as u64
    })?;
    check_unharmed(&agent, &pod)
}

/// v1: the pod loses its directories in one hierarchy, with its process moved out of the way. v2:
/// its containers lose a controller. Neither is a reason to end anything.
#[cfg_attr(feature = "privileged", test)]
fn a_degraded_cgroup_is_repaired_around_its_processes() -> Result<()> {
    let (agent, pod) = agent_with_pod("degraded")?;
    let main = pid_of(&pod, "app").context("it runs")?;
    let path = container_path(&pod, "app")?;
    let pod_path = pod_path(&pod)?;
    let n_writes = agent.status()?.agent.writes;
    if cgroup::is_unified() {
        let limit = cgroup::read("memory", &path, "memory.max")?;
        cgroup::write("memory", pod_path, "cgroup.subtree_control", "-memory")?;
        agent.wait_for("the memory controller is back", || {
            let is_repaired = agent.status()?.agent.writes > n_writes;
            Ok(is_repaired
                && cgroup::read("memory", &path, "memory.max").is_ok_and(|it| it == limit))
        })?;
    } else {
        let shares = cgroup::read("cpu", &path, "cpu.shares")?;
        let root = format!("/{}", agent.cgroup_root);
        cgroup::write("cpu", &root, "cgroup.procs", &main.to_string())?;
        fs::remove_dir(cgroup::dir_of("cpu", &path))?;
        fs::remove_dir(cgroup::dir_of("cpu", pod_path))?;
        agent.wait_for("the cpu hierarchy has the container again", || {
            let procs = cgroup::procs(&cgroup::dir_of("cpu", &path));
            Ok(procs.contains(&main)
                && cgroup::read("cpu", &path, "cpu.shares").is_ok_and(|it| it == shares))
        })?;
    }
    check_unharmed(&agent, &pod)?;
    assert_eq!(agent.status()?.agent.failed_writes, 0);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn passes_over_an_unchanged_node_write_nothing() -> Result<()> {
    let (agent, _) = agent_with_pod("unchanged")?;
    for i in 0..3 {
        agent.put(&Manifest::new(&format!("more-{i}")).container(Container::idle("app")))?;
    }
    let before = agent.wait("all pods run", |status| {
        status.pods.len() == 4 && status.pods.iter().all(is_running)
    })?;
    // Nothing happens, so that every pass from here on is a full one.
    let after = agent.wait_full_passes(3)?;
    assert_eq!(after.agent.writes, before.agent.writes);
    assert_eq!(after.agent.failed_writes, 0);
    Ok(())
}

/// Two writers of one file: ours gives way, says so once, and has the last word when the other ends.
#[cfg_attr(feature = "privileged", test)]
fn a_persistent_other_writer_is_given_way_and_told_once() -> Result<()> {
    /// At a full pass each second, every one of which would write.
    const FIGHT: Duration = Duration::from_secs(14);
    const FOREIGN: &str = "777";
    let mut agent = Agent::new("contention")?.with_quick_passes();
    agent.start()?;
    agent.put(&Manifest::new("pod").container(Container::idle("app")))?;
    let pod = agent.wait_pod("pod", "runs", is_running)?;
    let container = container_path(&pod, "app")?;
    let file = match cgroup::is_unified() {
        true => "cpu.weight",
        false => "cpu.shares",
    };
    let right = cgroup::read("cpu", &container, file)?;
    assert_ne!(right, FOREIGN);
    let before = agent.status()?.agent;

    let is_over = AtomicBool::new(false);
    let (fought, took) = thread::scope(|scope| -> Result<_> {
        let other = scope.spawn(|| -> Result<()> {
            while !is_over.load(Ordering::Relaxed) {
                cgroup::write("cpu", &container, file, FOREIGN)?;
                thread::sleep(STEP);
            }
            Ok(())
        });
        let began = Instant::now();
        let shown = agent.wait_pod("pod", "shows the other writer", |pod| {
            let message = pod.message.as_deref().unwrap_or_default();
            message.contains("another program keeps writing")
        });
        while shown.is_ok() && began.elapsed() < FIGHT {
            thread::sleep(STEP);
        }
        let after = agent.status().map(|it| (it.agent, began.elapsed()));
        is_over.store(true, Ordering::Relaxed);
        let ended = other.join();
        ended.map_err(|_panic| anyhow::anyhow!("the other writer panicked"))??;
        shown?;
        after
    })?;
    let n_passes = fought.passes - before.passes;
    let n_writes = fought.writes - before.writes;
    // Three at once, then after 1, 2, 4 s.
    let most = 4 + u64::from((1 + took.as_secs()).ilog2());
    assert!(
        (3..=most).contains(&n_writes),
        "{n_writes} in {n_passes} passes, {took:?}"
    );
    let told = agent.events("container")?;
    let told: Vec<_> = told
        .iter()
        .filter(|it| it.event.reason == "ForeignCgroupWrite")
        .collect();
    assert_eq!(told.len(), 1, "{told:?}");
    let message = &told[0].event.message;
    assert!(
        message.contains(file) && message.contains(FOREIGN) && message.contains(&right),
        "{message}"
    );

    agent.wait_for("the last word", || {
        Ok(cgroup::read("cpu", &container, file)? == right)
    })?;
    agent.wait_pod("pod", "shows nothing", |pod| pod.message.is_none())?;
    check_unharmed(&agent, &pod)
}
