//! Cgroups of the node that hold pods whose requests are not counted, since they are pods of others or nobody knows yet
//! what they are: what these cgroups have is never made less.
//!
//! In: what such a cgroup is to be, and what it is. Out: the looser of the two, file by file.

use super::cgroup_plan::is_tighter;
use crate::model::cgroup::{DesiredCgroup, FileValue, InterfaceFile, ObservedCgroup};

/// A file that stays above what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub file: InterfaceFile,
    pub wanted: FileValue,
    pub found: FileValue,
}

/// Loosens `desired` to what is `seen`, and leaves out what cannot be read. More is looser in every file of these
/// cgroups: weights, protections and limits alike.
pub fn never_lower(desired: &mut DesiredCgroup, seen: &ObservedCgroup) -> Vec<Kept> {
    let mut kept = Vec::new();
    desired.files.retain_mut(|(file, wanted)| {
        let Some(found) = seen.values.get(file) else {
            return false;
        };
        let loosest = match (&*wanted, found) {
            (FileValue::List(wanted), FileValue::List(found)) => {
                FileValue::List(wanted.union(found))
            }
            (wanted, found) if is_tighter(Some(found), wanted) => found.clone(),
            (wanted, _) => wanted.clone(),
        };
        if loosest != *wanted {
            kept.push(Kept {
                file: file.clone(),
                wanted: std::mem::replace(wanted, loosest),
                found: found.clone(),
            });
        }
        true
    });
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cgroup::{Controller, Existence, FileKind};
    use crate::model::cgroup_path::CgroupPath;
    use crate::units::Limit;

    fn file(name: &str, kind: FileKind) -> InterfaceFile {
        InterfaceFile {
            controller: Controller::Cpu,
            name: name.to_owned(),
            kind,
        }
    }

    #[test]
    fn each_file_is_as_loose_as_the_looser_of_both() {
        let number = FileValue::Number;
        let at = |it| FileValue::Limit(Limit::At(it));
        let max = || FileValue::Limit(Limit::Max);
        let list = |text: &str| FileValue::List(text.parse().expect("a list"));
        for (kind, wanted, found, expected) in [
            (FileKind::Number, number(2), number(40), number(40)),
            (FileKind::Number, number(40), number(2), number(40)),
            (FileKind::Limit, at(5), max(), max()),
            (FileKind::Limit, max(), at(5), max()),
            (FileKind::Limit, at(5), at(6), at(6)),
            (FileKind::List, list("0"), list("1-2"), list("0-2")),
        ] {
            let file = file("f", kind);
            let mut desired = DesiredCgroup {
                path: CgroupPath::root(),
                files: vec![(file.clone(), wanted.clone())],
                is_sum: false,
            };
            let seen = ObservedCgroup {
                existence: Existence::Healthy,
                values: [(file.clone(), found)].into(),
                ..ObservedCgroup::absent()
            };
            let kept = never_lower(&mut desired, &seen);
            assert_eq!(kept.len(), usize::from(wanted != expected), "{wanted:?}");
            assert_eq!(desired.files, [(file, expected)]);
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        let mut desired = DesiredCgroup {
            path: CgroupPath::root(),
            files: vec![(file("f", FileKind::Number), FileValue::Number(1))],
            is_sum: false,
        };
        assert!(never_lower(&mut desired, &ObservedCgroup::absent()).is_empty());
        assert!(desired.files.is_empty());
    }
}
