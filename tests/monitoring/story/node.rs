//! A node of a story: the agent's own metrics, told in simulated time what an agent would see, and
//! the pages that a server would have got of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use ballast::model::agent_process::ProcessUsage;
use ballast::model::api_server::{ApiAnswer, ApiResource, ApiVerb, Asked, PodsFrom};
use ballast::model::event::{AttributionMethod, CgroupId};
use ballast::model::eviction::{DiskUse, MemoryMethod, Signal, StallSource, StallTotals};
use ballast::model::kubelet_duty::{KubeletDuty, KubeletNames};
use ballast::model::numa::NumaMask;
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::psi::{Psi, PsiLine, Stalls};
use ballast::model::record::{
    Event, EventKind, MemorySplit, OomDetail, OomScope, OomTrigger, OomVictim, PodRef,
};
use ballast::model::stats::{
    CgroupStats, ContainerStats, Machine, NodeStats, NumaPages, PodStats, ProcessLimits,
    StatsSnapshot,
};
use ballast::model::status::{PressureStatus, SignalStatus, ThresholdStatus};
use ballast::model::time::WallTime;
use ballast::model::workload::Workload;
use ballast::observe::metrics::labels::{
    Hook, MissedCause, Phase, PressureResource, PressureScope, RestoreResult, WriteResult,
};
use ballast::observe::metrics::{
    ContainerLabels, ContainerMemory, Format, Identity, LimitHits, Metrics, PlacementGauges,
    PoolCpus,
};
use ballast::observe::stats;
use ballast::units::{Bytes, Micros};

/// When stories begin, seconds since the epoch: a boundary of the server's blocks, which are two
/// hours long.
pub(super) const BEGIN: u64 = 1_763_712_000;

/// Between two scrapes, seconds.
pub(super) const STEP: u64 = 30;

const N_CPUS: u64 = 4;

const MAIN: ContainerLabels<'_> = ContainerLabels::named("default", "web", "main");

/// What the node is like for some time. Shares are of time, 0 to 1.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) answers: bool,
    pub(super) passes: bool,
    /// Memory `full`, memory `some` and io `full` of the node.
    pub(super) stalls: [f64; 3],
    /// Waiting for CPU of the container, and how much of it is throttling.
    pub(super) cpu_wait: f64,
    pub(super) throttled: f64,
    /// Waiting for memory of the pod.
    pub(super) memory_wait: f64,
    /// Hits on `memory.max` a step.
    pub(super) hits: u64,
    pub(super) time_to_limit: Option<Duration>,
    pub(super) free_cpus: [u64; 3],
    /// Of a thousand pages of the container.
    pub(super) n_remote: u64,
    pub(super) threshold_is_met: bool,
    pub(super) n_unhealthy: u64,
    pub(super) n_drifted: u64,
    pub(super) n_dying: u64,
    pub(super) write: WriteResult,
    pub(super) hook: Hook,
    pub(super) agent_bytes: u64,
    /// The API server tells of pods.
    pub(super) api_tells: bool,
}

impl State {
    pub(super) const QUIET: Self = Self {
        answers: true,
        passes: true,
        stalls: [0.0, 0.01, 0.02],
        cpu_wait: 0.02,
        throttled: 0.0,
        memory_wait: 0.001,
        hits: 0,
        time_to_limit: None,
        free_cpus: [2, 1, 0],
        n_remote: 10,
        threshold_is_met: false,
        n_unhealthy: 0,
        n_drifted: 0,
        n_dying: 30,
        write: WriteResult::Changed,
        hook: Hook::TpBtf,
        agent_bytes: 20 << 20,
        api_tells: true,
    };
}

/// Counters of the kernel, microseconds and counts.
#[derive(Default)]
struct Kernel {
    stalls_us: [u64; 3],
    cpu_wait_us: u64,
    throttled_us: u64,
    memory_wait_us: u64,
    hits: u64,
    busy: Duration,
}

pub(super) struct Node {
    pub(super) metrics: Metrics,
    started_at: WallTime,
    /// Since the story began; it is the boottime too.
    now: Duration,
    kernel: Kernel,
    before: Option<StatsSnapshot>,
    /// Metrics that somebody asks for; the others are not written.
    wanted: BTreeSet<String>,
    pages: String,
}

impl Node {
    pub(super) fn new(wanted: BTreeSet<String>) -> Self {
        let mut node = Self {
            metrics: Metrics::new(KubeletDuty::ALL, KubeletNames::Both, Identity::Names),
            started_at: WallTime::from_epoch(Duration::from_secs(BEGIN)),
            now: Duration::ZERO,
            kernel: Kernel::default(),
            before: None,
            wanted,
            pages: String::new(),
        };
        node.restart(RestoreResult::Empty);
        node
    }

    /// Another agent takes the place of this one.
    pub(super) fn restart(&mut self, state: RestoreResult) {
        let counts = self.metrics.oom_counts();
        self.metrics = Metrics::new(KubeletDuty::ALL, KubeletNames::Both, Identity::Names);
        self.metrics.set_build("1.0.0", "", "");
        self.metrics.restore_oom_counts(&counts, self.now);
        self.metrics.begin_eviction();
        self.metrics.begin_api(PodsFrom::ApiServer, true);
        self.metrics.state_restored(state);
        self.started_at = self.wall();
        self.before = None;
    }

    pub(super) fn wall(&self) -> WallTime {
        WallTime::from_epoch(Duration::from_secs(BEGIN) + self.now)
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// Lets one step pass in this state, and is scraped.
    pub(super) fn step(&mut self, state: &State) -> Result<()> {
        let step = Duration::from_secs(STEP);
        self.now += step;
        let kernel = &mut self.kernel;
        let micros = |share: f64| u64::try_from(step.mul_f64(share).as_micros());
        for (total, share) in kernel.stalls_us.iter_mut().zip(state.stalls) {
            *total += micros(share)?;
        }
        kernel.cpu_wait_us += micros(state.cpu_wait)?;
        kernel.throttled_us += micros(state.throttled)?;
        kernel.memory_wait_us += micros(state.memory_wait)?;
        kernel.hits += state.hits;
        kernel.busy += step;
        if state.passes {
            self.pass(state);
        }
        if state.api_tells {
            let watched = Asked {
                verb: ApiVerb::Watch,
                resource: ApiResource::Pods,
                answer: ApiAnswer::Good,
                took: Duration::from_millis(5),
            };
            self.metrics.api_asked(&watched, self.wall());
        }
        self.watch(state);
        let snapshot = self.sweep(state);
        self.metrics.set_stats(&snapshot, self.before.as_ref());
        let mut cadvisor = String::new();
        stats::cadvisor(&snapshot, stats::Options::default(), &mut cadvisor);
        self.before = Some(snapshot);
        self.write(r#"up{metrics_path="/metrics"} "#, u8::from(state.answers));
        if state.answers {
            let own = self.page()?;
            self.keep(&own);
            self.keep(&cadvisor);
        }
        Ok(())
    }

    /// What `/metrics` shows now.
    pub(super) fn page(&self) -> Result<String> {
        let mut page = Vec::new();
        self.metrics.encode(Format::Text, &mut page)?;
        Ok(String::from_utf8(page)?)
    }

    fn pass(&self, state: &State) {
        let metrics = &self.metrics;
        metrics.sync_pods([MAIN], self.now);
        metrics.loop_phase(Phase::Gather, Duration::from_millis(2));
        metrics.loop_succeeded(self.wall());
        metrics.cgroup_writes("cpu.max", state.write, 1);
        metrics.set_drift_unresolved([("cpu.max", state.n_drifted)]);
        metrics.set_cgroups_dying(Some(state.n_dying));
        metrics.set_program("oom_mark_victim", state.hook);
        // A kernel without fentry.
        metrics.set_program("oom_reason", Hook::StandIn);
        let counts = ballast::observe::metrics::DeviceCounts {
            n_allocated: 1,
            n_unhealthy: Some(state.n_unhealthy),
        };
        metrics.set_devices([("example.com/gpu", None, counts)]);
        let usage = ProcessUsage {
            cpu: Some(self.now / 1000),
            resident_bytes: Some(state.agent_bytes),
            ..ProcessUsage::default()
        };
        metrics.set_process_usage(&usage, self.started_at);
        let nodes = (0..).map(ballast::model::topology::NumaNodeId);
        metrics.set_placement(&PlacementGauges {
            pools: Some(PoolCpus::default()),
            free_cpus: nodes.zip(state.free_cpus).collect(),
            numa_nodes: BTreeMap::from([(MAIN.to_key(), NumaMask::from_bits(1))]),
            ..PlacementGauges::default()
        });
        let memory = ContainerMemory {
            cgroup_id: 1,
            hits: LimitHits {
                max: Some(self.kernel.hits),
                ..LimitHits::default()
            },
            time_to_limit: state.time_to_limit,
            ..ContainerMemory::default()
        };
        metrics.set_container_memory([(MAIN, memory)], self.now);
    }

    /// What the watcher of pressure does.
    fn watch(&self, state: &State) {
        let [memory_full, memory_some, io_full] = self.kernel.stalls_us;
        let totals = |some_us: u64, full_us: u64| StallTotals {
            source: StallSource::Psi,
            some_us: some_us.max(full_us),
            full_us: Some(full_us),
        };
        let threshold = ThresholdStatus {
            is_hard: true,
            amount: Some(100 << 20),
            grace_seconds: 0,
            is_met: state.threshold_is_met,
        };
        let status = PressureStatus {
            signals: vec![SignalStatus {
                signal: Signal::MemoryAvailable,
                available: Some(1 << 30),
                capacity: Some(4 << 30),
                age_ms: Some(10),
                thresholds: vec![threshold],
            }],
            memory_available: BTreeMap::from([(MemoryMethod::WorkingSet, 1 << 30)]),
            stalls: BTreeMap::from([("node".to_owned(), totals(memory_some, memory_full))]),
            ..PressureStatus::default()
        };
        self.metrics.set_pressure(&status, self.now);
        let (io, node) = (PressureResource::Io, PressureScope::Node);
        self.metrics
            .set_stall(io, node, &totals(io_full, io_full), self.now);
    }

    /// A Guaranteed pod of one container, and the node.
    fn sweep(&self, state: &State) -> StatsSnapshot {
        let psi = |us: u64| {
            let line = PsiLine {
                total: Micros(us),
                ..PsiLine::default()
            };
            Some(Psi {
                some: line,
                full: Some(line),
            })
        };
        let kernel = &self.kernel;
        let mut stats = CgroupStats {
            at: self.now,
            cgroup_id: Some(CgroupId(1)),
            stalls: Stalls {
                cpu: psi(kernel.cpu_wait_us),
                memory: psi(kernel.memory_wait_us),
                io: None,
            },
            ..CgroupStats::default()
        };
        stats.cpu.throttled_ns = Some(kernel.throttled_us * 1000);
        stats.numa = [1000 - state.n_remote, state.n_remote]
            .into_iter()
            .zip(0..)
            .map(|(anon, node)| NumaPages {
                node,
                anon,
                ..NumaPages::default()
            })
            .collect();
        let container = ContainerStats {
            name: "main".to_owned(),
            id: "/kubepods/pod1/main".to_owned(),
            runtime_id: "a".to_owned(),
            image: "web:1".to_owned(),
            started_at: Some(self.started_at),
            ended_at: None,
            restarts: 0,
            oom_events: 0,
            stats: stats.clone(),
            root_fs: DiskUse::default(),
            logs: DiskUse::default(),
            descriptors: None,
            limits: ProcessLimits::default(),
        };
        // It has no limit of its own that it meets.
        stats.cpu.throttled_ns = Some(0);
        let pod = PodStats {
            pod: Arc::new(pod()),
            qos: QosClass::Guaranteed,
            id: "/kubepods/pod1".to_owned(),
            started_at: self.started_at,
            stats: Some(stats),
            network: Vec::new(),
            ephemeral_storage: None,
            volumes: BTreeMap::new(),
            volume_file_systems: BTreeMap::new(),
            containers: vec![container],
        };
        let mut node = NodeStats::default();
        node.cgroup.at = self.now;
        let busy = u64::try_from(kernel.busy.as_nanos()).ok();
        node.cgroup.cpu.usage_ns = busy;
        StatsSnapshot {
            sweep: 1,
            begun: self.now,
            ended: self.now,
            at: self.wall(),
            cost_us: None,
            machine: Arc::new(Machine {
                n_cpus: N_CPUS,
                ..Machine::default()
            }),
            node,
            groups: Vec::new(),
            pods: vec![pod],
        }
    }

    /// The OOM killer takes a process: of the pod, unless the limit is above it.
    pub(super) fn oom_kill(&self, scope: OomScope, method: AttributionMethod, is_main: bool) {
        let in_pod = matches!(scope, OomScope::Container | OomScope::Pod);
        let path = match scope {
            OomScope::Container | OomScope::Pod => "/kubepods/pod1/main",
            // Of somebody who runs containers beside the pods.
            OomScope::Other => "/others/build",
            _ => "/system.slice/sshd.service",
        };
        let event = self.oom_event(in_pod, Some(method));
        let detail = OomDetail {
            victim: OomVictim {
                pid: 2,
                tid: 2,
                start_boottime_ns: 1,
                parent_pid: 1,
                comm: "a".to_owned(),
                uid: 0,
                oom_score_adj: 0,
                is_main_process: Some(is_main),
                took_container: Some(false),
                cgroup_path: Some(path.to_owned()),
                unknown_cgroup_id: None,
                memory: MemorySplit::default(),
            },
            qos: in_pod.then_some(QosClass::Guaranteed),
            scope,
            limit: None,
            constraint: None,
            trigger: OomTrigger {
                pid: 2,
                comm: "a".to_owned(),
                pod: None,
                container: None,
                pod_uid: None,
                container_id: None,
            },
            was_exiting: false,
            handling_latency_us: 80,
            record_id: None,
        };
        let workload = Workload {
            namespace: "default".to_owned(),
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
        };
        self.metrics.oom_kill(&event, &detail, Some(&workload));
    }

    /// The kernel counts a kill in the pod of which no program told.
    pub(super) fn miss_oom_kill(&self) {
        let event = self.oom_event(true, None);
        let workload = event.pod.as_ref().map(Workload::of_pod);
        self.metrics
            .oom_kills_missed(&event, 1, MissedCause::Lost, workload.as_ref());
    }

    fn oom_event(&self, in_pod: bool, method: Option<AttributionMethod>) -> Event {
        let boottime_ns = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX);
        let (kind, reason) = (EventKind::Oom, "OomKilled");
        Event {
            pod: in_pod.then(pod),
            container: in_pod.then(|| "main".to_owned()),
            method,
            ..Event::new(self.wall(), boottime_ns, kind, reason, String::new())
        }
    }

    /// Keeps the samples of a page that somebody asks for.
    fn keep(&mut self, page: &str) {
        for line in page.lines().filter(|it| !it.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let name = series.split('{').next().unwrap_or_default();
            if self.wanted.contains(name) {
                self.write(&format!("{series} "), value);
            }
        }
    }

    /// A sample with the labels of its target and the time, as OpenMetrics has it.
    fn write(&mut self, series: &str, value: impl std::fmt::Display) {
        let series = series.trim_end();
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.trim_end_matches('}')),
            None => (series, ""),
        };
        let comma = if labels.is_empty() { "" } else { "," };
        let at = BEGIN + self.now.as_secs();
        writeln!(
            self.pages,
            r#"{name}{{{labels}{comma}job="ballast",node="n"}} {value} {at}"#
        )
        .expect("a text takes what is written to it");
    }

    /// All pages, as one in OpenMetrics.
    pub(super) fn into_pages(mut self) -> String {
        self.pages.push_str("# EOF\n");
        self.pages
    }
}

/// The only pod.
pub(super) fn pod() -> PodRef {
    PodRef {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        uid: PodUid("1".to_owned()),
    }
}

/// So much of the expected and of the freed memory of an eviction.
pub(super) fn bytes(mib: u64) -> Option<Bytes> {
    Some(Bytes(mib << 20))
}
