//! What this machine is, what a process has used, and the kernel's switch for program statistics.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast_tests::cgroup;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// One line for the head of the table.
pub(crate) fn facts() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let cgroups = match cgroup::is_unified() {
        true => "cgroup v2".to_owned(),
        false => format!("cgroup v1, {} hierarchies", cgroup::mounts().len()),
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?");
    format!(
        "Linux {}, {cpus} CPUs, {cgroups}, load at the end {load}",
        kernel.trim()
    )
}

/// CPU time that all threads of a process have used, ended ones included.
pub(crate) fn cpu_time(pid: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(pid)?))
        .with_context(|| format!("find the CPU clock of process {pid}"))?;
    Ok(clock.now()?.into())
}

/// Now on `CLOCK_BOOTTIME`, which the records of the agent use.
pub(crate) fn boottime() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_BOOTTIME)?.into())
}

/// Resident memory of a process, bytes.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kib: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .context("no VmRSS")?
        .trim()
        .parse()?;
    Ok(kib * 1024)
}

/// A setting of the kernel that measuring changes for a while, by its path below `/proc/sys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// The kernel times every run of an eBPF program.
    BpfStatistics,
    /// What is less urgent than the first number is not written to the console. A serial console
    /// takes milliseconds for the line about an OOM kill, with interrupts off.
    Console,
}

impl Setting {
    const ALL: [Self; 2] = [Self::BpfStatistics, Self::Console];

    const fn path(self) -> &'static str {
        match self {
            Self::BpfStatistics => "/proc/sys/kernel/bpf_stats_enabled",
            Self::Console => "/proc/sys/kernel/printk",
        }
    }

    fn value(self) -> Result<String> {
        fs::read_to_string(self.path()).with_context(|| format!("read {}", self.path()))
    }

    /// `value` in place of what is there, until the answer is dropped.
    pub(crate) fn set(self, value: &str) -> Result<Before> {
        let before = self.value()?;
        fs::write(self.path(), value).with_context(|| format!("write {}", self.path()))?;
        Ok(Before(vec![(self, before)]))
    }
}

/// What settings were, restored when it is dropped.
pub(crate) struct Before(Vec<(Setting, String)>);

impl Before {
    /// As they are now.
    pub(crate) fn now() -> Self {
        let value = |it: Setting| Some((it, it.value().ok()?));
        Self(Setting::ALL.into_iter().filter_map(value).collect())
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        for (setting, before) in &self.0 {
            if setting.value().is_ok_and(|now| now != *before)
                && let Err(error) = fs::write(setting.path(), before.trim())
            {
                eprintln!("restore {}: {error}", setting.path());
            }
        }
    }
}
