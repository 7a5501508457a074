//! Pure policy: data in, decision out. No IO, no clock, no log, no global state.

pub mod attribution;
pub mod cgroup_files;
pub mod cgroup_plan;
pub mod container_resources;
pub mod contention;
pub mod cpusets;
pub mod definition;
pub mod desired;
pub mod device_access;
pub mod ended;
pub mod env;
pub mod eviction;
pub mod kernel_records;
pub mod kube_events;
pub mod kube_root;
pub mod lifecycle;
pub mod missed_kills;
pub mod naming;
pub mod node_allocatable;
pub mod node_oom;
pub mod oom_bursts;
pub mod placement;
pub mod pleg;
pub mod pod_resources;
pub mod pod_state;
pub mod predicates;
pub mod preemption;
pub mod qos;
pub mod qos_cgroups;
pub mod reclaim_stalls;
pub mod reserved;
pub mod resource_settings;
pub mod strangers;
#[cfg(test)]
pub(crate) mod testing;
