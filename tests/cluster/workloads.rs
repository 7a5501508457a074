//! Whose pods they are, as the API server of a real cluster tells.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::api_pod::ContainerRole;
use ballast::model::api_server::ApiServerStatus;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{Namespace, asking, container, pod_spec};
use ballast_tests::scrape;
use ballast_tests::wait::until;
use serde_json::{Value, json};

/// The template of a pod whose container `main` runs `script`.
fn template(name: &str, script: &str, restart: &str) -> Value {
    json!({
        "metadata": {"labels": {"app": name}},
        "spec": pod_spec(script, "32Mi", restart),
    })
}

pub(super) fn controller(kind: &str, name: &str, script: &str) -> Value {
    let selector = json!({"matchLabels": {"app": name}});
    let template = |restart| template(name, script, restart);
    let (version, spec) = match kind {
        "Job" => ("batch/v1", json!({"template": template("Never")})),
        "CronJob" => (
            "batch/v1",
            json!({
                "schedule": "* * * * *",
                "jobTemplate": {"spec": {"template": template("Never")}},
            }),
        ),
        "StatefulSet" => (
            "apps/v1",
            json!({"serviceName": name, "selector": selector, "template": template("Always")}),
        ),
        _ => (
            "apps/v1",
            json!({"selector": selector, "template": template("Always")}),
        ),
    };
    json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// As they are counted by workloads.
pub(super) fn kills_of(
    agent: &Agent,
    namespace: &str,
    kind: &str,
    name: &str,
) -> Result<Option<f64>> {
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let labels = [
        ("namespace", namespace),
        ("workload", name),
        ("workload_kind", kind),
    ];
    Ok(page.value("ballast_oom_workload_kills_total", &labels))
}

pub(super) fn pods_of(agent: &Agent, namespace: &str) -> Result<Vec<PodEntry>> {
    let mut pods = agent.status()?.pods;
    pods.retain(|it| it.namespace == namespace);
    Ok(pods)
}

/// Each controller makes a pod of which a child is killed once.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_is_counted_by_the_workload_that_people_know() -> Result<()> {
    let (agent, _way) = asking("cluster-workloads")?;
    let namespace = Namespace::new("workloads")?;
    let kinds = ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];
    let script = "tail /dev/zero; exec sleep 3600";
    for kind in kinds {
        let name = format!("of-{}", kind.to_lowercase());
        namespace.create(&controller(kind, &name, script))?;
    }
    namespace.kubectl(
        &["create", "job", "by-hand", "--from=cronjob/of-cronjob"],
        None,
    )?;
    namespace.run("bare", script, "32Mi")?;
    // The CronJob makes its first pod at the next full minute, which is the longest wait of all.
    for kind in kinds {
        let name = format!("of-{}", kind.to_lowercase());
        let scheduled = Duration::from_secs(if kind == "CronJob" { 60 } else { 0 });
        thread::sleep(scheduled);
        until(&format!("the kill of {name} is counted"), || {
            let n = kills_of(&agent, "workloads", kind, &name)?;
            ensure!(n >= Some(1.0), "{n:?}");
            Ok(())
        })?;
    }
    for (kind, name) in [("Job", "by-hand"), ("Pod", "bare")] {
        until(&format!("the kill of {name} is counted"), || {
            let n = kills_of(&agent, "workloads", kind, name)?;
            ensure!(n == Some(1.0), "{n:?}");
            Ok(())
        })?;
    }
    let pods = pods_of(&agent, "workloads")?;
    let of = |kind: &str| {
        let is_it = |it: &&PodEntry| it.workload.as_ref().is_some_and(|it| it.kind == kind);
        pods.iter().find(is_it)
    };
    let deployed = of("Deployment").context("a pod of the Deployment")?;
    let name = deployed.workload.as_ref().map(|it| &*it.name);
    ensure!(name == Some("of-deployment"), "{deployed:#?}");
    ensure!(of("ReplicaSet").is_none(), "{pods:#?}");
    Ok(())
}

/// Init, sidecar and ephemeral containers, which cgroups and runtimes do not tell apart. In each a child is killed;
/// an ephemeral one has no limit of its own, so it is the pod that has one.
#[cfg_attr(feature = "privileged", test)]
fn a_container_is_shown_as_what_it_is_to_its_pod() -> Result<()> {
    let (agent, _way) = asking("cluster-roles")?;
    let namespace = Namespace::new("roles")?;
    let kill = |name: &str, then: &str| container(name, &format!("tail /dev/zero; {then}"));
    let mut sidecar = kill("beside", "exec sleep 3600");
    sidecar["restartPolicy"] = json!("Always");
    // Of cgroup v1 kubelet takes one that had a kill to have failed, and starts it again.
    let once = "[ -e /once/killed ] || { touch /once/killed; tail /dev/zero; }; sleep 5";
    let mut before = container("before", once);
    before["volumeMounts"] = json!([{"name": "once", "mountPath": "/once"}]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "all"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resources": {"limits": {"memory": "64Mi"}},
            "volumes": [{"name": "once", "emptyDir": {}}],
            "initContainers": [sidecar, before],
            "containers": [kill("main", "exec sleep 3600")],
        },
    });
    namespace.create(&pod)?;
    let roles = || -> Result<Vec<(String, Option<ContainerRole>)>> {
        let pods = pods_of(&agent, "roles")?;
        let all = pods.iter().find(|it| it.name == "all").context("not yet")?;
        let containers = all.containers.iter();
        Ok(containers.map(|it| (it.name.clone(), it.kind)).collect())
    };
    let wait_for = |name: &str, role: ContainerRole| {
        until(&format!("{name} is shown"), || {
            let roles = roles()?;
            ensure!(roles.contains(&(name.to_owned(), Some(role))), "{roles:?}");
            Ok(())
        })
    };
    wait_for("before", ContainerRole::Init)?;
    wait_for("beside", ContainerRole::Sidecar)?;
    wait_for("main", ContainerRole::Main)?;
    let look = json!({"spec": {"ephemeralContainers": [kill("look", "exec sleep 3600")]}});
    namespace.kubectl(
        &[
            "patch",
            "pod",
            "all",
            "--subresource=ephemeralcontainers",
            "--patch",
            &look.to_string(),
        ],
        None,
    )?;
    wait_for("look", ContainerRole::Ephemeral)?;
    for field in [
        "spec.initContainers{beside}",
        "spec.initContainers{before}",
        "spec.containers{main}",
        "spec.ephemeralContainers{look}",
    ] {
        until(&format!("the kill in {field} is an Event"), || {
            let mut events = namespace.list("events")?;
            events.retain(|it| {
                it["reason"] == "OomKilledChild" && it["involvedObject"]["fieldPath"] == field
            });
            ensure!(events.len() == 1, "{events:#?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// What it told stands, and kills of a pod that it has not told of are counted when it does.
#[cfg_attr(feature = "privileged", test)]
fn an_api_server_that_is_away_takes_nothing_away() -> Result<()> {
    let (mut agent, way) = asking("cluster-away")?;
    let namespace = Namespace::new("away")?;
    // A child is killed whenever the file is made.
    let script = "while true; do [ -e /tmp/go ] && rm /tmp/go && tail /dev/zero; sleep 0.1; done";
    namespace.create(&controller("Deployment", "worker", script))?;
    let go = || {
        namespace.kubectl(
            &["exec", "deployment/worker", "--", "touch", "/tmp/go"],
            None,
        )
    };
    until("its pod runs", go)?;
    let counted = |agent: &Agent, n: f64| {
        until("it is counted", || {
            let found = kills_of(agent, "away", "Deployment", "worker")?;
            ensure!(found == Some(n), "{found:?} of {n}");
            Ok(())
        })
    };
    counted(&agent, 1.0)?;
    // The way there is opened for a question, which is named where it cannot be.
    let fails_to_watch = |api: &ApiServerStatus| {
        let fault = api.fault.as_deref();
        fault.is_some_and(|it| it.starts_with("watch pods: "))
    };
    way.cut();
    agent.wait("it is missed", |status| {
        let api = status.node.api_server.as_ref();
        api.is_some_and(|it| fails_to_watch(it) && it.stale_since.is_some())
    })?;
    go()?;
    counted(&agent, 2.0)?;
    // One that has never been told of the pod.
    agent.kill()?;
    agent.start()?;
    agent.wait("it cannot ask", |status| {
        let api = status.node.api_server.as_ref();
        api.is_some_and(|it| fails_to_watch(it) && it.stale_since.is_none())
    })?;
    let told = agent.events("oom")?.len();
    go()?;
    until("the kill is told, with its names", || {
        let kills = agent.events("oom")?;
        ensure!(kills.len() > told, "{kills:#?}");
        let pod = kills.last().and_then(|it| it.event.pod.as_ref());
        let name = pod.context("it has no name")?;
        ensure!(name.name.starts_with("worker-"), "{name}");
        Ok(())
    })?;
    thread::sleep(Duration::from_secs(2));
    let early = kills_of(&agent, "away", "Deployment", "worker")?;
    ensure!(early == Some(2.0), "{early:?}");
    way.mend();
    agent.wait("it is found", |status| {
        let api = status.node.api_server.as_ref();
        api.is_some_and(|it| it.is_followed())
    })?;
    counted(&agent, 3.0)?;
    thread::sleep(Duration::from_secs(2));
    counted(&agent, 3.0)?;
    let bare = kills_of(&agent, "away", "Pod", "worker")?;
    ensure!(bare.is_none(), "{bare:?}");
    Ok(())
}
