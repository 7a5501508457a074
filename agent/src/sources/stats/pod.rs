//! One pod with its containers: the quick reading that decisions are made from, and the full one of
//! the sweep, from the same held files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::cgroup::{Below, CgroupReader, Context, count_processes};
use super::process::{self, HeldProcess, HostFacts};
use super::sweep::Wanted;
use crate::model::eviction::{ContainerFigures, DiskUse, PodFigures};
use crate::model::stats::{
    ContainerStats, InterfaceStats, KnownContainer, KnownPod, PodStats, ProcessLimits,
};
use crate::sources::cgroup_use::dir;
use crate::sys::Root;

#[derive(Debug)]
pub(super) struct PodReader {
    known: Arc<KnownPod>,
    cgroup: CgroupReader,
    sandbox: HeldProcess,
    /// Where nobody knows a process of the sandbox or of a container: one with the network of the pod.
    other: HeldProcess,
    /// In the order of `known`.
    containers: Vec<ContainerReader>,
    /// The sweep that `found` is of; it grows until all containers are read, and then the pod.
    sweep: u64,
    found: Vec<ContainerStats>,
    next: usize,
    /// Of the sandbox, or else of the first container that has one, or of whoever is in the cgroup of the pod. What it
    /// was read from may be closed already.
    network: Option<Vec<InterfaceStats>>,
    whole: Option<PodStats>,
}

#[derive(Debug)]
struct ContainerReader {
    cgroup: CgroupReader,
    process: HeldProcess,
    /// Open files of its processes, as last counted.
    descriptors: Option<u64>,
}

impl PodReader {
    pub(super) fn new(known: Arc<KnownPod>) -> Self {
        Self {
            cgroup: CgroupReader::at(known.cgroup.clone()),
            sandbox: HeldProcess::default(),
            other: HeldProcess::default(),
            containers: known.containers.iter().map(ContainerReader::new).collect(),
            known,
            sweep: 0,
            found: Vec::new(),
            next: 0,
            network: None,
            whole: None,
        }
    }

    /// Takes what is known now, and keeps the files of the cgroups that are the same still.
    pub(super) fn update(&mut self, known: Arc<KnownPod>, cx: &mut Context) {
        if known.cgroup != self.known.cgroup {
            self.close(cx);
            *self = Self::new(known);
            return;
        }
        self.cgroup.renew(cx);
        if known.containers != self.known.containers {
            let mut before = std::mem::take(&mut self.containers);
            for container in &known.containers {
                let is_same = |it: &ContainerReader| *it.cgroup.path() == container.cgroup;
                let reader = match before.iter().position(is_same) {
                    Some(index) => before.swap_remove(index),
                    None => ContainerReader::new(container),
                };
                self.containers.push(reader);
            }
            for mut gone in before {
                gone.close(cx);
            }
            // The sweep begins again with this pod.
            self.begin(0);
        }
        self.known = known;
    }

    pub(super) fn close(&mut self, cx: &mut Context) {
        self.cgroup.close(cx);
        self.sandbox.close(&mut cx.held);
        self.other.close(&mut cx.held);
        for container in &mut self.containers {
            container.close(cx);
        }
    }

    pub(super) fn n_containers(&self) -> usize {
        self.containers.len()
    }

    fn begin(&mut self, sweep: u64) {
        self.sweep = sweep;
        self.found.clear();
        self.next = 0;
        self.network = None;
        self.whole = None;
    }

    /// What decisions are made from. `None`: there is no cgroup that could be read.
    pub(super) fn figures(
        &mut self,
        cx: &mut Context,
        at: Duration,
        wanted: Wanted,
    ) -> Option<PodFigures> {
        let quick = self.cgroup.quick(cx)?;
        let mut containers = BTreeMap::new();
        let mut parts = Vec::new();
        if wanted.containers {
            for (container, known) in self.containers.iter_mut().zip(&self.known.containers) {
                let memory = container.cgroup.memory(cx);
                parts.extend(memory);
                let figures = ContainerFigures {
                    memory_working_set: memory.map(|it| it.working_set()),
                    ..ContainerFigures::default()
                };
                containers.insert(known.known_as().to_owned(), figures);
            }
        }
        let memory = quick.memory.map(|it| it.with_files_of(parts));
        let processes = match wanted.processes {
            true => {
                let found = dir(&cx.trees, "memory", &self.known.cgroup);
                let found = found.and_then(|it| it.as_ref().map(count_processes).transpose());
                cx.faults.opened(found)
            }
            false => None,
        };
        Some(PodFigures {
            at: Some(at),
            memory,
            memory_working_set: memory.map(|it| it.working_set()),
            processes,
            tasks: quick.tasks,
            stall: quick.stall,
            containers,
            ..PodFigures::default()
        })
    }

    /// One cgroup more for the sweep. False: there was nothing left to read.
    pub(super) fn step(
        &mut self,
        cx: &mut Context,
        at: Duration,
        sweep: u64,
        root: &Root,
        host: &HostFacts,
    ) -> bool {
        if self.sweep != sweep {
            self.begin(sweep);
            let sandbox = self.known.sandbox.as_ref().and_then(|it| it.pid);
            self.sandbox.renew(sandbox, &mut cx.held, root, host);
            self.network = self.sandbox.network();
            if cx.held.is_too_many_for_a_sweep() {
                self.sandbox.close(&mut cx.held);
            }
        }
        if self.whole.is_some() {
            return false;
        }
        let mut left = self.containers.iter_mut().zip(&self.known.containers);
        if let Some((container, known)) = left.nth(self.next) {
            self.next += 1;
            self.found.extend(container.read(known, cx, at, root, host));
            if self.network.is_none() {
                self.network = container.process.network();
            }
            if cx.held.is_too_many_for_a_sweep() {
                container.process.close(&mut cx.held);
            }
            return true;
        }
        let counts = self.found.iter().map(|it| it.stats.n_processes);
        let below = match counts.sum::<Option<u64>>() {
            Some(n_processes) => Below::Known {
                n_cgroups: u64::try_from(self.found.len()).unwrap_or(u64::MAX),
                n_processes,
            },
            None => Below::Unknown,
        };
        let stats = self.cgroup.full(cx, at, below);
        if self.network.is_none() {
            self.network = self.other_network(cx, root, host);
        }
        self.whole = Some(PodStats {
            pod: Arc::clone(&self.known.pod),
            qos: self.known.qos,
            id: self.cgroup.id(),
            started_at: self.known.started_at,
            stats,
            network: self.network.take().unwrap_or_default(),
            ephemeral_storage: None,
            volumes: BTreeMap::new(),
            volume_file_systems: BTreeMap::new(),
            containers: std::mem::take(&mut self.found),
        });
        true
    }

    /// A runtime that runs its pods in machines has their processes in the cgroup of the pod, beside those of the
    /// containers, and some of them in the network of the host.
    fn other_network(
        &mut self,
        cx: &mut Context,
        root: &Root,
        host: &HostFacts,
    ) -> Option<Vec<InterfaceStats>> {
        let sandbox = self.known.sandbox.as_ref().and_then(|it| it.pid);
        let mut containers = self.known.containers.iter();
        let is_known = sandbox.is_some() || containers.any(|it| it.pid.is_some());
        let pids = match is_known {
            true => Vec::new(),
            false => self.cgroup.processes(cx).unwrap_or_default(),
        };
        let network = self.other.search(&pids, &mut cx.held, root, host);
        if cx.held.is_too_many_for_a_sweep() {
            self.other.close(&mut cx.held);
        }
        network
    }

    /// What the sweep has found; disk use is not in it.
    pub(super) fn take(&mut self) -> Option<PodStats> {
        self.whole.take()
    }
}

impl ContainerReader {
    fn new(known: &KnownContainer) -> Self {
        Self {
            cgroup: CgroupReader::at(known.cgroup.clone()),
            process: HeldProcess::default(),
            descriptors: None,
        }
    }

    fn close(&mut self, cx: &mut Context) {
        self.cgroup.close(cx);
        self.process.close(&mut cx.held);
    }

    /// `None`: it has no cgroup.
    fn read(
        &mut self,
        known: &KnownContainer,
        cx: &mut Context,
        at: Duration,
        root: &Root,
        host: &HostFacts,
    ) -> Option<ContainerStats> {
        let stats = self.cgroup.full(cx, at, Below::Unknown)?;
        let process = self.process.renew(known.pid, &mut cx.held, root, host);
        let limits = process.map_or_else(ProcessLimits::default, |it| it.limits(at));
        if !self.cgroup.was_idle() {
            let pids = self.cgroup.processes(cx);
            self.descriptors = pids.and_then(|it| process::descriptors(root, &it, host));
        }
        Some(ContainerStats {
            name: known.name.clone(),
            id: self.cgroup.id(),
            runtime_id: known.runtime_id.clone(),
            image: known.image.clone(),
            started_at: known.started_at,
            ended_at: None,
            restarts: known.restarts,
            oom_events: known.oom_events,
            stats,
            root_fs: DiskUse::default(),
            logs: DiskUse::default(),
            descriptors: self.descriptors,
            limits,
        })
    }
}
