//! Suite `device_allocation`: the devices of one container, of one resource. Kubelet takes any devices
//! of a group; ours are right if they hold all that it always takes and none that it never does.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail, ensure};
use ballast::config::Compat;
use ballast::decide::placement::devices::{
    Allocated, DeviceError, DeviceManager, PluginAnswer, PluginAnswers, PluginQuestion,
};
use ballast::decide::placement::hints::{Hints, ProviderHints};
use ballast::model::device::{Device, PluginOptions};
use ballast::model::numa::{Hint, NumaMask};
use ballast::model::placement::DeviceAllocation;
use ballast::model::pod::{Pod, PodUid};
use ballast::model::topology::NumaNodeId;
use ballast_tests::timing::decision;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::resources::pod;

const RESOURCE: &str = "vendor.example/dev";

type Ids = BTreeSet<String>;

#[derive(Deserialize)]
struct Input {
    numa_nodes: NumaMask,
    registered: bool,
    devices: Vec<Offered>,
    /// By others.
    allocated: Ids,
    /// By init containers of the pod.
    reusable: Ids,
    own: Ids,
    request: u32,
    hint: Hint,
    plugin_preference: String,
}

#[derive(Deserialize)]
struct Offered {
    id: String,
    numa: Option<Vec<NumaNodeId>>,
    healthy: bool,
}

pub(crate) fn run(input: &Value, expect: &Value) -> anyhow::Result<Value> {
    let input: Input = serde_json::from_value(input.clone()).context("input")?;
    let pod = pod(&json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid"},
        "spec": {
            "initContainers": [{"name": "init"}],
            "containers": [{
                "name": "c",
                "resources": {"limits": {RESOURCE: input.request.to_string()}},
            }],
        },
    }))?;
    let init = (pod.uid.clone(), "init");
    let manager = input.manager(init);
    let mut shown = json!({"allocate": allocate(&input, &manager, &pod, &expect["allocate"])?});
    if expect.get("container_hints").is_some() {
        let container = &pod.containers[0];
        shown["container_hints"] = list(&decision(|| manager.hints(&pod, container)));
        // A pod as a whole is asked for before its init containers have anything.
        let manager = input.manager((PodUid("stranger".to_owned()), "c"));
        shown["pod_hints"] = list(&decision(|| manager.pod_hints(&pod)));
    }
    Ok(shown)
}

impl Input {
    /// `reusable_of`: who holds the reusable devices.
    fn manager(&self, reusable_of: (PodUid, &str)) -> DeviceManager {
        let mut manager = DeviceManager::new(self.numa_nodes, Compat::Kubelet);
        if self.registered {
            let options = PluginOptions {
                has_preferred_allocation: !self.plugin_preference.is_empty(),
                ..PluginOptions::default()
            };
            manager.connected(RESOURCE, 1, options);
            manager.set_devices(
                RESOURCE,
                1,
                self.devices.iter().map(Offered::device).collect(),
            );
        }
        let mut books = manager.books();
        let mut hold = |(pod, container): (PodUid, &str), ids: &Ids| {
            let held = DeviceAllocation {
                ids: [(None, ids.clone())].into(),
                response: Vec::new(),
            };
            let containers = books.containers.entry(pod).or_default();
            let resources = containers.entry(container.to_owned()).or_default();
            resources.insert(RESOURCE.to_owned(), held);
        };
        // There always is another one, so that the resource is known if only by that.
        hold((PodUid("other".to_owned()), "c"), &self.allocated);
        hold(reusable_of, &self.reusable);
        if !self.own.is_empty() {
            hold((PodUid("uid".to_owned()), "c"), &self.own);
        }
        manager.adopt(books);
        manager
    }

    /// What the plugin says when it is asked for its preference.
    fn prefer(&self, available: &Ids, must_include: &Ids, size: u32) -> anyhow::Result<Ids> {
        let size = usize::try_from(size)?;
        let others: Vec<&String> = available.difference(must_include).collect();
        let take = |n: usize, others: &mut dyn Iterator<Item = &String>| -> Ids {
            let n_others = n.saturating_sub(must_include.len());
            let others = others.take(n_others).cloned();
            must_include.iter().cloned().chain(others).take(n).collect()
        };
        Ok(match self.plugin_preference.as_str() {
            "lowest" => take(size, &mut others.into_iter()),
            "highest" => take(size, &mut others.into_iter().rev()),
            "short" => take(size.saturating_sub(1), &mut others.into_iter()),
            "empty" => Ids::new(),
            other => bail!("unknown preference {other}"),
        })
    }
}

impl Offered {
    fn device(&self) -> Device {
        // Node 99 is one that the machine does not have; so is 63, the largest that a mask holds.
        let mask = |nodes: &Vec<NumaNodeId>| {
            let nodes = nodes.iter().map(|it| NumaNodeId(it.0.min(63)));
            NumaMask::new(nodes).unwrap_or_default()
        };
        Device {
            id: self.id.clone(),
            is_healthy: self.healthy,
            numa: self.numa.as_ref().map(mask),
        }
    }
}

fn allocate(
    input: &Input,
    manager: &DeviceManager,
    pod: &Pod,
    expect: &Value,
) -> anyhow::Result<Value> {
    let container = &pod.containers[0];
    let mut answers = PluginAnswers::default();
    let mut calls: Vec<(Ids, Ids)> = Vec::new();
    let mut given: Option<Ids> = None;
    loop {
        let mut manager = manager.clone();
        let allocate = || manager.allocate(pod, container, input.hint, &answers);
        let question = match decision(allocate) {
            Ok(Allocated::Ask(question)) => question,
            Ok(Allocated::Done) => break,
            Err(error) => {
                let kind = kind(&error)?;
                return Ok(json!({"error": kind, "message": error.to_string()}));
            }
        };
        let answer = match &question {
            PluginQuestion::Preferred {
                available,
                must_include,
                size,
                ..
            } => {
                calls.push((available.clone(), must_include.clone()));
                let ids = input.prefer(available, must_include, *size)?;
                PluginAnswer::Preferred { ids }
            }
            PluginQuestion::Allocate { ids, .. } => {
                given = Some(ids.clone());
                let response = Vec::new();
                PluginAnswer::Allocated { response }
            }
        };
        answers.insert(question, answer);
        ensure!(answers.len() < 10, "asked without end");
    }
    let is_none = given.is_none();
    let given = given.unwrap_or_default();
    let expected = |field: &str| -> anyhow::Result<Ids> {
        let ids = expect.get(field).cloned().unwrap_or_default();
        Ok(serde_json::from_value::<Option<Ids>>(ids)?.unwrap_or_default())
    };
    let (always, possible) = (expected("always")?, expected("possible")?);
    let is_right = always.is_subset(&given) && given.is_subset(&possible);
    let mut asked = BTreeMap::from([("calls", json!(calls.len()))]);
    if expect["preferred_allocation"].get("available").is_some() {
        let (available, must_include): (Vec<Ids>, Vec<Ids>) = calls.into_iter().unzip();
        asked.insert("available", json!(available));
        asked.insert("must_include", json!(must_include));
    }
    Ok(json!({
        "always": if is_right { &always } else { &given },
        "none_needed": is_none,
        "possible": if is_right { &possible } else { &given },
        "preferred_allocation": asked,
        "size": given.len(),
    }))
}

fn kind(error: &DeviceError) -> anyhow::Result<&'static str> {
    Ok(match error {
        DeviceError::RequestChanged { .. } => "request-changed",
        DeviceError::Unregistered(_) => "unregistered",
        DeviceError::NoneHealthy(_) => "no-healthy-devices",
        DeviceError::HeldUnhealthy(_) => "allocated-unhealthy",
        DeviceError::TooFew { .. } => "not-enough-devices",
        DeviceError::Plugin { why, .. } => bail!("the plugin failed: {why}"),
    })
}

fn list(hints: &ProviderHints) -> Value {
    hints.get(RESOURCE).map_or(json!("absent"), |it: &Hints| {
        it.list().map_or(Value::Null, |it| json!(it))
    })
}
