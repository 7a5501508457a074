//! What is shown of pods that nobody has named.

use std::collections::BTreeSet;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use ballast::model::container::PodPhase;
use ballast::model::status::{EntryState, Status};
use ballast::sys::clock;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeContainer, KubePod, KubeTree, Naming};
use ballast_tests::scrape::{free_address, page, text};
use ballast_tests::wait::{on_this_machine, until};

use super::{STATIC_UID, UID, everywhere, limited, pod_of};

/// The mean of what was measured with containerd and runc.
const REMOVED_AFTER: Duration = Duration::from_millis(18);

/// A container runs as long as it has a process, and was started when that was.
#[cfg_attr(feature = "privileged", test)]
fn what_a_container_does_is_told_by_its_processes() -> Result<()> {
    everywhere("state", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = pod.container(Naming::Containerd, 81)?;
        let shown = |status: &Status| {
            let pod = pod_of(status, UID)?;
            Some((pod.phase, pod.containers.first()?.state.clone()))
        };
        let no_process = |status: &Status| {
            let waits = EntryState::Waiting {
                reason: Some("NoProcess".to_owned()),
                message: None,
                until: None,
            };
            shown(status) == Some((PodPhase::Unknown, waits))
        };
        agent.wait("there is no process yet", no_process)?;
        let _program = container.run("exec sleep 3600")?;
        let started = |status: &Status| match shown(status)? {
            (
                PodPhase::Running,
                EntryState::Running {
                    pid: None,
                    started_at,
                },
            ) => Some(started_at),
            _ => None,
        };
        let status = agent.wait("it runs", |it| started(it).is_some())?;
        let before = started(&status);
        // It makes a cgroup of its own, which changes the directory.
        thread::sleep(Duration::from_secs(1));
        let changed = clock::wall();
        fs::create_dir(cgroup::dir_of("memory", &container.path).join("inner"))?;
        agent.stop()?;
        agent.start()?;
        let status = agent.wait("it is found running", |it| started(it).is_some())?;
        let both = started(&status).zip(before).context("two starts")?;
        let [now, then] = [both.0, both.1].map(|it| it.since_epoch());
        assert!(
            now.abs_diff(then) < now.abs_diff(changed),
            "{now:?}, first {then:?}; it was changed at {changed:?}"
        );
        container.kill();
        agent.wait("its last process has ended", no_process)?;
        Ok(())
    })
}

/// Of containers whose last reading is waited for.
const MOST_MISSED: u64 = 20;

/// What the end of a process takes after the kernel has told that its cgroup is empty.
const END: Duration = Duration::from_millis(5);

/// Runs a container that is removed as soon after its end as runtimes do that. The CPU time that it has used by the
/// kernel's count, and as the agent shows it; `None`: the agent says that it has missed it.
fn end_of_one(agent: &Agent, pod: &KubePod, n: u64) -> Result<Option<[Duration; 2]>> {
    let container = pod.container(Naming::Containerd, 800 + n)?;
    container
        .run("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done")?
        .wait()?;
    let used = cgroup::cpu_usage(&container.path)?;
    thread::sleep(on_this_machine(REMOVED_AFTER));
    container.remove();
    let missed = [("kind", "reading")];
    until("its end is shown or missed", || {
        let stats = agent.stats()?;
        let mut containers = stats.pods.iter().flat_map(|it| &it.containers);
        let ended = containers.find(|it| it.id == container.path && it.ended_at.is_some());
        let shown = match ended {
            Some(it) => Some(it.stats.cpu.usage_ns.context("no CPU time")?),
            None => None,
        };
        let cadvisor = page(&agent.metrics, "/metrics/cadvisor")?;
        let id = [("id", container.path.as_str())];
        let mut series = cadvisor.of("container_cpu_usage_seconds_total", &id);
        ensure!(
            shown.is_none() || series.next().is_some(),
            "not on the page"
        );
        let own = page(&agent.metrics, "/metrics")?;
        let n_missed = own.sum("ballast_ended_left_out_total", &missed);
        ensure!(shown.is_some() || n_missed > n as f64, "not yet");
        Ok(shown.map(|ns| [used, Duration::from_nanos(ns)]))
    })
}

/// Containers are removed at once after their end. Of one that had a process the last reading is shown, or counted as
/// missed; of one that had none there is nothing to read.
#[cfg_attr(feature = "privileged", test)]
fn the_end_of_who_had_a_process_is_shown_or_counted_as_missed() -> Result<()> {
    let tree = KubeTree::new("ends", Driver::Systemd)?;
    let mut agent = Agent::observing("observe-ends", &tree)?;
    agent.metrics = free_address()?;
    agent.start()?;
    let pod = tree.pod(UID)?;
    let knows = |container: &KubeContainer| {
        agent.wait("it is there, without a process", |status| {
            let containers = pod_of(status, UID).map(|it| &it.containers);
            let mut containers = containers.into_iter().flatten();
            containers.any(|it| it.id.as_deref() == Some(container.id.as_str()))
        })
    };
    let mut used = BTreeSet::new();
    for (ids, has_process) in [(850..854, false), (854..866, true)] {
        for n in ids {
            let container = pod.container(Naming::Containerd, n)?;
            // The others come and go before the agent has looked for their processes.
            if n % 2 == 0 {
                knows(&container)?;
            }
            if has_process {
                container.run("exit 0")?.wait()?;
                used.insert(container.path.clone());
            }
            container.remove();
        }
    }
    agent.wait("all are gone", |status| {
        pod_of(status, UID).is_some_and(|it| it.containers.is_empty())
    })?;
    until("each is shown or missed", || {
        let stats = agent.stats()?;
        let containers = stats.pods.iter().flat_map(|it| &it.containers);
        let ended = containers.filter(|it| it.ended_at.is_some());
        let shown: BTreeSet<_> = ended.map(|it| it.id.clone()).collect();
        ensure!(shown.is_subset(&used), "{shown:?}");
        let own = page(&agent.metrics, "/metrics")?;
        let n_missed = own.sum("ballast_ended_left_out_total", &[("kind", "reading")]);
        let n_told = shown.len() as f64 + n_missed;
        ensure!(
            n_told == used.len() as f64,
            "{} shown, {n_missed} missed",
            shown.len()
        );
        Ok(())
    })
}

/// A container whose last process ended while no agent ran, and that its runtime removes later.
#[cfg_attr(feature = "privileged", test)]
fn what_a_container_had_used_that_ended_before_the_agent_came_is_shown() -> Result<()> {
    everywhere("emptied", |tree, agent| {
        let pod = tree.pod(UID)?;
        agent.stop()?;
        let container = pod.container(Naming::Containerd, 870)?;
        let script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        container.run(script)?.wait()?;
        let used = cgroup::cpu_usage(&container.path)?;
        agent.start()?;
        agent.wait("it is there", |status| {
            pod_of(status, UID).is_some_and(|it| it.containers.len() == 1)
        })?;
        container.remove();
        until("its last reading is shown", || {
            let stats = agent.stats()?;
            let mut containers = stats.pods.iter().flat_map(|it| &it.containers);
            let ended = containers.find(|it| it.id == container.path && it.ended_at.is_some());
            let shown = ended.and_then(|it| it.stats.cpu.usage_ns);
            let shown = shown.map(Duration::from_nanos);
            ensure!(shown >= Some(used), "{shown:?} of {used:?}");
            Ok(())
        })
    })
}

#[cfg_attr(feature = "privileged", test)]
fn every_page_shows_pods_without_names() -> Result<()> {
    everywhere("pages", |tree, agent| {
        let mut programs = Vec::new();
        let mut ids = Vec::new();
        for (uid, n) in [(UID, 71), (STATIC_UID, 73)] {
            let pod = tree.pod(uid)?;
            for n in [n, n + 1] {
                let container = limited(&pod, n)?;
                programs.push(container.run("exec sleep 3600")?);
                ids.push(container);
            }
        }
        agent.wait("all are read", |status| {
            let containers = status.pods.iter().flat_map(|it| &it.containers);
            containers
                .filter(|it| it.usage.memory_bytes.is_some())
                .count()
                == 4
        })?;
        for path in ["/metrics", "/metrics/cadvisor", "/metrics/resource"] {
            // A series that is there twice is an error.
            page(&agent.metrics, path).context(path)?;
        }
        let cadvisor = text(&agent.metrics, "/metrics/cadvisor")?;
        let resource = text(&agent.metrics, "/metrics/resource")?;
        for container in &ids {
            let id = format!("id=\"{}\"", container.path);
            for (page, family) in [
                (&cadvisor, "container_memory_working_set_bytes"),
                (&cadvisor, "container_cpu_usage_seconds_total"),
                (&resource, "container_memory_working_set_bytes"),
            ] {
                let found = page
                    .lines()
                    .find(|it| it.starts_with(family) && it.contains(&id));
                found.with_context(|| format!("no {family} of {id} in {page}"))?;
            }
        }
        // The runtime removes the cgroup so soon after its last process that one may be missed, which is counted.
        let pod = tree.pod(UID)?;
        let used = (0..MOST_MISSED).find_map(|n| end_of_one(agent, &pod, n).transpose());
        let [used, shown] = used.context("no reading of any that has ended")??;
        assert!(used > Duration::from_millis(1), "{used:?}");
        assert!(
            used.abs_diff(shown) < on_this_machine(END),
            "{shown:?} of {used:?}"
        );
        let own = text(&agent.metrics, "/metrics")?;
        for absent in [
            "ballast_placement_exclusive_cpus{",
            "ballast_node_allocatable{",
            "kubelet_",
        ] {
            assert!(
                !own.lines().any(|it| it.starts_with(absent)),
                "{absent} in {own}"
            );
        }
        let told = agent.events("agent")?;
        for reason in ["PodsWithoutNames", "PodsWithoutWorkloads"] {
            let n = told.iter().filter(|it| it.event.reason == reason).count();
            assert_eq!(n, 1, "{reason} in {told:#?}");
        }
        let status = agent.command(&["status"])?;
        assert!(
            status.contains("observe mode") && status.contains(UID),
            "{status}"
        );
        let top = agent.command(&["top", "--once", "--interval", "200ms"])?;
        assert!(top.contains(&STATIC_UID[..12]), "{top}");
        let node = agent.command(&["explain", "node"])?;
        assert!(node.contains("another program"), "{node}");
        let pod = agent.command(&["explain", "pod", UID])?;
        assert!(pod.contains(UID), "{pod}");
        for unknown in ["RUNS ON", "no placement policy"] {
            assert!(!pod.contains(unknown), "{unknown} in {pod}");
        }
        Ok(())
    })
}
