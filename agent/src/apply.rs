//! The only writers. Each is idempotent, reads back what it wrote, and tells what was refused.

pub mod cgroupfs;
pub mod checkpoint;
pub mod devices;
mod freezer;
pub mod host_path;
pub mod kubelet_state;
pub mod oom_ring;
pub mod recording;
pub mod relief;
