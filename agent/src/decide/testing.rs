//! Pods for the tests of `decide`, written in one line.

use std::sync::Arc;

use super::attribution::CgroupIndex;
use super::resource_settings::{CpuLimits, NodeFacts, OomScope, ResourceSettings};
use crate::config::{Compat, SwapBehavior};
use crate::model::api_pod::{ApiPod, Definition};
use crate::model::attribution::{Level, Owner};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::{AttributionMethod, CgroupId, CgroupLineage, OomKill, ProcessKey};
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::{Container, Pod, PodOrigin, PodUid, QosClass, ResourceList, Resources};
use crate::model::record::PodRef;
use crate::model::status::CgroupVersion;
use crate::model::workload::Workload;
use crate::units::{Bytes, DEFAULT_CPU_PERIOD};

/// As an API server tells of it: a pod of the namespace `default` whose UID is its name, that asks for nothing.
pub(crate) fn api_pod(name: &str) -> ApiPod {
    let pod = Arc::new(PodRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: PodUid(name.to_owned()),
    });
    ApiPod {
        workload: Arc::new(Workload::of_pod(&pod)),
        pod,
        is_mirror: false,
        is_over: false,
        definition: Ok(Definition::default()),
        containers: Vec::new(),
    }
}

/// Blocks of a kind and resources: `app {req cpu=1 lim memory=1Gi} sidecar {} init {} pod {}
/// overhead {req cpu=1}`. Containers are named by kind and position. No defaults are applied.
#[track_caller]
pub(crate) fn pod(spec: &str) -> Pod {
    let source = serde_json::json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
        "spec": {"containers": [{"name": "x"}]},
    });
    let source = serde_json::from_value(source).expect("a v1.Pod");
    let mut pod = Pod::from_v1(&source, PodOrigin::Api).expect("a valid pod");
    let blank = pod.containers.remove(0);
    for (i, block) in spec.split_terminator('}').enumerate() {
        let (kind, lists) = block.split_once('{').expect("kind {resources}");
        let resources = resources(lists);
        let kind = kind.trim();
        let container = Container {
            name: format!("{kind}{i}"),
            resources: resources.clone(),
            is_sidecar: kind == "sidecar",
            ..blank.clone()
        };
        match kind {
            "app" => pod.containers.push(container),
            "init" | "sidecar" => pod.init_containers.push(container),
            "pod" => pod.resources = Some(resources),
            "overhead" => pod.overhead = resources.requests,
            other => panic!("unknown kind {other}"),
        }
    }
    pod
}

fn resources(text: &str) -> Resources {
    let mut resources = Resources::default();
    let mut list: &mut ResourceList = &mut resources.requests;
    for word in text.split_whitespace() {
        match word {
            "req" => list = &mut resources.requests,
            "lim" => list = &mut resources.limits,
            word => {
                let (name, amount) = word.split_once('=').expect("name=amount");
                list.insert(name.to_owned(), amount.parse().expect("a quantity"));
            }
        }
    }
    resources
}

/// A v2 node of 16 GiB with every switch at its default.
pub(crate) fn settings(compat: Compat) -> ResourceSettings {
    ResourceSettings {
        compat,
        node: NodeFacts {
            version: CgroupVersion::V2,
            memory: Bytes(16 << 30),
            allocatable_memory: Some(Bytes(14 << 30)),
            swap: Bytes(4 << 30),
            is_swap_limitable: true,
            page_size: Bytes(4096),
        },
        cpu_limits: CpuLimits::Enforced,
        cpu_period: DEFAULT_CPU_PERIOD,
        pod_pids_limit: None,
        memory_qos: None,
        swap_behavior: SwapBehavior::NoSwap,
        oom_scope: OomScope::Container,
    }
}

/// A kill of which nothing is known but when and where.
pub(crate) fn oom_kill(ms: u64, cgroup: CgroupId) -> OomKill {
    let lineage = CgroupLineage {
        cgroup_id: cgroup,
        below_root: [None; 3],
        in_root: true,
    };
    OomKill {
        at_ns: ms * 1_000_000,
        victim: ProcessKey {
            pid: 1,
            start_boottime_ns: 0,
        },
        victim_tid: 1,
        victim_comm: String::new(),
        victim_uid: 0,
        victim_parent_pid: 1,
        victim_cgroup: lineage,
        victim_names: Default::default(),
        victim_parent_cgroup: CgroupLineage {
            cgroup_id: CgroupId(1),
            below_root: [None; 3],
            in_root: false,
        },
        victim_role: None,
        oom_score_adj: 0,
        anon_bytes: 0,
        file_bytes: 0,
        shmem_bytes: 0,
        swap_bytes: 0,
        page_table_bytes: 0,
        total_vm_bytes: 0,
        trigger_pid: 1,
        trigger_comm: String::new(),
        trigger_cgroup: lineage,
        constraint: None,
        limit_cgroup: None,
        limit_usage_bytes: None,
        limit_max_bytes: None,
        method: AttributionMethod::None,
        was_exiting: false,
        last_reclaim: None,
    }
}

/// A container as its runtime knows it.
pub(crate) fn key(id: &str) -> ContainerKey {
    ContainerKey {
        id: id.to_owned(),
        runtime: None,
    }
}

/// Registers a cgroup by its id, which is its path too.
pub(crate) fn registered(index: &mut CgroupIndex, id: u64, level: Level) {
    let path = CgroupPath::root().join(&id.to_string()).expect("a path");
    index.insert(CgroupId(id), Owner { level, path });
}

/// Registers the cgroups of a pod and of its only container, with their names.
pub(crate) fn register(
    index: &mut CgroupIndex,
    [of_pod, of_container]: [u64; 2],
    qos: QosClass,
    pod: &str,
    container: &str,
) {
    let pod = Arc::new(PodRef {
        namespace: "default".into(),
        name: pod.into(),
        uid: PodUid(format!("uid-{pod}")),
    });
    let (uid, key) = (pod.uid.clone(), key(&format!("{container}-0")));
    index.names.name_pod(&pod);
    index.names.name_container(&uid, &key, container);
    let level = Level::Pod {
        uid: uid.clone(),
        qos,
    };
    registered(index, of_pod, level);
    registered(index, of_container, Level::Container { uid, qos, key });
}
