//! Which devices a cgroup v2 allows, read back from the program that an agent attached to it.
//!
//! Programs of others are left out: what they deny is no business of ours.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, PoisonError};

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::ProgramInfo;
use ebpf_abi as abi;
use zerocopy::FromBytes;

use crate::model::device_access::{
    DeviceAccess, DeviceKind, DevicePermissions, DeviceRule, DeviceRules, DeviceSet,
};
use crate::sys::loaded::look_at_programs;
use crate::sys::syscall;

/// Bytes of the map's value; aya asks for plain arrays.
type RuleBytes = [u8; size_of::<abi::DeviceRules>()];

/// The kernel counts ids up and does not give one again soon, so a program that was looked at once
/// stays what it is. Above this many, arbitrary, the oldest are looked at again.
const MAX_KNOWN: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DevicePrograms {
    /// By program id.
    known: Mutex<BTreeMap<u32, Program>>,
}

#[derive(Clone, Debug)]
enum Program {
    Foreign,
    /// `None`: its rules cannot be read, or are of another version.
    Ours(Option<DeviceAccess>),
}

impl DevicePrograms {
    /// A program of this agent: it is known without a look at it.
    pub(super) fn is_loaded(&self, id: u32, rules: DeviceRules) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(id, Program::Ours(Some(DeviceAccess::Only(rules))));
    }

    /// `None`: it cannot be told, so it is to be written. Costs a system call, and where a program
    /// is seen for the first time a look at all of the node's, which takes `CAP_SYS_ADMIN`
    /// (kernel/bpf/syscall.c): without it what another process loaded is an error, and not taken for
    /// no restriction.
    pub(super) fn access(&self, cgroup: BorrowedFd<'_>) -> io::Result<Option<DeviceAccess>> {
        let ids = match syscall::device_programs(cgroup) {
            // The cgroup was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if ids.iter().any(|id| !known.contains_key(id)) {
            while known.len() > MAX_KNOWN {
                known.pop_first();
            }
            look_at_programs(&ids, |info| {
                known.insert(info.id(), program(&info));
            })?;
        }
        let mut ours = ids.iter().filter_map(|id| match known.get(id) {
            Some(Program::Ours(access)) => Some(access.clone()),
            // One that is gone by now.
            Some(Program::Foreign) | None => None,
        });
        Ok(match (ours.next(), ours.next()) {
            (None, _) => Some(DeviceAccess::Everything),
            (Some(access), None) => access,
            (Some(_), Some(_)) => None,
        })
    }
}

fn program(info: &ProgramInfo) -> Program {
    if info.name() != abi::DEVICE_PROGRAM.as_bytes() {
        return Program::Foreign;
    }
    let maps = info.map_ids().ok().flatten().unwrap_or_default();
    let rules = maps.into_iter().find_map(|id| {
        let info = MapInfo::from_id(id).ok()?;
        (info.name() == abi::DEVICE_RULES_MAP.as_bytes()).then(|| read_rules(id))?
    });
    Program::Ours(rules.map(DeviceAccess::Only))
}

fn read_rules(map: u32) -> Option<DeviceRules> {
    let map = Map::from_map_data(MapData::from_id(map).ok()?).ok()?;
    let map: Array<MapData, RuleBytes> = Array::try_from(map).ok()?;
    let bytes = map.get(&0, 0).ok()?;
    let rules = abi::DeviceRules::read_from_bytes(&bytes).ok()?;
    let used = rules.rules.iter().take_while(|it| it.kind != 0);
    used.map(rule).collect()
}

/// `None`: of no kind that is known.
fn rule(rule: &abi::DeviceRule) -> Option<DeviceRule> {
    let number = |number: u32, any: u8| (rule.any & any == 0).then_some(number);
    let may = |access: u8| rule.access & access != 0;
    Some(DeviceRule {
        devices: DeviceSet {
            kind: match rule.kind {
                abi::DEVICE_BLOCK => DeviceKind::Block,
                abi::DEVICE_CHAR => DeviceKind::Char,
                _ => return None,
            },
            major: number(rule.major, abi::ANY_MAJOR),
            minor: number(rule.minor, abi::ANY_MINOR),
        },
        permissions: DevicePermissions {
            read: may(abi::DEVICE_READ),
            write: may(abi::DEVICE_WRITE),
            mknod: may(abi::DEVICE_MKNOD),
        },
    })
}
