//! Pods that use more local storage than they may (pkg/kubelet/eviction/eviction_manager.go, v1.36:
//! `localStorageEviction`).

use std::time::Duration;

use super::message::storage_message;
use super::{Policy, ends_sooner};
use crate::model::eviction::{
    EvictionCause, PodFacts, PodFigures, PodReading, StorageLimit, Victim,
};
use crate::model::quantity::Quantity;

/// From SIGTERM to SIGKILL, as in kubelet.
const GRACE: Duration = Duration::from_secs(1);

/// Every pod over a limit of its own, in the order of the snapshot. What is not known counts as
/// nothing, so a pod is never over a limit by a missing figure.
pub(super) fn victims(policy: &Policy, pods: &[PodReading]) -> Vec<Victim> {
    pods.iter()
        .filter(|it| !it.facts.is_critical && !ends_sooner(policy, it, GRACE))
        .filter_map(|it| {
            let figures = it.figures.as_ref()?;
            let (which, limit, used) = violation(policy, &it.facts, figures)?;
            Some(Victim {
                pod: it.facts.pod.clone(),
                message: storage_message(&which, limit),
                cause: EvictionCause::LocalStorage { limit: which },
                grace: it.ends_within.map_or(GRACE, |left| left.min(GRACE)),
                expected: Some(used),
            })
        })
        .collect()
}

/// The first limit that the pod is over, and the bytes that are counted for it.
fn violation<'a>(
    policy: &Policy,
    facts: &'a PodFacts,
    figures: &PodFigures,
) -> Option<(StorageLimit, &'a Quantity, u64)> {
    let is_over = |used: u64, limit: &Quantity| Quantity::from_bytes(used) > *limit;
    for volume in &facts.volumes {
        let used = figures.volumes.get(&volume.name).and_then(|it| it.bytes);
        if let (Some(used), Some(limit)) = (used, &volume.size_limit)
            && limit.is_positive()
            && is_over(used, limit)
        {
            let volume = volume.name.clone();
            return Some((StorageLimit::EmptyDir { volume }, limit, used));
        }
    }
    if let (Some(used), Some(limit)) = (figures.storage, &facts.storage_limit)
        && is_over(used, limit)
    {
        return Some((StorageLimit::Pod, limit, used));
    }
    facts.containers.iter().find_map(|it| {
        let limit = it.storage_limit.as_ref().filter(|it| !it.is_zero())?;
        let figures = figures.containers.get(&it.name)?;
        let root_fs = match policy.layout.has_dedicated_image_fs() {
            true => 0,
            false => figures.root_fs.bytes.unwrap_or(0),
        };
        let used = root_fs.saturating_add(figures.logs.bytes.unwrap_or(0));
        let container = it.name.clone();
        is_over(used, limit).then_some((StorageLimit::Container { container }, limit, used))
    })
}
