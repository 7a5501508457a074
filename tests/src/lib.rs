//! What the test targets share.

pub mod fake_node;
