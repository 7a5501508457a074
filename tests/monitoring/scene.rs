//! Three live agents on this machine and a Prometheus that scrapes them once a second, as three nodes
//! of a cluster in which things go wrong: pods that throttle, run out of memory, are evicted, are
//! refused, come and go.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::dashboards::{self, Window};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::prometheus::Prometheus;
use ballast_tests::scratch::Scratch;
use ballast_tests::{cgroup, scrape};
use nix::sys::stat::{major, minor};
use serde_json::json;

use super::drop_in::{self, PodFacts};

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
    /// Starts it, with more recording rules than those of this project.
    pub(super) fn start(more_rules: &str) -> Result<Self> {
        let mut agents = (1..=3).map(agent).collect::<Result<Vec<_>>>()?;
        for agent in &mut agents {
            agent.start()?;
        }
        count_disk_io(&agents[0])?;
        let scratch = Scratch::new("scene")?;
        let more_rules = scratch.write("more_rules.yaml", more_rules)?;
        let kube_state = drop_in::serve_kube_state(&facts(agents.len()))?;
        let config = configuration(&agents, &more_rules, &kube_state)?;
        let prometheus = Prometheus::start(scratch, &config, &["--query.lookback-delta=5s"])?;
        let scene = Self {
            prometheus,
            agents,
            began: SystemTime::now(),
        };
        for pod in lasting_pods()? {
            scene.agents[0].put(&pod)?;
        }
        for (agent, number) in scene.agents.iter().zip(1..) {
            let cpu = if number == 1 { "150m" } else { "30m" };
            agent.put(&with_network(&format!("frontend-{number}"), cpu))?;
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
            meddle(busy)?;
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

/// An agent that pins CPUs and evicts, as that of node `number`; pods of the first two have little
/// memory. The third pins memory, too: it can reserve no more than its NUMA node has, which may be
/// less than the machine has.
fn agent(number: usize) -> Result<Agent> {
    let mut agent = Agent::new(&format!("scene{number}"))?
        .with_kubelet("cpuManagerPolicy: static")
        .with_kubelet("topologyManagerPolicy: single-numa-node")
        .with_kubelet("kubeReserved: {cpu: 200m}")
        .with_kubelet("evictionSoft: {memory.available: 200Mi}")
        .with_kubelet("evictionSoftGracePeriod: {memory.available: 30s}")
        .with_kubelet("evictionPressureTransitionPeriod: 5s");
    agent = match number {
        1 => agent.with_memory(ROOM, THRESHOLD)?,
        2 => agent.with_memory(2 * ROOM, THRESHOLD)?,
        _ => agent
            .with_kubelet("systemReserved: {memory: 72Mi}")
            .with_kubelet("memoryManagerPolicy: Static")
            // What is reserved and the threshold of hard eviction.
            .with_kubelet("reservedMemory: [{numaNode: 0, limits: {memory: 200Mi}}]"),
    };
    agent.eviction_hard = format!(
        "{{memory.available: {THRESHOLD}Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, \
         pid.available: 1%}}"
    );
    agent.metrics = scrape::free_address()?;
    Ok(agent)
}

/// Cgroup v1 counts what is read from and written to a disk only once some cgroup has a limit for it
/// (lazily since Linux 6.10, block/blk-throttle.c): sets one that nothing reaches.
fn count_disk_io(agent: &Agent) -> Result<()> {
    if cgroup::is_unified() {
        return Ok(());
    }
    let device = fs::metadata(agent.state())?.dev();
    let limit = format!("{}:{} {}", major(device), minor(device), 1_u64 << 40);
    let root = agent.status()?.node.cgroup.root.context("no root")?;
    cgroup::write("blkio", &root, "blkio.throttle.read_bps_device", &limit)
}

/// Writes what is not its own, as a second manager of the same node would.
fn meddle(agent: &Agent) -> Result<()> {
    let (file, value) = match cgroup::is_unified() {
        true => ("cpu.weight", "7"),
        false => ("cpu.shares", "77"),
    };
    let status = agent.status()?;
    let pod = status.pods.iter().find(|it| it.name == "frontend-1");
    let path = pod.and_then(|it| it.cgroup_path.as_ref());
    path.map_or(Ok(()), |path| cgroup::write("cpu", path, file, value))
}

/// The jobs that the texts of this project recommend: `ballast` for the agent's own page, and
/// `kubelet` for the pages that take the place of kubelet's. A fourth node does not answer.
fn configuration(agents: &[Agent], more_rules: &Path, kube_state: &str) -> Result<String> {
    let nobody = scrape::free_address()?;
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
        {
            "job_name": "kube-state-metrics",
            "honor_labels": true,
            "static_configs": [{"targets": [kube_state], "labels": {"cluster": "demo"}}],
        },
    ]);
    let interval = INTERVAL.as_secs();
    let mut rules = vec![more_rules.to_owned()];
    for name in ["rules.yaml", "alerts.yaml"] {
        rules.push(dashboards::directory().join(name));
    }
    // JSON is YAML.
    Ok(format!(
        "global: {{scrape_interval: {interval}s, evaluation_interval: {interval}s}}\n\
         rule_files: {}\nscrape_configs: {scrapes}\n",
        json!(rules)
    ))
}

/// Pods that last as long as the scene does.
fn lasting_pods() -> Result<Vec<Manifest>> {
    let hog = hog()?;
    let search = format!("exec {hog} cache volumes/shared/index 50331648");
    let thumbnails = format!("while :; do {hog} alloc 50331648; sleep 9; done");
    Ok(vec![
        with_network("basket-1", "60m"),
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
                json!({"cpu": "50m", "memory": "8Mi"}),
                json!({"cpu": "300m", "memory": "24Mi"}),
            )),
        Manifest::new("encoder")
            .in_namespace("media")
            .with("restartPolicy", json!("Always"))
            .container(
                Container::new("main", &[&hog, "leak", "2500000"]).resources(
                    json!({"cpu": "50m", "memory": "16Mi"}),
                    json!({"cpu": "300m", "memory": "64Mi"}),
                ),
            ),
    ])
}

/// Takes all the CPU time that it may have, reads and writes past the page cache, has a network of its
/// own, as pods of a cluster do, and a child that takes too much memory every few seconds.
fn with_network(name: &str, cpu: &str) -> Manifest {
    let script = "ip link add eth0 type veth peer name eth1; ip address add 10.9.0.1/24 dev eth0; \
                  ip link set eth0 up; ip link set eth1 up; \
                  while :; do dd if=/dev/zero of=io bs=4096 count=4 oflag=direct; \
                  dd if=io of=/dev/null bs=4096 count=4 iflag=direct; sleep 1; done 2>/dev/null & \
                  while :; do sleep 5; tail /dev/zero; done & \
                  while :; do :; done";
    let limits = json!({"cpu": cpu, "memory": "32Mi"});
    let requests = json!({"cpu": "20m", "memory": "16Mi"});
    let container = Container::new("web", &["unshare", "-n", "/bin/sh", "-c", script]);
    Manifest::new(name)
        .in_namespace("shop")
        .container(container.resources(requests, limits))
}

/// The pods of the first kind, of so many nodes.
fn facts(n_nodes: usize) -> Vec<PodFacts> {
    let frontends = (1..=n_nodes).map(|node| (format!("frontend-{node}"), node));
    let pods = frontends.chain([("basket-1".to_owned(), 1)]);
    let facts = pods.map(|(pod, node)| PodFacts {
        namespace: "shop",
        pod,
        container: "web",
        node,
    });
    facts.collect()
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
