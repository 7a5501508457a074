//! cpusets that a container has made below its own, as kube-proxy and dockerd do. cgroup v1 keeps each below its
//! parent, and does not narrow a parent from which a child would stick out (kernel/cgroup/cpuset-v1.c, Linux 6.18:
//! `cpuset1_validate_change`). On v2 what a child has is cut by its parent, so nothing is done there.
//!
//! They follow their container: one that had all that its parent had gets all that it has now, and one that had a part
//! keeps what is left of it.

use crate::model::cpuset::CpuSet;
use crate::sys::{Dir, FsError};

/// How deep they are moved.
const MAX_DEPTH: usize = 64;

/// Moves what lies below `dir` from `old`, which `dir` has, to `new`, which it is to have next. `dir` has both after
/// it. What cannot be moved is left: the kernel then refuses the move of `dir`.
pub(super) fn move_below(dir: &Dir, file: &str, old: &CpuSet, new: &CpuSet) {
    move_children(dir, file, old, new, MAX_DEPTH);
}

fn move_children(dir: &Dir, file: &str, old: &CpuSet, new: &CpuSet, depth: usize) {
    let Ok(names) = dir.list_dirs() else { return };
    if names.is_empty() || depth == 0 {
        return;
    }
    // Room for those that come from the one to the other. Without it they stay, and are told of by `dir`.
    let both = old.union(new);
    if both != *old && dir.write(file, &both.to_string()).is_err() {
        return;
    }
    for name in names {
        let moved = dir.open_dir(&name).and_then(|child| {
            let Ok(own) = child.read_text(file)?.trim().parse::<CpuSet>() else {
                return Ok(());
            };
            // One that is being made has nothing yet.
            if own.is_empty() {
                return Ok(());
            }
            let next = follow(&own, old, new);
            move_children(&child, file, &own, &next, depth - 1);
            match next == own {
                true => Ok(()),
                false => child.write(file, &next.to_string()),
            }
        });
        if let Err(error) = moved
            && !matches!(error, FsError::Gone { .. })
        {
            tracing::debug!(error = crate::sys::chain(&error), "move a nested cpuset");
        }
    }
}

/// What a cpuset of `own` has when its parent moves from `old` to `new`.
fn follow(own: &CpuSet, old: &CpuSet, new: &CpuSet) -> CpuSet {
    let left = own.intersection(new);
    match own == old || left.is_empty() {
        true => new.clone(),
        false => left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nested_cpuset_follows_its_parent() {
        let set = |text: &str| text.parse::<CpuSet>().expect("a list");
        for (own, old, new, expected) in [
            ("0-3", "0-3", "0-1", "0-1"),
            ("0-1", "0-1", "0-3", "0-3"),
            ("1-2", "0-3", "0-1", "1"),
            ("3", "0-3", "0-1", "0-1"),
            ("1", "0-1", "0-3", "1"),
            ("0", "0", "1", "1"),
        ] {
            let next = follow(&set(own), &set(old), &set(new));
            assert_eq!(next, set(expected), "{own} of {old} to {new}");
        }
    }
}
