//! Placement: the recorded decisions of kubelet, and admissions on machines of up to 512 CPUs and 64
//! NUMA nodes. Needs no root and no agent: decisions are functions.
//!
//! A machine is filled with random pods, of which every other is taken away again, so that what is
//! free is in pieces. Each sample is one pod on a state of its own.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::config::{Compat, TopologyManagerPolicy};
use ballast::decide::placement::cpu::{CpuOrder, CpuTopology, Spreading, TakeRule, take};
use ballast::decide::placement::hints::ProviderHints;
use ballast::decide::placement::managers::Managers;
use ballast::model::cpuset::{CpuId, CpuSet};
use ballast::model::device::{Device, PluginOptions};
use ballast::model::numa::NumaMask;
use ballast::model::pod::{Pod, PodUid};
use ballast::units::Bytes;
use ballast_tests::placement::{Shape, admit_answered, pod};

use super::say;
use super::table::{Row, Samples, Table, Verdict};

/// The program of the conformance lane, built as the agent is.
const CONFORMANCE: &str = "BALLAST_CONFORMANCE";

const CPU_BUDGET: Duration = Duration::from_millis(1);

/// Different states of a machine, and pods that are tried on each.
const N_STATES: u32 = 25;
const N_PODS: u32 = 20;

const RESOURCES: [&str; 2] = ["example.org/gpu", "example.org/nic"];
const DEVICES_PER_NUMA_NODE: u32 = 4;

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    recorded(table)?;
    takes(table)?;
    for n_numa_nodes in [2, 8, 16, 32, 64] {
        let machine = Machine::new(n_numa_nodes);
        for (policy, prefers_close) in [
            (TopologyManagerPolicy::BestEffort, false),
            (TopologyManagerPolicy::Restricted, false),
            (TopologyManagerPolicy::Restricted, true),
            (TopologyManagerPolicy::SingleNumaNode, false),
        ] {
            machine.admissions(policy, prefers_close, table)?;
        }
    }
    Ok(())
}

/// The budget of an admission on so many NUMA nodes.
fn admission_budget(n_numa_nodes: u32) -> Duration {
    Duration::from_millis(if n_numa_nodes <= 16 { 1 } else { 10 })
}

/// Every decision of the recorded cases, once each, without the reading of the case.
fn recorded(table: &mut Table) -> Result<()> {
    let Some(program) = std::env::var_os(CONFORMANCE) else {
        table.push(Row::not_measured(
            "recorded cases",
            format_args!("{CONFORMANCE} does not name the program"),
        ));
        return Ok(());
    };
    say("the recorded cases of kubelet");
    let output = Command::new(&program)
        .arg("--times")
        .output()
        .with_context(|| format!("start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{}: {}: {text}",
        program.display(),
        output.status
    );
    for line in text.lines() {
        let Some((suite, times)) = line
            .strip_prefix("times ")
            .and_then(|it| it.split_once(' '))
        else {
            continue;
        };
        let times = times
            .split(' ')
            .map(|it| Ok(Duration::from_nanos(it.parse()?)));
        let times = Samples::new(times.collect::<Result<_>>()?);
        let budget = match suite {
            "topology_merge" => Some(admission_budget(8)),
            _ => suite.starts_with("cpu").then_some(CPU_BUDGET),
        };
        table.push(Row::durations(&format!("recorded {suite}"), &times, budget));
    }
    Ok(())
}

/// The allocators alone, on what a fragmented machine has left.
fn takes(table: &mut Table) -> Result<()> {
    say("CPU choice");
    let packed = |align_by_llc| Spreading::Packed { align_by_llc };
    let across = |group_size| Spreading::AcrossNumaNodes { group_size };
    for n_numa_nodes in [8, 64] {
        let shape = shape(n_numa_nodes);
        let topology = CpuTopology::from_topology(&shape.topology()?, Compat::Ballast)?;
        for (what, spreading) in [
            ("packed", packed(false)),
            ("packed by cache", packed(true)),
            ("across NUMA nodes", across(1)),
            ("cores across NUMA nodes", across(2)),
        ] {
            let rule = TakeRule {
                spreading,
                order: CpuOrder::Packed,
                compat: Compat::Ballast,
            };
            let mut random = Random(1);
            let mut times = Vec::new();
            for _ in 0..N_STATES * N_PODS {
                let n_free = 1 + random.below(n_cpus(&shape));
                let pool: CpuSet = (0..n_free)
                    .map(|_| CpuId(random.below(n_cpus(&shape))))
                    .collect();
                // Any number that a container can ask for; kept to whole groups, which distribute.
                let n = 1 + random.below(u32::try_from(pool.len())?);
                let n = usize::try_from(n)?.next_multiple_of(2).min(pool.len());
                let started = Instant::now();
                let taken = take(&topology, &pool, n, rule);
                times.push(started.elapsed());
                ensure!(taken?.len() == n, "{n} CPUs of {pool}");
            }
            let figure = format!(
                "CPU choice, {} CPUs, {n_numa_nodes} NUMA nodes, {what}",
                n_cpus(&shape)
            );
            table.push(Row::durations(
                &figure,
                &Samples::new(times),
                Some(CPU_BUDGET),
            ));
        }
    }
    Ok(())
}

/// 512 CPUs, two threads a core, on so many NUMA nodes: a power of two from 2 to 64.
fn shape(n_numa_nodes: u32) -> Shape {
    let cores_per_numa_node = 256 / n_numa_nodes;
    Shape {
        n_packages: (n_numa_nodes / 4).max(1),
        n_numa_nodes,
        cores_per_numa_node,
        threads_per_core: 2,
        cores_per_llc: cores_per_numa_node.min(8),
        memory: Bytes(64 << 30),
        n_hugepages: 512,
    }
}

fn n_cpus(shape: &Shape) -> u32 {
    shape.n_numa_nodes * shape.cores_per_numa_node * shape.threads_per_core
}

struct Machine {
    shape: Shape,
}

/// What was measured with one policy.
#[derive(Default)]
struct Times {
    admissions: Vec<Duration>,
    merges: Vec<Duration>,
    n_refused: usize,
    n_cut: usize,
}

impl Machine {
    fn new(n_numa_nodes: u32) -> Self {
        Self {
            shape: shape(n_numa_nodes),
        }
    }

    fn admissions(
        &self,
        policy: TopologyManagerPolicy,
        prefers_close: bool,
        table: &mut Table,
    ) -> Result<()> {
        let n = self.shape.n_numa_nodes;
        let close = if prefers_close { ", closest" } else { "" };
        let what = format!("{n} NUMA nodes, {policy:?}{close}");
        say(&format!("admissions, {what}"));
        let mut times = Times::default();
        let mut random = Random(u64::from(n));
        for _ in 0..N_STATES {
            let managers = self.fragmented(policy, prefers_close, &mut random)?;
            for i in 0..N_PODS {
                let pod = self.pod(&format!("new-{i}"), &mut random)?;
                self.sample(&managers, &pod, &mut times)?;
            }
        }
        let budget = Some(admission_budget(n));
        let n_samples = times.admissions.len();
        let admissions = Samples::new(times.admissions);
        table.push(Row::durations(
            &format!("admission, {what}"),
            &admissions,
            budget,
        ));
        let merges = Samples::new(times.merges);
        table.push(Row::durations(&format!("merge, {what}"), &merges, budget));
        if times.n_cut > 0 {
            let figure = format!("merges that ended at their bound, {what}");
            let value = format!("{} of {n_samples}", times.n_cut);
            table.push(Row::value(&figure, n_samples, value, "", Verdict::NoBudget));
        }
        say(&format!("{} of {n_samples} refused", times.n_refused));
        Ok(())
    }

    /// One whole admission, the questions to the two plugins among it; then its merge alone.
    fn sample(&self, managers: &Managers, pod: &Pod, times: &mut Times) -> Result<()> {
        let started = Instant::now();
        let decided = admit_answered(managers, pod)?;
        times.admissions.push(started.elapsed());
        times.n_refused += usize::from(decided.report.refusal.is_some());
        times.n_cut += usize::from(decided.report.alignments.iter().any(|it| it.is_cut));

        let container = pod.containers.first().context("a container")?;
        let cpu = managers
            .cpu
            .as_ref()
            .and_then(|it| it.hints(pod, container));
        let cpu: ProviderHints = cpu.map(|it| ("cpu".to_owned(), it)).into_iter().collect();
        let memory = managers.memory.as_ref();
        let memory = memory
            .and_then(|it| it.hints(pod, container))
            .unwrap_or_default();
        let hints = [managers.devices.hints(pod, container), cpu, memory];
        ensure!(
            hints.iter().map(BTreeMap::len).sum::<usize>() == 4,
            "there are not four providers"
        );
        let started = Instant::now();
        let merge = managers.topology.merge(&hints);
        times.merges.push(started.elapsed());
        ensure!(
            merge.admit || decided.report.refusal.is_some(),
            "the merge alone is another"
        );
        Ok(())
    }

    fn fragmented(
        &self,
        policy: TopologyManagerPolicy,
        prefers_close: bool,
        random: &mut Random,
    ) -> Result<Managers> {
        // Filled without regard to NUMA nodes, so that every state can come about.
        let mut managers = self.managers(TopologyManagerPolicy::None, false)?;
        let mut uids: Vec<PodUid> = Vec::new();
        // As many as fill it about twice, could all of them be taken.
        for i in 0..128 {
            let pod = self.pod(&format!("old-{i}"), random)?;
            let decided = admit_answered(&managers, &pod)?;
            if decided.report.refusal.is_none() {
                uids.push(pod.uid.clone());
                managers = decided.managers;
            }
        }
        let is_gone = |uid: &PodUid| {
            uids.iter()
                .position(|it| it == uid)
                .is_some_and(|i| i % 2 == 0)
        };
        managers.retain(|uid, _| !is_gone(uid));
        let mut wanted = self.managers(policy, prefers_close)?;
        let faults = wanted.adopt(managers.books());
        ensure!(faults.is_empty(), "{faults:?}");
        Ok(wanted)
    }

    fn managers(&self, policy: TopologyManagerPolicy, prefers_close: bool) -> Result<Managers> {
        let mut settings = self.shape.settings(Compat::Ballast, policy)?;
        if prefers_close {
            let options = &mut settings.config.topology_manager_policy_options;
            options.insert("prefer-closest-numa-nodes".to_owned(), "true".to_owned());
        }
        let mut managers = Managers::new(&settings)?;
        for resource in RESOURCES {
            managers
                .devices
                .connected(resource, 1, PluginOptions::default());
            let devices = (0..self.shape.n_numa_nodes * DEVICES_PER_NUMA_NODE).map(|i| Device {
                id: format!("{i:04}"),
                is_healthy: true,
                numa: Some(NumaMask::from_bits(1 << (i / DEVICES_PER_NUMA_NODE))),
            });
            managers.devices.set_devices(resource, 1, devices.collect());
        }
        Ok(managers)
    }

    /// A pod for one NUMA node most of the time, for several now and then: its CPUs, memory and
    /// devices need different numbers of nodes.
    fn pod(&self, uid: &str, random: &mut Random) -> Result<Pod> {
        let per_node = self.shape.cores_per_numa_node * self.shape.threads_per_core;
        let mut nodes = || match random.below(4) {
            0 => 1 + random.below(self.shape.n_numa_nodes.div_ceil(4)),
            _ => 1,
        };
        let (of_cpus, of_memory) = (nodes(), nodes());
        let of_devices = [nodes(), nodes()];
        let cpus = 1 + random.below(per_node * of_cpus);
        let gib = 1 + random.below(60 * of_memory);
        let mut amounts = vec![("cpu", cpus.to_string()), ("memory", format!("{gib}Gi"))];
        for (resource, of_devices) in RESOURCES.into_iter().zip(of_devices) {
            let n = 1 + random.below(DEVICES_PER_NUMA_NODE * of_devices);
            amounts.push((resource, n.to_string()));
        }
        pod(uid, &amounts)
    }
}

/// Numbers that look random and are the same in every run.
struct Random(u64);

impl Random {
    /// 0 to `n - 1`; `n` is above 0.
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap_or(0) % n
    }
}
