//! The rules as they are shipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// A file of rules, as Prometheus reads it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    pub(crate) groups: Vec<Group>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alert: Option<String>,
    pub(crate) expr: String,
    /// How long the expression holds before the alert fires.
    #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
    pub(crate) hold: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Rule {
    /// The name of an alert.
    pub(crate) fn name(&self) -> &str {
        self.alert.as_deref().unwrap_or_default()
    }

    pub(crate) fn severity(&self) -> &str {
        self.labels.get("severity").map_or("", String::as_str)
    }
}

/// A file of the checkout, by its path from the root.
pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(name)
}

pub(crate) fn read(name: &str) -> Result<String> {
    fs::read_to_string(path(name)).with_context(|| format!("read {name}"))
}

pub(crate) const RECORDED: &str = "dashboards/rules.yaml";
pub(crate) const ALERTS: &str = "dashboards/alerts.yaml";

pub(crate) fn rules(name: &str) -> Result<Rules> {
    serde_yaml_ng::from_str(&read(name)?).with_context(|| format!("parse {name}"))
}

/// Every alert, in its order.
pub(crate) fn alerts() -> Result<Vec<Rule>> {
    let groups = rules(ALERTS)?.groups;
    Ok(groups.into_iter().flat_map(|it| it.rules).collect())
}

/// A duration of one unit.
pub(crate) fn seconds(duration: &str) -> u64 {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => panic!("cannot read {duration:?}"),
    };
    number.parse::<u64>().expect("a number and a unit") * unit
}
