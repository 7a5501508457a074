//! v1.Pod to [`Pod`]. Goes on after a fault, so that one reading of a manifest shows all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::api::resource;

use super::findings::{Findings, NEGATIVE};
use super::{
    Container, DEFAULT_TERMINATION_GRACE, FieldFault, HostPathKind, Overhead, Pod, PodLevel,
    PodOrigin, PodUid, QosClass, RESTART_CONTAINER, ResourceList, Resources, RestartPolicy, Volume,
    VolumeSource, built_in_priority, check, env, fields, node_requirements, resize, rules, signals,
};
use crate::model::quantity::Quantity;

/// The entry of a map, as the API server writes it.
pub(super) fn key_path(path: &str, key: &str) -> String {
    format!("{path}[{key}]")
}

pub(super) fn pod(
    source: &v1::Pod,
    origin: PodOrigin,
    allocatable: Option<&ResourceList>,
) -> Result<Pod, Vec<FieldFault>> {
    let mut found = Findings::default();
    let no_spec = v1::PodSpec::default();
    let spec = source.spec.as_ref().unwrap_or(&no_spec);
    let metadata = &source.metadata;
    let of_pod = PodUser::of(spec, &mut found);
    let mut pod = Pod {
        uid: PodUid(metadata.uid.clone().unwrap_or_default()),
        namespace: metadata
            .namespace
            .clone()
            .filter(|it| !it.is_empty())
            .unwrap_or_else(|| "default".to_owned()),
        name: metadata.name.clone().unwrap_or_default(),
        labels: metadata.labels.clone().unwrap_or_default(),
        annotations: metadata.annotations.clone().unwrap_or_default(),
        origin,
        recorded_qos: recorded_qos(source, &mut found),
        priority: spec.priority,
        priority_class_name: spec.priority_class_name.clone().filter(|it| !it.is_empty()),
        node_name: spec.node_name.clone().filter(|it| !it.is_empty()),
        restart_policy: pod_restart_policy(spec, &mut found).unwrap_or_default(),
        termination_grace: termination_grace(spec, &mut found),
        init_containers: containers(spec, ContainerKind::Init, of_pod, &mut found),
        containers: containers(spec, ContainerKind::Regular, of_pod, &mut found),
        overhead: resource_list(spec.overhead.as_ref(), "spec.overhead", &mut found),
        resources: spec
            .resources
            .as_ref()
            .map(|it| resources(Some(it), "spec.resources", &mut found)),
        counted_requests: None,
        volumes: volumes(spec, &mut found),
        node_requirements: node_requirements::of(source, origin, &mut found),
        sysctls: sysctls(spec),
        supplemental_groups: supplemental_groups(spec, &mut found),
        fs_group: id(
            security(spec).and_then(|it| it.fs_group),
            "spec.securityContext.fsGroup",
            &mut found,
        ),
        is_on_host_network: spec.host_network == Some(true),
        is_on_host_pid: spec.host_pid == Some(true),
        is_on_host_ipc: spec.host_ipc == Some(true),
        warnings: Vec::new(),
    };
    resize::count(source, &mut pod, &mut found);
    check::identity(&pod, &mut found);
    match origin {
        PodOrigin::Manifest => {
            unknown_class(&pod, &mut found);
            pod.apply_defaults();
            pod.round_amounts();
            check::relations(&pod, spec, &mut found);
        }
        PodOrigin::Api => check::negative_amounts(&pod, &mut found),
    }
    // Variables may refer to the pod's resources, so they come after the defaults.
    env::resolve(source, &mut pod, allocatable, &mut found);
    if origin == PodOrigin::Manifest {
        fields::judge(&pod.annotations, spec, &mut found);
        rules::judge(spec, &mut found);
    }
    if found.faults.is_empty() {
        pod.warnings = found.warnings;
        Ok(pod)
    } else {
        Err(found.faults)
    }
}

impl Pod {
    /// The API server's defaults for resources: a request that is missing is the limit. Of a pod, a limit of huge pages
    /// that is missing is the containers' sum, unless it requests some; with any limit, a request that is missing is the
    /// containers' sum, or else the limit (pkg/apis/core/v1/defaults.go, v1.36: `SetDefaults_Pod`).
    fn apply_defaults(&mut self) {
        for container in self.init_containers.iter_mut().chain(&mut self.containers) {
            let Resources { requests, limits } = &mut container.resources;
            for (name, limit) in limits {
                requests
                    .entry(name.clone())
                    .or_insert_with(|| limit.clone());
            }
        }
        let requested = self.container_requests();
        let limited = self.limits(PodLevel::Ignored, Overhead::Left).amounts;
        let Some(Resources { requests, limits }) = &mut self.resources else {
            return;
        };
        if requests.is_empty() && limits.is_empty() {
            return;
        }
        for (name, amount) in limited {
            if is_huge_pages(&name) && !requests.contains_key(&name) {
                limits.entry(name).or_insert(amount);
            }
        }
        if limits.is_empty() {
            return;
        }
        // A request of huge pages is the limit, whatever the containers' are.
        let others = requested.iter().filter(|(name, _)| !is_huge_pages(name));
        for (name, amount) in others.chain(&*limits) {
            if super::totals::is_pod_level_resource(name) {
                requests
                    .entry(name.clone())
                    .or_insert_with(|| amount.clone());
            }
        }
    }

    /// After the defaults, which are sums of what is written (`SetDefaults_ResourceList`).
    fn round_amounts(&mut self) {
        let containers = self.init_containers.iter_mut().chain(&mut self.containers);
        let resources = containers.map(|it| &mut it.resources);
        let resources = resources.chain(&mut self.resources);
        let lists = resources.flat_map(|it| [&mut it.requests, &mut it.limits]);
        for list in lists.chain([&mut self.overhead]) {
            for amount in list.values_mut() {
                *amount = amount.in_thousandths();
            }
        }
    }
}

pub(super) fn is_huge_pages(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

fn recorded_qos(source: &v1::Pod, found: &mut Findings) -> Option<QosClass> {
    match source.status.as_ref()?.qos_class.as_deref()? {
        "" => None,
        "Guaranteed" => Some(QosClass::Guaranteed),
        "Burstable" => Some(QosClass::Burstable),
        "BestEffort" => Some(QosClass::BestEffort),
        other => {
            let message = format!("is ignored: {other:?} is no class");
            found.warn("status.qosClass", message);
            None
        }
    }
}

fn pod_restart_policy(spec: &v1::PodSpec, found: &mut Findings) -> Option<RestartPolicy> {
    let given = spec.restart_policy.as_deref().filter(|it| !it.is_empty());
    restart_policy("spec", given?, found)
}

fn restart_policy(path: &str, text: &str, found: &mut Findings) -> Option<RestartPolicy> {
    match text {
        "Always" => Some(RestartPolicy::Always),
        "OnFailure" => Some(RestartPolicy::OnFailure),
        "Never" => Some(RestartPolicy::Never),
        other => {
            let right = ["Always", "OnFailure", "Never"];
            found.unsupported(format!("{path}.restartPolicy"), other, &right);
            None
        }
    }
}

fn termination_grace(spec: &v1::PodSpec, found: &mut Findings) -> Duration {
    match spec.termination_grace_period_seconds {
        None => DEFAULT_TERMINATION_GRACE,
        Some(seconds) => u64::try_from(seconds).map_or_else(
            |_| {
                found.invalid("spec.terminationGracePeriodSeconds", seconds, NEGATIVE);
                DEFAULT_TERMINATION_GRACE
            },
            Duration::from_secs,
        ),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerKind {
    Init,
    Regular,
}

impl ContainerKind {
    /// The containers of this kind, each with its field path.
    pub(super) fn of(self, spec: &v1::PodSpec) -> impl Iterator<Item = (String, &v1::Container)> {
        let (field, list) = match self {
            Self::Init => ("initContainers", spec.init_containers.as_ref()),
            Self::Regular => ("containers", Some(&spec.containers)),
        };
        list.into_iter()
            .flatten()
            .enumerate()
            .map(move |(i, it)| (format!("spec.{field}[{i}]"), it))
    }
}

/// Those that run as long as the pod, sidecars and regular ones, each with its field path.
pub(super) fn lasting_containers(
    spec: &v1::PodSpec,
) -> impl Iterator<Item = (String, &v1::Container)> {
    let sidecars = ContainerKind::Init
        .of(spec)
        .filter(|(_, it)| it.restart_policy.as_deref() == Some("Always"));
    sidecars.chain(ContainerKind::Regular.of(spec))
}

/// What `securityContext` of the pod has for containers that do not say themselves.
#[derive(Clone, Copy)]
struct PodUser {
    user: Option<u32>,
    group: Option<u32>,
    is_non_root: Option<bool>,
}

impl PodUser {
    fn of(spec: &v1::PodSpec, found: &mut Findings) -> Self {
        let own = security(spec);
        let user = own.and_then(|it| it.run_as_user);
        let group = own.and_then(|it| it.run_as_group);
        Self {
            user: id(user, "spec.securityContext.runAsUser", found),
            group: id(group, "spec.securityContext.runAsGroup", found),
            is_non_root: own.and_then(|it| it.run_as_non_root),
        }
    }
}

fn containers(
    spec: &v1::PodSpec,
    kind: ContainerKind,
    of_pod: PodUser,
    found: &mut Findings,
) -> Vec<Container> {
    kind.of(spec)
        .map(|(path, it)| container(it, kind, &path, of_pod, found))
        .collect()
}

fn container(
    source: &v1::Container,
    kind: ContainerKind,
    path: &str,
    of_pod: PodUser,
    found: &mut Findings,
) -> Container {
    let restart = source.restart_policy.as_deref();
    let restart = restart.and_then(|it| restart_policy(path, it, found));
    let is_sidecar = kind == ContainerKind::Init && restart == Some(RestartPolicy::Always);
    let security = source.security_context.as_ref();
    let mut id =
        |field: &str, own: Option<i64>| id(own, &format!("{path}.securityContext.{field}"), found);
    let run_as_user = id("runAsUser", security.and_then(|it| it.run_as_user));
    let run_as_group = id("runAsGroup", security.and_then(|it| it.run_as_group));
    let run_as_non_root = security.and_then(|it| it.run_as_non_root);
    Container {
        name: source.name.clone(),
        image: source.image.clone().unwrap_or_default(),
        command: source.command.clone().unwrap_or_default(),
        args: source.args.clone().unwrap_or_default(),
        env: Vec::new(),
        working_dir: source.working_dir.clone().filter(|it| !it.is_empty()),
        resources: resources(
            source.resources.as_ref(),
            &format!("{path}.resources"),
            found,
        ),
        volume_mounts: source
            .volume_mounts
            .iter()
            .flatten()
            .map(|it| (it.name.clone(), it.mount_path.clone()))
            .collect(),
        sub_paths: sub_paths(source),
        is_sidecar,
        restart_policy: restart.filter(|_| !is_sidecar),
        run_as_user: run_as_user.or(of_pod.user),
        run_as_group: run_as_group.or(of_pod.group),
        run_as_non_root: run_as_non_root.or(of_pod.is_non_root).unwrap_or(false),
        is_privileged: security.and_then(|it| it.privileged) == Some(true),
        resize_restarts: resize_restarts(source),
        stop_signal: stop_signal(source, path, found),
        counted_requests: None,
    }
}

fn sub_paths(source: &v1::Container) -> BTreeSet<(String, String)> {
    let mounts = source.volume_mounts.iter().flatten();
    let of = |it: &v1::VolumeMount| Some((it.name.clone(), it.sub_path.clone()?));
    let sub_paths = mounts.filter_map(of);
    sub_paths.filter(|(_, path)| !path.is_empty()).collect()
}

fn resize_restarts(source: &v1::Container) -> BTreeSet<String> {
    let policies = source.resize_policy.iter().flatten();
    let restarting = policies.filter(|it| it.restart_policy == RESTART_CONTAINER);
    restarting.map(|it| it.resource_name.clone()).collect()
}

fn stop_signal(source: &v1::Container, path: &str, found: &mut Findings) -> Option<u8> {
    let name = source.lifecycle.as_ref()?.stop_signal.as_deref()?;
    let number = signals::number(name);
    if number.is_none() {
        let message =
            format!("Unsupported value: {name:?}: must be the name of a signal, as SIGTERM");
        found.fault(format!("{path}.lifecycle.stopSignal"), message);
    }
    number
}

/// A user or group id: 0..=2147483647, as the API server takes it.
fn id(value: Option<i64>, path: &str, found: &mut Findings) -> Option<u32> {
    let value = value?;
    match i32::try_from(value)
        .ok()
        .and_then(|it| u32::try_from(it).ok())
    {
        Some(id) => Some(id),
        None => {
            found.invalid(path, value, "must be between 0 and 2147483647, inclusive");
            None
        }
    }
}

fn resources(
    source: Option<&v1::ResourceRequirements>,
    path: &str,
    found: &mut Findings,
) -> Resources {
    let Some(source) = source else {
        return Resources::default();
    };
    Resources {
        requests: resource_list(source.requests.as_ref(), &format!("{path}.requests"), found),
        limits: resource_list(source.limits.as_ref(), &format!("{path}.limits"), found),
    }
}

pub(super) fn resource_list(
    source: Option<&BTreeMap<String, resource::Quantity>>,
    path: &str,
    found: &mut Findings,
) -> ResourceList {
    source
        .into_iter()
        .flatten()
        .filter_map(|(name, text)| {
            let amount = quantity(text, &key_path(path, name), found)?;
            Some((name.clone(), amount))
        })
        .collect()
}

/// An amount, which may be negative.
pub(super) fn quantity(
    source: &resource::Quantity,
    path: &str,
    found: &mut Findings,
) -> Option<Quantity> {
    match source.0.trim().parse::<Quantity>() {
        Ok(amount) => Some(amount),
        Err(error) => {
            found.fault(path, error.to_string());
            None
        }
    }
}

/// Nobody else knows the number of a class that a cluster has made.
fn unknown_class(pod: &Pod, found: &mut Findings) {
    if let Some(class) = &pod.priority_class_name
        && pod.priority.is_none()
        && built_in_priority(class).is_none()
    {
        found.warn(
            "spec.priorityClassName",
            format!("`{class}` is not known here and counts as 0; set spec.priority too"),
        );
    }
}

fn security(spec: &v1::PodSpec) -> Option<&v1::PodSecurityContext> {
    spec.security_context.as_ref()
}

fn supplemental_groups(spec: &v1::PodSpec, found: &mut Findings) -> Vec<u32> {
    let groups = security(spec).and_then(|it| it.supplemental_groups.as_ref());
    let groups = groups.into_iter().flatten().enumerate();
    let path = |i| format!("spec.securityContext.supplementalGroups[{i}]");
    groups
        .filter_map(|(i, it)| id(Some(*it), &path(i), found))
        .collect()
}

fn sysctls(spec: &v1::PodSpec) -> Vec<String> {
    let sysctls = security(spec).and_then(|it| it.sysctls.as_ref());
    let names = sysctls.into_iter().flatten().map(|it| it.name.clone());
    names.collect()
}

fn volumes(spec: &v1::PodSpec, found: &mut Findings) -> Vec<Volume> {
    spec.volumes
        .iter()
        .flatten()
        .enumerate()
        .map(|(i, it)| Volume {
            name: it.name.clone(),
            source: volume_source(it, &format!("spec.volumes[{i}]"), found),
        })
        .collect()
}

fn volume_source(volume: &v1::Volume, path: &str, found: &mut Findings) -> VolumeSource {
    let empty_dir = |it: Option<&v1::EmptyDirVolumeSource>, found: &mut Findings| {
        let at = format!("{path}.emptyDir.sizeLimit");
        let size_limit = it.and_then(|it| it.size_limit.as_ref());
        let size_limit = size_limit.and_then(|it| quantity(it, &at, found));
        if size_limit.as_ref().is_some_and(Quantity::is_negative) {
            found.forbidden(at, NEGATIVE);
        }
        VolumeSource::EmptyDir {
            // Of any other medium it is on the node's disk, which is told.
            memory: it.and_then(|it| it.medium.as_deref()) == Some("Memory"),
            size_limit,
        }
    };
    if let Some(it) = &volume.empty_dir {
        return empty_dir(Some(it), found);
    }
    if let Some(it) = &volume.host_path {
        let at = format!("{path}.hostPath.path");
        let text = it.type_.as_deref().unwrap_or_default();
        let kind = HostPathKind::of(text);
        if it.path.is_empty() {
            found.required(at, "");
        } else {
            if check::has_backsteps(&it.path) {
                found.invalid(at, it.path.as_str(), check::BACKSTEPS);
            } else if !it.path.starts_with('/') {
                found.invalid(at, it.path.as_str(), "must be an absolute path");
            }
            if kind.is_none() {
                let right = HostPathKind::ALL.map(|(name, _)| name);
                found.unsupported(format!("{path}.hostPath.type"), text, &right);
            }
        }
        return VolumeSource::HostPath {
            path: it.path.clone(),
            kind: kind.unwrap_or_default(),
        };
    }
    // The kind is the one other field that is set; without any the API server makes it emptyDir.
    let fields = serde_json::to_value(volume).unwrap_or_default();
    match fields
        .as_object()
        .and_then(|it| it.keys().find(|it| *it != "name"))
    {
        Some(kind) => VolumeSource::Other { kind: kind.clone() },
        None => empty_dir(None, found),
    }
}
