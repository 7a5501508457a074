//! Puts the eBPF objects where `sources::bpf` embeds them from: `OUT_DIR/<object>.o` for each of
//! `ebpf_build::OBJECTS`. Prebuilt ones when `BALLAST_EBPF_OBJECTS` names their directory, else
//! built here, else empty, with a warning that says what is missing.
#![expect(
    clippy::disallowed_methods,
    reason = "a build script: its inputs are the environment and the file system"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

use anyhow::{Context, Result};
use ebpf_build::{BuildError, Layout, OBJECTS, PREBUILT_VARIABLE, Stamp};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Without the backtrace that cargo asks build scripts for: cargo's own messages are above.
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    let target = env::var("TARGET").context("TARGET is not set")?;
    println!("cargo::rustc-env=BALLAST_TARGET={target}");
    println!("cargo::rerun-if-env-changed={PREBUILT_VARIABLE}");
    if let Some(directory) = env::var_os(PREBUILT_VARIABLE) {
        return embed_prebuilt(Path::new(&directory), &out);
    }
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the crate is not in a workspace")?;
    let layout = Layout::of(workspace);
    rerun_if_sources_change(&layout);
    let toolchain = match ebpf_build::find() {
        Ok(toolchain) => toolchain,
        Err(missing) => {
            let stamp = Stamp::of(&layout);
            stamp
                .ensure()
                .with_context(|| format!("write {}", stamp.path().display()))?;
            println!("cargo::rerun-if-changed={}", stamp.path().display());
            return embed_nothing(&out, &format!("{missing}; `cargo xtask setup` gets them"));
        }
    };
    match ebpf_build::build(&toolchain, &layout) {
        Ok(objects) => {
            for (name, object) in OBJECTS.iter().zip(objects) {
                copy(&object, &embedded(&out, name))?;
            }
            Ok(())
        }
        Err(error @ BuildError::NoSources { .. }) => embed_nothing(&out, &error.to_string()),
        Err(error) => Err(error).context("build the eBPF objects"),
    }
}

/// The sources themselves, not their directory, whose `target/` an editor may fill.
fn rerun_if_sources_change(layout: &Layout) {
    for name in [
        "src",
        "abi/src",
        "abi/Cargo.toml",
        "Cargo.toml",
        "Cargo.lock",
        "rust-toolchain.toml",
    ] {
        let path = layout.sources.join(name);
        // Cargo takes a path that does not exist for one that always changes, which is right for
        // the manifest alone: without it there are no sources yet.
        if path.exists() || name == "Cargo.toml" {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

fn embed_prebuilt(directory: &Path, out: &Path) -> Result<()> {
    for name in OBJECTS {
        let object = directory.join(format!("{name}.o"));
        println!("cargo::rerun-if-changed={}", object.display());
        copy(&object, &embedded(out, name)).with_context(|| {
            format!("{PREBUILT_VARIABLE} must name a directory with an object file for each of {OBJECTS:?}")
        })?;
    }
    Ok(())
}

fn embed_nothing(out: &Path, why: &str) -> Result<()> {
    println!(
        "cargo::warning=this agent will see no kernel events, its eBPF objects are not built: {why}"
    );
    for name in OBJECTS {
        let path = embedded(out, name);
        fs::write(&path, b"").with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

fn embedded(out: &Path, name: &str) -> PathBuf {
    out.join(format!("{name}.o"))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("copy {} to {}", from.display(), to.display()))
}
