//! What the loop shows after a pass: the status document and the gauges. Nothing depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Loop;
use super::pass::Scope;
use super::phases::Phases;
use super::pods::{Instance, PodEntry};
use crate::apply::cgroupfs::ApplyError;
use crate::decide::cgroup_plan::CgroupPlan;
use crate::decide::lifecycle::Waiting;
use crate::decide::placement::summary::summary;
use crate::decide::qos::qos_reason;
use crate::model::admission::Admission;
use crate::model::api_pod::ContainerRole;
use crate::model::cgroup::{CgroupStep, DesiredCgroup, Existence, ObservedCgroup};
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::{ContainerState, ContainerStatus};
use crate::model::pod::{Overhead, PodLevel, PodUid};
use crate::model::status::{
    self, AgentStatus, ApiVersion, CgroupStatus, ManifestFault, NodeStatus, PsiStatus,
    ResourceBounds, ResourceStatus, Status, StatusKind, Usage,
};
use crate::model::time::WallTime;
use crate::observe::metrics::ContainerLabels;
use crate::observe::metrics::labels::{
    CgroupOp, DriftCause, KubeletCgroupOp, KubeletContainerState, LagKind, ObjectKind, Phase,
    WriteResult,
};
use crate::run::amounts;
use crate::run::publisher::{self, Began};
use crate::run::usage::Usages;
use crate::sources::block_io::uncounted_disks;
use crate::sys::{Root, clock};
use crate::units::{Bytes, MilliCpu};

/// What the loop has done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub passes: u64,
    pub writes: u64,
    pub failed_writes: u64,
    pub last_pass: Duration,
}

fn eviction_text(entry: &PodEntry) -> Option<String> {
    let eviction = entry.state.eviction.as_ref()?;
    Some(eviction.victim.message.trim_end().to_owned())
}

fn refusal_text(admission: &Admission) -> Option<String> {
    match admission {
        Admission::Refused(refusal) => Some(refusal.message.clone()),
        Admission::Open | Admission::Admitted => None,
    }
}

impl Loop {
    /// Counts what a plan found: values that differ, and those that are right already.
    pub(super) fn count_plan(
        &mut self,
        plan: &CgroupPlan,
        wanted: &[DesiredCgroup],
        observed: &BTreeMap<CgroupPath, ObservedCgroup>,
    ) {
        for step in &plan.steps {
            let CgroupStep::Write { path, file, .. } = step else {
                continue;
            };
            let is_new = observed
                .get(path)
                .is_none_or(|it| it.existence == Existence::Absent);
            let cause = match (is_new, self.counters.passes) {
                (true, _) => DriftCause::New,
                (false, 0) => DriftCause::Restart,
                (false, _) => DriftCause::Foreign,
            };
            self.metrics.drift(&file.name, cause);
        }
        let mut same: BTreeMap<&str, u64> = BTreeMap::new();
        for cgroup in wanted {
            let Some(seen) = observed.get(&cgroup.path) else {
                continue;
            };
            for (file, to) in &cgroup.files {
                if seen.values.get(file) == Some(to) {
                    *same.entry(&file.name).or_default() += 1;
                }
            }
        }
        for (file, n) in same {
            self.metrics.cgroup_writes(file, WriteResult::Same, n);
        }
    }

    /// Executes the steps, each counted and timed.
    pub(super) fn apply_counted(&mut self, steps: &[CgroupStep]) -> (usize, Vec<ApplyError>) {
        let mut since = clock::boottime();
        let mut by_cgroup: BTreeMap<CgroupPath, (KubeletCgroupOp, Duration)> = BTreeMap::new();
        let instances = self.pods.values().flat_map(|it| it.instances.values());
        let containers = match steps {
            [] => BTreeSet::new(),
            _ => instances.map(|it| &it.cgroup).collect(),
        };
        let applied = self
            .hands
            .writer
            .apply(steps, &containers, &mut |step, error| {
                let now = clock::boottime();
                let op = match step {
                    CgroupStep::Create { .. } | CgroupStep::Repair { .. } => CgroupOp::Mkdir,
                    CgroupStep::Write { file, .. } => {
                        let result = error.map_or(WriteResult::Changed, write_result);
                        self.metrics.cgroup_writes(&file.name, result, 1);
                        if error.is_none() {
                            self.contention.wrote(step, now);
                        }
                        CgroupOp::Write
                    }
                };
                let took = now.saturating_sub(since);
                self.metrics.cgroup_op(op, took);
                since = now;
                let begun = match step {
                    CgroupStep::Create { .. } => KubeletCgroupOp::Create,
                    CgroupStep::Repair { .. } | CgroupStep::Write { .. } => KubeletCgroupOp::Update,
                };
                let (_, sum) = by_cgroup
                    .entry(step.path().clone())
                    .or_insert((begun, Duration::ZERO));
                *sum += took;
            });
        for (op, took) in by_cgroup.into_values() {
            self.metrics.kubelet_cgroup_op(op, took);
        }
        applied
    }

    /// What differs still after a full pass, by file; 0 for a file that is right everywhere.
    pub(super) fn count_unresolved(
        &self,
        plan: &CgroupPlan,
        wanted: &[DesiredCgroup],
        errors: &[ApplyError],
    ) {
        let right = wanted
            .iter()
            .flat_map(|it| &it.files)
            .map(|(file, _)| (file.name.as_str(), 0));
        let waiting = plan.deferred.iter().map(|it| (it.file.name.as_str(), 1));
        let foreign = self.unsettled.foreign.iter();
        let foreign = foreign.map(|it| (it.file.as_str(), 1));
        let masked = plan.ineffective.iter();
        let masked = masked.map(|it| (it.file.name.as_str(), 1));
        let failed = errors.iter().filter_map(|it| Some((it.file()?, 1)));
        let differ = waiting.chain(foreign).chain(masked).chain(failed);
        self.metrics.set_drift_unresolved(right.chain(differ));
    }

    /// Pods and containers whose cgroup is right for the first time.
    pub(super) fn count_lags(&mut self, uids: &BTreeSet<&PodUid>) {
        let now = clock::boottime();
        for uid in uids {
            let Some(entry) = self.pods.get_mut(uid) else {
                continue;
            };
            if entry.blocked.is_none()
                && !entry.cgroup_faults.contains_key(&entry.cgroup)
                && let Some(seen_at) = entry.seen_at.take()
            {
                let lag = now.saturating_sub(seen_at);
                self.metrics.reconcile_lag(LagKind::Pod, lag);
            }
            for instance in entry.instances.values_mut() {
                if !entry.cgroup_faults.contains_key(&instance.cgroup)
                    && let Some(decided_at) = instance.decided_at.take()
                {
                    let lag = now.saturating_sub(decided_at);
                    self.metrics.reconcile_lag(LagKind::Container, lag);
                }
            }
        }
    }

    /// The end of a pass: counters, gauges, and the document when it is due.
    pub(super) fn count_pass(&mut self, scope: Scope, started: Duration, mut phases: Phases) {
        let now = clock::boottime();
        self.counters.passes += 1;
        self.counters.last_pass = now.saturating_sub(started);
        self.metrics
            .loop_succeeded(WallTime::from_epoch(clock::wall()));
        self.health.pass_done();
        self.metrics.set_ready(self.health.is_ready());
        let is_due = self.publisher.changed(now);
        if scope == Scope::All {
            self.measure_self();
        }
        if scope == Scope::All || is_due {
            self.publish(now);
        }
        phases.end(Phase::Observe);
        phases.count(&self.metrics);
    }

    /// What the agent uses, and what its removed cgroups cost the kernel.
    fn measure_self(&self) {
        self.publisher.measure_self(&self.metrics);
        match self.node.reader.n_dying(&self.hands.plan.kubepods_path()) {
            Ok(n) => self.metrics.set_cgroups_dying(n),
            Err(error) => {
                self.metrics.set_cgroups_dying(None);
                tracing::debug!(error = crate::observe::chain(&error), "dying cgroups");
            }
        }
    }

    fn publish(&mut self, now: Duration) {
        let began = Began::now();
        let containers: Vec<ContainerLabels<'_>> = self
            .pods
            .values()
            .flat_map(|entry| {
                let pod = &entry.state.pod;
                pod.all_containers()
                    .map(|it| ContainerLabels::named(&pod.namespace, &pod.name, &it.name))
            })
            .collect();
        let n_containers = containers.len();
        self.metrics.sync_pods(containers, now);
        self.count_objects(n_containers);
        let psi = publisher::node_psi(&self.metrics, now);
        self.metrics.set_source_ages(now);
        let status = self.status(psi);
        self.metrics.set_node_allocatable(&status.node.resources);
        self.publisher.publish(status, began);
    }

    fn count_objects(&self, n_containers: usize) {
        self.count_running();
        for (kind, n) in [
            (ObjectKind::Pod, self.pods.len()),
            (ObjectKind::Container, n_containers),
            (ObjectKind::Cgroup, self.ids.len()),
            // No pod of a manifest has a controller.
            (ObjectKind::Workload, self.pods.len()),
        ] {
            self.metrics.set_objects(kind, n);
        }
        let counts = self.shared.index().count(self.ids.values().copied());
        publisher::show_levels(&self.metrics, counts);
    }

    fn count_running(&self) {
        let mut n_pods = 0;
        let mut n_containers: BTreeMap<KubeletContainerState, usize> = BTreeMap::new();
        for entry in self.pods.values() {
            let mut is_running = false;
            for container in &entry.state.containers {
                let state = match container.state {
                    // There is nothing of it yet.
                    ContainerState::NotStarted => continue,
                    ContainerState::Starting => KubeletContainerState::Created,
                    ContainerState::Running { .. } => KubeletContainerState::Running,
                    ContainerState::Ending(_) | ContainerState::Exited(_) => {
                        KubeletContainerState::Exited
                    }
                };
                is_running |= state == KubeletContainerState::Running;
                *n_containers.entry(state).or_default() += 1;
            }
            n_pods += usize::from(is_running);
        }
        let n_containers = |state| n_containers.get(&state).copied().unwrap_or(0);
        self.metrics.set_running(n_pods, n_containers);
    }

    fn status(&self, psi: PsiStatus) -> Status {
        let usages = Usages::of(&self.readings);
        let now_boot = clock::boottime();
        let now_wall = clock::wall();
        let at = |boottime: Duration| {
            WallTime::from_epoch(now_wall.saturating_sub(now_boot.saturating_sub(boottime)))
        };
        let mut pods: Vec<status::PodEntry> = self
            .pods
            .values()
            .map(|entry| self.pod_status(entry, &usages, &at))
            .collect();
        pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        // What is wrong with the node is wrong for all pods.
        let mut warnings: Vec<String> = self.offline_reserved().into_iter().collect();
        warnings.extend(self.shared_isolated());
        warnings.extend(self.unsettled.node_faults.values().cloned());
        warnings.extend(self.unsettled.deferred.iter().map(|it| {
            format!(
                "{} of {} waits for usage to come down to {}",
                it.file.name, it.path, it.to
            )
        }));
        warnings.extend(
            self.unsettled
                .foreign
                .iter()
                .map(|it| self.foreign_text(it, now_boot)),
        );
        warnings.extend_from_slice(&self.manifest_state.warnings);
        Status {
            api_version: ApiVersion::V1Alpha1,
            kind: StatusKind::Status,
            agent: AgentStatus {
                passes: self.counters.passes,
                last_pass_us: u64::try_from(self.counters.last_pass.as_micros())
                    .unwrap_or(u64::MAX),
                writes: self.counters.writes,
                failed_writes: self.counters.failed_writes,
                events: self.told.n_events(),
                last_event: self.told.last_event(),
                ..self.publisher.agent()
            },
            node: NodeStatus {
                name: self.node.name.clone(),
                cgroup: CgroupStatus {
                    version: self.node.version(),
                    driver: Some(self.config.kubelet.cgroup_driver),
                    root: Some(self.config.kubelet.cgroup_root_path().to_string()),
                    uncounted_disks: uncounted_disks(&Root::host(), &self.node.cgroups.layout),
                },
                runtime: None,
                api_server: None,
                resources: self.resources(&usages),
                psi,
                ebpf: self.publisher.ebpf(self.shared.lost()),
                pressure: self.pressure.status(),
                kubelet: None,
                placement: Some(summary(
                    &self.placement.managers,
                    &self.placement.settings,
                    |uid| self.pods.get(uid).map(|it| &*it.pod_ref),
                )),
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
    fn resources(&self, usages: &Usages) -> BTreeMap<String, ResourceStatus> {
        let allocatable = &self.hands.plan.allocatable;
        let n_cpus = self.node.capacity.n_cpus;
        let mut resources = amounts::resources(allocatable, &self.config.kubelet, n_cpus);
        let active = || self.pods.values().filter(|it| it.is_active());
        let requests = active().map(|it| {
            let pod = &it.state.pod;
            pod.requests(PodLevel::Honoured, Overhead::Added)
        });
        amounts::set_requested(&mut resources, requests);
        let used_memory = active().filter_map(|it| usages.pod(&it.pod_ref).memory_bytes);
        let used_memory = used_memory.map(|Bytes(bytes)| bytes).sum();
        let used_cpu = usages.kubepods_cpu();
        for (name, resource) in &mut resources {
            resource.used = match name.as_str() {
                "memory" => Some(used_memory),
                "cpu" => used_cpu.map(|MilliCpu(milli)| milli),
                _ => None,
            };
        }
        resources
    }

    fn pod_status(
        &self,
        entry: &PodEntry,
        usages: &Usages,
        at: &dyn Fn(Duration) -> WallTime,
    ) -> status::PodEntry {
        let pod = &entry.state.pod;
        let mut stalls = self.readings.stalls_of(&pod.uid);
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
                    true => ContainerRole::Sidecar,
                    false => ContainerRole::Init,
                };
                (kind, it)
            })
            .chain(pod.containers.iter().map(|it| (ContainerRole::Main, it)))
            .filter_map(|(kind, container)| {
                let name = &container.name;
                let own = entry.state.containers.iter().find(|it| it.name == *name)?;
                let instance = entry.instances.get(name);
                Some(status::ContainerEntry {
                    name: name.clone(),
                    id: None,
                    kind: Some(kind),
                    state: container_state(own, instance, waiting.get(name.as_str()), at),
                    restarts: own.attempt,
                    oom_kills: entry.state.oom_kills.get(name).copied().unwrap_or(0),
                    cpuset: instance
                        .and_then(|_| self.placement_of(&pod.uid, name).cpus)
                        .map(|it| it.to_string()),
                    resources: ResourceBounds::new(
                        &container.resources.requests,
                        &container.resources.limits,
                    ),
                    usage: match instance {
                        Some(instance) => usages.container(&entry.pod_ref, instance.id.as_str()),
                        None => Usage::default(),
                    },
                    memory_stall: instance.and_then(|_| stalls.containers.remove(name)),
                })
            })
            .collect();
        let warnings = self.manifest_state.warnings_of.get(&pod.full_name());
        let requests = pod.requests(PodLevel::Honoured, Overhead::Added);
        let limits = pod.limits(PodLevel::Honoured, Overhead::Added).amounts;
        status::PodEntry {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            workload: None,
            qos: entry.qos,
            qos_reason: Some(qos_reason(pod)),
            phase: entry.state.phase,
            reason: match (
                &entry.state.eviction,
                [&entry.blocked, &entry.occupied, &entry.aside]
                    .into_iter()
                    .find_map(Option::as_ref),
                entry.state.deletion,
                &entry.state.admission,
            ) {
                (_, Some(_), ..) => Some("Blocked".to_owned()),
                (Some(it), ..) => Some(it.victim.cause.reason().to_owned()),
                (None, None, Some(_), _) => Some("Terminating".to_owned()),
                (None, None, None, Admission::Refused(refusal)) => Some(refusal.reason.to_string()),
                (None, None, None, Admission::Open) => Some("AdmissionWaiting".to_owned()),
                (None, None, None, Admission::Admitted) => None,
            },
            message: eviction_text(entry)
                .or_else(|| refusal_text(&entry.state.admission))
                .or_else(|| entry.blocked.clone())
                .or_else(|| entry.occupied.clone())
                .or_else(|| entry.aside.clone())
                .or_else(|| entry.waits.clone())
                .or_else(|| entry.held_back.clone())
                .or_else(|| entry.instances.values().find_map(|it| it.held.clone()))
                .or_else(|| {
                    entry
                        .cgroup_faults
                        .values()
                        .next()
                        .map(|it| it.text.clone())
                })
                .or_else(|| {
                    let mut escapes = entry.instances.iter();
                    escapes.find_map(|(name, it)| Some(format!("{name}: {}", it.escape.as_ref()?)))
                })
                .or_else(|| self.foreign_text_of(entry)),
            cgroup_path: entry.cgroup_id.map(|_| entry.cgroup.to_string()),
            started_at: Some(entry.state.accepted_at),
            redefined: entry.state.redefined.clone(),
            warnings: warnings.cloned().unwrap_or_default(),
            resources: ResourceBounds::new(&requests, &limits),
            usage: match entry.is_active() {
                true => usages.pod(&entry.pod_ref),
                false => Usage::default(),
            },
            memory_stall: stalls.pod.filter(|_| entry.is_active()),
            oom_kills: entry.state.oom_kills.values().sum(),
            containers,
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
            pid: instance.and_then(|it| it.process).map(|it| it.pid),
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

fn write_result(error: &ApplyError) -> WriteResult {
    match error {
        ApplyError::Gone { .. } => WriteResult::Gone,
        error if error.is_refusal() => WriteResult::Refused,
        _ => WriteResult::Error,
    }
}
