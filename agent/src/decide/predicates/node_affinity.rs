//! Node selector and required node affinity (component-helpers/scheduling/corev1/nodeaffinity,
//! Kubernetes 1.36).

use super::Node;
use crate::model::pod::Pod;
use crate::model::pod::node_requirements::{
    FieldOperator, FieldRequirement, LabelOperator, LabelRequirement, METADATA_NAME,
    NodeSelectorTerm,
};

pub(super) fn matches(pod: &Pod, node: &Node) -> bool {
    let requirements = &pod.node_requirements;
    let mut selector = requirements.node_selector.iter();
    selector.all(|(key, value)| node.labels.get(key) == Some(value))
        && match &requirements.node_affinity {
            Some(terms) => terms.iter().any(|it| term_matches(it, node)),
            None => true,
        }
}

fn term_matches(term: &NodeSelectorTerm, node: &Node) -> bool {
    // Of a node without a name, no field is looked at.
    let is_nameless = node.name.is_empty();
    term.match_expressions
        .iter()
        .all(|it| label_matches(it, node))
        && (is_nameless || term.match_fields.iter().all(|it| field_matches(it, node)))
}

fn label_matches(requirement: &LabelRequirement, node: &Node) -> bool {
    let value = node.labels.get(&requirement.key);
    let number = || value?.parse::<i64>().ok();
    match &requirement.operator {
        LabelOperator::In(values) => value.is_some_and(|it| values.contains(it)),
        LabelOperator::NotIn(values) => value.is_none_or(|it| !values.contains(it)),
        LabelOperator::Exists => value.is_some(),
        LabelOperator::DoesNotExist => value.is_none(),
        LabelOperator::Gt(bound) => number().is_some_and(|it| it > *bound),
        LabelOperator::Lt(bound) => number().is_some_and(|it| it < *bound),
    }
}

fn field_matches(requirement: &FieldRequirement, node: &Node) -> bool {
    let value = match requirement.key.as_str() {
        METADATA_NAME => node.name.as_str(),
        _ => "",
    };
    match &requirement.operator {
        FieldOperator::In(wanted) => value == wanted,
        FieldOperator::NotIn(unwanted) => value != unwanted,
    }
}
