//! The table turned into handles of the `prometheus` crate.

use std::collections::BTreeMap;

use prometheus::Registry;

use super::histogram::{Histogram, HistogramVec};
use super::identity::Identity;
use super::series::{CounterVec, GaugeVec, IntCounterVec, IntGaugeVec, Scalar, Series, SeriesVec};
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
        self.register(family, Scalar::new)
    }

    /// A counter of seconds.
    pub(super) fn seconds_counter(&mut self, name: &str) -> CounterVec {
        let family = self.take(name, |it| {
            it.kind == Type::Counter && it.unit == Unit::Seconds
        });
        self.register(family, Scalar::new)
    }

    /// A gauge of whole numbers.
    pub(super) fn gauge(&mut self, name: &str) -> IntGaugeVec {
        let family = self.take(name, |it| it.kind == Type::Gauge && !is_fractional(it.unit));
        self.register(family, Scalar::new)
    }

    /// A gauge of seconds.
    pub(super) fn float_gauge(&mut self, name: &str) -> GaugeVec {
        let family = self.take(name, |it| it.kind == Type::Gauge && is_fractional(it.unit));
        self.register(family, Scalar::new)
    }

    pub(super) fn histogram(&mut self, name: &str) -> HistogramVec {
        let family = self.take(name, |it| matches!(it.kind, Type::Histogram(_)));
        let bounds = match family.kind {
            Type::Histogram(buckets) => buckets.bounds(),
            Type::Counter | Type::Gauge => &[],
        };
        let histogram = self.register(family, move || Histogram::new(bounds));
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

    fn register<S: Series + 'static>(
        &self,
        family: &Family,
        new: impl Fn() -> S + Send + Sync + 'static,
    ) -> SeriesVec<S> {
        let labels = self.identity.labels(family);
        let made = SeriesVec::new(family, &labels, new);
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
