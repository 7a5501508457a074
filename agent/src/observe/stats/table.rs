//! The families of `/metrics/cadvisor` and `/metrics/resource`, each with what makes its samples.
//! The pages are written from this table, in its order.
//!
//! Names, labels and meaning are those of cAdvisor 0.56 and kubelet 1.36 (`metrics/prometheus.go`
//! and `pkg/kubelet/metrics/collectors/resource_metrics.go`); where ours differ,
//! `agent/DIVERGENCES.md` has a row.

mod cgroup;
mod machine;
mod resource;

use super::objects::Object;
use super::text::Samples;
use crate::observe::metrics::{Area, Cardinality, Family, Type, Unit};

/// Who uses a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Public dashboards and alerts query it.
    Queried,
    /// Kubelet sends it.
    Kubelet,
    /// cAdvisor knows it, and kubelet leaves it off.
    Cadvisor,
}

/// A family and its samples.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub family: Family,
    pub tier: Tier,
    /// Writes what an object has of it, perhaps nothing.
    pub(super) write: fn(&Object<'_>, &mut Samples<'_>),
}

/// The families of `/metrics/cadvisor` by what they are about: the page and the machine, then
/// cgroups.
pub fn cadvisor() -> impl Iterator<Item = &'static Entry> {
    [machine::TABLE, cgroup::TABLE].into_iter().flatten()
}

/// The families of `/metrics/resource`.
pub fn resource() -> impl Iterator<Item = &'static Entry> {
    resource::TABLE.iter()
}

/// A family of `/metrics/cadvisor` that every cgroup can have.
const fn cgroup(
    name: &'static str,
    kind: Type,
    unit: Unit,
    help: &'static str,
    write: fn(&Object<'_>, &mut Samples<'_>),
) -> Entry {
    Entry {
        family: Family {
            name,
            kind,
            unit,
            labels: &["container", "id", "image", "name", "namespace", "pod"],
            cardinality: Cardinality::Cgroup,
            area: Area::Cadvisor,
            duty: None,
            age: None,
            help,
        },
        tier: Tier::Queried,
        write,
    }
}

impl Entry {
    const fn tier(mut self, tier: Tier) -> Self {
        self.tier = tier;
        self
    }

    const fn labels(mut self, labels: &'static [&'static str]) -> Self {
        self.family.labels = labels;
        self
    }

    const fn per(mut self, cardinality: Cardinality) -> Self {
        self.family.cardinality = cardinality;
        self
    }

    const fn area(mut self, area: Area) -> Self {
        self.family.area = area;
        self
    }
}
