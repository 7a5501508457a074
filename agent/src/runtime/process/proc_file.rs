//! What tells a process of a boot for ever: its start.

use std::io;
use std::path::Path;

use crate::model::kernel;
use crate::sys::{FsError, Operation, Root};

/// Clock ticks since boot; [`FsError::Gone`] without such a process.
pub(in crate::runtime) fn start_ticks(pid: u32) -> Result<u64, FsError> {
    let path = format!("/proc/{pid}/stat");
    let stat = Root::host().read_text(&path)?;
    kernel::start_ticks(&stat).ok_or_else(|| {
        let error = io::Error::new(io::ErrorKind::InvalidData, "no field 22, the start time");
        FsError::new(Operation::Read, Path::new(&path), error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_start_within_this_boot() {
        let now = crate::sys::clock::boottime();
        let started = start_ticks(std::process::id()).expect("own stat");
        assert!(u128::from(started) * 10 <= now.as_millis(), "{started}");
        assert_eq!(crate::sys::clock::boot_id().expect("boot id").len(), 36);
    }
}
