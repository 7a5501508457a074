//! What a real kubelet goes by: its settings, as its own process and files tell, and what pods ask for, as its API
//! server tells.

use std::fs;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::eviction::Signal;
use ballast::model::quantity::Quantity;
use ballast::model::status::{EvictionStanding, PodEntry, ResourceBounds, Standing, Status};
use ballast::units::{Bytes, MilliCpu};
use ballast_tests::agent::Agent;
use ballast_tests::cluster::{
    NAME, Namespace, StaticPod, agent, asking, cluster, container, new_agent, restart,
    restart_without,
};
use ballast_tests::kube::make;
use ballast_tests::wait::until;
use serde_json::{Map, Value, json};

use super::names::killed;

/// Of its managers, which start with another policy only without them.
pub(super) const STATES: [&str; 2] = ["kubelet/cpu_manager_state", "kubelet/memory_manager_state"];

/// The file that kubelet is started with, and a drop-in; as they were, when it is dropped.
pub(super) struct Configuration {
    path: PathBuf,
    text: String,
}

impl Configuration {
    pub(super) fn new() -> Result<Self> {
        let path = cluster()?.join("kubelet.json");
        let text = fs::read_to_string(&path).context("kubelet's file")?;
        Ok(Self { path, text })
    }

    /// With these fields in place of its own.
    pub(super) fn set(&self, fields: Value) -> Result<()> {
        let mut all: Map<String, Value> = serde_json::from_str(&self.text)?;
        all.extend(fields.as_object().context("fields")?.clone());
        fs::write(&self.path, Value::from(all).to_string())?;
        Ok(())
    }

    /// A drop-in with these fields.
    fn drop_in(&self, fields: &Value) -> Result<()> {
        let mut all: Map<String, Value> = serde_json::from_str(&self.text)?;
        all.retain(|name, _| matches!(name.as_str(), "apiVersion" | "kind"));
        all.extend(fields.as_object().context("fields")?.clone());
        fs::write(self.drop_in_path(), Value::from(all).to_string())?;
        Ok(())
    }

    fn drop_in_path(&self) -> PathBuf {
        self.path.with_file_name("kubelet.conf.d/50-test.conf")
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        // There may be none.
        let _ = fs::remove_file(self.drop_in_path());
        let restored = fs::write(&self.path, &self.text).map_err(anyhow::Error::from);
        if let Err(error) = restored.and_then(|()| restart_without("kubelet", &STATES)) {
            eprintln!("restore kubelet: {error:#}");
        }
    }
}

/// Bytes of memory that are kept from pods for the hard threshold alone, which is shown, too.
pub(super) fn check_memory(status: &Status, bytes: u64) -> Result<()> {
    check_reserved(status, bytes, bytes)
}

/// Bytes of memory: the hard threshold, and what is kept from pods for that and for daemons together.
fn check_reserved(status: &Status, threshold: u64, reserved: u64) -> Result<()> {
    let pressure = status.node.pressure.as_ref().context("not read yet")?;
    let mut signals = pressure.signals.iter();
    let memory = signals.find(|it| it.signal == Signal::MemoryAvailable);
    let memory = memory.context("no memory.available")?;
    let amounts: Vec<_> = memory
        .thresholds
        .iter()
        .map(|it| (it.is_hard, it.amount))
        .collect();
    let threshold = i64::try_from(threshold).ok();
    ensure!(amounts == [(true, threshold)], "{memory:?}");
    let resource = status.node.resources.get("memory").context("no memory")?;
    let left = resource.capacity.checked_sub(reserved);
    ensure!(
        (resource.reserved, resource.allocatable) == (Some(reserved), left),
        "{resource:?}"
    );
    Ok(())
}

/// Nobody has told the agent of kubelet's file.
#[cfg_attr(feature = "privileged", test)]
fn what_kubelet_is_run_by_is_shown_and_followed_when_it_is_restarted() -> Result<()> {
    let configuration = Configuration::new()?;
    let mut agent = new_agent("cluster-settings")?;
    agent.eviction_hard = "{}".to_owned();
    agent.start()?;
    let file = configuration.path.display().to_string();
    let kubelet = until("its settings are shown", || {
        let status = agent.status()?;
        check_memory(&status, 100 << 20)?;
        status.node.kubelet.context("no kubelet")
    })?;
    ensure!(
        kubelet.files == [&*file] && kubelet.changed.is_empty(),
        "{kubelet:?}"
    );
    let text = agent.command(&["explain", "node"])?;
    let line = format!("kubelet (pid {}) goes by {file}", kubelet.pid);
    ensure!(text.lines().any(|it| it == line), "{text}");
    let warnings = agent.status()?.warnings;
    ensure!(
        !warnings.iter().any(|it| it.contains("threshold")),
        "{warnings:?}"
    );

    configuration.set(json!({
        "evictionHard": {"memory.available": "200Mi"},
        "kubeReserved": {"memory": "100Mi"},
    }))?;
    let status = until("that the file is newer is told", || {
        let status = agent.status()?;
        let mut warnings = status.warnings.iter();
        let told = format!("{file} was written after it started");
        ensure!(
            warnings.any(|it| it.ends_with(&told)),
            "{:?}",
            status.warnings
        );
        Ok(status)
    })?;
    check_memory(&status, 100 << 20).context("until it is restarted")?;
    restart("kubelet")?;
    until("it goes by what it was started with", || {
        let status = agent.status()?;
        check_reserved(&status, 200 << 20, 300 << 20)?;
        let after = status.node.kubelet.context("no kubelet")?;
        ensure!(
            after.pid != kubelet.pid && after.changed.is_empty(),
            "{after:?}"
        );
        Ok(())
    })?;
    let text = agent.command(&["status"])?;
    let is_sum = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        matches!(words.as_slice(), ["memory", _, "300Mi", ..])
    };
    ensure!(text.lines().any(is_sum), "{text}");
    let text = agent.command(&["explain", "node"])?;
    ensure!(text.lines().any(is_sum), "{text}");
    let words: Vec<_> = text.split_whitespace().collect();
    let threshold = ["at", "once", "200Mi"];
    ensure!(words.windows(3).any(|it| it == threshold), "{text}");

    configuration.drop_in(&json!({"evictionHard": {"memory.available": "250Mi"}}))?;
    restart("kubelet")?;
    let drop_in = configuration.drop_in_path().display().to_string();
    until("its drop-in comes on top", || {
        let status = agent.status()?;
        check_reserved(&status, 250 << 20, 350 << 20)?;
        let kubelet = status.node.kubelet.context("no kubelet")?;
        ensure!(kubelet.files == [&*file, &*drop_in], "{kubelet:?}");
        Ok(())
    })
}

/// Nobody has told the agent of the socket, which is where no runtime has it by default.
#[cfg_attr(feature = "privileged", test)]
fn the_runtime_that_kubelet_names_is_asked() -> Result<()> {
    let mut agent = new_agent("cluster-runtime")?;
    agent.is_as_shipped = true;
    agent.start()?;
    let socket = cluster()?.join("containerd.sock").display().to_string();
    until("the runtime is shown", || {
        let runtime = agent.status()?.node.runtime.context("not asked yet")?;
        ensure!(runtime.is_connected(), "{runtime:?}");
        ensure!(
            (runtime.endpoint.as_ref(), runtime.name.as_deref())
                == (Some(&socket), Some("containerd")),
            "{runtime:?}"
        );
        Ok(())
    })?;
    let namespace = Namespace::new("runtime")?;
    killed(&agent, &namespace, "named").map(drop)
}

/// It was told another `cgroupRoot`, and nobody has told the agent of either.
#[cfg_attr(feature = "privileged", test)]
fn a_kubelet_with_another_root_is_followed_and_no_kill_is_told_again() -> Result<()> {
    let configuration = Configuration::new()?;
    let mut agent = new_agent("cluster-root")?;
    agent.knows_root = false;
    agent.start()?;
    let namespace = Namespace::new("root")?;
    let followed = |root: &str| {
        until("the tree of kubelet is followed", || {
            let found = agent.status()?.node.cgroup.root;
            ensure!(found.as_deref() == Some(root), "{found:?}");
            Ok(())
        })
    };
    let first = format!("/{NAME}");
    let other = format!("{first}/other");
    make(&other)?;
    let kill = |name: &str| killed(&agent, &namespace, name).map(|_| ());
    followed(&first)?;
    kill("before")?;
    for (name, root) in [("there", &other), ("back", &first)] {
        configuration.set(json!({"cgroupRoot": root}))?;
        restart("kubelet")?;
        followed(root)?;
        kill(name)?;
    }
    thread::sleep(2 * GRACE);
    let kills = agent.events("oom")?;
    let of: Vec<_> = kills
        .iter()
        .filter_map(|it| it.event.pod.as_ref())
        .collect();
    let of: Vec<_> = of.iter().map(|it| &*it.name).collect();
    ensure!(of == ["before", "there", "back"], "{kills:#?}");
    ensure!(kills.len() == of.len(), "{kills:#?}");
    Ok(())
}

/// A priority class of the cluster, gone when it is dropped.
struct PriorityClass<'a> {
    kubectl: &'a Namespace,
    name: &'static str,
}

impl<'a> PriorityClass<'a> {
    fn new(kubectl: &'a Namespace, name: &'static str, value: i32) -> Result<Self> {
        let value = format!("--value={value}");
        kubectl.kubectl(&["create", "priorityclass", name, &value], None)?;
        Ok(Self { kubectl, name })
    }
}

impl Drop for PriorityClass<'_> {
    fn drop(&mut self) {
        let delete = ["delete", "priorityclass", self.name];
        if let Err(error) = self.kubectl.kubectl(&delete, None) {
            eprintln!("remove priority class {}: {error:#}", self.name);
        }
    }
}

/// What a container, a pod or its overhead has of a resource in this list; 0: nothing.
fn amount(list: &Value, resource: &str) -> Result<u64> {
    let Some(text) = list[resource].as_str() else {
        return Ok(0);
    };
    let quantity: Quantity = text.parse()?;
    Ok(match resource {
        "cpu" => quantity.millis(),
        _ => quantity.units(),
    })
}

/// What a pod of this test or of the cluster requests, none of which has resources as a whole: the containers and
/// sidecars together, or an init container with the sidecars before it.
fn requested_by(pod: &Value, resource: &str) -> Result<u64> {
    let requests = |container: &Value| amount(&container["resources"]["requests"], resource);
    let list = |field: &str| pod["spec"][field].as_array().cloned().unwrap_or_default();
    let mut sum = 0;
    for it in list("containers") {
        sum += requests(&it)?;
    }
    let (mut sidecars, mut peak) = (0, 0);
    for it in list("initContainers") {
        let own = requests(&it)?;
        peak = peak.max(sidecars + own);
        if it["restartPolicy"] == "Always" {
            sidecars += own;
        }
    }
    let overhead = amount(&pod["spec"]["overhead"], resource)?;
    Ok((sum + sidecars).max(peak) + overhead)
}

/// The sums of the status document are those of all pods that are bound and not over.
fn check_requested(agent: &Agent, namespace: &Namespace) -> Result<()> {
    let text = namespace.kubectl(
        &["get", "pods", "--all-namespaces", "--output", "json"],
        None,
    )?;
    let all: Value = serde_json::from_str(&text)?;
    let all = all["items"].as_array().context("no list")?;
    let is_over = |pod: &Value| {
        matches!(
            pod["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        )
    };
    let going = all
        .iter()
        .filter(|it| !it["spec"]["nodeName"].is_null() && !is_over(it));
    let resources = agent.status()?.node.resources;
    let shown = |name: &str| resources.get(name).and_then(|it| it.requested);
    ensure!(
        shown("pods") == Some(going.clone().count() as u64),
        "{:?}",
        shown("pods")
    );
    for resource in ["cpu", "memory"] {
        let requested = going.clone().map(|it| requested_by(it, resource));
        let sum: u64 = requested.sum::<Result<u64>>()?;
        ensure!(
            shown(resource) == Some(sum),
            "{resource}: {:?} of {sum}",
            shown(resource)
        );
    }
    Ok(())
}

/// Usage above requests goes first, then lower priority: so who is below its request is the last, and a critical pod is
/// none of them.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_stands_where_kubelet_would_take_it() -> Result<()> {
    let (agent, _way) = asking("cluster-standing")?;
    let namespace = Namespace::new("standing")?;
    let _class = PriorityClass::new(&namespace, "standing-urgent", 1000)?;
    // Files in memory are in use as long as they are there.
    let uses = "dd if=/dev/zero of=/dev/shm/used bs=1M count=16 && exec sleep 3600";
    let with = |mut container: Value, requests: Value| {
        container["resources"] = json!({"requests": requests});
        container
    };
    let create = |name: &str, class: Option<&str>, spec: Value| {
        let mut spec = spec;
        spec["terminationGracePeriodSeconds"] = json!(0);
        spec["priorityClassName"] = json!(class);
        let metadata = json!({"name": name});
        namespace
            .create(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    };
    create(
        "plain",
        None,
        json!({"containers": [container("main", uses)]}),
    )?;
    let small = json!({"cpu": "10m", "memory": "1Mi"});
    let main = with(container("main", uses), small);
    create(
        "urgent",
        Some("standing-urgent"),
        json!({"containers": [main]}),
    )?;
    let mut beside = with(
        container("beside", "exec sleep 3600"),
        json!({"memory": "32Mi"}),
    );
    beside["restartPolicy"] = json!("Always");
    let before = with(
        container("before", "true"),
        json!({"cpu": "50m", "memory": "40Mi"}),
    );
    let main = with(
        container("main", uses),
        json!({"cpu": "20m", "memory": "64Mi"}),
    );
    let modest = json!({"initContainers": [beside, before], "containers": [main]});
    create("modest", None, modest)?;
    create(
        "vital",
        Some("system-node-critical"),
        json!({"containers": [container("main", uses)]}),
    )?;
    namespace.run("done", "true", "16Mi")?;
    let _static = StaticPod::new("upright")?;

    let standing = |status: &Status, name: &str| {
        let is_it = |it: &&PodEntry| {
            matches!(&*it.namespace, "standing" | "default") && it.name.starts_with(name)
        };
        let pod = status.pods.iter().find(is_it);
        let pressure = status.node.pressure.as_ref().context("not read yet")?;
        let found = pressure.standing_of(&pod.with_context(|| format!("no pod {name}"))?.uid);
        found.with_context(|| format!("{name} stands nowhere yet"))
    };
    let place = |status: &Status, name: &str| -> Result<(usize, Standing)> {
        match standing(status, name)? {
            EvictionStanding::InOrder {
                place, standing, ..
            } => Ok((place, standing)),
            other => bail!("{name}: {other:?}"),
        }
    };
    let status = until("all stand where they belong", || {
        let status = agent.status()?;
        let (plain, _) = place(&status, "plain")?;
        let (urgent, of_urgent) = place(&status, "urgent")?;
        let (modest, of_modest) = place(&status, "modest")?;
        ensure!(
            plain < urgent && urgent < modest,
            "{plain}, {urgent}, {modest}"
        );
        ensure!(
            (of_urgent.priority, of_urgent.request_bytes) == (1000, 1 << 20),
            "{of_urgent:?}"
        );
        ensure!(
            of_urgent.working_set_bytes > Some(16 << 20),
            "{of_urgent:?}"
        );
        ensure!(of_modest.request_bytes == 96 << 20, "{of_modest:?}");
        for name in ["vital", "upright-"] {
            let found = standing(&status, name)?;
            ensure!(found == EvictionStanding::Critical, "{name}: {found:?}");
        }
        Ok(status)
    })?;
    let of = |name: &str| {
        status
            .pods
            .iter()
            .find(|it| it.name == name)
            .context("no pod")
    };
    let modest = of("modest")?;
    let requests = |it: &ResourceBounds| (it.cpu_request_milli, it.memory_request_bytes);
    let right = (Some(MilliCpu(50)), Some(Bytes(96 << 20)));
    ensure!(requests(&modest.resources) == right, "{modest:#?}");
    let mut containers = modest.containers.iter();
    let beside = containers
        .find(|it| it.name == "beside")
        .context("the sidecar")?;
    ensure!(
        requests(&beside.resources) == (None, Some(Bytes(32 << 20))),
        "{beside:#?}"
    );
    ensure!(
        requests(&of("plain")?.resources) == (None, None),
        "{:#?}",
        of("plain")?
    );

    namespace.wait("done", "is over", |it| it["status"]["phase"] == "Succeeded")?;
    until("the sums are those of the API server", || {
        check_requested(&agent, &namespace)
    })?;

    let explained =
        |name: &str| agent.command(&["explain", "pod", name, "--namespace", "standing"]);
    let text = explained("urgent")?;
    for part in [
        " in kubelet's eviction order, priority 1000",
        "above its request of 1.0Mi",
        "kubelet decides",
    ] {
        ensure!(text.contains(part), "{part} in {text}");
    }
    let text = explained("vital")?;
    ensure!(
        text.contains("kubelet does not evict it: it is critical"),
        "{text}"
    );
    let text = agent.command(&["explain", "node"])?;
    for part in [
        "KUBELET'S EVICTION ORDER (MEMORY)",
        "standing/plain",
        "kubelet decides",
    ] {
        ensure!(text.contains(part), "{part} in {text}");
    }
    ensure!(!text.contains("standing/vital"), "{text}");
    Ok(())
}

/// Only an API server tells what pods ask for.
#[cfg_attr(feature = "privileged", test)]
fn without_an_api_server_no_order_is_claimed() -> Result<()> {
    let agent = agent("cluster-unasked")?;
    let namespace = Namespace::new("unasked")?;
    namespace.run("plain", "exec sleep 3600", "32Mi")?;
    let status = until("it is shown, and the node was read", || {
        let status = agent.status()?;
        let mut pods = status.pods.iter();
        let pod = pods.find(|it| it.name == "plain").context("no pod")?;
        ensure!(pod.usage.memory_bytes.is_some(), "{pod:#?}");
        status
            .node
            .pressure
            .is_some()
            .then_some(status)
            .context("not read yet")
    })?;
    let pressure = status.node.pressure.as_ref().context("it was there")?;
    ensure!(
        pressure.order.is_empty() && pressure.critical.is_empty(),
        "{pressure:#?}"
    );
    let requested = status.node.resources.values().filter_map(|it| it.requested);
    ensure!(requested.count() == 0, "{:#?}", status.node.resources);
    let text = agent.command(&["explain", "node"])?;
    ensure!(!text.contains("ORDER"), "{text}");
    Ok(())
}
