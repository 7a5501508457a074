//! A real cluster of one node, which `cargo xtask cluster` brings up, as the cluster lane and the measurements use
//! it. `BALLAST_CLUSTER` names its directory. Pods are made by kubectl.

mod api;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

pub use self::api::{ApiWay, Way};
use crate::agent::Agent;
use crate::scrape::free_address;
use crate::wait::until;

/// The network namespace and the cgroup root of the cluster, which `cargo xtask cluster` names.
pub const NAME: &str = "ballast-cluster";

pub const IMAGE: &str = "localhost/ballast/busybox:1";
const HOG: &str = "localhost/ballast/hog:1";

/// A namespace of the cluster for one test, gone with its pods when it is dropped.
#[derive(Debug)]
pub struct Namespace {
    cluster: PathBuf,
    pub name: String,
}

impl Namespace {
    pub fn new(name: &str) -> Result<Self> {
        let namespace = Self {
            cluster: cluster()?,
            name: name.to_owned(),
        };
        // One of another test that has this name may still be going.
        until("the namespace is made", || {
            namespace.kubectl(&["create", "namespace", name], None)
        })?;
        // Without it no pod is admitted.
        until("the namespace has its service account", || {
            namespace.kubectl(&["get", "serviceaccount", "default"], None)
        })?;
        Ok(namespace)
    }

    /// kubectl as the administrator, in this namespace.
    pub fn command(&self) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{NAME}"))
            .arg("--")
            .arg(self.cluster.join("kubectl"))
            .arg("--kubeconfig")
            .arg(self.cluster.join("admin.kubeconfig"))
            // Without it kubectl writes to the home of whoever runs it.
            .arg("--cache-dir")
            .arg(self.cluster.join("kubectl-cache"))
            .args(["--namespace", &self.name]);
        command
    }

    pub fn kubectl(&self, arguments: &[&str], input: Option<&str>) -> Result<String> {
        let mut child = self
            .command()
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start kubectl")?;
        let mut stdin = child.stdin.take().context("it was piped")?;
        stdin.write_all(input.unwrap_or_default().as_bytes())?;
        drop(stdin);
        let output = child.wait_with_output()?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "kubectl {arguments:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    }

    pub fn create(&self, object: &Value) -> Result<()> {
        let text = object.to_string();
        self.kubectl(&["create", "--filename", "-"], Some(&text))?;
        Ok(())
    }

    /// All objects of a kind.
    pub fn list(&self, kind: &str) -> Result<Vec<Value>> {
        let text = self.kubectl(&["get", kind, "--output", "json"], None)?;
        let mut list: Value = serde_json::from_str(&text)?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => bail!("no list: {text}"),
        }
    }

    /// A pod of one container that runs `script`.
    pub fn run(&self, name: &str, script: &str, memory: &str) -> Result<()> {
        self.create(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": pod_spec(script, memory, "Never"),
        }))
    }

    /// The pod as the API server has it, once `is_it`.
    pub fn wait(&self, name: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> Result<Value> {
        until(&format!("{name} {what}"), || {
            let text = self.kubectl(&["get", "pod", name, "--output", "json"], None)?;
            let pod: Value = serde_json::from_str(&text)?;
            ensure!(is_it(&pod), "{text}");
            Ok(pod)
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let name = self.name.clone();
        let delete = ["delete", "namespace", &name, "--wait=false"];
        if let Err(error) = self.kubectl(&delete, None) {
            eprintln!("remove namespace {name}: {error:#}");
        }
    }
}

/// A static pod of the node; gone when it is dropped.
#[derive(Debug)]
pub struct StaticPod(PathBuf);

impl StaticPod {
    /// One that only waits, in the namespace `default`.
    pub fn new(name: &str) -> Result<Self> {
        let spec = json!({
            "terminationGracePeriodSeconds": 0,
            "containers": [container("main", "exec sleep 3600")],
        });
        Self::of(name, &spec)
    }

    /// One of the namespace `default`.
    pub fn of(name: &str, spec: &Value) -> Result<Self> {
        Self::within("default", name, spec)
    }

    /// Its manifest names it so; kubelet puts the name of the node behind it.
    pub fn within(namespace: &str, name: &str, spec: &Value) -> Result<Self> {
        let manifest = cluster()?.join(format!("manifests/{name}.json"));
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        });
        fs::write(&manifest, pod.to_string())?;
        Ok(Self(manifest))
    }
}

impl Drop for StaticPod {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}

/// Of a pod of one container that runs `script`.
pub fn pod_spec(script: &str, memory: &str, restart: &str) -> Value {
    let mut main = container("main", script);
    main["resources"] = json!({"limits": {"memory": memory}});
    json!({
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": 0,
        "containers": [main],
    })
}

/// Of a pod of one container that misbehaves so and is not started again.
pub fn hog_spec(mode: &[&str], memory: &str) -> Value {
    json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [{
            "name": "main",
            "image": HOG,
            "imagePullPolicy": "Never",
            "args": mode,
            "resources": {"limits": {"memory": memory}},
        }],
    })
}

pub fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    })
}

/// The directory of the cluster.
pub fn cluster() -> Result<PathBuf> {
    let cluster = std::env::var_os("BALLAST_CLUSTER").context("BALLAST_CLUSTER is not set")?;
    Ok(cluster.into())
}

/// Ends a program of the cluster in an orderly way, and starts it again.
pub fn restart(program: &str) -> Result<()> {
    restart_without(program, &[])
}

/// The same; `files`, in the directory of the cluster, are removed in between.
pub fn restart_without(program: &str, files: &[&str]) -> Result<()> {
    let removing = files.iter().flat_map(|it| ["--removing", it]);
    restart_with(program, &removing.collect::<Vec<_>>())
}

/// The same; `name`: that of its process until it is started again.
pub fn restart_as(program: &str, name: &str) -> Result<()> {
    restart_with(program, &["--as", name])
}

fn restart_with(program: &str, arguments: &[&str]) -> Result<()> {
    let xtask = std::env::var_os("BALLAST_XTASK").context("BALLAST_XTASK is not set")?;
    let output = Command::new(xtask)
        .args(["cluster", "restart", program])
        .args(arguments)
        .output()
        .context("start xtask")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "restart {program}: {errors}");
    Ok(())
}

/// An agent that observes the node.
pub fn agent(test: &str) -> Result<Agent> {
    let mut agent = new_agent(test)?;
    agent.start()?;
    Ok(agent)
}

/// One that asks the API server besides.
pub fn asking(test: &str) -> Result<(Agent, ApiWay)> {
    let mut agent = new_agent(test)?;
    let way = ApiWay::new(test)?;
    way.lead(&mut agent);
    agent.start()?;
    Ok((agent, way))
}

/// One that is not started yet.
pub fn new_agent(test: &str) -> Result<Agent> {
    let mut agent = Agent::observing_below(test, NAME)?;
    agent.metrics = free_address()?;
    agent.runtime = Some(cluster()?.join("containerd.sock"));
    Ok(agent)
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.with_context(|| format!("no {pointer} in {value}"))
}
