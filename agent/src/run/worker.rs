//! A thread of the agent that ends with its handle.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// Asks the thread to end when it is dropped, and waits until it has.
pub(super) struct Worker {
    stop: Stop,
    /// Ends a wait of the thread; never blocks.
    wake: Box<dyn Fn() + Send + Sync>,
    thread: Option<JoinHandle<()>>,
}

/// What a thread asks after each of its waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Worker {
    /// `wake` has the body look whether it is to stop.
    pub(super) fn spawn(
        name: &str,
        wake: impl Fn() + Send + Sync + 'static,
        body: impl FnOnce(&Stop) + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Stop::default();
        let asked = stop.clone();
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || body(&asked))?;
        Ok(Self {
            stop,
            wake: Box::new(wake),
            thread: Some(thread),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.0.store(true, Ordering::Relaxed);
        (self.wake)();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by then.
            thread.join().ok();
        }
    }
}
