//! When to look at memory, process ids and disks again: soon enough that no leak gets far past a threshold, and seldom
//! where there is room.
//!
//! The gap to the next look is a fraction of the time in which the headroom could be gone, at the
//! rate that is seen or at the one that could begin right now, whichever is greater. Looks that wake
//! sources cause come on top; nothing here depends on them.

use std::time::Duration;

use crate::model::eviction::Observation;

/// A look costs some 30 us, so this bounds the cost at about 3 % of a CPU, and growth past a
/// threshold at 2 MB for a leak of 2 GB/s.
pub const SHORTEST: Duration = Duration::from_millis(1);

/// The same while nothing moves, 0.8 % of a CPU for a node that stays right above a threshold.
pub const SHORTEST_COLD: Duration = Duration::from_millis(4);

/// However much room there is. Kubelet's period.
pub const LONGEST: Duration = Duration::from_secs(10);

/// A threshold that is met was seen; looks go on, to see when it is over.
pub const PAST: Duration = Duration::from_millis(100);

/// Bytes per second that can begin at any time: two CPUs that fault in huge pages. More is possible
/// on large machines, where more CPUs do it at once; so it is a machine filled in eight seconds
/// where that is more.
pub const BURST: u64 = 4 << 30;
const FILLED_IN_SECONDS: u64 = 8;

/// One half: a leak is met by ever shorter gaps, the last of which is the shortest.
const FRACTION: u32 = 2;

/// Time until the next look. `headroom_bytes`: what is available above the nearest threshold, 0 once
/// it is met; `capacity_bytes` of the same signal; `fill_rate`: bytes per second, of late; `is_warm`:
/// a wake source or growth was seen within the last second or so.
pub fn next_gap(
    headroom_bytes: u64,
    capacity_bytes: u64,
    fill_rate: u64,
    is_warm: bool,
) -> Duration {
    if headroom_bytes == 0 {
        return PAST;
    }
    let rate = burst_rate(capacity_bytes).max(fill_rate);
    let left_ns = u128::from(headroom_bytes) * 1_000_000_000 / u128::from(rate);
    let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or(u64::MAX));
    let shortest = match is_warm {
        true => SHORTEST,
        false => SHORTEST_COLD,
    };
    (left / FRACTION).clamp(shortest, LONGEST)
}

/// Tasks per second that can begin at any time: a fork takes 50 us of a CPU at least, and this many
/// take all of several.
const BURST_PIDS: u64 = 50_000;

/// The same for process ids; `headroom`: so many are left above the nearest threshold.
pub fn next_gap_of_pids(headroom: u64) -> Duration {
    if headroom == 0 {
        return PAST;
    }
    let left_ns = u128::from(headroom) * 1_000_000_000 / u128::from(BURST_PIDS);
    let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or(u64::MAX));
    (left / FRACTION).clamp(SHORTEST_COLD, LONGEST)
}

/// A disk is asked in a pass, which reads the whole node.
const SHORTEST_OF_DISK: Duration = Duration::from_secs(1);

/// The same for a disk, at the rate that is seen alone; `headroom` and `fill_rate` in bytes, or in inodes.
pub fn next_gap_of_disk(headroom: u64, fill_rate: u64) -> Duration {
    let left_ns = u128::from(headroom) * 1_000_000_000;
    let Some(left_ns) = left_ns.checked_div(u128::from(fill_rate)) else {
        return LONGEST;
    };
    let left = Duration::from_nanos(u64::try_from(left_ns).unwrap_or(u64::MAX));
    (left / FRACTION).clamp(SHORTEST_OF_DISK, LONGEST)
}

/// Bytes per second that the memory of a machine is taken to fill by at most.
pub fn burst_rate(capacity_bytes: u64) -> u64 {
    BURST.max(capacity_bytes / FILLED_IN_SECONDS)
}

/// Bytes per second by which less became available; 0 where it became more, or no time has passed.
pub fn fill_rate(before: &Observation, now: &Observation) -> u64 {
    let (Some(then), Some(at)) = (before.at, now.at) else {
        return 0;
    };
    let elapsed = at.saturating_sub(then).as_nanos();
    let less = before.available.saturating_sub(now.available);
    let Ok(less) = u128::try_from(less) else {
        return 0;
    };
    let per_second = (less * 1_000_000_000).checked_div(elapsed).unwrap_or(0);
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

/// When less than `wanted` became available, between the last reading above and the first one below, as
/// if it had become less at an even pace. `None`: it did not happen between these two.
pub fn crossing(before: &Observation, now: &Observation, wanted: i64) -> Option<Duration> {
    let (then, at) = (before.at?, now.at?);
    let above = u128::try_from(before.available.checked_sub(wanted)?).ok()?;
    let less = u128::try_from(before.available.checked_sub(now.available)?).ok()?;
    if now.available >= wanted {
        return None;
    }
    let elapsed = at.saturating_sub(then).as_nanos();
    let passed = u64::try_from(elapsed * above / less.max(1)).ok()?;
    Some(then + Duration::from_nanos(passed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;

    fn available(bytes: u64, at: Duration) -> Observation {
        Observation {
            available: i64::try_from(bytes).expect("a test has less"),
            capacity: 0,
            at: Some(at),
        }
    }

    #[test]
    fn a_crossing_is_between_two_readings() {
        let ms = Duration::from_millis;
        let (before, now) = (available(1000, ms(100)), available(600, ms(200)));
        assert_eq!(crossing(&before, &now, 900), Some(ms(125)));
        assert_eq!(crossing(&before, &now, 1000), Some(ms(100)));
        assert_eq!(
            crossing(&before, &now, 601),
            Some(Duration::from_nanos(199_750_000))
        );
        assert_eq!(crossing(&before, &now, 600), None, "not below");
        assert_eq!(crossing(&before, &now, 1001), None, "was below");
        assert_eq!(crossing(&now, &before, 900), None, "became more");
        let unknown = Observation { at: None, ..now };
        assert_eq!(crossing(&before, &unknown, 900), None);
    }

    /// Looks at a leak of a constant rate that begins right after a look, as the watcher would:
    /// time from the crossing to the look that sees it, and the number of looks until then.
    fn look_until_crossed(headroom: u64, capacity: u64, rate: u64) -> (Duration, u32) {
        let left_at = |at: Duration| {
            let gone = u128::from(rate) * at.as_nanos() / 1_000_000_000;
            headroom.saturating_sub(u64::try_from(gone).unwrap_or(u64::MAX))
        };
        let crossing = Duration::from_nanos(
            u64::try_from(u128::from(headroom) * 1_000_000_000 / u128::from(rate))
                .expect("within centuries"),
        );
        let mut at = next_gap(headroom, capacity, 0, false);
        let mut seen = available(headroom, Duration::ZERO);
        let mut n_looks = 1;
        while left_at(at) > 0 {
            let now = available(left_at(at), at);
            let rate = fill_rate(&seen, &now);
            at += next_gap(left_at(at), capacity, rate, rate > 0);
            seen = now;
            n_looks += 1;
        }
        (at.saturating_sub(crossing), n_looks)
    }

    /// Rates from 1 MB/s up to the greatest, and headroom from nothing to all, by a fixed sequence.
    fn stories(capacity: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        (0..2000).map(move |_| {
            let rate = 1_000_000 + next(burst_rate(capacity) - 1_000_000);
            // Small ones as often as large ones.
            let headroom = (1 + next(capacity)) >> next(20);
            (headroom.max(1), rate)
        })
    }

    #[test]
    fn no_leak_gets_past_a_threshold_by_more_than_one_shortest_gap() {
        for capacity in [GI / 2, 24 * GI, 1024 * GI] {
            for (headroom, rate) in stories(capacity) {
                let (late, _) = look_until_crossed(headroom, capacity, rate);
                assert!(
                    late <= SHORTEST_COLD,
                    "{headroom} bytes at {rate} B/s: {late:?} late"
                );
            }
        }
    }

    #[test]
    fn a_gap_ends_before_the_headroom_could_be_gone() {
        for (headroom, rate) in stories(24 * GI) {
            let gap = next_gap(headroom, 24 * GI, 0, true);
            let gone = u128::from(rate) * gap.as_nanos() / 1_000_000_000;
            assert!(
                gap == SHORTEST || gone < u128::from(headroom),
                "{headroom} bytes at {rate} B/s: {gap:?}"
            );
        }
    }

    #[test]
    fn a_leak_from_idle_is_met_within_five_milliseconds_at_little_cost() {
        for rate in [50_000_000, 400_000_000, 2_000_000_000_u32] {
            let (late, n_looks) = look_until_crossed(8 * GI, 24 * GI, u64::from(rate));
            assert!(late < Duration::from_millis(5), "{rate} B/s: {late:?} late");
            // At 30 us each, and 8 GiB to fill.
            let ratio = f64::from(n_looks) * 30e-6 * f64::from(rate) / 8.6e9;
            assert!(
                ratio < 0.005,
                "{rate} B/s: {n_looks} looks, {ratio} of a CPU"
            );
        }
    }

    #[test]
    fn an_idle_node_is_looked_at_a_few_times_a_second_at_most() {
        for (headroom, capacity, seconds) in [
            (4 * GI, 24 * GI, 0.5),
            (16 * GI, 24 * GI, 2.0),
            (128 * GI, 256 * GI, 2.0),
            (4 * GI, 1 << 20, 0.5),
        ] {
            let gap = next_gap(headroom, capacity, 0, false);
            assert!((gap.as_secs_f64() - seconds).abs() < 1e-6, "{gap:?}");
        }
    }

    #[test]
    fn every_gap_is_within_its_bounds() {
        for headroom in [0, 1, GI, u64::MAX] {
            for capacity in [0, GI, u64::MAX] {
                for rate in [0, GI, u64::MAX] {
                    for (is_warm, shortest) in [(true, SHORTEST), (false, SHORTEST_COLD)] {
                        let gap = next_gap(headroom, capacity, rate, is_warm);
                        assert!((shortest..=LONGEST).contains(&gap), "{gap:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_disk_that_fills_fast_is_looked_at_again_while_there_is_room() {
        for (headroom, rate, seconds) in [
            (8 * GI, 0, 10),
            (8 * GI, GI / 10, 10),
            (8 * GI, GI, 4),
            (8 * GI, 2 * GI, 2),
            (GI, 2 * GI, 1),
            (0, GI, 1),
            (u64::MAX, 1, 10),
            (u64::MAX, u64::MAX, 1),
            // Inodes.
            (1_000_000, 100_000, 5),
        ] {
            let gap = next_gap_of_disk(headroom, rate);
            assert_eq!(gap, Duration::from_secs(seconds), "{headroom} at {rate}");
        }
    }

    #[test]
    fn a_rate_is_what_became_less() {
        let at = |ms| Duration::from_millis(ms);
        let before = available(3 * GI, at(1000));
        assert_eq!(fill_rate(&before, &available(2 * GI, at(1500))), 2 * GI);
        assert_eq!(fill_rate(&before, &available(4 * GI, at(1500))), 0);
        assert_eq!(fill_rate(&before, &available(0, at(1000))), 0);
        assert_eq!(fill_rate(&before, &available(0, at(1))), 0);
    }
}
