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
//! What is known outlives the agent, beside its counters of kills and saved with them: the next one holds the
//! kernel's counts against that, so that whatever a dying agent took along, or happened while none ran, is
//! reported from the rings or missed. So does what is counted and not known yet: neither agent needs to live for
//! [`GRACE`], nor the cgroup until there is a third.
//!
//! Invariant: an account is of a cgroup id, never of a name: a cgroup that is made again begins anew.
//! A kill is missed once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::cgroup_files::OomCount;
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, OomKill};

/// How long after its kill a report may come. The slowest that was seen took a third of a second, on a
/// machine that had no memory left.
pub const GRACE: Duration = Duration::from_secs(2);

/// Processes killed, of which `known` are known. The one that is chosen first is counted twice where its
/// whole cgroup goes (`oom_kill_process`, mm/oom_kill.c), unless it has exited by the second time. One at least dies
/// each time.
fn processes(counted: OomCount, known: u64) -> u64 {
    let OomCount { kills, group_kills } = counted;
    match group_kills {
        Some(groups) => kills.saturating_sub(groups).max(groups.min(kills)),
        None => kills - known.min(kills / 2),
    }
}

/// Why a kill was not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The kernel takes no program that reports kills.
    NoPrograms,
    /// No agent ran, and no program was left to report it later.
    Unwatched,
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

/// Kills by cgroup: those that are known, or those that the kernel has counted.
pub type KillsByCgroup = BTreeMap<CgroupId, u64>;

/// Cgroups without an account of which kills are known, at most: of those that nobody has registered yet, and of those
/// that are registered no more.
const MAX_EARLY: usize = 1024;

/// See the module. Times are boottime.
#[derive(Debug, Default)]
pub struct KillAccounts {
    is_unified: bool,
    /// No program reports kills.
    is_silent: bool,
    /// None has before this agent began.
    was_unwatched: bool,
    /// What earlier agents knew, of cgroups that have no account yet. `None`: none has counted on this node,
    /// so what the kernel has counted until now was nobody's to tell.
    before: Option<KillsByCgroup>,
    /// Below which cgroups those lie of which kills are known; empty: nobody has said so.
    roots: Vec<CgroupPath>,
    /// What is found now lies below others.
    is_elsewhere: bool,
    /// Reports of cgroups that have no account yet.
    early: KillsByCgroup,
    accounts: BTreeMap<CgroupId, Account>,
}

#[derive(Debug)]
struct Account {
    /// Kills that are known: of before the account began, reported, or told as missed.
    known: u64,
    /// Reports from before are in `known` already.
    since: Duration,
    counted: u64,
    /// More was counted than is known: how much, and when that was read.
    open: Option<(Duration, u64)>,
    /// It was killed while nobody watched.
    was_unwatched: bool,
    is_removed: bool,
}

impl KillAccounts {
    /// It is taken that programs report, until [`KillAccounts::without_programs`] says otherwise.
    pub fn new(is_unified: bool) -> Self {
        Self {
            is_unified,
            ..Self::default()
        }
    }

    /// With what the agents before knew, what the kernel had counted of cgroups of which that was not all, and below
    /// which cgroups they lie. Who is found again is there, and else it is taken to be gone.
    pub fn resume(
        &mut self,
        mut known: KillsByCgroup,
        counted: &KillsByCgroup,
        roots: Vec<CgroupPath>,
        now: Duration,
    ) {
        for (cgroup, counted) in counted {
            let mut account = Account {
                counted: *counted,
                is_removed: true,
                ..Account::new(known.get(cgroup).copied().unwrap_or_default())
            };
            account.look(now);
            if account.open.is_some() {
                // What is compared still is told by the time it is found again.
                known.insert(*cgroup, *counted);
                self.accounts.insert(*cgroup, account);
            }
        }
        self.before = Some(known);
        self.roots = roots;
    }

    /// What is found from now on lies below one of these. Where none of them was looked at before: of what is found, and
    /// nobody knew, nobody was there to tell.
    pub fn look_below(&mut self, roots: &[CgroupPath]) {
        let was_looked_at = roots.iter().any(|it| self.roots.contains(it));
        self.is_elsewhere |= !self.roots.is_empty() && !was_looked_at;
        self.roots = roots.to_vec();
    }

    /// See [`KillAccounts::look_below`].
    pub fn roots(&self) -> &[CgroupPath] {
        &self.roots
    }

    /// The cgroups of the tree have their accounts; what is found from now on was made since. What was known of others
    /// stays known: they may be in a tree that is looked at again.
    pub fn all_are_found(&mut self) {
        self.is_elsewhere = false;
        self.was_unwatched = false;
        bound(self.before.get_or_insert_default());
    }

    /// What the next agent is to know. `None`: not everything that was there before is looked at yet.
    pub fn known(&self) -> Option<KillsByCgroup> {
        let mut known = self.before.clone()?;
        for (cgroup, n) in &self.early {
            *known.entry(*cgroup).or_default() += n;
        }
        known.extend(self.accounts.iter().map(|(cgroup, it)| (*cgroup, it.known)));
        known.retain(|_, n| *n > 0);
        Some(known)
    }

    /// What the kernel has counted of those cgroups of which it is more than what is known.
    pub fn open(&self) -> KillsByCgroup {
        let open = self.accounts.iter().filter(|(_, it)| it.open.is_some());
        open.map(|(cgroup, it)| (*cgroup, it.counted)).collect()
    }

    /// Kills that are known in a cgroup that has an account. `None`: no agent before has counted, and what it knew
    /// of this one is not known.
    pub fn known_in(&self, cgroup: CgroupId) -> Option<u64> {
        self.before.as_ref()?;
        Some(self.accounts.get(&cgroup)?.known)
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

    /// Nobody has reported kills until now, nor left a program that noted them.
    pub fn nobody_watched(&mut self) {
        self.was_unwatched = true;
    }

    /// A cgroup that was just made.
    pub fn begin(&mut self, cgroup: CgroupId) {
        self.find_again(cgroup);
        if !self.accounts.contains_key(&cgroup) {
            let known = self.known_of(cgroup).unwrap_or_default();
            self.accounts.insert(cgroup, Account::new(known));
        }
    }

    /// A cgroup that was found, as counted at `now` or later. Whether something is counted that is not known yet.
    pub fn adopt(&mut self, cgroup: CgroupId, counted: OomCount, now: Duration) -> bool {
        self.find_again(cgroup);
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.count(counted, now);
            return account.open.is_some();
        }
        let mut account = match self.known_of(cgroup) {
            Some(known) => Account::new(known),
            None => Account {
                since: now,
                ..Account::new(processes(counted, 0))
            },
        };
        account.count(counted, now);
        let is_open = account.open.is_some();
        account.was_unwatched = self.was_unwatched && is_open;
        self.accounts.insert(cgroup, account);
        is_open
    }

    /// A cgroup that could not be read when it was found. What is counted by now was nobody's to tell, unless an agent
    /// before had an account of it. As [`KillAccounts::adopt`] else.
    pub fn adopt_late(&mut self, cgroup: CgroupId, counted: OomCount, now: Duration) -> bool {
        let before = self.before.as_ref().and_then(|it| it.get(&cgroup));
        if before.is_some() {
            return self.adopt(cgroup, counted, now);
        }
        self.early.remove(&cgroup);
        let mut account = Account {
            since: now,
            ..Account::new(processes(counted, 0))
        };
        account.count(counted, now);
        self.accounts.insert(cgroup, account);
        false
    }

    /// It was lost, and what was counted of it is still compared.
    fn find_again(&mut self, cgroup: CgroupId) {
        if let Some(account) = self.accounts.get_mut(&cgroup).filter(|it| it.is_removed) {
            account.is_removed = false;
            if let Some(before) = &mut self.before {
                before.remove(&cgroup);
            }
        }
    }

    /// What is known of a cgroup that gets an account; `None`: nobody was there to know.
    fn known_of(&mut self, cgroup: CgroupId) -> Option<u64> {
        let early = self.early.remove(&cgroup).unwrap_or_default();
        match self.before.as_mut()?.remove(&cgroup) {
            Some(before) => Some(before + early),
            None => (!self.is_elsewhere).then_some(early),
        }
    }

    /// In whose counts the kernel has a kill. `None`: the victim was exiting, which is none.
    pub fn counted_in(&self, kill: &OomKill) -> Option<Vec<CgroupId>> {
        if kill.was_exiting {
            return None;
        }
        let victim = &kill.victim_cgroup;
        let above = victim.below_root.iter().flatten().copied();
        let above = above.filter(|it| self.is_unified && *it != victim.cgroup_id);
        Some(above.chain([victim.cgroup_id]).collect())
    }

    /// A program reported a kill, `at` its time, that the kernel has counted in these cgroups.
    pub fn report(&mut self, cgroups: &[CgroupId], at: Duration) {
        for cgroup in cgroups {
            match self.accounts.get_mut(cgroup) {
                Some(account) if at >= account.since => account.known += 1,
                Some(_) => {}
                None => *self.early.entry(*cgroup).or_default() += 1,
            }
        }
        bound(&mut self.early);
    }

    pub fn has(&self, cgroup: CgroupId) -> bool {
        self.accounts.contains_key(&cgroup)
    }

    /// A reading of the kernel's count. One of a cgroup without an account is left out. Whether something is
    /// counted that is not known, for the first time.
    pub fn count(&mut self, cgroup: CgroupId, counted: OomCount, now: Duration) -> bool {
        let Some(account) = self.accounts.get_mut(&cgroup) else {
            return false;
        };
        let was_open = account.open.is_some();
        account.count(counted, now);
        account.open.is_some() && !was_open
    }

    /// The cgroup is gone; what was last counted of it is still compared.
    pub fn end(&mut self, cgroup: CgroupId) {
        self.early.remove(&cgroup);
        if let Some(before) = &mut self.before {
            before.remove(&cgroup);
        }
        if let Some(account) = self.accounts.get_mut(&cgroup) {
            account.is_removed = true;
            if account.open.is_none() {
                self.accounts.remove(&cgroup);
            }
        }
    }

    /// It is not in the tree that is looked at. Should it be found again, what is known of it still is.
    pub fn lose(&mut self, cgroup: CgroupId) {
        // What is compared still is told by then.
        let account = self.accounts.get(&cgroup);
        let known = account.map(|it| it.known.max(it.counted));
        self.end(cgroup);
        let known = known.filter(|it| *it > 0);
        if let (Some(before), Some(known)) = (&mut self.before, known) {
            before.insert(cgroup, known);
            bound(before);
        }
    }

    /// What is missed by now. All reports of kills before `heard` were taken.
    pub fn settle(&mut self, heard: Duration) -> Vec<Missed> {
        let mut missed = Vec::new();
        let has_programs = self.has_programs();
        let cause = |was_unwatched| match (has_programs, was_unwatched) {
            (false, _) => Cause::NoPrograms,
            (true, true) => Cause::Unwatched,
            (true, false) => Cause::Lost,
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
                    cause: cause(account.was_unwatched),
                    at,
                });
            }
            account.was_unwatched = false;
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

/// The oldest go: ids grow.
fn bound(kills: &mut KillsByCgroup) {
    while kills.len() > MAX_EARLY {
        kills.pop_first();
    }
}

impl Account {
    fn new(known: u64) -> Self {
        Self {
            known,
            since: Duration::ZERO,
            counted: 0,
            open: None,
            was_unwatched: false,
            is_removed: false,
        }
    }

    fn count(&mut self, counted: OomCount, now: Duration) {
        self.counted = self.counted.max(processes(counted, self.known));
        self.look(now);
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
