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
        hugepages: hugepages(root, "/sys/kernel/mm/hugepages")?,
        pids: max_pids(pid_max.as_deref(), threads_max.as_deref()),
        ephemeral_storage: storage(root, state_dir)?,
    })
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
/// that cannot be read or does not parse is left out.
pub(super) fn hugepages(root: &Root, directory: &str) -> Result<HugePages, FsError> {
    let names = match root.list(directory) {
        Err(error) if error.is_gone() => Vec::new(),
        names => names?,
    };
    let pool = |name: String| {
        let size = hugepage_size(&name)?;
        let text = root
            .read_text(format!("{directory}/{name}/nr_hugepages"))
            .ok()?;
        Some((size, number(&text, "a number of pages").ok()?))
    };
    Ok(names.into_iter().filter_map(pool).collect())
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
