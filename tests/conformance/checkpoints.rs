//! Suite `checkpoints`: kubelet's state files, byte for byte.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use ballast::model::kubelet_state::cpu::{ContainerIds, CpuFile};
use ballast::model::kubelet_state::device::{DeviceEntry, DeviceFile};
use ballast::model::kubelet_state::memory::MemoryFile;
use ballast::model::kubelet_state::{CpuRanges, PodEntries, StateFileError};
use ballast::model::numa::NumaMask;
use ballast::model::placement::{ByContainer, MemoryBlock, MemoryState, MemoryTable, NumaMemory};
use ballast::model::pod::PodUid;
use ballast::model::topology::NumaNodeId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::resources::text;

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    match text(input, "kind")? {
        "cpu_write" => cpu_write(input),
        "cpu_read" => cpu_read(input),
        "memory_write" => memory_write(input),
        "memory_read" => memory_read(input),
        "device_write" => device_write(input),
        "device_read" => device_read(input),
        other => bail!("unknown kind {other}"),
    }
}

fn pod_entries(input: &Value) -> PodEntries {
    match input["feature_gates"]["PodLevelResourceManagers"] {
        Value::Bool(true) => PodEntries::Yes,
        _ => PodEntries::No,
    }
}

fn error(error: &StateFileError) -> anyhow::Result<Value> {
    let kind = match error {
        StateFileError::Json(_) => "bad-json",
        StateFileError::Corrupt => "corrupt",
        StateFileError::PolicyDiffers { .. } => "policy-differs",
        StateFileError::SharedPool { .. } | StateFileError::CpuSet { .. } => "bad-cpuset",
        StateFileError::UnknownContainer(_) => "unknown-container-id",
        other => bail!("an error of ours: {other}"),
    };
    Ok(json!({"error": kind, "message": error.to_string()}))
}

fn field<T: for<'de> Deserialize<'de>>(input: &Value, name: &str) -> anyhow::Result<T> {
    serde_json::from_value(input[name].clone()).with_context(|| name.to_owned())
}

fn cpu_write(input: &Value) -> anyhow::Result<Value> {
    let set = |text: &String| text.parse::<CpuRanges>().context("a set of CPUs");
    let containers: ByContainer<String> = field(input, "assignments")?;
    let pods: Option<BTreeMap<PodUid, String>> = field(input, "pod_assignments")?;
    let mut file = CpuFile {
        policy: field(input, "policy")?,
        shared_pool: set(&field(input, "default_cpuset")?)?,
        ..CpuFile::default()
    };
    for (uid, texts) in &containers {
        let sets = file.containers.entry(uid.clone()).or_default();
        for (name, text) in texts {
            sets.insert(name.clone(), set(text)?);
        }
    }
    for (uid, text) in pods.iter().flatten() {
        file.pods.insert(uid.clone(), set(text)?);
    }
    let pod_entries = pod_entries(input);
    Ok(json!({
        "file": file.to_text(pod_entries),
        "hash_input": file.hash_input(pod_entries),
    }))
}

fn cpu_read(input: &Value) -> anyhow::Result<Value> {
    let policy: String = field(input, "policy")?;
    let text: Option<String> = field(input, "file")?;
    let containers: ContainerIds = field(input, "initial_containers")?;
    let pod_entries = pod_entries(input);
    let (file, after) = match text {
        None => {
            let policy = policy.clone();
            let file = CpuFile {
                policy,
                ..CpuFile::default()
            };
            let after = file.to_text(pod_entries);
            (Ok(file), after)
        }
        Some(text) => (
            CpuFile::read(text.as_bytes(), &policy, pod_entries, &containers),
            text,
        ),
    };
    let file = match file {
        Ok(file) => file,
        Err(fault) => return error(&fault),
    };
    let containers: ByContainer<String> = file
        .containers
        .iter()
        .map(|(uid, sets)| {
            let texts = sets.iter().map(|(name, it)| (name.clone(), it.to_string()));
            (uid.clone(), texts.collect())
        })
        .collect();
    let pods: BTreeMap<_, _> = file
        .pods
        .iter()
        .map(|(uid, it)| (uid, it.to_string()))
        .collect();
    Ok(json!({
        "assignments": containers,
        "default_cpuset": file.shared_pool.to_string(),
        "file_after": after,
        "pod_assignments": pods,
    }))
}

/// A NUMA node in kubelet's words.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    number_of_assignments: u32,
    memory_map: BTreeMap<String, MemoryTable>,
    cells: Vec<NumaNodeId>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Block {
    numa_affinity: NumaMask,
    #[serde(rename = "type")]
    resource: String,
    size: u64,
}

fn memory_write(input: &Value) -> anyhow::Result<Value> {
    let nodes: BTreeMap<NumaNodeId, Node> = field(input, "machine_state")?;
    let containers: ByContainer<Vec<Block>> = field(input, "assignments")?;
    let nodes = nodes.into_iter().map(|(id, node)| {
        let node = NumaMemory {
            n_assignments: node.number_of_assignments,
            tables: node.memory_map,
            group: node.cells,
        };
        (id, node)
    });
    let containers = containers.into_iter().map(|(uid, blocks)| {
        let blocks = blocks.into_iter().map(|(name, blocks)| {
            let blocks = blocks.into_iter().map(|it| MemoryBlock {
                numa: it.numa_affinity,
                resource: it.resource,
                size: it.size,
            });
            (name, blocks.collect())
        });
        (uid, blocks.collect())
    });
    let state = MemoryState {
        nodes: nodes.collect(),
        containers: containers.collect(),
        pods: BTreeMap::new(),
    };
    let file = MemoryFile::new(text(input, "policy")?, &state, pod_entries(input));
    Ok(json!({"file": file.to_text(), "hash_input": file.hash_input()}))
}

fn memory_read(input: &Value) -> anyhow::Result<Value> {
    let policy = text(input, "policy")?;
    let text: Option<String> = field(input, "file")?;
    let pod_entries = pod_entries(input);
    let (file, after) = match text {
        None => {
            let file = MemoryFile::new(policy, &MemoryState::default(), pod_entries);
            let after = file.to_text();
            (Ok(file), after)
        }
        Some(text) => (MemoryFile::read(text.as_bytes(), policy, pod_entries), text),
    };
    let file = match file {
        Ok(file) => file,
        Err(fault) => return error(&fault),
    };
    let state = MemoryState::try_from(&file)?;
    let nodes: BTreeMap<NumaNodeId, Node> = state
        .nodes
        .into_iter()
        .map(|(id, node)| {
            let node = Node {
                number_of_assignments: node.n_assignments,
                memory_map: node.tables,
                cells: node.group,
            };
            (id, node)
        })
        .collect();
    let containers: ByContainer<Vec<Block>> = state
        .containers
        .into_iter()
        .map(|(uid, blocks)| {
            let blocks = blocks.into_iter().map(|(name, blocks)| {
                let blocks = blocks.into_iter().map(|it| Block {
                    numa_affinity: it.numa,
                    resource: it.resource,
                    size: it.size,
                });
                (name, blocks.collect())
            });
            (uid, blocks.collect())
        })
        .collect();
    Ok(json!({"assignments": containers, "file_after": after, "machine_state": nodes}))
}

#[derive(Serialize, Deserialize)]
struct Entry {
    pod: String,
    container: String,
    resource: String,
    devices_per_numa: BTreeMap<String, Vec<String>>,
    alloc_resp_base64: String,
}

fn device_write(input: &Value) -> anyhow::Result<Value> {
    let entries: Vec<Entry> = field(input, "entries")?;
    let mut written = Vec::new();
    for entry in entries {
        let ids = entry.devices_per_numa.into_iter();
        written.push(DeviceEntry {
            pod: entry.pod,
            container: entry.container,
            resource: entry.resource,
            ids: ids
                .map(|(node, ids)| Ok((node.parse()?, ids)))
                .collect::<anyhow::Result<_>>()?,
            response: BASE64.decode(entry.alloc_resp_base64)?,
        });
    }
    let is_null: bool = field(input, "entries_null")?;
    let file = DeviceFile {
        entries: (!is_null).then_some(written),
        registered: field(input, "registered_devices")?,
    };
    Ok(json!({"file": file.to_text(), "hash_input": file.hash_input()}))
}

fn device_read(input: &Value) -> anyhow::Result<Value> {
    let file = match DeviceFile::read(text(input, "file")?.as_bytes()) {
        Ok(file) => file,
        Err(fault) => return error(&fault),
    };
    let entries = file.entries.into_iter().flatten().map(|entry| Entry {
        pod: entry.pod,
        container: entry.container,
        resource: entry.resource,
        devices_per_numa: entry
            .ids
            .into_iter()
            .map(|(node, ids)| (node.to_string(), ids))
            .collect(),
        alloc_resp_base64: BASE64.encode(entry.response),
    });
    Ok(json!({
        "entries": entries.collect::<Vec<_>>(),
        "registered_devices": file.registered,
    }))
}
