use std::collections::BTreeSet;
use std::time::Duration;

use super::kubelet_fields::{FIELDS, Treatment};
use super::raw::RawKubelet;
use super::*;
use crate::model::cgroup_name::CgroupName;
use crate::units::Micros;

const HEAD: &str = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";
const KUBELET_HEAD: &str =
    "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn load(rest: &str) -> Result<Loaded, ConfigError> {
    Config::from_yaml(&format!("{HEAD}{rest}"), None, &[])
}

#[track_caller]
fn good(rest: &str) -> Loaded {
    match load(rest) {
        Ok(loaded) => loaded,
        Err(error) => panic!("{error}"),
    }
}

/// A `kubelet` section without faults, given as a flow mapping.
#[track_caller]
fn kubelet(fields: &str) -> KubeletConfig {
    good(&format!("kubelet: {{{fields}}}\n")).config.kubelet
}

#[track_caller]
fn faults(rest: &str) -> Vec<String> {
    let error = load(rest).expect_err("the fixture has faults");
    error.faults.iter().map(Fault::to_string).collect()
}

#[test]
fn an_empty_configuration_has_the_documented_defaults() {
    let Loaded {
        config,
        warnings,
        kubelet_fields,
        ..
    } = good("");
    assert_eq!(kubelet_fields, FieldCounts::default());
    assert_eq!(warnings, [""; 0]);
    let own = config.mode.own().expect("mode own");
    let manifest_directory = "/etc/ballast/pods".into();
    assert_eq!(own.pods, PodsConfig::Manifests { manifest_directory });
    assert_eq!(config.state_directory, Path::new("/var/lib/ballast"));
    assert_eq!(config.socket, Path::new("/run/ballast/ballast.sock"));
    let address = config.metrics.address.map(|it| it.to_string());
    assert_eq!(address.as_deref(), Some("127.0.0.1:9464"));
    assert_eq!(config.stats_interval, Duration::from_secs(5));
    assert_eq!(config.log, LogConfig::default());
    assert_eq!(config.bpf.pin_directory, Path::new("/sys/fs/bpf/ballast"));
    assert!(!config.bpf.diagnostics);
    assert_eq!(own.compat, Compat::Ballast);
    assert_eq!(config.kubelet_metric_names, KubeletNames::Both);

    let kubelet = config.kubelet;
    assert_eq!(kubelet.cgroup_root, CgroupName::root());
    assert!(kubelet.cpu_cfs_quota && kubelet.fail_swap_on);
    assert!(!kubelet.fail_cgroup_v1 && !kubelet.memory_qos);
    assert_eq!(kubelet.enforce_node_allocatable, [Enforcement::Pods].into());
    assert_eq!(kubelet.eviction_hard["memory.available"], "100Mi");
    assert_eq!(kubelet.eviction_hard.len(), 5);
    assert_eq!(kubelet.pod_pids_limit, None);
    assert_eq!(kubelet.cpu_cfs_quota_period, Micros(100_000));
    assert_eq!(kubelet.max_pods, 110);
    assert_eq!(kubelet.oom_score_adj, -999);
    assert_eq!(kubelet.memory_throttling_factor, ThrottlingFactor(0.9));
    assert_eq!(kubelet.max_container_log_bytes, 10 << 20);
    assert_eq!(kubelet.max_container_log_files, 5);
    assert_eq!(
        kubelet.max_container_restart_period,
        Duration::from_secs(300)
    );
    assert_eq!(kubelet.sync_frequency, Duration::from_secs(60));
    assert_eq!(kubelet.file_check_frequency, Duration::from_secs(20));
}

#[test]
fn every_fault_of_the_agent_section_names_its_field() {
    for (rest, right) in [
        ("mod: own\n", "mod: unknown field; did you mean \"mode\"?"),
        ("pods: 5\n", "pods: expected a mapping, found the number 5"),
        (
            "pods: {manifestDir: /x}\n",
            "pods.manifestDir: unknown field; did you mean \"manifestDirectory\"?",
        ),
        (
            "pods: {manifestDirectory: pods}\n",
            "pods.manifestDirectory: `pods` is not an absolute path; right would be as /etc/ballast/pods",
        ),
        (
            "pods: {manifestDirectory: /srv/b/pods}\nstateDirectory: /srv/b\n",
            "pods.manifestDirectory: /srv/b/pods and stateDirectory /srv/b lie one in the other; \
             right would be two that are apart, since the agent removes and renames files of its own",
        ),
        (
            "pods: {manifestDirectory: /srv/b}\nstateDirectory: /srv/b/state\n",
            "pods.manifestDirectory: /srv/b and stateDirectory /srv/b/state lie one in the other; \
             right would be two that are apart, since the agent removes and renames files of its own",
        ),
        (
            "pods: {source: kubelet}\n",
            "pods.source: mode own takes no pods from source kubelet; right would be manifests",
        ),
        (
            "runtime: {type: cri, endpoint: unix:///run/x.sock}\n",
            "runtime.type: this build does not run containers by CRI yet; right would be process",
        ),
        (
            "runtime: {endpoint: unix:///run/x.sock}\n",
            "runtime.endpoint: only a runtime of type cri has an endpoint",
        ),
        (
            "runtime: {events: false}\n",
            "runtime.events: only a runtime of type cri tells events",
        ),
        (
            "stateDirectory: /var/../lib\n",
            "stateDirectory: `/var/../lib` has a `.` or `..` in it; right would be as /etc/ballast/pods",
        ),
        (
            "metrics: {tls: {certificateFile: /tls/tls.crt}}\n",
            "metrics.tls.keyFile: is missing; TLS needs a certificate and its key, both in PEM",
        ),
        (
            "metrics: {tls: {certificateFile: tls.crt, keyFile: /tls/tls.key}}\n",
            "metrics.tls.certificateFile: `tls.crt` is not an absolute path; right would be as \
             /etc/ballast/pods",
        ),
        (
            "metrics: {bearerTokenFile: token}\n",
            "metrics.bearerTokenFile: `token` is not an absolute path; right would be as \
             /etc/ballast/pods",
        ),
        (
            "metrics: {statsInterval: 500ms}\n",
            "metrics.statsInterval: `500ms` is out of range; right would be 1s to 1m",
        ),
        (
            "metrics: {address: localhost:9464}\n",
            "metrics.address: `localhost:9464` is not an address; right would be IP:PORT as in \
             127.0.0.1:9464 or [::1]:9464, or an empty string for none",
        ),
        (
            "log: {level: verbose}\n",
            "log.level: `verbose` is not known; right would be one of error, warn, info, debug, trace",
        ),
        (
            "bpf: {diagnostics: \"yes\"}\n",
            "bpf.diagnostics: expected true or false, found the string \"yes\"",
        ),
        (
            "compat: upstream\n",
            "compat: `upstream` is not known; right would be one of ballast, kubelet",
        ),
        (
            "kubeletMetricNames: newest\n",
            "kubeletMetricNames: `newest` is not known; right would be one of both, old, new",
        ),
        (
            "kubeletConfigFile: /k/config.yaml\n",
            "kubeletConfigFile: the file was not read",
        ),
        ("kubelet: []\n", "kubelet: expected a mapping, found a list"),
        (
            "kubelet: {kind: Pod}\n",
            "kubelet.kind: \"Pod\" is not understood; right would be KubeletConfiguration",
        ),
    ] {
        assert_eq!(faults(rest), [right], "{rest}");
    }
    let long = format!("socket: /{}\n", "s".repeat(107));
    assert_eq!(
        faults(&long),
        ["socket: the path is longer than the 107 bytes of a socket address"]
    );
    assert_eq!(
        good("metrics: {statsInterval: 1m}\n").config.stats_interval,
        Duration::from_secs(60)
    );
    assert_eq!(
        good("metrics: {address: \"\"}\n").config.metrics.address,
        None
    );
    assert!(!good("").config.metrics.timestamps);
    assert!(
        good("metrics: {timestamps: true}\n")
            .config
            .metrics
            .timestamps
    );
}

#[test]
fn the_head_is_required_and_modes_to_come_are_named() {
    let message = |text: &str| {
        let error = Config::from_yaml(text, None, &[]).expect_err("the fixture has faults");
        error.to_string()
    };
    assert_eq!(
        message("{}"),
        "3 faults in the configuration\n  \
         apiVersion: is missing; right would be ballast.dev/v1alpha1\n  \
         kind: is missing; right would be AgentConfiguration\n  \
         mode: is missing; right would be own or observe"
    );
    assert_eq!(message(""), "the file is empty");
    assert_eq!(message("- a"), "the file is not a mapping of fields");
    assert_eq!(
        message("a: 1\na: 2"),
        "line 1, column 1: the key \"a\" stands twice"
    );
    let assist = HEAD.replace("own", "assist");
    assert_eq!(
        message(&assist),
        "mode: this build does not have mode assist yet; right would be own or observe"
    );
}

#[test]
fn every_fault_of_the_kubelet_section_names_its_field() {
    for (fields, right) in [
        (
            "evictionHrad: {}",
            "kubelet.evictionHrad: unknown field; did you mean \"evictionHard\"?",
        ),
        (
            "maxPods: -1",
            "kubelet.maxPods: -1 is out of range; right would be 0 to 2147483647",
        ),
        (
            "maxPods: many",
            "kubelet.maxPods: expected a whole number, found the string \"many\"",
        ),
        (
            "oomScoreAdj: -1001",
            "kubelet.oomScoreAdj: -1001 is out of range; right would be -1000 to 1000",
        ),
        (
            "memoryThrottlingFactor: 0",
            "kubelet.memoryThrottlingFactor: 0 is out of range; right would be above 0 and at most 1",
        ),
        (
            "cpuCFSQuotaPeriod: 2s",
            "kubelet.cpuCFSQuotaPeriod: `2s` is out of range; right would be 1ms to 1s",
        ),
        (
            "cpuCFSQuotaPeriod: 10ms, featureGates: {CustomCPUCFSQuotaPeriod: false}",
            "kubelet.cpuCFSQuotaPeriod: needs the feature gate CustomCPUCFSQuotaPeriod; right would be 100ms",
        ),
        (
            "syncFrequency: 1 minute",
            "kubelet.syncFrequency: \"1 minute\" is not a duration; right would be a number with a \
             unit, as in \"100ms\", \"20s\" or \"1h30m\"",
        ),
        (
            "fileCheckFrequency: -1s",
            "kubelet.fileCheckFrequency: `-1s` is negative; right would be as 20s",
        ),
        (
            "kubeReserved: {hugepages-2Mi: 1Gi}",
            "kubelet.kubeReserved.hugepages-2Mi: cannot be reserved; right would be one of cpu, \
             memory, ephemeral-storage, pid",
        ),
        (
            "systemReserved: {memory: -1Gi}",
            "kubelet.systemReserved.memory: `-1Gi` is negative; right would be 0 or more",
        ),
        (
            "evictionHard: {memory.available: 0}",
            "kubelet.evictionHard[\"memory.available\"]: `0` is not above 0; right would be as in 100Mi",
        ),
        (
            "evictionHard: {memory.available: 101%}",
            "kubelet.evictionHard[\"memory.available\"]: `101%` is above 100%; right would be 0% to 100%",
        ),
        (
            "evictionSoft: {memory.available: 1Gi}",
            "kubelet.evictionSoft[\"memory.available\"]: a soft threshold needs a grace period in \
             evictionSoftGracePeriod",
        ),
        (
            "evictionSoftGracePeriod: {memory.available: -1s}",
            "kubelet.evictionSoftGracePeriod[\"memory.available\"]: `-1s` is negative; right would be \
             0s or more",
        ),
        (
            "evictionMinimumReclaim: {memory.available: 0%}",
            "kubelet.evictionMinimumReclaim[\"memory.available\"]: `0%` is too little to reclaim; right would be as in 500Mi, or above 0%",
        ),
        (
            "enforceNodeAllocatable: [pods, pods]",
            "kubelet.enforceNodeAllocatable[1]: `pods` stands twice",
        ),
        (
            "enforceNodeAllocatable: [none, pods]",
            "kubelet.enforceNodeAllocatable[0]: `none` must stand alone",
        ),
        (
            "enforceNodeAllocatable: [kube-reserved], kubeReserved: {cpu: 1}",
            "kubelet.enforceNodeAllocatable[0]: `kube-reserved` needs kubeReservedCgroup",
        ),
        (
            "enforceNodeAllocatable: [kube-reserved-compressible], kubeReservedCgroup: /kube",
            "kubelet.enforceNodeAllocatable[0]: `kube-reserved-compressible` needs kubeReserved",
        ),
        (
            "systemReservedCgroup: /daemons, kubeReservedCgroup: /daemons",
            "kubelet.kubeReservedCgroup: is systemReservedCgroup as well; right would be a cgroup \
             of its own",
        ),
        (
            "systemReservedCgroup: /",
            "kubelet.systemReservedCgroup: the root cgroup cannot be limited; right would be a \
             cgroup below it",
        ),
        (
            "enforceNodeAllocatable: [system-reserved, system-reserved-compressible], \
             systemReservedCgroup: /system, systemReserved: {cpu: 1}",
            "kubelet.enforceNodeAllocatable: has both `system-reserved` and \
             `system-reserved-compressible`; right would be one",
        ),
        (
            "cgroupsPerQOS: false, enforceNodeAllocatable: [none]",
            "kubelet.cgroupsPerQOS: false is refused: pods without cgroups of their own could be \
             neither limited nor watched; right would be true",
        ),
        (
            "reservedSystemCPUs: \"0-1\", kubeReservedCgroup: /kube",
            "kubelet.reservedSystemCPUs: cannot be combined with systemReservedCgroup or kubeReservedCgroup",
        ),
        (
            "qosReserved: {memory: 50%}",
            "kubelet.qosReserved: needs the feature gate QOSReserved; leave it out",
        ),
        (
            "qosReserved: {memory: 101%}, featureGates: {QOSReserved: true}",
            "kubelet.qosReserved.memory: `101%` is not a percentage; right would be 0% to 100%",
        ),
        (
            "qosReserved: {cpu: 50%}, featureGates: {QOSReserved: true}",
            "kubelet.qosReserved.cpu: only memory can be reserved by QoS class",
        ),
        (
            "memoryReservationPolicy: TieredReservation",
            "kubelet.memoryReservationPolicy: TieredReservation needs the feature gate MemoryQoS; \
             right would be None",
        ),
        (
            "memorySwap: {swapBehavior: UnlimitedSwap}",
            "kubelet.memorySwap.swapBehavior: `UnlimitedSwap` is not known; right would be one of \
             NoSwap, LimitedSwap",
        ),
        (
            "featureGates: {NodeSwap: false}",
            "kubelet.featureGates.NodeSwap: the feature is always on in Kubernetes 1.36; right would be true",
        ),
        (
            "containerLogMaxFiles: 1",
            "kubelet.containerLogMaxFiles: 1 leaves no room to rotate; right would be 2 or more",
        ),
        (
            "containerLogMaxSize: -1",
            "kubelet.containerLogMaxSize: expected a string, found the number -1",
        ),
        (
            "crashLoopBackOff: {maxContainerRestartPeriod: 301s}",
            "kubelet.crashLoopBackOff.maxContainerRestartPeriod: `301s` is out of range; right would \
             be 1s to 5m",
        ),
        (
            "cpuManagerPolicyOptions: {full-pcpus-only: true}",
            "kubelet.cpuManagerPolicyOptions: are options of the policy static; right would be \
             cpuManagerPolicy: static, or none of them",
        ),
        (
            "memoryManagerPolicy: static",
            "kubelet.memoryManagerPolicy: `static` is not known; right would be one of None, Static",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 0, limits: {memory: 1Gi}}]",
            "kubelet.reservedMemory[1].limits.memory: is given twice for NUMA node 0",
        ),
        (
            "reservedMemory: [{numaNode: 0, limits: {cpu: 1}}]",
            "kubelet.reservedMemory[0].limits.cpu: cannot be reserved on a NUMA node; right would be \
             memory or hugepages-SIZE",
        ),
        (
            "cgroupDriver: systemd",
            "kubelet.cgroupDriver: systemd is refused: this build does not drive systemd; right would be cgroupfs",
        ),
        (
            "seccompDefault: true",
            "kubelet.seccompDefault: true is refused: the process runtime applies no seccomp profile; \
             right would be false",
        ),
    ] {
        assert_eq!(
            faults(&format!("kubelet: {{{fields}}}\n")),
            [right],
            "{fields}"
        );
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let found = faults(
        "log: {level: loud, fromat: text}\nkubelet:\n  maxPods: -1\n  evictionHard: {disk: 1%}\n  podsPerCore: x\n",
    );
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn zero_values_stand_for_defaults_as_in_kubelet() {
    let zero = kubelet(
        "maxPods: 0, syncFrequency: 0s, fileCheckFrequency: \"\", evictionPressureTransitionPeriod: 0s, \
         cgroupRoot: \"\", cpuManagerPolicy: \"\", cpuManagerReconcilePeriod: 0s, memorySwap: {}, \
         reservedMemory: [], containerLogMaxSize: \"\", podPidsLimit: -1, systemCgroups: \"\"",
    );
    assert_eq!(zero, good("").config.kubelet);
}

#[test]
fn honoured_fields_arrive() {
    let config = kubelet(
        "cgroupRoot: /demo, kubeReserved: {cpu: 500m, memory: 1Gi, pid: \"100\"}, podPidsLimit: 64, \
         enforceNodeAllocatable: [pods, kube-reserved-compressible], kubeReservedCgroup: /kube, \
         featureGates: {MemoryQoS: true, QOSReserved: true}, qosReserved: {memory: 50%}, \
         memoryReservationPolicy: TieredReservation, memorySwap: {swapBehavior: LimitedSwap}, \
         failCgroupV1: true, singleProcessOOMKill: false, cpuCFSQuotaPeriod: 10ms, \
         evictionSoft: {memory.available: 10%}, evictionSoftGracePeriod: {memory.available: 1m30s}",
    );
    assert_eq!(config.cgroup_root.components(), ["demo"]);
    assert_eq!(config.kube_reserved["cpu"].millis(), 500);
    assert_eq!(config.pod_pids_limit, Some(64));
    assert_eq!(config.enforce_node_allocatable.len(), 2);
    assert_eq!(config.qos_reserved_memory_percent, Some(50));
    assert_eq!(
        config.memory_reservation_policy,
        MemoryReservationPolicy::TieredReservation
    );
    assert_eq!(config.swap_behavior, SwapBehavior::LimitedSwap);
    assert!(config.fail_cgroup_v1);
    assert_eq!(config.single_process_oom_kill, Some(false));
    assert_eq!(config.cpu_cfs_quota_period, Micros(10_000));
    let grace = config.eviction_soft_grace_period["memory.available"];
    assert_eq!(grace, Duration::from_secs(90));
}

#[test]
fn placement_arrives() {
    let placement = kubelet(
        "cpuManagerPolicy: static, cpuManagerPolicyOptions: {full-pcpus-only: true}, \
         memoryManagerPolicy: Static, topologyManagerPolicy: single-numa-node, \
         topologyManagerScope: pod, topologyManagerPolicyOptions: {max-allowable-numa-nodes: 16}, \
         reservedMemory: [{numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 4Mi}}], \
         featureGates: {CPUManagerPolicyAlphaOptions: true}",
    )
    .placement;
    assert_eq!(placement.cpu_manager_policy, CpuManagerPolicy::Static);
    assert_eq!(
        placement.cpu_manager_policy_options["full-pcpus-only"],
        "true"
    );
    assert_eq!(placement.memory_manager_policy, MemoryManagerPolicy::Static);
    assert_eq!(
        placement.topology_manager_policy,
        TopologyManagerPolicy::SingleNumaNode
    );
    assert_eq!(placement.topology_manager_scope, TopologyManagerScope::Pod);
    assert_eq!(
        placement.topology_manager_policy_options["max-allowable-numa-nodes"],
        "16"
    );
    assert_eq!(placement.reserved_memory.len(), 1);
    assert!(placement.cpu_manager_alpha_options && placement.cpu_manager_beta_options);
    assert!(placement.lifts_quota_of_exclusive_cpus);
    assert!(!placement.pod_level_resource_managers);
}

#[test]
fn listed_cpus_take_the_place_of_reserved_amounts() {
    let config = kubelet(
        "reservedSystemCPUs: \"0-2,8\", kubeReserved: {cpu: 1, memory: 1Gi}, systemReserved: {cpu: 7}",
    );
    assert!(!config.kube_reserved.contains_key("cpu"));
    assert_eq!(config.kube_reserved["memory"].units(), 1 << 30);
    assert_eq!(config.system_reserved["cpu"].units(), 4);
    let cpus = config.reserved_system_cpus.map(|it| it.to_string());
    assert_eq!(cpus.as_deref(), Some("0-2,8"));
}

#[test]
fn given_thresholds_replace_the_defaults_unless_merged() {
    let hard = |fields: &str| kubelet(fields).eviction_hard;
    assert!(hard("evictionHard: {}").is_empty());
    let one = hard("evictionHard: {nodefs.available: 5%}");
    assert_eq!(
        one.into_iter().collect::<Vec<_>>(),
        [("nodefs.available".into(), "5%".into())]
    );
    let merged = hard("evictionHard: {nodefs.available: 0%}, mergeDefaultEvictionSettings: true");
    assert_eq!(
        (merged.len(), merged["nodefs.available"].as_str()),
        (5, "0%")
    );
}

#[test]
fn compat_restores_kubelets_refusal_of_cgroup_v1() {
    let config = |rest: &str| good(rest).config.kubelet.fail_cgroup_v1;
    assert!(!config(""));
    assert!(config("compat: kubelet\n"));
    assert!(!config("compat: kubelet\nkubelet: {failCgroupV1: false}\n"));
}

#[test]
fn files_merge_in_order_and_inline_wins() {
    let text = format!(
        "{HEAD}kubeletConfigFile: /k/config.yaml\nkubeletConfigDirectory: /k/conf.d\nkubelet: {{maxPods: 3}}\n"
    );
    let needed = files_needed(&text);
    assert_eq!(
        needed.kubelet_config_file.as_deref(),
        Some(Path::new("/k/config.yaml"))
    );
    assert_eq!(
        needed.kubelet_config_directory.as_deref(),
        Some(Path::new("/k/conf.d"))
    );
    assert!(is_drop_in("10-a.conf") && !is_drop_in("10-a.conf.bak"));

    let base = format!(
        "{KUBELET_HEAD}maxPods: 1\npodsPerCore: 1\nevictionHard: {{memory.available: 1Gi}}\n"
    );
    let drop_in = |rest: &str| format!("{KUBELET_HEAD}{rest}");
    let drop_ins = [
        ("/k/conf.d/20.conf".into(), drop_in("podsPerCore: 20\n")),
        (
            "/k/conf.d/10.conf".into(),
            drop_in("maxPods: 2\npodsPerCore: 10\nevictionHard: {nodefs.available: 5%}\n"),
        ),
    ];
    let file = Some((Path::new("/k/config.yaml"), base.as_str()));
    let loaded = Config::from_yaml(&text, file, &drop_ins).expect("the fixture has no faults");
    let kubelet = loaded.config.kubelet;
    assert_eq!((kubelet.max_pods, kubelet.pods_per_core), (3, 20));
    assert_eq!(kubelet.eviction_hard.len(), 2);
}

#[test]
fn faults_of_files_name_the_file() {
    let text = format!("{HEAD}kubeletConfigFile: /k/config.yaml\nkubelet: {{oomScoreAdj: 2000}}\n");
    let base = format!("{KUBELET_HEAD}maxPods: -1\noomScoreAdj: 5\n");
    let drop_ins = [
        (
            "/k/a.conf".into(),
            "kind: KubeletConfiguration\npodsPerCore: -5\n".to_owned(),
        ),
        ("/k/b.conf".into(), "a: [".to_owned()),
    ];
    let file = Some((Path::new("/k/config.yaml"), base.as_str()));
    let error = Config::from_yaml(&text, file, &drop_ins).expect_err("the fixture has faults");
    let found: Vec<String> = error.faults.iter().map(Fault::to_string).collect();
    for right in [
        "/k/config.yaml: maxPods: -1 is out of range",
        "/k/a.conf: apiVersion: is missing",
        "/k/a.conf: podsPerCore: -5 is out of range",
        "/k/b.conf: line 2",
        "kubelet.oomScoreAdj: 2000 is out of range",
    ] {
        assert!(
            found.iter().any(|it| it.starts_with(right)),
            "{right} is not in {found:#?}"
        );
    }
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn a_file_that_cannot_be_read_is_one_fault_among_others() {
    let text = format!(
        "{HEAD}kubeletConfigFile: /k/config.yaml\nkubeletConfigDirectory: k\nbogus: 1\n\
         kubelet: {{evictionHard: {{memory.available: 200%, nodefs.available: 5%}}}}\n"
    );
    let needed = files_needed(&text);
    assert_eq!(
        needed.kubelet_config_file.as_deref(),
        Some(Path::new("/k/config.yaml"))
    );
    assert_eq!(needed.kubelet_config_directory, None);
    assert_eq!(files_needed("a: ["), FilesNeeded::default());
    let unread = Fault {
        file: None,
        field: FieldPath::of("kubeletConfigFile"),
        message: "/k/config.yaml is not there".to_owned(),
    };
    let draft = Config::draft(&text, None, &[], vec![unread]).expect("it is a mapping");
    let found: Vec<String> = draft.faults.iter().map(Fault::to_string).collect();
    assert_eq!(
        found,
        [
            "bogus: unknown field",
            "kubeletConfigFile: /k/config.yaml is not there",
            "kubeletConfigDirectory: `k` is not an absolute path; right would be as /etc/ballast/pods",
            "kubelet.evictionHard[\"memory.available\"]: `200%` is above 100%; right would be 0% to 100%",
        ]
    );
    for (field, is_doubtful) in [
        ("kubelet.maxPods", true),
        ("bogus", true),
        ("socket", false),
        ("mode", false),
    ] {
        assert_eq!(
            draft.is_doubtful(&FieldPath::of(field)),
            is_doubtful,
            "{field}"
        );
    }
    let hard = draft.loaded.config.kubelet.eviction_hard;
    assert_eq!(Vec::from_iter(hard.keys()), ["nodefs.available"]);
}

/// What kubeadm writes on a node, shortened; the cgroup driver is the one thing to change.
#[test]
fn a_kubelet_file_is_read_as_it_is_and_tells_what_it_ignores() {
    let text = format!("{HEAD}kubeletConfigFile: /k/config.yaml\n");
    let base = format!(
        "{KUBELET_HEAD}\
         authentication: {{anonymous: {{enabled: false}}, webhook: {{cacheTTL: 0s, enabled: true}}}}\n\
         cgroupDriver: cgroupfs\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\n\
         containerRuntimeEndpoint: \"\"\ncpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {{}}\n\
         evictionPressureTransitionPeriod: 0s\nhealthzPort: 10248\nimageMinimumGCAge: 0s\n\
         logging: {{flushFrequency: 0, options: {{json: {{infoBufferSize: \"0\"}}}}}}\nmemorySwap: {{}}\n\
         rotateCertificates: true\nstaticPodPath: /etc/kubernetes/manifests\n\
         featureGates: {{DynamicResourceAllocation: true}}\nevictionSoft: {{}}\nfieldOf138: 1\n"
    );
    let file = Some((Path::new("/k/config.yaml"), base.as_str()));
    let loaded = Config::from_yaml(&text, file, &[]).expect("the fixture has no faults");
    assert_eq!(
        loaded.warnings,
        [
            "/k/config.yaml: fieldOf138: unknown field, ignored",
            "kubelet fields ignored, ballast does not serve kubelet's HTTP API: authentication, healthzPort",
            "kubelet fields ignored, pods come from manifests, no API server is spoken to: rotateCertificates",
            "kubelet fields ignored, pod networking is left alone: clusterDNS, clusterDomain",
            "kubelet fields ignored, pods.manifestDirectory names the manifests: staticPodPath",
            "kubelet fields ignored, the agent's own `log` section applies: logging",
            "feature gates without effect, nothing in this build depends on them: DynamicResourceAllocation",
        ]
    );
    let soft = "kubelet: {evictionSoft: {memory.available: 1Gi}, evictionSoftGracePeriod: {memory.available: 1m}}\n";
    assert_eq!(good(soft).warnings, [""; 0]);
}

#[test]
fn the_table_of_fields_and_the_fields_read_are_the_same() {
    let names: BTreeSet<&str> = FIELDS.iter().map(|(name, _)| *name).collect();
    // 125 of the type itself in Kubernetes 1.36, and the two of every typed object.
    assert_eq!((names.len(), FIELDS.len()), (127, 127));
    let used = FIELDS
        .iter()
        .filter(|(_, it)| *it == Treatment::Honoured)
        .map(|(name, _)| *name)
        .filter(|name| !["apiVersion", "kind"].contains(name));
    let used: BTreeSet<&str> = used.collect();
    let read: BTreeSet<&str> = RawKubelet::FIELDS.iter().copied().collect();
    assert_eq!(used, read);
}

#[test]
fn the_effective_configuration_reads_like_the_file() {
    let config = good("kubelet: {syncFrequency: 90s}\n").config;
    let json = serde_json::to_value(&config).expect("a configuration is representable");
    assert_eq!(json["mode"], "own");
    assert_eq!(json["pods"]["source"], "manifests");
    assert_eq!(json["kubelet"]["syncFrequency"], "1m30s");
}

#[test]
fn damaged_configurations_never_panic() {
    let text = include_str!("../../../deploy/config.yaml");
    let mut state: u64 = 0x5eed;
    let mut next = |bound: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(state >> 33).expect("31 bits fit") % bound
    };
    for _ in 0..300 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=next(4) {
            let at = next(bytes.len());
            match next(3) {
                0 => bytes[at] = b"-0%9:{}[]\"' \n#aZ"[next(16)],
                1 => drop(bytes.drain(at..(at + next(20)).min(bytes.len()))),
                _ => bytes.insert(at, b"-0%9:{}[]\"' \n#aZ"[next(16)]),
            }
        }
        let damaged = String::from_utf8_lossy(&bytes);
        drop(files_needed(&damaged));
        drop(Config::from_yaml(
            &damaged,
            Some((Path::new("/k"), &damaged)),
            &[],
        ));
    }
}

#[test]
fn mode_observe_has_settings_of_its_own() {
    let head = HEAD.replace("own", "observe");
    let load = |rest: &str| Config::from_yaml(&format!("{head}{rest}"), None, &[]);
    let shipped = include_str!("../../../deploy/config-observe.yaml");
    let shipped = Config::from_yaml(shipped, None, &[]).expect("the shipped file has no faults");
    assert_eq!(shipped, load("").expect("the head is enough"));
    let json = serde_json::to_value(&shipped.config).expect("a configuration is representable");
    assert_eq!(
        (&json["mode"], json.get("compat")),
        (&"observe".into(), None)
    );
    for (rest, field) in [
        ("pods: {manifestDirectory: /pods}", "pods.manifestDirectory"),
        (
            "pods: {removeUnknownCgroups: true}",
            "pods.removeUnknownCgroups",
        ),
        ("kubeletDirectory: /k", "kubeletDirectory"),
        ("compat: kubelet", "compat"),
        ("kubeletMetricNames: old", "kubeletMetricNames"),
        (
            "eviction: {memoryMethod: estimate}",
            "eviction.memoryMethod",
        ),
        ("eviction: {stages: {}}", "eviction.stages"),
        ("eviction: {stall: {}}", "eviction.stall"),
        ("eviction: {record: {}}", "eviction.record"),
        ("kubernetes: {nodeName: Node_1}", "kubernetes.nodeName"),
        ("kubernetes: {nodeName: \"\"}", "kubernetes.nodeName"),
        (
            "kubernetes: {kubeconfigFile: k}",
            "kubernetes.kubeconfigFile",
        ),
        ("kubernetes: {node: n}", "kubernetes.node"),
        (
            "pods: {source: none}\nkubernetes: {kubeconfigFile: /k}",
            "kubernetes.kubeconfigFile",
        ),
        ("pods: {source: manifests}", "pods.source"),
        ("runtime: {type: process}", "runtime.type"),
        ("runtime: {type: docker}", "runtime.type"),
        ("runtime: {type: cri, socket: /x}", "runtime.socket"),
        (
            "runtime: {type: none, endpoint: unix:///x}",
            "runtime.endpoint",
        ),
        ("runtime: {type: none, events: true}", "runtime.events"),
        ("runtime: {endpoint: /run/x.sock}", "runtime.endpoint"),
        ("runtime: {endpoint: tcp://127.0.0.1:1}", "runtime.endpoint"),
        ("runtime: {endpoint: unix://run/x.sock}", "runtime.endpoint"),
        ("kubelet: {cgroupRoot: a/../b}", "kubelet.cgroupRoot"),
        (
            "kubelet: {evictionHard: {memory.available: x}}",
            "kubelet.evictionHard[\"memory.available\"]",
        ),
        ("kubelet: {maxPod: 1}", "kubelet.maxPod"),
        ("kubelet: {cgroupDriver: foo}", "kubelet.cgroupDriver"),
        ("kubelet: {maxPods: many}", "kubelet.maxPods"),
    ] {
        let error = load(rest).expect_err(rest);
        let faults: Vec<String> = error.faults.iter().map(|it| it.field.to_string()).collect();
        assert_eq!(faults, [field], "{rest}");
    }
}

#[test]
fn only_mode_observe_asks_an_api_server() {
    let error = Config::from_yaml(&format!("{HEAD}kubernetes: {{nodeName: n}}\n"), None, &[]);
    let faults = error.expect_err("mode own").faults;
    assert_eq!(faults.len(), 1);
    assert_eq!(faults[0].field.to_string(), "kubernetes");
    let head = HEAD.replace("own", "observe");
    let observed = |rest: &str| {
        let loaded = Config::from_yaml(&format!("{head}{rest}"), None, &[]);
        match loaded.expect("no fault").config.mode {
            Mode::Observe(observe) => (observe.pods, observe.kubernetes),
            Mode::Own(_) => panic!("another mode"),
        }
    };
    assert_eq!(
        observed(""),
        (ObservedPods::Any, KubernetesConfig::default())
    );
    assert_eq!(observed("pods: {source: none}").0, ObservedPods::None);
    assert_eq!(
        observed("pods: {source: apiserver}").0,
        ObservedPods::ApiServer
    );
    assert_eq!(observed("pods: {source: kubelet}").0, ObservedPods::Kubelet);
    let kubernetes = observed("kubernetes: {nodeName: n.example, kubeconfigFile: /k}").1;
    assert_eq!(kubernetes.node_name.as_deref(), Some("n.example"));
    assert_eq!(kubernetes.kubeconfig_file, Some("/k".into()));
}

#[test]
fn mode_observe_asks_the_runtime_unless_it_is_told_not_to() {
    let head = HEAD.replace("own", "observe");
    let runtime = |rest: &str| {
        let loaded = Config::from_yaml(&format!("{head}{rest}"), None, &[]);
        match loaded.expect("no fault").config.mode {
            Mode::Observe(observe) => observe.runtime,
            Mode::Own(_) => panic!("another mode"),
        }
    };
    let cri = |endpoint: Option<&str>| ObservedRuntime::Cri {
        endpoint: endpoint.map(Into::into),
        events: true,
    };
    assert_eq!(runtime(""), cri(None));
    assert_eq!(runtime("runtime: {}"), cri(None));
    assert_eq!(runtime("runtime: {type: cri}"), cri(None));
    assert_eq!(runtime("runtime: {type: none}"), ObservedRuntime::None);
    let endpoint = "runtime: {type: cri, endpoint: unix:///run/x.sock}";
    assert_eq!(runtime(endpoint), cri(Some("/run/x.sock")));
    let quiet = ObservedRuntime::Cri {
        endpoint: None,
        events: false,
    };
    assert_eq!(runtime("runtime: {events: false}"), quiet);
    let long = format!("runtime: {{endpoint: unix:///{}}}", "x".repeat(108));
    let error = Config::from_yaml(&format!("{head}{long}"), None, &[]).expect_err("too long");
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[test]
fn what_mode_observe_does_not_go_by_is_said_to_have_no_effect() {
    let head = HEAD.replace("own", "observe");
    let load = |kubelet: &str| {
        let loaded = Config::from_yaml(&format!("{head}kubelet: {kubelet}\n"), None, &[]);
        let loaded = loaded.expect("no fault");
        let Mode::Observe(observe) = loaded.config.mode else {
            panic!("another mode");
        };
        (loaded.warnings, observe.knows_thresholds)
    };
    let (warnings, _) = load("{oomScoreAdj: 2000, evictionHard: {}, cgroupRoot: /a}");
    let expected = "kubelet.oomScoreAdj has no effect in mode observe: kubelet goes by its own";
    assert_eq!(warnings, [expected]);
    assert_eq!(load("{}"), (Vec::new(), false));
    assert!(load("{evictionHard: {}}").1);
}

#[test]
fn a_kubelet_that_runs_goes_by_its_file_its_drop_ins_its_command_line_and_last_by_what_is_said_here()
 {
    let base = format!(
        "{KUBELET_HEAD}evictionHard: {{memory.available: 1Gi, nodefs.available: 5%}}\n\
         kubeReserved: {{cpu: 100m}}\nmaxPods: 1\ncgroupRoot: /a\n"
    );
    let drop_ins = [(
        "/k/conf.d/10.conf".into(),
        format!(
            "{KUBELET_HEAD}evictionHard: {{memory.available: 2Gi}}\nsystemReserved: {{cpu: 1}}\n"
        ),
    )];
    let settings = |flags: &str, section: serde_json::Value| {
        let flags = KubeletFlags::parse(flags.split_whitespace());
        let section = section.as_object().expect("a mapping").clone();
        let file = Some((Path::new("/k/config.yaml"), base.as_str()));
        KubeletSettings::new(file, &drop_ins, &flags, &section).expect("they are parsed")
    };
    let found = settings("", serde_json::json!({}));
    assert_eq!(found.warnings, [""; 0]);
    assert_eq!(found.cgroup_roots[0].to_string(), "/a");
    let hard = |of: &KubeletSettings| {
        let pairs = of.kubelet.eviction_hard.iter();
        let pairs: Vec<String> = pairs.map(|(name, it)| format!("{name}={it}")).collect();
        pairs.join(" ")
    };
    assert_eq!(hard(&found), "memory.available=2Gi nodefs.available=5%");
    assert_eq!(found.kubelet.max_pods, 1);
    // A map of the command line takes the place of that of the files.
    let flags = "--eviction-hard=memory.available<3Gi --max-pods=7 --cgroup-root=/b";
    let found = settings(flags, serde_json::json!({}));
    assert_eq!(hard(&found), "memory.available=3Gi");
    assert_eq!(found.kubelet.max_pods, 7);
    assert_eq!(found.cgroup_roots[0].to_string(), "/b");
    let section = serde_json::json!({"evictionHard": {"memory.available": "4Gi"}});
    assert_eq!(hard(&settings(flags, section)), "memory.available=4Gi");
    // What is not understood is told, and is as if it were not set.
    let found = settings(
        "--eviction-hard=memory.available<x --max-pods=-2",
        serde_json::json!({}),
    );
    assert_eq!(found.warnings.len(), 2, "{:#?}", found.warnings);
    for warning in &found.warnings {
        let is_told = warning.starts_with("kubelet's command line: ");
        assert!(
            is_told && warning.ends_with("; taken as not set"),
            "{warning}"
        );
    }
    assert_eq!(hard(&found), "");
    // As kubelet takes it.
    let twice = format!("{KUBELET_HEAD}maxPods: 5\nmaxPods: 6\n");
    let file = Some((Path::new("/k/config.yaml"), twice.as_str()));
    let flags = KubeletFlags::default();
    let found = KubeletSettings::new(file, &[], &flags, &serde_json::Map::new());
    let found = found.expect("it is parsed");
    assert_eq!(found.kubelet.max_pods, 6);
    assert_eq!(
        found.warnings,
        ["/k/config.yaml: maxPods stands twice; the last one counts"]
    );
    let broken = [("/k/b.conf".into(), "a: [".to_owned())];
    let error = KubeletSettings::new(None, &broken, &flags, &serde_json::Map::new());
    let error = error.expect_err("it is not parsed").to_string();
    assert!(error.starts_with("/k/b.conf: "), "{error}");
}

#[test]
fn a_kubelet_that_was_asked_goes_by_what_it_says() {
    let text = include_str!("../../../tests/data/kube/kubelet_configz.json");
    let configz: serde_json::Value = serde_json::from_str(text).expect("it is JSON");
    let mut fields = configz["kubeletconfig"].clone();
    let told = |fields: &serde_json::Value, section: serde_json::Value| {
        let fields = fields.as_object().expect("a mapping");
        KubeletSettings::told(fields, section.as_object().expect("a mapping"))
    };
    let none = || serde_json::json!({});
    let found = told(&fields, none());
    assert_eq!(found.warnings, [""; 0]);
    assert_eq!(found.cgroup_roots[0].to_string(), "/kspec");
    assert_eq!(found.kubelet.eviction_hard["memory.available"], "100Mi");
    assert_eq!(found.kubelet.eviction_hard["nodefs.available"], "1%");
    assert!(!found.kubelet.fail_swap_on);
    let section = serde_json::json!({"evictionHard": {"memory.available": "4Gi"}});
    let hard = told(&fields, section).kubelet.eviction_hard;
    assert_eq!(hard["memory.available"], "4Gi");
    let default = Path::new("/run/containerd/containerd.sock");
    assert_eq!(found.runtime_socket.as_deref(), Some(default));
    fields["containerRuntimeEndpoint"] = "unix:///run/k3s/containerd/containerd.sock".into();
    let socket = told(&fields, none()).runtime_socket;
    assert_eq!(
        socket.as_deref(),
        Some(Path::new("/run/k3s/containerd/containerd.sock"))
    );
    let removed = fields
        .as_object_mut()
        .expect("a mapping")
        .remove("containerRuntimeEndpoint");
    assert!(removed.is_some());
    assert_eq!(told(&fields, none()).runtime_socket, None);
    // An empty map is left out of what it says.
    fields["evictionHard"] = serde_json::Value::Null;
    assert!(told(&fields, none()).kubelet.eviction_hard.is_empty());
    fields["maxPods"] = "many".into();
    let warnings = told(&fields, none()).warnings;
    assert!(
        matches!(warnings.as_slice(), [it] if it.starts_with("kubelet's /configz: maxPods: ")),
        "{warnings:?}"
    );
}

#[test]
fn the_runtime_of_a_kubelet_is_that_of_its_file_and_then_of_its_command_line() {
    for (file, flags, right) in [
        ("maxPods: 1", "", Some("/run/containerd/containerd.sock")),
        (
            "containerRuntimeEndpoint: unix:///run/crio/crio.sock",
            "",
            Some("/run/crio/crio.sock"),
        ),
        (
            "containerRuntimeEndpoint: unix:///run/crio/crio.sock",
            "--container-runtime-endpoint=unix:/run/other.sock",
            Some("/run/other.sock"),
        ),
        (
            "containerRuntimeEndpoint: npipe:////./pipe/containerd",
            "",
            None,
        ),
    ] {
        let file = format!("{KUBELET_HEAD}{file}\n");
        let flags = KubeletFlags::parse(flags.split_whitespace());
        let file = Some((Path::new("/k"), file.as_str()));
        let found = KubeletSettings::new(file, &[], &flags, &serde_json::Map::new());
        let found = found.expect("they are parsed").runtime_socket;
        assert_eq!(found.as_deref(), right.map(Path::new));
    }
}

#[test]
fn a_kubelet_gives_pods_cgroups_unless_it_is_told_not_to() {
    for (file, flags, right) in [
        ("maxPods: 1", "", true),
        ("cgroupsPerQOS: true", "", true),
        ("cgroupsPerQOS: false", "", false),
        ("cgroupsPerQOS: false", "--cgroups-per-qos", true),
        ("maxPods: 1", "--cgroups-per-qos=false", false),
    ] {
        let file = format!("{KUBELET_HEAD}{file}\n");
        let flags = KubeletFlags::parse(flags.split_whitespace());
        let file = Some((Path::new("/k"), file.as_str()));
        let found = KubeletSettings::new(file, &[], &flags, &serde_json::Map::new());
        let found = found.expect("they are parsed");
        assert_eq!(found.has_pod_cgroups, right, "{file:?} {flags:?}");
        assert_eq!(found.warnings, [""; 0]);
    }
    let told = serde_json::json!({"cgroupsPerQOS": false});
    let told = told.as_object().expect("a mapping");
    assert!(!KubeletSettings::told(told, &serde_json::Map::new()).has_pod_cgroups);
}

/// Kubelet puts its default thresholds into the file that it is started with, and nowhere else.
#[test]
fn default_thresholds_are_those_of_the_file_that_a_kubelet_is_started_with() {
    let hard = |file: Option<&str>, drop_in: &str, flags: &str| {
        let file = file.map(|it| format!("{KUBELET_HEAD}{it}\n"));
        let file = file.as_deref().map(|it| (Path::new("/k"), it));
        let drop_ins = [("/d/a.conf".into(), format!("{KUBELET_HEAD}{drop_in}\n"))];
        let flags = KubeletFlags::parse(flags.split_whitespace());
        let found = KubeletSettings::new(file, &drop_ins, &flags, &serde_json::Map::new());
        let found = found.expect("they are parsed");
        assert_eq!(found.warnings, [""; 0]);
        let hard = found.kubelet.eviction_hard;
        (hard.len(), hard.get("memory.available").cloned())
    };
    let is = |n: usize, memory: &str| (n, Some(memory.to_owned()));
    let less = "evictionHard: {memory.available: 1Gi}";
    let merging = "mergeDefaultEvictionSettings: true";
    let both = format!("{less}\n{merging}");
    assert_eq!(hard(Some("maxPods: 1"), "", ""), is(5, "100Mi"));
    assert_eq!(hard(Some("maxPods: 1"), less, ""), is(5, "1Gi"));
    assert_eq!(hard(Some(less), "", ""), is(1, "1Gi"));
    assert_eq!(hard(Some(&both), "", ""), is(5, "1Gi"));
    assert_eq!(hard(Some(less), merging, ""), is(1, "1Gi"));
    assert_eq!(
        hard(Some(&both), "", "--eviction-hard=memory.available<2Gi"),
        is(1, "2Gi")
    );
    assert_eq!(
        hard(Some("maxPods: 1"), "evictionHard: null", ""),
        (0, None)
    );
    assert_eq!(hard(None, "", ""), (0, None));
    assert_eq!(hard(None, less, ""), is(1, "1Gi"));
}

#[test]
fn a_kubelet_of_another_kind_is_no_reason_not_to_observe_it() {
    let head = HEAD.replace("own", "observe");
    let text = format!("{head}kubeletConfigFile: /k\n");
    let load = |fields: &str| {
        let file = format!("{KUBELET_HEAD}{fields}\n");
        let loaded = Config::from_yaml(&text, Some((Path::new("/k"), &file)), &[]);
        let loaded = loaded.expect("what kubelet takes is no fault");
        let Mode::Observe(observe) = loaded.config.mode else {
            panic!("another mode");
        };
        let roots: Vec<String> = observe
            .cgroup_roots
            .iter()
            .map(|it| it.to_string())
            .collect();
        (roots, loaded.warnings)
    };
    let none = Vec::<String>::new();
    let roots = |of: [&str; 2]| of.map(str::to_owned).to_vec();
    assert_eq!(
        load("cgroupDriver: systemd\nclusterDNS: [10.96.0.10]"),
        (none.clone(), none.clone())
    );
    let kind = "cgroupRoot: /kubelet\ncgroupDriver: systemd";
    assert_eq!(load(kind).0, roots(["/kubelet.slice", "/kubelet"]));
    assert_eq!(
        load("cgroupRoot: /kubelet").0,
        roots(["/kubelet", "/kubelet.slice"])
    );
    assert_eq!(load("cgroupRoot: /kubelet.slice").0, ["/kubelet.slice"]);
    // What a field needs is looked at with it.
    let reserved = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReserved: {cpu: 100m}";
    let (_, warnings) = load(&format!("{reserved}\nsystemReservedCgroup: /system.slice"));
    assert_eq!(warnings, none);
    let file = format!("{KUBELET_HEAD}{reserved}\n");
    let file = Some((Path::new("/k"), file.as_str()));
    let flags = KubeletFlags::parse(["--system-reserved-cgroup=/system.slice"]);
    let settings = KubeletSettings::new(file, &[], &flags, &Map::new()).expect("they are parsed");
    assert_eq!(settings.warnings, none);
    let (_, warnings) = load("evictionHard: {memory.available: many}");
    assert!(warnings[0].starts_with("/k: evictionHard"), "{warnings:?}");
    assert!(warnings[0].ends_with("taken as not set"), "{warnings:?}");
}

#[test]
fn the_shipped_configuration_is_the_default_one() {
    let shipped = include_str!("../../../deploy/config.yaml");
    let loaded = Config::from_yaml(shipped, None, &[]).expect("the shipped file has no faults");
    assert_eq!(loaded.warnings, [""; 0]);
    assert_eq!(loaded.config, good("").config);
}

#[test]
fn a_negative_longest_grace_is_that_of_the_pod() {
    let longest = |text: &str| {
        let kubelet = kubelet(&format!("evictionMaxPodGracePeriod: {text}"));
        kubelet.eviction_max_pod_grace_period
    };
    assert_eq!(longest("-1"), None);
    assert_eq!(longest("0"), Some(Duration::ZERO));
    let faults = faults("kubelet: {evictionMaxPodGracePeriod: 9999999999}\n");
    assert!(faults[0].contains("out of range"), "{faults:?}");
}
