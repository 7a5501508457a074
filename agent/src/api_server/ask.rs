//! A question to the API server: sent, bounded in time and in size, counted, and answered by what was asked for or by
//! an [`ApiError`].
//!
//! Invariants:
//! - An answer that is not 2xx is an error with the HTTP status of its head, whatever its body says.
//! - Of a body nobody is shown more than the message and the reason of a `Status`.

use std::error::Error;
use std::io;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, DATE, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use hyper::{Request, Response, StatusCode, Uri};
use jiff::fmt::rfc2822::DateTimeParser;
use kube_core::{Status, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::connect::Transport;
use super::{Sink, Told, code};
use crate::model::api_server::{ApiAnswer, ApiResource, ApiVerb, Asked};
use crate::sys::{chain, clock};

/// The largest body of an error answer that is read, bytes. One line of it is shown.
const LARGEST_REFUSAL: usize = 64 << 10;

/// Time to read the body of an error answer. The HTTP status is known without it.
const REFUSAL: Duration = Duration::from_secs(5);

/// The largest event of a watch, bytes. etcd takes no object of more than 1.5 MiB (`--max-request-bytes`), in an
/// encoding that is shorter than JSON: there `<`, `>`, `&` and controls have six bytes each, and empty values their
/// names.
const LARGEST_EVENT: usize = 16 << 20;

/// How much is shown of a text that somebody else wrote, bytes.
const LONGEST_TEXT: usize = 256;

/// The longest pause that an API server can ask for, and the shortest after a 429.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
const BUSY: Duration = Duration::from_secs(1);

/// A request as `kube_core` builds it.
pub(super) type Question = Result<Request<Vec<u8>>, request::Error>;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum ApiError {
    /// The HTTP status is not 2xx: the API server says so, or a proxy on the way.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// Of the `Status` in the body. Empty: the body is no `Status`, so it may not be the API server's.
        reason: String,
        /// The reasons of `details.causes` of the `Status`.
        causes: Vec<String>,
        /// One line for people.
        message: String,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The body is not what was asked for. The text says where, and shows nothing of it.
    #[error("the answer is not what was asked for: {0}")]
    Unreadable(String),
    /// There is no connection, or it broke.
    #[error("{0}")]
    Unreached(String),
    /// There was no answer within this time.
    #[error("no answer within {} s", .0.as_secs())]
    Late(Duration),
    /// The body, or one event of it, has more bytes than this.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
}

impl ApiError {
    /// An error event of a watch. The code is that of the `Status`: the HTTP status of a watch that has begun is 200.
    pub(super) fn of_status(status: Status) -> Self {
        Self::refused(status.code, status, None)
    }

    fn refused(code: u16, status: Status, retry_after: Option<Duration>) -> Self {
        let details = status.details.as_ref();
        let seconds = details.map_or(0, |it| u64::from(it.retry_after_seconds));
        let of_status = Some(Duration::from_secs(seconds)).filter(|it| !it.is_zero());
        let causes = details.map(|it| &it.causes).into_iter().flatten();
        Self::Refused {
            code,
            causes: causes.map(|it| it.reason.clone()).collect(),
            message: match short(&status.message).as_str() {
                "" => format!("HTTP status {code}"),
                message => message.to_owned(),
            },
            reason: status.reason,
            retry_after: retry_after.max(of_status),
        }
    }

    /// HTTP status; `None`: there was no answer, or none that can be used.
    pub(super) fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unreadable(_) | Self::Unreached(_) | Self::Late(_) | Self::TooLarge(_) => None,
        }
    }

    /// How long to wait before the next question, at least. Zero: the server does not say.
    pub(super) fn pause(&self) -> Duration {
        let Self::Refused {
            code, retry_after, ..
        } = self
        else {
            return Duration::ZERO;
        };
        let asked = retry_after.unwrap_or_default().min(LONGEST_PAUSE);
        match *code {
            code::TOO_MANY => asked.max(BUSY),
            _ => asked,
        }
    }
}

/// Waits for an answer within `bound`, and tells `sink` how the question went.
pub(super) async fn asked<T>(
    sink: &Sink,
    (verb, resource): (ApiVerb, ApiResource),
    bound: Duration,
    asking: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let began = clock::boottime();
    let answer = tokio::time::timeout(bound, asking).await;
    let answer = answer.unwrap_or(Err(ApiError::Late(bound)));
    sink(Told::Asked(Asked {
        verb,
        resource,
        answer: match &answer {
            Ok(_) => ApiAnswer::Good,
            Err(error) => error.code().map_or(ApiAnswer::None, ApiAnswer::Refused),
        },
        took: clock::boottime().saturating_sub(began),
    }));
    answer
}

/// Asks for one object. `largest`: bytes of its JSON.
pub(super) async fn object<T: DeserializeOwned>(
    of: &Transport,
    question: Question,
    largest: usize,
) -> Result<T, ApiError> {
    Ok(dated(of, question, largest).await?.0)
}

/// The same, with how many seconds this node is ahead of the clock of who answers; `None`: the answer has no date.
pub(super) async fn dated<T: DeserializeOwned>(
    of: &Transport,
    question: Question,
    largest: usize,
) -> Result<(T, Option<i64>), ApiError> {
    let answer = answer(of, question).await?;
    let ahead = ahead(answer.headers(), clock::wall());
    let bytes = read(answer.into_body(), largest).await?;
    Ok((parse(&bytes)?, ahead))
}

/// A date has whole seconds.
fn ahead(headers: &HeaderMap, now: Duration) -> Option<i64> {
    let date = headers.get(DATE)?.to_str().ok()?;
    let date = DateTimeParser::new().parse_timestamp(date).ok()?;
    let now = i64::try_from(now.as_secs()).ok()?;
    now.checked_sub(date.as_second())
}

/// Begins a watch. Its connection ends with it: over one that is kept the next watch would be with the same API server,
/// whatever others have come since, and all agents with those that were restarted first.
pub(super) async fn events(of: &Transport, question: Question) -> Result<Events, ApiError> {
    let question = question.map(|mut it| {
        let close = HeaderValue::from_static("close");
        it.headers_mut().insert(CONNECTION, close);
        it
    });
    let answer = answer(of, question).await?;
    Ok(Events {
        body: answer.into_body(),
        lines: Lines::default(),
    })
}

/// An answer with a 2xx status; its body is not read yet.
async fn answer(of: &Transport, question: Question) -> Result<Response<Incoming>, ApiError> {
    let question = question.map_err(|it| ApiError::Unreached(chain(&it)))?;
    let answer = of.send(question).await;
    let answer = answer.map_err(|it| ApiError::Unreached(short(&chain(it.as_ref()))))?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let body = tokio::time::timeout(REFUSAL, read(body, LARGEST_REFUSAL)).await;
    // An error without a readable body is the same error.
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    Err(refusal(head.status, &head.headers, &body))
}

async fn read(mut body: Incoming, largest: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|it| unreached(&it))?;
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
        if bytes.len() > largest {
            return Err(ApiError::TooLarge(largest));
        }
    }
    Ok(bytes)
}

fn unreached(error: &hyper::Error) -> ApiError {
    ApiError::Unreached(short(&chain(error)))
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        // The message of serde may quote the body.
        let (line, column) = (error.line(), error.column());
        ApiError::Unreadable(format!("line {line}, column {column}"))
    })
}

/// The error of an answer that is not 2xx.
fn refusal(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ApiError {
    /// A proxy may answer with other JSON, without this `kind`.
    #[derive(Deserialize)]
    struct Body {
        kind: String,
        #[serde(flatten)]
        status: Status,
    }
    let of_body = serde_json::from_slice::<Body>(body).ok();
    let of_body = of_body.filter(|it| it.kind == "Status");
    let mut said = of_body.map(|it| it.status).unwrap_or_default();
    if status.is_redirection() {
        said.message = redirection(headers);
    }
    let retry_after = headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok());
    // The other form is a date, by a clock that may differ from ours.
    let seconds = retry_after.and_then(|it| it.trim_ascii().parse().ok());
    ApiError::refused(status.as_u16(), said, seconds.map(Duration::from_secs))
}

/// Redirections are not followed: the credentials are for this server only.
fn redirection(headers: &HeaderMap) -> String {
    let location = headers.get(LOCATION).and_then(|it| it.to_str().ok());
    let location = location.and_then(|it| it.parse::<Uri>().ok());
    // The user and the parameters of the URL may be secret.
    let shown = location.map(|it| {
        let scheme = it.scheme_str().map(|it| format!("{it}://"));
        let host = it.host().unwrap_or_default();
        let port = it.port().map(|it| format!(":{it}"));
        let (scheme, port) = (scheme.unwrap_or_default(), port.unwrap_or_default());
        short(&format!("{scheme}{host}{port}{}", it.path()))
    });
    let shown = shown.unwrap_or_else(|| "elsewhere".to_owned());
    format!("it redirects to {shown}, which is not followed")
}

/// The events of a watch, one JSON object a line.
pub(super) struct Events {
    body: Incoming,
    lines: Lines,
}

impl Events {
    /// `None`: the stream has ended. A call that is not waited for loses nothing.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ApiError> {
        loop {
            if let Some(line) = self.lines.next()? {
                return parse(line).map(Some);
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.lines.push(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) if !is_cut(&error) => return Err(unreached(&error)),
                // The last line is an event if it is whole, even without its end.
                Some(Err(_)) | None => return Ok(serde_json::from_slice(&self.lines.rest()).ok()),
            }
        }
    }
}

/// Splits a stream of bytes into lines.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// So many bytes at the start were returned already.
    gone: usize,
    /// Between those and here there is no end of a line.
    searched: usize,
}

impl Lines {
    fn push(&mut self, piece: &[u8]) {
        if self.gone > 0 {
            // A new buffer, so that the memory of a large line is freed.
            self.bytes = self.bytes.split_off(self.gone);
            self.searched -= self.gone;
            self.gone = 0;
        }
        self.bytes.extend_from_slice(piece);
    }

    /// The next line that is not blank. `None`: its end has not arrived.
    fn next(&mut self) -> Result<Option<&[u8]>, ApiError> {
        loop {
            let mut unsearched = self.bytes[self.searched..].iter();
            let end = unsearched.position(|it| *it == b'\n');
            let end = end.map(|it| self.searched + it);
            self.searched = end.unwrap_or(self.bytes.len());
            if self.searched - self.gone > LARGEST_EVENT {
                return Err(ApiError::TooLarge(LARGEST_EVENT));
            }
            let Some(end) = end else { return Ok(None) };
            let line = self.gone..end;
            self.gone = end + 1;
            self.searched = self.gone;
            if !self.bytes[line.clone()].trim_ascii().is_empty() {
                return Ok(Some(&self.bytes[line]));
            }
        }
    }

    /// What follows the last end of a line.
    fn rest(&mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.gone);
        *self = Self::default();
        rest
    }
}

/// The connection ended within the body, as it does when a load balancer limits how long a connection lasts.
fn is_cut(error: &hyper::Error) -> bool {
    let mut sources = std::iter::successors(error.source(), |&it| it.source());
    sources.any(|it| {
        let error = it.downcast_ref::<io::Error>();
        error.is_some_and(|it| it.kind() == io::ErrorKind::UnexpectedEof)
    })
}

/// The first line of a text that somebody else wrote, at most [`LONGEST_TEXT`] bytes of it.
pub(super) fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(LONGEST_TEXT);
    match line.len() > end {
        true => format!("{}...", &line[..end]),
        false => line.to_owned(),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use serde_json::json;

    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let all = all.iter();
        all.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn refused(code: u16, body: &str) -> (u16, String, String) {
        let status = StatusCode::from_u16(code).unwrap();
        match refusal(status, &HeaderMap::new(), body.as_bytes()) {
            ApiError::Refused {
                code,
                reason,
                message,
                ..
            } => (code, reason, message),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_status_of_the_head_counts_and_the_text_of_a_status_is_shown() {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "code": 200, "reason": "Forbidden", "message": "pods is forbidden\nand more",
        });
        for (code, body, reason, message) in [
            (403, status.to_string(), "Forbidden", "pods is forbidden"),
            (502, "<html>secret</html>".to_owned(), "", "HTTP status 502"),
            (
                401,
                json!({"message": "secret"}).to_string(),
                "",
                "HTTP status 401",
            ),
            (
                401,
                json!({"kind": "Secret", "message": "secret"}).to_string(),
                "",
                "HTTP status 401",
            ),
            (503, json!(["secret"]).to_string(), "", "HTTP status 503"),
            (
                500,
                json!({"kind": "Status"}).to_string(),
                "",
                "HTTP status 500",
            ),
            (404, String::new(), "", "HTTP status 404"),
        ] {
            let right = (code, reason.to_owned(), message.to_owned());
            assert_eq!(refused(code, &body), right, "{body}");
        }
    }

    #[test]
    fn a_redirection_says_where_without_what_may_be_secret() {
        for (location, right) in [
            (Some("https://a:1/login?state=secret"), "https://a:1/login"),
            (Some("https://u:secret@a/login#x"), "https://a/login"),
            (Some("/login?secret"), "/login"),
            (Some("not a secret"), "elsewhere"),
            (None, "elsewhere"),
        ] {
            let headers: Vec<_> = location.map(|it| ("location", it)).into_iter().collect();
            let error = refusal(StatusCode::FOUND, &self::headers(&headers), b"");
            assert_eq!(error.code(), Some(302));
            let right = format!("it redirects to {right}, which is not followed");
            assert_eq!(error.to_string(), right);
        }
    }

    #[test]
    fn who_has_too_much_to_do_says_when_to_ask_again() {
        let seconds = |code: u16, header: Option<&'static str>, details: u32| {
            let headers: Vec<_> = header.map(|it| ("retry-after", it)).into_iter().collect();
            let status = json!({"kind": "Status", "details": {"retryAfterSeconds": details}});
            let code = StatusCode::from_u16(code).unwrap();
            let headers = self::headers(&headers);
            refusal(code, &headers, status.to_string().as_bytes()).pause()
        };
        for (code, header, details, right) in [
            (429, Some("7"), 0, 7),
            (429, Some("7"), 9, 9),
            (429, Some("7"), 3, 7),
            (503, Some(" 7"), 0, 7),
            (429, Some("Wed, 21 Oct 2015 07:28:00 GMT"), 0, 1),
            (429, Some("3600"), 0, 60),
            (429, None, 0, 1),
            (503, None, 0, 0),
        ] {
            let right = Duration::from_secs(right);
            assert_eq!(seconds(code, header, details), right, "{code} {header:?}");
        }
    }

    #[test]
    fn an_answer_says_how_far_the_clocks_are_apart() {
        for (date, right) in [
            (Some("Wed, 21 Oct 2015 07:28:00 GMT"), Some(0)),
            (Some("Wed, 21 Oct 2015 07:27:50 GMT"), Some(10)),
            (Some("Wed, 21 Oct 2015 08:28:00 GMT"), Some(-3600)),
            (Some("soon"), None),
            (None, None),
        ] {
            let headers: Vec<_> = date.map(|it| ("date", it)).into_iter().collect();
            let now = Duration::from_millis(1_445_412_480_900);
            assert_eq!(ahead(&self::headers(&headers), now), right, "{date:?}");
        }
    }

    #[test]
    fn what_is_not_understood_is_not_shown() {
        let error = parse::<u8>(b"\"secret\"").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the answer is not what was asked for: line 1, column 8"
        );
    }

    #[test]
    fn lines_go_whole_however_they_come() {
        let text = "one\n\n \r\ntwo\nthree";
        for n in 1..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in text.as_bytes().chunks(n) {
                lines.push(piece);
                while let Some(line) = lines.next().unwrap() {
                    found.push(line.to_vec());
                }
            }
            assert_eq!(found, [b"one", b"two"], "in pieces of {n}");
            assert_eq!(lines.rest(), b"three");
            assert!(lines.rest().is_empty());
        }
    }

    #[test]
    fn a_line_that_is_too_large_is_an_error_before_its_end_comes() {
        let mut lines = Lines::default();
        lines.push(&vec![b'x'; LARGEST_EVENT]);
        assert!(lines.next().unwrap().is_none());
        lines.push(b"\n");
        assert_eq!(lines.next().unwrap().unwrap().len(), LARGEST_EVENT);
        lines.push(&vec![b'x'; LARGEST_EVENT + 1]);
        let error = lines.next().unwrap_err();
        assert_eq!(error.to_string(), "the answer has more than 16777216 bytes");
    }

    #[test]
    fn what_others_say_is_one_line_of_some_length() {
        assert_eq!(short("one\ntwo"), "one");
        assert_eq!(short(""), "");
        let long = short(&"é".repeat(300));
        assert_eq!(long, format!("{}...", "é".repeat(128)));
        let whole = "x".repeat(LONGEST_TEXT);
        assert_eq!(short(&whole), whole);
    }
}
