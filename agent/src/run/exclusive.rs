//! What no two agents may use at once: each is locked, for as long as the process lives, where every
//! agent of the node finds it, whatever else is configured.

use std::path::{Path, PathBuf};

use super::RunError;
use super::node::Node;
use crate::config::Config;
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::sources::bpf;
use crate::sys::FsError;
use crate::sys::lock::{Lock, Taken};

/// The file of the state directory that is locked.
pub(super) const STATE_LOCK: &str = "lock";

/// The locks of this agent.
#[derive(Debug)]
pub(super) struct Exclusive {
    locks: Vec<Lock>,
    has_cgroup_root: bool,
}

impl Exclusive {
    /// Locks the state directory and the directory of pins, which is made. One that cannot be made
    /// is nobody's; nothing is pinned then.
    pub(super) fn take(config: &Config) -> Result<Self, RunError> {
        let file = config.state_directory.join(STATE_LOCK);
        let state = lock("state directory", &config.state_directory, &file)?;
        let mut locks = vec![state.map_err(RunError::State)?];
        let pins = &config.bpf.pin_directory;
        if bpf::prepare_pin_directory(pins).is_ok() {
            match lock("pin directory", pins, pins)? {
                Ok(lock) => locks.push(lock),
                Err(error) => tracing::warn!(
                    error = crate::observe::chain(&error),
                    "the pin directory cannot be locked"
                ),
            }
        }
        Ok(Self {
            locks,
            has_cgroup_root: false,
        })
    }

    /// Locks the cgroup root. Nobody uses one that is not there: called again when it is made.
    pub(super) fn take_cgroup_root(
        &mut self,
        node: &Node,
        kubepods: &CgroupPath,
    ) -> Result<(), RunError> {
        if self.has_cgroup_root {
            return Ok(());
        }
        let root = kubepods.parent().unwrap_or_else(CgroupPath::root);
        let Some(directory) = cgroup_root_directory(node, &root) else {
            return Ok(());
        };
        match lock("cgroup root", &directory, &directory)? {
            Ok(lock) => {
                self.locks.push(lock);
                self.has_cgroup_root = true;
            }
            Err(error) => tracing::warn!(
                error = crate::observe::chain(&error),
                "the cgroup root cannot be locked"
            ),
        }
        Ok(())
    }
}

/// By which a cgroup root is locked: its directory in the hierarchy of the memory controller. `None`: it is not there.
pub(super) fn cgroup_root_directory(node: &Node, root: &CgroupPath) -> Option<PathBuf> {
    let directory = node.reader.dir(root, Controller::Memory.name()).ok()?;
    Some(directory.path().to_owned())
}

/// The outer error: somebody else has it.
fn lock(what: &'static str, of: &Path, path: &Path) -> Result<Result<Lock, FsError>, RunError> {
    match Lock::take(path) {
        Ok(Taken::Lock(lock)) => Ok(Ok(lock)),
        Ok(Taken::HeldBy(holder)) => Err(RunError::Locked {
            what,
            path: PathBuf::from(of),
            holder: Holder(holder),
        }),
        Err(error) => Ok(Err(error)),
    }
}

/// The process that holds a lock, if that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(pub Option<u32>);

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process that is not seen from here"),
        }
    }
}
