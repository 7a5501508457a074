use serde_json::{Value, json};

use super::*;

fn convert(source: Value, origin: PodOrigin) -> Result<Pod, Vec<FieldFault>> {
    let source = v1::Pod::deserialize(ApiValue(&source)).expect("a v1.Pod");
    Pod::from_v1(&source, origin)
}

/// A manifest around `spec`, whose containers run something.
fn manifest(mut spec: Value) -> Value {
    for list in ["containers", "initContainers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(fields) = container.as_object_mut() {
                fields.entry("command").or_insert_with(|| json!(["run"]));
            }
        }
    }
    json!({
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "0a1b",
            "labels": {"app": "web"},
            "annotations": {"example.org/note": "hello"},
        },
        "spec": spec,
    })
}

#[track_caller]
fn good(spec: Value) -> Pod {
    convert(manifest(spec), PodOrigin::Manifest).unwrap_or_else(|faults| panic!("{faults:?}"))
}

#[track_caller]
fn faults(spec: Value) -> Vec<String> {
    let faults = convert(manifest(spec), PodOrigin::Manifest).expect_err("a fault");
    faults.iter().map(ToString::to_string).collect()
}

#[test]
fn a_manifest_becomes_a_pod_with_its_defaults() {
    let pod = good(json!({
        "initContainers": [
            {"name": "proxy", "image": "p", "restartPolicy": "Always"},
            {"name": "prepare", "image": "p", "workingDir": "/tmp"},
        ],
        "containers": [{
            "name": "app",
            "image": "i",
            "command": ["sleep"],
            "args": ["1"],
            "resources": {"limits": {"cpu": 2, "memory": "1Gi"}, "requests": {"memory": "512Mi"}},
            "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        }],
        "volumes": [
            {"name": "scratch"},
            {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "host", "hostPath": {"path": "/srv"}},
            {"name": "conf", "nfs": {"server": "s", "path": "/"}},
        ],
        "securityContext": {"runAsUser": 1000},
        "priority": 7,
    }));
    assert_eq!(pod.full_name(), "shop/web");
    assert_eq!(pod.restart_policy, RestartPolicy::Always);
    assert_eq!(pod.termination_grace, Duration::from_secs(30));
    assert_eq!(
        pod.init_containers
            .iter()
            .map(|it| it.is_sidecar)
            .collect::<Vec<_>>(),
        [true, false]
    );
    let app = &pod.containers[0];
    assert_eq!(
        app.resources.requests["cpu"].milli_value(),
        2000,
        "a missing request is the limit"
    );
    assert_eq!(app.resources.requests["memory"].to_string(), "512Mi");
    assert_eq!((app.run_as_user, app.run_as_group), (Some(1000), None));
    assert_eq!(
        app.volume_mounts,
        [("scratch".to_owned(), "/scratch".to_owned())]
    );
    let sources: Vec<&VolumeSource> = pod.volumes.iter().map(|it| &it.source).collect();
    assert_eq!(
        sources,
        [
            &VolumeSource::EmptyDir {
                memory: false,
                size_limit: None
            },
            &VolumeSource::EmptyDir {
                memory: true,
                size_limit: Some(Quantity::from_bytes(64 << 20))
            },
            &VolumeSource::HostPath {
                path: "/srv".to_owned(),
                kind: HostPathKind::Any,
            },
            &VolumeSource::Other {
                kind: "nfs".to_owned()
            },
        ]
    );
    assert!(pod.is_static() && pod.is_critical() && !pod.is_mirror());
    let warned: Vec<&str> = pod.warnings.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(
        warned,
        [
            "spec.containers[0].volumeMounts[0].mountPath",
            "spec.volumes[3].nfs"
        ]
    );
}

#[test]
fn a_volume_on_huge_pages_is_on_disk_with_its_limit_and_told() {
    for medium in ["HugePages", "HugePages-2Mi"] {
        let pod = good(json!({
            "containers": [{"name": "app"}],
            "volumes": [{"name": "v", "emptyDir": {"medium": medium, "sizeLimit": "64Mi"}}],
        }));
        let on_disk = VolumeSource::EmptyDir {
            memory: false,
            size_limit: Some(Quantity::from_bytes(64 << 20)),
        };
        assert_eq!(pod.volumes[0].source, on_disk, "{medium}");
        let warned: Vec<&str> = pod.warnings.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(warned, ["spec.volumes[0].emptyDir.medium"]);
    }
}

#[test]
fn every_fault_is_reported_with_its_path() {
    let mut source = manifest(json!({
        "restartPolicy": "Sometimes",
        "terminationGracePeriodSeconds": -1,
        "initContainers": [{"name": "app"}],
        "containers": [
            {"name": "app", "resources": {"requests": {"cpu": "2", "memory": "-1"}, "limits": {"cpu": "1"}}},
            {"name": "Not_A_Label", "resources": {"limits": {"cpu": "1 core", "gpu.example/a": "1"}}},
            {"resources": {"requests": {"gpu.example/a": "500m", "widgets": "1"}}, "name": ""},
            {"name": "mounts", "volumeMounts": [{"name": "none", "mountPath": ""}]},
            {"name": "user", "securityContext": {"runAsUser": -1}},
        ],
        "volumes": [{"name": "v", "hostPath": {"path": "srv"}}, {"name": "v"}],
    }));
    source["metadata"] = json!({"namespace": "a.b", "uid": "a_b"});
    let faults = convert(source, PodOrigin::Manifest).expect_err("faults");
    let paths: Vec<&str> = faults.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.restartPolicy",
            "spec.terminationGracePeriodSeconds",
            "spec.containers[1].resources.limits[cpu]",
            "spec.containers[4].securityContext.runAsUser",
            "spec.volumes[0].hostPath.path",
            "metadata.uid",
            "metadata.name",
            "metadata.namespace",
            "spec.containers[1].name",
            "spec.containers[2].name",
            "spec.initContainers[0].name",
            "spec.volumes[1].name",
            "spec.containers[0].resources.requests[memory]",
            "spec.containers[0].resources.requests",
            "spec.containers[2].resources.requests[gpu.example/a]",
            "spec.containers[2].resources.requests[widgets]",
            "spec.containers[2].resources.limits",
            "spec.containers[3].volumeMounts[0].name",
            "spec.containers[3].volumeMounts[0].mountPath",
        ]
    );
    for text in [
        r#"spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1"#,
        r#"spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never""#,
        "spec.containers[2].name: Required value",
        r#"spec.initContainers[0].name: Duplicate value: "app""#,
        r#"spec.containers[3].volumeMounts[0].name: Not found: "none""#,
    ] {
        assert!(
            faults.iter().any(|it| it.to_string() == text),
            "{text}: {faults:?}"
        );
    }
}

#[test]
fn a_name_that_is_missing_twice_is_a_duplicate_of_containers() {
    let named = |name: &str| json!({"name": name});
    let found = faults(json!({
        "initContainers": [named(""), named("a")],
        "containers": [named("a"), named(""), named("")],
    }));
    assert_eq!(
        found,
        [
            "spec.containers[1].name: Required value",
            r#"spec.containers[2].name: Duplicate value: """#,
            "spec.containers[2].name: Required value",
            r#"spec.initContainers[0].name: Duplicate value: """#,
            "spec.initContainers[0].name: Required value",
            r#"spec.initContainers[1].name: Duplicate value: "a""#,
        ]
    );
    let init = json!({"initContainers": [named(""), named("")], "containers": [named("a")]});
    let required = |i: usize| format!("spec.initContainers[{i}].name: Required value");
    assert_eq!(faults(init), [required(0), required(1)]);
}

#[test]
fn a_mount_is_not_a_device_too() {
    let mount = |name: &str, path: &str| json!({"name": name, "mountPath": path});
    let found = faults(json!({
        "containers": [{
            "name": "a",
            "volumeMounts": [mount("v", "/v"), mount("w", "/dev/x")],
            "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}],
        }],
        "volumes": [{"name": "v"}, {"name": "w"}],
    }));
    assert_eq!(
        found,
        [
            r#"spec.containers[0].volumeMounts[0].name: Invalid value: "v": must not already exist in volumeDevices"#,
            r#"spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/dev/x": must not already exist as a path in volumeDevices"#,
        ]
    );
}

/// That of the pod is not a fault of each container that it would be for.
#[test]
fn a_user_of_the_pod_is_told_once() {
    let container = |name: &str| json!({"name": name, "securityContext": {"runAsUser": 1}});
    let spec = |user: Value| {
        json!({
            "containers": [container("a"), {"name": "b"}, {"name": "c"}],
            "securityContext": {"runAsUser": user},
        })
    };
    let right = "spec.securityContext.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive";
    assert_eq!(faults(spec(json!(-1))), [right]);
    let users = good(spec(json!(7))).containers.into_iter();
    let users: Vec<_> = users.map(|it| it.run_as_user).collect();
    assert_eq!(users, [Some(1), Some(7), Some(7)]);
}

#[test]
fn a_pod_without_containers_or_spec_is_at_fault() {
    assert_eq!(
        faults(json!({"containers": []})),
        ["spec.containers: Required value"]
    );
    let bare = convert(
        json!({"metadata": {"name": "a", "uid": "u"}}),
        PodOrigin::Manifest,
    );
    let paths: Vec<String> = bare
        .expect_err("faults")
        .into_iter()
        .map(|it| it.path)
        .collect();
    assert_eq!(paths, ["spec.containers"]);
}

#[test]
fn hugepages_need_equal_whole_pages() {
    let of = |request: &str, limit: &str| {
        faults(json!({"containers": [{"name": "a", "resources": {
            "requests": {"cpu": "1", "hugepages-2Mi": request}, "limits": {"hugepages-2Mi": limit},
        }}]}))
    };
    let at = "spec.containers[0].resources.requests";
    assert_eq!(
        of("2Mi", "4Mi"),
        [format!(
            r#"{at}: Invalid value: "2Mi": must be equal to hugepages-2Mi limit of 4Mi"#
        )]
    );
    let right = r#"[hugepages-2Mi]: Invalid value: "3Mi": 3Mi is not positive integer multiple of hugepages-2Mi"#;
    assert_eq!(of("3Mi", "3Mi")[0], format!("{at}{right}"));
    let odd = json!({"cpu": "1", "hugepages-+2Mi": "2Mi"});
    let odd = json!({"containers": [{"name": "a", "resources": {"requests": odd, "limits": odd}}]});
    assert!(faults(odd)[0].contains("must be a standard resource"));
}

#[test]
fn amounts_of_a_manifest_are_in_thousandths() {
    let of = |name: &str, request: &str, limit: &str| {
        json!({"containers": [{"name": "a", "resources": {
            "requests": {name: request}, "limits": {name: limit},
        }}]})
    };
    let fine = of("cpu", "0.0002", "0.0001");
    let requested = |pod: Pod| pod.containers[0].resources.requests["cpu"].to_string();
    assert_eq!(requested(good(fine.clone())), "1m");
    let of_api = convert(manifest(fine), PodOrigin::Api).expect("a pod");
    assert_eq!(requested(of_api), "200u");
    good(of("gpu.example/a", "10P", "10P"));
    assert_eq!(faults(of("gpu.example/a", "0.0001", "0.0001")).len(), 2);
    // The default of a pod is the sum of what is written.
    let container =
        |name: &str| json!({"name": name, "resources": {"requests": {"cpu": "0.0001"}}});
    assert_eq!(
        faults(json!({
            "containers": [container("a"), container("b")],
            "resources": {"limits": {"cpu": "1"}},
        })),
        [
            r#"spec.resources.requests[cpu]: Invalid value: "1m": must be greater than or equal to aggregate container requests of 2m"#
        ]
    );
}

#[test]
fn pod_level_values_must_hold_the_containers() {
    let spec = |resources: Value| {
        json!({
            "containers": [{"name": "a", "resources": {
                "requests": {"cpu": "2"}, "limits": {"cpu": "4"},
            }}],
            "resources": resources,
        })
    };
    let low = faults(spec(
        json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}),
    ));
    assert_eq!(
        low,
        [
            r#"spec.resources.requests[cpu]: Invalid value: "1": must be greater than or equal to aggregate container requests of 2"#,
            r#"spec.containers[0].resources.limits[cpu]: Invalid value: "4": must be less than or equal to pod limits of 3"#,
        ]
    );
    let other = faults(spec(
        json!({"limits": {"cpu": "4", "ephemeral-storage": "1Gi"}}),
    ));
    assert!(
        other[0].starts_with("spec.resources.limits[ephemeral-storage]: Unsupported value: "),
        "{other:?}"
    );
    let of_quota = faults(spec(
        json!({"requests": {"cpu": 2, "gpus": 1, "pods": "500m", "requests.cpu": 1}}),
    ));
    let at = "spec.resources.requests";
    let right = r#"supported values: "cpu", "hugepages-", "memory""#;
    assert_eq!(
        of_quota,
        [
            format!(
                r#"{at}[gpus]: Invalid value: "gpus": must be a standard resource type or fully qualified"#
            ),
            format!(r#"{at}[pods]: Unsupported value: "pods": {right}"#),
            format!(r#"{at}[pods]: Invalid value: "500m": must be an integer"#),
            format!(r#"{at}[requests.cpu]: Unsupported value: "requests.cpu": {right}"#),
        ]
    );
    let mut of_windows = spec(json!({"limits": {"cpu": "3", "pods": 1}}));
    of_windows["os"] = json!({"name": "windows"});
    let right = "spec.resources: Forbidden: cannot be set for a windows pod";
    assert_eq!(faults(of_windows), [right]);
    // Missing pod-level requests are the containers' sum, else the pod-level limit.
    let pod = good(spec(json!({"limits": {"cpu": "5", "memory": "1Gi"}})));
    let requests = &pod.resources.expect("pod-level resources").requests;
    assert_eq!(
        (requests["cpu"].value(), requests["memory"].value()),
        (2, 1 << 30)
    );
}

#[test]
fn a_pod_of_the_api_server_is_taken_as_it_is() {
    let source = manifest(json!({"containers": [{
        "name": "a",
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1", "memory": "1Gi"}},
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    }]}));
    let pod = convert(source, PodOrigin::Api).expect("no relation is checked");
    assert_eq!(
        pod.containers[0].resources.requests.get("memory"),
        None,
        "no defaults"
    );
    assert!(pod.containers[0].env.is_empty());
    assert_eq!(
        pod.warnings[0].path,
        "spec.containers[0].env[0].valueFrom.secretKeyRef"
    );
    assert!(!pod.is_static());
}

#[test]
fn a_static_pod_shows_by_its_annotation_too() {
    let mut source = manifest(json!({"containers": [{"name": "a"}]}));
    source["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "file"});
    assert!(
        convert(source.clone(), PodOrigin::Api)
            .expect("a pod")
            .is_static()
    );
    source["metadata"]["annotations"] = json!({"kubernetes.io/config.source": "api"});
    assert!(
        !convert(source, PodOrigin::Manifest)
            .expect("a pod")
            .is_static()
    );
}

fn variables(env: Value, status: Value) -> Result<Pod, Vec<FieldFault>> {
    let mut source = manifest(json!({
        "nodeName": "n1",
        "containers": [
            {"name": "a", "env": env, "resources": {
                "limits": {"cpu": "1500m", "memory": "1Gi"}, "requests": {"cpu": "250m"},
            }},
            {"name": "b", "resources": {"limits": {"memory": "2Gi"}}},
        ],
    }));
    source["status"] = status;
    convert(source, PodOrigin::Manifest)
}

#[test]
fn variables_are_resolved_from_the_pod() {
    let field = |path: &str| json!({"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let resource = |name: &str, divisor: Value, container: &str| {
        let from = json!({"resource": name, "divisor": divisor, "containerName": container});
        json!({"name": "X", "valueFrom": {"resourceFieldRef": from}})
    };
    let status = json!({"podIP": "10.0.0.1", "hostIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]});
    for (variable, value) in [
        (json!({"name": "X", "value": "$(HOME)/x"}), "$(HOME)/x"),
        (json!({"name": "X"}), ""),
        (field("metadata.name"), "web"),
        (field("metadata.namespace"), "shop"),
        (field("metadata.uid"), "0a1b"),
        (field("metadata.labels['app']"), "web"),
        (field("metadata.labels['none']"), ""),
        (field("metadata.annotations['example.org/note']"), "hello"),
        (field("spec.nodeName"), "n1"),
        (field("spec.host"), "n1"),
        (field("spec.serviceAccountName"), ""),
        (field("status.podIP"), "10.0.0.1"),
        (field("status.hostIPs"), "1.1.1.1,::1"),
        (resource("limits.cpu", json!(null), ""), "2"),
        (resource("limits.cpu", json!("1m"), ""), "1500"),
        (resource("limits.cpu", json!(0), ""), "2"),
        (resource("requests.cpu", json!("100m"), "a"), "3"),
        (resource("limits.memory", json!("1Mi"), "a"), "1024"),
        (resource("requests.memory", json!("1"), "b"), "2147483648"),
        (resource("requests.cpu", json!("1"), "b"), "0"),
    ] {
        let pod = variables(json!([variable]), status.clone())
            .unwrap_or_else(|faults| panic!("{variable}: {faults:?}"));
        assert_eq!(pod.containers[0].env[0].value, value, "{variable}");
        assert!(pod.warnings.is_empty(), "{variable}: {:?}", pod.warnings);
    }
}

#[test]
fn variables_that_cannot_be_resolved_say_so() {
    let from = |source: Value| json!([{"name": "X", "valueFrom": source}]);
    let no_status = || json!({});
    for (env, path) in [
        (json!([{"name": "A=B"}]), "name"),
        (json!([{"name": "\u{e4}"}]), "name"),
        (json!([{"name": "X", "value": "a\0b"}]), "value"),
        (from(json!({})), "valueFrom"),
        (
            from(json!({"fieldRef": {"fieldPath": "spec.x"}})),
            "valueFrom.fieldRef.fieldPath",
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.labels"}})),
            "valueFrom.fieldRef.fieldPath",
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "status.hostIP", "apiVersion": "v2"}})),
            "valueFrom.fieldRef.fieldPath",
        ),
        (
            from(json!({"fieldRef": {"fieldPath": "metadata.labels['a b']"}})),
            "valueFrom.fieldRef",
        ),
        (
            from(json!({
                "fieldRef": {"fieldPath": "metadata.name"},
                "resourceFieldRef": {"resource": "limits.cpu"},
            })),
            "valueFrom",
        ),
        (
            from(json!({"configMapKeyRef": {"name": "c", "key": "k"}})),
            "valueFrom.configMapKeyRef",
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.pods"}})),
            "valueFrom.resourceFieldRef.resource",
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "b"}})),
            "valueFrom.resourceFieldRef.resource",
        ),
        (
            from(json!({"resourceFieldRef": {"resource": "limits.cpu", "containerName": "c"}})),
            "valueFrom.resourceFieldRef.containerName",
        ),
    ] {
        let faults = variables(env.clone(), no_status()).expect_err("a fault");
        assert_eq!(
            faults[0].path,
            format!("spec.containers[0].env[0].{path}"),
            "{env}"
        );
    }
    let several = json!({
        "fieldRef": {"fieldPath": "spec.x"},
        "resourceFieldRef": {"resource": "limits.pods", "divisor": "-1"},
    });
    let several = variables(from(several), no_status()).expect_err("faults");
    let paths: Vec<&str> = several.iter().map(|it| it.path.as_str()).collect();
    let at = "spec.containers[0].env[0].valueFrom";
    assert_eq!(
        paths,
        [
            at.to_owned(),
            format!("{at}.fieldRef.fieldPath"),
            format!("{at}.resourceFieldRef.resource"),
        ]
    );
    for (field, reference) in [
        (
            "resource",
            json!({"containerName": "c", "resource": "limits.pods"}),
        ),
        (
            "divisor",
            json!({"containerName": "c", "resource": "limits.cpu", "divisor": "-1"}),
        ),
    ] {
        let source = from(json!({"resourceFieldRef": reference}));
        let faults = variables(source, no_status()).expect_err("faults");
        let paths: Vec<&str> = faults.iter().map(|it| it.path.as_str()).collect();
        let right = ["containerName", field].map(|it| format!("{at}.resourceFieldRef.{it}"));
        assert_eq!(paths, right);
    }
    let optional = json!({"secretKeyRef": {"name": "s", "key": "k", "optional": true}});
    let pod = variables(from(optional), no_status()).expect("left out");
    assert!(pod.containers[0].env.is_empty() && pod.warnings.len() == 1);
    let of_file = json!({"fileKeyRef": {"volumeName": "v", "path": "env", "key": "k"}});
    let of_file = variables(from(of_file), no_status()).expect_err("a fault");
    assert_eq!(
        of_file[0].message,
        "Forbidden: its file may be written after the pod is let in; give a value, or mark it optional"
    );
    let both = json!([{"name": "X", "value": "a", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}]);
    let both = variables(both, no_status()).expect_err("a fault");
    assert_eq!(
        both[0].to_string(),
        "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty"
    );
    for field in ["hostIP", "hostIPs", "podIP", "podIPs"] {
        let of_status = json!({"fieldRef": {"fieldPath": format!("status.{field}")}});
        let pod = variables(from(of_status), no_status()).expect("of the node");
        assert!(pod.containers[0].env[0].is_node_address, "{field}");
        assert_eq!(pod.warnings, []);
    }
    for name in ["hash", "seen", "source"] {
        let field = format!("metadata.annotations['kubernetes.io/config.{name}']");
        let pod = variables(from(json!({"fieldRef": {"fieldPath": field}})), no_status());
        let pod = pod.expect("it is empty");
        assert_eq!(pod.containers[0].env[0].value, "");
        let told = format!("{field} is not known; the variable is empty");
        assert_eq!(pod.warnings[0].message, told);
    }
}

#[test]
fn a_container_without_a_limit_of_its_own_has_that_of_its_pod_in_variables() {
    let of = |resource: &str, of_pod: Value| {
        let from = json!({"resourceFieldRef": {"resource": resource}});
        convert(
            manifest(json!({
                "containers": [{
                    "name": "a",
                    "env": [{"name": "X", "valueFrom": from}],
                    "resources": {"limits": {"cpu": "2"}},
                }],
                "resources": {"limits": of_pod},
            })),
            PodOrigin::Manifest,
        )
    };
    let both = || json!({"cpu": "4", "memory": "1Gi"});
    for (resource, value) in [
        ("limits.cpu", "2"),
        ("limits.memory", "1073741824"),
        ("requests.memory", "0"),
    ] {
        let pod = of(resource, both()).unwrap_or_else(|faults| panic!("{resource}: {faults:?}"));
        let variable = &pod.containers[0].env[0];
        assert_eq!(variable.value, value, "{resource}");
        assert!(variable.is_of_resources, "{resource}");
    }
    for (resource, of_pod) in [
        ("limits.memory", json!({"cpu": "4", "memory": "0"})),
        ("limits.ephemeral-storage", both()),
    ] {
        let faults = of(resource, of_pod).expect_err("there is no limit");
        let right = "spec.containers[0].env[0].valueFrom.resourceFieldRef.resource";
        assert_eq!(faults[0].path, right, "{resource}");
    }
}

#[test]
fn a_container_without_any_limit_has_what_the_node_has_for_pods_in_variables() {
    let amount = |it: &str| it.parse::<Quantity>().expect("a quantity");
    let allocatable = ResourceList::from([
        ("cpu".to_owned(), amount("3500m")),
        ("memory".to_owned(), amount("1500Mi")),
    ]);
    for (resource, divisor, limits, value) in [
        ("limits.cpu", "0", json!({}), "4"),
        ("limits.cpu", "1m", json!({}), "3500"),
        ("limits.cpu", "0", json!({"cpu": "2"}), "2"),
        ("limits.cpu", "0", json!({"cpu": "0"}), "4"),
        ("limits.memory", "1Mi", json!({}), "1500"),
        ("limits.memory", "1Gi", json!({}), "2"),
        // Of a disk whose size is not known.
        ("limits.ephemeral-storage", "0", json!({}), "0"),
        ("limits.hugepages-2Mi", "0", json!({}), "0"),
        ("requests.memory", "0", json!({}), "0"),
    ] {
        let from = json!({"resourceFieldRef": {"resource": resource, "divisor": divisor}});
        let source = manifest(json!({"containers": [{
            "name": "a",
            "env": [{"name": "X", "valueFrom": from}],
            "resources": {"limits": limits},
        }]}));
        let source: v1::Pod = serde_json::from_value(source).expect("a v1.Pod");
        let pod = Pod::from_manifest(&source, Some(&allocatable));
        let pod = pod.unwrap_or_else(|faults| panic!("{resource}: {faults:?}"));
        let variable = &pod.containers[0].env[0];
        assert_eq!(variable.value, value, "{resource} by {divisor}");
        assert!(variable.is_of_resources, "{resource}");
    }
}

#[test]
fn what_is_not_honoured_is_a_warning() {
    let pod = good(json!({
        "activeDeadlineSeconds": 5,
        "containers": [{
            "name": "a",
            "livenessProbe": {"exec": {"command": ["true"]}},
            "securityContext": {"privileged": true, "procMount": "Unmasked"},
        }],
    }));
    assert!(pod.containers[0].is_privileged);
    let paths: Vec<&str> = pod.warnings.iter().map(|it| it.path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "spec.activeDeadlineSeconds",
            "spec.containers[0].livenessProbe",
            "spec.containers[0].securityContext.procMount",
        ]
    );
}

#[test]
fn a_resource_whose_policy_is_restart_container_is_known() {
    let policies = json!([
        {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"},
    ]);
    let pod = good(json!({
        "containers": [{"name": "a", "resizePolicy": policies}, {"name": "b"}],
    }));
    let restarting = pod.containers[0].resize_restarts.iter();
    assert_eq!(restarting.collect::<Vec<_>>(), ["memory"]);
    assert!(pod.containers[1].resize_restarts.is_empty());
    assert_eq!(pod.warnings, []);
}

#[test]
fn a_container_is_told_to_end_by_the_signal_that_it_names() {
    let with = |signal: &str| {
        let lifecycle = json!({"stopSignal": signal});
        json!({"containers": [{"name": "a", "lifecycle": lifecycle}, {"name": "b"}]})
    };
    let pod = good(with("SIGUSR1"));
    let signals: Vec<_> = pod.containers.iter().map(|it| it.stop_signal).collect();
    assert_eq!(signals, [Some(10), None]);
    let right = r#"spec.containers[0].lifecycle.stopSignal: Unsupported value: "USR1": must be the name of a signal, as SIGTERM"#;
    assert_eq!(faults(with("USR1")), [right]);
}

#[test]
fn huge_pages_need_cpu_or_memory_beside_them() {
    let resources =
        |resources: Value| json!({"containers": [{"name": "a", "resources": resources}]});
    let alone = resources(json!({"limits": {"hugepages-2Mi": "4Mi"}}));
    let text = "Forbidden: HugePages require cpu or memory";
    assert_eq!(
        faults(alone),
        [format!("spec.containers[0].resources: {text}")]
    );
    good(resources(
        json!({"limits": {"hugepages-2Mi": "4Mi"}, "requests": {"cpu": "1"}}),
    ));
    let overhead = json!({"containers": [{"name": "a"}], "overhead": {"hugepages-2Mi": "2Mi"}});
    assert_eq!(faults(overhead), [format!("spec.overhead: {text}")]);
}

/// As the API server has it (pkg/apis/core/validation/validation.go, v1.36: `validateContainerResourceName`).
#[test]
fn a_resource_is_one_of_kubernetes_or_has_a_domain_of_its_own() {
    let of = |name: &str, field: &str| {
        let mut list = json!({"cpu": "1"});
        list[name] = json!("1");
        convert(
            manifest(json!({"containers": [{"name": "a", "resources": {field: list}}]})),
            PodOrigin::Manifest,
        )
    };
    for name in ["gpu.example/a", "kubernetes.io/batch"] {
        assert!(of(name, "limits").is_ok(), "{name}");
    }
    // What nobody can offer would be waited for in vain.
    for name in [
        "Gpu.Example/a",
        "gpu.example/a b",
        "requests.example/a",
        "kubernetes.io/",
        "gpu",
    ] {
        let faults = of(name, "limits").expect_err(name);
        let right =
            format!("spec.containers[0].resources.limits[{name}]: Invalid value: {name:?}: ");
        assert!(
            faults.iter().any(|it| it.to_string().starts_with(&right)),
            "{faults:?}"
        );
    }
    let alone = of("gpu.example/a", "requests").expect_err("no limit");
    let right = "spec.containers[0].resources.limits: Required value: gpu.example/a needs a limit of 1 as well";
    assert_eq!(alone[0].to_string(), right);
    assert!(of("kubernetes.io/batch", "requests").is_ok());
}

#[test]
fn a_pod_as_a_whole_requests_no_more_than_it_can_have_as_a_whole() {
    let requests = json!({"memory": "1Gi", "ephemeral-storage": "1Gi"});
    let spec = json!({"containers": [{"name": "a"}], "resources": {"requests": requests}});
    let pod = convert(manifest(spec), PodOrigin::Api).expect("what the API server has taken");
    let request = |resource| pod.request_to_rank(resource, Unnamed::Nothing).units();
    assert_eq!(
        (request("memory"), request("ephemeral-storage")),
        (1 << 30, 0)
    );
}

#[test]
fn an_init_container_may_have_a_limit_above_that_of_its_pod() {
    let limits =
        |amount: &str| json!({"limits": {"memory": amount}, "requests": {"memory": "1Mi"}});
    let spec = |list: &str| {
        let mut spec = json!({"containers": [{"name": "a"}], "resources": limits("64Mi")});
        spec[list] = json!([{"name": "b", "resources": limits("128Mi")}]);
        spec
    };
    good(spec("initContainers"));
    let right = r#"spec.containers[0].resources.limits[memory]: Invalid value: "128Mi": must be less than or equal to pod limits of 64Mi"#;
    assert_eq!(faults(spec("containers")), [right]);
}

#[test]
fn a_path_of_a_volume_leads_to_where_it_seems_to() {
    let told = |path: &str, sub_path: &str| {
        let mount = json!({"name": "v", "mountPath": "/v", "subPath": sub_path});
        let pod = convert(
            manifest(json!({
                "containers": [{"name": "app", "volumeMounts": [mount]}],
                "volumes": [{"name": "v", "hostPath": {"path": path}}],
            })),
            PodOrigin::Manifest,
        );
        let faults = pod.err().unwrap_or_default();
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(told("/a..b/c", "d/..e"), [""; 0]);
    let of = |field: &str, path: &str, rule: &str| {
        vec![format!("spec.{field}: Invalid value: {path:?}: {rule}")]
    };
    let steps = "must not contain '..'";
    assert_eq!(
        told("/a/../b", ""),
        of("volumes[0].hostPath.path", "/a/../b", steps)
    );
    let field = "containers[0].volumeMounts[0].subPath";
    assert_eq!(told("/a", ".."), of(field, "..", steps));
    assert_eq!(told("/a", "/b"), of(field, "/b", "must be a relative path"));
}

#[test]
fn a_volume_is_looked_at_as_far_as_the_api_server_does() {
    let of = |mut volume: Value| {
        volume["name"] = json!("v");
        faults(json!({"containers": [{"name": "app"}], "volumes": [volume]}))
    };
    let wrong = json!({"path": "/a/../b", "type": "Folder"});
    let right = "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type";
    assert_eq!(of(json!({"emptyDir": {}, "hostPath": wrong})), [right]);
    let limit = of(json!({"emptyDir": {"sizeLimit": "-1"}, "hostPath": wrong}));
    assert!(limit[0].starts_with("spec.volumes[0].emptyDir.sizeLimit: Forbidden: "));
    assert_eq!(of(json!({"hostPath": wrong})).len(), 2);
    let nowhere = of(json!({"hostPath": {"path": "", "type": "Folder"}}));
    assert_eq!(nowhere, ["spec.volumes[0].hostPath.path: Required value"]);
}

#[test]
fn references_of_variables_are_one_each() {
    let of = |env_from: Value| {
        let container = json!({"name": "a", "envFrom": [env_from]});
        convert(
            manifest(json!({"containers": [container]})),
            PodOrigin::Manifest,
        )
    };
    let optional = json!({"name": "c", "optional": true});
    assert!(of(json!({"configMapRef": optional})).is_ok());
    for (env_from, why) in [
        (
            json!({}),
            "must specify one of: `configMapRef` or `secretRef`",
        ),
        (
            json!({"configMapRef": optional, "secretRef": optional}),
            "may not have more than one field specified at a time",
        ),
    ] {
        let faults = of(env_from).expect_err("a fault");
        let right = format!("spec.containers[0].envFrom: Invalid value: \"\": {why}");
        assert_eq!(faults[0].to_string(), right);
    }
}

#[test]
fn pod_level_huge_pages_default_to_those_of_the_containers() {
    let huge = |amount: &str| json!({"cpu": "1", "hugepages-2Mi": amount});
    let spec = |resources: Value| {
        json!({
            "containers": [
                {"name": "a", "resources": {"limits": huge("2Mi")}},
                {"name": "b", "resources": {"limits": huge("4Mi")}},
            ],
            "resources": resources,
        })
    };
    let of = |resources: Value| {
        let pod = good(spec(resources));
        let own = pod.resources.expect("pod-level resources");
        [own.requests, own.limits].map(|it| it["hugepages-2Mi"].to_string())
    };
    let limits = |limits: Value| of(json!({"limits": limits}));
    assert_eq!(limits(json!({"memory": "1Gi"})), ["6Mi", "6Mi"]);
    assert_eq!(limits(json!({"hugepages-2Mi": "8Mi"})), ["8Mi", "8Mi"]);
    // Without limits too.
    assert_eq!(of(json!({"requests": {"cpu": "2"}})), ["6Mi", "6Mi"]);
    // A request of their own does not give a limit.
    let requested = json!({"cpu": "2", "hugepages-2Mi": "6Mi"});
    let requested = json!({"requests": requested, "limits": {"cpu": "4"}});
    let right = "spec.resources.limits: Required value: hugepages-2Mi needs a limit of 6Mi as well";
    assert_eq!(faults(spec(requested)), [right]);
    let right = ["requests", "limits"].map(|field| {
        format!(
            "spec.resources.{field}[hugepages-2Mi]: Invalid value: \"4Mi\": must be greater than or equal to \
             aggregate container {field} of 6Mi"
        )
    });
    let limits = json!({"limits": {"cpu": "4", "hugepages-2Mi": "4Mi"}});
    assert_eq!(faults(spec(limits)), right);
}

#[test]
fn a_part_of_a_byte_is_warned_of_where_it_stands() {
    let pod = good(json!({
        "containers": [{"name": "a", "resources": {
            "limits": {"memory": "64Mi", "ephemeral-storage": "1500m"},
            "requests": {"memory": "33554432500m", "ephemeral-storage": "1"},
        }}],
        "overhead": {"memory": "128m"},
    }));
    let warnings: Vec<String> = pod.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            r#"spec.containers[0].resources.requests[memory]: fractional byte value "33554432500m" counts as 33554433"#,
            r#"spec.containers[0].resources.limits[ephemeral-storage]: fractional byte value "1500m" counts as 2"#,
            r#"spec.overhead[memory]: fractional byte value "128m" counts as 1"#,
        ]
    );
}

#[test]
fn a_toleration_of_memory_pressure_is_known_by_what_it_leaves_out() {
    let key = "node.kubernetes.io/memory-pressure";
    for (toleration, wanted) in [
        (
            json!({"key": key, "operator": "Exists", "effect": "NoSchedule"}),
            true,
        ),
        (json!({"key": key, "operator": "Exists"}), true),
        (json!({"operator": "Exists"}), true),
        (json!({"key": key}), true),
        (json!({"key": key, "value": "x"}), false),
        (
            json!({"key": key, "operator": "Exists", "effect": "NoExecute"}),
            false,
        ),
        (
            json!({"key": "node.kubernetes.io/disk-pressure", "operator": "Exists"}),
            false,
        ),
    ] {
        let spec = json!({"containers": [{"name": "c"}], "tolerations": [toleration]});
        let pod = convert(manifest(spec), PodOrigin::Api).expect("a valid pod");
        assert_eq!(
            pod.tolerates(&node_requirements::Taint::memory_pressure()),
            wanted,
            "{toleration}"
        );
    }
}

#[test]
fn groups_and_kinds_of_host_paths_are_those_of_the_api() {
    let pod = |group: i64, kind: &str| {
        json!({
            "securityContext": {"supplementalGroups": [7, group], "fsGroup": 9},
            "containers": [{"name": "app", "command": ["run"], "volumeMounts": [
                {"name": "v", "mountPath": "/v"},
            ]}],
            "volumes": [{"name": "v", "hostPath": {"path": "/v/", "type": kind}}],
        })
    };
    let taken = good(pod(8, "FileOrCreate"));
    assert_eq!(
        (&taken.supplemental_groups[..], taken.fs_group),
        (&[7, 8][..], Some(9))
    );
    let path = "/v/".to_owned();
    let kind = HostPathKind::FileOrCreate;
    assert_eq!(
        taken.volumes[0].source,
        VolumeSource::HostPath { path, kind }
    );
    assert_eq!(taken.warnings, [], "a slash at the end is no other place");
    assert_eq!(
        faults(pod(-1, "Folder")),
        [
            "spec.volumes[0].hostPath.type: Unsupported value: \"Folder\": supported values: \"\", \"DirectoryOrCreate\", \
             \"Directory\", \"FileOrCreate\", \"File\", \"Socket\", \"CharDevice\", \"BlockDevice\"",
            "spec.securityContext.supplementalGroups[1]: Invalid value: -1: must be between 0 and 2147483647, inclusive",
        ]
    );
}

#[test]
fn a_part_of_a_volume_is_told_where_it_is_elsewhere() {
    let told = |volume: &str, sub_path: &str, mount_path: &str| {
        let mount = json!({"name": volume, "subPath": sub_path, "mountPath": mount_path});
        let pod = good(json!({
            "containers": [{"name": "app", "volumeMounts": [mount]}],
            "volumes": [{"name": "etc", "hostPath": {"path": "/etc/"}}, {"name": "tmp", "emptyDir": {}}],
        }));
        let warnings = pod.warnings.iter().map(ToString::to_string);
        warnings.collect::<Vec<_>>()
    };
    let right = |place: &str| {
        format!(
            "spec.containers[0].volumeMounts[0].mountPath: is ignored: the process runtime mounts nothing, so the \
             volume is {place}"
        )
    };
    assert_eq!(told("etc", "hosts", "/etc/hosts"), [""; 0]);
    assert_eq!(told("etc", "", "/etc"), [""; 0]);
    assert_eq!(told("etc", "hosts", "/hosts"), [right("at `/etc/hosts`")]);
    assert_eq!(told("etc", "hosts", "/etc"), [right("at `/etc/hosts`")]);
    let in_pod = right("$BALLAST_POD_DIR/volumes/tmp/a");
    assert_eq!(told("tmp", "a", "/tmp"), [in_pod]);
}

#[test]
fn a_part_of_a_volume_lies_in_it() {
    let pod = |sub_path: &str| {
        let mounts = json!([
            {"name": "tmp", "subPath": sub_path, "mountPath": "/a"},
            {"name": "tmp", "subPath": "", "mountPath": "/b"},
        ]);
        json!({
            "containers": [{"name": "app", "volumeMounts": mounts}],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        })
    };
    for sub_path in ["a", "a/..b/c"] {
        let expected = ("tmp".to_owned(), sub_path.to_owned());
        assert_eq!(
            good(pod(sub_path)).containers[0].sub_paths,
            [expected].into()
        );
    }
}

#[test]
fn what_would_run_an_image_says_what_runs_instead() {
    let warned = |container: Value| {
        let warnings = good(json!({"containers": [container]})).warnings;
        let warnings = warnings.iter().map(ToString::to_string);
        warnings.collect::<Vec<_>>()
    };
    let entry_point = json!({"name": "app", "image": "shop:1", "command": []});
    let right = "spec.containers[0].command: is missing, so nothing can be started: the process runtime uses no \
                 images";
    assert_eq!(warned(entry_point), [right]);
    let arguments = json!({"name": "app", "image": "shop:1", "command": [], "args": ["serve"]});
    let right = "spec.containers[0].command: is missing, so args[0] is the program: the process runtime uses no \
                 images";
    assert_eq!(warned(arguments), [right]);
}

#[test]
fn a_user_that_only_an_image_names_is_warned_of() {
    let right = "spec.containers[0].securityContext.runAsUser: is missing, so nothing can be started: runAsNonRoot \
                 forbids root, and the process runtime uses no images";
    let warned = |of_pod: Value, of_container: Value| {
        let container = json!({"name": "app", "securityContext": of_container});
        let pod = good(json!({"containers": [container], "securityContext": of_pod}));
        let warnings = pod.warnings.iter().map(ToString::to_string);
        warnings.collect::<Vec<_>>()
    };
    let non_root = || json!({"runAsNonRoot": true});
    assert_eq!(warned(non_root(), json!({})), [right]);
    assert_eq!(warned(json!({}), non_root()), [right]);
    assert_eq!(warned(json!({"runAsUser": 99}), non_root()), [""; 0]);
    assert_eq!(warned(non_root(), json!({"runAsNonRoot": false})), [""; 0]);
}

#[test]
fn a_memory_limit_that_holds_nothing_is_warned_of() {
    let limited = |memory: &str| {
        let pod = good(json!({"containers": [{
            "name": "a",
            "command": ["true"],
            "resources": {"limits": {"memory": memory}},
        }]}));
        pod.warnings
            .into_iter()
            .map(|it| it.path)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        limited("1"),
        ["spec.containers[0].resources.limits[memory]"]
    );
    let of = |list: &str| format!("spec.containers[0].resources.{list}[memory]");
    // Once for what it is, and for each list that has it: the request is the limit.
    assert_eq!(
        limited("100m"),
        [of("limits"), of("requests"), of("limits")]
    );
    assert_eq!(limited("256Ki"), [""; 0]);
    assert_eq!(limited("0"), [""; 0]);
}

#[test]
fn a_term_that_cannot_match_is_a_fault_of_a_manifest_and_is_left_out_elsewhere() {
    let terms = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution\
                 .nodeSelectorTerms";
    let spec = |terms: Value| {
        let required = json!({"nodeSelectorTerms": terms});
        json!({
            "containers": [{"name": "a"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required},
            },
        })
    };
    let requirement = |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
    let bad = spec(json!([
        {"matchExpressions": [
            requirement("-a", "Exists", json!([])),
            requirement("a", "In", json!([])),
            requirement("a", "Exists", json!(["b"])),
            requirement("a", "Gt", json!(["many"])),
            requirement("a", "Gt", json!(["-1"])),
            requirement("a", "Lt", json!(["1", "2"])),
            requirement("a", "Like", json!(["b"])),
        ]},
        {"matchFields": [
            requirement("metadata.uid", "In", json!(["b"])),
            requirement("metadata.name", "In", json!(["a", "b"])),
            requirement("metadata.name", "Exists", json!([])),
            requirement("metadata.name", "NotIn", json!(["A b"])),
        ]},
        {},
    ]));
    let paths: Vec<String> = faults(bad.clone())
        .iter()
        .filter_map(|it| Some(it.strip_prefix(terms)?.split_once(':')?.0.to_owned()))
        .collect();
    let expressions = [
        "key",
        "values",
        "values",
        "values[0]",
        "values[0]",
        "values",
        "operator",
    ];
    let of_expressions = expressions.iter().enumerate();
    let of_expressions = of_expressions.map(|(i, it)| format!("[0].matchExpressions[{i}].{it}"));
    let of_fields = ["key", "values", "operator", "values[0]"];
    let of_fields = of_fields.iter().enumerate();
    let of_fields = of_fields.map(|(i, it)| format!("[1].matchFields[{i}].{it}"));
    let expected: Vec<String> = of_expressions.chain(of_fields).collect();
    assert_eq!(paths, expected);
    let elsewhere = convert(manifest(bad), PodOrigin::Api).expect("what the API server has taken");
    assert_eq!(elsewhere.node_requirements.node_affinity, Some(Vec::new()));
    assert_eq!(
        faults(spec(json!([]))),
        [format!(
            "{terms}: Required value: must have at least one node selector term"
        )]
    );
    let empty = good(spec(json!([{}])));
    assert_eq!(empty.node_requirements.node_affinity, Some(Vec::new()));
}

#[test]
fn ports_of_the_host_are_those_of_containers_that_run_as_long_as_the_pod() {
    let port = |port: u16| json!([{"containerPort": 1, "hostPort": port}, {"containerPort": 9}]);
    let spec = json!({
        "initContainers": [
            {"name": "prepare", "ports": port(2)},
            {"name": "proxy", "ports": port(3), "restartPolicy": "Always"},
        ],
        "containers": [{"name": "app", "ports": port(4)}],
    });
    let ports = |pod: Pod| {
        let ports = pod.node_requirements.host_ports.into_iter();
        ports.map(|it| it.port).collect::<Vec<_>>()
    };
    assert_eq!(ports(good(spec.clone())), [3, 4]);
    let mut on_host = spec;
    on_host["hostNetwork"] = json!(true);
    on_host["containers"][0]["ports"][0]["containerPort"] = json!(4);
    assert_eq!(ports(good(on_host.clone())), [3, 9, 4, 9]);
    let elsewhere = convert(manifest(on_host), PodOrigin::Api).expect("a valid pod");
    assert_eq!(ports(elsewhere), [3, 4], "the API server has said which");
    let bad = json!({"containers": [{"name": "a", "ports": [
        {"containerPort": 1, "hostPort": 65536},
        {"containerPort": 1, "hostPort": 1, "protocol": "ICMP"},
    ]}]});
    assert_eq!(
        faults(bad),
        [
            "spec.containers[0].ports[0].hostPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
            r#"spec.containers[0].ports[1].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP""#,
        ]
    );
    let on_host = json!({"hostNetwork": true, "containers": [{"name": "a", "ports": [
        {"containerPort": 65536},
    ]}]});
    assert_eq!(
        faults(on_host),
        ["containerPort", "hostPort"].map(|it| {
            let rule = "Invalid value: 65536: must be between 1 and 65535, inclusive";
            format!("spec.containers[0].ports[0].{it}: {rule}")
        })
    );
}

#[test]
fn a_resize_counts_with_what_is_wanted_granted_and_used_unless_it_is_infeasible() {
    let source = |reason: &str| {
        let mut source = manifest(json!({
            "resources": {"requests": {"cpu": "3", "memory": "1Gi"}},
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "2"}}}],
        }));
        source["status"] = json!({
            "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
            "resources": {"requests": {"cpu": "1"}},
            "allocatedResources": {"cpu": "1500m", "hugepages-2Mi": "2Mi"},
            "containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "resources": {"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}},
                "allocatedResources": {"cpu": "500m"},
            }],
        });
        source
    };
    let counted = |source: Value| {
        let pod = convert(source, PodOrigin::Api).expect("a valid pod");
        let counted = pod.counted_requests().into_iter();
        counted
            .map(|(name, amount)| format!("{name}={amount}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    let deferred = "cpu=3 ephemeral-storage=1Gi memory=1Gi";
    assert_eq!(counted(source("Deferred")), deferred);
    let infeasible = "cpu=1500m ephemeral-storage=1Gi memory=0";
    assert_eq!(counted(source("Infeasible")), infeasible);
    let mut of_containers = source("Infeasible");
    of_containers["spec"]["resources"] = Value::Null;
    assert_eq!(counted(of_containers), "cpu=1 ephemeral-storage=1Gi");
}

#[test]
fn qualified_names_are_those_of_labels_and_resources() {
    for (name, is_qualified) in [
        ("app", true),
        ("App.v-1_2", true),
        ("example.org/app", true),
        ("", false),
        ("-app", false),
        ("/app", false),
        ("example.org/", false),
        ("Example.org/app", false),
        ("a/b/c", false),
    ] {
        assert_eq!(is_qualified_name(name), is_qualified, "{name}");
    }
    assert!(is_qualified_name(&"a".repeat(63)) && !is_qualified_name(&"a".repeat(64)));
}
