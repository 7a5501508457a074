//! The only readers: what the node, the kernel and the runtime say, parsed and still without
//! meaning. Nothing here writes or chooses.

pub mod bpf;
pub mod btf;
