//! Names that a container runtime tells: before the cgroup is there, after it, after its end, and never.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::kernel::KernelVersion;
use ballast::model::record::EventRecord;
use ballast::model::status::{ContainerEntry, EntryState, Status};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::cri::{FakeRuntime, Manner, RuntimePod, socket_in};
use ballast_tests::kube::{Driver, KubeContainer, KubeTree, Naming, container_id, makes_networks};
use ballast_tests::scrape::{free_address, get, page, text};
use ballast_tests::wait::{patience, until, wait_for};

use super::{LIMIT, STATIC_UID, UID, eat, has_line, limited, pod_of, wait_kills};
use crate::kernel;

/// Ids of containers and sandboxes of these tests.
const SANDBOX: u64 = 900;

const NAMED: &str = "ballast_oom_kills_total{container=\"app\",namespace=\"default\",pod=\"shop\"}";

/// An agent that asks a runtime of the test, which does not run yet.
fn agent(name: &str, tree: &KubeTree) -> Result<Agent> {
    let mut agent = Agent::observing(&format!("names-{name}"), tree)?;
    agent.metrics = free_address()?;
    agent.runtime = Some(socket_in(&agent.dir));
    Ok(agent)
}

fn runtime(agent: &Agent, manner: Manner) -> Result<FakeRuntime> {
    FakeRuntime::start(socket_in(&agent.dir), manner)
}

fn shop(uid: &str) -> RuntimePod {
    RuntimePod::new("default", "shop", uid, &container_id(SANDBOX))
}

/// The one container that is shown of a pod.
fn container<'a>(status: &'a Status, uid: &str) -> Option<&'a ContainerEntry> {
    let entry = pod_of(status, uid)?;
    (entry.containers.len() == 1).then(|| &entry.containers[0])
}

/// All kills that are counted in pods, whatever they are called.
fn sum(agent: &Agent) -> Result<u64> {
    let page = text(&agent.metrics, "/metrics")?;
    let lines = page.lines();
    let kills = lines.filter(|it| it.starts_with("ballast_oom_kills_total{"));
    kills
        .map(|it| Ok(it.rsplit(' ').next().context("a value")?.parse::<u64>()?))
        .sum()
}

/// Pod, pod's namespace and container of a record.
fn named(record: &EventRecord) -> Option<[&str; 3]> {
    let (pod, container) = (record.event.pod.as_ref()?, record.event.container.as_ref()?);
    Some([&pod.namespace, &pod.name, container])
}

/// As kubelet and containerd do it: the sandbox, the event, the cgroup, the process.
#[cfg_attr(feature = "privileged", test)]
fn a_container_has_its_name_before_its_cgroup_is_there() -> Result<()> {
    for (driver, naming, uid) in [
        (Driver::Cgroupfs, Naming::Containerd, UID),
        (Driver::Systemd, Naming::Crio, STATIC_UID),
    ] {
        let tree = KubeTree::new("named", driver)?;
        let mut agent = agent("before", &tree)?;
        let fake = runtime(&agent, Manner::Events)?;
        agent.start()?;
        wait_for("its events are followed", || Ok(fake.n_subscribers() == 1))?;
        let (pod, of_runtime) = (tree.pod(uid)?, shop(uid));
        let sandbox = pod.container(naming, SANDBOX)?;
        let _pause = sandbox.run("exec sleep 3600")?;
        fake.add_sandbox(&of_runtime);
        assert!(fake.tell(&of_runtime, &of_runtime.sandbox, patience()));
        fake.add_container(&of_runtime, "app", 1, &container_id(1));
        assert!(fake.tell(&of_runtime, &container_id(1), patience()));
        let made = pod.container(naming, 1)?;
        made.limit(LIMIT)?;
        eat(&made)?;
        let kills = wait_kills(&agent, 1)?;
        assert_eq!(
            named(&kills[0]),
            Some(["default", "shop", "app"]),
            "{kills:#?}"
        );
        let status = agent.wait("it is shown by its name", |status| {
            container(status, uid).is_some_and(|it| it.oom_kills == 1)
        })?;
        let entry = pod_of(&status, uid).context("it was there")?;
        assert_eq!((&*entry.namespace, &*entry.name), ("default", "shop"));
        let shown = container(&status, uid).context("its sandbox is none")?;
        assert_eq!((&*shown.name, &shown.id, shown.restarts), ("app", &None, 1));
        has_line(&agent, &format!("{NAMED} 1"))?;
        until("the page of cAdvisor has the names", || {
            let page = text(&agent.metrics, "/metrics/cadvisor")?;
            let mut lines = page
                .lines()
                .filter(|it| it.starts_with("container_memory_usage_bytes{"));
            let is_it = |it: &str| it.contains("container=\"app\"") && it.contains("pod=\"shop\"");
            ensure!(lines.any(is_it), "{page}");
            Ok(())
        })?;
        let runtime = status.node.runtime.context("it is shown")?;
        assert_eq!(runtime.runtime().as_deref(), Some("fake 1.2.3"));
        let told = agent.command(&["status"])?;
        assert!(
            told.contains("fake 1.2.3") && told.contains("shop"),
            "{told}"
        );
    }
    Ok(())
}

/// All its containers wait to be started again, or none has begun: what the pod sends and receives is shown, as cAdvisor
/// shows it of the sandbox.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_with_its_sandbox_alone_has_a_network() -> Result<()> {
    if !makes_networks()? {
        crate::leave_out("the network of a sandbox: this kernel has no veth interfaces");
        return Ok(());
    }
    let tree = KubeTree::new("network", Driver::Cgroupfs)?;
    let mut agent = agent("network", &tree)?;
    let fake = runtime(&agent, Manner::Events)?;
    let (pod, of_runtime) = (tree.pod(UID)?, shop(UID));
    fake.add_sandbox(&of_runtime);
    let sandbox = pod.container(Naming::Containerd, SANDBOX)?;
    let _pause = sandbox.run_with_network("exec sleep 3600")?;
    agent.start()?;
    let is_shown = |text: &str| {
        let mut lines = text.lines();
        lines.any(|it| {
            it.starts_with("container_network_receive_bytes_total{")
                && it.contains("interface=\"eth0\"")
                && it.contains("pod=\"shop\"")
        })
    };
    let shows = |what: &str| {
        until(what, || {
            let page = text(&agent.metrics, "/metrics/cadvisor")?;
            ensure!(is_shown(&page), "{page}");
            Ok(())
        })
    };
    shows("the network of a pod that has no container yet is shown")?;
    let id = container_id(1);
    fake.add_container(&of_runtime, "app", 0, &id);
    assert!(fake.tell(&of_runtime, &id, patience()));
    let made = pod.container(Naming::Containerd, 1)?;
    let program = made.run_on_host("exec sleep 3600")?;
    agent.wait("its container is shown", |status| {
        container(status, UID).is_some_and(|it| it.name == "app")
    })?;
    drop(program);
    made.kill();
    made.remove();
    agent.wait("its container is gone", |status| {
        pod_of(status, UID).is_some_and(|it| it.containers.is_empty())
    })?;
    shows("that of a pod whose container has ended is shown")
}

/// A kill is told and counted before anybody knows the name, and neither again when it comes.
#[cfg_attr(feature = "privileged", test)]
fn a_name_that_comes_late_takes_what_was_counted() -> Result<()> {
    let tree = KubeTree::new("late", Driver::Cgroupfs)?;
    let mut agent = agent("late", &tree)?;
    agent.start()?;
    let pod = tree.pod(UID)?;
    let made = limited(&pod, 1)?;
    eat(&made)?;
    let kills = wait_kills(&agent, 1)?;
    assert_eq!(named(&kills[0]), None);
    agent.wait("it is shown by its id", |status| {
        container(status, UID).is_some_and(|it| it.id.is_some() && it.oom_kills == 1)
    })?;
    let is_told = |status: &Status| {
        status
            .warnings
            .iter()
            .any(|it| it.contains("gives no names"))
    };
    agent.wait("that nobody answers is told", is_told)?;
    assert_eq!(sum(&agent)?, 1);
    let fake = runtime(&agent, Manner::Events)?;
    let of_runtime = shop(UID);
    fake.add_sandbox(&of_runtime);
    fake.add_container(&of_runtime, "app", 0, &made.id);
    // At no time fewer or more.
    let sums = RefCell::new(BTreeSet::new());
    agent.wait("it is shown by its name", |status| {
        sums.borrow_mut().extend(sum(&agent).ok());
        container(status, UID).is_some_and(|it| it.name == "app" && it.oom_kills == 1)
    })?;
    assert_eq!(sums.into_inner(), [1].into());
    until("the count is of the name", || {
        has_line(&agent, &format!("{NAMED} 1"))
    })?;
    eat(&made)?;
    wait_kills(&agent, 2)?;
    until("the next is too", || {
        has_line(&agent, &format!("{NAMED} 2"))
    })?;
    thread::sleep(2 * GRACE);
    assert_eq!(sum(&agent)?, 2);
    let kills = wait_kills(&agent, 2)?;
    for kill in &kills {
        assert_eq!(named(kill), Some(["default", "shop", "app"]), "{kill:#?}");
    }
    let status = agent.wait("it is no warning any more", |it| !is_told(it))?;
    assert_eq!(pod_of(&status, UID).map(|it| it.oom_kills), Some(2));
    let log = agent.events("agent")?;
    assert!(
        log.iter().any(|it| it.event.reason == "RuntimeConnected"),
        "{log:#?}"
    );
    // The next agent has them too.
    agent.stop()?;
    agent.start()?;
    agent.wait("the kills are its own", |status| {
        container(status, UID).is_some_and(|it| it.name == "app" && it.oom_kills == 2)
    })?;
    assert_eq!(sum(&agent)?, 2);
    // Started again, with another id: nobody knows the first one any more, nor does the next agent.
    made.remove();
    fake.forget(&made.id);
    fake.add_container(&of_runtime, "app", 1, &container_id(2));
    let again = limited(&pod, 2)?;
    let _process = again.run("exec sleep 3600")?;
    for _ in 0..2 {
        agent.wait("its kills go on", |status| {
            container(status, UID).is_some_and(|it| it.restarts == 1 && it.oom_kills == 2)
        })?;
        agent.stop()?;
        agent.start()?;
    }
    Ok(())
}

/// It is killed and gone before anybody tells whose it was.
#[cfg_attr(feature = "privileged", test)]
fn a_container_that_lived_50_ms_is_named_after_its_end() -> Result<()> {
    let tree = KubeTree::new("short", Driver::Cgroupfs)?;
    let mut agent = agent("short", &tree)?;
    let fake = runtime(&agent, Manner::Events)?;
    agent.start()?;
    wait_for("its events are followed", || Ok(fake.n_subscribers() == 1))?;
    let (pod, of_runtime) = (tree.pod(UID)?, shop(UID));
    let made = pod.container(Naming::Containerd, 1)?;
    made.limit(8)?;
    eat(&made)?;
    made.remove();
    let kills = wait_kills(&agent, 1)?;
    assert_eq!(named(&kills[0]), None);
    fake.add_sandbox(&of_runtime);
    fake.add_container(&of_runtime, "app", 0, &made.id);
    assert!(fake.tell(&of_runtime, &made.id, patience()));
    agent.wait_events("the kill has its name", "oom", |it| {
        it.iter()
            .any(|it| named(it) == Some(["default", "shop", "app"]))
    })?;
    until("the count is of the name", || {
        has_line(&agent, &format!("{NAMED} 1"))
    })?;
    assert_eq!(sum(&agent)?, 1);
    Ok(())
}

/// What it had used is shown for a while, and the name comes meanwhile: so does that it was a sandbox.
#[cfg_attr(feature = "privileged", test)]
fn what_is_named_after_its_end_is_shown_by_its_name() -> Result<()> {
    let tree = KubeTree::new("ended", Driver::Cgroupfs)?;
    let mut agent = agent("ended", &tree)?;
    let fake = runtime(&agent, Manner::Events)?;
    agent.start()?;
    wait_for("its events are followed", || Ok(fake.n_subscribers() == 1))?;
    let (pod, of_runtime) = (tree.pod(UID)?, shop(UID));
    let mut made = Vec::new();
    let mut programs = Vec::new();
    for n in [1, SANDBOX] {
        let container = pod.container(Naming::Containerd, n)?;
        programs.push(container.run("exec sleep 3600")?);
        made.push(container);
    }
    let do_both_run = |status: &Status, run: bool| {
        let containers = pod_of(status, UID).map_or(&[][..], |it| &it.containers[..]);
        let runs = |it: &ContainerEntry| matches!(it.state, EntryState::Running { .. });
        containers.len() == 2 && containers.iter().all(|it| runs(it) == run)
    };
    agent.wait("they run", |it| do_both_run(it, true))?;
    made.iter().for_each(KubeContainer::kill);
    agent.wait("they have ended", |it| do_both_run(it, false))?;
    made.iter().for_each(KubeContainer::remove);
    let shows = |expected: &[[&str; 2]]| {
        until(&format!("{expected:?} are shown"), || {
            let stats = agent.stats()?;
            let pods = stats.pods.iter().filter(|it| it.pod.uid.0 == UID);
            let pods: Vec<_> = pods.collect();
            ensure!(pods.len() == 1, "{pods:#?}");
            let ended = pods[0].containers.iter().filter(|it| it.ended_at.is_some());
            let shown: Vec<_> = ended.map(|it| [&*pods[0].pod.name, &*it.name]).collect();
            ensure!(shown == expected, "{shown:?}");
            Ok(())
        })
    };
    shows(&[["", ""], ["", ""]])?;
    fake.add_sandbox(&of_runtime);
    fake.add_container(&of_runtime, "app", 0, &made[0].id);
    assert!(fake.tell(&of_runtime, &made[0].id, patience()));
    shows(&[["shop", "app"]])?;
    let page = text(&agent.metrics, "/metrics/cadvisor")?;
    let mut lines = page.lines();
    let unnamed = lines.find(|it| it.contains(UID) && it.contains("pod=\"\""));
    assert_eq!(unnamed, None);
    Ok(())
}

/// The next pod of a name begins while the one before it still ends. What goes by the name is of both, and of the later
/// one where only one can be shown, whose UID is the smaller one here.
#[cfg_attr(feature = "privileged", test)]
fn two_pods_of_one_name_have_each_their_own_kills() -> Result<()> {
    let tree = KubeTree::new("namesakes", Driver::Cgroupfs)?;
    let mut agent = agent("namesakes", &tree)?;
    let fake = runtime(&agent, Manner::Events)?;
    agent.start()?;
    wait_for("its events are followed", || Ok(fake.n_subscribers() == 1))?;
    let mut made = Vec::new();
    for (n, uid, limit) in [(1, UID, 2 * LIMIT), (2, STATIC_UID, LIMIT)] {
        let pod = tree.pod(uid)?;
        let of_runtime = RuntimePod::new("default", "shop", uid, &container_id(SANDBOX + n));
        pod.container(Naming::Containerd, SANDBOX + n)?;
        fake.add_sandbox(&of_runtime);
        fake.add_container(&of_runtime, "app", 0, &container_id(n));
        assert!(fake.tell(&of_runtime, &container_id(n), patience()));
        let app = pod.container(Naming::Containerd, n)?;
        app.limit(limit)?;
        eat(&app)?;
        made.push(app);
    }
    for kill in &wait_kills(&agent, 2)? {
        assert_eq!(named(kill), Some(["default", "shop", "app"]), "{kill:#?}");
    }
    let status = agent.wait("each has its own kill", |status| {
        let own = |uid| container(status, uid).is_some_and(|it| it.oom_kills == 1);
        own(UID) && own(STATIC_UID)
    })?;
    for uid in [UID, STATIC_UID] {
        let entry = pod_of(&status, uid).context("it was there")?;
        assert_eq!((&*entry.name, entry.oom_kills), ("shop", 1));
    }
    has_line(&agent, &format!("{NAMED} 2"))?;
    let app = [
        ("container", "app"),
        ("namespace", "default"),
        ("pod", "shop"),
    ];
    until("both are on the page of cAdvisor", || {
        let cadvisor = page(&agent.metrics, "/metrics/cadvisor")?;
        let shown = cadvisor.of("container_memory_usage_bytes", &app);
        let shown: BTreeSet<_> = shown.filter_map(|(it, _)| it.labels.get("id")).collect();
        let right: BTreeSet<_> = made.iter().map(|it| &it.path).collect();
        ensure!(shown == right, "{shown:?}");
        Ok(())
    })?;
    let resource = page(&agent.metrics, "/metrics/resource")?;
    let used = resource.value("container_memory_working_set_bytes", &app);
    assert!(used.is_some(), "{resource:#?}");
    // The gauge was that of the first before. Before Linux 5.19 cgroup v2 keeps none.
    let is_kept = !cgroup::is_unified() || kernel()? >= KernelVersion::new(5, 19);
    until("the gauge is that of the later one", || {
        let own = page(&agent.metrics, "/metrics")?;
        let peak = own.value("ballast_memory_peak_bytes", &app);
        let limit = (LIMIT << 20) as f64;
        ensure!(peak.map_or(!is_kept, |it| it <= limit), "{peak:?}");
        Ok(())
    })?;
    Ok(())
}

/// The cgroup is there and no event came: it is asked for.
#[cfg_attr(feature = "privileged", test)]
fn one_that_nobody_told_of_is_asked_for() -> Result<()> {
    for manner in [Manner::Events, Manner::NoEvents] {
        let tree = KubeTree::new("asked", Driver::Cgroupfs)?;
        let mut agent = agent("asked", &tree)?;
        let fake = runtime(&agent, manner)?;
        agent.start()?;
        agent.wait("it is connected", |it| {
            it.node.runtime.as_ref().is_some_and(|it| it.is_connected())
        })?;
        // Those of the start are over.
        wait_for("two lists", || Ok(fake.n_lists() >= 2))?;
        let (pod, of_runtime) = (tree.pod(UID)?, shop(UID));
        fake.add_sandbox(&of_runtime);
        fake.add_container(&of_runtime, "app", 0, &container_id(1));
        let _made = limited(&pod, 1)?;
        agent.wait("it has its name", |status| {
            container(status, UID).is_some_and(|it| it.name == "app")
        })?;
        assert!(fake.n_asked() > 0);
        assert_eq!(fake.most_open(), 1, "one call at a time");
    }
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn names_stand_while_the_runtime_is_away() -> Result<()> {
    let tree = KubeTree::new("away", Driver::Cgroupfs)?;
    let mut agent = agent("away", &tree)?;
    let mut fake = runtime(&agent, Manner::Events)?;
    let (pod, of_runtime) = (tree.pod(UID)?, shop(UID));
    let made = limited(&pod, 1)?;
    fake.add_sandbox(&of_runtime);
    fake.add_container(&of_runtime, "app", 0, &made.id);
    agent.start()?;
    let is_named = |status: &Status| container(status, UID).is_some_and(|it| it.name == "app");
    agent.wait("it has its name", is_named)?;
    fake.stop();
    let status = agent.wait("it is missed", |it| {
        it.warnings.iter().any(|it| it.contains("gives no names"))
    })?;
    assert!(is_named(&status));
    assert_eq!(get(&agent.metrics, "/readyz", &[])?.status, 200);
    eat(&made)?;
    let kills = wait_kills(&agent, 1)?;
    assert_eq!(named(&kills[0]), Some(["default", "shop", "app"]));
    // Removed by the runtime, and not by the kernel.
    fake.forget(&made.id);
    fake.begin(Manner::Events)?;
    agent.wait("it is back", |it| {
        it.node.runtime.as_ref().is_some_and(|it| it.is_connected())
    })?;
    thread::sleep(Duration::from_secs(2));
    assert!(
        is_named(&agent.status()?),
        "a list that lacks it takes nothing away"
    );
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_runtime_that_never_answers_holds_up_nothing() -> Result<()> {
    let tree = KubeTree::new("silent", Driver::Cgroupfs)?;
    let mut agent = agent("silent", &tree)?;
    let _fake = runtime(&agent, Manner::Silent)?;
    agent.start()?;
    let pod = tree.pod(UID)?;
    eat(&limited(&pod, 1)?)?;
    wait_kills(&agent, 1)?;
    agent.wait("it is told", |it| {
        it.warnings
            .iter()
            .any(|it| it.contains("no answer within 2 s"))
    })?;
    wait_for("the agent is ready", || {
        Ok(get(&agent.metrics, "/readyz", &[])?.status == 200)
    })?;
    agent.stop()
}
