use std::collections::BTreeSet;

use super::*;
use crate::model::event::AttributionMethod;
use crate::model::eviction::{NodeCondition, Signal, StallTotals};
use crate::model::forensics::tests::later_victim;
use crate::model::forensics::{Headroom, RecordId, Scene};
use crate::model::history::{NodeSample, PodSample};
use crate::model::record::EventDetail;

fn used(path: &str, mib: u64) -> CgroupUse {
    CgroupUse {
        cgroup_path: path.into(),
        usage_bytes: mib << 20,
        pod: None,
        container: None,
    }
}

/// A record with something of everything.
fn full() -> OomRecord {
    let mut record = crate::model::forensics::tests::record(RecordId(17));
    for pid in 0..7 {
        record.add_victim(LaterVictim {
            pod: record.event.pod.clone(),
            container: Some("main".into()),
            comm: "sh".into(),
            ..later_victim(pid)
        });
    }
    record.scene = Scene {
        limit: Some(CgroupScene {
            cgroup_path: "/kubepods/besteffort/pod0c4e/main".into(),
            usage_bytes: Some(12 << 20),
            peak_bytes: Some(64 << 20),
            limits: [
                ("memory.max".to_owned(), Limit::At(64 << 20)),
                ("memory.high".to_owned(), Limit::Max),
            ]
            .into(),
            stat: [("anon".to_owned(), 11 << 20), ("shmem".to_owned(), 0)].into(),
            events: [("oom_kill".to_owned(), 8)].into(),
            stall: None,
        }),
        siblings: vec![used("/kubepods/besteffort/pod0c4e/side", 3)],
        processes: vec![ProcessScene {
            pid: 4700,
            comm: "evil\u{1b}[31m".into(),
            rss_bytes: 10 << 20,
            swap_bytes: 0,
            oom_score_adj: Some(1000),
        }],
        n_processes: 3,
        ..Scene::default()
    };
    record.trend.pod = [(0, 20, 0), (45, 64, 1_200_000)]
        .map(|(second, mib, some_us)| PodSample {
            at_ns: second * 1_000_000_000,
            usage: mib << 20,
            usage_max: mib << 20,
            stall: Some(StallTotals {
                some_us,
                ..StallTotals::default()
            }),
        })
        .into();
    record.trend.node = vec![NodeSample {
        available: Some(3 << 30),
        available_min: Some(2 << 30),
        ..NodeSample::default()
    }];
    record.agent.conditions = BTreeSet::from([NodeCondition::MemoryPressure]);
    record.agent.thresholds = vec![Headroom {
        signal: Signal::MemoryAvailable,
        headroom: Some(-5),
        is_hard: true,
    }];
    record.cut = BTreeSet::from([Part::Pods]);
    record
}

#[test]
fn a_record_is_told_as_a_story() {
    let told = render_record(&full(), Paint { has_colour: false });
    let expected = "\
OOM record 17 2025-11-21T07:26:40.123456Z: default/hungry/main: killed sh (pid 4711, 60.0 MiB anonymous) by the limit of the container
  more kills by this limit: 7 within a second: sh (pid 0) of default/hungry/main, sh (pid 1) of default/hungry/main, sh (pid 2) of default/hungry/main, sh (pid 3) of default/hungry/main, sh (pid 4) of default/hungry/main, 2 more
  asked for memory: sh (pid 4712) of default/hungry/main
  full: /kubepods/besteffort/pod0c4e/main: 12Mi after the kill, peak 64Mi, memory.max 64Mi, anon 11Mi, 8 kills so far
  beside it: /kubepods/besteffort/pod0c4e/side 3.0Mi
  processes: evil?[31m (pid 4700, 10Mi, oom_score_adj 1000), 2 more
  before it: the pod went from 20Mi to 64Mi in 45.0 s, stalled for 1.2 s of it, available on the node from 3.0Gi to 2.0Gi
  the agent: MemoryPressure, memory.available 5 past its hard threshold
  not wholly in the record: pods of the node
  recorded 900 us after the kill";
    assert_eq!(told, expected);
}

#[test]
fn where_somebody_asked_for_the_kill_nobody_asked_for_memory() {
    let mut record = full();
    if let Some(EventDetail::Oom(detail)) = &mut record.event.detail {
        detail.constraint = None;
    }
    record.event.method = Some(AttributionMethod::Exact);
    let told = render_record(&record, Paint { has_colour: false });
    assert!(!told.contains("asked for memory"), "{told}");
}

#[test]
fn a_record_of_little_says_little() {
    let record = crate::model::forensics::tests::record(RecordId(1));
    let told = render_record(&record, Paint { has_colour: false });
    assert_eq!(told.lines().count(), 3, "{told}");
}
