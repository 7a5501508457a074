//! Old logs of containers, which a disk that is short gives back before a pod goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::run::own::evictions::Candidate;
use crate::runtime::logs;
use crate::sys::patience::{Asker, Patience};

/// Removes them, of one pod after the other. Whoever asks for it reads no directory: the disk may not answer.
#[derive(Debug, Default)]
pub(in crate::run::own::pressure) struct OldLogs {
    /// Of the candidates, modulo their number: whose go next.
    next: Arc<AtomicUsize>,
    /// Attempts whose logs are gone.
    n_removed: Arc<AtomicUsize>,
}

impl OldLogs {
    /// Logs of all attempts but the newest go, as far as the disk answers in time; the next call goes on from there.
    /// True: some are gone.
    pub(in crate::run::own::pressure) fn remove(
        &self,
        candidates: &Arc<Vec<Candidate>>,
        patience: &Patience,
    ) -> bool {
        let (candidates, next) = (Arc::clone(candidates), Arc::clone(&self.next));
        let n_removed = Arc::clone(&self.n_removed);
        let before = n_removed.load(Ordering::Relaxed);
        let remove = move |asker: &Asker| {
            for _ in 0..candidates.len() {
                if !asker.is_waiting() {
                    return;
                }
                let index = next.fetch_add(1, Ordering::Relaxed) % candidates.len();
                prune(&candidates[index], &n_removed);
            }
        };
        // Where it takes too long it ends by itself.
        let _ = patience.ask(remove);
        self.n_removed.load(Ordering::Relaxed) != before
    }
}

/// Counts those of each container at once: whoever asks may wait no longer.
fn prune(pod: &Candidate, n_removed: &AtomicUsize) {
    for container in &pod.facts.containers {
        match logs::prune(&pod.logs.join(&container.name), 1) {
            Ok(removed) => {
                n_removed.fetch_add(removed.len(), Ordering::Relaxed);
            }
            Err(error) => {
                tracing::warn!(error = crate::observe::chain(&error), "remove old logs");
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]
mod tests {
    use std::fs;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    use super::super::tests::pod_of;
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn who_asks_for_them_to_go_touches_no_file() {
        let dir = Scratch::new("old-logs");
        fs::create_dir_all(dir.path("logs/app")).unwrap();
        let old = dir.write("logs/app/0.log", "old");
        let newest = dir.write("logs/app/1.log", "new");
        let pod = Candidate {
            logs: dir.path("logs"),
            ..pod_of(&["app"], &["app"])
        };
        let candidates = Arc::new(vec![pod]);
        let patience = Patience::start(Duration::from_millis(50)).unwrap();
        let (go, told) = sync_channel::<()>(0);
        let hung = patience.ask(move |_| told.recv().is_ok());
        assert_eq!(hung, None);
        let old_logs = OldLogs::default();
        assert!(!old_logs.remove(&candidates, &patience));
        assert!(old.exists());
        go.send(()).unwrap();
        // The disk answers a moment after that.
        for _ in 0..10_000 {
            old_logs.remove(&candidates, &patience);
            if !old.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!old.exists() && newest.exists());
    }

    /// Else a pod would never go for a disk on which the logs take long to be looked through.
    #[test]
    fn who_asks_is_told_whether_any_are_gone() {
        let dir = Scratch::new("old-logs-gone");
        fs::create_dir_all(dir.path("logs/app")).unwrap();
        for attempt in 0..3 {
            dir.write(format!("logs/app/{attempt}.log"), "text");
        }
        let pod = Candidate {
            logs: dir.path("logs"),
            ..pod_of(&["app"], &["app"])
        };
        let candidates = Arc::new(vec![pod]);
        let patience = Patience::start(Duration::from_secs(60)).unwrap();
        let old_logs = OldLogs::default();
        assert!(old_logs.remove(&candidates, &patience));
        assert!(!old_logs.remove(&candidates, &patience));
    }
}
