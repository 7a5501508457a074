//! What the loop shows: the status document and the gauges. What only the manager of the node knows is not in
//! it: books, reservations, the state of a container.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::placement::ByUid;
use super::pods::defined;
use super::{Loop, names};
use crate::check::KILLS_ALONE;
use crate::model::api_server::ApiServerStatus;
use crate::model::container::PodPhase;
use crate::model::stats::{CgroupStats, KnownContainer, KnownPod, StatsSnapshot};
use crate::model::status::{
    self, AgentStatus, ApiVersion, CgroupStatus, ContainerEntry, EntryState, NodeStatus,
    ResourceBounds, ResourceStatus, Status, StatusKind,
};
use crate::model::time::WallTime;
use crate::observe::metrics::ContainerLabels;
use crate::observe::metrics::labels::ObjectKind;
use crate::run::amounts;
use crate::run::publisher::{self, Began};
use crate::run::usage::Usages;
use crate::sources::block_io::uncounted_disks;
use crate::sys::{Root, clock};
use crate::units::{Bytes, MilliCpu};

impl Loop {
    pub(super) fn publish(&mut self, now: Duration) {
        let began = Began::now();
        let pods = self.tree.readings.pods();
        let containers = || {
            let pods = pods.iter();
            pods.flat_map(|pod| pod.containers.iter().map(move |it| (pod, it)))
        };
        // A kill that was attributed before its name came may have been counted after it.
        self.take_names(false);
        let of_containers =
            containers().map(|(pod, it)| ContainerLabels::new(&pod.pod, &it.name, &it.runtime_id));
        // Of kills and processes in a pod and none of its containers, where there were any.
        let of_pods = pods.iter().map(|it| ContainerLabels::new(&it.pod, "", ""));
        let of_pods: Vec<_> = of_pods.filter(|it| self.metrics.knows(*it)).collect();
        self.metrics.sync_pods(of_containers.chain(of_pods), now);
        if self.tree.is_known() {
            let live = self.tree.kernel.index().live();
            // Not those that are shown: a kill may be counted in a pod before it is.
            let mut there: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for (_, owner) in &live {
                if let Some(uid) = owner.uid() {
                    let ids = there.entry(&uid.0).or_default();
                    ids.extend(owner.container().map(|it| it.id.as_str()));
                }
            }
            self.metrics.keep_pods(&there);
        }
        self.count_objects(pods.len(), containers().count());
        if let Some(reports) = &self.reports {
            reports.count(&self.metrics);
        }
        let psi = publisher::node_psi(&self.metrics, now);
        self.metrics.set_source_ages(now);
        let by_uid = pods.iter().map(|it| (&it.pod.uid, &*it.pod));
        let by_uid = self.knows_pods().then(|| by_uid.collect::<ByUid<'_>>());
        let status = self.status(&pods, by_uid.as_ref(), psi);
        self.show_places(status.node.placement.as_ref(), &pods, by_uid.as_ref());
        self.publisher.publish(status, began);
    }

    fn count_objects(&self, n_pods: usize, n_containers: usize) {
        let counts = {
            let index = self.tree.kernel.index();
            index.count(index.live().iter().map(|(id, _)| *id))
        };
        for (kind, n) in [
            (ObjectKind::Pod, n_pods),
            (ObjectKind::Container, n_containers),
            (ObjectKind::Cgroup, counts.all()),
        ] {
            self.metrics.set_objects(kind, n);
        }
        publisher::show_levels(&self.metrics, counts);
    }

    fn status(
        &self,
        pods: &[Arc<KnownPod>],
        by_uid: Option<&ByUid<'_>>,
        psi: status::PsiStatus,
    ) -> Status {
        let usages = Usages::of(&self.tree.readings);
        let stats = self.tree.readings.stats();
        let place = self.tree.place();
        let api_server = self.api_server_status();
        let events = api_server.as_ref().and_then(|it| it.events.as_ref());
        let events_fault = events.and_then(|it| it.fault.clone());
        let entries = pods
            .iter()
            .map(|it| self.pod(it, &usages, stats.as_deref()));
        Status {
            api_version: ApiVersion::V1Alpha1,
            kind: StatusKind::Status,
            agent: AgentStatus {
                passes: self.n_passes,
                last_pass_us: u64::try_from(self.last_pass.as_micros()).unwrap_or(u64::MAX),
                events: self.told.n_events(),
                last_event: self.told.last_event(),
                ..self.publisher.agent()
            },
            node: NodeStatus {
                name: self.node.name.clone(),
                cgroup: CgroupStatus {
                    version: self.node.version(),
                    driver: place.as_ref().map(|it| it.kubepods.driver),
                    root: place.map(|it| it.root.to_string()),
                    uncounted_disks: uncounted_disks(&Root::host(), &self.node.cgroups.layout),
                },
                resources: self.resources(&usages, stats.as_deref()),
                psi,
                ebpf: self.publisher.ebpf(self.tree.kernel.lost()),
                pressure: self.pressure.as_ref().and_then(|it| it.status.clone()),
                placement: self.placement.status(
                    self.kubelet_config(),
                    &self.node.topology,
                    by_uid,
                ),
                kubelet: self.kubelet.as_ref().ok().map(|it| it.status.clone()),
                runtime: self.runtime.clone(),
                api_server,
            },
            pods: entries.collect(),
            manifest_faults: Vec::new(),
            warnings: self
                .nameless(pods)
                .into_iter()
                .chain(self.kubelet_warnings())
                .chain(self.placement.warnings())
                .chain(self.strange_list(pods))
                .chain(misplaced(pods))
                .chain(
                    events_fault.map(|why| format!("OOM kills are no Events of their pods: {why}")),
                )
                .chain(self.faults.values().cloned())
                .collect(),
        }
    }

    fn api_server_status(&self) -> Option<ApiServerStatus> {
        let status = self.api_server.clone()?;
        let reports = self.reports.as_ref();
        Some(ApiServerStatus {
            events: reports.map(|it| it.status(self.tree.events_fault())),
            ..status
        })
    }

    fn nameless(&self, pods: &[Arc<KnownPod>]) -> Vec<String> {
        let now = WallTime::from_epoch(clock::wall());
        let (from, runtime) = (self.names_from(), self.runtime.as_ref());
        names::warnings(from, runtime, self.is_runtime_named(), pods, now)
    }

    /// What the node has, what kubelet keeps of it, if that is known, what all pods request, as the API server tells, and
    /// what they use of it.
    fn resources(
        &self,
        usages: &Usages,
        stats: Option<&StatsSnapshot>,
    ) -> BTreeMap<String, ResourceStatus> {
        let of_pods = stats.and_then(|it| {
            let pods = it.pods.iter().filter_map(|it| it.stats.as_ref());
            pods.map(|it| it.memory.usage).sum::<Option<u64>>()
        });
        let cpu = usages.kubepods_cpu().map(|MilliCpu(milli)| milli);
        let kubelet = self.kubelet_config();
        let is_known = self.kubelet.is_ok() || self.settings.knows_thresholds;
        // Without thresholds that can be understood nobody knows what is kept for them.
        let allocatable = amounts::allocatable(kubelet, &self.node.capacity);
        let allocatable = allocatable.ok().filter(|_| is_known);
        let mut resources = match allocatable {
            Some(allocatable) => {
                amounts::resources(&allocatable, kubelet, self.node.capacity.n_cpus)
            }
            None => self.capacities(),
        };
        for (name, used) in [("cpu", cpu), ("memory", of_pods)] {
            if let Some(resource) = resources.get_mut(name) {
                resource.used = used;
            }
        }
        let api_server = self.api_server.as_ref();
        if api_server.is_some_and(ApiServerStatus::has_told) {
            let index = self.tree.kernel.index();
            let requests = defined(&index.names).map(|(_, it)| &it.requests);
            amounts::set_requested(&mut resources, requests);
        }
        resources
    }

    fn capacities(&self) -> BTreeMap<String, ResourceStatus> {
        let n_cpus = self.node.topology.online().len() as u64;
        let capacities = [
            ("cpu", n_cpus * 1000),
            ("memory", self.node.capacity.memory.0),
        ];
        let resources = capacities.map(|(name, capacity)| {
            let resource = ResourceStatus {
                capacity,
                ..ResourceStatus::default()
            };
            (name.to_owned(), resource)
        });
        resources.into()
    }

    fn pod(
        &self,
        pod: &KnownPod,
        usages: &Usages,
        stats: Option<&StatsSnapshot>,
    ) -> status::PodEntry {
        let mut stalls = self.tree.readings.stalls_of(&pod.pod.uid);
        let declared = self
            .tree
            .kernel
            .index()
            .names
            .declared(&pod.pod.uid)
            .cloned();
        let definition = declared.as_ref().and_then(|it| it.definition.as_ref().ok());
        let read = stats.and_then(|it| {
            let index = it.pods.binary_search_by(|it| it.pod.cmp(&pod.pod)).ok()?;
            Some(&it.pods[index])
        });
        let containers: Vec<ContainerEntry> = pod
            .containers
            .iter()
            .map(|it| {
                let mut found = read.into_iter().flat_map(|it| &it.containers);
                let found = found.find(|read| read.runtime_id == it.runtime_id);
                ContainerEntry {
                    name: it.name.clone(),
                    id: it.name.is_empty().then(|| it.runtime_id.clone()),
                    kind: declared
                        .as_ref()
                        .and_then(|pod| Some(pod.container(&it.name)?.role)),
                    state: state(pod, it),
                    restarts: it.restarts,
                    oom_kills: it.oom_events,
                    cpuset: self.placement.cpuset(&pod.pod.uid, &it.name),
                    resources: bounds(
                        definition.and_then(|pod| pod.requests_of(&it.name)),
                        found.map(|it| &it.stats),
                    ),
                    usage: usages.container(&pod.pod, &it.runtime_id),
                    memory_stall: stalls.containers.remove(it.known_as()),
                }
            })
            .collect();
        status::PodEntry {
            namespace: pod.pod.namespace.clone(),
            name: pod.pod.name.clone(),
            uid: pod.pod.uid.clone(),
            workload: declared.as_ref().map(|it| (*it.workload).clone()),
            qos: pod.qos,
            qos_reason: None,
            phase: phase(pod),
            reason: None,
            message: None,
            cgroup_path: Some(pod.cgroup.to_string()),
            started_at: Some(pod.started_at),
            redefined: None,
            warnings: Vec::new(),
            resources: bounds(
                definition.map(|it| ResourceBounds::of_requests(&it.requests)),
                read.and_then(|it| it.stats.as_ref()),
            ),
            usage: usages.pod(&pod.pod),
            memory_stall: stalls.pod,
            oom_kills: self.metrics.oom_kills_in(&pod.pod.uid),
            containers,
        }
    }
}

/// What its processes tell: nobody has told which of them is the main one, nor how one without a process ended.
fn state(pod: &KnownPod, container: &KnownContainer) -> EntryState {
    match container.pid {
        Some(_) => EntryState::Running {
            pid: None,
            started_at: container.started_at.unwrap_or(pod.started_at),
        },
        None => EntryState::Waiting {
            reason: Some("NoProcess".to_owned()),
            message: None,
            until: None,
        },
    }
}

/// Whether it has not begun, or is over, nobody has told.
fn phase(pod: &KnownPod) -> PodPhase {
    match pod.containers.iter().any(|it| it.pid.is_some()) {
        true => PodPhase::Running,
        false => PodPhase::Unknown,
    }
}

/// Requests as the API server tells them, limits as the cgroup has them.
fn bounds(requests: Option<ResourceBounds>, stats: Option<&CgroupStats>) -> ResourceBounds {
    let spec = stats.map(|it| &it.spec);
    let cpu = spec.and_then(|it| {
        let micros = it.cpu_quota_us?;
        Some(MilliCpu(
            micros.saturating_mul(1000) / it.cpu_period_us?.max(1),
        ))
    });
    ResourceBounds {
        cpu_limit_milli: cpu,
        memory_limit_bytes: spec.and_then(|it| it.memory_limit).map(Bytes),
        ..requests.unwrap_or_default()
    }
}

/// Containers that their runtime has put elsewhere than into the cgroup of their pod.
fn misplaced(pods: &[Arc<KnownPod>]) -> Option<String> {
    let of_pod = |pod: &Arc<KnownPod>| {
        let containers = pod.containers.iter().map(|it| &it.cgroup);
        let elsewhere = containers.filter(|it| it.below(&pod.cgroup).is_none());
        elsewhere.map(ToString::to_string).collect::<Vec<_>>()
    };
    let all: Vec<String> = pods.iter().flat_map(of_pod).collect();
    let first = all.first()?;
    let which = match all.len() {
        1 => format!("a container lies outside the cgroup of its pod ({first})"),
        n => format!("{n} containers lie outside the cgroups of their pods (as {first})"),
    };
    Some(format!(
        "{which}, whose limits do not hold there, and of what happens there {KILLS_ALONE}: kubelet and its runtime \
         have different cgroup drivers"
    ))
}
