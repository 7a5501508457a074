//! The processes of the cluster and the network namespace that they are in.
//!
//! Invariant: a process is ended only when it was started here, or by one that was: it is recorded with its
//! start time, lives in the network namespace, is in a cgroup below the node's root, or has one that was as its parent.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::settings::{ADDRESS, NAME};
use crate::progress;

pub(super) const POLL: Duration = Duration::from_millis(100);

/// A process, told from another one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: u32,
    /// In clock ticks since boot: field 22 of `/proc/PID/stat`.
    started: u64,
}

impl Process {
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let stat = Stat::parse(&stat)?;
        (stat.state != 'Z').then_some(Self {
            pid,
            started: stat.started,
        })
    }

    pub(super) fn is_running(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// The command that starts it again. `program`: what runs the program of this path in the network namespace of the
    /// node.
    pub(super) fn command(self, program: impl FnOnce(&Path) -> Result<Command>) -> Result<Command> {
        let read = |name: &str| {
            let path = format!("/proc/{}/{name}", self.pid);
            fs::read(&path).with_context(|| format!("read {path}"))
        };
        let (command_line, environment) = (read("cmdline")?, read("environ")?);
        let mut words = strings(&command_line);
        let path = words.next().context("a process without a command")?;
        let mut command = program(Path::new(path))?;
        command.args(words);
        for variable in strings(&environment) {
            let mut parts = variable.as_bytes().splitn(2, |it| *it == b'=');
            if let (Some(name), Some(value)) = (parts.next(), parts.next()) {
                command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
            }
        }
        ensure!(self.is_running(), "it has ended");
        Ok(command)
    }
}

/// Each ends with a NUL.
fn strings(bytes: &[u8]) -> impl Iterator<Item = &OsStr> {
    let strings = bytes.split_inclusive(|it| *it == 0);
    strings.map(|it| OsStr::from_bytes(it.strip_suffix(&[0]).unwrap_or(it)))
}

/// Of `/proc/PID/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

impl Stat {
    /// The command in the second field may hold anything, parentheses too.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_whitespace();
        Some(Self {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            started: fields.nth(17)?.parse().ok()?,
        })
    }
}

pub(super) fn namespace() -> PathBuf {
    Path::new("/run/netns").join(NAME)
}

/// `program` in the network namespace of the node.
pub(crate) fn in_namespace(program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command
        .arg(format!("--net={}", namespace().display()))
        .arg("--")
        .arg(program);
    command
}

/// Makes the namespace with its loopback and an address on a pair of devices that both stay in it.
pub(super) fn make_namespace() -> Result<()> {
    let ip = |arguments: &[&str]| progress::quiet(Command::new("ip").args(arguments)).map(drop);
    ip(&["netns", "add", NAME])?;
    let inside = |arguments: &[&str]| ip(&[&["-n", NAME], arguments].concat());
    inside(&["link", "set", "lo", "up"])?;
    inside(&[
        "link",
        "add",
        "node",
        "type",
        "veth",
        "peer",
        "name",
        "node-peer",
    ])?;
    inside(&["address", "add", &format!("{ADDRESS}/24"), "dev", "node"])?;
    inside(&["link", "set", "node", "up"])?;
    inside(&["link", "set", "node-peer", "up"])
}

pub(super) fn remove_namespace() -> Result<()> {
    if !namespace().exists() {
        return Ok(());
    }
    progress::quiet(Command::new("ip").args(["netns", "delete", NAME])).map(drop)
}

/// Starts `command` apart from this terminal, with its output at the end of `log`, and records it in `record`.
pub(super) fn start(command: &mut Command, log: &Path, record: &Path) -> Result<()> {
    let output = OpenOptions::new().create(true).append(true).open(log);
    let output = output.with_context(|| format!("open {}", log.display()))?;
    let errors = output.try_clone().context("share a log")?;
    // A session of its own: neither the end of the terminal nor its interrupt reach it.
    let mut apart = Command::new("setsid");
    apart
        .arg(command.get_program())
        .args(command.get_args())
        .envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors);
    let mut child = apart
        .spawn()
        .with_context(|| format!("start {}", log.display()))?;
    let process = Process::of(child.id());
    // Where this program goes on until its end, it does not stay as a zombie.
    thread::spawn(move || child.wait());
    let process = process.with_context(|| format!("it ended at once: {}", log.display()))?;
    let record_text = serde_json::to_string(&process).context("write a record")?;
    fs::write(record, record_text).with_context(|| format!("write {}", record.display()))
}

pub(super) fn recorded(record: &Path) -> Result<Process> {
    let text = fs::read_to_string(record).with_context(|| format!("read {}", record.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", record.display()))
}

/// Those that live in the network namespace, whoever started them.
pub(super) fn in_the_namespace() -> Result<Vec<Process>> {
    if !namespace().exists() {
        return Ok(Vec::new());
    }
    let pids = progress::quiet(Command::new("ip").args(["netns", "pids", NAME]))?;
    Ok(pids
        .split_whitespace()
        .filter_map(|it| Process::of(it.parse().ok()?))
        .collect())
}

/// Ends a process and those that it has started, and they. Whom one of them starts meanwhile is not among them.
pub(crate) fn end_with_children(pid: u32) -> Result<()> {
    // What measures gives the machine back as it was.
    end_within(Duration::from_secs(20), &tree(pid)?)
}

fn tree(pid: u32) -> Result<Vec<Process>> {
    let mut others = Vec::new();
    for entry in fs::read_dir("/proc").context("list /proc")? {
        let name = entry.context("list /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|it| it.parse::<u32>().ok()) else {
            continue;
        };
        // One that has ended is nobody's.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // By another reading its pid may be somebody else's.
        if let Some(Stat {
            started, parent, ..
        }) = Stat::parse(&stat)
        {
            others.push((Process { pid, started }, parent));
        }
    }
    let (mut tree, mut others): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|it| it.0.pid == pid);
    let mut n_asked = 0;
    while let Some((process, _)) = tree.get(n_asked).copied() {
        let (children, rest): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|it| it.1 == process.pid);
        tree.extend(children);
        others = rest;
        n_asked += 1;
    }
    Ok(tree.into_iter().map(|it| it.0).collect())
}

/// Ends them, at first in an orderly way.
pub(super) fn end(processes: &[Process]) -> Result<()> {
    end_within(Duration::from_secs(5), processes)
}

/// As [`end`]; `orderly`: for the orderly way.
fn end_within(orderly: Duration, processes: &[Process]) -> Result<()> {
    for (signal, patience) in [("TERM", orderly), ("KILL", Duration::from_secs(10))] {
        let running: Vec<_> = processes.iter().filter(|it| it.is_running()).collect();
        if running.is_empty() {
            return Ok(());
        }
        let pids = running.iter().map(|it| it.pid.to_string());
        // One that has ended meanwhile is no failure; whether all have, is looked at below.
        let _ = Command::new("kill")
            .args(["-s", signal])
            .args(pids)
            .stderr(Stdio::null())
            .status();
        let deadline = Instant::now() + patience;
        while running.iter().any(|it| it.is_running()) && Instant::now() < deadline {
            thread::sleep(POLL);
        }
    }
    let left: Vec<_> = processes
        .iter()
        .filter(|it| it.is_running())
        .map(|it| it.pid.to_string())
        .collect();
    ensure!(
        left.is_empty(),
        "processes that do not end: {}",
        left.join(" ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_look_like_the_rest_of_the_line() {
        let stat = "42 (a) S 1 (b) R 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 9876 100 200";
        let right = Stat {
            state: 'R',
            parent: 1,
            started: 9876,
        };
        assert_eq!(Stat::parse(stat), Some(right));
        assert_eq!(Stat::parse("42 (a"), None);
    }

    #[test]
    fn words_may_be_empty() {
        let words: Vec<_> = strings(b"a b\0\0c\0").collect();
        assert_eq!(words, ["a b", "", "c"]);
    }

    #[test]
    fn a_process_is_itself_and_no_other() {
        let this = Process::of(std::process::id()).expect("this process has a start");
        assert!(this.is_running());
        let other = Process {
            started: this.started + 1,
            ..this
        };
        assert!(!other.is_running());
    }

    #[test]
    fn who_was_started_by_one_that_is_ended_ends_too() {
        let mut command = Command::new("sh");
        let mut child = command
            .args(["-c", "sleep 60 & sleep 60 & wait"])
            .spawn()
            .expect("it starts");
        let all = || tree(child.id()).expect("the kernel lists processes");
        let deadline = Instant::now() + Duration::from_secs(30);
        while all().len() < 3 && Instant::now() < deadline {
            thread::sleep(POLL);
        }
        let all = all();
        assert_eq!(all.len(), 3, "{all:?}");
        end_with_children(child.id()).expect("they end");
        assert!(!all.iter().any(|it| it.is_running()), "{all:?}");
        child.wait().expect("it was started");
    }
}
