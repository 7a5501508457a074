//! Which CPUs, memory and devices kubelet has given to which containers, by the files that it keeps of that: they are
//! right without an API server, and say nothing of names.

mod found;

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use self::found::{Allocatable, ByFile, Found};
use super::kubelet::Kubelet;
use super::tree::KubeTree;
use super::{Fault, Loop};
use crate::config::KubeletConfig;
use crate::decide::placement::foreign::ForeignBooks;
use crate::model::cpuset::CpuSet;
use crate::model::kubelet_state::gives_out;
use crate::model::numa::NumaMask;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::stats::KnownPod;
use crate::model::status::PlacementStatus;
use crate::model::topology::{NumaNodeId, Topology};
use crate::observe::metrics::{ContainerLabels, DeviceCounts, PlacementGauges, PoolCpus};
use crate::pod_resources;
use crate::run::publisher::Began;
use crate::sys::{FsError, Root};

/// Between two looks at the files, while pods come and go.
const LOOK_GAP: Duration = Duration::from_secs(1);

/// What cannot be used is told after so long: kubelet writes in steps, and none at first when it starts.
const DOUBT: Duration = Duration::from_secs(10);

/// All pods that are there.
pub(super) type ByUid<'a> = BTreeMap<&'a PodUid, &'a PodRef>;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// A kubelet is known. While it is down its books stand.
    is_known: bool,
    books: ForeignBooks,
    /// See [`Found`].
    reserved: Option<CpuSet>,
    allocatable: Allocatable,
    doubts: ByFile<Doubt>,
    /// The files are to be read again.
    is_behind: bool,
    /// When that is due at the earliest, boottime.
    due: Duration,
    /// When they are read again because a fault is told, which may go while no pod comes or goes; boottime.
    retry_at: Option<Duration>,
    /// As the metrics have it.
    shown: Shown,
}

/// What cannot be used of one file, and since when there is something new of it.
#[derive(Debug, Default)]
struct Doubt {
    /// As they are told.
    told: Vec<String>,
    /// Boottime of the first look in a row that found another fault than those.
    since: Option<Duration>,
}

/// What is shown of it as metrics.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    gauges: PlacementGauges,
    devices: BTreeMap<(String, Option<NumaNodeId>), u64>,
}

impl Placement {
    /// The files are to be read again: pods have come or gone.
    pub(super) fn look_again(&mut self) {
        self.is_behind = true;
    }

    /// Another kubelet may be there, which writes its files when it starts.
    pub(super) fn begin_anew(&mut self) {
        self.allocatable = Allocatable::Unasked;
        let ByFile {
            cpu,
            memory,
            devices,
        } = &mut self.doubts;
        for it in [cpu, memory, devices] {
            it.since = None;
        }
        self.due = Duration::ZERO;
        self.look_again();
    }

    /// True: something is another than before. `now`: boottime.
    fn take(&mut self, found: Found, now: Duration, is_there: impl Fn(&PodUid) -> bool) -> bool {
        let Found {
            books,
            reserved,
            faults,
        } = found;
        let mut is_new = !mem::replace(&mut self.is_known, true);
        let doubts = &mut self.doubts;
        if doubts.cpu.takes(faults.cpu, now, &mut is_new) {
            is_new |= put(&mut self.books.cpu, books.cpu) | put(&mut self.reserved, reserved);
        }
        if doubts.memory.takes(faults.memory, now, &mut is_new) {
            is_new |= put(&mut self.books.memory, books.memory);
        }
        if doubts.devices.takes(faults.devices, now, &mut is_new) {
            is_new |= put(&mut self.books.devices, books.devices);
        }
        let all = self.doubts.all();
        let is_doubted = all.iter().any(|it| it.since.is_some());
        let is_told = all.iter().any(|it| !it.told.is_empty());
        self.is_behind = is_doubted || self.books.is_behind(is_there);
        self.retry_at = is_told.then(|| now + DOUBT);
        is_new
    }

    /// No kubelet is known any more. True: one was.
    fn clear(&mut self) -> bool {
        let shown = mem::take(&mut self.shown);
        let before = mem::replace(
            self,
            Self {
                shown,
                ..Self::default()
            },
        );
        before.is_known
    }

    /// Boottime; `None`: nothing has changed.
    pub(super) fn wake(&self) -> Option<Duration> {
        match self.is_behind {
            true => Some(self.due),
            false => self.retry_at,
        }
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let all = self.doubts.all().into_iter();
        all.flat_map(|it| it.told.iter().cloned()).collect()
    }

    /// See [`ForeignBooks::summary`]. `by_uid`: `None` while nobody knows which pods there are.
    pub(super) fn status(
        &self,
        kubelet: &KubeletConfig,
        topology: &Topology,
        by_uid: Option<&ByUid<'_>>,
    ) -> Option<PlacementStatus> {
        let by_uid = by_uid.filter(|_| self.is_known)?;
        let pod_of = |uid: &PodUid| by_uid.get(uid).copied();
        let (config, reserved) = (&kubelet.placement, self.reserved.as_ref());
        Some(self.books.summary(config, reserved, topology, pod_of))
    }

    /// See [`ForeignBooks::cpus_of`].
    pub(super) fn cpuset(&self, pod: &PodUid, container: &str) -> Option<String> {
        let cpus = self.books.cpus_of(pod, container);
        cpus.map(ToString::to_string)
    }
}

impl Doubt {
    /// Whether what was found with these faults is to be taken: a new one first has to stay for a while.
    fn takes(&mut self, faults: Vec<String>, now: Duration, is_new: &mut bool) -> bool {
        let has_more = faults.iter().any(|it| !self.told.contains(it));
        if has_more && now < *self.since.get_or_insert(now) + DOUBT {
            return false;
        }
        self.since = None;
        *is_new |= put(&mut self.told, faults);
        true
    }
}

impl ByFile<Doubt> {
    fn all(&self) -> [&Doubt; 3] {
        [&self.cpu, &self.memory, &self.devices]
    }
}

/// True: it is another than before.
fn put<T: PartialEq>(place: &mut T, new: T) -> bool {
    let is_new = *place != new;
    *place = new;
    is_new
}

impl Loop {
    /// Which pods there are is known: their tree is found, and was read.
    pub(super) fn knows_pods(&self) -> bool {
        self.tree.place().is_some() && !self.faults.contains_key(&Fault::Unreadable)
    }

    /// Reads kubelet's files again, if pods have come or gone since. While kubelet is down they stand.
    pub(super) fn look_for_places(&mut self, now: Duration) {
        if self.placement.wake().is_none_or(|it| now < it) {
            return;
        }
        let began = Began::now();
        let root = Root::host();
        let found = match &self.kubelet {
            Err(_) => {
                if self.placement.clear() {
                    self.publisher.changed(now);
                }
                return;
            }
            // Another process may have its number by now.
            Ok(kubelet) if !kubelet.is_there(&root) => None,
            Ok(kubelet) => {
                if self.placement.allocatable.is_due(now) && places_cpus(kubelet) {
                    self.placement.allocatable = ask(kubelet, &root, &self.tree, now);
                }
                let allocatable = &self.placement.allocatable;
                match Found::read(kubelet, &root, &self.node.topology, allocatable) {
                    Ok(found) => Some(found),
                    Err(FsError::Gone { .. }) => None,
                    Err(error) => Some(Found::unreadable(&error)),
                }
            }
        };
        let Some(found) = found else {
            // Until it is seen that another one runs.
            self.placement.look_again();
            self.placement.due = now + DOUBT;
            return;
        };
        let pods = self.tree.readings.pods();
        let there: BTreeSet<&PodUid> = pods.iter().map(|it| &it.pod.uid).collect();
        if self.placement.take(found, now, |uid| there.contains(uid)) {
            self.publisher.changed(now);
        }
        self.placement.due = began.due_again(LOOK_GAP);
    }

    /// What kubelet has said of the CPUs that it can give out.
    pub(super) fn take_allocatable(&mut self, now: Duration) {
        let Some((pid, told)) = self.tree.take_allocatable() else {
            return;
        };
        let kubelet = self.kubelet.as_ref();
        // Another one may run by now.
        if kubelet.is_ok_and(|it| it.status.pid == pid) {
            self.placement.allocatable = match told {
                Ok(cpus) => Allocatable::Told(cpus),
                Err(why) => Allocatable::refused(why, now),
            };
            self.placement.look_again();
        }
    }

    /// Shows it as metrics, if it is another thing than before.
    pub(super) fn show_places(
        &mut self,
        status: Option<&PlacementStatus>,
        pods: &[Arc<KnownPod>],
        by_uid: Option<&ByUid<'_>>,
    ) {
        let books = &self.placement.books;
        let shown = match (status, by_uid) {
            (Some(status), Some(by_uid)) => Shown {
                gauges: gauges(status, &in_series(pods)),
                devices: books.devices_held(|uid| by_uid.contains_key(uid)),
            },
            _ => Shown::default(),
        };
        if shown == self.placement.shown {
            return;
        }
        self.metrics.set_placement(&shown.gauges);
        let devices = shown.devices.iter();
        self.metrics
            .set_devices(devices.map(|((resource, node), n)| {
                let counts = DeviceCounts {
                    n_allocated: *n,
                    n_unhealthy: None,
                };
                (resource.as_str(), *node, counts)
            }));
        self.placement.shown = shown;
    }
}

/// By its settings; who places none says that there is none to be had.
fn places_cpus(kubelet: &Kubelet) -> bool {
    let config = &kubelet.settings.kubelet.placement;
    gives_out(config.cpu_manager_policy.as_str())
}

/// On a thread of its own, which ends with the answer.
fn ask(kubelet: &Kubelet, root: &Root, tree: &Arc<KubeTree>, now: Duration) -> Allocatable {
    let socket = match kubelet.pod_resources(root) {
        Ok(socket) => socket,
        Err(error) => return Allocatable::refused(crate::observe::chain(&error), now),
    };
    let pid = kubelet.status.pid;
    let tree = Arc::clone(tree);
    let asking = move || {
        let told = pod_resources::allocatable_cpus(&socket, pid);
        tree.tell_allocatable(pid, told.map_err(|it| crate::observe::chain(&it)));
    };
    let thread = thread::Builder::new().name("pod-resources".to_owned());
    match thread.spawn(asking) {
        Ok(_) => Allocatable::Asked,
        Err(error) => Allocatable::refused(error.to_string(), now),
    }
}

/// The pods that have series: of those with one name the one that began last.
fn in_series(pods: &[Arc<KnownPod>]) -> ByUid<'_> {
    let mut in_order: Vec<_> = pods.iter().collect();
    in_order.sort_by_key(|it| it.started_at);
    let by_name = in_order.into_iter().map(|it| {
        let pod = &*it.pod;
        let id = (!pod.has_name()).then_some(&pod.uid);
        ((&pod.namespace, &pod.name, id), pod)
    });
    let latest: BTreeMap<_, _> = by_name.collect();
    latest.into_values().map(|it| (&it.uid, it)).collect()
}

/// What is not known is left out. `pods`: those that have series.
fn gauges(status: &PlacementStatus, pods: &ByUid<'_>) -> PlacementGauges {
    let mut gauges = PlacementGauges::default();
    if let Some(pools) = &status.cpus {
        let held = pools.exclusive.iter();
        let exclusive = held.fold(CpuSet::new(), |all, it| all.union(&it.cpus));
        let reserved = pools.reserved.as_ref();
        gauges.pools = Some(PoolCpus {
            shared: pools.shared.len(),
            reserved: reserved.map(CpuSet::len),
            exclusive: exclusive.len(),
            free: reserved.map(|it| pools.shared.difference(it).len()),
        });
        for node in &status.numa_nodes {
            let of_node = exclusive.intersection(&node.cpus).len();
            gauges.exclusive_by_node.insert(node.id, of_node as u64);
            let free = node.free_cpus.as_ref();
            gauges
                .free_cpus
                .extend(free.map(|it| (node.id, it.len() as u64)));
        }
    }
    for node in &status.numa_nodes {
        let tables = node.memory.iter();
        let free = tables.map(|(kind, it)| ((node.id, kind.clone()), it.free));
        gauges.free_bytes.extend(free);
    }
    for (uid, containers) in &status.holdings {
        let Some(pod) = pods.get(uid) else { continue };
        for held in containers {
            let key = ContainerLabels::new(pod, &held.container, "").to_key();
            let of_cpus = || {
                let cpus = held.cpus.as_ref()?;
                let nodes = status.numa_nodes.iter();
                let nodes = nodes.filter(|it| !it.cpus.is_disjoint(cpus));
                NumaMask::new(nodes.map(|it| it.id)).ok()
            };
            let of_memory = held.memory.iter().map(|it| it.numa);
            let nodes = of_memory.reduce(NumaMask::union).or_else(of_cpus);
            gauges.numa_nodes.extend(nodes.map(|it| (key.clone(), it)));
            let n_cpus = held.cpus.as_ref().map(|it| it.len() as u64);
            gauges.exclusive.extend(n_cpus.map(|it| (key, it)));
        }
    }
    gauges
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests make the files that are read; a failed fixture fails the test"
)]
mod tests;
