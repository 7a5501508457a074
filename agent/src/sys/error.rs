use std::error::Error;
use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

/// What was attempted on the path of an [`FsError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Open,
    Read,
    Write,
    List,
    CreateDir,
    RemoveDir,
    RemoveFile,
    Rename,
    Sync,
    Stat,
    Mount,
    Own,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::CreateDir => "create directory",
            Self::RemoveDir => "remove directory",
            Self::RemoveFile => "remove",
            Self::Rename => "rename",
            Self::Sync => "sync",
            Self::Stat => "stat",
            Self::Mount => "mount a tmpfs on",
            Self::Own => "change the group of",
        })
    }
}

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The file or directory is not there, or the cgroup behind an open descriptor was removed
    /// (ENOENT, ENODEV). Normal for whatever comes and goes; the caller drops it and goes on.
    #[error("{} is not there", .path.display())]
    Gone { path: PathBuf },
    #[error("{operation} {}", .path.display())]
    Io {
        operation: Operation,
        path: PathBuf,
        source: io::Error,
    },
}

impl FsError {
    pub(crate) fn new(operation: Operation, path: &Path, source: io::Error) -> Self {
        const ENODEV: i32 = 19;
        if source.kind() == io::ErrorKind::NotFound || source.raw_os_error() == Some(ENODEV) {
            return Self::Gone { path: path.into() };
        }
        Self::Io {
            operation,
            path: path.into(),
            source,
        }
    }

    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// The kernel's error number; `None` for [`FsError::Gone`].
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Gone { .. } => None,
            Self::Io { source, .. } => source.raw_os_error(),
        }
    }
}

/// An error with all its sources, `outer: inner: innermost`, for a log field or a message.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        write!(text, ": {error}").expect("a String takes all");
        source = error.source();
    }
    text
}
