//! Which socket: the first of some on which a runtime answers.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::{DEADLINE, MAX_ANSWER};
use crate::grpc::client::{Channel, ConnectError, Method, said};
use crate::grpc::messages::cri::{API_VERSION, VersionRequest, VersionResponse, path};
use crate::model::runtime_names::RuntimeStatus;
use crate::sys::{chain, unix_socket};

/// containerd, as packages have it, k3s and RKE2, k0s, MicroK8s; CRI-O; cri-dockerd.
const KNOWN: [&str; 7] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/cri-dockerd/cri-dockerd.sock",
    "/run/cri-dockerd.sock",
];

/// The sockets that runtimes have by default.
pub fn known_sockets() -> Vec<PathBuf> {
    KNOWN.map(PathBuf::from).into()
}

/// A runtime that answers.
pub(super) struct Found {
    pub(super) endpoint: PathBuf,
    pub(super) channel: Channel,
    pub(super) version: VersionResponse,
}

/// Why there is none.
#[derive(Debug)]
pub(super) struct Missing {
    /// `None`: there is no socket.
    pub(super) endpoint: Option<PathBuf>,
    pub(super) why: String,
}

#[derive(Debug, thiserror::Error)]
enum EndpointError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Its code and its text. Who speaks another version of CRI knows no such method.
    #[error("ask for its version: {0}")]
    Version(String),
}

impl Found {
    /// Of a runtime from which nothing is followed yet.
    pub(super) fn status(&self) -> RuntimeStatus {
        RuntimeStatus {
            endpoint: Some(self.endpoint.display().to_string()),
            name: Some(self.version.runtime_name.clone()),
            version: Some(self.version.runtime_version.clone()),
            ..RuntimeStatus::default()
        }
    }
}

impl Missing {
    pub(super) fn status(&self) -> RuntimeStatus {
        RuntimeStatus {
            endpoint: self.endpoint.as_ref().map(|it| it.display().to_string()),
            fault: Some(self.why.clone()),
            ..RuntimeStatus::default()
        }
    }
}

/// The first of `sockets` on which one answers.
pub(super) async fn find(sockets: &[PathBuf]) -> Result<Found, Missing> {
    if let [endpoint] = sockets {
        return try_one(endpoint).await.map_err(|error| Missing {
            endpoint: Some(endpoint.clone()),
            why: chain(&error),
        });
    }
    // A socket that does not answer is no reason not to ask the next: Docker has a containerd without CRI.
    let mut first = None;
    for endpoint in sockets {
        if !is_socket(endpoint) {
            continue;
        }
        match try_one(endpoint).await {
            Ok(found) => return Ok(found),
            Err(error) => {
                first.get_or_insert_with(|| Missing {
                    endpoint: Some(endpoint.clone()),
                    why: chain(&error),
                });
            }
        }
    }
    Err(first.unwrap_or_else(|| Missing {
        endpoint: None,
        why: "no runtime has a socket where containerd, CRI-O or cri-dockerd have theirs"
            .to_owned(),
    }))
}

fn is_socket(path: &Path) -> bool {
    matches!(unix_socket::version(path), Ok(Some(_)))
}

async fn try_one(endpoint: &Path) -> Result<Found, EndpointError> {
    const VERSION: Method = Method {
        path: path::VERSION,
        max_answer: MAX_ANSWER,
    };
    let (channel, _) = connect(endpoint).await?;
    let question = VersionRequest {
        version: API_VERSION.to_owned(),
    };
    let version: VersionResponse = channel
        .unary(VERSION, question, DEADLINE)
        .await
        .map_err(|it| EndpointError::Version(said(&it)))?;
    Ok(Found {
        endpoint: endpoint.to_owned(),
        channel,
        version,
    })
}

/// A connection of its own, with the socket below it.
pub(super) async fn connect(endpoint: &Path) -> Result<(Channel, UnixStream), ConnectError> {
    let open = || {
        let stream = unix_socket::connect(endpoint, DEADLINE)?;
        stream.set_nonblocking(true)?;
        Ok((stream.try_clone()?, stream))
    };
    let (stream, socket) = open().map_err(ConnectError::Connect)?;
    Ok((Channel::over(stream).await?, socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node of Docker has a containerd without CRI besides, and is asked through cri-dockerd.
    #[test]
    fn containerd_is_asked_before_cri_o_and_cri_dockerd() {
        let known = known_sockets();
        let usual = "/run/containerd/containerd.sock";
        assert_eq!(known.first().map(PathBuf::as_path), Some(Path::new(usual)));
        let mut runtimes: Vec<_> = known.iter().filter_map(|it| it.file_stem()).collect();
        runtimes.dedup();
        assert_eq!(runtimes, ["containerd", "crio", "cri-dockerd"]);
    }
}
