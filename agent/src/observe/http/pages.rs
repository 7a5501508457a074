//! Which pages there are, and what they answer.
//!
//! Health is answered at once. The other pages are made on a thread that may take its time, at most
//! [`MAX_ENCODERS`] at a time, for at most [`MAX_PAGES`] requests.

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Method, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tokio::task;

use super::access::Access;
use super::buffer::{Buffer, Buffers};
use super::negotiate;
use super::sink::Sink;
use super::{MAX_CONNECTIONS, Pages};
use crate::model::stats::StatsSnapshot;
use crate::observe::chain;
use crate::observe::metrics::labels::Endpoint;
use crate::observe::metrics::{EncodeError, Format};
use crate::observe::stats::{self, Encoder};
use crate::sys::clock;

/// Pages made at a time. One more than one scraper needs: a slow one does not hold up the other.
const MAX_ENCODERS: usize = 2;

/// Requests for pages that are made or wait for it; more are refused. While the agent works for a
/// connection nobody else gets its place, and probes need one.
const MAX_PAGES: usize = MAX_CONNECTIONS / 2;

/// What is behind a path.
#[derive(Clone, Copy)]
enum Page {
    Encoded(Endpoint),
    Health(fn(&Pages) -> Result<(), String>),
}

const ROUTES: &[(&str, Page)] = &[
    ("/metrics", Page::Encoded(Endpoint::Metrics)),
    ("/metrics/cadvisor", Page::Encoded(Endpoint::Cadvisor)),
    ("/metrics/resource", Page::Encoded(Endpoint::Resource)),
    ("/stats/summary", Page::Encoded(Endpoint::Summary)),
    ("/healthz", Page::Health(|pages| pages.health.alive())),
    ("/readyz", Page::Health(|pages| pages.health.ready())),
];

/// Makes the answers.
pub(super) struct Answers {
    pages: Pages,
    access: Arc<Access>,
    sweeps: Mutex<Sweeps>,
    buffers: Buffers,
    asked: Arc<Semaphore>,
    encoders: Arc<Semaphore>,
}

/// Rates follow from two of them.
#[derive(Clone, Default)]
struct Sweeps {
    before: Option<Arc<StatsSnapshot>>,
    newest: Option<Arc<StatsSnapshot>>,
}

/// What a client wants of a page.
#[derive(Clone, Copy)]
struct Wish {
    endpoint: Endpoint,
    /// Of the pages that come in several.
    format: Format,
    is_compressed: bool,
    /// Of the summary.
    is_cpu_and_memory_only: bool,
}

/// A page as it is sent.
struct Made {
    content_type: &'static str,
    body: Buffer,
}

#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error("no statistics yet: the first sweep has not ended")]
    NoStatistics,
    #[error(transparent)]
    Metrics(#[from] EncodeError),
    #[error("encode the summary")]
    Summary(#[from] serde_json::Error),
    #[error("compress")]
    Compress(#[from] io::Error),
}

impl Answers {
    pub(super) fn new(pages: Pages, access: Arc<Access>) -> Self {
        Self {
            pages,
            access,
            sweeps: Mutex::default(),
            buffers: Buffers::default(),
            asked: Arc::new(Semaphore::new(MAX_PAGES)),
            encoders: Arc::new(Semaphore::new(MAX_ENCODERS)),
        }
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(super) fn access(&self) -> &Access {
        &self.access
    }

    /// A sweep has ended.
    pub(super) fn swept(&self) {
        let newest = self.pages.stats.borrow().clone();
        let mut sweeps = self.sweeps.lock().unwrap_or_else(PoisonError::into_inner);
        sweeps.before = mem::replace(&mut sweeps.newest, newest);
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
            // Probes have no token, and health tells nothing about pods.
            Page::Encoded(_) if !self.access.admits(request.headers()) => {
                let mut response = text(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(WWW_AUTHENTICATE, scheme);
                response
            }
            Page::Encoded(endpoint) => {
                let wish = Wish {
                    endpoint,
                    format: negotiate::format(request.headers()),
                    is_compressed: negotiate::takes_gzip(request.headers()),
                    is_cpu_and_memory_only: is_cpu_and_memory_only(request.uri().query()),
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
        let Ok(asked) = Arc::clone(&self.asked).try_acquire_owned() else {
            let busy = "too many pages are asked for at a time\n";
            return text(StatusCode::SERVICE_UNAVAILABLE, busy);
        };
        // Never closed; without a place the page would still be right.
        let encoder = Arc::clone(&self.encoders).acquire_owned().await.ok();
        let answers = Arc::clone(&self);
        let making = move || {
            // The page is made to its end, though its client may have gone.
            let _held = (asked, encoder);
            answers.make(wish)
        };
        match task::spawn_blocking(making).await {
            Ok(Ok(made)) => {
                let body = Bytes::from_owner(made.body);
                let mut response = respond(StatusCode::OK, made.content_type, body);
                if wish.is_compressed {
                    let gzip = HeaderValue::from_static("gzip");
                    response.headers_mut().insert(CONTENT_ENCODING, gzip);
                }
                response
            }
            Ok(Err(error @ PageError::NoStatistics)) => {
                text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
            }
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
        let mut sink = Sink::new(self.buffers.take(), wish.is_compressed);
        let content_type = match wish.endpoint {
            Endpoint::Summary => "application/json",
            Endpoint::Metrics => wish.format.content_type(),
            Endpoint::Cadvisor | Endpoint::Resource => Format::Text.content_type(),
        };
        let n_samples = match wish.endpoint {
            Endpoint::Metrics => {
                let mut page = self.buffers.take();
                let n_samples = self.pages.metrics.encode(wish.format, &mut page.bytes)?;
                sink.write_all(&page.bytes)?;
                Some(n_samples)
            }
            Endpoint::Cadvisor => {
                let encoder = Encoder::cadvisor(self.statistics()?, self.pages.options);
                Some(self.write_families(encoder, &mut sink)?)
            }
            Endpoint::Resource => {
                let encoder = Encoder::resource(self.statistics()?, self.pages.options);
                Some(self.write_families(encoder, &mut sink)?)
            }
            Endpoint::Summary => {
                let mut page = self.buffers.take();
                let summary = self.summary(wish.is_cpu_and_memory_only)?;
                serde_json::to_writer(&mut page.bytes, &summary)?;
                sink.write_all(&page.bytes)?;
                None
            }
        };
        let (body, n_bytes) = sink.finish()?;
        let took = clock::boottime().saturating_sub(begun);
        let metrics = &self.pages.metrics;
        metrics.scraped(wish.endpoint, n_samples, n_bytes, took);
        Ok(Made { content_type, body })
    }

    /// The newest sweep.
    fn statistics(&self) -> Result<Arc<StatsSnapshot>, PageError> {
        let newest = self.pages.stats.borrow().clone();
        newest.ok_or(PageError::NoStatistics)
    }

    fn summary(&self, is_cpu_and_memory_only: bool) -> Result<stats::Summary, PageError> {
        let sweeps = self.sweeps.lock().unwrap_or_else(PoisonError::into_inner);
        let Sweeps { before, newest } = sweeps.clone();
        drop(sweeps);
        let newest = newest.ok_or(PageError::NoStatistics)?;
        let before = before.as_deref();
        Ok(stats::summary(before, &newest, is_cpu_and_memory_only))
    }

    /// One family after the other, so that a page is never whole in memory before it is compressed.
    /// Gives the number of samples.
    fn write_families(
        &self,
        mut encoder: Encoder<Arc<StatsSnapshot>>,
        sink: &mut Sink,
    ) -> io::Result<u64> {
        let mut family = self.buffers.take_text();
        while encoder.next_family(&mut family.text) {
            sink.write_all(family.text.as_bytes())?;
            family.text.clear();
        }
        Ok(encoder.n_samples() as u64)
    }
}

/// As kubelet reads it: `true` and no other word, once.
fn is_cpu_and_memory_only(query: Option<&str>) -> bool {
    let pairs = query.unwrap_or_default().split('&');
    let mut values = pairs.filter_map(|pair| pair.strip_prefix("only_cpu_and_memory="));
    values.next() == Some("true") && values.next().is_none()
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tokio::sync::watch;

    use super::super::{AccessFiles, Health, Metrics, Options};
    use super::*;

    #[tokio::test]
    async fn a_page_whose_client_has_gone_counts_until_it_is_made() {
        let pages = Pages {
            metrics: Metrics::default(),
            health: Health::new(Duration::from_secs(60), []),
            stats: watch::channel(None).1,
            options: Options::default(),
        };
        let access = Access::new(AccessFiles::default()).unwrap();
        let answers = Arc::new(Answers::new(pages, Arc::new(access)));
        // A summary waits as long as the sweeps are held.
        let (held, is_held) = mpsc::channel();
        let (release, is_released) = mpsc::channel::<()>();
        let of_holder = Arc::clone(&answers);
        let holder = thread::spawn(move || {
            let _sweeps = of_holder.sweeps.lock();
            held.send(()).unwrap();
            is_released.recv().unwrap();
        });
        is_held.recv().unwrap();
        let request = Request::get("/stats/summary").body(()).unwrap();
        let answering = Arc::clone(&answers).answer(request);
        let answer = tokio::time::timeout(Duration::from_millis(100), answering);
        assert!(answer.await.is_err(), "it is made");
        let free = |answers: &Answers| {
            let both = [&answers.asked, &answers.encoders];
            both.map(|it| it.available_permits())
        };
        assert_eq!(free(&answers), [MAX_PAGES - 1, MAX_ENCODERS - 1]);
        release.send(()).unwrap();
        holder.join().unwrap();
        let made = answers
            .encoders
            .acquire_many(u32::try_from(MAX_ENCODERS).unwrap());
        let made = tokio::time::timeout(Duration::from_secs(60), made).await;
        assert!(made.unwrap().is_ok());
        assert_eq!(answers.asked.available_permits(), MAX_PAGES);
    }
}
