#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::io::Read;

use flate2::read::GzDecoder;
use kube_core::WatchEvent;
use serde_json::{Value, json};

use super::*;

const LIST: &str = include_str!("../../../../tests/data/kube/api_pods_list.json");
const WATCH: &[u8] = include_bytes!("../../../../tests/data/kube/api_watch.jsonl.gz");

fn listed() -> BTreeMap<String, ApiPod> {
    let list: Value = serde_json::from_str(LIST).unwrap();
    let items = list["items"].as_array().unwrap();
    let pods = items
        .iter()
        .map(|it| of_pod(&serde_json::from_value(it.clone()).unwrap()).unwrap());
    pods.map(|it| (it.pod.name.clone(), it)).collect()
}

fn of(pod: Value) -> Option<ApiPod> {
    of_pod(&serde_json::from_value(pod).unwrap())
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
                let pod = of_pod(&pod).unwrap();
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
