//! Processes that are in other cgroups than they should be: a container whose first process has moved
//! away, for which no limit holds, and the agent itself in a pod, with which it would end.
//!
//! A process that root owns can do so on a node whose containers have no namespaces. It is reported,
//! not undone: who moves once moves again. The container still ends by its process.

use std::fmt;

use super::Loop;
use crate::model::mounts::Membership;
use crate::sources::mounts::parse_membership;
use crate::sys::{FsError, Root, Tree};

/// Where a container's first process was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Escape {
    pid: u32,
    /// Hierarchy and path, of those that it has left.
    left: Vec<(String, String)>,
}

impl fmt::Display for Escape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self
            .left
            .iter()
            .map(|(hierarchy, path)| format!("{path} ({hierarchy})"))
            .collect();
        write!(
            f,
            "its first process, pid {}, has left its cgroup for {}: limits and evictions do not hold \
             for it; removing the pod ends it",
            self.pid,
            places.join(", ")
        )
    }
}

impl Loop {
    /// One file of `/proc` for each container.
    pub(super) fn look_for_escapes(&mut self) {
        let kubepods = self.hands.plan.kubepods_path();
        let trees = &self.node.reader.trees().trees;
        if !places(trees, "self", kubepods.as_str()).is_ok_and(|it| it.inside == 0) {
            self.leave_pods();
        }
        let trees = &self.node.reader.trees().trees;
        let mut n_escaped = 0;
        for entry in self.pods.values_mut() {
            for (container, instance) in &mut entry.instances {
                let Some(process) = instance.process.filter(|_| instance.ended.is_none()) else {
                    continue;
                };
                let path = instance.cgroup.as_str();
                let Ok(places) = places(trees, &process.pid.to_string(), path) else {
                    // Ended meanwhile, or not to be read: nothing is known.
                    continue;
                };
                let escape = (!places.outside.is_empty() && process.is_there()).then_some(Escape {
                    pid: process.pid,
                    left: places.outside,
                });
                if let Some(escape) = escape
                    .as_ref()
                    .filter(|it| instance.escape.as_ref() != Some(it))
                {
                    self.told.container_left(&entry.pod_ref, container, escape);
                }
                n_escaped += usize::from(escape.is_some());
                instance.escape = escape;
            }
        }
        self.metrics.set_escaped_containers(n_escaped);
    }

    fn leave_pods(&mut self) {
        let kubepods = self.hands.plan.kubepods_path();
        match self.hands.writer.leave(&kubepods) {
            Ok(true) => self.told.agent_left(&kubepods),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(
                    error = crate::observe::chain(&error),
                    "make sure that the agent is in no cgroup of a pod"
                );
            }
        }
    }
}

/// Where a process is, seen from a cgroup.
struct Places {
    /// In so many hierarchies it is in the cgroup or below it.
    inside: usize,
    /// The others, and where it is there.
    outside: Vec<(String, String)>,
}

/// `pid`: a number, or `self`. `path` counts from the mounts.
fn places(trees: &[Tree], pid: &str, path: &str) -> Result<Places, FsError> {
    let text = Root::host().read_text(format!("/proc/{pid}/cgroup"))?;
    Ok(places_of(trees, &parse_membership(&text), path))
}

fn places_of(trees: &[Tree], memberships: &[Membership], path: &str) -> Places {
    let mut places = Places {
        inside: 0,
        outside: Vec::new(),
    };
    for tree in trees {
        let is_of_tree = |it: &&Membership| match it.controllers.as_slice() {
            [] => it.hierarchy_id == 0 && (trees.len() == 1 || tree.controllers.is_empty()),
            controllers => controllers
                .iter()
                .any(|it| tree.controllers.contains(&it.0)),
        };
        // A hierarchy that the process does not name tells nothing.
        let Some(membership) = memberships.iter().find(is_of_tree) else {
            continue;
        };
        let below = membership.path.strip_prefix(path);
        match below.is_some_and(|it| it.is_empty() || it.starts_with('/')) {
            true => places.inside += 1,
            false => places.outside.push((tree.label(), membership.path.clone())),
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn tree(controllers: &[&str]) -> Tree {
        let controllers: BTreeSet<String> = controllers.iter().map(|it| (*it).to_owned()).collect();
        Tree::open(controllers, std::path::Path::new("/")).expect("it is there")
    }

    #[test]
    fn a_process_is_inside_in_its_cgroup_and_below_it() {
        let trees = [tree(&["memory"]), tree(&["cpu", "cpuacct"]), tree(&[])];
        let outside = |text: &str| {
            let places = places_of(&trees, &parse_membership(text), "/kubepods/pod1/c");
            (places.inside, places.outside)
        };
        let at = |label: &str, path: &str| (label.to_owned(), path.to_owned());
        let all =
            "9:memory:/kubepods/pod1/c\n4:cpu,cpuacct:/kubepods/pod1/c/d\n0::/kubepods/pod1/c\n";
        assert_eq!(outside(all), (3, vec![]));
        let some = "9:memory:/\n4:cpu,cpuacct:/kubepods/pod1/c\n0::/kubepods/pod1/cc\n";
        assert_eq!(
            outside(some),
            (
                1,
                vec![at("memory", "/"), at("unified", "/kubepods/pod1/cc")]
            )
        );
        assert_eq!(outside("9:memory:/kubepods/pod1/c\n"), (1, vec![]));
    }

    #[test]
    fn on_cgroup_v2_there_is_one_line() {
        let trees = [tree(&["cpu", "memory"])];
        let places = places_of(&trees, &parse_membership("0::/system.slice\n"), "/kubepods");
        assert_eq!(
            places.outside,
            [("cpu,memory".to_owned(), "/system.slice".to_owned())]
        );
    }
}
