//! Suite `admission`: whether kubelet lets a pod in, whom it kills for it, and which sysctls it allows.

use std::collections::BTreeSet;

use anyhow::{Context, bail};
use ballast::config::Compat;
use ballast::decide::predicates::{Node, NodeInfo};
use ballast::decide::preemption::resolve;
use ballast::model::admission::RefusalReason;
use ballast::model::allowed_sysctls::AllowedSysctls;
use ballast::model::pod::Pod;
use ballast::model::pod::node_requirements::{Taint, TaintEffect};
use ballast_tests::timing::decision;
use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

use crate::resources::{pod, resource_list, text};

/// Kubelet names missing resources in no fixed order; `expect` then lists the outcomes that were seen,
/// and ours is right if it names the same ones.
pub(crate) fn run(input: &Value, expect: &Value) -> anyhow::Result<Value> {
    let mut got = match text(input, "kind")? {
        "predicates" => predicates(input)?,
        "sysctl" => sysctl(input)?,
        other => bail!("unknown kind {other}"),
    };
    if let Some(seen) = expect["any_of"].as_array()
        && seen.iter().any(|it| unordered(it) == unordered(&got))
    {
        return Ok(expect.clone());
    }
    // It says of the case that other orders of its pods have other outcomes.
    if let Some(order_matters) = expect.get("order_matters") {
        got["order_matters"] = order_matters.clone();
    }
    Ok(got)
}

/// An outcome with the parts of its message in alphabetical order.
fn unordered(outcome: &Value) -> Value {
    let mut outcome = outcome.clone();
    if let Some(message) = outcome["message"].as_str() {
        let mut parts: Vec<&str> = message.split(['[', ']', '(', ')']).collect();
        parts.sort_unstable();
        outcome["message"] = json!(parts);
    }
    outcome
}

fn predicates(input: &Value) -> anyhow::Result<Value> {
    let node = node(&input["node"])?;
    let fresh = input.get("node_fresh").map(self::node).transpose()?;
    let admitted = input["pods"].as_array().context("pods")?;
    let admitted: Vec<Pod> = admitted.iter().map(pod).collect::<Result<_, _>>()?;
    let pod = pod(&input["pod"])?;
    // Killing a victim may fail, which changes nothing.
    let outcome = decision(|| {
        let failures = NodeInfo::new(node, &admitted).failures(&pod, fresh.as_ref());
        resolve(&pod, &failures, &admitted, Compat::Kubelet)
    });
    Ok(match outcome {
        Ok(victims) if victims.is_empty() => json!({"admit": true}),
        Ok(victims) => {
            let names: Vec<&str> = victims.iter().map(|it| it.name.as_str()).collect();
            json!({"admit": true, "preempted": names})
        }
        Err(rejection) => refused(&rejection.reason(), &rejection),
    })
}

fn node(source: &Value) -> anyhow::Result<Node> {
    let v1::Node {
        metadata,
        spec,
        status,
    } = serde_json::from_value(source.clone()).context("read the node")?;
    let taints = spec.and_then(|it| it.taints).unwrap_or_default();
    let taint = |it: v1::Taint| {
        anyhow::Ok(Taint {
            effect: TaintEffect::parse(&it.effect).context("an unknown effect")?,
            key: it.key,
            value: it.value.unwrap_or_default(),
        })
    };
    let features = status.and_then(|it| it.features);
    Ok(Node {
        name: metadata.name.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
        taints: taints.into_iter().map(taint).collect::<Result<_, _>>()?,
        allocatable: resource_list(&source["status"]["allocatable"])?,
        unknown: BTreeSet::new(),
        has_groups_policy: features.and_then(|it| it.supplemental_groups_policy) == Some(true),
    })
}

fn sysctl(input: &Value) -> anyhow::Result<Value> {
    let patterns = input["allowlist"].as_array().context("allowlist")?;
    let mut allowed = AllowedSysctls::default();
    for pattern in patterns.iter().filter_map(Value::as_str) {
        if let Err(error) = allowed.allow(pattern) {
            return Ok(json!({"construct_error": error.to_string()}));
        }
    }
    Ok(match allowed.check(&pod(&input["pod"])?) {
        Ok(()) => json!({"admit": true}),
        Err(forbidden) => refused(RefusalReason::SysctlForbidden.as_str(), &forbidden),
    })
}

fn refused(reason: &str, message: &impl ToString) -> Value {
    json!({"admit": false, "reason": reason, "message": message.to_string()})
}
