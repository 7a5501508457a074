//! The agent's own memory.

use std::io;

use nix::libc;
use nix::sys::mman::{MlockAllFlags, mlockall};

/// Keeps what is mapped now, the program itself above all, in memory once it has been used: a node
/// that is short of memory drops the pages of programs first, and would read them back from a disk
/// just when it is to be relieved (Linux 4.4, `mlock2(2)`).
///
/// What is mapped later is left alone: where `RLIMIT_MEMLOCK` counts, locking that too would make
/// later allocations fail. Fails there as well, and without harm.
pub fn lock() -> io::Result<()> {
    let flags = MlockAllFlags::MCL_CURRENT | MlockAllFlags::from_bits_retain(libc::MCL_ONFAULT);
    mlockall(flags).map_err(io::Error::from)
}
