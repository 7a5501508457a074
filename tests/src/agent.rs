//! An agent under test: the real binary, with a state directory, a cgroup root, a socket and a pin
//! directory of its own, so that several live beside each other and beside the node's own.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ballast::model::forensics::OomRecord;
use ballast::model::record::EventRecord;
use ballast::model::saved_counts::{self, SavedCounts};
use ballast::model::stats::StatsSnapshot;
use ballast::model::status::{PodEntry, Status};
use ballast::observe::protocol::{Answer, Request};
use ballast::sources::checkpoint;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cgroup;
use crate::kube::KubeTree;
use crate::manifest::Manifest;
use crate::scratch::{own_name, owner};
use crate::wait::{self, patience};

/// Between two full passes of an agent [with quick ones](Agent::with_quick_passes).
const QUICK_PASS: Duration = Duration::from_secs(1);

const PINS: &str = "/sys/fs/bpf";

/// See the module. Everything it made is gone when it is dropped.
pub struct Agent {
    binary: PathBuf,
    /// Of what it makes for itself, whatever it shares with another one.
    name: String,
    pub dir: PathBuf,
    /// Name of the cgroup below the mounts.
    pub cgroup_root: String,
    /// It is told of that by its configuration.
    pub knows_root: bool,
    pub pin_directory: PathBuf,
    /// More of the `pods:` section, as `, field: value`.
    pub pods: String,
    /// Lines for the `kubelet:` section of the configuration, each with its indentation.
    pub kubelet: String,
    /// `evictionHard`, as YAML writes a mapping on one line. Empty: the field is not there.
    pub eviction_hard: String,
    /// Other sections of the configuration, whole lines.
    pub sections: String,
    /// Where it serves metrics and health; empty: nowhere.
    pub metrics: String,
    /// The kernel takes no eBPF program from it: it is started without the capabilities.
    pub is_without_programs: bool,
    /// Names of the capabilities that it has alone, with commas between them. `None`: as many as the test.
    pub capabilities: Option<&'static str>,
    /// Mode `observe`; the cgroup root is somebody else's.
    pub observes: bool,
    /// Its configuration is what is shipped for mode `observe`, on its own cgroup root.
    pub is_as_shipped: bool,
    /// Socket of the container runtime that is asked for names in mode `observe`. `None`: nobody is asked.
    pub runtime: Option<PathBuf>,
    /// How many open files it may have, if not as many as the test.
    pub descriptors: Option<u64>,
    /// A program that starts it, with arguments before those of the start; empty: none.
    pub starter: Vec<String>,
    /// Variables that it has besides those of the test.
    pub environment: Vec<(&'static str, String)>,
    /// Where its log goes, if not to `agent.log` in `dir`.
    pub stderr: Option<OwnedFd>,
    child: Option<Child>,
}

impl Agent {
    /// Prepares, but does not start, an agent for one test.
    pub fn new(test: &str) -> Result<Self> {
        let binary = binary()?;
        let name = own_name(test);
        let dir = std::env::temp_dir().join(&name);
        fs::create_dir_all(dir.join("pods"))?;
        Ok(Self {
            binary,
            pin_directory: Path::new(PINS).join(&name),
            dir,
            cgroup_root: name.clone(),
            knows_root: true,
            name,
            pods: String::new(),
            // What restarts shall do so within the patience of a test.
            kubelet: "  crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n".to_owned(),
            // The disk of a machine that builds software is often nearly full.
            eviction_hard: "{memory.available: 100Mi}".to_owned(),
            sections: String::new(),
            metrics: String::new(),
            is_without_programs: false,
            capabilities: None,
            observes: false,
            is_as_shipped: false,
            runtime: None,
            descriptors: None,
            starter: Vec::new(),
            environment: Vec::new(),
            stderr: None,
            child: None,
        })
    }

    /// Adds a field to the `kubelet:` section, before the start.
    #[must_use]
    pub fn with_kubelet(mut self, field: &str) -> Self {
        self.kubelet.push_str(&format!("  {field}\n"));
        self
    }

    /// Every file is read back, and every pod looked at, each second instead of each ten: for tests that
    /// [wait](Self::wait_full_passes) for that.
    #[must_use]
    pub fn with_quick_passes(self) -> Self {
        self.with_kubelet(&format!("syncFrequency: {}s", QUICK_PASS.as_secs()))
    }

    /// Waits until an agent with quick passes has had time for `n` full ones, and has made as many.
    pub fn wait_full_passes(&self, n: u32) -> Result<Status> {
        let before = self.status()?.agent.passes;
        let began = Instant::now();
        self.wait("full passes", |it| {
            began.elapsed() > QUICK_PASS * n && it.agent.passes >= before + u64::from(n)
        })
    }

    /// Gives pods so much memory together, MiB, and hard eviction below `threshold` MiB of it: what
    /// they do then is nothing to the rest of the machine.
    pub fn with_memory(mut self, mib: u64, threshold: u64) -> Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let total = meminfo.lines().find_map(|line| {
            let kib = line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?;
            kib.parse::<u64>().ok()
        });
        let reserved = total
            .context("no MemTotal in /proc/meminfo")?
            .checked_sub(mib << 10)
            .context("the machine has less memory than the test wants")?;
        self.eviction_hard = format!("{{memory.available: {threshold}Mi}}");
        Ok(self.with_kubelet(&format!("systemReserved: {{memory: {reserved}Ki}}")))
    }

    /// An agent that watches over a tree that somebody else makes.
    pub fn observing(test: &str, tree: &KubeTree) -> Result<Self> {
        Self::observing_below(test, &tree.root)
    }

    /// The same, of what is below the cgroup `root` of the mounts.
    pub fn observing_below(test: &str, root: &str) -> Result<Self> {
        let mut agent = Self::new(test)?;
        agent.observes = true;
        root.clone_into(&mut agent.cgroup_root);
        agent.kubelet.clear();
        Ok(agent)
    }

    /// Path of the cgroup of all pods, from the mount.
    pub fn kubepods(&self) -> String {
        format!("/{}/kubepods", self.cgroup_root)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("ballast.sock")
    }

    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    fn write_config(&self) -> Result<PathBuf> {
        let text = match self.is_as_shipped {
            true => self.shipped_config()?,
            false => self.config(),
        };
        let path = self.dir.join("config.yaml");
        fs::write(&path, text)?;
        Ok(path)
    }

    /// What is shipped for mode `observe`, with places of its own.
    fn shipped_config(&self) -> Result<String> {
        let mut text = include_str!("../../deploy/config-observe.yaml").to_owned();
        let kubelet = format!("kubelet: {{cgroupRoot: /{}}}", self.cgroup_root);
        for (line, own) in [
            (
                "stateDirectory: /var/lib/ballast",
                format!("stateDirectory: {}", self.state().display()),
            ),
            (
                "socket: /run/ballast/ballast.sock",
                format!("socket: {}", self.socket().display()),
            ),
            (
                "pinDirectory: /sys/fs/bpf/ballast",
                format!("pinDirectory: {}", self.pin_directory.display()),
            ),
            ("127.0.0.1:9464", self.metrics.clone()),
            ("kubelet: {}", kubelet),
        ] {
            ensure!(text.contains(line), "{line} is not in {text}");
            text = text.replace(line, &own);
        }
        Ok(text)
    }

    fn config(&self) -> String {
        let dir = self.dir.display();
        let mode = match self.observes {
            true => match &self.runtime {
                Some(socket) => format!(
                    "mode: observe\nruntime: {{type: cri, endpoint: unix://{}}}\n",
                    socket.display()
                ),
                None => "mode: observe\nruntime: {type: none}\n".to_owned(),
            },
            false => format!(
                "mode: own\n\
                 pods: {{source: manifests, manifestDirectory: {dir}/pods{pods}}}\n\
                 runtime: {{type: process}}\n\
                 kubeletDirectory: {dir}/kubelet\n",
                pods = self.pods,
            ),
        };
        format!(
            "apiVersion: ballast.dev/v1alpha1\n\
             kind: AgentConfiguration\n\
             {mode}\
             stateDirectory: {dir}/state\n\
             socket: {dir}/ballast.sock\n\
             metrics: {{address: \"{metrics}\", statsInterval: {interval}}}\n\
             log: {{format: text}}\n\
             bpf: {{pinDirectory: {pins}}}\n\
             {sections}\
             kubelet:\n  failSwapOn: false\n{root}{hard}{more}",
            pins = self.pin_directory.display(),
            root = match self.knows_root {
                true => format!("  cgroupRoot: /{}\n", self.cgroup_root),
                false => String::new(),
            },
            metrics = self.metrics,
            // What a sweep shows is waited for here, and not measured.
            interval = if self.observes { "1s" } else { "5s" },
            sections = self.sections,
            hard = match self.eviction_hard.as_str() {
                "" => String::new(),
                hard => format!("  evictionHard: {hard}\n"),
            },
            more = self.kubelet,
        )
    }

    /// The agent is started by a shell script, which `words` start and which becomes it by `exec "$@"`.
    pub fn start_by(&mut self, words: &[&str], script: &str) {
        let shell = ["sh", "-ec", script, "sh"];
        let all = words.iter().chain(&shell);
        self.starter = all.map(|it| (*it).to_owned()).collect();
    }

    /// Starts the agent and waits until it answers on its socket.
    pub fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.wait_ready()
    }

    /// Starts the agent without waiting for anything.
    pub fn spawn(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "the agent runs already");
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.dir.join("agent.log"))?;
        let stderr = match &self.stderr {
            Some(it) => it.try_clone()?.into(),
            None => Stdio::from(log.try_clone()?),
        };
        let child = self
            .run_command()?
            .stdout(log)
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// `ballast run` with this agent's configuration.
    pub fn run_command(&self) -> Result<Command> {
        self.started_as("run")
    }

    /// `ballast check`, started as the agent is.
    pub fn check_command(&self) -> Result<Command> {
        self.started_as("check")
    }

    fn started_as(&self, verb: &str) -> Result<Command> {
        let mut words = self.starter.clone();
        if let Some(n) = self.descriptors {
            words.extend([hog()?, "descriptors".to_owned(), n.to_string()]);
        }
        if self.is_without_programs {
            words.extend([hog()?, "without-programs".to_owned()]);
        }
        if let Some(names) = self.capabilities {
            words.extend([hog()?, "capabilities".to_owned(), names.to_owned()]);
        }
        words.push(self.binary.display().to_string());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .args([verb, "--config"])
            .arg(self.write_config()?)
            // Of a pod that the tests run in: the cluster is not theirs.
            .env_remove("NODE_NAME")
            .env_remove("KUBERNETES_SERVICE_HOST")
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Waits until the agent has made its first pass.
    pub fn wait_ready(&mut self) -> Result<()> {
        let ready = wait::wait_for("the agent is ready", || {
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                self.child = None;
                bail!("the agent ended with {status}");
            }
            // The socket of an agent that was killed is still there: ask who answers.
            let status = self.status();
            Ok(status.is_ok_and(|it| Some(it.agent.pid) == self.pid()))
        });
        ready.with_context(|| format!("log: {}", self.log_tail()))
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// The directory in `/proc` of the thread that reads the kernel's rings; `None` where none does.
    pub fn listener(&self) -> Result<Option<PathBuf>> {
        let Some(pid) = self.pid() else {
            return Ok(None);
        };
        for task in fs::read_dir(format!("/proc/{pid}/task"))? {
            let task = task?.path();
            if fs::read_to_string(task.join("comm"))?.trim() == "kernel" {
                return Ok(Some(task));
            }
        }
        Ok(None)
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
        let pid = Pid::from_raw(i32::try_from(child.id())?);
        kill(pid, Signal::SIGTERM)?;
        let ended = self.wait_for("the agent ends when it is asked to", || {
            Ok(child.try_wait()?.is_some())
        });
        if ended.is_err() {
            child.kill()?;
            child.wait()?;
        }
        ended
    }

    /// Writes a manifest into a file named after its pod.
    pub fn put(&self, pod: &Manifest) -> Result<()> {
        self.put_file(&pod.file(), &pod.to_string())
    }

    /// Writes a manifest the way an operator should: whole, then renamed.
    pub fn put_file(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join("pods").join(file);
        let temporary = self.dir.join("pods").join(format!(".{file}"));
        fs::write(&temporary, text)?;
        fs::rename(temporary, path)?;
        Ok(())
    }

    pub fn remove_pod(&self, pod: &str) -> Result<()> {
        let path = self.dir.join("pods").join(format!("{pod}.yaml"));
        fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))
    }

    /// The document of `ballast status`.
    pub fn status(&self) -> Result<Status> {
        let output = self.command(&["status", "-o", "json"])?;
        Ok(serde_json::from_str(&output)?)
    }

    /// The newest sweep of statistics, which is made for this where the last is older than a second.
    pub fn stats(&self) -> Result<StatsSnapshot> {
        let mut stream = UnixStream::connect(self.socket())?;
        stream.set_read_timeout(Some(patience()))?;
        let request = serde_json::to_string(&Request::stats())?;
        writeln!(stream, "{request}")?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        match serde_json::from_str(&line).with_context(|| line.clone())? {
            Answer::Stats(stats) => Ok(*stats),
            Answer::Error(error) => bail!("{error}"),
            _ => bail!("not an answer to the question: {line}"),
        }
    }

    /// All records of the given kinds that the agent keeps, oldest first.
    pub fn events(&self, kinds: &str) -> Result<Vec<EventRecord>> {
        let output = self.command(&["events", "-o", "json", "--kind", kinds])?;
        output
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect()
    }

    /// What the file of the counts of kills has.
    pub fn saved_counts(&self) -> Result<SavedCounts> {
        let path = self.state().join("oom-counts.json");
        Ok(checkpoint::read(
            &path,
            saved_counts::KIND,
            saved_counts::VERSION,
        )?)
    }

    /// All forensic records of OOM kills, oldest first, also of agents before this one.
    pub fn oom_records(&self) -> Result<Vec<OomRecord>> {
        let output = self.command(&["events", "-o", "json", "--record"])?;
        output
            .lines()
            .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
            .collect()
    }

    /// `ballast` with these arguments, to ask this agent.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .arg("--socket")
            .arg(self.socket())
            .stdin(Stdio::null());
        command
    }

    /// What `ballast` says to these arguments.
    pub fn command(&self, args: &[&str]) -> Result<String> {
        let output = self.client(args).output()?;
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
    pub fn wait(&self, what: &str, is_it: impl Fn(&Status) -> bool) -> Result<Status> {
        let status = wait::until(what, || {
            let status = self.status()?;
            ensure!(
                is_it(&status),
                "last status: {}",
                serde_json::to_string_pretty(&status.pods)?
            );
            Ok(status)
        });
        status.with_context(|| format!("log: {}", self.log_tail()))
    }

    /// Waits until the pod of this name, in the namespace `default`, satisfies `is_it`.
    pub fn wait_pod(
        &self,
        name: &str,
        what: &str,
        is_it: impl Fn(&PodEntry) -> bool,
    ) -> Result<PodEntry> {
        let find = |status: &Status| status.pods.iter().find(|it| it.name == name).cloned();
        let status = self.wait(&format!("pod {name} {what}"), |status| {
            find(status).is_some_and(|it| is_it(&it))
        })?;
        find(&status).context("it was there a moment ago")
    }

    /// Waits until the records of `kinds` satisfy `is_it`.
    pub fn wait_events(
        &self,
        what: &str,
        kinds: &str,
        is_it: impl Fn(&[EventRecord]) -> bool,
    ) -> Result<Vec<EventRecord>> {
        let events = wait::until(what, || {
            let events = self.events(kinds)?;
            ensure!(is_it(&events), "last {kinds} events: {events:#?}");
            Ok(events)
        });
        events.with_context(|| format!("log: {}", self.log_tail()))
    }

    /// Waits for something that the agent does not tell.
    pub fn wait_for(&self, what: &str, is_it: impl FnMut() -> Result<bool>) -> Result<()> {
        wait::wait_for(what, is_it).with_context(|| format!("log: {}", self.log_tail()))
    }

    /// The last lines of the agent's log.
    pub fn log_tail(&self) -> String {
        let Ok(bytes) = fs::read(self.dir.join("agent.log")) else {
            return "(no log)".into();
        };
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines
            .get(lines.len().saturating_sub(60)..)
            .unwrap_or_default()
            .join("\n")
    }

    /// Directories of the agent's own root cgroup, one per hierarchy that has it.
    pub fn cgroup_dirs(&self) -> Vec<PathBuf> {
        cgroup::dirs_in_all(&self.cgroup_root)
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
        if !self.observes {
            remove_traces(&self.cgroup_root);
        }
        remove_traces(&self.name);
    }
}

/// Kills and removes, best effort, what an agent of this name that is no more has left: containers
/// and cgroups, files, pins.
fn remove_traces(name: &str) {
    cgroup::remove_in_all(name);
    for dir in [std::env::temp_dir().join(name), Path::new(PINS).join(name)] {
        unmount_below(&dir);
        if dir.exists()
            && let Err(error) = fs::remove_dir_all(&dir)
        {
            eprintln!("remove {}: {error}", dir.display());
        }
    }
}

/// Volumes in memory of pods that are still there.
fn unmount_below(dir: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|it| it.split(' ').nth(1));
    let below = points.map(Path::new).filter(|it| it.starts_with(dir));
    // The last one lies over the others.
    for point in below.collect::<Vec<_>>().into_iter().rev() {
        if let Err(error) = umount2(point, MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {error}", point.display());
        }
    }
}

/// Removes what every agent of the process `pid` has left; for a process that could not do so
/// itself.
pub fn remove_traces_of(pid: u32) {
    remove_traces_where(|it| it == pid);
}

/// Removes what every agent of a process has left that is no more: a run that was ended in the middle. Agents of it that
/// run still are ended.
pub fn remove_traces_of_the_dead() {
    remove_traces_where(|it| !Path::new("/proc").join(it.to_string()).exists());
}

fn remove_traces_where(is_it: impl Fn(u32) -> bool) {
    let names: BTreeSet<String> = cgroup::mounts()
        .into_iter()
        .chain([std::env::temp_dir(), PathBuf::from(PINS)])
        .flat_map(|dir| cgroup::sub_dirs(&dir))
        .filter_map(|dir| Some(dir.file_name()?.to_str()?.to_owned()))
        .filter(|name| owner(name).is_some_and(&is_it))
        .collect();
    for name in names {
        end_agent(&name);
        remove_traces(&name);
    }
}

/// Ends the agent whose configuration is in the directory of this name, and whoever has a socket there: its clients,
/// and the terminals of its screens.
fn end_agent(name: &str) {
    let dir = std::env::temp_dir().join(name);
    let is_of_it = |word: &[u8]| {
        let path = Path::new(OsStr::from_bytes(word));
        let is_socket = path.extension().is_some_and(|it| it == "sock");
        path.starts_with(&dir) && (is_socket || path.ends_with("config.yaml"))
    };
    for process in cgroup::sub_dirs(Path::new("/proc")) {
        let pid = process.file_name().and_then(|it| it.to_str()?.parse().ok());
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        let is_it = line.split(|it| *it == 0).any(is_of_it);
        if let Some(pid) = pid.filter(|_| is_it) {
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
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
pub fn hog() -> Result<String> {
    program("BALLAST_HOG", "hog")
}

/// The device plugin: `BALLAST_PLUGIN`, or beside the agent.
pub fn device_plugin() -> Result<String> {
    program("BALLAST_PLUGIN", "example_device_plugin")
}

fn program(variable: &str, name: &str) -> Result<String> {
    let path = match std::env::var_os(variable) {
        Some(path) => PathBuf::from(path),
        None => binary()?.with_file_name(name),
    };
    ensure!(
        path.exists(),
        "the test program {} is not there",
        path.display()
    );
    let path = path.into_os_string().into_string().ok();
    let path = path.context("the path of the test program is not UTF-8")?;
    ensure!(
        is_one_word(&path),
        "scripts of tests start {path}, which is no single word to a shell: set CARGO_TARGET_DIR to another directory"
    );
    Ok(path)
}

/// Whether a shell takes it as it is.
fn is_one_word(path: &str) -> bool {
    path.chars()
        .all(|it| it.is_alphanumeric() || "/._-+@:,=%".contains(it))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn a_path_that_a_shell_would_read_otherwise_is_known() {
        for (path, expected) in [
            (
                "/home/me/b-1/target/x86_64-unknown-linux-gnu/lane/hog",
                true,
            ),
            ("/home/me/my checkout/hog", false),
            ("/home/me/$HOME/hog", false),
            ("/home/it's/hog", false),
        ] {
            assert_eq!(is_one_word(path), expected, "{path}");
        }
    }

    #[test]
    fn whoever_has_a_socket_of_an_agent_ends_with_it() {
        let name = own_name("end");
        let dir = std::env::temp_dir().join(&name);
        // Each waits for a line.
        let start = |file: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "read line"]).arg(dir.join(file));
            let child = command.stdin(Stdio::piped()).spawn().expect("it starts");
            // The kernel shows its words a moment later.
            let words = format!("/proc/{}/cmdline", child.id());
            let is_shown = || Ok(fs::read_to_string(&words)?.contains(file));
            wait::wait_for("its command line", is_shown).expect("it is shown");
            child
        };
        let ended = ["config.yaml", "ballast.sock", "tmux-80.sock"].map(start);
        let mut other = start("agent.log");
        end_agent(&name);
        for mut it in ended {
            let status = it.wait().expect("it ends");
            assert_eq!(status.signal(), Some(9), "{status}");
        }
        // It has its line, which is none.
        let status = other.wait().expect("it ends");
        assert_eq!(status.signal(), None, "{status}");
    }
}
