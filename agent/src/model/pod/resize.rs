//! What a pod's requests count for while it is resized in place: the largest of what it asks for, what
//! the node has granted and what it runs with. A resize that the node can never do does not count.
//!
//! Source: PodRequests with UseStatusResources (component-helpers/resource/helpers.go, Kubernetes
//! 1.36). Pinned by suite `admission`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::api::resource;

use super::convert::resource_list;
use super::findings::Findings;
use super::totals::raise;
use super::{Pod, ResourceList};
use crate::model::quantity::{Format, Quantity};

/// Fills in `counted_requests` where the status says what the pod or a container runs with.
pub(super) fn count(source: &v1::Pod, pod: &mut Pod, found: &mut Findings) {
    let Some(status) = &source.status else {
        return;
    };
    let rule = match is_infeasible(status) {
        true => Rule::WithoutWish,
        false => Rule::WithWish,
    };
    let of_container = container_statuses(status);
    let sidecars = pod.init_containers.iter_mut().filter(|it| it.is_sidecar);
    for container in sidecars.chain(&mut pod.containers) {
        if let Some((path, status)) = of_container.get(container.name.as_str())
            && let Some(actual) = &status.resources
        {
            let held = [
                actual.requests.as_ref(),
                status.allocated_resources.as_ref(),
            ];
            let wish = &container.resources.requests;
            container.counted_requests = Some(counted(rule, wish, held, path, found));
        }
    }
    if let Some(own) = &pod.resources
        && let Some(actual) = &status.resources
    {
        let held = [
            actual.requests.as_ref(),
            status.allocated_resources.as_ref(),
        ];
        let counted = counted(rule, &own.requests, held, "status", found);
        // Only what the pod requests as a whole, even where nothing of it counts.
        let of_name = |name: &String| {
            let none = || Quantity::from_units(0, Format::DecimalSi);
            let amount = counted.get(name).cloned().unwrap_or_else(none);
            (name.clone(), amount)
        };
        pod.counted_requests = Some(own.requests.keys().map(of_name).collect());
    }
}

#[derive(Clone, Copy)]
enum Rule {
    WithWish,
    WithoutWish,
}

fn is_infeasible(status: &v1::PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    let pending = conditions.find(|it| it.type_ == "PodResizePending");
    pending.is_some_and(|it| it.reason.as_deref() == Some("Infeasible"))
}

/// By container name, with their field paths. A name is an init container's or a regular one's.
fn container_statuses(status: &v1::PodStatus) -> BTreeMap<&str, (String, &v1::ContainerStatus)> {
    let lists = [
        ("containerStatuses", &status.container_statuses),
        ("initContainerStatuses", &status.init_container_statuses),
    ];
    let each = lists.into_iter().flat_map(|(field, list)| {
        let list = list.iter().flatten().enumerate();
        list.map(move |(i, it)| {
            let path = format!("status.{field}[{i}]");
            (it.name.as_str(), (path, it))
        })
    });
    each.collect()
}

fn counted(
    rule: Rule,
    wish: &ResourceList,
    held: [Option<&BTreeMap<String, resource::Quantity>>; 2],
    path: &str,
    found: &mut Findings,
) -> ResourceList {
    let mut counted = match rule {
        Rule::WithWish => wish.clone(),
        Rule::WithoutWish => ResourceList::new(),
    };
    let fields = ["resources.requests", "allocatedResources"];
    for (field, list) in fields.into_iter().zip(held) {
        let list = resource_list(list, &format!("{path}.{field}"), found);
        raise(&mut counted, &list);
    }
    counted
}
