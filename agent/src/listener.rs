//! A Unix socket that comes back when its file is removed, as a cleaner of `/run` removes it.
//!
//! Invariant: the file is looked at whatever the server does, and connections are accepted whatever the disk of the file
//! does. Who has connected before the file was removed is accepted before the socket is another one.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::sys::chain;
use crate::sys::unix_socket::{self, ListenError, SocketFile};

/// How often the file is looked at.
pub(crate) const FILE_CHECK: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("hand {} to the runtime", .path.display())]
    Register { path: PathBuf, source: io::Error },
}

/// The socket that clients find, until this is dropped.
pub(crate) struct Listener {
    bound: Bound,
    /// One task, which ends with another socket once the file is gone.
    again: JoinSet<Bound>,
}

impl Listener {
    /// Listens at `path` on the current runtime; see [`unix_socket::listen`].
    pub(crate) fn bind(path: &Path, directory_mode: u32) -> Result<Self, BindError> {
        Bound::new(path, directory_mode).map(Self::new)
    }

    fn new(bound: Bound) -> Self {
        let mut again = JoinSet::new();
        again.spawn(bound_again(bound.file.clone(), bound.directory_mode));
        Self { bound, again }
    }

    /// The next connection; none is lost when the future is dropped.
    pub(crate) async fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            tokio::select! {
                biased;
                accepted = self.bound.listener.accept() => return accepted.map(|(stream, _)| stream),
                // An error: the runtime ends.
                Some(Ok(bound)) = self.again.join_next() => {
                    self.again.spawn(bound_again(bound.file.clone(), bound.directory_mode));
                    self.bound.has_file = false;
                    self.bound = bound;
                }
            }
        }
    }
}

/// A socket and its file, which goes with it.
struct Bound {
    listener: UnixListener,
    file: SocketFile,
    /// Else it is known to be gone, and its disk is not asked.
    has_file: bool,
    directory_mode: u32,
}

impl Bound {
    fn new(path: &Path, directory_mode: u32) -> Result<Self, BindError> {
        let (listener, file) = unix_socket::listen(path, directory_mode)?;
        let registered = listener
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(listener));
        let listener = registered.map_err(|source| {
            file.clone().remove();
            BindError::Register {
                path: path.to_owned(),
                source,
            }
        })?;
        Ok(Self {
            listener,
            file,
            has_file: true,
            directory_mode,
        })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.has_file {
            self.file.clone().remove();
        }
    }
}

/// Listens anew once clients would no longer find the socket.
async fn bound_again(file: SocketFile, directory_mode: u32) -> Bound {
    loop {
        tokio::time::sleep(FILE_CHECK).await;
        let looked_at = file.clone();
        let look = move || {
            let is_gone = !looked_at.is_in_place();
            is_gone.then(|| Bound::new(looked_at.path(), directory_mode))
        };
        // The file may be on a disk that hangs. An error: the runtime ends.
        let Ok(Some(again)) = tokio::task::spawn_blocking(look).await else {
            continue;
        };
        let path = file.path().display().to_string();
        match again {
            Ok(bound) => {
                tracing::warn!(path, "the agent's socket was removed and is back");
                return bound;
            }
            Err(error) => tracing::warn!(
                error = chain(&error),
                path,
                "the agent's socket was removed and is not back"
            ),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "the socket is removed beside the code under test"
)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::sys::scratch::Scratch;

    const MODE: u32 = 0o755;

    #[tokio::test(start_paused = true)]
    async fn a_removed_socket_comes_back_though_nobody_accepts() {
        let scratch = Scratch::new("listener");
        let path = scratch.path("run/agent.sock");
        let mut listener = Listener::bind(&path, MODE).unwrap();
        let mut before = UnixStream::connect(&path).await.unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
        tokio::time::sleep(FILE_CHECK * 2).await;
        let mut after = UnixStream::connect(&path).await.unwrap();
        for (client, word) in [(&mut before, "before"), (&mut after, "after")] {
            client.write_all(word.as_bytes()).await.unwrap();
            client.shutdown().await.unwrap();
            let mut heard = String::new();
            let mut accepted = listener.accept().await.unwrap();
            accepted.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, word);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_goes_with_the_listener_and_does_not_come_back() {
        let scratch = Scratch::new("listener");
        let path = scratch.path("agent.sock");
        let listener = Listener::bind(&path, MODE).unwrap();
        assert!(path.exists());
        drop(listener);
        tokio::time::sleep(FILE_CHECK * 2).await;
        assert!(!path.exists());
    }

    #[tokio::test(start_paused = true)]
    async fn the_socket_of_another_process_stays() {
        let scratch = Scratch::new("listener");
        let path = scratch.path("agent.sock");
        let listener = Listener::bind(&path, MODE).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (_others, file) = unix_socket::listen(&path, MODE).unwrap();
        tokio::time::sleep(FILE_CHECK * 2).await;
        assert!(file.is_in_place());
        drop(listener);
        assert!(file.is_in_place());
    }
}
