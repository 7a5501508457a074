//! The memory of the whole node is gone before anybody evicts, and the kernel kills, or it kills because somebody asks
//! for it: told as what it is, by the kernel's own reason and where no program can read that.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use ballast::model::event::OomConstraint;
use ballast::model::record::{EventDetail, EventRecord, OomScope};
use ballast::model::status::ProgramState;
use ballast::sources::bpf::{self, LoadOptions, Streams};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup::{self, kernel_kills};
use ballast_tests::kube::{Driver, KubeContainer, KubeTree, Naming, container_id};
use ballast_tests::scrape;

use super::look::{end_of, is_running, oom_detail, whose};
use super::node_memory::{HugePages, STEADY, put_pods};
use super::{only_in_a_vm, say, scaled};

/// So many programs, of the two of a set, the kernel takes on one function (`BPF_MAX_TRAMP_LINKS` in
/// include/linux/bpf.h, 38 from 5.10 to 7), and some more.
const MOST: usize = 25;

/// A pod that holds what it has, and one that takes what is left.
const STEADY_UID: &str = "5d3c7a90-1f2e-4b6d-8a79-3c4d5e6f7081";
const LEAK_UID: &str = "0a1b2c3d-4e5f-4061-8273-8495a6b7c8d9";

/// Other programs on the function that knows why the kernel kills, until it takes no more of them.
pub(super) struct Crowd(#[expect(dead_code, reason = "they run until it is dropped")] Vec<Streams>);

impl Crowd {
    pub(super) fn gather() -> Result<Self> {
        let mut crowd = Vec::new();
        while crowd.len() < MOST {
            let streams = Streams::load(&LoadOptions::default())?;
            let is_full = streams.reports().iter().any(|it| {
                it.program == "oom_reason" && matches!(it.state, bpf::ProgramState::Refused { .. })
            });
            crowd.push(streams);
            if is_full {
                say(format!("{} sets of programs fill the place", crowd.len()));
                return Ok(Self(crowd));
            }
        }
        bail!("the kernel takes more than {MOST} of them");
    }
}

/// A node just before its memory runs out.
struct Scene {
    kernel_kills: u64,
    /// Seconds since the epoch.
    began: f64,
    scope: OomScope,
    constraint: OomConstraint,
}

impl Scene {
    fn begin() -> Result<Self> {
        Ok(Self {
            kernel_kills: kernel_kills()?,
            began: since_epoch()?,
            scope: OomScope::Node,
            constraint: OomConstraint::Global,
        })
    }

    /// Kills since then, as the kernel counts them.
    fn kills(&self) -> Result<u64> {
        Ok(kernel_kills()? - self.kernel_kills)
    }

    /// Every kill since then is told as one of this scope, everywhere, by `method`, and of the right container.
    fn is_told(
        &self,
        agent: &Agent,
        method: &str,
        is_right: fn(&EventRecord) -> bool,
    ) -> Result<()> {
        agent.wait_for("every kill is told", || {
            Ok(agent.events("oom")?.len() as u64 == self.kills()?)
        })?;
        // Once at the end of it, and once when everything has had its time.
        for wait in [0, 5] {
            thread::sleep(Duration::from_secs(wait));
            let n_kernel = self.kills()?;
            let told = agent.events("oom")?;
            assert_eq!(told.len() as u64, n_kernel, "{told:#?}");
            for record in &told {
                let detail = oom_detail(record)?;
                assert_eq!(detail.scope, self.scope, "{record:#?}");
                assert_eq!(detail.constraint, Some(self.constraint));
                assert_eq!(detail.limit, None, "{record:#?}");
                assert!(is_right(record), "{record:#?}");
            }
            let page = scrape::page(&agent.metrics, "/metrics")?;
            let of_scope = [("scope", self.scope.as_str())];
            for labels in [&of_scope[..], &[]] {
                let n = page.sum("ballast_oom_scope_kills_total", labels);
                assert_eq!(n, n_kernel as f64, "{labels:?}");
            }
            let by_method = page.sum("ballast_oom_attribution_total", &[("method", method)]);
            assert_eq!(by_method, n_kernel as f64);
            assert_eq!(page.sum("ballast_oom_missed_kills_total", &[]), 0.0);
            // What `BallastNodeOom` asks: a kill of the last quarter of an hour.
            let last = "ballast_oom_last_node_kill_timestamp_seconds";
            let last = page
                .value(last, &of_scope)
                .context("the time of the last kill by the node")?;
            let now = since_epoch()?;
            ensure!(self.began <= last && now - last < 900.0, "{last} at {now}");
        }
        let records = agent.oom_records()?;
        let n_recorded: u64 = records.iter().map(|it| it.n_kills).sum();
        assert_eq!(n_recorded, self.kills()?, "{records:#?}");
        // The kills of one second are one record.
        let mut begun: Vec<u64> = records.iter().map(|it| it.event.boottime_ns).collect();
        begun.sort_unstable();
        let are_apart = |it: &[u64]| it[1] - it[0] >= 1_000_000_000;
        assert!(begun.windows(2).all(are_apart), "{records:#?}");
        for record in &records {
            let after = Duration::from_micros(record.recorded_after_us);
            say(format!(
                "record {} after {after:?}, without {:?}",
                record.id, record.cut
            ));
        }
        Ok(())
    }
}

/// Seconds.
fn since_epoch() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

/// Whether the kernel's own reason can be read is as the test wants it.
fn check_method(agent: &Agent, method: &str) -> Result<()> {
    let status = agent.wait("the programs are loaded", |it| {
        !it.node.ebpf.programs.is_empty()
    })?;
    let programs = &status.node.ebpf.programs;
    let reason = programs.iter().find(|it| it.name == "oom_reason");
    let is_attached = reason.is_some_and(|it| it.state == ProgramState::Attached);
    ensure!(is_attached == (method == "exact"), "{programs:#?}");
    Ok(())
}

/// What the hog does that takes the node's memory.
fn leak() -> Result<String> {
    let rate = u64::from(scaled(400, 40)?) * 1_000_000;
    Ok(format!("leak {rate}"))
}

/// A pod takes what is left of the node, at a threshold that kubelet's formula does not reach.
fn run_out(test: &str, method: &str) -> Result<()> {
    let huge = HugePages::leave(500)?;
    // The kernel counts the first victim of a group twice.
    let mut agent = Agent::new(test)?.with_kubelet("singleProcessOOMKill: true");
    agent.eviction_hard = "{memory.available: 50Mi}".to_owned();
    agent.sections = "eviction: {memoryMethod: workingSet}\n".to_owned();
    agent.metrics = scrape::free_address()?;
    let gate = agent.dir.join("gate");
    agent.start()?;
    check_method(&agent, method)?;
    put_pods(&agent, &gate, &leak()?)?;
    let scene = Scene::begin()?;
    fs::write(&gate, "")?;
    let pod = agent.wait_pod("leak", "is killed", |it| end_of(it, "app").is_some())?;
    assert_eq!(
        end_of(&pod, "app"),
        Some(("OOMKilled".to_owned(), Some(137)))
    );
    scene.is_told(&agent, method, |it| whose(it) == ("leak", "app"))?;
    let status = agent.status()?;
    let steady = status.pods.iter().filter(|it| it.name != "leak");
    assert_eq!(
        steady.filter(|it| is_running(it)).count(),
        3,
        "{STEADY} MiB each"
    );
    drop(huge);
    Ok(())
}

/// A pod of somebody else takes what is left of the node, and the agent looks on.
pub(super) fn run_out_beside(test: &str, method: &str) -> Result<()> {
    let huge = HugePages::leave(500)?;
    let tree = KubeTree::new(&test.replace('-', ""), Driver::Systemd)?;
    let mut agent = Agent::observing(test, &tree)?;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    check_method(&agent, method)?;
    let of = |uid: &str, n| tree.pod(uid)?.container(Naming::Containerd, n);
    let steady = of(STEADY_UID, 1)?;
    let _steady = steady.run(&format!("exec {} hold {}", hog()?, STEADY << 20))?;
    let leaking = of(LEAK_UID, 2)?;
    let scene = Scene::begin()?;
    leaking
        .run(&format!("exec {} {}", hog()?, leak()?))?
        .wait()?;
    scene.is_told(&agent, method, is_of_leak)?;
    let counted = scrape::page(&agent.metrics, "/metrics")?.sum(
        "ballast_oom_kills_total",
        &[("pod_uid", LEAK_UID), ("container_id", &leaking.id)],
    );
    assert_eq!(counted, scene.kills()? as f64);
    let steady = cgroup::dir_of("memory", &steady.path);
    assert_eq!(cgroup::procs(&steady).len(), 1);
    drop(huge);
    Ok(())
}

/// Of the second container of kubelet's, in the pod that leaks.
fn is_of_leak(record: &EventRecord) -> bool {
    let event = &record.event;
    let is_pod = event.pod_uid.as_ref().is_some_and(|it| it.0 == LEAK_UID);
    is_pod && event.container_id == Some(container_id(2))
}

/// A pod of somebody else that may use one NUMA node takes what is left of that one, and the other has enough.
fn run_out_of_a_part(test: &str, method: &str) -> Result<()> {
    // Else there may be so little of that node that the first page of the container's shell, before it says that it
    // comes first, costs the tests themselves.
    let huge = HugePages::leave_on_the_first_node(300)?;
    let tree = KubeTree::new(&test.replace('-', ""), Driver::Cgroupfs)?;
    let mut agent = Agent::observing(test, &tree)?;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    check_method(&agent, method)?;
    let leaking = tree.pod(LEAK_UID)?.container(Naming::Containerd, 2)?;
    cgroup::write("cpuset", &leaking.path, "cpuset.mems", "0")?;
    let scene = Scene {
        scope: OomScope::Cpuset,
        constraint: OomConstraint::Cpuset,
        ..Scene::begin()?
    };
    // What is left of that node may be less than the tests themselves hold of it.
    let script = format!(
        "echo 1000 >/proc/self/oom_score_adj; exec {} {}",
        hog()?,
        leak()?
    );
    let mut leaks = leaking.run_on_host(&script)?;
    agent.wait_events("a kill", "oom", |it| !it.is_empty())?;
    // Until then it is not gone for good: without the kernel's reason it is asked which nodes it may use.
    leaks.wait()?;
    scene.is_told(&agent, method, is_of_leak)?;
    drop(huge);
    Ok(())
}

/// Somebody has a process of the container killed while the node has memory. What is told of it.
fn ask_for_a_kill(agent: &Agent, container: &KubeContainer) -> Result<EventRecord> {
    // The kernel takes it before all others.
    let script = format!(
        "echo 1000 >/proc/self/oom_score_adj; exec {} hold {}",
        hog()?,
        STEADY << 20
    );
    let mut holds = container.run_on_host(&script)?;
    agent.wait_for("it has its memory", || {
        Ok(cgroup::memory_usage(&container.path)? >= STEADY << 20)
    })?;
    fs::write("/proc/sysrq-trigger", "f").context("ask the kernel for a kill")?;
    holds.wait()?;
    let told = agent.wait_events("the kill is told", "oom", |it| !it.is_empty())?;
    ensure!(told.len() == 1, "{told:#?}");
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let last = "ballast_oom_last_node_kill_timestamp_seconds";
    assert_eq!(page.value(last, &[("scope", "node")]), None, "{told:#?}");
    told.into_iter().next().context("there is one")
}

/// The same with programs that report it; `words` of what is told.
fn ask_beside(test: &str, method: &str, words: &str) -> Result<()> {
    let tree = KubeTree::new(&test.replace('-', ""), Driver::Cgroupfs)?;
    let mut agent = Agent::observing(test, &tree)?;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    check_method(&agent, method)?;
    let container = tree.pod(STEADY_UID)?.container(Naming::Containerd, 1)?;
    let told = ask_for_a_kill(&agent, &container)?;
    let detail = oom_detail(&told)?;
    assert_eq!((detail.scope, detail.constraint), (OomScope::Other, None));
    assert!(told.event.message.contains(words), "{told:#?}");
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let by_method = page.sum("ballast_oom_attribution_total", &[("method", method)]);
    assert_eq!(by_method, 1.0);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_that_somebody_asked_for_is_told_by_the_kernels_reason() -> Result<()> {
    only_in_a_vm()?;
    let words = "because somebody asked for it (SysRq f)";
    ask_beside("asked-oom-exact", "exact", words)
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_that_somebody_asked_for_is_not_the_nodes_where_the_reason_cannot_be_read() -> Result<()> {
    only_in_a_vm()?;
    let _crowd = Crowd::gather()?;
    ask_beside("asked-oom-none", "none", "for a reason that nobody knows")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_is_told_by_the_kernels_reason() -> Result<()> {
    only_in_a_vm()?;
    run_out("node-oom-exact", "exact")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_is_told_where_the_reason_cannot_be_read() -> Result<()> {
    only_in_a_vm()?;
    let _crowd = Crowd::gather()?;
    run_out("node-oom-derived", "derived")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_in_a_pod_of_kubelet_is_told_by_the_kernels_reason() -> Result<()> {
    only_in_a_vm()?;
    run_out_beside("node-oom-beside-exact", "exact")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_in_a_pod_of_kubelet_is_told_where_the_reason_cannot_be_read() -> Result<()> {
    only_in_a_vm()?;
    let _crowd = Crowd::gather()?;
    run_out_beside("node-oom-beside-derived", "derived")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_for_a_part_of_the_numa_nodes_is_told_by_the_kernels_reason() -> Result<()> {
    only_in_a_vm()?;
    run_out_of_a_part("numa-oom-exact", "exact")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_for_a_part_of_the_numa_nodes_is_told_where_the_reason_cannot_be_read() -> Result<()> {
    only_in_a_vm()?;
    let _crowd = Crowd::gather()?;
    run_out_of_a_part("numa-oom-derived", "derived")
}

/// An agent that the kernel gives no programs, and the container of a pod that it has found.
fn by_counts_alone(name: &str, uid: &str) -> Result<(KubeTree, Agent, KubeContainer)> {
    let tree = KubeTree::new(&name.replace('-', ""), Driver::Cgroupfs)?;
    let mut agent = Agent::observing(name, &tree)?;
    agent.is_without_programs = true;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    let container = tree.pod(uid)?.container(Naming::Containerd, 1)?;
    agent.wait("its container is found", |it| {
        it.pods.iter().any(|it| it.containers.len() == 1)
    })?;
    Ok((tree, agent, container))
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_that_somebody_asked_for_is_not_the_nodes_by_counts_alone() -> Result<()> {
    only_in_a_vm()?;
    let (_tree, agent, container) = by_counts_alone("asked-oom-counts", STEADY_UID)?;
    // Until it is certain that no limit was reached before.
    thread::sleep(Duration::from_secs(40));
    let told = ask_for_a_kill(&agent, &container)?;
    let (count, scope) = (1, None);
    let detail = EventDetail::Missed { count, scope };
    assert_eq!(told.event.detail, Some(detail), "{told:#?}");
    Ok(())
}

/// The kernel takes no programs: what it has not counted before the kill says that no limit was reached.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_is_told_by_counts_alone() -> Result<()> {
    only_in_a_vm()?;
    let (_tree, agent, container) = by_counts_alone("node-oom-counts", LEAK_UID)?;
    // Until it is certain that no limit was reached before.
    let script = format!("sleep 40; exec {} {}", hog()?, leak()?);
    let mut leaks = container.run_on_host(&script)?;
    let huge = HugePages::leave(500)?;
    leaks.wait()?;
    drop(huge);
    let told = agent.wait_events("the kill is told", "oom", |it| !it.is_empty())?;
    // v1 does not count that a limit is reached, so nobody can say that none was.
    let scope = cgroup::is_unified().then_some(OomScope::Node);
    let detail = EventDetail::Missed { count: 1, scope };
    assert_eq!(told[0].event.detail, Some(detail), "{told:#?}");
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let last = "ballast_oom_last_node_kill_timestamp_seconds";
    let last = page.value(last, &[("scope", "node")]);
    assert_eq!(last.is_some(), scope.is_some(), "{last:?}");
    Ok(())
}
