//! Debian's packages, of any of its suites, unpacked without being installed.
//!
//! apt does the work, with directories of its own: the machine's package lists, its installed
//! packages and its sources are not touched. Which mirror it asks comes from the machine's apt
//! configuration, as do proxies and keys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::progress::{self, note};

/// The keys of every Debian suite, from package debian-archive-keyring, which apt depends on.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Fills a directory as a whole or not at all.
pub(crate) fn fill(directory: &Path, with: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    remove_partial(directory)?;
    let partial = directory.with_added_extension(format!("partial-{}", std::process::id()));
    remove(&partial)?;
    create(&partial)?;
    let filled = with(&partial).and_then(|()| match fs::rename(&partial, directory) {
        // Another program has filled it meanwhile.
        Err(_) if directory.exists() => remove(&partial),
        renamed => renamed.with_context(|| format!("make {}", directory.display())),
    });
    if filled.is_err() {
        remove(&partial)?;
    }
    filled
}

/// Removes what programs have left that were ended while they filled it.
fn remove_partial(directory: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Ok(());
    };
    let prefix = format!("{}.partial-", name.display());
    for entry in fs::read_dir(parent).into_iter().flatten() {
        let path = entry
            .with_context(|| format!("list {}", parent.display()))?
            .path();
        let name = path.file_name().unwrap_or_default().display().to_string();
        let pid = name.strip_prefix(&prefix);
        if pid.is_some_and(|it| !Path::new("/proc").join(it).exists()) {
            remove(&path)?;
        }
    }
    Ok(())
}

/// Unpacks packages of a suite into a directory, and nothing that they depend on.
pub(crate) fn fetch(suite: &str, packages: &[&str], directory: &Path) -> Result<()> {
    let apt = Apt::new(&directory.join("apt"), &[suite])?;
    apt.download(packages)?;
    apt.unpack(directory)?;
    apt.remove()
}

/// An apt with a state of its own, in which no package is installed.
pub(crate) struct Apt {
    directory: PathBuf,
}

impl Apt {
    /// Fetches the package lists of `suites`.
    pub(crate) fn new(directory: &Path, suites: &[&str]) -> Result<Self> {
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

    /// Fetches these packages, each with `=VERSION` behind its name if there is only one good one,
    /// and nothing that they depend on.
    pub(crate) fn download(&self, packages: &[impl AsRef<str>]) -> Result<()> {
        let names = packages.iter().map(AsRef::as_ref);
        let arguments: Vec<&str> = std::iter::once("download").chain(names).collect();
        self.get("download", &arguments)
    }

    /// `apt-get` with these arguments; `what`: the word for it in what is shown.
    pub(crate) fn get(&self, what: &str, arguments: &[&str]) -> Result<()> {
        // Its standard output is a page of package names.
        progress::capture(what, self.command("apt-get").arg("-qq").args(arguments)).map(drop)
    }

    /// What `apt-cache` says to these arguments.
    pub(crate) fn cache(&self, arguments: &[&str]) -> Result<String> {
        progress::quiet(self.command("apt-cache").args(arguments))
    }

    /// Unpacks all that was fetched.
    pub(crate) fn unpack(&self, to: &Path) -> Result<()> {
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

    pub(crate) fn remove(self) -> Result<()> {
        remove(&self.directory)
    }
}

/// The Debian mirror that this machine's apt uses.
pub(crate) fn mirror() -> Result<String> {
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("no apt here, which Debian's packages are fetched with");
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

pub(crate) fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    fs::remove_dir_all(directory).with_context(|| format!("remove {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_program_has_filled_meanwhile_is_used() {
        let root = std::env::temp_dir().join(format!("ballast-fill-{}", std::process::id()));
        let directory = root.join("tools");
        let program = directory.join("program");
        let filled = fill(&directory, |_| {
            create(&directory)?;
            fs::write(&program, "of another").context("write a program")
        });
        let kept = fs::read_to_string(&program);
        let n_entries = fs::read_dir(&root).expect("it is there").count();
        remove(&root).expect("it can be removed");
        filled.expect("it is filled");
        assert_eq!(kept.expect("it is there"), "of another");
        assert_eq!(n_entries, 1, "nothing is left half-filled");
    }

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
}
