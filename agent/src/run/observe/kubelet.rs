//! What the kubelet of the node is run by: its command line and its files, as the process itself has them.
//!
//! It reads them once, when it starts. So they are read again when another kubelet runs, and what was written since
//! is told.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::place::{Place, PlaceError};
use super::pods::PodSource;
use super::{Loop, pods};
use crate::api_server::{self, FindKubelet, KubeletServer};
use crate::check::{no_thresholds, settings_changed};
use crate::config::{
    ConfigError, DEFAULT_EDGECORE_FILE, DEFAULT_ROOT_DIRECTORY, EdgeCore, KubeletConfig,
    KubeletFlags, KubeletSettings, ObserveConfig, Serving, is_drop_in,
};
use crate::cri;
use crate::model::api_server::ToldSettings;
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::kubelet_state::POD_RESOURCES_SOCKET;
use crate::model::status::KubeletStatus;
use crate::model::time::WallTime;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::kubelet_process::{self, KubeletFiles, KubeletProcess, Program};
use crate::sys::input::MAX_CONFIG_BYTES;
use crate::sys::{FsError, Root, clock};

/// What the DaemonSet has from the downward API, by custom: `status.hostIP`.
const HOST_IP: &str = "HOST_IP";

/// What MicroShift writes for its kubelet (pkg/config/files.go, pkg/node/kubelet.go, 4.20).
const MICROSHIFT_FILE: &str = "/var/lib/microshift/resources/kubelet/config/config.yaml";

/// Between two looks.
const KUBELET_GAP: Duration = Duration::from_secs(10);

/// A kubelet inside another program answers so long after that has started, at the latest.
const STARTING: Duration = Duration::from_secs(60);

/// A file that was written within this time after its start was read, as far as can be told: its start is known to a
/// clock tick, and it reads its files some time after it.
const READING: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Kubelet {
    process: KubeletProcess,
    arguments: Vec<String>,
    pub(super) settings: KubeletSettings,
    /// Of its state, as it has it.
    pub(super) root_directory: PathBuf,
    pub(super) status: KubeletStatus,
    /// It does not run any more, and no other is there.
    is_gone: bool,
}

/// Why nobody knows what it is run by.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum KubeletError {
    #[error("no kubelet runs")]
    Absent,
    #[error("the kubelet inside {} (pid {}) does not tell on its command line", .0.name, .0.pid)]
    Within(KubeletProcess),
    #[error("the kubelet that runs (pid {0}) has its pods elsewhere")]
    Elsewhere(u32),
    #[error("more than one kubelet may have these pods (pid {})", in_words(.0))]
    Several(Vec<u32>),
    #[error("read what kubelet (pid {pid}) was told: {why}")]
    Unreadable { pid: u32, why: String },
    #[error("it is not asked")]
    NotAsked,
}

/// Why it cannot be asked.
#[derive(Debug, thiserror::Error)]
enum UnreachedError {
    #[error(transparent)]
    Kubelet(#[from] KubeletError),
    #[error(
        "kubelet (pid {0}) is on another network than the agent, and the environment has no {HOST_IP} that is the \
         address of the node; right would be status.hostIP of the downward API"
    )]
    OtherNetwork(u32),
    #[error(
        "kubelet (pid {pid}) listens on {address} alone, which is on another network than the agent; right would be an \
         address of the node (address), or hostNetwork for the agent"
    )]
    OtherLoopback { pid: u32, address: IpAddr },
    #[error(
        "who is called kubelet (pid {0}) has namespaces of its own, or which it has cannot be read: it may be a \
         container, and gets no credentials"
    )]
    NotOfNode(u32),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error(transparent)]
    Parse(#[from] ConfigError),
}

/// It was asked for its settings, and did not tell them.
#[derive(Debug)]
pub(super) struct Untold {
    why: String,
    /// Boottime of the first of these answers in a row.
    since: Duration,
}

/// `untold`: why it does not tell what it was asked.
fn in_full(error: &KubeletError, untold: Option<&str>) -> String {
    match (error, untold) {
        (KubeletError::Within(_), Some(why)) => format!("{error}, and was asked: {why}"),
        _ => crate::observe::chain(error),
    }
}

/// The kubelet whose pods lie below `pods`, once it has been asked, if it is one that has to be asked and somebody can
/// ask it.
pub(super) fn once_asked(
    root: &Root,
    observe: &ObserveConfig,
    pods: Option<CgroupPath>,
) -> Result<Kubelet, String> {
    let process = match Kubelet::find(root, observe, pods.as_ref()) {
        Err(KubeletError::Within(process)) => process,
        found => return found.map_err(|it| crate::observe::chain(&it)),
    };
    let error = KubeletError::Within(process.clone());
    let Ok(PodSource::Asked(settings)) = pods::source(observe) else {
        return Err(error.to_string());
    };
    let find = finder(observe.clone(), move || pods.clone());
    let told = match api_server::kubelet_settings(&settings, find) {
        Ok(told) => told,
        Err(error) => Err(error.to_string()),
    };
    let told = told.map_err(|why| in_full(&error, Some(&why)))?;
    let asked = Kubelet::asked(root, process, told, observe);
    asked.map_err(|it| crate::observe::chain(&it))
}

fn in_words(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    pids.join(", ")
}

impl Kubelet {
    /// One that does not tell on its command line, and has been asked.
    fn asked(
        root: &Root,
        process: KubeletProcess,
        told: ToldSettings,
        observe: &ObserveConfig,
    ) -> Result<Self, FsError> {
        Ok(Self {
            is_gone: false,
            arguments: process.arguments(root)?,
            settings: KubeletSettings::told(&told.fields, &observe.kubelet_section),
            // It does not say whether it was told another one.
            root_directory: PathBuf::from(DEFAULT_ROOT_DIRECTORY),
            status: KubeletStatus {
                pid: process.pid,
                started_at: wall(process.started_at()),
                asked: Some(told.url),
                files: Vec::new(),
                flags: Vec::new(),
                changed: Vec::new(),
            },
            process,
        })
    }

    /// See [`Kubelets`].
    pub(super) fn find(
        root: &Root,
        observe: &ObserveConfig,
        pods: Option<&CgroupPath>,
    ) -> Result<Self, KubeletError> {
        Kubelets::read(root, observe).choose(root, pods)
    }

    /// It goes on as it was started; which of its files were written since is looked up. False: it is another program
    /// by now.
    fn look_again(&mut self, root: &Root, observe: &ObserveConfig) -> bool {
        let arguments = self.process.arguments(root);
        if !arguments.is_ok_and(|it| it == self.arguments) {
            return false;
        }
        if self.status.asked.is_some() {
            return true;
        }
        self.status.changed = match read(root, self.process.clone(), observe) {
            // It had yet to write its file.
            Ok(now)
                if self.process.program == Program::MicroShift && now.settings != self.settings =>
            {
                return false;
            }
            Ok(now) => now.status.changed,
            // They were there, and could be parsed.
            Err(_) => self.status.files.clone(),
        };
        true
    }

    pub(super) fn is_there(&self, root: &Root) -> bool {
        self.process.is_there(root)
    }

    /// Its files, as it has them now.
    pub(super) fn files(&self, root: &Root) -> Result<KubeletFiles, FsError> {
        self.process.files(root)
    }

    /// What it may serve by, with what else is in its files; `Err`: why that is not known.
    fn certificates(&self, root: &Root) -> Result<Vec<u8>, String> {
        let files = self.files(root).map_err(|it| crate::observe::chain(&it))?;
        let (mut found, mut why) = (Vec::new(), None);
        for path in &self.settings.serving.certificate_files {
            match files.bytes(path, MAX_CONFIG_BYTES) {
                Ok(bytes) => {
                    found.extend(bytes);
                    // The end of the last line.
                    found.push(b'\n');
                }
                Err(error) => why = Some(crate::observe::chain(&error)),
            }
        }
        match (found.is_empty(), why) {
            (true, Some(why)) => Err(why),
            _ => Ok(found),
        }
    }

    /// Where it serves the pod resources API (pkg/kubelet/kubelet_getters.go, v1.36: `getPodResourcesDir`).
    pub(super) fn pod_resources(&self, root: &Root) -> Result<OwnedFd, FsError> {
        let socket = self.root_directory.join(POD_RESOURCES_SOCKET);
        self.files(root)?.socket(&socket)
    }

    /// It has started a moment ago, and its pods do not lie below `pods`, the root of the tree that is followed: it has
    /// yet to make their cgroup.
    fn is_beginning(&self, root: &Root, pods: Option<&CgroupPath>, now: Duration) -> bool {
        let is_new = now < self.process.since_boot() + STARTING;
        let is_its = |pods: &CgroupPath| {
            let roots = self.roots();
            match self.process.has_cgroups_of_the_node(root) {
                true => roots.contains(pods),
                false => roots.iter().any(|it| is_end_of(it, pods)),
            }
        };
        is_new && !pods.is_some_and(is_its)
    }

    /// `cgroupRoot` as either driver has it on disk.
    fn roots(&self) -> Vec<CgroupPath> {
        match self.settings.cgroup_roots.as_slice() {
            [] => vec![CgroupPath::root()],
            roots => roots.to_vec(),
        }
    }
}

/// Those of the node, as they were at one moment.
pub(super) struct Kubelets(Vec<Result<Kubelet, KubeletError>>);

impl Kubelets {
    pub(super) fn read(root: &Root, observe: &ObserveConfig) -> Self {
        let all = kubelet_process::find(root);
        let (plain, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(KubeletProcess::has_settings);
        let plain = plain.into_iter().map(|process| {
            let pid = process.pid;
            read(root, process, observe).map_err(|error| KubeletError::Unreadable {
                pid,
                why: crate::observe::chain(&error),
            })
        });
        let plain: Vec<_> = plain.collect();
        // One in a container is another node's.
        let mut others = others;
        others.sort_by_key(|it| !it.is_of_the_node(root));
        let within = others.into_iter().take(usize::from(plain.is_empty()));
        let within = within.map(|process| Err(KubeletError::Within(process)));
        Self(plain.into_iter().chain(within).collect())
    }

    /// The one whose pods lie below `pods`, the root of the tree; `None`: that is not known. The cgroup namespace of a
    /// kubelet may begin below that of the agent: then its root is the end of what the agent sees.
    pub(super) fn choose(
        &self,
        root: &Root,
        pods: Option<&CgroupPath>,
    ) -> Result<Kubelet, KubeletError> {
        let is_exact = |it: &Kubelet| {
            let sees_it_so = || it.process.has_cgroups_of_the_node(root);
            pods.is_none_or(|pods| it.roots().contains(pods) && sees_it_so())
        };
        let is_end = |it: &Kubelet| {
            let ends = |pods: &CgroupPath| it.roots().iter().any(|root| is_end_of(root, pods));
            pods.is_some_and(ends)
        };
        let known = || self.0.iter().filter_map(|it| it.as_ref().ok());
        let mut meant: Vec<&Kubelet> = known().filter(|it| is_exact(it)).collect();
        if meant.is_empty() {
            meant = known().filter(|it| is_end(it)).collect();
        }
        let fault = self.0.iter().find_map(|it| it.as_ref().err());
        match (meant.as_slice(), fault) {
            ([_, _, ..], _) => {
                let pids = meant.iter().map(|it| it.process.pid);
                Err(KubeletError::Several(pids.collect()))
            }
            // One that cannot be read may be the one that is meant, if nothing tells them apart.
            ([kubelet], fault) if fault.is_none() || pods.is_some() => Ok((*kubelet).clone()),
            (_, Some(fault)) => Err(fault.clone()),
            (_, None) => Err(match known().next() {
                Some(kubelet) => KubeletError::Elsewhere(kubelet.process.pid),
                None => KubeletError::Absent,
            }),
        }
    }
}

/// That of the kubelet's runtime, if there is one kubelet, and it tells; else those that runtimes have by default. The
/// runtime of the program that the kubelet is in comes first: another one beside it knows nobody.
pub(super) fn runtime_sockets(root: &Root, observe: &ObserveConfig) -> Vec<PathBuf> {
    // Whatever files are named for its other settings.
    if let Ok(kubelet) = Kubelet::find(root, observe, None)
        && let Some(socket) = kubelet.settings.runtime_socket
    {
        return vec![socket];
    }
    let programs = kubelet_process::find(root);
    let of_node = programs.iter().filter(|it| it.is_of_the_node(root));
    let own = of_node.flat_map(KubeletProcess::sockets_of_its_own);
    let mut sockets: Vec<PathBuf> = own.map(PathBuf::from).collect();
    for known in cri::known_sockets() {
        if !sockets.contains(&known) {
            sockets.push(known);
        }
    }
    sockets
}

/// Looks up how the kubelet is asked whose pods lie below `pods`, the root of the tree, as far as that is known.
pub(super) fn finder(
    observe: ObserveConfig,
    pods: impl Fn() -> Option<CgroupPath> + Send + Sync + 'static,
) -> FindKubelet {
    Arc::new(move || {
        let found = server(&Root::host(), &observe, pods().as_ref(), || {
            pods::of_pod(HOST_IP)
        });
        found.map_err(|it| crate::observe::chain(&it))
    })
}

/// `host_ip`: what the environment says of the address of the node.
fn server(
    root: &Root,
    observe: &ObserveConfig,
    pods: Option<&CgroupPath>,
    host_ip: impl Fn() -> Option<String>,
) -> Result<KubeletServer, UnreachedError> {
    let (process, serving, certificates) = match Kubelet::find(root, observe, pods) {
        Ok(kubelet) => {
            let certificates = kubelet.certificates(root);
            (kubelet.process, kubelet.settings.serving, certificates)
        }
        // Where it listens is what all of them do.
        Err(KubeletError::Within(process)) => {
            let why = "where kubelet has it is not known".to_owned();
            (process, Serving::default(), Err(why))
        }
        Err(error) => return Err(error.into()),
    };
    let pid = process.pid;
    if !process.is_of_the_node(root) {
        return Err(UnreachedError::NotOfNode(pid));
    }
    let network = |of: &str| root.read_link(format!("/proc/{of}/ns/net")).ok();
    let is_here = network("self") == network(&pid.to_string());
    let address = match serving.address {
        Some(address) if address.is_loopback() && !is_here => {
            return Err(UnreachedError::OtherLoopback { pid, address });
        }
        Some(address) => address,
        None if is_here => Ipv4Addr::LOCALHOST.into(),
        None => {
            let told = host_ip().and_then(|it| it.parse::<IpAddr>().ok());
            told.ok_or(UnreachedError::OtherNetwork(pid))?
        }
    };
    Ok(KubeletServer {
        address: SocketAddr::new(address, serving.port),
        certificates,
    })
}

/// All that lies anywhere ends with the root itself.
fn is_end_of(root: &CgroupPath, pods: &CgroupPath) -> bool {
    *root == CgroupPath::root() || pods.as_str().ends_with(root.as_str())
}

fn read(
    root: &Root,
    process: KubeletProcess,
    observe: &ObserveConfig,
) -> Result<Kubelet, ReadError> {
    let arguments = process.arguments(root)?;
    let mut flags = flags(process.program, &arguments);
    let files = process.files(root)?;
    let mut read = Read::default();
    let mut file = match &flags.config_file {
        Some(path) => Some(read.file(&files, path)?),
        None => None,
    };
    if process.program == Program::EdgeCore
        && let Some((path, text)) = &mut file
    {
        let inside = EdgeCore::parse(path, text)?;
        flags.root_directory = inside.root_directory;
        *text = inside.kubelet;
    }
    let mut drop_ins = Vec::new();
    if let Some(directory) = &flags.config_directory {
        let (found, modified) = files.find(directory, is_drop_in)?;
        for path in found {
            drop_ins.push(read.file(&files, &path)?);
        }
        read.directory = modified.map(|it| (files.path(directory), it));
    }
    let file = file.as_ref();
    let file = file.map(|(path, text)| (path.as_path(), text.as_str()));
    let settings = KubeletSettings::new(file, &drop_ins, &flags, &observe.kubelet_section)?;
    let started_at = process.started_at();
    let root_directory = flags.root_directory.as_deref();
    let root_directory = root_directory.unwrap_or(Path::new(DEFAULT_ROOT_DIRECTORY));
    let text = |it: &PathBuf| it.display().to_string();
    let changed = read.files.iter().chain(&read.directory);
    let changed = changed.filter(|(_, modified)| {
        process.program != Program::MicroShift && *modified > started_at + READING
    });
    let status = KubeletStatus {
        pid: process.pid,
        started_at: wall(started_at),
        asked: None,
        files: read.files.iter().map(|(path, _)| text(path)).collect(),
        flags: flags.fields.keys().cloned().collect(),
        changed: changed.map(|(path, _)| text(path)).collect(),
    };
    Ok(Kubelet {
        is_gone: false,
        process,
        arguments,
        settings,
        root_directory: files.path(root_directory),
        status,
    })
}

/// What its command line says. That of another program says of its kubelet where its file is, at most.
fn flags(program: Program, arguments: &[String]) -> KubeletFlags {
    let flags = KubeletFlags::parse(arguments);
    let file = match program {
        Program::Kubelet | Program::Other => return flags,
        Program::MicroShift => MICROSHIFT_FILE.into(),
        Program::EdgeCore => {
            let file = flags.config_file;
            file.unwrap_or_else(|| DEFAULT_EDGECORE_FILE.into())
        }
    };
    KubeletFlags {
        config_file: Some(file),
        ..KubeletFlags::default()
    }
}

fn wall(at: SystemTime) -> WallTime {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    WallTime::from_epoch(since.unwrap_or_default())
}

/// Which files were read, and when each was written.
#[derive(Default)]
struct Read {
    files: Vec<(PathBuf, SystemTime)>,
    /// The same of the directory of drop-ins.
    directory: Option<(PathBuf, SystemTime)>,
}

impl Read {
    fn file(&mut self, files: &KubeletFiles, path: &Path) -> Result<(PathBuf, String), FsError> {
        let found = files.text(path)?;
        let path = files.path(path);
        self.files.push((path.clone(), found.modified));
        Ok((path, found.text))
    }
}

impl Loop {
    /// What kubelet goes by, as far as is known.
    pub(super) fn kubelet_config(&self) -> &KubeletConfig {
        match &self.kubelet {
            Ok(found) => &found.settings.kubelet,
            Err(_) => &self.config.kubelet,
        }
    }

    /// Another one may run since, or its files may have been written.
    pub(super) fn look_for_kubelet(&mut self, now: Duration) {
        if !self.settings.asks_kubelet || now < self.kubelet_due {
            return;
        }
        self.kubelet_due = now + KUBELET_GAP;
        let root = Root::host();
        if let Ok(kubelet) = &mut self.kubelet
            && kubelet.is_there(&root)
        {
            self.kubelet_seen = Some(now);
            if kubelet.look_again(&root, &self.settings) {
                return;
            }
        }
        let found = self.find_kubelet(&root);
        if let (Err(KubeletError::Within(_)), Some(asker)) = (&found, &self.settings_asker) {
            asker.ask();
        }
        // One that is restarted goes by what it went by, until the next one is there, and has said what it goes by.
        let may_tell = match &found {
            Err(KubeletError::Absent) => true,
            Err(KubeletError::Within(_)) => {
                let untold = self.untold.as_ref();
                let may_tell = untold.is_none_or(|it| now < it.since + STARTING);
                may_tell && self.settings_asker.is_some()
            }
            _ => false,
        };
        match &mut self.kubelet {
            Ok(kubelet) if may_tell => kubelet.is_gone = true,
            _ => self.set_kubelet(found),
        }
    }

    /// What a kubelet has said that does not tell on its command line.
    pub(super) fn take_kubelet_settings(&mut self, now: Duration) {
        let Some(told) = self.tree.take_settings() else {
            return;
        };
        let root = Root::host();
        // Another one may run by now.
        let found = self.find_kubelet(&root);
        let Err(KubeletError::Within(process)) = found else {
            return;
        };
        match told {
            Ok(told) => {
                self.untold = None;
                if let Ok(kubelet) = Kubelet::asked(&root, process, told, &self.settings) {
                    self.set_kubelet(Ok(kubelet));
                }
            }
            Err(why) => {
                let since = self.untold.as_ref().map_or(now, |it| it.since);
                self.untold = Some(Untold { why, since });
                if self.kubelet.is_err() {
                    self.set_kubelet(Err(KubeletError::Within(process)));
                }
            }
        }
    }

    /// The one of the tree that is followed; or one that came after it and was told another `cgroupRoot`.
    fn find_kubelet(&self, root: &Root) -> Result<Kubelet, KubeletError> {
        let place = self.tree.place();
        let pods = place.as_ref().map(|it| &it.root);
        let all = Kubelets::read(root, &self.settings);
        let elsewhere = match all.choose(root, pods) {
            Err(error @ KubeletError::Elsewhere(_)) if self.settings.cgroup_roots.is_empty() => {
                error
            }
            found => return found,
        };
        let is_next = |it: &Kubelet| {
            let since = it.process.since_boot();
            self.kubelet_seen.is_none_or(|seen| seen < since)
                && it.process.has_cgroups_of_the_node(root)
        };
        let other = all.choose(root, None).ok();
        other.filter(is_next).ok_or(elsewhere)
    }

    /// The place that is followed is not that of the kubelet that has just started.
    pub(super) fn waits_for_pods(&self) -> bool {
        let place = self.tree.place();
        let pods = place.as_ref().map(|it| &it.root);
        let kubelet = self.kubelet.as_ref().ok();
        let kubelet = kubelet.filter(|_| self.settings.cgroup_roots.is_empty());
        kubelet.is_some_and(|it| it.is_beginning(&Root::host(), pods, clock::boottime()))
    }

    fn set_kubelet(&mut self, found: Result<Kubelet, KubeletError>) {
        if found.is_ok() {
            self.kubelet_seen = Some(clock::boottime());
            // Its pods may lie elsewhere.
            self.tree.want_walk();
        }
        let untold = self.untold.as_ref().map(|it| it.why.as_str());
        self.kubelet = found.map_err(|error| in_full(&error, untold));
        self.placement.begin_anew();
        self.look_at_nodefs();
        self.publisher.changed(clock::boottime());
        self.tell_kubelet();
        let kubelet = self.kubelet_config().clone();
        if let Some(pressure) = &mut self.pressure {
            pressure.set_thresholds(&kubelet);
        }
    }

    pub(super) fn tell_kubelet(&self) {
        let kubelet = self.kubelet.as_ref().ok();
        let socket = kubelet.and_then(|it| it.settings.runtime_socket.clone());
        self.tree.set_runtime_socket(socket);
        if let Ok(Kubelet {
            settings, status, ..
        }) = &self.kubelet
        {
            self.told.agent("KubeletFound", status.to_string());
            for warning in &settings.warnings {
                self.told.node("KubeletSettings", warning.clone());
            }
        }
    }

    /// What is not known of its settings.
    pub(super) fn kubelet_warnings(&self) -> Vec<String> {
        match &self.kubelet {
            Ok(Kubelet {
                settings,
                status,
                is_gone,
                ..
            }) => {
                let gone = is_gone.then(|| {
                    let pid = status.pid;
                    format!("kubelet (pid {pid}) does not run any more: shown is what it went by and has placed")
                });
                let changed = (!status.changed.is_empty()).then(|| {
                    let changed = settings_changed(status);
                    format!("kubelet may go by other settings than are shown: {changed}")
                });
                let warnings = settings.warnings.iter().cloned();
                warnings.chain(gone).chain(changed).collect()
            }
            Err(_) if self.settings.knows_thresholds => Vec::new(),
            Err(why) => vec![no_thresholds(why)],
        }
    }
}

/// Where the pods of the node lie: by the agent's configuration, else by that of the kubelet that was found, else by
/// looking around. What kubelet says may be of a cgroup namespace of its own. `before`: as of [`Place::find`].
pub(super) fn find_pods(
    root: &Root,
    reader: &CgroupReader,
    observe: &ObserveConfig,
    kubelet: Option<&Kubelet>,
    before: Option<CgroupId>,
) -> Result<Option<Place>, PlaceError> {
    let configured = &observe.cgroup_roots;
    if let Some(kubelet) = kubelet.filter(|_| configured.is_empty())
        && let Ok(Some(place)) = Place::find(root, reader, &kubelet.roots(), before)
    {
        return Ok(Some(place));
    }
    Place::find(root, reader, configured, before)
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests make the files that are read; a failed fixture fails the test"
)]
pub(super) mod tests;
