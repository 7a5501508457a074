//! The names of pods and containers, by what their cgroups tell of them: the UID and the container's id.
//!
//! In: names, whenever somebody tells them. Out: the name of what an event is about.
//!
//! Invariant: a name is kept until its cgroup is gone and [`KEPT`](super::ended::KEPT) others have gone
//! after it, and the API server has it no more, so the memory of the dead is bounded.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::ended::Ended;
use crate::model::api_pod::ApiPod;
use crate::model::attribution::Owner;
use crate::model::kube_cgroup::ContainerKey;
use crate::model::pod::PodUid;
use crate::model::record::{Event, EventDetail, PodRef};
use crate::model::runtime_names::{Identified, Role};
use crate::model::workload::Workload;

/// A pod, or one of its containers by its id.
type Subject = (PodUid, Option<Box<str>>);

fn subject(owner: &Owner) -> Option<Subject> {
    let id = owner.container().map(|it| it.id.as_str().into());
    Some((owner.uid()?.clone(), id))
}

/// What an id below a pod is of, as its runtime tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// It holds the namespaces of the pod, and is no container of it.
    Sandbox,
    Container {
        name: Arc<str>,
        /// How often the pod has started a container of this name before.
        attempt: u32,
        /// `None`: its runtime has not named it.
        image: Option<Arc<str>>,
    },
}

impl Known {
    fn image(&self) -> Option<&Arc<str>> {
        match self {
            Self::Container { image, .. } => image.as_ref(),
            Self::Sandbox => None,
        }
    }
}

/// Of a pod and its containers, those by their ids. Ids need not differ between pods.
#[derive(Debug, Default)]
struct PodNames {
    pod: Option<Arc<PodRef>>,
    containers: BTreeMap<Box<str>, Known>,
    /// As the API server has it, or had it last.
    declared: Option<Arc<ApiPod>>,
    /// The API server has it.
    is_listed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Names {
    pods: BTreeMap<PodUid, PodNames>,
    ended: Ended<Subject>,
    /// The API server is asked whose pods they are.
    asks_for_workloads: bool,
}

impl Names {
    /// From now on a pod is taken to be its own workload only where the API server says so.
    pub fn ask_for_workloads(&mut self) {
        self.asks_for_workloads = true;
    }

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
        let known = Known::Container {
            name: name.into(),
            attempt: 0,
            image: None,
        };
        if self.set_container(uid, &key.id, known).is_some() {
            self.ended
                .remove(&(uid.clone(), Some(key.id.as_str().into())));
        }
    }

    /// Takes what a runtime tells. True: some of it was not known.
    pub fn learn_each(&mut self, identified: &[Identified]) -> bool {
        let new = identified.iter().filter(|it| self.learn(it));
        new.count() > 0
    }

    /// The same of one.
    pub fn learn(&mut self, identified: &Identified) -> bool {
        let Identified { id, pod, role } = identified;
        let names = self.pods.get(&pod.uid);
        let before = names.and_then(|it| it.containers.get(id.as_str()));
        let known = match role {
            Role::Sandbox => Known::Sandbox,
            Role::Container {
                name,
                attempt,
                image,
            } => Known::Container {
                name: Arc::clone(name),
                attempt: *attempt,
                // A list may have another of its names.
                image: before.and_then(Known::image).or(image.as_ref()).cloned(),
            },
        };
        let is_named = names.is_some_and(|it| it.pod.as_ref() == Some(pod));
        let is_known = is_named && before == Some(&known);
        if !is_known {
            self.name_pod(pod);
            self.set_container(&pod.uid, id, known);
        }
        !is_known
    }

    /// Takes what the API server tells of a pod. The runtime is nearer to its containers: what it has told of one
    /// stands. True: something of it was not known.
    pub fn learn_pod(&mut self, declared: &Arc<ApiPod>) -> bool {
        let names = self.pods.entry(declared.pod.uid.clone()).or_default();
        let known = names.declared.as_ref().filter(|_| names.is_listed);
        // Who has a UID by himself is no mirror of another, and a mirror has the name that the runtime knows.
        let is_of_another =
            known.is_some_and(|it| !it.is_mirror) || names.is_named_otherwise(&declared.pod);
        if known == Some(declared) || declared.is_mirror && is_of_another {
            return false;
        }
        names.pod = Some(Arc::clone(&declared.pod));
        (names.declared, names.is_listed) = (Some(Arc::clone(declared)), true);
        for container in &declared.containers {
            for instance in &container.instances {
                let known = || Known::Container {
                    name: Arc::clone(&container.name),
                    attempt: instance.attempt,
                    image: None,
                };
                let id = instance.id.as_str().into();
                names.containers.entry(id).or_insert_with(known);
            }
        }
        true
    }

    /// The API server has these pods no more. Who has no cgroup is forgotten, which is asked of each with the id of
    /// the container, or none for the pod.
    pub fn unlist(
        &mut self,
        is_listed: impl Fn(&PodUid) -> bool,
        is_there: impl Fn(&PodUid, Option<&str>) -> bool,
    ) {
        self.pods.retain(|uid, names| {
            if names.is_listed && !is_listed(uid) {
                names.is_listed = false;
                names.retain(uid, &is_there);
            }
            !names.is_empty()
        });
    }

    fn set_container(&mut self, uid: &PodUid, id: &str, known: Known) -> Option<Known> {
        let names = self.pods.entry(uid.clone()).or_default();
        names.containers.insert(id.into(), known)
    }

    /// Forgets the pods and the containers that are not to be kept, which is asked of each with the id of the
    /// container, or none for the pod.
    pub fn retain(&mut self, is_kept: impl Fn(&PodUid, Option<&str>) -> bool) {
        self.pods.retain(|uid, names| {
            names.retain(uid, &is_kept);
            !names.is_empty()
        });
    }

    /// The cgroup is there, perhaps again.
    pub fn begin(&mut self, owner: &Owner) {
        if let Some(subject) = subject(owner) {
            self.ended.remove(&subject);
        }
    }

    /// The cgroup is gone. What is on its way still gets the name.
    pub fn end(&mut self, owner: &Owner) {
        let Some(subject) = subject(owner) else {
            return;
        };
        if let Some((uid, id)) = self.ended.push(subject)
            && let Some(names) = self.pods.get_mut(&uid)
        {
            match id {
                None if names.is_listed => {}
                None => names.forget(),
                Some(id) => drop(names.containers.remove(&id)),
            }
            if names.is_empty() {
                self.pods.remove(&uid);
            }
        }
    }

    /// The name of the pod of a cgroup.
    pub fn pod_of(&self, owner: &Owner) -> Option<&Arc<PodRef>> {
        self.pod(owner.uid()?)
    }

    /// The name of the pod of a UID.
    pub fn pod(&self, uid: &PodUid) -> Option<&Arc<PodRef>> {
        self.pods.get(uid)?.pod.as_ref()
    }

    /// Whether the API server has this pod, and not another one under its UID.
    pub fn lists(&self, pod: &PodRef) -> bool {
        let names = self.pods.get(&pod.uid).filter(|it| it.is_listed);
        let declared = names.and_then(|it| it.declared.as_ref());
        declared.is_some_and(|it| *it.pod == *pod)
    }

    /// Whether whose the pod is has been told.
    pub fn is_listed(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|it| it.is_listed)
    }

    /// The pods that the API server has, by UID.
    pub fn listed(&self) -> impl Iterator<Item = &Arc<ApiPod>> {
        let listed = self.pods.values().filter(|it| it.is_listed);
        listed.filter_map(|it| it.declared.as_ref())
    }

    /// A pod as the API server has it, or had it last.
    pub fn declared(&self, uid: &PodUid) -> Option<&Arc<ApiPod>> {
        self.pods.get(uid)?.declared.as_ref()
    }

    /// Whose pod it is; `None`: nobody has told.
    pub fn workload(&self, uid: &PodUid) -> Option<Arc<Workload>> {
        let names = self.pods.get(uid)?;
        match &names.declared {
            Some(declared) => Some(Arc::clone(&declared.workload)),
            None if self.asks_for_workloads => None,
            None => Some(Arc::new(Workload::of_pod(names.pod.as_ref()?))),
        }
    }

    /// The name of the container of a cgroup. A sandbox has none.
    pub fn container_of(&self, owner: &Owner) -> Option<&Arc<str>> {
        self.container(owner.uid()?, &owner.container()?.id)
    }

    /// The same of an id of a pod; `None` where nobody has told, too.
    pub fn container(&self, uid: &PodUid, id: &str) -> Option<&Arc<str>> {
        match self.known(uid, id)? {
            Known::Container { name, .. } => Some(name),
            Known::Sandbox => None,
        }
    }

    /// An event that was taken before the names came, with them: those of the victim of a kill and of the process whose
    /// allocation started it. `None`: it has them, or they have not come.
    pub fn name_event(&self, event: &Event) -> Option<Event> {
        let own = Nameless {
            pod: event.pod.as_ref(),
            pod_uid: event.pod_uid.as_ref(),
            container_id: event.container_id.as_deref(),
        };
        let own = self.named(&own);
        let trigger = match &event.detail {
            Some(EventDetail::Oom(detail)) => self.named(&Nameless {
                pod: detail.trigger.pod.as_ref(),
                pod_uid: detail.trigger.pod_uid.as_ref(),
                container_id: detail.trigger.container_id.as_deref(),
            }),
            _ => None,
        };
        if own.is_none() && trigger.is_none() {
            return None;
        }
        let mut event = event.clone();
        if let Some(named) = own {
            let it = &mut event;
            named.put(
                &mut it.pod,
                &mut it.pod_uid,
                &mut it.container,
                &mut it.container_id,
            );
        }
        if let (Some(named), Some(EventDetail::Oom(detail))) = (trigger, &mut event.detail) {
            let it = &mut detail.trigger;
            named.put(
                &mut it.pod,
                &mut it.pod_uid,
                &mut it.container,
                &mut it.container_id,
            );
        }
        Some(event)
    }

    /// `None`: nothing of it has come.
    fn named(&self, it: &Nameless<'_>) -> Option<Named<'_>> {
        let uid = it.pod.map(|it| &it.uid).or(it.pod_uid)?;
        let named = Named {
            pod: it.pod_uid.and_then(|it| self.pod(it)),
            container: it.container_id.and_then(|id| self.known(uid, id)),
        };
        (named.pod.is_some() || named.container.is_some()).then_some(named)
    }

    /// What an id of a pod is of; `None`: nobody has told.
    pub fn known(&self, uid: &PodUid, id: &str) -> Option<&Known> {
        self.pods.get(uid)?.containers.get(id)
    }

    /// The same of an id that is known by the name of its pod alone.
    pub fn known_in(&self, namespace: &str, pod: &str, id: &str) -> Option<(&Arc<PodRef>, &Known)> {
        let named = self.pods.values().filter_map(|it| {
            let name = it.pod.as_ref()?;
            (name.namespace == namespace && name.name == pod).then_some((name, it))
        });
        named
            .filter_map(|(name, it)| Some((name, it.containers.get(id)?)))
            .next()
    }
}

/// What an event is about, as far as it is known.
struct Nameless<'a> {
    pod: Option<&'a PodRef>,
    /// Where `pod` is not known.
    pod_uid: Option<&'a PodUid>,
    /// Where the container has no name.
    container_id: Option<&'a str>,
}

/// What has come of it since.
struct Named<'a> {
    pod: Option<&'a Arc<PodRef>>,
    container: Option<&'a Known>,
}

impl Named<'_> {
    /// A sandbox is of the pod as a whole.
    fn put(
        &self,
        pod: &mut Option<PodRef>,
        pod_uid: &mut Option<PodUid>,
        container: &mut Option<String>,
        container_id: &mut Option<String>,
    ) {
        if let Some(named) = self.pod {
            (*pod, *pod_uid) = (Some((**named).clone()), None);
        }
        if let Some(known) = self.container {
            *container = match known {
                Known::Container { name, .. } => Some(name.to_string()),
                Known::Sandbox => None,
            };
            *container_id = None;
        }
    }
}

impl PodNames {
    /// By the runtime.
    fn is_named_otherwise(&self, pod: &PodRef) -> bool {
        let is_told = self.containers.values().any(|it| *it == Known::Sandbox);
        let known = self.pod.as_ref().filter(|_| is_told);
        known.is_some_and(|it| (&it.namespace, &it.name) != (&pod.namespace, &pod.name))
    }

    fn retain(&mut self, uid: &PodUid, is_kept: &impl Fn(&PodUid, Option<&str>) -> bool) {
        self.containers.retain(|id, _| is_kept(uid, Some(id)));
        if !self.is_listed && !is_kept(uid, None) && self.containers.is_empty() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        (self.pod, self.declared) = (None, None);
    }

    fn is_empty(&self) -> bool {
        self.pod.is_none() && self.containers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::ended::KEPT;
    use crate::model::api_pod::{ApiContainer, ApiInstance, ContainerRole, Definition};
    use crate::model::attribution::Level;
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::kube_cgroup::CgroupRuntime;
    use crate::model::pod::QosClass;
    use crate::model::record::tests::oom_record;

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

    fn identified(uid: &str, id: &str, role: Role) -> Identified {
        Identified {
            id: id.to_owned(),
            pod: pod(uid),
            role,
        }
    }

    fn app(attempt: u32) -> Role {
        Role::Container {
            name: "app".into(),
            attempt,
            image: None,
        }
    }

    #[test]
    fn what_a_runtime_tells_again_is_nothing_new() {
        let mut names = Names::default();
        let (app, pause) = (
            identified("a", "1", app(2)),
            identified("a", "2", Role::Sandbox),
        );
        assert!(names.learn(&pause) && names.learn(&app));
        assert!(!names.learn(&pause) && !names.learn(&app));
        let name = Some("name-of-a".to_owned());
        assert_eq!(
            named(&names, &owner("a", Some("1"))),
            [name.clone(), Some("app".to_owned())]
        );
        assert_eq!(named(&names, &owner("a", Some("2"))), [name, None]);
        let uid = PodUid("a".into());
        assert_eq!(names.known(&uid, "2"), Some(&Known::Sandbox));
        let found = names.known_in("default", "name-of-a", "1");
        let app = Known::Container {
            name: "app".into(),
            attempt: 2,
            image: None,
        };
        assert_eq!(found.map(|(_, it)| it), Some(&app));
        assert_eq!(names.known_in("default", "name-of-b", "1"), None);
    }

    #[test]
    fn an_image_keeps_the_first_of_its_names() {
        let mut names = Names::default();
        let uid = PodUid("a".into());
        let image = |it: &str| Some(Arc::<str>::from(it));
        names.learn_pod(&declared("a", &[("app", &["1"])]));
        for (told, is_new, kept) in [
            (None, false, None),
            (
                image("docker.io/library/app:1"),
                true,
                Some("docker.io/library/app:1"),
            ),
            (
                image("docker.io/library/app:2"),
                false,
                Some("docker.io/library/app:1"),
            ),
            (None, false, Some("docker.io/library/app:1")),
        ] {
            let role = Role::Container {
                name: "app".into(),
                attempt: 7,
                image: told.clone(),
            };
            assert_eq!(names.learn(&identified("a", "1", role)), is_new, "{told:?}");
            let known = names.known(&uid, "1").and_then(Known::image);
            assert_eq!(known.map(|it| &**it), kept, "{told:?}");
        }
    }

    #[test]
    fn the_prefix_of_a_runtimes_cgroups_is_no_part_of_an_id() {
        let mut names = Names::default();
        names.learn(&identified("a", "1", app(0)));
        let key = ContainerKey {
            runtime: Some(CgroupRuntime::CriO),
            ..key("1")
        };
        let level = Level::Container {
            uid: PodUid("a".into()),
            qos: QosClass::Burstable,
            key,
        };
        let path = CgroupPath::root();
        let found = names.container_of(&Owner { level, path }).cloned();
        assert_eq!(found.as_deref(), Some("app"));
    }

    /// The kill of the fixture, in the container `1` of the pod `a`, for memory that the container `2` of the pod `b`
    /// asked for.
    fn unnamed_kill() -> Event {
        let mut event = oom_record(1).event;
        let uid = |it: &str| Some(PodUid(it.into()));
        (event.pod, event.pod_uid) = (None, uid("a"));
        (event.container, event.container_id) = (None, Some("1".to_owned()));
        let Some(EventDetail::Oom(detail)) = &mut event.detail else {
            panic!("a kill");
        };
        let trigger = &mut detail.trigger;
        (trigger.pod, trigger.pod_uid) = (None, uid("b"));
        (trigger.container, trigger.container_id) = (None, Some("2".to_owned()));
        event
    }

    fn subjects(event: &Event) -> [Option<String>; 2] {
        let Some(EventDetail::Oom(detail)) = &event.detail else {
            panic!("a kill");
        };
        [event.subject(), detail.trigger.subject()]
    }

    #[test]
    fn who_asked_for_the_memory_of_a_kill_is_named_late_too() {
        let mut names = Names::default();
        let event = unnamed_kill();
        assert_eq!(names.name_event(&event), None);
        names.learn(&identified("b", "2", app(0)));
        let event = names.name_event(&event).expect("there is a name");
        let trigger = Some("default/name-of-b/app".to_owned());
        assert_eq!(subjects(&event), [Some("a/1".to_owned()), trigger.clone()]);
        names.learn(&identified("a", "1", app(0)));
        let event = names.name_event(&event).expect("there is another");
        let victim = Some("default/name-of-a/app".to_owned());
        assert_eq!(subjects(&event), [victim, trigger.clone()]);
        assert_eq!(names.name_event(&event), None, "it has both");
        // It asked on the host.
        let mut of_host = unnamed_kill();
        (of_host.pod_uid, of_host.container_id) = (None, None);
        let of_host = names.name_event(&of_host).expect("there is a name");
        assert_eq!(subjects(&of_host), [None, trigger]);
    }

    #[test]
    fn what_happened_in_a_sandbox_happened_to_the_pod() {
        let mut names = Names::default();
        names.learn(&identified("a", "1", Role::Sandbox));
        let event = names.name_event(&unnamed_kill()).expect("a pod's name");
        let [victim, _] = subjects(&event);
        assert_eq!(victim.as_deref(), Some("default/name-of-a"));
        assert_eq!(event.container_id, None);
        assert_eq!(names.name_event(&event), None);
    }

    fn declared(uid: &str, containers: &[(&str, &[&str])]) -> Arc<ApiPod> {
        let containers = containers.iter().map(|(name, ids)| ApiContainer {
            name: (*name).into(),
            role: ContainerRole::Main,
            instances: ids
                .iter()
                .map(|it| ApiInstance {
                    id: (*it).to_owned(),
                    attempt: 7,
                })
                .collect(),
        });
        Arc::new(ApiPod {
            pod: pod(uid),
            is_mirror: false,
            workload: Arc::new(Workload {
                namespace: "default".to_owned(),
                kind: "Deployment".to_owned(),
                name: "shop".to_owned(),
            }),
            is_over: false,
            definition: Ok(Definition::default()),
            containers: containers.collect(),
        })
    }

    fn kind(names: &Names, uid: &str) -> Option<String> {
        let workload = names.workload(&PodUid(uid.into()))?;
        Some(workload.kind.clone())
    }

    #[test]
    fn the_api_server_names_whom_the_runtime_has_not_named() {
        let mut names = Names::default();
        names.learn(&identified("a", "1", app(2)));
        let told = declared("a", &[("other", &["1", "2"])]);
        assert!(names.learn_pod(&told));
        assert!(!names.learn_pod(&told), "nothing new");
        let uid = PodUid("a".into());
        let known = |id| match names.known(&uid, id) {
            Some(Known::Container { name, attempt, .. }) => Some((&**name, *attempt)),
            _ => None,
        };
        assert_eq!(known("1"), Some(("app", 2)), "the runtime's word stands");
        assert_eq!(known("2"), Some(("other", 7)));
    }

    /// Anybody may make an object that says it is the mirror of another pod.
    #[test]
    fn a_mirror_takes_no_name_from_a_pod_that_has_its_own_uid() {
        let mut names = Names::default();
        let real = declared("a", &[]);
        let fake = Arc::new(ApiPod {
            pod: Arc::new(PodRef {
                name: "fake".to_owned(),
                ..(*real.pod).clone()
            }),
            is_mirror: true,
            ..(*real).clone()
        });
        names.learn_pod(&fake);
        assert!(names.learn_pod(&real));
        assert!(!names.learn_pod(&fake));
        assert!(names.lists(&real.pod) && !names.lists(&fake.pod));
        assert_eq!(
            (names.listed().count(), names.declared(&real.pod.uid)),
            (1, Some(&real))
        );
    }

    #[test]
    fn a_mirror_has_the_name_that_the_runtime_knows() {
        let mut names = Names::default();
        names.learn(&identified("a", "1", Role::Sandbox));
        let mirror = |name: &str| {
            let real = declared("a", &[]);
            Arc::new(ApiPod {
                pod: Arc::new(PodRef {
                    name: name.to_owned(),
                    ..(*real.pod).clone()
                }),
                is_mirror: true,
                ..(*real).clone()
            })
        };
        let real = mirror(&pod("a").name);
        assert!(!names.learn_pod(&mirror("fake")));
        assert!(names.learn_pod(&real));
        assert!(!names.learn_pod(&mirror("fake")));
        assert_eq!(names.pod(&real.pod.uid), Some(&real.pod));
        assert_eq!(names.declared(&real.pod.uid), Some(&real));
    }

    #[test]
    fn a_pod_is_its_own_workload_where_nobody_else_is_asked() {
        let mut names = Names::default();
        assert_eq!(kind(&names, "a"), None);
        names.name_pod(&pod("a"));
        assert_eq!(kind(&names, "a").as_deref(), Some("Pod"));
        names.ask_for_workloads();
        assert_eq!(kind(&names, "a"), None, "it is not known yet");
        names.learn_pod(&declared("a", &[]));
        assert_eq!(kind(&names, "a").as_deref(), Some("Deployment"));
    }

    /// It may run on after the API server has deleted it, and be on the API server long after it ran.
    #[test]
    fn a_pod_is_known_as_long_as_it_is_listed_or_there() {
        let mut names = Names::default();
        let of_pod = owner("a", None);
        for uid in ["a", "b"] {
            names.learn_pod(&declared(uid, &[("app", &["1"])]));
        }
        names.retain(|_, _| false);
        assert!(
            kind(&names, "a").is_some(),
            "it is listed, though no runtime knows it"
        );
        names.end(&of_pod);
        for n in 0..KEPT {
            names.end(&owner(&format!("x{n}"), None));
        }
        assert!(
            kind(&names, "a").is_some(),
            "it is listed, though it is over"
        );
        names.unlist(|_| false, |uid, _| uid.0 == "a");
        assert!(kind(&names, "a").is_some(), "it is there");
        assert!(kind(&names, "b").is_none(), "neither");
        names.unlist(|_| false, |_, _| false);
        assert!(kind(&names, "a").is_some(), "its end will be told");
        names.retain(|_, _| false);
        assert!(names.pods.is_empty(), "{:?}", names.pods);
    }

    #[test]
    fn who_is_in_no_list_and_has_no_cgroup_is_forgotten() {
        let mut names = Names::default();
        for (uid, id) in [("a", "1"), ("a", "2"), ("b", "3"), ("c", "4")] {
            names.learn(&identified(uid, id, app(0)));
        }
        names.retain(|uid, id| uid.0 == "c" && id.is_none() || id == Some("2"));
        let left: Vec<_> = names.pods.iter().collect();
        let left: Vec<(&str, bool, usize)> = left
            .into_iter()
            .map(|(uid, it)| (&*uid.0, it.pod.is_some(), it.containers.len()))
            .collect();
        assert_eq!(
            left,
            [("a", true, 1), ("c", true, 0)],
            "a pod goes after its containers"
        );
    }
}
