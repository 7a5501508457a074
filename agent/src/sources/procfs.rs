//! Reader of the node's capacity and identity.

use std::path::Path;

use crate::model::capacity::{
    HugePages, NodeCapacity, NodeIdentity, hugepage_size, is_swap_on, max_pids, running_pids,
};
use crate::model::text::{ParseError, meminfo_bytes, number};
use crate::sources::ReadError;
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
