//! The names of pods and containers, as the container runtime tells them: what they change in what was counted,
//! told and shown before they came.
//!
//! Invariant: a name is an addition. Nothing waits for one but the first look at the node, and that not for long.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::pods::PodSource;
use super::tree::KubeTree;
use super::{FIRST_NAMES, Fault, Loop, RUNTIME, kubelet};
use crate::config::{ObserveConfig, ObservedRuntime};
use crate::cri::{self, Cri};
use crate::decide::naming::{Known, Names};
use crate::model::pod::PodUid;
use crate::model::record::PodRef;
use crate::model::runtime_names::{Follows, RuntimeStatus};
use crate::model::stats::KnownPod;
use crate::model::time::WallTime;
use crate::model::workload::Workload;
use crate::observe::metrics::Unnamed;
use crate::run::RunError;
use crate::sources::wakers::Bell;
use crate::sys::{Root, clock, unix_socket};

/// Nobody is asked.
pub(super) const NO_NAMES: &str = "pods are known by their UID and containers by their id: runtime.type is none, so \
                                   nobody is asked for names";

/// The API server, or kubelet, alone is asked.
const LATE_NAMES: &str = "runtime.type is none: containers are known by their id until the API server or kubelet tells \
                          their name, which takes up to ten seconds";

/// Who is asked for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NamesFrom {
    Nobody,
    /// The API server, or kubelet, alone.
    ApiServer,
    Runtime,
}

/// A container is named before its first process runs, or a moment later: one that has no name by then is told of.
const NAMED_BY: Duration = Duration::from_secs(5);

/// `None`: it is not to be asked.
pub(super) fn ask_runtime(
    observe: &ObserveConfig,
    tree: &Arc<KubeTree>,
) -> Result<Option<Cri>, RunError> {
    let ObservedRuntime::Cri { endpoint, events } = observe.runtime.clone() else {
        return Ok(None);
    };
    let at_most = match events {
        true => Follows::Events,
        false => Follows::Lists,
    };
    let (observe, of_sockets) = (observe.clone(), Arc::clone(tree));
    let of_kubelet = move || match of_sockets.runtime_socket() {
        // One that does not tell on its command line was asked.
        Some(known) => vec![known],
        None => kubelet::runtime_sockets(&Root::host(), &observe),
    };
    let sockets = move || sockets(endpoint.as_deref(), &of_kubelet);
    let of_sink = Arc::clone(tree);
    let sink = move |told| of_sink.hear_runtime(told);
    let cri = Cri::start(sockets, at_most, sink).map_err(RunError::Thread)?;
    tree.set_asker(cri.asker());
    Ok(Some(cri))
}

/// The configured one alone, or those that the kubelet may have.
fn sockets(endpoint: Option<&Path>, of_kubelet: impl Fn() -> Vec<PathBuf>) -> Vec<PathBuf> {
    let Some(endpoint) = endpoint else {
        let all = of_kubelet().into_iter();
        return all.map(|it| as_seen_here(it, is_socket)).collect();
    };
    vec![endpoint.to_owned()]
}

/// A socket of kubelet, as the agent finds it: on a node `/var/run` is `/run`, and in a container it is a directory of
/// its own, if it is there.
fn as_seen_here(socket: PathBuf, is_there: impl Fn(&Path) -> bool) -> PathBuf {
    let Ok(below) = socket.strip_prefix("/var/run") else {
        return socket;
    };
    let other = Path::new("/run").join(below);
    match !is_there(&socket) && is_there(&other) {
        true => other,
        false => socket,
    }
}

fn is_socket(path: &Path) -> bool {
    matches!(unix_socket::version(path), Ok(Some(_)))
}

/// For `ballast check`; see [`cri::probe`].
pub(super) fn probe(
    endpoint: Option<&Path>,
    observe: &ObserveConfig,
) -> (RuntimeStatus, Option<BTreeSet<String>>) {
    let of_kubelet = || kubelet::runtime_sockets(&Root::host(), observe);
    cri::probe(&sockets(endpoint, of_kubelet)).unwrap_or_else(|error| {
        let status = RuntimeStatus {
            fault: Some(format!("ask the runtime: {error}")),
            ..RuntimeStatus::default()
        };
        (status, None)
    })
}

/// Under which names the series of an id go on. `None`: nobody has told.
fn name_of(of: &Unnamed, names: &Names) -> Option<(Arc<PodRef>, String, String)> {
    let (pod, known) = match (of.pod_uid(), of.container_id()) {
        (Some(uid), id) => {
            let uid = PodUid(uid.to_owned());
            let known = id.and_then(|it| names.known(&uid, it));
            (names.pod(&uid)?, known)
        }
        (None, id) => {
            let [namespace, pod] = of.pod();
            let (pod, known) = names.known_in(namespace, pod, id?)?;
            (pod, Some(known))
        }
    };
    let (name, id) = match known {
        Some(Known::Container { name, .. }) => (name.to_string(), String::new()),
        // What happened in it happened to the pod.
        Some(Known::Sandbox) => (String::new(), String::new()),
        None => (
            String::new(),
            of.container_id().unwrap_or_default().to_owned(),
        ),
    };
    Some((Arc::clone(pod), name, id))
}

/// What the status document says of missing names. `is_named`: the configuration or kubelet says which runtime it is.
pub(super) fn warnings(
    from: NamesFrom,
    status: Option<&RuntimeStatus>,
    is_named: bool,
    pods: &[Arc<KnownPod>],
    now: WallTime,
) -> Vec<String> {
    match from {
        NamesFrom::Nobody => return vec![NO_NAMES.to_owned()],
        NamesFrom::ApiServer => return Vec::new(),
        NamesFrom::Runtime => {}
    }
    let Some(status) = status.filter(|it| it.is_connected()) else {
        // That it does not answer is a fault by itself.
        return Vec::new();
    };
    let containers = || pods.iter().flat_map(|it| &it.containers);
    let is_old = |since: Option<WallTime>| since.is_some_and(|it| it.until(now) > NAMED_BY);
    let unnamed = containers().filter(|it| it.name.is_empty() && is_old(it.started_at));
    let n = unnamed.count();
    let whose = status.runtime().unwrap_or_default();
    // One that is idle answers like any other.
    let remedy = match is_named || containers().any(|it| !it.name.is_empty()) {
        true => "",
        false => {
            ", nor any other; nobody has named this runtime as kubelet's: set runtime.endpoint"
        }
    };
    match n {
        0 => Vec::new(),
        1 => vec![format!(
            "1 container is shown by its id: {whose} does not know it{remedy}"
        )],
        n => vec![format!(
            "{n} containers are shown by their ids: {whose} does not know them{remedy}"
        )],
    }
}

impl Loop {
    /// The configuration or kubelet says which runtime makes the containers. Where kubelet's files are named it may have
    /// said so on its command line, which is looked at for that alone.
    pub(super) fn is_runtime_named(&self) -> bool {
        let is_configured = matches!(
            self.settings.runtime,
            ObservedRuntime::Cri {
                endpoint: Some(_),
                ..
            }
        );
        let is_told = self.tree.runtime_socket().is_some();
        is_configured || is_told || !self.settings.asks_kubelet
    }

    pub(super) fn names_from(&self) -> NamesFrom {
        match (&self.settings.runtime, &self.pod_source) {
            (ObservedRuntime::Cri { .. }, _) => NamesFrom::Runtime,
            (ObservedRuntime::None, PodSource::Asked(_)) => NamesFrom::ApiServer,
            (ObservedRuntime::None, PodSource::Nobody(_)) => NamesFrom::Nobody,
        }
    }

    /// For the first answer of the runtime, or that there is none.
    pub(super) fn wait_for_names(&mut self, bell: &Bell) {
        let without = match self.names_from() {
            NamesFrom::Nobody => Some(NO_NAMES),
            NamesFrom::ApiServer => Some(LATE_NAMES),
            NamesFrom::Runtime => None,
        };
        if let Some(text) = without {
            self.told.agent("PodsWithoutNames", text.to_owned());
            return self.health.unblock(RUNTIME);
        }
        let until = clock::boottime() + FIRST_NAMES;
        while self.tree.runtime().is_none() {
            let left = until.saturating_sub(clock::boottime());
            if left.is_zero() {
                return;
            }
            bell.wait(left);
        }
    }

    /// Tells how the runtime is, where that has changed.
    pub(super) fn take_runtime(&mut self) {
        let status = self.tree.runtime();
        if status == self.runtime {
            return;
        }
        let Some(status) = status else { return };
        self.health.unblock(RUNTIME);
        let was_connected = self
            .runtime
            .as_ref()
            .is_some_and(RuntimeStatus::is_connected);
        let followed = self.runtime.as_ref().map(|it| it.follows);
        if status.is_connected() && (!was_connected || followed != Some(status.follows)) {
            let whose = status.runtime().unwrap_or_default();
            let at = status.endpoint.as_deref().unwrap_or_default();
            let how = match (status.follows, &status.events_refused) {
                (Follows::Events, _) => "its events are followed".to_owned(),
                (_, None) => {
                    "its events are not followed, and it is asked for each new container".to_owned()
                }
                (_, Some(why)) => {
                    format!("it refuses its events and is asked for each new container: {why}")
                }
            };
            let text = format!("names come from {whose} at {at}; {how}");
            self.told.agent("RuntimeConnected", text);
        }
        let fault = status.fault.as_ref().map(|why| {
            let Some(at) = &status.endpoint else {
                return format!("nobody gives names of pods and containers: {why}");
            };
            match status.follows {
                Follows::Events => format!("names come from the events of {at} alone: {why}"),
                Follows::Lists | Follows::Nothing => {
                    format!("{at} gives no names of pods and containers: {why}")
                }
            }
        });
        self.set_fault(Fault::Nameless, fault);
        self.runtime = Some(status);
    }

    /// The names that have come are those of the records, and of what was counted under ids; kills are counted by
    /// the workloads. `are_new`: some have come since the last time; records of before may have them.
    pub(super) fn take_names(&mut self, are_new: bool) {
        let after = self.named_until.filter(|_| !are_new);
        self.named_until = Some(self.told.last_event());
        let unnamed = self.metrics.unnamed();
        let index = self.tree.kernel.index();
        self.told.amend(after, |event| {
            let named = index.names.name_event(event)?;
            if let Some(reports) = &mut self.reports {
                reports.name(event, &named);
            }
            Some(named)
        });
        let now = clock::boottime();
        for of in unnamed {
            if let Some((pod, name, id)) = name_of(&of, &index.names) {
                self.metrics.name(&of, &pod, [&name, &id], now);
            }
        }
        let uid = |it: &str| PodUid(it.to_owned());
        let known = |it: &str| index.names.workload(&uid(it));
        let named = |it: &str| Some(Workload::of_pod(index.names.pod(&uid(it))?));
        self.metrics.count_workloads(known, named, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cgroup_path::CgroupPath;
    use crate::model::pod::QosClass;
    use crate::model::stats::KnownContainer;
    use crate::run::observe::known::unnamed;

    #[test]
    fn one_socket_is_asked_where_it_is_configured_and_else_those_of_kubelet() {
        let of_kubelet = || vec![PathBuf::from("/b.sock")];
        let configured = Path::new("/a.sock");
        assert_eq!(sockets(Some(configured), of_kubelet), [configured]);
        assert_eq!(sockets(None, of_kubelet), [Path::new("/b.sock")]);
    }

    #[test]
    fn a_socket_of_kubelet_in_var_run_is_found_in_run_where_it_is_there_alone() {
        for (socket, there, right) in [
            (
                "/var/run/crio/crio.sock",
                &["/run/crio/crio.sock"][..],
                "/run/crio/crio.sock",
            ),
            (
                "/var/run/crio/crio.sock",
                &["/var/run/crio/crio.sock"],
                "/var/run/crio/crio.sock",
            ),
            // As a node has it.
            (
                "/var/run/a.sock",
                &["/var/run/a.sock", "/run/a.sock"],
                "/var/run/a.sock",
            ),
            ("/var/run/a.sock", &[], "/var/run/a.sock"),
            ("/run/a.sock", &["/var/run/a.sock"], "/run/a.sock"),
            (
                "/var/running/a.sock",
                &["/run/ning/a.sock"],
                "/var/running/a.sock",
            ),
        ] {
            let is_there = |it: &Path| there.iter().any(|there| Path::new(there) == it);
            let found = as_seen_here(PathBuf::from(socket), is_there);
            assert_eq!(found, Path::new(right), "{socket} of {there:?}");
        }
    }

    fn pod_of(names: &[&str]) -> Vec<Arc<KnownPod>> {
        let cgroup = CgroupPath::root();
        let started_at = WallTime::from_epoch(Duration::from_secs(100));
        let containers = names.iter().map(|name| KnownContainer {
            name: (*name).to_owned(),
            cgroup: cgroup.clone(),
            runtime_id: "0123".to_owned(),
            image: String::new(),
            started_at: Some(started_at),
            restarts: 0,
            oom_events: 0,
            pid: Some(7),
        });
        let pod = KnownPod {
            pod: unnamed(&PodUid("a".to_owned())),
            qos: QosClass::Burstable,
            cgroup: cgroup.clone(),
            started_at,
            sandbox: None,
            containers: containers.collect(),
        };
        vec![Arc::new(pod)]
    }

    /// One that is installed beside that of kubelet may answer first.
    #[test]
    fn a_runtime_that_nobody_has_named_and_that_knows_nobody_is_told_with_what_to_do() {
        let idle = RuntimeStatus {
            name: Some("containerd".to_owned()),
            version: Some("2.1.9".to_owned()),
            ..RuntimeStatus::default()
        };
        let at = |seconds| WallTime::from_epoch(Duration::from_secs(seconds));
        let said = |names: &[&str], is_named, now| {
            let pods = pod_of(names);
            warnings(NamesFrom::Runtime, Some(&idle), is_named, &pods, now).join(" ")
        };
        let one = "1 container is shown by its id: containerd 2.1.9 does not know it";
        let two = "2 containers are shown by their ids: containerd 2.1.9 does not know them";
        let remedy =
            ", nor any other; nobody has named this runtime as kubelet's: set runtime.endpoint";
        for (names, is_named, right) in [
            (&[""][..], false, format!("{one}{remedy}")),
            (&["", ""], false, format!("{two}{remedy}")),
            (&["", ""], true, two.to_owned()),
            (&["", "app"], false, one.to_owned()),
            (&["app"], false, String::new()),
            (&[], false, String::new()),
        ] {
            assert_eq!(said(names, is_named, at(106)), right, "{names:?}");
        }
        assert_eq!(said(&[""], false, at(105)), "", "it may come yet");
    }
}
