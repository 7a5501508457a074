//! Durations as Kubernetes writes them (Go's `time.ParseDuration`): `1h30m`, `100ms`, `1.5s`.

use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a duration; right would be a number with a unit, as in \"100ms\", \"20s\" or \"1h30m\""
)]
pub struct DurationError {
    text: String,
}

/// Nanoseconds in one unit. Go knows no unit above the hour.
const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3_600 * 1_000_000_000),
];

/// A duration of either sign; digits below a nanosecond are cut off, as Go does.
///
/// `Err` outside the range of Go's type, 292 years.
pub fn parse(text: &str) -> Result<SignedDuration, DurationError> {
    let (is_negative, amount) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let nanoseconds = if amount == "0" {
        Some(0)
    } else {
        sum_of_terms(amount)
    };
    let length = nanoseconds
        .filter(|total| i64::try_from(*total).is_ok())
        .map(Duration::from_nanos)
        .ok_or_else(|| DurationError { text: text.into() })?;
    Ok(if is_negative && !length.is_zero() {
        SignedDuration::Negative(length)
    } else {
        SignedDuration::Positive(length)
    })
}

/// What a duration field may hold before its range is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignedDuration {
    /// Zero included.
    Positive(Duration),
    /// The length, above zero.
    Negative(Duration),
}

fn sum_of_terms(mut rest: &str) -> Option<u64> {
    let mut total: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, nanoseconds) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        total = total.checked_add(term(number, nanoseconds)?)?;
        rest = tail;
    }
    Some(total)
}

/// `number` units of `unit` nanoseconds; at least one digit, at most one point.
fn term(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    // Each digit counts a tenth of the one before. Digits past the nanosecond add nothing.
    let mut value = u128::from(unit);
    let mut scale: u128 = 1;
    let mut below: u128 = 0;
    for digit in fraction.bytes().take(18) {
        scale *= 10;
        below = below * 10 + u128::from(digit - b'0');
    }
    value = value * below / scale;
    whole
        .checked_mul(unit)?
        .checked_add(u64::try_from(value).ok()?)
}

/// The shortest exact text: whole hours, minutes and seconds, then the largest unit without a
/// remainder.
pub fn format(duration: Duration) -> String {
    let nanoseconds = duration.as_nanos();
    if nanoseconds == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    let mut rest = nanoseconds;
    for (unit, size) in [
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
        ("ns", 1),
    ] {
        if rest >= size {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_go_parses_them() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("0s", 0),
            ("100ms", 100_000_000),
            ("1.5h", 5_400_000_000_000),
            ("2h45m", 9_900_000_000_000),
            ("1m30s", 90_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("+5us", 5_000),
            ("1µs", 1_000),
            ("1.0000000009s", 1_000_000_000),
            ("9223372036s", 9_223_372_036_000_000_000),
        ] {
            let right = SignedDuration::Positive(Duration::from_nanos(nanoseconds));
            assert_eq!(parse(text), Ok(right), "{text}");
        }
        let minus = SignedDuration::Negative(Duration::from_secs(1));
        assert_eq!(parse("-1s"), Ok(minus));
        for text in [
            "",
            "-",
            "5",
            "s",
            "1d",
            "1 s",
            "1s2",
            "..5s",
            "1..5s",
            "-0.s.",
            "99999999999h",
            "1e3s",
        ] {
            assert!(parse(text).is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_formatted_duration_parses_to_itself() {
        for nanoseconds in [
            0,
            1,
            999,
            1_000,
            1_500_000,
            90_000_000_000,
            3_600_000_000_001,
        ] {
            let duration = Duration::from_nanos(nanoseconds);
            let text = format(duration);
            assert_eq!(
                parse(&text),
                Ok(SignedDuration::Positive(duration)),
                "{text}"
            );
        }
        assert_eq!(format(Duration::from_secs(90)), "1m30s");
        assert_eq!(format(Duration::from_millis(100)), "100ms");
    }
}
