#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use prost::Message;

use super::*;
use crate::grpc::messages::cri::ContainerStatus;

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
        image: None,
        labels: labels(Some("web")),
    }
}

fn name(of: &Identified) -> Option<&str> {
    match &of.role {
        Role::Sandbox => None,
        Role::Container { name, .. } => Some(name),
    }
}

fn image_of(of: &Identified) -> Option<&str> {
    match &of.role {
        Role::Sandbox => None,
        Role::Container { image, .. } => image.as_deref(),
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
fn an_image_is_shown_by_its_whole_name() {
    let id = "eb6fe751ef318d63f6d506dd848d425328c3935b4dd77232918c82acccc75bc4";
    let digest = format!("registry.example:5000/team/web@sha256:{id}");
    let hex = format!("sha256:{id}");
    for (image, of_pod, shown) in [
        // An event, and the list, of containerd.
        ("docker.io/local/hog:1", "", Some("docker.io/local/hog:1")),
        (&hex, "local/hog:1", Some("docker.io/local/hog:1")),
        // CRI-O.
        (id, "web", Some("docker.io/library/web:latest")),
        (&hex, &digest, Some(&*digest)),
        (&hex, &digest.replace('@', ":1@"), Some(&*digest)),
        ("localhost/web", "", Some("localhost/web:latest")),
        (
            "registry.example:5000/web",
            "",
            Some("registry.example:5000/web:latest"),
        ),
        ("web:1", "other:1", Some("docker.io/library/web:1")),
        (&hex, "", None),
        ("", "", None),
    ] {
        let spec = ImageSpec {
            image: image.to_owned(),
            user_specified_image: of_pod.to_owned(),
        };
        let mut container = container();
        container.image = Some(spec.clone());
        let status = ContainerStatus {
            id: container.id.clone(),
            metadata: container.metadata.clone(),
            image: Some(spec),
            labels: container.labels.clone(),
        };
        let event = ContainerEventResponse {
            containers_statuses: vec![status],
            ..ContainerEventResponse::default()
        };
        let listed = of_lists(&[], &[container]);
        assert_eq!(listed, of_event(&event));
        assert_eq!(image_of(&listed[0]), shown, "{image} {of_pod}");
    }
    assert_eq!(image_of(&of_lists(&[], &[container()])[0]), None);
}

#[test]
fn an_event_of_zeros_is_read() {
    // Field 1 alone: an id.
    let event = ContainerEventResponse::decode(&b"\x0a\x02id"[..]).unwrap();
    assert_eq!(event.container_id, "id");
    assert_eq!(of_event(&event), []);
}
