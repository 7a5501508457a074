//! What fuzzing runs: one function a target, from any bytes to nothing. It panics where the code
//! under test breaks a promise.
//!
//! The programs of `targets/` hand these functions to libFuzzer (`cargo xtask fuzz`). The unit tests
//! run them on the seeds, and on every input that once broke one.
#![expect(
    clippy::disallowed_methods,
    reason = "it reads recorded files and writes seeds, and is no part of the agent"
)]

pub mod cpuset;
pub mod device_state;
pub mod kube_cgroup;
pub mod manager_state;
pub mod plugin_messages;
pub mod recording;
pub mod seeds;

mod machine;

/// A target by its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. `cargo xtask fuzz` knows their programs as `fuzz-` and the name.
pub const TARGETS: &[Target] = &[
    ("cpuset", cpuset::run),
    ("manager-state", manager_state::run),
    ("device-state", device_state::run),
    ("plugin-messages", plugin_messages::run),
    ("recording", recording::run),
    ("kube-cgroup", kube_cgroup::run),
];

#[cfg(test)]
mod tests;
