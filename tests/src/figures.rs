//! What two programs say about the same cgroups, compared.
//!
//! A figure is what a page says in the family of one name about one cgroup. Labels that only tell
//! whose the cgroup is (`pod`, `image`, ...) are not part of it: a program that knows no pods has
//! none.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::exposition::Exposition;

const IDENTITY: [&str; 5] = ["container", "image", "name", "namespace", "pod"];

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Figure {
    pub family: String,
    /// Path of the cgroup from the mount.
    pub id: String,
    /// Such as `failure_type`, by name.
    pub labels: BTreeMap<String, String>,
}

impl Figure {
    pub fn new(family: &str, id: &str, labels: &[(&str, &str)]) -> Self {
        Self {
            family: family.to_owned(),
            id: id.to_owned(),
            labels: labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{id={:?}", self.family, self.id)?;
        for (key, value) in &self.labels {
            write!(f, ",{key}={value:?}")?;
        }
        f.write_str("}")
    }
}

pub type Figures = BTreeMap<Figure, f64>;

/// The figures of a page about the cgroups `ids`. CPU time that is told by CPU becomes the sum.
pub fn of_page(page: &Exposition, ids: &BTreeSet<String>) -> Figures {
    let mut figures = Figures::new();
    for (series, sample) in &page.samples {
        let Some(id) = series.labels.get("id").filter(|it| ids.contains(*it)) else {
            continue;
        };
        let mut labels = series.labels.clone();
        labels.remove("id");
        labels.retain(|key, _| !IDENTITY.contains(&key.as_str()));
        if let Some(cpu) = labels.get_mut("cpu") {
            "total".clone_into(cpu);
        }
        let figure = Figure {
            family: series.name.clone(),
            id: id.clone(),
            labels,
        };
        *figures.entry(figure).or_default() += sample.value;
    }
    figures
}

/// What was said about a cgroup, and when: seconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub begun: f64,
    pub ended: f64,
    pub figures: Figures,
}

/// What a page says about each of these cgroups, read when `at` says; those without a time are left
/// out.
pub fn readings(
    page: &Exposition,
    ids: &BTreeSet<String>,
    at: impl Fn(&str) -> Option<f64>,
) -> BTreeMap<String, Reading> {
    let ids = ids.iter().filter_map(|id| {
        let at = at(id)?;
        let reading = Reading {
            begun: at,
            ended: at,
            figures: of_page(page, &BTreeSet::from([id.clone()])),
        };
        Some((id.clone(), reading))
    });
    ids.collect()
}

/// The readings, in the order of time, from the last that was over by `from` to the first that began
/// after `to`; `None`: there is none on one of the sides.
pub fn around(readings: &[Reading], from: f64, to: f64) -> Option<&[Reading]> {
    let first = readings.iter().rposition(|it| it.ended <= from)?;
    let last = readings.iter().position(|it| it.begun >= to)?;
    readings.get(first..=last)
}

/// How one page differs from what it should say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Difference {
    /// Every reading has it.
    Absent {
        low: f64,
        high: f64,
    },
    /// No reading has it.
    Extra {
        found: f64,
    },
    Outside {
        found: f64,
        low: f64,
        high: f64,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { low, high } => write!(f, "absent, expected {low} to {high}"),
            Self::Extra { found } => write!(f, "{found}, expected to be absent"),
            Self::Outside { found, low, high } => {
                write!(f, "{found}, expected {low} to {high}")
            }
        }
    }
}

/// How many figures agree, and those that do not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    pub agreeing: BTreeSet<Figure>,
    pub differing: BTreeMap<Figure, Difference>,
}

/// Holds `found` against `readings`, of which one is older than it and one is younger: a figure is
/// right from the least to the most that they say, `slack` more or less. A figure that only some of
/// them have may be there or not. Families that either side does not have at all are left out.
pub fn compare(
    found: &Figures,
    readings: &[&Figures],
    slack: impl Fn(&Figure) -> f64,
) -> Comparison {
    let families = |figures: &Figures| -> BTreeSet<String> {
        figures.keys().map(|it| it.family.clone()).collect()
    };
    let ours = families(found);
    let theirs: BTreeSet<String> = readings.iter().flat_map(|it| families(it)).collect();
    let figures: BTreeSet<&Figure> = found
        .keys()
        .chain(readings.iter().flat_map(|it| it.keys()))
        .filter(|it| ours.contains(&it.family) && theirs.contains(&it.family))
        .collect();
    let mut comparison = Comparison::default();
    for figure in figures {
        let expected: Vec<f64> = readings
            .iter()
            .filter_map(|it| it.get(figure).copied())
            .collect();
        let low = expected.iter().copied().fold(f64::INFINITY, f64::min);
        let high = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Sums of what is told by CPU have the error of floating point.
        let slack = slack(figure) + high.abs() * 1e-12;
        let difference = match found.get(figure) {
            Some(&found) if expected.is_empty() => Some(Difference::Extra { found }),
            Some(&found) if found < low - slack || found > high + slack => {
                Some(Difference::Outside { found, low, high })
            }
            None if expected.len() == readings.len() => Some(Difference::Absent { low, high }),
            Some(_) | None => None,
        };
        match difference {
            Some(difference) => {
                comparison.differing.insert(figure.clone(), difference);
            }
            None if found.contains_key(figure) => {
                comparison.agreeing.insert(figure.clone());
            }
            None => {}
        }
    }
    comparison
}

/// A difference that is meant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deviation {
    pub family: String,
    /// The comparisons that it belongs to, by name.
    pub against: Vec<String>,
    /// How it differs.
    pub how: How,
    /// Now and then it does not show.
    #[serde(default)]
    pub may_agree: bool,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    Absent,
    Extra,
    Outside,
}

impl Comparison {
    /// One for all that was compared so far. A difference is kept, whatever agreed at another time.
    pub fn add(&mut self, other: Self) {
        self.agreeing.extend(other.agreeing);
        self.differing.extend(other.differing);
    }
}

impl Difference {
    fn how(&self) -> How {
        match self {
            Self::Absent { .. } => How::Absent,
            Self::Extra { .. } => How::Extra,
            Self::Outside { .. } => How::Outside,
        }
    }
}

/// `tests/data/cadvisor_deviations.yaml`, those against `name`.
pub fn deviations(text: &str, name: &str) -> Result<Vec<Deviation>> {
    let all: Vec<Deviation> = serde_yaml_ng::from_str(text).context("deviations")?;
    Ok(all
        .into_iter()
        .filter(|it| it.against.iter().any(|it| it == name))
        .collect())
}

/// An error with every difference that is not listed and every deviation that does not show.
pub fn settle(comparison: &Comparison, deviations: &[Deviation]) -> Result<()> {
    let is_listed = |figure: &Figure, difference: &Difference, listed: &Deviation| {
        listed.family == figure.family && listed.how == difference.how()
    };
    let mut faults: Vec<String> = comparison
        .differing
        .iter()
        .filter(|(figure, it)| {
            !deviations
                .iter()
                .any(|listed| is_listed(figure, it, listed))
        })
        .map(|(figure, difference)| format!("{figure}: {difference}"))
        .collect();
    faults.extend(
        deviations
            .iter()
            .filter(|listed| {
                let mut differing = comparison.differing.iter();
                !listed.may_agree && !differing.any(|(figure, it)| is_listed(figure, it, listed))
            })
            .map(|listed| {
                format!(
                    "{} is listed as {:?} and is not, or nowhere here",
                    listed.family, listed.how
                )
            }),
    );
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    ensure!(!comparison.agreeing.is_empty(), "nothing was compared");
    Ok(())
}

#[cfg(test)]
mod tests;
