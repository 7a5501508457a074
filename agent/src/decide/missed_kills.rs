//! OOM kills that nobody reported. In: what the kernel counts of each cgroup, and the kills that the
//! programs reported. Out: how many were missed, and where.
//!
//! The kernel counts a kill before its program is asked, and the report takes a moment. So a count is
//! held against the reports only when [`GRACE`] of them were heard after it was read; where nobody
//! reports, at once.
//!
//! Whose count a kill is in: of v1 (`memory.oom_control`) that of the victim's own cgroup, whoever's
//! limit it was; of v2 (`memory.events`) that of every cgroup above the victim too. There no pod has an
//! account, since its processes are all in its containers.
//!
//! Invariant: an account is of a cgroup id, never of a name: a cgroup that is made again begins anew.
//! A kill is missed once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::cgroup_files::OomCount;
use crate::model::event::{CgroupId, OomKill};

/// How long after its kill a report may come. The slowest that was seen took a third of a second, on a
/// machine that had no memory left.
pub const GRACE: Duration = Duration::from_secs(2);

/// Processes killed, of which `n_reported` are known. The one that is chosen first is counted twice
/// where its whole cgroup goes (`oom_kill_process`, mm/oom_kill.c).
fn processes(counted: OomCount, n_reported: u64) -> u64 {
    let OomCount { kills, group_kills } = counted;
    let twice = group_kills.unwrap_or(n_reported.min(kills / 2));
    kills.saturating_sub(twice)
}

/// Why a kill was not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel takes no program that reports kills.
    NoPrograms,
    /// The report was lost on its way.
    Lost,
}

/// Kills in a cgroup that nobody reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    pub cgroup: CgroupId,
    pub n: u64,
    pub cause: Cause,
    /// When they were seen, boottime.
    pub at: Duration,
}

/// See the module. Times are boottime.
#[derive(Debug, Default)]
pub struct KillAccounts {
    is_unified: bool,
    /// No program reports kills.
    is_silent: bool,
    /// Nor was there one between the last agent and this.
    had_gap: bool,
    accounts: BTreeMap<CgroupId, Account>,
}

#[derive(Debug)]
struct Account {
    /// Kills that are known: of before the account began, reported, or told as missed.
    known: u64,
    /// Reports from before are in `known` already.
    since: Duration,
    n_reported: u64,
    counted: u64,
    /// More was counted than is known: how much, and when that was read.
    open: Option<(Duration, u64)>,
    is_removed: bool,
}

/// What is known of the kills in a cgroup that was there before the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// All that the kernel has counted: it was nobody's to tell.
    All,
    /// So many are on record, and others may have been told that are not yet.
    Recorded(u64),
    /// So many were told, and no other.
    Told(u64),
}

impl KillAccounts {
    /// It is taken that programs report, until [`KillAccounts::without_programs`] says otherwise.
    pub fn new(is_unified: bool) -> Self {
        Self {
            is_unified,
            ..Self::default()
        }
    }

    pub fn is_unified(&self) -> bool {
        self.is_unified
    }

    pub fn has_programs(&self) -> bool {
        !self.is_silent
    }

    /// Nobody reports kills.
    pub fn without_programs(&mut self) {
        self.is_silent = true;
    }

    /// Nobody reported kills since the last agent, so that what its records do not have was missed. To
    /// be said before any cgroup is adopted.
    pub fn after_a_gap(&mut self) {
        self.had_gap = true;
    }

    /// A cgroup that was just made.
    pub fn begin(&mut self, cgroup: CgroupId) {
        self.accounts.entry(cgroup).or_insert(Account::new(0));
    }

    /// A cgroup that was there before the agent, as counted at `now`. What was killed between two agents is
    /// reported, from the rings, but after a gap. Whether something is counted that is not known yet.
    pub fn adopt(
        &mut self,
        cgroup: CgroupId,
        counted: OomCount,
        before: Before,
        now: Duration,
    ) -> bool {
        // As it will be counted again: nothing is reported of what was before.
        let counted = processes(counted, 0);
        let (known, since) = match (before, self.had_gap) {
            // Whatever is reported is in neither yet.
            (Before::Told(n), _) | (Before::Recorded(n), true) => (counted.min(n), Duration::ZERO),
            (Before::All | Before::Recorded(_), _) => (counted, now),
        };
        let mut account = Account {
            since,
            counted,
            ..Account::new(known)
        };
        account.look(now);
        self.accounts
            .entry(cgroup)
            .or_insert(account)
            .open
            .is_some()
    }

    /// A program reported a kill.
    pub fn report(&mut self, kill: &OomKill) {
        if kill.was_exiting {
            return;
        }
        let at = Duration::from_nanos(kill.at_ns);
        let victim = &kill.victim_cgroup;
        let above = victim.below_root.iter().flatten().copied();
        let above = above.filter(|it| self.is_unified && *it != victim.cgroup_id);
        for cgroup in above.chain([victim.cgroup_id]) {
            if let Some(account) = self.accounts.get_mut(&cgroup).filter(|it| at >= it.since) {
                account.known += 1;
                account.n_reported += 1;
            }
        }
    }

    /// A reading of the kernel's count. One of a cgroup without an account is left out. Whether something is
    /// counted that is not known, for the first time.
    pub fn count(&mut self, cgroup: CgroupId, counted: OomCount, now: Duration) -> bool {
        let Some(account) = self.accounts.get_mut(&cgroup) else {
            return false;
        };
        let was_open = account.open.is_some();
        let n = processes(counted, account.n_reported);
        account.counted = account.counted.max(n);
        account.look(now);
        account.open.is_some() && !was_open
    }

    /// The cgroup is gone; what was last counted of it is still compared.
    pub fn end(&mut self, cgroup: CgroupId) {
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.is_removed = true;
            if account.open.is_none() {
                self.accounts.remove(&cgroup);
            }
        }
    }

    /// What is missed by now. All reports of kills before `heard` were taken.
    pub fn settle(&mut self, heard: Duration) -> Vec<Missed> {
        let mut missed = Vec::new();
        let has_programs = self.has_programs();
        let cause = match has_programs {
            true => Cause::Lost,
            false => Cause::NoPrograms,
        };
        let is_over = |at: Duration| !has_programs || at.saturating_add(GRACE) <= heard;
        self.accounts.retain(|cgroup, account| {
            let Some((at, counted)) = account.open.filter(|(at, _)| is_over(*at)) else {
                return true;
            };
            let n = counted.saturating_sub(account.known);
            account.known += n;
            if n > 0 {
                missed.push(Missed {
                    cgroup: *cgroup,
                    n,
                    cause,
                    at,
                });
            }
            account.open = None;
            account.look(heard.max(at));
            !(account.is_removed && account.open.is_none())
        });
        missed
    }

    /// Something is counted that is not known yet.
    pub fn is_open(&self) -> bool {
        self.accounts.values().any(|it| it.open.is_some())
    }

    pub fn len(&self) -> usize {
        self.accounts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }
}

impl Account {
    fn new(known: u64) -> Self {
        Self {
            known,
            since: Duration::ZERO,
            n_reported: 0,
            counted: 0,
            open: None,
            is_removed: false,
        }
    }

    fn look(&mut self, now: Duration) {
        if self.counted > self.known {
            self.open.get_or_insert((now, self.counted));
        } else {
            self.open = None;
        }
    }
}

#[cfg(test)]
mod tests;
