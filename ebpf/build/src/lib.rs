//! Finds the eBPF tool chain and builds the objects of `ebpf/`. Used by `agent/build.rs`, so that a
//! plain `cargo build` embeds them, and by `cargo xtask build-ebpf`.
//!
//! Invariant: nothing is installed or downloaded here beyond what `cargo build --locked` fetches. A
//! missing tool chain is a value ([`Missing`]) that says what to install, never a panic, so that
//! `cargo check` works on every machine.
#![expect(
    clippy::disallowed_methods,
    reason = "a build tool: its inputs are the environment and the file system"
)]

mod compile;
mod paths;
mod stamp;
mod strip;
mod toolchain;

pub use compile::{BuildError, build};
pub use paths::{Layout, cached_linker, tools_dir};
pub use stamp::Stamp;
pub use toolchain::{LINKER_LLVM, LINKER_VERSION, Missing, Rejected, Toolchain, find};

/// The objects, one binary of `ebpf/src/bin` each: what one kernel refuses must not take the rest
/// with it. The agent embeds every one of them as `OUT_DIR/<object>.o`; an object of length 0 means
/// that it was built without the eBPF tool chain.
pub const OBJECTS: &[&str] = &[
    "cgroup",
    "device",
    "device_rules",
    "oom",
    "process",
    "stall",
];

/// Names a directory with `<object>.o` for each of [`OBJECTS`]: then nothing is built. For
/// packagers, who build the objects once with `cargo xtask build-ebpf --out DIR`.
pub const PREBUILT_VARIABLE: &str = "BALLAST_EBPF_OBJECTS";
