//! Cgroups: made, removed, entered, empty or not. One hierarchy alone, or each event would come
//! once per controller on v1. They wake nobody by themselves, but for a cgroup that becomes empty where the
//! reader asks for that.
//!
//! A process put into its cgroup by `clone3(CLONE_INTO_CGROUP)` fires no attach; its fork carries the
//! cgroup.

use aya_ebpf::bindings::BPF_RB_FORCE_WAKEUP;
use aya_ebpf::btf_maps::RingBuf;
use aya_ebpf::macros::btf_map;
use ebpf_abi::{
    CGROUP_ATTACHED, CGROUP_CREATED, CGROUP_POPULATED, CGROUP_REMOVED, CgroupRecord, WATCH_ENDS,
    WATCH_EVERYTHING,
};

use crate::kernel::{
    Memory, Pointer, copy_name, hierarchy_of, is_reported, lineage, now, offset, watch,
};
use crate::maps::{CGROUP_RING_BYTES, count_loss, submit_quietly};

#[btf_map]
pub(crate) static CGROUP_EVENTS: RingBuf<CgroupRecord, CGROUP_RING_BYTES> = RingBuf::new();

/// # Safety
/// The first argument of `cgroup_mkdir`, a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn created<M: Memory>(cgroup: Pointer) {
    // SAFETY: as above.
    unsafe { submit::<M>(cgroup, CGROUP_CREATED, 0, 0) }
}

/// # Safety
/// The first argument of `cgroup_rmdir`, a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn removed<M: Memory>(cgroup: Pointer) {
    // SAFETY: as above.
    unsafe { submit::<M>(cgroup, CGROUP_REMOVED, 0, 0) }
}

/// # Safety
/// The first and the third argument of `cgroup_attach_task`: a `cgroup` and a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn attached<M: Memory>(cgroup: Pointer, task: Pointer) {
    // SAFETY: as above.
    unsafe {
        let tgid = M::load::<u32>(task, offset!(task_tgid));
        submit::<M>(cgroup, CGROUP_ATTACHED, tgid, 0);
    }
}

/// # Safety
/// The first and the third argument of `cgroup_notify_populated`; the first is a `cgroup`.
#[inline(always)]
pub(crate) unsafe fn populated<M: Memory>(cgroup: Pointer, populated: i32) {
    // SAFETY: as above.
    unsafe { submit::<M>(cgroup, CGROUP_POPULATED, 0, u32::from(populated != 0)) }
}

/// # Safety
/// `cgroup` is a `cgroup`.
#[inline(always)]
unsafe fn submit<M: Memory>(cgroup: Pointer, kind: u32, tgid: u32, populated: u32) {
    let watch = watch();
    // SAFETY: the types follow the names of the offsets; every field is written before submitting.
    unsafe {
        if watch.flags & WATCH_EVERYTHING == 0 && hierarchy_of::<M>(cgroup) != watch.hierarchy_id {
            return;
        }
        let line = lineage::<M>(cgroup, &watch);
        if !is_reported(&line, &watch) {
            return;
        }
        let Some(mut entry) = CGROUP_EVENTS.reserve(0) else {
            count_loss();
            return;
        };
        let record = entry.as_mut_ptr();
        (*record).at_ns = now();
        (*record).cgroup = line;
        (*record).kind = kind;
        (*record).tgid = tgid;
        (*record).populated = populated;
        (*record).reserved = 0;
        let to = &raw mut (*record).name;
        (*to)[0] = 0;
        if kind == CGROUP_CREATED {
            copy_name::<M>(M::pointer(cgroup, offset!(cgroup_kn)), to);
        }
        // Of a container, or what it lies in: not of what it makes further down.
        let [one, two, three] = line.below_root;
        let is_near = line.cgroup_id == one || line.cgroup_id == two || line.cgroup_id == three;
        let is_end = kind == CGROUP_POPULATED && populated == 0 && is_near;
        match is_end && watch.flags & WATCH_ENDS != 0 {
            true => entry.submit(u64::from(BPF_RB_FORCE_WAKEUP)),
            false => submit_quietly(&CGROUP_EVENTS, entry),
        }
    }
}
