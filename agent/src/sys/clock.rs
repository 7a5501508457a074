//! The clocks of the agent.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use super::{FsError, Root};

/// `CLOCK_BOOTTIME`: time since boot, suspend included. Never steps; the clock of every decision
/// and of every kernel event.
pub fn boottime() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME)
        .map(Duration::from)
        .expect("CLOCK_BOOTTIME exists since Linux 2.6.39")
}

/// `CLOCK_MONOTONIC`: as [`boottime`], but it stands still while the node is suspended, as every thread does. For how
/// long one of them has not run.
pub fn monotonic() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(Duration::from)
        .expect("every Linux has CLOCK_MONOTONIC")
}

/// Wall clock as time since the Unix epoch, for people and for Kubernetes objects; 0 before 1970.
pub fn wall() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// CPU time that the calling thread has used; `None`: the kernel does not say.
pub fn thread_cpu() -> Option<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .ok()
        .map(Duration::from)
}

/// The boot that [`boottime`] is of: another one after every boot.
pub fn boot_id() -> Result<String, FsError> {
    let text = Root::host().read_text("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

/// Some part of a pause, so that agents that miss something at one moment do not ask for it at one moment.
pub fn random_part(of: Duration) -> Duration {
    // The last digits of the clock are as good as any.
    of * (boottime().subsec_nanos() % 1000) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_threads_run_is_no_more_than_all_time() {
        let before = monotonic();
        assert!(before <= boottime());
        assert!(before <= monotonic());
    }

    #[test]
    fn a_random_part_is_never_more_than_the_whole() {
        for whole in [0, 1, 30_000].map(Duration::from_millis) {
            assert!((0..100).all(|_| random_part(whole) <= whole), "{whole:?}");
        }
    }
}
