//! Kernels and the emulator from Debian's packages, unpacked into the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::cache;
use super::kernels::{Emulator, Kernel, Table};
use crate::debian::{self, Apt, fill, remove};
use crate::progress::{headline, note};

/// The package of a suite that depends on its newest kernel for virtual machines.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// Names that the parts of a kernel start with; with a digit next they are the parts themselves,
/// without it packages that depend on the newest of them.
const KERNEL_PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];

/// A kernel in the cache.
pub(super) struct UnpackedKernel {
    pub(super) image: PathBuf,
    /// As `uname -r`.
    pub(super) release: String,
}

/// The emulator and what else comes from its suites, under one root.
pub(super) struct UnpackedEmulator {
    pub(super) root: PathBuf,
}

impl UnpackedEmulator {
    pub(super) fn busybox(&self) -> PathBuf {
        self.root.join("bin/busybox")
    }
}

/// Why packages cannot be fetched, if some are needed and missing.
pub(super) fn cannot_fetch(table: &Table) -> Option<String> {
    let kept = || -> Result<bool> {
        let kernels = table.choose(&super::Selection::Default)?;
        let mut directories = vec![emulator_directory(&table.emulator)?];
        for kernel in kernels {
            directories.push(kernel_directory(kernel)?);
        }
        Ok(directories.iter().all(|it| it.exists()))
    };
    match kept() {
        Ok(true) => None,
        Ok(false) => debian::mirror().err().map(|error| format!("{error:#}")),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// Removes the kernels from the cache, and the emulator, so that they are fetched again.
pub(super) fn forget(emulator: &Emulator, kernels: &[&Kernel]) -> Result<()> {
    remove(&emulator_directory(emulator)?)?;
    kernels
        .iter()
        .try_for_each(|kernel| remove(&kernel_directory(kernel)?))
}

/// The kernel from the cache, fetched first if it is not there.
pub(super) fn kernel(kernel: &Kernel) -> Result<UnpackedKernel> {
    let directory = kernel_directory(kernel)?;
    if !directory.exists() {
        headline(format_args!(
            "fetch kernel {} from Debian {}",
            kernel.name, kernel.suite
        ));
        fill(&directory, |partial| fetch_kernel(kernel, partial))
            .with_context(|| format!("fetch kernel {}", kernel.name))?;
    }
    let release = directory.join("release");
    let release =
        fs::read_to_string(&release).with_context(|| format!("read {}", release.display()))?;
    Ok(UnpackedKernel {
        image: directory.join("vmlinuz"),
        release,
    })
}

/// The emulator from the cache, fetched first if it is not there.
pub(super) fn emulator(emulator: &Emulator) -> Result<UnpackedEmulator> {
    let root = emulator_directory(emulator)?;
    if !root.exists() {
        headline(format_args!(
            "fetch {} and its libraries from Debian",
            emulator.package
        ));
        fill(&root, |partial| fetch_emulator(emulator, partial)).context("fetch the emulator")?;
    }
    Ok(UnpackedEmulator { root })
}

fn kernel_directory(kernel: &Kernel) -> Result<PathBuf> {
    Ok(cache()?.join("kernels").join(&kernel.suite))
}

/// Another one for other packages or suites.
fn emulator_directory(emulator: &Emulator) -> Result<PathBuf> {
    let name = format!(
        "emulator-{}-{}",
        emulator.package,
        emulator.suites.join("-")
    );
    Ok(cache()?.join(name))
}

fn fetch_kernel(kernel: &Kernel, directory: &Path) -> Result<()> {
    let apt = Apt::new(&directory.join("apt"), &[&kernel.suite])?;
    let parts = newest_kernel(&apt)?;
    note(parts.join(" "));
    apt.download(&parts)?;
    let unpacked = directory.join("unpacked");
    apt.unpack(&unpacked)?;
    let (image, release) = find_image(&unpacked)
        .with_context(|| format!("no kernel image in the packages {}", parts.join(", ")))?;
    fs::rename(image, directory.join("vmlinuz")).context("keep the kernel")?;
    fs::write(directory.join("release"), release).context("keep the kernel's release")?;
    remove(&unpacked)?;
    apt.remove()
}

/// The image and its release: `/boot/vmlinuz-RELEASE`, from Linux 7.2 on
/// `/usr/lib/modules/RELEASE/vmlinuz`.
fn find_image(root: &Path) -> Option<(PathBuf, String)> {
    let names = |directory: &str| {
        let entries = fs::read_dir(root.join(directory))
            .into_iter()
            .flatten()
            .flatten();
        entries.filter_map(|it| it.file_name().into_string().ok())
    };
    let in_boot = names("boot").find_map(|name| {
        let release = name.strip_prefix("vmlinuz-")?.to_owned();
        Some((root.join("boot").join(&name), release))
    });
    in_boot.or_else(|| {
        names("usr/lib/modules").find_map(|release| {
            let image = root.join("usr/lib/modules").join(&release).join("vmlinuz");
            image.exists().then_some((image, release))
        })
    })
}

/// Unpacks the emulator with every library down to the C library, so that it runs whatever this
/// machine has installed.
fn fetch_emulator(emulator: &Emulator, directory: &Path) -> Result<()> {
    let suites: Vec<&str> = emulator.suites.iter().map(String::as_str).collect();
    let apt = Apt::new(&directory.join("apt"), &suites)?;
    let suite = emulator
        .suites
        .last()
        .context("the emulator has no suites")?;
    let arguments = [
        "--no-install-recommends",
        "--download-only",
        "--yes",
        "-t",
        suite,
        "install",
    ];
    apt.get(
        "download",
        &[&arguments[..], &[&emulator.package, "busybox-static"]].concat(),
    )?;
    apt.unpack(directory)?;
    apt.remove()
}

/// The packages with the image and the modules of the suite's newest kernel.
fn newest_kernel(apt: &Apt) -> Result<Vec<String>> {
    let depends = apt.cache(&["depends", "--recurse", "--important", KERNEL_PACKAGE])?;
    let parts = kernel_parts(&depends);
    ensure!(!parts.is_empty(), "{KERNEL_PACKAGE} depends on no kernel");
    Ok(parts)
}

/// The parts of kernels among the packages that `apt-cache depends --recurse` lists.
fn kernel_parts(depends: &str) -> Vec<String> {
    let mut parts: Vec<_> = depends
        .lines()
        // A package is at the start of its line, what it depends on is indented.
        .filter(|line| {
            KERNEL_PARTS.iter().any(|part| {
                line.strip_prefix(part)
                    .is_some_and(|it| it.starts_with(|it: char| it.is_ascii_digit()))
            })
        })
        .map(str::to_owned)
        .collect();
    parts.sort();
    parts.dedup();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_its_numbered_packages() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-7.2-cloud-amd64\n\
                       linux-image-7.2-cloud-amd64\n  Depends: linux-base\nlinux-base\n\
                       linux-modules-7.2-cloud-amd64\nlinux-binary-7.2-cloud-amd64\n";
        assert_eq!(
            kernel_parts(depends),
            [
                "linux-binary-7.2-cloud-amd64",
                "linux-image-7.2-cloud-amd64",
                "linux-modules-7.2-cloud-amd64"
            ]
        );
    }
}
