//! The place of the demo: a directory, a socket, pins and, alone on its node, a cgroup root of its own, the agent that
//! lives there, and what can be seen of it from outside.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{pods, text};
use crate::progress;
use crate::workspace;

/// Where the demo lives. Fixed, so that the next demo finds what an interrupted one left.
const DIRECTORY: &str = "/tmp/ballast-demo";
const CGROUP_ROOT: &str = "ballast-demo";
const PINS: &str = "/sys/fs/bpf/ballast-demo";
pub(super) const METRICS: &str = "127.0.0.1:9464";

/// How long the last pods may take to go.
const SWEEP: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

pub(super) struct Stage {
    program: PathBuf,
    directory: PathBuf,
    agent: Option<Child>,
}

impl Stage {
    pub(super) fn new(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            directory: PathBuf::from(DIRECTORY),
            agent: None,
        }
    }

    /// Of an earlier demo, if there are any.
    pub(super) fn sweep_leftovers(&mut self) -> Result<()> {
        if self.directory.exists() || !self.roots().is_empty() {
            progress::headline("Sweeping up what an earlier demo left");
            self.sweep()?;
        }
        Ok(())
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Writes a file that is gone with the demo.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.directory.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    fn manifests(&self) -> PathBuf {
        self.directory.join("pods")
    }

    /// Copies the example manifests; returns their names.
    pub(super) fn add_examples(&self) -> Result<Vec<String>> {
        fs::create_dir_all(self.manifests())?;
        let mut names = Vec::new();
        let examples = workspace::root().join("deploy/examples");
        for entry in fs::read_dir(&examples).with_context(|| examples.display().to_string())? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            fs::copy(entry.path(), self.manifests().join(&name))?;
            names.push(name);
        }
        names.sort();
        Ok(names)
    }

    /// Starts the agent; it is ready when [`Stage::status`] answers.
    pub(super) fn start(&mut self) -> Result<()> {
        fs::create_dir_all(self.manifests())?;
        let manifests = self.manifests();
        let settings = format!(
            "mode: own\n\
             pods: {{source: manifests, manifestDirectory: {manifests}}}\n\
             runtime: {{type: process}}\n\
             kubeletDirectory: {DIRECTORY}/kubelet\n\
             kubelet: {{cgroupRoot: /{CGROUP_ROOT}, failSwapOn: false, \
             singleProcessOOMKill: true, evictionHard: {{memory.available: 100Mi}}}}\n",
            manifests = manifests.display(),
        );
        self.launch(Command::new(&self.program), &settings)
    }

    /// Starts the agent by `command`, with these settings besides those of every demo.
    pub(super) fn launch(&mut self, mut command: Command, settings: &str) -> Result<()> {
        fs::create_dir_all(&self.directory)?;
        let config = self.directory.join("config.yaml");
        fs::write(
            &config,
            format!(
                "apiVersion: ballast.dev/v1alpha1\n\
                 kind: AgentConfiguration\n\
                 stateDirectory: {DIRECTORY}/state\n\
                 socket: {DIRECTORY}/ballast.sock\n\
                 metrics: {{address: \"{METRICS}\"}}\n\
                 bpf: {{pinDirectory: {PINS}}}\n\
                 {settings}",
            ),
        )?;
        let log = fs::File::create(self.directory.join("agent.log"))?;
        let child = command
            .args(["run", "--config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        self.agent = Some(child);
        Ok(())
    }

    fn ballast(&self, args: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(args)
            .arg("--socket")
            .arg(self.directory.join("ballast.sock"))
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "ballast {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(
            &self.ballast(&["status", "-o", "json"])?,
        )?)
    }

    pub(super) fn show_status(&self) -> Result<()> {
        for line in self.ballast(&["status"])?.lines() {
            progress::note(line);
        }
        Ok(())
    }

    /// Records of some kinds, oldest first.
    pub(super) fn events(&self, kinds: &str) -> Result<Vec<Value>> {
        self.ballast(&["events", "-o", "json", "--kind", kinds])?
            .lines()
            .map(|line| Ok(serde_json::from_str(line)?))
            .collect()
    }

    /// Asks until the status is as wanted.
    pub(super) fn wait_until(
        &mut self,
        deadline: Instant,
        what: &str,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        loop {
            if let Some(agent) = &mut self.agent
                && let Some(status) = agent.try_wait()?
            {
                self.agent = None;
                bail!("the agent ended with {status}:\n{}", self.log_tail());
            }
            match self.status() {
                Ok(status) if is_it(&status) => return Ok(status),
                Ok(_) | Err(_) if Instant::now() < deadline => thread::sleep(POLL),
                Ok(_) => bail!("never seen: {what}\n{}", self.log_tail()),
                Err(error) => return Err(error.context(format!("never seen: {what}"))),
            }
        }
    }

    /// Asks until there is a record of `kind` as wanted.
    pub(super) fn wait_for_event(
        &self,
        deadline: Instant,
        kind: &str,
        is_it: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        loop {
            if let Some(event) = self.events(kind)?.into_iter().find(|it| is_it(it)) {
                return Ok(event);
            }
            ensure!(
                Instant::now() < deadline,
                "no such {kind} event\n{}",
                self.log_tail()
            );
            thread::sleep(POLL);
        }
    }

    /// Waits until a container has printed `line`; returns its log file.
    pub(super) fn wait_for_log(
        &self,
        deadline: Instant,
        pod: &str,
        container: &str,
        line: &str,
    ) -> Result<PathBuf> {
        let logs = self.directory.join("state/logs");
        let prefix = format!("default_{pod}_");
        loop {
            for entry in fs::read_dir(&logs)? {
                let entry = entry?;
                if !entry.file_name().to_string_lossy().starts_with(&prefix) {
                    continue;
                }
                let log = entry.path().join(container).join("0.log");
                if fs::read_to_string(&log).is_ok_and(|it| it.contains(line)) {
                    return Ok(log);
                }
            }
            ensure!(
                Instant::now() < deadline,
                "{container} never printed {line:?}"
            );
            thread::sleep(POLL);
        }
    }

    pub(super) fn metrics_address(&self) -> Result<&'static str> {
        Ok(METRICS)
    }

    /// The text of `/metrics`.
    pub(super) fn metrics(&self) -> Result<String> {
        let mut stream = TcpStream::connect(METRICS).context(METRICS)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(
            answer.starts_with("HTTP/1.1 200"),
            "{METRICS}/metrics: {answer:.80}"
        );
        Ok(answer)
    }

    /// The memory limit of a cgroup, with the file that it stands in.
    pub(super) fn memory_limit(&self, cgroup: &str) -> Result<(PathBuf, String)> {
        read(match is_unified() {
            true => format!("/sys/fs/cgroup{cgroup}/memory.max"),
            false => format!("/sys/fs/cgroup/memory{cgroup}/memory.limit_in_bytes"),
        })
    }

    /// The CPU share of the BestEffort class.
    pub(super) fn cpu_share(&self, status: &Value) -> Result<(PathBuf, String)> {
        let root = text(&status["node"]["cgroup"]["root"]);
        read(match is_unified() {
            true => format!("/sys/fs/cgroup{root}/kubepods/besteffort/cpu.weight"),
            false => format!("/sys/fs/cgroup/cpu{root}/kubepods/besteffort/cpu.shares"),
        })
    }

    /// Says how to talk to the agent that stays, and how to end it.
    pub(super) fn leave_running(mut self) {
        let program = self.program.display();
        progress::note(format_args!(
            "{program} status --socket {DIRECTORY}/ballast.sock"
        ));
        progress::note(format_args!(
            "{program} events --follow --socket {DIRECTORY}/ballast.sock"
        ));
        progress::note(format_args!("http://{METRICS}/metrics"));
        progress::note(format_args!("manifests: {}", self.manifests().display()));
        progress::note("the next `cargo xtask demo` ends it and cleans up");
        self.agent = None;
    }

    /// Takes everything down: the pods through the agent, unless they are a kubelet's, then the agent, then what it
    /// lived in.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let deadline = Instant::now() + SWEEP;
        let manifests = self.manifests();
        if manifests.exists() {
            for entry in fs::read_dir(&manifests)? {
                fs::remove_file(entry?.path())?;
            }
            if self.agent.is_none() && self.status().is_err() {
                self.start()?;
            }
            self.wait_until(deadline, "every pod is gone", |it| pods(it).is_empty())?;
        }
        let told = self.status().ok();
        let told = told.map(|it| it["agent"]["pid"].to_string());
        let started = self.agent.as_ref().map(|it| it.id().to_string());
        if let Some(pid) = told.or(started) {
            run_quietly(Command::new("kill").args(["-TERM", &pid]))?;
            if let Some(mut agent) = self.agent.take() {
                let ended = agent.wait()?;
                ensure!(ended.success(), "the agent ended with {ended}");
            }
            while Path::new("/proc").join(&pid).exists() {
                ensure!(Instant::now() < deadline, "the agent {pid} does not end");
                thread::sleep(POLL);
            }
        }
        for root in self.roots() {
            remove_cgroups(&root)?;
        }
        for directory in [Path::new(PINS), &self.directory] {
            if directory.exists() {
                fs::remove_dir_all(directory).with_context(|| directory.display().to_string())?;
            }
        }
        Ok(())
    }

    /// The demo's root cgroup in every hierarchy.
    fn roots(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        mounts
            .lines()
            .filter_map(|line| {
                let mut fields = line.split(' ').skip(1);
                let path = Path::new(fields.next()?).join(CGROUP_ROOT);
                let is_cgroup = matches!(fields.next()?, "cgroup" | "cgroup2");
                (is_cgroup && path.is_dir()).then_some(path)
            })
            .collect()
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.directory.join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(15)..);
        tail.unwrap_or_default().join("\n")
    }
}

impl Drop for Stage {
    /// An agent that is still here was not to be left: the demo failed and so did its sweep.
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            agent.kill().ok();
            agent.wait().ok();
        }
    }
}

fn is_unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

fn read(path: String) -> Result<(PathBuf, String)> {
    let path = PathBuf::from(path);
    let value = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok((path, value.trim().to_owned()))
}

/// Removes empty cgroups, children first. One that has a process is an error.
fn remove_cgroups(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroups(&entry.path())?;
        }
    }
    fs::remove_dir(directory).with_context(|| format!("remove {}", directory.display()))
}

fn run_quietly(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}
