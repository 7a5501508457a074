//! Cgroups and processes of a test, on whichever version this kernel has.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use ballast::model::event::CgroupId;
use ballast::sources::bpf::WatchedRoot;
use ballast_tests::scratch::own_name;
use ballast_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The hierarchy that carries the memory controller.
pub(super) struct Hierarchy {
    pub(super) mount: PathBuf,
    pub(super) id: u32,
}

impl Hierarchy {
    pub(super) fn of_memory() -> Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/memory");
        if v1.join("memory.limit_in_bytes").exists() {
            let text = fs::read_to_string("/proc/self/cgroup")?;
            let line = text
                .lines()
                .find(|it| it.split(':').nth(1) == Some("memory"));
            let id = line.and_then(|it| it.split(':').next()?.parse().ok());
            return Ok(Self {
                mount: v1.into(),
                id: id.context("no memory hierarchy in /proc/self/cgroup")?,
            });
        }
        let mount = PathBuf::from("/sys/fs/cgroup");
        let controllers = fs::read_to_string(mount.join("cgroup.controllers"))
            .context("neither a v1 memory hierarchy nor cgroup v2 is mounted")?;
        if !controllers.split_whitespace().any(|it| it == "memory") {
            bail!("cgroup v2 has no memory controller");
        }
        Ok(Self { mount, id: 0 })
    }

    pub(super) fn is_v2(&self) -> bool {
        self.id == 0
    }
}

/// A cgroup that is removed, with its processes and children, when dropped.
pub(super) struct Cgroup {
    pub(super) path: PathBuf,
    is_v2: bool,
}

impl Cgroup {
    /// A top-level cgroup; the name tells whose it is.
    pub(super) fn root(name: &str) -> Result<Self> {
        let hierarchy = Hierarchy::of_memory()?;
        if hierarchy.is_v2() {
            fs::write(hierarchy.mount.join("cgroup.subtree_control"), "+memory")?;
        }
        Self::make(hierarchy.mount.join(own_name(name)), hierarchy.is_v2())
    }

    pub(super) fn child(&self, name: &str) -> Result<Self> {
        if self.is_v2 {
            fs::write(self.path.join("cgroup.subtree_control"), "+memory")?;
        }
        Self::make(self.path.join(name), self.is_v2)
    }

    fn make(path: PathBuf, is_v2: bool) -> Result<Self> {
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self { path, is_v2 })
    }

    pub(super) fn id(&self) -> Result<CgroupId> {
        Ok(CgroupId(fs::metadata(&self.path)?.ino()))
    }

    /// As root of what is watched; cgroups of tests lie directly below the mount.
    pub(super) fn watched(&self) -> Result<WatchedRoot> {
        let hierarchy = Hierarchy::of_memory()?;
        Ok(WatchedRoot {
            cgroup_id: self.id()?,
            level: 1,
            hierarchy_id: hierarchy.id,
            tells_ends: false,
            tells_stalls: true,
            unified: hierarchy.is_v2(),
        })
    }

    pub(super) fn limit_memory(&self, bytes: u64) -> Result<()> {
        let file = match self.is_v2 {
            true => "memory.max",
            false => "memory.limit_in_bytes",
        };
        Ok(fs::write(self.path.join(file), bytes.to_string())?)
    }

    /// Kills of one process of the cgroup take all of it along (v2).
    pub(super) fn kill_as_one(&self) -> Result<()> {
        Ok(fs::write(self.path.join("memory.oom.group"), "1")?)
    }

    /// Starts a shell script inside the cgroup; its first command runs there.
    pub(super) fn run(&self, script: &str) -> Result<Child> {
        Command::new("sh")
            .arg("-c")
            .arg(format!("echo 0 > \"$0/cgroup.procs\" && {script}"))
            .arg(&self.path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start sh")
    }

    /// Starts a process that takes memory until it is killed: `tail` keeps a line that never ends.
    pub(super) fn run_hog(&self) -> Result<Child> {
        self.run("exec tail -n 1 /dev/zero")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(error) = until("it is removed", || Ok(remove_tree(&self.path)?)) {
            eprintln!("{} is left over: {error:#}", self.path.display());
        }
    }
}

fn remove_tree(path: &Path) -> std::io::Result<()> {
    if !path.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    for pid in fs::read_to_string(path.join("cgroup.procs"))?.lines() {
        if let Ok(pid) = pid.parse()
            && pid != 0
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    fs::remove_dir(path)
}

/// A directory for pins, removed with all that is pinned when dropped.
pub(super) struct PinDirectory(pub(super) PathBuf);

impl PinDirectory {
    pub(super) fn new(name: &str) -> Self {
        Self(Path::new("/sys/fs/bpf").join(own_name(name)))
    }
}

impl Drop for PinDirectory {
    fn drop(&mut self) {
        if let Err(error) = ballast::sources::bpf::Streams::unpin_all(&self.0) {
            eprintln!("{} is left over: {error}", self.0.display());
        }
    }
}
