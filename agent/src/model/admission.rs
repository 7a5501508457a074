//! Whether a pod may run on this node, and where its containers are put: the outcome of an
//! admission, and the reasons for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;
use super::eviction::EVICTED;
use super::numa::Hint;
use super::placement::MemoryBlock;
use super::pod::PodUid;

/// A larger admission record is not kept: the pod runs all the same, and is explained without it.
pub const MAX_RECORD_BYTES: u64 = 8 << 20;

/// Why a pod was refused, under the names that kubelet gives `status.reason`
/// (pkg/kubelet/cm/admission/errors.go, pkg/kubelet/lifecycle/predicate.go and others, v1.36).
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
    /// The node is under pressure.
    Evicted,
    /// `maxPods` and `podsPerCore`.
    #[serde(rename = "OutOfpods")]
    OutOfPods,
    #[serde(rename = "OutOfcpu")]
    OutOfCpu,
    #[serde(rename = "OutOfmemory")]
    OutOfMemory,
    #[serde(rename = "OutOfephemeral-storage")]
    OutOfEphemeralStorage,
    /// Of some size, which the message names.
    #[serde(rename = "OutOfhugepages")]
    OutOfHugepages,
    /// A resource that is not Kubernetes' own, which the message names.
    OutOfExtendedResources,
    /// Node selector or node affinity.
    NodeAffinity,
    NodeName,
    /// A port of the host that another pod has.
    NodePorts,
    TaintToleration,
    #[serde(rename = "PodOSNotSupported")]
    PodOsNotSupported,
    #[serde(rename = "PodOSSelectorNodeLabelDoesNotMatch")]
    PodOsSelectorNodeLabelDoesNotMatch,
    SupplementalGroupsPolicyNotSupported,
    /// A sysctl that is not allowed, or of a namespace that the pod shares with the host.
    SysctlForbidden,
}

impl RefusalReason {
    pub const ALL: &[Self] = &[
        Self::TopologyAffinityError,
        Self::SmtAlignmentError,
        Self::EmptyPodSharedPoolError,
        Self::UnexpectedAdmissionError,
        Self::Evicted,
        Self::OutOfPods,
        Self::OutOfCpu,
        Self::OutOfMemory,
        Self::OutOfEphemeralStorage,
        Self::OutOfHugepages,
        Self::OutOfExtendedResources,
        Self::NodeAffinity,
        Self::NodeName,
        Self::NodePorts,
        Self::TaintToleration,
        Self::PodOsNotSupported,
        Self::PodOsSelectorNodeLabelDoesNotMatch,
        Self::SupplementalGroupsPolicyNotSupported,
        Self::SysctlForbidden,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TopologyAffinityError => "TopologyAffinityError",
            Self::SmtAlignmentError => "SMTAlignmentError",
            Self::EmptyPodSharedPoolError => "EmptyPodSharedPoolError",
            Self::UnexpectedAdmissionError => "UnexpectedAdmissionError",
            Self::Evicted => EVICTED,
            Self::OutOfPods => "OutOfpods",
            Self::OutOfCpu => "OutOfcpu",
            Self::OutOfMemory => "OutOfmemory",
            Self::OutOfEphemeralStorage => "OutOfephemeral-storage",
            Self::OutOfHugepages => "OutOfhugepages",
            Self::OutOfExtendedResources => "OutOfExtendedResources",
            Self::NodeAffinity => "NodeAffinity",
            Self::NodeName => "NodeName",
            Self::NodePorts => "NodePorts",
            Self::TaintToleration => "TaintToleration",
            Self::PodOsNotSupported => "PodOSNotSupported",
            Self::PodOsSelectorNodeLabelDoesNotMatch => "PodOSSelectorNodeLabelDoesNotMatch",
            Self::SupplementalGroupsPolicyNotSupported => "SupplementalGroupsPolicyNotSupported",
            Self::SysctlForbidden => "SysctlForbidden",
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
    /// The pod has failed, as in kubelet.
    Refused(Refusal),
}

/// Who has a say in where a pod goes, in the order in which they are asked
/// (pkg/kubelet/cm/container_manager_linux.go, v1.36: `NewContainerManager`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    Devices,
    Cpu,
    Memory,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Devices => "devices",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        })
    }
}

/// Where a provider could take one resource from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "answer")]
pub enum Verdict {
    /// Any NUMA nodes are as good.
    Any,
    /// From none.
    Impossible,
    #[serde(rename_all = "camelCase")]
    OneOf {
        /// The least number of NUMA nodes that would do now.
        narrowest: u32,
        /// The number of NUMA nodes that the request would need on an empty machine.
        preferred_len: Option<u32>,
        /// The first masks of those that would do, the preferred ones before the others.
        first: Vec<Hint>,
        /// How many there are; `None`: not counted, the machine has too many NUMA nodes.
        n_masks: Option<u64>,
    },
}

/// What one provider said of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderVerdict {
    pub provider: Provider,
    pub resource: String,
    pub verdict: Verdict,
    /// The answer if no other provider had an opinion: a candidate that lost, where it is not the one
    /// that was chosen. `None`: not asked, the pod is in and the machine has many NUMA nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone: Option<Hint>,
    /// The answer if this one had no opinion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<Hint>,
}

/// One merge of hints: of a container, or of the pod in scope `pod`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Alignment {
    /// `None`: the pod as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    pub providers: Vec<ProviderVerdict>,
    pub merged: Hint,
    pub is_admitted: bool,
    /// The search was ended early: there may be a better answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// What a container holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerHoldings {
    pub container: String,
    /// Its CPUs alone; `None`: it runs in the shared pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<CpuSet>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryBlock>,
    /// Resource name to device ids.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, BTreeSet<String>>,
}

/// In words: `app: CPUs 2-3, memory on NUMA node 0, vendor.example/dev d1`.
impl fmt::Display for ContainerHoldings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.cpus.iter().map(|it| format!("CPUs {it}")));
        parts.extend(
            self.memory
                .iter()
                .map(|it| format!("{} on NUMA nodes {}", it.resource, it.numa)),
        );
        parts.extend(self.devices.iter().map(|(resource, ids)| {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            format!("{resource} {}", ids.join(" "))
        }));
        write!(f, "{}: {}", self.container, parts.join(", "))
    }
}

/// A change that would let a refused pod in, as things stand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "change")]
pub enum Remedy {
    /// The container asks for at most so many CPUs.
    FewerCpus { container: String, cpus: u64 },
    /// The container asks for at most so much.
    LessMemory { container: String, bytes: u64 },
    /// This pod is gone.
    WithoutPod { uid: PodUid },
    /// `topologyManagerPolicy: best-effort`.
    BestEffort,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FewerCpus { container, cpus } => {
                write!(f, "container {container} asks for {cpus} CPUs or fewer")
            }
            Self::LessMemory { container, bytes } => write!(
                f,
                "container {container} asks for {} of memory or less",
                crate::model::quantity::Quantity::from_bytes(*bytes)
            ),
            Self::WithoutPod { uid } => write!(f, "pod {uid} goes away"),
            Self::BestEffort => f.write_str("topologyManagerPolicy is best-effort"),
        }
    }
}

/// How an admission went. Made by a pure function of what stands beside it in an admission record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdmissionReport {
    /// Init containers in order, then the others; in scope `pod` one. Ends with the one that was
    /// refused. None with the topology policy `none`.
    pub alignments: Vec<Alignment>,
    /// What each container was given; those that hold nothing of their own are left out.
    pub holdings: Vec<ContainerHoldings>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Of a refusal: what would let it in, the smallest change first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remedies: Vec<Remedy>,
}

/// How often something was asked for, and how often in vain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    pub n: u64,
    /// Of them.
    pub n_failed: u64,
}

impl Attempts {
    pub fn add(&mut self, is_done: bool) {
        self.n += 1;
        self.n_failed += u64::from(!is_done);
    }
}

/// What an allocation may lie within, in kubelet's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlignmentBoundary {
    /// Whole cores.
    PhysicalCpu,
    /// One cache of the last level.
    UncoreCache,
    NumaNode,
}

impl AlignmentBoundary {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PhysicalCpu => "physical_cpu",
            Self::UncoreCache => "uncore_cache",
            Self::NumaNode => "numa_node",
        }
    }
}

/// What is to lie within a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlignmentScope {
    Container,
    Pod,
}

impl AlignmentScope {
    pub const ALL: &[Self] = &[Self::Container, Self::Pod];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
        }
    }

    /// Those that it can be held against.
    pub const fn boundaries(self) -> &'static [AlignmentBoundary] {
        match self {
            Self::Container => &[
                AlignmentBoundary::PhysicalCpu,
                AlignmentBoundary::UncoreCache,
                AlignmentBoundary::NumaNode,
            ],
            Self::Pod => &[AlignmentBoundary::NumaNode],
        }
    }
}

/// What an admission asked of the managers, counted as kubelet counts it (pkg/kubelet/cm, v1.36). Of an admission that
/// was run again, the last run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionTally {
    /// Containers that are to have CPUs alone; those that hold them already count too.
    pub cpu: Attempts,
    /// Containers that are to have memory of NUMA nodes.
    pub memory: Attempts,
    pub alignments: BTreeMap<(AlignmentBoundary, AlignmentScope), Attempts>,
    /// Steps of the search for NUMA nodes.
    pub n_steps: u64,
}

impl AdmissionTally {
    pub fn align(&mut self, boundary: AlignmentBoundary, scope: AlignmentScope, is_done: bool) {
        let attempts = self.alignments.entry((boundary, scope)).or_default();
        attempts.add(is_done);
    }
}

/// A record as people read, keep and compare it: indented, keys in order, so that equal records are
/// equal texts.
pub fn canonical_json(record: &serde_json::Value) -> String {
    // `Display` of a value is its JSON: of keys that are texts, and of numbers that are finite.
    format!("{record:#}\n")
}
