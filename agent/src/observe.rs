//! What the agent shows of itself: metrics, the event log, the status document, logs. In: values
//! that the loop hands over. Out: an HTTP endpoint, a Unix socket, stderr.
//!
//! Invariant: nothing here is needed for correctness. No reader, however slow, holds up the loop;
//! a scrape or a status request reads what the last pass left and no kernel file.

pub mod event_log;
pub mod explain;
pub mod health;
pub mod http;
pub mod log;
pub mod metrics;
pub mod oom_records;
pub mod pod_resources;
pub mod protocol;
pub mod shutdown;
pub mod socket;
pub mod stats;

pub use crate::sys::chain;
