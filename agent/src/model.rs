//! Plain data and the kernel's and Kubernetes' text formats. No IO, no clock, no log.

pub mod cgroup;
pub mod cgroup_name;
pub mod container;
pub mod cpuset;
pub mod event;
pub mod pod;
pub mod quantity;
pub mod record;
pub mod resources;
pub mod sealed;
pub mod status;
pub mod time;
