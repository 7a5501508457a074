//! What can go wrong. The texts that kubelet has for a case are kubelet's: users search for them.

use crate::model::admission::RefusalReason;
use crate::model::numa::NumaNodeTooLarge;
use crate::model::pod::PodUid;
use crate::model::topology::NumaNodeId;

/// The settings do not fit the machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryConfigError {
    #[error("[memorymanager] you should specify the system reserved memory")]
    NothingReserved,
    #[error(transparent)]
    NumaNode(#[from] NumaNodeTooLarge),
    /// Not for `compat: kubelet`, where the table wraps around.
    #[error(
        "NUMA node {numa_node} has {available} bytes of {resource} that can be reserved, and \
         reservedMemory takes {reserved}; right would be at most what it has"
    )]
    ReservedTooMuch {
        numa_node: NumaNodeId,
        resource: String,
        reserved: u64,
        available: u64,
    },
}

/// Memory that cannot be given. The pod is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    #[error("[memorymanager] failed to represent quantity as int64")]
    NotInt64,
    #[error(
        "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
    )]
    NoDefaultAffinity,
    #[error("[memorymanager] failed to find the default preferred hint")]
    NoDefaultPreferredHint,
    #[error("[memorymanager] failed to find NUMA nodes to extend the current topology hint")]
    CannotExtendHint,
    #[error("[memorymanager] failed to find the extended preferred hint")]
    NoExtendedPreferredHint,
    #[error("[memorymanager] preferred hint violates NUMA node allocation")]
    ViolatesGroups,
    #[error(
        "pod rejected, sum of exclusive container {resource} requests equals pod budget, leaving no memory for shared containers"
    )]
    NothingLeftToShare { resource: String },
    #[error("pod rejected, pod has shared init containers but no {resource} available for them")]
    NothingForInitContainers { resource: String },
}

impl MemoryError {
    /// The pod's `reason` (pkg/kubelet/cm/admission/errors.go, v1.36).
    pub fn reason(&self) -> RefusalReason {
        match self {
            Self::NothingLeftToShare { .. } | Self::NothingForInitContainers { .. } => {
                RefusalReason::EmptyPodSharedPoolError
            }
            _ => RefusalReason::UnexpectedAdmissionError,
        }
    }
}

/// A restored state that is not of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryStateError {
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoMachine,
    #[error("[memorymanager] {0}")]
    Assignment(MemoryStateFault),
    #[error("[memorymanager] the expected machine state is different from the real one")]
    Differs,
}

/// An assignment that this machine cannot hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("(pod: {pod}, container: {}) {misfit}", container.as_deref().unwrap_or_default())]
pub struct MemoryStateFault {
    pub pod: PodUid,
    /// `None`: what the pod holds as a whole.
    pub container: Option<String>,
    pub misfit: Misfit,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    #[error("the memory assignment uses the NUMA that does not exist")]
    UnknownNumaNode,
    #[error("the memory assignment uses memory resource that does not exist")]
    UnknownResource,
    /// Beside what the others hold.
    #[error("the memory assignment needs {missing} bytes of {resource} more than there are")]
    TooMuch { resource: String, missing: u64 },
}
