//! Harness of the test targets.
#![expect(
    clippy::disallowed_methods,
    reason = "tests look at the node as anybody does, not through the agent's own eyes"
)]

pub mod agent;
