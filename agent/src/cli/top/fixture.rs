//! Samples without an agent.

use std::sync::Arc;

use super::app::{App, Message};
use super::rows::{Sample, SortKey};
use crate::model::pod::{PodUid, QosClass};
use crate::model::record::tests::oom_record;
use crate::model::record::{EventKind, PodRef};
use crate::model::stats::tests::{cgroup, example_stats};
use crate::model::stats::{PodStats, StatsSnapshot};
use crate::model::status::tests::example_status;
use crate::model::status::{PodEntry, Standing, Status};
use std::time::Duration;

/// The three pods of the example documents, `second` seconds after the boot.
pub(super) fn sample(second: u64) -> Sample {
    let stats = example_stats(second);
    Sample {
        at: stats.at,
        status: example_status(),
        stats: Ok(stats),
    }
}

/// `n` running pods, one in seven with a name of the greatest length and one in five with one in
/// wide characters, which no API server takes and a terminal has to bear.
pub(super) fn crowd(n: u64, second: u64) -> Sample {
    let Sample { at, mut status, .. } = sample(second);
    let mut stats = example_stats(second);
    let database = status.pods[0].clone();
    let of_database = stats.pods[1].clone();
    status.pods = (0..n).map(|i| entry(&database, i)).collect();
    stats.pods = (0..n).map(|i| usage(&of_database, i, second)).collect();
    stand(&mut status);
    Sample {
        at,
        status,
        stats: Ok(stats),
    }
}

fn reference(i: u64) -> PodRef {
    let name = match i {
        _ if i % 7 == 3 => format!("{i}-{}", "long-".repeat(50)),
        _ if i % 5 == 2 => format!("{i}-数据库服务器"),
        _ => format!("pod-{i}"),
    };
    PodRef {
        namespace: format!("team-{}", i % 4),
        name,
        uid: PodUid(format!("uid-{i}")),
    }
}

fn class(i: u64) -> QosClass {
    let n = usize::try_from(i % 3).unwrap_or(0);
    QosClass::ALL[n]
}

fn entry(like: &PodEntry, i: u64) -> PodEntry {
    let reference = reference(i);
    PodEntry {
        namespace: reference.namespace,
        name: reference.name,
        uid: reference.uid,
        qos: class(i),
        oom_kills: u64::from(i % 11 == 5),
        ..like.clone()
    }
}

fn usage(like: &PodStats, i: u64, second: u64) -> PodStats {
    let at = Duration::from_secs(second);
    let stats = cgroup(
        at,
        second * (i * 37 % 1000),
        16 + i,
        i.is_multiple_of(2).then_some(280),
    );
    PodStats {
        pod: Arc::new(reference(i)),
        qos: class(i),
        stats: Some(stats),
        ..like.clone()
    }
}

/// The pods of `status` in the eviction order, the last one first.
fn stand(status: &mut Status) {
    let Some(pressure) = &mut status.node.pressure else {
        return;
    };
    let standing = |pod: &PodEntry| Standing {
        uid: pod.uid.clone(),
        pod: format!("{}/{}", pod.namespace, pod.name),
        ..pressure.order[0].clone()
    };
    pressure.order = status.pods.iter().rev().map(standing).collect();
}

pub(super) fn stats_of(sample: &Sample) -> &StatsSnapshot {
    sample.stats.as_ref().expect("the fixture has statistics")
}

/// After two samples and two events.
pub(super) fn app(samples: [Sample; 2]) -> App {
    let [first, second] = samples;
    let mut app = App::new(first, SortKey::Cpu, Duration::from_secs(2));
    app.update(Message::Sample(Box::new(second)));
    let mut started = oom_record(1);
    started.event.kind = EventKind::Pod;
    started.event.reason = "PodStarted".into();
    started.event.pod = Some(reference(1));
    started.event.container = None;
    started.event.message = "its cgroup is made".into();
    for record in [started, oom_record(2)] {
        app.update(Message::Event(Box::new(record)));
    }
    app
}
