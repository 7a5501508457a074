use super::*;
use crate::decide::attribution::CgroupIndex;
use crate::decide::ended::KEPT;
use crate::decide::testing::{key, oom_kill, register, registered};
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{CgroupId, CgroupLineage, ProcessKey};
use crate::model::pod::{PodUid, QosClass};

const KUBEPODS: CgroupId = CgroupId(1);
const QOS: CgroupId = CgroupId(2);
const POD: CgroupId = CgroupId(3);
const CONTAINER: CgroupId = CgroupId(4);
/// Made by the container below itself.
const NESTED: CgroupId = CgroupId(5);
const ELSEWHERE: CgroupId = CgroupId(99);
/// Of a pod that nobody has registered.
const STRANGE: CgroupId = CgroupId(98);
/// As that, of a class that has a cgroup.
const IN_QOS: CgroupId = CgroupId(97);
/// Of a known pod, and none of its containers.
const IN_POD: CgroupId = CgroupId(96);

fn index() -> CgroupIndex {
    let qos = QosClass::Burstable;
    let mut index = CgroupIndex::default();
    registered(&mut index, KUBEPODS.0, Level::Kubepods);
    registered(&mut index, QOS.0, Level::Qos(qos));
    register(&mut index, [POD.0, CONTAINER.0], qos, "web", "app");
    index
}

/// The record of a kill, as the listener makes it.
fn record_of(kill: &OomKill, index: &CgroupIndex, is_main: Option<bool>) -> Event {
    let attribution = OomAttribution {
        is_main,
        took_container: Some(false),
        ..index.attribute_kill(kill)
    };
    oom_record(kill, &attribution, handled())
}

/// Where a process of `cgroup` is, as the kernel tells it.
fn lineage(cgroup: CgroupId) -> CgroupLineage {
    let below_root = match cgroup {
        NESTED | CONTAINER => [Some(QOS), Some(POD), Some(CONTAINER)],
        POD => [Some(QOS), Some(POD), None],
        STRANGE => [Some(STRANGE), None, None],
        IN_QOS => [Some(QOS), Some(IN_QOS), None],
        IN_POD => [Some(QOS), Some(POD), Some(IN_POD)],
        QOS => [Some(QOS), None, None],
        _ => [None; 3],
    };
    CgroupLineage {
        cgroup_id: cgroup,
        below_root,
        in_root: cgroup != ELSEWHERE,
    }
}

fn kill(victim: CgroupId) -> OomKill {
    let mut kill = oom_kill(1_000, victim);
    kill.victim_cgroup = lineage(victim);
    kill.trigger_cgroup = lineage(victim);
    kill.victim_comm = "java".to_owned();
    kill.anon_bytes = 64 << 20;
    kill
}

fn handled() -> Handled {
    Handled {
        boottime: Duration::from_millis(1_250),
        wall: Duration::from_secs(1_000_000),
    }
}

fn process(cgroup: CgroupId, change: ProcessChange) -> ProcessEvent {
    ProcessEvent {
        at_ns: 1,
        process: ProcessKey {
            pid: 7,
            start_boottime_ns: 5,
        },
        comm: "java".to_owned(),
        cgroup: lineage(cgroup),
        change,
    }
}

#[test]
fn a_kill_has_its_reason_by_victim_and_by_who_it_was() {
    let index = index();
    for (victim, is_main, was_exiting, reason, container) in [
        (CONTAINER, Some(true), false, "OomKilled", Some("app")),
        (CONTAINER, Some(false), false, "OomKilledChild", Some("app")),
        (NESTED, Some(false), false, "OomKilledChild", Some("app")),
        (CONTAINER, Some(true), true, "OomVictimExiting", Some("app")),
        (POD, None, false, "OomKilledInPod", None),
        (IN_POD, None, false, "OomKilledInPod", None),
        (STRANGE, None, false, "OomKilledUnknown", None),
        (IN_QOS, None, false, "OomKilledUnknown", None),
        (QOS, None, false, "OomKilledUnknown", None),
        (ELSEWHERE, None, false, "SystemOom", None),
        (ELSEWHERE, None, true, "OomVictimExiting", None),
    ] {
        let kill = OomKill {
            was_exiting,
            ..kill(victim)
        };
        let record = record_of(&kill, &index, is_main);
        let of = (victim, is_main, was_exiting);
        assert_eq!(record.reason, reason, "{of:?}");
        assert_eq!(record.container.as_deref(), container, "{of:?}");
        let is_known = [CONTAINER, NESTED, POD, IN_POD].contains(&victim);
        assert_eq!(record.pod.is_some(), is_known, "{of:?}");
    }
}

#[test]
fn a_kill_names_whose_limit_it_was() {
    let mib = |n: u64| Some(n << 20);
    let limited = |cgroup: CgroupId| OomKill {
        limit_cgroup: Some(lineage(cgroup)),
        limit_max_bytes: mib(100),
        constraint: Some(OomConstraint::Memcg),
        ..kill(CONTAINER)
    };
    let unlimited = |constraint, method| OomKill {
        constraint,
        method,
        ..kill(CONTAINER)
    };
    let exact = AttributionMethod::Exact;
    for (kill, scope, words) in [
        (
            limited(CONTAINER),
            OomScope::Container,
            "by the limit of 100 MiB of its container",
        ),
        // Set by the workload itself.
        (
            limited(NESTED),
            OomScope::Container,
            "by the limit of 100 MiB of its container",
        ),
        (
            limited(POD),
            OomScope::Pod,
            "by the limit of 100 MiB of its pod",
        ),
        (
            limited(QOS),
            OomScope::Qos,
            "by the limit of 100 MiB of its QoS class",
        ),
        (
            limited(KUBEPODS),
            OomScope::Kubepods,
            "by the limit of 100 MiB of all pods",
        ),
        (
            limited(ELSEWHERE),
            OomScope::Other,
            "by a limit of 100 MiB outside the pods",
        ),
        // Right below a pod, a class or all pods: not the limit of what it lies in.
        (
            limited(IN_POD),
            OomScope::Other,
            "by the limit of 100 MiB of cgroup 96 of nobody known",
        ),
        (
            limited(IN_QOS),
            OomScope::Other,
            "by the limit of 100 MiB of cgroup 97 of nobody known",
        ),
        (
            limited(STRANGE),
            OomScope::Other,
            "by the limit of 100 MiB of cgroup 98 of nobody known",
        ),
        (
            unlimited(Some(OomConstraint::Global), exact),
            OomScope::Node,
            "because the node ran out of memory",
        ),
        (
            unlimited(Some(OomConstraint::Cpuset), exact),
            OomScope::Cpuset,
            "because the allowed NUMA nodes ran out of memory",
        ),
        (
            unlimited(Some(OomConstraint::MemoryPolicy), exact),
            OomScope::Cpuset,
            "because the allowed NUMA nodes ran out of memory",
        ),
        (
            unlimited(None, AttributionMethod::Derived),
            OomScope::Node,
            "because the node ran out of memory",
        ),
        // A limit that nobody could name.
        (
            unlimited(Some(OomConstraint::Memcg), exact),
            OomScope::Other,
            "by a limit of nobody known",
        ),
        (
            OomKill {
                last_reclaim: Some(Reclaim::AtLimit),
                ..unlimited(None, AttributionMethod::None)
            },
            OomScope::Other,
            "by a limit of nobody known",
        ),
        (
            unlimited(None, exact),
            OomScope::Other,
            "because somebody asked for it (SysRq f)",
        ),
        // It may have been the node.
        (
            unlimited(None, AttributionMethod::None),
            OomScope::Other,
            "for a reason that nobody knows",
        ),
    ] {
        let record = record_of(&kill, &index(), Some(true));
        let expected = format!("killed java (pid 1, 64 MiB anonymous) {words}");
        assert_eq!(record.message, expected);
        let Some(EventDetail::Oom(detail)) = record.detail else {
            panic!("{record:?}");
        };
        assert_eq!(detail.scope, scope);
    }
}

#[test]
fn that_a_limit_was_reached_does_not_say_how_it_is_known() {
    let (exact, none) = (AttributionMethod::Exact, AttributionMethod::None);
    let limit = Some(lineage(CONTAINER));
    let (memcg, global) = (OomConstraint::Memcg, OomConstraint::Global);
    for (constraint, limit_cgroup, expected) in [
        (memcg, limit, exact),
        (memcg, None, none),
        (global, None, exact),
    ] {
        let kill = OomKill {
            constraint: Some(constraint),
            limit_cgroup,
            method: exact,
            ..kill(CONTAINER)
        };
        let record = record_of(&kill, &index(), Some(true));
        assert_eq!(record.method, Some(expected), "{kill:?}");
    }
}

#[test]
fn what_is_told_after_its_cgroup_is_gone_is_still_its_pods() {
    let mut index = index();
    index.retire(CONTAINER);
    index.retire(POD);
    let record = record_of(&kill(CONTAINER), &index, Some(true));
    assert_eq!(record.container.as_deref(), Some("app"));
    let exit = ProcessChange::Exit {
        status: ExitStatus::Signal {
            signal: 9,
            core_dumped: false,
        },
        by_oom: true,
    };
    let ended = process(NESTED, exit);
    let record =
        process_record(&ended, &index.attribute(&ended.cgroup), handled()).expect("it was a pod's");
    assert_eq!(
        record.message,
        "java (pid 7) was ended by signal 9, an OOM victim"
    );
    // Long after it, nothing is known but where it was.
    for n in 0..KEPT as u64 {
        let id = CgroupId(1_000 + n);
        let level = Level::Qos(QosClass::Burstable);
        let path = CgroupPath::root();
        index.insert(id, Owner { level, path });
        index.retire(id);
    }
    let record = record_of(&kill(CONTAINER), &index, None);
    assert_eq!((record.pod, record.container), (None, None));
}

#[test]
fn a_cgroup_that_has_the_name_of_one_before_is_not_that_one() {
    let mut index = index();
    index.retire(CONTAINER);
    let again = CgroupId(40);
    let before = index.get(CONTAINER).and_then(|it| it.owner);
    let before = before.expect("it is on its way out");
    index.insert(again, Owner::clone(&before));
    let mut of_before = kill(CONTAINER);
    of_before.limit_cgroup = Some(lineage(CONTAINER));
    let record = record_of(&of_before, &index, Some(true));
    let Some(EventDetail::Oom(detail)) = record.detail else {
        panic!("no detail");
    };
    assert_eq!(detail.victim.cgroup_path.as_deref(), Some("/4"));
}

#[test]
fn processes_and_stalls_of_others_are_no_records_and_their_cgroups_are() {
    let index = index();
    let exec = process(ELSEWHERE, ProcessChange::Exec);
    let of = |lineage: &CgroupLineage| index.attribute(lineage);
    assert!(process_record(&exec, &of(&exec.cgroup), handled()).is_none());
    let strange = process(STRANGE, ProcessChange::Exec);
    let strange =
        process_record(&strange, &of(&strange.cgroup), handled()).expect("below kubepods");
    assert_eq!(strange.pod, None);
    assert_eq!(strange.method, Some(AttributionMethod::None));
    let stall = |cgroup| StallEvent {
        at_ns: 1,
        pid: 7,
        cgroup: lineage(cgroup),
        kind: StallKind::MemcgReclaim,
        duration_ns: 2_500_000,
        reclaimed_pages: 32,
    };
    let stalled = |id| stall_record(&stall(id), &of(&lineage(id)), handled());
    assert!(stalled(ELSEWHERE).is_none());
    assert!(stalled(STRANGE).is_some());
    let record = stalled(NESTED).expect("a pod's");
    assert_eq!(
        record.message,
        "pid 7 waited 2500 µs at a memory limit, 32 pages reclaimed"
    );
    let cgroup = |id| CgroupEvent {
        at_ns: 1,
        cgroup: lineage(id),
        change: CgroupChange::Removed,
    };
    let record = |id| cgroup_record(&cgroup(id), &of(&lineage(id)), handled());
    let others = record(ELSEWHERE);
    assert_eq!((others.pod, others.method), (None, None));
    // Not the path of the container that it was made in.
    let nested = record(NESTED);
    assert_eq!(nested.container.as_deref(), Some("app"));
    let Some(EventDetail::Cgroup(detail)) = nested.detail else {
        panic!("no detail");
    };
    assert_eq!(detail.cgroup_path, None);
}

#[test]
fn a_record_has_the_time_of_its_event() {
    let index = index();
    let record = record_of(&kill(CONTAINER), &index, Some(true));
    let at = Duration::from_secs(1_000_000) - Duration::from_millis(250);
    assert_eq!(record.time, WallTime::from_epoch(at));
    let Some(EventDetail::Oom(detail)) = record.detail else {
        panic!("no detail");
    };
    assert_eq!(detail.handling_latency_us, 250_000);
    // The clocks were read before the event was written: it is now, and not later.
    let mut early = kill(CONTAINER);
    early.at_ns = 9_000_000_000;
    let record = record_of(&early, &index, Some(true));
    assert_eq!(record.time, WallTime::from_epoch(handled().wall));
}

#[test]
fn missed_kills_are_told_with_their_number_and_why() {
    let index = index();
    for (n, cause, scope, message) in [
        (
            1,
            Cause::Lost,
            None,
            "a process was killed by the OOM killer, nobody knows which: the kernel's report was \
             lost",
        ),
        (
            3,
            Cause::NoPrograms,
            None,
            "3 processes were killed by the OOM killer, nobody knows which: no eBPF program \
             reports kills on this node",
        ),
        (
            1,
            Cause::NoPrograms,
            Some(OomScope::Node),
            "a process was killed by the OOM killer because the node, or NUMA nodes that a task was \
             confined to, ran out of memory, nobody knows which: no eBPF program reports kills on \
             this node",
        ),
    ] {
        let at = Duration::from_millis(1_000);
        let missed = Missed {
            cgroup: CONTAINER,
            n,
            cause,
            at,
        };
        let cgroup = index.get(CONTAINER).expect("it is registered");
        let record = missed_record(&missed, &cgroup, scope, handled());
        assert_eq!(record.message, message);
        assert_eq!(record.detail, Some(EventDetail::Missed { count: n, scope }));
        assert_eq!(record.container.as_deref(), Some("app"));
    }
}

#[test]
fn a_kill_without_names_is_shown_by_its_ids() {
    let mut index = index();
    let (uid, qos) = (PodUid("7141ef4c".into()), QosClass::Burstable);
    let level = Level::Container {
        uid: uid.clone(),
        qos,
        key: key("3f1c"),
    };
    registered(&mut index, STRANGE.0, level);
    let record = record_of(&kill(STRANGE), &index, None);
    assert_eq!((&record.pod, &record.container), (&None, &None));
    assert_eq!(record.pod_uid, Some(uid));
    assert_eq!(record.container_id.as_deref(), Some("3f1c"));
    // It asked for the memory itself.
    let Some(EventDetail::Oom(detail)) = &record.detail else {
        panic!("not about a kill: {record:?}");
    };
    assert_eq!(detail.trigger.subject().as_deref(), Some("7141ef4c/3f1c"));
    // A name takes the place of an id.
    let named = record_of(&kill(CONTAINER), &index, None);
    assert_eq!((named.pod_uid, named.container_id), (None, None));
}

#[test]
fn a_kill_in_a_cgroup_of_nobody_known_is_not_the_nodes() {
    for (victim, shown, words) in [
        (STRANGE, Some(98), ", in cgroup 98 of nobody known"),
        (IN_QOS, Some(97), ", in cgroup 97 of nobody known"),
        (IN_POD, Some(96), ", in cgroup 96 of nobody known"),
        (QOS, Some(2), ", in cgroup 2 of nobody known"),
        (POD, None, ""),
        (
            NESTED,
            None,
            "; whether its container ended with it is not known",
        ),
        (ELSEWHERE, None, ""),
    ] {
        let record = record_of(&kill(victim), &index(), None);
        let killed = "killed java (pid 1, 64 MiB anonymous) for a reason that nobody knows";
        assert_eq!(record.message, format!("{killed}{words}"));
        let Some(EventDetail::Oom(detail)) = record.detail else {
            panic!("no detail");
        };
        assert_eq!(detail.victim.unknown_cgroup_id, shown, "{victim:?}");
    }
}

/// CRI-O's program has a cgroup of its own in the pod.
#[test]
fn who_watched_a_container_is_told_by_the_name_of_its_cgroup() {
    let id = "3f1c9a4e7b2d".repeat(6)[..64].to_owned();
    for (name, words, shown) in [
        (
            format!("crio-conmon-{id}.scope"),
            ", which watched container 3f1c9a4e7b2d",
            None,
        ),
        (
            format!("crio-conmon-{id}"),
            ", which watched container 3f1c9a4e7b2d",
            None,
        ),
        (
            "strange".to_owned(),
            ", in cgroup 96 of nobody known",
            Some(96),
        ),
    ] {
        let mut kill = kill(IN_POD);
        kill.victim_names = ["burstable", "pod-web", name.as_str()].map(str::to_owned);
        let record = record_of(&kill, &index(), None);
        assert!(record.message.ends_with(words), "{}", record.message);
        assert_eq!(record.reason, "OomKilledInPod");
        let Some(EventDetail::Oom(detail)) = record.detail else {
            panic!("no detail");
        };
        assert_eq!(detail.victim.unknown_cgroup_id, shown, "{name}");
    }
}
