//! What keeps the agent able to act on a node that is short of memory and of CPU time.

use std::io;

use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};

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
