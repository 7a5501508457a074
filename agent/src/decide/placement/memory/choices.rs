//! Where memory could be taken from: the hints (pkg/kubelet/cm/memorymanager/policy_static.go, v1.36:
//! `calculateHints`), and what our own decisions rest on.

use std::collections::BTreeSet;

use super::requests::Amounts;
use super::{Ask, MemoryManager, books, search};
use crate::config::Compat;
use crate::decide::placement::hints::{
    Choices, Hints, Preference, ProviderHints, Region, least_len,
};
use crate::model::numa::{Hint, NumaMask};
use crate::model::placement::{MemoryBlock, MemoryTable};
use crate::model::pod::{Container, Pod};

/// Kubelet's topology manager starts on no more NUMA nodes, unless told so.
const MAX_TRIED: u32 = 8;

impl MemoryManager {
    /// Where the container could go, for each type of memory it requests. `None`: it does not matter.
    /// Kubelet says that by naming no type, too, and means that there is not enough anywhere.
    pub fn hints(&self, pod: &Pod, container: &Container) -> Option<ProviderHints> {
        if !self.requests.is_managed(pod) {
            return None;
        }
        // An amount that cannot be read is told by `allocate`.
        let amounts = self.requests.of_container(pod, container).ok()?;
        if let Some(blocks) = self.blocks_of(&pod.uid, &container.name) {
            return self.hints_of_held(blocks, &amounts);
        }
        if self.is_over(pod, container) {
            return None;
        }
        let ask = Ask {
            pod,
            container: Some(container),
            amounts,
        };
        match (ask.amounts.is_empty(), self.compat) {
            (true, Compat::Ballast) => None,
            _ => Some(self.described(&ask)),
        }
    }

    /// As [`hints`](Self::hints), for all containers of the pod together.
    pub fn pod_hints(&self, pod: &Pod) -> Option<ProviderHints> {
        if !self.requests.is_managed(pod) {
            return None;
        }
        let amounts = self.requests.of_pod(pod).ok()?;
        if amounts.is_empty() {
            return None;
        }
        if self.requests.is_pod_level(pod) && self.requests.check_pod_level(pod, &amounts).is_err()
        {
            return Some(named(&amounts, &Hints::none()));
        }
        let mut held = pod
            .all_containers()
            .filter_map(|it| self.blocks_of(&pod.uid, &it.name));
        match (held.next(), self.compat) {
            (Some(first), Compat::Kubelet) => self.hints_of_held(first, &amounts),
            (Some(first), Compat::Ballast) => {
                let all: Vec<MemoryBlock> = held.chain([first]).flatten().cloned().collect();
                self.hints_of_held(&all, &amounts)
            }
            (None, _) => Some(self.described(&Ask {
                pod,
                container: None,
                amounts,
            })),
        }
    }

    /// The best of our own choices that has all these nodes, and whether it is preferred.
    pub(super) fn best(&self, ask: &Ask<'_>, contains: NumaMask) -> Option<(NumaMask, bool)> {
        // Nothing can be had anywhere, but to kubelet that is no choice.
        let choices = (!ask.amounts.is_empty()).then(|| self.choices(ask))?;
        search::best(&choices, contains)
    }

    /// Whether what is free on the nodes is enough.
    pub(super) fn is_enough(&self, mask: NumaMask, ask: &Ask<'_>) -> bool {
        ask.amounts.iter().all(|(resource, amount)| {
            let again = match self.compat {
                Compat::Kubelet => 0,
                Compat::Ballast => self.reusable(ask, mask, resource),
            };
            self.add(self.sum(mask, resource, |it| it.free), again) >= *amount
        })
    }

    /// Single nodes must not be in a group; of more nodes each must be in this very group or unused.
    pub(super) fn respects_groups(&self, mask: NumaMask) -> bool {
        mask.iter().all(|id| {
            let Some(node) = self.state.nodes.get(&id) else {
                return false;
            };
            match mask.len() {
                1 => node.group.len() <= 1,
                _ => node.n_assignments == 0 || books::group(node) == Some(mask),
            }
        })
    }

    /// What the container can have again of what ordinary init containers before it hold on exactly
    /// these nodes: they have ended when it starts.
    pub(super) fn reusable(&self, ask: &Ask<'_>, mask: NumaMask, resource: &str) -> u64 {
        if self.compat == Compat::Kubelet {
            return self.reuse.get(&ask.pod.uid, mask, resource);
        }
        let (Some(container), Some(held)) =
            (ask.container, self.state.containers.get(&ask.pod.uid))
        else {
            return 0;
        };
        let earlier = ask.pod.init_containers.iter();
        earlier
            .take_while(|it| it.name != container.name)
            .filter(|it| !it.is_sidecar)
            .filter_map(|it| held.get(&it.name))
            .flatten()
            .filter(|it| it.numa == mask && it.resource == resource)
            .fold(0, |sum, it| sum.saturating_add(it.size))
    }

    fn described(&self, ask: &Ask<'_>) -> ProviderHints {
        let choices = self.choices(ask);
        let is_possible = !choices.listed.is_empty() || choices.region.is_some();
        match (is_possible, self.compat) {
            (false, Compat::Kubelet) => ProviderHints::new(),
            _ => named(&ask.amounts, &Hints::OneOf(choices)),
        }
    }

    /// What is held already is where it can be.
    fn hints_of_held(&self, held: &[MemoryBlock], amounts: &Amounts) -> Option<ProviderHints> {
        let is_same = held.len() == amounts.len()
            && held
                .iter()
                .all(|it| amounts.get(&it.resource) == Some(&it.size));
        // Blocks of init containers shrink, and those of a container are not those of its pod.
        if self.compat == Compat::Kubelet && !is_same {
            return None;
        }
        let mask = books::mask_of(held);
        if mask.is_empty() {
            return is_same.then(ProviderHints::new);
        }
        let hint = Hint {
            numa: Some(mask),
            preferred: true,
        };
        let choices = Choices {
            listed: vec![hint],
            region: None,
        };
        Some(named(amounts, &Hints::OneOf(choices)))
    }

    /// The masks that would do: single nodes, existing groups, nodes with memory to be used again,
    /// and the subsets of the nodes that nobody holds anything of. All types have the same.
    fn choices(&self, ask: &Ask<'_>) -> Choices {
        let all = books::mask(&self.fresh, |_| true);
        let nodes = &self.state.nodes;
        let mut tables = nodes.values().flat_map(|it| it.tables.values());
        if tables.any(|it| it.allocatable > it.total) && all.len() <= MAX_TRIED {
            return self.tried_choices(ask, all);
        }
        let demands =
            |amount: fn(&MemoryTable) -> u64| books::demands(nodes, all, &ask.amounts, amount);
        let least = least_len(all, &demands(|it| it.allocatable)).unwrap_or(all.len());
        let unused = books::mask(nodes, |it| it.n_assignments == 0);

        let singles = nodes.keys().filter_map(|id| NumaMask::new([*id]).ok());
        let groups = nodes.values().filter_map(books::group);
        let again = self.reuse.masks(&ask.pod.uid);
        let candidates: BTreeSet<NumaMask> = singles.chain(groups).chain(again).collect();
        let hint = |mask: NumaMask| Hint {
            numa: Some(mask),
            preferred: mask.len() == least,
        };
        let region = Region {
            nodes: unused,
            min_len: 2,
            contains: NumaMask::EMPTY,
            touches: Vec::new(),
            demands: demands(|it| it.free),
            preferred: Preference::Len(least),
        };
        Choices {
            listed: candidates
                .into_iter()
                .filter(|it| self.has_room(*it, ask))
                .map(hint)
                .collect(),
            // A subset of nodes has no more than all of them.
            region: Some(region).filter(|it| it.has(unused)),
        }
    }

    /// Kubelet's choices where a table has wrapped around: more nodes can have less, so that each
    /// mask has to be tried.
    fn tried_choices(&self, ask: &Ask<'_>, all: NumaMask) -> Choices {
        let any = Region {
            nodes: all,
            min_len: 1,
            contains: NumaMask::EMPTY,
            touches: Vec::new(),
            demands: Vec::new(),
            preferred: Preference::Len(0),
        };
        let every = Choices {
            listed: Vec::new(),
            region: Some(any),
        };
        let every = Hints::OneOf(every).list().unwrap_or_default();
        let masks = || every.iter().filter_map(|it| it.numa);
        let is_enough = |mask: &NumaMask| {
            let mut amounts = ask.amounts.iter();
            amounts.all(|(resource, it)| self.sum(*mask, resource, |it| it.allocatable) >= *it)
        };
        let least = masks().filter(is_enough).map(NumaMask::len).min();
        let hint = |mask: NumaMask| Hint {
            numa: Some(mask),
            preferred: mask.len() == least.unwrap_or(all.len()),
        };
        Choices {
            listed: masks()
                .filter(|it| self.has_room(*it, ask))
                .map(hint)
                .collect(),
            region: None,
        }
    }

    fn has_room(&self, mask: NumaMask, ask: &Ask<'_>) -> bool {
        self.respects_groups(mask)
            && ask.amounts.iter().all(|(resource, amount)| {
                let free = self.sum(mask, resource, |it| it.free);
                let again = self.reusable(ask, mask, resource);
                self.sum(mask, resource, |it| it.allocatable) >= *amount
                    && self.add(free, again) >= *amount
            })
    }

    fn sum(&self, mask: NumaMask, resource: &str, amount: fn(&MemoryTable) -> u64) -> u64 {
        mask.iter()
            .filter_map(|it| self.state.nodes.get(&it)?.tables.get(resource))
            .fold(0, |sum, it| self.add(sum, amount(it)))
    }

    /// Kubelet's tables wrap around where more is reserved than there is; its sums wrap back.
    fn add(&self, a: u64, b: u64) -> u64 {
        match self.compat {
            Compat::Kubelet => a.wrapping_add(b),
            Compat::Ballast => a.saturating_add(b),
        }
    }
}

/// The same for every type.
fn named(amounts: &Amounts, hints: &Hints) -> ProviderHints {
    let types = amounts.keys();
    types.map(|it| (it.clone(), hints.clone())).collect()
}
