use super::*;
use crate::model::forensics::{LaterVictim, MAX_VICTIMS, tests};
use crate::sys::scratch::Scratch;

const BOOT: &str = "5b1d";

/// A directory of records that is removed with the value.
struct Records(Scratch);

impl Records {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    /// Of kills at these times, milliseconds.
    fn put(&self, id: u64, kills: &[u64]) {
        let mut record = tests::record(RecordId(id));
        record.boot_id = Some(BOOT.to_owned());
        (record.n_kills, record.more_victims) = (1, Vec::new());
        record.event.boottime_ns = kills[0] * 1_000_000;
        for ms in &kills[1..] {
            record.add_victim(LaterVictim {
                boottime_ns: ms * 1_000_000,
                ..tests::later_victim(1)
            });
        }
        self.0.write(RecordId(id).file_name(), record.seal());
    }

    /// The times of those that are named, milliseconds, and how many are not.
    fn since(&self, ms: u64) -> (Vec<u64>, u64) {
        let since = Duration::from_millis(ms);
        let found = kills_since(self.0.directory(), BOOT, since).expect("it is there");
        let named = found.named.iter().map(|it| it.boottime_ns / 1_000_000);
        (named.collect(), found.n_unnamed)
    }
}

#[test]
fn a_kill_that_has_joined_an_older_record_is_found() {
    let records = Records::new("joined");
    records.put(1, &[1_000]);
    records.put(2, &[20_000, 20_900]);
    records.put(3, &[20_500]);
    assert_eq!(records.since(20_500), (vec![20_900], 0));
    assert_eq!(records.since(20_900), (vec![], 0));
    assert_eq!(records.since(0), (vec![1_000, 20_000, 20_500, 20_900], 0));
}

#[test]
fn those_without_a_name_are_counted_until_the_one_that_follows_them() {
    let records = Records::new("unnamed");
    let n_unnamed = 5;
    let n = MAX_VICTIMS as u64 + 1 + n_unnamed;
    let kills: Vec<u64> = (0..n).map(|it| 1_000 + it).collect();
    records.put(1, &kills);
    let (named, unnamed) = records.since(0);
    assert_eq!((named.len(), unnamed), (MAX_VICTIMS + 1, n_unnamed));
    let gap = named.windows(2).position(|it| it[1] - it[0] > 1);
    let gap = gap.expect("some have no name");
    let (before, after) = (named[gap], named[gap + 1]);
    assert_eq!(after - before, n_unnamed + 1);
    assert_eq!(records.since(before).1, n_unnamed);
    assert_eq!(records.since(after), (named[gap + 2..].to_vec(), 0));
}
