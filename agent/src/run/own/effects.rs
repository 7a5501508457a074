//! What every field of the configuration changes. A field that changes nothing is a lie to whoever sets
//! it, so a field without a case fails, and so does a case that shows nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::full_pass_interval;
use super::hands;
use crate::check;
use crate::config::kubelet_fields::{self, Treatment};
use crate::config::{Compat, Config, feature_gates, files_needed, own_fields};
use crate::decide::cgroup_files::FileRules;
use crate::decide::cpusets::ContainerPlacement;
use crate::decide::eviction::{FsLayout, Policy};
use crate::decide::lifecycle::BackoffPolicy;
use crate::decide::node_allocatable::{Machine, NodeAllocatable, Reservations};
use crate::decide::placement::devices::PluginAnswers;
use crate::decide::placement::managers::{Managers, PlacementSettings};
use crate::decide::placement::record::decide;
use crate::decide::placement::{admission::Outcome, tests::topology};
use crate::decide::predicates;
use crate::decide::qos::qos_class;
use crate::decide::reserved::reserved_cgroups;
use crate::decide::resource_settings::{CpuPinning, NodeFacts};
use crate::decide::testing::pod;
use crate::model::cgroup::DesiredCgroup;
use crate::model::pod::{Pod, PodUid};
use crate::model::status::CgroupVersion;
use crate::units::Bytes;

/// Where a field shows.
#[derive(Clone, Copy)]
enum Shows {
    /// In what is decided or planned, by the name that [`aspects`] gives it.
    In(&'static str),
    /// In the configuration as it is checked, of which this source takes it by these words.
    At(&'static str, &'static str),
    /// There is one good value; another is refused.
    Refused,
}

use Shows::{At, In, Refused};

/// A field, where it shows, and two configurations of which the second sets it.
type Case = (&'static str, Shows, &'static str, &'static str);

const EVICTIONS: &str = include_str!("evictions.rs");
const FORENSICS: &str = include_str!("../forensics.rs");
const MAIN: &str = include_str!("../../main.rs");
const MANIFESTS: &str = include_str!("manifests.rs");
const KERNEL: &str = include_str!("../kernel.rs");
const MODES: &str = include_str!("../../run.rs");
const OBSERVE: &str = include_str!("../observe.rs");
const OBSERVED_NAMES: &str = include_str!("../observe/names.rs");
const OBSERVED_PODS: &str = include_str!("../observe/pods.rs");
const OWNERSHIP: &str = include_str!("ownership.rs");
const PLACEMENT: &str = include_str!("placement.rs");
const RUN: &str = include_str!("../own.rs");
const SERVE: &str = include_str!("../serve.rs");
const STAGES: &str = include_str!("../../decide/eviction/stages.rs");
const STALLS: &str = include_str!("../../decide/eviction/stall.rs");

const SOFT: &str = "kubelet: {evictionSoft: {memory.available: 1Gi}, \
                    evictionSoftGracePeriod: {memory.available: 1m}}";
const STATIC: &str = "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}}";
const STATIC_MEMORY: &str = "kubelet: {memoryManagerPolicy: Static, topologyManagerPolicy: restricted, \
                             reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]}";
const ENFORCED: &str = "kubelet: {systemReserved: {cpu: 1}, systemReservedCgroup: /system, \
                        kubeReserved: {cpu: 1}, kubeReservedCgroup: /kube, \
                        enforceNodeAllocatable: [system-reserved, kube-reserved]}";
const QOS: &str = "kubelet: {featureGates: {MemoryQoS: true}}";
const RECORD: &str = "eviction: {record: {}}";
const STALL: &str = "eviction: {stall: {}}";

#[rustfmt::skip]
const CASES: &[Case] = &[
    ("apiVersion", Refused, "", "apiVersion: ballast.dev/v2"),
    ("kind", Refused, "", "kind: Pod"),
    ("mode", At(MODES, "Mode::Observe(observe) =>"), "", "mode: observe"),
    ("pods.source", At(OBSERVED_PODS, "match observe.pods"), "mode: observe", "mode: observe\npods: {source: apiserver}"),
    ("pods.manifestDirectory", At(MANIFESTS, "ManifestDirectory::new(manifest_directory)"), "", "pods: {manifestDirectory: /pods}"),
    ("pods.removeUnknownCgroups", At(OWNERSHIP, "remove_unknown_cgroups"), "", "pods: {removeUnknownCgroups: true}"),
    ("runtime.type", At(OBSERVE, "ObservedRuntime::Cri { endpoint, .. } = &observe.runtime"), "mode: observe", "mode: observe\nruntime: {type: none}"),
    ("kubernetes.nodeName", At(OBSERVED_PODS, "kubernetes.node_name.clone()"), "mode: observe", "mode: observe\nkubernetes: {nodeName: node1}"),
    ("kubernetes.kubeconfigFile", At(OBSERVED_PODS, "kubernetes.kubeconfig_file.clone()"), "mode: observe", "mode: observe\nkubernetes: {kubeconfigFile: /k}"),
    ("kubernetes.events.enabled", At(OBSERVE, "match observe.kubernetes.events"), "mode: observe", "mode: observe\nkubernetes: {events: {enabled: false}}"),
    ("runtime.events", At(OBSERVED_NAMES, "match events"), "mode: observe", "mode: observe\nruntime: {events: false}"),
    ("runtime.endpoint", At(OBSERVED_NAMES, "endpoint.as_deref()"), "mode: observe", "mode: observe\nruntime: {endpoint: unix:///run/cri.sock}"),
    ("stateDirectory", At(RUN, "StatePaths(config.state_directory"), "", "stateDirectory: /state"),
    ("kubeletDirectory", At(PLACEMENT, "own.kubelet_directory"), "", "kubeletDirectory: /kubelet"),
    ("socket", At(SERVE, "&config.socket"), "", "socket: /run/other.sock"),
    ("metrics.address", At(SERVE, "config.address"), "", "metrics: {address: \"\"}"),
    ("metrics.tls", At(SERVE, "config.tls"), "", "metrics: {tls: {certificateFile: /c, keyFile: /k}}"),
    ("metrics.tls.certificateFile", At(SERVE, "certificate_file"),
        "metrics: {tls: {certificateFile: /c, keyFile: /k}}", "metrics: {tls: {certificateFile: /d, keyFile: /k}}"),
    ("metrics.tls.keyFile", At(SERVE, "key_file"),
        "metrics: {tls: {certificateFile: /c, keyFile: /k}}", "metrics: {tls: {certificateFile: /c, keyFile: /l}}"),
    ("metrics.bearerTokenFile", At(SERVE, "config.bearer_token_file"), "", "metrics: {bearerTokenFile: /token}"),
    ("metrics.statsInterval", At(EVICTIONS, "config.stats_interval"), "", "metrics: {statsInterval: 9s}"),
    ("metrics.timestamps", At(SERVE, "config.metrics.timestamps"), "", "metrics: {timestamps: true}"),
    ("log.format", At(MAIN, "config.log.format"), "", "log: {format: json}"),
    ("log.level", At(MAIN, "config.log.level"), "", "log: {level: debug}"),
    ("bpf.pinDirectory", At(KERNEL, "bpf.pin_directory"), "", "bpf: {pinDirectory: /sys/fs/bpf/other}"),
    ("bpf.diagnostics", At(KERNEL, "bpf.diagnostics"), "", "bpf: {diagnostics: true}"),
    ("eviction.memoryMethod", In("check"), "", "eviction: {memoryMethod: workingSet}"),
    ("eviction.stages", At(EVICTIONS, "own.eviction.stages"), "", "eviction: {stages: {reclaim: true}}"),
    ("eviction.stages.relaxMemoryHigh", At(STAGES, "config.relax_memory_high"), "", "eviction: {stages: {relaxMemoryHigh: true}}"),
    ("eviction.stages.setMemoryHigh", At(STAGES, "config.set_memory_high"), "", "eviction: {stages: {setMemoryHigh: true}}"),
    ("eviction.stages.reclaim", At(STAGES, "config.reclaim"), "", "eviction: {stages: {reclaim: true}}"),
    ("eviction.stages.freezeBestEffort", At(STAGES, "config.freeze_best_effort"), "", "eviction: {stages: {freezeBestEffort: true}}"),
    ("eviction.stall", At(EVICTIONS, "own.eviction.stall"), "", STALL),
    ("eviction.stall.memoryFullRatio", At(STALLS, "config.memory_full_ratio"), STALL, "eviction: {stall: {memoryFullRatio: 0.9}}"),
    ("eviction.stall.duration", At(STALLS, "config.duration"), STALL, "eviction: {stall: {duration: 5s}}"),
    ("eviction.stall.headroom", At(STALLS, "config.headroom"), STALL, "eviction: {stall: {headroom: 1Gi}}"),
    ("eviction.stall.coolDown", At(STALLS, "config.cool_down"), STALL, "eviction: {stall: {coolDown: 5s}}"),
    ("eviction.stall.dryRun", At(STALLS, "config.dry_run"), STALL, "eviction: {stall: {dryRun: true}}"),
    ("eviction.record", At(EVICTIONS, "own.eviction.record"), "", RECORD),
    ("eviction.record.directory", At(EVICTIONS, "record.directory"), RECORD, "eviction: {record: {directory: /records}}"),
    ("eviction.record.maxBytes", At(EVICTIONS, "record.max_bytes"), RECORD, "eviction: {record: {maxBytes: 32Mi}}"),
    ("eviction.record.maxBytesPerHour", At(EVICTIONS, "record.max_bytes_per_hour"), RECORD, "eviction: {record: {maxBytesPerHour: 512Ki}}"),
    ("eviction.oomRecords", At(FORENSICS, "oom_records"), "", "eviction: {oomRecords: {maxBytes: 1Mi}}"),
    ("eviction.oomRecords.maxBytes", At(FORENSICS, "oom_records.max_bytes"), "", "eviction: {oomRecords: {maxBytes: 1Mi}}"),
    ("compat", In("eviction"), "", "compat: kubelet"),
    ("kubeletMetricNames", At(RUN, "config.kubelet_metric_names"), "", "kubeletMetricNames: old"),
    ("kubeletConfigFile", In("files"), "", "kubeletConfigFile: /config.yaml"),
    ("kubeletConfigDirectory", In("files"), "", "kubeletConfigDirectory: /conf.d"),
    ("kubelet", In("room"), "", "kubelet: {maxPods: 9}"),

    ("kubelet.apiVersion", Refused, "", "kubelet: {apiVersion: v1}"),
    ("kubelet.kind", Refused, "", "kubelet: {kind: Pod}"),
    ("kubelet.syncFrequency", In("full pass"), "", "kubelet: {syncFrequency: 2s}"),
    ("kubelet.fileCheckFrequency", In("full pass"), "", "kubelet: {fileCheckFrequency: 2s}"),
    ("kubelet.cpuManagerReconcilePeriod", In("full pass"), "", "kubelet: {cpuManagerReconcilePeriod: 2s}"),
    ("kubelet.oomScoreAdj", At(RUN, "config.kubelet.oom_score_adj"), "", "kubelet: {oomScoreAdj: -500}"),
    ("kubelet.cgroupRoot", In("cgroups"), "", "kubelet: {cgroupRoot: /other}"),
    ("kubelet.cpuManagerPolicy", In("placement"), "kubelet: {kubeReserved: {cpu: 1}}", STATIC),
    ("kubelet.cpuManagerPolicyOptions", In("placement"), STATIC,
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}}"),
    ("kubelet.singleProcessOOMKill", In("cgroups"), "", "kubelet: {singleProcessOOMKill: true}"),
    ("kubelet.memoryManagerPolicy", In("placement"), "kubelet: {topologyManagerPolicy: restricted}", STATIC_MEMORY),
    ("kubelet.reservedMemory", In("placement"), STATIC_MEMORY,
        "kubelet: {memoryManagerPolicy: Static, topologyManagerPolicy: restricted, \
         reservedMemory: [{numaNode: 1, limits: {memory: 100Mi}}]}"),
    ("kubelet.topologyManagerPolicy", In("placement"), STATIC,
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, topologyManagerPolicy: single-numa-node}"),
    ("kubelet.topologyManagerScope", In("placement"),
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, topologyManagerPolicy: restricted}",
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, topologyManagerPolicy: restricted, topologyManagerScope: pod}"),
    ("kubelet.topologyManagerPolicyOptions", In("placement"),
        "kubelet: {topologyManagerPolicy: restricted}",
        "kubelet: {topologyManagerPolicy: restricted, topologyManagerPolicyOptions: {prefer-everything: \"true\"}}"),
    ("kubelet.qosReserved", In("cgroups"), "kubelet: {featureGates: {QOSReserved: true}}",
        "kubelet: {featureGates: {QOSReserved: true}, qosReserved: {memory: 50%}}"),
    ("kubelet.maxPods", In("room"), "", "kubelet: {maxPods: 9}"),
    ("kubelet.podsPerCore", In("room"), "", "kubelet: {podsPerCore: 2}"),
    ("kubelet.podPidsLimit", In("cgroups"), "", "kubelet: {podPidsLimit: 64}"),
    ("kubelet.cpuCFSQuota", In("cgroups"), "", "kubelet: {cpuCFSQuota: false}"),
    ("kubelet.cpuCFSQuotaPeriod", In("cgroups"), "", "kubelet: {cpuCFSQuotaPeriod: 50ms}"),
    ("kubelet.evictionHard", In("room"), "", "kubelet: {evictionHard: {memory.available: 1Gi}}"),
    ("kubelet.evictionSoft", In("eviction"), "", SOFT),
    ("kubelet.evictionSoftGracePeriod", In("eviction"), SOFT,
        "kubelet: {evictionSoft: {memory.available: 1Gi}, evictionSoftGracePeriod: {memory.available: 2m}}"),
    ("kubelet.evictionPressureTransitionPeriod", In("eviction"), "", "kubelet: {evictionPressureTransitionPeriod: 1m}"),
    ("kubelet.evictionMaxPodGracePeriod", In("eviction"), "", "kubelet: {evictionMaxPodGracePeriod: 9}"),
    ("kubelet.evictionMinimumReclaim", In("eviction"), "", "kubelet: {evictionMinimumReclaim: {memory.available: 1Gi}}"),
    ("kubelet.mergeDefaultEvictionSettings", In("eviction"), "kubelet: {evictionHard: {memory.available: 1Gi}}",
        "kubelet: {evictionHard: {memory.available: 1Gi}, mergeDefaultEvictionSettings: true}"),
    ("kubelet.featureGates", In("cgroups"), "", QOS),
    ("kubelet.featureGates.CPUManagerPolicyAlphaOptions", In("placement"),
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, cpuManagerPolicyOptions: {align-by-socket: \"true\"}}",
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, cpuManagerPolicyOptions: {align-by-socket: \"true\"}, \
         featureGates: {CPUManagerPolicyAlphaOptions: true}}"),
    ("kubelet.featureGates.CPUManagerPolicyBetaOptions", In("placement"),
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, cpuManagerPolicyOptions: {distribute-cpus-across-numa: \"true\"}}",
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, cpuManagerPolicyOptions: {distribute-cpus-across-numa: \"true\"}, \
         featureGates: {CPUManagerPolicyBetaOptions: false}}"),
    ("kubelet.featureGates.CustomCPUCFSQuotaPeriod", Refused, "kubelet: {cpuCFSQuotaPeriod: 50ms}",
        "kubelet: {cpuCFSQuotaPeriod: 50ms, featureGates: {CustomCPUCFSQuotaPeriod: false}}"),
    ("kubelet.featureGates.DisableCPUQuotaWithExclusiveCPUs", In("cgroups"), "",
        "kubelet: {featureGates: {DisableCPUQuotaWithExclusiveCPUs: false}}"),
    ("kubelet.featureGates.KubeletCrashLoopBackOffMax", Refused,
        "kubelet: {crashLoopBackOff: {maxContainerRestartPeriod: 9s}}",
        "kubelet: {crashLoopBackOff: {maxContainerRestartPeriod: 9s}, featureGates: {KubeletCrashLoopBackOffMax: false}}"),
    ("kubelet.featureGates.MemoryQoS", In("cgroups"), "", QOS),
    ("kubelet.featureGates.PodLevelResources", At(MANIFESTS, "with_pod_level_resources(config.kubelet.pod_level_resources)"), "",
        "kubelet: {featureGates: {PodLevelResources: false}}"),
    ("kubelet.featureGates.PodLevelResourceManagers", In("placement"), STATIC,
        "kubelet: {cpuManagerPolicy: static, kubeReserved: {cpu: 1}, featureGates: {PodLevelResourceManagers: true}}"),
    ("kubelet.featureGates.QOSReserved", Refused,
        "kubelet: {featureGates: {QOSReserved: true}, qosReserved: {memory: 50%}}", "kubelet: {qosReserved: {memory: 50%}}"),
    ("kubelet.failSwapOn", In("check"), "", "kubelet: {failSwapOn: false}"),
    ("kubelet.failCgroupV1", In("check"), "", "kubelet: {failCgroupV1: true}"),
    ("kubelet.memorySwap", In("cgroups"), "", "kubelet: {memorySwap: {swapBehavior: LimitedSwap}}"),
    ("kubelet.containerLogMaxSize", At(RUN, "config.kubelet.max_container_log_bytes"), "", "kubelet: {containerLogMaxSize: 1Mi}"),
    ("kubelet.containerLogMaxFiles", At(RUN, "config.kubelet.max_container_log_files"), "", "kubelet: {containerLogMaxFiles: 9}"),
    ("kubelet.systemReserved", In("cgroups"), "", "kubelet: {systemReserved: {memory: 1Gi}}"),
    ("kubelet.kubeReserved", In("room"), "", "kubelet: {kubeReserved: {cpu: 1}}"),
    ("kubelet.reservedSystemCPUs", In("placement"), STATIC,
        "kubelet: {cpuManagerPolicy: static, reservedSystemCPUs: \"7\"}"),
    ("kubelet.systemReservedCgroup", In("cgroups"), ENFORCED,
        "kubelet: {systemReserved: {cpu: 1}, systemReservedCgroup: /other, kubeReserved: {cpu: 1}, \
         kubeReservedCgroup: /kube, enforceNodeAllocatable: [system-reserved, kube-reserved]}"),
    ("kubelet.kubeReservedCgroup", In("cgroups"), ENFORCED,
        "kubelet: {systemReserved: {cpu: 1}, systemReservedCgroup: /system, kubeReserved: {cpu: 1}, \
         kubeReservedCgroup: /other, enforceNodeAllocatable: [system-reserved, kube-reserved]}"),
    ("kubelet.allowedUnsafeSysctls", At(PLACEMENT, "kubelet.allowed_sysctls"), "", "kubelet: {allowedUnsafeSysctls: [net.core.*]}"),
    ("kubelet.enforceNodeAllocatable", In("cgroups"), "kubelet: {kubeReserved: {memory: 1Gi}}",
        "kubelet: {kubeReserved: {memory: 1Gi}, enforceNodeAllocatable: [none]}"),
    ("kubelet.crashLoopBackOff", In("restarts"), "", "kubelet: {crashLoopBackOff: {maxContainerRestartPeriod: 9s}}"),
    ("kubelet.memoryThrottlingFactor", In("cgroups"), QOS,
        "kubelet: {featureGates: {MemoryQoS: true}, memoryThrottlingFactor: 0.5}"),
    ("kubelet.memoryReservationPolicy", In("cgroups"), QOS,
        "kubelet: {featureGates: {MemoryQoS: true}, memoryReservationPolicy: TieredReservation}"),
    ("kubelet.localStorageCapacityIsolation", In("room"), "", "kubelet: {localStorageCapacityIsolation: false}"),
];

#[test]
fn every_field_has_a_case_that_shows_what_it_changes() {
    for (field, shows, without, with) in CASES {
        let before = aspects(without);
        let after = aspects(with);
        assert!(!before.contains_key("fault"), "{field}: {before:?}");
        let aspect = match shows {
            In(aspect) => aspect,
            At(source, words) => {
                assert!(source.contains(words), "{field}: nobody says {words}");
                "configuration"
            }
            Refused => "fault",
        };
        assert!(after.contains_key(aspect), "{field}: {after:?}");
        let is_fault = after.contains_key("fault");
        assert_eq!(is_fault, matches!(shows, Refused), "{field}: {after:?}");
        assert_ne!(before.get(aspect), after.get(aspect), "{field} in {aspect}");
    }
}

#[test]
fn there_is_a_case_for_every_field_and_no_other() {
    let honoured = kubelet_fields::FIELDS
        .iter()
        .filter(|(_, treatment)| *treatment == Treatment::Honoured)
        .map(|(name, _)| format!("kubelet.{name}"));
    let gates = feature_gates::names().map(|name| format!("kubelet.featureGates.{name}"));
    let fields: BTreeSet<String> = honoured.chain(own_fields()).chain(gates).collect();
    let cases: BTreeSet<String> = CASES.iter().map(|(it, ..)| (*it).to_owned()).collect();
    assert_eq!(cases.len(), CASES.len(), "a field has two cases");
    let without: Vec<_> = fields.difference(&cases).collect();
    assert_eq!(without, Vec::<&String>::new(), "without a case");
    let unknown: Vec<_> = cases.difference(&fields).collect();
    assert_eq!(unknown, Vec::<&String>::new(), "no such field");
}

/// What a configuration comes to, by name.
fn aspects(sections: &str) -> BTreeMap<&'static str, String> {
    let given = |field: &str| sections.starts_with(&format!("{field}:"));
    let head = [
        ("apiVersion", "ballast.dev/v1alpha1"),
        ("kind", "AgentConfiguration"),
        ("mode", "own"),
    ];
    let head = head.iter().filter(|(field, _)| !given(field));
    let head: String = head.map(|(field, it)| format!("{field}: {it}\n")).collect();
    let text = format!("{head}{sections}\n");
    let kubelet_file = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    let files = files_needed(&text);
    let kubelet_path = files.kubelet_config_file.clone();
    let kubelet_file = kubelet_path.as_deref().map(|path| (path, kubelet_file));
    let config = match Config::from_yaml(&text, kubelet_file, &[]) {
        Ok(loaded) => loaded.config,
        Err(error) => return BTreeMap::from([("fault", error.to_string())]),
    };
    BTreeMap::from([
        ("cgroups", cgroups(&config)),
        ("check", verdict(&config)),
        (
            "configuration",
            serde_json::to_string(&config).expect("plain data"),
        ),
        ("eviction", eviction(&config)),
        ("files", format!("{files:?}")),
        (
            "full pass",
            format!("{:?}", full_pass_interval(&config.kubelet)),
        ),
        ("placement", placement(&config)),
        ("restarts", restarts(&config)),
        (
            "room",
            format!(
                "{:?}",
                predicates::Node::standalone("node", &allocatable(&config), &config.kubelet, 8)
            ),
        ),
    ])
}

fn compat(config: &Config) -> Compat {
    let own = config.mode.own();
    own.map_or_else(Compat::default, |it| it.compat)
}

/// Eight CPUs, 16 GiB, a pool of huge pages, a disk.
fn allocatable(config: &Config) -> NodeAllocatable {
    let machine = Machine {
        n_cpus: 8,
        memory: Bytes(16 << 30),
        hugepages: BTreeMap::from([(2 << 20, 4)]),
        held_hugepages: Bytes(0),
        ephemeral_storage: Some(Bytes(100 << 30)),
        max_pid: Some(32_768),
    };
    let reservations = Reservations::new(&config.kubelet).expect("checked");
    NodeAllocatable::new(&machine, &reservations)
}

/// Guaranteed with CPUs of its own, Guaranteed with an odd number of them, Burstable, and one with
/// resources as a whole.
fn pods() -> Vec<Pod> {
    let specs = [
        "app {req cpu=2 memory=1Gi lim cpu=2 memory=1Gi}",
        "app {req cpu=3 memory=9Gi lim cpu=3 memory=9Gi}",
        "app {req cpu=100m memory=64Mi lim cpu=200m memory=128Mi}",
        "pod {req cpu=2 memory=1Gi lim cpu=2 memory=1Gi} app {req cpu=1 memory=64Mi lim cpu=1 memory=64Mi} app {}",
    ];
    let named = specs.iter().enumerate().map(|(i, spec)| {
        let mut pod = pod(spec);
        pod.uid = PodUid(format!("pod{i}"));
        pod
    });
    named.collect()
}

/// Every file of a node with cgroup v2.
fn cgroups(config: &Config) -> String {
    let rules = FileRules {
        unified: true,
        page_size: 4096,
        hugepage_sizes: vec![2 << 20],
        hugetlb_reservations: true,
        memory_and_swap: false,
        swap_max: true,
        devices: false,
        pids: true,
    };
    let allocatable = allocatable(config);
    let facts = NodeFacts {
        version: CgroupVersion::V2,
        memory: Bytes(16 << 30),
        allocatable_memory: Some(allocatable.absolute_memory()),
        swap: Bytes(4 << 30),
        is_swap_limitable: true,
        page_size: Bytes(4096),
    };
    let reserved = reserved_cgroups(&config.kubelet, compat(config), &rules);
    let plan = hands::plan(&config.kubelet, compat(config), allocatable, facts, rules);
    let pods = pods();
    let mut cgroups = plan.node_cgroups(&config.kubelet, &pods);
    cgroups.extend(reserved.into_iter().map(|it| it.cgroup));
    for pod in &pods {
        let qos = qos_class(pod);
        let path = plan.pod_path(qos, &pod.uid).expect("a good name");
        let app = path.join("app").expect("a good name");
        for pinning in [CpuPinning::Shared, CpuPinning::Exclusive] {
            cgroups.push(plan.pod_cgroup(pod, qos, pinning, path.clone()));
        }
        let anywhere = ContainerPlacement::ANYWHERE;
        cgroups.push(plan.container_cgroup(pod, qos, &pod.containers[0], &anywhere, app));
    }
    let shown = cgroups.iter().map(|DesiredCgroup { path, files, .. }| {
        let files = files.iter();
        let files: Vec<String> = files
            .map(|(file, it)| format!("{}={it}", file.name))
            .collect();
        format!("{path}: {}\n", files.join(" "))
    });
    shown.collect()
}

/// Of a node where everything is a reason not to start: cgroup v1, with swap, and with memory that
/// kubelet's formula never sees in use.
fn verdict(config: &Config) -> String {
    check::report(&check::tests::bad(), config, &[]).to_string()
}

fn eviction(config: &Config) -> String {
    let policy = Policy::new(&config.kubelet, FsLayout::One, compat(config));
    format!("{:?}", policy.expect("checked"))
}

fn restarts(config: &Config) -> String {
    let max = config.kubelet.max_container_restart_period;
    format!("{:?}", BackoffPolicy::with_max(max))
}

/// What becomes of the pods on two NUMA nodes of four CPUs and 8 GiB each.
fn placement(config: &Config) -> String {
    let settings = PlacementSettings {
        compat: compat(config),
        config: crate::config::PlacementConfig {
            // It is about time and not about places.
            cpu_manager_reconcile_period: Duration::from_secs(10),
            ..config.kubelet.placement.clone()
        },
        reserved_system_cpus: config.kubelet.reserved_system_cpus.clone(),
        reservation: allocatable(config).reservation,
        topology: topology(),
    };
    let mut managers = match Managers::new(&settings) {
        Ok(managers) => managers,
        Err(error) => return error.to_string(),
    };
    let mut shown = String::new();
    for pod in pods() {
        match decide(&managers, &pod, &PluginAnswers::default()) {
            Outcome::Ask(question) => panic!("asks {question:?}"),
            Outcome::Decided(decided) => {
                shown += &format!("{:?}\n", decided.report);
                managers = decided.managers;
            }
        }
    }
    shown
}
