//! The thread that measures directories of the host which are volumes of pods: who else may have filled a disk. A
//! thread of its own, since such a directory may be on a network disk that does not answer, and pods are measured on.
//!
//! It walks once each time that it is asked, within [`MAX_NAMES`], and only what is on the disk of the pods.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{REST, STEP};
use crate::decide::eviction::writer::HostPath;
use crate::model::record::PodRef;
use crate::run::RunError;
use crate::run::own::evictions::Candidate;
use crate::sources::disk_use::Walk;

/// Names looked at for one order, of all directories: some seconds. Arbitrary.
const MAX_NAMES: usize = 1 << 18;

struct Order {
    /// One pod of each.
    paths: BTreeMap<PathBuf, PodRef>,
    /// On the disk that is short.
    directory: PathBuf,
    at: Duration,
}

/// What was found last.
#[derive(Debug, Default)]
struct Found {
    /// When it was ordered, boottime.
    at: Option<Duration>,
    paths: Vec<HostPath>,
}

/// The thread ends when this is dropped.
pub(in crate::run::own::pressure) struct HostPathKeeper {
    orders: Sender<Order>,
    found: Arc<Mutex<Found>>,
}

impl HostPathKeeper {
    pub(super) fn start() -> Result<Self, RunError> {
        let (orders, todo) = channel();
        let found = Arc::new(Mutex::new(Found::default()));
        let results = Arc::clone(&found);
        thread::Builder::new()
            .name("host-paths".to_owned())
            .spawn(move || run(&todo, &results))
            .map_err(RunError::Thread)?;
        Ok(Self { orders, found })
    }

    /// Directories that hold the pods' own are left out: they have everything in them.
    pub(in crate::run::own::pressure) fn order(&self, candidates: &[Candidate], at: Duration) {
        let directories = candidates.iter().filter_map(|it| it.directory.parent());
        let Some(directory) = directories.min() else {
            return;
        };
        let volumes = candidates.iter().flat_map(|pod| {
            let paths = pod.host_paths.iter();
            paths.map(|path| (path.clone(), pod.facts.pod.clone()))
        });
        let order = Order {
            paths: volumes
                .filter(|(path, _)| !directory.starts_with(path))
                .collect(),
            directory: directory.to_owned(),
            at,
        };
        // The thread ends with this.
        self.orders.send(order).ok();
    }

    /// What was found for an order of that time or later.
    pub(in crate::run::own::pressure) fn found_since(
        &self,
        since: Duration,
    ) -> Option<Vec<HostPath>> {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = found.at.is_some_and(|it| it >= since);
        is_new.then(|| found.paths.clone())
    }
}

fn run(todo: &Receiver<Order>, results: &Mutex<Found>) {
    while let Ok(order) = todo.recv() {
        // What was ordered meanwhile is about the same disk.
        let order = todo.try_iter().last().unwrap_or(order);
        let found = Found {
            at: Some(order.at),
            paths: measure(&order),
        };
        *results.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

fn measure(order: &Order) -> Vec<HostPath> {
    let device = Walk::begin(&order.directory).device();
    let mut left = MAX_NAMES;
    let mut found = Vec::new();
    for (path, pod) in &order.paths {
        let mut walk = Walk::begin(path);
        if walk.device().is_none() || walk.device() != device {
            continue;
        }
        while !walk.is_done() && left > 0 {
            left -= walk.step(STEP.min(left));
            thread::sleep(REST);
        }
        found.push(HostPath {
            path: path.clone(),
            pod: pod.clone(),
            disk_use: walk.measured(order.at).disk_use,
        });
    }
    found
}
