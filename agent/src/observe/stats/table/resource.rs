//! Families of `/metrics/resource`.

use super::machine::node_error;
use super::{Entry, Tier, cgroup};
use crate::model::stats::CgroupStats;
use crate::observe::metrics::Type::{self, Counter, Gauge};
use crate::observe::metrics::Unit::{self, Bytes, Flag, Seconds, Timestamp};
use crate::observe::metrics::{Area, Cardinality};
use crate::observe::stats::objects::Object;
use crate::observe::stats::text::{Samples, Value};

const fn node(
    name: &'static str,
    kind: Type,
    unit: Unit,
    help: &'static str,
    write: fn(&Object<'_>, &mut Samples<'_>),
) -> Entry {
    cgroup(name, kind, unit, help, write)
        .area(Area::Resource)
        .tier(Tier::Kubelet)
        .per(Cardinality::Agent)
        .labels(&[])
}

const fn pod(
    name: &'static str,
    kind: Type,
    unit: Unit,
    help: &'static str,
    write: fn(&Object<'_>, &mut Samples<'_>),
) -> Entry {
    node(name, kind, unit, help, write)
        .per(Cardinality::Pod)
        .labels(&["namespace", "pod"])
}

const fn container(
    name: &'static str,
    kind: Type,
    unit: Unit,
    help: &'static str,
    write: fn(&Object<'_>, &mut Samples<'_>),
) -> Entry {
    node(name, kind, unit, help, write)
        .per(Cardinality::Container)
        .labels(&["container", "namespace", "pod"])
}

fn cpu(stats: Option<&CgroupStats>) -> Option<Value> {
    stats?.cpu.usage_ns.map(Value::nanos)
}

fn working_set(stats: Option<&CgroupStats>) -> Option<Value> {
    stats?.memory.working_set().map(Value::count)
}

fn swap(stats: Option<&CgroupStats>) -> Option<Value> {
    stats?.memory.swap.map(Value::count)
}

/// Of cgroup v2 alone: the limit of v1 is about memory and swap together.
fn swap_limit(object: &Object<'_>) -> Option<Value> {
    let is_unified = object.snapshot.machine.is_unified;
    let container = object.container().filter(|_| is_unified)?;
    container.stats.spec.swap_limit.map(Value::count)
}

fn of_node<'a>(object: &Object<'a>) -> Option<&'a CgroupStats> {
    object.cgroup().filter(|_| object.is_root())
}

fn of_pod<'a>(object: &Object<'a>) -> Option<&'a CgroupStats> {
    object.pod()?.stats.as_ref()
}

fn of_container<'a>(object: &Object<'a>) -> Option<&'a CgroupStats> {
    Some(&object.container()?.stats)
}

#[rustfmt::skip]
pub(super) const TABLE: &[Entry] = &[
    node("node_cpu_usage_seconds_total", Counter, Seconds, "CPU time of the node.",
        |it, to| to.put(cpu(of_node(it)))),
    node("node_memory_working_set_bytes", Gauge, Bytes,
        "Memory of the node in use, less the inactive file pages.",
        |it, to| to.put(working_set(of_node(it)))),
    node("node_swap_usage_bytes", Gauge, Bytes, "Swap of the node in use.",
        |it, to| to.put(swap(of_node(it)))),
    pod("pod_cpu_usage_seconds_total", Counter, Seconds, "CPU time of the pod.",
        |it, to| to.put(cpu(of_pod(it)))),
    pod("pod_memory_working_set_bytes", Gauge, Bytes,
        "Memory of the pod in use, less the inactive file pages.",
        |it, to| to.put(working_set(of_pod(it)))),
    pod("pod_swap_usage_bytes", Gauge, Bytes, "Swap of the pod in use.",
        |it, to| to.put(swap(of_pod(it)))),
    container("container_cpu_usage_seconds_total", Counter, Seconds, "CPU time of the container.",
        |it, to| to.put(cpu(of_container(it)))),
    container("container_memory_working_set_bytes", Gauge, Bytes,
        "Memory of the container in use, less the inactive file pages.",
        |it, to| to.put(working_set(of_container(it)))),
    container("container_start_time_seconds", Gauge, Timestamp, "Start of the container.",
        |it, to| to.put(it.container().and_then(|it| it.started_at).map(Value::time))),
    container("container_swap_usage_bytes", Gauge, Bytes, "Swap of the container in use.",
        |it, to| to.put(swap(of_container(it)))),
    container("container_swap_limit_bytes", Gauge, Bytes,
        "Limit of swap of the container; absent where there is none.",
        |it, to| to.put(swap_limit(it))),
    node("resource_scrape_error", Gauge, Flag,
        "Whether the figures of the node could not be read.",
        |it, to| if it.is_root() { to.put(Some(node_error(it))) }),
];
