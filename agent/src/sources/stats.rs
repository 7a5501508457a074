//! The one reader of what cgroups use. A sweep reads all of them, a slice at a time, and makes a
//! `StatsSnapshot`; between two slices a decision reads what it needs of pods from the same files.
//!
//! Invariants: a cgroup that was removed and made again is read anew and never as it was, since a
//! descriptor of a removed cgroup fails to read. What cannot be read is `None` and hides nothing
//! else, but for limits of one cgroup, which are read as a whole or stay. Descriptors are bounded:
//! beyond the bound files are opened for each reading.

mod cgroup;
mod machine;
mod node;
mod pod;
mod process;
mod settings;
mod sweep;

pub use self::cgroup::{Faults, cpu_time};
pub use self::machine::{CLOCK_SET, booted_at, machine};
pub use self::node::file_system;
pub use self::sweep::{Progress, StatsReader, Sweep, Wanted, read_once};
