//! Signals that ask this program to end: it ends what it has started first, and has the machine until then.
//!
//! Invariant: where they are listened to, whatever waits for long asks whether one has come.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

static HAS_COME: AtomicBool = AtomicBool::new(false);

/// From now on they no longer end this program by themselves. Those that it was started to ignore, as by `nohup`, stay
/// ignored.
pub(crate) fn listen() -> Result<()> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let ignored = ignored(&status);
    let runtime = Builder::new_current_thread()
        .enable_io()
        .build()
        .context("listen to signals")?;
    for kind in [
        SignalKind::hangup(),
        SignalKind::interrupt(),
        SignalKind::terminate(),
    ] {
        if ignored & (1_u64 << (kind.as_raw_value() - 1)) != 0 {
            continue;
        }
        let _entered = runtime.enter();
        let mut signals = signal(kind).context("listen to signals")?;
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                HAS_COME.store(true, Ordering::Relaxed);
            }
        });
    }
    thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    Ok(())
}

/// A bit for each signal, the first for number 1: `SigIgn` of `/proc/PID/status`.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    mask.unwrap_or_default()
}

pub(crate) fn has_come() -> bool {
    HAS_COME.load(Ordering::Relaxed)
}

/// Fails once one has come: nothing is begun any more, and nothing waited for.
pub(crate) fn check() -> Result<()> {
    ensure!(!has_come(), "ended by a signal");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nohup_ignores_is_told_by_the_kernel() {
        let status = "Name:\txtask\nSigBlk:\tffff\nSigIgn:\t0000000000001001\nSigCgt:\t4002\n";
        assert_eq!(ignored(status), (1 << 12) | 1);
        assert_eq!(ignored("Name:\txtask\n"), 0);
    }
}
