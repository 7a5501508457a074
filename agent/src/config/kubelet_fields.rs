//! What becomes of every field of KubeletConfiguration (kubelet.config.k8s.io/v1beta1 of
//! Kubernetes 1.36), in upstream's order. The one place that says it; `raw` and the warnings
//! follow.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value};

use super::FieldCounts;
use super::fault::{Faults, FieldPath};

/// What a field does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// Decisions use it.
    Honoured,
    /// Neither checked nor used; harmless, and reported when set.
    Ignored(Because),
    /// Ignoring it would silently change what pods get, so only `unless` and an empty value are
    /// taken: those ask for what this build does.
    Refused {
        unless: &'static str,
        because: &'static str,
    },
}

/// Why a field has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Because {
    KubeletServer,
    ApiServer,
    Images,
    Network,
    Volumes,
    PodSource,
    Runtime,
    RuntimeLogs,
    OwnLogging,
    AgentProcess,
    KernelTunables,
    UserNamespaces,
    MemoryNotification,
    NodeShutdown,
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KubeletServer => "ballast does not serve kubelet's HTTP API",
            Self::ApiServer => "pods come from manifests, no API server is spoken to",
            Self::Images => "the process runtime uses no images",
            Self::Network => "pod networking is left alone",
            Self::Volumes => "volumes of plug-ins are not mounted",
            Self::PodSource => "pods.manifestDirectory names the manifests",
            Self::Runtime => "runtime.type chooses the runtime",
            Self::RuntimeLogs => {
                "the agent looks at the logs of its containers each second, and rotates them, below stateDirectory"
            }
            Self::OwnLogging => "the agent's own `log` section applies",
            Self::AgentProcess => "the agent keeps the limits and the cgroup it was started with",
            Self::KernelTunables => {
                "kernel tunables are left as they are, and `ballast check` compares them"
            }
            Self::UserNamespaces => "the process runtime makes no user namespaces",
            Self::MemoryNotification => "memory pressure is told by kernel events in any case",
            Self::NodeShutdown => "a shutdown of the node is not delayed",
        })
    }
}

/// Field to treatment.
pub const FIELDS: &[(&str, Treatment)] = {
    use Because::*;
    use Treatment::*;
    &[
        ("apiVersion", Honoured),
        ("kind", Honoured),
        ("enableServer", Ignored(KubeletServer)),
        ("staticPodPath", Ignored(PodSource)),
        ("podLogsDir", Ignored(RuntimeLogs)),
        // Both as the longest time between two full passes; longer than 10 s changes nothing.
        ("syncFrequency", Honoured),
        ("fileCheckFrequency", Honoured),
        ("httpCheckFrequency", Ignored(PodSource)),
        (
            "staticPodURL",
            Refused {
                unless: "",
                because: "pods are not fetched from a URL; right would be a manifest in pods.manifestDirectory",
            },
        ),
        ("staticPodURLHeader", Ignored(PodSource)),
        ("address", Ignored(KubeletServer)),
        ("port", Ignored(KubeletServer)),
        ("readOnlyPort", Ignored(KubeletServer)),
        ("tlsCertFile", Ignored(KubeletServer)),
        ("tlsPrivateKeyFile", Ignored(KubeletServer)),
        ("tlsCipherSuites", Ignored(KubeletServer)),
        ("tlsCurvePreferences", Ignored(KubeletServer)),
        ("tlsMinVersion", Ignored(KubeletServer)),
        ("rotateCertificates", Ignored(ApiServer)),
        ("serverTLSBootstrap", Ignored(ApiServer)),
        ("authentication", Ignored(KubeletServer)),
        ("authorization", Ignored(KubeletServer)),
        ("registryPullQPS", Ignored(Images)),
        ("registryBurst", Ignored(Images)),
        ("imagePullCredentialsVerificationPolicy", Ignored(Images)),
        ("preloadedImagesVerificationAllowlist", Ignored(Images)),
        ("eventRecordQPS", Ignored(ApiServer)),
        ("eventBurst", Ignored(ApiServer)),
        ("enableDebuggingHandlers", Ignored(KubeletServer)),
        ("enableContentionProfiling", Ignored(KubeletServer)),
        ("healthzPort", Ignored(KubeletServer)),
        ("healthzBindAddress", Ignored(KubeletServer)),
        ("oomScoreAdj", Honoured),
        ("clusterDomain", Ignored(Network)),
        ("clusterDNS", Ignored(Network)),
        ("streamingConnectionIdleTimeout", Ignored(KubeletServer)),
        ("nodeStatusUpdateFrequency", Ignored(ApiServer)),
        ("nodeStatusReportFrequency", Ignored(ApiServer)),
        ("nodeLeaseDurationSeconds", Ignored(ApiServer)),
        ("imageMinimumGCAge", Ignored(Images)),
        ("imageMaximumGCAge", Ignored(Images)),
        ("imageGCHighThresholdPercent", Ignored(Images)),
        ("imageGCLowThresholdPercent", Ignored(Images)),
        ("volumeStatsAggPeriod", Ignored(Volumes)),
        ("kubeletCgroups", Ignored(AgentProcess)),
        (
            "systemCgroups",
            Refused {
                unless: "",
                because: "system processes are not moved into a cgroup of their own",
            },
        ),
        ("cgroupRoot", Honoured),
        (
            "cgroupsPerQOS",
            Refused {
                unless: "true",
                because: "pods without cgroups of their own could be neither limited nor watched",
            },
        ),
        (
            "cgroupDriver",
            Refused {
                unless: "cgroupfs",
                because: "this build does not drive systemd",
            },
        ),
        ("cpuManagerPolicy", Honoured),
        ("singleProcessOOMKill", Honoured),
        ("cpuManagerPolicyOptions", Honoured),
        // As the longest time between two full passes; longer than 10 s changes nothing.
        ("cpuManagerReconcilePeriod", Honoured),
        ("memoryManagerPolicy", Honoured),
        ("topologyManagerPolicy", Honoured),
        ("topologyManagerScope", Honoured),
        ("topologyManagerPolicyOptions", Honoured),
        ("qosReserved", Honoured),
        ("runtimeRequestTimeout", Ignored(Runtime)),
        ("hairpinMode", Ignored(Network)),
        ("maxPods", Honoured),
        ("podCIDR", Ignored(Network)),
        ("podPidsLimit", Honoured),
        ("resolvConf", Ignored(Network)),
        (
            "runOnce",
            Refused {
                unless: "false",
                because: "a single pass over the pods is not supported",
            },
        ),
        ("cpuCFSQuota", Honoured),
        ("cpuCFSQuotaPeriod", Honoured),
        ("nodeStatusMaxImages", Ignored(ApiServer)),
        ("maxOpenFiles", Ignored(AgentProcess)),
        ("contentType", Ignored(ApiServer)),
        ("kubeAPIQPS", Ignored(ApiServer)),
        ("kubeAPIBurst", Ignored(ApiServer)),
        ("serializeImagePulls", Ignored(Images)),
        ("maxParallelImagePulls", Ignored(Images)),
        ("evictionHard", Honoured),
        ("evictionSoft", Honoured),
        ("evictionSoftGracePeriod", Honoured),
        ("evictionPressureTransitionPeriod", Honoured),
        ("evictionMaxPodGracePeriod", Honoured),
        ("evictionMinimumReclaim", Honoured),
        ("mergeDefaultEvictionSettings", Honoured),
        ("podsPerCore", Honoured),
        ("enableControllerAttachDetach", Ignored(Volumes)),
        ("protectKernelDefaults", Ignored(KernelTunables)),
        ("makeIPTablesUtilChains", Ignored(Network)),
        ("iptablesMasqueradeBit", Ignored(Network)),
        ("iptablesDropBit", Ignored(Network)),
        ("featureGates", Honoured),
        ("failSwapOn", Honoured),
        ("memorySwap", Honoured),
        ("containerLogMaxSize", Honoured),
        ("containerLogMaxFiles", Honoured),
        ("containerLogMaxWorkers", Ignored(RuntimeLogs)),
        ("containerLogMonitorInterval", Ignored(RuntimeLogs)),
        (
            "configMapAndSecretChangeDetectionStrategy",
            Ignored(Volumes),
        ),
        ("systemReserved", Honoured),
        ("kubeReserved", Honoured),
        ("reservedSystemCPUs", Honoured),
        ("showHiddenMetricsForVersion", Ignored(KubeletServer)),
        ("systemReservedCgroup", Honoured),
        ("kubeReservedCgroup", Honoured),
        ("enforceNodeAllocatable", Honoured),
        ("allowedUnsafeSysctls", Honoured),
        ("volumePluginDir", Ignored(Volumes)),
        ("providerID", Ignored(ApiServer)),
        ("kernelMemcgNotification", Ignored(MemoryNotification)),
        ("logging", Ignored(OwnLogging)),
        ("enableSystemLogHandler", Ignored(KubeletServer)),
        ("enableSystemLogQuery", Ignored(KubeletServer)),
        ("shutdownGracePeriod", Ignored(NodeShutdown)),
        ("shutdownGracePeriodCriticalPods", Ignored(NodeShutdown)),
        ("shutdownGracePeriodByPodPriority", Ignored(NodeShutdown)),
        ("crashLoopBackOff", Honoured),
        ("reservedMemory", Honoured),
        ("enableProfilingHandler", Ignored(KubeletServer)),
        ("enableDebugFlagsHandler", Ignored(KubeletServer)),
        (
            "seccompDefault",
            Refused {
                unless: "false",
                because: "the process runtime applies no seccomp profile",
            },
        ),
        ("memoryThrottlingFactor", Honoured),
        ("memoryReservationPolicy", Honoured),
        ("registerWithTaints", Ignored(ApiServer)),
        ("registerNode", Ignored(ApiServer)),
        ("tracing", Ignored(OwnLogging)),
        ("localStorageCapacityIsolation", Honoured),
        ("containerRuntimeEndpoint", Ignored(Runtime)),
        ("imageServiceEndpoint", Ignored(Runtime)),
        ("failCgroupV1", Honoured),
        ("userNamespaces", Ignored(UserNamespaces)),
    ]
};

/// The treatment of one field; `None` for a name that KubeletConfiguration does not have.
pub fn treatment(name: &str) -> Option<Treatment> {
    FIELDS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, treatment)| *treatment)
}

/// How many of `fields` are set, by what becomes of them.
pub(super) fn counts(fields: &Map<String, Value>) -> FieldCounts {
    let mut counts = FieldCounts::default();
    for (name, _) in fields.iter().filter(|(_, it)| is_set(it)) {
        match treatment(name) {
            Some(Treatment::Honoured | Treatment::Refused { .. }) => counts.honoured += 1,
            Some(Treatment::Ignored(_)) => counts.ignored += 1,
            None => {}
        }
    }
    counts
}

/// One warning for each reason that some field of `fields` has no effect.
pub(super) fn warnings(fields: &Map<String, Value>) -> Vec<String> {
    let mut ignored: BTreeMap<Because, Vec<&str>> = BTreeMap::new();
    for (name, _) in fields.iter().filter(|(_, it)| is_set(it)) {
        if let Some(Treatment::Ignored(because)) = treatment(name) {
            ignored.entry(because).or_default().push(name);
        }
    }
    ignored
        .into_iter()
        .map(|(because, names)| format!("kubelet fields ignored, {because}: {}", names.join(", ")))
        .collect()
}

/// Faults for refused fields that ask for something else than what this build does.
pub(super) fn refuse(fields: &Map<String, Value>, faults: &mut Faults) {
    for (name, value) in fields {
        let Some(Treatment::Refused { unless, because }) = treatment(name) else {
            continue;
        };
        let text = match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if is_empty(value) || text == unless {
            continue;
        }
        let right = if unless.is_empty() {
            "leave it out".to_owned()
        } else {
            format!("right would be {unless}")
        };
        faults.add(
            &FieldPath::root().field(name),
            format!("{text} is refused: {because}; {right}"),
        );
    }
}

/// Tools that write kubelet's configuration put `0s` for "the default".
fn is_set(value: &Value) -> bool {
    !is_empty(value) && *value != "0s"
}

/// A Go zero value, which kubelet takes for "not set".
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
