//! What keeps the agent able to act on a node that is full, and short of memory and of CPU time.

use std::error::Error;
use std::{fs, io};

use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Above all that does not say otherwise; the kernel's own threads and real-time tasks still go
/// first.
const NICE: i32 = -20;

/// Keeps what is mapped now, the program itself above all, in memory once it has been used: a node
/// that is short of memory drops the pages of programs first, and would read them back from a disk
/// just when it is to be relieved (Linux 4.4, `mlock2(2)`).
///
/// What is mapped later is left alone: where `RLIMIT_MEMLOCK` counts, locking that too would make
/// later allocations fail. Fails there as well, and without harm.
pub fn lock_memory() -> io::Result<()> {
    let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    mlockall(flags).map_err(io::Error::from)
}

/// Lets the calling thread go before others that want the CPU: the processes that it kills want it
/// too, hundreds at once. Without `CAP_SYS_NICE` it fails, and without harm.
pub fn raise_priority() -> io::Result<()> {
    // On Linux a nice value belongs to a thread, and no pid means the one that asks (sched(7)).
    rustix::process::setpriority_process(None, NICE).map_err(io::Error::from)
}

/// Limits of open files of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    /// The soft limit that it was started with: the one for the programs that it starts, since some
    /// take every descriptor up to the limit for one of theirs.
    pub before: u64,
    /// Soft and hard limit.
    pub now: u64,
}

/// Raises the soft limit of open files to the hard one: ten files of each pod and container of a
/// full node are more than the 1024 that are common.
pub fn raise_open_files() -> io::Result<OpenFiles> {
    let (before, now) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if before < now {
        setrlimit(Resource::RLIMIT_NOFILE, now, now)?;
    }
    Ok(OpenFiles { before, now })
}

/// Soft and hard limit of the memory that this process may lock, bytes.
pub fn locked_memory() -> io::Result<(u64, u64)> {
    Ok(getrlimit(Resource::RLIMIT_MEMLOCK)?)
}

/// How many descriptors this process may have now.
pub fn max_open_files() -> io::Result<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(soft)
}

/// How many descriptors this process has. The kernel tells since Linux 6.2; before, they are counted.
pub fn open_files() -> io::Result<u64> {
    const OWN: &str = "/proc/self/fd";
    let n_open = fs::metadata(OWN)?.len();
    if n_open > 0 {
        return Ok(n_open);
    }
    let mut n_open = 0;
    for entry in fs::read_dir(OWN)? {
        entry?;
        n_open += 1;
    }
    Ok(n_open)
}

/// The agent lacks descriptors, which may be there later. Told by the first cause of `error`.
pub fn is_lack(error: &(dyn Error + 'static)) -> bool {
    matches!(first_cause(error), Some(libc::EMFILE | libc::ENFILE))
}

/// A disk is full, or a quota of it. Told by the first cause of `error`.
pub fn lacks_room(error: &(dyn Error + 'static)) -> bool {
    matches!(first_cause(error), Some(libc::ENOSPC | libc::EDQUOT))
}

/// The kernel lacks room or ids, which it may have later. Told by the first cause of `error`. Memory is no such thing: a
/// cgroup may lack it for its own limit.
pub fn is_short(error: &(dyn Error + 'static)) -> bool {
    lacks_room(error) || first_cause(error) == Some(libc::EAGAIN)
}

fn first_cause(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let errno = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error);
        if errno.is_some() {
            return errno;
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sys::FsError;
    use crate::sys::error::Operation;

    #[test]
    fn a_lack_is_known_by_its_first_cause() {
        let failed = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            FsError::new(Operation::Open, Path::new("/dev/null"), error)
        };
        assert!(is_lack(&failed(libc::EMFILE)));
        assert!(is_lack(&io::Error::from_raw_os_error(libc::ENFILE)));
        assert!(!is_lack(&failed(libc::ENOMEM)) && !is_short(&failed(libc::ENOMEM)));
        assert!(is_short(&failed(libc::ENOSPC)) && !is_short(&failed(libc::EINVAL)));
    }

    #[test]
    fn open_files_are_counted_whatever_their_numbers() {
        let file = || fs::File::open("/dev/null").unwrap();
        let before = open_files().unwrap();
        let mut held: Vec<_> = (0..300).map(|_| file()).collect();
        // Holes.
        held.drain(..150);
        let n_more = open_files().unwrap().saturating_sub(before);
        // Other tests open and close theirs meanwhile.
        assert!((100..200).contains(&n_more), "{n_more}");
    }

    #[test]
    fn the_limit_of_open_files_is_raised_once() {
        let raised = raise_open_files().unwrap();
        let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(limits, (raised.now, raised.now));
        let again = raise_open_files().unwrap();
        assert_eq!((again.before, again.now), (raised.now, raised.now));
    }
}
