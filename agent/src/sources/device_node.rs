//! The kernel's numbers of device nodes of the host.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};

use crate::model::device::DeviceNode;
use crate::model::device_access::{AllocatedDevice, DeviceKind, DeviceNumbers};
use crate::model::text::ParseError;
use crate::sys::{FsError, Root};

/// Why the numbers of a device are not known.
#[derive(Debug, thiserror::Error)]
pub enum DeviceNodeError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("{} is not a device, but a {what}", .path.display())]
    NotADevice { path: PathBuf, what: &'static str },
    #[error("{} has more than {MAX_BELOW} devices and directories", .path.display())]
    TooMany { path: PathBuf },
    #[error("the permissions of {}", .path.display())]
    Permissions { path: PathBuf, source: ParseError },
}

impl DeviceNodeError {
    /// There is no such device.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Fs(error) if error.is_gone())
    }
}

/// What a directory of devices may hold, its own directories included: more than a cgroup can have rules.
const MAX_BELOW: usize = 1024;

/// Left out, with what is below them, as by container runtimes (containerd 2, pkg/oci/utils_unix.go, `getDevices`).
const NO_DEVICES: &[&str] = &[
    "pts",
    "shm",
    "fd",
    "mqueue",
    ".lxc",
    ".lxd-mounts",
    ".udev",
    "console",
];

/// The devices of a node that a plugin gives to a container, with what may be done with them: those below it where it
/// is a directory, as `/dev/snd`. None where it gives no permission.
pub fn allocated_devices(
    root: &Root,
    node: &DeviceNode,
) -> Result<Vec<AllocatedDevice>, DeviceNodeError> {
    if node.permissions.is_empty() {
        return Ok(Vec::new());
    }
    let host_path = PathBuf::from(&node.host_path);
    let permissions = node.permissions.parse();
    let permissions = permissions.map_err(|source| DeviceNodeError::Permissions {
        path: host_path.clone(),
        source,
    })?;
    let device = |host_path: PathBuf| {
        Ok(AllocatedDevice {
            numbers: device_numbers(root, &host_path)?,
            host_path,
            permissions,
        })
    };
    if !root.is_dir(&host_path) {
        return Ok(vec![device(host_path)?]);
    }
    let below = devices_below(root, &host_path)?.into_iter().map(device);
    // Unplugged meanwhile.
    below
        .filter(|it: &Result<_, DeviceNodeError>| !it.as_ref().is_err_and(DeviceNodeError::is_gone))
        .collect()
}

/// The device nodes below a directory. Links in it lead elsewhere, and are left out.
fn devices_below(root: &Root, top: &Path) -> Result<Vec<PathBuf>, DeviceNodeError> {
    let mut devices = Vec::new();
    let mut directories = vec![top.to_owned()];
    let mut n_seen = 0;
    while let Some(directory) = directories.pop() {
        let names = match root.list(&directory) {
            Err(error) if error.is_gone() && directory != top => continue,
            names => names?,
        };
        for name in names {
            n_seen += 1;
            if n_seen > MAX_BELOW {
                let path = top.to_owned();
                return Err(DeviceNodeError::TooMany { path });
            }
            if NO_DEVICES.contains(&name.as_str()) {
                continue;
            }
            let path = directory.join(&name);
            let file_type = match root.symlink_metadata(&path) {
                Ok(metadata) => metadata.file_type(),
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error.into()),
            };
            if file_type.is_dir() {
                directories.push(path);
            } else if file_type.is_char_device() || file_type.is_block_device() {
                devices.push(path);
            }
        }
    }
    Ok(devices)
}

/// The device at `path`, absolute in the node. A symlink is followed, as below `/dev/disk/by-id`;
/// what it leads to must be a device.
pub fn device_numbers(root: &Root, path: &Path) -> Result<DeviceNumbers, DeviceNodeError> {
    let metadata = root.metadata(path)?;
    let file_type = metadata.file_type();
    let not_a_device = |what| DeviceNodeError::NotADevice {
        path: path.to_owned(),
        what,
    };
    let kind = if file_type.is_char_device() {
        DeviceKind::Char
    } else if file_type.is_block_device() {
        DeviceKind::Block
    } else if file_type.is_dir() {
        return Err(not_a_device("directory"));
    } else if file_type.is_file() {
        return Err(not_a_device("regular file"));
    } else {
        return Err(not_a_device("socket or pipe"));
    };
    // The kernel has 12 bits for the major number and 20 for the minor one.
    let number = |it| u32::try_from(it).map_err(|_too_large| not_a_device("node with no number"));
    Ok(DeviceNumbers {
        kind,
        major: number(major(metadata.rdev()))?,
        minor: number(minor(metadata.rdev()))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn what_is_no_device_says_what_it_is() {
        let scratch = Scratch::new("device-node");
        scratch.write("file", "");
        let root = Root::at(scratch.directory());
        let error = |path: &str| device_numbers(&root, Path::new(path)).expect_err("no device");
        let (directory, file, missing) = (error("/"), error("/file"), error("/missing"));
        assert_eq!(directory.to_string(), "/ is not a device, but a directory");
        assert_eq!(
            file.to_string(),
            "/file is not a device, but a regular file"
        );
        assert!(missing.is_gone());
    }

    /// As `/dev/snd`, which plugins name as a whole.
    #[test]
    fn a_directory_stands_for_the_devices_below_it() {
        let given = |path: &str| {
            let node = DeviceNode {
                host_path: path.to_owned(),
                container_path: path.to_owned(),
                permissions: "rw".to_owned(),
            };
            let devices = allocated_devices(&Root::host(), &node).expect("it can be read");
            devices
                .into_iter()
                .map(|it| it.host_path)
                .collect::<Vec<_>>()
        };
        let scratch = Scratch::new("device-directory");
        scratch.write("file", "");
        assert_eq!(
            given(&scratch.directory().display().to_string()),
            [""; 0].map(PathBuf::from)
        );
        let all = given("/dev/pts");
        assert!(all.contains(&PathBuf::from("/dev/pts/ptmx")), "{all:?}");
        assert_eq!(given("/dev/null"), [PathBuf::from("/dev/null")]);
    }
}
