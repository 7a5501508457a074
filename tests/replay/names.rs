//! Who is who on a recorded node: what its container runtime, its API server and its kubelet have said is said again, to
//! the threads of the agent that listen to them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use anyhow::{Context, Result, bail, ensure};
use ballast::api_server::{self, ApiServer, FindKubelet, KubeletServer, Settings};
use ballast::cri::{self, Cri};
use ballast::decide::attribution::CgroupIndex;
use ballast::decide::naming::{Known, Names};
use ballast::model::api_pod::{ApiContainer, ApiPod};
use ballast::model::api_server::PodsFrom;
use ballast::model::attribution::{Level, Owner};
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::event::CgroupId;
use ballast::model::kube_cgroup;
use ballast::model::pod::PodUid;
use ballast::model::runtime_names::{Follows, Identified, Role};
use ballast_tests::api_server::{FakeApiServer, Manner as ApiManner};
use ballast_tests::cri::{FakeRuntime, Manner, socket_in};
use ballast_tests::scratch::Scratch;
use ballast_tests::tls::{Authority, Front, pem};
use ballast_tests::wait::{patience, until};
use serde_json::Value;

use super::{check_golden, data, recorded};

/// The node that was recorded.
const NODE: &str = "node2";

/// What a thread of the agent tells.
struct Heard<T>(Receiver<T>);

impl<T> Heard<T> {
    fn new() -> (Self, impl Fn(T) + Send + Sync + 'static)
    where
        T: Send + 'static,
    {
        let (sender, told) = mpsc::channel();
        (Self(told), move |it| sender.send(it).unwrap_or_default())
    }

    fn next(&self, what: &str) -> Result<T> {
        self.0
            .recv_timeout(patience())
            .with_context(|| format!("waiting for {what}"))
    }

    /// The first that `take` takes.
    fn first<U>(&self, what: &str, take: impl Fn(T) -> Option<U>) -> Result<U> {
        loop {
            if let Some(found) = take(self.next(what)?) {
                return Ok(found);
            }
        }
    }
}

fn all(told: cri::Told) -> Option<Vec<Identified>> {
    match told {
        cri::Told::All(all) => Some(all),
        cri::Told::Some(_) | cri::Told::Happened | cri::Told::State(_) => None,
    }
}

/// The list is empty, so each name comes from an event.
#[test]
fn each_container_is_named_by_the_event_that_it_was_made() -> Result<()> {
    let scratch = Scratch::new("replay-events")?;
    let runtime = FakeRuntime::start(socket_in(scratch.directory()), Manner::Events)?;
    let (heard, sink) = Heard::new();
    let socket = runtime.socket.clone();
    let _cri = Cri::start(move || vec![socket.clone()], Follows::Events, sink)?;
    heard.first("a list", all)?;
    until("the events are followed", || {
        ensure!(runtime.n_subscribers() == 1, "nobody follows them");
        Ok(())
    })?;
    let mut names = Names::default();
    let mut text = String::new();
    for (n, (kind, event)) in recorded::container_events()?.iter().enumerate() {
        let is_read = runtime.send(event, patience()) && runtime.n_subscribers() == 1;
        ensure!(is_read, "event {n} is not read");
        let mut learned = Vec::new();
        loop {
            match heard.next("what an event says")? {
                cri::Told::Some(some) | cri::Told::All(some) => {
                    learned.extend(some.into_iter().filter(|it| names.learn(it)));
                }
                cri::Told::State(_) => {}
                cri::Told::Happened => break,
            }
        }
        let id = &event.container_id;
        write!(text, "{:>3} {kind} {}", n + 1, short(id))?;
        for it in &learned {
            write!(text, "\n      {}", line(it))?;
        }
        text.push('\n');
        let sandbox = event.pod_sandbox_status.as_ref();
        let uid = sandbox.and_then(|it| it.labels.get("io.kubernetes.pod.uid"));
        let uid = PodUid(uid.context("a pod")?.clone());
        ensure!(names.known(&uid, id).is_some(), "nobody is {id}:\n{text}");
    }
    check_golden(&data("cri/events.txt"), &text)
}

fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

fn line(it: &Identified) -> String {
    let (id, pod) = (short(&it.id), &it.pod);
    match &it.role {
        Role::Sandbox => format!("{id} is the sandbox of {pod} ({})", pod.uid),
        Role::Container {
            name,
            attempt,
            image,
        } => {
            let image = image.as_deref().unwrap_or("no image");
            format!("{id} is {name} of {pod}, attempt {attempt}, {image}")
        }
    }
}

/// A list is empty, so each pod comes from an event; of what was said of a pod before only what changes is written.
#[test]
fn pods_are_told_of_as_the_watch_has_them() -> Result<()> {
    let scratch = Scratch::new("replay-watch")?;
    let server = FakeApiServer::start(ApiManner::StreamsLists)?;
    let kubeconfig = scratch.path("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    let (heard, sink) = Heard::new();
    let _watch = ApiServer::start(settings(&kubeconfig, PodsFrom::ApiServer), nobody(), sink)?;
    heard.first("a list", listed)?;
    let events = recorded::pod_events()?;
    let mut n_deleted = 0;
    for event in &events {
        server.say(event)?;
        n_deleted += usize::from(event["type"] == "DELETED");
    }
    let mut said: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut text = String::new();
    while n_deleted > 0 {
        match heard.next("an event of a pod")? {
            api_server::Told::Changed(pod) => {
                let now = parts(&pod);
                let before = said.insert(pod.pod.to_string(), now.clone());
                let before = before.unwrap_or_default();
                let new = now.iter().filter(|it| !before.contains(it)).cloned();
                let gone = before.iter().filter(|it| !now.contains(it));
                let gone = gone.map(|it| format!("no more {it}"));
                let changes: Vec<String> = new.chain(gone).collect();
                if !changes.is_empty() {
                    writeln!(text, "{}: {}", pod.pod, changes.join("; "))?;
                }
            }
            api_server::Told::Deleted(pod) => {
                said.remove(&pod.to_string());
                n_deleted -= 1;
                writeln!(text, "{pod}: is no more")?;
            }
            api_server::Told::All(_) => bail!("the watch was begun anew"),
            _ => {}
        }
    }
    check_golden(&data("kube/api_watch.txt"), &text)
}

fn listed(told: api_server::Told) -> Option<Vec<Arc<ApiPod>>> {
    match told {
        api_server::Told::All(pods) | api_server::Told::Seen(pods) => Some(pods),
        _ => None,
    }
}

fn settings(kubeconfig: &Path, pods_from: PodsFrom) -> Settings {
    Settings {
        node: NODE.to_owned(),
        kubeconfig_file: Some(kubeconfig.to_owned()),
        events: false,
        pods_from,
    }
}

fn nobody() -> FindKubelet {
    Arc::new(|| Err("there is none".to_owned()))
}

/// What is said of a pod.
fn parts(pod: &ApiPod) -> Vec<String> {
    let mut parts = vec![format!("uid {}", pod.pod.uid)];
    let workload = &pod.workload;
    parts.push(format!("of {} {}", workload.kind, workload.name));
    parts.extend(pod.is_mirror.then(|| "a mirror".to_owned()));
    parts.extend(pod.is_over.then(|| "is over".to_owned()));
    match &pod.definition {
        Ok(it) => {
            let requests = it.requests.iter();
            parts.extend(requests.map(|(name, amount)| format!("requests {name} {amount}")));
            parts.push(format!("ranked by {} of memory", it.memory_request));
            parts.push(format!("priority {}", it.priority));
            parts.extend(it.is_critical.then(|| "is critical".to_owned()));
        }
        Err(why) => parts.push(why.clone()),
    }
    let container = |it: &ApiContainer| {
        let instances = it.instances.iter();
        let ids = instances.map(|it| format!(" {}#{}", short(&it.id), it.attempt));
        format!("{:?} {}:{}", it.role, it.name, ids.collect::<String>())
    };
    parts.extend(pod.containers.iter().map(container));
    parts
}

/// Each source by itself, at one moment of the node.
#[test]
fn every_cgroup_has_the_name_that_each_source_gives_it() -> Result<()> {
    let by_source = [
        ("runtime", of_runtime()?),
        ("API server", of_api_server("kube/api_pods_list.json")?),
        ("kubelet", of_kubelet("kube/kubelet_pods.json")?),
    ];
    let mut text = String::new();
    for (id, path) in tree()? {
        writeln!(text, "{}", path.trim_start_matches("/kspec/kubepods"))?;
        for (source, index) in &by_source {
            let found = index.get(id).with_context(|| path.clone())?;
            let workload = index.workload_of(&found);
            let pod = found.pod.as_ref();
            let pod = pod.map_or_else(|| "nobody".to_owned(), ToString::to_string);
            let owner = found.owner.context("it is registered")?;
            let container = owner.container().zip(owner.uid());
            let container = container.map(|(key, uid)| match index.names.known(uid, &key.id) {
                Some(Known::Container { name, attempt, .. }) => {
                    format!(", {name}, attempt {attempt}")
                }
                Some(Known::Sandbox) => ", its sandbox".to_owned(),
                None => ", which container is not known".to_owned(),
            });
            let container = container.unwrap_or_default();
            let workload = workload.map(|it| format!(", of {} {}", it.kind, it.name));
            let workload = workload.unwrap_or_default();
            writeln!(text, "  {source}: {pod}{container}{workload}")?;
        }
    }
    check_golden(&data("kube/cgroup_tree.names.txt"), &text)
}

/// The cgroups of pods and containers, with an id each.
fn tree() -> Result<Vec<(CgroupId, String)>> {
    let text = fs::read_to_string(data("kube/cgroup_tree.txt"))?;
    let paths = text.lines().map(|it| format!("/{it}"));
    let of_pods = paths.filter(|it| it.contains("/pod"));
    Ok((1..).map(CgroupId).zip(of_pods).collect())
}

/// With every cgroup, and no name.
fn index() -> Result<CgroupIndex> {
    let mut index = CgroupIndex::default();
    index.names.ask_for_workloads();
    let root: CgroupPath = "/kspec".parse()?;
    for (id, path) in tree()? {
        let path: CgroupPath = path.parse()?;
        let found = kube_cgroup::parse(&path, &root).map(|it| it.level);
        let level = found.and_then(Level::of);
        let level = level.with_context(|| format!("what is {path}"))?;
        index.insert(id, Owner { level, path });
    }
    Ok(index)
}

/// Those that have ended are in the lists, too.
#[test]
fn lists_name_everybody_whom_the_runtime_knows() -> Result<()> {
    let mut text: Vec<String> = of_lists()?.iter().map(line).collect();
    text.sort();
    check_golden(&data("cri/lists.txt"), &(text.join("\n") + "\n"))
}

fn of_runtime() -> Result<CgroupIndex> {
    let mut index = index()?;
    index.learn_all(&of_lists()?);
    Ok(index)
}

fn of_lists() -> Result<Vec<Identified>> {
    let scratch = Scratch::new("replay-lists")?;
    let runtime = FakeRuntime::start(socket_in(scratch.directory()), Manner::NoEvents)?;
    recorded::sandboxes()?
        .into_iter()
        .for_each(|it| runtime.put_sandbox(it));
    recorded::containers()?
        .into_iter()
        .for_each(|it| runtime.put_container(it));
    let (heard, sink) = Heard::new();
    let socket = runtime.socket.clone();
    let _cri = Cri::start(move || vec![socket.clone()], Follows::Events, sink)?;
    heard.first("a list", all)
}

fn of_api_server(pods: &str) -> Result<CgroupIndex> {
    let scratch = Scratch::new("replay-pods")?;
    let server = with_pods(recorded::pods(pods)?)?;
    let kubeconfig = scratch.path("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    let (heard, sink) = Heard::new();
    let _watch = ApiServer::start(settings(&kubeconfig, PodsFrom::ApiServer), nobody(), sink)?;
    let mut index = index()?;
    index.learn_pods(&heard.first("a list", listed)?);
    Ok(index)
}

/// It is known by what is in its files.
fn of_kubelet(pods: &str) -> Result<CgroupIndex> {
    let scratch = Scratch::new("replay-kubelet")?;
    let server = with_pods(recorded::pods(pods)?)?;
    let authority = Authority::new()?;
    let certificate = authority.vouch("host-of-it")?;
    let file = pem("CERTIFICATE", &certificate.0);
    let front = Front::start(server.address, certificate, None)?;
    let kubeconfig = scratch.path("kubeconfig");
    server.write_kubeconfig(&kubeconfig)?;
    let address = front.address;
    let find = Arc::new(move || {
        Ok(KubeletServer {
            address,
            certificates: Ok(file.clone().into_bytes()),
        })
    });
    let (heard, sink) = Heard::new();
    let _kubelet = ApiServer::start(settings(&kubeconfig, PodsFrom::Kubelet), find, sink)?;
    let mut index = index()?;
    index.learn_seen(&heard.first("the pods of kubelet", listed)?);
    Ok(index)
}

fn with_pods(pods: Vec<Value>) -> Result<FakeApiServer> {
    let server = FakeApiServer::start(ApiManner::StreamsLists)?;
    pods.iter().for_each(|it| server.put(it));
    Ok(server)
}
