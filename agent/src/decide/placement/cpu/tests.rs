use std::collections::BTreeMap;

use super::testing::{Random, machine, set};
use super::*;
use crate::decide::placement::hints::Hints;
use crate::decide::testing;
use crate::model::cpuset::CpuId;
use crate::model::topology::NumaNodeId;

fn options(names: &str) -> CpuOptions {
    let gates = CpuGates {
        alpha_options: true,
        beta_options: true,
    };
    let names = names.split_whitespace();
    let options = names.map(|it| (it.to_owned(), "true".to_owned())).collect();
    CpuOptions::parse(&options, gates).expect("options that go together")
}

/// A list of CPUs reserves those, a number leaves the choice.
fn reservation(text: &str) -> CpuReservation {
    match text.strip_prefix('#') {
        Some(n) => CpuReservation {
            n: n.parse().expect("a number"),
            cpus: None,
        },
        None => CpuReservation {
            n: set(text).len(),
            cpus: Some(set(text)),
        },
    }
}

fn settings(name: &str, reserved: &str, names: &str, compat: Compat) -> CpuSettings {
    CpuSettings {
        topology: machine(name),
        options: options(names),
        topology_policy: TopologyManagerPolicy::None,
        reservation: reservation(reserved),
        manages_pod_level: true,
        compat,
    }
}

#[track_caller]
fn manager(name: &str, reserved: &str, names: &str, compat: Compat) -> CpuManager {
    CpuManager::new(settings(name, reserved, names, compat)).expect("settings that fit")
}

/// `init 4 app 2`: a Guaranteed pod of these containers with so many CPUs each.
#[track_caller]
fn pod(uid: &str, containers: &str) -> Pod {
    let words: Vec<&str> = containers.split_whitespace().collect();
    let blocks = words.chunks(2).map(|it| {
        let own = format!("cpu={} memory=1Gi", it[1]);
        format!("{} {{req {own} lim {own}}}", it[0])
    });
    let mut pod = testing::pod(&blocks.collect::<Vec<_>>().join(" "));
    pod.uid = PodUid(uid.to_owned());
    pod
}

fn mask(nodes: &[u32]) -> NumaMask {
    NumaMask::new(nodes.iter().map(|it| NumaNodeId(*it))).expect("small ids")
}

/// On these nodes; on none in particular if there are none.
fn on(nodes: &[u32]) -> Hint {
    Hint {
        numa: (!nodes.is_empty()).then(|| mask(nodes)),
        preferred: true,
    }
}

impl CpuManager {
    /// The CPUs of each container of the pod, or the error of the first that gets none.
    fn admit(&mut self, pod: &Pod, hint: Hint) -> Result<Vec<String>, String> {
        let containers = pod.all_containers();
        containers
            .map(|it| {
                self.allocate(pod, it, hint).map_err(|it| it.to_string())?;
                let held = self.cpus_of(&pod.uid, &it.name);
                Ok(held.map(ToString::to_string).unwrap_or_default())
            })
            .collect()
    }

    #[track_caller]
    fn check(&mut self, (uid, containers): (&str, &str), nodes: &[u32], cpus: &[&str], pool: &str) {
        let given = self.admit(&pod(uid, containers), on(nodes));
        let cpus = cpus.iter().map(|it| (*it).to_owned()).collect();
        assert_eq!(given, Ok(cpus), "{uid}: {containers}");
        assert_eq!(self.shared_pool(), &set(pool), "{uid}: {containers}");
    }
}

const BOTH: [Compat; 2] = [Compat::Ballast, Compat::Kubelet];

#[test]
fn pods_come_and_go() {
    for compat in BOTH {
        let mut cpu = manager("T8", "#2", "", compat);
        assert_eq!(cpu.reserved(), &set("0,8"));
        assert_eq!(cpu.allocatable(), set("1-7,9-15"));
        cpu.check(("p1", "app 4"), &[], &["1-2,9-10"], "0,3-8,11-15");
        cpu.check(("p2", "app 8"), &[], &["4-7,12-15"], "0,3,8,11");
        cpu.check(("p3", "app 1"), &[], &["3"], "0,8,11");
        let before = cpu.clone();
        let refused = pod("p4", "app 2");
        let error = cpu.allocate(&refused, &refused.containers[0], Hint::UNKNOWN);
        let error = error.expect_err("one CPU is left");
        let right = "not enough cpus available to satisfy request: requested=2, available=1";
        assert_eq!(error.to_string(), right);
        assert_eq!(error.reason().as_str(), "UnexpectedAdmissionError");
        assert_eq!(cpu, before);
        cpu.release(&PodUid("p1".to_owned()), "app0");
        assert_eq!(cpu.shared_pool(), &set("0-2,8-11"));
        cpu.check(("p5", "app 3"), &[], &["1,9,11"], "0,2,8,10");
    }
}

#[test]
fn the_nodes_of_the_hint_are_used_up_first() {
    for compat in BOTH {
        let fresh = manager("T8", "#2", "", compat);
        let mut cpu = fresh.clone();
        cpu.check(("p1", "app 4"), &[1], &["4-5,12-13"], "0-3,6-11,14-15");
        cpu.check(("p2", "app 6"), &[1], &["1,6-7,9,14-15"], "0,2-3,8,10-11");
        let mut cpu = fresh.clone();
        cpu.check(
            ("p", "app 10"),
            &[0, 1],
            &["1,4-7,9,12-15"],
            "0,2-3,8,10-11",
        );
        let mut cpu = fresh;
        cpu.check(("p", "app 8"), &[0], &["1-4,9-12"], "0,5-8,13-15");
    }
}

#[test]
fn cpus_of_init_containers_are_used_again() {
    for compat in BOTH {
        let fresh = manager("T8", "#2", "", compat);
        let mut cpu = fresh.clone();
        let right = ["1-2,9-10", "1,9", "2-3,10-11"];
        cpu.check(("p", "init 4 app 2 app 4"), &[], &right, "0,4-8,12-15");
        let mut cpu = fresh.clone();
        cpu.check(
            ("p", "init 1 app 8"),
            &[],
            &["1", "4-7,12-15"],
            "0,2-3,8-11",
        );
        // A sidecar keeps its own.
        let mut cpu = fresh;
        cpu.check(
            ("p", "sidecar 2 app 2"),
            &[],
            &["1,9", "2,10"],
            "0,3-8,11-15",
        );
    }
}

#[test]
fn full_cores_are_given_whole_or_not_at_all() {
    for compat in BOTH {
        let mut cpu = manager("T8", "0", "full-pcpus-only", compat);
        let given = |cpu: &mut CpuManager, n| cpu.admit(&pod("p", n), on(&[]));
        let right = "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2";
        assert_eq!(given(&mut cpu, "app 3"), Err(right.to_owned()));
        let right = "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 14, requested CPUs = 16, CPUs per core = 2";
        assert_eq!(given(&mut cpu, "app 16"), Err(right.to_owned()));
        cpu.check(("p", "app 14"), &[], &["1-7,9-15"], "0,8");
    }
}

/// A restored container of half a core leaves a half behind.
#[test]
fn half_cores_are_no_full_ones() {
    let restored = CpuState {
        shared_pool: set("0,2-15"),
        containers: state_of(&[("old", "app0", "1")]),
        pods: BTreeMap::new(),
    };
    let with = |compat| {
        let mut cpu = manager("T8", "0,8", "full-pcpus-only", compat);
        cpu.start(restored.clone()).expect("a sound state");
        cpu.admit(&pod("p", "app 6"), on(&[0]))
    };
    assert_eq!(with(Compat::Kubelet), Ok(vec!["2-4,9-11".to_owned()]));
    assert_eq!(with(Compat::Ballast), Ok(vec!["2-4,10-12".to_owned()]));
}

#[test]
fn a_running_pod_is_known_before_anything_is_checked() {
    let restored = CpuState {
        shared_pool: set("0,8"),
        containers: state_of(&[("p", "app0", "1-7,9-15")]),
        pods: BTreeMap::new(),
    };
    let with = |compat| {
        let mut cpu = manager("T8", "0,8", "full-pcpus-only", compat);
        cpu.start(restored.clone()).expect("a sound state");
        cpu.admit(&pod("p", "app 14"), on(&[]))
    };
    assert_eq!(with(Compat::Ballast), Ok(vec!["1-7,9-15".to_owned()]));
    let refused = with(Compat::Kubelet).expect_err("no core is free");
    assert!(
        refused.contains("not enough free physical CPUs"),
        "{refused}"
    );
}

/// Of cores of different sizes the averages say nothing.
#[test]
fn full_cores_of_different_sizes_are_still_whole() {
    let mut cpu = manager("hybrid", "0", "full-pcpus-only", Compat::Ballast);
    assert_eq!(cpu.cpus_per_core(), 2);
    cpu.check(("p1", "app 2"), &[], &["2-3"], "0-1,4-5");
    cpu.check(("p2", "app 2"), &[], &["4-5"], "0-1");
    let error = cpu.admit(&pod("p3", "app 2"), on(&[]));
    assert!(error.expect_err("half a core is left").contains("CPUs = 0"));
}

#[test]
fn reserved_cpus_are_those_that_the_allocator_takes_first() {
    for (name, n, right) in [
        ("T1", "#1", "0"),
        ("T1", "#2", "0,4"),
        ("T1", "#3", "0-1,4"),
        ("T9", "#3", "0-1,8"),
        ("T9", "#4", "0-1,8-9"),
    ] {
        let cpu = manager(name, n, "", Compat::Ballast);
        assert_eq!(cpu.reserved(), &set(right), "{n} of {name}");
    }
    let of = |cpu: Option<Quantity>, cpus| CpuReservation::new(cpu.as_ref(), cpus).map(|it| it.n);
    assert_eq!(of(Some(Quantity::from_milli(1100)), None), Ok(2));
    assert_eq!(of(None, Some(set("0-2"))), Ok(3));
    assert_eq!(of(None, None), Err(CpuConfigError::NothingReserved));
}

#[test]
fn settings_that_do_not_fit_the_machine_are_refused() {
    let refused = |it| CpuManager::new(it).expect_err("settings that do not fit");
    let good = settings("T8", "0", "align-by-socket", Compat::Ballast);
    let policy = CpuSettings {
        topology_policy: TopologyManagerPolicy::SingleNumaNode,
        ..good.clone()
    };
    assert_eq!(refused(policy), CpuConfigError::AlignBySocketPolicy);
    let packages = CpuSettings {
        topology: two_packages(),
        ..good.clone()
    };
    let right = CpuConfigError::AlignBySocketTopology {
        n_packages: 2,
        n_numa_nodes: 1,
    };
    assert_eq!(refused(packages), right);
    let unknown = CpuSettings {
        reservation: reservation("0,16"),
        ..good.clone()
    };
    let cpu = CpuId(16);
    assert_eq!(refused(unknown), CpuConfigError::ReservedUnknown { cpu });
    let count = CpuSettings {
        reservation: CpuReservation {
            n: 2,
            cpus: Some(set("0")),
        },
        ..good
    };
    let right = CpuConfigError::ReservedCount {
        cpus: set("0"),
        n: 2,
    };
    assert_eq!(refused(count), right);
}

fn two_packages() -> CpuTopology {
    super::testing::regular(4, 1, |k| (k / 2, 0, 0))
}

#[test]
fn whole_cpus_of_guaranteed_pods_are_exclusive() {
    let of = |pod: &Pod| exclusive_cpus(pod, &pod.containers[0], false);
    for (request, right) in [
        ("2", 2),
        ("2000m", 2),
        ("1500m", 0),
        ("500m", 0),
        ("500u", 0),
    ] {
        assert_eq!(of(&pod("p", &format!("app {request}"))), right, "{request}");
    }
    assert_eq!(of(&testing::pod("app {req cpu=4 memory=1Gi}")), 0);
    for (containers, right) in [
        ("init 2 sidecar 1 init 3 app 2 app 1", 4),
        ("init 8 app 2", 8),
        ("sidecar 1 init 2 app 2", 3),
        ("init 2 sidecar 4 app 1", 5),
    ] {
        assert_eq!(
            exclusive_cpus_of_pod(&pod("p", containers), false),
            right,
            "{containers}"
        );
    }
}

/// `0+ 0,1-`: node 0 preferred, nodes 0 and 1 not.
fn show(hints: Option<Hints>) -> String {
    let hints = hints.and_then(|it| it.list()).expect("an opinion");
    let shown = hints.iter().map(|it| {
        let nodes: Vec<String> = it
            .numa
            .expect("nodes")
            .iter()
            .map(|it| it.to_string())
            .collect();
        format!(
            "{}{}",
            nodes.join(","),
            if it.preferred { '+' } else { '-' }
        )
    });
    shown.collect::<Vec<_>>().join(" ")
}

/// Hints for a container, these CPUs being available and those held by an init container.
#[track_caller]
fn check_hints(name: &str, names: &str, available: &str, reuse: &str, n: usize, right: &str) {
    for compat in BOTH {
        let mut cpu = manager(name, "", names, compat);
        let pod = pod("p", &format!("init {} app {n}", set(reuse).len().max(1)));
        cpu.state.shared_pool = set(available);
        if !reuse.is_empty() {
            cpu.state.containers = state_of(&[("p", "init0", reuse)]);
            cpu.remember(&pod, &pod.init_containers[0], &set(reuse));
        }
        let hints = cpu.hints(&pod, &pod.containers[0]);
        assert_eq!(
            show(hints),
            right,
            "{n} of {available} on {name}, {compat:?}"
        );
    }
}

#[test]
fn hints_prefer_by_capacity_and_list_by_what_is_free() {
    check_hints("T8", "", "0-15", "", 2, "0+ 1+ 0,1-");
    check_hints("T8", "", "1-7,9-15", "", 8, "1+ 0,1-");
    check_hints("T8", "", "3-7,11-15", "", 4, "1+ 0,1-");
    check_hints("T8", "", "3,7,11,15", "", 4, "0,1-");
    check_hints("T8", "", "0-15", "", 10, "0,1+");
    check_hints("T8", "", "1-5,9-13", "", 14, "");
    check_hints("T8", "", "1-3,5-7,9-11,13-15", "4,12", 4, "1+ 0,1-");
    check_hints("T8", "", "2-7,9-15", "1", 8, "0,1-");
    let pairs = "0,1+ 0,2+ 0,3+ 1,2+ 1,3+ 2,3+ 0,1,2- 0,1,3- 0,2,3- 1,2,3- 0,1,2,3-";
    check_hints("T9", "", "0-15", "", 6, pairs);
    check_hints("T9", "align-by-socket", "0-15", "", 6, pairs);
    check_hints(
        "T9",
        "align-by-socket",
        "0-15",
        "",
        2,
        "0+ 1+ 2+ 3+ 0,1+ 0,2- 0,3- 1,2- 1,3- 2,3+ 0,1,2- 0,1,3- 0,2,3- 1,2,3- 0,1,2,3-",
    );
}

#[test]
fn what_is_held_gives_the_hints() {
    let mut cpu = manager("T8", "0,8", "", Compat::Ballast);
    let running = pod("p", "app 4");
    cpu.admit(&running, on(&[1])).expect("room");
    assert_eq!(show(cpu.hints(&running, &running.containers[0])), "1+ 0,1-");
    assert_eq!(show(cpu.pod_hints(&running)), "1+ 0,1-");
    let grown = pod("p", "app 6");
    assert_eq!(show(cpu.hints(&grown, &grown.containers[0])), "");
    assert_eq!(show(cpu.pod_hints(&grown)), "");
    let shared = pod("q", "app 500m");
    assert_eq!(cpu.hints(&shared, &shared.containers[0]), None);
}

fn state_of(assignments: &[(&str, &str, &str)]) -> BTreeMap<PodUid, BTreeMap<String, CpuSet>> {
    let mut containers: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for (pod, container, cpus) in assignments {
        let of_pod = containers.entry(PodUid((*pod).to_owned())).or_default();
        of_pod.insert((*container).to_owned(), set(cpus));
    }
    containers
}

fn state(pool: &str, assignments: &[(&str, &str, &str)]) -> CpuState {
    CpuState {
        shared_pool: set(pool),
        containers: state_of(assignments),
        pods: BTreeMap::new(),
    }
}

#[track_caller]
fn check_start(mut cpu: CpuManager, restored: CpuState, right: Result<&str, &str>) {
    let started = cpu.start(restored).map_err(|it| it.to_string());
    let pool = started.map(|()| cpu.shared_pool().to_string());
    assert_eq!(pool, right.map(str::to_owned).map_err(str::to_owned));
}

#[test]
fn a_state_of_another_machine_is_not_started_on() {
    let strict = "strict-cpu-reservation";
    for compat in BOTH {
        let of = |reserved, names| manager("T2", reserved, names, compat);
        check_start(of("0", ""), CpuState::default(), Ok("0-11"));
        check_start(of("0,6", strict), CpuState::default(), Ok("1-5,7-11"));
        let right = "not all reserved cpus: \"0,6\" are present in defaultCpuSet: \"0-1\"";
        check_start(of("0,6", ""), state("0-1", &[]), Err(right));
        let right = "some of strictly reserved cpus: \"0\" are present in defaultCpuSet: \"0-1\"";
        check_start(of("0,6", strict), state("0-1", &[]), Err(right));
        let right =
            "pod: fakePod, container: 0 cpuset: \"0-2\" overlaps with default cpuset \"2-11\"";
        let restored = state("2-11", &[("fakePod", "0", "0-2")]);
        check_start(of("", ""), restored, Err(right));
        let right =
            "current set of available CPUs \"0-11\" doesn't match with CPUs in state \"0-10\"";
        check_start(of("0", ""), state("0-10", &[]), Err(right));
        let restored = state("", &[("p", "c", "0-11")]);
        check_start(of("", ""), restored, Err("default cpuset cannot be empty"));
    }
}

#[test]
fn strict_reservation_starts_again_with_everything_exclusive() {
    let full = state("", &[("p", "app0", "1-5,7-11")]);
    let of = |compat| manager("T2", "0,6", "strict-cpu-reservation", compat);
    check_start(of(Compat::Ballast), full.clone(), Ok(""));
    let right = Err("default cpuset cannot be empty");
    check_start(of(Compat::Kubelet), full, right);
}

#[track_caller]
fn check_adopt(cpu: &mut CpuManager, restored: CpuState, faults: &[&str], kept: CpuState) {
    let found: Vec<String> = cpu
        .adopt(restored)
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, faults);
    assert_eq!(cpu.state(), &kept);
    assert_eq!(cpu.clone().start(kept), Ok(()), "what was adopted is sound");
}

#[test]
fn a_sound_state_is_adopted_as_it_is() {
    let mut cpu = manager("T8", "#2", "", Compat::Ballast);
    check_adopt(&mut cpu, CpuState::default(), &[], state("0-15", &[]));
    let running = state(
        "0,3-8,11-15",
        &[("p", "init0", "1-2,9-10"), ("p", "app1", "1,9")],
    );
    check_adopt(&mut cpu, running.clone(), &[], running);
}

#[test]
fn what_fits_of_a_spoilt_state_is_kept() {
    let mut cpu = manager("T8", "0,8", "", Compat::Ballast);
    let restored = state(
        "0-3",
        &[
            ("a", "app0", "4,12"),
            ("b", "app0", "12-13"),
            ("b", "app1", "14"),
            ("c", "app0", "15-16"),
            ("d", "app0", "8-9"),
            ("e", "app0", ""),
        ],
    );
    let faults = [
        "pod b, container app0, CPUs 12-13 are given up: 12 belong to pod a",
        "pod c, container app0, CPUs 15-16 are given up: 16 are not online",
        "pod d, container app0, CPUs 8-9 are given up: 8 are reserved",
        "pod e, container app0, CPUs  are given up: there are none",
        "the shared pool is 0-3,5-11,13,15, and not 0-3",
    ];
    let kept = state(
        "0-3,5-11,13,15",
        &[("a", "app0", "4,12"), ("b", "app1", "14")],
    );
    check_adopt(&mut cpu, restored, &faults, kept);
}

#[test]
fn cpus_of_a_pod_as_a_whole_are_kept_together() {
    let mut cpu = manager("T8", "0,8", "", Compat::Ballast);
    let of = |pool, assignments: &[_], cpus| CpuState {
        pods: BTreeMap::from([(PodUid("p".to_owned()), set(cpus))]),
        ..state(pool, assignments)
    };
    let sound = of(
        "0,3-8,11-15",
        &[("p", "app0", "1"), ("p", "app1", "2,9-10")],
        "1-2,9-10",
    );
    check_adopt(&mut cpu, sound.clone(), &[], sound);
    let foreign = of("0,3-8,11-15", &[("p", "app0", "3")], "1-2,9-10");
    let faults = [
        "pod p, CPUs 1-2,9-10 are given up: its containers do not divide them",
        "the shared pool is 0-15, and not 0,3-8,11-15",
    ];
    check_adopt(&mut cpu, foreign, &faults, state("0-15", &[]));
}

/// The way through a CPU gone offline and come back: a new manager adopts the old state.
#[test]
fn cpus_go_offline_and_come_back() {
    let mut cpu = manager("T8", "0,8", "", Compat::Ballast);
    cpu.check(("p", "app 2"), &[], &["1,9"], "0,2-8,10-15");
    cpu.check(("q", "app 2"), &[], &["2,10"], "0,3-8,11-15");
    let all = settings("T8", "0,8", "", Compat::Ballast);
    let rows = (0..16).filter(|it| *it != 9 && *it != 15);
    let rows = rows.map(|it| super::testing::row(it, it % 8, (it % 8 / 4, it % 8 / 4, 0)));
    let fewer = CpuSettings {
        topology: CpuTopology::new(rows).expect("a machine"),
        ..all.clone()
    };
    let mut without = CpuManager::new(fewer).expect("settings that fit");
    let faults = [
        "pod p, container app0, CPUs 1,9 are given up: 9 are not online",
        "the shared pool is 0-1,3-8,11-14, and not 0,3-8,11-15",
    ];
    let kept = state("0-1,3-8,11-14", &[("q", "app0", "2,10")]);
    check_adopt(&mut without, cpu.state().clone(), &faults, kept);
    let mut with = CpuManager::new(all).expect("settings that fit");
    let faults = ["the shared pool is 0-1,3-9,11-15, and not 0-1,3-8,11-14"];
    let kept = state("0-1,3-9,11-15", &[("q", "app0", "2,10")]);
    check_adopt(&mut with, without.state().clone(), &faults, kept);
}

#[test]
fn a_larger_reservation_takes_cpus_that_no_pod_holds() {
    let running = state("0,2-8,10-15", &[("p", "app0", "1,9")]);
    let mut cpu = manager("T8", "#4", "", Compat::Ballast);
    assert_eq!(cpu.reserved(), &set("0-1,8-9"));
    let faults = ["CPUs 0,2,8,10 are reserved in place of 0-1,8-9, which pods hold"];
    check_adopt(&mut cpu, running.clone(), &faults, running.clone());
    // Named CPUs are those and no others.
    let mut cpu = manager("T8", "0-1,8-9", "", Compat::Ballast);
    let faults = [
        "pod p, container app0, CPUs 1,9 are given up: 1,9 are reserved",
        "the shared pool is 0-15, and not 0,2-8,10-15",
    ];
    check_adopt(&mut cpu, running, &faults, state("0-15", &[]));
}

#[test]
fn other_options_move_the_pool_and_nobody_else() {
    let running = state("0,2-8,10-15", &[("p", "app0", "1,9")]);
    let mut cpu = manager("T8", "0,8", "strict-cpu-reservation", Compat::Ballast);
    let faults = ["the shared pool is 2-7,10-15, and not 0,2-8,10-15"];
    let kept = state("2-7,10-15", &[("p", "app0", "1,9")]);
    check_adopt(&mut cpu, running, &faults, kept);
}

/// Without a strict reservation the reserved CPUs are in the pool, and nobody's.
#[test]
fn who_has_no_cpus_of_its_own_keeps_one() {
    let of = |compat| manager("T8", "0,8", "strict-cpu-reservation", compat);
    let all = pod("p", "app 14");
    let error = CpuError::LastShared { requested: 14 };
    for (compat, expected) in [(Compat::Ballast, Err(error)), (Compat::Kubelet, Ok(()))] {
        let mut cpu = of(compat);
        let given = cpu.allocate(&all, &all.containers[0], on(&[0, 1]));
        assert_eq!(given.map(drop), expected, "{compat:?}");
    }
    let mut cpu = of(Compat::Ballast);
    let most = pod("p", "app 13");
    cpu.allocate(&most, &most.containers[0], on(&[0, 1]))
        .expect("room");
    assert_eq!(cpu.shared_pool().len(), 1);
}

#[test]
fn who_has_no_cpus_of_its_own_runs_on_those_of_the_system_where_the_pool_is_empty() {
    for (compat, common) in [(Compat::Ballast, "0,8"), (Compat::Kubelet, "")] {
        let mut cpu = manager("T8", "0,8", "strict-cpu-reservation", compat);
        assert_eq!(cpu.common(), &set("1-7,9-15"), "{compat:?}");
        let faults = cpu.adopt(state("", &[("p", "app0", "1-7,9-15")]));
        assert_eq!(faults, [], "{compat:?}");
        assert_eq!(cpu.common(), &set(common), "{compat:?}");
        assert_eq!(cpu.shared_pool(), &set(""), "{compat:?}");
    }
}

/// A pod of 6 CPUs as a whole.
#[track_caller]
fn pod_of_six(containers: &str) -> Pod {
    let mut whole = pod("p", containers);
    whole.resources = testing::pod("pod {req cpu=6 memory=8Gi lim cpu=6 memory=8Gi}").resources;
    whole
}

#[test]
fn the_cpus_of_a_pod_are_divided_among_its_containers() {
    for compat in BOTH {
        let mut cpu = manager("T8", "0,8", "", compat);
        let whole = pod_of_six("init 2 sidecar 1 init 500m app 2 app 100m");
        cpu.allocate_pod(&whole, on(&[1])).expect("room");
        let of = |name| cpu.cpus_of(&whole.uid, name).map(ToString::to_string);
        let of = |name| of(name).expect("CPUs");
        assert_eq!(of("init0"), "4,12");
        assert_eq!(of("sidecar1"), "4");
        assert_eq!(of("init2"), "5-6,12-14");
        assert_eq!(of("app3"), "5,13");
        assert_eq!(of("app4"), "6,12,14");
        assert_eq!(cpu.shared_pool(), &set("0-3,7-11,15"));
        for name in ["init0", "init2", "app4", "sidecar1"] {
            cpu.release(&whole.uid, name);
            assert_eq!(cpu.shared_pool(), &set("0-3,7-11,15"), "{name}");
        }
        cpu.release(&whole.uid, "app3");
        assert_eq!(cpu.state(), &state("0-15", &[]));
    }
}

/// As after books were lost: what each container runs on is known, and not what the pod has.
#[test]
fn a_pod_that_is_given_its_cpus_gives_back_what_its_containers_had_by_themselves() {
    let whole = pod_of_six("app 2 app 100m");
    let mut cpu = manager("T8", "0,8", "", Compat::Ballast);
    let found = state("0-6,8-14", &[("p", "app0", "7,15")]);
    assert_eq!(cpu.adopt(found), []);
    cpu.allocate_pod(&whole, on(&[0])).expect("room");
    check_books(&cpu);
    cpu.retain(|_, _| false);
    assert_eq!(cpu.state(), &state("0-15", &[]));

    // Where it fails they keep it.
    let found = state("0-6,8-14", &[("p", "app0", "7,15")]);
    assert_eq!(cpu.adopt(found.clone()), []);
    let too_much = pod_of_six("app 2 app 5");
    cpu.allocate_pod(&too_much, on(&[0]))
        .expect_err("7 of 6 CPUs");
    assert_eq!(cpu.state(), &found);
}

#[test]
fn a_pod_whose_parts_exceed_it_leaves_nothing_behind() {
    let whole = pod_of_six("app 4 app 4");
    let with = |compat| {
        let mut cpu = manager("T8", "0,8", "", compat);
        let error = cpu.allocate_pod(&whole, on(&[])).expect_err("8 of 6 CPUs");
        assert!(matches!(error, CpuError::Take(TakeError::NotEnough { .. })));
        cpu.shared_pool().to_string()
    };
    assert_eq!(with(Compat::Ballast), "0-15");
    assert_eq!(with(Compat::Kubelet), "0,4-8,12-15");
    let mut cpu = manager("T8", "0,8", "", Compat::Ballast);
    let error = cpu.allocate_pod(&pod_of_six("app 6 app 100m"), on(&[]));
    assert_eq!(error, Err(CpuError::EmptyPodSharedPool));
    let error = cpu.allocate_pod(&pod_of_six("sidecar 6 init 100m"), on(&[]));
    assert_eq!(error, Err(CpuError::EmptyPodInitPool));
}

/// Every CPU is in the pool or with one pod, and reserved ones are where they belong.
#[track_caller]
fn check_books(cpu: &CpuManager) {
    let mut all = cpu.shared_pool().clone();
    for (uid, containers) in &cpu.state().containers {
        let own = containers
            .values()
            .fold(CpuSet::new(), |sum, it| sum.union(it));
        let own = own.union(cpu.state().pods.get(uid).unwrap_or(&CpuSet::new()));
        assert!(
            own.is_disjoint(&all),
            "{uid} holds {own}, {all} belong to others"
        );
        assert!(own.is_disjoint(cpu.reserved()), "{uid} holds {own}");
        all = all.union(&own);
    }
    assert_eq!(all, cpu.expected_cpus());
    assert_eq!(cpu.clone().start(cpu.state().clone()), Ok(()));
    assert_eq!(cpu.clone().adopt(cpu.state().clone()), []);
}

#[test]
fn whatever_comes_and_goes_the_books_are_right() {
    let mut random = Random::new(4);
    let choices = [
        "",
        "full-pcpus-only",
        "distribute-cpus-across-numa",
        "strict-cpu-reservation",
    ];
    let (mut n_admitted, mut n_refused) = (0, 0);
    for round in 0..60 {
        let number = |random: &mut Random, n| usize::try_from(random.below(n)).expect("fits");
        let names = choices[number(&mut random, 4)];
        let topology = random.odd_machine();
        let reserved = CpuReservation {
            n: number(&mut random, 3).min(topology.n_cpus()),
            cpus: None,
        };
        let mut cpu = CpuManager::new(CpuSettings {
            topology,
            reservation: reserved,
            ..settings("T1", "", names, Compat::Ballast)
        })
        .expect("settings that fit");
        let nodes: Vec<NumaNodeId> = cpu.settings().topology.numa_mask().iter().collect();
        for step in 0..20 {
            let mut size = || 1 + random.below(6);
            let sizes = (size(), size(), size());
            let it = pod(
                &format!("p{}", random.below(6)),
                &format!("init {} app {} app {}", sizes.0, sizes.1, sizes.2),
            );
            let before = cpu.clone();
            if random.is(3) {
                cpu.retain(|uid, _| *uid != it.uid);
                assert!(!cpu.state().containers.contains_key(&it.uid));
            } else {
                let hint = on(&[nodes[number(&mut random, 8) % nodes.len()].0]);
                // As an admission does: on a copy that counts only if all went well.
                let mut copy = cpu.clone();
                if copy.admit(&it, hint).is_ok() {
                    n_admitted += 1;
                    let mut again = copy.clone();
                    again.admit(&it, Hint::UNKNOWN).expect("it runs already");
                    assert_eq!(again, copy, "round {round}, step {step}");
                    if !before.state().containers.contains_key(&it.uid) {
                        again.retain(|uid, _| *uid != it.uid);
                        assert_eq!(again, before, "round {round}, step {step}");
                    }
                    cpu = copy;
                } else {
                    n_refused += 1;
                }
            }
            check_books(&cpu);
        }
    }
    assert!(
        n_admitted > 200 && n_refused > 50,
        "{n_admitted}, {n_refused}"
    );
}
