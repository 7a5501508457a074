//! Writes kubelet's state files in kubelet's root directory: whole, synced, renamed, mode 0600. What
//! kubelet would read from them is what was written.

use std::path::Path;

use crate::model::kubelet_state::cpu::CpuFile;
use crate::model::kubelet_state::device::DeviceFile;
use crate::model::kubelet_state::memory::MemoryFile;
use crate::model::kubelet_state::{CPU_FILE, DEVICE_FILE, MEMORY_FILE, PodEntries};
use crate::model::placement::{CpuState, DeviceState, MemoryState};
use crate::sys::{FsError, Root, durable};

/// `policy` is the one that is configured: `none` or `static`.
pub fn write_cpus(
    root: &Path,
    policy: &str,
    pod_entries: PodEntries,
    state: &CpuState,
) -> Result<(), FsError> {
    let text = CpuFile::new(policy, state).to_text(pod_entries);
    durable::write(&root.join(CPU_FILE), text.as_bytes())
}

/// `policy` is the one that is configured: `None` or `Static`.
pub fn write_memory(
    root: &Path,
    policy: &str,
    pod_entries: PodEntries,
    state: &MemoryState,
) -> Result<(), FsError> {
    let text = MemoryFile::new(policy, state, pod_entries).to_text();
    durable::write(&root.join(MEMORY_FILE), text.as_bytes())
}

/// Makes the directory of the file where it is not there yet.
pub fn write_devices(root: &Path, state: &DeviceState) -> Result<(), FsError> {
    let path = root.join(DEVICE_FILE);
    if let Some(directory) = path.parent() {
        Root::host().create_dir_all(directory)?;
    }
    durable::write(&path, DeviceFile::from(state).to_text().as_bytes())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "a test looks at the files themselves"
)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn the_files_are_kubelets_and_for_root_alone() {
        let scratch = Scratch::new("kubelet");
        let root = scratch.directory();
        write_cpus(root, "static", PodEntries::No, &CpuState::default()).unwrap();
        write_memory(root, "None", PodEntries::No, &MemoryState::default()).unwrap();
        write_devices(root, &DeviceState::default()).unwrap();
        for (file, checksum) in [
            (CPU_FILE, "3083571066}"),
            (MEMORY_FILE, "4236770233}"),
            (DEVICE_FILE, "3467439661}"),
        ] {
            let path = root.join(file);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.ends_with(checksum), "{text}");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
    }
}
