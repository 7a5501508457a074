//! Finds out what the node lets this process do. Looks and never tries: nothing is loaded, mounted
//! or written here; what only trying can tell, such as eBPF programs, their loader reports.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::capacity::is_swap_on;
use crate::model::check::{
    AgentPresence, BPFFS, Bpffs, CgroupDetection, FactSheet, KubeletFacts, MemoryFloor, Namespaces,
};
use crate::model::kernel::effective_capabilities;
use crate::model::mounts::{CgroupFacts, CgroupLayout, Mount};
use crate::model::node_memory::{Meminfo, low_watermark_pages};
use crate::model::sysctl::Sysctl;
use crate::model::text::{limit, number};
use crate::sources::block_io::uncounted_disks;
use crate::sources::kubelet_process;
use crate::sources::mounts::{cgroup_facts, parse_mountinfo};
use crate::sources::psi;
use crate::sys::{Root, page_size, unix_socket};

const KUBELET_PORT: u16 = 10250;

/// How long a running agent may take to accept a connection.
const AGENT_TIMEOUT: Duration = Duration::from_secs(1);

/// Gathers the facts; some hundred file reads, most of them names of processes. What cannot be
/// read is unknown in the sheet, never an error.
pub fn facts(root: &Root, socket: &Path) -> FactSheet {
    let text = |path: &str| root.read_text(path).ok();
    let detected = cgroup_facts(root);
    let found = detected.as_ref().ok();
    let kernel_release = text("/proc/sys/kernel/osrelease").map(|it| it.trim().to_owned());
    let status = text("/proc/self/status");
    let cgroup2_files = found.and_then(|it| cgroup2_files(root, it));
    let uncounted_disks = found.map(|it| uncounted_disks(root, &it.layout));
    let partial_trees = found.map(|it| partial_trees(root, &it.layout));
    let mounts = parse_mountinfo(&text("/proc/self/mountinfo").unwrap_or_default());
    FactSheet {
        kernel: kernel_release.as_deref().and_then(|it| it.parse().ok()),
        kernel_release,
        has_cpu_bandwidth: found.and_then(|it| has_cpu_bandwidth(root, it, cgroup2_files.as_ref())),
        has_swap_limit: found.and_then(|it| has_swap_limit(root, it, cgroup2_files.as_ref())),
        cgroup2_files,
        has_local_events: has_local_events(&mounts),
        cgroups: match detected {
            Ok(facts) => CgroupDetection::Found(facts),
            Err(error) => CgroupDetection::Failed(error.to_string()),
        },
        namespaces: namespaces(root),
        partial_trees: partial_trees.unwrap_or_default(),
        capabilities: status.as_deref().and_then(effective_capabilities),
        max_locked_memory: text("/proc/self/limits").and_then(|it| max_locked_memory(&it)),
        has_btf: root.exists("/sys/kernel/btf/vmlinux"),
        bpffs: bpffs(root, &mounts),
        lockdown: text("/sys/kernel/security/lockdown").and_then(|it| it.parse().ok()),
        security_modules: text("/sys/kernel/security/lsm")
            .map(|it| it.trim().split(',').map(str::to_owned).collect()),
        has_psi: psi::is_kept(root),
        is_swap_on: text("/proc/swaps").is_some_and(|it| is_swap_on(&it)),
        memory: memory_floor(root),
        workloads: None,
        uncounted_disks: uncounted_disks.unwrap_or_default(),
        // The configuration says which.
        apart: Vec::new(),
        reserved_cgroups: Vec::new(),
        manifests: None,
        pod_cgroups: None,
        runtime: None,
        n_unnamed: 0,
        kubelet: kubelet(root),
        kubelet_settings: None,
        agent: agent(root, socket),
        sysctls: sysctls(root),
    }
}

/// All mounts of cgroup v2 have the same options (`cgroup_show_options`, kernel/cgroup/cgroup.c).
fn has_local_events(mounts: &[Mount]) -> bool {
    let mut of_v2 = mounts.iter().filter(|it| it.fs_type == "cgroup2");
    of_v2.any(|it| it.super_options.contains("memory_localevents"))
}

fn memory_floor(root: &Root) -> Option<MemoryFloor> {
    let info = Meminfo::parse(&root.read_text("/proc/meminfo").ok()?).ok()?;
    let low = low_watermark_pages(&root.read_text("/proc/zoneinfo").ok()?)?;
    let listed = info.memory_use()?.usage.saturating_add(info.free?);
    Some(MemoryFloor {
        total: info.total,
        kernel: info.total.saturating_sub(listed),
        reserve: low.saturating_mul(page_size()),
    })
}

/// Hard limit, bytes; `None` for none.
fn max_locked_memory(limits: &str) -> Option<u64> {
    let [_, hard] = limit(limits, "Max locked memory")?;
    hard.parse().ok()
}

/// The settings of [`Sysctl::ALL`]; `None` for one that cannot be read.
pub fn sysctls(root: &Root) -> BTreeMap<Sysctl, Option<i64>> {
    Sysctl::ALL
        .into_iter()
        .map(|it| {
            let text = root.read_text(it.path()).ok();
            (it, text.and_then(|it| number(&it, "a setting").ok()))
        })
        .collect()
}

/// Names of the files of the cgroups right below the v2 root, over all of them: the root itself
/// lacks the files that limit, and one child may lack a controller.
fn cgroup2_files(root: &Root, facts: &CgroupFacts) -> Option<BTreeSet<String>> {
    let mount = facts.layout.cgroup2_mount()?;
    let children = root.list(mount).ok()?;
    let mut files = BTreeSet::new();
    for child in children {
        let child = mount.join(child);
        if root.is_dir(&child) {
            // A cgroup that vanishes meanwhile tells nothing.
            files.extend(root.list(&child).unwrap_or_default());
        }
    }
    files.retain(|it| it.contains('.'));
    (!files.is_empty()).then_some(files)
}

fn has_cpu_bandwidth(
    root: &Root,
    facts: &CgroupFacts,
    cgroup2_files: Option<&BTreeSet<String>>,
) -> Option<bool> {
    match &facts.layout {
        // Without a child that has the CPU controller nothing can be said.
        CgroupLayout::Unified { .. } => {
            let files = cgroup2_files.filter(|it| it.contains("cpu.weight"))?;
            Some(files.contains("cpu.max"))
        }
        CgroupLayout::Legacy { .. } => {
            let mount = facts.layout.mount_of("cpu")?;
            Some(root.exists(mount.join("cpu.cfs_quota_us")))
        }
    }
}

fn has_swap_limit(
    root: &Root,
    facts: &CgroupFacts,
    cgroup2_files: Option<&BTreeSet<String>>,
) -> Option<bool> {
    match &facts.layout {
        CgroupLayout::Unified { .. } => {
            let files = cgroup2_files.filter(|it| it.contains("memory.max"))?;
            Some(files.contains("memory.swap.max"))
        }
        CgroupLayout::Legacy { .. } => {
            let mount = facts.layout.mount_of("memory")?;
            Some(root.exists(mount.join("memory.memsw.limit_in_bytes")))
        }
    }
}

/// Mounts whose top is not that of the hierarchy, by files that it never has: whatever the namespace of
/// this process calls it.
fn partial_trees(root: &Root, layout: &CgroupLayout) -> Vec<PathBuf> {
    let has = |mount: &Path, file: &str| root.exists(mount.join(file));
    match layout {
        CgroupLayout::Unified { mount } => {
            let is_part = has(mount, "cgroup.events");
            is_part.then(|| mount.clone()).into_iter().collect()
        }
        CgroupLayout::Legacy { .. } => [("pids", "pids.max"), ("freezer", "freezer.state")]
            .into_iter()
            .filter_map(|(controller, file)| {
                let mount = layout.mount_of(controller)?;
                has(mount, file).then(|| mount.to_owned())
            })
            .collect(),
    }
}

/// The initial namespaces have fixed numbers (include/linux/proc_ns.h, `PROC_PID_INIT_INO` and
/// its like).
pub(super) fn namespaces(root: &Root) -> Namespaces {
    let is = |kind: &str, inode: u32| {
        let link = root.read_link(format!("/proc/self/ns/{kind}")).ok()?;
        Some(link == Path::new(&format!("{kind}:[{inode}]")))
    };
    Namespaces {
        is_initial_pid: is("pid", 0xEFFF_FFFC),
        is_initial_user: is("user", 0xEFFF_FFFD),
    }
}

fn bpffs(root: &Root, mounts: &[Mount]) -> Bpffs {
    let is_mounted = mounts
        .iter()
        .any(|it| it.fs_type == "bpf" && it.mount_point == Path::new(BPFFS));
    let filesystems = root.read_text("/proc/filesystems").unwrap_or_default();
    let is_known = filesystems
        .lines()
        .any(|it| it.split_whitespace().next_back() == Some("bpf"));
    match (is_mounted, is_known) {
        (true, _) => Bpffs::Mounted(BPFFS.into()),
        (false, true) => Bpffs::Mountable,
        (false, false) => Bpffs::Absent,
    }
}

/// A kubelet shows as a process, unless this one lives in a PID namespace of its own; then its
/// port may show.
fn kubelet(root: &Root) -> KubeletFacts {
    let processes = kubelet_process::find(root).into_iter();
    let is_port_taken = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|it| root.read_text(it).ok())
        .any(|it| has_listener(&it, KUBELET_PORT));
    KubeletFacts {
        processes: processes.map(|it| (it.pid, it.name)).collect(),
        is_port_taken,
        is_configured: root.exists("/var/lib/kubelet/config.yaml"),
        pods_left: 0,
    }
}

/// Whether a socket of `/proc/net/tcp` listens (state 0A) on a port.
fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|it| it.rsplit_once(':'));
        let is_port = local.is_some_and(|(_, it)| u16::from_str_radix(it, 16) == Ok(port));
        is_port && fields.nth(1) == Some("0A")
    })
}

/// Connects to the socket and hangs up: an agent that runs accepts, or has too many who wait for it.
fn agent(root: &Root, socket: &Path) -> AgentPresence {
    if !root.exists(socket) {
        return AgentPresence::Absent;
    }
    match unix_socket::connect(&root.path(socket), AGENT_TIMEOUT) {
        Ok(_) => AgentPresence::Running,
        Err(e) if e.kind() == ErrorKind::WouldBlock => AgentPresence::Running,
        Err(_) => AgentPresence::Stale,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    /// What the mounts of a container show, whose namespace calls it the root.
    #[test]
    fn a_part_of_a_hierarchy_is_known_by_what_its_top_has() {
        let base = Scratch::new("parts");
        let root = Root::at(base.directory());
        let unified = CgroupLayout::Unified {
            mount: "/cgroup".into(),
        };
        root.create_dir_all("/cgroup/a").expect("a directory");
        base.write("cgroup/a/cgroup.events", "");
        assert_eq!(partial_trees(&root, &unified), [""; 0].map(PathBuf::from));
        base.write("cgroup/cgroup.events", "");
        assert_eq!(partial_trees(&root, &unified), [PathBuf::from("/cgroup")]);
    }

    #[test]
    fn an_option_of_cgroup_v2_is_read_off_its_mount() {
        let mount = |options: &str| {
            let line =
                format!("30 22 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 {options}\n");
            parse_mountinfo(&line)
        };
        assert!(has_local_events(&mount("rw,nsdelegate,memory_localevents")));
        assert!(!has_local_events(&mount(
            "rw,nsdelegate,memory_recursiveprot"
        )));
    }

    #[test]
    fn a_listener_is_a_socket_in_state_0a_on_the_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n   \
                     0: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n   \
                     1: 0100007F:280A 0100007F:9999 01 00000000:00000000\n";
        assert!(has_listener(table, 0x1F90));
        assert!(!has_listener(table, KUBELET_PORT));
        let v6 = "head\n 0: 00000000000000000000000000000000:280A 0:0 0A\n";
        assert!(has_listener(v6, KUBELET_PORT));
        for hostile in [
            "",
            "x",
            "head\n:",
            "head\n0: : : 0A",
            "head\n0: a:FFFFF b 0A",
        ] {
            assert!(!has_listener(hostile, KUBELET_PORT), "{hostile:?}");
        }
    }
}
