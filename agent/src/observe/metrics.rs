//! The agent's metrics. In: what the loop and the event handlers saw. Out: one of the formats that
//! Prometheus reads.
//!
//! Everything is set when it happens or once a pass; encoding reads no file and takes no lock that
//! a pass holds for long.
//!
//! Invariant: [`table`] is the only definition of a family; [`Identity`] adds the labels of what has
//! no name. A counter of a container exists at 0 from the first pass that sees the container, and its
//! series stay for [`POD_RETENTION`] after the pod is gone, or the container itself if it has no name.
//! Counts per workload, scope and slice outlive every pod.

mod agent;
mod api;
mod cgroups;
mod container_stats;
mod devices;
mod ebpf;
mod events;
mod eviction;
mod exemplars;
mod exposition;
mod families;
mod histogram;
mod identity;
mod kubelet;
pub mod labels;
mod last_read;
mod lifetime;
mod memory;
mod named;
mod native;
mod openmetrics;
mod placement;
mod pressure;
mod protobuf;
mod registry;
mod saved;
mod series;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use prometheus::Registry;

use self::container_stats::ContainerCounts;
pub use self::devices::{DeviceCounts, MAX_RESOURCES, PodResourcesCall};
pub use self::eviction::EvictionEffect;
use self::exemplars::{Exemplar, Exemplars};
pub use self::exposition::{EncodeError, Format};
use self::families::{
    AgentFamilies, ApiFamilies, CpuFamilies, DeviceFamilies, EbpfFamilies, EvictionFamilies,
    KubeletFamilies, MemoryFamilies, OomFamilies, PlacementFamilies, PodResourcesFamilies,
    PressureFamilies, ProcessFamilies, ReconcileFamilies, StateFamilies,
};
use self::histogram::HistogramVec;
use self::identity::Values;
pub use self::identity::{ContainerKey, ContainerLabels, Identity};
use self::labels::{
    EndedKind, ExitHow, HostSlice, MissedCause, RecordResult, RestoreResult, SaveResult, Source,
    SourceFault, Stream, Trigger,
};
pub use self::lifetime::{MAX_WORKLOADS, POD_RETENTION, WORKLOAD_AWAITED, WORKLOAD_RETENTION};
use self::lifetime::{PodLifetimes, WorkloadLifetimes};
use self::memory::Hits;
pub use self::memory::{ContainerMemory, LimitHits};
pub use self::named::Unnamed;
pub use self::placement::{PlacementGauges, PoolCpus};
use self::pressure::Windows;
use self::registry::Builder;
use self::series::{GaugeVec, IntCounterVec, IntGaugeVec};
pub use self::table::{Area, Buckets, Cardinality, Family, NameAge, PREFIX, Type, Unit, table};
use crate::model::device::RefusalReason;
use crate::model::kubelet_duty::{KubeletDuty, KubeletNames};
use crate::model::numa::NumaMask;
use crate::model::record::OomScope;
use crate::model::saved_counts::KillsByContainer;
use crate::model::time::WallTime;
use crate::model::workload::Workload;

/// Handles of every family; clones share them.
#[derive(Clone)]
pub struct Metrics {
    shared: Arc<Shared>,
}

/// Kills of a pod whose workload is not known yet.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    n: u64,
    /// Boottime.
    since: Duration,
}

struct Shared {
    /// Of all families of containers.
    identity: Identity,
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
    api: ApiFamilies,
    pod_resources: PodResourcesFamilies,
    cpu: CpuFamilies,
    kubelet: KubeletFamilies,
    /// Resources with series of their own.
    resources: Mutex<BTreeSet<String>>,
    pods: Mutex<PodLifetimes>,
    /// OOM kills, where names may come late.
    kills_by_container: Mutex<KillsByContainer>,
    /// Those of pods whose workload is not known yet, by the UID of the pod.
    awaited_workloads: Mutex<BTreeMap<Box<str>, Awaited>>,
    /// Held together by who counts or reads, and alone by who gives series another name.
    naming: RwLock<()>,
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
    pub fn new(duties: &[KubeletDuty], names: KubeletNames, identity: Identity) -> Self {
        let mut build = Builder::new(duties, names, identity);
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
        let api = ApiFamilies::new(&mut build);
        let pod_resources = PodResourcesFamilies::new(&mut build);
        let cpu = CpuFamilies::new(&mut build);
        let kubelet = KubeletFamilies::new(&mut build);
        let (registry, histograms) = build.finish();
        let metrics = Self {
            shared: Arc::new(Shared {
                identity,
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
                api,
                pod_resources,
                cpu,
                kubelet,
                stats: Mutex::default(),
                numa_nodes: Mutex::default(),
                rings: Mutex::default(),
                resources: Mutex::default(),
                pods: Mutex::default(),
                kills_by_container: Mutex::default(),
                awaited_workloads: Mutex::default(),
                naming: RwLock::default(),
                workloads: Mutex::default(),
                kernel_counts: Mutex::default(),
                memory_hits: Mutex::default(),
                stalls: Mutex::default(),
                readings: Mutex::default(),
            }),
        };
        metrics.begin_at_zero();
        if !duties.is_empty() {
            metrics.begin_management();
        }
        metrics
    }

    /// The same for what is counted by an agent that manages its node. One that looks on does none of it: what it
    /// does not do it does not show, not even as 0.
    fn begin_management(&self) {
        let Shared { state, devices, .. } = &*self.shared;
        for it in RefusalReason::ALL {
            devices.refusals.with_label_values(&[it.as_str()]);
        }
        for it in SaveResult::ALL {
            state.saves.with_label_values(&[it.as_str()]);
        }
        for it in RestoreResult::ALL {
            state.restores.with_label_values(&[it.as_str()]);
        }
        self.begin_pressure();
        self.begin_actions();
        self.begin_kubelet();
    }

    /// Counters whose labels are all known exist before anything happens, so that a rate over the
    /// first event is right.
    fn begin_at_zero(&self) {
        let Shared {
            agent, oom, ebpf, ..
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
        for it in EndedKind::ALL {
            agent.ended_left_out.with_label_values(&[it.as_str()]);
        }
        for it in Stream::ALL {
            ebpf.events.with_label_values(&[it.as_str()]);
            ebpf.event_age.with_label_values(&[it.as_str()]);
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
        for it in MissedCause::ALL {
            oom.missed.with_label_values(&[it.as_str()]);
        }
        for it in RecordResult::ALL {
            oom.records.with_label_values(&[it.as_str()]);
        }
    }

    /// Takes the containers that exist now: begins their series at 0, and removes those of pods that are
    /// gone for [`POD_RETENTION`] and of workloads unused for [`WORKLOAD_RETENTION`]. A container without
    /// a name comes never again once it is gone, so its series end as those of a pod. Once a pass; `now`
    /// is boottime.
    pub fn sync_pods<'a>(
        &self,
        containers: impl IntoIterator<Item = ContainerLabels<'a>>,
        now: Duration,
    ) {
        let _counting = self.counting();
        let mut pods = lock(&self.shared.pods);
        let changes = pods.sync(containers, now);
        for it in &changes.begun {
            self.begin_container(it.labels());
        }
        for it in &changes.ended {
            self.end_container(it);
        }
        self.ended_left_out(EndedKind::Pod, changes.n_cut_short);
        drop(pods);
        for Workload {
            namespace,
            kind,
            name,
        } in lock(&self.shared.workloads).expire(now)
        {
            let labels = [&*namespace, &kind, &name];
            self.shared.oom.workload_kills.remove(&labels);
            let exemplars = &self.shared.exemplars;
            exemplars.forget(&self.shared.oom.workload_kills, &labels);
        }
    }

    fn begin_container(&self, container: ContainerLabels<'_>) {
        let labels = self.values(container);
        let Shared { oom, process, .. } = &*self.shared;
        for family in [&oom.kills, &oom.child_kills, &process.forks, &process.execs] {
            family.with_label_values(&labels);
        }
        for how in ExitHow::ALL {
            let labels = self.values_with(container, how.as_str());
            process.exits.with_label_values(&labels);
        }
    }

    fn end_container(&self, key: &ContainerKey) {
        let labels = self.values(key.labels());
        let Shared { oom, process, .. } = &*self.shared;
        for family in [&oom.kills, &oom.child_kills, &process.forks, &process.execs] {
            family.remove(&labels);
            self.shared.exemplars.forget(family, &labels);
        }
        oom.last_kill.remove(&labels);
        oom.last_child_kill.remove(&labels);
        for how in ExitHow::ALL {
            let labels = self.values_with(key.labels(), how.as_str());
            process.exits.remove(&labels);
        }
        self.end_memory(key);
        self.end_stats(key);
    }

    /// Begins the series of the container that an event names, if it has none.
    fn touch(&self, container: ContainerLabels<'_>, now: Duration) {
        let mut pods = lock(&self.shared.pods);
        if pods.touch(container, now) {
            self.begin_container(container);
        }
    }

    /// No series gets another name meanwhile. Not to be taken twice by one thread.
    fn counting(&self) -> RwLockReadGuard<'_, ()> {
        let naming = self.shared.naming.read();
        naming.unwrap_or_else(PoisonError::into_inner)
    }

    /// Values of the labels of a family of containers.
    fn values<'a>(&self, container: ContainerLabels<'a>) -> Values<'a> {
        self.shared.identity.values(container)
    }

    /// The same of a family with one label more.
    fn values_with<'a>(&self, container: ContainerLabels<'a>, more: &'a str) -> Values<'a> {
        self.shared.identity.values_with(container, more)
    }

    /// Counts one, with what tells about it.
    fn count(&self, family: &IntCounterVec, labels: &[&str], record: Option<&Exemplar>) {
        family.with_label_values(labels).inc();
        if let Some(record) = record {
            self.shared.exemplars.keep(family, labels, record);
        }
    }
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

/// What is not known is absent, never an old value.
fn set_or_leave_out(family: &IntGaugeVec, labels: &[&str], n: Option<u64>) {
    match n {
        Some(n) => set_count(family, labels, n),
        None => family.remove(labels),
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each critical section leaves the maps whole, so a panic elsewhere spoils nothing.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// With all of kubelet's duties, and names of everything.
#[cfg(test)]
impl Default for Metrics {
    fn default() -> Self {
        Self::new(KubeletDuty::ALL, KubeletNames::Both, Identity::Names)
    }
}

#[cfg(test)]
mod tests;
