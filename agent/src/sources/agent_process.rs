//! Reader of what the agent itself uses.

use crate::model::agent_process::ProcessUsage;
use crate::sys::Root;

/// Reads four files of `/proc/self`; costs about as many microseconds as there are descriptors,
/// so once a pass at most. A file that cannot be read leaves its part out.
pub fn read(root: &Root) -> ProcessUsage {
    let text = |name: &str| root.read_text(format!("/proc/self/{name}")).ok();
    let open_fds = root.list("/proc/self/fd").ok().map(|names| {
        // Listing holds one descriptor of its own.
        names.len().saturating_sub(1) as u64
    });
    let (stat, status, limits) = (text("stat"), text("status"), text("limits"));
    ProcessUsage::from_texts(
        stat.as_deref(),
        status.as_deref(),
        limits.as_deref(),
        open_fds,
    )
}
