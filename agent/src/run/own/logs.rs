//! The thread that keeps the output of containers within bounds: copying a log may take long, and
//! the loop must not wait for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use super::Loop;
use crate::run::RunError;
use crate::runtime::ContainerOwner;
use crate::runtime::logs::{Rotated, prune, remove_unfinished, rotate};
use crate::sys::FsError;

/// How often the length of each log is looked at: what a container writes in this time is beyond the
/// bound. Kubelet looks every 10 s (`containerLogMonitorInterval`).
const LOOK: Duration = Duration::from_secs(1);

/// Attempts of a container whose output is kept: the one that runs and the one before, which is
/// what `kubectl logs --previous` is for.
const KEPT_ATTEMPTS: usize = 2;

/// One container's output.
#[derive(Debug)]
pub(super) struct Log {
    /// Of one attempt.
    path: PathBuf,
}

/// Hands work to the thread; the thread ends when this is dropped.
pub(super) struct LogKeeper {
    work: SyncSender<Vec<Log>>,
    /// Containers have been started since it was told which there are.
    pub is_behind: bool,
}

impl LogKeeper {
    /// `max_bytes` and `max_files`: `containerLogMaxSize` and `containerLogMaxFiles`.
    pub(super) fn start(max_bytes: u64, max_files: u32) -> Result<Self, RunError> {
        let (work, todo) = sync_channel::<Vec<Log>>(1);
        thread::Builder::new()
            .name("logs".to_owned())
            .spawn(move || run(&todo, max_bytes, max_files))
            .map_err(RunError::Thread)?;
        Ok(Self {
            work,
            is_behind: false,
        })
    }
}

fn run(todo: &Receiver<Vec<Log>>, max_bytes: u64, max_files: u32) {
    let mut logs = Vec::new();
    // Whatever an earlier agent has left there is gone.
    let mut tidied = BTreeSet::new();
    // Of which something was said already.
    let mut told = BTreeSet::new();
    loop {
        match todo.recv_timeout(LOOK) {
            Ok(newer) => {
                logs = newer;
                let directories = logs.iter().filter_map(|it| it.path.parent());
                let directories: BTreeSet<&Path> = directories.collect();
                tidied.retain(|it: &PathBuf| directories.contains(it.as_path()));
                for directory in directories {
                    if tidied.insert(directory.to_owned()) {
                        look_back(remove_unfinished(directory));
                    }
                    look_back(prune(directory, KEPT_ATTEMPTS));
                }
                told.retain(|it| logs.iter().any(|log| log.path == *it));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        for log in &logs {
            let path = log.path.display();
            match rotate(&log.path, max_bytes, max_files) {
                Ok(Rotated::No) => {}
                Ok(
                    rotated @ (Rotated::Collapsed { skipped_bytes, .. }
                    | Rotated::Truncated { skipped_bytes, .. }),
                ) if skipped_bytes > 0 && told.insert(log.path.clone()) => {
                    tracing::warn!(log = %path, ?rotated, "output beyond what is kept is lost");
                }
                Ok(rotated) => tracing::debug!(log = %path, ?rotated, "rotated"),
                Err(error) => {
                    if told.insert(log.path.clone()) {
                        let error = crate::observe::chain(&error);
                        tracing::warn!(log = %path, error, "rotate a log");
                    }
                }
            }
        }
    }
}

fn look_back<T>(removed: Result<T, FsError>) {
    if let Err(error) = removed {
        tracing::warn!(error = crate::observe::chain(&error), "remove old logs");
    }
}

impl Loop {
    /// Tells the thread which logs there are, also of containers that have ended: what one wrote in
    /// its last moment is bounded too. If it has not yet taken the last list, the next pass does.
    pub(super) fn keep_logs(&mut self) {
        let logs = self
            .pods
            .values()
            .flat_map(|entry| {
                let containers = entry.state.containers.iter();
                let attempts = containers.flat_map(|it| {
                    let before = it.attempt.checked_sub(1);
                    [Some(it.attempt), before].map(|attempt| (&it.name, attempt))
                });
                attempts.filter_map(|(name, attempt)| {
                    let owner = ContainerOwner::new(&entry.pod_ref, name, attempt?);
                    let path = self.paths.log(&owner);
                    Some(Log { path })
                })
            })
            .collect();
        self.log_keeper.is_behind = self.log_keeper.work.try_send(logs).is_err();
    }
}
