//! Placement: which CPUs, NUMA nodes and devices a pod gets. Each manager owns its books and
//! answers three questions: where could it be (`hints`), take it from there (`allocate`), give it
//! back (`release`). The topology manager merges the hints; `admission` puts them together.

pub mod admission;
pub mod cpu;
pub mod devices;
pub mod foreign;
pub mod hints;
pub mod managers;
pub mod memory;
pub mod record;
pub mod remedies;
pub mod summary;
pub mod topology;

#[cfg(test)]
pub(crate) mod tests;
