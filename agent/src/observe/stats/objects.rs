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

#[derive(Clone, Debug)]
pub(super) struct Object<'a> {
    pub(super) snapshot: &'a StatsSnapshot,
    pub(super) kind: Kind<'a>,
    labels: Range<usize>,
    stamp: Range<usize>,
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

    pub(super) fn is_root(&self) -> bool {
        matches!(self.kind, Kind::Root)
    }

    /// Counted at the root and at pods: containers share the namespace of their pod.
    pub(super) fn network(&self) -> &'a [InterfaceStats] {
        match self.kind {
            Kind::Root => &self.snapshot.node.network,
            Kind::Pod(it) => &it.network,
            _ => &[],
        }
    }

    /// When it was read; of a container that has ended, its end.
    pub(super) fn seen_at(&self) -> WallTime {
        if let Some(ended) = self.container().and_then(|it| it.ended_at) {
            return ended;
        }
        let stats = self.cgroup();
        stats.map_or(self.snapshot.at, |it| self.snapshot.seen_at(it))
    }
}

/// The objects of a page, and the text of their labels.
#[derive(Debug)]
pub(super) struct Objects<'a> {
    list: Vec<Object<'a>>,
    text: String,
}

impl<'a> Objects<'a> {
    /// Label shapes of spec metrics A1.
    pub(super) fn of_cadvisor(snapshot: &'a StatsSnapshot, options: Options) -> Self {
        let mut objects = Self::new(snapshot);
        let machine = &snapshot.machine;
        objects.push(snapshot, options, Kind::Page, &[]);
        let ids = [
            ("boot_id", machine.boot_id.as_deref()),
            ("machine_id", machine.machine_id.as_deref()),
            ("system_uuid", machine.system_uuid.as_deref()),
        ];
        let ids = ids.map(|(name, id)| (name, id.unwrap_or_default()));
        objects.push(snapshot, options, Kind::Machine, &ids);
        objects.push(snapshot, options, Kind::Root, &[("id", "/")]);
        for group in &snapshot.groups {
            let kind = Kind::Group(&group.stats);
            objects.push(snapshot, options, kind, &[("id", &group.id)]);
        }
        for pod in &snapshot.pods {
            let [namespace, name] = pod_labels(pod);
            let labels = [("id", pod.id.as_str()), namespace, name];
            objects.push(snapshot, options, Kind::Pod(pod), &labels);
        }
        let pods = snapshot.pods.iter();
        for (pod, container) in pods.flat_map(|pod| pod.containers.iter().map(move |it| (pod, it)))
        {
            let [namespace, name] = pod_labels(pod);
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
                name,
            ];
            objects.push(snapshot, options, Kind::Container(container), &labels);
        }
        objects
    }

    /// Label shapes of spec metrics A4. No two series may have the same labels: containers that
    /// have ended are not on this page, nor are pods that another of that name has followed.
    pub(super) fn of_resource(snapshot: &'a StatsSnapshot, options: Options) -> Self {
        let mut objects = Self::new(snapshot);
        objects.push(snapshot, options, Kind::Root, &[]);
        for pod in latest_pods(snapshot) {
            let [namespace, name] = pod_labels(pod);
            objects.push(snapshot, options, Kind::Pod(pod), &[namespace, name]);
            for container in pod.containers.iter().filter(|it| it.ended_at.is_none()) {
                let labels = [("container", container.name.as_str()), namespace, name];
                objects.push(snapshot, options, Kind::Container(container), &labels);
            }
        }
        objects
    }

    fn new(snapshot: &StatsSnapshot) -> Self {
        /// Longer than the labels of most containers.
        const LABELS_LENGTH: usize = 400;
        let n_containers: usize = snapshot.pods.iter().map(|it| it.containers.len()).sum();
        let n_objects = 3 + snapshot.groups.len() + snapshot.pods.len() + n_containers;
        Self {
            list: Vec::with_capacity(n_objects),
            text: String::with_capacity(n_objects * LABELS_LENGTH),
        }
    }

    fn push(
        &mut self,
        snapshot: &'a StatsSnapshot,
        options: Options,
        kind: Kind<'a>,
        labels: &[(&str, &str)],
    ) {
        let begin = self.text.len();
        for (name, value) in labels {
            push_label(&mut self.text, name, value);
        }
        let end = self.text.len();
        let mut object = Object {
            snapshot,
            kind,
            labels: begin..end,
            stamp: end..end,
        };
        let is_page = matches!(kind, Kind::Page | Kind::Machine);
        if options.timestamps && !is_page {
            let at = object.seen_at().since_epoch().as_millis();
            // Writing to a string cannot fail.
            let _ = write!(self.text, " {at}");
            object.stamp = end..self.text.len();
        }
        self.list.push(object);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Object<'a>> {
        self.list.iter()
    }

    pub(super) fn labels(&self, object: &Object<'_>) -> &str {
        &self.text[object.labels.clone()]
    }

    pub(super) fn stamp(&self, object: &Object<'_>) -> &str {
        &self.text[object.stamp.clone()]
    }
}

fn pod_labels(pod: &PodStats) -> [(&str, &str); 2] {
    [("namespace", &pod.pod.namespace), ("pod", &pod.pod.name)]
}

/// Of pods with one name that which started last.
fn latest_pods(snapshot: &StatsSnapshot) -> impl Iterator<Item = &PodStats> {
    let same_name = |a: &PodStats, b: &PodStats| pod_labels(a) == pod_labels(b);
    let namesakes = snapshot.pods.chunk_by(same_name);
    namesakes.filter_map(|it| it.iter().max_by_key(|it| it.started_at))
}
