//! The shape of the configuration file: which fields there are and of which kind, nothing else.
//! Every field is optional here; defaults and relations belong to the checks.
//!
//! Read from a parsed document field by field and not by derived deserializers, because those stop
//! at the first fault and an operator wants them all.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fault::{Faults, FieldPath, suggestion};

/// A kind of value that a field can hold.
pub(super) trait ReadField: Sized {
    /// `None` with a fault where the value is of another kind.
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self>;
}

/// Declares a section of the file: a struct of optional fields under their names in the file.
macro_rules! section {
    (
        $(#[$attribute:meta])*
        pub(super) struct $section:ident {
            $($(#[$doc:meta])* $field:ident = $name:literal: $kind:ty,)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Default)]
        pub(super) struct $section {
            $($(#[$doc])* pub(super) $field: Option<$kind>,)*
        }

        impl $section {
            /// Every field's name in the file.
            pub(super) const FIELDS: &[&str] = &[$($name),*];

            /// Takes the fields it knows; the others stay unread.
            pub(super) fn from_fields(
                fields: &Map<String, Value>,
                at: &FieldPath,
                faults: &mut Faults,
            ) -> Self {
                Self {
                    $($field: fields
                        .get($name)
                        .filter(|value| !value.is_null())
                        .and_then(|value| ReadField::read(value, &at.field($name), faults)),)*
                }
            }
        }

        impl ReadField for $section {
            fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
                let Value::Object(fields) = value else {
                    faults.add(at, wrong_kind("a mapping", value));
                    return None;
                };
                refuse_unknown(fields, Self::FIELDS, at, faults);
                Some(Self::from_fields(fields, at, faults))
            }
        }
    };
}

section! {
    /// The document.
    pub(super) struct RawConfig {
        api_version = "apiVersion": String,
        kind = "kind": String,
        mode = "mode": String,
        pods = "pods": RawPods,
        runtime = "runtime": RawRuntime,
        kubernetes = "kubernetes": RawKubernetes,
        state_directory = "stateDirectory": String,
        kubelet_directory = "kubeletDirectory": String,
        socket = "socket": String,
        metrics = "metrics": RawMetrics,
        log = "log": RawLog,
        bpf = "bpf": RawBpf,
        eviction = "eviction": RawEviction,
        compat = "compat": String,
        kubelet_metric_names = "kubeletMetricNames": String,
        kubelet_config_file = "kubeletConfigFile": String,
        kubelet_config_directory = "kubeletConfigDirectory": String,
        kubelet = "kubelet": Map<String, Value>,
    }
}

section! {
    pub(super) struct RawPods {
        source = "source": String,
        manifest_directory = "manifestDirectory": String,
        remove_unknown_cgroups = "removeUnknownCgroups": bool,
    }
}

section! {
    pub(super) struct RawRuntime {
        kind = "type": String,
        endpoint = "endpoint": String,
        events = "events": bool,
    }
}

section! {
    pub(super) struct RawKubernetes {
        node_name = "nodeName": String,
        kubeconfig_file = "kubeconfigFile": String,
        events = "events": RawKubernetesEvents,
    }
}

section! {
    pub(super) struct RawKubernetesEvents {
        enabled = "enabled": bool,
    }
}

section! {
    pub(super) struct RawMetrics {
        address = "address": String,
        tls = "tls": RawTls,
        bearer_token_file = "bearerTokenFile": String,
        stats_interval = "statsInterval": String,
        timestamps = "timestamps": bool,
    }
}

section! {
    pub(super) struct RawTls {
        certificate_file = "certificateFile": String,
        key_file = "keyFile": String,
    }
}

section! {
    pub(super) struct RawLog {
        format = "format": String,
        level = "level": String,
    }
}

section! {
    pub(super) struct RawBpf {
        pin_directory = "pinDirectory": String,
        diagnostics = "diagnostics": bool,
    }
}

section! {
    pub(super) struct RawEviction {
        memory_method = "memoryMethod": String,
        stages = "stages": RawEvictionStages,
        stall = "stall": RawEvictionStall,
        record = "record": RawEvictionRecord,
        oom_records = "oomRecords": RawOomRecords,
    }
}

section! {
    pub(super) struct RawEvictionStages {
        relax_memory_high = "relaxMemoryHigh": bool,
        set_memory_high = "setMemoryHigh": bool,
        reclaim = "reclaim": bool,
        freeze_best_effort = "freezeBestEffort": bool,
    }
}

section! {
    pub(super) struct RawEvictionStall {
        memory_full_ratio = "memoryFullRatio": f64,
        duration = "duration": String,
        headroom = "headroom": String,
        cool_down = "coolDown": String,
        dry_run = "dryRun": bool,
    }
}

section! {
    pub(super) struct RawEvictionRecord {
        directory = "directory": String,
        max_bytes = "maxBytes": String,
        max_bytes_per_hour = "maxBytesPerHour": String,
    }
}

section! {
    pub(super) struct RawOomRecords {
        max_bytes = "maxBytes": String,
    }
}

section! {
    /// The fields of KubeletConfiguration that have more than one value here; all of them, with
    /// what becomes of each, are in `kubelet_fields::FIELDS`.
    pub(super) struct RawKubelet {
        cgroup_root = "cgroupRoot": String,
        kube_reserved = "kubeReserved": TextMap,
        system_reserved = "systemReserved": TextMap,
        reserved_system_cpus = "reservedSystemCPUs": String,
        kube_reserved_cgroup = "kubeReservedCgroup": String,
        system_reserved_cgroup = "systemReservedCgroup": String,
        enforce_node_allocatable = "enforceNodeAllocatable": Vec<String>,
        allowed_unsafe_sysctls = "allowedUnsafeSysctls": Vec<String>,
        eviction_hard = "evictionHard": TextMap,
        eviction_soft = "evictionSoft": TextMap,
        eviction_soft_grace_period = "evictionSoftGracePeriod": TextMap,
        eviction_minimum_reclaim = "evictionMinimumReclaim": TextMap,
        eviction_pressure_transition_period = "evictionPressureTransitionPeriod": String,
        eviction_max_pod_grace_period = "evictionMaxPodGracePeriod": i64,
        merge_default_eviction_settings = "mergeDefaultEvictionSettings": bool,
        pod_pids_limit = "podPidsLimit": i64,
        cpu_cfs_quota = "cpuCFSQuota": bool,
        cpu_cfs_quota_period = "cpuCFSQuotaPeriod": String,
        cpu_manager_policy = "cpuManagerPolicy": String,
        cpu_manager_policy_options = "cpuManagerPolicyOptions": TextMap,
        cpu_manager_reconcile_period = "cpuManagerReconcilePeriod": String,
        memory_manager_policy = "memoryManagerPolicy": String,
        reserved_memory = "reservedMemory": Vec<RawNumaReservation>,
        topology_manager_policy = "topologyManagerPolicy": String,
        topology_manager_scope = "topologyManagerScope": String,
        topology_manager_policy_options = "topologyManagerPolicyOptions": TextMap,
        fail_swap_on = "failSwapOn": bool,
        fail_cgroup_v1 = "failCgroupV1": bool,
        memory_swap = "memorySwap": RawMemorySwap,
        single_process_oom_kill = "singleProcessOOMKill": bool,
        max_pods = "maxPods": i64,
        pods_per_core = "podsPerCore": i64,
        oom_score_adj = "oomScoreAdj": i64,
        memory_throttling_factor = "memoryThrottlingFactor": f64,
        memory_reservation_policy = "memoryReservationPolicy": String,
        qos_reserved = "qosReserved": TextMap,
        feature_gates = "featureGates": BTreeMap<String, bool>,
        container_log_max_size = "containerLogMaxSize": String,
        container_log_max_files = "containerLogMaxFiles": i64,
        crash_loop_back_off = "crashLoopBackOff": RawCrashLoopBackOff,
        sync_frequency = "syncFrequency": String,
        file_check_frequency = "fileCheckFrequency": String,
        local_storage_capacity_isolation = "localStorageCapacityIsolation": bool,
    }
}

section! {
    pub(super) struct RawMemorySwap {
        swap_behavior = "swapBehavior": String,
    }
}

section! {
    pub(super) struct RawNumaReservation {
        numa_node = "numaNode": i64,
        limits = "limits": TextMap,
    }
}

section! {
    pub(super) struct RawCrashLoopBackOff {
        max_container_restart_period = "maxContainerRestartPeriod": String,
    }
}

/// Faults for every name that is not one of `known`.
pub(super) fn refuse_unknown(
    fields: &Map<String, Value>,
    known: &[&str],
    at: &FieldPath,
    faults: &mut Faults,
) {
    for name in fields.keys().filter(|name| !known.contains(&name.as_str())) {
        let near = suggestion(name, known.iter().copied());
        faults.add(&at.field(name), format!("unknown field{near}"));
    }
}

/// Strings by name. A number is taken as the text that writes it, as in `cpu: 1`.
pub(super) type TextMap = BTreeMap<String, String>;

impl ReadField for String {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        value.as_str().map(str::to_owned).or_else(|| {
            faults.add(at, wrong_kind("a string", value));
            None
        })
    }
}

impl ReadField for bool {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        value.as_bool().or_else(|| {
            faults.add(at, wrong_kind("true or false", value));
            None
        })
    }
}

impl ReadField for i64 {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        value.as_i64().or_else(|| {
            faults.add(at, wrong_kind("a whole number", value));
            None
        })
    }
}

impl ReadField for f64 {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        value.as_f64().or_else(|| {
            faults.add(at, wrong_kind("a number", value));
            None
        })
    }
}

/// A field of which a list can be made.
pub(super) trait ReadItem: ReadField {
    const PLURAL: &str;
}

impl ReadItem for String {
    const PLURAL: &str = "a list of strings";
}

impl ReadItem for RawNumaReservation {
    const PLURAL: &str = "a list of mappings";
}

impl<T: ReadItem> ReadField for Vec<T> {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        let Value::Array(items) = value else {
            faults.add(at, wrong_kind(T::PLURAL, value));
            return None;
        };
        let read = |(index, item)| T::read(item, &at.index(index), faults);
        let items: Vec<_> = items.iter().enumerate().map(read).collect();
        items.into_iter().collect()
    }
}

impl ReadField for Map<String, Value> {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        value.as_object().cloned().or_else(|| {
            faults.add(at, wrong_kind("a mapping", value));
            None
        })
    }
}

impl ReadField for TextMap {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        read_map(value, at, faults, |item, at, faults| match item {
            Value::Number(_) | Value::Bool(_) => Some(item.to_string()),
            _ => String::read(item, at, faults),
        })
    }
}

impl ReadField for BTreeMap<String, bool> {
    fn read(value: &Value, at: &FieldPath, faults: &mut Faults) -> Option<Self> {
        read_map(value, at, faults, bool::read)
    }
}

/// All entries, or `None` after every entry was looked at.
fn read_map<T>(
    value: &Value,
    at: &FieldPath,
    faults: &mut Faults,
    mut read: impl FnMut(&Value, &FieldPath, &mut Faults) -> Option<T>,
) -> Option<BTreeMap<String, T>> {
    let Value::Object(fields) = value else {
        faults.add(at, wrong_kind("a mapping", value));
        return None;
    };
    let entries: Vec<_> = fields
        .iter()
        .map(|(name, item)| Some((name.clone(), read(item, &at.field(name), faults)?)))
        .collect();
    entries.into_iter().collect()
}

fn wrong_kind(right: &str, value: &Value) -> String {
    let found = match value {
        Value::Null => "nothing".into(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the string {text:?}"),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "a mapping".into(),
    };
    format!("expected {right}, found {found}")
}
