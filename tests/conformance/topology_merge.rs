//! Suite `topology_merge`: hints of several providers to one, and admission.

use std::collections::BTreeMap;

use anyhow::Context;
use ballast::config::{Compat, PlacementConfig, TopologyManagerPolicy, TopologyManagerScope};
use ballast::decide::placement::hints::{Choices, Hints, ProviderHints};
use ballast::decide::placement::topology::{
    TopologyConfigError, TopologyManager, TopologySettings,
};
use ballast::model::numa::Hint;
use ballast::model::topology::NumaNodeId;
use ballast_tests::timing::decision;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
struct Input {
    numa_nodes: Vec<NumaNodeId>,
    #[serde(default)]
    distances: Vec<Vec<u32>>,
    policy: String,
    scope: String,
    options: BTreeMap<String, String>,
    #[serde(default)]
    provider_hints: Vec<Option<BTreeMap<String, Option<Vec<Hint>>>>>,
}

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    let input = Input::deserialize(input).context("input")?;
    let policy = match input.policy.as_str() {
        "none" => Some(TopologyManagerPolicy::None),
        "best-effort" => Some(TopologyManagerPolicy::BestEffort),
        "restricted" => Some(TopologyManagerPolicy::Restricted),
        "single-numa-node" => Some(TopologyManagerPolicy::SingleNumaNode),
        _ => None,
    };
    let scope = match input.scope.as_str() {
        "container" => Some(TopologyManagerScope::Container),
        "pod" => Some(TopologyManagerScope::Pod),
        _ => None,
    };
    // Names are the configuration's business; kubelet looks at them last, and not at the scope where
    // there is nothing to merge.
    let config = PlacementConfig {
        topology_manager_policy: policy.unwrap_or(TopologyManagerPolicy::BestEffort),
        topology_manager_scope: scope.unwrap_or_default(),
        topology_manager_policy_options: input.options.clone(),
        ..PlacementConfig::default()
    };
    let manager = TopologySettings::new(&config, Compat::Kubelet)
        .and_then(|settings| TopologyManager::new(settings, &numa_nodes(&input)));
    let manager = match manager {
        Ok(manager) => manager,
        Err(error) => return Ok(failed(kind(&error))),
    };
    if policy.is_none() {
        return Ok(failed("unknown-policy"));
    }
    if scope.is_none() && policy != Some(TopologyManagerPolicy::None) {
        return Ok(failed("unknown-scope"));
    }
    let hints: Vec<ProviderHints> = input.provider_hints.into_iter().map(provider).collect();
    let merge = decision(|| manager.merge(&hints));
    Ok(json!({"hint": merge.hint, "admit": merge.admit}))
}

fn numa_nodes(input: &Input) -> BTreeMap<NumaNodeId, BTreeMap<NumaNodeId, u32>> {
    let rows = input.distances.iter().map(Vec::as_slice);
    let rows = rows.chain(std::iter::repeat(&[][..]));
    let distances = rows.map(|row| input.numa_nodes.iter().copied().zip(row.iter().copied()));
    let nodes = input.numa_nodes.iter().copied();
    nodes.zip(distances.map(Iterator::collect)).collect()
}

fn provider(resources: Option<BTreeMap<String, Option<Vec<Hint>>>>) -> ProviderHints {
    let hints = |list: Option<Vec<Hint>>| match list {
        None => Hints::Any,
        Some(listed) => Hints::OneOf(Choices {
            listed,
            region: None,
        }),
    };
    let resources = resources.unwrap_or_default().into_iter();
    resources.map(|(name, list)| (name, hints(list))).collect()
}

fn kind(error: &TopologyConfigError) -> &'static str {
    match error {
        TopologyConfigError::UnknownOption(_) => "unknown-option",
        TopologyConfigError::BadValue { .. } => "bad-option-value",
        TopologyConfigError::MaxNumaNodesTooSmall(_) => "max-allowable-too-small",
        TopologyConfigError::NoDistance { .. } => "no-numa-distances",
        TopologyConfigError::TooManyNumaNodes { .. } => "too-many-numa-nodes",
        TopologyConfigError::NumaNodeTooLarge(_) => "numa-node-too-large",
    }
}

fn failed(kind: &str) -> Value {
    json!({"construct": {"error": kind}})
}
