//! Who seems to have filled a disk for which nobody is evicted, for people; nothing is decided by it.
//!
//! Files that are nobody's pod's may still be written by one, in a directory of the host. So the largest of those comes
//! first, then the pod that has grown most since the disk was not short. Neither is named unless it has a good part of
//! what is missing.

use std::fmt;
use std::path::PathBuf;

use super::brake::InVain;
use super::layout::FsLayout;
use super::rank::known_usage;
use crate::model::eviction::{DiskUse, Signal, Snapshot, StarvedResource};
use crate::model::record::PodRef;

/// A directory of the host that is a volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    pub path: PathBuf,
    pub pod: PodRef,
    /// At least.
    pub disk_use: DiskUse,
}

/// Amounts are in the unit of the resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writer {
    HostPath {
        path: PathBuf,
        pod: PodRef,
        holds: Amount,
    },
    Pod {
        pod: PodRef,
        grown: Amount,
    },
    Nobody,
}

/// An amount of a resource as people read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount(pub StarvedResource, pub u64);

impl Writer {
    /// `calm`: what was seen before the disk became short.
    pub fn of(
        (signal, layout): (Signal, FsLayout),
        in_vain: &InVain,
        host_paths: &[HostPath],
        calm: Option<&Snapshot>,
        now: &Snapshot,
    ) -> Self {
        let resource = signal.resource();
        let good_part = (in_vain.taken / 2).max(1);
        let amount = |it: &HostPath| match resource {
            StarvedResource::Inodes => it.disk_use.inodes,
            _ => it.disk_use.bytes,
        };
        let held = host_paths.iter().filter_map(|it| Some((amount(it)?, it)));
        let largest = held.max_by_key(|(holds, _)| *holds);
        if let Some((holds, it)) = largest.filter(|(holds, _)| *holds >= good_part) {
            return Self::HostPath {
                path: it.path.clone(),
                pod: it.pod.clone(),
                holds: Amount(resource, holds),
            };
        }
        let before = calm.map_or(&[][..], |it| &it.pods);
        let grown = now.pods.iter().filter_map(|it| {
            let mut before = before.iter();
            let before = before.find(|before| before.facts.pod.uid == it.facts.pod.uid)?;
            let before = known_usage(signal, layout, before)?;
            let now = known_usage(signal, layout, it)?;
            Some((now.saturating_sub(before), &it.facts.pod))
        });
        match grown.max_by_key(|(grown, _)| *grown) {
            Some((grown, pod)) if grown >= good_part => Self::Pod {
                pod: pod.clone(),
                grown: Amount(resource, grown),
            },
            _ => Self::Nobody,
        }
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostPath { path, pod, holds } => {
                let path = path.display();
                write!(f, "hostPath {path}, a volume of pod {pod}, holds {holds}")
            }
            Self::Pod { pod, grown } => {
                write!(f, "pod {pod} has grown by {grown} since there was enough")
            }
            Self::Nobody => f.write_str("no pod and no hostPath volume is seen to have taken it"),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(resource, n) = *self;
        match resource {
            StarvedResource::EphemeralStorage if n < 1 << 20 => write!(f, "{} KiB", n >> 10),
            StarvedResource::Memory | StarvedResource::EphemeralStorage => {
                write!(f, "{} MiB", n >> 20)
            }
            StarvedResource::Inodes => write!(f, "{n} inodes"),
            StarvedResource::Pids => write!(f, "{n} process ids"),
        }
    }
}

#[cfg(test)]
mod tests;
