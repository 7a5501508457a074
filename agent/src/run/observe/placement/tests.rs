use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::decide::placement::tests::topology;
use crate::model::admission::ContainerHoldings;
use crate::model::kubelet_state::cpu::CpuFile;
use crate::model::kubelet_state::device::DeviceFile;
use crate::model::kubelet_state::memory::MemoryFile;
use crate::model::kubelet_state::{CPU_FILE, DEVICE_FILE, MEMORY_FILE, PodEntries};
use crate::model::placement::{
    CpuState, DeviceAllocation, DeviceState, MemoryBlock, MemoryState, MemoryTable, NumaMemory,
};
use crate::model::pod::QosClass;
use crate::model::status::PlacementPolicies;
use crate::model::time::WallTime;
use crate::run::observe::kubelet::tests::Node;

const PLAIN: &str = "/usr/bin/kubelet --root-dir=/etc/state";
const MEMORY: &str = "/usr/bin/kubelet --root-dir=/etc/state --memory-manager-policy=Static";
const NUMBER: &str =
    "/usr/bin/kubelet --root-dir=/etc/state --cpu-manager-policy=static --kube-reserved=cpu=1500m";
/// It would not start so.
const NOTHING: &str = "/usr/bin/kubelet --root-dir=/etc/state --cpu-manager-policy=static";
const STATIC: &str =
    "/usr/bin/kubelet --root-dir=/etc/state --cpu-manager-policy=static --reserved-cpus=0,4";

/// A kubelet with a directory of its state, and where its file of CPUs is.
fn node(name: &str, line: &str) -> (Node, PathBuf) {
    let node = Node::new(name);
    let etc = node.start(42, "kubelet", 0, line);
    fs::create_dir(etc.join("state")).unwrap();
    (node, etc.join("state").join(CPU_FILE))
}

/// As after some time.
fn placement(node: &Node) -> Placement {
    let mut placement = Placement::default();
    for now in [Duration::ZERO, DOUBT] {
        placement.take(found(node), now, |_| true);
    }
    placement
}

fn found(node: &Node) -> Found {
    found_as(node, &Allocatable::Unasked)
}

fn found_as(node: &Node, allocatable: &Allocatable) -> Found {
    let kubelet = node.find("").unwrap();
    Found::read(&kubelet, &node.root(), &topology(), allocatable).unwrap()
}

fn uid() -> PodUid {
    PodUid("uid".to_owned())
}

/// `app` of pod `uid` has CPUs of its own.
fn state(policy: &str, entries: PodEntries) -> String {
    given(["0-1,4-7", "2-3"], policy, entries)
}

/// `own`: the CPUs of `app`.
fn given([shared, own]: [&str; 2], policy: &str, entries: PodEntries) -> String {
    let app = BTreeMap::from([("app".to_owned(), own.parse().unwrap())]);
    let state = CpuState {
        shared_pool: shared.parse().unwrap(),
        containers: BTreeMap::from([(uid(), app)]),
        pods: BTreeMap::new(),
    };
    CpuFile::new(policy, &state).to_text(entries)
}

/// Pod `uid` in the namespace `default`.
fn named(name: &str) -> PodRef {
    PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: uid(),
    }
}

/// `name`: of the pod, in the namespace `default`; `None`: it is gone.
fn status(placement: &Placement, node: &Node, name: Option<&str>) -> PlacementStatus {
    let kubelet = node.find("").unwrap();
    let pod = name.map(named);
    let by_uid = pod.iter().map(|it| (&it.uid, it)).collect();
    let status = placement.status(&kubelet.settings.kubelet, &topology(), Some(&by_uid));
    status.unwrap()
}

#[test]
fn who_has_cpus_of_his_own_is_in_its_files() {
    let (node, file) = node("placement-files", STATIC);
    // By the gates of either version.
    for entries in [PodEntries::No, PodEntries::Yes] {
        fs::write(&file, state("static", entries)).unwrap();
        let found = placement(&node);
        assert_eq!(found.warnings(), [""; 0]);
        assert_eq!(found.cpuset(&uid(), "app").as_deref(), Some("2-3"));
        assert_eq!(found.cpuset(&uid(), "other").as_deref(), Some("0-1,4-7"));
        assert_eq!(found.cpuset(&uid(), ""), None, "nobody has told its name");
        let shown = status(&found, &node, Some("web"));
        let pools = shown.cpus.unwrap();
        assert_eq!(pools.reserved, "0,4".parse().ok());
        assert_eq!(pools.exclusive[0].pod.as_deref(), Some("default/web"));
        let held = &shown.holdings[&uid()];
        assert_eq!((held.len(), &*held[0].container), (1, "app"));
        assert_eq!(held[0].cpus, "2-3".parse().ok());
    }
    // What a pod that is gone had stays in the file for a moment.
    let found = placement(&node);
    let shown = status(&found, &node, None);
    assert!(shown.holdings.is_empty());
    assert_eq!(shown.cpus.unwrap().exclusive[0].pod, None);
    let books = &found.books;
    assert!(books.is_behind(|_| false) && !books.is_behind(|_| true));
}

#[test]
fn a_file_that_cannot_be_used_is_told_and_shows_nothing() {
    let (node, file) = node("placement-broken", STATIC);
    let line = "to whom kubelet has given CPUs is not known: ";
    let spoilt = state("static", PodEntries::No).replace("2-3", "1-3");
    for (text, why) in [
        (None, "there is no /etc/state/cpu_manager_state"),
        (Some("["), "checkpoint is corrupted"),
        (Some("{}"), "checkpoint is corrupted"),
        (Some(&*spoilt), "checkpoint is corrupted"),
    ] {
        fs::remove_file(&file).ok();
        if let Some(text) = text {
            fs::write(&file, text).unwrap();
        }
        let found = placement(&node);
        let warnings = found.warnings();
        let is_told = warnings.len() == 1 && warnings[0].starts_with(line);
        assert!(is_told && warnings[0].ends_with(why), "{why}: {warnings:?}");
        assert_eq!(found.cpuset(&uid(), "app"), None);
        let shown = status(&found, &node, Some("web"));
        assert_eq!((&*shown.policies.cpu_manager, shown.cpus), ("static", None));
    }
}

#[test]
fn what_its_file_says_of_the_policy_goes_before_what_it_was_told() {
    let (node, file) = node("placement-policy", STATIC);
    fs::write(&file, state("none", PodEntries::No)).unwrap();
    let found = placement(&node);
    let right = "kubelet was told cpuManagerPolicy static, and its file is of none: it was told so after its start, or \
                 does not start";
    assert_eq!(found.warnings(), [right]);
    let shown = status(&found, &node, None);
    assert_eq!((&*shown.policies.cpu_manager, shown.cpus), ("none", None));
}

#[test]
fn without_a_policy_nobody_is_placed_and_without_a_kubelet_nothing_is_said() {
    let (node, _) = node("placement-none", PLAIN);
    let found = placement(&node);
    assert_eq!(found.warnings(), [""; 0]);
    assert_eq!(found.cpuset(&uid(), "app"), None);
    let shown = status(&found, &node, None);
    assert_eq!((&*shown.policies.cpu_manager, shown.cpus), ("none", None));
    let unknown = Placement::default();
    assert_eq!(unknown.warnings(), [""; 0]);
    assert_eq!(unknown.cpuset(&uid(), "app"), None);
}

/// Devices lie in kubelet's own directory, whatever its root is.
#[test]
fn devices_are_those_of_pods_that_are_there() {
    let (node, file) = node("placement-devices", PLAIN);
    let root = file.ancestors().nth(3).unwrap();
    let held = DeviceAllocation {
        // One of them is on two NUMA nodes.
        ids: BTreeMap::from([
            (Some(NumaNodeId(0)), ["a".to_owned(), "b".to_owned()].into()),
            (Some(NumaNodeId(1)), ["b".to_owned()].into()),
        ]),
        response: Vec::new(),
    };
    let of_app = BTreeMap::from([("example.com/gpu".to_owned(), held)]);
    let healthy = ["a", "b", "c"].map(str::to_owned);
    let state = DeviceState {
        containers: BTreeMap::from([(uid(), BTreeMap::from([("app".to_owned(), of_app)]))]),
        registered: BTreeMap::from([("example.com/gpu".to_owned(), healthy.into())]),
    };
    let path = root.join("var/lib/kubelet").join(DEVICE_FILE);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, DeviceFile::from(&state).to_text()).unwrap();
    let found = placement(&node);
    assert_eq!(found.warnings(), [""; 0]);
    for (name, n, n_holders) in [(Some("web"), 2, 1), (None, 0, 0)] {
        let shown = status(&found, &node, name);
        let counts = shown.devices["example.com/gpu"];
        let counts = (counts.capacity, counts.allocatable, counts.allocated);
        assert_eq!(counts, (None, 3, n));
        let books = &found.books;
        let held = books.devices_held(|_| name.is_some());
        let by_node: Vec<u64> = held.into_values().collect();
        assert_eq!(by_node, if n == 0 { vec![] } else { vec![2, 1] });
        assert_eq!(shown.holdings.len(), n_holders);
    }
}

/// CPUs 0-3 are on NUMA node 0 and 4-7 on node 1; `app` has 2 and 3.
#[test]
fn what_is_left_is_counted_by_numa_node() {
    for (line, reserved, free) in [
        (STATIC, Some(2), vec![1, 3]),
        // A core of the first node, as kubelet takes it.
        (NUMBER, Some(2), vec![0, 4]),
        (NOTHING, None, vec![]),
    ] {
        let (node, file) = node("placement-gauges", line);
        fs::write(&file, state("static", PodEntries::No)).unwrap();
        let found = placement(&node);
        let shown = status(&found, &node, Some("web"));
        let pod = named("web");
        let of_it = gauges(&shown, &BTreeMap::from([(&pod.uid, &pod)]));
        let pools = of_it.pools.unwrap();
        assert_eq!((pools.shared, pools.exclusive), (6, 2), "{line}");
        let n_free: u64 = free.iter().sum();
        let right = reserved.map(|it| (it, usize::try_from(n_free).unwrap()));
        assert_eq!(pools.reserved.zip(pools.free), right, "{line}");
        let by_node = |of: &BTreeMap<NumaNodeId, u64>| of.values().copied().collect::<Vec<_>>();
        assert_eq!(by_node(&of_it.free_cpus), free, "{line}");
        assert_eq!(by_node(&of_it.exclusive_by_node), [2, 0]);
        let key = ContainerLabels::named("default", "web", "app").to_key();
        assert_eq!(of_it.exclusive, BTreeMap::from([(key.clone(), 2)]));
        let first = NumaMask::new([NumaNodeId(0)]).unwrap();
        assert_eq!(of_it.numa_nodes, BTreeMap::from([(key, first)]));
        let of_gone = gauges(&shown, &BTreeMap::new());
        assert!(of_gone.exclusive.is_empty() && of_gone.numa_nodes.is_empty());
    }
    let (node, _) = node("placement-gauges-none", PLAIN);
    let shown = status(&placement(&node), &node, None);
    assert_eq!(gauges(&shown, &BTreeMap::new()), PlacementGauges::default());
}

/// Settings that the file does not fit were changed since kubelet has started.
#[test]
fn which_cpus_are_reserved_is_told_where_the_file_fits_the_settings() {
    let option =
        |line: &str, name: &str| format!("{line} --cpu-manager-policy-options={name}=true");
    let strict = option(STATIC, "strict-cpu-reservation");
    let whole_cores = option(NUMBER, "full-pcpus-only");
    let none = "/usr/bin/kubelet --root-dir=/etc/state --reserved-cpus=0,4";
    let told = "which CPUs kubelet keeps for the system is not known: ";
    let fewer = format!("{told}current set of available CPUs");
    let nothing = format!("{told}cpuManagerPolicy: ");
    let policy = "kubelet was told cpuManagerPolicy none, and its file is of static: ";
    for (line, given_out, reserved, fault) in [
        (STATIC, ["0-1,4-7", "2-3"], Some("0,4"), None),
        (NUMBER, ["0-1,4-7", "2-3"], Some("0-1"), None),
        (&whole_cores, ["0-1,4-7", "2-3"], Some("0-1"), None),
        (STATIC, ["1,5-7", "2-3"], None, Some(told)),
        // One CPU is nowhere: kubelet has written the half of what it does.
        (STATIC, ["0-1,4-6", "2-3"], None, Some(&*fewer)),
        (STATIC, ["0-1,3-7", "2-3"], None, Some(told)),
        (&strict, ["1,5-7", "2-3"], Some("0,4"), None),
        // All that there is to give.
        (&strict, ["", "1-3,5-7"], Some("0,4"), None),
        (&strict, ["0-1,4-7", "2-3"], None, Some(told)),
        (NOTHING, ["0-1,4-7", "2-3"], None, Some(&nothing)),
        (none, ["0-1,4-7", "2-3"], None, Some(policy)),
    ] {
        let (node, file) = node("placement-reserved", line);
        fs::write(&file, given(given_out, "static", PodEntries::No)).unwrap();
        let found = placement(&node);
        let context = format!("{line} with {given_out:?}: {:?}", found.warnings());
        let shown = status(&found, &node, Some("web"));
        let pools = shown.cpus.unwrap();
        assert_eq!(pools.shared, given_out[0].parse().unwrap(), "{context}");
        let right = reserved.map(|it| it.parse().unwrap());
        assert_eq!(pools.reserved, right, "{context}");
        let are_free = shown.numa_nodes.iter().all(|it| it.free_cpus.is_some());
        assert_eq!(are_free, reserved.is_some(), "{context}");
        let warnings = found.warnings();
        assert_eq!(warnings.len(), usize::from(fault.is_some()), "{context}");
        let is_told = fault.is_none_or(|it| warnings[0].starts_with(it));
        assert!(is_told, "{context}");
    }
}

/// Kubelet writes twice for one change, and nothing at first when it starts.
#[test]
fn what_cannot_be_used_is_told_when_it_stays_so() {
    let (node, file) = node("placement-doubt", STATIC);
    let mut placement = Placement::default();
    // Of `app` the file has it alone that it has these CPUs.
    let mut look = |own: &str, now: u64, is_there: bool| {
        fs::write(&file, given(["0-1,4-7", own], "static", PodEntries::No)).unwrap();
        let now = Duration::from_secs(now);
        let is_new = placement.take(found(&node), now, |_| is_there);
        let shown = placement.cpuset(&uid(), "app").unwrap_or_default();
        let next = match (placement.is_behind, placement.retry_at) {
            (true, _) => "soon",
            (false, Some(at)) if at == now + DOUBT => "later",
            (false, None) => "never",
            other => panic!("{other:?}"),
        };
        (is_new, (shown, placement.warnings().len(), next))
    };
    let seen = |shown: &str, n: usize, next| (shown.to_owned(), n, next);
    // Nothing was known before.
    assert_eq!(look("2", 1, true), (true, seen("", 0, "soon")));
    assert_eq!(look("2-3", 2, true), (true, seen("2-3", 0, "never")));
    assert_eq!(look("2-3", 3, true), (false, seen("2-3", 0, "never")));
    // The first look of another doubt.
    assert_eq!(look("2", 4, true), (false, seen("2-3", 0, "soon")));
    assert_eq!(look("2", 13, true), (false, seen("2-3", 0, "soon")));
    assert_eq!(look("2", 14, true), (true, seen("2", 1, "later")));
    // What is told already is no excuse for another one.
    assert_eq!(look("3", 24, true), (false, seen("2", 1, "soon")));
    assert_eq!(look("2", 25, false), (false, seen("2", 1, "soon")));
    assert_eq!(look("2-3", 35, false), (true, seen("2-3", 0, "soon")));
}

/// It writes its files when it starts.
#[test]
fn each_kubelet_has_its_own_time() {
    let (node, file) = node("placement-other", STATIC);
    fs::write(file, given(["0-1,4-7", "2"], "static", PodEntries::No)).unwrap();
    let mut placement = Placement::default();
    let at = Duration::from_secs;
    let look = |of: &mut Placement, now| {
        of.take(found(&node), at(now), |_| true);
        of.warnings().len()
    };
    assert_eq!(look(&mut placement, 1), 0);
    placement.due = at(9);
    placement.begin_anew();
    assert_eq!(placement.wake(), Some(at(0)));
    assert_eq!(look(&mut placement, 11), 0);
    assert_eq!(look(&mut placement, 21), 1);
    assert!(placement.clear() && !placement.clear());
    assert_eq!((placement.wake(), placement.warnings().len()), (None, 0));
}

#[test]
fn a_file_that_cannot_be_used_holds_no_other_back() {
    let (node, file) = node("placement-apart", STATIC);
    fs::write(&file, state("static", PodEntries::No)).unwrap();
    let devices = file
        .ancestors()
        .nth(3)
        .unwrap()
        .join("var/lib/kubelet")
        .join(DEVICE_FILE);
    fs::create_dir_all(devices.parent().unwrap()).unwrap();
    fs::write(devices, "[").unwrap();
    let mut placement = Placement::default();
    assert!(placement.take(found(&node), Duration::ZERO, |_| true));
    assert_eq!(placement.cpuset(&uid(), "app").as_deref(), Some("2-3"));
    assert_eq!(placement.warnings(), [""; 0]);
    assert!(placement.take(found(&node), DOUBT, |_| true));
    let warnings = placement.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].contains("devices"),
        "{warnings:?}"
    );
}

/// It goes by what it was told when it started.
#[test]
fn what_kubelet_says_of_its_cpus_goes_before_its_settings() {
    let (node, file) = node("placement-asked", STATIC);
    fs::write(&file, given(["1,4-7", "0,2-3"], "static", PodEntries::No)).unwrap();
    let told = Allocatable::Told("0-3,6-7".parse().unwrap());
    let all = Allocatable::Told("0-7".parse().unwrap());
    let refused = Allocatable::refused("no answer".to_owned(), Duration::ZERO);
    let misfit = "not all reserved cpus";
    let refusal = "; and its pod resources API does not tell: no answer";
    for (allocatable, reserved, parts) in [
        (&told, Some("4-5"), [].as_slice()),
        (&all, Some(""), &[]),
        (&Allocatable::Asked, None, &[misfit]),
        (&refused, None, &[misfit, refusal]),
    ] {
        let found = found_as(&node, allocatable);
        assert_eq!(found.reserved, reserved.map(|it| it.parse().unwrap()));
        let line = found.faults.cpu.concat();
        assert_eq!(line.is_empty(), parts.is_empty(), "{line}");
        assert!(parts.iter().all(|it| line.contains(it)), "{line}");
        assert_eq!(line.contains(refusal), parts.contains(&refusal), "{line}");
    }
    // It has written the half of what it does.
    fs::write(&file, given(["1,5-7", "0,2"], "static", PodEntries::No)).unwrap();
    let found = found_as(&node, &told);
    let line = found.faults.cpu.concat();
    assert_eq!(found.reserved, None);
    assert!(
        line.ends_with("it can give out CPUs 3, and its file leaves them out"),
        "{line}"
    );
    assert!(!told.is_due(Duration::MAX) && !Allocatable::Asked.is_due(Duration::MAX));
    assert!(Allocatable::Unasked.is_due(Duration::ZERO));
    assert!(!refused.is_due(Duration::ZERO) && refused.is_due(Duration::from_secs(30)));
}

/// Two live pods of one name: kubelet's next one begins while the one before it still ends.
#[test]
fn of_pods_of_one_name_the_last_has_the_series_and_pods_without_a_name_have_their_own() {
    let pod = |name: &str, uid: &str, began: u64| {
        let pod = PodRef {
            uid: PodUid(uid.to_owned()),
            ..named(name)
        };
        Arc::new(KnownPod {
            pod: Arc::new(pod),
            qos: QosClass::Guaranteed,
            cgroup: "/kubepods/pod".parse().unwrap(),
            started_at: WallTime::from_epoch(Duration::from_secs(began)),
            sandbox: None,
            containers: Vec::new(),
        })
    };
    let pods = [
        pod("", "c", 1),
        pod("", "d", 1),
        pod("web", "a", 2),
        pod("web", "b", 1),
    ];
    let series = in_series(&pods);
    let uids: Vec<&str> = series.keys().map(|it| it.0.as_str()).collect();
    assert_eq!(uids, ["a", "c", "d"]);
    let cpus: CpuSet = "2-3".parse().unwrap();
    let held = ContainerHoldings {
        container: "app".to_owned(),
        cpus: Some(cpus),
        ..ContainerHoldings::default()
    };
    let holdings = pods
        .iter()
        .map(|it| (it.pod.uid.clone(), vec![held.clone()]));
    let shown = PlacementStatus {
        policies: PlacementPolicies::default(),
        cpus: None,
        numa_nodes: Vec::new(),
        devices: BTreeMap::new(),
        holdings: holdings.collect(),
    };
    let of_them = gauges(&shown, &series);
    let right = pods.iter().filter(|it| it.pod.uid.0 != "b");
    let right = right.map(|it| (ContainerLabels::new(&it.pod, "app", "").to_key(), 2));
    assert_eq!(of_them.exclusive, right.collect());
    assert_eq!(of_them.exclusive.len(), 3);
}

/// Kubelet takes it back when somebody else wants memory, and not before.
#[test]
fn memory_of_a_pod_that_is_gone_is_free() {
    let (node, file) = node("placement-memory", MEMORY);
    let table = |reserved: u64| MemoryTable {
        total: 8 << 30,
        system_reserved: 1 << 30,
        allocatable: 7 << 30,
        reserved,
        free: (7 << 30) - reserved,
    };
    let first = NumaNodeId(0);
    let numa = NumaMemory {
        n_assignments: 1,
        tables: BTreeMap::from([("memory".to_owned(), table(2 << 30))]),
        group: vec![first],
    };
    let block = MemoryBlock {
        numa: NumaMask::new([first]).unwrap(),
        resource: "memory".to_owned(),
        size: 2 << 30,
    };
    let of_app = BTreeMap::from([("app".to_owned(), vec![block])]);
    let state = MemoryState {
        nodes: BTreeMap::from([(first, numa)]),
        containers: BTreeMap::from([(uid(), of_app)]),
        pods: BTreeMap::new(),
    };
    let text = MemoryFile::new("Static", &state, PodEntries::No).to_text();
    fs::write(file.with_file_name(MEMORY_FILE), text).unwrap();
    let found = placement(&node);
    assert_eq!(found.warnings(), [""; 0]);
    let pod = named("web");
    let key = (first, "memory".to_owned());
    for (name, free, holders) in [(Some("web"), 5_u64 << 30, 1), (None, 7 << 30, 0)] {
        let shown = status(&found, &node, name);
        let by_uid = name.map(|_| (&pod.uid, &pod)).into_iter().collect();
        let of_it = gauges(&shown, &by_uid);
        assert_eq!(of_it.free_bytes, BTreeMap::from([(key.clone(), free)]));
        let of_system = shown.numa_nodes[0].memory["memory"].system_reserved;
        assert_eq!(of_system, Some(1 << 30));
        assert_eq!(of_it.numa_nodes.len(), holders);
    }
}
