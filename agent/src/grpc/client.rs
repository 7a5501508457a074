//! The calling side: one connection to one server.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::{CONNECTION_WINDOW, MAX_HEADER_BYTES, STREAM_WINDOW};

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("connect to the socket")]
    Connect(#[source] io::Error),
    #[error("begin HTTP/2")]
    Handshake(#[source] hyper::Error),
}

/// A connection; clones share it. It is closed when the last of them and of their streams is gone.
#[derive(Clone, Debug)]
pub struct Channel(SendRequest<Body>);

/// A refusal as people read it.
pub fn said(status: &Status) -> String {
    match status.message() {
        "" => status.code().to_string(),
        text => text.to_owned(),
    }
}

/// How one method is called.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// `/package.Service/Method`.
    pub path: &'static str,
    /// Largest answer, bytes.
    pub max_answer: usize,
}

impl Channel {
    /// Connects once. That somebody listens says nothing of whether he answers.
    pub async fn connect(path: &Path) -> Result<Self, ConnectError> {
        let stream = UnixStream::connect(path)
            .await
            .map_err(ConnectError::Connect)?;
        Self::begin(stream).await
    }

    /// On a socket that is connected and does not block.
    pub async fn over(stream: std::os::unix::net::UnixStream) -> Result<Self, ConnectError> {
        let stream = UnixStream::from_std(stream).map_err(ConnectError::Connect)?;
        Self::begin(stream).await
    }

    async fn begin(stream: UnixStream) -> Result<Self, ConnectError> {
        let (sender, connection) = Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(MAX_HEADER_BYTES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(ConnectError::Handshake)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a gRPC connection ended early");
            }
        });
        Ok(Self(sender))
    }

    /// Asks once. The server is told of the deadline; past it the call ends here too.
    pub async fn unary<Q, A>(
        &self,
        method: Method,
        question: Q,
        deadline: Duration,
    ) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut request = tonic::Request::new(question);
        request.set_timeout(deadline);
        let call = async {
            let mut grpc = self.ready(method).await?;
            let path = PathAndQuery::from_static(method.path);
            grpc.unary(request, path, ProstCodec::default()).await
        };
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_elapsed) => {
                let text = format!("no answer within {} s", deadline.as_secs_f64());
                Err(Status::deadline_exceeded(text))
            }
        }
    }

    /// Asks for a stream of answers; returns with the first sign of it, which may never come.
    pub async fn server_streaming<Q, A>(
        &self,
        method: Method,
        question: Q,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = self.ready(method).await?;
        let path = PathAndQuery::from_static(method.path);
        let request = tonic::Request::new(question);
        let answer = grpc.server_streaming(request, path, ProstCodec::default());
        Ok(answer.await?.into_inner())
    }

    async fn ready(&self, method: Method) -> Result<Grpc<Self>, Status> {
        // The authority of a Unix socket is of no meaning; kubelet says the same.
        let origin = Uri::from_static("http://localhost");
        let mut grpc =
            Grpc::with_origin(self.clone(), origin).max_decoding_message_size(method.max_answer);
        grpc.ready()
            .await
            .map_err(|error| Status::unavailable(format!("the connection is closed: {error}")))?;
        Ok(grpc)
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

impl GrpcService<Body> for Channel {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
