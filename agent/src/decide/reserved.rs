//! The cgroups of daemons that `systemReserved` and `kubeReserved` are enforced on, and what they are
//! to hold (kubelet 1.36, pkg/kubelet/cm/node_container_manager_linux.go).
//!
//! They are others': the agent writes their limits, and never makes, repairs or removes one.

use super::cgroup_files::{FileRules, WeightMap, files_for};
use super::node_allocatable::{Part, reserved_resources};
use crate::config::{Compat, Enforcement, KubeletConfig};
use crate::model::cgroup::DesiredCgroup;

/// A cgroup with its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// The field of KubeletConfiguration that names it.
    pub field: &'static str,
    pub cgroup: DesiredCgroup,
}

/// Those that `enforceNodeAllocatable` asks for, in kubelet's order.
pub fn reserved_cgroups(
    kubelet: &KubeletConfig,
    compat: Compat,
    rules: &FileRules,
) -> Vec<ReservedCgroup> {
    let system = (
        "systemReservedCgroup",
        &kubelet.system_reserved_cgroup,
        &kubelet.system_reserved,
    );
    let kube = (
        "kubeReservedCgroup",
        &kubelet.kube_reserved_cgroup,
        &kubelet.kube_reserved,
    );
    let protects_memory = kubelet.memory_qos && rules.unified;
    [
        (Enforcement::SystemReserved, Part::All, system),
        (Enforcement::KubeReserved, Part::All, kube),
        (
            Enforcement::SystemReservedCompressible,
            Part::Compressible,
            system,
        ),
        (
            Enforcement::KubeReservedCompressible,
            Part::Compressible,
            kube,
        ),
    ]
    .into_iter()
    .filter(|(enforcement, ..)| kubelet.enforce_node_allocatable.contains(enforcement))
    .filter_map(|(_, part, (field, cgroup, reserved))| {
        let protects_memory = protects_memory && part == Part::All;
        let resources = reserved_resources(reserved, part, protects_memory, compat);
        Some(ReservedCgroup {
            field,
            cgroup: DesiredCgroup {
                path: cgroup.clone()?,
                files: files_for(&resources, WeightMap::Linear, rules),
                is_sum: false,
            },
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn rules(unified: bool) -> FileRules {
        FileRules {
            unified,
            page_size: 4096,
            hugepage_sizes: vec![2 << 20],
            hugetlb_reservations: true,
            memory_and_swap: false,
            swap_max: false,
            devices: false,
            pids: true,
        }
    }

    /// Field, cgroup and files as `name=value`.
    fn planned(kubelet: &str, unified: bool, compat: Compat) -> Vec<String> {
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\nkubelet: {{{kubelet}}}\n"
        );
        let loaded = Config::from_yaml(&text, None, &[]).expect("a good configuration");
        let kubelet = &loaded.config.kubelet;
        let all = reserved_cgroups(kubelet, compat, &rules(unified));
        let shown = all.into_iter().map(|it| {
            let files = it.cgroup.files.iter();
            let files: Vec<String> = files
                .map(|(file, value)| format!("{}={value}", file.name))
                .collect();
            format!("{} {}: {}", it.field, it.cgroup.path, files.join(" "))
        });
        shown.collect()
    }

    const BOTH: &str = "systemReserved: {cpu: 500m, memory: 1Gi, pid: 1000}, \
                        systemReservedCgroup: /system, kubeReserved: {cpu: 100m, memory: 64Mi}, \
                        kubeReservedCgroup: /kube";

    #[test]
    fn what_is_reserved_is_the_limit_of_the_cgroup() {
        let all = format!("{BOTH}, enforceNodeAllocatable: [kube-reserved, pods, system-reserved]");
        assert_eq!(
            planned(&all, true, Compat::Ballast),
            [
                "systemReservedCgroup /system: pids.max=1000 memory.max=1073741824 cpu.weight=20",
                "kubeReservedCgroup /kube: memory.max=67108864 cpu.weight=4",
            ]
        );
        assert_eq!(
            planned(&all, false, Compat::Ballast)[0],
            "systemReservedCgroup /system: memory.limit_in_bytes=1073741824 cpu.shares=512 \
             pids.max=1000"
        );
    }

    #[test]
    fn a_compressible_reservation_is_cpu_alone() {
        let compressible = "enforceNodeAllocatable: [system-reserved-compressible]";
        let config = format!("{BOTH}, featureGates: {{MemoryQoS: true}}, {compressible}");
        assert_eq!(
            planned(&config, true, Compat::Ballast),
            ["systemReservedCgroup /system: cpu.weight=20"]
        );
        // Kubelet takes huge pages from the daemons that use them.
        assert_eq!(
            planned(&config, true, Compat::Kubelet),
            [
                "systemReservedCgroup /system: cpu.weight=20 hugetlb.2MB.max=0 hugetlb.2MB.rsvd.max=0"
            ]
        );
    }

    #[test]
    fn memory_of_daemons_is_protected_with_memory_qos_on_v2() {
        let gate = "featureGates: {MemoryQoS: true}, enforceNodeAllocatable: [kube-reserved]";
        let config = format!("{BOTH}, {gate}");
        assert_eq!(
            planned(&config, true, Compat::Ballast),
            ["kubeReservedCgroup /kube: memory.max=67108864 cpu.weight=4 memory.min=67108864"]
        );
        assert!(!planned(&config, false, Compat::Ballast)[0].contains("memory.min"));
    }

    #[test]
    fn a_cgroup_that_is_only_named_is_left_alone() {
        assert_eq!(planned(BOTH, true, Compat::Ballast), [""; 0]);
    }
}
