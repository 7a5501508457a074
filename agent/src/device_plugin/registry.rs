//! The one task that knows which plugin is the current one of each resource, and the only one that
//! tells the agent. All else reaches it by a bounded channel, so events have one order.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};

use super::connect::Refusal;
use super::{
    Deadlines, Disconnect, PluginError, PluginEvent, PluginId, Question, Reply, calls, limits,
};
use crate::grpc::client::Channel;
use crate::model::device::{Device, PluginOptions, RefusalReason};

pub(super) enum Command {
    Install {
        resource: String,
        channel: Channel,
        options: PluginOptions,
        reply: oneshot::Sender<Result<Installed, Refusal>>,
    },
    Devices {
        plugin: PluginId,
        devices: Vec<Device>,
    },
    /// The plugin is to be one no more.
    End {
        plugin: PluginId,
        why: Disconnect,
    },
    Ask(Question, Reply),
    Tell(PluginEvent),
}

/// A plugin that the registry has taken.
#[derive(Debug)]
pub(super) struct Installed {
    pub(super) plugin: PluginId,
    /// Resolves when it is one no more.
    pub(super) over: oneshot::Receiver<Disconnect>,
}

pub(super) type Sink = Arc<dyn Fn(PluginEvent) + Send + Sync>;

pub(super) struct Registry {
    /// For the streams.
    commands: mpsc::Sender<Command>,
    sink: Sink,
    deadlines: Deadlines,
    /// By resource.
    current: BTreeMap<String, Current>,
    last_instance: u64,
    streams: JoinSet<()>,
    calls: JoinSet<()>,
}

/// The plugin of a resource.
struct Current {
    instance: u64,
    channel: Channel,
    stream: AbortHandle,
    over: oneshot::Sender<Disconnect>,
    call_places: Arc<Semaphore>,
}

impl Current {
    fn leave(self, why: Disconnect) {
        self.stream.abort();
        // Nobody waits for the end of a plugin that registered by itself.
        let _ = self.over.send(why);
    }
}

impl Registry {
    pub(super) fn new(commands: mpsc::Sender<Command>, sink: Sink, deadlines: Deadlines) -> Self {
        Self {
            commands,
            sink,
            deadlines,
            current: BTreeMap::new(),
            last_instance: 0,
            streams: JoinSet::new(),
            calls: JoinSet::new(),
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            while self.streams.try_join_next().is_some() {}
            while self.calls.try_join_next().is_some() {}
            match command {
                Command::Install {
                    resource,
                    channel,
                    options,
                    reply,
                } => {
                    let installed = self.install(resource, channel, options).await;
                    // Whoever asked may have given up; the plugin is one all the same.
                    let _ = reply.send(installed);
                }
                Command::Devices { plugin, devices } => {
                    if self.is_current(&plugin) {
                        self.tell(PluginEvent::Devices { plugin, devices }).await;
                    }
                }
                Command::End { plugin, why } => self.end(plugin, why).await,
                Command::Ask(question, reply) => self.ask(question, reply),
                Command::Tell(event) => self.tell(event).await,
            }
        }
    }

    fn is_current(&self, plugin: &PluginId) -> bool {
        let current = self.current.get(&plugin.resource);
        current.is_some_and(|it| it.instance == plugin.instance)
    }

    async fn install(
        &mut self,
        resource: String,
        channel: Channel,
        options: PluginOptions,
    ) -> Result<Installed, Refusal> {
        let replaced = self.current.remove(&resource);
        if replaced.is_none() && self.current.len() >= limits::MAX_PLUGINS {
            let why = format!("{} resources have a plugin already", limits::MAX_PLUGINS);
            return Err(Refusal::new(RefusalReason::TooMany, why));
        }
        if let Some(replaced) = replaced {
            let plugin = PluginId {
                resource: resource.clone(),
                instance: replaced.instance,
            };
            let why = Disconnect::Replaced;
            replaced.leave(why.clone());
            self.tell(PluginEvent::Disconnected { plugin, why }).await;
        }
        self.last_instance += 1;
        let plugin = PluginId {
            resource,
            instance: self.last_instance,
        };
        self.tell(PluginEvent::Connected {
            plugin: plugin.clone(),
            options,
        })
        .await;
        let watch = calls::watch(plugin.clone(), channel.clone(), self.commands.clone());
        let (over, is_over) = oneshot::channel();
        let current = Current {
            instance: plugin.instance,
            channel,
            stream: self.streams.spawn(watch),
            over,
            call_places: Arc::new(Semaphore::new(limits::MAX_CALLS)),
        };
        self.current.insert(plugin.resource.clone(), current);
        Ok(Installed {
            plugin,
            over: is_over,
        })
    }

    /// A late end of a plugin that was replaced is nothing new.
    async fn end(&mut self, plugin: PluginId, why: Disconnect) {
        if !self.is_current(&plugin) {
            return;
        }
        if let Some(current) = self.current.remove(&plugin.resource) {
            current.leave(why.clone());
        }
        let refused = match &why {
            Disconnect::Misbehaved(why) => Some(PluginEvent::Refused {
                resource: plugin.resource.clone(),
                reason: RefusalReason::Devices,
                why: why.clone(),
            }),
            _ => None,
        };
        self.tell(PluginEvent::Disconnected { plugin, why }).await;
        if let Some(event) = refused {
            self.tell(event).await;
        }
    }

    fn ask(&mut self, question: Question, reply: Reply) {
        let resource = question.resource.clone();
        let Some(current) = self.current.get(&resource) else {
            let error = PluginError::NotConnected { resource };
            tokio::task::spawn_blocking(move || reply(Err(error)));
            return;
        };
        let places = Arc::clone(&current.call_places);
        let (channel, deadlines) = (current.channel.clone(), self.deadlines);
        self.calls.spawn(async move {
            let place = tokio::time::timeout(limits::MAX_CALL_WAIT, places.acquire_owned());
            let answer = match place.await {
                Ok(_place) => calls::ask(&channel, question, &deadlines).await,
                Err(_) => Err(PluginError::Busy { resource }),
            };
            tokio::task::spawn_blocking(move || reply(answer));
        });
    }

    /// Waits until the agent has taken it.
    async fn tell(&self, event: PluginEvent) {
        let sink = Arc::clone(&self.sink);
        // An error means that the runtime ends, or that the sink panicked, which is its matter.
        let _ = tokio::task::spawn_blocking(move || sink(event)).await;
    }
}
