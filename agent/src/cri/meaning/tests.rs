#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use prost::Message;

use super::*;

fn labels(container: Option<&str>) -> Labels {
    let labels = [
        (label::POD_NAMESPACE, Some("shop")),
        (label::POD_NAME, Some("web-0")),
        (label::POD_UID, Some("uid")),
        (label::CONTAINER_NAME, container),
    ];
    let set = labels.into_iter();
    set.filter_map(|(label, text)| Some((label.to_owned(), text?.to_owned())))
        .collect()
}

fn container() -> Container {
    Container {
        id: "c1".to_owned(),
        pod_sandbox_id: "s1".to_owned(),
        metadata: Some(ContainerMetadata {
            name: "web".to_owned(),
            attempt: 2,
        }),
        labels: labels(Some("web")),
    }
}

fn name(of: &Identified) -> Option<&str> {
    match &of.role {
        Role::Sandbox => None,
        Role::Container { name, .. } => Some(name),
    }
}

#[test]
fn a_container_whose_sandbox_is_in_no_list_goes_by_its_own_labels() {
    let sandbox = PodSandbox {
        id: "s1".to_owned(),
        labels: labels(None),
    };
    let by_itself = of_lists(&[], &[container()]);
    assert_eq!((by_itself.len(), name(&by_itself[0])), (1, Some("web")));
    let joined = of_lists(&[sandbox], &[container()]);
    assert!(joined.len() == 2 && joined.contains(&by_itself[0]));
}

#[test]
fn what_kubelet_has_not_made_is_nobody() {
    let mut strange = container();
    strange.labels.remove(label::POD_UID);
    assert_eq!(of_lists(&[], &[strange.clone()]), []);
    strange
        .labels
        .insert(label::POD_UID.to_owned(), String::new());
    assert_eq!(of_lists(&[], &[strange]), []);
    let mut unnamed = container();
    unnamed.metadata = None;
    assert_eq!(name(&of_lists(&[], &[unnamed.clone()])[0]), Some("web"));
    unnamed.labels.remove(label::CONTAINER_NAME);
    assert_eq!(of_lists(&[], &[unnamed]), []);
}

#[test]
fn an_event_of_zeros_is_read() {
    // Field 1 alone: an id.
    let event = ContainerEventResponse::decode(&b"\x0a\x02id"[..]).unwrap();
    assert_eq!(event.container_id, "id");
    assert_eq!(of_event(&event), []);
}
