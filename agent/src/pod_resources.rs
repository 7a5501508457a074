//! Asks the kubelet of the node, by the pod resources API, for the CPUs that containers can have alone. No file of
//! kubelet has them, and its settings may have been changed since it started.
//!
//! Invariants: nothing of kubelet is changed; one call, with a deadline. Who has the socket is the kubelet that is
//! meant: what a process that is not kubelet says is not believed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};

use crate::grpc::client::{Channel, ConnectError, Method, said};
use crate::grpc::messages::pod_resources::{AllocatableResponse, Empty, path};
use crate::model::cpuset::{CpuSet, MAX_CPU};
use crate::model::topology::CpuId;
use crate::sys::unix_socket;

/// To connect, and for the answer.
const DEADLINE: Duration = Duration::from_secs(2);

/// Largest answer, bytes. It names all devices of the node, too.
const MAX_ANSWER: usize = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum AskError {
    #[error("start to ask")]
    Start(#[source] io::Error),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("ask who has the socket")]
    Peer(#[source] nix::Error),
    #[error("process {0} has the socket, and is not the kubelet that is asked")]
    Stranger(i32),
    /// Its code or its text.
    #[error("{0}")]
    Refused(String),
    #[error("it says that {0} is a CPU")]
    Cpu(i64),
}

/// All CPUs of the machine but those that kubelet keeps for the system; empty where it places none. `socket`: as opened,
/// and not yet connected; `pid`: of kubelet. Takes 4 s, at most.
pub fn allocatable_cpus(socket: &OwnedFd, pid: u32) -> Result<CpuSet, AskError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(AskError::Start)?;
    let socket = PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()));
    runtime.block_on(ask(&socket, pid))
}

async fn ask(socket: &Path, pid: u32) -> Result<CpuSet, AskError> {
    const ALLOCATABLE: Method = Method {
        path: path::GET_ALLOCATABLE,
        max_answer: MAX_ANSWER,
    };
    let open = || {
        let stream = unix_socket::connect(socket, DEADLINE)?;
        stream.set_nonblocking(true).map(|()| stream)
    };
    let stream = open().map_err(ConnectError::Connect)?;
    let peer = getsockopt(&stream, sockopt::PeerCredentials).map_err(AskError::Peer)?;
    if u32::try_from(peer.pid()) != Ok(pid) {
        return Err(AskError::Stranger(peer.pid()));
    }
    let channel = Channel::over(stream).await?;
    let answer = channel.unary(ALLOCATABLE, Empty {}, DEADLINE).await;
    cpus(&answer.map_err(|it| AskError::Refused(said(&it)))?)
}

fn cpus(answer: &AllocatableResponse) -> Result<CpuSet, AskError> {
    let cpu = |id: &i64| {
        let cpu = u32::try_from(*id).ok().map(CpuId);
        cpu.filter(|it| *it <= MAX_CPU).ok_or(AskError::Cpu(*id))
    };
    answer.cpu_ids.iter().map(cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_with_what_is_no_cpu_is_refused() {
        let of = |ids: &[i64]| {
            let answer = AllocatableResponse {
                cpu_ids: ids.to_vec(),
                ..AllocatableResponse::default()
            };
            cpus(&answer).map(|it| it.to_string()).ok()
        };
        assert_eq!(of(&[1, 3, 2]).as_deref(), Some("1-3"));
        assert_eq!(of(&[]).as_deref(), Some(""));
        assert_eq!(of(&[1, -1]), None);
        assert_eq!(of(&[i64::from(MAX_CPU.0) + 1]), None);
    }
}
