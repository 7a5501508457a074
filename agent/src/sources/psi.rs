//! Reader of pressure stall information, of the node and of cgroups.

use crate::model::psi::{Psi, Stalls};
use crate::sources::{ReadError, parse_at};
use crate::sys::{Dir, FsError, Root};

/// The stalls of the whole node; three file reads.
pub fn node_stalls(root: &Root) -> Result<Stalls, ReadError> {
    let read = |resource: &str| {
        let path = format!("/proc/pressure/{resource}");
        parse(root.read_text(&path), &root.path(&path))
    };
    Ok(Stalls {
        cpu: read("cpu")?,
        memory: read("memory")?,
        io: read("io")?,
    })
}

/// The stalls of a cgroup v2 directory, children included; three file reads.
///
/// A removed cgroup reads as one without accounting: its files are gone.
pub fn cgroup_stalls(dir: &Dir) -> Result<Stalls, ReadError> {
    let read = |resource: &str| {
        let name = format!("{resource}.pressure");
        parse(dir.read_text(&name), &dir.path().join(&name))
    };
    Ok(Stalls {
        cpu: read("cpu")?,
        memory: read("memory")?,
        io: read("io")?,
    })
}

fn parse(text: Result<String, FsError>, path: &std::path::Path) -> Result<Option<Psi>, ReadError> {
    match text {
        Ok(text) => parse_at(path, &text).map(Some),
        // `psi=0` on the kernel command line leaves the files there on some kernels and makes
        // reads fail (kernel/sched/psi.c, psi_show).
        Err(error) if error.is_gone() || error.errno() == Some(nix::libc::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
