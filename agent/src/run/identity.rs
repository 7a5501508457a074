//! What an agent is and what its node gives it: the metrics that are set once at start.

use super::node::Node;
use super::told::Told;
use crate::config::{Config, FieldCounts, KubeletConfig};
use crate::model::cgroup_name::CgroupDriver;
use crate::model::cgroup_path::CgroupPath;
use crate::observe::chain;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::labels::FieldHandling;
use crate::sys::Root;

/// The commit of the build, which the packaging tells through the environment of the build.
const REVISION: &str = match option_env!("BALLAST_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

/// How little the kernel's OOM killer is to want the agent itself (`oomScoreAdj`). Going below what it
/// was started with takes CAP_SYS_RESOURCE; without it the agent goes on as it is.
pub(super) fn set_oom_score_adj(root: &Root, wanted: i16, told: &Told) {
    const FILE: &str = "/proc/self/oom_score_adj";
    let actual = || root.read_text(FILE).ok();
    let is_wanted = |it: &String| it.trim().parse() == Ok(wanted);
    if actual().as_ref().is_some_and(is_wanted) {
        return;
    }
    if let Err(error) = root.write_existing(FILE, wanted.to_string().as_bytes()) {
        let actual = actual().map_or_else(|| "unknown".to_owned(), |it| it.trim().to_owned());
        told.node(
            "OomScoreAdjRefused",
            format!(
                "oomScoreAdj {wanted} of the agent: {}; it stays {actual}, and the kernel may kill the \
                 agent before a pod. Right would be CAP_SYS_RESOURCE, or OOMScoreAdjust in its unit",
                chain(&error)
            ),
        );
    }
}

/// What an agent of every mode is. `kubepods`: it tells what the kernel has, and the driver that made it;
/// `None`: it is not there yet.
pub(super) fn set_agent(
    metrics: &Metrics,
    root: &Root,
    config: &Config,
    node: &Node,
    kubepods: Option<(&CgroupPath, CgroupDriver)>,
) {
    metrics.set_build(env!("CARGO_PKG_VERSION"), REVISION, env!("BALLAST_TARGET"));
    let driver = match kubepods.map(|(_, driver)| driver) {
        Some(CgroupDriver::Cgroupfs) => "cgroupfs",
        Some(CgroupDriver::Systemd) => "systemd",
        None => "",
    };
    // Nothing in this build plans without writing.
    let is_dry_run = false;
    metrics.set_mode(
        config.mode.as_str(),
        node.version().as_str(),
        driver,
        is_dry_run,
    );
    metrics.set_feature("bpf_diagnostics", config.bpf.diagnostics);
    let path = kubepods.map_or_else(CgroupPath::root, |(path, _)| path.clone());
    for (feature, is_available) in node.kernel_features(root, &path) {
        metrics.set_kernel_feature(feature, is_available);
    }
}

/// What the settings say of a node that the agent manages itself.
pub(super) fn set_settings(
    metrics: &Metrics,
    kubelet: &KubeletConfig,
    fields: FieldCounts,
    node: &Node,
) {
    for (feature, is_enabled) in [
        ("cpu_cfs_quota", kubelet.cpu_cfs_quota),
        (
            "local_storage_capacity_isolation",
            kubelet.local_storage_capacity_isolation,
        ),
        ("memory_qos", kubelet.memory_qos),
        ("pod_level_resources", kubelet.pod_level_resources),
        (
            "qos_reserved",
            kubelet.qos_reserved_memory_percent.is_some(),
        ),
    ] {
        metrics.set_feature(feature, is_enabled);
    }
    let cgroup_version = if node.is_unified() { 2 } else { 1 };
    metrics.set_kubelet_node(&node.name, cgroup_version);
    metrics.begin_placement(kubelet.placement.topology_manager_policy.as_str());
    metrics.set_kubelet_config_fields(FieldHandling::Honoured, fields.honoured);
    metrics.set_kubelet_config_fields(FieldHandling::Ignored, fields.ignored);
}
