//! How the API server is reached: by a kubeconfig file, or by the service account of the agent's own pod. Files are
//! read anew for each connection: tokens and certificates change under the same names.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use super::Settings;
use crate::sys::chain;

/// To connect, with TLS.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{}", .path.display())]
    Kubeconfig {
        path: PathBuf,
        source: KubeconfigError,
    },
    #[error("the service account of the agent's pod cannot be used")]
    ServiceAccount(#[from] InClusterError),
    #[error("make a connection")]
    Client(#[from] kube::Error),
}

/// Reads files, and asks nobody.
pub(super) async fn settings(settings: &Settings) -> Result<Config, ConnectError> {
    let mut config = match &settings.kubeconfig_file {
        Some(path) => from_file(path)
            .await
            .map_err(|source| ConnectError::Kubeconfig {
                path: path.clone(),
                source,
            })?,
        None => Config::incluster()?,
    };
    config.connect_timeout = Some(CONNECT);
    // Who waits, and for how long, is decided in one place.
    config.default_retry = false;
    Ok(config)
}

async fn from_file(path: &Path) -> Result<Config, KubeconfigError> {
    let kubeconfig = Kubeconfig::read_from(path)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
}

/// With its URL.
pub(super) async fn client(of: &Settings) -> Result<(Client, String), ConnectError> {
    let config = settings(of).await?;
    let server = config.cluster_url.to_string();
    let server = server.trim_end_matches('/').to_owned();
    Ok((Client::try_from(config)?, server))
}

/// An error as people read it: what the API server says of it, where it says something.
pub(super) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => said_by_server(status),
        // What they print has the text of their sources in it.
        kube::Error::Service(source) => source_of(source.as_ref()),
        other => chain(other),
    }
}

pub(super) fn said_by_server(status: &kube::core::Status) -> String {
    match status.message.as_str() {
        "" => format!("HTTP status {}", status.code),
        text => text.to_owned(),
    }
}

fn source_of(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<io::Error>() {
        Some(error) => error.to_string(),
        None => chain(error),
    }
}
