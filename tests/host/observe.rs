//! Mode `observe` on trees that somebody else makes, in kubelet's shape and with programs of the system in them:
//! alone, and with an agent of mode `own` on another root beside it.

mod events;
mod kills;
mod names;
mod pages;
mod pods;
mod privileges;
mod tree;
mod writes;

use anyhow::{Context, Result, ensure};
use ballast::model::record::{EventRecord, OomDetail, OomScope};
use ballast::model::status::{PodEntry, Status};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::kube::{Driver, KubeContainer, KubePod, KubeTree, Naming};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape::{free_address, text};
use ballast_tests::wait::until;

use super::look::{is_running, oom_detail};

/// What a container of these tests may use, MiB.
const LIMIT: u64 = 24;

/// Takes memory until somebody ends it: a line that never ends.
const EATER: &str = "tail /dev/zero";

/// A static pod's UID has no dashes.
const UID: &str = "5d3c7a90-1f2e-4b6d-8a79-3c4d5e6f7081";
const STATIC_UID: &str = "0123456789abcdef0123456789abcdef";

/// Runs a test for each driver's names, once alone and once beside another agent. With which of the two, the length of
/// its name and the version of cgroups tell: on a machine all tests together have all four, and each one has them on a
/// machine with v1 and one with v2 together. `test`: gets an agent that runs.
fn everywhere(name: &str, test: impl Fn(&KubeTree, &mut Agent) -> Result<()>) -> Result<()> {
    let is_systemds = name.len().is_multiple_of(2) != cgroup::is_unified();
    for driver in [Driver::Cgroupfs, Driver::Systemd] {
        let is_beside = (driver == Driver::Systemd) == is_systemds;
        let beside = is_beside.then(|| own(name)).transpose()?;
        let short = name.replace('-', "");
        let tree = KubeTree::new(&short, driver)?;
        let mut agent = Agent::observing(&format!("observe-{name}"), &tree)?;
        agent.metrics = free_address()?;
        agent.start()?;
        test(&tree, &mut agent)?;
        agent.stop()?;
        if let Some(beside) = beside {
            // It has noticed nothing.
            let pod = beside.wait_pod("own", "runs", is_running)?;
            assert_eq!((pod.oom_kills, beside.status()?.pods.len()), (0, 1));
        }
    }
    Ok(())
}

/// An agent on a root of its own, with a pod.
fn own(name: &str) -> Result<Agent> {
    let mut agent = Agent::new(&format!("beside-{name}"))?;
    agent.start()?;
    agent.put(&Manifest::new("own").container(Container::idle("app")))?;
    agent.wait_pod("own", "runs", is_running)?;
    Ok(agent)
}

/// A container of `pod` that may use [`LIMIT`].
fn limited(pod: &KubePod, n: u64) -> Result<KubeContainer> {
    let container = pod.container(Naming::Containerd, n)?;
    container.limit(LIMIT)?;
    Ok(container)
}

/// Runs an [`EATER`] as the first process of a container until it is killed.
fn eat(container: &KubeContainer) -> Result<()> {
    container.run(&format!("exec {EATER}"))?.wait()
}

/// Kills in pods of the tree; those of the rest of the node are not the test's.
fn kills(agent: &Agent) -> Result<Vec<EventRecord>> {
    let mut kills = agent.events("oom")?;
    kills.retain(|it| it.event.uid().is_some());
    Ok(kills)
}

/// Waits until there are so many kills, and makes sure that there are no more.
fn wait_kills(agent: &Agent, n: usize) -> Result<Vec<EventRecord>> {
    let found = until(&format!("{n} kills"), || {
        let kills = kills(agent)?;
        anyhow::ensure!(kills.len() >= n, "{} kills", kills.len());
        Ok(kills)
    })?;
    anyhow::ensure!(found.len() == n, "more kills than {n}: {found:#?}");
    Ok(found)
}

/// Whom a record names.
fn whose(record: &EventRecord) -> (&str, &str) {
    let event = &record.event;
    (
        event.pod_uid.as_ref().map_or("", |it| &it.0),
        event.container_id.as_deref().unwrap_or_default(),
    )
}

/// `pod`: of a QoS class that has a cgroup of its own, if that or the one of all pods was full.
#[track_caller]
fn check_kill<'a>(
    record: &'a EventRecord,
    pod: &KubePod,
    container: &KubeContainer,
    scope: OomScope,
) -> Result<&'a OomDetail> {
    assert_eq!(whose(record), (&*pod.uid, &*container.id), "{record:#?}");
    let detail = oom_detail(record)?;
    assert_eq!(detail.scope, scope, "{record:#?}");
    assert_eq!((&record.event.pod, &record.event.container), (&None, &None));
    let limit = detail
        .limit
        .as_ref()
        .and_then(|it| it.cgroup_path.as_deref());
    let (class, _) = pod.path.rsplit_once('/').context("a pod in its class")?;
    let (kubepods, _) = class.rsplit_once('/').context("a class in kubepods")?;
    let right = match scope {
        OomScope::Pod => pod.path.as_str(),
        OomScope::Qos => class,
        OomScope::Kubepods => kubepods,
        _ => container.path.as_str(),
    };
    assert_eq!(limit, Some(right));
    Ok(detail)
}

/// The page `/metrics` has this line.
fn has_line(agent: &Agent, line: &str) -> Result<()> {
    let page = text(&agent.metrics, "/metrics")?;
    ensure!(page.lines().any(|it| it == line), "no {line} in {page}");
    Ok(())
}

fn pod_of<'a>(status: &'a Status, uid: &str) -> Option<&'a PodEntry> {
    status.pods.iter().find(|it| it.uid.0 == uid)
}
