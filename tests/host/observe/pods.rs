//! Pods as an API server tells of them, beside their cgroups.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::api_pod::ContainerRole;
use ballast::model::status::Status;
use ballast::units::Bytes;
use ballast_tests::agent::Agent;
use ballast_tests::api_server::{FakeApiServer, Manner};
use ballast_tests::kube::{Driver, KubeContainer, KubeTree, container_id};
use ballast_tests::scrape::{free_address, page, text};
use ballast_tests::wait::until;
use serde_json::{Value, json};

use super::{STATIC_UID, UID, eat, has_line, limited, pod_of, wait_kills};
use crate::look::refusal;

const NODE: &str = "node1.example";

/// An agent that asks the API server of the test, and no runtime.
fn agent(name: &str, tree: &KubeTree, server: &FakeApiServer) -> Result<Agent> {
    let mut agent = Agent::observing(&format!("pods-{name}"), tree)?;
    agent.metrics = free_address()?;
    let kubeconfig = agent.dir.join("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    agent.sections = sections(Some(NODE), Some(&kubeconfig));
    Ok(agent)
}

fn sections(node: Option<&str>, kubeconfig: Option<&Path>) -> String {
    let node = node.map(|it| format!("nodeName: {it}"));
    let file = kubeconfig.map(|it| format!("kubeconfigFile: {}", it.display()));
    let both: Vec<String> = [node, file].into_iter().flatten().collect();
    format!(
        "pods: {{source: apiserver}}\nkubernetes: {{{}}}\n",
        both.join(", ")
    )
}

/// A pod of a Deployment with one sidecar; `id`: of its container `app`, if kubelet has told of it.
fn shop(uid: &str, id: Option<&str>) -> Value {
    let status = id.map(|it| {
        json!([{
            "name": "app", "image": "", "imageID": "", "ready": true, "restartCount": 3,
            "containerID": format!("containerd://{it}"),
        }])
    });
    json!({
        "metadata": {
            "name": "shop-6c4d-x", "namespace": "default", "uid": uid,
            "labels": {"pod-template-hash": "6c4d"},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "shop-6c4d", "uid": "o", "controller": true,
            }],
        },
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "app"}],
            "initContainers": [{"name": "proxy", "restartPolicy": "Always"}],
        },
        "status": {"containerStatuses": status},
    })
}

fn mirror(static_uid: &str) -> Value {
    json!({
        "metadata": {
            "name": "steady-node1", "namespace": "kube-system", "uid": "of-the-mirror",
            "annotations": {"kubernetes.io/config.mirror": static_uid},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n", "controller": true}],
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main"}]},
    })
}

fn of_workload(namespace: &str, kind: &str, name: &str, n: u64) -> String {
    format!(
        "ballast_oom_workload_kills_total{{namespace=\"{namespace}\",workload=\"{name}\",workload_kind=\"{kind}\"}} {n}"
    )
}

fn is_followed(status: &Status) -> bool {
    let api = status.node.api_server.as_ref();
    api.is_some_and(|it| it.is_followed())
}

#[cfg_attr(feature = "privileged", test)]
fn the_api_server_alone_names_pods_and_their_workloads() -> Result<()> {
    let tree = KubeTree::new("workloads", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    server.put(&shop(UID, None));
    server.put(&mirror(STATIC_UID));
    let mut agent = agent("alone", &tree, &server)?;
    agent.start()?;
    let status = agent.wait("it is followed", is_followed)?;
    assert_eq!(status.node.name, NODE);
    let made = limited(&tree.pod(UID)?, 1)?;
    eat(&made)?;
    let kills = wait_kills(&agent, 1)?;
    let event = &kills[0].event;
    let pod = event.pod.as_ref().context("it has no name")?;
    assert_eq!(pod.to_string(), "default/shop-6c4d-x");
    assert_eq!(event.container_id.as_deref(), Some(&*made.id));
    until("it is counted", || {
        has_line(&agent, &of_workload("default", "Deployment", "shop", 1))
    })?;
    server.put(&shop(UID, Some(&container_id(1))));
    let status = agent.wait("its container has its name", |status| {
        pod_of(status, UID).is_some_and(|it| it.containers.iter().any(|it| it.name == "app"))
    })?;
    let entry = pod_of(&status, UID).context("it was there")?;
    let app = &entry.containers[0];
    assert_eq!((app.kind, app.restarts), (Some(ContainerRole::Main), 3));
    let workload = entry.workload.as_ref().context("it is told")?;
    assert_eq!((&*workload.kind, &*workload.name), ("Deployment", "shop"));
    let told = agent.command(&["status"])?;
    assert!(told.contains("of Deployment shop"), "{told}");
    until("the record has its name", || {
        let kills = wait_kills(&agent, 1)?;
        let name = kills[0].event.container.as_deref();
        ensure!(name == Some("app"), "{kills:#?}");
        Ok(())
    })?;
    eat(&limited(&tree.pod(STATIC_UID)?, 2)?)?;
    until("a static pod is its own workload", || {
        has_line(
            &agent,
            &of_workload("kube-system", "Pod", "steady-node1", 1),
        )
    })?;
    // Gone from the API server, and running: a forced deletion.
    server.delete("shop-6c4d-x");
    thread::sleep(Duration::from_secs(1));
    eat(&made)?;
    until("its kill is its own", || {
        has_line(&agent, &of_workload("default", "Deployment", "shop", 2))
    })?;
    has_line(
        &agent,
        &of_workload("kube-system", "Pod", "steady-node1", 1),
    )?;
    let page = text(&agent.metrics, "/metrics")?;
    let heard = "ballast_api_last_success_timestamp_seconds{resource=\"pods\"}";
    assert!(page.contains(heard), "{page}");
    has_line(
        &agent,
        "ballast_api_requests_total{code=\"2xx\",resource=\"pods\",verb=\"watch\"} 1",
    )
}

/// Nobody is counted under a workload that is not his, and nobody is forgotten, by the next agent neither.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_waits_for_its_workload_over_a_restart() -> Result<()> {
    let tree = KubeTree::new("awaited", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::Forbids)?;
    let mut agent = agent("awaited", &tree, &server)?;
    agent.start()?;
    let status = agent.wait("it may not", |status| {
        let api = status.node.api_server.as_ref();
        api.is_some_and(|it| it.fault.is_some())
    })?;
    let warned = status.warnings.join("\n");
    assert!(
        warned.contains(&format!(
            "tells nothing of the pods of {NODE}: watch pods: pods is forbidden"
        )),
        "{warned}"
    );
    let made = limited(&tree.pod(UID)?, 1)?;
    eat(&made)?;
    wait_kills(&agent, 1)?;
    let early = "ballast_oom_workload_kills_total{";
    let page = text(&agent.metrics, "/metrics")?;
    assert!(!page.contains(early), "{page}");
    agent.stop()?;
    agent.start()?;
    server.put(&shop(UID, Some(&container_id(1))));
    server.behave(Manner::StreamsLists);
    until("it is counted", || {
        has_line(&agent, &of_workload("default", "Deployment", "shop", 1))
    })?;
    thread::sleep(Duration::from_secs(2));
    has_line(&agent, &of_workload("default", "Deployment", "shop", 1))?;
    let named =
        "ballast_oom_kills_total{container=\"app\",namespace=\"default\",pod=\"shop-6c4d-x\"} 1";
    until("its container too", || has_line(&agent, named))
}

#[cfg_attr(feature = "privileged", test)]
fn a_way_that_leads_nowhere_is_found_by_check_as_by_run() -> Result<()> {
    let tree = KubeTree::new("nowhere", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let mut agent = agent("nowhere", &tree, &server)?;
    let good = agent.dir.join("kubeconfig");
    let broken = agent.dir.join("broken");
    fs::write(&broken, "clusters: 7")?;
    for (sections, fault) in [
        (
            sections(None, Some(&good)),
            "kubernetes.nodeName: is missing",
        ),
        (
            sections(Some(NODE), None),
            "kubernetes.kubeconfigFile: is missing",
        ),
        (
            sections(Some(NODE), Some(&broken)),
            "kubernetes.kubeconfigFile: ",
        ),
    ] {
        agent.sections = sections;
        let run = agent.run_command()?;
        for verb in ["check", "run"] {
            let said = refusal(run.get_program(), verb, &agent.dir.join("config.yaml"))?;
            assert!(said.contains(fault), "{verb}: {fault} in {said}");
        }
    }
    // Where nothing is said of pods, nobody is asked, and that is said.
    agent.sections = String::new();
    let checked = String::from_utf8(agent.check_command()?.output()?.stdout)?;
    assert!(
        checked.contains("pods are shown without their workloads"),
        "{checked}"
    );
    Ok(())
}

/// Kubelet's start would take the place of the agent's socket, and neither would tell.
#[cfg_attr(feature = "privileged", test)]
fn a_socket_in_the_place_of_kubelets_is_a_fault_while_kubelet_is_down() -> Result<()> {
    let tree = KubeTree::new("in-place", Driver::Cgroupfs)?;
    let agent = Agent::observing("in-place", &tree)?;
    let run = agent.run_command()?;
    let path = agent.dir.join("config.yaml");
    let own = format!("socket: {}", agent.socket().display());
    let text = fs::read_to_string(&path)?;
    ensure!(text.contains(&own), "{own} in {text}");
    let kubelets = "socket: /var/lib/kubelet/pod-resources/kubelet.sock";
    fs::write(&path, text.replace(&own, kubelets))?;
    let fault = format!("{kubelets} is where kubelet has the socket of the pod resources API");
    for verb in ["check", "run"] {
        let said = refusal(run.get_program(), verb, &path)?;
        assert!(said.contains(&fault), "{verb}: {fault} in {said}");
    }
    Ok(())
}

/// Services of glibc that are libraries of the host crash a program with another glibc in it.
#[cfg_attr(feature = "privileged", test)]
fn host_names_need_no_library_of_the_host() -> Result<()> {
    // No machine has that service.
    let script = "mount -t tmpfs none /etc
        echo 'hosts: nosuch' > /etc/nsswitch.conf
        echo '127.0.0.1 api.test' > /etc/hosts
        exec \"$@\"";
    let tree = KubeTree::new("services", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let mut agent = agent("services", &tree, &server)?;
    let kubeconfig = agent.dir.join("kubeconfig");
    let by_address = fs::read_to_string(&kubeconfig)?;
    let by_name = by_address.replace("127.0.0.1", "api.test");
    assert_ne!(by_name, by_address);
    fs::write(&kubeconfig, by_name)?;
    agent.start_by(&["unshare", "-m"], script);
    agent.start()?;
    agent.wait("it is followed", is_followed)?;
    Ok(())
}

/// A pod of the API server that runs, and an agent that has been told of it.
fn running(name: &str, manner: Manner) -> Result<(KubeTree, FakeApiServer, Agent, KubeContainer)> {
    let tree = KubeTree::new(name, Driver::Cgroupfs)?;
    let server = FakeApiServer::start(manner)?;
    server.put(&shop(UID, Some(&container_id(1))));
    let mut agent = agent(name, &tree, &server)?;
    agent.start()?;
    agent.wait("it is followed", is_followed)?;
    let made = limited(&tree.pod(UID)?, 1)?;
    Ok((tree, server, agent, made))
}

/// The Event of a pod and a reason that the API server keeps.
fn event_of(server: &FakeApiServer, pod: &str, reason: &str) -> Result<Value> {
    let mut events = server.kept_events();
    events.retain(|it| it["involvedObject"]["name"] == pod && it["reason"] == reason);
    ensure!(events.len() == 1, "{events:#?}");
    Ok(events.remove(0))
}

fn sent(agent: &Agent) -> Result<(u64, u64, Option<String>)> {
    let status = agent.status()?.node.api_server.context("it is asked")?;
    let events = status.events.context("it is told")?;
    Ok((events.sent, events.waiting, events.fault))
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_is_an_event_of_its_pod() -> Result<()> {
    let (_tree, server, agent, made) = running("events", Manner::StreamsLists)?;
    eat(&made)?;
    let event = until("the kill is an Event", || {
        event_of(&server, "shop-6c4d-x", "OomKilled")
    })?;
    for (pointer, right) in [
        ("/metadata/namespace", json!("default")),
        ("/involvedObject/uid", json!(UID)),
        ("/involvedObject/fieldPath", json!("spec.containers{app}")),
        ("/reportingComponent", json!("ballast.dev/agent")),
        ("/reportingInstance", json!(NODE)),
        ("/source/component", json!("ballast")),
        ("/type", json!("Warning")),
        ("/count", json!(1)),
        ("/metadata/annotations/ballast.dev~1comm", json!("tail")),
    ] {
        assert_eq!(
            event.pointer(pointer),
            Some(&right),
            "{pointer} in {event:#}"
        );
    }
    let message = event["message"].as_str().unwrap_or_default();
    assert!(message.starts_with("tail (pid "), "{message}");
    assert!(message.contains("MiB of its container"), "{message}");
    assert!(
        message.ends_with("; the container ends with it"),
        "{message}"
    );
    let time = event["eventTime"].as_str().unwrap_or_default();
    assert_eq!(time.len(), "2026-01-01T00:00:00.000000Z".len(), "{time}");
    until("it is told of", || {
        let found = sent(&agent)?;
        ensure!(found == (1, 0, None), "{found:?}");
        Ok(())
    })
}

/// One object for a container, with the count of all; the next agent goes on with it.
#[cfg_attr(feature = "privileged", test)]
fn kills_are_one_event_that_the_next_agent_goes_on_with() -> Result<()> {
    let (_tree, server, mut agent, made) = running("series", Manner::StreamsLists)?;
    let began = Instant::now();
    for _ in 0..5 {
        eat(&made)?;
    }
    wait_kills(&agent, 5)?;
    let kept = || event_of(&server, "shop-6c4d-x", "OomKilled");
    let count = |n: u64| {
        let event = kept()?;
        ensure!(event["count"] == n, "{event:#}");
        let message = event["message"].as_str().unwrap_or_default();
        ensure!(
            message.ends_with(&format!("the newest of {n}")),
            "{message}"
        );
        Ok(())
    };
    // Most of them waited for their time, and are told before the agent ends.
    agent.stop()?;
    count(5)?;
    // The first, those that are due each 10 s, and the last.
    let n_writes = server.n_writes(&kept()?);
    let most = 3 + began.elapsed().as_secs() / 10;
    ensure!((1..=most).contains(&(n_writes as u64)), "{n_writes} writes");
    agent.start()?;
    eat(&made)?;
    until("the next agent goes on with it", || count(6))?;
    agent.kill()?;
    // Between two agents, and after them.
    eat(&made)?;
    agent.start()?;
    eat(&made)?;
    until("the one after that too", || count(8))?;
    thread::sleep(Duration::from_secs(2));
    count(8)?;
    // Kills outside of the pods, which are not the test's, have another reason.
    let page = page(&agent.metrics, "/metrics")?;
    let by_result = |result| {
        page.sum(
            "ballast_api_events_total",
            &[("reason", "OomKilled"), ("result", result)],
        )
    };
    assert_eq!(
        ["sent", "folded", "dropped"].map(by_result),
        [2.0, 0.0, 0.0]
    );
    assert_eq!(sent(&agent)?.2, None);
    Ok(())
}

/// It is on record without a name, and while another kill waits for one the next agent looks at both again.
#[cfg_attr(feature = "privileged", test)]
fn a_kill_that_was_named_late_is_the_same_event_for_the_next_agent() -> Result<()> {
    let tree = KubeTree::new("latename", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let mut agent = agent("latename", &tree, &server)?;
    agent.start()?;
    agent.wait("it is followed", is_followed)?;
    eat(&limited(&tree.pod(STATIC_UID)?, 2)?)?;
    let made = limited(&tree.pod(UID)?, 1)?;
    eat(&made)?;
    wait_kills(&agent, 2)?;
    server.put(&shop(UID, Some(&made.id)));
    let told = || event_of(&server, "shop-6c4d-x", "OomKilled");
    let event = until("it is told by its name", told)?;
    assert_eq!(event["count"], 1, "{event:#}");
    let note = agent.state().join("told-kills.json");
    until("the name is noted", || {
        let text = fs::read_to_string(&note)?;
        ensure!(text.contains(&made.id), "{text}");
        Ok(())
    })?;
    agent.kill()?;
    made.remove();
    // Kubelet tells of its successor alone.
    server.put(&shop(UID, Some(&container_id(3))));
    agent.start()?;
    agent.wait("it is followed", is_followed)?;
    until("the next agent has done with it", || {
        let (_, waiting, fault) = sent(&agent)?;
        ensure!(waiting == 1, "{waiting} wait, {fault:?}");
        Ok(())
    })?;
    thread::sleep(Duration::from_secs(2));
    let again = told()?;
    assert_eq!(again["count"], 1, "{again:#}");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn an_event_of_somebody_else_is_left_alone() -> Result<()> {
    let (_tree, server, mut agent, made) = running("taken", Manner::StreamsLists)?;
    let told = || {
        let event = event_of(&server, "shop-6c4d-x", "OomKilled")?;
        ensure!(event["count"] == 1, "{event:#}");
        Ok(event)
    };
    eat(&made)?;
    let mut foreign = until("it is told", told)?;
    agent.stop()?;
    server.forget_events();
    foreign["reportingComponent"] = json!("somebody.else/agent");
    foreign["reason"] = json!("Elsewhere");
    server.keep(&foreign);
    agent.start()?;
    eat(&made)?;
    let own = until("it is told under another name", told)?;
    assert_ne!(own["metadata"]["name"], foreign["metadata"]["name"]);
    let kept = event_of(&server, "shop-6c4d-x", "Elsewhere")?;
    assert_eq!(kept, foreign);
    // Those of the node tell of kills that are not the test's.
    let mut of_pods = server.kept_events();
    of_pods.retain(|it| it["involvedObject"]["kind"] == "Pod");
    assert_eq!(of_pods.len(), 2, "{of_pods:#?}");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn an_event_that_cannot_be_written_waits_and_is_not_written_twice() -> Result<()> {
    let (_tree, server, agent, made) = running("refused", Manner::ForbidsEvents)?;
    eat(&made)?;
    until("it is said", || {
        let (sent, waiting, fault) = sent(&agent)?;
        let fault = fault.unwrap_or_default();
        ensure!((sent, waiting) == (0, 1), "{sent} {waiting}");
        ensure!(
            fault.contains("cannot create resource \"events\""),
            "{fault}"
        );
        Ok(())
    })?;
    let warned = agent.status()?.warnings.join("\n");
    assert!(warned.contains("OOM kills are no Events"), "{warned}");
    server.behave(Manner::LosesAnswers);
    until("it is taken, and nobody hears of it", || {
        event_of(&server, "shop-6c4d-x", "OomKilled")
    })?;
    eat(&made)?;
    server.behave(Manner::StreamsLists);
    until("both are told", || {
        let event = event_of(&server, "shop-6c4d-x", "OomKilled")?;
        ensure!(event["count"] == 2, "{event:#}");
        let found = sent(&agent)?;
        ensure!(found == (2, 0, None), "{found:?}");
        Ok(())
    })?;
    // The API server keeps Events for an hour.
    server.forget_events();
    eat(&made)?;
    until("it is made anew", || {
        let event = event_of(&server, "shop-6c4d-x", "OomKilled")?;
        ensure!(event["count"] == 3, "{event:#}");
        Ok(())
    })
}

/// As on a node that is about to join its cluster.
#[cfg_attr(feature = "privileged", test)]
fn a_kubeconfig_that_comes_later_is_used_then() -> Result<()> {
    let tree = KubeTree::new("later", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    server.put(&shop(UID, None));
    let mut agent = agent("later", &tree, &server)?;
    let kubeconfig = agent.dir.join("kubeconfig");
    let later = agent.dir.join("later");
    fs::rename(&kubeconfig, &later)?;
    // As kubelet has its certificate.
    symlink("later-current", &kubeconfig)?;
    agent.start()?;
    let told = |status: &Status| {
        let server = status.node.api_server.as_ref();
        server.is_some_and(|it| format!("{it:?}").contains("No such file"))
    };
    agent.wait("it says what is missing", told)?;
    eat(&limited(&tree.pod(UID)?, 1)?)?;
    wait_kills(&agent, 1)?;
    fs::rename(&later, agent.dir.join("later-current"))?;
    agent.wait("it is followed", is_followed)?;
    until("it is counted", || {
        has_line(&agent, &of_workload("default", "Deployment", "shop", 1))
    })
}

#[cfg_attr(feature = "privileged", test)]
fn no_event_is_written_where_none_is_wanted() -> Result<()> {
    let tree = KubeTree::new("unwanted", Driver::Cgroupfs)?;
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    server.put(&shop(UID, None));
    let mut agent = agent("unwanted", &tree, &server)?;
    let kubeconfig = agent.dir.join("kubeconfig");
    agent.sections = format!(
        "kubernetes: {{nodeName: {NODE}, kubeconfigFile: {}, events: {{enabled: false}}}}\n",
        kubeconfig.display()
    );
    agent.start()?;
    agent.wait("it is followed", is_followed)?;
    eat(&limited(&tree.pod(UID)?, 1)?)?;
    wait_kills(&agent, 1)?;
    until("it is counted", || {
        has_line(&agent, &of_workload("default", "Deployment", "shop", 1))
    })?;
    thread::sleep(Duration::from_secs(2));
    assert_eq!(server.kept_events(), Vec::<Value>::new());
    Ok(())
}

/// Requests, the sum of them and the place in kubelet's order, until the pod asks for what is no quantity.
#[cfg_attr(feature = "privileged", test)]
fn what_a_pod_requests_is_shown_as_far_as_it_is_understood() -> Result<()> {
    let (_tree, server, agent, _made) = running("requests", Manner::StreamsLists)?;
    let put = |cpu: &str| {
        let mut pod = shop(UID, Some(&container_id(1)));
        let app = &mut pod["spec"]["containers"][0];
        app["resources"] = json!({"requests": {"cpu": cpu, "memory": "64Mi"}});
        pod["spec"]["overhead"] = json!({"memory": "1Mi"});
        server.put(&pod);
    };
    let requested = |status: &Status, name: &str| status.node.resources[name].requested;
    let is_in_order = |status: &Status| {
        let pressure = status.node.pressure.as_ref();
        pressure.is_some_and(|it| it.order.iter().any(|it| it.uid.0 == UID))
    };
    put("100m");
    let status = agent.wait("it stands in the order", |status| {
        requested(status, "cpu") == Some(100) && is_in_order(status)
    })?;
    assert_eq!(requested(&status, "memory"), Some(65 << 20));
    let pod = pod_of(&status, UID).context("it is there")?;
    let of_pod = pod.resources.memory_request_bytes;
    let of_app = pod.containers[0].resources.memory_request_bytes;
    assert_eq!(
        (of_pod, of_app),
        (Some(Bytes(65 << 20)), Some(Bytes(64 << 20)))
    );
    let told = agent.command(&["explain", "pod", "shop-6c4d-x"])?;
    assert!(
        told.contains("place 1 of 1 in kubelet's eviction order"),
        "{told}"
    );
    put("much");
    let status = agent.wait("it is told", |status| {
        let why = "what default/shop-6c4d-x requests is not understood";
        status.warnings.iter().any(|it| it.starts_with(why)) && !is_in_order(status)
    })?;
    assert_eq!(requested(&status, "memory"), Some(0));
    let pod = pod_of(&status, UID).context("it is there still")?;
    assert_eq!(pod.resources.memory_request_bytes, None);
    assert!(pod.workload.is_some(), "{pod:#?}");
    put("100m");
    agent.wait("it is understood again", |status| {
        requested(status, "cpu") == Some(100)
            && status.warnings.iter().all(|it| !it.contains("understood"))
    })?;
    Ok(())
}
