//! How the containers of another program end: whether one ever had a process, and what it had used when its last
//! process ended, or at the first look if that was before.
//!
//! In: what the kernel tells of their cgroups, and what a look at their processes finds. Out: the [`End`] of each.
//!
//! Invariant: only containers that are there are noted. What is noted of one after its end was told, the second walk
//! after that forgets.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::event::CgroupId;
use crate::model::stats::CgroupStats;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// In which there was a process.
    entered: BTreeSet<CgroupId>,
    /// In which no process was found yet, or the last one has ended.
    idle: BTreeSet<CgroupId>,
    /// Of those whose last process has ended.
    last: BTreeMap<CgroupId, CgroupStats>,
    /// Those that systemd-oomd has killed, which was told.
    by_oomd: BTreeSet<CgroupId>,
    /// Of all these, those that were not there at the last walk.
    gone: BTreeSet<CgroupId>,
}

/// How a container has ended.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    /// It never had a process, and has used nothing.
    Unused,
    /// It had one, and was gone before it could be read.
    Unread,
    /// What it had used.
    Read(Box<CgroupStats>),
}

impl Ends {
    /// There is a process in a container. True: none was known to be there.
    pub(super) fn entered(&mut self, id: CgroupId) -> bool {
        self.entered.insert(id);
        self.idle.remove(&id)
    }

    /// The last process of a container has ended.
    pub(super) fn emptied(&mut self, id: CgroupId) {
        self.entered.insert(id);
        self.idle.insert(id);
    }

    /// systemd-oomd has killed a container. True: nobody was told yet. Its mark stays when a process comes and ends again.
    pub(super) fn by_oomd(&mut self, id: CgroupId) -> bool {
        self.by_oomd.insert(id)
    }

    /// What a container had used then.
    pub(super) fn read(&mut self, id: CgroupId, stats: CgroupStats) {
        self.last.insert(id, stats);
    }

    /// Processes of a container are looked for. What is found has [entered](Self::entered) it. True: it is the first look,
    /// and none is known to have been there.
    pub(super) fn look(&mut self, id: CgroupId) -> bool {
        self.idle.insert(id) && !self.entered.contains(&id)
    }

    /// The last process of a container had ended before the first look, which found nobody. `stats`: what it had used by
    /// then. What is known of one that came since stands.
    pub(super) fn was_emptied(&mut self, id: CgroupId, stats: CgroupStats) {
        if self.entered.insert(id) {
            self.last.insert(id, stats);
        }
    }

    /// No process is known to be in a container.
    pub(super) fn is_idle(&self, id: CgroupId) -> bool {
        self.idle.contains(&id)
    }

    /// A container is gone, which is told once.
    pub(super) fn end(&mut self, id: CgroupId) -> End {
        self.idle.remove(&id);
        self.by_oomd.remove(&id);
        let had_process = self.entered.remove(&id);
        match self.last.remove(&id) {
            Some(stats) => End::Read(Box::new(stats)),
            None if had_process => End::Unread,
            None => End::Unused,
        }
    }

    /// Forgets what was noted of a container after its end was told. `live`: the cgroups that there are after a walk. The
    /// end of a container that is not among them may be told in a moment, so it is forgotten only if it was not there
    /// at the last walk either.
    pub(super) fn forget_gone(&mut self, live: &BTreeSet<CgroupId>) {
        let noted = self.entered.union(&self.idle).copied();
        let gone = noted.filter(|it| !live.contains(it));
        let (told, new): (BTreeSet<_>, BTreeSet<_>) = gone.partition(|it| self.gone.contains(it));
        self.gone = new;
        for id in told {
            self.end(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CgroupId = CgroupId(7);

    fn stats() -> CgroupStats {
        CgroupStats {
            n_tasks: Some(3),
            ..CgroupStats::default()
        }
    }

    #[test]
    fn a_reading_is_missed_where_there_was_a_process_alone() {
        type Happens = fn(&mut Ends);
        let read = || End::Read(Box::new(stats()));
        let rows: [(&str, Happens, End); 10] = [
            ("nobody was ever in it", |_| {}, End::Unused),
            (
                "a look found nobody",
                |it| {
                    assert!(it.look(ID), "the first");
                    assert!(!it.look(ID), "the second");
                },
                End::Unused,
            ),
            (
                "the last one had ended before the first look",
                |it| {
                    assert!(it.look(ID));
                    it.was_emptied(ID, stats());
                    assert!(it.is_idle(ID));
                },
                read(),
            ),
            (
                "somebody came after the first look, and it was read before he ended",
                |it| {
                    assert!(it.look(ID));
                    it.entered(ID);
                    it.was_emptied(ID, stats());
                },
                End::Unread,
            ),
            (
                "somebody came after the look",
                |it| {
                    it.look(ID);
                    assert!(it.is_idle(ID));
                    assert!(it.entered(ID), "asks for another look");
                },
                End::Unread,
            ),
            (
                "somebody came before any look",
                |it| assert!(!it.entered(ID)),
                End::Unread,
            ),
            (
                "a look found somebody, and the next nobody",
                |it| {
                    it.look(ID);
                    it.entered(ID);
                    assert!(!it.look(ID), "he is known to have been there");
                },
                End::Unread,
            ),
            (
                "whoever was there before the agent has ended",
                |it| it.emptied(ID),
                End::Unread,
            ),
            (
                "it was read in time",
                |it| {
                    it.entered(ID);
                    it.emptied(ID);
                    it.read(ID, stats());
                },
                read(),
            ),
            (
                "it was read, and a look found nobody",
                |it| {
                    it.emptied(ID);
                    it.read(ID, stats());
                    it.look(ID);
                },
                read(),
            ),
        ];
        for (what, happens, expected) in rows {
            let mut ends = Ends::default();
            happens(&mut ends);
            assert_eq!(ends.end(ID), expected, "{what}");
            assert!(!ends.is_idle(ID), "{what}");
            assert_eq!(ends.end(ID), End::Unused, "{what}: told once");
        }
    }

    #[test]
    fn a_kill_by_systemd_oomd_is_told_once() {
        let mut ends = Ends::default();
        for is_first in [true, false] {
            ends.entered(ID);
            ends.emptied(ID);
            assert_eq!(ends.by_oomd(ID), is_first);
        }
        ends.end(ID);
        assert!(ends.by_oomd.is_empty());
        // It was noted after the end was told.
        ends.emptied(ID);
        assert!(ends.by_oomd(ID));
        ends.forget_gone(&BTreeSet::new());
        ends.forget_gone(&BTreeSet::new());
        assert!(ends.by_oomd.is_empty());
    }

    #[test]
    fn what_is_noted_after_an_end_is_forgotten_and_an_end_that_is_about_to_be_told_is_not() {
        let other = CgroupId(8);
        let mut ends = Ends::default();
        ends.entered(ID);
        ends.entered(other);
        let live = BTreeSet::from([other]);
        ends.forget_gone(&live);
        assert!(ends.entered.contains(&ID));
        ends.forget_gone(&live);
        assert_eq!(ends.end(ID), End::Unused);
        assert_eq!(ends.end(other), End::Unread);
        // One that is made again between two walks is there.
        ends.entered(ID);
        ends.forget_gone(&BTreeSet::new());
        ends.forget_gone(&BTreeSet::from([ID]));
        ends.forget_gone(&BTreeSet::new());
        assert_eq!(ends.end(ID), End::Unread);
    }
}
