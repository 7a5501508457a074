//! Files as another process sees them, which may live in other mount namespaces and below another root.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::SystemTime;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use super::error::{FsError, Operation};
use super::regular;

/// The root directory of a process, as `/proc/PID/root` gives it. Invariant: no path and no link in one leads out
/// of it. Needs openat2(2), Linux 5.6.
#[derive(Debug)]
pub struct Inside(OwnedFd);

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    pub text: String,
    /// When it was written last.
    pub modified: SystemTime,
}

/// What is in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// Names, and whether each is a directory itself.
    pub entries: Vec<(String, bool)>,
    /// When one came or went last.
    pub modified: SystemTime,
}

impl Inside {
    pub fn open(root: &Path) -> Result<Self, FsError> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = nix::fcntl::open(root, flags, Mode::empty());
        let fd = fd.map_err(|e| FsError::new(Operation::Open, root, e.into()))?;
        Ok(Self(fd))
    }

    /// A regular file of at most `limit` bytes in UTF-8. `path`: absolute.
    pub fn text(&self, path: &Path, limit: u64) -> Result<FoundFile, FsError> {
        let read = || {
            let (file, metadata) = self.regular(path)?;
            let bytes = regular::at_most(file, limit)?;
            let text = String::from_utf8(bytes);
            Ok(FoundFile {
                text: text.map_err(|e| io::Error::other(e.utf8_error()))?,
                modified: metadata.modified()?,
            })
        };
        read().map_err(|e| FsError::new(Operation::Read, path, e))
    }

    /// The bytes of such a file.
    pub fn bytes(&self, path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
        let read = || regular::at_most(self.regular(path)?.0, limit);
        read().map_err(|e| FsError::new(Operation::Read, path, e))
    }

    /// A socket, to be connected to by its descriptor (`/proc/self/fd`). `path`: absolute.
    pub fn socket(&self, path: &Path) -> Result<OwnedFd, FsError> {
        let open = || self.at(path, OFlag::O_PATH);
        open().map_err(|e| FsError::new(Operation::Open, path, e))
    }

    fn regular(&self, path: &Path) -> io::Result<(File, Metadata)> {
        let file = File::from(self.at(path, OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?);
        let metadata = file.metadata()?;
        match metadata.is_file() {
            true => Ok((file, metadata)),
            false => Err(io::Error::other("it is no regular file")),
        }
    }

    /// What is in a directory, by name, which no link at the end of `path` leads to; names that are not UTF-8 are left
    /// out.
    pub fn list(&self, path: &Path) -> Result<Listing, FsError> {
        let list = || {
            let directory = self.at(path, OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW)?;
            let entries = fs::read_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()))?;
            let mut all = Vec::new();
            for entry in entries {
                let entry = entry?;
                if let Ok(name) = entry.file_name().into_string() {
                    all.push((name, entry.file_type()?.is_dir()));
                }
            }
            all.sort_unstable();
            Ok(Listing {
                entries: all,
                modified: File::from(directory).metadata()?.modified()?,
            })
        };
        list().map_err(|e| FsError::new(Operation::List, path, e))
    }

    fn at(&self, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_CLOEXEC | flags)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        Ok(openat2(&self.0, path, how)?)
    }
}

#[cfg(test)]
#[expect(
    clippy::unwrap_used,
    reason = "the tests make the files that are read; a failed fixture fails the test"
)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use nix::unistd::mkfifo;

    use super::*;
    use crate::sys::chain;
    use crate::sys::scratch::Scratch;

    #[test]
    fn links_are_followed_below_the_root_and_never_out_of_it() {
        let root = Scratch::new("inside");
        fs::create_dir_all(root.path("store/conf.d")).unwrap();
        fs::create_dir_all(root.path("etc")).unwrap();
        root.write("store/config", "a: 1");
        root.write("store/conf.d/b", "");
        root.write("store/conf.d/a", "");
        root.write("etc/passwd", "of the other");
        symlink("/store/config", root.path("etc/absolute")).unwrap();
        symlink("../../../store/config", root.path("etc/up")).unwrap();
        symlink("/store/conf.d", root.path("etc/conf.d")).unwrap();
        symlink("/proc/self/root/etc/passwd", root.path("etc/magic")).unwrap();
        symlink("loop", root.path("etc/loop")).unwrap();
        mkfifo(&root.path("etc/fifo"), Mode::S_IRWXU).unwrap();

        let _listener = UnixListener::bind(root.path("store/socket")).unwrap();
        symlink("/store/socket", root.path("etc/socket")).unwrap();

        let inside = Inside::open(root.directory()).unwrap();
        let socket = inside.socket(Path::new("/etc/socket")).unwrap();
        let by_descriptor = format!("/proc/self/fd/{}", socket.as_raw_fd());
        UnixStream::connect(by_descriptor).unwrap();
        assert!(inside.socket(Path::new("/etc/magic")).is_err());
        let text = |path: &str| inside.text(Path::new(path), 16).map(|it| it.text);
        for (path, right) in [
            ("/store/config", "a: 1"),
            ("/etc/absolute", "a: 1"),
            ("/etc/up", "a: 1"),
            ("/../../etc/passwd", "of the other"),
        ] {
            assert_eq!(text(path).unwrap(), right, "{path}");
        }
        let list = |path: &str| inside.list(Path::new(path));
        let names = |path: &str| {
            list(path)
                .unwrap()
                .entries
                .into_iter()
                .map(|(name, _)| name)
        };
        assert_eq!(names("/store/conf.d").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(names("/etc/conf.d/").collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(
            list("/etc/conf.d").unwrap_err().errno(),
            Some(nix::libc::ENOTDIR)
        );
        for (path, right) in [
            ("/etc/none", "/etc/none is not there"),
            ("/etc/magic", "/etc/magic is not there"),
            ("/etc/fifo", "it is no regular file"),
            ("/etc/conf.d", "it is no regular file"),
            ("/etc/loop", "Too many levels of symbolic links"),
        ] {
            let error = chain(&text(path).unwrap_err());
            assert!(error.contains(right), "{path}: {error}");
        }
        let error = inside.text(Path::new("/store/config"), 3).unwrap_err();
        assert!(chain(&error).contains("larger than 3 bytes"));
    }
}
