//! The table turned into handles of the `prometheus` crate.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry};

use super::histogram::HistogramVec;
use super::identity::Identity;
use super::table::{Family, Type, Unit, table};
use crate::model::kubelet_duty::{KubeletDuty, KubeletNames};

/// Hands out each family of the table once, registered if it is to be shown. What is not registered
/// can be set all the same.
///
/// A name that the table lacks, or has with another type, is a mistake in this program: building
/// panics, and so does every test that makes metrics.
pub(super) struct Builder {
    duties: Vec<KubeletDuty>,
    names: KubeletNames,
    identity: Identity,
    registry: Registry,
    histograms: BTreeMap<&'static str, HistogramVec>,
    left: BTreeMap<&'static str, &'static Family>,
}

impl Builder {
    pub(super) fn new(duties: &[KubeletDuty], names: KubeletNames, identity: Identity) -> Self {
        Self {
            duties: duties.to_vec(),
            names,
            identity,
            registry: Registry::new(),
            histograms: BTreeMap::new(),
            left: table().iter().map(|it| (it.name, it)).collect(),
        }
    }

    /// A counter of things.
    pub(super) fn counter(&mut self, name: &str) -> IntCounterVec {
        let family = self.take(name, |it| {
            it.kind == Type::Counter && it.unit != Unit::Seconds
        });
        let labels = self.identity.labels(family);
        self.register(family, IntCounterVec::new(opts(family), &labels))
    }

    /// A counter of seconds.
    pub(super) fn seconds_counter(&mut self, name: &str) -> CounterVec {
        let family = self.take(name, |it| {
            it.kind == Type::Counter && it.unit == Unit::Seconds
        });
        let labels = self.identity.labels(family);
        self.register(family, CounterVec::new(opts(family), &labels))
    }

    /// A gauge of whole numbers.
    pub(super) fn gauge(&mut self, name: &str) -> IntGaugeVec {
        let family = self.take(name, |it| it.kind == Type::Gauge && !is_fractional(it.unit));
        let labels = self.identity.labels(family);
        self.register(family, IntGaugeVec::new(opts(family), &labels))
    }

    /// A gauge of seconds.
    pub(super) fn float_gauge(&mut self, name: &str) -> GaugeVec {
        let family = self.take(name, |it| it.kind == Type::Gauge && is_fractional(it.unit));
        let labels = self.identity.labels(family);
        self.register(family, GaugeVec::new(opts(family), &labels))
    }

    pub(super) fn histogram(&mut self, name: &str) -> HistogramVec {
        let family = self.take(name, |it| matches!(it.kind, Type::Histogram(_)));
        let bounds = match family.kind {
            Type::Histogram(buckets) => buckets.bounds(),
            Type::Counter | Type::Gauge => &[],
        };
        let histogram = self.register(family, HistogramVec::new(family, bounds));
        self.histograms.insert(family.name, histogram.clone());
        histogram
    }

    /// The registry, and those of its families that are histograms by name; every family of the
    /// table has been handed out.
    pub(super) fn finish(self) -> (Registry, BTreeMap<&'static str, HistogramVec>) {
        assert!(
            self.left.is_empty(),
            "families of the metrics table that nothing sets: {:?}",
            self.left.keys()
        );
        (self.registry, self.histograms)
    }

    fn take(&mut self, name: &str, fits: impl Fn(&Family) -> bool) -> &'static Family {
        let family = self.left.remove(name);
        family
            .filter(|it| fits(it))
            .unwrap_or_else(|| panic!("{name} is not in the metrics table with this type"))
    }

    fn register<C: Collector + Clone + 'static>(
        &self,
        family: &Family,
        made: prometheus::Result<C>,
    ) -> C {
        let made = made.expect("the table holds valid names, its tests say");
        if family.is_shown(&self.duties, self.names) {
            self.registry
                .register(Box::new(made.clone()))
                .expect("the table holds each name once, its tests say");
        }
        made
    }
}

const fn is_fractional(unit: Unit) -> bool {
    matches!(
        unit,
        Unit::Seconds | Unit::Milliseconds | Unit::Timestamp | Unit::Ratio | Unit::Labelled
    )
}

/// The crate keeps the help of a family with each of its series: here it is not known yet.
fn opts(family: &Family) -> Opts {
    Opts::new(family.name, "-")
}

/// Gives families their help, where they are written down.
pub(super) fn set_help(families: &mut [MetricFamily]) {
    let known: BTreeMap<_, _> = table().iter().map(|it| (it.name, it.help)).collect();
    for family in families {
        if let Some(help) = known.get(family.name()) {
            family.set_help((*help).to_owned());
        }
    }
}
