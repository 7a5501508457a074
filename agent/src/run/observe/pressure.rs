//! How far the node is from kubelet's thresholds, as kubelet would measure it, and in which order it would evict pods
//! for memory. Kubelet decides; this shows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Loop;
use super::pods::defined;
use crate::config::{Compat, KubeletConfig};
use crate::decide::eviction::signals::{available_memory, observations};
use crate::decide::eviction::{FsLayout, Policy};
use crate::model::api_pod::Definition;
use crate::model::eviction::{
    MemoryMethod, NodeReading, PodFacts, PodFigures, PodReading, Signal, Threshold,
};
use crate::model::history::NodeSample;
use crate::model::pod::{PodUid, QosClass};
use crate::model::record::PodRef;
use crate::model::status::{PressureStatus, Standing};
use crate::run::signals::{self, is_met};
use crate::run::standings;
use crate::sources::node_reading::NodeReader;
use crate::sys::clock;

/// On the file systems of the runtime.
const IN_RUNTIME: [Signal; 4] = [
    Signal::ImageFsAvailable,
    Signal::ImageFsInodesFree,
    Signal::ContainerFsAvailable,
    Signal::ContainerFsInodesFree,
];

/// See the module.
pub(super) struct Pressure {
    reader: NodeReader,
    thresholds: Vec<Threshold>,
    before: Option<NodeReading>,
    pub status: Option<PressureStatus>,
}

impl Pressure {
    pub(super) fn new(reader: NodeReader, kubelet: &KubeletConfig) -> Self {
        Self {
            reader,
            thresholds: thresholds(kubelet),
            before: None,
            status: None,
        }
    }

    /// Goes by those of another kubelet from now on.
    pub(super) fn set_thresholds(&mut self, kubelet: &KubeletConfig) {
        self.thresholds = thresholds(kubelet);
    }
}

fn thresholds(kubelet: &KubeletConfig) -> Vec<Threshold> {
    let policy = Policy::new(kubelet, FsLayout::One, Compat::Kubelet);
    // Texts with a fault are none in a checked configuration.
    policy.map(|it| it.thresholds).unwrap_or_default()
}

impl Loop {
    /// Reads the node, for the document, the gauges and the records of OOM kills. `figures`: of its pods, as they were
    /// read just before.
    pub(super) fn read_node(&mut self, figures: &BTreeMap<PodUid, PodFigures>) {
        let now = clock::boottime();
        let pods = self.candidates(figures);
        let Some(pressure) = &mut self.pressure else {
            return;
        };
        let mut node = pressure.reader.read(now);
        if node.kubepods_stall.is_none() {
            let reclaim = self.tree.kernel.reclaim_stalls();
            node.kubepods_stall = reclaim.map(|it| it.kubepods());
        }
        self.background.push_node(NodeSample::of(&node));
        let before = pressure.before.replace(node.clone());
        let method = MemoryMethod::WorkingSet;
        let mut observed = observations(&node, before.as_ref(), method, Compat::Kubelet);
        // Where images and writable layers are only the runtime can tell.
        observed.retain(|signal, _| !IN_RUNTIME.contains(signal));
        let thresholds = &pressure.thresholds;
        let met = thresholds.iter().filter(|it| is_met(it, &observed));
        let status = PressureStatus {
            // As of this reading: kubelet keeps a condition for longer.
            conditions: met.map(|it| it.signal.condition()).collect(),
            signals: signals::signals(thresholds, &observed, now, &|it| is_met(it, &observed)),
            memory_method: method,
            memory_available: MemoryMethod::MEASURED
                .into_iter()
                .filter_map(|it| Some((it, available_memory(&node, before.as_ref(), it)?)))
                .collect(),
            stalls: signals::stalls(&node, self.sweeper.class_stalls()),
            order: order(&pods),
            critical: standings::critical(&pods),
            ..PressureStatus::default()
        };
        self.metrics.set_pressure(&status, now);
        pressure.status = Some(status);
    }

    /// Those of which kubelet would choose one, as far as the API server has told what they ask for.
    fn candidates(&self, figures: &BTreeMap<PodUid, PodFigures>) -> Vec<PodReading> {
        let known = self.tree.readings.pods();
        let qos: BTreeMap<&PodUid, QosClass> =
            known.iter().map(|it| (&it.pod.uid, it.qos)).collect();
        let index = self.tree.kernel.index();
        let there = defined(&index.names).filter_map(|(pod, definition)| {
            let uid = &pod.pod.uid;
            let qos = *qos.get(uid)?;
            Some(reading(&pod.pod, definition, qos, figures.get(uid)))
        });
        there.collect()
    }
}

/// With what an order by memory is made of.
fn reading(
    pod: &PodRef,
    definition: &Definition,
    qos: QosClass,
    figures: Option<&PodFigures>,
) -> PodReading {
    let facts = PodFacts {
        qos,
        priority: definition.priority,
        is_critical: definition.is_critical,
        memory_request: definition.memory_request.clone(),
        ..PodFacts::bare(pod.clone())
    };
    PodReading {
        facts: Arc::new(facts),
        figures: figures.cloned(),
        ends_within: None,
    }
}

/// Without those that were not read: kubelet may have read them, and puts whom it has not read first.
fn order(pods: &[PodReading]) -> Vec<Standing> {
    let mut order = standings::order(FsLayout::One, Compat::Kubelet, pods);
    order.retain(|it| it.working_set_bytes.is_some());
    order
}

#[cfg(test)]
mod tests;
