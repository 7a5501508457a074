//! Admission by capacity: what does not fit into the node fails with kubelet's reason and words, and
//! begins when there is room, if it is to run always.

use anyhow::{Context, Result, ensure};
use ballast::model::container::PodPhase;
use ballast::model::record::EventRecord;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape;
use ballast_tests::wait::until;
use serde_json::{Value, json};

use super::eviction::told;
use super::look::{is_running, pid_of};

/// A pod that runs as long as it is there, and requests so much.
fn always(name: &str, requests: Value) -> Manifest {
    Manifest::new(name)
        .with("restartPolicy", json!("Always"))
        .container(Container::idle("app").resources(requests, json!({})))
}

/// First processes of the pods that run.
fn pids(agent: &Agent) -> Result<Vec<Option<u32>>> {
    let status = agent.status()?;
    let running = status.pods.iter().filter(|it| is_running(it));
    Ok(running.map(|it| pid_of(it, "app")).collect())
}

fn is_refused(reason: &str) -> impl Fn(&PodEntry) -> bool {
    move |pod| pod.phase == PodPhase::Failed && pod.reason.as_deref() == Some(reason)
}

/// Puts a pod that does not fit; its message.
fn refusal(agent: &Agent, pod: &Manifest, reason: &str) -> Result<String> {
    agent.put(pod)?;
    let refused = agent.wait_pod(pod.name(), "is refused", is_refused(reason))?;
    let message = refused.message.context("a message")?;
    let events = told(agent, reason)?;
    let mut of_pod = events.iter().map(|it| &it.event).filter(|it| {
        let about = it.pod.as_ref();
        about.is_some_and(|it| it.name == pod.name())
    });
    assert_eq!(of_pod.next().context("told")?.message, message);
    Ok(message)
}

#[cfg_attr(feature = "privileged", test)]
fn what_does_not_fit_is_refused_and_begins_when_there_is_room() -> Result<()> {
    let mut agent = Agent::new("room")?
        .with_memory(256, 64)?
        .with_quick_passes();
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    let message = refusal(&agent, &always("wide", json!({"cpu": "1000"})), "OutOfcpu")?;
    assert!(
        message.starts_with("Node didn't have enough resource: cpu, requested: 1000000, used: 0,"),
        "{message}"
    );
    agent.put(&always("first", json!({"cpu": "10m", "memory": "128Mi"})))?;
    agent.wait_pod("first", "runs", is_running)?;
    let second = |name: &str| always(name, json!({"memory": "100Mi"}));
    let message = refusal(&agent, &second("second"), "OutOfmemory")?;
    assert!(
        message.contains("memory, requested: 104857600, used: 134217728, capacity: "),
        "{message}"
    );
    let once = second("once").with("restartPolicy", json!("Never"));
    refusal(&agent, &once, "OutOfmemory")?;
    let huge = json!({"hugepages-1Gi": "64Gi", "memory": "1Mi"});
    let huge = Container::idle("app").resources(json!({}), huge);
    refusal(
        &agent,
        &Manifest::new("huge").container(huge),
        "OutOfhugepages",
    )?;
    let disk = always("disk", json!({"ephemeral-storage": "1Ei"}));
    refusal(&agent, &disk, "OutOfephemeral-storage")?;

    agent.remove_pod("first")?;
    agent.wait_pod("second", "runs", is_running)?;
    let returns = told(&agent, "RefusedPodReturns")?;
    let of: Vec<&str> = returns
        .iter()
        .filter_map(|it| Some(it.event.pod.as_ref()?.name.as_str()))
        .collect();
    assert_eq!(of, ["second"]);
    agent.wait_pod("once", "stays refused", is_refused("OutOfmemory"))?;
    agent.remove_pod("second")?;
    agent.wait_pod("once", "runs, for it never has", is_running)?;
    agent.wait_pod("wide", "stays refused", is_refused("OutOfcpu"))?;
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let rejected = |reason| page.sum("kubelet_admission_rejections_total", &[("reason", reason)]);
    let counts = ["OutOfcpu", "OutOfmemory", "OutOfExtendedResources"].map(rejected);
    assert_eq!(counts, [1.0, 2.0, 1.0]);
    Ok(())
}

/// What kubelet asks of its node beside resources; and a pod that asks for what this node is runs.
#[cfg_attr(feature = "privileged", test)]
fn labels_ports_and_systems_are_asked_for_as_by_kubelet() -> Result<()> {
    let mut agent = Agent::new("labels")?.with_quick_passes();
    agent.start()?;
    let pod = |name: &str| always(name, json!({}));
    let selects = |name: &str, key: &str, value: &str| {
        let mut selector = serde_json::Map::new();
        selector.insert(key.to_owned(), json!(value));
        pod(name).with("nodeSelector", Value::Object(selector))
    };
    agent.put(&selects("here", "kubernetes.io/os", "linux"))?;
    agent.wait_pod("here", "runs", is_running)?;
    let message = refusal(&agent, &selects("elsewhere", "disk", "ssd"), "NodeAffinity")?;
    assert_eq!(
        message,
        "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"
    );
    let windows = pod("windows").with("os", json!({"name": "windows"}));
    refusal(&agent, &windows, "PodOSNotSupported")?;
    let listens = |name: &str| {
        let ports = json!([{"containerPort": 8080, "hostPort": 18080}]);
        Manifest::new(name)
            .with("restartPolicy", json!("Always"))
            .container(Container::idle("app").with("ports", ports))
    };
    agent.put(&listens("first"))?;
    agent.wait_pod("first", "runs", is_running)?;
    refusal(&agent, &listens("second"), "NodePorts")?;
    agent.remove_pod("first")?;
    agent.wait_pod("second", "runs", is_running)?;
    Ok(())
}

/// A sysctl is asked for by its name, and no room makes it allowed.
#[cfg_attr(feature = "privileged", test)]
fn a_sysctl_that_is_not_allowed_keeps_a_pod_out() -> Result<()> {
    let mut agent = Agent::new("sysctls")?
        .with_kubelet("allowedUnsafeSysctls: [net/core/*]")
        .with_quick_passes();
    agent.start()?;
    let asks = |pod: Manifest, sysctl: &str| {
        let sysctls = json!([{"name": sysctl, "value": "1"}]);
        pod.with("securityContext", json!({"sysctls": sysctls}))
    };
    let pod = |name: &str| always(name, json!({})).with_uid(name);
    for (name, sysctl) in [
        ("safe", "net.ipv4.tcp_syncookies"),
        ("unsafe", "net.core.somaxconn"),
    ] {
        agent.put(&asks(pod(name), sysctl))?;
        agent.wait_pod(name, "runs", is_running)?;
    }
    let message = refusal(&agent, &asks(pod("out"), "kernel.sem"), "SysctlForbidden")?;
    assert_eq!(message, "forbidden sysctl: \"kernel.sem\" not allowlisted");
    let on_host = asks(pod("host"), "net.core.somaxconn").with("hostNetwork", json!(true));
    let message = refusal(&agent, &on_host, "SysctlForbidden")?;
    assert!(
        message.ends_with("not allowed with host Net enabled"),
        "{message}"
    );

    // What runs goes on with what it had, and what was refused begins.
    let running = agent.wait_pod("safe", "runs", is_running)?;
    agent.put(&asks(pod("safe"), "kernel.sem"))?;
    agent.wait_pod("safe", "says why it goes on", |it| {
        let message = it.message.as_deref();
        is_running(it) && message.is_some_and(|it| it.contains("SysctlForbidden"))
    })?;
    let after = agent.wait_pod("safe", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&running, "app"));
    agent.put(&asks(pod("out"), "net.core.somaxconn"))?;
    agent.wait_pod("out", "runs", is_running)?;
    Ok(())
}

/// At a start, when all come at once, and when there is room again: the higher priority has what there is.
#[cfg_attr(feature = "privileged", test)]
fn the_higher_priority_comes_first() -> Result<()> {
    let mut agent = Agent::new("claims")?
        .with_memory(256, 64)?
        .with_quick_passes();
    let batch: Vec<String> = (0..6).map(|i| format!("batch-{i}")).collect();
    let wants = |name: &str| always(name, json!({"memory": "100Mi"}));
    for name in &batch {
        agent.put(&wants(name))?;
    }
    agent.put(&wants("urgent").with("priority", json!(1000)))?;
    agent.put(&wants("later").with("priority", json!(10)))?;
    agent.start()?;
    agent.wait_pod("urgent", "runs", is_running)?;
    let others = || batch.iter().map(String::as_str).chain(["later"]);
    for name in others() {
        agent.wait_pod(name, "is refused", is_refused("OutOfmemory"))?;
    }
    agent.remove_pod("urgent")?;
    agent.wait_pod("later", "runs", is_running)?;
    for name in &batch {
        agent.wait_pod(name, "stays refused", is_refused("OutOfmemory"))?;
    }
    Ok(())
}

/// Who waits is before who comes, also between two full passes.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_comes_does_not_pass_one_that_waits() -> Result<()> {
    let mut agent = Agent::new("queue")?.with_memory(256, 64)?;
    agent.start()?;
    let wants = |name: &str| always(name, json!({"memory": "100Mi"}));
    agent.put(&wants("first"))?;
    agent.wait_pod("first", "runs", is_running)?;
    refusal(&agent, &wants("second"), "OutOfmemory")?;
    agent.remove_pod("first")?;
    agent.wait("the first is gone", |it| {
        it.pods.iter().all(|it| it.name != "first")
    })?;
    agent.put(&wants("late"))?;
    agent.wait_pod("second", "runs", is_running)?;
    agent.wait_pod("late", "is refused", is_refused("OutOfmemory"))?;
    Ok(())
}

/// Under its own UID or under another one: who was refused meanwhile does not take its place, unless by its priority.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_is_edited_has_its_place_again() -> Result<()> {
    let mut agent = Agent::new("edited-place")?.with_memory(256, 64)?;
    agent.start()?;
    let wants = |name: &str| always(name, json!({"memory": "100Mi"}));
    let edited = |pod: Manifest| pod.with("volumes", json!([{"name": "more", "emptyDir": {}}]));
    let pods = [wants("plain"), wants("static").with_uid("0b1c2d3e-place")];
    let runs_anew = |before: &PodEntry| {
        let pid = pid_of(before, "app");
        move |it: &PodEntry| is_running(it) && pid_of(it, "app") != pid
    };
    for pod in &pods {
        let name = pod.name();
        agent.put(pod)?;
        let before = agent.wait_pod(name, "runs", is_running)?;
        let second = format!("second-{name}");
        refusal(&agent, &wants(&second), "OutOfmemory")?;
        agent.put(&edited(pod.clone()))?;
        agent.wait_pod(name, "runs anew", runs_anew(&before))?;
        agent.wait_pod(&second, "stays refused", is_refused("OutOfmemory"))?;
        let returns = told(&agent, "RefusedPodReturns")?;
        let of = |it: &&EventRecord| it.event.pod.as_ref().is_some_and(|it| it.name == second);
        assert_eq!(returns.iter().filter(of).count(), 0, "{returns:#?}");

        let urgent = format!("urgent-{name}");
        refusal(
            &agent,
            &wants(&urgent).with("priority", json!(10)),
            "OutOfmemory",
        )?;
        agent.put(pod)?;
        agent.wait_pod(&urgent, "runs", is_running)?;
        agent.wait_pod(name, "is refused", is_refused("OutOfmemory"))?;
        agent.remove_pod(&second)?;
        agent.remove_pod(name)?;
        agent.remove_pod(&urgent)?;
        agent.wait("all are gone", |it| it.pods.is_empty())?;
    }
    Ok(())
}

/// A critical pod for which too little could be freed is let in once enough can.
#[cfg_attr(feature = "privileged", test)]
fn a_refused_critical_pod_makes_room_when_it_can() -> Result<()> {
    let mut agent = Agent::new("critical-later")?.with_memory(256, 64)?;
    agent.start()?;
    let wants = |name: &str, mib: u32| always(name, json!({"memory": format!("{mib}Mi")}));
    let critical = |pod: Manifest| pod.with("priorityClassName", json!("system-node-critical"));
    agent.put(&critical(wants("first", 100)))?;
    agent.put(&wants("plain", 60))?;
    for name in ["first", "plain"] {
        agent.wait_pod(name, "runs", is_running)?;
    }
    refusal(&agent, &critical(wants("second", 150)), "OutOfmemory")?;
    agent.remove_pod("first")?;
    agent.wait_pod("second", "runs", is_running)?;
    agent.wait_pod("plain", "has ended for it", is_refused("Preempting"))?;
    Ok(())
}

/// A node that is made smaller, or whose reservations grow, keeps what runs on it.
#[cfg_attr(feature = "privileged", test)]
fn pods_are_counted_and_those_that_run_are_never_refused() -> Result<()> {
    let mut agent = Agent::new("full")?
        .with_kubelet("maxPods: 2")
        .with_quick_passes();
    agent.start()?;
    for name in ["first", "second"] {
        agent.put(&always(name, json!({})))?;
        agent.wait_pod(name, "runs", is_running)?;
    }
    let message = refusal(&agent, &always("third", json!({})), "OutOfpods")?;
    assert_eq!(
        message,
        "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
    );
    let before = pids(&agent)?;
    assert_eq!(before.len(), 2);
    agent.stop()?;
    agent.kubelet = agent.kubelet.replace("maxPods: 2", "maxPods: 1");
    agent.start()?;
    agent.wait("both are adopted", |it| {
        it.pods.iter().filter(|it| is_running(it)).count() == 2
    })?;
    assert_eq!(pids(&agent)?, before);
    agent.wait_pod("third", "stays refused", is_refused("OutOfpods"))?;
    agent.remove_pod("first")?;
    agent.remove_pod("second")?;
    agent.wait_pod("third", "runs", is_running)?;
    Ok(())
}

/// Priority makes it critical. The one that ended comes back when there is room again.
#[cfg_attr(feature = "privileged", test)]
fn a_critical_pod_is_made_room_for() -> Result<()> {
    let mut agent = Agent::new("critical")?
        .with_kubelet("maxPods: 2")
        .with_quick_passes();
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    agent.put(&always("first", json!({})))?;
    agent.wait_pod("first", "runs", is_running)?;
    let slow = Container::sh("app", "trap 'exit 0' TERM; while :; do sleep 0.1; done");
    let second = Manifest::new("second")
        .with("restartPolicy", json!("Always"))
        .with("terminationGracePeriodSeconds", json!(30))
        .container(slow);
    agent.put(&second)?;
    agent.wait_pod("second", "runs", is_running)?;
    // Of equals the later one.
    let critical =
        always("critical", json!({})).with("priorityClassName", json!("system-node-critical"));
    agent.put(&critical)?;
    agent.wait_pod("critical", "runs", is_running)?;
    let second = agent.wait_pod("second", "has ended for it", |it| {
        it.phase == PodPhase::Failed
    })?;
    assert_eq!(second.reason.as_deref(), Some("Preempting"));
    let message = second.message.unwrap_or_default();
    assert!(message.contains("default/critical"), "{message}");
    agent.wait_pod("first", "goes on", is_running)?;
    let told = told(&agent, "Preempting")?;
    assert_eq!(told.len(), 1, "{told:#?}");
    until("it is counted", || {
        let page = scrape::text(&agent.metrics, "/metrics")?;
        let line = "kubelet_preemptions{preemption_signal=\"pods\"} 1";
        ensure!(page.lines().any(|it| it == line), "{page}");
        Ok(())
    })?;
    // Another critical one takes the room of the other; a third finds nobody.
    let next = always("next", json!({})).with("priority", json!(2_000_000_000));
    agent.put(&next)?;
    agent.wait_pod("next", "runs", is_running)?;
    agent.wait_pod("first", "has ended for it", |it| {
        it.reason.as_deref() == Some("Preempting")
    })?;
    let last = always("last", json!({})).with("priority", json!(2_000_000_000));
    refusal(&agent, &last, "OutOfpods")?;
    for pod in ["critical", "next", "last"] {
        agent.remove_pod(pod)?;
    }
    agent.wait_pod("first", "is back", is_running)?;
    agent.wait_pod("second", "is back", is_running)?;
    Ok(())
}

/// There a controller makes another pod.
#[cfg_attr(feature = "privileged", test)]
fn a_refusal_is_for_good_where_kubelets_ways_are_asked_for() -> Result<()> {
    let mut agent = Agent::new("for-good")?
        .with_kubelet("maxPods: 1")
        .with_kubelet("failCgroupV1: false")
        .with_quick_passes();
    agent.sections = "compat: kubelet\n".to_owned();
    agent.start()?;
    agent.put(&always("first", json!({})))?;
    agent.wait_pod("first", "runs", is_running)?;
    // Every pod of a manifest is critical there, and so are those that would have to go for it.
    let reason = "UnexpectedAdmissionError";
    let message = refusal(&agent, &always("second", json!({})), reason)?;
    assert!(message.ends_with("[(res: pods, q: 1), ]"), "{message}");
    agent.remove_pod("first")?;
    agent.wait("the first is gone", |it| it.pods.len() == 1)?;
    agent.wait_full_passes(3)?;
    agent.wait_pod("second", "stays refused", is_refused(reason))?;
    assert!(told(&agent, "RefusedPodReturns")?.is_empty());
    Ok(())
}
