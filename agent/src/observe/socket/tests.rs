#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "records are made and the socket is removed beside the code under test"
)]

use std::path::PathBuf;

use tokio::sync::SemaphorePermit;

use super::disk::{DISK_TIMEOUT, MAX_READS};
use super::*;
use crate::listener::FILE_CHECK;
use crate::model::record::{EventDetail, EventKind, tests::oom_record};
use crate::model::stats::tests::example_stats;
use crate::model::status::tests::example_status;
use crate::observe::protocol::Answer;
use crate::observe::shutdown::{self, ShutdownTrigger};
use crate::sys::scratch::Scratch;

/// A server with three events and a status document, in a directory of its own.
struct Fixture {
    path: PathBuf,
    events: EventLog,
    status: watch::Sender<Option<Arc<Status>>>,
    stats: watch::Sender<Option<Arc<StatsSnapshot>>>,
    disk: Disk,
    server: SocketServer,
    shutdown: ShutdownTrigger,
    _scratch: Scratch,
}

impl Fixture {
    fn start(capacity: usize) -> Self {
        Self::with(capacity, |_| None)
    }

    fn with(capacity: usize, catch_up: impl FnOnce(&EventLog) -> Option<CatchUp>) -> Self {
        let scratch = Scratch::new("socket");
        let path = scratch.path("run/ballast.sock");
        let events = EventLog::new(capacity, 0);
        for kind in [EventKind::Oom, EventKind::Process, EventKind::Pod] {
            append(&events, kind, "first");
        }
        let (status, receiver) = watch::channel(Some(Arc::new(example_status())));
        let (stats, sweeps) = watch::channel(None);
        // A bell that is answered at once by the sweep of the second 60.
        let fresh = stats.clone();
        let ring = move || {
            fresh.send_replace(Some(Arc::new(example_stats(60))));
        };
        let (trigger, shutdown) = shutdown::channel();
        let sources = Sources {
            status: receiver,
            stats: sweeps,
            stats_bell: Some(Arc::new(ring)),
            events: events.clone(),
            catch_up: catch_up(&events),
            admissions: path.with_file_name("admissions"),
            oom_records: path.with_file_name("oom"),
        };
        let disk = Disk::default();
        let server = serve_from(&path, sources, disk.clone(), shutdown).unwrap();
        Self {
            path,
            events,
            status,
            stats,
            disk,
            server,
            shutdown: trigger,
            _scratch: scratch,
        }
    }

    async fn connect(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(&self.path).await.unwrap())
    }

    /// All answers to `request`.
    async fn ask(&self, request: &[u8]) -> Vec<Answer> {
        let mut stream = self.connect().await;
        // The server may close before it has read all of it.
        let _ = stream.write_all(request).await;
        read_answers(&mut stream).await
    }
}

async fn read_answers(stream: &mut BufReader<UnixStream>) -> Vec<Answer> {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text).await;
    let answers = text.lines().map(serde_json::from_str);
    answers.collect::<Result<_, _>>().unwrap()
}

fn append(events: &EventLog, kind: EventKind, message: &str) {
    let mut event = oom_record(0).event;
    event.kind = kind;
    event.message = message.to_owned();
    events.append(event);
}

fn request(rest: &str) -> Vec<u8> {
    format!("{{\"apiVersion\":\"ballast.dev/v1alpha1\",{rest}}}\n").into_bytes()
}

async fn next_event(stream: &mut BufReader<UnixStream>) -> EventRecord {
    let mut line = String::new();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_line(&mut line));
    read.await.unwrap().unwrap();
    match serde_json::from_str(&line).unwrap() {
        Answer::Event(record) => *record,
        other => panic!("{other:?}"),
    }
}

fn sequences(answers: &[Answer]) -> Vec<u64> {
    let of = |it: &Answer| match it {
        Answer::Event(record) => record.sequence,
        other => panic!("{other:?}"),
    };
    answers.iter().map(of).collect()
}

#[tokio::test]
async fn status_and_events_are_answered() {
    let fixture = Fixture::start(16);
    let answers = fixture.ask(&request(r#""command":"status""#)).await;
    assert_eq!(answers, [Answer::Status(Box::new(example_status()))]);
    for (rest, expected) in [
        (r#""command":"events""#, vec![1, 2, 3]),
        (r#""command":"events","kind":["oom","pod"]"#, vec![1, 3]),
        (r#""command":"events","after":2"#, vec![3]),
        (r#""command":"events","after":99"#, vec![1, 2, 3]),
    ] {
        let answers = fixture.ask(&request(rest)).await;
        assert_eq!(sequences(&answers), expected, "{rest}");
    }
}

#[tokio::test]
async fn old_statistics_are_made_anew_and_fresh_ones_are_sent_as_they_are() {
    let fixture = Fixture::start(16);
    let ask = || async { fixture.ask(&request(r#""command":"stats""#)).await };
    let stats = |it: StatsSnapshot| [Answer::Stats(Box::new(it))];
    assert_eq!(ask().await, stats(example_stats(60)), "there was none");
    fixture.stats.send_replace(Some(Arc::new(example_stats(1))));
    assert_eq!(ask().await, stats(example_stats(60)), "it was old");
    let fresh = StatsSnapshot {
        ended: clock::boottime() + Duration::from_secs(3600),
        ..example_stats(1)
    };
    fixture.stats.send_replace(Some(Arc::new(fresh.clone())));
    assert_eq!(ask().await, stats(fresh));
}

#[tokio::test]
async fn a_pod_is_explained_with_its_record() {
    let fixture = Fixture::start(16);
    let admissions = fixture.path.with_file_name("admissions");
    std::fs::create_dir(&admissions).unwrap();
    std::fs::write(
        admissions.join("6a1f.json"),
        "{\n\"kind\": \"AdmissionRecord\"}",
    )
    .unwrap();
    let answers = fixture
        .ask(&request(r#""command":"explain","pod":"database""#))
        .await;
    let [Answer::Explanation(explained)] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!(explained.pod, example_status().pods[0]);
    let record = serde_json::json!({"kind": "AdmissionRecord"});
    assert_eq!(explained.record, Some(record));
    // No name of a client becomes a path.
    let answers = fixture
        .ask(&request(
            r#""command":"explain","pod":"../admissions/6a1f""#,
        ))
        .await;
    assert!(matches!(&answers[..], [Answer::Error(_)]), "{answers:?}");
}

#[tokio::test]
async fn before_the_first_pass_status_says_so() {
    let fixture = Fixture::start(16);
    fixture.status.send_replace(None);
    let answers = fixture.ask(&request(r#""command":"status""#)).await;
    assert!(
        matches!(&answers[..], [Answer::Error(message)] if message.contains("starting")),
        "{answers:?}"
    );
    let explained = fixture
        .ask(&request(r#""command":"explain","pod":"database""#))
        .await;
    assert_eq!(explained, answers);
}

#[tokio::test]
async fn garbage_gets_one_error_and_the_server_goes_on() {
    let fixture = Fixture::start(16);
    let oversized = [
        b"{\"apiVersion\":\"",
        vec![b'x'; 1 << 20].as_slice(),
        b"\"}\n",
    ]
    .concat();
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".as_slice(),
        b"\n",
        b"\xff\xfe\0\n",
        b"{}\n",
        br#"{"apiVersion":"ballast.dev/v2","command":"status"}"#.as_slice(),
        b"[[[[[[[[\n",
    ] {
        let mut request = garbage.to_vec();
        request.push(b'\n');
        let answers = fixture.ask(&request).await;
        assert!(
            matches!(&answers[..], [Answer::Error(_)]),
            "{garbage:?}: {answers:?}"
        );
    }
    // The answer may be lost with the unread rest, but the connection ends.
    fixture.ask(&oversized).await;
    let answers = fixture.ask(&request(r#""command":"status""#)).await;
    assert_eq!(answers.len(), 1);
}

#[tokio::test]
async fn a_follower_sees_what_comes_and_resumes_after_a_reconnect() {
    let fixture = Fixture::start(16);
    let mut stream = fixture.connect().await;
    let follow = request(r#""command":"events","follow":true,"kind":["oom"]"#);
    stream.write_all(&follow).await.unwrap();
    assert_eq!(next_event(&mut stream).await.sequence, 1);
    append(&fixture.events, EventKind::Pod, "not wanted");
    append(&fixture.events, EventKind::Oom, "second");
    assert_eq!(next_event(&mut stream).await.sequence, 5);
    drop(stream);
    append(&fixture.events, EventKind::Oom, "while away");
    let mut stream = fixture.connect().await;
    let resume = request(r#""command":"events","follow":true,"kind":["oom"],"after":5"#);
    stream.write_all(&resume).await.unwrap();
    assert_eq!(next_event(&mut stream).await.sequence, 6);
}

/// A kernel of which one event is heard soon after somebody asks.
#[tokio::test]
async fn what_has_happened_by_now_is_in_the_answer() {
    let fixture = Fixture::with(16, |events| {
        let (heard, events) = (watch::Sender::new(Some(Duration::ZERO)), events.clone());
        let receiver = heard.subscribe();
        let ask = move || {
            let (heard, events) = (heard.clone(), events.clone());
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                append(&events, EventKind::Process, "asked");
                heard.send_replace(Some(clock::boottime()));
            });
        };
        Some(CatchUp {
            ask: Arc::new(ask),
            heard: receiver,
        })
    });
    let once = request(r#""command":"events","kind":["process"]"#);
    assert_eq!(fixture.ask(&once).await.len(), 2);
    assert_eq!(fixture.ask(&once).await.len(), 3);
    let mut follower = fixture.connect().await;
    let follow = request(r#""command":"events","follow":true,"kind":["process"],"after":5"#);
    follower.write_all(&follow).await.unwrap();
    assert_eq!(next_event(&mut follower).await.sequence, 6);
}

/// With nobody to hear, and with somebody who does not.
#[tokio::test]
async fn an_answer_does_not_wait_for_ever_to_be_up_to_date() {
    for heard in [None, Some(Duration::ZERO)] {
        let (_listener, receiver) = watch::channel(heard);
        let fixture = Fixture::with(16, |_| {
            Some(CatchUp {
                ask: Arc::new(|| ()),
                heard: receiver,
            })
        });
        let answers = fixture.ask(&request(r#""command":"events""#)).await;
        assert_eq!(answers.len(), 3);
        // A server that runs may make the directory of its socket anew.
        fixture.shutdown.fire();
        fixture.server.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_slow_reader_holds_up_nobody_and_learns_what_it_missed() {
    let fixture = Fixture::start(8);
    let mut slow = fixture.connect().await;
    let follow = request(r#""command":"events","follow":true"#);
    slow.write_all(&follow).await.unwrap();
    assert_eq!(next_event(&mut slow).await.sequence, 1);

    // More than the socket buffers hold, while the reader does not read.
    let message = "x".repeat(64 * 1024);
    for _ in 0..200 {
        append(&fixture.events, EventKind::Process, &message);
        tokio::task::yield_now().await;
    }
    let answers = fixture.ask(&request(r#""command":"status""#)).await;
    assert_eq!(answers.len(), 1, "others are served meanwhile");

    let mut n_missed = 0;
    let mut last = 1;
    let mut n_read = 1;
    while last < 203 {
        let record = next_event(&mut slow).await;
        match record.event.detail {
            Some(EventDetail::Dropped { count }) => n_missed += count,
            _ => {
                assert!(record.sequence > last, "{} after {last}", record.sequence);
                last = record.sequence;
                n_read += 1;
            }
        }
    }
    assert!(n_missed > 0);
    assert_eq!(n_read + n_missed, 203, "every record is read or counted");
}

#[tokio::test]
async fn followers_have_places_of_their_own() {
    let fixture = Fixture::start(16);
    let follow = request(r#""command":"events","follow":true"#);
    let mut followers = Vec::new();
    for _ in 0..MAX_FOLLOWERS {
        let mut stream = fixture.connect().await;
        stream.write_all(&follow).await.unwrap();
        next_event(&mut stream).await;
        followers.push(stream);
    }
    let answers = fixture.ask(&follow).await;
    assert!(matches!(&answers[..], [Answer::Error(_)]), "{answers:?}");
    let answers = fixture.ask(&request(r#""command":"status""#)).await;
    assert!(matches!(&answers[..], [Answer::Status(_)]), "{answers:?}");
}

#[tokio::test]
async fn shutdown_ends_followers_and_removes_the_socket() {
    let mut fixture = Fixture::start(16);
    let mut stream = fixture.connect().await;
    let follow = request(r#""command":"events","follow":true"#);
    stream.write_all(&follow).await.unwrap();
    next_event(&mut stream).await;
    fixture.shutdown.fire();
    let ended = tokio::time::timeout(Duration::from_secs(60), &mut fixture.server.task).await;
    ended.unwrap().unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).await.unwrap();
    assert!(!fixture.path.exists());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_asks_loses_its_connection() {
    let fixture = Fixture::start(16);
    let mut silent = fixture.connect().await;
    let begun = tokio::time::Instant::now();
    let mut answer = String::new();
    silent.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "");
    assert!(begun.elapsed() >= REQUEST_TIMEOUT);
    // It ends while nobody looks after the file, who would make it again.
    tokio::time::sleep(FILE_CHECK / 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_removed_socket_comes_back_and_who_is_connected_stays() {
    let fixture = Fixture::start(16);
    let mut follower = fixture.connect().await;
    let follow = request(r#""command":"events","follow":true,"after":2"#);
    follower.write_all(&follow).await.unwrap();
    assert_eq!(next_event(&mut follower).await.sequence, 3);
    std::fs::remove_dir_all(fixture.path.parent().unwrap()).unwrap();
    tokio::time::sleep(FILE_CHECK * 2).await;
    let answers = fixture.ask(&request(r#""command":"status""#)).await;
    assert!(matches!(&answers[..], [Answer::Status(_)]), "{answers:?}");
    append(&fixture.events, EventKind::Oom, "later");
    assert_eq!(next_event(&mut follower).await.sequence, 4);
}

/// What asks the disk of the state directory.
const DISK_REQUESTS: [&str; 2] = [
    r#""command":"records""#,
    r#""command":"explain","pod":"database""#,
];

/// As if reads that hang held all of it.
async fn hang(disk: &Disk) -> SemaphorePermit<'_> {
    let all = u32::try_from(MAX_READS).unwrap();
    disk.reads.acquire_many(all).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_asks_a_disk_that_hangs_is_told() {
    let fixture = Fixture::start(16);
    let _hung = hang(&fixture.disk).await;
    for rest in DISK_REQUESTS {
        let begun = tokio::time::Instant::now();
        let answers = fixture.ask(&request(rest)).await;
        assert_eq!(answers, [Answer::Error(NO_DISK.to_owned())], "{rest}");
        let took = begun.elapsed();
        assert!((DISK_TIMEOUT..CLIENT_TIMEOUT).contains(&took), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_disk_keeps_nobody_out() {
    let fixture = Fixture::start(16);
    let _hung = hang(&fixture.disk).await;
    let mut clients = Vec::new();
    for n in 0..MAX_CONNECTIONS * 2 {
        let mut stream = fixture.connect().await;
        let request = request(DISK_REQUESTS[n % DISK_REQUESTS.len()]);
        stream.write_all(&request).await.unwrap();
        clients.push(stream);
    }
    let told = read_answers(&mut clients[0]).await;
    assert_eq!(told, [Answer::Error(NO_PLACE.to_owned())]);
    let status = request(r#""command":"status""#);
    let answers = tokio::time::timeout(DISK_TIMEOUT / 2, fixture.ask(&status)).await;
    assert!(
        matches!(answers.as_deref(), Ok([Answer::Status(_)])),
        "{answers:?}"
    );
}

/// A client that asks for what its connection waits for, with the place kept.
async fn ask_for_events(fixture: &Fixture) -> BufReader<UnixStream> {
    let mut stream = fixture.connect().await;
    let events = request(r#""command":"events""#);
    stream.write_all(&events).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn a_removed_socket_comes_back_while_the_next_client_has_no_place() {
    let (_hearing, heard) = watch::channel(Some(Duration::ZERO));
    let fixture = Fixture::with(16, |_| {
        Some(CatchUp {
            ask: Arc::new(|| ()),
            heard,
        })
    });
    tokio::time::sleep(FILE_CHECK - CATCH_UP_PATIENCE / 2).await;
    let mut clients = Vec::new();
    for _ in 0..=MAX_CONNECTIONS {
        clients.push(ask_for_events(&fixture).await);
    }
    std::fs::remove_file(&fixture.path).unwrap();
    tokio::time::sleep(CATCH_UP_PATIENCE * 3 / 4).await;
    assert!(fixture.path.exists());
    let mut last = clients.pop().unwrap();
    assert_eq!(next_event(&mut last).await.sequence, 1);
}

#[tokio::test]
async fn status_is_answered_whatever_silent_and_deaf_clients_hold() {
    let fixture = Fixture::start(16);
    let message = "x".repeat(64 * 1024);
    for _ in 0..5 {
        append(&fixture.events, EventKind::Pod, &message);
    }
    let mut others = Vec::new();
    for n in 0..200 {
        let mut stream = fixture.connect().await;
        if n % 2 == 0 {
            // More than a socket holds, and never read.
            let events = request(r#""command":"events""#);
            stream.write_all(&events).await.unwrap();
        }
        others.push(stream);
    }
    let request = request(r#""command":"status""#);
    // On a slow machine the answers that are asked for before it take their time as well.
    let patience = Duration::from_secs(60);
    let answers = tokio::time::timeout(patience, fixture.ask(&request)).await;
    assert!(
        matches!(answers.as_deref(), Ok([Answer::Status(_)])),
        "{answers:?}"
    );
}

#[test]
fn only_root_and_the_agents_user_are_allowed() {
    for (uid, own_uid, expected) in [
        (0, 0, true),
        (0, 1000, true),
        (1000, 1000, true),
        (1000, 0, false),
        (1001, 1000, false),
    ] {
        assert_eq!(is_allowed(uid, own_uid), expected, "{uid} to {own_uid}");
    }
}

#[tokio::test]
async fn the_records_of_oom_kills_are_sent_in_their_order_and_damaged_ones_left_out() {
    use crate::model::forensics::{RecordId, tests::record};
    let fixture = Fixture::start(8);
    let directory = fixture.path.with_file_name("oom");
    std::fs::create_dir_all(&directory).unwrap();
    for id in [1, 2, 10] {
        let bytes = record(RecordId(id)).seal();
        std::fs::write(directory.join(RecordId(id).file_name()), bytes).unwrap();
    }
    std::fs::write(directory.join(RecordId(2).file_name()), "torn").unwrap();
    std::fs::write(directory.join("notes"), "mine").unwrap();
    let ids = |answers: Vec<Answer>| -> Vec<u64> {
        let ids = answers.into_iter().map(|it| match it {
            Answer::Record(record) => record.id.0,
            other => panic!("{other:?}"),
        });
        ids.collect()
    };
    let asked = fixture.ask(&request(r#""command":"records""#)).await;
    assert_eq!(ids(asked), [1, 10]);
    let later = request(r#""command":"records","since":"2999-01-01T00:00:00Z""#);
    assert_eq!(ids(fixture.ask(&later).await), Vec::<u64>::new());
}
