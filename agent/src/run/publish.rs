//! What the loop shows after a pass: the status document and the gauges. Nothing depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::Loop;
use super::node::Node;
use super::pass::Scope;
use super::pods::{Instance, PodEntry};
use crate::config::Config;
use crate::decide::cgroup_plan::CgroupPlan;
use crate::decide::lifecycle::Waiting;
use crate::decide::pod_resources::{memory, milli_cpu};
use crate::model::cgroup::{CgroupStep, Existence, ObservedCgroup};
use crate::model::cgroup_name::CgroupName;
use crate::model::container::{ContainerKind, ContainerState, ContainerStatus};
use crate::model::pod::{Overhead, PodLevel, ResourceList};
use crate::model::psi::{Psi, StallShare, Stalls};
use crate::model::status::{
    self, AgentStatus, ApiVersion, CgroupStatus, EbpfStatus, ManifestFault, NodeStatus,
    ProgramStatus, PsiShare, PsiStatus, ResourceBounds, ResourceStatus, Status, StatusKind, Usage,
};
use crate::model::time::WallTime;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::{
    CgroupLevel, DriftCause, Hook, ObjectKind, Phase, WriteResult,
};
use crate::sources::bpf::{ProgramReport, ProgramState};
use crate::sources::psi;
use crate::sys::{Root, clock};
use crate::units::{Bytes, MilliCpu};

/// A change shows in `ballast status` within this time; more often would cost and tell no more.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);

/// What the loop has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub passes: u64,
    pub writes: u64,
    pub failed_writes: u64,
    pub last_pass: Duration,
}

/// Where the document goes, and the parts of it that do not change with a pass.
pub(super) struct Publisher {
    sender: watch::Sender<Option<Arc<Status>>>,
    started_at: WallTime,
    mode: String,
    ebpf: EbpfStatus,
    /// Something changed since the last document, at this time.
    changed_at: Option<Duration>,
    published_at: Duration,
}

impl Publisher {
    pub(super) fn new(
        config: &Config,
        _node: &Node,
    ) -> (Self, watch::Receiver<Option<Arc<Status>>>) {
        let (sender, receiver) = watch::channel(None);
        let publisher = Self {
            sender,
            started_at: WallTime::from_epoch(clock::wall()),
            mode: match config.mode {
                crate::config::Mode::Observe => "observe",
                crate::config::Mode::Assist => "assist",
                crate::config::Mode::Own => "own",
            }
            .to_owned(),
            ebpf: EbpfStatus::default(),
            changed_at: None,
            published_at: Duration::ZERO,
        };
        (publisher, receiver)
    }

    /// When the next document is due; `None`: nothing changed.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.changed_at.map(|_| self.published_at + PUBLISH_EVERY)
    }

    pub(super) fn programs(&mut self, reports: &[ProgramReport], metrics: &Metrics) {
        self.ebpf.programs = reports.iter().map(program_status).collect();
        for report in reports {
            metrics.set_program(report.program, hook_of(&report.state));
        }
    }

    /// There is nothing to listen to.
    pub(super) fn no_streams(&mut self, why: &str) {
        self.ebpf.programs = vec![ProgramStatus {
            name: "all".to_owned(),
            state: status::ProgramState::Failed,
            hook: None,
            reason: Some(why.to_owned()),
        }];
    }
}

/// One eBPF program for the status document and for `ballast check`.
pub(super) fn program_status(report: &ProgramReport) -> ProgramStatus {
    let (state, hook, reason) = match &report.state {
        ProgramState::Attached { hook } => {
            (status::ProgramState::Attached, Some(hook.clone()), None)
        }
        ProgramState::Adopted => (
            status::ProgramState::Attached,
            Some("adopted from an earlier agent".to_owned()),
            None,
        ),
        ProgramState::Refused { reason } => {
            let reason = match report.fallback {
                Some(fallback) => format!("{reason}; instead: {fallback}"),
                None => reason.clone(),
            };
            (status::ProgramState::Failed, None, Some(reason))
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
    let ProgramState::Attached { hook } = state else {
        return match state {
            // Adopted links are those of the streams that are pinned: tp_btf wherever it loads.
            ProgramState::Adopted => Hook::TpBtf,
            _ => Hook::None,
        };
    };
    let kind = hook.split('/').next().unwrap_or_default();
    Hook::ALL
        .iter()
        .copied()
        .find(|it| it.as_str() == kind)
        .unwrap_or(Hook::RawTracepoint)
}

impl Loop {
    /// Counts what a plan found and is about to do.
    pub fn count_plan(
        &mut self,
        plan: &CgroupPlan,
        observed: &BTreeMap<CgroupName, ObservedCgroup>,
    ) {
        for step in &plan.steps {
            let CgroupStep::Write { name, file, .. } = step else {
                continue;
            };
            let is_new = observed
                .get(name)
                .is_none_or(|it| it.existence == Existence::Absent);
            let cause = match (is_new, self.counters.passes) {
                (true, _) => DriftCause::New,
                (false, 0) => DriftCause::Restart,
                (false, _) => DriftCause::Foreign,
            };
            self.metrics.drift(&file.name, cause);
            self.metrics.cgroup_write(&file.name, WriteResult::Changed);
        }
        let waiting = plan.deferred.iter().map(|it| (it.file.name.as_str(), 1));
        self.metrics.set_drift_unresolved(waiting);
    }

    /// The end of a pass: counters, gauges, and the document when it is due.
    pub fn count_pass(&mut self, scope: Scope, started: Duration) {
        let now = clock::boottime();
        self.counters.passes += 1;
        self.counters.last_pass = now.saturating_sub(started);
        self.metrics
            .loop_phase(Phase::Apply, self.counters.last_pass);
        self.metrics
            .loop_succeeded(WallTime::from_epoch(clock::wall()));
        self.health.pass_done(now);
        self.metrics.set_ready(self.health.is_ready());
        self.publisher.changed_at.get_or_insert(now);
        let is_due = now >= self.publisher.published_at + PUBLISH_EVERY;
        if scope == Scope::All || is_due {
            self.publish(now);
        }
    }

    fn publish(&mut self, now: Duration) {
        let containers: Vec<(&str, &str, &str)> = self
            .pods
            .values()
            .flat_map(|entry| {
                let pod = &entry.state.pod;
                pod.all_containers()
                    .map(|it| (pod.namespace.as_str(), pod.name.as_str(), it.name.as_str()))
            })
            .collect();
        let n_containers = containers.len();
        self.metrics.sync_pods(containers, now);
        self.metrics.set_objects(ObjectKind::Pod, self.pods.len());
        self.metrics
            .set_objects(ObjectKind::Container, n_containers);
        let n_instances = self.pods.values().map(|it| it.instances.len()).sum();
        self.metrics
            .set_cgroups(CgroupLevel::Container, n_instances);
        self.metrics.set_cgroups(CgroupLevel::Pod, self.pods.len());
        let status = self.status();
        self.publisher.sender.send_replace(Some(Arc::new(status)));
        self.publisher.changed_at = None;
        self.publisher.published_at = now;
    }

    fn status(&self) -> Status {
        let now_boot = clock::boottime();
        let now_wall = clock::wall();
        let at = |boottime: Duration| {
            WallTime::from_epoch(now_wall.saturating_sub(now_boot.saturating_sub(boottime)))
        };
        let mut pods: Vec<status::PodEntry> = self
            .pods
            .values()
            .map(|entry| self.pod_status(entry, &at))
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let mut warnings = self.manifest_state.warnings.clone();
        warnings.extend(self.node_faults.values().cloned());
        warnings.extend(self.deferred.iter().map(|it| {
            format!(
                "{} of {} waits for usage to come down to {}",
                it.file.name,
                self.node.path_of(&it.name),
                it.to
            )
        }));
        Status {
            api_version: ApiVersion::V1Alpha1,
            kind: StatusKind::Status,
            agent: AgentStatus {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                mode: self.publisher.mode.clone(),
                started_at: self.publisher.started_at,
                observed_at: WallTime::from_epoch(now_wall),
                passes: self.counters.passes,
                last_pass_us: u64::try_from(self.counters.last_pass.as_micros())
                    .unwrap_or(u64::MAX),
                writes: self.counters.writes,
                failed_writes: self.counters.failed_writes,
                last_event: self.told.last_event(),
            },
            node: NodeStatus {
                name: self.node.name.clone(),
                cgroup: CgroupStatus {
                    version: self.node.version(),
                    driver: self.config.kubelet.cgroup_driver,
                    root: self.node.path_of(&self.config.kubelet.cgroup_root),
                },
                resources: self.resources(),
                psi: psi::node_stalls(&Root::host())
                    .map(|it| psi_status(&it))
                    .unwrap_or_default(),
                ebpf: self.publisher.ebpf.clone(),
            },
            pods,
            manifest_faults: self
                .manifest_state
                .faults
                .iter()
                .map(|it| ManifestFault {
                    file: it.file.display().to_string(),
                    pod: it.pod.clone(),
                    field: it.field.clone(),
                    message: it.message.clone(),
                })
                .collect(),
            warnings,
        }
    }

    /// Node totals by resource.
    fn resources(&self) -> BTreeMap<String, ResourceStatus> {
        let allocatable = &self.node.plan.allocatable;
        let n_pods = self.config.kubelet.max_pods;
        let capacity = allocatable.node_capacity(n_pods);
        let free = allocatable.node_allocatable(n_pods);
        let mut requested: BTreeMap<String, u64> = BTreeMap::new();
        let mut used_memory = 0;
        for entry in self.pods.values().filter(|it| it.is_active()) {
            let requests = entry
                .state
                .pod
                .requests(PodLevel::Honoured, Overhead::Added);
            for name in requests.keys() {
                let sum = requested.entry(name.clone()).or_default();
                *sum = sum.saturating_add(amount(&requests, name));
            }
            *requested.entry("pods".to_owned()).or_default() += 1;
            if let Ok(Some(bytes)) = self.node.reader.memory_usage(&entry.cgroup) {
                used_memory += bytes;
            }
        }
        capacity
            .keys()
            .map(|name| {
                let total = amount(&capacity, name);
                let left = amount(&free, name);
                let resource = ResourceStatus {
                    capacity: total,
                    reserved: total.saturating_sub(left),
                    allocatable: left,
                    requested: requested.get(name).copied().unwrap_or(0),
                    used: (name == "memory").then_some(used_memory),
                };
                (name.clone(), resource)
            })
            .collect()
    }

    fn pod_status(&self, entry: &PodEntry, at: &dyn Fn(Duration) -> WallTime) -> status::PodEntry {
        let pod = &entry.state.pod;
        let waiting: BTreeMap<&str, Waiting> = entry
            .decision
            .iter()
            .flat_map(|it| &it.containers)
            .filter_map(|it| Some((it.name.as_str(), it.waiting?)))
            .collect();
        let containers = pod
            .init_containers
            .iter()
            .map(|it| {
                let kind = match it.is_sidecar {
                    true => ContainerKind::Sidecar,
                    false => ContainerKind::Init,
                };
                (kind, it)
            })
            .chain(pod.containers.iter().map(|it| (ContainerKind::Main, it)))
            .filter_map(|(kind, container)| {
                let name = &container.name;
                let own = entry.state.containers.iter().find(|it| it.name == *name)?;
                let instance = entry.instances.get(name);
                Some(status::ContainerEntry {
                    name: name.clone(),
                    kind,
                    state: container_state(own, instance, waiting.get(name.as_str()), at),
                    restarts: own.attempt,
                    oom_kills: entry.state.oom_kills.get(name).copied().unwrap_or(0),
                    cpuset: None,
                    resources: bounds(&container.resources.requests, &container.resources.limits),
                    usage: match instance {
                        Some(instance) => self.usage(&instance.cgroup),
                        None => Usage::default(),
                    },
                })
            })
            .collect();
        let requests = pod.requests(PodLevel::Honoured, Overhead::Added);
        let limits = pod.limits(PodLevel::Honoured, Overhead::Added).amounts;
        status::PodEntry {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            qos: entry.qos,
            phase: entry.state.phase,
            reason: match (&entry.blocked, entry.state.deletion) {
                (Some(_), _) => Some("Blocked".to_owned()),
                (None, Some(_)) => Some("Terminating".to_owned()),
                (None, None) => None,
            },
            message: entry
                .blocked
                .clone()
                .or_else(|| entry.cgroup_faults.values().next().cloned()),
            cgroup_path: entry.cgroup_id.map(|_| self.node.path_of(&entry.cgroup)),
            started_at: None,
            resources: bounds(&requests, &limits),
            usage: match entry.is_active() {
                true => self.usage(&entry.cgroup),
                false => Usage::default(),
            },
            oom_kills: entry.state.oom_kills.values().sum(),
            containers,
        }
    }

    fn usage(&self, name: &CgroupName) -> Usage {
        let reader = &self.node.reader;
        Usage {
            memory_bytes: reader.memory_usage(name).ok().flatten().map(Bytes),
            cpu_ns: None,
            cpu_milli: None,
            pids: reader.n_tasks(name).ok().flatten(),
        }
    }
}

fn container_state(
    own: &ContainerStatus,
    instance: Option<&Instance>,
    waiting: Option<&Waiting>,
    at: &dyn Fn(Duration) -> WallTime,
) -> status::EntryState {
    match (&own.state, waiting) {
        (ContainerState::Running { started_at }, _) => status::EntryState::Running {
            pid: instance.and_then(|it| it.process).map_or(0, |it| it.pid),
            started_at: at(*started_at),
        },
        (_, Some(waiting)) => {
            let (reason, until) = match waiting {
                Waiting::PodInitializing => ("PodInitializing", None),
                Waiting::ContainerCreating => ("ContainerCreating", None),
                Waiting::CrashLoopBackOff { until, .. } => ("CrashLoopBackOff", Some(*until)),
            };
            status::EntryState::Waiting {
                reason: Some(reason.to_owned()),
                message: own.state.termination().and_then(|it| it.message.clone()),
                until: until.map(at),
            }
        }
        (ContainerState::Exited(termination) | ContainerState::Ending(termination), None) => {
            status::EntryState::Terminated {
                reason: Some(termination.reason().to_string()),
                exit_code: Some(termination.exit.exit_code()),
                finished_at: Some(at(termination.finished_at)),
            }
        }
        (ContainerState::NotStarted | ContainerState::Starting, None) => {
            status::EntryState::Waiting {
                reason: Some("ContainerCreating".to_owned()),
                message: None,
                until: None,
            }
        }
    }
}

fn bounds(requests: &ResourceList, limits: &ResourceList) -> ResourceBounds {
    let has = |list: &ResourceList, name: &str| list.contains_key(name);
    ResourceBounds {
        cpu_request_milli: has(requests, "cpu").then(|| milli_cpu(requests)),
        cpu_limit_milli: has(limits, "cpu").then(|| milli_cpu(limits)),
        memory_request_bytes: has(requests, "memory").then(|| memory(requests)),
        memory_limit_bytes: has(limits, "memory").then(|| memory(limits)),
    }
}

/// In the unit of the status document: thousandths for CPU, units for the rest.
fn amount(list: &ResourceList, name: &str) -> u64 {
    match name {
        "cpu" => {
            let MilliCpu(milli) = milli_cpu(list);
            milli
        }
        _ => list.get(name).map_or(0, |it| it.units()),
    }
}

fn percent(share: StallShare) -> f64 {
    share.as_ratio() * 100.0
}

fn psi_status(stalls: &Stalls) -> PsiStatus {
    let share = |psi: Option<&Psi>| {
        psi.map(|it| PsiShare {
            some_avg10: percent(it.some.avg10),
            full_avg10: it.full.map(|it| percent(it.avg10)),
        })
    };
    PsiStatus {
        cpu: share(stalls.cpu.as_ref()),
        memory: share(stalls.memory.as_ref()),
        io: share(stalls.io.as_ref()),
    }
}
