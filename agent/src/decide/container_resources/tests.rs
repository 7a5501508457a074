use std::collections::BTreeMap;

use super::*;
use crate::config::{Compat, ThrottlingFactor};
use crate::decide::qos::qos_class;
use crate::decide::testing::{pod, settings};
use crate::model::status::CgroupVersion;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

/// Resources of the first regular container.
fn first(spec: &str, settings: &ResourceSettings) -> CgroupResources {
    let pod = pod(spec);
    let class = qos_class(&pod);
    container_resources(
        &pod,
        class,
        &pod.containers[0],
        settings,
        CpuPinning::Shared,
    )
}

#[test]
fn shares_follow_the_request_and_without_one_the_limit() {
    let kubelet = settings(Compat::Kubelet);
    for (spec, shares, quota, memory) in [
        ("app {}", 2, None, None),
        ("app {req cpu=500m lim cpu=2}", 512, Some(200_000), None),
        ("app {lim cpu=2 memory=1Gi}", 2048, Some(200_000), Some(GI)),
        ("app {req cpu=0 lim cpu=2}", 2, Some(200_000), None),
        (
            "app {} pod {lim cpu=1 memory=1Gi}",
            1024,
            Some(100_000),
            Some(GI),
        ),
        (
            "app {lim cpu=5m} pod {lim cpu=1 memory=1Gi}",
            5,
            Some(1000),
            Some(GI),
        ),
        ("app {} pod {req cpu=4}", 2, None, None),
    ] {
        let got = first(spec, &kubelet);
        assert_eq!(got.cpu_shares, Some(shares), "shares of {spec}");
        let limit = got.cpu_bandwidth.map(|it| it.quota);
        assert_eq!(limit, quota.map(Limit::At), "quota of {spec}");
        assert_eq!(got.memory_max, memory.map(Limit::At), "memory of {spec}");
    }
}

#[test]
fn a_pinned_container_has_its_quota_lifted_unless_quotas_are_off() {
    let pod = pod("app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}");
    let kubelet = settings(Compat::Kubelet);
    let off = ResourceSettings {
        cpu_limits: CpuLimits::Ignored,
        ..kubelet
    };
    for (settings, quota) in [(kubelet, Some(Limit::Max)), (off, None)] {
        let class = QosClass::Guaranteed;
        let container = &pod.containers[0];
        let got = container_resources(&pod, class, container, &settings, CpuPinning::Exclusive);
        assert_eq!(got.cpu_bandwidth.map(|it| it.quota), quota);
    }
}

/// Of a container that runs when the agent is started with other settings.
#[test]
fn what_is_switched_off_is_taken_back() {
    let mut v1 = settings(Compat::Ballast);
    v1.node.version = CgroupVersion::V1;
    for (settings, quota, group) in [
        (settings(Compat::Ballast), Some(Limit::Max), Some("0")),
        (settings(Compat::Kubelet), None, None),
        (v1, Some(Limit::Max), None),
    ] {
        let off = ResourceSettings {
            cpu_limits: CpuLimits::Ignored,
            oom_scope: OomScope::Process,
            ..settings
        };
        let limited = first("app {lim cpu=2 memory=1Gi}", &off);
        assert_eq!(limited.cpu_bandwidth.map(|it| it.quota), quota);
        let found = limited.unified.get("memory.oom.group");
        assert_eq!(found.map(String::as_str), group);
        assert_eq!(first("app {}", &off).cpu_bandwidth, None);
    }
}

#[test]
fn throttling_begins_between_request_and_limit() {
    for (request, limit, factor, page, high) in [
        (128 * MI, 256 * MI, 0.9, 4096, Some(255_012_864)),
        (128 * MI, 256 * MI, 0.9, 65_536, Some(255_000_576)),
        (100 * MI, 200 * MI, 0.9, 4096, Some(199_229_440)),
        (0, 200 * MI, 0.9, 4096, Some(188_743_680)),
        (256 * MI, GI, 0.9, 4096, Some(993_210_368)),
        (GI, 2 * GI, 0.8, 4096, Some(1_932_734_464)),
        (85 * MI, 100 * MI, 0.8, 4096, Some(101_711_872)),
        (128 * MI, 0, 0.9, 4096, Some(13_542_567_936)),
        (100 * MI, 100 * MI + 4096, 0.9, 4096, None),
        (100 * MI, 100 * MI, 0.9, 4096, None),
        (0, 0, 0.9, 4096, None),
        (200 * MI, 100 * MI, 0.9, 4096, None),
        (MI, GI, 0.9, 0, Some(966_472_499)),
    ] {
        let policy = MemoryReservationPolicy::None;
        let qos = MemoryQos {
            policy,
            throttling_factor: ThrottlingFactor(factor),
        };
        let mut settings = settings(Compat::Kubelet);
        settings.node.page_size = Bytes(page);
        let got = memory_high(Bytes(request), Bytes(limit), qos, &settings);
        assert_eq!(
            got, high,
            "request {request}, limit {limit}, factor {factor}, page {page}"
        );
    }
}

#[test]
fn without_a_limit_and_an_allocatable_there_is_no_throttling() {
    let policy = MemoryReservationPolicy::None;
    let qos = MemoryQos {
        policy,
        throttling_factor: ThrottlingFactor(0.9),
    };
    for allocatable in [None, Some(Bytes(0))] {
        let mut settings = settings(Compat::Kubelet);
        settings.node.allocatable_memory = allocatable;
        assert_eq!(memory_high(Bytes(MI), Bytes(0), qos, &settings), None);
    }
}

#[test]
fn swap_is_shared_out_by_memory_requests() {
    for (request, memory, swap, limit) in [
        ("1Gi", 16 * GI, 4 * GI, "268435456"),
        ("256Mi", 16 * GI, 8 * GI, "134217728"),
        ("100Mi", 16 * GI, 2 * GI, "13107200"),
        ("512Mi", 400 * GI, 40 * GI, "53687091"),
        ("17Gi", 16 * GI, 4 * GI, "0"),
    ] {
        let mut settings = settings(Compat::Kubelet);
        settings.swap_behavior = SwapBehavior::LimitedSwap;
        settings.node.memory = Bytes(memory);
        settings.node.swap = Bytes(swap);
        let got = first(&format!("app {{req memory={request}}}"), &settings);
        assert_eq!(got.unified["memory.swap.max"], limit, "request {request}");
        settings.swap_behavior = SwapBehavior::NoSwap;
        let got = first(&format!("app {{req memory={request}}}"), &settings);
        assert_eq!(got.unified["memory.swap.max"], "0");
    }
}

#[test]
fn swap_is_for_burstable_pods_that_are_not_critical() {
    let mut settings = settings(Compat::Kubelet);
    settings.swap_behavior = SwapBehavior::LimitedSwap;
    let swap = |pod: &Pod| {
        let class = qos_class(pod);
        let got = container_resources(
            pod,
            class,
            &pod.containers[0],
            &settings,
            CpuPinning::Shared,
        );
        got.unified["memory.swap.max"].clone()
    };
    let mut burstable = pod("app {req memory=1Gi}");
    assert_eq!(swap(&burstable), "268435456");
    burstable.priority = Some(2_000_000_000);
    assert_eq!(swap(&burstable), "0");
    assert_eq!(swap(&pod("app {}")), "0");
    assert_eq!(swap(&pod("app {req memory=1Gi lim memory=1Gi}")), "0");
    assert_eq!(
        swap(&pod("app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}")),
        "0"
    );
}

#[test]
fn on_v1_nothing_is_unified_and_swap_counts_with_memory() {
    let mut settings = settings(Compat::Ballast);
    settings.node.version = CgroupVersion::V1;
    let got = first("app {req memory=1Gi lim memory=2Gi}", &settings);
    assert!(got.unified.is_empty(), "{:?}", got.unified);
    assert_eq!(got.memory_and_swap_max, Some(Limit::At(2 * GI)));
    settings.node.is_swap_limitable = false;
    assert_eq!(
        first("app {lim memory=2Gi}", &settings).memory_and_swap_max,
        None
    );
}

#[test]
fn protection_is_reset_where_there_is_none_unless_as_kubelet_does() {
    let ours = first("app {req memory=1Gi}", &settings(Compat::Ballast)).unified;
    for (file, value) in [
        ("memory.min", "0"),
        ("memory.low", "0"),
        ("memory.high", "max"),
    ] {
        assert_eq!(ours[file], value);
    }
    let kubelets = first("app {req memory=1Gi}", &settings(Compat::Kubelet)).unified;
    assert!(!kubelets.contains_key("memory.high"));
}

#[test]
fn hugepages_of_a_container_go_before_its_pods() {
    let got = first(
        "app {lim hugepages-2Mi=2Mi} pod {lim hugepages-2Mi=8Mi hugepages-1Gi=1Gi}",
        &settings(Compat::Kubelet),
    );
    let pages = BTreeMap::from([(2 * MI, Limit::At(2 * MI)), (GI, Limit::At(GI))]);
    assert_eq!(got.hugetlb, Some(pages));
}

#[test]
fn the_oom_score_falls_with_the_memory_requested() {
    let of = |spec: &str, memory: u64, index: usize| {
        let pod = pod(spec);
        let container = pod.all_containers().nth(index).expect("container");
        oom_score_adj(
            &pod,
            qos_class(&pod),
            container,
            Bytes(memory),
            Compat::Ballast,
        )
    };
    for (request, memory, score) in [
        ("0", 16 * GI, 999),
        ("1Mi", 16 * GI, 999),
        ("17Mi", 16 * GI, 999),
        ("33Mi", 16 * GI, 998),
        ("1Gi", 16 * GI, 938),
        ("4Gi", 16 * GI, 750),
        ("16Gi", 16 * GI, 3),
        ("4G", 8_000_000_000, 500),
        ("1Gi", 0, 999),
    ] {
        let spec = format!("app {{req cpu=1 memory={request}}}");
        assert_eq!(of(&spec, memory, 0), score, "{request} of {memory}");
    }
    let sidecar = "sidecar {req memory=64Mi} app {req memory=1Gi} app {req memory=2Gi}";
    assert_eq!(of(sidecar, 16 * GI, 0), 938);
    let pod_level = "app {req memory=512Mi} app {req memory=256Mi} pod {req memory=2Gi}";
    assert_eq!(
        (of(pod_level, 16 * GI, 0), of(pod_level, 16 * GI, 1)),
        (930, 946)
    );
    assert_eq!(of("app {}", 16 * GI, 0), 1000);
    assert_eq!(
        of(
            "app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}",
            16 * GI,
            0
        ),
        -997
    );
}

#[test]
fn node_critical_pods_are_spared_by_the_oom_killer() {
    let mut pod = pod("app {}");
    pod.priority = Some(2_000_001_000);
    let score = |pod: &Pod| {
        let container = &pod.containers[0];
        oom_score_adj(
            pod,
            QosClass::BestEffort,
            container,
            Bytes(GI),
            Compat::Ballast,
        )
    };
    assert_eq!(score(&pod), 1000);
    pod.priority_class_name = Some("system-node-critical".to_owned());
    assert_eq!(score(&pod), -997);
}

#[test]
fn containers_above_their_pods_request_stay_in_the_kernels_range() {
    let pod = pod("app {} app {req memory=8Gi} pod {req memory=1Gi}");
    let score = |compat| {
        oom_score_adj(
            &pod,
            QosClass::Burstable,
            &pod.containers[0],
            Bytes(16 * GI),
            compat,
        )
    };
    assert_eq!(score(Compat::Ballast), 999);
    assert_eq!(score(Compat::Kubelet), 1218);
}
