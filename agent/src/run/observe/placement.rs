//! Which CPUs, memory and devices kubelet has given to which containers, by the files that it keeps of that: they are
//! right without an API server, and say nothing of names.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::kubelet::Kubelet;
use crate::config::{Compat, DEFAULT_ROOT_DIRECTORY, KubeletConfig};
use crate::decide::placement::foreign::ForeignBooks;
use crate::decide::placement::managers::{PlacementSettings, reserved_cpus};
use crate::model::capacity::NodeCapacity;
use crate::model::cpuset::CpuSet;
use crate::model::kubelet_state::{CPU_FILE, MEMORY_FILE, OfPolicy, gives_out};
use crate::model::numa::NumaMask;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::stats::KnownPod;
use crate::model::status::PlacementStatus;
use crate::model::topology::{NumaNodeId, Topology};
use crate::observe::metrics::{PlacementGauges, PoolCpus};
use crate::run::amounts;
use crate::run::publisher::Began;
use crate::sources::kubelet_state::{self, KubeletStateError};
use crate::sys::{FsError, Root};

/// Between two looks at the files, while pods come and go.
const LOOK_GAP: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// As kubelet had them when it ran last; `None`: none was known.
    found: Option<Found>,
    /// The files are to be read again.
    pub(super) is_behind: bool,
    /// When that is due at the earliest, boottime.
    due: Duration,
    /// As the metrics have it.
    shown: Shown,
}

/// What is shown of it as metrics.
#[derive(Debug, Default, PartialEq)]
struct Shown {
    gauges: PlacementGauges,
    devices: BTreeMap<(String, Option<NumaNodeId>), u64>,
}

#[derive(Debug)]
struct Found {
    books: ForeignBooks,
    /// CPUs that it keeps for the system; `None`: which is not known.
    reserved: Option<CpuSet>,
    /// Why some of it is not known, a line each.
    faults: Vec<String>,
}

impl Found {
    /// Each file by itself. The error is that kubelet is gone.
    fn read(
        kubelet: &Kubelet,
        root: &Root,
        capacity: &NodeCapacity,
        topology: &Topology,
    ) -> Result<Self, FsError> {
        let files = kubelet.files(root)?;
        let read = |path: &Path, max_bytes| files.bytes(path, max_bytes);
        let directory = &kubelet.root_directory;
        let cpu = kubelet_state::find_cpus(&read, directory);
        let memory = kubelet_state::find_memory(&read, directory);
        // Wherever the rest of its state is (pkg/kubelet/cm/devicemanager/manager.go).
        let devices = kubelet_state::read_devices(&read, Path::new(DEFAULT_ROOT_DIRECTORY));
        let config = &kubelet.settings.kubelet.placement;
        let mut faults = Vec::new();
        let books = ForeignBooks {
            cpu: of_policy(
                cpu,
                "CPUs",
                &directory.join(CPU_FILE),
                ["cpuManagerPolicy", config.cpu_manager_policy.as_str()],
                &mut faults,
            ),
            memory: of_policy(
                memory,
                "memory",
                &directory.join(MEMORY_FILE),
                ["memoryManagerPolicy", config.memory_manager_policy.as_str()],
                &mut faults,
            ),
            devices: usable(devices, "devices", None, &mut faults),
        };
        Ok(Self {
            books,
            reserved: reserved(&kubelet.settings.kubelet, capacity, topology),
            faults,
        })
    }
}

/// Which CPUs kubelet keeps for the system, as it finds it out when it starts (pkg/kubelet/cm/cpumanager/policy_static.go,
/// `NewStaticPolicy`).
fn reserved(
    kubelet: &KubeletConfig,
    capacity: &NodeCapacity,
    topology: &Topology,
) -> Option<CpuSet> {
    let configured = kubelet.reserved_system_cpus.clone();
    let allocatable = amounts::allocatable(kubelet, capacity).ok();
    let of_number = allocatable.and_then(|it| {
        reserved_cpus(&PlacementSettings {
            compat: Compat::Kubelet,
            config: kubelet.placement.clone(),
            reserved_system_cpus: configured.clone(),
            reservation: it.reservation,
            topology: topology.clone(),
        })
    });
    of_number.or(configured)
}

/// `configured`: the policy that kubelet was told by `field`. It starts with none but that of its file, so another one
/// is not its own.
fn of_policy<T>(
    found: Result<Option<OfPolicy<T>>, KubeletStateError>,
    what: &str,
    file: &Path,
    [field, configured]: [&str; 2],
    faults: &mut Vec<String>,
) -> Option<OfPolicy<T>> {
    let missing = gives_out(configured).then(|| format!("there is no {}", file.display()));
    let found = usable(found, what, missing, faults)?;
    let policy = &found.policy;
    if policy != configured {
        faults.push(format!(
            "kubelet places by {field} {policy}, as its file says, and not by {configured}"
        ));
    }
    Some(found)
}

/// `missing`: what it means that there is no file.
fn usable<T>(
    found: Result<Option<T>, KubeletStateError>,
    what: &str,
    missing: Option<String>,
    faults: &mut Vec<String>,
) -> Option<T> {
    let why = match found {
        Ok(Some(found)) => return Some(found),
        Ok(None) => missing,
        Err(error) => Some(crate::observe::chain(&error)),
    };
    faults.extend(why.map(|it| format!("to whom kubelet has given {what} is not known: {it}")));
    None
}

impl Placement {
    /// Boottime; `None`: nothing has changed.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.is_behind.then_some(self.due)
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        let faults = self.found.as_ref().map(|it| it.faults.clone());
        faults.unwrap_or_default()
    }

    /// See [`ForeignBooks::summary`].
    pub(super) fn status<'a>(
        &self,
        kubelet: &KubeletConfig,
        topology: &Topology,
        pod_of: impl Fn(&PodUid) -> Option<&'a PodRef>,
    ) -> Option<PlacementStatus> {
        let Found {
            books, reserved, ..
        } = self.found.as_ref()?;
        Some(books.summary(&kubelet.placement, reserved.as_ref(), topology, pod_of))
    }

    /// See [`ForeignBooks::cpus_of`].
    pub(super) fn cpuset(&self, pod: &PodUid, container: &str) -> Option<String> {
        let books = &self.found.as_ref()?.books;
        books.cpus_of(pod, container).map(ToString::to_string)
    }
}

impl Loop {
    /// Reads kubelet's files again, if pods have come or gone since. While kubelet is down they stand.
    pub(super) fn look_for_places(&mut self, now: Duration) {
        if !self.placement.is_behind || now < self.placement.due {
            return;
        }
        let began = Began::now();
        let root = Root::host();
        let found = match &self.kubelet {
            Err(_) => Some(None),
            // Another process may have its number by now.
            Ok(kubelet) if !kubelet.is_there(&root) => None,
            Ok(kubelet) => {
                let (capacity, topology) = (&self.node.capacity, &self.node.topology);
                Found::read(kubelet, &root, capacity, topology)
                    .ok()
                    .map(Some)
            }
        };
        if let Some(found) = found {
            let is_there = |uid: &PodUid| self.tree.readings.pod(uid).is_some();
            let books = found.as_ref().map(|it| &it.books);
            self.placement.is_behind = books.is_some_and(|it| it.is_behind(is_there));
            self.placement.found = found;
            self.publisher.changed(now);
        }
        self.placement.due = began.due_again(LOOK_GAP);
    }

    /// Shows it as metrics, if it is another thing than before.
    pub(super) fn show_places(&mut self, status: Option<&PlacementStatus>, pods: &[Arc<KnownPod>]) {
        let by_uid: BTreeMap<&PodUid, &PodRef> =
            pods.iter().map(|it| (&it.pod.uid, &*it.pod)).collect();
        let pod_of = |uid: &PodUid| by_uid.get(uid).copied();
        let found = self.placement.found.as_ref();
        let devices = found.map(|it| it.books.devices_held(|uid| pod_of(uid).is_some()));
        let shown = Shown {
            gauges: status.map_or_else(PlacementGauges::default, |it| gauges(it, pod_of)),
            devices: devices.unwrap_or_default(),
        };
        if shown == self.placement.shown {
            return;
        }
        self.metrics.set_placement(&shown.gauges);
        let devices = shown.devices.iter();
        self.metrics
            .set_devices_held(devices.map(|((resource, node), n)| (resource.as_str(), *node, *n)));
        self.placement.shown = shown;
    }
}

/// What is not known is left out. `pod_of`: `None` of one that is gone.
fn gauges<'a>(
    status: &PlacementStatus,
    pod_of: impl Fn(&PodUid) -> Option<&'a PodRef>,
) -> PlacementGauges {
    let mut gauges = PlacementGauges::default();
    if let Some(pools) = &status.cpus {
        let held = pools.exclusive.iter();
        let exclusive = held.fold(CpuSet::new(), |all, it| all.union(&it.cpus));
        let free = pools.reserved.as_ref();
        gauges.pools = Some(PoolCpus {
            shared: pools.shared.len(),
            reserved: pools.reserved.as_ref().map(CpuSet::len),
            exclusive: exclusive.len(),
            free: free.map(|it| pools.shared.difference(it).len()),
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
        let Some(pod) = pod_of(uid) else { continue };
        for held in containers {
            let key = (
                pod.namespace.clone(),
                pod.name.clone(),
                held.container.clone(),
            );
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
