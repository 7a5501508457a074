//! `cargo xtask setup`: gets what the build needs and this machine lacks.
//!
//! Invariant: nothing is changed on a machine that has everything; elsewhere every command that
//! changes it is shown first.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ebpf_build::{LINKER_LLVM, LINKER_VERSION, Layout, Stamp, Toolchain};

use crate::progress::{self, Deadline, Stdout, headline, note};
use crate::{cadvisor, monitoring, python_grpc, vm, workspace};

/// The newest that fits Rust 1.95.
const DENY_VERSION: &str = "0.20.2";

/// How long somebody else may use apt: a new machine may be installing its upgrades.
const APT_PATIENCE: Duration = Duration::from_mins(10);

const APT_POLL: Duration = Duration::from_secs(2);

/// Get what the build needs: on Debian and Ubuntu as root, packages and bpf-linker
#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// A package, and a file that tells that what it brings is there already.
struct Need {
    package: &'static str,
    witness: &'static [&'static str],
}

/// For the compiler: its library source builds `core` for BPF.
const COMPILER: [Need; 2] = [
    Need {
        package: "rustc-web",
        witness: &["/usr/bin/rustc"],
    },
    Need {
        package: "rust-web-src",
        witness: &["/usr/lib/rustlib/src/rust/library/core/src/lib.rs"],
    },
];

/// For the linker: what its build needs.
const LINKER: [Need; 6] = [
    Need {
        package: "gcc",
        witness: &["/usr/bin/cc"],
    },
    Need {
        package: "libc6-dev",
        witness: &["/usr/include/stdio.h"],
    },
    Need {
        package: "llvm-22-dev",
        witness: &["/usr/lib/llvm-22/include/llvm-c/Core.h"],
    },
    Need {
        package: "libzstd-dev",
        witness: &["/usr/include/zstd.h"],
    },
    Need {
        package: "zlib1g-dev",
        witness: &["/usr/include/zlib.h"],
    },
    Need {
        package: "pkg-config",
        witness: &["/usr/bin/pkg-config"],
    },
];

/// For libFuzzer.
const CXX: [Need; 1] = [Need {
    package: "g++",
    witness: &["/usr/bin/c++"],
}];

/// For runc: the sandbox of every pod has a seccomp profile.
const SECCOMP: [Need; 2] = [
    Need {
        package: "libseccomp-dev",
        witness: &["/usr/include/seccomp.h"],
    },
    Need {
        package: "pkg-config",
        witness: &["/usr/bin/pkg-config"],
    },
];

/// For the tests of full screens, which look at them in a real terminal.
const TERMINAL: [Need; 1] = [Need {
    package: "tmux",
    witness: &["/usr/bin/tmux"],
}];

/// For a device plugin in another language, and the text of the API that it is generated from: commands
/// that show that they are there, and their packages.
const PYTHON_AND_GO: [(&[&str], &str); 2] = [
    (&["python3", "-m", "pip", "--version"], "python3-pip"),
    (&["go", "version"], "golang-go"),
];

pub(crate) fn run(_: &Arguments) -> Result<()> {
    let toolchain = toolchain()?;
    println!(
        "compiler  {} ({})",
        toolchain.rustc.display(),
        toolchain.version
    );
    println!("linker    {}", toolchain.linker.display());
    cxx_compiler()?;
    terminal()?;
    println!("monitoring  {}", monitoring::programs()?.display());
    println!("virtual machines  {}", virtual_machines());
    match cadvisor::program() {
        Ok(path) => println!("cadvisor  {}", path.display()),
        Err(error) => println!("cadvisor  not here: {error:#}"),
    }
    match python_grpc::modules() {
        Ok(path) => println!("gRPC of Python  {}", path.display()),
        Err(error) => println!("gRPC of Python  not now: {error:#}"),
    }
    Ok(())
}

/// The C++ compiler that libFuzzer is built with. What is missing is installed where that is
/// possible; else the error says what to install.
pub(crate) fn cxx_compiler() -> Result<()> {
    match env::var_os("CXX").is_some() || workspace::has_program("c++") {
        true => Ok(()),
        false => install(&CXX, "a C++ compiler"),
    }
}

/// The terminal that keeps its screen for who asks. What is missing is installed where that is
/// possible; else the error says what to install.
pub(crate) fn terminal() -> Result<()> {
    match workspace::has_program("tmux") {
        true => Ok(()),
        false => install(&TERMINAL, "tmux"),
    }
}

/// libseccomp, to build with. What is missing is installed where that is possible; else the error says what
/// to install.
pub(crate) fn seccomp() -> Result<()> {
    install(&SECCOMP, "libseccomp with headers, and pkg-config")
}

/// The eBPF tool chain. What is missing is installed where that is possible; else the error says
/// what to install.
pub(crate) fn toolchain() -> Result<Toolchain> {
    let missing = match ebpf_build::find() {
        Ok(toolchain) => return Ok(toolchain),
        Err(missing) => missing,
    };
    headline(format_args!("set up the eBPF tool chain: {missing}"));
    let mut needs: Vec<Need> = Vec::new();
    if !missing.compilers.is_empty() {
        needs.extend(COMPILER);
    }
    if !missing.linkers.is_empty() {
        needs.extend(LINKER);
    }
    let elsewhere = format!(
        "a compiler with library source (`rustup toolchain install nightly --component rust-src`) \
         and what bpf-linker {LINKER_VERSION} is built from: a C compiler, pkg-config, zlib, zstd \
         and LLVM {LINKER_LLVM} with headers"
    );
    install(&needs, &elsewhere)?;
    if !missing.linkers.is_empty() {
        build_linker()?;
    }
    let toolchain = ebpf_build::find()?;
    let stamp = Stamp::of(&Layout::of(&workspace::root()));
    stamp
        .renew()
        .with_context(|| format!("write {}", stamp.path().display()))?;
    Ok(toolchain)
}

/// They are needed by one lane of the tests alone, so what they lack is told and is no error.
fn virtual_machines() -> String {
    if let Some(why) = vm::cannot_run() {
        return format!("not here: {why}");
    }
    match vm::prepare() {
        Ok(releases) => format!("Linux {}", releases.join(", ")),
        Err(error) => format!("not now: {error:#}"),
    }
}

/// Python with pip, and Go. What is missing is installed where that is possible; else the error says
/// what to install.
pub(crate) fn python_and_go() -> Result<()> {
    let is_there = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        let output = command.args(&words[1..]).output();
        output.is_ok_and(|it| it.status.success())
    };
    let missing = PYTHON_AND_GO.iter().filter(|(shown, _)| !is_there(shown));
    let packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    install_packages(&packages, "Python 3 with pip, and Go")
}

/// Installs the packages of which no witness is there. `elsewhere`: what to install where there are
/// no such packages.
fn install(needs: &[Need], elsewhere: &str) -> Result<()> {
    let packages: Vec<_> = needs
        .iter()
        .filter(|need| !need.witness.iter().all(|it| Path::new(it).exists()))
        .map(|need| need.package)
        .collect();
    install_packages(&packages, elsewhere)
}

fn install_packages(packages: &[&str], elsewhere: &str) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("install {elsewhere}; on Debian: {list}");
    }
    if !workspace::is_root() {
        bail!("run as root: apt-get update && apt-get install --no-install-recommends {list}");
    }
    headline(format_args!("apt-get install {list}"));
    update_package_lists()?;
    let mut install = Command::new("apt-get");
    install
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("-o")
        .arg(format!("DPkg::Lock::Timeout={}", APT_PATIENCE.as_secs()))
        .args(["install", "--yes", "--no-install-recommends"])
        .args(packages);
    progress::run_whole("apt-get install", &mut install)?;
    Ok(())
}

/// The lock of the package lists is another one than dpkg's, and apt does not wait for it.
fn update_package_lists() -> Result<()> {
    let what = "apt-get update";
    let began = Instant::now();
    let mut has_waited = false;
    loop {
        let mut update = Command::new("sh");
        update
            .args(["-c", "exec apt-get update 2>&1"])
            .env("LC_ALL", "C");
        let finished = progress::watch(what, &mut update, Stdout::Keep, Deadline::default())?;
        let is_done = finished.status.success();
        if is_done || !is_locked(&finished.stdout) || began.elapsed() >= APT_PATIENCE {
            eprint!("{}", finished.stdout);
            ensure!(is_done, "{what}: {}", finished.status);
            return Ok(());
        }
        if !has_waited {
            note("waits for the package lists, which another apt has");
            has_waited = true;
        }
        thread::sleep(APT_POLL);
    }
}

/// Whether apt did nothing, because another one is at work.
fn is_locked(output: &str) -> bool {
    output.contains("Could not get lock")
}

/// Builds bpf-linker into the cache: about a minute.
fn build_linker() -> Result<()> {
    let linker = ebpf_build::cached_linker().context("no cache directory: HOME is not set")?;
    if linker.exists() {
        return Ok(());
    }
    let mut cargo = cargo_install("bpf-linker", LINKER_VERSION, root_of(&linker))?;
    cargo
        .args(["--no-default-features", "--features"])
        .arg(format!("llvm-{LINKER_LLVM}"))
        .env("LLVM_PREFIX", format!("/usr/lib/llvm-{LINKER_LLVM}"));
    progress::run("build bpf-linker", &mut cargo)?;
    Ok(())
}

/// cargo-deny in the cache, built first if it is not there: about two minutes, without
/// optimization, which would double that and save nothing on a project of this size.
pub(crate) fn cargo_deny() -> Result<PathBuf> {
    let root = ebpf_build::tools_dir()
        .context("no cache directory: HOME is not set")?
        .join(format!("cargo-deny-{DENY_VERSION}"));
    let cargo_deny = root.join("bin/cargo-deny");
    if !cargo_deny.exists() {
        let mut cargo = cargo_install("cargo-deny", DENY_VERSION, &root)?;
        progress::run("build cargo-deny", cargo.arg("--debug"))?;
    }
    Ok(cargo_deny)
}

/// The directory that `cargo install` put `bin/program` into.
fn root_of(program: &Path) -> &Path {
    program.ancestors().nth(2).unwrap_or(program)
}

fn cargo_install(package: &str, version: &str, root: &Path) -> Result<Command> {
    headline(format_args!(
        "build {package} {version} into {}",
        root.display()
    ));
    note("once per machine");
    fs::create_dir_all(root).with_context(|| format!("create {}", root.display()))?;
    let mut cargo = workspace::cargo();
    cargo
        .args(["install", package, "--locked", "--version"])
        .arg(format!("={version}"))
        .arg("--root")
        .arg(root)
        // Results of other tools do not belong among those of the project.
        .env_remove("CARGO_TARGET_DIR");
    Ok(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_apt_that_another_one_holds_up_is_told_from_one_that_fails() {
        for (output, expected) in [
            (
                "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)\n",
                true,
            ),
            (
                "E: Could not get lock /var/lib/apt/lists/lock - open (11: Resource temporarily unavailable)\n",
                true,
            ),
            (
                "E: The repository 'http://a bookworm Release' is not signed.\n",
                false,
            ),
            ("", false),
        ] {
            assert_eq!(is_locked(output), expected, "{output}");
        }
    }
}
