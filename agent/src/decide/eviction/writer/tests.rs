use super::*;
use crate::model::eviction::{PodFacts, PodFigures, PodReading, VolumeFacts};
use crate::model::pod::PodUid;

const MIB: u64 = 1 << 20;

fn pod_ref(name: &str) -> PodRef {
    PodRef {
        namespace: "ns".to_owned(),
        name: name.to_owned(),
        uid: PodUid(name.to_owned()),
    }
}

fn snapshot(pods: &[(&str, u64)]) -> Snapshot {
    let reading = |(name, bytes): &(&str, u64)| {
        let mut facts = PodFacts::bare(pod_ref(name));
        facts.volumes.push(VolumeFacts {
            name: "data".to_owned(),
            is_local: true,
            size_limit: None,
        });
        let disk_use = DiskUse {
            bytes: Some(*bytes),
            inodes: Some(1),
        };
        PodReading {
            facts: facts.into(),
            figures: Some(PodFigures {
                volumes: [("data".to_owned(), disk_use)].into(),
                ..PodFigures::default()
            }),
            ends_within: None,
        }
    };
    Snapshot {
        pods: pods.iter().map(reading).collect(),
        ..Snapshot::default()
    }
}

#[test]
fn whoever_has_a_good_part_of_what_was_taken_is_named() {
    let host_path = |path: &str, mib: u64| HostPath {
        path: path.into(),
        pod: pod_ref("exporter"),
        disk_use: DiskUse {
            bytes: Some(mib * MIB),
            inodes: Some(mib),
        },
    };
    let host_paths = [host_path("/srv/a", 30), host_path("/srv/b", 60)];
    let calm = snapshot(&[("a", 8 * MIB), ("b", MIB)]);
    let now = snapshot(&[("a", 9 * MIB), ("b", 90 * MIB), ("new", 500 * MIB)]);
    let check = |signal: Signal, taken, host_paths: &[HostPath], expected: &str| {
        let in_vain = InVain {
            resource: signal.resource(),
            n_kills: 0,
            given: 0,
            taken,
        };
        let of = (signal, FsLayout::One);
        let writer = Writer::of(of, &in_vain, host_paths, Some(&calm), &now);
        assert_eq!(writer.to_string(), expected);
    };
    let (bytes, inodes) = (Signal::NodeFsAvailable, Signal::NodeFsInodesFree);
    let largest = "hostPath /srv/b, a volume of pod ns/exporter, holds 60 MiB";
    check(bytes, 100 * MIB, &host_paths, largest);
    let grown = "pod ns/b has grown by 89 MiB since there was enough";
    check(bytes, 150 * MIB, &host_paths, grown);
    check(bytes, 150 * MIB, &[], grown);
    let nobody = "no pod and no hostPath volume is seen to have taken it";
    check(bytes, 1000 * MIB, &host_paths, nobody);
    let largest = "hostPath /srv/b, a volume of pod ns/exporter, holds 60 inodes";
    check(inodes, 70, &host_paths, largest);
    check(inodes, 700, &host_paths, nobody);
}
