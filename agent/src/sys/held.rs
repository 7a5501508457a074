//! A small file held open, read from its start again and again into the same buffer: a fifth of the
//! cost of opening it each time, and without an allocation.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::dir::Dir;
use super::error::{FsError, Operation};

/// Most interface files fit at once.
const START_BYTES: usize = 4096;
/// Arbitrary, far above `/proc/zoneinfo` of the largest machines: a file without end is an error.
const MAX_BYTES: usize = 4 << 20;
/// A `seq_file` gives as many records as fit its buffer of a page or more (`seq_read_iter`,
/// fs/seq_file.c), so it stops short of the end only where the next record does not fit any more.
/// What gives less than half of the smallest page has come to its end, since no record of the files
/// that are held (a process id, a disk, an interface) is that long. The others are one record.
const LEAST_OF_MANY: usize = 2048;

/// Where text is read to. Grows to the largest file that was read.
#[derive(Debug)]
pub struct TextBuffer(Vec<u8>);

impl Default for TextBuffer {
    fn default() -> Self {
        Self(vec![0; START_BYTES])
    }
}

/// An open file of the kernel, or one shaped like it.
#[derive(Debug)]
pub struct HeldFile {
    file: File,
    /// For messages only; the files of a directory share it.
    dir: Arc<Path>,
    name: Name,
}

#[derive(Debug)]
enum Name {
    /// In the directory.
    Of(&'static str),
    /// `dir` is the path of the file.
    Whole,
}

impl HeldFile {
    pub fn open(path: &Path) -> Result<Self, FsError> {
        let file = File::open(path).map_err(|e| FsError::new(Operation::Open, path, e))?;
        Ok(Self {
            file,
            dir: path.into(),
            name: Name::Whole,
        })
    }

    /// A file of a directory, by its name alone.
    pub fn open_in(dir: &Dir, name: &'static str) -> Result<Self, FsError> {
        Ok(Self {
            file: dir.open_file(name)?,
            dir: dir.shared_path(),
            name: Name::Of(name),
        })
    }

    /// The whole text as it is now: one call for a small file. [`FsError::Gone`]: the cgroup behind
    /// the file was removed, even if there is another one at its path by now.
    pub fn read<'a>(&self, buffer: &'a mut TextBuffer) -> Result<&'a str, FsError> {
        let bytes = self.read_bytes(buffer)?;
        std::str::from_utf8(bytes)
            .map_err(|error| self.failed(io::Error::new(ErrorKind::InvalidData, error)))
    }

    /// The same of a file with names that are not the kernel's: what is no text of it is replaced.
    pub fn read_lossy<'a>(&self, buffer: &'a mut TextBuffer) -> Result<Cow<'a, str>, FsError> {
        Ok(String::from_utf8_lossy(self.read_bytes(buffer)?))
    }

    fn read_bytes<'a>(&self, buffer: &'a mut TextBuffer) -> Result<&'a [u8], FsError> {
        let bytes = &mut buffer.0;
        let mut n = 0;
        let mut offset = 0;
        loop {
            if n == bytes.len() {
                if n >= MAX_BYTES {
                    return Err(self.failed(ErrorKind::FileTooLarge.into()));
                }
                bytes.resize(2 * n, 0);
            }
            match self.file.read_at(&mut bytes[n..], offset) {
                Ok(0) => break,
                Ok(read) => {
                    let is_filled = n + read == bytes.len();
                    n += read;
                    if read < LEAST_OF_MANY && !is_filled {
                        break;
                    }
                    offset += u64::try_from(read).expect("a read fits the buffer");
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(&bytes[..n])
    }

    fn failed(&self, source: io::Error) -> FsError {
        FsError::new(Operation::Read, &self.path(), source)
    }

    pub fn path(&self) -> PathBuf {
        match self.name {
            Name::Of(name) => self.dir.join(name),
            Name::Whole => self.dir.to_path_buf(),
        }
    }
}

impl AsFd for HeldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_held_file_says_what_is_in_it_now() {
        let scratch = Scratch::new("held");
        let path = scratch.write("file", "first\n");
        let mut buffer = TextBuffer::default();
        let file = HeldFile::open(&path).unwrap();
        assert_eq!(file.read(&mut buffer).unwrap(), "first\n");
        let long = "0123456789abcdef".repeat(1000);
        for text in ["", "2", &long, "shorter again"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(file.read(&mut buffer).unwrap(), text);
        }
        std::fs::write(&path, b"a\xffb").unwrap();
        assert!(file.read(&mut buffer).is_err());
        assert_eq!(file.read_lossy(&mut buffer).unwrap(), "a\u{fffd}b");
        std::fs::remove_file(&path).unwrap();
        assert!(HeldFile::open(&path).unwrap_err().is_gone());
    }
}
