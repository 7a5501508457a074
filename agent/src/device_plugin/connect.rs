//! From a name and a socket to a plugin: the socket is dialled, the plugin says its options, and
//! the registry takes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::registry::{Command, Installed};
use super::{Deadlines, PluginEvent, check, limits};
use crate::grpc::client::{Channel, ConnectError, Method};
use crate::grpc::messages::device_plugin::{self as wire, path};
use crate::model::device::{PluginOptions, RefusalReason};
use crate::sys::{FsError, chain, unix_socket};

const OPTIONS: Method = Method {
    path: path::OPTIONS,
    max_answer: limits::MAX_SMALL_BYTES,
};

/// Between two tries to connect: a plugin may register before it serves, and kubelet waits too.
const RETRY: Duration = Duration::from_millis(100);

/// Why somebody is no plugin.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) reason: RefusalReason,
    pub(super) why: String,
}

impl Refusal {
    pub(super) fn new(reason: RefusalReason, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { reason, why }
    }

    pub(super) fn stopped() -> Self {
        Self::new(RefusalReason::Unreachable, "the agent is stopping")
    }
}

/// What makes plugins of registrations.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) deadlines: Deadlines,
    /// Below it no link is followed: it would let whoever may write there choose whom root talks to.
    pub(super) directory: PathBuf,
}

impl Connector {
    /// Makes the server at `socket` the plugin of `resource`, in the place of one that was.
    pub(super) async fn connect(
        &self,
        resource: &str,
        socket: &Path,
    ) -> Result<Installed, Refusal> {
        let channel = self.dial(socket).await?;
        let options: wire::Options = channel
            .unary(OPTIONS, wire::Empty {}, self.deadlines.registration)
            .await
            .map_err(|status| {
                let why = format!("GetDevicePluginOptions: {}", check::told_status(&status));
                Refusal::new(RefusalReason::Unreachable, why)
            })?;
        let (reply, installed) = oneshot::channel();
        let command = Command::Install {
            resource: resource.to_owned(),
            channel,
            options: PluginOptions {
                pre_start_required: options.pre_start_required,
                has_preferred_allocation: options.get_preferred_allocation_available,
            },
            reply,
        };
        if self.commands.send(command).await.is_err() {
            return Err(Refusal::stopped());
        }
        installed
            .await
            .unwrap_or_else(|_stopped| Err(Refusal::stopped()))
    }

    /// Connects to a socket; one that is not there yet may come within the deadline.
    pub(super) async fn dial(&self, socket: &Path) -> Result<Channel, Refusal> {
        let mut last = None;
        let connected = async {
            loop {
                match try_dial(&self.directory, socket).await {
                    Ok(channel) => return Ok(channel),
                    Err(DialError::NotASocket) => {
                        let socket = socket.display();
                        let why = format!("{socket} is not a socket, or lies beyond a link");
                        return Err(Refusal::new(RefusalReason::Endpoint, why));
                    }
                    Err(error) => last = Some(chain(&error)),
                }
                tokio::time::sleep(RETRY).await;
            }
        };
        let deadline = self.deadlines.connect;
        match tokio::time::timeout(deadline, connected).await {
            Ok(outcome) => outcome,
            Err(_elapsed) => {
                let last = last.unwrap_or_else(|| "nobody takes the connection".to_owned());
                let why = format!(
                    "no connection to {} within {} s: {last}",
                    socket.display(),
                    deadline.as_secs_f64()
                );
                Err(Refusal::new(RefusalReason::Unreachable, why))
            }
        }
    }

    /// Tells that somebody is no plugin.
    pub(super) async fn refused(&self, resource: &str, refusal: &Refusal) {
        let event = PluginEvent::Refused {
            resource: check::told(resource),
            reason: refusal.reason,
            why: refusal.why.clone(),
        };
        // Without a registry the agent ends, and nobody is to be told.
        let _ = self.commands.send(Command::Tell(event)).await;
    }
}

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("is not a socket")]
    NotASocket,
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

async fn try_dial(directory: &Path, socket: &Path) -> Result<Channel, DialError> {
    if unix_socket::version_below(directory, socket)?.is_none() {
        return Err(DialError::NotASocket);
    }
    Ok(Channel::connect(socket).await?)
}
