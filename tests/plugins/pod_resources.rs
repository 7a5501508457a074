//! The agent's question to the pod resources API of a kubelet, against a server of the test.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::grpc::messages::pod_resources::{AllocatableResponse, Empty, path};
use ballast::grpc::server::{self, Handler, Limits, unary, unknown_method};
use ballast::pod_resources::{AskError, allocatable_cpus};
use ballast_tests::scratch::Scratch;
use nix::libc::O_PATH;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tonic::Status;

/// How the server answers.
#[derive(Clone, Copy)]
enum Manner {
    Tells,
    Refuses,
    Silent,
}

fn serve(socket: &Path, manner: Manner) -> Result<Runtime> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let handler: Handler = Arc::new(move |request| {
        Box::pin(async move {
            if request.uri().path() != path::GET_ALLOCATABLE {
                return unknown_method();
            }
            let answer = async |_: Empty| match manner {
                Manner::Tells => Ok(AllocatableResponse {
                    cpu_ids: vec![2, 1, 5],
                    ..AllocatableResponse::default()
                }),
                Manner::Refuses => Err(Status::unimplemented("not today")),
                Manner::Silent => std::future::pending().await,
            };
            unary(request, 1024, answer).await
        })
    });
    let limits = Limits {
        max_connections: 4,
        idle: Duration::from_secs(3600),
    };
    let listener = {
        let _entered = tokio.enter();
        UnixListener::bind(socket)?
    };
    tokio.spawn(server::serve(listener, limits, handler));
    Ok(tokio)
}

fn open(socket: &Path) -> Result<OwnedFd> {
    let mut options = File::options();
    let file = options.read(true).custom_flags(O_PATH).open(socket)?;
    Ok(file.into())
}

#[test]
fn kubelet_is_asked_for_the_cpus_that_it_can_give_out() -> Result<()> {
    let scratch = Scratch::new("resources")?;
    for (name, manner, right) in [
        ("tells", Manner::Tells, Ok("1-2,5")),
        ("refuses", Manner::Refuses, Err("not today")),
        ("silent", Manner::Silent, Err("no answer within 2 s")),
    ] {
        let socket = scratch.path(name);
        let server = serve(&socket, manner)?;
        let told = allocatable_cpus(&open(&socket)?, process::id());
        let told = told.map(|it| it.to_string()).map_err(|it| it.to_string());
        assert_eq!(
            told,
            right.map(str::to_owned).map_err(str::to_owned),
            "{name}"
        );
        server.shutdown_background();
    }
    Ok(())
}

#[test]
fn nobody_else_is_asked() -> Result<()> {
    let scratch = Scratch::new("resources-strange")?;
    let socket = scratch.path("kubelet.sock");
    let server = serve(&socket, Manner::Tells)?;
    let told = allocatable_cpus(&open(&socket)?, 1);
    let own = i32::try_from(process::id())?;
    assert!(
        matches!(told, Err(AskError::Stranger(it)) if it == own),
        "{told:?}"
    );
    server.shutdown_timeout(Duration::from_secs(1));
    // The socket of one that has ended.
    let told = allocatable_cpus(&open(&socket)?, process::id());
    assert!(matches!(told, Err(AskError::Connect(_))), "{told:?}");
    let none = open(&scratch.path("none"));
    none.err().context("there is no socket").map(|_| ())
}
