//! The two facts of `/proc` that tell a process for ever: the boot, and the start.

use std::io;
use std::path::Path;

use crate::sys::{FsError, Operation, Root};

/// Another one after every boot.
pub(super) fn boot_id() -> Result<String, FsError> {
    let text = Root::host().read_text("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// Clock ticks since boot; [`FsError::Gone`] without such a process.
pub(in crate::runtime) fn start_ticks(pid: u32) -> Result<u64, FsError> {
    let path = format!("/proc/{pid}/stat");
    let stat = Root::host().read_text(&path)?;
    parse_start_ticks(&stat).ok_or_else(|| {
        let error = io::Error::new(io::ErrorKind::InvalidData, "no field 22, the start time");
        FsError::new(Operation::Read, Path::new(&path), error)
    })
}

/// Field 22 (proc_pid_stat(5)). Field 2, the name, is in parentheses and may hold anything,
/// parentheses and spaces too.
fn parse_start_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    after_name.split(' ').nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let rest = "S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 8123 1000 200";
        for (name, want) in [
            ("sh", Some(8123)),
            ("a) (b", Some(8123)),
            (") S 1 2", Some(8123)),
        ] {
            assert_eq!(parse_start_ticks(&format!("7 ({name}) {rest}")), want);
        }
        for stat in [
            "",
            "7 (sh",
            "7 (sh) S 1 7",
            "7 (sh) S 1 7 7 0 -1 x 1 2 3 4 5 6 7 8 20 0 1 0 x",
        ] {
            assert_eq!(parse_start_ticks(stat), None, "{stat:?}");
        }
    }

    #[test]
    fn this_process_has_a_start_within_this_boot() {
        let now = crate::sys::clock::boottime();
        let started = start_ticks(std::process::id()).expect("own stat");
        assert!(u128::from(started) * 10 <= now.as_millis(), "{started}");
        assert_eq!(boot_id().expect("boot id").len(), 36);
    }
}
