//! Which victims were the first process of their container, where another program started it: by the PID
//! namespace. The first process of a container has pid 1 in a namespace of its own.

use crate::model::attribution::Owner;
use crate::model::event::OomKill;
use crate::run::kernel::FirstProcess;
use crate::runtime::HostProcess;
use crate::sources::cgroupfs::CgroupReader;
use crate::sources::procfs;
use crate::sys::Root;

/// Processes of a container that are looked at.
const LOOKED_AT: usize = 64;

/// See the module.
pub(super) struct ByNamespace {
    pub(super) root: Root,
    pub(super) reader: CgroupReader,
}

impl FirstProcess for ByNamespace {
    /// Unknown too where the pod shares one namespace, whose pid 1 is of another container, or the host's.
    fn is_first(&self, kill: &OomKill, owner: &Owner) -> Option<bool> {
        let victim = procfs::namespaced_pids(&self.root, kill.victim.pid)?;
        HostProcess::of(kill.victim).is_there().then_some(())?;
        match victim.as_slice() {
            [] | [_] => None,
            [.., 1] => Some(true),
            pids => {
                let depth = pids.len();
                let others = self.reader.pids(&owner.path).ok()?;
                let mut others = others.into_iter().take(LOOKED_AT);
                let has_first = others.any(|pid| {
                    let pids = procfs::namespaced_pids(&self.root, pid);
                    pids.is_some_and(|it| it.len() == depth && it.last() == Some(&1))
                });
                has_first.then_some(false)
            }
        }
    }
}
