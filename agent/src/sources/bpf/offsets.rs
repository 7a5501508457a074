//! The offsets that the programs need, looked up in the running kernel's BTF.
//!
//! Invariant: a field that the kernel lacks, or has in another size, is [`abi::ABSENT`], but for names, which
//! may be longer; what that switches off is decided by `probe`.

use ebpf_abi as abi;

use super::super::btf::{Btf, BtfError};

/// Every type that [`resolve`] looks into; to be named when the BTF is parsed.
pub(super) const TYPES: &[&str] = &[
    "cgroup",
    "cgroup_root",
    "cgroup_subsys_id",
    "cgroup_subsys_state",
    "cred",
    "css_set",
    "kernfs_node",
    "mem_cgroup",
    "mm_struct",
    "oom_control",
    "pid",
    "pid_namespace",
    "signal_struct",
    "task_struct",
    "upid",
];

/// Forms of the counters of `mm_struct`: an array of structures from 6.2 on, a structure with an
/// array of typedefs before.
const TYPED_COUNTERS: &str = "rss_stat[0].count";

/// `memory_is_unified`: the memory controller lives on cgroup v2.
pub(super) fn resolve(btf: &Btf<'_>, memory_is_unified: bool) -> abi::Offsets {
    let find = |structure, paths: &[&str], size| {
        let found = paths.iter().find_map(|path| {
            let field = btf.field(structure, path).ok()?;
            (field.size == size).then_some(field.offset)
        });
        found.unwrap_or(abi::ABSENT)
    };
    let field = |structure, path| find(structure, &[path], 8);
    let word = |structure, path| find(structure, &[path], 4);
    // include/linux/mm_types_task.h: 0 file, 1 anon, 2 swap, 3 shmem; unchanged from 4.5 to 7.2.
    let counter = |index| {
        let typed = format!("rss_stat[{index}].count");
        let array = format!("rss_stat.count[{index}]");
        find("mm_struct", &[&typed, &array], 8)
    };
    let embedded = |structure, path| btf.field(structure, path).map(|it| it.offset);
    // No more than that is read of it.
    let comm = btf.field("task_struct", "comm").ok();
    let comm = comm.filter(|it| it.size as usize >= abi::COMM_LEN);
    let namespaces = [
        word("pid", "level"),
        embedded("pid", "numbers").unwrap_or(abi::ABSENT),
        field("upid", "ns"),
        field("pid_namespace", "child_reaper"),
    ];
    let thread_pid = match namespaces.contains(&abi::ABSENT) {
        true => abi::ABSENT,
        false => field("task_struct", "thread_pid"),
    };
    let [pid_level, pid_numbers, upid_ns, pid_namespace_child_reaper] = namespaces;
    abi::Offsets {
        task_tgid: word("task_struct", "tgid"),
        task_pid: word("task_struct", "pid"),
        task_comm: comm.map_or(abi::ABSENT, |it| it.offset),
        task_start_boottime: find("task_struct", &["start_boottime", "real_start_time"], 8),
        task_group_leader: field("task_struct", "group_leader"),
        task_real_parent: field("task_struct", "real_parent"),
        task_cgroups: field("task_struct", "cgroups"),
        task_signal: field("task_struct", "signal"),
        task_mm: field("task_struct", "mm"),
        task_cred: field("task_struct", "cred"),
        task_exit_code: word("task_struct", "exit_code"),
        task_thread_pid: thread_pid,
        pid_level,
        pid_numbers,
        upid_ns,
        pid_namespace_child_reaper,
        cred_uid: word("cred", "uid"),
        signal_oom_mm: field("signal_struct", "oom_mm"),
        signal_oom_score_adj: find("signal_struct", &["oom_score_adj"], 2),
        signal_live: word("signal_struct", "live"),
        signal_flags: word("signal_struct", "flags"),
        signal_group_exit_code: word("signal_struct", "group_exit_code"),
        mm_total_vm: field("mm_struct", "total_vm"),
        mm_file_pages: counter(0),
        mm_anon_pages: counter(1),
        mm_swap_pages: counter(2),
        mm_shmem_pages: counter(3),
        mm_page_table_bytes: field("mm_struct", "pgtables_bytes"),
        css_set_dfl_cgrp: field("css_set", "dfl_cgrp"),
        css_set_memory: memory_css(btf).unwrap_or(abi::ABSENT),
        css_cgroup: field("cgroup_subsys_state", "cgroup"),
        css_parent: field("cgroup_subsys_state", "parent"),
        cgroup_kn: field("cgroup", "kn"),
        cgroup_level: word("cgroup", "level"),
        cgroup_root: field("cgroup", "root"),
        root_hierarchy_id: word("cgroup_root", "hierarchy_id"),
        kn_id: field("kernfs_node", "id"),
        kn_name: field("kernfs_node", "name"),
        kn_parent: find("kernfs_node", &["__parent", "parent"], 8),
        mem_cgroup_css: embedded("mem_cgroup", "css").unwrap_or(abi::ABSENT),
        mem_cgroup_usage: field("mem_cgroup", "memory.usage"),
        mem_cgroup_max: field("mem_cgroup", "memory.max"),
        oom_control_memcg: field("oom_control", "memcg"),
        oom_control_constraint: word("oom_control", "constraint"),
        oom_control_order: word("oom_control", "order"),
        mm_counters_are_typed: btf.field("mm_struct", TYPED_COUNTERS).is_ok().into(),
        exit_has_group_dead: btf
            .tracepoint("sched_process_exit")
            .is_ok_and(|it| it.len() > 1)
            .into(),
        memory_is_unified: memory_is_unified.into(),
    }
}

/// Where a task's set of css has that of the memory controller.
fn memory_css(btf: &Btf<'_>) -> Result<u32, BtfError> {
    let index = btf.enumerator("cgroup_subsys_id", "memory_cgrp_id")?;
    btf.field("css_set", &format!("subsys[{index}]"))
        .map(|it| it.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::btf::tests::with_bytes;

    #[test]
    fn a_name_of_a_process_may_be_longer_than_what_is_read_of_it() {
        for (n_bytes, is_there) in [(8, false), (15, false), (16, true), (64, true)] {
            let bytes = with_bytes("task_struct", "comm", n_bytes);
            let btf = Btf::parse(&bytes, TYPES).expect("it is BTF");
            let found = resolve(&btf, true).task_comm;
            assert_eq!(found != abi::ABSENT, is_there, "{n_bytes} bytes: {found}");
        }
    }
}
