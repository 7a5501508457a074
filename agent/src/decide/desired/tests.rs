#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::collections::BTreeMap;

use super::*;
use crate::config::{Compat, Config};
use crate::decide::node_allocatable::{Machine, Reservations};
use crate::decide::testing::{pod, settings};
use crate::units::{Bytes, Limit};

fn plan(exclusive_cpu_limits: CpuLimits) -> NodePlan {
    let machine = Machine {
        n_cpus: 4,
        memory: Bytes(16 << 30),
        hugepages: BTreeMap::new(),
        held_hugepages: Bytes(0),
        ephemeral_storage: None,
        max_pid: None,
    };
    NodePlan {
        kubepods: CgroupName::kubepods(&CgroupName::root()),
        driver: CgroupDriver::Cgroupfs,
        rules: FileRules {
            unified: true,
            page_size: 4096,
            hugepage_sizes: Vec::new(),
            hugetlb_reservations: false,
            memory_and_swap: false,
            swap_max: true,
            devices: false,
            pids: true,
        },
        settings: settings(Compat::Ballast),
        allocatable: NodeAllocatable::new(&machine, &Reservations::default()),
        qos_reserved: None,
        ancestors: None,
        exclusive_cpu_limits,
    }
}

fn placement(cpus: &str, pinning: CpuPinning) -> ContainerPlacement {
    ContainerPlacement {
        cpus: Some(cpus.parse().unwrap()),
        pinning,
        mems: Some(NumaMask::from_bits(0b10)),
    }
}

/// The text of a file; `None`: left alone.
fn file(cgroup: &DesiredCgroup, name: &str) -> Option<String> {
    let found = cgroup.files.iter().find(|(file, _)| file.name == name);
    found.map(|(_, value)| value.to_string())
}

fn path(text: &str) -> CgroupPath {
    text.parse().unwrap()
}

#[test]
fn exclusive_cpus_have_no_quota_in_container_and_pod_unless_the_gate_is_off() {
    let pod = pod("app {req cpu=2 memory=1Gi lim cpu=2 memory=1Gi}");
    let container = &pod.containers[0];
    let class = QosClass::Guaranteed;
    for (limits, pinning, quota) in [
        (CpuLimits::Ignored, CpuPinning::Shared, "200000 100000"),
        (CpuLimits::Ignored, CpuPinning::Exclusive, "max 100000"),
        (CpuLimits::Enforced, CpuPinning::Exclusive, "200000 100000"),
    ] {
        let plan = plan(limits);
        let of_pod = plan.pod_cgroup(&pod, class, pinning, path("/kubepods/podu"));
        let placement = placement("2-3", pinning);
        let app = path("/kubepods/podu/app");
        let of_container = plan.container_cgroup(&pod, class, container, &placement, app.clone());
        for cgroup in [&of_pod, &of_container] {
            let max = file(cgroup, "cpu.max");
            assert_eq!(max.as_deref(), Some(quota), "{limits:?} {pinning:?}");
        }
        assert_eq!(file(&of_container, "cpuset.cpus").unwrap(), "2-3");
        assert_eq!(file(&of_container, "cpuset.mems").unwrap(), "1");
        assert_eq!(file(&of_pod, "cpuset.cpus"), None);

        let names = |cgroup: &DesiredCgroup| -> Vec<String> {
            let files = cgroup.files.iter();
            files.map(|(file, _)| file.name.clone()).collect()
        };
        let alone = plan.container_cpuset(&placement, app);
        assert_eq!(names(&alone), ["cpuset.cpus", "cpuset.mems"]);
    }
}

#[test]
fn a_container_anywhere_has_no_cpuset_file() {
    let pod = pod("app {}");
    let plan = plan(CpuLimits::Ignored);
    let anywhere = ContainerPlacement::ANYWHERE;
    let class = QosClass::BestEffort;
    let app = path("/kubepods/besteffort/podu/app");
    let cgroup = plan.container_cgroup(&pod, class, &pod.containers[0], &anywhere, app.clone());
    assert_eq!(file(&cgroup, "cpuset.cpus"), None);
    assert_eq!(file(&cgroup, "cpuset.mems"), None);
    assert_eq!(plan.container_cpuset(&anywhere, app).files, []);
}

#[test]
fn ancestors_have_a_cpuset_where_they_need_one() {
    let pod = pod("app {}");
    let mut plan = plan(CpuLimits::Ignored);
    plan.ancestors = Some(AncestorCpuset {
        cpus: "0-3".parse().unwrap(),
        mems: NumaMask::from_bits(0b11),
        of_containers: false,
    });
    let class = QosClass::BestEffort;
    let of_pod = plan.pod_cgroup(&pod, class, CpuPinning::Shared, path("/kubepods/podu"));
    let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";
    let loaded = Config::from_yaml(text, None, &[]).unwrap();
    let mut ancestors = plan.node_cgroups(&loaded.config.kubelet, [&pod]);
    ancestors.push(of_pod);
    assert_eq!(ancestors.len(), 4);
    for cgroup in &ancestors {
        assert_eq!(file(cgroup, "cpuset.cpus").unwrap(), "0-3", "{cgroup:?}");
        assert_eq!(file(cgroup, "cpuset.mems").unwrap(), "0-1", "{cgroup:?}");
    }
}

#[test]
fn containers_that_nobody_places_get_back_cpus_that_they_have_lost() {
    let pod = pod("app {}");
    let mut plan = plan(CpuLimits::Ignored);
    let (cpus, mems) = ("cpuset.cpus", "cpuset.mems");
    for (of_containers, expected) in [(false, [None, None]), (true, [Some("0-3"), Some("0-1")])] {
        plan.ancestors = Some(AncestorCpuset {
            cpus: "0-3".parse().unwrap(),
            mems: NumaMask::from_bits(0b11),
            of_containers,
        });
        let class = QosClass::BestEffort;
        let app = path("/kubepods/besteffort/podu/app");
        let cgroup = |placement: &ContainerPlacement| {
            let container = &pod.containers[0];
            plan.container_cgroup(&pod, class, container, placement, app.clone())
        };
        let anywhere = cgroup(&ContainerPlacement::ANYWHERE);
        let found = [cpus, mems].map(|it| file(&anywhere, it));
        assert_eq!(found, expected.map(|it| it.map(str::to_owned)));
        let placed = cgroup(&placement("2", CpuPinning::Exclusive));
        assert_eq!(file(&placed, cpus).unwrap(), "2");
    }
}

#[test]
fn a_node_that_counts_no_processes_has_no_limit_of_them_to_take_back() {
    let pod = pod("app {}");
    let mut plan = plan(CpuLimits::Ignored);
    for (pids, limit, expected) in [
        (true, None, Some("max")),
        (false, None, None),
        (true, Some(7), Some("7")),
        // It is told that it cannot be kept.
        (false, Some(7), Some("7")),
    ] {
        plan.rules.pids = pids;
        plan.settings.pod_pids_limit = limit;
        let class = QosClass::BestEffort;
        let of_pod = plan.pod_cgroup(&pod, class, CpuPinning::Shared, path("/kubepods/podu"));
        assert_eq!(
            file(&of_pod, "pids.max").as_deref(),
            expected,
            "{pids} {limit:?}"
        );
    }
}

/// The kernel makes 0 of less than a page, and nothing starts in it.
#[test]
fn no_cgroup_has_a_memory_limit_of_0() {
    let plan = |unified| NodePlan {
        rules: FileRules {
            memory_and_swap: true,
            ..FileRules::plain(unified, 4096)
        },
        ..plan(CpuLimits::Enforced)
    };
    for (limit, written) in [
        (Limit::At(0), None),
        (Limit::At(1), Some("4096")),
        (Limit::At(8193), Some("8192")),
        (Limit::Max, Some("max")),
    ] {
        let resources = CgroupResources {
            memory_max: Some(limit),
            memory_and_swap_max: Some(limit),
            ..CgroupResources::default()
        };
        let of = |unified: bool| plan(unified).cgroup(path("/a"), &resources, WeightMap::Linear);
        assert_eq!(file(&of(true), "memory.max").as_deref(), written);
        for name in ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"] {
            assert_eq!(file(&of(false), name).as_deref(), written);
        }
    }
}

#[test]
fn a_memory_limit_that_a_pod_has_of_its_own_is_no_sum() {
    let plan = plan(CpuLimits::Ignored);
    for (text, is_sum) in [
        ("app {lim memory=1Gi}", true),
        ("app {lim memory=1Gi} pod {lim cpu=1}", true),
        ("app {lim memory=1Gi} pod {lim memory=2Gi}", false),
    ] {
        let (pod, class) = (pod(text), QosClass::Burstable);
        let of_pod = plan.pod_cgroup(&pod, class, CpuPinning::Shared, path("/kubepods/podu"));
        assert_eq!(of_pod.is_sum, is_sum, "{text}");
    }
}
