//! Files whose kind, size and contents others decide: read without ever waiting, without a surprise
//! in size, and with what tells one version from the next.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::error::{FsError, Operation};
use super::syscall::has_writer;

/// How often [`whole_if_possible`] tries, and the pause before each further time. Arbitrary: a hundred files that fail hold
/// up a start by 4 s.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// Changes whenever the file is replaced or written to. Two writes within one tick of the kernel's
/// clock (up to 10 ms) that leave the size alone have the same version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    device: u64,
    inode: u64,
    size_bytes: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl std::fmt::Display for FileVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (seconds, nanoseconds) = self.changed;
        write!(f, "inode {} of {seconds}.{nanoseconds:09}", self.inode)
    }
}

impl FileVersion {
    fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size_bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular(FileVersion),
    /// A directory, FIFO, socket or device.
    Other,
    /// A symlink to something that is not there.
    Dangling,
}

/// Looks without opening; symlinks are followed.
pub fn look(path: &Path) -> Result<Kind, FsError> {
    match fs::metadata(path).map_err(|e| FsError::new(Operation::Stat, path, e)) {
        Ok(metadata) if metadata.is_file() => Ok(Kind::Regular(FileVersion::of(&metadata))),
        Ok(_) => Ok(Kind::Other),
        Err(error) if error.is_gone() && fs::symlink_metadata(path).is_ok() => Ok(Kind::Dangling),
        Err(error) => Err(error),
    }
}

/// Another one once a name in the directory came, went or was changed, as long as a tick of the
/// kernel's clock lies between the changes.
pub fn version_of_listing(directory: &Path) -> Result<FileVersion, FsError> {
    let metadata = fs::metadata(directory);
    let metadata = metadata.map_err(|e| FsError::new(Operation::Stat, directory, e))?;
    Ok(FileVersion::of(&metadata))
}

/// Whether the mode lets every user of the node read the file; symlinks are followed.
pub fn is_readable_by_others(path: &Path) -> Result<bool, FsError> {
    let metadata = fs::metadata(path).map_err(|e| FsError::new(Operation::Stat, path, e))?;
    Ok(metadata.mode() & 0o004 != 0)
}

/// What reading gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    Whole {
        bytes: Vec<u8>,
        version: FileVersion,
    },
    /// It is larger than the limit.
    TooLarge { version: FileVersion },
    /// Somebody writes to it, or did while it was read: what is there may be half of it.
    Changing,
    /// It is no regular file.
    Other,
}

/// Reads a regular file of at most `limit` bytes. A FIFO that took its place does not block.
pub fn read(path: &Path, limit: u64) -> Result<Contents, FsError> {
    let failed = |operation| move |e| FsError::new(operation, path, e);
    let mut file = open(path).map_err(failed(Operation::Open))?;
    let before = file.metadata().map_err(failed(Operation::Stat))?;
    if !before.is_file() {
        return Ok(Contents::Other);
    }
    let version = FileVersion::of(&before);
    if before.size() > limit {
        return Ok(Contents::TooLarge { version });
    }
    if has_writer(file.as_fd()) {
        return Ok(Contents::Changing);
    }
    let mut bytes = Vec::new();
    // One byte more than allowed tells a file that grew.
    (&mut file)
        .take(limit.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(failed(Operation::Read))?;
    let after = file.metadata().map_err(failed(Operation::Stat))?;
    if FileVersion::of(&after) != version {
        return Ok(Contents::Changing);
    }
    Ok(Contents::Whole { bytes, version })
}

/// All of a regular file, an interface of the kernel among them. Anything else and more than `limit`
/// bytes are errors, so that nobody who puts a FIFO or an endless file there holds up the reader.
pub fn whole(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    let read = || {
        let file = open(path)?;
        match file.metadata()?.is_file() {
            true => at_most(file, limit),
            false => Err(io::Error::other("it is no regular file")),
        }
    };
    read().map_err(|e| FsError::new(Operation::Read, path, e))
}

/// As [`whole`]. Where the kernel fails to read it is tried again: it may lack memory or descriptors for a moment.
pub fn whole_if_possible(path: &Path, limit: u64) -> Result<Vec<u8>, FsError> {
    for _ in 1..TRIES {
        match whole(path, limit) {
            Err(error) if error.errno().is_some() => thread::sleep(PAUSE),
            done => return done,
        }
    }
    whole(path, limit)
}

/// All that comes; more than `limit` bytes are an error.
pub(super) fn at_most(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // One byte more than allowed tells that there is more.
    from.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 <= limit {
        true => Ok(bytes),
        false => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("it is larger than {limit} bytes"),
        )),
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags((nix::fcntl::OFlag::O_NONBLOCK | nix::fcntl::OFlag::O_NOCTTY).bits())
        .open(path)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::io::Write;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::sys::chain;
    use crate::sys::scratch::Scratch;

    #[test]
    fn what_somebody_writes_to_is_not_read() {
        let dir = Scratch::new("regular-writer");
        let path = dir.path("file");
        let mut writer = File::create(&path).unwrap();
        writer.write_all(b"half").unwrap();
        assert_eq!(read(&path, 100).unwrap(), Contents::Changing);
        let _reader = File::open(&path).unwrap();
        drop(writer);
        let contents = read(&path, 100).unwrap();
        assert!(matches!(contents, Contents::Whole { bytes, .. } if bytes == b"half"));
    }

    #[test]
    fn what_is_no_file_and_what_has_no_end_are_errors_at_once() {
        let dir = Scratch::new("regular");
        let fifo = dir.path("fifo");
        mkfifo(&fifo, Mode::S_IRWXU).unwrap();
        let file = dir.write("file", "12345");
        let said = |path: &Path| chain(&whole(path, 4).unwrap_err());
        for path in [&fifo, Path::new("/dev/zero"), dir.directory()] {
            let expected = format!("read {}: it is no regular file", path.display());
            assert_eq!(said(path), expected);
        }
        let too_large = format!("read {}: it is larger than 4 bytes", file.display());
        assert_eq!(said(&file), too_large);
        assert_eq!(whole(&file, 5).unwrap(), b"12345");
        assert!(whole(&dir.path("none"), 5).unwrap_err().is_gone());
        assert!(
            !whole(Path::new("/proc/self/stat"), 4096)
                .unwrap()
                .is_empty()
        );
    }
}
