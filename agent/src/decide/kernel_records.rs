//! Kernel events to event records: whose they are, by whose limit, and what to call it.
//!
//! In: a decoded event, whose it is, and the two clocks read when it was handled. Out: the record that
//! `ballast events` shows, with its reason. Nothing is looked up.

use std::time::Duration;

use super::missed_kills::{Cause, Missed};
use crate::model::attribution::{Attributed, OomAttribution};
use crate::model::event::{
    AttributionMethod, CgroupChange, CgroupEvent, ExitStatus, OomConstraint, OomKill,
    ProcessChange, ProcessEvent, Reclaim, StallEvent, StallKind,
};
use crate::model::pod::PodUid;
use crate::model::record::{
    CgroupDetail, Event, EventDetail, EventKind, MemorySplit, OomDetail, OomLimit, OomScope,
    OomTrigger, OomVictim, ProcessDetail, StallDetail, short_id,
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

/// A kill of the OOM killer.
pub fn oom_record(kill: &OomKill, attribution: &OomAttribution, handled: Handled) -> Event {
    let OomAttribution {
        victim,
        trigger,
        limit,
        scope,
        is_main,
        took_container,
        watched,
        ..
    } = attribution;
    let owner = victim.owner.as_deref();
    let is_in_container = owner.is_some_and(|it| it.container().is_some());
    let is_unknown = attribution.is_unknown();
    let process = OomVictim {
        pid: kill.victim.pid,
        tid: kill.victim_tid,
        start_boottime_ns: kill.victim.start_boottime_ns,
        parent_pid: kill.victim_parent_pid,
        comm: kill.victim_comm.clone(),
        uid: kill.victim_uid,
        oom_score_adj: kill.oom_score_adj,
        is_main_process: *is_main,
        took_container: *took_container,
        cgroup_path: victim.exact_path().map(str::to_owned),
        unknown_cgroup_id: is_unknown.then_some(kill.victim_cgroup.cgroup_id.0),
        memory: MemorySplit {
            anon_bytes: kill.anon_bytes,
            file_bytes: kill.file_bytes,
            shmem_bytes: kill.shmem_bytes,
            swap_bytes: kill.swap_bytes,
            page_table_bytes: kill.page_table_bytes,
            total_vm_bytes: kill.total_vm_bytes,
        },
    };
    let ends_container = process.ends_container();
    let reason = match (kill.was_exiting, ends_container) {
        (true, _) => "OomVictimExiting",
        (_, Some(false)) if is_in_container => "OomKilledChild",
        _ if is_in_container => "OomKilled",
        _ if victim.is_of_no_pod() => "OomKilledUnknown",
        _ if victim.in_root => "OomKilledInPod",
        _ => "SystemOom",
    };
    let detail = OomDetail {
        victim: process,
        qos: owner.and_then(|it| it.qos()),
        scope: *scope,
        limit: limit.as_ref().map(|limit| OomLimit {
            cgroup_path: limit.exact_path().map(str::to_owned),
            unknown_cgroup_id: unknown_limit(kill, limit),
            usage_bytes: kill.limit_usage_bytes,
            max_bytes: kill.limit_max_bytes,
        }),
        constraint: constraint(kill),
        trigger: oom_trigger(kill, trigger),
        was_exiting: kill.was_exiting,
        handling_latency_us: handled.micros_since(kill.at_ns),
        record_id: None,
    };
    let message = format!(
        "{} {} (pid {}, {} MiB anonymous) {}{}{}",
        match kill.was_exiting {
            true => "let go of exiting",
            false => "killed",
        },
        kill.victim_comm,
        kill.victim.pid,
        kill.anon_bytes >> 20,
        limit_in_words(kill, limit.as_ref(), *scope),
        match (is_unknown, watched) {
            (true, _) => format!(
                ", in cgroup {} of nobody known",
                kill.victim_cgroup.cgroup_id.0
            ),
            (false, Some(key)) => format!(", which watched container {}", short_id(&key.id)),
            (false, None) => String::new(),
        },
        match is_in_container && ends_container.is_none() {
            true => "; whether its container ended with it is not known",
            false => "",
        },
    );
    // That some limit was reached does not tell which one.
    let method = match kill.has_unnamed_limit() {
        true => AttributionMethod::None,
        false => kill.method,
    };
    Event {
        method: Some(method),
        detail: Some(EventDetail::Oom(Box::new(detail))),
        ..event(kill.at_ns, handled, EventKind::Oom, reason, victim, message)
    }
}

fn oom_trigger(kill: &OomKill, cgroup: &Attributed) -> OomTrigger {
    OomTrigger {
        pid: kill.trigger_pid,
        comm: kill.trigger_comm.clone(),
        pod: cgroup.pod.as_deref().cloned(),
        container: cgroup.container.as_deref().map(str::to_owned),
        pod_uid: unnamed_pod(cgroup),
        container_id: unnamed_container(cgroup),
    }
}

/// Kills that the kernel counted in a cgroup, and that nobody reported.
/// `scope`: whose limit it was; `None`: nobody knows.
pub fn missed_record(
    missed: &Missed,
    cgroup: &Attributed,
    scope: Option<OomScope>,
    handled: Handled,
) -> Event {
    let processes = match missed.n {
        1 => "a process was".to_owned(),
        n => format!("{n} processes were"),
    };
    let why = match missed.cause {
        Cause::NoPrograms => "no eBPF program reports kills on this node",
        Cause::Unwatched => "no agent ran, and no eBPF program was left to report it",
        Cause::Lost => "the kernel's report was lost",
    };
    let by = match scope {
        Some(OomScope::Node) => {
            " because the node, or NUMA nodes that a task was confined to, ran out of memory"
        }
        _ => "",
    };
    let message = format!("{processes} killed by the OOM killer{by}, nobody knows which: {why}");
    let at_ns = u64::try_from(missed.at.as_nanos()).unwrap_or(u64::MAX);
    Event {
        method: Some(AttributionMethod::None),
        detail: Some(EventDetail::Missed {
            count: missed.n,
            scope,
        }),
        ..event(
            at_ns,
            handled,
            EventKind::Oom,
            "OomKillMissed",
            cgroup,
            message,
        )
    }
}

/// The id of a limit's cgroup that lies below that of all pods, and nobody knows what it is.
fn unknown_limit(kill: &OomKill, limit: &Attributed) -> Option<u64> {
    let cgroup = kill.limit_cgroup.filter(|_| limit.is_unregistered())?;
    Some(cgroup.cgroup_id.0)
}

/// That it was a limit is known by what the task did before, where nobody has found which one.
fn constraint(kill: &OomKill) -> Option<OomConstraint> {
    let is_at_limit = kill.last_reclaim == Some(Reclaim::AtLimit);
    let by_reclaim = is_at_limit.then_some(OomConstraint::Memcg);
    kill.constraint.or(by_reclaim)
}

fn limit_in_words(kill: &OomKill, limit: Option<&Attributed>, scope: OomScope) -> String {
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
        OomScope::Other => match limit.map(|it| (it.in_root, unknown_limit(kill, it))) {
            Some((_, Some(id))) => format!("by the limit{bytes} of cgroup {id} of nobody known"),
            Some((false, None)) => format!("by a limit{bytes} outside the pods"),
            None if kill.was_asked_for() => "because somebody asked for it (SysRq f)".into(),
            None if constraint(kill).is_none() => "for a reason that nobody knows".into(),
            Some((true, None)) | None => format!("by a limit{bytes} of nobody known"),
        },
    }
}

/// A process event; `None` for one outside the cgroup of all pods.
pub fn process_record(
    process: &ProcessEvent,
    cgroup: &Attributed,
    handled: Handled,
) -> Option<Event> {
    if !cgroup.in_root {
        return None;
    }
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
        method: Some(method(cgroup)),
        detail: Some(detail),
        ..event(
            process.at_ns,
            handled,
            EventKind::Process,
            reason,
            cgroup,
            message,
        )
    })
}

/// A cgroup event, also of one that no pod owns.
pub fn cgroup_record(changed: &CgroupEvent, cgroup: &Attributed, handled: Handled) -> Event {
    let id = changed.cgroup.cgroup_id.0;
    let (reason, message) = match &changed.change {
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
        cgroup_path: cgroup.exact_path().map(str::to_owned),
        change: changed.change.clone(),
    });
    let is_owned = cgroup.owner.is_some();
    Event {
        method: is_owned.then_some(AttributionMethod::Exact),
        detail: Some(detail),
        ..event(
            changed.at_ns,
            handled,
            EventKind::Cgroup,
            reason,
            cgroup,
            message,
        )
    }
}

/// A memory stall; `None` for one outside the cgroup of all pods.
pub fn stall_record(stall: &StallEvent, cgroup: &Attributed, handled: Handled) -> Option<Event> {
    if !cgroup.in_root {
        return None;
    }
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
        method: Some(method(cgroup)),
        detail: Some(detail),
        ..event(
            stall.at_ns,
            handled,
            EventKind::Stall,
            "MemoryStall",
            cgroup,
            message,
        )
    })
}

/// How it is known whose a cgroup is.
fn method(cgroup: &Attributed) -> AttributionMethod {
    match cgroup.owner {
        Some(_) => AttributionMethod::Exact,
        None => AttributionMethod::None,
    }
}

fn event(
    at_ns: u64,
    handled: Handled,
    kind: EventKind,
    reason: &'static str,
    cgroup: &Attributed,
    message: String,
) -> Event {
    Event {
        pod: cgroup.pod.as_deref().cloned(),
        container: cgroup.container.as_deref().map(str::to_owned),
        pod_uid: unnamed_pod(cgroup),
        container_id: unnamed_container(cgroup),
        ..Event::new(handled.wall_of(at_ns), at_ns, kind, reason, message)
    }
}

/// The UID of a pod without a name.
fn unnamed_pod(cgroup: &Attributed) -> Option<PodUid> {
    let owner = cgroup.owner.as_ref().filter(|_| cgroup.pod.is_none());
    owner?.uid().cloned()
}

/// The id of a container without a name.
fn unnamed_container(cgroup: &Attributed) -> Option<String> {
    let owner = cgroup.owner.as_ref().filter(|_| cgroup.container.is_none());
    Some(owner?.container()?.id.clone())
}

#[cfg(test)]
mod tests;
