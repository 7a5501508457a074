//! What runs beside every loop: the HTTP endpoint, the socket and signal handling on a small tokio runtime.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime as Tokio};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::RunError;
use super::forensics::RECORDS;
use super::kernel;
use super::sweep::Readings;
use crate::config::{Config, MetricsConfig};
use crate::model::status::Status;
use crate::observe::event_log::EventLog;
use crate::observe::health::Health;
use crate::observe::http::{self, AccessFiles, Listen, Pages, TlsFiles};
use crate::observe::metrics::Metrics;
use crate::observe::shutdown::{self, Shutdown, ShutdownTrigger};
use crate::observe::socket::{self, CatchUp, Sources};
use crate::observe::stats::Options;
use crate::sys::steady;

/// Records of the admissions of pods, below the state directory.
pub(super) const ADMISSIONS: &str = "admissions";

/// How long open connections may take at the end.
const STOP_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("start the threads that serve")]
    Tokio(#[source] io::Error),
    #[error("handle signals")]
    Signals(#[source] io::Error),
    #[error(transparent)]
    Http(#[from] http::ServeError),
    #[error(transparent)]
    Socket(#[from] socket::ServeError),
}

/// What there is to show, and whom to ask for more of it.
pub(super) struct Shown<'a> {
    pub metrics: &'a Metrics,
    pub health: &'a Health,
    pub readings: &'a Arc<Readings>,
    pub kernel: &'a Arc<kernel::Shared>,
    pub log: &'a EventLog,
    pub status: watch::Receiver<Option<Arc<Status>>>,
}

/// The running servers.
pub(super) struct Server {
    tokio: Tokio,
    shutdown: ShutdownTrigger,
    /// For servers that are started later.
    stop: Shutdown,
}

impl Server {
    /// Binds everything that the configuration names, and calls `stop` at SIGTERM or SIGINT.
    pub(super) fn start(
        config: &Config,
        shown: Shown<'_>,
        stop: impl FnOnce() + Send + 'static,
    ) -> Result<Self, ServeError> {
        let pages = Pages {
            metrics: shown.metrics.clone(),
            health: shown.health.clone(),
            stats: shown.readings.subscribe(),
            options: Options {
                timestamps: config.metrics.timestamps,
            },
        };
        let readings = Arc::clone(shown.readings);
        let kernel = Arc::clone(shown.kernel);
        let catch_up = CatchUp {
            heard: kernel.heard(),
            ask: Arc::new(move || kernel.listen_now()),
        };
        let tokio = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(ServeError::Tokio)?;
        let (trigger, shutdown) = shutdown::channel();
        let entered = tokio.enter();
        let sources = Sources {
            status: shown.status,
            stats: pages.stats.clone(),
            stats_bell: Some(Arc::new(move || readings.ask())),
            events: shown.log.clone(),
            catch_up: Some(catch_up),
            admissions: config.state_directory.join(ADMISSIONS),
            oom_records: config.state_directory.join(RECORDS),
        };
        socket::serve(&config.socket, sources, shutdown.clone())?;
        if let Some(listen) = listen(&config.metrics) {
            let is_encrypted = listen.access.tls.is_some();
            let is_restricted = listen.access.bearer_token.is_some();
            let server = tokio.block_on(http::serve(listen, pages, shutdown.clone()))?;
            let address = server.address;
            tracing::info!(%address, is_encrypted, is_restricted, "serving metrics and health");
            if is_restricted && !is_encrypted && !address.ip().is_loopback() {
                tracing::warn!(
                    "metrics.bearerTokenFile without metrics.tls: the token can be read on its way"
                );
            }
        }
        let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(ServeError::Signals)?;
        tokio.spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => break,
                    _ = interrupt.recv() => break,
                    _ = hangup.recv() => {
                        tracing::info!("SIGHUP changes nothing: the configuration is read at a start, other files when they change");
                    }
                }
            }
            // Blocking is right: the process is to end.
            tokio::task::spawn_blocking(stop);
        });
        drop(entered);
        Ok(Self {
            tokio,
            stop: shutdown,
            shutdown: trigger,
        })
    }

    /// Where other servers can run.
    pub(super) fn tokio(&self) -> &Handle {
        self.tokio.handle()
    }

    /// When servers that are started later have to end.
    pub(super) fn shutdown(&self) -> Shutdown {
        self.stop.clone()
    }

    /// Ends the servers; connections have [`STOP_GRACE`] to finish.
    pub(super) fn stop(self) {
        self.shutdown.fire();
        self.tokio.shutdown_timeout(STOP_GRACE);
    }
}

/// `None`: no endpoint is wanted.
pub(super) fn listen(config: &MetricsConfig) -> Option<Listen> {
    let tls = config.tls.as_ref().map(|it| TlsFiles {
        certificate: it.certificate_file.clone(),
        key: it.key_file.clone(),
    });
    Some(Listen {
        address: config.address?,
        access: AccessFiles {
            tls,
            bearer_token: config.bearer_token_file.clone(),
        },
    })
}

/// What stands against [`listen`], without listening.
pub(super) fn faults(config: &MetricsConfig) -> Vec<RunError> {
    let listen = listen(config);
    let of_pages = listen.iter().flat_map(http::faults);
    of_pages.map(|it| ServeError::Http(it).into()).collect()
}

/// Raises the agent's limit of open files. Gives the one it had, which containers keep; `None`: as
/// the agent's.
pub(super) fn raise_open_files() -> Option<u64> {
    match steady::raise_open_files() {
        Ok(limits) => {
            let (before, now) = (limits.before, limits.now);
            tracing::info!(before, now, "limit of open files");
            Some(before)
        }
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be raised");
            None
        }
    }
}
