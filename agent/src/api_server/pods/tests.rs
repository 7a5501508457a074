#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::sync::mpsc;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{advance, sleep_until};

use super::*;
use crate::sys::scratch::Scratch;

/// How long a test may take, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

const SECOND: Duration = Duration::from_secs(1);

/// Between two bookmarks of an API server.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// A paused clock advances by itself when every task waits, even if bytes are on their way. While a blocking task runs
/// it does not: [`advance`] alone moves it then. The task ends when the sender is dropped, or after [`PATIENCE`].
fn hold_clock() -> (mpsc::Sender<()>, JoinHandle<()>) {
    let (held, released) = mpsc::channel::<()>();
    let holding = spawn_blocking(move || {
        released.recv_timeout(PATIENCE).ok();
    });
    (held, holding)
}

/// Moves the clock. When it returns, the timers until then have fired.
async fn pass(time: Duration) {
    let end = Instant::now() + time;
    advance(time).await;
    sleep_until(end).await;
}

/// An API server that answers what its test says.
struct Server(TcpListener);

/// The answer to a question for a watch.
struct Answer(TcpStream);

impl Server {
    async fn start() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn kubeconfig(&self) -> String {
        let url = format!("http://{}", self.0.local_addr().unwrap());
        let config = json!({
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "clusters": [{"name": "test", "cluster": {"server": url}}],
            "users": [{"name": "test", "user": {}}],
        });
        config.to_string()
    }

    /// The head of the next question. Each has a connection of its own.
    async fn head(&self) -> (String, Answer) {
        let (mut stream, _) = self.0.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        (String::from_utf8(head).unwrap(), Answer(stream))
    }

    /// What is asked next, with its parameters.
    async fn question(&self) -> (String, Answer) {
        let (head, answer) = self.head().await;
        let target = head.split(' ').nth(1).unwrap();
        (target.to_owned(), answer)
    }

    /// The next question is for a list, which is streamed: it has no pods.
    async fn list(&self, version: u64, heard: &mut Heard) -> Answer {
        let (question, mut answer) = self.question().await;
        assert!(question.contains("sendInitialEvents=true"), "{question}");
        assert!(question.contains("resourceVersion=0"), "{question}");
        answer.begin().await;
        answer.say(bookmark(version, true)).await;
        heard.wait(|it| matches!(it, Told::All(_))).await;
        answer
    }
}

impl Answer {
    async fn begin(&mut self) {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        self.0.write_all(head.as_bytes()).await.unwrap();
    }

    async fn say(&mut self, event: Value) {
        let line = format!("{event}\n");
        let chunk = format!("{:x}\r\n{line}\r\n", line.len());
        self.0.write_all(chunk.as_bytes()).await.unwrap();
    }
}

/// What the follower tells.
struct Heard(UnboundedReceiver<Told>);

impl Heard {
    async fn wait(&mut self, is_it: impl Fn(&Told) -> bool) {
        while !is_it(&self.0.recv().await.unwrap()) {}
    }
}

fn bookmark(version: u64, ends_list: bool) -> Value {
    let annotations = match ends_list {
        true => json!({INITIAL_END: "true"}),
        false => json!({}),
    };
    json!({"type": "BOOKMARK", "object": {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"resourceVersion": version.to_string(), "annotations": annotations},
    }})
}

fn pod(version: u64) -> Value {
    json!({"type": "ADDED", "object": {
        "metadata": {
            "namespace": "default", "name": "pod", "uid": "uid-pod",
            "resourceVersion": version.to_string(),
        },
        "spec": {"nodeName": "node1", "containers": [{"name": "main"}]},
    }})
}

/// A watch that is silent after a bookmark. It stays open on the side of the API server.
async fn watch_falls_silent(server: &Server, heard: &mut Heard, version: u64) -> Answer {
    let mut watch = server.list(version, heard).await;
    pass(BOOKMARK_PERIOD).await;
    watch.say(bookmark(version + 1, false)).await;
    heard.wait(|it| *it == Told::UpToDate).await;
    pass(SILENCE + SECOND).await;
    watch
}

/// Each but the last leads to a list. That one has had no bookmark, so it is followed to its end and resumed.
async fn watches_fall_silent(server: &Server, heard: &mut Heard) {
    let _first = watch_falls_silent(server, heard, 1).await;
    let _second = watch_falls_silent(server, heard, 11).await;
    let mut third = server.list(21, heard).await;
    pass(SILENCE + SECOND).await;
    third.say(pod(22)).await;
    heard.wait(|it| matches!(it, Told::Changed(_))).await;
    pass(Duration::from_secs(u64::from(LONGEST_WATCH)) + OVERDUE).await;
    // The pause before the next watch is shorter.
    pass(SECOND).await;
    let (question, _answer) = server.question().await;
    assert!(question.contains("resourceVersion=22"), "{question}");
    assert!(!question.contains("sendInitialEvents"), "{question}");
}

/// Of the pods of `node1`, with its connection. `scratch`: where its kubeconfig is.
async fn follower(server: &Server, scratch: &Scratch) -> (Follower, Connection, Heard) {
    let settings = Settings {
        node: "node1".to_owned(),
        kubeconfig_file: Some(scratch.write("kubeconfig", server.kubeconfig())),
        events: false,
        pods_from: PodsFrom::ApiServer,
    };
    let connector = Arc::new(Connector::new(&settings).unwrap());
    let connection = connector.connect().await.unwrap();
    let (tell, told) = unbounded_channel();
    let sink: Sink = Arc::new(move |told| {
        tell.send(told).ok();
    });
    let follower = Follower::new(settings.node, connector, sink, Patience::default());
    (follower, connection, Heard(told))
}

/// Behind a load balancer only another connection leads to an API server that has come since.
#[tokio::test]
async fn a_watch_is_the_last_question_of_its_connection() {
    let server = Server::start().await;
    let scratch = Scratch::new("last-question");
    let (mut follower, connection, _heard) = follower(&server, &scratch).await;
    let head = tokio::select! {
        left = follower.watch(&connection.transport) => panic!("{left:?}"),
        (head, _answer) = server.head() => head,
    };
    assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
}

#[tokio::test(start_paused = true)]
async fn silence_leads_to_a_list_where_a_bookmark_has_come_since_the_last_one() {
    let (_held, late) = hold_clock();
    let server = Server::start().await;
    let scratch = Scratch::new("silence");
    let (mut follower, connection, mut heard) = follower(&server, &scratch).await;
    tokio::select! {
        // The follower is polled first: before the clock moves again, it has seen the last step.
        biased;
        failure = follower.follow(connection) => panic!("{failure:?}"),
        () = watches_fall_silent(&server, &mut heard) => {}
        _ = late => panic!("not within {PATIENCE:?}"),
    }
}

#[test]
fn watches_have_any_length_within_their_bounds() {
    let all: BTreeSet<u32> = (0..1000).map(|_| lasting()).collect();
    let bounds = SHORTEST_WATCH..=LONGEST_WATCH;
    assert!(all.iter().all(|it| bounds.contains(it)), "{all:?}");
    assert!(all.len() > 1, "{all:?}");
}
