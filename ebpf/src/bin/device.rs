//! Device access below one cgroup v2 directory: everything is allowed, and counted.
#![no_std]
#![no_main]

#[path = "../object.rs"]
mod object;

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::macros::{btf_map, cgroup_device};
use aya_ebpf::programs::DeviceContext;
use ebpf_abi::DEVICE_SLOTS;

/// Per CPU, so that counting needs no atomic.
#[btf_map]
static ACCESSES: PerCpuArray<u64, DEVICE_SLOTS> = PerCpuArray::new();

const ALLOW: i32 = 1;

#[cgroup_device]
fn device_access(ctx: DeviceContext) -> i32 {
    // SAFETY: the kernel passes a valid context.
    let access_type = unsafe { (*ctx.device).access_type };
    // Type in the low half, access bits in the high one; an array lookup checks the index.
    let slot = ((access_type & 0xffff).wrapping_sub(1) << 3) | ((access_type >> 16) & 7);
    if let Some(count) = ACCESSES.get_ptr_mut(slot) {
        // SAFETY: a slot of this CPU.
        unsafe { *count += 1 };
    }
    ALLOW
}
