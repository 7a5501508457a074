//! Device plugins and the loop: what they tell goes into the books of devices, what an admission
//! wants to know of them is asked, and what they gave a container goes into its start.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Loop;
use super::event::{Event, PluginAnswered, Sender};
use super::pods;
use crate::decide::placement::devices::{PluginAnswer, PluginQuestion};
use crate::device_plugin::{
    Answer, Call, Deadlines, DevicePlugins, DevicePluginsConfig, PluginError, PluginEvent,
    Question, decode_response,
};
use crate::model::device::{ContainerDevices, ContainerResponse};
use crate::model::device_access::AllocatedDevice;
use crate::model::kubelet_state::{DEVICE_PLUGINS, PLUGINS_REGISTRY, POD_RESOURCES_SOCKET};
use crate::model::pod::PodUid;
use crate::observe::{chain, pod_resources};
use crate::run::serve::Server;
use crate::runtime::ContainerId;
use crate::sources::device_node;
use crate::sys::{Root, clock};

/// A call waits for 30 s at most, and its longest deadline is 2 min: an answer that is not here after this was lost.
pub(super) const ANSWER_LOST: Duration = Duration::from_secs(180);

/// A start that waits for what plugins have to prepare.
#[derive(Clone, Debug, Default)]
pub(super) struct PreStart {
    pub asked_at: Duration,
    /// Resources whose plugin has not said yet that it is ready.
    pub waiting: BTreeSet<String>,
    /// What the first that failed said.
    pub fault: Option<String>,
    /// All have said so: the start is on its way.
    pub is_done: bool,
}

impl Loop {
    /// Serves the pod resources API from now on. Others can do without it, and are told.
    pub(super) fn serve_pod_resources(&mut self, server: &Server) {
        let path = self.own.kubelet_directory.join(POD_RESOURCES_SOCKET);
        let _entered = server.tokio().enter();
        let resources = self.resources.subscribe();
        let metrics = self.metrics.clone();
        if let Err(error) = pod_resources::serve(&path, resources, metrics, server.shutdown()) {
            self.told.node("PodResourcesOff", chain(&error));
        }
    }

    /// Serves device plugins from now on. A node where that cannot be is told so, and runs pods
    /// without devices.
    pub(super) fn serve_plugins(&mut self, tokio: &Handle, to_loop: Sender) {
        let directory = &self.own.kubelet_directory;
        let config = DevicePluginsConfig {
            directory: directory.join(DEVICE_PLUGINS),
            registry_directory: Some(directory.join(PLUGINS_REGISTRY)),
            deadlines: Deadlines::default(),
        };
        self.to_loop = Some(to_loop.clone());
        // The loop outlives the plugins; at the end nobody is left to be told.
        let sink = move |event| {
            to_loop.send(Event::Plugin(event)).ok();
        };
        match DevicePlugins::start(&config, tokio, sink) {
            Ok(plugins) => self.plugins = Some(plugins),
            Err(error) => self.told.node("DevicePluginsOff", chain(&error)),
        }
    }

    /// A plugin came, told of its devices, or went.
    pub(super) fn plugin_changed(&mut self, event: PluginEvent) {
        let devices = &mut self.placement.managers.devices;
        let affected = match event {
            PluginEvent::Connected { plugin, options } => {
                self.metrics.device_plugin_registered(&plugin.resource);
                self.told
                    .plugin("DevicePluginConnected", plugin.to_string());
                devices.connected(&plugin.resource, plugin.instance, options);
                BTreeSet::new()
            }
            PluginEvent::Devices {
                plugin,
                devices: list,
            } => devices.set_devices(&plugin.resource, plugin.instance, list),
            PluginEvent::Disconnected { plugin, why } => {
                let message = format!("{plugin}: {why}");
                self.told.plugin("DevicePluginDisconnected", message);
                devices.disconnected(&plugin.resource, plugin.instance, clock::boottime())
            }
            PluginEvent::Refused {
                resource,
                reason,
                why,
            } => {
                self.metrics.device_plugin_refused(reason);
                let message = format!("{resource}: {why}");
                self.told.plugin("DevicePluginRefused", message);
                return;
            }
        };
        for uid in affected {
            if let Some(entry) = self.pods.get(&uid) {
                let message = "a device that it holds became healthy, unhealthy or went".to_owned();
                self.told.devices_changed(&entry.pod_ref, message);
            }
        }
        // Pods that wait for devices look again.
        for entry in self.pods.values_mut().filter(|it| it.waits.is_some()) {
            entry.is_dirty = true;
        }
        self.books_changed();
    }

    /// Resources whose plugin is gone for too long are no more.
    pub(super) fn expire_devices(&mut self, now: Duration) {
        if self.placement.managers.devices.expire(now) {
            self.books_changed();
        }
    }

    /// Asks in the admission of a pod; the answer comes as an event.
    pub(super) fn ask_plugin(&mut self, pod: PodUid, question: PluginQuestion) {
        let call = match &question {
            PluginQuestion::Preferred {
                available,
                must_include,
                size,
                ..
            } => Call::PreferredAllocation {
                available: available.clone(),
                must_include: must_include.clone(),
                size: *size,
            },
            PluginQuestion::Allocate { ids, .. } => Call::Allocate { ids: ids.clone() },
        };
        let asked = Question {
            resource: question.resource().to_owned(),
            call,
        };
        let started = clock::boottime();
        let metrics = self.metrics.clone();
        let resource = asked.resource.clone();
        let is_allocation = matches!(question, PluginQuestion::Allocate { .. });
        self.ask(asked, move |answer| {
            if is_allocation {
                let took = clock::boottime().saturating_sub(started);
                metrics.device_allocated(&resource, took);
            }
            Event::PluginAnswered(Box::new(PluginAnswered {
                pod,
                question,
                answer: answer_of(answer),
            }))
        });
    }

    /// Tells plugins that want to know that a container starts. `true`: the start has to wait for
    /// them; [`Event::PreStarted`] comes for each.
    pub(super) fn ask_before_start(&mut self, uid: &PodUid, container: &str) -> bool {
        let asked = self.placement.managers.devices.pre_starts(uid, container);
        let Some(entry) = self.pods.get_mut(uid) else {
            return false;
        };
        let Some(instance) = entry.instances.get_mut(container) else {
            return false;
        };
        if std::mem::take(&mut instance.pre_start.is_done) {
            return false;
        }
        instance.pre_start.asked_at = clock::boottime();
        instance.pre_start.waiting = asked.iter().map(|(resource, _)| resource.clone()).collect();
        let id = instance.id.clone();
        for (resource, ids) in &asked {
            let question = Question {
                resource: resource.clone(),
                call: Call::PreStartContainer { ids: ids.clone() },
            };
            let (id, resource) = (id.clone(), resource.clone());
            self.ask(question, move |answer| Event::PreStarted {
                id,
                resource,
                result: answer.map(|_| ()).map_err(|error| chain(&error)),
            });
        }
        !asked.is_empty()
    }

    fn ask(
        &mut self,
        question: Question,
        event: impl FnOnce(Result<Answer, PluginError>) -> Event + Send + 'static,
    ) {
        let Some(to_loop) = self.to_loop.clone() else {
            return;
        };
        // `ask` may answer at once, on this very thread, which must not wait for itself. The channel
        // has room for thousands of events; an answer that finds none counts as none.
        let reply = move |answer| {
            to_loop.try_send(event(answer)).ok();
        };
        match &self.plugins {
            Some(plugins) => plugins.ask(question, reply),
            None => reply(Err(PluginError::NotConnected {
                resource: question.resource,
            })),
        }
    }

    /// A plugin has prepared what a container is to be started with, or cannot.
    pub(super) fn pre_started(
        &mut self,
        id: &ContainerId,
        resource: &str,
        result: Result<(), String>,
        now: Duration,
    ) {
        let Some((uid, container)) = pods::owner_of(&self.pods, id) else {
            return;
        };
        let Some(entry) = self.pods.get_mut(&uid) else {
            return;
        };
        let is_ending = entry.state.ending().is_some();
        let Some(instance) = entry.instances.get_mut(&container) else {
            return;
        };
        let pre_start = &mut instance.pre_start;
        if !pre_start.waiting.remove(resource) {
            return;
        }
        if let Err(why) = result {
            pre_start.fault.get_or_insert(format!(
                "device plugin PreStartContainer rpc failed with err: {why}"
            ));
        }
        if !pre_start.waiting.is_empty() {
            return;
        }
        match pre_start.fault.take() {
            Some(fault) => self.start_failed(&uid, &container, fault, now),
            None if is_ending => {
                let why = "the pod ended while its devices were prepared".to_owned();
                self.start_failed(&uid, &container, why, now);
            }
            // A plugin may have made the nodes anew: the next pass looks their numbers up before the start.
            None => {
                pre_start.is_done = true;
                instance.held = Some("is to start with the devices that were prepared".to_owned());
                entry.is_dirty = true;
                let action = entry.start_action(&container);
                self.held_starts.extend(action.map(|it| (uid, it)));
            }
        }
    }

    /// Starts whose plugins have said nothing for too long have failed: an answer can be lost.
    pub(super) fn give_up_pre_starts(&mut self, now: Duration) {
        let mut given_up = Vec::new();
        for (uid, entry) in &mut self.pods {
            for (container, instance) in &mut entry.instances {
                let pre_start = &mut instance.pre_start;
                let is_late = now.saturating_sub(pre_start.asked_at) > ANSWER_LOST;
                if !pre_start.waiting.is_empty() && is_late {
                    pre_start.waiting.clear();
                    given_up.push((uid.clone(), container.clone()));
                }
            }
        }
        for (uid, container) in given_up {
            let message = "the device plugin did not say that the container can start".to_owned();
            self.start_failed(&uid, &container, message, now);
        }
    }

    /// The device nodes of containers that are to run or run, by their numbers now: one that was unplugged is left
    /// out, whatever else it was given is not taken from a container for it.
    pub(super) fn look_up_devices(&mut self, uids: &BTreeSet<&PodUid>) {
        for uid in uids {
            let managers = &self.placement.managers;
            let Some(entry) = self.pods.get(*uid) else {
                continue;
            };
            let living = entry.instances.iter().filter(|(_, it)| it.ended.is_none());
            let looked_up: Vec<_> = living
                .filter(|(name, _)| managers.devices.allocations_of(uid, name).is_some())
                // What cannot be read is as it was.
                .filter_map(|(name, _)| {
                    let devices = self.devices_of(uid, name).ok()?;
                    Some((name.clone(), allocated_devices(&devices)))
                })
                .collect();
            for (name, allocated) in looked_up {
                let Some(entry) = self.pods.get_mut(*uid) else {
                    continue;
                };
                let Some(instance) = entry.instances.get_mut(&name) else {
                    continue;
                };
                instance.devices = allocated.devices;
                let before = std::mem::replace(&mut instance.missing_devices, allocated.missing);
                // Of one that is to start it is told with the start.
                if let Some(why) = &instance.missing_devices
                    && instance.process.is_some()
                    && before.as_ref() != Some(why)
                {
                    let message = format!("container {name} cannot open a device it holds: {why}");
                    self.told.devices_changed(&entry.pod_ref, message);
                }
            }
        }
    }

    /// What the plugins gave a container, put together.
    pub(super) fn devices_of(
        &self,
        uid: &PodUid,
        container: &str,
    ) -> Result<ContainerDevices, String> {
        let held = self
            .placement
            .managers
            .devices
            .allocations_of(uid, container);
        let responses: Vec<(&str, ContainerResponse)> = held
            .into_iter()
            .flatten()
            .map(|(resource, it)| {
                let response = decode_response(&it.response)
                    .map_err(|error| format!("{resource}: {}", chain(&error)))?;
                Ok((resource.as_str(), response))
            })
            .collect::<Result<_, String>>()?;
        Ok(ContainerDevices::merge(
            responses.iter().map(|(resource, it)| (*resource, it)),
        ))
    }
}

/// The device nodes that a container may use, with their numbers on this node.
#[derive(Debug, Default)]
pub(super) struct Allocated {
    pub devices: Vec<AllocatedDevice>,
    /// Why one of those that it was given is not among them.
    pub missing: Option<String>,
}

pub(super) fn allocated_devices(devices: &ContainerDevices) -> Allocated {
    let root = Root::host();
    let mut all = Allocated::default();
    for node in devices.devices.values() {
        match device_node::allocated_devices(&root, node) {
            Ok(devices) => all.devices.extend(devices),
            Err(error) => all.missing = all.missing.or_else(|| Some(chain(&error))),
        }
    }
    all
}

fn answer_of(answer: Result<Answer, PluginError>) -> PluginAnswer {
    match answer {
        Ok(Answer::PreferredAllocation { ids }) => PluginAnswer::Preferred { ids },
        Ok(Answer::Allocate { bytes, .. }) => PluginAnswer::Allocated { response: bytes },
        Ok(Answer::PreStartContainer) => PluginAnswer::Failed {
            why: "it answered another question".to_owned(),
        },
        Err(error) => PluginAnswer::Failed { why: chain(&error) },
    }
}
