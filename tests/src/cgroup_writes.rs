//! What is changed below the mounts of the cgroups, by whom: the kernel tells who opens a file for writing there,
//! and who makes or removes a directory.

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

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
        loop {
            match self.0.read_events() {
                Ok(events) => {
                    for event in events {
                        ensure!(
                            !event.mask().contains(MaskFlags::FAN_Q_OVERFLOW),
                            "events were lost"
                        );
                        writers.extend(u32::try_from(event.pid()));
                    }
                }
                Err(Errno::EAGAIN) => return Ok(writers),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
