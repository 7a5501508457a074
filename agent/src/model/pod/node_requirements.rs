//! What a pod requires of its node beside resources: labels, tolerated taints, free host ports, an
//! operating system.
//!
//! Invariant: a term that cannot match a node, as an empty one, is not kept. It is a fault where the
//! API server refuses it, and a warning elsewhere.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use serde::{Deserialize, Serialize};

use super::check::{SUBDOMAIN_RULE, is_dns_subdomain, is_label_value, is_qualified_name};
use super::convert::lasting_containers;
use super::findings::Findings;
use super::{Pod, PodOrigin};

/// The one field of a node that `matchFields` may name.
pub const METADATA_NAME: &str = "metadata.name";

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRequirements {
    /// `spec.os.name`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// `spec.nodeSelector`: labels of the node, with these values.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// `requiredDuringSchedulingIgnoredDuringExecution` of the node affinity: the node matches one of
    /// the terms. `None`: nothing is required. No terms: no node will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<Vec<NodeSelectorTerm>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Of the containers that run as long as the pod: regular ones and sidecars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub host_ports: Vec<HostPort>,
    /// `supplementalGroupsPolicy: Strict`: no groups but those that the pod names.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_strict_groups: bool,
}

impl NodeRequirements {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A node matches if it matches everything in here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorTerm {
    pub match_expressions: Vec<LabelRequirement>,
    pub match_fields: Vec<FieldRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LabelRequirement {
    pub key: String,
    pub operator: LabelOperator,
}

/// With the values that it compares with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LabelOperator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    Gt(i64),
    Lt(i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldRequirement {
    pub key: String,
    pub operator: FieldOperator,
}

/// With the value that it compares with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FieldOperator {
    In(String),
    NotIn(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    pub key: String,
    /// Empty where the taint has none.
    pub value: String,
    pub effect: TaintEffect,
}

impl Taint {
    /// The taint of a node under memory pressure.
    pub fn memory_pressure() -> Self {
        Self {
            key: "node.kubernetes.io/memory-pressure".to_owned(),
            value: String::new(),
            effect: TaintEffect::NoSchedule,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

impl TaintEffect {
    /// `None`: there is no such effect.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "NoSchedule" => Some(Self::NoSchedule),
            "PreferNoSchedule" => Some(Self::PreferNoSchedule),
            "NoExecute" => Some(Self::NoExecute),
            _ => None,
        }
    }
}

/// What a toleration leaves out, it does not ask about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    pub operator: TolerationOperator,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TolerationOperator {
    Exists,
    Equal(String),
}

impl Toleration {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let is_value_right = match &self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal(value) => *value == taint.value,
        };
        self.key.as_ref().is_none_or(|it| *it == taint.key)
            && self.effect.is_none_or(|it| it == taint.effect)
            && is_value_right
    }
}

/// A port of the node that a container takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HostPort {
    /// `hostIP` as it is written. `None`: all addresses, which is `0.0.0.0` too; `::` is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub protocol: Protocol,
    pub port: u16,
}

impl HostPort {
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let is_address_shared = match (&self.address, &other.address) {
            (Some(own), Some(others)) => own == others,
            (None, _) | (_, None) => true,
        };
        self.protocol == other.protocol && self.port == other.port && is_address_shared
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Pod {
    pub fn tolerates(&self, taint: &Taint) -> bool {
        let mut tolerations = self.node_requirements.tolerations.iter();
        tolerations.any(|it| it.tolerates(taint))
    }
}

pub(super) fn of(source: &v1::Pod, origin: PodOrigin, found: &mut Findings) -> NodeRequirements {
    let Some(spec) = &source.spec else {
        return NodeRequirements::default();
    };
    let groups_policy = spec
        .security_context
        .as_ref()
        .and_then(|it| it.supplemental_groups_policy.as_deref());
    NodeRequirements {
        os: spec.os.as_ref().map(|it| it.name.clone()),
        node_selector: node_selector(spec, origin, found),
        node_affinity: node_affinity(spec, origin, found),
        tolerations: tolerations(spec),
        host_ports: host_ports(spec, origin),
        has_strict_groups: groups_policy == Some("Strict"),
    }
}

fn node_selector(
    spec: &v1::PodSpec,
    origin: PodOrigin,
    found: &mut Findings,
) -> BTreeMap<String, String> {
    let selector = spec.node_selector.clone().unwrap_or_default();
    if origin == PodOrigin::Manifest {
        for (key, value) in &selector {
            if !is_qualified_name(key) {
                found.invalid("spec.nodeSelector", key.as_str(), KEY_RULE);
            } else if !is_label_value(value) {
                found.invalid("spec.nodeSelector", value.as_str(), VALUE_RULE);
            }
        }
    }
    selector
}

pub(super) const KEY_RULE: &str = "must be a label key, as app or example.org/app";
pub(super) const VALUE_RULE: &str =
    "must be a label value: at most 63 letters, digits and inner dashes, dots and underscores";

fn node_affinity(
    spec: &v1::PodSpec,
    origin: PodOrigin,
    found: &mut Findings,
) -> Option<Vec<NodeSelectorTerm>> {
    const PATH: &str = "spec.affinity.nodeAffinity.\
                        requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
    let required = affinity
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let mut own = Findings::default();
    if required.node_selector_terms.is_empty() {
        own.required(PATH, "must have at least one node selector term");
    }
    let mut terms = Vec::new();
    for (i, source) in required.node_selector_terms.iter().enumerate() {
        let path = format!("{PATH}[{i}]");
        let n_before = own.faults.len();
        let term = NodeSelectorTerm {
            match_expressions: parse_each(
                source.match_expressions.as_deref(),
                |j| format!("{path}.matchExpressions[{j}]"),
                |it, path| label_requirement(it, path, &mut own),
            ),
            match_fields: parse_each(
                source.match_fields.as_deref(),
                |j| format!("{path}.matchFields[{j}]"),
                |it, path| field_requirement(it, origin, path, &mut own),
            ),
        };
        let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
        if own.faults.len() == n_before && !is_empty {
            terms.push(term);
        }
    }
    match origin {
        PodOrigin::Manifest => found.faults.append(&mut own.faults),
        PodOrigin::Api => found.warnings.append(&mut own.faults),
    }
    Some(terms)
}

fn parse_each<T>(
    sources: Option<&[v1::NodeSelectorRequirement]>,
    path: impl Fn(usize) -> String,
    mut parse: impl FnMut(&v1::NodeSelectorRequirement, &str) -> Option<T>,
) -> Vec<T> {
    let sources = sources.unwrap_or_default().iter().enumerate();
    sources.filter_map(|(i, it)| parse(it, &path(i))).collect()
}

fn label_requirement(
    source: &v1::NodeSelectorRequirement,
    path: &str,
    found: &mut Findings,
) -> Option<LabelRequirement> {
    let values = source.values.as_deref().unwrap_or_default();
    if !is_qualified_name(&source.key) {
        found.invalid(format!("{path}.key"), source.key.as_str(), KEY_RULE);
    }
    for (i, value) in values.iter().enumerate() {
        if !is_label_value(value) {
            found.invalid(format!("{path}.values[{i}]"), value.as_str(), VALUE_RULE);
        }
    }
    let of_values = format!("{path}.values");
    let operator = match (source.operator.as_str(), values) {
        ("In" | "NotIn", []) => {
            let rule = "must be specified when `operator` is 'In' or 'NotIn'";
            found.required(of_values, rule);
            return None;
        }
        ("In", values) => LabelOperator::In(values.to_vec()),
        ("NotIn", values) => LabelOperator::NotIn(values.to_vec()),
        ("Exists", []) => LabelOperator::Exists,
        ("DoesNotExist", []) => LabelOperator::DoesNotExist,
        ("Exists" | "DoesNotExist", _) => {
            let rule = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            found.forbidden(of_values, rule);
            return None;
        }
        ("Gt", [value]) => LabelOperator::Gt(number(value, &of_values, found)?),
        ("Lt", [value]) => LabelOperator::Lt(number(value, &of_values, found)?),
        ("Gt" | "Lt", _) => {
            let rule = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            found.required(of_values, rule);
            return None;
        }
        (other, _) => {
            let rule = "must be In, NotIn, Exists, DoesNotExist, Gt or Lt";
            found.invalid(format!("{path}.operator"), other, rule);
            return None;
        }
    };
    Some(LabelRequirement {
        key: source.key.clone(),
        operator,
    })
}

fn number(value: &str, of_values: &str, found: &mut Findings) -> Option<i64> {
    let number = value.parse().ok();
    if number.is_none() {
        found.invalid(format!("{of_values}[0]"), value, "must be an integer");
    }
    number
}

fn field_requirement(
    source: &v1::NodeSelectorRequirement,
    origin: PodOrigin,
    path: &str,
    found: &mut Findings,
) -> Option<FieldRequirement> {
    match origin {
        PodOrigin::Manifest if source.key != METADATA_NAME => {
            let rule = format!("must be {METADATA_NAME}");
            found.invalid(format!("{path}.key"), source.key.as_str(), &rule);
        }
        PodOrigin::Manifest => {
            let values = source.values.iter().flatten().enumerate();
            for (i, value) in values.filter(|(_, it)| !is_dns_subdomain(it)) {
                found.invalid(
                    format!("{path}.values[{i}]"),
                    value.as_str(),
                    SUBDOMAIN_RULE,
                );
            }
        }
        PodOrigin::Api => {}
    }
    let operator = match (source.operator.as_str(), source.values.as_deref()) {
        ("In", Some([value])) => FieldOperator::In(value.clone()),
        ("NotIn", Some([value])) => FieldOperator::NotIn(value.clone()),
        ("In" | "NotIn", _) => {
            let rule = "must be only one value when `operator` is 'In' or 'NotIn'";
            found.required(format!("{path}.values"), rule);
            return None;
        }
        (other, _) => {
            found.invalid(format!("{path}.operator"), other, "must be In or NotIn");
            return None;
        }
    };
    Some(FieldRequirement {
        key: source.key.clone(),
        operator,
    })
}

/// Those that tolerate a taint at all. `Lt` and `Gt` are behind a feature gate that is off.
fn tolerations(spec: &v1::PodSpec) -> Vec<Toleration> {
    let toleration = |source: &v1::Toleration| {
        let given = |field: &Option<String>| field.clone().filter(|it| !it.is_empty());
        let effect = match given(&source.effect) {
            Some(text) => Some(TaintEffect::parse(&text)?),
            None => None,
        };
        let operator = match source.operator.as_deref().unwrap_or_default() {
            "" | "Equal" => TolerationOperator::Equal(source.value.clone().unwrap_or_default()),
            "Exists" => TolerationOperator::Exists,
            _ => return None,
        };
        Some(Toleration {
            key: given(&source.key),
            effect,
            operator,
        })
    };
    let sources = spec.tolerations.iter().flatten();
    sources.filter_map(toleration).collect()
}

/// Of a manifest on the host's network, the API server takes every port for one of the host. What is no port is told
/// with the rules of a manifest.
fn host_ports(spec: &v1::PodSpec, origin: PodOrigin) -> Vec<HostPort> {
    let takes_all = spec.host_network == Some(true) && origin == PodOrigin::Manifest;
    let host_port = |port: &v1::ContainerPort| {
        let address = port.host_ip.clone();
        Some(HostPort {
            address: address.filter(|it| !it.is_empty() && it != "0.0.0.0"),
            protocol: protocol(port).ok()?,
            port: u16::try_from(host_port(port, takes_all)?).ok()?,
        })
    };
    let ports = lasting_containers(spec).flat_map(|(_, it)| it.ports.iter().flatten());
    ports.filter_map(host_port).collect()
}

/// The port of the host that a container asks for. `takes_all`: one that it names is one.
pub(super) fn host_port(port: &v1::ContainerPort, takes_all: bool) -> Option<i32> {
    let given = port.host_port.filter(|it| *it != 0);
    let named = Some(port.container_port).filter(|it| takes_all && *it != 0);
    given.or(named)
}

/// The ports that containers name, of the host or not, each with the first field that names it.
pub fn named_ports(spec: &v1::PodSpec) -> BTreeMap<(u16, Protocol), String> {
    let mut ports = BTreeMap::new();
    for (path, container) in lasting_containers(spec) {
        for (i, port) in container.ports.iter().flatten().enumerate() {
            let number = u16::try_from(port.container_port);
            if let (Ok(number), Ok(protocol)) = (number, protocol(port)) {
                let field = || format!("{path}.ports[{i}].containerPort");
                ports.entry((number, protocol)).or_insert_with(field);
            }
        }
    }
    ports
}

/// What it says, where that is no protocol.
pub(super) fn protocol(port: &v1::ContainerPort) -> Result<Protocol, &str> {
    match port.protocol.as_deref().unwrap_or_default() {
        "" | "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(other),
    }
}
