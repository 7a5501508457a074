//! What happened, with its meaning: the typed stream behind `ballast events`. A record is an
//! event of the kernel attributed to pod and container, or something the agent did.
//!
//! Invariant: records are for people and machines to read. No decision depends on one.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::event::{
    AttributionMethod, CgroupChange, ExitStatus, OomConstraint, ProcessChange, StallKind,
};
use super::forensics::RecordId;
use super::pod::{PodUid, QosClass};
use super::time::WallTime;

/// A pod as a record or a metric names it. One of which only the UID is known has an empty name and an
/// empty namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRef {
    pub namespace: String,
    pub name: String,
    pub uid: PodUid,
}

impl PodRef {
    pub fn has_name(&self) -> bool {
        !self.name.is_empty()
    }
}

/// `namespace/name`, or the UID of a pod without a name.
impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.has_name() {
            true => write!(f, "{}/{}", self.namespace, self.name),
            false => self.uid.fmt(f),
        }
    }
}

/// A pod, or a container of it, as people read it: by names, else by the UID and by the beginning of the
/// container's id. `None`: it is not known which pod.
pub fn subject(
    pod: Option<&PodRef>,
    uid: Option<&PodUid>,
    container: Option<&str>,
    id: Option<&str>,
) -> Option<String> {
    let pod = match (pod, uid) {
        (Some(pod), _) => pod.to_string(),
        (None, Some(uid)) => uid.to_string(),
        (None, None) => return None,
    };
    Some(match container.or(id.map(short_id)) {
        Some(container) => format!("{pod}/{container}"),
        None => pod,
    })
}

/// As much of the id of a container as people need to find it.
pub fn short_id(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// What a record is about; `--kind` of `ballast events` selects by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// The kernel's OOM killer killed a process.
    Oom,
    /// A process began, became another program, or ended.
    Process,
    /// A cgroup was made, removed, entered, or became empty.
    Cgroup,
    /// A task waited for memory.
    Stall,
    /// A pod was accepted, refused, started or ended.
    Pod,
    /// A container started, ended or waits to be started again.
    Container,
    /// Something on the node that no pod owns: limits, reserves, missing features.
    Node,
    /// The agent itself: start, stop, loss, faults of its input.
    Agent,
}

impl EventKind {
    pub const ALL: [Self; 8] = [
        Self::Oom,
        Self::Process,
        Self::Cgroup,
        Self::Stall,
        Self::Pod,
        Self::Container,
        Self::Node,
        Self::Agent,
    ];

    /// The word in JSON and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Process => "process",
            Self::Cgroup => "cgroup",
            Self::Stall => "stall",
            Self::Pod => "pod",
            Self::Container => "container",
            Self::Node => "node",
            Self::Agent => "agent",
        }
    }

    /// Workloads alone decide how often these come, thousands a second if they like. They are
    /// kept apart so that they never push a rare record out of the log.
    pub const fn is_frequent(self) -> bool {
        matches!(self, Self::Process | Self::Cgroup | Self::Stall)
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The word is not one of [`EventKind::ALL`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no event kind {text:?}: one of oom, process, cgroup, stall, pod, container, node, agent")]
pub struct ParseKindError {
    text: String,
}

impl FromStr for EventKind {
    type Err = ParseKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| ParseKindError {
                text: text.to_owned(),
            })
    }
}

/// One thing that happened, before the log has numbered it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// When it happened, by the wall clock.
    pub time: WallTime,
    /// The same moment on `CLOCK_BOOTTIME`, nanoseconds.
    pub boottime_ns: u64,
    pub kind: EventKind,
    /// The name of a variant of a reason enum, CamelCase, such as `OomKilled`.
    pub reason: Cow<'static, str>,
    /// `None`: not of a pod, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    /// `None`: of the pod as a whole, or not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// The UID of a pod whose name is not known; `pod` has that of the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<PodUid>,
    /// The runtime's id of a container whose name is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
    /// How pod and container are known; `None` where nothing had to be attributed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<AttributionMethod>,
    /// One sentence for people, lower case, without final dot and without the names above.
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<EventDetail>,
}

impl Event {
    /// Of no pod, or of one that is not known, until somebody says so.
    pub fn new(
        time: WallTime,
        boottime_ns: u64,
        kind: EventKind,
        reason: &'static str,
        message: String,
    ) -> Self {
        Self {
            time,
            boottime_ns,
            kind,
            reason: Cow::Borrowed(reason),
            pod: None,
            container: None,
            pod_uid: None,
            container_id: None,
            method: None,
            message,
            detail: None,
        }
    }

    /// The UID of its pod, whether the pod has a name or not.
    pub fn uid(&self) -> Option<&PodUid> {
        let named = self.pod.as_ref().map(|it| &it.uid);
        named.or(self.pod_uid.as_ref())
    }

    /// See [`subject`].
    pub fn subject(&self) -> Option<String> {
        subject(
            self.pod.as_ref(),
            self.pod_uid.as_ref(),
            self.container.as_deref(),
            self.container_id.as_deref(),
        )
    }

    /// An OOM kill that somebody asked for, as [`OomKill::was_asked_for`](super::event::OomKill::was_asked_for) has it.
    pub fn was_asked_for(&self) -> bool {
        let is_exact = self.method == Some(AttributionMethod::Exact);
        is_exact
            && matches!(&self.detail, Some(EventDetail::Oom(detail)) if detail.constraint.is_none())
    }
}

/// An [`Event`] with its place in the log of one agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventRecord {
    /// Rises by one with each event of any kind, so a reader sees gaps and can resume.
    pub sequence: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// What the kind of event alone knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum EventDetail {
    Oom(Box<OomDetail>),
    Process(ProcessDetail),
    Cgroup(CgroupDetail),
    Stall(StallDetail),
    Container(ContainerDetail),
    /// Kills of which nobody has seen more than their number.
    Missed {
        count: u64,
        /// `None`: nobody knows whose limit it was.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<OomScope>,
    },
    /// Records that this reader was too slow for.
    Dropped {
        count: u64,
    },
}

/// One kill of the OOM killer: who died, by whose limit, and who asked for the memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomDetail {
    pub victim: OomVictim,
    /// `None`: outside pods, or the QoS class is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qos: Option<QosClass>,
    pub scope: OomScope,
    /// `None`: no cgroup reached a limit, or none could be named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<OomLimit>,
    /// `None`: no hook could tell, or somebody asked for the kill, see [`Event::was_asked_for`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<OomConstraint>,
    pub trigger: OomTrigger,
    /// The victim was exiting already, so the kernel counted no kill.
    pub was_exiting: bool,
    /// From the kill to this record, microseconds.
    pub handling_latency_us: u64,
    /// The forensic record that this kill is part of. `None`: none was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_id: Option<RecordId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomVictim {
    pub pid: u32,
    /// The thread that the kernel chose; all threads of `pid` die.
    pub tid: u32,
    /// `CLOCK_BOOTTIME` of its start, nanoseconds: with `pid` it names the process for ever.
    pub start_boottime_ns: u64,
    pub parent_pid: u32,
    pub comm: String,
    pub uid: u32,
    /// -1000..=1000.
    pub oom_score_adj: i16,
    /// The first process of the container: its death ends the container. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_main_process: Option<bool>,
    /// The rest of the container was killed with it (`memory.oom.group`), or the container's cgroup was gone right
    /// after the kill. `None`: it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_container: Option<bool>,
    /// From the cgroup mount; `None` when the path could not be learned in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
    /// The id of the cgroup, if it lies below that of all pods and nobody knows of which pod, or what it is in
    /// its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_cgroup_id: Option<u64>,
    pub memory: MemorySplit,
}

impl OomVictim {
    /// Whether its container ended with it. False: no restart will show this kill. `None`: not known.
    pub fn ends_container(&self) -> Option<bool> {
        match (self.is_main_process, self.took_container) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            (None, _) | (_, None) => None,
        }
    }
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemorySplit {
    pub anon_bytes: u64,
    pub file_bytes: u64,
    pub shmem_bytes: u64,
    pub swap_bytes: u64,
    pub page_table_bytes: u64,
    /// Virtual size.
    pub total_vm_bytes: u64,
}

/// Whose limit killed. Label `scope` of `ballast_oom_scope_kills_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OomScope {
    /// The container's own limit, or that of a cgroup that the container made below itself.
    Container,
    /// The limit of the pod.
    Pod,
    /// The cgroup of a QoS class.
    Qos,
    /// The limit of all pods together.
    Kubepods,
    /// No memory left on the node.
    Node,
    /// No memory left on the NUMA nodes that a cpuset or a memory policy allows.
    Cpuset,
    /// A cgroup outside kubepods, or one of which nobody knows what it is; or somebody asked for the kill; or nobody
    /// knows why it was.
    Other,
}

impl OomScope {
    pub const ALL: [Self; 7] = [
        Self::Container,
        Self::Pod,
        Self::Qos,
        Self::Kubepods,
        Self::Node,
        Self::Cpuset,
        Self::Other,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Pod => "pod",
            Self::Qos => "qos",
            Self::Kubepods => "kubepods",
            Self::Node => "node",
            Self::Cpuset => "cpuset",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for OomScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The memory cgroup that was full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomLimit {
    /// From the cgroup mount; `None` when the path could not be learned in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
    /// The id of the cgroup, if it lies below that of all pods and nobody knows what it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_cgroup_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
}

/// The process whose allocation started the kill, often not one of the victim's container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomTrigger {
    /// 0: it is not known.
    pub pid: u32,
    pub comm: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// Ids where there are no names, as in an [`Event`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<PodUid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_id: Option<String>,
}

impl OomTrigger {
    /// See [`subject`].
    pub fn subject(&self) -> Option<String> {
        subject(
            self.pod.as_ref(),
            self.pod_uid.as_ref(),
            self.container.as_deref(),
            self.container_id.as_deref(),
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProcessDetail {
    pub pid: u32,
    pub start_boottime_ns: u64,
    pub comm: String,
    pub change: ProcessChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CgroupDetail {
    pub cgroup_id: u64,
    /// From the cgroup mount; `None` when it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_path: Option<String>,
    pub change: CgroupChange,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallDetail {
    pub pid: u32,
    pub kind: StallKind,
    pub duration_ns: u64,
    pub reclaimed_pages: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDetail {
    /// Number of the instance, 0 for the first.
    pub attempt: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// `None`: it runs, or its end was not seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<ExitStatus>,
    /// OOM kills among its processes since it started.
    pub oom_kills: u64,
    /// How long until the next start, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_off_ms: Option<u64>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::time::Duration;

    /// A kill in a pod by the limit of its container.
    pub(crate) fn oom_record(sequence: u64) -> EventRecord {
        let pod = PodRef {
            namespace: "default".into(),
            name: "hungry".into(),
            uid: PodUid("0c4e".into()),
        };
        EventRecord {
            sequence,
            event: Event {
                time: WallTime::from_epoch(Duration::from_micros(1_763_710_000_123_456)),
                boottime_ns: 12_000_000_345,
                kind: EventKind::Oom,
                reason: "OomKilledChild".into(),
                pod: Some(pod.clone()),
                container: Some("main".into()),
                pod_uid: None,
                container_id: None,
                method: Some(AttributionMethod::Exact),
                message: "killed sh (pid 4711, 60.0 MiB anonymous) by the limit of the container"
                    .into(),
                detail: Some(EventDetail::Oom(Box::new(OomDetail {
                    victim: OomVictim {
                        pid: 4711,
                        tid: 4711,
                        start_boottime_ns: 11_000_000_000,
                        parent_pid: 4700,
                        comm: "sh".into(),
                        uid: 0,
                        oom_score_adj: 1000,
                        is_main_process: Some(false),
                        took_container: Some(false),
                        cgroup_path: Some("/kubepods/besteffort/pod0c4e/main".into()),
                        unknown_cgroup_id: None,
                        memory: MemorySplit {
                            anon_bytes: 60 << 20,
                            ..MemorySplit::default()
                        },
                    },
                    qos: Some(QosClass::BestEffort),
                    scope: OomScope::Container,
                    limit: Some(OomLimit {
                        unknown_cgroup_id: None,
                        cgroup_path: Some("/kubepods/besteffort/pod0c4e/main".into()),
                        usage_bytes: Some(64 << 20),
                        max_bytes: Some(64 << 20),
                    }),
                    constraint: Some(OomConstraint::Memcg),
                    trigger: OomTrigger {
                        pid: 4712,
                        comm: "sh".into(),
                        pod: Some(pod),
                        container: Some("main".into()),
                        pod_uid: None,
                        container_id: None,
                    },
                    was_exiting: false,
                    handling_latency_us: 84,
                    record_id: Some(RecordId(3)),
                }))),
            },
        }
    }

    #[test]
    fn a_record_reads_back_and_is_one_flat_object() {
        let record = oom_record(7);
        let json = serde_json::to_string(&record).expect("records have string keys");
        assert_eq!(
            serde_json::from_str::<EventRecord>(&json).ok(),
            Some(record)
        );
        let value: serde_json::Value = serde_json::from_str(&json).expect("just written");
        for (pointer, expected) in [
            ("/sequence", serde_json::json!(7)),
            ("/kind", serde_json::json!("oom")),
            ("/time", serde_json::json!("2025-11-21T07:26:40.123456Z")),
            ("/pod/namespace", serde_json::json!("default")),
            ("/method", serde_json::json!("exact")),
            ("/detail/type", serde_json::json!("oom")),
            ("/detail/scope", serde_json::json!("container")),
            (
                "/detail/victim/memory/anonBytes",
                serde_json::json!(60 << 20),
            ),
        ] {
            assert_eq!(value.pointer(pointer), Some(&expected), "{pointer}");
        }
    }

    #[test]
    fn a_pod_or_container_without_a_name_is_shown_by_its_id() {
        let mut event = oom_record(1).event;
        assert_eq!(event.subject().as_deref(), Some("default/hungry/main"));
        (event.container, event.container_id) = (None, Some("0123456789abcdef".into()));
        let named = Some("default/hungry/0123456789ab");
        assert_eq!(event.subject().as_deref(), named);
        (event.pod, event.pod_uid) = (None, Some(PodUid("0c4e".into())));
        assert_eq!(event.subject().as_deref(), Some("0c4e/0123456789ab"));
        event.container_id = None;
        assert_eq!(event.subject().as_deref(), Some("0c4e"));
        let pod = PodRef {
            namespace: String::new(),
            name: String::new(),
            uid: PodUid("0c4e".into()),
        };
        assert_eq!(pod.to_string(), "0c4e");
        (event.pod_uid, event.container) = (None, Some("main".into()));
        assert_eq!(event.subject(), None);
    }

    #[test]
    fn every_field_name_is_camel_case() {
        let change = ProcessChange::Fork { parent_pid: 1 };
        let exit = ExitStatus::Signal {
            signal: 11,
            core_dumped: true,
        };
        let detail = EventDetail::Container(ContainerDetail {
            exit: Some(exit),
            back_off_ms: Some(10_000),
            ..ContainerDetail::default()
        });
        for value in [
            serde_json::to_string(&change),
            serde_json::to_string(&detail),
            serde_json::to_string(&oom_record(1)),
        ] {
            let json = value.expect("records have string keys");
            let values: serde_json::Value = serde_json::from_str(&json).expect("just written");
            assert!(!has_underscore(&values), "{json}");
        }
    }

    fn has_underscore(value: &serde_json::Value) -> bool {
        match value {
            serde_json::Value::Object(fields) => fields
                .iter()
                .any(|(name, value)| name.contains('_') || has_underscore(value)),
            serde_json::Value::Array(values) => values.iter().any(has_underscore),
            _ => false,
        }
    }

    #[test]
    fn the_words_of_a_kind_are_those_of_its_json() {
        for kind in EventKind::ALL {
            let json = serde_json::to_value(kind).expect("a kind is a string");
            assert_eq!(json, kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        assert!("Oom".parse::<EventKind>().is_err());
        for scope in OomScope::ALL {
            let json = serde_json::to_value(scope).expect("a scope is a string");
            assert_eq!(json, scope.as_str());
        }
    }
}
