//! The agent's side of the watch of pods, against an API server of the test.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use anyhow::{Result, ensure};
use ballast::api_server::{ApiServer, FindKubelet, Patience, Settings, Told, probe};
use ballast::model::api_pod::{ApiPod, ContainerRole};
use ballast::model::api_server::{ApiAnswer, ApiResource, ApiServerStatus, ApiVerb, PodsFrom};
use ballast::model::kube_event::{Outcome, Reason, Regarding, Write, WriteKind};
use ballast::model::pod::PodUid;
use ballast::model::record::PodRef;
use ballast::model::time::WallTime;
use ballast_tests::api_server::{Answer, FakeApiServer, Manner, failure};
use ballast_tests::scratch::own_name;
use ballast_tests::wait::{patience, until};
use serde_json::{Value, json};

/// A kubeconfig of a test, gone when it is dropped.
struct Kubeconfig(PathBuf);

impl Kubeconfig {
    fn new(name: &str, server: &FakeApiServer) -> Result<Self> {
        let path = env::temp_dir().join(own_name(name));
        server.write_kubeconfig(&path)?;
        Ok(Self(path))
    }

    fn settings(&self) -> Settings {
        Settings {
            node: "node1".to_owned(),
            kubeconfig_file: Some(self.0.clone()),
            events: true,
            pods_from: PodsFrom::ApiServer,
        }
    }
}

fn no_kubelet() -> FindKubelet {
    Arc::new(|| Err("there is none".to_owned()))
}

impl Drop for Kubeconfig {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// What was told, as far as it was looked at.
struct Heard {
    told: Receiver<Told>,
    pods: BTreeMap<String, Arc<ApiPod>>,
    /// How often all were told.
    n_all: usize,
    status: Option<ApiServerStatus>,
    n_faults: usize,
    /// What became of Events.
    outcomes: Vec<Outcome>,
    events_fault: Option<String>,
    asked: Vec<(ApiVerb, ApiResource, ApiAnswer)>,
    n_up_to_date: usize,
}

impl Heard {
    fn start(kubeconfig: &Kubeconfig) -> Result<(ApiServer, Self)> {
        Self::start_with(kubeconfig, Patience::default())
    }

    fn start_with(kubeconfig: &Kubeconfig, patience: Patience) -> Result<(ApiServer, Self)> {
        let (sender, told) = mpsc::channel();
        let sink = move |told| sender.send(told).unwrap_or_default();
        let settings = kubeconfig.settings();
        let watching = ApiServer::start_with(settings, patience, no_kubelet(), sink)?;
        let heard = Self {
            told,
            pods: BTreeMap::new(),
            n_all: 0,
            status: None,
            n_faults: 0,
            outcomes: Vec::new(),
            events_fault: None,
            asked: Vec::new(),
            n_up_to_date: 0,
        };
        Ok((watching, heard))
    }

    fn look(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            match told {
                Told::State(status) => {
                    self.n_faults += usize::from(status.fault.is_some());
                    self.status = Some(status);
                }
                Told::All(all) | Told::Seen(all) => {
                    self.n_all += 1;
                    self.pods = all
                        .into_iter()
                        .map(|it| (it.pod.name.clone(), it))
                        .collect();
                }
                Told::Changed(pod) => {
                    self.pods.insert(pod.pod.name.clone(), pod);
                }
                Told::Written(outcome) => self.outcomes.push(outcome),
                Told::EventsFault(fault) => self.events_fault = fault,
                Told::Asked(it) => self.asked.push((it.verb, it.resource, it.answer)),
                Told::UpToDate => self.n_up_to_date += 1,
                Told::Deleted(pod) => self.pods.retain(|_, it| it.pod != pod),
                Told::Settings(_) => {}
            }
        }
    }

    fn wait(&mut self, what: &str, is_it: impl Fn(&Self) -> bool) -> Result<()> {
        until(what, || {
            self.look();
            ensure!(is_it(self), "{:?} {:?}", self.status, self.pods);
            Ok(())
        })
    }

    fn is_followed(&self) -> bool {
        self.status
            .as_ref()
            .is_some_and(ApiServerStatus::is_followed)
    }

    fn fault(&self) -> &str {
        let fault = self.status.as_ref().and_then(|it| it.fault.as_deref());
        fault.unwrap_or_default()
    }

    fn names(&self) -> Vec<&str> {
        self.pods.keys().map(String::as_str).collect()
    }
}

/// An agent's watch of an API server that has these pods already.
fn scene(
    name: &str,
    manner: Manner,
    pods: &[&str],
) -> Result<(FakeApiServer, Kubeconfig, ApiServer, Heard)> {
    let server = FakeApiServer::start(manner)?;
    pods.iter().for_each(|it| server.put(&pod(it)));
    let kubeconfig = Kubeconfig::new(name, &server)?;
    let (watching, heard) = Heard::start(&kubeconfig)?;
    Ok((server, kubeconfig, watching, heard))
}

/// Whatever it waits for.
fn ends_soon(watching: ApiServer) -> Result<()> {
    let began = Instant::now();
    drop(watching);
    ensure!(began.elapsed() < patience(), "{:?}", began.elapsed());
    Ok(())
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}")},
        "spec": {"nodeName": "node1", "containers": [{"name": "main"}]},
    })
}

#[test]
fn the_pods_of_the_node_are_told_and_what_changes_after_them() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("told", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", |it| it.names() == ["first"] && it.is_followed())?;
    server.put(&pod("second"));
    heard.wait("the second", |it| it.names() == ["first", "second"])?;
    let mut changed = pod("second");
    changed["spec"]["ephemeralContainers"] = json!([{"name": "look"}]);
    server.put(&changed);
    heard.wait("its change", |it| it.pods["second"].containers.len() == 2)?;
    server.delete("first");
    heard.wait("the end of the first", |it| it.names() == ["second"])?;
    let questions = server.questions();
    ensure!(questions.len() == 1, "one watch: {questions:?}");
    for part in [
        "fieldSelector=spec.nodeName%3Dnode1",
        "sendInitialEvents=true",
        "allowWatchBookmarks=true",
        "resourceVersion=0",
    ] {
        ensure!(questions[0].contains(part), "{part} in {questions:?}");
    }
    ensure!(heard.n_all == 1, "{}", heard.n_all);
    let watched = (ApiVerb::Watch, ApiResource::Pods, ApiAnswer::Good);
    ensure!(heard.asked == [watched], "{:?}", heard.asked);
    Ok(())
}

/// The first watch ends; the next goes on from a version, without a list.
fn goes_on_from(version: u64, server: &FakeApiServer, heard: &mut Heard) -> Result<()> {
    server.cut();
    until("it is asked again", || {
        let questions = server.questions();
        ensure!(questions.len() >= 2, "{questions:?}");
        Ok(())
    })?;
    server.put(&pod("second"));
    heard.wait("the second", |it| it.names() == ["first", "second"])?;
    ensure!(heard.n_all == 1, "nothing was listed");
    let questions = server.questions();
    let right = format!("resourceVersion={version}");
    ensure!(questions[1].contains(&right), "{questions:?}");
    ensure!(!questions[1].contains("sendInitialEvents"), "{questions:?}");
    Ok(())
}

/// The end of a watch is nothing: it goes on from where it was, without a list.
#[test]
fn a_watch_that_ends_goes_on_and_one_that_is_too_old_begins_anew() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("resumed", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", Heard::is_followed)?;
    goes_on_from(1, &server, &mut heard)?;
    server.delete("first");
    server.compact();
    heard.wait("all anew", |it| it.n_all == 2 && it.names() == ["second"])?;
    ensure!(heard.is_followed(), "{:?}", heard.status);
    Ok(())
}

/// Where no pod of the node changes, the version of the last one is soon too old to go on from.
#[test]
fn a_watch_goes_on_from_the_version_of_a_bookmark() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("bookmark", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", Heard::is_followed)?;
    ensure!(heard.n_up_to_date == 0, "{}", heard.n_up_to_date);
    let version = server.bookmark();
    ensure!(version == 2, "{version}");
    heard.wait("the bookmark", |it| it.n_up_to_date == 1)?;
    goes_on_from(2, &server, &mut heard)?;
    Ok(())
}

/// Lists are answered, and what happens after them is heard of with the next.
#[test]
fn a_watch_that_ends_at_once_each_time_is_a_fault_until_one_lasts() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("ended", Manner::EndsWatches, &["first"])?;
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    let right = "watch pods: it ends at once each time, ";
    ensure!(heard.fault().starts_with(right), "{}", heard.fault());
    ensure!(heard.names() == ["first"], "{:?}", heard.pods);
    let watches = || {
        let questions = server.questions().into_iter();
        questions.filter(|it| it.contains("watch=true")).count()
    };
    let n_watches = watches();
    heard.wait("more have ended", |it| {
        assert!(!it.is_followed(), "{:?}", it.status);
        watches() >= n_watches + 2
    })?;
    ensure!(heard.n_faults == 1, "{}", heard.n_faults);
    server.behave(Manner::StreamsLists);
    heard.wait("one lasts", Heard::is_followed)?;
    server.put(&pod("second"));
    heard.wait("the second", |it| it.names() == ["first", "second"])
}

#[test]
fn where_lists_are_not_streamed_they_are_asked_for() -> Result<()> {
    for manner in [Manner::RefusesStreams, Manner::KnowsNoStreams] {
        let server = FakeApiServer::start(manner)?;
        server.put(&pod("first"));
        let kubeconfig = Kubeconfig::new("listed", &server)?;
        let (_watching, mut heard) = Heard::start(&kubeconfig)?;
        heard.wait("the list", |it| it.names() == ["first"] && it.is_followed())?;
        server.put(&pod("second"));
        heard.wait("the second", |it| it.names() == ["first", "second"])?;
        let questions = server.questions();
        ensure!(questions.len() == 3, "{manner:?}: {questions:?}");
        ensure!(questions[1].contains("resourceVersion=0"), "{questions:?}");
        let first = match manner {
            Manner::RefusesStreams => ApiAnswer::Refused(422),
            _ => ApiAnswer::Good,
        };
        let right = [
            (ApiVerb::Watch, first),
            (ApiVerb::List, ApiAnswer::Good),
            (ApiVerb::Watch, ApiAnswer::Good),
        ];
        let right = right.map(|(verb, answer)| (verb, ApiResource::Pods, answer));
        ensure!(heard.asked == right, "{manner:?}: {:?}", heard.asked);
    }
    Ok(())
}

/// One that does not know of streamed lists takes the question for a watch from now on.
#[test]
fn a_list_that_never_ends_is_asked_for_however_lively_it_is() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("lively", Manner::KnowsNoStreams, &["first"])?;
    heard.wait("the list", |it| {
        server.put(&pod("first"));
        it.names() == ["first"] && it.is_followed()
    })?;
    ensure!(heard.n_faults == 0, "{}", heard.n_faults);
    let questions = server.questions();
    ensure!(!questions[1].contains("watch=true"), "{questions:?}");
    Ok(())
}

#[test]
fn a_list_that_ends_before_it_is_whole_is_asked_for() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("cut", Manner::KnowsNoStreams, &["first"])?;
    until("it is asked", || {
        ensure!(server.n_watches() == 1, "{}", server.n_watches());
        Ok(())
    })?;
    server.cut();
    heard.wait("the list", |it| it.names() == ["first"] && it.is_followed())?;
    let asked: Vec<_> = heard.asked.iter().map(|it| it.0).collect();
    let right = [ApiVerb::Watch, ApiVerb::List, ApiVerb::Watch];
    ensure!(asked.starts_with(&right), "{asked:?}");
    ensure!(heard.n_faults == 0, "{}", heard.n_faults);
    Ok(())
}

/// To begin anew is of no use where that is refused so, or what it gives.
#[test]
fn one_that_has_forgotten_everything_is_a_fault() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("forgets", Manner::Forgets, &["first"])?;
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    let right = "watch pods: too old resource version";
    ensure!(heard.fault() == right, "{}", heard.fault());
    ensure!(heard.n_all == 2, "it has begun anew once: {}", heard.n_all);
    server.behave(Manner::StreamsLists);
    heard.wait("it is followed", Heard::is_followed)?;
    let expired = failure(410, "Expired", "nothing is there");
    server.refuse_pods(Some(Answer::new(410, expired)));
    server.cut();
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    let right = "watch pods: nothing is there";
    ensure!(heard.fault() == right, "{}", heard.fault());
    server.refuse_pods(None);
    heard.wait("it is followed", Heard::is_followed)
}

/// By its status, and by what a `Status` says; anybody on the way may have written the rest.
#[test]
fn what_is_answered_instead_is_said_by_its_status() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("instead", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", Heard::is_followed)?;
    let page = format!("<html>{}</html>", "secret ".repeat(100_000));
    let elsewhere = Answer::new(302, "").with_header("Location", "https://sso/login?secret");
    for (answer, right) in [
        (Answer::new(502, page), "HTTP status 502"),
        (
            Answer::new(401, json!({"message": "secret"})),
            "HTTP status 401",
        ),
        (
            Answer::new(403, failure(200, "Forbidden", "no")),
            "watch pods: no",
        ),
        (
            elsewhere,
            "watch pods: it redirects to https://sso/login, which is not followed",
        ),
    ] {
        heard.asked.clear();
        let code = answer.code;
        server.refuse_pods(Some(answer));
        server.cut();
        heard.wait(right, |it| it.fault().ends_with(right))?;
        let refused = (ApiVerb::Watch, ApiResource::Pods, ApiAnswer::Refused(code));
        ensure!(heard.asked.contains(&refused), "{:?}", heard.asked);
    }
    Ok(())
}

/// A proxy on the way may know no field selectors.
#[test]
fn a_pod_of_another_node_is_none_of_ours() -> Result<()> {
    let other = |name: &str| {
        let mut pod = pod(name);
        pod["spec"]["nodeName"] = json!("node2");
        pod
    };
    for manner in [Manner::StreamsLists, Manner::KnowsNoStreams] {
        let server = FakeApiServer::start(manner)?;
        [pod("ours"), other("theirs")]
            .iter()
            .for_each(|it| server.put(it));
        let kubeconfig = Kubeconfig::new("others", &server)?;
        let (_watching, mut heard) = Heard::start(&kubeconfig)?;
        heard.wait("the list", |it| it.names() == ["ours"] && it.is_followed())?;
        server.put(&other("later"));
        server.put(&pod("last"));
        heard.wait("what is ours", |it| it.names() == ["last", "ours"])?;
        ensure!(probe(&kubeconfig.settings(), no_kubelet())?.n_pods == 2);
    }
    Ok(())
}

/// Anybody may make an object that says it is the mirror of another pod.
#[test]
fn a_mirror_takes_no_place_in_a_streamed_list() -> Result<()> {
    let mut fake = pod("second");
    fake["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "uid-first"});
    fake["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "n", "controller": true}]);
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    [pod("first"), fake].iter().for_each(|it| server.put(it));
    let kubeconfig = Kubeconfig::new("forged", &server)?;
    let (_watching, mut heard) = Heard::start(&kubeconfig)?;
    heard.wait("both", |it| it.names() == ["first", "second"])
}

#[test]
fn more_pods_than_a_node_can_have_are_a_fault() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("many", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", Heard::is_followed)?;
    for n in 0..16_384 {
        server.put(&pod(&format!("pod{n}")));
    }
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    let right = "watch pods: the node has more than 16384 pods";
    ensure!(heard.fault() == right, "{}", heard.fault());
    let n_told = heard.pods.len();
    ensure!(n_told <= 16_384, "{n_told}");
    server.delete("pod0");
    heard.wait("it is one less", Heard::is_followed)?;
    ensure!(heard.pods.len() == 16_384, "{}", heard.pods.len());
    Ok(())
}

#[test]
fn an_event_that_is_too_large_is_a_fault() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) = scene("large", Manner::StreamsLists, &[])?;
    heard.wait("it is followed", Heard::is_followed)?;
    let mut large = pod("large");
    large["metadata"]["annotations"] = json!({"secret": "x".repeat(17 << 20)});
    server.put(&large);
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    let right = "watch pods: the answer has more than 16777216 bytes";
    ensure!(heard.fault() == right, "{}", heard.fault());
    Ok(())
}

#[test]
fn one_that_has_too_much_to_do_is_asked_when_it_says() -> Result<()> {
    const AFTER: Duration = Duration::from_secs(5);
    let (server, _kubeconfig, watching, mut heard) = scene("busy", Manner::StreamsLists, &[])?;
    heard.wait("it is followed", Heard::is_followed)?;
    let write = |namespace| write(WriteKind::Create, namespace, 1, 1);
    let written = heard.outcome(&watching, write("default"))?;
    ensure!(written == Outcome::Written, "{written:?}");
    let busy = || {
        let body = failure(429, "TooManyRequests", "busy");
        Answer::new(429, body).with_header("Retry-After", "5")
    };
    server.refuse_events("busy", busy());
    let (n_connections, began) = (server.n_connections(), Instant::now());
    // It may be the limit of one namespace, for all nodes.
    let refused = heard.outcome(&watching, write("busy"))?;
    ensure!(
        matches!(refused, Outcome::Failed { after, .. } if (AFTER..=AFTER * 3).contains(&after)),
        "{refused:?}"
    );
    ensure!(heard.events_fault.is_none(), "others are taken");
    let refused = heard.outcome(&watching, write("busy"))?;
    ensure!(
        matches!(refused, Outcome::Failed { after, .. } if after.is_zero()),
        "it was waited for: {refused:?}"
    );
    ensure!(began.elapsed() >= AFTER, "{began:?}");
    ensure!(heard.events_fault.is_some(), "none is taken");
    let written = heard.outcome(&watching, write("another"))?;
    ensure!(written == Outcome::Written, "{written:?}");
    let more = server.n_connections() - n_connections;
    ensure!(
        more == 0,
        "{more} connections for what is no fault of theirs"
    );
    let n_asked = server.questions().len();
    server.refuse_pods(Some(busy()));
    server.cut();
    until("it is asked twice", || {
        let n = server.questions().len() - n_asked;
        ensure!(n >= 2, "{n}");
        Ok(())
    })?;
    let pause = server.pauses()[n_asked];
    ensure!(pause >= AFTER, "{pause:?}");
    Ok(())
}

/// It is that of the API server's pods still, and to list them is what it could do least.
#[test]
fn a_version_is_gone_on_with_after_refusals_that_are_not_for_it() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("overloaded", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", Heard::is_followed)?;
    let busy = failure(503, "ServiceUnavailable", "busy").to_string();
    server.refuse_pods(Some(Answer::new(503, busy)));
    let n_asked = server.questions().len();
    server.cut();
    heard.wait("it is missed", |it| !it.is_followed())?;
    until("it is asked four times", || {
        let n = server.questions().len() - n_asked;
        ensure!(n >= 4, "{n}");
        Ok(())
    })?;
    server.refuse_pods(None);
    heard.wait("it is followed again", Heard::is_followed)?;
    for question in &server.questions()[n_asked..] {
        ensure!(question.contains("resourceVersion=1"), "{question}");
        ensure!(!question.contains("sendInitialEvents"), "{question}");
    }
    ensure!(heard.n_all == 1, "all were asked for anew");
    Ok(())
}

/// What it told stands, and is said to be old.
#[test]
fn an_api_server_that_goes_is_missed_and_found_when_it_is_back() -> Result<()> {
    let (server, _kubeconfig, _watching, mut heard) =
        scene("gone", Manner::StreamsLists, &["first"])?;
    heard.wait("the list", Heard::is_followed)?;
    server.stop();
    heard.wait("it is missed", |it| !it.is_followed())?;
    let fault = heard.fault();
    ensure!(fault.starts_with("watch pods: "), "{fault}");
    let status = heard.status.clone().unwrap_or_else(|| unreachable!());
    ensure!(status.stale_since.is_some(), "{status:?}");
    ensure!(heard.names() == ["first"], "{:?}", heard.pods);
    server.put(&pod("second"));
    server.delete("first");
    let _server = server.begin_again()?;
    heard.wait("it is back", |it| {
        it.is_followed() && it.names() == ["second"]
    })?;
    let status = heard.status.clone().unwrap_or_else(|| unreachable!());
    ensure!(status.stale_since.is_none(), "{status:?}");
    Ok(())
}

#[test]
fn who_may_not_is_told_what_and_tries_again() -> Result<()> {
    let (server, kubeconfig, _watching, mut heard) =
        scene("forbidden", Manner::Forbids, &["first"])?;
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    let right = "watch pods: pods is forbidden: User \"test\" cannot watch resource \"pods\"";
    ensure!(heard.fault().starts_with(right), "{}", heard.fault());
    let refused = (ApiVerb::Watch, ApiResource::Pods, ApiAnswer::Refused(403));
    ensure!(heard.asked.first() == Some(&refused), "{:?}", heard.asked);
    ensure!(
        heard
            .status
            .as_ref()
            .is_some_and(|it| it.stale_since.is_none()),
        "nothing to be old"
    );
    let why = probe(&kubeconfig.settings(), no_kubelet())?
        .fault
        .unwrap_or_default();
    ensure!(why.contains("cannot list resource"), "{why}");
    server.behave(Manner::StreamsLists);
    heard.wait("it may", |it| it.is_followed() && it.names() == ["first"])?;
    let probed = probe(&kubeconfig.settings(), no_kubelet())?;
    ensure!(probed.fault.is_none() && probed.n_pods == 1, "{probed:?}");
    ensure!(probed.lacks.is_empty(), "{probed:?}");
    server.behave(Manner::ForbidsEvents);
    let lacks = probe(&kubeconfig.settings(), no_kubelet())?.lacks;
    ensure!(lacks == ["create events", "patch events"], "{lacks:?}");
    Ok(())
}

#[test]
fn how_far_its_clock_is_from_that_of_the_node_is_known_by_its_answers() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let kubeconfig = Kubeconfig::new("clock", &server)?;
    let probed = probe(&kubeconfig.settings(), no_kubelet())?;
    ensure!(
        probed.seconds_ahead.is_none(),
        "it has not said: {probed:?}"
    );
    server.date("Wed, 21 Oct 2015 07:28:00 GMT");
    let probed = probe(&kubeconfig.settings(), no_kubelet())?;
    ensure!(probed.seconds_ahead > Some(7 << 25), "years: {probed:?}");
    Ok(())
}

#[test]
fn one_that_never_answers_holds_up_nobody() -> Result<()> {
    let server = FakeApiServer::start(Manner::Silent)?;
    let kubeconfig = Kubeconfig::new("silent", &server)?;
    let patience = Patience {
        answer: Duration::from_secs(2),
        ..Patience::default()
    };
    let (watching, mut heard) = Heard::start_with(&kubeconfig, patience)?;
    heard.wait("it is said", |it| !it.fault().is_empty())?;
    ensure!(
        heard.fault() == "watch pods: no answer within 2 s",
        "{}",
        heard.fault()
    );
    let unanswered = (ApiVerb::Watch, ApiResource::Pods, ApiAnswer::None);
    ensure!(
        !heard.asked.is_empty() && heard.asked.iter().all(|it| *it == unanswered),
        "{:?}",
        heard.asked
    );
    // In the middle of the next question.
    thread::sleep(Duration::from_secs(1));
    ends_soon(watching)
}

/// Its file is read anew for each connection.
#[test]
fn a_kubeconfig_that_leads_elsewhere_is_followed() -> Result<()> {
    let (server, kubeconfig, _watching, mut heard) = scene("moved", Manner::StreamsLists, &[])?;
    heard.wait("it is followed", Heard::is_followed)?;
    let other = FakeApiServer::start(Manner::StreamsLists)?;
    // Beyond what the first one told.
    for name in ["one", "two", "one"] {
        other.put(&pod(name));
    }
    fs::write(&kubeconfig.0, "no kubeconfig")?;
    server.stop();
    heard.wait("it is said", |it| {
        it.fault().contains(&*kubeconfig.0.to_string_lossy())
    })?;
    other.write_kubeconfig(&kubeconfig.0)?;
    let server = format!("http://{}", other.address);
    heard.wait("the other", |it| {
        let status = it.status.as_ref();
        it.is_followed() && status.is_some_and(|it| it.server.as_deref() == Some(&*server))
    })
}

/// A program of the kubeconfig that gives credentials, and hangs.
#[test]
fn a_program_that_gives_no_credentials_holds_up_nobody() -> Result<()> {
    let server = FakeApiServer::start(Manner::StreamsLists)?;
    let kubeconfig = Kubeconfig::new("exec", &server)?;
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&kubeconfig.0)?)?;
    // Nobody is asked there before.
    config["clusters"][0]["cluster"] =
        json!({"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": true});
    config["users"][0]["user"] = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sleep", "args": ["15"],
    }});
    fs::write(&kubeconfig.0, config.to_string())?;
    let (watching, mut heard) = Heard::start(&kubeconfig)?;
    heard.wait("it is said", |it| it.fault().contains("credentials"))?;
    ends_soon(watching)
}

/// An Event of a pod.
pub(super) fn write(kind: WriteKind, namespace: &str, id: u64, count: u64) -> Write {
    let at = |seconds| WallTime::from_epoch(Duration::from_secs(1_700_000_000 + seconds));
    Write {
        kind,
        id,
        is_name_taken: false,
        regarding: Regarding::Pod {
            pod: Arc::new(PodRef {
                namespace: namespace.to_owned(),
                name: "shop".to_owned(),
                uid: PodUid("uid-shop".to_owned()),
            }),
            container: Some("app".into()),
        },
        reason: Reason::OomKilled,
        role: None,
        count,
        first: at(0),
        last: at(count),
        told_until: Duration::from_secs(count),
        message: format!("{count} kills"),
        details: BTreeMap::from([("pid", count.to_string())]),
    }
}

impl Heard {
    fn outcome(&mut self, of: &ApiServer, write: Write) -> Result<Outcome> {
        let n = self.outcomes.len();
        of.write(write);
        self.wait("it is answered", |it| it.outcomes.len() > n)?;
        Ok(self.outcomes[n].clone())
    }
}

#[test]
fn what_becomes_of_an_event_is_told() -> Result<()> {
    let (server, kubeconfig, watching, mut heard) = scene("written", Manner::StreamsLists, &[])?;
    let mut told = |kind, id, count| heard.outcome(&watching, write(kind, "default", id, count));
    assert_eq!(told(WriteKind::Patch, 1, 1)?, Outcome::Gone);
    assert_eq!(told(WriteKind::Create, 1, 1)?, Outcome::Written);
    assert_eq!(told(WriteKind::Patch, 1, 3)?, Outcome::Written);
    let there = |is_own| Outcome::Exists {
        count: 3,
        is_own,
        told_until: Some(Duration::from_secs(3)),
    };
    assert_eq!(told(WriteKind::Create, 1, 4)?, there(true));
    assert_eq!(told(WriteKind::Create, 2, 1)?, there(false));
    let mut without = write(WriteKind::Patch, "default", 1, 5);
    without.details.clear();
    assert_eq!(heard.outcome(&watching, without)?, Outcome::Written);
    let kept = server.kept_events();
    assert_eq!(kept.len(), 1);
    assert_eq!(
        (&kept[0]["count"], &kept[0]["message"]),
        (&json!(5), &json!("in container app: 5 kills"))
    );
    assert_eq!(kept[0]["involvedObject"]["fieldPath"], Value::Null);
    let annotations = kept[0]["metadata"]["annotations"].as_object();
    let names: Vec<&String> = annotations.into_iter().flat_map(|it| it.keys()).collect();
    assert_eq!(
        names,
        ["ballast.dev/instance", "ballast.dev/last"],
        "what the kill before had is gone"
    );
    let asked = heard.asked.iter();
    let of_events = asked.filter(|it| it.1 == ApiResource::Events);
    let of_events: Vec<_> = of_events.map(|it| (it.0, it.2)).collect();
    let right = [
        (ApiVerb::Patch, ApiAnswer::Refused(404)),
        (ApiVerb::Create, ApiAnswer::Good),
        (ApiVerb::Patch, ApiAnswer::Good),
        // What there is of it is asked for.
        (ApiVerb::Create, ApiAnswer::Refused(409)),
        (ApiVerb::Patch, ApiAnswer::Good),
        (ApiVerb::Create, ApiAnswer::Refused(409)),
        (ApiVerb::Patch, ApiAnswer::Good),
        (ApiVerb::Patch, ApiAnswer::Good),
    ];
    assert_eq!(of_events, right);
    // A new agent.
    let (other, mut heard) = Heard::start(&kubeconfig)?;
    let exists = heard.outcome(&other, write(WriteKind::Create, "default", 1, 1))?;
    assert_eq!(
        exists,
        Outcome::Exists {
            count: 5,
            is_own: false,
            told_until: Some(Duration::from_secs(5)),
        }
    );
    // What the container is to its pod is told later.
    let known = Write {
        role: Some(ContainerRole::Init),
        ..write(WriteKind::Patch, "default", 1, 6)
    };
    assert_eq!(heard.outcome(&other, known)?, Outcome::Written);
    let kept = server.kept_events();
    let path = &kept[0]["involvedObject"]["fieldPath"];
    assert_eq!(
        (path, &kept[0]["message"]),
        (&json!("spec.initContainers{app}"), &json!("6 kills"))
    );
    assert_eq!(kept[0]["involvedObject"]["name"], "shop");
    Ok(())
}

/// What the API server says of one namespace holds up no other; what a proxy says is no word of the API server.
#[test]
fn an_event_that_is_refused_holds_up_no_other() -> Result<()> {
    let (server, _kubeconfig, watching, mut heard) = scene("refused", Manner::StreamsLists, &[])?;
    let mut terminating = failure(403, "Forbidden", "it is being terminated");
    terminating["details"] =
        json!({"causes": [{"reason": "NamespaceTerminating", "message": "", "field": ""}]});
    // Without an outcome: it has failed.
    for (namespace, code, body, right) in [
        (
            "no-right",
            403,
            failure(403, "Forbidden", "no").to_string(),
            None,
        ),
        ("going", 403, terminating.to_string(), Some(Outcome::Never)),
        (
            "gone",
            404,
            failure(404, "NotFound", "namespaces").to_string(),
            Some(Outcome::Never),
        ),
        (
            "quota",
            409,
            failure(409, "Conflict", "try again").to_string(),
            None,
        ),
        (
            "webhook",
            500,
            failure(500, "InternalError", "failed calling webhook").to_string(),
            None,
        ),
        (
            "faulty",
            422,
            failure(422, "Invalid", "name").to_string(),
            Some(Outcome::Never),
        ),
    ] {
        server.refuse_events(namespace, Answer::new(code, body));
        for kind in [WriteKind::Create, WriteKind::Patch] {
            let right = match (namespace, kind) {
                ("gone", WriteKind::Patch) => Some(Outcome::Gone),
                _ => right.clone(),
            };
            let outcome = heard.outcome(&watching, write(kind, namespace, 1, 1))?;
            let is_right = match &outcome {
                Outcome::Failed { why, .. } => {
                    let verb = format!("{kind:?} events: ").to_lowercase();
                    right.is_none() && why.to_lowercase().starts_with(&verb)
                }
                other => right.as_ref() == Some(other),
            };
            ensure!(is_right, "{namespace} {kind:?}: {outcome:?}");
        }
    }
    let fine = heard.outcome(&watching, write(WriteKind::Create, "default", 1, 1))?;
    assert_eq!(fine, Outcome::Written);
    ensure!(heard.events_fault.is_none(), "others are taken");
    for (namespace, code) in [("page", 404), ("other-page", 400), ("busy-page", 503)] {
        server.refuse_events(namespace, Answer::new(code, "<html>not here</html>"));
        for kind in [WriteKind::Create, WriteKind::Patch] {
            let outcome = heard.outcome(&watching, write(kind, namespace, 1, 1))?;
            ensure!(
                matches!(outcome, Outcome::Failed { .. }),
                "{namespace} {kind:?}: {outcome:?}"
            );
        }
    }
    ensure!(heard.events_fault.is_some(), "it is told");
    Ok(())
}
