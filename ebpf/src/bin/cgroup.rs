//! Cgroups come, go, fill and empty. Of each pair one program is attached, the typed one first.
#![no_std]
#![no_main]

#[path = "../cgroup.rs"]
mod cgroup;
#[expect(dead_code, reason = "each object uses its part")]
#[path = "../kernel.rs"]
mod kernel;
#[expect(dead_code, reason = "each object uses its part")]
#[path = "../maps.rs"]
mod maps;
#[path = "../object.rs"]
mod object;

use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use kernel::{Pointer, Probed, Typed};

/// `cgroup_mkdir(cgroup, path)`.
#[btf_tracepoint]
fn cgroup_created(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { cgroup::created::<Typed>(ctx.arg::<Pointer>(0)) };
    0
}

#[raw_tracepoint]
fn cgroup_created_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { cgroup::created::<Probed>(ctx.arg::<Pointer>(0)) };
    0
}

/// `cgroup_rmdir(cgroup, path)`.
#[btf_tracepoint]
fn cgroup_removed(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { cgroup::removed::<Typed>(ctx.arg::<Pointer>(0)) };
    0
}

#[raw_tracepoint]
fn cgroup_removed_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { cgroup::removed::<Probed>(ctx.arg::<Pointer>(0)) };
    0
}

/// `cgroup_attach_task(cgroup, path, task, threadgroup)`.
#[btf_tracepoint]
fn cgroup_attached(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup, argument 2 a task.
    unsafe { cgroup::attached::<Typed>(ctx.arg::<Pointer>(0), ctx.arg::<Pointer>(2)) };
    0
}

#[raw_tracepoint]
fn cgroup_attached_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup, argument 2 a task.
    unsafe { cgroup::attached::<Probed>(ctx.arg::<Pointer>(0), ctx.arg::<Pointer>(2)) };
    0
}

/// `cgroup_notify_populated(cgroup, path, populated)`.
#[btf_tracepoint]
fn cgroup_populated(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { cgroup::populated::<Typed>(ctx.arg::<Pointer>(0), ctx.arg::<i32>(2)) };
    0
}

#[raw_tracepoint]
fn cgroup_populated_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 0 is a cgroup.
    unsafe { cgroup::populated::<Probed>(ctx.arg::<Pointer>(0), ctx.arg::<i32>(2)) };
    0
}
