//! Who holds most of the memory that no pod has.

use crate::model::text::meminfo_bytes;
use crate::sources::mounts::parse_membership;
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
        let cgroup = memory_cgroup(&root.read_text(format!("/proc/{pid}/cgroup")).ok()?)?;
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

/// Of the lines of `/proc/PID/cgroup`: that of the memory controller, or of cgroup v2.
fn memory_cgroup(text: &str) -> Option<String> {
    let memberships = parse_membership(text);
    let mut of_memory = memberships
        .iter()
        .filter(|it| it.controllers.iter().any(|it| it.0 == "memory"));
    let found = of_memory
        .next()
        .or_else(|| memberships.iter().find(|it| it.hierarchy_id == 0))?;
    Some(found.path.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_memory_counts() {
        let v1 = "12:memory:/a/b\n3:cpu,cpuacct:/c\n0::/unified\n";
        assert_eq!(memory_cgroup(v1).as_deref(), Some("/a/b"));
        assert_eq!(memory_cgroup("0::/u/x\n").as_deref(), Some("/u/x"));
        assert_eq!(memory_cgroup("x\n"), None);
    }

    #[test]
    fn the_largest_is_not_looked_for_in_what_is_left_out() {
        let found = largest_outside(&Root::host(), "/no/such/cgroup").expect("a process");
        assert!(found.bytes > 0 && !found.name.is_empty(), "{found:?}");
    }
}
