//! Reader of the node's capacity and identity, and of what tells why the kernel killed.

use std::path::Path;

use crate::model::capacity::{
    HugePages, NodeCapacity, NodeIdentity, hugepage_size, is_swap_on, max_pids, running_pids,
};
use crate::model::cgroup_files::parse_count;
use crate::model::kernel::{is_over, parent_pid, start_ticks};
use crate::model::text::{ParseError, flat_keyed, meminfo_bytes, number};
use crate::sources::ReadError;
use crate::sources::probe::namespaces;
use crate::sys::{FsError, Root};
use crate::units::Bytes;

/// The huge page pools of the machine.
pub(super) const HUGEPAGES: &str = "/sys/kernel/mm/hugepages";

/// The capacity of the node; `n_cpus` comes from its topology. Fails when memory is not known;
/// what else is missing is `None`.
pub fn capacity(root: &Root, n_cpus: u32, state_dir: &Path) -> Result<NodeCapacity, ReadError> {
    const MEMINFO: &str = "/proc/meminfo";
    let meminfo = root.read_text(MEMINFO)?;
    let memory = meminfo_bytes(&meminfo, "MemTotal").ok_or_else(|| ReadError::Parse {
        path: root.path(MEMINFO),
        source: ParseError::missing("MemTotal"),
    })?;
    let swaps = root.read_text_if_any("/proc/swaps")?.unwrap_or_default();
    let swap = is_swap_on(&swaps).then(|| Bytes(meminfo_bytes(&meminfo, "SwapTotal").unwrap_or(0)));
    let pid_max = root.read_text_if_any("/proc/sys/kernel/pid_max")?;
    let threads_max = root.read_text_if_any("/proc/sys/kernel/threads-max")?;
    Ok(NodeCapacity {
        n_cpus,
        memory: Bytes(memory),
        swap,
        hugepages: hugepage_pools(root)?,
        held_hugepages: held_hugepages(root)?,
        pids: max_pids(pid_max.as_deref(), threads_max.as_deref()),
        ephemeral_storage: storage(root, state_dir)?,
    })
}

/// The huge page pools of the node. One that cannot be read is left out.
pub fn hugepage_pools(root: &Root) -> Result<HugePages, ReadError> {
    Ok(hugepages(root, HUGEPAGES)?)
}

/// Memory in huge pages that were given back while somebody held them: those beyond each pool, without as many as the
/// kernel may take there for who asks. A pool that cannot be read is left out.
pub fn held_hugepages(root: &Root) -> Result<Bytes, ReadError> {
    let bytes = |name: &String| {
        let size = hugepage_size(name)?;
        let surplus = n_pages(root, HUGEPAGES, name, "surplus_hugepages")?;
        let overcommitted = n_pages(root, HUGEPAGES, name, "nr_overcommit_hugepages")?;
        Some(size.0.saturating_mul(surplus.saturating_sub(overcommitted)))
    };
    let names = pool_names(root, HUGEPAGES)?;
    let held = names.iter().filter_map(bytes);
    Ok(Bytes(held.fold(0, u64::saturating_add)))
}

/// Which node this is.
pub fn identity(root: &Root) -> Result<NodeIdentity, ReadError> {
    let line = |text: String| text.trim().to_owned();
    Ok(NodeIdentity {
        boot_id: root
            .read_text_if_any("/proc/sys/kernel/random/boot_id")?
            .map(line),
        kernel_release: root.read_text("/proc/sys/kernel/osrelease").map(line)?,
        page_size: Bytes(crate::sys::page_size()),
    })
}

/// Tasks that exist now; `None` where `/proc/loadavg` does not say.
pub fn running_tasks(root: &Root) -> Result<Option<u64>, ReadError> {
    let loadavg = root.read_text_if_any("/proc/loadavg")?;
    Ok(loadavg.and_then(|it| running_pids(&it)))
}

/// The pools below a directory of `hugepages-<N>kB`; none where the directory is missing. A pool
/// that cannot be read or does not parse is left out. Pages that the kernel takes beyond a pool for who asks, and gives
/// back after him (`nr_overcommit_hugepages`), are none of it.
pub(super) fn hugepages(root: &Root, directory: &str) -> Result<HugePages, FsError> {
    let pool = |name: &String| {
        let size = hugepage_size(name)?;
        let surplus = n_pages(root, directory, name, "surplus_hugepages").unwrap_or(0);
        let all = n_pages(root, directory, name, "nr_hugepages")?;
        Some((size, all.saturating_sub(surplus)))
    };
    let names = pool_names(root, directory)?;
    Ok(names.iter().filter_map(pool).collect())
}

fn pool_names(root: &Root, directory: &str) -> Result<Vec<String>, FsError> {
    match root.list(directory) {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        names => names,
    }
}

fn n_pages(root: &Root, directory: &str, pool: &str, file: &str) -> Option<u64> {
    let text = root.read_text(format!("{directory}/{pool}/{file}")).ok()?;
    number(&text, "a number of pages").ok()
}

/// The filesystem that holds a directory, or will hold it once it is made.
fn storage(root: &Root, directory: &Path) -> Result<Option<Bytes>, FsError> {
    for ancestor in directory.ancestors() {
        match root.filesystem(ancestor) {
            Ok(filesystem) => return Ok(Some(Bytes(filesystem.total_bytes))),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// How often tasks had to free memory of the node before they got theirs, since boot. `None`: not
/// counted here.
pub fn allocation_stalls(root: &Root) -> Option<u64> {
    let text = root.read_text("/proc/vmstat").ok()?;
    let stalls = flat_keyed(&text).filter(|(key, _)| key.starts_with("allocstall"));
    let counts: Vec<u64> = stalls.filter_map(|(_, n)| parse_count(n).ok()).collect();
    (!counts.is_empty()).then(|| counts.iter().sum())
}

/// A process, and the one that it is a child of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descent {
    pub pid: u32,
    /// 0: none that the PID namespace has.
    pub parent: u32,
    /// Since boot, in clock ticks.
    pub start_ticks: u64,
}

/// All processes that `/proc` shows. Who has ended is left out, be it that nobody has collected it yet.
pub fn descents(root: &Root) -> Result<Vec<Descent>, FsError> {
    let names = root.list("/proc")?;
    let descent = |name: String| {
        let pid = name.parse().ok()?;
        let stat = root.read_text(format!("/proc/{pid}/stat")).ok()?;
        (!is_over(&stat)).then_some(())?;
        Some(Descent {
            pid,
            parent: parent_pid(&stat)?,
            start_ticks: start_ticks(&stat)?,
        })
    };
    Ok(names.into_iter().filter_map(descent).collect())
}

/// Whether a process may use a part of the NUMA nodes alone that have memory, by its pid in the kernel's first
/// PID namespace. `None`: it is gone, or this process lives in another namespace.
pub fn is_confined(root: &Root, pid: u32) -> Option<bool> {
    let all = root.read_text("/sys/devices/system/node/has_memory").ok()?;
    if all.trim().parse::<u32>().is_ok() {
        // There is one, so there are no parts.
        return Some(false);
    }
    if namespaces(root).is_initial_pid == Some(false) {
        return None;
    }
    let status = root.read_text(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let allowed = lines.find_map(|it| it.strip_prefix("Mems_allowed_list:"))?;
    Some(allowed.trim() != all.trim())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of the test alone")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn tasks_that_had_to_free_memory_are_counted_over_all_zones() {
        let base = Scratch::new("vmstat");
        let root = Root::at(base.directory());
        assert_eq!(allocation_stalls(&root), None, "there is no file");
        root.create_dir_all("/proc").expect("a directory");
        for (text, expected) in [
            (
                "allocstall_dma 0\nallocstall_normal 3\nallocstall_movable 4\n",
                Some(7),
            ),
            (
                "nr_free_pages 9\nallocstall_normal 0\noom_kill 1\n",
                Some(0),
            ),
            ("allocstall 5\n", Some(5)),
            ("allocstall_normal x\nallocstall_movable 4\n", Some(4)),
            ("nr_free_pages 9\noom_kill 1\n", None),
            ("", None),
        ] {
            base.write("proc/vmstat", text);
            assert_eq!(allocation_stalls(&root), expected, "{text:?}");
        }
    }

    #[test]
    fn huge_pages_that_come_and_go_with_their_users_are_none_of_the_pool() {
        let base = Scratch::new("hugepages");
        let root = Root::at(base.directory());
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        root.create_dir_all(format!("/{pool}"))
            .expect("a directory");
        for (all, surplus, expected) in [
            ("4\n", None, 4),
            ("4\n", Some("0\n"), 4),
            ("6\n", Some("2\n"), 4),
            ("1\n", Some("2\n"), 0),
        ] {
            base.write(format!("{pool}/nr_hugepages"), all);
            if let Some(surplus) = surplus {
                base.write(format!("{pool}/surplus_hugepages"), surplus);
            }
            let found = hugepage_pools(&root).expect("a list");
            let expected = HugePages::from([(Bytes(2 << 20), expected)]);
            assert_eq!(found, expected, "{all:?} {surplus:?}");
        }
    }

    #[test]
    fn huge_pages_that_were_given_back_are_held_where_no_more_may_be_taken() {
        let base = Scratch::new("held-hugepages");
        let root = Root::at(base.directory());
        assert_eq!(held_hugepages(&root).expect("none"), Bytes(0));
        let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
        root.create_dir_all(format!("/{pool}"))
            .expect("a directory");
        for (surplus, overcommitted, n_held) in [
            ("3\n", None, 0),
            ("3\n", Some("0\n"), 3),
            ("3\n", Some("2\n"), 1),
            ("3\n", Some("8\n"), 0),
            ("0\n", Some("0\n"), 0),
        ] {
            base.write(format!("{pool}/surplus_hugepages"), surplus);
            if let Some(overcommitted) = overcommitted {
                base.write(format!("{pool}/nr_overcommit_hugepages"), overcommitted);
            }
            let found = held_hugepages(&root).expect("a list");
            let expected = Bytes(n_held * (2 << 20));
            assert_eq!(found, expected, "{surplus:?} {overcommitted:?}");
        }
    }

    const HAS_MEMORY: &str = "sys/devices/system/node/has_memory";

    /// A node without that file, and this process in a PID namespace of this number.
    fn node(pid_namespace: u32) -> (Scratch, Root) {
        let base = Scratch::new("confined");
        let root = Root::at(base.directory());
        for directory in ["/sys/devices/system/node", "/proc/self/ns", "/proc/7"] {
            root.create_dir_all(directory).expect("a directory");
        }
        let link = base.path("proc/self/ns/pid");
        symlink(format!("pid:[{pid_namespace}]"), link).expect("a link");
        (base, root)
    }

    #[test]
    fn a_process_is_confined_that_may_not_use_every_numa_node_with_memory() {
        let (base, root) = node(0xEFFF_FFFC);
        assert_eq!(is_confined(&root, 7), None, "nobody says what there is");
        for (has_memory, allowed, expected) in [
            ("0-1\n", "0-1", Some(false)),
            ("0-1\n", "1", Some(true)),
            ("0,2\n", "0,2", Some(false)),
            ("0,2\n", "0", Some(true)),
            // There is one, so there are no parts.
            ("0\n", "0", Some(false)),
            ("1\n", "0-1", Some(false)),
        ] {
            base.write(HAS_MEMORY, has_memory);
            let status = format!(
                "Name:\thog\nMems_allowed:\t00000000,00000003\nMems_allowed_list:\t{allowed}\n"
            );
            base.write("proc/7/status", status);
            let found = is_confined(&root, 7);
            assert_eq!(found, expected, "{allowed} of {has_memory}");
        }
        base.write(HAS_MEMORY, "0-1\n");
        base.write("proc/7/status", "Name:\thog\n");
        assert_eq!(is_confined(&root, 7), None, "it does not say");
        assert_eq!(is_confined(&root, 8), None, "it is gone");
    }

    #[test]
    fn of_a_pid_of_another_namespace_nobody_knows_whether_it_is_confined() {
        let (base, root) = node(0xF000_0001);
        base.write("proc/7/status", "Mems_allowed_list:\t1\n");
        base.write(HAS_MEMORY, "0-1\n");
        assert_eq!(is_confined(&root, 7), None);
        base.write(HAS_MEMORY, "0\n");
        assert_eq!(is_confined(&root, 7), Some(false), "there are no parts");
    }
}
