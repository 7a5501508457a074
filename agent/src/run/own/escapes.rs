//! Processes that are in other cgroups than they should be: those of a container that have moved away, for which
//! no limit holds, and the agent itself in a pod, with which it would end.
//!
//! A process that root owns can do so on a node whose containers have no namespaces, and logind moves the sessions that
//! are opened in one. It is reported, not undone: who moves once moves again. Only whom the kernel of v1 has put into the
//! cpuset of the pod is brought back, and nothing is said of it. Who has moved still ends with its container, as with the
//! PID namespace of one. Descent tells whose a process is: the first process of a container adopts what the others leave
//! behind.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::{fmt, thread};

use super::Loop;
use super::event::Event;
use crate::model::cgroup::Controller;
use crate::model::cgroup_path::CgroupPath;
use crate::model::mounts::Membership;
use crate::runtime::{ContainerId, HostProcess};
use crate::sources::mounts::parse_membership;
use crate::sources::procfs::{self, Descent};
use crate::sys::{FsError, Root, Tree, syscall};

/// So many of a container are known, and end with it.
const MOST: usize = 1024;

/// Processes of one container that were found outside its cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Escape {
    /// Never empty; the elder generation first.
    processes: Vec<HostProcess>,
    /// The container's first process is among them.
    is_first: bool,
    /// Hierarchy and path, of those that the first of them has left.
    left: Left,
    /// The pod has `hostPID`: there is no PID namespace that would end them.
    outlives: bool,
}

impl fmt::Display for Escape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.processes.first().map_or(0, |it| it.pid);
        let whose = match self.is_first {
            true => "first process",
            false => "process",
        };
        let more = match self.processes.len() {
            0 | 1 => String::new(),
            n => format!(" (with {} more)", n - 1),
        };
        let places: Vec<String> = self
            .left
            .iter()
            .map(|(hierarchy, path)| format!("{path} ({hierarchy})"))
            .collect();
        let end = match self.outlives && !self.is_first {
            true => "it outlives the container, as the pod has `hostPID`",
            false => "removing the pod ends it",
        };
        write!(
            f,
            "its {whose}, pid {pid}, has left its cgroup for {}{more}: limits and evictions do not hold for it; {end}",
            places.join(", ")
        )
    }
}

impl Escape {
    /// Told once, not with every process that comes and goes.
    fn is_told_by(&self, before: &Self) -> bool {
        (self.is_first, &self.left) == (before.is_first, &before.left)
    }

    /// SIGKILL, to none that only has the pid of one of them.
    pub(super) fn end(&self) {
        if self.outlives {
            return;
        }
        for process in &self.processes {
            if let Ok(pidfd) = syscall::pidfd_open(process.pid)
                && process.is_there()
            {
                // An error: it has just ended.
                let _ = syscall::pidfd_send_signal(pidfd.as_fd(), 9);
            }
        }
    }
}

/// A container whose processes are looked at.
#[derive(Debug)]
struct Looked {
    id: ContainerId,
    first: HostProcess,
    /// Processes of it that the look before has found outside: after the end of the first one, of which nobody has heard
    /// yet, descent does not tell whose they are.
    known: Vec<HostProcess>,
    cgroup: CgroupPath,
    /// v1: that of its pod, into whose cpuset the kernel moves processes of it.
    pod: Option<CgroupPath>,
    outlives: bool,
}

/// What a look at a container came to.
#[derive(Debug)]
pub(super) struct Found {
    escape: Option<Escape>,
    /// See [`ObservedCgroup::has_lost_processes`](crate::model::cgroup::ObservedCgroup).
    has_lost_processes: bool,
}

/// Hierarchy and path.
type Left = Vec<(String, String)>;

impl Found {
    /// `outside`: processes of the container that are not in its cgroup everywhere, the elder generation first.
    fn of(looked: &Looked, outside: impl Iterator<Item = (HostProcess, Left)>) -> Self {
        let mut found = Self {
            escape: None,
            has_lost_processes: false,
        };
        for (process, mut left) in outside {
            if let Some(pod) = &looked.pod {
                found.has_lost_processes |= take_cpuset_of(pod, &mut left);
            }
            if left.is_empty() {
                continue;
            }
            match &mut found.escape {
                Some(escape) if escape.processes.len() >= MOST => {}
                Some(escape) => escape.processes.push(process),
                none => {
                    *none = Some(Escape {
                        processes: vec![process],
                        is_first: process == looked.first,
                        left,
                        outlives: looked.outlives,
                    });
                }
            }
        }
        found
    }
}

/// Takes the cpuset of a pod out of where a process is, which was there: the kernel puts the processes of a container into
/// it whose cpuset has lost its last CPU.
fn take_cpuset_of(pod: &CgroupPath, left: &mut Left) -> bool {
    let is_cpuset = |hierarchy: &str| {
        let mut controllers = hierarchy.split(',');
        controllers.any(|it| it == Controller::Cpuset.name())
    };
    let n_before = left.len();
    left.retain(|(hierarchy, path)| path != pod.as_str() || !is_cpuset(hierarchy));
    left.len() < n_before
}

/// Of each container that was looked at.
pub(super) type Escapes = BTreeMap<ContainerId, Found>;

impl Loop {
    /// One look at a time, on a thread of its own: it reads a file of `/proc` for each process of the node, and another
    /// one for each of a container.
    pub(super) fn look_for_escapes(&mut self) {
        let kubepods = self.hands.plan.kubepods_path();
        let trees = Arc::clone(self.node.reader.trees());
        if !places(&trees.trees, "self", kubepods.as_str()).is_ok_and(|it| it.inside == 0) {
            self.leave_pods();
        }
        let Some(to_loop) = self.to_loop.clone().filter(|_| !self.looks_for_escapes) else {
            return;
        };
        let is_legacy = !self.node.is_unified();
        let mut looked = Vec::new();
        for entry in self.pods.values() {
            let running = entry.instances.values().filter(|it| it.ended.is_none());
            looked.extend(running.filter_map(|it| {
                Some(Looked {
                    id: it.id.clone(),
                    first: it.process?,
                    known: it
                        .escape
                        .iter()
                        .flat_map(|it| it.processes.clone())
                        .collect(),
                    cgroup: it.cgroup.clone(),
                    pod: is_legacy.then(|| entry.cgroup.clone()),
                    outlives: entry.state.pod.is_on_host_pid,
                })
            }));
        }
        let look = move || {
            let found = find_escapes(&trees.trees, looked);
            // An error: the loop has ended.
            to_loop.send(Event::Escapes(found)).ok();
        };
        match thread::Builder::new()
            .name("escapes".to_owned())
            .spawn(look)
        {
            Ok(_) => self.looks_for_escapes = true,
            Err(error) => tracing::warn!(%error, "look for processes that have left their cgroup"),
        }
    }

    pub(super) fn take_escapes(&mut self, mut found: Escapes) {
        self.looks_for_escapes = false;
        for entry in self.pods.values_mut() {
            for (container, instance) in &mut entry.instances {
                if instance.ended.is_some() {
                    continue;
                }
                let Some(Found {
                    escape,
                    has_lost_processes,
                }) = found.remove(&instance.id)
                else {
                    continue;
                };
                let before = instance.escape.as_ref();
                if let Some(escape) = &escape
                    && !before.is_some_and(|it| escape.is_told_by(it))
                {
                    self.told.container_left(&entry.pod_ref, container, escape);
                }
                instance.has_lost_processes = has_lost_processes;
                entry.is_dirty |= has_lost_processes || escape != instance.escape;
                instance.escape = escape;
            }
        }
        // Of containers that are over since the look began.
        let over = found.values().filter_map(|it| it.escape.as_ref());
        over.for_each(Escape::end);
        let instances = self.pods.values().flat_map(|it| it.instances.values());
        let n_escaped = instances.filter(|it| it.escape.is_some()).count();
        self.metrics.set_escaped_containers(n_escaped);
    }

    /// Of containers, since the last look; each look says anew whether they have.
    pub(super) fn cgroups_that_lost_processes(&mut self) -> BTreeSet<CgroupPath> {
        let entries = self.pods.values_mut();
        let instances = entries.flat_map(|it| it.instances.values_mut());
        let lost = instances.filter_map(|it| {
            let has_lost = std::mem::take(&mut it.has_lost_processes);
            has_lost.then(|| it.cgroup.clone())
        });
        lost.collect()
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

fn find_escapes(trees: &[Tree], looked: Vec<Looked>) -> Escapes {
    let descents = procfs::descents(&Root::host()).unwrap_or_else(|error| {
        tracing::warn!(error = crate::observe::chain(&error), "list processes");
        Vec::new()
    });
    let families = Families::new(&descents, std::process::id());
    let found = looked.into_iter().map(|it| {
        let found = look_at(trees, &it, &families);
        (it.id, found)
    });
    found.collect()
}

/// What cannot be read has ended, or nothing is known of it.
fn look_at(trees: &[Tree], looked: &Looked, families: &Families<'_>) -> Found {
    let path = looked.cgroup.as_str();
    let mut all: Vec<HostProcess> = families.of(looked.first).collect();
    let family: BTreeSet<HostProcess> = all.iter().copied().collect();
    let known = looked.known.iter();
    all.extend(known.filter(|it| !family.contains(it) && families.has(**it)));
    let outside = all.into_iter().filter_map(|process| {
        let places = places(trees, &process.pid.to_string(), path).ok()?;
        (!places.outside.is_empty() && process.is_there()).then_some((process, places.outside))
    });
    Found::of(looked, outside)
}

fn process(it: &Descent) -> HostProcess {
    HostProcess {
        pid: it.pid,
        start_ticks: it.start_ticks,
    }
}

/// Who descends from whom.
struct Families<'a> {
    children: BTreeMap<u32, Vec<&'a Descent>>,
    by_pid: BTreeMap<u32, &'a Descent>,
    /// A process and its ancestors: a container that the agent itself descends from, as it was started in a session
    /// there, has no say over it.
    spared: BTreeSet<u32>,
}

impl<'a> Families<'a> {
    fn new(descents: &'a [Descent], spared: u32) -> Self {
        let mut children: BTreeMap<u32, Vec<&Descent>> = BTreeMap::new();
        for it in descents {
            children.entry(it.parent).or_default().push(it);
        }
        let by_pid: BTreeMap<u32, &Descent> = descents.iter().map(|it| (it.pid, it)).collect();
        let mut line = BTreeSet::new();
        let mut next = Some(spared);
        // Read one after the other: a line may lead to a pid that came again.
        while let Some(pid) = next.filter(|it| line.insert(*it)) {
            next = by_pid.get(&pid).map(|it| it.parent);
        }
        Self {
            children,
            by_pid,
            spared: line,
        }
    }

    fn has(&self, it: HostProcess) -> bool {
        self.find(it).is_some()
    }

    fn find(&self, wanted: HostProcess) -> Option<&'a Descent> {
        let found = self.by_pid.get(&wanted.pid).copied();
        found.filter(|it| process(it) == wanted)
    }

    /// A process that is still there and all that descend from it, the elder generation first.
    fn of(&self, first: HostProcess) -> impl Iterator<Item = HostProcess> {
        let mut family: Vec<&Descent> = self.find(first).into_iter().collect();
        let mut seen: BTreeSet<u32> = family.iter().map(|it| it.pid).collect();
        let mut n_looked = 0;
        while let Some(parent) = family.get(n_looked).copied() {
            n_looked += 1;
            let children = self.children.get(&parent.pid).into_iter().flatten();
            let mut children: Vec<&Descent> = children
                .filter(|it| !self.spared.contains(&it.pid) && seen.insert(it.pid))
                .copied()
                .collect();
            family.append(&mut children);
        }
        family.into_iter().map(process)
    }
}

/// Where a process is, seen from a cgroup.
struct Places {
    /// In so many hierarchies it is in the cgroup or below it.
    inside: usize,
    /// The others, and where it is there.
    outside: Left,
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

    fn left(places: &[(&str, &str)]) -> Left {
        let places = places.iter();
        places
            .map(|(hierarchy, path)| ((*hierarchy).to_owned(), (*path).to_owned()))
            .collect()
    }

    #[test]
    fn the_kernel_has_put_into_the_cpuset_of_the_pod_who_has_lost_his_cpus() {
        let pod = CgroupPath::new("/kubepods/pod1").expect("a path");
        for (hierarchy, path, is_there) in [
            ("cpuset", "/kubepods/pod1", true),
            ("cpu,cpuset", "/kubepods/pod1", true),
            ("cpuset", "/kubepods/pod1/other", false),
            ("cpuset", "/", false),
            ("memory", "/kubepods/pod1", false),
        ] {
            let mut places = left(&[("memory", "/"), (hierarchy, path)]);
            let is_taken = take_cpuset_of(&pod, &mut places);
            assert_eq!(is_taken, is_there, "{hierarchy} {path}");
            let n_left = 2 - usize::from(is_there);
            assert_eq!(places.len(), n_left, "{hierarchy} {path}");
        }
    }

    /// Whoever else has left, and why.
    #[test]
    fn who_is_in_the_cpuset_of_the_pod_is_brought_back_and_not_told() {
        let pod = || CgroupPath::new("/kubepods/pod1").expect("a path");
        let process = |pid| HostProcess {
            pid,
            start_ticks: 10,
        };
        let look = |pod, outside: &[(u32, &[(&str, &str)])]| {
            let looked = Looked {
                id: ContainerId::new("c").expect("an id"),
                first: process(1),
                known: Vec::new(),
                cgroup: CgroupPath::new("/kubepods/pod1/c").expect("a path"),
                pod,
                outlives: false,
            };
            let outside = outside.iter().map(|(pid, at)| (process(*pid), left(at)));
            let found = Found::of(&looked, outside);
            let told = found.escape.map(|it| {
                let pids: Vec<u32> = it.processes.iter().map(|it| it.pid).collect();
                (pids, it.is_first, it.left)
            });
            (told, found.has_lost_processes)
        };
        let moved = &[("cpuset", "/kubepods/pod1")][..];
        let session = &[("name=systemd", "/user.slice")][..];
        let both = &[
            ("cpuset", "/kubepods/pod1"),
            ("name=systemd", "/user.slice"),
        ][..];
        let told = |pids: &[u32], is_first| Some((pids.to_vec(), is_first, left(session)));
        for (outside, expected) in [
            (&[][..], (None, false)),
            (&[(1, moved), (2, moved)], (None, true)),
            (&[(1, session), (2, moved)], (told(&[1], true), true)),
            (&[(1, both), (2, session)], (told(&[1, 2], true), true)),
            (&[(1, moved), (2, session)], (told(&[2], false), true)),
            (&[(1, session)], (told(&[1], true), false)),
        ] {
            assert_eq!(look(Some(pod()), outside), expected, "{outside:?}");
        }
        // On v2 the kernel moves nobody.
        let expected = (Some((vec![1], true, left(moved))), false);
        assert_eq!(look(None, &[(1, moved)]), expected);
    }

    #[test]
    fn a_family_is_what_descends_but_for_the_agent() {
        let descent = |pid, parent| Descent {
            pid,
            parent,
            start_ticks: 10,
        };
        // 5 has started 7 and, by 6, the agent, 9; 8 is a child of 7.
        let all = [
            (1, 0),
            (8, 7),
            (5, 1),
            (6, 5),
            (7, 5),
            (9, 6),
            (10, 9),
            (4, 1),
        ];
        let all = all.map(|(pid, parent)| descent(pid, parent));
        let families = Families::new(&all, 9);
        let of = |pid, start_ticks| -> Vec<u32> {
            let first = HostProcess { pid, start_ticks };
            families.of(first).map(|it| it.pid).collect()
        };
        assert_eq!(of(5, 10), [5, 7, 8]);
        assert_eq!(of(5, 11), [] as [u32; 0], "another one with this pid");
        assert_eq!(of(11, 10), [] as [u32; 0]);
        // What is read while pids come again may go round.
        let round = [descent(2, 3), descent(3, 2)];
        let families = Families::new(&round, 3);
        let first = HostProcess {
            pid: 2,
            start_ticks: 10,
        };
        assert_eq!(families.of(first).count(), 1);
        assert!(families.has(first));
        let other = HostProcess {
            start_ticks: 11,
            ..first
        };
        assert!(!families.has(other));
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
