//! The agent's side of CRI against a runtime that runs nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ballast::cri::{Cri, Told, probe};
use ballast::model::runtime_names::{Follows, Identified, Role, RuntimeStatus};
use ballast_tests::cri::{FakeRuntime, Manner, RuntimePod, socket_in};
use ballast_tests::kube::container_id;
use ballast_tests::scratch::Scratch;
use ballast_tests::wait::{patience, until, wait_for};

/// Between two lists of a runtime that tells no events.
const WITHOUT_EVENTS: Duration = Duration::from_secs(10);

/// What was told, as far as it was looked at.
struct Heard {
    told: Receiver<Told>,
    known: BTreeMap<String, Identified>,
    n_happened: usize,
    status: RuntimeStatus,
}

impl Heard {
    /// `pause`: what each telling takes.
    fn start(socket: PathBuf, pause: Duration) -> (Cri, Self) {
        Self::start_of(vec![socket], pause)
    }

    fn start_of(sockets: Vec<PathBuf>, pause: Duration) -> (Cri, Self) {
        Self::start_with(sockets, Follows::Events, pause)
    }

    fn start_with(sockets: Vec<PathBuf>, at_most: Follows, pause: Duration) -> (Cri, Self) {
        let (sender, told) = mpsc::channel();
        let sink = move |told| {
            thread::sleep(pause);
            sender.send(told).unwrap_or_default();
        };
        let cri = Cri::start(move || sockets.clone(), at_most, sink).unwrap();
        (cri, Self::of(told))
    }

    /// Of a runtime whose lists have this deadline.
    fn start_impatient(socket: PathBuf, list_deadline: Duration) -> (Cri, Self) {
        let (sender, told) = mpsc::channel();
        let sink = move |told| sender.send(told).unwrap_or_default();
        let sockets = move || vec![socket.clone()];
        let cri = Cri::start_with(sockets, Follows::Events, list_deadline, sink).unwrap();
        (cri, Self::of(told))
    }

    fn of(told: Receiver<Told>) -> Self {
        Self {
            told,
            known: BTreeMap::new(),
            n_happened: 0,
            status: RuntimeStatus::default(),
        }
    }

    fn look(&mut self) {
        while let Ok(told) = self.told.try_recv() {
            let some = match told {
                Told::State(status) => {
                    self.status = status;
                    continue;
                }
                Told::All(all) => {
                    self.known.clear();
                    all
                }
                Told::Some(some) => some,
                Told::Happened => {
                    self.n_happened += 1;
                    continue;
                }
            };
            self.known
                .extend(some.into_iter().map(|it| (it.id.clone(), it)));
        }
    }

    fn wait(&mut self, what: &str, is_it: impl Fn(&Self) -> bool) {
        let found = until(what, || {
            self.look();
            ensure!(is_it(self), "{:?} {:?}", self.status, self.known);
            Ok(())
        });
        found.unwrap();
    }

    fn name(&self, id: &str) -> Option<(&str, Option<&str>)> {
        let it = self.known.get(id)?;
        let name = match &it.role {
            Role::Sandbox => None,
            Role::Container { name, .. } => Some(&**name),
        };
        Some((&it.pod.name, name))
    }

    fn image(&self, id: &str) -> Option<&str> {
        match &self.known.get(id)?.role {
            Role::Sandbox => None,
            Role::Container { image, .. } => image.as_deref(),
        }
    }
}

fn pod(name: &str, n: u64) -> RuntimePod {
    RuntimePod::new("default", name, &format!("uid-{name}"), &container_id(n))
}

/// How often what is done each `period` comes due since `began`.
fn n_within(began: Instant, period: Duration) -> usize {
    let n = began.elapsed().as_nanos() / period.as_nanos();
    usize::try_from(n).unwrap()
}

fn runtime(directory: &Scratch, manner: Manner) -> FakeRuntime {
    FakeRuntime::start(socket_in(directory.directory()), manner).unwrap()
}

#[test]
fn who_was_there_before_is_listed_and_who_comes_is_told() {
    let directory = Scratch::new("cri-listed").unwrap();
    let fake = runtime(&directory, Manner::Events);
    let (shop, late) = (pod("shop", 1), pod("late", 3));
    fake.add_sandbox(&shop);
    fake.add_container(&shop, "app", 2, &container_id(2));
    let (_cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("the list", |it| {
        it.known.len() == 2 && it.status.is_connected()
    });
    assert_eq!(heard.name(&shop.sandbox), Some(("shop", None)));
    assert_eq!(heard.name(&container_id(2)), Some(("shop", Some("app"))));
    let image = heard.image(&container_id(2));
    assert_eq!(image, Some("docker.io/library/app:1"));
    assert_eq!(heard.status.runtime().as_deref(), Some("fake 1.2.3"));
    assert_eq!(heard.status.follows, Follows::Events);
    wait_for("it is followed", || Ok(fake.n_subscribers() == 1)).unwrap();
    let (began, n_lists) = (Instant::now(), fake.n_lists());
    fake.add_sandbox(&late);
    fake.add_container(&late, "main", 0, &container_id(4));
    assert!(fake.tell(&late, &container_id(4), patience()));
    heard.wait("the event", |it| it.known.contains_key(&container_id(4)));
    assert_eq!(heard.name(&late.sandbox), Some(("late", None)));
    let image = heard.image(&container_id(4));
    assert_eq!(image, Some("docker.io/library/main:1"));
    let n_happened = heard.n_happened;
    assert!(fake.tell(&late, &container_id(4), patience()));
    heard.wait("its start, of one that has its name", |it| {
        it.n_happened > n_happened
    });
    let more = fake.n_lists() - n_lists;
    let most = 1 + n_within(began, Duration::from_secs(60));
    assert!(more <= most, "{more} lists, not the second one alone");
    assert_eq!(fake.most_open(), 1, "one call at a time");
}

/// That it answers by CRI v1 at all says which version it speaks.
#[test]
fn a_runtime_that_names_the_version_of_an_api_of_its_own_is_followed() {
    let directory = Scratch::new("cri-api").unwrap();
    let fake = runtime(&directory, Manner::NamesItsOwnApi);
    fake.add_sandbox(&pod("shop", 1));
    let (_cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("the list", |it| {
        it.known.len() == 1 && it.status.is_connected()
    });
    assert_eq!(heard.status.follows, Follows::Events);
}

/// No event is told, and the filter fits another one too.
#[test]
fn one_that_nobody_has_told_of_is_asked_for_by_its_whole_id() {
    let directory = Scratch::new("cri-asked").unwrap();
    let fake = runtime(&directory, Manner::Events);
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("it is connected", |it| it.status.is_connected());
    wait_for("two lists", || Ok(fake.n_lists() >= 2)).unwrap();
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    fake.add_container(&shop, "app", 0, &container_id(2));
    let beginning = &container_id(2)[..60];
    cri.asker().ask(beginning);
    cri.asker().ask(&container_id(2));
    heard.wait("the answer", |it| it.known.contains_key(&container_id(2)));
    cri.asker().ask(&shop.sandbox);
    heard.wait("the sandbox", |it| it.known.contains_key(&shop.sandbox));
    assert_eq!(heard.name(&shop.sandbox), Some(("shop", None)));
    wait_for("the beginning was asked for to the end", || {
        Ok(fake.n_asked() >= 5)
    })
    .unwrap();
    heard.look();
    assert_eq!(heard.name(beginning), None);
}

#[test]
fn a_runtime_that_tells_no_events_is_asked_and_not_tried_again_and_again() {
    let directory = Scratch::new("cri-lists").unwrap();
    let fake = runtime(&directory, Manner::NoEvents);
    let began = Instant::now();
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("it says so", |it| it.status.follows == Follows::Lists);
    assert!(heard.status.is_connected());
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    fake.add_container(&shop, "app", 0, &container_id(2));
    cri.asker().ask(&container_id(2));
    heard.wait("the answer", |it| it.known.contains_key(&container_id(2)));
    thread::sleep(Duration::from_secs(2));
    let (n_lists, most) = (fake.n_lists(), 3 + n_within(began, WITHOUT_EVENTS));
    assert!(n_lists <= most, "{n_lists} lists");
}

/// Lists and single questions are answered.
#[test]
fn a_runtime_that_refuses_its_events_gives_names_and_is_asked_for_them_again() {
    let directory = Scratch::new("cri-refused").unwrap();
    let fake = runtime(&directory, Manner::RefusesEvents);
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    let began = Instant::now();
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("the list", |it| it.known.contains_key(&shop.sandbox));
    heard.wait("it says so", |it| it.status.follows == Follows::Lists);
    assert_eq!(
        heard.status.events_refused.as_deref(),
        Some("Unknown: no stream is let through")
    );
    assert!(heard.status.is_connected(), "{:?}", heard.status);
    fake.add_container(&shop, "app", 0, &container_id(2));
    cri.asker().ask(&container_id(2));
    heard.wait("the answer", |it| it.known.contains_key(&container_id(2)));
    wait_for("the second list", || Ok(fake.n_lists() >= 2)).unwrap();
    thread::sleep(Duration::from_secs(2));
    let (n_lists, most) = (fake.n_lists(), 3 + n_within(began, WITHOUT_EVENTS));
    assert!(n_lists <= most, "{n_lists} lists");
    heard.look();
    assert!(heard.status.is_connected(), "{:?}", heard.status);
    fake.behave(Manner::Events);
    heard.wait("its events are followed", |it| {
        it.status.follows == Follows::Events
    });
    assert_eq!(heard.status.events_refused, None);
    assert_eq!(fake.n_subscribers(), 1);
    fake.add_container(&shop, "main", 0, &container_id(3));
    assert!(fake.tell(&shop, &container_id(3), patience()));
    heard.wait("the event", |it| it.known.contains_key(&container_id(3)));
}

#[test]
fn events_that_are_not_wanted_are_not_asked_for() {
    let directory = Scratch::new("cri-unwanted").unwrap();
    let fake = runtime(&directory, Manner::Events);
    let sockets = vec![fake.socket.clone()];
    let (cri, mut heard) = Heard::start_with(sockets, Follows::Lists, Duration::ZERO);
    heard.wait("it is connected", |it| it.status.is_connected());
    assert_eq!(heard.status.follows, Follows::Lists);
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    fake.add_container(&shop, "app", 0, &container_id(2));
    cri.asker().ask(&container_id(2));
    heard.wait("the answer", |it| it.known.contains_key(&container_id(2)));
    wait_for("two lists", || Ok(fake.n_lists() >= 2)).unwrap();
    assert_eq!(fake.n_subscribers(), 0);
}

/// Names stand, and who came meanwhile is in the next list.
#[test]
fn a_runtime_that_is_restarted_is_followed_again() {
    let directory = Scratch::new("cri-restarted").unwrap();
    let mut fake = runtime(&directory, Manner::Events);
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    let (_cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("it is connected", |it| it.status.is_connected());
    fake.stop();
    heard.wait("it is missed", |it| !it.status.is_connected());
    assert_eq!(heard.name(&shop.sandbox), Some(("shop", None)));
    assert!(heard.status.fault.is_some() && heard.status.name.is_some());
    let late = pod("late", 3);
    fake.add_sandbox(&late);
    fake.begin(Manner::Events).unwrap();
    heard.wait("it is back", |it| it.status.is_connected());
    heard.wait("who came meanwhile", |it| {
        it.known.contains_key(&late.sandbox)
    });
    wait_for("it is followed once", || Ok(fake.n_subscribers() == 1)).unwrap();
}

/// A node may have a second one that runs no pods.
#[test]
fn while_a_runtime_is_restarted_no_other_one_is_followed() {
    let directory = Scratch::new("cri-two").unwrap();
    let mut first = runtime(&directory, Manner::Events);
    let idle = directory.path("idle.sock");
    let idle = FakeRuntime::start(idle, Manner::Events).unwrap();
    let shop = pod("shop", 1);
    first.add_sandbox(&shop);
    let sockets = vec![first.socket.clone(), idle.socket.clone()];
    let (_cri, mut heard) = Heard::start_of(sockets, Duration::ZERO);
    heard.wait("who is there", |it| it.known.contains_key(&shop.sandbox));
    first.stop();
    heard.wait("it is missed", |it| !it.status.is_connected());
    // For some of its tries.
    thread::sleep(Duration::from_secs(2));
    heard.look();
    assert_eq!(heard.status.endpoint.as_deref(), first.socket.to_str());
    assert!(heard.status.fault.is_some());
    assert_eq!(idle.n_lists_begun(), 0, "it is not asked");
    first.begin(Manner::Events).unwrap();
    heard.wait("it is back", |it| it.status.is_connected());
    assert_eq!(idle.n_lists_begun(), 0, "it is not asked");
}

#[test]
fn one_that_never_answers_holds_up_nobody() {
    let directory = Scratch::new("cri-silent").unwrap();
    let fake = runtime(&directory, Manner::Silent);
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("it is said", |it| it.status.fault.is_some());
    let why = heard.status.fault.clone().unwrap();
    assert!(why.contains("no answer within 2 s"), "{why}");
    for n in 0..5_000 {
        cri.asker().ask(&container_id(n));
    }
    let began = Instant::now();
    drop(cri);
    // Each of those that wait would take 2 s.
    assert!(began.elapsed() < patience(), "{:?}", began.elapsed());
    assert_eq!(fake.most_open(), 1, "one call at a time");
    let (status, named) = probe(std::slice::from_ref(&fake.socket)).unwrap();
    assert!(status.fault.is_some() && status.name.is_none() && named.is_none());
}

#[test]
fn single_questions_keep_no_event_waiting() {
    let directory = Scratch::new("cri-slow").unwrap();
    let fake = Arc::new(runtime(&directory, Manner::FindsSlowly));
    let (sender, told) = mpsc::channel();
    let of_sink = Arc::clone(&fake);
    // Whoever is named, and how often the runtime had been asked for one then.
    let sink = move |it| {
        if let Told::All(some) | Told::Some(some) = it {
            sender.send((some, of_sink.n_asked())).unwrap_or_default();
        }
    };
    let sockets = vec![fake.socket.clone()];
    let cri = Cri::start(move || sockets.clone(), Follows::Events, sink).unwrap();
    wait_for("it is followed", || {
        Ok(fake.n_lists() > 0 && fake.n_subscribers() == 1)
    })
    .unwrap();
    // Nobody knows them, which takes two questions each.
    for n in 100..108 {
        cri.asker().ask(&container_id(n));
    }
    wait_for("the first is asked for", || Ok(fake.n_asked() > 0)).unwrap();
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    fake.add_container(&shop, "app", 0, &container_id(2));
    assert!(fake.tell(&shop, &container_id(2), patience()));
    let n_before = fake.n_asked();
    let n_asked = loop {
        let (some, n_asked) = told.recv_timeout(patience()).unwrap();
        if some.iter().any(|it| it.id == container_id(2)) {
            break n_asked;
        }
    };
    assert!(n_asked < n_before + 4, "{n_before}, then {n_asked}, of 8");
}

/// A busy runtime answers late, and one that nobody follows any more would name nobody at all.
#[test]
fn names_come_by_events_while_lists_are_not_answered() {
    let directory = Scratch::new("cri-late").unwrap();
    let fake = runtime(&directory, Manner::OnlyEvents);
    let list_deadline = Duration::from_secs(2);
    let (_cri, mut heard) = Heard::start_impatient(fake.socket.clone(), list_deadline);
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    wait_for("it is followed", || Ok(fake.n_subscribers() == 1)).unwrap();
    heard.wait("it is said", |it| it.status.fault.is_some());
    let why = heard.status.fault.clone().unwrap();
    assert!(why.starts_with("ListPodSandbox: no answer"), "{why}");
    assert_eq!(heard.status.follows, Follows::Events);
    for n in 2..6 {
        fake.add_container(&shop, "app", 0, &container_id(n));
        assert!(fake.tell(&shop, &container_id(n), patience()));
        heard.wait("the event", |it| it.known.contains_key(&container_id(n)));
        thread::sleep(Duration::from_secs(1));
    }
    assert_eq!(fake.n_subscribers(), 1, "the same one");
    let late = pod("late", 7);
    fake.add_sandbox(&late);
    fake.behave(Manner::Events);
    heard.wait("it answers", |it| it.status.is_connected());
    heard.wait("the list", |it| it.known.contains_key(&late.sandbox));
    assert_eq!(heard.name(&container_id(2)), Some(("shop", Some("app"))));
    assert_eq!(fake.n_subscribers(), 1, "the same one");
}

/// kubelet takes no more than 16 MiB either.
#[test]
fn a_list_that_is_too_large_keeps_no_name_away() {
    let directory = Scratch::new("cri-large").unwrap();
    let fake = runtime(&directory, Manner::Events);
    for n in 0..18 {
        let name = format!("{n}-{}", "x".repeat(1 << 20));
        fake.add_sandbox(&pod(&name, 100 + n));
    }
    let there = pod("there", 200);
    fake.add_sandbox(&there);
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("it is said", |it| it.status.fault.is_some());
    let (began, n_lists) = (Instant::now(), fake.n_lists_begun());
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    wait_for("it is followed", || Ok(fake.n_subscribers() == 1)).unwrap();
    assert!(fake.tell(&shop, &shop.sandbox, patience()));
    heard.wait("the event", |it| it.known.contains_key(&shop.sandbox));
    thread::sleep(Duration::from_secs(2));
    assert_eq!(fake.n_subscribers(), 1, "the same one");
    let more = fake.n_lists_begun() - n_lists;
    let most = n_within(began, Duration::from_secs(1));
    assert!(more <= most, "{more} lists");
    // More than are asked for one by one where lists are answered.
    for n in 300..330 {
        fake.add_container(&there, "app", 0, &container_id(n));
        cri.asker().ask(&container_id(n));
    }
    heard.wait("all are asked for", |it| {
        (300..330).all(|n| it.known.contains_key(&container_id(n)))
    });
}

/// A node may have thousands that have ended, with all that kubelet has noted in each.
#[test]
fn who_runs_is_named_whatever_has_ended() {
    let directory = Scratch::new("cri-ended").unwrap();
    let fake = runtime(&directory, Manner::Events);
    for n in 0..18 {
        let name = format!("{n}-{}", "x".repeat(1 << 20));
        let over = pod(&name, 100 + n);
        fake.add_sandbox(&over);
        fake.end(&over.sandbox);
    }
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    for n in [2, 3] {
        fake.add_container(&shop, "app", 0, &container_id(n));
    }
    fake.end(&container_id(3));
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("who runs", |it| {
        it.status.is_connected() && it.known.contains_key(&container_id(2))
    });
    assert_eq!(heard.status.fault, None);
    assert_eq!(heard.name(&shop.sandbox), Some(("shop", None)));
    assert!(!heard.known.contains_key(&container_id(3)));
    // A kill in it is on record, say.
    cri.asker().ask(&container_id(3));
    heard.wait("the answer", |it| it.known.contains_key(&container_id(3)));
    assert_eq!(heard.name(&container_id(3)), Some(("shop", Some("app"))));
    assert_eq!(fake.most_open(), 1, "one call at a time");
}

/// What ended while no agent ran may still be told of.
#[test]
fn what_had_ended_is_in_the_first_lists_alone() {
    let directory = Scratch::new("cri-first").unwrap();
    let fake = runtime(&directory, Manner::NoEvents);
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    for n in [2, 3] {
        fake.add_container(&shop, "app", 0, &container_id(n));
    }
    fake.end(&container_id(3));
    let (_cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    heard.wait("both", |it| it.known.len() == 3);
    wait_for("the third list", || Ok(fake.n_lists() >= 3)).unwrap();
    heard.wait("who runs", |it| it.known.len() == 2);
    assert!(heard.known.contains_key(&container_id(2)));
    assert_eq!(fake.n_full_lists(), 2);
}

#[test]
fn a_list_that_takes_seconds_keeps_no_event_waiting() {
    let directory = Scratch::new("cri-long").unwrap();
    let fake = runtime(&directory, Manner::ListsSlowly);
    let (shop, late) = (pod("shop", 1), pod("late", 3));
    fake.add_sandbox(&shop);
    let (_cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    wait_for("its events are read", || Ok(fake.n_subscribers() == 1)).unwrap();
    fake.add_sandbox(&late);
    assert!(fake.tell(&late, &late.sandbox, patience()));
    heard.wait("the event", |it| it.known.contains_key(&late.sandbox));
    assert!(!heard.known.contains_key(&shop.sandbox), "the list is late");
    heard.wait("the list", |it| it.known.contains_key(&shop.sandbox));
    heard.wait("it is connected", |it| it.status.is_connected());
    assert_eq!(heard.name(&late.sandbox), Some(("late", None)));
    assert_eq!(fake.n_subscribers(), 1, "the same one");
    assert_eq!(fake.most_open(), 1, "one call at a time");
}

/// The stream is open, as far as the connection says, and stays so.
#[test]
fn a_stream_of_events_that_hangs_keeps_no_name_away() {
    let directory = Scratch::new("cri-hanging").unwrap();
    let fake = runtime(&directory, Manner::EventsHang);
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    let (cri, mut heard) = Heard::start(fake.socket.clone(), Duration::ZERO);
    wait_for("its events are asked for", || Ok(fake.n_hanging() == 1)).unwrap();
    heard.wait("the list", |it| it.known.contains_key(&shop.sandbox));
    for n in 2..6 {
        fake.add_container(&shop, "app", 0, &container_id(n));
        cri.asker().ask(&container_id(n));
        heard.wait("the answer", |it| it.known.contains_key(&container_id(n)));
    }
    wait_for("two lists", || Ok(fake.n_lists() >= 2)).unwrap();
    heard.look();
    assert_eq!(heard.status.follows, Follows::Events);
    assert_eq!(heard.status.fault, None, "it is not begun again");
    assert_eq!(fake.n_hanging(), 1, "the same stream");
    let began = Instant::now();
    drop(cri);
    assert!(began.elapsed() < patience(), "{:?}", began.elapsed());
}

#[test]
fn where_there_is_no_socket_that_is_said() {
    let directory = Scratch::new("cri-absent").unwrap();
    let socket = socket_in(directory.directory());
    let (_cri, mut heard) = Heard::start(socket.clone(), Duration::ZERO);
    heard.wait("it is said", |it| it.status.fault.is_some());
    assert_eq!(heard.status.endpoint, Some(socket.display().to_string()));
    let _fake = runtime(&directory, Manner::Events);
    heard.wait("it is found when it comes", |it| it.status.is_connected());
}

/// Whoever is told takes his time: the runtime does not wait for him, and what was dropped is made good by a list.
#[test]
fn a_flood_of_events_is_read_at_once_and_what_was_dropped_is_counted() {
    let directory = Scratch::new("cri-flood").unwrap();
    let fake = runtime(&directory, Manner::Events);
    let (_cri, mut heard) = Heard::start(fake.socket.clone(), Duration::from_millis(300));
    heard.wait("it is connected", |it| it.status.is_connected());
    wait_for("it is followed", || Ok(fake.n_subscribers() == 1)).unwrap();
    let n = 2_000;
    let began = Instant::now();
    for i in 0..n {
        let pod = pod(&format!("pod{i}"), 2 * i);
        fake.add_sandbox(&pod);
        fake.add_container(&pod, "app", 0, &container_id(2 * i + 1));
        let is_read = fake.tell(&pod, &container_id(2 * i + 1), patience());
        assert!(is_read, "event {i} waits since {:?}", began.elapsed());
    }
    heard.wait("all are known", |it| {
        let n_known = it.known.len();
        u64::try_from(n_known).unwrap() == 2 * n && it.status.dropped_events > 0
    });
    assert_eq!(fake.n_subscribers(), 1, "the same one");
}

#[test]
fn a_probe_says_who_answers_and_whom_it_names_and_subscribes_to_nothing() -> Result<()> {
    let directory = Scratch::new("cri-probe").unwrap();
    let fake = runtime(&directory, Manner::Events);
    let sockets = std::slice::from_ref(&fake.socket);
    let (status, named) = probe(sockets)?;
    assert_eq!(status.runtime().as_deref(), Some("fake 1.2.3"));
    assert_eq!((status.fault, named), (None, Some(BTreeSet::new())));
    let shop = pod("shop", 1);
    fake.add_sandbox(&shop);
    for n in [2, 3] {
        fake.add_container(&shop, "app", 0, &container_id(n));
    }
    fake.end(&container_id(3));
    let running = BTreeSet::from([1, 2].map(container_id));
    assert_eq!(probe(sockets)?.1, Some(running));
    assert_eq!(fake.n_subscribers(), 0);
    Ok(())
}
