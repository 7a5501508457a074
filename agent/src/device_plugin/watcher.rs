//! Plugins that put a registration socket into a directory and wait to be found (service
//! `pluginregistration.Registration`). A socket is attended to for as long as it is there; when it
//! goes, its plugin is one no more.
//!
//! Sockets are looked for in directories below the directory too, as kubelet does.

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
use crate::sys::unix_socket::{self, SocketVersion};
use crate::sys::watch::DirWatch;
use crate::sys::{Dir, FsError, Root, chain};

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
        scan(
            &connector,
            watch.as_ref().map(AsyncFd::get_ref),
            &mut attended,
            &mut tasks,
        );
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

/// Of the directory, which is made again where it was removed.
#[expect(
    deprecated,
    reason = "the call that replaces it is unsafe for types whose descriptor can change; a watch's \
              is its own for as long as it lives"
)]
fn begin_watch(directory: &Path) -> Option<AsyncFd<DirWatch>> {
    let root = Root::host();
    if !root.is_dir(directory) {
        root.create_private_dir(directory)
            .inspect_err(|error| tracing::warn!(error = chain(error), "registration sockets"))
            .ok()?;
        let directory = directory.display();
        tracing::warn!(%directory, "the directory of registration sockets was removed and is back");
    }
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
fn scan(
    connector: &Connector,
    watch: Option<&DirWatch>,
    attended: &mut BTreeMap<PathBuf, Attended>,
    tasks: &mut JoinSet<()>,
) {
    let directory = &connector.directory;
    let look = Look::at(directory, watch);
    attended.retain(|socket, it| look.has(socket, it.version));
    if look.sockets.len() > limits::MAX_REGISTRATION_SOCKETS {
        let (n, directory) = (look.sockets.len(), directory.display());
        tracing::warn!(n, %directory, "too many registration sockets");
    }
    for (socket, version) in look.sockets {
        if attended.len() >= limits::MAX_REGISTRATION_SOCKETS {
            break;
        }
        if attended.contains_key(&socket) {
            continue;
        }
        let (gone_sender, gone) = oneshot::channel();
        tasks.spawn(attend(socket.clone(), connector.clone(), gone));
        let it = Attended {
            version,
            _gone: gone_sender,
        };
        attended.insert(socket, it);
    }
}

/// What is in the directory and in those below it, each of which is watched before it is read. No link is followed.
struct Look<'a> {
    directory: &'a Path,
    watch: Option<&'a DirWatch>,
    n_directories: usize,
    sockets: BTreeMap<PathBuf, SocketVersion>,
    unread: Vec<PathBuf>,
}

impl<'a> Look<'a> {
    fn at(directory: &'a Path, watch: Option<&'a DirWatch>) -> Self {
        let mut look = Self {
            directory,
            watch,
            n_directories: 0,
            sockets: BTreeMap::new(),
            unread: Vec::new(),
        };
        look.enter(directory, Dir::open(directory));
        look
    }

    /// What cannot be read is not gone.
    fn has(&self, socket: &Path, version: SocketVersion) -> bool {
        match self.sockets.get(socket) {
            Some(it) => *it == version,
            None => self.unread.iter().any(|it| socket.starts_with(it)),
        }
    }

    fn enter(&mut self, at: &Path, dir: Result<Dir, FsError>) {
        let looked = dir.and_then(|dir| self.look_in(at, &dir));
        match looked {
            Err(FsError::Gone { .. }) if at != self.directory => {}
            Err(error) => {
                tracing::warn!(error = chain(&error), "look for registration sockets");
                self.unread.push(at.to_owned());
            }
            Ok(()) => {}
        }
    }

    fn look_in(&mut self, at: &Path, dir: &Dir) -> Result<(), FsError> {
        self.n_directories += 1;
        if at != self.directory
            && let Some(Err(error)) = self.watch.map(|it| it.add(at))
        {
            // The clock says when to look there.
            tracing::debug!(error = chain(&error), "registration sockets");
        }
        let sockets = unix_socket::list(at)?.into_iter();
        // Hidden ones are being made.
        let sockets = sockets.filter(|(name, _)| !name.starts_with('.'));
        let sockets = sockets.map(|(name, version)| (at.join(name), version));
        self.sockets.extend(sockets);
        for name in dir.list_dirs()? {
            if self.n_directories == limits::MAX_REGISTRATION_DIRECTORIES {
                let directory = self.directory.display();
                tracing::warn!(%directory, "too many directories of registration sockets");
                break;
            }
            self.enter(&at.join(&name), dir.open_dir(&name));
        }
        Ok(())
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_socket_is_found_and_missed_in_directories_below_too() {
        let base = Scratch::new("registration");
        let watch = DirWatch::new(base.directory()).unwrap();
        let names = ["a.sock", "driver/b.sock", "driver/deep/c.sock"];
        let mut listening: Vec<_> = names
            .iter()
            .chain(&["driver/.d.sock", ".e.sock"])
            .map(|it| unix_socket::listen(&base.path(it), 0o755).unwrap())
            .collect();
        base.link("link", "driver");
        let found = || Look::at(base.directory(), Some(&watch)).sockets;
        let found_names: Vec<_> = found().into_keys().collect();
        assert_eq!(found_names, names.map(|it| base.path(it)));

        watch.drain().unwrap();
        assert!(!watch.drain().unwrap().changed);
        listening.swap_remove(2).1.remove();
        assert!(watch.drain().unwrap().changed);
        assert_eq!(found().len(), 2);
    }

    #[test]
    fn what_cannot_be_read_is_not_gone() {
        let base = Scratch::new("registration");
        let (_listener, _file) = unix_socket::listen(&base.path("a.sock"), 0o755).unwrap();
        let look = Look::at(base.directory(), None);
        let (socket, version) = look.sockets.first_key_value().unwrap();
        assert!(look.has(socket, *version));
        assert!(!look.has(&base.path("b.sock"), *version));
        let file = base.write("file", "");
        let look = Look::at(&file, None);
        assert!(look.has(&file.join("a.sock"), *version), "no directory");
        assert!(!look.has(socket, *version), "it lies elsewhere");
    }

    #[test]
    fn directories_beyond_a_number_are_not_looked_into() {
        let base = Scratch::new("registration");
        let mut listening = Vec::new();
        for n in 10..10 + limits::MAX_REGISTRATION_DIRECTORIES {
            let path = base.path(format!("{n}/a.sock"));
            listening.push(unix_socket::listen(&path, 0o755).unwrap());
        }
        let n_found = Look::at(base.directory(), None).sockets.len();
        assert_eq!(n_found, limits::MAX_REGISTRATION_DIRECTORIES - 1);
    }
}
