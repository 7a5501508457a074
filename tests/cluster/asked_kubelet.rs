//! The kubelet of a real node, asked for its pods from another network, with the rights that an operator would give.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::api_server::{ApiServerStatus, PodsFrom};
use ballast::model::status::Status;
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{
    ApiWay, Namespace, StaticPod, Way, cluster, new_agent, restart, restart_as,
};
use ballast_tests::scrape;
use ballast_tests::wait::until;
use serde_json::json;

use super::settings::{Configuration, check_memory};
use super::workloads::{kills_of, pods_of};

/// As its status has the source of pods.
const FROM: &str = "https://127.0.0.1:10250";

/// What the process is called that has a kubelet inside.
const WITHIN: &str = "kubelite";

/// An agent that asks kubelet with the credentials of `user`, and the ways that it takes.
struct Asking {
    agent: Agent,
    kubelet: Way,
    _api: ApiWay,
}

impl Asking {
    fn new(test: &str, user: &str) -> Result<Self> {
        Self::start(new_agent(test)?, test, user)
    }

    fn start(mut agent: Agent, test: &str, user: &str) -> Result<Self> {
        // The address of the node, as an agent with a network of its own has it.
        agent.environment.push(("HOST_IP", "127.0.0.1".to_owned()));
        let to = "10.240.0.1:10250".parse()?;
        let kubelet = Way::new("127.0.0.1:10250", to)?;
        let api = ApiWay::of(user, test)?;
        api.lead_from("kubelet", &mut agent);
        agent.start()?;
        Ok(Self {
            agent,
            kubelet,
            _api: api,
        })
    }

    fn source(&self) -> Result<ApiServerStatus> {
        let status = self.agent.status()?;
        status.node.api_server.context("nobody is asked")
    }

    fn wait_followed(&self) -> Result<()> {
        until("kubelet tells of its pods", || {
            let source = self.source()?;
            ensure!(source.is_followed(), "{source:?}");
            Ok(())
        })
    }
}

/// The workload of the pod, and what it requests of memory, bytes.
fn defined(status: &Status, namespace: &str, name: &str) -> Result<(String, u64)> {
    let mut pods = status.pods.iter();
    let pod = pods.find(|it| it.namespace == namespace && it.name.starts_with(name));
    let pod = pod.with_context(|| format!("no {namespace}/{name}"))?;
    let workload = pod.workload.as_ref().context("no workload")?;
    let requested = pod.resources.memory_request_bytes.context("no request")?;
    Ok((format!("{} {}", workload.kind, workload.name), requested.0))
}

fn worker(name: &str, script: &str) -> serde_json::Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": ballast_tests::cluster::pod_spec(script, "32Mi", "Always"),
            },
        },
    })
}

/// Both outlive a kubelet that is started again, which knows none of its pods at first.
#[cfg_attr(feature = "privileged", test)]
fn kubelet_tells_whose_the_pods_of_its_node_are() -> Result<()> {
    let asking = Asking::new("cluster-kubelet", "agent-kubelet")?;
    let agent = &asking.agent;
    let namespace = Namespace::new("kubelet")?;
    let static_pod = StaticPod::new("fixed")?;
    namespace.create(&worker("worker", "tail /dev/zero; exec sleep 3600"))?;
    until("its kill is counted by its workload", || {
        let n = kills_of(agent, "kubelet", "Deployment", "worker")?;
        ensure!(n >= Some(1.0), "{n:?} {:?}", asking.source());
        Ok(())
    })?;
    let source = asking.source()?;
    ensure!(
        source.from == PodsFrom::Kubelet && source.server.as_deref() == Some(FROM),
        "{source:?}"
    );
    let right = ("Deployment worker".to_owned(), 32 << 20);
    until("what it requests is shown", || {
        let found = defined(&agent.status()?, "kubelet", "worker")?;
        ensure!(found == right, "{found:?}");
        Ok(())
    })?;
    // Static pods are kubelet's own; on the API server there is only the mirror.
    until("the static pod is shown", || {
        let pods = pods_of(agent, "default")?;
        let fixed = pods.iter().find(|it| it.name.starts_with("fixed-"));
        let workload = fixed.and_then(|it| it.workload.as_ref());
        ensure!(workload.is_some_and(|it| it.kind == "Pod"), "{fixed:?}");
        Ok(())
    })?;
    until("kubectl shows the kill", || {
        let text = namespace.kubectl(&["describe", "pods"], None)?;
        let mut lines = text.lines();
        ensure!(lines.any(|it| it.contains("OomKilledChild")), "{text}");
        Ok(())
    })?;
    let report = Command::new(agent.run_command()?.get_program())
        .args(["check", "--config"])
        .arg(agent.dir.join("config.yaml"))
        .envs(agent.environment.iter().cloned())
        .output()?;
    let report = String::from_utf8(report.stdout)?;
    let known = format!("on {FROM}, known by a certificate in its own files");
    ensure!(report.contains(&known), "{report}");
    let near = "that of the API server, to 5 s";
    ensure!(report.contains(near), "it takes Events: {report}");

    restart("kubelet")?;
    for _ in 0..50 {
        let found = defined(&agent.status()?, "kubelet", "worker").context("while it starts")?;
        ensure!(found == right, "{found:?}");
        thread::sleep(Duration::from_millis(100));
    }
    asking.wait_followed()?;
    namespace.create(&worker("later", "exec sleep 3600"))?;
    until("a pod that came after it is shown", || {
        let found = defined(&agent.status()?, "kubelet", "later")?;
        ensure!(found.0 == "Deployment later", "{found:?}");
        Ok(())
    })?;
    drop(static_pod);
    namespace.kubectl(&["delete", "deployment", "worker", "later"], None)?;
    until("pods that are gone are gone", || {
        let pods = pods_of(agent, "kubelet")?;
        ensure!(pods.is_empty(), "{pods:#?}");
        Ok(())
    })
}

#[cfg_attr(feature = "privileged", test)]
fn a_kubelet_that_is_away_or_refuses_is_named() -> Result<()> {
    let asking = Asking::new("cluster-kubelet-away", "agent-kubelet")?;
    asking.wait_followed()?;
    asking.kubelet.cut();
    let source = until("it is missed", || {
        let source = asking.source()?;
        ensure!(source.fault.is_some(), "{source:?}");
        Ok(source)
    })?;
    ensure!(source.stale_since.is_some(), "{source:?}");
    let told = asking.agent.events("agent,node")?;
    ensure!(
        told.iter()
            .any(|it| it.event.reason == "KubeletUnavailable"),
        "{told:#?}"
    );
    asking.kubelet.mend();
    asking.wait_followed()?;
    drop(asking);

    // The rights to ask the API server are not those to ask kubelet.
    let asking = Asking::new("cluster-kubelet-refuses", "agent")?;
    until("the right is named", || {
        let fault = asking.source()?.fault.unwrap_or_default();
        ensure!(
            fault.starts_with("get nodes/pods: HTTP status 403"),
            "{fault}"
        );
        Ok(())
    })?;
    let page = scrape::page(&asking.agent.metrics, "/metrics")?;
    let labels = [("verb", "get"), ("resource", "nodes/pods"), ("code", "403")];
    let n = page.value("ballast_api_requests_total", &labels);
    ensure!(n >= Some(1.0), "{n:?}");
    Ok(())
}

/// What such a program was started with says nothing of the kubelet inside. It has the certificate that the cluster has
/// given it, since nobody knows where one of its own would be.
#[cfg_attr(feature = "privileged", test)]
fn a_kubelet_within_another_program_is_asked_for_its_settings() -> Result<()> {
    let configuration = Configuration::new()?;
    let file = |name: &str| cluster().map(|it| it.join("certificates").join(name));
    configuration.set(json!({
        "tlsCertFile": file("kubelet-serving.crt")?,
        "tlsPrivateKeyFile": file("kubelet-serving.key")?,
        "evictionHard": {"memory.available": "150Mi"},
    }))?;
    restart_as("kubelet", WITHIN)?;
    let mut agent = new_agent("cluster-configz")?;
    agent.eviction_hard.clear();
    let asking = Asking::start(agent, "cluster-configz", "agent-kubelet")?;
    let url = format!("{FROM}/configz");
    let kubelet = until("its settings are shown", || {
        let status = asking.agent.status()?;
        check_memory(&status, 150 << 20).with_context(|| format!("{:?}", status.warnings))?;
        status.node.kubelet.context("no kubelet")
    })?;
    ensure!(kubelet.asked.as_ref() == Some(&url), "{kubelet:?}");
    let text = asking.agent.command(&["explain", "node"])?;
    let line = format!(
        "kubelet (pid {}) goes by what it says at {url}",
        kubelet.pid
    );
    ensure!(text.lines().any(|it| it == line), "{text}");
    asking.wait_followed()?;

    configuration.set(json!({
        "tlsCertFile": file("kubelet-serving.crt")?,
        "tlsPrivateKeyFile": file("kubelet-serving.key")?,
        "evictionHard": {"memory.available": "250Mi"},
    }))?;
    restart_as("kubelet", WITHIN)?;
    until("it goes by what it was started with", || {
        let status = asking.agent.status()?;
        check_memory(&status, 250 << 20).with_context(|| format!("{:?}", status.warnings))?;
        let after = status.node.kubelet.context("no kubelet")?;
        ensure!(after.pid != kubelet.pid, "{after:?}");
        Ok(())
    })?;
    drop(asking);

    // Who is not known is told so.
    let (agent, nobody) = (cluster()?.join("agent.kubeconfig"), "nobody");
    let text = fs::read_to_string(agent)?.replace("ballast-cluster-agent", nobody);
    let file = cluster()?.join(format!("{nobody}.kubeconfig"));
    fs::write(&file, text)?;
    let mut agent = new_agent("cluster-configz-refused")?;
    agent.eviction_hard.clear();
    let asking = Asking::start(agent, "cluster-configz-refused", nobody)?;
    fs::remove_file(&file)?;
    until("the right is named", || {
        let warnings = asking.agent.status()?.warnings;
        let why = "was asked: get nodes/configz: HTTP status 401";
        ensure!(warnings.iter().any(|it| it.contains(why)), "{warnings:?}");
        Ok(())
    })
}
