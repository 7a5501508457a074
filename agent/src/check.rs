//! `ballast check`: what the facts about a node mean for the agent in the configured mode.
//!
//! In: a [`FactSheet`], the configuration, what became of the eBPF programs. Out: a
//! [`CheckReport`]. Invariants: pure; the items and their order depend on the mode and on the
//! cgroup version, so that two reports can be compared line by line; locked memory has an item only
//! where it counts and is limited, sockets below `kubeletDirectory` where their paths are too long,
//! manifests where they were read, the state directory where files of pods are on another file system, and
//! the clock where the API server has told its own. A fact that is not known is said to be unknown, and never
//! fatal.

use std::collections::BTreeSet;
use std::path::Path;

use crate::config::{Config, LONGEST_SOCKET_PATH, Mode, ObservedRuntime, OwnConfig};
use crate::model::api_server::PodsFrom;
use crate::model::cgroup_name::CgroupDriver;
use crate::model::check::{
    AgentPresence, ApiServerFacts, Bpffs, CgroupDetection, CheckItem, CheckLevel, CheckReport,
    FactSheet, KubeletSettingsFacts, ManifestFacts, PodCgroups, ProgramCheck, WorkloadFacts,
};
use crate::model::eviction::{Amount, MemoryMethod};
use crate::model::kernel::{Capability, KernelVersion, Lockdown};
use crate::model::kubelet_state::{DEVICE_PLUGINS_SOCKET, POD_RESOURCES_SOCKET};
use crate::model::mounts::{CgroupFacts, CgroupLayout};
use crate::model::quantity::Quantity;
use crate::model::status::KubeletStatus;

/// Ring buffers of eBPF and `cpu.stat` of the cgroup v2 root, which kubelet asks for, came with it.
const OLDEST_KERNEL: KernelVersion = KernelVersion::new(5, 8);
/// eBPF counts as memory of a cgroup since, and no longer as locked.
const BPF_IN_CGROUPS: KernelVersion = KernelVersion::new(5, 11);
/// Bytes of the rings, 2.6 MiB, of those of another build until they are read, and of all the rest.
const BPF_LOCKED: u64 = 8 << 20;
/// `cgroup.kill`.
const CGROUP_KILL: KernelVersion = KernelVersion::new(5, 14);
/// `oom_group_kill` in `memory.events`: since then the kills of a pod can be told from its count.
const GROUP_KILLS_COUNTED: KernelVersion = KernelVersion::new(5, 17);
/// `memory.oom.group`.
const OOM_GROUP: KernelVersion = KernelVersion::new(4, 19);
/// Counters of the memory of a process that a program can read without a helper.
const TYPED_COUNTERS: KernelVersion = KernelVersion::new(6, 2);
/// The tracepoint `mark_victim` passes the victim, and not its pid alone; some older stable releases have it too.
const VICTIM_IS_PASSED: KernelVersion = KernelVersion::new(6, 8);
/// Mount option `noswap` of tmpfs, which keeps secrets in memory.
const TMPFS_NOSWAP: KernelVersion = KernelVersion::new(6, 4);

/// Items that a setting can make fatal: a start tells them as faults of that setting instead.
pub const CGROUP_HIERARCHY: &str = "cgroup-hierarchy";
pub const RESERVED_CGROUPS: &str = "reserved-cgroups";
pub const SWAP: &str = "swap";

/// Of mode `observe`, where the configuration tells no thresholds.
const NO_THRESHOLDS: &str = "the thresholds of eviction that are shown are kubelet's defaults: neither \
                                 kubeletConfigFile nor kubelet.evictionHard is set";

/// So many seconds from the clock of the API server are nothing to tell of: its answers have whole ones, and an Event
/// takes some time to be written too.
const CLOCKS_APART: u64 = 5;

/// Judges a node. `programs` is empty where no program was tried.
pub fn report(facts: &FactSheet, config: &Config, programs: &[ProgramCheck]) -> CheckReport {
    let own = config.mode.own();
    let mut items = vec![
        kernel(facts),
        cgroup_hierarchy(facts, config),
        cgroup_controllers(facts, own.is_some()),
    ];
    if let Some(own) = own {
        items.extend([
            cpu_bandwidth(facts),
            cgroup_kill(facts),
            oom_group(facts),
            device_access(facts),
            tunables(facts),
            memory_thresholds(facts, config, own),
            reserved_cgroups(facts),
        ]);
        items.extend(kubelet_sockets(own));
        items.extend(facts.manifests.as_ref().map(manifests));
        items.extend(state_directory(facts));
    }
    if own.is_none() {
        items.extend([
            pod_cgroups(facts),
            pod_names(facts, config),
            workloads(facts),
            thresholds(facts, config),
            wakers(facts),
        ]);
        items.extend(clock(facts));
    }
    items.extend([
        block_io(facts),
        swap(facts, config),
        stalls(facts),
        namespaces(facts, own.is_some()),
        cgroup_tree(facts),
        capabilities(facts, own.is_some()),
        btf(facts),
    ]);
    items.extend(locked_memory(facts));
    items.extend([
        bpffs(facts, own.is_some()),
        lockdown(facts, own.is_some()),
        kubelet(facts, own.is_some()),
        agent(facts, config),
    ]);
    items.extend(programs.iter().map(program));
    CheckReport { items }
}

fn kernel(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "kernel";
    let found = facts.kernel_release.as_deref().unwrap_or("unknown");
    match facts.kernel {
        None => CheckItem::degraded(
            NAME,
            found,
            "what a kernel of this version can do is taken for absent",
        ),
        Some(version) if version < OLDEST_KERNEL => CheckItem::degraded(
            NAME,
            found,
            "no kernel events: programs need the ring buffers of Linux 5.8",
        )
        .with_remedy("use Linux 5.10 or newer"),
        Some(_) => CheckItem::ok(NAME, found),
    }
}

fn layout(facts: &FactSheet) -> Option<&CgroupFacts> {
    match &facts.cgroups {
        CgroupDetection::Found(found) => Some(found),
        CgroupDetection::Failed(_) => None,
    }
}

fn is_unified(facts: &FactSheet) -> bool {
    layout(facts).is_some_and(|it| it.layout.is_unified())
}

fn cgroup_hierarchy(facts: &FactSheet, config: &Config) -> CheckItem {
    const NAME: &str = CGROUP_HIERARCHY;
    let found = match &facts.cgroups {
        CgroupDetection::Found(found) => found,
        CgroupDetection::Failed(reason) => {
            return CheckItem::fatal(NAME, reason, "nothing can be limited or measured")
                .with_remedy("mount cgroup2 at /sys/fs/cgroup");
        }
    };
    match &found.layout {
        CgroupLayout::Unified { mount } => {
            let found = format!("cgroup v2 at {}", mount.display());
            if !facts.has_local_events {
                return CheckItem::ok(NAME, found);
            }
            let consequence = "OOM kills in cgroups that a container has made are seen by the eBPF programs alone: its \
                               own counts leave them out";
            CheckItem::degraded(
                NAME,
                format!("{found} with memory_localevents"),
                consequence,
            )
            .with_remedy(
                "mount it again without that option (mount -o remount, its other options kept)",
            )
        }
        CgroupLayout::Legacy { hybrid, .. } => {
            let n = found.layout.mount_points().len();
            let beside = match hybrid {
                Some(mount) => format!(", cgroup v2 beside it at {}", mount.display()),
                None => String::new(),
            };
            let found = format!("cgroup v1 in {n} hierarchies{beside}");
            let remedy = "boot with systemd.unified_cgroup_hierarchy=1";
            if config.mode.own().is_some() && config.kubelet.fail_cgroup_v1 {
                return CheckItem::fatal(NAME, found, "failCgroupV1 forbids cgroup v1")
                    .with_remedy(format!("{remedy}, or set failCgroupV1 to false"));
            }
            let swap = match facts.has_swap_limit {
                Some(false) => ", no swap limits",
                Some(true) | None => "",
            };
            // The agent gives pods cgroups in that one too, and so does runc.
            let stalls = match hybrid.is_some() && facts.has_psi {
                true => "",
                false => " no stall times per pod,",
            };
            let consequence = format!("no memory.high,{stalls} no memory protection{swap}");
            CheckItem::degraded(NAME, found, consequence).with_remedy(remedy)
        }
    }
}

fn cgroup_controllers(facts: &FactSheet, is_own: bool) -> CheckItem {
    const NAME: &str = "cgroup-controllers";
    let Some(found) = layout(facts) else {
        return unknown(NAME, "no hierarchy to look at");
    };
    let missing = found.missing_controllers();
    if missing.is_empty() {
        return CheckItem::ok(NAME, join(&found.controllers));
    }
    let consequence = format!("pods have no limits and no figures for {}", join(&missing));
    let item = if is_own {
        CheckItem::fatal(NAME, format!("without {}", join(&missing)), consequence)
    } else {
        CheckItem::degraded(NAME, format!("without {}", join(&missing)), consequence)
    };
    let is_memory = missing.iter().any(|it| it.0 == "memory");
    let boot = if is_memory {
        "boot with cgroup_enable=memory, or "
    } else {
        ""
    };
    item.with_remedy(format!(
        "{boot}use a kernel with the missing controllers, and see that none is taken by another hierarchy"
    ))
}

fn cpu_bandwidth(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "cpu-bandwidth";
    match facts.has_cpu_bandwidth {
        Some(true) => CheckItem::ok(NAME, "CPU time can be limited"),
        Some(false) => CheckItem::degraded(
            NAME,
            "the kernel has no CPU bandwidth control",
            "CPU limits of pods are not enforced",
        )
        .with_remedy("use a kernel with CONFIG_CFS_BANDWIDTH"),
        None => unknown(NAME, "no cgroup with the CPU controller to look at"),
    }
}

/// Whether the kernel takes the program, where one is needed, is told with the other programs.
fn device_access(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "device-access";
    let Some(found) = layout(facts) else {
        return unknown(NAME, "no hierarchy to look at");
    };
    if needs_device_program(found) {
        return match found.layout.cgroup2_mount().is_some() {
            true => CheckItem::ok(NAME, "by an eBPF program on the cgroup of each container"),
            false => CheckItem::degraded(
                NAME,
                "neither the devices controller nor a cgroup2 mount",
                "containers may open every device of the host",
            )
            .with_remedy("mount the devices controller, or cgroup2 at /sys/fs/cgroup/unified"),
        };
    }
    CheckItem::ok(NAME, "by the devices controller")
}

/// Whether devices are restricted by a program, since no controller of v1 does it.
pub fn needs_device_program(found: &CgroupFacts) -> bool {
    found.layout.is_unified() || !found.controllers.contains("devices")
}

/// Whether the kernel is at least `version`; an unknown one is not.
fn is_at_least(facts: &FactSheet, version: KernelVersion) -> bool {
    facts.kernel.is_some_and(|it| it >= version)
}

/// Presence of a v2 interface file: as seen in cgroups that have `beside`, which came with the
/// same controller; without such a cgroup by the kernel's version.
fn has_file(facts: &FactSheet, name: &str, beside: &str, since: KernelVersion) -> bool {
    match facts
        .cgroup2_files
        .as_ref()
        .filter(|it| it.contains(beside))
    {
        Some(files) => files.contains(name),
        None => is_at_least(facts, since),
    }
}

fn cgroup_kill(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "cgroup-kill";
    let consequence =
        "a pod is frozen and killed process by process, and a fork bomb may take several rounds";
    if !has_cgroup2(facts) {
        return CheckItem::degraded(NAME, "cgroup v1 has no cgroup.kill", consequence);
    }
    if has_cgroup_kill(facts) {
        return CheckItem::ok(NAME, "cgroup.kill");
    }
    CheckItem::degraded(NAME, "no cgroup.kill", consequence).with_remedy("use Linux 5.14 or newer")
}

fn has_cgroup2(facts: &FactSheet) -> bool {
    layout(facts).is_some_and(|it| it.layout.cgroup2_mount().is_some())
}

/// Pods have cgroups there in any case.
fn has_cgroup_kill(facts: &FactSheet) -> bool {
    has_cgroup2(facts) && has_file(facts, "cgroup.kill", "cgroup.procs", CGROUP_KILL)
}

fn oom_group(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "oom-group";
    if !is_unified(facts) {
        return CheckItem::degraded(
            NAME,
            "cgroup v1 has no memory.oom.group",
            "an OOM kill takes one process and may leave a container half alive",
        );
    }
    let has_memory = layout(facts).is_some_and(|it| it.controllers.contains("memory"));
    if has_memory && has_file(facts, "memory.oom.group", "memory.max", OOM_GROUP) {
        return CheckItem::ok(NAME, "memory.oom.group");
    }
    CheckItem::degraded(
        NAME,
        "no memory.oom.group",
        "an OOM kill takes one process and may leave a container half alive",
    )
}

fn tunables(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "kernel-tunables";
    let unreadable: Vec<_> = facts
        .sysctls
        .iter()
        .filter(|(_, found)| found.is_none())
        .map(|(sysctl, _)| sysctl)
        .collect();
    if !unreadable.is_empty() {
        return CheckItem::degraded(
            NAME,
            format!("cannot read {}", join(&unreadable)),
            "these settings stay as they are",
        );
    }
    let differing: Vec<_> = facts
        .sysctls
        .iter()
        .filter_map(|(sysctl, found)| {
            let found = found.filter(|it| *it != sysctl.wanted())?;
            Some(format!("{sysctl}={found} (wanted {})", sysctl.wanted()))
        })
        .collect();
    if differing.is_empty() {
        return CheckItem::ok(NAME, "as kubelet sets them");
    }
    CheckItem::degraded(
        NAME,
        join(&differing),
        "until they are set, the kernel may refuse memory, or stay down after a panic",
    )
    .with_remedy("set them with sysctl; the agent leaves them as they are")
}

/// Whether memory runs out before a threshold is met: by kubelet's formula the kernel's own memory
/// and its reserve are available for ever.
fn memory_thresholds(facts: &FactSheet, config: &Config, own: &OwnConfig) -> CheckItem {
    const NAME: &str = "memory-thresholds";
    let Some(memory) = facts.memory else {
        return unknown(NAME, "/proc/meminfo or /proc/zoneinfo cannot be read");
    };
    let mebibytes = |bytes: u64| format!("{} MiB", bytes >> 20);
    let floor = memory.kernel.saturating_add(memory.reserve);
    let total = Quantity::from_bytes(memory.total);
    let kubelet = &config.kubelet;
    let fields = [
        ("evictionHard", &kubelet.eviction_hard),
        ("evictionSoft", &kubelet.eviction_soft),
    ];
    let unreachable: Vec<_> = fields
        .into_iter()
        .filter_map(|(field, thresholds)| {
            let text = thresholds.get("memory.available")?;
            // A text with a fault stops the configuration.
            let amount = Amount::parse_threshold(text).ok()??.of(&total).units();
            (amount <= floor).then(|| format!("{field} of {}", mebibytes(amount)))
        })
        .collect();
    let found = format!(
        "by kubelet's formula {} of {} are available for ever: {} of the kernel, {} in reserve",
        mebibytes(floor),
        mebibytes(memory.total),
        mebibytes(memory.kernel),
        mebibytes(memory.reserve),
    );
    if unreachable.is_empty() {
        return CheckItem::ok(NAME, found);
    }
    let unreachable = join(&unreachable);
    if own.eviction.memory_method != MemoryMethod::WorkingSet {
        let found = format!(
            "{found}; it would never meet {unreachable}, and it is not it alone that decides"
        );
        return CheckItem::ok(NAME, found);
    }
    CheckItem::degraded(
        NAME,
        found,
        format!("the kernel kills before {unreachable} is met, and nothing is evicted"),
    )
    .with_remedy(format!(
        "set it above {}, or eviction.memoryMethod to least",
        mebibytes(floor)
    ))
}

fn block_io(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "block-io";
    if facts.uncounted_disks.is_empty() {
        return CheckItem::ok(NAME, "counted for cgroups");
    }
    let found = format!(
        "cgroup v1 counts nothing of {}: since Linux 6.10 it begins with the first throttle rule of a disk",
        join(&facts.uncounted_disks)
    );
    let consequence = "figures of reads and writes are missing for cgroups and pods";
    CheckItem::degraded(NAME, found, consequence).with_remedy(
        "write a rule that limits nothing once after each boot, MAJOR:MINOR 9223372036854775807 to \
         blkio.throttle.write_bps_device of any cgroup; the agent makes none by itself",
    )
}

/// One file system is watched: that of the state directory.
fn state_directory(facts: &FactSheet) -> Option<CheckItem> {
    if facts.apart.is_empty() {
        return None;
    }
    let apart = join(facts.apart.iter().map(|it| it.display()));
    let found = format!("{apart}: on another file system");
    let consequence = "signals, thresholds and figures of the disk are of the state directory's: nobody is evicted \
                       when the other one is full, and what pods have there counts for this one";
    let remedy = "mount one file system, at the state directory";
    Some(CheckItem::degraded("state-directory", found, consequence).with_remedy(remedy))
}

/// As kubelet, the agent limits these cgroups and makes none of them.
fn reserved_cgroups(facts: &FactSheet) -> CheckItem {
    const NAME: &str = RESERVED_CGROUPS;
    let fault = facts
        .reserved_cgroups
        .iter()
        .find_map(|it| Some(format!("{}: {}", it.field, it.fault()?)));
    if let Some(found) = fault {
        let consequence = "what is reserved for it cannot be enforced";
        return CheckItem::fatal(NAME, found, consequence).with_remedy(
            "make it with its controllers before the agent starts, or leave the reservation out of \
             enforceNodeAllocatable",
        );
    }
    match facts.reserved_cgroups.is_empty() {
        true => CheckItem::ok(NAME, "none are limited"),
        false => CheckItem::ok(NAME, join(facts.reserved_cgroups.iter().map(|it| &it.path))),
    }
}

/// Those that others look for below `kubeletDirectory`, if no address has room for them. A start does without.
fn kubelet_sockets(own: &OwnConfig) -> Option<CheckItem> {
    const NAME: &str = "kubelet-sockets";
    let sockets = [
        (DEVICE_PLUGINS_SOCKET, "no device plugin can register"),
        (POD_RESOURCES_SOCKET, "pod resources cannot be asked for"),
    ];
    let sockets = sockets.map(|(name, loss)| (own.kubelet_directory.join(name), loss));
    let is_long = |path: &Path| path.as_os_str().len() > LONGEST_SOCKET_PATH;
    let long = sockets.iter().filter(|(path, _)| is_long(path));
    let (paths, losses): (Vec<_>, Vec<_>) =
        long.map(|(path, loss)| (path.display(), *loss)).unzip();
    if paths.is_empty() {
        return None;
    }
    let found = format!(
        "{}: longer than the {LONGEST_SOCKET_PATH} bytes of a socket address",
        join(paths)
    );
    let item = CheckItem::degraded(NAME, found, losses.join(", and "));
    Some(item.with_remedy("a kubeletDirectory with a shorter path"))
}

/// No agent waits for them to be mended, so none of it is fatal.
fn manifests(facts: &ManifestFacts) -> CheckItem {
    const NAME: &str = "manifests";
    let pods = if facts.n_pods == 1 { "pod" } else { "pods" };
    let found = format!("{} {pods} in {}", facts.n_pods, facts.directory.display());
    let mut item = match facts.faults.is_empty() {
        true => CheckItem::ok(NAME, found),
        false => CheckItem::degraded(
            NAME,
            found,
            "what has a fault begins no pod; the agent starts all the same",
        ),
    };
    let faults = facts.faults.iter().map(|it| format!("fault: {it}"));
    let warnings = facts.warnings.iter().map(|it| format!("warning: {it}"));
    item.details = faults.chain(warnings).collect();
    item
}

fn pod_cgroups(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "pod-cgroups";
    match &facts.pod_cgroups {
        None => unknown(NAME, "no hierarchy to look at"),
        Some(PodCgroups::Found {
            path,
            other: Some(other),
            ..
        }) => CheckItem::degraded(
            NAME,
            divided(path, other),
            format!(
                "containers of the second are found by walks, and not told of when they are made; of what \
                 happens in them {KILLS_ALONE}"
            ),
        )
        .with_remedy("drain the node when the driver of kubelet changes, or stop one of the two programs"),
        Some(PodCgroups::Found {
            path,
            driver,
            without_uid,
            ..
        }) => {
            if let Some(first) = without_uid.first() {
                let which = pods_without_uid(without_uid.len(), first);
                return CheckItem::degraded(NAME, which, NOT_SHOWN)
                    .with_remedy("give their manifests another metadata.uid, or none");
            }
            let driver = match driver {
                CgroupDriver::Cgroupfs => "cgroupfs",
                CgroupDriver::Systemd => "systemd",
            };
            CheckItem::ok(NAME, format!("below {path}, of the {driver} driver"))
        }
        Some(PodCgroups::Absent) => CheckItem::degraded(
            NAME,
            "there is no kubepods",
            "no pods are shown until kubelet makes it; it is looked for every second",
        ),
        Some(PodCgroups::NotMade) => CheckItem::degraded(
            NAME,
            NO_POD_CGROUPS,
            "no pods are shown, and kills in them are told as the host's",
        )
        .with_remedy("set cgroupsPerQOS of kubelet to true"),
        Some(PodCgroups::Unknown(why)) => {
            CheckItem::fatal(NAME, why, "whose pods are to be shown is not known")
                .with_remedy("set kubelet.cgroupRoot, or kubeletConfigFile to the file that has it")
        }
    }
}

/// Why there is no cgroup of all pods, nor will be.
pub const NO_POD_CGROUPS: &str = "kubelet makes no cgroups for pods: its cgroupsPerQOS is false";

/// What is told of containers that lie beside the cgroup of all pods, which the kernel's filters leave out.
pub const KILLS_ALONE: &str =
    "kills are told, but no other events of the kernel, and no last readings of containers";

/// That pods run by both drivers; `followed` is what the kernel's filters go by.
pub fn divided(followed: &str, other: &str) -> String {
    format!(
        "pods run below {followed}, which is followed, and below {other}: kubelet was told another cgroupDriver while \
         they ran, or two programs make pods"
    )
}

/// What becomes of pods without a UID.
pub const NOT_SHOWN: &str = "they are not shown, and kills in them are told of no pod";

/// That so many cgroups of pods have no UID in their names; `first`: one of them.
pub fn pods_without_uid(n: usize, first: &str) -> String {
    let which = match n {
        1 => format!("the cgroup of a pod has no UID in its name ({first})"),
        n => format!("the cgroups of {n} pods have no UID in their names (as {first})"),
    };
    format!("{which}: it is of up to 128 letters, digits, dots and dashes")
}

/// What tells of a container without kubelet and without an API server.
fn pod_names(facts: &FactSheet, config: &Config) -> CheckItem {
    const NAME: &str = "pod-names";
    const BY_IDS: &str = "pods are shown by UID, containers by id";
    let is_asked = match &config.mode {
        Mode::Observe(it) => it.runtime != ObservedRuntime::None,
        Mode::Own(_) => false,
    };
    if !is_asked {
        if let Some(WorkloadFacts::ApiServer(facts)) = &facts.workloads {
            let from = facts.from.as_str();
            return CheckItem::ok(NAME, format!("from {from} (runtime.type is none)"));
        }
        let found = format!("none: nobody is asked (runtime.type is none); {BY_IDS}");
        return CheckItem::ok(NAME, found);
    }
    let Some(runtime) = &facts.runtime else {
        return CheckItem::ok(NAME, "from the container runtime, which was not looked for");
    };
    let at = runtime.endpoint.as_deref().unwrap_or("no socket");
    match (&runtime.fault, runtime.runtime()) {
        (None, Some(whose)) if facts.n_unnamed > 0 => {
            let n = facts.n_unnamed;
            let found =
                format!("none: {whose} at {at} names none of the containers that run ({n})");
            CheckItem::degraded(NAME, found, BY_IDS).with_remedy(ENDPOINT)
        }
        (None, Some(whose)) => CheckItem::ok(NAME, format!("from {whose} at {at}")),
        (Some(why), _) if runtime.endpoint.is_none() => {
            CheckItem::degraded(NAME, why, BY_IDS).with_remedy(ENDPOINT)
        }
        (why, _) => {
            let why = why.as_deref().unwrap_or("it does not say what it is");
            CheckItem::degraded(NAME, format!("none: {at}: {why}"), BY_IDS).with_remedy(ENDPOINT)
        }
    }
}

const ENDPOINT: &str =
    "set runtime.endpoint to kubelet's containerRuntimeEndpoint, or runtime.type to none";

const WITHOUT_WORKLOADS: &str = "pods are shown without their workloads and requests";
const WITHOUT_EVENTS: &str = "OOM kills are no Events of their pods";

/// See [`WITHOUT_WORKLOADS`]. `why`: nobody is asked.
pub fn without_workloads(why: &str) -> String {
    format!("{WITHOUT_WORKLOADS}: {why}")
}

/// Whose pods they are, which cgroups and runtimes do not tell.
fn workloads(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "workloads";
    match &facts.workloads {
        None => CheckItem::ok(NAME, "from the API server, which was not looked for"),
        Some(WorkloadFacts::Nobody(why)) => CheckItem::ok(NAME, without_workloads(why)),
        Some(WorkloadFacts::ApiServer(facts)) => workloads_from(NAME, facts),
    }
}

fn workloads_from(name: &'static str, facts: &ApiServerFacts) -> CheckItem {
    let server = facts.server.as_deref().unwrap_or(facts.from.as_str());
    let remedy = match facts.from {
        PodsFrom::ApiServer => "let the agent list and watch pods, and reach the API server",
        PodsFrom::Kubelet => "let the agent get nodes/pods, and reach kubelet",
    };
    if let Some(why) = &facts.fault {
        return CheckItem::degraded(name, format!("{server}: {why}"), WITHOUT_WORKLOADS)
            .with_remedy(remedy);
    }
    let known = facts.voucher.map(|it| format!(", known by {it}"));
    let found = format!(
        "{} pods of node {} on {server}{}",
        facts.n_pods,
        facts.node,
        known.unwrap_or_default()
    );
    if let Some(why) = &facts.events_fault {
        let found = format!("{found}; no Event can be written: {why}");
        return CheckItem::degraded(name, found, WITHOUT_EVENTS)
            .with_remedy("reach the API server, or set kubernetes.events.enabled to false");
    }
    match facts.lacks.is_empty() {
        true => CheckItem::ok(name, found),
        false => CheckItem::degraded(
            name,
            format!("{found}; the agent may not {}", facts.lacks.join(", ")),
            WITHOUT_EVENTS,
        )
        .with_remedy("let it create and patch events, or set kubernetes.events.enabled to false"),
    }
}

/// Events have the times of the node, and are read beside those of others.
fn clock(facts: &FactSheet) -> Option<CheckItem> {
    const NAME: &str = "clock";
    let Some(WorkloadFacts::ApiServer(facts)) = &facts.workloads else {
        return None;
    };
    let ahead = facts.seconds_ahead?;
    let apart = ahead.unsigned_abs();
    if apart <= CLOCKS_APART {
        let found = format!("that of the API server, to {CLOCKS_APART} s");
        return Some(CheckItem::ok(NAME, found));
    }
    let (way, consequence) = match ahead > 0 {
        true => (
            "ahead of",
            "kubectl shows <invalid> as the age of new Events, and sorts them behind later ones",
        ),
        false => (
            "behind",
            "kubectl shows Events as older than they are, and sorts them before earlier ones",
        ),
    };
    let found = format!("{apart} s {way} that of the API server");
    let item = CheckItem::degraded(NAME, found, consequence);
    Some(item.with_remedy("set the clocks of both by NTP"))
}

fn thresholds(facts: &FactSheet, config: &Config) -> CheckItem {
    const NAME: &str = "eviction-thresholds";
    let found = match (&facts.kubelet_settings, &config.mode) {
        (Some(KubeletSettingsFacts::Known(kubelet)), _) => {
            let found = kubelet.to_string();
            return match kubelet.changed.is_empty() {
                true => CheckItem::ok(NAME, found),
                false => CheckItem::degraded(
                    NAME,
                    format!("{found}; {}", settings_changed(kubelet)),
                    "the thresholds that are shown may not be those that it goes by",
                )
                .with_remedy("restart kubelet"),
            };
        }
        (
            Some(KubeletSettingsFacts::Unknown(why) | KubeletSettingsFacts::Untold(why)),
            Mode::Observe(it),
        ) if !it.knows_thresholds => no_thresholds(why),
        (None, Mode::Observe(it)) if !it.knows_thresholds => NO_THRESHOLDS.to_owned(),
        _ => "as kubelet is configured".to_owned(),
    };
    CheckItem::ok(NAME, found)
}

/// See [`NO_THRESHOLDS`]. `why`: the kubelet that runs does not tell.
pub fn no_thresholds(why: &str) -> String {
    format!("{NO_THRESHOLDS}, and {why}")
}

/// That what a kubelet goes by may be another thing than its files say.
pub fn settings_changed(kubelet: &KubeletStatus) -> String {
    let verb = if kubelet.changed.len() == 1 {
        "was"
    } else {
        "were"
    };
    format!(
        "{} {verb} written after it started",
        kubelet.changed.join(", ")
    )
}

/// What registers interest by a write is left alone, though it would change nothing.
fn wakers(facts: &FactSheet) -> CheckItem {
    let instead = match is_unified(facts) {
        true => {
            "stalls are read with each sweep, OOM counts when the kernel says that one changed, where no program \
             reports kills"
        }
        false => {
            "stalls are read with each sweep, OOM counts once a second where no program reports kills"
        }
    };
    let found = format!(
        "no PSI trigger and no event control, which are writes below the cgroup mounts: {instead}"
    );
    CheckItem::ok("wakers", found)
}

fn swap(facts: &FactSheet, config: &Config) -> CheckItem {
    const NAME: &str = SWAP;
    if !facts.is_swap_on {
        return CheckItem::ok(NAME, "off");
    }
    let is_own = config.mode.own().is_some();
    if is_own && config.kubelet.fail_swap_on {
        let consequence = "pods may be swapped, and failSwapOn forbids that";
        return CheckItem::fatal(NAME, "on", consequence)
            .with_remedy("swapoff -a, or set failSwapOn to false");
    }
    if facts.has_swap_limit == Some(false) {
        return CheckItem::degraded(
            NAME,
            "on, and swap of a cgroup cannot be limited",
            "any pod may fill the swap",
        )
        .with_remedy("boot with swapaccount=1");
    }
    if !is_at_least(facts, TMPFS_NOSWAP) {
        return CheckItem::degraded(
            NAME,
            "on",
            "memory-backed volumes, secrets among them, may be written to disk",
        )
        .with_remedy("use Linux 6.4 or newer, or encrypt the swap");
    }
    let found = match is_own {
        true => "on, as failSwapOn allows",
        // A kubelet that runs has judged it.
        false => "on",
    };
    CheckItem::ok(NAME, found)
}

fn stalls(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "psi";
    if facts.has_psi {
        return CheckItem::ok(NAME, "pressure stall information is kept");
    }
    CheckItem::degraded(
        NAME,
        "no pressure stall information",
        "stalls are seen by kernel events alone, or not at all",
    )
    .with_remedy("boot with psi=1")
}

fn namespaces(facts: &FactSheet, is_own: bool) -> CheckItem {
    const NAME: &str = "namespaces";
    let all = [
        ("PID", facts.namespaces.is_initial_pid),
        ("user", facts.namespaces.is_initial_user),
    ];
    let own: Vec<_> = all
        .iter()
        .filter(|(_, is_initial)| *is_initial == Some(false))
        .map(|(name, _)| *name)
        .collect();
    if own.is_empty() {
        return CheckItem::ok(NAME, "those of the node");
    }
    let (mut consequences, mut remedies) = (Vec::new(), Vec::new());
    if own.contains(&"PID") {
        // Who sees a kubelet is in the namespace of its node, which is a container itself.
        let is_of_node = !facts.kubelet.processes.is_empty();
        consequences.push(match (is_own, is_of_node) {
            (_, true) => {
                "the node of this kubelet is a container: processes of kernel events have the ids that its host knows \
                 them by, and whose bpffs is mounted is not known"
            }
            (true, false) => {
                "processes of kernel events cannot be looked up, a kubelet is not found, and whose bpffs is mounted is \
                 not known"
            }
            (false, false) => {
                "processes of kernel events and of pods cannot be looked up: containers are shown without a process, \
                 the network and the open files of pods are not read, kubelet is not found, and whose bpffs is mounted \
                 is not known"
            }
        });
        if !is_of_node {
            remedies.push("set hostPID");
        }
    }
    if own.contains(&"user") {
        consequences.push("limits and kernel settings may be refused");
        remedies.push("leave hostUsers as it is, true");
    }
    let item = CheckItem::degraded(
        NAME,
        format!("this process has its own {} namespace", own.join(", ")),
        consequences.join("; "),
    );
    match remedies.is_empty() {
        true => item,
        false => item.with_remedy(format!("in a pod, {}", remedies.join(" and "))),
    }
}

/// Whose cgroups are seen, whatever the cgroup namespace of this process calls them.
fn cgroup_tree(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "cgroup-tree";
    let parts: Vec<String> = facts
        .partial_trees
        .iter()
        .map(|it| it.display().to_string())
        .collect();
    if parts.is_empty() {
        return CheckItem::ok(NAME, "that of the node");
    }
    CheckItem::degraded(
        NAME,
        format!("{} shows a part of it", parts.join(", ")),
        "limits and readings of the rest of the node are not seen, kills in its pods are told as the host's, and \
         this part is taken for the node",
    )
    .with_remedy("mount the node's /sys/fs/cgroup in its place")
}

/// What is lost without a capability. `SysAdmin` stands in for `Bpf` and `Perfmon`.
fn loss(
    capability: Capability,
    is_own: bool,
    facts: &FactSheet,
    held: &BTreeSet<Capability>,
) -> Option<&'static str> {
    let is_admin = held.contains(&Capability::SysAdmin);
    let needs_device_program = layout(facts).is_some_and(needs_device_program);
    match capability {
        Capability::Bpf if !is_admin => Some("no eBPF program loads"),
        Capability::Perfmon if !is_admin => Some("no tracing program loads"),
        Capability::NetAdmin if is_own && needs_device_program => {
            Some("containers may open every device of the host, and what they open is not counted")
        }
        Capability::NetAdmin if is_own => Some("devices that containers open are not counted"),
        Capability::SysAdmin if is_own && needs_device_program => Some(
            "programs are not timed, bpffs cannot be mounted, and after a restart the device programs of running \
             containers cannot be read back",
        ),
        Capability::SysAdmin if is_own => Some(
            "programs are not timed, bpffs cannot be mounted, and containers do not start, because their devices \
             cannot be restricted",
        ),
        Capability::SysResource if is_own => Some(
            "an oom_score_adj cannot be lowered, and a stall may wake who watches the pressure after 2 s instead of 1 s",
        ),
        Capability::SysPtrace if is_own => Some("files of processes of other users stay closed"),
        Capability::SysPtrace => Some(
            "the network of pods is not read, files of kubelet stay closed, and it is asked for nothing, because nobody \
             can tell that it is the one of the node",
        ),
        Capability::DacReadSearch if is_own => Some(
            "files of other users stay closed, OOM kills far below a container are told as the host's, and the host's without their cgroups",
        ),
        Capability::DacReadSearch => Some(
            "files of other users stay closed, OOM kills far below a container, and in pods beside the cgroup of all pods, may \
             be told as the host's, and the host's without their cgroups",
        ),
        Capability::Chown if is_own => Some("volumes cannot be given to the group fsGroup"),
        Capability::IpcLock if is_own => Some("the agent's own memory may be swapped out"),
        Capability::SysNice if is_own => {
            Some("who watches the pressure waits for a CPU as everybody does")
        }
        Capability::Kill if is_own && has_cgroup_kill(facts) => {
            Some("containers of other users are not asked to end, and are killed after their grace")
        }
        Capability::Kill if is_own => Some("containers of other users cannot be ended"),
        Capability::SetUid | Capability::SetGid if is_own => {
            Some("containers cannot run as another user")
        }
        _ => None,
    }
}

fn capabilities(facts: &FactSheet, is_own: bool) -> CheckItem {
    const NAME: &str = "capabilities";
    let Some(held) = &facts.capabilities else {
        return unknown(NAME, "no status of this process");
    };
    if facts.namespaces.is_initial_user == Some(false) {
        return CheckItem::degraded(
            NAME,
            "those of a user namespace of its own",
            "no eBPF program loads, and what belongs to the node is refused",
        )
        .with_remedy("in a pod, leave hostUsers as it is, true");
    }
    let mut missing = Vec::new();
    let mut consequences = Vec::new();
    for capability in Capability::ALL {
        if held.contains(&capability) {
            continue;
        }
        if let Some(loss) = loss(capability, is_own, facts, held) {
            missing.push(capability);
            consequences.push(format!("{loss} ({capability})"));
        }
    }
    if missing.is_empty() {
        let found = match held.contains(&Capability::SysAdmin) {
            true => "all that are used",
            false => "all that are needed; programs are timed with CAP_SYS_ADMIN alone",
        };
        return CheckItem::ok(NAME, found);
    }
    CheckItem::degraded(
        NAME,
        format!("without {}", join(&missing)),
        consequences.join("; "),
    )
    .with_remedy(format!(
        "in a pod, capabilities.add: [{}]; as a service, AmbientCapabilities",
        join(
            missing
                .iter()
                .map(|it| it.to_string().replacen("CAP_", "", 1))
        ),
    ))
}

fn btf(facts: &FactSheet) -> CheckItem {
    const NAME: &str = "btf";
    if facts.has_btf {
        return CheckItem::ok(NAME, "the kernel describes its types");
    }
    CheckItem::degraded(
        NAME,
        "no /sys/kernel/btf/vmlinux",
        "no kernel events: every program that tells of them needs it",
    )
    .with_remedy("use a kernel with CONFIG_DEBUG_INFO_BTF")
}

/// Before Linux 5.11 the maps and programs of eBPF count as locked memory (`bpf_charge_memlock`,
/// kernel/bpf/syscall.c of 5.10).
fn locked_memory(facts: &FactSheet) -> Option<CheckItem> {
    const NAME: &str = "locked-memory";
    let version = facts.kernel.filter(|it| *it < BPF_IN_CGROUPS)?;
    let limit = facts.max_locked_memory.filter(|it| *it < BPF_LOCKED)?;
    let mut held = facts.capabilities.iter().flatten();
    if held.any(|it| *it == Capability::SysResource) {
        return Some(CheckItem::ok(NAME, "the agent raises its limit"));
    }
    let found = format!("a limit of {} KiB", limit >> 10);
    let so =
        format!("eBPF programs may be refused: on Linux {version} they count as locked memory");
    let remedy = "LimitMEMLOCK=infinity for a service; in a pod, which cannot set it, capabilities.add: [SYS_RESOURCE]";
    Some(CheckItem::degraded(NAME, found, so).with_remedy(remedy))
}

fn bpffs(facts: &FactSheet, is_own: bool) -> CheckItem {
    const NAME: &str = "bpffs";
    // Whose pods the agent runs are there until it has read them.
    let consequence = match (is_own, is_unified(facts)) {
        (true, true) => {
            "kills while no agent runs are known from the kernel's counts alone, without their victims, and those \
             outside pods are not; nor is how or when containers end meanwhile"
        }
        (true, false) => {
            "kills while no agent runs are known from the kernel's counts alone, without their victims, and those \
             outside pods and in cgroups that containers make are not; nor is how or when containers end meanwhile"
        }
        (false, true) if is_at_least(facts, GROUP_KILLS_COUNTED) => {
            "of the kills while no agent runs those are known, without their victims, whose pod is still there"
        }
        (false, true) => {
            "of the kills while no agent runs those are known, without their victims, whose container is still there"
        }
        (false, false) => {
            "of the kills while no agent runs those are known, without their victims, whose container is still there, \
             but for those in cgroups that containers make"
        }
    };
    match &facts.bpffs {
        Bpffs::Mounted(path) => CheckItem::ok(NAME, path.display().to_string()),
        Bpffs::Elsewhere(path) => {
            let state = format!("bpf.pinDirectory {} is not on one", path.display());
            CheckItem::degraded(NAME, state, consequence)
                .with_remedy("a directory below /sys/fs/bpf")
        }
        Bpffs::NotOfHost(path) => {
            let state = format!("bpf.pinDirectory {} is on none of the host", path.display());
            CheckItem::degraded(NAME, state, consequence)
                .with_remedy("mount a bpffs at /sys/fs/bpf of the host, and that into a container")
        }
        Bpffs::NotWritable(path) => {
            let state = format!("bpf.pinDirectory {} cannot be written", path.display());
            CheckItem::degraded(NAME, state, consequence)
                .with_remedy("mount the bpffs writable, as the user that the agent runs as")
        }
        Bpffs::LinksGone(path, programs) => {
            let state = format!("{} lacks {}", path.display(), programs.join(", "));
            let so = match programs.iter().any(|it| it.starts_with("oom_victim")) {
                true => consequence,
                false => "of a time without an agent less is known",
            };
            CheckItem::degraded(NAME, state, so)
                .with_remedy("start the agent anew, which attaches what the kernel takes")
        }
        Bpffs::Mountable => {
            let held = facts.capabilities.as_ref();
            if held.is_some_and(|it| it.contains(&Capability::SysAdmin)) {
                CheckItem::ok(NAME, "not mounted; the agent mounts it")
            } else {
                CheckItem::degraded(NAME, "not mounted", consequence)
                    .with_remedy("mount -t bpf bpf /sys/fs/bpf")
            }
        }
        Bpffs::Absent => CheckItem::degraded(NAME, "not in this kernel", consequence),
    }
}

fn lockdown(facts: &FactSheet, is_own: bool) -> CheckItem {
    const NAME: &str = "lockdown";
    match facts.lockdown {
        Some(Lockdown::Confidentiality) => {
            CheckItem::degraded(NAME, "confidentiality", confidentiality(facts, is_own))
        }
        Some(Lockdown::Integrity) => CheckItem::ok(NAME, "integrity"),
        Some(Lockdown::None) => CheckItem::ok(NAME, "none"),
        None if facts.security_modules.is_some() => CheckItem::ok(NAME, "not in this kernel"),
        None => CheckItem::ok(NAME, "not visible, securityfs is not mounted"),
    }
}

/// What is lost where no program may call a helper that reads memory of the kernel. Of the forms of the program that
/// tells of a victim one does without.
fn confidentiality(facts: &FactSheet, is_own: bool) -> String {
    const REFUSED: &str = "programs that read memory of the kernel by helpers are refused";
    const NO_VICTIMS: &str = "none reports OOM kills, which are known from the kernel's counts alone, without their victims";
    if !is_at_least(facts, TYPED_COUNTERS) {
        return format!("{REFUSED}: before Linux 6.2 {NO_VICTIMS}, and cgroups are found by walks");
    }
    let unless = match is_at_least(facts, VICTIM_IS_PASSED) {
        true => String::new(),
        false => format!(
            "; where mark_victim passes no more than a pid, as before Linux 6.8, {NO_VICTIMS}"
        ),
    };
    // Who starts the containers knows their first processes and their names.
    let unknown = match is_own {
        true => "",
        false => {
            "whether it was the first process of its container that was killed is not known unless its parent is in \
             there too, or an older process, a kill in a container that is gone before a walk finds it is told \
             without the container, "
        }
    };
    format!(
        "{REFUSED}: whose limit was reached is not named, {unknown}and cgroups are found by walks{unless}"
    )
}

fn kubelet(facts: &FactSheet, is_own: bool) -> CheckItem {
    const NAME: &str = "kubelet";
    let found = &facts.kubelet;
    let processes: Vec<_> = found
        .processes
        .iter()
        .map(|(pid, name)| format!("{name} (pid {pid})"))
        .collect();

    if !processes.is_empty() {
        let found = format!("{} runs", join(&processes));
        return if is_own {
            CheckItem::fatal(
                NAME,
                found,
                "two managers would fight over the same cgroups",
            )
            .with_remedy("stop it, or set mode to observe")
        } else {
            CheckItem::ok(NAME, found)
        };
    }
    if found.is_port_taken {
        let found = "something listens on its port, 10250";
        return if is_own {
            CheckItem::degraded(
                NAME,
                found,
                "if it is a kubelet, two managers fight over the same cgroups",
            )
        } else {
            CheckItem::ok(NAME, found)
        };
    }
    if found.pods_left > 0 {
        let n = found.pods_left;
        return CheckItem::degraded(
            NAME,
            format!("not running; {n} of its pods run on"),
            "a pod of them that is given here too runs twice, unless its manifest has the UID of the other",
        )
        .with_remedy("end them by their runtime (crictl stopp, crictl rmp), or set mode to observe");
    }
    if !is_own && facts.namespaces.is_initial_pid == Some(false) {
        return unknown(NAME, "none can be seen from a PID namespace of its own");
    }
    let found = if found.is_configured {
        "configured, and not running"
    } else {
        "none"
    };
    if is_own {
        CheckItem::ok(NAME, found)
    } else {
        let consequence = "pods are shown as their cgroups are found, whoever makes them";
        CheckItem::degraded(NAME, found, consequence)
            .with_remedy("start kubelet, or set mode to own")
    }
}

fn agent(facts: &FactSheet, config: &Config) -> CheckItem {
    const NAME: &str = "agent";
    let socket = config.socket.display();
    match facts.agent {
        AgentPresence::Absent => CheckItem::ok(NAME, "no other one"),
        AgentPresence::Stale => CheckItem::ok(NAME, format!("{socket} is left of one that ended")),
        AgentPresence::Running => CheckItem::degraded(
            NAME,
            format!("one answers at {socket}"),
            "a second one would not start",
        ),
    }
}

fn program(program: &ProgramCheck) -> CheckItem {
    let name = format!("ebpf/{}", program.program);
    if program.is_running {
        return CheckItem::ok(&name, &program.state);
    }
    let consequence = match &program.fallback {
        Some(fallback) => format!("instead: {fallback}"),
        None => "nothing does its work".to_owned(),
    };
    CheckItem::degraded(&name, &program.state, consequence)
}

/// A fact that could not be had: something to look into, and no reason not to start.
fn unknown(name: &str, reason: &str) -> CheckItem {
    CheckItem {
        level: CheckLevel::Degraded,
        consequence: Some("treated as absent".to_owned()),
        ..CheckItem::ok(name, format!("unknown: {reason}"))
    }
}

fn join<T: ToString>(items: impl IntoIterator<Item = T>) -> String {
    let items: Vec<_> = items.into_iter().map(|it| it.to_string()).collect();
    items.join(", ")
}

#[cfg(test)]
pub(crate) mod tests;
