//! A directory shaped like a node: what `/proc` and `/sys` say, as files that tests can write.
//!
//! A node is kept as one text, a *tree*, so that a diff shows what changed: a line that starts with
//! `/` names a file and the lines below, each after a tab, are its content; a name that ends in `/`
//! is an empty directory; `/name -> target` is a symbolic link; `#` starts a comment.

#![expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ballast::sys::{Root, Tree, Trees};

use crate::scratch::own_name;

/// How a node mounts its cgroups: v2 at `/sys/fs/cgroup`, v1 in a directory there for each
/// controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    V1,
    /// v1 beside a cgroup2 mount without controllers, `unified`.
    Hybrid,
    V2,
}

impl Layout {
    pub const ALL: [Self; 3] = [Self::V1, Self::Hybrid, Self::V2];

    /// Where the files of a controller are; of `unified`, those that cgroup2 alone has.
    pub fn mount(self, controller: &str) -> String {
        match self {
            Self::V2 => "/sys/fs/cgroup".to_owned(),
            Self::V1 | Self::Hybrid => format!("/sys/fs/cgroup/{controller}"),
        }
    }
}

/// Removed when dropped.
#[derive(Debug)]
pub struct FakeNode {
    base: PathBuf,
}

impl FakeNode {
    /// A node without any file.
    pub fn new() -> Result<Self> {
        let base = std::env::temp_dir().join(own_name("fake-node"));
        fs::create_dir_all(&base).with_context(|| format!("create {}", base.display()))?;
        Ok(Self { base })
    }

    /// The node of a tree.
    pub fn from_tree(tree: &str) -> Result<Self> {
        let node = Self::new()?;
        let mut current: Option<(&str, String)> = None;
        for (n, line) in (1..).zip(tree.lines()) {
            if let Some(content) = line.strip_prefix('\t') {
                let Some((_, text)) = &mut current else {
                    bail!("line {n}: content without a file");
                };
                text.push_str(content);
                text.push('\n');
                continue;
            }
            if let Some((path, text)) = current.take() {
                node.file(path, &text)?;
            }
            if let Some((path, target)) = line.split_once(" -> ") {
                node.link(path, target)?;
            } else if line.starts_with('/') && line.ends_with('/') {
                node.directory(line)?;
            } else if line.starts_with('/') {
                current = Some((line, String::new()));
            } else if !line.is_empty() && !line.starts_with('#') {
                bail!("line {n}: `{line}` is neither a path, content after a tab, nor a comment");
            }
        }
        if let Some((path, text)) = current {
            node.file(path, &text)?;
        }
        Ok(node)
    }

    /// The directory that stands for `/`.
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// What the readers take for the root of the node.
    pub fn root(&self) -> Root {
        Root::at(&self.base)
    }

    /// Its hierarchies; on v1 one for each of these controllers. Their directories are made.
    pub fn trees(&self, layout: Layout, controllers: &[&str]) -> Result<Arc<Trees>> {
        let open = |controllers: &[&str], mount: &str| {
            self.directory(mount)?;
            let controllers: BTreeSet<_> = controllers.iter().map(ToString::to_string).collect();
            Ok(Tree::open(controllers, &self.root().path(mount))?)
        };
        let mut trees: Vec<Tree> = match layout {
            Layout::V2 => vec![open(&[], &layout.mount(""))?],
            Layout::V1 | Layout::Hybrid => controllers
                .iter()
                .map(|it| open(&[it], &layout.mount(it)))
                .collect::<Result<_>>()?,
        };
        if layout == Layout::Hybrid {
            trees.push(open(&[], &layout.mount("unified"))?);
        }
        Ok(Arc::new(Trees {
            unified: layout == Layout::V2,
            trees,
        }))
    }

    /// Writes a file, with the directories above it.
    pub fn file(&self, path: &str, text: &str) -> Result<&Self> {
        let path = self.make_parent(path)?;
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        Ok(self)
    }

    pub fn link(&self, path: &str, target: &str) -> Result<&Self> {
        let path = self.make_parent(path)?;
        symlink(target, &path).with_context(|| format!("link {}", path.display()))?;
        Ok(self)
    }

    pub fn directory(&self, path: &str) -> Result<&Self> {
        let path = self.path(path);
        fs::create_dir_all(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(self)
    }

    /// Takes a file or a directory away.
    pub fn remove(&self, path: &str) -> Result<&Self> {
        let path = self.path(path);
        let removed = if path.is_dir() {
            fs::remove_dir_all(&path)
        } else {
            fs::remove_file(&path)
        };
        removed.with_context(|| format!("remove {}", path.display()))?;
        Ok(self)
    }

    /// Writes the files of sysfs for these CPUs, all of them online, and for NUMA nodes with a GiB
    /// each.
    pub fn cpus(&self, cpus: &[CpuPlace]) -> Result<&Self> {
        const CPU: &str = "/sys/devices/system/cpu";
        const NODE: &str = "/sys/devices/system/node";
        let list = |key: &dyn Fn(&CpuPlace) -> bool| {
            let ids = cpus
                .iter()
                .filter(|it| key(it))
                .map(|it| it.cpu.to_string());
            ids.collect::<Vec<_>>().join(",") + "\n"
        };
        self.file(&format!("{CPU}/online"), &list(&|_| true))?;
        for cpu in cpus {
            let directory = format!("{CPU}/cpu{}", cpu.cpu);
            let number = |n: u32| format!("{n}\n");
            self.file(&format!("{directory}/topology/core_id"), &number(cpu.core))?
                .file(
                    &format!("{directory}/topology/physical_package_id"),
                    &number(cpu.package),
                )?
                .file(
                    &format!("{directory}/topology/core_cpus_list"),
                    &list(&|it| (it.package, it.core) == (cpu.package, cpu.core)),
                )?;
            let cache = format!("{directory}/cache/index3");
            self.file(&format!("{cache}/level"), "3\n")?
                .file(&format!("{cache}/id"), &number(cpu.llc))?
                .file(
                    &format!("{cache}/shared_cpu_list"),
                    &list(&|it| it.llc == cpu.llc),
                )?;
        }
        let nodes: BTreeMap<u32, ()> = cpus.iter().map(|it| (it.numa_node, ())).collect();
        for id in nodes.keys() {
            let directory = format!("{NODE}/node{id}");
            let distances = nodes
                .keys()
                .map(|it| if it == id { "10" } else { "20" })
                .collect::<Vec<_>>()
                .join(" ");
            self.file(
                &format!("{directory}/cpulist"),
                &list(&|it| it.numa_node == *id),
            )?
            .file(&format!("{directory}/distance"), &format!("{distances}\n"))?
            .file(
                &format!("{directory}/meminfo"),
                &format!("Node {id} MemTotal: 1048576 kB\n"),
            )?;
        }
        Ok(self)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.base.join(path.trim_start_matches('/'))
    }

    fn make_parent(&self, path: &str) -> Result<PathBuf> {
        let path = self.path(path);
        let parent = path.parent().context("a file needs a name")?;
        fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
        Ok(path)
    }
}

impl Drop for FakeNode {
    fn drop(&mut self) {
        // What is left over lies in the temporary directory and hinders nobody.
        let _ = fs::remove_dir_all(&self.base);
    }
}

/// Where a CPU is; ids as the hardware gives them.
#[derive(Clone, Copy, Debug)]
pub struct CpuPlace {
    pub cpu: u32,
    pub numa_node: u32,
    pub package: u32,
    /// Unique in the package.
    pub core: u32,
    /// Unique in the machine.
    pub llc: u32,
}

/// Files of a node that the readers look at; `*` stands for any part of a name, and what is not
/// there is left out.
const CAPTURED: &[&str] = &[
    "/proc/cgroups",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/pressure/*",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/proc/self/ns/cgroup",
    "/proc/self/ns/pid",
    "/proc/self/ns/user",
    "/proc/self/status",
    "/proc/swaps",
    "/proc/sys/kernel/keys/root_max*",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/sys/devices/system/cpu/isolated",
    "/sys/devices/system/cpu/offline",
    "/sys/devices/system/cpu/online",
    "/sys/devices/system/cpu/cpu*/cache/index*/id",
    "/sys/devices/system/cpu/cpu*/cache/index*/level",
    "/sys/devices/system/cpu/cpu*/cache/index*/shared_cpu_list",
    "/sys/devices/system/cpu/cpu*/topology/core_cpus_list",
    "/sys/devices/system/cpu/cpu*/topology/core_id",
    "/sys/devices/system/cpu/cpu*/topology/physical_package_id",
    "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list",
    "/sys/devices/system/node/node*/cpulist",
    "/sys/devices/system/node/node*/distance",
    "/sys/devices/system/node/node*/hugepages/*/nr_hugepages",
    "/sys/devices/system/node/node*/meminfo",
    "/sys/fs/cgroup/cgroup.*",
    "/sys/fs/cgroup/*/cgroup.controllers",
    "/sys/fs/cgroup/*/cgroup.kill",
    "/sys/fs/cgroup/*/cgroup.procs",
    "/sys/fs/cgroup/*/cpu.cfs_quota_us",
    "/sys/fs/cgroup/*/cpu.max",
    "/sys/fs/cgroup/*/cpu.weight",
    "/sys/fs/cgroup/*/memory.max",
    "/sys/fs/cgroup/*/memory.memsw.limit_in_bytes",
    "/sys/fs/cgroup/*/memory.oom.group",
    "/sys/fs/cgroup/*/memory.swap.max",
    "/sys/kernel/btf/vmlinux",
    "/sys/kernel/mm/hugepages/*/nr_hugepages",
    "/sys/kernel/security/lockdown",
    "/sys/kernel/security/lsm",
];

/// The tree of the node below `base`. Binary files are kept empty, and of the mounts and of this
/// process only what the readers look at.
pub fn capture(base: &Path) -> Result<String> {
    let mut tree = String::new();
    for pattern in CAPTURED {
        let mut paths = vec![PathBuf::new()];
        for part in pattern.trim_start_matches('/').split('/') {
            paths = paths
                .iter()
                .flat_map(|it| matching(base, it, part))
                .collect();
        }
        for path in paths {
            let shown = Path::new("/").join(&path);
            let from = base.join(&path);
            if let Ok(target) = fs::read_link(&from) {
                writeln!(tree, "{} -> {}", shown.display(), target.display())?;
                continue;
            }
            // Some files of the kernel refuse to be read; those that only list processes would
            // tell of this machine's.
            let bytes = match shown.file_name().and_then(|it| it.to_str()) {
                Some("vmlinux" | "cgroup.procs" | "cgroup.threads" | "cgroup.kill") => Vec::new(),
                _ => fs::read(&from).unwrap_or_default(),
            };
            writeln!(tree, "{}", shown.display())?;
            for line in String::from_utf8_lossy(&bytes).lines() {
                if let Some(line) = reduce(&shown, line).filter(|it| !it.is_empty()) {
                    writeln!(tree, "\t{line}")?;
                }
            }
        }
    }
    Ok(tree)
}

/// Names in a directory that match a pattern with at most one `*`, in the order of their numbers.
fn matching(base: &Path, directory: &Path, pattern: &str) -> Vec<PathBuf> {
    let Some((prefix, suffix)) = pattern.split_once('*') else {
        let path = directory.join(pattern);
        let exists = base.join(&path).symlink_metadata().is_ok();
        return exists.then_some(path).into_iter().collect();
    };
    let mut names: Vec<String> = fs::read_dir(base.join(directory))
        .into_iter()
        .flatten()
        .filter_map(|it| it.ok()?.file_name().into_string().ok())
        .filter(|it| {
            it.len() >= pattern.len() - 1 && it.starts_with(prefix) && it.ends_with(suffix)
        })
        .collect();
    names.sort_by_key(|it| (it.len(), it.clone()));
    names.into_iter().map(|it| directory.join(it)).collect()
}

/// A line as it goes into the tree; `None` for one that no reader looks at or that tells of the
/// machine it came from.
fn reduce(path: &Path, line: &str) -> Option<String> {
    match path.to_str()? {
        "/proc/self/mountinfo" => {
            let fs_type = line.split(" - ").nth(1)?.split(' ').next()?;
            let is_kept = ["cgroup", "cgroup2", "bpf", "proc", "sysfs"].contains(&fs_type);
            (is_kept || line.contains(" /sys/fs/cgroup ")).then(|| line.to_owned())
        }
        "/proc/self/status" => ["Uid:", "CapEff:"]
            .iter()
            .any(|it| line.starts_with(it))
            .then(|| line.to_owned()),
        "/proc/self/cgroup" => {
            let (hierarchy, _) = line.rsplit_once(':')?;
            Some(format!("{hierarchy}:/"))
        }
        "/proc/sys/kernel/random/boot_id" => {
            Some("00000000-0000-4000-8000-000000000000".to_owned())
        }
        name if name.ends_with("/meminfo") => ["MemTotal:", "SwapTotal:"]
            .iter()
            .any(|it| line.contains(it))
            .then(|| line.to_owned()),
        _ => Some(line.to_owned()),
    }
}
