//! Reader of the cgroup hierarchies of the node.

use std::path::{Path, PathBuf};

use crate::model::mounts::{
    CGROUP_ROOT, CgroupFacts, CgroupLayout, Mount, NoHierarchy, parse_controllers,
    parse_enabled_controllers, parse_membership, parse_mountinfo,
};
use crate::sys::filesystem::FilesystemKind;
use crate::sys::{FsError, Root};

/// Why the hierarchies are not known.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error(transparent)]
    NoHierarchy(#[from] NoHierarchy),
}

/// Finds the hierarchies; four or five file reads. They do not change while the node runs, so this
/// is done once.
pub fn cgroup_facts(root: &Root) -> Result<CgroupFacts, LayoutError> {
    let membership = parse_membership(&root.read_text("/proc/self/cgroup")?);
    let mut known = root
        .read_text_if_any("/proc/cgroups")?
        .map(|it| parse_enabled_controllers(&it))
        .unwrap_or_default();
    known.extend(membership.iter().flat_map(|it| it.controllers.clone()));

    // What statfs sees is the truth, as for kubelet; the mount table also serves a tree that is
    // only shaped like a node.
    let at_root = root.filesystem(CGROUP_ROOT).map(|it| it.kind);
    let layout = if matches!(at_root, Ok(FilesystemKind::Cgroup2)) {
        CgroupLayout::Unified {
            mount: CGROUP_ROOT.into(),
        }
    } else {
        let mounts = below(
            root,
            parse_mountinfo(&root.read_text("/proc/self/mountinfo")?),
        );
        CgroupLayout::choose(&mounts, &known)?
    };
    let controllers_of_cgroup2 = match layout.cgroup2_mount() {
        Some(mount) => root.read_text_if_any(mount.join("cgroup.controllers"))?,
        None => None,
    };
    let controllers_of_cgroup2 = parse_controllers(&controllers_of_cgroup2.unwrap_or_default());
    Ok(CgroupFacts::new(
        layout,
        controllers_of_cgroup2,
        &membership,
    ))
}

/// Mount points as paths of the node. Where the node's root is mounted elsewhere (`/host` in a
/// container), its mounts are those below that place, and the container's own are left out.
fn below(root: &Root, mounts: Vec<Mount>) -> Vec<Mount> {
    let base = root.path("/");
    let inside: Vec<Mount> = mounts
        .iter()
        .filter_map(|mount| {
            let relative = mount.mount_point.strip_prefix(&base).ok()?;
            Some(Mount {
                mount_point: absolute(relative),
                ..mount.clone()
            })
        })
        .collect();
    if inside.is_empty() { mounts } else { inside }
}

fn absolute(relative: &Path) -> PathBuf {
    Path::new("/").join(relative)
}
