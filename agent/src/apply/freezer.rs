//! The files that stop and continue the processes of a cgroup and below it.

use crate::sys::Dir;

/// Of one version.
#[derive(Debug)]
pub(super) struct Freezer {
    pub(super) file: &'static str,
    pub(super) frozen: &'static str,
    pub(super) thawed: &'static str,
    /// Where 1 says that the cgroup is frozen by itself, and not by one above it.
    pub(super) self_file: &'static str,
    /// Where it shows that all have stopped, and as which line.
    pub(super) state_file: &'static str,
    pub(super) frozen_state: &'static str,
}

/// Linux 5.2, Documentation/admin-guide/cgroup-v2.rst.
pub(super) const UNIFIED: Freezer = Freezer {
    file: "cgroup.freeze",
    frozen: "1",
    thawed: "0",
    self_file: "cgroup.freeze",
    state_file: "cgroup.events",
    frozen_state: "frozen 1",
};

/// Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; `freezer.self_freezing` from Linux 3.8.
pub(super) const LEGACY: Freezer = Freezer {
    file: "freezer.state",
    frozen: "FROZEN",
    thawed: "THAWED",
    self_file: "freezer.self_freezing",
    state_file: "freezer.state",
    frozen_state: "FROZEN",
};

impl Freezer {
    /// The one that a cgroup has in this hierarchy, if any.
    pub(super) fn of(dir: &Dir) -> Option<&'static Self> {
        [&UNIFIED, &LEGACY].into_iter().find(|it| dir.has(it.file))
    }
}
