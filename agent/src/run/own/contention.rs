//! Files that another program keeps writing: which writes wait, and how that is shown.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Loop;
use super::pass::Scope;
use super::pods::PodEntry;
use crate::decide::contention::{Held, Hold};
use crate::model::cgroup::{CgroupStep, DesiredCgroup};
use crate::model::cgroup_path::CgroupPath;
use crate::model::time::WallTime;
use crate::sys::clock;

impl Loop {
    /// Takes the writes out of `steps` that are left to another program for now; counts them, and
    /// tells of each dispute once. `wanted`: what this pass looks at.
    pub(super) fn give_way(
        &mut self,
        steps: &mut Vec<CgroupStep>,
        wanted: &[DesiredCgroup],
        scope: Scope,
    ) {
        let now = clock::boottime();
        let looked_at: BTreeSet<&CgroupPath> = wanted.iter().map(|it| &it.path).collect();
        if scope == Scope::All {
            self.contention.settle(&looked_at, now);
        }
        let held = self.contention.hold_back(steps, now);
        for it in &held {
            if it.hold != Hold::Going {
                let at = WallTime::from_epoch(clock::wall());
                self.metrics.yielded(&it.file, at);
            }
            if it.hold == Hold::Begun {
                self.tell_foreign(it, now);
            }
        }
        // What this pass did not look at is as it was; a full one leaves out only what is gone.
        self.unsettled
            .foreign
            .retain(|it| scope != Scope::All && !looked_at.contains(&it.path));
        self.unsettled.foreign.extend(held);
    }

    fn tell_foreign(&self, held: &Held, now: Duration) {
        let owner = self.pods.values().find_map(|entry| {
            held.path.below(&entry.cgroup)?;
            let mut instances = entry.instances.iter();
            let container = instances.find(|(_, it)| it.cgroup == held.path);
            Some((
                &*entry.pod_ref,
                container.map(|(container, _)| container.as_str()),
            ))
        });
        self.told
            .foreign_writer(owner, self.foreign_text(held, now));
    }

    /// One sentence for people.
    pub(super) fn foreign_text(&self, held: &Held, now: Duration) -> String {
        format!(
            "another program keeps writing {} of {}: wanted {}, found {}, left alone for {} s",
            held.file,
            held.path,
            held.wanted,
            held.found,
            held.until.saturating_sub(now).as_secs(),
        )
    }

    /// The first of a pod's files in dispute.
    pub(super) fn foreign_text_of(&self, entry: &PodEntry) -> Option<String> {
        let mut foreign = self.unsettled.foreign.iter();
        let held = foreign.find(|it| it.path.below(&entry.cgroup).is_some())?;
        Some(self.foreign_text(held, clock::boottime()))
    }
}
