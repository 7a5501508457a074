//! Suite `kube_cgroup_paths`: what the path of a cgroup says on a Kubernetes node.

use ballast::model::cgroup_path::CgroupPath;
use ballast::model::kube_cgroup::{ContainerKey, KubeLevel, parse};
use ballast::model::pod::{PodUid, QosClass};
use serde_json::{Value, json};

use crate::resources::text;

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    let root = CgroupPath::new(input["root"].as_str().unwrap_or("/"))?;
    // What is no path of a cgroup is none of a pod's.
    let Ok(path) = CgroupPath::new(text(input, "path")?) else {
        return Ok(Value::Null);
    };
    let Some(found) = parse(&path, &root) else {
        return Ok(Value::Null);
    };
    let of_pod = |uid: PodUid, qos, key| (Some(qos), Some(uid), key);
    let (level, (qos, uid, key)) = match found.level {
        KubeLevel::Kubepods => ("kubepods", (None, None, None)),
        KubeLevel::Qos(qos) => ("qos", (Some(qos), None, None)),
        KubeLevel::Pod { uid, qos } => ("pod", of_pod(uid, qos, None)),
        KubeLevel::Container { uid, qos, key } => ("container", of_pod(uid, qos, Some(key))),
        KubeLevel::Monitor { uid, qos, key } => ("monitor", of_pod(uid, qos, Some(key))),
    };
    let runtime = key.as_ref().and_then(|it: &ContainerKey| it.runtime);
    let mut shown = json!({
        "level": level,
        "driver": found.driver,
        "qos": qos.map(|it| match it {
            QosClass::Guaranteed => "guaranteed",
            QosClass::Burstable => "burstable",
            QosClass::BestEffort => "besteffort",
        }),
        "pod_uid": uid,
        "runtime": runtime,
        "container_id": key.map(|it| it.id),
        "inner": found.inner,
    });
    if found.is_misplaced {
        shown["misplaced"] = json!(true);
    }
    Ok(shown)
}
