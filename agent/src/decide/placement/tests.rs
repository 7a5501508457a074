//! Whole admissions on a machine of 2 NUMA nodes with 2 cores of 2 threads each, 8 GiB a node: CPUs 0-3
//! and 4-7, of which CPU 0 is reserved.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::admission::{Outcome, admit};
use super::devices::{PluginAnswer, PluginAnswers, PluginQuestion};
use super::managers::{Managers, PlacementError, PlacementSettings};
use super::record::{AdmissionInput, AdmissionRecord, ReplayError, decide};
use crate::config::{
    Compat, CpuManagerPolicy, MemoryManagerPolicy, NumaReservation, PlacementConfig,
    TopologyManagerPolicy, TopologyManagerScope,
};
use crate::decide::testing::pod as pod_of;
use crate::model::admission::{
    AdmissionReport, AdmissionTally, AlignmentBoundary, AlignmentScope, Attempts, Refusal,
    RefusalReason, Remedy, Verdict,
};
use crate::model::cpuset::{CpuId, CpuSet};
use crate::model::device::{Device, PluginOptions};
use crate::model::numa::{Hint, NumaMask};
use crate::model::pod::{Pod, PodUid};
use crate::model::topology::{CoreId, Cpu, Llc, LlcId, NumaNode, NumaNodeId, PackageId, Topology};
use crate::units::Bytes;

const GIB: u64 = 1 << 30;
const DEVICE: &str = "vendor.example/dev";

pub(crate) fn topology() -> Topology {
    let place = |cpu: u32| Cpu {
        core: CoreId(cpu / 2 * 2),
        package: PackageId(cpu / 4),
        numa_node: NumaNodeId(cpu / 4),
        llc: LlcId(cpu / 4 * 4),
    };
    let cpus_of = |node: u32| (node * 4..node * 4 + 4).map(CpuId).collect::<CpuSet>();
    let node = |id: u32| NumaNode {
        cpus: cpus_of(id),
        memory: Some(Bytes(8 * GIB)),
        distances: (0..2)
            .map(|to| (NumaNodeId(to), if to == id { 10 } else { 20 }))
            .collect(),
        hugepages: BTreeMap::new(),
    };
    Topology {
        cpus: (0..8).map(|cpu| (CpuId(cpu), place(cpu))).collect(),
        numa_nodes: (0..2).map(|id| (NumaNodeId(id), node(id))).collect(),
        llcs: (0..2)
            .map(|id| {
                let llc = Llc {
                    cpus: cpus_of(id),
                    cache_id: Some(id),
                };
                (LlcId(id * 4), llc)
            })
            .collect(),
        offline: CpuSet::new(),
        isolated: CpuSet::new(),
    }
}

fn settings(policy: TopologyManagerPolicy) -> PlacementSettings {
    let amount = |text: &str| text.parse().expect("a quantity");
    PlacementSettings {
        compat: Compat::Ballast,
        config: PlacementConfig {
            cpu_manager_policy: CpuManagerPolicy::Static,
            memory_manager_policy: MemoryManagerPolicy::Static,
            topology_manager_policy: policy,
            reserved_memory: vec![NumaReservation {
                numa_node: NumaNodeId(0),
                limits: BTreeMap::from([("memory".to_owned(), amount("1Gi"))]),
            }],
            cpu_manager_reconcile_period: Duration::from_secs(10),
            ..PlacementConfig::default()
        },
        reserved_system_cpus: None,
        reservation: BTreeMap::from([
            ("cpu".to_owned(), amount("1")),
            ("memory".to_owned(), amount("1Gi")),
        ]),
        topology: topology(),
    }
}

fn managers(policy: TopologyManagerPolicy) -> Managers {
    Managers::new(&settings(policy)).expect("the settings fit the machine")
}

/// A Guaranteed pod with a container for each pair of CPUs and GiB.
fn pod(name: &str, containers: &[(u32, u32)]) -> Pod {
    let blocks = containers.iter().map(|(cpus, gib)| {
        format!("app {{req cpu={cpus} memory={gib}Gi lim cpu={cpus} memory={gib}Gi}}")
    });
    let mut pod = pod_of(&blocks.collect::<Vec<_>>().join(" "));
    pod.uid = PodUid(name.to_owned());
    pod
}

/// Decides with nothing to ask, and takes over the books.
#[track_caller]
fn place(managers: &mut Managers, pod: &Pod) -> AdmissionReport {
    match decide(managers, pod, &PluginAnswers::default()) {
        Outcome::Decided(decided) => {
            *managers = decided.managers;
            decided.report
        }
        Outcome::Ask(question) => panic!("asks {question:?}"),
    }
}

/// What an admission asks of the managers, if it is decided.
fn tally(managers: &Managers, pod: &Pod) -> AdmissionTally {
    match admit(managers, pod, &PluginAnswers::default()) {
        Outcome::Decided(decided) => decided.tally,
        Outcome::Ask(question) => panic!("asks {question:?}"),
    }
}

#[track_caller]
fn refused(managers: &mut Managers, pod: &Pod) -> (RefusalReason, Vec<Remedy>) {
    let before = managers.books();
    let report = place(managers, pod);
    assert_eq!(managers.books(), before, "a refusal changes nothing");
    let refusal = report.refusal.expect("it is refused");
    (refusal.reason, report.remedies)
}

#[test]
fn a_container_gets_its_cpus_and_memory_on_one_numa_node() {
    let mut managers = managers(TopologyManagerPolicy::SingleNumaNode);
    let report = place(&mut managers, &pod("a", &[(4, 6)]));
    assert_eq!(report.refusal, None);
    let [alignment] = report.alignments.as_slice() else {
        panic!("{:?}", report.alignments);
    };
    let node_1 = NumaMask::new([NumaNodeId(1)]).expect("a small id");
    assert_eq!(
        alignment.merged,
        Hint {
            numa: Some(node_1),
            preferred: true
        }
    );
    assert_eq!(report.holdings.len(), 1);
    assert_eq!(
        report.holdings[0].to_string(),
        "app0: CPUs 4-7, memory on NUMA nodes 1"
    );
    assert_eq!(managers.cpu_state().shared_pool.to_string(), "0-3");
}

#[test]
fn what_spans_nodes_is_refused_with_what_each_provider_said_and_what_would_fit() {
    let mut managers = managers(TopologyManagerPolicy::SingleNumaNode);
    let (reason, remedies) = refused(&mut managers, &pod("a", &[(5, 1)]));
    assert_eq!(reason, RefusalReason::TopologyAffinityError);
    assert_eq!(
        remedies,
        [
            Remedy::FewerCpus {
                container: "app0".to_owned(),
                cpus: 4
            },
            Remedy::BestEffort
        ]
    );
    let report = place(&mut managers, &pod("a", &[(5, 1)]));
    let verdicts = &report.alignments[0].providers;
    let cpu = verdicts.iter().find(|it| it.resource == "cpu");
    let Some(Verdict::OneOf { narrowest: 2, .. }) = cpu.map(|it| &it.verdict) else {
        panic!("{verdicts:?}");
    };
}

#[test]
fn a_pod_that_is_in_the_way_is_named() {
    let mut managers = managers(TopologyManagerPolicy::Restricted);
    place(&mut managers, &pod("a", &[(4, 1)]));
    let (_, remedies) = refused(&mut managers, &pod("b", &[(4, 1)]));
    assert!(
        remedies.contains(&Remedy::WithoutPod {
            uid: PodUid("a".to_owned())
        }),
        "{remedies:?}"
    );
    managers.retain(|uid, _| uid.0 != "a");
    assert_eq!(place(&mut managers, &pod("b", &[(4, 1)])).refusal, None);
}

#[test]
fn the_second_container_that_does_not_fit_takes_back_the_first() {
    let mut managers = managers(TopologyManagerPolicy::Restricted);
    let (reason, _) = refused(&mut managers, &pod("a", &[(3, 1), (4, 1), (3, 1)]));
    assert_eq!(reason, RefusalReason::TopologyAffinityError);
    assert_eq!(managers.holders().len(), 0);
}

#[test]
fn without_a_topology_policy_cpus_run_out_unexpectedly_as_in_kubelet() {
    let mut managers = managers(TopologyManagerPolicy::None);
    let report = place(&mut managers, &pod("a", &[(8, 1)]));
    let refusal = report.refusal.expect("one CPU is reserved");
    assert_eq!(refusal.reason, RefusalReason::UnexpectedAdmissionError);
    assert_eq!(
        refusal.message,
        "Allocate failed due to not enough cpus available to satisfy request: requested=8, \
         available=7, which is unexpected"
    );
    assert_eq!(report.alignments, []);
}

#[test]
fn an_admission_again_gives_the_same() {
    let mut managers = managers(TopologyManagerPolicy::Restricted);
    let pod = pod("a", &[(2, 1), (1, 1)]);
    place(&mut managers, &pod);
    let before = managers.books();
    let report = place(&mut managers, &pod);
    assert_eq!(report.refusal, None);
    assert_eq!(managers.books(), before);
}

#[test]
fn in_scope_pod_the_containers_share_one_answer() {
    let mut settings = settings(TopologyManagerPolicy::SingleNumaNode);
    settings.config.topology_manager_scope = TopologyManagerScope::Pod;
    let mut managers = Managers::new(&settings).expect("the settings fit the machine");
    let report = place(&mut managers, &pod("a", &[(2, 1), (2, 1)]));
    assert_eq!(report.alignments.len(), 1);
    assert_eq!(report.alignments[0].container, None);
    assert_eq!(managers.cpu_state().shared_pool.to_string(), "0-3");
}

/// One container has CPUs and memory of its own, the other what else its pod has.
const WHOLE: &str = "pod {req cpu=3 memory=2Gi lim cpu=3 memory=2Gi} \
                     app {req cpu=1 memory=1Gi lim cpu=1 memory=1Gi} app {}";

/// As after its CPU book was lost: the containers that have CPUs alone are known by their cpusets, and not what the
/// pod has.
#[test]
fn a_pod_that_lacks_its_cpus_as_a_whole_is_not_settled() {
    let whole = pod_of(WHOLE);
    let mut settings = settings(TopologyManagerPolicy::SingleNumaNode);
    settings.config.memory_manager_policy = MemoryManagerPolicy::None;
    settings.config.pod_level_resource_managers = true;
    let mut by_container = Managers::new(&settings).expect("the settings fit the machine");
    assert_eq!(place(&mut by_container, &whole).refusal, None);
    assert!(by_container.is_settled(&whole), "nobody gives it any");

    settings.config.topology_manager_scope = TopologyManagerScope::Pod;
    let mut managers = Managers::new(&settings).expect("the settings fit the machine");
    assert_eq!(place(&mut managers, &whole).refusal, None);
    assert!(managers.is_settled(&whole));
    let before = managers.books();
    let mut lost = before.clone();
    lost.cpu.pods.clear();
    for containers in lost.cpu.containers.values_mut() {
        containers.retain(|_, cpus| cpus.len() == 1);
    }
    assert_eq!(managers.adopt(lost).len(), 1, "the pool is larger");
    assert!(!managers.is_settled(&whole));
    assert_eq!(place(&mut managers, &whole).refusal, None);
    assert!(managers.is_settled(&whole));
    assert_eq!(managers.books(), before);
}

#[test]
fn a_container_lacks_memory_that_it_is_to_have_alone_and_has_not() {
    let policy = TopologyManagerPolicy::SingleNumaNode;
    let (guaranteed, shared) = (pod("a", &[(1, 1)]), pod_of("app {req memory=1Gi}"));
    let mut managers = managers(policy);
    for pod in [&guaranteed, &shared] {
        assert_eq!(place(&mut managers, pod).refusal, None);
        assert!(!managers.lacks_memory(pod, "app0"));
    }
    managers.memory = Managers::new(&settings(policy))
        .expect("the settings fit the machine")
        .memory;
    assert!(managers.lacks_memory(&guaranteed, "app0"));
    assert!(!managers.lacks_memory(&guaranteed, "another"));
    assert!(!managers.lacks_memory(&shared, "app0"));
    managers.memory = None;
    assert!(!managers.lacks_memory(&guaranteed, "app0"), "policy None");
}

#[test]
fn a_container_without_memory_of_its_own_has_its_part_where_the_pod_is_placed_as_a_whole() {
    let whole = pod_of(WHOLE);
    let mut settings = settings(TopologyManagerPolicy::SingleNumaNode);
    settings.config.pod_level_resource_managers = true;
    for (scope, is_whole) in [
        (TopologyManagerScope::Container, false),
        (TopologyManagerScope::Pod, true),
    ] {
        settings.config.topology_manager_scope = scope;
        let fresh = Managers::new(&settings).expect("the settings fit the machine");
        let mut managers = fresh.clone();
        assert_eq!(place(&mut managers, &whole).refusal, None);
        assert!(managers.is_settled(&whole), "{scope:?}");
        managers.memory = fresh.memory;
        assert!(!managers.is_settled(&whole), "{scope:?}");
        assert!(managers.lacks_memory(&whole, "app1"), "{scope:?}");
        assert_eq!(managers.lacks_memory(&whole, "app2"), is_whole, "{scope:?}");
    }
}

fn with_device(mut pod: Pod, n: u32) -> Pod {
    let amount = n.to_string().parse().expect("a quantity");
    let resources = &mut pod.containers[0].resources;
    resources.limits.insert(DEVICE.to_owned(), amount);
    pod
}

fn offer(managers: &mut Managers, ids: &[(&str, u32)]) {
    let options = PluginOptions::default();
    managers.devices.connected(DEVICE, 1, options);
    let devices = ids.iter().map(|(id, node)| Device {
        id: (*id).to_owned(),
        is_healthy: true,
        numa: NumaMask::new([NumaNodeId(*node)]).ok(),
    });
    let devices = devices.collect();
    managers.devices.set_devices(DEVICE, 1, devices);
}

#[test]
fn devices_draw_the_rest_to_their_node_and_the_plugin_is_asked_once() {
    let mut managers = managers(TopologyManagerPolicy::SingleNumaNode);
    let pod = with_device(pod("a", &[(2, 1)]), 1);
    assert_eq!(managers.devices.awaited(&pod), Some(DEVICE));
    offer(&mut managers, &[("d0", 1)]);
    assert_eq!(managers.devices.awaited(&pod), None);

    let mut answers = PluginAnswers::default();
    let Outcome::Ask(question) = admit(&managers, &pod, &answers) else {
        panic!("the plugin has to say what comes with its device");
    };
    let ids: BTreeSet<String> = BTreeSet::from(["d0".to_owned()]);
    assert_eq!(
        question,
        PluginQuestion::Allocate {
            resource: DEVICE.to_owned(),
            container: "app0".to_owned(),
            ids
        }
    );
    answers.insert(question, PluginAnswer::Allocated { response: vec![] });
    let Outcome::Decided(decided) = admit(&managers, &pod, &answers) else {
        panic!("everything is known");
    };
    assert_eq!(
        decided.report.holdings[0].to_string(),
        "app0: CPUs 4-5, memory on NUMA nodes 1, vendor.example/dev d0"
    );

    let record = AdmissionRecord::new(
        AdmissionInput {
            settings: settings(TopologyManagerPolicy::SingleNumaNode),
            books: managers.books(),
            pod,
            answers,
            barred: None,
        },
        decided.report,
    );
    let text = serde_json::to_string(&record).expect("plain data");
    let read: AdmissionRecord = serde_json::from_str(&text).expect("the same data");
    let replayed = read.replay().expect("all answers are there");
    assert_eq!(serde_json::to_string(&replayed).expect("plain data"), text);

    let mut barred = record.clone();
    let full = Refusal {
        reason: RefusalReason::OutOfPods,
        message: "no room".to_owned(),
        container: None,
    };
    barred.input.barred = Some(full.clone());
    let replayed = barred.replay().expect("nobody is asked");
    assert_eq!(replayed.report.refusal, Some(full));
    assert!(replayed.report.holdings.is_empty());

    let mut unanswered = record;
    unanswered.input.answers = PluginAnswers::default();
    assert!(matches!(unanswered.replay(), Err(ReplayError::Unanswered)));
}

#[test]
fn settings_that_do_not_fit_name_their_field() {
    let error = |change: fn(&mut PlacementSettings)| {
        let mut settings = settings(TopologyManagerPolicy::SingleNumaNode);
        change(&mut settings);
        let error: PlacementError = Managers::new(&settings).expect_err("it does not fit");
        error.to_string()
    };
    let message = error(|it| {
        it.reservation.remove("cpu");
    });
    assert!(message.contains("kubelet.cpuManagerPolicy"), "{message}");
    let message = error(|it| it.config.reserved_memory.clear());
    assert!(message.contains("kubelet.reservedMemory"), "{message}");
    let message = error(|it| {
        let option = ("fast".to_owned(), "true".to_owned());
        it.config.cpu_manager_policy_options.extend([option]);
    });
    assert!(
        message.contains("kubelet.cpuManagerPolicyOptions"),
        "{message}"
    );
}

#[test]
fn an_admission_counts_what_it_asked_for_and_what_failed() {
    let mut managers = managers(TopologyManagerPolicy::SingleNumaNode);
    let aligned = |n, n_failed| Attempts { n, n_failed };
    let of = |tally: &AdmissionTally, boundary| {
        let key = (boundary, AlignmentScope::Container);
        tally.alignments.get(&key).copied().unwrap_or_default()
    };
    // The third container has no NUMA node for itself.
    let refused = tally(&managers, &pod("a", &[(3, 1), (4, 1), (3, 1)]));
    assert_eq!(
        (refused.cpu, refused.memory),
        (aligned(2, 0), aligned(2, 0))
    );
    assert_eq!(of(&refused, AlignmentBoundary::NumaNode), aligned(3, 1));
    assert_eq!(of(&refused, AlignmentBoundary::UncoreCache), aligned(2, 0));
    assert!(refused.n_steps > 0);

    // What it holds already is asked for again; a cache is counted when it is given.
    let held = pod("b", &[(2, 1)]);
    place(&mut managers, &held);
    let again = tally(&managers, &held);
    assert_eq!((again.cpu, again.memory), (aligned(1, 0), aligned(1, 0)));
    assert_eq!(of(&again, AlignmentBoundary::UncoreCache), aligned(0, 0));
    // Nothing of its own is asked for.
    let shared = pod_of("app {req cpu=100m}");
    assert_eq!(tally(&managers, &shared).cpu, aligned(0, 0));
}

#[test]
fn without_a_promise_of_one_numa_node_none_is_counted() {
    let numa = AlignmentBoundary::NumaNode;
    for (policy, n) in [
        (TopologyManagerPolicy::None, 0),
        (TopologyManagerPolicy::BestEffort, 0),
        (TopologyManagerPolicy::Restricted, 0),
        (TopologyManagerPolicy::SingleNumaNode, 1),
    ] {
        let tally = tally(&managers(policy), &pod("a", &[(2, 1)]));
        let counted = tally.alignments.get(&(numa, AlignmentScope::Container));
        assert_eq!(counted.map_or(0, |it| it.n), n, "{policy:?}");
        assert_eq!(tally.cpu.n, 1, "{policy:?}");
    }
}

#[test]
fn cpus_that_lie_further_apart_than_they_must_are_told_where_it_is_asked_for() {
    let misaligned = |managers: &Managers| {
        let cpu = managers.cpu.as_ref().expect("policy static");
        let misaligned = cpu.misaligned();
        assert_eq!(
            (misaligned.core, misaligned.uncore, misaligned.socket),
            (None, None, None)
        );
        misaligned.numa
    };
    let mut best_effort = managers(TopologyManagerPolicy::BestEffort);
    place(&mut best_effort, &pod("a", &[(2, 1)]));
    assert_eq!(misaligned(&best_effort), Some(0));
    place(&mut best_effort, &pod("b", &[(2, 1)]));
    assert_eq!(misaligned(&best_effort), Some(0));
    // Three CPUs are left, and no node has more than two.
    place(&mut best_effort, &pod("c", &[(3, 1)]));
    assert_eq!(misaligned(&best_effort), Some(1));
    let mut none = managers(TopologyManagerPolicy::None);
    place(&mut none, &pod("a", &[(5, 1)]));
    assert_eq!(misaligned(&none), None);
    let mut wide = managers(TopologyManagerPolicy::BestEffort);
    place(&mut wide, &pod("a", &[(5, 1)]));
    assert_eq!(misaligned(&wide), Some(0), "five CPUs need both nodes");
}
