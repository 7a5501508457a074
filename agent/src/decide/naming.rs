//! The names of pods and containers, by what their cgroups tell of them: the UID and the container's id.
//!
//! In: names, whenever somebody tells them. Out: the name of what an event is about.
//!
//! Invariant: a name is kept until its cgroup is gone and [`KEPT_AFTER_END`] others have gone after it,
//! so the memory of the dead is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::model::attribution::Owner;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::PodUid;
use crate::model::record::PodRef;

/// How many names of the dead are kept: as many as cgroups, each of which has one at most.
pub const KEPT_AFTER_END: usize = super::attribution::KEPT_AFTER_REMOVAL;

/// What can have a name. Container ids need not differ between pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    uid: PodUid,
    /// `None`: the pod itself.
    container: Option<ContainerKey>,
}

impl Subject {
    fn of(owner: &Owner) -> Option<Self> {
        Some(Self {
            uid: owner.uid()?.clone(),
            container: owner.container().cloned(),
        })
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Names {
    pods: BTreeMap<PodUid, Arc<PodRef>>,
    containers: BTreeMap<Subject, Arc<str>>,
    /// Of those whose cgroup is gone, the oldest first.
    ended: VecDeque<Subject>,
}

impl Names {
    /// The pod of a UID has this name.
    pub fn name_pod(&mut self, pod: &Arc<PodRef>) {
        self.is_back(&Subject {
            uid: pod.uid.clone(),
            container: None,
        });
        self.pods.insert(pod.uid.clone(), Arc::clone(pod));
    }

    /// A container of the pod `uid` has this name.
    pub fn name_container(&mut self, uid: &PodUid, key: &ContainerKey, name: &str) {
        let subject = Subject {
            uid: uid.clone(),
            container: Some(key.clone()),
        };
        self.is_back(&subject);
        self.containers.insert(subject, name.into());
    }

    /// A static pod comes again with the UID that it had.
    fn is_back(&mut self, subject: &Subject) {
        self.ended.retain(|it| it != subject);
    }

    /// The cgroup is gone. What is on its way still gets the name.
    pub fn end(&mut self, owner: &Owner) {
        let Some(subject) = Subject::of(owner) else {
            return;
        };
        self.ended.push_back(subject);
        if self.ended.len() > KEPT_AFTER_END
            && let Some(oldest) = self.ended.pop_front()
        {
            match oldest.container {
                None => drop(self.pods.remove(&oldest.uid)),
                Some(_) => drop(self.containers.remove(&oldest)),
            }
        }
    }

    /// The name of the pod of a cgroup.
    pub fn pod_of(&self, owner: &Owner) -> Option<&Arc<PodRef>> {
        self.pods.get(owner.uid()?)
    }

    /// The name of the container of a cgroup.
    pub fn container_of(&self, owner: &Owner) -> Option<&Arc<str>> {
        let subject = Subject::of(owner).filter(|it| it.container.is_some())?;
        self.containers.get(&subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        for n in 0..KEPT_AFTER_END {
            names.end(&owner(&format!("x{n}"), None));
        }
        assert_eq!(named(&names, &of_container), [None, None]);
        assert_eq!(names.containers.len(), 1, "the other pod's");
    }

    #[test]
    fn who_comes_back_with_the_same_uid_is_not_forgotten() {
        let mut names = Names::default();
        let of_pod = owner("a", None);
        names.name_pod(&pod("a"));
        names.end(&of_pod);
        names.name_pod(&pod("a"));
        for n in 0..KEPT_AFTER_END + 1 {
            names.end(&owner(&format!("x{n}"), None));
        }
        assert!(names.pod_of(&of_pod).is_some());
    }
}
