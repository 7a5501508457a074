//! `ballast check` as data: what was found out about a node ([`FactSheet`]) and what it means
//! ([`CheckReport`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::api_server::PodsFrom;
use super::cgroup_name::CgroupDriver;
use super::kernel::{Capability, KernelVersion, Lockdown};
use super::mounts::CgroupFacts;
use super::runtime_names::RuntimeStatus;
use super::status::KubeletStatus;
use super::sysctl::Sysctl;
use super::text::printable;

/// Details of an item that are shown, at most: the first ones tell.
const MAX_SHOWN: usize = 32;

/// What the node lets this process do. `None` is what could not be found out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FactSheet {
    pub kernel_release: Option<String>,
    pub kernel: Option<KernelVersion>,
    pub cgroups: CgroupDetection,
    /// v2: interface files that cgroups below the root have. `None`: there is no such cgroup.
    pub cgroup2_files: Option<BTreeSet<String>>,
    /// v2 is mounted with `memory_localevents`: a cgroup's `memory.events` leaves out the cgroups below it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_local_events: bool,
    /// The kernel can limit CPU time (CONFIG_CFS_BANDWIDTH).
    pub has_cpu_bandwidth: Option<bool>,
    /// Swap of a cgroup can be limited.
    pub has_swap_limit: Option<bool>,
    pub namespaces: Namespaces,
    /// Mounts that show a part of the node's cgroups alone, as in a container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partial_trees: Vec<PathBuf>,
    pub capabilities: Option<BTreeSet<Capability>>,
    /// Hard limit, bytes. `None`: no limit, or it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_locked_memory: Option<u64>,
    /// `/sys/kernel/btf/vmlinux` is there.
    pub has_btf: bool,
    pub bpffs: Bpffs,
    /// `None`: no lockdown, or securityfs is not mounted.
    pub lockdown: Option<Lockdown>,
    /// Active security modules. `None`: securityfs is not mounted.
    pub security_modules: Option<Vec<String>>,
    pub has_psi: bool,
    pub is_swap_on: bool,
    pub memory: Option<MemoryFloor>,
    /// Disks in use whose IO cgroups do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncounted_disks: Vec<String>,
    /// Mode `own`: directories of the state directory that are on another file system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<PathBuf>,
    /// Those that limits are to be written to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved_cgroups: Vec<ReservedCgroupFacts>,
    /// Mode `own`; `None`: nobody has read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifests: Option<ManifestFacts>,
    /// Where kubelet's pods lie; `None`: nobody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cgroups: Option<PodCgroups>,
    /// Of the runtime that is asked for names; `None`: none is.
    pub runtime: Option<RuntimeStatus>,
    /// Containers that run, if that runtime names none of them.
    #[serde(default)]
    pub n_unnamed: usize,
    /// `None`: of a mode that asks nobody.
    pub workloads: Option<WorkloadFacts>,
    pub kubelet: KubeletFacts,
    /// Mode `observe`; `None`: they were not looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_settings: Option<KubeletSettingsFacts>,
    pub agent: AgentPresence,
    /// `None`: the setting cannot be read.
    pub sysctls: BTreeMap<Sysctl, Option<i64>>,
}

/// The cgroup of all pods of a kubelet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodCgroups {
    Found {
        path: String,
        driver: CgroupDriver,
        /// Of the other driver, if pods run in it too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        other: Option<String>,
        /// Cgroups of pods that have no UID in their names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        without_uid: Vec<String>,
    },
    Absent,
    /// Kubelet was told to make none.
    NotMade,
    /// Why nobody knows which it is.
    Unknown(String),
}

/// A cgroup of daemons that a reservation is to be enforced on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReservedCgroupFacts {
    /// The field of KubeletConfiguration that names it.
    pub field: String,
    /// From the mount.
    pub path: String,
    /// The interface files that it lacks of those to be written; `None`: there is no such cgroup.
    pub lacking: Option<BTreeSet<String>>,
}

impl ReservedCgroupFacts {
    /// Why the reservation cannot be enforced on it.
    pub fn fault(&self) -> Option<String> {
        let path = &self.path;
        match &self.lacking {
            None => Some(format!("there is no cgroup {path}")),
            Some(lacking) if !lacking.is_empty() => {
                let lacking: Vec<&str> = lacking.iter().map(String::as_str).collect();
                Some(format!("cgroup {path} is without {}", lacking.join(", ")))
            }
            Some(_) => None,
        }
    }
}

/// What a directory of manifests has for a start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ManifestFacts {
    pub directory: PathBuf,
    /// Those that are taken.
    pub n_pods: usize,
    /// What is refused, each with its file and its field.
    pub faults: Vec<String>,
    /// The same of what makes a difference to what runs.
    pub warnings: Vec<String>,
}

/// What kubelet's formula of available memory never counts as used, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryFloor {
    pub total: u64,
    /// Neither free nor in use by processes or as page cache: the kernel's own, and pools of huge
    /// pages. Of this moment.
    pub kernel: u64,
    /// Low watermarks: below them the kernel reclaims, and at 4/5 of them it kills.
    pub reserve: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CgroupDetection {
    Found(CgroupFacts),
    /// Why not.
    Failed(String),
}

/// Whether this process lives in the namespaces that the kernel began with. `None`: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Namespaces {
    pub is_initial_pid: Option<bool>,
    pub is_initial_user: Option<bool>,
}

/// The one place where a bpffs is mounted when there is none.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Where eBPF links and maps can outlive the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Bpffs {
    Mounted(PathBuf),
    /// The directory of pins, which is on another file system.
    Elsewhere(PathBuf),
    /// None there, or one that ends with the container: this process sees other mounts than the host.
    NotOfHost(PathBuf),
    /// The directory of pins, in which this process may not write.
    NotWritable(PathBuf),
    /// The directory of pins, and programs that the set of an earlier agent lacks there.
    LinksGone(PathBuf, Vec<String>),
    /// The kernel has it.
    Mountable,
    Absent,
}

/// Who tells whose pods they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WorkloadFacts {
    ApiServer(ApiServerFacts),
    /// Why.
    Nobody(String),
}

/// What an API server or a kubelet answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiServerFacts {
    /// Who was asked for the pods.
    pub from: PodsFrom,
    /// Its URL; `None`: the file that names it cannot be read.
    pub server: Option<String>,
    pub node: String,
    /// Of the node.
    pub n_pods: usize,
    /// What keeps its pods from being watched.
    pub fault: Option<String>,
    /// Verbs and resources that the agent would use and may not.
    pub lacks: Vec<String>,
    /// Why it is not known whether Events can be written, if that is not asked of who tells of the pods.
    pub events_fault: Option<String>,
    /// How far this node is ahead of the clock of the API server, which takes Events. `None`: it was not asked for
    /// them, or does not say.
    pub seconds_ahead: Option<i64>,
    /// By what it was known, if it is a kubelet.
    pub voucher: Option<Voucher>,
}

/// By what a kubelet is known to be the one of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Voucher {
    /// Its certificate is one that it has in its files.
    File,
    /// The authority of the cluster vouches for the name of the node, or for its address.
    Authority,
}

impl fmt::Display for Voucher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a certificate in its own files",
            Self::Authority => "the authority of the cluster",
        })
    }
}

/// What a kubelet that runs is run by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KubeletSettingsFacts {
    Known(KubeletStatus),
    /// Why not.
    Unknown(String),
    /// The same; only kubelet itself can tell, if it is asked.
    Untold(String),
}

/// Signs of a kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KubeletFacts {
    /// Processes of root that are called like kubelet or like a binary that contains one, by pid.
    /// Empty also where this process sees another PID namespace.
    pub processes: BTreeMap<u32, String>,
    /// Something listens on kubelet's port 10250 in this network namespace.
    pub is_port_taken: bool,
    /// `/var/lib/kubelet/config.yaml` is there: installed, running or not.
    pub is_configured: bool,
    /// Pods below the configured `cgroupRoot`, of either driver, that a kubelet has started and that run. Looked for
    /// where the agent would run pods itself.
    #[serde(default)]
    pub pods_left: usize,
}

/// Whether another agent serves the configured socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AgentPresence {
    Absent,
    /// A socket is left of an agent that ended.
    Stale,
    Running,
}

/// What became of one eBPF program, whoever tried it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProgramCheck {
    pub program: String,
    /// As `tp_btf/mark_victim`, or why not.
    pub state: String,
    pub is_running: bool,
    /// What does its work instead.
    pub fallback: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CheckLevel {
    Ok,
    /// The agent runs and can do less.
    Degraded,
    /// The agent does not start, or could not do what its mode is for.
    Fatal,
}

impl fmt::Display for CheckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Fatal => "fatal",
        })
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckItem {
    pub name: String,
    pub level: CheckLevel,
    pub found: String,
    /// More of that, in lines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
    /// What the agent cannot do because of it. `None` when the level is ok.
    pub consequence: Option<String>,
    /// What an operator can do about it, where something can be done.
    pub remedy: Option<String>,
}

impl CheckItem {
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            level: CheckLevel::Ok,
            found: found.into(),
            details: Vec::new(),
            consequence: None,
            remedy: None,
        }
    }

    pub fn degraded(name: &str, found: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self {
            level: CheckLevel::Degraded,
            consequence: Some(consequence.into()),
            ..Self::ok(name, found)
        }
    }

    pub fn fatal(name: &str, found: impl Into<String>, consequence: impl Into<String>) -> Self {
        Self {
            level: CheckLevel::Fatal,
            ..Self::degraded(name, found, consequence)
        }
    }

    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Everything that was looked at, in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    pub items: Vec<CheckItem>,
}

impl CheckReport {
    /// The worst of the items.
    pub fn level(&self) -> CheckLevel {
        let levels = self.items.iter().map(|it| it.level);
        levels.max().unwrap_or(CheckLevel::Ok)
    }

    /// 1 if anything is fatal, else 0: a degraded node is a supported one.
    pub fn exit_status(&self) -> u8 {
        u8::from(self.level() == CheckLevel::Fatal)
    }

    /// Of all items those that keep an agent from starting.
    pub fn fatal(mut self) -> Self {
        self.items.retain(|it| it.level == CheckLevel::Fatal);
        self
    }

    fn count(&self, level: CheckLevel) -> usize {
        self.items.iter().filter(|it| it.level == level).count()
    }
}

impl fmt::Display for CheckReport {
    /// One line an item, what follows from it and the first of its details below, and a summary.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.items.iter().map(|it| it.name.len()).max().unwrap_or(0);
        for item in &self.items {
            writeln!(f, "{:8}  {:width$}  {}", item.level, item.name, item.found)?;
            let notes = [("so", &item.consequence), ("try", &item.remedy)];
            for (label, note) in notes {
                if let Some(note) = note {
                    writeln!(f, "{:8}  {:width$}  {label}: {note}", "", "")?;
                }
            }
            for line in item.details.iter().take(MAX_SHOWN) {
                writeln!(f, "{:8}  {:width$}  {}", "", "", printable(line))?;
            }
            let n_more = item.details.len().saturating_sub(MAX_SHOWN);
            if n_more > 0 {
                writeln!(
                    f,
                    "{:8}  {:width$}  and {n_more} more, as -o json shows",
                    "", ""
                )?;
            }
        }
        write!(
            f,
            "{} ok, {} degraded, {} fatal",
            self.count(CheckLevel::Ok),
            self.count(CheckLevel::Degraded),
            self.count(CheckLevel::Fatal)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_what_follows_and_fails_on_fatal_alone() {
        let mut report = CheckReport {
            items: vec![
                CheckItem::ok("btf", "present"),
                CheckItem::degraded("cgroup", "v1", "no memory.high").with_remedy("boot with v2"),
            ],
        };
        assert_eq!(
            report.to_string(),
            "ok        btf     present\n\
             degraded  cgroup  v1\n\
             \x20                 so: no memory.high\n\
             \x20                 try: boot with v2\n\
             1 ok, 1 degraded, 0 fatal"
        );
        assert_eq!(report.exit_status(), 0);
        report.items.push(CheckItem::fatal("memory", "none", "no"));
        assert_eq!(report.exit_status(), 1);
    }

    #[test]
    fn details_stand_below_their_item_as_many_as_are_read() {
        let mut item = CheckItem::ok("m", "found");
        item.details = vec!["a\nb\u{1b}[2J".to_owned()];
        let mut report = CheckReport { items: vec![item] };
        assert_eq!(
            report.to_string(),
            "ok        m  found\n             a?b?[2J\n1 ok, 0 degraded, 0 fatal"
        );
        report.items[0].details = vec!["a".to_owned(); MAX_SHOWN + 2];
        let text = report.to_string();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines.len(), MAX_SHOWN + 3);
        let last = ["a", "and 2 more, as -o json shows"];
        assert_eq!(lines[MAX_SHOWN..=MAX_SHOWN + 1], last);
    }
}
