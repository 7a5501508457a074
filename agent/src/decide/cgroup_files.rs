//! Resources of a cgroup to the interface files that carry them (opencontainers/cgroups v0.0.6, fs and fs2).
//!
//! Invariant: a resource without an opinion yields no file, so the kernel's value stays.

use std::collections::BTreeMap;

use crate::model::cgroup::{Controller, FileKind, FileValue, InterfaceFile};
use crate::model::numa::NumaMask;
use crate::model::resources::CgroupResources;
use crate::units::{Limit, cpu_weight_linear, cpu_weight_quadratic};

/// How `cpu.shares` become a `cpu.weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightMap {
    /// Of the cgroups that kubelet writes: kubepods, QoS classes and pods.
    Linear,
    /// Of container cgroups, as the runtimes do it since runc 1.3.2.
    Quadratic,
}

/// What the files of a node look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRules {
    /// cgroup v2.
    pub unified: bool,
    /// Bytes.
    pub page_size: u64,
    /// Huge page sizes of the kernel in bytes, ascending; empty without the hugetlb controller.
    pub hugepage_sizes: Vec<u64>,
    /// Huge pages are limited when they are reserved too, not only when they are touched
    /// (`hugetlb.*.rsvd.*`, Linux 5.7).
    pub hugetlb_reservations: bool,
    /// v1: memory and swap are accounted together (`memory.memsw.*` exists).
    pub memory_and_swap: bool,
    /// v2: `memory.swap.max` exists.
    pub swap_max: bool,
    /// The devices of a container can be restricted.
    pub devices: bool,
    /// Processes are counted: the pids controller is there.
    pub pids: bool,
}

impl FileRules {
    /// Of a node that has nothing of what a node may lack.
    pub fn plain(unified: bool, page_size: u64) -> Self {
        Self {
            unified,
            page_size,
            hugepage_sizes: Vec::new(),
            hugetlb_reservations: false,
            memory_and_swap: false,
            swap_max: false,
            devices: false,
            pids: false,
        }
    }
}

/// The files to hold `resources`, in the order of writing.
pub fn files_for(
    resources: &CgroupResources,
    weights: WeightMap,
    rules: &FileRules,
) -> Vec<(InterfaceFile, FileValue)> {
    let mut files = Files {
        rules,
        files: Vec::new(),
    };
    if rules.unified {
        files.unified(resources, weights);
    } else {
        files.legacy(resources);
    }
    files.hugetlb(resources);
    files.cpuset(resources);
    files.files
}

struct Files<'a> {
    rules: &'a FileRules,
    files: Vec<(InterfaceFile, FileValue)>,
}

impl Files<'_> {
    fn push(&mut self, controller: Controller, name: &str, kind: FileKind, value: FileValue) {
        let file = InterfaceFile {
            controller,
            name: name.to_owned(),
            kind,
        };
        let value = kind.kept(value, self.rules.page_size);
        self.files.push((file, value));
    }

    /// A limit of 0 is none, as it is for runc, and one below a page is a page: the kernel counts in pages and makes
    /// 0 of it, with which no process starts.
    fn memory_limit(&self, limit: Option<Limit>) -> Option<FileValue> {
        let limit = match limit? {
            Limit::At(0) => return None,
            Limit::At(bytes) => Limit::At(bytes.max(self.rules.page_size)),
            Limit::Max => Limit::Max,
        };
        Some(FileValue::Limit(limit))
    }

    fn unified(&mut self, resources: &CgroupResources, weights: WeightMap) {
        self.pids_limit(resources);
        // The swap limit first: while memory.max shrinks, nothing may flow out to swap.
        let mut others = BTreeMap::new();
        for (name, text) in &resources.unified {
            if name == "memory.swap.max" {
                if self.rules.swap_max {
                    self.verbatim(name, text);
                }
            } else {
                others.insert(name, text);
            }
        }
        if let Some(limit) = self.memory_limit(resources.memory_max) {
            self.push(Controller::Memory, "memory.max", FileKind::PageLimit, limit);
        }
        if let Some(shares) = resources.cpu_shares {
            let weight = match weights {
                WeightMap::Linear => cpu_weight_linear(shares),
                WeightMap::Quadratic => cpu_weight_quadratic(shares),
            };
            let weight = FileValue::Number(weight);
            self.push(Controller::Cpu, "cpu.weight", FileKind::Number, weight);
        }
        if let Some(bandwidth) = resources.cpu_bandwidth {
            let max = FileValue::CpuMax(bandwidth);
            self.push(Controller::Cpu, "cpu.max", FileKind::CpuMax, max);
        }
        for (name, text) in others {
            self.verbatim(name, text);
        }
    }

    /// A `unified` entry: parsed where it is a limit, so that it compares as the kernel shows it.
    fn verbatim(&mut self, name: &str, text: &str) {
        let controller = Controller::ALL.into_iter().find(|it| {
            name.split_once('.')
                .is_some_and(|(head, _)| head == it.name())
        });
        let Some(controller) = controller else {
            return;
        };
        let kind = match name {
            "memory.min" | "memory.low" | "memory.high" | "memory.max" | "memory.swap.max" => {
                FileKind::PageLimit
            }
            "memory.oom.group" | "cpu.weight" => FileKind::Number,
            "pids.max" => FileKind::Limit,
            _ => FileKind::Text,
        };
        let value = kind
            .parse(text, self.rules.page_size)
            .unwrap_or_else(|| FileValue::Text(text.to_owned()));
        self.push(controller, name, kind, value);
    }

    fn legacy(&mut self, resources: &CgroupResources) {
        if let Some(limit) = self.memory_limit(resources.memory_max) {
            let kind = FileKind::PageLimitV1;
            self.push(Controller::Memory, "memory.limit_in_bytes", kind, limit);
        }
        if let Some(limit) = self.memory_limit(resources.memory_and_swap_max)
            && self.rules.memory_and_swap
        {
            let kind = FileKind::PageLimitV1;
            self.push(
                Controller::Memory,
                "memory.memsw.limit_in_bytes",
                kind,
                limit,
            );
        }
        if let Some(shares) = resources.cpu_shares {
            let shares = FileValue::Number(shares);
            self.push(Controller::Cpu, "cpu.shares", FileKind::Number, shares);
        }
        if let Some(bandwidth) = resources.cpu_bandwidth {
            let period = FileValue::Number(bandwidth.period.0);
            self.push(
                Controller::Cpu,
                "cpu.cfs_period_us",
                FileKind::Number,
                period,
            );
            let quota = FileValue::Limit(bandwidth.quota);
            self.push(
                Controller::Cpu,
                "cpu.cfs_quota_us",
                FileKind::SignedLimit,
                quota,
            );
        }
        self.pids_limit(resources);
    }

    /// A limit that the node cannot keep is told with the write; where there is to be none it has none.
    fn pids_limit(&mut self, resources: &CgroupResources) {
        let limit = resources.pids_max;
        if let Some(limit) = limit.filter(|it| self.rules.pids || *it != Limit::Max) {
            let limit = FileValue::Limit(at_least_one(limit));
            self.push(Controller::Pids, "pids.max", FileKind::Limit, limit);
        }
    }

    /// The same files on both versions. An empty set is never written: v1 refuses it where
    /// processes are, and v2 takes it for all that the parent has.
    fn cpuset(&mut self, resources: &CgroupResources) {
        let mems = resources.cpuset_mems.map(NumaMask::ids);
        for (name, ids) in [
            ("cpuset.cpus", resources.cpuset_cpus.as_ref()),
            ("cpuset.mems", mems.as_ref()),
        ] {
            if let Some(ids) = ids.filter(|it| !it.is_empty()) {
                let list = FileValue::List(ids.clone());
                self.push(Controller::Cpuset, name, FileKind::List, list);
            }
        }
    }

    fn hugetlb(&mut self, resources: &CgroupResources) {
        let Some(limits) = &resources.hugetlb else {
            return;
        };
        for &size in &self.rules.hugepage_sizes {
            let limit = limits.get(&size).copied().unwrap_or(Limit::At(0));
            // The kernel keeps whole huge pages, and its own maximum for more than there can be.
            let value = FileValue::Limit(match limit {
                Limit::At(bytes) => Limit::At(bytes / size * size),
                Limit::Max => Limit::Max,
            });
            let size = hugepage_size_name(size);
            let (limit, kind) = match self.rules.unified {
                true => ("max", FileKind::PageLimit),
                false => ("limit_in_bytes", FileKind::PageLimitV1),
            };
            let touched = format!("hugetlb.{size}.{limit}");
            self.push(Controller::Hugetlb, &touched, kind, value.clone());
            if self.rules.hugetlb_reservations {
                let reserved = format!("hugetlb.{size}.rsvd.{limit}");
                self.push(Controller::Hugetlb, &reserved, kind, value);
            }
        }
    }
}

/// `pids.max` of 0 would refuse the first process; kubelet's cgroup library writes 1
/// (opencontainers/cgroups v0.0.6, fs2/pids.go).
fn at_least_one(limit: Limit) -> Limit {
    match limit {
        Limit::At(n) => Limit::At(n.max(1)),
        Limit::Max => Limit::Max,
    }
}

/// The kernel's name of a huge page size given in bytes: `2MB`, `1GB`, `64KB`
/// (mm/hugetlb_cgroup.c, Linux 6.18).
pub fn hugepage_size_name(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    if bytes >= KIB * KIB * KIB {
        format!("{}GB", bytes >> 30)
    } else if bytes >= KIB * KIB {
        format!("{}MB", bytes >> 20)
    } else {
        format!("{}KB", bytes >> 10)
    }
}
