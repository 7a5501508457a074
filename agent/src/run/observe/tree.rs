//! The tree of cgroups that kubelet and its runtime make: found by a walk, followed by what the kernel tells.
//!
//! In: news of the listener, the runtime and the API server, on their threads. Out: the index of cgroups, which pods there are, and what a
//! container had used when its last process ended.
//!
//! Invariant: nothing here writes. A cgroup is registered when the kernel tells of it or a walk finds it, and
//! retired when the kernel tells of its end or a walk misses it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::ends::{End, Ends};
use super::known;
use super::place::Place;
use crate::api_server::{self, KubeletAsker};
use crate::cri::{self, Asker};
use crate::decide::attribution::Made;
use crate::decide::naming::Known;
use crate::model::api_server::{ApiResource, ApiServerStatus, ToldSettings};
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::event::{CgroupId, CgroupLineage};
use crate::model::eviction::DiskUse;
use crate::model::kube_event::Outcome;
use crate::model::record::{Event, EventKind};
use crate::model::runtime_names::RuntimeStatus;
use crate::model::stats::{CgroupStats, ContainerStats, EndedContainer, ProcessLimits};
use crate::model::time::WallTime;
use crate::observe::event_log::EventLog;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::EndedKind;
use crate::run::kernel::{LONGEST_NAME, News, Programs, Shared};
use crate::run::missed::Origin;
use crate::run::sweep::Readings;
use crate::sources::bpf::Stream;
use crate::sources::stats::{cpu_time, read_once};
use crate::sources::wakers::Bell;
use crate::sources::{cgroupfs::CgroupReader, kube_tree, oomd};
use crate::sys::{FsError, Root, clock};

/// What the listener's thread and the loop both know of the tree.
pub(super) struct KubeTree {
    pub(super) reader: CgroupReader,
    pub(super) kernel: Arc<Shared>,
    pub(super) readings: Arc<Readings>,
    pub(super) metrics: Metrics,
    /// Bytes.
    pub(super) page_size: u64,
    /// Wakes the loop.
    pub(super) bell: Bell,
    log: EventLog,
    told: Mutex<Told>,
    /// Who can be asked for names; empty: nobody.
    asker: OnceLock<Asker>,
    /// Who can be asked whose a pod is; empty: nobody, or who tells of it by himself.
    pod_asker: OnceLock<KubeletAsker>,
    /// Only a walk can tell what there is.
    is_walk_wanted: AtomicBool,
    /// The last walk has found what there is.
    is_known: AtomicBool,
    /// What there is to show changed.
    is_changed: AtomicBool,
    /// There are pods or containers that no sweep has read.
    is_grown: AtomicBool,
    /// Somebody was told of whose name was not known.
    are_named: AtomicBool,
}

#[derive(Default)]
struct Told {
    place: Option<Arc<Place>>,
    ends: Ends,
    programs: Option<Programs>,
    /// `None`: the runtime has not told anything yet, or it is not asked.
    runtime: Option<RuntimeStatus>,
    /// The same of the API server.
    api_server: Option<ApiServerStatus>,
    /// Of kubelet, as it has said them, or why it does not.
    settings: Option<Result<ToldSettings, String>>,
    /// CPUs that kubelet says that it can give out, or why it does not say so, and the pid of that kubelet.
    allocatable: Option<(u32, Result<CpuSet, String>)>,
    /// That of the kubelet that is known; `None`: none is known, or it does not tell.
    runtime_socket: Option<PathBuf>,
    /// Of the Event that is written.
    outcome: Option<Outcome>,
    events_fault: Option<String>,
}

impl KubeTree {
    pub(super) fn new(
        reader: CgroupReader,
        kernel: Arc<Shared>,
        readings: Arc<Readings>,
        metrics: Metrics,
        page_size: u64,
        bell: Bell,
        log: EventLog,
    ) -> Self {
        Self {
            reader,
            kernel,
            readings,
            metrics,
            page_size,
            bell,
            log,
            told: Mutex::default(),
            asker: OnceLock::new(),
            pod_asker: OnceLock::new(),
            is_walk_wanted: AtomicBool::new(false),
            is_known: AtomicBool::new(false),
            is_changed: AtomicBool::new(true),
            is_grown: AtomicBool::new(true),
            are_named: AtomicBool::new(false),
        }
    }

    /// Takes what the kernel told. Never waits.
    pub(super) fn hear(&self, news: News<'_>) -> bool {
        match news {
            News::Kill { .. } | News::Missed { .. } => self.change(),
            News::Ended { .. } => {}
            News::Made { cgroup, name } => {
                self.made(cgroup, name, Origin::Made);
            }
            News::Met { cgroup, name } => {
                // It may be an old one.
                if self.made(cgroup, name, Origin::Found) == Made::Registered {
                    // The victim was in it.
                    self.entered(cgroup.cgroup_id);
                    // Who is gone is retired by it.
                    self.want_walk();
                }
            }
            News::Entered(id) => self.entered(id),
            News::Emptied(id) => self.emptied(id),
            News::Gone(id) => self.gone(id),
            // They say nothing of what is there.
            News::Lost(Stream::Process | Stream::Stall) => {}
            News::Lost(Stream::Oom | Stream::Cgroup) => {
                // What the kernel counted is compared with what came.
                self.readings.ask();
                self.want_walk();
            }
            News::Programs(programs) => {
                self.told().programs = Some(programs);
                self.bell.ring();
            }
        }
        true
    }

    /// Takes what the runtime told, on its thread.
    pub(super) fn hear_runtime(&self, told: cri::Told) {
        let is_new = match &told {
            cri::Told::All(all) => self.kernel.index_mut().learn_all(all),
            cri::Told::Some(some) => self.kernel.index_mut().names.learn_each(some),
            cri::Told::Happened => {
                // Events of cgroups wait in their ring for whoever looks.
                self.kernel.listen_now();
                false
            }
            cri::Told::State(status) => {
                self.told().runtime = Some(status.clone());
                true
            }
        };
        if is_new {
            self.are_named.store(true, Ordering::Relaxed);
            self.change();
        }
    }

    /// Takes what the API server told, on its thread.
    pub(super) fn hear_api_server(&self, told: api_server::Told) {
        let now = WallTime::from_epoch(clock::wall());
        if told.is_of_pods() {
            self.metrics.api_told(ApiResource::Pods, now);
        }
        let is_new = match told {
            api_server::Told::UpToDate => return,
            api_server::Told::Asked(asked) => {
                self.metrics.api_asked(&asked, now);
                return;
            }
            api_server::Told::All(all) => self.kernel.index_mut().learn_pods(&all),
            api_server::Told::Seen(seen) => self.kernel.index_mut().learn_seen(&seen),
            api_server::Told::Changed(pod) => self.kernel.index_mut().names.learn_pod(&pod),
            api_server::Told::Deleted(pod) => {
                self.kernel.index_mut().pod_deleted(&pod);
                self.change();
                return;
            }
            api_server::Told::State(status) => {
                self.told().api_server = Some(status);
                self.change();
                return;
            }
            api_server::Told::Settings(told) => {
                self.told().settings = Some(told);
                self.change();
                return;
            }
            api_server::Told::Written(outcome) => {
                self.told().outcome = Some(outcome);
                self.change();
                return;
            }
            api_server::Told::EventsFault(fault) => {
                self.told().events_fault = fault;
                self.change();
                return;
            }
        };
        if is_new {
            self.are_named.store(true, Ordering::Relaxed);
            self.change();
        }
    }

    /// How the API server is; `None`: it has not told anything yet, or it is not asked.
    pub(super) fn api_server(&self) -> Option<ApiServerStatus> {
        self.told().api_server.clone()
    }

    /// What kubelet was asked for and has said, or why it does not.
    pub(super) fn take_settings(&self) -> Option<Result<ToldSettings, String>> {
        self.told().settings.take()
    }

    /// Of the kubelet that is known.
    pub(super) fn set_runtime_socket(&self, socket: Option<PathBuf>) {
        self.told().runtime_socket = socket;
    }

    pub(super) fn runtime_socket(&self) -> Option<PathBuf> {
        self.told().runtime_socket.clone()
    }

    /// See [`pod_resources`](crate::pod_resources). `pid`: of kubelet.
    pub(super) fn tell_allocatable(&self, pid: u32, told: Result<CpuSet, String>) {
        self.told().allocatable = Some((pid, told));
        self.change();
    }

    pub(super) fn take_allocatable(&self) -> Option<(u32, Result<CpuSet, String>)> {
        self.told().allocatable.take()
    }

    /// What became of an Event.
    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        self.told().outcome.take()
    }

    /// Why no Event can be written.
    pub(super) fn events_fault(&self) -> Option<String> {
        self.told().events_fault.clone()
    }

    pub(super) fn set_asker(&self, asker: Asker) {
        self.asker.set(asker).ok();
    }

    pub(super) fn set_pod_asker(&self, asker: KubeletAsker) {
        self.pod_asker.set(asker).ok();
    }

    /// How the runtime is; `None`: it has not told anything yet, or it is not asked.
    pub(super) fn runtime(&self) -> Option<RuntimeStatus> {
        self.told().runtime.clone()
    }

    /// Somebody has a name who had none.
    pub(super) fn takes_names(&self) -> bool {
        self.are_named.swap(false, Ordering::Relaxed)
    }

    pub(super) fn take_programs(&self) -> Option<Programs> {
        self.told().programs.take()
    }

    /// Which pods there are is known.
    pub(super) fn is_known(&self) -> bool {
        self.place().is_some() && self.is_known.load(Ordering::Relaxed)
    }

    pub(super) fn is_walk_wanted(&self) -> bool {
        self.is_walk_wanted.load(Ordering::Relaxed)
    }

    pub(super) fn takes_change(&self) -> bool {
        self.is_changed.swap(false, Ordering::Relaxed)
    }

    pub(super) fn is_changed(&self) -> bool {
        self.is_changed.load(Ordering::Relaxed)
    }

    pub(super) fn takes_growth(&self) -> bool {
        self.is_grown.swap(false, Ordering::Relaxed)
    }

    /// Where the pods lie; `None`: nowhere yet.
    pub(super) fn place(&self) -> Option<Arc<Place>> {
        self.told().place.clone()
    }

    pub(super) fn set_place(&self, place: Option<Place>) {
        let place = place.map(Arc::new);
        let before = std::mem::replace(&mut self.told().place, place.clone());
        let roots = |it: Option<Arc<Place>>| it.map(|it| it.roots.clone());
        if roots(before) != roots(place) {
            self.is_known.store(false, Ordering::Relaxed);
        }
    }

    fn made(&self, cgroup: &CgroupLineage, name: &str, origin: Origin) -> Made {
        let Some(place) = self.place() else {
            self.want_walk();
            return Made::Unknown;
        };
        let mut index = self.kernel.index_mut();
        let made = index.made(
            cgroup,
            name,
            place.kubepods.id,
            &place.root,
            LONGEST_NAME - 1,
        );
        match made {
            Made::Registered => {
                let owner = index.get(cgroup.cgroup_id).and_then(|it| it.owner);
                drop(index);
                if let Some(owner) = owner {
                    self.count_kills_of(cgroup.cgroup_id, &owner, origin);
                    self.ask_for(&owner);
                }
                self.is_grown.store(true, Ordering::Relaxed);
                self.change();
            }
            Made::Inner => {}
            Made::Unknown => self.want_walk(),
        }
        made
    }

    /// Has the runtime asked whose a container is, and kubelet whose a pod is, if nobody has told.
    fn ask_for(&self, owner: &Owner) {
        match &owner.level {
            Level::Container { uid, key, .. } => {
                if let Some(asker) = self.asker.get()
                    && self.kernel.index().names.known(uid, &key.id).is_none()
                {
                    asker.ask(&key.id);
                }
            }
            Level::Pod { uid, .. } => {
                if let Some(asker) = self.pod_asker.get()
                    && !self.kernel.index().names.is_listed(uid)
                {
                    asker.ask();
                }
            }
            Level::Kubepods | Level::Qos(_) => {}
        }
    }

    /// Of a process that comes later nothing is shown.
    fn entered(&self, id: CgroupId) {
        let owner = self.kernel.index().get(id).and_then(|it| it.owner);
        if owner.is_some_and(|it| it.container().is_some()) && self.told().ends.entered(id) {
            self.change();
        }
    }

    /// The runtime removes the cgroup some milliseconds after its last process, so this is the last reading.
    fn emptied(&self, id: CgroupId) {
        let Some(owner) = self.kernel.index().get(id).and_then(|it| it.owner) else {
            return;
        };
        if owner.container().is_none() {
            return;
        }
        self.told().ends.emptied(id);
        if let Some(stats) = self.read(id, &owner.path) {
            self.kernel.kill_counts.count_in(&stats);
            self.told().ends.read(id, stats);
            let trees = self.reader.trees();
            if oomd::has_killed(trees, &owner.path) && self.told().ends.by_oomd(id) {
                self.tell_oomd(&owner);
            }
        }
        self.change();
    }

    /// What a cgroup has used by now; `None`: it is gone, be there another at its path or not.
    fn read(&self, id: CgroupId, path: &CgroupPath) -> Option<CgroupStats> {
        let stats = read_once(self.reader.trees(), path, clock::boottime(), self.page_size);
        stats.filter(|it| it.cgroup_id == Some(id))
    }

    /// systemd-oomd has killed a container.
    fn tell_oomd(&self, owner: &Owner) {
        let Level::Container { uid, key, .. } = &owner.level else {
            return;
        };
        let time = WallTime::from_epoch(clock::wall());
        let boottime_ns = u64::try_from(clock::boottime().as_nanos()).unwrap_or(u64::MAX);
        let (kind, message) = (EventKind::Container, oomd::KILLED.to_owned());
        let event = Event {
            pod_uid: Some(uid.clone()),
            container_id: Some(key.id.clone()),
            ..Event::new(time, boottime_ns, kind, "KilledByOomd", message)
        };
        let named = self.kernel.index().names.name_event(&event);
        self.log.append(named.unwrap_or(event));
    }

    pub(super) fn is_idle(&self, container: CgroupId) -> bool {
        self.told().ends.is_idle(container)
    }

    /// What `look` finds of the processes of a container. One that comes meanwhile asks for another look. A container in
    /// which the first look finds nobody, and that has used CPU time, had a process before: it is read, if the kernel has
    /// no task in it either. In a PID namespace that this process does not see there may be some.
    pub(super) fn look<T>(
        &self,
        container: CgroupId,
        path: &CgroupPath,
        look: impl Fn() -> Option<T>,
    ) -> Option<T> {
        let is_first = self.told().ends.look(container);
        let mut found = look();
        if found.is_none()
            && is_first
            && cpu_time(self.reader.trees(), path).is_some_and(|it| it > 0)
            && let Some(stats) = self.read(container, path)
            && stats.n_tasks == Some(0)
        {
            // It may be that of one that has come since.
            found = look();
            if found.is_none() {
                self.told().ends.was_emptied(container, stats);
            }
        }
        if found.is_some() {
            self.told().ends.entered(container);
        }
        found
    }

    fn gone(&self, id: CgroupId) {
        // One that a walk has missed has ended already.
        let Some(owner) = self.kernel.index_mut().retire(id) else {
            return;
        };
        self.kernel.kill_counts.end(id);
        self.show_end(id, &owner);
        if owner.level == Level::Kubepods {
            // It may be made again, which the kernel's filters leave out: it is another one.
            self.want_walk();
        }
        self.change();
    }

    /// Shows for a while what a container had used.
    fn show_end(&self, id: CgroupId, owner: &Owner) {
        let end = self.told().ends.end(id);
        let Level::Container { uid, qos, key } = &owner.level else {
            return;
        };
        let is_sandbox = self.kernel.index().names.known(uid, &key.id) == Some(&Known::Sandbox);
        if is_sandbox {
            return;
        }
        let oom_events = known::oom_events(self, uid, &key.id);
        let stats = match end {
            End::Read(stats) => *stats,
            End::Unread => {
                self.metrics.ended_left_out(EndedKind::Reading, 1);
                // Its kills are known all the same.
                if oom_events == 0 {
                    return;
                }
                CgroupStats::default()
            }
            End::Unused => return,
        };
        let known = self.readings.pod(uid);
        let mut containers = known.iter().flat_map(|it| &it.containers);
        let container = containers.find(|it| it.runtime_id == key.id);
        let (now, wall) = (clock::boottime(), clock::wall());
        let ended_at = WallTime::from_epoch(wall);
        let mut ended = EndedContainer {
            pod: match &known {
                Some(known) => Arc::clone(&known.pod),
                None => known::unnamed(uid),
            },
            qos: *qos,
            pod_cgroup: owner.path.parent().unwrap_or_else(|| owner.path.clone()),
            pod_started_at: known.as_ref().map_or(ended_at, |it| it.started_at),
            at: now,
            container: ContainerStats {
                name: String::new(),
                id: owner.path.to_string(),
                runtime_id: key.id.clone(),
                image: String::new(),
                started_at: container.and_then(|it| it.started_at),
                ended_at: Some(ended_at),
                restarts: 0,
                oom_events,
                stats,
                root_fs: DiskUse::default(),
                logs: DiskUse::default(),
                descriptors: None,
                limits: ProcessLimits::default(),
            },
        };
        if self.name_ended(&mut ended) {
            self.readings.add_ended(ended);
        }
    }

    /// Gives an instance that has ended the names that have come by now. False: it was a sandbox, of which nothing is
    /// shown.
    pub(super) fn name_ended(&self, ended: &mut EndedContainer) -> bool {
        let EndedContainer { pod, container, .. } = ended;
        if pod.has_name() && !container.name.is_empty() {
            return true;
        }
        let (named, known) = {
            let index = self.kernel.index();
            let known = index.names.known(&pod.uid, &container.runtime_id);
            (index.names.pod(&pod.uid).cloned(), known.cloned())
        };
        if let Some(named) = named {
            *pod = named;
        }
        match known {
            Some(Known::Sandbox) => return false,
            Some(Known::Container {
                name,
                attempt,
                image,
            }) => {
                container.name = name.to_string();
                container.restarts = attempt;
                container.image = image.as_deref().unwrap_or_default().to_owned();
                container.oom_events = known::oom_events(self, &pod.uid, &container.runtime_id);
            }
            None => {}
        }
        true
    }

    /// Reads the whole tree. What it finds is registered, what it misses retired. Gives what [`kube_tree::walk`] does.
    pub(super) fn walk(&self) -> Result<Vec<CgroupPath>, FsError> {
        // Who wants one from now on wants another.
        self.is_walk_wanted.store(false, Ordering::Relaxed);
        let walked = self.walk_once();
        if walked.is_err() {
            self.is_walk_wanted.store(true, Ordering::Relaxed);
        }
        self.is_known.store(walked.is_ok(), Ordering::Relaxed);
        walked
    }

    fn walk_once(&self) -> Result<Vec<CgroupPath>, FsError> {
        let place = self.place();
        let compared = self.kernel.kill_counts.compared();
        let before = self.kernel.index().known();
        let (mut found, mut without_uid) = (Vec::new(), Vec::new());
        for root in place.iter().flat_map(|it| &it.roots) {
            let left_out = kube_tree::walk(self.reader.trees(), root, &mut |id, owner| {
                found.push((id, owner));
            })?;
            without_uid.extend(left_out);
        }
        let new: Vec<(CgroupId, Arc<Owner>)> = found
            .iter()
            .filter(|(id, _)| !before.live.contains(id))
            .map(|(id, owner)| (*id, Arc::new(owner.clone())))
            .collect();
        let gone = self.kernel.index_mut().walked(&before, found);
        // What is counted already may be told at once, of whom the index knows.
        for (id, owner) in &new {
            self.count_kills_of(*id, owner, Origin::Found);
        }
        new.iter().for_each(|(_, owner)| self.ask_for(owner));
        for (id, owner) in gone {
            self.kernel.kill_counts.lose(id);
            self.show_end(id, &owner);
        }
        if !new.is_empty() {
            self.is_grown.store(true, Ordering::Relaxed);
        }
        // One may have been noted after its end was handled.
        let live = self.kernel.index().known().live;
        self.told().ends.forget_gone(&live);
        for ended in compared.difference(&live) {
            self.kernel.kill_counts.lose(*ended);
        }
        Ok(without_uid)
    }

    /// See [`Locate`](crate::run::kernel::Locate): what is misplaced, what kubelet had made before it was told another
    /// driver, and the first that it makes, before the loop has found where the pods lie. `configured`: as of
    /// [`Place::find`].
    pub(super) fn locate(&self, id: CgroupId, configured: &[CgroupPath]) -> Option<CgroupLineage> {
        let roots = match self.place() {
            Some(place) => place.roots.clone(),
            None => {
                Place::find(&Root::host(), &self.reader, configured, None)
                    .ok()??
                    .roots
            }
        };
        let located = match kube_tree::locate(self.reader.trees(), &roots, id) {
            Ok(located) => located?,
            Err(error) => {
                // Without the capability no cgroup can be found so; `check` says what that means.
                if error.errno() != Some(nix::libc::EPERM) {
                    let error = crate::observe::chain(&error);
                    tracing::warn!(error, "look for a cgroup that a kill speaks of");
                }
                return None;
            }
        };
        for (id, owner) in located.owners {
            if self.kernel.index().get(id).is_none() {
                self.kernel.index_mut().insert(id, owner.clone());
                // Whom the kill speaks of was in it.
                self.entered(id);
                self.count_kills_of(id, &owner, Origin::Found);
                self.ask_for(&owner);
                self.is_grown.store(true, Ordering::Relaxed);
                self.want_walk();
            }
        }
        Some(located.lineage)
    }

    fn count_kills_of(&self, id: CgroupId, owner: &Owner, origin: Origin) {
        let counts = &self.kernel.kill_counts;
        counts.count_kills_of(id, &owner.path, &owner.level, origin);
    }

    pub(super) fn want_walk(&self) {
        self.is_walk_wanted.store(true, Ordering::Relaxed);
        self.bell.ring();
    }

    fn change(&self) {
        if !self.is_changed.swap(true, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::sys::scratch::Scratch;
    use crate::sys::{Dir, Tree, Trees};

    /// On a node whose pods nobody has found.
    fn tree(trees: Vec<Tree>) -> KubeTree {
        let trees = Trees {
            unified: true,
            trees,
        };
        let reader = CgroupReader::new(Arc::new(trees), BTreeSet::new(), 4096);
        let bell = Bell::new().expect("a descriptor");
        KubeTree::new(
            reader,
            Arc::default(),
            Arc::default(),
            Metrics::default(),
            4096,
            bell,
            EventLog::begin(Duration::ZERO),
        )
    }

    /// Kills are compared with the kernel's counts, and cgroups looked for.
    #[test]
    fn what_lost_events_may_have_told_is_looked_at() {
        for (stream, is_looked_at) in [
            (Stream::Oom, true),
            (Stream::Cgroup, true),
            (Stream::Process, false),
            (Stream::Stall, false),
        ] {
            let tree = tree(Vec::new());
            assert!(!tree.is_walk_wanted() && !tree.readings.is_asked());
            assert!(tree.hear(News::Lost(stream)), "it is not told again");
            let found = [
                tree.is_walk_wanted(),
                tree.readings.is_asked(),
                tree.bell.was_rung(),
            ];
            assert_eq!(found, [is_looked_at; 3], "{stream:?}");
            tree.walk().expect("there is nothing to read");
            assert!(!tree.is_walk_wanted(), "one walk is enough: {stream:?}");
        }
    }

    #[test]
    fn a_container_whose_last_process_ended_before_the_first_look_has_a_last_reading() {
        const RAN: &str = "usage_usec 7\n";
        let scratch = Scratch::new("looked-at");
        let root = Root::at(scratch.directory());
        root.create_dir_all("app").expect("a directory");
        for (file, text) in [("memory.current", "1\n"), ("memory.stat", "anon 1\n")] {
            scratch.write(format!("app/{file}"), text);
        }
        let dir = Dir::open(&scratch.path("app")).expect("it is there");
        let (id, path) = (
            CgroupId(dir.inode()),
            CgroupPath::new("/app").expect("a path"),
        );
        let read = Err(Some(7_000));
        for (what, usage, n_tasks, looks, end) in [
            ("it had run", RAN, "0\n", [None, None], read),
            (
                "it had not",
                "usage_usec 0\n",
                "0\n",
                [None, None],
                Ok("unused"),
            ),
            ("nobody counts", "", "0\n", [None, None], Ok("unused")),
            ("it runs unseen", RAN, "1\n", [None, None], Ok("unused")),
            ("it runs", RAN, "1\n", [Some(1), None], Ok("unread")),
            (
                "it has begun since",
                RAN,
                "0\n",
                [None, Some(1)],
                Ok("unread"),
            ),
        ] {
            scratch.write("app/cpu.stat", usage);
            scratch.write("app/pids.current", n_tasks);
            let at_mount = Tree::open(BTreeSet::new(), scratch.directory());
            let tree = tree(vec![at_mount.expect("a directory")]);
            let n_looks = Cell::new(0);
            let look = || {
                let n = n_looks.replace(n_looks.get() + 1);
                looks.get(n).copied().flatten()
            };
            tree.look(id, &path, look);
            let found = match tree.told().ends.end(id) {
                End::Unused => Ok("unused"),
                End::Unread => Ok("unread"),
                End::Read(stats) => Err(stats.cpu.usage_ns),
            };
            assert_eq!(found, end, "{what}");
        }
    }
}
