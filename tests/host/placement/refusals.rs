//! Pods that cannot be placed: they fail with kubelet's reason, everywhere it is looked for, and
//! nothing of them is started.

use std::fs;

use anyhow::{Context, Result};
use ballast::model::container::PodPhase;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::{cgroup, scrape};

use super::super::look::is_running;
use super::super::say;
use super::numa::aligned;
use super::{agent, cpu_books, guaranteed, kernel_cpus, machine, reserved};

/// One that tells its metrics.
fn start(mut agent: Agent) -> Result<Agent> {
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    Ok(agent)
}

/// A pod with one container for each number of CPUs.
fn pod(name: &str, cpus: &[usize]) -> Manifest {
    let containers = cpus.iter().enumerate();
    containers.fold(Manifest::new(name), |pod, (i, n)| {
        pod.container(guaranteed(Container::idle(&format!("app-{i}")), *n))
    })
}

fn n_refused(agent: &Agent, policy: &str, reason: &str) -> Result<f64> {
    let labels = [
        ("policy", policy),
        ("reason", reason),
        ("result", "refused"),
    ];
    let page = scrape::page(&agent.metrics, "/metrics")?;
    Ok(page.sum("ballast_placement_admissions_total", &labels))
}

/// Puts a pod that is to be refused, and looks at all that is told and not done.
fn check_refused(
    agent: &Agent,
    policy: &str,
    (manifest, reason, container): (&Manifest, &str, Option<&str>),
) -> Result<PodEntry> {
    let name = manifest.name();
    let books = cpu_books(agent)?;
    let before = n_refused(agent, policy, reason)?;
    agent.put(manifest)?;
    let pod = agent.wait_pod(name, "has failed", |it| it.phase == PodPhase::Failed)?;
    assert_eq!(pod.reason.as_deref(), Some(reason), "{pod:?}");
    let message = pod.message.as_deref().context("a message")?;

    let events = agent.wait_events("the refusal is told", "pod,container", |events| {
        let mut of_pod = events.iter().filter(|it| {
            let about = it.event.pod.as_ref();
            about.is_some_and(|it| it.name == name) && it.event.reason == reason
        });
        of_pod.next().is_some()
    })?;
    let of_pod = || {
        let events = events.iter().map(|it| &it.event);
        events.filter(|it| it.pod.as_ref().is_some_and(|it| it.name == name))
    };
    let told = of_pod().find(|it| it.reason == reason).context("told")?;
    assert_eq!(told.message, message);
    assert_eq!(told.container.as_deref(), container, "{told:?}");
    let is_logged = |it: &str| it.contains(reason) && it.contains(message) && it.contains(name);
    agent.wait_for("it is logged", || {
        let log = fs::read_to_string(agent.dir.join("agent.log"))?;
        Ok(log.lines().any(is_logged))
    })?;
    assert_eq!(n_refused(agent, policy, reason)?, before + 1.0);

    assert!(of_pod().all(|it| it.reason != "Started"), "{events:?}");
    let cgroup = format!("/{}/kubepods/pod{}", agent.cgroup_root, pod.uid);
    assert_eq!(
        cgroup::dirs_in_all(&cgroup),
        Vec::<std::path::PathBuf>::new()
    );
    assert_eq!(cpu_books(agent)?, books, "nothing was taken");
    Ok(pod)
}

/// What is left is still given out.
fn check_fits(agent: &Agent, manifest: &Manifest) -> Result<()> {
    agent.put(manifest)?;
    let pod = agent.wait_pod(manifest.name(), "runs", is_running)?;
    for container in &pod.containers {
        assert!(kernel_cpus(&pod, &container.name)?.len() < machine()?.cpus.len());
    }
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn more_cpus_than_there_are_is_an_unexpected_admission_error() -> Result<()> {
    let n = machine()?.cpus.len();
    let agent = start(agent("refused")?)?;
    let reason = "UnexpectedAdmissionError";
    let pod_of_two = pod("second-of-two", &[1, n]);
    for (manifest, container) in [(pod("all", &[n]), "app-0"), (pod_of_two, "app-1")] {
        let refused = check_refused(&agent, "none", (&manifest, reason, Some(container)))?;
        let message = refused.message.unwrap_or_default();
        assert!(
            message.contains("not enough cpus available to satisfy request"),
            "{message}"
        );
    }
    check_fits(&agent, &pod("rest", &[n - 1]))?;
    let next = pod("next", &[n - 1]);
    check_refused(&agent, "none", (&next, reason, Some("app-0")))?;
    agent.remove_pod("rest")?;
    agent.wait_pod("next", "runs on what is free now", is_running)?;
    agent.remove_pod("next")?;
    super::wait_all_free(&agent)?;
    // What the machine does not have stays refused.
    let all = agent.wait_pod("all", "is shown", |_| true)?;
    assert_eq!(all.phase, PodPhase::Failed);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn parts_of_cores_are_refused_where_only_whole_ones_are_given_out() -> Result<()> {
    let machine = machine()?;
    let reason = "SMTAlignmentError";
    let agent =
        agent("refused-smt")?.with_kubelet("cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}");
    let agent = start(agent)?;
    let per_core = machine.siblings(reserved(&machine)?).len();
    let too_many = machine.cpus.len();
    check_refused(
        &agent,
        "none",
        (&pod("all", &[too_many]), reason, Some("app-0")),
    )?;
    if machine.has_smt() {
        let refused = check_refused(&agent, "none", (&pod("half", &[1]), reason, Some("app-0")))?;
        let message = refused.message.unwrap_or_default();
        assert!(
            message.contains("not multiple cpus per core = 2"),
            "{message}"
        );
        say("a part of a core is refused, a whole one is not");
    } else {
        say("cores of one thread here: that a part of one is refused is for the VM lane");
    }
    check_fits(&agent, &pod("core", &[per_core]))
}

/// As restricted as single-numa-node, as long as a request would fit on one node of an empty
/// machine.
#[cfg_attr(feature = "privileged", test)]
fn what_fits_no_numa_node_is_a_topology_affinity_error() -> Result<()> {
    let machine = machine()?;
    let reason = "TopologyAffinityError";
    for policy in ["restricted", "single-numa-node"] {
        let mut agent = aligned(&format!("refused-{policy}"), policy)?;
        let wanted = match machine.numa_nodes.len() {
            1 => machine.cpus.len(),
            _ => {
                // The last field of a name counts: one CPU of each node is kept from pods.
                let firsts = machine
                    .numa_nodes
                    .values()
                    .filter_map(|it| it.cpus.iter().next());
                let firsts = super::set(firsts);
                let one = format!("reservedSystemCPUs: \"{}\"", reserved(&machine)?);
                let each = format!("reservedSystemCPUs: \"{firsts}\"");
                agent.kubelet = agent.kubelet.replace(&one, &each);
                // As many as a whole node has, which no node has left.
                machine
                    .numa_nodes
                    .values()
                    .map(|it| it.cpus.len())
                    .min()
                    .unwrap_or(2)
            }
        };
        let agent = start(agent)?;
        let manifest = pod("spread", &[wanted]);
        check_refused(&agent, policy, (&manifest, reason, Some("app-0")))?;
        check_fits(&agent, &pod("narrow", &[1]))?;
    }
    match machine.numa_nodes.len() {
        1 => say("one NUMA node here: only what exceeds the machine is refused"),
        n => say(format_args!(
            "what is free on {n} NUMA nodes together is refused"
        )),
    }
    Ok(())
}

/// One hint for the pod: where its containers would fit on two nodes, it fits on none.
#[cfg_attr(feature = "privileged", test)]
fn scope_pod_refuses_the_pod_as_a_whole() -> Result<()> {
    let machine = machine()?;
    let policy = "single-numa-node";
    let reason = "TopologyAffinityError";
    let apart = match machine.numa_nodes.len() {
        1 => vec![1, machine.cpus.len() - 1],
        // All but the reserved one, a node's at a time.
        _ => {
            let reserved = super::set([reserved(&machine)?]);
            let nodes = machine.numa_nodes.values();
            nodes
                .map(|it| it.cpus.difference(&reserved).len())
                .filter(|it| *it > 0)
                .collect()
        }
    };
    let by_pod = aligned("refused-pod", policy)?.with_kubelet("topologyManagerScope: pod");
    let by_pod = start(by_pod)?;
    check_refused(&by_pod, policy, (&pod("apart", &apart), reason, None))?;
    check_fits(&by_pod, &pod("narrow", &[1]))?;
    drop(by_pod);

    let by_container = start(aligned("refused-container", policy)?)?;
    if machine.numa_nodes.len() > 1 {
        check_fits(&by_container, &pod("apart", &apart))?;
        say("a pod that its containers could share nodes for is refused as a whole");
    } else {
        let case = (&pod("apart", &apart), reason, Some("app-1"));
        check_refused(&by_container, policy, case)?;
        say("one NUMA node here: the scope shows only in whom the refusal names");
    }
    Ok(())
}
