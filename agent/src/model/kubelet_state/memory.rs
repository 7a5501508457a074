//! `memory_manager_state` (pkg/kubelet/cm/memorymanager/state/checkpoint.go, v1.36): version 1, version 2 with the
//! memory of pods as a whole, and version 3 of kubelet 1.37, which is only read.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use serde::Serialize;

use super::dump::{self, Dump};
use super::json::{self, Fields, FromJson, JsonError, Node};
use super::{PodEntries, StateFileError};
use crate::model::numa::NumaMask;
use crate::model::placement::{ByContainer, MemoryBlock, MemoryState, MemoryTable, NumaMemory};
use crate::model::pod::PodUid;
use crate::model::topology::NumaNodeId;

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryFile {
    /// `None` or `Static`.
    #[serde(rename = "policyName")]
    policy: String,
    #[serde(rename = "machineState", serialize_with = "json::by_key_text")]
    nodes: BTreeMap<i64, NodeEntry>,
    #[serde(rename = "entries", skip_serializing_if = "BTreeMap::is_empty")]
    containers: ByContainer<Vec<BlockEntry>>,
    /// `None` in the version that has no place for it.
    #[serde(rename = "podEntries", skip_serializing_if = "is_none_or_empty")]
    pods: Option<BTreeMap<PodUid, PodBlocks>>,
    checksum: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeEntry {
    number_of_assignments: i64,
    memory_map: BTreeMap<String, MemoryTable>,
    cells: Vec<i64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct BlockEntry {
    numa_affinity: Vec<i64>,
    #[serde(rename = "type")]
    resource: String,
    /// Bytes.
    size: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodBlocks {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory_blocks: Vec<BlockEntry>,
}

fn is_none_or_empty<K, V>(entries: &Option<BTreeMap<K, V>>) -> bool {
    entries.as_ref().is_none_or(BTreeMap::is_empty)
}

impl MemoryFile {
    pub fn new(policy: &str, state: &MemoryState, pod_entries: PodEntries) -> Self {
        let blocks = |blocks: &Vec<MemoryBlock>| blocks.iter().map(BlockEntry::from).collect();
        let nodes = state.nodes.iter();
        let pods = state.pods.iter().map(|(uid, it)| {
            let memory_blocks = blocks(it);
            (uid.clone(), PodBlocks { memory_blocks })
        });
        let containers = state.containers.iter().map(|(uid, it)| {
            let containers = it.iter().map(|(name, it)| (name.clone(), blocks(it)));
            (uid.clone(), containers.collect())
        });
        Self {
            policy: policy.to_owned(),
            nodes: nodes.map(|(id, it)| (i64::from(id.0), it.into())).collect(),
            containers: containers.collect(),
            pods: match pod_entries {
                PodEntries::Yes => Some(pods.collect()),
                PodEntries::No => None,
            },
            checksum: 0,
        }
    }

    /// Reads either version; `policy` is the one that is configured.
    pub fn read(
        bytes: &[u8],
        policy: &str,
        pod_entries: PodEntries,
    ) -> Result<Self, StateFileError> {
        let file = match (Self::read_v3(bytes, pod_entries), pod_entries) {
            (Some(file), _) => file,
            (None, PodEntries::Yes) => {
                Self::read_v2(bytes).or_else(|_| Self::read_v1(bytes, pod_entries))?
            }
            (None, PodEntries::No) => Self::read_v1(bytes, pod_entries)?,
        };
        if file.policy != policy {
            return Err(StateFileError::PolicyDiffers {
                configured: policy.to_owned(),
                found: file.policy,
            });
        }
        Ok(file)
    }

    fn read_v3(bytes: &[u8], pod_entries: PodEntries) -> Option<Self> {
        let mut file: Self = super::sealed(bytes)?;
        let pods = file.pods.take().unwrap_or_default();
        file.pods = (pod_entries == PodEntries::Yes).then_some(pods);
        Some(file)
    }

    fn read_v2(bytes: &[u8]) -> Result<Self, StateFileError> {
        let mut file: Self = json::parse(bytes)?;
        file.pods.get_or_insert_default();
        let is_good = file.checksum == file.computed(CURRENT_TYPE);
        is_good.then_some(file).ok_or(StateFileError::Corrupt)
    }

    fn read_v1(bytes: &[u8], pod_entries: PodEntries) -> Result<Self, StateFileError> {
        let mut file: Self = json::parse(bytes)?;
        file.pods = None;
        let is_good = file.checksum == 0
            || file.checksum == file.computed(CURRENT_TYPE)
            || pod_entries == PodEntries::No && file.checksum == file.computed(V1_TYPE);
        is_good.then_some(file).ok_or(StateFileError::Corrupt)
    }

    /// The bytes of the file.
    pub fn to_text(&self) -> String {
        json::to_text(&Self {
            checksum: self.computed(CURRENT_TYPE),
            ..self.clone()
        })
    }

    /// What the checksum is made of.
    pub fn hash_input(&self) -> String {
        dump::text(&self.dumped(CURRENT_TYPE))
    }

    fn computed(&self, type_name: &'static str) -> u64 {
        dump::checksum(&self.dumped(type_name))
    }

    fn dumped(&self, type_name: &'static str) -> Dumped<'_> {
        let file = self;
        Dumped { type_name, file }
    }
}

/// The type that kubelet hashes, of either version; and the one that it accepts beside it.
const CURRENT_TYPE: &str = "MemoryManagerCheckpoint";
const V1_TYPE: &str = "MemoryManagerCheckpointV1";

impl TryFrom<&MemoryFile> for MemoryState {
    type Error = StateFileError;

    fn try_from(file: &MemoryFile) -> Result<Self, Self::Error> {
        let mut state = Self::default();
        for (id, entry) in &file.nodes {
            state.nodes.insert(numa_node(*id)?, entry.try_into()?);
        }
        for (uid, entries) in &file.containers {
            let containers = state.containers.entry(uid.clone()).or_default();
            for (name, entries) in entries {
                containers.insert(name.clone(), blocks(entries)?);
            }
        }
        for (uid, entry) in file.pods.iter().flatten() {
            state
                .pods
                .insert(uid.clone(), blocks(&entry.memory_blocks)?);
        }
        Ok(state)
    }
}

fn numa_node(id: i64) -> Result<NumaNodeId, StateFileError> {
    let number = u32::try_from(id);
    number
        .map(NumaNodeId)
        .ok()
        .ok_or(StateFileError::NumaNode(id))
}

fn blocks(entries: &[BlockEntry]) -> Result<Vec<MemoryBlock>, StateFileError> {
    entries.iter().map(MemoryBlock::try_from).collect()
}

impl From<&MemoryBlock> for BlockEntry {
    fn from(block: &MemoryBlock) -> Self {
        Self {
            numa_affinity: block.numa.iter().map(|it| i64::from(it.0)).collect(),
            resource: block.resource.clone(),
            size: block.size,
        }
    }
}

impl TryFrom<&BlockEntry> for MemoryBlock {
    type Error = StateFileError;

    fn try_from(entry: &BlockEntry) -> Result<Self, Self::Error> {
        let mut numa = NumaMask::EMPTY;
        for id in &entry.numa_affinity {
            numa = numa.with(numa_node(*id)?)?;
        }
        Ok(Self {
            numa,
            resource: entry.resource.clone(),
            size: entry.size,
        })
    }
}

impl From<&NumaMemory> for NodeEntry {
    fn from(node: &NumaMemory) -> Self {
        Self {
            number_of_assignments: i64::from(node.n_assignments),
            memory_map: node.tables.clone(),
            cells: node.group.iter().map(|it| i64::from(it.0)).collect(),
        }
    }
}

impl TryFrom<&NodeEntry> for NumaMemory {
    type Error = StateFileError;

    fn try_from(entry: &NodeEntry) -> Result<Self, Self::Error> {
        let n = entry.number_of_assignments;
        Ok(Self {
            n_assignments: u32::try_from(n)
                .ok()
                .ok_or(StateFileError::Assignments(n))?,
            tables: entry.memory_map.clone(),
            group: entry
                .cells
                .iter()
                .map(|id| numa_node(*id))
                .collect::<Result<_, _>>()?,
        })
    }
}

impl FromJson for MemoryFile {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            policy: fields.take("policyName")?,
            nodes: fields.take("machineState")?,
            containers: fields.take("entries")?,
            pods: fields.take("podEntries")?,
            checksum: fields.take("checksum")?,
        }))
    }
}

impl FromJson for NodeEntry {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            number_of_assignments: fields.take("numberOfAssignments")?,
            memory_map: fields.take("memoryMap")?,
            cells: fields.take("cells")?,
        }))
    }
}

impl FromJson for MemoryTable {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            total: fields.take("total")?,
            system_reserved: fields.take("systemReserved")?,
            allocatable: fields.take("allocatable")?,
            reserved: fields.take("reserved")?,
            free: fields.take("free")?,
        }))
    }
}

impl FromJson for BlockEntry {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            numa_affinity: fields.take("numaAffinity")?,
            resource: fields.take("type")?,
            size: fields.take("size")?,
        }))
    }
}

impl FromJson for PodBlocks {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Some(mut fields) = Fields::of(node) else {
            return Ok(None);
        };
        Ok(Some(Self {
            memory_blocks: fields.take("memoryBlocks")?,
        }))
    }
}

/// A file under a name of its type.
struct Dumped<'a> {
    type_name: &'static str,
    file: &'a MemoryFile,
}

impl Dump for Dumped<'_> {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        let file = self.file;
        write!(
            out,
            "(*state.{}){{PolicyName:(string){} MachineState:(state.NUMANodeMap)",
            self.type_name, file.policy
        )?;
        file.nodes.dump(out)?;
        out.write_str(" Entries:(state.ContainerMemoryAssignments)")?;
        file.containers.dump(out)?;
        if let Some(pods) = &file.pods {
            out.write_str(" PodEntries:(state.PodMemoryAssignments)")?;
            pods.dump(out)?;
        }
        out.write_str(" Checksum:(checksum.Checksum)0}")
    }
}

/// Nodes and tables are behind pointers in kubelet.
impl Dump for NodeEntry {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        write!(
            out,
            "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable)",
            self.number_of_assignments
        )?;
        self.memory_map.dump(out)?;
        out.write_str(" Cells:([]int)")?;
        self.cells.dump(out)?;
        out.write_char('}')
    }
}

impl Dump for MemoryTable {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        write!(
            out,
            "<*>{{TotalMemSize:(uint64){} SystemReserved:(uint64){} Allocatable:(uint64){} \
             Reserved:(uint64){} Free:(uint64){}}}",
            self.total, self.system_reserved, self.allocatable, self.reserved, self.free
        )
    }
}

impl Dump for BlockEntry {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        out.write_str("{NUMAAffinity:([]int)")?;
        self.numa_affinity.dump(out)?;
        write!(
            out,
            " Type:(v1.ResourceName){} Size:(uint64){}}}",
            self.resource, self.size
        )
    }
}

impl Dump for PodBlocks {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        out.write_str("{MemoryBlocks:([]state.Block)")?;
        self.memory_blocks.dump(out)?;
        out.write_char('}')
    }
}
