//! Processes: begin, exec, end. Threads are left out. They wake nobody by themselves, but for the end of a
//! process that was killed for memory: it belongs to the kill.

use aya_ebpf::bindings::{BPF_NOEXIST, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::btf_maps::{LruHashMap, PerCpuArray, RingBuf};
use aya_ebpf::macros::btf_map;
use ebpf_abi::{
    COMM_LEN, Lineage, PROCESS_BY_OOM, PROCESS_EXEC, PROCESS_EXIT, PROCESS_FORK, ProcessRecord,
    Watch,
};

use crate::kernel::{
    Memory, Pointer, cgroup_id, cgroup_of, comm, is_reported, lineage, now, offset, watch,
};
use crate::maps::{PROCESS_RING_BYTES, count_loss, submit_quietly};

#[btf_map]
pub(crate) static PROCESS_EVENTS: RingBuf<ProcessRecord, PROCESS_RING_BYTES> = RingBuf::new();

/// Processes whose end was reported: their start, and the address of their `signal_struct` should two have
/// started in the same nanosecond. Before 6.16 each of the last threads to die together can look like
/// the last one. A second event slips through only when as many others of pods end in between as there are entries, or half of
/// the 128 that a CPU keeps to itself on that CPU. The agent makes it larger on machines with many CPUs.
#[btf_map]
static ENDED: LruHashMap<u64, u64, 1024> = LruHashMap::new();

/// What a program keeps for its next run on a CPU. One for each kind: on a kernel with PREEMPT_RT, where tracepoints may leave
/// preemption on, a program may preempt another, but not itself. On others none preempts any.
#[btf_map]
static LAST: PerCpuArray<Last, 3> = PerCpuArray::new();

/// One pod that begins many processes finds its ancestors at hand, where the way up to them is cold.
struct Last {
    root_id: u64,
    /// Those of an id are the same for as long as it is there, and no id is given twice.
    lineage: Lineage,
    n_reported: u64,
}

/// Of so many records of a kind and CPU one is followed by a look at how full the ring is. Of the 1 260 that can wake the
/// reader at a mark of [`submit_quietly`] 157 are on average, and one at least where 59 CPUs or fewer submit them: of three
/// kinds, and of each seven at most without a look. The first of all is, since of a short burst on many CPUs each has few.
const LOOK_EVERY: u64 = 8;

/// `SIGNAL_GROUP_EXIT`, include/linux/sched/signal.h, unchanged from 5.8 to 7.2.
const SIGNAL_GROUP_EXIT: u32 = 4;

/// # Safety
/// The second argument of `sched_process_fork`, a `task_struct`.
#[inline(always)]
pub(crate) unsafe fn fork<M: Memory>(child: Pointer) {
    // SAFETY: `child` is a `task_struct`.
    unsafe {
        if M::load::<u32>(child, offset!(task_pid)) != M::load::<u32>(child, offset!(task_tgid)) {
            return;
        }
        if let Some(found) = reported::<M>(child, PROCESS_FORK) {
            submit::<M>(found, child, PROCESS_FORK, 0, 0);
        }
    }
}

/// # Safety
/// The first argument of `sched_process_exec`, a `task_struct`; it leads its thread group by then.
#[inline(always)]
pub(crate) unsafe fn exec<M: Memory>(task: Pointer) {
    // SAFETY: as above.
    unsafe {
        if let Some(found) = reported::<M>(task, PROCESS_EXEC) {
            submit::<M>(found, task, PROCESS_EXEC, 0, 0);
        }
    }
}

/// # Safety
/// The arguments of `sched_process_exit`: a `task_struct` and, from 6.16 on, whether it is the last
/// thread of its process.
#[inline(always)]
pub(crate) unsafe fn exit<M: Memory>(task: Pointer, group_dead: impl FnOnce() -> bool) {
    // SAFETY: the types follow the names of the offsets.
    unsafe {
        let tells_last = offset!(exit_has_group_dead) == 1;
        if tells_last && !group_dead() {
            return;
        }
        let signal = M::pointer(task, offset!(task_signal));
        if !tells_last && M::load::<u32>(signal, offset!(signal_live)) != 0 {
            return;
        }
        let Some(found) = reported::<M>(task, PROCESS_EXIT) else {
            return;
        };
        let leader = M::pointer(task, offset!(task_group_leader));
        if !tells_last {
            // In one step, since the last threads come here at the same time.
            let start = M::load::<u64>(leader, offset!(task_start_boottime));
            let this = signal as u64;
            let is_new = ENDED.insert(start, this, u64::from(BPF_NOEXIST)).is_ok();
            if !is_new && ENDED.get(start).is_some_and(|ended| *ended == this) {
                return;
            }
        }
        // As wait(2) would say: that of the group where the whole group was told to go, else the
        // leader's own.
        let code = if M::load::<u32>(signal, offset!(signal_flags)) & SIGNAL_GROUP_EXIT != 0 {
            M::load::<u32>(signal, offset!(signal_group_exit_code))
        } else {
            M::load::<u32>(leader, offset!(task_exit_code))
        };
        let flags = if M::pointer(signal, offset!(signal_oom_mm)).is_null() {
            0
        } else {
            PROCESS_BY_OOM
        };
        submit::<M>(found, leader, PROCESS_EXIT, code, flags);
    }
}

/// A task of which somebody is told.
struct Reported {
    cgroup: Lineage,
    /// See [`LOOK_EVERY`].
    looks: bool,
}

/// Where the task is. `None`: nobody is told of it, and nothing else of it is looked at.
///
/// # Safety
/// `task` is a `task_struct`.
#[inline(always)]
unsafe fn reported<M: Memory>(task: Pointer, kind: u32) -> Option<Reported> {
    let watch: Watch = watch();
    // SAFETY: as above; the slot is of this CPU and of this program.
    unsafe {
        let cgroup = cgroup_of::<M>(task);
        let last = &mut *LAST.get_ptr_mut(kind - PROCESS_FORK)?;
        if last.lineage.cgroup_id != cgroup_id::<M>(cgroup) || last.root_id != watch.root_id {
            last.lineage = lineage::<M>(cgroup, &watch);
            last.root_id = watch.root_id;
        }
        if !is_reported(&last.lineage, &watch) {
            return None;
        }
        let looks = last.n_reported % LOOK_EVERY == 0;
        last.n_reported += 1;
        Some(Reported {
            cgroup: last.lineage,
            looks,
        })
    }
}

/// # Safety
/// `leader` is the `task_struct` that leads a process.
#[inline(always)]
unsafe fn submit<M: Memory>(
    found: Reported,
    leader: Pointer,
    kind: u32,
    exit_code: u32,
    flags: u32,
) {
    // SAFETY: the types follow the names of the offsets; every field is written before submitting.
    unsafe {
        // Before the ring is locked, so that the processor waits for all of them at once.
        let start_ns = M::load::<u64>(leader, offset!(task_start_boottime));
        let tgid = M::load::<u32>(leader, offset!(task_tgid));
        let name = comm::<M>(leader);
        // Nothing else here touches the parent, which is seldom in the cache.
        let parent_tgid = match kind {
            PROCESS_FORK => M::load::<u32>(
                M::pointer(leader, offset!(task_real_parent)),
                offset!(task_tgid),
            ),
            _ => 0,
        };
        let at_ns = now();
        let Some(mut entry) = PROCESS_EVENTS.reserve(0) else {
            count_loss();
            return;
        };
        let record = entry.as_mut_ptr();
        (*record).at_ns = at_ns;
        (*record).start_ns = start_ns;
        (*record).cgroup = found.cgroup;
        (&raw mut (*record).comm)
            .cast::<[u64; COMM_LEN / 8]>()
            .write(name);
        (*record).tgid = tgid;
        (*record).parent_tgid = parent_tgid;
        (*record).kind = kind;
        (*record).exit_code = exit_code;
        (*record).flags = flags;
        (*record).reserved = 0;
        if flags & PROCESS_BY_OOM != 0 {
            entry.submit(u64::from(BPF_RB_FORCE_WAKEUP));
        } else if found.looks {
            submit_quietly(&PROCESS_EVENTS, entry);
        } else {
            entry.submit(u64::from(BPF_RB_NO_WAKEUP));
        }
    }
}
