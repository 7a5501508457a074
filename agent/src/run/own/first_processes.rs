//! The first processes of the containers that the agent itself started, and how the loop hears what the
//! kernel tells of them.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use super::event::{Event, Sender};
use crate::decide::ended::Ended;
use crate::model::attribution::{Attributed, OomAttribution};
use crate::model::event::{OomKill, ProcessKey};
use crate::run::kernel::{News, Tell};
use crate::runtime::{ExitReporter, HostProcess};

/// With their start times: a pid may come again.
#[derive(Debug, Default)]
pub(super) struct FirstProcesses(RwLock<Known>);

#[derive(Debug, Default)]
struct Known {
    processes: BTreeSet<HostProcess>,
    /// Of them, those that ended.
    ended: Ended<HostProcess>,
}

impl FirstProcesses {
    pub(super) fn add(&self, process: HostProcess) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.processes.insert(process);
    }

    /// The process ended. It stays known for the events that are still on their way.
    pub(super) fn retire(&self, process: HostProcess) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if !known.processes.contains(&process) {
            return;
        }
        if let Some(oldest) = known.ended.push(process) {
            known.processes.remove(&oldest);
        }
    }

    /// The first process of a container that is just starting is a child of the agent.
    pub(super) fn is_first(&self, kill: &OomKill) -> bool {
        self.has(kill.victim) || kill.victim_parent_pid == std::process::id()
    }

    fn has(&self, process: ProcessKey) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.processes.contains(&HostProcess::of(process))
    }
}

/// Hands what the kernel told to the loop. The runtime hears of the ends of first processes at once: the
/// loop may be in the middle of a long pass.
pub(super) fn tell_loop(
    first: Arc<FirstProcesses>,
    report_exit: ExitReporter,
    to_loop: Sender,
) -> Tell {
    Box::new(move |news| {
        let event = match news {
            News::Kill { kill, attribution } => match killed(kill, attribution) {
                Some(event) => event,
                None => return true,
            },
            News::Missed { n, cgroup } => match missed(n, cgroup) {
                Some(event) => event,
                None => return true,
            },
            News::Ended { process, status } => {
                if first.has(process) {
                    report_exit(process, status);
                }
                return true;
            }
            News::Programs(programs) => Event::Programs(Box::new(programs)),
            // The loop makes and removes them itself.
            News::Made { .. } | News::Met { .. } | News::Entered(_) | News::Gone(_) => return true,
            // A full channel means that the loop has enough reason to look.
            News::Emptied(_) => return to_loop.try_send(Event::Emptied).is_ok(),
            News::Lost(_) => return to_loop.try_send(Event::Lost).is_ok(),
        };
        // The rings hold what comes meanwhile, and the loop never waits for the listener. It ends before
        // that thread does; what it has not taken, the next start reads from the pinned rings or from the
        // cgroups.
        to_loop.send(event).is_ok()
    })
}

fn missed(n: u64, cgroup: &Attributed) -> Option<Event> {
    Some(Event::OomKillsMissed {
        pod: cgroup.pod.as_ref()?.uid.clone(),
        container: cgroup.container.as_deref()?.to_owned(),
        n,
    })
}

/// `None`: nothing that the loop has to note.
fn killed(kill: &OomKill, attribution: &OomAttribution) -> Option<Event> {
    let victim = &attribution.victim;
    (!kill.was_exiting).then_some(())?;
    Some(Event::OomKill {
        pod: victim.pod.as_ref()?.uid.clone(),
        container: victim.container.as_deref()?.to_owned(),
        victim: kill.victim,
    })
}
