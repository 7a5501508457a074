//! Values of maps that both sides touch.

use crate::{Lineage, shared};

/// [`Watch::flags`]: events of every cgroup, inside the watched root or not. For tests.
pub const WATCH_EVERYTHING: u32 = 1;
/// [`Watch::flags`]: the `signal_generate` program runs, so its silence about an OOM victim means
/// that the kernel killed nothing.
pub const WATCH_SIGNALS: u32 = 2;
/// [`Watch::flags`]: a cgroup that becomes empty wakes the reader: another program removes it at once.
pub const WATCH_ENDS: u32 = 4;
/// [`Watch::flags`]: time in reclaim wakes the reader: it decides on eviction.
pub const WATCH_STALLS: u32 = 8;

shared! {
    /// What the programs report on. In a map and not in read-only data: the root is known after the
    /// programs run, and pinned programs outlive the agent that set it.
    #[derive(Default)]
    pub struct Watch(24) {
        /// kernfs id; 0: no root is set, nothing is inside it.
        pub root_id: u64,
        /// Depth of the root in its hierarchy, whose own root has 0. Less where the agent does not see what is above.
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

/// Types and access bits of devices, include/uapi/linux/bpf.h.
pub const DEVICE_BLOCK: u16 = 1;
pub const DEVICE_CHAR: u16 = 2;
pub const DEVICE_MKNOD: u8 = 1;
pub const DEVICE_READ: u8 = 2;
pub const DEVICE_WRITE: u8 = 4;

/// Slots of the device access counters: `(type - 1) * 8 + access`; those that were denied from
/// [`DEVICE_DENIED`] on.
pub const DEVICE_SLOTS: usize = 2 * DEVICE_DENIED;
/// See [`DEVICE_SLOTS`].
pub const DEVICE_DENIED: usize = 16;

/// The program that holds a container to its devices. The kernel keeps 15 characters, and this name
/// is how the program is known among those that others attach.
pub const DEVICE_PROGRAM: &str = "ballast_devices";
/// Its map of one [`DeviceRules`], written before it is attached and never after.
pub const DEVICE_RULES_MAP: &str = "DEVICE_RULES_1";

/// Rules that one container can have: the default is 11, so 245 devices. 256 rules of 12 bytes are
/// 3 KiB, and 5 000 steps for the verifier.
pub const MAX_DEVICE_RULES: usize = 256;

/// [`DeviceRule::any`]: the rule is for every major number.
pub const ANY_MAJOR: u8 = 1;
/// [`DeviceRule::any`]: the rule is for every minor number.
pub const ANY_MINOR: u8 = 2;

shared! {
    /// Devices that may be used. Of another layout? Then rename [`DEVICE_RULES_MAP`]: programs
    /// outlive the agent.
    #[derive(Default)]
    pub struct DeviceRule(12) {
        pub major: u32,
        pub minor: u32,
        /// [`DEVICE_BLOCK`] or [`DEVICE_CHAR`]; 0 ends the rules.
        pub kind: u16,
        /// The access bits that are allowed.
        pub access: u8,
        pub any: u8,
    }
}

shared! {
    /// Written by `agent/src/apply/devices.rs`, read by `ebpf/src/bin/device_rules.rs` and
    /// `agent/src/sources/device_programs.rs`.
    pub struct DeviceRules(3072) {
        pub rules: [DeviceRule; MAX_DEVICE_RULES],
    }
}
