//! The thread that measures what pods have on disk: a walk over their files may take long, and
//! memory must not wait for it.

mod deleted;
mod host_paths;
mod old_logs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use self::deleted::Deleted;
use self::host_paths::HostPathKeeper;
pub(super) use self::old_logs::OldLogs;
use crate::model::eviction::{ContainerFigures, DiskUse};
use crate::model::pod::PodUid;
use crate::model::stats::FileSystemStats;
use crate::run::RunError;
use crate::run::own::evictions::Candidate;
use crate::run::own::told::Unmeasured;
use crate::sources::cgroupfs::{CgroupReader, ReadError};
use crate::sources::disk_use::{DiskUses, Stepped, Tree};
use crate::sources::stats::file_system;
use crate::sys::{Root, chain, clock};

/// Kubelet walks a volume every 60 to 120 s.
const AGE_WITHOUT_PRESSURE: Duration = Duration::from_secs(60);
/// While a disk is short: victims are not chosen by what they had long ago.
const AGE_UNDER_PRESSURE: Duration = Duration::from_secs(10);
/// Names looked at in one go, some ten milliseconds; between two the thread rests as long.
const STEP: usize = 4096;
const REST: Duration = Duration::from_millis(10);
/// Whoever is held up for so long by one step has a disk that does not answer.
const HUNG: Duration = Duration::from_secs(60);

/// What a pod has on disk. `None` in it: not measured yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PodDisk {
    /// All of it.
    pub storage: Option<u64>,
    /// Of those that run.
    pub containers: BTreeMap<String, ContainerFigures>,
    pub volumes: BTreeMap<String, DiskUse>,
    /// Of the volumes in memory.
    pub file_systems: BTreeMap<String, FileSystemStats>,
    /// See [`PodFigures::shared`](crate::model::eviction::PodFigures::shared).
    pub shared: DiskUse,
    /// When the first of these walks began. `None`: some of it was not measured, or not all of it could be.
    pub since: Option<Duration>,
}

/// How old a measure may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    Calm,
    /// A disk is short: what was measured before this time (boottime) is measured again at once.
    ShortSince(Duration),
}

struct Order {
    candidates: Arc<Vec<Candidate>>,
    freshness: Freshness,
}

/// What all pods have.
#[derive(Clone, Debug, Default, PartialEq)]
struct All {
    pods: BTreeMap<PodUid, PodDisk>,
    /// Since when (boottime) all of it was measured; `None`: some of it never was.
    oldest: Option<Duration>,
    failing: Option<Fault>,
}

/// What has failed to be measured for the longest.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault {
    what: String,
    /// As the last look was answered.
    why: String,
    /// When (boottime) the first one was that failed.
    since: Duration,
}

/// Hands out what was measured last; the thread ends when this is dropped.
pub(super) struct DiskKeeper {
    orders: Sender<Order>,
    measured: Arc<Mutex<All>>,
    last_step: Arc<LastStep>,
    pub(super) host_paths: HostPathKeeper,
}

impl DiskKeeper {
    /// `cgroups`: where the processes of pods are found whose open files are looked at; `None`: nobody's are.
    pub(super) fn start(cgroups: Option<CgroupReader>) -> Result<Self, RunError> {
        let (orders, todo) = channel();
        let measured = Arc::new(Mutex::new(All::default()));
        let last_step = Arc::new(LastStep::default());
        last_step.note(clock::monotonic());
        let (results, step) = (Arc::clone(&measured), Arc::clone(&last_step));
        thread::Builder::new()
            .name("disk".to_owned())
            .spawn(move || run(&todo, &results, &step, cgroups))
            .map_err(RunError::Thread)?;
        Ok(Self {
            orders,
            measured,
            last_step,
            host_paths: HostPathKeeper::start()?,
        })
    }

    /// Measures these pods from now on, more often while a disk is short.
    pub(super) fn order(&self, candidates: Arc<Vec<Candidate>>, freshness: Freshness) {
        // The thread ends with this.
        let order = Order {
            candidates,
            freshness,
        };
        self.orders.send(order).ok();
    }

    pub(super) fn of(&self, pod: &PodUid) -> Option<PodDisk> {
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        measured.pods.get(pod).cloned()
    }

    /// That the thread has been in one step for too long, or has failed for as long.
    pub(super) fn unmeasured(&self) -> Option<Unmeasured> {
        if let Some(lasted) = self.last_step.hung_for(clock::monotonic()) {
            let fault = None;
            return Some(Unmeasured { lasted, fault });
        }
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let failing = measured.failing.as_ref()?;
        let lasted = clock::boottime().saturating_sub(failing.since);
        (lasted >= HUNG).then(|| Unmeasured {
            lasted,
            fault: Some((failing.what.clone(), failing.why.clone())),
        })
    }

    /// Whether every one of these pods was measured at that time or later.
    pub(super) fn is_measured_since(&self, since: Duration, pods: &[Candidate]) -> bool {
        let measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pods = pods.iter().map(|it| &it.facts.pod.uid);
        measured.oldest.is_some_and(|it| it >= since)
            && pods.all(|it| measured.pods.contains_key(it))
    }
}

/// When the thread began its last step: milliseconds of the monotonic clock.
#[derive(Debug, Default)]
struct LastStep(AtomicU64);

impl LastStep {
    fn note(&self, now: Duration) {
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.0.store(now, Ordering::Relaxed);
    }

    fn hung_for(&self, now: Duration) -> Option<Duration> {
        let began = Duration::from_millis(self.0.load(Ordering::Relaxed));
        let age = now.saturating_sub(began);
        (age >= HUNG).then_some(age)
    }
}

fn run(
    todo: &Receiver<Order>,
    results: &Mutex<All>,
    last_step: &LastStep,
    cgroups: Option<CgroupReader>,
) {
    let processes = move |pod: &Candidate| {
        let pids = cgroups.as_ref().map(|it| it.pids_in(&pod.cgroup, "memory"));
        match pids {
            None => Ok(BTreeSet::new()),
            Some(Err(ReadError::Fs { source, .. })) if source.is_gone() => Ok(BTreeSet::new()),
            Some(pids) => pids.map_err(|it| chain(&it)),
        }
    };
    let mut measuring = Measuring::new(&Root::host(), Box::new(processes));
    loop {
        let wait = match measuring.is_busy {
            true => REST,
            false => Duration::from_secs(1),
        };
        match todo.recv_timeout(wait) {
            Ok(newest) => measuring.take(todo.try_iter().last().unwrap_or(newest)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        last_step.note(clock::monotonic());
        if let Some(all) = measuring.step(clock::boottime()) {
            *results.lock().unwrap_or_else(PoisonError::into_inner) = all;
        }
    }
}

/// The trees of the pods that were ordered last.
struct Measuring {
    uses: DiskUses,
    deleted: Deleted,
    order: Order,
    /// There is more to do at once.
    is_busy: bool,
    /// The pods are others than those that were handed out.
    is_new: bool,
    /// As it was handed out.
    failing: Option<Fault>,
}

impl Measuring {
    fn new(root: &Root, processes: deleted::Processes) -> Self {
        Self {
            uses: DiskUses::new(root),
            deleted: Deleted::new(root, processes),
            order: Order {
                candidates: Arc::default(),
                freshness: Freshness::Calm,
            },
            is_busy: false,
            is_new: false,
            failing: None,
        }
    }

    fn take(&mut self, order: Order) {
        self.uses.keep(order.candidates.iter().flat_map(trees));
        self.deleted.keep(&order.candidates);
        self.order = order;
        (self.is_busy, self.is_new) = (true, true);
    }

    /// One step of the walks that are due. What all pods have, if any of it is new.
    fn step(&mut self, now: Duration) -> Option<All> {
        let measured_before = match self.order.freshness {
            Freshness::Calm => now.saturating_sub(AGE_WITHOUT_PRESSURE),
            Freshness::ShortSince(since) => since.max(now.saturating_sub(AGE_UNDER_PRESSURE)),
        };
        let since = match self.order.freshness {
            Freshness::Calm => Duration::ZERO,
            Freshness::ShortSince(since) => since,
        };
        let candidates = &self.order.candidates;
        // Files that are deleted first: one that is deleted between the two would count twice.
        let stepped = match self.deleted.look(candidates, now, measured_before, since) {
            true => Stepped {
                has_more: true,
                n_measured: 0,
            },
            false => self.uses.step(STEP, now, measured_before),
        };
        let uses = &self.uses;
        let is_settled = self.deleted.settle(candidates, |it| walked_since(uses, it));
        self.is_busy = stepped.has_more;
        let walks = uses.failing();
        let walks = walks.map(|(path, it)| (path.display().to_string(), it));
        let looks = self.deleted.failing();
        let looks = looks.map(|(uid, it)| (format!("open files of pod {uid}"), it));
        let failing = walks.into_iter().chain(looks);
        let failing = failing.min_by_key(|(_, it)| it.since);
        let failing = failing.map(|(what, it)| Fault {
            what,
            why: it.why.clone(),
            since: it.since,
        });
        let is_new = std::mem::take(&mut self.is_new)
            || stepped.n_measured > 0
            || is_settled
            || self.failing != failing;
        self.failing = failing;
        is_new.then(|| {
            let of = |it: &Candidate| {
                let disk = figures(&self.uses, it);
                (it.facts.pod.uid.clone(), self.deleted.added(it, disk))
            };
            All {
                pods: self.order.candidates.iter().map(of).collect(),
                oldest: self.uses.oldest(),
                failing: self.failing.clone(),
            }
        })
    }
}

/// When the first of the walks began that tell what a pod has. `None`: some of it was not measured.
fn walked_since(uses: &DiskUses, pod: &Candidate) -> Option<Duration> {
    let trees = trees(pod).into_iter();
    let walked = trees.map(|it| Some(uses.get(&it.path)?.at));
    walked.min().flatten()
}

/// Everything of a pod that is measured; volumes lie in its directory and are measured apart.
fn trees(pod: &Candidate) -> Vec<Tree> {
    let logs = pod.containers.iter();
    let logs = logs.map(|(name, _)| tree(&pod.logs, &pod.logs.join(name), false));
    let volumes = pod.volumes.iter();
    let volumes =
        volumes.map(|(name, path)| tree(&pod.directory, path, pod.is_volume_in_memory(name)));
    let whole = [&pod.logs, &pod.directory].map(|it| tree(it, it, false));
    whole.into_iter().chain(logs).chain(volumes).collect()
}

/// Part of a directory of a pod, which may have something mounted on it as well.
fn tree(whole: &Path, path: &Path, is_in_memory: bool) -> Tree {
    Tree {
        path: path.to_owned(),
        above: whole.parent().unwrap_or(whole).to_owned(),
        is_in_memory,
    }
}

fn figures(uses: &DiskUses, pod: &Candidate) -> PodDisk {
    let of = |path: &Path| uses.get(path).map(|it| it.disk_use);
    let volumes: BTreeMap<String, DiskUse> = pod
        .volumes
        .iter()
        .filter_map(|(name, path)| Some((name.clone(), of(path)?)))
        .collect();
    let file_systems = pod.volumes.iter().filter_map(|(name, path)| {
        let memory = uses.get(path)?.memory?;
        Some((name.clone(), file_system("tmpfs".to_owned(), &memory)))
    });
    let (directory, logs) = (of(&pod.directory), of(&pod.logs));
    // A directory that is not there yet holds nothing.
    let whole = [logs, directory];
    let storage = whole.iter().flatten().filter_map(|it| it.bytes);
    let is_local = |name: &str| {
        let mut facts = pod.facts.volumes.iter();
        facts.any(|it| it.is_local && it.name == name)
    };
    // Volumes in memory are other file systems, and no part of the directory.
    let on_disk = volumes.iter().filter(|(name, _)| is_local(name));
    let files = directory.map(|it| without(it, on_disk.map(|it| it.1)));
    let only = pod.only_container();
    let containers = pod.containers.iter().map(|(name, _)| {
        let figures = ContainerFigures {
            root_fs: match files.filter(|_| only.is_some()) {
                Some(files) => files,
                None => DiskUse {
                    bytes: directory.map(|_| 0),
                    inodes: directory.map(|_| 0),
                },
            },
            logs: of(&pod.logs.join(name)).unwrap_or_default(),
            ..ContainerFigures::default()
        };
        (name.clone(), figures)
    });
    let containers: BTreeMap<String, ContainerFigures> = containers.collect();
    let left = logs.map(|it| without(it, containers.values().map(|it| &it.logs)));
    let files = files.filter(|_| only.is_none());
    let measured = trees(pod).into_iter().map(|it| {
        let measured = uses.get(&it.path)?;
        // What is not there is measured too.
        let is_all = measured.is_complete || measured.disk_use == DiskUse::default();
        is_all.then_some(measured.at)
    });
    PodDisk {
        since: measured.min().flatten(),
        storage: whole.iter().all(Option::is_some).then(|| storage.sum()),
        shared: sum([left, files].into_iter().flatten()),
        containers,
        file_systems: file_systems.collect(),
        volumes,
    }
}

/// Of what is known.
fn sum(parts: impl Iterator<Item = DiskUse> + Clone) -> DiskUse {
    let all = |of: fn(DiskUse) -> Option<u64>| {
        let mut known = parts.clone().filter_map(of);
        let first = known.next()?;
        Some(known.fold(first, u64::saturating_add))
    };
    DiskUse {
        bytes: all(|it| it.bytes),
        inodes: all(|it| it.inodes),
    }
}

fn without<'a>(all: DiskUse, volumes: impl Iterator<Item = &'a DiskUse> + Clone) -> DiskUse {
    let less = |all: Option<u64>, of: fn(&DiskUse) -> Option<u64>| {
        let volumes: u64 = volumes.clone().filter_map(of).sum();
        all.map(|it| it.saturating_sub(volumes))
    };
    DiskUse {
        bytes: less(all.bytes, |it| it.bytes),
        inodes: less(all.inodes, |it| it.inodes),
    }
}

#[cfg(test)]
mod tests;
