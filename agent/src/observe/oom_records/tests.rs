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

    /// Of kills at these times, milliseconds, and `n_unnamed` more.
    fn put(&self, id: u64, kills: &[u64], n_unnamed: u64) {
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
        record.n_kills += n_unnamed;
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
    records.put(1, &[1_000], 0);
    records.put(2, &[20_000, 20_900], 0);
    records.put(3, &[20_500], 0);
    assert_eq!(records.since(20_500), (vec![20_900], 0));
    assert_eq!(records.since(20_900), (vec![], 0));
    assert_eq!(records.since(0), (vec![1_000, 20_000, 20_500, 20_900], 0));
}

#[test]
fn those_without_a_name_are_counted_after_those_with_one() {
    let records = Records::new("unnamed");
    let kills: Vec<u64> = (0..=MAX_VICTIMS as u64).map(|n| 1_000 + n).collect();
    records.put(1, &kills, 5);
    let last = kills[MAX_VICTIMS];
    assert_eq!(records.since(last - 1), (vec![last], 5));
    assert_eq!(records.since(last), (vec![], 0));
}
