//! Whose a cgroup is: what it is by its place, and, apart from that, by which names people know it.
//! A cgroup is known from the moment it is made; its names may come later, or never.

use std::sync::Arc;

use super::cgroup_path::CgroupPath;
use super::event::{CgroupId, CgroupLineage, NamespaceRole, OomKill};
use super::kube_cgroup::{self, ContainerKey, KubeLevel};
use super::pod::{PodUid, QosClass};
use super::record::{OomScope, PodRef};
use super::workload::Workload;

/// What a registered cgroup is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// The node-allocatable cgroup.
    Kubepods,
    /// Never Guaranteed, which has no cgroup of its own.
    Qos(QosClass),
    Pod {
        uid: PodUid,
        qos: QosClass,
    },
    Container {
        uid: PodUid,
        qos: QosClass,
        key: ContainerKey,
    },
}

impl Level {
    /// `None`: of the monitor of a container, which is no part of it.
    pub fn of(level: KubeLevel) -> Option<Self> {
        Some(match level {
            KubeLevel::Kubepods => Self::Kubepods,
            KubeLevel::Qos(qos) => Self::Qos(qos),
            KubeLevel::Pod { uid, qos } => Self::Pod { uid, qos },
            KubeLevel::Container { uid, qos, key } => Self::Container { uid, qos, key },
            KubeLevel::Monitor { .. } => return None,
        })
    }
}

/// A registered cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub level: Level,
    pub path: CgroupPath,
}

impl Owner {
    /// That of a cgroup on a node whose pods lie below `root`. `None`: it is none of kubelet's or its runtime's.
    pub fn at(path: &CgroupPath, root: &CgroupPath) -> Option<Self> {
        let found = kube_cgroup::parse(path, root).filter(|it| it.inner.is_empty())?;
        Some(Self {
            level: Level::of(found.level)?,
            path: path.clone(),
        })
    }

    /// Of its pod; `None` above the pods.
    pub fn uid(&self) -> Option<&PodUid> {
        match &self.level {
            Level::Pod { uid, .. } | Level::Container { uid, .. } => Some(uid),
            Level::Kubepods | Level::Qos(_) => None,
        }
    }

    pub fn container(&self) -> Option<&ContainerKey> {
        match &self.level {
            Level::Container { key, .. } => Some(key),
            Level::Kubepods | Level::Qos(_) | Level::Pod { .. } => None,
        }
    }

    /// Of its pod; `None` above the pods.
    pub fn qos(&self) -> Option<QosClass> {
        match self.level {
            Level::Pod { qos, .. } | Level::Container { qos, .. } => Some(qos),
            Level::Kubepods | Level::Qos(_) => None,
        }
    }
}

/// Whose the cgroup of an event is, as far as it was known when the event was handled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributed {
    /// The cgroup, or the nearest registered one above it. `None`: nothing of its lineage is registered.
    pub owner: Option<Arc<Owner>>,
    /// `owner` is the event's own cgroup, not one above it.
    pub is_exact: bool,
    /// It is the cgroup of all pods or lies below it. False: it is the node's, or of a service.
    pub in_root: bool,
    /// The name of the owner's pod; `None`: it has none, or nobody has told it yet.
    pub pod: Option<Arc<PodRef>>,
    /// The name of the owner's container; `None` as above.
    pub container: Option<Arc<str>>,
    /// Of one outside of the pods, from the cgroup mount. `None`: it is gone, or nobody has looked.
    pub outside: Option<Arc<str>>,
}

impl Attributed {
    /// Below the cgroup of all pods, and of no pod that is known.
    pub fn is_of_no_pod(&self) -> bool {
        self.in_root && self.owner.as_ref().is_none_or(|it| it.uid().is_none())
    }

    /// Below the cgroup of all pods, not registered, and in no container: what it is nobody knows.
    pub fn is_unregistered(&self) -> bool {
        let owner = self.owner.as_ref();
        self.in_root && !self.is_exact && owner.is_none_or(|it| it.container().is_none())
    }

    /// The path of exactly the event's cgroup: that of one above it would name the wrong one.
    pub fn exact_path(&self) -> Option<&str> {
        let owner = self.owner.as_ref().filter(|_| self.is_exact);
        let path = owner.map(|it| it.path.as_str());
        path.or(self.outside.as_deref())
    }
}

/// Whose a kill of the OOM killer is, and whose limit it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomAttribution {
    pub victim: Attributed,
    /// Of the process whose allocation started the kill.
    pub trigger: Attributed,
    /// The cgroup that was full; `None`: none was, or none could be named.
    pub limit: Option<Attributed>,
    /// The cgroup of the victim's pod.
    pub pod: Option<Arc<Owner>>,
    /// Of the victim's pod; `None`: it was in none, or nobody has told yet.
    pub workload: Option<Arc<Workload>>,
    /// The container of that pod that the victim watched. `None`: none, or the kernel has not named its cgroup.
    pub watched: Option<ContainerKey>,
    pub scope: OomScope,
    /// The victim was the first process of its container. `None`: it was in none, or nobody knows.
    pub is_main: Option<bool>,
    /// See [`OomVictim::took_container`](super::record::OomVictim::took_container).
    pub took_container: Option<bool>,
}

impl OomAttribution {
    /// The victim was below the cgroup of all pods, and what its cgroup is nobody knows.
    pub fn is_unknown(&self) -> bool {
        let victim = &self.victim;
        self.watched.is_none() && (victim.is_of_no_pod() || victim.is_unregistered())
    }

    /// Names the cgroups outside of the pods of the victim and of the limit.
    pub fn name_outside(&mut self, kill: &OomKill, path_of: impl Fn(CgroupId) -> Option<Arc<str>>) {
        let limit = self.limit.as_mut().zip(kill.limit_cgroup.as_ref());
        let victim = (&mut self.victim, &kill.victim_cgroup);
        for (it, lineage) in [victim].into_iter().chain(limit) {
            if !it.in_root {
                it.outside = path_of(lineage.cgroup_id);
            }
        }
    }

    /// What decides whether the victim's container ended with it. `None`: it was in none, or what was full lies within
    /// it, certainly without its first process, and the rest of it goes on. `is_own`: that process was put right into the
    /// cgroup of the container; else it may be further down.
    pub fn group(&self, kill: &OomKill, is_own: bool) -> Option<OomGroup<'_>> {
        let container = self.victim.owner.as_ref();
        let container = container.filter(|it| it.container().is_some())?;
        let limit = self.limit.as_ref().filter(|it| !it.is_exact);
        let is_within = limit.is_some_and(|it| it.owner.as_ref() == Some(container));
        // Guaranteed pods have no class above them.
        let depth = match container.qos() {
            Some(QosClass::Guaranteed) => 2,
            _ => 3,
        };
        let way = &kill.victim_cgroup.below_root[..depth];
        let is_in = |it: &CgroupLineage| it.below_root[..depth] == *way;
        let limit = kill.limit_cgroup.filter(|_| is_within);
        // Of a namespace that is the host's, or several containers', it is not the container's.
        let first = match kill.victim_role {
            Some(NamespaceRole::Member { init }) if is_in(&init) => Some(init.cgroup_id),
            _ => None,
        };
        let is_below = first.is_none() || !way.contains(&first);
        let is_nested = !is_own && !self.victim.is_exact && is_below;
        let nested = is_nested.then(|| NestedGroup {
            victim: kill.victim_cgroup.cgroup_id,
            first,
            limit: limit.map(|it| it.cgroup_id),
        });
        (!is_within || nested.is_some()).then_some(OomGroup {
            container: &container.path,
            is_whole: !is_within,
            limit: self.limit.as_ref().filter(|it| it.is_exact).and_then(|it| {
                let owner = it.owner.as_ref()?;
                Some(&owner.path)
            }),
            nested,
        })
    }
}

/// The cgroups of a container whose `memory.oom.group` takes its first process along, or may: those between the victim's
/// and the one that was full that have both (`mem_cgroup_get_oom_group`, mm/memcontrol.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomGroup<'a> {
    pub container: &'a CgroupPath,
    /// Its own is among them, and those above it up to `limit`.
    pub is_whole: bool,
    /// `None`: up to the root.
    pub limit: Option<&'a CgroupPath>,
    /// Some below its own are among them.
    pub nested: Option<NestedGroup>,
}

/// The cgroups below that of a container which have the victim, and may have its first process: crun puts processes,
/// limits and `memory.oom.group` there, and systemd, as the first process, makes more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedGroup {
    /// Where the victim was.
    pub victim: CgroupId,
    /// Where the first process is. `None`: nobody knows.
    pub first: Option<CgroupId>,
    /// They count up to this one. `None`: all of them.
    pub limit: Option<CgroupId>,
}
