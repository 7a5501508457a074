//! The thread that measures directories of the host which are volumes of pods: who else may have filled a disk. A
//! thread of its own, since such a directory may be on a network disk that does not answer, and pods are measured on.
//!
//! It walks once each time that it is asked, within [`MAX_NAMES`], and only what is on the disk of the pods.

use std::collections::{BTreeMap, BTreeSet};
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
use crate::sources::disk_use::{Place, Walk};
use crate::sys::Root;

/// Names looked at for one order, of all directories: some seconds. Arbitrary.
const MAX_NAMES: usize = 1 << 18;

struct Order {
    /// One pod of each.
    paths: BTreeMap<PathBuf, PodRef>,
    /// That of the pods' own, on the disk that is short.
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
            paths: volumes.collect(),
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

/// Directories that hold the pods' own are left out, by whatever name: they have everything in them. One that has several
/// names has the first.
fn measure(order: &Order) -> Vec<HostPath> {
    let root = Root::host();
    let directory = root.without_links(&order.directory);
    let device = Place::at(&directory).map(|it| it.device());
    let mut left = MAX_NAMES;
    let mut found = Vec::new();
    let mut walked = BTreeSet::new();
    for (path, pod) in &order.paths {
        let there = root.without_links(path);
        if directory.starts_with(&there) || !walked.insert(there.clone()) {
            continue;
        }
        let place = Place::at(&there).filter(|it| Some(it.device()) == device);
        if place.is_none() {
            continue;
        }
        let mut walk = Walk::begin(place);
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::pod::PodUid;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_volume_that_holds_the_pods_own_has_filled_nothing() {
        let dir = Scratch::new("host-paths");
        fs::create_dir_all(dir.path("data/state/pods")).unwrap();
        fs::create_dir(dir.path("beside")).unwrap();
        fs::write(dir.path("beside/file"), vec![1; 100_000]).unwrap();
        for (to, link) in [("data/state", "state"), ("data", "up"), ("beside", "down")] {
            symlink(to, dir.path(link)).unwrap();
        }
        let pod = PodRef {
            namespace: "ns".to_owned(),
            name: "pod".to_owned(),
            uid: PodUid("uid".to_owned()),
        };
        let paths = ["beside", "data", "down", "up"].map(|it| (dir.path(it), pod.clone()));
        for state in ["data/state", "state"] {
            let order = Order {
                paths: paths.clone().into(),
                directory: dir.path(state).join("pods"),
                at: Duration::ZERO,
            };
            let found = measure(&order);
            // Under its first name alone.
            let expected = [dir.path("beside")];
            let found_at: Vec<&PathBuf> = found.iter().map(|it| &it.path).collect();
            assert_eq!(found_at, expected.iter().collect::<Vec<_>>(), "{state}");
            assert!(found.iter().all(|it| it.disk_use.bytes >= Some(100_000)));
        }
    }
}
