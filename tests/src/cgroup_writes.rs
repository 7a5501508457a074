//! What is changed below the mounts of the cgroups, by whom: the kernel tells who opens a file for writing there,
//! and who makes or removes a directory. And which files anywhere else were open for writing.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, Fanotify, FanotifyEvent, InitFlags, MarkFlags, MaskFlags};

use crate::cgroup;

/// Reports files by their handles, directories and names, and not by descriptors: what is removed at once is
/// reported too (`linux/fanotify.h`).
const REPORT_FID: u32 = 0x200;
const REPORT_DIR_FID: u32 = 0x400;
const REPORT_NAME: u32 = 0x800;

/// Everything that is written, made or removed from when it is made.
pub struct Watch(Fanotify);

impl Watch {
    pub fn new() -> Result<Self> {
        let flags = REPORT_FID | REPORT_DIR_FID | REPORT_NAME;
        let flags = InitFlags::from_bits_retain(flags)
            | InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_UNLIMITED_QUEUE;
        let watch = Fanotify::init(flags, EventFFlags::O_RDONLY).context("fanotify")?;
        let mask = MaskFlags::FAN_MODIFY
            | MaskFlags::FAN_CLOSE_WRITE
            | MaskFlags::FAN_CREATE
            | MaskFlags::FAN_DELETE
            | MaskFlags::FAN_ONDIR;
        for mount in cgroup::mounts() {
            let marks = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
            watch
                .mark(marks, mask, nix::fcntl::AT_FDCWD, Some(&mount))
                .with_context(|| format!("watch {}", mount.display()))?;
        }
        Ok(Self(watch))
    }

    /// Who has changed something since this was asked last: a pid for each change.
    pub fn writers(&self) -> Result<Vec<u32>> {
        let mut writers = Vec::new();
        take(&self.0, |event| writers.extend(u32::try_from(event.pid())))?;
        Ok(writers)
    }
}

/// Files that somebody closes after he could write them, on each file system of the machine but those of cgroups and of
/// devices.
pub struct FileWatch(Fanotify);

impl FileWatch {
    /// Types of file systems, as `/proc/mounts` has them.
    const TYPES: &[&str] = &[
        "bpf", "btrfs", "debugfs", "ext4", "overlay", "proc", "rootfs", "sysfs", "tmpfs",
        "tracefs", "xfs",
    ];

    pub fn new() -> Result<Self> {
        let flags =
            InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | InitFlags::FAN_UNLIMITED_QUEUE;
        let watch = Fanotify::init(flags, EventFFlags::O_RDONLY).context("fanotify")?;
        let marks = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
        let mut n_watched = 0;
        for line in fs::read_to_string("/proc/self/mounts")?.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(place), Some(kind)) = (fields.next(), fields.next()) else {
                continue;
            };
            if Self::TYPES.contains(&kind) {
                let mask = MaskFlags::FAN_CLOSE_WRITE;
                watch
                    .mark(marks, mask, nix::fcntl::AT_FDCWD, Some(place))
                    .with_context(|| format!("watch {line}"))?;
                n_watched += 1;
            }
        }
        ensure!(n_watched > 0, "there is no file system");
        Ok(Self(watch))
    }

    /// Those of these processes since this was asked last. What is gone has ` (deleted)` behind its path.
    pub fn files_of(&self, pids: &BTreeSet<u32>) -> Result<BTreeSet<PathBuf>> {
        let mut files = BTreeSet::new();
        take(&self.0, |event| {
            let is_one = u32::try_from(event.pid()).is_ok_and(|it| pids.contains(&it));
            if let Some(file) = event.fd().filter(|_| is_one) {
                files.extend(fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())));
            }
        })?;
        Ok(files)
    }
}

/// Hands on what has happened since this was asked last.
fn take(watch: &Fanotify, mut found: impl FnMut(&FanotifyEvent)) -> Result<()> {
    loop {
        match watch.read_events() {
            Ok(events) => {
                for event in events {
                    ensure!(
                        !event.mask().contains(MaskFlags::FAN_Q_OVERFLOW),
                        "events were lost"
                    );
                    found(&event);
                }
            }
            Err(Errno::EAGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
