#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use zerocopy::{FromZeros, IntoBytes};

use super::*;

const PAGE: u64 = 4096;

fn comm(name: &str) -> [u8; abi::COMM_LEN] {
    let mut bytes = [0; abi::COMM_LEN];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn name(name: &str) -> [u8; abi::CGROUP_NAME_LEN] {
    // What lies behind the NUL is whatever was there.
    let mut bytes = [b'?'; abi::CGROUP_NAME_LEN];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes[name.len()] = 0;
    bytes
}

fn inside(cgroup_id: u64, below_root: [u64; 3]) -> abi::Lineage {
    abi::Lineage {
        cgroup_id,
        below_root,
        in_root: 1,
        reserved: 0,
    }
}

fn oom_record() -> abi::OomRecord {
    abi::OomRecord {
        at_ns: 5_000,
        victim_start_ns: 4_000,
        victim_cgroup: inside(32, [30, 31, 32]),
        trigger_cgroup: inside(33, [30, 31, 33]),
        limit_cgroup: inside(31, [30, 31, 0]),
        init_cgroup: inside(34, [30, 31, 34]),
        parent_cgroup: inside(35, [30, 31, 35]),
        anon_pages: 2,
        file_pages: 3,
        shmem_pages: 4,
        swap_pages: 5,
        total_vm_pages: 6,
        page_table_bytes: 7,
        limit_usage_pages: 8,
        limit_max_pages: 9,
        victim_comm: comm("hog"),
        trigger_comm: comm("0123456789abcdef"),
        victim_tgid: 100,
        victim_tid: 101,
        victim_uid: 1000,
        victim_parent_tgid: 1,
        trigger_tgid: 102,
        constraint: abi::CONSTRAINT_MEMCG,
        method: abi::METHOD_DERIVED,
        flags: 0,
        oom_score_adj: -998,
        reserved: 0,
        victim_names: ["burstable", "pod-a", ""].map(name),
    }
}

fn process_record(kind: u32, exit_code: u32, flags: u32) -> abi::ProcessRecord {
    abi::ProcessRecord {
        at_ns: 9,
        start_ns: 8,
        cgroup: abi::Lineage {
            cgroup_id: 7,
            ..abi::Lineage::default()
        },
        comm: comm("sh"),
        tgid: 6,
        parent_tgid: 5,
        kind,
        exit_code,
        flags,
        reserved: 0,
    }
}

fn cgroup_record(kind: u32, name: &[u8]) -> abi::CgroupRecord {
    let mut record = abi::CgroupRecord::new_zeroed();
    record.cgroup = inside(3, [3, 0, 0]);
    record.kind = kind;
    record.tgid = 77;
    record.populated = 1;
    record.name[..name.len()].copy_from_slice(name);
    record
}

fn stall_record(kind: u32) -> abi::StallRecord {
    abi::StallRecord {
        at_ns: 50,
        duration_ns: 20,
        reclaimed_pages: 32,
        cgroup: inside(3, [3, 0, 0]),
        tgid: 9,
        kind,
    }
}

#[test]
fn an_oom_record_keeps_its_three_cgroups_apart_and_turns_pages_into_bytes() {
    let Some(KernelEvent::Oom(kill)) = decode(Stream::Oom, oom_record().as_bytes(), PAGE) else {
        panic!("not decoded");
    };
    let lineage = |id, below: [Option<u64>; 3]| CgroupLineage {
        cgroup_id: CgroupId(id),
        below_root: below.map(|it| it.map(CgroupId)),
        in_root: true,
    };
    let expected = OomKill {
        at_ns: 5_000,
        victim: ProcessKey {
            pid: 100,
            start_boottime_ns: 4_000,
        },
        victim_tid: 101,
        victim_comm: "hog".to_owned(),
        victim_uid: 1000,
        victim_parent_pid: 1,
        victim_cgroup: lineage(32, [Some(30), Some(31), Some(32)]),
        victim_names: ["burstable", "pod-a", ""].map(str::to_owned),
        victim_parent_cgroup: lineage(35, [Some(30), Some(31), Some(35)]),
        victim_role: Some(NamespaceRole::Member {
            init: lineage(34, [Some(30), Some(31), Some(34)]),
        }),
        oom_score_adj: -998,
        anon_bytes: 2 * PAGE,
        file_bytes: 3 * PAGE,
        shmem_bytes: 4 * PAGE,
        swap_bytes: 5 * PAGE,
        page_table_bytes: 7,
        total_vm_bytes: 6 * PAGE,
        trigger_pid: 102,
        trigger_comm: "0123456789abcdef".to_owned(),
        trigger_cgroup: lineage(33, [Some(30), Some(31), Some(33)]),
        constraint: Some(OomConstraint::Memcg),
        limit_cgroup: Some(lineage(31, [Some(30), Some(31), None])),
        limit_usage_bytes: Some(8 * PAGE),
        limit_max_bytes: Some(9 * PAGE),
        method: AttributionMethod::Derived,
        was_exiting: false,
        last_reclaim: None,
    };
    assert_eq!(kill, expected);
}

#[test]
fn an_oom_kill_without_a_limiting_cgroup_has_no_limit() {
    let mut record = oom_record();
    record.limit_cgroup = abi::Lineage::default();
    record.flags = abi::OOM_WAS_EXITING | abi::OOM_NAMESPACE_INIT;
    record.init_cgroup = abi::Lineage::default();
    for (constraint, method, expected) in [
        (abi::CONSTRAINT_UNKNOWN, abi::METHOD_NONE, None),
        (
            abi::CONSTRAINT_NONE,
            abi::METHOD_EXACT,
            Some(OomConstraint::Global),
        ),
        (
            abi::CONSTRAINT_CPUSET,
            abi::METHOD_EXACT,
            Some(OomConstraint::Cpuset),
        ),
        (
            abi::CONSTRAINT_MEMORY_POLICY,
            abi::METHOD_EXACT,
            Some(OomConstraint::MemoryPolicy),
        ),
    ] {
        record.constraint = constraint;
        record.method = method;
        let Some(KernelEvent::Oom(kill)) = decode(Stream::Oom, record.as_bytes(), PAGE) else {
            panic!("constraint {constraint} is not decoded");
        };
        assert_eq!(kill.constraint, expected);
        assert_eq!(kill.limit_cgroup, None);
        assert_eq!(kill.limit_max_bytes, None);
        assert_eq!(kill.victim_role, None);
        assert!(kill.was_exiting);
    }
}

#[test]
fn the_first_process_of_a_namespace_is_told() {
    let record = abi::OomRecord {
        flags: abi::OOM_NAMESPACE_INIT,
        ..oom_record()
    };
    let Some(KernelEvent::Oom(kill)) = decode(Stream::Oom, record.as_bytes(), PAGE) else {
        panic!("not decoded");
    };
    assert_eq!(kill.victim_role, Some(NamespaceRole::Init));
}

#[test]
fn the_last_reclaim_is_told() {
    for (flags, expected) in [
        (0, None),
        (abi::OOM_NODE_RECLAIM, Some(Reclaim::ForNode)),
        (abi::OOM_LIMIT_RECLAIM, Some(Reclaim::AtLimit)),
    ] {
        let record = abi::OomRecord {
            flags,
            ..oom_record()
        };
        let Some(KernelEvent::Oom(kill)) = decode(Stream::Oom, record.as_bytes(), PAGE) else {
            panic!("not decoded");
        };
        assert_eq!(kill.last_reclaim, expected);
    }
}

#[test]
fn a_process_record_becomes_its_change() {
    let exit = |status, by_oom| ProcessChange::Exit { status, by_oom };
    let killed = |signal, core_dumped| ExitStatus::Signal {
        signal,
        core_dumped,
    };
    for (kind, code, flags, change) in [
        (
            abi::PROCESS_FORK,
            0,
            0,
            ProcessChange::Fork { parent_pid: 5 },
        ),
        (abi::PROCESS_EXEC, 0, 0, ProcessChange::Exec),
        (abi::PROCESS_EXIT, 0, 0, exit(ExitStatus::Code(0), false)),
        (
            abi::PROCESS_EXIT,
            3 << 8,
            0,
            exit(ExitStatus::Code(3), false),
        ),
        (
            abi::PROCESS_EXIT,
            255 << 8,
            0,
            exit(ExitStatus::Code(255), false),
        ),
        (
            abi::PROCESS_EXIT,
            9,
            abi::PROCESS_BY_OOM,
            exit(killed(9, false), true),
        ),
        (
            abi::PROCESS_EXIT,
            0x80 | 11,
            0,
            exit(killed(11, true), false),
        ),
    ] {
        let record = process_record(kind, code, flags);
        let expected = KernelEvent::Process(ProcessEvent {
            at_ns: 9,
            process: ProcessKey {
                pid: 6,
                start_boottime_ns: 8,
            },
            comm: "sh".to_owned(),
            cgroup: CgroupLineage {
                cgroup_id: CgroupId(7),
                below_root: [None; 3],
                in_root: false,
            },
            change,
        });
        assert_eq!(
            decode(Stream::Process, record.as_bytes(), PAGE),
            Some(expected),
            "kind {kind}, code {code:#x}"
        );
    }
}

#[test]
fn a_cgroup_record_becomes_its_change() {
    for (kind, name, change) in [
        (
            abi::CGROUP_CREATED,
            &b"pod1\0left over"[..],
            CgroupChange::Created {
                name: "pod1".to_owned(),
            },
        ),
        (abi::CGROUP_REMOVED, b"x", CgroupChange::Removed),
        (
            abi::CGROUP_ATTACHED,
            b"",
            CgroupChange::Attached { pid: 77 },
        ),
        (
            abi::CGROUP_POPULATED,
            b"",
            CgroupChange::Populated { populated: true },
        ),
    ] {
        let record = cgroup_record(kind, name);
        match decode(Stream::Cgroup, record.as_bytes(), PAGE) {
            Some(KernelEvent::Cgroup(event)) => assert_eq!(event.change, change),
            other => panic!("kind {kind}: {other:?}"),
        }
    }
}

#[test]
fn a_stall_record_becomes_its_kind() {
    for (kind, expected) in [
        (abi::STALL_MEMCG, StallKind::MemcgReclaim),
        (abi::STALL_DIRECT, StallKind::DirectReclaim),
    ] {
        match decode(Stream::Stall, stall_record(kind).as_bytes(), PAGE) {
            Some(KernelEvent::Stall(event)) => {
                assert_eq!((event.kind, event.duration_ns), (expected, 20));
            }
            other => panic!("kind {kind}: {other:?}"),
        }
    }
}

#[test]
fn a_record_of_another_size_is_malformed() {
    let records = [
        (Stream::Oom, oom_record().as_bytes().to_vec()),
        (
            Stream::Process,
            process_record(abi::PROCESS_EXEC, 0, 0).as_bytes().to_vec(),
        ),
        (
            Stream::Cgroup,
            cgroup_record(abi::CGROUP_REMOVED, b"").as_bytes().to_vec(),
        ),
        (
            Stream::Stall,
            stall_record(abi::STALL_DIRECT).as_bytes().to_vec(),
        ),
    ];
    for (stream, bytes) in records {
        assert!(decode(stream, &bytes, PAGE).is_some(), "{stream:?}");
        for length in 0..bytes.len() {
            let result = decode(stream, &bytes[..length], PAGE);
            assert_eq!(result, None, "{stream:?}, {length} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(decode(stream, &longer, PAGE), None, "{stream:?}, longer");
    }
}

#[test]
fn a_value_that_no_program_writes_is_malformed() {
    let mut score = oom_record();
    score.oom_score_adj = 40_000;
    let mut constraint = oom_record();
    constraint.constraint = 4;
    let mut method = oom_record();
    method.method = 3;
    for record in [score, constraint, method] {
        assert_eq!(decode(Stream::Oom, record.as_bytes(), PAGE), None);
    }
    for kind in [0, 5] {
        let process = process_record(kind, 0, 0);
        assert_eq!(decode(Stream::Process, process.as_bytes(), PAGE), None);
        let cgroup = cgroup_record(kind, b"");
        assert_eq!(decode(Stream::Cgroup, cgroup.as_bytes(), PAGE), None);
        let stall = stall_record(kind);
        assert_eq!(decode(Stream::Stall, stall.as_bytes(), PAGE), None);
    }
}

/// The programs write fields by name, but what is pinned was written by another build: a moved
/// field must change the version.
#[test]
fn fields_lie_where_version_4_has_them() {
    use std::mem::offset_of;
    assert_eq!(abi::VERSION, 4);
    for (name, offset, expected) in [
        (
            "victim_cgroup",
            offset_of!(abi::OomRecord, victim_cgroup),
            16,
        ),
        ("limit_cgroup", offset_of!(abi::OomRecord, limit_cgroup), 96),
        ("init_cgroup", offset_of!(abi::OomRecord, init_cgroup), 136),
        (
            "parent_cgroup",
            offset_of!(abi::OomRecord, parent_cgroup),
            176,
        ),
        ("victim_comm", offset_of!(abi::OomRecord, victim_comm), 280),
        ("victim_tgid", offset_of!(abi::OomRecord, victim_tgid), 312),
        (
            "oom_score_adj",
            offset_of!(abi::OomRecord, oom_score_adj),
            344,
        ),
        (
            "victim_names",
            offset_of!(abi::OomRecord, victim_names),
            352,
        ),
        ("comm", offset_of!(abi::ProcessRecord, comm), 56),
        ("kind", offset_of!(abi::ProcessRecord, kind), 80),
        ("name", offset_of!(abi::CgroupRecord, name), 64),
        ("tgid", offset_of!(abi::StallRecord, tgid), 64),
        ("hierarchy_id", offset_of!(abi::Watch, hierarchy_id), 12),
        ("cgroup", offset_of!(abi::StallTotal, cgroup), 40),
    ] {
        assert_eq!(offset, expected, "{name}");
    }
    let record = oom_record();
    assert_eq!(record.as_bytes()[312..316], 100_u32.to_le_bytes());
    assert_eq!(
        abi::Lineage::read_from_bytes(&record.as_bytes()[96..136])
            .unwrap()
            .cgroup_id,
        31
    );
}
