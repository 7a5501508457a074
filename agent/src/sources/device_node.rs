//! The kernel's numbers of a device node of the host.

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
    #[error("the permissions of {}", .path.display())]
    Permissions { path: PathBuf, source: ParseError },
}

/// The device of a node that a plugin gives to a container, with what may be done with it. `None`
/// where it gives no permission.
pub fn allocated_device(
    root: &Root,
    node: &DeviceNode,
) -> Result<Option<AllocatedDevice>, DeviceNodeError> {
    if node.permissions.is_empty() {
        return Ok(None);
    }
    let host_path = PathBuf::from(&node.host_path);
    let permissions = node.permissions.parse();
    let permissions = permissions.map_err(|source| DeviceNodeError::Permissions {
        path: host_path.clone(),
        source,
    })?;
    Ok(Some(AllocatedDevice {
        numbers: device_numbers(root, &host_path)?,
        host_path,
        permissions,
    }))
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
        assert!(matches!(missing, DeviceNodeError::Fs(it) if it.is_gone()));
    }
}
