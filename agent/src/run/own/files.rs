//! Directories of pods that are over, on their way out.
//!
//! The loop only gives them another name, beside the old one, so that a pod of the same UID can begin
//! at once; a thread empties them, however much is in them, and comes back to what cannot be removed.
//! Another one detaches volumes in memory before that: the memory does not wait for a disk. What an
//! agent left behind by that name is taken up by the next one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::pods::{StatePaths, VOLUMES};
use crate::model::pod::PodUid;
use crate::run::RunError;
use crate::run::told::Told;
use crate::sys::append::rename_if_any;
use crate::sys::removal::{Mounts, remove_mounts, remove_tree};
use crate::sys::{FsError, Root, below, clock};

const PREFIX: &str = ".removing-";

const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Longest wait between two tries of the same directory.
const MAX_WAIT: Duration = Duration::from_secs(5 * 60);

/// Hands directories to the threads, which end when this is dropped.
pub(super) struct Files {
    orders: Sender<PathBuf>,
    told: Told,
    /// Of directories that could not even be renamed: when to try again.
    stuck: BTreeMap<PathBuf, Backoff>,
}

#[derive(Clone, Copy, Debug)]
struct Backoff {
    next: Duration,
    wait: Duration,
}

impl Files {
    /// Begins with what an earlier agent has not finished.
    pub(super) fn start(paths: &StatePaths, told: &Told) -> Result<Self, RunError> {
        let (orders, ordered) = channel();
        let (work, todo) = channel();
        for directory in [paths.pods(), paths.logs()] {
            // What cannot be listed now is listed by the next start.
            let names = Root::host().list(&directory).unwrap_or_default();
            for name in names.iter().filter(|it| it.starts_with(PREFIX)) {
                orders.send(directory.join(name)).ok();
            }
        }
        thread::Builder::new()
            .name("volumes".to_owned())
            .spawn(move || detach_volumes(&ordered, &work))
            .map_err(RunError::Thread)?;
        let teller = told.clone();
        thread::Builder::new()
            .name("files".to_owned())
            .spawn(move || run(&todo, &teller))
            .map_err(RunError::Thread)?;
        Ok(Self {
            orders,
            told: told.clone(),
            stuck: BTreeMap::new(),
        })
    }

    /// Has a directory of a pod removed. True: it is out of the way, or never was there. False, told
    /// once: it cannot be renamed; asked again later, it is tried again.
    pub(super) fn discard(&mut self, directory: &Path, uid: &PodUid, now: Duration) -> bool {
        if self.stuck.get(directory).is_some_and(|it| now < it.next) {
            return false;
        }
        let moved = directory.with_file_name(format!("{PREFIX}{uid}-{}", now.as_nanos()));
        let before = self.stuck.remove(directory);
        if let Err(error) = rename_if_any(directory, &moved) {
            if before.is_none() {
                remains(&self.told, &error);
            }
            let backoff = Backoff::after(before, now);
            self.stuck.insert(directory.to_owned(), backoff);
            return false;
        }
        // Without the thread it is the next start's.
        self.orders.send(moved).ok();
        true
    }
}

/// Whether one of these parts of a directory of a pod is still there, under its name or on its way out. What is mounted
/// on the way to one is asked nothing: the part is taken for there, and so is one of which nobody can say.
pub(super) fn is_left(directory: &Path, uid: &PodUid, parts: &[PathBuf]) -> bool {
    let Some(above) = directory.parent() else {
        return false;
    };
    let root = Root::host();
    let is_in = |name: &Path| {
        let has = |it: &PathBuf| below::has_name(above, &name.join(it));
        let mut parts = parts.iter();
        parts.any(|it| has(it).unwrap_or_else(|error| !error.is_gone()))
    };
    let prefix = format!("{PREFIX}{uid}-");
    // Another pod may have a UID that begins like this one.
    let is_of_pod = |name: &String| {
        let time = name.strip_prefix(&prefix);
        time.is_some_and(|it| it.bytes().all(|it| it.is_ascii_digit()))
    };
    let is_leaving = |name: &String| is_of_pod(name) && is_in(Path::new(name));
    // In this order: it gets the other name in between.
    directory.file_name().is_some_and(|it| is_in(Path::new(it)))
        || match root.list(above) {
            Ok(names) => names.iter().any(is_leaving),
            Err(error) => !error.is_gone(),
        }
}

impl Backoff {
    fn after(before: Option<Self>, now: Duration) -> Self {
        let wait = before.map_or(FIRST_WAIT, |it| (it.wait * 2).min(MAX_WAIT));
        Self {
            next: now + wait,
            wait,
        }
    }
}

fn detach_volumes(ordered: &Receiver<PathBuf>, work: &Sender<PathBuf>) {
    for directory in ordered {
        if let (Some(above), Some(name)) = (directory.parent(), directory.file_name()) {
            remove_mounts(above, &Path::new(name).join(VOLUMES));
        }
        // Without the thread it is the next start's.
        work.send(directory).ok();
    }
}

fn run(todo: &Receiver<PathBuf>, told: &Told) {
    let mut waiting: BTreeMap<PathBuf, Backoff> = BTreeMap::new();
    loop {
        let now = clock::boottime();
        let next = waiting.values().map(|it| it.next).min();
        let ordered = match next {
            None => todo.recv().map_err(|_gone| RecvTimeoutError::Disconnected),
            Some(next) => todo.recv_timeout(next.saturating_sub(now)),
        };
        let due = match ordered {
            Ok(path) => vec![path],
            Err(RecvTimeoutError::Timeout) => {
                let now = clock::boottime();
                let is_due = |it: &(&PathBuf, &Backoff)| it.1.next <= now;
                let due = waiting.iter().filter(is_due);
                due.map(|(path, _)| path.clone()).collect()
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        for path in due {
            let before = waiting.remove(&path);
            let Err(error) = remove_tree(&path, Mounts::Detach) else {
                continue;
            };
            if before.is_none() {
                remains(told, &error);
            }
            let backoff = Backoff::after(before, clock::boottime());
            waiting.insert(path, backoff);
        }
    }
}

fn remains(told: &Told, error: &FsError) {
    let why = crate::observe::chain(error);
    told.node(
        "PodFilesRemain",
        format!("of a pod that is over, tried again from time to time: {why}"),
    );
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn what_is_left_of_a_pod_is_found_under_both_of_its_names() {
        let (dir, root) = (Scratch::new("left"), Root::host());
        let (pod, uid) = (dir.path("ns_pod_uid"), PodUid("uid".to_owned()));
        let left = || [".", "volumes/cache"].map(|it| is_left(&pod, &uid, &[PathBuf::from(it)]));
        assert_eq!(left(), [false, false]);
        root.create_dir_all(pod.join("volumes/cache")).unwrap();
        root.create_dir_all(dir.path(".removing-uid-other-1/volumes/other"))
            .unwrap();
        assert_eq!(left(), [true, true]);
        let leaving = dir.path(".removing-uid-1");
        rename_if_any(&pod, &leaving).unwrap();
        assert_eq!(left(), [true, true]);
        root.remove_dir_all(leaving.join("volumes/cache")).unwrap();
        assert_eq!(left(), [true, false]);
        root.remove_dir_all(leaving).unwrap();
        assert_eq!(left(), [false, false]);
        assert!(!is_left(&pod, &uid, &[]));
        let left_in = |above: PathBuf| is_left(&above.join("pod"), &uid, &[PathBuf::from(".")]);
        assert!(!left_in(dir.path("absent")));
        assert!(left_in(dir.unreadable("unread")), "nobody can say");
    }

    /// As procfs is wherever there is one.
    #[test]
    fn what_is_mounted_over_a_directory_of_a_pod_is_not_asked_what_is_left() {
        let (uid, absent) = (PodUid("uid".to_owned()), PathBuf::from("absent"));
        assert!(is_left(Path::new("/proc"), &uid, &[absent]));
    }
}
