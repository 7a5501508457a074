//! Kills that wait for the names of their pods and containers, by which Events tell of them.

use std::time::Duration;

use super::{LATE, OLD};
use crate::decide::naming::Names;
use crate::model::kube_event::{Regarding, Write};
use crate::model::record::Event;

/// Who has the name of a pod by now and not that of its container is told of without it.
const NAMED_BY: Duration = Duration::from_secs(2);

/// Who has no name by now is told of by its UID, to the node, while it is news.
const GIVEN_UP: Duration = OLD.saturating_sub(LATE);

/// Of more the oldest wait no longer.
const MAX_WAITING: usize = 1_000;

/// See the module. Times are boottime.
#[derive(Debug, Default)]
pub struct Unnamed {
    kills: Vec<Kill>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Kill {
    pub event: Event,
    /// Of it being taken.
    pub since: Duration,
    /// It happened before this agent.
    pub is_earlier: bool,
}

impl Unnamed {
    pub fn extend(&mut self, kills: impl IntoIterator<Item = Kill>) {
        self.kills.extend(kills);
    }

    /// Those that wait no longer, with the names that they have, in the order in which they were taken.
    /// `is_last`: no name of a container comes any more.
    pub fn take_known(&mut self, names: &Names, now: Duration, is_last: bool) -> Vec<Kill> {
        let too_many = self.kills.len().saturating_sub(MAX_WAITING);
        let mut known = Vec::new();
        for (n, mut kill) in std::mem::take(&mut self.kills).into_iter().enumerate() {
            if let Some(named) = names.name_event(&kill.event) {
                kill.event = named;
            }
            let waits_until = match n < too_many {
                true => None,
                false => kill.waits_until(),
            };
            let is_named = kill.event.pod.is_some();
            if waits_until > Some(now) && !(is_last && is_named) {
                self.kills.push(kill);
            } else {
                known.push(kill);
            }
        }
        known
    }

    /// When the next one waits no longer. `None`: none waits.
    pub fn wake(&self) -> Option<Duration> {
        self.kills.iter().filter_map(Kill::waits_until).min()
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Kill> {
        self.kills.iter()
    }

    pub const fn len(&self) -> usize {
        self.kills.len()
    }

    pub const fn is_empty(&self) -> bool {
        self.kills.is_empty()
    }
}

impl Kill {
    /// When it happened.
    pub const fn since_boot(&self) -> Duration {
        Duration::from_nanos(self.event.boottime_ns)
    }

    /// Whether the object of `regarding` may tell of it in the end: that of the node tells of many, and of pods that
    /// nobody can name.
    fn may_be_told_by(&self, regarding: &Regarding) -> bool {
        match regarding {
            Regarding::Pod { pod, .. } => self.event.uid() == Some(&pod.uid),
            Regarding::Node => true,
        }
    }

    /// `None`: for nothing.
    fn waits_until(&self) -> Option<Duration> {
        let event = &self.event;
        match (&event.pod, event.uid()) {
            // Of no pod, or nobody knows of which.
            (_, None) => None,
            (None, Some(_)) => Some(self.since_boot() + GIVEN_UP),
            (Some(_), Some(_)) => event.container_id.as_ref().map(|_| self.since + NAMED_BY),
        }
    }
}

/// Up to when the object of a write tells all. A kill that waits is newer than that, so that the next agent tells it if
/// this one is killed; it may tell once more what happened since.
pub fn told_until<'a>(write: &Write, waiting: impl IntoIterator<Item = &'a Kill>) -> Duration {
    let waiting = waiting.into_iter();
    let of_object = waiting.filter(|it| it.may_be_told_by(&write.regarding));
    let oldest = of_object.map(Kill::since_boot).min();
    let before = oldest.map(|it| it.saturating_sub(Duration::from_nanos(1)));
    before.map_or(write.told_until, |it| it.min(write.told_until))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::model::kube_event::{Reason, WriteKind};
    use crate::model::pod::PodUid;
    use crate::model::record::PodRef;
    use crate::model::record::tests::oom_record;
    use crate::model::runtime_names::{Identified, Role};
    use crate::model::time::WallTime;

    const AT: Duration = Duration::from_secs(11);

    /// A kill in the container `id-N` of the pod `uid-N`, of which nobody knows a name.
    fn kill(n: usize) -> Kill {
        let mut event = oom_record(1).event;
        (event.pod, event.pod_uid) = (None, Some(PodUid(format!("uid-{n}"))));
        (event.container, event.container_id) = (None, Some(format!("id-{n}")));
        event.boottime_ns = u64::try_from(AT.as_nanos()).expect("it is short");
        Kill {
            event,
            since: AT,
            is_earlier: false,
        }
    }

    fn pod(n: usize) -> Arc<PodRef> {
        Arc::new(PodRef {
            namespace: "default".to_owned(),
            name: format!("pod-{n}"),
            uid: PodUid(format!("uid-{n}")),
        })
    }

    #[test]
    fn a_kill_is_told_at_once_when_it_has_both_names() {
        let (mut unnamed, mut names) = (Unnamed::default(), Names::default());
        unnamed.extend([kill(1)]);
        assert_eq!(unnamed.take_known(&names, AT, false), []);
        names.name_pod(&pod(1));
        assert_eq!(unnamed.take_known(&names, AT, false), []);
        assert_eq!(unnamed.wake(), Some(AT + NAMED_BY));
        names.learn(&Identified {
            id: "id-1".to_owned(),
            pod: pod(1),
            role: Role::Container {
                name: "main".into(),
                attempt: 0,
                image: None,
            },
        });
        let known = unnamed.take_known(&names, AT, false);
        assert_eq!(known.len(), 1);
        assert_eq!(
            known[0].event.subject().as_deref(),
            Some("default/pod-1/main")
        );
        assert_eq!((unnamed.len(), unnamed.wake()), (0, None));
    }

    #[test]
    fn the_name_of_a_container_is_waited_for_a_moment() {
        let (mut unnamed, mut names) = (Unnamed::default(), Names::default());
        names.name_pod(&pod(1));
        unnamed.extend([kill(1)]);
        let almost = AT + NAMED_BY - Duration::from_millis(1);
        assert_eq!(unnamed.take_known(&names, almost, false), []);
        assert_eq!(unnamed.take_known(&names, AT + NAMED_BY, false).len(), 1);
        // Nor at the end.
        unnamed.extend([kill(1), kill(2)]);
        assert_eq!(unnamed.take_known(&names, AT, true).len(), 1);
        assert_eq!(
            unnamed.len(),
            1,
            "a pod without a name is told by the next agent"
        );
    }

    #[test]
    fn a_sandbox_has_no_name_that_is_waited_for() {
        let (mut unnamed, mut names) = (Unnamed::default(), Names::default());
        names.learn(&Identified {
            id: "id-1".to_owned(),
            pod: pod(1),
            role: Role::Sandbox,
        });
        unnamed.extend([kill(1)]);
        let known = unnamed.take_known(&names, AT, false);
        assert_eq!(known.len(), 1);
        let subject = known[0].event.subject();
        assert_eq!(subject.as_deref(), Some("default/pod-1"));
        // One that was named before its container was known.
        let mut named = kill(1);
        (named.event.pod, named.event.pod_uid) = (Some((*pod(1)).clone()), None);
        unnamed.extend([named]);
        assert_eq!(unnamed.take_known(&names, AT, false).len(), 1);
    }

    #[test]
    fn what_is_written_says_nothing_of_an_earlier_kill_that_waits() {
        let write = |regarding| Write {
            kind: WriteKind::Create,
            id: 1,
            regarding,
            reason: Reason::OomKilled,
            role: None,
            is_name_taken: false,
            count: 1,
            first: WallTime::from_epoch(AT),
            last: WallTime::from_epoch(AT),
            told_until: AT,
            message: String::new(),
            details: BTreeMap::new(),
        };
        let of_pod = |n| {
            write(Regarding::Pod {
                pod: pod(n),
                container: None,
            })
        };
        let at = |n, at: Duration| {
            let mut kill = kill(n);
            kill.event.boottime_ns = u64::try_from(at.as_nanos()).expect("it is short");
            kill
        };
        let second = Duration::from_secs(1);
        let waiting = [
            at(1, AT + second),
            at(1, AT.saturating_sub(second)),
            at(2, AT + second),
        ];
        let before = AT
            .saturating_sub(second)
            .saturating_sub(Duration::from_nanos(1));
        assert_eq!(told_until(&of_pod(1), &waiting), before);
        assert_eq!(told_until(&of_pod(2), &waiting), AT, "one that is later");
        assert_eq!(told_until(&of_pod(3), &waiting), AT, "of other pods");
        assert_eq!(told_until(&write(Regarding::Node), &waiting), before);
    }

    #[test]
    fn who_never_gets_a_name_is_told_of_while_it_is_news() {
        let (mut unnamed, names) = (Unnamed::default(), Names::default());
        unnamed.extend([kill(1)]);
        let given_up = AT + GIVEN_UP;
        assert!(given_up < AT + OLD);
        let almost = given_up.saturating_sub(Duration::from_millis(1));
        assert_eq!(unnamed.take_known(&names, almost, false), []);
        assert_eq!(unnamed.wake(), Some(given_up));
        let known = unnamed.take_known(&names, given_up, false);
        assert_eq!(known.len(), 1);
        assert_eq!(known[0].event.pod, None);
    }

    #[test]
    fn of_too_many_the_oldest_wait_no_longer() {
        let (mut unnamed, names) = (Unnamed::default(), Names::default());
        unnamed.extend((0..MAX_WAITING + 2).map(kill));
        let known = unnamed.take_known(&names, AT, false);
        let known: Vec<_> = known.iter().filter_map(|it| it.event.uid()).collect();
        assert_eq!(
            known,
            [&PodUid("uid-0".to_owned()), &PodUid("uid-1".to_owned())]
        );
        assert_eq!(unnamed.len(), MAX_WAITING);
    }

    #[test]
    fn a_kill_of_no_pod_waits_for_nothing() {
        let mut unnamed = Unnamed::default();
        let mut of_host = kill(1);
        of_host.event.pod_uid = None;
        unnamed.extend([of_host.clone()]);
        assert_eq!(unnamed.take_known(&Names::default(), AT, false), [of_host]);
    }
}
