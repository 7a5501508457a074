//! Cgroups as data: their interface files with typed values, what is observed of them, and the
//! operations that a plan is made of.
//!
//! Invariant: a value is compared in the form that the kernel keeps, never as the text that was
//! asked for: a weight, a whole number of pages, [`Limit::Max`] for every spelling of "no limit".

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::cgroup_path::CgroupPath;
use super::cpuset::CpuSet;
use super::device_access::DeviceAccess;
use super::resources::CpuBandwidth;
use crate::units::{Limit, Micros};

/// Which hierarchy of cgroup v1 an interface file lives in. On v2 there is one for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    Cpu,
    Cpuset,
    Memory,
    Pids,
    Hugetlb,
    /// Of v1 alone; on v2 an eBPF program does its work.
    Devices,
}

impl Controller {
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Cpuset,
        Self::Memory,
        Self::Pids,
        Self::Hugetlb,
        Self::Devices,
    ];

    /// The kernel's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Hugetlb => "hugetlb",
            Self::Devices => "devices",
        }
    }
}

/// The syntax of an interface file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum FileKind {
    /// A plain number.
    Number,
    /// A number or `max`.
    Limit,
    /// Bytes or `max`; the kernel keeps whole pages, rounded down.
    PageLimit,
    /// v1: bytes, -1 for none; reads as the largest page multiple where there is none.
    PageLimitV1,
    /// v1: a number, -1 for none.
    SignedLimit,
    /// `cpu.max`: quota or `max`, and the period.
    CpuMax,
    /// Device rules. No single file: v1 shows them in `devices.list` and takes changes in two
    /// others, v2 has a program for them. See [`InterfaceFile::devices`].
    Devices,
    /// A list of CPUs or of NUMA nodes.
    List,
    /// Anything else, compared as text.
    Text,
}

/// An interface file by the name that it has in the cgroup's directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct InterfaceFile {
    pub controller: Controller,
    pub name: String,
    pub kind: FileKind,
}

impl InterfaceFile {
    /// What stands for the device rules of a cgroup, of either version.
    pub fn devices() -> Self {
        Self {
            controller: Controller::Devices,
            name: "devices".to_owned(),
            kind: FileKind::Devices,
        }
    }

    /// The limit of memory, of either version.
    pub fn is_memory_limit(&self) -> bool {
        matches!(&*self.name, "memory.max" | "memory.limit_in_bytes")
    }

    /// v2: the file that says what a cgroup has of a list, `cpuset.cpus.effective` for
    /// `cpuset.cpus` (Linux 5.0).
    pub fn effective(&self) -> String {
        format!("{}.effective", self.name)
    }
}

/// The value of an interface file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum FileValue {
    Number(u64),
    Limit(Limit),
    CpuMax(CpuBandwidth),
    Devices(DeviceAccess),
    /// Ids of CPUs or of NUMA nodes.
    List(CpuSet),
    Text(String),
}

impl FileKind {
    /// Text of the kernel to a value; `None` when it is not of this kind. `page_size` in bytes.
    pub fn parse(self, text: &str, page_size: u64) -> Option<FileValue> {
        let text = text.trim();
        Some(match self {
            Self::Number => FileValue::Number(text.parse().ok()?),
            Self::Limit => FileValue::Limit(parse_limit(text)?),
            Self::PageLimit => match parse_limit(text)? {
                Limit::Max => FileValue::Limit(Limit::Max),
                Limit::At(bytes) => FileValue::Limit(whole_pages(bytes, page_size)),
            },
            Self::PageLimitV1 | Self::SignedLimit if text.starts_with('-') => {
                text.parse::<i64>().ok()?;
                FileValue::Limit(Limit::Max)
            }
            Self::PageLimitV1 => FileValue::Limit(whole_pages(text.parse().ok()?, page_size)),
            Self::SignedLimit => FileValue::Limit(Limit::At(text.parse().ok()?)),
            Self::CpuMax => {
                let (quota, period) = text.split_once(' ')?;
                FileValue::CpuMax(CpuBandwidth {
                    quota: parse_limit(quota)?,
                    period: Micros(period.parse().ok()?),
                })
            }
            Self::Devices => FileValue::Devices(text.parse().ok()?),
            Self::List => FileValue::List(text.parse().ok()?),
            Self::Text => FileValue::Text(text.to_owned()),
        })
    }

    /// The text to write.
    pub fn format(self, value: &FileValue) -> String {
        match (self, value) {
            (Self::PageLimitV1 | Self::SignedLimit, FileValue::Limit(Limit::Max)) => "-1".into(),
            (_, value) => value.to_string(),
        }
    }

    /// `value` as the kernel will show it.
    pub fn kept(self, value: FileValue, page_size: u64) -> FileValue {
        match (self, value) {
            (Self::PageLimit | Self::PageLimitV1, FileValue::Limit(Limit::At(bytes))) => {
                FileValue::Limit(whole_pages(bytes, page_size))
            }
            (_, value) => value,
        }
    }
}

fn parse_limit(text: &str) -> Option<Limit> {
    match text {
        "max" => Some(Limit::Max),
        number => number.parse().ok().map(Limit::At),
    }
}

/// The kernel's page counters stop at `PAGE_COUNTER_MAX`, `LONG_MAX` bytes in whole pages
/// (include/linux/page_counter.h, Linux 6.18); from there on it means no limit.
fn whole_pages(bytes: u64, page_size: u64) -> Limit {
    let pages = bytes / page_size;
    if pages >= i64::MAX as u64 / page_size {
        Limit::Max
    } else {
        Limit::At(pages * page_size)
    }
}

impl fmt::Display for FileValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::Limit(limit) => write!(f, "{limit}"),
            Self::CpuMax(max) => write!(f, "{} {}", max.quota, max.period.0),
            Self::Devices(access) => write!(f, "{access}"),
            Self::List(ids) => write!(f, "{ids}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Whether a cgroup is there with all that it needs. Only `Absent` says that nothing runs in it:
/// a degraded cgroup is repaired, never killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Existence {
    Absent,
    /// Controllers that are missing (v2: not enabled; v1: no directory in that hierarchy).
    Degraded {
        missing: BTreeSet<String>,
    },
    Healthy,
}

/// What the files of one cgroup say now. A file that is absent or unreadable has no entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ObservedCgroup {
    pub existence: Existence,
    pub values: BTreeMap<InterfaceFile, FileValue>,
    /// v2: what is left of a list after the masks of the ancestors and what is offline.
    pub effective: BTreeMap<InterfaceFile, CpuSet>,
    /// Bytes; only where a memory limit is about to be compared.
    pub memory_usage: Option<u64>,
    /// Of that, what the kernel gives back at once: [`MemoryStat::clean`](super::cgroup_files::MemoryStat::clean). Looked
    /// at where a limit is to be below the usage.
    pub memory_clean: u64,
    /// v1: processes of it are in the cpuset of the cgroup above, to which the kernel moves them when it has lost its
    /// last CPU.
    pub has_lost_processes: bool,
}

impl ObservedCgroup {
    pub fn absent() -> Self {
        Self {
            existence: Existence::Absent,
            values: BTreeMap::new(),
            effective: BTreeMap::new(),
            memory_usage: None,
            memory_clean: 0,
            has_lost_processes: false,
        }
    }
}

/// What one cgroup is to be. Files in the order in which they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DesiredCgroup {
    #[serde(rename = "name")]
    pub path: CgroupPath,
    pub files: Vec<(InterfaceFile, FileValue)>,
    /// Its memory limit is what those right below may have together, and rises as long as one of them keeps more than
    /// it is to have.
    #[serde(skip)]
    pub is_sum: bool,
}

/// One step of a plan. Steps are idempotent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "step")]
pub enum CgroupStep {
    Create {
        #[serde(rename = "name")]
        path: CgroupPath,
    },
    /// Brings back what a degraded cgroup lacks.
    Repair {
        #[serde(rename = "name")]
        path: CgroupPath,
        missing: BTreeSet<String>,
    },
    Write {
        #[serde(rename = "name")]
        path: CgroupPath,
        file: InterfaceFile,
        /// `None`: not known, as for a cgroup that is created in the same plan.
        from: Option<FileValue>,
        to: FileValue,
    },
}

impl CgroupStep {
    pub fn path(&self) -> &CgroupPath {
        match self {
            Self::Create { path } | Self::Repair { path, .. } | Self::Write { path, .. } => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    #[track_caller]
    fn check(kind: FileKind, text: &str, value: Option<FileValue>) {
        assert_eq!(kind.parse(text, PAGE), value, "{kind:?} {text:?}");
    }

    #[test]
    fn every_spelling_of_no_limit_is_max() {
        let max = Some(FileValue::Limit(Limit::Max));
        check(FileKind::Limit, "max\n", max.clone());
        check(FileKind::PageLimit, "max\n", max.clone());
        check(FileKind::PageLimitV1, "-1", max.clone());
        check(FileKind::PageLimitV1, "9223372036854771712\n", max.clone());
        check(FileKind::SignedLimit, "-1\n", max);
    }

    #[test]
    fn limits_are_whole_pages() {
        check(
            FileKind::PageLimit,
            "10000",
            Some(FileValue::Limit(Limit::At(8192))),
        );
        let kept = FileKind::PageLimitV1.kept(FileValue::Limit(Limit::At(4097)), PAGE);
        assert_eq!(kept, FileValue::Limit(Limit::At(4096)));
    }

    #[test]
    fn cpu_max_needs_both_words() {
        check(
            FileKind::CpuMax,
            "max 100000\n",
            Some(FileValue::CpuMax(CpuBandwidth {
                quota: Limit::Max,
                period: Micros(100_000),
            })),
        );
        for text in ["", "max", "x 1", "1 x", "1 2 3"] {
            check(FileKind::CpuMax, text, None);
        }
    }

    #[test]
    fn lists_are_compared_as_sets() {
        let list = |text: &str| FileKind::List.parse(text, PAGE);
        assert_eq!(list("0,1,2,8\n"), list("8,0-2"));
        assert_eq!(list("\n"), Some(FileValue::List(CpuSet::new())));
        assert_ne!(list("0-2"), list("0-3"));
    }

    #[test]
    fn nonsense_is_no_value() {
        for kind in [
            FileKind::Number,
            FileKind::Limit,
            FileKind::PageLimit,
            FileKind::PageLimitV1,
            FileKind::SignedLimit,
        ] {
            for text in [
                "",
                "-",
                "-x",
                "1e3",
                "99999999999999999999",
                "max max",
                "\0",
            ] {
                check(kind, text, None);
            }
        }
    }

    #[test]
    fn format_writes_what_each_version_takes() {
        let max = FileValue::Limit(Limit::Max);
        assert_eq!(FileKind::PageLimit.format(&max), "max");
        assert_eq!(FileKind::PageLimitV1.format(&max), "-1");
        assert_eq!(FileKind::SignedLimit.format(&max), "-1");
    }
}
