//! The host lane: real cgroups, real programs, this kernel. Every function always compiles; with the
//! feature `privileged` it is a test. `cargo xtask test host` knows which of them run beside each other.
//!
//! `BALLAST_BIN` names the agent, `BALLAST_HOG` the program that misbehaves, `BALLAST_PLUGIN` the
//! device plugin, `BALLAST_PYTHON_GRPC` the modules of one in Python, `BALLAST_CADVISOR` cAdvisor;
//! `BALLAST_WITHOUT_CADVISOR` says why there is none.
//! `BALLAST_TEST_SCALE` (1 when it is not set) shrinks what is about numbers, for machines that are
//! emulated. `BALLAST_TEST_SEED` makes another storm of kills than the usual one. `BALLAST_VM` names
//! the kernel of a virtual machine, where a test may do to the machine what it likes.
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

mod ability;
mod beside;
mod cadvisor;
mod cpusets;
mod crash;
mod descriptors;
mod devices;
mod ebpf;
mod escapes;
mod eviction;
mod files;
mod forensics;
mod hardware;
mod hostile;
mod lifecycle;
mod limits;
mod lockdown;
mod look;
mod metrics;
mod missed;
mod moved;
mod node_memory;
mod node_oom;
mod observe;
mod oom;
mod placement;
mod pressure;
mod quiet;
mod readings;
mod redefined;
mod relief;
mod repair;
mod reserved;
mod room;
mod stalls;
mod stats;
mod top;

use std::io::Write;

use anyhow::{Context, Result};
use ballast::model::kernel::KernelVersion;

/// `n`, shrunk on machines that are emulated, and at least `min`.
fn scaled(n: u32, min: u32) -> Result<u32> {
    let Some(scale) = std::env::var_os("BALLAST_TEST_SCALE") else {
        return Ok(n);
    };
    let scale: f64 = scale
        .to_str()
        .and_then(|it| it.parse().ok())
        .filter(|it| (0.0..=1.0).contains(it))
        .context("BALLAST_TEST_SCALE is a number from 0 to 1")?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and not above n"
    )]
    let scaled = (f64::from(n) * scale).round() as u32;
    Ok(scaled.max(min))
}

/// Says what a test does not show on this machine, and why: the lane's closing line has it.
fn leave_out(what: impl std::fmt::Display) {
    say(format_args!("left out: {what}"));
}

/// A test that does to the machine what only a virtual one is for: the lanes of a real one have it not.
fn only_in_a_vm() -> Result<()> {
    let is_virtual = std::env::var_os("BALLAST_VM").is_some();
    anyhow::ensure!(
        is_virtual,
        "run it in a virtual machine: cargo xtask vm -- NAME"
    );
    Ok(())
}

/// The version of the kernel that the test runs on.
fn kernel() -> Result<KernelVersion> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(release.parse()?)
}

/// Says what a test that passed has shown here. Unlike what is printed by the macros it is not kept back.
fn say(text: impl std::fmt::Display) {
    // Nothing depends on it.
    writeln!(std::io::stdout(), "\n    {text}").ok();
}
