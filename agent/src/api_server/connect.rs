//! How the API server is reached: by a kubeconfig file, or by the service account of the agent's own pod. Files are
//! read anew for each client, and after each failure there is another: tokens and certificates change under the same
//! names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::client::AuthError;
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Client, Config};
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

use super::Settings;
use crate::sys::{Root, chain};

/// To connect, with TLS.
const CONNECT: Duration = Duration::from_secs(5);

/// To read the files, and for a program of `exec` in a kubeconfig to give credentials. Nobody waits longer for a
/// file system or a program that hangs.
const PREPARE: Duration = Duration::from_secs(10);

/// Bytes of what somebody else says that are shown.
const LONGEST_TEXT: usize = 256;

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{}: {why}", .path.display())]
    Kubeconfig { path: PathBuf, why: String },
    #[error("the service account of the agent's pod cannot be used")]
    ServiceAccount(#[from] InClusterError),
    #[error("make a connection: {0}")]
    Client(String),
    #[error("its files and credentials were not read within {} s", PREPARE.as_secs())]
    Late,
}

/// Reads files, and asks nobody. `Err`: this leads nowhere, whether the API server answers or not.
pub(super) async fn check(of: &Settings) -> Result<(), ConnectError> {
    let of = of.clone();
    prepared(move || {
        let config = settings(&of)?;
        // A program that gives credentials is run when they are needed.
        if config.auth_info.exec.is_none() && config.auth_info.auth_provider.is_none() {
            client_of(config)?;
        }
        Ok(())
    })
    .await
}

/// With the URL of the API server.
pub(super) async fn client(of: &Settings) -> Result<(Client, String), ConnectError> {
    let of = of.clone();
    prepared(move || {
        let config = settings(&of)?;
        let server = config.cluster_url.to_string();
        let server = server.trim_end_matches('/').to_owned();
        Ok((client_of(config)?, server))
    })
    .await
}

async fn prepared<T: Send + 'static>(
    prepare: impl FnOnce() -> Result<T, ConnectError> + Send + 'static,
) -> Result<T, ConnectError> {
    match tokio::time::timeout(PREPARE, spawn_blocking(prepare)).await {
        Ok(Ok(prepared)) => prepared,
        // A panic there has been reported.
        Ok(Err(_)) | Err(_) => Err(ConnectError::Late),
    }
}

fn client_of(config: Config) -> Result<Client, ConnectError> {
    Client::try_from(config).map_err(|it| ConnectError::Client(said(&it)))
}

fn settings(settings: &Settings) -> Result<Config, ConnectError> {
    let mut config = match &settings.kubeconfig_file {
        Some(path) => from_file(path).map_err(|why| ConnectError::Kubeconfig {
            path: path.clone(),
            why,
        })?,
        None => Config::incluster()?,
    };
    config.connect_timeout = Some(CONNECT);
    // Who waits, and for how long, is decided in one place.
    config.default_retry = false;
    Ok(config)
}

fn from_file(path: &Path) -> Result<Config, String> {
    let read = |it: KubeconfigError| match it {
        // It prints what stands around the fault, which may be a token.
        KubeconfigError::Parse(_) => "it is no kubeconfig".to_owned(),
        KubeconfigError::ReadConfig(source, _) => source.to_string(),
        other => short(&chain(&other)),
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(read)?;
    let options = KubeConfigOptions::default();
    let loading = Config::from_custom_kubeconfig(kubeconfig, &options);
    let mut config = Handle::current().block_on(loading).map_err(read)?;
    // As kubectl takes it, with a line break at its end.
    if let Some(file) = config.auth_info.token_file.take() {
        let token = Root::host().read_text(&file).map_err(|it| chain(&it))?;
        config.auth_info.token = Some(token.trim().to_owned().into());
    }
    Ok(config)
}

/// An error as people read it: what the API server says of it, where it says something.
pub(super) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => said_by_server(status),
        // They print what a program has printed, which may be a token.
        kube::Error::Auth(AuthError::AuthExecRun { .. } | AuthError::AuthExecParse(_)) => {
            "the program of `exec` gives no credentials".to_owned()
        }
        // What they print has the text of their sources in it.
        kube::Error::Service(source) => short(&chain(source.as_ref())),
        other => short(&chain(other)),
    }
}

pub(super) fn said_by_server(status: &Status) -> String {
    match status.message.as_str() {
        "" => format!("HTTP status {}", status.code),
        text => short(text),
    }
}

/// Its first line, as far as people need it.
fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = line.floor_char_boundary(LONGEST_TEXT);
    match line.len() > end {
        true => format!("{}...", &line[..end]),
        false => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
