//! A thread for calls that can hang: to read files, to start a program, to resolve a host name.
//!
//! Invariants:
//! - The thread is made at the start, and a start without it fails. `tokio::task::spawn_blocking` makes threads when it
//!   needs them, and panics if the system gives none, as in a cgroup that is at its `pids.max`.
//! - It runs one job at a time. A call that hangs keeps this one thread, and no second call begins beside it.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::sync::{Mutex, oneshot};

type Job = Box<dyn FnOnce() + Send>;

/// The job was not done in time.
#[derive(Debug)]
pub(super) struct Late;

/// See the module. When this is dropped, the thread ends with its job.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: mpsc::Sender<Job>,
    /// Locked by the caller whose job runs. Inside: a channel that closes when a job ends for which nobody waits any
    /// more.
    turn: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Worker {
    /// `name`: that of the thread; the kernel keeps 15 bytes of it.
    pub(super) fn start(name: &str) -> io::Result<Self> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || to_do.into_iter().for_each(|job| job()))?;
        Ok(Self {
            jobs,
            turn: Mutex::new(None),
        })
    }

    /// Runs `job` when the job before it has ended, and waits `bound` for both. A job that has begun runs to its end,
    /// even if nobody waits for it any more.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        bound: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Late> {
        let answer = tokio::time::timeout(bound, self.answer(job)).await;
        answer.ok().flatten().ok_or(Late)
    }

    /// `None`: the thread has panicked, which was reported.
    async fn answer<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mut turn = self.turn.lock().await;
        if let Some(end) = turn.as_mut() {
            // Its other half is dropped, and never sends.
            end.await.ok();
        }
        let (doing, end) = oneshot::channel();
        let (answer, answered) = oneshot::channel();
        *turn = Some(end);
        let job = move || {
            // The caller may have left.
            answer.send(job()).ok();
            drop(doing);
        };
        self.jobs.send(Box::new(job)).ok()?;
        answered.await.ok()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_hangs_is_not_begun_again() {
        let worker = Worker::start("test").unwrap();
        assert_eq!(worker.run(LONG, || 1).await.unwrap(), 1);
        let (release, released) = mpsc::channel::<()>();
        let hang = move || released.recv().is_ok();
        assert!(worker.run(SHORT, hang).await.is_err());
        let (begin, begun) = mpsc::channel();
        for n in 0..3 {
            let begin = begin.clone();
            assert!(worker.run(SHORT, move || begin.send(n)).await.is_err());
        }
        release.send(()).unwrap();
        assert_eq!(worker.run(LONG, || 2).await.unwrap(), 2);
        assert!(begun.try_recv().is_err(), "nobody waited for those");
    }

    #[tokio::test]
    async fn each_has_its_turn() {
        let worker = Worker::start("test").unwrap();
        let both = tokio::join!(worker.run(LONG, || 1), worker.run(LONG, || 2));
        assert_eq!((both.0.unwrap(), both.1.unwrap()), (1, 2));
    }
}
