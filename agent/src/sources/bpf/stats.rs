//! What the kernel counts: losses, stalls, the cost of the programs.

use std::collections::BTreeMap;

use aya::maps::{IterableMap, MapError};
use aya::programs::loaded_programs;
use ebpf_abi::StallTotal;
use zerocopy::FromBytes;

use super::{DeviceCount, LoadError, Stream, Streams, decode};
use crate::model::event::{CgroupId, CgroupLineage};

/// Time that the tasks of one cgroup, without its children, have waited for memory since the first
/// stall after loading. Counters, dropped with the cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallTotals {
    /// As of the first stall.
    pub cgroup: CgroupLineage,
    pub memcg_reclaim_ns: u64,
    pub memcg_reclaims: u64,
    pub direct_reclaim_ns: u64,
    pub direct_reclaims: u64,
}

/// The kernel's own account of one program, which it keeps while `kernel.bpf_stats_enabled` is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramStats {
    pub program: &'static str,
    pub run_count: u64,
    /// Includes some 40 ns per run for the measuring.
    pub run_time_ns: u64,
}

/// How full a map is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapUse {
    pub map: &'static str,
    pub n_entries: u64,
    pub capacity: u64,
}

impl Streams {
    /// Events lost since the stream was loaded, by an earlier agent if it was adopted: its ring was
    /// full, or for stalls a map.
    pub fn losses(&self) -> Result<BTreeMap<Stream, u64>, LoadError> {
        let mut losses = BTreeMap::new();
        for (stream, running) in &self.running {
            let lost = running.losses.get(&0, 0);
            let lost = lost.map_err(|source| LoadError::Map {
                stream: *stream,
                map: "losses",
                source,
            })?;
            losses.insert(*stream, lost.iter().sum());
        }
        Ok(losses)
    }

    /// By the cgroup of the waiting tasks. Costs two system calls per cgroup that ever stalled.
    pub fn stall_totals(&self) -> Result<BTreeMap<CgroupId, StallTotals>, LoadError> {
        let totals = self
            .running
            .get(&Stream::Stall)
            .and_then(|it| it.totals.as_ref());
        let mut found = BTreeMap::new();
        for entry in totals.iter().flat_map(|it| it.iter()) {
            let (id, bytes) = match entry {
                Ok(entry) => entry,
                // Removed with its cgroup between two calls.
                Err(MapError::KeyNotFound) => continue,
                Err(source) => {
                    return Err(LoadError::Map {
                        stream: Stream::Stall,
                        map: "totals",
                        source,
                    });
                }
            };
            if let Ok(total) = StallTotal::read_from_bytes(&bytes) {
                found.insert(CgroupId(id), stall_totals(&total));
            }
        }
        Ok(found)
    }

    /// The maps whose use varies and that can be counted: the stall totals, one entry per cgroup.
    /// Costs a system call per entry.
    pub fn map_use(&self) -> Result<Vec<MapUse>, LoadError> {
        let totals = self
            .running
            .get(&Stream::Stall)
            .and_then(|it| it.totals.as_ref());
        let failed = |source| LoadError::Map {
            stream: Stream::Stall,
            map: "totals",
            source,
        };
        totals
            .into_iter()
            .map(|totals| {
                let info = totals.map().info().map_err(failed)?;
                Ok(MapUse {
                    map: "stall_totals",
                    n_entries: totals.keys().filter(Result::is_ok).count() as u64,
                    capacity: u64::from(info.max_entries()),
                })
            })
            .collect()
    }

    /// One row per running program. Lists every program of the node: some microseconds each.
    pub fn program_stats(&self) -> Vec<ProgramStats> {
        let mut names: BTreeMap<u32, &'static str> = self
            .running
            .values()
            .flat_map(|it| it.programs.iter().map(|(name, id)| (*id, *name)))
            .collect();
        if let Some(device) = &self.device
            && let Some(id) = device.program_id()
        {
            names.insert(id, device.program());
        }
        loaded_programs()
            .filter_map(Result::ok)
            .filter_map(|info| {
                Some(ProgramStats {
                    program: names.get(&info.id())?,
                    run_count: info.run_count(),
                    run_time_ns: u64::try_from(info.run_time().as_nanos()).unwrap_or(u64::MAX),
                })
            })
            .collect()
    }

    /// Whether [`DeviceCount::is_denied`] can be told on this kernel; `None` where the counter is not
    /// attached.
    pub fn device_counter_tells_denials(&self) -> Option<bool> {
        self.device.as_ref()?.tells_denials()
    }

    /// Device accesses below the cgroup that the counter is attached to; none where it is not.
    pub fn device_counts(&self) -> Result<Vec<DeviceCount>, LoadError> {
        let counts = self.device.as_ref().map(|it| it.counts()).transpose();
        let counts = counts.map_err(|source| LoadError::Device {
            reason: source.to_string(),
        })?;
        Ok(counts.unwrap_or_default())
    }
}

fn stall_totals(total: &StallTotal) -> StallTotals {
    StallTotals {
        cgroup: decode::lineage(&total.cgroup),
        memcg_reclaim_ns: total.memcg_ns,
        memcg_reclaims: total.memcg_count,
        direct_reclaim_ns: total.direct_ns,
        direct_reclaims: total.direct_count,
    }
}
