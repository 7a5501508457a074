//! Memory stalls: time in reclaim, per cgroup of the waiting task. Totals in a map, for every
//! stall; events at a bounded rate, some of which wake an agent that decides by them: those of a node that is short
//! soon, those at a limit seldom, since that is mostly the own one of a pod.

use core::arch::asm;

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_FORCE_WAKEUP};
use aya_ebpf::btf_maps::{Array, HashMap, RingBuf};
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::macros::btf_map;
use ebpf_abi::{
    LIMIT_WAKE_INTERVAL_NS, Lineage, STALL_DIRECT, STALL_MEMCG, STALL_WAKE_INTERVAL_NS,
    StallRecord, StallTotal, WATCH_STALLS,
};

use crate::kernel::{
    Memory, Pointer, cgroup_id, cgroup_of, hierarchy_of, is_reported, lineage, now, watch,
};
use crate::maps::{STALL_RING_BYTES, count_loss, submit_quietly};

#[btf_map]
pub(crate) static STALL_EVENTS: RingBuf<StallRecord, STALL_RING_BYTES> = RingBuf::new();

/// When a task began to wait, by `bpf_get_current_pid_tgid`. Preallocated, unlike task storage: an
/// allocation inside of reclaim is the last thing wanted. As many as tasks wait at once; one that
/// finds it full is not measured and counted as lost.
#[btf_map]
static STARTS: HashMap<u64, u64, 4096> = HashMap::new();

/// By cgroup id, removed with the cgroup. Not cgroup storage: that exists from 6.2 on, and cannot be
/// listed. Not least-recently-used: a counter that falls back to 0 lies.
#[btf_map]
pub(crate) static TOTALS: HashMap<u64, StallTotal, 4096> = HashMap::new();

/// When the reader was woken last, boot time in nanoseconds.
#[btf_map]
static WOKEN: Array<u64, 1> = Array::new();

/// At most 100 events per second and cgroup; the totals miss none.
const REPORT_INTERVAL_NS: u64 = 10_000_000;

#[inline(always)]
pub(crate) fn begin() {
    if STARTS.insert(bpf_get_current_pid_tgid(), now(), 0).is_err() {
        count_loss();
    }
}

/// # Safety
/// `current` is a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn end<M: Memory>(current: Pointer, kind: u32, reclaimed_pages: u64) {
    let task = bpf_get_current_pid_tgid();
    // SAFETY: no other program writes the entry of this task while it runs here.
    let Some(&start) = (unsafe { STARTS.get(task) }) else {
        return;
    };
    let _ = STARTS.remove(task);
    let at_ns = now();
    let duration_ns = at_ns.saturating_sub(start);
    let watch = watch();
    // SAFETY: the types follow the names of the offsets; every field is written before submitting.
    unsafe {
        let cgroup = lineage::<M>(cgroup_of::<M>(current), &watch);
        if !is_reported(&cgroup, &watch) {
            return;
        }
        let Some(total) = total(&cgroup) else {
            count_loss();
            return;
        };
        match kind {
            STALL_MEMCG => {
                add(&raw mut (*total).memcg_ns, duration_ns);
                add(&raw mut (*total).memcg_count, 1);
            }
            STALL_DIRECT => {
                add(&raw mut (*total).direct_ns, duration_ns);
                add(&raw mut (*total).direct_count, 1);
            }
            _ => return,
        }
        // Two tasks that end at once may both report: harmless.
        if at_ns.wrapping_sub((*total).reported_at_ns) < REPORT_INTERVAL_NS {
            return;
        }
        (*total).reported_at_ns = at_ns;
        let Some(mut entry) = STALL_EVENTS.reserve(0) else {
            count_loss();
            return;
        };
        let record = entry.as_mut_ptr();
        (*record).at_ns = at_ns;
        (*record).duration_ns = duration_ns;
        (*record).reclaimed_pages = reclaimed_pages;
        (*record).cgroup = cgroup;
        (*record).tgid = (task >> 32) as u32;
        (*record).kind = kind;
        let interval_ns = match kind {
            STALL_MEMCG => LIMIT_WAKE_INTERVAL_NS,
            _ => STALL_WAKE_INTERVAL_NS,
        };
        match watch.flags & WATCH_STALLS != 0 && is_to_wake(at_ns, interval_ns) {
            true => entry.submit(u64::from(BPF_RB_FORCE_WAKEUP)),
            false => submit_quietly(&STALL_EVENTS, entry),
        }
    }
}

/// Whether the record of this time wakes the reader, whom none has woken for so long. Two CPUs may both do it:
/// harmless.
#[inline(always)]
fn is_to_wake(at_ns: u64, interval_ns: u64) -> bool {
    let Some(woken) = WOKEN.get_ptr_mut(0) else {
        return true;
    };
    // SAFETY: an aligned word in a map value that lives as long as the program; whoever else writes it
    // writes a time too.
    unsafe {
        if at_ns.saturating_sub(*woken) < interval_ns {
            return false;
        }
        *woken = at_ns;
    }
    true
}

/// The counters of a cgroup are dropped with it, so its slot is free for another. Those of the
/// watched hierarchy alone: on v1 the same id is another cgroup in another hierarchy.
///
/// # Safety
/// The first argument of `cgroup_rmdir`, a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn cgroup_removed<M: Memory>(cgroup: Pointer) {
    // SAFETY: as above.
    unsafe {
        if hierarchy_of::<M>(cgroup) == watch().hierarchy_id {
            let _ = TOTALS.remove(cgroup_id::<M>(cgroup));
        }
    }
}

#[inline(always)]
fn total(cgroup: &Lineage) -> Option<*mut StallTotal> {
    if let Some(total) = TOTALS.get_ptr_mut(cgroup.cgroup_id) {
        return Some(total);
    }
    let zero = StallTotal {
        memcg_ns: 0,
        memcg_count: 0,
        direct_ns: 0,
        direct_count: 0,
        reported_at_ns: 0,
        cgroup: *cgroup,
    };
    // Another CPU may have been first; its entry is as good.
    let _ = TOTALS.insert(cgroup.cgroup_id, &zero, u64::from(BPF_NOEXIST));
    TOTALS.get_ptr_mut(cgroup.cgroup_id)
}

/// # Safety
/// `counter` is valid for reads and writes for as long as the program runs.
#[inline(always)]
unsafe fn add(counter: *mut u64, n: u64) {
    // SAFETY: an aligned counter in a map value that is only ever added to. This form of the
    // instruction has existed from the start; those that return the old value came in 5.12.
    unsafe { asm!("lock *(u64 *)({} + 0) += {}", in(reg) counter, in(reg) n, options(nostack)) };
}
