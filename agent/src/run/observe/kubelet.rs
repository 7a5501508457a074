//! What the kubelet of the node is run by: its command line and its files, as the process itself has them.
//!
//! It reads them once, when it starts. So they are read again when another kubelet runs, and what was written since
//! is told.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Loop;
use super::place::{Place, PlaceError};
use crate::check::{no_thresholds, settings_changed};
use crate::config::{
    ConfigError, DEFAULT_ROOT_DIRECTORY, KubeletConfig, KubeletFlags, KubeletSettings,
    ObserveConfig, is_drop_in,
};
use crate::model::cgroup_path::CgroupPath;
use crate::model::status::KubeletStatus;
use crate::model::time::WallTime;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::kubelet_process::{self, KubeletFiles, KubeletProcess};
use crate::sys::{FsError, Root};

/// Between two looks.
pub(super) const KUBELET_GAP: Duration = Duration::from_secs(10);

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
}

/// Why nobody knows what it is run by.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum KubeletError {
    #[error("no kubelet runs")]
    Absent,
    #[error("the kubelet inside {name} (pid {pid}) does not tell on its command line")]
    Within { name: String, pid: u32 },
    #[error("the kubelet that runs (pid {0}) has its pods elsewhere")]
    Elsewhere(u32),
    #[error("more than one kubelet may have these pods (pid {})", in_words(.0))]
    Several(Vec<u32>),
    #[error("read what kubelet (pid {pid}) was told: {why}")]
    Unreadable { pid: u32, why: String },
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error(transparent)]
    Parse(#[from] ConfigError),
}

fn in_words(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    pids.join(", ")
}

impl Kubelet {
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
        self.status.changed = match read(root, self.process.clone(), observe) {
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
        let (plain, others): (Vec<_>, Vec<_>) = all.into_iter().partition(KubeletProcess::is_plain);
        let plain = plain.into_iter().map(|process| {
            let pid = process.pid;
            read(root, process, observe).map_err(|error| KubeletError::Unreadable {
                pid,
                why: crate::observe::chain(&error),
            })
        });
        let plain: Vec<_> = plain.collect();
        let within = others.into_iter().take(usize::from(plain.is_empty()));
        let within =
            within.map(|KubeletProcess { name, pid, .. }| Err(KubeletError::Within { name, pid }));
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
            let is_it = |pods| it.roots().contains(pods) && !it.process.has_own_cgroups(root);
            pods.is_none_or(is_it)
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
    let flags = KubeletFlags::parse(&arguments);
    let files = process.files(root)?;
    let mut read = Read::default();
    let file = match &flags.config_file {
        Some(path) => Some(read.file(&files, path)?),
        None => None,
    };
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
    let changed = changed.filter(|(_, modified)| *modified > started_at + READING);
    let status = KubeletStatus {
        pid: process.pid,
        started_at: wall(started_at),
        files: read.files.iter().map(|(path, _)| text(path)).collect(),
        flags: flags.fields.keys().cloned().collect(),
        changed: changed.map(|(path, _)| text(path)).collect(),
    };
    Ok(Kubelet {
        process,
        arguments,
        settings,
        root_directory: files.path(root_directory),
        status,
    })
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
            && kubelet.look_again(&root, &self.settings)
        {
            return;
        }
        let place = self.tree.place();
        let pods = place.as_ref().map(|it| &it.root);
        let found = Kubelet::find(&root, &self.settings, pods);
        // One that is restarted goes by what it went by, until the next one is there.
        if self.kubelet.is_ok() && matches!(found, Err(KubeletError::Absent)) {
            return;
        }
        self.kubelet = found.map_err(|error| crate::observe::chain(&error));
        self.placement.is_behind = true;
        self.tell_kubelet();
        let kubelet = self.kubelet_config().clone();
        if let Some(pressure) = &mut self.pressure {
            pressure.set_thresholds(&kubelet);
        }
    }

    pub(super) fn tell_kubelet(&self) {
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
                settings, status, ..
            }) => {
                let changed = (!status.changed.is_empty()).then(|| {
                    let changed = settings_changed(status);
                    format!("kubelet may go by other settings than are shown: {changed}")
                });
                settings.warnings.iter().cloned().chain(changed).collect()
            }
            Err(_) if self.settings.knows_thresholds => Vec::new(),
            Err(why) => vec![no_thresholds(why)],
        }
    }
}

/// Where the pods of the node lie: by the agent's configuration, else by that of the kubelet that was found, else by
/// looking around. What kubelet says may be of a cgroup namespace of its own.
pub(super) fn find_pods(
    root: &Root,
    reader: &CgroupReader,
    observe: &ObserveConfig,
    kubelet: Option<&Kubelet>,
) -> Result<Option<Place>, PlaceError> {
    let configured = &observe.cgroup_roots;
    if let Some(kubelet) = kubelet.filter(|_| configured.is_empty())
        && let Ok(Some(place)) = Place::find(root, reader, &kubelet.roots())
    {
        return Ok(Some(place));
    }
    Place::find(root, reader, configured)
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the tests make the files that are read; a failed fixture fails the test"
)]
pub(super) mod tests;
