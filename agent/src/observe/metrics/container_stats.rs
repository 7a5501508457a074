//! What a sweep of statistics says of containers and of the node's CPUs, beyond what is passed on as
//! it was read.
//!
//! Counters are the kernel's, summed over the instances of a container; gauges live as long as the
//! instance does, and are those of the pod that was started last where two have one name.

use std::collections::BTreeMap;
use std::time::Duration;

use super::identity::{ContainerKey, ContainerLabels};
use super::labels::{CpuStallCause, Source};
use super::last_read::LastRead;
use super::{Metrics, lock};
use crate::model::stats::{CgroupStats, ContainerStats, NodeStats, PodStats, StatsSnapshot};
use crate::model::topology::NumaNodeId;

/// By the name that the runtime has for an instance.
pub(super) type ContainerCounts = LastRead<String, InstanceCounts>;

/// Counters of one instance since its cgroup was made. `None`: the kernel does not keep it, or it
/// was not read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct InstanceCounts {
    group_kills: Option<u64>,
    fork_refusals: Option<u64>,
    /// Microseconds in which some task waited for a CPU.
    cpu_some_us: Option<u64>,
    throttled_us: Option<u64>,
    /// Of its pod, since that has its cgroup.
    pod_throttled_us: Option<u64>,
    /// Of its pod, if it is the only container that runs there.
    pod_fork_refusals: Option<u64>,
    refusals: Refusals,
}

/// Forks that a limit refused, in the container and in its pod. Since Linux 6.11 cgroup v2 counts them where the limit
/// is, and above (kernel/cgroup/pids.c: `pids_event`), which may be the pod alone.
#[derive(Clone, Copy, Debug, Default)]
struct Refusals {
    /// Of the container: its own, and those of its pod while it is the only container that runs there.
    all: u64,
    /// When it was first seen to be the only one.
    alone: Option<Alone>,
}

#[derive(Clone, Copy, Debug)]
struct Alone {
    pod: u64,
    own: u64,
    all: u64,
}

impl Refusals {
    /// `own`: in the container, before and now. `pod`: in the pod, if the container is the only one that runs there.
    fn next(self, own: (u64, u64), pod: Option<u64>) -> Self {
        let (before, own) = own;
        let all = self.all.saturating_add(own.saturating_sub(before));
        match (self.alone, pod) {
            // The two are not read at the same time.
            (Some(alone), Some(pod)) => {
                let of_pod = pod.saturating_sub(alone.pod);
                let more = of_pod.max(own.saturating_sub(alone.own));
                Self {
                    all: self.all.max(alone.all.saturating_add(more)),
                    ..self
                }
            }
            (None, Some(pod)) => Self {
                all,
                alone: Some(Alone { pod, own, all }),
            },
            (_, None) => Self { all, alone: None },
        }
    }
}

impl InstanceCounts {
    fn of(container: &ContainerStats, pod: &PodStats) -> Self {
        let CgroupStats {
            cpu,
            memory,
            stalls,
            n_fork_refusals,
            ..
        } = &container.stats;
        let of_pod = pod.stats.as_ref();
        let running = pod.containers.iter().filter(|it| it.ended_at.is_none());
        let is_alone = container.ended_at.is_none() && running.count() == 1;
        Self {
            group_kills: memory.events.oom_group_kill,
            fork_refusals: *n_fork_refusals,
            cpu_some_us: stalls.cpu.map(|it| it.some.total.0),
            throttled_us: cpu.throttled_ns.map(|ns| ns / 1000),
            pod_throttled_us: of_pod
                .and_then(|it| it.cpu.throttled_ns)
                .map(|ns| ns / 1000),
            pod_fork_refusals: of_pod
                .filter(|_| is_alone)
                .and_then(|it| it.n_fork_refusals),
            refusals: Refusals::default(),
        }
    }

    /// With the counts of `before` where there is none now, or a lower one.
    fn or(self, before: &Self) -> Self {
        let fork_refusals = self.fork_refusals.max(before.fork_refusals);
        let own = (
            before.fork_refusals.unwrap_or(0),
            fork_refusals.unwrap_or(0),
        );
        Self {
            group_kills: self.group_kills.max(before.group_kills),
            fork_refusals,
            cpu_some_us: self.cpu_some_us.max(before.cpu_some_us),
            throttled_us: self.throttled_us.max(before.throttled_us),
            pod_throttled_us: self.pod_throttled_us.max(before.pod_throttled_us),
            pod_fork_refusals: self.pod_fork_refusals,
            refusals: match self.fork_refusals {
                Some(_) => before.refusals.next(own, self.pod_fork_refusals),
                None => before.refusals,
            },
        }
    }
}

impl Metrics {
    /// Takes a sweep, and the one `before` it for what needs two. Counts of a container that is not
    /// in it stay as long as its pod.
    pub fn set_stats(&self, now: &StatsSnapshot, before: Option<&StatsSnapshot>) {
        let _counting = self.counting();
        self.set_idle(&now.node, before.map(|it| &it.node), now.machine.n_cpus);
        let mut shown = BTreeMap::new();
        let counted = before.map(ended_instances).unwrap_or_default();
        for pod in now.by_start() {
            let (ended, live): (Vec<_>, Vec<_>) =
                pod.containers.iter().partition(|it| it.ended_at.is_some());
            // The end of an instance is counted before the next one takes its place.
            for container in ended.into_iter().chain(live) {
                let id = &container.runtime_id;
                // Its series may have been cut short since.
                if counted.get(id.as_str()) == Some(&container) {
                    continue;
                }
                let key = ContainerLabels::new(&pod.pod, &container.name, id).to_key();
                self.count_instance(&key, &InstanceCounts::of(container, pod), id, now.ended);
                if container.ended_at.is_none() {
                    shown.insert(key, &container.stats);
                }
            }
        }
        for (key, stats) in &shown {
            self.show_instance(key, stats);
        }
        let mut last = lock(&self.shared.stats);
        last.forget_old(now.ended);
        for key in last.keys() {
            if !shown.contains_key(key) {
                self.hide_instance(key);
            }
        }
    }

    fn count_instance(&self, key: &ContainerKey, counts: &InstanceCounts, id: &str, now: Duration) {
        let mut last = lock(&self.shared.stats);
        let before = last.read(key, id.to_owned(), now, |before| counts.clone().or(before));
        drop(last);
        self.touch(key.labels(), now);
        let labels = self.values(key.labels());
        if let Some(more) = self.more(before.group_kills, counts.group_kills) {
            let group_kills = self.shared.oom.group_kills.with_label_values(&labels);
            group_kills.inc_by(more);
        }
        if self
            .more(before.fork_refusals, counts.fork_refusals)
            .is_some()
        {
            let refused = counts.clone().or(&before).refusals.all;
            let limit_hits = self.shared.process.limit_hits.with_label_values(&labels);
            limit_hits.inc_by(refused.saturating_sub(before.refusals.all));
        }
        let waited = self.more(before.cpu_some_us, counts.cpu_some_us);
        let throttled = self.more(before.throttled_us, counts.throttled_us);
        let Some((waited, throttled)) = waited.zip(throttled) else {
            return;
        };
        // What the limit of the pod makes its containers wait for the kernel counts at the pod alone.
        let by_pod = self.more(before.pod_throttled_us, counts.pod_throttled_us);
        let own_limit = waited.min(throttled.saturating_add(by_pod.unwrap_or(0)));
        for (cause, us) in [
            (CpuStallCause::OwnLimit, own_limit),
            (CpuStallCause::Contention, waited - own_limit),
        ] {
            let labels = self.values_with(key.labels(), cause.as_str());
            let counter = self.shared.cpu.stall.with_label_values(&labels);
            counter.inc_by(Duration::from_micros(us).as_secs_f64());
        }
    }

    /// How far a counter of one cgroup has risen; it never falls, so what is lower is not counted.
    /// `None`: it is not known now.
    pub(super) fn more(&self, before: Option<u64>, now: Option<u64>) -> Option<u64> {
        let (before, now) = (before.unwrap_or(0), now?);
        if now < before {
            self.source_regressed(Source::Cgroup, 1);
        }
        Some(now.saturating_sub(before))
    }

    fn show_instance(&self, key: &ContainerKey, stats: &CgroupStats) {
        let labels = self.values(key.labels());
        let burst = &self.shared.cpu.burst_limit;
        match stats.spec.cpu_burst_us {
            Some(us) => {
                let seconds = Duration::from_micros(us).as_secs_f64();
                burst.with_label_values(&labels).set(seconds);
            }
            None => burst.remove(&labels),
        }
        let remote = &self.shared.placement.remote_memory;
        let nodes = lock(&self.shared.numa_nodes).get(key).copied();
        let ratio = nodes.and_then(|nodes| {
            let pages = stats.numa.iter().map(|it| {
                let is_remote = !nodes.contains(NumaNodeId(it.node));
                (it.anon.saturating_add(it.file), is_remote)
            });
            share_of(pages)
        });
        match ratio {
            Some(ratio) => remote.with_label_values(&labels).set(ratio),
            None => remote.remove(&labels),
        }
    }

    /// What is known only while an instance is there.
    fn hide_instance(&self, key: &ContainerKey) {
        let labels = self.values(key.labels());
        self.shared.cpu.burst_limit.remove(&labels);
        self.shared.placement.remote_memory.remove(&labels);
    }

    /// The pod is gone for long enough.
    pub(super) fn end_stats(&self, key: &ContainerKey) {
        self.hide_instance(key);
        lock(&self.shared.stats).end(key);
        let labels = self.values(key.labels());
        self.shared.oom.group_kills.remove(&labels);
        self.shared.process.limit_hits.remove(&labels);
        for cause in CpuStallCause::ALL {
            let labels = self.values_with(key.labels(), cause.as_str());
            self.shared.cpu.stall.remove(&labels);
        }
    }

    fn set_idle(&self, now: &NodeStats, before: Option<&NodeStats>, n_cpus: u64) {
        let family = &self.shared.cpu.idle;
        match before.and_then(|before| idle(now, before, n_cpus)) {
            Some(ratio) => family.with_label_values::<&str>(&[]).set(ratio),
            None => family.remove(&[]),
        }
    }
}

/// Instances that have ended, by their ids.
fn ended_instances(sweep: &StatsSnapshot) -> BTreeMap<&str, &ContainerStats> {
    let containers = sweep.pods.iter().flat_map(|it| &it.containers);
    let ended = containers.filter(|it| it.ended_at.is_some());
    ended.map(|it| (it.runtime_id.as_str(), it)).collect()
}

/// Share of the CPU time between two readings of the root that nobody used.
fn idle(now: &NodeStats, before: &NodeStats, n_cpus: u64) -> Option<f64> {
    let (now, before) = (&now.cgroup, &before.cgroup);
    let used = now.cpu.usage_ns?.checked_sub(before.cpu.usage_ns?)?;
    let n_cpus = u32::try_from(n_cpus).ok()?;
    let all = now.at.checked_sub(before.at)?.checked_mul(n_cpus)?;
    if all.is_zero() {
        return None;
    }
    // The two clocks are not the same.
    Some((1.0 - Duration::from_nanos(used).div_duration_f64(all)).max(0.0))
}

/// Share of what is true among amounts; `None`: there is nothing.
#[expect(
    clippy::cast_precision_loss,
    reason = "a ratio for people: counts above 2^53 lose their last pages"
)]
fn share_of(amounts: impl Iterator<Item = (u64, bool)>) -> Option<f64> {
    let (mut all, mut part) = (0_u64, 0_u64);
    for (n, is_part) in amounts {
        all = all.saturating_add(n);
        part = part.saturating_add(if is_part { n } else { 0 });
    }
    (all > 0).then(|| part as f64 / all as f64)
}
