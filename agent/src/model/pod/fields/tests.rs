use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use k8s_openapi::api::core::v1;
use serde::de::{self, Deserialize, Visitor};
use serde_json::json;

use super::*;

/// The fields of a type, which it tells whoever reads it: there is nothing to read.
struct FieldsOf<'a>(&'a mut &'static [&'static str]);

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Nothing(String);

impl de::Error for Nothing {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self(text.to_string())
    }
}

impl<'de> de::Deserializer<'de> for FieldsOf<'_> {
    type Error = Nothing;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Nothing> {
        Err(Nothing("not a struct".to_owned()))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Nothing> {
        *self.0 = fields;
        Err(Nothing("it is enough".to_owned()))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
        seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields_of<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    assert!(T::deserialize(FieldsOf(&mut fields)).is_err(), "a struct");
    assert!(!fields.is_empty());
    fields
}

#[test]
fn every_field_has_a_row_and_every_row_a_field() {
    let types = [
        ("", fields_of::<v1::PodSpec>()),
        ("affinity", fields_of::<v1::Affinity>()),
        ("affinity.nodeAffinity", fields_of::<v1::NodeAffinity>()),
        ("containers[]", fields_of::<v1::Container>()),
        ("containers[].lifecycle", fields_of::<v1::Lifecycle>()),
        (
            "containers[].resources",
            fields_of::<v1::ResourceRequirements>(),
        ),
        (
            "containers[].securityContext",
            fields_of::<v1::SecurityContext>(),
        ),
        (
            "containers[].securityContext.appArmorProfile",
            fields_of::<v1::AppArmorProfile>(),
        ),
        (
            "containers[].securityContext.capabilities",
            fields_of::<v1::Capabilities>(),
        ),
        (
            "containers[].securityContext.seccompProfile",
            fields_of::<v1::SeccompProfile>(),
        ),
        (
            "securityContext.appArmorProfile",
            fields_of::<v1::AppArmorProfile>(),
        ),
        (
            "securityContext.seccompProfile",
            fields_of::<v1::SeccompProfile>(),
        ),
        (
            "containers[].volumeMounts[]",
            fields_of::<v1::VolumeMount>(),
        ),
        (
            "imagePullSecrets[]",
            fields_of::<v1::LocalObjectReference>(),
        ),
        ("resources", fields_of::<v1::ResourceRequirements>()),
        ("securityContext", fields_of::<v1::PodSecurityContext>()),
        ("volumes[]", fields_of::<v1::Volume>()),
        (
            "volumes[].emptyDir",
            fields_of::<v1::EmptyDirVolumeSource>(),
        ),
        (
            "volumes[].hostPath",
            fields_of::<v1::HostPathVolumeSource>(),
        ),
        (
            "volumes[].projected.sources[]",
            fields_of::<v1::VolumeProjection>(),
        ),
    ];
    let fields: BTreeSet<String> = types
        .iter()
        .flat_map(|(of, fields)| fields.iter().map(|it| below(of, it)))
        // Of volumes that are not provided, whose fields have no rows.
        .chain(
            [
                "cephfs",
                "cinder",
                "flexVolume",
                "iscsi",
                "rbd",
                "scaleIO",
                "storageos",
            ]
            .map(|it| format!("volumes[].{it}.secretRef")),
        )
        .collect();
    let rows: Vec<&str> = FIELDS.iter().map(|(field, _)| *field).collect();
    assert_eq!(rows, fields.iter().map(String::as_str).collect::<Vec<_>>());
}

#[track_caller]
fn judged(spec: serde_json::Value) -> (Vec<String>, Vec<String>) {
    judged_with(&BTreeMap::new(), spec)
}

#[track_caller]
fn judged_with(
    annotations: &BTreeMap<String, String>,
    spec: serde_json::Value,
) -> (Vec<String>, Vec<String>) {
    let spec: v1::PodSpec = serde_json::from_value(spec).expect("a PodSpec");
    let mut found = Findings::default();
    judge(annotations, &spec, &mut found);
    let texts =
        |list: Vec<crate::model::pod::FieldFault>| list.iter().map(ToString::to_string).collect();
    (texts(found.faults), texts(found.warnings))
}

/// What an API server puts into every pod, and what asks for what is so in any case.
#[test]
fn nothing_is_said_of_defaults() {
    let (faults, warnings) = judged(json!({
        "containers": [{
            "name": "app",
            "image": "registry.example/app:1",
            "imagePullPolicy": "IfNotPresent",
            "command": ["app"],
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
            "resources": {},
            "securityContext": {"privileged": true, "readOnlyRootFilesystem": false},
            "stdin": false,
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "ports": [{"containerPort": 80, "name": "http"}],
        }],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": true,
        "hostNetwork": true,
        "hostPID": true,
        "imagePullSecrets": [{"name": ""}],
        "preemptionPolicy": "PreemptLowerPriority",
        "schedulerName": "default-scheduler",
        "securityContext": {"seccompProfile": {"type": "Unconfined"}},
        "serviceAccountName": "",
        "tolerations": [{"operator": "Exists"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }));
    assert_eq!((faults, warnings), (vec![], vec![]));
}

#[test]
fn an_empty_object_asks_for_nothing_but_a_volume() {
    let (faults, warnings) = judged(json!({
        "containers": [{"name": "a", "command": ["x"], "securityContext": {"seLinuxOptions": {}}}],
        "affinity": {"podAffinity": {}},
        "dnsConfig": {},
        "volumes": [{"name": "v", "downwardAPI": {}}, {"name": "w", "secret": {}}],
    }));
    let of = |field: &str, rest: String| vec![format!("spec.volumes{field}: {rest}")];
    assert_eq!(
        faults,
        of("[1].secret", format!("Forbidden: {}", Because::Secrets))
    );
    let ignored = format!("is ignored: {}", Because::Volumes);
    assert_eq!(warnings, of("[0].downwardAPI", ignored));
}

#[test]
fn what_a_manifest_cannot_refer_to_is_a_fault_at_its_field() {
    let (faults, _) = judged(json!({
        "containers": [],
        "serviceAccountName": "deployer",
        "imagePullSecrets": [{"name": ""}, {"name": "registry"}],
        "resourceClaims": [{"name": "gpu"}],
        "schedulingGates": [{"name": "wait"}],
        "volumes": [
            {"name": "a", "configMap": {"name": "c"}},
            {"name": "b", "secret": {}},
            {"name": "c", "projected": {"sources": [{"downwardAPI": {}}, {"secret": {"name": "s"}}]}},
            {"name": "d", "persistentVolumeClaim": {"claimName": "p"}},
            {"name": "e", "rbd": {"image": "i", "monitors": ["m"], "secretRef": {"name": "s"}}},
        ],
    }));
    let fields: Vec<&str> = faults
        .iter()
        .filter_map(|it| it.split(": ").next())
        .collect();
    assert_eq!(
        fields,
        [
            "spec.imagePullSecrets[1].name",
            "spec.resourceClaims",
            "spec.schedulingGates",
            "spec.serviceAccountName",
            "spec.volumes[0].configMap",
            "spec.volumes[1].secret",
            "spec.volumes[2].projected.sources[1].secret",
            "spec.volumes[3].persistentVolumeClaim",
            "spec.volumes[4].rbd.secretRef",
        ]
    );
    let right = "spec.volumes[0].configMap: Forbidden: static pods may not reference configmaps, which only an API server has";
    assert_eq!(faults[4], right);
}

#[test]
fn what_has_no_effect_is_told_of_each_container() {
    let probe = json!({"exec": {"command": ["true"]}});
    let (faults, warnings) = judged(json!({
        "containers": [{"name": "a", "livenessProbe": probe, "ports": [{"containerPort": 80, "hostPort": 8080}]}],
        "initContainers": [{"name": "b", "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}]}],
        "volumes": [{"name": "v", "hostPath": {"path": "/v"}}, {"name": "n", "nfs": {"server": "s", "path": "/"}}],
        "securityContext": {"seLinuxOptions": {"level": "s0"}},
    }));
    assert_eq!(faults, Vec::<String>::new());
    let fields: Vec<&str> = warnings
        .iter()
        .filter_map(|it| it.split(": ").next())
        .collect();
    assert_eq!(
        fields,
        [
            "spec.containers[0].livenessProbe",
            "spec.initContainers[0].volumeMounts[0].readOnly",
            "spec.securityContext.seLinuxOptions",
            "spec.volumes[1].nfs",
            "spec.initContainers[0].command",
            "spec.containers[0].command",
            "spec.containers[0].ports[0].hostPort",
        ]
    );
}

#[test]
fn what_makes_no_difference_to_what_runs_is_minor() {
    let spec = json!({
        "containers": [{
            "name": "a",
            "command": ["app"],
            "imagePullPolicy": "Sometimes",
            "livenessProbe": {"exec": {"command": ["true"]}},
            "securityContext": {"allowPrivilegeEscalation": false},
            "terminationMessagePath": "/dev/other",
        }],
        "hostname": "web",
        "runtimeClassName": "sandboxed",
        "schedulerName": "other",
        "volumes": [{"name": "n", "nfs": {"server": "s", "path": "/"}}],
    });
    let spec: v1::PodSpec = serde_json::from_value(spec).expect("a PodSpec");
    let mut found = Findings::default();
    judge(&BTreeMap::new(), &spec, &mut found);
    let of = |weight: Weight| -> Vec<&str> {
        let all = found.warnings.iter().filter(|it| it.weight == weight);
        all.map(|it| it.path.as_str()).collect()
    };
    assert_eq!(
        of(Weight::Minor),
        [
            "spec.containers[0].imagePullPolicy",
            "spec.containers[0].terminationMessagePath",
            "spec.schedulerName",
        ]
    );
    assert_eq!(
        of(Weight::Differs),
        [
            "spec.containers[0].livenessProbe",
            "spec.containers[0].securityContext.allowPrivilegeEscalation",
            "spec.hostname",
            "spec.runtimeClassName",
            "spec.volumes[0].nfs",
        ]
    );
}

#[test]
fn a_profile_in_an_annotation_is_told_as_the_field_is() {
    let name =
        |container: &str| format!("container.apparmor.security.beta.kubernetes.io/{container}");
    let told = |profile: &str| {
        let annotations = [(name("app"), profile), ("note".to_owned(), profile)];
        let annotations = annotations.map(|(name, profile)| (name, profile.to_owned()));
        judged_with(&annotations.into(), json!({"containers": []})).1
    };
    let ignored = format!(
        "metadata.annotations[{}]: is ignored: {}",
        name("app"),
        Because::Isolation
    );
    for profile in ["runtime/default", "localhost/app"] {
        assert_eq!(told(profile), [ignored.as_str()], "{profile}");
    }
    for profile in ["unconfined", ""] {
        assert_eq!(told(profile), [""; 0], "{profile}");
    }
}

#[test]
fn a_signal_to_end_by_is_told_apart_from_hooks() {
    let told = |lifecycle: serde_json::Value| {
        let container = json!({"name": "app", "command": ["x"], "lifecycle": lifecycle});
        judged(json!({"containers": [container]})).1
    };
    let ignored = format!(
        "spec.containers[0].lifecycle.preStop: is ignored: {}",
        Because::Hooks
    );
    assert_eq!(
        told(json!({"preStop": {"sleep": {"seconds": 1}}, "stopSignal": "SIGUSR1"})),
        [ignored]
    );
    assert_eq!(told(json!({"stopSignal": "SIGTERM"})), [""; 0]);
}

/// Without those that are dropped a process would be less free.
#[test]
fn capabilities_that_are_added_are_minor_and_told_apart_from_those_that_are_dropped() {
    let spec = json!({"containers": [{
        "name": "a",
        "command": ["x"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}},
    }]});
    let spec: v1::PodSpec = serde_json::from_value(spec).expect("a PodSpec");
    let mut found = Findings::default();
    judge(&BTreeMap::new(), &spec, &mut found);
    let told: Vec<_> = found
        .warnings
        .iter()
        .map(|it| (it.to_string(), it.weight))
        .collect();
    let of = |field: &str, because: Because| {
        format!("spec.containers[0].securityContext.capabilities.{field}: is ignored: {because}")
    };
    assert_eq!(
        told,
        [
            (of("add", Because::Capabilities), Weight::Minor),
            (of("drop", Because::Isolation), Weight::Differs),
        ]
    );
}

#[test]
fn ports_of_the_host_that_ask_for_more_than_a_number_are_told() {
    let ports = |ports: serde_json::Value| {
        let spec = json!({
            "initContainers": [
                {"name": "done", "command": ["x"], "ports": ports},
                {"name": "proxy", "command": ["x"], "restartPolicy": "Always", "ports": ports},
            ],
            "containers": [{"name": "app", "command": ["x"], "ports": ports}],
        });
        judged(spec).1
    };
    let of_both = |field: &str, message: &str| -> Vec<String> {
        let text = |list| {
            format!(
                "spec.{list}.ports[0].{field}: {message}: {}",
                Because::Network
            )
        };
        ["initContainers[1]", "containers[0]"].map(text).to_vec()
    };
    assert_eq!(
        ports(json!([{"containerPort": 80, "hostPort": 8080}])),
        of_both("hostPort", "is not mapped to containerPort")
    );
    assert_eq!(
        ports(json!([{"containerPort": 80, "hostPort": 80, "hostIP": "127.0.0.1"}])),
        of_both("hostIP", "does not restrict the port to this address")
    );
    for address in ["", "0.0.0.0", "::"] {
        let port = json!([{"containerPort": 80, "hostPort": 80, "hostIP": address}]);
        assert_eq!(ports(port), [""; 0], "{address}");
    }
    let no_port_of_the_host = json!([{"containerPort": 80, "hostIP": "127.0.0.1"}]);
    assert_eq!(ports(no_port_of_the_host), [""; 0]);
}
