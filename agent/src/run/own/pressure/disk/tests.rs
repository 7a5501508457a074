#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]

use std::collections::BTreeSet;
use std::fs;

use super::*;
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::PodFacts;
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
    let mut measuring = Measuring::new(&Root::at(dir.directory()), Box::new(|_| BTreeSet::new()));
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
