//! A node full of pods that do nothing: bringing it up, adopting it, looking at it again and again,
//! and leaving it alone.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ballast_tests::cgroup;

use super::fleet::{Fleet, n_running};
use super::table::{Row, Samples, Table, Verdict, mebibytes, show};
use super::{Name, machine, say};

const N_PODS: usize = 250;
const N_IDLE: usize = 110;
/// Containers of a pod.
const N_CONTAINERS: usize = 2;

const N_RESTARTS: usize = 7;
const MINUTE: Duration = Duration::from_secs(60);
const SCRAPE_EVERY: Duration = Duration::from_secs(10);

const START_BUDGET: Duration = Duration::from_millis(300);
const RESIDENT_BUDGET: u64 = 30 << 20;
const IDLE_BUDGET_PERCENT: f64 = 0.5;

pub(crate) fn measure(names: &[Name], table: &mut Table) -> Result<()> {
    let wanted = |name| names.contains(&name);
    let needs_all = wanted(Name::Start) || wanted(Name::Reconcile);
    let n_pods = if needs_all { N_PODS } else { N_IDLE };
    let mut fleet = Fleet::new("pods")?;
    let took = bring_up(&mut fleet, n_pods)?;
    if wanted(Name::Start) {
        let figure = match cgroup::is_unified() {
            true => format!("from nothing to {n_pods} pods running"),
            false => format!(
                "from nothing to {n_pods} pods running ({} hierarchies to join each)",
                cgroup::mounts().len()
            ),
        };
        let n = n_pods * N_CONTAINERS;
        table.push(Row::value(&figure, n, show(took), "", Verdict::NoBudget));
        table.push(adoption(&mut fleet, n_pods)?);
    }
    if wanted(Name::Reconcile) {
        table.extend(reconcile(&fleet, n_pods)?);
    }
    if wanted(Name::Idle) {
        if n_pods > N_IDLE {
            shrink(&fleet, n_pods)?;
            // The memory of a fresh agent is that of its present pods.
            fleet.agent.stop()?;
            fleet.start()?;
        }
        table.extend(idle(&fleet)?);
    }
    say("pods: removing them");
    for n in 0..n_pods {
        // Some are gone by now.
        fleet.agent.remove_pod(&pod_name(n)).ok();
    }
    Ok(())
}

fn pod_name(n: usize) -> String {
    format!("idle{n:03}")
}

fn bring_up(fleet: &mut Fleet, n_pods: usize) -> Result<Duration> {
    let n_all = n_pods * N_CONTAINERS;
    say(&format!("pods: starting {n_pods} pods, {n_all} containers"));
    for n in 0..n_pods {
        fleet.put_idle(&pod_name(n), N_CONTAINERS)?;
    }
    let started = Instant::now();
    fleet.start()?;
    fleet.wait("all running", |status| n_running(status) == n_all)?;
    Ok(started.elapsed())
}

fn adoption(fleet: &mut Fleet, n_pods: usize) -> Result<Row> {
    say(&format!("pods: {N_RESTARTS} restarts of the agent"));
    let mut times = Vec::new();
    for _ in 0..N_RESTARTS {
        fleet.agent.stop()?;
        times.push(fleet.start()?);
        let status = fleet.agent.status()?;
        let n = n_running(&status);
        ensure!(
            n == n_pods * N_CONTAINERS,
            "only {n} containers were adopted"
        );
    }
    Ok(Row::durations(
        &format!("start to ready, {n_pods} pods running"),
        &Samples::new(times),
        Some(START_BUDGET),
    ))
}

fn reconcile(fleet: &Fleet, n_pods: usize) -> Result<Vec<Row>> {
    quiet(fleet)?;
    say("pods: a minute of passes over an unchanged node");
    let pid = fleet.pid()?;
    let first = fleet.agent.status()?;
    let mut n_passes = first.agent.passes;
    let mut times = Vec::new();
    let cpu_before = machine::cpu_time(pid)?;
    let started = Instant::now();
    let mut last = first.clone();
    while started.elapsed() < MINUTE {
        thread::sleep(Duration::from_millis(500));
        last = fleet.agent.status()?;
        let now = last.agent.passes;
        if now != n_passes {
            n_passes = now;
            times.push(last.agent.last_pass_us);
        }
    }
    let cpu = machine::cpu_time(pid)?.saturating_sub(cpu_before);
    let n_writes = last.agent.writes - first.agent.writes;
    let n_containers = n_pods * N_CONTAINERS;
    let what = format!("{n_pods} pods, {n_containers} containers");
    let n = times.len();
    let resident = machine::resident(pid)?;
    Ok(vec![
        Row::durations(
            &format!("reconcile pass, {what}, unchanged"),
            &Samples::from_micros(times),
            None,
        ),
        Row::value(
            "the same: writes in all of them",
            n,
            n_writes,
            "0",
            Verdict::of(n_writes == 0),
        ),
        Row::value(
            "the same: agent CPU, questions twice a second included",
            n,
            percent_of(cpu, MINUTE),
            "",
            Verdict::NoBudget,
        ),
        Row::value(
            &format!("resident memory, {what}"),
            1,
            mebibytes(resident),
            "30 MiB",
            Verdict::of(resident <= RESIDENT_BUDGET),
        ),
    ])
}

fn idle(fleet: &Fleet) -> Result<Vec<Row>> {
    quiet(fleet)?;
    say("pods: a minute with 110 idle pods, a scrape every 10 s");
    let pid = fleet.pid()?;
    let cpu_before = machine::cpu_time(pid)?;
    let started = Instant::now();
    let mut n_scrapes = 0;
    let mut resident = 0;
    while started.elapsed() < MINUTE {
        fleet.scrape()?;
        n_scrapes += 1;
        resident = resident.max(machine::resident(pid)?);
        thread::sleep(SCRAPE_EVERY);
    }
    let took = started.elapsed();
    let cpu = machine::cpu_time(pid)?.saturating_sub(cpu_before);
    let percent = 100.0 * cpu.as_secs_f64() / took.as_secs_f64();
    let what = format!("{N_IDLE} idle pods, {} containers", N_IDLE * N_CONTAINERS);
    Ok(vec![
        Row::value(
            &format!("CPU over a minute, {what}"),
            n_scrapes,
            percent_of(cpu, took),
            "0.5 % of a core",
            Verdict::of(percent <= IDLE_BUDGET_PERCENT),
        ),
        Row::value(
            &format!("resident memory, {what}"),
            n_scrapes,
            mebibytes(resident),
            "30 MiB",
            Verdict::of(resident <= RESIDENT_BUDGET),
        ),
    ])
}

fn percent_of(cpu: Duration, took: Duration) -> String {
    let percent = 100.0 * cpu.as_secs_f64() / took.as_secs_f64();
    format!("{} ms, {percent:.2} % of a core", cpu.as_millis())
}

/// Waits until two seconds go by without a pass, or with the regular one alone.
fn quiet(fleet: &Fleet) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut before = fleet.agent.status()?.agent.passes;
    while Instant::now() < deadline {
        thread::sleep(Duration::from_secs(2));
        let now = fleet.agent.status()?.agent.passes;
        if now <= before + 1 {
            break;
        }
        before = now;
    }
    Ok(())
}

fn shrink(fleet: &Fleet, n_pods: usize) -> Result<()> {
    say(&format!("pods: from {n_pods} to {N_IDLE}"));
    for n in N_IDLE..n_pods {
        fleet.agent.remove_pod(&pod_name(n))?;
    }
    fleet.wait("110 pods left", |status| status.pods.len() == N_IDLE)?;
    Ok(())
}
