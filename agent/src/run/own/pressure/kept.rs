//! What of the state of eviction outlives the agent: what the node was short of, and the evictions that the brakes
//! count. Without it each restart would let pods in that the next pass has go, and begin the count anew.
//!
//! It is written before anybody goes, without a sync: it survives the agent, and of another boot that a disk was short
//! alone means anything. A disk that does not answer or is full holds up no eviction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::apply::checkpoint;
use crate::decide::eviction::State;
use crate::decide::eviction::brake::Brakes;
use crate::model::eviction::NodeCondition;
use crate::sources::checkpoint::{self as stored, CheckpointError};
use crate::sys::patience::Patience;

/// In the state directory.
const FILE: &str = "eviction-state.json";
const KIND: &str = "eviction-state";
const VERSION: u32 = 1;

/// When conditions were last seen moves with each pass: it is written this often.
const AGES_EVERY: Duration = Duration::from_secs(10);

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    boot_id: String,
    condition_seen: BTreeMap<NodeCondition, Duration>,
    /// Versions that had one for memory alone called it so.
    #[serde(default, alias = "brake")]
    brakes: Brakes,
}

impl Saved {
    /// The state before the first pass of an agent that starts `now`.
    fn state(&self, boot_id: &str, now: Duration) -> State {
        let is_of_this_boot = self.boot_id == boot_id;
        let seen = |it: &Duration| if is_of_this_boot { *it } else { now };
        let mut state = State::new();
        let conditions = self.conditions(boot_id);
        state.condition_seen = conditions.map(|(it, at)| (*it, seen(at))).collect();
        if is_of_this_boot {
            state.brakes.continued(&self.brakes);
        }
        state
    }

    /// What the node may still be short of: a boot gives memory and process ids back, and no disk.
    fn conditions(&self, boot_id: &str) -> impl Iterator<Item = (&NodeCondition, &Duration)> {
        let is_of_this_boot = self.boot_id == boot_id;
        let conditions = self.condition_seen.iter();
        conditions.filter(move |(it, _)| is_of_this_boot || **it == NodeCondition::DiskPressure)
    }

    /// It would decide otherwise.
    fn differs(&self, other: &Self) -> bool {
        !self.condition_seen.keys().eq(other.condition_seen.keys())
            || !self.brakes.evictions().eq(other.brakes.evictions())
    }
}

/// Keeps the file.
#[derive(Debug)]
pub(in crate::run) struct KeptState {
    path: PathBuf,
    patience: Patience,
    saved: Saved,
    saved_at: Duration,
    boot_id: String,
    is_failing: bool,
}

impl KeptState {
    /// What an earlier agent has left, if anything. What is damaged, or of another version, is set aside: this agent writes
    /// its own in its place.
    pub(in crate::run) fn open(state: &Path, boot_id: String, patience: Patience) -> Self {
        let path = state.join(FILE);
        let saved = match stored::read::<Saved>(&path, KIND, VERSION) {
            Ok(saved) => saved,
            Err(CheckpointError::File(error)) if error.is_gone() => Saved::default(),
            Err(error) => {
                let is_set_aside =
                    error.is_damage() || matches!(error, CheckpointError::Unusable { .. });
                let error = crate::observe::chain(&error);
                tracing::error!(error, "evictions of an earlier agent are not known");
                if is_set_aside && let Err(error) = checkpoint::set_aside(&path) {
                    tracing::warn!(error = crate::observe::chain(&error), "set aside");
                }
                Saved::default()
            }
        };
        Self {
            path,
            patience,
            saved,
            saved_at: Duration::ZERO,
            boot_id,
            is_failing: false,
        }
    }

    /// The state before the first pass.
    pub(super) fn state(&self, now: Duration) -> State {
        self.saved.state(&self.boot_id, now)
    }

    /// What the node was short of.
    pub(in crate::run) fn conditions(&self) -> BTreeSet<NodeCondition> {
        let conditions = self.saved.conditions(&self.boot_id);
        conditions.map(|(it, _)| *it).collect()
    }

    /// Writes what is new of it.
    pub(super) fn keep(&mut self, state: &State, now: Duration) {
        let new = Saved {
            boot_id: self.boot_id.clone(),
            condition_seen: state.condition_seen.clone(),
            brakes: state.brakes.clone(),
        };
        let is_aging = !new.condition_seen.is_empty() && now >= self.saved_at + AGES_EVERY;
        if !new.differs(&self.saved) && !is_aging {
            return;
        }
        let (path, written) = (self.path.clone(), new.clone());
        let result = self
            .patience
            .ask(move |_asker| checkpoint::replace(&path, KIND, VERSION, &written));
        let why = match result {
            Some(Ok(())) => {
                self.saved = new;
                self.saved_at = now;
                self.is_failing = false;
                return;
            }
            Some(Err(error)) => crate::observe::chain(&error),
            None => "the disk does not answer".to_owned(),
        };
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(error = why, "store the state of eviction");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::model::sealed;
    use crate::sys::Root;
    use crate::sys::scratch::Scratch;

    /// As versions wrote it that had a brake for memory alone.
    fn saved() -> Saved {
        let kill = json!({
            "pod": "a", "at": {"secs": 100, "nanos": 0}, "gives": 1,
            "before": {"pods": 0, "outside": 0}, "isInVain": true,
        });
        let saved = json!({
            "bootId": "this",
            "conditionSeen": {"MemoryPressure": {"secs": 100, "nanos": 0}},
            "brake": {"calm": null, "asked": null, "kills": [kill]},
        });
        serde_json::from_value(saved).expect("an older file")
    }

    #[test]
    fn evictions_and_conditions_go_on_in_the_same_boot_and_that_of_a_disk_in_any() {
        let now = Duration::from_secs(200);
        let (mut saved, disk) = (saved(), NodeCondition::DiskPressure);
        let (seen, pids) = (Duration::from_secs(150), NodeCondition::PIDPressure);
        saved.condition_seen.extend([(disk, seen), (pids, seen)]);
        let same = saved.state("this", now);
        assert_eq!(same.condition_seen, saved.condition_seen);
        let kills = |state: &State| -> Vec<usize> {
            let evictions = state.brakes.evictions();
            evictions.map(|(_, kills)| kills.len()).collect()
        };
        let brakes = Brakes::new().evictions().count();
        let of_memory = [vec![1], vec![0; brakes - 1]].concat();
        assert_eq!(kills(&same), of_memory);
        assert!(!same.has_passed);
        let other = saved.state("other", now);
        assert_eq!(other.condition_seen, [(disk, now)].into());
        assert_eq!(other.brakes, Brakes::new());
        assert_eq!(Saved::default().state("this", now), State::new());
    }

    #[test]
    fn it_reads_back_as_it_was_written() {
        let mut saved = saved();
        let written = serde_json::to_value(&saved).expect("it can be written");
        assert_eq!(
            serde_json::from_value::<Saved>(written).ok(),
            Some(saved.clone())
        );
        saved.brakes.continued(&Brakes::new());
        let written = serde_json::to_value(&saved).expect("it can be written");
        assert_eq!(serde_json::from_value::<Saved>(written).ok(), Some(saved));
    }

    #[test]
    fn what_another_version_has_kept_is_not_written_over() {
        let state = Scratch::new("kept");
        let later = sealed::seal(KIND, VERSION + 1, &saved());
        state.write(FILE, later);
        let patience = Patience::start(Duration::from_secs(60)).expect("a thread");
        let kept = KeptState::open(state.directory(), "this".to_owned(), patience);
        assert_eq!(kept.saved, Saved::default());
        let names = Root::host()
            .list(state.directory())
            .expect("it can be listed");
        assert_eq!(names, [format!("{FILE}.corrupt")]);
    }

    #[test]
    fn ages_alone_are_no_news() {
        let older = saved();
        let mut newer = older.clone();
        for at in newer.condition_seen.values_mut() {
            *at += Duration::from_secs(1);
        }
        assert!(!newer.differs(&older));
        newer.condition_seen.clear();
        assert!(newer.differs(&older));
        let mut fewer = older.clone();
        fewer.brakes = Brakes::new();
        assert!(fewer.differs(&older));
    }
}
