//! `cpu_manager_state` and `memory_manager_state`: read, turned into state, and taken over by the
//! managers of a small machine.
//!
//! The first byte says what the rest is: a file as it stands, or choices from which a state is made
//! that is then written and read. Only files with a sum of 0, which kubelet takes, get past the
//! checksum when they are changed, so the second way is the one that gets far with all formats.

use std::collections::BTreeMap;

use arbitrary::{Arbitrary, Unstructured};
use ballast::decide::placement::managers::Books;
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::kubelet_state::PodEntries;
use ballast::model::kubelet_state::cpu::CpuFile;
use ballast::model::kubelet_state::memory::MemoryFile;
use ballast::model::numa::NumaMask;
use ballast::model::placement::{
    ByContainer, CpuState, MemoryBlock, MemoryState, MemoryTable, NumaMemory,
};
use ballast::model::pod::PodUid;
use ballast::model::topology::NumaNodeId;

use crate::machine::Choice;

/// What the bytes after the first two, or the choices after the first, are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    CpuText,
    MemoryText,
    Made,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::CpuText, Self::MemoryText, Self::Made];

    fn of(byte: u8) -> Self {
        Self::ALL[usize::from(byte) % Self::ALL.len()]
    }
}

pub fn run(data: &[u8]) {
    let [form, data @ ..] = data else { return };
    match (Form::of(*form), data) {
        (Form::CpuText, [choice, text @ ..]) => cpu_text(Choice::from_byte(*choice), text),
        (Form::MemoryText, [choice, text @ ..]) => memory_text(Choice::from_byte(*choice), text),
        (Form::Made, choices) => {
            // Too few choices for a state say nothing.
            if let Ok(made) = Made::arbitrary(&mut Unstructured::new(choices)) {
                made.run();
            }
        }
        (_, []) => (),
    }
}

fn pod_entries(choice: Choice) -> PodEntries {
    match choice.manages_pods() {
        true => PodEntries::Yes,
        false => PodEntries::No,
    }
}

fn cpu_text(choice: Choice, text: &[u8]) {
    let ids = [("c0", "p0"), ("c1", "p1")]
        .map(|(id, pod)| (id.to_owned(), (PodUid(pod.to_owned()), "main".to_owned())));
    let entries = pod_entries(choice);
    let Ok(file) = CpuFile::read(text, "static", entries, &ids.into()) else {
        return;
    };
    let written = file.to_text(entries);
    let again = CpuFile::read(written.as_bytes(), "static", entries, &BTreeMap::new());
    let again = again.expect("a file of ours can be read");
    assert_eq!(again, file, "{written}");
    if let Ok(cpu) = CpuState::try_from(&file) {
        adopt_cpu(choice, cpu);
    }
}

fn memory_text(choice: Choice, text: &[u8]) {
    let entries = pod_entries(choice);
    let Ok(file) = MemoryFile::read(text, "Static", entries) else {
        return;
    };
    let Ok(memory) = MemoryState::try_from(&file) else {
        return;
    };
    check_memory_file(&memory, entries);
    adopt_memory(choice, memory);
}

fn check_cpu_file(state: &CpuState, entries: PodEntries) {
    let text = CpuFile::new("static", state).to_text(entries);
    let file = CpuFile::read(text.as_bytes(), "static", entries, &BTreeMap::new());
    let file = file.expect("a file of ours can be read");
    let mut expected = state.clone();
    if entries == PodEntries::No {
        expected.pods.clear();
    }
    let read = CpuState::try_from(&file).expect("CPUs that a set can have");
    assert_eq!(read, expected, "{text}");
}

fn check_memory_file(state: &MemoryState, entries: PodEntries) {
    let text = MemoryFile::new("Static", state, entries).to_text();
    let file = MemoryFile::read(text.as_bytes(), "Static", entries);
    let file = file.expect("a file of ours can be read");
    let mut expected = state.clone();
    if entries == PodEntries::No {
        expected.pods.clear();
    }
    let read = MemoryState::try_from(&file).expect("nodes that a mask can have");
    assert_eq!(read, expected, "{text}");
}

fn adopt_cpu(choice: Choice, cpu: CpuState) {
    choice.check_adoption(Books {
        cpu,
        ..Books::default()
    });
}

fn adopt_memory(choice: Choice, memory: MemoryState) {
    choice.check_adoption(Books {
        memory,
        ..Books::default()
    });
}

/// States of few pods that are likely to get in each other's way.
#[derive(Debug, Arbitrary)]
struct Made {
    choice: Choice,
    /// CPUs 0 to 15, of which the machine has half.
    pool: u16,
    cpus: Vec<(Pod, Name, u16)>,
    pod_cpus: Vec<(Pod, u16)>,
    nodes: Vec<(u8, Node)>,
    memory: Vec<(Pod, Name, Block)>,
    pod_memory: Vec<(Pod, Block)>,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Pod {
    A,
    B,
    C,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Name {
    Init,
    Main,
    Other,
}

#[derive(Debug, Arbitrary)]
struct Node {
    n_assignments: u8,
    table: [u64; 5],
    group: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
struct Block {
    /// Nodes 0 to 7, of which the machine has 0 and 1.
    nodes: u8,
    is_small: bool,
    resource: Resource,
    size: u64,
}

#[derive(Clone, Copy, Debug, Arbitrary)]
enum Resource {
    Memory,
    HugePages,
    Unknown,
}

impl Resource {
    fn name(self) -> String {
        match self {
            Self::Memory => "memory",
            Self::HugePages => "hugepages-2Mi",
            Self::Unknown => "hugepages-1Gi",
        }
        .to_owned()
    }
}

impl Pod {
    fn uid(self) -> PodUid {
        PodUid(format!("{self:?}"))
    }
}

impl Name {
    fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Block {
    fn block(self) -> MemoryBlock {
        let bits = match self.is_small {
            // Two bits that both mean something on the machine.
            true => self.nodes & 3,
            false => self.nodes,
        };
        MemoryBlock {
            numa: NumaMask::from_bits(bits.into()),
            resource: self.resource.name(),
            size: match self.is_small {
                true => self.size % (1 << 31),
                false => self.size,
            },
        }
    }
}

impl Made {
    fn run(self) {
        let (cpu, memory) = (self.cpu(), self.memory());
        let entries = pod_entries(self.choice);
        check_cpu_file(&cpu, entries);
        check_memory_file(&memory, entries);
        self.choice.check_adoption(Books {
            cpu,
            memory,
            ..Books::default()
        });
    }

    fn cpu(&self) -> CpuState {
        let mut containers = ByContainer::new();
        for (pod, name, cpus) in &self.cpus {
            let of_pod: &mut BTreeMap<_, _> = containers.entry(pod.uid()).or_default();
            of_pod.insert(name.name(), set(*cpus));
        }
        let pods = self.pod_cpus.iter();
        CpuState {
            shared_pool: set(self.pool),
            containers,
            pods: pods.map(|(pod, cpus)| (pod.uid(), set(*cpus))).collect(),
        }
    }

    fn memory(&self) -> MemoryState {
        let mut state = MemoryState::default();
        for (id, node) in &self.nodes {
            let [total, system_reserved, allocatable, reserved, free] = node.table;
            let table = MemoryTable {
                total,
                system_reserved,
                allocatable,
                reserved,
                free,
            };
            let node = NumaMemory {
                n_assignments: node.n_assignments.into(),
                tables: [("memory".to_owned(), table)].into(),
                group: node
                    .group
                    .iter()
                    .map(|it| NumaNodeId(u32::from(*it)))
                    .collect(),
            };
            state.nodes.insert(NumaNodeId((*id).into()), node);
        }
        for (pod, name, block) in &self.memory {
            let of_pod = state.containers.entry(pod.uid()).or_default();
            let blocks = of_pod.entry(name.name()).or_default();
            blocks.push(block.block());
        }
        for (pod, block) in &self.pod_memory {
            let blocks = state.pods.entry(pod.uid()).or_default();
            blocks.push(block.block());
        }
        state
    }
}

fn set(bits: u16) -> CpuSet {
    let is_in = |cpu: &u32| bits >> cpu & 1 == 1;
    (0..16).filter(is_in).map(CpuId).collect()
}
