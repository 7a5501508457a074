//! Pods with a budget of their own (`spec.resources`; feature gate `PodLevelResourceManagers`): one
//! amount is taken for the pod, and the containers have shares in it.

use std::collections::BTreeMap;

use super::books;
use super::errors::MemoryError;
use super::requests::Amounts;
use super::{Ask, MemoryManager};
use crate::config::Compat;
use crate::model::numa::{Hint, NumaMask};
use crate::model::placement::MemoryBlock;
use crate::model::pod::Pod;

impl MemoryManager {
    /// Takes the budget of the pod where the hint says, as [`allocate`](Self::allocate) does for a
    /// container, and gives each container its share. A pod that has its memory keeps it; kubelet
    /// charges it again. On an error nothing changes.
    pub fn allocate_pod(&mut self, pod: &Pod, hint: Hint) -> Result<(), MemoryError> {
        if !self.requests.is_managed(pod)
            || self.compat == Compat::Ballast && self.state.pods.contains_key(&pod.uid)
        {
            return Ok(());
        }
        // Kubelet admits a pod whose budget it cannot read, without memory of its own.
        let Ok(budget) = self.requests.of_pod(pod) else {
            return Ok(());
        };
        self.requests.check_pod_level(pod, &budget)?;
        let ask = Ask {
            pod,
            container: None,
            amounts: budget,
        };
        let mask = self.place(&ask, hint)?;
        let shares = self.shares(pod, mask, &ask.amounts)?;
        let whole = books::blocks(mask, &ask.amounts);
        let nodes = match self.compat {
            Compat::Kubelet => {
                let mut nodes = self.state.nodes.clone();
                for block in &whole {
                    books::charge(&mut nodes, mask, &block.resource, block.size);
                }
                nodes
            }
            Compat::Ballast => {
                self.rebuilt_with(books::held_of_pod(&pod.uid, Some(&whole), &shares))?
            }
        };
        self.state.nodes = nodes;
        self.state.pods.insert(pod.uid.clone(), whole);
        self.state.containers.insert(pod.uid.clone(), shares);
        Ok(())
    }

    /// What each container may use: its own requests; ordinary init containers without any have all
    /// but the sidecars' part; the others without any have what is left in the end.
    fn shares(
        &self,
        pod: &Pod,
        mask: NumaMask,
        budget: &Amounts,
    ) -> Result<BTreeMap<String, Vec<MemoryBlock>>, MemoryError> {
        let blocks = |amounts: &Amounts| {
            let mut blocks = books::blocks(mask, amounts);
            blocks.retain(|it| it.size > 0);
            blocks
        };
        let mut shares = BTreeMap::new();
        let mut left = budget.clone();
        for container in &pod.init_containers {
            let own = self.requests.of_container(pod, container)?;
            match (container.is_sidecar, own.is_empty()) {
                (true, true) => continue,
                (false, true) => shares.insert(container.name.clone(), blocks(&left)),
                (_, false) => shares.insert(container.name.clone(), blocks(&own)),
            };
            if container.is_sidecar {
                for (resource, left) in &mut left {
                    let taken = own.get(resource).copied().unwrap_or(0);
                    *left = self.minus(*left, taken);
                }
            }
        }
        for container in &pod.containers {
            let own = self.requests.of_container(pod, container)?;
            if own.is_empty() {
                continue;
            }
            shares.insert(container.name.clone(), blocks(&own));
            for (resource, taken) in own.into_iter().filter(|(_, it)| *it > 0) {
                let left = left.entry(resource).or_default();
                *left = self.minus(*left, taken);
            }
        }
        let rest = blocks(&left);
        for container in pod.all_containers() {
            shares
                .entry(container.name.clone())
                .or_insert_with(|| rest.clone());
        }
        Ok(shares)
    }

    /// Kubelet's remainder wraps around where containers request more than their pod.
    fn minus(&self, from: u64, amount: u64) -> u64 {
        match self.compat {
            Compat::Kubelet => from.wrapping_sub(amount),
            Compat::Ballast => from.saturating_sub(amount),
        }
    }
}
