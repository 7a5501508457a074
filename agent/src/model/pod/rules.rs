//! Rules of the API server for a new pod (pkg/apis/core/validation/validation.go, v1.36) that need the definition as it is
//! written: what breaks them is not in [`Pod`](super::Pod) any more. Texts and fields are those of the API server, but
//! for `downwarAPI` and `cephFS`, as it calls two kinds of volumes that no manifest has by these names.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::RESTART_CONTAINER;
use super::check::{SUBDOMAIN_RULE, is_dns_subdomain, is_label_value, is_qualified_name};
use super::convert::ContainerKind;
use super::findings::Findings;
use super::node_requirements::{KEY_RULE, TaintEffect, VALUE_RULE, host_port, protocol};

/// In the order in which the API server looks: the first that is set counts (`validateVolumeSource`).
const VOLUME_KINDS: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

pub(super) fn judge(spec: &v1::PodSpec, found: &mut Findings) {
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        volume_kinds(volume, &format!("spec.volumes[{i}]"), found);
    }
    for (i, it) in spec.tolerations.iter().flatten().enumerate() {
        toleration(it, &format!("spec.tolerations[{i}]"), found);
    }
    let is_on_host_network = spec.host_network == Some(true);
    if is_on_host_network {
        for (path, container) in ContainerKind::Regular.of(spec) {
            for (i, port) in container.ports.iter().flatten().enumerate() {
                equal_ports(port, &format!("{path}.ports[{i}].hostPort"), found);
            }
        }
    }
    unique_host_ports(ContainerKind::Regular.of(spec), is_on_host_network, found);
    for init in ContainerKind::Init.of(spec) {
        unique_host_ports([init], is_on_host_network, found);
    }
    for kind in [ContainerKind::Init, ContainerKind::Regular] {
        for (path, container) in kind.of(spec) {
            for (i, it) in container.ports.iter().flatten().enumerate() {
                port(it, is_on_host_network, &format!("{path}.ports[{i}]"), found);
            }
            let security = container.security_context.as_ref();
            if security.is_some_and(is_contradictory) {
                found.invalid(
                    format!("{path}.securityContext"),
                    "",
                    "cannot set `allowPrivilegeEscalation` to false and `privileged` to true",
                );
            }
            let path = format!("{path}.resizePolicy");
            resize_policy(
                container,
                kind,
                spec.restart_policy.as_deref(),
                &path,
                found,
            );
        }
    }
    if let Some(os) = &spec.os {
        match os.name.as_str() {
            "" => found.required("spec.os.name", ""),
            "linux" => {}
            "windows" => of_windows(spec, found),
            other => found.unsupported("spec.os", other, &["linux", "windows"]),
        }
    }
    let class = spec.priority_class_name.as_deref().unwrap_or_default();
    if !class.is_empty() && !is_dns_subdomain(class) {
        found.invalid("spec.priorityClassName", class, SUBDOMAIN_RULE);
    }
    let policy = spec.security_context.as_ref();
    let policy = policy.and_then(|it| it.supplemental_groups_policy.as_deref());
    if let Some(policy) = policy.filter(|it| !matches!(*it, "Merge" | "Strict")) {
        let path = "spec.securityContext.supplementalGroupsPolicy";
        found.unsupported(path, policy, &["Merge", "Strict"]);
    }
}

/// `validateWindows`, `validatePodResources`: what a pod of Windows must not set, as far as it counts here.
fn of_windows(spec: &v1::PodSpec, found: &mut Findings) {
    let fields = [
        ("hostIPC", spec.host_ipc == Some(true)),
        ("hostPID", spec.host_pid == Some(true)),
        ("resources", spec.resources.is_some()),
    ];
    for (field, _) in fields.into_iter().filter(|(_, is_set)| *is_set) {
        found.forbidden(format!("spec.{field}"), "cannot be set for a windows pod");
    }
}

/// `ValidateTolerations`
fn toleration(source: &v1::Toleration, path: &str, found: &mut Findings) {
    let text = |it: &Option<String>| it.clone().unwrap_or_default();
    let [key, value] = [&source.key, &source.value].map(text);
    let [operator, effect] = [&source.operator, &source.effect].map(text);
    let operator_at = format!("{path}.operator");
    if !key.is_empty() && !is_qualified_name(&key) {
        found.invalid(format!("{path}.key"), key.as_str(), KEY_RULE);
    }
    if key.is_empty() && operator != "Exists" {
        found.invalid(
            &operator_at,
            operator.as_str(),
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        );
    }
    if source.toleration_seconds.is_some() && effect != "NoExecute" {
        found.invalid(
            format!("{path}.effect"),
            effect.as_str(),
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        );
    }
    match operator.as_str() {
        "" | "Equal" if !is_label_value(&value) => {
            found.invalid(operator_at, value, VALUE_RULE);
        }
        "Exists" if !value.is_empty() => {
            let rule = "value must be empty when `operator` is 'Exists'";
            found.invalid(operator_at, value, rule);
        }
        "" | "Equal" | "Exists" => {}
        // `Lt` and `Gt` are behind the feature gate TaintTolerationComparisonOperators, which is off.
        _ => found.unsupported(operator_at, &operator, &["Equal", "Exists"]),
    }
    if !effect.is_empty() && TaintEffect::parse(&effect).is_none() {
        let right = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        found.unsupported(format!("{path}.effect"), &effect, &right);
    }
}

/// `validateContainerPorts`, without names
fn port(port: &v1::ContainerPort, takes_all: bool, path: &str, found: &mut Findings) {
    let is_port = |it: i32| (1..=65535).contains(&it);
    let container_port = port.container_port;
    if container_port == 0 {
        found.required(format!("{path}.containerPort"), "");
    } else if !is_port(container_port) {
        found.invalid(format!("{path}.containerPort"), container_port, PORT_RULE);
    }
    if let Some(host_port) = host_port(port, takes_all).filter(|it| !is_port(*it)) {
        found.invalid(format!("{path}.hostPort"), host_port, PORT_RULE);
    }
    if let Err(other) = protocol(port) {
        found.unsupported(format!("{path}.protocol"), other, &["SCTP", "TCP", "UDP"]);
    }
}

const PORT_RULE: &str = "must be between 1 and 65535, inclusive";

/// `checkHostPortConflicts`
fn unique_host_ports<'a>(
    containers: impl IntoIterator<Item = (String, &'a v1::Container)>,
    takes_all: bool,
    found: &mut Findings,
) {
    let mut seen = BTreeSet::new();
    for (path, container) in containers {
        for (i, port) in container.ports.iter().flatten().enumerate() {
            let Some(number) = host_port(port, takes_all) else {
                continue;
            };
            let protocol = port.protocol.as_deref().filter(|it| !it.is_empty());
            let protocol = protocol.unwrap_or("TCP");
            let address = port.host_ip.as_deref().unwrap_or_default();
            let port = format!("{protocol}/{address}/{number}");
            if seen.contains(&port) {
                found.duplicate(format!("{path}.ports[{i}].hostPort"), &port);
            }
            seen.insert(port);
        }
    }
}

/// `ValidateSecurityContext`
fn is_contradictory(security: &v1::SecurityContext) -> bool {
    security.privileged == Some(true) && security.allow_privilege_escalation == Some(false)
}

/// `validateHostNetwork`, of a pod on the network of the host. One that is not given is the containerPort.
fn equal_ports(port: &v1::ContainerPort, path: &str, found: &mut Findings) {
    let given = port.host_port.filter(|it| *it != 0);
    if let Some(given) = given.filter(|it| *it != port.container_port) {
        let rule = "must match `containerPort` when `hostNetwork` is true";
        found.invalid(path, given, rule);
    }
}

/// `validateResizePolicy`; and, of an init container that is no sidecar, `validateInitContainers`. `of_pod`: the
/// `restartPolicy` of the pod.
fn resize_policy(
    container: &v1::Container,
    kind: ContainerKind,
    of_pod: Option<&str>,
    path: &str,
    found: &mut Findings,
) {
    const NOT_REQUIRED: &str = "NotRequired";
    let is_sidecar = container.restart_policy.as_deref() == Some("Always");
    let mut seen = BTreeSet::new();
    for (i, it) in container.resize_policy.iter().flatten().enumerate() {
        let (resource, policy) = (it.resource_name.as_str(), it.restart_policy.as_str());
        if !seen.insert(resource) {
            found.duplicate(format!("{path}[{i}]"), resource);
        }
        match resource {
            "cpu" | "memory" => {}
            "" => found.required(path, "resourceName"),
            _ => found.unsupported(path, resource, &["cpu", "memory"]),
        }
        match policy {
            NOT_REQUIRED | RESTART_CONTAINER => {}
            "" => found.required(path, "restartPolicy"),
            _ => found.unsupported(path, policy, &[NOT_REQUIRED, RESTART_CONTAINER]),
        }
        if of_pod == Some("Never") && policy != NOT_REQUIRED {
            found.invalid(
                path,
                policy,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            );
        }
        if kind == ContainerKind::Init && !is_sidecar && policy == RESTART_CONTAINER {
            found.invalid(
                format!("{path}[{i}].restartPolicy"),
                policy,
                "must not be set to 'RestartContainer' for non-sidecar initContainers",
            );
        }
    }
}

fn volume_kinds(volume: &v1::Volume, path: &str, found: &mut Findings) {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let is_set = |kind: &&str| fields.get(*kind).is_some_and(|it| *it != Value::Null);
    for kind in VOLUME_KINDS.into_iter().filter(is_set).skip(1) {
        found.forbidden(
            format!("{path}.{kind}"),
            "may not specify more than 1 volume type",
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(mut spec: Value) -> Vec<String> {
        spec["containers"] = json!([{"name": "app", "command": ["run"]}]);
        let spec = serde_json::from_value(spec).expect("a spec");
        let mut found = Findings::default();
        judge(&spec, &mut found);
        assert_eq!(found.warnings, []);
        found.faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_volume_is_of_one_kind() {
        let volumes = json!([
            {"name": "a", "emptyDir": {}, "hostPath": {"path": "/v"}},
            {"name": "b", "configMap": {"name": "c"}, "nfs": {"server": "s", "path": "/"}, "image": {}},
            {"name": "c"},
            {"name": "d", "hostPath": {"path": "/v"}, "emptyDir": null},
        ]);
        let of = |field: &str| {
            format!("spec.volumes{field}: Forbidden: may not specify more than 1 volume type")
        };
        let right = [of("[0].hostPath"), of("[1].configMap"), of("[1].image")];
        assert_eq!(faults(json!({"volumes": volumes})), right);
    }

    /// Ports of init containers are not looked at.
    #[test]
    fn a_port_on_the_network_of_the_host_is_its_own() {
        let of = |on_host: bool, port: Value| {
            let init = json!([{"name": "init", "ports": [{"containerPort": 1, "hostPort": 2}]}]);
            let mut spec = json!({"hostNetwork": on_host, "initContainers": init});
            let ports = json!([{"containerPort": 81}, port]);
            spec["containers"] = json!([{"name": "app", "ports": ports}]);
            let spec = serde_json::from_value(spec).expect("a spec");
            let mut found = Findings::default();
            judge(&spec, &mut found);
            let faults = found.faults.iter().map(ToString::to_string);
            faults.collect::<Vec<_>>()
        };
        let other = json!({"containerPort": 80, "hostPort": 8080});
        let right = "spec.containers[0].ports[1].hostPort: Invalid value: 8080: must match `containerPort` when \
                     `hostNetwork` is true";
        assert_eq!(of(true, other.clone()), [right]);
        assert_eq!(of(false, other), [""; 0]);
        for host_port in [0, 80] {
            let port = json!({"containerPort": 80, "hostPort": host_port});
            assert_eq!(of(true, port), [""; 0]);
        }
    }

    #[test]
    fn a_toleration_is_as_the_api_server_takes_it() {
        for (toleration, right) in [
            (json!({"operator": "Exists"}), &[][..]),
            (
                json!({"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}),
                &[],
            ),
            (
                json!({"key": "a.example/b", "operator": "Equal", "value": "c"}),
                &[],
            ),
            (
                json!({"key": "a", "operator": "", "value": "", "effect": ""}),
                &[],
            ),
            (
                json!({"key": "a", "operator": "Exists", "value": "b"}),
                &[
                    r#"operator: Invalid value: "b": value must be empty when `operator` is 'Exists'"#,
                ],
            ),
            (
                json!({"key": "a", "operator": "Foo"}),
                &[r#"operator: Unsupported value: "Foo": supported values: "Equal", "Exists""#],
            ),
            (
                json!({"key": "a", "operator": "Lt", "value": "1"}),
                &[r#"operator: Unsupported value: "Lt": supported values: "Equal", "Exists""#],
            ),
            (
                json!({"key": "a", "effect": "NoSchedule", "tolerationSeconds": 5}),
                &[
                    r#"effect: Invalid value: "NoSchedule": effect must be 'NoExecute' when `tolerationSeconds` is set"#,
                ],
            ),
            (
                json!({"key": "a", "effect": "Foo"}),
                &[
                    r#"effect: Unsupported value: "Foo": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
                ],
            ),
            (
                json!({"value": "b c"}),
                &[
                    "operator: Invalid value: \"\": operator must be Exists when `key` is empty, which means \
                     \"match all values and all keys\"",
                    r#"operator: Invalid value: "b c": LABEL"#,
                ],
            ),
            (
                json!({"key": "a b"}),
                &[r#"key: Invalid value: "a b": KEY"#],
            ),
        ] {
            let found = faults(json!({"tolerations": [{"operator": "Exists"}, toleration]}));
            let right: Vec<String> = right
                .iter()
                .map(|it| it.replace("LABEL", VALUE_RULE).replace("KEY", KEY_RULE))
                .map(|it| format!("spec.tolerations[1].{it}"))
                .collect();
            assert_eq!(found, right, "{toleration}");
        }
    }

    #[test]
    fn a_resize_policy_is_as_the_api_server_takes_it() {
        let of = |policy: &str, list: &str, container: &Value| {
            let mut spec = json!({"restartPolicy": policy, "containers": []});
            spec[list] = json!([container]);
            let spec = serde_json::from_value(spec).expect("a spec");
            let mut found = Findings::default();
            judge(&spec, &mut found);
            let faults = found.faults.iter().map(ToString::to_string);
            faults.collect::<Vec<_>>()
        };
        let with = |policies: &[(&str, &str)]| {
            let policies = policies.iter().map(
                |(resource, policy)| json!({"resourceName": resource, "restartPolicy": policy}),
            );
            let policies: Vec<Value> = policies.collect();
            json!({"name": "a", "resizePolicy": policies})
        };
        for (policies, right) in [
            (&[][..], &[][..]),
            (
                &[("cpu", "NotRequired"), ("memory", "RestartContainer")],
                &[],
            ),
            (
                &[("cpu", "NotRequired"), ("cpu", "RestartContainer")],
                &[r#"[1]: Duplicate value: "cpu""#],
            ),
            (
                &[("", ""), ("pids", "Restart")],
                &[
                    ": Required value: resourceName",
                    ": Required value: restartPolicy",
                    r#": Unsupported value: "pids": supported values: "cpu", "memory""#,
                    r#": Unsupported value: "Restart": supported values: "NotRequired", "RestartContainer""#,
                ],
            ),
        ] {
            let right = right
                .iter()
                .map(|it| format!("spec.containers[0].resizePolicy{it}"));
            let right: Vec<String> = right.collect();
            assert_eq!(of("Always", "containers", &with(policies)), right);
        }
        let restarts = with(&[("memory", "RestartContainer")]);
        assert_eq!(
            of("Never", "containers", &restarts),
            [
                "spec.containers[0].resizePolicy: Invalid value: \"RestartContainer\": must be 'NotRequired' when pod \
                 `restartPolicy` is 'Never'"
            ]
        );
        let in_place = with(&[("memory", "NotRequired")]);
        assert_eq!(of("Never", "containers", &in_place), [""; 0]);
        assert_eq!(
            of("Always", "initContainers", &restarts),
            [
                "spec.initContainers[0].resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be \
                 set to 'RestartContainer' for non-sidecar initContainers"
            ]
        );
        let mut sidecar = restarts;
        sidecar["restartPolicy"] = json!("Always");
        assert_eq!(of("Always", "initContainers", &sidecar), [""; 0]);
    }

    #[test]
    fn a_port_is_one_and_of_the_host_once() {
        let of = |list: &str, ports: Value| {
            let mut spec = json!({"containers": []});
            spec[list] = json!([{"name": "a", "ports": ports}, {"name": "b", "ports": [{"containerPort": 1, "hostPort": 1}]}]);
            let spec = serde_json::from_value(spec).expect("a spec");
            let mut found = Findings::default();
            judge(&spec, &mut found);
            let faults = found.faults.iter().map(ToString::to_string);
            faults.collect::<Vec<_>>()
        };
        let same = || json!([{"containerPort": 2, "hostPort": 1}]);
        let right = r#"spec.containers[1].ports[0].hostPort: Duplicate value: "TCP//1""#;
        assert_eq!(of("containers", same()), [right]);
        // They run one after the other.
        assert_eq!(of("initContainers", same()), [""; 0]);
        let others = json!([
            {"containerPort": 2, "hostPort": 1, "protocol": "UDP"},
            {"containerPort": 2, "hostPort": 1, "hostIP": "192.0.2.1"},
        ]);
        assert_eq!(of("containers", others), [""; 0]);
        let wrong = json!([{}, {"containerPort": -1, "hostPort": 70000, "protocol": "tcp"}]);
        let right = [
            "[0].containerPort: Required value",
            "[1].containerPort: Invalid value: -1: must be between 1 and 65535, inclusive",
            "[1].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            r#"[1].protocol: Unsupported value: "tcp": supported values: "SCTP", "TCP", "UDP""#,
        ];
        let right = right.map(|it| format!("spec.initContainers[0].ports{it}"));
        assert_eq!(of("initContainers", wrong), right);
    }

    #[test]
    fn what_contradicts_itself_or_is_nothing_is_refused() {
        let os = |name: &str| faults(json!({"os": {"name": name}}));
        assert_eq!(os("linux"), [""; 0]);
        // Refused by the node.
        assert_eq!(os("windows"), [""; 0]);
        assert_eq!(os(""), ["spec.os.name: Required value"]);
        let right = r#"spec.os: Unsupported value: "Linux": supported values: "linux", "windows""#;
        assert_eq!(os("Linux"), [right]);
        for (field, value) in [
            ("hostIPC", json!(true)),
            ("hostPID", json!(true)),
            ("resources", json!({})),
        ] {
            let of = |os: &str| faults(json!({"os": {"name": os}, field: value}));
            assert_eq!(of("linux"), [""; 0]);
            let right = format!("spec.{field}: Forbidden: cannot be set for a windows pod");
            assert_eq!(of("windows"), [right]);
        }
        assert_eq!(faults(json!({"priorityClassName": "high"})), [""; 0]);
        let class = faults(json!({"priorityClassName": "Very High"}));
        let right =
            format!(r#"spec.priorityClassName: Invalid value: "Very High": {SUBDOMAIN_RULE}"#);
        assert_eq!(class, [right]);
        let both = json!({"privileged": true, "allowPrivilegeEscalation": false});
        let both = faults(json!({"initContainers": [{"name": "a", "securityContext": both}]}));
        let right = "spec.initContainers[0].securityContext: Invalid value: \"\": cannot set `allowPrivilegeEscalation` \
                     to false and `privileged` to true";
        assert_eq!(both, [right]);
    }

    #[test]
    fn a_policy_of_groups_is_one_that_there_is() {
        let of =
            |policy: &str| faults(json!({"securityContext": {"supplementalGroupsPolicy": policy}}));
        assert_eq!(of("Merge"), [""; 0]);
        assert_eq!(of("Strict"), [""; 0]);
        let right = "spec.securityContext.supplementalGroupsPolicy: Unsupported value: \"strict\": supported values: \
                     \"Merge\", \"Strict\"";
        assert_eq!(of("strict"), [right]);
    }

    #[test]
    fn every_kind_of_volume_is_known() {
        let rows = super::super::fields::FIELDS.iter().map(|(name, _)| *name);
        let kinds = rows.filter_map(|it| it.strip_prefix("volumes[]."));
        let kinds: BTreeSet<&str> = kinds
            .filter(|it| !it.contains('.') && *it != "name")
            .collect();
        assert_eq!(kinds, BTreeSet::from(VOLUME_KINDS));
    }
}
