//! Pure policy: data in, decision out. No IO, no clock, no log, no global state.

pub mod attribution;
pub mod cgroup_files;
pub mod cgroup_plan;
pub mod env;
pub mod kernel_records;
pub mod lifecycle;
pub mod pod_state;
