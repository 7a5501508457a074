//! Child processes whose progress can be seen: what runs, its output as it comes, and a sign of
//! life when it is silent.
//!
//! Invariant: no child outlives a call, and none is silent for longer than [`SILENCE`].

use std::fmt;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

/// After this long without output a line says what is running. Short enough that nobody takes the
/// task for hung.
const SILENCE: Duration = Duration::from_secs(15);

const POLL: Duration = Duration::from_millis(50);

/// Says what happens next.
pub(crate) fn headline(text: impl fmt::Display) {
    let (bold, plain) = if io::stderr().is_terminal() {
        ("\x1b[1m", "\x1b[0m")
    } else {
        ("", "")
    };
    eprintln!("{bold}==> {text}{plain}");
}

/// A line of detail under a headline.
pub(crate) fn note(text: impl fmt::Display) {
    eprintln!("    {text}");
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

fn check(what: &str, command: &mut Command, stdout: Stdout) -> Result<String> {
    let finished = watch(what, command, stdout, Deadline::default())?;
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
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| remind(what, &Mutex::new(Instant::now()), &over));
        let result = work();
        over.store(true, Ordering::Release);
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

/// Runs `command` to its end or to the deadline, showing its output and signs of life.
pub(crate) fn watch(
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
    let last_output = Mutex::new(Instant::now());
    let over = AtomicBool::new(false);
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let kept = Mutex::new(Vec::new());
    let (status, timed_out) = thread::scope(|scope| {
        scope.spawn(|| {
            copy(out, |bytes| {
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .extend_from_slice(bytes);
                if stdout == Stdout::Show {
                    show(bytes, &last_output);
                }
            });
        });
        scope.spawn(|| copy(err, |bytes| show(bytes, &last_output)));
        scope.spawn(|| remind(what, &last_output, &over));
        let ended = wait(&mut child, || {
            let has_written = !kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_empty();
            deadline.is_over(started.elapsed(), has_written)
        });
        over.store(true, Ordering::Release);
        ended
    })
    .with_context(|| format!("wait for {}", Shown(command)))?;
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Finished {
        status,
        stdout: String::from_utf8_lossy(&kept).into_owned(),
        timed_out,
    })
}

/// Says that `what` still runs, whenever the last output is too long ago, until it is over.
fn remind(what: &str, last_output: &Mutex<Instant>, over: &AtomicBool) {
    let started = Instant::now();
    while !over.load(Ordering::Acquire) {
        thread::sleep(POLL);
        let mut last = last_output.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= SILENCE {
            note(format_args!("... {what}, {}", Elapsed(started.elapsed())));
            *last = Instant::now();
        }
    }
}

/// Waits for the child, and kills it when `is_late`; then the second value is true.
fn wait(child: &mut Child, is_late: impl Fn() -> bool) -> io::Result<(ExitStatus, bool)> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if is_late() {
            child.kill()?;
            return Ok((child.wait()?, true));
        }
        thread::sleep(POLL);
    }
}

/// Hands on what `from` yields until it ends.
fn copy(from: Option<impl Read>, mut to: impl FnMut(&[u8])) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        to(&buffer[..n]);
    }
}

/// Everything goes to standard error, in the order in which it comes. That it cannot be written is
/// no reason to stop.
fn show(bytes: &[u8], last_output: &Mutex<Instant>) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(bytes);
    *last_output.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
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
    fn a_failed_command_names_itself() {
        let error = run("try", Command::new("false").arg("--now")).expect_err("false fails");
        assert!(error.to_string().contains("false --now"), "{error}");
    }
}
