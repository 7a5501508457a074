//! Values of enumerated labels. Each is known before it happens, so no input can make a new series.

use crate::model::api_server::ApiAnswer;
use crate::model::event::{AttributionMethod, ExitStatus, KernelEvent};
use crate::model::eviction::{EvictionCause, MemoryMethod, Signal, StarvedResource};
use crate::model::pod::QosClass;

/// An enum whose variants are the values of one label.
macro_rules! label {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }
    };
}

label!(
    /// How the API server answers: well, by a refusal that is to be expected, by another, or not at all.
    ApiCode {
        Good => "2xx",
        Unauthorized => "401",
        Forbidden => "403",
        NotFound => "404",
        Conflict => "409",
        Gone => "410",
        TooManyRequests => "429",
        Server => "5xx",
        Other => "other",
        None => "none",
    }
);

impl ApiCode {
    pub const fn of(answer: ApiAnswer) -> Self {
        match answer {
            ApiAnswer::Good => Self::Good,
            ApiAnswer::Refused(401) => Self::Unauthorized,
            ApiAnswer::Refused(403) => Self::Forbidden,
            ApiAnswer::Refused(404) => Self::NotFound,
            ApiAnswer::Refused(409) => Self::Conflict,
            ApiAnswer::Refused(410) => Self::Gone,
            ApiAnswer::Refused(429) => Self::TooManyRequests,
            ApiAnswer::Refused(500..=599) => Self::Server,
            ApiAnswer::Refused(_) => Self::Other,
            ApiAnswer::None => Self::None,
        }
    }
}

label!(
    /// What becomes of what an Event is to tell.
    EventResult {
        Sent => "sent",
        Folded => "folded",
        Dropped => "dropped",
    }
);

label!(
    /// What woke the loop.
    Trigger {
        Timer => "timer",
        Event => "event",
    }
);

label!(
    /// A phase of one pass.
    Phase {
        Gather => "gather",
        Decide => "decide",
        Apply => "apply",
        Observe => "observe",
    }
);

label!(
    /// A page of metrics or statistics.
    Endpoint {
        Metrics => "metrics",
        Cadvisor => "cadvisor",
        Resource => "resource",
        Summary => "summary",
    }
);

label!(
    /// What `ballast_objects` counts.
    ObjectKind {
        Pod => "pod",
        Container => "container",
        Cgroup => "cgroup",
        /// A controller of pods, or a pod without one.
        Workload => "workload",
    }
);

label!(
    /// Where readings come from.
    Source {
        /// Interface files of cgroups.
        Cgroup => "cgroup",
        /// The manifest directory.
        Manifests => "manifests",
        /// Stalls of the node.
        Psi => "psi",
        /// Counters of the eBPF programs.
        Bpf => "bpf",
    }
);

label!(
    /// Why a reading failed.
    SourceFault {
        /// The kernel refused or failed.
        Io => "io",
        /// It was read and not understood.
        Parse => "parse",
    }
);

label!(
    /// Outcome of one write of a cgroup file.
    WriteResult {
        Changed => "changed",
        /// The value was there already, so nothing was written.
        Same => "same",
        /// The kernel answered with an error that says no: EINVAL, EPERM, EBUSY.
        Refused => "refused",
        /// The cgroup went away.
        Gone => "gone",
        Error => "error",
    }
);

label!(
    /// A cgroup operation whose duration is measured.
    CgroupOp {
        Write => "write",
        Mkdir => "mkdir",
        Rmdir => "rmdir",
        /// One round of signals, freezing and thawing included.
        Kill => "kill",
    }
);

label!(
    /// Why a value differs from what was decided.
    DriftCause {
        /// Another program wrote it.
        Foreign => "foreign",
        /// The agent was away.
        Restart => "restart",
        /// The cgroup or the decision is new.
        New => "new",
    }
);

label!(
    /// What `ballast_reconcile_lag_seconds` measures.
    LagKind {
        Pod => "pod",
        Container => "container",
    }
);

label!(
    /// Level of a cgroup below the agent's root.
    CgroupLevel {
        Kubepods => "kubepods",
        Qos => "qos",
        Pod => "pod",
        Container => "container",
    }
);

label!(
    /// An eBPF event stream.
    Stream {
        Oom => "oom",
        Process => "process",
        Cgroup => "cgroup",
        Pressure => "pressure",
    }
);

impl Stream {
    pub const fn of(event: &KernelEvent) -> Self {
        match event {
            KernelEvent::Oom(_) => Self::Oom,
            KernelEvent::Process(_) => Self::Process,
            KernelEvent::Cgroup(_) => Self::Cgroup,
            KernelEvent::Stall(_) => Self::Pressure,
        }
    }
}

label!(
    /// Why the kernel side lost an event.
    LossReason {
        /// The ring had no room; for stalls also the map of totals.
        RingFull => "ring_full",
        /// The record is none that a program writes.
        Malformed => "malformed",
        /// An earlier agent of another version left it.
        UnknownFormat => "unknown_format",
    }
);

label!(
    /// Why an OOM kill was not reported.
    MissedCause {
        NoPrograms => "no_programs",
        Unwatched => "unwatched",
        Lost => "lost",
    }
);

label!(
    /// How an eBPF program hangs in the kernel.
    Hook {
        TpBtf => "tp_btf",
        RawTracepoint => "raw_tp",
        Fentry => "fentry",
        Fexit => "fexit",
        Kprobe => "kprobe",
        Iterator => "iter",
        /// On a cgroup.
        Cgroup => "cgroup",
        /// Refused by the kernel, and others find out the same.
        StandIn => "stand_in",
        /// Wanted, and not attached.
        None => "none",
    }
);

label!(
    /// What has ended and is shown for a while.
    EndedKind {
        Pod => "pod",
        Container => "container",
        /// The last reading of a container, which was gone before it could be read.
        Reading => "reading",
    }
);

label!(
    /// How a process ended.
    ExitHow {
        Ok => "ok",
        Error => "error",
        Signal => "signal",
    }
);

impl ExitHow {
    pub const fn of(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Code(0) => Self::Ok,
            ExitStatus::Code(_) => Self::Error,
            ExitStatus::Signal { .. } => Self::Signal,
        }
    }
}

label!(
    /// Outcome of saving the state.
    SaveResult {
        Ok => "ok",
        Error => "error",
    }
);

label!(
    /// How the state file was read at start.
    RestoreResult {
        Loaded => "loaded",
        /// A part was unusable and made anew from the kernel.
        Rebuilt => "rebuilt",
        /// There was none.
        Empty => "empty",
    }
);

label!(
    /// What the agent does with a field of the kubelet configuration. A field that it refuses
    /// keeps it from starting.
    FieldHandling {
        Honoured => "honoured",
        Ignored => "ignored",
    }
);

label!(
    /// Where a process outside pods lives.
    HostSlice {
        System => "system",
        User => "user",
        /// A container runtime or kubelet.
        Runtime => "runtime",
        /// This agent.
        Agent => "agent",
        Other => "other",
    }
);

impl HostSlice {
    /// By the path from the cgroup mount, as systemd, OpenRC and Talos lay a host out.
    pub fn of_path(cgroup_path: Option<&str>) -> Self {
        const OF_OPENRC: &str = "openrc.";
        const SERVICES: [&str; 15] = [
            "containerd",
            "crio",
            "cri-docker",
            "docker",
            "edgecore",
            "k0scontroller",
            "k0sworker",
            "k3s",
            "k3s-agent",
            "kubelet",
            "microshift",
            "rke2-agent",
            "rke2-server",
            "snap.microk8s.daemon-containerd",
            "snap.microk8s.daemon-kubelite",
        ];
        const GROUPS: [&str; 4] = [
            "kubelet.slice",
            "podruntime",
            "podruntime.slice",
            "runtime.slice",
        ];
        let is_runtime = |name: &str| {
            let of_systemd = name.strip_suffix(".service");
            let service = of_systemd.or_else(|| name.strip_prefix(OF_OPENRC));
            GROUPS.contains(&name) || service.is_some_and(|it| SERVICES.contains(&it))
        };
        let Some(path) = cgroup_path else {
            return Self::Other;
        };
        let mut components = path.split('/').filter(|it| !it.is_empty());
        if components.clone().any(|it| it == "ballast.service") {
            return Self::Agent;
        }
        if components.clone().any(is_runtime) {
            return Self::Runtime;
        }
        match components.next() {
            Some("system.slice" | "init.scope" | "system" | "init") => Self::System,
            Some(it) if it.starts_with(OF_OPENRC) => Self::System,
            Some("user.slice") => Self::User,
            _ => Self::Other,
        }
    }
}

label!(
    /// What became of the forensic record of a kill.
    RecordResult {
        Kept => "kept",
        /// It is in the record of an earlier kill by the same limit.
        Coalesced => "coalesced",
        Dropped => "dropped",
    }
);

/// The values of [`qos`].
pub(super) const QOS: [&str; 4] = ["guaranteed", "burstable", "besteffort", "none"];

/// The values of [`qos`] in pods.
pub(super) const QOS_CLASSES: [&str; 3] = ["guaranteed", "burstable", "besteffort"];

/// `qos` of a victim; `none` outside pods.
pub(super) const fn qos(class: Option<QosClass>) -> &'static str {
    match class {
        Some(QosClass::Guaranteed) => "guaranteed",
        Some(QosClass::Burstable) => "burstable",
        Some(QosClass::BestEffort) => "besteffort",
        None => "none",
    }
}

label!(
    /// What tasks wait for.
    PressureResource {
        Cpu => "cpu",
        Memory => "memory",
        Io => "io",
    }
);

label!(
    /// Whose tasks wait.
    PressureScope {
        Node => "node",
        Kubepods => "kubepods",
        Guaranteed => "guaranteed",
        Burstable => "burstable",
        Besteffort => "besteffort",
        /// What runs outside pods.
        System => "system",
    }
);

label!(
    /// Why a container waits for CPUs.
    CpuStallCause {
        /// Its limit is used up for the period.
        OwnLimit => "own_limit",
        /// Others run.
        Contention => "contention",
    }
);

label!(
    /// Why a container was given other CPUs or memory.
    MoveReason {
        /// CPUs went or came.
        Hardware => "hardware",
        /// What an earlier agent had given it does not fit, or is not known.
        Restart => "restart",
    }
);

label!(
    /// How many NUMA nodes, packages, caches or cores the CPUs of a container lie in.
    Boundary {
        Core => "core",
        Uncore => "uncore",
        Socket => "socket",
        Numa => "numa",
    }
);

label!(
    /// An operation of kubelet's cgroup manager, on one cgroup.
    KubeletCgroupOp {
        Create => "create",
        Update => "update",
        Destroy => "destroy",
    }
);

label!(
    /// A state that kubelet tells containers by.
    KubeletContainerState {
        Created => "created",
        Exited => "exited",
        Running => "running",
        Unknown => "unknown",
    }
);

label!(
    /// A kind of container, in kubelet's words.
    KubeletContainerType {
        Container => "container",
        Init => "init_container",
    }
);

label!(
    /// Why the agent had memory reclaimed.
    ReclaimCause {
        /// Before anybody is evicted.
        PreEviction => "pre_eviction",
    }
);

label!(
    /// A step against pressure, mildest first.
    EvictionStage {
        /// `memory.high` is lifted from pods that stall below their request.
        Relax => "relax",
        /// `memory.high` slows down the first candidate.
        Throttle => "throttle",
        /// Page cache is taken back.
        Reclaim => "reclaim",
        /// BestEffort pods stand still.
        Freeze => "freeze",
        /// With the time that it has to end.
        Evict => "evict",
        /// At once.
        Kill => "kill",
    }
);

label!(
    /// How a step against pressure went.
    EvictionResult {
        Done => "done",
        /// With less effect than it was meant to have.
        Partial => "partial",
        Failed => "failed",
    }
);

label!(
    /// Why nobody is evicted though a threshold is met.
    BlockedReason {
        /// All who could go are critical.
        Critical => "critical",
        /// The last eviction was too short a time ago.
        Cooldown => "cooldown",
        /// What evictions give back is taken outside the pods, or they could not give enough.
        Ineffective => "ineffective",
        /// A pod is on its way out; what its end gives is to be seen first.
        Rate => "rate",
        /// There is no pod, or of none it is known what it uses.
        NoCandidate => "no_candidate",
        /// There is no reading, or only the one that was acted upon before.
        Stale => "stale",
    }
);

/// `signal` of what is done against pressure: a signal, a limit of local storage, or stall.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionSignal(&'static str);

impl EvictionSignal {
    /// Sustained stall with little headroom.
    pub const STALL: Self = Self("memory.stall");

    /// Limits of local storage.
    const LIMITS: [Self; 3] = [
        Self("emptydirfs.limit"),
        Self("ephemeralpodfs.limit"),
        Self("ephemeralcontainerfs.limit"),
    ];

    pub(super) fn all() -> impl Iterator<Item = Self> {
        let signals = Signal::ALL.into_iter().map(Self::from);
        signals.chain(Self::LIMITS).chain([Self::STALL])
    }

    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// The stages that may come up for it, of those that a decision can lead to.
    pub(super) fn stages(self) -> &'static [EvictionStage] {
        let signal: Result<Signal, _> = self.0.parse();
        match signal.map(Signal::resource) {
            Ok(StarvedResource::Memory) => EvictionStage::ALL,
            Ok(StarvedResource::Pids) => &[EvictionStage::Evict, EvictionStage::Kill],
            Ok(StarvedResource::EphemeralStorage | StarvedResource::Inodes) => {
                &[EvictionStage::Evict]
            }
            Err(_) if self == Self::STALL => EvictionStage::ALL,
            Err(_) => &[EvictionStage::Evict],
        }
    }

    /// What it is short of is counted in bytes.
    pub(super) fn is_in_bytes(self) -> bool {
        let signal: Result<Signal, _> = self.0.parse();
        !matches!(
            signal.map(Signal::resource),
            Ok(StarvedResource::Inodes | StarvedResource::Pids)
        )
    }

    pub(super) fn is_limit(self) -> bool {
        Self::LIMITS.contains(&self)
    }
}

impl From<Signal> for EvictionSignal {
    fn from(signal: Signal) -> Self {
        Self(signal.as_str())
    }
}

impl From<&EvictionCause> for EvictionSignal {
    fn from(cause: &EvictionCause) -> Self {
        Self(cause.label())
    }
}

/// `method` of available memory.
pub(super) const MEMORY_METHODS: [(MemoryMethod, &str); 3] = [
    (MemoryMethod::WorkingSet, "working_set"),
    (MemoryMethod::Estimate, "estimate"),
    (MemoryMethod::Meminfo, "meminfo"),
];

label!(
    /// Version of the pod resources API.
    PodResourcesVersion {
        V1 => "v1",
        V1alpha1 => "v1alpha1",
    }
);

pub(super) const fn method(method: AttributionMethod) -> &'static str {
    match method {
        AttributionMethod::Exact => "exact",
        AttributionMethod::Derived => "derived",
        AttributionMethod::None => "none",
    }
}

/// The cgroup files that the agent writes, v1 and v2; `devices` for the device rules of either.
const FILES: &[&str] = &[
    "cgroup.freeze",
    "cgroup.kill",
    "cgroup.procs",
    "cgroup.subtree_control",
    "cpu.cfs_period_us",
    "cpu.cfs_quota_us",
    "cpu.max",
    "cpu.max.burst",
    "cpu.shares",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.mems",
    "cpuset.sched_load_balance",
    "devices",
    "freezer.state",
    "memory.high",
    "memory.limit_in_bytes",
    "memory.low",
    "memory.max",
    "memory.memsw.limit_in_bytes",
    "memory.min",
    "memory.oom.group",
    "memory.oom_control",
    "memory.swap.max",
    "memory.use_hierarchy",
    "pids.max",
];

/// Label `file` of a cgroup interface file: its name, `hugetlb` for every page size, `other` for a
/// name that is not on the list.
pub fn file(name: &str) -> &'static str {
    if name.starts_with("hugetlb.") {
        return "hugetlb";
    }
    FILES
        .iter()
        .find(|it| **it == name)
        .copied()
        .unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::eviction::StorageLimit;

    #[test]
    fn a_file_outside_the_list_makes_no_new_value() {
        for (name, expected) in [
            ("memory.max", "memory.max"),
            ("hugetlb.2MB.max", "hugetlb"),
            ("hugetlb.1GB.limit_in_bytes", "hugetlb"),
            ("io.weight", "other"),
            ("", "other"),
        ] {
            assert_eq!(file(name), expected, "{name:?}");
        }
    }

    #[test]
    fn every_cause_of_an_eviction_is_known_before_it_happens() {
        let limits = [
            StorageLimit::EmptyDir { volume: "a".into() },
            StorageLimit::Pod,
            StorageLimit::Container {
                container: "a".into(),
            },
        ];
        let limits = limits.map(|limit| EvictionCause::LocalStorage { limit });
        for cause in limits.iter().chain([&EvictionCause::Stall]) {
            let signal = EvictionSignal::from(cause);
            assert!(EvictionSignal::all().any(|it| it == signal), "{cause:?}");
        }
        assert_eq!(
            EvictionSignal::from(&EvictionCause::Stall),
            EvictionSignal::STALL
        );
        assert_eq!(EvictionSignal::all().count(), 13);
    }

    #[test]
    fn host_processes_are_told_apart_by_their_slice() {
        for (path, expected) in [
            (Some("/system.slice/sshd.service"), HostSlice::System),
            (Some("/system.slice/containerd.service"), HostSlice::Runtime),
            (Some("/system.slice/ballast.service"), HostSlice::Agent),
            (
                Some("/user.slice/user-0.slice/session-1.scope"),
                HostSlice::User,
            ),
            (
                Some("/system.slice/k3s-agent.service/containerd"),
                HostSlice::Runtime,
            ),
            (
                Some("/system.slice/snap.microk8s.daemon-kubelite.service"),
                HostSlice::Runtime,
            ),
            (Some("/podruntime.slice"), HostSlice::Runtime),
            (Some("/openrc.k3s"), HostSlice::Runtime),
            (Some("/openrc.sshd"), HostSlice::System),
            (Some("/podruntime/kubelet"), HostSlice::Runtime),
            (Some("/system/apid"), HostSlice::System),
            (Some("/init"), HostSlice::System),
            (Some("/k3s"), HostSlice::Other),
            (Some("/"), HostSlice::Other),
            (Some("/mine/system.slice"), HostSlice::Other),
            (None, HostSlice::Other),
        ] {
            assert_eq!(HostSlice::of_path(path), expected, "{path:?}");
        }
    }
}
