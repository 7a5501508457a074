//! What becomes of every field of PodSpec (v1 of Kubernetes 1.36) in a manifest. The one place that says it; what
//! [`Pod`](super::Pod) has, and the warnings, follow.
//!
//! Source of the refusals: what kubelet does not take from a file (kubelet/util/util.go and pod/util.go of
//! Kubernetes 1.36: a static pod may not refer to objects of the API), and the API server's rules for a new pod.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::Weight;
use super::convert::{ContainerKind, key_path, lasting_containers};
use super::findings::Findings;

/// What a field does here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// The agent goes by it, or its fields have rows of their own, or it is for people alone.
    Honoured,
    /// Told as a warning, unless it is empty or one of `unless`: those ask for what happens in any case.
    Ignored {
        unless: &'static [&'static str],
        because: Because,
    },
    /// A fault, unless it is empty.
    Refused(Because),
}

/// Why a field has no effect, or is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    ApiServer,
    Capabilities,
    Claims,
    ConfigMaps,
    Credentials,
    Deadline,
    Drivers,
    Ephemeral,
    Endpoints,
    Hooks,
    Images,
    Isolation,
    Medium,
    Mounts,
    Namespaces,
    Network,
    Probes,
    Restarts,
    Runtime,
    Scheduler,
    Secrets,
    ServiceAccounts,
    Streams,
    Sysctls,
    TerminationMessages,
    Users,
    Volumes,
    Windows,
}

impl Because {
    /// Whoever would go by the field is not here, or what it asks for is done in another way: a pod without it runs as
    /// this one does.
    const fn is_minor(self) -> bool {
        matches!(
            self,
            Self::ApiServer
                | Self::Capabilities
                | Self::Images
                | Self::Scheduler
                | Self::TerminationMessages
                | Self::Windows
        )
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiServer => {
                "there is no API server to which conditions and services of a pod are known"
            }
            Self::Capabilities => {
                "root has those of the agent in any case, and others those of their program's file"
            }
            Self::Claims => "static pods may not reference claims, which only an API server has",
            Self::ConfigMaps => {
                "static pods may not reference configmaps, which only an API server has"
            }
            Self::Credentials => {
                "static pods may not reference credentials, which only an API server gives out"
            }
            Self::Deadline => "the time that a pod runs is not limited",
            Self::Drivers => {
                "static pods may not reference csidrivers, which only an API server has"
            }
            Self::Ephemeral => {
                "ephemeral containers are added to a pod that runs, never by its definition"
            }
            Self::Endpoints => {
                "static pods may not reference endpoints, which only an API server has"
            }
            Self::Hooks => "hooks are not run",
            Self::Images => "the process runtime uses no images",
            Self::Isolation => {
                "the process runtime confines no process but by its cgroup and its user"
            }
            Self::Medium => {
                "right would be \"\" or Memory; a directory on the node's disk is made instead"
            }
            Self::Mounts => "the process runtime mounts nothing: processes see the host's files",
            Self::Namespaces => "processes are in the namespaces of the host",
            Self::Network => "processes have the network and the names of the host",
            Self::Probes => "containers are not probed",
            Self::Restarts => "the restart policy alone decides",
            Self::Runtime => "the process runtime has no handlers",
            Self::Scheduler => "the pod is on this node, so nobody schedules it",
            Self::Secrets => "static pods may not reference secrets, which only an API server has",
            Self::ServiceAccounts => {
                "static pods may not reference serviceaccounts, which only an API server has"
            }
            Self::Streams => "processes have no standard input and no terminal",
            Self::Sysctls => "sysctls of pods are not set",
            Self::TerminationMessages => "termination messages are not read",
            Self::Users => "the process runtime makes no user namespaces",
            Self::Volumes => "this kind of volume is not provided: the pod runs without it",
            Self::Windows => "this is a node of Linux",
        })
    }
}

/// Field to treatment. `[]`: any of a list. Init containers have the rows of `containers[]`.
pub const FIELDS: &[(&str, Treatment)] = {
    use Because::*;
    use Treatment::*;
    const fn ignored(because: Because) -> Treatment {
        Ignored {
            unless: &[],
            because,
        }
    }
    const fn unless(unless: &'static [&'static str], because: Because) -> Treatment {
        Ignored { unless, because }
    }
    &[
        ("activeDeadlineSeconds", ignored(Deadline)),
        ("affinity", Honoured),
        ("affinity.nodeAffinity", Honoured),
        (
            "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution",
            ignored(Scheduler),
        ),
        (
            "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
            Honoured,
        ),
        ("affinity.podAffinity", ignored(Scheduler)),
        ("affinity.podAntiAffinity", ignored(Scheduler)),
        (
            "automountServiceAccountToken",
            unless(&["false"], Because::ApiServer),
        ),
        ("containers", Honoured),
        ("containers[].args", Honoured),
        ("containers[].command", Honoured),
        // References in them are faults of their own, which name the variable.
        ("containers[].env", Honoured),
        ("containers[].envFrom", Honoured),
        // A label of metrics.
        ("containers[].image", Honoured),
        (
            "containers[].imagePullPolicy",
            unless(&["Always", "IfNotPresent", "Never"], Images),
        ),
        ("containers[].lifecycle", Honoured),
        ("containers[].lifecycle.postStart", ignored(Hooks)),
        ("containers[].lifecycle.preStop", ignored(Hooks)),
        ("containers[].lifecycle.stopSignal", Honoured),
        ("containers[].livenessProbe", ignored(Probes)),
        ("containers[].name", Honoured),
        // A port of the host that two pods ask for is a conflict; another one that they name is told.
        ("containers[].ports", Honoured),
        ("containers[].readinessProbe", ignored(Probes)),
        ("containers[].resizePolicy", Honoured),
        ("containers[].resources", Honoured),
        ("containers[].resources.claims", Refused(Claims)),
        ("containers[].resources.limits", Honoured),
        ("containers[].resources.requests", Honoured),
        ("containers[].restartPolicy", Honoured),
        ("containers[].restartPolicyRules", ignored(Restarts)),
        ("containers[].securityContext", Honoured),
        (
            "containers[].securityContext.allowPrivilegeEscalation",
            unless(&["true"], Isolation),
        ),
        ("containers[].securityContext.appArmorProfile", Honoured),
        (
            "containers[].securityContext.appArmorProfile.localhostProfile",
            Honoured,
        ),
        (
            "containers[].securityContext.appArmorProfile.type",
            unless(&["Unconfined"], Isolation),
        ),
        ("containers[].securityContext.capabilities", Honoured),
        (
            "containers[].securityContext.capabilities.add",
            ignored(Capabilities),
        ),
        (
            "containers[].securityContext.capabilities.drop",
            ignored(Isolation),
        ),
        ("containers[].securityContext.privileged", Honoured),
        (
            "containers[].securityContext.procMount",
            unless(&["Default"], Mounts),
        ),
        (
            "containers[].securityContext.readOnlyRootFilesystem",
            unless(&["false"], Mounts),
        ),
        ("containers[].securityContext.runAsGroup", Honoured),
        ("containers[].securityContext.runAsNonRoot", Honoured),
        ("containers[].securityContext.runAsUser", Honoured),
        (
            "containers[].securityContext.seLinuxOptions",
            ignored(Isolation),
        ),
        ("containers[].securityContext.seccompProfile", Honoured),
        (
            "containers[].securityContext.seccompProfile.localhostProfile",
            Honoured,
        ),
        (
            "containers[].securityContext.seccompProfile.type",
            unless(&["Unconfined"], Isolation),
        ),
        (
            "containers[].securityContext.windowsOptions",
            ignored(Windows),
        ),
        ("containers[].startupProbe", ignored(Probes)),
        ("containers[].stdin", unless(&["false"], Streams)),
        ("containers[].stdinOnce", unless(&["false"], Streams)),
        (
            "containers[].terminationMessagePath",
            unless(&["/dev/termination-log"], TerminationMessages),
        ),
        (
            "containers[].terminationMessagePolicy",
            // With the other the end of the log is the message, and the log is there.
            unless(&["File", "FallbackToLogsOnError"], TerminationMessages),
        ),
        ("containers[].tty", unless(&["false"], Streams)),
        ("containers[].volumeDevices", ignored(Mounts)),
        ("containers[].volumeMounts", Honoured),
        // Told where the volume is elsewhere.
        ("containers[].volumeMounts[].mountPath", Honoured),
        (
            "containers[].volumeMounts[].mountPropagation",
            unless(&["None"], Mounts),
        ),
        ("containers[].volumeMounts[].name", Honoured),
        (
            "containers[].volumeMounts[].readOnly",
            unless(&["false"], Mounts),
        ),
        (
            "containers[].volumeMounts[].recursiveReadOnly",
            unless(&["Disabled"], Mounts),
        ),
        // Made in an emptyDir, and told with mountPath.
        ("containers[].volumeMounts[].subPath", Honoured),
        ("containers[].volumeMounts[].subPathExpr", ignored(Mounts)),
        ("containers[].workingDir", Honoured),
        ("dnsConfig", ignored(Network)),
        // The first is what a manifest gets that says nothing, the other what it gets here.
        ("dnsPolicy", unless(&["ClusterFirst", "Default"], Network)),
        // There are none.
        ("enableServiceLinks", unless(&["false", "true"], ApiServer)),
        ("ephemeralContainers", Refused(Ephemeral)),
        ("hostAliases", ignored(Network)),
        ("hostIPC", Honoured),
        ("hostNetwork", Honoured),
        // So are all.
        ("hostPID", Honoured),
        ("hostUsers", unless(&["true"], Users)),
        ("hostname", ignored(Network)),
        ("hostnameOverride", ignored(Network)),
        ("imagePullSecrets", Honoured),
        // Kubelet takes a reference without a name for none.
        ("imagePullSecrets[].name", Refused(Secrets)),
        ("initContainers", Honoured),
        // Whatever it names, the pod is on this one.
        ("nodeName", Honoured),
        ("nodeSelector", Honoured),
        ("os", Honoured),
        ("overhead", Honoured),
        (
            "preemptionPolicy",
            unless(&["PreemptLowerPriority"], Scheduler),
        ),
        ("priority", Honoured),
        ("priorityClassName", Honoured),
        ("readinessGates", ignored(ApiServer)),
        ("resourceClaims", Refused(Claims)),
        ("resources", Honoured),
        ("resources.claims", Refused(Claims)),
        ("resources.limits", Honoured),
        ("resources.requests", Honoured),
        ("restartPolicy", Honoured),
        ("runtimeClassName", ignored(Runtime)),
        ("schedulerName", unless(&["default-scheduler"], Scheduler)),
        ("schedulingGates", Refused(Scheduler)),
        ("schedulingGroup", ignored(Scheduler)),
        ("securityContext", Honoured),
        ("securityContext.appArmorProfile", Honoured),
        ("securityContext.appArmorProfile.localhostProfile", Honoured),
        (
            "securityContext.appArmorProfile.type",
            unless(&["Unconfined"], Isolation),
        ),
        ("securityContext.fsGroup", Honoured),
        // Of volumes that are not made for a pod, and none of these is there.
        ("securityContext.fsGroupChangePolicy", Honoured),
        ("securityContext.runAsGroup", Honoured),
        ("securityContext.runAsNonRoot", Honoured),
        ("securityContext.runAsUser", Honoured),
        ("securityContext.seLinuxChangePolicy", ignored(Isolation)),
        ("securityContext.seLinuxOptions", ignored(Isolation)),
        ("securityContext.seccompProfile", Honoured),
        ("securityContext.seccompProfile.localhostProfile", Honoured),
        (
            "securityContext.seccompProfile.type",
            unless(&["Unconfined"], Isolation),
        ),
        ("securityContext.supplementalGroups", Honoured),
        // Part of what a pod requires of its node.
        ("securityContext.supplementalGroupsPolicy", Honoured),
        ("securityContext.sysctls", ignored(Sysctls)),
        ("securityContext.windowsOptions", ignored(Windows)),
        ("serviceAccount", Refused(ServiceAccounts)),
        ("serviceAccountName", Refused(ServiceAccounts)),
        ("setHostnameAsFQDN", unless(&["false"], Network)),
        ("shareProcessNamespace", unless(&["false"], Namespaces)),
        ("subdomain", ignored(Network)),
        ("terminationGracePeriodSeconds", Honoured),
        ("tolerations", Honoured),
        ("topologySpreadConstraints", ignored(Scheduler)),
        ("volumes", Honoured),
        ("volumes[].awsElasticBlockStore", ignored(Volumes)),
        ("volumes[].azureDisk", ignored(Volumes)),
        ("volumes[].azureFile", Refused(Secrets)),
        ("volumes[].cephfs", ignored(Volumes)),
        ("volumes[].cephfs.secretRef", Refused(Secrets)),
        ("volumes[].cinder", ignored(Volumes)),
        ("volumes[].cinder.secretRef", Refused(Secrets)),
        ("volumes[].configMap", Refused(ConfigMaps)),
        ("volumes[].csi", Refused(Drivers)),
        ("volumes[].downwardAPI", ignored(Volumes)),
        ("volumes[].emptyDir", Honoured),
        ("volumes[].emptyDir.medium", unless(&["Memory"], Medium)),
        ("volumes[].emptyDir.sizeLimit", Honoured),
        ("volumes[].ephemeral", Refused(Claims)),
        ("volumes[].fc", ignored(Volumes)),
        ("volumes[].flexVolume", ignored(Volumes)),
        ("volumes[].flexVolume.secretRef", Refused(Secrets)),
        ("volumes[].flocker", ignored(Volumes)),
        ("volumes[].gcePersistentDisk", ignored(Volumes)),
        ("volumes[].gitRepo", ignored(Volumes)),
        ("volumes[].glusterfs", Refused(Endpoints)),
        ("volumes[].hostPath", Honoured),
        ("volumes[].hostPath.path", Honoured),
        ("volumes[].hostPath.type", Honoured),
        ("volumes[].image", ignored(Volumes)),
        ("volumes[].iscsi", ignored(Volumes)),
        ("volumes[].iscsi.secretRef", Refused(Secrets)),
        ("volumes[].name", Honoured),
        ("volumes[].nfs", ignored(Volumes)),
        ("volumes[].persistentVolumeClaim", Refused(Claims)),
        ("volumes[].photonPersistentDisk", ignored(Volumes)),
        ("volumes[].portworxVolume", ignored(Volumes)),
        ("volumes[].projected", ignored(Volumes)),
        (
            "volumes[].projected.sources[].clusterTrustBundle",
            Refused(Credentials),
        ),
        (
            "volumes[].projected.sources[].configMap",
            Refused(ConfigMaps),
        ),
        ("volumes[].projected.sources[].downwardAPI", Honoured),
        (
            "volumes[].projected.sources[].podCertificate",
            Refused(Credentials),
        ),
        ("volumes[].projected.sources[].secret", Refused(Secrets)),
        (
            "volumes[].projected.sources[].serviceAccountToken",
            Refused(ServiceAccounts),
        ),
        ("volumes[].quobyte", ignored(Volumes)),
        ("volumes[].rbd", ignored(Volumes)),
        ("volumes[].rbd.secretRef", Refused(Secrets)),
        ("volumes[].scaleIO", ignored(Volumes)),
        ("volumes[].scaleIO.secretRef", Refused(Secrets)),
        ("volumes[].secret", Refused(Secrets)),
        ("volumes[].storageos", ignored(Volumes)),
        ("volumes[].storageos.secretRef", Refused(Secrets)),
        ("volumes[].vsphereVolume", ignored(Volumes)),
    ]
};

/// An annotation of this name and that of a container has its profile, in a static pod for kubelet too
/// (pkg/security/apparmor/helpers.go, v1.36).
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Tells what of a manifest has no effect, and what is refused.
pub(super) fn judge(
    annotations: &BTreeMap<String, String>,
    spec: &v1::PodSpec,
    found: &mut Findings,
) {
    for (name, profile) in annotations {
        if name.starts_with(APPARMOR) && !matches!(profile.as_str(), "" | "unconfined") {
            found.warn(
                key_path("metadata.annotations", name),
                format!("is ignored: {}", Because::Isolation),
            );
        }
    }
    let fields = serde_json::to_value(spec).unwrap_or_default();
    walk("", "", &fields, found);
    programs(spec, found);
    if spec.host_network != Some(true) {
        ports(spec, found);
    }
}

/// Without a command the entry point of an image is run, with the arguments.
fn programs(spec: &v1::PodSpec, found: &mut Findings) {
    let all = [ContainerKind::Init, ContainerKind::Regular];
    for (path, container) in all.into_iter().flat_map(|it| it.of(spec)) {
        let is_none = |it: &Option<Vec<String>>| it.as_ref().is_none_or(Vec::is_empty);
        if !is_none(&container.command) {
            continue;
        }
        let (weight, instead) = match is_none(&container.args) {
            true => (Weight::Stops, "nothing can be started"),
            false => (Weight::Differs, "args[0] is the program"),
        };
        found.weigh(
            weight,
            format!("{path}.command"),
            format!("is missing, so {instead}: {}", Because::Images),
        );
    }
}

/// Of a pod on the host's network the rules take only equal ones.
fn ports(spec: &v1::PodSpec, found: &mut Findings) {
    for (path, container) in lasting_containers(spec) {
        for (p, port) in container.ports.iter().flatten().enumerate() {
            let Some(host_port) = port.host_port.filter(|it| *it != 0) else {
                continue;
            };
            if host_port != port.container_port {
                found.warn(
                    format!("{path}.ports[{p}].hostPort"),
                    format!("is not mapped to containerPort: {}", Because::Network),
                );
            }
            let address = port.host_ip.as_deref().unwrap_or_default();
            if !matches!(address, "" | "0.0.0.0" | "::") {
                found.warn(
                    format!("{path}.ports[{p}].hostIP"),
                    format!(
                        "does not restrict the port to this address: {}",
                        Because::Network
                    ),
                );
            }
        }
    }
}

/// `path` is the field as it stands in the manifest below `spec`, `row` as it stands in the table.
fn walk(path: &str, row: &str, value: &Value, found: &mut Findings) {
    if is_empty(row, value) {
        return;
    }
    let treatment = FIELDS.binary_search_by_key(&row, |(field, _)| field);
    match treatment.ok().map(|i| &FIELDS[i].1) {
        Some(Treatment::Ignored { unless, because }) if !unless.contains(&&*text(value)) => {
            let (path, message) = (format!("spec.{path}"), format!("is ignored: {because}"));
            match because.is_minor() {
                true => found.note(path, message),
                false => found.warn(path, message),
            }
        }
        Some(Treatment::Refused(because)) => {
            found.forbidden(format!("spec.{path}"), &because.to_string());
        }
        Some(Treatment::Honoured | Treatment::Ignored { .. }) | None => {}
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let of_row = match name.as_str() {
                    "initContainers" if row.is_empty() => "containers",
                    name => name,
                };
                walk(&below(path, name), &below(row, of_row), value, found);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                walk(&format!("{path}[{i}]"), &format!("{row}[]"), item, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn below(path: &str, field: &str) -> String {
    match path {
        "" => field.to_owned(),
        path => format!("{path}.{field}"),
    }
}

/// It asks for nothing.
fn is_empty(row: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        // A `secret: {}` is a volume.
        Value::Object(fields) => fields.is_empty() && !row.starts_with("volumes[]"),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
