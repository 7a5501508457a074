//! Mode `own`: the agent is the node's only manager, and its loop makes what is there what it should be.
//!
//! The loop is one thread that owns all state and does blocking file IO; it takes events from one
//! bounded channel and makes a pass when something happened or time is up. Beside it: the kernel
//! listener (`kernel`), the threads of the runtime, a watcher of the manifest directory and of CPUs
//! that come and go, and a small tokio runtime for the HTTP endpoint, the socket and signals.
//!
//! Invariants: an event only says where to look. A second pass over an unchanged node writes
//! nothing. Nothing on the node depends on an orderly shutdown.

mod adopt;
mod beginning;
mod contention;
mod cpusets;
#[cfg(test)]
mod effects;
mod escapes;
mod event;
mod evictions;
mod files;
mod first_processes;
mod fitness;
mod hands;
mod hardware;
mod isolated;
mod known;
mod logs;
mod lost;
mod manifests;
mod ownership;
mod pass;
mod phases;
mod placement;
mod plugins;
mod pods;
mod pressure;
mod publish;
mod removals;
mod reserved;
mod returns;
mod start;
mod successors;
mod system_cpus;
mod told;
mod undecided;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use self::beginning::Beginning;
use self::event::{Event, Receiver, Sender};
use self::files::Files;
use self::first_processes::{FirstProcesses, tell_loop};
use self::fitness::Fit;
pub(super) use self::fitness::{apart, check_config, find_node, isolated_at_start, met_at_start};
pub(super) use self::hands::SettingError;
use self::hands::{DeviceControl, Hands};
use self::logs::LogKeeper;
pub(super) use self::manifests::find_manifests;
use self::ownership::Ownership;
use self::pass::{Pauses, Scope};
use self::placement::Placement;
use self::pods::{PodEntry, StatePaths};
use self::pressure::{Notes, Pressure};
use self::publish::Counters;
use self::removals::Removals;
use self::returns::Tries;
pub(super) use self::system_cpus::offline_at_start;
use self::undecided::Undecided;
use super::exclusive::Exclusive;
use super::forensics::{self, Background};
use super::kernel::{Prepared, Shared, Tell};
use super::node::Node;
use super::publisher::Publisher;
use super::serve::{self, Shown};
use super::sweep::Readings;
use super::told::Told;
use super::{RunError, check, identity, missed};
use crate::config::{Config, FieldCounts, KubeletConfig, OwnConfig};
use crate::decide::cgroup_plan::Deferred;
use crate::decide::contention::{Contention, Held};
use crate::decide::lifecycle::{BackoffPolicy, Settings};
use crate::device_plugin::DevicePlugins;
use crate::model::cgroup_path::CgroupPath;
use crate::model::container::ContainerAction;
use crate::model::event::CgroupId;
use crate::model::pod::PodUid;
use crate::model::pod_resources::NodeResources;
use crate::observe::event_log::EventLog;
use crate::observe::health::Health;
use crate::observe::metrics::labels::Trigger;
use crate::observe::metrics::{Identity, Metrics};
use crate::runtime::process::{ProcessRuntime, ProcessRuntimeConfig};
use crate::runtime::{Runtime, RuntimeError, RuntimeEvent, StartError};
use crate::sources::manifests::PatientDirectory;
use crate::sources::oom_counters::Signals;
use crate::sys::launch::Limits;
use crate::sys::{Root, clock, steady};

/// Every file is read back at least this often, and the manifest directory is read again: the
/// safety net under the events. Kubelet's housekeeping runs every 2 s and costs for it; its QoS
/// update every 60 s.
const FULL_PASS: Duration = Duration::from_secs(10);

/// A shorter time between full passes is not taken from the configuration: it would cost more than
/// the agent may use.
const MIN_FULL_PASS: Duration = Duration::from_secs(1);

/// Cgroups that nobody knows are looked for each so many full passes, a minute where no setting makes those
/// shorter: all are listed, in every hierarchy. A start does it too, and what the agent could not remove itself it
/// tries again without this.
const ORPHAN_PASSES: u32 = 6;

/// Events that come together are worked in one pass: what follows the first one for this long is
/// part of it.
const GATHER: Duration = Duration::from_millis(1);

/// What is only to be stored and shown, such as the count of OOM kills, waits this long for more of
/// its kind: a storm of kills is stored ten times a second and not a thousand.
const NOTES: Duration = Duration::from_millis(100);

/// Most events taken into one pass, so that a storm of them does not put it off for ever.
const GATHER_MAX: usize = 1024;

/// No pass for this long means that the loop is stuck.
const MAX_PASS_AGE: Duration = Duration::from_secs(60);

/// The part of readiness that waits for the eBPF programs.
const KERNEL_EVENTS: &str = "kernel events";

/// The reconcile loop with all that it owns.
pub(super) struct Loop {
    config: Arc<Config>,
    own: OwnConfig,
    node: Node,
    hands: Hands,
    paths: StatePaths,
    settings: Settings,
    runtime: Box<dyn Runtime>,
    /// What the start handles.
    beginning: Arc<Beginning>,
    manifests: PatientDirectory,
    pods: BTreeMap<PodUid, PodEntry>,
    ownership: Ownership,
    undecided: Undecided,
    /// False: the last state that was to be stored could not be.
    is_storing: bool,
    removals: Removals,
    shared: Arc<Shared>,
    first_processes: Arc<FirstProcesses>,
    /// What the records of OOM kills have of the time before.
    background: Arc<Background>,
    /// Ids of the registered cgroups.
    ids: BTreeMap<CgroupPath, CgroupId>,
    /// The files that other programs write too.
    contention: Contention,
    unsettled: Unsettled,
    manifest_state: manifests::ManifestState,
    /// A pod has gone: its manifest may have been put back while it ended, and others wait for its name.
    reads_again: bool,
    /// A pod has ended, for which others may wait.
    has_room: bool,
    told: Told,
    metrics: Metrics,
    health: Health,
    counters: Counters,
    publisher: Publisher,
    log_keeper: LogKeeper,
    files: Files,
    placement: Placement,
    /// Refused pods that were tried again.
    tries: Tries,
    pressure: Arc<Pressure>,
    readings: Arc<Readings>,
    eviction_notes: Notes,
    /// Evicted pods whose note is still on disk.
    noted: BTreeSet<PodUid>,
    /// `None`: device plugins are not served.
    plugins: Option<DevicePlugins>,
    /// For the pod resources API.
    resources: tokio::sync::watch::Sender<Option<Arc<NodeResources>>>,
    /// For what threads find out.
    to_loop: Option<Sender>,
    /// A thread does.
    looks_for_escapes: bool,
    /// Starts that wait until others have left the CPUs.
    held_starts: Vec<(PodUid, ContainerAction)>,
    /// How long volumes of the host are still waited for in this pass.
    host_path_patience: Duration,
}

/// What the last pass has left at cgroups.
#[derive(Default)]
struct Unsettled {
    /// Limits that wait for usage to come down.
    deferred: Vec<Deferred>,
    /// Writes that wait for other programs, which write the same files.
    foreign: Vec<Held>,
    /// What failed at kubepods and the QoS cgroups.
    node_faults: BTreeMap<CgroupPath, String>,
}

/// Runs the agent until it is told to stop. Containers go on when it returns. `fields`: what
/// becomes of the fields of the kubelet configuration.
pub(super) fn run(config: Config, own: OwnConfig, fields: FieldCounts) -> Result<(), RunError> {
    let config = Arc::new(config);
    let root = Root::host();
    // Before it is raised for maps of programs.
    let locked_memory = steady::locked_memory().ok();
    let Fit {
        node,
        mut hands,
        placement,
    } = check::with_fitness(&config, fitness::find(&root, &config, &own))?;
    root.create_dir_all(config.state_directory.join(pods::PODS))
        .map_err(RunError::State)?;
    let mut exclusive = Exclusive::take(&config)?;
    let (to_loop, events) = event::channel();
    let log = EventLog::begin(clock::wall());
    let metrics = Metrics::new(
        config.mode.kubelet_duties(),
        config.kubelet_metric_names,
        Identity::Names,
    );
    let health = Health::new(
        MAX_PASS_AGE,
        ["node", "recovery", "first pass", KERNEL_EVENTS],
    );
    let kubepods = hands.plan.kubepods_path();
    exclusive.take_cgroup_root(&node, &kubepods)?;
    let prepared = hands.prepare(&node);
    exclusive.take_cgroup_root(&node, &kubepods)?;
    let driver = config.kubelet.cgroup_driver;
    identity::set_settings(&metrics, &config.kubelet, fields, &node);
    health.unblock("node");

    let limits = Limits {
        open_files: serve::raise_open_files(),
        locked_memory,
    };
    let shared = Arc::new(Shared::default());
    let runtime = process_runtime(&config, limits, to_loop.clone(), Arc::clone(&shared))?;
    shared.kill_counts.set_trees(node.reader.trees());
    let readings = Arc::new(Readings::default());
    let (publisher, status) = Publisher::new(&config.mode);
    let shown = Shown {
        metrics: &metrics,
        health: &health,
        readings: &readings,
        kernel: &shared,
        log: &log,
        status,
    };
    let server = serve::Server::start(&config, shown, {
        let to_loop = to_loop.clone();
        // A loop that is gone needs no word.
        move || drop(to_loop.send(Event::Shutdown))
    })?;

    let paths = StatePaths(config.state_directory.clone());
    let told = Told::new(log.clone());
    identity::set_oom_score_adj(&root, config.kubelet.oom_score_adj, &told);
    let beginning = Arc::new(Beginning::of(&paths, &told));
    let empty_node = hands.node_without_pods(&node, &config.kubelet);
    let manifests = manifests::directory(&config, &own, empty_node, Arc::clone(&beginning));
    // A full channel means that the loop has enough reason to look.
    let on_late = {
        let to_loop = to_loop.clone();
        move || drop(to_loop.try_send(Event::ManifestsChanged))
    };
    let mut state = Loop {
        settings: Settings {
            backoff: BackoffPolicy::with_max(config.kubelet.max_container_restart_period),
            compat: own.compat,
        },
        files: Files::start(&paths, &told)?,
        paths,
        manifests: PatientDirectory::new(manifests, on_late),
        beginning,
        config: Arc::clone(&config),
        own,
        node,
        hands,
        runtime: Box::new(runtime),
        pods: BTreeMap::new(),
        ownership: Ownership::default(),
        undecided: Undecided::default(),
        is_storing: true,
        removals: Removals::default(),
        shared: Arc::clone(&shared),
        first_processes: Arc::default(),
        background: Arc::default(),
        ids: BTreeMap::new(),
        contention: Contention::new(full_pass_interval(&config.kubelet)),
        unsettled: Unsettled::default(),
        manifest_state: manifests::ManifestState::default(),
        reads_again: false,
        has_room: false,
        told,
        metrics: metrics.clone(),
        health,
        counters: Counters::default(),
        publisher,
        log_keeper: LogKeeper::start(
            config.kubelet.max_container_log_bytes,
            config.kubelet.max_container_log_files,
        )?,
        placement,
        tries: Tries::default(),
        pressure: Arc::default(),
        readings,
        eviction_notes: Notes::below(&config.state_directory),
        noted: BTreeSet::new(),
        plugins: None,
        resources: tokio::sync::watch::Sender::new(None),
        to_loop: None,
        looks_for_escapes: false,
        held_starts: Vec::new(),
        host_path_patience: Duration::ZERO,
    };
    if let Err(error) = prepared {
        state
            .told
            .node("KubepodsFailed", crate::observe::chain(&error));
    }
    if let Some(DeviceControl::Off(why)) = &state.hands.device_control {
        let message = format!("containers may use every device: {why}");
        state.told.node("DeviceControlOff", message);
    }
    state.told.agent(
        "AgentStarted",
        format!(
            "ballast {} on Linux {}, cgroup {}, {}",
            env!("CARGO_PKG_VERSION"),
            state.node.identity.kernel_release,
            state.node.version(),
            state.node.topology.shape(),
        ),
    );
    let recorder = forensics::keep(
        &config,
        &state.node,
        &shared,
        &state.background,
        &metrics,
        &state.told,
    )?;
    // Who finds the agent's own series finds the counts of before.
    identity::set_agent(
        &metrics,
        &root,
        &config,
        &state.node,
        Some((&kubepods, driver)),
    );
    // Ends after the listener, which is dropped first.
    let _keeper = recorder.handle;
    let saver = recorder.recorder.saver();
    let _accountant = missed::compare_kills(
        Arc::clone(state.node.reader.trees()),
        Signals::All,
        &shared,
        log.clone(),
        metrics.clone(),
        recorder.recorder.saver(),
        state.tell_loop(to_loop.clone()),
    )?;
    // Before the rings are looked at, which have the ends of those that are gone by now.
    state.runtime.find()?;
    let listener = state.start_listening(&log, recorder.recorder, to_loop.clone())?;
    let above = kubepods.parent();
    shared.kill_counts.look_below(above.as_slice());
    state.recover(listener.as_ref().map(|it| it.waiting.as_slice()))?;
    shared.kill_counts.all_are_found();
    // For the next agent.
    saver.save();
    drop(saver);
    let _listener = listener.map(Prepared::listen);
    let _watcher = watch::spawn(state.manifests.path(), to_loop.clone())?;
    state.serve_pod_resources(&server);
    state.serve_plugins(server.tokio(), to_loop.clone());
    let _pressure = state.watch_pressure(to_loop);

    state.turn(events);
    state
        .told
        .agent("AgentStopping", "containers go on".to_owned());
    state.save_placement();
    state.save_pods();
    state.plugins = None;
    server.stop();
    Ok(())
}

/// Between two full passes without an event. Kubelet's defaults, 60 s for pods and 20 s for
/// manifests, are longer than ours, so only what is set lower matters.
fn full_pass_interval(kubelet: &KubeletConfig) -> Duration {
    kubelet
        .sync_frequency
        .min(kubelet.file_check_frequency)
        .min(kubelet.placement.cpu_manager_reconcile_period)
        .clamp(MIN_FULL_PASS, FULL_PASS)
}

/// The embedded runtime, with its events sent to the loop, and the listener asked for the ends of
/// processes. `limits`: of containers.
fn process_runtime(
    config: &Config,
    limits: Limits,
    to_loop: Sender,
    kernel: Arc<Shared>,
) -> Result<ProcessRuntime, RuntimeError> {
    let config = ProcessRuntimeConfig {
        state_dir: config.state_directory.clone(),
        limits,
    };
    let listener = Arc::clone(&kernel);
    // The loop outlives the runtime; at the end nobody is left to be told.
    let sink = move |event: RuntimeEvent| {
        // The kernel kills for memory in this way, and told of it before: the loop hears it first.
        if let Some(ended) = event.killed_at() {
            listener.wait_for_kills(ended);
        }
        to_loop.send(Event::Runtime(event)).ok();
    };
    let ask_for_exits = move || kernel.listen_now();
    ProcessRuntime::new(&config, Box::new(sink), Box::new(ask_for_exits))
}

impl Loop {
    /// Hands the loop what the kernel told.
    fn tell_loop(&self, to_loop: Sender) -> Tell {
        let first = Arc::clone(&self.first_processes);
        tell_loop(first, self.runtime.exit_reporter(), to_loop)
    }

    /// Passes until shutdown. The channel goes with it, so that no thread waits to send when all are
    /// joined.
    fn turn(&mut self, events: Receiver) {
        self.look_at_hardware();
        self.read_manifests();
        self.pass(Scope::All);
        self.beginning.is_over();
        self.keep_logs();
        // On a new node the limit of all pods is there from now on.
        self.pressure.wake_for_pass();
        self.look_for_unknown(clock::boottime());
        self.health.unblock("first pass");
        let interval = full_pass_interval(&self.config.kubelet);
        let mut last_full = clock::boottime();
        let mut last_orphans = last_full;
        // Since when something is noted that no pass has seen.
        let mut noted_at: Option<Duration> = None;
        loop {
            let now = clock::boottime();
            let next_full = last_full + interval;
            let notes_due = noted_at.map(|it| it + NOTES);
            let wake = [self.next_wake(), notes_due]
                .into_iter()
                .flatten()
                .fold(next_full, Duration::min);
            let (is_due, trigger) = match events.recv_timeout(wake.saturating_sub(now)) {
                Ok(Event::Shutdown) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(event) => {
                    let mut is_shutdown = false;
                    let mut scope = self.take(event);
                    let mut n_taken = 1;
                    while n_taken < GATHER_MAX
                        && let Ok(event) = events.recv_timeout(GATHER)
                    {
                        if matches!(event, Event::Shutdown) {
                            is_shutdown = true;
                            break;
                        }
                        scope = scope.max(self.take(event));
                        n_taken += 1;
                    }
                    if is_shutdown {
                        return;
                    }
                    (scope, Trigger::Event)
                }
                Err(RecvTimeoutError::Timeout) => (None, Trigger::Timer),
            };
            let now = clock::boottime();
            if matches!(trigger, Trigger::Event) && is_due.is_none() {
                let due = *noted_at.get_or_insert(now) + NOTES;
                if now < wake.min(due) {
                    continue;
                }
            }
            noted_at = None;
            self.wake_pods(now);
            let scope = if now >= next_full || is_due == Some(Scope::All) {
                last_full = now;
                self.look_at_hardware();
                self.return_pods(now);
                self.read_manifests();
                self.keep_logs();
                Scope::All
            } else {
                Scope::Dirty
            };
            self.metrics.loop_tick(trigger);
            self.pass(scope);
            let reads_again = std::mem::take(&mut self.reads_again);
            let has_room = std::mem::take(&mut self.has_room);
            // Who has waited for it is before who comes after this pass.
            let begins_anew = has_room && self.return_refused(now) || reads_again;
            if begins_anew {
                self.read_manifests();
            }
            if begins_anew || has_room && self.pods.values().any(|it| it.waits_for_room) {
                self.pass(Scope::Dirty);
            }
            self.shared.set_emptying(self.removals.is_emptying());
            if self.log_keeper.is_behind {
                self.keep_logs();
            }
            if scope == Scope::All && now >= last_orphans + interval * ORPHAN_PASSES {
                last_orphans = now;
                self.look_for_unknown(now);
            }
        }
    }

    /// Notes what an event says to look at. `None`: nothing, what it says is only to be stored.
    fn take(&mut self, event: Event) -> Option<Scope> {
        match event {
            Event::Runtime(event) => self.take_runtime(event),
            Event::ManifestsChanged => self.read_manifests(),
            Event::OomKill {
                pod,
                container,
                victim,
            } => {
                if let Some(entry) = self.pods.get_mut(&pod) {
                    entry.note_oom_kill(&container, victim);
                }
                return None;
            }
            Event::OomKillsMissed { pod, container, n } => {
                if let Some(entry) = self.pods.get_mut(&pod) {
                    entry.note_oom_kills(&container, n);
                }
                return None;
            }
            Event::Evict(eviction) => self.evict(*eviction),
            Event::Pressure => {}
            Event::Escapes(found) => self.take_escapes(found),
            Event::Swept => return None,
            Event::Emptied => self.removals.hurry(),
            Event::PluginAnswered(answered) => self.plugin_answered(*answered),
            Event::PreStarted {
                id,
                resource,
                result,
            } => self.pre_started(&id, &resource, result, clock::boottime()),
            Event::Plugin(event) => self.plugin_changed(event),
            Event::Lost => {
                // What the kernel counted is compared with what came.
                self.readings.ask();
                return Some(Scope::All);
            }
            Event::CpusChanged => {
                self.hands.cpus_moved();
                return Some(Scope::All);
            }
            Event::Programs(programs) => {
                self.programs_loaded(*programs);
            }
            Event::Shutdown => {}
        }
        Some(Scope::Dirty)
    }

    fn take_runtime(&mut self, event: RuntimeEvent) {
        let (RuntimeEvent::Started { id, .. }
        | RuntimeEvent::StartFailed { id, .. }
        | RuntimeEvent::Exited { id, .. }) = &event;
        let Some((uid, container)) = pods::owner_of(&self.pods, id) else {
            // Of a pod whose record was lost; its cgroup goes as an orphan.
            if let RuntimeEvent::Exited {
                id,
                exit,
                finished_at,
            } = &event
                && !self.undecided.ended(id, *exit, *finished_at)
            {
                self.forget_container(id);
            }
            return;
        };
        match event {
            RuntimeEvent::Started {
                process,
                started_at,
                warnings,
                ..
            } => self.started(&uid, &container, process, started_at, &warnings),
            RuntimeEvent::StartFailed { error, .. } => {
                let message = crate::observe::chain(&error);
                let now = clock::boottime();
                let pauses = match error {
                    StartError::Stuck { .. } => Pauses::STUCK,
                    _ => Pauses::LACK,
                };
                match error.is_lack() {
                    true => {
                        let why = pass::lacking(&message);
                        self.hold_start(&uid, &container, why, pauses, now);
                    }
                    false => self.start_failed(&uid, &container, message, now),
                }
            }
            RuntimeEvent::Exited {
                exit, finished_at, ..
            } => self.exited(&uid, &container, exit, finished_at),
        }
    }

    /// Pods whose own clock has run out are decided upon again.
    fn wake_pods(&mut self, now: Duration) {
        for entry in self.pods.values_mut() {
            let wake = entry.next_wake();
            if wake.is_some_and(|it| it <= now) {
                entry.is_dirty = true;
            }
        }
    }

    /// When the next pass is due without an event; zero when a pass has left something to decide.
    fn next_wake(&self) -> Option<Duration> {
        let is_due = |it: &PodEntry| it.is_dirty && it.blocked.is_none();
        if self.reads_again || self.pods.values().any(is_due) {
            return Some(Duration::ZERO);
        }
        let pods = self
            .pods
            .values()
            .filter_map(pods::PodEntry::next_wake)
            .min();
        [pods, self.removals.next_wake(), self.publisher.next_wake()]
            .into_iter()
            .flatten()
            .min()
    }
}
