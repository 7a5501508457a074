//! OOM kills. Never filtered: a kill outside of the watched root can still be the node's business.
//!
//! ```text
//! oom_kill_process                fentry: why       -> REASON
//!   signal_generate(SIGKILL)      tp_btf: really    -> PENDING
//!   mark_victim                   tp_btf: the record, joined with both
//! oom_kill_process returns        fexit: REASON is stale
//! ```
//! All of it runs in one task, the one whose allocation failed (`current`, often not in the
//! victim's container), under the kernel's `oom_lock`.

use aya_ebpf::btf_maps::{Array, LruHashMap, PerCpuArray, RingBuf};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task};
use aya_ebpf::macros::btf_map;
use aya_log_ebpf::debug;
use ebpf_abi::{
    ABSENT, CONSTRAINT_MEMCG, CONSTRAINT_UNKNOWN, Lineage, METHOD_DERIVED, METHOD_EXACT,
    METHOD_NONE, OOM_LIMIT_RECLAIM, OOM_NAMESPACE_INIT, OOM_NODE_RECLAIM, OOM_WAS_EXITING,
    OomRecord, WATCH_SIGNALS, Watch,
};

use crate::kernel::{
    Memory, Pointer, Probed, cgroup_of, copy_comm, copy_names, lineage, now, offset, watch,
};
use crate::maps::{OOM_RING_BYTES, count_loss};

#[btf_map]
pub(crate) static OOM_EVENTS: RingBuf<OomRecord, OOM_RING_BYTES> = RingBuf::new();

/// The last SIGKILL that the kernel itself sent from this CPU. Between that and `mark_victim` the
/// kernel holds the victim's `alloc_lock`, a spin lock, so both run on the same CPU.
#[btf_map]
static PENDING: PerCpuArray<Pending, 1> = PerCpuArray::new();

#[repr(C)]
#[derive(Clone, Copy)]
struct Pending {
    /// `bpf_get_current_pid_tgid` of the sender.
    sender: u64,
    victim: u64,
    victim_tgid: u64,
}

/// The decision under way: one slot is enough, since `oom_lock` admits one at a time.
#[btf_map]
static REASON: Array<Reason, 1> = Array::new();

#[repr(C)]
#[derive(Clone, Copy)]
struct Reason {
    /// `bpf_get_current_pid_tgid` of the killer; 0: no decision is under way.
    killer: u64,
    /// Address of the `mem_cgroup` whose limit was reached; 0 for a kill by the node.
    memcg: u64,
    constraint: u64,
}

/// The css of the memory cgroup in which a task has just reclaimed in vain, by `bpf_get_current_pid_tgid`.
/// The kernel kills for a limit only after that, and by the time it names the victim another victim
/// may have left the cgroup below its limit. Least-recently-used: a task that ends leaves its entry. The agent makes it
/// larger on machines with many CPUs, each of which keeps 128 entries to itself.
#[btf_map]
static RECLAIMS: LruHashMap<u64, u64, 1024> = LruHashMap::new();

/// Values of [`RECLAIMS`] that are no address: the task reclaimed for the node; at a limit, of a cgroup that is not
/// known.
const RECLAIMED_FOR_NODE: u64 = 1;
const RECLAIMED_AT_LIMIT: u64 = 2;

/// `SEND_SIG_PRIV`, include/linux/sched/signal.h: the kernel sends, not a process.
const SEND_SIG_PRIV: u64 = 1;
const SIGKILL: i32 = 9;

/// # Safety
/// The arguments of the tracepoint `signal_generate`: `task` is a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn signal<M: Memory>(signal: i32, info: u64, task: Pointer) {
    if signal != SIGKILL || info != SEND_SIG_PRIV {
        return;
    }
    if let Some(pending) = PENDING.get_ptr_mut(0) {
        // SAFETY: a slot of this CPU, written by nothing else.
        unsafe {
            (*pending).sender = bpf_get_current_pid_tgid();
            (*pending).victim = task as u64;
            (*pending).victim_tgid = u64::from(M::load::<u32>(task, offset!(task_tgid)));
        }
    }
}

/// `oom_control.order` of a kill that somebody asked for, by SysRq f: nothing was short of memory (`is_sysrq_oom`,
/// mm/oom_kill.c).
const ASKED_FOR: i32 = -1;

/// # Safety
/// The argument of `oom_kill_process`, an `oom_control`.
#[inline(always)]
pub(crate) unsafe fn decided<M: Memory>(oom_control: Pointer) {
    if let Some(reason) = REASON.get_ptr_mut(0) {
        // SAFETY: `oom_lock` is held, so nobody else is in here.
        unsafe {
            (*reason).memcg = M::pointer(oom_control, offset!(oom_control_memcg)) as u64;
            let is_asked_for = offset!(oom_control_order) != ABSENT
                && M::load::<i32>(oom_control, offset!(oom_control_order)) == ASKED_FOR;
            (*reason).constraint = u64::from(match is_asked_for {
                true => CONSTRAINT_UNKNOWN,
                false => M::load::<u32>(oom_control, offset!(oom_control_constraint)),
            });
            (*reason).killer = bpf_get_current_pid_tgid();
        }
    }
}

/// `oom_kill_process` returned.
#[inline(always)]
pub(crate) fn done() {
    if let Some(reason) = REASON.get_ptr_mut(0) {
        // SAFETY: as in `decided`.
        unsafe { (*reason).killer = 0 };
    }
}

/// A task finished reclaiming at the limit of a memory cgroup.
///
/// # Safety
/// `current`, the running task, is a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn reclaimed<M: Memory>(current: Pointer, reclaimed_pages: u64) {
    let task = bpf_get_current_pid_tgid();
    // SAFETY: as above.
    let css = match reclaimed_pages {
        0 => unsafe { first_full::<M>(current, 0) },
        _ => core::ptr::null(),
    };
    // Without a cgroup the counters are asked at the kill.
    let last = match css.is_null() {
        true => RECLAIMED_AT_LIMIT,
        false => css as u64,
    };
    let _ = RECLAIMS.insert(task, last, 0);
}

/// The same where nothing may be read of the cgroup: a kill that follows is not the node's.
#[inline(always)]
pub(crate) fn reclaimed_at_a_limit() {
    let _ = RECLAIMS.insert(bpf_get_current_pid_tgid(), RECLAIMED_AT_LIMIT, 0);
}

/// A task reclaims because the node is short of pages: a kill that follows is the node's.
#[inline(always)]
pub(crate) fn reclaims_for_the_node() {
    let _ = RECLAIMS.insert(bpf_get_current_pid_tgid(), RECLAIMED_FOR_NODE, 0);
}

/// `mark_victim` before it passed the task (up to 6.7 and the stable releases without the backport): the
/// victim is the one of the last signal. `mark_victim` without a signal marks a process that was
/// exiting already; only its pid would be known, and its exit is reported anyway.
#[inline(always)]
pub(crate) fn victim_by_signal() {
    if let Some(pending) = PENDING.get_ptr_mut(0) {
        // SAFETY: the slot is this CPU's. The victim stays allocated: the killer holds a reference
        // to it. `bpf_get_current_task` returns the address of a `task_struct`.
        unsafe {
            if (*pending).sender == bpf_get_current_pid_tgid() {
                let task = (*pending).victim as Pointer;
                victim::<Probed>(task, bpf_get_current_task() as Pointer);
            }
        }
    }
}

/// # Safety
/// `task`, the victim, and `current` are `task_struct`s.
#[inline(always)]
pub(crate) unsafe fn victim<M: Memory>(task: Pointer, current: Pointer) {
    let watch = watch();
    let Some(mut entry) = OOM_EVENTS.reserve(0) else {
        count_loss();
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: `record` is valid for writes; every field is written before it is submitted. The
    // types follow the names of the offsets.
    unsafe {
        let leader = M::pointer(task, offset!(task_group_leader));
        let tgid = M::load::<u32>(task, offset!(task_tgid));
        (*record).at_ns = now();
        (*record).victim_start_ns = M::load::<u64>(leader, offset!(task_start_boottime));
        (*record).victim_tgid = tgid;
        (*record).victim_tid = M::load::<u32>(task, offset!(task_pid));
        // Kernels built by clang say in their types that it is under RCU, and then it may be null to the verifier.
        let cred = M::pointer(task, offset!(task_cred));
        (*record).victim_uid = if cred.is_null() {
            0
        } else {
            M::load::<u32>(cred, offset!(cred_uid))
        };
        let parent = M::pointer(task, offset!(task_real_parent));
        (*record).victim_parent_tgid = M::load::<u32>(parent, offset!(task_tgid));
        (*record).parent_cgroup = lineage::<M>(cgroup_of::<M>(parent), &watch);
        copy_comm::<M>(task, &raw mut (*record).victim_comm);
        (*record).oom_score_adj = i32::from(M::load::<i16>(
            M::pointer(task, offset!(task_signal)),
            offset!(signal_oom_score_adj),
        ));
        let mm = M::pointer(task, offset!(task_mm));
        (*record).anon_pages = mm_counter::<M>(mm, offset!(mm_anon_pages));
        (*record).file_pages = mm_counter::<M>(mm, offset!(mm_file_pages));
        (*record).shmem_pages = mm_counter::<M>(mm, offset!(mm_shmem_pages));
        (*record).swap_pages = mm_counter::<M>(mm, offset!(mm_swap_pages));
        (*record).total_vm_pages = M::load::<u64>(mm, offset!(mm_total_vm));
        (*record).page_table_bytes = if offset!(mm_page_table_bytes) == ABSENT {
            0
        } else {
            M::load::<u64>(mm, offset!(mm_page_table_bytes))
        };
        (*record).victim_cgroup = lineage::<M>(cgroup_of::<M>(task), &watch);

        (*record).trigger_tgid = M::load::<u32>(current, offset!(task_tgid));
        copy_comm::<M>(current, &raw mut (*record).trigger_comm);
        (*record).trigger_cgroup = lineage::<M>(cgroup_of::<M>(current), &watch);

        (*record).flags = 0;
        if watch.flags & WATCH_SIGNALS != 0 && !was_signalled(tgid) {
            (*record).flags = OOM_WAS_EXITING;
        }
        (*record).reserved = 0;
        victim_names::<M>(record, task, &watch);
        namespace::<M>(record, leader, &watch);
        limit::<M>(record, current, &watch);
        debug!(&(), "OOM victim {}", tgid);
    }
    entry.submit(0);
}

/// Whether the kernel has just killed this process from here, and forgets it.
#[inline(always)]
fn was_signalled(tgid: u32) -> bool {
    let Some(pending) = PENDING.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: a slot of this CPU.
    unsafe {
        let same = (*pending).sender == bpf_get_current_pid_tgid()
            && (*pending).victim_tgid == u64::from(tgid);
        (*pending).sender = 0;
        same
    }
}

/// Up to 6.1 the counters stand in an array of typedefs, which the verifier does not walk.
///
/// # Safety
/// `mm` is an `mm_struct`.
#[inline(always)]
unsafe fn mm_counter<M: Memory>(mm: Pointer, offset: u32) -> u64 {
    // SAFETY: the counter is a `long` in every form.
    let pages = unsafe {
        if offset!(mm_counters_are_typed) == 1 {
            M::load::<i64>(mm, offset)
        } else if M::HELPERS {
            Probed::load::<i64>(mm, offset)
        } else {
            0
        }
    };
    // The part that is kept per CPU can make the shared one negative.
    if pages < 0 { 0 } else { pages as u64 }
}

/// Fills in the names of the victim's cgroups: by then nobody may know them any more.
///
/// # Safety
/// `record` is valid for writes, its cgroup is written; `task` is a `task_struct`.
#[inline(always)]
unsafe fn victim_names<M: Memory>(record: *mut OomRecord, task: Pointer, watch: &Watch) {
    // SAFETY: as above.
    unsafe {
        let to = &raw mut (*record).victim_names;
        (*to)[0][0] = 0;
        (*to)[1][0] = 0;
        (*to)[2][0] = 0;
        if M::HELPERS && (*record).victim_cgroup.in_root != 0 {
            copy_names(cgroup_of::<Probed>(task), watch, to);
        }
    }
}

/// The size of a pointer, and so of what follows `upid.ns`.
const POINTER_BYTES: u32 = 8;

/// Fills in where the victim stands in its PID namespace.
///
/// # Safety
/// `record` is valid for writes, its flags are written; `leader` is a `task_struct`.
#[inline(always)]
unsafe fn namespace<M: Memory>(record: *mut OomRecord, leader: Pointer, watch: &Watch) {
    // SAFETY: the types follow the names of the offsets. How many numbers a `pid` has stands in itself,
    // which no type says: hence the helper.
    unsafe {
        (*record).init_cgroup = Lineage::default();
        if !M::HELPERS || offset!(task_thread_pid) == ABSENT {
            return;
        }
        let pid = Probed::pointer(leader, offset!(task_thread_pid));
        let level = Probed::load::<u32>(pid, offset!(pid_level));
        if level == 0 {
            return;
        }
        let number_bytes = offset!(upid_ns).wrapping_add(POINTER_BYTES);
        let number = offset!(pid_numbers).wrapping_add(level.wrapping_mul(number_bytes));
        let namespace = Probed::pointer(pid.wrapping_add(number as usize), offset!(upid_ns));
        let init = Probed::pointer(namespace, offset!(pid_namespace_child_reaper));
        // Any of its threads: that is another one once its leader has exited.
        if Probed::load::<u32>(init, offset!(task_tgid)) == (*record).victim_tgid {
            (*record).flags |= OOM_NAMESPACE_INIT;
        }
        (*record).init_cgroup = lineage::<Probed>(cgroup_of::<Probed>(init), watch);
    }
}

/// Pages that the kernel may charge in one go before the counter is looked at again: the limit
/// counts as reached this near to it (`MEMCG_CHARGE_BATCH`, include/linux/memcontrol.h).
const CHARGE_BATCH: u64 = 64;

/// Ancestors of the allocating task's memory cgroup that are looked at.
const MAX_MEMCG_DEPTH: u32 = 12;

/// Fills in whose limit was reached: exactly from `oom_control`, else the first full ancestor.
///
/// # Safety
/// `record` is valid for writes; `current` is a `task_struct`.
#[inline(always)]
unsafe fn limit<M: Memory>(record: *mut OomRecord, current: Pointer, watch: &Watch) {
    // SAFETY: the types follow the names of the offsets.
    unsafe {
        (*record).constraint = CONSTRAINT_UNKNOWN;
        (*record).method = METHOD_NONE;
        (*record).limit_usage_pages = 0;
        (*record).limit_max_pages = 0;
        (*record).limit_cgroup = Lineage::default();
        let task = bpf_get_current_pid_tgid();
        let reason = REASON.get(0).filter(|it| it.killer == task);
        if let Some(reason) = reason {
            (*record).constraint = reason.constraint as u32;
            (*record).method = METHOD_EXACT;
        }
        let mut remembered = RECLAIMS.get(task).copied().unwrap_or(0);
        (*record).flags |= match remembered {
            0 => 0,
            RECLAIMED_FOR_NODE => OOM_NODE_RECLAIM,
            _ => OOM_LIMIT_RECLAIM,
        };
        // What is behind a css is a matter of knowing, not of types.
        if !M::HELPERS {
            return;
        }
        let offset = offset!(mem_cgroup_css) as usize;
        let css = if let Some(reason) = reason {
            if reason.memcg == 0 {
                return;
            }
            (reason.memcg as Pointer).wrapping_add(offset)
        } else {
            if remembered <= RECLAIMED_AT_LIMIT {
                remembered = 0;
            }
            let css = first_full::<M>(current, remembered);
            if css.is_null() {
                return;
            }
            (*record).constraint = CONSTRAINT_MEMCG;
            (*record).method = METHOD_DERIVED;
            css
        };
        let memcg = css.wrapping_sub(offset);
        (*record).limit_usage_pages = Probed::load::<u64>(memcg, offset!(mem_cgroup_usage));
        (*record).limit_max_pages = Probed::load::<u64>(memcg, offset!(mem_cgroup_max));
        let cgroup = Probed::pointer(css, offset!(css_cgroup));
        (*record).limit_cgroup = lineage::<Probed>(cgroup, watch);
    }
}

/// The css of the first full memory cgroup from a task's own upwards, or of the one remembered if that
/// is among them; null when there is none.
///
/// # Safety
/// `task` is a `task_struct`.
#[inline(always)]
unsafe fn first_full<M: Memory>(task: Pointer, remembered: u64) -> Pointer {
    // SAFETY: the types follow the names of the offsets. A css and its `mem_cgroup` are one object,
    // which no type says: hence the helper.
    unsafe {
        let css_set = M::pointer(task, offset!(task_cgroups));
        let mut css = M::pointer(css_set, offset!(css_set_memory));
        for _ in 0..MAX_MEMCG_DEPTH {
            if css.is_null() {
                break;
            }
            if remembered != 0 {
                if css as u64 == remembered {
                    return css;
                }
            } else {
                let memcg = css.wrapping_sub(offset!(mem_cgroup_css) as usize);
                let usage = Probed::load::<u64>(memcg, offset!(mem_cgroup_usage));
                let max = Probed::load::<u64>(memcg, offset!(mem_cgroup_max));
                if max != 0 && usage.wrapping_add(CHARGE_BATCH) >= max {
                    return css;
                }
            }
            css = M::pointer(css, offset!(css_parent));
        }
        core::ptr::null()
    }
}
