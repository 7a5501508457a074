//! Suite `static_pod`: which manifests kubelet takes, with which class and resources, and what it finds wrong in others,
//! by field and kind of error.
//!
//! Kubelet judges fields too that nothing here goes by. They are left out of what is compared, by the table of fields
//! and by those below; so are faults that ballast alone finds. `agent/DIVERGENCES.md` has both.

use std::collections::BTreeSet;

use ballast::decide::qos::qos_class;
use ballast::model::pod::fields::{FIELDS, Treatment};
use ballast::model::pod::{Container, Pod, ResourceList};
use ballast::sources::manifests::{ManifestDirectory, ManifestFault};
use serde_json::{Map, Value, json};

use crate::resources::{resource_list, text};

const KINDS: [&str; 6] = [
    "Duplicate value",
    "Forbidden",
    "Invalid value",
    "Not found",
    "Required value",
    "Unsupported value",
];

/// These and what is below them, with the kind; `None`: any. Beside them all that is ignored or refused as a whole.
const LEFT_OUT: &[(&str, Option<&str>)] = &[
    // Processes of the host need none.
    ("containers[].image", None),
    // Nobody goes by it.
    ("containers[].ports[].name", None),
    // Of containers with `restartPolicyRules`.
    ("containers[].restartPolicy", Some("Required value")),
    // Hooks are not run, and a signal to end by is taken of any container, whatever `os` says.
    ("containers[].lifecycle", None),
    // What a pod of Windows must not set: such a pod is not let in.
    ("containers[].securityContext", Some("Forbidden")),
    ("securityContext", Some("Forbidden")),
    // Profiles are not applied.
    ("containers[].securityContext.appArmorProfile", None),
    ("containers[].securityContext.seccompProfile", None),
    ("securityContext.appArmorProfile", None),
    ("securityContext.seccompProfile", None),
    // None of the volumes that it is about is provided.
    ("securityContext.fsGroupChangePolicy", None),
    // Namespaces: there are none but those of the host.
    ("securityContext.shareProcessNamespace", None),
    ("HostIPC", None),
    ("HostPID", None),
    ("hostNetwork", None),
    // References: refused, or left out where they are optional.
    ("containers[].env[].valueFrom.configMapKeyRef", None),
    ("containers[].env[].valueFrom.fileKeyRef", None),
    ("containers[].env[].valueFrom.secretKeyRef", None),
    ("containers[].envFrom[]", None),
    ("resources.claims", None),
    ("serviceAccountName", None),
    // Any that is not negative divides.
    (
        "containers[].env[].valueFrom.resourceFieldRef.divisor",
        None,
    ),
];

/// The same without what is below them: capabilities, and pods of processes of a Windows host.
const LEFT_OUT_THEMSELVES: [&str; 2] = ["spec.containers[].securityContext", "spec"];

/// Faults that ballast alone finds, by the end of their message.
const OWN: [(&str, &str); 3] = [
    ("spec.terminationGracePeriodSeconds", ""),
    ("spec.volumes[].hostPath.path", "must be an absolute path"),
    (
        "spec.containers[].env[].valueFrom.resourceFieldRef.resource",
        "has no such limit",
    ),
];

pub(crate) fn run(input: &Value, expect: &Value) -> anyhow::Result<Value> {
    let manifests = ManifestDirectory::new("/manifests").with_believed_status(true);
    let scan = manifests.judge(text(input, "manifest")?.as_bytes());
    let faults: Vec<Fault> = scan.faults.iter().map(Fault::of).collect();
    let pod = scan.pods.values().next().filter(|_| faults.is_empty());
    let ours = match pod {
        Some(pod) => taken(pod),
        None => scan.faults.iter().map(ManifestFault::of_field).collect(),
    };
    let is_right = if expect.get("pod").is_some() {
        match pod {
            Some(_) => ours == recorded(expect)?,
            None => !faults.is_empty() && faults.iter().all(Fault::is_own),
        }
    } else if let Some(errors) = expect["errors"].as_array() {
        are_the_same(&faults, errors)?
    } else if let Some(error) = expect["static_error"].as_str() {
        let is_about_name = error.contains("name is needed");
        faults.iter().any(|it| {
            it.kind.is_none() || it.is_reference() || is_about_name && it.field == "metadata.name"
        })
    } else {
        pod.is_none()
    };
    Ok(if is_right { expect.clone() } else { ours })
}

struct Fault<'a> {
    field: &'a str,
    /// `None`: it could not be read.
    kind: Option<&'static str>,
    message: &'a str,
}

impl<'a> Fault<'a> {
    fn of(fault: &'a ManifestFault) -> Self {
        let message = fault.message.as_str();
        let mut kinds = KINDS.into_iter();
        Self {
            field: fault.field.as_deref().unwrap_or_default(),
            kind: kinds.find(|it| message.starts_with(it)),
            message,
        }
    }

    fn is_reference(&self) -> bool {
        let begin = "Forbidden: static pods may not reference ";
        self.message.starts_with(begin)
    }

    fn is_own(&self) -> bool {
        let row = row(self.field);
        let mut own = OWN.iter();
        own.any(|(field, end)| row == *field && self.message.ends_with(end))
    }
}

/// By field and kind. Where a value cannot be read at all, ballast says nothing of the others.
fn are_the_same(faults: &[Fault], errors: &[Value]) -> anyhow::Result<bool> {
    let mut theirs = BTreeSet::new();
    for error in errors {
        let (field, kind) = (text(error, "field")?, text(error, "type")?);
        theirs.insert((as_ours(field, kind), kind.to_owned()));
    }
    let mut ours = BTreeSet::new();
    for fault in faults {
        let Some(kind) = fault.kind else {
            return Ok(true);
        };
        if !fault.is_own() && !fault.is_reference() {
            ours.insert((as_kubelets(fault.field, kind), kind.to_owned()));
        }
    }
    // To kubelet a volume that is wrong is not there.
    let has_bad_volume = theirs.iter().any(|(it, _)| it.starts_with("spec.volumes["));
    for list in [&mut theirs, &mut ours] {
        list.retain(|(field, kind)| {
            let row = row(field);
            let is_of_mount = row == "spec.containers[].volumeMounts[].name";
            let is_of_volume = has_bad_volume && is_of_mount && kind == "Not found";
            !is_of_volume && is_compared(&row, kind)
        });
    }
    Ok(ours == theirs)
}

fn is_compared(row: &str, kind: &str) -> bool {
    // Kubelet's name of a pod has the node in it, and nothing goes by the rest.
    if row.starts_with("metadata.") {
        return row == "metadata.namespace";
    }
    let below = row.strip_prefix("spec.").unwrap_or_default();
    let mut left_out = LEFT_OUT.iter();
    let is_left_out = left_out.any(|(field, of_kind)| {
        is_at_or_below(below, field) && of_kind.is_none_or(|it| it == kind)
    });
    let has_no_say = FIELDS.iter().any(|(field, treatment)| match treatment {
        Treatment::Ignored { .. } => is_at_or_below(below, field),
        Treatment::Refused(_) => below != *field && is_at_or_below(below, field),
        Treatment::Honoured => false,
    });
    !is_left_out && !has_no_say && !LEFT_OUT_THEMSELVES.contains(&row)
}

fn is_at_or_below(row: &str, field: &str) -> bool {
    let rest = row.strip_prefix(field);
    rest.is_some_and(|it| it.is_empty() || it.starts_with(['.', '[']))
}

/// A field as the tables have it: of whatever place in a list, and of init containers as of others. Kubelet leaves out
/// the place of some mounts.
fn row(field: &str) -> String {
    let mut row = String::new();
    for (i, part) in field.split('[').enumerate() {
        if i > 0 {
            row.push('[');
        }
        let is_place = |it: &str| i > 0 && it.bytes().all(|it| it.is_ascii_digit());
        match part.split_once(']').filter(|it| is_place(it.0)) {
            Some((_, rest)) => {
                row.push(']');
                row.push_str(rest);
            }
            None => row.push_str(part),
        }
    }
    let row = row.replace("initContainers", "containers");
    row.replace("volumeMounts.", "volumeMounts[].")
}

/// Some of kubelet's fields are none of the manifest.
fn as_ours(field: &str, kind: &str) -> String {
    if let Some(rest) = field.strip_prefix("spec.overhead.limits") {
        return format!("spec.overhead{rest}");
    }
    if let Some(rest) = field.strip_prefix("spec.resources.containers[")
        && let Some((i, rest)) = rest.split_once("][")
        && let Some(name) = rest.strip_suffix("].limits")
    {
        return format!("spec.containers[{i}].resources.limits[{name}]");
    }
    match (field, kind) {
        ("spec.nodeName", "Forbidden") => "spec.schedulingGates".to_owned(),
        _ => field
            .replace(".downwarAPI", ".downwardAPI")
            .replace(".cephFS", ".cephfs")
            .replace(".persistentDisk", ".gcePersistentDisk"),
    }
}

/// As kubelet has the field: of some mounts without the place, and of a port that an init container has twice at the
/// first one.
fn as_kubelets(field: &str, kind: &str) -> String {
    if let Some((container, rest)) = field.split_once(".volumeMounts[")
        && rest.ends_with("].subPath")
    {
        return format!("{container}.volumeMounts.subPath");
    }
    if kind == "Duplicate value"
        && let Some(rest) = field.strip_prefix("spec.initContainers[")
        && let Some((_, port)) = rest.split_once("].ports[")
    {
        return format!("spec.initContainers[0].ports[{port}");
    }
    field.to_owned()
}

fn taken(pod: &Pod) -> Value {
    let container = |it: &Container| {
        let (requests, limits) = (&it.resources.requests, &it.resources.limits);
        json!({"name": it.name, "requests": amounts(requests), "limits": amounts(limits)})
    };
    let containers: Vec<Value> = pod.all_containers().map(container).collect();
    let own = pod.resources.clone().unwrap_or_default();
    json!({
        "namespace": pod.namespace,
        "qos": qos_class(pod).to_string(),
        "containers": containers,
        "requests": amounts(&own.requests),
        "limits": amounts(&own.limits),
        "overhead": amounts(&pod.overhead),
        "grace": pod.termination_grace.as_secs(),
        "priority": pod.priority,
        "restartPolicy": pod.restart_policy,
        "isOnHostNetwork": pod.is_on_host_network,
    })
}

/// The same of the effective pod that kubelet has.
fn recorded(expect: &Value) -> anyhow::Result<Value> {
    let spec = &expect["pod"]["spec"];
    let metadata = &expect["pod"]["metadata"];
    // What kubelet ends the pod in.
    let mut grace = &spec["terminationGracePeriodSeconds"];
    if metadata["deletionTimestamp"].is_null() && metadata["deletionGracePeriodSeconds"].is_u64() {
        grace = &metadata["deletionGracePeriodSeconds"];
    }
    let mut containers = Vec::new();
    for list in ["initContainers", "containers"] {
        for it in spec[list].as_array().into_iter().flatten() {
            containers.push(json!({
                "name": it["name"],
                "requests": recorded_amounts(&it["resources"]["requests"])?,
                "limits": recorded_amounts(&it["resources"]["limits"])?,
            }));
        }
    }
    Ok(json!({
        "namespace": expect["pod"]["metadata"]["namespace"],
        "qos": expect.get("qos_used").unwrap_or(&expect["qos"]),
        "containers": containers,
        "requests": recorded_amounts(&spec["resources"]["requests"])?,
        "limits": recorded_amounts(&spec["resources"]["limits"])?,
        "overhead": recorded_amounts(&spec["overhead"])?,
        "grace": grace,
        "priority": spec["priority"],
        "restartPolicy": spec["restartPolicy"],
        "isOnHostNetwork": spec["hostNetwork"] == json!(true),
    }))
}

/// In thousandths: kubelet rounds up to them.
fn amounts(list: &ResourceList) -> Value {
    let amounts = list.iter();
    let amounts = amounts.map(|(name, it)| (name.clone(), json!(it.milli_value())));
    amounts.collect::<Map<_, _>>().into()
}

fn recorded_amounts(list: &Value) -> anyhow::Result<Value> {
    Ok(match list {
        Value::Null => json!({}),
        list => amounts(&resource_list(list)?),
    })
}
