//! Checks of the KubeletConfiguration fields that are honoured: ranges, and relations between
//! fields, as kubelet 1.36 makes them (pkg/kubelet/apis/config/validation/validation.go, cmd/kubelet/app/server.go).

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Map, Value};

use super::agent::choose;
use super::checked::*;
use super::duration::{self, SignedDuration};
use super::eviction;
use super::fault::{Faults, FieldPath};
use super::feature_gates::{FeatureGates, Gate};
use super::placement;
use super::raw::{RawKubelet, ReadField, TextMap};
use crate::model::allowed_sysctls::AllowedSysctls;
use crate::model::cgroup_name::{CgroupDriver, CgroupName};
use crate::model::cgroup_path::CgroupPath;
use crate::model::cpuset::CpuSet;
use crate::model::pod::ResourceList;
use crate::model::quantity::{Format, Quantity};
use crate::units::Micros;

const DEFAULT_CFS_QUOTA_PERIOD: Duration = Duration::from_millis(100);
const DEFAULT_CONTAINER_LOG_MAX_SIZE: &str = "10Mi";
const DEFAULT_CONTAINER_LOG_MAX_FILES: u32 = 5;
const DEFAULT_CONTAINER_RESTART_PERIOD: Duration = Duration::from_secs(300);
const DEFAULT_FILE_CHECK_FREQUENCY: Duration = Duration::from_secs(20);
const DEFAULT_MAX_PODS: u32 = 110;
const DEFAULT_MEMORY_THROTTLING_FACTOR: f64 = 0.9;
const DEFAULT_OOM_SCORE_ADJ: i16 = -999;
const DEFAULT_PRESSURE_TRANSITION_PERIOD: Duration = Duration::from_secs(300);
const DEFAULT_SYNC_FREQUENCY: Duration = Duration::from_secs(60);

/// Resources that can be kept from pods by `kubeReserved` and `systemReserved`.
const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// Takes out `cgroupRoot` and `cgroupDriver`, of which the runtime may have overruled the second: the root as
/// either driver has it on disk, that of the driver that is set first. Empty: no root is set.
pub(super) fn take_cgroup_roots(
    fields: &mut Map<String, Value>,
    faults: &mut Faults,
) -> Vec<CgroupPath> {
    let mut take = |name: &str| {
        let value = fields.remove(name).filter(|it| !it.is_null())?;
        String::read(&value, &field(name), faults)
    };
    let [driver, root] = ["cgroupDriver", "cgroupRoot"].map(&mut take);
    let is_systemd = match driver.as_deref() {
        None | Some("" | "cgroupfs") => false,
        Some("systemd") => true,
        Some(other) => {
            let message = format!("`{other}` is not a driver; right would be cgroupfs or systemd");
            faults.add(&field("cgroupDriver"), message);
            false
        }
    };
    let Some(text) = root.filter(|it| !it.is_empty()) else {
        return Vec::new();
    };
    let mut drivers = [CgroupDriver::Cgroupfs, CgroupDriver::Systemd];
    if is_systemd {
        drivers.reverse();
    }
    let names = drivers.map(|it| (it, CgroupName::from_cgroup_root(&text, it)));
    if let [(_, Err(error)), (_, Err(_))] = &names {
        faults.add(&field("cgroupRoot"), error.to_string());
    }
    let mut roots = Vec::new();
    for (driver, name) in names {
        let root = name.ok().map(|it| it.at(driver));
        roots.extend(root.filter(|it| !roots.contains(it)));
    }
    roots
}

/// `fields` are the merged layers; paths of faults start at the KubeletConfiguration. What stands
/// in a field with a fault is its default; the caller throws all of it away.
pub(super) fn check(
    fields: &Map<String, Value>,
    compat: Compat,
    warnings: &mut Vec<String>,
    faults: &mut Faults,
) -> KubeletConfig {
    let raw = RawKubelet::from_fields(fields, &FieldPath::root(), faults);
    let no_gates = Default::default();
    let gates = FeatureGates::new(
        raw.feature_gates.as_ref().unwrap_or(&no_gates),
        warnings,
        faults,
    );
    let eviction = eviction::check(&raw, faults);
    // The other driver is refused by the table of fields.
    let cgroup_driver = CgroupDriver::Cgroupfs;
    let reserved = reserved(&raw, faults);
    let memory_qos = gates.is_on(Gate::MemoryQos);

    let placement = placement::check(
        &raw,
        &gates,
        |name, text, default, faults| Checker { faults }.duration(name, text, default),
        faults,
    );
    let mut check = Checker { faults };
    let [system_reserved_cgroup, kube_reserved_cgroup] =
        check.reserved_cgroups(&raw, cgroup_driver);
    KubeletConfig {
        cgroup_root: check.cgroup_root(&raw, cgroup_driver),
        cgroup_driver,
        kube_reserved: reserved.kube,
        system_reserved: reserved.system,
        reserved_system_cpus: reserved.cpus,
        kube_reserved_cgroup,
        system_reserved_cgroup,
        enforce_node_allocatable: check.enforcement(&raw),
        allowed_sysctls: check.allowed_sysctls(&raw),
        eviction_hard: eviction.hard,
        eviction_soft: eviction.soft,
        eviction_soft_grace_period: eviction.soft_grace_period,
        eviction_minimum_reclaim: eviction.minimum_reclaim,
        eviction_pressure_transition_period: check.duration(
            "evictionPressureTransitionPeriod",
            raw.eviction_pressure_transition_period.as_deref(),
            DEFAULT_PRESSURE_TRANSITION_PERIOD,
        ),
        eviction_max_pod_grace_period: check.max_pod_grace(&raw),
        pod_pids_limit: raw
            .pod_pids_limit
            .and_then(|it| u64::try_from(it).ok())
            .filter(|it| *it > 0),
        cpu_cfs_quota: raw.cpu_cfs_quota.unwrap_or(true),
        cpu_cfs_quota_period: check.cfs_quota_period(&raw, &gates),
        placement,
        fail_swap_on: raw.fail_swap_on.unwrap_or(true),
        fail_cgroup_v1: raw.fail_cgroup_v1.unwrap_or(compat == Compat::Kubelet),
        swap_behavior: choose(
            raw.memory_swap
                .as_ref()
                .and_then(|it| it.swap_behavior.as_deref()),
            &[
                ("NoSwap", SwapBehavior::NoSwap),
                ("LimitedSwap", SwapBehavior::LimitedSwap),
            ],
            &field("memorySwap").field("swapBehavior"),
            check.faults,
        ),
        single_process_oom_kill: raw.single_process_oom_kill,
        max_pods: check
            .count("maxPods", raw.max_pods)
            .filter(|it| *it > 0)
            .unwrap_or(DEFAULT_MAX_PODS),
        pods_per_core: check.count("podsPerCore", raw.pods_per_core).unwrap_or(0),
        oom_score_adj: check.oom_score_adj(&raw),
        memory_qos,
        memory_reservation_policy: check.memory_reservation_policy(&raw, memory_qos),
        memory_throttling_factor: check.memory_throttling_factor(&raw),
        qos_reserved_memory_percent: check.qos_reserved(&raw, gates.is_on(Gate::QosReserved)),
        pod_level_resources: gates.is_on(Gate::PodLevelResources),
        max_container_log_bytes: check.container_log_bytes(&raw),
        max_container_log_files: check.container_log_files(&raw),
        max_container_restart_period: check.restart_period(&raw, &gates),
        sync_frequency: check.duration(
            "syncFrequency",
            raw.sync_frequency.as_deref(),
            DEFAULT_SYNC_FREQUENCY,
        ),
        file_check_frequency: check.duration(
            "fileCheckFrequency",
            raw.file_check_frequency.as_deref(),
            DEFAULT_FILE_CHECK_FREQUENCY,
        ),
        local_storage_capacity_isolation: raw.local_storage_capacity_isolation.unwrap_or(true),
    }
}

fn field(name: &str) -> FieldPath {
    FieldPath::root().field(name)
}

struct Reserved {
    kube: ResourceList,
    system: ResourceList,
    cpus: Option<CpuSet>,
}

/// The two reservations, with `reservedSystemCPUs` applied: it takes the place of both `cpu`
/// entries, by the number of CPUs listed.
fn reserved(raw: &RawKubelet, faults: &mut Faults) -> Reserved {
    let mut kube = reservation(raw.kube_reserved.as_ref(), &field("kubeReserved"), faults);
    let mut system = reservation(
        raw.system_reserved.as_ref(),
        &field("systemReserved"),
        faults,
    );
    let at = field("reservedSystemCPUs");
    let cpus = raw
        .reserved_system_cpus
        .as_deref()
        .filter(|text| !text.is_empty())
        .and_then(|text| faults.keep(&at, text.parse::<CpuSet>()));
    if let Some(set) = &cpus {
        if is_set(&raw.system_reserved_cgroup) || is_set(&raw.kube_reserved_cgroup) {
            let message = "cannot be combined with systemReservedCgroup or kubeReservedCgroup";
            faults.add(&at, message);
        }
        let n_cpus = i64::try_from(set.len()).unwrap_or(i64::MAX);
        kube.remove("cpu");
        system.insert(
            "cpu".into(),
            Quantity::from_units(n_cpus, Format::DecimalSi),
        );
    }
    Reserved { kube, system, cpus }
}

fn reservation(entries: Option<&TextMap>, at: &FieldPath, faults: &mut Faults) -> ResourceList {
    let mut list = ResourceList::new();
    for (name, text) in entries.into_iter().flatten() {
        let at = at.field(name);
        if !RESERVABLE.contains(&name.as_str()) {
            let right = RESERVABLE.join(", ");
            faults.add(
                &at,
                format!("cannot be reserved; right would be one of {right}"),
            );
            continue;
        }
        let Some(amount) = faults.keep(&at, text.parse::<Quantity>()) else {
            continue;
        };
        if amount.is_negative() {
            faults.add(
                &at,
                format!("`{text}` is negative; right would be 0 or more"),
            );
        }
        list.insert(name.clone(), amount);
    }
    list
}

fn is_set(text: &Option<String>) -> bool {
    text.as_ref().is_some_and(|it| !it.is_empty())
}

fn has_entries(map: &Option<TextMap>) -> bool {
    map.as_ref().is_some_and(|it| !it.is_empty())
}

/// Checks of one field each.
struct Checker<'a> {
    faults: &'a mut Faults,
}

impl Checker<'_> {
    fn choice<T: Copy + Default>(
        &mut self,
        name: &str,
        text: Option<&str>,
        choices: &[(&str, T)],
    ) -> T {
        choose(text, choices, &field(name), self.faults)
    }

    /// Not negative; kubelet's own type is a signed 32-bit number.
    fn count(&mut self, name: &str, value: Option<i64>) -> Option<u32> {
        let value = value?;
        let count = u32::try_from(value)
            .ok()
            .filter(|it| i32::try_from(*it).is_ok());
        if count.is_none() {
            let right = i32::MAX;
            self.faults.add(
                &field(name),
                format!("{value} is out of range; right would be 0 to {right}"),
            );
        }
        count
    }

    /// Negative is the pod's own (`evictionMaxPodGracePeriod`,
    /// staging/src/k8s.io/kubelet/config/v1beta1/types.go).
    fn max_pod_grace(&mut self, raw: &RawKubelet) -> Option<Duration> {
        let value = raw.eviction_max_pod_grace_period;
        if value.is_some_and(i64::is_negative) {
            return None;
        }
        let seconds = self.count("evictionMaxPodGracePeriod", value);
        Some(Duration::from_secs(seconds.unwrap_or(0).into()))
    }

    /// Not negative; absent, empty and zero all stand for the default, as kubelet has it.
    fn duration(&mut self, name: &str, text: Option<&str>, default: Duration) -> Duration {
        let Some(text) = text.filter(|it| !it.is_empty()) else {
            return default;
        };
        match duration::parse(text) {
            Ok(SignedDuration::Positive(Duration::ZERO)) => default,
            Ok(SignedDuration::Positive(length)) => length,
            Ok(SignedDuration::Negative(_)) => {
                let right = duration::format(default);
                self.faults.add(
                    &field(name),
                    format!("`{text}` is negative; right would be as {right}"),
                );
                default
            }
            Err(error) => {
                self.faults.add(&field(name), error.to_string());
                default
            }
        }
    }

    /// A duration whose zero means zero.
    fn duration_within(
        &mut self,
        at: &FieldPath,
        text: Option<&str>,
        [shortest, longest]: [Duration; 2],
        default: Duration,
    ) -> Duration {
        let Some(text) = text else {
            return default;
        };
        match duration::parse(text) {
            Ok(SignedDuration::Positive(length)) if (shortest..=longest).contains(&length) => {
                length
            }
            Ok(_) => {
                let (shortest, longest) = (duration::format(shortest), duration::format(longest));
                let right = format!("right would be {shortest} to {longest}");
                self.faults
                    .add(at, format!("`{text}` is out of range; {right}"));
                default
            }
            Err(error) => {
                self.faults.add(at, error.to_string());
                default
            }
        }
    }

    fn cgroup_root(&mut self, raw: &RawKubelet, driver: CgroupDriver) -> CgroupName {
        let text = raw.cgroup_root.as_deref().unwrap_or_default();
        let name = CgroupName::from_cgroup_root(text, driver);
        self.faults
            .keep(&field("cgroupRoot"), name)
            .unwrap_or_default()
    }

    /// Of the system and of kubelet: two limits for one cgroup would take turns.
    fn reserved_cgroups(
        &mut self,
        raw: &RawKubelet,
        driver: CgroupDriver,
    ) -> [Option<CgroupPath>; 2] {
        let system = raw.system_reserved_cgroup.as_deref();
        let system = self.reserved_cgroup("systemReservedCgroup", system, driver);
        let kube = raw.kube_reserved_cgroup.as_deref();
        let kube = self.reserved_cgroup("kubeReservedCgroup", kube, driver);
        if kube.is_some() && kube == system {
            let message = "is systemReservedCgroup as well; right would be a cgroup of its own";
            self.faults.add(&field("kubeReservedCgroup"), message);
        }
        [system, kube]
    }

    fn reserved_cgroup(
        &mut self,
        name: &str,
        text: Option<&str>,
        driver: CgroupDriver,
    ) -> Option<CgroupPath> {
        let text = text.filter(|it| !it.is_empty())?;
        let parsed = CgroupName::reserved_cgroup(text, driver);
        let parsed = self.faults.keep(&field(name), parsed)?;
        if parsed.is_root() {
            let message = "the root cgroup cannot be limited; right would be a cgroup below it";
            self.faults.add(&field(name), message);
        }
        Some(parsed)
    }

    fn allowed_sysctls(&mut self, raw: &RawKubelet) -> AllowedSysctls {
        let at = field("allowedUnsafeSysctls");
        let mut allowed = AllowedSysctls::safe();
        let patterns = raw.allowed_unsafe_sysctls.iter().flatten();
        for (index, pattern) in patterns.enumerate() {
            if let Err(error) = allowed.allow(pattern) {
                self.faults.add(&at.index(index), error.to_string());
            }
        }
        allowed
    }

    fn enforcement(&mut self, raw: &RawKubelet) -> BTreeSet<Enforcement> {
        const KEYS: &[(&str, Enforcement)] = &[
            ("pods", Enforcement::Pods),
            ("system-reserved", Enforcement::SystemReserved),
            ("kube-reserved", Enforcement::KubeReserved),
            (
                "system-reserved-compressible",
                Enforcement::SystemReservedCompressible,
            ),
            (
                "kube-reserved-compressible",
                Enforcement::KubeReservedCompressible,
            ),
        ];
        let at = field("enforceNodeAllocatable");
        let default = ["pods".to_owned()];
        let entries = raw.enforce_node_allocatable.as_deref().unwrap_or(&default);
        let mut enforced = BTreeSet::new();
        for (index, entry) in entries.iter().enumerate() {
            let at = at.index(index);
            if entry == "none" {
                if entries.len() > 1 {
                    self.faults.add(&at, "`none` must stand alone");
                }
                continue;
            }
            let Some((_, key)) = KEYS.iter().find(|(name, _)| name == entry) else {
                let names: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
                let right = names.join(", ");
                let message =
                    format!("`{entry}` is not known; right would be none or some of {right}");
                self.faults.add(&at, message);
                continue;
            };
            if !enforced.insert(*key) {
                self.faults.add(&at, format!("`{entry}` stands twice"));
            }
            let needs = match key {
                Enforcement::Pods => continue,
                Enforcement::SystemReserved | Enforcement::SystemReservedCompressible => [
                    ("systemReservedCgroup", is_set(&raw.system_reserved_cgroup)),
                    ("systemReserved", has_entries(&raw.system_reserved)),
                ],
                Enforcement::KubeReserved | Enforcement::KubeReservedCompressible => [
                    ("kubeReservedCgroup", is_set(&raw.kube_reserved_cgroup)),
                    ("kubeReserved", has_entries(&raw.kube_reserved)),
                ],
            };
            for (name, _) in needs.into_iter().filter(|(_, is_given)| !is_given) {
                self.faults.add(&at, format!("`{entry}` needs {name}"));
            }
        }
        for (whole, part, name) in [
            (
                Enforcement::SystemReserved,
                Enforcement::SystemReservedCompressible,
                "system-reserved",
            ),
            (
                Enforcement::KubeReserved,
                Enforcement::KubeReservedCompressible,
                "kube-reserved",
            ),
        ] {
            if enforced.contains(&whole) && enforced.contains(&part) {
                let message =
                    format!("has both `{name}` and `{name}-compressible`; right would be one");
                self.faults.add(&at, message);
            }
        }
        enforced
    }

    fn cfs_quota_period(&mut self, raw: &RawKubelet, gates: &FeatureGates<'_>) -> Micros {
        let at = field("cpuCFSQuotaPeriod");
        let range = [Duration::from_millis(1), Duration::from_secs(1)];
        let text = raw.cpu_cfs_quota_period.as_deref();
        let period = self.duration_within(&at, text, range, DEFAULT_CFS_QUOTA_PERIOD);
        if period != DEFAULT_CFS_QUOTA_PERIOD && !gates.is_on(Gate::CustomCpuCfsQuotaPeriod) {
            let message = "needs the feature gate CustomCPUCFSQuotaPeriod; right would be 100ms";
            self.faults.add(&at, message);
        }
        Micros(u64::try_from(period.as_micros()).unwrap_or(u64::MAX))
    }

    fn restart_period(&mut self, raw: &RawKubelet, gates: &FeatureGates<'_>) -> Duration {
        let at = field("crashLoopBackOff").field("maxContainerRestartPeriod");
        let section = raw.crash_loop_back_off.as_ref();
        let text = section.and_then(|it| it.max_container_restart_period.as_deref());
        if text.is_some() && !gates.is_on(Gate::CrashLoopBackOffMax) {
            self.faults
                .add(&at, "needs the feature gate KubeletCrashLoopBackOffMax");
        }
        let range = [Duration::from_secs(1), DEFAULT_CONTAINER_RESTART_PERIOD];
        self.duration_within(&at, text, range, DEFAULT_CONTAINER_RESTART_PERIOD)
    }

    fn oom_score_adj(&mut self, raw: &RawKubelet) -> i16 {
        let Some(value) = raw.oom_score_adj else {
            return DEFAULT_OOM_SCORE_ADJ;
        };
        let score = i16::try_from(value)
            .ok()
            .filter(|it| (-1000..=1000).contains(it));
        score.unwrap_or_else(|| {
            let message = format!("{value} is out of range; right would be -1000 to 1000");
            self.faults.add(&field("oomScoreAdj"), message);
            DEFAULT_OOM_SCORE_ADJ
        })
    }

    fn memory_reservation_policy(
        &mut self,
        raw: &RawKubelet,
        memory_qos: bool,
    ) -> MemoryReservationPolicy {
        let policy = self.choice(
            "memoryReservationPolicy",
            raw.memory_reservation_policy.as_deref(),
            &[
                ("None", MemoryReservationPolicy::None),
                (
                    "TieredReservation",
                    MemoryReservationPolicy::TieredReservation,
                ),
            ],
        );
        if policy == MemoryReservationPolicy::TieredReservation && !memory_qos {
            let message = "TieredReservation needs the feature gate MemoryQoS; right would be None";
            self.faults.add(&field("memoryReservationPolicy"), message);
        }
        policy
    }

    fn memory_throttling_factor(&mut self, raw: &RawKubelet) -> ThrottlingFactor {
        let factor = raw
            .memory_throttling_factor
            .unwrap_or(DEFAULT_MEMORY_THROTTLING_FACTOR);
        if !(factor > 0.0 && factor <= 1.0) {
            let message = format!("{factor} is out of range; right would be above 0 and at most 1");
            self.faults.add(&field("memoryThrottlingFactor"), message);
        }
        ThrottlingFactor(factor)
    }

    fn qos_reserved(&mut self, raw: &RawKubelet, is_on: bool) -> Option<u8> {
        let at = field("qosReserved");
        let entries = raw.qos_reserved.as_ref().filter(|it| !it.is_empty())?;
        if !is_on {
            self.faults
                .add(&at, "needs the feature gate QOSReserved; leave it out");
        }
        for name in entries.keys().filter(|name| *name != "memory") {
            self.faults
                .add(&at.field(name), "only memory can be reserved by QoS class");
        }
        let text = entries.get("memory")?;
        let number = text.strip_suffix('%').and_then(|it| it.parse::<u8>().ok());
        let percent = number.filter(|it| *it <= 100);
        if percent.is_none() {
            let message = format!("`{text}` is not a percentage; right would be 0% to 100%");
            self.faults.add(&at.field("memory"), message);
        }
        percent.filter(|_| is_on)
    }

    /// Kubelet takes a negative size for "do not rotate"; a log without bound is refused here.
    fn container_log_bytes(&mut self, raw: &RawKubelet) -> u64 {
        let given = raw
            .container_log_max_size
            .as_deref()
            .filter(|it| !it.is_empty());
        let text = given.unwrap_or(DEFAULT_CONTAINER_LOG_MAX_SIZE);
        let at = field("containerLogMaxSize");
        let Some(size) = self.faults.keep(&at, text.parse::<Quantity>()) else {
            return 0;
        };
        if !size.is_positive() {
            let right = DEFAULT_CONTAINER_LOG_MAX_SIZE;
            self.faults.add(
                &at,
                format!("`{text}` is not above 0; right would be as {right}"),
            );
        }
        size.units()
    }

    fn container_log_files(&mut self, raw: &RawKubelet) -> u32 {
        let name = "containerLogMaxFiles";
        let Some(n_files) = self.count(name, raw.container_log_max_files) else {
            return DEFAULT_CONTAINER_LOG_MAX_FILES;
        };
        if n_files < 2 {
            let message = format!("{n_files} leaves no room to rotate; right would be 2 or more");
            self.faults.add(&field(name), message);
        }
        n_files
    }
}
