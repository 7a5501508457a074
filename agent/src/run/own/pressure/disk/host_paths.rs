//! The thread that measures directories of the host which are volumes of pods: who else may have filled a disk. A
//! thread of its own, since such a directory may be on a network disk that does not answer, and pods are measured on.
//!
//! It walks once each time that it is asked, within [`MAX_NAMES`], and only what is on the disk of the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::{HUNG, REST, STEP};
use crate::decide::eviction::writer::HostPath;
use crate::model::record::PodRef;
use crate::run::RunError;
use crate::run::own::evictions::Candidate;
use crate::sources::disk_use::{Place, Walk};
use crate::sys::{Root, clock};

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

/// The directory that is being walked, and when its last step began, monotonic. `None`: none is.
type Walked = Mutex<Option<(PathBuf, Duration)>>;

/// The thread ends when this is dropped.
pub(in crate::run::own::pressure) struct HostPathKeeper {
    orders: Sender<Order>,
    found: Arc<Mutex<Found>>,
    walked: Arc<Walked>,
}

impl HostPathKeeper {
    pub(super) fn start() -> Result<Self, RunError> {
        let (orders, todo) = channel();
        let found = Arc::new(Mutex::new(Found::default()));
        let walked = Arc::new(Walked::default());
        let (results, step) = (Arc::clone(&found), Arc::clone(&walked));
        thread::Builder::new()
            .name("host-paths".to_owned())
            .spawn(move || run(&todo, &results, &step))
            .map_err(RunError::Thread)?;
        Ok(Self {
            orders,
            found,
            walked,
        })
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

    /// The directory that does not answer, and for how long. `now`: monotonic.
    pub(in crate::run::own::pressure) fn hung(&self, now: Duration) -> Option<(PathBuf, Duration)> {
        let walked = self.walked.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, began) = walked.as_ref()?;
        let age = now.saturating_sub(*began);
        (age >= HUNG).then(|| (path.clone(), age))
    }
}

fn run(todo: &Receiver<Order>, results: &Mutex<Found>, walked: &Walked) {
    let set = |it| *walked.lock().unwrap_or_else(PoisonError::into_inner) = it;
    while let Ok(order) = todo.recv() {
        // What was ordered meanwhile is about the same disk.
        let order = todo.try_iter().last().unwrap_or(order);
        let found = Found {
            at: Some(order.at),
            paths: measure(&order, &|path| {
                set(Some((path.to_owned(), clock::monotonic())));
            }),
        };
        set(None);
        *results.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// Directories that hold the pods' own are left out, by whatever name: they have everything in them. One that has several
/// names has the first. `step`: called before each step, with the directory that may not answer.
fn measure(order: &Order, step: &dyn Fn(&Path)) -> Vec<HostPath> {
    let root = Root::host();
    step(&order.directory);
    let directory = root.without_links(&order.directory);
    let at = |path: &Path| Place::at(path).ok().flatten();
    let device = at(&directory).map(|it| it.device());
    let mut left = MAX_NAMES;
    let mut found = Vec::new();
    let mut walked = BTreeSet::new();
    for (path, pod) in &order.paths {
        step(path);
        let there = root.without_links(path);
        if directory.starts_with(&there) || !walked.insert(there.clone()) {
            continue;
        }
        let place = at(&there).filter(|it| Some(it.device()) == device);
        if place.is_none() {
            continue;
        }
        let mut walk = Walk::begin(Ok(place));
        while !walk.is_done() && left > 0 {
            step(path);
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
    use std::cell::RefCell;
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::model::pod::PodUid;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_volume_that_does_not_answer_is_known() {
        let keeper = HostPathKeeper::start().unwrap();
        let at = Duration::from_secs;
        assert_eq!(keeper.hung(at(1000)), None);
        let path = PathBuf::from("/net/volume");
        *keeper.walked.lock().unwrap() = Some((path.clone(), at(1000)));
        assert_eq!(keeper.hung(at(1059)), None);
        assert_eq!(keeper.hung(at(1060)), Some((path, at(60))));
    }

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
            let stepped = RefCell::new(BTreeSet::new());
            let found = measure(&order, &|path| {
                stepped.borrow_mut().insert(path.to_owned());
            });
            let all: BTreeSet<PathBuf> = order.paths.keys().cloned().collect();
            assert!(stepped.into_inner().is_superset(&all), "{state}");
            // Under its first name alone.
            let expected = [dir.path("beside")];
            let found_at: Vec<&PathBuf> = found.iter().map(|it| &it.path).collect();
            assert_eq!(found_at, expected.iter().collect::<Vec<_>>(), "{state}");
            assert!(found.iter().all(|it| it.disk_use.bytes >= Some(100_000)));
        }
    }
}
