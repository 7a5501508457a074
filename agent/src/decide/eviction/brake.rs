//! The brake on evictions: they end when somebody outside the pods takes what they give back, which kubelet goes on
//! with until nobody is left.
//!
//! Memory, process ids, and the space and the inodes of each file system have a brake each. What is in use is split
//! into that of the pods, which an eviction can give back, and the rest. An eviction was in vain if the rest has
//! taken half of what evictions gave back since, and more than the pods that are left, be it for a moment: what comes
//! and goes outside takes no pod each time. So many in vain within the window, and nobody goes any more; a pod whose
//! whole usage is too little for those that may still go does not go at all, unless pods have filled a disk, and none has
//! more or those that rank first have enough together. Whoever grows among the pods takes more than the rest, and goes
//! as ever; on a disk also after evictions that were in vain.
//!
//! What pods have on a disk is told by walks that lag behind, and what an evicted pod had is there until its files
//! are removed. So nothing is proved by the figures of one pass: the rest is at least what was in use at a
//! [`Moment`] less what pods were found to have by walks that all began later. What is not known of a pod may be
//! the pod's and proves nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::layout::FsLayout;
use super::rank::known_usage;
use super::{Met, REAP_TIME};
use crate::model::eviction::{Signal, Snapshot, StarvedResource};
use crate::model::pod::PodUid;

/// So many evictions in vain end it. Arbitrary: enough to see that it is no accident.
const MAX_IN_VAIN: u64 = 4;

/// An eviction is forgotten so long after it, when nothing is short any more.
const WINDOW: Duration = Duration::from_secs(300);

/// The same for disks, which fill more slowly: what a pod gave may last for many minutes. Arbitrary.
const DISK_WINDOW: Duration = Duration::from_secs(3600);

/// Of more within the window the oldest are forgotten.
const MAX_KEPT: usize = 64;

/// What is in use, in the unit of the resource; memory by the method that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Split {
    /// Of pods; of memory that of kubepods.
    pub pods: u64,
    /// Of everything else.
    pub outside: u64,
}

/// What was in use at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Moment {
    /// Boottime.
    pub at: Duration,
    pub used: u64,
}

/// One eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kill {
    pub pod: PodUid,
    /// Boottime of the pass that asked for it.
    pub at: Duration,
    /// What the pod used.
    pub gives: u64,
    pub before: Split,
    /// It has been seen to be in vain, and stays so: whoever took what it gave may give it back and take it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_in_vain: bool,
}

/// What stays of one resource from pass to pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Brake {
    /// When the resource was last not short.
    pub calm: Option<Split>,
    /// The last pass would have this pod go.
    pub asked: Option<Kill>,
    /// Oldest first.
    pub kills: Vec<Kill>,
    /// Of a disk that is short: since then the pods are being measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moment: Option<Moment>,
}

/// All of them, by the signal that stands for the resource ([`FsLayout::stands_for`]). A resource without one has
/// no brake: versions before this one have recorded that of memory alone, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Recorded")]
pub struct Brakes(BTreeMap<Signal, Brake>);

/// The forms that were ever written.
#[derive(Deserialize)]
#[serde(untagged)]
enum Recorded {
    All(BTreeMap<Signal, Brake>),
    OfMemory(Brake),
    None,
}

impl From<Recorded> for Brakes {
    fn from(recorded: Recorded) -> Self {
        Self(match recorded {
            Recorded::All(brakes) => brakes,
            Recorded::OfMemory(brake) => BTreeMap::from([(Signal::MemoryAvailable, brake)]),
            Recorded::None => BTreeMap::new(),
        })
    }
}

/// Why nobody goes, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InVain {
    pub resource: StarvedResource,
    pub n_kills: usize,
    /// What they gave back, and what the rest of the node took since the first of them (without any,
    /// since the resource was not short), in its unit.
    pub given: u64,
    pub taken: u64,
}

impl Brakes {
    /// Before the first pass. No limit of all pods is among them: what pods give back there no one else takes.
    pub fn new() -> Self {
        let braked = Signal::ALL.into_iter();
        let braked = braked.filter(|it| *it != Signal::AllocatableMemoryAvailable);
        Self(braked.map(|it| (it, Brake::default())).collect())
    }

    /// With those that an earlier agent has left.
    pub fn continued(&mut self, earlier: &Self) {
        self.0.extend(earlier.0.clone());
    }

    pub fn get(&self, layout: FsLayout, signal: Signal) -> Option<&Brake> {
        self.0.get(&layout.stands_for(signal))
    }

    /// The last pass would have this pod go for the signal.
    pub(super) fn ask(&mut self, layout: FsLayout, signal: Signal, kill: Kill) {
        if let Some(brake) = self.0.get_mut(&layout.stands_for(signal)) {
            brake.asked = Some(kill);
        }
    }

    /// As they are for this pass. `met`: the thresholds that are met in it.
    pub(super) fn next(&self, layout: FsLayout, snapshot: &Snapshot, met: &[Met]) -> Self {
        let next = |(signal, brake): (&Signal, &Brake)| {
            let mut of_it = met.iter();
            let is_short = of_it.any(|it| layout.stands_for(it.threshold.signal) == *signal);
            let next = match layout.stands_for(*signal) == *signal {
                true => brake.next(&Look::new(*signal, layout, snapshot), is_short),
                false => brake.clone(),
            };
            (*signal, next)
        };
        Self(self.0.iter().map(next).collect())
    }

    /// Evictions that are remembered, which decide; the rest follows from the next passes.
    pub fn evictions(&self) -> impl Iterator<Item = (&Option<Kill>, &[Kill])> {
        self.0.values().map(|it| (&it.asked, it.kills.as_slice()))
    }
}

/// What a pass sees of one resource.
struct Look<'a> {
    snapshot: &'a Snapshot,
    resource: StarvedResource,
    /// What is not known of pods counts as outside.
    split: Option<Split>,
    /// All is known of every pod.
    is_whole: bool,
}

impl<'a> Look<'a> {
    fn new(signal: Signal, layout: FsLayout, snapshot: &'a Snapshot) -> Self {
        let resource = signal.resource();
        let (split, is_whole) = match resource {
            StarvedResource::Memory => (Split::of_memory(snapshot), true),
            _ => {
                let pods = snapshot.pods.iter();
                let uses = pods.map(|it| known_usage(signal, layout, it));
                let is_whole = uses.clone().all(|it| it.is_some());
                let pods = uses.flatten().fold(0, u64::saturating_add);
                let observation = snapshot.observations.get(&signal);
                let used = observation.map(|it| it.capacity.saturating_sub(it.available));
                let split = |used: i64| Split::new(u64::try_from(used).unwrap_or(0), pods);
                (used.map(split), is_whole)
            }
        };
        Self {
            snapshot,
            resource,
            split,
            is_whole,
        }
    }

    /// Without anything that is not known of a pod.
    fn whole(&self) -> Option<Split> {
        self.split.filter(|_| self.is_whole)
    }

    /// When the first of the walks began that tell what pods have on disk. `None`: not known of one of them.
    fn measured_since(&self) -> Option<Duration> {
        let figures = self.snapshot.pods.iter().map(|it| it.figures.as_ref());
        let measured = figures.map(|it| it.and_then(|it| it.disk_at));
        measured.min().flatten()
    }
}

impl Split {
    fn new(used: u64, pods: u64) -> Self {
        Self {
            pods,
            outside: used.saturating_sub(pods),
        }
    }

    /// What is in use is what the signal does not call available: growth that leads to evictions
    /// is growth here, by whichever method it is seen. A signal ends at 0, where the working set may
    /// still tell more. `None`: one of the two parts was not read.
    fn of_memory(snapshot: &Snapshot) -> Option<Self> {
        let memory = snapshot.observations.get(&Signal::MemoryAvailable)?;
        let used = memory.capacity.saturating_sub(memory.available);
        let used = u64::try_from(used).unwrap_or(0);
        let working_set = snapshot.node.root.map_or(0, |it| it.working_set());
        let pods = snapshot.node.kubepods.as_ref()?.working_set();
        Some(Self::new(used.max(working_set), pods))
    }

    /// What the signal's resource is used for, as far as it is known: the rest is no more than this.
    pub fn of(signal: Signal, layout: FsLayout, snapshot: &Snapshot) -> Option<Self> {
        Look::new(layout.stands_for(signal), layout, snapshot).split
    }
}

impl Brake {
    /// As it is for this pass. The pod that was asked for has gone if it is on its way out now.
    fn next(&self, look: &Look<'_>, is_short: bool) -> Self {
        let snapshot = look.snapshot;
        let window = window(look.resource);
        let is_over = |kill: &Kill| !is_short && snapshot.at > kill.at.saturating_add(window);
        let is_going = |kill: &&Kill| {
            let mut pods = snapshot.pods.iter();
            pods.find(|it| it.facts.pod.uid == kill.pod)
                .is_none_or(|it| it.ends_within.is_some())
        };
        let kills = self.kills.iter().chain(self.asked.iter().filter(is_going));
        let mut kills: Vec<Kill> = kills.filter(|it| !is_over(it)).cloned().collect();
        kills.drain(..kills.len().saturating_sub(MAX_KEPT));
        let (proof, moment) = self.proof(look, is_short, kills.last());
        if let Some(now) = proof {
            for i in 0..kills.len() {
                kills[i].is_in_vain |= is_in_vain(&kills, i, now);
            }
        }
        let calm = match is_short {
            true => self.calm,
            false => look.whole().or(self.calm),
        };
        Self {
            calm,
            asked: None,
            kills,
            moment,
        }
    }

    /// What is known for certain to be outside the pods, if that can be said now; and the moment to measure from.
    fn proof(
        &self,
        look: &Look<'_>,
        is_short: bool,
        last: Option<&Kill>,
    ) -> (Option<Split>, Option<Moment>) {
        let at = look.snapshot.at;
        match look.resource {
            StarvedResource::Memory => (look.whole(), None),
            // Those of a killed pod are taken until somebody has noticed its end.
            StarvedResource::Pids => {
                let is_settled = last.is_none_or(|it| at >= it.at.saturating_add(REAP_TIME));
                (look.whole().filter(|_| is_settled), None)
            }
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                let Some(split) = look.split.filter(|_| is_short && !look.snapshot.is_leaving)
                else {
                    return (None, None);
                };
                let used = split.pods.saturating_add(split.outside);
                let now = Moment { at, used };
                // What the last victim had is gone by now, and was there before.
                let is_later = |it: &Moment| last.is_none_or(|kill| it.at > kill.at);
                match self.moment.filter(is_later) {
                    Some(moment)
                        if look.is_whole
                            && look.measured_since().is_some_and(|it| it >= moment.at) =>
                    {
                        let used = moment.used.min(used);
                        (Some(Split::new(used, split.pods)), Some(now))
                    }
                    moment => (None, moment.or(Some(now))),
                }
            }
        }
    }

    /// The least that a pod must use to go while `need` is short; `None`: nobody goes. `uses`: what those that may go use,
    /// in their order.
    ///
    /// A pod without its part is too small where growth outside is the reason. For a disk it is too small also where those
    /// that rank before one with its part have too little together: priorities and requests come before size in the
    /// ranking, and would have all small pods go before the one that has filled it. Of process ids a pod that alone has
    /// what is short goes in any case.
    pub fn least_use(
        &self,
        signal: Signal,
        layout: FsLayout,
        snapshot: &Snapshot,
        need: u64,
        uses: &[u64],
    ) -> Option<u64> {
        let n_in_vain = self.kills.iter().filter(|it| it.is_in_vain).count();
        let n_allowed = MAX_IN_VAIN.saturating_sub(n_in_vain as u64);
        let look = Look::new(layout.stands_for(signal), layout, snapshot);
        match look.resource {
            StarvedResource::EphemeralStorage | StarvedResource::Inodes => {
                let is_outside = look
                    .split
                    .is_none_or(|now| self.is_outside(look.resource, now, need));
                if is_outside && n_allowed == 0 {
                    return None;
                }
                let part = need.div_ceil(n_allowed.max(1));
                let first = uses.iter().position(|it| *it >= part);
                let ahead = first.map(|it| uses[..it].iter().copied().fold(0, u64::saturating_add));
                let is_asked = is_outside || ahead.is_some_and(|it| it < need);
                Some(if is_asked { part } else { 0 })
            }
            StarvedResource::Memory if n_allowed == 0 => None,
            StarvedResource::Memory | StarvedResource::Pids => {
                let is_outside = look
                    .whole()
                    .is_some_and(|now| self.is_outside(look.resource, now, need));
                Some(match is_outside {
                    true => need.div_ceil(n_allowed.max(1)),
                    false => 0,
                })
            }
        }
    }

    /// Whether growth outside the pods is much of why `need` is short.
    fn is_outside(&self, resource: StarvedResource, now: Split, need: u64) -> bool {
        match self.calm {
            Some(calm) => now.outside.saturating_sub(calm.outside) >= need / 2,
            // It has been short for as long as anybody looks: whether pods can end it at all.
            None => resource == StarvedResource::Memory || now.pods < need,
        }
    }

    pub fn in_vain(&self, resource: StarvedResource, now: Split) -> InVain {
        let since = self.kills.first().map(|it| it.before).or(self.calm);
        InVain {
            resource,
            n_kills: self.kills.len(),
            given: given_since(&self.kills, Duration::ZERO),
            taken: now
                .outside
                .saturating_sub(since.map_or(now.outside, |it| it.outside)),
        }
    }
}

/// Whether the rest of the node has taken what the kill `i` and those since gave.
fn is_in_vain(kills: &[Kill], i: usize, now: Split) -> bool {
    let kill = &kills[i];
    let given = given_since(kills, kill.at);
    let taken = now.outside.saturating_sub(kill.before.outside);
    let of_pods = now.pods.saturating_add(given);
    taken >= given / 2 && taken > of_pods.saturating_sub(kill.before.pods)
}

fn given_since(kills: &[Kill], at: Duration) -> u64 {
    let since = kills.iter().filter(|it| it.at >= at);
    since.fold(0, |sum, it| sum.saturating_add(it.gives))
}

/// Whether a shortage that ends at `now` leaves nothing of what was told at `told`, so that the next one
/// is told anew. Within the window it is the same evictions that were in vain.
pub fn is_another_matter(resource: StarvedResource, told: Duration, now: Duration) -> bool {
    now > told.saturating_add(window(resource))
}

fn window(resource: StarvedResource) -> Duration {
    match resource {
        StarvedResource::Memory | StarvedResource::Pids => WINDOW,
        StarvedResource::EphemeralStorage | StarvedResource::Inodes => DISK_WINDOW,
    }
}

#[cfg(test)]
mod tests;
