//! Worked examples, and what counts as droppable.

use std::time::Duration;

use super::*;
use crate::model::eviction::{FastReading, StallTotals};

const GI: u64 = 1 << 30;
const MI: u64 = 1 << 20;

fn memory(usage: u64, inactive_file: u64) -> MemoryUse {
    MemoryUse {
        usage,
        inactive_file,
        ..MemoryUse::default()
    }
}

#[track_caller]
fn check(
    reading: &NodeReading,
    method: MemoryMethod,
    compat: Compat,
    signal: Signal,
    expected: Option<(i64, u64)>,
) {
    let found = observations(reading, None, method, compat);
    let expected = expected.map(|(available, capacity)| Observation {
        available,
        capacity: signed(capacity),
        at: Some(reading.at),
    });
    assert_eq!(found.get(&signal).copied(), expected, "{signal}");
}

/// By kubelet's method, whichever compatibility.
#[track_caller]
fn check_both(reading: &NodeReading, signal: Signal, expected: Option<(u64, u64)>) {
    for compat in [Compat::Ballast, Compat::Kubelet] {
        let expected = expected.map(|(available, capacity)| (signed(available), capacity));
        check(reading, MemoryMethod::WorkingSet, compat, signal, expected);
    }
}

#[test]
fn s1_available_is_what_the_working_set_leaves() {
    let root = memory(11 * GI, 3 * GI);
    assert_eq!(root.working_set(), 8 * GI);
    let reading = NodeReading {
        memory_total: 16 * GI,
        root: Some(root),
        ..NodeReading::default()
    };
    check_both(&reading, Signal::MemoryAvailable, Some((8 * GI, 16 * GI)));
}

#[test]
fn s2_huge_pages_and_kernel_memory_are_not_available() {
    let reading = NodeReading {
        memory_total: 16 * GI,
        memory_free: Some(2 * GI),
        hugepages: 4 * GI,
        slab_reclaimable: Some(GI),
        root: Some(MemoryUse {
            anon: 4 * GI,
            file: 4 * GI,
            active_file: GI,
            ..memory(8 * GI, 3 * GI)
        }),
        ..NodeReading::default()
    };
    let signal = Signal::MemoryAvailable;
    check_both(&reading, signal, Some((11 * GI, 16 * GI)));
    let estimate = |reading: &NodeReading, available: u64| {
        let (method, compat) = (MemoryMethod::Estimate, Compat::Ballast);
        let expected = Some((signed(available), 16 * GI));
        check(reading, method, compat, signal, expected);
        assert_eq!(available_memory(reading, None, method), Some(available));
    };
    // Half of the slab that can be freed.
    let half = GI / 2;
    estimate(&reading, 5 * GI + half);
    // What the kernel keeps for itself is no more to be had.
    let mut reading = NodeReading {
        low_watermark: Some(100 * MI),
        ..reading
    };
    estimate(&reading, 5 * GI + half - 100 * MI);
    // What CPUs keep in their lists is free.
    estimate(
        &NodeReading {
            free_of_cpus: Some(200 * MI),
            ..reading
        },
        5 * GI + half + 100 * MI,
    );
    // Who wants dirty pages waits for the disk, and gets them.
    reading.root = reading.root.map(|it| MemoryUse { dirty: MI, ..it });
    estimate(&reading, 5 * GI + half - 100 * MI);
}

#[test]
fn s3_a_working_set_is_not_negative() {
    assert_eq!(memory(GI, 6 * GI / 5).working_set(), 0);
}

#[test]
fn s4_s5_allocatable_is_about_the_limit_of_all_pods() {
    let limit = 15_032_385_536;
    let reading = |working_set| NodeReading {
        kubepods: Some(memory(working_set, 0)),
        kubepods_limit: Some(limit),
        ..NodeReading::default()
    };
    let signal = Signal::AllocatableMemoryAvailable;
    for (working_set, available) in [(14_927_527_936, 104_857_600), (14_927_527_937, 104_857_599)] {
        check_both(&reading(working_set), signal, Some((available, limit)));
    }
    let unlimited = NodeReading {
        kubepods_limit: None,
        ..reading(1)
    };
    check_both(&unlimited, signal, None);
}

#[test]
fn s6_tasks_are_counted_against_the_lesser_limit() {
    let reading = NodeReading {
        pids_max: Some(32_768),
        pids: Some(3518),
        ..NodeReading::default()
    };
    check_both(&reading, Signal::PidAvailable, Some((29_250, 32_768)));
    check_both(&reading, Signal::MemoryAvailable, None);
}

#[test]
fn s7_a_file_system_without_inodes_still_has_bytes() {
    let reading = NodeReading {
        nodefs: Some(FsUse {
            available: 10,
            capacity: 100,
            inodes_free: None,
            inodes: None,
        }),
        ..NodeReading::default()
    };
    check_both(&reading, Signal::NodeFsAvailable, Some((10, 100)));
    check_both(&reading, Signal::ImageFsAvailable, Some((10, 100)));
    check_both(&reading, Signal::ContainerFsAvailable, Some((10, 100)));
    check_both(&reading, Signal::NodeFsInodesFree, None);
}

#[test]
fn s8_over_the_limit_nothing_is_available() {
    let reading = NodeReading {
        kubepods: Some(memory(8 * GI + 4096, 0)),
        kubepods_limit: Some(8 * GI),
        ..NodeReading::default()
    };
    for (compat, available) in [(Compat::Kubelet, -4096), (Compat::Ballast, 0)] {
        check(
            &reading,
            MemoryMethod::WorkingSet,
            compat,
            Signal::AllocatableMemoryAvailable,
            Some((available, 8 * GI)),
        );
    }
}

#[test]
fn s9_a_file_system_that_is_not_known_hides_no_memory() {
    let reading = NodeReading {
        memory_total: 8 * GI,
        root: Some(memory(GI, 0)),
        nodefs: None,
        ..NodeReading::default()
    };
    check_both(&reading, Signal::MemoryAvailable, Some((7 * GI, 8 * GI)));
    check_both(&reading, Signal::ImageFsAvailable, None);
}

#[test]
fn s10_the_usage_to_be_woken_at_is_kubelets() {
    let observation = Observation {
        available: signed(4 * GI),
        capacity: signed(8 * GI),
        at: None,
    };
    assert_eq!(
        usage_at(&observation, 5 * GI, 100 * MI),
        Some(9_558_818_816)
    );
    assert_eq!(usage_at(&observation, 5 * GI, 4 * GI), Some(5 * GI));
    assert_eq!(usage_at(&observation, 5 * GI, 4 * GI + 1), None);
}

/// A node of 16 GiB with 8 GiB of active file pages, after ten seconds in which some came back and
/// somebody waited.
#[track_caller]
fn check_active(came_back_pages: u64, stalled_us: u64, available: u64) {
    let reading = |at, refaults, some_us| NodeReading {
        at: Duration::from_secs(at),
        memory_total: 16 * GI,
        memory_free: Some(GI),
        root: Some(MemoryUse {
            anon: 5 * GI,
            active_file: 8 * GI,
            refaults_file: Some(refaults),
            ..memory(15 * GI, 2 * GI)
        }),
        stall: Some(StallTotals {
            some_us,
            ..StallTotals::default()
        }),
        ..NodeReading::default()
    };
    let before = reading(100, 1000, 5000);
    let now = reading(110, 1000 + came_back_pages, 5000 + stalled_us);
    let found = available_memory(&now, Some(&before), MemoryMethod::Estimate);
    assert_eq!(
        found,
        Some(available),
        "{came_back_pages} pages, {stalled_us} us"
    );
}

#[test]
fn active_pages_are_in_use_as_far_as_they_come_back() {
    // Nothing came back and nobody waited: 1 GiB free, 2 GiB inactive, 8 GiB active.
    check_active(0, 0, 11 * GI);
    // 1 GiB came back in the ten seconds.
    check_active(262_144, 0, 10 * GI);
    // More than there is.
    check_active(u64::MAX / 2, 0, 3 * GI);
}

#[test]
fn active_pages_are_in_use_while_somebody_waits() {
    // A tenth of the time, and more.
    check_active(0, 1_000_000, 11 * GI);
    check_active(0, 1_000_001, 3 * GI);
    check_active(0, 10_000_000, 3 * GI);
}

#[test]
fn without_two_readings_all_active_pages_are_in_use() {
    let reading = |at, refaults_file| NodeReading {
        at: Duration::from_secs(at),
        memory_total: 16 * GI,
        memory_free: Some(GI),
        root: Some(MemoryUse {
            active_file: 8 * GI,
            refaults_file,
            ..memory(15 * GI, 2 * GI)
        }),
        ..NodeReading::default()
    };
    let now = reading(10, Some(7));
    for before in [
        None,
        // Not counted, the same moment, and a counter that went back.
        Some(reading(1, None)),
        Some(reading(10, Some(7))),
        Some(reading(1, Some(8))),
    ] {
        let found = available_memory(&now, before.as_ref(), MemoryMethod::Estimate);
        assert_eq!(found, Some(3 * GI), "{before:?}");
    }
}

#[test]
fn what_pods_can_give_back_is_not_in_use_by_them() {
    let reading = NodeReading {
        kubepods: Some(MemoryUse {
            active_file: GI,
            slab_reclaimable: Some(GI / 2),
            ..memory(6 * GI, 2 * GI)
        }),
        kubepods_limit: Some(8 * GI),
        ..NodeReading::default()
    };
    check(
        &reading,
        MemoryMethod::Estimate,
        Compat::Ballast,
        Signal::AllocatableMemoryAvailable,
        Some((signed(17 * GI / 4), 8 * GI)),
    );
}

#[test]
fn a_fast_reading_tells_memory_and_tasks_and_nothing_old() {
    let whole = NodeReading {
        at: Duration::from_secs(1),
        memory_total: 8 * GI,
        root: Some(MemoryUse {
            refaults_file: Some(7),
            ..memory(GI, 0)
        }),
        kubepods_limit: Some(6 * GI),
        pids_max: Some(100),
        nodefs: Some(FsUse::default()),
        ..NodeReading::default()
    };
    let fast = FastReading {
        at: Duration::from_secs(2),
        root: Some(memory(2 * GI, GI)),
        kubepods: Some(memory(GI, 0)),
        pids: Some(40),
        ..FastReading::default()
    };
    let now = whole.refreshed(&fast);
    // Zones count no refaults: those of the whole reading stand.
    assert_eq!(now.root.and_then(|it| it.refaults_file), Some(7));
    let found = observations(&now, None, MemoryMethod::WorkingSet, Compat::Ballast);
    let available: Vec<_> = found.iter().map(|(it, at)| (*it, at.available)).collect();
    assert_eq!(
        available,
        [
            (Signal::MemoryAvailable, signed(7 * GI)),
            (Signal::AllocatableMemoryAvailable, signed(5 * GI)),
            (Signal::PidAvailable, 60),
        ]
    );
    assert!(found.values().all(|it| it.at == Some(fast.at)));
}

#[test]
fn extreme_readings_saturate() {
    let reading = NodeReading {
        memory_total: u64::MAX,
        memory_free: Some(u64::MAX),
        slab_reclaimable: Some(u64::MAX),
        root: Some(MemoryUse {
            active_file: u64::MAX,
            ..memory(u64::MAX, u64::MAX)
        }),
        kubepods: Some(memory(u64::MAX, 0)),
        kubepods_limit: Some(0),
        pids_max: Some(0),
        pids: Some(u64::MAX),
        ..NodeReading::default()
    };
    for method in [MemoryMethod::WorkingSet, MemoryMethod::Estimate] {
        for compat in [Compat::Ballast, Compat::Kubelet] {
            let found = observations(&reading, Some(&reading), method, compat);
            assert_eq!(found.len(), 3, "{found:?}");
        }
    }
}

/// A leak of the kernel's, huge pages, or a large reserve: kubelet's formula sees room to the end.
#[test]
fn the_least_of_all_methods_sees_what_the_kernel_cannot_hand_out() {
    let least = |now: &NodeReading| {
        let least = available_memory(now, None, MemoryMethod::Least);
        for method in MemoryMethod::MEASURED {
            let it = available_memory(now, None, method);
            assert!(it.is_none() || least <= it, "{least:?} {it:?}");
        }
        least
    };
    // 5 GiB on no list of pages.
    let leak = NodeReading {
        memory_total: 16 * GI,
        memory_free: Some(GI),
        memory_available: Some(2 * GI),
        low_watermark: Some(GI / 4),
        root: Some(MemoryUse {
            anon: 9 * GI,
            ..memory(10 * GI, GI)
        }),
        ..NodeReading::default()
    };
    assert_eq!(
        available_memory(&leak, None, MemoryMethod::WorkingSet),
        Some(7 * GI)
    );
    assert_eq!(least(&leak), Some(2 * GI - GI / 4));
    // Lower still by the kernel's own reckoning.
    let reserve = NodeReading {
        memory_available: Some(GI),
        ..leak.clone()
    };
    assert_eq!(least(&reserve), Some(GI));
    // Page cache in use: kubelet's formula is the careful one.
    let cache = NodeReading {
        memory_available: Some(12 * GI),
        root: Some(MemoryUse {
            active_file: 11 * GI,
            ..memory(15 * GI, GI)
        }),
        ..leak.clone()
    };
    assert_eq!(least(&cache), Some(2 * GI - GI / 4));
    // By what is known.
    let blind = NodeReading {
        memory_free: None,
        memory_available: None,
        ..leak.clone()
    };
    assert_eq!(least(&blind), Some(7 * GI));
    let unknown = NodeReading {
        root: None,
        ..blind
    };
    assert_eq!(least(&unknown), None);
}
