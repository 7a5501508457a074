#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

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

/// A file of this process, which is that of the pod.
#[track_caller]
fn check(state: &Path) {
    let volume = state.join("pod/volumes/shared");
    fs::create_dir_all(&volume).unwrap();
    let pod = Candidate {
        logs: state.join("logs"),
        directory: state.join("pod"),
        volumes: vec![("shared".to_owned(), volume.clone())],
        ..candidate()
    };
    let uid = pod.facts.pod.uid.clone();
    let own = |_: &Candidate| BTreeSet::from([std::process::id()]);
    let mut measuring = Measuring::new(&Root::host(), Box::new(own));
    measuring.take(Order {
        candidates: Arc::new(vec![pod]),
        freshness: Freshness::Calm,
    });
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
