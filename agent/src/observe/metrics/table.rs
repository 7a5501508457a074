//! The one table of metrics: what exists, what it means, how it is labelled. The registry is built
//! from it, the reference text is printed from it, and dashboards and alerts are checked against
//! it.
//!
//! Names are an interface: a change needs one release with both names.

use crate::model::kubelet_duty::{KubeletDuty, KubeletNames};

/// Prefix of every family that this project owns.
pub const PREFIX: &str = "ballast_";

/// How a value behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Only rises while the agent runs.
    Counter,
    Gauge,
    Histogram(Buckets),
}

/// Upper bounds of a histogram's classic buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buckets {
    /// 100 µs to 10 s, in seconds.
    Latency,
    /// 1 MiB to 64 GiB, powers of 4, in bytes.
    Size,
    /// 1 to 1e6, powers of 10: how often.
    Count,
    /// What kubelet has where it names none: the default of its client library, in seconds.
    Kubelet,
    /// 0.05 to 819.2, powers of 2, in milliseconds: kubelet's for admissions.
    KubeletMillis,
}

impl Buckets {
    pub const fn bounds(self) -> &'static [f64] {
        const MIB: f64 = 1_048_576.0;
        match self {
            Self::Latency => &[
                0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                0.5, 1.0, 2.5, 5.0, 10.0,
            ],
            Self::Size => &[
                MIB,
                4.0 * MIB,
                16.0 * MIB,
                64.0 * MIB,
                256.0 * MIB,
                1024.0 * MIB,
                4096.0 * MIB,
                16384.0 * MIB,
                65536.0 * MIB,
            ],
            Self::Count => &[1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6],
            Self::Kubelet => &[
                0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
            ],
            Self::KubeletMillis => &[
                0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6,
                819.2,
            ],
        }
    }
}

/// Base unit of a value; every unit but `Count`, `Flag` and `Labelled` shows in the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// How many.
    Count,
    /// 0 or 1.
    Flag,
    /// Always 1; the labels are the value.
    Info,
    Seconds,
    /// Under one of kubelet's names; all others are in seconds.
    Milliseconds,
    /// Seconds since the Unix epoch.
    Timestamp,
    Bytes,
    /// A part of a whole, 0 to 1.
    Ratio,
    /// What the label `unit` of the series says.
    Labelled,
}

/// What bounds the number of series of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cardinality {
    /// Fixed by this program: enumerated labels or none.
    Agent,
    /// One set per container of this node. Removed `POD_RETENTION` after the pod is gone.
    Container,
    /// One set per device resource, at most `MAX_RESOURCES`.
    Resource,
    /// One set per pod of this node, and per interface where that is a label.
    Pod,
    /// One set per cgroup that is shown (the root, QoS classes, pods, containers), and per device,
    /// page size or NUMA node where those are labels. Gone with the cgroup.
    Cgroup,
    /// One per workload. Removed `WORKLOAD_RETENTION` after last use; at most `MAX_WORKLOADS`.
    Workload,
}

/// The part of the agent that a family tells about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Area {
    Agent,
    /// The standard set of every Prometheus client.
    Process,
    Oom,
    Reconcile,
    Placement,
    Memory,
    Pressure,
    Cpu,
    Eviction,
    Ebpf,
    State,
    Devices,
    /// The API server, where it is asked.
    Api,
    /// Names that kubelet exports for the same duty: they follow its rules and not ours.
    Kubelet,
    /// What `/metrics/cadvisor` shows, under cAdvisor's names.
    Cadvisor,
    /// What `/metrics/resource` shows, under kubelet's names.
    Resource,
}

/// Of two names for the same figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameAge {
    Old,
    New,
}

/// One metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    pub name: &'static str,
    pub kind: Type,
    pub unit: Unit,
    pub labels: &'static [&'static str],
    pub cardinality: Cardinality,
    pub area: Area,
    /// Of a family with kubelet's name: shown only while this agent does the duty.
    pub duty: Option<KubeletDuty>,
    /// Of a family that kubelet has under two names: which of them this is.
    pub age: Option<NameAge>,
    /// One sentence, also the `# HELP` line.
    pub help: &'static str,
}

/// Labels that name one container.
const CONTAINER: &[&str] = &["namespace", "pod", "container"];
const LATENCY: Type = Type::Histogram(Buckets::Latency);
const KUBELET: Type = Type::Histogram(Buckets::Kubelet);

const fn agent(
    name: &'static str,
    kind: Type,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        unit,
        labels,
        cardinality: Cardinality::Agent,
        area: Area::Agent,
        duty: None,
        age: None,
        help,
    }
}

impl Family {
    const fn area(mut self, area: Area) -> Self {
        self.area = area;
        self
    }

    const fn per(mut self, cardinality: Cardinality) -> Self {
        self.cardinality = cardinality;
        self
    }

    /// It is kubelet's.
    const fn of(mut self, duty: KubeletDuty) -> Self {
        self.area = Area::Kubelet;
        self.duty = Some(duty);
        self
    }

    const fn named(mut self, age: NameAge) -> Self {
        self.age = Some(age);
        self
    }

    /// Whether an agent shows it that has these duties of kubelet's and these names for them.
    pub fn is_shown(&self, duties: &[KubeletDuty], names: KubeletNames) -> bool {
        let has_other_name = matches!(
            (self.age, names),
            (Some(NameAge::Old), KubeletNames::New) | (Some(NameAge::New), KubeletNames::Old)
        );
        !has_other_name && self.duty.is_none_or(|it| duties.contains(&it))
    }
}

/// A counter of things per container.
const fn per_container(
    name: &'static str,
    area: Area,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    agent(name, Type::Counter, Unit::Count, labels, help)
        .area(area)
        .per(Cardinality::Container)
}

/// A counter of requests to the pod resources API, under kubelet's name.
const fn pod_resources(name: &'static str, help: &'static str) -> Family {
    agent(
        name,
        Type::Counter,
        Unit::Count,
        &["server_api_version"],
        help,
    )
    .of(KubeletDuty::PodResources)
}

/// Every family, in the order of the reference text.
pub fn table() -> &'static [Family] {
    TABLE
}

use Area::{
    Api, Cpu, Devices, Ebpf, Eviction, Memory, Oom, Placement, Pressure, Process, Reconcile, State,
};
use KubeletDuty as Duty;
use NameAge::{New, Old};
use Type::{Counter, Gauge};
use Unit::{Bytes, Count, Flag, Info, Labelled, Milliseconds, Ratio, Seconds, Timestamp};

#[rustfmt::skip]
const TABLE: &[Family] = &[
    agent("ballast_build_info", Gauge, Info, &["version", "revision", "target"],
        "The running build; always 1."),
    agent("ballast_mode_info", Gauge, Info, &["mode", "cgroup", "driver", "dry_run"],
        "What the agent may write and on which cgroup version and driver; always 1."),
    agent("ballast_feature_enabled", Gauge, Flag, &["feature"],
        "Whether a feature of the agent is on."),
    agent("ballast_kernel_feature_available", Gauge, Flag, &["feature"],
        "Whether the running kernel has a feature, as probed at start."),
    agent("ballast_ready", Gauge, Flag, &[],
        "Whether /readyz answers 200."),
    agent("ballast_capabilities_effective", Gauge, Count, &[],
        "Capabilities that the agent holds in its effective set."),
    agent("ballast_objects", Gauge, Count, &["kind"],
        "Objects in the agent's model of the node."),
    agent("ballast_loop_ticks_total", Counter, Count, &["trigger"],
        "Passes of the reconcile loop by what woke it."),
    agent("ballast_loop_duration_seconds", LATENCY, Seconds, &["phase"],
        "Duration of each phase of a pass."),
    agent("ballast_loop_last_success_timestamp_seconds", Gauge, Timestamp, &[],
        "End of the last complete pass; absent until the first."),
    agent("ballast_source_age_seconds", Gauge, Seconds, &["source"],
        "Age of the newest reading of a source at the last pass."),
    agent("ballast_source_errors_total", Counter, Count, &["source", "reason"],
        "Failed readings by what failed."),
    agent("ballast_source_regressions_total", Counter, Count, &["source"],
        "Counters that fell while what they count was the same, and were kept as they were."),
    agent("ballast_ended_left_out_total", Counter, Count, &["kind"],
        "Ended pods and containers that were no longer shown before their time, since too many ended; and those without a last reading, since they were gone too soon."),
    agent("ballast_scrape_duration_seconds", LATENCY, Seconds, &["endpoint"],
        "Time to encode one answer."),
    agent("ballast_scrape_series", Gauge, Count, &["endpoint"],
        "Samples in the previous answer."),
    agent("ballast_scrape_bytes", Gauge, Bytes, &["endpoint"],
        "Size of the previous answer."),

    agent("process_cpu_seconds_total", Counter, Seconds, &[],
        "User and system CPU time of the agent.").area(Process),
    agent("process_open_fds", Gauge, Count, &[],
        "Open file descriptors of the agent.").area(Process),
    agent("process_max_fds", Gauge, Count, &[],
        "Limit of open file descriptors of the agent.").area(Process),
    agent("process_virtual_memory_bytes", Gauge, Bytes, &[],
        "Virtual memory of the agent.").area(Process),
    agent("process_resident_memory_bytes", Gauge, Bytes, &[],
        "Resident memory of the agent.").area(Process),
    agent("process_start_time_seconds", Gauge, Timestamp, &[],
        "Start of the agent.").area(Process),
    agent("process_threads", Gauge, Count, &[],
        "Threads of the agent.").area(Process),

    per_container("ballast_oom_kills_total", Oom, CONTAINER,
        "Processes of the container that the OOM killer killed, whoever's limit it was; empty labels: of a pod that is not known."),
    per_container("ballast_oom_child_kills_total", Oom, CONTAINER,
        "Kills after which the container went on, which no restart shows."),
    agent("ballast_oom_last_kill_timestamp_seconds", Gauge, Timestamp, CONTAINER,
        "Time of the last kill in the container; absent until the first.")
        .area(Oom).per(Cardinality::Container),
    agent("ballast_oom_last_child_kill_timestamp_seconds", Gauge, Timestamp, CONTAINER,
        "Time of the last kill after which the container went on; absent until the first.")
        .area(Oom).per(Cardinality::Container),
    agent("ballast_oom_workload_kills_total", Counter, Count,
        &["namespace", "workload_kind", "workload"],
        "Kills by workload, which outlives its pods.").area(Oom).per(Cardinality::Workload),
    agent("ballast_oom_scope_kills_total", Counter, Count, &["scope", "qos"],
        "Kills in and outside of pods by whose limit was reached and the QoS class of the victim; without missed ones.").area(Oom),
    agent("ballast_oom_host_kills_total", Counter, Count, &["slice"],
        "Kills of processes outside pods.").area(Oom),
    agent("ballast_oom_last_node_kill_timestamp_seconds", Gauge, Timestamp, &["scope"],
        "Time of the last kill by a limit above the pod; absent until the first.").area(Oom),
    per_container("ballast_oom_group_kills_total", Oom, CONTAINER,
        "Times that memory.oom.group took all processes; absent where the kernel does not count it."),
    agent("ballast_oom_victim_bytes", Type::Histogram(Buckets::Size), Bytes, &["qos"],
        "Anonymous memory of the victim at the kill.").area(Oom),
    agent("ballast_oom_attribution_total", Counter, Count, &["method"],
        "Kills by how the limiting cgroup is known.").area(Oom),
    agent("ballast_oom_last_unattributed_timestamp_seconds", Gauge, Timestamp, &[],
        "Time of the last kill whose limit nobody could name; absent until the first.").area(Oom),
    agent("ballast_oom_detection_seconds", LATENCY, Seconds, &[],
        "From the kill in the kernel to the handled event.").area(Oom),
    agent("ballast_oom_missed_kills_total", Counter, Count, &["cause"],
        "Kills in pods that the kernel counted and no program reported; the victim is not known.")
        .area(Oom),
    agent("ballast_oom_records_total", Counter, Count, &["result"],
        "Kills by what became of their forensic record; coalesced ones share that of another kill.")
        .area(Oom),

    agent("ballast_cgroup_writes_total", Counter, Count, &["file", "result"],
        "Writes of cgroup files by outcome.").area(Reconcile),
    agent("ballast_cgroup_op_duration_seconds", LATENCY, Seconds, &["op"],
        "Duration of cgroup operations.").area(Reconcile),
    agent("ballast_reconcile_drift_total", Counter, Count, &["file", "cause"],
        "Values found different from what was decided.").area(Reconcile),
    agent("ballast_reconcile_drift_unresolved", Gauge, Count, &["file"],
        "Values that differed from what was decided after the last pass.").area(Reconcile),
    agent("ballast_reconcile_yields_total", Counter, Count, &["file"],
        "Times that a file was left for a while to another program that keeps writing it.")
        .area(Reconcile),
    agent("ballast_reconcile_last_yield_timestamp_seconds", Gauge, Timestamp, &["file"],
        "Time of the last of them; absent until the first.").area(Reconcile),
    agent("ballast_reconcile_lag_seconds", LATENCY, Seconds, &["kind"],
        "From the first sight of a pod or container to its cgroup being right.").area(Reconcile),
    agent("ballast_cgroups", Gauge, Count, &["level"],
        "Cgroups that the agent has made by level.").area(Reconcile),
    agent("ballast_unknown_cgroups", Gauge, Count, &[],
        "Pod cgroups that no agent of this state directory has made, and that are left alone.")
        .area(Reconcile),
    agent("ballast_escaped_containers", Gauge, Count, &[],
        "Containers of which a process has left their cgroup, so that no limit holds for it.")
        .area(Reconcile),
    agent("ballast_cgroups_dying", Gauge, Count, &[],
        "Removed cgroups that the kernel still holds; absent where it does not tell.")
        .area(Reconcile),

    agent("ballast_placement_admissions_total", Counter, Count, &["policy", "result", "reason"],
        "Admissions by topology policy and outcome; `none` is the reason of one that succeeded.")
        .area(Placement),
    agent("ballast_placement_last_refusal_timestamp_seconds", Gauge, Timestamp, &["reason"],
        "Time of the last refusal for a reason; absent until the first.").area(Placement),
    agent("ballast_placement_duration_seconds", LATENCY, Seconds, &["policy"],
        "Time to decide one admission, the words of device plugins left out.").area(Placement),
    agent("ballast_placement_candidates", Type::Histogram(Buckets::Count), Count, &["policy"],
        "What was listed and looked at in the search for NUMA nodes of one admission.").area(Placement),
    agent("ballast_placement_misaligned_containers", Gauge, Count, &["boundary"],
        "Containers whose CPUs span more of a boundary than they need, where the policies ask for it.")
        .area(Placement),
    agent("ballast_placement_remote_memory_ratio", Gauge, Ratio, CONTAINER,
        "Share of its pages that are not on the NUMA nodes that the container was given.")
        .area(Placement).per(Cardinality::Container),
    agent("ballast_placement_moves_total", Counter, Count, &["reason"],
        "Containers that run and were given other CPUs or memory.").area(Placement),
    agent("ballast_placement_exclusive_cpus", Gauge, Count, CONTAINER,
        "CPUs that no other pod has: of the container alone, or with others of its pod; absent where it \
         runs in the shared pool.")
        .area(Placement).per(Cardinality::Container),
    agent("ballast_placement_pool_cpus", Gauge, Count, &["pool"],
        "CPUs by what they are for; reserved ones are in the shared pool too, unless strict. \
         `reserved` is absent where it is not known which.")
        .area(Placement),
    agent("ballast_placement_free_cpus", Gauge, Count, &["numa_node"],
        "CPUs of a NUMA node that can still be given to a container alone; absent where it is not \
         known which are reserved.").area(Placement),
    agent("ballast_placement_free_bytes", Gauge, Bytes, &["numa_node", "kind"],
        "Memory of a NUMA node that can still be given out, by kind.").area(Placement),
    agent("ballast_placement_fragmentation_ratio", Gauge, Ratio, &["resource"],
        "One less the largest share of what is free on a single NUMA node; absent with none free.")
        .area(Placement),

    per_container("ballast_memory_limit_hits_total", Memory,
        &["namespace", "pod", "container", "limit"],
        "Times that usage met memory.high or memory.max, or that memory.low did not protect it."),
    agent("ballast_memory_peak_bytes", Gauge, Bytes, CONTAINER,
        "Highest memory usage since the container began.")
        .area(Memory).per(Cardinality::Container),
    agent("ballast_memory_reclaimable_bytes", Gauge, Bytes, CONTAINER,
        "Estimate of what could be taken without harm: clean file pages not in use, free slab.")
        .area(Memory).per(Cardinality::Container),
    agent("ballast_memory_time_to_limit_seconds", Gauge, Seconds, CONTAINER,
        "Time to the limit at the present growth; absent unless within an hour.")
        .area(Memory).per(Cardinality::Container),
    agent("ballast_memory_protection_bytes", Gauge, Bytes,
        &["namespace", "pod", "container", "kind"],
        "Settings memory.min, memory.low and memory.high as read back; absent where there is none.")
        .area(Memory).per(Cardinality::Container),
    agent("ballast_memory_relaxed", Gauge, Flag, CONTAINER,
        "Whether memory.high is lifted for now.").area(Memory).per(Cardinality::Container),
    agent("ballast_memory_reclaimed_bytes_total", Counter, Bytes, &["cause"],
        "Memory that the agent had the kernel take back.").area(Memory),
    agent("ballast_node_memory_available_bytes", Gauge, Bytes, &["method"],
        "Available memory of the node by the way of measuring it.").area(Memory),
    agent("ballast_node_allocatable", Gauge, Labelled, &["resource", "unit"],
        "What pods may request together.").area(Memory),

    agent("ballast_pressure_stall_seconds_total", Counter, Seconds, &["resource", "kind", "scope"],
        "Time in which some or all tasks waited; kind `reclaim` is task time, where there is no PSI.")
        .area(Pressure),
    agent("ballast_pressure_stall_ratio", Gauge, Ratio, &["resource", "kind", "scope"],
        "Share of the last second or more in which some or all tasks waited.").area(Pressure),
    agent("ballast_pressure_episodes_total", Counter, Count, &["resource", "scope"],
        "Times that some task began to wait for a tenth of the time or more.").area(Pressure),
    agent("ballast_pressure_episode_seconds", LATENCY, Seconds, &["resource"],
        "Length of the episodes that are over.").area(Pressure),
    agent("ballast_pressure_wakeups_total", Counter, Count, &["source"],
        "What made the watcher of memory look.").area(Pressure),

    agent("ballast_cpu_stall_seconds_total", Counter, Seconds,
        &["namespace", "pod", "container", "cause"],
        "Time in which some task waited for a CPU: own_limit, as much of it as the container and its pod \
         were throttled on all CPUs together, is an upper bound, and contention, the rest, a lower one.")
        .area(Cpu).per(Cardinality::Container),
    agent("ballast_cpu_burst_limit_seconds", Gauge, Seconds, CONTAINER,
        "CPU time that may be saved up for a burst, cpu.max.burst as read back.")
        .area(Cpu).per(Cardinality::Container),
    agent("ballast_node_cpu_idle_ratio", Gauge, Ratio, &[],
        "Share of the node's CPU time between the last two sweeps that nothing ran.").area(Cpu),

    agent("ballast_eviction_headroom_ratio", Gauge, Ratio, &["signal", "kind"],
        "What is left above the threshold as a share of the capacity; below 0 the threshold is met.")
        .area(Eviction),
    agent("ballast_eviction_active", Gauge, Flag, &["signal"],
        "Whether a threshold of the signal is met.").area(Eviction),
    agent("ballast_eviction_signal_age_seconds", Gauge, Seconds, &["signal"],
        "Age of the reading that the signal was last decided by.").area(Eviction),
    agent("ballast_eviction_actions_total", Counter, Count,
        &["signal", "stage", "result", "dry_run"],
        "Steps taken against pressure, or only decided in a dry run.").area(Eviction),
    agent("ballast_eviction_pods_total", Counter, Count, &["signal", "qos"],
        "Evicted pods.").area(Eviction),
    agent("ballast_eviction_returned_pods_total", Counter, Count, &[],
        "Evicted pods that began anew when the node was no longer short.").area(Eviction),
    agent("ballast_eviction_last_timestamp_seconds", Gauge, Timestamp, &["signal", "stage"],
        "Time of the last step that was taken; absent until the first.").area(Eviction),
    agent("ballast_eviction_blocked_total", Counter, Count, &["signal", "reason"],
        "Passes in which a threshold was met and nobody was evicted.").area(Eviction),
    agent("ballast_eviction_last_blocked_timestamp_seconds", Gauge, Timestamp,
        &["signal", "reason"], "Time of the last of them; absent until the first.").area(Eviction),
    agent("ballast_eviction_expected_bytes_total", Counter, Bytes, &["signal"],
        "What evictions whose effect was measured were expected to free.").area(Eviction),
    agent("ballast_eviction_freed_bytes_total", Counter, Bytes, &["signal"],
        "What those evictions freed.").area(Eviction),
    agent("ballast_eviction_reaction_seconds", LATENCY, Seconds, &["signal", "stage"],
        "From the crossing of a hard threshold, as far as readings tell, to the effect; for those that \
         go after the first, and for other causes, from the reading that asked for it.")
        .area(Eviction),

    agent("ballast_bpf_program_attached", Gauge, Flag, &["program", "hook"],
        "Whether an eBPF program is attached; with the hook `stand_in` the kernel refused it and others find out the same.").area(Ebpf),
    agent("ballast_bpf_program_runs_total", Counter, Count, &["program"],
        "Runs of an eBPF program; only with the kernel's run statistics on.").area(Ebpf),
    agent("ballast_bpf_program_run_seconds_total", Counter, Seconds, &["program"],
        "Run time of an eBPF program; only with the kernel's run statistics on.").area(Ebpf),
    agent("ballast_bpf_events_total", Counter, Count, &["stream"],
        "Events handled.").area(Ebpf),
    agent("ballast_bpf_events_lost_total", Counter, Count, &["stream", "reason"],
        "Events lost in the kernel since the maps were made.").area(Ebpf),
    agent("ballast_bpf_last_loss_timestamp_seconds", Gauge, Timestamp, &["stream"],
        "When a loss was last seen; absent until the first.").area(Ebpf),
    agent("ballast_bpf_ring_high_water_ratio", Gauge, Ratio, &["stream"],
        "Largest part of a ring that was taken without a pause since the previous scrape.").area(Ebpf),
    agent("ballast_bpf_event_age_seconds", LATENCY, Seconds, &["stream"],
        "From the event in the kernel to its handling; those of processes, cgroups and reclaim \
         wait up to a second where nobody waits for them.").area(Ebpf),
    agent("ballast_bpf_map_entries", Gauge, Count, &["map"],
        "Entries in an eBPF map.").area(Ebpf),
    agent("ballast_bpf_map_capacity", Gauge, Count, &["map"],
        "Entries that fit into an eBPF map.").area(Ebpf),
    per_container("ballast_process_forks_total", Ebpf, CONTAINER,
        "Processes begun in the container."),
    per_container("ballast_process_execs_total", Ebpf, CONTAINER,
        "Programs begun in the container."),
    per_container("ballast_process_exits_total", Ebpf, &["namespace", "pod", "container", "how"],
        "Processes ended in the container."),
    per_container("ballast_pids_limit_hits_total", Ebpf, CONTAINER,
        "Forks that the limit of processes refused. On cgroup v2 from Linux 6.11 on those that the pod's \
         limit refused count for the container of a pod that has one; of several the kernel does not say \
         which."),

    agent("ballast_state_saves_total", Counter, Count, &["result"],
        "Saves of the agent's state file.").area(State),
    agent("ballast_state_save_duration_seconds", LATENCY, Seconds, &[],
        "Duration of a save, both syncs included.").area(State),
    agent("ballast_state_restores_total", Counter, Count, &["result"],
        "How the records of pods were read at a start, and the files of managers that had to be rebuilt.").area(State),
    agent("ballast_api_requests_total", Counter, Count, &["verb", "resource", "code"],
        "Questions to the API server, and to kubelet for `nodes/pods` and `nodes/configz`, by the answer: `2xx`, the HTTP status of a refusal, `none` for no answer in time.")
        .area(Api),
    agent("ballast_api_request_duration_seconds", LATENCY, Seconds, &["verb", "resource"],
        "To the end of the answer; of a watch, to its beginning.").area(Api),
    agent("ballast_api_last_success_timestamp_seconds", Gauge, Timestamp, &["resource"],
        "When the API server was last heard of pods, which a watch is every minute, or kubelet (`nodes/pods`), or an Event was taken; absent until the first time.")
        .area(Api),
    agent("ballast_api_events_total", Counter, Count, &["reason", "result"],
        "OOM kills by what became of the Event that was to tell of them; folded ones were told by an Event of the node.")
        .area(Api),

    agent("ballast_kubelet_config_fields", Gauge, Count, &["handling"],
        "Fields set in the kubelet configuration by what the agent does with them.")
        .area(State),

    agent("ballast_record_bytes_total", Counter, Bytes, &[],
        "Bytes written to recordings; absent unless decisions are recorded.").area(State),
    agent("ballast_record_dropped_total", Counter, Count, &[],
        "Steps that are in no recording: the disk was too slow or refused them.").area(State),
    agent("ballast_record_oldest_timestamp_seconds", Gauge, Timestamp, &[],
        "When the oldest recording that is kept was begun.").area(State),

    agent("ballast_device_allocated", Gauge, Count, &["resource", "numa_node"],
        "Devices that containers hold; one of several NUMA nodes counts at each.")
        .area(Devices).per(Cardinality::Resource),
    agent("ballast_device_unhealthy", Gauge, Count, &["resource", "numa_node"],
        "Devices that may not be given out; one of several NUMA nodes counts at each. Absent beside \
         a kubelet, whose plugins tell nobody else.")
        .area(Devices).per(Cardinality::Resource),
    agent("ballast_device_plugin_refusals_total", Counter, Count, &["reason"],
        "Device plugins that were not taken, or were dropped, by what they did wrong.")
        .area(Devices),

    agent("kubelet_node_name", Gauge, Flag, &["node"],
        "The name of the node; always 1.").of(Duty::Pods),
    agent("kubelet_running_pods", Gauge, Count, &[],
        "Pods with a container that runs.").of(Duty::Pods),
    agent("kubelet_running_containers", Gauge, Count, &["container_state"],
        "Containers by state.").of(Duty::Pods),
    agent("kubelet_started_pods_total", Counter, Count, &[],
        "Pods whose cgroup was made.").of(Duty::Pods),
    agent("kubelet_started_containers_total", Counter, Count, &["container_type"],
        "Containers that were started or were to be.").of(Duty::Pods),
    agent("kubelet_started_containers_errors_total", Counter, Count, &["container_type", "code"],
        "Containers that could not be started.").of(Duty::Pods),
    agent("kubelet_admission_rejections_total", Counter, Count, &["reason"],
        "Pods that were refused.").of(Duty::Pods),
    agent("kubelet_cgroup_version", Gauge, Count, &[],
        "Version of the cgroup hierarchy, 1 or 2.").of(Duty::Cgroups),
    agent("kubelet_cgroup_manager_duration_seconds", KUBELET, Seconds, &["operation_type"],
        "Time that it took to make, change or remove one cgroup.").of(Duty::Cgroups),
    agent("kubelet_cpu_manager_pinning_requests_total", Counter, Count, &[],
        "Allocations of CPUs to containers that are to have some alone.").of(Duty::Cpus),
    agent("kubelet_cpu_manager_pinning_errors_total", Counter, Count, &[],
        "Those of them that failed.").of(Duty::Cpus),
    agent("kubelet_cpu_manager_shared_pool_size_millicores", Gauge, Count, &[],
        "CPUs that no container has alone and that are not reserved, in thousandths.")
        .of(Duty::Cpus),
    agent("kubelet_cpu_manager_exclusive_cpu_allocation_count", Gauge, Count, &[],
        "CPUs that containers have alone.").of(Duty::Cpus).named(Old),
    agent("kubelet_cpu_manager_exclusive_cpu_allocated", Gauge, Count, &[],
        "CPUs that containers have alone.").of(Duty::Cpus).named(New),
    agent("kubelet_cpu_manager_allocation_per_numa", Gauge, Count, &["numa_node"],
        "CPUs of a NUMA node that containers have alone.").of(Duty::Cpus),
    agent("kubelet_memory_manager_pinning_requests_total", Counter, Count, &[],
        "Allocations of memory to containers of Guaranteed pods.").of(Duty::Memory),
    agent("kubelet_memory_manager_pinning_errors_total", Counter, Count, &[],
        "Those of them that failed.").of(Duty::Memory),
    agent("kubelet_topology_manager_admission_requests_total", Counter, Count, &[],
        "Admissions of pods.").of(Duty::Topology),
    agent("kubelet_topology_manager_admission_errors_total", Counter, Count, &[],
        "Admissions of pods that could not get what they ask for.").of(Duty::Topology),
    agent("kubelet_topology_manager_admission_duration_ms",
        Type::Histogram(Buckets::KubeletMillis), Milliseconds, &[],
        "Time to decide one admission.").of(Duty::Topology).named(Old),
    agent("kubelet_topology_manager_admission_duration_seconds", LATENCY, Seconds, &[],
        "Time to decide one admission.").of(Duty::Topology).named(New),
    agent("kubelet_container_aligned_compute_resources_count", Counter, Count,
        &["boundary", "scope"], "Allocations within the boundary that was asked for.")
        .of(Duty::Topology).named(Old),
    agent("kubelet_container_aligned_compute_resources_total", Counter, Count,
        &["boundary", "scope"], "Allocations within the boundary that was asked for.")
        .of(Duty::Topology).named(New),
    agent("kubelet_container_aligned_compute_resources_failure_count", Counter, Count,
        &["boundary", "scope"], "Allocations that are not within the boundary that was asked for.")
        .of(Duty::Topology).named(Old),
    agent("kubelet_container_aligned_compute_resources_failure_total", Counter, Count,
        &["boundary", "scope"], "Allocations that are not within the boundary that was asked for.")
        .of(Duty::Topology).named(New),
    agent("kubelet_memory_qos_node_memory_min_bytes", Gauge, Bytes, &[],
        "What memory.min promises Guaranteed pods together; absent without memory QoS in tiers.")
        .of(Duty::Cgroups),
    agent("kubelet_memory_qos_node_memory_low_bytes", Gauge, Bytes, &[],
        "What memory.low promises Burstable pods together; absent without memory QoS in tiers.")
        .of(Duty::Cgroups),
    agent("kubelet_evictions", Counter, Count, &["eviction_signal"],
        "Evicted pods by signal.").of(Duty::Eviction).named(Old),
    agent("kubelet_evictions_total", Counter, Count, &["eviction_signal"],
        "Evicted pods by signal.").of(Duty::Eviction).named(New),
    agent("kubelet_preemptions", Counter, Count, &["preemption_signal"],
        "Pods that have made room for a critical one, by the first resource that was short.")
        .of(Duty::Eviction).per(Cardinality::Resource),
    agent("kubelet_eviction_stats_age_seconds", KUBELET, Seconds, &["eviction_signal"],
        "Age of the reading that a pod was evicted by.").of(Duty::Eviction),
    agent("kubelet_device_plugin_registration_total", Counter, Count, &["resource_name"],
        "Device plugins that registered.").of(Duty::Devices).per(Cardinality::Resource),
    agent("kubelet_device_plugin_alloc_duration_seconds", KUBELET, Seconds, &["resource_name"],
        "Duration of the calls to Allocate of a device plugin.")
        .of(Duty::Devices).per(Cardinality::Resource),
    pod_resources("kubelet_pod_resources_endpoint_requests_total",
        "Requests to the pod resources API."),
    pod_resources("kubelet_pod_resources_endpoint_requests_list",
        "Requests of List to the pod resources API."),
    pod_resources("kubelet_pod_resources_endpoint_requests_get",
        "Requests of Get to the pod resources API."),
    pod_resources("kubelet_pod_resources_endpoint_requests_get_allocatable",
        "Requests of GetAllocatableResources to the pod resources API."),
    pod_resources("kubelet_pod_resources_endpoint_errors_list",
        "Requests of List to the pod resources API that failed."),
    pod_resources("kubelet_pod_resources_endpoint_errors_get",
        "Requests of Get to the pod resources API that failed."),
    pod_resources("kubelet_pod_resources_endpoint_errors_get_allocatable",
        "Requests of GetAllocatableResources to the pod resources API that failed."),
];

#[cfg(test)]
mod tests;
