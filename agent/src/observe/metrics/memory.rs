//! Memory of containers and of the node.

use std::collections::BTreeMap;
use std::time::Duration;

use super::identity::{ContainerKey, ContainerLabels};
use super::labels::ReclaimCause;
use super::last_read::LastRead;
use super::series::IntGaugeVec;
use super::{Metrics, lock, set_count, set_flag};
use crate::model::status::ResourceStatus;
use crate::units::Bytes;

/// A limit that is further away says nothing: growth does not go on for so long.
const TIME_TO_LIMIT_SHOWN: Duration = Duration::from_secs(60 * 60);

/// What the cgroup of a container says of its memory. `None`: the kernel does not keep it, it could
/// not be read, or there is no such setting.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ContainerMemory {
    /// Id of the cgroup: what is counted begins anew with another one. 0: not known.
    pub cgroup_id: u64,
    pub hits: LimitHits,
    /// `memory.peak`; v1 `memory.max_usage_in_bytes`.
    pub peak: Option<Bytes>,
    pub reclaimable: Option<Bytes>,
    /// At present growth.
    pub time_to_limit: Option<Duration>,
    pub memory_min: Option<Bytes>,
    pub memory_low: Option<Bytes>,
    pub memory_high: Option<Bytes>,
    /// `memory.high` is lifted for now.
    pub is_relaxed: Option<bool>,
}

/// `memory.events` since the cgroup was made; v1 has `max` alone, as `memory.failcnt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitHits {
    pub low: Option<u64>,
    pub high: Option<u64>,
    pub max: Option<u64>,
}

/// By the id of the cgroup, and by the container where that is 0, which is not known.
pub(super) type Hits = LastRead<(u64, Option<ContainerKey>), LimitHits>;

impl LimitHits {
    /// As labels have them.
    pub(super) const NAMES: [&str; 3] = ["low", "high", "max"];

    fn by_limit(self) -> [(&'static str, Option<u64>); 3] {
        let [low, high, max] = Self::NAMES;
        [(low, self.low), (high, self.high), (max, self.max)]
    }

    /// With the count of `before` where there is none now.
    fn or(self, before: Self) -> Self {
        Self {
            low: self.low.or(before.low),
            high: self.high.or(before.high),
            max: self.max.or(before.max),
        }
    }
}

impl Metrics {
    /// Replaces the figures of all containers. Of several of one name the last is shown, and the counts of all are
    /// added up. Counts of a container that is not among them stay as long as its pod. `now` is boottime.
    pub fn set_container_memory<'a>(
        &self,
        containers: impl IntoIterator<Item = (ContainerLabels<'a>, ContainerMemory)>,
        now: Duration,
    ) {
        let _counting = self.counting();
        let mut shown = BTreeMap::new();
        for (labels, memory) in containers {
            self.touch(labels, now);
            let key = labels.to_key();
            self.count_limit_hits(&key, &memory, now);
            shown.insert(key, memory);
        }
        for (key, memory) in &shown {
            self.show_memory(key, memory);
        }
        let mut last = lock(&self.shared.memory_hits);
        last.forget_old(now);
        for key in last.keys() {
            if !shown.contains_key(key) {
                self.hide_memory(key);
            }
        }
    }

    fn count_limit_hits(&self, key: &ContainerKey, memory: &ContainerMemory, now: Duration) {
        let whose = key.labels();
        let mut last = lock(&self.shared.memory_hits);
        let of = (
            memory.cgroup_id,
            (memory.cgroup_id == 0).then(|| key.clone()),
        );
        let before = last.read(key, of, now, |before| memory.hits.or(*before));
        drop(last);
        for ((limit, n), (_, before)) in memory.hits.by_limit().into_iter().zip(before.by_limit()) {
            let Some(n) = n else { continue };
            let labels = self.values_with(whose, limit);
            let counter = self.shared.memory.limit_hits.with_label_values(&labels);
            counter.inc_by(self.more(before, Some(n)).unwrap_or(0));
        }
    }

    fn show_memory(&self, key: &ContainerKey, memory: &ContainerMemory) {
        let whose = key.labels();
        let labels = self.values(whose);
        let families = &self.shared.memory;
        for (family, bytes) in [
            (&families.peak, memory.peak),
            (&families.reclaimable, memory.reclaimable),
        ] {
            show_bytes(family, &labels, bytes);
        }
        for (kind, bytes) in [
            ("min", memory.memory_min),
            ("low", memory.memory_low),
            ("high", memory.memory_high),
        ] {
            let labels = self.values_with(whose, kind);
            show_bytes(&families.protection, &labels, bytes);
        }
        match memory.time_to_limit {
            Some(time) if time <= TIME_TO_LIMIT_SHOWN => {
                let gauge = families.time_to_limit.with_label_values(&labels);
                gauge.set(time.as_secs_f64());
            }
            _ => families.time_to_limit.remove(&labels),
        }
        match memory.is_relaxed {
            Some(is_relaxed) => set_flag(&families.relaxed, &labels, is_relaxed),
            None => families.relaxed.remove(&labels),
        }
    }

    /// What is known only while the container is there.
    fn hide_memory(&self, key: &ContainerKey) {
        let whose = key.labels();
        let labels = self.values(whose);
        let families = &self.shared.memory;
        families.peak.remove(&labels);
        families.reclaimable.remove(&labels);
        families.time_to_limit.remove(&labels);
        families.relaxed.remove(&labels);
        for kind in ["min", "low", "high"] {
            families.protection.remove(&self.values_with(whose, kind));
        }
    }

    /// The pod is gone for long enough.
    pub(super) fn end_memory(&self, key: &ContainerKey) {
        self.hide_memory(key);
        lock(&self.shared.memory_hits).end(key);
        for limit in LimitHits::NAMES {
            let labels = self.values_with(key.labels(), limit);
            self.shared.memory.limit_hits.remove(&labels);
        }
    }

    /// The kernel gave `amount` back for it.
    pub fn memory_reclaimed(&self, cause: ReclaimCause, amount: Bytes) {
        let family = &self.shared.memory.reclaimed;
        family.with_label_values(&[cause.as_str()]).inc_by(amount.0);
    }

    /// What pods may request together, by resource name. CPUs are shown in cores; names and units
    /// are spelled as kube-state-metrics has them, so that both can be compared.
    pub fn set_node_allocatable(&self, resources: &BTreeMap<String, ResourceStatus>) {
        for (name, amounts) in resources {
            let Some(allocatable) = amounts.allocatable else {
                continue;
            };
            let (unit, divisor) = match name.as_str() {
                "cpu" => ("core", 1000.0),
                "memory" | "ephemeral-storage" => ("byte", 1.0),
                _ if name.starts_with("hugepages-") => ("byte", 1.0),
                _ => ("integer", 1.0),
            };
            let resource = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
            let gauge = self
                .shared
                .memory
                .allocatable
                .with_label_values(&[resource.as_str(), unit]);
            gauge.set(allocatable as f64 / divisor);
        }
    }
}

fn show_bytes(family: &IntGaugeVec, labels: &[&str], bytes: Option<Bytes>) {
    match bytes {
        Some(bytes) => set_count(family, labels, bytes.0),
        None => family.remove(labels),
    }
}
