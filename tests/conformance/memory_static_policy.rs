//! Suite `memory_static_policy`: the memory manager over a sequence of operations, and the check of
//! `reservedMemory`.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use ballast::config::{Compat, NumaReservation};
use ballast::decide::placement::hints::ProviderHints;
use ballast::decide::placement::memory::{
    MemoryConfigError, MemoryError, MemoryManager, MemorySettings, MemoryStateError, NumaCapacity,
    ReservedMemoryError, check_reserved_memory,
};
use ballast::model::numa::Hint;
use ballast::model::placement::MemoryState;
use ballast::model::pod::{Container, Pod, PodUid};
use ballast::model::topology::NumaNodeId;
use ballast::units::Bytes;
use ballast_tests::timing::decision;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::resources::{pod, resource_list, text};

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    if input.get("reserved_memory").is_some() {
        return reserved(input);
    }
    let case = Case::deserialize(input).context("read the case")?;
    let mut manager = match MemoryManager::new(case.settings(&case.system_reserved)) {
        Ok(manager) => manager,
        Err(error) => return Ok(json!({"construct": construct_error(&error)?})),
    };
    let start = match manager.start(MemoryState::default()) {
        Ok(()) => shown(manager.state(), Tables::Whole),
        Err(error) => start_error(&error, manager.state()),
    };
    let pods = case.pods.iter().map(pod);
    let pods: Vec<Pod> = pods.collect::<anyhow::Result<_>>()?;
    let mut results = Vec::new();
    for op in &case.ops {
        let (next, result) = step(&case, &pods, manager, op)
            .with_context(|| format!("operation {}", results.len()))?;
        manager = next;
        results.push(result);
    }
    Ok(json!({"start": start, "ops": results}))
}

#[derive(Deserialize)]
struct Case {
    machine: Vec<Node>,
    system_reserved: BTreeMap<String, BTreeMap<String, u64>>,
    feature_gates: BTreeMap<String, bool>,
    #[serde(default)]
    pods: Vec<Value>,
    #[serde(default)]
    ops: Vec<Value>,
}

#[derive(Deserialize)]
struct Node {
    numa: u32,
    memory: u64,
    hugepages: Vec<Pool>,
}

#[derive(Deserialize)]
struct Pool {
    page_size_kib: u64,
    num_pages: u64,
}

impl Case {
    fn settings(&self, reserved: &BTreeMap<String, BTreeMap<String, u64>>) -> MemorySettings {
        let machine = self.machine.iter().map(|it| {
            let pools = it.hugepages.iter();
            let capacity = NumaCapacity {
                memory: Bytes(it.memory),
                hugepages: pools
                    .map(|it| (Bytes(it.page_size_kib << 10), it.num_pages))
                    .collect(),
            };
            (NumaNodeId(it.numa), capacity)
        });
        let reserved = reserved
            .iter()
            .filter_map(|(id, amounts)| Some((NumaNodeId(id.parse().ok()?), amounts.clone())));
        let gate = |name| self.feature_gates.get(name).copied();
        MemorySettings {
            compat: Compat::Kubelet,
            manages_pod_level: gate("PodLevelResourceManagers").unwrap_or(false)
                && gate("PodLevelResources").unwrap_or(true),
            machine: machine.collect(),
            reserved: reserved.collect(),
        }
    }
}

fn step(
    case: &Case,
    pods: &[Pod],
    mut manager: MemoryManager,
    op: &Value,
) -> anyhow::Result<(MemoryManager, Value)> {
    let of_pod = || {
        let uid = text(op, "pod")?;
        let pod = pods.iter().find(|it| it.uid.0 == uid);
        pod.with_context(|| format!("no pod {uid}"))
    };
    let hint = || Hint::deserialize(&op["hint"]).context("read the hint");
    let done = |manager: MemoryManager, result: Result<(), MemoryError>| {
        let mut value = shown(manager.state(), Tables::Changing);
        if let Err(error) = result {
            value["error"] = json!(kind(&error));
        }
        (manager, value)
    };
    Ok(match text(op, "op")? {
        "allocate" => {
            let pod = of_pod()?;
            let (container, hint) = (container(pod, op)?, hint()?);
            let result = decision(|| manager.allocate(pod, container, hint));
            done(manager, result)
        }
        "allocate_pod" => {
            let (pod, hint) = (of_pod()?, hint()?);
            let result = decision(|| manager.allocate_pod(pod, hint));
            done(manager, result)
        }
        "remove" => {
            let pod = PodUid(text(op, "pod")?.to_owned());
            manager.release(&pod, text(op, "container")?);
            done(manager, Ok(()))
        }
        "restart" => {
            let changed = match op.get("system_reserved") {
                Some(it) => Some(BTreeMap::deserialize(it).context("system_reserved")?),
                None => None,
            };
            let settings = case.settings(changed.as_ref().unwrap_or(&case.system_reserved));
            let state = manager.state().clone();
            let mut next = MemoryManager::new(settings).context("construct again")?;
            match next.start(state) {
                Ok(()) => done(next, Ok(())),
                Err(error) => {
                    let value = start_error(&error, manager.state());
                    (manager, value)
                }
            }
        }
        "container_hints" => {
            let pod = of_pod()?;
            let container = container(pod, op)?;
            let hints = decision(|| manager.hints(pod, container));
            (manager, json!({"hints": shown_hints(hints)}))
        }
        "pod_hints" => {
            let pod = of_pod()?;
            let hints = decision(|| manager.pod_hints(pod));
            (manager, json!({"hints": shown_hints(hints)}))
        }
        other => bail!("unknown operation {other}"),
    })
}

fn container<'a>(pod: &'a Pod, op: &Value) -> anyhow::Result<&'a Container> {
    let name = text(op, "container")?;
    let found = pod.all_containers().find(|it| it.name == name);
    found.with_context(|| format!("no container {name}"))
}

fn reserved(input: &Value) -> anyhow::Result<Value> {
    #[derive(Deserialize)]
    struct Entry {
        numa: u32,
        limits: Value,
    }
    let n = u32::deserialize(&input["numa_nodes"]).context("numa_nodes")?;
    let entries =
        Vec::<Entry>::deserialize(&input["reserved_memory"]).context("reserved_memory")?;
    let entries: Vec<NumaReservation> = entries
        .iter()
        .map(|it| {
            Ok(NumaReservation {
                numa_node: NumaNodeId(it.numa),
                limits: resource_list(&it.limits)?,
            })
        })
        .collect::<anyhow::Result<_>>()?;
    let reservation = resource_list(&input["node_allocatable_reservation"])?;
    let nodes = (0..n).map(NumaNodeId);
    let result = check_reserved_memory(Compat::Kubelet, nodes, &reservation, &entries);
    Ok(json!({"reserved": match result {
        Ok(reserved) => {
            let nodes = reserved.iter().map(|(id, amounts)| (id.0.to_string(), json!(amounts)));
            Value::Object(nodes.collect())
        }
        Err(error) => json!({"error": match error {
            ReservedMemoryError::UnknownNumaNode(_) => "reserved-unknown-numa",
            ReservedMemoryError::TotalDiffers { .. } => "reserved-total-mismatch",
            ReservedMemoryError::NotInt64 { .. } => "quantity-not-int64",
        }}),
    }}))
}

fn construct_error(error: &MemoryConfigError) -> anyhow::Result<Value> {
    match error {
        MemoryConfigError::NothingReserved => Ok(json!({"error": "no-system-reserved"})),
        other => bail!("construct: {other}"),
    }
}

fn start_error(error: &MemoryStateError, state: &MemoryState) -> Value {
    let mut value = shown(state, Tables::Changing);
    value["error"] = json!(match error {
        MemoryStateError::Differs => "state-mismatch".to_owned(),
        other => other.to_string(),
    });
    value
}

fn kind(error: &MemoryError) -> &'static str {
    match error {
        MemoryError::NotInt64 => "quantity-not-int64",
        MemoryError::NoDefaultAffinity => "no-default-affinity",
        MemoryError::NoDefaultPreferredHint => "no-default-preferred-hint",
        MemoryError::CannotExtendHint => "cannot-extend-hint",
        MemoryError::NoExtendedPreferredHint => "no-extended-preferred-hint",
        MemoryError::ViolatesGroups => "hint-violates-numa-allocation",
        MemoryError::NothingLeftToShare { .. } | MemoryError::NothingForInitContainers { .. } => {
            "empty-pod-shared-pool"
        }
    }
}

/// How much of the tables a result shows.
#[derive(Clone, Copy)]
enum Tables {
    Whole,
    Changing,
}

fn shown(state: &MemoryState, tables: Tables) -> Value {
    let nodes = state.nodes.iter().map(|(id, node)| {
        let memory: Map<String, Value> = node
            .tables
            .iter()
            .map(|(resource, it)| {
                let mut table = json!({"reserved": it.reserved, "free": it.free});
                if let Tables::Whole = tables {
                    table["total"] = json!(it.total);
                    table["system_reserved"] = json!(it.system_reserved);
                    table["allocatable"] = json!(it.allocatable);
                }
                (resource.clone(), table)
            })
            .collect();
        let node = json!({
            "assignments": node.n_assignments,
            "cells": node.group,
            "memory": memory,
        });
        (id.0.to_string(), node)
    });
    let containers = state.containers.iter().map(|(pod, containers)| {
        let containers = containers.iter().map(|(container, blocks)| {
            let blocks: Vec<Value> = blocks
                .iter()
                .map(|it| json!({"numa": it.numa, "type": it.resource, "size": it.size}))
                .collect();
            (container.clone(), Value::Array(blocks))
        });
        (pod.0.clone(), Value::Object(containers.collect()))
    });
    json!({
        "nodes": Value::Object(nodes.collect()),
        "containers": Value::Object(containers.collect()),
    })
}

fn shown_hints(hints: Option<ProviderHints>) -> Value {
    match hints {
        None => Value::Null,
        Some(hints) => {
            let lists = hints
                .into_iter()
                .map(|(resource, it)| (resource, json!(it.list())));
            Value::Object(lists.collect())
        }
    }
}
