//! A lock that the kernel holds for this process: it goes with the process, however that ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use super::error::{FsError, Operation};

/// A lock that is held may be that of a process which was just killed: a child that it was about to
/// start shares it, and ends when it sees that nobody is there.
const PATIENCE: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(20);

/// An exclusive `flock` of a file or directory, until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: Flock<File>,
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
        let mut options = OpenOptions::new();
        match path.is_dir() {
            true => options.read(true),
            false => options.create(true).truncate(false).write(true),
        };
        let failed = |e| FsError::new(Operation::Open, path, e);
        let mut file = options.open(path).map_err(failed)?;
        let began = Instant::now();
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => return Ok(Taken::Lock(Self { _file: file })),
                Err((file, nix::Error::EWOULDBLOCK)) if began.elapsed() < PATIENCE => file,
                Err((file, nix::Error::EWOULDBLOCK)) => {
                    let metadata = file.metadata().map_err(failed)?;
                    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
                    return Ok(Taken::HeldBy(holder(
                        &locks,
                        metadata.dev(),
                        metadata.ino(),
                    )));
                }
                Err((_, error)) => return Err(failed(error.into())),
            };
            thread::sleep(STEP);
        }
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

    fn is_taken(path: &Path) -> bool {
        matches!(Lock::take(path).unwrap(), Taken::Lock(_))
    }

    #[test]
    fn a_second_lock_is_refused_until_the_first_is_dropped() {
        let base = std::env::temp_dir().join(format!("ballast-lock-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        for path in [base.clone(), base.join("file")] {
            let first = Lock::take(&path).unwrap();
            assert!(matches!(first, Taken::Lock(_)), "{first:?}");
            let second = Lock::take(&path).unwrap();
            let Taken::HeldBy(holder) = second else {
                panic!("{second:?}");
            };
            assert!(
                holder.is_none_or(|it| it == std::process::id()),
                "{holder:?}"
            );
            drop(first);
            assert!(is_taken(&path));
        }
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_holder_that_is_about_to_end_is_waited_for() {
        let path = std::env::temp_dir().join(format!("ballast-lock-end-{}", std::process::id()));
        let first = Lock::take(&path).unwrap();
        let ending = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            drop(first);
        });
        assert!(is_taken(&path));
        ending.join().unwrap();
        std::fs::remove_file(&path).unwrap();
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
