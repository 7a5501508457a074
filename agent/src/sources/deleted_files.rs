//! Files that are deleted and still open: no walk finds them, and what they take comes back when the last process ends
//! that has them open.
//!
//! A file that is open without ever having had a name (`O_TMPFILE`) is one of them. What may not be looked at of
//! another user's process is not seen. Attributes are those that the kernel has: no server is asked for them, so
//! that a file on a network disk holds nobody up.

use std::collections::{BTreeSet, HashSet};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, StatxFlags, makedev, open, readlinkat, statx,
};
use rustix::io::Errno;

use crate::sys::Root;

/// Open files that are looked at for one call, at most.
const MAX_FILES: usize = 1 << 14;

/// What the kernel adds to the path of a file without a name (`d_path`, fs/d_path.c).
const MARK: &[u8] = b" (deleted)";

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedFile {
    /// Where it was last, in the mount namespace of the agent.
    pub path: PathBuf,
    /// That are allocated.
    pub bytes: u64,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedFiles {
    /// Each once, however often it is open.
    pub files: Vec<DeletedFile>,
    /// Open files that were looked at, and processes.
    pub n_looked: usize,
}

impl DeletedFiles {
    /// Those of the file system `device` that these processes have open. An error: nobody can say.
    pub fn of(root: &Root, pids: &BTreeSet<u32>, device: u64) -> Result<Self, Errno> {
        let mut found = Self::default();
        let mut seen = HashSet::new();
        for pid in pids {
            match found.look(root, *pid, device, &mut seen) {
                Ok(true) => {}
                Ok(false) => break,
                // It has ended, or may not be looked at.
                Err(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// False: it is too much.
    fn look(
        &mut self,
        root: &Root,
        pid: u32,
        device: u64,
        seen: &mut HashSet<u64>,
    ) -> Result<bool, Errno> {
        let path = root.path(format!("/proc/{pid}/fd"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        self.n_looked += 1;
        let mut dir = Dir::new(open(&path, flags, Mode::empty())?)?;
        while let Some(entry) = dir.read() {
            let entry = entry?;
            if self.n_looked >= MAX_FILES {
                return Ok(false);
            }
            self.n_looked += 1;
            if let Ok(Some((file, inode))) = deleted(&dir, entry.file_name(), device)
                && seen.insert(inode)
            {
                self.files.push(file);
            }
        }
        Ok(true)
    }
}

/// The file and its inode, if it is one without a name on that file system.
fn deleted(dir: &Dir, name: &CStr, device: u64) -> Result<Option<(DeletedFile, u64)>, Errno> {
    let dir = dir.fd()?;
    let target = readlinkat(dir, name, Vec::new())?;
    let Some(path) = target.to_bytes().strip_suffix(MARK) else {
        return Ok(None);
    };
    let wanted = StatxFlags::BASIC_STATS;
    let stat = statx(dir, name, AtFlags::STATX_DONT_SYNC, wanted)?;
    let is_file = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::RegularFile;
    let is_there = makedev(stat.stx_dev_major, stat.stx_dev_minor) == device;
    // A file may have such a name.
    if !is_file || !is_there || stat.stx_nlink > 0 {
        return Ok(None);
    }
    let file = DeletedFile {
        path: PathBuf::from(OsStr::from_bytes(path)),
        bytes: stat.stx_blocks.saturating_mul(512),
    };
    Ok(Some((file, stat.stx_ino)))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#[expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use crate::sys::scratch::Scratch;

    #[test]
    fn a_file_counts_once_and_only_when_it_has_no_name() {
        let dir = Scratch::new("deleted");
        let make = |name: &str| {
            let mut file = File::create(dir.path(name)).unwrap();
            file.write_all(&[1; 100_000]).unwrap();
            file.sync_all().unwrap();
            file
        };
        let (deleted, named) = (make("deleted"), make("named (deleted)"));
        let again = deleted.try_clone().unwrap();
        let device = fs::metadata(dir.directory()).unwrap().dev();
        let pids = [std::process::id(), u32::MAX].into();
        let found = |device| {
            let mut found = DeletedFiles::of(&Root::host(), &pids, device).unwrap();
            found
                .files
                .retain(|it| it.path.starts_with(dir.directory()));
            assert!(found.n_looked > 3);
            found.files
        };
        assert_eq!(found(device), []);
        fs::remove_file(dir.path("deleted")).unwrap();
        let expected = DeletedFile {
            path: dir.path("deleted"),
            bytes: deleted.metadata().unwrap().blocks() * 512,
        };
        assert!(expected.bytes >= 100_000);
        assert_eq!(found(device), [expected]);
        assert_eq!(found(device + 1), []);
        drop((deleted, again, named));
        assert_eq!(found(device), []);
    }

    #[test]
    fn a_process_whose_files_cannot_be_looked_at_is_not_one_without_any() {
        let dir = Scratch::new("deleted");
        let root = Root::at(dir.directory());
        let found = |pids: &[u32]| DeletedFiles::of(&root, &pids.iter().copied().collect(), 0);
        fs::create_dir_all(dir.path("proc/7")).unwrap();
        assert_eq!(found(&[7, 8]).unwrap().files, [], "both have ended");
        dir.unreadable("proc/7/fd");
        assert_eq!(found(&[7, 8]), Err(Errno::LOOP));
    }
}
