//! Pods from a directory of manifests: v1.Pod documents in YAML or JSON, watched and read again
//! when they change. In: files. Out: a [`ManifestScan`], all that the directory defines now.
//!
//! A fault never ends a pod. What cannot be read is reported, and what it defined before stays:
//! - a file with a fault keeps the pods of its last good version that the new one does not define;
//! - a file that became empty counts as half written, and so does one that was never seen otherwise;
//! - of two definitions of one pod the one that was there first counts;
//! - a directory that cannot be listed keeps everything.
//!
//! An object of another kind, as a Service beside its pod, is told and no fault.
//!
//! Pods go when their document goes from a file without faults, or when their file goes. That a file
//! is gone is believed of a directory that holds still: a listing made while a file is renamed may
//! have neither name.
//!
//! Deliberate absences: no state on disk, so what a file defined before the agent started is not
//! known ([`ManifestScan::is_complete`]).

mod parse;
mod patient;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use self::patient::PatientDirectory;
use crate::model::pod::fields::Because;
use crate::model::pod::node_requirements::Protocol;
use crate::model::pod::{Pod, PodUid, ResourceList, Weight};
use crate::sys::regular::{self, Contents, FileVersion, Kind};
use crate::sys::{FsError, Root, chain};

/// Of one file. A pod's manifest has a few kilobytes, and etcd takes no object above 1.5 MiB.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// In one directory: four times the pods that Kubernetes supports on a node, one file each.
pub const MAX_FILES: usize = 1_000;
/// In one file.
pub const MAX_DOCUMENTS: usize = 1_000;
/// In one file, in whatever documents and lists.
pub const MAX_PODS: usize = 1_000;

/// Looks at a directory in which something is missing, until it holds still. Arbitrary: together a
/// tenth of a second of the caller's time.
const LOOKS: usize = 5;
/// Two ticks of the slowest clock that dates files: what changes after it has another date than what
/// changed before.
const TWO_TICKS: Duration = Duration::from_millis(20);

/// Endings of files that are read; kops and kube-up name them `.manifest`. Others are editors' backups, notes,
/// half-finished copies.
const ENDINGS: [&str; 4] = [".yaml", ".yml", ".json", ".manifest"];

/// A fault or a warning, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFault {
    pub file: PathBuf,
    /// Counted from 1, documents without content left out; `None` for a fault of the whole file.
    pub document: Option<usize>,
    /// `namespace/name`, where it could be read.
    pub pod: Option<String>,
    /// As `spec.containers[0].image`; with `items[N].` in front inside a list. Several, joined by commas, of a warning
    /// that is the same for all.
    pub field: Option<String>,
    /// No final dot. Lower case, but for a fault of a field: that begins as one of the API server.
    pub message: String,
    /// As of a [`FieldFault`](crate::model::pod::FieldFault).
    pub weight: Weight,
}

impl ManifestFault {
    fn of_file(file: PathBuf, message: impl Into<String>) -> Self {
        Self {
            file,
            document: None,
            pod: None,
            field: None,
            message: message.into(),
            weight: Weight::default(),
        }
    }

    /// What it says of its pod, or of its file.
    pub fn of_field(&self) -> String {
        match &self.field {
            Some(field) => format!("{field}: {}", self.message),
            None => self.message.clone(),
        }
    }
}

impl fmt::Display for ManifestFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if let Some(document) = self.document {
            write!(f, "document {document}: ")?;
        }
        if let Some(pod) = &self.pod {
            write!(f, "pod {pod}: ")?;
        }
        f.write_str(&self.of_field())
    }
}

/// Is told of each version of a file before it is parsed, and when that is over.
pub trait Witness: fmt::Debug + Send + Sync {
    /// False: it is to be left aside.
    fn begins(&self, thing: &str) -> bool;
    fn ends(&self);
}

/// What a directory defines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ManifestScan {
    /// Unique by UID and by namespace and name.
    pub pods: BTreeMap<PodUid, Arc<Pod>>,
    /// Of each of the pods.
    pub origins: BTreeMap<PodUid, Origin>,
    /// In the order of file names; stay from scan to scan until their cause is gone.
    pub faults: Vec<ManifestFault>,
    pub warnings: Vec<ManifestFault>,
    /// Files read, good or not.
    pub n_files: usize,
    /// False: something could not be read that this process has never read, so a pod of an earlier
    /// run that is missing here may still be wanted. True: it is not.
    pub is_complete: bool,
}

/// Where a pod is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its name in the directory.
    pub file: String,
    /// How many pods of the file are before it.
    pub place: usize,
    /// Of the definition, as written, where that names the UID: another one is still the same pod.
    pub digest: Option<String>,
}

/// How manifests are read.
#[derive(Clone, Debug, Default)]
struct Reading {
    node_name: Option<String>,
    believes_status: bool,
    leaves_out_pod_resources: bool,
    allocatable: Option<ResourceList>,
}

/// A directory of manifests and what is known of it.
#[derive(Debug)]
pub struct ManifestDirectory {
    path: PathBuf,
    reading: Reading,
    witness: Option<Arc<dyn Witness>>,
    files: BTreeMap<String, FileState>,
    /// Files that the last look missed.
    missing: BTreeMap<String, FileState>,
    /// What counted last, by `namespace/name`.
    accepted: BTreeMap<String, Accepted>,
    /// What an earlier agent has taken, by `namespace/name`, until all that there is has been read.
    running: BTreeMap<String, Running>,
    /// Files and the pods in them, `namespace/name`, of which another definition counted last.
    refused: BTreeSet<(String, String)>,
    /// The directory has been listed once.
    was_listed: bool,
    /// It has been listed once while it held still.
    was_still: bool,
}

/// One file: what it defines, and how that is known.
#[derive(Debug, Default)]
struct FileState {
    /// The version that was parsed last; `None` after a failed read, which is tried again.
    version: Option<FileVersion>,
    /// Of the version parsed last.
    fresh: Vec<Definition>,
    /// Of an earlier version, kept because the last one has faults.
    held: Vec<Definition>,
    faults: Vec<ManifestFault>,
    warnings: Vec<ManifestFault>,
    /// Some version had no fault, so everything it defined is known.
    was_good: bool,
    /// What has its name is no file, and none was seen there that had pods.
    is_no_file: bool,
}

/// A pod and the document that it comes from.
#[derive(Clone, Debug)]
struct Definition {
    document: usize,
    /// See [`Origin::place`].
    place: usize,
    /// `None`: the UID is one of the definition.
    digest: Option<String>,
    /// The ports that it names, with their fields.
    ports: BTreeMap<(u16, Protocol), String>,
    pod: Arc<Pod>,
}

impl Definition {
    fn has_host_port(&self, (number, protocol): (u16, Protocol)) -> bool {
        let mut ports = self.pod.node_requirements.host_ports.iter();
        ports.any(|it| it.port == number && it.protocol == protocol)
    }
}

impl ManifestDirectory {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            reading: Reading::default(),
            witness: None,
            files: BTreeMap::new(),
            missing: BTreeMap::new(),
            accepted: BTreeMap::new(),
            running: BTreeMap::new(),
            refused: BTreeSet::new(),
            was_listed: false,
            was_still: false,
        }
    }

    /// Sets `spec.nodeName` of pods that have none. It is no part of their UID.
    #[must_use]
    pub fn with_node_name(mut self, name: impl Into<String>) -> Self {
        self.reading.node_name = Some(name.into());
        self
    }

    /// Takes `status` as it stands in a manifest, as kubelet does. Else it counts for nothing, as it does in whatever is
    /// created by an API server.
    #[must_use]
    pub fn with_believed_status(mut self, believes_status: bool) -> Self {
        self.reading.believes_status = believes_status;
        self
    }

    /// Whether the feature gate PodLevelResources is on. Else resources of a pod itself are left out, with a warning.
    #[must_use]
    pub fn with_pod_level_resources(mut self, is_on: bool) -> Self {
        self.reading.leaves_out_pod_resources = !is_on;
        self
    }

    /// What pods may have of the node, which variables tell where a container has no limit. It is no part of their UID.
    #[must_use]
    pub fn with_allocatable(mut self, allocatable: ResourceList) -> Self {
        self.reading.allocatable = Some(allocatable);
        self
    }

    #[must_use]
    pub fn with_witness(mut self, witness: Arc<dyn Witness>) -> Self {
        self.witness = Some(witness);
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What runs before the first scan, by `namespace/name`: of several definitions of a pod that is the one that counts.
    pub fn prefer(&mut self, running: BTreeMap<String, Running>) {
        self.running = running;
    }

    /// What a file of this text would define, alone in the directory. Reads nothing.
    pub fn judge(&self, text: &[u8]) -> ManifestScan {
        let parsed = parse::file(&self.path.join("manifest.yaml"), text, &self.reading);
        let pods = parsed.pods.into_iter();
        ManifestScan {
            pods: pods.map(|it| (it.pod.uid.clone(), it.pod)).collect(),
            faults: parsed.faults,
            warnings: parsed.warnings,
            n_files: 1,
            is_complete: true,
            ..ManifestScan::default()
        }
    }

    /// Reads what has changed since the last scan. Costs a listing and a `stat` per file where
    /// nothing has, and 20 to 100 ms where a pod is missing. Blocks on the disk.
    pub fn scan(&mut self) -> ManifestScan {
        let mut scan = self.look();
        for _ in 0..LOOKS {
            if !self.was_listed {
                return scan;
            }
            if self.was_still && !self.lacks_a_file() {
                self.missing.clear();
                return scan;
            }
            let before = self.version();
            thread::sleep(TWO_TICKS);
            scan = self.look();
            if before.is_some() && before == self.version() {
                self.missing.clear();
                self.was_still = true;
                scan = self.look();
            }
        }
        scan.is_complete &= self.was_still && !self.lacks_a_file();
        scan
    }

    fn version(&self) -> Option<FileVersion> {
        regular::version_of_listing(&self.path).ok()
    }

    /// A pod is there only by a file that the last look missed, or may be.
    fn lacks_a_file(&self) -> bool {
        let mut files = self.accepted.values().map(|it| &it.file);
        files.any(|it| self.missing.contains_key(it))
            || self.missing.values().any(|it| !it.was_good)
    }

    fn look(&mut self) -> ManifestScan {
        self.files.append(&mut self.missing);
        let mut scan = ManifestScan {
            is_complete: true,
            ..ManifestScan::default()
        };
        match Root::host().list_all(&self.path) {
            Ok((names, no_text)) => {
                self.was_listed = true;
                let manifests = no_text
                    .iter()
                    .filter(|it| !is_temporary(it) && has_ending(it));
                scan.faults.extend(manifests.map(|name| {
                    let message = "is not read: its name is not UTF-8";
                    ManifestFault::of_file(self.path.join(name), message)
                }));
                self.update(&names, &mut scan);
            }
            Err(error) => {
                let message = listing_failed(&error);
                scan.faults
                    .push(ManifestFault::of_file(self.path.clone(), message));
                scan.is_complete = self.was_listed;
            }
        }
        self.collect(&mut scan);
        scan
    }

    fn update(&mut self, names: &[String], scan: &mut ManifestScan) {
        let skipped = |name: &&String| !is_temporary(name) && !has_ending(name);
        for name in names.iter().filter(skipped) {
            let path = self.path.join(name);
            let why = match Root::host().is_dir(&path) {
                true => "it is a directory".to_owned(),
                false => format!("its name ends in none of {}", ENDINGS.join(", ")),
            };
            let message = format!("is not read: {why}");
            scan.warnings.push(ManifestFault::of_file(path, message));
        }
        let is_manifest = |name: &&String| !is_temporary(name) && has_ending(name);
        let manifests: Vec<&String> = names.iter().filter(is_manifest).collect();
        let present: BTreeSet<&String> = manifests.iter().copied().collect();
        let is_present = |(name, _): &(String, FileState)| present.contains(name);
        let known = std::mem::take(&mut self.files).into_iter();
        (self.files, self.missing) = known.partition(is_present);
        if manifests.len() > MAX_FILES {
            let message = format!(
                "has {} manifests; those after the first {MAX_FILES} by name are not read",
                manifests.len()
            );
            scan.faults
                .push(ManifestFault::of_file(self.path.clone(), message));
            scan.is_complete = false;
        }
        for name in manifests.into_iter().take(MAX_FILES) {
            let path = self.path.join(name);
            let state = self.files.entry(name.clone()).or_default();
            let witness = self.witness.as_deref();
            let is_there = state.refresh(&path, &self.reading, witness);
            if !is_there && let Some(state) = self.files.remove(name) {
                self.missing.insert(name.clone(), state);
            }
        }
    }

    /// Puts the files together; of several definitions of one pod, or of one UID, the first by [`Rank`] and the name of
    /// the file counts.
    fn collect(&mut self, scan: &mut ManifestScan) {
        scan.n_files = self.files.len();
        for state in self.files.values() {
            scan.faults.extend_from_slice(&state.faults);
            scan.warnings.extend_from_slice(&state.warnings);
        }
        let mut states = self.files.values().chain(self.missing.values());
        scan.is_complete &= states.all(|it| it.was_good || it.is_no_file);
        let there = self.files.iter().map(|it| (it, true));
        let states = there.chain(self.missing.iter().map(|it| (it, false)));
        let mut definitions: Vec<(Rank, &String, &Definition)> = Vec::new();
        for ((file, state), is_there) in states {
            let fresh = state.fresh.iter().map(|it| (it, is_there));
            let all = fresh.chain(state.held.iter().map(|it| (it, false)));
            definitions.extend(all.map(|(it, is_fresh)| (self.rank(file, it, is_fresh), file, it)));
        }
        definitions.sort_by_key(|(rank, file, _)| (*rank, *file));

        let mut accepted: BTreeMap<String, Accepted> = BTreeMap::new();
        let mut refused = BTreeSet::new();
        let mut duplicates = Vec::new();
        let mut taken = Vec::new();
        for (rank, file, definition) in definitions {
            let Definition {
                document,
                place,
                digest,
                pod,
                ..
            } = definition;
            let name = pod.full_name();
            let clash = match accepted.get(&name) {
                Some(first) => Some(format!("is already defined in {}", first.file)),
                None if scan.pods.contains_key(&pod.uid) => {
                    Some(format!("another pod has the UID {} already", pod.uid))
                }
                None => None,
            };
            if let Some(message) = clash {
                refused.insert((file.clone(), name.clone()));
                // What a missing file had is no fault.
                if self.files.contains_key(file) {
                    duplicates.push(ManifestFault {
                        file: self.path.join(file),
                        document: Some(*document),
                        pod: Some(name),
                        field: None,
                        message,
                        weight: Weight::default(),
                    });
                }
                continue;
            }
            if self.files.contains_key(file) {
                taken.push((file, definition));
            }
            scan.pods.insert(pod.uid.clone(), Arc::clone(pod));
            let origin = Origin {
                file: file.clone(),
                place: *place,
                digest: digest.clone(),
            };
            scan.origins.insert(pod.uid.clone(), origin);
            if rank <= Rank::RunningElsewhere {
                self.running.remove(&name);
            }
            let (file, uid) = (file.clone(), pod.uid.clone());
            accepted.insert(name, Accepted { file, uid });
        }
        duplicates.sort_by(|a, b| (&a.file, a.document).cmp(&(&b.file, b.document)));
        scan.faults.extend(duplicates);
        scan.warnings.extend(shared_ports(&self.path, taken));
        self.accepted = accepted;
        self.refused = refused;
        // The file of what runs may be one that was missed, or cannot be read.
        if scan.is_complete && self.was_still {
            self.running.clear();
        }
    }

    /// `is_fresh`: of the last version of a file that is there.
    fn rank(&self, file: &String, definition: &Definition, is_fresh: bool) -> Rank {
        let name = definition.pod.full_name();
        let running = self.running.get(&name).filter(|_| is_fresh);
        if let Some(rank) = running.and_then(|it| it.rank(file, definition)) {
            return rank;
        }
        match self.accepted.get(&name) {
            Some(known) if known.file == *file => match is_fresh {
                true if known.uid == definition.pod.uid => Rank::Known,
                true => Rank::Edited,
                false => Rank::KnownBefore,
            },
            _ if !is_fresh || self.refused.contains(&(file.clone(), name)) => Rank::Refused,
            Some(_) => Rank::New,
            None => Rank::Other,
        }
    }
}

/// Ports that another pod names too, of which the host has one alone. Where both ask for it as one of the host, the later
/// pod is not let in.
fn shared_ports(directory: &Path, mut taken: Vec<(&String, &Definition)>) -> Vec<ManifestFault> {
    taken.sort_by_key(|(file, it)| (*file, it.document));
    let mut first: BTreeMap<(u16, Protocol), &Definition> = BTreeMap::new();
    let mut found = Vec::new();
    for (file, definition) in taken {
        for (port, field) in &definition.ports {
            let before = *first.entry(*port).or_insert(definition);
            let is_own = before.pod.uid == definition.pod.uid;
            if is_own || before.has_host_port(*port) && definition.has_host_port(*port) {
                continue;
            }
            let (other, number) = (before.pod.full_name(), port.0);
            found.push(ManifestFault {
                file: directory.join(file),
                document: Some(definition.document),
                pod: Some(definition.pod.full_name()),
                field: Some(field.clone()),
                message: format!("pod {other} names {number} too: {}", Because::Network),
                weight: Weight::Minor,
            });
        }
    }
    found
}

/// Which of several definitions counts: the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// It runs, and an earlier agent has taken it from there.
    Running,
    /// In the place of one that runs.
    RunningBefore,
    /// It runs, and an earlier agent has taken it from another file.
    RunningElsewhere,
    /// It counted before.
    Known,
    /// In the place of one that counted before, under another UID.
    Edited,
    /// It came, and the one that counted before is in a file that has a fault now, or is missing: it has moved.
    New,
    /// It counted before, and is in a file that has a fault now, or is missing.
    KnownBefore,
    /// None counted before.
    Other,
    /// Another one counted before, or it is not in its file any more.
    Refused,
}

/// A definition that counts.
#[derive(Debug)]
struct Accepted {
    file: String,
    uid: PodUid,
}

/// A definition by which a pod runs.
#[derive(Clone, Debug)]
pub struct Running {
    pub uid: PodUid,
    /// See [`Origin::file`]; `None` where it is not known.
    pub file: Option<String>,
    /// See [`Origin::digest`]; `None` also where it is not known.
    pub digest: Option<String>,
}

impl Running {
    fn rank(&self, file: &String, definition: &Definition) -> Option<Rank> {
        let is_same = self.uid == definition.pod.uid
            && (self.digest.is_none() || self.digest == definition.digest);
        match &self.file {
            Some(of) if of == file => Some(match is_same {
                true => Rank::Running,
                false => Rank::RunningBefore,
            }),
            Some(_) if is_same => Some(Rank::RunningElsewhere),
            None if is_same => Some(Rank::Running),
            _ => None,
        }
    }
}

impl FileState {
    /// Reads the file if it has changed. False: it is not there.
    fn refresh(&mut self, path: &Path, reading: &Reading, witness: Option<&dyn Witness>) -> bool {
        self.is_no_file = false;
        let version = match regular::look(path) {
            Ok(Kind::Regular(version)) => version,
            Ok(Kind::Other) => {
                self.skip(path);
                return true;
            }
            Ok(Kind::Dangling) => {
                self.fail(path, "is a symlink to something that is not there", None);
                return true;
            }
            Err(FsError::Gone { .. }) => return false,
            Err(error) => {
                self.fail(path, chain(&error), None);
                return true;
            }
        };
        if self.version == Some(version) {
            return true;
        }
        match regular::read(path, MAX_FILE_BYTES) {
            Ok(Contents::Whole { bytes, version }) => {
                let thing = format!("manifest {} {version}", path.display());
                if witness.is_none_or(|it| it.begins(&thing)) {
                    self.replace(path, &bytes, version, reading);
                    witness.into_iter().for_each(Witness::ends);
                } else {
                    let message = "ended the agent at two starts in a row, and is not read until it \
                                   changes";
                    self.fail(path, message, Some(version));
                }
            }
            Ok(Contents::TooLarge { version }) => {
                let message = format!("is larger than {MAX_FILE_BYTES} bytes");
                self.fail(path, message, Some(version));
            }
            Ok(Contents::Changing) => self.fail(path, "is being written", None),
            Ok(Contents::Other) => self.skip(path),
            Err(FsError::Gone { .. }) => return false,
            Err(error) => self.fail(path, chain(&error), None),
        }
        true
    }

    fn replace(&mut self, path: &Path, bytes: &[u8], version: FileVersion, reading: &Reading) {
        let had_pods = !self.fresh.is_empty() || !self.held.is_empty();
        let parsed = parse::file(path, bytes, reading);
        let is_empty = parsed.is_empty && parsed.faults.is_empty();
        if is_empty && had_pods {
            let message = "became empty and counts as half written; remove it to remove its pods";
            self.fail(path, message, Some(version));
            return;
        }
        if is_empty && !self.was_good {
            // No fault: some are empty on purpose.
            self.version = Some(version);
            self.faults.clear();
            let message = "is empty, and may be half written: pods that are not from another file stay; remove it to \
                           remove them";
            self.warnings = vec![ManifestFault::of_file(path.into(), message)];
            return;
        }
        let mut earlier = std::mem::take(&mut self.fresh);
        earlier.append(&mut self.held);
        self.version = Some(version);
        self.fresh = parsed.pods;
        self.faults = parsed.faults;
        self.warnings = parsed.warnings;
        if self.faults.is_empty() {
            self.was_good = true;
            return;
        }
        let names: BTreeSet<String> = self.fresh.iter().map(|it| it.pod.full_name()).collect();
        earlier.retain(|it| !names.contains(&it.pod.full_name()));
        self.held = earlier;
        self.warn_of_held(path);
    }

    /// A directory, FIFO, socket or device. Kubelet passes it over too (pkg/kubelet/config/file.go, v1.36).
    fn skip(&mut self, path: &Path) {
        if !self.fresh.is_empty() || !self.held.is_empty() {
            self.fail(path, "is not a regular file", None);
            return;
        }
        self.is_no_file = true;
        self.version = None;
        self.faults.clear();
        let message = "is not read: it is not a regular file";
        self.warnings = vec![ManifestFault::of_file(path.into(), message)];
    }

    /// Keeps every pod and reports why. `version`: this fault lasts as long as the file does.
    fn fail(&mut self, path: &Path, message: impl Into<String>, version: Option<FileVersion>) {
        self.version = version;
        let mut earlier = std::mem::take(&mut self.fresh);
        self.held.append(&mut earlier);
        self.faults = vec![ManifestFault::of_file(path.into(), message)];
        self.warnings.clear();
        self.warn_of_held(path);
    }

    fn warn_of_held(&mut self, path: &Path) {
        let warning = |it: &Definition| ManifestFault {
            file: path.into(),
            document: None,
            pod: Some(it.pod.full_name()),
            field: None,
            message: "stays as it was before the fault".into(),
            weight: Weight::default(),
        };
        self.warnings.extend(self.held.iter().map(warning));
    }
}

fn has_ending(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Hidden files, among them those of vim (`.x.swp`) and of Kubernetes' atomic volumes (`..data`),
/// and the backups of editors.
fn is_temporary(name: &str) -> bool {
    name.starts_with(['.', '#'])
        || [".swp", ".swx", ".tmp", "~"]
            .iter()
            .any(|ending| name.ends_with(ending))
}

fn listing_failed(error: &FsError) -> String {
    let kept = "the pods of the last good scan stay";
    match error {
        FsError::Gone { .. } => format!("the directory is not there; {kept}"),
        other => format!("{}; {kept}", chain(other)),
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "the tests make the files that are read, in a directory of their own"
)]
mod tests;
