//! Eviction: who has to go when the node runs short, and what is tried before (spec eviction).

pub mod pace;
pub mod reclaimable;
pub mod stages;
pub mod stall;
