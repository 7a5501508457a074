//! Values of maps that both sides touch.

use crate::{Lineage, shared};

/// [`Watch::flags`]: events of every cgroup, inside the watched root or not. For tests.
pub const WATCH_EVERYTHING: u32 = 1;
/// [`Watch::flags`]: the `signal_generate` program runs, so its silence about an OOM victim means
/// that the kernel killed nothing.
pub const WATCH_SIGNALS: u32 = 2;

shared! {
    /// What the programs report on. In a map and not in read-only data: the root is known after the
    /// programs run, and pinned programs outlive the agent that set it.
    #[derive(Default)]
    pub struct Watch(24) {
        /// kernfs id; 0: no root is set, nothing is inside it.
        pub root_id: u64,
        /// Depth of the root in its hierarchy; the hierarchy's own root has 0.
        pub root_level: u32,
        /// 0 for cgroup v2.
        pub hierarchy_id: u32,
        pub flags: u32,
        pub reserved: u32,
    }
}

shared! {
    /// Time that the tasks of one cgroup, without its children, waited for memory.
    pub struct StallTotal(80) {
        pub memcg_ns: u64,
        pub memcg_count: u64,
        pub direct_ns: u64,
        pub direct_count: u64,
        /// When the last record of this cgroup went to the ring, boot time.
        pub reported_at_ns: u64,
        /// As of the first stall.
        pub cgroup: Lineage,
    }
}

/// Slots of the device access counters: `(type - 1) * 8 + access` with the kernel's type (block 1,
/// char 2) and its access bits (mknod 1, read 2, write 4), include/uapi/linux/bpf.h.
pub const DEVICE_SLOTS: usize = 16;
