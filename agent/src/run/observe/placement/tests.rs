use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::*;
use crate::decide::placement::tests::topology;
use crate::model::kubelet_state::cpu::CpuFile;
use crate::model::kubelet_state::device::DeviceFile;
use crate::model::kubelet_state::{DEVICE_FILE, PodEntries};
use crate::model::placement::{CpuState, DeviceAllocation, DeviceState};
use crate::run::observe::kubelet::tests::Node;
use crate::units::Bytes;

const PLAIN: &str = "/usr/bin/kubelet --root-dir=/etc/state";
const STATIC: &str =
    "/usr/bin/kubelet --root-dir=/etc/state --cpu-manager-policy=static --reserved-cpus=0,4";

/// A kubelet with a directory of its state, and where its file of CPUs is.
fn node(name: &str, line: &str) -> (Node, PathBuf) {
    let node = Node::new(name);
    let etc = node.start(42, "kubelet", 0, line);
    fs::create_dir(etc.join("state")).unwrap();
    (node, etc.join("state").join(CPU_FILE))
}

fn placement(node: &Node) -> Placement {
    let kubelet = node.find("").unwrap();
    Placement {
        found: Some(Found::read(&kubelet, &node.root(), &capacity(), &topology()).unwrap()),
        ..Placement::default()
    }
}

fn capacity() -> NodeCapacity {
    NodeCapacity {
        n_cpus: 8,
        memory: Bytes(16 << 30),
        swap: None,
        hugepages: BTreeMap::new(),
        pids: None,
        ephemeral_storage: None,
    }
}

fn uid() -> PodUid {
    PodUid("uid".to_owned())
}

/// `app` of pod `uid` has CPUs of its own.
fn state(policy: &str, entries: PodEntries) -> String {
    let app = BTreeMap::from([("app".to_owned(), "2-3".parse().unwrap())]);
    let state = CpuState {
        shared_pool: "0-1,4-7".parse().unwrap(),
        containers: BTreeMap::from([(uid(), app)]),
        pods: BTreeMap::new(),
    };
    CpuFile::new(policy, &state).to_text(entries)
}

/// `name`: of the pod, in the namespace `default`; `None`: it is gone.
fn status(placement: &Placement, node: &Node, name: Option<&str>) -> PlacementStatus {
    let kubelet = node.find("").unwrap();
    let topology = topology();
    let pod = name.map(|name| PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: uid(),
    });
    let pod_of = |_: &PodUid| pod.as_ref();
    let status = placement.status(&kubelet.settings.kubelet, &topology, pod_of);
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
    let books = &found.found.as_ref().unwrap().books;
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
    let right = "kubelet places by cpuManagerPolicy none, as its file says, and not by static";
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
        ids: BTreeMap::from([(None, ["a".to_owned(), "b".to_owned()].into())]),
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
        let books = &found.found.as_ref().unwrap().books;
        let held = books.devices_held(|_| name.is_some());
        let key = ("example.com/gpu".to_owned(), None);
        assert_eq!(held.get(&key).copied().unwrap_or(0), n);
        assert_eq!(shown.holdings.len(), n_holders);
    }
}

/// CPUs 0-3 are on NUMA node 0 and 4-7 on node 1; `app` has 2 and 3.
#[test]
fn what_is_left_is_counted_by_numa_node() {
    let number = "/usr/bin/kubelet --root-dir=/etc/state --cpu-manager-policy=static --kube-reserved=cpu=1500m";
    let unknown = "/usr/bin/kubelet --root-dir=/etc/state --cpu-manager-policy=static";
    for (line, reserved, free) in [
        (STATIC, Some(2), vec![1, 3]),
        // A core of the first node, as kubelet takes it.
        (number, Some(2), vec![0, 4]),
        // It would not start so.
        (unknown, None, vec![]),
    ] {
        let (node, file) = node("placement-gauges", line);
        fs::write(&file, state("static", PodEntries::No)).unwrap();
        let found = placement(&node);
        let pod = PodRef {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            uid: uid(),
        };
        let shown = status(&found, &node, Some("web"));
        let gauges_of = |pod: Option<&PodRef>| gauges(&shown, |_| pod);
        let of_it = gauges_of(Some(&pod));
        let pools = of_it.pools.unwrap();
        assert_eq!((pools.shared, pools.exclusive), (6, 2), "{line}");
        let n_free: u64 = free.iter().sum();
        let right = reserved.map(|it| (it, usize::try_from(n_free).unwrap()));
        assert_eq!(pools.reserved.zip(pools.free), right, "{line}");
        let by_node = |of: &BTreeMap<NumaNodeId, u64>| of.values().copied().collect::<Vec<_>>();
        assert_eq!(by_node(&of_it.free_cpus), free, "{line}");
        assert_eq!(by_node(&of_it.exclusive_by_node), [2, 0]);
        let key = ("default", "web", "app");
        let key = (key.0.to_owned(), key.1.to_owned(), key.2.to_owned());
        assert_eq!(of_it.exclusive, BTreeMap::from([(key.clone(), 2)]));
        let first = NumaMask::new([NumaNodeId(0)]).unwrap();
        assert_eq!(of_it.numa_nodes, BTreeMap::from([(key, first)]));
        let of_gone = gauges_of(None);
        assert!(of_gone.exclusive.is_empty() && of_gone.numa_nodes.is_empty());
    }
    let (node, _) = node("placement-gauges-none", PLAIN);
    let shown = status(&placement(&node), &node, None);
    assert_eq!(gauges(&shown, |_| None), PlacementGauges::default());
}
