//! What a sweep makes of the files of a node, for v1, v1 beside cgroup2, and v2.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::model::cgroup_files::{CpuStat, MemoryEvents};
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::record::PodRef;
use ballast::model::stats::{
    ContainerStats, DeviceIo, DeviceNumber, EndedContainer, GroupKind, IoByOperation, IoCounts,
    KnownPod, KnownSandbox, NumaPages, PodStats,
};
use ballast::model::time::WallTime;
use ballast::sources::stats::StatsReader;
use ballast::sys::clock;
use ballast_tests::fake_node::{FakeNode, Layout};
use ballast_tests::known::{known_pod, stats_reader, sweep};

const MEMINFO: &str = "MemTotal: 16384 kB\nMemFree: 2048 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n";
const DISKSTATS: &str = "254 0 vda 1 2 3 4 5 6 7 8 9 10 11\n";
const NET_DEV: &str =
    "lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\neth0: 9 2 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n";

const V1: &[(&str, &str, &str)] = &[
    ("memory", "memory.usage_in_bytes", "2000\n"),
    (
        "memory",
        "memory.stat",
        "total_cache 900\ntotal_rss 100\ntotal_inactive_file 600\ntotal_swap 5\ntotal_pgfault 8\n",
    ),
    ("memory", "memory.failcnt", "3\n"),
    ("memory", "memory.max_usage_in_bytes", "2500\n"),
    (
        "memory",
        "memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
    ),
    ("memory", "memory.kmem.usage_in_bytes", "70\n"),
    ("memory", "memory.limit_in_bytes", "9000\n"),
    ("memory", "memory.soft_limit_in_bytes", "8000\n"),
    (
        "memory",
        "memory.numa_stat",
        "hierarchical_anon=6 N0=6\nhierarchical_file=10 N0=10\n",
    ),
    ("memory", "cgroup.procs", "10\n11\n"),
    (
        "cpu",
        "cpu.stat",
        "nr_periods 4\nnr_throttled 2\nthrottled_time 7000\n",
    ),
    ("cpu", "cpu.shares", "1024\n"),
    ("cpu", "cpu.cfs_quota_us", "50000\n"),
    ("cpu", "cpu.cfs_period_us", "100000\n"),
    ("cpuacct", "cpuacct.usage", "30000000\n"),
    ("cpuacct", "cpuacct.stat", "user 2\nsystem 1\n"),
    (
        "blkio",
        "blkio.throttle.io_service_bytes_recursive",
        "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 9000\n254:0 Async 3388\n254:0 Discard 100\n\
         254:0 Total 12388\nTotal 12388\n",
    ),
    (
        "blkio",
        "blkio.throttle.io_service_bytes",
        "254:0 Read 1\n254:0 Write 1\nTotal 2\n",
    ),
    (
        "blkio",
        "blkio.throttle.io_serviced",
        "254:0 Read 1\n254:0 Write 2\nTotal 3\n",
    ),
    ("pids", "pids.current", "7\n"),
    ("pids", "pids.events", "max 3\n"),
    ("pids", "pids.max", "40\n"),
];

const V2: &[(&str, &str)] = &[
    ("memory.current", "2000\n"),
    (
        "memory.stat",
        "anon 100\nfile 900\ninactive_file 600\nkernel 70\npgfault 8\n",
    ),
    ("memory.events", "low 0\nhigh 1\nmax 3\noom 2\noom_kill 2\n"),
    ("memory.peak", "2500\n"),
    ("memory.swap.current", "5\n"),
    ("memory.max", "9000\n"),
    ("memory.high", "max\n"),
    ("memory.low", "10\n"),
    ("memory.numa_stat", "anon N0=24576\nfile N0=40960\n"),
    ("cgroup.procs", "10\n11\n"),
    (
        "cpu.stat",
        "usage_usec 30000\nuser_usec 20000\nsystem_usec 10000\nnr_periods 4\nnr_throttled 2\nthrottled_usec 7\n",
    ),
    ("cpu.weight", "39\n"),
    ("cpu.max", "50000 100000\n"),
    (
        "io.stat",
        "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n",
    ),
    ("pids.current", "7\n"),
    ("pids.events", "max 3\n"),
    ("pids.max", "40\n"),
];

fn pressure(us: u64) -> String {
    format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={us}\n")
}

const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuacct", "blkio", "pids"];

struct Node {
    fake: FakeNode,
    layout: Layout,
}

const POD: &str = "/kubepods/burstable/poda";
const MAIN: &str = "/kubepods/burstable/poda/main";

impl Node {
    fn new(layout: Layout) -> Result<Self> {
        let fake = FakeNode::new()?;
        fake.file("/proc/meminfo", MEMINFO)?
            .file("/proc/loadavg", "0.24 0.34 0.82 1/91 14354\n")?
            .file("/proc/diskstats", DISKSTATS)?
            .file("/proc/1/net/dev", NET_DEV)?
            .file("/proc/pressure/memory", &pressure(1))?
            .directory("/var/lib")?;
        let node = Self { fake, layout };
        for path in [
            "/kubepods",
            "/kubepods/burstable",
            POD,
            MAIN,
            "/system.slice",
        ] {
            node.cgroup(path)?;
        }
        Ok(node)
    }

    /// Processes in network namespaces of these names, each with an interface that is called so and has received as many
    /// bytes as its pid.
    fn put_networks(&self, processes: &[(u32, &str)]) -> Result<()> {
        for (pid, namespace) in processes {
            let text = format!("{namespace}: {pid} 2 0 0 0 0 0 0 8 1 0 0 0 0 0 0\n");
            self.fake
                .link(&format!("/proc/{pid}/ns/net"), namespace)?
                .file(&format!("/proc/{pid}/net/dev"), &text)?;
        }
        Ok(())
    }

    fn cgroup(&self, path: &str) -> Result<()> {
        let put = |controller: &str, file: &str, text: &str| {
            let mount = self.layout.mount(controller);
            self.fake
                .file(&format!("{mount}{path}/{file}"), text)
                .map(drop)
        };
        if self.layout == Layout::V2 {
            for (file, text) in V2 {
                put("", file, text)?;
            }
        } else {
            for (controller, file, text) in V1 {
                put(controller, file, text)?;
            }
        }
        if self.layout == Layout::V1 {
            return Ok(());
        }
        for (resource, us) in [("cpu", 10), ("memory", 20), ("io", 30)] {
            put("unified", &format!("{resource}.pressure"), &pressure(us))?;
        }
        Ok(())
    }

    fn reader(&self) -> Result<StatsReader> {
        let kubepods = CgroupPath::new("/kubepods")?;
        let mut reader = stats_reader(
            &self.fake.root(),
            self.fake.trees(self.layout, &CONTROLLERS)?,
            &kubepods,
        )?;
        reader.keep([pod("a")?]);
        Ok(reader)
    }
}

fn pod(uid: &str) -> Result<Arc<KnownPod>> {
    let (uid, qos) = (PodUid(uid.to_owned()), QosClass::Burstable);
    let cgroup = CgroupPath::new(format!("/kubepods/burstable/pod{uid}"))?;
    known_pod(&uid, qos, &cgroup, &["main"])
}

#[test]
fn every_layout_tells_the_same_of_a_container() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        let found = sweep(&mut node.reader()?, None);
        assert_eq!((found.n_regressions, found.faults), (0, Default::default()));
        let all = found.snapshot;
        let [pod] = &all.pods[..] else {
            anyhow::bail!("{layout:?}: {:?}", all.pods);
        };
        let [main] = &pod.containers[..] else {
            anyhow::bail!("{layout:?}: {:?}", pod.containers);
        };
        assert_eq!((pod.id.as_str(), main.id.as_str()), (POD, MAIN));
        let (is_v2, stats) = (layout == Layout::V2, &main.stats);
        let cpu = CpuStat {
            usage_ns: Some(30_000_000),
            user_ns: Some(20_000_000),
            system_ns: Some(10_000_000),
            n_periods: Some(4),
            n_throttled: Some(2),
            throttled_ns: Some(7000),
            n_bursts: None,
            burst_ns: None,
        };
        assert_eq!(stats.cpu, cpu, "{layout:?}");
        let memory = &stats.memory;
        assert_eq!(
            (memory.usage, memory.working_set()),
            (Some(2000), Some(1400))
        );
        assert_eq!(
            (memory.swap, memory.kernel, memory.peak),
            (Some(5), Some(70), Some(2500))
        );
        let of_v2 = |n: u64| is_v2.then_some(n);
        let events = MemoryEvents {
            low: of_v2(0),
            high: of_v2(1),
            max: Some(3),
            oom: of_v2(2),
            oom_kill: Some(2),
            oom_group_kill: None,
        };
        assert_eq!(memory.events, events, "{layout:?}");
        let vda = DeviceIo {
            number: DeviceNumber {
                major: 254,
                minor: 0,
            },
            name: Some("vda".to_owned()),
            read: IoCounts {
                bytes: 4096,
                operations: 1,
            },
            written: IoCounts {
                bytes: 8192,
                operations: 2,
            },
            by_operation: (!is_v2).then_some(IoByOperation {
                synchronous: 9000,
                asynchronous: 3388,
                discarded: 100,
                total: 12_388,
            }),
            ..DeviceIo::default()
        };
        assert_eq!(stats.io, [vda], "{layout:?}");
        let stalls = [stats.stalls.cpu, stats.stalls.memory, stats.stalls.io];
        let expected = [10, 20, 30].map(|us| (layout != Layout::V1).then_some(us));
        assert_eq!(
            stalls.map(|it| it.map(|it| it.some.total.0)),
            expected,
            "{layout:?}"
        );
        let pages = NumaPages {
            node: 0,
            anon: 6,
            file: 10,
            unevictable: 0,
        };
        assert_eq!(stats.numa, [pages], "{layout:?}");
        let spec = &stats.spec;
        assert_eq!(
            (spec.cpu_quota_us, spec.cpu_period_us),
            (Some(50_000), Some(100_000))
        );
        assert_eq!((spec.memory_limit, spec.max_tasks), (Some(9000), Some(40)));
        assert_eq!((spec.memory_high, spec.memory_low), (None, of_v2(10)));
        assert_eq!((stats.n_tasks, stats.n_fork_refusals), (Some(7), Some(3)));
        assert_eq!(stats.n_processes, Some(2));

        // Its own and those of its container.
        let counts = |it: &ballast::model::stats::CgroupStats| it.n_processes;
        assert_eq!(pod.stats.as_ref().and_then(counts), Some(4), "{layout:?}");
        let groups: Vec<_> = all
            .groups
            .iter()
            .map(|it| (it.kind, it.id.as_str()))
            .collect();
        let expected = [
            (GroupKind::Kubepods, "/kubepods"),
            (GroupKind::Qos(QosClass::Burstable), "/kubepods/burstable"),
            (GroupKind::Slice, "/system.slice"),
        ];
        assert_eq!(groups, expected, "{layout:?}");
    }
    Ok(())
}

/// As cAdvisor: by the linear map, also what a runtime has written by the quadratic one (1024 shares: weight 100).
#[test]
fn shares_are_made_of_a_weight_as_cadvisor_makes_them() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    for (weight, shares) in [(0, 0), (1, 2), (39, 998), (100, 2597), (10_000, 262_144)] {
        let path = format!("/sys/fs/cgroup{MAIN}/cpu.weight");
        node.fake.file(&path, &format!("{weight}\n"))?;
        let found = sweep(&mut node.reader()?, None).snapshot;
        let spec = &found.pods[0].containers[0].stats.spec;
        assert_eq!(spec.cpu_shares, Some(shares), "weight {weight}");
    }
    Ok(())
}

#[test]
fn the_node_has_its_own_figures_where_the_root_has_no_file() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        let all = sweep(&mut node.reader()?, None).snapshot;
        let root = &all.node.cgroup;
        // Without a file of the root, `MemTotal` without `MemFree`.
        assert_eq!(root.memory.usage, Some((16_384 - 2048) << 10), "{layout:?}");
        assert_eq!(root.memory.swap, Some(40 << 10));
        assert_eq!(root.stalls.memory.map(|it| it.some.total.0), Some(1));
        assert_eq!((root.stalls.cpu, all.node.n_tasks), (None, Some(91)));
        let names: Vec<_> = all.node.network.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["eth0"]);
        assert_eq!(all.node.disks.len(), 1);
        assert!(all.node.file_system.is_some_and(|it| it.capacity > 0));
    }
    Ok(())
}

#[test]
fn a_counter_that_falls_is_kept_as_it_was() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        let mut reader = node.reader()?;
        let before = sweep(&mut reader, None).snapshot;
        let path = format!("{}{MAIN}/pids.events", layout.mount("pids"));
        node.fake.file(&path, "max 1\n")?;
        let found = sweep(&mut reader, Some(&before));
        let main = &found.snapshot.pods[0].containers[0];
        assert_eq!(
            (found.n_regressions, main.stats.n_fork_refusals),
            (1, Some(3))
        );
    }
    Ok(())
}

/// What a sweep meets before it is written is right in the next, and then for half a minute.
#[test]
fn a_limit_is_read_twice_before_it_is_taken_to_stay() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        let mut reader = node.reader()?;
        let file = match layout {
            Layout::V2 => "memory.max",
            _ => "memory.limit_in_bytes",
        };
        let path = format!("{}{MAIN}/{file}", layout.mount("memory"));
        let mut shown = Vec::new();
        for limit in ["9000\n", "8000\n", "7000\n"] {
            node.fake.file(&path, limit)?;
            let found = sweep(&mut reader, None).snapshot;
            shown.push(found.pods[0].containers[0].stats.spec.memory_limit);
        }
        assert_eq!(shown, [9_000, 8_000, 8_000].map(Some), "{layout:?}");
    }
    Ok(())
}

/// The file of refused forks stands for those that are passed over, those of memory for the others:
/// the kernel makes huge pages of a process that does not run, and its peak rises.
#[test]
fn what_belongs_to_running_is_read_again_when_something_ran() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        let mut reader = node.reader()?;
        let put = |controller: &str, file: &str, text: &str| {
            let path = format!("{}{MAIN}/{file}", layout.mount(controller));
            node.fake.file(&path, text).map(drop)
        };
        let (usage, peak, cpu) = match layout {
            Layout::V2 => (
                "memory.current",
                "memory.peak",
                ("cpu.stat", "usage_usec 31000\n"),
            ),
            _ => (
                "memory.usage_in_bytes",
                "memory.max_usage_in_bytes",
                ("cpuacct.usage", "31000000\n"),
            ),
        };
        let mut shown = |memory: &str| {
            put("memory", usage, memory)?;
            put("memory", peak, memory)?;
            let main = sweep(&mut reader, None).snapshot.pods[0].containers[0].clone();
            let memory = main.stats.memory;
            assert_eq!(memory.usage, memory.peak, "{layout:?}");
            anyhow::Ok((main.stats.n_fork_refusals, memory.usage))
        };
        // Settings are read in the first two.
        shown("9000\n")?;
        shown("9001\n")?;
        put("pids", "pids.events", "max 9\n")?;
        assert_eq!(shown("9002\n")?, (Some(3), Some(9002)), "{layout:?}");
        put("cpuacct", cpu.0, cpu.1)?;
        assert_eq!(shown("9003\n")?, (Some(9), Some(9003)), "{layout:?}");
        put("pids", "pids.events", "max 10\n")?;
        assert_eq!(shown("9004\n")?, (Some(9), Some(9004)), "{layout:?}");
        put("pids", "pids.current", "8\n")?;
        assert_eq!(shown("9005\n")?, (Some(10), Some(9005)), "{layout:?}");
    }
    Ok(())
}

/// Whether containers run, wait or never began: the network is that of the sandbox, and of it alone if it has one.
#[test]
fn a_pod_has_the_network_of_its_sandbox() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    let namespaces = [
        (1, "host"),
        (6, "pod"),
        (7, "pod"),
        (8, "inner"),
        (9, "host"),
    ];
    node.put_networks(&namespaces)?;
    let mut reader = node.reader()?;
    for (sandbox, main, shown) in [
        (Some(6), None, Some(("pod", 6))),
        (Some(6), Some(8), Some(("pod", 6))),
        // Nobody has told which cgroup is the sandbox, or it has no process.
        (None, Some(7), Some(("pod", 7))),
        (None, None, None),
        // `hostNetwork: true`.
        (Some(9), Some(9), None),
    ] {
        let pod = pod("a")?;
        let mut known = KnownPod::clone(&pod);
        known.sandbox = Some(KnownSandbox {
            cgroup: known.cgroup.join("sandbox")?,
            started_at: None,
            pid: sandbox,
        });
        known.containers[0].pid = main;
        reader.keep([Arc::new(known)]);
        let found = sweep(&mut reader, None).snapshot;
        let network = found.pods[0].network.iter();
        let network: Vec<_> = network
            .map(|it| (it.name.as_str(), it.received.bytes))
            .collect();
        assert_eq!(network, Vec::from_iter(shown), "{sandbox:?} {main:?}");
    }
    Ok(())
}

/// As a runtime has it that runs its pods in machines.
#[test]
fn a_pod_without_processes_in_its_containers_has_the_network_of_its_own() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    node.put_networks(&[(1, "host"), (5, "host"), (6, "pod"), (7, "other")])?;
    let mut reader = node.reader()?;
    let processes = format!("{}{POD}/cgroup.procs", Layout::V2.mount("memory"));
    for (pids, shown) in [
        ("5\n", None),
        ("5\n6\n", Some("pod")),
        ("7\n5\n6\n", Some("pod")),
        ("5\n7\n", Some("other")),
        ("", None),
    ] {
        node.fake.file(&processes, pids)?;
        let found = sweep(&mut reader, None).snapshot;
        let network = found.pods[0].network.iter();
        let network: Vec<_> = network.map(|it| it.name.as_str()).collect();
        assert_eq!(network, Vec::from_iter(shown), "{pids:?}");
    }
    Ok(())
}

/// crun has all processes of a container below its cgroup, and systemd in one further down still.
#[test]
fn open_files_are_counted_wherever_the_processes_of_a_container_are() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        for (process, n_open) in [("self", 1), ("10", 3), ("11", 4), ("12", 5)] {
            let path = format!("/proc/{process}/fd");
            node.fake.file(&path, &"x".repeat(n_open))?;
        }
        let list = |below: &str, pids: &str| -> Result<()> {
            let mount = layout.mount("memory");
            let path = format!("{mount}{MAIN}{below}/cgroup.procs");
            node.fake.file(&path, pids).map(drop)
        };
        for (below, pids, open) in [
            ("", "10\n11\n", Some(7)),
            ("", "", None),
            ("/container", "10\n", Some(3)),
            ("/container/system.slice", "12\n", Some(8)),
            // It has ended.
            ("/container/system.slice", "13\n", Some(3)),
            ("/container", "14\n", None),
            ("", "11\n", Some(4)),
        ] {
            list(below, pids)?;
            let found = sweep(&mut node.reader()?, None).snapshot;
            let found = found.pods[0].containers[0].descriptors;
            assert_eq!(found, open, "{layout:?} {below} {pids}");
        }
    }
    Ok(())
}

/// An instance that had used as much as `container`.
fn ended(container: &ContainerStats, pod: &str, id: &str, at: Duration) -> Result<EndedContainer> {
    let mut container = container.clone();
    container.runtime_id = id.to_owned();
    container.ended_at = Some(WallTime::from_epoch(at));
    Ok(EndedContainer {
        pod: Arc::new(PodRef {
            namespace: "default".to_owned(),
            name: pod.to_owned(),
            uid: PodUid(pod.to_owned()),
        }),
        qos: QosClass::Burstable,
        pod_cgroup: CgroupPath::new(format!("/kubepods/burstable/pod{pod}"))?,
        pod_started_at: WallTime::from_epoch(Duration::ZERO),
        at,
        container,
    })
}

#[test]
fn what_ended_before_its_name_came_is_shown_in_its_pod() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    let mut reader = node.reader()?;
    let main = sweep(&mut reader, None).snapshot.pods[0].containers[0].clone();
    let now = clock::boottime();
    let unnamed = |pod: &str, id: &str| -> Result<EndedContainer> {
        let mut ended = ended(&main, pod, id, now)?;
        let uid = ended.pod.uid.clone();
        let (namespace, name) = (String::new(), String::new());
        ended.pod = Arc::new(PodRef {
            namespace,
            name,
            uid,
        });
        ended.container.name.clear();
        Ok(ended)
    };
    let shown = |reader: &mut StatsReader| -> Vec<[String; 3]> {
        let all = sweep(reader, None).snapshot;
        let of_pod = |pod: &PodStats| {
            let name = pod.pod.name.clone();
            let containers = pod.containers.iter().filter(|it| it.ended_at.is_some());
            let shown = containers.map(|it| [name.clone(), it.name.clone(), it.runtime_id.clone()]);
            shown.collect::<Vec<_>>()
        };
        assert!(all.pods.is_sorted_by_key(|it| &it.pod));
        all.pods.iter().flat_map(of_pod).collect()
    };
    for (pod, id) in [("a", "one"), ("a", "pause"), ("gone", "another")] {
        reader.show_ended(unnamed(pod, id)?);
    }
    let found = shown(&mut reader);
    let expected = [["", "", "another"], ["a", "", "one"], ["a", "", "pause"]];
    assert_eq!(found, expected.map(|it| it.map(str::to_owned)));
    reader.amend_ended(|it| {
        let mut named = PodRef::clone(&it.pod);
        named.namespace = "default".to_owned();
        named.name = named.uid.0.clone();
        it.pod = Arc::new(named);
        it.container.name = "main".to_owned();
        it.container.runtime_id != "pause"
    });
    // Another look at one that has its name.
    reader.show_ended(ended(&main, "gone", "another", now)?);
    let found = shown(&mut reader);
    let expected = [["a", "main", "one"], ["gone", "main", "another"]];
    assert_eq!(found, expected.map(|it| it.map(str::to_owned)));
    // The pod has its name first in what has ended.
    let mut known = KnownPod::clone(&*pod("a")?);
    let uid = known.pod.uid.clone();
    let (namespace, name) = (String::new(), String::new());
    known.pod = Arc::new(PodRef {
        namespace,
        name,
        uid,
    });
    reader.keep([Arc::new(known)]);
    let all = sweep(&mut reader, None).snapshot;
    let pods: Vec<_> = all
        .pods
        .iter()
        .map(|it| (&*it.pod.name, it.containers.len()))
        .collect();
    assert_eq!(pods, [("", 2), ("gone", 1)]);
    Ok(())
}

#[test]
fn what_ended_is_shown_for_two_minutes() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    let mut reader = node.reader()?;
    let main = sweep(&mut reader, None).snapshot.pods[0].containers[0].clone();
    let now = clock::boottime();
    let ended = |pod: &str, id: &str, at: Duration| ended(&main, pod, id, at);
    reader.show_ended(ended("a", "an-earlier-one", now)?);
    reader.show_ended(ended("b", "of-a-pod-that-is-gone", now)?);
    let long_ago = now.checked_sub(Duration::from_secs(120));
    let long_ago = long_ago.context("the machine was started just now")?;
    reader.show_ended(ended("a", "long-ago", long_ago)?);
    // Told before the sweep knows that it is gone.
    reader.show_ended(ended("a", &main.runtime_id, now)?);
    let all = sweep(&mut reader, None).snapshot;
    let shown: Vec<_> = all
        .pods
        .iter()
        .flat_map(|pod| {
            let containers = pod.containers.iter();
            containers.map(|it| {
                (
                    pod.pod.name.as_str(),
                    it.runtime_id.as_str(),
                    it.ended_at.is_some(),
                )
            })
        })
        .collect();
    let expected = [
        ("a", "an-earlier-one", true),
        ("a", main.runtime_id.as_str(), true),
        ("b", "of-a-pod-that-is-gone", true),
    ];
    assert_eq!(shown, expected);
    assert_eq!(all.pods[1].stats, None);
    Ok(())
}
