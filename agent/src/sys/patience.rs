//! Work that a disk may hold up for ever, for threads that must not be held up.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one thing at a time and is waited for only so long. Clones share it; it ends
/// with the last of them, or with what it hangs in.
#[derive(Clone, Debug)]
pub struct Patience {
    jobs: Sender<Job>,
    is_busy: Arc<AtomicBool>,
    longest: Duration,
}

/// Whether the one who asked still waits.
#[derive(Clone, Debug)]
pub struct Asker(Arc<AtomicBool>);

impl Asker {
    pub fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Patience {
    /// Nobody waits for longer than `longest`.
    pub fn start(longest: Duration) -> io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        thread::Builder::new()
            .name("disk-calls".to_owned())
            .spawn(move || todo.into_iter().for_each(|job| job()))?;
        Ok(Self {
            jobs,
            is_busy: Arc::default(),
            longest,
        })
    }

    /// What `job` came to. `None`: it takes too long, or one before it still does, and then at once.
    /// What was begun goes on alone; it can see that nobody waits for it any more.
    pub fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Asker) -> T + Send + 'static,
    ) -> Option<T> {
        if self.is_busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        let asker = Asker(Arc::new(AtomicBool::new(true)));
        let (is_busy, worker) = (Arc::clone(&self.is_busy), asker.clone());
        let (done, answer) = sync_channel(1);
        let job = move || {
            let result = job(&worker);
            is_busy.store(false, Ordering::Release);
            // Nobody waits.
            done.send(result).ok();
        };
        // Without the thread nobody answers either.
        self.jobs.send(Box::new(job)).ok()?;
        let answer = answer.recv_timeout(self.longest).ok();
        asker.0.store(false, Ordering::Release);
        answer
    }
}

/// One thing on a thread of its own, whose end can be waited for in parts. Dropped, it goes on alone, and can see that
/// nobody waits for it any more.
#[derive(Debug)]
pub struct Errand<T> {
    answer: Receiver<T>,
    asker: Asker,
}

impl<T: Send + 'static> Errand<T> {
    pub fn start(job: impl FnOnce(&Asker) -> T + Send + 'static) -> io::Result<Self> {
        let (done, answer) = sync_channel(1);
        let asker = Asker(Arc::new(AtomicBool::new(true)));
        let worker = asker.clone();
        thread::Builder::new()
            .name("disk-calls".to_owned())
            // Nobody waits.
            .spawn(move || done.send(job(&worker)).ok())?;
        Ok(Self { answer, asker })
    }

    /// What it came to, once. `None`: it takes longer than this.
    pub fn wait(&self, longest: Duration) -> Option<T> {
        self.answer.recv_timeout(longest).ok()
    }
}

impl<T> Drop for Errand<T> {
    fn drop(&mut self) {
        self.asker.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_is_not_waited_for_and_nothing_is_begun_behind_it() {
        let patience = Patience::start(Duration::from_millis(50)).unwrap();
        assert_eq!(patience.ask(Asker::is_waiting), Some(true));
        let (go, told) = sync_channel::<()>(0);
        let (ended, end) = sync_channel(1);
        let hung = patience.ask(move |asker| {
            told.recv().ok();
            ended.send(asker.is_waiting()).ok();
        });
        assert_eq!(hung, None);
        assert_eq!(patience.clone().ask(|_| unreachable!()), None::<()>);
        go.send(()).unwrap();
        assert_eq!(end.recv(), Ok(false));
        // It is free a moment after it has ended.
        while patience.ask(|_| ()).is_none() {}
    }

    #[test]
    fn an_errand_is_waited_for_in_parts_until_nobody_waits() {
        let start = || {
            let (go, told) = sync_channel::<()>(0);
            let (ended, end) = sync_channel(1);
            let errand = Errand::start(move |asker| {
                told.recv().ok();
                ended.send(asker.is_waiting()).ok();
                7
            });
            (errand.unwrap(), go, end)
        };
        let (errand, go, end) = start();
        assert_eq!(errand.wait(Duration::from_millis(10)), None);
        go.send(()).unwrap();
        assert_eq!(errand.wait(Duration::MAX), Some(7));
        assert_eq!(end.recv(), Ok(true));
        let (errand, go, end) = start();
        drop(errand);
        go.send(()).unwrap();
        assert_eq!(end.recv(), Ok(false));
    }
}
