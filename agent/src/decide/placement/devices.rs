//! The device manager (pkg/kubelet/cm/devicemanager/manager.go, v1.36): which devices of its plugins a container gets.
//!
//! In: what plugins tell ([`DeviceManager::connected`], [`DeviceManager::set_devices`],
//! [`DeviceManager::disconnected`]), pods, and the answers of plugins to questions. Out: hints, and
//! what containers hold. Nobody is asked from here: an allocation that needs a plugin's answer ends
//! with the question and is made again, from the start, once there is one.
//!
//! Invariant: a device is held by one container, or by the containers of one pod that come after
//! each other. The same books, pod and answers give the same devices: where kubelet's choice is
//! random, ours takes the ids in order.

mod choose;
mod hints;
mod plugin;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::plugin::{PluginAnswer, PluginAnswers, PluginQuestion};
use super::hints::ProviderHints;
use crate::config::Compat;
use crate::model::admission::RefusalReason;
use crate::model::device::{Device, PluginOptions, is_extended_resource_name};
use crate::model::numa::{Hint, NumaMask};
use crate::model::placement::{ByContainer, DeviceAllocation, DeviceState};
use crate::model::pod::{Container, Overhead, Pod, PodLevel, PodUid, ResourceList};

/// How long devices count whose plugin has gone. As kubelet.
pub const GRACE: Duration = Duration::from_secs(5 * 60);

/// See the module. A value: what an admission changes is a copy.
#[derive(Clone, Debug)]
pub struct DeviceManager {
    /// Those of the machine.
    nodes: NumaMask,
    compat: Compat,
    books: DeviceBooks,
    /// Resources that there were and that are no more: the node goes on to report 0 of them.
    removed: BTreeSet<String>,
}

/// What plugins have to give, and what is given out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceBooks {
    /// By name.
    pub resources: BTreeMap<String, Resource>,
    /// By resource name within the container.
    pub containers: ByContainer<BTreeMap<String, DeviceAllocation>>,
    /// Resources whose plugin prepares devices before a start, as it said last. What a plugin that is away would have
    /// done is not left out.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub prepared: BTreeSet<String>,
}

/// A resource that a plugin has registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    pub plugin: Plugin,
    /// By id, as the plugin told last.
    pub devices: BTreeMap<String, Device>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Plugin {
    #[serde(rename_all = "camelCase")]
    Connected {
        /// Tells one registration from the next.
        instance: u64,
        options: PluginOptions,
        /// It has told its devices.
        has_listed: bool,
    },
    Gone {
        /// Boottime. `None`: not seen since the agent started; [`DeviceManager::expire`] sets it.
        since: Option<Duration>,
    },
}

/// Numbers of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCapacity {
    pub capacity: usize,
    /// The healthy ones.
    pub allocatable: usize,
}

/// How an allocation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocated {
    /// The container has all that it asks for.
    Done,
    /// Nothing was changed: this has to be answered first.
    Ask(PluginQuestion),
}

/// Why a container cannot have its devices. The texts are kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "pod {pod:?} container {container:?} changed request for resource {resource:?} \
         from {held} to {asked}"
    )]
    RequestChanged {
        pod: String,
        container: String,
        resource: String,
        held: usize,
        asked: usize,
    },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error(
        "previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}"
    )]
    HeldUnhealthy(String),
    #[error(
        "requested number of devices unavailable for {resource}. \
         Requested: {asked}, Available: {available}"
    )]
    TooFew {
        resource: String,
        /// Without those used again after init containers.
        asked: usize,
        available: usize,
    },
    /// What the plugin said instead of an answer.
    #[error("{why}")]
    Plugin { resource: String, why: String },
}

impl DeviceError {
    /// Kubelet has no reasons of its own for devices.
    pub fn reason(&self) -> RefusalReason {
        RefusalReason::UnexpectedAdmissionError
    }
}

/// Ids of devices of one resource.
type Ids = BTreeSet<String>;

impl DeviceManager {
    /// On a machine with these NUMA nodes, without plugins.
    pub fn new(nodes: NumaMask, compat: Compat) -> Self {
        Self {
            nodes,
            compat,
            books: DeviceBooks::default(),
            removed: BTreeSet::new(),
        }
    }

    /// Takes over what was known and given out before.
    pub fn adopt(&mut self, books: DeviceBooks) {
        self.books = books;
    }

    pub fn books(&self) -> DeviceBooks {
        self.books.clone()
    }

    /// What is given out, by resource name within the container.
    pub fn containers(&self) -> &ByContainer<BTreeMap<String, DeviceAllocation>> {
        &self.books.containers
    }

    /// As it is stored. Of the resources only the healthy devices are.
    pub fn state(&self) -> DeviceState {
        let resources = self.books.resources.iter();
        DeviceState {
            containers: self.books.containers.clone(),
            registered: resources
                .map(|(name, it)| (name.clone(), it.healthy()))
                .collect(),
        }
    }

    /// A plugin has registered. Until it tells its devices those of its predecessor stand.
    pub fn connected(&mut self, resource: &str, instance: u64, options: PluginOptions) {
        let plugin = Plugin::Connected {
            instance,
            options,
            has_listed: false,
        };
        self.removed.remove(resource);
        match options.pre_start_required {
            true => self.books.prepared.insert(resource.to_owned()),
            false => self.books.prepared.remove(resource),
        };
        match self.books.resources.get_mut(resource) {
            Some(it) => it.plugin = plugin,
            None => {
                let devices = BTreeMap::new();
                let it = Resource { plugin, devices };
                self.books.resources.insert(resource.to_owned(), it);
            }
        }
    }

    /// All devices of a resource, as its plugin tells. Gives the pods whose devices are not what
    /// they were. Told by a plugin that is not the current one, it changes nothing.
    pub fn set_devices(
        &mut self,
        resource: &str,
        instance: u64,
        devices: Vec<Device>,
    ) -> BTreeSet<PodUid> {
        let Some(it) = self.current(resource, instance) else {
            return BTreeSet::new();
        };
        if let Plugin::Connected { has_listed, .. } = &mut it.plugin {
            *has_listed = true;
        }
        let devices = devices.into_iter().map(|it| (it.id.clone(), it)).collect();
        let before = std::mem::replace(&mut it.devices, devices);
        self.affected(resource, &before)
    }

    /// A plugin has gone: none of its devices is healthy. Gives the pods whose devices are not what
    /// they were. The end of a plugin that has a successor already changes nothing.
    pub fn disconnected(
        &mut self,
        resource: &str,
        instance: u64,
        now: Duration,
    ) -> BTreeSet<PodUid> {
        let Some(it) = self.current(resource, instance) else {
            return BTreeSet::new();
        };
        it.plugin = Plugin::Gone { since: Some(now) };
        let before = it.devices.clone();
        for device in it.devices.values_mut() {
            device.is_healthy = false;
        }
        self.affected(resource, &before)
    }

    /// Forgets the resources whose plugin has been gone for longer than [`GRACE`]; whether there
    /// were any. What containers hold of them stays.
    pub fn expire(&mut self, now: Duration) -> bool {
        let mut expired = Vec::new();
        for (name, it) in &mut self.books.resources {
            if let Plugin::Gone { since } = &mut it.plugin
                && now.saturating_sub(*since.get_or_insert(now)) > GRACE
            {
                expired.push(name.clone());
            }
        }
        for name in &expired {
            self.books.resources.remove(name);
        }
        let is_any = !expired.is_empty();
        self.removed.extend(expired);
        is_any
    }

    /// For the status of the node: by resource, those included that are no more.
    pub fn capacity(&self) -> BTreeMap<String, DeviceCapacity> {
        let removed = self.removed.iter();
        let removed = removed.map(|name| (name.clone(), DeviceCapacity::default()));
        let resources = self.books.resources.iter().map(|(name, it)| {
            let capacity = DeviceCapacity {
                capacity: it.devices.len(),
                allocatable: it.healthy().len(),
            };
            (name.clone(), capacity)
        });
        removed.chain(resources).collect()
    }

    /// What plugins have to give, by name.
    pub fn resources(&self) -> &BTreeMap<String, Resource> {
        &self.books.resources
    }

    /// What a container holds, by resource.
    pub fn allocations_of(
        &self,
        pod: &PodUid,
        container: &str,
    ) -> Option<&BTreeMap<String, DeviceAllocation>> {
        self.books.containers.get(pod)?.get(container)
    }

    /// The pods that hold something.
    pub fn holders(&self) -> impl Iterator<Item = &PodUid> {
        self.books.containers.keys()
    }

    /// See [`DeviceBooks::prepared`].
    pub fn prepared(&self) -> &BTreeSet<String> {
        &self.books.prepared
    }

    /// Plugins that want to know before the container starts, and with which devices; those that are away included.
    pub fn pre_starts(&self, pod: &PodUid, container: &str) -> Vec<(String, Ids)> {
        let held = self.allocations_of(pod, container).into_iter().flatten();
        held.filter(|(resource, _)| self.books.prepared.contains(*resource))
            .map(|(resource, it)| (resource.clone(), it.device_ids()))
            .collect()
    }

    /// The first resource that the pod needs and that no plugin offers now, or offers but has not
    /// listed. Kubelet lets such a pod in without it if it never heard of the resource, and else
    /// refuses it for good; ours waits. A container that holds what it needs waits for nobody.
    pub fn awaited<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        if self.compat == Compat::Kubelet {
            return None;
        }
        self.lacks(pod).find(|name| {
            let resource = self.books.resources.get(*name);
            !resource.is_some_and(Resource::is_listed)
        })
    }

    /// Whether its containers hold something of each resource that they ask for.
    pub fn holds_all(&self, pod: &Pod) -> bool {
        self.lacks(pod).next().is_none()
    }

    /// Whether an admitted pod holds what it asks for. One whose devices are not on record any more
    /// does not: others would be given the same. Kubelet lets it go on without.
    pub fn is_settled(&self, pod: &Pod) -> bool {
        self.compat == Compat::Kubelet || self.holds_all(pod)
    }

    /// The resources that containers of a pod ask for and hold nothing of.
    fn lacks<'a>(&self, pod: &'a Pod) -> impl Iterator<Item = &'a str> {
        let is_lacking = |(container, name): &(&Container, &str)| {
            let held = self.allocations_of(&pod.uid, &container.name);
            !held.is_some_and(|it| it.contains_key(*name))
        };
        requests(pod).filter(is_lacking).map(|(_, name)| name)
    }

    /// Whether a container that runs already can go on with what it holds: nothing but its request
    /// counts, and one whose devices are not on record passes.
    pub fn readopt(&self, pod: &Pod, container: &Container) -> Result<(), DeviceError> {
        for (resource, asked) in self.asked(&container.resources.limits) {
            self.held(pod, container, resource, asked)?;
        }
        Ok(())
    }

    /// Where the devices of a container could come from.
    pub fn hints(&self, pod: &Pod, container: &Container) -> ProviderHints {
        let asked = self.asked(&container.resources.limits);
        asked
            .map(|(resource, asked)| {
                let held = self.allocations_of(&pod.uid, &container.name);
                let held = held.and_then(|it| it.get(resource));
                let held = held.map(DeviceAllocation::device_ids).unwrap_or_default();
                let reusable = self.reusable(pod, resource);
                let hints = self.hints_of(resource, asked, held, reusable);
                (resource.to_owned(), hints)
            })
            .collect()
    }

    /// The same for the pod as a whole.
    pub fn pod_hints(&self, pod: &Pod) -> ProviderHints {
        let limits = pod.limits(PodLevel::Honoured, Overhead::Left).amounts;
        let asked = self.asked(&limits);
        asked
            .map(|(resource, asked)| {
                let held = self.books.containers.get(&pod.uid).into_iter().flatten();
                let held = held.filter_map(|(_, it)| it.get(resource));
                let held = held.flat_map(DeviceAllocation::device_ids).collect();
                let hints = self.hints_of(resource, asked, held, Ids::new());
                (resource.to_owned(), hints)
            })
            .collect()
    }

    /// Gives a container the devices it asks for, under the hint that was merged for it. What it
    /// holds already is left as it is. On an error, or with a question, nothing is changed.
    pub fn allocate(
        &mut self,
        pod: &Pod,
        container: &Container,
        hint: Hint,
        answers: &PluginAnswers,
    ) -> Result<Allocated, DeviceError> {
        match self.plan(pod, container, hint, answers) {
            Ok(given) if given.is_empty() => Ok(Allocated::Done),
            Ok(given) => {
                let containers = self.books.containers.entry(pod.uid.clone()).or_default();
                let held = containers.entry(container.name.clone()).or_default();
                held.extend(given);
                Ok(Allocated::Done)
            }
            Err(Stop::Ask(question)) => Ok(Allocated::Ask(question)),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    /// Takes back what a pod holds.
    pub fn release(&mut self, pod: &PodUid) {
        self.books.containers.remove(pod);
    }

    /// Takes back what is held by pods and containers that `keep` does not name.
    pub fn retain(&mut self, keep: impl Fn(&PodUid, &str) -> bool) {
        self.books.containers.retain(|pod, containers| {
            containers.retain(|name, _| keep(pod, name));
            !containers.is_empty()
        });
    }

    /// Chooses devices for all resources before a plugin is told of any.
    fn plan(
        &self,
        pod: &Pod,
        container: &Container,
        hint: Hint,
        answers: &PluginAnswers,
    ) -> Result<Vec<(String, DeviceAllocation)>, Stop> {
        let mut chosen = Vec::new();
        for (resource, asked) in self.asked(&container.resources.limits) {
            let ids = self.choose(pod, container, resource, asked, hint, answers)?;
            if !ids.is_empty() {
                chosen.push((resource, ids));
            }
        }
        let given = chosen.into_iter().map(|(resource, ids)| {
            let question = PluginQuestion::Allocate {
                resource: resource.to_owned(),
                container: container.name.clone(),
                ids: ids.clone(),
            };
            let response = answers.allocated(question)?;
            let ids = self.by_node(resource, ids);
            Ok((resource.to_owned(), DeviceAllocation { ids, response }))
        });
        given.collect()
    }

    /// The amounts in a list of limits that are devices: registered, or given out already. Kubelet asks a resource for
    /// none of its devices, and refuses the pod where it has none.
    fn asked<'a>(&self, limits: &'a ResourceList) -> impl Iterator<Item = (&'a str, usize)> {
        limits
            .iter()
            .filter(|(_, amount)| self.compat == Compat::Kubelet || amount.is_positive())
            .filter(|(name, _)| {
                self.books.resources.contains_key(*name) || self.holders_of(name).next().is_some()
            })
            .map(|(name, amount)| {
                let asked = usize::try_from(amount.units()).unwrap_or(usize::MAX);
                (name.as_str(), asked)
            })
    }

    /// What is given out of a resource.
    fn holders_of(&self, resource: &str) -> impl Iterator<Item = &DeviceAllocation> {
        let containers = self.books.containers.values().flat_map(BTreeMap::values);
        containers.filter_map(move |it| it.get(resource))
    }

    /// What ordinary init containers of the pod hold and no container after them has taken over. The
    /// containers of a pod are served in the order of their start.
    fn reusable(&self, pod: &Pod, resource: &str) -> Ids {
        let held = |container: &Container| {
            let held = self.allocations_of(&pod.uid, &container.name);
            held.and_then(|it| it.get(resource))
                .map(DeviceAllocation::device_ids)
        };
        let (sidecars, ordinary): (Vec<_>, Vec<_>) =
            pod.init_containers.iter().partition(|it| it.is_sidecar);
        let taken: Ids = sidecars
            .into_iter()
            .chain(&pod.containers)
            .filter_map(held)
            .flatten()
            .collect();
        let left = ordinary.into_iter().filter_map(held).flatten();
        left.filter(|it| !taken.contains(it)).collect()
    }

    /// Healthy and not given out.
    fn available(&self, resource: &str) -> Ids {
        let healthy = self.books.resources.get(resource).map(Resource::healthy);
        let mut available = healthy.unwrap_or_default();
        for id in self
            .holders_of(resource)
            .flat_map(|it| it.ids.values())
            .flatten()
        {
            available.remove(id);
        }
        available
    }

    /// Where a device lies; `None`: nowhere in particular. One whose plugin names no node, or only
    /// nodes that this machine does not have, lies nowhere to us; to kubelet it lies where nobody can
    /// ask for it.
    fn place(&self, device: &Device) -> Option<NumaMask> {
        match self.compat {
            Compat::Kubelet => device.numa,
            Compat::Ballast => device
                .numa
                .map(|it| it.intersection(self.nodes))
                .filter(|it| !it.is_empty()),
        }
    }

    fn current(&mut self, resource: &str, wanted: u64) -> Option<&mut Resource> {
        let it = self.books.resources.get_mut(resource)?;
        match it.plugin {
            Plugin::Connected { instance, .. } if instance == wanted => Some(it),
            _ => None,
        }
    }

    /// The pods that hold a device whose health is another than `before`.
    fn affected(&self, resource: &str, before: &BTreeMap<String, Device>) -> BTreeSet<PodUid> {
        let now = self.books.resources.get(resource).map(|it| &it.devices);
        let is_changed = |id: &String| {
            let health = |it: &Device| it.is_healthy;
            before.get(id).map(health) != now.and_then(|it| it.get(id)).map(health)
        };
        let pods = self.books.containers.iter().filter(|(_, containers)| {
            let held = containers.values().filter_map(|it| it.get(resource));
            held.flat_map(|it| it.ids.values())
                .flatten()
                .any(is_changed)
        });
        pods.map(|(pod, _)| pod.clone()).collect()
    }
}

/// The device resources that containers of a pod ask for, each with its container.
pub fn requests(pod: &Pod) -> impl Iterator<Item = (&Container, &str)> {
    pod.all_containers().flat_map(|container| {
        let limits = container.resources.limits.iter();
        limits
            .filter(|(name, amount)| is_extended_resource_name(name) && amount.is_positive())
            .map(move |(name, _)| (container, name.as_str()))
    })
}

/// Why an allocation ends before its end.
enum Stop {
    Ask(PluginQuestion),
    Error(DeviceError),
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Self::Error(error)
    }
}

impl Resource {
    fn healthy(&self) -> Ids {
        let healthy = self.devices.values().filter(|it| it.is_healthy);
        healthy.map(|it| it.id.clone()).collect()
    }

    /// Its plugin is here and has told its devices.
    fn is_listed(&self) -> bool {
        matches!(self.plugin, Plugin::Connected { has_listed, .. } if has_listed)
    }

    fn options(&self) -> Option<PluginOptions> {
        match self.plugin {
            Plugin::Connected { options, .. } => Some(options),
            Plugin::Gone { .. } => None,
        }
    }
}

/// What a stored state tells: who holds what. The devices themselves come with their plugins.
impl From<DeviceState> for DeviceBooks {
    fn from(state: DeviceState) -> Self {
        let resources = state.registered.into_keys().map(|name| {
            let plugin = Plugin::Gone { since: None };
            let devices = BTreeMap::new();
            (name, Resource { plugin, devices })
        });
        Self {
            resources: resources.collect(),
            containers: state.containers,
            prepared: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests;
