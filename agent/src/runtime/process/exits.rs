//! Waits for the end of processes: one thread for all of them.
//!
//! The exit status of a child comes from `waitid`. The kernel tells that of any other process, one
//! that an earlier agent started, to its parent alone; it comes from the event stream or, where the
//! kernel has it, from the process descriptor, or stays unknown.
//!
//! Invariant: the status of a child is in its record before the child is reaped, so an agent
//! killed in between finds it in one of the two places.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::records::Records;
use super::state::{Lingering, State, Token, Watched, lock};
use super::{AskForExits, Sink};
use crate::model::event::ExitStatus;
use crate::runtime::{ContainerEnd, ContainerExit, ContainerRecord, RuntimeEvent, UnknownExit};
use crate::sys::clock;
use crate::sys::launch::is_readable_within;
use crate::sys::syscall::{Reap, pidfd_exit, wait_child};

/// How long the status of a process that is not a child may take to arrive after its end. The
/// event stream needs about a millisecond once it is asked, and some seconds on a slow machine whose agent has just
/// started: until its programs are loaded the events wait in the adopted ring.
const LINGER: Duration = Duration::from_secs(5);
/// How often the process descriptor is asked meanwhile: it knows once the parent has reaped.
const LINGER_STEP_MILLIS: u8 = 5;

/// How often a process is looked at that epoll has not taken: the kernel lacks memory, or the user has as many watches
/// as they may have.
const UNARMED_STEP_MILLIS: u16 = 1000;

/// How often a process is looked at that has ended and cannot be waited for, since a tracer has not let it go.
const EARLY_STEP: Duration = Duration::from_millis(10);

/// Ends that are taken together, and so have one time: those of 110 pods, kubelet's default, of two containers. To record
/// one takes a fraction of a millisecond, by which those of a later round seem to have ended later.
const AT_ONCE: usize = 256;

/// Whether an end could be learned.
#[derive(PartialEq)]
enum Told {
    InTime,
    TooEarly,
}

/// Token of the descriptor that wakes the thread.
const WAKE: u64 = 0;

pub(super) struct Exits {
    epoll: Epoll,
    wake: EventFd,
    is_stopping: AtomicBool,
    state: Arc<Mutex<State>>,
    records: Records,
    sink: Arc<Sink>,
    ask_for_exits: Box<AskForExits>,
}

impl Exits {
    pub(super) fn new(
        state: Arc<Mutex<State>>,
        records: Records,
        sink: Arc<Sink>,
        ask_for_exits: Box<AskForExits>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, WAKE))?;
        Ok(Self {
            epoll,
            wake,
            is_stopping: AtomicBool::new(false),
            state,
            records,
            sink,
            ask_for_exits,
        })
    }

    /// Starts to wait for the end of a process of the state, which may have ended already.
    pub(super) fn arm(&self, token: Token) {
        if let Err(error) = self.add(token) {
            tracing::warn!(%error, "the end of a process is looked for every second: epoll does not take it");
            lock(&self.state).unarmed.insert(token);
            self.wake();
        }
    }

    fn add(&self, token: Token) -> io::Result<()> {
        let Some(watched) = lock(&self.state).watched.get(&token).cloned() else {
            return Ok(());
        };
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token.0);
        self.epoll.add(&watched.pidfd, event)?;
        Ok(())
    }

    /// Reaps the leftover of a start that failed, when it ends.
    pub(super) fn discard(&self, watched: Watched) {
        let token = lock(&self.state).watch(watched);
        self.arm(token);
    }

    /// Looks again at the processes whose status is missing.
    pub(super) fn wake(&self) {
        // Fails only when 2^64 - 2 wakes are unread; then the thread is awake.
        let _ = self.wake.write(1);
    }

    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// The thread.
    pub(super) fn run(&self) {
        let mut events = [EpollEvent::empty(); AT_ONCE];
        while !self.is_stopping.load(Ordering::Acquire) {
            let timeout = {
                let state = lock(&self.state);
                if !state.lingering.is_empty() {
                    EpollTimeout::from(LINGER_STEP_MILLIS)
                } else if !state.unarmed.is_empty() {
                    EpollTimeout::from(UNARMED_STEP_MILLIS)
                } else {
                    EpollTimeout::NONE
                }
            };
            let n = match self.epoll.wait(&mut events, timeout) {
                Ok(n) => n,
                Err(nix::Error::EINTR) => continue,
                Err(error) => {
                    // EBADF, EFAULT or EINVAL: none can come from outside.
                    tracing::error!(%error, "the ends of containers are no longer seen");
                    return;
                }
            };
            // All of them have ended by now: who was killed waits once for what the kernel tells of that.
            let at = clock::boottime();
            let mut are_all_early = n > 0;
            for event in events.iter().take(n) {
                match event.data() {
                    WAKE => {
                        // Empty when two wakes were read as one.
                        let _ = self.wake.read();
                        are_all_early = false;
                    }
                    token => are_all_early &= self.ended(Token(token), at) == Told::TooEarly,
                }
            }
            if are_all_early {
                thread::sleep(EARLY_STEP);
            }
            self.look_at_unarmed();
            self.look_at_lingering();
        }
    }

    /// Tries again; those that epoll still does not take are asked whether they have ended.
    fn look_at_unarmed(&self) {
        let unarmed: Vec<_> = {
            let mut state = lock(&self.state);
            let State {
                watched, unarmed, ..
            } = &mut *state;
            // It may have ended before it got here.
            unarmed.retain(|it| watched.contains_key(it));
            let with_watched = |token: &Token| Some((*token, watched.get(token)?.clone()));
            unarmed.iter().filter_map(with_watched).collect()
        };
        for (token, watched) in unarmed {
            if self.add(token).is_ok() {
                lock(&self.state).unarmed.remove(&token);
            } else if is_readable_within(watched.pidfd.as_fd(), Duration::ZERO).unwrap_or(false) {
                self.ended(token, clock::boottime());
            }
        }
    }

    /// A process has ended, by `at`.
    fn ended(&self, token: Token, at: Duration) -> Told {
        let Some(watched) = lock(&self.state).watched.get(&token).cloned() else {
            return Told::InTime;
        };
        match wait_child(watched.pidfd.as_fd(), Reap::Later) {
            Ok(Some(exit)) => {
                self.settle(token, &watched, ContainerExit::Known(exit.into()), at);
            }
            // Readable, and not to be waited for yet: epoll tells it again.
            Ok(None) => return Told::TooEarly,
            // ECHILD: not a child of ours.
            Err(_) => {
                // It stays readable for ever; from here on the clock leads.
                let _ = self.epoll.delete(&watched.pidfd);
                let lingering = Lingering {
                    seen: at,
                    until: clock::boottime() + LINGER,
                };
                {
                    let mut state = lock(&self.state);
                    state.unarmed.remove(&token);
                    state.lingering.insert(token, lingering);
                }
                (self.ask_for_exits)();
            }
        }
        Told::InTime
    }

    fn look_at_lingering(&self) {
        let now = clock::boottime();
        let lingering: Vec<_> = {
            let state = lock(&self.state);
            let watched = |token: &Token| state.watched.get(token).cloned();
            state
                .lingering
                .iter()
                .filter_map(|(token, it)| Some((*token, *it, watched(token)?)))
                .collect()
        };
        for (token, Lingering { seen, until }, watched) in lingering {
            let reported = watched
                .record
                .as_ref()
                .and_then(|it| lock(&self.state).reports.get(it.process));
            let told = || pidfd_exit(watched.pidfd.as_fd()).map(ExitStatus::from);
            if let Some(status) = reported.or_else(told) {
                self.settle(token, &watched, ContainerExit::Known(status), seen);
            } else if now >= until {
                let exit = ContainerExit::Unknown(UnknownExit::Unobserved);
                self.settle(token, &watched, exit, seen);
            }
        }
    }

    /// Records, reaps and tells the end, in this order.
    fn settle(&self, token: Token, watched: &Watched, exit: ContainerExit, finished_at: Duration) {
        if let Some(record) = &watched.record {
            let end = ContainerEnd {
                exit,
                finished_at: Some(finished_at),
            };
            let record = ContainerRecord {
                end: Some(end),
                ..record.clone()
            };
            if let Err(error) = self.records.update(&record) {
                // The loop is told all the same; only a restart before it has stored the outcome
                // loses the status.
                tracing::warn!(container = %record.id, %error, "the end is not recorded");
            }
        }
        // Closing the descriptor would not do: the epoll entry belongs to the open file, of which
        // a child that is just being made may have a copy.
        let _ = self.epoll.delete(&watched.pidfd);
        // ECHILD where it was no child.
        let _ = wait_child(watched.pidfd.as_fd(), Reap::Yes);
        lock(&self.state).settle(token);
        if let Some(record) = &watched.record {
            (self.sink)(RuntimeEvent::Exited {
                id: record.id.clone(),
                exit,
                finished_at,
            });
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::os::fd::OwnedFd;
    use std::process::Command;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::model::pod::{PodUid, ResourceList};
    use crate::runtime::{ContainerId, ContainerOwner, HostProcess};
    use crate::sys::scratch::Scratch;
    use crate::sys::syscall::pidfd_open;

    fn record(container: &str, pid: u32) -> ContainerRecord {
        ContainerRecord {
            id: ContainerId::new(container).unwrap(),
            owner: ContainerOwner {
                pod_uid: PodUid("uid".to_owned()),
                pod_namespace: "default".to_owned(),
                pod_name: "pod".to_owned(),
                container: container.to_owned(),
                attempt: 0,
            },
            spec_hash: String::new(),
            pod_requests: ResourceList::new(),
            log_path: "/log".into(),
            oom_score_adj: 0,
            cgroups: Vec::new(),
            boot_id: String::new(),
            process: HostProcess {
                pid,
                start_ticks: 1,
            },
            started_at: Duration::ZERO,
            end: None,
        }
    }

    /// So that one wait for the kills of before is enough for all.
    #[test]
    fn who_is_seen_to_have_ended_at_once_has_one_time() {
        const N_CHILDREN: usize = 100;
        let scratch = Scratch::new("exits-at-once");
        let state = Arc::new(Mutex::new(State::default()));
        let records = Records::open(scratch.directory()).unwrap();
        let (told, ends) = channel();
        let sink: Arc<Sink> = Arc::new(move |event: RuntimeEvent| {
            told.send(event.killed_at()).ok();
        });
        let exits = Exits::new(Arc::clone(&state), records, sink, Box::new(|| {})).unwrap();
        let mut children = Vec::new();
        for n in 0..N_CHILDREN {
            let mut child = Command::new("sleep").arg("60").spawn().unwrap();
            let [pidfd, end] = [(); 2].map(|()| pidfd_open(child.id()).unwrap());
            let record = Some(record(&n.to_string(), child.id()));
            exits.discard(Watched { pidfd, record });
            child.kill().unwrap();
            assert!(is_readable_within(end.as_fd(), Duration::from_secs(60)).unwrap());
            children.push(child);
        }
        let times = thread::scope(|scope| {
            scope.spawn(|| exits.run());
            let times = [(); N_CHILDREN].map(|()| ends.recv_timeout(Duration::from_secs(60)));
            exits.stop();
            times
        });
        let times = times.map(Result::unwrap);
        assert!(times[0].is_some());
        assert_eq!(times, [times[0]; N_CHILDREN]);
        assert!(children.iter_mut().all(|it| it.wait().is_err()), "reaped");
    }

    /// Its status may come seconds later, or never.
    #[test]
    fn who_is_no_child_ended_when_it_was_seen_to() {
        let scratch = Scratch::new("exits-seen");
        let state = Arc::new(Mutex::new(State::default()));
        let records = Records::open(scratch.directory()).unwrap();
        let (told, ends) = channel();
        let sink: Arc<Sink> = Arc::new(move |event: RuntimeEvent| {
            if let RuntimeEvent::Exited { finished_at, .. } = event {
                told.send(finished_at).ok();
            }
        });
        let exits = Exits::new(Arc::clone(&state), records, sink, Box::new(|| {})).unwrap();
        // Nobody is a child of their own.
        let pid = std::process::id();
        let pidfd = pidfd_open(pid).unwrap();
        let record = Some(record("own", pid));
        let token = lock(&state).watch(Watched { pidfd, record });
        let seen = Duration::from_secs(1);
        assert!(exits.ended(token, seen) == Told::InTime);
        for it in lock(&state).lingering.values_mut() {
            it.until = Duration::ZERO;
        }
        exits.look_at_lingering();
        assert_eq!(ends.try_recv(), Ok(seen));
    }

    #[test]
    fn a_process_that_epoll_does_not_take_is_looked_at_until_it_has_ended() {
        let scratch = Scratch::new("exits-unarmed");
        let state = Arc::new(Mutex::new(State::default()));
        let records = Records::open(scratch.directory()).unwrap();
        let sink: Arc<Sink> = Arc::new(|_: RuntimeEvent| {});
        let mut exits = Exits::new(Arc::clone(&state), records, sink, Box::new(|| {})).unwrap();
        // It takes nobody.
        exits.epoll = Epoll(OwnedFd::from(EventFd::new().unwrap()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let [pidfd, end] = [(); 2].map(|()| pidfd_open(child.id()).unwrap());
        let record = None;
        exits.discard(Watched { pidfd, record });
        exits.look_at_unarmed();
        assert_eq!(lock(&state).watched.len(), 1);
        child.kill().unwrap();
        assert!(is_readable_within(end.as_fd(), Duration::from_secs(60)).unwrap());
        exits.look_at_unarmed();
        assert!(lock(&state).watched.is_empty());
        assert!(child.wait().is_err(), "it was reaped");
        // It ended before that was noted.
        lock(&state).unarmed.insert(Token(1));
        exits.look_at_unarmed();
        assert!(lock(&state).unarmed.is_empty());
    }
}
