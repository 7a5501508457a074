//! Rules of the API server for a new pod (pkg/apis/core/validation/validation.go, v1.36) that need the definition as it is
//! written: what breaks them is not in [`Pod`](super::Pod) any more. Texts and fields are those of the API server.

use k8s_openapi::api::core::v1;
use serde_json::Value;

use super::convert::Findings;

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
}

fn volume_kinds(volume: &v1::Volume, path: &str, found: &mut Findings) {
    let fields = serde_json::to_value(volume).unwrap_or_default();
    let is_set = |kind: &&str| fields.get(*kind).is_some_and(|it| *it != Value::Null);
    for kind in VOLUME_KINDS.into_iter().filter(is_set).skip(1) {
        found.fault(
            format!("{path}.{kind}"),
            "may not specify more than 1 volume type",
        );
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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
        let of =
            |field: &str| format!("spec.volumes{field}: may not specify more than 1 volume type");
        let right = [of("[0].hostPath"), of("[1].configMap"), of("[1].image")];
        assert_eq!(faults(json!({"volumes": volumes})), right);
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
