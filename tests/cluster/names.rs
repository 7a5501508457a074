//! Names of a real node, as its runtime tells them.

use anyhow::{Context, Result, bail, ensure};
use ballast::model::record::EventDetail;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{NAME, Namespace, StaticPod, agent, asking, pod_spec, text};
use ballast_tests::scrape::text as page;
use ballast_tests::wait::until;
use serde_json::json;

use super::kills::{check_counted, is_running, kills_of, stays};

/// The pods of a name that the agent shows.
fn shown(agent: &Agent, namespace: &str, name: &str) -> Result<Vec<PodEntry>> {
    let mut pods = agent.status()?.pods;
    pods.retain(|it| it.namespace == namespace && it.name == name);
    Ok(pods)
}

const KILL: &str = "tail /dev/zero; exec sleep 3600";

/// Kills a child of the container, and gives the pod once both have told of it.
pub(super) fn killed(
    agent: &Agent,
    namespace: &Namespace,
    name: &str,
) -> Result<serde_json::Value> {
    namespace.run(name, KILL, "32Mi")?;
    let pod = namespace.wait(name, "runs", is_running)?;
    check_named(agent, &pod)?;
    Ok(pod)
}

/// The pod has had one kill, in its container `main`.
fn check_named(agent: &Agent, pod: &serde_json::Value) -> Result<()> {
    let [uid, namespace, name] =
        ["uid", "namespace", "name"].map(|it| text(pod, &format!("/metadata/{it}")));
    let (uid, namespace, name) = (uid?, namespace?, name?);
    let kills = until("the kill is told", || {
        let kills = kills_of(agent, uid)?;
        ensure!(!kills.is_empty(), "none yet");
        Ok(kills)
    })?;
    ensure!(kills.len() == 1, "{kills:#?}");
    let event = &kills[0].event;
    let of = event.pod.as_ref().context("it has no name")?;
    ensure!(
        (&*of.namespace, &*of.name) == (namespace, name),
        "{event:#?}"
    );
    ensure!(event.container.as_deref() == Some("main"), "{event:#?}");
    Ok(())
}

/// The second one has nothing of the first, and the counter of the name goes on.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_of_the_same_name_is_another_pod() -> Result<()> {
    let agent = agent("cluster-namesake")?;
    let namespace = Namespace::new("namesake")?;
    let first = killed(&agent, &namespace, "twin")?;
    until("it is counted", || check_counted(&agent, &first, 1.0))?;
    namespace.kubectl(
        &["delete", "pod", "twin", "--force", "--grace-period=0"],
        None,
    )?;
    let second = killed(&agent, &namespace, "twin")?;
    let [first_uid, uid] = [
        text(&first, "/metadata/uid")?,
        text(&second, "/metadata/uid")?,
    ];
    ensure!(first_uid != uid, "the same pod");
    let entry = until("the second is shown with its own kill", || {
        let found = shown(&agent, "namesake", "twin")?;
        let entry = found
            .into_iter()
            .find(|it| it.uid.0 == uid)
            .context("not yet")?;
        ensure!(entry.oom_kills == 1, "{entry:#?}");
        Ok(entry)
    })?;
    ensure!(entry.containers.len() == 1, "{entry:#?}");
    ensure!(entry.containers[0].name == "main", "{entry:#?}");
    until("the name has both", || {
        let page = page(&agent.metrics, "/metrics")?;
        let series =
            "ballast_oom_kills_total{container=\"main\",namespace=\"namesake\",pod=\"twin\"} 2";
        ensure!(page.lines().any(|it| it == series), "{page}");
        Ok(())
    })
}

/// The UID of a static pod is that of its cgroup, which is not the one of the API server; and its sandbox is no
/// container.
#[cfg_attr(feature = "privileged", test)]
fn a_static_pod_has_its_name_and_its_sandbox_is_no_container() -> Result<()> {
    let agent = agent("cluster-static")?;
    let steady = StaticPod::new("steady")?;
    let found = until("the static pod is shown", || {
        let pods = agent.status()?.pods;
        let is_it = |it: &PodEntry| it.name.starts_with("steady-") && it.containers.len() == 1;
        pods.into_iter().find(is_it).context("not yet")
    });
    drop(steady);
    let entry = found?;
    ensure!(
        entry.namespace == "default" && entry.uid.0.len() == 32,
        "{entry:#?}"
    );
    ensure!(entry.containers[0].name == "main", "{entry:#?}");
    let status = agent.status()?;
    let runtime = status.node.runtime.context("it is asked")?;
    ensure!(
        runtime.is_connected() && runtime.name.as_deref() == Some("containerd"),
        "{runtime:?}"
    );
    let unnamed = status.pods.iter().flat_map(|it| &it.containers);
    let unnamed: Vec<_> = unnamed.filter(|it| it.name.is_empty()).collect();
    ensure!(unnamed.is_empty(), "{unnamed:#?}");
    until("it is gone", || {
        let pods = agent.status()?.pods;
        ensure!(pods.iter().all(|it| it.uid != entry.uid), "it is there");
        Ok(())
    })
}

/// One is deleted by force, and kubelet gives it two seconds to end; the other has its name meanwhile.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_on_its_way_out_and_its_successor_of_one_name_each_have_their_kill() -> Result<()> {
    let agent = agent("cluster-successor")?;
    let namespace = Namespace::new("successor")?;
    let script = "trap 'tail /dev/zero' TERM; sleep 3600 & wait; exec sleep 3600";
    namespace.run("twin", script, "32Mi")?;
    let first = namespace.wait("twin", "runs", is_running)?;
    let delete = ["delete", "pod", "twin", "--force", "--grace-period=0"];
    namespace.kubectl(&delete, None)?;
    let second = killed(&agent, &namespace, "twin")?;
    check_named(&agent, &first)?;
    let series =
        "ballast_oom_kills_total{container=\"main\",namespace=\"successor\",pod=\"twin\"} 2";
    stays("the name has both", || {
        let page = page(&agent.metrics, "/metrics")?;
        ensure!(page.lines().any(|it| it == series), "{page}");
        Ok(())
    })?;
    check_named(&agent, &first)?;
    check_named(&agent, &second)
}

/// A static pod can have the name of another pod; kubelet runs both, and their UIDs alone tell them apart.
#[cfg_attr(feature = "privileged", test)]
fn two_pods_of_one_name_that_run_together_each_have_their_kills() -> Result<()> {
    let agent = agent("cluster-together")?;
    let namespace = Namespace::new("together")?;
    let name = format!("twin-{NAME}");
    let plain = killed(&agent, &namespace, &name)?;
    let uid = text(&plain, "/metadata/uid")?;
    let twice = pod_spec(&format!("tail /dev/zero; {KILL}"), "32Mi", "Always");
    let _static = StaticPod::within("together", "twin", &twice)?;
    stays("one status has both, each with its own kills", || {
        let found = shown(&agent, "together", &name)?;
        let mut kills: Vec<_> = found
            .iter()
            .map(|it| (it.uid.0 == uid, it.oom_kills))
            .collect();
        kills.sort_unstable();
        ensure!(kills == [(false, 2), (true, 1)], "{found:#?}");
        let containers: Vec<_> = found
            .iter()
            .flat_map(|it| &it.containers)
            .map(|it| (&*it.name, it.oom_kills))
            .collect();
        ensure!(
            containers == [("main", 1), ("main", 2)] || containers == [("main", 2), ("main", 1)],
            "{found:#?}"
        );
        let page = page(&agent.metrics, "/metrics")?;
        let series = format!(
            "ballast_oom_kills_total{{container=\"main\",namespace=\"together\",pod=\"{name}\"}} 3"
        );
        ensure!(page.lines().any(|it| it == series), "{page}");
        Ok(())
    })?;
    check_named(&agent, &plain)?;
    namespace.wait(&name, "runs", is_running).map(drop)
}

/// Its first process is the one that is killed, before anybody has listed it.
#[cfg_attr(feature = "privileged", test)]
fn a_container_that_lived_for_a_moment_has_its_name() -> Result<()> {
    let agent = agent("cluster-moment")?;
    let namespace = Namespace::new("moment")?;
    namespace.run("short", "exec tail /dev/zero", "16Mi")?;
    let pod = namespace.wait("short", "is over", |it| {
        it.pointer("/status/phase") == Some(&json!("Failed"))
    })?;
    check_named(&agent, &pod)?;
    stays("it is counted", || check_counted(&agent, &pod, 1.0))
}

/// As a container makes it that runs containers of its own.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_nested_cgroup_is_of_the_container() -> Result<()> {
    let agent = agent("cluster-nested")?;
    let namespace = Namespace::new("nested")?;
    let script = "inner=/sys/fs/cgroup/memory/inner; mkdir $inner; \
                  sh -c \"echo 0 > $inner/cgroup.procs; exec tail /dev/zero\"; \
                  exec sleep 3600";
    let mut spec = pod_spec(script, "32Mi", "Never");
    spec["containers"][0]["securityContext"] = json!({"privileged": true});
    namespace.create(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "outer"}, "spec": spec,
    }))?;
    let pod = namespace.wait("outer", "runs", is_running)?;
    check_named(&agent, &pod)?;
    let kills = kills_of(&agent, text(&pod, "/metadata/uid")?)?;
    let Some(EventDetail::Oom(detail)) = &kills[0].event.detail else {
        bail!("{kills:#?}");
    };
    ensure!(detail.victim.cgroup_path.is_none(), "not below: {kills:#?}");
    stays("it is counted", || check_counted(&agent, &pod, 1.0))
}

/// What people see of a static pod is its mirror, whose UID is another.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_static_pod_is_an_event_of_its_mirror() -> Result<()> {
    let (_agent, _way) = asking("cluster-mirror")?;
    let namespace = Namespace::new("mirror")?;
    let _greedy = StaticPod::of("greedy", &pod_spec(KILL, "32Mi", "Always"))?;
    let mirror = format!("greedy-{NAME}");
    let describe = ["describe", "pod", &mirror, "--namespace", "default"];
    until("the kill is an Event of the mirror", || {
        let text = namespace.kubectl(&describe, None)?;
        let lines: Vec<_> = text.lines().filter(|it| it.contains("Oom")).collect();
        ensure!(lines.len() == 1, "{text}");
        for part in ["OomKilledChild", "spec.containers{main}: tail (pid "] {
            ensure!(lines[0].contains(part), "{part} in {text}");
        }
        Ok(())
    })
}
