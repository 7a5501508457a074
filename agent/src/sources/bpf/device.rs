//! The device access counter: the one program that is attached to a cgroup. It allows everything.

use std::os::fd::BorrowedFd;

use aya::maps::{MapData, MapError, PerCpuArray};
use aya::programs::cgroup_device::CgroupDeviceLink;
use aya::programs::{CgroupAttachMode, CgroupDevice, ProgramError};
use aya::{Ebpf, EbpfLoader};

use super::{LoadError, objects};

/// Its name, for reports.
pub const PROGRAM: &str = "device_access";

/// `type` of a device access, include/uapi/linux/bpf.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceKind {
    Block,
    Char,
}

/// How often one kind of access was asked for, from all cgroups below the attached one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAccess {
    pub kind: DeviceKind,
    pub mknod: bool,
    pub read: bool,
    pub write: bool,
    pub n: u64,
}

/// The object, whose program runs once it is attached. Dropping it detaches the program.
pub(super) struct DeviceCounter {
    object: Ebpf,
    accesses: PerCpuArray<MapData, u64>,
    attached: Option<Attached>,
}

struct Attached {
    program_id: u32,
    _link: CgroupDeviceLink,
}

impl DeviceCounter {
    /// Makes the map. `loader`: without globals, since the object has none.
    pub(super) fn load(loader: &mut EbpfLoader<'_>) -> Result<Self, LoadError> {
        let failed = |source: &dyn std::error::Error| LoadError::Device {
            reason: super::load::chain(source),
        };
        let mut object = loader
            .load(objects::DEVICE)
            .map_err(|source| failed(&source))?;
        let accesses = object
            .take_map("ACCESSES")
            .ok_or_else(|| MapError::InvalidName {
                name: "ACCESSES".to_owned(),
            })
            .and_then(PerCpuArray::try_from)
            .map_err(|source| failed(&source))?;
        Ok(Self {
            object,
            accesses,
            attached: None,
        })
    }

    /// `directory`: of a cgroup v2 hierarchy, also one without controllers.
    pub(super) fn attach(&mut self, directory: BorrowedFd<'_>) -> Result<(), LoadError> {
        let refused = |source: ProgramError| LoadError::Device {
            reason: super::load::refusal(&source),
        };
        let program = self
            .object
            .program_mut(PROGRAM)
            .ok_or_else(|| refused(ProgramError::NotLoaded))?;
        let program: &mut CgroupDevice = program.try_into().map_err(refused)?;
        if program.fd().is_err() {
            program.load().map_err(refused)?;
        }
        // A link always allows others beside it; the flag that says so is refused since Linux 5.7.
        let id = program
            .attach(directory, CgroupAttachMode::Single)
            .map_err(refused)?;
        let link = program.take_link(id).map_err(refused)?;
        let program_id = program.info().map_err(refused)?.id();
        self.attached = Some(Attached {
            program_id,
            _link: link,
        });
        Ok(())
    }

    /// The kernel's id of the program, once it is attached.
    pub(super) fn program_id(&self) -> Option<u32> {
        Some(self.attached.as_ref()?.program_id)
    }

    pub(super) fn program(&self) -> &'static str {
        PROGRAM
    }

    /// The kinds of access that were asked for at least once.
    pub(super) fn accesses(&self) -> Result<Vec<DeviceAccess>, MapError> {
        let mut found = Vec::new();
        for slot in 0..u32::try_from(ebpf_abi::DEVICE_SLOTS).unwrap_or(0) {
            let n = self.accesses.get(&slot, 0)?.iter().sum();
            if n > 0 {
                found.push(DeviceAccess {
                    kind: match slot >> 3 {
                        0 => DeviceKind::Block,
                        _ => DeviceKind::Char,
                    },
                    mknod: slot & 1 != 0,
                    read: slot & 2 != 0,
                    write: slot & 4 != 0,
                    n,
                });
            }
        }
        Ok(found)
    }
}
