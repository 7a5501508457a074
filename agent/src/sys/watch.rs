//! Wakes the agent when a directory changes. It tells when to look, never what is
//! true: a lost event costs the time to the next scan.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// The directory cannot be watched; scans by the clock go on.
#[derive(Debug, thiserror::Error)]
#[error("watch {}", .path.display())]
pub struct WatchError {
    path: PathBuf,
    source: Errno,
}

/// An inotify watch. Readable, in the sense of `poll`, while there is news.
#[derive(Debug)]
pub struct DirWatch {
    inotify: Inotify,
    path: PathBuf,
}

/// What woke the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchNews {
    /// Something in the directory may be different: scan.
    pub changed: bool,
    /// The directory itself went away or was moved: this watch is of no more use, make another.
    pub lost: bool,
}

impl DirWatch {
    /// Written and closed, not written to: a file is read when its writer is done. Creation matters
    /// for links, which are whole at once.
    const EVENTS: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
        .union(AddWatchFlags::IN_CREATE)
        .union(AddWatchFlags::IN_MOVED_TO)
        .union(AddWatchFlags::IN_MOVED_FROM)
        .union(AddWatchFlags::IN_DELETE)
        .union(AddWatchFlags::IN_ATTRIB)
        .union(AddWatchFlags::IN_DELETE_SELF)
        .union(AddWatchFlags::IN_MOVE_SELF)
        .union(AddWatchFlags::IN_ONLYDIR);

    /// Watches `path`, which must be a directory.
    pub fn new(path: &Path) -> Result<Self, WatchError> {
        let failed = |source| WatchError {
            path: path.into(),
            source,
        };
        let inotify =
            Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).map_err(failed)?;
        inotify.add_watch(path, Self::EVENTS).map_err(failed)?;
        Ok(Self {
            inotify,
            path: path.into(),
        })
    }

    /// Watches a directory more, which may be watched already. That one of them goes away counts as the loss of all.
    pub fn add(&self, path: &Path) -> Result<(), WatchError> {
        let events = Self::EVENTS | AddWatchFlags::IN_DONT_FOLLOW;
        let added = self.inotify.add_watch(path, events);
        added.map(|_| ()).map_err(|source| WatchError {
            path: path.into(),
            source,
        })
    }

    /// Takes what is queued, without waiting.
    pub fn drain(&self) -> Result<WatchNews, WatchError> {
        /// Each read takes 4 KiB of events; the queue holds 16384 of them by default. A flood that
        /// goes on leaves the descriptor readable, and the caller comes back.
        const MAX_READS: usize = 64;
        let lost = AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_UNMOUNT
            | AddWatchFlags::IN_IGNORED;
        let mut news = WatchNews::default();
        for _ in 0..MAX_READS {
            match self.inotify.read_events() {
                Ok(events) => {
                    news.changed = true;
                    news.lost |= events.iter().any(|event| event.mask.intersects(lost));
                }
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(source) => {
                    return Err(WatchError {
                        path: self.path.clone(),
                        source,
                    });
                }
            }
        }
        Ok(news)
    }
}

impl AsFd for DirWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

impl AsRawFd for DirWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
