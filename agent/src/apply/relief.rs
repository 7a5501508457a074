//! Carries out relief and kills pods, and measures what it gives.
//!
//! Nothing here waits without a bound, and nothing is shared with those who write cgroups otherwise,
//! so a thread of its own can be in the middle of it while they go on. A kill reads no more than the
//! processes of the pod, the size of those that stay, and the pod's usage before and after.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use super::cgroupfs::{ApplyError, CgroupWriter, kill_below, kill_round, procs_below};
use super::freezer::{self, Freezer};
use crate::model::cgroup::{Controller, FileKind, FileValue, InterfaceFile};
use crate::model::cgroup_path::CgroupPath;
use crate::model::relief::{KillOutcome, ReliefAction, ReliefEffect, ReliefStep};
use crate::sys::{Dir, FsError, Root, clock, syscall};

/// Asked of `memory.reclaim` in one write, so that no write blocks for long.
const RECLAIM_CHUNK: u64 = 32 << 20;
/// First and longest wait between two looks at a cgroup that is to become empty or frozen.
const FIRST_WAIT: Duration = Duration::from_micros(100);
const LONGEST_WAIT: Duration = Duration::from_millis(2);
/// Pages of a process that is worth a `process_mrelease`: what is smaller is gone as soon.
const LARGE_PROCESS_PAGES: u64 = 4096;
/// So many processes are looked at for their size. A pod with more has small ones.
const MOST_SIZED: usize = 64;

const EAGAIN: i32 = 11;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReliefWriter {
    writer: CgroupWriter,
    root: Root,
    page_size: u64,
}

impl ReliefWriter {
    /// `root` is where `/proc` is, `page_size` in bytes.
    pub fn new(writer: CgroupWriter, root: Root, page_size: u64) -> Self {
        Self {
            writer,
            root,
            page_size,
        }
    }

    /// Takes one step and measures its effect, within `within` and the time of one write.
    ///
    /// [`ApplyError::Gone`] for a cgroup that is no more, [`ApplyError::NoController`] where the
    /// kernel has no such file.
    pub fn carry_out(
        &self,
        step: &ReliefStep,
        within: Duration,
    ) -> Result<ReliefEffect, ApplyError> {
        let clock = Stopwatch::start(within);
        let path = &step.cgroup;
        let before = self.usage(path);
        let is_complete = match step.action {
            ReliefAction::SetMemoryHigh { to, .. } => {
                let file = InterfaceFile {
                    controller: Controller::Memory,
                    name: "memory.high".to_owned(),
                    kind: FileKind::PageLimit,
                };
                let value = file.kind.kept(FileValue::Limit(to), self.page_size);
                self.writer.write(path, &file, &value)?;
                true
            }
            ReliefAction::Reclaim { bytes } => self.reclaim(path, bytes, &clock)?,
            ReliefAction::Freeze => self.freeze(path, &clock)?,
            ReliefAction::Thaw => {
                self.thaw(path)?;
                true
            }
        };
        Ok(ReliefEffect {
            freed: fallen(before, self.usage(path)),
            took: clock.elapsed(),
            is_complete,
        })
    }

    /// Kills every process of a pod's cgroup and below it, speeds up the freeing of their memory, and
    /// waits until none is left, at most for `within`. A cgroup that is gone is empty.
    ///
    /// SIGKILL is sent again to what was forked meanwhile; processes that cannot die yet are left to
    /// the kernel.
    pub fn kill_pod(&self, path: &CgroupPath, within: Duration) -> Result<KillOutcome, ApplyError> {
        let clock = Stopwatch::start(within);
        let failed = |source| ApplyError::Kill {
            path: path.clone(),
            source,
        };
        let agent_was_inside = self.writer.leave(path)?;
        let dirs = self.kill_dirs(path).map_err(failed)?;
        let before = self.usage(path);
        let mut signalled = processes(&dirs).map_err(failed)?;
        let large = self.large(&signalled);
        signal(&dirs, kill_round(agent_was_inside)).map_err(failed)?;
        let signalled_after = clock.elapsed();
        let is_released = |it: &&OwnedFd| syscall::process_mrelease(it.as_fd()).is_ok();
        let n_released = large.iter().filter(is_released).count();
        let released_after = (n_released > 0).then(|| clock.elapsed());
        let mut left = processes(&dirs).map_err(failed)?;
        let mut wait = FIRST_WAIT;
        while !left.is_empty() && !clock.is_over() {
            if left.is_subset(&signalled) {
                thread::sleep(wait);
                wait = (wait * 2).min(LONGEST_WAIT);
            } else {
                signalled.append(&mut left);
                signal(&dirs, kill_below).map_err(failed)?;
            }
            left = processes(&dirs).map_err(failed)?;
        }
        let empty_after = left.is_empty().then(|| clock.elapsed());
        Ok(KillOutcome {
            signalled_after,
            released_after,
            empty_after,
            n_processes: signalled.len(),
            n_released,
            freed: fallen(before, self.usage(path)),
        })
    }

    /// The pod's directories in which its processes are looked for: where the kernel kills by
    /// itself, where they can be frozen, and where their memory is counted. The other hierarchies of
    /// v1 have the same ones.
    fn kill_dirs(&self, path: &CgroupPath) -> Result<Vec<Dir>, FsError> {
        let trees = self.writer.trees();
        let legacy = ["freezer", "memory"].map(|it| trees.legacy(it));
        let mut dirs: Vec<Dir> = Vec::with_capacity(3);
        for tree in [trees.cgroup2()].into_iter().chain(legacy).flatten() {
            match tree.dir.descend(path.components()) {
                Ok(dir) => dirs.push(dir),
                Err(FsError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(dirs)
    }

    /// Those whose memory takes long to free, largest first. Opened before the kill: a process that
    /// is on its way out gives its memory up at once and cannot be helped any more.
    fn large(&self, pids: &BTreeSet<u32>) -> Vec<OwnedFd> {
        let sized = pids.iter().take(MOST_SIZED);
        let mut large: Vec<(u64, u32)> = sized
            .filter_map(|&pid| Some((self.resident_pages(pid)?, pid)))
            .filter(|(pages, _)| *pages >= LARGE_PROCESS_PAGES)
            .collect();
        large.sort_unstable_by_key(|&(pages, pid)| (Reverse(pages), pid));
        // A pid that was given away meanwhile does no harm: the kernel refuses to free the memory of
        // a process that is not dying.
        let open = |(_, pid)| syscall::pidfd_open(pid).ok();
        large.into_iter().filter_map(open).collect()
    }

    fn resident_pages(&self, pid: u32) -> Option<u64> {
        let text = self.root.read_text(format!("/proc/{pid}/statm")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// Bytes; `None` where the cgroup is gone or has no memory controller.
    fn usage(&self, path: &CgroupPath) -> Option<u64> {
        let trees = self.writer.trees();
        let file = match trees.unified {
            true => "memory.current",
            false => "memory.usage_in_bytes",
        };
        let dir = trees.of("memory")?.dir.descend(path.components()).ok()?;
        dir.read_text(file).ok()?.trim().parse().ok()
    }

    /// Asks in small pieces until it is done, the kernel has no more, or time is up.
    fn reclaim(
        &self,
        path: &CgroupPath,
        bytes: u64,
        clock: &Stopwatch,
    ) -> Result<bool, ApplyError> {
        const FILE: &str = "memory.reclaim";
        let dir = self.dir_with(path, "memory", FILE)?;
        let mut left = bytes;
        while left > 0 && !clock.is_over() {
            let chunk = left.min(RECLAIM_CHUNK);
            let text = chunk.to_string();
            match dir.write(FILE, &text) {
                Ok(()) => left -= chunk,
                Err(error) if error.errno() == Some(EAGAIN) => return Ok(false),
                Err(error) => return Err(write_failed(path, FILE, &text, error)),
            }
        }
        Ok(left == 0)
    }

    /// True when every process has stopped; they go on stopping after that time. False also where the agent was inside:
    /// who puts it back would have it stopped too, and it would thaw nobody.
    fn freeze(&self, path: &CgroupPath, clock: &Stopwatch) -> Result<bool, ApplyError> {
        if self.writer.leave(path)? {
            return Ok(false);
        }
        let freezer = self.freezer();
        let dir = self.dir_with(path, "freezer", freezer.file)?;
        let failed = |error| write_failed(path, freezer.file, freezer.frozen, error);
        dir.write(freezer.file, freezer.frozen).map_err(failed)?;
        let mut wait = FIRST_WAIT;
        loop {
            let state = dir.read_text(freezer.state_file).map_err(failed)?;
            let is_frozen = state.lines().any(|it| it == freezer.frozen_state);
            if is_frozen || clock.is_over() {
                return Ok(is_frozen);
            }
            thread::sleep(wait);
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn thaw(&self, path: &CgroupPath) -> Result<(), ApplyError> {
        let freezer = self.freezer();
        self.dir_with(path, "freezer", freezer.file)?
            .write(freezer.file, freezer.thawed)
            .map_err(|error| write_failed(path, freezer.file, freezer.thawed, error))
    }

    fn freezer(&self) -> &'static Freezer {
        match self.writer.trees().unified {
            true => &freezer::UNIFIED,
            false => &freezer::LEGACY,
        }
    }

    /// The directory of a cgroup, with a file that not every kernel has.
    fn dir_with(
        &self,
        path: &CgroupPath,
        controller: &'static str,
        file: &str,
    ) -> Result<Dir, ApplyError> {
        let no_controller = || ApplyError::NoController {
            path: path.clone(),
            file: file.to_owned(),
            controller,
        };
        let tree = self
            .writer
            .trees()
            .of(controller)
            .ok_or_else(no_controller)?;
        let dir = tree
            .dir
            .descend(path.components())
            .map_err(|error| write_failed(path, file, "", error))?;
        if dir.has(file) || !dir.is_linked() {
            Ok(dir)
        } else {
            Err(no_controller())
        }
    }
}

fn write_failed(path: &CgroupPath, file: &str, value: &str, source: FsError) -> ApplyError {
    match source {
        FsError::Gone { .. } => ApplyError::Gone { path: path.clone() },
        source => ApplyError::Write {
            path: path.clone(),
            file: file.to_owned(),
            value: value.to_owned(),
            source,
        },
    }
}

/// One round of SIGKILL. A hierarchy all of whose processes had it in another is left alone: to freeze
/// them would only hold them up.
fn signal(dirs: &[Dir], kill: fn(&Dir) -> Result<bool, FsError>) -> Result<(), FsError> {
    let mut signalled = BTreeSet::new();
    for dir in dirs {
        let mut present = procs_below(dir)?;
        if !present.is_subset(&signalled) {
            kill(dir)?;
            signalled.append(&mut present);
        }
    }
    Ok(())
}

/// Who is in these directories beside the agent, if somebody has put it there. One that is gone has nobody.
fn processes(dirs: &[Dir]) -> Result<BTreeSet<u32>, FsError> {
    let mut pids = BTreeSet::new();
    for dir in dirs {
        pids.append(&mut procs_below(dir)?);
    }
    pids.remove(&std::process::id());
    Ok(pids)
}

fn fallen(before: Option<u64>, after: Option<u64>) -> Option<u64> {
    Some(before?.saturating_sub(after?))
}

/// Time since the begin, with an end.
struct Stopwatch {
    begin: Duration,
    within: Duration,
}

impl Stopwatch {
    fn start(within: Duration) -> Self {
        Self {
            begin: clock::boottime(),
            within,
        }
    }

    fn elapsed(&self) -> Duration {
        clock::boottime().saturating_sub(self.begin)
    }

    fn is_over(&self) -> bool {
        self.elapsed() >= self.within
    }
}
