//! What the agent remembers of a pod across its own restart: the accepted definition, what became
//! of its containers, and the wish to end it.
//!
//! A manifest says what should be; this says what was begun. Without it a pod that has succeeded
//! would run again, and one whose manifest went away while the agent was down would be killed
//! without its grace.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::lifecycle::BackoffState;
use crate::model::admission::Admission;
use crate::model::container::{
    ContainerAction, ContainerExit, ContainerState, ContainerStatus, Deletion, DeletionReason,
    FirstProcess, PodPhase, SpecHash, Termination,
};
use crate::model::eviction::{Eviction, EvictionCause};
use crate::model::pod::{Container, Pod, Redefinition, RestartPolicy};
use crate::model::time::WallTime;
use crate::units::Bytes;

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodState {
    /// Times in here belong to this boot.
    pub boot_id: String,
    pub pod: Pod,
    /// When the agent accepted the pod, `status.startTime` of Kubernetes.
    pub accepted_at: WallTime,
    /// The file in the manifest directory that it is from; `None`: nobody has noted it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// Of the manifest that names its UID, as it was written. `None`: it names none, or nobody has noted it yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The last one; `None`: `pod` is the definition that was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redefined: Option<Redefinition>,
    /// Volumes in memory that held more when they were to have these sizes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub late_volumes: BTreeMap<String, Bytes>,
    pub containers: Vec<ContainerStatus>,
    /// Of those that run, by container name; what it has of others means nothing. Versions before it have noted none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub first_processes: BTreeMap<String, FirstProcess>,
    pub deletion: Option<Deletion>,
    /// It ends as failed, and stays known until its definition goes. The first one stays.
    #[serde(default)]
    pub eviction: Option<Eviction>,
    #[serde(default)]
    pub admission: Admission,
    /// It was in when the node was booted; since then its place is not decided, and nothing of it has begun. With
    /// `compat: kubelet` nobody asks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_in_before_boot: bool,
    pub backoff: BackoffState,
    pub phase: PodPhase,
    /// OOM kills among all processes of a container, over its restarts; by container name.
    pub oom_kills: BTreeMap<String, u64>,
    /// Of them, those from before its last start.
    #[serde(default)]
    pub oom_kills_before: BTreeMap<String, u64>,
}

/// A container that was started, as its own record tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begun {
    pub name: String,
    pub attempt: u32,
    pub spec_hash: SpecHash,
    /// Since boot.
    pub started_at: Duration,
}

impl PodState {
    /// The kind and format version of the file that holds it.
    pub const KIND: &'static str = "pod";
    pub const VERSION: u32 = 1;

    pub fn new(pod: Pod, boot_id: String, accepted_at: WallTime) -> Self {
        let containers = pod
            .init_containers
            .iter()
            .chain(&pod.containers)
            .map(|it| ContainerStatus::not_started(&it.name))
            .collect();
        Self {
            boot_id,
            pod,
            accepted_at,
            manifest: None,
            digest: None,
            redefined: None,
            late_volumes: BTreeMap::new(),
            containers,
            first_processes: BTreeMap::new(),
            deletion: None,
            eviction: None,
            admission: Admission::Open,
            was_in_before_boot: false,
            backoff: BackoffState::default(),
            phase: PodPhase::Pending,
            oom_kills: BTreeMap::new(),
            oom_kills_before: BTreeMap::new(),
        }
    }

    /// A container is started anew.
    pub fn begin_instance(&mut self, container: &str) {
        let kills = self.oom_kills.get(container).copied().unwrap_or(0);
        self.oom_kills_before.insert(container.to_owned(), kills);
    }

    /// Takes the attempt of a container's own record, which is stored before its program runs, if it is a later one than
    /// this state has: when that one began, this state could not be stored. True: it is.
    pub fn catch_up(&mut self, begun: &Begun) -> bool {
        let status = self.container_mut(&begun.name);
        let Some(status) = status.filter(|it| it.attempt < begun.attempt) else {
            return false;
        };
        let start = ContainerAction::Start {
            container: begun.name.clone(),
            attempt: begun.attempt,
            spec_hash: begun.spec_hash.clone(),
        };
        status.record(&start, begun.started_at);
        self.begin_instance(&begun.name);
        true
    }

    /// So many OOM kills are known in a container since its last start, whatever this record has of them: it is
    /// written later than they are counted.
    pub fn set_kills_of_instance(&mut self, container: &str, kills: u64) {
        let before = self.oom_kills_before.get(container).copied().unwrap_or(0);
        self.oom_kills.insert(container.to_owned(), before + kills);
    }

    /// A pod whose state was lost, by the containers of it that are there. Times are of this boot.
    ///
    /// What is not known is taken so that nothing runs twice: init containers before one that began
    /// have done their work, and a container that is not to run always and is not there has ended, nobody
    /// knows how.
    pub fn rebuilt(
        pod: Pod,
        boot_id: String,
        accepted_at: WallTime,
        begun: &[Begun],
        now: Duration,
    ) -> Self {
        let mut state = Self::new(pod, boot_id, accepted_at);
        // It would not run otherwise.
        state.admission = Admission::Admitted;
        let ended = |exit| {
            ContainerState::Exited(Termination {
                started_at: None,
                finished_at: now,
                exit,
                oom_killed: false,
                message: Some("its record was lost".to_owned()),
            })
        };
        let pod = &state.pod;
        let n_init = pod.init_containers.len();
        let all: Vec<&Container> = pod.all_containers().collect();
        let is_begun = |name: &str| begun.iter().any(|it| it.name == name);
        let last_begun = all.iter().rposition(|it| is_begun(&it.name));
        for (i, status) in state.containers.iter_mut().enumerate() {
            let its = begun.iter().filter(|it| it.name == status.name);
            if let Some(begun) = its.max_by_key(|it| it.attempt) {
                status.attempt = begun.attempt;
                status.spec_hash = Some(begun.spec_hash.clone());
                status.state = ContainerState::Running {
                    started_at: begun.started_at,
                };
            } else if i < n_init {
                let has_passed = last_begun.is_some_and(|last| i < last);
                if has_passed && !all[i].is_sidecar {
                    status.state = ended(ContainerExit::Code(0));
                }
            } else if last_begun.is_some_and(|last| last >= n_init)
                && pod.restart_policy != RestartPolicy::Always
            {
                status.state = ended(ContainerExit::Unknown);
            }
        }
        state
    }

    /// When the pod has to end, and why: it was evicted, its definition is gone, or both.
    pub fn ending(&self) -> Option<Deletion> {
        let evicted = self.eviction.as_ref().map(|it| Deletion {
            requested_at: it.at,
            grace: it.victim.grace,
            reason: match it.victim.cause {
                EvictionCause::Preemption { .. } => DeletionReason::Preempted,
                _ => DeletionReason::Evicted,
            },
        });
        match (evicted, self.deletion) {
            (Some(evicted), Some(removed)) => Some(evicted.merge(removed)),
            (evicted, removed) => evicted.or(removed),
        }
    }

    pub fn container_mut(&mut self, name: &str) -> Option<&mut ContainerStatus> {
        self.containers.iter_mut().find(|it| it.name == name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::model::pod::PodOrigin;

    /// What each record has. Fields that came since can be missing.
    const FIRST: &str = r#"{
        "bootId": "boot",
        "pod": {
            "uid": "u", "namespace": "ns", "name": "p", "labels": {"a": "b"}, "annotations": {},
            "origin": "Manifest", "recordedQos": null, "priority": 7, "priorityClassName": null,
            "nodeName": "node", "restartPolicy": "Always", "terminationGrace": {"secs": 30, "nanos": 0},
            "initContainers": [],
            "containers": [{
                "name": "app", "image": "none", "command": ["sleep"], "args": ["1"],
                "env": [{"name": "A", "value": "b"}], "workingDir": null,
                "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "16Mi"}},
                "volumeMounts": [["v", "/v"]], "isSidecar": false, "restartPolicy": null,
                "runAsUser": 1000, "runAsGroup": null, "runAsNonRoot": false
            }],
            "overhead": {}, "resources": null,
            "volumes": [
                {"name": "v", "source": {"emptyDir": {"memory": true, "size_limit": "16Mi"}}},
                {"name": "w", "source": {"hostPath": {"path": "/w"}}},
                {"name": "x", "source": {"other": {"kind": "nfs"}}}
            ],
            "warnings": [{"path": "spec.hostname", "message": "is ignored"}]
        },
        "acceptedAt": "2026-01-02T03:04:05.000006Z",
        "containers": [{
            "name": "app", "attempt": 1,
            "state": {"running": {"started_at": {"secs": 7, "nanos": 0}}},
            "lastTermination": {
                "startedAt": null, "finishedAt": {"secs": 6, "nanos": 0}, "exit": {"code": 1},
                "oomKilled": true, "message": null
            },
            "specHash": "hash",
            "stop": {
                "requestedAt": {"secs": 8, "nanos": 0}, "grace": {"secs": 30, "nanos": 0},
                "reason": "podTerminating", "killedAt": null
            }
        }],
        "deletion": {
            "requestedAt": {"secs": 8, "nanos": 0}, "grace": {"secs": 30, "nanos": 0}, "reason": "removed"
        },
        "backoff": {
            "app": {"specHash": "hash", "delay": {"secs": 10, "nanos": 0}, "lastStart": {"secs": 7, "nanos": 0}}
        },
        "phase": "Running",
        "oomKills": {"app": 2}
    }"#;

    fn is_part(part: &Value, of: &Value) -> bool {
        match (part, of) {
            (Value::Object(part), Value::Object(of)) => part
                .iter()
                .all(|(key, part)| of.get(key).is_some_and(|of| is_part(part, of))),
            (Value::Array(part), Value::Array(of)) => {
                part.len() == of.len() && part.iter().zip(of).all(|(part, of)| is_part(part, of))
            }
            _ => part == of,
        }
    }

    /// Else each pod of a node that is upgraded, or goes back to an earlier version, is left as it is.
    #[test]
    fn a_record_of_the_first_form_is_read_and_loses_nothing() {
        let first: Value = serde_json::from_str(FIRST).expect("JSON");
        let read: PodState = serde_json::from_str(FIRST).expect("a record");
        let written = serde_json::to_value(&read).expect("a record");
        assert!(is_part(&first, &written), "{written:#}");
    }

    #[test]
    fn a_lost_state_is_rebuilt_so_that_nothing_runs_twice() {
        const NOW: Duration = Duration::from_secs(60);
        let begun = |name: &str| Begun {
            name: name.to_owned(),
            attempt: 3,
            spec_hash: SpecHash("hash".to_owned()),
            started_at: Duration::from_secs(7),
        };
        let of = |policy: &str, names: &[&str]| -> Vec<String> {
            let source = serde_json::json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
                "spec": {
                    "restartPolicy": policy,
                    "initContainers": [
                        {"name": "first"},
                        {"name": "side", "restartPolicy": "Always"},
                        {"name": "second"},
                    ],
                    "containers": [{"name": "app"}, {"name": "other"}],
                },
            });
            let source = serde_json::from_value(source).expect("a v1.Pod");
            let pod = Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod");
            let begun: Vec<_> = names.iter().map(|it| begun(it)).collect();
            let at = WallTime::from_epoch(Duration::ZERO);
            let state = PodState::rebuilt(pod, "boot".to_owned(), at, &begun, NOW);
            assert_eq!(state.admission, Admission::Admitted);
            let word = |it: &ContainerStatus| match &it.state {
                ContainerState::NotStarted => "to start".to_owned(),
                ContainerState::Running { .. } => format!("runs {}", it.attempt),
                ContainerState::Exited(it) => format!("{:?}", it.exit),
                other => panic!("{other:?}"),
            };
            state.containers.iter().map(word).collect()
        };
        let (runs, new, done, gone) = ("runs 3", "to start", "Code(0)", "Unknown");
        assert_eq!(
            of("Always", &["app", "side"]),
            [done, runs, done, runs, new]
        );
        assert_eq!(of("Always", &["other"]), [done, new, done, new, runs]);
        assert_eq!(of("Never", &["app"]), [done, new, done, runs, gone]);
        assert_eq!(of("OnFailure", &["app"]), [done, new, done, runs, gone]);
        // Still among its init containers: the others have yet to begin.
        assert_eq!(of("Never", &["second"]), [done, new, runs, new, new]);
        assert_eq!(of("Never", &["first"]), [runs, new, new, new, new]);
    }

    #[test]
    fn the_size_that_a_volume_has_later_is_stored() {
        let pod = crate::decide::testing::pod("app {}");
        let mut state = PodState::new(pod, "boot".to_owned(), WallTime::default());
        let stored = |it: &PodState| serde_json::to_string(it).expect("a record");
        assert!(!stored(&state).contains("lateVolumes"));
        let size = Bytes(48 << 20);
        state.late_volumes.insert("memory".to_owned(), size);
        let read: PodState = serde_json::from_str(&stored(&state)).expect("a record");
        assert_eq!(read, state);
    }

    #[test]
    fn a_record_of_a_later_attempt_is_what_has_begun() {
        let pod = crate::decide::testing::pod("app {}");
        let mut state = PodState::new(pod, "boot".to_owned(), WallTime::default());
        let running = ContainerState::Running {
            started_at: Duration::ZERO,
        };
        state.containers[0].attempt = 1;
        state.containers[0].state = running.clone();
        state.oom_kills.insert("app0".to_owned(), 2);
        let begun = |attempt| Begun {
            name: "app0".to_owned(),
            attempt,
            spec_hash: SpecHash("hash".to_owned()),
            started_at: Duration::from_secs(7),
        };
        for attempt in [0, 1] {
            assert!(!state.catch_up(&begun(attempt)), "attempt {attempt}");
            assert_eq!(state.containers[0].state, running);
        }
        assert!(state.catch_up(&begun(3)));
        let status = &state.containers[0];
        assert_eq!(
            (status.attempt, &status.state),
            (3, &ContainerState::Starting)
        );
        assert_eq!(status.spec_hash, Some(SpecHash("hash".to_owned())));
        assert_eq!(state.oom_kills_before["app0"], 2);
    }
}
