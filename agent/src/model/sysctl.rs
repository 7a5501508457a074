//! The kernel settings that a node manager depends on (kubelet's setupKernelTunables).

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Sysctl {
    #[serde(rename = "vm.overcommit_memory")]
    OvercommitMemory,
    #[serde(rename = "vm.panic_on_oom")]
    PanicOnOom,
    #[serde(rename = "kernel.panic")]
    Panic,
    #[serde(rename = "kernel.panic_on_oops")]
    PanicOnOops,
    #[serde(rename = "kernel.keys.root_maxkeys")]
    RootMaxKeys,
    #[serde(rename = "kernel.keys.root_maxbytes")]
    RootMaxBytes,
}

impl Sysctl {
    pub const ALL: [Self; 6] = [
        Self::OvercommitMemory,
        Self::PanicOnOom,
        Self::Panic,
        Self::PanicOnOops,
        Self::RootMaxKeys,
        Self::RootMaxBytes,
    ];

    /// As sysctl(8) names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OvercommitMemory => "vm.overcommit_memory",
            Self::PanicOnOom => "vm.panic_on_oom",
            Self::Panic => "kernel.panic",
            Self::PanicOnOops => "kernel.panic_on_oops",
            Self::RootMaxKeys => "kernel.keys.root_maxkeys",
            Self::RootMaxBytes => "kernel.keys.root_maxbytes",
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Self::OvercommitMemory => "/proc/sys/vm/overcommit_memory",
            Self::PanicOnOom => "/proc/sys/vm/panic_on_oom",
            Self::Panic => "/proc/sys/kernel/panic",
            Self::PanicOnOops => "/proc/sys/kernel/panic_on_oops",
            Self::RootMaxKeys => "/proc/sys/kernel/keys/root_maxkeys",
            Self::RootMaxBytes => "/proc/sys/kernel/keys/root_maxbytes",
        }
    }

    /// What kubelet sets, so that a node behaves alike under either.
    pub fn wanted(self) -> i64 {
        match self {
            // Never refuse an allocation: limits and eviction keep order.
            Self::OvercommitMemory => 1,
            // Kill a process, not the machine.
            Self::PanicOnOom => 0,
            // Reboot this many seconds after a panic.
            Self::Panic => 10,
            Self::PanicOnOops => 1,
            // Containers of one user share these; the default of 200 ends in failed starts.
            Self::RootMaxKeys => 1_000_000,
            // 25 bytes a key.
            Self::RootMaxBytes => 25_000_000,
        }
    }
}

impl fmt::Display for Sysctl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
