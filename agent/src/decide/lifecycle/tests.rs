//! A pod and its containers are written as one line, as `init:a=ok sidecar:s=run main:m=new`, and
//! decisions are compared as text, as `start m#1`.

mod backoff;
mod phase;
mod reboot;
mod simulate;
mod start;
mod stop;

use std::time::Duration;

use super::*;
use crate::model::container::{ContainerExit, DeletionReason, StopRequest, Termination};
use crate::model::pod::PodOrigin;

/// Now, unless a test says otherwise.
const NOW: Duration = Duration::from_secs(1_000);
/// When exited containers of a story started and ended.
const STARTED: Duration = Duration::from_secs(950);
const FINISHED: Duration = Duration::from_secs(990);
const POD_GRACE: Duration = Duration::from_secs(30);

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn container(name: &str, is_sidecar: bool) -> Container {
    Container {
        name: name.to_owned(),
        is_sidecar,
        ..blank_pod().containers.remove(0)
    }
}

fn empty_pod(restart_policy: RestartPolicy) -> Pod {
    Pod {
        restart_policy,
        termination_grace: POD_GRACE,
        containers: Vec::new(),
        ..blank_pod()
    }
}

fn blank_pod() -> Pod {
    let source = serde_json::json!({
        "metadata": {"name": "pod", "namespace": "default", "uid": "uid"},
        "spec": {"containers": [{"name": "x", "image": "image", "command": ["run"]}]},
    });
    let source = serde_json::from_value(source).expect("a v1.Pod");
    Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod")
}

fn termination(exit: ContainerExit) -> Termination {
    Termination {
        started_at: Some(STARTED),
        finished_at: FINISHED,
        exit,
        oom_killed: false,
        message: None,
    }
}

fn ended(exit: ContainerExit) -> ContainerState {
    ContainerState::Exited(termination(exit))
}

/// One call of `decide_pod` in the making.
#[derive(Clone)]
struct Story {
    pod: Pod,
    admission: Admission,
    containers: Vec<ContainerStatus>,
    deletion: Option<Deletion>,
    backoff: BackoffState,
    settings: Settings,
    now: Duration,
}

/// `KIND:NAME=STATE ...`; states are `new`, `starting`, `run`, `ok` (exit 0), `err` (exit 1),
/// `unknown`, `startfail`, `ending` (exit 0, processes left). A kind may be followed by the
/// container's own policy, as `main/Never:m=ok`.
fn story(restart_policy: RestartPolicy, text: &str) -> Story {
    let mut pod = empty_pod(restart_policy);
    let mut containers = Vec::new();
    for word in text.split_whitespace() {
        let (kind, rest) = word.split_once(':').expect("KIND:NAME=STATE");
        let (name, state) = rest.split_once('=').expect("KIND:NAME=STATE");
        let (kind, own_policy) = match kind.split_once('/') {
            None => (kind, None),
            Some((kind, "Always")) => (kind, Some(RestartPolicy::Always)),
            Some((kind, "OnFailure")) => (kind, Some(RestartPolicy::OnFailure)),
            Some((kind, "Never")) => (kind, Some(RestartPolicy::Never)),
            Some((_, policy)) => panic!("policy {policy}"),
        };
        let list = match kind {
            "main" => &mut pod.containers,
            "init" | "sidecar" => &mut pod.init_containers,
            _ => panic!("kind {kind}"),
        };
        let mut spec = container(name, kind == "sidecar");
        spec.restart_policy = own_policy;
        let hash = spec_hash(&spec);
        list.push(spec);
        let state = match state {
            "new" => ContainerState::NotStarted,
            "starting" => ContainerState::Starting,
            "run" => ContainerState::Running {
                started_at: STARTED,
            },
            "ok" => ended(ContainerExit::Code(0)),
            "err" => ended(ContainerExit::Code(1)),
            "unknown" => ended(ContainerExit::Unknown),
            "ending" => ContainerState::Ending(termination(ContainerExit::Code(0))),
            "startfail" => ended(ContainerExit::StartFailed),
            _ => panic!("state {state}"),
        };
        let mut status = ContainerStatus::not_started(name);
        if state != ContainerState::NotStarted {
            status.spec_hash = Some(hash);
        }
        status.state = state;
        containers.push(status);
    }
    Story {
        pod,
        admission: Admission::Admitted,
        containers,
        deletion: None,
        backoff: BackoffState::default(),
        settings: Settings::default(),
        now: NOW,
    }
}

impl Story {
    fn admission(self, admission: Admission) -> Self {
        Self { admission, ..self }
    }

    /// The pod is to go since `NOW`.
    fn deleted(self, grace: u64) -> Self {
        self.deleted_for(grace, DeletionReason::Removed)
    }

    fn deleted_for(mut self, grace: u64, reason: DeletionReason) -> Self {
        self.deletion = Some(Deletion {
            requested_at: NOW,
            grace: secs(grace),
            reason,
        });
        self
    }

    /// The time is `after` seconds past `NOW`.
    fn later(mut self, after: u64) -> Self {
        self.now = NOW + secs(after);
        self
    }

    fn with(mut self, name: &str, change: impl FnOnce(&mut ContainerStatus)) -> Self {
        change(self.status(name));
        self
    }

    /// Asked to stop `ago` seconds before `NOW`.
    fn stopped(self, name: &str, ago: u64, grace: u64, reason: StopReason) -> Self {
        self.with(name, |it| {
            it.stop = Some(StopRequest {
                requested_at: NOW - secs(ago),
                grace: secs(grace),
                reason,
                killed_at: None,
            });
        })
    }

    /// The definition of `name` is another one than its instance was started with.
    fn changed(self, name: &str) -> Self {
        self.with(name, |it| {
            it.spec_hash = Some(SpecHash("earlier".to_owned()));
        })
    }

    fn status(&mut self, name: &str) -> &mut ContainerStatus {
        self.containers
            .iter_mut()
            .find(|it| it.name == name)
            .expect("the story has this container")
    }

    fn decide(&self) -> PodDecision {
        decide_pod(&PodView {
            pod: &self.pod,
            admission: &self.admission,
            containers: &self.containers,
            deletion: self.deletion,
            backoff: &self.backoff,
            settings: &self.settings,
            now: self.now,
        })
    }

    /// Decides, and notes what was asked.
    fn step(&mut self) -> PodDecision {
        let decision = self.decide();
        for action in &decision.actions {
            let now = self.now;
            self.status(action.container()).record(action, now);
        }
        self.backoff = decision.backoff.clone();
        decision
    }
}

fn text(actions: &[ContainerAction]) -> String {
    let words: Vec<String> = actions
        .iter()
        .map(|action| match action {
            ContainerAction::Start {
                container, attempt, ..
            } => format!("start {container}#{attempt}"),
            ContainerAction::Terminate {
                container, grace, ..
            } => format!("term {container} {grace:?}"),
            ContainerAction::Kill { container, .. } => format!("kill {container}"),
        })
        .collect();
    words.join(", ")
}

/// The actions of the decision, and that once recorded they are not asked for again.
#[track_caller]
fn check(case: &str, story: &Story, expected: &str) {
    let decision = story.decide();
    assert_eq!(text(&decision.actions), expected, "{case}");
    let mut story = story.clone();
    story.step();
    let again = story.decide();
    assert_eq!(text(&again.actions), "", "{case}: asked again");
    assert_eq!(again.next_wake, decision.next_wake, "{case}: wake");
    assert!(
        decision.next_wake.is_none_or(|it| it > story.now),
        "{case}: wake in the past"
    );
}

/// The running containers' stop requests, for reasons that a row does not show.
fn reasons(actions: &[ContainerAction]) -> Vec<StopReason> {
    actions
        .iter()
        .filter_map(|it| match it {
            ContainerAction::Terminate { reason, .. } | ContainerAction::Kill { reason, .. } => {
                Some(*reason)
            }
            ContainerAction::Start { .. } => None,
        })
        .collect()
}
