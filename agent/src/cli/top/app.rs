//! What the user of `ballast top` sees and does: messages in, state out.
//!
//! Invariant: pure. The same messages lead to the same state; the view draws it and keeps nothing.

use std::collections::VecDeque;
use std::time::Duration;

use super::input::Key;
use super::rows::{Board, ContainerRow, PodRow, Sample, SortKey};
use crate::model::pod::PodUid;
use crate::model::record::EventRecord;
use crate::model::stats::StatsSnapshot;
use crate::model::time::WallTime;

/// Events that are kept: more than a tall screen shows.
const MAX_EVENTS: usize = 200;

/// Characters of a filter: longer than the name of a pod with its namespace (63 + 1 + 253).
const MAX_FILTER: usize = 320;

/// Rows that a page key moves by.
const PAGE: usize = 10;

#[derive(Debug)]
pub(super) enum Message {
    Key(Key),
    /// The terminal has another size.
    Resized,
    Sample(Box<Sample>),
    /// The agent did not answer.
    Away {
        at: WallTime,
        why: String,
    },
    Event(Box<EventRecord>),
    /// A signal asks for the end, or the terminal is gone.
    Stop,
    /// A signal asks it to stop for a while.
    Rest,
}

/// What the screen is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Pods,
    Pod(PodUid),
    Container(PodUid, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Live,
    /// The agent has not answered since then; what is shown is old.
    Away {
        since: WallTime,
        why: String,
    },
}

/// What comes from the agent.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) board: Board,
    /// Oldest first.
    pub(super) events: VecDeque<EventRecord>,
    pub(super) link: Link,
}

#[derive(Debug)]
pub(super) struct App {
    live: Live,
    /// What was live when the user paused.
    frozen: Option<Live>,
    latest: Option<StatsSnapshot>,
    /// Rates are from here to `latest`.
    before: Option<StatsSnapshot>,
    pub(super) interval: Duration,
    pub(super) sort: SortKey,
    pub(super) place: Place,
    pub(super) filter: String,
    /// Keys go to the filter.
    pub(super) is_typing: bool,
    pub(super) is_help: bool,
    /// The screen may hold what others wrote, and is to be drawn whole.
    pub(super) is_dirty: bool,
    pub(super) is_over: bool,
    /// The terminal is to be given back until the process goes on.
    pub(super) wants_rest: bool,
    /// The row that the cursor is on, and its pod once the user has moved: before that the cursor
    /// stays at the top, whoever is there.
    row: usize,
    chosen: Option<PodUid>,
    container_row: usize,
}

impl App {
    pub(super) fn new(sample: Sample, sort: SortKey, interval: Duration) -> Self {
        let board = Board::new(&sample, None);
        Self {
            live: Live {
                board,
                events: VecDeque::new(),
                link: Link::Live,
            },
            frozen: None,
            latest: sample.stats.ok(),
            before: None,
            interval,
            sort,
            place: Place::Pods,
            filter: String::new(),
            is_typing: false,
            is_help: false,
            is_dirty: false,
            is_over: false,
            wants_rest: false,
            row: 0,
            chosen: None,
            container_row: 0,
        }
    }

    pub(super) fn update(&mut self, message: Message) {
        match message {
            Message::Key(key) => self.press(key),
            Message::Resized => {}
            Message::Sample(sample) => self.take(*sample),
            Message::Away { at, why } => {
                let since = match &self.live.link {
                    Link::Live => at,
                    Link::Away { since, .. } => *since,
                };
                self.live.link = Link::Away { since, why };
            }
            Message::Event(record) => {
                let events = &mut self.live.events;
                if events.len() == MAX_EVENTS {
                    events.pop_front();
                }
                events.push_back(*record);
            }
            Message::Stop => self.is_over = true,
            Message::Rest => self.wants_rest = true,
        }
        self.follow_cursor();
    }

    /// What is on the screen.
    pub(super) fn shown(&self) -> &Live {
        self.frozen.as_ref().unwrap_or(&self.live)
    }

    pub(super) fn is_paused(&self) -> bool {
        self.frozen.is_some()
    }

    /// The pods that the filter lets through, in the order of the sort.
    pub(super) fn pods(&self) -> Vec<&PodRow> {
        let filter = self.filter.to_lowercase();
        let is_wanted = |it: &&PodRow| it.full_name().to_lowercase().contains(&filter);
        let mut pods: Vec<&PodRow> = self.shown().board.pods.iter().filter(is_wanted).collect();
        pods.sort_by(|a, b| self.sort.compare(a, b));
        pods
    }

    /// The row of the cursor among [`Self::pods`]; 0 if there is none.
    pub(super) fn row(&self) -> usize {
        self.row
    }

    /// The row of the cursor among the containers of the pod that is shown.
    pub(super) fn container_row(&self) -> usize {
        self.container_row
    }

    /// The pod that the screen is about; `None`: all, or it is gone.
    pub(super) fn pod(&self) -> Option<&PodRow> {
        let (Place::Pod(uid) | Place::Container(uid, _)) = &self.place else {
            return None;
        };
        self.shown()
            .board
            .pods
            .iter()
            .find(|it| it.entry.uid == *uid)
    }

    /// The container that the screen is about; `None`: a pod, or it is gone.
    pub(super) fn container(&self) -> Option<&ContainerRow> {
        let Place::Container(_, name) = &self.place else {
            return None;
        };
        self.pod()?
            .containers
            .iter()
            .find(|it| it.entry.name == *name)
    }

    fn take(&mut self, sample: Sample) {
        if let Ok(stats) = &sample.stats {
            // Asked twice within one sweep: rates stay those up to it.
            let is_new = self
                .latest
                .as_ref()
                .is_none_or(|it| it.ended != stats.ended);
            if is_new {
                self.before = self.latest.replace(stats.clone());
            }
        }
        self.live.board = Board::new(&sample, self.before.as_ref());
        self.live.link = Link::Live;
    }

    fn press(&mut self, key: Key) {
        match key {
            Key::Interrupt => self.is_over = true,
            Key::Suspend => self.wants_rest = true,
            Key::Redraw => self.is_dirty = true,
            _ if self.is_help => self.is_help = false,
            _ if self.is_typing => self.type_filter(key),
            Key::Char('q') => self.is_over = true,
            Key::Char('?') => self.is_help = true,
            Key::Char('p' | ' ') => {
                self.frozen = match self.frozen {
                    Some(_) => None,
                    None => Some(self.live.clone()),
                }
            }
            Key::Char('s' | '>') => self.resort(1),
            Key::Char('<') => self.resort(SortKey::ALL.len() - 1),
            Key::Char('/') => {
                self.place = Place::Pods;
                self.is_typing = true;
            }
            Key::Up | Key::Char('k') => self.move_cursor(|row| row.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.move_cursor(|row| row.saturating_add(1)),
            Key::PageUp => self.move_cursor(|row| row.saturating_sub(PAGE)),
            Key::PageDown => self.move_cursor(|row| row.saturating_add(PAGE)),
            Key::Home | Key::Char('g') => self.move_cursor(|_| 0),
            Key::End | Key::Char('G') => self.move_cursor(|_| usize::MAX),
            Key::Enter | Key::Right | Key::Char('l') => self.go_in(),
            Key::Escape | Key::Left | Key::Backspace | Key::Char('h') => self.go_out(),
            Key::Char(_) => {}
        }
    }

    fn resort(&mut self, steps: usize) {
        self.sort = self.sort.step(steps);
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) if self.filter.chars().count() < MAX_FILTER => self.filter.push(c),
            Key::Up => self.move_cursor(|row| row.saturating_sub(1)),
            Key::Down => self.move_cursor(|row| row.saturating_add(1)),
            _ => {}
        }
    }

    fn move_cursor(&mut self, to: impl Fn(usize) -> usize) {
        match &self.place {
            Place::Pods => {
                let pods = self.pods();
                let row = to(self.row).min(pods.len().saturating_sub(1));
                let chosen = pods.get(row).map(|it| it.entry.uid.clone());
                (self.row, self.chosen) = (row, chosen);
            }
            Place::Pod(_) => self.container_row = to(self.container_row),
            Place::Container(..) => {}
        }
    }

    fn go_in(&mut self) {
        let next = match &self.place {
            Place::Pods => {
                let uid = self.pods().get(self.row).map(|it| it.entry.uid.clone());
                self.container_row = 0;
                self.chosen.clone_from(&uid);
                uid.map(Place::Pod)
            }
            Place::Pod(uid) => {
                let containers = self.pod().map(|it| it.containers.as_slice());
                let container = containers.and_then(|it| it.get(self.container_row));
                container.map(|it| Place::Container(uid.clone(), it.entry.name.clone()))
            }
            Place::Container(..) => None,
        };
        if let Some(next) = next {
            self.place = next;
        }
    }

    fn go_out(&mut self) {
        self.place = match &self.place {
            Place::Pods => {
                self.filter.clear();
                Place::Pods
            }
            Place::Pod(_) => Place::Pods,
            Place::Container(uid, _) => Place::Pod(uid.clone()),
        };
    }

    /// Keeps the cursor on its pod wherever that is sorted to, and within the rows there are.
    fn follow_cursor(&mut self) {
        let pods = self.pods();
        let last = pods.len().saturating_sub(1);
        let found = self
            .chosen
            .as_ref()
            .and_then(|uid| pods.iter().position(|it| it.entry.uid == *uid));
        self.row = found.unwrap_or(self.row.min(last));
        let n_containers = self.pod().map_or(0, |it| it.containers.len());
        self.container_row = self.container_row.min(n_containers.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests;
