//! A lock that the kernel holds for this process: it goes with the process, however that ends.
//!
//! A `flock` belongs to an open file, and a child shares the open files of the thread that makes it,
//! until it has closed them or begun its program: one that cannot run, in a frozen cgroup, would hold
//! the locks of an agent that is dead. So a thread holds each lock, in descriptors that it shares with
//! nobody.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::SigSet;
use nix::sys::stat::{major, minor};

use super::error::{FsError, Operation};
use super::syscall::unshare_descriptors;

/// A lock that is held may be that of a process which was just killed and has not ended yet.
const PATIENCE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(20);

/// An exclusive `flock` of a file or directory, until dropped.
#[derive(Debug)]
pub struct Lock {
    thread: Option<JoinHandle<()>>,
    /// Nothing is sent: the thread ends with it.
    release: Option<Sender<Infallible>>,
}

/// The outcome of [`Lock::take`].
#[derive(Debug)]
pub enum Taken {
    Lock(Lock),
    /// Another process holds it for longer than a dying one would: its id, where
    /// `/proc/locks` tells.
    HeldBy(Option<u32>),
}

impl Lock {
    /// Takes the lock of `path`: of a directory as it is, else of a file, which is made. Waits up to
    /// 3 s for another holder.
    pub fn take(path: &Path) -> Result<Taken, FsError> {
        Self::take_within(path, PATIENCE)
    }

    fn take_within(path: &Path, patience: Duration) -> Result<Taken, FsError> {
        let (tell, told) = channel();
        let (release, released) = channel();
        let thread = {
            let path = path.to_owned();
            let hold = move || hold(&path, patience, &tell, &released);
            Builder::new().name("lock".to_owned()).spawn(hold)
        };
        let failed = |e| FsError::new(Operation::Open, path, e);
        let lock = Self {
            thread: Some(thread.map_err(failed)?),
            release: Some(release),
        };
        match told.recv() {
            Ok(Ok(Held::ByUs)) => Ok(Taken::Lock(lock)),
            Ok(Ok(Held::By(pid))) => Ok(Taken::HeldBy(pid)),
            Ok(Err(error)) => Err(error),
            Err(error) => Err(failed(io::Error::other(error))),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.release = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by then.
            thread.join().ok();
        }
    }
}

/// Who holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldBy {
    /// Also where there is nothing to be locked.
    Nobody,
    /// `None`: it is not seen from here.
    Process(Option<u32>),
    /// Nobody can say: whoever keeps the file to himself may hold it.
    Unknown,
}

/// Who holds the lock of `path`, found out without making or keeping anything.
pub fn held_by(path: &Path) -> HeldBy {
    let mut options = OpenOptions::new();
    let file = match options
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(path)
    {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return HeldBy::Unknown,
        Err(_) => return HeldBy::Nobody,
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Err((file, nix::Error::EWOULDBLOCK)) => {
            let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
            let metadata = file.metadata().ok();
            HeldBy::Process(metadata.and_then(|it| holder(&locks, it.dev(), it.ino())))
        }
        Ok(_) | Err(_) => HeldBy::Nobody,
    }
}

/// What the thread of a lock tells.
enum Held {
    ByUs,
    By(Option<u32>),
}

/// The thread of a lock: takes it, tells, and holds it until it is released.
fn hold(
    path: &Path,
    patience: Duration,
    tell: &Sender<Result<Held, FsError>>,
    released: &Receiver<Infallible>,
) {
    // A handler may write to a descriptor that means something else here.
    let alone = SigSet::all().thread_block().map_err(io::Error::from);
    let alone = alone.and_then(|()| unshare_descriptors());
    let taken = match alone {
        Ok(()) => lock(path, patience),
        Err(error) => Err(FsError::new(Operation::Open, path, error)),
    };
    let (held, told) = match taken {
        Ok(Ok(file)) => (Some(file), Ok(Held::ByUs)),
        Ok(Err(holder)) => (None, Ok(Held::By(holder))),
        Err(error) => (None, Err(error)),
    };
    if tell.send(told).is_ok() && held.is_some() {
        // It ends with the sender.
        released.recv().err();
    }
    drop(held);
}

/// The inner error: the process that holds it for longer than `patience`.
fn lock(path: &Path, patience: Duration) -> Result<Result<Flock<File>, Option<u32>>, FsError> {
    let failed = |e| FsError::new(Operation::Open, path, e);
    let mut options = OpenOptions::new();
    // An open of a FIFO would wait for its other end.
    options.custom_flags(nix::libc::O_NONBLOCK);
    match std::fs::metadata(path) {
        Ok(it) if it.is_dir() => options.read(true),
        Ok(it) if !it.is_file() => {
            let error = io::Error::other("it is neither a file nor a directory");
            return Err(failed(error));
        }
        _ => options.create(true).truncate(false).write(true),
    };
    let mut file = match options.open(path) {
        // A lock writes nothing.
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            options.create(false).write(false).read(true).open(path)
        }
        opened => opened,
    }
    .map_err(failed)?;
    let began = Instant::now();
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => return Ok(Ok(file)),
            Err((file, nix::Error::EWOULDBLOCK)) if began.elapsed() < patience => file,
            Err((file, nix::Error::EWOULDBLOCK)) => {
                let metadata = file.metadata().map_err(failed)?;
                let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
                return Ok(Err(holder(&locks, metadata.dev(), metadata.ino())));
            }
            Err((_, error)) => return Err(failed(error.into())),
        };
        thread::sleep(STEP);
    }
}

/// Who holds the `flock` of an inode, by `/proc/locks` (proc_locks(5)):
/// `1: FLOCK  ADVISORY  WRITE 5433 08:01:7864448 0 EOF`.
fn holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let of = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let mut lines = locks.lines().map(|it| it.split_ascii_whitespace());
    lines.find_map(|mut fields| {
        let kind = fields.nth(1)?;
        let pid = fields.nth(2)?.parse().ok()?;
        (kind == "FLOCK" && fields.next()? == of).then_some(pid)
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    fn is_taken(path: &Path) -> bool {
        let taken = Lock::take_within(path, Duration::from_secs(60));
        matches!(taken.unwrap(), Taken::Lock(_))
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let base = Scratch::new("lock");
        for path in [base.directory().to_owned(), base.path("file")] {
            let first = Lock::take(&path).unwrap();
            assert!(matches!(first, Taken::Lock(_)), "{first:?}");
            let second = Lock::take_within(&path, Duration::ZERO).unwrap();
            let Taken::HeldBy(holder) = second else {
                panic!("{second:?}");
            };
            assert!(
                holder.is_none_or(|it| it == std::process::id()),
                "{holder:?}"
            );
            assert!(matches!(held_by(&path), HeldBy::Process(_)));
            drop(first);
            assert_eq!(held_by(&path), HeldBy::Nobody);
            assert!(is_taken(&path));
        }
        assert_eq!(held_by(&base.path("none")), HeldBy::Nobody);
        assert!(!base.path("none").exists());
    }

    #[test]
    fn what_is_no_file_is_refused_at_once() {
        let scratch = Scratch::new("lock");
        let path = scratch.path("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let error = Lock::take(&path).unwrap_err();
        let text = crate::sys::chain(&error);
        assert!(text.ends_with("neither a file nor a directory"), "{text}");
    }

    /// A child gets a copy of the descriptors of the thread that makes it.
    #[test]
    fn no_child_can_share_a_lock() {
        let scratch = Scratch::new("lock");
        let path = scratch.path("own");
        let lock = Lock::take(&path).unwrap();
        let is_it = |it: io::Result<std::fs::DirEntry>| {
            std::fs::read_link(it.unwrap().path()).is_ok_and(|it| it == path)
        };
        let mut own = std::fs::read_dir("/proc/thread-self/fd").unwrap();
        assert!(!own.any(is_it));
        let locks = std::fs::read_to_string("/proc/locks").unwrap();
        let metadata = path.metadata().unwrap();
        let holder = holder(&locks, metadata.dev(), metadata.ino());
        assert_eq!(holder, Some(std::process::id()));
        drop(lock);
    }

    #[test]
    fn a_holder_that_is_about_to_end_is_waited_for() {
        let scratch = Scratch::new("lock");
        let path = scratch.path("end");
        let first = Lock::take(&path).unwrap();
        let ending = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(first);
        });
        assert!(is_taken(&path));
        ending.join().unwrap();
    }

    #[test]
    fn the_holder_is_found_by_device_and_inode() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 08:02:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:01:42 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 08:01:42 0 EOF\n\nx y\n";
        assert_eq!(holder(locks, nix::sys::stat::makedev(8, 1), 42), Some(14));
        assert_eq!(holder(locks, nix::sys::stat::makedev(8, 1), 43), None);
    }
}
