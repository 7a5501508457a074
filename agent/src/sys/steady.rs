//! What keeps the agent able to act on a node that is full, and short of memory and of CPU time.

use std::io;

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

/// How many descriptors this process may have now.
pub fn max_open_files() -> io::Result<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(soft)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_once() {
        let raised = raise_open_files().unwrap();
        let limits = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert_eq!(limits, (raised.now, raised.now));
        let again = raise_open_files().unwrap();
        assert_eq!((again.before, again.now), (raised.now, raised.now));
    }
}
