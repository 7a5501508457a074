//! Plain data and the kernel's and Kubernetes' text formats. No IO, no clock, no log.

pub mod agent_process;
pub mod capacity;
pub mod cgroup;
pub mod cgroup_files;
pub mod cgroup_name;
pub mod check;
pub mod container;
pub mod cpuset;
pub mod document;
pub mod event;
pub mod kernel;
pub mod kubelet_state;
pub mod mounts;
pub mod numa;
pub mod placement;
pub mod pod;
pub mod psi;
pub mod quantity;
pub mod record;
pub mod resources;
pub mod sealed;
pub mod status;
pub mod sysctl;
pub mod text;
pub mod time;
pub mod topology;
