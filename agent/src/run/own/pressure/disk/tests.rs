#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{ContainerFacts, PodFacts, VolumeFacts};
use crate::model::quantity::Quantity;
use crate::model::record::PodRef;
use crate::sys::scratch::Scratch;

/// One container, one volume.
pub(super) fn candidate() -> Candidate {
    let pod = PodRef {
        namespace: "ns".to_owned(),
        name: "pod".to_owned(),
        uid: PodUid("uid".to_owned()),
    };
    Candidate {
        facts: Arc::new(PodFacts::bare(pod)),
        cgroup: CgroupPath::root(),
        containers: vec![("app".to_owned(), CgroupPath::root())],
        logs: PathBuf::from("/logs"),
        directory: PathBuf::from("/pod"),
        volumes: vec![("shared".to_owned(), PathBuf::from("/pod/volumes/shared"))],
        host_paths: Vec::new(),
        ends_at: None,
    }
}

/// Nobody orders anything on a node where no pod comes or goes.
#[test]
fn what_a_pod_has_is_measured_again_without_another_order() {
    let dir = Scratch::new("measuring");
    let volume = dir.path("pod/volumes/shared");
    fs::create_dir_all(dir.path("logs/app")).unwrap();
    let at = Duration::from_secs;
    let mut measuring = Measuring::new(
        &Root::at(dir.directory()),
        Box::new(|_| Ok(BTreeSet::new())),
    );
    assert_eq!(measuring.step(at(1000)), None);
    measuring.take(Order {
        candidates: Arc::new(vec![candidate()]),
        freshness: Freshness::Calm,
    });
    let uid = PodUid("uid".to_owned());
    let volume_of = |all: &All| all.pods[&uid].volumes["shared"].bytes;
    let first = measuring.step(at(1001)).unwrap();
    assert_eq!(volume_of(&first), None, "there is no volume yet");

    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("file"), vec![1; 1 << 20]).unwrap();
    assert_eq!(measuring.step(at(1060)), None, "nothing is due");
    let second = measuring.step(at(1062)).unwrap();
    assert!(volume_of(&second) >= Some(1 << 20), "{second:?}");
    assert!(second.pods[&uid].storage >= Some(1 << 20), "{second:?}");
    assert_eq!(second.oldest, Some(at(1062)));
    assert_eq!(second.pods[&uid].since, Some(at(1062)));
    assert!(!measuring.is_busy);

    // A disk that is short asks for what there is now, whenever it was measured last.
    measuring.take(Order {
        candidates: Arc::new(vec![candidate()]),
        freshness: Freshness::ShortSince(at(1063)),
    });
    let third = measuring.step(at(1063)).unwrap();
    assert_eq!(third.oldest, Some(at(1063)));
}

/// No file system has a name that is so long: it cannot be looked for.
#[test]
fn a_pod_whose_directories_cannot_be_looked_at_has_what_it_had() {
    let dir = Scratch::new("fault");
    fs::create_dir_all(dir.path("there/pod/volumes/shared")).unwrap();
    fs::create_dir_all(dir.path("there/logs/app")).unwrap();
    dir.write("there/pod/volumes/shared/file", vec![1; 1 << 20]);
    let link = dir.link("link", "there");
    let pod = Candidate {
        logs: PathBuf::from("/link/logs"),
        directory: PathBuf::from("/link/pod"),
        volumes: vec![("shared".to_owned(), "/link/pod/volumes/shared".into())],
        ..candidate()
    };
    let (at, uid) = (Duration::from_secs, pod.facts.pod.uid.clone());
    let root = Root::at(dir.directory());
    let measured = |measuring: &mut Measuring, now| {
        measuring.take(Order {
            candidates: Arc::new(vec![pod.clone()]),
            freshness: Freshness::ShortSince(at(now)),
        });
        measuring.step(at(now)).unwrap()
    };
    let mut measuring = Measuring::new(&root, Box::new(|_| Ok(BTreeSet::new())));
    let before = measured(&mut measuring, 1000);
    assert!(before.pods[&uid].storage >= Some(1 << 20), "{before:?}");
    assert_eq!(before.failing, None);

    fs::remove_file(&link).unwrap();
    dir.link("link", "a".repeat(300));
    let after = measured(&mut measuring, 1010);
    assert_eq!(after.pods, before.pods);
    assert_eq!(after.oldest, Some(at(1000)));
    assert!(after.failing.is_some(), "{after:?}");
    let mut anew = Measuring::new(&root, Box::new(|_| Ok(BTreeSet::new())));
    let anew = measured(&mut anew, 1010);
    let unknown = &anew.pods[&uid];
    assert_eq!((unknown.storage, unknown.since), (None, None));
    assert!(unknown.volumes.is_empty(), "{unknown:?}");
}

/// A pod of these containers, of which `running` run.
pub(super) fn pod_of(containers: &[&str], running: &[&str]) -> Candidate {
    let pod = candidate();
    let mut facts = (*pod.facts).clone();
    facts.containers = containers.iter().map(|it| container(it)).collect();
    facts.volumes = vec![VolumeFacts {
        name: "shared".to_owned(),
        is_local: true,
        size_limit: None,
    }];
    Candidate {
        facts: Arc::new(facts),
        containers: running
            .iter()
            .map(|it| ((*it).to_owned(), CgroupPath::root()))
            .collect(),
        ..pod
    }
}

fn container(name: &str) -> ContainerFacts {
    ContainerFacts {
        name: name.to_owned(),
        memory_request: Quantity::ZERO,
        storage_request: Quantity::ZERO,
        storage_limit: None,
    }
}

#[test]
fn what_containers_share_and_what_they_left_is_no_ones_of_them() {
    let dir = Scratch::new("shared");
    // MiB: in the directory of the pod, in its volume, in the logs of two containers.
    for (path, mib) in [
        ("pod/file", 8),
        ("pod/volumes/shared/file", 16),
        ("logs/app/0.log", 1),
        ("logs/other/0.log", 2),
    ] {
        let path = dir.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, vec![1; mib << 20]).unwrap();
    }
    let measure = |pod: Candidate| {
        let root = Root::at(dir.directory());
        let mut measuring = Measuring::new(&root, Box::new(|_| Ok(BTreeSet::new())));
        measuring.take(Order {
            candidates: Arc::new(vec![pod]),
            freshness: Freshness::Calm,
        });
        let all = measuring.step(Duration::from_secs(1000)).unwrap();
        let pod = &all.pods[&PodUid("uid".to_owned())];
        let mib = |disk_use: DiskUse| disk_use.bytes.unwrap() >> 20;
        assert_eq!(pod.storage.unwrap() >> 20, 27);
        let containers = pod.containers.iter();
        let containers = containers.map(|(name, it)| (name.clone(), mib(it.root_fs), mib(it.logs)));
        (containers.collect::<Vec<_>>(), mib(pod.shared))
    };
    let of = |name: &str, root_fs, logs| (name.to_owned(), root_fs, logs);
    for (containers, running, expected, shared) in [
        (&["app"][..], &["app"][..], vec![of("app", 8, 1)], 2),
        (&["app"], &[], vec![], 11),
        (
            &["app", "other"],
            &["app", "other"],
            vec![of("app", 0, 1), of("other", 0, 2)],
            8,
        ),
        // Its files do not become those of the one that goes on.
        (&["app", "other"], &["other"], vec![of("other", 0, 2)], 9),
        (&["app", "other"], &[], vec![], 11),
    ] {
        let found = measure(pod_of(containers, running));
        assert_eq!(found, (expected, shared), "{containers:?}, {running:?}");
    }
}

#[test]
fn a_step_that_takes_too_long_is_known() {
    let (at, step) = (Duration::from_secs, LastStep::default());
    step.note(at(1000));
    assert_eq!(step.hung_for(at(1059)), None);
    assert_eq!(step.hung_for(at(1060)), Some(at(60)));
    step.note(at(1061));
    assert_eq!(step.hung_for(at(1062)), None);
    // Of an order that is not there yet.
    let keeper = DiskKeeper::start(None).unwrap();
    assert!(keeper.unmeasured().is_none());
}
