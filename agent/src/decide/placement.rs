//! Placement: which CPUs, NUMA nodes and devices a pod gets (spec placement). Each manager owns its
//! books and answers three questions: where could it be (`hints`), take it from there (`allocate`),
//! give it back (`release`). The topology manager merges the hints.

pub mod cpu;
pub mod hints;
pub mod memory;
pub mod topology;
