//! Three live agents on this machine and a Prometheus that scrapes them once a second, as three nodes
//! of a cluster in which things go wrong: pods that throttle, run out of memory, are evicted, are
//! refused, come and go.

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::dashboards::Window;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::prometheus::{Prometheus, Scratch};
use serde_json::json;

/// Between two scrapes, two evaluations of the rules, and two points of a range.
const INTERVAL: Duration = Duration::from_secs(1);

/// What pods of one node have together, and what of it has to be available, MiB.
const ROOM: u64 = 768;
const THRESHOLD: u64 = 128;

/// See the module.
pub(super) struct Scene {
    pub(super) prometheus: Prometheus,
    agents: Vec<Agent>,
    began: SystemTime,
}

impl Scene {
    /// Starts it, with the targets of `more` scraped beside the agents: lines of `scrape_configs`.
    pub(super) fn start(more: &str) -> Result<Self> {
        let mut agents = (1..=3).map(agent).collect::<Result<Vec<_>>>()?;
        for agent in &mut agents {
            agent.start()?;
        }
        let prometheus = Prometheus::start(
            Scratch::new("scene")?,
            &configuration(&agents, more)?,
            &["--query.lookback-delta=5s"],
        )?;
        let scene = Self {
            prometheus,
            agents,
            began: SystemTime::now(),
        };
        for pod in lasting_pods()? {
            scene.agents[0].put(&pod)?;
        }
        for agent in &scene.agents[1..] {
            agent.put(&busy("shop", "frontend", "30m")?)?;
            agent.put(&Manifest::new("proxy").container(Container::idle("proxy")))?;
        }
        Ok(scene)
    }

    /// Goes on for so long: every ten seconds a pod that is refused or evicted, every five one that
    /// ends by itself.
    pub(super) fn play(&self, length: Duration) -> Result<()> {
        let [busy, middling, _] = self.agents.as_slice() else {
            anyhow::bail!("a scene has three agents");
        };
        let started = Instant::now();
        let mut step: u32 = 0;
        while started.elapsed() < length {
            busy.put(&job(&format!("import-{step}")))?;
            if step >= 3 {
                busy.remove_pod(&format!("import-{}", step - 3))?;
            }
            match step % 6 {
                1 => busy.put(&refused(&format!("solver-{step}")))?,
                2 => busy.put(&greedy(&format!("report-{step}"), 100_000_000)?)?,
                3 => busy.put(&fills_its_volume(&format!("export-{step}")))?,
                5 => middling.put(&greedy(&format!("report-{step}"), 60_000_000)?)?,
                _ => {}
            }
            step += 1;
            let next = started + step * Duration::from_secs(5);
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }

    /// All that was seen so far.
    pub(super) fn window(&self, step: Duration) -> Result<Window> {
        Ok(Window {
            start: self.began.duration_since(UNIX_EPOCH)?.as_secs_f64().ceil(),
            end: SystemTime::now()
                .duration_since(UNIX_EPOCH)?
                .as_secs_f64()
                .floor(),
            step,
            rate_interval: 10 * INTERVAL,
        })
    }

    /// Ends the agents, which take down their pods.
    pub(super) fn end(mut self) -> Result<()> {
        self.agents.iter_mut().try_for_each(Agent::stop)
    }
}

/// An agent that pins CPUs and memory and evicts, as that of node `number`.
fn agent(number: usize) -> Result<Agent> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let total: u64 = meminfo
        .lines()
        .find_map(|it| it.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"))
        .context("no MemTotal in /proc/meminfo")?
        .parse()?;
    let room = (ROOM << 10) * if number == 1 { 1 } else { 2 };
    let reserved = total.checked_sub(room).context("too little memory")?;
    let reserved_and_threshold = reserved + (THRESHOLD << 10);
    let mut agent = Agent::new(&format!("scene{number}"))?
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet("memoryManagerPolicy: Static")
        .with_kubelet("topologyManagerPolicy: single-numa-node")
        .with_kubelet(&format!(
            "systemReserved: {{cpu: 200m, memory: {reserved}Ki}}"
        ))
        .with_kubelet(&format!(
            "reservedMemory: [{{numaNode: 0, limits: {{memory: {reserved_and_threshold}Ki}}}}]"
        ))
        .with_kubelet("evictionSoft: {memory.available: 200Mi}")
        .with_kubelet("evictionSoftGracePeriod: {memory.available: 30s}")
        .with_kubelet("evictionPressureTransitionPeriod: 5s");
    agent.eviction_hard = format!(
        "{{memory.available: {THRESHOLD}Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, \
         pid.available: 1%}}"
    );
    // The kernel gives out the port again only after all others.
    agent.metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    Ok(agent)
}

/// The jobs that the texts of this project recommend: `ballast` for the agent's own page, and
/// `kubelet` for the pages that take the place of kubelet's. A fourth node does not answer.
fn configuration(agents: &[Agent], more: &str) -> Result<String> {
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let addresses = agents.iter().map(|it| &it.metrics).chain([&nobody]);
    let targets: Vec<_> = addresses
        .enumerate()
        .map(|(i, address)| {
            let labels = json!({"cluster": "demo", "node": format!("node-{}", i + 1)});
            json!({"targets": [address], "labels": labels})
        })
        .collect();
    let with_path =
        json!([{"source_labels": ["__metrics_path__"], "target_label": "metrics_path"}]);
    let answering = &targets[..agents.len()];
    let scrapes = json!([
        {
            "job_name": "ballast",
            "honor_labels": true,
            "static_configs": targets,
            // On one machine every node sees the kills of the others as those of host processes.
            "metric_relabel_configs": [{
                "source_labels": ["__name__", "scope", "slice"],
                "separator": ";",
                "regex": "ballast_oom_(scope|host)_kills_total;(other;|;other)",
                "action": "drop",
            }],
        },
        {
            "job_name": "kubelet-cadvisor",
            "honor_labels": true,
            "metrics_path": "/metrics/cadvisor",
            "static_configs": answering,
            "relabel_configs": with_path,
            "metric_relabel_configs": [{"target_label": "job", "replacement": "kubelet"}],
        },
        {
            "job_name": "kubelet",
            "honor_labels": true,
            "static_configs": answering,
            "relabel_configs": with_path,
            "metric_relabel_configs": [
                {"source_labels": ["__name__"], "regex": "(kubelet|process)_.*", "action": "keep"},
            ],
        },
    ]);
    let interval = INTERVAL.as_secs();
    let mut rules = Vec::new();
    for name in ["rules.yaml", "alerts.yaml"] {
        let path = ballast_tests::dashboards::directory().join(name);
        rules.push(path.to_str().context("a path in UTF-8")?.to_owned());
    }
    // JSON is YAML.
    Ok(format!(
        "global: {{scrape_interval: {interval}s, evaluation_interval: {interval}s}}\n\
         rule_files: {}\nscrape_configs: {scrapes}\n{more}",
        json!(rules)
    ))
}

/// Pods that last as long as the scene does.
fn lasting_pods() -> Result<Vec<Manifest>> {
    let hog = hog()?;
    let search = format!("exec {hog} cache volumes/shared/index 50331648");
    let thumbnails = format!("while :; do {hog} alloc 50331648; sleep 9; done");
    Ok(vec![
        busy("shop", "frontend", "150m")?,
        busy("shop", "basket", "60m")?,
        Manifest::new("checkout").in_namespace("shop").container(
            Container::sh(
                "app",
                "while :; do i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; sleep 0.2; done",
            )
            .resources(json!({}), json!({"cpu": "1", "memory": "64Mi"})),
        ),
        Manifest::new("search").in_namespace("shop").container(
            Container::sh("index", &search).resources(
                json!({"cpu": "50m"}),
                json!({"cpu": "200m", "memory": "40Mi"}),
            ),
        ),
        Manifest::new("thumbnailer")
            .in_namespace("media")
            .with_overhead(8)
            .container(Container::sh("worker", &thumbnails).resources(
                json!({"memory": "8Mi"}),
                json!({"cpu": "300m", "memory": "24Mi"}),
            )),
        Manifest::new("encoder")
            .in_namespace("media")
            .with("restartPolicy", json!("Always"))
            .container(
                Container::new("main", &[&hog, "leak", "2500000"]).resources(
                    json!({"memory": "16Mi"}),
                    json!({"cpu": "300m", "memory": "64Mi"}),
                ),
            ),
    ])
}

/// Takes all the CPU time that it may have.
fn busy(namespace: &str, name: &str, cpu: &str) -> Result<Manifest> {
    let limits = json!({"cpu": cpu, "memory": "32Mi"});
    let requests = json!({"cpu": "20m", "memory": "16Mi"});
    let container = Container::sh("web", "while :; do :; done").resources(requests, limits);
    Ok(Manifest::new(name)
        .in_namespace(namespace)
        .container(container))
}

/// Takes memory without a limit, so many bytes a second.
fn greedy(name: &str, rate: u64) -> Result<Manifest> {
    let container = Container::new("main", &[&hog()?, "leak", &rate.to_string()]);
    Ok(Manifest::new(name)
        .in_namespace("batch")
        .container(container))
}

/// Writes more to its volume than it said.
fn fills_its_volume(name: &str) -> Manifest {
    let script = "head -c 16777216 /dev/zero >volumes/shared/out; exec sleep 3600";
    let volume = json!([{"name": "shared", "emptyDir": {"sizeLimit": "4Mi"}}]);
    Manifest::new(name)
        .in_namespace("batch")
        .with("volumes", volume)
        .container(Container::sh("main", script))
}

/// A few processes, then the end.
fn job(name: &str) -> Manifest {
    let script = "for i in 1 2 3 4 5; do /bin/true; sleep 0.3; done";
    let limits = json!({"cpu": "100m", "memory": "16Mi"});
    Manifest::new(name)
        .in_namespace("batch")
        .container(Container::sh("main", script).resources(json!({}), limits))
}

/// Asks for more CPUs of its own than any node has.
fn refused(name: &str) -> Manifest {
    let limits = json!({"cpu": "4", "memory": "16Mi"});
    Manifest::new(name)
        .in_namespace("research")
        .container(Container::idle("main").resources(json!({}), limits))
}
