//! Kernel events from the eBPF programs of `ebpf/`: loading, adopting, draining.
//!
//! In: the objects that the build embedded, the running kernel's BTF, pins that an earlier agent
//! left. Out: [`KernelEvent`]s in the order of their ring, counts of what was lost.
//!
//! Invariants: a program that the kernel refuses is a row of [`Streams::reports`], never a failed
//! start. No record is interpreted here beyond its layout, and no cgroup id is resolved.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::model::event::{CgroupId, CgroupLineage, KernelEvent};

/// One ring buffer, with the programs that write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    Oom,
    Process,
    Cgroup,
    Stall,
}

impl Stream {
    pub const ALL: [Self; 4] = [Self::Oom, Self::Process, Self::Cgroup, Self::Stall];

    /// The name of the object, of the pins and of the metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Process => "process",
            Self::Cgroup => "cgroup",
            Self::Stall => "stall",
        }
    }
}

/// The cgroup whose processes, cgroups and stalls are reported: `kubepods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedRoot {
    /// Inode of its directory; on v1 in the memory hierarchy.
    pub cgroup_id: CgroupId,
    /// Depth below the root of the hierarchy, which has level 0.
    pub level: u32,
    /// 0 for cgroup v2, else the first column of `/proc/self/cgroup`.
    pub hierarchy_id: u32,
    /// The memory controller lives on the cgroup v2 hierarchy.
    pub unified: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// A directory on a bpffs, such as `/sys/fs/bpf/ballast`, for the streams that outlive the
    /// agent. `None`: nothing is pinned and nothing adopted.
    pub pin_directory: Option<PathBuf>,
    /// `None`: OOM kills alone are reported until [`Streams::watch`] is called. A root set by an
    /// earlier agent stays in force for the streams that are adopted.
    pub watched: Option<WatchedRoot>,
    /// Forwards what the programs log; costs a map and some time per event.
    pub diagnostics: bool,
}

/// What became of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramState {
    Attached {
        /// As `tp_btf/mark_victim`.
        hook: String,
    },
    /// Attached by an earlier agent and still running.
    Adopted,
    Refused {
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    pub program: &'static str,
    pub stream: Stream,
    pub state: ProgramState,
    /// For a refused program: what does its work now.
    pub fallback: Option<&'static str>,
}

/// What one call of [`Streams::drain`] took from a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Events handed to the sink.
    pub n: usize,
    /// Records of the wrong size or with a value no program writes: a fault of ours, dropped.
    pub malformed: usize,
}

/// Time that the tasks of one cgroup, without its children, have waited for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallTotals {
    pub cgroup: CgroupLineage,
    pub memcg_reclaim_ns: u64,
    pub memcg_reclaims: u64,
    pub direct_reclaim_ns: u64,
    pub direct_reclaims: u64,
}

/// The kernel's own account of one program, while `kernel.bpf_stats_enabled` is 1; else zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStats {
    pub program: &'static str,
    pub run_count: u64,
    pub run_time_ns: u64,
}

/// Nothing at all can be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("this agent was built without the eBPF tool chain: it contains no programs")]
    NoObject,
}

/// The running programs. Dropping it detaches those that are not pinned.
#[derive(Debug)]
pub struct Streams {
    reports: Vec<ProgramReport>,
}

impl Streams {
    /// Loads and attaches whatever this kernel takes, adopting pinned streams first.
    pub fn load(_options: &LoadOptions) -> Result<Self, LoadError> {
        Err(LoadError::NoObject)
    }

    /// One row per program that was tried, in the order of trying.
    pub fn reports(&self) -> &[ProgramReport] {
        &self.reports
    }

    /// Sets the watched root in every stream; takes effect with the next event.
    pub fn watch(&mut self, _root: WatchedRoot) -> Result<(), LoadError> {
        Ok(())
    }

    /// The rings, to be polled for reading.
    pub fn rings(&self) -> impl Iterator<Item = (Stream, BorrowedFd<'_>)> {
        std::iter::empty()
    }

    /// Hands at most `max` waiting events of one stream to `sink`, oldest first.
    pub fn drain(
        &mut self,
        _stream: Stream,
        _max: usize,
        _sink: &mut dyn FnMut(KernelEvent),
    ) -> Drained {
        Drained::default()
    }

    /// Events lost since the stream was first loaded, because its ring was full.
    pub fn losses(&self) -> Result<BTreeMap<Stream, u64>, LoadError> {
        Ok(BTreeMap::new())
    }

    pub fn stall_totals(&self) -> Result<BTreeMap<CgroupId, StallTotals>, LoadError> {
        Ok(BTreeMap::new())
    }

    pub fn program_stats(&self) -> Vec<ProgramStats> {
        Vec::new()
    }

    /// Attaches the device access counter, which allows everything, to a cgroup v2 directory.
    pub fn attach_device_counter(&mut self, _cgroup2_dir: BorrowedFd<'_>) -> Result<(), LoadError> {
        Ok(())
    }

    /// Detaches and removes whatever is pinned below `pin_directory`, of every version.
    pub fn unpin_all(_pin_directory: &Path) -> Result<(), LoadError> {
        Ok(())
    }
}
