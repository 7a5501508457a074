//! Suite `node_allocatable`: the node's figures, the cgroups above the pods, and CPU conversions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use ballast::config::{Compat, SwapBehavior, ThrottlingFactor};
use ballast::decide::node_allocatable::{
    Machine, NodeAllocatable, Part, Reservations, n_pods, node_resources,
};
use ballast::decide::qos::qos_class;
use ballast::decide::qos_cgroups::{QosReserved, qos_cgroups};
use ballast::decide::resource_settings::{
    CpuLimits, MemoryQos, NodeFacts, OomScope, ResourceSettings,
};
use ballast::model::eviction::Amount;
use ballast::model::pod::{Pod, QosClass};
use ballast::model::status::CgroupVersion;
use ballast::units::{
    Bytes, Limit, Micros, MilliCpu, cpu_quota, cpu_shares, cpu_shares_of_weight, cpu_weight_linear,
    cpu_weight_quadratic, milli_cpu_of_quota, milli_cpu_of_shares,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::pod_resources::policy;
use crate::resources::{kubelet_cgroup, number, page_size, pod, resource_list, text};

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    match text(input, "kind")? {
        "allocatable" => allocatable(input),
        "shares" => {
            let shares = number(input, "cpu_shares")?;
            Ok(json!({
                "kubelet_cpu_weight": cpu_weight_linear(shares),
                "library_cpu_weight": cpu_weight_quadratic(shares),
                "milli_cpu": milli_cpu_of_shares(shares),
            }))
        }
        "weight" => {
            let weight = number(input, "cpu_weight")?;
            Ok(json!({"cpu_shares": cpu_shares_of_weight(weight)}))
        }
        "milli" => {
            let milli = MilliCpu(number(input, "milli_cpu")?);
            let period = Micros(number(input, "period_us")?);
            let shares = cpu_shares(milli);
            let quota = cpu_quota(milli, period).unwrap_or(Micros(0));
            Ok(json!({
                "cpu_shares": shares,
                "cpu_quota": quota,
                "milli_cpu_from_shares": milli_cpu_of_shares(shares),
                "milli_cpu_from_quota": milli_cpu_of_quota(Limit::At(quota.0), period),
            }))
        }
        "qos_tiers" => qos_tiers(input),
        other => bail!("unknown kind {other}"),
    }
}

#[derive(Deserialize)]
struct Node {
    num_cpu: u32,
    memory: u64,
    ephemeral_storage: u64,
    hugepages: Vec<Pool>,
    max_pid: u64,
    max_pods: u32,
    pods_per_core: u32,
    eviction_hard: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Pool {
    page_size_kib: u64,
    num_pages: u64,
}

fn allocatable(input: &Value) -> anyhow::Result<Value> {
    let node = Node::deserialize(input).context("read the node")?;
    let machine = Machine {
        n_cpus: node.num_cpu,
        memory: Bytes(node.memory),
        hugepages: node
            .hugepages
            .iter()
            .map(|it| (it.page_size_kib << 10, it.num_pages))
            .collect(),
        held_hugepages: Bytes(0),
        ephemeral_storage: Some(Bytes(node.ephemeral_storage)),
        max_pid: Some(node.max_pid),
    };
    let threshold = |signal: &str| match node.eviction_hard.get(signal) {
        Some(text) => Amount::parse_threshold(text),
        None => Ok(None),
    };
    let reservations = Reservations {
        kube: resource_list(&input["kube_reserved"]).context("kube_reserved")?,
        system: resource_list(&input["system_reserved"]).context("system_reserved")?,
        hard_memory: threshold("memory.available")?,
        hard_nodefs: threshold("nodefs.available")?,
    };
    let figures = NodeAllocatable::new(&machine, &reservations);
    let n_pods = n_pods(machine.n_cpus, node.max_pods, node.pods_per_core);
    let overcommitted: Vec<&str> = figures
        .overcommitted()
        .into_iter()
        .map(|(name, ..)| name)
        .collect();
    let cgroup = |list, part| kubelet_cgroup(&node_resources(list, part));
    Ok(json!({
        "reservation": figures.reservation,
        "allocatable_absolute": figures.absolute,
        "node_capacity": figures.node_capacity(n_pods),
        "node_allocatable": figures.node_allocatable(n_pods),
        "kubepods_enforced": cgroup(&figures.cgroup_absolute, Part::All),
        "kubepods_not_enforced": cgroup(&figures.cgroup_capacity, Part::All),
        "kube_reserved_cgroup": cgroup(&reservations.kube, Part::All),
        "system_reserved_cgroup_compressible": cgroup(&reservations.system, Part::Compressible),
        "validate": if overcommitted.is_empty() {
            Value::Null
        } else {
            json!({"error": "reservation-exceeds-capacity", "resources": overcommitted})
        },
    }))
}

#[derive(Deserialize)]
struct Tiers {
    feature_gates: BTreeMap<String, bool>,
    memory_reservation_policy: String,
    qos_reserved_memory_percent: Option<u8>,
    node_allocatable_memory: u64,
    hugepage_sizes: Vec<String>,
    pods: Vec<Value>,
}

fn qos_tiers(input: &Value) -> anyhow::Result<Value> {
    let tiers = Tiers::deserialize(input).context("read the tiers")?;
    let is_on = |gate| tiers.feature_gates.get(gate).copied().unwrap_or(false);
    let pods: Vec<Pod> = tiers.pods.iter().map(pod).collect::<Result<_, _>>()?;
    let sizes: BTreeSet<u64> = tiers
        .hugepage_sizes
        .iter()
        .map(|it| page_size(it))
        .collect::<Result<_, _>>()?;
    let allocatable = Bytes(tiers.node_allocatable_memory);
    let settings = ResourceSettings {
        compat: Compat::Kubelet,
        node: NodeFacts {
            version: CgroupVersion::V2,
            memory: allocatable,
            allocatable_memory: Some(allocatable),
            swap: Bytes(0),
            is_swap_limitable: false,
            page_size: Bytes(4096),
        },
        cpu_limits: CpuLimits::Enforced,
        cpu_period: Micros(100_000),
        pod_pids_limit: None,
        memory_qos: is_on("MemoryQoS").then(|| MemoryQos {
            policy: policy(&tiers.memory_reservation_policy),
            throttling_factor: ThrottlingFactor(0.9),
        }),
        swap_behavior: SwapBehavior::NoSwap,
        oom_scope: OomScope::Container,
    };
    let reserved = tiers
        .qos_reserved_memory_percent
        .filter(|_| is_on("QOSReserved"))
        .map(|percent| QosReserved {
            percent,
            allocatable,
        });
    let cgroups = qos_cgroups(&pods, &settings, reserved, &sizes);
    let limits = reserved.and_then(|it| it.limits_for(&pods));
    let shown = |class| kubelet_cgroup(cgroups.of(class));
    let mut paths = json!({
        "/kubepods": shown(QosClass::Guaranteed),
        "/kubepods/burstable": shown(QosClass::Burstable),
        "/kubepods/besteffort": shown(QosClass::BestEffort),
    });
    // Kubelet's figure may be negative, which no limit of ours can be.
    if let Some(limits) = limits {
        paths["/kubepods/burstable"]["memory"] = json!(limits.burstable);
        paths["/kubepods/besteffort"]["memory"] = json!(limits.besteffort);
    }
    let classes: BTreeMap<&str, QosClass> = pods
        .iter()
        .map(|it| (it.name.as_str(), qos_class(it)))
        .collect();
    Ok(json!({"cgroups": paths, "pod_qos": classes}))
}
