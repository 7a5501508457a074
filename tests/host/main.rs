//! The host lane: real cgroups, real programs, this kernel. Every function always compiles; with the
//! feature `privileged` it is a test. Run on one thread: `cargo xtask test host`.
//!
//! Invariant: a test owns what it touches, waits with a deadline, and never passes by doing nothing.
#![cfg_attr(
    not(feature = "privileged"),
    expect(dead_code, reason = "tests only with the feature")
)]
#![expect(
    clippy::disallowed_methods,
    reason = "the lane arranges the node by itself, beside the code under test"
)]

mod ebpf;
mod metrics;
