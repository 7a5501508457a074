//! The thread that keeps the output of containers within bounds: copying a log may take long, and
//! the loop must not wait for it.

use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;

use super::{Loop, RunError};
use crate::runtime::logs::{Rotated, prune, rotate};

/// Attempts of a container whose output is kept: the one that runs and the one before, which is
/// what `kubectl logs --previous` is for.
const KEPT_ATTEMPTS: usize = 2;

/// One container's output.
#[derive(Debug)]
pub(super) struct Log {
    /// Of the attempt that runs.
    path: PathBuf,
}

/// Hands work to the thread; the thread ends when this is dropped.
pub(super) struct LogKeeper {
    work: SyncSender<Vec<Log>>,
}

impl LogKeeper {
    /// `max_bytes` and `max_files`: `containerLogMaxSize` and `containerLogMaxFiles`.
    pub(super) fn start(max_bytes: u64, max_files: u32) -> Result<Self, RunError> {
        let (work, todo) = sync_channel::<Vec<Log>>(1);
        thread::Builder::new()
            .name("logs".to_owned())
            .spawn(move || {
                for log in todo.into_iter().flatten() {
                    keep(&log, max_bytes, max_files);
                }
            })
            .map_err(RunError::Thread)?;
        Ok(Self { work })
    }
}

fn keep(log: &Log, max_bytes: u64, max_files: u32) {
    match rotate(&log.path, max_bytes, max_files) {
        Ok(Rotated::No) => {}
        Ok(rotated) => tracing::debug!(log = %log.path.display(), ?rotated, "rotated"),
        Err(error) => tracing::warn!(error = crate::observe::chain(&error), "rotate a log"),
    }
    let Some(directory) = log.path.parent() else {
        return;
    };
    if let Err(error) = prune(directory, KEPT_ATTEMPTS) {
        tracing::warn!(error = crate::observe::chain(&error), "remove old logs");
    }
}

impl Loop {
    /// Has the logs of the running containers looked after; while the thread is still busy with
    /// the last round there is nothing to do.
    pub(super) fn keep_logs(&self) {
        let logs = self
            .pods
            .values()
            .flat_map(|entry| {
                entry.instances.keys().filter_map(|name| {
                    let status = entry.state.containers.iter().find(|it| it.name == *name)?;
                    let path = self.paths.log(&entry.pod_ref, name, status.attempt);
                    Some(Log { path })
                })
            })
            .collect();
        self.log_keeper.work.try_send(logs).ok();
    }
}
