//! Kubelet's own state files, byte for byte: `cpu_manager_state`, `memory_manager_state` and
//! `kubelet_internal_checkpoint`. A node can move from kubelet to the agent and back.
//!
//! Each file has two layers here. `CpuFile`, `MemoryFile` and `DeviceFile` are what kubelet takes for
//! valid; they turn into the state that decisions are made on, which also has bounds: CPU ids, NUMA
//! node ids.
//!
//! Invariant: a text of n bytes costs O(n) memory and a recursion of at most 128, whatever it says.

pub mod cpu;
mod cpu_ranges;
pub mod device;
mod dump;
mod json;
pub mod memory;

pub use self::cpu_ranges::{CpuRanges, CpuRangesError};
pub use self::json::JsonError;
use self::json::{Fields, FromJson, Node};
use super::cpuset::CpuSetError;
use super::numa::NumaNodeTooLarge;
use super::pod::PodUid;

/// In kubelet's root directory.
pub const CPU_FILE: &str = "cpu_manager_state";
/// In kubelet's root directory.
pub const MEMORY_FILE: &str = "memory_manager_state";
/// In kubelet's root directory.
pub const DEVICE_FILE: &str = "device-plugins/kubelet_internal_checkpoint";
/// In kubelet's root directory.
pub const DEVICE_PLUGINS: &str = "device-plugins";
/// Device plugins register there, in kubelet's root directory.
pub const DEVICE_PLUGINS_SOCKET: &str = "device-plugins/kubelet.sock";
/// Plugins put a socket there to be found, or into a directory below, in kubelet's root directory.
pub const PLUGINS_REGISTRY: &str = "plugins_registry";
/// In kubelet's root directory.
pub const POD_RESOURCES_SOCKET: &str = "pod-resources/kubelet.sock";

/// Whether feature gate `PodLevelResourceManagers` is on, which gives the files of CPUs and memory a
/// place for what belongs to a pod as a whole: v3 and v2 of the formats, v2 and v1 without. Files of 1.37 have that place
/// in any case, and it is looked at where the gate is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodEntries {
    No,
    Yes,
}

/// What a file says as kubelet writes it from 1.37 on: in a text of its own, beside the form that older ones read
/// (state/checkpoint.go of the CPU manager, version 4, and of the memory manager, version 3). `None`: an older file, or
/// the text is none that it has written; kubelet goes by the older form then.
fn sealed<T: FromJson>(bytes: &[u8]) -> Option<T> {
    let Sealed { data, checksum } = json::parse(bytes).ok()?;
    let is_good = !data.is_empty() && checksum == dump::checksum_of_text(&data);
    json::parse(is_good.then_some(data)?.as_bytes()).ok()
}

#[derive(Default)]
struct Sealed {
    data: String,
    checksum: u64,
}

impl FromJson for Sealed {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            data: fields.take("data")?,
            checksum: fields.take("dataChecksum")?,
        }))
    }
}

/// Whether a manager of this policy gives anything out: one that does not is `none` for CPUs and `None` for memory.
pub fn gives_out(policy: &str) -> bool {
    !policy.eq_ignore_ascii_case("none")
}

/// What the file of a manager says, and under which policy that was given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfPolicy<T> {
    pub policy: String,
    pub state: T,
}

impl<T> OfPolicy<T> {
    /// `None`: nothing is given out.
    pub fn given_out(&self) -> Option<&T> {
        gives_out(&self.policy).then_some(&self.state)
    }
}

/// Why a state file cannot be used. The texts are kubelet's where it has one.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error("not a state file")]
    Json(#[from] JsonError),
    #[error("checkpoint is corrupted")]
    Corrupt,
    #[error("configured policy {configured:?} differs from state checkpoint policy {found:?}")]
    PolicyDiffers { configured: String, found: String },
    #[error("could not parse default cpu set {text:?}")]
    SharedPool {
        text: String,
        source: CpuRangesError,
    },
    #[error("could not parse cpuset {text:?} for container {container:?} in pod {pod:?}")]
    CpuSet {
        text: String,
        container: String,
        pod: PodUid,
        source: CpuRangesError,
    },
    /// The oldest format names containers by id; this one is not known to the runtime.
    #[error("containerID '{0}' not found in initial containers list")]
    UnknownContainer(String),
    /// Kubelet would have it; no machine does.
    #[error(transparent)]
    CpuTooLarge(#[from] CpuSetError),
    #[error(transparent)]
    NumaNodeTooLarge(#[from] NumaNodeTooLarge),
    #[error("{0} is no NUMA node")]
    NumaNode(i64),
    #[error("{0} is no number of assignments")]
    Assignments(i64),
}

#[cfg(test)]
mod tests;
