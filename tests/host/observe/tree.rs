//! The tree as it changes: pods that come, go and come again, and many of them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::record::OomScope;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeTree, Naming, container_id};

use super::{EATER, LIMIT, STATIC_UID, UID, check_kill, everywhere, pod_of, wait_kills};
use crate::look::oom_detail;
use crate::{say, scaled};

/// A sandbox that is killed is made again, with all containers, in the same pod cgroup; and a static pod that is
/// removed and put back has the UID that it had.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_is_made_again_under_its_uid_is_another_cgroup() -> Result<()> {
    everywhere("again", |tree, agent| {
        let pod = tree.pod(STATIC_UID)?;
        let mut containers = Vec::new();
        for n in [31, 32] {
            let sandbox = pod.container(Naming::Containerd, 100 + n)?;
            let _pause = sandbox.run("exec sleep 3600")?;
            let container = pod.container(Naming::Containerd, n)?;
            container.limit(LIMIT)?;
            container.run(&format!("exec {EATER}"))?.wait()?;
            let kills = wait_kills(agent, containers.len() + 1)?;
            let last = kills.last().context("a kill")?;
            check_kill(last, &pod, &container, OomScope::Container)?;
            container.remove();
            sandbox.remove();
            containers.push(container);
        }
        pod.remove();
        agent.wait("the pod is gone", |it| pod_of(it, STATIC_UID).is_none())?;
        let pod = tree.pod(STATIC_UID)?;
        let container = pod.container(Naming::Containerd, 33)?;
        container.limit(LIMIT)?;
        agent.wait("the pod is there again", |it| {
            pod_of(it, STATIC_UID).is_some_and(|it| it.containers.len() == 1)
        })?;
        container.run(&format!("exec {EATER}"))?.wait()?;
        let kills = wait_kills(agent, 3)?;
        check_kill(
            kills.last().context("a kill")?,
            &pod,
            &container,
            OomScope::Container,
        )?;
        agent.wait("the kill of this container alone is its own", |status| {
            pod_of(status, STATIC_UID).is_some_and(|it| {
                let counted: Vec<u64> = it.containers.iter().map(|it| it.oom_kills).collect();
                counted == [1]
            })
        })?;
        Ok(())
    })
}

/// Nobody has told their names, so two pods of one name are two pods.
#[cfg_attr(feature = "privileged", test)]
fn what_was_there_before_the_agent_is_known_and_two_pods_are_two() -> Result<()> {
    let tree = KubeTree::new("before", Driver::Systemd)?;
    let mut made = Vec::new();
    for (uid, n) in [(UID, 41), (STATIC_UID, 42)] {
        let pod = tree.pod(uid)?;
        let container = pod.container(Naming::Containerd, n)?;
        container.limit(LIMIT)?;
        let program = container.run("exec sleep 3600")?;
        made.push((pod, container, program));
    }
    let mut agent = Agent::observing("observe-before", &tree)?;
    agent.start()?;
    let status = agent.wait("both are shown with what they use", |status| {
        let used = |uid| {
            let pod = pod_of(status, uid)?;
            pod.containers.first()?.usage.memory_bytes
        };
        used(UID).is_some() && used(STATIC_UID).is_some()
    })?;
    assert_eq!(status.pods.len(), 2);
    assert_eq!(status.node.cgroup.root, format!("/{}", tree.root));
    for (pod, container, _) in &made {
        let entry = pod_of(&status, &pod.uid).context("it is there")?;
        assert_eq!(entry.cgroup_path.as_deref(), Some(pod.path.as_str()));
        let shown = &entry.containers[0];
        assert_eq!(shown.id.as_deref(), Some(container.id.as_str()));
        assert_eq!(
            shown.resources.memory_limit_bytes.map(|it| it.0),
            Some(LIMIT << 20)
        );
    }
    Ok(())
}

/// The agent was there first.
#[cfg_attr(feature = "privileged", test)]
fn a_kubelet_that_comes_later_is_found() -> Result<()> {
    let tree = KubeTree::new("later", Driver::Cgroupfs)?;
    cgroup::remove_in_all(&tree.kubepods());
    let mut agent = Agent::observing("observe-later", &tree)?;
    agent.start()?;
    assert_eq!(agent.status()?.node.cgroup.driver, None);
    let pod = tree.pod(UID)?;
    let container = pod.container(Naming::Containerd, 51)?;
    container.limit(LIMIT)?;
    agent.wait("the pod is found", |it| pod_of(it, UID).is_some())?;
    container.run(&format!("exec {EATER}"))?.wait()?;
    check_kill(
        &wait_kills(&agent, 1)?[0],
        &pod,
        &container,
        OomScope::Container,
    )?;
    Ok(())
}

/// A kill in a cgroup of a pod that is no runtime's is the pod's; one right below kubepods is of nobody known,
/// and never the host's.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_nobody_known_is_shown_by_its_cgroup_and_counted() -> Result<()> {
    everywhere("strange", |tree, agent| {
        let strange = format!("{}/strange", tree.kubepods());
        let pod = ballast_tests::kube::KubeContainer::at(&strange)?;
        pod.limit(LIMIT)?;
        pod.run(&format!("exec {EATER}"))?.wait()?;
        let kills = agent.wait_events("the kill is told", "oom", |it| {
            it.iter().any(|it| it.event.reason == "OomKilledUnknown")
        })?;
        let unknown = kills
            .iter()
            .find(|it| it.event.reason == "OomKilledUnknown");
        let detail = oom_detail(unknown.context("it was there")?)?;
        let id = cgroup::dir_of("memory", &strange);
        let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(id)?);
        assert_eq!(detail.victim.unknown_cgroup_id, Some(inode));
        Ok(())
    })
}

/// As fast as they come.
#[cfg_attr(feature = "privileged", test)]
fn churn_leaves_no_pod_behind() -> Result<()> {
    churn("churn", scaled(1_000, 60)?, Duration::ZERO)
}

/// 200 cgroups a second.
#[cfg_attr(feature = "privileged", test)]
fn a_minute_of_churn_leaves_no_pod_behind() -> Result<()> {
    churn("minute", scaled(6_000, 60)?, Duration::from_millis(10))
}

/// `n` pods of one container come and go, one each time `every` is over, and leave nothing behind.
fn churn(name: &str, n: u32, every: Duration) -> Result<()> {
    let tree = KubeTree::new(name, Driver::Cgroupfs)?;
    let mut agent = Agent::observing(&format!("observe-{name}"), &tree)?;
    agent.start()?;
    let burstable = tree.pod("0123")?;
    burstable.remove();
    let burstable = cgroup::dir_of("memory", &format!("{}/burstable", tree.kubepods()));
    let began = Instant::now();
    for i in 0..n {
        thread::sleep((every * i).saturating_sub(began.elapsed()));
        let pod = burstable.join(format!("pod{i:032x}"));
        let container = pod.join(container_id(u64::from(i)));
        std::fs::create_dir_all(&container)?;
        std::fs::remove_dir(container)?;
        std::fs::remove_dir(pod)?;
    }
    say(format!(
        "{} cgroups came and went in {:?}",
        2 * n,
        began.elapsed()
    ));
    let status = agent.wait("no pod is left", |it| it.pods.is_empty())?;
    assert_eq!(status.node.ebpf.lost.values().sum::<u64>(), 0);
    let pod = tree.pod(UID)?;
    agent.wait("the next one is seen", |it| pod_of(it, UID).is_some())?;
    pod.remove();
    agent.wait("it is gone", |it| it.pods.is_empty())?;
    Ok(())
}

/// A node of three thousand pods: the tree is read once, and what each uses is shown.
#[cfg_attr(feature = "privileged", test)]
fn ten_thousand_cgroups_are_read_at_a_start() -> Result<()> {
    let tree = KubeTree::new("many", Driver::Cgroupfs)?;
    let n = scaled(3_333, 100)?;
    for i in 0..n {
        let pod = tree.pod(&format!("{i:032x}"))?;
        pod.container(Naming::Containerd, 2 * u64::from(i))?;
        pod.container(Naming::Containerd, 2 * u64::from(i) + 1)?;
    }
    let mut agent = Agent::observing("observe-many", &tree)?;
    let began = Instant::now();
    agent.start()?;
    let status = agent.wait("all are known", |it| it.pods.len() == n as usize)?;
    say(format!(
        "{} cgroups were known {:?} after the start",
        3 * n,
        began.elapsed()
    ));
    let n_containers: usize = status.pods.iter().map(|it| it.containers.len()).sum();
    ensure!(n_containers == 2 * n as usize, "{n_containers} containers");
    Ok(())
}
