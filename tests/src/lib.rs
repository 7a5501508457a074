//! What the test targets share.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the node as anybody does, not through the agent's own eyes"
)]

pub mod agent;
pub mod api_server;
pub mod cadvisor;
pub mod cgroup;
pub mod cgroup_writes;
pub mod cluster;
pub mod cri;
pub mod dashboards;
pub mod exposition;
pub mod fake_node;
pub mod figures;
pub mod formulas;
pub mod known;
pub mod kube;
pub mod manifest;
pub mod numa;
pub mod placement;
pub mod prometheus;
pub mod sampler;
pub mod scrape;
pub mod scratch;
pub mod timing;
pub mod tls;
pub mod wait;
