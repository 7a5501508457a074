//! A tree of cgroups as kubelet and a container runtime make it, below a root of its own, with programs of the
//! system in its containers: what mode `observe` is run beside.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cgroup;
use crate::scratch::own_name;
use crate::wait::wait_for;

/// Who names the cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

/// Whose containers they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    Containerd,
    Crio,
    Docker,
}

/// See the module. All of it is gone when it is dropped.
#[derive(Debug)]
pub struct KubeTree {
    pub driver: Driver,
    /// Name of the cgroup below the mounts.
    pub root: String,
    stem: String,
}

/// The cgroup of a pod.
#[derive(Clone, Debug)]
pub struct KubePod {
    pub driver: Driver,
    pub uid: String,
    /// From the mount.
    pub path: String,
}

/// The cgroup of a container.
#[derive(Clone, Debug)]
pub struct KubeContainer {
    pub id: String,
    /// From the mount.
    pub path: String,
}

/// A program in a container. It is ended when this is dropped.
#[derive(Debug)]
pub struct Program(Child);

/// Ids of 64 hexadecimal digits, one for each number.
pub fn container_id(n: u64) -> String {
    format!("{n:064x}")
}

const ADD_ETH0: &str = "ip link add eth0 type veth peer name far0";

/// Whether a program can have a network of its own: guests have kernels without modules.
pub fn makes_networks() -> Result<bool> {
    let made = Command::new("unshare")
        .args(["-n", "sh", "-c", ADD_ETH0])
        .stderr(Stdio::null())
        .status()
        .context("start unshare")?;
    Ok(made.success())
}

impl KubeTree {
    pub fn new(test: &str, driver: Driver) -> Result<Self> {
        // A dash in the name of a slice is another level.
        Self::of_stem(own_name(test).replace('-', "x"), driver)
    }

    /// One of the same `cgroupRoot`, as this driver has it on disk.
    pub fn by(&self, driver: Driver) -> Result<Self> {
        Self::of_stem(self.stem.clone(), driver)
    }

    fn of_stem(stem: String, driver: Driver) -> Result<Self> {
        let tree = Self {
            driver,
            root: match driver {
                Driver::Cgroupfs => stem.clone(),
                Driver::Systemd => format!("{stem}.slice"),
            },
            stem,
        };
        make(&tree.kubepods())?;
        Ok(tree)
    }

    /// The cgroup of all pods, from the mount.
    pub fn kubepods(&self) -> String {
        match self.driver {
            Driver::Cgroupfs => format!("/{}/kubepods", self.root),
            Driver::Systemd => format!("/{}/{}-kubepods.slice", self.root, self.stem),
        }
    }

    /// A Burstable pod.
    pub fn pod(&self, uid: &str) -> Result<KubePod> {
        self.pod_of(Some("burstable"), uid)
    }

    /// A container of a pod of [`KubeTree::pod`] where a runtime puts it that uses cgroupfs while kubelet uses systemd:
    /// in the cgroup `above`, outside of the cgroup of its pod, and of the tree.
    pub fn misplaced(&self, above: &str, uid: &str, n: u64) -> Result<KubeContainer> {
        let (slice, id) = (uid.replace('-', "_"), container_id(n));
        let path = format!(
            "{above}/{}-kubepods-burstable-pod{slice}.slice:cri-containerd:{id}",
            self.stem
        );
        make(&path)?;
        Ok(KubeContainer { id, path })
    }

    /// `qos`: of the QoS class, `None` for Guaranteed.
    pub fn pod_of(&self, qos: Option<&str>, uid: &str) -> Result<KubePod> {
        let path = match (self.driver, qos) {
            (Driver::Cgroupfs, None) => format!("{}/pod{uid}", self.kubepods()),
            (Driver::Cgroupfs, Some(qos)) => format!("{}/{qos}/pod{uid}", self.kubepods()),
            (Driver::Systemd, qos) => {
                let mut stem = format!("{}-kubepods", self.stem);
                let mut path = self.kubepods();
                if let Some(qos) = qos {
                    stem = format!("{stem}-{qos}");
                    path = format!("{path}/{stem}.slice");
                }
                format!("{path}/{stem}-pod{}.slice", uid.replace('-', "_"))
            }
        };
        make(&path)?;
        Ok(KubePod {
            driver: self.driver,
            uid: uid.to_owned(),
            path,
        })
    }
}

impl Drop for KubeTree {
    fn drop(&mut self) {
        cgroup::remove_in_all(&self.root);
    }
}

impl KubePod {
    /// The cgroup of a container, or of a sandbox: nothing tells them apart.
    pub fn container(&self, naming: Naming, n: u64) -> Result<KubeContainer> {
        let id = container_id(n);
        let name = match (naming, self.driver) {
            (Naming::Containerd | Naming::Docker, Driver::Cgroupfs) => id.clone(),
            (Naming::Crio, Driver::Cgroupfs) => format!("crio-{id}"),
            (Naming::Containerd, Driver::Systemd) => format!("cri-containerd-{id}.scope"),
            (Naming::Crio, Driver::Systemd) => format!("crio-{id}.scope"),
            (Naming::Docker, Driver::Systemd) => format!("docker-{id}.scope"),
        };
        let path = format!("{}/{name}", self.path);
        make(&path)?;
        Ok(KubeContainer { id, path })
    }

    pub fn limit(&self, mib: u64) -> Result<()> {
        limit(&self.path, mib)
    }

    /// As kubelet does at the end of a pod.
    pub fn remove(&self) {
        cgroup::remove_in_all(&self.path);
    }
}

impl KubeContainer {
    /// A cgroup that no runtime has made.
    pub fn at(path: &str) -> Result<Self> {
        make(path)?;
        Ok(Self {
            id: String::new(),
            path: path.to_owned(),
        })
    }

    pub fn limit(&self, mib: u64) -> Result<()> {
        limit(&self.path, mib)
    }

    /// Runs a shell script as a runtime runs a container: its shell is process 1 of a PID namespace.
    pub fn run(&self, script: &str) -> Result<Program> {
        self.run_in(&["unshare", "-p", "-f"], script)
    }

    /// The same in the PID namespace that `first` has made.
    pub fn run_beside(&self, first: &Program, script: &str) -> Result<Program> {
        let namespace = format!("/proc/{}/ns/pid_for_children", first.0.id());
        // There is none before it has a process.
        wait_for("the namespace has a process", || {
            Ok(fs::read_link(&namespace).is_ok())
        })?;
        let pid = format!("--pid={namespace}");
        self.run_in(&["nsenter", &pid], script)
    }

    /// The same in the PID namespace of the host.
    pub fn run_on_host(&self, script: &str) -> Result<Program> {
        self.run_in(&[], script)
    }

    /// The same as the sandbox of a pod, in a network of its own, which has the interface `eth0`.
    pub fn run_with_network(&self, script: &str) -> Result<Program> {
        self.run_in(
            &["unshare", "-n", "-p", "-f"],
            &format!("{ADD_ETH0}; {script}"),
        )
    }

    /// The part of a shell script that moves the shell here.
    pub fn joins(&self) -> String {
        let dirs = cgroup::dirs_in_all(&self.path).into_iter();
        dirs.map(|it| format!("echo 0 > {}/cgroup.procs; ", it.display()))
            .collect()
    }

    /// Comes back when the shell is here.
    fn run_in(&self, around: &[&str], script: &str) -> Result<Program> {
        let joins = self.joins();
        let script = format!("set -e; {joins} set +e; echo; exec >/dev/null; {script}");
        let words: Vec<&str> = around.iter().copied().chain(["sh", "-c"]).collect();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .arg(&script)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {words:?}"))?;
        let stdout = child.stdout.take();
        let program = Program(child);
        let mut said = [0];
        stdout
            .context("it is a pipe")?
            .read_exact(&mut said)
            .with_context(|| format!("enter {}", self.path))?;
        Ok(program)
    }

    /// Kills its processes; its cgroup stays.
    pub fn kill(&self) {
        let dirs = cgroup::dirs_in_all(&self.path);
        dirs.iter().for_each(|it| cgroup::kill_all(it));
    }

    /// As a runtime does when the last process has ended.
    pub fn remove(&self) {
        cgroup::remove_in_all(&self.path);
    }
}

impl Program {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> Result<()> {
        self.0.wait()?;
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended; what it started is ended with its cgroup.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Makes a cgroup in every hierarchy, with what a process needs to be in it.
pub fn make(path: &str) -> Result<()> {
    for mount in cgroup::mounts() {
        let mut dir = mount;
        for component in path.split('/').filter(|it| !it.is_empty()) {
            let parent = dir.clone();
            dir.push(component);
            if dir.is_dir() {
                continue;
            }
            enable_controllers(&parent);
            fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
            for file in ["cpuset.cpus", "cpuset.mems"] {
                // v1 wants them before the first process; v2 takes its parent's.
                if !cgroup::is_unified() && parent.join(file).exists() {
                    fs::write(dir.join(file), fs::read(parent.join(file))?)?;
                }
            }
        }
    }
    Ok(())
}

fn enable_controllers(parent: &Path) {
    for controller in ["memory", "cpu", "pids", "io", "cpuset"] {
        // One that is not there is not needed.
        fs::write(
            parent.join("cgroup.subtree_control"),
            format!("+{controller}"),
        )
        .ok();
    }
}

/// Memory, and no swap.
fn limit(path: &str, mib: u64) -> Result<()> {
    let bytes = (mib << 20).to_string();
    let dir = cgroup::dir_of("memory", path);
    let files: [(&str, &str); 2] = match cgroup::is_unified() {
        true => [("memory.max", &bytes), ("memory.swap.max", "0")],
        false => [
            ("memory.limit_in_bytes", &bytes),
            ("memory.memsw.limit_in_bytes", &bytes),
        ],
    };
    let mut n_written = 0;
    for (file, value) in files {
        if dir.join(file).exists() {
            fs::write(dir.join(file), value)?;
            n_written += 1;
        }
    }
    ensure!(n_written > 0, "{} has no limit of memory", dir.display());
    Ok(())
}
