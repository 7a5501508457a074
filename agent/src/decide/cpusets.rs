//! The cpuset of a container, from what the CPU and memory managers have given out; and who still
//! runs on CPUs that another one is to have alone.

use std::collections::BTreeMap;

use super::resource_settings::CpuPinning;
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::numa::NumaMask;
use crate::model::placement::{CpuState, MemoryState};
use crate::model::pod::PodUid;
use crate::model::resources::CgroupResources;
use crate::model::topology::NumaNodeId;

/// Where a container runs. `None`: its cgroup keeps what it has, which is its parent's when it is
/// new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlacement {
    /// `cpuset.cpus`: CPUs of its own, or the shared pool.
    pub cpus: Option<CpuSet>,
    /// `Exclusive` for CPUs of its own.
    pub pinning: CpuPinning,
    /// `cpuset.mems`.
    pub mems: Option<NumaMask>,
}

impl ContainerPlacement {
    /// No manager has an opinion.
    pub const ANYWHERE: Self = Self {
        cpus: None,
        pinning: CpuPinning::Shared,
        mems: None,
    };

    /// Kubelet's rule (pkg/kubelet/cm/internal_container_lifecycle_linux.go, v1.36: `PreCreateContainer`): its own
    /// CPUs, else the shared pool; the NUMA nodes of all its memory blocks, of every type. Nodes without
    /// memory are left out: v1 refuses them, and v2 takes them without effect. What is empty is left alone: policy
    /// `none` has no pool and no blocks.
    pub fn of(cpus: &CpuState, memory: &MemoryState, pod: &PodUid, container: &str) -> Self {
        let own = cpus.containers.get(pod).and_then(|it| it.get(container));
        let blocks = memory.containers.get(pod).and_then(|it| it.get(container));
        let mems = blocks
            .into_iter()
            .flatten()
            .fold(NumaMask::EMPTY, |mask, block| mask.union(block.numa));
        let has_memory = |id: &NumaNodeId| {
            let table = memory.nodes.get(id).and_then(|it| it.tables.get("memory"));
            table.is_none_or(|it| it.total > 0)
        };
        let mems = NumaMask::new(mems.iter().filter(has_memory)).unwrap_or(mems);
        Self {
            cpus: Some(own.unwrap_or(&cpus.shared_pool))
                .filter(|it| !it.is_empty())
                .cloned(),
            pinning: match own {
                Some(_) => CpuPinning::Exclusive,
                None => CpuPinning::Shared,
            },
            mems: Some(mems).filter(|it| !it.is_empty()),
        }
    }

    /// With memory of these nodes where no manager has an opinion: an earlier policy may have left it fewer.
    pub fn or_memory_of(self, nodes: Option<NumaMask>) -> Self {
        Self {
            mems: self.mems.or(nodes),
            ..self
        }
    }

    /// The resources that say no more than this.
    pub(super) fn resources(&self) -> CgroupResources {
        CgroupResources {
            cpuset_cpus: self.cpus.clone(),
            cpuset_mems: self.mems,
            ..CgroupResources::default()
        }
    }
}

/// The pod cgroup gets no CPU limit if any container, an init container included, has CPUs of its
/// own (pkg/kubelet/cm/container_manager.go, v1.36: `podHasExclusiveCPUs`).
pub fn pod_pinning(cpus: &CpuState, pod: &PodUid) -> CpuPinning {
    match cpus.containers.get(pod).is_some_and(|it| !it.is_empty()) {
        true => CpuPinning::Exclusive,
        false => CpuPinning::Shared,
    }
}

/// Of the cgroups in `observed`, those whose processes may still run on one of `cpus`, with the
/// CPUs in question. A cgroup whose CPUs are not known (`None`) may run on all of them.
///
/// The container that is to have `cpus` alone is not among `observed`. Until the answer is empty it
/// must not start: CPUs leave the shared pool in the kernel before they are somebody's own.
pub fn holders(
    observed: &BTreeMap<CgroupPath, Option<CpuSet>>,
    cpus: &CpuSet,
) -> BTreeMap<CgroupPath, CpuSet> {
    observed
        .iter()
        .map(|(path, held)| {
            let held = held.as_ref().unwrap_or(cpus);
            (path.clone(), held.intersection(cpus))
        })
        .filter(|(_, held)| !held.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

    use super::*;
    use crate::model::placement::{MemoryBlock, MemoryTable, NumaMemory};

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn uid() -> PodUid {
        PodUid("a".to_owned())
    }

    fn block(resource: &str, nodes: u64) -> MemoryBlock {
        MemoryBlock {
            numa: NumaMask::from_bits(nodes),
            resource: resource.to_owned(),
            size: 1,
        }
    }

    #[test]
    fn without_managers_a_container_runs_anywhere() {
        let (cpus, memory) = (CpuState::default(), MemoryState::default());
        let placement = ContainerPlacement::of(&cpus, &memory, &uid(), "app");
        assert_eq!(placement, ContainerPlacement::ANYWHERE);
        assert_eq!(placement.resources(), CgroupResources::default());
        assert_eq!(pod_pinning(&cpus, &uid()), CpuPinning::Shared);
    }

    #[test]
    fn a_container_has_its_own_cpus_or_the_pool_and_the_nodes_of_all_its_blocks() {
        let cpus = CpuState {
            shared_pool: set("0,3"),
            containers: BTreeMap::from([(uid(), BTreeMap::from([("app".to_owned(), set("1-2"))]))]),
            pods: BTreeMap::new(),
        };
        let blocks = vec![block("memory", 0b01), block("hugepages-2Mi", 0b10)];
        let memory = MemoryState {
            containers: BTreeMap::from([(uid(), BTreeMap::from([("app".to_owned(), blocks)]))]),
            ..MemoryState::default()
        };
        let of = |container| ContainerPlacement::of(&cpus, &memory, &uid(), container);
        assert_eq!(
            of("app"),
            ContainerPlacement {
                cpus: Some(set("1-2")),
                pinning: CpuPinning::Exclusive,
                mems: Some(NumaMask::from_bits(0b11)),
            }
        );
        assert_eq!(
            of("helper"),
            ContainerPlacement {
                cpus: Some(set("0,3")),
                ..ContainerPlacement::ANYWHERE
            }
        );
        assert_eq!(pod_pinning(&cpus, &uid()), CpuPinning::Exclusive);
        let other = PodUid("b".to_owned());
        assert_eq!(pod_pinning(&cpus, &other), CpuPinning::Shared);
    }

    #[test]
    fn numa_nodes_without_memory_are_left_out() {
        let node = |total| NumaMemory {
            tables: BTreeMap::from([(
                "memory".to_owned(),
                MemoryTable {
                    total,
                    ..MemoryTable::default()
                },
            )]),
            ..NumaMemory::default()
        };
        let nodes = BTreeMap::from([(NumaNodeId(0), node(1)), (NumaNodeId(1), node(0))]);
        for (given, mems) in [
            (0b01, Some(0b01)),
            (0b11, Some(0b01)),
            (0b10, None),
            // Nothing is known of the third.
            (0b110, Some(0b100)),
        ] {
            let blocks = vec![block("memory", given)];
            let memory = MemoryState {
                nodes: nodes.clone(),
                containers: BTreeMap::from([(uid(), BTreeMap::from([("app".to_owned(), blocks)]))]),
                ..MemoryState::default()
            };
            let placement = ContainerPlacement::of(&CpuState::default(), &memory, &uid(), "app");
            assert_eq!(placement.mems, mems.map(NumaMask::from_bits), "{given:b}");
        }
    }

    #[test]
    fn memory_that_an_earlier_policy_gave_is_widened_and_what_is_given_now_is_not() {
        let all = Some(NumaMask::from_bits(0b11));
        let own = Some(NumaMask::from_bits(0b10));
        for (mems, nodes, expected) in [
            (None, None, None),
            (None, all, all),
            (own, all, own),
            (own, None, own),
        ] {
            let placement = ContainerPlacement {
                mems,
                ..ContainerPlacement::ANYWHERE
            };
            let resources = placement.or_memory_of(nodes).resources();
            assert_eq!(resources.cpuset_mems, expected, "{mems:?} {nodes:?}");
        }
    }

    #[test]
    fn who_is_not_known_to_have_left_still_holds() {
        let path = |it: &str| CgroupPath::root().join(it).unwrap();
        let observed = BTreeMap::from([
            (path("gone-from-it"), Some(set("0-1"))),
            (path("still-there"), Some(set("1-2"))),
            (path("unknown"), None),
        ]);
        let held = BTreeMap::from([
            (path("still-there"), set("2")),
            (path("unknown"), set("2-3")),
        ]);
        assert_eq!(holders(&observed, &set("2-3")), held);
        assert_eq!(holders(&observed, &CpuSet::new()), BTreeMap::new());
    }
}
