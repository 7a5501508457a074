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

pub use self::summary::{Summary, summary};

use self::objects::Objects;
use self::table::Entry;
use self::text::Page;
use crate::model::stats::StatsSnapshot;

/// How pages in the Prometheus text format are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Every sample of an object carries the time of its reading, as cAdvisor's do. A server then
    /// keeps showing an object for five minutes after its end.
    pub timestamps: bool,
}

/// Appends `/metrics/cadvisor` in the text format 0.0.4; the number of samples is returned.
pub fn cadvisor(snapshot: &StatsSnapshot, options: Options, out: &mut String) -> usize {
    let objects = Objects::of_cadvisor(snapshot, options);
    write_page(table::cadvisor(), &objects, out)
}

/// Appends `/metrics/resource` in the text format 0.0.4; the number of samples is returned.
pub fn resource(snapshot: &StatsSnapshot, options: Options, out: &mut String) -> usize {
    let objects = Objects::of_resource(snapshot, options);
    write_page(table::resource(), &objects, out)
}

fn write_page(
    entries: impl Iterator<Item = &'static Entry>,
    objects: &Objects<'_>,
    out: &mut String,
) -> usize {
    let mut page = Page::new(out);
    for entry in entries {
        page.begin(&entry.family);
        for object in objects.iter() {
            let mut samples = page.samples(objects.labels(object), objects.stamp(object));
            (entry.write)(object, &mut samples);
        }
        page.end();
    }
    page.n_samples()
}
