//! What one cgroup uses, from interface files that are held open: memory of v1 and v2, tasks,
//! stalled time.
//!
//! Invariant: a descriptor of a removed cgroup fails to read, even when there is another cgroup at
//! its path by now. So what is read is never of a stranger.

use crate::model::cgroup_files::{MemoryStat, parse_count, parse_limit, parse_memory_limit_v1};
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{MemoryUse, StallTotals};
use crate::model::psi::Psi;
use crate::model::text::ParseError;
use crate::sources::ReadError;
use crate::sys::{Dir, FsError, HeldFile, TextBuffer, Trees};
use crate::units::{Bytes, Limit};

/// The memory files of one cgroup.
#[derive(Debug)]
pub(super) struct MemoryFiles {
    is_unified: bool,
    /// The root of v2 has none.
    usage: Option<HeldFile>,
    stat: HeldFile,
    inode: u64,
}

impl MemoryFiles {
    /// `None`: there is no such cgroup, or memory is not accounted in it.
    pub(super) fn open(trees: &Trees, path: &CgroupPath) -> Result<Option<Self>, FsError> {
        match dir(trees, "memory", path)? {
            Some(dir) => Self::open_in(&dir, trees.unified),
            None => Ok(None),
        }
    }

    /// The same of a directory that is open.
    pub(super) fn open_in(dir: &Dir, is_unified: bool) -> Result<Option<Self>, FsError> {
        let usage = match is_unified {
            true => "memory.current",
            false => "memory.usage_in_bytes",
        };
        let Some(stat) = if_any(HeldFile::open_in(dir, "memory.stat"))? else {
            return Ok(None);
        };
        Ok(Some(Self {
            is_unified,
            usage: if_any(HeldFile::open_in(dir, usage))?,
            stat,
            inode: dir.inode(),
        }))
    }

    pub(super) fn n_files(&self) -> usize {
        1 + usize::from(self.usage.is_some())
    }

    /// The cgroup id.
    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// Two reads. `None`: the kernel leaves out a figure that is needed.
    pub(super) fn read(&self, buffer: &mut TextBuffer) -> Result<Option<MemoryUse>, ReadError> {
        let (usage, stat) = self.read_all(buffer)?;
        Ok(MemoryUse::new(usage, &stat))
    }

    /// The same two reads, with all that is in them.
    pub(super) fn read_all(
        &self,
        buffer: &mut TextBuffer,
    ) -> Result<(Option<Bytes>, MemoryStat), ReadError> {
        let usage = match &self.usage {
            Some(file) => Some(Bytes(read(file, buffer, parse_count)?)),
            None => None,
        };
        let stat = match self.is_unified {
            true => read(&self.stat, buffer, MemoryStat::parse_v2)?,
            false => read(&self.stat, buffer, MemoryStat::parse_v1)?,
        };
        Ok((usage, stat))
    }
}

/// The file of a cgroup's memory limit.
#[derive(Debug)]
pub(super) struct LimitFile {
    is_unified: bool,
    file: HeldFile,
}

impl LimitFile {
    /// `None`: there is no such cgroup, or it has no limit, as the root of v2.
    pub(super) fn open(trees: &Trees, path: &CgroupPath) -> Result<Option<Self>, FsError> {
        let Some(dir) = dir(trees, "memory", path)? else {
            return Ok(None);
        };
        let file = if_any(HeldFile::open_in(&dir, limit_file(trees.unified)))?;
        Ok(file.map(|file| Self {
            is_unified: trees.unified,
            file,
        }))
    }

    /// Bytes; `None`: no limit.
    pub(super) fn read(&self, buffer: &mut TextBuffer) -> Result<Option<u64>, ReadError> {
        let is_unified = self.is_unified;
        read(&self.file, buffer, |text| memory_limit(text, is_unified))
    }
}

pub(super) const fn limit_file(is_unified: bool) -> &'static str {
    match is_unified {
        true => "memory.max",
        false => "memory.limit_in_bytes",
    }
}

/// Bytes; `None`: no limit.
pub(super) fn memory_limit(text: &str, is_unified: bool) -> Result<Option<u64>, ParseError> {
    let limit = match is_unified {
        true => parse_limit(text)?,
        false => parse_memory_limit_v1(text)?,
    };
    Ok(match limit {
        Limit::At(bytes) => Some(bytes),
        Limit::Max => None,
    })
}

/// A pressure file, of a cgroup or of the node.
#[derive(Debug)]
pub(super) struct StallFile(HeldFile);

impl StallFile {
    /// Of the memory of a cgroup in the cgroup v2 hierarchy; `None`: it is not in there, or nothing
    /// is accounted.
    pub(super) fn open(trees: &Trees, path: &CgroupPath) -> Result<Option<Self>, FsError> {
        match cgroup2_dir(trees, path)? {
            Some(dir) => Self::open_in(&dir, "memory.pressure"),
            None => Ok(None),
        }
    }

    /// The same of a directory that is open.
    pub(super) fn open_in(dir: &Dir, file: &'static str) -> Result<Option<Self>, FsError> {
        Ok(if_any(HeldFile::open_in(dir, file))?.map(Self))
    }

    pub(super) fn of_node(file: HeldFile) -> Self {
        Self(file)
    }

    /// `None`: accounting is off (`cgroup.pressure`, or `psi=0` on some kernels).
    pub(super) fn read(&self, buffer: &mut TextBuffer) -> Result<Option<StallTotals>, ReadError> {
        Ok(self.read_all(buffer)?.map(|it| it.totals()))
    }

    /// The same with the averages.
    pub(super) fn read_all(&self, buffer: &mut TextBuffer) -> Result<Option<Psi>, ReadError> {
        match read(&self.0, buffer, str::parse) {
            Ok(psi) => Ok(Some(psi)),
            Err(ReadError::Fs(error)) if error.errno() == Some(nix::libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The directory of a cgroup in the cgroup v2 hierarchy; `None` where there is none.
pub(super) fn cgroup2_dir(trees: &Trees, path: &CgroupPath) -> Result<Option<Dir>, FsError> {
    match trees.cgroup2() {
        Some(tree) => if_any(tree.dir.descend(path.components())),
        None => Ok(None),
    }
}

/// The directory of a cgroup in the tree of a controller; `None` where there is none.
pub(super) fn dir(
    trees: &Trees,
    controller: &str,
    path: &CgroupPath,
) -> Result<Option<Dir>, FsError> {
    match trees.of(controller) {
        Some(tree) => if_any(tree.dir.descend(path.components())),
        None => Ok(None),
    }
}

/// Reads a file and parses it, with its path in the error.
pub(super) fn read<T>(
    file: &HeldFile,
    buffer: &mut TextBuffer,
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Result<T, ReadError> {
    parsed(file, file.read(buffer)?, parse)
}

/// The same as [`HeldFile::read_lossy`] reads it.
pub(super) fn read_lossy<T>(
    file: &HeldFile,
    buffer: &mut TextBuffer,
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Result<T, ReadError> {
    parsed(file, &file.read_lossy(buffer)?, parse)
}

fn parsed<T>(
    file: &HeldFile,
    text: &str,
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Result<T, ReadError> {
    parse(text).map_err(|source| ReadError::Parse {
        path: file.path(),
        source,
    })
}

/// What is not there is `None`.
pub(super) fn if_any<T>(found: Result<T, FsError>) -> Result<Option<T>, FsError> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}
