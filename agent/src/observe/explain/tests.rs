#![expect(
    clippy::disallowed_methods,
    reason = "a record is replaced beside the code under test"
)]

use std::fs;
use std::path::Path;

use super::*;
use crate::model::forensics::RecordId;
use crate::model::status::tests::example_status;
use crate::sys::scratch::Scratch;

fn request(pod: &str, namespace: Option<&str>) -> ExplainRequest {
    ExplainRequest {
        api_version: ApiVersion::V1Alpha1,
        pod: pod.to_owned(),
        namespace: namespace.map(str::to_owned),
    }
}

/// Pods `default/database`, `a-namespace-with-a-long-name/hungry-...` and `default/idle`, and
/// `default/database` once more in namespace `test`.
fn status() -> Status {
    let mut status = example_status();
    let mut twin = status.pods[0].clone();
    twin.namespace = "test".into();
    twin.uid = PodUid("twin".into());
    status.pods.push(twin);
    status
}

#[test]
fn a_name_is_enough_where_it_is_the_only_one() {
    let found = |name, namespace| {
        let status = status();
        let found = find(&status.pods, &request(name, namespace));
        found
            .map(|it| it.uid.0.clone())
            .map_err(|it| it.to_string())
    };
    assert_eq!(found("idle", None), Ok("77".into()));
    assert_eq!(found("idle", Some("default")), Ok("77".into()));
    assert_eq!(found("database", Some("test")), Ok("twin".into()));
    let ambiguous = "database is a pod in each of the namespaces default, test: name one with \
                     --namespace";
    assert_eq!(found("database", None), Err(ambiguous.into()));
    let unknown = "this node has no pod test/idle; ballast status names those it has";
    assert_eq!(found("idle", Some("test")), Err(unknown.into()));
}

#[test]
fn of_two_lives_of_a_pod_the_newer_one_is_meant() {
    let mut status = example_status();
    let mut successor = status.pods[0].clone();
    successor.uid = PodUid("successor".into());
    successor.started_at = Some(status.agent.observed_at);
    status.pods.insert(0, successor);
    let found = find(&status.pods, &request("database", None)).map(|it| &it.uid.0[..]);
    assert_eq!(found, Ok("successor"));
}

#[test]
fn the_record_of_the_pod_goes_along() {
    let admissions = Scratch::new("explain");
    admissions.write("6a1f.json", br#"{"kind": "AdmissionRecord"}"#);
    let explain = |name| {
        pod(
            &status(),
            admissions.directory(),
            admissions.directory(),
            &request(name, Some("default")),
        )
    };
    let explained = explain("database").expect("the pod is there");
    assert_eq!(
        explained.record,
        Some(serde_json::json!({"kind": "AdmissionRecord"}))
    );
    assert_eq!(explained.record_fault, None);
    let explained = explain("idle").expect("the pod is there");
    assert_eq!((explained.record, explained.record_fault), (None, None));
}

#[test]
fn the_place_in_the_eviction_order_goes_along() {
    let admissions = Scratch::new("explain");
    let explain = |name| {
        pod(
            &status(),
            admissions.directory(),
            Path::new("/nonexistent"),
            &request(name, Some("default")),
        )
    };
    let explained = explain("database").expect("the pod is there");
    let json = serde_json::to_value(explained.eviction).expect("string keys");
    assert_eq!(json["type"], "inOrder");
    assert_eq!((&json["place"], &json["of"]), (&2.into(), &3.into()));
    let explained = explain("idle").expect("the pod is there");
    assert_eq!(explained.eviction, None);
}

#[test]
fn kills_of_another_pod_of_the_name_are_its_own() {
    let records = Scratch::new("explain");
    let mut status = status();
    let database = status.pods[0].clone();
    let namesake = PodUid("namesake".into());
    let put = |id: u64, uid: &PodUid, is_named: bool| {
        let mut record = crate::model::forensics::tests::record(RecordId(id));
        record.more_victims.clear();
        let named = PodRef {
            namespace: database.namespace.clone(),
            name: database.name.clone(),
            uid: uid.clone(),
        };
        (record.event.pod, record.event.pod_uid) = match is_named {
            true => (Some(named), None),
            false => (None, Some(uid.clone())),
        };
        records.write(RecordId(id).file_name(), record.seal());
    };
    put(1, &database.uid, true);
    put(2, &database.uid, false);
    put(3, &namesake, true);
    put(4, &namesake, false);
    let of_database = |status: &Status| {
        let request = request("database", Some("default"));
        let explained = pod(status, records.directory(), records.directory(), &request);
        let explained = explained.expect("the pod is there");
        let ids = explained.oom_records.iter().map(|it| it.id.0);
        ids.collect::<Vec<_>>()
    };
    assert_eq!(of_database(&status), [3, 2, 1], "the one before it");
    let mut other = database.clone();
    other.uid = namesake.clone();
    other.started_at = None;
    status.pods.push(other);
    assert_eq!(of_database(&status), [2, 1], "both are there");
}

#[test]
fn a_record_that_cannot_be_shown_is_told_and_the_rest_is_explained() {
    let admissions = Scratch::new("explain");
    let fault = || {
        let explained = pod(
            &status(),
            admissions.directory(),
            admissions.directory(),
            &request("idle", None),
        );
        let explained = explained.expect("the pod is there");
        assert_eq!(explained.record, None);
        explained.record_fault.unwrap_or_default()
    };
    admissions.write("77.json", b"{");
    assert!(fault().contains("77.json is not JSON"), "{}", fault());
    let large = vec![b' '; usize::try_from(MAX_RECORD_BYTES).expect("8 MiB") + 1];
    admissions.write("77.json", &large);
    assert!(fault().contains("is larger than"), "{}", fault());
    fs::remove_file(admissions.path("77.json")).expect("just written");
    fs::create_dir(admissions.path("77.json")).expect("just removed");
    assert!(fault().contains("not a regular file"), "{}", fault());
}
