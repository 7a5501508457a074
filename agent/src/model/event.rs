//! What the kernel told us, decoded and still without meaning: which process, which cgroup, when.
//! Attribution to pods is a separate step, so these records can be recorded and replayed.
//!
//! Times are `CLOCK_BOOTTIME` in nanoseconds. A pid here is a thread group id in the initial PID
//! namespace.

use serde::{Deserialize, Serialize};

/// kernfs id of a cgroup: the inode number of its directory, unique per hierarchy until reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CgroupId(pub u64);

/// A process for ever: a pid alone can come back as another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    pub pid: u32,
    /// `task_struct.start_boottime` of the thread group leader, nanoseconds.
    pub start_boottime_ns: u64,
}

/// A cgroup with its ancestors below the watched root, so that a nested or already removed cgroup
/// can be attributed without looking anything up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLineage {
    pub cgroup_id: CgroupId,
    /// The cgroup itself or its ancestor 1, 2 and 3 levels below the watched root (kubepods), where it has
    /// one. All `None` outside the root. Level 0, the root itself, shows as `is_root`.
    pub below_root: [Option<CgroupId>; 3],
    /// The cgroup is the watched root or lies below it.
    pub in_root: bool,
}

impl CgroupLineage {
    /// The cgroups below the watched root on the way to this one, each with its own lineage; the third is the last.
    pub fn steps(&self) -> impl Iterator<Item = Self> {
        let below = self.below_root;
        let ids = below.into_iter().flatten().enumerate();
        ids.map(move |(n, cgroup_id)| {
            let mut below_root = [None; 3];
            below_root[..=n].copy_from_slice(&below[..=n]);
            Self {
                cgroup_id,
                below_root,
                in_root: true,
            }
        })
    }
}

/// Which limit made the kernel kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OomConstraint {
    /// The node ran out of memory.
    Global,
    /// The NUMA nodes of a cpuset ran out.
    Cpuset,
    /// The NUMA nodes of a memory policy ran out.
    MemoryPolicy,
    /// A memory cgroup reached its limit.
    Memcg,
}

/// How the limiting cgroup is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AttributionMethod {
    /// From the kernel's own `oom_control`.
    Exact,
    /// From the page counters of the allocating task's ancestors.
    Derived,
    /// Neither was possible.
    None,
}

/// What a process is in its PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum NamespaceRole {
    /// Its first process, with pid 1.
    Init,
    /// Another one. `init`: where the first is.
    Member { init: CgroupLineage },
}

/// One process killed by the kernel's OOM killer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomKill {
    pub at_ns: u64,
    pub victim: ProcessKey,
    pub victim_tid: u32,
    pub victim_comm: String,
    pub victim_uid: u32,
    pub victim_parent_pid: u32,
    pub victim_cgroup: CgroupLineage,
    /// Of the directories of `victim_cgroup.below_root`, cut after 127 bytes. Empty: there is none, or it could not
    /// be read.
    pub victim_names: [String; 3],
    pub victim_parent_cgroup: CgroupLineage,
    /// In its PID namespace. `None`: that is the host's, or it could not be read.
    pub victim_role: Option<NamespaceRole>,
    /// -1000..=1000 at the time of the kill.
    pub oom_score_adj: i16,
    pub anon_bytes: u64,
    pub file_bytes: u64,
    pub shmem_bytes: u64,
    pub swap_bytes: u64,
    pub page_table_bytes: u64,
    /// Virtual size.
    pub total_vm_bytes: u64,
    /// The process whose allocation started the kill; often not in the victim's container.
    pub trigger_pid: u32,
    pub trigger_comm: String,
    pub trigger_cgroup: CgroupLineage,
    /// `None` when no hook could tell, or with [`AttributionMethod::Exact`] when somebody asked for it.
    pub constraint: Option<OomConstraint>,
    /// The cgroup whose limit was reached; `None` for a kill by the node, a cpuset or a policy, and when unknown.
    pub limit_cgroup: Option<CgroupLineage>,
    /// Usage and limit of `limit_cgroup` at the kill, bytes.
    pub limit_usage_bytes: Option<u64>,
    pub limit_max_bytes: Option<u64>,
    pub method: AttributionMethod,
    /// The victim was exiting already; the kernel counted no kill.
    pub was_exiting: bool,
    /// What the allocating task did last before the kill. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_reclaim: Option<Reclaim>,
}

impl OomKill {
    /// Somebody asked for it, by SysRq f.
    pub fn was_asked_for(&self) -> bool {
        self.method == AttributionMethod::Exact && self.constraint.is_none()
    }

    /// A memory cgroup reached its limit, and no program could tell which one.
    pub fn has_unnamed_limit(&self) -> bool {
        self.constraint == Some(OomConstraint::Memcg) && self.limit_cgroup.is_none()
    }

    /// Where everybody and everything that it speaks of is.
    pub fn cgroups_mut(&mut self) -> impl Iterator<Item = &mut CgroupLineage> {
        let init = match &mut self.victim_role {
            Some(NamespaceRole::Member { init }) => Some(init),
            Some(NamespaceRole::Init) | None => None,
        };
        let processes = [
            &mut self.victim_cgroup,
            &mut self.victim_parent_cgroup,
            &mut self.trigger_cgroup,
        ];
        processes
            .into_iter()
            .chain(init)
            .chain(&mut self.limit_cgroup)
    }
}

/// Whose memory a task had to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reclaim {
    /// The node was short of pages.
    ForNode,
    /// A memory cgroup was at its limit.
    AtLimit,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum ExitStatus {
    /// Exit status 0..=255.
    Code(u8),
    Signal {
        signal: u8,
        core_dumped: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum ProcessChange {
    Fork {
        parent_pid: u32,
    },
    Exec,
    /// The last thread is gone. `by_oom`: it died as an OOM victim.
    Exit {
        status: ExitStatus,
        by_oom: bool,
    },
}

/// One process began, became another program, or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessEvent {
    pub at_ns: u64,
    pub process: ProcessKey,
    pub comm: String,
    pub cgroup: CgroupLineage,
    pub change: ProcessChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum CgroupChange {
    Created { name: String },
    Removed,
    Attached { pid: u32 },
    Populated { populated: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupEvent {
    pub at_ns: u64,
    pub cgroup: CgroupLineage,
    pub change: CgroupChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StallKind {
    /// Reclaim because a memory cgroup reached its limit.
    MemcgReclaim,
    /// Reclaim because the node is short of free pages.
    DirectReclaim,
}

/// One task finished one wait for memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallEvent {
    /// End of the stall.
    pub at_ns: u64,
    pub duration_ns: u64,
    pub kind: StallKind,
    pub pid: u32,
    pub cgroup: CgroupLineage,
    pub reclaimed_pages: u64,
}

/// The closed list of what the eBPF streams deliver.
#[expect(
    clippy::large_enum_variant,
    reason = "handed on one at a time; a box would cost every reader more than the copy"
)]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stream", rename_all = "camelCase")]
pub enum KernelEvent {
    Oom(OomKill),
    Process(ProcessEvent),
    Cgroup(CgroupEvent),
    Stall(StallEvent),
}
