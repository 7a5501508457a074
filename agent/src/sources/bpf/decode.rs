//! Ring buffer records to [`KernelEvent`]s. Pure: bytes in, an event or nothing out.
//!
//! `None` is a record that no program of ours writes: of the wrong size, or with a value outside of
//! its list. The caller counts it; nothing is guessed.

use ebpf_abi as abi;
use zerocopy::FromBytes;

use super::Stream;
use crate::model::event::{
    AttributionMethod, CgroupChange, CgroupEvent, CgroupId, CgroupLineage, ExitStatus, KernelEvent,
    NamespaceRole, OomConstraint, OomKill, ProcessChange, ProcessEvent, ProcessKey, Reclaim,
    StallEvent, StallKind,
};

/// One record of the ring of `stream`. `page_bytes`: the kernel's page size.
pub(super) fn decode(stream: Stream, bytes: &[u8], page_bytes: u64) -> Option<KernelEvent> {
    match stream {
        Stream::Oom => oom(&read(bytes)?, page_bytes).map(KernelEvent::Oom),
        Stream::Process => process(&read(bytes)?).map(KernelEvent::Process),
        Stream::Cgroup => cgroup(&read(bytes)?).map(KernelEvent::Cgroup),
        Stream::Stall => stall(&read(bytes)?).map(KernelEvent::Stall),
    }
}

/// Exactly one record: a longer one is as foreign as a shorter one.
fn read<T: FromBytes>(bytes: &[u8]) -> Option<T> {
    T::read_from_bytes(bytes).ok()
}

fn oom(record: &abi::OomRecord, page_bytes: u64) -> Option<OomKill> {
    let bytes = |pages: u64| pages.saturating_mul(page_bytes);
    let limited = record.limit_cgroup.cgroup_id != 0;
    Some(OomKill {
        at_ns: record.at_ns,
        victim: ProcessKey {
            pid: record.victim_tgid,
            start_boottime_ns: record.victim_start_ns,
        },
        victim_tid: record.victim_tid,
        victim_comm: text(&record.victim_comm),
        victim_uid: record.victim_uid,
        victim_parent_pid: record.victim_parent_tgid,
        victim_cgroup: lineage(&record.victim_cgroup),
        victim_names: record.victim_names.each_ref().map(|it| text(it)),
        victim_parent_cgroup: lineage(&record.parent_cgroup),
        victim_role: namespace_role(record),
        oom_score_adj: i16::try_from(record.oom_score_adj).ok()?,
        anon_bytes: bytes(record.anon_pages),
        file_bytes: bytes(record.file_pages),
        shmem_bytes: bytes(record.shmem_pages),
        swap_bytes: bytes(record.swap_pages),
        page_table_bytes: record.page_table_bytes,
        total_vm_bytes: bytes(record.total_vm_pages),
        trigger_pid: record.trigger_tgid,
        trigger_comm: text(&record.trigger_comm),
        trigger_cgroup: lineage(&record.trigger_cgroup),
        constraint: match record.constraint {
            abi::CONSTRAINT_UNKNOWN => None,
            abi::CONSTRAINT_NONE => Some(OomConstraint::Global),
            abi::CONSTRAINT_CPUSET => Some(OomConstraint::Cpuset),
            abi::CONSTRAINT_MEMORY_POLICY => Some(OomConstraint::MemoryPolicy),
            abi::CONSTRAINT_MEMCG => Some(OomConstraint::Memcg),
            _ => return None,
        },
        limit_cgroup: limited.then(|| lineage(&record.limit_cgroup)),
        limit_usage_bytes: limited.then(|| bytes(record.limit_usage_pages)),
        limit_max_bytes: limited.then(|| bytes(record.limit_max_pages)),
        method: match record.method {
            abi::METHOD_NONE => AttributionMethod::None,
            abi::METHOD_EXACT => AttributionMethod::Exact,
            abi::METHOD_DERIVED => AttributionMethod::Derived,
            _ => return None,
        },
        was_exiting: record.flags & abi::OOM_WAS_EXITING != 0,
        last_reclaim: last_reclaim(record.flags),
    })
}

fn last_reclaim(flags: u32) -> Option<Reclaim> {
    match flags & (abi::OOM_NODE_RECLAIM | abi::OOM_LIMIT_RECLAIM) {
        abi::OOM_NODE_RECLAIM => Some(Reclaim::ForNode),
        abi::OOM_LIMIT_RECLAIM => Some(Reclaim::AtLimit),
        _ => None,
    }
}

fn namespace_role(record: &abi::OomRecord) -> Option<NamespaceRole> {
    let init = lineage(&record.init_cgroup);
    (record.init_cgroup.cgroup_id != 0).then_some(
        match record.flags & abi::OOM_NAMESPACE_INIT != 0 {
            true => NamespaceRole::Init,
            false => NamespaceRole::Member { init },
        },
    )
}

fn process(record: &abi::ProcessRecord) -> Option<ProcessEvent> {
    let change = match record.kind {
        abi::PROCESS_FORK => ProcessChange::Fork {
            parent_pid: record.parent_tgid,
        },
        abi::PROCESS_EXEC => ProcessChange::Exec,
        abi::PROCESS_EXIT => ProcessChange::Exit {
            status: exit_status(record.exit_code),
            by_oom: record.flags & abi::PROCESS_BY_OOM != 0,
        },
        _ => return None,
    };
    Some(ProcessEvent {
        at_ns: record.at_ns,
        process: ProcessKey {
            pid: record.tgid,
            start_boottime_ns: record.start_ns,
        },
        comm: text(&record.comm),
        cgroup: lineage(&record.cgroup),
        change,
    })
}

/// The encoding of wait(2): a signal in the low 7 bits, or a status in the byte above.
fn exit_status(code: u32) -> ExitStatus {
    let [low, high, ..] = code.to_le_bytes();
    match low & 0x7f {
        0 => ExitStatus::Code(high),
        signal => ExitStatus::Signal {
            signal,
            core_dumped: low & 0x80 != 0,
        },
    }
}

fn cgroup(record: &abi::CgroupRecord) -> Option<CgroupEvent> {
    let change = match record.kind {
        abi::CGROUP_CREATED => CgroupChange::Created {
            name: text(&record.name),
        },
        abi::CGROUP_REMOVED => CgroupChange::Removed,
        abi::CGROUP_ATTACHED => CgroupChange::Attached { pid: record.tgid },
        abi::CGROUP_POPULATED => CgroupChange::Populated {
            populated: record.populated != 0,
        },
        _ => return None,
    };
    Some(CgroupEvent {
        at_ns: record.at_ns,
        cgroup: lineage(&record.cgroup),
        change,
    })
}

fn stall(record: &abi::StallRecord) -> Option<StallEvent> {
    Some(StallEvent {
        at_ns: record.at_ns,
        duration_ns: record.duration_ns,
        kind: match record.kind {
            abi::STALL_MEMCG => StallKind::MemcgReclaim,
            abi::STALL_DIRECT => StallKind::DirectReclaim,
            _ => return None,
        },
        pid: record.tgid,
        cgroup: lineage(&record.cgroup),
        reclaimed_pages: record.reclaimed_pages,
    })
}

pub(super) fn lineage(from: &abi::Lineage) -> CgroupLineage {
    CgroupLineage {
        cgroup_id: CgroupId(from.cgroup_id),
        below_root: from.below_root.map(|id| (id != 0).then_some(CgroupId(id))),
        in_root: from.in_root != 0,
    }
}

/// Up to the first NUL. A process may call itself anything: what is not UTF-8 becomes U+FFFD.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|it| *it == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

#[cfg(test)]
mod tests;
