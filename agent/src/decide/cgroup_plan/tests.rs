#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;
use crate::decide::cgroup_files::{FileRules, WeightMap, files_for};
use crate::model::resources::{CgroupResources, CpuBandwidth};
use crate::units::Micros;

fn at(below: &str) -> CgroupPath {
    CgroupPath::root().join(below).unwrap()
}

fn rules(unified: bool) -> FileRules {
    FileRules {
        unified,
        page_size: 4096,
        hugepage_sizes: vec![2 << 20],
        hugetlb_reservations: false,
        memory_and_swap: false,
        swap_max: true,
        devices: true,
        pids: true,
    }
}

fn desired(path: &str, resources: &CgroupResources, unified: bool) -> DesiredCgroup {
    DesiredCgroup {
        path: at(path),
        files: files_for(resources, WeightMap::Linear, &rules(unified)),
        is_sum: false,
    }
}

fn limits(memory: u64, quota: u64) -> CgroupResources {
    CgroupResources {
        cpu_shares: Some(1024),
        cpu_bandwidth: Some(CpuBandwidth {
            quota: Limit::At(quota),
            period: Micros(100_000),
        }),
        memory_max: Some(Limit::At(memory)),
        ..CgroupResources::default()
    }
}

/// A node that does as it is told.
#[derive(Clone, Default)]
struct Node {
    cgroups: BTreeMap<CgroupPath, ObservedCgroup>,
}

impl Node {
    fn apply(&mut self, steps: &[CgroupStep]) {
        for step in steps {
            let seen = self
                .cgroups
                .entry(step.path().clone())
                .or_insert_with(ObservedCgroup::absent);
            match step {
                CgroupStep::Create { .. } | CgroupStep::Repair { .. } => {
                    seen.existence = Existence::Healthy;
                }
                CgroupStep::Write { file, to, .. } => {
                    seen.values.insert(file.clone(), to.clone());
                }
            }
        }
    }

    fn use_memory(&mut self, path: &str, bytes: u64) {
        self.cgroups.get_mut(&at(path)).unwrap().memory_usage = Some(bytes);
    }

    fn writes(&self, desired: &[DesiredCgroup]) -> Vec<String> {
        plan_cgroups(desired, &self.cgroups)
            .steps
            .iter()
            .map(|step| match step {
                CgroupStep::Create { path } => format!("create {}", path.last().unwrap()),
                CgroupStep::Repair { path, .. } => format!("repair {}", path.last().unwrap()),
                CgroupStep::Write { path, file, to, .. } => {
                    format!("{} {}={to}", path.last().unwrap(), file.name)
                }
            })
            .collect()
    }
}

#[test]
fn a_second_plan_is_empty() {
    for unified in [true, false] {
        let wanted = [
            desired("kubepods", &limits(1 << 30, 200_000), unified),
            desired("kubepods/poda", &limits(1 << 20, 50_000), unified),
        ];
        let mut node = Node::default();
        let first = plan_cgroups(&wanted, &node.cgroups);
        assert!(first.steps.len() >= 8, "{first:?}");
        node.apply(&first.steps);
        assert_eq!(
            plan_cgroups(&wanted, &node.cgroups),
            CgroupPlan::default(),
            "unified {unified}"
        );
    }
}

#[test]
fn a_new_cgroup_has_its_values_before_there_is_one_below_it() {
    for unified in [true, false] {
        let wanted = ["kubepods", "kubepods/poda"]
            .map(|path| desired(path, &limits(1 << 30, 100_000), unified));
        let writes = Node::default().writes(&wanted);
        let below = writes.iter().skip_while(|it| *it != "create poda");
        let n_below = writes.len() / 2;
        assert_eq!(below.count(), n_below, "{writes:?}");
        assert!(!is_tighter(None, &FileValue::Number(0)));
    }
}

#[test]
fn growth_goes_down_and_shrinking_goes_up() {
    let tree = |quota| {
        [
            desired("kubepods", &limits(1 << 30, quota), false),
            desired("kubepods/poda", &limits(1 << 30, quota), false),
        ]
    };
    let mut node = Node::default();
    node.apply(&plan_cgroups(&tree(100_000), &node.cgroups).steps);
    assert_eq!(
        node.writes(&tree(200_000)),
        [
            "kubepods cpu.cfs_quota_us=200000",
            "poda cpu.cfs_quota_us=200000"
        ]
    );
    assert_eq!(
        node.writes(&tree(50_000)),
        [
            "poda cpu.cfs_quota_us=50000",
            "kubepods cpu.cfs_quota_us=50000"
        ]
    );
}

#[test]
fn a_degraded_cgroup_is_repaired_and_nothing_else_happens_to_it() {
    let wanted = [desired("kubepods", &limits(1 << 30, 100_000), true)];
    let mut node = Node::default();
    node.apply(&plan_cgroups(&wanted, &node.cgroups).steps);
    node.cgroups.get_mut(&at("kubepods")).unwrap().existence = Existence::Degraded {
        missing: BTreeSet::from(["cpuset".to_owned()]),
    };
    assert_eq!(node.writes(&wanted), ["repair kubepods"]);
}

#[test]
fn a_memory_limit_follows_the_usage_down() {
    let wanted = |memory| [desired("kubepods", &limits(memory, 100_000), true)];
    let mut node = Node::default();
    node.apply(&plan_cgroups(&wanted(100 << 20), &node.cgroups).steps);

    // Nothing is known of the usage: wait.
    let plan = plan_cgroups(&wanted(10 << 20), &node.cgroups);
    assert_eq!((plan.steps.len(), plan.deferred.len()), (0, 1));

    node.use_memory("kubepods", 60 << 20);
    let plan = plan_cgroups(&wanted(10 << 20), &node.cgroups);
    assert_eq!(
        node.writes(&wanted(10 << 20)),
        ["kubepods memory.max=62914560"]
    );
    node.apply(&plan.steps);
    // Still there: nothing to write, and still shown as wanted.
    let plan = plan_cgroups(&wanted(10 << 20), &node.cgroups);
    assert_eq!((plan.steps.len(), plan.deferred.len()), (0, 1));

    // What the kernel drops by itself holds nothing up.
    let mut cached = node.clone();
    let clean = 51 << 20;
    cached
        .cgroups
        .get_mut(&at("kubepods"))
        .unwrap()
        .memory_clean = clean;
    let now = ["kubepods memory.max=10485760"];
    assert_eq!(cached.writes(&wanted(10 << 20)), now);
    cached
        .cgroups
        .get_mut(&at("kubepods"))
        .unwrap()
        .memory_clean = clean - (2 << 20);
    let most = ["kubepods memory.max=12582912"];
    assert_eq!(cached.writes(&wanted(10 << 20)), most);

    node.use_memory("kubepods", 5 << 20);
    let plan = plan_cgroups(&wanted(10 << 20), &node.cgroups);
    assert_eq!(node.writes(&wanted(10 << 20)), now);
    assert!(plan.deferred.is_empty());
    node.apply(&plan.steps);
    assert_eq!(
        plan_cgroups(&wanted(10 << 20), &node.cgroups),
        CgroupPlan::default()
    );
}

/// Seven eighths of it count as clean with each pass.
#[test]
fn a_cgroup_full_of_cache_gets_a_much_lower_limit_in_a_few_passes() {
    const MIB: u64 = 1 << 20;
    let passes = |unified, before: u64, in_use: u64, after: u64| {
        let wanted = |mib: u64| [desired("kubepods", &limits(mib * MIB, 100_000), unified)];
        let mut node = Node::default();
        node.apply(&plan_cgroups(&wanted(before), &node.cgroups).steps);
        let mut usage = before * MIB;
        let mut found = Vec::new();
        loop {
            let seen = node.cgroups.get_mut(&at("kubepods")).unwrap();
            seen.memory_usage = Some(usage);
            seen.memory_clean = usage.saturating_sub(in_use * MIB) / 8 * 7;
            let plan = plan_cgroups(&wanted(after), &node.cgroups);
            let Some(CgroupStep::Write {
                to: FileValue::Limit(Limit::At(bytes)),
                ..
            }) = plan.steps.first()
            else {
                return found;
            };
            usage = usage.min(*bytes);
            found.push(bytes / MIB);
            node.apply(&plan.steps);
        }
    };
    for unified in [true, false] {
        assert_eq!(passes(unified, 100, 5, 10), [20, 10]);
        assert_eq!(passes(unified, 100, 60, 10), [68], "more is in use");
        let slowly = [1536, 1024, 512, 80, 16, 10];
        assert_eq!(passes(unified, 2048, 5, 10), slowly, "512 MiB at once");
        assert_eq!(passes(unified, 2048, 5, 1800), [1800]);
    }
}

/// Who is over it is throttled as long as that is so.
#[test]
fn throttling_begins_no_lower_before_the_limit_is_there() {
    const MIB: u64 = 1 << 20;
    let wanted = |memory, high: u64| {
        let high = ("memory.high".to_owned(), (high * MIB).to_string());
        let resources = CgroupResources {
            unified: BTreeMap::from([high]),
            ..limits(memory * MIB, 100_000)
        };
        [desired("kubepods", &resources, true)]
    };
    let mut node = Node::default();
    node.apply(&plan_cgroups(&wanted(100, 90), &node.cgroups).steps);
    let max = "kubepods memory.max=62914560";
    node.use_memory("kubepods", 60 * MIB);
    assert_eq!(node.writes(&wanted(10, 9)), [max]);
    let higher = [max, "kubepods memory.high=99614720"].map(str::to_owned);
    let found = node.writes(&wanted(10, 95));
    assert!(found.iter().all(|it| higher.contains(it)), "{found:?}");
    assert_eq!(found.len(), 2);
    node.use_memory("kubepods", 5 * MIB);
    assert_eq!(
        node.writes(&wanted(10, 9)),
        [
            "kubepods memory.max=10485760",
            "kubepods memory.high=9437184"
        ]
    );
}

/// The limit of memory and swap together is never below it.
#[test]
fn on_v1_a_memory_limit_follows_the_usage_down_and_that_with_swap_comes_after_it() {
    let wanted = |memory| {
        let resources = CgroupResources {
            memory_and_swap_max: Some(Limit::At(memory)),
            ..limits(memory, 100_000)
        };
        let rules = FileRules {
            memory_and_swap: true,
            ..rules(false)
        };
        [DesiredCgroup {
            path: at("kubepods"),
            files: files_for(&resources, WeightMap::Linear, &rules),
            is_sum: false,
        }]
    };
    let mut before = Node::default();
    before.apply(&plan_cgroups(&wanted(100 << 20), &before.cgroups).steps);
    let after = wanted(10 << 20);
    let both = [
        "kubepods memory.limit_in_bytes=10485760",
        "kubepods memory.memsw.limit_in_bytes=10485760",
    ];
    let usage_of = ["kubepods memory.limit_in_bytes=62914560"];
    let less = ["kubepods memory.limit_in_bytes=12582912"];
    for (usage, clean, expected, n_deferred) in [
        (None, 0_u64, &[][..], 1),
        (Some(60), 0, &usage_of, 1),
        (Some(60), 49, &less, 1),
        (Some(60), 50, &both, 0),
        (Some(10), 0, &both, 0),
        // A reading in the past.
        (Some(120), 0, &[], 1),
    ] {
        let mut node = before.clone();
        let seen = node.cgroups.get_mut(&at("kubepods")).unwrap();
        seen.memory_usage = usage.map(|it: u64| it << 20);
        seen.memory_clean = clean << 20;
        assert_eq!(node.writes(&after), expected, "{usage:?} {clean}");
        let plan = plan_cgroups(&after, &node.cgroups);
        assert_eq!(plan.deferred.len(), n_deferred, "{usage:?} {clean}");
        node.apply(&plan.steps);
        assert_eq!(node.writes(&after), [""; 0], "it stays there");
    }
}

/// Of a pod with two containers of which the first one keeps what it has, and the other one starts again meanwhile.
#[test]
fn a_limit_that_stays_takes_no_room_from_those_beside_it() {
    const MIB: u64 = 1 << 20;
    let wanted = |pod, first| {
        [
            desired("kubepods", &limits(1 << 30, 100_000), true),
            desired("kubepods/pod", &limits(pod * MIB, 100_000), true),
            desired("kubepods/pod/first", &limits(first * MIB, 100_000), true),
        ]
    };
    let of_memory = |it: Vec<String>| -> Vec<String> {
        let of_memory = it.into_iter().filter(|it| it.contains("memory.max"));
        of_memory.collect()
    };
    let mut node = Node::default();
    node.apply(&plan_cgroups(&wanted(112, 96), &node.cgroups).steps);
    let after = wanted(36, 20);
    for (pod, first, expected) in [
        (None, None, &[][..]),
        // Only what the pod uses is known.
        (Some(30), None, &[]),
        (
            Some(49),
            Some(48),
            &["first memory.max=50331648", "pod memory.max=67108864"],
        ),
        (
            Some(30),
            Some(30),
            &["first memory.max=31457280", "pod memory.max=48234496"],
        ),
        (
            Some(60),
            Some(30),
            &["first memory.max=31457280", "pod memory.max=62914560"],
        ),
        (
            Some(30),
            Some(20),
            &["first memory.max=20971520", "pod memory.max=37748736"],
        ),
    ] {
        let mut node = node.clone();
        for (path, mib) in [("kubepods/pod", pod), ("kubepods/pod/first", first)] {
            node.cgroups.get_mut(&at(path)).unwrap().memory_usage = mib.map(|it| it * MIB);
        }
        assert_eq!(
            of_memory(node.writes(&after)),
            expected,
            "{pod:?} {first:?}"
        );
        let plan = plan_cgroups(&after, &node.cgroups);
        node.apply(&plan.steps);
        assert_eq!(of_memory(node.writes(&after)), [""; 0], "it stays there");
        let n_deferred = if first == Some(20) { 0 } else { 2 };
        assert_eq!(plan.deferred.len(), n_deferred, "{pod:?} {first:?}");
    }
}

/// Of a pod whose second container gets what the first one is to give up.
#[test]
fn a_container_that_gets_more_has_it_before_its_neighbour_has_given_it_up() {
    const MIB: u64 = 1 << 20;
    let wanted = |pod, first, second| {
        [
            desired("kubepods", &limits(112 * MIB, 100_000), true),
            DesiredCgroup {
                is_sum: true,
                ..desired("kubepods/pod", &limits(pod * MIB, 100_000), true)
            },
            desired("kubepods/pod/first", &limits(first * MIB, 100_000), true),
            desired("kubepods/pod/second", &limits(second * MIB, 100_000), true),
        ]
    };
    let limits_of = |node: &Node| -> Vec<u64> {
        let all = node.cgroups.values().map(|it| {
            let mut values = it.values.iter();
            let limit = values.find(|(file, _)| file.name == "memory.max");
            match limit {
                Some((_, FileValue::Limit(Limit::At(bytes)))) => bytes / MIB,
                other => panic!("{other:?}"),
            }
        });
        all.collect()
    };
    let mut before = Node::default();
    before.apply(&plan_cgroups(&wanted(112, 96, 16), &before.cgroups).steps);
    for (pod, second, expected) in [
        (112, 92, [112, 140, 48, 92]),
        (132, 112, [112, 160, 48, 112]),
        (100, 80, [112, 128, 48, 80]),
        (60, 40, [112, 88, 48, 40]),
    ] {
        let after = wanted(pod, 20, second);
        let mut node = before.clone();
        for (path, mib) in [
            ("", 70),
            ("/pod", 60),
            ("/pod/first", 48),
            ("/pod/second", 8),
        ] {
            node.use_memory(&format!("kubepods{path}"), mib * MIB);
        }
        node.apply(&plan_cgroups(&after, &node.cgroups).steps);
        assert_eq!(limits_of(&node), expected, "pod {pod}");
        let plan = plan_cgroups(&after, &node.cgroups);
        assert_eq!((plan.steps.len(), plan.deferred.len()), (0, 2), "pod {pod}");
        node.use_memory("kubepods/pod/first", 20 * MIB);
        node.apply(&plan_cgroups(&after, &node.cgroups).steps);
        assert_eq!(limits_of(&node), [112, pod, 20, second], "pod {pod}");
    }
}

/// Its containers may have more than that together.
#[test]
fn a_limit_that_a_pod_has_of_its_own_never_rises_for_its_containers() {
    const MIB: u64 = 1 << 20;
    for (unified, lowered) in [
        (true, "pod memory.max=94371840"),
        (false, "pod memory.limit_in_bytes=94371840"),
    ] {
        let wanted = |pod: u64, first, second| {
            [
                ("kubepods", 1024),
                ("kubepods/pod", pod),
                ("kubepods/pod/first", first),
                ("kubepods/pod/second", second),
            ]
            .map(|(path, mib)| desired(path, &limits(mib * MIB, 100_000), unified))
        };
        let mut node = Node::default();
        node.apply(&plan_cgroups(&wanted(100, 100, 100), &node.cgroups).steps);
        for (path, mib) in [("pod", 90), ("pod/first", 45), ("pod/second", 45)] {
            node.use_memory(&format!("kubepods/{path}"), mib * MIB);
        }
        for (after, expected) in [
            (wanted(100, 20, 100), &[][..]),
            (wanted(40, 40, 40), &[lowered]),
        ] {
            let mut of_pod = node.writes(&after);
            of_pod.retain(|it| it.starts_with("pod "));
            assert_eq!(of_pod, expected, "unified {unified}");
        }
    }
}

#[test]
fn no_opinion_leaves_every_file_alone() {
    for unified in [true, false] {
        let nothing = desired("kubepods", &CgroupResources::default(), unified);
        assert_eq!(nothing.files, [], "unified {unified}");
        let only_huge = CgroupResources {
            hugetlb: Some(BTreeMap::new()),
            ..CgroupResources::default()
        };
        let files = desired("kubepods", &only_huge, unified).files;
        let values: Vec<_> = files.iter().map(|(_, value)| value.clone()).collect();
        assert_eq!(
            values,
            [FileValue::Limit(Limit::At(0))],
            "unified {unified}"
        );
    }
}

fn list(ids: &str) -> FileValue {
    FileValue::List(ids.parse().unwrap())
}

/// A cgroup of which only the CPUs matter.
fn on_cpus(path: &str, ids: &str) -> DesiredCgroup {
    let resources = CgroupResources {
        cpuset_cpus: Some(ids.parse().unwrap()),
        ..CgroupResources::default()
    };
    desired(path, &resources, false)
}

#[test]
fn a_cpuset_is_never_wider_than_its_parents() {
    let tree = |parent, child| {
        [
            on_cpus("kubepods", parent),
            on_cpus("kubepods/poda", child),
            on_cpus("kubepods/podb", child),
        ]
    };
    for ((parent0, child0), (parent1, child1)) in [
        (("0-1", "0"), ("0-3", "2-3")),
        (("0-3", "2-3"), ("0-1", "0")),
        (("0-1", "1"), ("1-2", "2")),
        (("0-1", "0-1"), ("2-3", "2-3")),
        (("0-3", "0-3"), ("0-3", "1,3")),
    ] {
        let mut node = Node::default();
        node.apply(&plan_cgroups(&tree(parent0, child0), &node.cgroups).steps);
        let wanted = tree(parent1, child1);
        let plan = plan_cgroups(&wanted, &node.cgroups);
        for step in &plan.steps {
            node.apply(std::slice::from_ref(step));
            let cpus = |path: &str| match node.cgroups[&at(path)].values.values().next() {
                Some(FileValue::List(cpus)) => cpus.clone(),
                other => panic!("{other:?}"),
            };
            for child in ["kubepods/poda", "kubepods/podb"] {
                assert!(cpus(child).is_subset(&cpus("kubepods")), "{step:?}");
            }
        }
        assert_eq!(plan_cgroups(&wanted, &node.cgroups), CgroupPlan::default());
    }
}

#[test]
fn a_cpuset_without_cgroups_below_moves_in_one_step() {
    let mut node = Node::default();
    node.apply(&plan_cgroups(&[on_cpus("pod/app", "0-1")], &node.cgroups).steps);
    assert_eq!(
        node.writes(&[on_cpus("pod/app", "1-2")]),
        ["app cpuset.cpus=1-2"]
    );
}

#[test]
fn a_masked_cpuset_is_told_and_not_written_again() {
    let wanted = [on_cpus("pod/app", "0-3")];
    let mut node = Node::default();
    node.apply(&plan_cgroups(&wanted, &node.cgroups).steps);
    let file = wanted[0].files[0].0.clone();
    let seen = node.cgroups.get_mut(&at("pod/app")).unwrap();
    seen.effective.insert(file.clone(), "0-1".parse().unwrap());
    let plan = plan_cgroups(&wanted, &node.cgroups);
    assert_eq!(plan.steps, []);
    assert_eq!(
        plan.ineffective,
        [Ineffective {
            path: at("pod/app"),
            file,
            wanted: "0-3".parse().unwrap(),
            effective: "0-1".parse().unwrap(),
        }]
    );
}

#[test]
fn a_cpuset_that_has_lost_its_last_cpu_gets_its_processes_back() {
    let mut node = Node::default();
    node.apply(&plan_cgroups(&[on_cpus("pod/app", "1")], &node.cgroups).steps);
    let wanted = [on_cpus("pod/app", "2")];
    let file = wanted[0].files[0].0.clone();
    let seen = node.cgroups.get_mut(&at("pod/app")).unwrap();
    seen.values.insert(file.clone(), list(""));
    assert_eq!(node.writes(&wanted), ["app cpuset.cpus=2", "repair app"]);

    // On v2 they have stayed.
    let mut on_v2 = node.clone();
    let seen = on_v2.cgroups.get_mut(&at("pod/app")).unwrap();
    seen.effective.insert(file, "0-3".parse().unwrap());
    assert_eq!(on_v2.writes(&wanted), ["app cpuset.cpus=2"]);

    node.apply(&plan_cgroups(&wanted, &node.cgroups).steps);
    assert_eq!(node.writes(&wanted), [""; 0]);
    let seen = node.cgroups.get_mut(&at("pod/app")).unwrap();
    seen.has_lost_processes = true;
    assert_eq!(node.writes(&wanted), ["repair app"], "some were not moved");
}

#[test]
fn an_empty_cpuset_is_no_opinion() {
    for unified in [true, false] {
        let resources = |cpus: &str, mems| CgroupResources {
            cpuset_cpus: Some(cpus.parse().unwrap()),
            cpuset_mems: Some(crate::model::numa::NumaMask::from_bits(mems)),
            ..CgroupResources::default()
        };
        assert_eq!(desired("pod", &resources("", 0), unified).files, []);
        let files = desired("pod", &resources("0,2", 0b110), unified).files;
        let files: Vec<_> = files
            .into_iter()
            .map(|(file, value)| (file.name, value))
            .collect();
        let wanted = [("cpuset.cpus", list("0,2")), ("cpuset.mems", list("1-2"))];
        assert_eq!(files, wanted.map(|(name, value)| (name.to_owned(), value)));
    }
}
