//! What a node pays for being watched: memory, and time of the processes that begin and end in its pods;
//! and how soon the end of a container is known all the same, of one alone and of many at once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ballast::model::status::EntryState;
use ballast::sources::bpf::Streams;
use ballast_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::fleet::{Fleet, n_running};
use super::machine::Setting;
use super::process::Follower;
use super::table::{Row, Samples, Table, Verdict, mebibytes, show};
use super::{ebpf, machine, say};

const N_PODS: usize = 60;
/// Containers that end as children of the agent, and as many after it has adopted them: enough for a p99.
const N_ENDS: usize = 120;
/// The same of containers that end at one instant.
const N_BURST: usize = 200;
/// Between two that do not.
const APART: Duration = Duration::from_millis(50);
const RESIDENT_BUDGET: u64 = 24 << 20;
const END_BUDGET: Duration = Duration::from_millis(20);
const SPAWN_BUDGET_PERCENT: f64 = 1.5;

/// Of each way to be watched, in turn.
const N_ROUNDS: usize = 9;
/// In each of them half seconds inside and outside, one after the other.
const N_PAIRS: usize = 4;

/// The pod that begins and ends processes.
const BUSY: &str = "busy";

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let mut fleet = Fleet::new("quiet")?;
    say(&format!("quiet: {N_PODS} pods"));
    for n in 0..N_PODS {
        fleet.put_idle(&pod_name(n), 1)?;
    }
    fleet.start()?;
    fleet.wait("all running", |it| n_running(it) == N_PODS)?;
    table.push(resident(&fleet, "that it has started")?);
    fleet.agent.stop()?;
    fleet.start()?;
    table.push(resident(&fleet, "that it has adopted")?);
    table.extend(ends(&mut fleet)?);
    table.extend(bursts(&mut fleet)?);
    for n in 0..2 * (N_ENDS + N_BURST) {
        fleet.agent.remove_pod(&pod_name(n))?;
    }
    fleet.wait("none left", |it| it.pods.is_empty())?;
    table.extend(spawns(&mut fleet)?);
    Ok(())
}

/// The memory of an agent whose pods rest.
fn resident(fleet: &Fleet, which: &str) -> Result<Row> {
    thread::sleep(Duration::from_secs(15));
    let resident = machine::resident(fleet.pid()?)?;
    Ok(Row::value(
        &format!("resident memory, {N_PODS} idle pods {which}"),
        1,
        mebibytes(resident),
        &mebibytes(RESIDENT_BUDGET),
        Verdict::of(resident <= RESIDENT_BUDGET),
    ))
}

fn pod_name(n: usize) -> String {
    format!("idle{n:03}")
}

/// Half of the containers end as children of the agent, half after it has adopted them.
fn ends(fleet: &mut Fleet) -> Result<[Row; 4]> {
    say("quiet: ends of containers");
    // Pods that were there already are adopted ones.
    for n in N_PODS..2 * N_ENDS {
        fleet.put_idle(&pod_name(n), 1)?;
    }
    fleet.wait("all running", |it| n_running(it) == 2 * N_ENDS)?;
    let of_children = kill_all(fleet, N_ENDS..2 * N_ENDS, APART)?;
    fleet.agent.stop()?;
    fleet.start()?;
    let of_adopted = kill_all(fleet, 0..N_ENDS, APART)?;
    // Before 6.15 the status of an adopted one comes out of the ring, since then from its descriptor.
    let [known, told] = rows_of_ends("a child", of_children);
    let [known_adopted, told_adopted] = rows_of_ends("adopted", of_adopted);
    Ok([known, told, known_adopted, told_adopted])
}

/// The same of many that end at one instant.
fn bursts(fleet: &mut Fleet) -> Result<[Row; 4]> {
    say(&format!("quiet: {N_BURST} ends at once"));
    let first = 2 * N_ENDS;
    let (middle, end) = (first + N_BURST, first + 2 * N_BURST);
    for n in first..end {
        fleet.put_idle(&pod_name(n), 1)?;
    }
    fleet.wait("all running", |it| n_running(it) == 2 * N_BURST)?;
    let of_children = kill_all(fleet, first..middle, Duration::ZERO)?;
    fleet.agent.stop()?;
    fleet.start()?;
    let of_adopted = kill_all(fleet, middle..end, Duration::ZERO)?;
    let [known, told] = rows_of_ends(&format!("{N_BURST} children at once"), of_children);
    let [known_adopted, told_adopted] =
        rows_of_ends(&format!("{N_BURST} adopted at once"), of_adopted);
    Ok([known, told, known_adopted, told_adopted])
}

fn rows_of_ends(what: &str, (known, told): (Vec<Duration>, Vec<Duration>)) -> [Row; 2] {
    let row = |until, samples, budget| {
        let figure = format!("end of a container's first process, {what}, until {until}");
        Row::durations(&figure, &Samples::new(samples), budget)
    };
    [
        row("it is known", known, Some(END_BUDGET)),
        row("its cgroup is gone and it is told", told, None),
    ]
}

/// Kills the first processes of pods one by one, so far apart: how long it was from each kill until the agent knew, and
/// until its event.
fn kill_all(
    fleet: &Fleet,
    pods: Range<usize>,
    apart: Duration,
) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let status = fleet.agent.status()?;
    let pids: BTreeMap<&str, u32> = status
        .pods
        .iter()
        .filter_map(|pod| match pod.containers.first()?.state {
            EntryState::Running { pid: Some(pid), .. } => Some((pod.name.as_str(), pid)),
            _ => None,
        })
        .collect();
    let mut killed = BTreeMap::new();
    for name in pods.map(pod_name) {
        let pid = *pids.get(name.as_str()).context("the pod runs")?;
        killed.insert(name, (machine::boottime()?, SystemTime::now()));
        kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGKILL)?;
        thread::sleep(apart);
    }
    let told = until("all ends are told", || {
        let mut times = Vec::new();
        for it in fleet.agent.events("container")? {
            let pod = it.event.pod.as_ref().map(|pod| pod.name.as_str());
            let at = pod.and_then(|name| killed.get(name));
            if let Some((at, _)) = at
                && it.event.reason == "ContainerDied"
            {
                let told = Duration::from_nanos(it.event.boottime_ns);
                times.push(told.saturating_sub(*at));
            }
        }
        all_of(times, killed.len())
    })?;
    let known = until("all ends are shown", || {
        let mut times = Vec::new();
        for pod in fleet.agent.status()?.pods {
            let Some((_, at)) = killed.get(&pod.name) else {
                continue;
            };
            let state = pod.containers.first().map(|it| &it.state);
            if let Some(EntryState::Terminated {
                finished_at: Some(known),
                ..
            }) = state
            {
                let at = at.duration_since(UNIX_EPOCH)?;
                times.push(known.since_epoch().saturating_sub(at));
            }
        }
        all_of(times, killed.len())
    })?;
    Ok((known, told))
}

fn all_of(times: Vec<Duration>, n: usize) -> Result<Vec<Duration>> {
    ensure!(times.len() == n, "{} of {n}", times.len());
    Ok(times)
}

/// How processes are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Watched {
    /// No agent, no programs.
    Not,
    /// Nobody follows process events.
    Quietly,
    Followed,
}

/// What was done in one round.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    inside: f64,
    outside: f64,
    kernel_thread: Duration,
}

impl Done {
    /// What a spawn inside takes in terms of one outside.
    fn cost(self) -> f64 {
        self.outside / self.inside
    }
}

/// Of the rounds of one way.
fn median(rounds: &[Done], figure: impl Fn(Done) -> f64) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(|it| figure(*it)).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Spawns in a pod and outside of all pods in turn, with and without the agent.
fn spawns(fleet: &mut Fleet) -> Result<Vec<Row>> {
    say(&format!(
        "quiet: spawns in a pod and outside, {N_ROUNDS} rounds of each with and without an agent"
    ));
    let dir = gates(fleet);
    fs::create_dir(&dir)?;
    let mut outside = Outside::start(dir.with_file_name("outside"))?;
    let gate = dir.display().to_string();
    fleet.put_load(BUSY, &["rounds", &gate], "64Mi")?;
    fleet.wait_output(BUSY, "ready")?;
    let mut ways = [Watched::Quietly, Watched::Not, Watched::Followed];
    let mut done: BTreeMap<Watched, Vec<Done>> = BTreeMap::new();
    let mut n = 0;
    for _ in 0..N_ROUNDS {
        ways.rotate_left(1);
        for watched in ways {
            if watched == Watched::Not {
                fleet.agent.stop()?;
                Streams::unpin_all(&fleet.agent.pin_directory)?;
            } else if fleet.agent.pid().is_none() {
                fleet.start()?;
            }
            let follower = match watched {
                Watched::Followed => Some(Follower::start(fleet)?),
                _ => None,
            };
            // What a start or a stop leaves to do is over.
            thread::sleep(Duration::from_secs(1));
            let mut round = Done::default();
            let before = kernel_thread(fleet)?;
            for pair in 0..N_PAIRS {
                // What the agent has to do for the pod may fall into what comes next: as often a half in the pod as one
                // outside.
                let is_inside_first = pair % 2 == 0;
                if is_inside_first {
                    round.inside += inside(fleet, n)?;
                }
                round.outside += outside.round(n)?;
                if !is_inside_first {
                    round.inside += inside(fleet, n)?;
                }
                n += 1;
            }
            // The agent looks at the latest a second after the last.
            thread::sleep(Duration::from_millis(1_200));
            round.kernel_thread = kernel_thread(fleet)?.saturating_sub(before);
            done.entry(watched).or_default().push(round);
            if let Some(follower) = follower {
                follower.stop()?;
            }
        }
    }
    if fleet.agent.pid().is_none() {
        fleet.start()?;
    }
    let mut rows = rows(&done);
    say("quiet: the same with kernel.bpf_stats_enabled");
    let _statistics = Setting::BpfStatistics.set("1")?;
    let before = ebpf::exported(fleet)?;
    for _ in 0..N_PAIRS {
        inside(fleet, n)?;
        n += 1;
    }
    for (program, (runs, seconds)) in ebpf::exported(fleet)? {
        if !program.starts_with("process_") {
            continue;
        }
        let (runs_before, seconds_before) = before.get(&program).copied().unwrap_or_default();
        rows.push(ebpf::mean(
            &format!("eBPF {program}: mean of a run, one spawn after the other"),
            runs - runs_before,
            seconds - seconds_before,
        ));
    }
    fs::write(dir.join("end"), "")?;
    fleet.wait_output(BUSY, "done")?;
    Ok(rows)
}

fn rows(done: &BTreeMap<Watched, Vec<Done>>) -> Vec<Row> {
    let without = &done[&Watched::Not];
    let seconds = N_PAIRS as f64 / 2.0;
    let rates = |rounds| {
        let inside = median(rounds, |it| it.inside / seconds);
        let outside = median(rounds, |it| it.outside / seconds);
        format!("{inside:.0}, outside {outside:.0}")
    };
    let n = N_ROUNDS;
    let mut rows = vec![Row::value(
        "spawns a second in a pod, no agent",
        n,
        rates(without),
        "",
        Verdict::NoBudget,
    )];
    for (watched, what) in [
        (Watched::Quietly, "nobody follows"),
        (Watched::Followed, "somebody follows"),
    ] {
        let with = &done[&watched];
        rows.push(Row::value(
            &format!("spawns a second in a pod, {what}"),
            n,
            rates(with),
            "",
            Verdict::NoBudget,
        ));
        let base = median(without, Done::cost);
        let percent_of = |cost: f64| 100.0 * (cost / base - 1.0);
        let percent = percent_of(median(with, Done::cost));
        let of_rounds = with.iter().map(|it| percent_of(it.cost()));
        let least = of_rounds.clone().fold(f64::INFINITY, f64::min);
        let most = of_rounds.fold(f64::NEG_INFINITY, f64::max);
        rows.push(Row::value(
            &format!("a spawn in the pod against one outside, {what}, against no agent"),
            n,
            format_args!("{percent:+.1} % (rounds {least:+.1} to {most:+.1})"),
            "1.5 %",
            match watched {
                Watched::Quietly => Verdict::of(percent <= SPAWN_BUDGET_PERCENT),
                _ => Verdict::NoBudget,
            },
        ));
        rows.push(Row::value(
            &format!("CPU of the thread `kernel` for a spawn, {what}"),
            n,
            show(Duration::from_secs_f64(median(with, |it| {
                it.kernel_thread.as_secs_f64() / it.inside
            }))),
            "",
            Verdict::NoBudget,
        ));
    }
    rows
}

/// The directory of the files that let the pod go on.
fn gates(fleet: &Fleet) -> PathBuf {
    fleet.agent.dir.join("rounds")
}

/// Lets the pod do round `n`.
fn inside(fleet: &Fleet, n: usize) -> Result<f64> {
    fs::write(gates(fleet).join(n.to_string()), "")?;
    until("spawns inside", || {
        count(&fleet.output(BUSY)?, n).context("it goes on")
    })
}

/// What a load of rounds has printed for one of them.
fn count(output: &str, round: usize) -> Option<f64> {
    let line = output
        .lines()
        .skip_while(|it| *it != "ready")
        .nth(round + 1)?;
    line.parse().ok()
}

/// CPU time of the listener's thread; none without an agent.
fn kernel_thread(fleet: &Fleet) -> Result<Duration> {
    let Some(listener) = fleet.agent.listener()? else {
        return Ok(Duration::ZERO);
    };
    let text = fs::read_to_string(listener.join("schedstat"))?;
    let ns = text.split(' ').next().context("an empty schedstat")?;
    Ok(Duration::from_nanos(ns.parse()?))
}

/// The same load as in the pod, as a child of this program.
struct Outside {
    child: Child,
    dir: PathBuf,
}

impl Outside {
    fn start(dir: PathBuf) -> Result<Self> {
        fs::create_dir(&dir)?;
        let child = Command::new(std::env::current_exe()?)
            .args(["load", "rounds"])
            .arg(&dir)
            .stdin(Stdio::null())
            .stdout(File::create(dir.join("output"))?)
            .spawn()?;
        Ok(Self { child, dir })
    }

    fn round(&mut self, n: usize) -> Result<f64> {
        fs::write(self.dir.join(n.to_string()), "")?;
        until("a round outside", || {
            count(&fs::read_to_string(self.dir.join("output"))?, n).context("it goes on")
        })
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // Best effort: it may have ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
