//! The tree as it changes: pods that come, go and come again, and many of them.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::cgroup_name::CgroupDriver;
use ballast::model::record::{EventRecord, OomScope};
use ballast::model::status::Status;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeContainer, KubePod, KubeTree, Naming, container_id};
use ballast_tests::scrape::{free_address, get, text};
use ballast_tests::wait::{until, wait_for};

use super::{
    EATER, LIMIT, STATIC_UID, UID, check_kill, eat, everywhere, limited, pod_of, wait_kills,
};
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
            let container = limited(&pod, n)?;
            eat(&container)?;
            let kills = wait_kills(agent, containers.len() + 1)?;
            let last = kills.last().context("a kill")?;
            check_kill(last, &pod, &container, OomScope::Container)?;
            container.remove();
            sandbox.remove();
            containers.push(container);
        }
        agent.wait(
            "the kills are the pod's, though both containers are gone",
            |status| {
                pod_of(status, STATIC_UID)
                    .is_some_and(|it| it.containers.is_empty() && it.oom_kills == 2)
            },
        )?;
        pod.remove();
        agent.wait("the pod is gone", |it| pod_of(it, STATIC_UID).is_none())?;
        let pod = tree.pod(STATIC_UID)?;
        let container = limited(&pod, 33)?;
        agent.wait("the pod is there again", |it| {
            pod_of(it, STATIC_UID).is_some_and(|it| it.containers.len() == 1)
        })?;
        eat(&container)?;
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
        let container = limited(&pod, n)?;
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
    let root = status.node.cgroup.root.as_deref();
    assert_eq!(root, Some(format!("/{}", tree.root).as_str()));
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
    let shown = agent.status()?.node.cgroup;
    assert_eq!((shown.driver, shown.root), (None, None));
    let text = agent.command(&["status"])?;
    assert!(text.contains("(no cgroup of pods yet)"), "{text}");
    let pod = tree.pod(UID)?;
    // Before the agent looks for it again, and after it.
    for n in 1..=2 {
        let container = limited(&pod, 50 + n)?;
        eat(&container)?;
        let kills = wait_kills(&agent, usize::try_from(n)?)?;
        let last = kills.last().context("a kill")?;
        check_kill(last, &pod, &container, OomScope::Container)?;
        agent.wait("the pod is found, with its kills", |it| {
            pod_of(it, UID).is_some_and(|it| it.oom_kills == n)
        })?;
    }
    thread::sleep(GRACE * 2);
    wait_kills(&agent, 2)?;
    Ok(())
}

/// The cgroup of all pods goes and comes again, as when somebody resets kubelet: it is another one.
#[cfg_attr(feature = "privileged", test)]
fn a_kubepods_that_is_made_again_is_found() -> Result<()> {
    everywhere("reset", |tree, agent| {
        tree.pod(UID)?;
        agent.wait("the pod is found", |it| pod_of(it, UID).is_some())?;
        cgroup::remove_in_all(&tree.kubepods());
        let is_missed = |it: &str| it.contains("kubelet.cgroupRoot") && it.contains(&tree.root);
        agent.wait("it is missed", |status| {
            status.pods.is_empty() && status.warnings.iter().any(|it| is_missed(it))
        })?;
        let ready = get(&agent.metrics, "/readyz", &[])?;
        let why = String::from_utf8_lossy(&ready.body).into_owned();
        assert_eq!(ready.status, 503);
        assert!(is_missed(&why), "{why}");
        let pod = tree.pod(UID)?;
        let container = limited(&pod, 61)?;
        let status = agent.wait("the pod is found", |it| pod_of(it, UID).is_some())?;
        let missed: Vec<_> = status.warnings.iter().filter(|it| is_missed(it)).collect();
        assert!(missed.is_empty(), "{missed:?}");
        eat(&container)?;
        let kills = wait_kills(agent, 1)?;
        check_kill(&kills[0], &pod, &container, OomScope::Container)?;
        assert_eq!(get(&agent.metrics, "/readyz", &[])?.status, 200);
        Ok(())
    })
}

/// A kubelet that was told another driver leaves what it had made, and no pods in it.
#[cfg_attr(feature = "privileged", test)]
fn what_another_driver_left_hides_no_pod() -> Result<()> {
    let left = KubeTree::new("left", Driver::Cgroupfs)?;
    left.pod(UID)?.remove();
    let tree = left.by(Driver::Systemd)?;
    let mut agent = Agent::observing("observe-left", &left)?;
    let pod = tree.pod(STATIC_UID)?;
    let container = limited(&pod, 71)?;
    agent.start()?;
    agent.wait("the pod is found", |it| pod_of(it, STATIC_UID).is_some())?;
    eat(&container)?;
    let kills = wait_kills(&agent, 1)?;
    check_kill(&kills[0], &pod, &container, OomScope::Container)?;
    Ok(())
}

/// Runs an [`EATER`] in a cgroup that the container has made for itself until it is killed.
fn run_nested(container: &KubeContainer) -> Result<()> {
    let nested = cgroup::dir_of("memory", &container.path).join("nested");
    let nested = nested.display();
    let script = format!("mkdir {nested}; echo $$ > {nested}/cgroup.procs; exec {EATER}");
    container.run(&script)?.wait()
}

/// Their cgroups are not those that the kernel tells of, and their kills are not the host's.
#[cfg_attr(feature = "privileged", test)]
fn pods_that_still_run_by_another_driver_are_told() -> Result<()> {
    let before = KubeTree::new("still", Driver::Cgroupfs)?;
    let pod = before.pod(UID)?;
    let container = limited(&pod, 81)?;
    let tree = before.by(Driver::Systemd)?;
    tree.pod(STATIC_UID)?;
    let mut agent = Agent::observing("observe-still", &before)?;
    agent.start()?;
    let status = agent.wait("both pods are shown", |it| it.pods.len() == 2)?;
    assert_eq!(status.node.cgroup.driver, Some(CgroupDriver::Systemd));
    eat(&container)?;
    // And one that was made since.
    let made = limited(&pod, 82)?;
    eat(&made)?;
    // And in what a container of it made for itself.
    let nesting = limited(&pod, 83)?;
    run_nested(&nesting)?;
    let kills = wait_kills(&agent, 3)?;
    for (kill, container) in kills.iter().zip([&container, &made, &nesting]) {
        check_kill(kill, &pod, container, OomScope::Container)?;
    }
    agent.wait("they are the pod's", |status| {
        pod_of(status, UID).is_some_and(|it| it.oom_kills == 3)
    })?;
    // What the kernel counts of a container above the victim is no other kill, and none of them is the host's too.
    agent.stats()?;
    thread::sleep(GRACE * 2);
    let kills = wait_kills(&agent, 3)?;
    let victims = kills.iter().map(|it| Ok(oom_detail(it)?.victim.pid));
    let victims = victims.collect::<Result<BTreeSet<u32>>>()?;
    let mut of_host = agent.events("oom")?;
    of_host.retain(|it| {
        let is_one = oom_detail(it).is_ok_and(|it| victims.contains(&it.victim.pid));
        is_one && it.event.uid().is_none()
    });
    assert_eq!(of_host, []);
    Ok(())
}

/// A kubelet was told another driver while its pods ran: it has made their cgroups again, and new pods beside them.
#[cfg_attr(feature = "privileged", test)]
fn of_two_trees_in_use_one_is_followed_and_both_are_shown() -> Result<()> {
    let first = KubeTree::new("two", Driver::Cgroupfs)?;
    let second = first.by(Driver::Systemd)?;
    let mut agent = Agent::observing("observe-two", &first)?;
    agent.metrics = free_address()?;
    let run = |pod: &KubePod, n: u64| {
        let container = pod.container(Naming::Containerd, n)?;
        container.run("exec sleep 3600")
    };
    let pod = first.pod(UID)?;
    let _program = run(&pod, 111)?;
    agent.start()?;
    agent.wait("it is shown", |it| it.pods.len() == 1)?;
    let again = second.pod(UID)?;
    let other = second.pod(STATIC_UID)?;
    let _other = [run(&other, 112)?, run(&other, 113)?];
    let is_told = |it: &Status| it.warnings.iter().any(|it| it.contains("pods run below"));
    let status = agent.wait("both are shown, and that they are two", |it| {
        it.pods.len() == 2 && is_told(it)
    })?;
    assert_eq!(status.node.cgroup.driver, Some(CgroupDriver::Cgroupfs));
    let checked = agent.check_command()?.output()?;
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.contains("pods run below"), "{checked}");
    // Nobody tells of it.
    let _late = run(&other, 114)?;
    agent.wait("one that was made since is shown", |it| {
        pod_of(it, STATIC_UID).is_some_and(|it| it.containers.len() == 3)
    })?;
    // The pod is where its containers are.
    until("its cgroup is shown", || {
        let page = text(&agent.metrics, "/metrics/cadvisor")?;
        let has = |path: &str| page.contains(&format!("id=\"{path}\""));
        ensure!(has(&pod.path) && !has(&again.path), "{page}");
        Ok(())
    })?;
    pod.remove();
    let status = agent.wait("the other one is followed", |it| {
        it.node.cgroup.driver == Some(CgroupDriver::Systemd)
    })?;
    assert!(!is_told(&status), "{:?}", status.warnings);
    Ok(())
}

/// A runtime that uses cgroupfs while kubelet uses systemd: nobody tells of its cgroups, and they lie in no pod's. Where
/// they lie depends on where the runtime is.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_misplaced_container_is_its_pods() -> Result<()> {
    let tree = KubeTree::new("misplaced", Driver::Systemd)?;
    let pod = tree.pod(UID)?;
    let mut agent = Agent::observing("observe-misplaced", &tree)?;
    agent.metrics = free_address()?;
    agent.start()?;
    agent.wait("the pod is found", |it| pod_of(it, UID).is_some())?;
    let in_slice = format!("/{}", tree.root);
    let in_service = format!("{in_slice}/runtime.service");
    let mut n_kills = 0;
    for (above, id) in ["", &in_slice, &in_service].into_iter().zip(95..) {
        let container = tree.misplaced(above, UID, id)?;
        container.limit(LIMIT)?;
        let killed = run_nested(&container).and_then(|()| {
            n_kills += 1;
            let kills = wait_kills(&agent, n_kills)?;
            let kill = kills.last();
            check_kill(
                kill.context(container.path.clone())?,
                &pod,
                &container,
                OomScope::Container,
            )?;
            agent.stats()?;
            thread::sleep(GRACE * 2);
            agent.wait("what that means is told", |status| {
                status.warnings.iter().any(|it| {
                    it.contains("lies outside the cgroup of its pod")
                        && it.contains(&container.path)
                        && it.contains("no last readings")
                })
            })?;
            // It is a container, and none of the node's own cgroups.
            let page = text(&agent.metrics, "/metrics/cadvisor")?;
            let id = format!("id=\"{}\"", container.path);
            let rows = page
                .lines()
                .filter(|it| it.starts_with("container_memory_usage_bytes{") && it.contains(&id));
            ensure!(rows.count() <= 1, "{}: {page}", container.path);
            wait_kills(&agent, n_kills)
        });
        // No tree has the first.
        container.kill();
        container.remove();
        killed?;
    }
    Ok(())
}

/// Somebody corrects `cgroupRoot`: kills from before, where no agent has looked, are nobody's to tell, and those that
/// come are told.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_is_given_another_root_tells_no_kills_of_before() -> Result<()> {
    let wrong = KubeTree::new("wrong", Driver::Cgroupfs)?;
    wrong.pod(STATIC_UID)?;
    let right = KubeTree::new("right", Driver::Cgroupfs)?;
    let pod = right.pod(UID)?;
    let container = limited(&pod, 91)?;
    let mut agent = Agent::observing("observe-corrected", &wrong)?;
    agent.start()?;
    agent.wait("the first is found", |it| pod_of(it, STATIC_UID).is_some())?;
    for _ in 0..2 {
        eat(&container)?;
    }
    agent.stop()?;
    right.root.clone_into(&mut agent.cgroup_root);
    agent.start()?;
    agent.wait("the other is found", |it| pod_of(it, UID).is_some())?;
    thread::sleep(GRACE * 2);
    wait_kills(&agent, 0)?;
    eat(&container)?;
    let kills = wait_kills(&agent, 1)?;
    check_kill(&kills[0], &pod, &container, OomScope::Container)?;
    thread::sleep(GRACE * 2);
    wait_kills(&agent, 1)?;
    Ok(())
}

/// A cgroup of a name that nobody knows: in a pod it is the pod's, elsewhere below kubepods of no pod, and never
/// the host's. Its limit is not that of what it lies in.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_of_nobody_known_is_shown_by_its_cgroup_and_counted() -> Result<()> {
    everywhere("strange", |tree, agent| {
        let pod = tree.pod(UID)?;
        let class = pod.path.rsplit_once('/').context("a pod in its class")?.0;
        let kubepods = tree.kubepods();
        let mut known = BTreeSet::new();
        for (above, reason) in [
            (kubepods.as_str(), "OomKilledUnknown"),
            (class.trim_start_matches('/'), "OomKilledUnknown"),
            (pod.path.trim_start_matches('/'), "OomKilledInPod"),
        ] {
            let path = format!("{above}/strange");
            let strange = KubeContainer::at(&path)?;
            strange.limit(LIMIT)?;
            eat(&strange)?;
            let id = cgroup::id("memory", &path)?;
            let is_it = |it: &EventRecord| {
                oom_detail(it).is_ok_and(|it| it.victim.unknown_cgroup_id == Some(id))
            };
            let told = agent.wait_events("the kill is told", "oom", |it| it.iter().any(is_it))?;
            let kill = told.iter().find(|it| is_it(it)).context("it was there")?;
            assert_eq!(kill.event.reason, reason, "{kill:#?}");
            let uid = (reason == "OomKilledInPod").then_some(UID);
            assert_eq!(kill.event.pod_uid.as_ref().map(|it| &*it.0), uid);
            let detail = oom_detail(kill)?;
            assert_eq!(detail.scope, OomScope::Other, "{kill:#?}");
            let limit = detail.limit.as_ref().context("a limit")?;
            assert_eq!(
                (limit.unknown_cgroup_id, &limit.cgroup_path),
                (Some(id), &None)
            );
            known.insert(id);
        }
        assert_eq!(known.len(), 3);
        let page = text(&agent.metrics, "/metrics")?;
        let count = |series: &str| -> Result<u64> {
            let line = page.lines().find(|it| it.starts_with(series));
            let line = line.with_context(|| format!("no {series} in {page}"))?;
            Ok(line.rsplit(' ').next().context("a value")?.parse()?)
        };
        let kills_in = "ballast_oom_kills_total{container=\"\",namespace=\"\",pod=\"\"";
        assert_eq!(count(&format!("{kills_in}}}"))?, 2);
        assert_eq!(count(&format!("{kills_in},pod_uid=\"{UID}\"}}"))?, 1);
        agent.wait("the one in the pod is the pod's", |status| {
            pod_of(status, UID).is_some_and(|it| it.oom_kills == 1)
        })?;
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
    agent.metrics = free_address()?;
    agent.start()?;
    let burstable = tree.pod("0123")?;
    burstable.remove();
    let burstable = cgroup::dir_of("memory", &format!("{}/burstable", tree.kubepods()));
    // A process that is in some of them for a moment.
    let home = KubeContainer::at(&format!("{}/home", tree.root))?;
    let process = home.run_on_host("exec sleep 3600")?;
    let visitor = process.id().to_string();
    let began = Instant::now();
    for i in 0..n {
        thread::sleep((every * i).saturating_sub(began.elapsed()));
        let pod = burstable.join(format!("pod{i:032x}"));
        let container = pod.join(container_id(u64::from(i)));
        std::fs::create_dir_all(&container)?;
        if i % 50 == 0 {
            // Its last reading is taken.
            std::fs::write(container.join("cgroup.procs"), &visitor)?;
            cgroup::write("memory", &home.path, "cgroup.procs", &visitor)?;
        }
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
    wait_for("kubepods and a class are all there is", || {
        let page = text(&agent.metrics, "/metrics")?;
        Ok(page
            .lines()
            .any(|it| it == "ballast_objects{kind=\"cgroup\"} 2"))
    })?;
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
