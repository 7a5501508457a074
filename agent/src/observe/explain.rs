//! The answer to an `explain` request: what the status document says of the pod, the record of its
//! admission, and those of its OOM kills.
//!
//! Invariant: no path comes from a client. The file of a record is named by the uid that the agent
//! itself gave in its status document.

use std::path::Path;

use serde_json::Value;

use super::oom_records;
use super::protocol::{ExplainRequest, PodExplanation, PodExplanationKind};
use crate::model::admission::MAX_RECORD_BYTES;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::status::{ApiVersion, PodEntry, Status};
use crate::sys::regular::{self, Contents};

/// Why a pod cannot be explained.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    #[error("this node has no pod {pod}; ballast status names those it has")]
    Unknown { pod: String },
    #[error("{name} is a pod in each of the namespaces {namespaces}: name one with --namespace")]
    Ambiguous { name: String, namespaces: String },
}

/// See the module. Reads the file of its admission and up to 1000 of OOM kills.
pub fn pod(
    status: &Status,
    admissions: &Path,
    oom_records: &Path,
    request: &ExplainRequest,
) -> Result<PodExplanation, ExplainError> {
    let pod = find(&status.pods, request)?;
    let (record, record_fault) = match read_record(admissions, &pod.uid) {
        Ok(record) => (record, None),
        Err(fault) => (None, Some(fault)),
    };
    let pressure = status.node.pressure.as_ref();
    // By name, as the counts: a pod that was made again has the kills of the one before, if that is no more. One that
    // was killed before it had a name is on record by its UID.
    let name = (&pod.namespace, &pod.name);
    let is_there = |uid: &PodUid| status.pods.iter().any(|it| it.uid == *uid);
    let is_it = |it: Option<&PodRef>, uid: Option<&PodUid>| match it {
        Some(it) if it.uid == pod.uid => true,
        Some(it) => (&it.namespace, &it.name) == name && !is_there(&it.uid),
        None => uid == Some(&pod.uid),
    };
    let (oom_records, oom_records_fault) = match oom_records::of_pod(oom_records, is_it) {
        Ok(records) => (records, None),
        Err(error) => (Vec::new(), Some(crate::sys::chain(&error))),
    };
    Ok(PodExplanation {
        api_version: ApiVersion::V1Alpha1,
        kind: PodExplanationKind::PodExplanation,
        pod: pod.clone(),
        is_managed: status.is_managed(),
        placement: status.node.placement.clone(),
        eviction: pressure.and_then(|it| it.standing_of(&pod.uid)),
        record,
        record_fault,
        oom_records,
        oom_records_fault,
    })
}

fn find<'a>(pods: &'a [PodEntry], request: &ExplainRequest) -> Result<&'a PodEntry, ExplainError> {
    let ExplainRequest {
        pod: name,
        namespace,
        ..
    } = request;
    let named: Vec<&PodEntry> = pods
        .iter()
        .filter(|it| {
            // One whose name nobody has told is known by its UID.
            let known_as = match it.name.as_str() {
                "" => &it.uid.0,
                named => named,
            };
            known_as == name && namespace.as_ref().is_none_or(|ns| *ns == it.namespace)
        })
        .collect();
    let mut namespaces: Vec<&str> = named.iter().map(|it| it.namespace.as_str()).collect();
    namespaces.dedup();
    match named.as_slice() {
        [] => Err(ExplainError::Unknown {
            pod: match namespace {
                Some(namespace) => format!("{namespace}/{name}"),
                None => name.clone(),
            },
        }),
        // One that ends and its successor may share a name: the newer one is meant.
        [first, others @ ..] if namespaces.len() == 1 => {
            Ok(others.iter().fold(
                first,
                |a, b| if b.started_at > a.started_at { b } else { a },
            ))
        }
        _ => Err(ExplainError::Ambiguous {
            name: name.clone(),
            namespaces: namespaces.join(", "),
        }),
    }
}

/// `Ok(None)`: there is none.
fn read_record(directory: &Path, uid: &PodUid) -> Result<Option<Value>, String> {
    let path = directory.join(format!("{uid}.json"));
    let in_words = |what: &str| Err(format!("{} {what}", path.display()));
    match regular::read(&path, MAX_RECORD_BYTES) {
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(crate::sys::chain(&error)),
        Ok(Contents::Whole { bytes, .. }) => match serde_json::from_slice(&bytes) {
            Ok(record) => Ok(Some(record)),
            Err(error) => in_words(&format!("is not JSON: {error}")),
        },
        Ok(Contents::TooLarge { .. }) => {
            in_words(&format!("is larger than {MAX_RECORD_BYTES} bytes"))
        }
        Ok(Contents::Changing) => in_words("is being written: ask again"),
        Ok(Contents::Other) => in_words("is not a regular file"),
    }
}

#[cfg(test)]
mod tests;
