//! Devices, their plugins and the pod resources API. Families with kubelet's names have no series
//! before this agent does that duty.

use std::collections::BTreeMap;
use std::time::Duration;

use super::labels::PodResourcesVersion;
use super::{Metrics, lock, observe, set_count, set_or_leave_out};
use crate::model::device::RefusalReason;
use crate::model::topology::NumaNodeId;

/// Resources with series of their own; more are counted together as `other`. As many as may have a
/// plugin at a time.
pub const MAX_RESOURCES: usize = 64;

/// Devices of one resource at one NUMA node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    pub n_allocated: u64,
    /// `None`: another program gives them out, whose plugins tell nobody else how they are.
    pub n_unhealthy: Option<u64>,
}

/// Methods of the pod resources API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodResourcesCall {
    List,
    Get,
    GetAllocatable,
}

impl Metrics {
    /// Replaces all counts of devices. `None`: devices without a NUMA node.
    pub fn set_devices<'a>(
        &self,
        counts: impl IntoIterator<Item = (&'a str, Option<NumaNodeId>, DeviceCounts)>,
    ) {
        // Those past the bound are counted together.
        let mut by_labels: BTreeMap<[String; 2], DeviceCounts> = BTreeMap::new();
        for (resource, numa_node, counts) in counts {
            let numa_node = numa_node.map_or_else(|| "none".to_owned(), |it| it.to_string());
            let sum = by_labels
                .entry([self.resource(resource), numa_node])
                .or_default();
            sum.n_allocated += counts.n_allocated;
            if let Some(n) = counts.n_unhealthy {
                *sum.n_unhealthy.get_or_insert(0) += n;
            }
        }
        let families = &self.shared.devices;
        families.allocated.reset();
        families.unhealthy.reset();
        for (labels, counts) in &by_labels {
            let labels = labels.each_ref().map(String::as_str);
            set_count(&families.allocated, &labels, counts.n_allocated);
            set_or_leave_out(&families.unhealthy, &labels, counts.n_unhealthy);
        }
    }

    pub fn device_plugin_refused(&self, reason: RefusalReason) {
        let family = &self.shared.devices.refusals;
        family.with_label_values(&[reason.as_str()]).inc();
    }

    pub fn device_plugin_registered(&self, resource: &str) {
        let family = &self.shared.devices.registrations;
        let resource = self.resource(resource);
        family.with_label_values(&[resource.as_str()]).inc();
    }

    /// A call to Allocate ended, well or not.
    pub fn device_allocated(&self, resource: &str, duration: Duration) {
        let family = &self.shared.devices.alloc_duration;
        observe(family, &[&self.resource(resource)], duration);
    }

    /// The pod resources API is served from now on.
    pub fn begin_pod_resources(&self) {
        let families = &self.shared.pod_resources;
        for version in PodResourcesVersion::ALL {
            families.requests.with_label_values(&[version.as_str()]);
        }
        for family in [
            &families.list,
            &families.get,
            &families.get_allocatable,
            &families.list_errors,
            &families.get_errors,
            &families.get_allocatable_errors,
        ] {
            family.with_label_values(&[PodResourcesVersion::V1.as_str()]);
        }
    }

    /// As kubelet: requests of v1alpha1 are counted in all and not by method.
    pub fn pod_resources_request(&self, version: PodResourcesVersion, call: PodResourcesCall) {
        let families = &self.shared.pod_resources;
        let label = [version.as_str()];
        families.requests.with_label_values(&label).inc();
        if version == PodResourcesVersion::V1 {
            let family = match call {
                PodResourcesCall::List => &families.list,
                PodResourcesCall::Get => &families.get,
                PodResourcesCall::GetAllocatable => &families.get_allocatable,
            };
            family.with_label_values(&label).inc();
        }
    }

    pub fn pod_resources_error(&self, version: PodResourcesVersion, call: PodResourcesCall) {
        let families = &self.shared.pod_resources;
        let family = match call {
            PodResourcesCall::List => &families.list_errors,
            PodResourcesCall::Get => &families.get_errors,
            PodResourcesCall::GetAllocatable => &families.get_allocatable_errors,
        };
        family.with_label_values(&[version.as_str()]).inc();
    }

    /// The label of a resource, whose name comes from a plugin.
    fn resource(&self, name: &str) -> String {
        let mut known = lock(&self.shared.resources);
        if known.contains(name) || known.len() < MAX_RESOURCES {
            known.insert(name.to_owned());
            return name.to_owned();
        }
        "other".to_owned()
    }
}
