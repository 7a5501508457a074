//! Writes cgroups: creates, repairs, sets files, kills and removes, on cgroup v1 and v2, by
//! directory descriptor.
//!
//! Every step is idempotent, and every write is read back: what the kernel kept must be what was
//! asked for, or the step fails and says so.

mod devices;
mod nested;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::devices::{DeviceError, DevicePrograms};
use super::freezer::Freezer;
use crate::model::cgroup::{CgroupStep, Controller, FileValue, InterfaceFile};
use crate::model::cgroup_path::CgroupPath;
use crate::sys::{Dir, FsError, Tree, Trees};

const EPERM: i32 = 1;
const ENOMEM: i32 = 12;
const EACCES: i32 = 13;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const ERANGE: i32 = 34;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const ENOTEMPTY: i32 = 39;

/// A step that was not taken, or not as asked for.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The cgroup was removed. The next pass sees it as absent.
    #[error("cgroup {path} is gone")]
    Gone { path: CgroupPath },
    #[error("create cgroup {path}{}", no_room(.source))]
    Create { path: CgroupPath, source: FsError },
    #[error("enable {what} for cgroup {path}{hint}")]
    Enable {
        path: CgroupPath,
        /// Controllers, and below which directory.
        what: String,
        /// What is wrong and what would be right, as far as the kernel says so.
        hint: &'static str,
        source: FsError,
    },
    #[error("write {value:?} to {file} of cgroup {path}{}", why_busy(.file, .source.errno()))]
    Write {
        path: CgroupPath,
        file: String,
        value: String,
        source: FsError,
    },
    /// The kernel took the write and keeps something else.
    #[error("cgroup {path}: wrote {wrote:?} to {file}, the kernel keeps {kept:?}")]
    NotKept {
        path: CgroupPath,
        file: String,
        wrote: String,
        kept: String,
    },
    /// v2: the cgroup has not all that its list says. An ancestor has a mask, or a CPU is offline.
    #[error(
        "cgroup {path}: {file} is {wanted:?}, of which it has {effective:?}; \
         look at {file} of the cgroups above it and at the CPUs that are online"
    )]
    NotEffective {
        path: CgroupPath,
        file: String,
        wanted: String,
        effective: String,
    },
    #[error("move process {pid} into cgroup {path}")]
    Move {
        path: CgroupPath,
        pid: u32,
        source: FsError,
    },
    #[error("kill the processes of cgroup {path}")]
    Kill { path: CgroupPath, source: FsError },
    #[error("thaw cgroup {path}")]
    Thaw { path: CgroupPath, source: FsError },
    #[error("remove cgroup {path}")]
    Remove { path: CgroupPath, source: FsError },
    #[error("restrict the devices of cgroup {path}")]
    Devices {
        path: CgroupPath,
        source: Box<DeviceError>,
    },
    #[error("the node has no `{controller}` controller for {file} of cgroup {path}")]
    NoController {
        path: CgroupPath,
        file: String,
        controller: &'static str,
    },
}

/// Why controllers are not turned on for the children of a cgroup, as `+cpu` (Documentation/admin-guide/cgroup-v2.rst).
fn why_not_enabled(controllers: &str, errno: Option<i32>) -> &'static str {
    match (controllers, errno) {
        (_, Some(EBUSY)) => {
            ": that directory has processes of its own, by its cgroup.procs; right would be to move them into a cgroup \
             of theirs, or a cgroupRoot without processes"
        }
        // CONFIG_RT_GROUP_SCHED; nothing else makes it invalid.
        ("+cpu", Some(EINVAL)) => {
            ": this kernel groups real-time processes, and some run below that directory; right would be to move those \
             into the root cgroup, or to give them another scheduling policy"
        }
        _ => "",
    }
}

/// What stands against a value (mm/hugetlb_cgroup.c; kernel/cgroup/cpuset-v1.c: `cpuset1_validate_change`).
fn why_busy(file: &str, errno: Option<i32>) -> &'static str {
    match (file.split('.').next(), errno) {
        (Some("hugetlb"), Some(EBUSY)) => {
            ": more huge pages are in use; it is set once those are given back"
        }
        (Some("cpuset"), Some(EBUSY)) => {
            ": a cgroup below it has others; right would be a part of these there"
        }
        _ => "",
    }
}

/// A cgroup is memory of the kernel, which counts for the one above it.
fn no_room(source: &FsError) -> &'static str {
    match source.errno() {
        Some(ENOMEM) => ": the memory limit of its pod leaves no room for it",
        _ => "",
    }
}

impl ApplyError {
    /// The cgroup that it is about.
    pub fn cgroup(&self) -> &CgroupPath {
        match self {
            Self::Gone { path }
            | Self::Create { path, .. }
            | Self::Enable { path, .. }
            | Self::Write { path, .. }
            | Self::NotKept { path, .. }
            | Self::NotEffective { path, .. }
            | Self::Move { path, .. }
            | Self::Kill { path, .. }
            | Self::Thaw { path, .. }
            | Self::Remove { path, .. }
            | Self::Devices { path, .. }
            | Self::NoController { path, .. } => path,
        }
    }

    /// The kernel said no to this value, rather than failed: it asks for something that the cgroup,
    /// its limits or its parent do not allow.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Write { source, .. } => matches!(
                source.errno(),
                Some(EPERM | EACCES | EBUSY | EINVAL | ENOSPC | ERANGE)
            ),
            Self::NotKept { .. } | Self::NotEffective { .. } => true,
            _ => false,
        }
    }

    /// v1: a memory limit that was to be what is in use, of which there is more by now.
    pub fn is_below_use(&self) -> bool {
        matches!(
            self,
            Self::Write { file, source, .. }
                if file == "memory.limit_in_bytes" && source.errno() == Some(EBUSY)
        )
    }

    /// The interface file, where it is about one.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Write { file, .. }
            | Self::NotKept { file, .. }
            | Self::NotEffective { file, .. }
            | Self::NoController { file, .. } => Some(file),
            Self::Devices { .. } => Some("devices"),
            _ => None,
        }
    }
}

/// What became of an attempt to remove a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone from every hierarchy.
    Done,
    /// Processes are still in it or below it.
    Populated { pids: BTreeSet<u32> },
    /// The kernel refuses although no process shows: it is still being emptied.
    Busy,
}

/// What one round of SIGKILL came upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Killed {
    /// v1: it, a cgroup below it or the one above it was frozen and has been thawed.
    pub was_frozen: bool,
    /// The agent itself was in it, and has moved to the root cgroup.
    pub agent_left: bool,
}

/// Writer of the node's cgroups.
#[derive(Clone, Debug)]
pub struct CgroupWriter {
    trees: Arc<Trees>,
    /// Controllers to enable on v2, as far as the node has them.
    controllers: BTreeSet<String>,
    page_size: u64,
    /// For devices where no controller of v1 restricts them.
    device_programs: Option<Arc<Mutex<DevicePrograms>>>,
}

impl CgroupWriter {
    /// `controllers`: those of the v2 root that cgroups shall have; unused on v1.
    pub fn new(trees: Arc<Trees>, controllers: BTreeSet<String>, page_size: u64) -> Self {
        Self {
            trees,
            controllers,
            page_size,
            device_programs: None,
        }
    }

    /// Needed where v1 has no devices controller.
    pub fn set_device_programs(&mut self, programs: DevicePrograms) {
        self.device_programs = Some(Arc::new(Mutex::new(programs)));
    }

    /// Executes the steps in order. A failed step does not stop those of other cgroups; a write
    /// refused with EINVAL or EBUSY is tried once more after the others, since v1 checks CPU and
    /// memory limits against files that a later step sets.
    ///
    /// What containers have made below theirs is nobody's plan, and moves with them. `ended` hears of each step that is
    /// over, in the order of doing; steps of a cgroup that could not be made are left out. Returns how many steps took
    /// effect and what failed.
    pub fn apply(
        &self,
        steps: &[CgroupStep],
        containers: &BTreeSet<&CgroupPath>,
        ended: &mut dyn FnMut(&CgroupStep, Option<&ApplyError>),
    ) -> (usize, Vec<ApplyError>) {
        let mut n_done = 0;
        let mut failed = Vec::new();
        let mut again = Vec::new();
        let mut broken: BTreeSet<&CgroupPath> = BTreeSet::new();
        let take = |step: &CgroupStep| {
            let is_of_container = containers.contains(step.path());
            if is_of_container {
                self.move_nested(step);
            }
            self.step(step, is_of_container)
        };
        for step in steps {
            if broken.contains(step.path()) {
                continue;
            }
            match take(step) {
                Ok(()) => {
                    n_done += 1;
                    ended(step, None);
                }
                Err(ApplyError::Write { source, .. })
                    if matches!(source.errno(), Some(EINVAL | EBUSY)) =>
                {
                    again.push(step);
                }
                Err(error) => {
                    if !matches!(step, CgroupStep::Write { .. }) {
                        broken.insert(step.path());
                    }
                    ended(step, Some(&error));
                    failed.push(error);
                }
            }
        }
        for step in again {
            match take(step) {
                Ok(()) => {
                    n_done += 1;
                    ended(step, None);
                }
                Err(error) => {
                    ended(step, Some(&error));
                    failed.push(error);
                }
            }
        }
        (n_done, failed)
    }

    /// What lies below a cgroup whose cpuset is to move.
    fn move_nested(&self, step: &CgroupStep) {
        let CgroupStep::Write {
            path,
            file,
            from: Some(FileValue::List(from)),
            to: FileValue::List(to),
        } = step
        else {
            return;
        };
        if let Some(tree) = self.trees.legacy("cpuset")
            && let Ok(dir) = tree.dir.descend(path.components())
        {
            nested::move_below(&dir, &file.name, from, to);
        }
    }

    fn step(&self, step: &CgroupStep, is_of_container: bool) -> Result<(), ApplyError> {
        match step {
            CgroupStep::Create { path } => self.create(path),
            CgroupStep::Repair { path, .. } => self.repair(path, is_of_container),
            CgroupStep::Write {
                path,
                to: FileValue::Devices(access),
                ..
            } => self.allow_devices(path, access),
            CgroupStep::Write { path, file, to, .. } => self.write(path, file, to),
        }
    }

    /// Makes the cgroup and its missing ancestors, with every controller.
    pub fn create(&self, path: &CgroupPath) -> Result<(), ApplyError> {
        for tree in &self.trees.trees {
            if self.trees.unified {
                self.create_unified(&tree.dir, path)?;
            } else {
                self.create_legacy(tree, path)?;
            }
        }
        Ok(())
    }

    /// Brings back hierarchies (v1) or controllers (v2) that the cgroup lacks. On v1 its processes are moved to where they
    /// are missing; those of a container that it has put into cgroups below its own, into such of the same name.
    fn repair(&self, path: &CgroupPath, is_of_container: bool) -> Result<(), ApplyError> {
        self.create(path)?;
        if self.trees.unified {
            return Ok(());
        }
        let create = |source| ApplyError::Create {
            path: path.clone(),
            source,
        };
        let mut found = Vec::new();
        for tree in &self.trees.trees {
            let dir = tree.dir.descend(path.components()).map_err(create)?;
            found.push((tree, places_below(&dir, path).map_err(create)?));
        }
        let mut places = BTreeMap::new();
        for (&pid, place) in found.iter().flat_map(|(_, present)| present) {
            if is_of_container || place == path {
                places.entry(pid).or_insert(place);
            }
        }
        let mut first_failure = None;
        for (tree, present) in &found {
            let missing = places.iter().filter(|(pid, _)| !present.contains_key(*pid));
            for (&pid, place) in missing {
                if let Err(error) = self.bring(tree, pid, place) {
                    first_failure.get_or_insert(error);
                }
            }
        }
        first_failure.map_or(Ok(()), Err)
    }

    /// v1: moves a process into a cgroup, which is made where it is not there.
    fn bring(&self, tree: &Tree, pid: u32, path: &CgroupPath) -> Result<(), ApplyError> {
        self.create_legacy(tree, path)?;
        let dir = tree.dir.descend(path.components());
        match dir.and_then(|it| it.write("cgroup.procs", &pid.to_string())) {
            // ESRCH: it ended meanwhile.
            Err(source) if source.errno() != Some(3) => Err(ApplyError::Move {
                path: path.clone(),
                pid,
                source,
            }),
            _ => Ok(()),
        }
    }

    fn create_unified(&self, root: &Dir, path: &CgroupPath) -> Result<(), ApplyError> {
        let create = |source| ApplyError::Create {
            path: path.clone(),
            source,
        };
        let mut dir = root.try_clone().map_err(create)?;
        for component in path.components() {
            self.enable_controllers(path, &dir)?;
            dir.make_dir(component).map_err(create)?;
            dir = dir.open_dir(component).map_err(create)?;
        }
        Ok(())
    }

    /// Turns on for the children of `dir` what is not on yet: all at once, or else one by one so
    /// that one refused controller does not take the others with it.
    fn enable_controllers(&self, path: &CgroupPath, dir: &Dir) -> Result<(), ApplyError> {
        let failed = |controllers: &str, source: FsError| ApplyError::Enable {
            path: path.clone(),
            what: format!("controllers {controllers} below {}", dir.path().display()),
            hint: why_not_enabled(controllers, source.errno()),
            source,
        };
        let enabled = dir
            .read_text("cgroup.subtree_control")
            .map_err(|source| failed("", source))?;
        let enabled: BTreeSet<&str> = enabled.split_ascii_whitespace().collect();
        let wanted: Vec<String> = self
            .controllers
            .iter()
            .filter(|controller| !enabled.contains(controller.as_str()))
            .map(|controller| format!("+{controller}"))
            .collect();
        if wanted.is_empty()
            || dir
                .write("cgroup.subtree_control", &wanted.join(" "))
                .is_ok()
        {
            return Ok(());
        }
        let mut first_failure = None;
        for controller in &wanted {
            if let Err(source) = dir.write("cgroup.subtree_control", controller) {
                first_failure.get_or_insert((controller, source));
            }
        }
        match first_failure {
            None => Ok(()),
            Some((controller, source)) => Err(failed(controller, source)),
        }
    }

    fn create_legacy(&self, tree: &Tree, path: &CgroupPath) -> Result<(), ApplyError> {
        let create = |source| ApplyError::Create {
            path: path.clone(),
            source,
        };
        let is_cpuset = tree.controllers.contains("cpuset");
        let is_memory = tree.controllers.contains("memory");
        let mut dir = tree.dir.try_clone().map_err(create)?;
        for component in path.components() {
            let is_new = dir.make_dir(component).map_err(create)?;
            let child = dir.open_dir(component).map_err(create)?;
            if is_cpuset {
                inherit_cpuset(&dir, &child).map_err(create)?;
            }
            // Before Linux 5.11 a v1 memory cgroup does not count its children unless told to.
            if is_memory
                && is_new
                && let Ok(Some(text)) = child.read_text_if_any("memory.use_hierarchy")
                && text.trim() == "0"
            {
                child.write("memory.use_hierarchy", "1").map_err(create)?;
            }
            dir = child;
        }
        Ok(())
    }

    /// Writes one file and reads it back.
    pub fn write(
        &self,
        path: &CgroupPath,
        file: &InterfaceFile,
        value: &FileValue,
    ) -> Result<(), ApplyError> {
        let text = file.kind.format(value);
        let failed = |source: FsError| match source {
            FsError::Gone { .. } if !path.is_root() => ApplyError::Gone { path: path.clone() },
            source => ApplyError::Write {
                path: path.clone(),
                file: file.name.clone(),
                value: text.clone(),
                source,
            },
        };
        let no_controller = || ApplyError::NoController {
            path: path.clone(),
            file: file.name.clone(),
            controller: file.controller.name(),
        };
        let tree = self
            .trees
            .of(file.controller.name())
            .ok_or_else(no_controller)?;
        let dir = tree.dir.descend(path.components()).map_err(failed)?;
        match dir.write(&file.name, &text) {
            Err(FsError::Gone { .. }) if !dir.has(&file.name) && dir.is_linked() => {
                return Err(no_controller());
            }
            other => other.map_err(failed)?,
        }
        let kept = dir.read_text(&file.name).map_err(failed)?;
        let is_kept = file.kind.parse(&kept, self.page_size).as_ref() == Some(value)
            // A huge page limit above what there can be reads as the kernel's own maximum.
            || file.controller == Controller::Hugetlb;
        if !is_kept {
            return Err(ApplyError::NotKept {
                path: path.clone(),
                file: file.name.clone(),
                wrote: text,
                kept: kept.trim().to_owned(),
            });
        }
        if self.trees.unified
            && let FileValue::List(wanted) = value
        {
            let effective = dir.read_text(&file.effective()).map_err(failed)?;
            if file.kind.parse(&effective, self.page_size).as_ref() != Some(value) {
                return Err(ApplyError::NotEffective {
                    path: path.clone(),
                    file: file.name.clone(),
                    wanted: wanted.to_string(),
                    effective: effective.trim().to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Sends SIGKILL to every process in and below the cgroup: one round, without waiting.
    ///
    /// `cgroup.kill` (Linux 5.14) where it exists. Otherwise the cgroup is frozen first, so that
    /// no process can fork or end and give its pid away between the listing and the signal.
    /// On v1 a frozen process does not die, so the cgroup is thawed, with those below it and the one
    /// above it: of a container that is its pod. A cgroup that is gone is fine.
    ///
    /// The agent leaves the cgroup first, or the round fails. Where it was inside, somebody may put it back at once: that
    /// round freezes nobody and kills each process but the agent. Whoever puts it there after the last look, some 10 us
    /// before the kernel kills or freezes the whole cgroup, still ends it or stops it; no file of the kernel says "all
    /// but one".
    pub fn kill(&self, path: &CgroupPath) -> Result<Killed, ApplyError> {
        let failed = |source| ApplyError::Kill {
            path: path.clone(),
            source,
        };
        let mut killed = Killed::default();
        for tree in &self.trees.trees {
            let dir = match tree.dir.descend(path.components()) {
                Ok(dir) => dir,
                Err(FsError::Gone { .. }) => continue,
                Err(source) => return Err(failed(source)),
            };
            killed.agent_left |= leave(&dir, &tree.dir).map_err(failed)?;
            let kill = kill_round(killed.agent_left);
            killed.was_frozen |= kill(&dir).map_err(failed)?;
            if let Some(parent) = path.parent().filter(|_| !self.trees.unified) {
                let thawed = tree.dir.descend(parent.components());
                killed.was_frozen |= thawed.and_then(|it| thaw(&it)).unwrap_or(false);
            }
        }
        Ok(killed)
    }

    /// Takes the agent out of a cgroup, if somebody has put it there. True: it was.
    pub fn leave(&self, path: &CgroupPath) -> Result<bool, ApplyError> {
        let all = self.trees.trees.iter();
        let left = any_in(all, path, |dir, tree| leave(dir, &tree.dir));
        left.map_err(|source| ApplyError::Move {
            path: path.clone(),
            pid: std::process::id(),
            source,
        })
    }

    /// Thaws a cgroup and those below it. True: some were frozen.
    pub fn thaw(&self, path: &CgroupPath) -> Result<bool, ApplyError> {
        // The others of v1 have none.
        let with_freezer = [self.trees.cgroup2(), self.trees.legacy("freezer")];
        let with_freezer = with_freezer.into_iter().flatten();
        let thawed = any_in(with_freezer, path, |dir, _| thaw_below(dir));
        thawed.map_err(|source| ApplyError::Thaw {
            path: path.clone(),
            source,
        })
    }

    /// For those who write to the same cgroups.
    pub(super) fn trees(&self) -> &Trees {
        &self.trees
    }

    /// Tries once to remove the cgroup and all below it, from every hierarchy. Never waits and
    /// never kills.
    pub fn remove(&self, path: &CgroupPath) -> Result<Removal, ApplyError> {
        let failed = |source| ApplyError::Remove {
            path: path.clone(),
            source,
        };
        let (Some(parent), Some(leaf)) = (path.parent(), path.last()) else {
            return Ok(Removal::Busy);
        };
        let mut removal = Removal::Done;
        for tree in &self.trees.trees {
            let parent = match tree.dir.descend(parent.components()) {
                Ok(dir) => dir,
                Err(FsError::Gone { .. }) => continue,
                Err(source) => return Err(failed(source)),
            };
            match remove_tree(&parent, leaf) {
                Ok(()) | Err(FsError::Gone { .. }) => {}
                Err(error) if matches!(error.errno(), Some(EBUSY | ENOTEMPTY | EEXIST)) => {
                    let mut pids = BTreeSet::new();
                    if let Ok(dir) = parent.open_dir(leaf) {
                        pids = procs_below(&dir).map_err(failed)?;
                    }
                    removal = match (removal, pids.is_empty()) {
                        (Removal::Populated { pids: mut all }, _) => {
                            all.extend(pids);
                            Removal::Populated { pids: all }
                        }
                        (_, false) => Removal::Populated { pids },
                        (_, true) => Removal::Busy,
                    };
                }
                Err(source) => return Err(failed(source)),
            }
        }
        Ok(removal)
    }
}

/// Does something to a cgroup in each of these trees that has it. True: somewhere it was to be done.
fn any_in<'a>(
    trees: impl Iterator<Item = &'a Tree>,
    path: &CgroupPath,
    mut act: impl FnMut(&Dir, &Tree) -> Result<bool, FsError>,
) -> Result<bool, FsError> {
    let mut any = false;
    for tree in trees {
        match tree.dir.descend(path.components()) {
            Ok(dir) => any |= act(&dir, tree)?,
            Err(FsError::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(any)
}

/// A cgroup frozen for the time of one kill round; thawed on drop, whatever happens.
struct Frozen<'a> {
    dir: &'a Dir,
    freezer: &'static Freezer,
}

impl<'a> Frozen<'a> {
    /// `None` where the cgroup has no freezer, it refuses, or the agent is inside, whose threads would thaw nobody: the
    /// round is then a plain one, and the caller's next round catches what was forked meanwhile.
    fn freeze(dir: &'a Dir) -> Option<Self> {
        let freezer = Freezer::of(dir)?;
        if holds_agent(dir).unwrap_or(true) {
            return None;
        }
        dir.write(freezer.file, freezer.frozen).ok()?;
        Some(Self { dir, freezer })
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        // A cgroup that vanished has nothing left to thaw.
        if let Err(error) = self.dir.write(self.freezer.file, self.freezer.thawed)
            && !error.is_gone()
        {
            tracing::error!(cgroup = %self.dir.path().display(), %error, "thaw failed");
        }
    }
}

/// How to send one round of SIGKILL, see [`CgroupWriter::kill`]. It gives true where some of the cgroup was frozen, and
/// has been thawed.
pub(super) fn kill_round(agent_was_inside: bool) -> fn(&Dir) -> Result<bool, FsError> {
    match agent_was_inside {
        true => kill_each_below,
        false => kill_below,
    }
}

/// All processes in and below a cgroup of one hierarchy, which the agent has left before.
pub(super) fn kill_below(dir: &Dir) -> Result<bool, FsError> {
    if dir.has("cgroup.kill") {
        if holds_agent(dir)? {
            return kill_each_below(dir);
        }
        return match dir.write("cgroup.kill", "1") {
            Ok(()) | Err(FsError::Gone { .. }) => Ok(false),
            Err(error) => Err(error),
        };
    }
    let was_frozen = thaw_below(dir)?;
    let frozen = Frozen::freeze(dir);
    let pids = procs_below(dir)?;
    // The agent would wait for itself.
    let frozen = frozen.filter(|_| !pids.contains(&std::process::id()));
    kill_each(&pids);
    drop(frozen);
    Ok(was_frozen)
}

/// The same process by process, and without the agent.
fn kill_each_below(dir: &Dir) -> Result<bool, FsError> {
    let was_frozen = thaw_below(dir)?;
    kill_each(&procs_below(dir)?);
    Ok(was_frozen)
}

fn kill_each(pids: &BTreeSet<u32>) {
    let own = std::process::id();
    let others = pids.iter().filter(|it| **it != own);
    for pid in others.filter_map(|&pid| i32::try_from(pid).ok()) {
        // A process that has ended since is what was wanted.
        kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
    }
}

fn holds_agent(dir: &Dir) -> Result<bool, FsError> {
    Ok(procs_below(dir)?.contains(&std::process::id()))
}

/// Moves the agent to the root of the hierarchy if it is in `dir` or below. True: it was.
fn leave(dir: &Dir, root: &Dir) -> Result<bool, FsError> {
    let is_inside = holds_agent(dir)?;
    if is_inside {
        root.write("cgroup.procs", &std::process::id().to_string())?;
    }
    Ok(is_inside)
}

/// Thaws the cgroup and those below it, whoever has frozen them. True: some were frozen.
fn thaw_below(dir: &Dir) -> Result<bool, FsError> {
    let mut was_frozen = false;
    dir.visit_upwards(&mut |dir| {
        was_frozen |= thaw(dir)?;
        Ok(())
    })?;
    Ok(was_frozen)
}

/// Thaws a cgroup that is frozen by itself, and not by one above it.
fn thaw(dir: &Dir) -> Result<bool, FsError> {
    let Some(freezer) = Freezer::of(dir) else {
        return Ok(false);
    };
    let is_frozen = dir.read_text_if_any(freezer.self_file)?;
    if is_frozen.is_none_or(|it| it.trim() != "1") {
        return Ok(false);
    }
    match dir.write(freezer.file, freezer.thawed) {
        Ok(()) => Ok(true),
        Err(FsError::Gone { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The processes in and below a cgroup of one hierarchy.
pub(super) fn procs_below(dir: &Dir) -> Result<BTreeSet<u32>, FsError> {
    let mut pids = BTreeSet::new();
    dir.visit_upwards(&mut |dir| {
        pids.extend(procs(dir)?);
        Ok(())
    })?;
    Ok(pids)
}

/// The same with where each of them is; `dir` is that of `path`.
fn places_below(dir: &Dir, path: &CgroupPath) -> Result<BTreeMap<u32, CgroupPath>, FsError> {
    let mut places = BTreeMap::new();
    dir.visit_upwards(&mut |at| {
        let below = at.path().strip_prefix(dir.path()).ok();
        let below = below.and_then(|it| it.to_str()).filter(|it| !it.is_empty());
        // Of a name that is no text the cgroup itself is near enough.
        let place = below.and_then(|it| path.join(it).ok());
        let place = place.unwrap_or_else(|| path.clone());
        let pids = procs(at)?.into_iter();
        places.extend(pids.map(|pid| (pid, place.clone())));
        Ok(())
    })?;
    Ok(places)
}

fn procs(dir: &Dir) -> Result<BTreeSet<u32>, FsError> {
    let text = dir.process_list()?.unwrap_or_default();
    // Pid 0 is a process of another pid namespace; kill(0) would hit ourselves.
    Ok(text
        .lines()
        .filter_map(|line| line.parse().ok())
        .filter(|&pid| pid != 0)
        .collect())
}

fn remove_tree(parent: &Dir, name: &str) -> Result<(), FsError> {
    match parent.remove_dir(name) {
        Err(error) if matches!(error.errno(), Some(EBUSY | ENOTEMPTY)) => {}
        other => return other,
    }
    parent.open_dir(name)?.remove_below()?;
    parent.remove_dir(name)
}

/// v1: a new cpuset has no CPUs and no memory, and takes no process until it does. Copies both
/// from the parent where they are empty.
fn inherit_cpuset(parent: &Dir, child: &Dir) -> Result<(), FsError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if child.read_text(file)?.trim().is_empty() {
            let inherited = parent.read_text(file)?;
            child.write(file, inherited.trim())?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;
    use crate::sys::Root;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_repair_brings_processes_into_the_cgroup_that_their_container_has_put_them_into() {
        for (is_of_container, nested) in [(true, "2"), (false, "")] {
            let scratch = Scratch::new("repair");
            let procs = |tree: &str, cgroup: &str| format!("{tree}/pod/c/{cgroup}cgroup.procs");
            for (tree, own, below) in [("cpu", "1\n", "2\n3\n"), ("pids", "3\n", "")] {
                let directory = scratch.path(format!("{tree}/pod/c/n"));
                Root::host().create_dir_all(directory).unwrap();
                scratch.write(procs(tree, ""), own);
                scratch.write(procs(tree, "n/"), below);
            }
            let trees = ["cpu", "pids"].map(|it| {
                let controllers = BTreeSet::from([it.to_owned()]);
                Tree::open(controllers, &scratch.path(it)).unwrap()
            });
            let trees = Trees {
                unified: false,
                trees: trees.into(),
            };
            let writer = CgroupWriter::new(Arc::new(trees), BTreeSet::new(), 4096);
            let path = CgroupPath::new("/pod/c").unwrap();
            writer.repair(&path, is_of_container).unwrap();
            for (tree, cgroup, expected) in [
                ("cpu", "", "1\n"),
                ("cpu", "n/", "2\n3\n"),
                // Of what was there a byte is overwritten.
                ("pids", "", "1\n"),
                ("pids", "n/", nested),
            ] {
                let text = Root::host().read_text(scratch.path(procs(tree, cgroup)));
                assert_eq!(text.unwrap(), expected, "{tree} {cgroup}");
            }
        }
    }

    #[test]
    fn a_controller_that_is_refused_is_told_with_what_would_be_right() {
        for (controllers, errno, part) in [
            ("+cpu", Some(EINVAL), "real-time processes"),
            ("+cpu", Some(EBUSY), "a cgroupRoot without processes"),
            ("+memory", Some(EBUSY), "a cgroupRoot without processes"),
            ("+memory", Some(EINVAL), ""),
            ("+cpu", Some(EACCES), ""),
            ("", None, ""),
        ] {
            let error = ApplyError::Enable {
                path: CgroupPath::new("/pod/c").unwrap(),
                what: format!("controllers {controllers} below /sys/fs/cgroup"),
                hint: why_not_enabled(controllers, errno),
                source: Root::host().read_text("/nothing-here").unwrap_err(),
            };
            let text = error.to_string();
            assert!(text.contains(part), "{text}");
            let ends = text.ends_with("for cgroup /pod/c");
            assert_eq!(ends, part.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_value_that_what_is_there_stands_against_is_told_with_what_that_is() {
        for (file, errno, part) in [
            ("hugetlb.2MB.max", Some(EBUSY), "more huge pages are in use"),
            (
                "hugetlb.1GB.rsvd.limit_in_bytes",
                Some(EBUSY),
                "more huge pages are in use",
            ),
            ("hugetlb.2MB.max", Some(EINVAL), ""),
            ("cpuset.mems", Some(EBUSY), "a cgroup below it has others"),
            ("cpuset.cpus", Some(EACCES), ""),
            ("memory.limit_in_bytes", Some(EBUSY), ""),
            ("cpu.max", None, ""),
        ] {
            let why = why_busy(file, errno);
            assert!(why.contains(part), "{file}: {why}");
            assert_eq!(why.is_empty(), part.is_empty(), "{file}: {why}");
        }
    }

    /// As of a container that puts the agent back between its leaving and the kill.
    #[test]
    fn a_cgroup_that_holds_the_agent_is_killed_without_it() {
        type Files = &'static [(&'static str, &'static str)];
        let versions: [Files; 3] = [
            &[("cgroup.kill", "")],
            &[("freezer.state", "THAWED"), ("freezer.self_freezing", "0")],
            &[("cgroup.freeze", "0")],
        ];
        for files in versions {
            let scratch = Scratch::new("captive");
            let mut other = Command::new("sleep").arg("60").spawn().unwrap();
            let procs = format!("{}\n{}\n", std::process::id(), other.id());
            scratch.write("cgroup.procs", &procs);
            for (file, before) in files {
                scratch.write(file, before);
            }
            let dir = Dir::open(&scratch.path("")).unwrap();
            kill_below(&dir).unwrap();
            for (file, before) in files {
                assert_eq!(dir.read_text(file).unwrap(), *before, "{file}");
            }
            let signal = other.wait().unwrap().signal();
            assert_eq!(signal, Some(9), "it has ended by itself");
        }
    }
}
