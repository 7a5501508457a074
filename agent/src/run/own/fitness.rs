//! Whether a start can go by this configuration on this node, found out without making anything: for
//! `ballast check`, and for `ballast run` before it makes its first directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::evictions::DISK_TIME;
use super::hands::{self, Hands, SettingError};
use super::isolated;
use super::placement::Placement;
use super::pods::PODS;
use super::system_cpus::while_online;
use crate::config::{Config, OwnConfig, PodsConfig};
use crate::decide::eviction::met::{Met, met_thresholds};
use crate::decide::eviction::signals::observations;
use crate::decide::placement::managers::{Managers, PlacementSettings};
use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::{MemoryMethod, NodeReading};
use crate::run::exclusive::cgroup_root_directory;
use crate::run::node::Node;
use crate::run::{RunError, directories, in_use, serve};
use crate::runtime::{logs, process};
use crate::sources::node_reading::NodeReader;
use crate::sys::filesystem::FilesystemProbe;
use crate::sys::patience::Patience;
use crate::sys::{Root, clock};

/// For `ballast check`.
pub(in crate::run) fn check_config(config: &Config, own: &OwnConfig) -> Result<(), RunError> {
    find(&Root::host(), config, own).map(|_| ())
}

/// What is told of isolated CPUs. `None` also where a fault, which is told by itself, keeps it from being known.
pub(in crate::run) fn isolated_at_start(
    config: &Config,
    own: &OwnConfig,
    node: &Node,
) -> Option<String> {
    let (_, settings) = settings(config, own, node).ok()?;
    let cpu = Managers::new(&settings).ok()?.cpu?;
    isolated::shared(cpu.common(), &node.topology.isolated)
}

/// Thresholds that the node meets as it is. Empty also where it cannot be read.
pub(in crate::run) fn met_at_start(config: &Config, own: &OwnConfig, node: &Node) -> Vec<Met> {
    let Some(now) = reading(config, node) else {
        return Vec::new();
    };
    let method = match own.eviction.memory_method {
        MemoryMethod::WorkingSet => MemoryMethod::WorkingSet,
        // One reading alone is too little for the estimate.
        MemoryMethod::Least | MemoryMethod::Estimate | MemoryMethod::Meminfo => {
            MemoryMethod::Meminfo
        }
    };
    let now = observations(&now, None, method, own.compat);
    met_thresholds(&config.kubelet, &now)
}

fn reading(config: &Config, node: &Node) -> Option<NodeReading> {
    let root = Root::host();
    let (there, _) = directories::nearest(&root, &config.state_directory).ok()?;
    let patience = Patience::start(DISK_TIME).ok()?;
    let nodefs = FilesystemProbe::new(&root, &there, &patience);
    let trees = Arc::clone(node.reader.trees());
    let page_size = node.identity.page_size.0;
    let mut reader = NodeReader::open(&root, trees, None, nodefs, page_size).ok()?;
    Some(reader.read(clock::boottime()))
}

/// What a start goes on with.
pub(super) struct Fit {
    pub node: Node,
    pub hands: Hands,
    pub placement: Placement,
}

/// See the module.
pub(super) fn find(root: &Root, config: &Config, own: &OwnConfig) -> Result<Fit, RunError> {
    let made = [PODS, process::RECORDS];
    let mut faults = directories::faults(root, config, &directories_of(own), &made);
    faults.extend(directories::links_to_nothing(root, made_of(own)));
    faults.extend(check_apart(root, config, own).err());
    faults.extend(directories::in_place_of_kubelets(
        root,
        config,
        (Some("kubeletDirectory"), &own.kubelet_directory),
    ));
    faults.extend(serve::faults(&config.metrics));
    let node = find_node(root, config);
    let cgroup_root = config.kubelet.cgroup_root_path();
    let locked = node.as_ref().ok();
    let locked = locked.and_then(|it| cgroup_root_directory(it, &cgroup_root));
    faults.extend(in_use::faults(root, config, locked.as_deref()));
    let node = match node {
        Ok(node) => node,
        Err(error) => {
            faults.push(error);
            return Err(RunError::all(faults));
        }
    };
    let of_settings = hands::faults(root, &node, &config.kubelet, own.compat).into_iter();
    faults.extend(of_settings.map(RunError::from));
    // Without budgets, which is among the faults, nobody can say what there is to place.
    let Ok((hands, settings)) = settings(config, own, &node) else {
        return Err(RunError::all(faults));
    };
    faults.extend(elsewhere(config, &node, &hands.plan.kubepods_path()));
    let of_placement = Managers::faults(&settings).into_iter();
    faults.extend(of_placement.map(RunError::from));
    if !faults.is_empty() {
        return Err(RunError::all(faults));
    }
    let placement = Placement::new(config, own, settings)?;
    Ok(Fit {
        node,
        hands,
        placement,
    })
}

/// Those that this mode alone has, each with its field.
fn directories_of(own: &OwnConfig) -> Vec<(&'static str, &Path)> {
    let PodsConfig::Manifests { manifest_directory } = &own.pods;
    let manifests = ("pods.manifestDirectory", manifest_directory.as_path());
    made_of(own).into_iter().chain([manifests]).collect()
}

/// Of them, those that a start makes.
fn made_of(own: &OwnConfig) -> Vec<(&'static str, &Path)> {
    let mut all = vec![("kubeletDirectory", own.kubelet_directory.as_path())];
    let record = own.eviction.record.as_ref();
    all.extend(record.map(|it| ("eviction.record.directory", it.directory.as_path())));
    all
}

/// The hands, and by what they place: with the CPUs that are online.
pub(super) fn settings(
    config: &Config,
    own: &OwnConfig,
    node: &Node,
) -> Result<(Hands, PlacementSettings), SettingError> {
    let kubelet = while_online(&config.kubelet, &node.topology.online());
    let hands = Hands::new(node, &kubelet, own.compat)?;
    let settings = PlacementSettings {
        compat: own.compat,
        config: kubelet.placement,
        reserved_system_cpus: kubelet.reserved_system_cpus,
        reservation: hands.plan.allocatable.reservation.clone(),
        topology: node.topology.clone(),
    };
    Ok((hands, settings))
}

/// Containers that an agent of this state directory has started in other cgroups than it would now: it would look for
/// them, limit them and end them where they are not.
fn elsewhere(config: &Config, node: &Node, wanted: &CgroupPath) -> Option<RunError> {
    let trees = &node.reader.trees().trees;
    let below_mount = |path: &Path| {
        let mut inside = trees
            .iter()
            .filter_map(|it| path.strip_prefix(it.dir.path()).ok());
        CgroupPath::new(format!("/{}", inside.next()?.display())).ok()
    };
    let boot_id = node.identity.boot_id.as_deref()?;
    let running = process::running(&config.state_directory, boot_id);
    let paths = running.iter().filter_map(|it| {
        let mut paths = it.cgroups.iter().filter_map(|it| below_mount(&it.path));
        paths.next()
    });
    let others: Vec<CgroupPath> = paths.filter(|it| it.below(wanted).is_none()).collect();
    let pod = others.first()?.parent()?;
    Some(RunError::Elsewhere {
        n: others.len(),
        running: pod.parent().unwrap_or(pod),
        wanted: wanted.clone(),
    })
}

pub(in crate::run) fn find_node(root: &Root, config: &Config) -> Result<Node, RunError> {
    // What is wrong with the directory is told of the directory.
    let there = directories::nearest(root, &config.state_directory);
    let nodefs = there.map_or_else(|_| config.state_directory.clone(), |(there, _)| there);
    let mut node = Node::detect(root, &nodefs)?;
    hands::confine(&mut node, root, &config.kubelet)?;
    Ok(node)
}

/// Directories of pods that are on another file system than the state directory.
pub(in crate::run) fn apart(root: &Root, config: &Config) -> Vec<PathBuf> {
    let state = &config.state_directory;
    directories::apart(root, state, [state.join(PODS), logs::directory(state)])
}

/// The agent renames and removes what is its own.
fn check_apart(root: &Root, config: &Config, own: &OwnConfig) -> Result<(), RunError> {
    let PodsConfig::Manifests { manifest_directory } = &own.pods;
    let state = directories::settled(root, &config.state_directory);
    match (state, directories::settled(root, manifest_directory)) {
        (Some(state), Some(manifests))
            if state.starts_with(&manifests) || manifests.starts_with(&state) =>
        {
            Err(RunError::Nested { state, manifests })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_file_is_no_directory_for_recordings() {
        let base = Scratch::new("fitness");
        let file = base.write("file", "");
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             stateDirectory: {0}/state\nsocket: {0}/agent.sock\nbpf: {{pinDirectory: {0}/pins}}\n\
             kubeletDirectory: {0}/kubelet\npods: {{manifestDirectory: {0}/manifests}}\n\
             eviction: {{record: {{directory: {0}/file/below}}}}\n",
            base.directory().display(),
        );
        let loaded = Config::from_yaml(&text, None, &[]).expect("no faults");
        let own = loaded.config.mode.own().expect("it is");
        let faults = directories::faults(&Root::host(), &loaded.config, &directories_of(own), &[]);
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let right = format!(
            "eviction.record.directory: {} is no directory",
            file.display()
        );
        assert_eq!(told, [right]);
    }

    /// Manifests may come where a link leads, and are told to be missing until then.
    #[test]
    fn a_link_that_leads_nowhere_is_in_the_way_of_what_a_start_makes_beside_the_state_directory() {
        let base = Scratch::new("fitness");
        let [kubelet, record, _] =
            ["kubelet", "record", "manifests"].map(|it| base.link(it, "gone"));
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             kubeletDirectory: {0}/kubelet\npods: {{manifestDirectory: {0}/manifests}}\n\
             eviction: {{record: {{directory: {0}/record/below}}}}\n",
            base.directory().display(),
        );
        let loaded = Config::from_yaml(&text, None, &[]).expect("no faults");
        let own = loaded.config.mode.own().expect("it is");
        let faults = directories::links_to_nothing(&Root::host(), made_of(own));
        let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let right = [
            ("kubeletDirectory", kubelet),
            ("eviction.record.directory", record),
        ];
        let right = right.map(|(field, link)| {
            format!(
                "{field}: {} is a link to gone, which is not there; right would be a directory",
                link.display()
            )
        });
        assert_eq!(told, right);
    }
}
