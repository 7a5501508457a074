//! Lifecycle events from two looks at the runtime (kubelet's generic PLEG:
//! pkg/kubelet/pleg/generic.go, v1.36). Pinned by suite `pleg_events`.
//!
//! A sandbox counts as a container. The state between looks is a value: see [`PodRecord`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::pod::PodUid;

/// What the runtime says about a container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuntimeState {
    Created,
    Running,
    Exited,
    Unknown,
}

/// The same for the table of events, where absence is a state as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PlegState {
    Running,
    Exited,
    /// Created and not yet started, or not known to the runtime itself.
    Unknown,
    NonExistent,
}

impl From<RuntimeState> for PlegState {
    fn from(state: RuntimeState) -> Self {
        match state {
            RuntimeState::Running => Self::Running,
            RuntimeState::Exited => Self::Exited,
            RuntimeState::Created | RuntimeState::Unknown => Self::Unknown,
        }
    }
}

/// What happened to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PlegEvent {
    ContainerStarted,
    ContainerDied,
    ContainerRemoved,
    /// Into the unknown: worth no one's while, see [`is_delivered`](Self::is_delivered).
    ContainerChanged,
}

impl PlegEvent {
    /// Whether anyone is told.
    pub fn is_delivered(self) -> bool {
        self != Self::ContainerChanged
    }

    /// Whether the pod is to be looked at for it.
    pub fn needs_sync(self) -> bool {
        matches!(self, Self::ContainerStarted | Self::ContainerDied)
    }
}

/// The events of one change of state, in order.
pub fn transition(old: PlegState, new: PlegState) -> &'static [PlegEvent] {
    use PlegEvent::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
    use PlegState::{Exited, NonExistent, Running, Unknown};
    match (old, new) {
        (Running, Running) | (Exited, Exited) => &[],
        (Unknown, Unknown) | (NonExistent, NonExistent) => &[],
        (_, Running) => &[ContainerStarted],
        (_, Exited) => &[ContainerDied],
        (_, Unknown) => &[ContainerChanged],
        // It was seen to die before.
        (Exited, NonExistent) => &[ContainerRemoved],
        (_, NonExistent) => &[ContainerDied, ContainerRemoved],
    }
}

/// Containers and sandboxes of one pod, by id.
pub type PodRecord = BTreeMap<String, RuntimeState>;
/// All pods of one look at the runtime.
pub type Relist = BTreeMap<PodUid, PodRecord>;

/// Delivered events of one pod between two looks, by container id, in order for each. An absent pod
/// is an empty record.
pub fn pod_events(old: &PodRecord, new: &PodRecord) -> BTreeMap<String, Vec<PlegEvent>> {
    let state = |record: &PodRecord, id: &str| {
        record
            .get(id)
            .map_or(PlegState::NonExistent, |it| PlegState::from(*it))
    };
    let mut events = BTreeMap::new();
    for id in old.keys().chain(new.keys()) {
        let of_one: Vec<PlegEvent> = transition(state(old, id), state(new, id))
            .iter()
            .copied()
            .filter(|it| it.is_delivered())
            .collect();
        if !of_one.is_empty() {
            events.insert(id.clone(), of_one);
        }
    }
    events
}

/// [`pod_events`] of every pod that has any. A pod whose new state could not be read keeps its old
/// record in `new`, so that the difference shows again next time.
pub fn relist_events(
    old: &Relist,
    new: &Relist,
) -> BTreeMap<PodUid, BTreeMap<String, Vec<PlegEvent>>> {
    let nothing = PodRecord::new();
    old.keys()
        .chain(new.keys())
        .map(|uid| {
            let record = |list: &Relist| list.get(uid).unwrap_or(&nothing).clone();
            (uid.clone(), pod_events(&record(old), &record(new)))
        })
        .filter(|(_, events)| !events.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_state_has_its_events() {
        use PlegEvent::{ContainerChanged, ContainerDied, ContainerRemoved, ContainerStarted};
        use PlegState::{Exited, NonExistent, Running, Unknown};
        let states = [Running, Exited, Unknown, NonExistent];
        let table: [[&[PlegEvent]; 4]; 4] = [
            [
                &[],
                &[ContainerDied],
                &[ContainerChanged],
                &[ContainerDied, ContainerRemoved],
            ],
            [
                &[ContainerStarted],
                &[],
                &[ContainerChanged],
                &[ContainerRemoved],
            ],
            [
                &[ContainerStarted],
                &[ContainerDied],
                &[],
                &[ContainerDied, ContainerRemoved],
            ],
            [
                &[ContainerStarted],
                &[ContainerDied],
                &[ContainerChanged],
                &[],
            ],
        ];
        for (old, row) in states.into_iter().zip(table) {
            for (new, events) in states.into_iter().zip(row) {
                assert_eq!(transition(old, new), events, "{old:?} to {new:?}");
            }
        }
    }

    #[test]
    fn a_second_look_at_the_same_state_tells_nothing() {
        let record = PodRecord::from([
            ("a".to_owned(), RuntimeState::Running),
            ("b".to_owned(), RuntimeState::Created),
        ]);
        let relist = Relist::from([(PodUid("p".to_owned()), record)]);
        let first = relist_events(&Relist::new(), &relist);
        let events = &first[&PodUid("p".to_owned())];
        assert_eq!(events["a"], [PlegEvent::ContainerStarted]);
        assert!(
            !events.contains_key("b"),
            "a change into the unknown is not delivered"
        );
        assert!(relist_events(&relist, &relist).is_empty());
    }
}
