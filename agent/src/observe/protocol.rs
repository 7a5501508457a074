//! What goes over the Unix socket: one request as a line of JSON, then answers, one line each. The
//! server closes the connection after the last answer.
//!
//! Unknown fields of a request are refused, so that an older agent never ignores a filter that a
//! newer client relies on. Unknown fields of an answer are ignored.

use serde::{Deserialize, Serialize};

use crate::model::forensics::OomRecord;
use crate::model::record::{EventKind, EventRecord};
use crate::model::stats::StatsSnapshot;
pub use crate::model::status::DEFAULT_SOCKET;
use crate::model::status::{ApiVersion, EvictionStanding, PlacementStatus, PodEntry, Status};
use crate::model::time::WallTime;
use crate::observe::event_log::EventFilter;

/// The longest request line in bytes, newline included; every sensible request is far below.
pub const MAX_REQUEST_BYTES: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatusRequest {
    pub api_version: ApiVersion,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventsRequest {
    pub api_version: ApiVersion,
    /// Stay and send what happens from now on.
    #[serde(default)]
    pub follow: bool,
    /// Empty: every kind.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<EventKind>,
    /// Only what happened at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<WallTime>,
    /// Only records with a higher sequence number; those of the next agent are higher. A number that
    /// the agent has not reached, as after the clock went back, counts as none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

/// A pod to be explained. Of the node the status document says all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExplainRequest {
    pub api_version: ApiVersion,
    /// Its name.
    pub pod: String,
    /// `None`: the one namespace that has a pod of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// The forensic records of OOM kills, oldest first, also those of agents that ran before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RecordsRequest {
    pub api_version: ApiVersion,
    /// Only of kills at this time or later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<WallTime>,
}

/// What the node and its cgroups use now. Where the newest sweep is older than a second, the answer
/// waits a moment for a fresh one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StatsRequest {
    pub api_version: ApiVersion,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
pub enum Request {
    Status(StatusRequest),
    Stats(StatsRequest),
    Events(EventsRequest),
    Records(RecordsRequest),
    Explain(ExplainRequest),
}

impl Request {
    pub fn status() -> Self {
        Self::Status(StatusRequest {
            api_version: ApiVersion::V1Alpha1,
        })
    }

    pub fn stats() -> Self {
        Self::Stats(StatsRequest {
            api_version: ApiVersion::V1Alpha1,
        })
    }
}

impl EventsRequest {
    /// The filter, given the newest sequence number of the log.
    pub fn filter(&self, last_sequence: u64) -> EventFilter {
        EventFilter {
            kinds: self.kind.iter().copied().collect(),
            since: self.since,
            after: self.after.filter(|after| *after <= last_sequence),
        }
    }
}

/// Why a pod is what and where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    pub api_version: ApiVersion,
    pub kind: PodExplanationKind,
    /// Its entry in the status document.
    pub pod: PodEntry,
    /// The agent places the pods of this node. False: another program does.
    pub is_managed: bool,
    /// Of the node, from the same document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<PlacementStatus>,
    /// `None`: not known, or it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<EvictionStanding>,
    /// How it was admitted, as `ballast replay` takes it; `None`: no policy had a say in it, or the
    /// fault below.
    pub record: Option<serde_json::Value>,
    /// Why there is a record that cannot be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_fault: Option<String>,
    /// The last kills of the OOM killer in it, newest first; also those that an earlier agent saw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub oom_records: Vec<OomRecord>,
    /// Why they cannot be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_records_fault: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodExplanationKind {
    #[default]
    PodExplanation,
}

/// One line of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    Status(Box<Status>),
    Stats(Box<StatsSnapshot>),
    Event(Box<EventRecord>),
    Record(Box<OomRecord>),
    Explanation(Box<PodExplanation>),
    /// The request was not served; the message says why.
    Error(String),
}

/// The same as [`Answer`], borrowed, so that sending copies nothing.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum AnswerRef<'a> {
    Status(&'a Status),
    Stats(&'a StatsSnapshot),
    Event(&'a EventRecord),
    Record(&'a OomRecord),
    Explanation(&'a PodExplanation),
    Error(&'a str),
}

impl AnswerRef<'_> {
    /// The line with its newline.
    pub fn to_line(self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self)
            .expect("answers are maps with string keys and finite or null numbers");
        line.push(b'\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::record::tests::oom_record;

    #[test]
    fn requests_read_as_documented() {
        let events = |text: &str| match serde_json::from_str(text) {
            Ok(Request::Events(request)) => request,
            other => panic!("{text} gave {other:?}"),
        };
        assert_eq!(
            serde_json::from_str::<Request>(
                r#"{"apiVersion":"ballast.dev/v1alpha1","command":"status"}"#
            )
            .ok(),
            Some(Request::status())
        );
        assert_eq!(
            serde_json::from_str::<Request>(
                r#"{"apiVersion":"ballast.dev/v1alpha1","command":"stats"}"#
            )
            .ok(),
            Some(Request::stats())
        );
        let request = events(
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"events","follow":true,
                "kind":["oom","process"],"since":"2025-01-31T12:00:00Z","after":7}"#,
        );
        assert!(request.follow);
        assert_eq!(request.kind, [EventKind::Oom, EventKind::Process]);
        assert_eq!(request.filter(7).after, Some(7));
        assert_eq!(request.filter(6).after, None, "the clock went back");
        assert_eq!(
            serde_json::from_str::<Request>(
                r#"{"apiVersion":"ballast.dev/v1alpha1","command":"explain",
                    "pod":"web","namespace":"shop"}"#
            )
            .ok(),
            Some(Request::Explain(ExplainRequest {
                api_version: ApiVersion::V1Alpha1,
                pod: "web".into(),
                namespace: Some("shop".into()),
            }))
        );
        let plain = events(r#"{"apiVersion":"ballast.dev/v1alpha1","command":"events"}"#);
        assert!(!plain.follow && plain.kind.is_empty() && plain.since.is_none());
    }

    #[test]
    fn other_requests_are_refused() {
        for text in [
            r#"{"command":"status"}"#,
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"stats","pod":"x"}"#,
            r#"{"apiVersion":"ballast.dev/v2","command":"status"}"#,
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"reboot"}"#,
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"events","pod":"x"}"#,
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"events","kind":["all"]}"#,
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"explain"}"#,
            r#"{"apiVersion":"ballast.dev/v1alpha1","command":"explain","pod":"x","uid":"../x"}"#,
            "GET / HTTP/1.1",
            "",
        ] {
            assert!(serde_json::from_str::<Request>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_answer_is_one_line_that_reads_back() {
        let record = oom_record(3);
        let line = AnswerRef::Event(&record).to_line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(
            serde_json::from_slice::<Answer>(&line).ok(),
            Some(Answer::Event(Box::new(record)))
        );
        let line = AnswerRef::Error("two\nlines").to_line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    }
}
