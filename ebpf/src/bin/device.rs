//! Device access below one cgroup v2 directory: everything is allowed, and counted; apart, what a
//! program of a cgroup below has denied, whoever attached it. Those run before this one.
#![no_std]
#![no_main]

#[path = "../object.rs"]
mod object;

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::bpf_get_retval;
use aya_ebpf::macros::{btf_map, cgroup_device};
use aya_ebpf::programs::DeviceContext;
use ebpf_abi::{DEVICE_DENIED, DEVICE_SLOTS};

/// Per CPU, so that counting needs no atomic.
#[btf_map]
static ACCESSES: PerCpuArray<u64, DEVICE_SLOTS> = PerCpuArray::new();

const ALLOW: i32 = 1;

/// Needs Linux 5.18, which lends the helper.
#[cgroup_device]
fn device_access(ctx: DeviceContext) -> i32 {
    // SAFETY: takes nothing. The value so far: 0, or what an earlier program denied with.
    count(&ctx, unsafe { bpf_get_retval() } != 0);
    ALLOW
}

/// Cannot tell what is denied: it counts as the rest.
#[cgroup_device]
fn device_access_all(ctx: DeviceContext) -> i32 {
    count(&ctx, false);
    ALLOW
}

#[inline(always)]
fn count(ctx: &DeviceContext, is_denied: bool) {
    // SAFETY: the kernel passes a valid context.
    let access_type = unsafe { (*ctx.device).access_type };
    // Type in the low half, access bits in the high one; an array lookup checks the index.
    let mut slot = ((access_type & 0xffff).wrapping_sub(1) << 3) | ((access_type >> 16) & 7);
    if is_denied {
        slot += DEVICE_DENIED as u32;
    }
    if let Some(count) = ACCESSES.get_ptr_mut(slot) {
        // SAFETY: a slot of this CPU.
        unsafe { *count += 1 };
    }
}
