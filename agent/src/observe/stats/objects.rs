//! What the samples of a page are about, with the labels of each rendered once.

use std::fmt::Write as _;
use std::ops::Range;

use super::Options;
use super::text::push_label;
use crate::model::stats::{CgroupStats, ContainerStats, InterfaceStats, PodStats, StatsSnapshot};
use crate::model::time::WallTime;

/// Stands for the image of a container that has none: the rules of kubernetes-mixin take rows
/// without an image for those of pods, and the container would be in no sum.
pub(super) const NO_IMAGE: &str = "none";

/// What a label set belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind<'a> {
    /// The page itself, which has no labels.
    Page,
    Machine,
    Root,
    /// A cgroup above those of pods, or beside them.
    Group(&'a CgroupStats),
    Pod(&'a PodStats),
    Container(&'a ContainerStats),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Object<'a> {
    pub(super) snapshot: &'a StatsSnapshot,
    pub(super) kind: Kind<'a>,
    /// As they stand between the braces, with a comma behind each.
    pub(super) labels: &'a str,
    /// What follows the value: nothing, or a space and milliseconds since the epoch.
    pub(super) stamp: &'a str,
}

impl<'a> Object<'a> {
    /// `None`: it is no cgroup, or there is none now.
    pub(super) fn cgroup(&self) -> Option<&'a CgroupStats> {
        match self.kind {
            Kind::Page | Kind::Machine => None,
            Kind::Root => Some(&self.snapshot.node.cgroup),
            Kind::Group(it) => Some(it),
            Kind::Pod(it) => it.stats.as_ref(),
            Kind::Container(it) => Some(&it.stats),
        }
    }

    pub(super) fn pod(&self) -> Option<&'a PodStats> {
        match self.kind {
            Kind::Pod(it) => Some(it),
            _ => None,
        }
    }

    pub(super) fn container(&self) -> Option<&'a ContainerStats> {
        match self.kind {
            Kind::Container(it) => Some(it),
            _ => None,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.container().is_some_and(|it| it.ended_at.is_some())
    }

    /// It has a reading of its own, and so a time.
    fn is_cgroup(&self) -> bool {
        !matches!(self.kind, Kind::Page | Kind::Machine)
    }

    pub(super) fn is_root(&self) -> bool {
        matches!(self.kind, Kind::Root)
    }

    /// Counted at the root and at pods: containers share the namespace of their pod.
    pub(super) fn network(&self) -> impl Iterator<Item = &'a InterfaceStats> {
        let interfaces: &[_] = match self.kind {
            Kind::Root => &self.snapshot.node.network,
            Kind::Pod(it) => &it.network,
            _ => &[],
        };
        interfaces.iter().filter(|it| it.is_counted())
    }

    /// When it was read. What has ended is of the sweep that shows it: of its end, or of its last reading, it could be
    /// older than what a server has of it, and be dropped.
    pub(super) fn seen_at(&self) -> WallTime {
        let stats = self.cgroup().filter(|_| !self.has_ended());
        stats.map_or(self.snapshot.at, |it| self.snapshot.seen_at(it))
    }
}

/// Where in a snapshot an object is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Page,
    Machine,
    Root,
    Group(usize),
    Pod(usize),
    /// The pod, and its container.
    Container(usize, usize),
}

impl Place {
    fn find(self, snapshot: &StatsSnapshot) -> Kind<'_> {
        match self {
            Self::Page => Kind::Page,
            Self::Machine => Kind::Machine,
            Self::Root => Kind::Root,
            Self::Group(n) => Kind::Group(&snapshot.groups[n].stats),
            Self::Pod(n) => Kind::Pod(&snapshot.pods[n]),
            Self::Container(pod, n) => Kind::Container(&snapshot.pods[pod].containers[n]),
        }
    }
}

/// The objects of a page, and the text of their labels. Borrows nothing, so that a page can be made
/// while it is sent.
#[derive(Debug)]
pub(super) struct Objects {
    places: Vec<(Place, Range<usize>, Range<usize>)>,
    text: String,
}

impl Objects {
    /// Label shapes of `/metrics/cadvisor` (pkg/kubelet/server/server.go, v1.36: `containerPrometheusLabelsFunc`).
    pub(super) fn of_cadvisor(snapshot: &StatsSnapshot, options: Options) -> Self {
        let mut list = List::new(snapshot, options);
        let machine = &snapshot.machine;
        let ids = [
            ("boot_id", machine.boot_id.as_deref()),
            ("machine_id", machine.machine_id.as_deref()),
            ("system_uuid", machine.system_uuid.as_deref()),
        ];
        list.push(Place::Page, &[]);
        list.push(
            Place::Machine,
            &ids.map(|(name, id)| (name, id.unwrap_or_default())),
        );
        list.push(Place::Root, &[("id", "/")]);
        for (n, group) in snapshot.groups.iter().enumerate() {
            list.push(Place::Group(n), &[("id", &group.id)]);
        }
        for (n, pod) in snapshot.pods.iter().enumerate() {
            let [namespace, name] = pod_labels(pod);
            list.push(Place::Pod(n), &[("id", &pod.id), namespace, name]);
        }
        for (pod_n, pod) in snapshot.pods.iter().enumerate() {
            let [namespace, pod_name] = pod_labels(pod);
            for (n, container) in pod.containers.iter().enumerate() {
                let image = match container.image.as_str() {
                    "" => NO_IMAGE,
                    image => image,
                };
                let labels = [
                    ("container", container.name.as_str()),
                    ("id", &container.id),
                    ("image", image),
                    ("name", &container.runtime_id),
                    namespace,
                    pod_name,
                ];
                list.push(Place::Container(pod_n, n), &labels);
            }
        }
        list.objects
    }

    /// Label shapes of `/metrics/resource` (pkg/kubelet/metrics/collectors/resource_metrics.go, v1.36). No two series
    /// may have the same labels: containers that have ended are not on this page, nor are pods that another of that
    /// name has followed, once it has a cgroup. What has no name is told apart by its cgroup, in the label of
    /// `/metrics/cadvisor`.
    pub(super) fn of_resource(snapshot: &StatsSnapshot, options: Options) -> Self {
        let mut list = List::new(snapshot, options);
        list.push(Place::Root, &[]);
        let pods: Vec<_> = snapshot.pods.iter().enumerate().collect();
        let namesakes = pods.chunk_by(|(_, a), (_, b)| is_namesake(a, b));
        let rank = |pod: &PodStats| (pod.stats.is_some(), pod.started_at);
        let latest = namesakes.filter_map(|it| it.iter().max_by_key(|(_, pod)| rank(pod)));
        for (pod_n, pod) in latest {
            let [namespace, pod_name] = pod_labels(pod);
            let id = id_unless(pod.pod.has_name(), &pod.id);
            list.push(Place::Pod(*pod_n), &[id, namespace, pod_name]);
            for (n, container) in pod.containers.iter().enumerate() {
                if container.ended_at.is_none() {
                    let name = container.name.as_str();
                    let is_named = pod.pod.has_name() && !name.is_empty();
                    let id = id_unless(is_named, &container.id);
                    let labels = [("container", name), id, namespace, pod_name];
                    list.push(Place::Container(*pod_n, n), &labels);
                }
            }
        }
        list.objects
    }

    /// `snapshot`: the one that this was made from.
    pub(super) fn iter<'a>(
        &'a self,
        snapshot: &'a StatsSnapshot,
    ) -> impl Iterator<Item = Object<'a>> {
        self.places
            .iter()
            .map(move |(place, labels, stamp)| Object {
                snapshot,
                kind: place.find(snapshot),
                labels: &self.text[labels.clone()],
                stamp: &self.text[stamp.clone()],
            })
    }
}

/// Objects under way.
struct List<'a> {
    snapshot: &'a StatsSnapshot,
    options: Options,
    objects: Objects,
}

impl<'a> List<'a> {
    fn new(snapshot: &'a StatsSnapshot, options: Options) -> Self {
        /// Longer than the labels of most containers.
        const LABELS_LENGTH: usize = 400;
        let n_containers: usize = snapshot.pods.iter().map(|it| it.containers.len()).sum();
        let n_objects = 3 + snapshot.groups.len() + snapshot.pods.len() + n_containers;
        let objects = Objects {
            places: Vec::with_capacity(n_objects),
            text: String::with_capacity(n_objects * LABELS_LENGTH),
        };
        Self {
            snapshot,
            options,
            objects,
        }
    }

    fn push(&mut self, place: Place, labels: &[(&str, &str)]) {
        let text = &mut self.objects.text;
        let begin = text.len();
        for (name, value) in labels {
            push_label(text, name, value);
        }
        let end = text.len();
        let object = Object {
            snapshot: self.snapshot,
            kind: place.find(self.snapshot),
            labels: "",
            stamp: "",
        };
        if self.options.timestamps && object.is_cgroup() {
            // Writing to a string cannot fail.
            let _ = write!(text, " {}", object.seen_at().since_epoch().as_millis());
        }
        let stamp = end..text.len();
        self.objects.places.push((place, begin..end, stamp));
    }
}

/// A pod without a name is not another one.
fn is_namesake(a: &PodStats, b: &PodStats) -> bool {
    a.pod.has_name() && pod_labels(a) == pod_labels(b)
}

/// The label `id`, empty for what names tell apart.
fn id_unless(is_named: bool, id: &str) -> (&'static str, &str) {
    ("id", if is_named { "" } else { id })
}

fn pod_labels(pod: &PodStats) -> [(&'static str, &str); 2] {
    [("namespace", &pod.pod.namespace), ("pod", &pod.pod.name)]
}
