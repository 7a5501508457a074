//! The kubelet of the node as a process: how it was started, and the files that it was told of, as it sees them itself.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::libc::ENOTDIR;

use crate::model::cgroup_name::KUBEPODS;
use crate::model::cgroup_path::CgroupPath;
use crate::model::kernel::{NS_PER_TICK, effective_uid, is_zombie, parent_pid, start_ticks};
use crate::model::kube_cgroup::{KubeLevel, parse};
use crate::sources::mounts::cgroup_of;
use crate::sys::input::MAX_CONFIG_BYTES;
use crate::sys::inside::{FoundFile, Inside};
use crate::sys::{FsError, Operation, Root, clock};

/// Its name, and those of programs with a kubelet inside.
const PROGRAMS: [(&str, Program); 6] = [
    ("kubelet", Program::Kubelet),
    ("k3s-server", Program::Other),
    ("k3s-agent", Program::Other),
    ("kubelite", Program::Other),
    ("microshift", Program::MicroShift),
    ("edgecore", Program::EdgeCore),
];

/// Where its settings are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// On its command line, and in files that this names. RKE2 runs it, too.
    Kubelet,
    /// In a file that it writes when it starts (MicroShift 4.20, pkg/node/kubelet.go).
    MicroShift,
    /// In its configuration, beside what is not kubelet's (KubeEdge 1.22, edge/pkg/edged).
    EdgeCore,
    /// k3s and MicroK8s: nowhere but in itself.
    Other,
}

/// Where the runtimes that k3s and MicroK8s bring along have their sockets.
const SOCKETS_OF_K3S: &[&str] = &[
    "/run/k3s/containerd/containerd.sock",
    "/run/k3s/cri-dockerd/cri-dockerd.sock",
];
const SOCKETS_OF_MICROK8S: &[&str] = &["/var/snap/microk8s/common/run/containerd.sock"];

/// The verb by which MicroShift runs: others of it come and go beside it.
const MICROSHIFT_VERB: &str = "run";

/// Namespaces that a container has of its own, and the numbers of those that the kernel starts with
/// (include/linux/proc_ns.h, Linux 6.12: `PROC_CGROUP_INIT_INO`, `PROC_PID_INIT_INO`, `PROC_USER_INIT_INO`).
const FIRST_CGROUPS: (&str, u32) = ("cgroup", 0xEFFF_FFFB);
const FIRST_PIDS: (&str, u32) = ("pid", 0xEFFF_FFFC);
const FIRST_USERS: (&str, u32) = ("user", 0xEFFF_FFFD);

/// Drop-ins of a kubelet, and levels of directories below the first: more are not read.
const MAX_FILES: usize = 64;
const MAX_DEPTH: usize = 8;

/// A process that is called like kubelet, or like a program with one inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletProcess {
    pub pid: u32,
    /// Its `comm`.
    pub name: String,
    pub program: Program,
    /// In clock ticks since boot; 0: not known.
    start_ticks: u64,
}

/// All of them, by pid. Only processes of root count, and none in a pod: anyone can take the name. Nor one that another
/// has forked to start a program, which has its name and command line until then. Reads the name of every process of
/// the node.
pub fn find(root: &Root) -> Vec<KubeletProcess> {
    let pids = root.list("/proc").unwrap_or_default();
    let pids = pids.iter().filter_map(|it| it.parse().ok());
    let mut all: Vec<KubeletProcess> = pids.filter_map(|pid| look(root, pid)).collect();
    all.sort_unstable_by_key(|it| it.pid);
    if all.len() > 1 {
        let pids: Vec<u32> = all.iter().map(|it| it.pid).collect();
        all.retain(|it| !it.is_fork_of(root, &pids));
    }
    all
}

/// `None`: it is not one of them, or gone.
fn look(root: &Root, pid: u32) -> Option<KubeletProcess> {
    let text = |file: &str| root.read_text(format!("/proc/{pid}/{file}")).ok();
    let comm = text("comm")?;
    let name = comm.trim_end();
    let (_, program) = *PROGRAMS.iter().find(|(it, _)| *it == name)?;
    let status = text("status")?;
    // A container may call its program as it likes.
    let cgroup = text("cgroup").and_then(|it| cgroup_of(&it, "memory"));
    let is_in_pod = cgroup.is_some_and(|it| is_in_pod(&it));
    let is_it = effective_uid(&status) == Some(0) && !is_zombie(&status) && !is_in_pod;
    let start_ticks = text("stat").and_then(|it| start_ticks(&it)).unwrap_or(0);
    let found = is_it.then(|| KubeletProcess {
        pid,
        name: name.to_owned(),
        program,
        start_ticks,
    })?;
    let is_verb = |it: &String| it == MICROSHIFT_VERB;
    let runs = program != Program::MicroShift || found.arguments(root).ok()?.iter().any(is_verb);
    runs.then_some(found)
}

/// Whether a cgroup lies in a pod. Seen from a cgroup namespace of the agent's own, the path of one beside it may leave
/// out the cgroup of all pods (`/../../podUID/ID`).
fn is_in_pod(cgroup: &str) -> bool {
    let names: Vec<&str> = cgroup.split('/').collect();
    let is_container = |pair: &[&str]| {
        let path = CgroupPath::new(format!("/{KUBEPODS}/{}", pair.join("/")));
        path.is_ok_and(|it| {
            let found = parse(&it, &CgroupPath::root());
            found.is_some_and(|it| matches!(it.level, KubeLevel::Container { .. }))
        })
    };
    cgroup.contains(KUBEPODS) || names.windows(2).any(is_container)
}

impl KubeletProcess {
    /// Whether its command line and files tell by what it is run.
    pub fn has_settings(&self) -> bool {
        self.program != Program::Other
    }

    /// Where the runtime that the program brings along may have its socket; empty: it brings none along.
    pub fn sockets_of_its_own(&self) -> &'static [&'static str] {
        match self.name.as_str() {
            "k3s-server" | "k3s-agent" => SOCKETS_OF_K3S,
            "kubelite" => SOCKETS_OF_MICROK8S,
            _ => &[],
        }
    }

    /// Whether one of `pids` has forked it and it is still as that one, or has become another program by now.
    fn is_fork_of(&self, root: &Root, pids: &[u32]) -> bool {
        let stat = root.read_text(format!("/proc/{}/stat", self.pid));
        let parent = parent_pid(&stat.unwrap_or_default()).filter(|it| pids.contains(it));
        let line = |pid: u32| root.read(format!("/proc/{pid}/cmdline")).ok();
        parent.is_some_and(|it| line(it) == line(self.pid)) || !self.is_there(root)
    }

    /// Whether it still runs.
    pub fn is_there(&self, root: &Root) -> bool {
        look(root, self.pid).as_ref() == Some(self)
    }

    /// Whether it sees the cgroups as this node's first process does; as [`is_of_the_node`](Self::is_of_the_node).
    pub fn has_cgroups_of_the_node(&self, root: &Root) -> bool {
        self.shares(root, &FIRST_CGROUPS)
    }

    /// Whether it shares the namespaces of the node's first process that a container has of its own. Where those of the
    /// first process cannot be read, they are taken to be the kernel's first. False where its own cannot be read.
    pub fn is_of_the_node(&self, root: &Root) -> bool {
        let kinds = [FIRST_CGROUPS, FIRST_PIDS, FIRST_USERS];
        kinds.iter().all(|it| self.shares(root, it))
    }

    fn shares(&self, root: &Root, (kind, first): &(&str, u32)) -> bool {
        let of = |pid: u32| root.read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let of_node = of(1).unwrap_or_else(|| format!("{kind}:[{first}]").into());
        of(self.pid) == Some(of_node)
    }

    /// Boottime, to a clock tick.
    pub fn since_boot(&self) -> Duration {
        Duration::from_nanos(self.start_ticks.saturating_mul(NS_PER_TICK))
    }

    /// By the clock of the node as it goes now.
    pub fn started_at(&self) -> SystemTime {
        let age = clock::boottime().saturating_sub(self.since_boot());
        SystemTime::UNIX_EPOCH + clock::wall().saturating_sub(age)
    }

    /// What it was started with, without the name of the program. Other bytes than UTF-8 become U+FFFD.
    pub fn arguments(&self, root: &Root) -> Result<Vec<String>, FsError> {
        let path = format!("/proc/{}/cmdline", self.pid);
        let line = root.read(&path)?;
        // It becomes another program just now, or has ended.
        if line.is_empty() {
            let path = path.into();
            return Err(FsError::Gone { path });
        }
        let line = line.strip_suffix(b"\0").unwrap_or(&line);
        let parts = line.split(|it| *it == 0).skip(1);
        Ok(parts
            .map(|it| String::from_utf8_lossy(it).into_owned())
            .collect())
    }

    /// Its files.
    pub fn files(&self, root: &Root) -> Result<KubeletFiles, FsError> {
        let of = |file: &str| format!("/proc/{}/{file}", self.pid);
        Ok(KubeletFiles {
            inside: Inside::open(&root.path(of("root")))?,
            directory: root.read_link(of("cwd"))?,
        })
    }
}

/// The files of a kubelet: paths are as it has them, relative ones from where it was started.
#[derive(Debug)]
pub struct KubeletFiles {
    inside: Inside,
    directory: PathBuf,
}

impl KubeletFiles {
    pub fn path(&self, path: &Path) -> PathBuf {
        self.directory.join(path)
    }

    pub fn text(&self, path: &Path) -> Result<FoundFile, FsError> {
        self.inside.text(&self.path(path), MAX_CONFIG_BYTES)
    }

    pub fn bytes(&self, path: &Path, max_bytes: u64) -> Result<Vec<u8>, FsError> {
        self.inside.bytes(&self.path(path), max_bytes)
    }

    pub fn socket(&self, path: &Path) -> Result<OwnedFd, FsError> {
        self.inside.socket(&self.path(path))
    }

    /// The files of `directory` and below it whose names `is_it` takes, in the order of their paths, and when one came
    /// or went last. As kubelet looks for drop-ins: no link to a directory is followed, `directory` itself included if
    /// it has no slash at its end.
    pub fn find(
        &self,
        directory: &Path,
        is_it: impl Fn(&str) -> bool,
    ) -> Result<(Vec<PathBuf>, Option<SystemTime>), FsError> {
        let (mut found, mut modified) = (Vec::new(), None);
        let mut directories = vec![(self.path(directory), 0)];
        while let Some((directory, depth)) = directories.pop() {
            let listing = match self.inside.list(&directory) {
                Err(error) if depth == 0 && error.errno() == Some(ENOTDIR) => continue,
                listing => listing?,
            };
            modified = modified.max(Some(listing.modified));
            for (name, is_directory) in listing.entries {
                let path = directory.join(&name);
                match is_directory {
                    true if depth < MAX_DEPTH => directories.push((path, depth + 1)),
                    true => {}
                    false if is_it(&name) => found.push(path),
                    false => {}
                }
            }
            if found.len() > MAX_FILES {
                let error = io::Error::other(format!("there are more than {MAX_FILES} files"));
                return Err(FsError::new(Operation::List, &directory, error));
            }
        }
        found.sort();
        Ok((found, modified))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_known_from_a_cgroup_namespace_beside_it_too() {
        let id = "0".repeat(64);
        for (cgroup, right) in [
            (format!("/kubepods/burstable/poda/{id}"), true),
            ("/kubepods.slice/kubepods-poda.slice".to_owned(), true),
            (format!("/../../podb/{id}"), true),
            (format!("/../../../besteffort/podb/{id}/init"), true),
            (format!("/../../podb/crio-{id}"), true),
            ("/".to_owned(), false),
            (
                "/../../../../system.slice/kubelet.service".to_owned(),
                false,
            ),
            // As Talos has it.
            ("/../../../../podruntime/kubelet".to_owned(), false),
            (format!("/system.slice/docker-{id}.scope/kubelet"), false),
        ] {
            assert_eq!(is_in_pod(&cgroup), right, "{cgroup}");
        }
    }
}
