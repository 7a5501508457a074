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

/// Whether the kernel keeps them: with `psi=0` some kernels have the files and refuse to read them.
pub fn is_kept(root: &Root) -> bool {
    node_stalls(root).is_ok_and(|it| it.memory.is_some())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn stalls_are_kept_where_they_can_be_read() {
        let scratch = Scratch::new("psi");
        let root = Root::at(scratch.directory());
        assert!(!is_kept(&root), "no file");
        root.create_dir_all("/proc/pressure").expect("a directory");
        scratch.unreadable("proc/pressure/memory");
        assert!(!is_kept(&root), "a file that cannot be read");
        root.remove_file("/proc/pressure/memory").expect("a link");
        let some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        scratch.write("proc/pressure/memory", some);
        assert!(is_kept(&root));
    }
}
