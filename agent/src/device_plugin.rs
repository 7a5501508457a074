//! Device plugins (API v1beta1), as kubelet serves them: a plugin registers, is dialled back,
//! streams its devices, and is asked when a container is to have some. In: registrations and
//! streams. Out: [`PluginEvent`]s in one order, answers to [`Question`]s.
//!
//! Reading and calling are one matter here, so this stands beside `sources` and `apply`.
//!
//! Invariants:
//! - A plugin is a resource and an instance of it ([`PluginId`]). The newest registration of a
//!   resource is its plugin; whatever an older instance still says or does is not heard.
//! - No plugin holds up the agent or another plugin: every call has a deadline ([`Deadlines`]),
//!   every message a size, and lists are read at a limited rate ([`limits`]).
//! - A plugin that breaks the rules is refused as a whole, told so where there is a way to, and
//!   reported ([`PluginEvent::Refused`]).
//!
//! Deliberate absences: nothing is kept on disk, and no device is chosen here. Endpoints are not
//! kept for plugins that left; kubelet's grace period for them is a matter of who counts capacity.

mod calls;
pub mod check;
mod connect;
pub mod limits;
mod registration;
mod registry;
mod response;
mod watcher;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::connect::Connector;
use self::registry::{Command, Registry};
pub use self::response::{ResponseError, decode_response};
use crate::grpc::server;
use crate::listener::{BindError, Listener};
use crate::model::device::{ContainerResponse, Device, PluginOptions, RefusalReason};
use crate::sys::{FsError, Root, unix_socket};

/// Name of the socket on which plugins register. It comes back when it was removed: plugins wait for one that is new, and
/// register again.
pub const REGISTRATION_SOCKET: &str = "kubelet.sock";

/// For root and its group alone.
const DIRECTORY_MODE: u32 = 0o750;

/// Where plugins are, and how long they may take.
#[derive(Clone, Debug)]
pub struct DevicePluginsConfig {
    /// Made when it is missing, mode 0750. Kubelet's is `/var/lib/kubelet/device-plugins`. Every
    /// socket in it is removed at start: that is how plugins notice that they have to register
    /// again.
    pub directory: PathBuf,
    /// Where plugins put registration sockets, made when it is missing, at a start and later, mode 0750. Kubelet's is
    /// `/var/lib/kubelet/plugins_registry`; nothing in it is removed. `None`: none is watched.
    pub registry_directory: Option<PathBuf>,
    pub deadlines: Deadlines,
}

/// How long a plugin may take. Past it a call has failed and the plugin stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For its socket to take a connection. As kubelet.
    pub connect: Duration,
    /// For GetDevicePluginOptions, and for each call on a registration socket. Kubelet has none for
    /// the first: a plugin that hangs there hangs its own registration only.
    pub registration: Duration,
    /// For GetPreferredAllocation. Kubelet has none, and waits in the admission of the pod.
    pub preferred_allocation: Duration,
    /// For Allocate. Kubelet has none. Some plugins program a device here, hence minutes.
    pub allocate: Duration,
    /// For PreStartContainer. As kubelet.
    pub pre_start_container: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            registration: Duration::from_secs(10),
            preferred_allocation: Duration::from_secs(30),
            allocate: Duration::from_secs(120),
            pre_start_container: Duration::from_secs(30),
        }
    }
}

/// Which plugin: the resource it offers, and which of the plugins that ever offered it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PluginId {
    pub resource: String,
    /// Rises with each registration, of whatever resource; from 1 in each run of the agent.
    pub instance: u64,
}

impl fmt::Display for PluginId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (instance {})", self.resource, self.instance)
    }
}

/// What became of a plugin. For each instance: `Connected`, any number of `Devices`,
/// `Disconnected`; instances of a resource do not overlap.
#[derive(Clone, Debug, PartialEq)]
pub enum PluginEvent {
    Connected {
        plugin: PluginId,
        options: PluginOptions,
    },
    /// All devices of the resource, in the order of their ids.
    Devices {
        plugin: PluginId,
        devices: Vec<Device>,
    },
    Disconnected {
        plugin: PluginId,
        why: Disconnect,
    },
    /// Somebody wanted to be a plugin and is not, or is one no more; in the second case
    /// `Disconnected` has come before. What is refused again and again is told each time.
    Refused {
        /// As it was given; not necessarily the name of a resource.
        resource: String,
        reason: RefusalReason,
        why: String,
    },
}

/// Why a plugin left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Disconnect {
    /// It ended, or its connection did.
    #[error("its stream of devices ended: {0}")]
    StreamEnded(String),
    #[error("a newer plugin registered for the resource")]
    Replaced,
    #[error("its registration socket was removed")]
    SocketRemoved,
    #[error("it broke the rules: {0}")]
    Misbehaved(String),
}

/// What is asked of the current plugin of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub resource: String,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Which devices go well together. To be asked where
    /// [`PluginOptions::has_preferred_allocation`].
    PreferredAllocation {
        available: BTreeSet<String>,
        /// Of `available`.
        must_include: BTreeSet<String>,
        /// How many in all, those that must be included too.
        size: u32,
    },
    /// What a container that is to have these devices gets.
    Allocate { ids: BTreeSet<String> },
    /// A container with these devices is about to start. To be asked where
    /// [`PluginOptions::pre_start_required`].
    PreStartContainer { ids: BTreeSet<String> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Any ids: the plugin may name fewer, more or others than it was asked for.
    PreferredAllocation {
        ids: BTreeSet<String>,
    },
    /// Several parts for the one container give the first, as in kubelet.
    Allocate {
        /// v1beta1.ContainerAllocateResponse as the plugin encoded it.
        bytes: Vec<u8>,
        /// The same, decoded.
        response: ContainerResponse,
    },
    PreStartContainer,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PluginError {
    #[error("no device plugin is connected for {resource}")]
    NotConnected { resource: String },
    #[error(
        "the device plugin of {resource} leaves {} questions unanswered",
        limits::MAX_CALLS
    )]
    Busy { resource: String },
    /// The plugin's own error, or that of the connection to it.
    #[error("{method} of the device plugin of {resource} failed: {why}")]
    Failed {
        resource: String,
        method: &'static str,
        why: String,
    },
    #[error("{method} of the device plugin of {resource} took longer than {} s", .deadline.as_secs_f64())]
    TimedOut {
        resource: String,
        method: &'static str,
        deadline: Duration,
    },
    #[error("the device plugin of {resource} gave an answer to Allocate that cannot be used")]
    Response {
        resource: String,
        source: ResponseError,
    },
    /// The agent ends.
    #[error("device plugins are no longer served")]
    Stopped,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("prepare the directory of device plugins")]
    Directory(#[from] FsError),
    #[error("listen for device plugins")]
    Listen(#[from] BindError),
}

/// Serves device plugins until dropped. Calls in progress have no answer then, and the socket goes a moment later.
#[derive(Debug)]
pub struct DevicePlugins {
    tokio: Handle,
    commands: mpsc::Sender<Command>,
    /// Ends them when dropped.
    _tasks: JoinSet<()>,
}

/// Takes the answer to a question, on a thread where it may block.
pub type Reply = Box<dyn FnOnce(Result<Answer, PluginError>) + Send>;

impl DevicePlugins {
    /// Serves on `tokio`. `sink` takes one event at a time, on a thread where it may block; while
    /// it does, plugins wait.
    pub fn start(
        config: &DevicePluginsConfig,
        tokio: &Handle,
        sink: impl Fn(PluginEvent) + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        let _entered = tokio.enter();
        let path = config.directory.join(REGISTRATION_SOCKET);
        let root = Root::host();
        root.create_private_dir(&config.directory)?;
        if let Some(directory) = &config.registry_directory {
            root.create_private_dir(directory)?;
        }
        // Another manager of the node keeps its plugins.
        unix_socket::check_free(&path).map_err(BindError::from)?;
        for name in unix_socket::list(&config.directory)?.keys() {
            root.remove_file(config.directory.join(name))?;
        }
        let listener = Listener::bind(&path, DIRECTORY_MODE)?;

        let (commands, received) = mpsc::channel(limits::QUEUE);
        let connector = Connector {
            commands: commands.clone(),
            deadlines: config.deadlines,
            directory: config.directory.clone(),
        };
        let mut tasks = JoinSet::new();
        let registry = Registry::new(commands.clone(), Arc::new(sink), config.deadlines);
        tasks.spawn(registry.run(received));
        let handler = registration::handler(connector.clone());
        tasks.spawn(server::serve(listener, limits::REGISTRATION, handler));
        if let Some(directory) = config.registry_directory.clone() {
            tasks.spawn(watcher::run(Connector {
                directory,
                ..connector
            }));
        }
        Ok(Self {
            tokio: tokio.clone(),
            commands,
            _tasks: tasks,
        })
    }

    /// Asks the current plugin of a resource; returns at once. `reply` is called once, on another
    /// thread, where it may block; it is dropped without a call when the runtime ends.
    pub fn ask(
        &self,
        question: Question,
        reply: impl FnOnce(Result<Answer, PluginError>) + Send + 'static,
    ) {
        let command = Command::Ask(question, Box::new(reply));
        let commands = self.commands.clone();
        self.tokio.spawn(async move {
            let sent = commands.send(command).await;
            if let Err(mpsc::error::SendError(Command::Ask(_, reply))) = sent {
                tokio::task::spawn_blocking(move || reply(Err(PluginError::Stopped)));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixStream;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::listener::FILE_CHECK;
    use crate::sys::scratch::Scratch;

    /// With a clock that waits for nobody. To be dropped before the files of a test go: what looks after the socket would
    /// bring them back.
    fn paused() -> Runtime {
        let mut builder = Builder::new_current_thread();
        let built = builder.enable_all().start_paused(true).build();
        built.expect("a runtime")
    }

    #[test]
    fn a_registration_socket_that_was_removed_comes_back() {
        let scratch = Scratch::new("plugins");
        let runtime = paused();
        runtime.block_on(async {
            let config = DevicePluginsConfig {
                directory: scratch.path("device-plugins"),
                registry_directory: None,
                deadlines: Deadlines::default(),
            };
            let plugins = DevicePlugins::start(&config, &Handle::current(), |_| {});
            let _plugins = plugins.expect("nobody else has the directory");
            let socket = config.directory.join(REGISTRATION_SOCKET);
            let removed = Root::host().remove_file(&socket);
            removed.expect("it is in a directory of the test");
            tokio::time::sleep(FILE_CHECK * 2).await;
            let connected = UnixStream::connect(&socket).await;
            connected.expect("plugins find it again");
        });
    }

    #[test]
    fn directories_that_were_removed_come_back() {
        let scratch = Scratch::new("plugins");
        let runtime = paused();
        runtime.block_on(async {
            let directories = ["device-plugins", "plugins_registry"].map(|it| scratch.path(it));
            let config = DevicePluginsConfig {
                directory: directories[0].clone(),
                registry_directory: Some(directories[1].clone()),
                deadlines: Deadlines::default(),
            };
            let plugins = DevicePlugins::start(&config, &Handle::current(), |_| {});
            let _plugins = plugins.expect("nobody else has the directory");
            tokio::time::sleep(FILE_CHECK).await;
            for directory in &directories {
                let removed = Root::host().remove_dir_all(directory);
                removed.expect("it is in a directory of the test");
            }
            tokio::time::sleep(FILE_CHECK * 4).await;
            for directory in &directories {
                assert!(Root::host().is_dir(directory), "{}", directory.display());
            }
        });
    }
}
