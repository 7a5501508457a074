//! Memory that runs out: how soon the pod that takes it is gone and how much it took meanwhile, beside
//! kubelet's rule; what watching costs while nothing happens; and the ranking of a full node.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ballast::config::Compat;
use ballast::decide::eviction::FsLayout;
use ballast::decide::eviction::rank::rank;
use ballast::model::container::PodPhase;
use ballast::model::eviction::{PodFacts, PodFigures, PodReading, Signal};
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::quantity::{Format, Quantity};
use ballast::model::record::PodRef;
use ballast::model::status::EntryState;
use ballast_tests::agent::Agent;
use ballast_tests::sampler::Sampler;

use super::fleet::{Fleet, n_running};
use super::say;
use super::table::{Row, Samples, Table, Verdict};

const BUDGET: Duration = Duration::from_millis(50);

/// Memory of all pods and what of it has to be available, MiB.
const ROOM: u64 = 600;
const THRESHOLD: u64 = 300;
/// MB (10^6 bytes) a second, and how often each.
const LEAKS: [(u64, usize); 3] = [(50, 8), (400, 20), (2000, 30)];
/// After this long without growth the watcher looks as seldom as on a quiet node.
const COLD: Duration = Duration::from_millis(2_500);

/// Kubelet's rule: a pass every 10 s; a pod has a second to end under a hard threshold.
const KUBELET_PERIOD: Duration = Duration::from_secs(10);
const KUBELET_GRACE: Duration = Duration::from_secs(1);

const N_BARE: usize = 10;

const N_IDLE: usize = 110;
const N_CONTAINERS: usize = 2;
const IDLE_TIME: Duration = Duration::from_secs(30);

const N_RANKED: u32 = 250;
const N_RANKINGS: usize = 500;

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    table.push(ranking());
    leaks(table)?;
    table.extend(idle()?);
    Ok(())
}

fn leaks(table: &mut Table) -> Result<()> {
    let figure = format!(
        "SIGKILL to the end of a process of {} MiB, without an agent",
        ROOM - THRESHOLD
    );
    table.push(Row::durations(&figure, &bare_kills()?, None));
    let mut fleet = Fleet::with(|agent| agent.with_memory(ROOM, THRESHOLD), "evict")?;
    fleet.start()?;
    for (rate, n_runs) in LEAKS {
        say(&format!("eviction: {n_runs} leaks of {rate} MB/s"));
        let mut runs = Vec::new();
        for n in 0..n_runs {
            runs.push(leak(&fleet, &format!("leak-{rate}-{n}"), rate)?);
            thread::sleep(COLD);
        }
        let samples = Samples::new(runs.iter().map(|it| it.reaction).collect());
        let figure = format!("leak of {rate} MB/s, crossing to the end of the process");
        table.push(Row::durations(&figure, &samples, Some(BUDGET)));
        let samples = Samples::new(runs.iter().map(|it| it.half_back).collect());
        let figure = "the same: to half of its memory free again";
        table.push(Row::durations(figure, &samples, None));
        let overshoot = runs.iter().map(|it| it.overshoot).collect();
        table.push(Row::amounts(
            "the same: used beyond the threshold",
            overshoot,
        ));
        let reactions = kubelet_reactions();
        let overshoot = reactions
            .iter()
            .map(|it| rate * u64::try_from(it.as_micros()).unwrap_or(u64::MAX))
            .collect();
        let figure = "computed, kubelet: a pass every 10 s, then 1 s";
        table.push(Row::durations(figure, &Samples::new(reactions), None));
        let figure = "computed, kubelet: used beyond, had it been there";
        table.push(Row::amounts(figure, overshoot));
    }
    let kills = fleet.agent.events("oom")?;
    let n_kills = kills.iter().filter(|it| it.event.pod.is_some()).count();
    table.push(Row::value(
        "kills by the kernel in all of these leaks",
        LEAKS.iter().map(|(_, n)| n).sum(),
        n_kills,
        "0",
        Verdict::of(n_kills == 0),
    ));
    Ok(())
}

/// What no agent can be faster than: the kernel takes a process apart.
fn bare_kills() -> Result<Samples> {
    say("eviction: what a kill takes by itself");
    let bytes = ((ROOM - THRESHOLD) << 20).to_string();
    let mut times = Vec::new();
    for _ in 0..N_BARE {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["load", "hold", &bytes])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = child.stdout.take().context("a pipe")?;
        BufReader::new(output).read_line(&mut line)?;
        let killed = Instant::now();
        child.kill()?;
        child.wait()?;
        times.push(killed.elapsed());
    }
    Ok(Samples::new(times))
}

struct Leak {
    reaction: Duration,
    half_back: Duration,
    /// Bytes beyond the threshold at most, as seen every millisecond.
    overshoot: u64,
}

fn leak(fleet: &Fleet, name: &str, rate: u64) -> Result<Leak> {
    let gate = fleet.agent.dir.join(format!("gate-{name}"));
    put_leak(&fleet.agent, name, rate, &gate)?;
    fleet.wait_output(name, "ready")?;
    let status = fleet.wait("running", |status| n_running(status) == 1)?;
    let container = status.pods.iter().flat_map(|it| &it.containers).next();
    let Some(EntryState::Running { pid: Some(pid), .. }) = container.map(|it| &it.state) else {
        anyhow::bail!("the container of {name} does not run");
    };
    let sampler = Sampler::start(&fleet.agent.kubepods(), *pid)?;
    fs::write(&gate, "")?;
    fleet.wait("evicted", |status| {
        status.pods.iter().all(|it| it.phase == PodPhase::Failed)
    })?;
    let seen = sampler.finish()?;
    fleet.agent.remove_pod(name)?;
    fleet.wait("removed", |status| status.pods.is_empty())?;
    let line = (ROOM - THRESHOLD) << 20;
    let most = seen.most();
    // Where it was over before anybody else saw it cross, it crossed at the most that was seen.
    let crossed = seen.crossed(line).or_else(|| seen.crossed(most - 1));
    let (crossed, ended) = crossed.zip(seen.ended_at).context("it did not end")?;
    let half_back = seen
        .fell(line / 2)
        .context("its memory did not come back")?;
    Ok(Leak {
        half_back: half_back.saturating_sub(crossed),
        reaction: ended.saturating_sub(crossed),
        overshoot: most.saturating_sub(line),
    })
}

/// It requests something: it is admitted although the node has been short of memory.
fn put_leak(agent: &Agent, name: &str, rate: u64, gate: &std::path::Path) -> Result<()> {
    let program = std::env::current_exe()?.display().to_string();
    let (gate, rate) = (gate.display().to_string(), (rate * 1_000_000).to_string());
    let command = serde_json::to_string(&[&program, "load", "leak", &gate, &rate])?;
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: bench}}\n\
         spec:\n  restartPolicy: Never\n  containers:\n  \
         - name: load\n    image: none\n    command: {command}\n    \
         resources: {{requests: {{memory: 1Mi}}}}\n"
    );
    agent.put_file(&format!("{name}.yaml"), &text)
}

/// Of a threshold that is crossed at any moment between two passes, all equally likely; for a pod
/// that does not end when it is asked to.
fn kubelet_reactions() -> Vec<Duration> {
    const N: u32 = 1000;
    let waits = (0..N).map(|n| KUBELET_PERIOD * (2 * n + 1) / (2 * N));
    waits.map(|it| it + KUBELET_GRACE).collect()
}

fn idle() -> Result<Vec<Row>> {
    say(&format!("eviction: {N_IDLE} idle pods"));
    let mut fleet = Fleet::new("watch")?;
    for n in 0..N_IDLE {
        fleet.put_idle(&format!("idle{n:03}"), N_CONTAINERS)?;
    }
    fleet.start()?;
    let n_all = N_IDLE * N_CONTAINERS;
    fleet.wait("all running", |status| n_running(status) == n_all)?;
    // Starts make for reclaim and new candidates.
    thread::sleep(Duration::from_secs(15));
    let pid = fleet.pid()?;
    let looks =
        || -> Result<f64> { Ok(fleet.scrape()?.sum("ballast_pressure_wakeups_total", &[])) };
    let (looks_before, cpu_before) = (looks()?, thread_time(pid, "pressure")?);
    let started = Instant::now();
    thread::sleep(IDLE_TIME);
    let cpu = thread_time(pid, "pressure")?.saturating_sub(cpu_before);
    let took = started.elapsed().as_secs_f64();
    let n_looks = looks()? - looks_before;
    let percent = 100.0 * cpu.as_secs_f64() / took;
    let what = format!("watching for pressure, {N_IDLE} idle pods");
    Ok(vec![
        Row::value(
            &format!("{what}: CPU over {took:.0} s"),
            1,
            format_args!(
                "{:.1} ms, {percent:.3} % of a core",
                cpu.as_secs_f64() * 1e3
            ),
            "",
            Verdict::NoBudget,
        ),
        Row::value(
            "the same: looks a second",
            1,
            format_args!("{:.1}", n_looks / took),
            "",
            Verdict::NoBudget,
        ),
    ])
}

/// Time on a CPU of the thread of this name.
fn thread_time(pid: u32, name: &str) -> Result<Duration> {
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = entry?.path();
        if fs::read_to_string(task.join("comm"))?.trim() == name {
            let text = fs::read_to_string(task.join("schedstat"))?;
            let ns = text.split(' ').next().context("an empty schedstat")?;
            return Ok(Duration::from_nanos(ns.parse()?));
        }
    }
    anyhow::bail!("process {pid} has no thread {name:?}")
}

fn ranking() -> Row {
    let pods: Vec<PodReading> = (0..N_RANKED).map(pod).collect();
    let times = (0..N_RANKINGS).map(|_| {
        let started = Instant::now();
        let ranked = rank(
            Signal::MemoryAvailable,
            FsLayout::One,
            Compat::Ballast,
            &pods,
        );
        std::hint::black_box(ranked);
        started.elapsed()
    });
    let figure = format!("ranking of {N_RANKED} pods for memory");
    Row::durations(&figure, &Samples::new(times.collect()), None)
}

/// Priorities and amounts that differ from pod to pod, in no order.
fn pod(n: u32) -> PodReading {
    let mixed = n.wrapping_mul(2_654_435_761);
    let bytes = |n: u32| Quantity::from_units(i64::from(n >> 4), Format::BinarySi);
    let facts = PodFacts {
        pod: PodRef {
            namespace: "bench".to_owned(),
            name: format!("pod-{n}"),
            uid: PodUid(format!("uid-{n}")),
        },
        qos: QosClass::Burstable,
        priority: (mixed % 4).cast_signed() * 100,
        is_critical: n.is_multiple_of(50),
        termination_grace: Duration::from_secs(30),
        memory_request: bytes(mixed),
        storage_request: bytes(0),
        pod_level_memory_request: None,
        storage_limit: None,
        containers: Vec::new(),
        volumes: Vec::new(),
    };
    let figures = PodFigures {
        memory_working_set: Some(u64::from(mixed.rotate_left(9) >> 4)),
        ..PodFigures::default()
    };
    PodReading {
        facts: Arc::new(facts),
        figures: Some(figures),
        ends_within: None,
    }
}
