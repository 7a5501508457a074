use super::*;
use crate::config::ThrottlingFactor;
use crate::decide::resource_settings::MemoryQos;
use crate::decide::testing::{pod, settings};
use crate::model::status::CgroupVersion;

const MI: u64 = 1 << 20;
const GI: u64 = 1 << 30;

fn cgroups(pods: &[Pod], settings: &ResourceSettings) -> QosCgroups {
    qos_cgroups(pods, settings, None, &BTreeSet::from([2 * MI]))
}

#[test]
fn burstable_weighs_what_its_pods_request_together() {
    let settings = settings(Compat::Ballast);
    let pods = [
        pod("app {req cpu=250m}"),
        pod("app {req cpu=1500m}"),
        pod("app {req memory=1Gi}"),
        pod("app {req cpu=4 memory=1Gi lim cpu=4 memory=1Gi}"),
        pod("app {}"),
    ];
    let got = cgroups(&pods, &settings);
    assert_eq!(got.burstable.cpu_shares, Some(1792));
    assert_eq!(got.besteffort.cpu_shares, Some(2));
    assert_eq!(got.kubepods.cpu_shares, None, "the node's own limits say");
    assert_eq!(cgroups(&[], &settings).burstable.cpu_shares, Some(2));
    let huge = pod("app {req cpu=1000}");
    assert_eq!(
        cgroups(&[huge], &settings).burstable.cpu_shares,
        Some(262_144)
    );
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

/// As kubelet does it, and as we do.
#[test]
fn protection_of_the_tiers_reaches_the_pods() {
    let pods = [
        pod("app {req cpu=1 memory=128Mi lim cpu=1 memory=128Mi}"),
        pod("app {req memory=128Mi}"),
        pod("app {req memory=256Mi}"),
    ];
    let kubelets = cgroups(&pods, &tiered(Compat::Kubelet));
    assert_eq!(kubelets.kubepods.unified["memory.min"], "536870912");
    assert_eq!(kubelets.kubepods.unified.get("memory.low"), None);
    assert_eq!(kubelets.burstable.unified["memory.low"], "402653184");
    let ours = cgroups(&pods, &tiered(Compat::Ballast));
    assert_eq!(ours.kubepods.unified["memory.min"], (128 * MI).to_string());
    assert_eq!(ours.kubepods.unified["memory.low"], (384 * MI).to_string());
    assert_eq!(ours.burstable.unified["memory.low"], (384 * MI).to_string());
}

#[test]
fn protection_that_was_switched_off_is_taken_back() {
    let pods = [pod("app {req memory=128Mi}")];
    let got = cgroups(&pods, &settings(Compat::Ballast));
    for resources in [&got.kubepods, &got.burstable, &got.besteffort] {
        assert_eq!(resources.unified["memory.min"], "0");
        assert_eq!(resources.unified["memory.low"], "0");
    }
    assert!(
        cgroups(&pods, &settings(Compat::Kubelet))
            .kubepods
            .unified
            .is_empty()
    );
    let mut v1 = settings(Compat::Ballast);
    v1.node.version = CgroupVersion::V1;
    assert!(cgroups(&pods, &v1).kubepods.unified.is_empty());
}

#[test]
fn the_nodes_hugepage_limits_are_not_lifted() {
    let unbounded = Some(BTreeMap::from([(
        2 * MI,
        Limit::At(4_611_686_018_427_387_904),
    )]));
    let ours = cgroups(&[], &settings(Compat::Ballast));
    assert_eq!(
        (ours.kubepods.hugetlb, ours.burstable.hugetlb),
        (None, unbounded.clone())
    );
    let kubelets = cgroups(&[], &settings(Compat::Kubelet));
    assert_eq!(kubelets.kubepods.hugetlb, unbounded);
}

#[test]
fn reserved_memory_is_kept_from_the_classes_below() {
    let pods = [
        pod("app {req cpu=1 memory=4Gi lim cpu=1 memory=4Gi}"),
        pod("app {req memory=6Gi}"),
    ];
    let reserved = |percent, allocatable| {
        let reserved = QosReserved {
            percent,
            allocatable: Bytes(allocatable),
        };
        qos_cgroups(
            &pods,
            &settings(Compat::Ballast),
            Some(reserved),
            &BTreeSet::new(),
        )
    };
    let got = reserved(50, 15 * GI);
    assert_eq!(got.burstable.memory_max, Some(Limit::At(13_958_643_712)));
    assert_eq!(got.besteffort.memory_max, Some(Limit::At(10_737_418_240)));
    assert_eq!(got.kubepods.memory_max, None);
    // A page, once it is written.
    let nothing_left = reserved(100, 8 * GI).besteffort;
    assert_eq!(nothing_left.memory_max, Some(Limit::At(1)));
}

/// The limits of an agent that was started with others.
#[test]
fn limits_of_the_classes_are_taken_back_with_the_reservation() {
    let without_allocatable = Some(QosReserved {
        percent: 50,
        allocatable: Bytes(0),
    });
    for reserved in [None, without_allocatable] {
        for (compat, limit) in [(Compat::Ballast, Some(Limit::Max)), (Compat::Kubelet, None)] {
            let got = qos_cgroups(&[], &settings(compat), reserved, &BTreeSet::new());
            for resources in [&got.burstable, &got.besteffort] {
                assert_eq!(resources.memory_max, limit, "{compat:?} {reserved:?}");
            }
            assert_eq!(got.kubepods.memory_max, None);
        }
    }
}
