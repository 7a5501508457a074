//! Volumes in memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use rustix::fs::{AtFlags, Mode, OFlags, StatxAttributes, StatxFlags, open, statx};

use super::error::{FsError, Operation};
use crate::units::Bytes;

/// Mounts a tmpfs of this size, in whole pages and at least one, for every user (mode 0777), or of a group that owns what
/// is made in it (mode 02777), on a directory; what is mounted on it already stays, and is asked nothing. Its pages are
/// never swapped out where the kernel can promise that (Linux 6.4) and are charged to the cgroup that writes them. A link
/// is not followed. Needs CAP_SYS_ADMIN.
pub fn mount_tmpfs(path: &Path, size: Bytes, group: Option<u32>) -> Result<(), FsError> {
    let failed = |e: std::io::Error| FsError::new(Operation::Mount, path, e);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(path, flags, Mode::empty()).map_err(|e| failed(e.into()))?;
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&directory, "", flags, StatxFlags::empty());
    let stat = stat.map_err(|e| failed(e.into()))?;
    if stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Ok(());
    }
    let options = match group {
        Some(group) => format!(",mode=2777,gid={group}"),
        None => ",mode=0777".to_owned(),
    };
    mount_sized(&directory, MsFlags::empty(), size, &options).map_err(|e| failed(e.into()))
}

/// Gives the tmpfs that is mounted as this directory another size, in whole pages and at least one. The kernel refuses a
/// size that is less than what is in use (EINVAL).
pub fn resize_tmpfs(directory: impl AsFd, size: Bytes) -> io::Result<()> {
    mount_sized(directory, MsFlags::MS_REMOUNT, size, "").map_err(io::Error::from)
}

fn mount_sized(
    directory: impl AsFd,
    flags: MsFlags,
    size: Bytes,
    options: &str,
) -> Result<(), Errno> {
    // By descriptor: the path could lead elsewhere by now.
    let target = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    let mount = |more: &str| {
        // 0 would be no limit.
        let size = size.0.max(1);
        let options = format!("size={size}{options}{more}");
        mount(
            Some("tmpfs"),
            &*target,
            Some("tmpfs"),
            flags,
            Some(options.as_str()),
        )
    };
    match mount(",noswap") {
        // Of an option that it does not know, or that the mount was made without.
        Err(Errno::EINVAL) => mount(""),
        other => other,
    }
}
