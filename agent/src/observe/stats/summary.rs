//! `/stats/summary`: the Summary API v1alpha1 of kubelet
//! (staging/src/k8s.io/kubelet/pkg/apis/stats/v1alpha1/types.go, v1.36).
//!
//! Numbers that are not known are left out. Invariant: the names of fields are the API's, not ours.

mod api;

use std::collections::BTreeMap;

pub use self::api::Summary;
use self::api::{
    Container, Cpu, FileSystem, Interface, Io, Memory, Network, Node, Pod, PodReference, Pressure,
    PressureLine, ProcessCount, Rlimit, Seconds, Swap, Volume,
};
use crate::model::eviction::DiskUse;
use crate::model::psi::{Psi, PsiLine, StallShare};
use crate::model::stats::{
    CgroupStats, ContainerStats, FileSystemStats, GroupKind, InterfaceStats, PodStats,
    StatsSnapshot,
};

/// The interface whose figures stand for those of a pod.
const DEFAULT_INTERFACE: &str = "eth0";

/// The document. `before`: the sweep before `now`, from which the rate of CPU use follows.
/// `is_cpu_and_memory_only`: what the query `only_cpu_and_memory=true` asks for.
///
/// Containers that have ended are not in it, nor are pods without a cgroup.
pub fn summary(
    before: Option<&StatsSnapshot>,
    now: &StatsSnapshot,
    is_cpu_and_memory_only: bool,
) -> Summary {
    let view = View {
        before: before.map(cgroups_by_id).unwrap_or_default(),
        now,
        is_whole: !is_cpu_and_memory_only,
    };
    let pods = now.pods.iter().filter(|it| it.stats.is_some());
    Summary {
        node: view.node(),
        pods: pods.map(|it| view.pod(it)).collect(),
    }
}

/// Every cgroup of a sweep by its path.
fn cgroups_by_id(snapshot: &StatsSnapshot) -> BTreeMap<&str, &CgroupStats> {
    let root = [("/", &snapshot.node.cgroup)].into_iter();
    let groups = snapshot.groups.iter().map(|it| (it.id.as_str(), &it.stats));
    let pods = snapshot.pods.iter();
    let stats = pods
        .clone()
        .filter_map(|it| Some((it.id.as_str(), it.stats.as_ref()?)));
    let containers = pods
        .flat_map(|it| &it.containers)
        .map(|it| (it.id.as_str(), &it.stats));
    root.chain(groups).chain(stats).chain(containers).collect()
}

struct View<'a> {
    before: BTreeMap<&'a str, &'a CgroupStats>,
    now: &'a StatsSnapshot,
    is_whole: bool,
}

impl<'a> View<'a> {
    fn whole<T>(&self, part: impl FnOnce() -> T) -> Option<T> {
        self.is_whole.then(part)
    }

    fn node(&self) -> Node {
        let node = &self.now.node;
        let machine = &self.now.machine;
        let kubepods = self
            .now
            .groups
            .iter()
            .find(|it| it.kind == GroupKind::Kubepods);
        let swap = node.cgroup.memory.swap;
        Node {
            node_name: machine.node_name.clone(),
            system_containers: kubepods
                .map(|it| Container {
                    name: "pods".to_owned(),
                    start_time: it.made_at.map(Seconds),
                    cpu: self.cpu(&it.id, &it.stats),
                    memory: self.memory(&it.stats, it.stats.spec.memory_limit),
                    io: self.io(&it.stats),
                    swap: self.swap(&it.stats),
                    ..Container::default()
                })
                .into_iter()
                .collect(),
            start_time: machine.booted_at.map(Seconds),
            cpu: self.cpu("/", &node.cgroup),
            memory: self.memory(&node.cgroup, Some(machine.memory)),
            io: self.io(&node.cgroup),
            network: self.network(&node.network, &node.cgroup),
            fs: self.whole(|| self.node_file_system()).flatten(),
            rlimit: self.whole(|| self.rlimit()).flatten(),
            swap: swap.map(|used| Swap {
                time: self.time(&node.cgroup),
                swap_available_bytes: Some(machine.swap.saturating_sub(used)),
                swap_usage_bytes: Some(used),
            }),
        }
    }

    fn pod(&self, pod: &'a PodStats) -> Pod {
        let stats = pod.stats.as_ref();
        let running = || pod.containers.iter().filter(|it| it.ended_at.is_none());
        let n_processes = running()
            .filter_map(|it| it.stats.n_processes)
            .reduce(|a, b| a + b);
        Pod {
            pod_ref: PodReference {
                name: pod.pod.name.clone(),
                namespace: pod.pod.namespace.clone(),
                uid: pod.pod.uid.0.clone(),
            },
            start_time: Seconds(pod.started_at),
            containers: running().map(|it| self.container(it)).collect(),
            cpu: stats.and_then(|it| self.cpu(&pod.id, it)),
            memory: stats.and_then(|it| self.memory(it, it.spec.memory_limit)),
            io: stats.and_then(|it| self.io(it)),
            network: stats.and_then(|it| self.network(&pod.network, it)),
            volume: self.whole(|| self.volumes(pod)).unwrap_or_default(),
            ephemeral_storage: self
                .whole(|| {
                    let bytes = pod.ephemeral_storage;
                    self.disk(DiskUse {
                        bytes,
                        inodes: None,
                    })
                })
                .flatten(),
            process_stats: self
                .whole(|| n_processes.map(|process_count| ProcessCount { process_count }))
                .flatten(),
            swap: stats.and_then(|it| self.swap(it)),
        }
    }

    fn container(&self, container: &ContainerStats) -> Container {
        let stats = &container.stats;
        Container {
            // The API has no other field that tells it apart.
            name: container.known_as().to_owned(),
            start_time: container.started_at.map(Seconds),
            cpu: self.cpu(&container.id, stats),
            memory: self.memory(stats, stats.spec.memory_limit),
            io: self.io(stats),
            rootfs: self.whole(|| self.disk(container.root_fs)).flatten(),
            logs: self.whole(|| self.disk(container.logs)).flatten(),
            swap: self.swap(stats),
        }
    }

    /// Wall time of the reading.
    fn time(&self, stats: &CgroupStats) -> Seconds {
        Seconds(self.now.seen_at(stats))
    }

    fn cpu(&self, id: &str, stats: &CgroupStats) -> Option<Cpu> {
        let usage = stats.cpu.usage_ns?;
        Some(Cpu {
            time: self.time(stats),
            usage_nano_cores: self.before.get(id).and_then(|it| nano_cores(it, stats)),
            usage_core_nano_seconds: Some(usage),
            psi: self.whole(|| stats.stalls.cpu.map(pressure)).flatten(),
        })
    }

    /// `limit`: what the cgroup may use, bytes; `None`: there is none.
    fn memory(&self, stats: &CgroupStats, limit: Option<u64>) -> Option<Memory> {
        let figures = &stats.memory;
        let usage = figures.usage?;
        let working_set = figures.working_set();
        let available = limit
            .zip(working_set)
            .map(|(limit, it)| limit.saturating_sub(it));
        Some(Memory {
            time: self.time(stats),
            available_bytes: available,
            usage_bytes: Some(usage),
            working_set_bytes: working_set,
            rss_bytes: figures.stat.anon.map(|it| it.0),
            page_faults: figures.stat.page_faults,
            major_page_faults: figures.stat.major_page_faults,
            psi: self.whole(|| stats.stalls.memory.map(pressure)).flatten(),
        })
    }

    fn io(&self, stats: &CgroupStats) -> Option<Io> {
        let psi = self.whole(|| stats.stalls.io.map(pressure)).flatten()?;
        Some(Io {
            time: self.time(stats),
            psi,
        })
    }

    /// What is left is known on cgroup v2 alone: the limit of v1 is about memory and swap together.
    fn swap(&self, stats: &CgroupStats) -> Option<Swap> {
        let used = stats.memory.swap?;
        let limit = stats
            .spec
            .swap_limit
            .filter(|_| self.now.machine.is_unified);
        Some(Swap {
            time: self.time(stats),
            swap_available_bytes: limit.map(|it| it.saturating_sub(used)),
            swap_usage_bytes: Some(used),
        })
    }

    /// `None` where there are no interfaces to tell about.
    fn network(&self, interfaces: &[InterfaceStats], stats: &CgroupStats) -> Option<Network> {
        let mut interfaces = interfaces.iter().filter(|it| it.is_counted()).peekable();
        interfaces.peek().filter(|_| self.is_whole)?;
        let interfaces: Vec<_> = interfaces.map(interface).collect();
        let default = interfaces.iter().find(|it| it.name == DEFAULT_INTERFACE);
        Some(Network {
            time: self.time(stats),
            default: default.cloned().unwrap_or_default(),
            interfaces,
        })
    }

    fn node_file_system(&self) -> Option<FileSystem> {
        let it = self.now.node.file_system.as_ref()?;
        let used = DiskUse {
            bytes: Some(it.used),
            inodes: it
                .inodes
                .zip(it.inodes_free)
                .map(|(all, free)| all.saturating_sub(free)),
        };
        Some(self.file_system(used, Some(it)))
    }

    fn rlimit(&self) -> Option<Rlimit> {
        let machine = &self.now.machine;
        Some(Rlimit {
            time: Seconds(self.now.at),
            maxpid: machine.max_pids,
            curproc: self.now.node.n_tasks,
        })
        .filter(|it| it.maxpid.is_some() || it.curproc.is_some())
    }

    /// What is used of the node's file system; `None`: not known.
    fn disk(&self, used: DiskUse) -> Option<FileSystem> {
        used.bytes?;
        Some(self.file_system(used, self.now.node.file_system.as_ref()))
    }

    fn file_system(&self, used: DiskUse, of: Option<&FileSystemStats>) -> FileSystem {
        FileSystem {
            time: Seconds(self.now.at),
            available_bytes: of.map(|it| it.available),
            capacity_bytes: of.map(|it| it.capacity),
            used_bytes: used.bytes,
            inodes_free: of.and_then(|it| it.inodes_free),
            inodes: of.and_then(|it| it.inodes),
            inodes_used: used.inodes,
        }
    }

    fn volumes(&self, pod: &PodStats) -> Vec<Volume> {
        let of_node = self.now.node.file_system.as_ref();
        let volumes = pod.volumes.iter();
        volumes
            .filter(|(_, used)| used.bytes.is_some())
            .map(|(name, used)| {
                let own = pod.volume_file_systems.get(name);
                Volume {
                    file_system: self.file_system(*used, own.or(of_node)),
                    name: name.clone(),
                }
            })
            .collect()
    }
}

/// CPU time per time between two readings, rounded down. `None`: they are of two cgroups, or not
/// one after the other.
fn nano_cores(before: &CgroupStats, now: &CgroupStats) -> Option<u64> {
    if before.cgroup_id != now.cgroup_id {
        return None;
    }
    let used = now.cpu.usage_ns?.checked_sub(before.cpu.usage_ns?)?;
    let passed = now.at.checked_sub(before.at)?.as_nanos();
    let nano_cores = (u128::from(used) * 1_000_000_000).checked_div(passed)?;
    u64::try_from(nano_cores).ok()
}

fn pressure(psi: Psi) -> Pressure {
    Pressure {
        full: psi.full.map(pressure_line),
        some: pressure_line(psi.some),
    }
}

fn pressure_line(line: PsiLine) -> PressureLine {
    // Hundredths of a percent are exact to two digits in this division.
    let percent = |share: StallShare| f64::from(share.0) / 100.0;
    PressureLine {
        total: line.total.0,
        avg10: percent(line.avg10),
        avg60: percent(line.avg60),
        avg300: percent(line.avg300),
    }
}

fn interface(stats: &InterfaceStats) -> Interface {
    Interface {
        name: stats.name.clone(),
        rx_bytes: Some(stats.received.bytes),
        rx_errors: Some(stats.received.errors),
        tx_bytes: Some(stats.transmitted.bytes),
        tx_errors: Some(stats.transmitted.errors),
    }
}
