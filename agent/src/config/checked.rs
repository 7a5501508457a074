//! The configuration after every check: past this line nothing is validated again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::model::allowed_sysctls::AllowedSysctls;
use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::kubelet_duty::KubeletDuty;
pub use crate::model::kubelet_duty::KubeletNames;
use crate::model::pod::ResourceList;
use crate::model::quantity::Quantity;
use crate::units::Micros;

use super::duration::{self, SignedDuration};
pub use super::placement::{
    CpuManagerPolicy, MemoryManagerPolicy, NumaReservation, PlacementConfig, TopologyManagerPolicy,
    TopologyManagerScope, go_bool,
};
pub use super::pressure::{
    EvictionConfig, OomRecordsConfig, RecordConfig, StagesConfig, StallConfig,
};

/// What the agent may write on the node, with the settings that only this mode has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "mode")]
pub enum Mode {
    /// Nothing: another program manages the node.
    Observe(ObserveConfig),
    Own(OwnConfig),
}

/// Settings of mode `own`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnConfig {
    pub pods: PodsConfig,
    /// Pod cgroups that no agent of this state directory has made are killed and removed.
    pub remove_unknown_cgroups: bool,
    pub runtime: RuntimeConfig,
    /// Kubelet's own directory, for the files and sockets that others look for there: the state of
    /// the CPU and memory managers, device plugins, pod resources.
    pub kubelet_directory: PathBuf,
    pub eviction: EvictionConfig,
    pub compat: Compat,
}

/// Settings of mode `observe`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObserveConfig {
    /// `kubelet.cgroupRoot` as either driver has it on disk, the likelier first; empty where it is not set.
    pub cgroup_roots: Vec<CgroupPath>,
    /// A file of kubelet's was read, or thresholds are set; else those in the configuration are its defaults.
    pub knows_thresholds: bool,
    /// The kubelet of the node is asked how it is configured: no file of its own is named.
    #[serde(skip)]
    pub asks_kubelet: bool,
    /// The `kubelet` section, which counts before all that kubelet says.
    #[serde(skip)]
    pub kubelet_section: Map<String, Value>,
    pub runtime: ObservedRuntime,
    pub pods: ObservedPods,
    pub kubernetes: KubernetesConfig,
}

/// Where the names of pods beside kubelet, and whose they are, come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "source")]
pub enum ObservedPods {
    /// The API server, where it is known how to reach it and what the node is called; else nobody.
    #[default]
    Any,
    None,
    ApiServer,
    /// The kubelet of the node.
    Kubelet,
}

/// How the API server of the cluster is reached, and what it is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubernetesConfig {
    /// `metadata.name` of the node. `None`: what the environment variable `NODE_NAME` says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// `None`: the service account of the agent's own pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig_file: Option<PathBuf>,
    /// Events tell of OOM kills.
    pub events: bool,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            node_name: None,
            kubeconfig_file: None,
            events: true,
        }
    }
}

/// The container runtime of a kubelet, as a source of names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "type")]
pub enum ObservedRuntime {
    /// It is not asked.
    None,
    /// By CRI v1.
    Cri {
        /// Its socket. `None`: that of the first runtime that answers where runtimes have theirs.
        #[serde(skip_serializing_if = "Option::is_none")]
        endpoint: Option<PathBuf>,
        /// Its stream of events is followed. `false`: it is asked for each new container.
        events: bool,
    },
}

impl Default for ObservedRuntime {
    /// Every kubelet has one that speaks CRI.
    fn default() -> Self {
        Self::Cri {
            endpoint: None,
            events: true,
        }
    }
}

/// Where pods come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "source")]
pub enum PodsConfig {
    #[serde(rename_all = "camelCase")]
    Manifests { manifest_directory: PathBuf },
}

/// What runs containers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum RuntimeConfig {
    Process,
}

/// Which decisions may be better than kubelet's (DIVERGENCES.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compat {
    /// Ours, where upstream is a known bug.
    #[default]
    Ballast,
    /// Kubelet's, bit for bit.
    Kubelet,
}

impl Mode {
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Observe(_) => "observe",
            Self::Own(_) => "own",
        }
    }

    /// `None` in another mode.
    pub const fn own(&self) -> Option<&OwnConfig> {
        match self {
            Self::Own(own) => Some(own),
            Self::Observe(_) => None,
        }
    }

    /// What this agent does in kubelet's place.
    pub const fn kubelet_duties(&self) -> &'static [KubeletDuty] {
        match self {
            Self::Observe(_) => &[],
            Self::Own(_) => KubeletDuty::ALL,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    #[serde(flatten)]
    pub mode: Mode,
    pub state_directory: PathBuf,
    pub socket: PathBuf,
    pub metrics: MetricsConfig,
    /// Between two sweeps of statistics; 1 s to 1 min.
    #[serde(serialize_with = "as_text")]
    pub stats_interval: Duration,
    pub log: LogConfig,
    pub bpf: BpfConfig,
    pub oom_records: OomRecordsConfig,
    /// Which names metrics have that kubelet has renamed.
    pub kubelet_metric_names: KubeletNames,
    pub kubelet: KubeletConfig,
}

/// The HTTP endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MetricsConfig {
    /// `None`: there is no endpoint.
    pub address: Option<SocketAddr>,
    /// `None`: connections are not encrypted.
    pub tls: Option<TlsConfig>,
    /// `None`: everybody who can connect may read.
    pub bearer_token_file: Option<PathBuf>,
    /// Samples of cgroups carry the time of their reading, as those of cAdvisor do.
    pub timestamps: bool,
}

/// Files in PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfig {
    pub certificate_file: PathBuf,
    pub key_file: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogConfig {
    pub format: LogFormat,
    pub level: LogLevel,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BpfConfig {
    /// On a bpffs; links and maps that outlive the agent are pinned here.
    pub pin_directory: PathBuf,
    /// Programs log about themselves; off in production.
    pub diagnostics: bool,
}

/// `memoryReservationPolicy` (KEP-2570).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum MemoryReservationPolicy {
    #[default]
    None,
    TieredReservation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum SwapBehavior {
    #[default]
    NoSwap,
    LimitedSwap,
}

/// One entry of `enforceNodeAllocatable`; `none` is the empty set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcement {
    Pods,
    SystemReserved,
    KubeReserved,
    SystemReservedCompressible,
    KubeReservedCompressible,
}

/// The fields of KubeletConfiguration that decisions use, under the same names, with kubelet 1.36
/// defaults. Which fields are honoured, ignored or refused: `config::kubelet_fields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletConfig {
    pub cgroup_root: CgroupName,
    pub cgroup_driver: CgroupDriver,
    /// `cpu`, `memory`, `ephemeral-storage` and `pid` only, none negative. With
    /// `reservedSystemCPUs` it has no `cpu`.
    pub kube_reserved: ResourceList,
    /// As `kube_reserved`; with `reservedSystemCPUs` its `cpu` is the number of listed CPUs.
    pub system_reserved: ResourceList,
    /// Never empty.
    pub reserved_system_cpus: Option<CpuSet>,
    /// Never the root.
    pub kube_reserved_cgroup: Option<CgroupPath>,
    /// Never the root.
    pub system_reserved_cgroup: Option<CgroupPath>,
    pub enforce_node_allocatable: BTreeSet<Enforcement>,
    /// Those that kubelet calls safe, and `allowedUnsafeSysctls`.
    pub allowed_sysctls: AllowedSysctls,
    /// Signal to threshold text, already checked; what reserves memory and storage.
    pub eviction_hard: BTreeMap<String, String>,
    pub eviction_soft: BTreeMap<String, String>,
    #[serde(serialize_with = "durations_as_text")]
    pub eviction_soft_grace_period: BTreeMap<String, Duration>,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    #[serde(serialize_with = "as_text")]
    pub eviction_pressure_transition_period: Duration,
    /// `None`: as long as the pod itself has.
    #[serde(serialize_with = "option_as_text")]
    pub eviction_max_pod_grace_period: Option<Duration>,
    /// Above 0; `None` leaves `pids.max` of pods alone.
    pub pod_pids_limit: Option<u64>,
    pub cpu_cfs_quota: bool,
    /// 1 ms to 1 s.
    pub cpu_cfs_quota_period: Micros,
    #[serde(flatten)]
    pub placement: PlacementConfig,
    pub fail_swap_on: bool,
    /// Refuse to start on cgroup v1. Kubelet's default is true, ours false unless `compat` is
    /// `kubelet`.
    pub fail_cgroup_v1: bool,
    pub swap_behavior: SwapBehavior,
    /// `None`: kubelet's default, on for v1 and off for v2. `false` is not possible on v1.
    pub single_process_oom_kill: Option<bool>,
    pub max_pods: u32,
    /// 0: no limit by cores.
    pub pods_per_core: u32,
    /// -1000..=1000, of the agent itself.
    pub oom_score_adj: i16,
    /// Feature gate `MemoryQoS`.
    pub memory_qos: bool,
    pub memory_reservation_policy: MemoryReservationPolicy,
    /// Kept as written: thousandths would lose kubelet's own float.
    pub memory_throttling_factor: ThrottlingFactor,
    /// Percent of requests reserved per QoS (`qosReserved.memory`), 0..=100; `None` when the
    /// feature gate `QOSReserved` is off or nothing is set.
    pub qos_reserved_memory_percent: Option<u8>,
    /// Feature gate `PodLevelResources`.
    pub pod_level_resources: bool,
    /// Bytes, above 0.
    pub max_container_log_bytes: u64,
    /// The file being written included; 2 or more.
    pub max_container_log_files: u32,
    /// The longest wait before a container that keeps failing is started again
    /// (`crashLoopBackOff.maxContainerRestartPeriod`), 1 s to 5 min.
    #[serde(serialize_with = "as_text")]
    pub max_container_restart_period: Duration,
    /// Between two full passes without an event, at most (`syncFrequency`). A full pass is made
    /// every 10 s in any case.
    #[serde(serialize_with = "as_text")]
    pub sync_frequency: Duration,
    /// Between two scans of the manifests without an event, at most (`fileCheckFrequency`); each
    /// full pass makes one.
    #[serde(serialize_with = "as_text")]
    pub file_check_frequency: Duration,
    /// Report and reserve local ephemeral storage.
    pub local_storage_capacity_isolation: bool,
}

/// `memoryThrottlingFactor`, in (0, 1].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct ThrottlingFactor(pub f64);

impl Eq for ThrottlingFactor {}

impl KubeletConfig {
    /// `cgroupRoot` on disk.
    pub fn cgroup_root_path(&self) -> CgroupPath {
        self.cgroup_root.at(self.cgroup_driver)
    }

    /// What `systemReserved` and `kubeReserved` keep of a resource together.
    pub fn reserved(&self, resource: &str) -> Quantity {
        let lists = [&self.system_reserved, &self.kube_reserved];
        let reserved = lists.into_iter().filter_map(|it| it.get(resource));
        reserved.fold(Quantity::ZERO, |sum, it| sum.plus(it))
    }
}

pub(super) fn as_text<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&duration::format(*value))
}

fn option_as_text<S: Serializer>(value: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&match value {
        Some(value) => duration::format(*value),
        None => "the pod's own".to_owned(),
    })
}

pub(super) fn from_text<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    match duration::parse(&text) {
        Ok(SignedDuration::Positive(it)) => Ok(it),
        Ok(SignedDuration::Negative(_)) => Err(D::Error::custom(format!("`{text}` is negative"))),
        Err(error) => Err(D::Error::custom(error)),
    }
}

fn durations_as_text<S: Serializer>(
    values: &BTreeMap<String, Duration>,
    to: S,
) -> Result<S::Ok, S::Error> {
    to.collect_map(
        values
            .iter()
            .map(|(name, it)| (name, duration::format(*it))),
    )
}
