//! The only readers: what the node, the kernel and the runtime say, parsed and still without
//! meaning. Nothing here writes or chooses.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::model::text::ParseError;
use crate::sys::FsError;

pub mod agent_process;
pub mod block_io;
pub mod bpf;
pub mod btf;
mod cgroup_use;
pub mod cgroupfs;
pub mod checkpoint;
pub mod deleted_files;
pub mod device_node;
mod device_programs;
pub mod disk_use;
pub mod kube_tree;
pub mod kubelet_process;
pub mod kubelet_state;
pub mod largest;
pub mod listeners;
pub mod manifests;
pub mod mounts;
pub mod node_address;
pub mod node_reading;
pub mod oom_counters;
pub mod oom_scene;
pub mod oomd;
pub mod probe;
pub mod procfs;
pub mod psi;
pub mod stats;
pub mod sysfs;
pub mod uevents;
pub mod users;
pub mod wakers;

/// A kernel file could not be read, or says what its format does not allow.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("parse {}", .path.display())]
    Parse { path: PathBuf, source: ParseError },
}

impl ReadError {
    /// The file or the cgroup is not there.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Fs(error) if error.is_gone())
    }
}

/// Parses the text of the file at `path`, which is for the message only.
fn parse_at<T: FromStr<Err = ParseError>>(path: &Path, text: &str) -> Result<T, ReadError> {
    text.parse().map_err(|source| ReadError::Parse {
        path: path.into(),
        source,
    })
}
