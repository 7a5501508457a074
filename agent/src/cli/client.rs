//! The client's side of the agent's socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::observe::protocol::{Answer, DEFAULT_SOCKET, Request};
use crate::observe::socket::CLIENT_TIMEOUT;
use crate::sys::FsError;
use crate::sys::input::{self, MAX_CONFIG_BYTES};
use crate::sys::unix_socket;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no agent listens on {}: start it with ballast run, or name its socket with --socket or --config", .path.display())]
    NotRunning { path: PathBuf },
    /// Its backlog stays full, or its answer does not come.
    #[error("the agent on {} is busy: no answer within {} s", .path.display(), CLIENT_TIMEOUT.as_secs())]
    Busy { path: PathBuf },
    #[error("only root may talk to the agent on {}", .path.display())]
    Forbidden { path: PathBuf },
    #[error("talk to the agent on {}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("the agent closed the connection without an answer: it is busy, or ends")]
    NoAnswer,
    /// In the middle of a followed stream.
    #[error("the agent ended the connection")]
    Ended,
    /// In the agent's words.
    #[error("{message}")]
    Refused { message: String },
    #[error("the agent's answer is not understood: is it of another version than this program?")]
    Answer { source: serde_json::Error },
    #[error("read the configuration")]
    Config {
        #[from]
        source: FsError,
    },
    #[error("{} is not a configuration", .path.display())]
    ConfigForm {
        path: PathBuf,
        source: serde_yaml_ng::Error,
    },
}

impl ClientError {
    /// What an error on the socket at `path` means to a user.
    fn new(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NotRunning { path },
            io::ErrorKind::PermissionDenied => Self::Forbidden { path },
            // So the kernel says that a timeout of a socket is over.
            io::ErrorKind::WouldBlock => Self::Busy { path },
            // Closed before the request was read.
            io::ErrorKind::ConnectionReset => Self::NoAnswer,
            _ => Self::Io { path, source },
        }
    }
}

/// The one field of a configuration that a client needs. The others are the agent's to check: a
/// newer configuration does not keep an older client out.
#[derive(Debug, Deserialize)]
struct SocketField {
    socket: Option<PathBuf>,
}

pub(super) fn socket_of_config(config: &Path) -> Result<PathBuf, ClientError> {
    let text = input::text(config, MAX_CONFIG_BYTES)?;
    socket_in(&text).map_err(|source| ClientError::ConfigForm {
        path: config.to_owned(),
        source,
    })
}

fn socket_in(text: &str) -> Result<PathBuf, serde_yaml_ng::Error> {
    let field: SocketField = serde_yaml_ng::from_str(text)?;
    Ok(field.socket.unwrap_or_else(|| DEFAULT_SOCKET.into()))
}

/// One request on one connection.
pub(super) struct Client {
    stream: BufReader<UnixStream>,
    path: PathBuf,
}

impl Client {
    /// Connects and sends `request`, within [`CLIENT_TIMEOUT`] each. Every answer must come within
    /// it too unless `is_patient`.
    pub(super) fn ask(
        path: &Path,
        request: &Request,
        is_patient: bool,
    ) -> Result<Self, ClientError> {
        let stream = unix_socket::connect(path, CLIENT_TIMEOUT);
        let stream = stream.map_err(|source| ClientError::new(path, source))?;
        Self::ask_on(stream, path, request, is_patient)
    }

    fn ask_on(
        mut stream: UnixStream,
        path: &Path,
        request: &Request,
        is_patient: bool,
    ) -> Result<Self, ClientError> {
        let failed = |source| ClientError::new(path, source);
        let timeout = (!is_patient).then_some(CLIENT_TIMEOUT);
        stream.set_read_timeout(timeout).map_err(failed)?;
        let mut line = serde_json::to_vec(request).map_err(|e| failed(e.into()))?;
        line.push(b'\n');
        match stream.write_all(&line) {
            // It has answered before it was asked, with a refusal, and closed.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.map_err(failed)?,
        }
        Ok(Self {
            stream: BufReader::new(stream),
            path: path.to_owned(),
        })
    }

    /// The next answer; `None` after the last. An answer that refuses is an error.
    pub(super) fn next_answer(&mut self) -> Result<Option<Answer>, ClientError> {
        let mut line = Vec::new();
        let n_bytes = self
            .stream
            .read_until(b'\n', &mut line)
            .map_err(|source| ClientError::new(&self.path, source))?;
        if n_bytes == 0 {
            return Ok(None);
        }
        match serde_json::from_slice(&line) {
            Ok(Answer::Error(message)) => Err(ClientError::Refused { message }),
            Ok(answer) => Ok(Some(answer)),
            // Cut short: the agent went away while it wrote.
            Err(source) if source.is_eof() => Err(ClientError::Ended),
            Err(source) => Err(ClientError::Answer { source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn the_socket_of_a_configuration_is_found_whatever_else_it_holds() {
        for (text, expected) in [
            (
                "socket: /run/mine.sock\nkubelet: {future: 1}",
                "/run/mine.sock",
            ),
            ("mode: own", DEFAULT_SOCKET),
        ] {
            assert_eq!(socket_in(text).ok(), Some(expected.into()), "{text}");
        }
        assert!(socket_in("socket: [").is_err());
        assert!(socket_in("socket: {a: 1}").is_err());
    }

    #[test]
    fn a_configuration_is_found_by_an_absolute_path() {
        let scratch = Scratch::new("client");
        let path = scratch.write("config.yaml", "socket: /run/mine.sock");
        let socket = socket_of_config(&path);
        assert_eq!(socket.ok(), Some("/run/mine.sock".into()));
    }

    #[test]
    fn an_agent_that_does_not_answer_in_time_is_busy() {
        let path = Path::new("/run/ballast/ballast.sock");
        let full_backlog = io::Error::from_raw_os_error(nix::libc::EAGAIN);
        let error = ClientError::new(path, full_backlog);
        assert!(matches!(error, ClientError::Busy { .. }), "{error:?}");
        let text = error.to_string();
        assert_eq!(
            text,
            "the agent on /run/ballast/ballast.sock is busy: no answer within 10 s"
        );
        assert_eq!(crate::cli::CliError::from(error).exit_code(), 1);
    }

    /// The agent refuses a user before it has read what is asked.
    #[test]
    fn a_refusal_is_read_though_nobody_reads_the_request() {
        let (ours, mut agents) = UnixStream::pair().expect("a pair of sockets");
        agents
            .write_all(b"{\"error\":\"only root may\"}\n")
            .expect("a socket with room");
        drop(agents);
        let path = Path::new("/run/ballast/ballast.sock");
        let client = Client::ask_on(ours, path, &Request::status(), false);
        let answer = client.and_then(|mut it| it.next_answer());
        let text = answer.err().map(|it| it.to_string());
        assert_eq!(text.as_deref(), Some("only root may"));
    }

    #[test]
    fn an_agent_that_does_not_run_is_named_by_its_socket() {
        let path = Path::new("/nonexistent/ballast.sock");
        let error = Client::ask(path, &Request::status(), false).err();
        let text = error.map(|it| it.to_string()).unwrap_or_default();
        assert!(text.contains("/nonexistent/ballast.sock"), "{text}");
    }
}
