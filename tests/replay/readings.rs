//! What the readers of eviction make of the files of a node, for both cgroup versions.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::eviction::{MemoryUse, StallSource, StallTotals};
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::stats::KnownPod;
use ballast::sources::node_reading::NodeReader;
use ballast::sources::oom_counters::of_topmost;
use ballast::sources::stats::Wanted;
use ballast_tests::fake_node::{FakeNode, Layout};
use ballast_tests::known::{known_pod, nodefs, stats_reader};

const MEMINFO: &str = "MemTotal: 16384 kB\nMemFree: 2048 kB\nMemAvailable: 6000 kB\n\
    Buffers: 10 kB\nCached: 3990 kB\nSwapCached: 0 kB\nActive(file): 1000 kB\n\
    Inactive(file): 3000 kB\nSwapFree: 500 kB\nDirty: 7 kB\nWriteback: 0 kB\nAnonPages: 4096 kB\n\
    Shmem: 16 kB\nSReclaimable: 1024 kB\nHugetlb: 4096 kB\n";
const PRESSURE: &str = "some avg10=0.00 avg60=0.00 avg300=0.00 total=70\n\
    full avg10=0.00 avg60=0.00 avg300=0.00 total=60\n";
const V1_STAT: &str = "cache 1\nrss 1\ninactive_file 1\ntotal_cache 900\ntotal_rss 100\n\
    total_shmem 40\ntotal_dirty 5\ntotal_writeback 6\ntotal_workingset_refault_file 9\n\
    total_inactive_file 600\ntotal_active_file 260\n";
const V2_STAT: &str = "anon 100\nfile 900\nshmem 40\nfile_dirty 5\nfile_writeback 6\n\
    inactive_file 600\nactive_file 260\nslab_reclaimable 30\nworkingset_refault_file 9\n";

/// What both texts say.
const MEMORY: MemoryUse = MemoryUse {
    usage: 2000,
    anon: 100,
    file: 900,
    inactive_file: 600,
    active_file: 260,
    shmem: 40,
    dirty: 11,
    slab_reclaimable: None,
    refaults_file: Some(9),
};
const STALL: StallTotals = StallTotals {
    source: StallSource::Psi,
    some_us: 70,
    full_us: Some(60),
};
const AT: Duration = Duration::from_secs(5);

/// What a layout says of a cgroup with the texts above.
fn memory(layout: Layout) -> MemoryUse {
    MemoryUse {
        slab_reclaimable: (layout == Layout::V2).then_some(30),
        ..MEMORY
    }
}

fn stall(layout: Layout) -> Option<StallTotals> {
    (layout != Layout::V1).then_some(STALL)
}

const CONTROLLERS: [&str; 2] = ["memory", "pids"];

struct Node {
    fake: FakeNode,
    layout: Layout,
}

impl Node {
    fn new(layout: Layout) -> Result<Self> {
        let fake = FakeNode::new()?;
        fake.file("/proc/meminfo", MEMINFO)?
            .file(
                "/proc/zoneinfo",
                "Node 0, zone DMA\n  pages free 9\n low 25\n",
            )?
            .file("/proc/loadavg", "0.24 0.34 0.82 1/91 14354\n")?
            .file("/proc/pressure/memory", PRESSURE)?
            .file("/proc/sys/kernel/pid_max", "32768\n")?
            .file("/proc/sys/kernel/threads-max", "127000\n")?
            .directory("/var/lib")?;
        Ok(Self { fake, layout })
    }

    /// Writes the files of a cgroup.
    fn cgroup(&self, path: &str) -> Result<()> {
        let put = |controller: &str, file: &str, text: &str| {
            let mount = self.layout.mount(controller);
            self.fake
                .file(&format!("{mount}{path}/{file}"), text)
                .map(drop)
        };
        match self.layout {
            Layout::V2 => {
                put("memory", "memory.stat", V2_STAT)?;
                if !path.is_empty() {
                    put("memory", "memory.current", "2000\n")?;
                    put("memory", "memory.max", "9000\n")?;
                }
            }
            Layout::V1 | Layout::Hybrid => {
                put("memory", "memory.stat", V1_STAT)?;
                put("memory", "memory.usage_in_bytes", "2000\n")?;
                put("memory", "memory.limit_in_bytes", "9000\n")?;
            }
        }
        put("memory", "cgroup.procs", "10\n11\n")?;
        put("pids", "pids.current", "7\n")?;
        match self.layout {
            Layout::V1 => Ok(()),
            Layout::Hybrid | Layout::V2 => put("unified", "memory.pressure", PRESSURE),
        }
    }

    fn reader(&self) -> Result<NodeReader> {
        let kubepods = CgroupPath::new("/kubepods")?;
        let root = self.fake.root();
        let nodefs = nodefs(&root, Path::new("/var/lib"))?;
        Ok(NodeReader::open(
            &root,
            self.fake.trees(self.layout, &CONTROLLERS)?,
            Some(&kubepods),
            nodefs,
            4096,
        )?)
    }
}

/// What a cgroup namespace hides may have a limit too.
#[test]
fn limits_are_all_seen_below_the_root_of_all_alone() -> Result<()> {
    let fake = FakeNode::new()?;
    let events = "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n";
    fake.file("/sys/fs/cgroup/kubepods.slice/memory.events", events)?;
    let trees = fake.trees(Layout::V2, &CONTROLLERS)?;
    let [pods, other] = ["/kubepods.slice", "/other"].map(CgroupPath::new);
    let counted = of_topmost(&trees, &pods.clone()?);
    assert_eq!(
        counted.map(|it| (it.oom, it.oom_kill)),
        Some((Some(2), Some(1)))
    );
    assert_eq!(of_topmost(&trees, &other?), None);
    fake.file("/sys/fs/cgroup/memory.events", events)?;
    assert_eq!(of_topmost(&trees, &pods?), None);
    Ok(())
}

#[test]
fn a_whole_reading_has_every_figure_of_either_version() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        node.cgroup("")?;
        let mut reader = node.reader()?;
        assert_eq!(reader.read(AT).kubepods, None, "{layout:?}");

        // It is found once it is made.
        node.cgroup("/kubepods")?;
        let found = reader.read(AT);
        let root = MemoryUse {
            // The root of v2 has no usage: anonymous memory and files.
            usage: if layout == Layout::V2 { 1000 } else { 2000 },
            ..memory(layout)
        };
        assert_eq!(found.root, Some(root), "{layout:?}");
        assert_eq!(found.kubepods, Some(memory(layout)), "{layout:?}");
        assert_eq!(found.kubepods_limit, Some(9000), "{layout:?}");
        assert_eq!(found.stall, Some(STALL), "{layout:?}");
        assert_eq!(found.kubepods_stall, stall(layout), "{layout:?}");
        assert_eq!((found.at, found.memory_total), (AT, 16_384 << 10));
        assert_eq!(found.memory_free, Some(2048 << 10));
        assert_eq!(found.memory_available, Some(6000 << 10));
        assert_eq!(found.hugepages, 4096 << 10);
        assert_eq!(found.slab_reclaimable, Some(1024 << 10));
        assert_eq!(found.low_watermark, Some(25 * 4096));
        assert_eq!(found.swap_free, Some(500 << 10));
        assert_eq!((found.pids, found.pids_max), (Some(91), Some(32_768)));
        assert!(found.nodefs.is_some_and(|it| it.capacity > 0));
    }
    Ok(())
}

#[test]
fn a_fast_reading_has_the_node_from_its_zones() -> Result<()> {
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        node.cgroup("/kubepods")?;
        let found = node.reader()?.read_fast(AT);
        let root = found.root.context("no memory of the node")?;
        assert_eq!(root.working_set(), (4096 + 1000) << 10, "{layout:?}");
        assert_eq!(found.kubepods, Some(memory(layout)), "{layout:?}");
        assert_eq!((found.at, found.pids), (AT, Some(91)));
        assert_eq!(found.stall, Some(STALL));
        assert_eq!(found.kubepods_stall, stall(layout), "{layout:?}");
    }
    Ok(())
}

#[test]
fn what_changes_is_read_anew_and_what_is_missing_is_not_known() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    node.cgroup("/kubepods")?;
    for path in [
        "/proc/zoneinfo",
        "/proc/loadavg",
        "/proc/pressure",
        "/sys/fs/cgroup/kubepods/memory.pressure",
    ] {
        node.fake.remove(path)?;
    }
    let mut reader = node.reader()?;
    let found = reader.read(AT);
    assert_eq!((found.root, found.low_watermark), (None, None));
    assert_eq!((found.pids, found.stall), (None, None));
    assert_eq!(found.kubepods_stall, None);
    assert_eq!(found.kubepods, Some(memory(Layout::V2)));

    let kubepods = "/sys/fs/cgroup/kubepods";
    node.fake
        .file(&format!("{kubepods}/memory.current"), "3000\n")?
        .file(&format!("{kubepods}/memory.max"), "max\n")?
        .file("/proc/meminfo", "no such line\n")?
        .file(
            "/proc/zoneinfo",
            "Node 0, zone DMA\n  pages free 9\n low 5\n",
        )?
        .file("/proc/sys/kernel/pid_max", "100\n")?;
    let found = reader.read(AT + Duration::from_secs(1));
    assert_eq!(found.kubepods.map(|it| it.usage), Some(3000));
    assert_eq!(found.kubepods_limit, None);
    assert_eq!(found.memory_free, None);
    assert_eq!(found.memory_total, 16_384 << 10, "the last that was told");
    assert_eq!(found.pids_max, Some(100));
    assert_eq!(found.low_watermark, None, "it stays for a while");
    let found = reader.read(AT + Duration::from_secs(10));
    assert_eq!(found.low_watermark, Some(5 * 4096));

    node.fake
        .file(&format!("{kubepods}/memory.stat"), "anon none\n")?;
    assert_eq!(reader.read(AT).kubepods, None);
    node.fake.remove("/proc/meminfo")?;
    assert!(node.reader().is_err());
    Ok(())
}

fn pod(uid: &str) -> Result<Arc<KnownPod>> {
    let (uid, qos) = (PodUid(uid.to_owned()), QosClass::Burstable);
    let cgroup = CgroupPath::new(format!("/kubepods/burstable/pod{uid}"))?;
    known_pod(&uid, qos, &cgroup, &["main"])
}

#[test]
fn pods_are_read_with_what_is_wanted_of_them() -> Result<()> {
    let all = Wanted {
        processes: true,
        containers: true,
    };
    for layout in Layout::ALL {
        let node = Node::new(layout)?;
        node.cgroup("/kubepods/burstable")?;
        node.cgroup("/kubepods/burstable/poda")?;
        node.cgroup("/kubepods/burstable/poda/main")?;
        let kubepods = CgroupPath::new("/kubepods")?;
        let mut pods = stats_reader(
            &node.fake.root(),
            node.fake.trees(layout, &CONTROLLERS)?,
            &kubepods,
        )?;
        let [a, b] = [pod("a")?, pod("b")?];
        pods.keep([a.clone(), b.clone()]);

        let found = pods.figures(&a.pod.uid, AT, all).context("no figures")?;
        assert_eq!(found.at, Some(AT));
        assert_eq!(found.memory, Some(memory(layout)), "{layout:?}");
        assert_eq!(found.memory_working_set, Some(1400));
        // Those of the pod's own cgroup and of its container's.
        assert_eq!((found.tasks, found.processes), (Some(7), Some(4)));
        assert_eq!(found.stall, stall(layout), "{layout:?}");
        let main = found.containers.get("main").context("no container")?;
        assert_eq!(main.memory_working_set, Some(1400));

        let few = pods
            .figures(&a.pod.uid, AT, Wanted::default())
            .context("none")?;
        assert_eq!((few.processes, few.containers.len()), (None, 0));

        // The other one is not there yet; then it is, without being told again.
        assert_eq!(
            pods.all_figures(AT, all).keys().collect::<Vec<_>>(),
            [&a.pod.uid]
        );
        node.cgroup("/kubepods/burstable/podb")?;
        assert_eq!(pods.all_figures(AT, all).len(), 2);
        pods.keep([b.clone()]);
        assert_eq!(
            pods.all_figures(AT, all).keys().collect::<Vec<_>>(),
            [&b.pod.uid]
        );

        let stalls = pods.qos_stalls();
        let expected = stall(layout).map(|it| (QosClass::Burstable, it));
        assert_eq!(
            stalls.into_iter().collect::<Vec<_>>(),
            Vec::from_iter(expected)
        );
    }
    Ok(())
}

#[test]
fn a_cgroup_that_took_the_place_of_another_is_read_in_its_stead() -> Result<()> {
    let node = Node::new(Layout::V2)?;
    let path = "/kubepods/burstable/poda";
    node.cgroup(path)?;
    let kubepods = CgroupPath::new("/kubepods")?;
    let mut pods = stats_reader(
        &node.fake.root(),
        node.fake.trees(Layout::V2, &CONTROLLERS)?,
        &kubepods,
    )?;
    let a = pod("a")?;
    pods.keep([a.clone()]);
    let cgroup = node.fake.root().path(format!("/sys/fs/cgroup{path}"));
    std::fs::rename(&cgroup, cgroup.with_file_name("removed"))?;
    node.cgroup(path)?;
    node.fake
        .file(&format!("/sys/fs/cgroup{path}/memory.current"), "5000\n")?;
    pods.keep([a.clone()]);
    let found = pods.figures(&a.pod.uid, AT, Wanted::default());
    assert_eq!(
        found.and_then(|it| it.memory).map(|it| it.usage),
        Some(5000)
    );
    Ok(())
}
