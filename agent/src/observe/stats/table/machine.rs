//! Families about the node and the page itself.

use super::{Entry, Tier, cgroup};
use crate::model::stats::Machine;
use crate::model::topology::NumaNode;
use crate::observe::metrics::Cardinality;
use crate::observe::metrics::Type::{self, Gauge};
use crate::observe::metrics::Unit::{self, Bytes, Count, Flag, Info};
use crate::observe::stats::objects::{Kind, Object};
use crate::observe::stats::text::{Samples, Value};

const BY_NODE: &[&str] = &["boot_id", "machine_id", "system_uuid", "node_id"];

const fn page(
    name: &'static str,
    kind: Type,
    unit: Unit,
    help: &'static str,
    write: fn(&Object<'_>, &mut Samples<'_>),
) -> Entry {
    cgroup(name, kind, unit, help, write)
        .per(Cardinality::Agent)
        .labels(&[])
}

const fn machine(
    name: &'static str,
    unit: Unit,
    help: &'static str,
    write: fn(&Object<'_>, &mut Samples<'_>),
) -> Entry {
    page(name, Gauge, unit, help, write).labels(&["boot_id", "machine_id", "system_uuid"])
}

/// One sample at the machine.
fn put(object: &Object<'_>, to: &mut Samples<'_>, value: impl Fn(&Machine) -> u64) {
    if let Kind::Machine = object.kind {
        to.put(Some(Value::count(value(&object.snapshot.machine))));
    }
}

#[rustfmt::skip]
pub(super) const TABLE: &[Entry] = &[
    page("cadvisor_version_info", Gauge, Info,
        "Versions of the kernel, of the operating system and of this program; always 1.",
        |it, to| if let Kind::Page = it.kind {
            let machine = &it.snapshot.machine;
            let labels = [
                ("cadvisorVersion", env!("CARGO_PKG_VERSION")),
                ("kernelVersion", machine.kernel_version.as_str()),
                ("osVersion", machine.os_version.as_deref().unwrap_or_default()),
            ];
            to.put_with(&labels, Some(Value::count(1)));
        }).labels(&["cadvisorVersion", "kernelVersion", "osVersion"]),
    page("container_scrape_error", Gauge, Flag,
        "Whether the figures of the node could not be read.",
        |it, to| if let Kind::Page = it.kind { to.put(Some(node_error(it))) })
        .tier(Tier::Kubelet),
    machine("machine_cpu_cores", Count, "CPUs that are online.",
        |it, to| put(it, to, |it| it.n_cpus)),
    machine("machine_memory_bytes", Bytes, "Memory of the node.",
        |it, to| put(it, to, |it| it.memory)),
    machine("machine_cpu_physical_cores", Count, "Cores that the CPUs are on.",
        |it, to| put(it, to, |it| it.n_cores)).tier(Tier::Kubelet),
    machine("machine_cpu_sockets", Count, "Packages that the CPUs are on.",
        |it, to| put(it, to, |it| it.n_packages)).tier(Tier::Kubelet),
    machine("machine_swap_bytes", Bytes, "Swap of the node.",
        |it, to| put(it, to, |it| it.swap)).tier(Tier::Kubelet),
    machine("machine_node_memory_capacity_bytes", Bytes, "Memory of a NUMA node.",
        |it, to| for_each_numa_node(it, |id, node| {
            to.put_with(&[("node_id", id)], node.memory.map(|it| Value::count(it.0)));
        })).tier(Tier::Cadvisor).labels(BY_NODE),
    machine("machine_node_hugepages_count", Count, "Huge pages of a NUMA node, by size in KiB.",
        |it, to| for_each_numa_node(it, |id, node| for (size, n) in &node.hugepages {
            let size = (size.0 / 1024).to_string();
            to.put_with(&[("node_id", id), ("page_size", &size)], Some(Value::count(*n)));
        })).tier(Tier::Cadvisor)
        .labels(&["boot_id", "machine_id", "system_uuid", "node_id", "page_size"]),
    machine("machine_node_distance", Count,
        "Distance of a NUMA node to another; 10 to itself.",
        |it, to| for_each_numa_node(it, |id, node| for (target, distance) in &node.distances {
            let labels = [("node_id", id), ("target_node_id", &target.0.to_string())];
            to.put_with(&labels, Some(Value::count(u64::from(*distance))));
        })).tier(Tier::Cadvisor)
        .labels(&["boot_id", "machine_id", "system_uuid", "node_id", "target_node_id"]),
    page("machine_scrape_error", Gauge, Flag,
        "Whether the facts about the machine could not be read.",
        |it, to| if let Kind::Page = it.kind {
            to.put(Some(Value::count(u64::from(it.snapshot.machine.n_cpus == 0))));
        }).tier(Tier::Kubelet),
];

fn for_each_numa_node(object: &Object<'_>, mut what: impl FnMut(&str, &NumaNode)) {
    if let Kind::Machine = object.kind {
        for (id, node) in &object.snapshot.machine.numa_nodes {
            what(&id.0.to_string(), node);
        }
    }
}

/// 1 when the root shows neither CPU time nor memory, which every kernel has.
pub(super) fn node_error(object: &Object<'_>) -> Value {
    let root = &object.snapshot.node.cgroup;
    let is_read = root.cpu.usage_ns.is_some() && root.memory.usage.is_some();
    Value::count(u64::from(!is_read))
}
