//! Processes begin, exec and end. Of each pair one program is attached, the typed one first.
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
#[path = "../process.rs"]
mod process;

use aya_ebpf::macros::{btf_tracepoint, raw_tracepoint};
use aya_ebpf::programs::{BtfTracePointContext, RawTracePointContext};
use kernel::{Pointer, Probed, Typed};

/// `sched_process_fork(parent, child)`.
#[btf_tracepoint]
fn process_fork(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 1 is a task.
    unsafe { process::fork::<Typed>(ctx.arg::<Pointer>(1)) };
    0
}

#[raw_tracepoint]
fn process_fork_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 1 is a task.
    unsafe { process::fork::<Probed>(ctx.arg::<Pointer>(1)) };
    0
}

/// `sched_process_exec(task, old_pid, bprm)`.
#[btf_tracepoint]
fn process_exec(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a task.
    unsafe { process::exec::<Typed>(ctx.arg::<Pointer>(0)) };
    0
}

#[raw_tracepoint]
fn process_exec_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: argument 0 is a task.
    unsafe { process::exec::<Probed>(ctx.arg::<Pointer>(0)) };
    0
}

/// `sched_process_exit(task)`, with `group_dead` from 6.16 on.
#[btf_tracepoint]
fn process_exit(ctx: BtfTracePointContext) -> i32 {
    // SAFETY: argument 0 is a task. Argument 1 is looked at only where it exists; of a bool the
    // kernel fills the low byte.
    unsafe { process::exit::<Typed>(ctx.arg::<Pointer>(0), || ctx.arg::<u64>(1) & 0xff != 0) };
    0
}

#[raw_tracepoint]
fn process_exit_raw(ctx: RawTracePointContext) -> i32 {
    // SAFETY: as in `process_exit`.
    unsafe { process::exit::<Probed>(ctx.arg::<Pointer>(0), || ctx.arg::<u64>(1) & 0xff != 0) };
    0
}
