//! Whether a pod may run on this node, and where its containers are put: the outcome of an
//! admission, and the reasons for it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a pod was refused, under the names that kubelet gives `status.reason` (spec placement 0.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum RefusalReason {
    /// The NUMA nodes that its resources could come from do not fit together.
    TopologyAffinityError,
    /// Its CPUs cannot be whole cores, as `full-pcpus-only` has it.
    #[serde(rename = "SMTAlignmentError")]
    SmtAlignmentError,
    /// A container without exclusive CPUs would have none of the pod's.
    EmptyPodSharedPoolError,
    /// Any other failure to give it what it asks for.
    UnexpectedAdmissionError,
}

impl RefusalReason {
    pub const ALL: &[Self] = &[
        Self::TopologyAffinityError,
        Self::SmtAlignmentError,
        Self::EmptyPodSharedPoolError,
        Self::UnexpectedAdmissionError,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopologyAffinityError => "TopologyAffinityError",
            Self::SmtAlignmentError => "SMTAlignmentError",
            Self::EmptyPodSharedPoolError => "EmptyPodSharedPoolError",
            Self::UnexpectedAdmissionError => "UnexpectedAdmissionError",
        }
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A pod that does not run here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{reason}: {message}")]
pub struct Refusal {
    pub reason: RefusalReason,
    /// Kubelet's text.
    pub message: String,
    /// The container that could not be placed; `None`: the pod as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// Whether a pod may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Admission {
    /// Not decided yet, or waiting for what it needs.
    #[default]
    Open,
    Admitted,
    /// For good: the pod has failed, as in kubelet.
    Refused(Refusal),
}
