//! What of a cgroup changes seldom: its limits, and the huge pages that it holds. Nothing is held.
//!
//! Invariant: a limit whose file cannot be read or understood is not shown as none: it fails all of them.

use super::cgroup::Context;
use crate::model::cgroup_files::{
    parse_cfs_bandwidth, parse_count, parse_cpu_max, parse_limit, parse_memory_limit_v1,
};
use crate::model::cgroup_path::CgroupPath;
use crate::model::resources::CpuBandwidth;
use crate::model::stats::{CgroupSpec, HugetlbUse};
use crate::model::text::ParseError;
use crate::sources::ReadError;
use crate::sources::cgroup_use::dir;
use crate::sys::{Dir, FsError};
use crate::units::{Limit, cpu_shares_of_weight};

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Settings {
    pub spec: CgroupSpec,
    pub hugetlb: Vec<HugetlbUse>,
}

impl Settings {
    /// `inode`: of the cgroup in the hierarchy of memory that is meant. `None`: another one is at the
    /// path by now.
    pub(super) fn read(
        cx: &Context,
        path: &CgroupPath,
        inode: Option<u64>,
    ) -> Result<Option<Self>, ReadError> {
        let dir = |controller| dir(&cx.trees, controller, path);
        let memory = dir("memory")?;
        if memory.as_ref().map(Dir::inode) != inode {
            return Ok(None);
        }
        let is_unified = cx.trees.unified;
        let spec = match &memory {
            Some(dir) if is_unified => spec_v2(dir)?,
            memory => spec_v1(memory.as_ref(), dir("cpu")?.as_ref(), dir("pids")?.as_ref())?,
        };
        let mut hugetlb = Vec::new();
        if !cx.hugepages.is_empty()
            && let Some(dir) = dir("hugetlb")?
        {
            for size in &cx.hugepages {
                hugetlb.extend(huge_pages(&dir, size, is_unified)?);
            }
        }
        Ok(Some(Self { spec, hugetlb }))
    }
}

fn spec_v2(dir: &Dir) -> Result<CgroupSpec, ReadError> {
    let limit = |file| value(Some(dir), file, parse_limit).map(|it| it.and_then(at));
    let cpu = value(Some(dir), "cpu.max", parse_cpu_max)?;
    Ok(CgroupSpec {
        is_known: true,
        cpu_shares: value(Some(dir), "cpu.weight", parse_count)?.map(shown_shares),
        cpu_quota_us: cpu.and_then(quota),
        cpu_period_us: cpu.map(|it| it.period.0),
        cpu_burst_us: value(Some(dir), "cpu.max.burst", parse_count)?,
        memory_limit: limit("memory.max")?,
        memory_min: limit("memory.min")?,
        memory_low: limit("memory.low")?,
        memory_high: limit("memory.high")?,
        memory_reservation: None,
        swap_limit: limit("memory.swap.max")?,
        max_tasks: limit("pids.max")?,
    })
}

/// As cAdvisor has them (container/common/helpers.go, v0.47 to v0.60: `convertCPUWeightToCPULimit`): by the linear map,
/// whichever the runtime has written the weight by. A cgroup of `cpu.idle` has no weight (Linux 5.15).
fn shown_shares(weight: u64) -> u64 {
    match weight {
        0 => 0,
        weight => cpu_shares_of_weight(weight),
    }
}

fn spec_v1(
    memory: Option<&Dir>,
    cpu: Option<&Dir>,
    pids: Option<&Dir>,
) -> Result<CgroupSpec, ReadError> {
    let bytes = |file| value(memory, file, parse_memory_limit_v1).map(|it| it.and_then(at));
    let period = text(cpu, "cpu.cfs_period_us")?;
    let bandwidth = |quota: &str| {
        let period = period.as_ref();
        period.map(|it| parse_cfs_bandwidth(quota, it)).transpose()
    };
    let bandwidth = value(cpu, "cpu.cfs_quota_us", bandwidth)?.flatten();
    Ok(CgroupSpec {
        is_known: true,
        cpu_shares: value(cpu, "cpu.shares", parse_count)?,
        cpu_quota_us: bandwidth.and_then(quota),
        cpu_period_us: bandwidth.map(|it| it.period.0),
        cpu_burst_us: value(cpu, "cpu.cfs_burst_us", parse_count)?,
        memory_limit: bytes("memory.limit_in_bytes")?,
        memory_min: None,
        memory_low: None,
        memory_high: None,
        memory_reservation: bytes("memory.soft_limit_in_bytes")?,
        swap_limit: bytes("memory.memsw.limit_in_bytes")?,
        max_tasks: value(pids, "pids.max", parse_limit)?.and_then(at),
    })
}

/// `None`: the kernel does not count those of this size.
fn huge_pages(dir: &Dir, size: &str, is_unified: bool) -> Result<Option<HugetlbUse>, ReadError> {
    let count = |file: &str| value(Some(dir), &format!("hugetlb.{size}.{file}"), parse_count);
    let usage = count(match is_unified {
        true => "current",
        false => "usage_in_bytes",
    })?;
    let max_usage = match is_unified {
        true => None,
        false => count("max_usage_in_bytes")?,
    };
    Ok(usage.map(|usage| HugetlbUse {
        page_size: size.to_owned(),
        usage,
        max_usage,
    }))
}

/// `None`: there is no such file.
fn text(dir: Option<&Dir>, file: &str) -> Result<Option<String>, FsError> {
    match dir {
        Some(dir) => dir.read_text_if_any(file),
        None => Ok(None),
    }
}

fn value<T>(
    dir: Option<&Dir>,
    file: &str,
    parse: impl Fn(&str) -> Result<T, ParseError>,
) -> Result<Option<T>, ReadError> {
    let (Some(dir), Some(text)) = (dir, text(dir, file)?) else {
        return Ok(None);
    };
    let found = parse(&text).map_err(|source| ReadError::Parse {
        path: dir.path().join(file),
        source,
    })?;
    Ok(Some(found))
}

fn at(limit: Limit) -> Option<u64> {
    match limit {
        Limit::At(value) => Some(value),
        Limit::Max => None,
    }
}

fn quota(bandwidth: CpuBandwidth) -> Option<u64> {
    at(bandwidth.quota)
}
