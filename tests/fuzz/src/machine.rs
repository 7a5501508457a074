//! The small machine that states are taken over on, and what must be true of its managers after.

use std::collections::{BTreeMap, BTreeSet};

use ballast::config::{Compat, TopologyManagerPolicy, TopologyManagerScope};
use ballast::decide::placement::cpu::CpuStateFault;
use ballast::decide::placement::managers::{Books, Managers, PlacementSettings, StateFault};
use ballast::model::cpuset::CpuSet;
use ballast::model::device::{Device, PluginOptions};
use ballast::model::numa::NumaMask;
use ballast::model::placement::MemoryBlock;
use ballast::model::pod::PodUid;
use ballast::units::Bytes;
use ballast_tests::placement::{Shape, admit_answered, pod};

pub(crate) const RESOURCE: &str = "example.org/gpu";

const POD: &str = "00000000-0000-0000-0000-000000000001";

const SHAPE: Shape = Shape {
    n_packages: 2,
    n_numa_nodes: 2,
    cores_per_numa_node: 2,
    threads_per_core: 2,
    cores_per_llc: 2,
    memory: Bytes(1 << 30),
    n_hugepages: 128,
};

/// What of the settings an input chooses.
#[derive(Clone, Copy, Debug, arbitrary::Arbitrary)]
pub(crate) struct Choice {
    as_kubelet: bool,
    reserves_strictly: bool,
    names_reserved: bool,
    wants_full_cores: bool,
    manages_pods: bool,
    by_pod: bool,
    policy: Policy,
}

#[derive(Clone, Copy, Debug, arbitrary::Arbitrary)]
enum Policy {
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl Choice {
    /// From one byte, for inputs that are a text after it.
    pub(crate) fn from_byte(byte: u8) -> Self {
        let bit = |i: u8| byte >> i & 1 == 1;
        Self {
            as_kubelet: bit(0),
            reserves_strictly: bit(1),
            names_reserved: bit(2),
            wants_full_cores: bit(3),
            manages_pods: bit(4),
            by_pod: bit(5),
            policy: match byte >> 6 {
                0 => Policy::None,
                1 => Policy::BestEffort,
                2 => Policy::Restricted,
                _ => Policy::SingleNumaNode,
            },
        }
    }

    pub(crate) fn manages_pods(self) -> bool {
        self.manages_pods
    }

    /// Managers with nothing given out, beside a plugin with four devices.
    pub(crate) fn managers(self) -> Managers {
        let settings = self.settings();
        let mut managers = Managers::new(&settings).expect("settings that fit the machine");
        connect(&mut managers);
        managers
    }

    fn settings(self) -> PlacementSettings {
        let compat = match self.as_kubelet {
            true => Compat::Kubelet,
            false => Compat::Ballast,
        };
        let policy = match self.policy {
            Policy::None => TopologyManagerPolicy::None,
            Policy::BestEffort => TopologyManagerPolicy::BestEffort,
            Policy::Restricted => TopologyManagerPolicy::Restricted,
            Policy::SingleNumaNode => TopologyManagerPolicy::SingleNumaNode,
        };
        let mut settings = SHAPE.settings(compat, policy).expect("a machine with CPUs");
        let options = &mut settings.config.cpu_manager_policy_options;
        for (name, is_on) in [
            ("strict-cpu-reservation", self.reserves_strictly),
            ("full-pcpus-only", self.wants_full_cores),
        ] {
            if is_on {
                options.insert(name.to_owned(), "true".to_owned());
            }
        }
        if self.by_pod {
            settings.config.topology_manager_scope = TopologyManagerScope::Pod;
        }
        settings.config.pod_level_resource_managers = self.manages_pods;
        if !self.names_reserved {
            settings.reserved_system_cpus = None;
        }
        settings
    }

    /// Takes the books over as a start of the agent does, places a pod beside what is there, and
    /// gives everything back.
    pub(crate) fn check_adoption(self, books: Books) {
        let mut managers = self.managers();
        let empty = managers.books();
        managers.adopt(books);
        connect(&mut managers);
        if self.as_kubelet {
            // Kubelet's own numbers wrap around and drift: it is enough that nothing panics.
            let _decided = admit_answered(&managers, &one_more_pod());
            managers.retain(|_, _| false);
            return;
        }
        let held = check(&managers);

        let mut again = self.managers();
        let faults = again.adopt(managers.books());
        let cpu = |it: &Managers| it.cpu.as_ref().map(|it| it.reserved().clone());
        if cpu(&again) == cpu(&managers) {
            // What is reserved by number keeps off the CPUs that pods hold at each start, and says so.
            let is_other =
                |it: &&StateFault| !matches!(it, StateFault::Cpu(CpuStateFault::Reserved { .. }));
            let other: Vec<_> = faults.iter().filter(is_other).collect();
            assert!(other.is_empty(), "taken over again: {other:?}");
            assert_eq!(again.books(), managers.books());
        }

        let pod = one_more_pod();
        let decided = admit_answered(&managers, &pod).expect("plugins that answer");
        if decided.report.refusal.is_some() {
            assert_eq!(decided.managers.books(), managers.books());
        } else {
            let with_it = check(&decided.managers);
            for (uid, cpus) in &held {
                assert_eq!(with_it.get(uid), Some(cpus), "an admission moved {uid}");
            }
            let repeated = admit_answered(&decided.managers, &pod).expect("plugins that answer");
            assert_eq!(repeated.managers.books(), decided.managers.books());
            let mut after = decided.managers;
            let keep = |uid: &PodUid, _: &str| *uid != pod.uid;
            after.retain(keep);
            let mut before = managers.clone();
            before.retain(keep);
            assert_eq!(after.books(), before.books(), "a release restores exactly");
        }

        managers.retain(|_, _| false);
        let left = managers.books();
        assert_eq!(left.cpu.containers, empty.cpu.containers);
        assert_eq!(left.cpu.pods, empty.cpu.pods);
        assert_eq!(left.cpu.shared_pool.union(&reserved(&managers)), all());
        assert_eq!(left.memory, empty.memory);
        assert_eq!(left.devices.containers, empty.devices.containers);
    }
}

/// The plugin comes, or comes back: not part of what is stored.
fn connect(managers: &mut Managers) {
    let options = PluginOptions {
        has_preferred_allocation: true,
        ..PluginOptions::default()
    };
    managers.devices.connected(RESOURCE, 1, options);
    let device = |(i, node): (u32, u32)| Device {
        id: format!("gpu-{i}"),
        is_healthy: i != 3,
        numa: Some(NumaMask::from_bits(1_u64 << node)),
    };
    let devices = (0..4).zip([0, 0, 1, 1]).map(device).collect();
    managers.devices.set_devices(RESOURCE, 1, devices);
}

fn one_more_pod() -> ballast::model::pod::Pod {
    let amounts = [
        ("cpu", "2".to_owned()),
        ("memory", "64Mi".to_owned()),
        (RESOURCE, "1".to_owned()),
    ];
    pod(POD, &amounts).expect("a pod")
}

fn all() -> CpuSet {
    CpuSet::first(SHAPE.n_numa_nodes * SHAPE.cores_per_numa_node * SHAPE.threads_per_core)
}

fn reserved(managers: &Managers) -> CpuSet {
    let cpu = managers.cpu.as_ref().expect("the static policy");
    cpu.reserved().clone()
}

/// Nothing twice, nothing beyond what there is. Gives who holds which CPU.
fn check(managers: &Managers) -> BTreeMap<PodUid, CpuSet> {
    let held = check_cpus(managers);
    check_memory(managers);
    check_new_devices(managers);
    held
}

fn check_cpus(managers: &Managers) -> BTreeMap<PodUid, CpuSet> {
    let cpu = managers.cpu.as_ref().expect("the static policy");
    let state = cpu.state();
    let mut by_pod: BTreeMap<&PodUid, CpuSet> = BTreeMap::new();
    for (pod, containers) in &state.containers {
        let of_pod = by_pod.entry(pod).or_default();
        for cpus in containers.values().chain(state.pods.get(pod)) {
            assert!(!cpus.is_empty(), "{pod} holds no CPUs, as CPUs");
            *of_pod = of_pod.union(cpus);
        }
    }
    let mut taken = CpuSet::new();
    for (pod, cpus) in &by_pod {
        assert!(taken.is_disjoint(cpus), "{pod} has CPUs of another: {cpus}");
        taken = taken.union(cpus);
    }
    assert!(
        taken.is_disjoint(&state.shared_pool),
        "CPUs given out and shared"
    );
    assert!(taken.is_disjoint(cpu.reserved()), "reserved CPUs given out");
    let known = taken.union(&state.shared_pool).union(cpu.reserved());
    assert_eq!(known, all(), "CPUs lost or made up");
    let held = by_pod.into_iter();
    held.map(|(pod, cpus)| (pod.clone(), cpus)).collect()
}

fn check_memory(managers: &Managers) {
    let state = managers.memory_state();
    let mut reserved: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, node) in &state.nodes {
        for (resource, table) in &node.tables {
            let sum = table.free.checked_add(table.reserved);
            assert_eq!(sum, Some(table.allocatable), "{resource} of node {id}");
            assert!(table.allocatable <= table.total, "{resource} of node {id}");
            *reserved.entry(resource).or_default() += table.reserved;
        }
    }
    let mut held: BTreeMap<&str, u64> = BTreeMap::new();
    for (pod, containers) in &state.containers {
        let whole = state.pods.get(pod).filter(|it| !it.is_empty());
        let blocks: Vec<&MemoryBlock> = match whole {
            Some(whole) => whole.iter().collect(),
            None => containers.values().flatten().collect(),
        };
        for block in blocks {
            *held.entry(&block.resource).or_default() += block.size;
        }
    }
    // A block can be of nothing.
    reserved.retain(|_, bytes| *bytes > 0);
    held.retain(|_, bytes| *bytes > 0);
    assert_eq!(reserved, held, "what the tables and what the pods say");
}

/// Who holds a device that was chosen here holds it alone. What a file says is taken as it stands.
fn check_new_devices(managers: &Managers) {
    let books = managers.books().devices;
    let holders = |wanted: bool| {
        let pods = books.containers.iter();
        pods.filter(move |(pod, _)| (pod.0 == POD) == wanted)
            .flat_map(|(_, containers)| containers.values())
            .filter_map(|it| it.get(RESOURCE))
            .flat_map(|it| it.ids.values().flatten())
            .collect::<BTreeSet<_>>()
    };
    assert!(holders(true).is_disjoint(&holders(false)));
}
