//! A device plugin as any other: it offers devices that are files of its own or `/dev/null`,
//! registers, registers again when the agent is a new one, and misbehaves when told to.
//!
//! It prints one line for each thing it was asked.
#![expect(
    clippy::disallowed_methods,
    reason = "it is a program of somebody else, and uses the system as such do"
)]

mod options;
mod service;

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::grpc::client::{Channel, Method};
use ballast::grpc::messages::device_plugin::{Empty, RegisterRequest, VERSION, path};
use ballast::grpc::server::{self, Limits};
use tokio::net::UnixListener;

use options::{Options, USAGE};
use service::Plugin;

/// Between two looks at the control file and at the agent's socket.
const LOOK: Duration = Duration::from_millis(20);

const REGISTER: Method = Method {
    path: path::REGISTER,
    max_answer: 1 << 10,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let options = match Options::parse(&arguments) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("example_device_plugin: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("example_device_plugin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    tokio.block_on(async {
        let plugin = Arc::new(Plugin::new(options)?);
        tokio::spawn(follow_control(Arc::clone(&plugin)));
        loop {
            serve_one_agent(&plugin).await?;
        }
    })
}

/// Serves and registers; returns when another agent is there, which has removed the socket.
async fn serve_one_agent(plugin: &Arc<Plugin>) -> Result<()> {
    let options = &plugin.options;
    let name = format!(
        "{}-{}.sock",
        options.resource.replace('/', "_"),
        process::id()
    );
    let directory = options.registry.as_deref().unwrap_or(&options.directory);
    let socket = directory.join(&name);
    let agent = options.directory.join("kubelet.sock");
    let version = wait_for(&agent).await;
    // Of an earlier turn: it may be gone.
    let _ = fs::remove_file(&socket);
    let listener =
        UnixListener::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
    let limits = Limits {
        max_connections: 16,
        idle: Duration::from_secs(24 * 60 * 60),
    };
    let serving = tokio::spawn(server::serve(listener, limits, plugin.handler()));
    if options.registry.is_none() {
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: name,
            resource_name: options.resource.clone(),
        };
        match register(&agent, request).await {
            Ok(()) => println!("registered"),
            Err(error) => println!("refused: {error:#}"),
        }
    }
    while version_of(&agent) == Some(version) {
        tokio::time::sleep(LOOK).await;
    }
    serving.abort();
    Ok(())
}

/// Which file is at a path: its inode and when that was last changed. A file system may give the
/// number of a removed socket to the next one.
type Version = (u64, i64, i64);

fn version_of(path: &Path) -> Option<Version> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

async fn wait_for(path: &Path) -> Version {
    loop {
        if let Some(version) = version_of(path) {
            return version;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn register(agent: &Path, request: RegisterRequest) -> Result<()> {
    let channel = Channel::connect(agent).await?;
    let deadline = Duration::from_secs(30);
    let Empty {} = channel
        .unary(REGISTER, request, deadline)
        .await
        .map_err(|status| anyhow::anyhow!("{}", status.message()))?;
    Ok(())
}

/// Does what the control file says, whenever it says something else.
async fn follow_control(plugin: Arc<Plugin>) {
    let Some(path) = &plugin.options.control else {
        return;
    };
    let mut last = String::new();
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text != last {
            match text.split_whitespace().collect::<Vec<_>>().as_slice() {
                ["crash"] => process::abort(),
                ["unhealthy", ids @ ..] => plugin.set_unhealthy(ids),
                _ => plugin.set_unhealthy(&[]),
            }
            last = text;
        }
        tokio::time::sleep(LOOK).await;
    }
}
