//! Eviction: whether the node runs short of something, and which pod goes for it.

pub mod pace;
pub mod signals;
