#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::tests::candidate;
use super::super::{All, Freshness, Measuring, Order};
use super::*;
use crate::sys::scratch::Scratch;

#[test]
fn a_file_that_is_deleted_and_open_is_its_volumes_and_counts_once() {
    let dir = Scratch::new("open");
    check(&dir.path("state"));
}

#[test]
fn a_state_directory_behind_a_link_hides_none_of_them() {
    let dir = Scratch::new("open");
    fs::create_dir(dir.path("elsewhere")).unwrap();
    symlink("elsewhere", dir.path("state")).unwrap();
    check(&dir.path("state"));
}

#[test]
fn a_look_that_fails_leaves_what_the_one_before_found() {
    let dir = Scratch::new("open");
    let is_failing = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_failing);
    let processes = move |_: &Candidate| match fails.load(Ordering::Relaxed) {
        true => Err("nobody can say".to_owned()),
        false => Ok(BTreeSet::from([std::process::id()])),
    };
    let (mut measuring, uid, volume) = measuring(dir.directory(), Box::new(processes));
    let at = Duration::from_secs;
    let mut look = |now| {
        let all = measuring.step(at(now)).unwrap();
        let mib = all.pods[&uid].volumes["shared"].bytes.unwrap() >> 20;
        (mib, all.failing.map(|it| (it.what, it.since)))
    };
    let mut file = File::create(volume.join("file")).unwrap();
    file.write_all(&vec![1; 4 << 20]).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(volume.join("file")).unwrap();
    assert_eq!(look(1000), (4, None));
    is_failing.store(true, Ordering::Relaxed);
    drop(file);
    let failing = Some(("open files of pod uid".to_owned(), at(1100)));
    assert_eq!(look(1100), (4, failing.clone()));
    assert_eq!(look(1200), (4, failing));
    is_failing.store(false, Ordering::Relaxed);
    assert_eq!(look(1300), (0, None));
}

#[test]
fn a_look_that_fails_as_the_one_before_hands_out_nothing() {
    let dir = Scratch::new("open");
    let processes = |_: &Candidate| Err("nobody can say".to_owned());
    let (mut measuring, ..) = measuring(dir.directory(), Box::new(processes));
    let at = Duration::from_secs;
    let first = measuring.step(at(1000)).unwrap();
    assert!(first.failing.is_some(), "{first:?}");
    assert_eq!(measuring.step(at(1001)), None);
}

/// Of a pod with these processes, whose directories are in `state`; its UID, and its volume `shared`.
fn measuring(state: &Path, processes: Processes) -> (Measuring, PodUid, PathBuf) {
    let volume = state.join("pod/volumes/shared");
    fs::create_dir_all(&volume).unwrap();
    let pod = Candidate {
        logs: state.join("logs"),
        directory: state.join("pod"),
        volumes: vec![("shared".to_owned(), volume.clone())],
        ..candidate()
    };
    let uid = pod.facts.pod.uid.clone();
    let mut measuring = Measuring::new(&Root::host(), processes);
    measuring.take(Order {
        candidates: Arc::new(vec![pod]),
        freshness: Freshness::Calm,
    });
    (measuring, uid, volume)
}

/// A file of this process, which is that of the pod.
#[track_caller]
fn check(state: &Path) {
    let own = |_: &Candidate| Ok(BTreeSet::from([std::process::id()]));
    let (mut measuring, uid, volume) = measuring(state, Box::new(own));
    let at = Duration::from_secs;
    let mib = |all: Option<All>| {
        let pod = all.unwrap().pods.remove(&uid).unwrap();
        assert!(pod.since.is_some(), "{pod:?}");
        let of_volume = pod.volumes["shared"].bytes.unwrap();
        // The directories have some blocks of their own.
        let rest = pod.storage.unwrap() - of_volume;
        assert!(rest < 1 << 20, "{pod:?}");
        of_volume >> 20
    };
    // Of the host, as logs that a shipper has open.
    let mut others = File::create(state.join("others")).unwrap();
    others.write_all(&vec![1; 4 << 20]).unwrap();
    others.sync_all().unwrap();
    fs::remove_file(state.join("others")).unwrap();
    let mut file = File::create(volume.join("file")).unwrap();
    file.write_all(&vec![1; 4 << 20]).unwrap();
    file.sync_all().unwrap();
    assert_eq!(mib(measuring.step(at(1000))), 4, "it has a name");
    fs::remove_file(volume.join("file")).unwrap();
    assert_eq!(mib(measuring.step(at(1100))), 4, "it has none");
    drop((file, others));
    assert_eq!(mib(measuring.step(at(1200))), 0, "it is gone");
}
