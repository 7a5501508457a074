//! A manifest that changes under the UID that it names itself: what of the pod goes on, and what begins anew.
//!
//! A manifest without a UID of its own is another pod with each change. One with it is the same pod, as it is for
//! kubelet: its limits change in place, and a container whose process would be started otherwise is started anew, alone.
//! So is one that has another amount of a resource for which its `resizePolicy` says `RestartContainer`. What cannot
//! change while the pod is there ends it, in its grace, and it begins anew under its UID.

use crate::decide::lifecycle::spec_hash;
use crate::decide::qos::qos_class;
use crate::model::pod::{Container, Pod, ResourceList, Resources, cpu_in, memory_in};
use crate::model::quantity::Quantity;
use crate::units::{Bytes, MilliCpu};

/// What a new definition does to the pod that is there. The fields are those that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    InPlace(Vec<String>),
    Anew(Vec<String>),
}

/// How the pod is that has another definition now.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// It has ended, was refused or is evicted.
    pub is_over: bool,
    /// It was given CPUs, memory or devices of its own, for what it requested.
    pub has_holdings: bool,
}

/// Both are of one UID.
pub fn change(old: &Pod, new: &Pod, standing: Standing) -> Change {
    let fields = changed_fields(old, new);
    // Whoever labels what has ended does not want it again.
    let is_about_it = |field: &String| field.starts_with("metadata.");
    let is_stale = standing.is_over && !fields.iter().all(is_about_it);
    if fields.is_empty() {
        Change::None
    } else if !is_stale && goes_on(old, new, standing) {
        Change::InPlace(fields)
    } else {
        Change::Anew(fields)
    }
}

fn goes_on(old: &Pod, new: &Pod, standing: Standing) -> bool {
    (&old.namespace, &old.name) == (&new.namespace, &new.name)
        && old.volumes == new.volumes
        && groups(old) == groups(new)
        // The place of its cgroup.
        && qos_class(old) == qos_class(new)
        && are_equal_but(&old.init_containers, &new.init_containers, |old, new| {
            // What it did was for those that run now.
            is_same_process(old, new) && (old.is_sidecar || is_same_program(old, new))
        })
        && are_equal_but(&old.containers, &new.containers, is_same_process)
        && (all_resources(old) == all_resources(new)
            || !standing.has_holdings && keeps_limits(old, new))
}

/// Whether two readings of one text ask for the same of the node: by two versions of the agent, or on a node that has
/// another name or size by now.
pub fn asks_for_the_same(old: &Pod, new: &Pod) -> bool {
    let are_namesakes = |old: &Container, new: &Container| old.name == new.name;
    are_equal_but(&old.init_containers, &new.init_containers, are_namesakes)
        && are_equal_but(&old.containers, &new.containers, are_namesakes)
        && qos_class(old) == qos_class(new)
        && all_resources(old) == all_resources(new)
}

/// Those of all its processes.
fn groups(pod: &Pod) -> (&[u32], Option<u32>, bool) {
    let is_strict = pod.node_requirements.has_strict_groups;
    (&pod.supplemental_groups, pod.fs_group, is_strict)
}

/// The same containers in the same order, each as `is_same` has it.
fn are_equal_but(
    old: &[Container],
    new: &[Container],
    is_same: impl Fn(&Container, &Container) -> bool,
) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| is_same(old, new))
}

/// What the hash of a container does not tell, and its process has from its start.
fn is_same_process(old: &Container, new: &Container) -> bool {
    let of = |it: &Container| {
        (
            it.is_sidecar,
            it.run_as_user,
            it.run_as_group,
            it.run_as_non_root,
            it.is_privileged,
        )
    };
    old.name == new.name && of(old) == of(new)
}

/// Whether a container would be started as it was. Variables that are amounts of resources have the values of its
/// start, as for kubelet: else each other amount would start it anew.
pub fn is_same_program(old: &Container, new: &Container) -> bool {
    let mut old = old.clone();
    for (old, new) in old.env.iter_mut().zip(&new.env) {
        if new.is_of_resources && old.name == new.name {
            old.value.clone_from(&new.value);
        }
    }
    spec_hash(&old) == spec_hash(new)
}

/// Whether a container that goes on with its pod is to be started anew, since it has another amount of a resource for
/// which its `resizePolicy` says so: request or limit, as kubelet compares them
/// (pkg/kubelet/kuberuntime/kuberuntime_manager.go, v1.36: `computePodResizeAction`).
pub fn is_restarted(old: &Pod, new: &Pod, name: &str) -> bool {
    let named = |it: &&Container| it.name == name;
    let (before, now) = (
        old.all_containers().find(named),
        new.all_containers().find(named),
    );
    let (Some(before), Some(now)) = (before, now) else {
        return false;
    };
    let mut restarting = now.resize_restarts.iter();
    restarting.any(|it| amounts(old, before, it) != amounts(new, now, it))
}

/// Request and limit of a container, in the unit of the resource; 0: none. Without a limit of its own it has the pod's.
fn amounts(pod: &Pod, container: &Container, resource: &str) -> [u64; 2] {
    let amount = |list: &ResourceList| match resource {
        "cpu" => cpu_in(list).map_or(0, |MilliCpu(it)| it),
        _ => memory_in(list).map_or(0, |Bytes(it)| it),
    };
    let own = &container.resources;
    let limit = match (amount(&own.limits), &pod.resources) {
        (0, Some(of_pod)) => amount(&of_pod.limits),
        (limit, _) => limit,
    };
    [amount(&own.requests), limit]
}

type AllResources<'a> = (Vec<&'a Resources>, Option<&'a Resources>, &'a ResourceList);

fn all_resources(pod: &Pod) -> AllResources<'_> {
    let of_containers = pod.all_containers().map(|it| &it.resources);
    (
        of_containers.collect(),
        pod.resources.as_ref(),
        &pod.overhead,
    )
}

/// A limit that is gone would stay in the cgroup.
fn keeps_limits(old: &Pod, new: &Pod) -> bool {
    let is_limit = |amount: &Quantity| amount.is_positive();
    let keeps = |old: &Resources, new: &Resources| {
        let mut limits = old.limits.iter().filter(|(_, it)| is_limit(it));
        limits.all(|(name, _)| new.limits.get(name).is_some_and(is_limit))
    };
    let mut containers = old.all_containers().zip(new.all_containers());
    containers.all(|(old, new)| keeps(&old.resources, &new.resources))
        && match (&old.resources, &new.resources) {
            (Some(old), Some(new)) => keeps(old, new),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
}

/// By their paths in the manifest. Empty: it is the same definition.
fn changed_fields(old: &Pod, new: &Pod) -> Vec<String> {
    // Named one by one: a field that is new is an error here until it is compared.
    let Pod {
        uid: _,
        namespace,
        name,
        labels,
        annotations,
        origin: _,
        recorded_qos,
        priority,
        priority_class_name,
        node_name: _,
        restart_policy,
        termination_grace,
        init_containers,
        containers,
        overhead,
        resources,
        counted_requests,
        volumes,
        node_requirements,
        sysctls,
        supplemental_groups,
        fs_group,
        is_on_host_network,
        is_on_host_pid,
        is_on_host_ipc,
        warnings: _,
    } = old;
    let fields = [
        ("metadata.namespace", *namespace != new.namespace),
        ("metadata.name", *name != new.name),
        ("metadata.labels", *labels != new.labels),
        ("metadata.annotations", *annotations != new.annotations),
        (
            "status",
            *recorded_qos != new.recorded_qos || *counted_requests != new.counted_requests,
        ),
        ("spec.priority", *priority != new.priority),
        (
            "spec.priorityClassName",
            *priority_class_name != new.priority_class_name,
        ),
        ("spec.restartPolicy", *restart_policy != new.restart_policy),
        (
            "spec.terminationGracePeriodSeconds",
            *termination_grace != new.termination_grace,
        ),
        ("spec.overhead", *overhead != new.overhead),
        ("spec.resources", *resources != new.resources),
        ("spec.volumes", *volumes != new.volumes),
        (
            "what spec requires of its node",
            *node_requirements != new.node_requirements,
        ),
        ("spec.securityContext.sysctls", *sysctls != new.sysctls),
        (
            "spec.securityContext.supplementalGroups",
            *supplemental_groups != new.supplemental_groups,
        ),
        ("spec.securityContext.fsGroup", *fs_group != new.fs_group),
        (
            "spec.hostNetwork",
            *is_on_host_network != new.is_on_host_network,
        ),
        ("spec.hostPID", *is_on_host_pid != new.is_on_host_pid),
        ("spec.hostIPC", *is_on_host_ipc != new.is_on_host_ipc),
    ];
    let fields = fields.into_iter().filter(|(_, is_other)| *is_other);
    let mut changed: Vec<String> = fields.map(|(field, _)| field.to_owned()).collect();
    for (field, old, new) in [
        ("initContainers", init_containers, &new.init_containers),
        ("containers", containers, &new.containers),
    ] {
        if old.len() != new.len() {
            changed.push(format!("spec.{field}"));
            continue;
        }
        for (i, (old, new)) in old.iter().zip(new).enumerate() {
            let of_container = changed_container_fields(old, new);
            changed.extend(of_container.map(|it| format!("spec.{field}[{i}].{it}")));
        }
    }
    changed
}

fn changed_container_fields(
    old: &Container,
    new: &Container,
) -> impl Iterator<Item = &'static str> {
    let Container {
        name,
        image,
        command,
        args,
        env,
        working_dir,
        resources,
        volume_mounts,
        sub_paths,
        is_sidecar,
        restart_policy,
        run_as_user,
        run_as_group,
        run_as_non_root,
        is_privileged,
        resize_restarts,
        stop_signal,
        counted_requests,
    } = old;
    [
        ("name", *name != new.name),
        ("image", *image != new.image),
        ("command", *command != new.command),
        ("args", *args != new.args),
        ("env", *env != new.env),
        ("workingDir", *working_dir != new.working_dir),
        (
            "resources",
            *resources != new.resources || *counted_requests != new.counted_requests,
        ),
        ("resizePolicy", *resize_restarts != new.resize_restarts),
        ("lifecycle", *stop_signal != new.stop_signal),
        (
            "volumeMounts",
            *volume_mounts != new.volume_mounts || *sub_paths != new.sub_paths,
        ),
        (
            "restartPolicy",
            *is_sidecar != new.is_sidecar || *restart_policy != new.restart_policy,
        ),
        (
            "securityContext",
            *run_as_user != new.run_as_user
                || *run_as_group != new.run_as_group
                || *run_as_non_root != new.run_as_non_root
                || *is_privileged != new.is_privileged,
        ),
    ]
    .into_iter()
    .filter_map(|(field, is_other)| is_other.then_some(field))
}

#[cfg(test)]
mod tests;
