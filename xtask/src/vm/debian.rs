//! Kernels and the emulator from Debian's packages, unpacked into the cache.
//!
//! apt does the work, with directories of its own: the machine's package lists, its installed
//! packages and its sources are not touched. Which mirror it asks comes from the machine's apt
//! configuration, as do proxies and keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::cache;
use super::kernels::{Emulator, Kernel, Table};
use crate::progress::{self, headline, note};

/// The package of a suite that depends on its newest kernel for virtual machines.
const KERNEL_PACKAGE: &str = "linux-image-cloud-amd64";

/// Names that the parts of a kernel start with; with a digit next they are the parts themselves,
/// without it packages that depend on the newest of them.
const KERNEL_PARTS: [&str; 3] = ["linux-image-", "linux-binary-", "linux-modules-"];

/// The keys of every Debian suite, from package debian-archive-keyring, which apt depends on.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

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
        let mut directories = vec![emulator_directory()?];
        for kernel in kernels {
            directories.push(kernel_directory(kernel)?);
        }
        Ok(directories.iter().all(|it| it.exists()))
    };
    match kept() {
        Ok(true) => None,
        Ok(false) => mirror().err().map(|error| format!("{error:#}")),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// Removes the kernels from the cache, and the emulator, so that they are fetched again.
pub(super) fn forget(kernels: &[&Kernel]) -> Result<()> {
    remove(&emulator_directory()?)?;
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
        build(&directory, |partial| fetch_kernel(kernel, partial))
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
    let root = emulator_directory()?;
    if !root.exists() {
        headline(format_args!(
            "fetch {} and its libraries from Debian",
            emulator.package
        ));
        build(&root, |partial| fetch_emulator(emulator, partial)).context("fetch the emulator")?;
    }
    Ok(UnpackedEmulator { root })
}

fn kernel_directory(kernel: &Kernel) -> Result<PathBuf> {
    Ok(cache()?.join("kernels").join(&kernel.suite))
}

fn emulator_directory() -> Result<PathBuf> {
    Ok(cache()?.join("emulator"))
}

/// Fills a directory as a whole or not at all.
fn build(directory: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let partial = directory.with_added_extension(format!("partial-{}", std::process::id()));
    remove(&partial)?;
    create(&partial)?;
    let filled = fill(&partial).and_then(|()| {
        fs::rename(&partial, directory).with_context(|| format!("make {}", directory.display()))
    });
    if filled.is_err() {
        remove(&partial)?;
    }
    filled
}

fn fetch_kernel(kernel: &Kernel, directory: &Path) -> Result<()> {
    let apt = Apt::new(&directory.join("apt"), std::slice::from_ref(&kernel.suite))?;
    let mut arguments = vec!["download"];
    let parts = apt.kernel_parts()?;
    arguments.extend(parts.iter().map(String::as_str));
    note(parts.join(" "));
    apt.get("download", &arguments)?;
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
    let apt = Apt::new(&directory.join("apt"), &emulator.suites)?;
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

/// An apt with a state of its own, in which no package is installed.
struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Fetches the package lists of `suites`.
    fn new(directory: &Path, suites: &[String]) -> Result<Self> {
        let mirror = mirror()?;
        for it in ["lists/partial", "archives/partial"] {
            create(&directory.join(it))?;
        }
        let sources: String = suites
            .iter()
            .map(|suite| {
                format!(
                    "deb [arch=amd64 target=Packages signed-by={KEYRING}] {mirror} {suite} main\n"
                )
            })
            .collect();
        fs::write(directory.join("sources.list"), sources).context("write the apt sources")?;
        fs::write(directory.join("status"), "").context("write the apt status")?;
        let apt = Self {
            directory: directory.to_owned(),
        };
        apt.get("apt-get update", &["update"])?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let place = |name: &str| self.directory.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::SourceList={}", place("sources.list")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            "Dir::Etc::Preferences=/dev/null".to_owned(),
            "Dir::Etc::PreferencesParts=/dev/null".to_owned(),
            format!("Dir::State={}", place("")),
            format!("Dir::State::Lists={}", place("lists")),
            format!("Dir::State::status={}", place("status")),
            format!("Dir::Cache={}", place("")),
            format!("Dir::Cache::Archives={}", place("archives")),
            "APT::Architecture=amd64".to_owned(),
            // The system's own lock, and its user, who may not read the cache.
            "Debug::NoLocking=true".to_owned(),
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.current_dir(self.directory.join("archives"));
        command
    }

    fn get(&self, what: &str, arguments: &[&str]) -> Result<()> {
        // Its standard output is a page of package names.
        progress::capture(what, self.command("apt-get").arg("-qq").args(arguments)).map(drop)
    }

    /// The packages with the image and the modules of the suite's newest kernel.
    fn kernel_parts(&self) -> Result<Vec<String>> {
        let mut command = self.command("apt-cache");
        command.args(["depends", "--recurse", "--important", KERNEL_PACKAGE]);
        let parts = kernel_parts(&progress::quiet(&mut command)?);
        ensure!(!parts.is_empty(), "{KERNEL_PACKAGE} depends on no kernel");
        Ok(parts)
    }

    fn unpack(&self, to: &Path) -> Result<()> {
        create(to)?;
        let archives = self.directory.join("archives");
        let mut files: Vec<_> = fs::read_dir(&archives)
            .with_context(|| format!("read {}", archives.display()))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.retain(|it| it.extension().is_some_and(|it| it == "deb"));
        files.sort();
        for file in &files {
            progress::quiet(Command::new("dpkg-deb").arg("--extract").arg(file).arg(to))?;
        }
        note(format_args!("{} packages unpacked", files.len()));
        Ok(())
    }

    fn remove(self) -> Result<()> {
        remove(&self.directory)
    }
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

/// The Debian mirror that this machine's apt uses.
fn mirror() -> Result<String> {
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("kernels and qemu come from Debian's packages, and this machine has no apt");
    }
    if !Path::new(KEYRING).exists() {
        bail!("no {KEYRING}: install debian-archive-keyring");
    }
    let targets = progress::quiet(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(REPO_URI) $(RELEASE) $(COMPONENT)",
    ]))?;
    let os_release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    choose_mirror(&targets, &os_release)
        .context("no Debian mirror in this machine's apt configuration")
}

/// The first that serves the main component of the installed Debian release itself: those with its
/// updates or its security fixes do not carry the other suites.
fn choose_mirror(targets: &str, os_release: &str) -> Option<String> {
    let field = |name: &str| {
        os_release.lines().find_map(|line| {
            Some(
                line.strip_prefix(name)?
                    .strip_prefix('=')?
                    .trim_matches('"')
                    .to_owned(),
            )
        })
    };
    let codename = field("ID")
        .filter(|it| it == "debian")
        .and_then(|_| field("VERSION_CODENAME"))?;
    targets.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (uri, release, component) = (words.next()?, words.next()?, words.next()?);
        (release == codename && component == "main").then(|| uri.to_owned())
    })
}

fn create(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))
}

fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_is_the_one_of_the_installed_release() {
        let targets = "http://a/security/ bookworm-security main\n\
                       http://b/debian/ bookworm-updates main\n\
                       http://c/other bookworm contrib\n\
                       http://d/debian/ bookworm main\n";
        let debian = "ID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(
            choose_mirror(targets, debian).as_deref(),
            Some("http://d/debian/")
        );
        let ubuntu = "ID=ubuntu\nVERSION_CODENAME=noble\n";
        assert_eq!(choose_mirror(targets, ubuntu), None);
    }

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
