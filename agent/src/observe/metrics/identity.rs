//! Whom a series of a container names: the pod and the container by their names, and by their ids where
//! there is no name.
//!
//! Invariant: an id is never beside the name that it stands for, so a series with a name is the same
//! whether ids are labels or not.

use std::ops::Deref;

use prometheus::proto::{LabelPair, MetricFamily};

use super::table::{Cardinality, Family};
use crate::model::record::{Event, PodRef};

/// Which labels the families of containers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Those of the table: every pod and every container has a name.
    Names,
    /// `pod_uid` and `container_id` follow those of the table.
    NamesOrIds,
}

/// Pages leave these labels out of a series in which they are empty.
const IDS: [&str; 2] = ["pod_uid", "container_id"];

/// The most labels of a family of containers: names, one label more, ids.
const MAX_LABELS: usize = 3 + 1 + IDS.len();

impl Identity {
    /// The labels of a family, in the order in which their values are given.
    pub fn labels(self, family: &Family) -> Vec<&'static str> {
        let mut labels = family.labels.to_vec();
        if self == Self::NamesOrIds && family.cardinality == Cardinality::Container {
            labels.extend(IDS);
        }
        labels
    }

    /// Values of the labels of a container.
    pub(super) fn values(self, labels: ContainerLabels<'_>) -> Values<'_> {
        self.collect(labels, None)
    }

    /// The same of a family that has one label more: its value is `more`.
    pub(super) fn values_with<'a>(self, labels: ContainerLabels<'a>, more: &'a str) -> Values<'a> {
        self.collect(labels, Some(more))
    }

    fn collect<'a>(self, labels: ContainerLabels<'a>, more: Option<&'a str>) -> Values<'a> {
        let ids = match self {
            Self::Names => None,
            Self::NamesOrIds => Some([labels.pod_uid, labels.container_id]),
        };
        let names = [labels.namespace, labels.pod, labels.container];
        let values = names
            .into_iter()
            .chain(more)
            .chain(ids.into_iter().flatten());
        let mut collected = Values {
            values: [""; MAX_LABELS],
            n: 0,
        };
        for value in values {
            collected.values[collected.n] = value;
            collected.n += 1;
        }
        collected
    }
}

/// Values of the labels of one series, in the order of [`Identity::labels`].
pub(super) struct Values<'a> {
    values: [&'a str; MAX_LABELS],
    n: usize,
}

impl<'a> Deref for Values<'a> {
    type Target = [&'a str];

    fn deref(&self) -> &[&'a str] {
        &self.values[..self.n]
    }
}

/// The labels that name one container, or a pod as a whole. Empty is what is not known or does not apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerLabels<'a> {
    namespace: &'a str,
    pod: &'a str,
    container: &'a str,
    pod_uid: &'a str,
    container_id: &'a str,
}

impl<'a> ContainerLabels<'a> {
    /// Of a pod of which nothing is known.
    pub(super) const UNKNOWN: ContainerLabels<'static> = ContainerLabels::named("", "", "");

    /// A container of a pod that both have a name.
    pub const fn named(namespace: &'a str, pod: &'a str, container: &'a str) -> Self {
        Self {
            namespace,
            pod,
            container,
            pod_uid: "",
            container_id: "",
        }
    }

    /// A container of `pod`. `name`: empty if it is not known; `id`: as its runtime names it.
    pub fn new(pod: &'a PodRef, name: &'a str, id: &'a str) -> Self {
        Self::of([&pod.namespace, &pod.name, &pod.uid.0], [name, id])
    }

    /// What an event is about; `None`: no pod, or one of which nothing is known.
    pub fn of_event(event: &'a Event) -> Option<Self> {
        let name = event.container.as_deref().unwrap_or_default();
        let id = event.container_id.as_deref().unwrap_or_default();
        match (&event.pod, &event.pod_uid) {
            (Some(pod), _) => Some(Self::new(pod, name, id)),
            (None, Some(uid)) => Some(Self::of(["", "", &uid.0], [name, id])),
            (None, None) => None,
        }
    }

    /// In the order of [`Identity::labels`], with ids or without; `None`: it is of no container.
    pub(super) fn of_values(values: &[&'a str]) -> Option<Self> {
        match *values {
            [namespace, pod, container] => Some(Self::named(namespace, pod, container)),
            [namespace, pod, container, uid, id] => {
                Some(Self::of([namespace, pod, uid], [container, id]))
            }
            _ => None,
        }
    }

    fn of([namespace, pod, uid]: [&'a str; 3], [container, id]: [&'a str; 2]) -> Self {
        let unless_named = |name: &str, id| if name.is_empty() { id } else { "" };
        Self {
            pod_uid: unless_named(pod, uid),
            container_id: unless_named(container, id),
            ..Self::named(namespace, pod, container)
        }
    }

    /// It names a container, and not a pod as a whole.
    pub const fn has_container(&self) -> bool {
        !self.container.is_empty() || !self.container_id.is_empty()
    }

    pub(super) const fn namespace(&self) -> &'a str {
        self.namespace
    }

    pub(super) const fn pod(&self) -> &'a str {
        self.pod
    }

    pub(super) const fn pod_uid(&self) -> &'a str {
        self.pod_uid
    }

    pub(super) const fn container(&self) -> &'a str {
        self.container
    }

    pub(super) const fn container_id(&self) -> &'a str {
        self.container_id
    }

    /// What tells apart, within a namespace, the pods and the containers without a name.
    pub(super) const fn holder(&self) -> [&'a str; 3] {
        [self.pod, self.pod_uid, self.container_id]
    }

    /// `holder`: as [`ContainerLabels::holder`] gives it.
    pub(super) const fn of_holder(
        namespace: &'a str,
        [pod, pod_uid, container_id]: [&'a str; 3],
        container: &'a str,
    ) -> Self {
        Self {
            pod_uid,
            container_id,
            ..Self::named(namespace, pod, container)
        }
    }

    pub fn to_key(self) -> ContainerKey {
        ContainerKey {
            namespace: self.namespace.into(),
            pod: self.pod.into(),
            container: self.container.into(),
            pod_uid: self.pod_uid.into(),
            container_id: self.container_id.into(),
        }
    }
}

/// [`ContainerLabels`] to be kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerKey {
    namespace: Box<str>,
    pod: Box<str>,
    container: Box<str>,
    pod_uid: Box<str>,
    container_id: Box<str>,
}

impl ContainerKey {
    pub(super) fn labels(&self) -> ContainerLabels<'_> {
        ContainerLabels {
            namespace: &self.namespace,
            pod: &self.pod,
            container: &self.container,
            pod_uid: &self.pod_uid,
            container_id: &self.container_id,
        }
    }
}

/// Whether pages leave it out: an id label without a value.
pub(super) fn is_left_out(label: &str, value: &str) -> bool {
    value.is_empty() && IDS.contains(&label)
}

/// It says who the container is where there is no name.
pub(super) fn is_id(label: &str) -> bool {
    IDS.contains(&label)
}

/// Takes the id labels that are empty out of all series.
pub(super) fn leave_out_empty_ids(families: &mut [MetricFamily]) {
    let is_empty = |it: &LabelPair| is_left_out(it.name(), it.value());
    let metrics = families
        .iter_mut()
        .flat_map(|it| it.mut_metric().iter_mut());
    for metric in metrics {
        if metric.get_label().iter().any(is_empty) {
            let mut labels = metric.take_label();
            labels.retain(|it| !is_empty(it));
            metric.set_label(labels);
        }
    }
}
