//! Where the status document goes, and those parts of it that every mode shows in the same way: the agent,
//! the eBPF programs, the stalls of the node. Nothing depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::kernel::Programs;
use super::missed::KillCounts;
use super::told::Told;
use crate::config::Mode;
use crate::decide::attribution::LevelCounts;
use crate::model::status::{self, AgentStatus, EbpfStatus, ProgramStatus, PsiStatus, Status};
use crate::model::time::WallTime;
use crate::observe::log;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::{
    CgroupLevel, Hook, PressureResource, PressureScope, Source, SourceFault,
};
use crate::sources::bpf::{Pinning, ProgramReport, ProgramState, Stream};
use crate::sources::{ReadError, agent_process, psi};
use crate::sys::{Root, clock};

/// A change shows in `ballast status` within this time; more often would cost and tell no more.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);

/// What goes through all containers takes one part in this many of the loop's time.
const SHARE: u32 = 20;

/// Something that goes through all containers, as it begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    /// Boottime.
    at: Duration,
    cpu: Option<Duration>,
}

impl Began {
    pub(super) fn now() -> Self {
        Self {
            at: clock::boottime(),
            cpu: clock::thread_cpu(),
        }
    }

    /// When what has just been done, by the same thread, may be done again: `least` after it began, or more where it
    /// took much CPU time. What it waited for a CPU is no reason to be later still. Boottime.
    pub(super) fn due_again(self, least: Duration) -> Duration {
        let used = clock::thread_cpu().zip(self.cpu);
        let used = used.map_or(Duration::ZERO, |(now, before)| now.saturating_sub(before));
        self.at + least.max(used * SHARE)
    }
}

/// Where the document goes, and the parts of it that do not change with a pass.
pub(super) struct Publisher {
    sender: watch::Sender<Option<Arc<Status>>>,
    started_at: WallTime,
    mode: &'static str,
    ebpf: EbpfStatus,
    /// Something changed since the last document, at this time.
    changed_at: Option<Duration>,
    /// When the next document may be made.
    due_at: Duration,
}

impl Publisher {
    pub(super) fn new(mode: &Mode) -> (Self, watch::Receiver<Option<Arc<Status>>>) {
        let (sender, receiver) = watch::channel(None);
        let publisher = Self {
            sender,
            started_at: WallTime::from_epoch(clock::wall()),
            mode: mode.as_str(),
            ebpf: EbpfStatus::default(),
            changed_at: None,
            due_at: Duration::ZERO,
        };
        (publisher, receiver)
    }

    /// When the next document is due; `None`: nothing changed.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.changed_at.map(|_| self.due_at)
    }

    /// Something is to be shown. True: its document is due.
    pub(super) fn changed(&mut self, now: Duration) -> bool {
        self.changed_at.get_or_insert(now);
        now >= self.due_at
    }

    /// Shows a document that was begun then.
    pub(super) fn publish(&mut self, status: Status, began: Began) {
        self.sender.send_replace(Some(Arc::new(status)));
        self.changed_at = None;
        self.due_at = began.due_again(PUBLISH_EVERY);
    }

    /// What the document says of the agent, before it has done anything.
    pub(super) fn agent(&self) -> AgentStatus {
        AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            mode: self.mode.to_owned(),
            started_at: self.started_at,
            observed_at: WallTime::from_epoch(clock::wall()),
            passes: 0,
            last_pass_us: 0,
            writes: 0,
            failed_writes: 0,
            events: 0,
            last_event: 0,
        }
    }

    /// `lost`: events of each stream.
    pub(super) fn ebpf(&self, lost: BTreeMap<String, u64>) -> EbpfStatus {
        EbpfStatus {
            lost,
            ..self.ebpf.clone()
        }
    }

    /// What the agent itself uses.
    pub(super) fn measure_self(&self, metrics: &Metrics) {
        let n_left_out = log::take_left_out();
        if n_left_out > 0 {
            tracing::warn!(n_left_out, "lines like earlier ones are not in the log");
        }
        let usage = agent_process::read(&Root::host());
        metrics.set_process_usage(&usage, self.started_at);
    }

    /// Shows and tells what is known of the eBPF programs from now on.
    pub(super) fn programs_loaded(
        &mut self,
        programs: &Programs,
        counts: &KillCounts,
        metrics: &Metrics,
        told: &Told,
    ) {
        if !programs.reports_kills {
            counts.without_programs();
        }
        let reports = &programs.reports;
        match &programs.fault {
            None => self.programs(reports, metrics),
            Some(why) if reports.is_empty() => self.no_streams(why, metrics),
            Some(why) => {
                let untried = ProgramReport::untried(reports, why);
                self.programs(&[reports.as_slice(), &untried].concat(), metrics);
            }
        }
        if let Some(why) = &programs.fault {
            told.node("KernelEventsOff", why.clone());
        }
        let (not_pinned, kept) = match &programs.pinning {
            Pinning::On | Pinning::Off => (None, None),
            Pinning::Failed { reason } => (Some(reason.clone()), None),
            Pinning::Kept { reason } => (None, Some(reason.clone())),
        };
        for (reason, why) in [
            ("KernelEventsNotPinned", &not_pinned),
            ("KernelEventsKept", &kept),
        ] {
            if let Some(why) = why {
                told.node(reason, why.clone());
            }
        }
        (self.ebpf.not_pinned, self.ebpf.kept) = (not_pinned, kept);
    }

    fn programs(&mut self, reports: &[ProgramReport], metrics: &Metrics) {
        let programs = reports.iter().map(|it| program_status(it, reports));
        self.ebpf.programs = programs.collect();
        for report in reports {
            let hook = match report.has_stand_in(reports) {
                true => Hook::StandIn,
                false => hook_of(&report.state),
            };
            metrics.set_program(report.program, hook);
        }
    }

    /// A program on cgroups; `Err`: why it is not there.
    pub(super) fn cgroup_program(
        &mut self,
        name: &str,
        attached: Result<(), String>,
        metrics: &Metrics,
    ) {
        let (program, hook) = match attached {
            Ok(()) => (
                ProgramStatus {
                    name: name.to_owned(),
                    state: status::ProgramState::Attached,
                    hook: Some("cgroup/device".to_owned()),
                    reason: None,
                },
                Hook::Cgroup,
            ),
            Err(reason) => (
                ProgramStatus {
                    name: name.to_owned(),
                    state: status::ProgramState::Failed,
                    hook: None,
                    reason: Some(reason),
                },
                Hook::None,
            ),
        };
        self.ebpf.programs.push(program);
        metrics.set_program(name, hook);
    }

    /// There is nothing to listen to.
    fn no_streams(&mut self, why: &str, metrics: &Metrics) {
        for program in ProgramReport::wanted() {
            metrics.set_program(program, Hook::None);
        }
        self.ebpf.programs = vec![ProgramStatus {
            name: "all".to_owned(),
            state: status::ProgramState::Failed,
            hook: None,
            reason: Some(format!(
                "{why}; instead: {}",
                ProgramReport::without(Stream::Oom)
            )),
        }];
    }
}

/// How many cgroups there are of each level, shown in the metrics.
pub(super) fn show_levels(metrics: &Metrics, counts: LevelCounts) {
    for (level, n) in [
        (CgroupLevel::Kubepods, counts.kubepods),
        (CgroupLevel::Qos, counts.qos),
        (CgroupLevel::Pod, counts.pods),
        (CgroupLevel::Container, counts.containers),
    ] {
        metrics.set_cgroups(level, n);
    }
}

/// Stalls of the node as a whole, shown in the metrics too.
pub(super) fn node_psi(metrics: &Metrics, now: Duration) -> PsiStatus {
    match psi::node_stalls(&Root::host()) {
        Ok(stalls) => {
            metrics.source_read(Source::Psi, now);
            for (resource, psi) in [
                (PressureResource::Cpu, &stalls.cpu),
                (PressureResource::Io, &stalls.io),
            ] {
                if let Some(psi) = psi {
                    let node = PressureScope::Node;
                    metrics.set_stall(resource, node, &psi.totals(), now);
                }
            }
            PsiStatus::from(&stalls)
        }
        Err(error) => {
            let fault = match error {
                ReadError::Fs(_) => SourceFault::Io,
                ReadError::Parse { .. } => SourceFault::Parse,
            };
            metrics.source_error(Source::Psi, fault);
            PsiStatus::default()
        }
    }
}

/// One eBPF program for the status document.
fn program_status(report: &ProgramReport, all: &[ProgramReport]) -> ProgramStatus {
    let (state, hook, reason) = match &report.state {
        ProgramState::Attached { hook } => {
            (status::ProgramState::Attached, Some(hook.clone()), None)
        }
        ProgramState::Adopted { hook } => (
            status::ProgramState::Attached,
            Some(format!("{hook}, adopted from an earlier agent")),
            None,
        ),
        ProgramState::Refused { reason } => {
            let reason = match report.instead(all) {
                Some(fallback) => format!("{reason}; instead: {fallback}"),
                None => reason.clone(),
            };
            let state = match report.has_stand_in(all) {
                true => status::ProgramState::Skipped,
                false => status::ProgramState::Failed,
            };
            (state, None, Some(reason))
        }
    };
    ProgramStatus {
        name: report.program.to_owned(),
        state,
        hook,
        reason,
    }
}

fn hook_of(state: &ProgramState) -> Hook {
    let (ProgramState::Attached { hook } | ProgramState::Adopted { hook }) = state else {
        return Hook::None;
    };
    let kind = hook.split('/').next().unwrap_or_default();
    Hook::ALL
        .iter()
        .copied()
        .find(|it| it.as_str() == kind)
        .unwrap_or(Hook::RawTracepoint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event_log::EventLog;
    use crate::observe::metrics::Format;

    fn publisher() -> Publisher {
        Publisher {
            sender: watch::channel(None).0,
            started_at: WallTime::from_epoch(Duration::ZERO),
            mode: "own",
            ebpf: EbpfStatus::default(),
            changed_at: None,
            due_at: Duration::ZERO,
        }
    }

    /// The stream after that of kills failed, and so did all that come after it.
    #[test]
    fn streams_that_were_not_tried_are_faults_too() {
        let hook = "tp_btf/mark_victim".to_owned();
        let programs = Programs {
            reports: vec![ProgramReport {
                program: "oom_victim",
                stream: Stream::Oom,
                state: ProgramState::Attached { hook },
                fallback: None,
            }],
            device: None,
            reports_kills: true,
            fault: Some("the ring map of stream process".to_owned()),
            pinning: Pinning::On,
        };
        let mut publisher = publisher();
        let metrics = Metrics::default();
        let told = Told::new(EventLog::new(8, 0));
        publisher.programs_loaded(&programs, &KillCounts::default(), &metrics, &told);
        let rows = publisher.ebpf(BTreeMap::new()).programs;
        let state = |name: &str| {
            let row = rows.iter().find(|it| it.name == name);
            row.map(|it| it.state)
        };
        assert_eq!(state("oom_victim"), Some(status::ProgramState::Attached));
        for name in [
            "process_fork",
            "process_exit",
            "cgroup_created",
            "stall_memcg_end",
        ] {
            assert_eq!(state(name), Some(status::ProgramState::Failed), "{name}");
        }
        assert_eq!(state("oom_reason"), None, "tried, and needless here");
        let why = "the ring map of stream process; instead: ";
        let failed = rows.iter().filter_map(|it| it.reason.as_deref());
        assert!(failed.clone().count() > 0);
        for reason in failed {
            assert!(reason.starts_with(why), "{reason}");
        }
    }

    #[test]
    fn a_program_whose_work_another_does_is_no_fault() {
        let report = |program, state, fallback| ProgramReport {
            program,
            stream: Stream::Oom,
            state,
            fallback,
        };
        let refused = |program, fallback| {
            let reason = "not here".to_owned();
            report(program, ProgramState::Refused { reason }, Some(fallback))
        };
        let hook = "raw_tp/mark_victim".to_owned();
        let reports = [
            refused("oom_victim", "oom_victim_raw"),
            report("oom_victim_raw", ProgramState::Attached { hook }, None),
            refused("process_exit", "nothing"),
        ];
        let mut publisher = publisher();
        let metrics = Metrics::default();
        publisher.programs(&reports, &metrics);
        let programs = publisher.ebpf(BTreeMap::new()).programs;
        let states: Vec<_> = programs.iter().map(|it| it.state).collect();
        let expected = [
            status::ProgramState::Skipped,
            status::ProgramState::Attached,
            status::ProgramState::Failed,
        ];
        assert_eq!(states, expected);
        let mut page = Vec::new();
        metrics.encode(Format::Text, &mut page).expect("a page");
        let page = String::from_utf8(page).expect("text");
        let series = |program: &str, hook: &str| {
            let series = format!("{{hook=\"{hook}\",program=\"{program}\"}}");
            page.lines().any(|it| it.contains(&series))
        };
        assert!(series("oom_victim", "stand_in"), "{page}");
        assert!(series("process_exit", "none"));
    }
}
