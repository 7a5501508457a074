#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

mod pages;
pub(super) mod tls;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use super::*;
use crate::observe::shutdown::{self, ShutdownTrigger};
use crate::places::TURN_GRACE;

/// Without TLS and token.
fn open_to_all(address: SocketAddr) -> Listen {
    Listen {
        address,
        access: AccessFiles::default(),
    }
}

async fn start() -> (HttpServer, Pages, ShutdownTrigger) {
    let pages = Pages {
        metrics: Metrics::default(),
        health: Health::new(Duration::from_secs(60), ["pods"]),
        stats: watch::channel(None).1,
        options: Options::default(),
    };
    let (trigger, shutdown) = shutdown::channel();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = serve(open_to_all(address), pages.clone(), shutdown)
        .await
        .unwrap();
    (server, pages, trigger)
}

async fn send(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn request(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn each_page_answers_as_its_state_says() {
    let (server, pages, _trigger) = start().await;
    for (method, path, status, body) in [
        ("GET", "/metrics", "200 OK", "# TYPE ballast_ready gauge\n"),
        ("HEAD", "/metrics", "200 OK", ""),
        ("GET", "/healthz", "200 OK", "ok\n"),
        (
            "GET",
            "/readyz",
            "503 Service Unavailable",
            "pods: not yet\n",
        ),
        (
            "GET",
            "/readyz?verbose",
            "503 Service Unavailable",
            "pods: not yet\n",
        ),
        ("GET", "/", "404 Not Found", "not found\n"),
        ("GET", "/metrics/", "404 Not Found", "not found\n"),
        (
            "POST",
            "/metrics",
            "405 Method Not Allowed",
            "method not allowed\n",
        ),
        ("DELETE", "/other", "404 Not Found", "not found\n"),
    ] {
        let answer = send(server.address, &request(method, path)).await;
        let (head, got) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}")),
            "{method} {path}: {head}"
        );
        assert!(got.contains(body), "{method} {path}: {got}");
        if method == "HEAD" {
            assert_eq!(got, "", "{path}");
        }
    }
    pages.health.unblock("pods");
    let answer = send(server.address, &request("GET", "/readyz")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn what_is_not_http_is_refused_and_the_server_goes_on() {
    let (server, _pages, _trigger) = start().await;
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(64 * 1024));
    for garbage in ["\0\x01\x02\r\n\r\n", "hello\r\n\r\n", &long] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The server may close before it has read all of it.
        let _ = stream.write_all(garbage.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    let answer = send(server.address, &request("GET", "/healthz")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn shutdown_closes_idle_connections() {
    let (server, _pages, trigger) = start().await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    let keep_alive = "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";
    idle.write_all(keep_alive.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    idle.read_exact(&mut first).await.unwrap();
    trigger.fire();
    let ended = tokio::time::timeout(Duration::from_secs(60), server.task).await;
    ended.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn an_address_in_use_is_named() {
    let (server, pages, _trigger) = start().await;
    let (_second, shutdown) = shutdown::channel();
    let error = serve(open_to_all(server.address), pages, shutdown)
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains(&server.address.to_string()),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_ends_its_headers_loses_its_connection() {
    let (server, _pages, _trigger) = start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nX: ")
        .await
        .unwrap();
    let begun = tokio::time::Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    assert!(begun.elapsed() >= HEADER_TIMEOUT);
}

/// Requests have no body: one that announces one is answered, and what it sends of it holds no place.
#[tokio::test(start_paused = true)]
async fn a_client_that_never_ends_its_body_loses_its_connection() {
    let (server, _pages, _trigger) = start().await;
    for length in ["Content-Length: 1000", "Transfer-Encoding: chunked"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nHost: node\r\n{length}\r\n\r\n1");
        stream.write_all(request.as_bytes()).await.unwrap();
        let begun = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // Until the server closes.
        let _ = stream.read_to_end(&mut answer).await;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{length}: {answer:?}");
        assert!(begun.elapsed() <= ANSWER_TIMEOUT, "{:?}", begun.elapsed());
    }
}

/// What a client may have said when it ends its side of the connection, and whether that is answered.
const LAST_WORDS: [(&str, bool); 6] = [
    ("", false),
    (KEEP_ALIVE, true),
    ("GET /metrics HTTP/1.0\r\n\r\n", true),
    ("GET /metrics HTTP/1.1\r\nX: ", false),
    (
        "GET /healthz HTTP/1.1\r\nHost: node\r\nContent-Length: 1000\r\n\r\n1",
        true,
    ),
    (
        "GET /healthz HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n1",
        true,
    ),
];

/// All that a client reads which ends its side after `words`, as `nc -N` does, and stays.
async fn last_answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, words: &str) -> String {
    // So the server hears of the words and of the end at once.
    tokio::time::sleep(Duration::from_millis(1)).await;
    stream.write_all(words.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let begun = tokio::time::Instant::now();
    let mut answer = String::new();
    // Until the server closes, with or without the end of TLS.
    let _ = stream.read_to_string(&mut answer).await;
    assert!(begun.elapsed() <= ANSWER_TIMEOUT, "{words}");
    answer
}

#[tokio::test(start_paused = true)]
async fn a_client_that_ends_its_side_is_answered_and_loses_its_connection() {
    let (server, _pages, _trigger) = start().await;
    for (words, is_answered) in LAST_WORDS {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let answer = last_answer(stream, words).await;
        assert_eq!(
            answer.contains(" 200 OK\r\n"),
            is_answered,
            "{words}: {answer}"
        );
    }
}

const KEEP_ALIVE: &str = "GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n";

/// Asks once and reads the answer; the connection stays.
async fn probe(stream: &mut TcpStream) {
    stream.write_all(KEEP_ALIVE.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"ok\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
}

/// A client that asks for more pages than the buffers between it and the server hold, and reads
/// none; and for how many.
async fn deaf(address: SocketAddr) -> (TcpStream, usize) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let stream = socket.connect(address).await.unwrap();
    stream.writable().await.unwrap();
    let request = "GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n";
    // Only whole requests count; of the rest as many bytes are sent as find room.
    let n_bytes = stream.try_write(request.repeat(2000).as_bytes()).unwrap();
    (stream, n_bytes / request.len())
}

#[tokio::test(start_paused = true)]
async fn for_one_more_connection_the_one_that_was_idle_longest_is_closed() {
    // Time stands still while this blocks, so no connection ends because it was idle for too long.
    let (_release, released) = std::sync::mpsc::channel::<()>();
    tokio::task::spawn_blocking(move || released.recv_timeout(Duration::from_secs(60)));
    let (server, _pages, _trigger) = start().await;
    let mut connections = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        probe(&mut stream).await;
        connections.push(stream);
        tokio::time::advance(TURN_GRACE).await;
    }
    // No longer the one that was idle longest.
    probe(&mut connections[0]).await;
    let mut one_more = TcpStream::connect(server.address).await.unwrap();
    let answered = tokio::time::timeout(HEADER_TIMEOUT / 2, probe(&mut one_more)).await;
    assert!(answered.is_ok(), "it waits until the others are closed");
    let mut rest = Vec::new();
    let closed = connections[1].read_to_end(&mut rest);
    let closed = tokio::time::timeout(HEADER_TIMEOUT / 2, closed).await;
    assert!(closed.is_ok(), "it is still open");
    for kept in [0, 2] {
        probe(&mut connections[kept]).await;
    }
}

#[tokio::test]
async fn probes_are_answered_whatever_idle_and_deaf_clients_hold() {
    let (server, _pages, _trigger) = start().await;
    let (mut silent, mut deaf_ones) = (Vec::new(), Vec::new());
    for n in 0..100 {
        silent.push(TcpStream::connect(server.address).await.unwrap());
        let (mut stream, _) = deaf(server.address).await;
        if n % 2 == 0 {
            // The server may have closed it.
            let _ = stream.shutdown().await;
        }
        deaf_ones.push(stream);
    }
    for path in ["/healthz", "/readyz"] {
        let request = request("GET", path);
        // On a slow machine the pages that are asked for before it take their time as well.
        let patience = Duration::from_secs(60);
        let answer = tokio::time::timeout(patience, send(server.address, &request)).await;
        let answer = answer.unwrap();
        assert!(answer.starts_with("HTTP/1.1 "), "{path}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_its_connection() {
    let (server, _pages, _trigger) = start().await;
    for ends_its_side in [false, true] {
        let (mut stream, n_asked) = deaf(server.address).await;
        if ends_its_side {
            stream.shutdown().await.unwrap();
        }
        let begun = tokio::time::Instant::now();
        while begun.elapsed() < ANSWER_TIMEOUT * 2 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let mut answers = Vec::new();
        let _ = stream.read_to_end(&mut answers).await;
        let answers = String::from_utf8_lossy(&answers);
        let n_answers = answers.matches("HTTP/1.1 200").count();
        assert!(n_answers < n_asked, "{n_answers} of {n_asked} answers");
    }
}
