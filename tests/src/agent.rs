//! An agent under test: the real binary, with a state directory, a cgroup root, a socket and a pin
//! directory of its own, so that several live beside each other and beside the node's own.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// How long a test waits for anything by default. Generous: in an emulated machine everything
/// takes twenty times as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// See the module. Everything it made is gone when it is dropped.
pub struct Agent {
    binary: PathBuf,
    pub dir: PathBuf,
    /// Name of the cgroup below the mounts.
    pub cgroup_root: String,
    pin_directory: PathBuf,
    /// Lines for the `kubelet:` section of the configuration, each with its indentation.
    pub kubelet: String,
    /// Where it serves metrics; empty: nowhere.
    pub metrics: String,
    child: Option<Child>,
}

impl Agent {
    /// Prepares, but does not start, an agent for one test.
    pub fn new(test: &str) -> Result<Self> {
        let binary = binary()?;
        let name = format!("ballast-{test}-{}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir_all(dir.join("pods"))?;
        Ok(Self {
            binary,
            pin_directory: Path::new("/sys/fs/bpf").join(&name),
            dir,
            cgroup_root: name,
            kubelet: String::new(),
            metrics: String::new(),
            child: None,
        })
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("ballast.sock")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn write_config(&self) -> Result<PathBuf> {
        let dir = self.dir.display();
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\n\
             kind: AgentConfiguration\n\
             mode: own\n\
             pods: {{source: manifests, manifestDirectory: {dir}/pods}}\n\
             runtime: {{type: process}}\n\
             stateDirectory: {dir}/state\n\
             socket: {dir}/ballast.sock\n\
             metrics: {{address: \"{metrics}\"}}\n\
             bpf: {{pinDirectory: {pins}}}\n\
             kubelet:\n  cgroupRoot: /{root}\n  failSwapOn: false\n{more}",
            pins = self.pin_directory.display(),
            root = self.cgroup_root,
            metrics = self.metrics,
            more = self.kubelet,
        );
        let path = self.dir.join("config.yaml");
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Starts the agent and waits until it answers on its socket.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    /// Starts the agent without waiting for anything.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "the agent runs already");
        let config = self.write_config()?;
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("agent.log"))?;
        let child = Command::new(&self.binary)
            .arg("run")
            .arg("--config")
            .arg(config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    pub fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                self.child = None;
                bail!("the agent ended with {status}:\n{}", self.log_tail());
            }
            if self.socket().exists() && self.status().is_ok() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the agent is not ready after {PATIENCE:?}:\n{}",
                    self.log_tail()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id())?);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                bail!(
                    "the agent ignored SIGTERM for {PATIENCE:?}:\n{}",
                    self.log_tail()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Writes a manifest the way an operator should: whole, then renamed.
    pub fn put_pod(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join("pods").join(file);
        let temporary = self.dir.join("pods").join(format!(".{file}"));
        fs::write(&temporary, text)?;
        fs::rename(temporary, path)?;
        Ok(())
    }

    pub fn remove_pod(&self, file: &str) -> Result<()> {
        Ok(fs::remove_file(self.dir.join("pods").join(file))?)
    }

    /// The document of `ballast status -o json`.
    pub fn status(&self) -> Result<Value> {
        let output = self.command(&["status", "-o", "json"])?;
        Ok(serde_json::from_str(&output)?)
    }

    /// All records of the given kinds, oldest first.
    pub fn events(&self, kinds: &str) -> Result<Vec<Value>> {
        let output = self.command(&["events", "-o", "json", "--kind", kinds])?;
        output
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }

    fn command(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(&self.binary)
            .args(args)
            .arg("--socket")
            .arg(self.socket())
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "ballast {}: {}{}",
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Waits until the status document satisfies `is_it`.
    #[track_caller]
    pub fn wait(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if let Ok(status) = &status
                && is_it(status)
            {
                return Ok(status.clone());
            }
            if Instant::now() > deadline {
                let last = match status {
                    Ok(status) => serde_json::to_string_pretty(&status["pods"])?,
                    Err(error) => format!("{error:#}"),
                };
                bail!(
                    "not after {PATIENCE:?}: {what}\nlast status: {last}\nlog: {}",
                    self.log_tail()
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until the records of `kind` satisfy `is_it`.
    pub fn wait_events(
        &self,
        what: &str,
        kind: &str,
        is_it: impl Fn(&[Value]) -> bool,
    ) -> Result<Vec<Value>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let events = self.events(kind)?;
            if is_it(&events) {
                return Ok(events);
            }
            if Instant::now() > deadline {
                bail!(
                    "not after {PATIENCE:?}: {what}\nlast {kind} events: {events:#?}\nlog: {}",
                    self.log_tail()
                );
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The last lines of the agent's log.
    pub fn log_tail(&self) -> String {
        let Ok(file) = fs::File::open(self.dir.join("agent.log")) else {
            return "(no log)".into();
        };
        let lines: Vec<String> = BufReader::new(file).lines().map_while(Result::ok).collect();
        lines
            .get(lines.len().saturating_sub(40)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// Directories of the agent's own root cgroup, one per hierarchy that has it.
    pub fn cgroup_dirs(&self) -> Vec<PathBuf> {
        cgroup_mounts()
            .into_iter()
            .map(|mount| mount.join(&self.cgroup_root))
            .filter(|dir| dir.is_dir())
            .collect()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- log of the agent ---\n{}", self.log_tail());
        }
        // Best effort: a test that failed must still leave the machine as it was.
        if let Err(error) = self.kill() {
            eprintln!("kill the agent: {error:#}");
        }
        let deadline = Instant::now() + PATIENCE;
        while !self.cgroup_dirs().is_empty() && Instant::now() < deadline {
            for dir in self.cgroup_dirs() {
                clear_cgroup(&dir);
            }
            thread::sleep(Duration::from_millis(20));
        }
        for dir in [&self.dir, &self.pin_directory] {
            if dir.exists()
                && let Err(error) = fs::remove_dir_all(dir)
            {
                eprintln!("remove {}: {error}", dir.display());
            }
        }
    }
}

/// Kills everything in a cgroup and below it and removes the directories that are empty by now.
fn clear_cgroup(dir: &Path) {
    for child in sub_dirs(dir) {
        clear_cgroup(&child);
    }
    let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| line.parse::<i32>().ok()) {
        // It may have ended since.
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid),
            nix::sys::signal::Signal::SIGKILL,
        )
        .ok();
    }
    // Busy while a process is still ending; the caller comes back.
    fs::remove_dir(dir).ok();
}

/// Sub-directories, sorted; none for a directory that is gone.
pub fn sub_dirs(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut dirs: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.is_dir() && !path.is_symlink())
        .collect();
    dirs.sort();
    dirs
}

/// Mount points of the cgroup hierarchies, v1 and v2.
pub fn cgroup_mounts() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let path = fields.next()?;
            let kind = fields.next()?;
            matches!(kind, "cgroup" | "cgroup2").then(|| PathBuf::from(path))
        })
        .collect()
}

/// True on a node whose controllers are on cgroup v2.
pub fn is_unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The mount of the hierarchy that accounts memory.
pub fn memory_mount() -> PathBuf {
    match is_unified() {
        true => PathBuf::from("/sys/fs/cgroup"),
        false => PathBuf::from("/sys/fs/cgroup/memory"),
    }
}

/// The agent to test: `BALLAST_BIN`, which the runner sets.
fn binary() -> Result<PathBuf> {
    let path = std::env::var_os("BALLAST_BIN")
        .map(PathBuf::from)
        .context("BALLAST_BIN must name the agent to test; `cargo xtask test host` sets it")?;
    ensure!(
        path.exists(),
        "BALLAST_BIN: {} is not there",
        path.display()
    );
    Ok(path)
}

/// The misbehaving program: `BALLAST_HOG`, or beside the agent.
pub fn hog() -> Result<PathBuf> {
    let path = match std::env::var_os("BALLAST_HOG") {
        Some(path) => PathBuf::from(path),
        None => binary()?.with_file_name("hog"),
    };
    ensure!(
        path.exists(),
        "the test program {} is not there",
        path.display()
    );
    Ok(path)
}
