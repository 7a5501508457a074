//! Reader of the cgroup hierarchies of the node.
//!
//! Invariant: a line that cannot be parsed is left out, and never hides the others: anyone can
//! mount something under a strange name.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::stat;
use procfs::FromBufRead;

use crate::model::cgroup_path::CgroupPath;
use crate::model::mounts::{
    CGROUP_ROOT, CgroupFacts, CgroupLayout, ControllerName, Membership, Mount, NoHierarchy,
    parse_controllers,
};
use crate::sys::filesystem::FilesystemKind;
use crate::sys::{FsError, Root, Tree, Trees};

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

/// The agent's own cgroup in the hierarchy of a controller. `None`: it is not seen as it is on the host, from a
/// cgroup namespace of its own.
pub fn own_cgroup(root: &Root, controller: &str) -> Option<CgroupPath> {
    let of = |pid: &str| -> Option<String> {
        let text = root.read_text(format!("/proc/{pid}/cgroup")).ok()?;
        cgroup_of(&text, controller)
    };
    // The host's init is in the root, or right below it; seen from another namespace it is somewhere above.
    of("1").filter(|it| !it.contains("/.."))?;
    of("self")?.parse().ok()
}

/// Whether this process sees the mounts that PID 1 sees, of the host or of the container whose PIDs it sees. Yes where
/// the kernel does not say.
pub fn are_of_init(root: &Root) -> bool {
    // No mount of one namespace has the id of one of another, and nobody has to be traced to read them.
    let ids = |pid: &str| -> Option<BTreeSet<String>> {
        let text = root.read_text(format!("/proc/{pid}/mountinfo")).ok()?;
        let ids = text.lines().filter_map(|it| it.split(' ').next());
        Some(ids.map(str::to_owned).collect())
    };
    match (ids("self"), ids("1")) {
        (Some(own), Some(init)) => !own.is_disjoint(&init),
        _ => true,
    }
}

/// Whether PID 1 has something of a filesystem mounted. Yes where its mounts cannot be read.
pub fn init_has(root: &Root, device: u64) -> bool {
    let Ok(text) = root.read_text("/proc/1/mountinfo") else {
        return true;
    };
    line_of(&text, device).is_some()
}

/// What kind of filesystem this process has mounted, by the table of mounts: it is asked nothing itself. `None`: it is
/// not among them.
pub fn type_of(root: &Root, device: u64) -> Result<Option<String>, FsError> {
    let text = root.read_text("/proc/self/mountinfo")?;
    let line = line_of(&text, device);
    let kind = line.and_then(|it| it.split_once(" - ")?.1.split(' ').next());
    Ok(kind.map(str::to_owned))
}

/// The source of the mount that holds `path`, such as `/dev/vda1`: of the one that was mounted last at the longest part
/// of it.
pub fn source_of(root: &Root, path: &Path) -> Option<String> {
    let text = root.read_text("/proc/self/mountinfo").ok()?;
    let mounts = text.lines().filter_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = unescape(mount.split(' ').nth(4)?.as_bytes());
        Some((point, filesystem.split(' ').nth(1)?))
    });
    // Of several at one place, the last.
    let (_, source) = mounts
        .filter(|(point, _)| path.starts_with(point))
        .max_by_key(|(point, _)| point.as_os_str().len())?;
    Some(unescape(source.as_bytes()).to_string_lossy().into_owned())
}

/// The first mount of a filesystem: "36 35 98:0 / /mnt rw - ext4 ...", proc_pid_mountinfo(5).
fn line_of(text: &str, device: u64) -> Option<&str> {
    let device = format!("{}:{}", stat::major(device), stat::minor(device));
    text.lines()
        .find(|it| it.split(' ').nth(2) == Some(device.as_str()))
}

/// Opens every hierarchy; on a hybrid node the v2 mount too, as the tree without controllers.
pub fn open_trees(root: &Root, layout: &CgroupLayout) -> Result<Trees, FsError> {
    let hybrid = layout.cgroup2_mount().filter(|_| !layout.is_unified());
    let trees = layout
        .mount_points()
        .into_iter()
        .chain(hybrid.map(|it| (it, BTreeSet::new())))
        .map(|(mount, controllers)| {
            let controllers = controllers.into_iter().map(|it| it.0.clone()).collect();
            Tree::open(controllers, &root.path(mount))
        })
        .collect::<Result<_, _>>()?;
    Ok(Trees {
        unified: layout.is_unified(),
        trees,
    })
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

/// The mounts in the order of the table. Lines that do not parse are left out: a mount with a
/// strange name must not hide the cgroup hierarchies.
pub fn parse_mountinfo(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let mount = procfs::process::MountInfo::from_line(line).ok()?;
            let option = |(name, value): (String, Option<String>)| match value {
                // `name=systemd`: the hierarchy is known by that name.
                Some(value) if name == "name" => value,
                _ => name,
            };
            Some(Mount {
                root: mount.root,
                mount_point: unescape(&mount.mount_point.into_os_string().into_vec()),
                fs_type: mount.fs_type,
                super_options: mount.super_options.into_iter().map(option).collect(),
            })
        })
        .collect()
}

/// Undoes the octal escapes of blank, tab, line feed, `#` and backslash (`\040`; fs/proc_namespace.c,
/// `mangle`). What is no escape stays as it is.
fn unescape(escaped: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .first_chunk()
            .filter(|_| first == b'\\')
            .and_then(octal);
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

fn octal(digits: &[u8; 3]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |value, digit| {
        let digit = digit.checked_sub(b'0').filter(|it| *it < 8)?;
        value.checked_mul(8)?.checked_add(digit)
    })
}

/// The cgroup in the hierarchy of a controller, else that of cgroup v2, by the lines of `/proc/PID/cgroup`.
pub fn cgroup_of(text: &str, controller: &str) -> Option<String> {
    let memberships = parse_membership(text);
    let mut all = memberships.iter();
    let named = all.find(|it| it.controllers.iter().any(|it| it.0 == controller));
    let found = named.or_else(|| memberships.iter().find(|it| it.hierarchy_id == 0))?;
    Some(found.path.clone())
}

/// The lines that parse, in file order.
pub fn parse_membership(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            let parsed = procfs::ProcessCGroups::from_buf_read(line.as_bytes()).ok()?;
            let line = parsed.into_iter().next()?;
            let name = |it: String| match it.strip_prefix("name=") {
                Some(name) => ControllerName::from(name),
                None => ControllerName(it),
            };
            Some(Membership {
                hierarchy_id: line.hierarchy,
                controllers: line.controllers.into_iter().map(name).collect(),
                path: line.pathname,
            })
        })
        .collect()
}

/// The controllers that `/proc/cgroups` lists as enabled.
pub fn parse_enabled_controllers(text: &str) -> BTreeSet<ControllerName> {
    text.lines()
        .filter_map(|line| procfs::CGroupControllers::from_buf_read(line.as_bytes()).ok())
        .flat_map(|it| it.0)
        .filter(|it| it.enabled)
        .map(|it| ControllerName(it.name))
        .collect()
}

#[cfg(test)]
mod tests;
