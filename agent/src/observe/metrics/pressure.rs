//! How long tasks wait, and what wakes the watcher.
//!
//! Stalled time is a count of the kernel that the agent repeats. Shares and episodes are made from
//! it here, over a window of a second: the shortest average of the kernel is over ten.

use std::collections::BTreeMap;
use std::time::Duration;

use super::labels::{MEMORY_METHODS, PressureResource, PressureScope, ReclaimCause};
use super::{Metrics, lock, observe, risen, set_count};
use crate::model::eviction::{StallSource, StallTotals, WakeSource};
use crate::model::status::PressureStatus;

/// A share is taken over at least this long.
const WINDOW: Duration = Duration::from_secs(1);

/// Share of time in which some task waits from which on it is an episode. Arbitrary, a little below
/// the 15 % of the example in Documentation/accounting/psi.rst.
const EPISODE_RATIO: f64 = 0.1;

/// Windows by what is waited for and by whom.
pub(super) type Windows = BTreeMap<(PressureResource, PressureScope), StallWindow>;

/// Stalled time since the window began.
#[derive(Clone, Copy, Debug)]
pub(super) struct StallWindow {
    begin: StallTotals,
    began_at: Duration,
    last: StallTotals,
    episode_began_at: Option<Duration>,
}

/// Shares of a window that is over, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Shares {
    some: f64,
    full: Option<f64>,
}

impl StallWindow {
    fn new(totals: StallTotals, now: Duration) -> Self {
        Self {
            begin: totals,
            began_at: now,
            last: totals,
            episode_began_at: None,
        }
    }

    /// Whether `totals` go on from the last ones; the totals of a cgroup made again do not.
    fn goes_on(&self, totals: &StallTotals) -> bool {
        self.last.source == totals.source && self.last.some_us <= totals.some_us
    }

    /// Ends the window and begins the next, if it is long enough.
    fn shares(&mut self, now: Duration) -> Option<Shares> {
        let length = now.saturating_sub(self.began_at);
        if length < WINDOW {
            return None;
        }
        let share = |begin: u64, end: u64| {
            let waited = Duration::from_micros(end.saturating_sub(begin));
            // The clock of the stalls and that of the reading are not the same.
            waited.div_duration_f64(length).min(1.0)
        };
        let full = self.begin.full_us.zip(self.last.full_us);
        let shares = Shares {
            some: share(self.begin.some_us, self.last.some_us),
            full: full.map(|(begin, end)| share(begin, end)),
        };
        (self.begin, self.began_at) = (self.last, now);
        Some(shares)
    }
}

impl Metrics {
    pub(super) fn begin_pressure(&self) {
        for it in WakeSource::ALL {
            self.shared
                .pressure
                .wakeups
                .with_label_values(&[it.as_str()]);
        }
        for it in ReclaimCause::ALL {
            let family = &self.shared.memory.reclaimed;
            family.with_label_values(&[it.as_str()]);
        }
        for it in PressureResource::ALL {
            let family = &self.shared.pressure.episode;
            family.with_label_values(&[it.as_str()]);
        }
    }

    /// What the watcher knows of pressure: memory stalls, available memory and signals. What is
    /// not in it is not shown any longer. `now` is boottime.
    pub fn set_pressure(&self, status: &PressureStatus, now: Duration) {
        for scope in PressureScope::ALL.iter().copied() {
            match status.stalls.get(scope.as_str()) {
                Some(totals) => self.set_stall(PressureResource::Memory, scope, totals, now),
                None => self.end_stall(PressureResource::Memory, scope, now),
            }
        }
        let available = &self.shared.memory.available;
        for (method, name) in MEMORY_METHODS {
            match status.memory_available.get(&method) {
                Some(bytes) => set_count(available, &[name], *bytes),
                None => available.remove(&[name]),
            }
        }
        self.set_signals(&status.signals);
    }

    /// Stalled time since boot or since the cgroup was made. One caller for each pair of resource
    /// and scope, so that readings come in their order. `now` is boottime.
    pub fn set_stall(
        &self,
        resource: PressureResource,
        scope: PressureScope,
        totals: &StallTotals,
        now: Duration,
    ) {
        let mut windows = lock(&self.shared.stalls);
        let known = windows.get(&(resource, scope)).copied();
        let (mut window, before) = match known {
            Some(window) if window.goes_on(totals) => (window, Some(window.last)),
            Some(window) => {
                self.end_episode(resource, window, now);
                (StallWindow::new(*totals, now), None)
            }
            None => (StallWindow::new(*totals, now), None),
        };
        window.last = *totals;
        self.count_stall(resource, scope, before, totals);
        if totals.source == StallSource::Psi
            && let Some(shares) = window.shares(now)
        {
            self.show_shares(resource, scope, shares);
            let is_episode = shares.some >= EPISODE_RATIO;
            if is_episode && window.episode_began_at.is_none() {
                window.episode_began_at = Some(now);
                let labels = [resource.as_str(), scope.as_str()];
                let episodes = &self.shared.pressure.episodes;
                episodes.with_label_values(&labels).inc();
            }
            if !is_episode {
                self.end_episode(resource, window, now);
                window.episode_began_at = None;
            }
        }
        windows.insert((resource, scope), window);
    }

    fn count_stall(
        &self,
        resource: PressureResource,
        scope: PressureScope,
        before: Option<StallTotals>,
        totals: &StallTotals,
    ) {
        let Self { shared } = self;
        let count = |kind: &str, before: Option<u64>, total_us: u64| {
            let labels = [resource.as_str(), kind, scope.as_str()];
            let more = Duration::from_micros(risen(before, total_us));
            let counter = shared.pressure.stall.with_label_values(&labels);
            counter.inc_by(more.as_secs_f64());
        };
        let kind = match totals.source {
            StallSource::Psi => "some",
            StallSource::Reclaim => "reclaim",
        };
        count(kind, before.map(|it| it.some_us), totals.some_us);
        if let Some(full_us) = totals.full_us {
            count("full", before.and_then(|it| it.full_us), full_us);
        }
        if totals.source == StallSource::Psi {
            let labels = [resource.as_str(), scope.as_str()];
            shared.pressure.episodes.with_label_values(&labels);
        }
    }

    fn show_shares(&self, resource: PressureResource, scope: PressureScope, shares: Shares) {
        let family = &self.shared.pressure.ratio;
        for (kind, share) in [("some", Some(shares.some)), ("full", shares.full)] {
            let labels = [resource.as_str(), kind, scope.as_str()];
            match share {
                Some(share) => family.with_label_values(&labels).set(share),
                None => family.remove(&labels),
            }
        }
    }

    /// There is no reading any more: the count stays, the share goes.
    fn end_stall(&self, resource: PressureResource, scope: PressureScope, now: Duration) {
        let window = lock(&self.shared.stalls).remove(&(resource, scope));
        if let Some(window) = window {
            self.end_episode(resource, window, now);
        }
        for kind in ["some", "full"] {
            let labels = [resource.as_str(), kind, scope.as_str()];
            self.shared.pressure.ratio.remove(&labels);
        }
    }

    fn end_episode(&self, resource: PressureResource, window: StallWindow, now: Duration) {
        if let Some(began_at) = window.episode_began_at {
            let length = now.saturating_sub(began_at);
            let family = &self.shared.pressure.episode;
            observe(family, &[resource.as_str()], length);
        }
    }

    pub fn pressure_wakeup(&self, source: WakeSource) {
        let family = &self.shared.pressure.wakeups;
        family.with_label_values(&[source.as_str()]).inc();
    }
}
