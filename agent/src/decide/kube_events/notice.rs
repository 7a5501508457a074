//! What of the agent's records is news for who looks at a pod or a node with kubectl.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::kube_event::{Notice, Reason, Regarding};
use crate::model::record::{Event, EventDetail, OomDetail, OomScope, PodRef};
use crate::model::text::printable;

/// One, or two where a kill in a pod is the node's matter too; none where it is nobody's. The node is told of a pod of
/// which nobody knows the name, by its UID.
pub fn notices(event: &Event) -> Vec<Notice> {
    let pod = event.pod.as_ref().filter(|it| it.has_name());
    let of_pod = pod.map(|it| Regarding::Pod {
        pod: Arc::new(it.clone()),
        container: event.container.as_deref().map(Arc::from),
    });
    match &event.detail {
        Some(EventDetail::Oom(detail)) if !detail.was_exiting => {
            let kill = |regarding, reason, message| Notice {
                regarding,
                reason,
                n: 1,
                at: event.time,
                since_boot: Duration::from_nanos(event.boottime_ns),
                command: Some(printable(&detail.victim.comm).into_owned()),
                message,
                details: details(detail),
            };
            let is_of_node = of_pod.is_none() || detail.scope == OomScope::Node;
            let of_pod = of_pod.map(|it| kill(it, reason_in_pod(detail), killed(event, detail)));
            let of_node = is_of_node.then(|| {
                let killed = killed(event, detail);
                let in_pod = match detail.scope {
                    OomScope::Node => Reason::SystemOom,
                    _ => Reason::OomKilled,
                };
                let (reason, message) = match (pod, detail.victim.unknown_cgroup_id) {
                    (Some(pod), _) => (
                        Reason::SystemOom,
                        format!("in {}: {killed}", whose(pod, event)),
                    ),
                    (None, Some(id)) => {
                        let message = format!("in a pod that nobody knows, cgroup {id}: {killed}");
                        (in_pod, message)
                    }
                    (None, None) => match by_uid(event, &killed) {
                        Some(message) => (in_pod, message),
                        None => (Reason::SystemOom, killed),
                    },
                };
                kill(Regarding::Node, reason, message)
            });
            of_pod.into_iter().chain(of_node).collect()
        }
        Some(EventDetail::Missed { count, .. }) => {
            let unnamed = || Some((Regarding::Node, by_uid(event, &event.message)?));
            let of_pod = of_pod.map(|it| (it, event.message.clone()));
            let notice = of_pod.or_else(unnamed).map(|(regarding, message)| Notice {
                regarding,
                reason: Reason::OomKilled,
                n: *count,
                at: event.time,
                since_boot: Duration::from_nanos(event.boottime_ns),
                command: None,
                message,
                details: BTreeMap::new(),
            });
            notice.into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn reason_in_pod(detail: &OomDetail) -> Reason {
    match detail.victim.ends_container() {
        Some(false) => Reason::OomKilledChild,
        Some(true) | None => Reason::OomKilled,
    }
}

/// Of a pod without a name. `None`: of no pod.
fn by_uid(event: &Event, what: &str) -> Option<String> {
    let subject = event.subject()?;
    Some(format!("in {subject}, whose name nobody knows: {what}"))
}

fn whose(pod: &PodRef, event: &Event) -> String {
    match &event.container {
        Some(container) => format!("{pod}/{container}"),
        None => pod.to_string(),
    }
}

/// For people, in the order of what they ask.
fn killed(event: &Event, detail: &OomDetail) -> String {
    let victim = &detail.victim;
    let memory = &victim.memory;
    let parts = [
        Some(format!(
            "{} (pid {}) was OOM killed: {} anonymous, {} file, {} shared memory",
            printable(&victim.comm),
            victim.pid,
            mib(memory.anon_bytes),
            mib(memory.file_bytes),
            mib(memory.shmem_bytes),
        )),
        Some(match event.was_asked_for() {
            true => "somebody asked for it (SysRq f)".to_owned(),
            false => limit(detail),
        }),
        // It is done by a thread of the kernel.
        asked_by(detail).filter(|_| !event.was_asked_for()),
        Some(format!("oom_score_adj {}", victim.oom_score_adj)),
        match victim.ends_container() {
            Some(true) => Some("the container ends with it".to_owned()),
            Some(false) => Some("the container goes on".to_owned()),
            None => None,
        },
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("; ")
}

fn limit(detail: &OomDetail) -> String {
    let whose = match detail.scope {
        OomScope::Node => return "the node ran out of memory".to_owned(),
        OomScope::Cpuset => return "the allowed NUMA nodes ran out of memory".to_owned(),
        OomScope::Container => "of its container",
        OomScope::Pod => "of its pod",
        OomScope::Qos => "of its QoS class",
        OomScope::Kubepods => "of all pods",
        OomScope::Other => match (&detail.limit, detail.constraint) {
            (Some(_), _) => "of another cgroup",
            (None, Some(_)) => return "a limit, nobody knows whose".to_owned(),
            (None, None) => {
                return "nobody knows whether it was a limit or the node".to_owned();
            }
        },
    };
    let limit = detail.limit.as_ref();
    let max = limit.and_then(|it| it.max_bytes).map(mib);
    let usage = limit.and_then(|it| it.usage_bytes).map(mib);
    let max = max.map(|it| format!("{it} ")).unwrap_or_default();
    let usage = usage.map(|it| format!(", {it} in use"));
    format!("limit {max}{whose}{}", usage.unwrap_or_default())
}

/// `None`: the victim itself, or nobody knows.
fn asked_by(detail: &OomDetail) -> Option<String> {
    let trigger = &detail.trigger;
    if [0, detail.victim.pid, detail.victim.tid].contains(&trigger.pid) {
        return None;
    }
    let of = trigger.subject().map(|it| format!(" of {it}"));
    Some(format!(
        "the memory was asked for by {} (pid {}){}",
        printable(&trigger.comm),
        trigger.pid,
        of.unwrap_or_default()
    ))
}

/// `61.2 MiB`.
fn mib(bytes: u64) -> String {
    let tenths = bytes.saturating_mul(10) >> 20;
    match tenths % 10 {
        0 => format!("{} MiB", tenths / 10),
        tenth => format!("{}.{tenth} MiB", tenths / 10),
    }
}

fn details(detail: &OomDetail) -> BTreeMap<&'static str, String> {
    let victim = &detail.victim;
    let limit = detail.limit.as_ref();
    let trigger = Some(&detail.trigger).filter(|it| it.pid != 0);
    let all = [
        ("pid", Some(victim.pid.to_string())),
        ("comm", Some(printable(&victim.comm).into_owned())),
        ("anon-bytes", Some(victim.memory.anon_bytes.to_string())),
        ("cgroup", victim.cgroup_path.clone()),
        ("limit-scope", Some(detail.scope.to_string())),
        (
            "limit-bytes",
            limit.and_then(|it| it.max_bytes).map(|it| it.to_string()),
        ),
        (
            "usage-bytes",
            limit.and_then(|it| it.usage_bytes).map(|it| it.to_string()),
        ),
        ("trigger-pid", trigger.map(|it| it.pid.to_string())),
        (
            "trigger-comm",
            trigger.map(|it| printable(&it.comm).into_owned()),
        ),
        (
            "record-id",
            detail.record_id.as_ref().map(ToString::to_string),
        ),
    ];
    all.into_iter()
        .filter_map(|(name, text)| Some((name, text?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{AttributionMethod, OomConstraint};
    use crate::model::kube_event::DETAILS;
    use crate::model::pod::PodUid;
    use crate::model::record::tests::oom_record;

    /// The kill of the fixture, changed.
    fn told(change: impl FnOnce(&mut Event, &mut OomDetail)) -> Vec<Notice> {
        let mut event = oom_record(1).event;
        let Some(EventDetail::Oom(mut detail)) = event.detail.take() else {
            panic!("a kill");
        };
        change(&mut event, &mut detail);
        event.detail = Some(EventDetail::Oom(detail));
        let told = notices(&event);
        for it in &told {
            let mut names = it.details.keys();
            assert!(names.all(|it| DETAILS.contains(it)), "{:?}", it.details);
        }
        told
    }

    fn message(told: &[Notice]) -> &str {
        assert_eq!(told.len(), 1, "{told:#?}");
        &told[0].message
    }

    #[test]
    fn a_kill_says_who_how_much_whose_limit_and_whether_the_container_goes_on() {
        let all = told(|_, detail| {
            detail.victim.comm = "worker".to_owned();
            detail.victim.pid = 4711;
            detail.victim.memory.anon_bytes = 64_172_851;
            detail.victim.memory.shmem_bytes = 419_431;
            detail.victim.memory.file_bytes = 0;
            detail.victim.oom_score_adj = 999;
            detail.victim.is_main_process = Some(false);
            detail.scope = OomScope::Pod;
            let limit = detail.limit.as_mut().expect("there is one");
            (limit.max_bytes, limit.usage_bytes) = (Some(64 << 20), Some(64 << 20));
            (detail.trigger.pid, detail.trigger.comm) = (9, "sh\u{1b}[2J".to_owned());
            detail.trigger.pod = None;
        });
        let right = "worker (pid 4711) was OOM killed: 61.1 MiB anonymous, 0 MiB file, 0.4 MiB shared memory; \
                     limit 64 MiB of its pod, 64 MiB in use; the memory was asked for by sh?[2J (pid 9); \
                     oom_score_adj 999; the container goes on";
        assert_eq!(message(&all), right);
        assert_eq!(all[0].reason, Reason::OomKilledChild);
        assert_eq!(all[0].details["anon-bytes"], "64172851");
        assert_eq!(all[0].details["trigger-comm"], "sh?[2J");
    }

    #[test]
    fn a_container_that_ends_with_its_process_is_not_said_to_go_on() {
        let main = told(|_, detail| detail.victim.is_main_process = Some(true));
        assert_eq!(main[0].reason, Reason::OomKilled);
        assert!(message(&main).ends_with("the container ends with it"));
        let group = told(|_, detail| {
            detail.victim.is_main_process = Some(false);
            detail.victim.took_container = Some(true);
        });
        assert_eq!(group[0].reason, Reason::OomKilled);
        assert!(message(&group).ends_with("the container ends with it"));
        let unknown = told(|_, detail| detail.victim.is_main_process = None);
        assert_eq!(unknown[0].reason, Reason::OomKilled);
        assert!(!message(&unknown).contains("the container"), "{unknown:?}");
        let own = told(|_, detail| detail.trigger.pid = detail.victim.pid);
        assert!(!message(&own).contains("asked for"), "{own:?}");
        let exiting = told(|_, detail| detail.was_exiting = true);
        assert_eq!(exiting, []);
    }

    #[test]
    fn what_the_node_ran_out_of_is_the_nodes_matter_and_the_pods() {
        let node = told(|_, detail| detail.scope = OomScope::Node);
        let of = |it: &Notice| (it.regarding == Regarding::Node, it.reason);
        let all: Vec<_> = node.iter().map(of).collect();
        assert_eq!(all.len(), 2);
        assert_eq!(all[1], (true, Reason::SystemOom));
        assert!(!all[0].0, "{node:#?}");
        assert!(
            node[1].message.starts_with("in default/hungry/main: "),
            "{node:#?}"
        );
        let host = told(|event, detail| {
            (event.pod, event.container) = (None, None);
            detail.scope = OomScope::Other;
        });
        assert_eq!(of(&host[0]), (true, Reason::SystemOom));
        assert_eq!(host.len(), 1);
        let unknown = told(|event, detail| {
            (event.pod, event.container) = (None, None);
            detail.victim.unknown_cgroup_id = Some(77);
        });
        assert_eq!(of(&unknown[0]), (true, Reason::OomKilled));
        assert!(message(&unknown).starts_with("in a pod that nobody knows, cgroup 77: "));
        let unnamed = told(|event, _| {
            (event.pod, event.container) = (None, None);
            event.pod_uid = Some(PodUid("0c4e".to_owned()));
            event.container_id = Some("0123456789abcdef".to_owned());
        });
        assert_eq!(of(&unnamed[0]), (true, Reason::OomKilled));
        assert_eq!(unnamed.len(), 1);
        let of_whom = "in 0c4e/0123456789ab, whose name nobody knows: ";
        assert!(message(&unnamed).starts_with(of_whom), "{unnamed:#?}");
    }

    #[test]
    fn whose_limit_it_was_is_not_said_where_nobody_knows() {
        for (constraint, words) in [
            (
                Some(OomConstraint::Memcg),
                "; a limit, nobody knows whose; ",
            ),
            (None, "; nobody knows whether it was a limit or the node; "),
        ] {
            let all = told(|event, detail| {
                (detail.scope, detail.limit) = (OomScope::Other, None);
                detail.constraint = constraint;
                event.method = Some(AttributionMethod::None);
            });
            assert!(message(&all).contains(words), "{all:?}");
        }
    }

    #[test]
    fn a_kill_that_somebody_asked_for_is_nobodys_lack_of_memory() {
        let all = told(|event, detail| {
            event.method = Some(AttributionMethod::Exact);
            (detail.scope, detail.limit) = (OomScope::Other, None);
            detail.constraint = None;
        });
        let message = message(&all);
        assert!(
            message.contains("; somebody asked for it (SysRq f); oom_score_adj "),
            "{all:?}"
        );
    }

    #[test]
    fn kills_that_nobody_saw_are_told_with_their_number() {
        let mut event = oom_record(1).event;
        event.detail = Some(EventDetail::Missed {
            count: 3,
            scope: None,
        });
        let all = notices(&event);
        assert_eq!(
            (all.len(), all[0].n, all[0].reason),
            (1, 3, Reason::OomKilled)
        );
        (event.pod, event.container) = (None, None);
        event.pod_uid = Some(PodUid("0c4e".to_owned()));
        let unnamed = notices(&event);
        assert_eq!((unnamed.len(), unnamed[0].n), (1, 3));
        assert_eq!(unnamed[0].regarding, Regarding::Node);
        assert!(message(&unnamed).starts_with("in 0c4e, whose name nobody knows: "));
        event.pod_uid = None;
        assert_eq!(notices(&event), [], "of nobody");
        event.detail = None;
        assert_eq!(notices(&event), []);
    }
}
