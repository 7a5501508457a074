//! Who holds most of the memory that no pod has.

use crate::model::text::meminfo_bytes;
use crate::sources::mounts::cgroup_of;
use crate::sys::Root;

/// A process as it is named to people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Largest {
    pub pid: u32,
    /// Its `comm`, without control characters.
    pub name: String,
    /// Its cgroup from the mount, in the hierarchy that accounts memory.
    pub cgroup: String,
    /// Anonymous and shared memory that is resident, bytes.
    pub bytes: u64,
}

/// The process with most resident memory whose cgroup is not below `without`, a path from the mount.
/// One file of every process of the node is read: not for a moment that counts.
pub fn largest_outside(root: &Root, without: &str) -> Option<Largest> {
    let pids = root.list("/proc").ok()?;
    let pids = pids.iter().filter_map(|it| it.parse::<u32>().ok());
    let mut all: Vec<(u64, u32, String)> = pids
        .filter_map(|pid| {
            let status = root.read_text(format!("/proc/{pid}/status")).ok()?;
            let bytes = |field| meminfo_bytes(&status, field).unwrap_or(0);
            let name = status.lines().next()?.strip_prefix("Name:")?.trim();
            let name = name.chars().filter(|it| !it.is_control()).collect();
            Some((bytes("RssAnon") + bytes("RssShmem"), pid, name))
        })
        .collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.into_iter().find_map(|(bytes, pid, name)| {
        let cgroup = cgroup_of(
            &root.read_text(format!("/proc/{pid}/cgroup")).ok()?,
            "memory",
        )?;
        let below = cgroup.strip_prefix(without);
        let is_within = below.is_some_and(|it| it.is_empty() || it.starts_with('/'));
        (!is_within).then_some(Largest {
            pid,
            name,
            cgroup,
            bytes,
        })
    })
}
