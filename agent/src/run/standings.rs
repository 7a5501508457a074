//! Who would be evicted for memory, for the status document.

use std::collections::BTreeSet;

use crate::config::Compat;
use crate::decide::eviction::FsLayout;
use crate::decide::eviction::rank::rank;
use crate::decide::eviction::reclaimable::reclaimable;
use crate::model::eviction::{PodReading, Signal};
use crate::model::pod::PodUid;
use crate::model::status::Standing;

/// First to go first. Critical pods are not in it.
pub(super) fn order(layout: FsLayout, compat: Compat, pods: &[PodReading]) -> Vec<Standing> {
    let ranked = rank(Signal::MemoryAvailable, layout, compat, pods);
    ranked
        .iter()
        .filter(|it| !it.reading.facts.is_critical)
        .map(|it| {
            let facts = &it.reading.facts;
            let figures = it.reading.figures.as_ref();
            let memory = figures.and_then(|it| it.memory.as_ref());
            Standing {
                uid: facts.pod.uid.clone(),
                pod: facts.pod.to_string(),
                priority: facts.priority,
                request_bytes: facts.memory_request.units(),
                working_set_bytes: figures.and_then(|it| it.memory_working_set),
                reclaimable_bytes: memory.map(|it| reclaimable(it, None)),
            }
        })
        .collect()
}

/// Those that are never evicted.
pub(super) fn critical(pods: &[PodReading]) -> BTreeSet<PodUid> {
    let critical = pods.iter().filter(|it| it.facts.is_critical);
    critical.map(|it| it.facts.pod.uid.clone()).collect()
}
