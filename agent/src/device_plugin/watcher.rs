//! Plugins that put a registration socket into a directory and wait to be found (service
//! `pluginregistration.Registration`). A socket is attended to for as long as it is there; when it
//! goes, its plugin is one no more.
//!
//! Sockets are looked for in the directory itself, not below it.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::connect::{Connector, Refusal};
use super::registry::{Command, Installed};
use super::{Disconnect, check, limits};
use crate::grpc::client::{Channel, Method};
use crate::grpc::messages::device_plugin::VERSION;
use crate::grpc::messages::plugin_registration::{
    DEVICE_PLUGIN, Empty, PluginInfo, RegistrationStatus, path,
};
use crate::model::device::RefusalReason;
use crate::sys::chain;
use crate::sys::unix_socket::{self, SocketVersion};
use crate::sys::watch::DirWatch;

const GET_INFO: Method = Method {
    path: path::GET_INFO,
    max_answer: limits::MAX_SMALL_BYTES,
};

const NOTIFY: Method = Method {
    path: path::NOTIFY,
    max_answer: limits::MAX_SMALL_BYTES,
};

/// Between two looks at the directory when inotify says nothing.
const RESCAN: Duration = Duration::from_secs(10);

/// Between two tries with one socket: at first, and at most after doubling.
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(120);

/// A socket that is attended to.
struct Attended {
    version: SocketVersion,
    /// Dropped when the socket is gone.
    _gone: oneshot::Sender<()>,
}

/// Watches until dropped.
pub(super) async fn run(connector: Connector) {
    let mut attended = BTreeMap::new();
    let mut tasks = JoinSet::new();
    let mut watch = None;
    loop {
        if watch.is_none() {
            watch = begin_watch(&connector.directory);
        }
        scan(&connector, &mut attended, &mut tasks);
        while tasks.try_join_next().is_some() {}
        tokio::select! {
            is_lost = news(watch.as_ref()) => if is_lost {
                watch = None;
                tokio::time::sleep(RETRY).await;
            },
            () = tokio::time::sleep(RESCAN) => {}
        }
    }
}

#[expect(
    deprecated,
    reason = "the call that replaces it is unsafe for types whose descriptor can change; a watch's \
              is its own for as long as it lives"
)]
fn begin_watch(directory: &Path) -> Option<AsyncFd<DirWatch>> {
    let watch = DirWatch::new(directory)
        .inspect_err(|error| tracing::warn!(error = chain(error), "registration sockets"))
        .ok()?;
    AsyncFd::new(watch)
        .inspect_err(|error| tracing::warn!(%error, "wait for registration sockets"))
        .ok()
}

/// Returns when there is something to look at; true: the watch is of no more use.
async fn news(watch: Option<&AsyncFd<DirWatch>>) -> bool {
    let Some(watch) = watch else {
        return std::future::pending().await;
    };
    let Ok(mut ready) = watch.readable().await else {
        return true;
    };
    ready.clear_ready();
    watch.get_ref().drain().map_or(true, |news| news.lost)
}

/// Begins with sockets that are new and ends with those that are gone.
fn scan(connector: &Connector, attended: &mut BTreeMap<String, Attended>, tasks: &mut JoinSet<()>) {
    let directory = &connector.directory;
    let mut sockets = match unix_socket::list(directory) {
        Ok(sockets) => sockets,
        Err(error) => {
            // What cannot be read is not gone.
            tracing::warn!(error = chain(&error), "look for registration sockets");
            return;
        }
    };
    // Hidden ones are being made.
    sockets.retain(|name, _| !name.starts_with('.'));
    attended.retain(|name, it| sockets.get(name) == Some(&it.version));
    if sockets.len() > limits::MAX_REGISTRATION_SOCKETS {
        let (n, directory) = (sockets.len(), directory.display());
        tracing::warn!(n, %directory, "too many registration sockets");
    }
    for (name, version) in sockets {
        if attended.len() >= limits::MAX_REGISTRATION_SOCKETS {
            break;
        }
        if attended.contains_key(&name) {
            continue;
        }
        let (gone_sender, gone) = oneshot::channel();
        tasks.spawn(attend(directory.join(&name), connector.clone(), gone));
        let it = Attended {
            version,
            _gone: gone_sender,
        };
        attended.insert(name, it);
    }
}

/// Has the plugin behind a socket registered until the socket is gone.
async fn attend(socket: PathBuf, connector: Connector, mut gone: oneshot::Receiver<()>) {
    let mut pause = RETRY;
    loop {
        // To its end even if the socket goes meanwhile: each step has a deadline, and a plugin
        // that is installed must be known here.
        match register(&socket, &connector).await {
            Ok(Installed { plugin, over }) => {
                pause = RETRY;
                let ended = tokio::select! {
                    _ = &mut gone => None,
                    why = over => Some(why),
                };
                match ended {
                    None => {
                        let why = Disconnect::SocketRemoved;
                        // Without a registry the agent ends.
                        let _ = connector.commands.send(Command::End { plugin, why }).await;
                        return;
                    }
                    // Two plugins of one resource would throw each other out for ever.
                    Some(Ok(Disconnect::Replaced)) => return,
                    Some(_) => {}
                }
            }
            // Until its socket is made anew, it is what it is.
            Err(NotRegistered::OtherKind) => return,
            Err(NotRegistered::Refused) => {}
        }
        tokio::select! {
            _ = &mut gone => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(MAX_RETRY);
    }
}

enum NotRegistered {
    /// Of no interest here, as the plugins of storage.
    OtherKind,
    /// It was told.
    Refused,
}

async fn register(socket: &Path, connector: &Connector) -> Result<Installed, NotRegistered> {
    let deadlines = &connector.deadlines;
    let name = socket.display().to_string();
    let asked = async {
        let channel = connector.dial(socket).await?;
        let info: PluginInfo = channel
            .unary(GET_INFO, Empty {}, deadlines.registration)
            .await
            .map_err(|status| {
                let why = format!("GetInfo: {}", check::told_status(&status));
                Refusal::new(RefusalReason::Unreachable, why)
            })?;
        Ok((channel, info))
    };
    let (channel, info) = match asked.await {
        Ok(it) => it,
        Err(refusal) => {
            connector.refused(&name, &refusal).await;
            return Err(NotRegistered::Refused);
        }
    };
    if info.plugin_type != DEVICE_PLUGIN {
        let kind = check::told(&info.plugin_type);
        tracing::info!(socket = name, kind, "a plugin of a kind that is not served");
        let error = format!("plugins of type {kind:?} are not served");
        notify(&channel, deadlines.registration, Some(error)).await;
        return Err(NotRegistered::OtherKind);
    }
    let connected = match endpoint(socket, &info) {
        Ok(endpoint) => connector.connect(&info.name, &endpoint).await,
        Err(refusal) => Err(refusal),
    };
    let error = connected.as_ref().err().map(|it| it.why.clone());
    notify(&channel, deadlines.registration, error).await;
    match connected {
        Ok(installed) => Ok(installed),
        Err(refusal) => {
            connector.refused(&info.name, &refusal).await;
            Err(NotRegistered::Refused)
        }
    }
}

/// The socket that serves the plugin.
fn endpoint(socket: &Path, info: &PluginInfo) -> Result<PathBuf, Refusal> {
    if !info.supported_versions.iter().any(|it| it == VERSION) {
        let versions = check::told(&info.supported_versions.join(", "));
        let why = format!("of the API it speaks {versions:?} and not {VERSION}");
        return Err(Refusal::new(RefusalReason::Version, why));
    }
    check::resource_name(&info.name)
        .map_err(|why| Refusal::new(RefusalReason::ResourceName, why))?;
    if info.endpoint.is_empty() {
        return Ok(socket.to_owned());
    }
    let path = Path::new(&info.endpoint);
    let is_plain = path.is_absolute() && path.components().all(|it| it != Component::ParentDir);
    if !is_plain {
        let endpoint = check::told(&info.endpoint);
        let why = format!("the endpoint {endpoint:?} is not an absolute path without ..");
        return Err(Refusal::new(RefusalReason::Endpoint, why));
    }
    Ok(path.to_owned())
}

/// Tells a plugin what became of it. One that does not listen is a plugin all the same.
async fn notify(channel: &Channel, deadline: Duration, error: Option<String>) {
    let status = RegistrationStatus {
        plugin_registered: error.is_none(),
        error: error.unwrap_or_default(),
    };
    if let Err(status) = channel.unary::<_, Empty>(NOTIFY, status, deadline).await {
        let error = check::told_status(&status);
        tracing::debug!(error, "NotifyRegistrationStatus");
    }
}
