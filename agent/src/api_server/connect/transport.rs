//! What takes questions to the server: a question in, with its path alone; the question of who asks, on its way to the
//! server, out. HTTP/1.1 over TCP, with TLS and through a proxy where the settings say so.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderValue};
use hyper::http::uri::{PathAndQuery, Scheme};
use hyper::{HeaderMap, Request, Response, Uri};
use hyper_rustls::{
    DefaultServerNameResolver, FixedServerNameResolver, HttpsConnector, MaybeHttpsStream,
    ResolveServerName,
};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tower_service::Service;

use super::credentials::Authorization;
use super::proxy::Proxy;

/// To connect, with TLS and proxy.
const CONNECT: Duration = Duration::from_secs(5);

type BoxError = Box<dyn std::error::Error + Send + Sync>;
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
        let mut http = HttpConnector::new();
        // It is for TLS, too.
        http.enforce_http(false);
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
        let names: Arc<dyn ResolveServerName + Send + Sync> = match way.server_name {
            None => Arc::new(DefaultServerNameResolver::default()),
            Some(name) => {
                let parsed = ServerName::try_from(name.clone()).map_err(|_not_shown| {
                    format!("tls-server-name: is no name: {name}; right would be that of a host")
                })?;
                Arc::new(FixedServerNameResolver::new(parsed))
            }
        };
        let https = HttpsConnector::new(route, way.tls, false, names);
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(Connector(https)),
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

/// Opens connections, within [`CONNECT`].
#[derive(Clone)]
struct Connector(HttpsConnector<Route>);

impl Service<Uri> for Connector {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.0.call(to);
        Box::pin(async move {
            let connected = tokio::time::timeout(CONNECT, connecting).await;
            connected.map_err(|_late| format!("no connection within {} s", CONNECT.as_secs()))?
        })
    }
}

/// How bytes get there.
#[derive(Clone)]
enum Route {
    Direct(HttpConnector),
    Proxied(Tunnel<HttpConnector>),
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
                Box::pin(async { Ok(connecting.await?) })
            }
            Self::Proxied(tunnel) => {
                let connecting = tunnel.call(to);
                Box::pin(async { Ok(connecting.await?) })
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

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
}
