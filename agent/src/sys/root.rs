//! Absolute paths of the node, below a root that tests can move.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::error::{FsError, Operation};
use super::regular;
use super::removal::{Mounts, remove_tree};

/// More than any file that is read whole, the kernel's types (some 10 MiB) among them.
const MAX_BYTES: u64 = 64 << 20;

/// The tree in which `/proc`, `/sys` and the rest are looked up: the node itself, a mount of the
/// host's root in a container, or a directory shaped like a node in a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Root {
    /// The node itself.
    pub fn host() -> Self {
        Self(PathBuf::from("/"))
    }

    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where `path`, absolute in the node, is for this process.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// A regular file, as those of the kernel are; see [`regular::whole`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>, FsError> {
        self.read_at_most(path, MAX_BYTES)
    }

    /// As [`Root::read`]; one of more than `limit` bytes is an error.
    pub fn read_at_most(&self, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, FsError> {
        regular::whole(&self.path(path), limit)
    }

    /// The file as UTF-8; other bytes become U+FFFD, since the kernel lets a process put anything
    /// into its own name.
    pub fn read_text(&self, path: impl AsRef<Path>) -> Result<String, FsError> {
        self.read(path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// As [`Root::read_text`], `None` where the file is not there.
    pub fn read_text_if_any(&self, path: impl AsRef<Path>) -> Result<Option<String>, FsError> {
        match self.read_text(path) {
            Ok(text) => Ok(Some(text)),
            Err(FsError::Gone { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes to a file that is there already, in one call, without creating it: the form of
    /// every kernel interface file.
    pub fn write_existing(&self, path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), FsError> {
        use std::io::Write;
        let path = self.path(path);
        fs::OpenOptions::new()
            .write(true)
            .open(&path)
            .and_then(|mut file| file.write_all(bytes))
            .map_err(|e| FsError::new(Operation::Write, &path, e))
    }

    /// Names in a directory, sorted; names that are not UTF-8 are left out.
    pub fn list(&self, path: impl AsRef<Path>) -> Result<Vec<String>, FsError> {
        self.list_all(path).map(|(names, _)| names)
    }

    /// Names in a directory, sorted; those that are not UTF-8 apart, as they look.
    pub fn list_all(&self, path: impl AsRef<Path>) -> Result<(Vec<String>, Vec<String>), FsError> {
        let path = self.path(path);
        let failed = |e| FsError::new(Operation::List, &path, e);
        let (mut names, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&path).map_err(failed)? {
            match entry.map_err(failed)?.file_name().into_string() {
                Ok(name) => names.push(name),
                Err(name) => others.push(name.to_string_lossy().into_owned()),
            }
        }
        names.sort_unstable();
        others.sort_unstable();
        Ok((names, others))
    }

    /// Whether something is there; an error of the lookup counts as absent.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    pub fn is_dir(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).is_dir()
    }

    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf, FsError> {
        let path = self.path(path);
        fs::read_link(&path).map_err(|e| FsError::new(Operation::Read, &path, e))
    }

    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        self.create_dirs(path, 0o755)
    }

    fn create_dirs(&self, path: impl AsRef<Path>, mode: u32) -> Result<(), FsError> {
        let path = self.path(path);
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&path);
        made.map_err(|e| FsError::new(Operation::CreateDir, &path, e))
    }

    /// Makes a directory for root and its group alone, mode 0750, and those above it. One that is
    /// there is left as it is.
    pub fn create_private_dir(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        self.create_dirs(path, 0o750)
    }

    /// As [`Root::create_dir_all`], but nobody else may use the last of them, mode 0700.
    pub fn create_dir_of_root(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        self.create_dir_all(&path)?;
        let path = self.path(path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
            .map_err(|e| FsError::new(Operation::CreateDir, &path, e))
    }

    /// Makes a directory that every user may use (mode 0777), of a group that owns what is made in it from then on
    /// (mode 02777), if one is given. What has the name is left as it is, whatever it is.
    pub fn provide_shared_dir(
        &self,
        path: impl AsRef<Path>,
        group: Option<u32>,
    ) -> Result<(), FsError> {
        let path = path.as_ref();
        let (false, Some(name)) = (self.has_name(path)?, path.file_name()) else {
            return Ok(());
        };
        // It gets its name when all is right: it stays as it is from then on.
        let unfinished = path.with_file_name(format!(".{}", name.display()));
        self.create_dir_all(&unfinished)?;
        let (path, unfinished) = (self.path(path), self.path(unfinished));
        let failed = |e| FsError::new(Operation::Own, &unfinished, e);
        let mode = match group {
            Some(group) => {
                chown(&unfinished, None, Some(group)).map_err(failed)?;
                0o2777
            }
            None => 0o777,
        };
        // After that, since a change of the owner may take the bit away.
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(mode)).map_err(failed)?;
        fs::rename(&unfinished, &path).map_err(|e| FsError::new(Operation::Rename, &path, e))
    }

    /// Whether something has the name, a link or a mount too. No file system is asked about itself: who serves one that is
    /// mounted there may be away.
    pub fn has_name(&self, path: impl AsRef<Path>) -> Result<bool, FsError> {
        let path = self.path(path);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match open(&path, flags, Mode::empty()) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(FsError::new(Operation::Open, &path, e.into())),
        }
    }

    /// Makes an empty file, mode 0644, below a directory that is there. One that is there is left as it is.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        let path = self.path(path);
        let mut options = fs::OpenOptions::new();
        let opened = options.create(true).append(true).mode(0o644).open(&path);
        opened
            .map(|_| ())
            .map_err(|e| FsError::new(Operation::Open, &path, e))
    }

    /// Removes a file; a file that is not there is fine.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        let path = self.path(path);
        match fs::remove_file(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other.map_err(|e| FsError::new(Operation::RemoveFile, &path, e)),
        }
    }

    /// Removes a directory with all that is in it, following no link and crossing no mount; a
    /// directory that is not there is fine.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        remove_tree(&self.path(path), Mounts::Refuse)
    }

    /// Removes a directory if nothing is in it and nothing is mounted on it.
    pub fn remove_empty_dir(&self, path: impl AsRef<Path>) -> Result<(), FsError> {
        use ErrorKind::{DirectoryNotEmpty, NotFound, ResourceBusy};
        let path = self.path(path);
        match fs::remove_dir(&path) {
            Err(e) if matches!(e.kind(), NotFound | DirectoryNotEmpty | ResourceBusy) => Ok(()),
            other => other.map_err(|e| FsError::new(Operation::RemoveDir, &path, e)),
        }
    }

    /// The path without links, for this process.
    pub fn canonical(&self, path: impl AsRef<Path>) -> Result<PathBuf, FsError> {
        let path = self.path(path);
        fs::canonicalize(&path).map_err(|e| FsError::new(Operation::Stat, &path, e))
    }

    /// As [`Self::canonical`]; the path as it is where it cannot be looked at.
    pub fn without_links(&self, path: &Path) -> PathBuf {
        self.canonical(path).unwrap_or_else(|_| path.to_owned())
    }

    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<fs::Metadata, FsError> {
        let path = self.path(path);
        fs::metadata(&path).map_err(|e| FsError::new(Operation::Stat, &path, e))
    }

    /// Of a link itself.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<fs::Metadata, FsError> {
        let path = self.path(path);
        fs::symlink_metadata(&path).map_err(|e| FsError::new(Operation::Stat, &path, e))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_shared_directory_is_made_once_and_left_as_its_users_have_it() {
        let dir = Scratch::new("shared-dir");
        let root = Root::at(dir.directory());
        let is = |path: &str| {
            let found = root.symlink_metadata(path).unwrap();
            (found.mode() & 0o7777, found.gid())
        };
        let own = is("/").1;
        root.provide_shared_dir("/volumes/a", None).unwrap();
        assert_eq!(is("/volumes/a").0, 0o777);
        root.provide_shared_dir("/volumes/b", Some(own)).unwrap();
        assert_eq!(is("/volumes/b"), (0o2777, own));

        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(dir.path("volumes/a"), private).unwrap();
        symlink("a", dir.path("volumes/link")).unwrap();
        // Begun by an agent that died.
        root.create_dir_all("/volumes/.c").unwrap();
        for name in ["a", "link", "c"] {
            let path = format!("/volumes/{name}");
            root.provide_shared_dir(&path, None).unwrap();
        }
        assert_eq!(is("/volumes/a").0, 0o700);
        assert_eq!(is("/volumes/c").0, 0o777);
        let names = root.list("/volumes").unwrap();
        assert_eq!(names, ["a", "b", "c", "link"]);
    }
}
