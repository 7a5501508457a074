//! Whose pods they are, by what a pod itself says: no other object is asked for.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::api_pod::object::{Metadata, Owner};
use super::record::PodRef;

/// Digits of a hash: a decimal 32-bit number of the alphabet of `rand.SafeEncodeString`
/// (k8s.io/apimachinery/pkg/util/rand).
const HASH_DIGITS: &str = "456789bcdf";
const LONGEST_HASH: usize = 10;

/// Digits of the scheduled minute at the end of the name of a Job, until the year 2160.
const MINUTE_DIGITS: usize = 8;

/// A Job makes its pods when it was made itself, or later where one fails.
const SCHEDULED_WITHIN: Duration = Duration::from_hours(24);

/// A controller of pods, or a pod without one, over the pods it makes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    pub namespace: String,
    /// `Deployment`, `StatefulSet`, ...; `Pod` for a pod without a controller.
    pub kind: String,
    pub name: String,
}

impl Workload {
    /// A pod without a controller.
    pub fn of_pod(pod: &PodRef) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
        }
    }

    /// Of a pod of the API, with the names `pod`: the controller that people know, over the one between, the
    /// Deployment of a ReplicaSet, the DeploymentConfig of a ReplicationController and the CronJob of a Job.
    pub fn of_api(of: &Metadata, pod: &PodRef) -> Self {
        let owners = of.owner_references.iter().flatten();
        let mut controllers = owners.filter(|it| it.controller == Some(true));
        // The owner of a mirror of a static pod is its node.
        match controllers.next().filter(|it| it.kind != "Node") {
            Some(owner) => {
                let (kind, name) = over(owner, of).unwrap_or((&owner.kind, &owner.name));
                Self {
                    namespace: pod.namespace.clone(),
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                }
            }
            None => Self::of_pod(pod),
        }
    }
}

/// What has made the owner; `None`: nobody that can be told.
fn over<'a>(owner: &'a Owner, of: &Metadata) -> Option<(&'a str, &'a str)> {
    match owner.kind.as_str() {
        "ReplicaSet" => {
            let labels = of.labels.as_ref()?;
            let hashes = [
                ("Deployment", &labels.deployment_hash),
                ("Rollout", &labels.rollout_hash),
            ];
            hashes
                .into_iter()
                .find_map(|(kind, hash)| Some((kind, without_hash(&owner.name, hash.as_ref()?)?)))
        }
        "ReplicationController" => {
            let config = of.annotations.as_ref()?.deployment_config.as_deref()?;
            Some(("DeploymentConfig", without_version(&owner.name, config)?))
        }
        "Job" => {
            let made = of.creation_timestamp.as_ref()?.0;
            Some(("CronJob", without_minute(&owner.name, made)?))
        }
        _ => None,
    }
}

fn without_hash<'a>(name: &'a str, hash: &str) -> Option<&'a str> {
    let is_hash =
        (1..=LONGEST_HASH).contains(&hash.len()) && hash.chars().all(|it| HASH_DIGITS.contains(it));
    let deployment = name.strip_suffix(hash)?.strip_suffix('-')?;
    (is_hash && !deployment.is_empty()).then_some(deployment)
}

fn without_version<'a>(name: &'a str, config: &str) -> Option<&'a str> {
    let (of, version) = name.rsplit_once('-')?;
    let is_version = !version.is_empty() && version.bytes().all(|it| it.is_ascii_digit());
    (is_version && of == config).then_some(of)
}

/// `made`: when the pod was.
fn without_minute(name: &str, made: Timestamp) -> Option<&str> {
    let (cron_job, minute) = name.rsplit_once('-')?;
    let is_minute = minute.len() == MINUTE_DIGITS && minute.bytes().all(|it| it.is_ascii_digit());
    if !is_minute || cron_job.is_empty() {
        return None;
    }
    let scheduled = Timestamp::from_second(minute.parse::<i64>().ok()?.checked_mul(60)?).ok()?;
    let apart = made.duration_since(scheduled).unsigned_abs();
    (apart <= SCHEDULED_WITHIN).then_some(cron_job)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::pod::PodUid;

    const MADE: &str = "2025-11-14T01:20:30Z";

    /// Kind and name, of a pod that was made at [`MADE`].
    fn workload(owners: Value, labels: Value, annotations: Value) -> (String, String) {
        let metadata = json!({
            "name": "p", "namespace": "default", "creationTimestamp": MADE,
            "ownerReferences": owners, "labels": labels, "annotations": annotations,
        });
        let metadata: Metadata = serde_json::from_value(metadata).expect("metadata of a pod");
        let names = PodRef {
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            uid: PodUid("u".to_owned()),
        };
        let Workload {
            namespace,
            kind,
            name,
        } = Workload::of_api(&metadata, &names);
        assert_eq!(namespace, "default");
        (kind, name)
    }

    fn owner(kind: &str, name: &str) -> Value {
        json!([{
            "apiVersion": "v1", "kind": kind, "name": name, "uid": "o", "controller": true,
        }])
    }

    #[test]
    fn the_controller_that_people_know_is_told_by_the_pod_alone() {
        let hash = |it: &str| json!({"pod-template-hash": it});
        let none = json!({});
        for (owners, labels, right) in [
            (
                owner("ReplicaSet", "shop-7d4b9c6f58"),
                hash("7d4b9c6f58"),
                ("Deployment", "shop"),
            ),
            (
                owner("ReplicaSet", "a-bcdf-7d4b9c6f58"),
                hash("7d4b9c6f58"),
                ("Deployment", "a-bcdf"),
            ),
            (
                owner("ReplicaSet", "shop-7d4b9c6f58"),
                none.clone(),
                ("ReplicaSet", "shop-7d4b9c6f58"),
            ),
            (
                owner("ReplicaSet", "api-prod"),
                hash("6c4d"),
                ("ReplicaSet", "api-prod"),
            ),
            (
                owner("ReplicaSet", "api-prod"),
                hash("prod"),
                ("ReplicaSet", "api-prod"),
            ),
            (
                owner("ReplicaSet", "-6c4d"),
                hash("6c4d"),
                ("ReplicaSet", "-6c4d"),
            ),
            (
                owner("ReplicaSet", "x6c4d"),
                hash("6c4d"),
                ("ReplicaSet", "x6c4d"),
            ),
            (
                owner("ReplicaSet", "roll-6c4d"),
                json!({"rollouts-pod-template-hash": "6c4d"}),
                ("Rollout", "roll"),
            ),
            // 2025-11-14 01:20 UTC, and the next day.
            (
                owner("Job", "report-29384720"),
                none.clone(),
                ("CronJob", "report"),
            ),
            (
                owner("Job", "report-29386159"),
                none.clone(),
                ("CronJob", "report"),
            ),
            (
                owner("Job", "report-29386162"),
                none.clone(),
                ("Job", "report-29386162"),
            ),
            (
                owner("Job", "report-00000001"),
                none.clone(),
                ("Job", "report-00000001"),
            ),
            (
                owner("Job", "data-2024"),
                none.clone(),
                ("Job", "data-2024"),
            ),
            (owner("Job", "29384720"), none.clone(), ("Job", "29384720")),
            (
                owner("Job", "report-2938472é"),
                none.clone(),
                ("Job", "report-2938472é"),
            ),
            (
                owner("StatefulSet", "db"),
                none.clone(),
                ("StatefulSet", "db"),
            ),
            (
                owner("DaemonSet", "log"),
                none.clone(),
                ("DaemonSet", "log"),
            ),
            (owner("Node", "node1"), none.clone(), ("Pod", "p")),
            (json!([]), none.clone(), ("Pod", "p")),
            (
                json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "o"}]),
                none,
                ("Pod", "p"),
            ),
        ] {
            let (kind, name) = workload(owners.clone(), labels, Value::Null);
            assert_eq!((&*kind, &*name), right, "{owners}");
        }
    }

    #[test]
    fn a_deployment_config_is_over_the_replication_controllers_of_its_name() {
        for (controller, config, right) in [
            ("shop-3", Some("shop"), ("DeploymentConfig", "shop")),
            ("a-2-11", Some("a-2"), ("DeploymentConfig", "a-2")),
            ("shop-3", None, ("ReplicationController", "shop-3")),
            ("shop-3", Some("other"), ("ReplicationController", "shop-3")),
            ("shop-x", Some("shop"), ("ReplicationController", "shop-x")),
            ("-3", Some("shop"), ("ReplicationController", "-3")),
            ("shop", Some("shop"), ("ReplicationController", "shop")),
        ] {
            let annotations = json!({"openshift.io/deployment-config.name": config});
            let owners = owner("ReplicationController", controller);
            let (kind, name) = workload(owners, json!({}), annotations);
            assert_eq!((&*kind, &*name), right, "{controller} {config:?}");
        }
    }
}
