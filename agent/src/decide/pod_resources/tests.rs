use super::*;
use crate::config::ThrottlingFactor;
use crate::decide::qos::qos_class;
use crate::decide::resource_settings::MemoryQos;
use crate::decide::testing::{pod, settings};
use crate::units::Micros;

const MI: u64 = 1 << 20;

struct Expected {
    shares: u64,
    /// Quota, or -1 for none, and period in microseconds.
    bandwidth: Option<(i64, u64)>,
    memory: Option<u64>,
}

#[track_caller]
fn check(spec: &str, settings: &ResourceSettings, expected: Expected) -> CgroupResources {
    let pod = pod(spec);
    let got = pod_resources(&pod, qos_class(&pod), settings, CpuPinning::Shared);
    assert_eq!(got.cpu_shares, Some(expected.shares), "shares of {spec}");
    let bandwidth = expected.bandwidth.map(|(quota, period)| CpuBandwidth {
        quota: u64::try_from(quota).map_or(Limit::Max, Limit::At),
        period: Micros(period),
    });
    assert_eq!(got.cpu_bandwidth, bandwidth, "bandwidth of {spec}");
    assert_eq!(
        got.memory_max,
        expected.memory.map(Limit::At),
        "memory of {spec}"
    );
    got
}

#[test]
fn the_pods_cgroup_follows_from_its_containers() {
    let kubelet = settings(Compat::Kubelet);
    let no_quota = ResourceSettings {
        cpu_limits: CpuLimits::Ignored,
        ..kubelet
    };
    let short = ResourceSettings {
        cpu_period: Micros(5000),
        ..kubelet
    };
    let a = "app {req cpu=100m memory=100Mi lim cpu=200m memory=200Mi}";
    let same = "app {req cpu=100m memory=100Mi lim cpu=100m memory=100Mi}";
    let limited = |shares, quota, period, memory_mi| Expected {
        shares,
        bandwidth: Some((quota, period)),
        memory: Some(memory_mi * MI),
    };
    let shares = |shares| Expected {
        shares,
        bandwidth: None,
        memory: None,
    };
    check("app {}", &kubelet, shares(2));
    check("app {req cpu=100m memory=100Mi}", &kubelet, shares(102));
    check(a, &kubelet, limited(102, 20_000, 100_000, 200));
    check(a, &no_quota, limited(102, -1, 100_000, 200));
    check(
        &format!("{a} app {{req cpu=100m memory=100Mi}}"),
        &kubelet,
        shares(204),
    );
    check(a, &short, limited(102, 1000, 5000, 200));
    check(same, &kubelet, limited(102, 10_000, 100_000, 100));
    check(same, &short, limited(102, 1000, 5000, 100));
    let all = |cpu, mi| format!("{{req cpu={cpu}m memory={mi}Mi lim cpu={cpu}m memory={mi}Mi}}");
    let nine = format!(
        "init {} sidecar {} init {} app {}",
        all(1000, 1024),
        all(200, 128),
        all(500, 256),
        all(600, 512)
    );
    check(&nine, &kubelet, limited(1024, 100_000, 100_000, 1024));
    let ten = format!("{nine} overhead {{req cpu=250m memory=120Mi}}");
    check(&ten, &kubelet, limited(1280, 125_000, 100_000, 1144));
    check(
        "app {} pod {req cpu=100m memory=100Mi}",
        &kubelet,
        shares(102),
    );
    check(
        "app {req cpu=10m memory=50Mi lim cpu=50m memory=100Mi} pod {req cpu=100m memory=100Mi lim cpu=200m memory=200Mi}",
        &kubelet,
        limited(102, 20_000, 100_000, 200),
    );
    check(
        "app {req cpu=200m memory=200Mi lim cpu=200m memory=200Mi} pod {req cpu=200m memory=300Mi}",
        &kubelet,
        limited(204, 20_000, 100_000, 200),
    );
    let app = "app {lim cpu=200m memory=128Mi}";
    let sidecar = "sidecar {lim cpu=100m memory=64Mi}";
    check(
        &format!("{sidecar} init {{}} {app}"),
        &kubelet,
        limited(2, 30_000, 100_000, 192),
    );
    check(&format!("init {{}} {sidecar} {app}"), &kubelet, shares(2));
}

fn tiered(compat: Compat) -> ResourceSettings {
    let policy = MemoryReservationPolicy::TieredReservation;
    let throttling_factor = ThrottlingFactor(0.9);
    let memory_qos = Some(MemoryQos {
        policy,
        throttling_factor,
    });
    ResourceSettings {
        memory_qos,
        ..settings(compat)
    }
}

/// The last two rows of the table, and what becomes of the files when the feature is off.
#[test]
fn requests_are_protected_by_tier_and_else_reset() {
    let burstable = pod("app {req cpu=100m memory=100Mi}");
    let guaranteed = pod("app {req cpu=1 memory=100Mi lim cpu=1 memory=100Mi}");
    let unified = |pod, class, settings: &ResourceSettings| {
        let got = pod_resources(pod, class, settings, CpuPinning::Shared).unified;
        got.iter()
            .map(|(file, value)| format!("{file}={value}"))
            .collect::<Vec<_>>()
    };
    let kubelet = tiered(Compat::Kubelet);
    assert_eq!(
        unified(&burstable, QosClass::Burstable, &kubelet),
        ["memory.low=104857600"]
    );
    assert_eq!(
        unified(&guaranteed, QosClass::Guaranteed, &kubelet),
        ["memory.min=104857600"]
    );
    let ours = tiered(Compat::Ballast);
    assert_eq!(
        unified(&burstable, QosClass::Burstable, &ours),
        ["memory.low=104857600", "memory.min=0"]
    );
    let off = settings(Compat::Ballast);
    assert_eq!(
        unified(&burstable, QosClass::Burstable, &off),
        ["memory.low=0", "memory.min=0"]
    );
    let none: [&str; 0] = [];
    assert_eq!(
        unified(&burstable, QosClass::Burstable, &settings(Compat::Kubelet)),
        none
    );
}

#[test]
fn pinned_cpus_are_not_throttled() {
    let pod = pod("app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi}");
    let settings = settings(Compat::Kubelet);
    let got = pod_resources(&pod, QosClass::Guaranteed, &settings, CpuPinning::Exclusive);
    assert_eq!(got.cpu_bandwidth.map(|it| it.quota), Some(Limit::Max));
}

#[test]
fn names_of_one_page_size_add_up() {
    let pod =
        pod("app {req hugepages-2Mi=4Mi hugepages-2097152=2Mi hugepages-1Gi=1Gi hugepages-x=1}");
    let got = pod_resources(
        &pod,
        QosClass::Burstable,
        &settings(Compat::Kubelet),
        CpuPinning::Shared,
    );
    let pages = BTreeMap::from([(2 * MI, Limit::At(6 * MI)), (1 << 30, Limit::At(1 << 30))]);
    assert_eq!(got.hugetlb, Some(pages));
}

#[test]
fn a_limit_of_processes_that_is_taken_out_is_taken_back() {
    let none = Some(Limit::Max);
    for (compat, limit, expected) in [
        (Compat::Ballast, Some(100), Some(Limit::At(100))),
        (Compat::Ballast, Some(0), none),
        (Compat::Ballast, None, none),
        (Compat::Kubelet, Some(100), Some(Limit::At(100))),
        (Compat::Kubelet, None, None),
    ] {
        let settings = ResourceSettings {
            pod_pids_limit: limit,
            ..settings(compat)
        };
        let pod = pod("app {}");
        let got = pod_resources(&pod, QosClass::BestEffort, &settings, CpuPinning::Shared);
        assert_eq!(got.pids_max, expected, "{compat:?} {limit:?}");
    }
}

#[test]
fn reducing_cpu_leaves_hugepages_alone() {
    assert_eq!(reduced_cpu(Compat::Ballast).hugetlb, None);
    assert_eq!(reduced_cpu(Compat::Kubelet).hugetlb, Some(BTreeMap::new()));
    assert_eq!(reduced_cpu(Compat::Ballast).cpu_shares, Some(2));
}

#[test]
fn a_volume_in_memory_has_the_smallest_of_its_limits() {
    let gi = 1024 * MI;
    for (own, pod, size) in [
        (None, None, gi),
        (None, Some(Limit::Max), gi),
        (Some("0"), Some(Limit::At(0)), gi),
        (Some("8Mi"), Some(Limit::At(64 * MI)), 8 * MI),
        (Some("8Mi"), None, 8 * MI),
        (Some("2Gi"), Some(Limit::At(64 * MI)), 64 * MI),
        (Some("2Gi"), None, gi),
    ] {
        let own: Option<Quantity> = own.map(|it| it.parse().expect("a quantity"));
        let resources = CgroupResources {
            memory_max: pod,
            ..CgroupResources::default()
        };
        let got = memory_volume_size(own.as_ref(), &resources, Bytes(gi));
        assert_eq!(got, Bytes(size), "{own:?} {pod:?}");
    }
}

#[test]
fn volumes_in_memory_grow_and_shrink_with_the_limit_of_their_pod() {
    let volume = |name: &str, memory, size_limit: Option<&str>| Volume {
        name: name.to_owned(),
        source: VolumeSource::EmptyDir {
            memory,
            size_limit: size_limit.map(|it| it.parse().expect("a quantity")),
        },
    };
    for (limit, free) in [("64Mi", 64), ("32Mi", 32), ("2Gi", 1024)] {
        let mut pod = pod(&format!("app {{lim memory={limit}}}"));
        pod.volumes = vec![
            volume("free", true, None),
            volume("bounded", true, Some("8Mi")),
            volume("on-disk", false, None),
        ];
        let settings = settings(Compat::Ballast);
        let sizes = memory_volumes(&pod, qos_class(&pod), &settings, Bytes(1024 * MI));
        let expected = [("free", free), ("bounded", 8)];
        let expected = expected.map(|(name, size)| (name.to_owned(), Bytes(size * MI)));
        assert_eq!(sizes, BTreeMap::from(expected), "{limit}");
    }
}
