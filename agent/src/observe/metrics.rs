//! The agent's metrics. In: what the loop and the event handlers saw. Out: one of the formats that
//! Prometheus reads.
//!
//! Everything is set when it happens or once a pass; encoding reads no file and takes no lock that
//! a pass holds for long.
//!
//! Invariant: [`table`] is the only definition of a family. A counter of a container exists at 0
//! from the first pass that sees the container, and its series stay for [`POD_RETENTION`] after the
//! pod is gone. Counts per workload, scope and slice outlive every pod.

mod cgroups;
mod container_stats;
mod devices;
mod ebpf;
mod eviction;
mod exemplars;
mod exposition;
mod families;
mod histogram;
mod kubelet;
pub mod labels;
mod lifetime;
mod memory;
mod native;
mod openmetrics;
mod placement;
mod pressure;
mod protobuf;
mod registry;
mod saved;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Registry};

use self::container_stats::ContainerCounts;
pub use self::devices::{DeviceCounts, MAX_RESOURCES, PodResourcesCall};
pub use self::eviction::EvictionEffect;
use self::exemplars::{Exemplar, Exemplars};
pub use self::exposition::{EncodeError, Format};
use self::families::{
    AgentFamilies, CpuFamilies, DeviceFamilies, EbpfFamilies, EvictionFamilies, KubeletFamilies,
    MemoryFamilies, OomFamilies, PlacementFamilies, PodResourcesFamilies, PressureFamilies,
    ProcessFamilies, ReconcileFamilies, StateFamilies,
};
use self::histogram::HistogramVec;
use self::labels::{
    ExitHow, FieldHandling, HostSlice, ObjectKind, Phase, RecordResult, RestoreResult, SaveResult,
    Source, SourceFault, Stream, Trigger,
};
use self::lifetime::{ContainerKey, PodLifetimes, WorkloadLifetimes};
pub use self::lifetime::{MAX_WORKLOADS, POD_RETENTION, WORKLOAD_RETENTION, Workload};
use self::memory::Hits;
pub use self::memory::{ContainerMemory, LimitHits};
pub use self::placement::{PlacementGauges, PoolCpus};
use self::pressure::Windows;
use self::registry::Builder;
pub use self::table::{Area, Buckets, Cardinality, Family, NameAge, PREFIX, Type, Unit, table};
use crate::model::agent_process::ProcessUsage;
use crate::model::device::RefusalReason;
use crate::model::event::{AttributionMethod, ExitStatus, ProcessChange};
use crate::model::kubelet_duty::{KubeletDuty, KubeletNames};
use crate::model::numa::NumaMask;
use crate::model::record::{Event, OomDetail, OomScope};
use crate::model::time::WallTime;

/// Handles of every family; clones share them.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

struct Shared {
    registry: Registry,
    /// Those of the registry that have native buckets.
    histograms: BTreeMap<&'static str, HistogramVec>,
    exemplars: Exemplars,
    agent: AgentFamilies,
    process: ProcessFamilies,
    oom: OomFamilies,
    reconcile: ReconcileFamilies,
    placement: PlacementFamilies,
    memory: MemoryFamilies,
    pressure: PressureFamilies,
    eviction: EvictionFamilies,
    ebpf: EbpfFamilies,
    state: StateFamilies,
    devices: DeviceFamilies,
    pod_resources: PodResourcesFamilies,
    cpu: CpuFamilies,
    kubelet: KubeletFamilies,
    /// Resources with series of their own.
    resources: Mutex<BTreeSet<String>>,
    pods: Mutex<PodLifetimes>,
    workloads: Mutex<WorkloadLifetimes>,
    /// Last value of each counter that the kernel keeps and the agent only repeats.
    kernel_counts: Mutex<BTreeMap<(String, &'static str), u64>>,
    memory_hits: Mutex<Hits>,
    /// What sweeps said of containers.
    stats: Mutex<ContainerCounts>,
    /// Where the memory of a container is to be.
    numa_nodes: Mutex<BTreeMap<ContainerKey, NumaMask>>,
    /// The fullest that each ring was found since the last scrape.
    rings: Mutex<BTreeMap<Stream, f64>>,
    stalls: Mutex<Windows>,
    /// Boottime of the newest reading of each source.
    readings: Mutex<BTreeMap<Source, Duration>>,
}

impl Metrics {
    /// The families of the table, those with fixed labels at 0. Kubelet's are there for the duties
    /// that this agent has in its place; what it does beyond them is counted and not shown.
    pub fn new(duties: &[KubeletDuty], names: KubeletNames) -> Self {
        let mut build = Builder::new(duties, names);
        let agent = AgentFamilies::new(&mut build);
        let process = ProcessFamilies::new(&mut build);
        let oom = OomFamilies::new(&mut build);
        let reconcile = ReconcileFamilies::new(&mut build);
        let placement = PlacementFamilies::new(&mut build);
        let memory = MemoryFamilies::new(&mut build);
        let pressure = PressureFamilies::new(&mut build);
        let eviction = EvictionFamilies::new(&mut build);
        let ebpf = EbpfFamilies::new(&mut build);
        let state = StateFamilies::new(&mut build);
        let devices = DeviceFamilies::new(&mut build);
        let pod_resources = PodResourcesFamilies::new(&mut build);
        let cpu = CpuFamilies::new(&mut build);
        let kubelet = KubeletFamilies::new(&mut build);
        let (registry, histograms) = build.finish();
        let metrics = Self {
            shared: Arc::new(Shared {
                registry,
                histograms,
                exemplars: Exemplars::default(),
                agent,
                process,
                oom,
                reconcile,
                placement,
                memory,
                pressure,
                eviction,
                ebpf,
                state,
                devices,
                pod_resources,
                cpu,
                kubelet,
                stats: Mutex::default(),
                numa_nodes: Mutex::default(),
                rings: Mutex::default(),
                resources: Mutex::default(),
                pods: Mutex::default(),
                workloads: Mutex::default(),
                kernel_counts: Mutex::default(),
                memory_hits: Mutex::default(),
                stalls: Mutex::default(),
                readings: Mutex::default(),
            }),
        };
        metrics.begin_at_zero();
        metrics
    }

    /// Counters whose labels are all known exist before anything happens, so that a rate over the
    /// first event is right.
    fn begin_at_zero(&self) {
        let Shared {
            agent,
            oom,
            ebpf,
            state,
            devices,
            ..
        } = &*self.shared;
        agent.ready.with_label_values::<&str>(&[]).set(0);
        for it in Trigger::ALL {
            agent.loop_ticks.with_label_values(&[it.as_str()]);
        }
        for source in Source::ALL {
            agent
                .source_regressions
                .with_label_values(&[source.as_str()]);
            for fault in SourceFault::ALL {
                let labels = [source.as_str(), fault.as_str()];
                agent.source_errors.with_label_values(&labels);
            }
        }
        for it in Stream::ALL {
            ebpf.events.with_label_values(&[it.as_str()]);
            ebpf.event_age.with_label_values(&[it.as_str()]);
        }
        for it in RefusalReason::ALL {
            devices.refusals.with_label_values(&[it.as_str()]);
        }
        for it in SaveResult::ALL {
            state.saves.with_label_values(&[it.as_str()]);
        }
        for it in RestoreResult::ALL {
            state.restores.with_label_values(&[it.as_str()]);
        }
        for scope in OomScope::ALL {
            for qos in labels::QOS {
                let labels = [scope.as_str(), qos];
                oom.scope_kills.with_label_values(&labels);
            }
        }
        for qos in labels::QOS {
            oom.victim_bytes.with_label_values(&[qos]);
        }
        oom.detection.with_label_values::<&str>(&[]);
        for it in HostSlice::ALL {
            oom.host_kills.with_label_values(&[it.as_str()]);
        }
        for it in ["exact", "derived", "none"] {
            oom.attribution.with_label_values(&[it]);
        }
        self.begin_pressure();
        self.begin_actions();
        self.begin_kubelet();
        for it in RecordResult::ALL {
            oom.records.with_label_values(&[it.as_str()]);
        }
    }

    // The agent.

    /// `revision` is the commit, `target` the target triple of the build.
    pub fn set_build(&self, version: &str, revision: &str, target: &str) {
        let labels = [version, revision, target];
        self.shared
            .agent
            .build_info
            .with_label_values(&labels)
            .set(1);
    }

    /// `mode`, cgroup version, driver and whether nothing is written, once at start.
    pub fn set_mode(&self, mode: &str, cgroup: &str, driver: &str, is_dry_run: bool) {
        let labels = [
            mode,
            cgroup,
            driver,
            if is_dry_run { "true" } else { "false" },
        ];
        self.shared
            .agent
            .mode_info
            .with_label_values(&labels)
            .set(1);
    }

    pub fn set_feature(&self, feature: &'static str, is_enabled: bool) {
        set_flag(&self.shared.agent.feature_enabled, &[feature], is_enabled);
    }

    pub fn set_kernel_feature(&self, feature: &'static str, is_available: bool) {
        let family = &self.shared.agent.kernel_feature_available;
        set_flag(family, &[feature], is_available);
    }

    pub fn set_ready(&self, is_ready: bool) {
        set_flag(&self.shared.agent.ready, &[], is_ready);
    }

    pub fn set_objects(&self, kind: ObjectKind, n: usize) {
        set_count(&self.shared.agent.objects, &[kind.as_str()], n as u64);
    }

    pub fn loop_tick(&self, trigger: Trigger) {
        let family = &self.shared.agent.loop_ticks;
        family.with_label_values(&[trigger.as_str()]).inc();
    }

    pub fn loop_phase(&self, phase: Phase, duration: Duration) {
        observe(
            &self.shared.agent.loop_duration,
            &[phase.as_str()],
            duration,
        );
    }

    pub fn loop_succeeded(&self, at: WallTime) {
        set_time(&self.shared.agent.loop_last_success, &[], at);
    }

    /// A source was read; `now` is boottime.
    pub fn source_read(&self, source: Source, now: Duration) {
        lock(&self.shared.readings).insert(source, now);
    }

    /// Shows how old the newest reading of each source is; a source that was never read has none.
    pub fn set_source_ages(&self, now: Duration) {
        let family = &self.shared.agent.source_age;
        for (source, at) in &*lock(&self.shared.readings) {
            let age = now.saturating_sub(*at).as_secs_f64();
            family.with_label_values(&[source.as_str()]).set(age);
        }
    }

    pub fn source_error(&self, source: Source, fault: SourceFault) {
        let family = &self.shared.agent.source_errors;
        let labels = [source.as_str(), fault.as_str()];
        family.with_label_values(&labels).inc();
    }

    /// As [`Metrics::source_error`], `n` of them.
    pub fn source_errors(&self, source: Source, fault: SourceFault, n: u64) {
        let family = &self.shared.agent.source_errors;
        let labels = [source.as_str(), fault.as_str()];
        family.with_label_values(&labels).inc_by(n);
    }

    /// Counters of a source that fell, and are shown as they were before.
    pub fn source_regressed(&self, source: Source, n: u64) {
        let family = &self.shared.agent.source_regressions;
        family.with_label_values(&[source.as_str()]).inc_by(n);
    }

    /// `started_at`: start of the agent.
    pub fn set_process_usage(&self, usage: &ProcessUsage, started_at: WallTime) {
        let family = &self.shared.process;
        if let Some(cpu) = usage.cpu {
            let counter = family.cpu.with_label_values::<&str>(&[]);
            counter.inc_by((cpu.as_secs_f64() - counter.get()).max(0.0));
        }
        set_time(&family.start_time, &[], started_at);
        for (gauge, value) in [
            (&family.open_fds, usage.open_fds),
            (&family.max_fds, usage.max_fds),
            (&family.virtual_memory, usage.virtual_bytes),
            (&family.resident_memory, usage.resident_bytes),
            (&family.threads, usage.threads),
            (
                &self.shared.agent.capabilities_effective,
                usage.n_capabilities.map(u64::from),
            ),
        ] {
            set_or_leave_out(gauge, value);
        }
    }

    // Pods.

    /// Takes the containers that exist now as (namespace, pod, container): begins their series at
    /// 0, and removes those of pods that are gone for [`POD_RETENTION`] and of workloads unused for
    /// [`WORKLOAD_RETENTION`]. Once a pass; `now` is boottime.
    pub fn sync_pods<'a>(
        &self,
        containers: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
        now: Duration,
    ) {
        let mut pods = lock(&self.shared.pods);
        let changes = pods.sync(containers, now);
        for it in &changes.begun {
            self.begin_container(&it.namespace, &it.pod, &it.container);
        }
        for it in &changes.ended {
            self.end_container(it);
        }
        drop(pods);
        for Workload {
            namespace,
            kind,
            name,
        } in lock(&self.shared.workloads).expire(now)
        {
            let labels = [&*namespace, &kind, &name];
            remove(&self.shared.oom.workload_kills, &labels);
            let exemplars = &self.shared.exemplars;
            exemplars.forget(&self.shared.oom.workload_kills, &labels);
        }
    }

    fn begin_container(&self, namespace: &str, pod: &str, container: &str) {
        let labels = [namespace, pod, container];
        let Shared { oom, process, .. } = &*self.shared;
        for family in [&oom.kills, &oom.child_kills, &process.forks, &process.execs] {
            family.with_label_values(&labels);
        }
        for how in ExitHow::ALL {
            let labels = [namespace, pod, container, how.as_str()];
            process.exits.with_label_values(&labels);
        }
    }

    fn end_container(&self, key: &ContainerKey) {
        let labels = key.labels();
        let [namespace, pod, container] = labels;
        let Shared { oom, process, .. } = &*self.shared;
        for family in [&oom.kills, &oom.child_kills, &process.forks, &process.execs] {
            remove(family, &labels);
            self.shared.exemplars.forget(family, &labels);
        }
        remove(&oom.last_kill, &labels);
        remove(&oom.last_child_kill, &labels);
        for how in ExitHow::ALL {
            remove(&process.exits, &[namespace, pod, container, how.as_str()]);
        }
        self.end_memory(key);
        self.end_stats(key);
    }

    /// Begins the series of the container that an event names, if it has none.
    fn touch(&self, namespace: &str, pod: &str, container: &str, now: Duration) {
        let mut pods = lock(&self.shared.pods);
        if pods.touch(namespace, pod, container, now) {
            self.begin_container(namespace, pod, container);
        }
    }

    // OOM kills and processes.

    /// Counts one kill. `workload`: the controller of the pod; `None` counts the pod itself.
    ///
    /// A victim that was exiting already counts for attribution and latency only, as in the
    /// kernel's own counters.
    pub fn oom_kill(&self, event: &Event, detail: &OomDetail, workload: Option<&Workload>) {
        let oom = &self.shared.oom;
        let method = event.method.unwrap_or(AttributionMethod::None);
        oom.attribution
            .with_label_values(&[labels::method(method)])
            .inc();
        if method == AttributionMethod::None {
            set_time(&oom.last_unattributed, &[], event.time);
        }
        observe(
            &oom.detection,
            &[],
            Duration::from_micros(detail.handling_latency_us),
        );
        if detail.was_exiting {
            return;
        }
        let qos = labels::qos(detail.qos);
        let scope = detail.scope.as_str();
        let record = oom_record(event, detail);
        self.count(&oom.scope_kills, &[scope, qos], record.as_ref());
        if !matches!(detail.scope, OomScope::Container | OomScope::Pod) {
            set_time(&oom.last_node_kill, &[scope], event.time);
        }
        oom.victim_bytes
            .with_label_values(&[qos])
            .observe(detail.victim.memory.anon_bytes as f64);
        match &event.pod {
            Some(_) => self.oom_kill_in_pod(event, detail, workload),
            None => {
                let slice = HostSlice::of_path(detail.victim.cgroup_path.as_deref());
                self.count(&oom.host_kills, &[slice.as_str()], record.as_ref());
            }
        }
    }

    fn oom_kill_in_pod(&self, event: &Event, detail: &OomDetail, workload: Option<&Workload>) {
        let Some(pod) = &event.pod else { return };
        let oom = &self.shared.oom;
        let now = Duration::from_nanos(event.boottime_ns);
        let container = event.container.as_deref().unwrap_or_default();
        let labels = [pod.namespace.as_str(), &pod.name, container];
        self.touch(&pod.namespace, &pod.name, container, now);
        let record = oom_record(event, detail);
        self.count(&oom.kills, &labels, record.as_ref());
        set_time(&oom.last_kill, &labels, event.time);
        if detail.victim.is_main_process == Some(false) {
            self.count(&oom.child_kills, &labels, record.as_ref());
            set_time(&oom.last_child_kill, &labels, event.time);
        }
        let itself = || Workload {
            namespace: pod.namespace.clone(),
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
        };
        let workload = workload.cloned().unwrap_or_else(itself);
        let counted = lock(&self.shared.workloads).touch(&workload, now);
        let labels = [&*counted.namespace, &counted.kind, &counted.name];
        self.count(&oom.workload_kills, &labels, record.as_ref());
    }

    /// Counts one, with what tells about it.
    fn count(&self, family: &IntCounterVec, labels: &[&str], record: Option<&Exemplar>) {
        family.with_label_values(labels).inc();
        if let Some(record) = record {
            self.shared.exemplars.keep(family, labels, record);
        }
    }

    /// Counts kills by what became of their forensic record.
    pub fn oom_records(&self, result: RecordResult, n: u64) {
        let family = &self.shared.oom.records;
        family.with_label_values(&[result.as_str()]).inc_by(n);
    }

    /// Counts a fork, exec or exit in a container. `now` is boottime.
    pub fn process_change(
        &self,
        namespace: &str,
        pod: &str,
        container: &str,
        change: &ProcessChange,
        now: Duration,
    ) {
        self.touch(namespace, pod, container, now);
        let labels = [namespace, pod, container];
        let process = &self.shared.process;
        match change {
            ProcessChange::Fork { .. } => process.forks.with_label_values(&labels).inc(),
            ProcessChange::Exec => process.execs.with_label_values(&labels).inc(),
            ProcessChange::Exit { status, .. } => {
                self.process_exit(labels, *status);
            }
        }
    }

    fn process_exit(&self, [namespace, pod, container]: [&str; 3], status: ExitStatus) {
        let how = ExitHow::of(status).as_str();
        let labels = [namespace, pod, container, how];
        self.shared.process.exits.with_label_values(&labels).inc();
    }

    // State and configuration.

    pub fn state_saved(&self, result: SaveResult, duration: Duration) {
        let state = &self.shared.state;
        state.saves.with_label_values(&[result.as_str()]).inc();
        observe(&state.save_duration, &[], duration);
    }

    pub fn state_restored(&self, result: RestoreResult) {
        let family = &self.shared.state.restores;
        family.with_label_values(&[result.as_str()]).inc();
    }

    pub fn set_kubelet_config_fields(&self, handling: FieldHandling, n: usize) {
        let family = &self.shared.state.kubelet_config_fields;
        set_count(family, &[handling.as_str()], n as u64);
    }

    /// What the recording of decisions has come to. `oldest`: when the oldest file was begun.
    pub fn set_recording(&self, n_bytes: u64, n_dropped: u64, oldest: Option<WallTime>) {
        let state = &self.shared.state;
        for (family, n) in [
            (&state.record_bytes, n_bytes),
            (&state.record_dropped, n_dropped),
        ] {
            let counter = family.with_label_values::<&str>(&[]);
            counter.inc_by(n.saturating_sub(counter.get()));
        }
        match oldest {
            Some(at) => set_time(&state.record_oldest, &[], at),
            None => remove(&state.record_oldest, &[]),
        }
    }
}

/// The record of a kill; `None`: none was made.
fn oom_record(event: &Event, detail: &OomDetail) -> Option<Exemplar> {
    detail.record_id.map(|id| Exemplar::new(id, event.time))
}

/// How far a count has risen; all of it when it began anew, or was not known.
fn risen(before: Option<u64>, now: u64) -> u64 {
    match before {
        Some(before) if before <= now => now - before,
        _ => now,
    }
}

fn set_flag(family: &IntGaugeVec, labels: &[&str], value: bool) {
    family.with_label_values(labels).set(i64::from(value));
}

/// Past `i64::MAX` it saturates.
fn set_count(family: &IntGaugeVec, labels: &[&str], n: u64) {
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    family.with_label_values(labels).set(n);
}

/// For a family without labels: what is not known is absent, never an old value.
fn set_or_leave_out(family: &IntGaugeVec, n: Option<u64>) {
    match n {
        Some(n) => set_count(family, &[], n),
        None => remove(family, &[]),
    }
}

fn set_time(family: &GaugeVec, labels: &[&str], at: WallTime) {
    let seconds = at.since_epoch().as_secs_f64();
    family.with_label_values(labels).set(seconds);
}

fn observe(family: &HistogramVec, labels: &[&str], duration: Duration) {
    family
        .with_label_values(labels)
        .observe(duration.as_secs_f64());
}

/// Removes one series; that it was not there is fine.
fn remove<T: MetricVecBuilder>(family: &MetricVec<T>, labels: &[&str])
where
    MetricVec<T>: Collector,
{
    let _ = family.remove_label_values(labels);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section leaves the maps whole, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With all of kubelet's duties.
#[cfg(test)]
impl Default for Metrics {
    fn default() -> Self {
        Self::new(KubeletDuty::ALL, KubeletNames::Both)
    }
}

#[cfg(test)]
mod tests;
