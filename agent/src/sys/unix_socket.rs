//! A Unix stream socket at a path: bound so that no client ever meets it half made, and connected to
//! without waiting for ever.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};

use super::error::{FsError, Operation};
use super::root::Root;

/// How long [`check_free`] waits at a full backlog, behind which somebody surely is.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody accepts connections there.
    #[error("{} is in use by another process", .path.display())]
    InUse {
        path: PathBuf,
        /// `None`: it is not known, or not seen from here.
        holder: Option<u32>,
    },
    /// Never removed: it is somebody's file.
    #[error("{} is there and is not a socket", .path.display())]
    NotASocket { path: PathBuf },
    #[error("{what} {}", .path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// The file of a listening socket.
#[derive(Clone, Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// Listens at `path`, mode 0600, in a directory that is made with `directory_mode` when it is missing.
/// A socket left behind by a process that is gone is replaced; at most 107 bytes of path fit.
///
/// The socket is bound under another name and renamed, so it is complete and private from the
/// moment it can be found.
pub fn listen(path: &Path, directory_mode: u32) -> Result<(UnixListener, SocketFile), ListenError> {
    let failed = |what, path: &Path, source| ListenError::Io {
        what,
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(directory_mode)
            .create(parent)
            .map_err(|e| failed("create directory", parent, e))?;
    }
    check_free(path)?;

    let temporary = temporary_beside(path);
    match fs::remove_file(&temporary) {
        Err(e) if e.kind() != ErrorKind::NotFound => {
            return Err(failed("remove", &temporary, e));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&temporary).map_err(|e| failed("bind", &temporary, e))?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o600))
        .map_err(|e| failed("set mode of", &temporary, e))?;
    let inode = fs::symlink_metadata(&temporary)
        .map_err(|e| failed("stat", &temporary, e))?
        .ino();
    fs::rename(&temporary, path).map_err(|e| failed("rename to", path, e))?;
    let file = SocketFile {
        path: path.to_owned(),
        inode,
    };
    Ok((listener, file))
}

/// A hidden name of the same length, since the length of a socket's path is limited.
fn temporary_beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let rest: String = name.chars().skip(1).collect();
    let other = ['.', '_', '-']
        .map(|first| format!("{first}{rest}"))
        .into_iter()
        .find(|it| *it != name && it != "." && it != "..");
    path.with_file_name(
        other.expect("of three names one at most is the file's, one at most a dot's"),
    )
}

/// Connects within `timeout`, which is that of each write from then on as well. `WouldBlock`: the
/// backlog of the server stayed full.
pub fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let unconnected = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let stream = UnixStream::from(unconnected);
    // For a Unix socket the kernel takes it for connecting too.
    stream.set_write_timeout(Some(timeout))?;
    let address = UnixAddr::new(path)?;
    loop {
        match socket::connect(stream.as_raw_fd(), &address) {
            Err(Errno::EINTR) => {}
            ended => return Ok(ended.map(|()| stream)?),
        }
    }
}

/// The process that listened first at the other end. `None`: it is not seen from here.
fn listener(stream: &UnixStream) -> Option<u32> {
    let peer = socket::getsockopt(stream, socket::sockopt::PeerCredentials).ok()?;
    u32::try_from(peer.pid()).ok().filter(|it| *it > 0)
}

/// Whether nothing is at `path`, or a socket on which nobody answers.
pub fn check_free(path: &Path) -> Result<(), ListenError> {
    let failed = |source| ListenError::Io {
        what: "look at",
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(failed(e)),
        Ok(metadata) if metadata.file_type().is_socket() => {}
        Ok(_) => {
            return Err(ListenError::NotASocket {
                path: path.to_owned(),
            });
        }
    }
    match connect(path, CHECK_TIMEOUT) {
        // Refused: nobody listens. Not found: it was removed since.
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => Ok(()),
        Err(e) if e.kind() != ErrorKind::WouldBlock => Err(failed(e)),
        // Connected, or too many wait for that.
        connected => Err(ListenError::InUse {
            path: path.to_owned(),
            holder: connected.ok().and_then(|it| listener(&it)),
        }),
    }
}

/// One socket file among all that ever were at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketVersion {
    inode: u64,
    changed: (i64, i64),
}

/// The sockets in a directory, by name. No link is followed.
pub fn list(directory: &Path) -> Result<BTreeMap<String, SocketVersion>, FsError> {
    let mut sockets = BTreeMap::new();
    for name in Root::host().list(directory)? {
        match version(&directory.join(&name)) {
            Ok(Some(version)) => {
                sockets.insert(name, version);
            }
            Ok(None) | Err(FsError::Gone { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// As [`version`]; `None` also where a link leads on between `directory` and `path`.
pub fn version_below(directory: &Path, path: &Path) -> Result<Option<SocketVersion>, FsError> {
    let above = path.ancestors().skip(1);
    for it in above.take_while(|it| it.starts_with(directory) && *it != directory) {
        let metadata =
            fs::symlink_metadata(it).map_err(|e| FsError::new(Operation::Stat, it, e))?;
        if metadata.is_symlink() {
            return Ok(None);
        }
    }
    version(path)
}

/// `None`: there is something else.
pub fn version(path: &Path) -> Result<Option<SocketVersion>, FsError> {
    let metadata =
        fs::symlink_metadata(path).map_err(|e| FsError::new(Operation::Stat, path, e))?;
    Ok(metadata.file_type().is_socket().then(|| SocketVersion {
        inode: metadata.ino(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    }))
}

impl SocketFile {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether clients still find it: it was not removed or replaced.
    pub fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|it| it.ino() == self.inode)
    }

    /// Removes the file unless another process has put its own there. Errors are left to the next
    /// `listen`, which replaces a socket that nobody serves.
    pub fn remove(self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let base = Scratch::new("unix");
        let path = base.path("run/agent.sock");
        let (listener, file) = listen(&path, 0o755).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = listen(&path, 0o755).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        drop(listener);
        let (_second, second_file) = listen(&path, 0o755).unwrap();
        assert!(!file.is_in_place() && second_file.is_in_place());
        file.remove();
        assert!(UnixStream::connect(&path).is_ok(), "the newer one stays");
        second_file.remove();
        assert!(!path.exists());
    }

    #[test]
    fn nobody_waits_for_ever_at_a_full_backlog() {
        let base = Scratch::new("unix");
        let path = base.path("agent.sock");
        let (listener, _file) = listen(&path, 0o755).unwrap();
        socket::listen(&listener, socket::Backlog::new(1).unwrap()).unwrap();
        let mut waiting = Vec::new();
        let error = loop {
            match connect(&path, Duration::from_millis(100)) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "the backlog has no bound");
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
        let error = check_free(&path).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
    }

    #[test]
    fn a_socket_that_a_link_leads_to_is_not_below_the_directory() {
        let base = Scratch::new("unix");
        let (directory, socket) = (base.path("plugins"), base.path("plugins/a/b.sock"));
        assert!(version_below(&directory, &socket).unwrap_err().is_gone());
        let (_listener, _file) = listen(&socket, 0o755).unwrap();
        assert!(version_below(&directory, &socket).unwrap().is_some());
        base.link("plugins/link", "a");
        for (directory, is_seen) in [("plugins", false), ("plugins/link", true)] {
            let version = version_below(&base.path(directory), &base.path("plugins/link/b.sock"));
            assert_eq!(version.unwrap().is_some(), is_seen, "{directory}");
        }
    }

    #[test]
    fn the_temporary_name_is_another_one_in_the_same_directory() {
        for name in ["s", "_", "a.", "_.", ".s", "agent.sock"] {
            let path = Path::new("/run").join(name);
            let other = temporary_beside(&path);
            assert_eq!(other.parent(), path.parent(), "{name}");
            assert!(
                other.file_name().is_some(),
                "{name} gives {}",
                other.display()
            );
            assert_ne!(other, path);
        }
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let base = Scratch::new("unix");
        let path = base.write("precious", "data");
        let error = listen(&path, 0o755).unwrap_err();
        assert!(matches!(error, ListenError::NotASocket { .. }), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
