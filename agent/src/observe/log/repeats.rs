//! Keeps warnings and errors that repeat out of the log: a disk that is full or a pod that cannot start
//! fails the same way many times a second, and the first line says it all.
//!
//! A line is a repetition if the same place in the code logged the same fields within [`QUIET`]. A place
//! that logs ever different fields has a bound too. What is left out is counted, never in silence.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::sys::clock;

/// A repetition is written again after this time, so that a log of the last minutes still shows it.
const QUIET: Duration = Duration::from_secs(60);
/// Different lines of one place within [`QUIET`]: enough for each pod of a usual node to fail once.
const MOST_OF_PLACE: usize = 50;

static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Lines that were left out since the last call.
pub fn take_left_out() -> u64 {
    LEFT_OUT.swap(0, Ordering::Relaxed)
}

/// See the module.
#[derive(Default)]
pub(super) struct Repeats {
    places: Mutex<BTreeMap<usize, Place>>,
}

/// What one place in the code logged lately.
#[derive(Debug, Default)]
struct Place {
    begin: Duration,
    lines: Vec<String>,
}

impl Place {
    /// Whether a line is new within the time since `begin`.
    fn takes(&mut self, line: String, now: Duration) -> bool {
        if now.saturating_sub(self.begin) >= QUIET {
            self.begin = now;
            self.lines.clear();
        }
        let is_new = self.lines.len() < MOST_OF_PLACE && !self.lines.contains(&line);
        if is_new {
            self.lines.push(line);
        }
        is_new
    }
}

impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return true;
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let place = places.entry(place_of(metadata)).or_default();
        let is_new = place.takes(line.0, clock::boottime());
        if !is_new {
            LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        }
        is_new
    }
}

/// There are as many as the code has, so a map of them stays small.
fn place_of(metadata: &Metadata<'_>) -> usize {
    let Identifier(callsite) = metadata.callsite();
    std::ptr::from_ref(callsite).cast::<()>().addr()
}

/// The fields of an event, one after the other.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        write!(self.0, "{}={value:?} ", field.name()).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_once_a_minute() {
        let mut place = Place::default();
        let at = |secs: u64| Duration::from_secs(1000 + secs);
        assert!(place.takes("a".to_owned(), at(0)));
        assert!(place.takes("b".to_owned(), at(1)));
        assert!(!place.takes("a".to_owned(), at(59)));
        assert!(place.takes("a".to_owned(), at(60)));
        assert!(!place.takes("a".to_owned(), at(61)));
    }

    #[test]
    fn ever_different_lines_have_a_bound() {
        let mut place = Place::default();
        let at = Duration::from_secs(1000);
        let n_taken = (0..500).filter(|i| place.takes(i.to_string(), at)).count();
        assert_eq!(n_taken, MOST_OF_PLACE);
    }

    #[test]
    fn information_is_never_left_out() {
        use tracing_subscriber::layer::SubscriberExt;
        #[derive(Default)]
        struct Count(std::sync::Arc<AtomicU64>);
        impl<S: Subscriber> Layer<S> for Count {
            fn on_event(&self, _event: &Event<'_>, _context: Context<'_, S>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let n_written = std::sync::Arc::new(AtomicU64::new(0));
        let subscriber = tracing_subscriber::registry()
            .with(Repeats::default())
            .with(Count(n_written.clone()));
        take_left_out();
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..10 {
                tracing::info!(pod = "a", "starts");
                tracing::error!(pod = "a", "the disk is full");
            }
        });
        assert_eq!(n_written.load(Ordering::Relaxed), 10 + 1);
        assert_eq!(take_left_out(), 9);
    }
}
