//! Suite `pod_resources`: from a pod to its class, cgroup names and resources.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use ballast::config::{Compat, MemoryReservationPolicy, SwapBehavior, ThrottlingFactor};
use ballast::decide::container_resources::{
    container_resources, oom_score_adj, overhead_resources, sandbox_resources,
};
use ballast::decide::pod_resources::pod_resources;
use ballast::decide::qos::qos_class;
use ballast::decide::resource_settings::{
    CpuLimits, CpuPinning, MemoryQos, NodeFacts, OomScope, ResourceSettings,
};
use ballast::model::cgroup_name::{CgroupDriver, CgroupName};
use ballast::model::pod::Pod;
use ballast::model::resources::CgroupResources;
use ballast::model::status::CgroupVersion;
use ballast::units::{Bytes, Limit, Micros};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::resources::{
    hugepages, kubelet_cgroup, limit, page_size, page_size_name, pod, show_unified,
};

#[derive(Deserialize)]
struct Input {
    cpu_cfs_quota: bool,
    cpu_cfs_quota_period_us: u64,
    exclusive_cpu_containers: BTreeSet<String>,
    memory_qos: bool,
    memory_reservation_policy: String,
    memory_throttling_factor: f64,
    memory_swap_behavior: String,
    swap_controller_available: bool,
    single_process_oom_kill: bool,
    pod_pids_limit: i64,
    node: Node,
}

#[derive(Deserialize)]
struct Node {
    memory_capacity: u64,
    allocatable_memory: u64,
    swap_capacity: u64,
    hugepage_sizes: Vec<String>,
}

impl Input {
    fn settings(&self) -> ResourceSettings {
        ResourceSettings {
            compat: Compat::Kubelet,
            node: NodeFacts {
                version: CgroupVersion::V2,
                memory: Bytes(self.node.memory_capacity),
                allocatable_memory: Some(Bytes(self.node.allocatable_memory)),
                swap: Bytes(self.node.swap_capacity),
                is_swap_limitable: self.swap_controller_available,
                page_size: Bytes(4096),
            },
            cpu_limits: if self.cpu_cfs_quota {
                CpuLimits::Enforced
            } else {
                CpuLimits::Ignored
            },
            cpu_period: Micros(self.cpu_cfs_quota_period_us),
            pod_pids_limit: u64::try_from(self.pod_pids_limit).ok(),
            memory_qos: self.memory_qos.then_some(MemoryQos {
                policy: policy(&self.memory_reservation_policy),
                throttling_factor: ThrottlingFactor(self.memory_throttling_factor),
            }),
            swap_behavior: match self.memory_swap_behavior.as_str() {
                "LimitedSwap" => SwapBehavior::LimitedSwap,
                _ => SwapBehavior::NoSwap,
            },
            oom_scope: if self.single_process_oom_kill {
                OomScope::Process
            } else {
                OomScope::Container
            },
        }
    }

    /// The message to a runtime: a number for what is not given as well, and a period whenever
    /// quotas are enforced at all.
    fn message(&self, resources: &CgroupResources) -> Value {
        let quota = resources.cpu_bandwidth.map_or(Limit::At(0), |it| it.quota);
        let mut shown = json!({
            "cpu_shares": resources.cpu_shares,
            "cpu_quota": limit(Some(quota)),
            "cpu_period": if self.cpu_cfs_quota { self.cpu_cfs_quota_period_us } else { 0 },
            "memory_limit": limit(resources.memory_max.or(Some(Limit::At(0)))),
        });
        show_unified(resources, &mut shown);
        shown
    }

    /// Limits of the sizes named, and of all that the node has: 0 where none is asked for.
    fn every_size(
        &self,
        resources: &CgroupResources,
        asked_for: bool,
    ) -> anyhow::Result<BTreeMap<String, Value>> {
        let empty = BTreeMap::new();
        let given = resources.hugetlb.as_ref().unwrap_or(&empty);
        let mut sizes: BTreeSet<u64> = self
            .node
            .hugepage_sizes
            .iter()
            .map(|it| page_size(it))
            .collect::<Result<_, _>>()?;
        if asked_for {
            sizes.extend(given.keys());
        }
        let at = |size| limit(Some(given.get(&size).copied().unwrap_or(Limit::At(0))));
        Ok(sizes
            .into_iter()
            .map(|it| (page_size_name(it), at(it)))
            .collect())
    }
}

pub(crate) fn policy(name: &str) -> MemoryReservationPolicy {
    match name {
        "TieredReservation" => MemoryReservationPolicy::TieredReservation,
        _ => MemoryReservationPolicy::None,
    }
}

/// Kubelet adds overhead to pod-level quantities in place where it holds them as exact decimals
/// (`1.5Gi`): each evaluation of the pod adds it once more, and two go before the containers here.
/// How many went before is no property of a pod, so this is not in the agent, under no setting.
fn count_overhead_in_place(pod: &mut Pod) {
    let Some(own) = &mut pod.resources else {
        return;
    };
    for list in [&mut own.requests, &mut own.limits] {
        for (name, amount) in list {
            let Some(overhead) = pod.overhead.get(name) else {
                continue;
            };
            if amount.is_exact_form() && !amount.is_zero() {
                *amount = amount.plus(overhead).plus(overhead);
            }
        }
    }
}

pub(crate) fn run(case: &Value) -> anyhow::Result<Value> {
    let input = Input::deserialize(case).context("read the input")?;
    let settings = input.settings();
    let mut pod = pod(&case["pod"])?;
    let class = qos_class(&pod);
    let pinning = |is_exclusive| {
        if is_exclusive {
            CpuPinning::Exclusive
        } else {
            CpuPinning::Shared
        }
    };
    let pod_pinning = pinning(!input.exclusive_cpu_containers.is_empty());

    let name = CgroupName::kubepods(&CgroupName::root()).pod(class, &pod.uid)?;
    let own = pod_resources(&pod, class, &settings, pod_pinning);
    let mut own_shown = kubelet_cgroup(&own);
    let bandwidth = own.cpu_bandwidth;
    own_shown["cpu_quota"] = limit(bandwidth.map(|it| it.quota));
    own_shown["cpu_period"] = json!(bandwidth.map(|it| it.period.0));
    own_shown["hugepages"] = hugepages(&own);
    own_shown["hugetlb_written"] = json!(input.every_size(&own, true)?);

    count_overhead_in_place(&mut pod);
    let mut containers = serde_json::Map::new();
    for container in pod.all_containers() {
        let pinning = pinning(input.exclusive_cpu_containers.contains(&container.name));
        let resources = container_resources(&pod, class, container, &settings, pinning);
        let mut shown = input.message(&resources);
        shown["hugepages"] = json!(input.every_size(&resources, false)?);
        shown["oom_score_adj"] = json!(oom_score_adj(
            &pod,
            class,
            container,
            settings.node.memory,
            Compat::Kubelet
        ));
        containers.insert(container.name.clone(), shown);
    }
    let mut shown = json!({
        "qos": class,
        "cgroup": {
            "name": name,
            "cgroupfs": name.path(CgroupDriver::Cgroupfs),
            "systemd": name.path(CgroupDriver::Systemd),
        },
        "pod": own_shown,
        "containers": containers,
        "sandbox": input.message(&sandbox_resources(&pod, &settings, pod_pinning)),
    });
    if !pod.overhead.is_empty() {
        shown["overhead"] = input.message(&overhead_resources(&pod, &settings));
    }
    Ok(shown)
}
