//! Events that were lost, and when they are put on record: of a storm that goes on once a minute, not every second.
//!
//! Invariant: the first loss of a stream is on record at once, and every other one is in the number of the next record.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::sources::bpf::Stream;

/// Between two records of one stream. The log keeps them beside OOM kills, and workloads alone decide how long a storm
/// lasts.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<Stream, Untold>);

#[derive(Debug, Default)]
struct Untold {
    n: u64,
    /// When they may be told, boottime.
    due: Duration,
}

impl Losses {
    /// So many events of a stream were lost.
    pub(super) fn add(&mut self, stream: Stream, n: u64) {
        self.0.entry(stream).or_default().n += n;
    }

    /// Those that are to be told now.
    pub(super) fn take_due(&mut self, now: Duration) -> Vec<(Stream, u64)> {
        let all = self.0.iter_mut();
        let due = all.filter(|(_, it)| it.n > 0 && now >= it.due);
        due.map(|(stream, it)| {
            it.due = now + TOLD_EVERY;
            (*stream, std::mem::take(&mut it.n))
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else an hour of it would push every OOM kill out of the log.
    #[test]
    fn a_storm_is_told_at_once_and_then_once_a_minute_with_all_that_was_lost() {
        let mut losses = Losses::default();
        let mut told = Vec::new();
        for second in 0..=120 {
            let now = Duration::from_secs(1_000 + second);
            losses.add(Stream::Process, 2);
            if second == 30 {
                losses.add(Stream::Stall, 7);
            }
            let due = losses.take_due(now);
            told.extend(due.into_iter().map(|(stream, n)| (second, stream, n)));
        }
        let right = [
            (0, Stream::Process, 2),
            (30, Stream::Stall, 7),
            (60, Stream::Process, 120),
            (120, Stream::Process, 120),
        ];
        assert_eq!(told, right);
        assert_eq!(losses.take_due(Duration::from_secs(2_000)), []);
    }
}
