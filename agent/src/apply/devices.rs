//! Device access on cgroup v2: an eBPF program on each container's cgroup.
//!
//! One program is loaded for each set of rules and attached wherever that set applies, which for
//! most containers is the same one. Its rules never change; other rules are another program, which
//! takes the place of the first without a gap. Programs are attached without a link: they live as
//! long as the cgroup, with or without an agent.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{Array, MapError};
use aya::programs::{CgroupDevice, ProgramError, ProgramFd};
use aya::{EbpfError, EbpfLoader, include_bytes_aligned};
use ebpf_abi as abi;
pub use ebpf_abi::DEVICE_PROGRAM;
use zerocopy::IntoBytes;

use crate::model::device_access::{DeviceAccess, DeviceKind, DeviceRule, DeviceRules};
use crate::sys::loaded::look_at_programs;
use crate::sys::syscall;

static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/device_rules.o"));

/// Bytes of the map's value; aya asks for plain arrays.
type RuleBytes = [u8; size_of::<abi::DeviceRules>()];

/// Sets of rules whose program is kept at hand; arbitrary. What is attached does not depend on it.
const MAX_LOADED: usize = 64;

const ENOENT: i32 = 2;

/// Why a cgroup does not have its device rules.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("this agent was built without the eBPF tool chain: it contains no program for devices")]
    NoObject,
    #[error(
        "{n} device rules are more than the {} of a program",
        abi::MAX_DEVICE_RULES
    )]
    TooManyRules { n: usize },
    #[error("read the device program")]
    Object { source: EbpfError },
    #[error("fill the map of device rules")]
    Rules { source: MapError },
    #[error("the kernel refuses the device program")]
    Refused { source: io::Error },
    #[error("load the device program")]
    Load { source: ProgramError },
    #[error("list the device programs of the cgroup")]
    List { source: io::Error },
    #[error("look at the device programs of the cgroup, which takes CAP_SYS_ADMIN")]
    Look { source: io::Error },
    #[error("attach the device program")]
    Attach { source: io::Error },
    #[error("detach a device program")]
    Detach { source: io::Error },
    #[error("the device program is attached and does not show at the cgroup")]
    NotKept,
}

impl DeviceError {
    /// The cgroup was removed meanwhile.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::List { source } | Self::Attach { source } => {
                source.raw_os_error() == Some(ENOENT)
            }
            _ => false,
        }
    }
}

/// Hears of each program that is loaded, under its id.
type OnLoad = Box<dyn Fn(u32, &DeviceRules) + Send>;

/// Loads and attaches the programs.
pub struct DevicePrograms {
    loader: EbpfLoader<'static>,
    loaded: BTreeMap<DeviceRules, Loaded>,
    on_load: OnLoad,
}

#[derive(Debug)]
struct Loaded {
    id: u32,
    fd: ProgramFd,
}

impl fmt::Debug for DevicePrograms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DevicePrograms")
            .field("loaded", &self.loaded)
            .finish_non_exhaustive()
    }
}

impl DevicePrograms {
    /// Loads the program for one set of rules, by which it is known whether this kernel takes it.
    /// Takes 30 ms and, for as long, 20 MB: the library reads all of the kernel's types once.
    pub fn new(rules: &DeviceAccess, on_load: OnLoad) -> Result<Self, DeviceError> {
        if OBJECT.is_empty() {
            return Err(DeviceError::NoObject);
        }
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        let mut programs = Self {
            loader,
            loaded: BTreeMap::new(),
            on_load,
        };
        if let DeviceAccess::Only(rules) = rules {
            programs.loaded(rules)?;
        }
        Ok(programs)
    }

    /// Makes `access` what the program of `cgroup`, a directory of cgroup v2, allows. The programs of
    /// others stay, and go on denying what they deny.
    pub fn allow(
        &mut self,
        cgroup: BorrowedFd<'_>,
        access: &DeviceAccess,
    ) -> Result<(), DeviceError> {
        let ids = attached(cgroup)?;
        let mut present;
        if let DeviceAccess::Only(rules) = access {
            let wanted = self.loaded(rules)?.id;
            if ids == [wanted] {
                return Ok(());
            }
            present = self.ours(&ids)?;
            match present.iter().position(|it| it.id == wanted) {
                Some(index) => drop(present.swap_remove(index)),
                None => {
                    let replaced = present.pop();
                    let replaced = replaced.as_ref().map(|it| it.fd.as_fd());
                    let program = self.loaded(rules)?.fd.as_fd();
                    syscall::attach_device_program(cgroup, program, replaced)
                        .map_err(|source| DeviceError::Attach { source })?;
                }
            }
            if !attached(cgroup)?.contains(&wanted) {
                return Err(DeviceError::NotKept);
            }
        } else {
            present = self.ours(&ids)?;
        }
        for program in present {
            match syscall::detach_device_program(cgroup, program.fd.as_fd()) {
                Err(source) if source.raw_os_error() != Some(ENOENT) => {
                    return Err(DeviceError::Detach { source });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn loaded(&mut self, rules: &DeviceRules) -> Result<&Loaded, DeviceError> {
        if !self.loaded.contains_key(rules) {
            if self.loaded.len() >= MAX_LOADED {
                self.loaded.clear();
            }
            let program = load(&mut self.loader, rules)?;
            (self.on_load)(program.id, rules);
            self.loaded.insert(rules.clone(), program);
        }
        Ok(&self.loaded[rules])
    }

    /// Those of `ids` that an agent loaded. Looks at every program of the node, unless all are of this one.
    fn ours(&self, ids: &[u32]) -> Result<Vec<Loaded>, DeviceError> {
        let mut found = Vec::new();
        let mut unknown = Vec::new();
        for id in ids {
            match self.loaded.values().find(|it| it.id == *id) {
                Some(it) => found.push(it.try_clone()?),
                None => unknown.push(*id),
            }
        }
        if unknown.is_empty() {
            return Ok(found);
        }
        let mut looked_at = Vec::new();
        look_at_programs(&unknown, |info| {
            if info.name() == abi::DEVICE_PROGRAM.as_bytes() {
                looked_at.push(info.fd().map(|fd| Loaded { id: info.id(), fd }));
            }
        })
        .map_err(|source| DeviceError::Look { source })?;
        for it in looked_at {
            found.push(it.map_err(|source| DeviceError::Load { source })?);
        }
        Ok(found)
    }
}

impl Loaded {
    fn try_clone(&self) -> Result<Self, DeviceError> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|source| DeviceError::Load {
            source: source.into(),
        })?;
        Ok(Self { id: self.id, fd })
    }
}

fn load(loader: &mut EbpfLoader<'_>, rules: &DeviceRules) -> Result<Loaded, DeviceError> {
    let bytes = encode(rules)?;
    let mut object = loader
        .load(OBJECT)
        .map_err(|source| DeviceError::Object { source })?;
    object
        .map_mut(abi::DEVICE_RULES_MAP)
        .ok_or_else(|| MapError::InvalidName {
            name: abi::DEVICE_RULES_MAP.to_owned(),
        })
        .and_then(Array::try_from)
        .and_then(|mut map: Array<_, RuleBytes>| map.set(0, bytes, 0))
        .map_err(|source| DeviceError::Rules { source })?;
    let mut load = || {
        let program = object
            .program_mut(abi::DEVICE_PROGRAM)
            .ok_or(ProgramError::NotLoaded)?;
        let program: &mut CgroupDevice = program.try_into()?;
        program.load()?;
        Ok(Loaded {
            id: program.info()?.id(),
            fd: program.fd()?.try_clone()?,
        })
    };
    load().map_err(|error| match error {
        ProgramError::LoadError {
            io_error,
            verifier_log,
        } => {
            tracing::debug!(%verifier_log, "device program");
            DeviceError::Refused { source: io_error }
        }
        source => DeviceError::Load { source },
    })
}

/// The rules as the program reads them. What is not used stays zero, which is no rule.
fn encode(rules: &DeviceRules) -> Result<RuleBytes, DeviceError> {
    let mut encoded = abi::DeviceRules {
        rules: [abi::DeviceRule::default(); abi::MAX_DEVICE_RULES],
    };
    let n = rules.iter().len();
    if n > encoded.rules.len() {
        return Err(DeviceError::TooManyRules { n });
    }
    for (slot, rule) in encoded.rules.iter_mut().zip(rules.iter()) {
        *slot = encode_rule(rule);
    }
    let mut bytes = [0; size_of::<abi::DeviceRules>()];
    bytes.copy_from_slice(encoded.as_bytes());
    Ok(bytes)
}

fn encode_rule(rule: DeviceRule) -> abi::DeviceRule {
    let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let (devices, permissions) = (rule.devices, rule.permissions);
    abi::DeviceRule {
        major: devices.major.unwrap_or(0),
        minor: devices.minor.unwrap_or(0),
        kind: match devices.kind {
            DeviceKind::Block => abi::DEVICE_BLOCK,
            DeviceKind::Char => abi::DEVICE_CHAR,
        },
        access: bit(permissions.read, abi::DEVICE_READ)
            | bit(permissions.write, abi::DEVICE_WRITE)
            | bit(permissions.mknod, abi::DEVICE_MKNOD),
        any: bit(devices.major.is_none(), abi::ANY_MAJOR)
            | bit(devices.minor.is_none(), abi::ANY_MINOR),
    }
}

fn attached(cgroup: BorrowedFd<'_>) -> Result<Vec<u32>, DeviceError> {
    syscall::device_programs(cgroup).map_err(|source| DeviceError::List { source })
}
