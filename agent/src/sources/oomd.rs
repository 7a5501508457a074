//! Kills by systemd-oomd and by oomd. For the kernel they are signals like any other; who sends them notes them in extended
//! attributes of the cgroup that it ends (src/oom/oomd-util.c of systemd).

use crate::model::cgroup_path::CgroupPath;
use crate::sys::Trees;

/// As people are told.
pub const KILLED: &str = "killed by systemd-oomd";

/// Counts: of decisions, before anybody is killed, and of processes, after that. An old systemd has the last alone.
const MARKS: [&str; 3] = ["user.oomd_ooms", "user.oomd_kill", "trusted.oomd_kill"];

/// It has ended this cgroup, which is there. Those above it are not looked at: their counts may be of others that lay
/// there before.
pub fn has_killed(trees: &Trees, path: &CgroupPath) -> bool {
    let tree = trees.cgroup2();
    let Some(dir) = tree.and_then(|it| it.dir.descend(path.components()).ok()) else {
        return false;
    };
    let mut counts = MARKS.iter().filter_map(|it| dir.xattr(it));
    counts.any(|it| it.trim().parse::<u64>().is_ok_and(|it| it > 0))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use std::collections::BTreeSet;
    use std::io::{self, Write};

    use rustix::fs::{XattrFlags, setxattr};
    use rustix::io::Errno;

    use super::*;
    use crate::sys::scratch::Scratch;
    use crate::sys::{Root, Tree};

    #[test]
    fn a_kill_by_systemd_oomd_is_known_by_its_mark_at_the_cgroup_itself() {
        for (at, mark, value, is_known) in [
            ("pod/c", "user.oomd_ooms", "1", true),
            ("pod/c", "user.oomd_kill", "12", true),
            ("pod/c", "user.oomd_kill", "0", false),
            ("pod/c", "user.oomd_kill", "", false),
            ("pod/c", "user.oomd_kill_uuid", "1", false),
            ("pod", "user.oomd_ooms", "1", false),
        ] {
            let scratch = Scratch::new("oomd");
            Root::host().create_dir_all(scratch.path("pod/c")).unwrap();
            let set = setxattr(
                scratch.path(at),
                mark,
                value.as_bytes(),
                XattrFlags::empty(),
            );
            if set == Err(Errno::NOTSUP) {
                // As a tmpfs before Linux 6.6.
                let what = "marks of systemd-oomd: the directory of temporary files takes none";
                writeln!(io::stdout(), "\n    left out: {what}").unwrap();
                return;
            }
            set.unwrap();
            let trees = Trees {
                unified: true,
                trees: vec![Tree::open(BTreeSet::new(), scratch.directory()).unwrap()],
            };
            let path = CgroupPath::new("/pod/c").unwrap();
            assert_eq!(has_killed(&trees, &path), is_known, "{at} {mark} {value}");
        }
    }
}
