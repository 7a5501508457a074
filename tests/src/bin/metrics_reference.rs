//! Prints the reference page of all metrics: the tables of the agent, with the panels, alerts and
//! rules of `dashboards/` that use each family. `cargo xtask reference` writes it to
//! `dashboards/METRICS.md`.
#![expect(
    clippy::disallowed_methods,
    reason = "a tool of the build: it reads files and prints"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ballast::observe::metrics::{Area, Buckets, Cardinality, Family, NameAge, Type, Unit, table};
use ballast::observe::stats::table as stats;
use serde_json::Value;

/// The pages of families, by the path they are served under.
const PAGES: &[(&str, &str)] = &[
    (
        "/metrics",
        "What the agent says of itself and of what it decides, and kubelet's families for the duties \
         that the agent has in its place. Kubelet has renamed some: `kubeletMetricNames` says under \
         which name they are sent, both unless it is set. Where the agent knows no names but ids, \
         families per container have the labels `pod_uid` and `container_id` too: each is there in \
         place of a name, and only then.",
    ),
    (
        "/metrics/cadvisor",
        "Usage of the machine and of cgroups, under cAdvisor's names.",
    ),
    (
        "/metrics/resource",
        "Usage of the node, its pods and containers, under kubelet's names. The label `id` is there \
         where a name is missing.",
    ),
];

/// Families that dashboards elsewhere may ask for and that the agent does not have, with the reason.
/// What cAdvisor has beyond them is in `agent/DIVERGENCES.md`.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "ballast_besteffort_*",
        "BestEffort work is not held back in steps",
    ),
    (
        "ballast_config_*",
        "the configuration is read once, at the start",
    ),
    (
        "ballast_cpu_runqueue_*",
        "there is no probe on the way of context switches",
    ),
    (
        "ballast_io_cost_vrate_ratio",
        "the cost model of io.cost is not read",
    ),
    ("ballast_oom_notices_total", "nobody is told before a kill"),
    ("ballast_resctrl_*", "no resctrl groups are made"),
    (
        "ballast_runtime_*",
        "containers are started by the agent itself, not through CRI",
    ),
    ("kubelet_http_*", "only kubelet's own server has them"),
    ("kubelet_image_*", "there are no images"),
    (
        "kubelet_memory_high_relaxed_total",
        "counted as ballast_eviction_actions_total{stage=\"relax\"}",
    ),
    (
        "kubelet_pleg_*",
        "pods are not relisted; ballast_bpf_* has the events",
    ),
    (
        "kubelet_pod_*_resizes, kubelet_pod_resize_*",
        "a new definition is told as an event, PodRedefined",
    ),
    (
        "kubelet_pod_start_*, kubelet_pod_worker_*",
        "ballast_reconcile_lag_seconds says it",
    ),
    (
        "kubelet_preemptions_total",
        "kubelet 1.36 calls it kubelet_preemptions",
    ),
    (
        "kubelet_runtime_operations_*",
        "containers are started by the agent itself, not through CRI",
    ),
    ("kubelet_volume_stats_*", "there are no persistent volumes"),
];

/// Who uses a family, by its name.
type Uses = BTreeMap<String, BTreeSet<String>>;

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    print!("{}", page(&uses(&root.join("dashboards"))?));
    Ok(())
}

fn page(uses: &Uses) -> String {
    let mut page = "<!-- Made by cargo xtask reference. -->\n\n# Metrics\n".to_owned();
    for (path, about) in PAGES {
        let families: Vec<&Family> = match *path {
            "/metrics" => table().iter().collect(),
            "/metrics/cadvisor" => stats::cadvisor().map(|it| &it.family).collect(),
            _ => stats::resource().map(|it| &it.family).collect(),
        };
        write!(page, "\n## {path}\n\n{about}\n\n").expect("a string takes all");
        page += "| family | type | unit | labels | series | meaning | used by |\n";
        page += "| --- | --- | --- | --- | --- | --- | --- |\n";
        for family in families {
            page += &row(family, uses);
        }
    }
    page += "\n## Left out\n\n| family | why |\n| --- | --- |\n";
    for (family, why) in LEFT_OUT {
        writeln!(page, "| `{family}` | {why} |").expect("a string takes all");
    }
    page
}

fn row(family: &Family, uses: &Uses) -> String {
    let labels: Vec<String> = family.labels.iter().map(|it| format!("`{it}`")).collect();
    let used = uses.get(family.name).into_iter().flatten();
    let used: Vec<&str> = used.map(String::as_str).collect();
    let age = match family.age {
        Some(NameAge::Old) => " The old name.",
        Some(NameAge::New) => " The new name.",
        None => "",
    };
    format!(
        "| `{}` | {} | {} | {} | {} | {}{age} | {} |\n",
        family.name,
        kind(family.kind),
        unit(family),
        labels.join(", "),
        cardinality(family.cardinality),
        family.help.replace('|', "\\|"),
        used.join("; ").replace('|', "\\|"),
    )
}

const fn kind(kind: Type) -> &'static str {
    match kind {
        Type::Counter => "counter",
        Type::Gauge => "gauge",
        Type::Histogram(Buckets::Latency) => "histogram, 100 µs to 10 s",
        Type::Histogram(Buckets::Size) => "histogram, 1 MiB to 64 GiB",
        Type::Histogram(Buckets::Count) => "histogram, 1 to 1e6",
        Type::Histogram(Buckets::Kubelet) => "histogram, 5 ms to 10 s",
        Type::Histogram(Buckets::KubeletMillis) => "histogram, 0.05 to 819.2 ms",
    }
}

const fn unit(family: &Family) -> &'static str {
    match (family.unit, family.area) {
        (Unit::Count, _) => "",
        (Unit::Flag, Area::Kubelet) | (Unit::Info, _) => "1",
        (Unit::Flag, _) => "0, 1",
        (Unit::Seconds, _) => "s",
        (Unit::Milliseconds, _) => "ms",
        (Unit::Timestamp, _) => "s since 1970",
        (Unit::Bytes, _) => "bytes",
        (Unit::Ratio, _) => "0 to 1",
        (Unit::Labelled, _) => "label `unit`",
    }
}

const fn cardinality(cardinality: Cardinality) -> &'static str {
    match cardinality {
        Cardinality::Agent => "fixed",
        Cardinality::Container => "per container",
        Cardinality::Resource => "per device resource",
        Cardinality::Pod => "per pod",
        Cardinality::Cgroup => "per cgroup",
        Cardinality::Workload => "per workload",
    }
}

/// What the files of the directory ask for. Nothing of it need be there.
fn uses(directory: &Path) -> Result<Uses> {
    let mut uses = Uses::new();
    let mut names: Vec<_> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .map(|it| it.map(|it| it.path()))
        .collect::<Result<_, _>>()?;
    names.sort();
    for path in names {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let extension = path.extension().unwrap_or_default();
        if extension == "json" {
            let text = fs::read_to_string(&path)?;
            let dashboard: Value =
                serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
            of_panels(&dashboard, &stem, &mut uses);
        } else if extension == "yaml" {
            of_rules(&fs::read_to_string(&path)?, &mut uses);
        }
    }
    Ok(uses)
}

/// Panels, in rows or not: whatever has a title and targets.
fn of_panels(value: &Value, dashboard: &str, uses: &mut Uses) {
    if let (Some(title), Some(targets)) = (value["title"].as_str(), value["targets"].as_array()) {
        for expression in targets.iter().filter_map(|it| it["expr"].as_str()) {
            note(expression, &format!("{dashboard}: {title}"), uses);
        }
    }
    for panel in value["panels"].as_array().into_iter().flatten() {
        of_panels(panel, dashboard, uses);
    }
}

/// Lines of a file of rules belong to the alert or record named last.
fn of_rules(text: &str, uses: &mut Uses) {
    let mut rule = None;
    for line in text.lines().filter(|it| !it.trim_start().starts_with('#')) {
        let key = line.trim_start().trim_start_matches("- ");
        let named = ["alert: ", "record: "];
        match named.iter().find_map(|it| key.strip_prefix(it)) {
            Some(name) => rule = Some(name.trim()),
            None => note(line, rule.unwrap_or_default(), uses),
        }
    }
}

/// Notes every word of an expression that may be a family, without what a histogram's series end in.
fn note(expression: &str, user: &str, uses: &mut Uses) {
    if user.is_empty() {
        return;
    }
    let words = expression.split(|it: char| !it.is_ascii_alphanumeric() && it != '_' && it != ':');
    for word in words.filter(|it| it.contains('_')) {
        let endings = ["_bucket", "_sum", "_count"].into_iter();
        let stems = endings.filter_map(|it| word.strip_suffix(it));
        for name in stems.chain([word]) {
            let users = uses.entry(name.to_owned()).or_default();
            users.insert(user.to_owned());
        }
    }
}
