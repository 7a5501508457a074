//! The first process of a container or of a sandbox: descriptors, limits, and the interfaces of its network.
//!
//! Invariant: what is read is of the process that had the id when it was first looked at; where
//! descriptors are few, at each sweep. Nothing but its directory in `/proc` is held, since an open
//! `net/dev` keeps a network alive.

use std::path::PathBuf;
use std::time::Duration;

use super::cgroup::Held;
use crate::model::stats::text::{parse_max_open_files, parse_net_dev};
use crate::model::stats::{InterfaceStats, ProcessLimits};
use crate::sys::{Dir, Root};

/// How long limits are taken to stay: almost no process changes its own.
const LIMITS_STAY: Duration = Duration::from_secs(30);

/// Arbitrary: a `stat` or a link each, some 2 us, in every sweep.
const MAX_COUNTED: usize = 100;

/// What of the host processes are compared with.
#[derive(Clone, Debug)]
pub(super) struct HostFacts {
    /// The network namespace of the host; `None`: not known, and no process has one of its own.
    network: Option<PathBuf>,
    /// `stat` tells how many descriptors a process has (Linux 6.2).
    counts_descriptors: bool,
}

impl HostFacts {
    pub(super) fn read(root: &Root) -> Self {
        let own = Dir::open(&root.path("/proc/self")).ok();
        let network = |process: &str| root.read_link(format!("/proc/{process}/ns/net")).ok();
        Self {
            // In a container the agent's own may be another.
            network: network("1").or_else(|| network("self")),
            counts_descriptors: own
                .and_then(|it| it.size_of("fd").ok())
                .is_some_and(|it| it > 0),
        }
    }
}

/// The process that is known of a cgroup, for as long as it is the same.
#[derive(Debug, Default)]
pub(super) struct HeldProcess(Option<ProcessReader>);

impl HeldProcess {
    /// `pid` is the one that is known now. `None`: there is no such process.
    pub(super) fn renew(
        &mut self,
        pid: Option<u32>,
        held: &mut Held,
        root: &Root,
        host: &HostFacts,
    ) -> Option<&mut ProcessReader> {
        if self.0.as_ref().map(|it| it.pid) != pid {
            self.close(held);
            self.0 = pid.and_then(|pid| ProcessReader::open(root, pid, host));
            held.n += usize::from(self.0.is_some());
        }
        self.0.as_mut()
    }

    /// The network of the one that is held, if it is among `pids`, or else of the first of them that has one.
    pub(super) fn search(
        &mut self,
        pids: &[u32],
        held: &mut Held,
        root: &Root,
        host: &HostFacts,
    ) -> Option<Vec<InterfaceStats>> {
        if self.0.as_ref().is_some_and(|it| pids.contains(&it.pid))
            && let Some(network) = self.network()
        {
            return Some(network);
        }
        self.close(held);
        let pids = pids.iter().take(MAX_COUNTED);
        let mut found = pids.filter_map(|pid| ProcessReader::open(root, *pid, host));
        self.0 = found.find(|it| it.has_own_network);
        held.n += usize::from(self.0.is_some());
        self.network()
    }

    /// `None`: there is no process, its network is the host's, or it has ended.
    pub(super) fn network(&self) -> Option<Vec<InterfaceStats>> {
        self.0.as_ref()?.network()
    }

    pub(super) fn close(&mut self, held: &mut Held) {
        held.n -= usize::from(self.0.take().is_some());
    }
}

#[derive(Debug)]
pub(super) struct ProcessReader {
    pid: u32,
    dir: Dir,
    has_own_network: bool,
    limits: Option<(Duration, ProcessLimits)>,
}

impl ProcessReader {
    /// `None`: there is no such process.
    fn open(root: &Root, pid: u32, host: &HostFacts) -> Option<Self> {
        let dir = Dir::open(&root.path(format!("/proc/{pid}"))).ok()?;
        let network = root.read_link(format!("/proc/{pid}/ns/net")).ok();
        let both = network.zip(host.network.as_ref());
        Some(Self {
            pid,
            dir,
            has_own_network: both.is_some_and(|(own, host)| own != *host),
            limits: None,
        })
    }

    pub(super) fn limits(&mut self, at: Duration) -> ProcessLimits {
        if let Some((read_at, limits)) = self.limits
            && at.saturating_sub(read_at) < LIMITS_STAY
        {
            return limits;
        }
        let text = self.dir.read_text("limits").ok();
        let limits = ProcessLimits {
            max_open_files: text.and_then(|it| parse_max_open_files(&it)),
        };
        self.limits = Some((at, limits));
        limits
    }

    /// `None`: its network is the host's, or it has ended.
    fn network(&self) -> Option<Vec<InterfaceStats>> {
        if !self.has_own_network {
            return None;
        }
        let text = self.dir.descend(["net"]).ok()?.read_text("dev").ok()?;
        parse_net_dev(&text, is_shown).ok()
    }
}

/// Open descriptors of processes together; those that have ended meanwhile have none. `None`: there is no process,
/// the kernel does not count descriptors, or there are more processes than [`MAX_COUNTED`].
pub(super) fn descriptors(root: &Root, pids: &[u32], host: &HostFacts) -> Option<u64> {
    if !host.counts_descriptors || pids.len() > MAX_COUNTED {
        return None;
    }
    let count = |pid| Some(root.metadata(format!("/proc/{pid}/fd")).ok()?.len());
    pids.iter().filter_map(count).reduce(|sum, it| sum + it)
}

/// Interfaces that cAdvisor shows: not the loopback, and none of a bridge of containers, whose
/// traffic shows at the pod.
pub(super) fn is_shown(interface: &str) -> bool {
    const LEFT_OUT: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];
    !LEFT_OUT.iter().any(|it| interface.starts_with(it))
}
