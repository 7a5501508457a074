//! Why the CPU manager refuses, in kubelet's words: other software matches on them.

use super::options::CpuOptionError;
use super::take::TakeError;
use super::topology::CpuTopologyError;
use crate::model::admission::RefusalReason;
use crate::model::cpuset::{CpuId, CpuSet};
use crate::model::pod::PodUid;

/// Why a pod gets no CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuError {
    /// With `full-pcpus-only`: not a number of whole cores.
    #[error(
        "SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {cpus_per_core}"
    )]
    SmtSize {
        requested: usize,
        cpus_per_core: usize,
    },
    /// With `full-pcpus-only`: `available` counts the CPUs of whole free cores.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {cpus_per_core}"
    )]
    SmtFree {
        available: usize,
        requested: usize,
        cpus_per_core: usize,
    },
    /// The containers with exclusive CPUs leave nothing of the pod's CPUs to the others.
    #[error(
        "pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers"
    )]
    EmptyPodSharedPool,
    /// The sidecars leave nothing of the pod's CPUs to an init container without exclusive ones.
    #[error("pod rejected, pod has shared init containers but no cpus available for them")]
    EmptyPodInitPool,
    /// With `strict-cpu-reservation`: nothing would be left to containers without CPUs of their own.
    #[error("{requested} cpus are all that containers without cpus of their own have")]
    LastShared { requested: usize },
    #[error(transparent)]
    Take(#[from] TakeError),
}

impl CpuError {
    pub const fn reason(&self) -> RefusalReason {
        match self {
            Self::SmtSize { .. } | Self::SmtFree { .. } => RefusalReason::SmtAlignmentError,
            Self::EmptyPodSharedPool | Self::EmptyPodInitPool => {
                RefusalReason::EmptyPodSharedPoolError
            }
            Self::LastShared { .. } | Self::Take(_) => RefusalReason::UnexpectedAdmissionError,
        }
    }
}

/// Why there can be no CPU manager with these settings on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuConfigError {
    #[error(transparent)]
    Topology(#[from] CpuTopologyError),
    #[error(transparent)]
    Option(#[from] CpuOptionError),
    #[error(
        "topology manager policy single-numa-node is incompatible with CPU manager policy option align-by-socket"
    )]
    AlignBySocketPolicy,
    #[error(
        "CPU manager policy option align-by-socket is not compatible with hardware that has more sockets ({n_packages}) than NUMA nodes ({n_numa_nodes})"
    )]
    AlignBySocketTopology {
        n_packages: usize,
        n_numa_nodes: usize,
    },
    #[error(
        "the static policy requires systemreserved.cpu + kubereserved.cpu to be greater than zero"
    )]
    NothingReserved,
    #[error("unable to reserve the required amount of CPUs (size of {cpus} did not equal {n})")]
    ReservedCount { cpus: CpuSet, n: usize },
    #[error(
        "unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {cpu}"
    )]
    ReservedUnknown { cpu: CpuId },
}

/// Why a restored state does not fit; see `CpuManager::start`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuStateError {
    #[error("default cpuset cannot be empty")]
    EmptyPool,
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{pool}\"")]
    ReservedNotInPool { reserved: CpuSet, pool: CpuSet },
    #[error(
        "some of strictly reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{pool}\""
    )]
    ReservedInPool { reserved: CpuSet, pool: CpuSet },
    #[error(
        "pod: {pod}, container: {container} cpuset: \"{cpus}\" overlaps with default cpuset \"{pool}\""
    )]
    InPool {
        pod: PodUid,
        container: String,
        cpus: CpuSet,
        pool: CpuSet,
    },
    #[error(
        "current set of available CPUs \"{machine}\" doesn't match with CPUs in state \"{state}\""
    )]
    OtherCpus { machine: CpuSet, state: CpuSet },
}

/// What could not be kept of a restored state; see `CpuManager::adopt`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuStateFault {
    /// The assignment is dropped: its container runs in the shared pool until it is placed anew.
    #[error("pod {pod}, {}CPUs {cpus} are given up: {why}", container.as_ref().map(|it| format!("container {it}, ")).unwrap_or_default())]
    Dropped {
        pod: PodUid,
        /// `None`: the CPUs of the pod as a whole, its containers' among them.
        container: Option<String>,
        cpus: CpuSet,
        why: Misfit,
    },
    /// The shared pool was another.
    #[error("the shared pool is {is}, and not {was}")]
    Pool { was: CpuSet, is: CpuSet },
    /// The CPUs that the agent would reserve by itself are held by pods: others are reserved.
    #[error("CPUs {is} are reserved in place of {was}, which pods hold")]
    Reserved { was: CpuSet, is: CpuSet },
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("there are none")]
    Empty,
    #[error("{0} are not online")]
    Offline(CpuSet),
    #[error("{0} are reserved")]
    Reserved(CpuSet),
    /// Of a pod as a whole.
    #[error("its containers do not divide them")]
    Division,
    #[error("{cpus} belong to pod {pod}")]
    HeldBy { pod: PodUid, cpus: CpuSet },
}
