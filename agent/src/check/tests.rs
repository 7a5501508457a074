#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::model::check::{KubeletFacts, MemoryFloor, Namespaces, ReservedCgroupFacts};
use crate::model::mounts::parse_controllers;
use crate::model::runtime_names::RuntimeStatus;
use crate::model::sysctl::Sysctl;

const OWN: &str = "own";
const OBSERVE: &str = "observe";

fn config(mode: &str, rest: &str) -> Config {
    let text = format!(
        "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: {mode}\n{rest}\n"
    );
    Config::from_yaml(&text, None, &[]).unwrap().config
}

fn v2(controllers: &str) -> CgroupDetection {
    let layout = CgroupLayout::Unified {
        mount: "/sys/fs/cgroup".into(),
    };
    CgroupDetection::Found(CgroupFacts::new(
        layout,
        parse_controllers(controllers),
        &[],
    ))
}

fn v1(controllers: &str) -> CgroupDetection {
    let layout = CgroupLayout::Legacy {
        controllers: parse_controllers(controllers)
            .into_iter()
            .map(|it| (it.clone(), PathBuf::from("/sys/fs/cgroup").join(it.0)))
            .collect(),
        hybrid: None,
    };
    CgroupDetection::Found(CgroupFacts::new(layout, BTreeSet::new(), &[]))
}

/// A node that lacks nothing, without a kubelet.
fn good() -> FactSheet {
    let files = "cgroup.procs cgroup.kill cpu.weight cpu.max memory.max memory.oom.group";
    FactSheet {
        workloads: None,
        kernel_release: Some("6.12.1".to_owned()),
        kernel: Some(KernelVersion::new(6, 12)),
        cgroups: v2("cpu cpuset io memory hugetlb pids"),
        cgroup2_files: Some(files.split(' ').map(str::to_owned).collect()),
        has_local_events: false,
        has_cpu_bandwidth: Some(true),
        has_swap_limit: Some(true),
        namespaces: Namespaces {
            is_initial_pid: Some(true),
            is_initial_user: Some(true),
        },
        partial_trees: Vec::new(),
        max_locked_memory: None,
        capabilities: Some(Capability::ALL.into()),
        has_btf: true,
        bpffs: Bpffs::Mounted("/sys/fs/bpf".into()),
        lockdown: Some(Lockdown::None),
        security_modules: None,
        has_psi: true,
        is_swap_on: false,
        memory: Some(MemoryFloor {
            total: 16 << 30,
            kernel: 30 << 20,
            reserve: 60 << 20,
        }),
        uncounted_disks: Vec::new(),
        apart: Vec::new(),
        reserved_cgroups: Vec::new(),
        manifests: Some(one_pod(&[], &[])),
        pod_cgroups: Some(PodCgroups::Found {
            path: "/kubepods".to_owned(),
            driver: CgroupDriver::Cgroupfs,
            other: None,
            without_uid: Vec::new(),
        }),
        runtime: Some(RuntimeStatus {
            endpoint: Some("/run/containerd/containerd.sock".to_owned()),
            name: Some("containerd".to_owned()),
            version: Some("2.1.9".to_owned()),
            ..RuntimeStatus::default()
        }),
        n_unnamed: 0,
        kubelet: KubeletFacts::default(),
        kubelet_settings: None,
        agent: AgentPresence::Absent,
        sysctls: Sysctl::ALL.map(|it| (it, Some(it.wanted()))).into(),
    }
}

/// What is said of the other manifests.
fn one_pod(faults: &[&str], warnings: &[&str]) -> ManifestFacts {
    let texts = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
    ManifestFacts {
        directory: "/m".into(),
        n_pods: 1,
        faults: texts(faults),
        warnings: texts(warnings),
    }
}

/// One that can hardly be worse and still be judged by its configuration.
pub(crate) fn bad() -> FactSheet {
    FactSheet {
        cgroups: v1("cpu cpuset blkio memory hugetlb pids"),
        is_swap_on: true,
        memory: Some(MemoryFloor {
            total: 16 << 30,
            kernel: 1 << 30,
            reserve: 1 << 30,
        }),
        ..good()
    }
}

#[track_caller]
fn level(report: &CheckReport, name: &str) -> CheckLevel {
    let item = report.items.iter().find(|it| it.name == name);
    item.unwrap_or_else(|| panic!("no item {name} in\n{report}"))
        .level
}

/// Takes one thing away from the good node; exactly one item may change, to `expected`.
#[track_caller]
fn check_one(
    config: &Config,
    take: impl FnOnce(&mut FactSheet),
    name: &str,
    expected: CheckLevel,
) -> CheckItem {
    let mut facts = good();
    if config.mode.own().is_none() {
        facts.kubelet.processes = BTreeMap::from([(7, "kubelet".to_owned())]);
    }
    let before = report(&facts, config, &[]);
    assert_eq!(before.level(), CheckLevel::Ok, "{before}");
    take(&mut facts);
    let after = report(&facts, config, &[]);
    assert_eq!(level(&after, name), expected, "{after}");
    let changed: Vec<_> = before
        .items
        .iter()
        .zip(&after.items)
        .filter(|(before, after)| before != after)
        .collect();
    assert_eq!(changed.len(), 1, "{after}");
    let item = changed[0].1.clone();
    assert_eq!(item.consequence.is_some(), expected != CheckLevel::Ok);
    item
}

#[test]
fn files_of_pods_on_another_disk_than_the_one_that_is_watched_are_told() {
    let config = config(OWN, "");
    let mut facts = good();
    facts.apart = vec!["/s/pods".into(), "/s/logs".into()];
    let report = report(&facts, &config, &[]);
    assert_eq!(level(&report, "state-directory"), CheckLevel::Degraded);
    assert!(report.to_string().contains("/s/pods, /s/logs"), "{report}");
}

#[test]
fn a_threshold_that_kubelets_formula_cannot_meet_is_told() {
    const NAME: &str = "memory-thresholds";
    let kernel = |bytes: u64| {
        move |it: &mut FactSheet| {
            it.memory = it.memory.map(|it| MemoryFloor {
                kernel: bytes,
                ..it
            });
        }
    };
    // 100 MiB, the default, with 60 MiB in reserve.
    let by_kubelet = config(OWN, "eviction: {memoryMethod: workingSet}\n");
    check_one(&by_kubelet, kernel(39 << 20), NAME, CheckLevel::Ok);
    let item = check_one(&by_kubelet, kernel(40 << 20), NAME, CheckLevel::Degraded);
    let consequence = item.consequence.unwrap();
    assert!(
        consequence.contains("evictionHard of 100 MiB"),
        "{consequence}"
    );
    let item = check_one(&config(OWN, ""), kernel(40 << 20), NAME, CheckLevel::Ok);
    assert!(
        item.found.contains("never meet evictionHard"),
        "{}",
        item.found
    );
    // 1 % of 16 GiB lies above the floor, and the hard one is off.
    let share = "kubelet:\n  evictionHard: {memory.available: 0%}\n  evictionSoft: {memory.available: 1%}\n  \
                 evictionSoftGracePeriod: {memory.available: 1m}\neviction: {memoryMethod: workingSet}\n";
    check_one(&config(OWN, share), kernel(100 << 20), NAME, CheckLevel::Ok);
    check_one(
        &config(OWN, share),
        kernel(104 << 20),
        NAME,
        CheckLevel::Degraded,
    );
    check_one(
        &by_kubelet,
        |it| it.memory = None,
        NAME,
        CheckLevel::Degraded,
    );
}

#[test]
fn sockets_that_are_too_far_down_to_be_bound_are_told() {
    let told = |n_bytes: usize| {
        let directory = format!("kubeletDirectory: /{}", "d".repeat(n_bytes - 1));
        let report = report(&good(), &config(OWN, &directory), &[]);
        let mut items = report.items.into_iter();
        items.find(|it| it.name == "kubelet-sockets")
    };
    assert_eq!(told(79), None);
    let (plugins, resources) = (
        "no device plugin can register",
        "pod resources cannot be asked for",
    );
    let item = told(80).unwrap();
    assert_eq!(item.level, CheckLevel::Degraded);
    assert_eq!(item.consequence.as_deref(), Some(plugins));
    let both = format!("{plugins}, and {resources}");
    assert_eq!(told(81).unwrap().consequence, Some(both));
}

#[test]
fn pods_in_the_trees_of_both_drivers_are_told() {
    let take = |it: &mut FactSheet| {
        it.pod_cgroups = Some(PodCgroups::Found {
            path: "/kubepods".to_owned(),
            driver: CgroupDriver::Cgroupfs,
            other: Some("/kubepods.slice".to_owned()),
            without_uid: Vec::new(),
        });
    };
    let observe = config(OBSERVE, "");
    let item = check_one(&observe, take, "pod-cgroups", CheckLevel::Degraded);
    let both = "below /kubepods, which is followed, and below /kubepods.slice";
    assert!(item.found.contains(both), "{}", item.found);
    let consequence = item.consequence.unwrap_or_default();
    assert!(consequence.contains(KILLS_ALONE), "{consequence}");
}

#[test]
fn pods_without_a_uid_are_told() {
    let observe = config(OBSERVE, "");
    let take = |it: &mut FactSheet| {
        if let Some(PodCgroups::Found { without_uid, .. }) = &mut it.pod_cgroups {
            without_uid.extend(["/kubepods/poda_b", "/kubepods/podc_d"].map(str::to_owned));
        }
    };
    let item = check_one(&observe, take, "pod-cgroups", CheckLevel::Degraded);
    let which = "2 pods have no UID in their names (as /kubepods/poda_b)";
    assert!(item.found.contains(which), "{}", item.found);
    assert_eq!(item.consequence.as_deref(), Some(NOT_SHOWN));
}

/// As one that is installed beside that of kubelet.
#[test]
fn a_runtime_that_names_nobody_who_runs_is_told() {
    let observe = config(OBSERVE, "");
    let take = |it: &mut FactSheet| it.n_unnamed = 3;
    let item = check_one(&observe, take, "pod-names", CheckLevel::Degraded);
    let found = "none: containerd 2.1.9 at /run/containerd/containerd.sock names none of the containers that run (3)";
    assert_eq!(item.found, found);
    assert_eq!(item.remedy.as_deref(), Some(ENDPOINT));
}

/// Each would be a write below the cgroup mounts.
#[test]
fn what_stands_in_for_the_wakers_that_an_observer_lacks_is_told() {
    for (cgroups, counts) in [
        (v1("cpu memory"), "OOM counts once a second"),
        (v2("cpu memory"), "OOM counts when the kernel says"),
    ] {
        let facts = FactSheet { cgroups, ..good() };
        let report = report(&facts, &config(OBSERVE, ""), &[]);
        let item = report.items.iter().find(|it| it.name == "wakers");
        let found = &item.unwrap().found;
        let lacking = "no PSI trigger and no event control";
        for words in [lacking, "stalls are read with each sweep", counts] {
            assert!(found.contains(words), "{words}: {found}");
        }
    }
    let own = report(&good(), &config(OWN, ""), &[]);
    assert!(own.items.iter().all(|it| it.name != "wakers"), "{own}");
}

#[test]
fn a_clock_that_is_not_that_of_the_api_server_is_told() {
    let observe = config(OBSERVE, "");
    let clock = |seconds_ahead| {
        let answered = ApiServerFacts {
            seconds_ahead,
            ..ApiServerFacts::default()
        };
        let facts = FactSheet {
            workloads: Some(WorkloadFacts::ApiServer(answered)),
            ..good()
        };
        let items = report(&facts, &observe, &[]).items;
        items.into_iter().find(|it| it.name == "clock")
    };
    assert_eq!(clock(None), None);
    for near in [-5, 0, 5] {
        assert_eq!(clock(Some(near)).unwrap().level, CheckLevel::Ok, "{near}");
    }
    for (ahead, found, shown) in [
        (6, "6 s ahead of that of the API server", "<invalid>"),
        (-90, "90 s behind that of the API server", "older"),
    ] {
        let item = clock(Some(ahead)).unwrap();
        assert_eq!(item.level, CheckLevel::Degraded, "{ahead}");
        assert_eq!(item.found, found);
        assert!(item.consequence.unwrap().contains(shown), "{shown}");
    }
}

#[test]
fn it_is_told_that_no_cgroups_of_pods_will_come() {
    let take = |it: &mut FactSheet| it.pod_cgroups = Some(PodCgroups::NotMade);
    let observe = config(OBSERVE, "");
    let item = check_one(&observe, take, "pod-cgroups", CheckLevel::Degraded);
    assert!(item.found.contains("cgroupsPerQOS"), "{}", item.found);
    assert!(item.remedy.is_some());
}

#[test]
fn each_missing_thing_changes_its_own_item() {
    let own = config(OWN, "");
    type Take = fn(&mut FactSheet);
    let rows: [(&str, CheckLevel, Take); 29] = [
        ("kernel", CheckLevel::Degraded, |it| it.kernel = None),
        ("kernel", CheckLevel::Degraded, |it| {
            it.kernel = Some(KernelVersion::new(5, 7));
        }),
        ("cgroup-controllers", CheckLevel::Fatal, |it| {
            it.cgroups = v2("cpuset memory pids");
        }),
        ("cgroup-controllers", CheckLevel::Fatal, |it| {
            it.cgroups = v2("cpu memory pids");
        }),
        ("cpu-bandwidth", CheckLevel::Degraded, |it| {
            it.has_cpu_bandwidth = Some(false);
        }),
        ("cpu-bandwidth", CheckLevel::Degraded, |it| {
            it.has_cpu_bandwidth = None;
        }),
        ("cgroup-kill", CheckLevel::Degraded, |it| {
            it.cgroup2_files.as_mut().unwrap().remove("cgroup.kill");
        }),
        ("oom-group", CheckLevel::Degraded, |it| {
            it.cgroup2_files
                .as_mut()
                .unwrap()
                .remove("memory.oom.group");
        }),
        ("cgroup-hierarchy", CheckLevel::Degraded, |it| {
            it.has_local_events = true
        }),
        ("block-io", CheckLevel::Degraded, |it| {
            it.uncounted_disks.push("vda".to_owned());
        }),
        ("kernel-tunables", CheckLevel::Degraded, |it| {
            it.sysctls.insert(Sysctl::Panic, Some(0));
        }),
        ("kernel-tunables", CheckLevel::Degraded, |it| {
            it.sysctls.insert(Sysctl::Panic, None);
        }),
        ("manifests", CheckLevel::Degraded, |it| {
            it.manifests = Some(one_pod(&["/m: is not there"], &[]));
        }),
        ("swap", CheckLevel::Fatal, |it| it.is_swap_on = true),
        ("psi", CheckLevel::Degraded, |it| it.has_psi = false),
        ("namespaces", CheckLevel::Degraded, |it| {
            it.namespaces.is_initial_pid = Some(false);
        }),
        ("cgroup-tree", CheckLevel::Degraded, |it| {
            it.partial_trees.push("/sys/fs/cgroup".into());
        }),
        ("btf", CheckLevel::Degraded, |it| it.has_btf = false),
        ("bpffs", CheckLevel::Degraded, |it| it.bpffs = Bpffs::Absent),
        ("bpffs", CheckLevel::Ok, |it| it.bpffs = Bpffs::Mountable),
        ("bpffs", CheckLevel::Degraded, |it| {
            it.bpffs = Bpffs::Elsewhere("/var/lib/pins".into());
        }),
        ("bpffs", CheckLevel::Degraded, |it| {
            it.bpffs = Bpffs::NotWritable("/sys/fs/bpf/ballast".into());
        }),
        ("bpffs", CheckLevel::Degraded, |it| {
            it.bpffs = Bpffs::NotOfHost("/sys/fs/bpf/ballast".into());
        }),
        ("bpffs", CheckLevel::Degraded, |it| {
            it.bpffs = Bpffs::LinksGone("/sys/fs/bpf/ballast".into(), vec!["oom_victim".into()]);
        }),
        ("lockdown", CheckLevel::Degraded, |it| {
            it.lockdown = Some(Lockdown::Confidentiality);
        }),
        ("kubelet", CheckLevel::Fatal, |it| {
            it.kubelet.processes = BTreeMap::from([(7, "kubelet".to_owned())]);
        }),
        ("kubelet", CheckLevel::Degraded, |it| {
            it.kubelet.is_port_taken = true;
        }),
        ("kubelet", CheckLevel::Degraded, |it| {
            it.kubelet.pods_left = 3;
        }),
        ("agent", CheckLevel::Degraded, |it| {
            it.agent = AgentPresence::Running;
        }),
    ];
    for (name, expected, take) in rows {
        check_one(&own, take, name, expected);
    }
}

#[test]
fn each_missing_capability_is_named_with_what_is_lost() {
    let own = config(OWN, "");
    for capability in Capability::ALL {
        let take = |it: &mut FactSheet| {
            it.capabilities.as_mut().unwrap().remove(&capability);
        };
        // CAP_SYS_ADMIN contains these two.
        if [Capability::Bpf, Capability::Perfmon].contains(&capability) {
            let mut facts = good();
            take(&mut facts);
            let report = report(&facts, &own, &[]);
            assert_eq!(level(&report, "capabilities"), CheckLevel::Ok);
            continue;
        }
        let item = check_one(&own, take, "capabilities", CheckLevel::Degraded);
        assert!(item.found.contains(capability.name()), "{}", item.found);
    }
    check_one(
        &own,
        |it| it.capabilities = None,
        "capabilities",
        CheckLevel::Degraded,
    );
}

#[test]
fn in_a_namespace_of_its_own_it_is_not_said_what_cannot_be_known() {
    let mut facts = good();
    facts.namespaces.is_initial_pid = Some(false);
    facts.namespaces.is_initial_user = Some(false);
    facts.kubelet.is_port_taken = false;
    let report = report(&facts, &config(OBSERVE, ""), &[]);
    let found = |name: &str| {
        let item = report.items.iter().find(|it| it.name == name);
        item.unwrap().found.clone()
    };
    assert!(found("kubelet").contains("unknown"), "{}", found("kubelet"));
    let held = found("capabilities");
    assert_eq!(held, "those of a user namespace of its own");
}

#[test]
fn what_a_capability_is_for_depends_on_the_mode_and_on_the_hierarchy() {
    const DEVICES: &str = "cpu cpuset memory devices pids";
    let lost = |mode: &str, cgroups: CgroupDetection, capability| {
        let mut facts = good();
        facts.cgroups = cgroups;
        facts.capabilities.as_mut().unwrap().remove(&capability);
        let report = report(&facts, &config(mode, ""), &[]);
        let item = report
            .items
            .into_iter()
            .find(|it| it.name == "capabilities");
        item.unwrap().consequence.unwrap_or_default()
    };
    let (admin, net) = (Capability::SysAdmin, Capability::NetAdmin);
    assert!(lost(OWN, v1(DEVICES), admin).contains("containers do not start"));
    assert!(lost(OWN, v2("cpu memory"), admin).contains("cannot be read back"));
    assert_eq!(lost(OBSERVE, v1(DEVICES), admin), "");
    assert!(lost(OWN, v2("cpu memory"), net).contains("may open every device"));
    assert!(lost(OWN, v1(DEVICES), net).contains("not counted"));
    assert_eq!(lost(OBSERVE, v2("cpu memory"), net), "");
    let ptrace = Capability::SysPtrace;
    let in_observe = lost(OBSERVE, v2("cpu memory"), ptrace);
    assert!(
        in_observe.contains("network of pods is not read"),
        "{in_observe}"
    );
    assert!(in_observe.contains("files of kubelet"), "{in_observe}");
    assert!(!lost(OWN, v2("cpu memory"), ptrace).contains("kubelet"));
}

#[test]
fn without_the_right_to_signal_containers_end_where_the_kernel_kills_cgroups() {
    let lost = |has_cgroup_kill: bool| {
        consequence(OWN, "capabilities", |it| {
            it.capabilities.as_mut().unwrap().remove(&Capability::Kill);
            if !has_cgroup_kill {
                it.cgroup2_files.as_mut().unwrap().remove("cgroup.kill");
            }
        })
    };
    assert!(lost(true).contains("killed after their grace"));
    assert!(lost(false).contains("cannot be ended"));
}

#[test]
fn without_the_right_to_find_cgroups_deep_kills_may_be_told_as_the_hosts() {
    for mode in [OWN, OBSERVE] {
        let text = consequence(mode, "capabilities", |it| {
            let held = it.capabilities.as_mut().unwrap();
            held.remove(&Capability::DacReadSearch);
        });
        assert!(text.contains("far below a container"), "{text}");
    }
}

#[test]
fn without_pins_how_containers_end_is_not_known_to_who_runs_them() {
    for (mode, is_said) in [(OWN, true), (OBSERVE, false)] {
        let text = consequence(mode, "bpffs", |it| it.bpffs = Bpffs::Absent);
        assert_eq!(
            text.contains("how or when containers end"),
            is_said,
            "{text}"
        );
    }
}

/// What `item` says of a node that `take` has taken something from.
fn consequence(mode: &str, item: &str, take: impl FnOnce(&mut FactSheet)) -> String {
    let mut facts = good();
    take(&mut facts);
    let report = report(&facts, &config(mode, ""), &[]);
    let found = report.items.into_iter().find(|it| it.name == item);
    found.unwrap().consequence.unwrap_or_default()
}

#[test]
fn what_confidentiality_takes_depends_on_the_kernel_and_on_the_mode() {
    const NONE: &str = "none reports OOM kills";
    const LIMIT: &str = "whose limit was reached is not named";
    const FIRST: &str = "first process of its container";
    const WALKS: &str = "cgroups are found by walks";
    let of = |mode: &str, kernel: Option<KernelVersion>| {
        consequence(mode, "lockdown", |it| {
            it.lockdown = Some(Lockdown::Confidentiality);
            it.kernel = kernel;
        })
    };
    let (old, between, new) = ((6, 1), (6, 7), (6, 8));
    let version = |(major, minor)| Some(KernelVersion::new(major, minor));
    for (mode, kernel, told, untold) in [
        (OWN, None, vec![NONE, WALKS], vec![LIMIT]),
        (OBSERVE, version(old), vec![NONE, WALKS], vec![LIMIT]),
        (OBSERVE, version(between), vec![NONE, LIMIT, FIRST], vec![]),
        (OBSERVE, version(new), vec![LIMIT, FIRST, WALKS], vec![NONE]),
        (OWN, version(new), vec![LIMIT, WALKS], vec![NONE, FIRST]),
    ] {
        let text = of(mode, kernel);
        for words in told {
            assert!(text.contains(words), "{kernel:?}, {mode}: {text}");
        }
        for words in untold {
            assert!(!text.contains(words), "{kernel:?}, {mode}: {text}");
        }
    }
}

#[test]
fn what_a_pid_namespace_takes_depends_on_the_mode() {
    let of = |mode: &str| {
        consequence(mode, "namespaces", |it| {
            it.namespaces.is_initial_pid = Some(false);
        })
    };
    for mode in [OWN, OBSERVE] {
        let text = of(mode);
        assert!(text.contains("kubelet is not found"), "{text}");
        assert!(text.contains("whose bpffs"), "{text}");
        assert_eq!(text.contains("network"), mode == OBSERVE, "{text}");
    }
}

/// As on a node of kind, minikube or k3d.
#[test]
fn a_pid_namespace_with_a_kubelet_in_it_is_that_of_the_node() {
    let take = |it: &mut FactSheet| it.namespaces.is_initial_pid = Some(false);
    let observe = config(OBSERVE, "");
    let item = check_one(&observe, take, "namespaces", CheckLevel::Degraded);
    let text = item.consequence.unwrap_or_default();
    assert!(text.contains("whose bpffs"), "{text}");
    assert!(!text.contains("kubelet is not found"), "{text}");
    assert!(!text.contains("network"), "{text}");
    assert_eq!(item.remedy, None);
}

#[test]
fn without_pins_an_observer_on_v1_misses_what_containers_nest() {
    const NESTED: &str = "cgroups that containers make";
    for (cgroups, minor, is_nested_missed, whose) in [
        (v2("cpu memory"), 12, false, "whose pod"),
        (v2("cpu memory"), 16, false, "whose container"),
        (v1("cpu memory"), 12, true, "whose container"),
    ] {
        let major = if minor == 16 { 5 } else { 6 };
        let text = consequence(OBSERVE, "bpffs", |it| {
            it.cgroups = cgroups;
            it.kernel = Some(KernelVersion::new(major, minor));
            it.bpffs = Bpffs::Absent;
        });
        assert_eq!(text.contains(NESTED), is_nested_missed, "{text}");
        assert!(text.contains(whose), "{text}");
    }
}

#[test]
fn locked_memory_is_a_matter_of_old_kernels_that_may_not_be_asked_for_more() {
    let own = config(OWN, "");
    let item = |facts: &FactSheet| {
        let report = report(facts, &own, &[]);
        let mut items = report.items.into_iter();
        items.find(|it| it.name == "locked-memory")
    };
    let mut facts = good();
    facts.max_locked_memory = Some(64 << 10);
    facts.kernel = Some(KernelVersion::new(5, 11));
    assert_eq!(item(&facts), None);
    facts.kernel = Some(KernelVersion::new(5, 10));
    assert_eq!(item(&facts).map(|it| it.level), Some(CheckLevel::Ok));
    let held = facts.capabilities.as_mut().expect("all");
    held.remove(&Capability::SysResource);
    let found = item(&facts).expect("it is too little");
    assert_eq!(found.level, CheckLevel::Degraded);
    assert_eq!(found.found, "a limit of 64 KiB");
    // With half of what all need some load.
    let so = "eBPF programs may be refused: on Linux 5.10.0 they count as locked memory";
    assert_eq!(found.consequence.as_deref(), Some(so));
    let remedy = found.remedy.unwrap_or_default();
    for way in ["LimitMEMLOCK", "SYS_RESOURCE"] {
        assert!(remedy.contains(way), "{remedy}");
    }
    facts.max_locked_memory = None;
    assert_eq!(item(&facts), None);
}

#[test]
fn without_any_capability_no_program_loads() {
    let mut facts = good();
    facts.capabilities = Some(BTreeSet::new());
    let report = report(&facts, &config(OBSERVE, ""), &[]);
    let item = report.items.iter().find(|it| it.name == "capabilities");
    let consequence = item.unwrap().consequence.as_deref().unwrap();
    assert!(consequence.contains("no eBPF program loads"));
    assert!(
        !consequence.contains("oom_score_adj"),
        "observe writes none"
    );
}

#[test]
fn an_observer_wants_a_kubelet_and_bears_the_rest() {
    let observe = config(OBSERVE, "");
    let facts = good();
    let without = report(&facts, &observe, &[]);
    assert_eq!(level(&without, "kubelet"), CheckLevel::Degraded);

    for take in [
        (|it| it.is_swap_on = true) as fn(&mut FactSheet),
        |it| it.cgroups = v2("cpu"),
        |it| it.cgroups = v1("cpu cpuacct cpuset memory"),
    ] {
        let mut facts = good();
        take(&mut facts);
        let report = report(&facts, &observe, &[]);
        assert_eq!(report.level(), CheckLevel::Degraded, "{report}");
    }
}

#[test]
fn cgroup_v1_is_a_supported_node() {
    let mut facts = good();
    facts.cgroups = v1("cpu cpuacct cpuset memory pids systemd");
    facts.cgroup2_files = None;
    let report_v1 = report(&facts, &config(OWN, ""), &[]);
    for (name, expected) in [
        ("cgroup-hierarchy", CheckLevel::Degraded),
        ("cgroup-controllers", CheckLevel::Ok),
        ("cgroup-kill", CheckLevel::Degraded),
        ("oom-group", CheckLevel::Degraded),
    ] {
        assert_eq!(level(&report_v1, name), expected, "{report_v1}");
    }
    assert_eq!(report_v1.exit_status(), 0);

    facts.cgroups = v1("cpu cpuacct memory");
    let without_cpuset = report(&facts, &config(OWN, ""), &[]);
    assert_eq!(
        level(&without_cpuset, "cgroup-controllers"),
        CheckLevel::Fatal
    );

    facts.cgroups = v1("cpu cpuacct cpuset memory");
    let refused = report(&facts, &config(OWN, "kubelet: {failCgroupV1: true}"), &[]);
    assert_eq!(level(&refused, "cgroup-hierarchy"), CheckLevel::Fatal);
}

#[test]
fn without_the_memory_controller_kills_take_no_group() {
    let mut facts = good();
    facts.cgroups = v2("cpu cpuset pids");
    facts.cgroup2_files = None;
    let report = report(&facts, &config(OWN, ""), &[]);
    assert_eq!(level(&report, "cgroup-controllers"), CheckLevel::Fatal);
    assert_eq!(level(&report, "oom-group"), CheckLevel::Degraded);
}

/// On a node of both versions, one has it and the other is used.
#[test]
fn a_missing_controller_may_be_that_of_another_hierarchy() {
    for (present, is_for_boot) in [("cpu cpuacct cpuset", true), ("cpu cpuacct memory", false)] {
        let mut facts = good();
        facts.cgroups = v1(present);
        let report = report(&facts, &config(OWN, ""), &[]);
        let found = report.items.iter();
        let mut remedies = found.filter(|it| it.name == "cgroup-controllers");
        let remedy = remedies.next().and_then(|it| it.remedy.as_deref());
        let remedy = remedy.unwrap_or_default();
        assert!(remedy.contains("another hierarchy"), "{remedy}");
        assert_eq!(remedy.contains("cgroup_enable=memory"), is_for_boot);
    }
}

#[test]
fn without_a_hierarchy_nothing_works() {
    let mut facts = good();
    facts.cgroups = CgroupDetection::Failed("none mounted".to_owned());
    for mode in [OWN, OBSERVE] {
        let report = report(&facts, &config(mode, ""), &[]);
        assert_eq!(report.exit_status(), 1, "{report}");
    }
}

#[test]
fn files_that_no_cgroup_shows_are_judged_by_the_version() {
    let own = config(OWN, "");
    for (version, expected) in [
        (KernelVersion::new(5, 13), CheckLevel::Degraded),
        (KernelVersion::new(5, 14), CheckLevel::Ok),
    ] {
        let mut facts = good();
        facts.cgroup2_files = None;
        facts.kernel = Some(version);
        let report = report(&facts, &own, &[]);
        assert_eq!(level(&report, "cgroup-kill"), expected, "{version}");
        assert_eq!(level(&report, "oom-group"), CheckLevel::Ok, "{version}");
    }
}

#[test]
fn swap_that_is_allowed_must_be_limited_and_kept_off_secrets() {
    let allowed = config(OWN, "kubelet: {failSwapOn: false}");
    for (has_limit, minor, expected) in [
        (Some(true), 4, CheckLevel::Ok),
        (Some(true), 3, CheckLevel::Degraded),
        (Some(false), 4, CheckLevel::Degraded),
    ] {
        let mut facts = good();
        facts.is_swap_on = true;
        facts.has_swap_limit = has_limit;
        facts.kernel = Some(KernelVersion::new(6, minor));
        let report = report(&facts, &allowed, &[]);
        assert_eq!(level(&report, "swap"), expected, "{report}");
    }
}

#[test]
fn programs_are_listed_with_what_stands_in() {
    let program = |name: &str, is_running: bool, fallback: Option<&str>| ProgramCheck {
        program: name.to_owned(),
        state: "tp_btf".to_owned(),
        is_running,
        fallback: fallback.map(str::to_owned),
    };
    let report = report(
        &good(),
        &config(OWN, ""),
        &[
            program("oom_victim", true, None),
            program("stall_begin", false, Some("polling of memory.pressure")),
        ],
    );
    assert_eq!(level(&report, "ebpf/oom_victim"), CheckLevel::Ok);
    let item = report.items.last().unwrap();
    assert_eq!(item.level, CheckLevel::Degraded);
    assert_eq!(
        item.consequence.as_deref(),
        Some("instead: polling of memory.pressure")
    );
}

#[test]
fn a_report_survives_json() {
    let report = report(&good(), &config(OWN, ""), &[]);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<CheckReport>(&json).unwrap(), report);
    let facts = good();
    let json = serde_json::to_string(&facts).unwrap();
    assert_eq!(serde_json::from_str::<FactSheet>(&json).unwrap(), facts);
}

#[test]
fn what_is_wrong_with_manifests_is_told_and_stops_nobody() {
    let found = "1 pod in /m";
    let (fault, warning) = ("/m/a.yaml: kind: is missing", "/m/b.yaml: is ignored");
    for (faults, warnings, expected, details) in [
        (
            &[][..],
            &[warning][..],
            CheckLevel::Ok,
            vec![format!("warning: {warning}")],
        ),
        (
            &[fault][..],
            &[warning][..],
            CheckLevel::Degraded,
            vec![format!("fault: {fault}"), format!("warning: {warning}")],
        ),
    ] {
        let take = |it: &mut FactSheet| it.manifests = Some(one_pod(faults, warnings));
        let item = check_one(&config(OWN, ""), take, "manifests", expected);
        assert_eq!((item.found.as_str(), item.details), (found, details));
    }
    let is_told = |mode: &str, facts: &FactSheet| {
        let report = report(facts, &config(mode, ""), &[]);
        report.items.iter().any(|it| it.name == "manifests")
    };
    let mut facts = good();
    assert!(is_told(OWN, &facts) && !is_told(OBSERVE, &facts));
    facts.manifests = None;
    assert!(!is_told(OWN, &facts), "nobody has read them");
}

#[test]
fn a_cgroup_that_is_to_be_limited_has_to_be_there_with_its_files() {
    let reserved = |lacking: Option<&[&str]>| {
        let lacking = lacking.map(|it| it.iter().map(|it| (*it).to_owned()).collect());
        vec![ReservedCgroupFacts {
            field: "systemReservedCgroup".to_owned(),
            path: "/system.slice".to_owned(),
            lacking,
        }]
    };
    for (lacking, expected, words) in [
        (Some(&[][..]), CheckLevel::Ok, "/system.slice"),
        (
            Some(&["memory.max"][..]),
            CheckLevel::Fatal,
            "cgroup /system.slice is without memory.max",
        ),
        (
            None,
            CheckLevel::Fatal,
            "systemReservedCgroup: there is no cgroup /system.slice",
        ),
    ] {
        let item = check_one(
            &config(OWN, ""),
            |it| it.reserved_cgroups = reserved(lacking),
            "reserved-cgroups",
            expected,
        );
        assert!(item.found.contains(words), "{}", item.found);
    }
}
