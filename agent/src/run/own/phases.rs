//! How long a pass spends on what.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::Phase;
use crate::sys::clock;

/// Splits the time of one pass: each `end` gives the time since the one before to a phase.
#[derive(Debug)]
pub(super) struct Phases {
    since: Duration,
    spent: BTreeMap<Phase, Duration>,
}

impl Phases {
    pub(super) fn begin() -> Self {
        Self {
            since: clock::boottime(),
            spent: BTreeMap::new(),
        }
    }

    pub(super) fn end(&mut self, phase: Phase) {
        let now = clock::boottime();
        *self.spent.entry(phase).or_default() += now.saturating_sub(self.since);
        self.since = now;
    }

    pub(super) fn count(&self, metrics: &Metrics) {
        for (phase, duration) in &self.spent {
            metrics.loop_phase(*phase, *duration);
        }
    }
}
