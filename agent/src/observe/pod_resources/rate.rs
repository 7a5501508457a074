//! How many requests are answered: a bucket of tokens.

use std::time::Duration;

/// Tokens come at a rate up to a most; a request takes one. As Go's `rate.Limiter`.
#[derive(Clone, Debug)]
pub(super) struct TokenBucket {
    interval: Duration,
    burst: u32,
    /// When the bucket is, or was, full again.
    full_at: Duration,
}

impl TokenBucket {
    /// Full at `now`. `per_second` and `burst` are at least 1.
    pub(super) fn new(per_second: u32, burst: u32, now: Duration) -> Self {
        Self {
            interval: Duration::from_secs(1) / per_second,
            burst,
            full_at: now,
        }
    }

    /// Takes a token; false: there is none.
    pub(super) fn take(&mut self, now: Duration) -> bool {
        let full_at = self.full_at.max(now) + self.interval;
        let is_there = full_at <= now + self.interval * self.burst;
        if is_there {
            self.full_at = full_at;
        }
        is_there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_empties_it_and_time_fills_it() {
        let at = |ms| Duration::from_secs(7) + Duration::from_millis(ms);
        let mut bucket = TokenBucket::new(100, 10, at(0));
        let taken =
            |bucket: &mut TokenBucket, ms, n| (0..n).filter(|_| bucket.take(at(ms))).count();
        assert_eq!(taken(&mut bucket, 0, 30), 10);
        assert_eq!(taken(&mut bucket, 9, 30), 0);
        assert_eq!(taken(&mut bucket, 10, 30), 1);
        assert_eq!(taken(&mut bucket, 45, 30), 3);
        assert_eq!(taken(&mut bucket, 10_000, 30), 10, "never above the burst");
        assert_eq!(taken(&mut bucket, 9_000, 1), 0, "a clock that steps back");
    }
}
