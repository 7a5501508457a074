//! Beside a real kubelet: how soon its cluster is up, how soon a container has its name, and how soon `kubectl` and the
//! metrics show a kill.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use ballast::model::record::EventRecord;
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{Namespace, asking, cluster, container};
use ballast_tests::exposition::Exposition;
use ballast_tests::scrape;
use ballast_tests::wait::until;
use serde_json::json;

use super::table::{Row, Samples, Table, Verdict, mebibytes, show};
use super::{machine, say};

const N_NAMES: usize = 40;
const N_KILLS: usize = 60;
const UP_BUDGET: Duration = Duration::from_secs(15);
const NAME_BUDGET: Duration = Duration::from_millis(100);
const EVENT_BUDGET: Duration = Duration::from_millis(500);
const REASON: &str = "OomKilledChild";

/// Between two looks at the agent: each is a program that is started, or a page of metrics.
const POLL: Duration = Duration::from_millis(5);

/// For one container or one kill; what takes longer has failed.
const PATIENCE: Duration = Duration::from_mins(1);

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    table.section("cluster", |table| {
        table.push(up()?);
        Ok(())
    });
    let (mut agent, _way) = asking("bench-kubernetes")?;
    agent.wait("the API server tells of pods", |status| {
        let api_server = status.node.api_server.as_ref();
        api_server.is_some_and(|it| it.is_followed())
    })?;
    let namespace = Namespace::new("bench")?;
    say(&format!(
        "kubernetes: names of {N_NAMES} containers, one after the other"
    ));
    table.extend(names(&agent, &namespace)?);
    say(&format!("kubernetes: {N_KILLS} kills, one after the other"));
    table.push(kills(&agent, &namespace)?);
    say(&format!(
        "kubernetes: {N_KILLS} kills in one container, a second apart"
    ));
    table.push(counted(&agent, &namespace)?);
    let resident = machine::resident(agent.pid().context("the agent runs")?)?;
    table.push(Row::value(
        &format!("resident memory, {N_NAMES} pods of kubelet"),
        1,
        mebibytes(resident),
        "",
        Verdict::NoBudget,
    ));
    agent.stop()
}

/// From its first program until pods can be made, as the cluster was brought up with all programs built.
fn up() -> Result<Row> {
    let path = cluster()?.join("up-milliseconds");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let took = Duration::from_millis(text.parse()?);
    Ok(Row::value(
        "cluster of one node, until pods can be made",
        1,
        show(took),
        &show(UP_BUDGET),
        Verdict::of(took <= UP_BUDGET),
    ))
}

/// From the first process of a container, by the time of a file that it makes, until the agent shows its name.
fn names(agent: &Agent, namespace: &Namespace) -> Result<Vec<Row>> {
    let stamps = agent.dir.join("stamps");
    fs::create_dir(&stamps)?;
    let mut delays = Vec::new();
    let mut n_before = 0;
    for n in 0..N_NAMES {
        let name = format!("name-{n}");
        let mut main = container("main", &format!(": > /stamps/{name}; exec sleep 3600"));
        main["volumeMounts"] = json!([{"name": "stamps", "mountPath": "/stamps"}]);
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [main],
                "volumes": [{"name": "stamps", "hostPath": {"path": stamps}}],
            },
        });
        namespace.create(&pod)?;
        let asked = SystemTime::now();
        let named = loop {
            let status = agent.status()?;
            let now = SystemTime::now();
            ensure!(
                now < asked + PATIENCE,
                "{name} has no name; log:\n{}",
                agent.log_tail()
            );
            let mut pods = status.pods.iter().filter(|it| it.name == name);
            if pods.any(|it| it.containers.iter().any(|it| it.name == "main")) {
                break now;
            }
            thread::sleep(POLL);
        };
        let began = until("its first process runs", || {
            Ok(fs::metadata(stamps.join(&name))?.modified()?)
        })?;
        match named.duration_since(began) {
            Ok(delay) => delays.push(delay),
            Err(_before) => {
                n_before += 1;
                delays.push(Duration::ZERO);
            }
        }
    }
    Ok(vec![
        Row::durations(
            "first process of a container to its name shown",
            &Samples::new(delays),
            Some(NAME_BUDGET),
        ),
        Row::value(
            "of them named before their first process",
            N_NAMES,
            n_before,
            "",
            Verdict::NoBudget,
        ),
    ])
}

/// From the kill in the kernel until `kubectl` prints its Event.
fn kills(agent: &Agent, namespace: &Namespace) -> Result<Row> {
    let (mut kubectl, shown) = watch(namespace)?;
    let delays = (0..N_KILLS).map(|n| {
        let name = format!("kill-{n}");
        namespace.run(&name, "tail /dev/zero; exec sleep 3600", "16Mi")?;
        let shown_at = loop {
            let (pod, at) = shown.recv_timeout(PATIENCE).context("no Event is shown")?;
            if pod == name {
                break at;
            }
        };
        let is_it = |it: &&EventRecord| it.event.pod.as_ref().is_some_and(|it| it.name == name);
        let records = agent.events("oom")?;
        let record = records.iter().find(is_it).context("it has no record")?;
        let killed = Duration::from_nanos(record.event.boottime_ns);
        namespace.kubectl(&["delete", "pod", &name, "--wait=false"], None)?;
        Ok(shown_at.saturating_sub(killed))
    });
    let delays: Result<Vec<Duration>> = delays.collect();
    kubectl.kill()?;
    kubectl.wait()?;
    Ok(Row::durations(
        "OOM kill to its Event, shown by kubectl",
        &Samples::new(delays?),
        Some(EVENT_BUDGET),
    ))
}

/// From the kill in the kernel until a page of metrics has counted it. Apart from [`kills`], so that asking for pages
/// delays no Event.
fn counted(agent: &Agent, namespace: &Namespace) -> Result<Row> {
    let script = format!(
        "n=0; while [ $n -lt {N_KILLS} ]; do sleep 1; tail /dev/zero; n=$((n+1)); done; exec sleep 3600"
    );
    namespace.run("counted", &script, "16Mi")?;
    let labels = [
        ("namespace", &*namespace.name),
        ("pod", "counted"),
        ("container", "main"),
    ];
    let mut shown_at = Vec::new();
    let mut last_change = machine::boottime()?;
    while shown_at.len() < N_KILLS {
        let text = scrape::text(&agent.metrics, "/metrics")?;
        let now = machine::boottime()?;
        let page = Exposition::parse(&text)?;
        let n = page.value("ballast_oom_kills_total", &labels);
        while n.is_some_and(|it| it > shown_at.len() as f64) {
            shown_at.push(now);
            last_change = now;
        }
        ensure!(
            now < last_change + PATIENCE,
            "only {} of {N_KILLS} kills are counted; log:\n{}",
            shown_at.len(),
            agent.log_tail()
        );
        thread::sleep(POLL);
    }
    let mut records = agent.events("oom")?;
    records.retain(|it| {
        let pod = it.event.pod.as_ref();
        pod.is_some_and(|it| it.name == "counted")
    });
    ensure!(
        records.len() == shown_at.len(),
        "{} records of {} kills",
        records.len(),
        shown_at.len()
    );
    let killed_at = records
        .iter()
        .map(|it| Duration::from_nanos(it.event.boottime_ns));
    let delays = shown_at.iter().zip(killed_at);
    let delays = delays.map(|(shown_at, killed_at)| shown_at.saturating_sub(killed_at));
    Ok(Row::durations(
        "OOM kill to its counter, shown by a page of metrics",
        &Samples::new(delays.collect()),
        None,
    ))
}

/// kubectl, which prints Events as they come, and the pods of kills with the boottime of their line.
fn watch(namespace: &Namespace) -> Result<(Child, Receiver<(String, Duration)>)> {
    let mut kubectl = namespace
        .command()
        .args(["get", "events", "--watch", "--no-headers", "--output"])
        .arg("custom-columns=REASON:.reason,POD:.involvedObject.name")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("start kubectl")?;
    let lines = BufReader::new(kubectl.stdout.take().context("it was piped")?).lines();
    let (sender, shown) = mpsc::channel();
    thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let Ok(at) = machine::boottime() else { return };
            if let Some((REASON, pod)) = line.split_once(char::is_whitespace) {
                // Whoever listened is gone.
                if sender.send((pod.trim().to_owned(), at)).is_err() {
                    return;
                }
            }
        }
    });
    Ok((kubectl, shown))
}
