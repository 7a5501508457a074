//! Which pages there are, and what they answer.
//!
//! Health is answered at once. The other pages are made on a thread that may take its time, at most
//! [`MAX_ENCODERS`] at a time.

use std::io::{self, Write};
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task;

use super::Pages;
use super::buffer::{Buffer, Buffers};
use super::negotiate;
use crate::observe::chain;
use crate::observe::metrics::labels::Endpoint;
use crate::observe::metrics::{EncodeError, Format};
use crate::sys::clock;

/// Pages made at a time. One more than one scraper needs: a slow one does not hold up the other.
const MAX_ENCODERS: usize = 2;

/// What is behind a path.
#[derive(Clone, Copy)]
enum Page {
    Encoded(Endpoint),
    Health(fn(&Pages) -> Result<(), String>),
}

const ROUTES: &[(&str, Page)] = &[
    ("/metrics", Page::Encoded(Endpoint::Metrics)),
    (
        "/healthz",
        Page::Health(|pages| pages.health.alive(clock::boottime())),
    ),
    ("/readyz", Page::Health(|pages| pages.health.ready())),
];

/// Makes the answers.
pub(super) struct Answers {
    pages: Pages,
    buffers: Buffers,
    encoders: Semaphore,
}

/// What a client wants of a page.
#[derive(Clone, Copy)]
struct Wish {
    endpoint: Endpoint,
    format: Format,
    is_compressed: bool,
}

/// A page as it is sent.
struct Made {
    content_type: &'static str,
    body: Buffer,
}

#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error("{0}")]
    NotYet(&'static str),
    #[error(transparent)]
    Encode(#[from] EncodeError),
    #[error("compress")]
    Compress(#[from] io::Error),
}

impl Answers {
    pub(super) fn new(pages: Pages) -> Self {
        Self {
            pages,
            buffers: Buffers::default(),
            encoders: Semaphore::new(MAX_ENCODERS),
        }
    }

    /// The answer to a request; its body is not read.
    pub(super) async fn answer<B>(self: Arc<Self>, request: Request<B>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let Some((_, page)) = ROUTES.iter().find(|(it, _)| *it == path) else {
            return text(StatusCode::NOT_FOUND, "not found\n");
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            return response;
        }
        match *page {
            Page::Encoded(endpoint) => {
                let wish = Wish {
                    endpoint,
                    format: negotiate::format(request.headers()),
                    is_compressed: negotiate::takes_gzip(request.headers()),
                };
                self.encoded(wish).await
            }
            Page::Health(state) => match state(&self.pages) {
                Ok(()) => text(StatusCode::OK, "ok\n"),
                Err(reasons) => text(StatusCode::SERVICE_UNAVAILABLE, reasons),
            },
        }
    }

    async fn encoded(self: Arc<Self>, wish: Wish) -> Response<Full<Bytes>> {
        // Never closed; without a place the page would still be right.
        let _place = self.encoders.acquire().await.ok();
        let answers = Arc::clone(&self);
        match task::spawn_blocking(move || answers.make(wish)).await {
            Ok(Ok(made)) => {
                let body = Bytes::from_owner(made.body);
                let mut response = respond(StatusCode::OK, made.content_type, body);
                if wish.is_compressed {
                    let gzip = HeaderValue::from_static("gzip");
                    response.headers_mut().insert(CONTENT_ENCODING, gzip);
                }
                response
            }
            Ok(Err(PageError::NotYet(reason))) => text(StatusCode::SERVICE_UNAVAILABLE, reason),
            Ok(Err(error)) => {
                tracing::error!(
                    error = chain(&error),
                    endpoint = wish.endpoint.as_str(),
                    "no page"
                );
                text(StatusCode::INTERNAL_SERVER_ERROR, "cannot be encoded\n")
            }
            // The runtime is shutting down.
            Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the agent ends\n"),
        }
    }

    fn make(&self, wish: Wish) -> Result<Made, PageError> {
        let begun = clock::boottime();
        let mut page = self.buffers.take();
        let n_samples = match wish.endpoint {
            Endpoint::Metrics => self.pages.metrics.encode(wish.format, &mut page.bytes)?,
            _ => return Err(PageError::NotYet("no statistics yet\n")),
        };
        let n_bytes = page.bytes.len();
        let body = if wish.is_compressed {
            let mut compressed = self.buffers.take();
            gzip(&page.bytes, &mut compressed.bytes)?;
            compressed
        } else {
            page
        };
        let took = clock::boottime().saturating_sub(begun);
        self.pages
            .metrics
            .scraped(wish.endpoint, n_samples, n_bytes, took);
        Ok(Made {
            content_type: wish.format.content_type(),
            body,
        })
    }
}

fn gzip(plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
    // Series repeat their names and labels: the fastest level leaves a tenth, the best a twentieth.
    let mut encoder = GzEncoder::new(out, Compression::fast());
    encoder.write_all(plain)?;
    encoder.finish().map(|_| ())
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", body.into())
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}
