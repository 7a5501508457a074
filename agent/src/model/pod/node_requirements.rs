//! What a pod requires of its node beside resources: labels, tolerated taints, free host ports, an
//! operating system.
//!
//! Invariant: a term that cannot match a node, as an empty one, is not kept. It is a fault where the
//! API server refuses it, and a warning elsewhere.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1;
use serde::{Deserialize, Serialize};

use super::check::{is_label_value, is_qualified_name};
use super::convert::{Findings, lasting_containers};
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
        host_ports: host_ports(spec, origin, found),
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
                found.fault("spec.nodeSelector", format!("`{key}` {KEY_RULE}"));
            } else if !is_label_value(value) {
                found.fault("spec.nodeSelector", format!("`{value}` {VALUE_RULE}"));
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
    let mut report = |path: String, message: String| match origin {
        PodOrigin::Manifest => found.fault(path, message),
        PodOrigin::Api => found.warn(path, message),
    };
    if required.node_selector_terms.is_empty() {
        report(PATH.to_owned(), "must have at least one term".to_owned());
    }
    let mut terms = Vec::new();
    for (i, source) in required.node_selector_terms.iter().enumerate() {
        let mut is_good = true;
        let mut keep = |field: &str, j: usize, message: String| {
            is_good = false;
            report(format!("{PATH}[{i}].{field}[{j}]"), message);
        };
        let term = NodeSelectorTerm {
            match_expressions: parse_each(
                source.match_expressions.as_deref(),
                label_requirement,
                |j, message| keep("matchExpressions", j, message),
            ),
            match_fields: parse_each(
                source.match_fields.as_deref(),
                |it| field_requirement(it, origin),
                |j, message| keep("matchFields", j, message),
            ),
        };
        let is_empty = term.match_expressions.is_empty() && term.match_fields.is_empty();
        if is_good && !is_empty {
            terms.push(term);
        }
    }
    Some(terms)
}

fn parse_each<T>(
    sources: Option<&[v1::NodeSelectorRequirement]>,
    parse: impl Fn(&v1::NodeSelectorRequirement) -> Result<T, String>,
    mut on_fault: impl FnMut(usize, String),
) -> Vec<T> {
    let mut parsed = Vec::new();
    for (i, source) in sources.unwrap_or_default().iter().enumerate() {
        match parse(source) {
            Ok(it) => parsed.push(it),
            Err(message) => on_fault(i, message),
        }
    }
    parsed
}

fn label_requirement(source: &v1::NodeSelectorRequirement) -> Result<LabelRequirement, String> {
    let values = source.values.as_deref().unwrap_or_default();
    if !is_qualified_name(&source.key) {
        return Err(format!("`{}` {KEY_RULE}", source.key));
    }
    if let Some(value) = values.iter().find(|it| !is_label_value(it)) {
        return Err(format!("`{value}` {VALUE_RULE}"));
    }
    let number = || match values {
        [value] => value
            .parse()
            .map_err(|error| format!("`{value}` is no number: {error}")),
        _ => Err(format!("{} needs one value", source.operator)),
    };
    let operator = match (source.operator.as_str(), values) {
        ("In" | "NotIn", []) => return Err(format!("{} needs values", source.operator)),
        ("In", values) => LabelOperator::In(values.to_vec()),
        ("NotIn", values) => LabelOperator::NotIn(values.to_vec()),
        ("Exists", []) => LabelOperator::Exists,
        ("DoesNotExist", []) => LabelOperator::DoesNotExist,
        ("Exists" | "DoesNotExist", _) => {
            return Err(format!("{} takes no values", source.operator));
        }
        ("Gt", _) => LabelOperator::Gt(number()?),
        ("Lt", _) => LabelOperator::Lt(number()?),
        (other, _) => {
            return Err(format!(
                "`{other}` is none of In, NotIn, Exists, DoesNotExist, Gt, Lt"
            ));
        }
    };
    Ok(LabelRequirement {
        key: source.key.clone(),
        operator,
    })
}

fn field_requirement(
    source: &v1::NodeSelectorRequirement,
    origin: PodOrigin,
) -> Result<FieldRequirement, String> {
    if origin == PodOrigin::Manifest && source.key != METADATA_NAME {
        return Err(format!("`{}` must be {METADATA_NAME}", source.key));
    }
    let operator = match (source.operator.as_str(), source.values.as_deref()) {
        ("In", Some([value])) => FieldOperator::In(value.clone()),
        ("NotIn", Some([value])) => FieldOperator::NotIn(value.clone()),
        ("In" | "NotIn", _) => return Err(format!("{} needs one value", source.operator)),
        (other, _) => return Err(format!("`{other}` is none of In, NotIn")),
    };
    Ok(FieldRequirement {
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

/// Of a manifest on the host's network, the API server takes every port for one of the host.
fn host_ports(spec: &v1::PodSpec, origin: PodOrigin, found: &mut Findings) -> Vec<HostPort> {
    let takes_all = spec.host_network == Some(true) && origin == PodOrigin::Manifest;
    let mut ports = Vec::new();
    for (path, container) in lasting_containers(spec) {
        for (i, port) in container.ports.iter().flatten().enumerate() {
            let given = port.host_port.filter(|it| *it != 0);
            let Some(number) = given.or(takes_all.then_some(port.container_port)) else {
                continue;
            };
            let path = format!("{path}.ports[{i}]");
            let address = port.host_ip.clone();
            let address = address.filter(|it| !it.is_empty() && it != "0.0.0.0");
            let protocol = protocol(port).inspect_err(|other| {
                let message = format!("`{other}` is none of TCP, UDP, SCTP");
                found.fault(format!("{path}.protocol"), message);
            });
            match u16::try_from(number).ok().filter(|it| *it > 0) {
                Some(port) => ports.extend(protocol.ok().map(|protocol| HostPort {
                    address,
                    protocol,
                    port,
                })),
                None => {
                    let field = match given {
                        Some(_) => "hostPort",
                        None => "containerPort",
                    };
                    found.fault(
                        format!("{path}.{field}"),
                        format!("`{number}` is not in 1..=65535"),
                    );
                }
            }
        }
    }
    ports
}

/// The ports that containers name, of the host or not, each with the first field that names it.
pub fn named_ports(spec: &v1::PodSpec) -> BTreeMap<(u16, Protocol), String> {
    let mut ports = BTreeMap::new();
    for (path, container) in lasting_containers(spec) {
        for (i, port) in container.ports.iter().flatten().enumerate() {
            let number = u16::try_from(port.container_port);
            // 0 is that of a field that is missing.
            if let (Ok(number @ 1..), Ok(protocol)) = (number, protocol(port)) {
                let field = || format!("{path}.ports[{i}].containerPort");
                ports.entry((number, protocol)).or_insert_with(field);
            }
        }
    }
    ports
}

/// What it says, where that is no protocol.
fn protocol(port: &v1::ContainerPort) -> Result<Protocol, &str> {
    match port.protocol.as_deref().unwrap_or_default() {
        "" | "TCP" => Ok(Protocol::Tcp),
        "UDP" => Ok(Protocol::Udp),
        "SCTP" => Ok(Protocol::Sctp),
        other => Err(other),
    }
}
