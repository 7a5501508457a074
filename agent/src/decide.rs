//! Pure policy: data in, decision out. No IO, no clock, no log, no global state.

pub mod container_resources;
pub mod lifecycle;
pub mod node_allocatable;
pub mod pleg;
pub mod pod_resources;
pub mod qos;
pub mod qos_cgroups;
pub mod resource_settings;
#[cfg(test)]
pub(crate) mod testing;
