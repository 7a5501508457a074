//! The device rules of a cgroup: files of the devices controller on v1, else a program.

use std::os::fd::AsFd;
use std::sync::PoisonError;

use super::{ApplyError, CgroupWriter};
use crate::model::cgroup::{Controller, InterfaceFile};
use crate::model::cgroup_path::CgroupPath;
use crate::model::device_access::{DeviceAccess, DeviceRules};
use crate::sys::{FsError, Tree};

impl CgroupWriter {
    /// Makes `access` what the cgroup allows beside what those above it forbid: by the devices
    /// controller where v1 has it, else by a program.
    pub fn allow_devices(
        &self,
        path: &CgroupPath,
        access: &DeviceAccess,
    ) -> Result<(), ApplyError> {
        if let Some(tree) = self.trees.legacy(Controller::Devices.name()) {
            return legacy_devices(tree, path, access);
        }
        let (Some(tree), Some(programs)) = (self.trees.cgroup2(), &self.device_programs) else {
            return Err(ApplyError::NoController {
                path: path.clone(),
                file: InterfaceFile::devices().name,
                controller: Controller::Devices.name(),
            });
        };
        let dir = match tree.dir.descend(path.components()) {
            Ok(dir) => dir,
            Err(FsError::Gone { .. }) => return Err(ApplyError::Gone { path: path.clone() }),
            Err(source) => {
                return Err(ApplyError::Write {
                    path: path.clone(),
                    file: InterfaceFile::devices().name,
                    value: access.to_string(),
                    source,
                });
            }
        };
        let mut programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
        match programs.allow(dir.as_fd(), access) {
            Err(error) if error.is_gone() => Err(ApplyError::Gone { path: path.clone() }),
            other => other.map_err(|source| ApplyError::Devices {
                path: path.clone(),
                source: Box::new(source),
            }),
        }
    }
}

/// Writes the difference between what `devices.list` shows and `access`, a rule at a time as the
/// kernel takes them. Where everything is allowed there are no rules yet: all is denied first, which
/// the kernel refuses with EINVAL once the cgroup has children.
fn legacy_devices(tree: &Tree, path: &CgroupPath, access: &DeviceAccess) -> Result<(), ApplyError> {
    const LIST: &str = "devices.list";
    let failed = |file: &str, value: String, source: FsError| match source {
        FsError::Gone { .. } => ApplyError::Gone { path: path.clone() },
        source => ApplyError::Write {
            path: path.clone(),
            file: file.to_owned(),
            value,
            source,
        },
    };
    let opened = tree.dir.descend(path.components());
    let dir = opened.map_err(|source| failed(LIST, access.to_string(), source))?;
    let list = || {
        let text = dir.read_text(LIST);
        text.map_err(|source| failed(LIST, access.to_string(), source))
    };
    let write = |file: &str, value: String| {
        let written = dir.write(file, &value);
        written.map_err(|source| failed(file, value, source))
    };
    let none = DeviceRules::default();
    match (list()?.parse(), access) {
        (Ok(DeviceAccess::Everything), DeviceAccess::Everything) => {}
        (_, DeviceAccess::Everything) => write("devices.allow", "a".to_owned())?,
        (present, DeviceAccess::Only(wanted)) => {
            let present = match present {
                Ok(DeviceAccess::Only(present)) => present,
                Ok(DeviceAccess::Everything) | Err(_) => {
                    write("devices.deny", "a".to_owned())?;
                    none
                }
            };
            let (denied, allowed) = present.difference(wanted);
            for rule in allowed {
                write("devices.allow", rule.to_string())?;
            }
            for rule in denied {
                write("devices.deny", rule.to_string())?;
            }
        }
    }
    let kept = list()?;
    if kept.parse().as_ref() != Ok(access) {
        return Err(ApplyError::NotKept {
            path: path.clone(),
            file: LIST.to_owned(),
            wrote: access.to_string(),
            kept: kept.trim().replace('\n', ", "),
        });
    }
    Ok(())
}
