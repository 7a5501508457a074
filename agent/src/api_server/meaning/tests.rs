#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::io::Read;

use flate2::read::GzDecoder;
use kube_core::WatchEvent;
use serde_json::{Value, json};

use super::*;
use crate::model::api_pod::Definition;
use crate::model::pod::ResourceList;
use crate::model::quantity::Quantity;
use crate::model::status::ResourceBounds;
use crate::units::{Bytes, MilliCpu};

const LIST: &str = include_str!("../../../../tests/data/kube/api_pods_list.json");
const WATCH: &[u8] = include_bytes!("../../../../tests/data/kube/api_watch.jsonl.gz");

const OF_KUBELET: &str = include_str!("../../../../tests/data/kube/kubelet_pods.json");

fn listed() -> BTreeMap<String, ApiPod> {
    pods_in(LIST, PodsFrom::ApiServer)
}

fn pods_in(list: &str, from: PodsFrom) -> BTreeMap<String, ApiPod> {
    let list: Value = serde_json::from_str(list).unwrap();
    let items = list["items"].as_array().unwrap();
    let pods = items
        .iter()
        .map(|it| of_pod(&serde_json::from_value(it.clone()).unwrap(), from).unwrap());
    pods.map(|it| (it.pod.name.clone(), it)).collect()
}

fn of(pod: Value) -> Option<ApiPod> {
    of_pod(&serde_json::from_value(pod).unwrap(), PodsFrom::ApiServer)
}

#[test]
fn a_static_pod_has_the_uid_of_its_cgroup() {
    let pods = listed();
    let web = &pods["web-node2"];
    assert_eq!(web.pod.uid.0, "3a1c8b495ae52debc7774724274949eb");
    assert_eq!(web.workload.kind, "Pod");
    assert_eq!(web.workload.name, "web-node2");
}

#[test]
fn kubelet_tells_the_same_of_pods_as_the_api_server() {
    let (mut pods, mut listed) = (pods_in(OF_KUBELET, PodsFrom::Kubelet), listed());
    // It has the static pod itself, to which nobody gives a priority; its mirror gets one when it is made.
    let static_pod = &pods["web-node2"];
    let mirror = &listed["web-node2"];
    let [of_static, of_mirror] = [static_pod, mirror].map(|it| it.definition.as_ref().unwrap());
    assert!(of_static.is_critical && of_mirror.is_critical);
    assert_eq!((of_static.priority, of_mirror.priority), (0, 2_000_001_000));
    assert_eq!(of_static.requests, of_mirror.requests);
    assert!(!static_pod.is_mirror && mirror.is_mirror);
    assert_eq!(static_pod.pod, mirror.pod);
    let static_pod = pods.remove("web-node2").unwrap();
    let mirror = listed.remove("web-node2").unwrap();
    assert_eq!(static_pod.containers, mirror.containers);
    assert_eq!(pods, listed);
}

#[test]
fn containers_are_in_the_list_of_the_specification_that_has_them() {
    let pods = listed();
    let shop = &pods["shop-7d4b9c6f58-x2v9q"];
    let roles: Vec<(&str, ContainerRole)> = shop
        .containers
        .iter()
        .map(|it| (&*it.name, it.role))
        .collect();
    let right = [
        ("setup", ContainerRole::Init),
        ("proxy", ContainerRole::Sidecar),
        ("app", ContainerRole::Main),
        ("log", ContainerRole::Main),
        ("debugger", ContainerRole::Ephemeral),
    ];
    assert_eq!(roles, right);
    assert!(shop.containers.iter().all(|it| it.instances.len() == 1));
    assert_eq!(
        (&*shop.workload.kind, &*shop.workload.name),
        ("Deployment", "shop")
    );
    // It was made a year after the minute that its name looks like.
    let report = &pods["report-29384720-kq8lm"];
    assert_eq!(
        (&*report.workload.kind, &*report.workload.name),
        ("Job", "report-29384720")
    );
}

/// Its status names the same one twice while it waits.
#[test]
fn a_container_that_waits_to_be_started_again_is_one_instance() {
    let pods = listed();
    let crash = pods["crash"].container("a").unwrap();
    assert_eq!(crash.instances.len(), 1);
    assert_eq!(crash.instances[0].attempt, 3);
    assert!(crash.instances[0].id.ends_with("612d76b44422"));
}

/// Each container that ran is named by the events of the watch.
#[test]
fn a_recorded_watch_names_every_container_that_kubelet_told_of() {
    let mut text = String::new();
    GzDecoder::new(WATCH).read_to_string(&mut text).unwrap();
    let mut deleted = 0;
    let mut ids = BTreeMap::new();
    for line in text.lines() {
        match serde_json::from_str::<WatchEvent<PodObject>>(line).unwrap() {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                let pod = of_pod(&pod, PodsFrom::ApiServer).unwrap();
                for container in &pod.containers {
                    for it in &container.instances {
                        let named = (pod.pod.name.clone(), container.name.clone());
                        let before = ids.insert(it.id.clone(), named.clone());
                        assert!(before.is_none_or(|it| it == named));
                    }
                }
            }
            WatchEvent::Deleted(pod) => {
                assert!(uid(&pod).is_some());
                deleted += 1;
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("{status:?}"),
        }
    }
    assert_eq!(deleted, 9);
    for id in text.split("containerd://").skip(1) {
        let id = id.split('"').next().unwrap();
        assert!(ids.contains_key(id), "{id}");
    }
    assert!(ids.len() > 15, "{}", ids.len());
}

#[test]
fn a_pod_that_lacks_what_every_pod_has_is_no_pod_or_an_empty_one() {
    let named = json!({"name": "p", "namespace": "n", "uid": "u"});
    let bare = of(json!({"metadata": named})).unwrap();
    assert!(bare.containers.is_empty());
    for without in ["name", "namespace", "uid"] {
        let mut metadata = named.clone();
        metadata.as_object_mut().unwrap().remove(without);
        assert_eq!(of(json!({"metadata": metadata})), None, "{without}");
    }
    assert_eq!(
        of(json!({"metadata": {"name": "p", "namespace": "n", "uid": ""}})),
        None
    );
    for id in ["", "containerd", "containerd://", "://"] {
        let pod = of(json!({
            "metadata": named,
            "spec": {"containers": [{"name": "a"}]},
            "status": {"containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": -3, "containerID": id,
            }]},
        }));
        assert!(pod.unwrap().containers[0].instances.is_empty(), "{id}");
    }
}

fn amounts(list: &[(&str, &str)]) -> ResourceList {
    let amounts = list.iter();
    amounts
        .map(|(name, amount)| ((*name).to_owned(), amount.parse().unwrap()))
        .collect()
}

fn requests(cpu_milli: Option<u64>, memory_mib: Option<u64>) -> ResourceBounds {
    ResourceBounds {
        cpu_request_milli: cpu_milli.map(MilliCpu),
        memory_request_bytes: memory_mib.map(|it| Bytes(it << 20)),
        ..ResourceBounds::default()
    }
}

fn defined(spec: Value) -> Result<Definition, String> {
    let metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
    of(json!({"metadata": metadata, "spec": spec}))
        .unwrap()
        .definition
}

/// Two containers and their sidecar need more than the init container that ran before them.
#[test]
fn a_recorded_pod_requests_what_its_containers_and_sidecars_do() {
    let pods = listed();
    let shop = pods["shop-7d4b9c6f58-x2v9q"].definition.as_ref().unwrap();
    assert_eq!(
        shop.requests,
        amounts(&[("cpu", "140m"), ("memory", "96Mi")])
    );
    assert_eq!(shop.memory_request, "96Mi".parse().unwrap());
    assert_eq!((shop.priority, shop.is_critical), (0, false));
    for (name, right) in [
        ("setup", Some(requests(Some(20), Some(16)))),
        ("proxy", Some(requests(Some(20), Some(16)))),
        ("app", Some(requests(Some(100), Some(64)))),
        ("debugger", None),
    ] {
        assert_eq!(shop.requests_of(name), right, "{name}");
    }
    let crash = pods["crash"].definition.as_ref().unwrap();
    assert!(crash.requests.is_empty());
    assert_eq!(crash.requests_of("a"), Some(ResourceBounds::default()));
}

/// The static pod that it shows is.
#[test]
fn the_mirror_of_a_static_pod_is_critical() {
    let pods = listed();
    let critical = pods
        .values()
        .filter(|it| it.definition.as_ref().unwrap().is_critical);
    let critical: Vec<&str> = critical.map(|it| it.pod.name.as_str()).collect();
    assert_eq!(critical, ["web-node2"]);
    let web = pods["web-node2"].definition.as_ref().unwrap();
    assert_eq!(web.priority, 2_000_001_000);
    let owner = json!([{"kind": "Node", "name": "node1", "controller": true}]);
    let annotations = json!({"kubernetes.io/config.mirror": "0123"});
    let mirror = of(json!({
        "metadata": {
            "name": "p", "namespace": "n", "uid": "u", "ownerReferences": owner, "annotations": annotations,
        },
        "spec": {"containers": [{"name": "a"}]},
    }));
    let definition = mirror.unwrap().definition.unwrap();
    assert_eq!((definition.priority, definition.is_critical), (0, true));
}

#[test]
fn a_pod_of_a_priority_of_the_system_is_critical() {
    for (priority, is_critical) in [
        (json!(1_999_999_999), false),
        (json!(2_000_000_000), true),
        (json!(-10), false),
        (json!(null), false),
    ] {
        let spec = json!({"containers": [{"name": "a"}], "priority": priority});
        let definition = defined(spec).unwrap();
        assert_eq!(definition.is_critical, is_critical, "{priority}");
        assert_eq!(
            Some(i64::from(definition.priority)),
            priority.as_i64().or(Some(0))
        );
    }
}

#[test]
fn a_pod_is_over_by_its_phase_alone() {
    let over = listed();
    let over = over.values().filter(|it| it.is_over);
    let over: Vec<&str> = over.map(|it| it.pod.name.as_str()).collect();
    assert_eq!(
        over,
        ["oom-child-exit0", "oom-main", "report-29384720-kq8lm"]
    );
    let metadata = json!({"name": "p", "namespace": "n", "uid": "u"});
    for phase in [
        json!("Pending"),
        json!("Unknown"),
        json!("other"),
        json!(null),
    ] {
        let pod = of(json!({"metadata": metadata, "status": {"phase": phase}}));
        assert!(!pod.unwrap().is_over, "{phase}");
    }
}

#[test]
fn resources_of_a_pod_go_before_those_of_its_containers() {
    let requests =
        json!({"cpu": "10m", "memory": "16Mi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "2Mi"});
    let containers = json!([{"name": "a", "resources": {"requests": requests}}]);
    let own = json!({"requests": {"cpu": "1", "memory": "64Mi"}, "limits": {"memory": "128Mi"}});
    let definition = defined(json!({"containers": containers, "resources": own})).unwrap();
    let right = [
        ("cpu", "1"),
        ("memory", "64Mi"),
        ("ephemeral-storage", "1Gi"),
        ("hugepages-2Mi", "2Mi"),
    ];
    assert_eq!(definition.requests, amounts(&right));
    assert_eq!(definition.memory_request, "64Mi".parse().unwrap());
    // To kubelet's order a pod with resources of its own requests nothing that they do not name.
    let own = json!({"requests": {"cpu": "1"}});
    let definition = defined(json!({"containers": containers, "resources": own})).unwrap();
    assert_eq!(definition.requests["memory"], "16Mi".parse().unwrap());
    assert_eq!(definition.memory_request, Quantity::ZERO);
}

#[test]
fn an_init_container_runs_beside_the_sidecars_before_it_and_overhead_is_added() {
    let container = |name: &str, restart: Value, memory: &str| {
        json!({
            "name": name, "restartPolicy": restart, "resources": {"requests": {"memory": memory}},
        })
    };
    let spec = |overhead: Value| {
        json!({
            "initContainers": [
                container("proxy", json!("Always"), "32Mi"),
                container("setup", json!(null), "100Mi"),
                container("late", json!("Always"), "8Mi"),
            ],
            "containers": [container("app", json!(null), "64Mi")],
            "overhead": overhead,
        })
    };
    let memory = |overhead| {
        let definition = defined(spec(overhead)).unwrap();
        let requested = definition.requests["memory"].clone();
        (
            requested.units() >> 20,
            definition.memory_request.units() >> 20,
        )
    };
    assert_eq!(memory(json!(null)), (132, 132));
    assert_eq!(memory(json!({"memory": "10Mi"})), (142, 142));
    // Kubelet's order takes no overhead for a request.
    let idle = json!({"containers": [{"name": "a"}], "overhead": {"memory": "10Mi"}});
    let definition = defined(idle).unwrap();
    assert_eq!(definition.requests, amounts(&[("memory", "10Mi")]));
    assert_eq!(definition.memory_request, Quantity::ZERO);
}

#[test]
fn a_pod_with_a_quantity_that_is_none_is_known_without_what_it_asks_for() {
    let with = |amount: Value| {
        json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1"}}},
                {"name": "b", "resources": {"requests": {"memory": amount}}},
            ]},
        })
    };
    for amount in [
        json!("much"),
        json!(""),
        json!("-1Mi"),
        json!("1 Mi"),
        json!(null),
        json!({}),
    ] {
        let pod = of(with(amount.clone())).unwrap();
        let why = pod.definition.unwrap_err();
        let path = "spec.containers[1].resources.requests[memory]: ";
        assert!(why.starts_with(path), "{amount}: {why}");
        assert_eq!(pod.containers.len(), 2, "{amount}");
    }
    let number = of(with(json!(1_048_576))).unwrap().definition.unwrap();
    assert_eq!(number.requests["memory"], "1Mi".parse().unwrap());
}

#[test]
fn what_a_server_written_in_go_sends_for_nothing_is_nothing() {
    let nothing = defined(json!({
        "initContainers": null,
        "containers": [
            {"name": "a", "restartPolicy": null, "resources": {"requests": null, "limits": null}},
            {"name": "b", "resources": null},
            {"name": "c", "resources": {}},
        ],
        "ephemeralContainers": null,
        "overhead": null,
        "resources": null,
        "priority": null,
    }));
    let names = ["a", "b", "c"].map(|it| (it.into(), ResourceBounds::default()));
    let right = Definition {
        containers: names.into(),
        ..Definition::default()
    };
    assert_eq!(nothing, Ok(right));
    let why = defined(json!(null)).unwrap_err();
    assert_eq!(why, "spec.containers: Required value");
}
