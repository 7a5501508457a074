//! Removes directory trees that others have filled, and may have filled so as to do harm: however
//! deep, whatever is mounted in it, wherever its links lead.
//!
//! Invariants: nothing beyond a mount or a link is touched; at most [`MAX_DEPTH`] + 4 descriptors are
//! open, and stack and memory are constant, since what lies deeper is moved up to the top first.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, open, openat, openat2, renameat, unlinkat,
};
use rustix::io::Errno;

use super::error::{FsError, Operation};

/// Levels with a descriptor each.
const MAX_DEPTH: usize = 32;

/// A tree that somebody keeps filling is given up after so many rounds.
const MAX_ROUNDS: u32 = 1 << 20;

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Linux 5.6.
const SAME_MOUNT: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_XDEV);

/// What becomes of mounts in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounts {
    /// They keep the tree from being removed.
    Refuse,
    /// They are detached (`MNT_DETACH`); what is mounted stays as it is.
    Detach,
}

/// Removes `path` with everything in it; a link there is removed itself, and what is not there is
/// fine. After a failure the rest is removed all the same: the error is the first of what remains.
/// Needs openat2(2), Linux 5.6.
pub fn remove_tree(path: &Path, mounts: Mounts) -> Result<(), FsError> {
    let failed = |path: &Path, e: Errno| FsError::new(Operation::RemoveDir, path, e.into());
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(failed(path, Errno::INVAL));
    };
    let name = CString::new(name.as_bytes()).map_err(|_nul| failed(path, Errno::INVAL))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = match open(above, flags, Mode::empty()) {
        Ok(above) => above,
        Err(Errno::NOENT) => return Ok(()),
        Err(e) => return Err(failed(above, e)),
    };
    let mut removal = Removal {
        path,
        mounts,
        stack: Vec::new(),
        n_moved: 0,
        has_progress: false,
        fault: None,
    };
    for _ in 0..MAX_ROUNDS {
        removal.has_progress = false;
        removal.fault = None;
        let ended = match open_below(above.as_fd(), &name, mounts) {
            Ok(Found::Directory(top)) => removal
                .sweep(top)
                .and_then(|()| unlinkat(&above, &name, AtFlags::REMOVEDIR)),
            Ok(Found::Other) => unlink(above.as_fd(), &name, mounts),
            Err(e) => Err(e),
        };
        match (ended, removal.fault.take()) {
            (Ok(()) | Err(Errno::NOENT), _) => return Ok(()),
            (Err(Errno::NOTEMPTY), _) if removal.has_progress => {}
            (Err(_), Some((path, e))) => return Err(failed(&path, e)),
            (Err(e), None) => return Err(failed(path, e)),
        }
    }
    Err(failed(path, Errno::NOTEMPTY))
}

/// Takes away what is mounted right in `directory`, which is below `above` by no link and no mount, with the places of the
/// mounts, as far as it can be: what remains is found by [`remove_tree`].
pub fn remove_mounts(above: &Path, directory: &Path) {
    try_remove_mounts(above, directory).ok();
}

fn try_remove_mounts(above: &Path, directory: &Path) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let above = open(above, flags, Mode::empty())?;
    let flags = OFlags::RDONLY | DIRECTORY;
    let mut dir = Dir::new(openat2(
        &above,
        directory,
        flags,
        Mode::empty(),
        SAME_MOUNT,
    )?)?;
    while let Some(Ok(entry)) = dir.read() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let dir = dir.fd()?;
        let is_mount = || matches!(open_below(dir, name, Mounts::Refuse), Err(Errno::XDEV));
        if is_mount() {
            while is_mount() && detach(dir, name).is_ok() {}
            unlinkat(dir, name, AtFlags::REMOVEDIR).ok();
        }
    }
    Ok(())
}

/// A directory that is being emptied.
struct Level {
    dir: Dir,
    /// In the level above; the top has none.
    name: CString,
}

struct Removal<'a> {
    path: &'a Path,
    mounts: Mounts,
    /// From the top down; the last one is being read.
    stack: Vec<Level>,
    n_moved: u64,
    /// Something was removed or moved in this round.
    has_progress: bool,
    /// The first one of this round.
    fault: Option<(PathBuf, Errno)>,
}

impl Removal<'_> {
    /// Empties the tree as far as it goes; what is moved up is left to this round or the next.
    fn sweep(&mut self, top: OwnedFd) -> Result<(), Errno> {
        self.stack.push(Level {
            dir: Dir::new(top)?,
            name: CString::default(),
        });
        while let Some(level) = self.stack.last_mut() {
            match level.dir.read() {
                Some(Ok(entry)) => {
                    let name = entry.file_name();
                    if !matches!(name.to_bytes(), b"." | b"..") {
                        let removed = self.remove_entry(name, entry.file_type());
                        self.note(name, removed);
                    }
                }
                Some(Err(e)) => {
                    self.note(c".", Err(e));
                    self.leave();
                }
                None => self.leave(),
            }
        }
        Ok(())
    }

    fn remove_entry(&mut self, name: &CStr, kind: FileType) -> Result<(), Errno> {
        let level = self.stack.last().ok_or(Errno::BADF)?;
        let parent = level.dir.fd()?;
        let is_dir = matches!(kind, FileType::Directory | FileType::Unknown);
        let found = match is_dir {
            true => open_below(parent, name, self.mounts)?,
            false => Found::Other,
        };
        match found {
            Found::Other => unlink(parent, name, self.mounts)?,
            Found::Directory(opened) if self.stack.len() < MAX_DEPTH => {
                let (dir, name) = (Dir::new(opened)?, name.to_owned());
                self.stack.push(Level { dir, name });
                return Ok(());
            }
            Found::Directory(_) => {
                let top = self.stack.first().ok_or(Errno::BADF)?.dir.fd()?;
                move_up(parent, name, top, &mut self.n_moved)?;
            }
        }
        self.has_progress = true;
        Ok(())
    }

    /// The directory that was read to its end goes, and the one above is read on.
    fn leave(&mut self) {
        let (Some(level), Some(above)) = (self.stack.pop(), self.stack.last()) else {
            return;
        };
        let above = above.dir.fd();
        let removed = above.and_then(|it| unlinkat(it, &level.name, AtFlags::REMOVEDIR));
        self.has_progress |= removed.is_ok();
        self.note(&level.name, removed);
    }

    fn note(&mut self, name: &CStr, result: Result<(), Errno>) {
        let Err(e) = result else {
            return;
        };
        if e == Errno::NOENT || self.fault.is_some() {
            return;
        }
        let mut path = self.path.to_owned();
        let levels = self.stack.iter().skip(1).map(|it| it.name.as_c_str());
        for name in levels.chain([name]) {
            path.push(OsStr::from_bytes(name.to_bytes()));
        }
        self.fault = Some((path, e));
    }
}

enum Found {
    Directory(OwnedFd),
    /// Something else, which can be unlinked.
    Other,
}

/// Opens a directory of the same mount, after detaching what is mounted on it.
fn open_below(parent: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<Found, Errno> {
    loop {
        let flags = OFlags::RDONLY | DIRECTORY;
        match openat2(parent, name, flags, Mode::empty(), SAME_MOUNT) {
            Ok(opened) => return Ok(Found::Directory(opened)),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Found::Other),
            Err(Errno::XDEV) if mounts == Mounts::Detach => detach(parent, name)?,
            Err(e) => return Err(e),
        }
    }
}

fn unlink(parent: BorrowedFd<'_>, name: &CStr, mounts: Mounts) -> Result<(), Errno> {
    loop {
        match unlinkat(parent, name, AtFlags::empty()) {
            Err(Errno::BUSY) if mounts == Mounts::Detach => detach(parent, name)?,
            other => return other,
        }
    }
}

/// Detaches the uppermost mount on a name. By descriptor: a path could lead elsewhere by now.
fn detach(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mounted = openat(parent, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", mounted.as_raw_fd());
    // Refused with EINVAL for what is no mount.
    umount2(&*path, MntFlags::MNT_DETACH).map_err(|e| Errno::from_raw_os_error(e as i32))
}

fn move_up(
    parent: BorrowedFd<'_>,
    name: &CStr,
    top: BorrowedFd<'_>,
    n_moved: &mut u64,
) -> Result<(), Errno> {
    loop {
        let free = format!("removing-{n_moved}");
        *n_moved += 1;
        match renameat(parent, name, top, &free) {
            // Whoever filled the tree had the same idea.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::fs;

    use rustix::fs::mkdirat;

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn links_are_removed_and_not_followed() {
        let base = Scratch::new("removal");
        fs::create_dir_all(base.path("outside/kept")).unwrap();
        fs::create_dir_all(base.path("tree/a/b")).unwrap();
        base.write("tree/a/file", "x");
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, base.path(at)).unwrap();
        link("../../../outside", "tree/a/b/up");
        link("nowhere", "tree/a/dangling");
        link("../outside", "tree/outside");
        remove_tree(&base.path("tree"), Mounts::Refuse).unwrap();
        assert!(!base.path("tree").exists() && base.path("outside/kept").is_dir());
        link("outside", "link");
        remove_tree(&base.path("link"), Mounts::Refuse).unwrap();
        assert!(fs::symlink_metadata(base.path("link")).is_err());
        assert!(base.path("outside/kept").is_dir());
        remove_tree(&base.path("absent/below"), Mounts::Refuse).unwrap();
        remove_tree(base.directory(), Mounts::Refuse).unwrap();
        assert!(!base.directory().exists());
    }

    #[test]
    fn where_nothing_is_mounted_no_mount_is_taken_away() {
        let base = Scratch::new("removal");
        fs::create_dir_all(base.path("outside/there")).unwrap();
        fs::create_dir_all(base.path("tree/volumes/empty")).unwrap();
        base.write("tree/volumes/file", "x");
        base.link("tree/volumes/link", "../../outside");
        base.link("tree/link", "../outside");
        for directory in ["tree/volumes", "tree/link", "tree/absent"] {
            remove_mounts(base.directory(), Path::new(directory));
        }
        for path in ["outside/there", "tree/volumes/empty", "tree/volumes/file"] {
            assert!(base.path(path).exists(), "{path}");
        }
    }

    #[test]
    fn depth_costs_neither_stack_nor_descriptors() {
        let base = Scratch::new("removal");
        // Names in the way of what is moved up, with something in them.
        for name in ["removing-0", "removing-2"] {
            fs::create_dir_all(base.path("tree").join(name).join("full")).unwrap();
        }
        base.write("tree/removing-1", "");
        let flags = OFlags::RDONLY | DIRECTORY;
        let mut dir = open(base.path("tree"), flags, Mode::empty()).unwrap();
        for _ in 0..3_000 {
            mkdirat(&dir, "d", Mode::RWXU).unwrap();
            let file = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            drop(openat(&dir, "f", file, Mode::RUSR).unwrap());
            dir = openat(&dir, "d", flags, Mode::empty()).unwrap();
        }
        drop(dir);
        let tree = base.path("tree");
        let remove = move || remove_tree(&tree, Mounts::Refuse);
        let small = std::thread::Builder::new().stack_size(64 << 10);
        small.spawn(remove).unwrap().join().unwrap().unwrap();
        assert!(!base.path("tree").exists());
        fs::remove_dir(base.directory()).unwrap();
    }

    #[test]
    fn another_filesystem_is_named_and_left() {
        // procfs is a mount wherever there is one, and no file of it can be removed.
        let error = remove_tree(Path::new("/proc"), Mounts::Refuse).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::XDEV.raw_os_error()), "{error}");
    }
}
