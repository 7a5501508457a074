//! Streams that an earlier agent left pinned and this one does not adopt: of another build, or a
//! set that lacks a part.
//!
//! Their programs write on until those of this build are attached, so that nothing is missed in
//! between; what both report is told once. Then their links go, the ring is read to its end and
//! goes too. A ring whose records have another format is counted instead.
//!
//! Invariant: the ring stays pinned until it was read, so that the next agent goes on with it, be this one kept from it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use aya::maps::{Map, MapData, RingBuf};

use super::load::{chain, open_ring};
use super::pins::{Links, Pins, SetAside};
use super::{Drained, Stream, peek, read_ring, tells_victims};
use crate::model::event::{KernelEvent, ProcessChange, ProcessKey};

/// How long a program may run on that nothing holds: the kernel frees links after a grace period,
/// some milliseconds, tens of them on a busy node.
const DETACHED_WITHIN: Duration = Duration::from_secs(1);

pub(super) struct Older {
    set: SetAside,
    ring: RingBuf<MapData>,
    ring_bytes: u32,
    /// Held for as long as nothing else does the work of these programs.
    links: Links,
    /// Time since boot at which the links went.
    superseded: Option<Duration>,
}

impl Older {
    /// A set without a ring, or with one that is none, is removed. One that is kept from this agent stays for the next.
    pub(super) fn open(pins: &Pins, set: SetAside) -> Option<Self> {
        let mut is_kept = false;
        let opened = match pins.open_aside(&set.name) {
            Ok(Some((ring, links))) => Map::from_map_data(ring)
                .and_then(open_ring)
                .map(|ring| Some((ring, links)))
                .map_err(|error| chain(&error)),
            Ok(None) => Ok(None),
            Err(error) => {
                is_kept = error.is_refusal();
                Err(chain(&error))
            }
        };
        if let Err(reason) = &opened {
            tracing::warn!(%reason, pins = set.name, "events of an earlier agent cannot be read");
        }
        if let Ok(Some(((ring, ring_bytes), links))) = opened {
            return Some(Self {
                set,
                ring,
                ring_bytes,
                links,
                superseded: None,
            });
        }
        if !is_kept {
            remove(pins, &set.name);
        }
        None
    }

    pub(super) fn stream(&self) -> Stream {
        self.set.stream
    }

    pub(super) fn is_readable(&self) -> bool {
        self.set.is_readable
    }

    /// It tells of OOM kills, or does until it is superseded: in records that this build can read or not.
    pub(super) fn tells_victims(&self) -> bool {
        self.stream() == Stream::Oom && self.links.iter().any(|it| tells_victims(&it.0))
    }

    pub(super) fn ring(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    /// Ends its programs, now that others do their work.
    pub(super) fn supersede(&mut self, pins: &Pins, now: Duration) {
        if self.superseded.is_some() {
            return;
        }
        if let Err(error) = pins.detach(&self.set.name) {
            // They go with the set, or with the next agent.
            tracing::warn!(reason = chain(&error), pins = self.set.name, "detach");
        }
        self.links.clear();
        self.superseded = Some(now);
    }

    /// What waits, oldest first; nothing of another format.
    pub(super) fn waiting(
        &self,
        page_bytes: u64,
        sink: &mut dyn FnMut(KernelEvent),
    ) -> std::io::Result<()> {
        if !self.set.is_readable {
            return Ok(());
        }
        peek(
            &self.ring,
            self.ring_bytes,
            self.set.stream,
            page_bytes,
            sink,
        )
    }

    pub(super) fn drain(
        &mut self,
        max: usize,
        page_bytes: u64,
        sink: &mut dyn FnMut(KernelEvent),
    ) -> Drained {
        if !self.set.is_readable {
            return Drained::default();
        }
        let stream = self.set.stream;
        read_ring(
            &mut self.ring,
            self.ring_bytes,
            stream,
            page_bytes,
            max,
            sink,
        )
    }

    /// Whether its programs have ended, so that what was drained after this is all.
    pub(super) fn has_ended(&self, now: Duration) -> bool {
        self.superseded
            .is_some_and(|at| now >= at + DETACHED_WITHIN)
    }

    /// Removes the set. Returns how many records in it could not be read.
    pub(super) fn remove(self, pins: &Pins) -> u64 {
        let mut n_unread = 0;
        let ring = self.ring.as_fd();
        let counted = crate::sys::syscall::peek_ring(ring, self.ring_bytes as usize, &mut |_| {
            n_unread += 1;
        });
        if let Err(error) = counted {
            tracing::warn!(%error, pins = self.set.name, "count the events that cannot be read");
        }
        remove(pins, &self.set.name);
        n_unread
    }
}

fn remove(pins: &Pins, name: &str) {
    if let Err(error) = pins.remove(name) {
        tracing::warn!(reason = chain(&error), pins = name, "remove");
    }
}

/// A process may execute programs one after the other, so that the two reports of one exec are told by
/// their times. Two programs on one hook run within microseconds, but a hypervisor may take the processor
/// from between them, for some slices of its scheduler.
const EXECS_WITHIN_NS: u64 = 20_000_000;

/// Finds what the programs of two builds have both reported.
#[derive(Clone, Default)]
pub(super) struct Twins {
    /// Times at which one side alone has reported.
    single: HashMap<Key, Vec<(Side, u64)>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Older,
    Ours,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Kill(ProcessKey),
    Fork(ProcessKey),
    Exec(ProcessKey),
    Exit(ProcessKey),
}

impl Key {
    /// How far apart in time two reports of the same may lie.
    fn within_ns(self) -> u64 {
        match self {
            Self::Exec(_) => EXECS_WITHIN_NS,
            // Once in the life of a process.
            Self::Kill(_) | Self::Fork(_) | Self::Exit(_) => u64::MAX,
        }
    }
}

impl Twins {
    /// False: the other side has told of it.
    pub(super) fn is_first(&mut self, side: Side, event: &KernelEvent) -> bool {
        let (key, at_ns) = match event {
            KernelEvent::Oom(kill) => (Key::Kill(kill.victim), kill.at_ns),
            KernelEvent::Process(it) => {
                let key = match it.change {
                    ProcessChange::Fork { .. } => Key::Fork,
                    ProcessChange::Exec => Key::Exec,
                    ProcessChange::Exit { .. } => Key::Exit,
                };
                (key(it.process), it.at_ns)
            }
            // Of streams that are not pinned.
            KernelEvent::Cgroup(_) | KernelEvent::Stall(_) => return true,
        };
        let mut single = match self.single.entry(key) {
            Entry::Occupied(single) => single,
            Entry::Vacant(vacant) => {
                vacant.insert(vec![(side, at_ns)]);
                return true;
            }
        };
        let twin = single
            .get()
            .iter()
            .enumerate()
            .filter(|(_, (other, _))| *other != side)
            .map(|(index, (_, at))| (at.abs_diff(at_ns), index))
            .min()
            .filter(|(apart_ns, _)| *apart_ns <= key.within_ns());
        let Some((_, twin)) = twin else {
            single.get_mut().push((side, at_ns));
            return true;
        };
        single.get_mut().swap_remove(twin);
        if single.get().is_empty() {
            single.remove();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{CgroupId, CgroupLineage, ExitStatus, ProcessEvent};

    fn exec(pid: u32, at_ns: u64) -> KernelEvent {
        KernelEvent::Process(ProcessEvent {
            at_ns,
            process: ProcessKey {
                pid,
                start_boottime_ns: 1,
            },
            comm: String::new(),
            cgroup: CgroupLineage {
                cgroup_id: CgroupId(1),
                below_root: [None; 3],
                in_root: true,
            },
            change: ProcessChange::Exec,
        })
    }

    #[test]
    fn what_both_report_is_told_once_whoever_is_read_first() {
        let mut twins = Twins::default();
        let ms = 1_000_000;
        // Alone, then both, then the other alone; one process all the time.
        for (side, at_ns, is_first) in [
            (Side::Older, 100 * ms, true),
            (Side::Older, 200 * ms, true),
            (Side::Ours, 200 * ms + 900, false),
            (Side::Ours, 300 * ms, true),
            (Side::Older, 300 * ms - 900, false),
            (Side::Ours, 400 * ms, true),
            // Twice within the time that twins may lie apart.
            (Side::Older, 500 * ms, true),
            (Side::Older, 500 * ms + 400, true),
            (Side::Ours, 500 * ms + 100, false),
            (Side::Ours, 500 * ms + 500, false),
            // A hypervisor took the processor in between.
            (Side::Older, 600 * ms, true),
            (Side::Ours, 612 * ms, false),
        ] {
            assert_eq!(twins.is_first(side, &exec(7, at_ns)), is_first, "{at_ns}");
        }
        assert!(twins.is_first(Side::Ours, &exec(8, 100 * ms)));
        // Singles alone are kept: 100 and 400 ms of the one, 100 ms of the other.
        assert_eq!(twins.single.values().map(Vec::len).sum::<usize>(), 3);
    }

    #[test]
    fn a_process_ends_once_however_late_it_is_told() {
        let mut twins = Twins::default();
        let exit = |at_ns| match exec(7, at_ns) {
            KernelEvent::Process(it) => KernelEvent::Process(ProcessEvent {
                change: ProcessChange::Exit {
                    status: ExitStatus::Code(0),
                    by_oom: false,
                },
                ..it
            }),
            other => other,
        };
        assert!(twins.is_first(Side::Older, &exit(1)));
        assert!(!twins.is_first(Side::Ours, &exit(5_000_000_000)));
    }
}
