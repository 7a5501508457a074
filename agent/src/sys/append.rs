//! Files that other processes append to while the agent looks after them.
//!
//! The writers hold the file open for appending, so it can only be shortened where it is: a rename
//! would take them along.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::fcntl::{FallocateFlags, fallocate};
use nix::libc;
use rustix::fs::{Mode, fchmod};

use super::error::{FsError, Operation};

/// Opens a file for appending, close-on-exec; made, mode 0640, where it is not there. A symlink in
/// its place is refused, so nobody can direct the output of a container elsewhere.
pub fn open(path: &Path) -> Result<OwnedFd, FsError> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY)
        .open(path)
        .map(OwnedFd::from)
        .map_err(|e| FsError::new(Operation::Open, path, e))
}

/// Opens a file as [`open`] does, for a process of this group, which then may open it again, by `/dev/stdout`. Its owner
/// stays: he could take a lease of it, and keep the agent from shortening it.
pub fn open_for(path: &Path, gid: u32) -> Result<OwnedFd, FsError> {
    let fd = open(path)?;
    let given = fchown(&fd, None, Some(gid))
        .and_then(|()| fchmod(&fd, Mode::from_raw_mode(0o660)).map_err(io::Error::from));
    given.map_err(|e| FsError::new(Operation::Own, path, e))?;
    Ok(fd)
}

/// `/dev/null` for reading, close-on-exec.
pub fn open_null() -> Result<OwnedFd, FsError> {
    let path = Path::new("/dev/null");
    File::open(path)
        .map(OwnedFd::from)
        .map_err(|e| FsError::new(Operation::Open, path, e))
}

/// Renames a file or directory over whatever has the new name; one that is not there is fine. Not
/// synced.
pub fn rename_if_any(from: &Path, to: &Path) -> Result<(), FsError> {
    match fs::rename(from, to) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(|e| FsError::new(Operation::Rename, from, e)),
    }
}

/// A file that others append to, open to be copied and shortened.
#[derive(Debug)]
pub struct Appended {
    file: File,
    path: PathBuf,
}

impl Appended {
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK)
            .open(path)
            .map_err(|e| FsError::new(Operation::Open, path, e))?;
        Ok(Self {
            file,
            path: path.into(),
        })
    }

    /// Bytes; may have grown when it is read.
    pub fn len(&self) -> Result<u64, FsError> {
        Ok(self.metadata()?.len())
    }

    pub fn is_empty(&self) -> Result<bool, FsError> {
        Ok(self.len()? == 0)
    }

    /// The largest part from the start that [`Appended::collapse`] may take out: whole blocks of
    /// the file system, and not the whole file. 0 for a file of one block.
    pub fn collapsible(&self) -> Result<u64, FsError> {
        let metadata = self.metadata()?;
        let block = metadata.blksize().max(1);
        Ok(metadata.len().saturating_sub(1) / block * block)
    }

    /// Appends `len` bytes from `start` on to `to`, less where the file ends before; holes as holes.
    /// Gives how many.
    pub fn copy(&self, start: u64, len: u64, to: &mut Copy) -> Result<u64, FsError> {
        let failed = |e| FsError::new(Operation::Read, &self.path, e);
        let end = start.saturating_add(len).min(self.len()?);
        let mut at = start.min(end);
        while at < end {
            let data = self.seek(rustix::fs::SeekFrom::Data(at)).map_err(failed)?;
            let data = data.unwrap_or(end).min(end);
            to.skip(data - at)?;
            let hole = self
                .seek(rustix::fs::SeekFrom::Hole(data))
                .map_err(failed)?;
            let hole = hole.unwrap_or(end).min(end);
            (&self.file).seek(SeekFrom::Start(data)).map_err(failed)?;
            let mut part = (&self.file).take(hole - data);
            let n = io::copy(&mut part, &mut to.file)
                .map_err(|e| FsError::new(Operation::Write, &to.path, e))?;
            at = data + n;
            if n < hole - data {
                // Shortened by its writer meanwhile.
                break;
            }
        }
        Ok(at - start.min(at))
    }

    /// `None`: nothing of it up to the end of the file.
    fn seek(&self, to: rustix::fs::SeekFrom) -> io::Result<Option<u64>> {
        match rustix::fs::seek(&self.file, to) {
            Ok(at) => Ok(Some(at)),
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Takes `len` bytes, see [`Appended::collapsible`], out of the start, with whatever is
    /// appended meanwhile kept whole (`FALLOC_FL_COLLAPSE_RANGE`, Linux 3.15: ext4, XFS). False:
    /// this file cannot.
    pub fn collapse(&self, len: u64) -> Result<bool, FsError> {
        let Ok(offset_len) = libc::off_t::try_from(len) else {
            return Ok(false);
        };
        match fallocate(
            &self.file,
            FallocateFlags::FALLOC_FL_COLLAPSE_RANGE,
            0,
            offset_len,
        ) {
            Ok(()) => Ok(true),
            // EINVAL: clusters larger than the block size, or shortened by somebody else.
            Err(nix::Error::EOPNOTSUPP | nix::Error::ENOSYS | nix::Error::EINVAL) => Ok(false),
            Err(e) => Err(FsError::new(Operation::Write, &self.path, e.into())),
        }
    }

    /// Empties the file. Writers go on at its start.
    pub fn truncate(&self) -> Result<(), FsError> {
        self.file
            .set_len(0)
            .map_err(|e| FsError::new(Operation::Write, &self.path, e))
    }

    fn metadata(&self) -> Result<fs::Metadata, FsError> {
        self.file
            .metadata()
            .map_err(|e| FsError::new(Operation::Stat, &self.path, e))
    }
}

/// A new file that gets a part of an [`Appended`] one.
#[derive(Debug)]
pub struct Copy {
    file: File,
    path: PathBuf,
}

impl Copy {
    /// Makes `path`, mode 0640, in place of a leftover.
    pub fn create(path: &Path) -> Result<Self, FsError> {
        let remove = fs::remove_file(path);
        if let Err(e) = remove
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(FsError::new(Operation::RemoveFile, path, e));
        }
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .open(path)
            .map_err(|e| FsError::new(Operation::Open, path, e))?;
        Ok(Self {
            file,
            path: path.into(),
        })
    }

    /// A hole of so many bytes.
    fn skip(&mut self, n: u64) -> Result<(), FsError> {
        if n == 0 {
            return Ok(());
        }
        let failed = |e| FsError::new(Operation::Write, &self.path, e);
        let end = self
            .file
            .stream_position()
            .map_err(failed)?
            .saturating_add(n);
        self.file.set_len(end).map_err(failed)?;
        self.file.seek(SeekFrom::Start(end)).map_err(failed)?;
        Ok(())
    }

    /// Waits until what was copied is on the disk.
    pub fn sync(&self) -> Result<(), FsError> {
        self.file
            .sync_data()
            .map_err(|e| FsError::new(Operation::Sync, &self.path, e))
    }
}
