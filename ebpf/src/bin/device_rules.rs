//! Device access of one container: what its rules do not allow is denied.
//!
//! The program is attached to the container's cgroup and runs for every process in it and below.
//! Programs of the cgroups above run too, and each of them can deny.
#![no_std]
#![no_main]

#[path = "../object.rs"]
mod object;

use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::{btf_map, cgroup_device};
use aya_ebpf::programs::DeviceContext;
use ebpf_abi::{ANY_MAJOR, ANY_MINOR, DeviceRules, MAX_DEVICE_RULES};

/// Whole, so that it is read back with one call. A list that is walked and not a hash: the rules that
/// all containers have come to a dozen.
#[btf_map]
static DEVICE_RULES_1: Array<DeviceRules, 1> = Array::new();

const ALLOW: i32 = 1;
const DENY: i32 = 0;

#[cgroup_device]
fn ballast_devices(ctx: DeviceContext) -> i32 {
    // SAFETY: the kernel passes a valid context.
    let (access_type, major, minor) = unsafe {
        (
            (*ctx.device).access_type,
            (*ctx.device).major,
            (*ctx.device).minor,
        )
    };
    let (kind, access) = (access_type & 0xffff, access_type >> 16);
    let Some(rules) = DEVICE_RULES_1.get_ptr(0) else {
        return DENY;
    };
    let first = rules.cast::<ebpf_abi::DeviceRule>();
    for index in 0..MAX_DEVICE_RULES {
        // SAFETY: one of the rules of the map's value, which nobody writes to any more.
        let rule = unsafe { &*first.add(index) };
        if rule.kind == 0 {
            break;
        }
        // One rule must allow all that is asked for, as with the devices controller of v1.
        if u32::from(rule.kind) == kind
            && access & !u32::from(rule.access) == 0
            && (rule.major == major || rule.any & ANY_MAJOR != 0)
            && (rule.minor == minor || rule.any & ANY_MINOR != 0)
        {
            return ALLOW;
        }
    }
    DENY
}
