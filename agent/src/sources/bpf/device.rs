//! The device access counter, a program on the cgroup of all pods. It allows everything.

use std::os::fd::BorrowedFd;

use aya::maps::{MapData, MapError, PerCpuArray};
use aya::programs::cgroup_device::CgroupDeviceLink;
use aya::programs::{CgroupAttachMode, CgroupDevice, ProgramError};
use aya::{Ebpf, EbpfLoader};
use ebpf_abi as abi;

use super::{LoadError, objects};
use crate::model::device_access::{DeviceKind, DevicePermissions};

/// Its name, for reports.
pub const PROGRAM: &str = "device_access";

/// What is loaded in its place before Linux 5.18: it does not tell what was denied.
const WITHOUT_DENIALS: &str = "device_access_all";

/// How often one kind of access was asked for, from all cgroups below the attached one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCount {
    pub kind: DeviceKind,
    pub permissions: DevicePermissions,
    /// By an eBPF program of a cgroup below. What the devices controller of v1 denies is not known,
    /// and before Linux 5.18 nothing is.
    pub is_denied: bool,
    pub n: u64,
}

/// The object, whose program runs once it is attached. Dropping it detaches the program.
pub(super) struct DeviceCounter {
    object: Ebpf,
    accesses: PerCpuArray<MapData, u64>,
    attached: Option<Attached>,
}

struct Attached {
    program: &'static str,
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
        let load = |object: &mut Ebpf, name| {
            let program = object.program_mut(name).ok_or(ProgramError::NotLoaded)?;
            let program: &mut CgroupDevice = program.try_into()?;
            match program.fd() {
                Ok(_) => Ok(()),
                Err(_) => program.load(),
            }
        };
        let name = match load(&mut self.object, PROGRAM) {
            Ok(()) => PROGRAM,
            Err(ProgramError::LoadError { .. }) => {
                load(&mut self.object, WITHOUT_DENIALS).map_err(refused)?;
                WITHOUT_DENIALS
            }
            Err(error) => return Err(refused(error)),
        };
        let program = self
            .object
            .program_mut(name)
            .ok_or_else(|| refused(ProgramError::NotLoaded))?;
        let program: &mut CgroupDevice = program.try_into().map_err(refused)?;
        // A link always allows others beside it; the flag that says so is refused since Linux 5.7.
        let id = program
            .attach(directory, CgroupAttachMode::Single)
            .map_err(refused)?;
        let link = program.take_link(id).map_err(refused)?;
        let program_id = program.info().map_err(refused)?.id();
        self.attached = Some(Attached {
            program: name,
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

    /// Whether the program that is attached knows what was denied.
    pub(super) fn tells_denials(&self) -> Option<bool> {
        Some(self.attached.as_ref()?.program == PROGRAM)
    }

    /// The kinds of access that were asked for at least once.
    pub(super) fn counts(&self) -> Result<Vec<DeviceCount>, MapError> {
        let mut found = Vec::new();
        for slot in 0..abi::DEVICE_SLOTS {
            let index = u32::try_from(slot).unwrap_or(u32::MAX);
            let n = self.accesses.get(&index, 0)?.iter().sum();
            if n > 0 {
                let may = |access: u8| slot & usize::from(access) != 0;
                found.push(DeviceCount {
                    kind: match (slot % abi::DEVICE_DENIED) >> 3 {
                        0 => DeviceKind::Block,
                        _ => DeviceKind::Char,
                    },
                    permissions: DevicePermissions {
                        read: may(abi::DEVICE_READ),
                        write: may(abi::DEVICE_WRITE),
                        mknod: may(abi::DEVICE_MKNOD),
                    },
                    is_denied: slot >= abi::DEVICE_DENIED,
                    n,
                });
            }
        }
        Ok(found)
    }
}
