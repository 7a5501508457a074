#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "what others leave in the directory is written beside the code under test"
)]

use std::fs;

use super::*;
use crate::model::forensics::tests::record;
use crate::sys::scratch::Scratch;

/// For more than a test writes.
const ROOM: u64 = 16 << 20;

/// A directory that is not there yet.
struct Place {
    directory: PathBuf,
    _scratch: Scratch,
}

impl Place {
    fn new(test: &str) -> Self {
        let scratch = Scratch::new(test);
        Self {
            directory: scratch.path("oom"),
            _scratch: scratch,
        }
    }

    fn open(&self, max_bytes: u64) -> (OomRing, Found) {
        OomRing::open(&self.directory, max_bytes).unwrap()
    }

    fn names(&self) -> Vec<String> {
        Root::host().list(&self.directory).unwrap()
    }
}

fn write(ring: &mut OomRing, id: u64) -> u64 {
    let bytes = record(RecordId(id)).seal();
    ring.write(RecordId(id), &bytes).unwrap();
    bytes.len() as u64
}

fn ids(ring: &OomRing) -> Vec<u64> {
    ring.sizes.keys().map(|it| it.0).collect()
}

#[test]
fn the_oldest_go_first_and_the_bytes_stay_below_the_bound() {
    let place = Place::new("bound");
    let (mut ring, found) = place.open(ROOM);
    assert_eq!(found, Found::default());
    assert_eq!(ring.next_id(), RecordId(1));
    let size = write(&mut ring, 1);
    let (mut ring, _) = place.open(size * 3 + 16);
    for id in 2..=10 {
        write(&mut ring, id);
        let on_disk: u64 = place
            .names()
            .iter()
            .map(|name| fs::metadata(place.directory.join(name)).unwrap().len())
            .sum();
        assert!(on_disk <= size * 3 + 16, "{id}");
    }
    assert_eq!(ids(&ring), [8, 9, 10]);
    assert_eq!(place.names().len(), 3);
}

#[test]
fn a_record_that_is_written_again_takes_its_place_once() {
    let place = Place::new("again");
    let (mut ring, _) = place.open(ROOM);
    let size = write(&mut ring, 1);
    write(&mut ring, 1);
    assert_eq!(ring.n_bytes, size);
    assert_eq!(ring.next_id(), RecordId(2));
    durable::sync(&ring.path(RecordId(1))).unwrap();
}

#[test]
fn the_numbers_go_on_after_a_restart() {
    let place = Place::new("restart");
    let (mut ring, _) = place.open(ROOM);
    write(&mut ring, 1);
    write(&mut ring, 7);
    let (ring, found) = place.open(ROOM);
    assert_eq!(found.n_records, 2);
    assert_eq!(ring.next_id(), RecordId(8));
}

#[test]
fn what_a_crash_or_others_left_is_told_apart() {
    let place = Place::new("left");
    let (mut ring, _) = place.open(ROOM);
    for id in 1..=3 {
        write(&mut ring, id);
    }
    let torn = place.directory.join(RecordId(2).file_name());
    let bytes = fs::read(&torn).unwrap();
    fs::write(&torn, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(place.directory.join(RecordId(3).file_name()), "").unwrap();
    fs::write(
        place.directory.join("00000000000000000004.json.tmp"),
        "half",
    )
    .unwrap();
    fs::write(place.directory.join("notes.txt"), "mine").unwrap();
    let (ring, found) = place.open(ROOM);
    let expected = Found {
        n_records: 1,
        n_damaged: 2,
        n_foreign: 1,
        fault: None,
    };
    assert_eq!(found, expected);
    assert_eq!(ids(&ring), [1]);
    assert_eq!(ring.next_id(), RecordId(4), "a number is not used twice");
    let names = place.names();
    assert!(names.contains(&"notes.txt".to_owned()), "{names:?}");
    assert_eq!(names.iter().filter(|it| it.ends_with(SET_ASIDE)).count(), 2);
    assert!(!names.iter().any(|it| it.ends_with(".tmp")), "{names:?}");
    let (mut ring, found) = place.open(bytes.len() as u64);
    assert_eq!(found.n_damaged, 0);
    for id in 4..=6 {
        write(&mut ring, id);
    }
    let left = place.names();
    assert!(!left.iter().any(|it| it.ends_with(SET_ASIDE)), "{left:?}");
}

#[test]
fn a_record_of_another_version_is_left_alone() {
    let place = Place::new("version");
    let (ring, _) = place.open(ROOM);
    let bytes = sealed::seal(KIND, VERSION + 1, &"later");
    fs::write(ring.path(RecordId(1)), bytes).unwrap();
    let (_, found) = place.open(ROOM);
    assert_eq!((found.n_records, found.n_damaged), (1, 0));
}
