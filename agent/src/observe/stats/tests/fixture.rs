//! Snapshots to make pages from, and a reader of the text format that shares nothing with the
//! writer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::cgroup_files::{CpuStat, MemoryEvents, MemoryStat};
use crate::model::cpuset::CpuSet;
use crate::model::event::CgroupId;
use crate::model::eviction::DiskUse;
use crate::model::pod::{PodUid, QosClass};
use crate::model::psi::{Psi, PsiLine, StallShare, Stalls};
use crate::model::record::PodRef;
use crate::model::stats::*;
use crate::model::time::WallTime;
use crate::model::topology::{NumaNode, NumaNodeId};
use crate::units::{Bytes, Micros};

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn at(second: u64) -> WallTime {
    WallTime::from_epoch(Duration::from_secs(1_763_710_000 + second))
}

fn psi(some_us: u64, full_us: u64) -> Option<Psi> {
    let line = |total| PsiLine {
        avg10: StallShare(4627),
        avg60: StallShare(92),
        avg300: StallShare(0),
        total: Micros(total),
    };
    Some(Psi {
        some: line(some_us),
        full: Some(line(full_us)),
    })
}

/// A cgroup that has every figure, on a node with two NUMA nodes and two disks.
pub(super) fn full_cgroup(id: u64) -> CgroupStats {
    let bytes = |mib| Some(Bytes(mib * MIB));
    CgroupStats {
        at: Duration::from_millis(99_500),
        cgroup_id: Some(CgroupId(id)),
        cpu: CpuStat {
            usage_ns: Some(12_345_678_901),
            user_ns: Some(12_000_000_000),
            system_ns: Some(345_678_000),
            n_periods: Some(1000),
            n_throttled: Some(10),
            throttled_ns: Some(50_000_000),
            n_bursts: Some(3),
            burst_ns: Some(1_000),
        },
        memory: MemoryFigures {
            usage: Some(500 * MIB),
            stat: MemoryStat {
                anon: bytes(200),
                file: bytes(280),
                file_mapped: bytes(20),
                active_file: bytes(130),
                inactive_file: bytes(150),
                file_dirty: Some(Bytes(4096)),
                file_writeback: Some(Bytes(0)),
                page_faults: Some(70_000),
                major_page_faults: Some(7),
                refaults_file: Some(5),
                refaults_anon: Some(4),
                pages_scanned: Some(300),
                pages_reclaimed: Some(200),
                ..MemoryStat::default()
            },
            swap: Some(MIB),
            kernel: Some(11 * MIB),
            peak: Some(600 * MIB),
            events: MemoryEvents {
                high: Some(2),
                max: Some(17),
                ..MemoryEvents::default()
            },
        },
        io: vec![device(253, Some("vda"), 1), device(7, None, 2)],
        stalls: Stalls {
            cpu: psi(3_000_000, 2_000_000),
            memory: psi(1_500_000, 1_250_001),
            io: psi(1, 0),
        },
        hugetlb: vec![HugetlbUse {
            page_size: "2MB".into(),
            usage: 2 * MIB,
            max_usage: Some(4 * MIB),
        }],
        numa: [0, 1].map(numa).into(),
        n_processes: Some(3),
        n_tasks: Some(9),
        n_fork_refusals: Some(0),
        spec: CgroupSpec {
            is_known: true,
            cpu_shares: Some(512),
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            cpu_burst_us: Some(0),
            memory_limit: Some(1024 * MIB),
            memory_min: Some(64 * MIB),
            swap_limit: Some(128 * MIB),
            max_tasks: Some(1024),
            ..CgroupSpec::default()
        },
    }
}

fn device(major: u32, name: Option<&str>, factor: u64) -> DeviceIo {
    DeviceIo {
        number: DeviceNumber { major, minor: 0 },
        name: name.map(str::to_owned),
        read: IoCounts {
            bytes: 4096 * factor,
            operations: factor,
        },
        written: IoCounts {
            bytes: 8192 * factor,
            operations: 2 * factor,
        },
        cost: IoCost {
            usage_us: Some(1500),
            wait_us: Some(250_000),
            in_debt_us: Some(0),
            in_delay_us: Some(1),
        },
        by_operation: (major != 7).then_some(IoByOperation {
            synchronous: 8192 * factor,
            asynchronous: 5120 * factor,
            discarded: 1024 * factor,
            total: 13_312 * factor,
        }),
    }
}

fn numa(node: u32) -> NumaPages {
    NumaPages {
        node,
        anon: 51_200,
        file: 71_680,
        unevictable: 0,
    }
}

fn interface(name: &str) -> InterfaceStats {
    InterfaceStats {
        name: name.into(),
        received: TrafficCounts {
            bytes: 1000,
            packets: 10,
            errors: 1,
            dropped: 2,
        },
        transmitted: TrafficCounts {
            bytes: 2000,
            packets: 20,
            errors: 3,
            dropped: 4,
        },
    }
}

fn disk_use(bytes: u64) -> DiskUse {
    DiskUse {
        bytes: Some(bytes),
        inodes: Some(12),
    }
}

pub(super) fn container(pod: usize, n: usize) -> ContainerStats {
    let name = format!("app-{n}");
    let runtime_id = format!("{name}-pod{pod:04}-0");
    ContainerStats {
        id: format!("{}/{runtime_id}", pod_id(pod)),
        name,
        runtime_id,
        image: "registry.example/team/app:1.0".into(),
        started_at: Some(at(10)),
        ended_at: None,
        restarts: 1,
        oom_events: 1,
        stats: full_cgroup(1000 + 100 * pod as u64 + n as u64),
        root_fs: disk_use(3 * MIB),
        logs: disk_use(MIB),
        descriptors: Some(14),
        limits: ProcessLimits {
            max_open_files: Some(1_048_576),
        },
    }
}

fn pod_id(pod: usize) -> String {
    format!("/kubepods/burstable/pod11111111-2222-3333-4444-{pod:012}")
}

/// Uses what its containers do together, and a little of its own.
pub(super) fn pod(n: usize, n_containers: usize) -> PodStats {
    let containers: Vec<_> = (0..n_containers).map(|it| container(n, it)).collect();
    let mut stats = full_cgroup(100 + n as u64);
    let factor = n_containers as u64;
    stats.cpu.usage_ns = stats.cpu.usage_ns.map(|it| it * factor + 1);
    stats.memory.usage = stats.memory.usage.map(|it| it * factor + MIB);
    PodStats {
        pod: Arc::new(PodRef {
            namespace: "team".into(),
            name: format!("web-{n:04}"),
            uid: PodUid(format!("11111111-2222-3333-4444-{n:012}")),
        }),
        qos: QosClass::Burstable,
        id: pod_id(n),
        started_at: at(5),
        stats: Some(stats),
        network: vec![interface("eth0")],
        ephemeral_storage: Some(5 * MIB),
        volumes: BTreeMap::from([("cache".to_owned(), disk_use(MIB))]),
        volume_file_systems: BTreeMap::new(),
        containers,
    }
}

/// A node with every figure.
pub(in crate::observe) fn node(n_pods: usize, n_containers: usize) -> StatsSnapshot {
    let group = |kind, id: &str, n| GroupStats {
        kind,
        id: id.to_owned(),
        made_at: Some(at(1)),
        stats: full_cgroup(n),
    };
    StatsSnapshot {
        sweep: 10,
        begun: Duration::from_secs(99),
        ended: Duration::from_secs(100),
        at: at(100),
        cost_us: Some(900),
        machine: Arc::new(machine()),
        node: NodeStats {
            cgroup: full_cgroup(1),
            network: vec![interface("eth0"), interface("lo")],
            file_system: Some(FileSystemStats {
                device: "/dev/vda1".into(),
                capacity: 50 << 30,
                available: 20 << 30,
                used: 30 << 30,
                inodes: Some(1_000_000),
                inodes_free: Some(900_000),
            }),
            disks: vec![DiskStats {
                name: "vda".into(),
                number: DeviceNumber {
                    major: 253,
                    minor: 0,
                },
                reads: disk_counts(100),
                writes: disk_counts(200),
                n_in_flight: 2,
                busy_ms: 1500,
                weighted_busy_ms: 2500,
            }],
            n_tasks: Some(300),
        },
        groups: vec![
            group(GroupKind::Kubepods, "/kubepods", 2),
            group(
                GroupKind::Qos(QosClass::Burstable),
                "/kubepods/burstable",
                3,
            ),
            group(GroupKind::Slice, "/system.slice", 4),
        ],
        pods: (0..n_pods).map(|it| pod(it, n_containers)).collect(),
    }
}

fn disk_counts(n: u64) -> DiskCounts {
    DiskCounts {
        completed: n,
        merged: n / 10,
        sectors: 8 * n,
        time_ms: n,
    }
}

fn machine() -> Machine {
    Machine {
        node_name: "node-1".into(),
        n_cpus: 4,
        n_cores: 2,
        n_packages: 1,
        memory: 16 << 30,
        swap: 1 << 30,
        booted_at: Some(at(0)),
        machine_id: Some("0123456789abcdef".into()),
        system_uuid: Some("aaaa-bbbb".into()),
        boot_id: Some("cccc-dddd".into()),
        kernel_version: "6.12.0".into(),
        os_version: Some("Debian GNU/Linux 12 (bookworm)".into()),
        max_pids: Some(4_194_304),
        is_unified: true,
        numa_nodes: [0, 1].map(|it| (NumaNodeId(it), numa_node(it))).into(),
    }
}

fn numa_node(id: u32) -> NumaNode {
    NumaNode {
        cpus: CpuSet::default(),
        memory: Some(Bytes(8 << 30)),
        distances: [0, 1]
            .map(|it| (NumaNodeId(it), if it == id { 10 } else { 21 }))
            .into(),
        hugepages: BTreeMap::from([(Bytes(2 * MIB), 5)]),
    }
}

/// One sample as a reader of the format understands it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) value: f64,
    pub(super) stamp: Option<i64>,
}

impl Sample {
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

#[derive(Debug, Default)]
pub(super) struct Parsed {
    /// Name, type and help, in their order.
    pub(super) families: Vec<(String, String, String)>,
    pub(super) samples: Vec<Sample>,
}

impl Parsed {
    pub(super) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(move |it| it.name == name)
    }

    /// The value of the only sample that has these labels, perhaps among others.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has_all = |it: &&Sample| labels.iter().all(|(name, value)| it.label(name) == *value);
        let found: Vec<_> = self.named(name).filter(has_all).collect();
        assert!(found.len() <= 1, "{name}{labels:?}: {found:#?}");
        found.first().map(|it| it.value)
    }
}

/// Reads a page; panics where a server would refuse it, or take it for untidy: a family that is
/// begun twice, samples away from their family, two samples with the same labels.
pub(super) fn parse(text: &str) -> Parsed {
    let mut parsed = Parsed::default();
    assert!(text.is_empty() || text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            let kind = lines.next().unwrap().strip_prefix("# TYPE ").unwrap();
            let kind = kind.strip_prefix(name).unwrap().trim().to_owned();
            let is_new = parsed.families.iter().all(|(it, ..)| it != name);
            assert!(is_new, "{name} begins twice");
            parsed
                .families
                .push((name.to_owned(), kind, help.to_owned()));
        } else {
            let sample = parse_sample(line);
            let (family, ..) = parsed.families.last().expect("a family before its samples");
            assert_eq!(*family, sample.name, "{line}");
            let is_same = |it: &Sample| it.name == sample.name && it.labels == sample.labels;
            // Only the last family can hold the same series.
            let family = parsed.samples.iter().rev();
            let mut family = family.take_while(|it| it.name == sample.name);
            assert!(
                text.len() > 1_000_000 || !family.any(is_same),
                "twice: {line}"
            );
            parsed.samples.push(sample);
        }
    }
    parsed
}

fn parse_sample(line: &str) -> Sample {
    let name_end = line.find(['{', ' ']).unwrap();
    let mut labels = BTreeMap::new();
    let mut rest = &line[name_end..];
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            if let Some(after) = inner.strip_prefix('}') {
                rest = after;
                break;
            }
            let (name, quoted) = inner.split_once("=\"").unwrap();
            let (value, after) = unquote(quoted);
            assert!(!value.is_empty(), "an empty label in {line}");
            let is_new = labels.insert(name.to_owned(), value).is_none();
            assert!(is_new, "{name} twice in {line}");
            inner = after.strip_prefix(',').unwrap_or(after);
        }
    }
    let mut words = rest.trim_start().split(' ');
    let sample = Sample {
        name: line[..name_end].to_owned(),
        labels,
        value: words.next().unwrap().parse().unwrap(),
        stamp: words.next().map(|it| it.parse().unwrap()),
    };
    assert_eq!(words.next(), None, "{line}");
    sample
}

/// The value up to its closing quote, and what follows that.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next().expect("a closing quote") {
            (at, '"') => return (value, &text[at + 1..]),
            (_, '\\') => match chars.next().unwrap().1 {
                'n' => value.push('\n'),
                it @ ('"' | '\\') => value.push(it),
                it => panic!("\\{it}"),
            },
            (_, it) => value.push(it),
        }
    }
}
