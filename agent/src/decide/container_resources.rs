//! The resources of a container's cgroup and its `oom_score_adj`
//! (pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, v1.36). With a CRI runtime they are
//! sent to it; with the process runtime they are written as they are, so CPU shares become a weight
//! by the runtimes' quadratic map ([`crate::units::cpu_weight_quadratic`]). Pinned by suite
//! `pod_resources`.

mod oom_score;

pub use self::oom_score::oom_score_adj;
use super::pod_resources::{hugepages, memory, milli_cpu};
use super::resource_settings::{CpuLimits, CpuPinning, MemoryQos, OomScope, ResourceSettings};
use crate::config::{MemoryReservationPolicy, SwapBehavior};
use crate::model::pod::{Container, Overhead, Pod, PodLevel, QosClass, ResourceList, cpu_in};
use crate::model::resources::{CgroupResources, CpuBandwidth};
use crate::units::{Bytes, Limit, MilliCpu, cpu_quota, cpu_shares};

/// What the container's cgroup is to hold. `pinning` is that of this container.
///
/// No CPU or memory limit leaves `cpu_bandwidth` or `memory_max` unset: a new cgroup has none.
pub fn container_resources(
    pod: &Pod,
    class: QosClass,
    container: &Container,
    settings: &ResourceSettings,
    pinning: CpuPinning,
) -> CgroupResources {
    let own = &container.resources;
    let pod_limits = pod.resources.as_ref().map(|it| &it.limits);
    // A container without a limit of its own takes the pod's.
    let limit = |of: fn(&ResourceList) -> u64| match of(&own.limits) {
        0 => pod_limits.map_or(0, of),
        limit => limit,
    };
    let basis = Basis {
        cpu_request: cpu_in(&own.requests),
        cpu_limit: MilliCpu(limit(|it| milli_cpu(it).0)),
        memory_limit: Bytes(limit(|it| memory(it).0)),
    };
    let mut resources = basis.resources(settings, pinning);
    let mut pages = pod_limits.map(hugepages).unwrap_or_default();
    pages.extend(hugepages(&own.limits));
    resources.hugetlb = Some(pages);
    protect_memory(&mut resources, class, container, settings);
    limit_swap(&mut resources, pod, class, container, settings);
    resources
}

/// What the sandbox of a CRI runtime is told of its pod: the sums without overhead.
pub fn sandbox_resources(
    pod: &Pod,
    settings: &ResourceSettings,
    pinning: CpuPinning,
) -> CgroupResources {
    let requests = pod.requests(PodLevel::Honoured, Overhead::Left);
    let limits = pod.limits(PodLevel::Honoured, Overhead::Left).amounts;
    let basis = Basis {
        cpu_request: cpu_in(&requests),
        cpu_limit: milli_cpu(&limits),
        memory_limit: memory(&limits),
    };
    basis.resources(settings, pinning)
}

/// What a CRI runtime is told of the pod's overhead, which is request and limit at once.
pub fn overhead_resources(pod: &Pod, settings: &ResourceSettings) -> CgroupResources {
    let cpu = milli_cpu(&pod.overhead);
    let memory_limit = memory(&pod.overhead);
    let basis = Basis {
        cpu_request: Some(cpu),
        cpu_limit: cpu,
        memory_limit,
    };
    basis.resources(settings, CpuPinning::Shared)
}

/// What containers, sandboxes and overhead have in common. 0 is no limit.
struct Basis {
    /// `None`: the shares follow the limit.
    cpu_request: Option<MilliCpu>,
    cpu_limit: MilliCpu,
    memory_limit: Bytes,
}

impl Basis {
    fn resources(&self, settings: &ResourceSettings, pinning: CpuPinning) -> CgroupResources {
        let takes_back = settings.takes_back();
        let period = settings.cpu_period;
        let limit = cpu_quota(self.cpu_limit, period).map(|it| Limit::At(it.0));
        let quota = match (settings.cpu_limits, pinning) {
            (CpuLimits::Enforced, CpuPinning::Exclusive) => Some(Limit::Max),
            (CpuLimits::Enforced, CpuPinning::Shared) => limit,
            // What it was started with before.
            (CpuLimits::Ignored, _) => limit.filter(|_| takes_back).map(|_| Limit::Max),
        };
        let group = match settings.oom_scope {
            OomScope::Container => Some("1"),
            OomScope::Process => takes_back.then_some("0"),
        };
        let group = group.filter(|_| settings.is_v2());
        let group = group.map(|it| ("memory.oom.group".to_owned(), it.to_owned()));
        CgroupResources {
            cpu_shares: Some(cpu_shares(self.cpu_request.unwrap_or(self.cpu_limit))),
            cpu_bandwidth: quota.map(|quota| CpuBandwidth { quota, period }),
            memory_max: (self.memory_limit.0 != 0).then_some(Limit::At(self.memory_limit.0)),
            unified: group.into_iter().collect(),
            ..CgroupResources::default()
        }
    }
}

/// `memory.min`, `memory.low` and `memory.high` by the container's own request and limit.
fn protect_memory(
    resources: &mut CgroupResources,
    class: QosClass,
    container: &Container,
    settings: &ResourceSettings,
) {
    let mut set = |file: &str, value: String| {
        resources.unified.insert(file.to_owned(), value);
    };
    if settings.resets_memory_protection() {
        set("memory.min", "0".to_owned());
        set("memory.low", "0".to_owned());
        set("memory.high", "max".to_owned());
    }
    let Some(qos) = settings.memory_qos else {
        return;
    };
    let request = memory(&container.resources.requests);
    let limit = memory(&container.resources.limits);
    if qos.policy == MemoryReservationPolicy::TieredReservation && request.0 != 0 {
        let file = if class == QosClass::Guaranteed {
            "memory.min"
        } else {
            "memory.low"
        };
        set(file, request.0.to_string());
    } else {
        set("memory.min", "0".to_owned());
        set("memory.low", "0".to_owned());
    }
    if let Some(high) = memory_high(request, limit, qos, settings) {
        set("memory.high", high.to_string());
    }
}

/// Where throttling begins: the request and `memoryThrottlingFactor` of what lies between it and
/// the limit, or the node's allocatable memory without one; rounded down to whole pages. `None`
/// where request and limit are equal, and where the result would not lie above the request.
///
/// Float arithmetic as in kubelet; suite `pod_resources`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "kubelet computes in 64-bit floats; the cast saturates, and negative is below any request"
)]
fn memory_high(
    request: Bytes,
    limit: Bytes,
    qos: MemoryQos,
    settings: &ResourceSettings,
) -> Option<u64> {
    if request == limit {
        return None;
    }
    let reference = if limit.0 != 0 {
        limit
    } else {
        settings.node.allocatable_memory?
    };
    if reference.0 == 0 {
        return None;
    }
    let page = settings.node.page_size.0.max(1);
    let request_bytes = request.0 as f64;
    let bytes = request_bytes + (reference.0 as f64 - request_bytes) * qos.throttling_factor.0;
    let high = ((bytes / page as f64).floor() as u64).saturating_mul(page);
    (high > request.0).then_some(high)
}

/// Swap: none, or a share of the node's by the share of its memory that the container requests.
fn limit_swap(
    resources: &mut CgroupResources,
    pod: &Pod,
    class: QosClass,
    container: &Container,
    settings: &ResourceSettings,
) {
    if !settings.node.is_swap_limitable {
        return;
    }
    if !settings.is_v2() {
        // As much memory and swap together as memory alone.
        resources.memory_and_swap_max = resources.memory_max;
        return;
    }
    let swap = swap_limit(pod, class, container, settings).unwrap_or(Bytes(0));
    resources
        .unified
        .insert("memory.swap.max".to_owned(), swap.0.to_string());
}

/// `None`: the container gets no swap.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "kubelet computes in 64-bit floats; the result lies between 0 and the node's swap"
)]
fn swap_limit(
    pod: &Pod,
    class: QosClass,
    container: &Container,
    settings: &ResourceSettings,
) -> Option<Bytes> {
    let request = container
        .resources
        .requests
        .get("memory")
        .cloned()
        .unwrap_or_default();
    let limit = container
        .resources
        .limits
        .get("memory")
        .cloned()
        .unwrap_or_default();
    // Request and limit both absent are equal as well.
    let is_eligible = settings.swap_behavior == SwapBehavior::LimitedSwap
        && class == QosClass::Burstable
        && !pod.is_critical()
        && request != limit;
    let node = settings.node;
    let request = request.units();
    if !is_eligible || node.memory.0 == 0 || request > node.memory.0 {
        return None;
    }
    let share = request as f64 / node.memory.0 as f64;
    Some(Bytes((share * node.swap.0 as f64) as u64))
}

#[cfg(test)]
mod tests;
