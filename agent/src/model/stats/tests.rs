use super::*;
use crate::model::cgroup_files::{CpuStat, MemoryStat};
use crate::model::pod::PodUid;
use crate::model::psi::{Psi, PsiLine, Stalls};
use crate::units::{Bytes, Micros};

fn stalled(total_us: u64) -> PsiLine {
    PsiLine {
        total: Micros(total_us),
        ..PsiLine::default()
    }
}

/// A cgroup that has used `cpu_ms` and holds `mib` of memory, a tenth of it inactive file pages. It
/// waited for memory a tenth as long as it ran.
pub(crate) fn cgroup(at: Duration, cpu_ms: u64, mib: u64, limit_mib: Option<u64>) -> CgroupStats {
    CgroupStats {
        at,
        cpu: CpuStat {
            usage_ns: Some(cpu_ms * 1_000_000),
            n_periods: Some(at.as_secs() * 10),
            n_throttled: Some(cpu_ms / 1000),
            ..CpuStat::default()
        },
        memory: MemoryFigures {
            usage: Some(mib << 20),
            stat: MemoryStat {
                inactive_file: Some(Bytes((mib << 20) / 10)),
                ..MemoryStat::default()
            },
            ..MemoryFigures::default()
        },
        stalls: Stalls {
            memory: Some(Psi {
                some: stalled(cpu_ms * 100),
                full: Some(stalled(cpu_ms * 20)),
            }),
            ..Stalls::default()
        },
        n_tasks: Some(4),
        spec: CgroupSpec {
            memory_limit: limit_mib.map(|it| it << 20),
            ..CgroupSpec::default()
        },
        ..CgroupStats::default()
    }
}

/// The pods of [`crate::model::status::tests::example_status`] that have cgroups, `second` seconds
/// after the boot.
pub(crate) fn example_stats(second: u64) -> StatsSnapshot {
    let at = Duration::from_secs(second);
    let wall = WallTime::from_epoch(Duration::from_secs(1_763_710_000) + at);
    let container = |name: &str, stats: CgroupStats| ContainerStats {
        name: name.into(),
        id: format!("/kubepods/{name}"),
        runtime_id: format!("{name}-0"),
        image: String::new(),
        started_at: Some(wall),
        ended_at: None,
        restarts: 0,
        oom_events: 0,
        stats,
        root_fs: DiskUse::default(),
        logs: DiskUse::default(),
        descriptors: Some(12),
        limits: ProcessLimits::default(),
    };
    let pod = |namespace: &str, name: &str, uid: &str, qos, stats: CgroupStats| PodStats {
        pod: Arc::new(PodRef {
            namespace: namespace.into(),
            name: name.into(),
            uid: PodUid(uid.into()),
        }),
        qos,
        id: format!("/kubepods/pod{uid}"),
        started_at: wall,
        containers: vec![container("main", stats.clone())],
        stats: Some(stats),
        network: Vec::new(),
        ephemeral_storage: None,
        volumes: BTreeMap::new(),
        volume_file_systems: BTreeMap::new(),
    };
    let long = "a-namespace-with-a-long-name";
    let greedy = cgroup(at, second * 1200, 1500, Some(1536));
    StatsSnapshot {
        sweep: second,
        begun: at,
        ended: at,
        at: wall,
        cost_us: Some(700),
        machine: Arc::new(Machine::default()),
        node: NodeStats {
            cgroup: cgroup(at, second * 1400, 4096, None),
            ..NodeStats::default()
        },
        groups: vec![GroupStats {
            kind: GroupKind::Qos(QosClass::Burstable),
            id: "/kubepods/burstable".into(),
            made_at: None,
            stats: cgroup(at, second * 1210, 1510, None),
        }],
        pods: vec![
            pod(
                long,
                "hungry-7d9c6b5f4-x2x9z",
                "0c4e",
                QosClass::Burstable,
                greedy,
            ),
            pod(
                "default",
                "database",
                "6a1f",
                QosClass::Guaranteed,
                cgroup(at, second * 25, 192, Some(256)),
            ),
        ],
    }
}

#[test]
fn containers_without_a_name_have_figures_of_their_own() {
    let mut pod = example_stats(60).pods.remove(0);
    let mut other = pod.containers[0].clone();
    other.runtime_id = "main-1".into();
    pod.containers.push(other);
    for container in &mut pod.containers {
        container.name.clear();
    }
    let figures = pod.figures().expect("it has a cgroup");
    let names: Vec<&String> = figures.containers.keys().collect();
    assert_eq!(names, ["main-0", "main-1"]);
}

#[test]
fn pods_come_in_the_order_of_their_starts_and_then_of_their_uids() {
    let mut stats = example_stats(60);
    let template = stats.pods.remove(0);
    stats.pods = [("a", 3), ("b", 1), ("c", 1), ("d", 2)]
        .map(|(uid, started)| PodStats {
            pod: Arc::new(PodRef {
                uid: PodUid(uid.into()),
                ..PodRef::clone(&template.pod)
            }),
            started_at: WallTime::from_epoch(Duration::from_secs(started)),
            ..template.clone()
        })
        .to_vec();
    let in_order = stats.by_start().into_iter();
    let uids: Vec<&str> = in_order.map(|it| it.pod.uid.0.as_str()).collect();
    assert_eq!(uids, ["b", "c", "d", "a"]);
}

#[test]
fn a_snapshot_reads_back() {
    let stats = example_stats(60);
    let json = serde_json::to_string(&stats).expect("the snapshot has string keys");
    assert_eq!(
        serde_json::from_str::<StatsSnapshot>(&json).ok(),
        Some(stats)
    );
}
