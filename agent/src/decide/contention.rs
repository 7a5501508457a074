//! Another program that keeps writing what we write: when to stop putting it right.
//!
//! In: the steps of each plan, and which of them took effect. Out: the steps to take now, and those
//! held back. A file that is found changed three times after we wrote it is in dispute: we wait, first
//! for the time between two full passes and then twice as long each time up to 5 minutes, write once
//! more, and look. A write that stays as long as we had waited, and a minute at least, ends it.
//!
//! Only a write of the same value counts: a decision that changed is written at once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::cgroup::{CgroupStep, FileValue};
use crate::model::cgroup_path::CgroupPath;

/// Changes by others that are put right at once. A tool that runs once, or an operator's typing, is
/// none that fights.
const TOLERATED: u32 = 3;

/// A change that comes later than this after our write has nothing to do with the one before.
const WINDOW: Duration = Duration::from_secs(60);

/// The other program gets this long at most before we try again.
const MAX_WAIT: Duration = Duration::from_secs(300);

/// What is remembered of a file that was found changed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Dispute {
    /// What we wrote last, and when.
    wrote: FileValue,
    wrote_at: Duration,
    /// How often it was found changed, one time soon after the other.
    n_overwritten: u32,
    /// How long we waited last; `None`: not yet.
    wait: Option<Duration>,
    /// We wait until then.
    until: Option<Duration>,
}

impl Dispute {
    /// What was written, or became right while we waited, stays.
    fn is_over(&self, now: Duration) -> bool {
        let proof = WINDOW.max(self.wait.unwrap_or_default());
        now > self.until.unwrap_or(self.wrote_at) + proof
    }
}

/// How a held write stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The dispute begins: to be told.
    Begun,
    /// We wrote once more and were overwritten: the wait is longer now.
    Renewed,
    /// The wait goes on.
    Going,
}

/// A write that is wanted and left to the other program for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub path: CgroupPath,
    pub file: String,
    pub wanted: FileValue,
    pub found: FileValue,
    /// When it is written again, if it differs still. As `now` of the call.
    pub until: Duration,
    pub hold: Hold,
}

/// The files that others write too.
#[derive(Clone, Debug)]
pub struct Contention {
    first_wait: Duration,
    disputes: BTreeMap<(CgroupPath, String), Dispute>,
}

impl Contention {
    /// `first_wait`: the time between two looks at a file.
    pub fn new(first_wait: Duration) -> Self {
        Self {
            first_wait,
            disputes: BTreeMap::new(),
        }
    }

    /// Takes out of `steps` the writes that are not to be done now.
    pub fn hold_back(&mut self, steps: &mut Vec<CgroupStep>, now: Duration) -> Vec<Held> {
        let mut held = Vec::new();
        steps.retain(|step| match self.hold(step, now) {
            Some(it) => {
                held.push(it);
                false
            }
            None => true,
        });
        held
    }

    fn hold(&mut self, step: &CgroupStep, now: Duration) -> Option<Held> {
        let CgroupStep::Write {
            path,
            file,
            from: Some(found),
            to,
        } = step
        else {
            return None;
        };
        let key = (path.clone(), file.name.clone());
        let dispute = self.disputes.get_mut(&key)?;
        if dispute.wrote != *to || dispute.is_over(now) {
            self.disputes.remove(&key);
            return None;
        }
        let (until, hold) = match dispute.until {
            Some(until) if now < until => (until, Hold::Going),
            Some(_) => return None,
            None => {
                dispute.n_overwritten += 1;
                if dispute.n_overwritten < TOLERATED {
                    return None;
                }
                let (wait, hold) = match dispute.wait {
                    None => (self.first_wait, Hold::Begun),
                    Some(wait) => (wait.saturating_mul(2), Hold::Renewed),
                };
                let wait = wait.min(MAX_WAIT);
                dispute.wait = Some(wait);
                (now + wait, hold)
            }
        };
        dispute.until = Some(until);
        Some(Held {
            path: path.clone(),
            file: file.name.clone(),
            wanted: to.clone(),
            found: found.clone(),
            until,
            hold,
        })
    }

    /// A step took effect. What a new cgroup gets is nobody else's yet and is not remembered.
    pub fn wrote(&mut self, step: &CgroupStep, now: Duration) {
        let CgroupStep::Write {
            path,
            file,
            from: Some(_),
            to,
        } = step
        else {
            return;
        };
        let dispute = self
            .disputes
            .entry((path.clone(), file.name.clone()))
            .or_insert_with(|| Dispute {
                wrote: to.clone(),
                wrote_at: now,
                n_overwritten: 0,
                wait: None,
                until: None,
            });
        dispute.wrote_at = now;
        dispute.until = None;
    }

    /// Forgets what is over, and the cgroups that are not among `known`. To be called after all
    /// files have been looked at.
    pub fn settle(&mut self, known: &BTreeSet<&CgroupPath>, now: Duration) {
        self.disputes
            .retain(|(path, _), dispute| known.contains(path) && !dispute.is_over(now));
    }
}

#[cfg(test)]
mod tests;
