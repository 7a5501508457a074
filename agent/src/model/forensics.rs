//! What is kept of an OOM kill: who died, by whose limit, who else was there, what led up to it,
//! and what the agent knew. Each record is a file of its own in a ring on disk.
//!
//! Invariant: [`OomRecord::seal`] gives at most [`MAX_RECORD_BYTES`]. What does not fit is left out
//! in the order of [`Part::ALL`], and the record says so.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::event::CgroupId;
use super::eviction::{NodeCondition, Signal};
use super::history::{NodeSample, PodSample};
use super::pod::PodUid;
use super::psi::Psi;
use super::record::{Event, EventDetail, MemorySplit, OomDetail, OomTrigger, PodRef, subject};
use super::sealed;
use super::time::WallTime;
use super::workload::Workload;
use crate::units::Limit;

/// A record on disk, header included.
pub const MAX_RECORD_BYTES: usize = 64 * 1024;

/// The header line of a sealed file takes less.
const HEADER_BYTES: usize = 256;

/// What the sealed files say they hold, and their format.
pub const KIND: &str = "OomRecord";
pub const VERSION: u32 = 1;

/// Further kills of the same limit that a record names one by one.
pub const MAX_VICTIMS: usize = 64;

/// Of them, those that stay when there are more; the others are the last ones, of which the agent may not have saved yet
/// that they are counted.
const FIRST_VICTIMS: usize = 8;

/// Number of a record, unique within a state directory: rises by one with each, also over restarts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RecordId(pub u64);

impl RecordId {
    const SUFFIX: &str = ".json";

    /// Name of its file; names sort as the numbers do.
    pub fn file_name(self) -> String {
        format!("{:020}{}", self.0, Self::SUFFIX)
    }

    /// The record whose file has this name.
    pub fn of_file(name: &str) -> Option<Self> {
        let id = Self(name.strip_suffix(Self::SUFFIX)?.parse().ok()?);
        (id.file_name() == name).then_some(id)
    }

    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One kill and those that the same limit made soon after it. What could not be read, since it was
/// gone already, is `None` or empty.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomRecord {
    pub id: RecordId,
    /// Boot of the node that its boottimes are of; `None`: it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The first kill, as `ballast events` tells it.
    pub event: Event,
    /// Kills that this record stands for, at least 1.
    pub n_kills: u64,
    /// Of the first. `None`: the agent did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
    /// Of them, those after the first: at most [`MAX_VICTIMS`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_victims: Vec<LaterVictim>,
    /// From the kill to when all below was read and the record could be written, microseconds.
    pub recorded_after_us: u64,
    pub scene: Scene,
    #[serde(default)]
    pub trend: Trend,
    #[serde(default)]
    pub agent: AgentState,
    /// Parts that are not or not wholly there, because they would not fit or came too late.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub cut: BTreeSet<Part>,
}

/// A kill after the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaterVictim {
    pub boottime_ns: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Ids where there are no names, as in an [`Event`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<PodUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    pub pid: u32,
    pub comm: String,
    pub anon_bytes: u64,
    /// The next five are as in an [`OomVictim`](super::record::OomVictim).
    #[serde(default)]
    pub file_bytes: u64,
    #[serde(default)]
    pub shmem_bytes: u64,
    #[serde(default)]
    pub oom_score_adj: i16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_main_process: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_container: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_cgroup_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<Counted>,
}

/// How a kill was counted. An agent that dies may have it on record and its counts not saved: the next one counts what
/// has a higher number than is saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    /// One more than that of the kill before it, over restarts too.
    pub number: u64,
    /// The cgroups in whose kernel's counts it is.
    pub cgroups: Vec<CgroupId>,
    /// Whose it was, as far as it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
}

impl LaterVictim {
    /// See [`subject`].
    pub fn subject(&self) -> Option<String> {
        subject(
            self.pod.as_ref(),
            self.pod_uid.as_ref(),
            self.container.as_deref(),
            self.container_id.as_deref(),
        )
    }
}

/// The node at the kill, as its files told right after it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scene {
    /// The cgroup that was full. `None`: the node was, or its path is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<CgroupScene>,
    /// The victim's pod, where that is another cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim_pod: Option<CgroupScene>,
    /// Cgroups beside the full one, and those in it, largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub siblings: Vec<CgroupUse>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<CgroupUse>,
    /// The pods of the node, largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<CgroupUse>,
    /// Processes of the victim's container and of the full cgroup, largest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<ProcessScene>,
    /// How many there were; more than are named, if there are many.
    pub n_processes: u64,
    /// `/proc/meminfo`, bytes, by its own names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meminfo: BTreeMap<String, u64>,
    /// Memory stalls of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Psi>,
}

/// The memory files of a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CgroupScene {
    /// From the cgroup mount.
    pub cgroup_path: String,
    /// Bytes; after the kill, so usually less than at it, which the event has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    /// The most there ever was. `None`: not kept (v2 before Linux 5.19).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// By the name of the interface file, bytes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, Limit>,
    /// `memory.stat`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub stat: BTreeMap<String, u64>,
    /// `memory.events`; on v1 `memory.oom_control`, and `memory.failcnt` as `failcnt`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub events: BTreeMap<String, u64>,
    /// Memory stalls. `None`: not kept for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stall: Option<Psi>,
}

/// What a cgroup uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupUse {
    /// From the cgroup mount.
    pub cgroup_path: String,
    pub usage_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

/// A process that lived at the kill, or right after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessScene {
    pub pid: u32,
    pub comm: String,
    /// Resident and swapped out; 0 for one that is giving its memory back.
    pub rss_bytes: u64,
    pub swap_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i16>,
}

/// What led up to it: a sample a second, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Trend {
    pub node: Vec<NodeSample>,
    /// Of the victim's pod.
    pub pod: Vec<PodSample>,
}

/// What the agent knew and had done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentState {
    pub conditions: BTreeSet<NodeCondition>,
    pub thresholds: Vec<Headroom>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_eviction: Option<LastEviction>,
}

/// How far a signal was from its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Headroom {
    pub signal: Signal,
    /// In the signal's unit, below 0 past the threshold. `None`: it could not be read.
    pub headroom: Option<i64>,
    pub is_hard: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastEviction {
    pub pod: PodRef,
    /// As the label `signal` of the eviction metrics.
    pub signal: String,
    pub at: WallTime,
}

/// A part of a record that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Part {
    Siblings,
    Children,
    Pods,
    NodeTrend,
    Processes,
    PodTrend,
    MoreVictims,
    Stat,
    Agent,
    /// Long texts and paths.
    Texts,
}

impl Part {
    /// The least important first: what other sources have too, then what explains, then what only
    /// this record knows.
    pub const ALL: [Self; 10] = [
        Self::Siblings,
        Self::Children,
        Self::Pods,
        Self::NodeTrend,
        Self::Processes,
        Self::PodTrend,
        Self::MoreVictims,
        Self::Stat,
        Self::Agent,
        Self::Texts,
    ];

    /// Below this a list says little; it goes as a whole when its turn comes again.
    const FEW: usize = 8;
}

impl OomRecord {
    /// The kill itself; `None` in a record that no agent made.
    pub fn oom(&self) -> Option<&OomDetail> {
        match &self.event.detail {
            Some(EventDetail::Oom(detail)) => Some(detail),
            _ => None,
        }
    }

    /// Its kills one by one, as far as they are named. Of the later ones it is not known who asked for the memory.
    pub fn kills(&self) -> impl Iterator<Item = Event> {
        let first = self.event.boottime_ns;
        let later = self.more_victims.iter().map(move |it| {
            let after = Duration::from_nanos(it.boottime_ns.saturating_sub(first));
            let mut event = Event {
                time: WallTime::from_epoch(self.event.time.since_epoch() + after),
                boottime_ns: it.boottime_ns,
                pod: it.pod.clone(),
                container: it.container.clone(),
                pod_uid: it.pod_uid.clone(),
                container_id: it.container_id.clone(),
                ..self.event.clone()
            };
            if let Some(EventDetail::Oom(detail)) = &mut event.detail {
                let victim = &mut detail.victim;
                (victim.pid, victim.tid) = (it.pid, it.pid);
                victim.comm.clone_from(&it.comm);
                victim.is_main_process = it.is_main_process;
                victim.took_container = it.took_container;
                victim.oom_score_adj = it.oom_score_adj;
                victim.unknown_cgroup_id = it.unknown_cgroup_id;
                victim.cgroup_path = None;
                victim.memory = MemorySplit {
                    anon_bytes: it.anon_bytes,
                    file_bytes: it.file_bytes,
                    shmem_bytes: it.shmem_bytes,
                    ..MemorySplit::default()
                };
                detail.trigger = OomTrigger::default();
            }
            event
        });
        std::iter::once(self.event.clone()).chain(later)
    }

    /// Those of [`OomRecord::kills`] of which it is known how they were counted.
    pub fn counted_kills(&self) -> impl Iterator<Item = (Event, &Counted)> {
        let later = self.more_victims.iter().map(|it| it.counted.as_ref());
        let counted = std::iter::once(self.counted.as_ref()).chain(later);
        let kills = self.kills().zip(counted);
        kills.filter_map(|(event, counted)| Some((event, counted?)))
    }

    /// How many of its kills after this, boottime, are not among [`OomRecord::kills`]; at most, where that is not known of each.
    pub fn n_unnamed_after(&self, since: Duration) -> u64 {
        let later = &self.more_victims;
        let follows_them = later.get(FIRST_VICTIMS).or(later.last());
        // Of a record that had no room for names nothing is known.
        let is_after = |it: &LaterVictim| Duration::from_nanos(it.boottime_ns) > since;
        match follows_them.is_none_or(is_after) {
            true => self.n_kills.saturating_sub(1 + later.len() as u64),
            false => 0,
        }
    }

    /// Whether one of the victims was in this pod, which is asked by its name, or its UID where it has none.
    pub fn has_victim_in(&self, is_pod: impl Fn(Option<&PodRef>, Option<&PodUid>) -> bool) -> bool {
        let first = (self.event.pod.as_ref(), self.event.pod_uid.as_ref());
        let later = self.more_victims.iter();
        let later = later.map(|it| (it.pod.as_ref(), it.pod_uid.as_ref()));
        std::iter::once(first)
            .chain(later)
            .any(|(pod, uid)| is_pod(pod, uid))
    }

    /// Counts one more kill and names it, if need be in the place of an older one.
    pub fn add_victim(&mut self, victim: LaterVictim) {
        self.n_kills = self.n_kills.saturating_add(1);
        if self.more_victims.len() >= MAX_VICTIMS {
            self.more_victims.remove(FIRST_VICTIMS);
        }
        self.more_victims.push(victim);
    }

    /// The bytes of its file, after leaving out of the record what would be too much.
    pub fn seal(&mut self) -> Vec<u8> {
        while self.n_bytes() > MAX_RECORD_BYTES - HEADER_BYTES && self.shrink() {}
        sealed::seal(KIND, VERSION, self)
    }

    fn n_bytes(&self) -> usize {
        let json = serde_json::to_vec(self);
        json.expect("records have string keys and no foreign types")
            .len()
    }

    /// Makes the least important part that is there smaller. False: nothing is left to leave out.
    fn shrink(&mut self) -> bool {
        let cut = Part::ALL.into_iter().find(|part| self.shrink_part(*part));
        self.cut.extend(cut);
        cut.is_some()
    }

    fn shrink_part(&mut self, part: Part) -> bool {
        let scene = &mut self.scene;
        match part {
            Part::Siblings => keep_first(&mut scene.siblings),
            Part::Children => keep_first(&mut scene.children),
            Part::Pods => keep_first(&mut scene.pods),
            Part::Processes => keep_first(&mut scene.processes),
            Part::NodeTrend => keep_last(&mut self.trend.node),
            Part::PodTrend => keep_last(&mut self.trend.pod),
            Part::MoreVictims => keep_last(&mut self.more_victims),
            Part::Stat => {
                let cgroups = [&mut scene.limit, &mut scene.victim_pod];
                let stats = cgroups.into_iter().flatten().map(|it| &mut it.stat);
                let mut had_any = !std::mem::take(&mut scene.meminfo).is_empty();
                for stat in stats {
                    had_any |= !std::mem::take(stat).is_empty();
                }
                had_any
            }
            Part::Agent => std::mem::take(&mut self.agent) != AgentState::default(),
            Part::Texts => self.shorten_texts(),
        }
    }

    /// Texts whose length others decide; paths of the scene repeat those of the event.
    fn shorten_texts(&mut self) -> bool {
        let had_scene = std::mem::take(&mut self.scene) != Scene::default();
        let mut texts = vec![&mut self.event.message];
        if let Some(EventDetail::Oom(detail)) = &mut self.event.detail {
            texts.push(&mut detail.victim.comm);
            texts.push(&mut detail.trigger.comm);
            texts.extend(&mut detail.victim.cgroup_path);
            let limit = detail.limit.as_mut();
            texts.extend(limit.and_then(|it| it.cgroup_path.as_mut()));
        }
        let mut is_shorter = had_scene;
        for text in texts {
            is_shorter |= shorten(text);
        }
        is_shorter
    }
}

/// Halves a list, or empties it when few are left. False: it is empty.
fn keep_first<T>(list: &mut Vec<T>) -> bool {
    let had_any = !list.is_empty();
    list.truncate(fewer(list.len()));
    had_any
}

/// The same from the other end.
fn keep_last<T>(list: &mut Vec<T>) -> bool {
    let had_any = !list.is_empty();
    list.drain(..list.len() - fewer(list.len()));
    had_any
}

fn fewer(n: usize) -> usize {
    if n > Part::FEW { n / 2 } else { 0 }
}

/// Longest text that is left whole, characters: escaped as JSON it is at most six times as long.
const SHORT: usize = 512;

fn shorten(text: &mut String) -> bool {
    match text.char_indices().nth(SHORT) {
        Some((at, _)) => {
            text.truncate(at);
            true
        }
        None => false,
    }
}

#[cfg(test)]
pub(crate) mod tests;
