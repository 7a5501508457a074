//! The brake on evictions for memory of the node: they end when somebody outside the pods takes what
//! they give back, which kubelet goes on with until nobody is left.
//!
//! Memory in use is split into that of the pods, which an eviction can give back, and the rest. An
//! eviction was in vain if the rest has taken half of what evictions gave back since, and more than
//! the pods that are left, be it for a moment: what comes and goes outside takes no pod each time. So many in vain within the window, and nobody goes any more; a pod whose
//! whole usage is too little for those that may still go does not go at all. Whoever grows among the
//! pods takes more than the rest, and goes as ever.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::eviction::{Signal, Snapshot};
use crate::model::pod::PodUid;

/// So many evictions in vain end it. Arbitrary: enough to see that it is no accident.
const MAX_IN_VAIN: u64 = 4;

/// An eviction is forgotten so long after it, when memory is not short any more.
const WINDOW: Duration = Duration::from_secs(300);

/// Of more within the window the oldest are forgotten.
const MAX_KEPT: usize = 64;

/// Memory in use by the method that decides, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Split {
    /// Of kubepods.
    pub pods: u64,
    /// Of everything else.
    pub outside: u64,
}

impl Split {
    /// What is in use is what the signal does not call available: growth that leads to evictions
    /// is growth here, by whichever method it is seen. A signal ends at 0, where the working set may
    /// still tell more. `None`: one of the two parts was not read.
    pub fn of(snapshot: &Snapshot) -> Option<Self> {
        let memory = snapshot.observations.get(&Signal::MemoryAvailable)?;
        let used = memory.capacity.saturating_sub(memory.available);
        let used = u64::try_from(used).unwrap_or(0);
        let working_set = snapshot.node.root.map_or(0, |it| it.working_set());
        let pods = snapshot.node.kubepods.as_ref()?.working_set();
        Some(Self {
            pods,
            outside: used.max(working_set).saturating_sub(pods),
        })
    }
}

/// One eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Kill {
    pub pod: PodUid,
    /// Boottime of the pass that asked for it.
    pub at: Duration,
    /// What the pod used, bytes.
    pub gives: u64,
    pub before: Split,
    /// It has been seen to be in vain, and stays so: whoever took what it gave may give it back and take it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_in_vain: bool,
}

/// What stays of it from pass to pass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Brake {
    /// When memory was last not short.
    pub calm: Option<Split>,
    /// The last pass would have this pod go.
    pub asked: Option<Kill>,
    /// Oldest first.
    pub kills: Vec<Kill>,
}

/// Why nobody goes, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InVain {
    pub n_kills: usize,
    /// What they gave back, and what the rest of the node took since the first of them (without any,
    /// since memory was not short), bytes.
    pub given: u64,
    pub taken: u64,
}

impl Brake {
    /// As it is for this pass. The pod that was asked for has gone if it is on its way out now.
    pub fn next(&self, snapshot: &Snapshot, is_short: bool) -> Self {
        let is_over = |kill: &Kill| !is_short && snapshot.at > kill.at.saturating_add(WINDOW);
        let is_going = |kill: &&Kill| {
            let mut pods = snapshot.pods.iter();
            pods.find(|it| it.facts.pod.uid == kill.pod)
                .is_none_or(|it| it.ends_within.is_some())
        };
        let kills = self.kills.iter().chain(self.asked.iter().filter(is_going));
        let mut kills: Vec<Kill> = kills.filter(|it| !is_over(it)).cloned().collect();
        kills.drain(..kills.len().saturating_sub(MAX_KEPT));
        if let Some(now) = Split::of(snapshot) {
            for i in 0..kills.len() {
                kills[i].is_in_vain |= is_in_vain(&kills, i, now);
            }
        }
        let calm = match is_short {
            true => self.calm,
            false => Split::of(snapshot).or(self.calm),
        };
        Self {
            calm,
            asked: None,
            kills,
        }
    }

    /// The least that a pod must use to go while `need` bytes are short; `None`: nobody goes.
    pub fn least_use(&self, now: Split, need: u64) -> Option<u64> {
        let is_in_vain =
            |it: &usize| self.kills[*it].is_in_vain || is_in_vain(&self.kills, *it, now);
        let n_in_vain = (0..self.kills.len()).filter(is_in_vain).count();
        let n_allowed = MAX_IN_VAIN.saturating_sub(n_in_vain as u64);
        if n_allowed == 0 {
            return None;
        }
        let is_outside = self
            .calm
            .is_none_or(|calm| now.outside.saturating_sub(calm.outside) >= need / 2);
        Some(match is_outside {
            true => need.div_ceil(n_allowed),
            false => 0,
        })
    }

    pub fn in_vain(&self, now: Split) -> InVain {
        let since = self.kills.first().map(|it| it.before).or(self.calm);
        InVain {
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
pub fn is_another_matter(told: Duration, now: Duration) -> bool {
    now > told.saturating_add(WINDOW)
}

#[cfg(test)]
mod tests;
