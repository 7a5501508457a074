//! The thread that waits for changes outside the kernel's event streams: the manifest directory, and
//! CPUs that go online or offline. It tells the loop to look; without it the timer does.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::event::{Event, Sender};
use crate::run::RunError;
use crate::run::worker::{Stop, Worker};
use crate::sources::uevents::CpuWatch;
use crate::sys::watch::DirWatch;

/// An editor or a copy writes a file in several steps: what follows the first change for this long
/// is read with it.
const DEBOUNCE: Duration = Duration::from_millis(20);

/// How long the watcher may take to notice that the agent stops.
const STOP_CHECK_MS: u16 = 500;

/// Starts the thread. What cannot be watched is told, and left to the full passes.
pub(super) fn spawn(directory: &Path, to_loop: Sender) -> Result<Worker, RunError> {
    let mut sources = Sources {
        directory: directory.into(),
        manifests: told(DirWatch::new(directory), "manifest changes"),
        cpus: told(CpuWatch::open(), "CPUs that go online or offline"),
    };
    let watch = move |stop: &Stop| {
        while !stop.is_asked() {
            for event in sources.wait() {
                if to_loop.send(event).is_err() {
                    return;
                }
            }
        }
    };
    // Its waits are short.
    Worker::spawn("watch", || (), watch).map_err(RunError::Thread)
}

/// `None`: cannot be watched, or not now.
struct Sources {
    /// Of the manifests.
    directory: PathBuf,
    manifests: Option<DirWatch>,
    cpus: Option<CpuWatch>,
}

impl Sources {
    /// Waits for news, at most [`STOP_CHECK_MS`].
    fn wait(&mut self) -> Vec<Event> {
        // It was not there, or was removed or renamed: what has its name next is watched.
        if self.manifests.is_none()
            && let Ok(watch) = DirWatch::new(&self.directory)
        {
            tracing::info!(directory = %self.directory.display(), "manifest changes are noticed at once again");
            self.manifests = Some(watch);
            return vec![Event::ManifestsChanged];
        }
        let (manifests, cpus) = (&self.manifests, &self.cpus);
        let fds = [
            manifests.as_ref().map(AsFd::as_fd),
            cpus.as_ref().map(AsFd::as_fd),
        ];
        let mut fds: Vec<_> = fds
            .into_iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let mut events = Vec::new();
        if !matches!(poll(&mut fds, PollTimeout::from(STOP_CHECK_MS)), Ok(n) if n > 0) {
            return events;
        }
        thread::sleep(DEBOUNCE);
        if let Some(watch) = &self.manifests {
            match told(watch.drain(), "manifest changes") {
                Some(news) => {
                    if news.changed || news.lost {
                        events.push(Event::ManifestsChanged);
                    }
                    if news.lost {
                        self.manifests = None;
                    }
                }
                None => self.manifests = None,
            }
        }
        if let Some(watch) = &self.cpus {
            match told(watch.drain(), "CPUs that go online or offline") {
                Some(true) => events.push(Event::CpusChanged),
                Some(false) => {}
                None => self.cpus = None,
            }
        }
        events
    }
}

fn told<T, E: std::error::Error + 'static>(result: Result<T, E>, what: &str) -> Option<T> {
    match result {
        Ok(it) => Some(it),
        Err(error) => {
            let error = crate::observe::chain(&error);
            tracing::warn!(error, "{what} are noticed by the timer only");
            None
        }
    }
}
