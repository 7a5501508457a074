//! Families about cgroups, and about what belongs to one.

use super::Tier::{Cadvisor, Kubelet};
use super::{Entry, cgroup};
use crate::model::cgroup_files::CpuStat;
use crate::model::psi::Psi;
use crate::model::stats::{CgroupStats, DeviceIo, DiskStats, HugetlbUse, IoCost, TrafficCounts};
use crate::observe::metrics::Cardinality::{Container, Pod};
use crate::observe::metrics::Type::{Counter, Gauge};
use crate::observe::metrics::Unit::{Bytes, Count, Seconds, Timestamp};
use crate::observe::stats::objects::{Kind, Object};
use crate::observe::stats::text::{Samples, Value};
use crate::units;

const BY_CPU: &[&str] = &[
    "container",
    "id",
    "image",
    "name",
    "namespace",
    "pod",
    "cpu",
];
const BY_DEVICE: &[&str] = &[
    "container",
    "id",
    "image",
    "name",
    "namespace",
    "pod",
    "device",
];
const BY_INTERFACE: &[&str] = &["id", "namespace", "pod", "interface"];
const ROOT_BY_DEVICE: &[&str] = &["id", "device"];

#[rustfmt::skip]
pub(super) const TABLE: &[Entry] = &[
    cgroup("container_last_seen", Gauge, Timestamp,
        "When it was last read, or when the container ended.",
        |it, to| if it.cgroup().is_some() { to.put(Some(Value::time(it.seen_at()))) }),
    cgroup("container_start_time_seconds", Gauge, Timestamp,
        "Start of the container or pod, or boot of the node.",
        |it, to| to.put(started_at(it))),

    cgroup("container_cpu_usage_seconds_total", Counter, Seconds, "CPU time.",
        |it, to| to.put_with(&[("cpu", "total")], cpu(it, |it| it.usage_ns).map(Value::nanos)))
        .labels(BY_CPU),
    cgroup("container_cpu_user_seconds_total", Counter, Seconds, "CPU time in user mode.",
        |it, to| to.put(cpu(it, |it| it.user_ns).map(Value::nanos))).tier(Kubelet),
    cgroup("container_cpu_system_seconds_total", Counter, Seconds, "CPU time in the kernel.",
        |it, to| to.put(cpu(it, |it| it.system_ns).map(Value::nanos))).tier(Kubelet),
    cgroup("container_cpu_cfs_periods_total", Counter, Count,
        "Periods of the CPU quota in which there was work.",
        |it, to| to.put(quota(it, |it| it.n_periods).map(Value::count))),
    cgroup("container_cpu_cfs_throttled_periods_total", Counter, Count,
        "Periods in which the CPU quota was used up.",
        |it, to| to.put(quota(it, |it| it.n_throttled).map(Value::count))),
    cgroup("container_cpu_cfs_throttled_seconds_total", Counter, Seconds,
        "Time without CPU because the quota was used up, summed over CPUs.",
        |it, to| to.put(quota(it, |it| it.throttled_ns).map(Value::nanos))),
    cgroup("container_cpu_cfs_burst_periods_total", Counter, Count,
        "Periods in which more than the CPU quota was used.",
        |it, to| to.put(quota(it, |it| it.n_bursts).map(Value::count))).tier(Kubelet),
    cgroup("container_cpu_cfs_burst_seconds_total", Counter, Seconds,
        "CPU time above the quota.",
        |it, to| to.put(quota(it, |it| it.burst_ns).map(Value::nanos))).tier(Kubelet),
    cgroup("container_spec_cpu_period", Gauge, Count, "Period of the CPU quota in microseconds.",
        |it, to| to.put(count(it, |it| it.spec.cpu_period_us))),
    cgroup("container_spec_cpu_quota", Gauge, Count,
        "CPU quota in microseconds a period; absent where there is none.",
        |it, to| to.put(count(it, |it| it.spec.cpu_quota_us))),
    cgroup("container_spec_cpu_shares", Gauge, Count,
        "CPU shares; of cgroup v2 the weight converted back.",
        |it, to| to.put(count(it, |it| it.spec.cpu_shares))),

    cgroup("container_memory_working_set_bytes", Gauge, Bytes,
        "Memory in use, less the inactive file pages.",
        |it, to| to.put(count(it, |it| it.memory.working_set()))),
    cgroup("container_memory_usage_bytes", Gauge, Bytes, "Memory in use, page cache included.",
        |it, to| to.put(count(it, |it| it.memory.usage))),
    cgroup("container_memory_rss", Gauge, Bytes, "Anonymous memory.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.anon))),
    cgroup("container_memory_cache", Gauge, Bytes, "Page cache.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.file))),
    cgroup("container_memory_swap", Gauge, Bytes, "Swap in use.",
        |it, to| to.put(count(it, |it| it.memory.swap))),
    cgroup("container_memory_failcnt", Counter, Count,
        "Times that usage met the limit: `memory.events` max of cgroup v2.",
        |it, to| to.put(count(it, |it| it.memory.events.max))),
    cgroup("container_memory_mapped_file", Gauge, Bytes, "Page cache that is mapped.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.file_mapped))).tier(Kubelet),
    cgroup("container_memory_kernel_usage", Gauge, Bytes,
        "Memory of the kernel: `memory.stat` kernel of cgroup v2.",
        |it, to| to.put(count(it, |it| it.memory.kernel))).tier(Kubelet),
    cgroup("container_memory_max_usage_bytes", Gauge, Bytes,
        "Most memory that was ever in use; absent on cgroup v2 before Linux 5.19.",
        |it, to| to.put(count(it, |it| it.memory.peak))).tier(Kubelet),
    cgroup("container_memory_total_active_file_bytes", Gauge, Bytes,
        "File pages on the active list.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.active_file))).tier(Kubelet),
    cgroup("container_memory_total_inactive_file_bytes", Gauge, Bytes,
        "File pages on the inactive list.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.inactive_file))).tier(Kubelet),
    cgroup("container_memory_failures_total", Counter, Count,
        "Page faults, and those that waited for a disk.", failures).tier(Kubelet)
        .labels(&["container", "id", "image", "name", "namespace", "pod", "failure_type", "scope"]),
    cgroup("container_memory_numa_pages", Gauge, Count, "Pages on a NUMA node.", numa_pages)
        .tier(Kubelet)
        .labels(&["container", "id", "image", "name", "namespace", "pod", "type", "scope", "node"]),
    cgroup("container_memory_events_high_total", Counter, Count,
        "Times that usage went above memory.high.",
        |it, to| to.put(count(it, |it| it.memory.events.high))).tier(Cadvisor),
    cgroup("container_memory_events_max_total", Counter, Count,
        "Times that usage met memory.max.",
        |it, to| to.put(count(it, |it| it.memory.events.max))).tier(Cadvisor),
    cgroup("container_memory_pgscan_total", Counter, Count, "Pages that reclaim looked at.",
        |it, to| to.put(count(it, |it| it.memory.stat.pages_scanned))).tier(Cadvisor),
    cgroup("container_memory_pgsteal_total", Counter, Count, "Pages that reclaim took back.",
        |it, to| to.put(count(it, |it| it.memory.stat.pages_reclaimed))).tier(Cadvisor),
    cgroup("container_memory_workingset_refault_file_total", Counter, Count,
        "File pages that were needed again after they had been dropped.",
        |it, to| to.put(count(it, |it| it.memory.stat.refaults_file))).tier(Cadvisor),
    cgroup("container_memory_workingset_refault_anon_total", Counter, Count,
        "Anonymous pages that were needed again after they had been swapped out.",
        |it, to| to.put(count(it, |it| it.memory.stat.refaults_anon))).tier(Cadvisor),
    cgroup("container_memory_file_dirty_bytes", Gauge, Bytes, "File pages not yet on disk.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.file_dirty))).tier(Cadvisor),
    cgroup("container_memory_file_writeback_bytes", Gauge, Bytes,
        "File pages on their way to disk.",
        |it, to| to.put(bytes(it, |it| it.memory.stat.file_writeback))).tier(Cadvisor),
    cgroup("container_spec_memory_limit_bytes", Gauge, Bytes,
        "Limit of memory, 0 for none; of the root what the node has.",
        |it, to| to.put(memory_limit(it))),
    cgroup("container_spec_memory_swap_limit_bytes", Gauge, Bytes,
        "Limit of swap, of cgroup v1 memory included, 0 for none; of the root what the node has.",
        |it, to| to.put(swap_limit(it))).tier(Kubelet),
    cgroup("container_spec_memory_reservation_limit_bytes", Gauge, Bytes,
        "Memory that is protected: memory.min, or the soft limit of cgroup v1; 0 for none.",
        |it, to| to.put(reservation(it))).tier(Kubelet),
    cgroup("container_oom_events_total", Counter, Count,
        "Processes of the container that the OOM killer killed, over all its restarts.",
        |it, to| to.put(it.container().map(|it| Value::count(it.oom_events)))).per(Container),
    cgroup("container_hugetlb_usage_bytes", Gauge, Bytes, "Huge pages in use.",
        |it, to| hugetlb(it, to, |it| Some(it.usage))).tier(Kubelet)
        .labels(&["container", "id", "image", "name", "namespace", "pod", "pagesize"]),
    cgroup("container_hugetlb_max_usage_bytes", Gauge, Bytes,
        "Most huge pages that were ever in use; cgroup v1 only.",
        |it, to| hugetlb(it, to, |it| it.max_usage)).tier(Kubelet)
        .labels(&["container", "id", "image", "name", "namespace", "pod", "pagesize"]),

    cgroup("container_pressure_cpu_waiting_seconds_total", Counter, Seconds,
        "Time in which some task waited for a CPU.",
        |it, to| to.put(some(it, |it| it.stalls.cpu))).tier(Kubelet),
    cgroup("container_pressure_cpu_stalled_seconds_total", Counter, Seconds,
        "Time in which every task waited for a CPU.",
        |it, to| to.put(full(it, |it| it.stalls.cpu))).tier(Kubelet),
    cgroup("container_pressure_memory_waiting_seconds_total", Counter, Seconds,
        "Time in which some task waited for memory.",
        |it, to| to.put(some(it, |it| it.stalls.memory))).tier(Kubelet),
    cgroup("container_pressure_memory_stalled_seconds_total", Counter, Seconds,
        "Time in which every task waited for memory.",
        |it, to| to.put(full(it, |it| it.stalls.memory))).tier(Kubelet),
    cgroup("container_pressure_io_waiting_seconds_total", Counter, Seconds,
        "Time in which some task waited for a disk.",
        |it, to| to.put(some(it, |it| it.stalls.io))).tier(Kubelet),
    cgroup("container_pressure_io_stalled_seconds_total", Counter, Seconds,
        "Time in which every task waited for a disk.",
        |it, to| to.put(full(it, |it| it.stalls.io))).tier(Kubelet),

    cgroup("container_processes", Gauge, Count, "Processes.",
        |it, to| to.put(count(it, |it| it.n_processes))).tier(Kubelet),
    cgroup("container_threads", Gauge, Count, "Threads.",
        |it, to| to.put(count(it, |it| it.n_tasks))).tier(Kubelet),
    cgroup("container_threads_max", Gauge, Count,
        "Limit of threads; absent where there is none.",
        |it, to| to.put(threads_max(it))).tier(Kubelet),
    cgroup("container_file_descriptors", Gauge, Count,
        "Open file descriptors of the container's processes; absent where there are none, and of more than 100.",
        |it, to| to.put(it.container().and_then(|it| it.descriptors).map(Value::count)))
        .tier(Kubelet).per(Container),
    cgroup("container_ulimits_soft", Gauge, Count,
        "Soft limits of the container's first process; absent where there is none.",
        ulimits).tier(Kubelet).per(Container)
        .labels(&["container", "id", "image", "name", "namespace", "pod", "ulimit"]),

    cgroup("container_network_receive_bytes_total", Counter, Bytes, "Bytes received.",
        |it, to| received(it, to, |it| it.bytes)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_receive_packets_total", Counter, Count, "Packets received.",
        |it, to| received(it, to, |it| it.packets)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_receive_packets_dropped_total", Counter, Count,
        "Packets dropped while receiving.",
        |it, to| received(it, to, |it| it.dropped)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_receive_errors_total", Counter, Count, "Errors while receiving.",
        |it, to| received(it, to, |it| it.errors)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_transmit_bytes_total", Counter, Bytes, "Bytes sent.",
        |it, to| sent(it, to, |it| it.bytes)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_transmit_packets_total", Counter, Count, "Packets sent.",
        |it, to| sent(it, to, |it| it.packets)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_transmit_packets_dropped_total", Counter, Count,
        "Packets dropped while sending.",
        |it, to| sent(it, to, |it| it.dropped)).labels(BY_INTERFACE).per(Pod),
    cgroup("container_network_transmit_errors_total", Counter, Count, "Errors while sending.",
        |it, to| sent(it, to, |it| it.errors)).labels(BY_INTERFACE).per(Pod),

    cgroup("container_fs_usage_bytes", Gauge, Bytes,
        "Storage in use: of a container its root file system and its log.",
        |it, to| file_system(it, to, storage_use(it))).labels(BY_DEVICE),
    cgroup("container_fs_limit_bytes", Gauge, Bytes, "Size of the file system.",
        |it, to| file_system(it, to, storage_limit(it))).labels(BY_DEVICE),
    cgroup("container_fs_inodes_total", Gauge, Count, "Inodes of the file system.",
        |it, to| if it.is_root() {
            file_system(it, to, it.snapshot.node.file_system.as_ref().and_then(|it| it.inodes));
        }).tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_inodes_free", Gauge, Count, "Inodes of the file system that are free.",
        |it, to| if it.is_root() {
            file_system(it, to, it.snapshot.node.file_system.as_ref().and_then(|it| it.inodes_free));
        }).tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_reads_total", Counter, Count, "Reads from a disk.",
        |it, to| io(it, to, |it| it.reads.completed, |it| it.read.operations)).labels(BY_DEVICE),
    cgroup("container_fs_reads_bytes_total", Counter, Bytes, "Bytes read from a disk.",
        |it, to| io(it, to, |it| sector_bytes(it.reads.sectors), |it| it.read.bytes))
        .labels(BY_DEVICE),
    cgroup("container_fs_writes_total", Counter, Count, "Writes to a disk.",
        |it, to| io(it, to, |it| it.writes.completed, |it| it.written.operations))
        .labels(BY_DEVICE),
    cgroup("container_fs_writes_bytes_total", Counter, Bytes, "Bytes written to a disk.",
        |it, to| io(it, to, |it| sector_bytes(it.writes.sectors), |it| it.written.bytes))
        .labels(BY_DEVICE),
    cgroup("container_fs_reads_merged_total", Counter, Count, "Reads that became part of others.",
        |it, to| disks(it, to, |it| Value::count(it.reads.merged)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_writes_merged_total", Counter, Count,
        "Writes that became part of others.",
        |it, to| disks(it, to, |it| Value::count(it.writes.merged)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_sector_reads_total", Counter, Count, "Sectors of 512 bytes read.",
        |it, to| disks(it, to, |it| Value::count(it.reads.sectors)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_sector_writes_total", Counter, Count, "Sectors of 512 bytes written.",
        |it, to| disks(it, to, |it| Value::count(it.writes.sectors)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_read_seconds_total", Counter, Seconds, "Time of all reads together.",
        |it, to| disks(it, to, |it| Value::millis(it.reads.time_ms)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_write_seconds_total", Counter, Seconds, "Time of all writes together.",
        |it, to| disks(it, to, |it| Value::millis(it.writes.time_ms)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_io_current", Gauge, Count, "Requests that a disk works on.",
        |it, to| disks(it, to, |it| Value::count(it.n_in_flight)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_io_time_seconds_total", Counter, Seconds,
        "Time in which a disk was busy.",
        |it, to| disks(it, to, |it| Value::millis(it.busy_ms)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_io_time_weighted_seconds_total", Counter, Seconds,
        "Time in which a disk was busy, times the requests that it worked on.",
        |it, to| disks(it, to, |it| Value::millis(it.weighted_busy_ms)))
        .tier(Kubelet).labels(ROOT_BY_DEVICE),
    cgroup("container_fs_io_cost_usage_seconds_total", Counter, Seconds,
        "Device time used, by the model of io.cost.",
        |it, to| cost(it, to, |it| it.usage_us)).tier(Cadvisor).labels(BY_DEVICE),
    cgroup("container_fs_io_cost_wait_seconds_total", Counter, Seconds,
        "Time waited for a share of the device, by the model of io.cost.",
        |it, to| cost(it, to, |it| it.wait_us)).tier(Cadvisor).labels(BY_DEVICE),
    cgroup("container_fs_io_cost_indebt_seconds_total", Counter, Seconds,
        "Time in which device time was owed, by the model of io.cost.",
        |it, to| cost(it, to, |it| it.in_debt_us)).tier(Cadvisor).labels(BY_DEVICE),
    cgroup("container_fs_io_cost_indelay_seconds_total", Counter, Seconds,
        "Time of delays for device time that was owed, by the model of io.cost.",
        |it, to| cost(it, to, |it| it.in_delay_us)).tier(Cadvisor).labels(BY_DEVICE),
    cgroup("container_blkio_device_usage_total", Counter, Bytes,
        "Bytes of a disk by operation, which overlap on cgroup v1.", blkio).tier(Kubelet)
        .labels(&[
            "container", "id", "image", "name", "namespace", "pod",
            "device", "major", "minor", "operation",
        ]),
];

fn count(object: &Object<'_>, of: impl Fn(&CgroupStats) -> Option<u64>) -> Option<Value> {
    of(object.cgroup()?).map(Value::count)
}

fn bytes(object: &Object<'_>, of: impl Fn(&CgroupStats) -> Option<units::Bytes>) -> Option<Value> {
    count(object, |it| of(it).map(|it| it.0))
}

fn cpu(object: &Object<'_>, of: impl Fn(&CpuStat) -> Option<u64>) -> Option<u64> {
    of(&object.cgroup()?.cpu)
}

/// Bandwidth figures say something only where there is a quota.
fn quota(object: &Object<'_>, of: impl Fn(&CpuStat) -> Option<u64>) -> Option<u64> {
    let stats = object.cgroup()?;
    stats.spec.cpu_quota_us?;
    of(&stats.cpu)
}

fn some(object: &Object<'_>, of: impl Fn(&CgroupStats) -> Option<Psi>) -> Option<Value> {
    Some(Value::micros(of(object.cgroup()?)?.some.total.0))
}

fn full(object: &Object<'_>, of: impl Fn(&CgroupStats) -> Option<Psi>) -> Option<Value> {
    Some(Value::micros(of(object.cgroup()?)?.full?.total.0))
}

fn started_at(object: &Object<'_>) -> Option<Value> {
    let at = match object.kind {
        Kind::Page | Kind::Machine | Kind::Group(_) => None,
        Kind::Root => object.snapshot.machine.booted_at,
        Kind::Pod(it) => it.stats.is_some().then_some(it.started_at),
        Kind::Container(it) => it.started_at,
    };
    at.map(Value::time)
}

fn failures(object: &Object<'_>, to: &mut Samples<'_>) {
    let Some(stats) = object.cgroup() else { return };
    let stat = &stats.memory.stat;
    for (kind, n) in [
        ("pgfault", stat.page_faults),
        ("pgmajfault", stat.major_page_faults),
    ] {
        // The kernel counts a cgroup with all below it, and cAdvisor shows that as both.
        for scope in ["container", "hierarchy"] {
            let labels = [("failure_type", kind), ("scope", scope)];
            to.put_with(&labels, n.map(Value::count));
        }
    }
}

fn numa_pages(object: &Object<'_>, to: &mut Samples<'_>) {
    let Some(stats) = object.cgroup() else { return };
    for pages in &stats.numa {
        let mut digits = itoa::Buffer::new();
        let node = digits.format(pages.node);
        for (kind, n) in [
            ("anon", pages.anon),
            ("file", pages.file),
            ("unevictable", pages.unevictable),
        ] {
            let labels = [("type", kind), ("scope", "hierarchy"), ("node", node)];
            to.put_with(&labels, Some(Value::count(n)));
        }
    }
}

/// 0 stands for no limit, as dashboards expect. `None`: nobody knows whether there is one.
fn limit_or_0(stats: &CgroupStats, limit: Option<u64>) -> Option<u64> {
    stats.spec.is_known.then_some(limit.unwrap_or(0))
}

/// Where memory is accounted.
fn memory_limit(object: &Object<'_>) -> Option<Value> {
    let stats = object.cgroup()?;
    stats.memory.usage?;
    let limit = match object.kind {
        Kind::Root => object.snapshot.machine.memory,
        _ => limit_or_0(stats, stats.spec.memory_limit)?,
    };
    Some(Value::count(limit))
}

fn swap_limit(object: &Object<'_>) -> Option<Value> {
    let stats = object.cgroup()?;
    stats.memory.swap?;
    let limit = match object.kind {
        Kind::Root => object.snapshot.machine.swap,
        _ => limit_or_0(stats, stats.spec.swap_limit)?,
    };
    Some(Value::count(limit))
}

fn reservation(object: &Object<'_>) -> Option<Value> {
    let stats = object.cgroup().filter(|_| !object.is_root())?;
    stats.memory.usage?;
    let protected = stats.spec.memory_reservation.or(stats.spec.memory_min);
    limit_or_0(stats, protected).map(Value::count)
}

fn hugetlb(object: &Object<'_>, to: &mut Samples<'_>, of: impl Fn(&HugetlbUse) -> Option<u64>) {
    for pages in object.cgroup().map_or(&[][..], |it| &it.hugetlb) {
        to.put_with(
            &[("pagesize", &pages.page_size)],
            of(pages).map(Value::count),
        );
    }
}

fn threads_max(object: &Object<'_>) -> Option<Value> {
    let limit = match object.kind {
        Kind::Root => object.snapshot.machine.max_pids,
        _ => object.cgroup()?.spec.max_tasks,
    };
    limit.map(Value::count)
}

fn ulimits(object: &Object<'_>, to: &mut Samples<'_>) {
    let limit = object.container().and_then(|it| it.limits.max_open_files);
    let limit = limit.filter(|it| *it != u64::MAX);
    to.put_with(&[("ulimit", "max_open_files")], limit.map(Value::count));
}

fn received(object: &Object<'_>, to: &mut Samples<'_>, of: impl Fn(&TrafficCounts) -> u64) {
    for it in object.network() {
        to.put_with(
            &[("interface", &it.name)],
            Some(Value::count(of(&it.received))),
        );
    }
}

fn sent(object: &Object<'_>, to: &mut Samples<'_>, of: impl Fn(&TrafficCounts) -> u64) {
    for it in object.network() {
        to.put_with(
            &[("interface", &it.name)],
            Some(Value::count(of(&it.transmitted))),
        );
    }
}

/// Bytes of the root's file system in use, or what a container has written to it.
fn storage_use(object: &Object<'_>) -> Option<u64> {
    match object.kind {
        Kind::Root => Some(object.snapshot.node.file_system.as_ref()?.used),
        Kind::Container(it) => Some(it.root_fs.bytes?.saturating_add(it.logs.bytes?)),
        _ => None,
    }
}

/// Who has no figure of what a container has written does not know where it writes either.
fn storage_limit(object: &Object<'_>) -> Option<u64> {
    storage_use(object)?;
    Some(object.snapshot.node.file_system.as_ref()?.capacity)
}

/// At the root and at containers, which all are on one file system.
fn file_system(object: &Object<'_>, to: &mut Samples<'_>, value: Option<u64>) {
    if !object.is_root() && object.container().is_none() {
        return;
    }
    if let Some(file_system) = &object.snapshot.node.file_system {
        to.put_with(&[("device", &file_system.device)], value.map(Value::count));
    }
}

/// What the root's disks count, which includes what no cgroup is charged for; elsewhere what the
/// cgroup is charged for.
fn io(
    object: &Object<'_>,
    to: &mut Samples<'_>,
    of_disk: impl Fn(&DiskStats) -> u64,
    of_cgroup: impl Fn(&DeviceIo) -> u64,
) {
    if object.is_root() {
        disks(object, to, |it| Value::count(of_disk(it)));
        return;
    }
    let mut name = String::new();
    for it in object.cgroup().map_or(&[][..], |it| &it.io) {
        device_name(it, &mut name);
        to.put_with(&[("device", &name)], Some(Value::count(of_cgroup(it))));
    }
}

fn cost(object: &Object<'_>, to: &mut Samples<'_>, of: impl Fn(&IoCost) -> Option<u64>) {
    let mut name = String::new();
    for it in object.cgroup().map_or(&[][..], |it| &it.io) {
        if let Some(micros) = of(&it.cost) {
            device_name(it, &mut name);
            to.put_with(&[("device", &name)], Some(Value::micros(micros)));
        }
    }
}

fn disks(object: &Object<'_>, to: &mut Samples<'_>, of: impl Fn(&DiskStats) -> Value) {
    if !object.is_root() {
        return;
    }
    let mut name = String::new();
    for disk in &object.snapshot.node.disks {
        device_path(&disk.name, &mut name);
        to.put_with(&[("device", &name)], Some(of(disk)));
    }
}

fn blkio(object: &Object<'_>, to: &mut Samples<'_>) {
    let mut name = String::new();
    for it in object.cgroup().map_or(&[][..], |it| &it.io) {
        device_name(it, &mut name);
        let (mut major, mut minor) = (itoa::Buffer::new(), itoa::Buffer::new());
        let (major, minor) = (major.format(it.number.major), minor.format(it.number.minor));
        let mut put = |operation, n| {
            let labels = [
                ("device", &*name),
                ("major", major),
                ("minor", minor),
                ("operation", operation),
            ];
            to.put_with(&labels, Some(Value::count(n)));
        };
        put("Read", it.read.bytes);
        put("Write", it.written.bytes);
        if let Some(others) = it.by_operation {
            put("Sync", others.synchronous);
            put("Async", others.asynchronous);
            put("Discard", others.discarded);
            put("Total", others.total);
        }
    }
}

/// A device without a name goes by its number, so that two of them are two series.
fn device_name(io: &DeviceIo, name: &mut String) {
    match &io.name {
        Some(it) => device_path(it, name),
        None => {
            name.clear();
            let mut digits = itoa::Buffer::new();
            name.push_str(digits.format(io.number.major));
            name.push(':');
            name.push_str(digits.format(io.number.minor));
        }
    }
}

fn device_path(device: &str, path: &mut String) {
    path.clear();
    path.push_str("/dev/");
    path.push_str(device);
}

fn sector_bytes(n: u64) -> u64 {
    n.saturating_mul(512)
}
