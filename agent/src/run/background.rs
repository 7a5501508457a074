//! What is known of the time before an OOM kill, for whoever asks what led up to it: written by the
//! watcher of pressure, read when a kill is recorded.

use std::sync::RwLock;

use crate::model::forensics::AgentState;
use crate::model::history::History;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Background {
    pub(super) history: RwLock<History>,
    pub(super) agent: RwLock<AgentState>,
}
