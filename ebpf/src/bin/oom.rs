//! OOM kills, and the fields of the decision where the kernel lets functions be traced.
//!
//! Of the `oom_victim*` programs one is attached, the first that the kernel's shape of `mark_victim` and its
//! verifier allow.
#![no_std]
#![no_main]

#[expect(dead_code, reason = "each object uses its part")]
#[path = "../kernel.rs"]
mod kernel;
#[expect(dead_code, reason = "each object uses its part")]
#[path = "../maps.rs"]
mod maps;
#[path = "../object.rs"]
mod object;
#[path = "../oom.rs"]
mod oom;

use aya_ebpf::helpers::{bpf_get_current_task, bpf_get_current_task_btf};
use aya_ebpf::macros::{btf_tracepoint, fentry, fexit, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, FEntryContext, FExitContext, RawTracePointContext};
use kernel::{Bare, Pointer, Probed, Typed};

/// `mark_victim(task)`.
#[btf_tracepoint]
fn oom_victim(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: loaded where argument 0 is a task; the helper returns the running one.
    unsafe { oom::victim::<Typed>(ctx.arg::<Pointer>(0), bpf_get_current_task_btf() as Pointer) };
    0
}

/// `mark_victim(task)` under `lockdown=confidentiality`: no limit.
#[btf_tracepoint]
fn oom_victim_bare(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: as in `oom_victim`.
    unsafe { oom::victim::<Bare>(ctx.arg::<Pointer>(0), bpf_get_current_task_btf() as Pointer) };
    0
}

/// `mark_victim(task)` where typed tracepoints are refused.
#[raw_tracepoint]
fn oom_victim_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: as in `oom_victim`.
    unsafe { oom::victim::<Probed>(ctx.arg::<Pointer>(0), bpf_get_current_task() as Pointer) };
    0
}

/// `mark_victim(pid)`.
#[btf_tracepoint]
fn oom_victim_pid(_ctx: BtfTracePointContext) -> i32 {
    oom::victim_by_signal();
    0
}

/// `mark_victim(pid)` where typed tracepoints are refused.
#[raw_tracepoint]
fn oom_victim_pid_raw(_ctx: RawTracePointContext) -> i32 {
    oom::victim_by_signal();
    0
}

/// `signal_generate(sig, info, task, group, result)`.
#[btf_tracepoint]
fn oom_signal(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the arguments of the tracepoint.
    unsafe { oom::signal::<Typed>(ctx.arg::<i32>(0), ctx.arg::<u64>(1), ctx.arg::<Pointer>(2)) };
    0
}

#[raw_tracepoint]
fn oom_signal_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: the arguments of the tracepoint.
    unsafe { oom::signal::<Probed>(ctx.arg::<i32>(0), ctx.arg::<u64>(1), ctx.arg::<Pointer>(2)) };
    0
}

/// `oom_kill_process(oom_control, message)`.
#[fentry]
fn oom_reason(ctx: FEntryContext) -> i32 {
    // SAFETY: the first argument of the function.
    unsafe { oom::decided::<Typed>(ctx.arg::<Pointer>(0)) };
    0
}

#[fexit]
fn oom_reason_done(_ctx: FExitContext) -> i32 {
    oom::done();
    0
}

/// `mm_vmscan_memcg_reclaim_end(nr_reclaimed)`.
#[btf_tracepoint]
fn oom_reclaim(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: the helper returns the running task.
    unsafe { oom::reclaimed::<Typed>(bpf_get_current_task_btf() as Pointer, ctx.arg::<u64>(0)) };
    0
}

#[raw_tracepoint]
fn oom_reclaim_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: the helper returns the running task.
    unsafe { oom::reclaimed::<Probed>(bpf_get_current_task() as Pointer, ctx.arg::<u64>(0)) };
    0
}

/// `mm_vmscan_memcg_reclaim_end` under `lockdown=confidentiality`: that it was a limit, and not whose.
#[raw_tracepoint]
fn oom_reclaim_bare(_ctx: RawTracePointContext) -> i32 {
    oom::reclaimed_at_a_limit();
    0
}

/// `mm_vmscan_direct_reclaim_begin`; its arguments are not read, they have moved.
#[raw_tracepoint]
fn oom_direct_reclaim(_ctx: RawTracePointContext) -> i32 {
    oom::reclaims_for_the_node();
    0
}
