//! Cgroups on their way out: killed, waited for, removed. At most one removal per cgroup, never
//! blocking, with a bounded back-off and no end until it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::apply::cgroupfs::{ApplyError, CgroupWriter, Killed, Removal};
use crate::model::cgroup_path::CgroupPath;
use crate::observe::metrics::labels::CgroupOp;
use crate::sys::clock;

/// First wait after an attempt: a killed process needs about this long to leave its cgroup.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Longest wait between attempts.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// A removal that takes longer is worth a person's attention.
const SLOW_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Entry {
    since: Duration,
    next: Duration,
    wait: Duration,
    was_reported: bool,
}

/// What a round of removals found.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub done: Vec<CgroupPath>,
    /// Cgroups that resist for a long time, told once each, with what is known of the reason.
    pub slow: Vec<(CgroupPath, String)>,
    /// Those in which somebody was killed, with what that came upon.
    pub killed: Vec<(CgroupPath, Killed)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Removals {
    entries: BTreeMap<CgroupPath, Entry>,
}

impl Removals {
    /// Asks for the removal of a cgroup with all processes in it; asking again changes nothing.
    pub(super) fn insert(&mut self, path: CgroupPath, now: Duration) {
        self.entries.entry(path).or_insert(Entry {
            since: now,
            next: now,
            wait: FIRST_WAIT,
            was_reported: false,
        });
    }

    pub(super) fn contains(&self, path: &CgroupPath) -> bool {
        self.entries.contains_key(path)
    }

    /// Whether a cgroup may still become empty soon: not one that has resisted for seconds.
    pub(super) fn is_emptying(&self) -> bool {
        self.entries.values().any(|it| it.wait < MAX_WAIT)
    }

    /// When the next attempt is due.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.entries.values().map(|it| it.next).min()
    }

    /// A cgroup became empty: try all at once instead of waiting.
    pub(super) fn hurry(&mut self) {
        for entry in self.entries.values_mut() {
            entry.next = Duration::ZERO;
        }
    }

    /// One attempt for every cgroup that is due.
    ///
    /// `took` hears what each operation took; `look` is called with each cgroup before it is tried
    /// to remove it, and so at last with the cgroup as it then was.
    pub(super) fn round(
        &mut self,
        writer: &CgroupWriter,
        now: Duration,
        took: &mut dyn FnMut(CgroupOp, Duration),
        look: &mut dyn FnMut(&CgroupPath),
    ) -> Round {
        let mut round = Round::default();
        let due: BTreeSet<CgroupPath> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.next <= now)
            .map(|(path, _)| path.clone())
            .collect();
        for path in due {
            let mut killed = None;
            let tried = attempt(writer, &path, &mut killed, took, look);
            round.killed.extend(killed.map(|it| (path.clone(), it)));
            let why = match tried {
                Ok(Removal::Done) => {
                    self.entries.remove(&path);
                    round.done.push(path);
                    continue;
                }
                Ok(Removal::Populated { pids }) => {
                    let pids: Vec<String> = pids.iter().take(8).map(u32::to_string).collect();
                    format!("processes are still in it: {}", pids.join(", "))
                }
                Ok(Removal::Busy) => "the kernel says it is busy".to_owned(),
                Err(error) => crate::observe::chain(&error),
            };
            let Some(entry) = self.entries.get_mut(&path) else {
                continue;
            };
            entry.next = now + entry.wait;
            entry.wait = (entry.wait * 2).min(MAX_WAIT);
            if !entry.was_reported && now.saturating_sub(entry.since) > SLOW_AFTER {
                entry.was_reported = true;
                round.slow.push((path, why));
            }
        }
        round
    }
}

/// Most cgroups are empty when their turn comes, so a plain removal is tried before the kill.
fn attempt(
    writer: &CgroupWriter,
    path: &CgroupPath,
    killed: &mut Option<Killed>,
    took: &mut dyn FnMut(CgroupOp, Duration),
    look: &mut dyn FnMut(&CgroupPath),
) -> Result<Removal, ApplyError> {
    look(path);
    let left = timed(CgroupOp::Rmdir, took, || writer.remove(path))?;
    if !matches!(left, Removal::Populated { .. }) {
        return Ok(left);
    }
    *killed = Some(timed(CgroupOp::Kill, took, || writer.kill(path))?);
    look(path);
    timed(CgroupOp::Rmdir, took, || writer.remove(path))
}

fn timed<T>(op: CgroupOp, took: &mut dyn FnMut(CgroupOp, Duration), act: impl FnOnce() -> T) -> T {
    let started = clock::boottime();
    let result = act();
    took(op, clock::boottime().saturating_sub(started));
    result
}
