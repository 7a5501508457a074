//! What of the state of eviction outlives the agent: what the node was short of, and the evictions that the brake
//! counts. Without it each restart would let pods in that the next pass has go, and begin the count anew.
//!
//! It is written before anybody goes, without a sync: it survives the agent, and of another boot the conditions
//! alone mean anything. A disk that does not answer or is full holds up no eviction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::apply::checkpoint;
use crate::decide::eviction::State;
use crate::decide::eviction::brake::{Brake, Kill};
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
    brake: Option<Brake>,
}

impl Saved {
    /// The state before the first pass of an agent that starts `now`.
    fn state(&self, boot_id: &str, now: Duration) -> State {
        let is_of_this_boot = self.boot_id == boot_id;
        let seen = |it: &Duration| if is_of_this_boot { *it } else { now };
        let mut state = State::new();
        let conditions = self.condition_seen.iter();
        state.condition_seen = conditions.map(|(it, at)| (*it, seen(at))).collect();
        if self.brake.is_some() && is_of_this_boot {
            state.brake.clone_from(&self.brake);
        }
        state
    }

    /// It would decide otherwise.
    fn differs(&self, other: &Self) -> bool {
        fn evictions(of: &Saved) -> Option<(&Option<Kill>, &[Kill])> {
            let brake = of.brake.as_ref();
            brake.map(|it| (&it.asked, it.kills.as_slice()))
        }
        !self.condition_seen.keys().eq(other.condition_seen.keys())
            || evictions(self) != evictions(other)
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
    /// What an earlier agent has left, if anything. What cannot be used is set aside.
    pub(in crate::run) fn open(state: &Path, boot_id: String, patience: Patience) -> Self {
        let path = state.join(FILE);
        let saved = match stored::read::<Saved>(&path, KIND, VERSION) {
            Ok(saved) => saved,
            Err(CheckpointError::File(error)) if error.is_gone() => Saved::default(),
            Err(error) => {
                let error = crate::observe::chain(&error);
                tracing::error!(error, "evictions of an earlier agent are not known");
                if let Err(error) = checkpoint::set_aside(&path) {
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
        self.saved.condition_seen.keys().copied().collect()
    }

    /// Writes what is new of it.
    pub(super) fn keep(&mut self, state: &State, now: Duration) {
        let new = Saved {
            boot_id: self.boot_id.clone(),
            condition_seen: state.condition_seen.clone(),
            brake: state.brake.clone(),
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
    use super::*;
    use crate::decide::eviction::brake::Split;
    use crate::model::pod::PodUid;

    fn saved() -> Saved {
        let at = Duration::from_secs(100);
        let brake = Brake {
            kills: vec![Kill {
                pod: PodUid("a".to_owned()),
                at,
                gives: 1,
                before: Split::default(),
                is_in_vain: true,
            }],
            ..Brake::default()
        };
        Saved {
            boot_id: "this".to_owned(),
            condition_seen: [(NodeCondition::MemoryPressure, at)].into(),
            brake: Some(brake),
        }
    }

    #[test]
    fn evictions_count_on_in_the_same_boot_and_conditions_in_any() {
        let now = Duration::from_secs(200);
        let (saved, seen) = (saved(), NodeCondition::MemoryPressure);
        let same = saved.state("this", now);
        assert_eq!(same.condition_seen, saved.condition_seen);
        assert_eq!(same.brake, saved.brake);
        assert!(!same.has_passed);
        let other = saved.state("other", now);
        assert_eq!(other.condition_seen, [(seen, now)].into());
        assert_eq!(other.brake, Some(Brake::default()));
        assert_eq!(Saved::default().state("this", now), State::new());
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
        fewer.brake = Some(Brake::default());
        assert!(fewer.differs(&older));
    }
}
