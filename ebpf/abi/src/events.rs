//! Ring buffer records. Times are `CLOCK_BOOTTIME` in nanoseconds; a tgid or tid is one of the
//! initial PID namespace.

use crate::shared;

/// What is read of the name of a process: all of it with its final NUL where the kernel's `TASK_COMM_LEN` is the same,
/// else its beginning, which need not end with one.
pub const COMM_LEN: usize = 16;

/// The longest name of a cgroup directory that is reported whole, with its final NUL. The longest
/// that a runtime makes is `cri-containerd-<64 hex digits>.scope`, 86 bytes.
pub const CGROUP_NAME_LEN: usize = 128;

shared! {
    /// A cgroup and its ancestors up to the watched root. Ids are kernfs ids, inode numbers of the
    /// cgroup directories; 0 is no cgroup (the kernel starts at 1).
    #[derive(Default)]
    pub struct Lineage(40) {
        pub cgroup_id: u64,
        /// The cgroup or its ancestor 1, 2 and 3 levels below the watched root; 0 where the cgroup is
        /// not that deep, and outside the root.
        pub below_root: [u64; 3],
        /// 1: the cgroup is the watched root or lies below it.
        pub in_root: u32,
        pub reserved: u32,
    }
}

/// [`OomRecord::constraint`] when no hook could tell, or with [`METHOD_EXACT`] when somebody asked for the kill; else
/// the kernel's `enum oom_constraint`.
pub const CONSTRAINT_UNKNOWN: u32 = u32::MAX;
/// `enum oom_constraint`, include/linux/oom.h, unchanged from 4.19 to 7.2.
pub const CONSTRAINT_NONE: u32 = 0;
pub const CONSTRAINT_CPUSET: u32 = 1;
pub const CONSTRAINT_MEMORY_POLICY: u32 = 2;
pub const CONSTRAINT_MEMCG: u32 = 3;

/// [`OomRecord::method`]: how the limiting cgroup is known.
pub const METHOD_NONE: u32 = 0;
/// From `oom_control`.
pub const METHOD_EXACT: u32 = 1;
/// From the page counters of the allocating task's ancestors.
pub const METHOD_DERIVED: u32 = 2;

/// [`OomRecord::flags`]: the victim was exiting already and the kernel counted no kill.
pub const OOM_WAS_EXITING: u32 = 1;
/// [`OomRecord::flags`]: the victim was the first process of its PID namespace.
pub const OOM_NAMESPACE_INIT: u32 = 2;
/// [`OomRecord::flags`]: what the allocating task reclaimed last was memory of the node, so the node had too
/// little; meant where a program tells of reclaim for limits too.
pub const OOM_NODE_RECLAIM: u32 = 4;
/// [`OomRecord::flags`]: it was memory of a cgroup at its limit.
pub const OOM_LIMIT_RECLAIM: u32 = 8;

shared! {
    /// One process killed by the kernel's OOM killer.
    /// Written by `ebpf/src/oom.rs`, read by `agent/src/sources/bpf/decode.rs`.
    pub struct OomRecord(736) {
        pub at_ns: u64,
        /// `start_boottime` of the victim's thread group leader.
        pub victim_start_ns: u64,
        pub victim_cgroup: Lineage,
        /// Of the task whose allocation started the kill.
        pub trigger_cgroup: Lineage,
        /// The cgroup whose limit was reached; id 0 when there is none or it is unknown.
        pub limit_cgroup: Lineage,
        /// Of the first process of the victim's PID namespace; id 0 in the initial namespace, and where it cannot
        /// be read.
        pub init_cgroup: Lineage,
        /// Of the victim's parent.
        pub parent_cgroup: Lineage,
        pub anon_pages: u64,
        pub file_pages: u64,
        pub shmem_pages: u64,
        pub swap_pages: u64,
        /// Virtual size.
        pub total_vm_pages: u64,
        pub page_table_bytes: u64,
        /// Of the limiting cgroup at the kill; meaningful when `limit_cgroup` is set.
        pub limit_usage_pages: u64,
        pub limit_max_pages: u64,
        pub victim_comm: [u8; COMM_LEN],
        pub trigger_comm: [u8; COMM_LEN],
        pub victim_tgid: u32,
        pub victim_tid: u32,
        pub victim_uid: u32,
        pub victim_parent_tgid: u32,
        pub trigger_tgid: u32,
        pub constraint: u32,
        pub method: u32,
        pub flags: u32,
        /// -1000..=1000.
        pub oom_score_adj: i32,
        pub reserved: u32,
        /// Of the directories of `victim_cgroup.below_root`. Each ends at its first NUL; empty where there is none,
        /// and where no text can be read: under `lockdown=confidentiality`.
        pub victim_names: [[u8; CGROUP_NAME_LEN]; 3],
    }
}

/// [`ProcessRecord::kind`].
pub const PROCESS_FORK: u32 = 1;
pub const PROCESS_EXEC: u32 = 2;
pub const PROCESS_EXIT: u32 = 3;

/// [`ProcessRecord::flags`]: the process died as an OOM victim.
pub const PROCESS_BY_OOM: u32 = 1;

shared! {
    /// One process began, became another program, or ended.
    /// Written by `ebpf/src/process.rs`, read by `agent/src/sources/bpf/decode.rs`.
    pub struct ProcessRecord(96) {
        pub at_ns: u64,
        /// `start_boottime` of the thread group leader.
        pub start_ns: u64,
        pub cgroup: Lineage,
        pub comm: [u8; COMM_LEN],
        pub tgid: u32,
        /// Fork only.
        pub parent_tgid: u32,
        pub kind: u32,
        /// As `wait(2)` reports it: low 7 bits signal, 0x80 core dumped, then 8 bits of status. Exit only.
        pub exit_code: u32,
        pub flags: u32,
        pub reserved: u32,
    }
}

/// [`CgroupRecord::kind`].
pub const CGROUP_CREATED: u32 = 1;
pub const CGROUP_REMOVED: u32 = 2;
pub const CGROUP_ATTACHED: u32 = 3;
pub const CGROUP_POPULATED: u32 = 4;

shared! {
    /// A cgroup was made or removed, got a process, became empty or not empty.
    /// Written by `ebpf/src/cgroup.rs`, read by `agent/src/sources/bpf/decode.rs`.
    pub struct CgroupRecord(192) {
        pub at_ns: u64,
        pub cgroup: Lineage,
        pub kind: u32,
        /// The process that came: `CGROUP_ATTACHED` only.
        pub tgid: u32,
        /// 0 or 1: `CGROUP_POPULATED` only.
        pub populated: u32,
        pub reserved: u32,
        /// Ends at the first NUL. `CGROUP_CREATED` only.
        pub name: [u8; CGROUP_NAME_LEN],
    }
}

/// [`StallRecord::kind`]: reclaim at the limit of a memory cgroup.
pub const STALL_MEMCG: u32 = 1;
/// [`StallRecord::kind`]: reclaim because the node is short of free pages.
pub const STALL_DIRECT: u32 = 2;
/// Between two stalls that wake their reader, nanoseconds: as often as the watcher of pressure, who waits
/// for them, looks at memory.
pub const STALL_WAKE_INTERVAL_NS: u64 = 2_000_000;
/// The same of a stall at a limit, which is mostly that of a pod, by which nobody decides. At that of all pods the
/// watcher looks sooner by itself.
pub const LIMIT_WAKE_INTERVAL_NS: u64 = 50_000_000;

shared! {
    /// One task finished one wait for memory.
    /// Written by `ebpf/src/stall.rs`, read by `agent/src/sources/bpf/decode.rs`.
    pub struct StallRecord(72) {
        /// The end.
        pub at_ns: u64,
        pub duration_ns: u64,
        pub reclaimed_pages: u64,
        pub cgroup: Lineage,
        pub tgid: u32,
        pub kind: u32,
    }
}
