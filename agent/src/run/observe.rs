//! Mode `observe`: another program, kubelet as a rule, manages the node, and the agent tells what the kernel
//! does to its pods. Nothing on the node is changed: no cgroup is made, written or armed, no signal is sent.
//!
//! One thread reads: it follows the tree of cgroups, sweeps it and shows it. Beside it the same threads as in
//! mode `own`: the kernel listener, which attributes and records before anybody hears of it, those that keep
//! OOM records and compare counts, and a small tokio runtime for the HTTP endpoint, the socket and signals.
//!
//! Invariants: pods and containers are known by UID and id; a name is an addition that may come late or never.
//! What only the manager of the node can know is absent, not zero. Files are written below the state directory
//! and the directory of pins alone.

mod ends;
mod known;
mod kubelet;
mod names;
mod place;
mod placement;
mod pods;
mod pressure;
mod publish;
mod reports;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::kubelet::{Kubelet, KubeletError, Kubelets, Untold};
use self::place::Place;
pub(super) use self::place::PlaceError;
use self::placement::Placement;
use self::pods::PodSource;
pub(super) use self::pods::PodSourceError;
use self::pressure::Pressure;
use self::reports::{Earlier, Reports};
use self::tree::KubeTree;
use super::exclusive::Exclusive;
use super::forensics::{self, Background};
use super::kernel::{self, Listener, Outputs, Prepared, Programs, Remade, Shared, Tell};
use super::node::Node;
use super::publisher::{Began, Publisher};
use super::serve::{self, Server, Shown};
use super::sweep::{self, Sweeper};
use super::told::Told;
use super::{RunError, check, directories, identity, in_use, missed};
use crate::api_server::{self, ApiServer, KubeletAsker};
use crate::check::{NO_POD_CGROUPS, NOT_SHOWN, pods_without_uid};
use crate::config::{Config, DEFAULT_ROOT_DIRECTORY, ObserveConfig, ObservedRuntime};
use crate::model::api_server::{ApiServerStatus, PodsFrom};
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::model::check::{CgroupDetection, KubeletSettingsFacts, PodCgroups, WorkloadFacts};
use crate::model::mounts::CgroupFacts;
use crate::model::runtime_names::RuntimeStatus;
use crate::model::stats::{Machine, StatsSnapshot};
use crate::model::time::WallTime;
use crate::observe::event_log::EventLog;
use crate::observe::health::Health;
use crate::observe::metrics::labels::Trigger;
use crate::observe::metrics::{Identity, Metrics};
use crate::sources::bpf::{ProgramReport, WatchedRoot};
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::kube_tree;
use crate::sources::mounts::open_trees;
use crate::sources::node_reading::NodeReader;
use crate::sources::oom_counters::Signals;
use crate::sources::psi;
use crate::sources::stats::{CLOCK_SET, booted_at};
use crate::sources::wakers::Bell;
use crate::sys::filesystem::FilesystemProbe;
use crate::sys::patience::Patience;
use crate::sys::{Root, Trees, clock, page_size};

/// No pass for this long means that the loop is stuck.
const MAX_PASS_AGE: Duration = Duration::from_secs(60);

/// A slice of the sweep: who asks the loop to stop waits no longer.
const SLICE: Duration = Duration::from_millis(20);

/// Between two walks that nobody asked for: the safety net under what the kernel tells.
const WALK_EVERY: Duration = Duration::from_secs(30);

/// Between two walks that somebody asked for, between all where the kernel tells of no cgroup, and between two
/// looks for the tree where there is none. Walks that take much CPU time come less often, see [`Began::due_again`].
const WALK_GAP: Duration = Duration::from_secs(1);

/// Pods that come and go are gathered for this long.
const GATHER: Duration = Duration::from_millis(25);

/// How often what the agent itself uses is read; as often as in mode `own`.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// A disk that does not answer keeps no reading waiting for longer.
const DISK_TIME: Duration = Duration::from_millis(100);

/// Parts of readiness.
const TREE: &str = "cgroups of pods";
const KERNEL_EVENTS: &str = "kernel events";
const RUNTIME: &str = "container runtime";

/// Pods that are there before the agent have their names from the first look at them, unless the runtime takes
/// longer to tell.
const FIRST_NAMES: Duration = Duration::from_millis(500);

/// The loop with all that it owns.
struct Loop {
    config: Config,
    settings: ObserveConfig,
    node: Node,
    /// `Err`: why it is not known what it is run by.
    kubelet: Result<Kubelet, String>,
    /// Why it does not tell, either; `None`: it does, or was not asked.
    untold: Option<Untold>,
    /// Who can ask it; `None`: nobody.
    settings_asker: Option<KubeletAsker>,
    tree: Arc<KubeTree>,
    sweeper: Sweeper,
    /// As of the last sweep.
    machine: Option<Arc<Machine>>,
    /// `None`: the size of the memory is not known.
    pressure: Option<Pressure>,
    background: Arc<Background>,
    nodefs: FilesystemProbe,
    told: Told,
    /// Number of the newest record when the names were put into the records last.
    named_until: Option<u64>,
    metrics: Metrics,
    health: Health,
    publisher: Publisher,
    /// What there is now, for the status document.
    faults: BTreeMap<Fault, String>,
    /// As it was told last, as the next.
    runtime: Option<RuntimeStatus>,
    api_server: Option<ApiServerStatus>,
    pod_source: PodSource,
    placement: Placement,
    /// `None`: the API server is not asked, or told nothing.
    reports: Option<Reports>,
    n_passes: u64,
    last_pass: Duration,
    /// When the node was booted, since the epoch, by the clock as the pods that are known have it.
    booted_at: Duration,
    /// Boottime of each.
    walked_at: Duration,
    /// When the next walk may be made that somebody asks for.
    walk_again: Duration,
    /// Programs tell of cgroups that are made; taken to be so until it is known.
    hears_of_cgroups: bool,
    gather_due: Duration,
    measure_due: Duration,
    kubelet_due: Duration,
    /// When the kubelet of the tree was there last; `None`: it was not yet.
    kubelet_seen: Option<Duration>,
}

/// For `ballast check`.
pub(super) fn check_config(config: &Config, observe: &ObserveConfig) -> Result<(), RunError> {
    find(&Root::host(), config, observe).map(|_| ())
}

/// For `ballast check`: where pods lie, and what their kubelet is run by, if it is asked.
pub(super) fn find_pods(
    found: &CgroupFacts,
    observe: &ObserveConfig,
) -> (PodCgroups, Option<KubeletSettingsFacts>) {
    let root = Root::host();
    let place = open_trees(&root, &found.layout)
        .map_err(PlaceError::Fs)
        .and_then(|trees| {
            let reader = CgroupReader::new(Arc::new(trees), BTreeSet::new(), page_size());
            let (place, kubelet) = find_place(&root, &reader, observe)?;
            let roots = place.iter().flat_map(|it| &it.roots);
            let without_uid = find_without_uid(reader.trees(), roots);
            Ok((place, kubelet, without_uid))
        });
    match place {
        Ok((Some(place), kubelet, without_uid)) => {
            let pods = PodCgroups::Found {
                path: place.kubepods.path.to_string(),
                driver: place.kubepods.driver,
                other: place.other.map(|it| it.to_string()),
                without_uid: without_uid.iter().map(ToString::to_string).collect(),
            };
            (pods, facts_of(observe, kubelet))
        }
        Ok((None, kubelet, _)) => {
            let pods = match makes_none(kubelet.as_ref().ok()) {
                true => PodCgroups::NotMade,
                false => PodCgroups::Absent,
            };
            (pods, facts_of(observe, kubelet))
        }
        Err(error) => (PodCgroups::Unknown(crate::observe::chain(&error)), None),
    }
}

/// Pods without a UID. What cannot be read is told by itself.
fn find_without_uid<'a>(
    trees: &Trees,
    roots: impl Iterator<Item = &'a CgroupPath>,
) -> Vec<CgroupPath> {
    let walk = |it| kube_tree::walk(trees, it, &mut |_, _| {}).ok();
    roots.filter_map(walk).flatten().collect()
}

fn facts_of(
    observe: &ObserveConfig,
    kubelet: Result<Kubelet, KubeletError>,
) -> Option<KubeletSettingsFacts> {
    let facts = match kubelet {
        Ok(kubelet) => KubeletSettingsFacts::Known(kubelet.status),
        Err(error @ KubeletError::Within(_)) => KubeletSettingsFacts::Untold(error.to_string()),
        Err(error) => KubeletSettingsFacts::Unknown(crate::observe::chain(&error)),
    };
    observe.asks_kubelet.then_some(facts)
}

/// For `ballast check`: what the kubelet is run by that does not tell on its command line.
pub(super) fn ask_kubelet(
    observe: &ObserveConfig,
    pods: Option<&PodCgroups>,
) -> KubeletSettingsFacts {
    match kubelet::once_asked(&Root::host(), observe, root_of(pods)) {
        Ok(kubelet) => KubeletSettingsFacts::Known(kubelet.status),
        Err(why) => KubeletSettingsFacts::Unknown(why),
    }
}

/// What the pods of the node lie below; `None`: that is not known.
fn root_of(pods: Option<&PodCgroups>) -> Option<CgroupPath> {
    match pods? {
        PodCgroups::Found { path, .. } => path.parse::<CgroupPath>().ok()?.parent(),
        PodCgroups::Absent | PodCgroups::NotMade | PodCgroups::Unknown(_) => None,
    }
}

/// Where the pods lie, and the kubelet whose they are. Either may tell the other: `cgroupRoot` says where pods lie,
/// and where they lie says which kubelet is meant, if there are more.
fn find_place(
    root: &Root,
    reader: &CgroupReader,
    observe: &ObserveConfig,
) -> Result<(Option<Place>, Result<Kubelet, KubeletError>), PlaceError> {
    let kubelets = observe.asks_kubelet.then(|| Kubelets::read(root, observe));
    let choose = |pods| match &kubelets {
        Some(all) => all.choose(root, pods),
        None => Err(KubeletError::NotAsked),
    };
    let kubelet = choose(None);
    let place = kubelet::find_pods(root, reader, observe, kubelet.as_ref().ok(), None)?;
    let kubelet = match &place {
        Some(place) => choose(Some(&place.root)),
        None => kubelet,
    };
    Ok((place, kubelet))
}

/// For `ballast check`: the runtime, and how many containers run if it names none of them. `None`: nobody is asked.
pub(super) fn find_runtime(
    observe: &ObserveConfig,
    found: &CgroupDetection,
    pods: Option<&PodCgroups>,
) -> Option<(RuntimeStatus, usize)> {
    let ObservedRuntime::Cri { endpoint, .. } = &observe.runtime else {
        return None;
    };
    let (status, named) = names::probe(endpoint.as_deref(), observe);
    let running = match found {
        CgroupDetection::Found(found) => running_containers(found, pods),
        CgroupDetection::Failed(_) => BTreeSet::new(),
    };
    let knows_none = named.is_some_and(|it| it.is_disjoint(&running));
    Some((status, if knows_none { running.len() } else { 0 }))
}

/// The ids of containers in which somebody runs. Of what cannot be read nothing is said.
fn running_containers(found: &CgroupFacts, pods: Option<&PodCgroups>) -> BTreeSet<String> {
    let mut running = BTreeSet::new();
    let trees = open_trees(&Root::host(), &found.layout);
    let (Ok(trees), Some(pods)) = (trees, root_of(pods)) else {
        return running;
    };
    let reader = CgroupReader::new(Arc::new(trees), BTreeSet::new(), page_size());
    let mut look = |_, owner: Owner| {
        let pids = reader.pids_in(&owner.path, Controller::Memory.name());
        if let Level::Container { key, .. } = owner.level
            && pids.is_ok_and(|it| !it.is_empty())
        {
            running.insert(key.id);
        }
    };
    kube_tree::walk(reader.trees(), &pods, &mut look).ok();
    running
}

/// For `ballast check`.
pub(super) fn find_workloads(observe: &ObserveConfig, pods: Option<&PodCgroups>) -> WorkloadFacts {
    match pods::source(observe) {
        Ok(PodSource::Nobody(why)) => WorkloadFacts::Nobody(why),
        Ok(PodSource::Asked(settings)) => {
            let pods = root_of(pods);
            let find = kubelet::finder(observe.clone(), move || pods.clone());
            match api_server::probe(&settings, find) {
                Ok(facts) => WorkloadFacts::ApiServer(facts),
                Err(error) => WorkloadFacts::Nobody(error.to_string()),
            }
        }
        // The configuration is at fault, which is told by itself.
        Err(error) => WorkloadFacts::Nobody(crate::observe::chain(&error)),
    }
}

/// What a start goes on with.
struct Found {
    node: Node,
    kubelet: Result<Kubelet, KubeletError>,
    place: Option<Place>,
    pod_source: PodSource,
}

/// Finds it out without making anything.
fn find(root: &Root, config: &Config, observe: &ObserveConfig) -> Result<Found, RunError> {
    let mut faults = directories::faults(root, config, &[], &[]);
    faults.extend(serve::faults(&config.metrics));
    faults.extend(in_use::faults(root, config, None));
    let pod_source = pods::source(observe).map_err(RunError::from);
    let node = Node::detect(root, Path::new(DEFAULT_ROOT_DIRECTORY)).map_err(RunError::from);
    let found = node.and_then(|mut node| {
        if let Some(name) = pods::node_name(observe) {
            node.name = name;
        }
        let (place, kubelet) = find_place(root, &node.reader, observe)?;
        Ok((node, place, kubelet))
    });
    // Kubelet's next start would take the place.
    let kubelet = found.as_ref().ok();
    let kubelet = kubelet.and_then(|(.., kubelet)| kubelet.as_ref().ok());
    let directory = kubelet.map_or(Path::new(DEFAULT_ROOT_DIRECTORY), |it| &it.root_directory);
    faults.extend(directories::in_place_of_kubelets(
        root,
        config,
        (None, directory),
    ));
    match (found, pod_source) {
        (Ok((node, place, kubelet)), Ok(pod_source)) if faults.is_empty() => Ok(Found {
            node,
            kubelet,
            place,
            pod_source,
        }),
        (found, pod_source) => {
            faults.extend(found.err());
            faults.extend(pod_source.err());
            Err(RunError::all(faults))
        }
    }
}

/// Runs the agent until it is told to stop.
pub(super) fn run(config: Config, observe: &ObserveConfig) -> Result<(), RunError> {
    let root = Root::host();
    let Found {
        node,
        kubelet,
        place,
        pod_source,
    } = check::with_fitness(&config, find(&root, &config, observe))?;
    root.create_dir_all(&config.state_directory)
        .map_err(RunError::State)?;
    let _exclusive = Exclusive::take(&config)?;
    let log = EventLog::begin(clock::wall());
    let told = Told::new(log.clone());
    let metrics = Metrics::new(
        config.mode.kubelet_duties(),
        config.kubelet_metric_names,
        Identity::NamesOrIds,
    );
    let parts = ["node", TREE, KERNEL_EVENTS, RUNTIME];
    let health = Health::new(MAX_PASS_AGE, parts);
    serve::raise_open_files();
    let kernel = Arc::new(Shared::default());
    kernel.kill_counts.set_trees(node.reader.trees());
    if !psi::is_kept(&root) {
        kernel.count_reclaim();
    }
    let bell = Bell::new().map_err(|it| RunError::Thread(it.into()))?;
    let tree = Arc::new(KubeTree::new(
        node.reader.clone(),
        kernel,
        Arc::default(),
        metrics.clone(),
        node.identity.page_size.0,
        bell.clone(),
        log.clone(),
    ));
    let (publisher, status) = Publisher::new(&config.mode);
    let stop = Arc::new(AtomicBool::new(false));
    let server = {
        let shown = Shown {
            metrics: &metrics,
            health: &health,
            readings: &tree.readings,
            kernel: &tree.kernel,
            log: &log,
            status,
        };
        let (stop, bell) = (Arc::clone(&stop), bell.clone());
        let ask_to_stop = move || {
            stop.store(true, Ordering::Relaxed);
            bell.ring();
        };
        Server::start(&config, shown, ask_to_stop)?
    };
    let background = Arc::<Background>::default();
    let patience = Patience::start(DISK_TIME).map_err(RunError::Thread)?;
    // Unless kubelet was given another; nothing is said of one that is not there.
    let nodefs = FilesystemProbe::new(&root, Path::new(DEFAULT_ROOT_DIRECTORY), &patience);
    let now = clock::boottime();
    let kubelet_seen = kubelet.as_ref().is_ok().then_some(now);
    let mut state = Loop {
        sweeper: sweeper(&config, &node, &tree, &background, &nodefs, place.as_ref()),
        machine: None,
        pressure: None,
        config,
        settings: observe.clone(),
        node,
        kubelet: kubelet.map_err(|it| crate::observe::chain(&it)),
        untold: None,
        settings_asker: None,
        tree: Arc::clone(&tree),
        background,
        nodefs,
        told,
        named_until: None,
        metrics,
        health,
        publisher,
        faults: BTreeMap::new(),
        runtime: None,
        api_server: None,
        pod_source,
        placement: Placement::default(),
        reports: None,
        n_passes: 0,
        last_pass: Duration::ZERO,
        booted_at: booted_at().unwrap_or_default(),
        walked_at: now,
        walk_again: now,
        hears_of_cgroups: true,
        gather_due: now,
        measure_due: now,
        kubelet_due: now,
        kubelet_seen,
    };
    state.sweeper.set_bell(bell.clone());
    state.begin();
    state.begin_pods();
    let api_server = pods::watch(&state.pod_source, observe, &tree)?;
    state.settings_asker = api_server.as_ref().map(ApiServer::settings_asker);
    // Ends after the listener, which asks it.
    let _cri = names::ask_runtime(observe, &tree)?;
    let recorder = forensics::keep(
        &state.config,
        &state.node,
        &tree.kernel,
        &state.background,
        &state.metrics,
        &state.told,
    )?;
    tree.kernel.kill_counts.ring_when_saved(bell.clone());
    // Ends after the listener, which is dropped first.
    let _keeper = recorder.handle;
    let saver = recorder.recorder.saver();
    let told_before = log.last_sequence();
    // Before a kill of this agent is among them.
    let earlier = match observe.kubernetes.events && api_server.is_some() {
        true => Earlier::find(
            &state.config.state_directory,
            state.node.identity.boot_id.as_deref().unwrap_or_default(),
        ),
        false => Earlier::default(),
    };
    let _accountant = missed::compare_kills(
        Arc::clone(state.node.reader.trees()),
        Signals::WithoutWrites,
        &tree.kernel,
        log.clone(),
        state.metrics.clone(),
        recorder.recorder.saver(),
        tell(&tree),
    )?;
    let listener = state.prepare(place.as_ref(), &log, recorder.recorder)?;
    if place.is_none() {
        let why = nowhere(&observe.cgroup_roots, state.kubelet.as_ref().ok());
        state.set_fault(Fault::Nowhere, Some(why));
    }
    state.wait_for_names(&bell);
    state.follow(place);
    state.look_at_nodefs();
    // The kernel tells what is made from then on, and the walk finds what was made before.
    listener.iter().for_each(Prepared::wait_watched);
    state.walk(Began::now());
    // For the next agent.
    saver.save();
    drop(saver);
    // Before the first kill is told.
    let (told_kills, _asked_only) = match observe.kubernetes.events {
        true => (api_server, None),
        false => (None, api_server),
    };
    if let Some(told_kills) = told_kills {
        let patience = Patience::start(DISK_TIME).map_err(RunError::Thread)?;
        let reports = Reports::new(told_kills, log, told_before, earlier, patience);
        state.reports = Some(reports);
    }
    let _listener = listener.map(Prepared::listen);
    while !stop.load(Ordering::Relaxed) {
        state.pass();
        bell.wait(state.wake().saturating_sub(clock::boottime()));
    }
    state.tell_the_rest(&bell);
    state
        .told
        .agent("AgentStopping", "nothing on the node changes".to_owned());
    server.stop();
    Ok(())
}

fn tell(tree: &Arc<KubeTree>) -> Tell {
    let tree = Arc::clone(tree);
    Box::new(move |news| tree.hear(news))
}

/// `place`: where to read; `None`: of the node alone.
fn sweeper(
    config: &Config,
    node: &Node,
    tree: &KubeTree,
    background: &Arc<Background>,
    nodefs: &FilesystemProbe,
    place: Option<&Place>,
) -> Sweeper {
    let parts = sweep::Parts {
        readings: Arc::clone(&tree.readings),
        kernel: Arc::clone(&tree.kernel),
        background: Arc::clone(background),
        metrics: tree.metrics.clone(),
        interval: config.stats_interval,
    };
    let cgroups = place.and_then(Place::qos_cgroups);
    Sweeper::new(node, cgroups, nodefs.clone(), parts)
}

impl Loop {
    /// Says what starts here.
    fn begin(&self) {
        self.health.unblock("node");
        self.told.agent(
            "AgentStarted",
            format!(
                "ballast {} observes Linux {}, cgroup {}, {}",
                env!("CARGO_PKG_VERSION"),
                self.node.identity.kernel_release,
                self.node.version(),
                self.node.topology.shape(),
            ),
        );
        self.tell_kubelet();
    }

    /// `Ok(None)`: there is nothing to listen to, which is told.
    fn prepare(
        &mut self,
        place: Option<&Place>,
        log: &EventLog,
        recorder: forensics::Recorder,
    ) -> Result<Option<Prepared>, RunError> {
        let watched = place.and_then(|it| self.watched_root(&it.kubepods.path));
        let kernel = &self.tree.kernel;
        let streams = match kernel::adopt(&self.config.bpf, watched) {
            Ok(streams) => streams,
            Err(error) => {
                self.programs_loaded(&Programs::none(&error));
                return Ok(None);
            }
        };
        let (tree, configured) = (Arc::clone(&self.tree), self.settings.cgroup_roots.clone());
        let outputs = Outputs {
            log: log.clone(),
            recorder,
            metrics: self.metrics.clone(),
            is_first: None,
            tell: tell(&self.tree),
            locate: Box::new(move |id| tree.locate(id, &configured)),
            cgroups_first: true,
        };
        let listener = Listener::new(streams, None, Arc::clone(kernel), outputs);
        listener.prepare().map(Some).map_err(RunError::Thread)
    }

    /// `None`: it is gone again.
    fn watched_root(&self, kubepods: &CgroupPath) -> Option<WatchedRoot> {
        let watched = self.node.watched_root(kubepods).ok()??;
        Some(WatchedRoot {
            tells_ends: true,
            tells_stalls: false,
            ..watched
        })
    }

    fn programs_loaded(&mut self, programs: &Programs) {
        let mut reports = programs.reports.iter();
        self.hears_of_cgroups = reports.any(ProgramReport::reports_cgroups);
        let counts = &self.tree.kernel.kill_counts;
        self.publisher
            .programs_loaded(programs, counts, &self.metrics, &self.told);
        self.health.unblock(KERNEL_EVENTS);
    }

    /// When the next pass is due without a ring of the bell.
    fn wake(&self) -> Duration {
        let gather = self.tree.is_changed().then_some(self.gather_due);
        let reports = self.reports.as_ref().and_then(Reports::wake);
        [
            gather,
            self.placement.wake(),
            self.publisher.next_wake(),
            reports,
        ]
        .into_iter()
        .flatten()
        .fold(self.sweeper.due().min(self.walk_due()), Duration::min)
    }

    fn pass(&mut self) {
        let started = clock::boottime();
        let mut trigger = Trigger::Timer;
        if let Some(programs) = self.tree.take_programs() {
            self.programs_loaded(&programs);
            trigger = Trigger::Event;
        }
        self.look_for_kubelet(started);
        if started >= self.walk_due() {
            let began = Began::now();
            self.look_for_tree();
            self.walk(began);
        }
        if started >= self.gather_due && self.tree.takes_change() {
            let began = Began::now();
            self.take_runtime();
            self.take_api_server();
            self.take_kubelet_settings(started);
            self.take_allocatable(started);
            self.take_pods(false);
            self.gather_due = began.due_again(GATHER);
            self.publisher.changed(started);
            trigger = Trigger::Event;
        }
        self.look_for_places(started);
        self.report(false);
        self.sweeper.hurry();
        if clock::boottime() >= self.sweeper.due() {
            if !self.sweeper.is_under_way() {
                // Nobody tells of the end of one process among several.
                self.take_pods(false);
            }
            if let Some(snapshot) = self.sweeper.slice(SLICE) {
                self.take_sweep(snapshot);
            }
        }
        self.end_pass(started, trigger);
    }

    fn end_pass(&mut self, started: Duration, trigger: Trigger) {
        let now = clock::boottime();
        self.n_passes += 1;
        self.last_pass = now.saturating_sub(started);
        self.metrics.loop_tick(trigger);
        self.metrics
            .loop_succeeded(WallTime::from_epoch(clock::wall()));
        self.health.pass_done();
        self.metrics.set_ready(self.health.is_ready());
        if now >= self.measure_due {
            self.measure_due = now + MEASURE_EVERY;
            self.publisher.measure_self(&self.metrics);
        }
        if self.publisher.next_wake().is_some_and(|it| it <= now) {
            self.publish(now);
        }
    }

    /// Pods as the tree has them. `anew`: their processes are looked up again.
    fn take_pods(&mut self, anew: bool) {
        let is_named = self.tree.takes_names();
        if is_named {
            self.take_names(true);
        }
        known::name_kills(&self.tree);
        let tree = &self.tree;
        self.sweeper.amend_ended(|it| tree.name_ended(it));
        let readings = &self.tree.readings;
        let mut before = readings.pods();
        let booted_at = booted_at().unwrap_or_default();
        if booted_at.abs_diff(self.booted_at) > CLOCK_SET {
            before = Arc::new(known::shifted(&before, self.booted_at, booted_at));
            self.booted_at = booted_at;
        }
        let pods = known::pods(&self.tree, &before, anew);
        let is_other = readings.set_pods(pods);
        if is_other || anew {
            self.placement.look_again();
        }
        if self.tree.takes_growth() || is_named && is_other {
            readings.ask();
        }
        self.take_definitions();
    }

    fn take_sweep(&mut self, snapshot: StatsSnapshot) {
        let figures = snapshot.pods.iter();
        let figures = figures.filter_map(|it| Some((it.pod.uid.clone(), it.figures()?)));
        let mut figures = figures.collect();
        self.look_at_hardware(&snapshot.machine);
        self.sweeper.remember(&mut figures);
        self.sweeper.show(snapshot, &figures, &|_, _| None);
        self.read_node(&figures);
        self.publisher.changed(clock::boottime());
    }

    /// The sweep says when the machine is another one. What cannot be read is as it was.
    fn look_at_hardware(&mut self, machine: &Arc<Machine>) {
        let before = self.machine.replace(Arc::clone(machine));
        if before.is_some_and(|it| !Arc::ptr_eq(&it, machine)) {
            self.look_at_node();
        }
    }

    fn look_at_node(&mut self) {
        match self.node.look_again(&Root::host(), self.nodefs.path()) {
            Ok(()) => self.placement.look_again(),
            Err(error) => {
                let error = crate::observe::chain(&error);
                tracing::warn!(error, "read the node again");
            }
        }
    }

    /// Nodefs is the file system of kubelet's own directory, which another kubelet may have elsewhere.
    fn look_at_nodefs(&mut self) {
        let Ok(kubelet) = &self.kubelet else { return };
        if kubelet.root_directory == self.nodefs.path() {
            return;
        }
        self.nodefs = self.nodefs.at(&kubelet.root_directory);
        self.look_at_node();
        let place = self.tree.place();
        self.renew_sweeper(place.as_deref());
        self.renew_pressure(place.as_deref());
    }

    fn renew_sweeper(&mut self, place: Option<&Place>) {
        let (tree, background) = (&self.tree, &self.background);
        self.sweeper = sweeper(
            &self.config,
            &self.node,
            tree,
            background,
            &self.nodefs,
            place,
        );
    }

    fn renew_pressure(&mut self, place: Option<&Place>) {
        let trees = Arc::clone(self.node.reader.trees());
        let page_size = self.node.identity.page_size.0;
        let (kubepods, nodefs) = (place.map(|it| &it.kubepods.path), self.nodefs.clone());
        let reader = NodeReader::open(&Root::host(), trees, kubepods, nodefs, page_size);
        let kubelet = self.kubelet_config();
        self.pressure = reader.ok().map(|it| Pressure::new(it, kubelet));
    }

    /// Kubelet may have been started since, or told another place.
    fn look_for_tree(&mut self) {
        let followed = self.tree.place();
        let kubelet = self.kubelet.as_ref().ok();
        let reader = &self.node.reader;
        let before = followed.as_ref().map(|it| it.kubepods.id);
        let found = kubelet::find_pods(&Root::host(), reader, &self.settings, kubelet, before);
        let (place, why) = match found {
            Ok(Some(place)) => (Some(place), None),
            Ok(None) => (None, Some(nowhere(&self.settings.cgroup_roots, kubelet))),
            // The one that was followed is followed as long as it is there.
            Err(error) => {
                let there = followed.as_deref();
                let there = there.filter(|it| it.is_there(&self.node.reader));
                (there.cloned(), Some(crate::observe::chain(&error)))
            }
        };
        self.set_fault(Fault::Nowhere, why);
        let kubepods = |it: Option<&Place>| it.map(|it| it.kubepods.clone());
        if kubepods(place.as_ref()) == kubepods(followed.as_deref()) {
            self.set_place(place);
        } else {
            self.follow(place);
        }
    }

    /// The kernel's filters, the sweep and the walk go by this place from now on. One that has gone, or of which the
    /// kernel does not say which it is, is not followed: the next look finds it again.
    fn follow(&mut self, place: Option<Place>) {
        let watched = place
            .as_ref()
            .map(|it| self.watched_root(&it.kubepods.path));
        if let (Some(place), Some(None)) = (&place, &watched) {
            let path = &place.kubepods.path;
            let why = format!("{path} cannot be looked at, or has just gone");
            self.set_fault(Fault::Nowhere, Some(why));
            return;
        }
        self.renew_sweeper(place.as_ref());
        let root = Root::host();
        let shown = place
            .as_ref()
            .map(|it| (&it.kubepods.path, it.kubepods.driver));
        identity::set_agent(&self.metrics, &root, &self.config, &self.node, shown);
        let kubepods = place.as_ref().map(|it| it.kubepods.path.clone());
        if let Some(path) = &kubepods {
            if let Some(root) = watched.flatten() {
                self.tree.kernel.follow(Remade {
                    root,
                    device_directory: None,
                });
            }
            self.told.agent("PodsFound", format!("pods lie in {path}"));
            self.health.unblock(TREE);
        } else {
            let why = self.faults.get(&Fault::Nowhere);
            self.health
                .block(TREE, why.map_or("not yet", String::as_str));
        }
        self.renew_pressure(place.as_ref());
        self.set_place(place);
    }

    /// What lies beside the cgroup of all pods may have come or gone.
    fn set_place(&mut self, place: Option<Place>) {
        let divided = place.as_ref().and_then(Place::divided);
        self.set_fault(Fault::Divided, divided);
        if let Some(place) = &place {
            self.tree.kernel.kill_counts.look_below(&place.roots);
        }
        self.tree.set_place(place);
    }

    fn walk(&mut self, began: Began) {
        let now = clock::boottime();
        self.walked_at = now;
        match self.tree.walk() {
            Ok(without_uid) => {
                if self.tree.place().is_some() {
                    self.tree.kernel.kill_counts.all_are_found();
                }
                let why = without_uid.first().map(|first| {
                    let which = pods_without_uid(without_uid.len(), first.as_str());
                    format!("{which}; {NOT_SHOWN}")
                });
                self.set_fault(Fault::WithoutUid, why);
                self.set_fault(Fault::Unreadable, None);
            }
            Err(error) => {
                self.set_fault(Fault::Unreadable, Some(crate::observe::chain(&error)));
            }
        }
        self.take_pods(true);
        self.walk_again = began.due_again(WALK_GAP);
        self.publisher.changed(now);
    }

    /// Boottime.
    fn walk_due(&self) -> Duration {
        let is_urgent = self.tree.is_walk_wanted()
            || self.tree.place().is_none()
            || !self.hears_of_cgroups
            || self.tree.place().is_some_and(|it| it.other.is_some())
            || self.waits_for_pods();
        next_walk(self.walked_at, self.walk_again, is_urgent)
    }

    /// Tells a fault when it begins or is another. `None`: there is none.
    fn set_fault(&mut self, fault: Fault, why: Option<String>) {
        let Some(why) = why else {
            self.faults.remove(&fault);
            return;
        };
        if self.faults.get(&fault) != Some(&why) {
            self.told.node(fault.reason(), why.clone());
            self.faults.insert(fault, why);
        }
    }
}

/// What keeps pods from being shown, as long as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Nobody knows where the pods lie.
    Nowhere,
    /// They lie in the trees of both drivers.
    Divided,
    /// Their cgroups cannot be read.
    Unreadable,
    /// Some have cgroups whose names have no UID in them.
    WithoutUid,
    /// The runtime tells no names.
    Nameless,
    /// Who is asked for pods tells nothing.
    WithoutPods(PodsFrom),
    /// It tells of pods what nobody understands.
    Undefined,
}

impl Fault {
    const fn reason(self) -> &'static str {
        match self {
            Self::Nowhere => "PodsNotFound",
            Self::Divided => "PodsInTwoTrees",
            Self::Unreadable => "TreeUnreadable",
            Self::WithoutUid => "PodsWithoutUid",
            Self::Nameless => "RuntimeUnavailable",
            Self::WithoutPods(PodsFrom::ApiServer) => "ApiServerUnavailable",
            Self::WithoutPods(PodsFrom::Kubelet) => "KubeletUnavailable",
            Self::Undefined => "PodsNotUnderstood",
        }
    }
}

/// When the next walk is due: `again` at the soonest, and never later than one that nobody asks for.
fn next_walk(walked_at: Duration, again: Duration, is_urgent: bool) -> Duration {
    let unasked = walked_at + WALK_EVERY;
    match is_urgent {
        true => again.min(unasked),
        false => unasked,
    }
}

/// There will be no cgroup of all pods.
fn makes_none(kubelet: Option<&Kubelet>) -> bool {
    kubelet.is_some_and(|it| !it.settings.has_pod_cgroups)
}

/// `configured`: `kubelet.cgroupRoot` by either driver.
fn nowhere(configured: &[CgroupPath], kubelet: Option<&Kubelet>) -> String {
    if makes_none(kubelet) {
        return format!("no pods are shown: {NO_POD_CGROUPS}");
    }
    let roots: Vec<&str> = configured.iter().map(CgroupPath::as_str).collect();
    match roots.is_empty() {
        true => "there is no kubepods yet, neither at the cgroup mount nor one level below it"
            .to_owned(),
        false => format!(
            "there is no kubepods yet in {} (kubelet.cgroupRoot)",
            roots.join(" or ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Tree;
    use crate::sys::scratch::Scratch;

    #[test]
    fn pods_without_a_uid_are_looked_for_below_the_roots_of_both_drivers() {
        let dir = Scratch::new("without-uid");
        let pods = [
            "/a/kubepods/pod_b",
            "/a.slice/a-kubepods.slice/a-kubepods-pod_c.slice",
        ];
        for pod in pods {
            let made = Root::at(dir.directory()).create_dir_all(pod);
            made.expect("a directory");
        }
        let tree = Tree::open(BTreeSet::new(), dir.directory()).expect("a directory");
        let trees = Trees {
            unified: true,
            trees: vec![tree],
        };
        let roots: [CgroupPath; 3] =
            ["/a", "/absent", "/a.slice"].map(|it| it.parse().expect("a path"));
        let found = find_without_uid(&trees, roots.iter());
        let found: Vec<_> = found.iter().map(CgroupPath::as_str).collect();
        assert_eq!(found, pods);
    }

    #[test]
    fn walks_that_cost_much_come_less_often_and_as_often_as_those_that_nobody_asks_for() {
        let seconds = Duration::from_secs;
        for (again, is_urgent, due) in [
            (61, true, 61),
            (61, false, 90),
            (69, true, 69),
            (200, true, 90),
            (200, false, 90),
        ] {
            let found = next_walk(seconds(60), seconds(again), is_urgent);
            assert_eq!(found, seconds(due), "again at {again}, urgent: {is_urgent}");
        }
    }
}
