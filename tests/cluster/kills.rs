//! OOM kills in pods of a real node.

use std::thread;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::record::{EventDetail, EventRecord, OomScope};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup::kernel_kills;
use ballast_tests::cluster::{Namespace, agent, hog_spec, text};
use ballast_tests::scrape;
use ballast_tests::wait::until;
use serde_json::{Value, json};

/// The id that the pod's status has of its first container, without the runtime's name before it.
pub(super) fn container_id(pod: &Value) -> Result<&str> {
    let id = text(pod, "/status/containerStatuses/0/containerID")?;
    Ok(id.rsplit('/').next().unwrap_or(id))
}

pub(super) fn is_running(pod: &Value) -> bool {
    pod.pointer("/status/containerStatuses/0/state/running")
        .is_some()
}

pub(super) fn kills_of(agent: &Agent, uid: &str) -> Result<Vec<EventRecord>> {
    let mut kills = agent.events("oom")?;
    kills.retain(|it| it.event.uid().is_some_and(|it| it.0 == uid));
    Ok(kills)
}

/// What `check` wants comes, and is there a while later.
pub(super) fn stays(what: &str, check: impl Fn() -> Result<()>) -> Result<()> {
    until(what, &check)?;
    thread::sleep(2 * GRACE);
    check()
}

/// Both counters of the container `main` have so many kills.
pub(super) fn check_counted(agent: &Agent, pod: &Value, n: f64) -> Result<()> {
    let (uid, id) = (text(pod, "/metadata/uid")?, container_id(pod)?);
    let own = [
        ("namespace", text(pod, "/metadata/namespace")?),
        ("pod", text(pod, "/metadata/name")?),
        ("container", "main"),
    ];
    // A pod with limits alone is Burstable where not every resource has one.
    let path = format!("{}/burstable/pod{uid}/{id}", agent.kubepods());
    let counted = scrape::oom_kills(&agent.metrics, &own, &[("id", &path)])?;
    ensure!(counted == (Some(n), Some(n)), "{counted:?} of {n}");
    Ok(())
}

/// kubelet shows no restart, and nobody else tells.
#[cfg_attr(feature = "privileged", test)]
fn a_child_that_is_killed_is_told_with_the_names_of_the_api_server() -> Result<()> {
    let agent = agent("cluster-child")?;
    let namespace = Namespace::new("child")?;
    namespace.run("greedy", "tail /dev/zero; exec sleep 3600", "32Mi")?;
    let pod = namespace.wait("greedy", "runs", is_running)?;
    let (uid, id) = (text(&pod, "/metadata/uid")?, container_id(&pod)?);
    let kills = until("the kill is told", || {
        let kills = kills_of(&agent, uid)?;
        ensure!(!kills.is_empty(), "none yet");
        Ok(kills)
    })?;
    ensure!(kills.len() == 1, "{kills:#?}");
    let event = &kills[0].event;
    let named = event.pod.as_ref().map(|it| (&*it.namespace, &*it.name));
    ensure!(named == Some(("child", "greedy")), "{event:#?}");
    ensure!(event.container.as_deref() == Some("main"), "{event:#?}");
    ensure!(event.reason == "OomKilledChild", "{event:#?}");
    let Some(EventDetail::Oom(detail)) = &event.detail else {
        anyhow::bail!("{event:#?}");
    };
    ensure!(detail.scope == OomScope::Container, "{event:#?}");
    ensure!(detail.victim.comm == "tail", "{event:#?}");
    stays("it is counted", || check_counted(&agent, &pod, 1.0))?;
    let pod = namespace.wait("greedy", "goes on", is_running)?;
    ensure!(container_id(&pod)? == id, "another container runs");
    Ok(())
}

/// By the first process, by a thread of it, also when its first thread has ended, among others, by children.
#[cfg_attr(feature = "privileged", test)]
fn kills_of_every_shape_are_told_for_what_they_are() -> Result<()> {
    const TOO_MUCH: &str = "100663296";
    // Whether the container ends with it, and how many the kernel kills.
    let shapes: [(&str, &[&str], bool, usize); 6] = [
        ("alone", &["alloc", TOO_MUCH], true, 1),
        ("thread", &["thread", TOO_MUCH], true, 1),
        ("leaderless", &["leaderless", TOO_MUCH], true, 1),
        ("group", &["group", "5", TOO_MUCH], true, 1),
        ("child", &["child", TOO_MUCH], false, 1),
        ("two", &["two", TOO_MUCH], false, 2),
    ];
    let agent = agent("cluster-shapes")?;
    let namespace = Namespace::new("shapes")?;
    for (name, mode, ..) in shapes {
        namespace.create(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": hog_spec(mode, "32Mi"),
        }))?;
    }
    for (name, _, is_end, n) in shapes {
        let pod = namespace.wait(name, "is as its kill leaves it", |pod| {
            let code = pod.pointer("/status/containerStatuses/0/state/terminated/exitCode");
            match is_end {
                true => code == Some(&json!(137)),
                false => is_running(pod),
            }
        })?;
        let uid = text(&pod, "/metadata/uid")?;
        let check = || {
            let kills = kills_of(&agent, uid)?;
            ensure!(kills.len() == n, "{name}: {kills:#?}");
            let reason = match is_end {
                true => "OomKilled",
                false => "OomKilledChild",
            };
            for kill in &kills {
                let event = &kill.event;
                let named = event.pod.as_ref().map(|it| (&*it.namespace, &*it.name));
                ensure!(named == Some(("shapes", name)), "{event:#?}");
                ensure!(event.container.as_deref() == Some("main"), "{event:#?}");
                ensure!(event.reason == reason, "{event:#?}");
            }
            check_counted(&agent, &pod, n as f64).context(name)
        };
        stays("its kills are told and counted", check)?;
        if !is_end {
            let id = container_id(&pod)?;
            let now = namespace.wait(name, "goes on", is_running)?;
            ensure!(container_id(&now)? == id, "another container runs");
        }
    }
    Ok(())
}

/// Killed without a word and started again while children of a container are killed one after the other.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_dies_amid_kills_counts_what_the_kernel_did() -> Result<()> {
    const N: u32 = 60;
    let mut agent = agent("cluster-storm")?;
    let namespace = Namespace::new("storm")?;
    let script =
        format!("i=0; while [ $i -lt {N} ]; do tail /dev/zero; i=$((i+1)); done; exec sleep 3600");
    let before = kernel_kills()?;
    namespace.run("storm", &script, "16Mi")?;
    let pod = namespace.wait("storm", "runs", is_running)?;
    let uid = text(&pod, "/metadata/uid")?;
    for part in 1..=3 {
        let enough = u64::from(N * part / 4);
        agent.wait("some more kills", |status| {
            let mut pods = status.pods.iter();
            pods.any(|it| it.uid.0 == uid && it.oom_kills >= enough)
        })?;
        agent.kill()?;
        agent.start()?;
    }
    stays("all are counted", || {
        let n = kernel_kills()? - before;
        ensure!(n >= u64::from(N), "{n} kills by the kernel so far");
        check_counted(&agent, &pod, n as f64)
    })
    .with_context(|| format!("{:#?}", kills_of(&agent, uid)))
}
