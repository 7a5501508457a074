//! Wall-clock time for people and for documents. Decisions use boottime only.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Microseconds since the Unix epoch, UTC. In text and in JSON: RFC 3339 with six fractional
/// digits, so that equal widths sort as text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WallTime {
    /// At most that of the year 9999, which is as far as RFC 3339 goes.
    epoch_us: i64,
}

impl WallTime {
    /// 9999-12-30T22:00:00Z, the last time that jiff prints in every time zone.
    const LAST_US: i64 = 253_402_207_200_000_000;

    /// From time since the epoch, as `sys::clock::wall` gives it; past year 9999 it saturates.
    pub fn from_epoch(since_epoch: Duration) -> Self {
        let epoch_us = i64::try_from(since_epoch.as_micros()).unwrap_or(Self::LAST_US);
        Self {
            epoch_us: epoch_us.min(Self::LAST_US),
        }
    }

    /// Time since the epoch; zero for times before it.
    pub fn since_epoch(self) -> Duration {
        Duration::from_micros(u64::try_from(self.epoch_us).unwrap_or(0))
    }

    /// From this time to `later`; zero when that is not later.
    pub fn until(self, later: WallTime) -> Duration {
        later.since_epoch().saturating_sub(self.since_epoch())
    }

    /// `age` before this time, not before the epoch.
    pub fn before(self, age: Duration) -> Self {
        Self::from_epoch(self.since_epoch().saturating_sub(age))
    }

    /// `HH:MM:SS.mmm` in UTC, for a column of times of one day.
    pub fn time_of_day(self) -> String {
        let text = self.to_string();
        text.get(11..23).unwrap_or_default().to_owned()
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timestamp = jiff::Timestamp::from_microsecond(self.epoch_us)
            .expect("the constructors keep the time within the years 1970 to 9999");
        write!(f, "{timestamp:.6}")
    }
}

/// The text is not an RFC 3339 time between 1970 and 9999.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a time as 2025-01-31T12:00:00Z")]
pub struct ParseTimeError {
    text: String,
}

impl FromStr for WallTime {
    type Err = ParseTimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let epoch_us = text
            .parse::<jiff::Timestamp>()
            .map(jiff::Timestamp::as_microsecond)
            .ok()
            .filter(|us| (0..=Self::LAST_US).contains(us))
            .ok_or_else(|| ParseTimeError {
                text: text.to_owned(),
            })?;
        Ok(Self { epoch_us })
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_reads_back_and_never_leaves_the_range_that_prints() {
        for (since_epoch, text) in [
            (Duration::ZERO, "1970-01-01T00:00:00.000000Z"),
            (
                Duration::from_micros(1_763_710_000_123_456),
                "2025-11-21T07:26:40.123456Z",
            ),
            (Duration::MAX, "9999-12-30T22:00:00.000000Z"),
        ] {
            let time = WallTime::from_epoch(since_epoch);
            assert_eq!(time.to_string(), text);
            assert_eq!(text.parse(), Ok(time), "{text}");
        }
    }

    #[test]
    fn an_offset_is_converted_and_other_text_is_refused() {
        let utc: Result<WallTime, _> = "2025-01-31T12:00:00Z".parse();
        assert_eq!("2025-01-31T14:00:00+02:00".parse(), utc);
        for text in ["", "yesterday", "1969-12-31T23:59:59Z", "2025-01-31 12"] {
            assert!(text.parse::<WallTime>().is_err(), "{text:?}");
        }
    }
}
