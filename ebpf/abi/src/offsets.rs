//! Where the running kernel keeps the fields that the programs read.

use crate::shared;

/// The running kernel has no such field. Programs test for it before they use an offset; the
/// verifier knows the value, so the untaken branch costs nothing and is not even checked.
pub const ABSENT: u32 = u32::MAX;

macro_rules! offsets {
    ($size:literal: $($(#[$attr:meta])* $name:ident,)*) => {
        shared! {
            /// Byte offsets, [`ABSENT`] where the kernel lacks the field. Filled by
            /// `agent/src/sources/bpf/offsets.rs` from the kernel's BTF and frozen before loading, so that
            /// the verifier sees constants.
            pub struct Offsets($size) {
                $($(#[$attr])* pub $name: u32,)*
            }
        }

        impl Offsets {
            /// Nothing is known.
            pub const NONE: Self = Self { $($name: ABSENT,)* };

            /// Every field with its name, for messages and tests.
            #[cfg(feature = "user")]
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u32)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

offsets! { 192:
    // First those that a process needs that execs or ends, so that they share cache lines.
    task_cgroups,
    /// `subsys[memory_cgrp_id]`.
    css_set_memory,
    css_cgroup,
    css_set_dfl_cgrp,
    /// Not an offset: 1 when the memory controller lives on cgroup v2, so that a task's cgroup is
    /// `css_set.dfl_cgrp`; 0 when it is that of its memory css.
    memory_is_unified,
    cgroup_kn,
    cgroup_level,
    kn_id,
    /// Of the directory above.
    kn_parent,
    task_tgid,
    task_start_boottime,
    task_comm,
    /// Not an offset: 1 when `sched_process_exit` passes `group_dead` (6.16 and newer).
    exit_has_group_dead,
    task_signal,
    task_group_leader,
    task_exit_code,
    signal_flags,
    signal_group_exit_code,
    signal_oom_mm,
    signal_live,
    task_pid,
    task_real_parent,
    task_mm,
    task_cred,
    /// The `pid` of a thread, which has a `upid` for each of its PID namespaces; [`ABSENT`] where one of the four
    /// that follow is.
    task_thread_pid,
    pid_level,
    pid_numbers,
    /// The last field of `upid`.
    upid_ns,
    pid_namespace_child_reaper,
    cred_uid,
    signal_oom_score_adj,
    mm_total_vm,
    /// The `long` of the counter, in the four forms the kernel has had.
    mm_file_pages,
    mm_anon_pages,
    mm_swap_pages,
    mm_shmem_pages,
    mm_page_table_bytes,
    css_parent,
    cgroup_root,
    root_hierarchy_id,
    kn_name,
    /// The css embedded in every memory cgroup.
    mem_cgroup_css,
    mem_cgroup_usage,
    mem_cgroup_max,
    oom_control_memcg,
    oom_control_constraint,
    /// An `int`.
    oom_control_order,
    /// Not an offset: 1 when the counters of `mm` can be read by pointer, because they are not in
    /// an array of typedefs (6.2 and newer).
    mm_counters_are_typed,
}
