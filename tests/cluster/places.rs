//! Whom a real kubelet has given CPUs and memory, as its own files tell.

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::cluster::{Namespace, asking, pod_spec, restart_without, text};
use ballast_tests::scrape;
use ballast_tests::wait::until;
use serde_json::json;

use super::kills::{container_id, is_running};
use super::settings::{Configuration, STATES};
use super::workloads::pods_of;

/// kubelet gives a container a CPU and memory of its own, and says so in its files alone.
#[cfg_attr(feature = "privileged", test)]
fn what_containers_have_of_their_own_is_read_from_kubelets_files() -> Result<()> {
    let configuration = Configuration::new()?;
    let (mut agent, _way) = asking("cluster-places")?;
    let policies = |agent: &Agent| -> Result<[String; 2]> {
        let placement = agent.status()?.node.placement.context("no placement")?;
        let policies = placement.policies;
        Ok([policies.cpu_manager, policies.memory_manager])
    };
    until("kubelet places nobody", || {
        let found = policies(&agent)?;
        ensure!(found == ["none", "None"], "{found:?}");
        Ok(())
    })?;
    let reserving = |cpus: &str| {
        configuration.set(json!({
            "cpuManagerPolicy": "static",
            "reservedSystemCPUs": cpus,
            "memoryManagerPolicy": "Static",
            // As much as is kept from pods by the hard threshold.
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "100Mi"}}],
        }))
    };
    reserving("0")?;
    restart_without("kubelet", &STATES)?;
    until("its policies are shown", || {
        let found = policies(&agent)?;
        ensure!(found == ["static", "Static"], "{found:?}");
        Ok(())
    })?;
    let namespace = Namespace::new("places")?;
    let mut alone = pod_spec("exec sleep 3600", "64Mi", "Never");
    alone["containers"][0]["resources"] = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    namespace.create(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "alone"},
        "spec": alone,
    }))?;
    let pod = namespace.wait("alone", "runs", is_running)?;
    namespace.run("other", "exec sleep 3600", "64Mi")?;
    namespace.wait("other", "runs", is_running)?;
    let (uid, id) = (text(&pod, "/metadata/uid")?, container_id(&pod)?);
    let path = format!("{}/pod{uid}/{id}", agent.kubepods());
    let of_kernel = cgroup::read("cpuset", &path, "cpuset.cpus")?;
    let own = of_kernel.trim();
    ensure!(own == "1", "by the kernel it runs on {own}");
    until("who runs where is shown", || {
        let pods = pods_of(&agent, "places")?;
        let found = pods
            .iter()
            .map(|it| Some((&*it.name, it.containers.first()?.cpuset.as_deref()?)));
        let found: Option<Vec<_>> = found.collect();
        ensure!(
            found == Some(vec![("alone", own), ("other", "0")]),
            "{pods:#?}"
        );
        Ok(())
    })?;
    let shown = agent.command(&["explain", "pod", "places/alone"])?;
    let words: Vec<Vec<&str>> = shown
        .lines()
        .map(|it| it.split_whitespace().collect())
        .collect();
    for line in [
        &["main", own, "0", "its", "own"][..],
        &["memory", "64Mi", "from", "NUMA", "node", "0"],
    ] {
        ensure!(words.iter().any(|it| it == line), "no {line:?} in {shown}");
    }
    let text = agent.command(&["explain", "node"])?;
    let row = ["places/alone", "main", "1", own];
    let is_there = text.lines().any(|it| it.split_whitespace().eq(row));
    ensure!(is_there, "no {row:?} in {text}");
    let is_reserved = text.lines().any(|it| {
        let words: Vec<_> = it.split_whitespace().collect();
        words.first() == Some(&"0") && words.last() == Some(&"100Mi")
    });
    ensure!(
        is_reserved,
        "no memory of NUMA node 0 is reserved in {text}"
    );
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let of_pod = [
        ("namespace", "places"),
        ("pod", "alone"),
        ("container", "main"),
    ];
    for (family, labels, right) in [
        ("ballast_placement_exclusive_cpus", &of_pod[..], 1.0),
        ("ballast_placement_pool_cpus", &[("pool", "shared")], 1.0),
        ("ballast_placement_pool_cpus", &[("pool", "exclusive")], 1.0),
        ("ballast_placement_pool_cpus", &[("pool", "reserved")], 1.0),
        ("ballast_placement_free_cpus", &[("numa_node", "0")], 0.0),
    ] {
        let value = page.value(family, labels);
        ensure!(value == Some(right), "{family} {labels:?}: {value:?}");
    }
    let free = [("numa_node", "0"), ("kind", "memory")];
    let free = page.value("ballast_placement_free_bytes", &free);
    ensure!(free > Some(0.0), "{free:?}");
    // The next agent meets a kubelet that runs, and one more a file that this kubelet has not read.
    for settings in ["0", "1"] {
        reserving(settings)?;
        agent.stop()?;
        agent.start()?;
        until("the CPUs that are reserved are shown again", || {
            let placement = agent.status()?.node.placement.context("no placement")?;
            let cpus = placement.cpus.context("no pools")?;
            let reserved = cpus.reserved.map(|it| it.to_string());
            ensure!(reserved.as_deref() == Some("0"), "{reserved:?}");
            let page = scrape::page(&agent.metrics, "/metrics")?;
            let pool = |name| page.value("ballast_placement_pool_cpus", &[("pool", name)]);
            let found = ["reserved", "exclusive"].map(pool);
            ensure!(found == [Some(1.0); 2], "{found:?}");
            Ok(())
        })?;
    }
    namespace.kubectl(&["delete", "pod", "alone"], None)?;
    until("its CPU is everybody's again", || {
        let placement = agent.status()?.node.placement.context("no placement")?;
        let cpus = placement.cpus.context("no pools")?;
        ensure!(
            cpus.exclusive.is_empty() && cpus.shared.to_string() == "0-1",
            "{cpus:?}"
        );
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let held = page.value("ballast_placement_exclusive_cpus", &of_pod);
        ensure!(held.is_none(), "{held:?}");
        Ok(())
    })?;
    let warnings = agent.status()?.warnings;
    ensure!(
        !warnings.iter().any(|it| it.contains("place")),
        "{warnings:?}"
    );
    Ok(())
}
