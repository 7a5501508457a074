//! A running agent shows every family of the metrics table.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use ballast::observe::metrics::{Unit, table};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::exposition::Exposition;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::until;
use ballast_tests::{cgroup, scrape};
use serde_json::json;

use super::look::of_pods;

/// Families that this node may not show, with the reason.
fn absent_here() -> BTreeSet<&'static str> {
    let mut absent = BTreeSet::new();
    if !cgroup::is_unified() {
        // cgroup v1 does not count them, and has no protection and no `memory.high`.
        absent.extend([
            "ballast_cgroups_dying",
            "ballast_oom_group_kills_total",
            "ballast_memory_protection_bytes",
            "ballast_memory_relaxed",
        ]);
    }
    // Nothing is evicted here, and no container is near its limit.
    absent.extend([
        "kubelet_eviction_stats_age_seconds",
        "ballast_memory_time_to_limit_seconds",
    ]);
    // Memory is not protected in tiers, and decisions are not recorded.
    absent.extend([
        "kubelet_memory_qos_node_memory_low_bytes",
        "kubelet_memory_qos_node_memory_min_bytes",
        "ballast_record_bytes_total",
        "ballast_record_dropped_total",
        "ballast_record_oldest_timestamp_seconds",
    ]);
    // Nobody asks an API server here.
    absent.extend([
        "ballast_api_requests_total",
        "ballast_api_request_duration_seconds",
        "ballast_api_events_total",
    ]);
    // No device plugin runs here.
    absent.extend([
        "ballast_device_allocated",
        "ballast_device_unhealthy",
        "kubelet_device_plugin_registration_total",
        "kubelet_device_plugin_alloc_duration_seconds",
    ]);
    let stats = fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap_or_default();
    if stats.trim() != "1" {
        // The kernel does not measure programs.
        absent.insert("ballast_bpf_program_runs_total");
        absent.insert("ballast_bpf_program_run_seconds_total");
    }
    absent
}

/// A time of something that may never happen is absent until it does.
fn is_of_an_event(name: &str, unit: Unit) -> bool {
    unit == Unit::Timestamp && name.contains("_last_")
}

/// Families without a sample. A histogram's samples have the endings of its parts.
fn missing(page: &Exposition) -> BTreeSet<&'static str> {
    let names = page.names();
    let has_sample =
        |name: &str| names.contains(name) || names.contains(format!("{name}_count").as_str());
    table()
        .iter()
        .filter(|it| !is_of_an_event(it.name, it.unit) && !has_sample(it.name))
        .map(|it| it.name)
        .collect()
}

#[cfg_attr(feature = "privileged", test)]
fn a_running_agent_shows_every_family() -> Result<()> {
    let mut agent = Agent::new("metrics")?
        .with_kubelet("singleProcessOOMKill: true")
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet("memoryManagerPolicy: Static")
        .with_kubelet("topologyManagerPolicy: best-effort")
        .with_kubelet("systemReserved: {cpu: 500m, memory: 28Mi}")
        // What is reserved and the threshold of hard eviction, 100Mi.
        .with_kubelet("reservedMemory: [{numaNode: 0, limits: {memory: 128Mi}}]");
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    let hungry = Container::new("main", &[&hog()?, "child", "67108864"]).limited_to(16);
    agent.put(&Manifest::new("hungry").container(hungry))?;
    let amounts = json!({"cpu": "1", "memory": "8Mi"});
    let pinned = Container::idle("main").resources(json!({}), amounts);
    agent.put(&Manifest::new("pinned").container(pinned))?;
    agent.wait_events("an OOM kill", "oom", |it| !of_pods(it.to_vec()).is_empty())?;
    // The cgroup of a pod that goes is removed, which is timed.
    agent.remove_pod("hungry")?;

    let expected = absent_here();
    until("every metric has a sample", || {
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let missing = missing(&page);
        ensure!(
            missing == expected,
            "without a sample: {missing:?}, expected {expected:?}\n{page:#?}"
        );
        Ok(())
    })?;
    agent.stop()
}
