//! What `ballast top` shows, from two successive samples: amounts as they are, rates between them.
//!
//! Invariants: pure. A rate needs two readings of the same cgroup: a container that was started
//! again, or a counter that went back, gives `None` and never a jump.

mod activity;
mod build;

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use clap::ValueEnum;

pub(super) use self::activity::{Activity, Stall, Stalls};

use crate::cli::pressure::EvictedBy;
use crate::model::eviction::NodeCondition;
use crate::model::pod::QosClass;
use crate::model::relief::Stage;
use crate::model::stats::{ContainerStats, StatsSnapshot};
use crate::model::status::{
    ContainerEntry, EvictionStanding, PodEntry, ResourceStatus, SignalStatus, Status,
};
use crate::model::time::WallTime;

/// What the agent knew when it was asked.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    /// When it was asked.
    pub(super) at: WallTime,
    pub(super) status: Status,
    /// `Err`: the agent's words why there are none.
    pub(super) stats: Result<StatsSnapshot, String>,
}

/// All that is shown of one moment, in the order of the status document.
#[derive(Clone, Debug)]
pub(super) struct Board {
    pub(super) at: WallTime,
    pub(super) node: NodeRow,
    /// Guaranteed, Burstable, BestEffort.
    pub(super) classes: [ClassRow; 3],
    pub(super) pods: Vec<PodRow>,
    /// Why there are no statistics.
    pub(super) no_stats: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct NodeRow {
    pub(super) name: String,
    pub(super) mode: String,
    /// Of the agent.
    pub(super) started_at: WallTime,
    pub(super) budgets: Vec<Budget>,
    pub(super) stalls: Stalls,
    pub(super) conditions: Vec<NodeCondition>,
    /// Those of relief whose changes are in force.
    pub(super) stages: Vec<Stage>,
    /// Those with a threshold, least headroom first.
    pub(super) signals: Vec<SignalStatus>,
}

/// One resource of the node; thousandths of a CPU, bytes, or a count.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    pub(super) resource: &'static str,
    /// By everything on the node; memory is the working set.
    pub(super) used: Option<u64>,
    /// By pods.
    pub(super) used_by_pods: Option<u64>,
    pub(super) amounts: ResourceStatus,
}

#[derive(Clone, Debug)]
pub(super) struct ClassRow {
    pub(super) class: QosClass,
    pub(super) n_pods: usize,
    pub(super) activity: Activity,
    /// The class has no cgroup of its own: amounts are sums over its pods, and stalls those of its
    /// worst pod.
    pub(super) is_sum: bool,
}

/// How near a memory limit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Working set and limit, bytes.
    pub(super) used: u64,
    pub(super) limit: u64,
    /// Whose limit it is; `None`: the pod's own.
    pub(super) container: Option<String>,
}

impl Room {
    /// Bytes; 0 at the limit.
    pub(super) fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Of the limit, in percent, rounded down.
    pub(super) fn percent(&self) -> u64 {
        let percent = u128::from(self.used) * 100 / u128::from(self.limit.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

#[derive(Clone, Debug)]
pub(super) struct PodRow {
    pub(super) entry: PodEntry,
    /// Since it was started.
    pub(super) age: Option<Duration>,
    pub(super) activity: Activity,
    /// The nearest memory limit among those of the pod and its containers; `None`: there is none.
    pub(super) room: Option<Room>,
    pub(super) eviction: Option<EvictionStanding>,
    pub(super) evicted_by: EvictedBy,
    /// Of all its containers.
    pub(super) restarts: u64,
    /// In the order of the status document.
    pub(super) containers: Vec<ContainerRow>,
}

impl PodRow {
    /// `namespace/name`, or the UID of a pod without a name.
    pub(super) fn full_name(&self) -> String {
        let PodEntry {
            namespace,
            name,
            uid,
            ..
        } = &self.entry;
        match name.is_empty() {
            true => uid.to_string(),
            false => format!("{namespace}/{name}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ContainerRow {
    pub(super) entry: ContainerEntry,
    /// Of the sample.
    pub(super) at: WallTime,
    pub(super) activity: Activity,
    pub(super) room: Option<Room>,
    /// The newest instance in the statistics; `None`: there is none.
    pub(super) instance: Option<ContainerStats>,
}

/// What pods are sorted by, the most interesting first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// CPU in use.
    #[default]
    Cpu,
    /// Working set.
    Memory,
    /// Time stalled for memory.
    Stall,
    /// Share of CPU periods throttled.
    Throttling,
    /// Nearest to a memory limit, as a share of it.
    Limit,
    /// First to be evicted for memory.
    Eviction,
    /// Namespace and name.
    Name,
}

impl SortKey {
    pub(super) const ALL: [Self; 7] = [
        Self::Cpu,
        Self::Memory,
        Self::Stall,
        Self::Throttling,
        Self::Limit,
        Self::Eviction,
        Self::Name,
    ];

    /// The word on the command line.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Stall => "stall",
            Self::Throttling => "throttling",
            Self::Limit => "limit",
            Self::Eviction => "eviction",
            Self::Name => "name",
        }
    }

    /// `n` places further in [`Self::ALL`], around its end.
    pub(super) fn step(self, n: usize) -> Self {
        let at = Self::ALL.iter().position(|it| *it == self).unwrap_or(0);
        Self::ALL[(at + n) % Self::ALL.len()]
    }

    /// What is not known comes last; ties go by name.
    pub(super) fn compare(self, a: &PodRow, b: &PodRow) -> Ordering {
        // `Reverse(None)` is greater than any `Reverse(Some)`.
        let by = |key: fn(&PodRow) -> Option<u64>| Reverse(key(a)).cmp(&Reverse(key(b)));
        let order = match self {
            Self::Cpu => by(|it| it.activity.cpu),
            Self::Memory => by(|it| it.activity.memory),
            Self::Stall => by(|it| {
                let stall = it.activity.stalls.memory?;
                // Full stalls weigh first: nothing runs meanwhile.
                let full = stall.full.map_or(0, |it| u64::from(it.0));
                Some((full << 32) + u64::from(stall.some.0))
            }),
            Self::Throttling => by(|it| it.activity.throttled.map(|it| u64::from(it.0))),
            Self::Limit => by(|it| it.room.as_ref().map(Room::percent)),
            Self::Eviction => place(a).cmp(&place(b)),
            Self::Name => Ordering::Equal,
        };
        order.then_with(|| name(a).cmp(&name(b)))
    }
}

fn name(pod: &PodRow) -> (&str, &str, &str) {
    let PodEntry {
        namespace,
        name,
        uid,
        ..
    } = &pod.entry;
    (namespace, name, &uid.0)
}

fn place(pod: &PodRow) -> (u8, usize) {
    match &pod.eviction {
        Some(EvictionStanding::InOrder { place, .. }) => (0, *place),
        Some(EvictionStanding::Critical) => (1, 0),
        Some(EvictionStanding::Evicted { .. }) => (2, 0),
        None => (3, 0),
    }
}

/// How far a signal is from the threshold that is met first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Headroom {
    /// Available and threshold, in the unit of the signal.
    pub(super) available: i64,
    pub(super) threshold: i64,
    pub(super) is_hard: bool,
    pub(super) is_met: bool,
    /// Of what lies between the capacity and the threshold: 0..=1000, 0 when it is reached. 1000
    /// where the capacity is not known.
    pub(super) permille: u64,
}

impl Headroom {
    /// `None`: it has no threshold with an amount, or was not read.
    pub(super) fn of(signal: &SignalStatus) -> Option<Self> {
        let available = signal.available?;
        let nearest = signal.thresholds.iter().max_by_key(|it| it.amount)?;
        let threshold = nearest.amount?;
        let left = i128::from(available) - i128::from(threshold);
        let range = signal
            .capacity
            .map(|it| i128::from(it) - i128::from(threshold))
            .filter(|it| *it > 0);
        let permille = match range {
            Some(range) => u64::try_from(left * 1000 / range).unwrap_or(0).min(1000),
            None if left > 0 => 1000,
            None => 0,
        };
        // Of several that are met, a hard one says the most.
        let met = signal.thresholds.iter().filter(|it| it.is_met);
        let is_hard = met.clone().any(|it| it.is_hard) || nearest.is_hard;
        Some(Self {
            available,
            threshold,
            is_hard,
            is_met: met.count() > 0,
            permille,
        })
    }
}

#[cfg(test)]
mod tests;
