//! Child processes whose progress can be seen: what runs, its output as it comes, and a sign of
//! life when it is silent.
//!
//! Invariant: no child outlives a call, and none is silent for longer than [`SILENCE`].

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::{cluster, interrupt};

/// After this long without output a line says what is running. Short enough that nobody takes the
/// task for hung.
const SILENCE: Duration = Duration::from_secs(15);

const POLL: Duration = Duration::from_millis(50);

/// How long the output of a child that has ended is read on, while a process that it left behind
/// keeps it open.
const REST: Duration = Duration::from_secs(2);

/// Says what happens next.
pub(crate) fn headline(text: impl fmt::Display) {
    let (bold, plain) = if io::stderr().is_terminal() {
        ("\x1b[1m", "\x1b[0m")
    } else {
        ("", "")
    };
    show(format!("{bold}==> {text}{plain}\n").as_bytes());
}

/// A line of detail under a headline.
pub(crate) fn note(text: impl fmt::Display) {
    show(format!("    {text}\n").as_bytes());
}

/// `3m07s`, `12s`, `0.4s`.
pub(crate) struct Elapsed(pub(crate) Duration);

impl fmt::Display for Elapsed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..10 => write!(out, "{:.1}s", self.0.as_secs_f64()),
            10..60 => write!(out, "{seconds}s"),
            _ => write!(out, "{}m{:02}s", seconds / 60, seconds % 60),
        }
    }
}

/// How long the child may take. `None` is for ever.
#[derive(Clone, Copy, Default)]
pub(crate) struct Deadline {
    /// Until it first writes to standard output.
    pub(crate) first_output: Option<Duration>,
    /// Until it ends.
    pub(crate) end: Option<Duration>,
}

impl Deadline {
    fn is_over(self, elapsed: Duration, has_written: bool) -> bool {
        let late = |limit: Option<Duration>| limit.is_some_and(|it| elapsed >= it);
        late(self.end) || (!has_written && late(self.first_output))
    }
}

/// How a child ended.
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    /// Everything the child wrote to standard output.
    pub(crate) stdout: String,
    /// It was killed because its time was up.
    pub(crate) timed_out: bool,
}

/// Whether standard output is shown as it comes, or only kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdout {
    Show,
    Keep,
}

/// Runs `command` to its end and fails when it does.
pub(crate) fn run(what: &str, command: &mut Command) -> Result<String> {
    check(what, command, Stdout::Show)
}

/// As [`run`], for a command whose standard output is data. Standard error is shown.
pub(crate) fn capture(what: &str, command: &mut Command) -> Result<String> {
    check(what, command, Stdout::Keep)
}

/// As [`run`], for what must not be ended in the middle: a signal that comes meanwhile ends what is next.
pub(crate) fn run_whole(what: &str, command: &mut Command) -> Result<String> {
    interrupt::check()?;
    let finished = watch_until(|| false, what, command, Stdout::Show, Deadline::default())?;
    succeeded(what, command, finished)
}

fn check(what: &str, command: &mut Command, stdout: Stdout) -> Result<String> {
    let finished = watch(what, command, stdout, Deadline::default())?;
    succeeded(what, command, finished)
}

fn succeeded(what: &str, command: &Command, finished: Finished) -> Result<String> {
    ensure!(
        finished.status.success(),
        "{what}: {}: {}",
        Shown(command),
        finished.status
    );
    Ok(finished.stdout)
}

/// Runs `work`, which starts processes that write to standard error themselves, and gives signs of
/// life meanwhile.
pub(crate) fn during<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let (is_over, over) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            while over.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
                note(format_args!("... {what}, {}", Elapsed(started.elapsed())));
            }
        });
        let result = work();
        drop(is_over);
        result
    })
}

/// Runs `command` quietly: its messages become part of the error. For short commands.
pub(crate) fn quiet(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {}", Shown(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}", Shown(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits for a child that shows nothing.
pub(crate) fn wait(what: &str, child: &mut Child) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child
            .try_wait()
            .with_context(|| format!("wait for {what}"))?
        {
            return Ok(status);
        }
        if interrupt::has_come() {
            return end(what, child);
        }
        thread::sleep(POLL);
    }
}

/// Ends a child and who was started by it, and fails.
fn end<T>(what: &str, child: &mut Child) -> Result<T> {
    cluster::end_with_children(child.id()).with_context(|| format!("end {what}"))?;
    child.wait().with_context(|| format!("wait for {what}"))?;
    bail!("{what}: ended by a signal")
}

/// Runs `command` to its end or to the deadline, showing its output and signs of life.
pub(crate) fn watch(
    what: &str,
    command: &mut Command,
    stdout: Stdout,
    deadline: Deadline,
) -> Result<Finished> {
    interrupt::check()?;
    watch_until(interrupt::has_come, what, command, stdout, deadline)
}

/// As [`watch`]; `is_over`: this program is to end.
fn watch_until(
    is_over: impl Fn() -> bool,
    what: &str,
    command: &mut Command,
    stdout: Stdout,
    deadline: Deadline,
) -> Result<Finished> {
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", Shown(command)))?;
    let (sender, chunks) = mpsc::channel();
    read_apart(child.stdout.take(), sender.clone(), Chunk::Out);
    read_apart(child.stderr.take(), sender, Chunk::Err);

    let mut kept = Vec::new();
    let mut last_output = Instant::now();
    let mut timed_out = false;
    let mut ended: Option<(ExitStatus, Instant)> = None;
    let status = loop {
        // Also a child that never stops writing has a deadline: every round looks at everything.
        let (shown, all_was_read) = match chunks.recv_timeout(POLL) {
            Ok(Chunk::Out(bytes)) => {
                kept.extend_from_slice(&bytes);
                ((stdout == Stdout::Show).then_some(bytes), false)
            }
            Ok(Chunk::Err(bytes)) => (Some(bytes), false),
            Err(RecvTimeoutError::Timeout) => (None, false),
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(POLL);
                (None, true)
            }
        };
        if let Some(bytes) = shown {
            show(&bytes);
            last_output = Instant::now();
        }
        if let Some((status, at)) = ended {
            if all_was_read || at.elapsed() >= REST {
                break status;
            }
        } else if let Some(status) = child
            .try_wait()
            .with_context(|| format!("wait for {}", Shown(command)))?
        {
            ended = Some((status, Instant::now()));
        } else if is_over() {
            return end(what, &mut child);
        } else if deadline.is_over(started.elapsed(), !kept.is_empty()) {
            timed_out = true;
            child
                .kill()
                .with_context(|| format!("stop {}", Shown(command)))?;
        }
        if last_output.elapsed() >= SILENCE {
            note(format_args!("... {what}, {}", Elapsed(started.elapsed())));
            last_output = Instant::now();
        }
    };
    Ok(Finished {
        status,
        stdout: String::from_utf8_lossy(&kept).into_owned(),
        timed_out,
    })
}

/// A piece of a child's output.
enum Chunk {
    Out(Vec<u8>),
    Err(Vec<u8>),
}

/// Sends on what `from` yields, from a thread that ends with it. The thread may outlive the child:
/// a process that the child started and left behind can hold the other end.
fn read_apart(
    from: Option<impl Read + Send + 'static>,
    to: Sender<Chunk>,
    chunk: fn(Vec<u8>) -> Chunk,
) {
    let Some(mut from) = from else { return };
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if to.send(chunk(buffer[..n].to_vec())).is_err() {
                return;
            }
        }
    });
}

/// Everything goes to standard error, in the order in which it comes. That it cannot be written is
/// no reason to stop.
fn show(bytes: &[u8]) {
    let _ = io::stderr().lock().write_all(bytes);
}

/// A command as one would type it.
struct Shown<'a>(&'a Command);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.0.get_program().display())?;
        for it in self.0.get_args() {
            write!(out, " {}", it.display())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_is_short() {
        for (millis, text) in [(400, "0.4s"), (12_900, "12s"), (187_000, "3m07s")] {
            assert_eq!(Elapsed(Duration::from_millis(millis)).to_string(), text);
        }
    }

    #[test]
    fn a_child_that_exceeds_its_time_is_killed_and_said_so() {
        let deadline = Deadline {
            end: Some(Duration::from_millis(100)),
            ..Deadline::default()
        };
        let mut command = Command::new("sleep");
        let finished = watch("sleep", command.arg("60"), Stdout::Keep, deadline).expect("starts");
        assert!(finished.timed_out && !finished.status.success());
    }

    #[test]
    fn a_child_does_not_outlive_this_program() {
        let started = Instant::now();
        let is_over = || started.elapsed() >= Duration::from_millis(100);
        let (mut command, deadline) = (Command::new("sleep"), Deadline::default());
        let command = command.arg("60");
        let error = watch_until(is_over, "sleep", command, Stdout::Keep, deadline).err();
        let error = error.map(|it| it.to_string());
        assert_eq!(error.as_deref(), Some("sleep: ended by a signal"));
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_child_that_says_nothing_in_time_is_killed() {
        let limit = Duration::from_millis(100);
        let deadline = Deadline {
            first_output: Some(limit),
            end: None,
        };
        let mut command = Command::new("sleep");
        let finished = watch("sleep", command.arg("60"), Stdout::Keep, deadline).expect("starts");
        assert!(finished.timed_out);
        assert!(!deadline.is_over(limit, true), "it has said something");
    }

    #[test]
    fn a_process_that_is_left_behind_does_not_hold_up_the_end() {
        let started = Instant::now();
        let mut command = Command::new("sh");
        let command = command.args(["-c", "echo early; sleep 90 &"]);
        let finished = watch("sh", command, Stdout::Keep, Deadline::default()).expect("starts");
        assert_eq!(finished.stdout, "early\n");
        assert!(finished.status.success() && started.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_failed_command_names_itself() {
        let error = run("try", Command::new("false").arg("--now")).expect_err("false fails");
        assert!(error.to_string().contains("false --now"), "{error}");
    }
}
