//! What the threads of the runtime share: which containers there are, and what is still to happen
//! to them.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::recover::Left;
use crate::model::event::{ExitStatus, ProcessKey};
use crate::runtime::{ContainerId, ContainerRecord, HostProcess, ReportedExit};

/// A process whose end is waited for. Tokens are never reused, unlike pids and descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Token(pub(super) u64);

#[derive(Debug)]
pub(super) struct Watched {
    pub(super) pidfd: OwnedFd,
    /// `None`: the leftover of a start that failed, to be reaped and not spoken of.
    pub(super) record: Option<ContainerRecord>,
}

/// Times of `CLOCK_BOOTTIME`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lingering {
    /// When it was seen to have ended.
    pub(super) seen: Duration,
    /// The time until which its status is waited for.
    pub(super) until: Duration,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Found, and not recovered yet.
    pub(super) left: Option<Left>,
    /// Queued or being started.
    pub(super) starting: BTreeSet<ContainerId>,
    pub(super) running: BTreeMap<ContainerId, Token>,
    /// Told as ended, not forgotten yet.
    pub(super) ended: BTreeSet<ContainerId>,
    pub(super) watched: BTreeMap<Token, Arc<Watched>>,
    /// Ended without being a child of this process, exit status not known yet.
    pub(super) lingering: BTreeMap<Token, Lingering>,
    /// Watched, and not taken by epoll.
    pub(super) unarmed: BTreeSet<Token>,
    pub(super) reports: Reports,
    last_token: u64,
}

impl State {
    pub(super) fn knows(&self, id: &ContainerId) -> bool {
        self.starting.contains(id) || self.running.contains_key(id) || self.ended.contains(id)
    }

    pub(super) fn watch(&mut self, watched: Watched) -> Token {
        self.last_token += 1;
        let token = Token(self.last_token);
        if let Some(record) = &watched.record {
            self.starting.remove(&record.id);
            self.running.insert(record.id.clone(), token);
            self.reports.expect(record.process);
        }
        self.watched.insert(token, Arc::new(watched));
        token
    }

    /// Takes a process that has ended out of everything but `ended`.
    pub(super) fn settle(&mut self, token: Token) {
        self.lingering.remove(&token);
        self.unarmed.remove(&token);
        let Some(watched) = self.watched.remove(&token) else {
            return;
        };
        if let Some(record) = &watched.record {
            self.running.remove(&record.id);
            self.ended.insert(record.id.clone());
            self.reports.take(record.process);
        }
    }
}

/// Exits from the kernel's event stream.
#[derive(Debug)]
pub(super) struct Reports {
    /// The expected processes, by pid: two may share one while the end of the first is settled.
    expected: BTreeMap<HostProcess, Option<ExitStatus>>,
    /// Everything told before the recovery, since it is not known yet which of it matters. The
    /// last process of each pid; `None` after the recovery.
    early: Option<BTreeMap<u32, (ProcessKey, ReportedExit)>>,
}

impl Default for Reports {
    fn default() -> Self {
        Self {
            expected: BTreeMap::new(),
            early: Some(BTreeMap::new()),
        }
    }
}

impl Reports {
    /// More exits than the pinned ring of any build holds while no agent runs; some 4 MiB, for the time of
    /// the start.
    const MAX_EARLY: usize = 65_536;

    pub(super) fn expect(&mut self, process: HostProcess) {
        self.expected.entry(process).or_default();
    }

    /// Keeps it for the recovery. False: that is over.
    pub(super) fn keep(&mut self, key: ProcessKey, exit: ReportedExit) -> bool {
        let Some(early) = &mut self.early else {
            return false;
        };
        if early.len() < Self::MAX_EARLY || early.contains_key(&key.pid) {
            early.insert(key.pid, (key, exit));
        }
        true
    }

    /// True: it is about an expected process.
    pub(super) fn report(&mut self, key: ProcessKey, status: ExitStatus) -> bool {
        let ticks = HostProcess::of(key);
        match self.expected.get_mut(&ticks) {
            Some(slot) => {
                *slot = Some(status);
                true
            }
            None => false,
        }
    }

    /// What was told before the recovery about a process.
    pub(super) fn early(&self, process: HostProcess) -> Option<ReportedExit> {
        let (key, exit) = self.early.as_ref()?.get(&process.pid)?;
        (HostProcess::of(*key) == process).then_some(*exit)
    }

    /// After this none is kept.
    pub(super) fn end_early(&mut self) {
        self.early = None;
    }

    pub(super) fn get(&self, process: HostProcess) -> Option<ExitStatus> {
        self.expected.get(&process).copied().flatten()
    }

    fn take(&mut self, process: HostProcess) {
        self.expected.remove(&process);
    }
}

/// A panic of a holder leaves whole entries: every change is one insertion or removal.
pub(super) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
