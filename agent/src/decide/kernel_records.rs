//! Kernel events to event records: whose they are, by whose limit, and what to call it.
//!
//! In: a decoded event, the cgroup index, and the two clocks read when it was handled. Out: the
//! record that `ballast events` shows, with its reason. Nothing is looked up.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::attribution::{Attribution, CgroupIndex, Level, Owner};
use super::missed_kills::{Cause, Missed};
use crate::model::event::{
    AttributionMethod, CgroupChange, CgroupEvent, CgroupLineage, ExitStatus, OomConstraint,
    OomKill, ProcessChange, ProcessEvent, StallEvent, StallKind,
};
use crate::model::record::{
    CgroupDetail, Event, EventDetail, EventKind, MemorySplit, OomDetail, OomLimit, OomScope,
    OomTrigger, OomVictim, PodRef, ProcessDetail, StallDetail,
};
use crate::model::time::WallTime;

/// Both clocks, read at the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Handled {
    pub boottime: Duration,
    pub wall: Duration,
}

impl Handled {
    /// The wall clock of a moment on `CLOCK_BOOTTIME`.
    pub fn wall_of(self, at_ns: u64) -> WallTime {
        let ago = self.boottime.saturating_sub(Duration::from_nanos(at_ns));
        WallTime::from_epoch(self.wall.saturating_sub(ago))
    }

    fn micros_since(self, at_ns: u64) -> u64 {
        let ago = self.boottime.saturating_sub(Duration::from_nanos(at_ns));
        u64::try_from(ago.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A kill of the OOM killer. `is_main`: the victim is the first process of its container.
pub fn oom_record(
    kill: &OomKill,
    index: &CgroupIndex,
    is_main: Option<bool>,
    handled: Handled,
) -> Event {
    let victim = index.attribute(&kill.victim_cgroup);
    let victim = victim.owner();
    let trigger = index.attribute(&kill.trigger_cgroup);
    let trigger = trigger.owner();
    let scope = oom_scope(kill, index);
    let reason = match (
        kill.was_exiting,
        is_main,
        victim.and_then(|it| it.container()),
    ) {
        (true, ..) => "OomVictimExiting",
        (_, Some(false), Some(_)) => "OomKilledChild",
        (_, _, Some(_)) => "OomKilled",
        (_, _, None) if victim.is_some() => "OomKilledInPod",
        _ => "SystemOom",
    };
    let detail = OomDetail {
        victim: OomVictim {
            pid: kill.victim.pid,
            tid: kill.victim_tid,
            start_boottime_ns: kill.victim.start_boottime_ns,
            parent_pid: kill.victim_parent_pid,
            comm: kill.victim_comm.clone(),
            uid: kill.victim_uid,
            oom_score_adj: kill.oom_score_adj,
            is_main_process: is_main,
            cgroup_path: exact_path(index, &kill.victim_cgroup),
            memory: MemorySplit {
                anon_bytes: kill.anon_bytes,
                file_bytes: kill.file_bytes,
                shmem_bytes: kill.shmem_bytes,
                swap_bytes: kill.swap_bytes,
                page_table_bytes: kill.page_table_bytes,
                total_vm_bytes: kill.total_vm_bytes,
            },
        },
        qos: victim.and_then(|it| it.qos()),
        scope,
        limit: kill.limit_cgroup.map(|limit| OomLimit {
            cgroup_path: exact_path(index, &limit),
            usage_bytes: kill.limit_usage_bytes,
            max_bytes: kill.limit_max_bytes,
        }),
        constraint: kill.constraint,
        trigger: OomTrigger {
            pid: kill.trigger_pid,
            comm: kill.trigger_comm.clone(),
            pod: trigger.and_then(|it| pod_of(it)),
            container: trigger.and_then(|it| it.container()).map(str::to_owned),
        },
        was_exiting: kill.was_exiting,
        handling_latency_us: handled.micros_since(kill.at_ns),
        record_id: None,
    };
    let message = format!(
        "{} {} (pid {}, {} MiB anonymous) {}",
        match kill.was_exiting {
            true => "let go of exiting",
            false => "killed",
        },
        kill.victim_comm,
        kill.victim.pid,
        kill.anon_bytes >> 20,
        limit_in_words(kill, scope),
    );
    Event {
        method: Some(kill.method),
        detail: Some(EventDetail::Oom(Box::new(detail))),
        ..event(kill.at_ns, handled, EventKind::Oom, reason, victim, message)
    }
}

/// Kills that the kernel counted in a cgroup of `owner`, and that nobody reported.
pub fn missed_record(missed: &Missed, owner: Option<&Arc<Owner>>, handled: Handled) -> Event {
    let processes = match missed.n {
        1 => "a process was".to_owned(),
        n => format!("{n} processes were"),
    };
    let why = match missed.cause {
        Cause::NoPrograms => "no eBPF program reports kills on this node",
        Cause::Lost => "the kernel's report was lost",
    };
    let message = format!("{processes} killed by the OOM killer, nobody knows which: {why}");
    let at_ns = u64::try_from(missed.at.as_nanos()).unwrap_or(u64::MAX);
    Event {
        method: Some(AttributionMethod::None),
        ..event(
            at_ns,
            handled,
            EventKind::Oom,
            "OomKillMissed",
            owner,
            message,
        )
    }
}

/// Whose limit made the kernel kill. A limit below a container, set by the workload itself, is the
/// container's.
pub fn oom_scope(kill: &OomKill, index: &CgroupIndex) -> OomScope {
    if let Some(limit) = &kill.limit_cgroup {
        return match index.attribute(limit).owner().map(|it| &it.level) {
            Some(Level::Container { .. }) => OomScope::Container,
            Some(Level::Pod { .. }) => OomScope::Pod,
            Some(Level::Qos) => OomScope::Qos,
            Some(Level::Kubepods) => OomScope::Kubepods,
            None => OomScope::Other,
        };
    }
    match (kill.constraint, kill.method) {
        (Some(OomConstraint::Global), _) => OomScope::Node,
        (Some(OomConstraint::Cpuset | OomConstraint::MemoryPolicy), _) => OomScope::Cpuset,
        // No limit on the way up was reached, so no memory cgroup was the reason.
        (None, AttributionMethod::Derived) => OomScope::Node,
        (Some(OomConstraint::Memcg), _) | (None, _) => OomScope::Other,
    }
}

fn limit_in_words(kill: &OomKill, scope: OomScope) -> String {
    let bytes = match kill.limit_max_bytes {
        Some(bytes) => format!(" of {} MiB", bytes >> 20),
        None => String::new(),
    };
    match scope {
        OomScope::Container => format!("by the limit{bytes} of its container"),
        OomScope::Pod => format!("by the limit{bytes} of its pod"),
        OomScope::Qos => format!("by the limit{bytes} of its QoS class"),
        OomScope::Kubepods => format!("by the limit{bytes} of all pods"),
        OomScope::Node => "because the node ran out of memory".into(),
        OomScope::Cpuset => "because the allowed NUMA nodes ran out of memory".into(),
        OomScope::Other => format!("by a limit{bytes} outside the pods"),
    }
}

/// A process event; `None` for one that is not of a pod.
pub fn process_record(
    process: &ProcessEvent,
    index: &CgroupIndex,
    handled: Handled,
) -> Option<Event> {
    let owner = owned(index.attribute(&process.cgroup))?;
    let (pid, comm) = (process.process.pid, &process.comm);
    let (reason, message) = match &process.change {
        ProcessChange::Fork { parent_pid } => (
            "ProcessForked",
            format!("{comm} (pid {pid}) forked by pid {parent_pid}"),
        ),
        ProcessChange::Exec => ("ProcessExeced", format!("pid {pid} became {comm}")),
        ProcessChange::Exit { status, by_oom } => {
            let how = match status {
                ExitStatus::Code(code) => format!("exited with code {code}"),
                ExitStatus::Signal { signal, .. } => format!("was ended by signal {signal}"),
            };
            let why = if *by_oom { ", an OOM victim" } else { "" };
            ("ProcessExited", format!("{comm} (pid {pid}) {how}{why}"))
        }
    };
    let detail = EventDetail::Process(ProcessDetail {
        pid,
        start_boottime_ns: process.process.start_boottime_ns,
        comm: comm.clone(),
        change: process.change.clone(),
    });
    Some(Event {
        method: Some(AttributionMethod::Exact),
        detail: Some(detail),
        ..event(
            process.at_ns,
            handled,
            EventKind::Process,
            reason,
            Some(&owner),
            message,
        )
    })
}

/// A cgroup event, also of one that no pod owns.
pub fn cgroup_record(cgroup: &CgroupEvent, index: &CgroupIndex, handled: Handled) -> Event {
    let owner = owned(index.attribute(&cgroup.cgroup));
    let id = cgroup.cgroup.cgroup_id.0;
    let (reason, message) = match &cgroup.change {
        CgroupChange::Created { name } => ("CgroupCreated", format!("cgroup {name} created")),
        CgroupChange::Removed => ("CgroupRemoved", format!("cgroup {id} removed")),
        CgroupChange::Attached { pid } => (
            "ProcessAttached",
            format!("pid {pid} moved into cgroup {id}"),
        ),
        CgroupChange::Populated { populated: true } => (
            "CgroupPopulated",
            format!("cgroup {id} has its first process"),
        ),
        CgroupChange::Populated { populated: false } => {
            ("CgroupEmptied", format!("cgroup {id} has no process left"))
        }
    };
    let detail = EventDetail::Cgroup(CgroupDetail {
        cgroup_id: id,
        cgroup_path: exact_path(index, &cgroup.cgroup),
        change: cgroup.change.clone(),
    });
    Event {
        method: owner.is_some().then_some(AttributionMethod::Exact),
        detail: Some(detail),
        ..event(
            cgroup.at_ns,
            handled,
            EventKind::Cgroup,
            reason,
            owner.as_ref(),
            message,
        )
    }
}

/// A memory stall; `None` for one of no pod.
pub fn stall_record(stall: &StallEvent, index: &CgroupIndex, handled: Handled) -> Option<Event> {
    let owner = owned(index.attribute(&stall.cgroup))?;
    let what = match stall.kind {
        StallKind::MemcgReclaim => "at a memory limit",
        StallKind::DirectReclaim => "for free memory of the node",
    };
    let message = format!(
        "pid {} waited {} µs {what}, {} pages reclaimed",
        stall.pid,
        stall.duration_ns / 1_000,
        stall.reclaimed_pages,
    );
    let detail = EventDetail::Stall(StallDetail {
        pid: stall.pid,
        kind: stall.kind,
        duration_ns: stall.duration_ns,
        reclaimed_pages: stall.reclaimed_pages,
    });
    Some(Event {
        method: Some(AttributionMethod::Exact),
        detail: Some(detail),
        ..event(
            stall.at_ns,
            handled,
            EventKind::Stall,
            "MemoryStall",
            Some(&owner),
            message,
        )
    })
}

fn event(
    at_ns: u64,
    handled: Handled,
    kind: EventKind,
    reason: &'static str,
    owner: Option<&Arc<Owner>>,
    message: String,
) -> Event {
    Event {
        time: handled.wall_of(at_ns),
        boottime_ns: at_ns,
        kind,
        reason: Cow::Borrowed(reason),
        pod: owner.and_then(|it| pod_of(it)),
        container: owner.and_then(|it| it.container()).map(str::to_owned),
        method: None,
        message,
        detail: None,
    }
}

fn owned(attribution: Attribution) -> Option<Arc<Owner>> {
    match attribution {
        Attribution::Owned(owner) => Some(owner),
        Attribution::Unknown | Attribution::Outside => None,
    }
}

fn pod_of(owner: &Owner) -> Option<PodRef> {
    owner.pod().map(|pod| PodRef::clone(pod))
}

/// The path of exactly this cgroup; an ancestor's would name the wrong one.
fn exact_path(index: &CgroupIndex, lineage: &CgroupLineage) -> Option<String> {
    index.get(lineage.cgroup_id).map(|it| it.path.clone())
}

#[cfg(test)]
mod tests;
