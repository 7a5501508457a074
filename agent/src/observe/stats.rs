//! The pages about what cgroups use: `/metrics/cadvisor`, `/metrics/resource`, `/stats/summary`. In:
//! a sweep of readings. Out: text, or a document to serialize.
//!
//! Pure functions, whose cost is that of copying bytes: the labels of a cgroup are rendered once a
//! page, numbers are written as exact decimals, nothing is allocated for a line.
//!
//! Invariant: what was not read has no sample. A family without samples is not mentioned.

mod objects;
mod summary;
pub mod table;
mod text;

use std::ops::Deref;
use std::vec;

pub use self::summary::{Summary, summary};

use self::objects::Objects;
use self::table::Entry;
use self::text::Samples;
use crate::model::stats::StatsSnapshot;
use crate::observe::metrics::Type;

/// How pages in the Prometheus text format are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Every sample of an object carries the time of its reading, as cAdvisor's do; one that has ended
    /// that of the sweep. A server then keeps showing an object for five minutes after its end.
    pub timestamps: bool,
}

/// Appends `/metrics/cadvisor` in the text format 0.0.4; the number of samples is returned.
pub fn cadvisor(snapshot: &StatsSnapshot, options: Options, out: &mut String) -> usize {
    Encoder::cadvisor(snapshot, options).write_rest(out)
}

/// Appends `/metrics/resource` in the text format 0.0.4; the number of samples is returned.
pub fn resource(snapshot: &StatsSnapshot, options: Options, out: &mut String) -> usize {
    Encoder::resource(snapshot, options).write_rest(out)
}

/// A page under way. The page of a thousand containers is 20 MB long: who sends it family by family
/// never holds more than a tenth of it.
pub struct Encoder<S> {
    snapshot: S,
    objects: Objects,
    entries: vec::IntoIter<&'static Entry>,
    n_samples: usize,
}

impl<S: Deref<Target = StatsSnapshot>> Encoder<S> {
    /// `/metrics/cadvisor`.
    pub fn cadvisor(snapshot: S, options: Options) -> Self {
        Self {
            objects: Objects::of_cadvisor(&snapshot, options),
            snapshot,
            entries: table::cadvisor().collect::<Vec<_>>().into_iter(),
            n_samples: 0,
        }
    }

    /// `/metrics/resource`.
    pub fn resource(snapshot: S, options: Options) -> Self {
        Self {
            objects: Objects::of_resource(&snapshot, options),
            snapshot,
            entries: table::resource().collect::<Vec<_>>().into_iter(),
            n_samples: 0,
        }
    }

    /// Appends the next family, which may be nothing; `false`: all have been written.
    pub fn next_family(&mut self, out: &mut String) -> bool {
        let Some(entry) = self.entries.next() else {
            return false;
        };
        let before = out.len();
        text::push_header(out, &entry.family);
        let mut samples = Samples::new(out, entry.family.name);
        // What an ended container had is in its counters; what it has now is nothing, and beside the instance after it
        // a limit or a size would be there twice.
        let is_lasting = entry.family.kind != Type::Gauge;
        let objects = self.objects.iter(&self.snapshot);
        for object in objects.filter(|it| is_lasting || !it.has_ended()) {
            samples.set_object(object.labels, object.stamp);
            (entry.write)(&object, &mut samples);
        }
        let n = samples.n();
        if n == 0 {
            out.truncate(before);
        }
        self.n_samples += n;
        true
    }

    /// Samples written so far.
    pub fn n_samples(&self) -> usize {
        self.n_samples
    }

    fn write_rest(&mut self, out: &mut String) -> usize {
        while self.next_family(out) {}
        self.n_samples
    }
}

#[cfg(test)]
pub(super) mod tests;
