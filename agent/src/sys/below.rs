//! Directories below one that others fill, and may fill so that a path leads elsewhere.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, fchmod, mkdirat, open, openat, openat2, statx,
};
use rustix::io::Errno;

use super::error::{FsError, Operation};

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// By no link. Linux 5.6.
const NO_LINKS: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
const SAME_MOUNT: ResolveFlags = NO_LINKS.union(ResolveFlags::NO_XDEV);

/// What becomes of a mount on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// It is in the way.
    Refuse,
    /// It is a part of the way.
    Cross,
}

/// Makes the directories of a path below `base` that are missing, with the mode of `base`. A link or a file in the way
/// (ENOTDIR) and a mount that is refused (EXDEV) are left as they are, and asked nothing. `base_path` is for messages.
pub fn create_dirs(
    base: impl AsFd,
    base_path: &Path,
    path: &Path,
    mounts: Mounts,
) -> Result<(), FsError> {
    let resolve = match mounts {
        Mounts::Refuse => SAME_MOUNT,
        Mounts::Cross => NO_LINKS,
    };
    let failed = |e: Errno| FsError::new(Operation::CreateDir, &base_path.join(path), e.into());
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(&base, c"", flags, StatxFlags::MODE).map_err(failed)?;
    let mode = Mode::from_raw_mode(stat.stx_mode.into());
    let mut dir = openat(&base, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
    for component in path.components() {
        let name = match component {
            Component::Normal(name) => name,
            Component::CurDir => continue,
            _ => return Err(failed(Errno::INVAL)),
        };
        let open = |above: &OwnedFd| openat2(above, name, DIRECTORY, Mode::empty(), resolve);
        dir = match open(&dir) {
            Err(Errno::NOENT) => {
                let is_made = match mkdirat(&dir, name, mode) {
                    Ok(()) => true,
                    // Somebody was quicker: its mode is his.
                    Err(Errno::EXIST) => false,
                    Err(e) => return Err(failed(e)),
                };
                let there = open(&dir).map_err(failed)?;
                if is_made {
                    // The umask may have taken something of it away.
                    fchmod(&there, mode).map_err(failed)?;
                }
                there
            }
            // A link is no directory either.
            Err(Errno::LOOP) => return Err(failed(Errno::NOTDIR)),
            found => found.map_err(failed)?,
        };
    }
    Ok(())
}

/// Whether something below `above` has a name, by no link. Yes where something is mounted on the way, which is asked
/// nothing.
pub fn has_name(above: &Path, path: &Path) -> Result<bool, FsError> {
    let failed = |e: Errno| FsError::new(Operation::Open, &above.join(path), e.into());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = open(above, flags, Mode::empty()).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(&base, path, flags, Mode::empty(), SAME_MOUNT) {
        Ok(_) | Err(Errno::XDEV) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(e) => Err(failed(e)),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn what_is_missing_is_made_and_nothing_elsewhere() {
        let dir = Scratch::new("below");
        let base_path = dir.path("volume");
        for name in ["volume/there", "outside"] {
            fs::create_dir_all(dir.path(name)).unwrap();
        }
        fs::write(dir.path("volume/file"), "").unwrap();
        symlink("../outside", dir.path("volume/link")).unwrap();
        let shared = fs::Permissions::from_mode(0o777);
        fs::set_permissions(&base_path, shared).unwrap();
        let base = File::open(&base_path).unwrap();
        let mode = |path: &str| {
            let found = fs::symlink_metadata(base_path.join(path)).unwrap();
            found.permissions().mode() & 0o7777
        };
        let before = mode("there");
        let create = |path: &str| create_dirs(&base, &base_path, Path::new(path), Mounts::Refuse);
        for path in ["a/b", "./there//c/", "there"] {
            create(path).unwrap();
        }
        for (paths, errno) in [
            (
                ["file", "file/d", "link", "link/e"].as_slice(),
                Errno::NOTDIR,
            ),
            (&["../f", "/f", "a/../../f"], Errno::INVAL),
        ] {
            for path in paths {
                let error = create(path).unwrap_err();
                assert_eq!(error.errno(), Some(errno.raw_os_error()), "{path}");
            }
        }
        // As procfs is wherever there is one.
        let (root, directory) = (File::open("/").unwrap(), Path::new("/"));
        create_dirs(&root, directory, Path::new("proc/self"), Mounts::Cross).unwrap_err();
        create_dirs(&root, directory, Path::new("proc/sys"), Mounts::Cross).unwrap();
        for path in ["proc", "proc/d"] {
            let made = create_dirs(&root, directory, Path::new(path), Mounts::Refuse);
            let error = made.unwrap_err();
            assert_eq!(error.errno(), Some(Errno::XDEV.raw_os_error()), "{path}");
        }
        for path in ["a", "a/b", "there/c"] {
            assert_eq!(mode(path), 0o777, "{path}");
        }
        assert_eq!(mode("there"), before);
        assert_eq!(fs::read_dir(dir.path("outside")).unwrap().count(), 0);
        assert!(!dir.path("f").exists());
    }
}
