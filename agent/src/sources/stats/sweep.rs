//! The sweep over all cgroups, in slices, and the readings for decisions between them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::cgroup::{Below, CgroupReader, Context, Faults};
use super::machine::{Hardware, is_clock_set, machine};
use super::node::NodeFigures;
use super::pod::PodReader;
use super::process::HostFacts;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{PodFigures, StallTotals};
use crate::model::pod::{PodUid, QosClass};
use crate::model::record::PodRef;
use crate::model::stats::text::hugetlb_name;
use crate::model::stats::{
    CgroupStats, DeviceNumber, DiskStats, EndedContainer, GroupKind, GroupStats, KnownPod, Machine,
    NodeStats, PodStats, StatsSnapshot,
};
use crate::model::time::WallTime;
use crate::sources::procfs::hugepage_pools;
use crate::sources::sysfs;
use crate::sys::filesystem::FilesystemProbe;
use crate::sys::{Root, Trees, clock, steady};

/// How long a container is shown after its end: as long as cAdvisor keeps what it read.
const SHOWN_AFTER_END: Duration = Duration::from_secs(120);
/// Ended containers that are shown, at most; of more the first that ended are left out. Two for each of
/// the pods that kubelet runs at a time (`maxPods`).
const MAX_ENDED: usize = 220;
/// Descriptors that readings leave to everybody else: programs and rings, two servers of 32 connections,
/// four starts of up to 40 at a time, what a start leaves, and what is opened for a moment. Where there are
/// fewer, nothing is held.
const OF_OTHERS: usize = 320;
/// Beside what readings hold a container has the descriptor of its process and, where no program reports
/// kills, two by which the kernel tells them.
const OF_CONTAINER: usize = 3;
/// Between two looks at what seldom changes.
const MACHINE_EVERY: Duration = Duration::from_secs(10);
/// Far above what any node has right below its root; the rest is left out.
const MAX_SLICES: usize = 100;

/// What is read for a decision beside a pod's own memory, tasks and stalls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The number of processes: a file for each cgroup of the pod is opened.
    pub processes: bool,
    /// The memory of each container: two reads each.
    pub containers: bool,
}

/// What a step came to.
#[derive(Debug)]
pub enum Progress {
    /// There is more to read.
    More,
    Whole(Box<Sweep>),
}

/// A complete sweep.
#[derive(Debug, PartialEq)]
pub struct Sweep {
    /// Without what is on disk.
    pub snapshot: StatsSnapshot,
    /// Counters that fell and were kept as they were.
    pub n_regressions: u64,
    /// Ended containers left out since the last sweep, since too many ended.
    pub n_left_out: u64,
    /// Of the sweep and the readings for decisions since the last one.
    pub faults: Faults,
}

/// See the module.
#[derive(Debug)]
pub struct StatsReader {
    cx: Context,
    root: Root,
    machine: Arc<Machine>,
    /// As `machine` was read, and when it is looked at again, boottime.
    hardware: Hardware,
    machine_due: Duration,
    host: HostFacts,
    node: NodeFigures,
    /// All pods together, and the QoS classes that have a cgroup of their own.
    classes: Vec<(GroupKind, CgroupReader)>,
    slices: BTreeMap<CgroupPath, CgroupReader>,
    kubepods: Option<CgroupPath>,
    /// In the order of the snapshot.
    pods: BTreeMap<Arc<PodRef>, PodReader>,
    refs: BTreeMap<PodUid, Arc<PodRef>>,
    ended: Vec<EndedContainer>,
    n_left_out: u64,
    n_sweeps: u64,
    round: Option<Round>,
}

/// A sweep under way. What was read of pods waits with them.
#[derive(Debug)]
struct Round {
    begun: Duration,
    cpu: Option<Duration>,
    node: Option<NodeStats>,
    /// Groups that are still to be read, the next one last.
    left: Vec<(GroupKind, CgroupPath)>,
    groups: Vec<GroupStats>,
    /// The pod that is being read; those before it are done.
    pod: Option<Arc<PodRef>>,
}

impl StatsReader {
    /// Without any pod; `qos_cgroups` are kubepods and the two of the QoS classes in it, Burstable
    /// first, or `None` where there are none, `nodefs` is the file system that is shown, `page_size` in bytes.
    pub fn new(
        root: &Root,
        trees: Arc<Trees>,
        qos_cgroups: Option<[CgroupPath; 3]>,
        nodefs: FilesystemProbe,
        machine: Arc<Machine>,
        page_size: u64,
    ) -> Self {
        let sizes = hugepage_pools(root).unwrap_or_default();
        // Guaranteed pods are right below kubepods.
        let kinds = [
            GroupKind::Kubepods,
            GroupKind::Qos(QosClass::Burstable),
            GroupKind::Qos(QosClass::BestEffort),
        ];
        let kubepods = qos_cgroups.as_ref().map(|[kubepods, ..]| kubepods.clone());
        Self {
            cx: Context {
                hugepages: sizes.keys().map(|it| hugetlb_name(it.0)).collect(),
                ..Context::new(trees, page_size)
            },
            root: root.clone(),
            machine,
            hardware: Hardware::read(root),
            machine_due: clock::boottime() + MACHINE_EVERY,
            host: HostFacts::read(root),
            node: NodeFigures::open(root, nodefs),
            classes: kinds
                .into_iter()
                .zip(qos_cgroups.into_iter().flatten().map(CgroupReader::at))
                .collect(),
            slices: BTreeMap::new(),
            kubepods,
            pods: BTreeMap::new(),
            refs: BTreeMap::new(),
            ended: Vec::new(),
            n_left_out: 0,
            n_sweeps: 0,
            round: None,
        }
    }

    /// Reads exactly these pods from now on: keeps the files of those whose cgroups are the same,
    /// and lets go of the others. Some hundred microseconds for 250 pods that are known.
    pub fn keep(&mut self, pods: impl IntoIterator<Item = Arc<KnownPod>>) {
        let mut before = std::mem::take(&mut self.pods);
        self.refs.clear();
        for known in pods {
            let key = Arc::clone(&known.pod);
            self.refs.insert(key.uid.clone(), Arc::clone(&key));
            let reader = match before.remove(&key) {
                Some(mut reader) => {
                    reader.update(known, &mut self.cx);
                    reader
                }
                None => PodReader::new(known),
            };
            self.pods.insert(key, reader);
        }
        for mut gone in before.into_values() {
            gone.close(&mut self.cx);
        }
        let n_containers = self.pods.values().map(PodReader::n_containers).sum();
        let limit = steady::max_open_files().unwrap_or(1024);
        self.cx.held.max = max_held(limit, n_containers);
        if let Some(round) = &mut self.round {
            // What is done is passed over.
            round.pod = None;
        }
    }

    /// What a pod uses; `at` is the time of the reading. `None`: the pod is not among those that
    /// are kept, or has no cgroup that could be read.
    pub fn figures(&mut self, uid: &PodUid, at: Duration, wanted: Wanted) -> Option<PodFigures> {
        let pod = self.pods.get_mut(self.refs.get(uid)?)?;
        pod.figures(&mut self.cx, at, wanted)
    }

    /// What all of them use; a pod that cannot be read is not in it.
    pub fn all_figures(&mut self, at: Duration, wanted: Wanted) -> BTreeMap<PodUid, PodFigures> {
        let mut all = BTreeMap::new();
        for (pod, reader) in &mut self.pods {
            if let Some(figures) = reader.figures(&mut self.cx, at, wanted) {
                all.insert(pod.uid.clone(), figures);
            }
        }
        all
    }

    /// Memory stalls of the QoS classes that have a cgroup of their own.
    pub fn qos_stalls(&mut self) -> BTreeMap<QosClass, StallTotals> {
        let mut stalls = BTreeMap::new();
        for (kind, reader) in &mut self.classes {
            if let GroupKind::Qos(class) = kind
                && let Some(stall) = reader.quick(&mut self.cx).and_then(|it| it.stall)
            {
                stalls.insert(*class, stall);
            }
        }
        stalls
    }

    /// Shows an instance that ended for two minutes more.
    pub fn show_ended(&mut self, ended: EndedContainer) {
        let is_same = |it: &EndedContainer| {
            it.pod.uid == ended.pod.uid && it.container.runtime_id == ended.container.runtime_id
        };
        // A later look at the same one knows more.
        self.ended.retain(|it| !is_same(it));
        if self.ended.len() == MAX_ENDED {
            self.ended.remove(0);
            self.n_left_out += 1;
        }
        self.ended.push(ended);
    }

    /// Names may come after an end. `amend`: false if an instance is not to be shown any more.
    pub fn amend_ended(&mut self, amend: impl FnMut(&mut EndedContainer) -> bool) {
        self.ended.retain_mut(amend);
    }

    /// A sweep has begun and is not whole yet.
    pub fn is_under_way(&self) -> bool {
        self.round.is_some()
    }

    /// Goes on with the sweep, or begins one, for about `budget`: one cgroup at least, and as a rule
    /// no more than 0.1 ms too long. `before`: the sweep before this one, which counters are held
    /// against.
    pub fn step(&mut self, budget: Duration, before: Option<&StatsSnapshot>) -> Progress {
        let (started, cpu_before) = (clock::boottime(), clock::thread_cpu());
        let mut round = match self.round.take() {
            Some(round) => round,
            None => self.begin(started),
        };
        let mut now = started;
        let is_done = loop {
            if !self.read_next(&mut round, now) {
                break true;
            }
            now = clock::boottime();
            if now.saturating_sub(started) >= budget {
                break false;
            }
        };
        let sweep = is_done.then(|| self.finish(&mut round, now, before));
        round.cpu = (|| {
            let used = clock::thread_cpu()?.checked_sub(cpu_before?)?;
            Some(round.cpu?.saturating_add(used))
        })();
        match sweep {
            Some(mut sweep) => {
                let cost = round.cpu.and_then(|it| u64::try_from(it.as_micros()).ok());
                sweep.snapshot.cost_us = cost;
                Progress::Whole(Box::new(sweep))
            }
            None => {
                self.round = Some(round);
                Progress::More
            }
        }
    }

    fn begin(&mut self, now: Duration) -> Round {
        self.n_sweeps += 1;
        if now >= self.machine_due {
            self.machine_due = now + MACHINE_EVERY;
            self.look_at_machine();
        }
        self.look_for_slices();
        let slices = self.slices.keys().rev();
        let slices = slices.map(|path| (GroupKind::Slice, path.clone()));
        let classes = self.classes.iter().rev();
        let classes = classes.map(|(kind, reader)| (*kind, reader.path().clone()));
        Round {
            begun: now,
            cpu: Some(Duration::ZERO),
            node: None,
            left: slices.chain(classes).collect(),
            groups: Vec::new(),
            pod: None,
        }
    }

    /// CPUs, memory and swap come and go, and the clock is set. What cannot be read is as it was.
    fn look_at_machine(&mut self) {
        let hardware = Hardware::read(&self.root);
        let is_as_before = hardware == self.hardware && !is_clock_set(&self.machine);
        if !is_as_before && let Ok(topology) = sysfs::topology(&self.root) {
            self.hardware = hardware;
            let Machine {
                node_name,
                is_unified,
                ..
            } = &*self.machine;
            self.machine = Arc::new(machine(&self.root, node_name, &topology, *is_unified));
        }
    }

    /// Cgroups right below the root that have no pods in them.
    fn look_for_slices(&mut self) {
        let tree = self.cx.trees.of("memory");
        let names = tree.and_then(|it| it.dir.list_dirs().ok());
        let mut before = std::mem::take(&mut self.slices);
        let of_pods = self.kubepods.as_ref();
        let of_pods = of_pods.and_then(|it| it.components().next());
        let names = names.unwrap_or_default().into_iter();
        // A container that its runtime has put here (`model::kube_cgroup`), or left.
        let names = names.filter(|it| Some(it.as_str()) != of_pods && !it.contains(':'));
        for path in names
            .take(MAX_SLICES)
            .filter_map(|it| CgroupPath::root().join(&it).ok())
        {
            let reader = before.remove(&path);
            let reader = reader.unwrap_or_else(|| CgroupReader::at(path.clone()));
            self.slices.insert(path, reader);
        }
        for mut gone in before.into_values() {
            gone.close(&mut self.cx);
        }
    }

    /// One cgroup. False: all are read.
    fn read_next(&mut self, round: &mut Round, at: Duration) -> bool {
        if round.node.is_none() {
            round.node = Some(self.node.read(&mut self.cx, at));
            return true;
        }
        if let Some((kind, path)) = round.left.pop() {
            let (reader, below) = match kind {
                GroupKind::Slice => (self.slices.get_mut(&path), Below::Seldom),
                _ => {
                    let mut classes = self.classes.iter_mut();
                    let found = classes.find(|(_, it)| *it.path() == path);
                    (found.map(|(_, it)| it), Below::Uncounted)
                }
            };
            if let Some(reader) = reader
                && let Some(stats) = reader.full(&mut self.cx, at, below)
            {
                round.groups.push(GroupStats {
                    kind,
                    id: reader.id(),
                    made_at: reader.made_at(),
                    stats,
                });
            }
            return true;
        }
        let from = match &round.pod {
            Some(pod) => self.pods.range_mut(Arc::clone(pod)..),
            None => self.pods.range_mut::<Arc<PodRef>, _>(..),
        };
        for (pod, reader) in from {
            if reader.step(&mut self.cx, at, self.n_sweeps, &self.root, &self.host) {
                if round.pod.as_ref() != Some(pod) {
                    round.pod = Some(Arc::clone(pod));
                }
                return true;
            }
        }
        false
    }

    fn finish(
        &mut self,
        round: &mut Round,
        now: Duration,
        before: Option<&StatsSnapshot>,
    ) -> Sweep {
        let mut pods: Vec<PodStats> = self.pods.values_mut().filter_map(PodReader::take).collect();
        self.ended
            .retain(|it| now.saturating_sub(it.at) < SHOWN_AFTER_END);
        for ended in &self.ended {
            let kept = self.refs.get(&ended.pod.uid);
            // One of the two was taken before the name of the pod came.
            let kept = kept.filter(|it| it.has_name() != ended.pod.has_name());
            add_ended(&mut pods, kept.unwrap_or(&ended.pod), ended);
        }
        let mut groups = std::mem::take(&mut round.groups);
        for group in &mut groups {
            let is_in = |it: &&PodStats| match group.kind {
                GroupKind::Kubepods => true,
                GroupKind::Qos(class) => it.qos == class,
                GroupKind::Slice => false,
            };
            if group.kind != GroupKind::Slice {
                let counts = pods.iter().filter(is_in);
                let counts = counts.filter_map(|it| Some(it.stats.as_ref()?.n_processes));
                group.stats.n_processes = counts.sum();
            }
        }
        groups.sort_by(|a, b| a.id.cmp(&b.id));
        let node = round.node.take().unwrap_or_default();
        let mut snapshot = StatsSnapshot {
            sweep: self.n_sweeps,
            begun: round.begun,
            ended: now,
            at: WallTime::from_epoch(clock::wall()),
            cost_us: None,
            machine: Arc::clone(&self.machine),
            node,
            groups,
            pods,
        };
        name_devices(&mut snapshot);
        Sweep {
            n_regressions: before.map_or(0, |it| keep_rising(&mut snapshot, it)),
            n_left_out: std::mem::take(&mut self.n_left_out),
            snapshot,
            faults: std::mem::take(&mut self.cx.faults),
        }
    }
}

/// One cgroup, from files that are opened for it; `at` is the time of the reading, `page_size` in
/// bytes. For the last look at a cgroup before it is removed. `None`: there is no such cgroup.
pub fn read_once(
    trees: &Arc<Trees>,
    path: &CgroupPath,
    at: Duration,
    page_size: u64,
) -> Option<CgroupStats> {
    let mut cx = Context::new(Arc::clone(trees), page_size);
    CgroupReader::at(path.clone()).full(&mut cx, at, Below::Uncounted)
}

/// Files that may be held for readings beside `n_containers`: what is left of the limit.
fn max_held(limit: u64, n_containers: usize) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    limit.saturating_sub(OF_OTHERS.saturating_add(n_containers * OF_CONTAINER))
}

/// `of`: the pod in which it is shown.
fn add_ended(pods: &mut Vec<PodStats>, of: &Arc<PodRef>, ended: &EndedContainer) {
    let index = match pods.binary_search_by(|it| it.pod.cmp(of)) {
        Ok(index) => index,
        Err(index) => {
            let pod = PodStats {
                pod: Arc::clone(of),
                qos: ended.qos,
                id: ended.pod_cgroup.to_string(),
                started_at: ended.pod_started_at,
                stats: None,
                network: Vec::new(),
                ephemeral_storage: None,
                volumes: BTreeMap::new(),
                volume_file_systems: BTreeMap::new(),
                containers: Vec::new(),
            };
            pods.insert(index, pod);
            index
        }
    };
    // It may have been read before its end in this sweep.
    let containers = &mut pods[index].containers;
    containers.retain(|it| it.runtime_id != ended.container.runtime_id);
    containers.push(ended.container.clone());
}

fn name_devices(snapshot: &mut StatsSnapshot) {
    let disks = snapshot.node.disks.iter();
    let names: BTreeMap<DeviceNumber, String> =
        disks.map(|it| (it.number, it.name.clone())).collect();
    let name = |stats: &mut CgroupStats| {
        for device in &mut stats.io {
            device.name = names.get(&device.number).cloned();
        }
    };
    name(&mut snapshot.node.cgroup);
    for group in &mut snapshot.groups {
        name(&mut group.stats);
    }
    for pod in &mut snapshot.pods {
        pod.stats.iter_mut().for_each(name);
        for container in &mut pod.containers {
            name(&mut container.stats);
        }
    }
}

/// Counters of a cgroup never fall from one sweep to the next.
fn keep_rising(now: &mut StatsSnapshot, before: &StatsSnapshot) -> u64 {
    let replaced = replaced(&now.node.disks, &before.node.disks);
    let mut n = now.node.cgroup.keep_rising(&before.node.cgroup, &replaced);
    for group in &mut now.groups {
        let found = before.groups.binary_search_by(|it| it.id.cmp(&group.id));
        if let Ok(index) = found {
            n += group
                .stats
                .keep_rising(&before.groups[index].stats, &replaced);
        }
    }
    for pod in &mut now.pods {
        let Ok(index) = before.pods.binary_search_by(|it| it.pod.cmp(&pod.pod)) else {
            continue;
        };
        let before = &before.pods[index];
        if let (Some(now), Some(before)) = (&mut pod.stats, &before.stats) {
            n += now.keep_rising(before, &replaced);
        }
        for container in &mut pod.containers {
            let mut known = before.containers.iter();
            if let Some(before) = known.find(|it| it.runtime_id == container.runtime_id) {
                n += container.stats.keep_rising(&before.stats, &replaced);
            }
        }
    }
    n
}

/// Numbers that other disks have by now: what a disk counts for all only rises while it is there.
fn replaced(now: &[DiskStats], before: &[DiskStats]) -> BTreeSet<DeviceNumber> {
    let counted = |it: &DiskStats| {
        let n = it.reads.completed.saturating_add(it.writes.completed);
        (it.number, n)
    };
    let before: BTreeMap<DeviceNumber, u64> = before.iter().map(counted).collect();
    let now = now.iter().map(counted);
    let fell = now.filter(|(number, n)| before.get(number).is_some_and(|it| n < it));
    fell.map(|(number, _)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::CgroupId;
    use crate::model::stats::tests::example_stats;
    use crate::model::stats::{DeviceIo, DiskCounts, IoCounts};

    #[test]
    fn what_was_read_from_a_disk_in_the_place_of_another_is_counted_anew() {
        let sweep = |of_disk: u64, of_container: u64| {
            let mut stats = example_stats(60);
            let reads = DiskCounts {
                completed: of_disk,
                ..DiskCounts::default()
            };
            stats.node.disks = vec![DiskStats {
                reads,
                ..DiskStats::default()
            }];
            let container = &mut stats.pods[0].containers[0].stats;
            container.cgroup_id = Some(CgroupId(7));
            let read = IoCounts {
                bytes: of_container,
                operations: 1,
            };
            container.io = vec![DeviceIo {
                read,
                ..DeviceIo::default()
            }];
            stats
        };
        for (of_disk, n_regressions, shown) in [(110, 1, 70), (9, 0, 4)] {
            let mut now = sweep(of_disk, 4);
            assert_eq!(keep_rising(&mut now, &sweep(100, 70)), n_regressions);
            let io = &now.pods[0].containers[0].stats.io;
            assert_eq!(io[0].read.bytes, shown, "{of_disk}");
        }
    }

    #[test]
    fn readings_leave_descriptors_to_starts_and_records() {
        for (limit, n_containers, held) in [
            (1 << 20, 500, (1 << 20) - 1820),
            (1024, 60, 524),
            (1024, 300, 0),
            (256, 10, 0),
            (0, 1, 0),
        ] {
            assert_eq!(
                max_held(limit, n_containers),
                held,
                "{limit} {n_containers}"
            );
        }
    }
}
