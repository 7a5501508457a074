//! One run of cargo over `ebpf/`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::{env, fs, io};

use crate::strip::strip;
use crate::{Layout, OBJECTS, Toolchain};

/// BPF, little endian: every architecture that the agent is built for.
pub(crate) const TARGET: &str = "bpfel-unknown-none";

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("no eBPF sources: {manifest} does not exist")]
    NoSources { manifest: PathBuf },
    #[error("start {cargo}")]
    Start { cargo: PathBuf, source: io::Error },
    #[error("cargo build in {sources}: {status}")]
    Failed {
        sources: PathBuf,
        status: ExitStatus,
    },
    #[error("cargo build in {sources} made no {object}: OBJECTS names it, src/bin does not")]
    NoObject { sources: PathBuf, object: PathBuf },
    #[error("{path} is no object file of a 64-bit little-endian machine")]
    NotAnObject { path: PathBuf },
    #[error("read or write {path}")]
    Io { path: PathBuf, source: io::Error },
}

/// Builds every object and returns the path of each, in the order of [`OBJECTS`]. Cargo's messages
/// go to standard error. About 70 s the first time, when `core` is built; nothing changed: 0.2 s.
pub fn build(toolchain: &Toolchain, layout: &Layout) -> Result<Vec<PathBuf>, BuildError> {
    let manifest = layout.sources.join("Cargo.toml");
    if !manifest.exists() {
        return Err(BuildError::NoSources { manifest });
    }
    let status = command(toolchain, layout)
        .status()
        .map_err(|source| BuildError::Start {
            cargo: toolchain.cargo.clone(),
            source,
        })?;
    if !status.success() {
        return Err(BuildError::Failed {
            sources: layout.sources.clone(),
            status,
        });
    }
    OBJECTS.iter().map(|name| finish(layout, name)).collect()
}

/// Makes what the agent embeds of what the linker left.
fn finish(layout: &Layout, name: &str) -> Result<PathBuf, BuildError> {
    let linked = layout.linked(name);
    if !linked.exists() {
        return Err(BuildError::NoObject {
            sources: layout.sources.clone(),
            object: linked,
        });
    }
    let elf = fs::read(&linked).map_err(io_error(&linked))?;
    let Some(stripped) = strip(&elf) else {
        return Err(BuildError::NotAnObject { path: linked });
    };
    let object = layout.object(name);
    if let Some(directory) = object.parent() {
        fs::create_dir_all(directory).map_err(io_error(directory))?;
    }
    fs::write(&object, stripped).map_err(io_error(&object))?;
    Ok(object)
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| BuildError::Io { path, source }
}

fn command(toolchain: &Toolchain, layout: &Layout) -> Command {
    let mut command = Command::new(&toolchain.cargo);
    command
        .current_dir(&layout.sources)
        .args([
            "build",
            "--release",
            "--locked",
            "-Z",
            "build-std=core",
            "--target",
            TARGET,
        ])
        .arg("--target-dir")
        .arg(&layout.target)
        .stdin(Stdio::null())
        // A build script's standard output is read by the outer cargo.
        .stdout(Stdio::null());
    for (name, _) in env::vars_os().filter(|(name, _)| belongs_to_the_outer_build(name)) {
        command.env_remove(name);
    }
    command
        // `-Z` and `build-std` on a compiler that is not a nightly.
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTC", &toolchain.rustc)
        .env("CARGO_ENCODED_RUSTFLAGS", rustflags(&toolchain.linker));
    command
}

/// Debug information and `--btf` are part of the program: map definitions and the verifier's source
/// lines come from them.
fn rustflags(linker: &Path) -> OsString {
    let mut flags = OsString::from("-Cdebuginfo=2\x1f-Clink-arg=--btf\x1f-Clinker=");
    flags.push(linker);
    flags
}

/// What the outer cargo sets for the host's compiler would be taken for settings of this build.
fn belongs_to_the_outer_build(name: &OsStr) -> bool {
    const NAMES: [&str; 9] = [
        "HOST",
        "OUT_DIR",
        "RUSTC",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOCFLAGS",
        "RUSTFLAGS",
        "RUSTUP_TOOLCHAIN",
        "TARGET",
    ];
    let name = name.to_string_lossy();
    NAMES.contains(&&*name) || (name.starts_with("CARGO_") && name != "CARGO_HOME")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_outer_build_are_dropped_and_the_registry_is_kept() {
        for (name, dropped) in [
            ("RUSTFLAGS", true),
            ("CARGO_ENCODED_RUSTFLAGS", true),
            ("CARGO_TARGET_DIR", true),
            ("CARGO_HOME", false),
            ("HOME", false),
            ("PATH", false),
        ] {
            assert_eq!(
                belongs_to_the_outer_build(OsStr::new(name)),
                dropped,
                "{name}"
            );
        }
    }
}
