//! What a cgroup does between two readings.

use std::time::Duration;

use crate::model::psi::{Psi, StallShare};
use crate::model::stats::{CgroupStats, DeviceIo, IoCounts};

/// Share of time in which somebody waited, and in which everybody did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::top) struct Stall {
    pub(in crate::cli::top) some: StallShare,
    pub(in crate::cli::top) full: Option<StallShare>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli::top) struct Stalls {
    pub(in crate::cli::top) cpu: Option<Stall>,
    pub(in crate::cli::top) memory: Option<Stall>,
    pub(in crate::cli::top) io: Option<Stall>,
}

/// What a cgroup does. `None`: not known, or not yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::cli::top) struct Activity {
    /// Thousandths of a CPU.
    pub(in crate::cli::top) cpu: Option<u64>,
    /// Working set, bytes.
    pub(in crate::cli::top) memory: Option<u64>,
    pub(in crate::cli::top) stalls: Stalls,
    /// Share of the bandwidth periods in which it had to pause.
    pub(in crate::cli::top) throttled: Option<StallShare>,
    /// Bytes per second.
    pub(in crate::cli::top) read: Option<u64>,
    pub(in crate::cli::top) written: Option<u64>,
    /// Per second.
    pub(in crate::cli::top) page_faults: Option<u64>,
    pub(in crate::cli::top) major_page_faults: Option<u64>,
    /// Threads included.
    pub(in crate::cli::top) n_tasks: Option<u64>,
}

impl Activity {
    /// `before`: an earlier reading of the same path; one of another cgroup is no earlier reading.
    pub(in crate::cli::top) fn between(now: &CgroupStats, before: Option<&CgroupStats>) -> Self {
        let before = before.filter(|it| it.cgroup_id == now.cgroup_id);
        let elapsed = before.and_then(|it| now.at.checked_sub(it.at));
        let elapsed = elapsed.filter(|it| !it.is_zero());
        let span = before.zip(elapsed);
        let rate = |counter: fn(&CgroupStats) -> Option<u64>, per: Duration| {
            let (before, elapsed) = span?;
            let grown = counter(now)?.checked_sub(counter(before)?)?;
            per_time(grown, per, elapsed)
        };
        let second = Duration::from_secs(1);
        let stall = |of: fn(&CgroupStats) -> Option<Psi>| {
            let (before, elapsed) = span?;
            let (before, now) = (of(before)?, of(now)?);
            let some = stalled_share(before.some.total.0, now.some.total.0, elapsed)?;
            let full = before
                .full
                .zip(now.full)
                .and_then(|(before, now)| stalled_share(before.total.0, now.total.0, elapsed));
            Some(Stall { some, full })
        };
        Self {
            // Nanoseconds per second are thousandths of a CPU times a million.
            cpu: rate(|it| it.cpu.usage_ns, Duration::from_micros(1)),
            memory: now.memory.working_set(),
            stalls: Stalls {
                cpu: stall(|it| it.stalls.cpu),
                memory: stall(|it| it.stalls.memory),
                io: stall(|it| it.stalls.io),
            },
            throttled: span.and_then(|(before, _)| throttled_share(before, now)),
            read: rate(|it| all_io(it, |it| it.read), second),
            written: rate(|it| all_io(it, |it| it.written), second),
            page_faults: rate(|it| it.memory.stat.page_faults, second),
            major_page_faults: rate(|it| it.memory.stat.major_page_faults, second),
            n_tasks: now.n_tasks,
        }
    }
}

/// Bytes of all devices; `None`: there is none.
fn all_io(stats: &CgroupStats, of: fn(&DeviceIo) -> IoCounts) -> Option<u64> {
    let bytes = stats.io.iter().map(|it| of(it).bytes);
    bytes.reduce(u64::saturating_add)
}

/// `grown` within `elapsed`, as an amount `per` time, rounded down.
fn per_time(grown: u64, per: Duration, elapsed: Duration) -> Option<u64> {
    let amount = u128::from(grown) * per.as_nanos();
    u64::try_from(amount.checked_div(elapsed.as_nanos())?).ok()
}

/// Growth of a sum of microseconds, as a share of `elapsed`: at most all of it, since the kernel's
/// clock of stalls and that of the readings are two.
fn stalled_share(before: u64, now: u64, elapsed: Duration) -> Option<StallShare> {
    share_of(u128::from(now.checked_sub(before)?), elapsed.as_micros())
}

fn throttled_share(before: &CgroupStats, now: &CgroupStats) -> Option<StallShare> {
    let n_periods = now.cpu.n_periods?.checked_sub(before.cpu.n_periods?)?;
    let n_throttled = now.cpu.n_throttled?.checked_sub(before.cpu.n_throttled?)?;
    match n_periods {
        // It was idle: nothing was held back.
        0 => Some(StallShare(0)),
        _ => share_of(n_throttled.into(), n_periods.into()),
    }
}

/// In hundredths of a percent, at most 100 %; `None` of nothing.
fn share_of(part: u128, whole: u128) -> Option<StallShare> {
    let share = part.saturating_mul(10_000).checked_div(whole)?.min(10_000);
    u32::try_from(share).ok().map(StallShare)
}
