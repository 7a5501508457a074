//! A page of an HTTP endpoint as a scraper gets it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result, ensure};

use crate::exposition::Exposition;
use crate::wait::patience;

/// An address of the loopback network that nobody else gets: each call has an IP address of its own, and
/// the kernel gives out its ports for whatever asks for `127.0.0.1` elsewhere.
pub fn free_address() -> Result<String> {
    static CALLS: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    // Not those of 127.0.0.0/16, nor an address that ends in 0 or 255.
    let address = Ipv4Addr::new(127, high.max(1), low, 1 + call % 254);
    let listener =
        TcpListener::bind((address, 0)).with_context(|| format!("listen at {address}"))?;
    Ok(listener.local_addr()?.to_string())
}

#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// As it came: compressed if that was asked for and done.
    pub body: Vec<u8>,
}

/// One request with these lines as headers, and the whole answer. HTTP 1.0: its body is what comes
/// until the end.
pub fn get(address: &str, path: &str, headers: &[&str]) -> Result<Answer> {
    let mut stream = TcpStream::connect(address).with_context(|| format!("reach {address}"))?;
    stream.set_read_timeout(Some(patience()))?;
    let headers: String = headers.iter().map(|it| format!("{it}\r\n")).collect();
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(bytes).with_context(|| format!("{address}{path}: not an HTTP answer"))
}

fn parse(mut bytes: Vec<u8>) -> Option<Answer> {
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
    let status = std::str::from_utf8(bytes.get(9..12)?).ok()?.parse().ok()?;
    Some(Answer {
        status,
        body: bytes.split_off(end + 4),
    })
}

/// A page of text, whose status is good.
pub fn text(address: &str, path: &str) -> Result<String> {
    let Answer { status, body } = get(address, path, &[])?;
    let text = String::from_utf8(body).with_context(|| format!("{address}{path}"))?;
    ensure!(
        status == 200,
        "{address}{path} answers {status}: {}",
        text.trim()
    );
    Ok(text)
}

/// A page of metrics.
pub fn page(address: &str, path: &str) -> Result<Exposition> {
    Exposition::parse(&text(address, path)?).with_context(|| format!("{address}{path}"))
}

/// The two counters of OOM kills of a container, each by its labels: the agent's own, and cAdvisor's.
pub fn oom_kills(
    address: &str,
    own: &[(&str, &str)],
    cadvisor: &[(&str, &str)],
) -> Result<(Option<f64>, Option<f64>)> {
    Ok((
        page(address, "/metrics")?.value("ballast_oom_kills_total", own),
        page(address, "/metrics/cadvisor")?.value("container_oom_events_total", cadvisor),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_and_a_body() {
        let answer = parse(b"HTTP/1.0 503 Service Unavailable\r\nA: b\r\n\r\n\xff\n".to_vec());
        let answer = answer.expect("it is an answer");
        assert_eq!(answer.status, 503);
        assert_eq!(answer.body, b"\xff\n");
        assert!(parse(b"HTTP/1.0 200 OK\r\n".to_vec()).is_none());
    }
}
