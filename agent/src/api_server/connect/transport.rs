//! What takes questions to the server: a question in, with its path alone; the question of who asks, on its way to the
//! server, out. HTTP/1.1 over TCP, with TLS and through a proxy where the settings say so.

use std::error::Error;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderValue, USER_AGENT};
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::credentials::Authorization;
use super::proxy::Proxy;
use super::worker::{Late, Worker};

/// Time to connect: to resolve the name, to reach an address, to pass the proxy, and to agree on TLS.
const CONNECT: Duration = Duration::from_secs(20);

/// Time to resolve the name of the server. glibc asks the second name server when the first has not answered for 5 s
/// (resolv.conf(5), `timeout`), and does so again for each search domain.
const RESOLVE: Duration = Duration::from_secs(12);

/// Time to open a TCP connection. hyper-util divides it among the addresses of IPv4, and among those of IPv6, so that a
/// dead address leaves time for the next one.
const REACH: Duration = Duration::from_secs(5);

/// After 30 s without a packet the kernel sends a probe (tcp(7), `TCP_KEEPIDLE`), and then one every 15 s. After four
/// without an answer, 90 s in all, the connection is dead.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_AGAIN: Duration = Duration::from_secs(15);
const KEEPALIVES: u32 = 4;

/// What audit logs know the agent by: another program of the node may have the same credentials. An API server takes the
/// part before the `/` for the manager of the fields that are written.
const AGENT: &str = concat!("ballast/", env!("CARGO_PKG_VERSION"));

type BoxError = Box<dyn Error + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// How the server is reached, and what each question says.
pub(super) struct Way {
    pub(super) server: Uri,
    pub(super) tls: ClientConfig,
    /// The name that the certificate of the server is of, where it is not that of the URL.
    pub(super) server_name: Option<String>,
    pub(super) proxy: Option<Proxy>,
    pub(super) authorization: Authorization,
    pub(super) headers: HeaderMap,
    /// Resolves host names.
    pub(super) names: Arc<Worker>,
}

/// See the module.
#[derive(Clone)]
pub(in crate::api_server) struct Transport {
    client: Client<Connector, Full<Bytes>>,
    asker: Arc<Asker>,
}

/// What makes a question ours.
struct Asker {
    server: Uri,
    authorization: Authorization,
    headers: HeaderMap,
}

impl Transport {
    /// In a runtime.
    pub(super) fn new(way: Way) -> Result<Self, String> {
        let mut http = HttpConnector::new_with_resolver(Names(way.names));
        // It is for TLS, too.
        http.enforce_http(false);
        http.set_connect_timeout(Some(REACH));
        http.set_keepalive(Some(KEEPALIVE));
        http.set_keepalive_interval(Some(KEEPALIVE_AGAIN));
        http.set_keepalive_retries(Some(KEEPALIVES));
        let route = match way.proxy {
            None => Route::Direct(http),
            Some(proxy) => {
                let tunnel = Tunnel::new(proxy.uri, http);
                Route::Proxied(match proxy.authorization {
                    Some(authorization) => tunnel.with_auth(authorization),
                    None => tunnel,
                })
            }
        };
        let tls = match way.server.scheme() == Some(&Scheme::HTTPS) {
            true => Some(Tls {
                connector: TlsConnector::from(Arc::new(way.tls)),
                name: server_name(way.server_name, &way.server)?,
            }),
            false => None,
        };
        let connector = Connector { route, tls };
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            asker: Arc::new(Asker {
                server: with_port(way.server)?,
                authorization: way.authorization,
                headers: way.headers,
            }),
        })
    }

    /// The answer, with its body unread.
    pub(in crate::api_server) async fn send(
        &self,
        question: Request<Vec<u8>>,
    ) -> Result<Response<Incoming>, BoxError> {
        let mut question = question.map(|it| Full::new(Bytes::from(it)));
        self.asker.sign(&mut question).await?;
        Ok(self.client.request(question).await?)
    }
}

impl Asker {
    async fn sign<T>(&self, question: &mut Request<T>) -> Result<(), hyper::http::Error> {
        *question.uri_mut() = joined(&self.server, question.uri())?;
        let headers = question.headers_mut();
        // Nobody here unpacks what is packed.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.extend(self.headers.clone());
        if let Some(authorization) = self.authorization.header().await {
            headers.insert(AUTHORIZATION, authorization);
        }
        Ok(())
    }
}

/// Below the path of the server, if it has one.
fn joined(server: &Uri, asked: &Uri) -> Result<Uri, hyper::http::Error> {
    let below = server.path().trim_end_matches('/');
    let path = asked.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(format!("{below}{path}").parse()?);
    Ok(Uri::from_parts(parts)?)
}

/// A tunnel through a proxy leads to port 443 where the URL has none.
fn with_port(server: Uri) -> Result<Uri, String> {
    let mut parts = server.into_parts();
    let is_http = parts.scheme == Some(Scheme::HTTP);
    parts.authority = match parts.authority.take() {
        Some(it) if is_http && it.port().is_none() => {
            let with_port = format!("{}:80", it.host()).parse();
            Some(with_port.map_err(|_not_shown| format!("server: is no URL of a host: {it}"))?)
        }
        authority => authority,
    };
    Uri::from_parts(parts).map_err(|it| format!("server: {it}"))
}

/// The name that the certificate of the server must have: `given`, or that of its URL.
fn server_name(given: Option<String>, server: &Uri) -> Result<ServerName<'static>, String> {
    let field = match given {
        Some(_) => "tls-server-name",
        None => "server",
    };
    let host = server.host().unwrap_or_default();
    let name = given.unwrap_or_else(|| host.trim_matches(['[', ']']).to_owned());
    ServerName::try_from(name.clone())
        .map_err(|_not_shown| format!("{field}: is no name: {name}; right would be that of a host"))
}

/// Opens connections, within [`CONNECT`].
#[derive(Clone)]
struct Connector {
    route: Route,
    tls: Option<Tls>,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    /// The name that the certificate of the server must have.
    name: ServerName<'static>,
}

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.route.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let (tls, late) = (self.tls.clone(), self.route.late());
        let reaching = self.route.call(to);
        Box::pin(async move {
            let seconds = CONNECT.as_secs();
            let end = Instant::now() + CONNECT;
            let reached = timeout_at(end, reaching).await;
            let stream = reached.map_err(|_late| format!("{late} within {seconds} s"))??;
            let Some(tls) = tls else {
                return Ok(MaybeHttpsStream::Http(stream));
            };
            let agreeing = tls.connector.connect(tls.name, TokioIo::new(stream));
            let agreed = timeout_at(end, agreeing).await;
            let stream = agreed.map_err(|_late| format!("no TLS within {seconds} s"))??;
            Ok(MaybeHttpsStream::Https(TokioIo::new(stream)))
        })
    }
}

/// How bytes get there.
#[derive(Clone)]
enum Route {
    Direct(HttpConnector<Names>),
    Proxied(Tunnel<HttpConnector<Names>>),
}

impl Route {
    /// What there was not in time.
    fn late(&self) -> &'static str {
        match self {
            Self::Direct(_) => "no connection",
            Self::Proxied(_) => "no way through the proxy",
        }
    }
}

impl Service<Uri> for Route {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Direct(http) => http.poll_ready(context).map_err(Into::into),
            Self::Proxied(tunnel) => tunnel.poll_ready(context).map_err(Into::into),
        }
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        match self {
            Self::Direct(http) => {
                let connecting = http.call(to);
                Box::pin(async { connecting.await.map_err(|it| unreached("", it.into())) })
            }
            Self::Proxied(tunnel) => {
                let connecting = tunnel.call(to);
                let to = " to the proxy";
                Box::pin(async move { connecting.await.map_err(|it| unreached(to, it.into())) })
            }
        }
    }
}

/// Names the time limit of a connection that was not opened in time.
fn unreached(to: &str, error: BoxError) -> BoxError {
    let mut sources = std::iter::successors(error.source(), |&it| it.source());
    let is_late = sources.any(|it| {
        let error = it.downcast_ref::<io::Error>();
        error.is_some_and(|it| it.kind() == io::ErrorKind::TimedOut)
    });
    match is_late {
        true => format!("no TCP connection{to} within {} s", REACH.as_secs()).into(),
        false => error,
    }
}

/// Resolves host names by `/etc/hosts` and DNS, one at a time.
#[derive(Clone)]
struct Names(Arc<Worker>);

impl Service<Name> for Names {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let worker = Arc::clone(&self.0);
        Box::pin(async move {
            let host = name.as_str().to_owned();
            // The connector puts in the port of the URL.
            let asking = move || (host.as_str(), 0).to_socket_addrs();
            let found = worker.run(RESOLVE, asking).await;
            let found = found.map_err(|Late| {
                let seconds = RESOLVE.as_secs();
                format!("the name {name} was not resolved within {seconds} s")
            })?;
            Ok(found?)
        })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    use nix::sys::socket::{Backlog, listen};

    use super::super::tls::{self, Trust};
    use super::*;
    use crate::sys::chain;

    fn worker() -> Arc<Worker> {
        Arc::new(Worker::start("test").unwrap())
    }

    /// Why a server is not reached.
    async fn fault(server: &str, names: Arc<Worker>) -> String {
        let transport = Transport::new(Way {
            server: server.parse().unwrap(),
            tls: tls::client_config(Trust::Anybody, None).unwrap(),
            server_name: None,
            proxy: None,
            authorization: Authorization::None,
            headers: HeaderMap::new(),
            names,
        });
        let question = Request::get("/version").body(Vec::new()).unwrap();
        let answer = transport.unwrap().send(question).await;
        chain(answer.unwrap_err().as_ref())
    }

    /// The paused clock advances when nothing else can happen.
    #[tokio::test(start_paused = true)]
    async fn what_takes_too_long_is_said() {
        // Takes connections, and says nothing.
        let mute = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = mute.local_addr().unwrap();
        let fault_of_tls = fault(&format!("https://{address}"), worker()).await;
        assert_eq!(fault_of_tls, "client error (Connect): no TLS within 20 s");
        let (full, _kept) = full();
        let address = full.local_addr().unwrap();
        let fault_of_tcp = fault(&format!("http://{address}"), worker()).await;
        let right = "client error (Connect): no TCP connection within 5 s";
        assert_eq!(fault_of_tcp, right);
        let names = worker();
        let (_release, released) = mpsc::channel::<()>();
        let hang = move || released.recv().is_ok();
        assert!(names.run(Duration::ZERO, hang).await.is_err());
        let fault_of_name = fault("https://server", names).await;
        let right = "the name server was not resolved within 12 s";
        assert!(fault_of_name.ends_with(right), "{fault_of_name}");
    }

    /// A listener whose queue is full: the kernel drops what else wants to connect.
    fn full() -> (TcpListener, Vec<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let soon = Duration::from_millis(100);
        let connecting = std::iter::from_fn(|| TcpStream::connect_timeout(&address, soon).ok());
        let kept = connecting.take(8).collect();
        (listener, kept)
    }

    #[test]
    fn the_name_of_the_server_is_that_of_its_url_or_another() {
        for (given, server, right) in [
            (None, "https://a.b:6443", "a.b"),
            (None, "https://[::1]:6443", "::1"),
            (None, "https://10.0.0.1", "10.0.0.1"),
            (Some("c"), "https://a.b", "c"),
        ] {
            let server = server.parse().unwrap();
            let name = server_name(given.map(str::to_owned), &server).unwrap();
            assert_eq!(name.to_str(), right);
        }
        let server = Uri::from_static("https://a");
        let why = server_name(Some("a b".to_owned()), &server).unwrap_err();
        assert!(why.starts_with("tls-server-name: is no name: a b"), "{why}");
    }

    #[test]
    fn a_question_is_asked_below_the_path_of_the_server() {
        for (server, right) in [
            ("https://a:1", "https://a:1/api/v1/pods?x=%2F&y"),
            ("https://a/", "https://a/api/v1/pods?x=%2F&y"),
            ("http://a", "http://a:80/api/v1/pods?x=%2F&y"),
            ("http://[::1]", "http://[::1]:80/api/v1/pods?x=%2F&y"),
            (
                "https://a/k8s/clusters/c-1/",
                "https://a/k8s/clusters/c-1/api/v1/pods?x=%2F&y",
            ),
        ] {
            let server = with_port(server.parse().unwrap()).unwrap();
            let asked = Uri::from_static("/api/v1/pods?x=%2F&y");
            assert_eq!(joined(&server, &asked).unwrap().to_string(), right);
        }
    }

    #[tokio::test]
    async fn a_question_says_which_program_asks() {
        let asker = Asker {
            server: Uri::from_static("https://a"),
            authorization: Authorization::None,
            headers: HeaderMap::new(),
        };
        let mut question = Request::get("/version").body(()).unwrap();
        asker.sign(&mut question).await.unwrap();
        let agent = question.headers()["user-agent"].to_str().unwrap();
        let version = agent.strip_prefix("ballast/").unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
}
