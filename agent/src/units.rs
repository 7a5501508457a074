//! Amounts with their unit in the type, and the one place where units are converted and rounded.
//!
//! CPU amounts take four shapes: thousandths of a CPU (API), shares (`cpu.shares`, v1), weight
//! (`cpu.weight`, v2) and quota per period. Two maps lead from shares to weight, and both are in
//! use: see [`cpu_weight_linear`] and [`cpu_weight_quadratic`].
//!
//! Invariant: no IO, no clock; integer arithmetic, but for the quadratic map, which is defined on
//! floats.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Memory or storage, in bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// CPU time per time, in thousandths of one CPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MilliCpu(pub u64);

/// A span of time in microseconds, the unit of the kernel's CPU bandwidth files.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Micros(pub u64);

/// An upper bound that may be absent. The kernel writes the absence as `max` (v2) or as a huge
/// number (v1); neither ever stands in a number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Limit {
    /// Bounded; the unit is that of the file or field that carries the limit.
    At(u64),
    /// No bound.
    Max,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(n) => write!(f, "{n}"),
            Self::Max => f.write_str("max"),
        }
    }
}

/// `cpu.shares` of one full CPU.
pub const SHARES_PER_CPU: u64 = 1024;
/// Bounds of `cpu.shares` (kernel, `kernel/sched/sched.h`: MIN_SHARES, MAX_SHARES).
pub const MIN_SHARES: u64 = 2;
pub const MAX_SHARES: u64 = 262_144;
/// Bounds of `cpu.weight` (Documentation/admin-guide/cgroup-v2.rst).
pub const MIN_WEIGHT: u64 = 1;
pub const MAX_WEIGHT: u64 = 10_000;
/// Kubelet's smallest CPU quota per period: the kernel refuses less than 1 ms.
pub const MIN_QUOTA: Micros = Micros(1000);
/// Kernel and kubelet default of the CPU bandwidth period.
pub const DEFAULT_CPU_PERIOD: Micros = Micros(100_000);

/// `cpu.shares` (2..=262144) for a CPU request, rounded down; no request is the least.
///
/// Kubelet's MilliCPUToShares; vectors `node_allocatable`, kind `milli`.
pub fn cpu_shares(request: MilliCpu) -> u64 {
    let shares = u128::from(request.0) * u128::from(SHARES_PER_CPU) / 1000;
    u64::try_from(shares).map_or(MAX_SHARES, |it| it.clamp(MIN_SHARES, MAX_SHARES))
}

/// CPU time per `period` for a CPU limit, rounded down but at least [`MIN_QUOTA`]; `None` for no
/// limit (0).
///
/// Kubelet's MilliCPUToQuota; vectors `node_allocatable`, kind `milli`.
pub fn cpu_quota(limit: MilliCpu, period: Micros) -> Option<Micros> {
    if limit.0 == 0 {
        return None;
    }
    let quota = u128::from(limit.0) * u128::from(period.0) / 1000;
    let quota = Micros(u64::try_from(quota).unwrap_or(u64::MAX));
    Some(quota.max(MIN_QUOTA))
}

/// The CPU request behind `cpu.shares`, rounded up; 0 below the least shares.
pub fn milli_cpu_of_shares(shares: u64) -> MilliCpu {
    if shares < MIN_SHARES {
        return MilliCpu(0);
    }
    let milli = (u128::from(shares) * 1000).div_ceil(u128::from(SHARES_PER_CPU));
    MilliCpu(u64::try_from(milli).unwrap_or(u64::MAX))
}

/// The CPU limit behind a quota, rounded down; `None` when there is no quota or no period.
pub fn milli_cpu_of_quota(quota: Limit, period: Micros) -> Option<MilliCpu> {
    let Limit::At(quota) = quota else {
        return None;
    };
    let milli = (u128::from(quota) * 1000).checked_div(u128::from(period.0))?;
    Some(MilliCpu(u64::try_from(milli).unwrap_or(u64::MAX)))
}

/// `cpu.weight` (1..=10000) for `cpu.shares` (2..=262144, clamped), rounded down.
///
/// The linear map of KEP-2254. Kubelet uses it for the cgroups that it writes itself, so it is
/// ours for kubepods, the QoS cgroups and the pod cgroups. Vectors `node_allocatable`, kind
/// `shares`.
pub fn cpu_weight_linear(shares: u64) -> u64 {
    let shares = shares.clamp(MIN_SHARES, MAX_SHARES);
    MIN_WEIGHT + (shares - MIN_SHARES) * (MAX_WEIGHT - MIN_WEIGHT) / (MAX_SHARES - MIN_SHARES)
}

/// `cpu.shares` for a `cpu.weight` (1..=10000, clamped) read back, rounded down.
///
/// Kubelet's inverse of the linear map. It loses: 102 shares become weight 4 and 80 shares again,
/// so compare weights, never shares read back. Vectors `node_allocatable`, kind `weight`.
pub fn cpu_shares_of_weight(weight: u64) -> u64 {
    let weight = weight.clamp(MIN_WEIGHT, MAX_WEIGHT);
    MIN_SHARES + (weight - MIN_WEIGHT) * (MAX_SHARES - MIN_SHARES) / (MAX_WEIGHT - MIN_WEIGHT)
}

/// `cpu.weight` (1..=10000) for `cpu.shares` (2..=262144, clamped), rounded up.
///
/// The quadratic map through (2, 1), (1024, 100) and (262144, 10000) of opencontainers/cgroups
/// 0.0.3 and newer (runc 1.3.2). Runtimes use it for container cgroups, so it is ours where we
/// write those ourselves. Vectors `node_allocatable`, kind `shares`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the map is defined on 64-bit floats; shares have 18 bits and the result is 1..=10000"
)]
pub fn cpu_weight_quadratic(shares: u64) -> u64 {
    if shares <= MIN_SHARES {
        return MIN_WEIGHT;
    }
    if shares >= MAX_SHARES {
        return MAX_WEIGHT;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    (10_f64.powf(exponent).ceil() as u64).clamp(MIN_WEIGHT, MAX_WEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn milli_cpus_map_to_shares_and_both_weights() {
        for (milli, shares, linear, quadratic) in [
            (0, 2, 1, 1),
            (2, 2, 1, 1),
            (3, 3, 1, 2),
            (10, 10, 1, 4),
            (50, 51, 2, 11),
            (100, 102, 4, 17),
            (250, 256, 10, 35),
            (500, 512, 20, 59),
            (1000, 1024, 39, 100),
            (1500, 1536, 59, 138),
            (4000, 4096, 157, 303),
            (15_000, 15_360, 586, 893),
            (64_000, 65_536, 2500, 3023),
            (128_000, 131_072, 5000, 5478),
            (256_000, 262_144, 10_000, 10_000),
            (u64::MAX, 262_144, 10_000, 10_000),
        ] {
            assert_eq!(cpu_shares(MilliCpu(milli)), shares, "{milli}m");
            assert_eq!(cpu_weight_linear(shares), linear, "linear, {shares} shares");
            assert_eq!(
                cpu_weight_quadratic(shares),
                quadratic,
                "quadratic, {shares} shares"
            );
        }
        assert_eq!(cpu_weight_quadratic(262_143), 10_000);
    }

    #[test]
    fn weights_map_back_to_shares_at_both_ends() {
        for (weight, shares) in [
            (1, 2),
            (2, 28),
            (4, 80),
            (39, 998),
            (100, 2597),
            (245, 6398),
            (10_000, 262_144),
        ] {
            assert_eq!(cpu_shares_of_weight(weight), shares, "weight {weight}");
        }
    }

    #[test]
    fn a_quota_is_at_least_one_millisecond_and_none_without_a_limit() {
        for (milli, period, quota) in [
            (0, 100_000, None),
            (1, 100_000, Some(1000)),
            (10, 100_000, Some(1000)),
            (333, 100_000, Some(33_300)),
            (200, 5000, Some(1000)),
            (14_293, 1000, Some(14_293)),
        ] {
            let got = cpu_quota(MilliCpu(milli), Micros(period));
            assert_eq!(got, quota.map(Micros), "{milli}m at {period} us");
        }
        assert_eq!(milli_cpu_of_quota(Limit::Max, Micros(100_000)), None);
        assert_eq!(milli_cpu_of_quota(Limit::At(5), Micros(0)), None);
        assert_eq!(
            milli_cpu_of_quota(Limit::At(1000), Micros(5000)),
            Some(MilliCpu(200))
        );
        assert_eq!(milli_cpu_of_shares(1), MilliCpu(0));
        assert_eq!(milli_cpu_of_shares(102), MilliCpu(100));
    }

    #[test]
    fn a_larger_request_never_weighs_less() {
        let weights = |map: fn(u64) -> u64| (2..=262_144).map(map).collect::<Vec<_>>();
        assert!(weights(cpu_weight_linear).is_sorted());
        assert!(weights(cpu_weight_quadratic).is_sorted());
    }
}
