//! How the source of pods is, told with each change.

use std::time::Duration;

use super::ask::ApiError;
use super::{Sink, Told};
use crate::model::api_server::{ApiResource, ApiServerStatus, ApiVerb, PodsFrom};
use crate::model::time::WallTime;
use crate::sys::clock;

/// See the module.
pub(super) struct Standing {
    sink: Sink,
    status: ApiServerStatus,
    is_told: bool,
    /// All pods were told once.
    has_told: bool,
}

/// Why nothing is told now.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) why: String,
    /// HTTP status, if there was one.
    pub(super) code: Option<u16>,
    /// Not to be tried again before, if the server says so.
    pub(super) after: Duration,
}

impl Failure {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            code: None,
            after: Duration::ZERO,
        }
    }

    pub(super) fn of((verb, resource): (ApiVerb, ApiResource), error: &ApiError) -> Self {
        Self {
            why: format!("{} {}: {error}", verb.as_str(), resource.as_str()),
            code: error.code(),
            after: error.pause(),
        }
    }
}

impl Standing {
    pub(super) fn new(from: PodsFrom, node: &str, sink: Sink) -> Self {
        Self {
            sink,
            status: ApiServerStatus {
                from,
                server: None,
                node: node.to_owned(),
                stale_since: None,
                fault: None,
                events: None,
            },
            is_told: false,
            has_told: false,
        }
    }

    /// Who is asked from now on; false: it is who was asked before.
    pub(super) fn set_server(&mut self, server: &str) -> bool {
        let is_other = self.status.server.as_deref() != Some(server);
        if is_other {
            self.is_told = false;
            self.status.server = Some(server.to_owned());
        }
        is_other
    }

    pub(super) fn all_are_told(&mut self) {
        self.has_told = true;
    }

    /// What it tells is heard.
    pub(super) fn set_followed(&mut self) {
        self.set(ApiServerStatus {
            stale_since: None,
            fault: None,
            ..self.status.clone()
        });
    }

    pub(super) fn set_fault(&mut self, why: String) {
        let now = || WallTime::from_epoch(clock::wall());
        self.set(ApiServerStatus {
            stale_since: self.status.stale_since.or_else(|| self.has_told.then(now)),
            fault: Some(why),
            ..self.status.clone()
        });
    }

    fn set(&mut self, status: ApiServerStatus) {
        if !self.is_told || status != self.status {
            (self.is_told, self.status) = (true, status);
            (self.sink)(Told::State(self.status.clone()));
        }
    }
}
