use super::*;
use crate::decide::eviction::rank::{known_usage, rank};

const MEMORY: Signal = Signal::MemoryAvailable;

#[track_caller]
fn check(row: &str, signal: Signal, layout: FsLayout, pods: &[PodReading], orders: [&str; 2]) {
    for (compat, wanted) in COMPATS.into_iter().zip(orders) {
        let mut shuffled = pods.to_vec();
        for _ in 0..pods.len() {
            shuffled.rotate_left(1);
            let ranked = rank(signal, layout, compat, &shuffled);
            let names: Vec<&str> = ranked
                .iter()
                .map(|it| it.reading.facts.pod.name.as_str())
                .collect();
            assert_eq!(names.join(" "), wanted, "{row} {compat:?}");
        }
    }
}

#[track_caller]
fn check_memory(row: &str, pods: &[PodReading], wanted: &str) {
    check(row, MEMORY, FsLayout::One, pods, [wanted, wanted]);
}

fn pids(name: &str, processes: u64, tasks: u64) -> PodReading {
    pod(name).figures(|it| {
        it.processes = Some(processes);
        it.tasks = Some(tasks);
    })
}

#[test]
fn r1_r4_r5_r6_over_the_request_then_priority_then_excess() {
    check_memory(
        "R1",
        &[
            pod("a").memory(100 * MI, 0),
            pod("b").memory(500 * MI, 200 * MI),
            pod("c").memory(900 * MI, GI),
            pod("d").memory(GI - 1, GI),
            pod("e").memory(2 * GI, 0).priority(1000),
        ],
        "b a e d c",
    );
    check_memory(
        "R4",
        &[
            pod("z").memory(0, 0),
            pod("g").memory(3 * GI, 4 * GI),
            pod("h").memory(MI, 0),
        ],
        "h z g",
    );
    check_memory(
        "R5",
        &[
            pod("hi").memory(8 * GI, GI).priority(100),
            pod("lo").memory(GI + 1, GI).priority(50),
            pod("lowfit").memory(MI, 2 * MI).priority(-100),
        ],
        "lo hi lowfit",
    );
    check_memory(
        "R6",
        &[
            pod("q").memory(GI, GI),
            pod("w").memory(100 * MI, 200 * MI).priority(-5),
        ],
        "w q",
    );
}

#[test]
fn r2_a_pod_of_which_nothing_is_known_goes_first_to_kubelet_and_never_here() {
    let pods = [
        pod("x").priority(2000),
        pod("y").memory(5 * GI, 0).priority(-10),
    ];
    check("R2", MEMORY, FsLayout::One, &pods, ["x y", "y x"]);
    let mut story = story(Compat::Ballast, &[memory(GI, 0)]);
    story.pods = vec![pod("x")];
    let decision = story.pass(0, &[(MEMORY, 0)]);
    assert_eq!(decision.action, None);
    assert_eq!(reasons(&decision), [BlockedReason::Unknown]);
}

/// A pod by its manifest, that uses so much memory.
fn declared(name: &str, spec: &str, used: u64) -> PodReading {
    let mut pod = testing::pod(spec);
    pod.name = name.to_owned();
    let facts = pod_facts(&pod, QosClass::Burstable, Compat::Ballast);
    PodReading {
        facts: facts.into(),
        ..super::pod(name)
    }
    .figures(|it| it.memory_working_set = Some(used))
}

#[test]
fn r3_r7_overhead_and_pod_level_requests_count() {
    let overhead = "overhead {req memory=50Mi}";
    check_memory(
        "R3",
        &[
            declared(
                "o",
                &format!("app {{req memory=100Mi}} {overhead}"),
                140 * MI,
            ),
            declared("p", &format!("app {{}} {overhead}"), 20 * MI),
        ],
        "p o",
    );
    check_memory(
        "R7",
        &[
            declared("m", "app {req memory=1Gi} pod {req memory=2Gi}", 1536 * MI),
            declared("n", "app {req memory=1Gi}", 1126 * MI),
        ],
        "n m",
    );
}

#[test]
fn r8_r9_critical_pods_are_ranked_and_passed_over() {
    for compat in COMPATS {
        let mut story = story(compat, &[memory(GI, 0)]);
        story.pods = vec![
            pod("k").memory(5 * GI, GI).critical(),
            pod("l").memory(1126 * MI, GI),
        ];
        assert_eq!(story.memory(0, 0).as_deref(), Some("l"), "R8");
        story.pods = vec![
            pod("m")
                .memory(2 * GI, GI)
                .priority(2_000_000_000)
                .critical(),
            pod("n").memory(GI, 2 * GI).priority(1_999_999_999),
        ];
        assert_eq!(story.memory(10, 0).as_deref(), Some("n"), "R9");
    }
}

#[test]
fn r10_r11_processes_to_kubelet_and_tasks_here() {
    let signal = Signal::PidAvailable;
    let pods = [
        pids("p", 500, 500),
        pids("q", 900, 900),
        pids("r", 3, 3).priority(-1),
        pod("s"),
    ];
    check("R10", signal, FsLayout::One, &pods, ["r s q p", "r q p s"]);
    let bomb = [pids("t", 1, 20_000), pids("u", 50, 50)];
    check("R11", signal, FsLayout::One, &bomb, ["u t", "t u"]);
}

/// A pod with one container and a hostPath volume: bytes and inodes of root file system, logs, volume.
fn disk(name: &str, parts: [(u64, u64); 3], request: u64) -> PodReading {
    let usage = |(bytes, inodes)| DiskUse {
        bytes: Some(bytes),
        inodes: Some(inodes),
    };
    let [root_fs, logs, volume] = parts.map(usage);
    let container = ContainerFigures {
        memory_working_set: None,
        root_fs,
        logs,
    };
    pod(name)
        .facts(|it| {
            it.storage_request = Quantity::from_bytes(request);
            it.volumes.push(VolumeFacts {
                name: "v".to_owned(),
                is_local: true,
                size_limit: None,
            });
        })
        .figures(|it| {
            it.containers.insert("c".to_owned(), container);
            it.volumes.insert("v".to_owned(), volume);
        })
}

#[test]
fn what_ended_containers_left_counts_for_their_pod() {
    let left = |name: &str, bytes: u64| {
        pod(name).figures(|it| {
            it.shared = DiskUse {
                bytes: Some(bytes),
                inodes: Some(bytes),
            };
        })
    };
    let pods = [
        disk("runs", [(5 * GI, 9), (0, 0), (0, 0)], 0),
        left("crashes", 50 * GI),
        left("empty", 0),
    ];
    for signal in [Signal::NodeFsAvailable, Signal::NodeFsInodesFree] {
        let ranked = rank(signal, FsLayout::One, Compat::Ballast, &pods);
        let names: Vec<_> = ranked
            .iter()
            .map(|it| &*it.reading.facts.pod.name)
            .collect();
        assert_eq!(names, ["crashes", "runs", "empty"]);
        assert_eq!(ranked[0].usage, Some(50 * GI));
        assert_eq!(known_usage(signal, FsLayout::One, &pods[2]), Some(0));
    }
    // They lie on the node's file system, not where images do.
    let of_images = known_usage(Signal::ImageFsAvailable, FsLayout::ImageFs, &pods[1]);
    assert_eq!(of_images, Some(0));
    let of_node = known_usage(Signal::NodeFsAvailable, FsLayout::ImageFs, &pods[1]);
    assert_eq!(of_node, Some(50 * GI));
}

#[test]
fn r12_to_r16_what_counts_follows_the_layout_of_the_file_systems() {
    let set = |volume_of_c: u64| {
        [
            disk("A", [(5 * GI, 100), (GI, 2), (0, 0)], 0),
            disk("B", [(0, 5), (200 * MI, 2), (3 * GI, 1_000_000)], 4 * GI),
            disk("C", [(GI, 10), (0, 0), (volume_of_c, 20)], GI),
        ]
    };
    let [a, b, c] = set(2 * GI);
    let by_priority = [a.clone().priority(10), b.clone(), c.clone().priority(5)];
    let pods = [a, b, c];
    let nodefs = Signal::NodeFsAvailable;
    let imagefs = Signal::ImageFsAvailable;
    let one = FsLayout::One;
    check("R12", nodefs, one, &pods, ["A C B", "A C B"]);
    // A and C are equal, so ours go by name.
    check("R13", nodefs, FsLayout::ImageFs, &pods, ["A C B", "A C B"]);
    check(
        "R13",
        nodefs,
        FsLayout::ImageFs,
        &set(2560 * MI),
        ["C A B", "C A B"],
    );
    check("R14", imagefs, FsLayout::ImageFs, &pods, ["A C B", "A C B"]);
    let inodes = Signal::NodeFsInodesFree;
    check("R15", inodes, one, &pods, ["A C B", "B A C"]);
    check(
        "R16",
        imagefs,
        FsLayout::Split,
        &by_priority,
        ["B C A", "B C A"],
    );
}
