//! Manifests to pods: which are new, which go, and which stay because nobody can say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use crate::decide::pod_state::{PodState, accepted};
use crate::model::container::{Deletion, DeletionReason};
use crate::model::pod::{Pod, PodUid};
use crate::model::time::WallTime;
use crate::observe::metrics::labels::{Source, SourceFault};
use crate::sources::manifests::{ManifestFault, ManifestScan};
use crate::sys::clock;

/// What the last reading said beside the pods.
#[derive(Debug, Default)]
pub(super) struct ManifestState {
    pub faults: Vec<ManifestFault>,
    /// Each is told once, when it comes, as faults are.
    pub warnings: BTreeSet<String>,
    /// It had every manifest, without a fault.
    pub is_complete: bool,
}

impl Loop {
    /// Reads the manifests and notes what changed.
    ///
    /// A file with a fault keeps the pods of its last good version in the reading. What that was
    /// before this agent started nobody knows, so a pod that only an earlier agent has seen goes
    /// when a reading without any fault lacks it.
    pub(super) fn read_manifests(&mut self) {
        let now = clock::boottime();
        let scan = self.manifests.scan();
        self.tell_findings(&scan);
        self.metrics.source_read(Source::Manifests, now);
        self.decide_undecided(&scan.pods, scan.is_complete, now);
        let mut wanted: BTreeMap<PodUid, Arc<Pod>> = scan.pods;
        let mut going = Vec::new();
        for (uid, entry) in &mut self.pods {
            if wanted.remove(uid).is_some() {
                entry.is_confirmed = true;
            } else if entry.state.deletion.is_none() && (scan.is_complete || entry.is_confirmed) {
                going.push(uid.clone());
            }
        }
        for uid in going {
            self.delete_pod(&uid, now);
        }
        let boot_id = self.boot_id();
        for pod in wanted.into_values() {
            let accepted_at = WallTime::from_epoch(clock::wall());
            let pod = accepted(Pod::clone(&pod), &self.config.kubelet);
            let state = PodState::new(pod, boot_id.clone(), accepted_at);
            if let Some(mut entry) = self.entry_of(state) {
                entry.is_confirmed = true;
                entry.seen_at = Some(now);
                self.told.pod_added(
                    &entry.pod_ref,
                    format!("{} pod from {}", entry.qos, self.manifests.path().display()),
                );
                self.pods.insert(entry.uid().clone(), entry);
            }
        }
        self.manifest_state.is_complete = scan.is_complete;
        self.manifest_state.faults = scan.faults;
    }

    fn delete_pod(&mut self, uid: &PodUid, now: Duration) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let deletion = Deletion {
            requested_at: now,
            grace: entry.state.pod.termination_grace,
            reason: DeletionReason::Removed,
        };
        self.told.pod_deletion(&entry.pod_ref, deletion.grace);
        entry.state.deletion = Some(deletion);
        entry.is_dirty = true;
        entry.is_unsaved = true;
    }

    fn tell_findings(&mut self, scan: &ManifestScan) {
        let texts = |list: &[ManifestFault]| list.iter().map(ToString::to_string).collect();
        let told: BTreeSet<String> = texts(&self.manifest_state.faults);
        let faults: BTreeSet<String> = texts(&scan.faults);
        for fault in faults.difference(&told) {
            self.metrics
                .source_error(Source::Manifests, SourceFault::Parse);
            self.told.manifest_fault(fault.clone());
        }
        let warnings: BTreeSet<String> = texts(&scan.warnings);
        for warning in warnings.difference(&self.manifest_state.warnings) {
            self.told.manifest_warning(warning.clone());
        }
        self.manifest_state.warnings = warnings;
    }
}
