//! Containers that run and whose record was lost: they are found by their first process, if the record of their pod
//! has it, else by their cgroup, and go on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{Pid, getsid};

use super::Loop;
use super::pass::{Pauses, lacking};
use super::pods::PodEntry;
use super::start::container_id;
use super::undecided::LeftContainer;
use crate::decide::lifecycle::spec_hash;
use crate::model::container::{ContainerState, ContainerStatus, SpecHash};
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::observe::chain;
use crate::runtime::{ContainerOwner, ContainerRecord, HostProcess, JoinedCgroup, RuntimeError};
use crate::sys::{Dir, FsError, Root};

/// Why a start waits for the end of what is in its cgroup.
const LEFT_THERE: &str = "waits until what an earlier start has left in its cgroup has ended";

impl Loop {
    /// Finds the containers that may run and that the runtime does not know. Where the first process is gone
    /// the container has ended, as any other that nobody knows.
    pub(super) fn find_lost(&mut self, now: Duration) {
        let mut found = Vec::new();
        for entry in self.pods.values() {
            for status in &entry.state.containers {
                if entry.instances.contains_key(&status.name) {
                    continue;
                }
                match self.lost_record(entry, status) {
                    Ok(record) => found.extend(record.map(|it| (Arc::clone(&entry.pod_ref), it))),
                    Err(error) => {
                        self.told
                            .container_not_found(&entry.pod_ref, &status.name, &chain(&*error))
                    }
                }
            }
        }
        for (pod, record) in found {
            match self.watch_found(&pod, &record) {
                Ok(true) => {
                    let left = LeftContainer {
                        record,
                        was_oom_killed: false,
                    };
                    self.take_up(left, now);
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(id = %record.id, error = chain(&error), "adopt"),
            }
        }
    }

    /// Whether somebody is in the cgroup that a container is to be started in: an earlier agent has started it there, and
    /// neither it nor the runtime could store that. It goes on; what is left of it without its first process ends first.
    /// True: there is nothing to start now.
    pub(super) fn is_begun(&mut self, uid: &PodUid, container: &str, now: Duration) -> bool {
        let Some(entry) = self.pods.get(uid) else {
            return false;
        };
        let mut statuses = entry.state.containers.iter();
        let status = statuses.find(|it| it.name == container);
        let Some((instance, status)) = entry.instances.get(container).zip(status) else {
            return false;
        };
        let (pod, cgroup) = (Arc::clone(&entry.pod_ref), instance.cgroup.clone());
        // What this agent makes is registered before a start.
        if self.ids.contains_key(&cgroup) {
            return false;
        }
        let found = match self.node.reader.pids(&cgroup) {
            Ok(pids) if pids.is_empty() => {
                self.register(&cgroup, false);
                return false;
            }
            Ok(_) => self.lost_record(entry, status).map_err(|it| chain(&*it)),
            Err(error) => Err(chain(&error)),
        };
        let watched = found.and_then(|record| match record {
            Some(record) => match self.watch_found(&pod, &record) {
                Ok(is_there) => Ok(is_there.then_some(record)),
                Err(error) => Err(chain(&error)),
            },
            None => Ok(None),
        });
        match watched {
            Ok(Some(ContainerRecord {
                process,
                started_at,
                ..
            })) => {
                self.register(&cgroup, false);
                self.started(uid, container, process, started_at, &[]);
            }
            Ok(None) => {
                self.kill(uid, container);
                self.hold_start(uid, container, LEFT_THERE.to_owned(), Pauses::LACK, now);
            }
            Err(why) => self.hold_start(uid, container, lacking(&why), Pauses::LACK, now),
        }
        true
    }

    /// Has the runtime watch a container that was found. False: it has ended meanwhile.
    fn watch_found(
        &mut self,
        pod: &PodRef,
        record: &ContainerRecord,
    ) -> Result<bool, RuntimeError> {
        let is_there = self.runtime.adopt(record.clone())?;
        if is_there {
            let container = &record.owner.container;
            self.told.container_found(pod, container, record.process);
        }
        Ok(is_there)
    }

    /// What a container's record would say. `None`: it does not run. The attempt may be a later one than its pod's record
    /// has: it began while that could not be replaced.
    fn lost_record(
        &self,
        entry: &PodEntry,
        status: &ContainerStatus,
    ) -> Result<Option<ContainerRecord>, Box<dyn std::error::Error>> {
        let (last, next) = (status.attempt, status.attempt.saturating_add(1));
        match status.state {
            ContainerState::NotStarted | ContainerState::Starting => {
                self.record_of(entry, status, last, None)
            }
            ContainerState::Ending(_) | ContainerState::Exited(_) => {
                self.record_of(entry, status, next, None)
            }
            ContainerState::Running { started_at } => {
                match self.record_of(entry, status, next, None)? {
                    Some(record) => Ok(Some(record)),
                    None => self.record_of(entry, status, last, Some(started_at)),
                }
            }
        }
    }

    /// The same of one attempt. `let_go_at`: when its program was let go; `None`: that is not known.
    fn record_of(
        &self,
        entry: &PodEntry,
        status: &ContainerStatus,
        attempt: u32,
        let_go_at: Option<Duration>,
    ) -> Result<Option<ContainerRecord>, Box<dyn std::error::Error>> {
        let id = container_id(entry.uid(), &status.name, attempt);
        let cgroup = entry.cgroup.join(id.as_str())?;
        let dirs = self.node.dirs_of(&cgroup);
        // Most have ended, and opening every directory on the way costs more.
        if !dirs.iter().any(|it| Root::host().is_dir(it)) {
            return Ok(None);
        }
        let pids = self.node.reader.pids(&cgroup)?;
        let noted = let_go_at.and_then(|_| entry.state.first_processes.get(&status.name));
        let noted = noted.map(|it| HostProcess::from(*it));
        // It may have left its cgroup.
        let noted = noted.filter(|it| it.is_there());
        let Some(process) = noted.or_else(|| first_process(&pids, let_go_at)) else {
            return Ok(None);
        };
        if let_go_at.is_none() && self.runtime.was_cut_short(&id) {
            return Ok(None);
        }
        let joined = dirs.iter().map(|it| Ok(JoinedCgroup::of(&Dir::open(it)?)));
        let cgroups = joined.collect::<Result<_, FsError>>()?;
        let adj = Root::host().read_text(format!("/proc/{}/oom_score_adj", process.pid))?;
        let owner = ContainerOwner::new(&entry.pod_ref, &status.name, attempt);
        let known = status
            .spec_hash
            .clone()
            .filter(|_| attempt == status.attempt);
        let mut defined = entry.state.pod.all_containers();
        let defined = defined.find(|it| it.name == status.name).map(spec_hash);
        let hash = known.or(defined).map(|SpecHash(hash)| hash);
        Ok(Some(ContainerRecord {
            id,
            log_path: self.paths.log(&owner),
            owner,
            spec_hash: hash.unwrap_or_default(),
            pod_requests: entry.state.pod.counted_requests(),
            oom_score_adj: adj.trim().parse()?,
            cgroups,
            boot_id: self.boot_id(),
            process,
            started_at: let_go_at.unwrap_or_else(|| process.started_at()),
            end: None,
        }))
    }
}

/// The process of a container that its runtime started, which leads a session: it is there before its program is let go,
/// and what it starts comes after that. `None`: it is gone.
fn first_process(pids: &BTreeSet<u32>, let_go_at: Option<Duration>) -> Option<HostProcess> {
    let all = pids.iter().filter_map(|pid| HostProcess::find(*pid).ok());
    let first = all.min_by_key(|it| (it.start_ticks, it.pid))?;
    let is_first = match let_go_at {
        Some(let_go_at) => first.started_at() <= let_go_at,
        None => leads_session(first.pid),
    };
    is_first.then_some(first)
}

fn leads_session(pid: u32) -> bool {
    let pid = i32::try_from(pid).map(Pid::from_raw);
    pid.is_ok_and(|pid| getsid(Some(pid)) == Ok(pid))
}
