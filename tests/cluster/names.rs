//! Names of a real node, as its runtime tells them.

use anyhow::{Context, Result, ensure};
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{Namespace, StaticPod, agent, text};
use ballast_tests::scrape::text as page;
use ballast_tests::wait::until;

use super::kills::{check_counted, is_running, kills_of};

/// The pods of a name that the agent shows.
fn shown(agent: &Agent, namespace: &str, name: &str) -> Result<Vec<PodEntry>> {
    let mut pods = agent.status()?.pods;
    pods.retain(|it| it.namespace == namespace && it.name == name);
    Ok(pods)
}

/// Kills a child of the container, and gives the pod once both have told of it.
fn killed(agent: &Agent, namespace: &Namespace, name: &str) -> Result<serde_json::Value> {
    namespace.run(name, "tail /dev/zero; exec sleep 3600", "32Mi")?;
    let pod = namespace.wait(name, "runs", is_running)?;
    let uid = text(&pod, "/metadata/uid")?;
    let kills = until("the kill is told", || {
        let kills = kills_of(agent, uid)?;
        ensure!(!kills.is_empty(), "none yet");
        Ok(kills)
    })?;
    ensure!(kills.len() == 1, "{kills:#?}");
    let event = &kills[0].event;
    let of = event.pod.as_ref().context("it has no name")?;
    ensure!(
        (&*of.namespace, &*of.name) == (&*namespace.name, name),
        "{event:#?}"
    );
    ensure!(event.container.as_deref() == Some("main"), "{event:#?}");
    Ok(pod)
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
