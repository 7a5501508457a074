//! The choice of devices for one resource of one container
//! (pkg/kubelet/cm/devicemanager/manager.go, v1.36: `devicesToAllocate`).

use std::collections::{BTreeMap, BTreeSet};

use super::plugin::{PluginAnswers, PluginQuestion};
use super::{DeviceError, DeviceManager, Ids, Resource, Stop};
use crate::config::Compat;
use crate::model::numa::Hint;
use crate::model::placement::DeviceAllocation;
use crate::model::pod::{Container, Pod};
use crate::model::topology::NumaNodeId;

/// Available devices by how they lie to the NUMA nodes of a hint.
#[derive(Default)]
struct Split {
    aligned: Ids,
    unaligned: Ids,
    /// Those that lie nowhere in particular; all, where places do not matter.
    anywhere: Ids,
}

/// A choice in the making.
struct Choice {
    taken: Ids,
    size: usize,
}

impl Choice {
    /// Takes from `from` in order, as many as are needed; whether there are enough now.
    fn take(&mut self, from: &Ids) -> bool {
        for id in from {
            if self.is_complete() {
                break;
            }
            self.taken.insert(id.clone());
        }
        self.is_complete()
    }

    fn is_complete(&self) -> bool {
        self.taken.len() >= self.size
    }
}

impl DeviceManager {
    /// The devices to give to the container; none if it needs none, or holds them.
    pub(super) fn choose(
        &self,
        pod: &Pod,
        container: &Container,
        name: &str,
        asked: usize,
        hint: Hint,
        answers: &PluginAnswers,
    ) -> Result<Ids, Stop> {
        let held = self.held(pod, container, name, asked)?;
        let resource = self.books.resources.get(name);
        // One that is placed is not refused because its plugin has not come back yet.
        if self.compat == Compat::Ballast
            && held.is_some()
            && !resource.is_some_and(Resource::is_listed)
        {
            return Ok(Ids::new());
        }
        let resource = resource.ok_or_else(|| DeviceError::Unregistered(name.to_owned()))?;
        let healthy = resource.healthy();
        if healthy.is_empty() {
            return Err(DeviceError::NoneHealthy(name.to_owned()).into());
        }
        if let Some(held) = held {
            return match held.is_subset(&healthy) {
                true => Ok(Ids::new()),
                false => Err(DeviceError::HeldUnhealthy(name.to_owned()).into()),
            };
        }
        let mut choice = Choice {
            taken: Ids::new(),
            size: asked,
        };
        if choice.take(&self.reusable(pod, name)) {
            return Ok(choice.taken);
        }
        let available = self.available(name);
        let needed = asked - choice.taken.len();
        if available.len() < needed {
            return Err(Stop::Error(DeviceError::TooFew {
                resource: name.to_owned(),
                asked: needed,
                available: available.len(),
            }));
        }
        let split = self.split(resource, &available, hint);
        // A plugin is asked where there is a choice: among the aligned devices if they are more than
        // enough, else among all for what the aligned ones leave open.
        let among = match needed < split.aligned.len() {
            true => &split.aligned,
            false if choice.take(&split.aligned) => return Ok(choice.taken),
            false => &available,
        };
        let preferred = preferred(resource, name, among, &choice, answers)?;
        choice.take(&(&preferred & among));
        for rest in [&split.aligned, &split.unaligned, &split.anywhere] {
            choice.take(rest);
        }
        Ok(choice.taken)
    }

    /// What the container holds of a resource. That it is as much as it asks for now is all that
    /// is looked at.
    pub(super) fn held(
        &self,
        pod: &Pod,
        container: &Container,
        resource: &str,
        asked: usize,
    ) -> Result<Option<Ids>, DeviceError> {
        let held = self.allocations_of(&pod.uid, &container.name);
        let held = held
            .and_then(|it| it.get(resource))
            .map(DeviceAllocation::device_ids);
        match held {
            Some(held) if held.len() != asked => Err(DeviceError::RequestChanged {
                pod: pod.uid.0.clone(),
                container: container.name.clone(),
                resource: resource.to_owned(),
                held: held.len(),
                asked,
            }),
            held => Ok(held),
        }
    }

    fn split(&self, resource: &Resource, available: &Ids, hint: Hint) -> Split {
        let mut split = Split::default();
        let place = |it| self.place(it).filter(|it| !it.is_empty());
        let has_places = resource.devices.values().any(|it| place(it).is_some());
        let nodes = hint.numa.filter(|_| has_places);
        for id in available {
            let class = match (nodes, resource.devices.get(id).and_then(place)) {
                (Some(nodes), Some(place)) if !place.is_disjoint(nodes) => &mut split.aligned,
                (Some(_), Some(_)) => &mut split.unaligned,
                _ => &mut split.anywhere,
            };
            class.insert(id.clone());
        }
        split
    }

    /// Devices by the NUMA nodes they lie on, as they are stored.
    pub(super) fn by_node(
        &self,
        resource: &str,
        ids: Ids,
    ) -> BTreeMap<Option<NumaNodeId>, BTreeSet<String>> {
        let devices = self.books.resources.get(resource).map(|it| &it.devices);
        let mut by_node: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
        for id in ids {
            let device = devices.and_then(|it| it.get(&id));
            let nodes = device.and_then(|it| it.numa).unwrap_or_default();
            for node in nodes.iter() {
                by_node.entry(Some(node)).or_default().insert(id.clone());
            }
            if nodes.is_empty() {
                by_node.entry(None).or_default().insert(id);
            }
        }
        by_node
    }
}

/// What the plugin would take of `among`; nothing if it does not care.
fn preferred(
    resource: &Resource,
    name: &str,
    among: &Ids,
    choice: &Choice,
    answers: &PluginAnswers,
) -> Result<Ids, Stop> {
    let options = resource.options().unwrap_or_default();
    if !options.has_preferred_allocation {
        return Ok(Ids::new());
    }
    answers.preferred(PluginQuestion::Preferred {
        resource: name.to_owned(),
        available: among | &choice.taken,
        must_include: choice.taken.clone(),
        size: u32::try_from(choice.size).unwrap_or(u32::MAX),
    })
}
