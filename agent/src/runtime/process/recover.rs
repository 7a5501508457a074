//! What an earlier agent left: containers to adopt, ends to tell, starts that were cut short.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::libc;

use super::Shared;
use super::records::Found;
use super::state::{Watched, lock};
use crate::runtime::{
    ContainerEnd, ContainerExit, ContainerRecord, HostProcess, RecordFault, Recovered,
    RuntimeError, UnknownExit,
};
use crate::sys::launch::is_readable_within;
use crate::sys::syscall::{pidfd_open, pidfd_send_signal};
use crate::sys::{FsError, chain};

/// How long a process at its gate may take to see that the gate is closed, or to pass it if the
/// gate was opened in the last moment. A loaded node may not run it for a while.
const GATE_TIMEOUT: Duration = Duration::from_secs(5);
const GATE_STEP: Duration = Duration::from_millis(2);

/// The records of an earlier agent, with the processes that were there when they were read.
#[derive(Debug)]
pub(super) struct Left {
    found: Vec<(Found, Option<OwnedFd>)>,
    faults: Vec<RecordFault>,
}

/// What became of the process of a record.
enum Fate {
    Runs(OwnedFd),
    Ended,
    NeverRan,
}

impl Shared {
    pub(super) fn find(&self) -> Result<(), RuntimeError> {
        let left = self.left()?;
        lock(&self.state).left = Some(left);
        Ok(())
    }

    fn left(&self) -> Result<Left, RuntimeError> {
        let (records, faults) = self.records.load()?;
        let mut found = Vec::new();
        for it in records {
            let may_run = it.record.end.is_none() && it.record.boot_id == self.boot_id;
            let process = match may_run {
                true => open_process(it.record.process)?,
                false => None,
            };
            found.push((it, process));
        }
        Ok(Left { found, faults })
    }

    pub(super) fn recover(&self) -> Result<Recovered, RuntimeError> {
        let left = lock(&self.state).left.take();
        let Left { found, faults } = match left {
            Some(left) => left,
            None => self.left()?,
        };
        let mut recovered = Recovered {
            faults,
            ..Recovered::default()
        };
        let mut adopted = Vec::new();
        for (Found { record, has_run }, process) in found {
            if record.end.is_some() {
                recovered.ended.push(record);
                continue;
            }
            if record.boot_id != self.boot_id {
                // Whether it ran is not known for sure: the rename may be lost with the node.
                let exit = ContainerExit::Unknown(UnknownExit::NodeRestarted);
                recovered.ended.push(self.end(record, exit, None));
                continue;
            }
            match self.fate(&record, has_run, process)? {
                Fate::Runs(pidfd) => adopted.push((record, pidfd)),
                Fate::NeverRan => {
                    if let Err(error) = self.records.remove(&record.id) {
                        tell_unwritten(&record, &error);
                    }
                    recovered.never_started.push(record);
                }
                Fate::Ended => {
                    let known = lock(&self.state).reports.early(record.process);
                    let unknown = ContainerExit::Unknown(UnknownExit::Unobserved);
                    let exit = known.map_or(unknown, |it| ContainerExit::Known(it.status));
                    let finished_at = known.map(|it| it.at);
                    recovered.ended.push(self.end(record, exit, finished_at));
                }
            }
        }
        // Nothing fails from here on, so a recovery that failed can be tried again.
        for (record, pidfd) in adopted {
            let watched = Watched {
                pidfd,
                record: Some(record.clone()),
            };
            let token = lock(&self.state).watch(watched);
            self.exits.arm(token);
            recovered.running.push(record);
        }
        let mut state = lock(&self.state);
        state.reports.end_early();
        let ended = recovered.ended.iter().map(|it| it.id.clone());
        state.ended.extend(ended);
        Ok(recovered)
    }

    pub(super) fn adopt(&self, record: ContainerRecord) -> Result<bool, RuntimeError> {
        if lock(&self.state).knows(&record.id) {
            return Err(RuntimeError::Duplicate { id: record.id });
        }
        let Some(pidfd) = open_process(record.process)? else {
            return Ok(false);
        };
        if let Err(error) = self.records.update(&record) {
            tell_unwritten(&record, &error);
        }
        let watched = Watched {
            pidfd,
            record: Some(record),
        };
        let token = lock(&self.state).watch(watched);
        self.exits.arm(token);
        Ok(true)
    }

    /// The record of a container with its end. Where that cannot be stored, as on a full disk, the next recovery
    /// finds the end once more.
    fn end(
        &self,
        record: ContainerRecord,
        exit: ContainerExit,
        finished_at: Option<Duration>,
    ) -> ContainerRecord {
        let record = ContainerRecord {
            end: Some(ContainerEnd { exit, finished_at }),
            ..record
        };
        let stored = self.records.update(&record);
        if let Err(error) = stored.and_then(|()| self.records.remove_starting(&record.id)) {
            tell_unwritten(&record, &error);
        }
        record
    }

    fn fate(
        &self,
        record: &ContainerRecord,
        has_run: bool,
        process: Option<OwnedFd>,
    ) -> Result<Fate, RuntimeError> {
        if has_run {
            return Ok(process.map_or(Fate::Ended, Fate::Runs));
        }
        let Some(pidfd) = process else {
            // It may have passed the gate, run and ended since the records were listed.
            return Ok(if self.records.has_run(&record.id) {
                Fate::Ended
            } else {
                Fate::NeverRan
            });
        };
        // The earlier agent died a moment ago, and the process is about to end, or to go on if it
        // had its permission already.
        let mut waited = Duration::ZERO;
        while waited < GATE_TIMEOUT {
            let has_ended =
                is_readable_within(pidfd.as_fd(), GATE_STEP).map_err(RuntimeError::Setup)?;
            match (has_ended, self.records.has_run(&record.id)) {
                // The end of one that ran is told as any other.
                (_, true) => return Ok(Fate::Runs(pidfd)),
                (true, false) => return Ok(Fate::NeverRan),
                (false, false) => waited += GATE_STEP,
            }
        }
        // It does not run at all; its cgroup may be frozen.
        pidfd_send_signal(pidfd.as_fd(), 9).map_err(RuntimeError::Setup)?;
        Ok(Fate::NeverRan)
    }
}

fn tell_unwritten(record: &ContainerRecord, error: &FsError) {
    let (container, error) = (&record.id, chain(error));
    tracing::error!(%container, error, "the record of a container cannot be stored");
}

/// The process, if it is still there and still the same.
fn open_process(process: HostProcess) -> Result<Option<OwnedFd>, RuntimeError> {
    let pidfd = match pidfd_open(process.pid) {
        Ok(pidfd) => pidfd,
        // The pid is free, or a thread's.
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(RuntimeError::Setup(error)),
    };
    // Read after the open: if the pid was reused in between, this start is a later one.
    match HostProcess::find(process.pid) {
        Ok(found) => Ok((found == process).then_some(pidfd)),
        Err(error) if error.is_gone() || error.errno() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ESRCH | libc::ENOENT | libc::EINVAL)
    )
}
