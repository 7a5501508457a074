//! From samples to rows.

use std::collections::BTreeMap;

use super::activity::{Activity, Stall, Stalls};
use super::{Board, Budget, ClassRow, ContainerRow, Headroom, NodeRow, PodRow, Room, Sample};
use crate::cli::pressure::EvictedBy;
use crate::model::pod::{PodUid, QosClass};
use crate::model::psi::StallShare;
use crate::model::record::short_id;
use crate::model::stats::{CgroupStats, ContainerStats, GroupKind, PodStats, StatsSnapshot};
use crate::model::status::{ContainerEntry, EntryState, PodEntry, PsiShare, SignalStatus, Status};
use crate::model::time::WallTime;

impl Board {
    /// `before`: the statistics of an earlier sample of the same agent; `None`: no rates.
    pub(in crate::cli::top) fn new(sample: &Sample, before: Option<&StatsSnapshot>) -> Self {
        let status = &sample.status;
        let stats = sample.stats.as_ref().ok();
        let by_uid = |stats: &'_ StatsSnapshot| -> BTreeMap<PodUid, usize> {
            let uids = stats.pods.iter().map(|it| it.pod.uid.clone());
            uids.zip(0..).collect()
        };
        let (now_at, before_at) = (stats.map(by_uid), before.map(by_uid));
        let pods: Vec<PodRow> = status
            .pods
            .iter()
            .map(|entry| {
                let now = find(stats, now_at.as_ref(), &entry.uid);
                let before = find(before, before_at.as_ref(), &entry.uid);
                pod_row(sample, entry, now, before)
            })
            .collect();
        Self {
            at: sample.at,
            node: node_row(status, stats, before, &pods),
            classes: QosClass::ALL.map(|class| class_row(class, stats, before, &pods)),
            pods,
            no_stats: sample.stats.as_ref().err().cloned(),
        }
    }
}

fn find<'a>(
    stats: Option<&'a StatsSnapshot>,
    places: Option<&BTreeMap<PodUid, usize>>,
    uid: &PodUid,
) -> Option<&'a PodStats> {
    stats?.pods.get(*places?.get(uid)?)
}

fn node_row(
    status: &Status,
    stats: Option<&StatsSnapshot>,
    before: Option<&StatsSnapshot>,
    pods: &[PodRow],
) -> NodeRow {
    let root = stats.map(|it| &it.node.cgroup);
    let used = root.map(|it| Activity::between(it, before.map(|it| &it.node.cgroup)));
    let used = used.unwrap_or_default();
    let kubepods = group(GroupKind::Kubepods, stats, before);
    let resources = &status.node.resources;
    let of_status = |name: &str| resources.get(name).and_then(|it| it.used);
    let budgets = ["cpu", "memory", "pods"]
        .into_iter()
        .filter_map(|resource| {
            let amounts = *resources.get(resource)?;
            let (used, used_by_pods) = match resource {
                "cpu" => (used.cpu, kubepods.and_then(|it| it.cpu)),
                "memory" => (used.memory, kubepods.and_then(|it| it.memory)),
                _ => {
                    let is_active = |it: &&PodRow| !it.entry.phase.is_terminal();
                    let n_active = pods.iter().filter(is_active).count();
                    (None, u64::try_from(n_active).ok())
                }
            };
            Some(Budget {
                resource,
                used,
                used_by_pods: used_by_pods.or_else(|| of_status(resource)),
                amounts,
            })
        });
    let pressure = status.node.pressure.as_ref();
    let mut signals: Vec<SignalStatus> = pressure.map_or_else(Vec::new, |it| {
        let watched = it.signals.iter().filter(|it| !it.thresholds.is_empty());
        watched.cloned().collect()
    });
    signals.sort_by_key(|it| Headroom::of(it).map_or(u64::MAX, |it| it.permille));
    NodeRow {
        name: status.node.name.clone(),
        mode: status.agent.mode.clone(),
        started_at: status.agent.started_at,
        budgets: budgets.collect(),
        stalls: node_stalls(status, used.stalls),
        conditions: pressure.map_or_else(Vec::new, |it| it.conditions.iter().copied().collect()),
        stages: pressure.map_or_else(Vec::new, |it| it.stages.iter().copied().collect()),
        signals,
    }
}

/// Between the samples where that is known, else the kernel's mean over 10 s.
fn node_stalls(status: &Status, measured: Stalls) -> Stalls {
    let psi = &status.node.psi;
    let mean = |share: Option<PsiShare>| {
        let share = share?;
        Some(Stall {
            some: from_percent(share.some_avg10),
            full: share.full_avg10.map(from_percent),
        })
    };
    Stalls {
        cpu: measured.cpu.or_else(|| mean(psi.cpu)),
        memory: measured.memory.or_else(|| mean(psi.memory)),
        io: measured.io.or_else(|| mean(psi.io)),
    }
}

fn group(
    kind: GroupKind,
    stats: Option<&StatsSnapshot>,
    before: Option<&StatsSnapshot>,
) -> Option<Activity> {
    let now = stats?.groups.iter().find(|it| it.kind == kind)?;
    let before = before.and_then(|it| it.groups.iter().find(|it| it.id == now.id));
    Some(Activity::between(&now.stats, before.map(|it| &it.stats)))
}

fn class_row(
    class: QosClass,
    stats: Option<&StatsSnapshot>,
    before: Option<&StatsSnapshot>,
    pods: &[PodRow],
) -> ClassRow {
    let of_class: Vec<&PodRow> = pods
        .iter()
        .filter(|it| it.entry.qos == class && !it.entry.phase.is_terminal())
        .collect();
    let own = group(GroupKind::Qos(class), stats, before);
    ClassRow {
        class,
        n_pods: of_class.len(),
        activity: own.unwrap_or_else(|| sum_of(&of_class)),
        is_sum: own.is_none(),
    }
}

/// `None` where no pod has a value.
fn sum_of(pods: &[&PodRow]) -> Activity {
    let sum = |of: fn(&Activity) -> Option<u64>| {
        let values = pods.iter().filter_map(|it| of(&it.activity));
        values.reduce(u64::saturating_add)
    };
    let worst = |of: fn(&Stalls) -> Option<Stall>| {
        let stalls = pods.iter().filter_map(|it| of(&it.activity.stalls));
        let some = stalls.map(|it| it.some).max()?;
        // All of the class wait only if all of its pods do: that is not known.
        Some(Stall { some, full: None })
    };
    Activity {
        cpu: sum(|it| it.cpu),
        memory: sum(|it| it.memory),
        n_tasks: sum(|it| it.n_tasks),
        stalls: Stalls {
            cpu: worst(|it| it.cpu),
            memory: worst(|it| it.memory),
            io: worst(|it| it.io),
        },
        ..Activity::default()
    }
}

fn pod_row(
    sample: &Sample,
    entry: &PodEntry,
    now: Option<&PodStats>,
    before: Option<&PodStats>,
) -> PodRow {
    let (at, status) = (sample.at, &sample.status);
    let stats = now.and_then(|it| it.stats.as_ref());
    let earlier = before.and_then(|it| it.stats.as_ref());
    let activity = stats.map(|it| Activity::between(it, earlier));
    let containers: Vec<ContainerRow> = entry
        .containers
        .iter()
        .map(|it| container_row(it, at, now, before))
        .collect();
    let own = stats.and_then(|it| room_in(it, None));
    let rooms = containers.iter().filter_map(|it| it.room.clone());
    let pressure = status.node.pressure.as_ref();
    PodRow {
        entry: entry.clone(),
        age: entry.started_at.map(|it| it.until(at)),
        activity: activity.unwrap_or_default(),
        room: own.into_iter().chain(rooms).max_by_key(Room::percent),
        eviction: pressure.and_then(|it| it.standing_of(&entry.uid)),
        evicted_by: EvictedBy::of(status.is_managed()),
        restarts: containers
            .iter()
            .map(|it| u64::from(it.entry.restarts))
            .sum(),
        containers,
    }
}

fn container_row(
    entry: &ContainerEntry,
    at: WallTime,
    now: Option<&PodStats>,
    before: Option<&PodStats>,
) -> ContainerRow {
    let is_running = matches!(entry.state, EntryState::Running { .. });
    let instance = now.and_then(|pod| {
        let of_name = pod
            .containers
            .iter()
            .filter(|it| it.known_as() == entry.known_as());
        of_name.max_by_key(|it| (it.ended_at.is_none(), it.ended_at, it.restarts))
    });
    let earlier = before.zip(instance).and_then(|(pod, instance)| {
        let is_same = |it: &&ContainerStats| it.runtime_id == instance.runtime_id;
        pod.containers.iter().find(is_same)
    });
    let live = instance.filter(|it| it.ended_at.is_none() && is_running);
    let activity = live.map(|it| Activity::between(&it.stats, earlier.map(|it| &it.stats)));
    ContainerRow {
        entry: entry.clone(),
        at,
        activity: activity.unwrap_or_default(),
        room: live.and_then(|it| room_in(&it.stats, Some(shown_name(it)))),
        instance: instance.cloned(),
    }
}

fn shown_name(container: &ContainerStats) -> &str {
    match container.name.as_str() {
        "" => short_id(&container.runtime_id),
        name => name,
    }
}

fn room_in(stats: &CgroupStats, container: Option<&str>) -> Option<Room> {
    Some(Room {
        used: stats.memory.working_set()?,
        limit: stats.spec.memory_limit?,
        container: container.map(str::to_owned),
    })
}

/// From 0..=100 as the status document has it.
fn from_percent(percent: f64) -> StallShare {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is clamped to the range first"
    )]
    let hundredths = (percent * 100.0).round().clamp(0.0, 10_000.0) as u32;
    StallShare(hundredths)
}
