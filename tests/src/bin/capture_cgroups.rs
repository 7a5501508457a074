//! Prints the interface files of a few cgroups as a tree for `tests/data/cgroup`, and what cAdvisor
//! says about them.
//!
//! `capture_cgroups cgroupfs|systemd` makes the cgroups of two pods as that driver of kubelet's names
//! them, lets something run in them, freezes it, and prints files that change no more. With
//! `BALLAST_CADVISOR` the lines of cAdvisor's page about them follow, each behind `# cadvisor `.
//! In a VM: `cargo xtask vm KERNEL --program FILE -- cgroupfs`, with a static build as FILE.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it makes cgroups and reads them as anybody does"
)]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ballast_tests::cadvisor::{self, Cadvisor};
use ballast_tests::cgroup;

/// Everything is below it, and it is left out of what is printed.
const ROOT: &str = "ballast-capture";

/// How long what runs may use its cgroups.
const RUN: Duration = Duration::from_secs(8);

/// Between two looks at the files; cAdvisor has read them at least once in the meantime.
const SETTLE: Duration = Duration::from_millis(2_500);

const PATIENCE: Duration = Duration::from_secs(60);

/// Files that tell what a cgroup uses or may use; `*` is any part of a name.
const FILES: [&str; 33] = [
    "blkio.*_recursive",
    "cgroup.procs",
    "cpu.cfs_*_us",
    "cpu.max*",
    "cpu.pressure",
    "cpu.shares",
    "cpu.stat",
    "cpu.weight",
    "cpuacct.stat",
    "cpuacct.usage",
    "hugetlb.*",
    "io.pressure",
    "io.stat",
    "memory.current",
    "memory.events",
    "memory.failcnt",
    "memory.high",
    "memory.kmem.usage_in_bytes",
    "memory.limit_in_bytes",
    "memory.low",
    "memory.max",
    "memory.max_usage_in_bytes",
    "memory.memsw.*",
    "memory.min",
    "memory.numa_stat",
    "memory.oom_control",
    "memory.peak",
    "memory.pressure",
    "memory.soft_limit_in_bytes",
    "memory.stat",
    "memory.swap.*",
    "memory.usage_in_bytes",
    "pids.*",
];

/// A container, and what its cgroup is to hold.
struct Container {
    /// Its pod is burstable, and best effort otherwise.
    is_burstable: bool,
    uid: &'static str,
    /// Shorter than a runtime's, as everything else here in every line.
    id: &'static str,
    script: &'static str,
    settings: &'static [(&'static str, &'static str, &'static str)],
}

const CONTAINERS: [Container; 3] = [
    Container {
        is_burstable: true,
        uid: "5dbd6a5c-2a0f-4b3e-8f53-0c9d8c3f9a01",
        id: "3b0e8f0a6c5d",
        script: "while :; do :; done",
        settings: &[
            ("cpu", "cpu.cfs_quota_us", "20000"),
            ("cpu", "cpu.shares", "204"),
            ("cpu", "cpu.max", "20000 100000"),
            ("cpu", "cpu.weight", "8"),
            ("memory", "memory.limit_in_bytes", "67108864"),
            ("memory", "memory.max", "67108864"),
            ("pids", "pids.max", "100"),
        ],
    },
    Container {
        is_burstable: true,
        uid: "5dbd6a5c-2a0f-4b3e-8f53-0c9d8c3f9a01",
        id: "91c7e4d0b2a3",
        script: "dd if=/dev/zero of=$FILE bs=64k count=16 oflag=direct; \
                 dd if=/dev/zero of=$FILE bs=1M count=12; \
                 cat $FILE >/dev/null; sleep 600 & sleep 600 & sleep 600",
        settings: &[
            ("memory", "memory.limit_in_bytes", "16777216"),
            ("memory", "memory.max", "16777216"),
            ("memory", "memory.min", "4194304"),
            // Above the limit, or the kernel takes pages back between two readings.
            ("memory", "memory.soft_limit_in_bytes", "33554432"),
        ],
    },
    Container {
        is_burstable: false,
        uid: "c1a5b3f2-9f64-4f0e-bb1e-7d1c6a2e5f02",
        id: "f0e1d2c3b4a5",
        script: "x=$(head -c 20000000 /dev/zero | tr '\\0' x); sleep 600",
        settings: &[("cpu", "cpu.shares", "2"), ("cpu", "cpu.weight", "1")],
    },
];

fn main() -> Result<()> {
    let names = std::env::args().nth(1);
    let path = match names.as_deref() {
        Some("cgroupfs") => cgroupfs_path,
        Some("systemd") => systemd_path,
        _ => bail!("usage: capture_cgroups cgroupfs|systemd"),
    };
    let captured = capture(path);
    clear();
    print!("{}", captured?);
    Ok(())
}

/// From [`ROOT`], as kubelet and its runtime name it; likewise the next.
fn cgroupfs_path(container: &Container) -> PathBuf {
    let Container { uid, id, .. } = container;
    PathBuf::from(match container.is_burstable {
        true => format!("kubepods/burstable/pod{uid}/{id}"),
        false => format!("kubepods/besteffort/pod{uid}/{id}"),
    })
}

fn systemd_path(container: &Container) -> PathBuf {
    let (uid, id) = (container.uid.replace('-', "_"), container.id);
    let qos = match container.is_burstable {
        true => "kubepods-burstable",
        false => "kubepods-besteffort",
    };
    PathBuf::from(format!(
        "kubepods.slice/{qos}.slice/{qos}-pod{uid}.slice/cri-containerd-{id}.scope"
    ))
}

fn capture(path: fn(&Container) -> PathBuf) -> Result<String> {
    ensure!(
        cgroup::dirs_in_all(ROOT).is_empty(),
        "{ROOT} is there already"
    );
    let mut children = Vec::new();
    for container in &CONTAINERS {
        make(&path(container), container)?;
        children.push(Running(start(&path(container), container)?));
    }
    thread::sleep(RUN);
    for container in &CONTAINERS {
        freeze(&path(container))?;
    }
    // What runs elsewhere may make the kernel take pages back: only what stays the same while cAdvisor
    // reads belongs together.
    let cadvisor = match cadvisor::program() {
        Ok(_) => Some(Cadvisor::start(
            Duration::from_secs(1),
            &std::env::temp_dir(),
        )?),
        Err(_) => None,
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = print_files()?;
        thread::sleep(SETTLE);
        let said = cadvisor.as_ref().map(print_cadvisor).transpose()?;
        let after = print_files()?;
        if without_averages(&before) == without_averages(&after) {
            return Ok(after + &said.unwrap_or_default());
        }
        ensure!(
            Instant::now() < deadline,
            "the files of frozen cgroups go on changing"
        );
    }
}

/// Stalls are averaged over time, whether anything runs or not.
fn without_averages(tree: &str) -> Vec<&str> {
    tree.lines().filter(|it| !it.contains("avg10=")).collect()
}

fn print_files() -> Result<String> {
    let mut tree = format!(
        "# Linux {}",
        fs::read_to_string("/proc/sys/kernel/osrelease")?
    );
    if cgroup::is_unified() {
        // By it a reader knows the version.
        let file = "/sys/fs/cgroup/cgroup.controllers";
        print_file(&mut tree, file, Path::new(file))?;
    }
    for mount in cgroup::mounts() {
        let root = mount.join(ROOT);
        print_below(&mut tree, &mount, &root)?;
    }
    Ok(tree)
}

/// The directories down to a container's, in every hierarchy.
fn make(path: &Path, container: &Container) -> Result<()> {
    for mount in cgroup::mounts() {
        let mut directory = mount.clone();
        for name in Path::new(ROOT).join(path).components() {
            if cgroup::is_unified() {
                let controllers = fs::read_to_string(directory.join("cgroup.controllers"))?;
                for it in controllers.split_whitespace() {
                    // One that is bound elsewhere is refused.
                    fs::write(directory.join("cgroup.subtree_control"), format!("+{it}")).ok();
                }
            }
            let parent = directory.clone();
            directory.push(name);
            if !directory.exists() {
                fs::create_dir(&directory)
                    .with_context(|| format!("create {}", directory.display()))?;
            }
            for file in ["cpuset.cpus", "cpuset.mems"] {
                // Empty in a new cgroup of v1, into which nothing can be put then.
                if let Ok(value) = fs::read_to_string(parent.join(file))
                    && !value.trim().is_empty()
                {
                    fs::write(directory.join(file), value)?;
                }
            }
        }
    }
    for (controller, file, value) in container.settings {
        let id = format!("/{}", Path::new(ROOT).join(path).display());
        // Each version has files that the other has not.
        if cgroup::dir_of(controller, &id).join(file).exists() {
            cgroup::write(controller, &id, file, value)?;
        }
    }
    Ok(())
}

/// Killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
    }
}

fn start(path: &Path, container: &Container) -> Result<Child> {
    let joins: String = cgroup::mounts()
        .iter()
        .map(|it| it.join(ROOT).join(path))
        .map(|it| format!("echo $$ > {}/cgroup.procs; ", it.display()))
        .collect();
    // A program of its own, whose memory is charged where it runs.
    let script = format!("{joins} exec sh -c \"$SCRIPT\"");
    let file = std::env::temp_dir().join(format!("{ROOT}-{}", container.id));
    Command::new("/bin/sh")
        .args(["-c", &script])
        .env("SCRIPT", container.script)
        .env("FILE", file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start /bin/sh")
}

fn freeze(path: &Path) -> Result<()> {
    let id = format!("/{}", Path::new(ROOT).join(path).display());
    let (file, value, done, state) = match cgroup::is_unified() {
        true => ("cgroup.freeze", "1", "cgroup.events", "frozen 1"),
        false => ("freezer.state", "FROZEN", "freezer.state", "FROZEN"),
    };
    cgroup::write("freezer", &id, file, value)?;
    let deadline = Instant::now() + PATIENCE;
    while !cgroup::read("freezer", &id, done)?.contains(state) {
        ensure!(Instant::now() < deadline, "{id} does not freeze");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn clear() {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let directories = cgroup::dirs_in_all(ROOT);
        if directories.is_empty() {
            break;
        }
        for directory in &directories {
            thaw(directory);
            cgroup::clear(directory);
        }
        thread::sleep(Duration::from_millis(10));
    }
    for container in &CONTAINERS {
        // Only one of them writes a file.
        let file = std::env::temp_dir().join(format!("{ROOT}-{}", container.id));
        fs::remove_file(file).ok();
    }
    fs::remove_file(std::env::temp_dir().join("cadvisor.log")).ok();
}

fn thaw(directory: &Path) {
    if directory.join("cgroup.freeze").exists() {
        fs::write(directory.join("cgroup.freeze"), "0").ok();
    }
    for child in cgroup::sub_dirs(directory) {
        thaw(&child);
    }
}

/// The files of every cgroup below `directory`, as if that were the mount.
fn print_below(tree: &mut String, mount: &Path, directory: &Path) -> Result<()> {
    let root = mount.join(ROOT);
    for child in cgroup::sub_dirs(directory) {
        let mut files: Vec<PathBuf> = fs::read_dir(&child)?
            .map(|it| Ok(it?.path()))
            .collect::<Result<_>>()?;
        files.sort();
        for file in files {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            if FILES.iter().any(|it| matches(it, &name)) {
                let shown = mount.join(file.strip_prefix(&root)?);
                print_file(tree, &shown.display().to_string(), &file)?;
            }
        }
        print_below(tree, mount, &child)?;
    }
    Ok(())
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((prefix, suffix)) => name.starts_with(prefix) && name.ends_with(suffix),
        None => pattern == name,
    }
}

fn print_file(tree: &mut String, shown: &str, file: &Path) -> Result<()> {
    // Some can only be written.
    let Ok(text) = fs::read_to_string(file) else {
        return Ok(());
    };
    writeln!(tree, "{shown}")?;
    for line in text.lines() {
        writeln!(tree, "\t{line}")?;
    }
    Ok(())
}

/// What it says about the cgroups, once it has found them all.
fn print_cadvisor(cadvisor: &Cadvisor) -> Result<String> {
    let ids: BTreeSet<String> = CONTAINERS
        .iter()
        .flat_map(|it| [cgroupfs_path(it), systemd_path(it)])
        .map(|it| format!("/{ROOT}/{}", it.display()))
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while cadvisor::readings(&cadvisor.page()?, &ids).len() < CONTAINERS.len() {
        ensure!(Instant::now() < deadline, "cAdvisor does not find them");
        thread::sleep(Duration::from_millis(200));
    }
    let text = ballast_tests::scrape::text(cadvisor.address(), "/metrics")?;
    let below = format!("id=\"/{ROOT}/");
    let mut said = String::new();
    for line in text.lines().filter(|it| it.contains(&below)) {
        // What it says about every network connection of the machine is nothing of theirs.
        if !line.starts_with("container_network_") {
            writeln!(said, "# cadvisor {}", line.replace(&below, "id=\"/"))?;
        }
    }
    Ok(said)
}
