//! The embedded runtime: containers are processes of the host, started in their cgroup without
//! images, shims or namespaces.
//!
//! Each is a session of its own, with its output appended straight to its log file, so it depends
//! on no descriptor of the agent and outlives it. A later agent adopts it by its record.
//!
//! Threads: a few that start containers, since joining cgroups of v1 waits for RCU (`start`), one for
//! each program that is looked for (`search`), and one that waits for all ends (`exits`). They share
//! `state`; the files are in `records`.

mod command;
mod exits;
mod proc_file;
mod records;
mod recover;
mod search;
mod start;
mod state;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use nix::libc;
use nix::sys::signal::SigSet;

use self::exits::Exits;
pub(super) use self::proc_file::start_ticks;
use self::records::Records;
pub use self::records::{RECORDS, running};
use self::search::Searches;
use self::start::{Started, Starter};
use self::state::{State, Watched, lock};
use super::{
    ContainerId, ContainerRecord, ContainerSpec, ExitReporter, Recovered, ReportedExit, Runtime,
    RuntimeError, RuntimeEvent, Signal, StartError,
};
use crate::model::event::{ExitStatus, ProcessKey};
use crate::sys::clock;
use crate::sys::launch::Limits;
use crate::sys::syscall::{ProcessExit, pidfd_send_signal};

/// Told of every event, on a thread of the runtime.
pub type Sink = dyn Fn(RuntimeEvent) + Send + Sync;

/// Told when an exit is waited for that [`Runtime::report_exit`] has to bring. On a thread of the runtime; it
/// must not block.
pub type AskForExits = dyn Fn() + Send + Sync;

/// Enough to keep two CPUs busy while others wait for RCU or the disk; more gain nothing, since
/// the kernel moves one process at a time.
const STARTERS: usize = 4;

#[derive(Clone, Debug)]
pub struct ProcessRuntimeConfig {
    /// Records go to `containers` below it.
    pub state_dir: PathBuf,
    /// Of the containers.
    pub limits: Limits,
}

/// See the module. Dropping it waits for the starts under way, drops the queued ones with
/// [`StartError::ShuttingDown`], and leaves every container running.
pub struct ProcessRuntime {
    shared: Arc<Shared>,
    queue: Option<Sender<ContainerSpec>>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Arc<Mutex<State>>,
    records: Records,
    exits: Exits,
    searches: Searches,
    sink: Arc<Sink>,
    boot_id: String,
    limits: Limits,
    is_stopping: AtomicBool,
}

impl ProcessRuntime {
    /// Makes the directory of records and starts the threads.
    pub fn new(
        config: &ProcessRuntimeConfig,
        sink: Box<Sink>,
        ask_for_exits: Box<AskForExits>,
    ) -> Result<Self, RuntimeError> {
        let state = Arc::new(Mutex::new(State::default()));
        let records = Records::open(&config.state_dir)?;
        let sink: Arc<Sink> = Arc::from(sink);
        let exits = Exits::new(
            Arc::clone(&state),
            records.clone(),
            Arc::clone(&sink),
            ask_for_exits,
        )
        .map_err(RuntimeError::Setup)?;
        let shared = Arc::new(Shared {
            state,
            records,
            exits,
            searches: Searches::default(),
            sink,
            boot_id: clock::boot_id()?,
            limits: config.limits,
            is_stopping: AtomicBool::new(false),
        });
        let (queue, specs) = channel();
        let specs = Arc::new(Mutex::new(specs));
        // Made before the threads: what fails half-way is taken down by its drop.
        let mut runtime = Self {
            shared: Arc::clone(&shared),
            queue: Some(queue),
            threads: Vec::new(),
        };
        runtime.spawn("exits", {
            let shared = Arc::clone(&shared);
            move || shared.exits.run()
        })?;
        for _ in 0..STARTERS {
            let (shared, specs) = (Arc::clone(&shared), Arc::clone(&specs));
            runtime.spawn("starts", move || shared.start_queued(&specs))?;
        }
        Ok(runtime)
    }

    fn spawn(
        &mut self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<(), RuntimeError> {
        let block_signals_and_run = move || {
            // They are for the thread that handles them.
            if let Err(error) = SigSet::all().thread_block() {
                tracing::warn!(%error, "a runtime thread takes signals");
            }
            body();
        };
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(block_signals_and_run)
            .map_err(RuntimeError::Setup)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Runtime for ProcessRuntime {
    fn find(&mut self) -> Result<(), RuntimeError> {
        self.shared.find()
    }

    fn recover(&mut self) -> Result<Recovered, RuntimeError> {
        self.shared.recover()
    }

    fn adopt(&mut self, record: ContainerRecord) -> Result<bool, RuntimeError> {
        self.shared.adopt(record)
    }

    fn has_record(&self, id: &ContainerId) -> bool {
        self.shared.records.has(id)
    }

    fn was_cut_short(&self, id: &ContainerId) -> bool {
        self.shared.records.is_cut_short(id)
    }

    fn start(&mut self, spec: ContainerSpec) -> Result<(), RuntimeError> {
        let Some(queue) = &self.queue else {
            return Err(RuntimeError::Setup(io::Error::other(
                "no thread to start it",
            )));
        };
        {
            let mut state = lock(&self.shared.state);
            if state.ended.contains(&spec.id) {
                return Err(RuntimeError::NotForgotten { id: spec.id });
            }
            if state.knows(&spec.id) {
                return Err(RuntimeError::Duplicate { id: spec.id });
            }
            state.starting.insert(spec.id.clone());
        }
        queue.send(spec).map_err(|unsent| {
            lock(&self.shared.state).starting.remove(&unsent.0.id);
            RuntimeError::Setup(io::Error::other("no thread to start it"))
        })
    }

    fn signal(&mut self, id: &ContainerId, signal: Signal) -> Result<(), RuntimeError> {
        let watched = {
            let state = lock(&self.shared.state);
            let token = state.running.get(id);
            token.and_then(|token| state.watched.get(token).cloned())
        };
        let not_running = || RuntimeError::NotRunning { id: id.clone() };
        let watched = watched.ok_or_else(not_running)?;
        pidfd_send_signal(watched.pidfd.as_fd(), signal.number()).map_err(|source| {
            match source.raw_os_error() {
                Some(libc::ESRCH) => not_running(),
                _ => RuntimeError::Signal {
                    id: id.clone(),
                    signal: signal.number(),
                    source,
                },
            }
        })
    }

    fn report_exit(&mut self, key: ProcessKey, exit: ReportedExit) {
        let is_kept = lock(&self.shared.state).reports.keep(key, exit);
        if !is_kept {
            self.shared.report_exit(key, exit.status);
        }
    }

    fn exit_reporter(&self) -> ExitReporter {
        let shared = Arc::clone(&self.shared);
        Arc::new(move |key, status| shared.report_exit(key, status))
    }

    fn forget(&mut self, id: &ContainerId) -> Result<(), RuntimeError> {
        let mut state = lock(&self.shared.state);
        if state.starting.contains(id) || state.running.contains_key(id) {
            return Err(RuntimeError::StillRunning { id: id.clone() });
        }
        self.shared.searches.forget(id);
        self.shared.records.remove(id)?;
        state.ended.remove(id);
        Ok(())
    }
}

impl Shared {
    fn report_exit(&self, key: ProcessKey, status: ExitStatus) {
        let is_expected = lock(&self.state).reports.report(key, status);
        if is_expected {
            self.exits.wake();
        }
    }

    /// A thread that starts containers.
    fn start_queued(&self, specs: &Mutex<Receiver<ContainerSpec>>) {
        loop {
            let next = specs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(spec) = next else {
                return;
            };
            let result = if self.is_stopping.load(Ordering::Acquire) {
                Err(StartError::ShuttingDown)
            } else {
                let starter = Starter {
                    records: &self.records,
                    exits: &self.exits,
                    searches: &self.searches,
                    boot_id: &self.boot_id,
                    limits: self.limits,
                };
                starter.start(&spec)
            };
            match result {
                Ok(started) => self.started(started),
                Err(error) => {
                    lock(&self.state).starting.remove(&spec.id);
                    (self.sink)(RuntimeEvent::StartFailed { id: spec.id, error });
                }
            }
        }
    }

    fn started(&self, started: Started) {
        let Started {
            record,
            pidfd,
            warnings,
        } = started;
        let event = RuntimeEvent::Started {
            id: record.id.clone(),
            process: record.process,
            started_at: record.started_at,
            warnings,
        };
        let watched = Watched {
            pidfd,
            record: Some(record),
        };
        // Known before it is told, so that the answer to the event may be a signal; waited for
        // after, so that the end is not told first.
        let token = lock(&self.state).watch(watched);
        (self.sink)(event);
        self.exits.arm(token);
    }
}

impl Drop for ProcessRuntime {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.queue = None;
        self.shared.exits.stop();
        for thread in self.threads.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl From<ProcessExit> for ExitStatus {
    fn from(exit: ProcessExit) -> Self {
        match exit {
            ProcessExit::Code(code) => Self::Code(code),
            ProcessExit::Signal {
                signal,
                core_dumped,
            } => Self::Signal {
                signal,
                core_dumped,
            },
        }
    }
}
