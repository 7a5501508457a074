//! How soon an agent that observes knows a node's cgroups and shows what happened before it came, and what it takes where
//! there are many.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::Agent;
use ballast_tests::cri::{FakeRuntime, Manner, socket_in};
use ballast_tests::kube::{Driver, KubeTree, Naming};
use ballast_tests::scrape;
use ballast_tests::wait::until;

use super::fleet::Fleet;
use super::table::{Row, Samples, Table, Verdict, mebibytes};
use super::{machine, say};

/// Of two containers each: with their pods and those above them 10 002 cgroups.
const N_PODS: usize = 3_333;
const N_STARTS: usize = 9;
const START_BUDGET: Duration = Duration::from_secs(1);
/// Ten sweeps are due in it: agents of tests and benchmarks sweep every second, five times as often as by
/// default.
const REST: Duration = Duration::from_secs(10);

/// What the container of the one pod may use, MiB.
const LIMIT: u64 = 24;

/// From each start until the status has all of a pod: the kill of a process that ended while no agent ran, what it uses,
/// and how the node stands.
pub(crate) fn first_figures(table: &mut Table) -> Result<()> {
    let tree = KubeTree::new("benchfigures", Driver::Cgroupfs)?;
    say("observe: a pod with a kill before each start");
    let pod = tree.pod("00000000-0000-4000-8000-000000000000")?;
    let container = pod.container(Naming::Containerd, 0)?;
    container.limit(LIMIT)?;
    let _program = container.run("exec sleep 3600")?;
    for (manner, who) in [
        (None, "nobody is asked for names"),
        (
            Some(Manner::ListsSlowly),
            "the runtime takes 3 s for a list",
        ),
    ] {
        let mut agent = Agent::observing("bench-figures", &tree)?;
        let runtime = manner.map(|it| FakeRuntime::start(socket_in(&agent.dir), it));
        let runtime = runtime.transpose()?;
        agent.runtime = runtime.as_ref().map(|it| it.socket.clone());
        // Of what the programs that it has pinned see from now on, the next one tells.
        agent.start()?;
        agent.wait("the pod is known", |it| it.pods.len() == 1)?;
        agent.stop()?;
        let mut starts = Vec::new();
        for n_kills in (1..).take(N_STARTS) {
            container.run("exec tail /dev/zero")?.wait()?;
            let began = Instant::now();
            agent.spawn()?;
            let shown = until("kills, use and pressure are shown", || {
                let status = agent.status()?;
                let pod = status.pods.first().context("no pod")?;
                let (kills, used) = (pod.oom_kills, pod.usage.memory_bytes);
                let has_pressure = status.node.pressure.is_some();
                ensure!(
                    kills >= n_kills && used.is_some() && has_pressure,
                    "{kills} kills of {n_kills}, {used:?} in use, pressure: {has_pressure}"
                );
                Ok(())
            });
            starts.push(began.elapsed());
            shown.with_context(|| format!("log:\n{}", agent.log_tail()))?;
            agent.stop()?;
        }
        table.push(Row::durations(
            &format!("start to a status with the kills, use and pressure of a pod, {who}"),
            &Samples::new(starts),
            Some(START_BUDGET),
        ));
    }
    Ok(())
}

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let tree = KubeTree::new("benchobserve", Driver::Cgroupfs)?;
    say(&format!("observe: {N_PODS} pods of two containers"));
    let mut n_containers = 0;
    for n in 0..N_PODS {
        let pod = tree.pod(&format!("{n:08x}-0000-4000-8000-000000000000"))?;
        for _ in 0..2 {
            pod.container(Naming::Containerd, n_containers)?;
            n_containers += 1;
        }
    }
    let mut agent = Agent::observing("bench-observe", &tree)?;
    agent.metrics = scrape::free_address()?;
    let mut fleet = Fleet { agent };
    let mut starts = Vec::new();
    let mut resident = 0;
    let mut share = 0.0;
    for n in 0..N_STARTS {
        let began = Instant::now();
        fleet.agent.spawn()?;
        until("all pods are known", || {
            let n = fleet.agent.status()?.pods.len();
            ensure!(n == N_PODS, "{n}; log:\n{}", fleet.agent.log_tail());
            Ok(())
        })?;
        starts.push(began.elapsed());
        if n + 1 == N_STARTS {
            let before = machine::cpu_time(fleet.pid()?)?;
            thread::sleep(REST);
            let used = machine::cpu_time(fleet.pid()?)?.saturating_sub(before);
            share = 100.0 * used.as_secs_f64() / REST.as_secs_f64();
            resident = machine::resident(fleet.pid()?)?;
        }
        fleet.agent.stop()?;
    }
    let cgroups = "10 002 cgroups without a process";
    table.push(Row::durations(
        &format!("start to a status with all pods, {cgroups}"),
        &Samples::new(starts),
        Some(START_BUDGET),
    ));
    table.push(Row::value(
        &format!("CPU of one core at a sweep a second, {cgroups}"),
        1,
        format_args!("{share:.0} %"),
        "",
        Verdict::NoBudget,
    ));
    table.push(Row::value(
        &format!("resident memory, {cgroups}"),
        1,
        mebibytes(resident),
        "",
        Verdict::NoBudget,
    ));
    Ok(())
}
