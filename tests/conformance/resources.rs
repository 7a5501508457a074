//! What several suites share: reading inputs, and cgroup resources in the shape of the vectors.

use anyhow::{Context, anyhow};
use ballast::model::pod::{ApiValue, Pod, PodOrigin, ResourceList};
use ballast::model::resources::CgroupResources;
use ballast::units::{Limit, cpu_weight_linear};
use k8s_openapi::api::core::v1;
use serde::Deserialize;
use serde_json::{Map, Value, json};

pub(crate) fn text<'a>(input: &'a Value, field: &str) -> anyhow::Result<&'a str> {
    input[field]
        .as_str()
        .with_context(|| format!("{field} is no string"))
}

pub(crate) fn number(input: &Value, field: &str) -> anyhow::Result<u64> {
    input[field]
        .as_u64()
        .with_context(|| format!("{field} is no number"))
}

/// A pod as the API server would hand it over: no defaults, no checks of relations.
pub(crate) fn pod(manifest: &Value) -> anyhow::Result<Pod> {
    let source = v1::Pod::deserialize(ApiValue(manifest)).context("read the pod")?;
    Pod::from_v1(&source, PodOrigin::Api).map_err(|faults| anyhow!("convert the pod: {faults:?}"))
}

/// Resource name to quantity.
pub(crate) fn resource_list(list: &Value) -> anyhow::Result<ResourceList> {
    let entries = list.as_object().context("a list of resources")?;
    entries
        .iter()
        .map(|(name, text)| {
            let amount = text.as_str().unwrap_or_default().parse();
            Ok((
                name.clone(),
                amount.with_context(|| format!("resource {name}"))?,
            ))
        })
        .collect()
}

/// `None` is null; no bound is -1.
pub(crate) fn limit(limit: Option<Limit>) -> Value {
    match limit {
        None => Value::Null,
        Some(Limit::At(n)) => json!(n),
        Some(Limit::Max) => json!(-1),
    }
}

/// Page size in bytes to limit; none at all is the same as an empty map to kubelet.
pub(crate) fn hugepages(resources: &CgroupResources) -> Value {
    let pages = resources.hugetlb.iter().flatten();
    pages
        .map(|(size, at)| (size.to_string(), limit(Some(*at))))
        .collect::<Map<_, _>>()
        .into()
}

/// The fields that kubelet's own cgroups have in common; `unified` only where there is any.
pub(crate) fn kubelet_cgroup(resources: &CgroupResources) -> Value {
    let mut shown = json!({
        "cpu_shares": resources.cpu_shares,
        "cpu_weight": resources.cpu_shares.map(cpu_weight_linear),
        "hugepages": hugepages(resources),
        "memory": limit(resources.memory_max),
        "pids_limit": limit(resources.pids_max),
    });
    show_unified(resources, &mut shown);
    shown
}

pub(crate) fn show_unified(resources: &CgroupResources, shown: &mut Value) {
    if !resources.unified.is_empty() {
        shown["unified"] = json!(resources.unified);
    }
}

/// Bytes of a page size in the kernel's words, as `2MB`.
pub(crate) fn page_size(name: &str) -> anyhow::Result<u64> {
    let (digits, shift) = [("KB", 10), ("MB", 20), ("GB", 30)]
        .into_iter()
        .find_map(|(unit, shift)| Some((name.strip_suffix(unit)?, shift)))
        .with_context(|| format!("page size {name}"))?;
    let n: u64 = digits
        .parse()
        .with_context(|| format!("page size {name}"))?;
    Ok(n << shift)
}

/// The inverse of [`page_size`].
pub(crate) fn page_size_name(bytes: u64) -> String {
    match bytes {
        0x4000_0000.. => format!("{}GB", bytes >> 30),
        0x10_0000.. => format!("{}MB", bytes >> 20),
        _ => format!("{}KB", bytes >> 10),
    }
}
