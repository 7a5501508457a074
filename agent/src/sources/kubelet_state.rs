//! Reads kubelet's state files, written by the agent or by kubelet itself. A file that cannot be
//! used is set aside by the caller, never a reason not to start.
//!
//! `read` gives the bytes of a file of at most so many: it may lie where another process has it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::model::kubelet_state::cpu::{ContainerIds, CpuFile};
use crate::model::kubelet_state::device::DeviceFile;
use crate::model::kubelet_state::memory::MemoryFile;
use crate::model::kubelet_state::{
    CPU_FILE, DEVICE_FILE, MEMORY_FILE, OfPolicy, PodEntries, StateFileError,
};
use crate::model::placement::{CpuState, DeviceState, MemoryState};
use crate::sys::FsError;

/// Larger files are refused unread: 250 pods with devices come to less than 2 MiB.
const MAX_BYTES: u64 = 8 << 20;

/// The same for CPUs, of which a set costs memory up to its largest id: 250 pods come to 50 KiB.
const MAX_CPU_BYTES: u64 = 1 << 20;

/// See the module.
pub type ReadFile<'a> = &'a dyn Fn(&Path, u64) -> Result<Vec<u8>, FsError>;

#[derive(Debug, thiserror::Error)]
pub enum KubeletStateError {
    #[error(transparent)]
    File(#[from] FsError),
    #[error("{}", .path.display())]
    Unusable {
        path: PathBuf,
        source: Box<StateFileError>,
    },
}

/// The CPUs in kubelet's root directory `root`; `None`: no file. `policy` is the one that is
/// configured, `containers` those of the runtime, which the oldest format refers to.
pub fn read_cpus(
    read: ReadFile<'_>,
    root: &Path,
    policy: &str,
    pod_entries: PodEntries,
    containers: &ContainerIds,
) -> Result<Option<CpuState>, KubeletStateError> {
    decoded(read, &root.join(CPU_FILE), MAX_CPU_BYTES, |bytes| {
        cpus(bytes, policy, pod_entries, containers)
    })
}

/// The CPUs in the root directory of a kubelet that runs, whatever its policy and version; `None`: no file.
pub fn find_cpus(
    read: ReadFile<'_>,
    root: &Path,
) -> Result<Option<OfPolicy<CpuState>>, KubeletStateError> {
    decoded(read, &root.join(CPU_FILE), MAX_CPU_BYTES, |bytes| {
        of_any_version(bytes, |policy, entries| {
            cpus(bytes, policy, entries, &ContainerIds::new())
        })
    })
}

/// As [`find_cpus`], for memory.
pub fn find_memory(
    read: ReadFile<'_>,
    root: &Path,
) -> Result<Option<OfPolicy<MemoryState>>, KubeletStateError> {
    decoded(read, &root.join(MEMORY_FILE), MAX_BYTES, |bytes| {
        of_any_version(bytes, |policy, entries| memory(bytes, policy, entries))
    })
}

/// The gate that decides about the version is that of the program that wrote the file.
fn of_any_version<T>(
    bytes: &[u8],
    decode: impl Fn(&str, PodEntries) -> Result<T, StateFileError>,
) -> Result<OfPolicy<T>, StateFileError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        policy_name: String,
    }
    let Ok(Head {
        policy_name: policy,
    }) = serde_json::from_slice(bytes)
    else {
        return Err(StateFileError::Corrupt);
    };
    let with_pods = decode(&policy, PodEntries::Yes);
    match with_pods.or_else(|_| decode(&policy, PodEntries::No)) {
        Ok(state) => Ok(OfPolicy { policy, state }),
        // It is JSON: of what version it is not is all that this would say.
        Err(StateFileError::Json(_)) => Err(StateFileError::Corrupt),
        Err(error) => Err(error),
    }
}

/// As [`read_cpus`], for memory.
pub fn read_memory(
    read: ReadFile<'_>,
    root: &Path,
    policy: &str,
    pod_entries: PodEntries,
) -> Result<Option<MemoryState>, KubeletStateError> {
    decoded(read, &root.join(MEMORY_FILE), MAX_BYTES, |bytes| {
        memory(bytes, policy, pod_entries)
    })
}

/// As [`read_cpus`], for devices.
pub fn read_devices(
    read: ReadFile<'_>,
    root: &Path,
) -> Result<Option<DeviceState>, KubeletStateError> {
    decoded(read, &root.join(DEVICE_FILE), MAX_BYTES, |bytes| {
        DeviceState::try_from(&DeviceFile::read(bytes)?)
    })
}

fn cpus(
    bytes: &[u8],
    policy: &str,
    pod_entries: PodEntries,
    containers: &ContainerIds,
) -> Result<CpuState, StateFileError> {
    let file = CpuFile::read(bytes, policy, pod_entries, containers)?;
    Ok(CpuState::try_from(&file)?)
}

fn memory(
    bytes: &[u8],
    policy: &str,
    pod_entries: PodEntries,
) -> Result<MemoryState, StateFileError> {
    MemoryState::try_from(&MemoryFile::read(bytes, policy, pod_entries)?)
}

fn decoded<T>(
    read: ReadFile<'_>,
    path: &Path,
    max_bytes: u64,
    decode: impl FnOnce(&[u8]) -> Result<T, StateFileError>,
) -> Result<Option<T>, KubeletStateError> {
    let bytes = match read(path, max_bytes) {
        Ok(bytes) => bytes,
        Err(FsError::Gone { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    decode(&bytes).map(Some).map_err(|source| {
        let (path, source) = (path.to_owned(), Box::new(source));
        KubeletStateError::Unusable { path, source }
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::Root;
    use crate::sys::scratch::Scratch;

    #[test]
    fn an_absent_file_is_none_and_a_bad_one_an_error_with_its_path() {
        let scratch = Scratch::new("kubelet");
        let root = scratch.directory();
        let ids = ContainerIds::new();
        let read = |path: &Path, max_bytes| Root::host().read_at_most(path, max_bytes);
        let cpus = |policy| read_cpus(&read, root, policy, PodEntries::No, &ids);
        assert_eq!(cpus("static").unwrap(), None);
        let memory = read_memory(&read, root, "None", PodEntries::No);
        assert_eq!(memory.unwrap(), None);
        assert_eq!(read_devices(&read, root).unwrap(), None);

        let state = CpuState {
            shared_pool: "0,4-7".parse().unwrap(),
            ..CpuState::default()
        };
        let text = CpuFile::new("static", &state).to_text(PodEntries::No);
        scratch.write(CPU_FILE, text);
        assert_eq!(cpus("static").unwrap(), Some(state));
        let error = cpus("none").unwrap_err();
        assert_eq!(error.to_string(), root.join(CPU_FILE).display().to_string());
    }

    /// The checksums of the texts are those of k8s.io/utils/dump and hash/fnv.
    #[test]
    fn what_kubelet_1_37_keeps_of_pods_is_in_a_text_of_its_own() {
        let scratch = Scratch::new("kubelet");
        let root = scratch.directory();
        let read = |path: &Path, max_bytes| Root::host().read_at_most(path, max_bytes);
        let cpus = r#"{"policyName":"static","defaultCpuSet":"0,4","entries":{"u1":{"app":"1-2"}},"podEntries":{"u2":{"cpuSet":"3"}},"baselines":{"u1":{"app":{"baseline":"1-2"}}}}"#;
        let memory = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":10,"systemReserved":1,"allocatable":9,"reserved":4,"free":5}},"cells":[0]}},"entries":{"u1":{"app":[{"numaAffinity":[0],"type":"memory","size":2}]}},"podEntries":{"u2":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":2}]}}}"#;
        // Beside it stands the form of before, which has no place for pods.
        let write = |file: &str, data: &str, checksum: u64| {
            let mut all: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(data).unwrap();
            all.remove("podEntries");
            all.remove("baselines");
            all.insert("checksum".to_owned(), 0.into());
            all.insert("data".to_owned(), data.into());
            all.insert("dataChecksum".to_owned(), checksum.into());
            scratch.write(file, serde_json::Value::from(all).to_string());
        };
        let cpus_of_pods = || {
            let found = find_cpus(&read, root).unwrap().unwrap();
            assert_eq!(found.state.containers.len(), 1, "{found:?}");
            let pods = found.state.pods.into_iter();
            pods.map(|(uid, it)| format!("{uid}: {it}"))
                .collect::<Vec<_>>()
        };
        write(CPU_FILE, cpus, 2_967_303_129);
        assert_eq!(cpus_of_pods(), ["u2: 3"]);
        let ids = ContainerIds::new();
        for (gate, n_pods) in [(PodEntries::Yes, 1), (PodEntries::No, 0)] {
            let found = read_cpus(&read, root, "static", gate, &ids).unwrap();
            assert_eq!(found.map(|it| it.pods.len()), Some(n_pods));
        }
        write(MEMORY_FILE, memory, 3_822_860_665);
        let found = find_memory(&read, root).unwrap().unwrap();
        assert_eq!(
            (found.policy.as_str(), found.state.pods.len()),
            ("Static", 1)
        );
        assert_eq!(found.state.containers.len(), 1);
        // Kubelet goes by the form of before where the text is none of its own.
        write(CPU_FILE, cpus, 1);
        assert_eq!(cpus_of_pods(), [""; 0]);
    }
}
