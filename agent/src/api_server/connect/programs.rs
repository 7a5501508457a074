//! The credentials that the program of `exec` gave, shared by all connections. The program is run again when they end,
//! when the API server refuses them, and when its settings change: it may be slow, or ask a service that takes few
//! requests.
//!
//! Invariant: credentials are used until they end, even if the program fails to give others before.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::exec::{Exec, Given};
use super::worker::Worker;
use crate::sys::clock;

/// Pause after the program failed to replace credentials that are still good. It is first run a minute before they end.
const AGAIN: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct Programs {
    /// Starts them.
    worker: Worker,
    /// Locked while the program runs; the other connections wait for what it gives.
    last: Mutex<Option<Last>>,
}

struct Last {
    exec: Exec,
    /// What the program was told.
    info: String,
    credentials: Credentials,
}

/// What the program gave.
#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) given: Arc<Given>,
    /// Boottime from which others are to be had. `None`: they do not end.
    pub(super) renew: Option<Duration>,
}

impl Credentials {
    fn new(given: Given) -> Self {
        Self {
            renew: given.ends.map(|it| it.renew),
            given: Arc::new(given),
        }
    }
}

impl Programs {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            worker: Worker::start("api-programs")?,
            last: Mutex::new(None),
        })
    }

    /// Runs the program, if that is needed.
    pub(super) async fn credentials(
        &self,
        exec: Exec,
        info: String,
    ) -> Result<Credentials, String> {
        let mut last = self.last.lock().await;
        let kept = last.as_mut();
        let kept = kept.filter(|it| it.exec == exec && it.info == info);
        let kept = kept.map(|it| &mut it.credentials);
        let is_good = |it: &Credentials| it.renew.is_none_or(|it| clock::boottime() < it);
        if let Some(kept) = kept.as_deref().filter(|it| is_good(it)) {
            return Ok(kept.clone());
        }
        let credentials = match (exec.run(&info, &self.worker).await, kept) {
            (Ok(given), _) => Credentials::new(given),
            (Err(why), Some(kept)) if !kept.given.has_ended() => {
                tracing::warn!(why, "the credentials that it gave before are used on");
                kept.renew = Some(clock::boottime() + AGAIN);
                return Ok(kept.clone());
            }
            (Err(why), _) => return Err(why),
        };
        *last = Some(Last {
            exec,
            info,
            credentials: credentials.clone(),
        });
        Ok(credentials)
    }

    /// The API server refused `given`. Another connection may have replaced it already.
    pub(super) async fn forget(&self, given: &Arc<Given>) {
        let mut last = self.last.lock().await;
        last.take_if(|it| Arc::ptr_eq(&it.credentials.given, given));
    }
}
