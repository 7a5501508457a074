//! What a start handles, noted before it is: what an agent died of in two starts in a row is left aside
//! by the third, so that one manifest never keeps the node without an agent.
//!
//! Notes are written until the first pass is over. What is left aside stays so for this version of the
//! agent, until the manifest changes: it is known by its content.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::Loop;
use super::pods::StatePaths;
use super::start::short_hash;
use crate::apply::checkpoint;
use crate::model::pod::{Pod, PodUid};
use crate::run::told::Told;
use crate::sources::checkpoint::{self as stored, CheckpointError};
use crate::sources::manifests::Witness;
use crate::sys::note::Note;

/// Why something is left aside.
pub(super) const WHY: &str = "the agent died of it at two starts in a row: it is left aside until it \
                              changes, or another version of the agent comes";

/// What is left aside, in the state directory.
const FILE: &str = "set-aside.json";
const KIND: &str = "set-aside";
const VERSION: u32 = 1;

/// What is left aside, on disk.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Aside {
    agent_version: String,
    things: BTreeSet<String>,
}

/// The note of a start.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Handled {
    /// What is being handled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    now: Option<String>,
    /// What the agent before died of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    died_of: Option<String>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Beginning(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// `None`: the start is over, or nothing can be noted.
    note: Option<Note>,
    handled: Handled,
    aside: BTreeSet<String>,
}

impl Beginning {
    /// Reads what the agents before left.
    pub(super) fn of(paths: &StatePaths, told: &Told) -> Self {
        let file = paths.0.join(FILE);
        let mut aside = aside(&file);
        let mut state = State::default();
        match Note::open(&paths.0.join("start")) {
            Ok((note, text)) => {
                state.note = Some(note);
                // Words that cannot be read are of a machine that went down.
                let before: Handled = serde_json::from_str(&text).unwrap_or_default();
                match before.now {
                    Some(thing) if before.died_of.as_ref() == Some(&thing) => {
                        told.node("SetAside", format!("{thing}: {WHY}"));
                        aside.things.insert(thing);
                        if let Err(error) = checkpoint::write(&file, KIND, VERSION, &aside) {
                            tracing::warn!(error = crate::observe::chain(&error), "set aside");
                        }
                    }
                    died_of => state.handled.died_of = died_of,
                }
            }
            Err(error) => tracing::warn!(
                error = crate::observe::chain(&error),
                "what this start handles cannot be noted"
            ),
        }
        state.aside = aside.things;
        state.put();
        Self(Mutex::new(state))
    }

    /// For who begins nothing: leaves the same aside, and notes nothing.
    pub(super) fn of_nobody(paths: &StatePaths) -> Self {
        Self(Mutex::new(State {
            aside: aside(&paths.0.join(FILE)).things,
            ..State::default()
        }))
    }

    /// The first pass is made.
    pub(super) fn is_over(&self) {
        let mut state = self.lock();
        state.handled = Handled::default();
        state.put();
        state.note = None;
    }

    /// The start is not over, or something is left aside.
    fn is_asked(&self) -> bool {
        let state = self.lock();
        state.note.is_some() || !state.aside.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Witness for Beginning {
    fn begins(&self, thing: &str) -> bool {
        let mut state = self.lock();
        if state.aside.contains(thing) {
            return false;
        }
        if state.note.is_some() {
            state.handled.now = Some(thing.to_owned());
            state.put();
        }
        true
    }

    fn ends(&self) {
        let mut state = self.lock();
        if state.handled.now.take().is_some() {
            state.put();
        }
    }
}

impl State {
    fn put(&self) {
        let Some(note) = &self.note else { return };
        let text = serde_json::to_string(&self.handled).expect("two strings");
        if let Err(error) = note.put(&text) {
            tracing::debug!(error = crate::observe::chain(&error), "the note of a start");
        }
    }
}

/// Of another version of the agent nothing is left aside: it may be mended.
fn aside(file: &Path) -> Aside {
    let own = env!("CARGO_PKG_VERSION");
    let before = match stored::read::<Aside>(file, KIND, VERSION) {
        Ok(aside) => aside,
        Err(CheckpointError::File(error)) if error.is_gone() => Aside::default(),
        Err(error) => {
            tracing::warn!(error = crate::observe::chain(&error), "what was set aside");
            Aside::default()
        }
    };
    match before.agent_version == own {
        true => before,
        false => Aside {
            agent_version: own.to_owned(),
            things: BTreeSet::new(),
        },
    }
}

/// A pod by its content: one that is edited may keep its uid.
fn thing(pod: &Pod) -> String {
    let json = serde_json::to_vec(pod).expect("plain data");
    format!("pod {} {}", pod.uid, short_hash(&json))
}

impl Loop {
    /// Whether a pod may be handled: noted first, and to be followed by [`Witness::ends`]. One that is
    /// left aside waits, and what of it runs goes on, until it is to go.
    pub(super) fn begins(&mut self, uid: &PodUid) -> bool {
        let Some(entry) = self.pods.get_mut(uid) else {
            return true;
        };
        let may_begin =
            !self.beginning.is_asked() || self.beginning.begins(&thing(&entry.state.pod));
        if may_begin {
            entry.aside = None;
        }
        if may_begin || entry.state.ending().is_some() {
            return true;
        }
        entry.is_dirty = false;
        self.told
            .waits(&entry.pod_ref, &mut entry.aside, WHY.to_owned());
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event_log::EventLog;
    use crate::sys::scratch::Scratch;

    /// An agent that dies before it has done `things`, the last of which it dies of.
    fn die_of(paths: &StatePaths, things: &[&str]) {
        let beginning = Beginning::of(paths, &Told::new(EventLog::new(10, 0)));
        for (i, thing) in things.iter().enumerate() {
            assert!(beginning.begins(thing), "{thing}");
            if i + 1 < things.len() {
                beginning.ends();
            }
        }
    }

    #[test]
    fn what_two_starts_in_a_row_died_of_is_left_aside_by_the_third() {
        let scratch = Scratch::new("beginning");
        let paths = StatePaths(scratch.directory().to_owned());
        let begin = || Beginning::of(&paths, &Told::new(EventLog::new(10, 0)));
        die_of(&paths, &["a", "b"]);
        die_of(&paths, &["a", "c"]);
        die_of(&paths, &["a", "b"]);
        let fourth = begin();
        assert!(fourth.begins("b"), "not in a row");
        fourth.is_over();
        die_of(&paths, &["b"]);
        begin().is_over();
        die_of(&paths, &["b"]);
        assert!(begin().begins("a"), "a start without a death between them");
        die_of(&paths, &["a", "b"]);
        die_of(&paths, &["b"]);
        for _ in 0..2 {
            let third = begin();
            assert!(!third.begins("b"));
            assert!(third.begins("a"));
            third.ends();
            third.is_over();
            assert!(!third.begins("b"));
        }
        for _ in 0..2 {
            let nobody = Beginning::of_nobody(&paths);
            assert!(!nobody.begins("b") && nobody.begins("a"));
        }
        assert!(begin().begins("a"), "it was noted");
    }
}
