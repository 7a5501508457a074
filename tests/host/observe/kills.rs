//! OOM kills in the shapes of the lane of mode `own`, each told with the pod's UID and the container's id.

use std::collections::BTreeSet;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::record::{EventRecord, OomScope};
use ballast::sources::bpf::Streams;
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeContainer, KubePod, KubeTree, Naming, Program};
use ballast_tests::scrape::{self, free_address, text};
use ballast_tests::wait::until;

use super::{
    EATER, LIMIT, STATIC_UID, UID, check_kill, eat, everywhere, kills, limited, pod_of, wait_kills,
    whose,
};
use crate::look::oom_detail;
use crate::{say, scaled};

/// A shell that goes on after its child.
const EATER_AS_CHILD: &str = "tail /dev/zero; true";

/// Starts in `/proc` are told in these.
const TICK: Duration = Duration::from_millis(10);

/// Victims of one kind, one after the other: each is gone before the next comes.
const LOOKS: usize = 5;

/// A kill by the limit of a container that was not of its first process.
fn check_child(kill: &EventRecord, pod: &KubePod, container: &KubeContainer) -> Result<()> {
    let detail = check_kill(kill, pod, container, OomScope::Container)?;
    assert_eq!(detail.victim.is_main_process, Some(false));
    assert_eq!(kill.event.reason, "OomKilledChild");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_containers_limit_is_told_by_uid_and_id() -> Result<()> {
    everywhere("container", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 1)?;
        eat(&container)?;
        let kills = wait_kills(agent, 1)?;
        let detail = check_kill(&kills[0], &pod, &container, OomScope::Container)?;
        assert_eq!(kills[0].event.reason, "OomKilled");
        assert_eq!(detail.victim.is_main_process, Some(true));
        assert_eq!(detail.victim.comm, "tail");
        assert_eq!(detail.trigger.comm, "tail");
        let limit = detail.limit.as_ref().context("a limit")?;
        assert_eq!(limit.max_bytes, Some(LIMIT << 20));
        let status = agent.wait("the kill is counted", |status| {
            pod_of(status, UID).is_some_and(|it| it.oom_kills == 1)
        })?;
        let entry = pod_of(&status, UID).context("the pod is there")?;
        assert_eq!(
            (entry.name.as_str(), entry.qos.to_string()),
            ("", "Burstable".to_owned())
        );
        let mut records = agent.oom_records()?;
        records.retain(|it| it.event.uid().is_some());
        assert_eq!(records.len(), 1);
        let page = text(&agent.metrics, "/metrics")?;
        let series = format!("pod_uid=\"{UID}\"");
        let counted = page.lines().find(|it| {
            it.starts_with("ballast_oom_kills_total")
                && it.contains(&series)
                && it.contains(&container.id)
        });
        let counted = counted.with_context(|| format!("no series of the container in {page}"))?;
        assert!(counted.ends_with(" 1"), "{counted}");
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_child_is_told_apart_from_the_containers_end() -> Result<()> {
    everywhere("child", |tree, agent| {
        let pod = tree.pod(STATIC_UID)?;
        let container = limited(&pod, 2)?;
        let eaters = [EATER; LOOKS].join("; ");
        // The last is the first of a namespace that the container makes.
        let nested = format!("unshare -p -f sh -c 'exec {EATER}'");
        let _program = container.run(&format!("{eaters}; {nested}; exec sleep 3600"))?;
        for kill in &wait_kills(agent, LOOKS + 1)? {
            check_child(kill, &pod, &container)?;
        }
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn the_first_process_of_a_container_is_known_by_its_namespace() -> Result<()> {
    everywhere("first", |tree, agent| {
        let pod = tree.pod(UID)?;
        for n in 0..LOOKS as u64 {
            let container = limited(&pod, 300 + n)?;
            eat(&container)?;
        }
        for kill in &wait_kills(agent, LOOKS)? {
            assert_eq!(oom_detail(kill)?.victim.is_main_process, Some(true));
            assert_eq!(kill.event.reason, "OomKilled");
        }
        Ok(())
    })
}

/// A pod that shares its PID namespace: the first process in there is the sandbox's. Of who is alone in a container
/// nothing is said, and who came after another was not the first.
#[cfg_attr(feature = "privileged", test)]
fn nothing_is_guessed_of_the_first_process_in_a_shared_namespace() -> Result<()> {
    everywhere("shared", |tree, agent| {
        let pod = tree.pod(UID)?;
        let sandbox = pod.container(Naming::Containerd, 310)?;
        let first = sandbox.run("exec sleep 3600")?;
        let container = limited(&pod, 311)?;
        container
            .run_beside(&first, &format!("exec {EATER}"))?
            .wait()?;
        let kills = wait_kills(agent, 1)?;
        let detail = check_kill(&kills[0], &pod, &container, OomScope::Container)?;
        assert_eq!(detail.victim.is_main_process, None);
        let message = &kills[0].event.message;
        assert!(message.ends_with(" is not known"), "{message}");
        // Whoever was started by a process of the container was not.
        container.run_beside(&first, EATER_AS_CHILD)?.wait()?;
        container.run_on_host(EATER_AS_CHILD)?.wait()?;
        for kill in &wait_kills(agent, 3)?[1..] {
            check_child(kill, &pod, &container)?;
        }
        // Nor who is started into one that runs, as a command by `kubectl exec`, a tick of `/proc` later.
        let _main = container.run_beside(&first, "exec sleep 3600")?;
        thread::sleep(2 * TICK);
        container
            .run_beside(&first, &format!("exec {EATER}"))?
            .wait()?;
        container.run_on_host(&format!("exec {EATER}"))?.wait()?;
        for kill in &wait_kills(agent, 5)?[3..] {
            check_child(kill, &pod, &container)?;
        }
        Ok(())
    })
}

/// A program that goes on when its main thread has exited is the first process as before.
#[cfg_attr(feature = "privileged", test)]
fn the_first_process_stays_the_first_when_its_main_thread_has_exited() -> Result<()> {
    everywhere("leaderless", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 320)?;
        let program = format!("exec {} leaderless {}", hog()?, (2 * LIMIT) << 20);
        container.run(&program)?.wait()?;
        let kills = wait_kills(agent, 1)?;
        let detail = check_kill(&kills[0], &pod, &container, OomScope::Container)?;
        assert_eq!(detail.victim.is_main_process, Some(true));
        assert_ne!(
            detail.victim.tid, detail.victim.pid,
            "another thread allocated"
        );
        assert_eq!(kills[0].event.reason, "OomKilled");
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_pods_limit_names_the_pod() -> Result<()> {
    everywhere("pod", |tree, agent| {
        let pod = tree.pod_of(None, UID)?;
        pod.limit(2 * LIMIT)?;
        let container = pod.container(Naming::Containerd, 3)?;
        let other = pod.container(Naming::Containerd, 4)?;
        let _other = other.run("exec sleep 3600")?;
        eat(&container)?;
        let kills = wait_kills(agent, 1)?;
        check_kill(&kills[0], &pod, &container, OomScope::Pod)?;
        Ok(())
    })
}

/// Of all pods together, as kubelet sets it, and of a QoS class, which is reached before it.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_a_limit_above_the_pods_names_what_was_full() -> Result<()> {
    everywhere("above", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = pod.container(Naming::Containerd, 41)?;
        let kubepods = tree.kubepods();
        let (class, _) = pod.path.rsplit_once('/').context("a pod in its class")?;
        for (n, full, limit, scope) in [
            (1, kubepods.as_str(), 2 * LIMIT, OomScope::Kubepods),
            (2, class, LIMIT, OomScope::Qos),
        ] {
            KubeContainer::at(full)?.limit(limit)?;
            eat(&container)?;
            let kills = wait_kills(agent, n)?;
            let last = kills.last().context("a kill")?;
            let detail = check_kill(last, &pod, &container, scope)?;
            let told = detail.limit.as_ref().and_then(|it| it.max_bytes);
            assert_eq!(told, Some(limit << 20));
        }
        Ok(())
    })
}

/// Nested cgroups, with names that look like those of another pod, are the container's.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_nested_cgroup_belongs_to_the_container() -> Result<()> {
    everywhere("nested", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 5)?;
        let memory = cgroup::dir_of("memory", &container.path);
        let nested = memory
            .join("kubepods")
            .join("podother")
            .join("f".repeat(64));
        let script = format!(
            "mkdir -p {nested}; echo $$ > {nested}/cgroup.procs; {EATER}; exec sleep 3600",
            nested = nested.display()
        );
        let _program = container.run(&script)?;
        let kills = wait_kills(agent, 1)?;
        check_kill(&kills[0], &pod, &container, OomScope::Container)?;
        let status = agent.wait("the kill is counted", |status| {
            pod_of(status, UID).is_some_and(|it| it.oom_kills == 1)
        })?;
        assert_eq!(status.pods.len(), 1, "{:?}", status.pods);
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn kills_at_the_same_time_are_told_apart() -> Result<()> {
    everywhere("two", |tree, agent| {
        let uids = [UID, STATIC_UID];
        let mut programs = Vec::new();
        let mut made = Vec::new();
        for (uid, n) in uids.into_iter().zip([6, 7]) {
            let pod = tree.pod(uid)?;
            let container = limited(&pod, n)?;
            programs.push(container.run(&format!("{EATER} & {EATER} & wait; exec sleep 3600"))?);
            made.push((pod, container));
        }
        let kills = wait_kills(agent, 4)?;
        for (pod, container) in &made {
            let own = kills.iter().filter(|it| whose(it).0 == pod.uid);
            let own: Vec<_> = own.collect();
            assert_eq!(own.len(), 2);
            for kill in own {
                check_kill(kill, pod, container, OomScope::Container)?;
            }
        }
        let pids = kills.iter().map(|it| Ok(oom_detail(it)?.victim.pid));
        assert_eq!(pids.collect::<Result<BTreeSet<u32>>>()?.len(), 4);
        Ok(())
    })
}

/// A thread's allocation names its process; threads are made by a program of our own, as no shell can.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_for_a_threads_allocation_names_the_process() -> Result<()> {
    everywhere("thread", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 8)?;
        let mut program = container.run(&format!("exec {} thread 100663296", hog()?))?;
        program.wait()?;
        let kills = wait_kills(agent, 1)?;
        let detail = check_kill(&kills[0], &pod, &container, OomScope::Container)?;
        assert_eq!(detail.trigger.pid, detail.victim.pid);
        Ok(())
    })
}

/// The runtime removes the cgroup, and kubelet the pod's, before anybody can look.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_short_lived_container_is_attributed() -> Result<()> {
    everywhere("short", |tree, agent| {
        let n = scaled(10, 4)?;
        for i in 0..n {
            let pod = tree.pod(&format!("{i:032x}"))?;
            let container = pod.container(Naming::Containerd, 100 + u64::from(i))?;
            container.limit(4)?;
            eat(&container)?;
            container.remove();
            pod.remove();
        }
        let kills = wait_kills(agent, n as usize)?;
        let uids: BTreeSet<&str> = kills.iter().map(|it| whose(it).0).collect();
        assert_eq!(uids.len(), n as usize);
        let ids: BTreeSet<&str> = kills.iter().map(|it| whose(it).1).collect();
        assert_eq!(ids.len(), n as usize);
        let gone = |status: &ballast::model::status::Status| status.pods.is_empty();
        agent.wait("the pods are gone", gone)?;
        Ok(())
    })
}

/// Made, killed and removed while no agent runs: what the kernel has written down of the kill tells whose it was.
#[cfg_attr(feature = "privileged", test)]
fn a_container_that_is_gone_when_the_agent_is_back_has_its_kill() -> Result<()> {
    everywhere("away", |tree, agent| {
        let pod = tree.pod(UID)?;
        let stays = limited(&pod, 31)?;
        agent.wait("the pod is there", |it| pod_of(it, UID).is_some())?;
        agent.kill()?;
        let in_pod = limited(&pod, 32)?;
        let other = tree.pod(STATIC_UID)?;
        let alone = limited(&other, 33)?;
        for container in [&stays, &in_pod, &alone] {
            eat(container)?;
        }
        in_pod.remove();
        alone.remove();
        other.remove();
        agent.start()?;
        let kills = wait_kills(agent, 3)?;
        check_kill(&kills[0], &pod, &stays, OomScope::Container)?;
        check_kill(&kills[1], &pod, &in_pod, OomScope::Container)?;
        check_kill(&kills[2], &other, &alone, OomScope::Container)?;
        let check = |agent: &Agent| -> Result<()> {
            let page = scrape::page(&agent.metrics, "/metrics")?;
            for (pod, container) in [(&pod, &stays), (&pod, &in_pod), (&other, &alone)] {
                let labels = [("pod_uid", &*pod.uid), ("container_id", &*container.id)];
                let found = page.value("ballast_oom_kills_total", &labels);
                ensure!(found == Some(1.0), "{found:?} of {}", container.id);
            }
            Ok(())
        };
        until("they are counted", || check(agent))?;
        agent.wait("who is gone is not shown, and counts", |it| {
            let pod = pod_of(it, UID);
            pod_of(it, STATIC_UID).is_none()
                && pod.is_some_and(|it| it.containers.len() == 1 && it.oom_kills == 2)
        })?;
        thread::sleep(2 * GRACE);
        check(agent)
    })
}

/// As runtimes do it: now and then before its last reading is taken.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_container_that_is_removed_at_once_is_on_both_pages() -> Result<()> {
    let tree = KubeTree::new("brief", Driver::Cgroupfs)?;
    let mut agent = Agent::observing("observe-brief", &tree)?;
    agent.metrics = free_address()?;
    agent.start()?;
    let pod = tree.pod(UID)?;
    agent.wait("the pod is there", |it| pod_of(it, UID).is_some())?;
    let mut containers = Vec::new();
    for n in 870..880 {
        let container = limited(&pod, n)?;
        container.run(&format!("exec {EATER}"))?.wait()?;
        container.remove();
        containers.push(container);
    }
    let check = || {
        let mut containers = containers.iter();
        containers.try_for_each(|it| check_counted(&agent, it, 1))
    };
    until("each is counted", check)?;
    thread::sleep(2 * GRACE);
    check()
}

/// Both pages have so many kills of a container of the pod.
fn check_counted(agent: &Agent, container: &KubeContainer, n: u64) -> Result<()> {
    let own = [("pod_uid", UID), ("container_id", container.id.as_str())];
    let cadvisor = [("id", container.path.as_str())];
    let found = scrape::oom_kills(&agent.metrics, &own, &cadvisor)?;
    let n = Some(n as f64);
    ensure!(found == (n, n), "{found:?} of {n:?} in {}", container.id);
    Ok(())
}

/// A child of the first process is killed once the agent and what it has pinned are gone: all, or the program alone
/// that tells of kills.
fn kill_unwatched(agent: &mut Agent, container: &KubeContainer, all: bool) -> Result<Program> {
    agent.wait("the pod is there", |it| pod_of(it, UID).is_some())?;
    agent.kill()?;
    if all {
        Streams::unpin_all(&agent.pin_directory)?;
    } else {
        for set in fs::read_dir(&agent.pin_directory)? {
            for link in fs::read_dir(set?.path())? {
                let link = link?;
                if link
                    .file_name()
                    .as_encoded_bytes()
                    .starts_with(b"oom_victim")
                {
                    fs::remove_file(link.path())?;
                }
            }
        }
    }
    let program = container.run(&format!("{EATER_AS_CHILD}; exec sleep 3600"))?;
    until("it is killed", || {
        let n = cgroup::oom_kills(&container.path)?;
        ensure!(n == 1, "{n} kills");
        Ok(())
    })?;
    Ok(program)
}

/// Its report is lost, the next agent is killed while it waits for one, and the cgroup is gone when the third comes.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_that_no_agent_lived_to_compare_is_missed_once() -> Result<()> {
    everywhere("third", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 34)?;
        let program = kill_unwatched(agent, &container, true)?;
        agent.start()?;
        until("what the kernel has counted is saved", || {
            let saved = agent.saved_counts()?;
            let open = saved.0.get("open_oom_kills");
            ensure!(open.is_some(), "{saved:?}");
            Ok(())
        })?;
        agent.kill()?;
        drop(program);
        container.remove();
        pod.remove();
        agent.start()?;
        let check = || -> Result<()> {
            let page = scrape::page(&agent.metrics, "/metrics")?;
            let labels = [("pod_uid", &*pod.uid), ("container_id", &*container.id)];
            let kills = page.value("ballast_oom_kills_total", &labels);
            // It was killed when nobody watched, whoever has found that.
            let missed = page.value("ballast_oom_missed_kills_total", &[("cause", "unwatched")]);
            ensure!(
                (kills, missed) == (Some(1.0), Some(1.0)),
                "{kills:?} kills, {missed:?} missed"
            );
            Ok(())
        };
        until("it is counted", check)?;
        thread::sleep(2 * GRACE);
        check()
    })
}

/// Nor was any program left that noted it: nothing was lost. Of a container that is gone the pod's count is left.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_that_nobody_watched_is_said_to_be_one() -> Result<()> {
    everywhere("unwatched", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 35)?;
        let all = matches!(tree.driver, Driver::Cgroupfs);
        let _program = kill_unwatched(agent, &container, all)?;
        let gone = limited(&pod, 36)?;
        eat(&gone)?;
        gone.remove();
        let n = if has_counts_of_pods(&pod)? { 2.0 } else { 1.0 };
        agent.start()?;
        let check = |agent: &Agent| -> Result<()> {
            let page = scrape::page(&agent.metrics, "/metrics")?;
            let missed = |cause| page.value("ballast_oom_missed_kills_total", &[("cause", cause)]);
            let counted = (missed("unwatched"), missed("lost"));
            ensure!(counted == (Some(n), Some(0.0)), "{counted:?} of {n}");
            let events = agent.events("oom")?;
            let events = events
                .iter()
                .filter(|it| it.event.reason == "OomKillMissed");
            let mut named: Vec<_> = events
                .map(|it| {
                    let message = &it.event.message;
                    ensure!(message.contains("no agent ran"), "{message}");
                    ensure!(it.event.uid().is_some(), "{it:#?}");
                    Ok(it.event.container_id.as_deref())
                })
                .collect::<Result<_>>()?;
            named.sort();
            let of_pod = (n > 1.0).then_some(None);
            let expected: Vec<_> = of_pod.into_iter().chain([Some(&*container.id)]).collect();
            ensure!(named == expected, "{named:?}");
            Ok(())
        };
        until("it is told", || check(agent))?;
        thread::sleep(2 * GRACE);
        check(agent)
    })
}

/// Whether the kernel counts the kills of a pod so that nobody takes one for two: v2 from Linux 5.17 on.
fn has_counts_of_pods(pod: &KubePod) -> Result<bool> {
    let counts = || cgroup::read("memory", &pod.path, "memory.events");
    Ok(cgroup::is_unified() && counts()?.contains("oom_group_kill"))
}

/// Where nobody reports kills, and the container is gone before anybody reads its count.
#[cfg_attr(feature = "privileged", test)]
fn without_programs_a_kill_that_ends_a_container_is_one_of_its_pod_at_least() -> Result<()> {
    let tree = KubeTree::new("bareshort", Driver::Cgroupfs)?;
    let mut agent = Agent::observing("observe-bare-short", &tree)?;
    agent.is_without_programs = true;
    agent.metrics = free_address()?;
    let pod = tree.pod(UID)?;
    agent.start()?;
    agent.wait("the pod is there", |it| pod_of(it, UID).is_some())?;
    let n = scaled(30, 8)?;
    let staying = limited(&pod, 99)?;
    for i in 0..n {
        let container = limited(&pod, 100 + u64::from(i))?;
        eat(&container)?;
        container.remove();
        if i == n / 2 {
            eat(&staying)?;
        }
    }
    let all = f64::from(n + 1);
    let is_exact = has_counts_of_pods(&pod)?;
    let check = |agent: &Agent| -> Result<()> {
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let found = page.sum("ballast_oom_kills_total", &[("pod_uid", UID)]);
        let missed = page.value(
            "ballast_oom_missed_kills_total",
            &[("cause", "no_programs")],
        );
        let of_staying = [("pod_uid", UID), ("container_id", &*staying.id)];
        let of_staying = page.value("ballast_oom_kills_total", &of_staying);
        ensure!(of_staying == Some(1.0), "{of_staying:?} of who stays");
        ensure!(missed == Some(found), "{found} kills, {missed:?} missed");
        match is_exact {
            true => ensure!(found == all, "{found} of {all}"),
            false => ensure!(found <= all, "{found} of {all}"),
        }
        Ok(())
    };
    until("they are counted", || check(&agent))?;
    thread::sleep(2 * GRACE);
    check(&agent)?;
    agent.kill()?;
    agent.start()?;
    until("they stay counted", || check(&agent))?;
    thread::sleep(2 * GRACE);
    check(&agent)
}

/// Started once without its capabilities, by a mistake: what is pinned is kept from it, and stays. What it counts
/// itself meanwhile waits there for the next agent too.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_without_rights_leaves_what_is_pinned_to_the_next() -> Result<()> {
    let tree = KubeTree::new("rights", Driver::Cgroupfs)?;
    let mut agent = Agent::observing("observe-rights", &tree)?;
    agent.metrics = free_address()?;
    let container = limited(&tree.pod(UID)?, 37)?;
    let check = |agent: &Agent, n: f64| -> Result<()> {
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let of = [("pod_uid", UID), ("container_id", &*container.id)];
        let counted = page.sum("ballast_oom_kills_total", &of);
        ensure!(counted == n, "{counted} kills of {n}");
        Ok(())
    };
    agent.start()?;
    agent.wait("the pod is there", |it| pod_of(it, UID).is_some())?;
    agent.kill()?;
    eat(&container)?;
    agent.is_without_programs = true;
    agent.start()?;
    until("a kill of before is counted", || check(&agent, 1.0))?;
    eat(&container)?;
    until("its own is counted", || check(&agent, 2.0))?;
    agent.kill()?;
    eat(&container)?;
    agent.is_without_programs = false;
    agent.start()?;
    until("the third is counted", || check(&agent, 3.0))?;
    thread::sleep(2 * GRACE);
    check(&agent, 3.0)?;
    // It was noted by the programs of the first agent: nobody else ran.
    let mut reported = kills(&agent)?;
    reported.retain(|it| it.event.reason != "OomKillMissed");
    let reported: Vec<_> = reported.iter().map(oom_detail).collect::<Result<_>>()?;
    ensure!(reported.len() == 1, "{reported:#?}");
    Ok(())
}

/// v2 kills the whole group, each member of which is told; v1 knows no groups.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_group_names_each_of_its_processes() -> Result<()> {
    everywhere("group", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 9)?;
        let n = match cgroup::is_unified() {
            true => {
                cgroup::write("memory", &container.path, "memory.oom.group", "1")?;
                4
            }
            false => 1,
        };
        // Not in the namespace of the first process, whose end takes along whom the kernel has not come to.
        let idle = (0..3).map(|_| container.run_on_host("exec sleep 3600"));
        let _idle = idle.collect::<Result<Vec<_>>>()?;
        let mut program = container.run(&format!("exec {EATER}"))?;
        program.wait()?;
        for kill in &wait_kills(agent, n)? {
            check_kill(kill, &pod, &container, OomScope::Container)?;
            let victim = &oom_detail(kill)?.victim;
            assert_eq!(victim.took_container, Some(cgroup::is_unified()));
        }
        Ok(())
    })
}

/// The kernel counts that at the pod, and the first victim twice in its container (v2).
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_whole_pod_is_counted_once_a_process() -> Result<()> {
    everywhere("wholepod", |tree, agent| {
        let pod = tree.pod(UID)?;
        pod.limit(LIMIT)?;
        let is_group = cgroup::is_unified();
        let n: u16 = match is_group {
            true => {
                cgroup::write("memory", &pod.path, "memory.oom.group", "1")?;
                3
            }
            false => 1,
        };
        let idle = pod.container(Naming::Containerd, 39)?;
        let _idle = idle.run("exec sleep 3600")?;
        let container = pod.container(Naming::Containerd, 40)?;
        let _program = container.run(&format!("{EATER}; exec sleep 3600"))?;
        for kill in wait_kills(agent, n.into())? {
            let victim = &oom_detail(&kill)?.victim;
            assert_eq!(victim.ends_container(), Some(is_group), "{kill:#?}");
        }
        let check = || {
            let page = scrape::page(&agent.metrics, "/metrics")?;
            let counted = page.sum("ballast_oom_kills_total", &[("pod_uid", UID)]);
            ensure!(counted == f64::from(n), "{counted} kills of {n}");
            Ok(())
        };
        until("they are counted", check)?;
        thread::sleep(2 * GRACE);
        check()
    })
}

/// As crun has it: a container's processes, its limit and what says that they go together are in a cgroup below its own.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_a_group_below_the_containers_cgroup_ends_the_container() -> Result<()> {
    everywhere("crun", |tree, agent| {
        let pod = tree.pod(UID)?;
        let container = pod.container(Naming::Crio, 38)?;
        let inner = KubeContainer::at(&format!("{}/container", container.path))?;
        inner.limit(LIMIT)?;
        let is_group = cgroup::is_unified();
        let (n, reason) = match is_group {
            true => {
                cgroup::write("memory", &inner.path, "memory.oom.group", "1")?;
                (3, "OomKilled")
            }
            false => (1, "OomKilledChild"),
        };
        // As above: in a namespace of its own.
        let _beside = inner.run("exec sleep 3600")?;
        let _program = inner.run(&format!("{EATER}; exec sleep 3600"))?;
        for kill in &wait_kills(agent, n)? {
            assert_eq!(whose(kill), (&*pod.uid, &*container.id), "{kill:#?}");
            let victim = &oom_detail(kill)?.victim;
            assert_eq!(victim.ends_container(), Some(is_group), "{kill:#?}");
            assert_eq!(kill.event.reason, reason);
        }
        Ok(())
    })
}

/// Runtimes name their cgroups each in its own way.
#[cfg_attr(feature = "privileged", test)]
fn containers_of_every_runtime_are_known() -> Result<()> {
    everywhere("names", |tree, agent| {
        let pod = tree.pod(UID)?;
        let mut made = Vec::new();
        for (naming, n) in [
            (Naming::Containerd, 11),
            (Naming::Crio, 12),
            (Naming::Docker, 13),
        ] {
            let container = pod.container(naming, n)?;
            container.limit(LIMIT)?;
            eat(&container)?;
            made.push(container);
            let kills = wait_kills(agent, made.len())?;
            let last = kills.last().context("a kill")?;
            check_kill(last, &pod, &made[made.len() - 1], OomScope::Container)?;
        }
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_dies_amid_kills_loses_none_and_doubles_none() -> Result<()> {
    dies_amid_kills("observe-restart", false)
}

#[cfg_attr(feature = "privileged", test)]
fn an_agent_without_programs_that_dies_amid_kills_loses_none_and_doubles_none() -> Result<()> {
    dies_amid_kills("observe-restart-bare", true)
}

/// Killed without a word amid kills, and started again: each is counted once.
fn dies_amid_kills(test: &str, is_without_programs: bool) -> Result<()> {
    let tree = KubeTree::new("restart", Driver::Cgroupfs)?;
    let mut agent = Agent::observing(test, &tree)?;
    agent.is_without_programs = is_without_programs;
    agent.metrics = free_address()?;
    let pod = tree.pod(UID)?;
    let container = pod.container(Naming::Containerd, 21)?;
    container.limit(8)?;
    // Two hundred and more in all.
    let each = scaled(70, 12)?;
    let kill_some = |container: &KubeContainer, n: u32| -> Result<()> {
        let script = format!("i=0; while [ $i -lt {n} ]; do {EATER}; i=$((i+1)); done");
        container.run(&script)?.wait()
    };
    // Before there is any agent: nobody's to tell.
    let before = 5;
    kill_some(&container, before)?;
    agent.start()?;
    let status = agent.wait("the pod is there", |it| pod_of(it, UID).is_some())?;
    let known = pod_of(&status, UID).map(|it| it.oom_kills);
    assert_eq!(known, Some(0), "kills from before");
    for round in 1..=3 {
        let worker = std::thread::scope(|scope| -> Result<()> {
            let made = scope.spawn(|| kill_some(&container, each));
            let enough = u64::from((round - 1) * each + each / 3);
            agent.wait("some kills of this round", |status| {
                pod_of(status, UID).is_some_and(|it| it.oom_kills >= enough)
            })?;
            agent.kill()?;
            agent.start()?;
            made.join().ok().context("the thread panicked")?
        });
        worker?;
    }
    // While none runs, in a container that it knows and in one that it has never seen.
    agent.kill()?;
    let unseen = pod.container(Naming::Containerd, 22)?;
    unseen.limit(8)?;
    kill_some(&container, 4)?;
    kill_some(&unseen, 3)?;
    agent.start()?;
    let all = u64::from(3 * each + 4);
    let by_kernel = cgroup::oom_kills(&container.path)?;
    assert_eq!(by_kernel, all + u64::from(before), "counted by the kernel");
    let check = |agent: &Agent| {
        check_counted(agent, &container, all)?;
        check_counted(agent, &unseen, 3)
    };
    until("all kills are counted", || check(&agent))?;
    // One whose report went with an agent has no record, and is missed.
    let n_missed = until("each is on record or missed", || {
        let records = agent.oom_records()?;
        let of_pod = records.iter().filter(|it| it.event.uid().is_some());
        let in_records: u64 = of_pod.map(|it| it.n_kills).sum();
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let n_missed = page.sum("ballast_oom_missed_kills_total", &[]);
        ensure!(
            in_records as f64 + n_missed == (all + 3) as f64,
            "{in_records} on record and {n_missed} missed of {}",
            all + 3
        );
        Ok(n_missed)
    })?;
    say(format!("{n_missed} of {} kills were missed", all + 3));
    // Later than whatever is still compared.
    thread::sleep(2 * GRACE);
    check(&agent)?;
    agent.stop()?;
    agent.start()?;
    until("all kills are counted", || check(&agent))
}
