//! The working set of a cgroup and when a process of it ends, seen every millisecond by a thread of
//! its own: what an agent says of itself is compared with it.
//!
//! The working set, since that is what thresholds are about: used memory without file pages that
//! nobody looked at of late.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::sys::{steady, syscall};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};

use crate::cgroup;

/// What was seen. Times are `CLOCK_BOOTTIME`.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Bytes of the working set, in the order of time.
    pub working_set: Vec<(Duration, u64)>,
    /// When the process ended, with its memory given back; `None`: it was there to the last.
    pub ended_at: Option<Duration>,
}

impl Seen {
    /// When it was more than so many bytes for the first time.
    pub fn crossed(&self, bytes: u64) -> Option<Duration> {
        let crossing = self.working_set.iter().find(|(_, used)| *used > bytes);
        crossing.map(|(at, _)| *at)
    }

    /// When, after the most that it was, it was less than so many bytes for the first time.
    pub fn fell(&self, bytes: u64) -> Option<Duration> {
        let most = self.crossed(self.most().checked_sub(1)?)?;
        let mut after = self.working_set.iter().filter(|(at, _)| *at > most);
        after.find(|(_, used)| *used < bytes).map(|(at, _)| *at)
    }

    /// The most that it was.
    pub fn most(&self) -> u64 {
        self.working_set
            .iter()
            .map(|(_, used)| *used)
            .max()
            .unwrap_or(0)
    }
}

/// See the module.
pub struct Sampler {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen>>,
}

impl Sampler {
    /// Looks at a cgroup, whose path counts from the mount, and at a process until [`Self::finish`].
    pub fn start(cgroup_path: &str, pid: u32) -> Result<Self> {
        let (usage, inactive) = match cgroup::is_unified() {
            true => ("memory.current", "inactive_file "),
            false => ("memory.usage_in_bytes", "total_inactive_file "),
        };
        let open = |file| {
            let path = cgroup::dir_of("memory", cgroup_path).join(file);
            File::open(&path).with_context(|| path.display().to_string())
        };
        let (usage, stat) = (open(usage)?, open("memory.stat")?);
        let process = syscall::pidfd_open(pid).with_context(|| format!("open process {pid}"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_finished = Arc::clone(&is_over);
        let look = move || {
            // It looks less closely where it may not.
            steady::raise_priority().ok();
            let mut seen = Seen::default();
            let mut buffer = [0; 8192];
            while !is_finished.load(Ordering::Relaxed) {
                let used: u64 = text(&usage, &mut buffer)?.trim_end().parse()?;
                let at = now()?;
                let mut lines = text(&stat, &mut buffer)?.lines();
                let inactive = lines.find_map(|it| it.strip_prefix(inactive));
                let inactive: u64 = inactive.context("no inactive_file")?.parse()?;
                seen.working_set.push((at, used.saturating_sub(inactive)));
                match seen.ended_at {
                    Some(_) => thread::sleep(Duration::from_millis(1)),
                    None => {
                        let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
                        if poll(&mut ended, PollTimeout::from(1_u8))? > 0 {
                            seen.ended_at = Some(now()?);
                        }
                    }
                }
            }
            Ok(seen)
        };
        let thread = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(look)?;
        Ok(Self { is_over, thread })
    }

    pub fn finish(self) -> Result<Seen> {
        self.is_over.store(true, Ordering::Relaxed);
        let seen = self.thread.join().ok().context("the sampler panicked")?;
        seen.context("look at a cgroup")
    }
}

/// What a file says now, as much of it as there is room for.
fn text<'a>(file: &File, buffer: &'a mut [u8]) -> Result<&'a str> {
    let n = file.read_at(buffer, 0)?;
    Ok(std::str::from_utf8(buffer.get(..n).unwrap_or_default())?)
}

fn now() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_BOOTTIME)?.into())
}
