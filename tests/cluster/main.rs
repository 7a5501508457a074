//! The cluster lane: the agent beside a real kubelet, containerd and API server. Every function always
//! compiles; with the feature `privileged` it is a test. `cargo xtask test cluster` brings the cluster up.
//!
//! `BALLAST_CLUSTER` names its directory, `BALLAST_BIN` the agent. Pods are made by kubectl.
#![cfg_attr(
    not(feature = "privileged"),
    expect(dead_code, reason = "tests only with the feature")
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the lane speaks to the cluster beside the code under test"
)]

mod account;
mod asked_kubelet;
mod events;
mod kills;
mod names;
mod neighbours;
mod places;
mod settings;
mod workloads;
