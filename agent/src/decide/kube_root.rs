//! Which of the trees of a node is its kubelet's: below which cgroup the pods lie, and of which driver.
//!
//! Nothing is guessed from the distribution. Where a second tree is there, of a test or of another agent,
//! and nothing tells which is meant, none is chosen.
//!
//! What kubelet was told of its driver is no evidence: it goes by that of the runtime (kubelet 1.36,
//! cmd/kubelet/app/server.go: `getCgroupDriverFromCRI`).

use std::collections::BTreeSet;

use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::kube_cgroup::{KubeLevel, parse};

/// What is known, the strongest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The agent's own cgroup; `None` where it is not seen as it is on the host.
    pub own: Option<CgroupPath>,
    /// `cgroupRoot` of kubelet, as each driver has it on disk; empty where nobody has said it.
    pub configured: Vec<CgroupPath>,
    /// Cgroups with a `kubepods` of either driver right below them.
    pub found: BTreeSet<CgroupPath>,
}

/// Several trees, and nothing says which is kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} have a kubepods each, and nothing tells which is kubelet's; set kubelet.cgroupRoot to the one that is",
    join(.0)
)]
pub struct Ambiguous(pub BTreeSet<CgroupPath>);

fn join(paths: &BTreeSet<CgroupPath>) -> String {
    let paths: Vec<&str> = paths.iter().map(CgroupPath::as_str).collect();
    paths.join(", ")
}

/// The cgroups below which kubelet's pods may lie: none yet, one, or, where `cgroupRoot` is on disk by either
/// driver, both.
pub fn choose(evidence: &Evidence) -> Result<Vec<CgroupPath>, Ambiguous> {
    if let Some(root) = evidence.own.as_ref().and_then(root_of_pod) {
        return Ok(vec![root]);
    }
    let Evidence {
        configured, found, ..
    } = evidence;
    if !configured.is_empty() {
        let there = configured.iter().filter(|it| found.contains(it));
        return Ok(there.cloned().collect());
    }
    match found.len() {
        0 | 1 => Ok(found.iter().cloned().collect()),
        _ => Err(Ambiguous(found.clone())),
    }
}

/// The cgroup of all pods by one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    pub id: CgroupId,
    /// Pods in which somebody runs.
    pub n_live: usize,
    pub youngest_pod: Option<CgroupId>,
}

/// Another tree is followed only when it has more pods than so many times those of the one that is: one that is left
/// empties for good, and of two that are both in use neither is to win at each pod.
const CLEARLY_MORE: usize = 2;

/// Which of the trees is followed, by its index: the one with the most pods that live; without any, the one in which a
/// pod was made last, or that was. `before`: the one that was followed until now.
pub fn followed(trees: &[Tree], before: Option<CgroupId>) -> Option<usize> {
    let rank = |it: &Tree| (it.n_live, it.youngest_pod, it.id);
    let largest = (0..trees.len()).max_by_key(|it| rank(&trees[*it]))?;
    let kept = trees.iter().position(|it| Some(it.id) == before);
    let kept = kept.filter(|it| {
        let n_live = trees[*it].n_live;
        n_live > 0 && trees[largest].n_live <= CLEARLY_MORE * n_live
    });
    Some(kept.unwrap_or(largest))
}

/// What stands before kubepods in the path of a pod; `None`: it is no pod's.
fn root_of_pod(path: &CgroupPath) -> Option<CgroupPath> {
    let mut above: Vec<CgroupPath> = path.ancestors().skip(1).collect();
    // A container may have a whole tree of pods in it: the first is the node's.
    above.reverse();
    let is_pod = |root: &CgroupPath| {
        parse(path, root).is_some_and(|it| {
            !it.is_misplaced
                && matches!(
                    it.level,
                    KubeLevel::Pod { .. } | KubeLevel::Container { .. }
                )
        })
    };
    above.into_iter().find(is_pod)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two trees, each with the number of live pods, the youngest pod and its own id.
    #[test]
    fn the_tree_that_is_followed_stays_until_another_has_clearly_more() {
        let follow = |trees: [(usize, u64, u64); 2], before: u64| {
            let trees = trees.map(|(n_live, youngest, id)| Tree {
                id: CgroupId(id),
                n_live,
                youngest_pod: (youngest > 0).then_some(CgroupId(youngest)),
            });
            let before = (before > 0).then_some(CgroupId(before));
            trees[followed(&trees, before).expect("there are two")].id.0
        };
        for (trees, before, right, why) in [
            ([(5, 50, 1), (1, 60, 2)], 0, 1, "most pods live there"),
            ([(5, 50, 1), (5, 60, 2)], 0, 2, "the youngest of as many"),
            ([(5, 50, 1), (5, 60, 2)], 1, 1, "it is followed"),
            ([(5, 50, 1), (10, 60, 2)], 1, 1, "not clearly more"),
            ([(5, 50, 1), (11, 60, 2)], 1, 2, "clearly more"),
            ([(5, 50, 1), (11, 60, 2)], 2, 2, "and there it stays"),
            ([(8, 90, 1), (11, 60, 2)], 2, 2, "whatever is made"),
            ([(0, 50, 1), (1, 60, 2)], 1, 2, "it is over there"),
            ([(0, 50, 1), (0, 60, 2)], 1, 2, "a pod was made there last"),
            ([(0, 0, 1), (0, 0, 2)], 1, 2, "it was made last"),
            ([(0, 0, 2), (0, 3, 1)], 0, 1, "it has a pod"),
        ] {
            assert_eq!(follow(trees, before), right, "{why}: {trees:?} {before}");
        }
        assert_eq!(followed(&[], None), None);
    }

    fn path(text: &str) -> CgroupPath {
        text.parse().expect("a path")
    }

    #[track_caller]
    fn check(
        own: Option<&str>,
        configured: &[&str],
        found: &[&str],
        expected: Result<&[&str], &[&str]>,
    ) {
        let evidence = Evidence {
            own: own.map(path),
            configured: configured.iter().map(|it| path(it)).collect(),
            found: found.iter().map(|it| path(it)).collect(),
        };
        let expected = match expected {
            Ok(roots) => Ok(roots.iter().map(|it| path(it)).collect()),
            Err(several) => Err(Ambiguous(several.iter().map(|it| path(it)).collect())),
        };
        assert_eq!(choose(&evidence), expected);
    }

    #[test]
    fn the_strongest_evidence_decides() {
        let two = ["/", "/kubelet.slice"];
        let id = "0".repeat(64);
        let in_pod = format!(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-poda.slice/cri-containerd-{id}.scope"
        );
        check(Some(&in_pod), &[], &two, Ok(&["/kubelet.slice"]));
        check(Some(&in_pod), &["/"], &two, Ok(&["/kubelet.slice"]));
        check(
            Some("/system.slice/ballast.service"),
            &["/kubelet", "/kubelet.slice"],
            &two,
            Ok(&["/kubelet.slice"]),
        );
        let both = ["/kubelet", "/kubelet.slice"];
        check(None, &both, &both, Ok(&both));
        check(None, &[], &["/kubelet.slice"], Ok(&["/kubelet.slice"]));
        check(None, &[], &[], Ok(&[]));
        check(None, &["/kubelet"], &["/"], Ok(&[]));
    }

    #[test]
    fn of_two_trees_none_is_chosen_by_chance() {
        check(None, &[], &["/", "/test"], Err(&["/", "/test"]));
        let several = Ambiguous(["/", "/test"].map(path).into());
        assert_eq!(
            several.to_string(),
            "/, /test have a kubepods each, and nothing tells which is kubelet's; set \
             kubelet.cgroupRoot to the one that is"
        );
    }

    #[test]
    fn a_cluster_in_a_container_is_not_the_nodes() {
        let id = "0".repeat(64);
        let nested = format!("/kubepods/poda/{id}/kubepods/podb/{id}");
        check(Some(&nested), &[], &[], Ok(&["/"]));
    }
}
