//! How much memory a cgroup uses and when a process of it ends, seen every millisecond by a thread of
//! its own: what an agent says of itself is compared with it.

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
    /// Bytes that the cgroup used, in the order of time.
    pub usage: Vec<(Duration, u64)>,
    /// When the process ended, with its memory given back; `None`: it was there to the last.
    pub ended_at: Option<Duration>,
}

impl Seen {
    /// When more than so many bytes were used for the first time.
    pub fn crossed(&self, bytes: u64) -> Option<Duration> {
        let crossing = self.usage.iter().find(|(_, used)| *used > bytes);
        crossing.map(|(at, _)| *at)
    }

    /// When, after the most was used, it was less than so many bytes for the first time.
    pub fn fell(&self, bytes: u64) -> Option<Duration> {
        let most = self.crossed(self.most().checked_sub(1)?)?;
        let mut after = self.usage.iter().filter(|(at, _)| *at > most);
        after.find(|(_, used)| *used < bytes).map(|(at, _)| *at)
    }

    /// The most that was used.
    pub fn most(&self) -> u64 {
        self.usage.iter().map(|(_, used)| *used).max().unwrap_or(0)
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
        let file = match cgroup::is_unified() {
            true => "memory.current",
            false => "memory.usage_in_bytes",
        };
        let path = cgroup::dir_of("memory", cgroup_path).join(file);
        let usage = File::open(&path).with_context(|| path.display().to_string())?;
        let process = syscall::pidfd_open(pid).with_context(|| format!("open process {pid}"))?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_finished = Arc::clone(&is_over);
        let look = move || {
            // It looks less closely where it may not.
            steady::raise_priority().ok();
            let mut seen = Seen::default();
            let mut text = [0; 32];
            while !is_finished.load(Ordering::Relaxed) {
                let n = usage.read_at(&mut text, 0)?;
                let text = std::str::from_utf8(text.get(..n).unwrap_or_default())?;
                seen.usage.push((now()?, text.trim_end().parse()?));
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

fn now() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_BOOTTIME)?.into())
}
