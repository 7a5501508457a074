//! Where things are in the checkout, and how cargo is called.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The root of the checkout.
pub(crate) fn root() -> PathBuf {
    // `..` is resolved so that messages show short paths.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |it| root().join(it))
}

/// The cargo that runs this, in the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Named, since cargo's own configuration may have another one.
    command
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target());
    // Set by `cargo run` for this very program; in a nested build they would be settings of another
    // crate, and cargo would build what reads them anew.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The target that a statically linked program is built for: this machine's, named, so that the
/// flags below reach the program and not the build scripts.
pub(crate) fn static_target() -> String {
    format!("{}-unknown-linux-gnu", env::consts::ARCH)
}

/// The variable with the flags of the compiler for `target`, and for it alone.
pub(crate) fn rustflags_variable(target: &str) -> String {
    format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    )
}

/// Since this version, the start-up code of glibc reads packed relocations (elf/dynamic-link.h, `ELF_DYNAMIC_DO_RELR`).
const PACKS_RELOCATIONS: (u32, u32) = (2, 36);

/// Makes `command`, a `cargo build` or `cargo test`, link statically. A static glibc would still load the libraries of
/// the host that `/etc/nsswitch.conf` names, to resolve host names: the agent has it use files and DNS alone
/// (`ballast::sys::syscall`). Relocations are packed, which makes the agent 0.6 MB smaller.
pub(crate) fn link_statically(command: &mut Command) -> &mut Command {
    let target = static_target();
    let variable = rustflags_variable(&target);
    command
        .args(["--target", &target])
        // These would replace the flags below.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env(variable, static_flags(glibc()))
}

fn static_flags(glibc: Option<(u32, u32)>) -> String {
    let mut flags = "-Ctarget-feature=+crt-static".to_owned();
    if glibc >= Some(PACKS_RELOCATIONS) {
        flags.push_str(" -Clink-arg=-Wl,-z,pack-relative-relocs");
    }
    flags
}

/// Version of the C library that programs are linked with; `None`: nobody says.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    version(&String::from_utf8(output.ok()?.stdout).ok()?)
}

/// Of `glibc 2.36`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Cached files of this project, outside `target/`, so that `cargo clean` keeps them.
pub(crate) fn cache() -> Result<PathBuf> {
    let tools = ebpf_build::tools_dir().context("no cache directory: HOME is not set")?;
    Ok(tools.parent().unwrap_or(&tools).to_owned())
}

/// Whether there is a program of this name to be run.
pub(crate) fn has_program(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|it| it.join(name).exists())
}

/// Whether this process belongs to root.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn cargo_builds_where_its_programs_are_looked_for() {
        let target = target();
        let named = (OsStr::new("CARGO_TARGET_DIR"), Some(target.as_os_str()));
        assert!(cargo().get_envs().any(|it| it == named));
    }

    #[test]
    fn relocations_are_packed_where_the_c_library_reads_them() {
        for (text, right) in [
            ("glibc 2.36\n", true),
            ("glibc 2.41", true),
            ("glibc 3.0", true),
            ("glibc 2.35", false),
            ("glibc 2", false),
            ("musl 1.2", false),
            ("", false),
        ] {
            let flags = static_flags(version(text));
            assert_eq!(flags.contains("pack-relative-relocs"), right, "{text}");
            assert!(flags.contains("crt-static"), "{text}");
        }
    }
}
