//! Reclaim begins and ends. Nothing of the arguments is read but `nr_reclaimed`, which has been the first
//! of each `end` from 5.8 to 7.2, while those of `begin` have moved.
#![no_std]
#![no_main]
// `core` has no atomic addition for a target without compare-and-swap.
#![feature(asm_experimental_arch)]

#[expect(dead_code, reason = "each object uses its part")]
#[path = "../kernel.rs"]
mod kernel;
#[expect(dead_code, reason = "each object uses its part")]
#[path = "../maps.rs"]
mod maps;
#[path = "../object.rs"]
mod object;
#[path = "../stall.rs"]
mod stall;

use aya_ebpf::helpers::{bpf_get_current_task, bpf_get_current_task_btf};
use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use ebpf_abi::{STALL_DIRECT, STALL_MEMCG};
use kernel::{Pointer, Probed, Typed};

/// `mm_vmscan_memcg_reclaim_begin` and `mm_vmscan_direct_reclaim_begin`; they do not nest.
#[raw_tracepoint]
fn stall_memcg_begin(_ctx: RawTracePointContext) -> i32 {
    stall::begin();
    0
}

#[raw_tracepoint]
fn stall_direct_begin(_ctx: RawTracePointContext) -> i32 {
    stall::begin();
    0
}

/// `mm_vmscan_memcg_reclaim_end(nr_reclaimed)`.
#[btf_tracepoint]
fn stall_memcg_end(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the helper returns the running task.
    unsafe {
        stall::end::<Typed>(
            bpf_get_current_task_btf() as Pointer,
            STALL_MEMCG,
            ctx.arg::<u64>(0),
        );
    }
    0
}

#[raw_tracepoint]
fn stall_memcg_end_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: the helper returns the running task.
    unsafe {
        stall::end::<Probed>(
            bpf_get_current_task() as Pointer,
            STALL_MEMCG,
            ctx.arg::<u64>(0),
        );
    }
    0
}

/// `mm_vmscan_direct_reclaim_end(nr_reclaimed)`.
#[btf_tracepoint]
fn stall_direct_end(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the helper returns the running task.
    unsafe {
        stall::end::<Typed>(
            bpf_get_current_task_btf() as Pointer,
            STALL_DIRECT,
            ctx.arg::<u64>(0),
        );
    }
    0
}

#[raw_tracepoint]
fn stall_direct_end_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: the helper returns the running task.
    unsafe {
        stall::end::<Probed>(
            bpf_get_current_task() as Pointer,
            STALL_DIRECT,
            ctx.arg::<u64>(0),
        );
    }
    0
}

/// `cgroup_rmdir(cgroup, path)`.
#[btf_tracepoint]
fn stall_cgroup_removed(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { stall::cgroup_removed::<Typed>(ctx.arg::<Pointer>(0)) };
    0
}

#[raw_tracepoint]
fn stall_cgroup_removed_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { stall::cgroup_removed::<Probed>(ctx.arg::<Pointer>(0)) };
    0
}
