//! Expressions that others ask of kubelet: their recording rules and the queries of their dashboards,
//! below `data/monitoring/drop_in`. Series of kube-state-metrics that they join with come from a
//! target of the test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use ballast_tests::dashboards::Window;
use ballast_tests::prometheus::Prometheus;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The sets, each a file.
const SETS: [&str; 2] = ["kubernetes-mixin", "grafana-dashboards-kubernetes"];

/// What stands for the variables of these dashboards, in this order: no name is the beginning of one
/// after it.
const VARIABLES: [(&str, &str); 12] = [
    ("${created_by}", "frontend-1"),
    ("${namespace}", "shop"),
    ("${pod}", "frontend-1"),
    ("$created_by", "frontend-1"),
    ("$cluster", "demo"),
    ("$namespace", "shop"),
    ("$instance", ".*"),
    ("$workload", "frontend"),
    ("$volume", "data"),
    ("$type", "deployment"),
    ("$job", ".*"),
    ("$node", "node-1"),
];

/// The expressions of one set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    #[serde(default)]
    rules: Vec<Rule>,
    /// By dashboard.
    queries: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    record: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    expr: String,
}

/// Series that the agent does not have, and why nobody has to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NotApplicable {
    /// The beginning of their names.
    series: String,
    reason: String,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/monitoring/drop_in")
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> Result<T> {
    let path = directory().join(format!("{name}.yaml"));
    let text = fs::read_to_string(&path);
    let parsed = text
        .map_err(anyhow::Error::from)
        .and_then(|it| Ok(serde_yaml_ng::from_str(&it)?));
    parsed.with_context(|| path.display().to_string())
}

/// Every set, by name.
pub(super) fn sets() -> Result<BTreeMap<&'static str, Set>> {
    SETS.into_iter()
        .map(|name| Ok((name, read(name)?)))
        .collect()
}

/// The recording rules of all sets as a file for Prometheus.
pub(super) fn rules(sets: &BTreeMap<&str, Set>) -> String {
    let groups: Vec<_> = sets
        .iter()
        .map(|(name, set)| json!({"name": name, "rules": set.rules}))
        .collect();
    json!({ "groups": groups }).to_string()
}

/// What is wrong with the answers; nothing is if each expression has one, or has a reason for none.
pub(super) fn check(
    sets: &BTreeMap<&str, Set>,
    prometheus: &Prometheus,
    window: Window,
) -> Result<BTreeSet<String>> {
    let reasons: Vec<NotApplicable> = read("not_applicable")?;
    let mut wrong = BTreeSet::new();
    let mut named = BTreeSet::new();
    for (name, set) in sets {
        let (mut n_answered, mut n_excused) = (0, 0);
        for (dashboard, queries) in &set.queries {
            for query in queries {
                let asked = fill_in(query, window);
                let answer = prometheus.query_range(&asked, [window.start, window.end], 5.0);
                let has_data = answer.as_ref().is_ok_and(|it| super::live::has_data(it));
                let excuse = reasons.iter().find(|it| query.contains(&it.series));
                let at = format!("{name}: {dashboard}: {query}");
                match (has_data, excuse) {
                    (true, None) => n_answered += 1,
                    (false, Some(excuse)) => {
                        n_excused += 1;
                        named.insert(&excuse.series);
                    }
                    (true, Some(excuse)) => {
                        wrong.insert(format!("{at}: has data, and is excused: {}", excuse.reason));
                    }
                    (false, None) => {
                        let error = answer.err().map(|it| format!(": {:#}", it.root_cause()));
                        wrong.insert(format!("{at}: no data{}", error.unwrap_or_default()));
                    }
                }
            }
        }
        println!("{name}: {n_answered} expressions answered, {n_excused} not applicable");
    }
    for it in &reasons {
        if !named.contains(&it.series) {
            wrong.insert(format!("no expression names {}", it.series));
        }
    }
    Ok(wrong)
}

fn fill_in(query: &str, window: Window) -> String {
    let own = ["$__rate_interval", "$__range", "$resolution", "$__interval"];
    let mut query = own
        .into_iter()
        .fold(query.to_owned(), |query, it| match it {
            "$__rate_interval" | "$__range" => query.replace(it, &window.fill_in(it)),
            _ => query.replace(it, "10s"),
        });
    for (variable, value) in VARIABLES {
        query = query.replace(variable, value);
    }
    query.replace("$pod", "frontend-1").replace("[5m]", "[30s]")
}

/// A pod that lasts, as kube-state-metrics shows it.
pub(super) struct PodFacts {
    pub(super) namespace: &'static str,
    pub(super) pod: String,
    pub(super) container: &'static str,
    pub(super) node: usize,
}

/// The address of a target that shows what kube-state-metrics would of these pods, for as long as
/// this process lives. Each is of a ReplicaSet of its own, all of the Deployment that the name
/// begins with.
pub(super) fn serve_kube_state(pods: &[PodFacts]) -> Result<String> {
    let page = kube_state(pods)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            // A scrape that is broken off is tried again.
            let _tried_again = stream.and_then(|mut stream| {
                let mut lines = BufReader::new(stream.try_clone()?).lines();
                while lines.next().transpose()?.is_some_and(|it| !it.is_empty()) {}
                let length = page.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
                     Content-Length: {length}\r\nConnection: close\r\n\r\n{page}"
                )
            });
        }
    });
    Ok(address)
}

fn kube_state(pods: &[PodFacts]) -> Result<String> {
    let mut page = String::new();
    let nodes: BTreeSet<_> = pods.iter().map(|it| it.node).collect();
    for node in nodes {
        writeln!(page, "kube_node_info{{node=\"node-{node}\"}} 1")?;
        for (resource, unit, amount) in [
            ("cpu", "core", 2.0),
            ("memory", "byte", 8e8),
            ("pods", "integer", 110.0),
        ] {
            for family in ["allocatable", "capacity"] {
                writeln!(
                    page,
                    "kube_node_status_{family}{{node=\"node-{node}\",resource=\"{resource}\",unit=\"{unit}\"}} {amount}"
                )?;
            }
        }
    }
    for it in pods {
        let PodFacts {
            namespace,
            pod,
            container,
            node,
        } = it;
        let deployment = pod.split_once('-').map_or(pod.as_str(), |(name, _)| name);
        let of = format!("namespace=\"{namespace}\",pod=\"{pod}\"");
        writeln!(
            page,
            "kube_pod_info{{{of},node=\"node-{node}\",host_network=\"false\",created_by_kind=\"ReplicaSet\",created_by_name=\"{pod}\"}} 1\n\
             kube_pod_owner{{{of},owner_kind=\"ReplicaSet\",owner_name=\"{pod}\"}} 1\n\
             kube_replicaset_owner{{namespace=\"{namespace}\",replicaset=\"{pod}\",owner_kind=\"Deployment\",owner_name=\"{deployment}\"}} 1\n\
             kube_pod_status_phase{{{of},phase=\"Running\"}} 1"
        )?;
        let of = format!("{of},container=\"{container}\",node=\"node-{node}\"");
        for (resource, unit, request, limit) in [
            ("cpu", "core", 0.02, 0.15),
            ("memory", "byte", 1.6e7, 3.2e7),
        ] {
            let labels = format!("{of},resource=\"{resource}\",unit=\"{unit}\"");
            writeln!(
                page,
                "kube_pod_container_resource_requests{{{labels}}} {request}\n\
                 kube_pod_container_resource_limits{{{labels}}} {limit}"
            )?;
        }
    }
    Ok(page)
}
