//! The names of pods and containers, by what their cgroups tell of them: the UID and the container's id.
//!
//! In: names, whenever somebody tells them. Out: the name of what an event is about.
//!
//! Invariant: a name is kept until its cgroup is gone and [`KEPT`](super::ended::KEPT) others have gone
//! after it, so the memory of the dead is bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ended::Ended;
use crate::model::attribution::Owner;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;

/// A pod, or one of its containers.
type Subject = (PodUid, Option<ContainerKey>);

/// Of a pod and its containers. Container ids need not differ between pods.
#[derive(Debug, Default)]
struct PodNames {
    pod: Option<Arc<PodRef>>,
    containers: BTreeMap<ContainerKey, Arc<str>>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Names {
    pods: BTreeMap<PodUid, PodNames>,
    ended: Ended<Subject>,
}

impl Names {
    /// The pod of a UID has this name.
    pub fn name_pod(&mut self, pod: &Arc<PodRef>) {
        let names = self.pods.entry(pod.uid.clone()).or_default();
        // A static pod comes again with the UID that it had.
        if names.pod.replace(Arc::clone(pod)).is_some() {
            self.ended.remove(&(pod.uid.clone(), None));
        }
    }

    /// A container of the pod `uid` has this name.
    pub fn name_container(&mut self, uid: &PodUid, key: &ContainerKey, name: &str) {
        let names = self.pods.entry(uid.clone()).or_default();
        if names.containers.insert(key.clone(), name.into()).is_some() {
            self.ended.remove(&(uid.clone(), Some(key.clone())));
        }
    }

    /// The cgroup is gone. What is on its way still gets the name.
    pub fn end(&mut self, owner: &Owner) {
        let Some(uid) = owner.uid() else {
            return;
        };
        let ended = (uid.clone(), owner.container().cloned());
        if let Some((uid, key)) = self.ended.push(ended)
            && let Some(names) = self.pods.get_mut(&uid)
        {
            match key {
                None => names.pod = None,
                Some(key) => drop(names.containers.remove(&key)),
            }
            if names.pod.is_none() && names.containers.is_empty() {
                self.pods.remove(&uid);
            }
        }
    }

    /// The name of the pod of a cgroup.
    pub fn pod_of(&self, owner: &Owner) -> Option<&Arc<PodRef>> {
        self.pods.get(owner.uid()?)?.pod.as_ref()
    }

    /// The name of the container of a cgroup.
    pub fn container_of(&self, owner: &Owner) -> Option<&Arc<str>> {
        let names = self.pods.get(owner.uid()?)?;
        names.containers.get(owner.container()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::ended::KEPT;
    use crate::model::attribution::Level;
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::pod::QosClass;

    fn owner(uid: &str, container: Option<&str>) -> Owner {
        let (uid, qos) = (PodUid(uid.into()), QosClass::Burstable);
        let level = match container {
            None => Level::Pod { uid, qos },
            Some(id) => Level::Container {
                uid,
                qos,
                key: key(id),
            },
        };
        Owner {
            level,
            path: CgroupPath::root(),
        }
    }

    fn key(id: &str) -> ContainerKey {
        ContainerKey {
            id: id.to_owned(),
            runtime: None,
        }
    }

    fn pod(uid: &str) -> Arc<PodRef> {
        Arc::new(PodRef {
            namespace: "default".into(),
            name: format!("name-of-{uid}"),
            uid: PodUid(uid.into()),
        })
    }

    fn named(names: &Names, owner: &Owner) -> [Option<String>; 2] {
        let pod = names.pod_of(owner).map(|it| it.name.clone());
        [pod, names.container_of(owner).map(|it| it.to_string())]
    }

    #[test]
    fn a_name_may_come_after_its_cgroup_and_goes_long_after_it() {
        let mut names = Names::default();
        let (of_pod, of_container) = (owner("a", None), owner("a", Some("1")));
        assert_eq!(named(&names, &of_container), [None, None]);
        names.name_pod(&pod("a"));
        names.name_container(&PodUid("a".into()), &key("1"), "app");
        names.name_container(&PodUid("b".into()), &key("1"), "other");
        let both = [Some("name-of-a".to_owned()), Some("app".to_owned())];
        assert_eq!(named(&names, &of_container), both);
        assert_eq!(named(&names, &of_pod), [both[0].clone(), None]);
        names.end(&of_container);
        names.end(&of_pod);
        assert_eq!(named(&names, &of_container), both);
        for n in 0..KEPT {
            names.end(&owner(&format!("x{n}"), None));
        }
        assert_eq!(named(&names, &of_container), [None, None]);
        assert_eq!(names.pods.len(), 1, "the other pod's");
    }

    #[test]
    fn who_comes_back_with_the_same_uid_is_not_forgotten() {
        let mut names = Names::default();
        let of_pod = owner("a", None);
        names.name_pod(&pod("a"));
        names.end(&of_pod);
        names.name_pod(&pod("a"));
        for n in 0..KEPT + 1 {
            names.end(&owner(&format!("x{n}"), None));
        }
        assert!(names.pod_of(&of_pod).is_some());
    }
}
