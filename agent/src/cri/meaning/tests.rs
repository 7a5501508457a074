#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::collections::BTreeSet;
use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;
use serde_json::Value;

use super::*;
use crate::grpc::messages::cri::{ContainerStatus, PodSandboxStatus};

const SANDBOXES: &str = include_str!("../../../../tests/data/cri/list_pod_sandbox.json");
const CONTAINERS: &str = include_str!("../../../../tests/data/cri/list_containers.json");
const EVENTS: &[u8] = include_bytes!("../../../../tests/data/cri/events.jsonl.gz");

const CREATED: &str = "CONTAINER_CREATED_EVENT";

fn string(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_default().to_owned()
}

fn labels_of(value: &Value) -> Labels {
    let labels = value["labels"].as_object().into_iter().flatten();
    labels
        .map(|(name, text)| (name.clone(), text.as_str().unwrap().to_owned()))
        .collect()
}

fn metadata(value: &Value) -> Option<ContainerMetadata> {
    let found = value.get("metadata")?;
    let attempt = found["attempt"].as_u64().unwrap_or(0);
    Some(ContainerMetadata {
        name: string(found, "name"),
        attempt: u32::try_from(attempt).unwrap(),
    })
}

fn list<T>(text: &str, name: &str, read: impl Fn(&Value) -> T) -> Vec<T> {
    let document: Value = serde_json::from_str(text).unwrap();
    document[name]
        .as_array()
        .unwrap()
        .iter()
        .map(read)
        .collect()
}

fn sandboxes() -> Vec<PodSandbox> {
    list(SANDBOXES, "items", |it| PodSandbox {
        id: string(it, "id"),
        labels: labels_of(it),
    })
}

fn containers() -> Vec<Container> {
    list(CONTAINERS, "containers", |it| Container {
        id: string(it, "id"),
        pod_sandbox_id: string(it, "pod_sandbox_id"),
        metadata: metadata(it),
        labels: labels_of(it),
    })
}

/// Each event with the name of its type.
fn events() -> Vec<(String, ContainerEventResponse)> {
    let mut text = String::new();
    GzDecoder::new(EVENTS).read_to_string(&mut text).unwrap();
    let read = |line: &str| {
        let it: Value = serde_json::from_str(line).unwrap();
        let kind = match it.get("container_event_type") {
            Some(kind) => kind.as_str().unwrap().to_owned(),
            // The zero of proto3.
            None => CREATED.to_owned(),
        };
        let sandbox = it.get("pod_sandbox_status").map(|it| PodSandboxStatus {
            id: string(it, "id"),
            labels: labels_of(it),
        });
        let statuses = it["containers_statuses"].as_array().into_iter().flatten();
        let statuses = statuses.map(|it| ContainerStatus {
            id: string(it, "id"),
            metadata: metadata(it),
            labels: labels_of(it),
        });
        let event = ContainerEventResponse {
            container_id: string(&it, "container_id"),
            pod_sandbox_status: sandbox,
            containers_statuses: statuses.collect(),
        };
        (kind, event)
    };
    text.lines().map(read).collect()
}

fn name(of: &Identified) -> Option<&str> {
    match &of.role {
        Role::Sandbox => None,
        Role::Container { name, .. } => Some(name),
    }
}

#[test]
fn lists_name_every_sandbox_and_every_container() {
    let named = of_lists(&sandboxes(), &containers());
    let (of_containers, of_sandboxes): (Vec<_>, Vec<_>) =
        named.iter().partition(|it| name(it).is_some());
    assert_eq!((of_sandboxes.len(), of_containers.len()), (9, 13));
    let ids: BTreeSet<&str> = named.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids.len(), named.len());
    assert!(ids.iter().all(|it| it.len() == 64));
    for it in &of_containers {
        let of_pod = of_sandboxes.iter().filter(|of| of.pod == it.pod);
        assert!(of_pod.count() >= 1, "{it:?}");
    }
    let web = of_containers.iter().find(|it| name(it) == Some("web"));
    let pod = &web.unwrap().pod;
    assert_eq!((&*pod.namespace, &*pod.name), ("kspec", "web-node2"));
    assert_eq!(
        pod.uid.0.len(),
        32,
        "that of the static pod, as its cgroup has it"
    );
}

#[test]
fn a_container_whose_sandbox_is_in_no_list_goes_by_its_own_labels() {
    let by_itself = of_lists(&[], &containers());
    let joined = of_lists(&sandboxes(), &containers());
    assert_eq!(by_itself.len(), 13);
    assert!(by_itself.iter().all(|it| joined.contains(it)));
}

#[test]
fn what_kubelet_has_not_made_is_nobody() {
    let mut container = containers().remove(0);
    container.labels.remove(label::POD_UID);
    assert_eq!(of_lists(&[], &[container.clone()]), []);
    container
        .labels
        .insert(label::POD_UID.to_owned(), String::new());
    assert_eq!(of_lists(&[], &[container]), []);
    let mut container = containers().remove(0);
    container.metadata = None;
    assert_eq!(name(&of_lists(&[], &[container.clone()])[0]), Some("web"));
    container.labels.remove(label::CONTAINER_NAME);
    assert_eq!(of_lists(&[], &[container]), []);
}

#[test]
fn an_event_names_a_container_before_it_starts() {
    let mut known = BTreeMap::new();
    let (mut n_containers, mut n_started) = (0, 0);
    for (kind, event) in events() {
        let id = event.container_id.clone();
        let named = of_event(&event);
        assert!(named.iter().all(|it| it.pod.has_name()), "{event:?}");
        for it in named {
            let before = known.insert(it.id.clone(), it.clone());
            assert!(before.is_none_or(|before| before == it), "{it:?}");
        }
        if kind == CREATED {
            assert!(known.contains_key(&id), "{event:?}");
            n_containers += 1;
        }
        if kind == "CONTAINER_STARTED_EVENT" {
            assert!(known.contains_key(&id), "{event:?}");
            n_started += 1;
        }
    }
    assert!(
        n_containers > n_started && n_started > 10,
        "one never starts"
    );
}

#[test]
fn a_container_that_never_starts_has_its_name() {
    let events = events();
    let named = events.iter().flat_map(|(_, it)| of_event(it));
    let bad: BTreeSet<String> = named
        .filter(|it| it.pod.name.contains("badcmd") && it.role != Role::Sandbox)
        .map(|it| it.id)
        .collect();
    assert!(!bad.is_empty());
    for id in bad {
        let of_it = events.iter().filter(|(_, it)| it.container_id == id);
        let kinds: Vec<&str> = of_it.map(|(kind, _)| kind.as_str()).collect();
        assert_eq!(kinds[0], CREATED);
        assert!(!kinds.contains(&"CONTAINER_STARTED_EVENT"), "{kinds:?}");
    }
}

#[test]
fn a_sandbox_that_is_made_again_is_of_the_same_pod() {
    let events = events();
    let named = events.iter().flat_map(|(_, it)| of_event(it));
    let of_shop: Vec<Identified> = named
        .filter(|it| it.pod.name.starts_with("shop-"))
        .collect();
    let ids = |of: Option<&str>| {
        let found = of_shop.iter().filter(|it| name(it) == of);
        found.map(|it| it.id.as_str()).collect::<BTreeSet<_>>()
    };
    let uids: BTreeSet<&PodUid> = of_shop.iter().map(|it| &it.pod.uid).collect();
    assert_eq!((ids(None).len(), uids.len()), (2, 1));
    assert_eq!(ids(Some("proxy")).len(), 2);
    let attempts = of_shop.iter().filter_map(|it| match &it.role {
        Role::Container { name, attempt } if &**name == "proxy" => Some(*attempt),
        _ => None,
    });
    assert!(
        attempts.into_iter().all(|it| it == 0),
        "so they tell nobody apart"
    );
    assert_eq!(ids(Some("debugger")).len(), 1, "not made again");
}

#[test]
fn an_event_of_zeros_is_read() {
    // Field 1 alone: an id.
    let event = ContainerEventResponse::decode(&b"\x0a\x02id"[..]).unwrap();
    assert_eq!(event.container_id, "id");
    assert_eq!(of_event(&event), []);
}
