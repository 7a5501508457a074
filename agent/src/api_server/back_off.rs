//! How long it is waited before the API server is tried again.

use std::time::Duration;

use crate::sys::clock;

/// The longest wait, at first and at last. All agents of a cluster miss its API server at one moment, so each waits
/// for a random part of it.
const FIRST: Duration = Duration::from_millis(800);
const LAST: Duration = Duration::from_secs(30);

/// Twice as long each time.
pub(super) struct BackOff {
    longest: Duration,
}

impl BackOff {
    pub(super) fn new() -> Self {
        Self { longest: FIRST }
    }

    /// What was tried went well.
    pub(super) fn reset(&mut self) {
        self.longest = FIRST;
    }

    /// `least`: what was asked for.
    pub(super) async fn wait(&mut self, least: Duration) {
        tokio::time::sleep(least.max(clock::random_part(self.longest))).await;
        self.longest = (self.longest * 2).min(LAST);
    }
}
