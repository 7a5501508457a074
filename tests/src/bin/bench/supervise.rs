//! Runs the measurements in a process group of their own, and leaves the machine as it was however
//! they end.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};
use ballast_tests::agent::remove_traces_of;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::Pid;

use super::machine::Before;

fn handled() -> SigSet {
    [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGCHLD,
    ]
    .into_iter()
    .collect()
}

pub(crate) fn run(names: &[&str]) -> Result<ExitCode> {
    // Taken one by one below.
    handled().thread_block()?;
    let settings = Before::now();
    let mut child = Command::new(std::env::current_exe()?)
        .arg("measure")
        .args(names)
        .process_group(0)
        .spawn()
        .context("start the measurements")?;
    let group = Pid::from_raw(i32::try_from(child.id())?);
    let code = loop {
        match handled().wait()? {
            Signal::SIGCHLD => {
                if let Some(status) = child.try_wait()? {
                    break status.code().unwrap_or(1);
                }
            }
            _ => {
                // With it its agents; containers are found by their cgroups.
                killpg(group, Signal::SIGKILL)?;
                child.wait()?;
                break 130;
            }
        }
    };
    // The agents of a run that died are still there.
    killpg(group, Signal::SIGKILL).ok();
    remove_traces_of(child.id());
    drop(settings);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The mask that a supervised process inherits would reach its agents too.
pub(crate) fn take_signals_again() -> Result<()> {
    Ok(handled().thread_unblock()?)
}
