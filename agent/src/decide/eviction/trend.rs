//! How fast a figure moves, from two readings of it, and when it arrives.

use std::time::Duration;

/// A figure at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub at: Duration,
    pub value: i64,
}

/// What a figure gains in `span` at the pace between two readings; below 0 where it falls. `None`
/// unless `now` is later than `before`.
pub fn gain_within(before: Point, now: Point, span: Duration) -> Option<i64> {
    let elapsed = now.at.checked_sub(before.at)?.as_nanos();
    let moved = i128::from(now.value) - i128::from(before.value);
    let gain = moved.saturating_mul(i128::try_from(span.as_nanos()).unwrap_or(i128::MAX));
    let gain = gain.checked_div(i128::try_from(elapsed).ok()?)?;
    Some(i64::try_from(gain).unwrap_or(if gain < 0 { i64::MIN } else { i64::MAX }))
}

/// How long until a figure has fallen by `distance` at the pace between two readings; zero where
/// `distance` is not above 0. `None` where it does not fall, or `now` is not later than `before`.
pub fn time_to_fall(before: Point, now: Point, distance: i64) -> Option<Duration> {
    let elapsed = now.at.checked_sub(before.at)?.as_nanos();
    let fallen = i128::from(before.value) - i128::from(now.value);
    if elapsed == 0 || fallen <= 0 {
        return None;
    }
    let fallen = fallen.unsigned_abs();
    let distance = u128::try_from(distance).unwrap_or(0);
    let nanos = distance.saturating_mul(elapsed) / fallen;
    Some(Duration::from_nanos(
        u64::try_from(nanos).unwrap_or(u64::MAX),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, value: i64) -> Point {
        Point {
            at: Duration::from_secs(seconds),
            value,
        }
    }

    #[test]
    fn a_figure_that_falls_arrives_when_its_pace_says() {
        let time = |before, now, distance| time_to_fall(before, now, distance);
        let seconds = |n| Some(Duration::from_secs(n));
        assert_eq!(time(at(0, 300), at(10, 200), 200), seconds(20));
        assert_eq!(time(at(0, 300), at(10, 200), 0), seconds(0));
        assert_eq!(time(at(0, 300), at(10, 200), -5), seconds(0));
        assert_eq!(time(at(0, 200), at(10, 200), 100), None);
        assert_eq!(time(at(0, 200), at(10, 300), 100), None);
        // No time has passed, or it ran backwards: no pace.
        assert_eq!(time(at(10, 300), at(10, 200), 100), None);
        assert_eq!(time(at(11, 300), at(10, 200), 100), None);
        assert_eq!(
            time(at(0, i64::MAX), at(u64::MAX, i64::MAX - 1), i64::MAX),
            Some(Duration::from_nanos(u64::MAX))
        );
    }

    #[test]
    fn a_gain_is_in_proportion_and_never_overflows() {
        let span = Duration::from_secs(5);
        assert_eq!(gain_within(at(0, 100), at(10, 300), span), Some(100));
        assert_eq!(gain_within(at(0, 300), at(10, 100), span), Some(-100));
        assert_eq!(gain_within(at(10, 300), at(10, 100), span), None);
        let extreme = gain_within(at(0, i64::MIN), at(1, i64::MAX), Duration::MAX);
        assert_eq!(extreme, Some(i64::MAX));
    }
}
