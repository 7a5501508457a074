//! Events on the API server, as kubectl shows them.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use anyhow::{Context, Result, ensure};
use ballast::model::api_server::EventsStatus;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup::kernel_kills;
use ballast_tests::cluster::{NAME, Namespace, asking, text};
use ballast_tests::kube::KubeContainer;
use ballast_tests::scratch::{Scratch, own_name};
use ballast_tests::wait::{patience, until, until_within};
use nix::libc::{ENXIO, O_NONBLOCK};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use super::kills::stays;
use super::neighbours::told;
use super::workloads::{controller, pods_of};

fn events_status(agent: &Agent) -> Result<EventsStatus> {
    let status = agent.status()?.node.api_server.context("it is asked")?;
    status.events.context("it is told")
}

/// The lines of kubectl that show an Event of the agent's.
fn described(namespace: &Namespace, kind: &str, name: &str) -> Result<Vec<String>> {
    let text = namespace.kubectl(&["describe", kind, name], None)?;
    let lines = text.lines().filter(|it| it.contains("ballast "));
    Ok(lines.map(str::to_owned).collect())
}

/// How much of its own the process had, of which the line tells.
fn anonymous_mib(line: &str) -> Result<f64> {
    let size = line.split_once(" was OOM killed: ");
    let size = size.and_then(|(_, it)| it.split_once(" MiB anonymous, "));
    let (size, _) = size.with_context(|| format!("no size in {line}"))?;
    Ok(size.parse()?)
}

/// What an operator sees, by the tool that he has.
#[cfg_attr(feature = "privileged", test)]
fn kubectl_shows_the_kills_of_a_pod_where_people_look() -> Result<()> {
    let (agent, _way) = asking("cluster-events")?;
    let namespace = Namespace::new("events")?;
    // Kubelet's Events have the second in which they happened: what comes in the same is in no order.
    let script = "sleep 2; for i in 1 2 3; do tail /dev/zero; done; exec sleep 3600";
    namespace.run("greedy", script, "32Mi")?;
    let line = until("all of them are shown", || {
        let lines = described(&namespace, "pod", "greedy")?;
        ensure!(
            lines.len() == 1 && lines[0].contains("(x3 over"),
            "{lines:#?}"
        );
        Ok(lines[0].clone())
    })?;
    for part in [
        "Warning",
        "OomKilledChild",
        "ballast ",
        "spec.containers{main}: tail (pid ",
        "limit 32 MiB of its ",
        "the container goes on; the newest of 3",
    ] {
        ensure!(line.contains(part), "{part} in {line}");
    }
    let size = anonymous_mib(&line)?;
    ensure!((16.0..=32.0).contains(&size), "{size} MiB in {line}");
    ensure!(!line.contains("asked for"), "it was tail itself: {line}");
    // The newest at the end, where people look.
    let sorted = namespace.kubectl(&["get", "events", "--sort-by=.lastTimestamp"], None)?;
    let last = sorted.lines().last().unwrap_or_default();
    ensure!(last.contains("OomKilledChild"), "{sorted}");
    namespace.kubectl(&["delete", "pod", "greedy", "--wait=false"], None)?;
    let events = events_status(&agent)?;
    ensure!((events.sent, events.dropped) == (3, 0), "{events:?}");
    Ok(())
}

/// Who is killed has the most, and another process of the container asks for more.
#[cfg_attr(feature = "privileged", test)]
fn kubectl_shows_who_asked_for_the_memory_of_a_pod() -> Result<()> {
    let (_agent, _way) = asking("cluster-asked")?;
    let namespace = Namespace::new("asked")?;
    // `tail` keeps 36 MiB until its input ends, and `dd` asks for 32.
    let script = "{ head -c 37748736 /dev/zero; sleep 2; dd if=/dev/zero of=/dev/null bs=33554432 count=1; \
                  sleep 3600; } | tail";
    namespace.run("shared", script, "64Mi")?;
    let line = until("the kill is shown", || {
        let lines = described(&namespace, "pod", "shared")?;
        ensure!(lines.len() == 1, "{lines:#?}");
        Ok(lines[0].clone())
    })?;
    for part in [
        "spec.containers{main}: tail (pid ",
        "; the memory was asked for by ",
        " of asked/shared/main; oom_score_adj ",
    ] {
        ensure!(line.contains(part), "{part} in {line}");
    }
    let size = anonymous_mib(&line)?;
    ensure!((34.0..=40.0).contains(&size), "{size} MiB in {line}");
    Ok(())
}

/// It is in the way of all pods, and belongs to none of them.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_outside_of_the_pods_is_an_event_of_the_node() -> Result<()> {
    let (agent, _way) = asking("cluster-host")?;
    let namespace = Namespace::new("host")?;
    let before = of_node(&namespace, "SystemOom")?;
    let service = KubeContainer::at(&format!("/{}", own_name("service")))?;
    service.limit(32)?;
    for n in 1..=2 {
        service.run_on_host("exec tail /dev/zero")?.wait()?;
        stays("it is told", || {
            let told = of_node(&namespace, "SystemOom")? - before;
            let events = events_status(&agent)?;
            ensure!(
                (told, events.sent, events.dropped) == (n, n, 0),
                "{told}, {events:?}"
            );
            Ok(())
        })?;
    }
    service.remove();
    let lines = described(&namespace, "node", NAME)?;
    let line = lines.iter().find(|it| it.contains("SystemOom"));
    let line = line.with_context(|| format!("not shown: {lines:#?}"))?;
    for part in [
        "Warning",
        "tail (pid ",
        "was OOM killed",
        "limit 32 MiB of another cgroup",
        "; the newest of ",
    ] {
        ensure!(line.contains(part), "{part} in {line}");
    }
    Ok(())
}

/// As many pods as a node takes, and a kill in each of them at one moment: some have Events of their own, and the node
/// has one for the others.
#[cfg_attr(feature = "privileged", test)]
fn kills_in_all_pods_of_a_full_node_are_told_by_few_events() -> Result<()> {
    const N: usize = 110;
    let (agent, _way) = asking("cluster-full")?;
    let namespace = Namespace::new("full")?;
    let gate = Gate::new()?;
    let script = "read it < /gate/fifo; tail /dev/zero; exec sleep 3600";
    let mut deployment = controller("Deployment", "full", script);
    deployment["spec"]["replicas"] = json!(N);
    gate.mount(&mut deployment["spec"]["template"]["spec"]);
    namespace.create(&deployment)?;
    let is_named = |it: &&PodEntry| {
        let workload = it.workload.as_ref();
        it.containers.len() == 1
            && it.containers[0].name == "main"
            && workload.is_some_and(|it| (&*it.kind, &*it.name) == ("Deployment", "full"))
    };
    let shown = until_within(5 * patience(), "all are shown", || {
        let pods = pods_of(&agent, "full")?;
        let n = pods.iter().filter(is_named).count();
        ensure!(n == N && pods.len() == N, "{n} of {}", pods.len());
        Ok(pods)
    })?;
    let pods = namespace.list("pods")?;
    let uids = pods.iter().map(|it| text(it, "/metadata/uid"));
    let there: BTreeSet<&str> = uids.collect::<Result<_>>()?;
    let shown: BTreeSet<&str> = shown.iter().map(|it| &*it.uid.0).collect();
    ensure!(shown == there, "others than the API server has");

    let (killed, repeated) = (kernel_kills()?, of_node(&namespace, "OomRepeated")?);
    until("a process of each is killed", || {
        gate.open()?;
        let pods = pods_of(&agent, "full")?;
        let n = pods.iter().filter(|it| it.oom_kills > 0).count();
        ensure!(n == N, "{n}");
        Ok(())
    })?;
    stays("each of them is told", || {
        let n = kernel_kills()? - killed;
        let of_pods: u64 = told(&namespace)?.values().sum();
        let of_node = of_node(&namespace, "OomRepeated")? - repeated;
        let events = events_status(&agent)?;
        ensure!(
            (events.sent, events.folded) == (of_pods, of_node),
            "{of_pods}, {of_node}, {events:?}"
        );
        ensure!(
            of_pods + of_node == n && events.dropped == 0,
            "{n}, {events:?}"
        );
        ensure!(of_node > 0, "each has an Event of its own");
        Ok(())
    })?;
    let lines = described(&namespace, "node", NAME)?;
    let part = "OOM kills in more pods than have Events of their own; the newest in full/full-";
    ensure!(lines.iter().any(|it| it.contains(part)), "{lines:#?}");
    Ok(())
}

/// How many kills the Event of the node tells of; earlier agents have told of theirs by the same.
fn of_node(namespace: &Namespace, reason: &str) -> Result<u64> {
    let selector = format!("--field-selector=involvedObject.kind=Node,reason={reason}");
    let arguments = [
        "get",
        "events",
        "--namespace=default",
        &selector,
        "--output=json",
    ];
    let list: Value = serde_json::from_str(&namespace.kubectl(&arguments, None)?)?;
    let events = list["items"].as_array().context("a list")?;
    ensure!(events.len() <= 1, "{events:#?}");
    Ok(events
        .first()
        .and_then(|it| it["count"].as_u64())
        .unwrap_or(0))
}

/// Containers wait before it.
struct Gate(Scratch);

impl Gate {
    fn new() -> Result<Self> {
        let gate = Self(Scratch::new("gate")?);
        mkfifo(&gate.0.path("fifo"), Mode::S_IRUSR | Mode::S_IWUSR)?;
        Ok(gate)
    }

    /// In the containers of a pod it is `/gate/fifo`.
    fn mount(&self, spec: &mut Value) {
        let path = self.0.directory();
        spec["volumes"] = json!([{"name": "gate", "hostPath": {"path": path}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "gate", "mountPath": "/gate"}]);
    }

    /// Whoever waits goes on.
    fn open(&self) -> Result<()> {
        let mut fifo = OpenOptions::new();
        fifo.write(true).custom_flags(O_NONBLOCK);
        match fifo.open(self.0.path("fifo")) {
            Err(error) if error.raw_os_error() != Some(ENXIO) => Err(error.into()),
            // Or nobody waits.
            _ => Ok(()),
        }
    }
}
