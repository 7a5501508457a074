//! A directory held open: its files are addressed by descriptor, so a path that is removed and
//! made again between two calls is never confused with the directory that was opened.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::error::{FsError, Operation};
use super::syscall;

/// Most interface files fit, so that two reads do: the text, and the end.
const INTERFACE_FILE_BYTES: usize = 4096;

/// An open directory. Names given to its methods are single components; one with a `/` is refused,
/// and no symlink is followed, so nothing outside the directory can be reached.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    /// For messages only.
    path: Arc<Path>,
    inode: u64,
}

impl Dir {
    /// Opens a directory by its path, following symlinks.
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(path, flags, Mode::empty())
            .map_err(|e| FsError::new(Operation::Open, path, e.into()))?;
        Self::from_fd(fd, path.into())
    }

    fn from_fd(fd: OwnedFd, path: Arc<Path>) -> Result<Self, FsError> {
        let file = File::from(fd);
        let inode = file
            .metadata()
            .map_err(|e| FsError::new(Operation::Stat, &path, e))?
            .ino();
        Ok(Self {
            fd: file.into(),
            path,
            inode,
        })
    }

    /// The path it was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn shared_path(&self) -> Arc<Path> {
        Arc::clone(&self.path)
    }

    /// Inode number; for a cgroup directory this is the cgroup id.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether the directory is still linked at its path: a removed cgroup keeps its descriptor
    /// and its inode number, but not its name.
    pub fn is_linked(&self) -> bool {
        nix::sys::stat::stat(&*self.path).is_ok_and(|stat| stat.st_ino == self.inode)
    }

    /// Where below this directory of a kernfs the one of this inode number lies; `None`: nowhere. Wants
    /// CAP_DAC_READ_SEARCH.
    pub fn find(&self, inode: u64) -> Result<Option<PathBuf>, FsError> {
        let failed = |e: io::Error| FsError::new(Operation::Open, &self.path, e);
        let found = match syscall::open_kernfs_dir(self.as_fd(), inode) {
            Ok(fd) => fd,
            Err(e) if e.raw_os_error() == Some(nix::libc::ESTALE) => return Ok(None),
            Err(e) => return Err(failed(e)),
        };
        let path_of = |fd: BorrowedFd<'_>| {
            let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
            std::fs::read_link(link).map_err(failed)
        };
        let (path, own) = (path_of(found.as_fd())?, path_of(self.as_fd())?);
        // The path of one that was removed is no more than a text (fs/d_path.c).
        let is_there = nix::sys::stat::lstat(&path).is_ok_and(|it| it.st_ino == inode);
        let below = path.strip_prefix(own).ok().filter(|_| is_there);
        Ok(below.map(Path::to_owned))
    }

    pub fn open_dir(&self, name: &str) -> Result<Self, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = self.openat(name, flags, Operation::Open)?;
        Self::from_fd(fd, self.path.join(name).into())
    }

    /// Opens `a/b/c`, following no symlink. One call where the kernel can (Linux 5.6): a pass over a
    /// full node of cgroup v1 opens ten thousand directories.
    pub fn descend(
        &self,
        components: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, FsError> {
        let relative = self.join(components, Operation::Open)?;
        if relative.as_os_str().is_empty() {
            return self.try_clone();
        }
        let path = self.path.join(&relative);
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
        match openat2(&self.fd, &relative, how) {
            Ok(fd) => Self::from_fd(fd, path.into()),
            // Also from a seccomp filter that does not know the call.
            Err(nix::Error::ENOSYS | nix::Error::EPERM) => self.descend_by_step(&relative),
            Err(e) => Err(FsError::new(Operation::Open, &path, e.into())),
        }
    }

    fn descend_by_step(&self, relative: &Path) -> Result<Self, FsError> {
        let mut dir = self.try_clone()?;
        for name in relative.iter().filter_map(|it| it.to_str()) {
            dir = dir.open_dir(name)?;
        }
        Ok(dir)
    }

    /// Whether `a/b/c` is there and a directory: one call, without opening it. Only the last
    /// component is kept from being a symlink.
    pub fn has_dir(
        &self,
        components: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<bool, FsError> {
        let relative = self.join(components, Operation::Stat)?;
        if relative.as_os_str().is_empty() {
            return Ok(true);
        }
        match fstatat(&self.fd, &relative, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                Ok(SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR)
            }
            Err(e) => match FsError::new(Operation::Stat, &self.path.join(&relative), e.into()) {
                error if error.is_gone() => Ok(false),
                error => Err(error),
            },
        }
    }

    fn join(
        &self,
        components: impl IntoIterator<Item = impl AsRef<str>>,
        operation: Operation,
    ) -> Result<PathBuf, FsError> {
        let mut relative = PathBuf::new();
        for name in components {
            self.check_name(name.as_ref(), operation)?;
            relative.push(name.as_ref());
        }
        Ok(relative)
    }

    pub fn try_clone(&self) -> Result<Self, FsError> {
        let fd = self
            .fd
            .try_clone()
            .map_err(|e| FsError::new(Operation::Open, &self.path, e))?;
        Ok(Self {
            fd,
            path: self.shared_path(),
            inode: self.inode,
        })
    }

    /// Opens an interface file for reading, to be read again and again from offset 0.
    pub fn open_file(&self, name: &str) -> Result<File, FsError> {
        self.openat(
            name,
            OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Operation::Open,
        )
        .map(File::from)
    }

    /// Opens an interface file for writing, never creating it.
    pub fn open_file_for_write(&self, name: &str) -> Result<File, FsError> {
        self.openat(
            name,
            OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC,
            Operation::Open,
        )
        .map(File::from)
    }

    pub fn read_text(&self, name: &str) -> Result<String, FsError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let file = File::from(self.openat(name, flags, Operation::Read)?);
        let mut bytes = Vec::with_capacity(INTERFACE_FILE_BYTES);
        // Through `Take`, because `File` asks for a size and a position first, and an interface file
        // has neither.
        file.take(u64::MAX)
            .read_to_end(&mut bytes)
            .map_err(|e| self.failed(Operation::Read, name, e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// As [`Dir::read_text`], `None` where the directory has no such file.
    pub fn read_text_if_any(&self, name: &str) -> Result<Option<String>, FsError> {
        match self.read_text(name) {
            Ok(text) => Ok(Some(text)),
            Err(FsError::Gone { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `cgroup.procs` of a cgroup. `None`: it is gone, or a threaded one, which refuses to list processes; they show at its
    /// domain.
    pub fn process_list(&self) -> Result<Option<String>, FsError> {
        match self.read_text_if_any("cgroup.procs") {
            Err(error) if error.errno() == Some(nix::libc::EOPNOTSUPP) => Ok(None),
            list => list,
        }
    }

    /// Writes `value` in one call to a file that is there already.
    pub fn write(&self, name: &str, value: &str) -> Result<(), FsError> {
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(self.openat(name, flags, Operation::Write)?);
        file.write_all(value.as_bytes())
            .map_err(|e| self.failed(Operation::Write, name, e))
    }

    /// Makes a sub-directory, mode 0755. True: it was not there before.
    pub fn make_dir(&self, name: &str) -> Result<bool, FsError> {
        self.check_name(name, Operation::CreateDir)?;
        match mkdirat(&self.fd, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) => Ok(true),
            Err(nix::Error::EEXIST) => Ok(false),
            Err(e) => Err(self.failed(Operation::CreateDir, name, e.into())),
        }
    }

    /// Removes an empty sub-directory (for a cgroup: without children and processes).
    pub fn remove_dir(&self, name: &str) -> Result<(), FsError> {
        self.check_name(name, Operation::RemoveDir)?;
        unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir)
            .map_err(|e| self.failed(Operation::RemoveDir, name, e.into()))
    }

    /// How many sub-directories it has, by its count of links, as cgroup file systems keep it.
    /// `None`: this file system keeps none.
    pub fn n_dirs(&self) -> Result<Option<u64>, FsError> {
        let flags = rustix::fs::AtFlags::EMPTY_PATH;
        let stat = rustix::fs::statx(&self.fd, "", flags, rustix::fs::StatxFlags::NLINK)
            .map_err(|e| FsError::new(Operation::Stat, &self.path, e.into()))?;
        // Its name and `.` count too.
        Ok(u64::from(stat.stx_nlink).checked_sub(2))
    }

    /// That of a sub-directory, which may be one that this process may not open.
    pub fn inode_of(&self, name: &str) -> Result<u64, FsError> {
        self.check_name(name, Operation::Stat)?;
        let stat = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|e| self.failed(Operation::Stat, name, e.into()))?;
        Ok(stat.st_ino)
    }

    /// What `stat` says of a file's size, bytes.
    pub fn size_of(&self, name: &str) -> Result<u64, FsError> {
        self.check_name(name, Operation::Stat)?;
        let stat = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|e| self.failed(Operation::Stat, name, e.into()))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    /// When the directory last changed, as time since the epoch. That of a cgroup is when the kernel last brought it into
    /// its cache, which it may drop while nobody uses it (fs/kernfs/inode.c, Linux 6.18).
    pub fn changed_at(&self) -> Result<Duration, FsError> {
        let stat = fstat(&self.fd).map_err(|e| self.failed(Operation::Stat, ".", e.into()))?;
        Ok(changed_at(&stat))
    }

    /// The same of a file in it.
    pub fn file_changed_at(&self, name: &str) -> Result<Duration, FsError> {
        self.check_name(name, Operation::Stat)?;
        let stat = fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|e| self.failed(Operation::Stat, name, e.into()))?;
        Ok(changed_at(&stat))
    }

    /// An extended attribute of the directory. `None`: it has none, or one that is no text of up to 64 bytes.
    pub fn xattr(&self, name: &str) -> Option<String> {
        let mut bytes = [0u8; 64];
        let n = rustix::fs::fgetxattr(&self.fd, name, &mut bytes).ok()?;
        String::from_utf8(bytes.get(..n)?.to_vec()).ok()
    }

    pub fn has(&self, name: &str) -> bool {
        self.check_name(name, Operation::Stat).is_ok()
            && fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }

    /// Visits this directory and those below it, parents first, at most `depth` levels down. What
    /// is removed under the walk is passed over.
    pub fn walk(
        &self,
        depth: usize,
        visit: &mut dyn FnMut(&Self) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        visit(self)?;
        if depth == 0 {
            return Ok(());
        }
        let children = match self.list_dirs() {
            Err(FsError::Gone { .. }) => return Ok(()),
            other => other?,
        };
        for child in children {
            match self.open_dir(&child) {
                Ok(child) => child.walk(depth - 1, visit)?,
                Err(FsError::Gone { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Visits this directory and all below it, children first, however deep they lie and whatever their names are.
    /// What is removed under the walk is passed over. A few descriptors are open, and the stack does not grow.
    pub fn visit_upwards(
        &self,
        visit: &mut dyn FnMut(&Self) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        self.upwards(&mut |_, _| Ok(true), visit, &mut |_, _| Ok(()))
    }

    /// Removes the directories below this one, see [`Self::visit_upwards`]; the first that refuses ends it.
    pub fn remove_below(&self) -> Result<(), FsError> {
        let remove = |above: &Self, name: &OsStr| {
            match unlinkat(above, name, UnlinkatFlags::RemoveDir) {
                // A name that is gone, or a cgroup above it.
                Err(nix::Error::ENOENT | nix::Error::ENODEV) => Ok(()),
                removed => removed,
            }
        };
        let failed = |above: &Self, name: &OsStr, e: nix::Error| {
            FsError::new(Operation::RemoveDir, &above.path.join(name), e.into())
        };
        self.upwards(
            &mut |above, name| match remove(above, name) {
                Ok(()) => Ok(false),
                Err(nix::Error::EBUSY | nix::Error::ENOTEMPTY) => Ok(true),
                Err(e) => Err(failed(above, name, e)),
            },
            &mut |_| Ok(()),
            &mut |above, name| remove(above, name).map_err(|e| failed(above, name, e)),
        )
    }

    /// `enter`: whether a child is to be gone into. `visit`: each directory, when all below it have been left. `leave`:
    /// the directory above one that has been visited, and its name there.
    fn upwards(
        &self,
        enter: &mut dyn FnMut(&Self, &OsStr) -> Result<bool, FsError>,
        visit: &mut dyn FnMut(&Self) -> Result<(), FsError>,
        leave: &mut dyn FnMut(&Self, &OsStr) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        /// A directory that is being visited.
        struct Level {
            name: OsString,
            /// That are left.
            children: Vec<OsString>,
            inode: u64,
            path: Arc<Path>,
        }
        /// Beyond it paths, which are for messages, end: each is as long as the tree is deep.
        const MAX_NAMED: usize = 64;

        // What is gone has no children.
        let names = |dir: &Self| match dir.dir_names() {
            Err(FsError::Gone { .. }) => Ok(Vec::new()),
            names => names,
        };
        let level = |name: OsString, dir: &Self| {
            Ok(Level {
                name,
                children: names(dir)?,
                inode: dir.inode,
                path: Arc::clone(&dir.path),
            })
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut levels = vec![level(OsString::new(), self)?];
        let mut dir = self.try_clone()?;
        while let Some(at) = levels.last_mut() {
            if let Some(child) = at.children.pop() {
                if !enter(&dir, &child)? {
                    continue;
                }
                let path = match levels.len() < MAX_NAMED {
                    true => dir.path.join(&child).into(),
                    false => Arc::clone(&dir.path),
                };
                match openat(&dir.fd, child.as_os_str(), flags, Mode::empty()) {
                    Ok(fd) => {
                        dir = Self::from_fd(fd, path)?;
                        levels.push(level(child, &dir)?);
                    }
                    Err(nix::Error::ENOENT | nix::Error::ENODEV) => {}
                    Err(e) => return Err(FsError::new(Operation::Open, &path, e.into())),
                }
                continue;
            }
            visit(&dir)?;
            let name = std::mem::take(&mut at.name);
            levels.pop();
            let Some(above) = levels.last() else { break };
            let fd = openat(&dir.fd, "..", flags, Mode::empty())
                .map_err(|e| FsError::new(Operation::Open, &above.path, e.into()))?;
            dir = Self::from_fd(fd, Arc::clone(&above.path))?;
            if dir.inode != above.inode {
                // Somebody has unmounted what it lies in, or moved it.
                let error = io::Error::from_raw_os_error(nix::libc::ESTALE);
                return Err(FsError::new(Operation::Open, &above.path, error));
            }
            leave(&dir, &name)?;
        }
        Ok(())
    }

    /// Names of the sub-directories, sorted; names that are not UTF-8 are left out.
    pub fn list_dirs(&self) -> Result<Vec<String>, FsError> {
        let names = self.dir_names()?.into_iter();
        let mut names: Vec<_> = names.filter_map(|it| it.into_string().ok()).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn dir_names(&self) -> Result<Vec<OsString>, FsError> {
        let failed = |e: nix::Error| FsError::new(Operation::List, &self.path, e.into());
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        // A descriptor of its own: the read position belongs to the open file description.
        let mut dir = nix::dir::Dir::openat(&self.fd, ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(failed)?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if entry.file_type() == Some(nix::dir::Type::Directory) && name != "." && name != ".." {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn openat(&self, name: &str, flags: OFlag, operation: Operation) -> Result<OwnedFd, FsError> {
        self.check_name(name, operation)?;
        openat(&self.fd, name, flags, Mode::empty())
            .map_err(|e| self.failed(operation, name, e.into()))
    }

    fn check_name(&self, name: &str, operation: Operation) -> Result<(), FsError> {
        if name.is_empty() || name.contains('/') || name == ".." {
            let message = "not a single path component";
            let error = io::Error::new(io::ErrorKind::InvalidInput, message);
            return Err(self.failed(operation, name, error));
        }
        Ok(())
    }

    fn failed(&self, operation: Operation, name: &str, source: io::Error) -> FsError {
        FsError::new(operation, &self.path.join(name), source)
    }
}

fn changed_at(stat: &FileStat) -> Duration {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Duration::new(seconds, nanoseconds)
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_name_never_leaves_the_directory() {
        let base = Scratch::new("dir");
        std::fs::create_dir_all(base.path("in")).unwrap();
        base.write("outside", "secret");
        std::os::unix::fs::symlink("../outside", base.path("in/link")).unwrap();
        let dir = Dir::open(&base.path("in")).unwrap();
        for name in ["../outside", "..", "link", "", "a/b"] {
            assert!(dir.read_text(name).is_err(), "{name:?} was read");
            assert!(dir.write(name, "x").is_err(), "{name:?} was written");
        }
        assert!(dir.make_dir("child").unwrap());
        assert!(!dir.make_dir("child").unwrap());
        assert_eq!(dir.list_dirs().unwrap(), ["child"]);
        let child = dir.open_dir("child").unwrap();
        assert!(child.is_linked());
        let none: [&str; 0] = [];
        for (components, is_there) in [
            (vec!["in", "child"], true),
            (vec!["in"], true),
            (vec![], true),
            (vec!["in", "absent"], false),
            (vec!["in", "absent", "child"], false),
            (vec!["in", "link"], false),
        ] {
            let base = Dir::open(base.directory()).unwrap();
            assert_eq!(
                base.has_dir(&components).unwrap(),
                is_there,
                "{components:?}"
            );
            assert_eq!(
                base.descend(&components).is_ok(),
                is_there,
                "{components:?}"
            );
        }
        let stepwise = dir.descend_by_step(Path::new("child")).unwrap();
        assert_eq!(stepwise.inode(), child.inode());
        assert_eq!(dir.descend(none).unwrap().inode(), dir.inode());
        assert!(dir.has_dir([".."]).is_err() && dir.descend([".."]).is_err());
        dir.remove_dir("child").unwrap();
        assert!(!child.is_linked());
        assert!(dir.remove_dir("child").unwrap_err().is_gone());
    }

    #[test]
    fn changes_within_one_second_are_told_apart() {
        let base = Scratch::new("changed");
        let dir = Dir::open(base.directory()).unwrap();
        let file = File::from(dir.try_clone().unwrap().fd);
        for microseconds in [123_456, 123_457] {
            let changed = Duration::from_secs(1_763_710_000) + Duration::from_micros(microseconds);
            file.set_modified(SystemTime::UNIX_EPOCH + changed).unwrap();
            assert_eq!(dir.changed_at().unwrap(), changed);
        }
    }

    #[test]
    fn a_subtree_is_visited_and_removed_however_deep_and_whatever_its_names() {
        const DEPTH: usize = 3_000;
        let base = Scratch::new("subtree");
        std::fs::create_dir(base.path("top")).unwrap();
        let top = Dir::open(&base.path("top")).unwrap();
        let mut deepest = top.try_clone().unwrap();
        for _ in 0..DEPTH {
            assert!(deepest.make_dir("d").unwrap());
            deepest = deepest.open_dir("d").unwrap();
        }
        for name in [b"caf\xe9".as_slice(), b"plain"] {
            let name = OsStr::from_bytes(name);
            mkdirat(&top, name, Mode::S_IRWXU).unwrap();
        }

        let mut seen = Vec::new();
        let mut visit = |dir: &Dir| {
            seen.push(dir.inode());
            Ok(())
        };
        top.visit_upwards(&mut visit).unwrap();
        assert_eq!(seen.len(), DEPTH + 3);
        assert_eq!(seen.last(), Some(&top.inode()));

        // One that refuses keeps those above it.
        let flags = OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        openat(&deepest, "file", flags, Mode::S_IRUSR).unwrap();
        assert_eq!(top.remove_below().unwrap_err().errno(), Some(39));
        unlinkat(&deepest, "file", UnlinkatFlags::NoRemoveDir).unwrap();
        top.remove_below().unwrap();
        // One that is gone is still visited.
        let gone = top.try_clone().unwrap();
        std::fs::remove_dir(base.path("top")).unwrap();
        let mut n_visits = 0;
        gone.visit_upwards(&mut |_| {
            n_visits += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(n_visits, 1);
        assert!(top.remove_below().is_ok());
    }
}
