//! Containers that run and whose record was lost: they are found by their cgroup, and go on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::pods::PodEntry;
use super::start::{container_id, spec_hash};
use super::undecided::LeftContainer;
use crate::model::container::{ContainerState, ContainerStatus};
use crate::runtime::{ContainerOwner, ContainerRecord, HostProcess, JoinedCgroup};
use crate::sys::{Dir, FsError, Root};

impl Loop {
    /// Finds the containers that are to run and that the runtime does not know. Where the first process is gone
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
                    Err(error) => self.told.container_not_found(
                        &entry.pod_ref,
                        &status.name,
                        &crate::observe::chain(&*error),
                    ),
                }
            }
        }
        for (pod, record) in found {
            match self.runtime.adopt(record.clone()) {
                Ok(true) => {
                    let container = &record.owner.container;
                    self.told.container_found(&pod, container, record.process);
                    let left = LeftContainer {
                        record,
                        was_oom_killed: false,
                    };
                    self.take_up(left, now);
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(id = %record.id, error = crate::observe::chain(&error), "adopt");
                }
            }
        }
    }

    /// What a container's record would say. `None`: it does not run.
    fn lost_record(
        &self,
        entry: &PodEntry,
        status: &ContainerStatus,
    ) -> Result<Option<ContainerRecord>, Box<dyn std::error::Error>> {
        let ContainerState::Running { started_at } = status.state else {
            return Ok(None);
        };
        let id = container_id(entry.uid(), &status.name, status.attempt);
        let cgroup = entry.cgroup.join(id.as_str())?;
        let pids = self.node.reader.pids(&cgroup)?;
        let Some(process) = first_process(&pids, started_at) else {
            return Ok(None);
        };
        let dirs = self.node.dirs_of(&cgroup);
        let joined = dirs.iter().map(|it| Ok(JoinedCgroup::of(&Dir::open(it)?)));
        let cgroups = joined.collect::<Result<_, FsError>>()?;
        let adj = Root::host().read_text(format!("/proc/{}/oom_score_adj", process.pid))?;
        let owner = ContainerOwner::new(&entry.pod_ref, &status.name, status.attempt);
        Ok(Some(ContainerRecord {
            id,
            log_path: self.paths.log(&owner),
            owner,
            spec_hash: spec_hash(status),
            oom_score_adj: adj.trim().parse()?,
            cgroups,
            boot_id: self.boot_id(),
            process,
            started_at,
            end: None,
        }))
    }
}

/// The process of a container that its runtime started: it is there before its program is let go, and what it starts
/// comes after that. `None`: it is gone.
fn first_process(pids: &BTreeSet<u32>, let_go_at: Duration) -> Option<HostProcess> {
    let all = pids.iter().filter_map(|pid| HostProcess::find(*pid).ok());
    let first = all.min_by_key(|it| (it.start_ticks, it.pid))?;
    (first.started_at() <= let_go_at).then_some(first)
}
