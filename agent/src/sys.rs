//! The operating system with names and errors, and without meaning: file trees under one root,
//! directory descriptors, durable files, clocks. Nothing here knows what a file says.
//!
//! Invariant: this is the one module that calls `std::fs` and reads a clock.
#![expect(
    clippy::disallowed_methods,
    reason = "the ban on std::fs and clocks sends every other module here"
)]

pub mod append;
pub mod below;
pub mod clock;
pub mod dir;
pub mod durable;
mod error;
pub mod filesystem;
pub mod held;
pub mod input;
pub mod inside;
pub mod launch;
pub mod loaded;
pub mod lock;
pub mod note;
pub mod patience;
pub mod regular;
pub mod removal;
pub mod root;
#[cfg(test)]
pub(crate) mod scratch;
pub mod steady;
pub mod syscall;
pub mod tmpfs;
pub mod trees;
pub mod unix_socket;
pub mod watch;

pub use dir::Dir;
pub use error::{FsError, Operation, chain};
pub use held::{HeldFile, TextBuffer};
pub use root::Root;
pub use trees::{Tree, Trees};

/// Size of a memory page, bytes.
pub fn page_size() -> u64 {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|it| u64::try_from(it).ok())
        .expect("every Linux tells its page size")
}
