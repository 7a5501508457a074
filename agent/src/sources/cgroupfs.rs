//! Reads cgroups: whether they exist with what they need, the values of their interface files,
//! their processes and children. On v1 a cgroup is one directory in each hierarchy.
//!
//! Every read is by directory descriptor. Never writes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::device_programs::DevicePrograms;
use crate::model::cgroup::{
    Controller, Existence, FileKind, FileValue, InterfaceFile, ObservedCgroup,
};
use crate::model::cgroup_files::{MemoryStat, parse_dying_descendants};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::device_access::{DeviceAccess, DeviceRules};
use crate::model::event::CgroupId;
use crate::sys::{Dir, FsError, Trees};

/// Why the state of a cgroup could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("observe cgroup {path}")]
    Fs { path: CgroupPath, source: FsError },
    #[error("cgroup {path}: {file} says {text:?}, not a {kind:?}")]
    Parse {
        path: CgroupPath,
        file: String,
        text: String,
        kind: FileKind,
    },
    #[error(
        "read back which devices cgroup {path} allows, which takes CAP_SYS_ADMIN where another process attached its \
         program"
    )]
    DevicePrograms { path: CgroupPath, source: io::Error },
    #[error("the cgroup mount has no `{controller}` controller")]
    NoController { controller: String },
}

/// Reader of the node's cgroups.
#[derive(Clone, Debug)]
pub struct CgroupReader {
    trees: Arc<Trees>,
    /// Controllers that a healthy cgroup has: those that the agent needs, as far as the node has
    /// them.
    needed: BTreeSet<String>,
    page_size: u64,
    device_programs: Arc<DevicePrograms>,
}

impl CgroupReader {
    /// `needed`: controllers without which a cgroup counts as degraded; `page_size` in bytes.
    pub fn new(trees: Arc<Trees>, needed: BTreeSet<String>, page_size: u64) -> Self {
        Self {
            trees,
            needed,
            page_size,
            device_programs: Arc::default(),
        }
    }

    /// The directory of a cgroup in the tree that carries `controller`.
    pub fn dir(&self, path: &CgroupPath, controller: &str) -> Result<Dir, ReadError> {
        let tree = self
            .trees
            .of(controller)
            .ok_or_else(|| ReadError::NoController {
                controller: controller.to_owned(),
            })?;
        tree.dir
            .descend(path.components())
            .map_err(|source| failed(path, source))
    }

    /// The directory in the cgroup2 hierarchy: the only one on v2, the one beside v1 on a hybrid
    /// node, `None` without any.
    pub fn unified_dir(&self, path: &CgroupPath) -> Result<Option<Dir>, ReadError> {
        match self
            .trees
            .cgroup2()
            .map(|tree| tree.dir.descend(path.components()))
        {
            None => Ok(None),
            Some(Ok(dir)) => Ok(Some(dir)),
            Some(Err(error)) if error.is_gone() => Ok(None),
            Some(Err(source)) => Err(failed(path, source)),
        }
    }

    /// Three states; an error is none of them and must not be taken for `Absent`.
    pub fn existence(&self, path: &CgroupPath) -> Result<Existence, ReadError> {
        if self.trees.unified {
            let Some(dir) = gone_is_none(self.dir(path, ""))? else {
                return Ok(Existence::Absent);
            };
            let enabled = dir
                .read_text("cgroup.controllers")
                .map_err(|source| failed(path, source))?;
            let enabled: BTreeSet<&str> = enabled.split_ascii_whitespace().collect();
            let missing = self
                .needed
                .iter()
                .filter(|controller| !enabled.contains(controller.as_str()))
                .cloned()
                .collect::<BTreeSet<_>>();
            return Ok(match missing.is_empty() {
                true => Existence::Healthy,
                false => Existence::Degraded { missing },
            });
        }
        let mut missing = BTreeSet::new();
        let mut n_found = 0_usize;
        for tree in &self.trees.trees {
            match tree.dir.has_dir(path.components()) {
                Ok(true) => n_found += 1,
                Ok(false) => {
                    missing.insert(tree.label());
                }
                Err(source) => return Err(failed(path, source)),
            }
        }
        Ok(match (n_found, missing.is_empty()) {
            (0, _) => Existence::Absent,
            (_, true) => Existence::Healthy,
            (_, false) => Existence::Degraded { missing },
        })
    }

    /// Existence, and the present values of `files`.
    pub fn observe(
        &self,
        path: &CgroupPath,
        files: &[(InterfaceFile, FileValue)],
    ) -> Result<ObservedCgroup, ReadError> {
        let existence = self.existence(path)?;
        let mut observed = ObservedCgroup {
            existence,
            ..ObservedCgroup::absent()
        };
        if observed.existence == Existence::Absent {
            return Ok(observed);
        }
        let mut dirs: BTreeMap<Controller, Option<Dir>> = BTreeMap::new();
        for (file, _) in files {
            if file.kind == FileKind::Devices {
                let access = self.devices(path)?.map(FileValue::Devices);
                observed
                    .values
                    .extend(access.map(|access| (file.clone(), access)));
                continue;
            }
            let dir = match dirs.entry(file.controller) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(gone_is_none(self.dir(path, file.controller.name()))?)
                }
            };
            let Some(dir) = dir else { continue };
            if let Some(value) = self.value(path, dir, file)? {
                observed.values.insert(file.clone(), value);
            }
            if file.kind == FileKind::List && self.trees.unified {
                let effective = InterfaceFile {
                    name: file.effective(),
                    ..file.clone()
                };
                if let Some(FileValue::List(ids)) = self.value(path, dir, &effective)? {
                    observed.effective.insert(file.clone(), ids);
                }
            }
            if file.is_memory_limit() {
                let usage = match self.trees.unified {
                    true => "memory.current",
                    false => "memory.usage_in_bytes",
                };
                observed.memory_usage =
                    number(dir, usage).map_err(|source| failed(path, source))?;
            }
        }
        Ok(observed)
    }

    /// See [`MemoryStat::clean`]. 0 where it is not known.
    pub fn clean_memory(&self, path: &CgroupPath) -> u64 {
        let parse = match self.trees.unified {
            true => MemoryStat::parse_v2,
            false => MemoryStat::parse_v1,
        };
        let stat = self.dir(path, Controller::Memory.name()).ok();
        let stat = stat.and_then(|it| it.read_text("memory.stat").ok());
        let stat = stat.and_then(|it| parse(&it).ok());
        stat.map_or(0, |it| it.clean())
    }

    /// This agent has loaded a device program: the reader knows it without a look at it.
    pub fn device_program_is_loaded(&self, id: u32, rules: DeviceRules) {
        self.device_programs.is_loaded(id, rules);
    }

    /// Which devices a cgroup allows: by the devices controller where v1 has it, else by a program
    /// of ours. `None` where the cgroup is not there, or it cannot be told.
    pub fn devices(&self, path: &CgroupPath) -> Result<Option<DeviceAccess>, ReadError> {
        const LIST: &str = "devices.list";
        if self.trees.legacy(Controller::Devices.name()).is_none() {
            let Some(dir) = self.unified_dir(path)? else {
                return Ok(None);
            };
            let access = self.device_programs.access(dir.as_fd());
            return access.map_err(|source| ReadError::DevicePrograms {
                path: path.clone(),
                source,
            });
        }
        let Some(dir) = gone_is_none(self.dir(path, Controller::Devices.name()))? else {
            return Ok(None);
        };
        let file = InterfaceFile {
            name: LIST.to_owned(),
            ..InterfaceFile::devices()
        };
        Ok(match self.value(path, &dir, &file)? {
            Some(FileValue::Devices(access)) => Some(access),
            _ => None,
        })
    }

    /// The value of one file; `None` where the cgroup or the file is not there.
    fn value(
        &self,
        path: &CgroupPath,
        dir: &Dir,
        file: &InterfaceFile,
    ) -> Result<Option<FileValue>, ReadError> {
        let Some(text) = dir
            .read_text_if_any(&file.name)
            .map_err(|source| failed(path, source))?
        else {
            return Ok(None);
        };
        match file.kind.parse(&text, self.page_size) {
            Some(value) => Ok(Some(value)),
            None => Err(ReadError::Parse {
                path: path.clone(),
                file: file.name.clone(),
                text,
                kind: file.kind,
            }),
        }
    }

    /// The CPUs that processes of a cgroup may run on; `None` where it has no cpuset of its own, as
    /// one that is gone.
    pub fn cpus(&self, path: &CgroupPath) -> Result<Option<CpuSet>, ReadError> {
        self.list(path, ["cpuset.cpus.effective", "cpuset.effective_cpus"])
    }

    /// Ids of the NUMA nodes that they may have memory of.
    pub fn mems(&self, path: &CgroupPath) -> Result<Option<CpuSet>, ReadError> {
        self.list(path, ["cpuset.mems.effective", "cpuset.effective_mems"])
    }

    /// Those that it was given itself: on v2 none where it follows the cgroup above it.
    pub fn own_mems(&self, path: &CgroupPath) -> Result<Option<CpuSet>, ReadError> {
        self.list(path, ["cpuset.mems"; 2])
    }

    fn list(&self, path: &CgroupPath, [v2, v1]: [&str; 2]) -> Result<Option<CpuSet>, ReadError> {
        let Some(dir) = gone_is_none(self.dir(path, Controller::Cpuset.name()))? else {
            return Ok(None);
        };
        let file = InterfaceFile {
            controller: Controller::Cpuset,
            name: match self.trees.unified {
                true => v2.to_owned(),
                false => v1.to_owned(),
            },
            kind: FileKind::List,
        };
        Ok(match self.value(path, &dir, &file)? {
            Some(FileValue::List(ids)) => Some(ids),
            _ => None,
        })
    }

    /// The id in the hierarchy that OOM kills and reclaim are accounted in.
    pub fn memory_id(&self, path: &CgroupPath) -> Result<Option<CgroupId>, ReadError> {
        Ok(gone_is_none(self.dir(path, Controller::Memory.name()))?
            .map(|dir| CgroupId(dir.inode())))
    }

    /// Names of the sub-cgroups, over all trees, sorted. Empty for a cgroup that is not there.
    pub fn children(&self, path: &CgroupPath) -> Result<BTreeSet<String>, ReadError> {
        let mut children = BTreeSet::new();
        for tree in &self.trees.trees {
            match tree
                .dir
                .descend(path.components())
                .and_then(|dir| dir.list_dirs())
            {
                Ok(names) => children.extend(names),
                Err(error) if error.is_gone() => {}
                Err(source) => return Err(failed(path, source)),
            }
        }
        Ok(children)
    }

    /// Processes of a cgroup and of all below it, over all trees, sorted. Sub-cgroups that vanish
    /// under the walk are skipped; an error where one cannot be read.
    pub fn pids(&self, path: &CgroupPath) -> Result<BTreeSet<u32>, ReadError> {
        let mut pids = BTreeSet::new();
        for tree in &self.trees.trees {
            match tree.dir.descend(path.components()) {
                Ok(dir) => {
                    collect_pids(&dir, &mut pids).map_err(|source| failed(path, source))?;
                }
                Err(error) if error.is_gone() => {}
                Err(source) => return Err(failed(path, source)),
            }
        }
        Ok(pids)
    }

    /// Processes of a cgroup and of all below it, in the tree that carries `controller` alone.
    pub fn pids_in(&self, path: &CgroupPath, controller: &str) -> Result<BTreeSet<u32>, ReadError> {
        let mut pids = BTreeSet::new();
        let dir = self.dir(path, controller)?;
        collect_pids(&dir, &mut pids).map_err(|source| failed(path, source))?;
        Ok(pids)
    }

    /// Removed cgroups below this one that the kernel still holds (`nr_dying_descendants` of
    /// `cgroup.stat`); `None` on v1, which does not tell.
    pub fn n_dying(&self, path: &CgroupPath) -> Result<Option<u64>, ReadError> {
        if !self.trees.unified {
            return Ok(None);
        }
        let Some(dir) = gone_is_none(self.dir(path, ""))? else {
            return Ok(None);
        };
        let text = dir
            .read_text_if_any("cgroup.stat")
            .map_err(|source| failed(path, source))?;
        Ok(text.and_then(|text| parse_dying_descendants(&text).ok().flatten()))
    }

    pub fn trees(&self) -> &Arc<Trees> {
        &self.trees
    }
}

fn collect_pids(dir: &Dir, pids: &mut BTreeSet<u32>) -> Result<(), FsError> {
    dir.visit_upwards(&mut |dir| {
        let list = dir.process_list()?.unwrap_or_default();
        pids.extend(list.lines().filter_map(|line| line.parse::<u32>().ok()));
        Ok(())
    })
}

fn number(dir: &Dir, file: &str) -> Result<Option<u64>, FsError> {
    Ok(dir
        .read_text_if_any(file)?
        .and_then(|text| text.trim().parse().ok()))
}

fn gone_is_none(dir: Result<Dir, ReadError>) -> Result<Option<Dir>, ReadError> {
    match dir {
        Ok(dir) => Ok(Some(dir)),
        Err(ReadError::Fs { source, .. }) if source.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(path: &CgroupPath, source: FsError) -> ReadError {
    ReadError::Fs {
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;
    use crate::sys::{Root, Tree};

    #[test]
    fn processes_that_cannot_be_listed_are_not_none() {
        let dir = Scratch::new("pids");
        let root = Root::host();
        for name in ["pod/app", "pod/made", "unread/app"] {
            root.create_dir_all(dir.path(name)).unwrap();
        }
        dir.write("pod/cgroup.procs", "7\n");
        dir.write("pod/app/cgroup.procs", "5\n6\n");
        dir.unreadable("unread/app/cgroup.procs");
        let trees = Trees {
            unified: true,
            trees: vec![Tree::open(BTreeSet::new(), dir.directory()).unwrap()],
        };
        let reader = CgroupReader::new(Arc::new(trees), BTreeSet::new(), 4096);
        let path = |name: &str| CgroupPath::new(name).unwrap();
        assert_eq!(
            reader.pids(&path("/pod")).unwrap(),
            BTreeSet::from([5, 6, 7])
        );
        assert_eq!(reader.pids(&path("/absent")).unwrap(), BTreeSet::new());
        assert!(reader.pids(&path("/unread")).is_err());
    }
}
