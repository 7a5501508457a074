use std::collections::{BTreeMap, BTreeSet};

use super::pod::{BARRED, no_record};
use super::*;
use crate::model::admission::{
    AdmissionReport, Alignment, ContainerHoldings, Provider, ProviderVerdict, Refusal,
    RefusalReason, Remedy, Verdict,
};
use crate::model::container::PodPhase;
use crate::model::eviction::{StallSource, StallTotals};
use crate::model::numa::{Hint, NumaMask};
use crate::model::placement::MemoryBlock;
use crate::model::pod::PodUid;
use crate::model::status::tests::example_status;
use crate::model::status::{
    CpuPools, DeviceCounts, ExclusiveCpus, KubeletStatus, NumaAmounts, NumaNodeStatus,
    PlacementStatus,
};
use crate::model::time::WallTime;
use crate::model::topology::NumaNodeId;
use crate::observe::protocol::{PodExplanation, PodExplanationKind};

fn cpus(text: &str) -> crate::model::cpuset::CpuSet {
    text.parse().expect("a CPU list")
}

/// Two NUMA nodes of four CPUs, and GPUs; the pod `default/database` holds some of each.
fn example_placement() -> PlacementStatus {
    let numa_node = |id: u32, all: &str, free: &str, reserved: u64| {
        let amounts = |allocatable: u64, reserved: u64, of_system: u64| NumaAmounts {
            allocatable: allocatable << 20,
            reserved: reserved << 20,
            free: (allocatable - reserved) << 20,
            system_reserved: Some(of_system << 20),
        };
        let of_system = if id == 0 { 100 } else { 0 };
        NumaNodeStatus {
            id: NumaNodeId(id),
            cpus: cpus(all),
            free_cpus: Some(cpus(free)),
            memory: BTreeMap::from([
                ("memory".into(), amounts(4096, reserved, of_system)),
                ("hugepages-1Gi".into(), amounts(0, 0, 0)),
                ("hugepages-2Mi".into(), amounts(64, 0, of_system)),
            ]),
        }
    };
    let exclusive = |uid: &str, pod: Option<&str>, list: &str| ExclusiveCpus {
        uid: PodUid(uid.into()),
        pod: pod.map(str::to_owned),
        container: Some("main".into()),
        cpus: cpus(list),
    };
    let gpus = DeviceCounts {
        capacity: Some(4),
        allocatable: 3,
        allocated: 1,
    };
    PlacementStatus {
        holdings: BTreeMap::new(),
        policies: PlacementPolicies {
            cpu_manager: "static".into(),
            cpu_manager_options: BTreeMap::from([("full-pcpus-only".into(), "true".into())]),
            memory_manager: "Static".into(),
            topology_manager: "restricted".into(),
            topology_manager_scope: "container".into(),
            topology_manager_options: BTreeMap::new(),
        },
        cpus: Some(CpuPools {
            shared: cpus("0-1,4-5"),
            reserved: Some(cpus("0")),
            exclusive: vec![
                exclusive("6a1f", Some("default/database"), "2-3"),
                exclusive("9999", None, "6-7"),
            ],
        }),
        numa_nodes: vec![
            numa_node(0, "0-3", "1", 256),
            numa_node(1, "4-7", "4-5", 4096),
        ],
        devices: BTreeMap::from([("example.com/gpu".into(), gpus)]),
    }
}

fn hint(ids: &[u32], preferred: bool) -> Hint {
    let mask = NumaMask::new(ids.iter().map(|it| NumaNodeId(*it)));
    Hint {
        numa: mask.ok(),
        preferred,
    }
}

fn verdict(provider: Provider, resource: &str, verdict: Verdict) -> ProviderVerdict {
    ProviderVerdict {
        provider,
        resource: resource.into(),
        verdict,
        alone: Some(hint(&[0], true)),
        without: Some(hint(&[0, 1], false)),
    }
}

fn one_of(first: Vec<Hint>, n_masks: Option<u64>) -> Verdict {
    Verdict::OneOf {
        narrowest: 1,
        preferred_len: Some(1),
        first,
        n_masks,
    }
}

fn explanation(report: Option<&AdmissionReport>) -> PodExplanation {
    let mut status = example_status();
    let mut pod = status.pods.remove(0);
    let pressure = status.node.pressure.unwrap_or_default();
    pod.qos_reason = Some("the containers' requests of cpu and memory equal the limits".into());
    PodExplanation {
        is_managed: true,
        api_version: ApiVersion::V1Alpha1,
        kind: PodExplanationKind::PodExplanation,
        pod,
        placement: Some(example_placement()),
        eviction: pressure.standing_of(&PodUid("6a1f".into())),
        record: report.map(|report| {
            serde_json::json!({
                "input": {"settings": {"config": {
                    "cpuManagerPolicy": "static",
                    "memoryManagerPolicy": "Static",
                    "topologyManagerPolicy": "restricted",
                    "topologyManagerScope": "container",
                }}},
                "report": report,
            })
        }),
        record_fault: None,
        oom_records: Vec::new(),
        oom_records_fault: None,
    }
}

fn admitted() -> AdmissionReport {
    let anywhere = verdict(Provider::Memory, "memory", Verdict::Any);
    let gpu = one_of(vec![hint(&[0], true), hint(&[0, 1], false)], Some(2));
    let cpu = vec![hint(&[0], true), hint(&[1], true), hint(&[0, 1], false)];
    AdmissionReport {
        alignments: vec![
            Alignment {
                container: Some("prepare".into()),
                providers: Vec::new(),
                merged: Hint {
                    numa: None,
                    preferred: true,
                },
                is_admitted: true,
                is_cut: false,
            },
            Alignment {
                container: Some("main".into()),
                providers: vec![
                    verdict(Provider::Devices, "example.com/gpu", gpu),
                    verdict(Provider::Cpu, "cpu", one_of(cpu, Some(3))),
                    anywhere,
                ],
                merged: hint(&[0], true),
                is_admitted: true,
                is_cut: false,
            },
        ],
        holdings: vec![ContainerHoldings {
            container: "main".into(),
            cpus: Some(cpus("2-3")),
            memory: vec![MemoryBlock {
                numa: NumaMask::from_bits(1),
                resource: "memory".into(),
                size: 256 << 20,
            }],
            devices: BTreeMap::from([(
                "example.com/gpu".into(),
                BTreeSet::from(["gpu-0".into(), "gpu-1\x1b[2J".into()]),
            )]),
        }],
        refusal: None,
        remedies: Vec::new(),
    }
}

fn refused() -> AdmissionReport {
    let many = Verdict::OneOf {
        narrowest: 3,
        preferred_len: Some(2),
        first: Vec::new(),
        n_masks: None,
    };
    let some = one_of(vec![hint(&[0, 2, 3], false)], Some(5));
    AdmissionReport {
        alignments: vec![Alignment {
            container: Some("main".into()),
            providers: vec![
                verdict(Provider::Devices, "example.com/gpu", Verdict::Impossible),
                verdict(Provider::Cpu, "cpu", some),
                verdict(Provider::Memory, "memory", many),
            ],
            merged: hint(&[0, 2, 3], false),
            is_admitted: false,
            is_cut: true,
        }],
        holdings: Vec::new(),
        refusal: Some(Refusal {
            reason: RefusalReason::TopologyAffinityError,
            message: "Resources cannot be allocated with Topology locality".into(),
            container: Some("main".into()),
        }),
        remedies: vec![
            Remedy::FewerCpus {
                container: "main".into(),
                cpus: 6,
            },
            Remedy::WithoutPod {
                uid: PodUid("6a1f".into()),
            },
            Remedy::WithoutPod {
                uid: PodUid("unknown".into()),
            },
            Remedy::BestEffort,
        ],
    }
}

#[track_caller]
fn check(text: &str, golden: &str) {
    assert_eq!(text, golden.trim_start(), "\n{text}");
}

const ADMITTED: &str = "
default/database: Guaranteed, Running
Guaranteed because the containers' requests of cpu and memory equal the limits
uid 6a1f
cgroup /kubepods/pod6a1f

MAY USE         CPU req/lim  MEMORY req/lim
the pod           500m/500m     256Mi/256Mi
prepare (init)          -/-             -/-
main                    -/-             -/-

WHEN MEMORY RUNS SHORT
place 2 of 3 in the eviction order, priority 0
working set 192Mi, 64Mi below its request of 256Mi; 20Mi could be reclaimed

RUNS ON         CPUS     NUMA  WHOSE
prepare (init)  0-1,4-5  0-1   shared pool
main            2-3      0     its own
  memory 256Mi from NUMA node 0
  example.com/gpu gpu-0, gpu-1?[2J

HOW IT WAS PLACED
policies: CPU static, memory Static, topology restricted (scope container)

prepare: anywhere, no manager had a wish

main: NUMA node 0, preferred by all
  MANAGER  RESOURCE         COULD TAKE IT FROM  NEEDS  AT BEST  ALONE  WITHOUT
  devices  example.com/gpu  0*, 0-1                 1        1  0*     0-1
  cpu      cpu              0*, 1*, 0-1             1        1  0*     0-1
  memory   memory           anywhere                -        -  0*     0-1

* preferred: on an empty node no fewer NUMA nodes would do
alone, without: the choice if only this manager, or all but it, had a wish
";

#[test]
fn a_pod_that_runs_is_explained() {
    check(
        &render_pod(&explanation(Some(&admitted())), 80, false),
        ADMITTED,
    );
}

#[test]
fn what_of_a_manifest_is_done_otherwise_is_shown_as_text() {
    let mut explained = explanation(None);
    assert!(!render_pod(&explained, 80, false).contains("WARNINGS"));
    explained.pod.warnings = ["spec.hostname: is ignored", "b\x1b[2J: unknown"]
        .map(str::to_owned)
        .into();
    let shown = render_pod(&explained, 80, false);
    let list = "\nWARNINGS\nspec.hostname: is ignored\nb?[2J: unknown\n\n";
    assert!(shown.contains(list), "{shown}");
}

#[test]
fn what_a_pod_waited_for_memory_is_shown_with_where_it_is_from() {
    let mut explained = explanation(None);
    let mut text = |pod: [Option<StallTotals>; 2]| {
        let [whole, main] = pod;
        explained.pod.memory_stall = whole;
        explained.pod.containers[1].memory_stall = main;
        render_pod(&explained, 80, false)
    };
    let psi = |some_us, full_us| {
        Some(StallTotals {
            source: StallSource::Psi,
            some_us,
            full_us: Some(full_us),
        })
    };
    assert!(!text([None, None]).contains("WAITED"));
    let shown = text([psi(2_500_000, 1800), psi(84, 0)]);
    let table = "
WAITED FOR MEMORY   SOME     ALL
the pod            2.5 s  1.8 ms
main               84 us    0 us

";
    assert!(shown.contains(table), "{shown}");
    let reclaim = StallTotals {
        source: StallSource::Reclaim,
        some_us: 84,
        full_us: None,
    };
    let table = "
WAITED FOR MEMORY   SOME  ALL
the pod            84 us    -
in reclaim, summed over tasks: the kernel keeps no PSI

";
    let shown = text([Some(reclaim), None]);
    assert!(shown.contains(table), "{shown}");
}

const REFUSED: &str = "
default/database: Guaranteed, Failed
Guaranteed because the containers' requests of cpu and memory equal the limits
uid 6a1f
cgroup not made

MAY USE         CPU req/lim  MEMORY req/lim
the pod           500m/500m     256Mi/256Mi
prepare (init)          -/-             -/-
main                    -/-             -/-

HOW IT WAS PLACED
policies: CPU static, memory Static, topology restricted (scope container)

main: refused: the best there is, NUMA nodes 0,2-3, is not preferred by all, as restricted wants
  chosen over 0*
  the search was ended early: there may be a better one
  MANAGER  RESOURCE         COULD TAKE IT FROM  NEEDS  AT BEST  ALONE  WITHOUT
  devices  example.com/gpu  nowhere                 -        -  0*     0-1
  cpu      cpu              {0,2-3} and 4 more      1        1  0*     0-1
  memory   memory           many sets               3        2  0*     0-1

* preferred: on an empty node no fewer NUMA nodes would do
alone, without: the choice if only this manager, or all but it, had a wish

REFUSED: TopologyAffinityError: Resources cannot be allocated with Topology locality (container main)
at that time it would have fit if
  container main asks for 6 CPUs or fewer
  pod default/database goes away
  pod unknown goes away
  topologyManagerPolicy is best-effort
";

#[test]
fn a_pod_that_was_refused_is_told_what_would_let_it_in() {
    let mut explained = explanation(Some(&refused()));
    explained.pod.phase = PodPhase::Failed;
    explained.pod.cgroup_path = None;
    explained.eviction = None;
    check(&render_pod(&explained, 80, false), REFUSED);
}

#[test]
fn a_pod_that_the_node_has_no_room_for_is_not_explained_by_places() {
    let refusal = Refusal {
        reason: RefusalReason::OutOfCpu,
        message: "Node didn't have enough resource: cpu".into(),
        container: None,
    };
    let report = AdmissionReport {
        refusal: Some(refusal.clone()),
        ..AdmissionReport::default()
    };
    let mut explained = explanation(Some(&report));
    let record = explained.record.as_mut().expect("it was given one");
    record["input"]["barred"] = serde_json::to_value(&refusal).expect("plain data");
    let text = render_pod(&explained, 80, false);
    let (_, end) = text.split_once("REFUSED: OutOfcpu: ").expect("it says so");
    let wanted = format!("{}\n{BARRED}\n", refusal.message);
    assert_eq!(end, wanted);
    assert!(!text.contains("HOW IT WAS PLACED"), "{text}");
    assert!(!text.contains("would let it in"), "{text}");
}

#[test]
fn a_pod_without_a_record_runs_in_the_shared_pool() {
    let mut explained = explanation(None);
    explained.pod.uid = PodUid("other".into());
    let text = render_pod(&explained, 80, false);
    assert!(text.contains("0-1,4-5  0-1   shared pool"), "{text}");
    assert!(text.contains(no_record(true)), "{text}");
    explained.placement = None;
    let text = render_pod(&explained, 80, false);
    assert!(text.contains("everybody's"), "{text}");
}

#[test]
fn a_record_that_is_not_understood_takes_nothing_else_along() {
    let mut explained = explanation(None);
    explained.record = Some(serde_json::json!({"report": 1}));
    let text = render_pod(&explained, 80, false);
    assert!(text.contains("is not understood"), "{text}");
    assert!(text.contains("2-3"), "{text}");
    explained.record = None;
    explained.record_fault = Some("it is of \x1b[1m other size".into());
    let text = render_pod(&explained, 80, false);
    assert!(
        text.contains("cannot be shown: it is of ?[1m other size"),
        "{text}"
    );
}

const NODE: &str = "
worker-1
policies: CPU static (full-pcpus-only=true), memory Static, topology restricted (scope container)

CPU POOL               N  CPUS
shared                 4  0-1,4-5
reserved               1  0
default/database main  2  2-3
9999 main (gone)       2  6-7

NUMA NODE  CPUS  FREE CPUS  MEMORY free/allocatable  RESERVED
0          0-3   1                      3.7Gi/4.0Gi     100Mi
  hugepages-2Mi 64Mi/64Mi, 100Mi reserved
1          4-7   4-5                        0/4.0Gi         0
  hugepages-2Mi 64Mi/64Mi

DEVICES          CAPACITY  ALLOCATABLE  ALLOCATED
example.com/gpu         4            3          1

RESOURCE  CAPACITY  RESERVED  ALLOCATABLE   REQUESTED   USED
cpu              4      200m        3800m  600m (16%)    25m
memory       8.0Gi     612Mi        7.4Gi  320Mi (4%)  192Mi
pods          1100         0         1100      3 (0%)      -

pressure: MemoryPressure
memory available: 480Mi working set (decides), 1.5Gi estimate, 1.7Gi meminfo

SIGNAL             AVAILABLE  CAPACITY  EVICTS       BELOW        LEFT
memory.available       480Mi     8.0Gi  at once      100Mi       380Mi
                                        after 1m30s  500Mi  met, -20Mi
nodefs.inodesFree          -         -  at once          -           -
pid.available          32000     32768  never            -           -

WOKEN BY                 ARMED
reclaim tracepoints      yes
PSI trigger of the node  no
  a window of 1 s needs CAP_SYS_RESOURCE

EVICTION ORDER (MEMORY)              PRIORITY  REQUEST  WORKING SET  RECLAIMABLE
1 a-namespace-with-a-long-name/hungry-7d9c6b5f4-x2x9z
                                            0     64Mi        1.1Gi         20Mi
2 default/database                          0    256Mi        192Mi         20Mi
3 default/unread                            0        0            -            -

last evicted: default/greedy for memory.available at 2025-11-21T07:26:40.000000Z
  The node was low on resource: memory.
  870Mi freed of 900Mi expected, 23.1 ms from the reading to its last process gone
";

#[test]
fn the_node_is_explained() {
    let mut status = example_status();
    let text = render_node(&status, 80, false);
    assert!(text.contains("not known yet"), "{text}");
    status.node.placement = Some(example_placement());
    check(&render_node(&status, 80, false), NODE);
    let coloured = render_node(&status, 80, true);
    assert!(coloured.contains("\x1b[33m9999 main (gone)"), "{coloured}");
    assert!(coloured.contains("\x1b[31mMemoryPressure"), "{coloured}");
    status.node.pressure = None;
    let text = render_node(&status, 80, false);
    assert!(text.contains("short of is not known yet"), "{text}");
}

#[test]
fn beside_a_kubelet_it_is_said_what_that_goes_by() {
    let mut status = example_status();
    status.agent.mode = "observe".into();
    status.node.kubelet = Some(KubeletStatus {
        asked: None,
        pid: 4711,
        started_at: WallTime::default(),
        files: vec!["/k/config.yaml".into(), "/k/conf.d/a\nb.conf".into()],
        flags: vec!["maxPods".into()],
        changed: Vec::new(),
    });
    let text = render_node(&status, 80, false);
    let goes_by = "kubelet (pid 4711) goes by /k/config.yaml, /k/conf.d/a?b.conf, its command line (maxPods)\n";
    let right =
        format!("{goes_by}another program places pods on this node, and its books are not known\n");
    assert!(text.contains(&right), "{text}");
    status.node.placement = Some(example_placement());
    let text = render_node(&status, 80, false);
    assert!(text.contains(&format!("{goes_by}policies: ")), "{text}");
}

#[test]
fn beside_a_kubelet_what_it_gave_a_container_is_shown_without_a_record() {
    let mut explained = explanation(None);
    explained.is_managed = false;
    let mut placement = example_placement();
    let block = MemoryBlock {
        numa: NumaMask::new([NumaNodeId(0)]).expect("a small id"),
        resource: "memory".into(),
        size: 64 << 20,
    };
    let held = ContainerHoldings {
        container: "main".into(),
        cpus: Some(cpus("2-3")),
        memory: vec![block],
        devices: BTreeMap::new(),
    };
    placement.holdings = BTreeMap::from([(explained.pod.uid.clone(), vec![held])]);
    explained.placement = Some(placement);
    let text = render_pod(&explained, 80, false);
    assert!(
        text.contains("its own\n  memory 64Mi from NUMA node 0\n"),
        "{text}"
    );
    explained.placement = None;
    let text = render_pod(&explained, 80, false);
    assert!(!text.contains("RUNS ON"), "{text}");
}

#[test]
fn a_reading_that_is_old_and_pods_past_the_tenth_are_told() {
    let mut status = example_status();
    let pressure = status.node.pressure.as_mut().expect("the example has it");
    pressure.signals[0].age_ms = Some(12_000);
    pressure.order = vec![pressure.order[1].clone(); 12];
    let text = render_node(&status, 80, false);
    assert!(text.contains("met, -20Mi\n  read 12s ago\n"), "{text}");
    assert!(text.contains("\n10 default/database "), "{text}");
    assert!(text.contains("20Mi\nand 2 more\n"), "{text}");
}

#[test]
fn beside_a_kubelet_it_is_said_that_kubelet_decides() {
    let mut status = example_status();
    status.agent.mode = "observe".into();
    let pressure = status.node.pressure.clone().expect("the example has it");
    let said = |uid: &str| {
        let mut explained = explanation(None);
        explained.is_managed = false;
        explained.eviction = pressure.standing_of(&PodUid(uid.into()));
        render_pod(&explained, 80, false)
    };
    let decides = "kubelet decides, by its rule and by what it reads itself\n";
    let text = said("6a1f");
    let place = "place 2 of 3 in kubelet's eviction order, priority 0\nworking set 192Mi, ";
    assert!(text.contains(place) && text.contains(decides), "{text}");
    let text = said("c0de");
    let never = "WHEN MEMORY RUNS SHORT\nkubelet does not evict it: it is critical\n";
    assert!(text.contains(never), "{text}");
    let text = said("77");
    assert!(!text.contains("kubelet"), "nobody has told: {text}");
    let text = render_node(&status, 80, false);
    assert!(text.contains("KUBELET'S EVICTION ORDER (MEMORY)"), "{text}");
    assert!(text.contains(decides), "{text}");
    let pressure = status.node.pressure.as_mut().expect("the example has it");
    pressure.order.clear();
    let text = render_node(&status, 80, false);
    assert!(
        !text.contains("EVICTION ORDER") && !text.contains(decides),
        "{text}"
    );
}

#[test]
fn what_eviction_would_do_to_a_pod_is_said() {
    let pressure = example_status().node.pressure.expect("the example has it");
    let said = |uid: &str| {
        let mut explained = explanation(None);
        explained.eviction = pressure.standing_of(&PodUid(uid.into()));
        let text = render_pod(&explained, 80, false);
        let section = text.split_once("WHEN MEMORY RUNS SHORT\n");
        section.map(|(_, rest)| rest.split("\n\n").next().unwrap_or_default().to_owned())
    };
    for (uid, expected) in [
        (
            "0c4e",
            Some(
                "place 1 of 3 in the eviction order, priority 0\n\
                 working set 1.1Gi, 1.1Gi above its request of 64Mi; 20Mi could be reclaimed",
            ),
        ),
        (
            "b0b0",
            Some(
                "place 3 of 3 in the eviction order, priority 0\n\
                 what it uses is not known, so it is not chosen",
            ),
        ),
        ("c0de", Some("it is not evicted: it is critical")),
        (
            "dead",
            Some(
                "it was evicted for memory.available at 2025-11-21T07:26:40.000000Z\n\
                 870Mi freed of 900Mi expected, 23.1 ms from the reading to its last process gone",
            ),
        ),
        ("77", None),
    ] {
        assert_eq!(said(uid).as_deref(), expected, "{uid}");
    }
}
