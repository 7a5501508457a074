//! OOM kills that nobody reported. In: what the kernel counts of each cgroup, and the kills that the
//! programs reported. Out: how many were missed, and where.
//!
//! The kernel counts a kill before its program is asked, and the report takes a moment. So a count is
//! held against the reports only when [`GRACE`] of them were heard after it was read; where nobody
//! reports, that of a container at once.
//!
//! Whose count a kill is in: of v1 (`memory.oom_control`) that of the victim's own cgroup, whoever's
//! limit it was; of v2 (`memory.events`) that of every cgroup above the victim too. There the count of a pod
//! has the kills of containers in it that are gone, be it before anybody looked at them. What is missed in a
//! pod's count and in none of its containers' is missed in the pod. What was told of the pod is not told again of a
//! container that is found later, unless the pod's count has more.
//!
//! What is known outlives the agent, beside its counters of kills and saved with them: the next one holds the
//! kernel's counts against that, so that whatever a dying agent took along, or happened while none ran, is
//! reported from the rings or missed. So does what is counted and not known yet: neither agent needs to live for
//! [`GRACE`], nor the cgroup until there is a third.
//!
//! Invariant: an account is of a cgroup id, never of a name: a cgroup that is made again begins anew.
//! A kill is missed once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::cgroup_files::{CountOf, OomCount};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, OomKill};
use crate::model::saved_counts::OpenKills;

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

/// Those of which the kernel has counted more than what is known.
pub type OpenByCgroup = BTreeMap<CgroupId, OpenKills>;

/// What agents before this one have left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// What they knew.
    pub known: KillsByCgroup,
    pub open: OpenByCgroup,
    /// Below which cgroups these lie; empty: nobody has said so.
    pub roots: Vec<CgroupPath>,
    /// Pods are among them (v2).
    pub has_pods: bool,
}

/// What is to be read before [`KillAccounts::settle`]: first the containers, then the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Pods of which more was counted than is known, for long enough.
    open: BTreeSet<CgroupId>,
    /// The containers in these.
    pub containers: BTreeSet<CgroupId>,
    /// These, and the pods of containers of which more was counted than is known. To be left in it: those that could be
    /// read.
    pub pods: BTreeSet<CgroupId>,
}

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
    /// Nobody has kept accounts of pods (v2).
    are_pods_new: bool,
    /// Reports of cgroups that have no account yet.
    early: KillsByCgroup,
    /// Those of them that did not say in which pod it was (v2).
    podless: KillsByCgroup,
    /// When the last of these was.
    last_early: Duration,
    accounts: BTreeMap<CgroupId, Account>,
}

#[derive(Debug)]
struct Account {
    of: CountOf,
    /// Kills that are known: of before the account began, reported, or told as missed.
    known: u64,
    /// Reports from before are in `known` already.
    since: Duration,
    /// When the last kill was that has become known since.
    last: Duration,
    /// The last reading: of processes, or one that may have some of them twice.
    counted: OomCount,
    /// Of a pod: those that were told as missed of it, and may be of a container that is found later.
    told: u64,
    /// More was counted than is known: how much, and when that was read.
    open: Option<(Duration, OomCount)>,
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

    /// Who is found again is there, and else it is taken to be gone.
    pub fn resume(&mut self, earlier: Earlier, now: Duration) {
        let mut known = earlier.known;
        for (cgroup, open) in earlier.open {
            let mut account = Account {
                counted: open.counted,
                was_unwatched: open.was_unwatched,
                is_removed: true,
                ..Account::new(open.of, known.get(&cgroup).copied().unwrap_or_default())
            };
            account.look(now);
            if account.open.is_some() {
                // What is compared still is told by the time it is found again.
                known.insert(cgroup, account.counted());
                self.accounts.insert(cgroup, account);
            }
        }
        self.before = Some(known);
        self.roots = earlier.roots;
        self.are_pods_new = self.is_unified && !earlier.has_pods;
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
        self.are_pods_new = false;
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

    /// Whether what is known of pods is among it.
    pub fn has_pods(&self) -> bool {
        self.is_unified && !self.are_pods_new
    }

    /// Without their paths.
    pub fn open(&self) -> OpenByCgroup {
        let open = self.accounts.iter().filter(|(_, it)| it.open.is_some());
        let open = open.map(|(cgroup, it)| {
            let open = OpenKills {
                counted: it.counted,
                of: it.of,
                was_unwatched: it.was_unwatched,
                path: None,
            };
            (*cgroup, open)
        });
        open.collect()
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

    /// Nobody reports kills, nor tells by that how often all of a cgroup went.
    pub fn without_programs(&mut self) {
        self.is_silent = true;
        self.accounts.values_mut().for_each(Account::went_once);
    }

    /// Nobody has reported kills until now, nor left a program that noted them.
    pub fn nobody_watched(&mut self) {
        self.was_unwatched = true;
    }

    /// A cgroup that was just made.
    pub fn begin(&mut self, cgroup: CgroupId, of: CountOf) {
        if !self.find_again(cgroup, of) {
            // It has none but those that were reported since.
            let (before, early) = self.take_known(cgroup);
            let account = self.with_known(of, before.unwrap_or_default() + early);
            self.accounts.insert(cgroup, account);
        }
        self.name_pod(cgroup);
    }

    /// A cgroup that was found, as counted at `now` or later. Whether something is counted that is not known yet.
    pub fn adopt(
        &mut self,
        cgroup: CgroupId,
        of: CountOf,
        counted: OomCount,
        now: Duration,
    ) -> bool {
        if !self.find_again(cgroup, of) {
            let account = match self.known_of(cgroup, of) {
                Some(known) => self.with_known(of, known),
                None => Account::at(of, counted, now),
            };
            self.accounts.insert(cgroup, account);
        }
        self.name_pod(cgroup);
        let was_unwatched = self.was_unwatched;
        let Some(account) = self.accounts.get_mut(&cgroup) else {
            return false;
        };
        let before = account.counted();
        account.count(counted, now);
        let is_open = account.open.is_some();
        account.was_unwatched |= was_unwatched && is_open && account.counted() > before;
        is_open
    }

    /// Kills of a container became known when nobody knew its pod.
    fn name_pod(&mut self, cgroup: CgroupId) {
        let pod = self.accounts.get(&cgroup).and_then(Account::pod);
        if let Some((pod, n)) = pod.zip(self.podless.remove(&cgroup)) {
            self.know(pod, n, self.last_early);
        }
    }

    /// Kills in a cgroup became known, the last of them `at`.
    fn know(&mut self, cgroup: CgroupId, n: u64, at: Duration) {
        match self.accounts.get_mut(&cgroup) {
            Some(account) => account.know(n, at),
            None => {
                *self.early.entry(cgroup).or_default() += n;
                self.last_early = self.last_early.max(at);
            }
        }
    }

    /// A cgroup that could not be read when it was found. What is counted by now was nobody's to tell, unless an agent
    /// before had an account of it. As [`KillAccounts::adopt`] else.
    pub fn adopt_late(
        &mut self,
        cgroup: CgroupId,
        of: CountOf,
        counted: OomCount,
        now: Duration,
    ) -> bool {
        let before = self.before.as_ref().and_then(|it| it.get(&cgroup));
        if before.is_some() {
            return self.adopt(cgroup, of, counted, now);
        }
        self.early.remove(&cgroup);
        let mut account = Account::at(of, counted, now);
        account.count(counted, now);
        self.accounts.insert(cgroup, account);
        self.name_pod(cgroup);
        false
    }

    /// Whether it has an account already: it was found before its pod was, or it was lost, and what was counted of it is
    /// still compared.
    fn find_again(&mut self, cgroup: CgroupId, of: CountOf) -> bool {
        let Some(account) = self.accounts.get_mut(&cgroup) else {
            return false;
        };
        account.of = of;
        if account.is_removed {
            account.is_removed = false;
            if let Some(before) = &mut self.before {
                before.remove(&cgroup);
            }
        }
        true
    }

    /// What is known of a cgroup that gets an account; `None`: nobody was there to know.
    fn known_of(&mut self, cgroup: CgroupId, of: CountOf) -> Option<u64> {
        let (before, early) = self.take_known(cgroup);
        if self.before.is_none() || of == CountOf::Pod && self.are_pods_new {
            return None;
        }
        match before {
            Some(before) => Some(before + early),
            None => (!self.is_elsewhere).then_some(early),
        }
    }

    /// What is known of it without an account: by agents before, and reported since.
    fn take_known(&mut self, cgroup: CgroupId) -> (Option<u64>, u64) {
        let before = self.before.as_mut().and_then(|it| it.remove(&cgroup));
        (before, self.early.remove(&cgroup).unwrap_or_default())
    }

    fn with_known(&self, of: CountOf, known: u64) -> Account {
        Account {
            last: self.last_early,
            ..Account::new(of, known)
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
            let account = self.accounts.get(cgroup);
            if account.is_none_or(|it| at >= it.since) {
                self.know(*cgroup, 1, at);
            }
        }
        // Nobody could tell what it lies in.
        if self.is_unified
            && let [cgroup] = cgroups
        {
            match self.accounts.get(cgroup) {
                Some(account) => {
                    if let Some(pod) = account.pod() {
                        self.know(pod, 1, at);
                    }
                }
                None => *self.podless.entry(*cgroup).or_default() += 1,
            }
        }
        bound(&mut self.early);
        bound(&mut self.podless);
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
        self.podless.remove(&cgroup);
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
        let known = account.map(|it| it.known.max(it.counted()));
        self.end(cgroup);
        let known = known.filter(|it| *it > 0);
        if let (Some(before), Some(known)) = (&mut self.before, known) {
            before.insert(cgroup, known);
            bound(before);
        }
    }

    /// All reports of kills before `heard` were taken.
    pub fn due(&self, heard: Duration) -> Due {
        let mut due = Due::default();
        for (cgroup, account) in &self.accounts {
            if !self.is_due(account, heard) {
                continue;
            }
            match account.of {
                CountOf::Pod => {
                    due.open.insert(*cgroup);
                    due.pods.insert(*cgroup);
                }
                CountOf::Cgroup { pod } => due.pods.extend(pod),
            }
        }
        if !due.open.is_empty() {
            let in_these = |it: &Account| it.pod().is_some_and(|it| due.open.contains(&it));
            let containers = self.accounts.iter().filter(|(_, it)| in_these(it));
            due.containers = containers.map(|(cgroup, _)| *cgroup).collect();
        }
        due
    }

    /// Every report of what is open has come by now.
    fn is_due(&self, account: &Account, heard: Duration) -> bool {
        let is_at_once = !self.has_programs() && account.of != CountOf::Pod;
        let open = account.open;
        open.is_some_and(|(at, _)| is_at_once || at.saturating_add(GRACE) <= heard)
    }

    /// What is missed by now. All reports of kills before `heard` were taken, or nobody reports any; what was `due` then
    /// was read since.
    pub fn settle(&mut self, heard: Duration, due: &Due) -> Vec<Missed> {
        let is_due = |it: &(&CgroupId, &Account)| self.is_due(it.1, heard);
        let all = self.accounts.iter().filter(is_due);
        let all: Vec<_> = all.map(|(cgroup, it)| (*cgroup, it.of)).collect();
        let mut missed = Vec::new();
        for (cgroup, of) in &all {
            if let CountOf::Cgroup { pod } = of {
                let pod = pod.filter(|it| due.pods.contains(it));
                missed.extend(self.settle_one(*cgroup, pod, heard));
            }
        }
        let open = self.accounts.values().filter(|it| it.open.is_some());
        let with_open: BTreeSet<CgroupId> = open.filter_map(Account::pod).collect();
        let pods = all.iter().filter(|(_, of)| *of == CountOf::Pod);
        for (cgroup, _) in pods {
            if due.open.contains(cgroup) && !with_open.contains(cgroup) {
                missed.extend(self.settle_one(*cgroup, None, heard));
            }
        }
        let over = self.accounts.extract_if(.., |_, it| it.is_over());
        for (cgroup, account) in over {
            // Should it be found again: a report that came since may tell that a process was counted twice.
            let before = self.before.as_mut();
            if let Some(known) = before.and_then(|it| it.get_mut(&cgroup)) {
                *known = account.known;
            }
        }
        bound(&mut self.early);
        missed
    }

    /// Of a container, with its `pod` if that was read: some of what is missed may have been told of the pod.
    fn settle_one(
        &mut self,
        cgroup: CgroupId,
        pod: Option<CgroupId>,
        heard: Duration,
    ) -> Option<Missed> {
        let has_programs = self.has_programs();
        let account = self.accounts.get_mut(&cgroup)?;
        let of = account.of;
        let mut missed = account.settle(cgroup, heard, has_programs)?;
        if let Some(pod) = pod.and_then(|it| self.accounts.get_mut(&it)) {
            let n_told = pod.told.min(missed.n.saturating_sub(pod.unknown()));
            pod.told -= n_told;
            missed.n -= n_told;
        }
        match of {
            CountOf::Cgroup { pod: Some(pod) } => self.know(pod, missed.n, missed.at),
            CountOf::Cgroup { pod: None } => {}
            CountOf::Pod => {
                if let Some(account) = self.accounts.get_mut(&cgroup) {
                    account.told += missed.n;
                }
            }
        }
        (missed.n > 0).then_some(missed)
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
    fn new(of: CountOf, known: u64) -> Self {
        Self {
            of,
            known,
            since: Duration::ZERO,
            last: Duration::ZERO,
            counted: OomCount::exact(0),
            told: 0,
            open: None,
            was_unwatched: false,
            is_removed: false,
        }
    }

    /// What is counted now was nobody's to tell.
    fn at(of: CountOf, counted: OomCount, now: Duration) -> Self {
        Self {
            since: now,
            ..Self::new(of, processes(counted, 0))
        }
    }

    /// Of a container, the cgroup of its pod.
    fn pod(&self) -> Option<CgroupId> {
        match self.of {
            CountOf::Cgroup { pod } => pod,
            CountOf::Pod => None,
        }
    }

    /// How many processes are counted, by what is known now.
    fn counted(&self) -> u64 {
        processes(self.counted, self.known)
    }

    /// How many are counted and not known.
    fn unknown(&self) -> u64 {
        self.counted().saturating_sub(self.known)
    }

    fn know(&mut self, n: u64, at: Duration) {
        self.known += n;
        self.last = self.last.max(at);
        if self.counted() <= self.known {
            self.look(at);
        }
    }

    fn count(&mut self, counted: OomCount, now: Duration) {
        // Which of the containers went as a whole, and count one twice, nobody knows (before Linux 5.17).
        if self.of == CountOf::Pod && counted.is_ambiguous() {
            return;
        }
        let counted = match counted.is_ambiguous() {
            true => counted,
            false => OomCount::exact(processes(counted, 0)),
        };
        // An older one may come later.
        if counted.kills >= self.counted.kills {
            self.counted = counted;
        }
        // A victim that was gone before it was counted again is counted once less than it is known, for good once that has
        // had its time. A container goes with it, and its pod would hide as many of those that come.
        if self.of == CountOf::Pod && now >= self.last.saturating_add(GRACE) {
            self.known = self.known.min(self.counted());
        }
        self.look(now);
    }

    /// Where processes may be counted twice, one was: nobody is left in a cgroup that went as a whole, but for who may
    /// never be killed.
    fn went_once(&mut self) {
        let open = self.open.iter_mut().map(|(_, counted)| counted);
        let ambiguous = open.chain([&mut self.counted]);
        for counted in ambiguous.filter(|it| it.is_ambiguous()) {
            let once = OomCount {
                group_kills: Some(1),
                ..*counted
            };
            *counted = OomCount::exact(processes(once, 0));
        }
    }

    fn look(&mut self, now: Duration) {
        if self.counted() > self.known {
            self.open.get_or_insert((now, self.counted));
        } else {
            self.open = None;
            self.was_unwatched = false;
        }
    }

    /// Nothing can become of it any more.
    fn is_over(&self) -> bool {
        self.is_removed && self.open.is_none()
    }

    /// What is open and not known is missed.
    fn settle(&mut self, cgroup: CgroupId, heard: Duration, has_programs: bool) -> Option<Missed> {
        let (at, counted) = self.open.take()?;
        let n = processes(counted, self.known).saturating_sub(self.known);
        self.known += n;
        let was_unwatched = std::mem::take(&mut self.was_unwatched);
        self.look(heard.max(at));
        let cause = match (has_programs, was_unwatched) {
            (false, _) => Cause::NoPrograms,
            (true, true) => Cause::Unwatched,
            (true, false) => Cause::Lost,
        };
        let missed = Missed {
            cgroup,
            n,
            cause,
            at,
        };
        (n > 0).then_some(missed)
    }
}

#[cfg(test)]
mod tests;
