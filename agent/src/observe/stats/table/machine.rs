//! Families about the node and the page itself.

use super::{Entry, Tier, cgroup};
use crate::model::stats::Machine;
use crate::observe::metrics::Cardinality;
use crate::observe::metrics::Type::{self, Gauge};
use crate::observe::metrics::Unit::{self, Bytes, Count, Flag, Info};
use crate::observe::stats::objects::{Kind, Object};
use crate::observe::stats::text::{Samples, Value};

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
    page("machine_scrape_error", Gauge, Flag,
        "Whether the facts about the machine could not be read.",
        |it, to| if let Kind::Page = it.kind {
            to.put(Some(Value::count(u64::from(it.snapshot.machine.n_cpus == 0))));
        }).tier(Tier::Kubelet),
];

/// 1 when the root shows neither CPU time nor memory, which every kernel has.
pub(super) fn node_error(object: &Object<'_>) -> Value {
    let root = &object.snapshot.node.cgroup;
    let is_read = root.cpu.usage_ns.is_some() && root.memory.usage.is_some();
    Value::count(u64::from(!is_read))
}
