//! The demo beside a real kubelet: a child of a container is killed, of which kubelet shows nothing, and what people
//! see of it with the programs that they have.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::promises::Promises;
use super::stage::{METRICS, Stage};
use super::{conclude, oom, text};
use crate::cluster;
use crate::progress::{self, Elapsed};

/// Each step; what takes longer has failed.
const PATIENCE: Duration = Duration::from_mins(1);

/// Between two questions to the cluster.
const POLL: Duration = Duration::from_millis(200);

const DEPLOYMENT: &str = "shop";
const IMAGE: &str = "localhost/ballast/busybox:1";
const REASON: &str = "OomKilledChild";

/// Brings the cluster up unless it is, tells the story with `agent`, and fails when anything it promised did not
/// happen.
pub(super) fn run(agent: &Path) -> Result<()> {
    if let Some(why) = cluster::cannot_run() {
        bail!(why);
    }
    let began = Instant::now();
    let mut promises = Promises::default();
    let mut stage = Stage::new(agent);
    // Before there is a kubelet, beside which no agent of the other demo would start.
    stage.sweep_leftovers()?;
    let was_there = cluster::is_there();
    let ended = cluster::with(|directory| {
        let namespace = format!("ballast-demo-{}", std::process::id());
        let told = tell(&mut stage, &mut promises, directory, &namespace);
        progress::headline("Cleaning up");
        let deleted = kubectl(&["delete", "namespace", &namespace, "--wait=false"]);
        let told = told.and_then(|it| deleted.map(|_| it));
        let swept = stage.sweep();
        promises.check(
            "the agent has ended, and left no pin and no file",
            swept.is_ok(),
        );
        Ok(told.and(swept))
    });
    if !was_there {
        let left = cluster::left();
        match &left {
            Ok(left) => left.iter().for_each(progress::note),
            Err(error) => progress::note(format_args!("{error:#}")),
        }
        promises.check(
            "nothing is left of the cluster: no process, no cgroup, no network, no mount, no file",
            left.is_ok_and(|it| it.is_empty()),
        );
    }
    ended??;
    conclude(&promises, began)
}

fn tell(
    stage: &mut Stage,
    promises: &mut Promises,
    directory: &Path,
    namespace: &str,
) -> Result<()> {
    progress::headline("The agent, beside kubelet");
    start(stage, directory)?;
    let deadline = Instant::now() + PATIENCE;
    stage.wait_until(
        deadline,
        "the runtime and the API server tell of pods",
        |it| {
            let api_server = &it["node"]["apiServer"];
            api_server["server"].is_string() && api_server["fault"].is_null()
        },
    )?;
    progress::note(format_args!(
        "it watches the pods of node {} on the API server, and asks containerd for names",
        cluster::NODE
    ));

    progress::headline("A Deployment, whose container runs a child that takes too much memory");
    kubectl(&["create", "namespace", namespace])?;
    let file = stage.write("deployment.json", &deployment().to_string())?;
    let file = file.display().to_string();
    kubectl(&["create", "--namespace", namespace, "--filename", &file])?;
    let event = wait("an Event tells of the kill", || {
        let events = ask(namespace, &["get", "events", "--output", "json"])?;
        let items = events["items"].as_array();
        let mut items = items.into_iter().flatten();
        Ok(items.find(|it| it["reason"] == REASON).cloned())
    })?;
    let pod = text(&event["involvedObject"]["name"]).to_owned();
    let record = stage.wait_for_event(Instant::now() + PATIENCE, "oom", |it| {
        it["pod"]["name"] == *pod
    })?;
    oom(&record, promises, "main");

    progress::headline(format_args!("kubectl describe pod {pod}"));
    let described = kubectl(&["--namespace", namespace, "describe", "pod", &pod])?;
    let events: Vec<&str> = described
        .lines()
        .skip_while(|it| !it.starts_with("Events:"))
        .collect();
    events.iter().for_each(progress::note);
    promises.check(
        "kubectl describe shows the kill, from ballast",
        events
            .iter()
            .any(|it| it.contains(REASON) && it.contains("ballast")),
    );
    let after = ask(namespace, &["get", "pod", &pod, "--output", "json"])?;
    let container = &after["status"]["containerStatuses"][0];
    promises.check(
        "kubelet shows nothing of it: the container runs, and was never started again",
        container["state"]["running"].is_object() && container["restartCount"] == 0,
    );

    progress::headline("Metrics");
    let line = format!(
        "ballast_oom_workload_kills_total{{namespace=\"{namespace}\",workload=\"{DEPLOYMENT}\",\
         workload_kind=\"Deployment\"}} 1"
    );
    let page = metrics()?;
    let counted = page.lines().find(|it| *it == line);
    counted.iter().for_each(progress::note);
    promises.check(
        "the kill is counted for its workload, which outlives its pods",
        counted.is_some(),
    );
    promises.check(
        "and for the container, by the names that people know",
        page.lines().any(|it| {
            it.starts_with("ballast_oom_kills_total{")
                && it.contains(&format!("pod=\"{pod}\""))
                && it.contains("container=\"main\"")
                && it.ends_with(" 1")
        }),
    );
    Ok(())
}

fn start(stage: &mut Stage, directory: &Path) -> Result<()> {
    let mut settings = "mode: observe\n".to_owned();
    let place = |name: &str| directory.join(name).display().to_string();
    writeln!(
        settings,
        "runtime: {{type: cri, endpoint: \"unix://{}\"}}",
        place("containerd.sock")
    )?;
    writeln!(
        settings,
        "kubernetes: {{nodeName: {}, kubeconfigFile: {}}}",
        cluster::NODE,
        place("agent.kubeconfig")
    )?;
    writeln!(settings, "kubelet: {{cgroupRoot: /{}}}", cluster::NAME)?;
    // Where the API server is.
    let command = cluster::in_namespace(stage.program());
    stage.launch(command, &settings)
}

fn deployment() -> Value {
    let labels = json!({"app": DEPLOYMENT});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [{
                        "name": "main",
                        "image": IMAGE,
                        "imagePullPolicy": "Never",
                        "command": ["/bin/sh", "-c", "tail /dev/zero; exec sleep 3600"],
                        "resources": {"limits": {"memory": "32Mi"}},
                    }],
                },
            },
        },
    })
}

fn kubectl(words: &[&str]) -> Result<String> {
    progress::quiet(cluster::kubectl()?.args(words))
}

fn ask(namespace: &str, words: &[&str]) -> Result<Value> {
    let words = [&["--namespace", namespace], words].concat();
    serde_json::from_str(&kubectl(&words)?).context("read what kubectl says")
}

fn wait<T>(what: &str, look: impl Fn() -> Result<Option<T>>) -> Result<T> {
    let began = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "never seen: {what}, in {}",
            Elapsed(began.elapsed())
        );
        thread::sleep(POLL);
    }
}

/// The text of `/metrics`, which only the network of the node has.
fn metrics() -> Result<String> {
    let (host, port) = METRICS.split_once(':').context("an address")?;
    let script = format!(
        "exec 3<>/dev/tcp/{host}/{port}; \
         printf 'GET /metrics HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n' >&3; cat <&3"
    );
    let mut command: Command = cluster::in_namespace(Path::new("bash"));
    progress::quiet(command.args(["-c", &script]))
}
