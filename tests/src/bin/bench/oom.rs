//! OOM kills: how soon each is handled, and whether a burst of them is handled whole.

use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use ballast::model::record::{EventDetail, EventRecord, OomDetail};

use super::fleet::Fleet;
use super::machine::Setting;
use super::table::{Row, Samples, Table, Verdict, show};
use super::{machine, say};

const BUDGET: Duration = Duration::from_millis(1);
/// A record has so long until it is whole.
const RECORD_BUDGET: Duration = Duration::from_millis(100);

const N_PACED: usize = 200;
const N_BURST: usize = 1_000;
/// Pods of the burst: enough to keep two CPUs busy while others wait in the kernel.
const BURST_PODS: usize = 4;

/// Limit of a container, and what a child tries to have.
const LIMIT: &str = "16Mi";
const EATEN: &str = "33554432";

/// After this long without a new record none is to come.
const SETTLED: Duration = Duration::from_millis(1_500);

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    say("oom: starting the agent");
    let mut fleet = Fleet::new("oom")?;
    fleet.start()?;
    say("oom: 200 kills, 20 ms apart");
    table.push(paced(&fleet, "paced", "OOM kill to handled event")?);
    let records = fleet.agent.oom_records()?;
    let after = records.iter().map(|it| it.recorded_after_us);
    table.push(Row::durations(
        "OOM kill to its forensic record",
        &Samples::from_micros(after),
        Some(RECORD_BUDGET),
    ));
    say("oom: the same, the kernel's console quiet");
    let _quiet = Setting::Console.set("1")?;
    let figure = "the same, nothing written to the console";
    table.push(paced(&fleet, "quiet", figure)?);
    table.extend(burst(&fleet)?);
    Ok(())
}

/// Starts pods that make kills as soon as the gate opens, and waits until they are there.
pub(crate) fn put_killers(
    fleet: &Fleet,
    names: &[String],
    n_each: usize,
    pause_ms: u32,
) -> Result<Gate> {
    let path = fleet.agent.dir.join(format!("gate-{}", names.join("-")));
    let gate = path.display().to_string();
    for name in names {
        let (n, pause) = (n_each.to_string(), pause_ms.to_string());
        fleet.put_load(name, &["kills", &gate, &n, &pause, EATEN], LIMIT)?;
    }
    for name in names {
        fleet.wait_output(name, "ready")?;
    }
    Ok(Gate(path))
}

pub(crate) struct Gate(std::path::PathBuf);

impl Gate {
    pub(crate) fn open(&self) -> Result<()> {
        Ok(fs::write(&self.0, "")?)
    }
}

fn paced(fleet: &Fleet, pod: &str, figure: &str) -> Result<Row> {
    let names = [pod.to_owned()];
    put_killers(fleet, &names, N_PACED, 20)?.open()?;
    let killed = killed_by(fleet, &names)?;
    let records = records_of(fleet, pod, killed.len())?;
    ensure!(
        killed.len() == N_PACED,
        "only {} of {N_PACED} children were killed",
        killed.len()
    );
    let ours = records.iter().filter(|it| pod_name(it) == Some(pod));
    let samples = Samples::from_micros(ours.filter_map(latency));
    Ok(Row::durations(figure, &samples, Some(BUDGET)))
}

fn burst(fleet: &Fleet) -> Result<Vec<Row>> {
    say("oom: a burst of 1000 kills in 4 pods");
    let names: Vec<String> = (0..BURST_PODS).map(|n| format!("burst{n}")).collect();
    let gate = put_killers(fleet, &names, N_BURST / BURST_PODS, 0)?;
    let pid = fleet.pid()?;
    let cpu_before = machine::cpu_time(pid)?;
    let started = Instant::now();
    gate.open()?;
    let killed = killed_by(fleet, &names)?;
    let took = started.elapsed();
    let cpu = machine::cpu_time(pid)?.saturating_sub(cpu_before);
    let records = records_of(fleet, "burst", killed.len())?;

    // By victim: the pod that each killed child belonged to.
    let mut expected: BTreeMap<u32, &str> = killed
        .iter()
        .map(|(name, pid)| (*pid, name.as_str()))
        .collect();
    let n_killed = expected.len();
    let mut n_wrong = 0;
    for record in &records {
        let pod = kill(record).and_then(|it| expected.remove(&it.victim.pid));
        let is_right = match pod {
            Some(_) => pod_name(record) == pod && record.event.container.as_deref() == Some("load"),
            // Not one of ours, so of the rest of the node: it must not be in one of our pods.
            None => pod_name(record).is_none(),
        };
        if !is_right {
            n_wrong += 1;
        }
    }
    let n_lost = expected.len();
    let rate = n_killed as f64 / took.as_secs_f64();
    let core = 100.0 * cpu.as_secs_f64() / took.as_secs_f64();
    let ours = records.iter().filter(|it| pod_name(it).is_some());
    let samples = Samples::from_micros(ours.filter_map(latency));
    Ok(vec![
        Row::durations(
            &format!("OOM kill to handled event, burst of {rate:.0} a second"),
            &samples,
            Some(BUDGET),
        ),
        Row::value(
            "OOM burst: kills lost",
            n_killed,
            n_lost,
            "0",
            Verdict::of(n_lost == 0),
        ),
        Row::value(
            "OOM burst: kills misattributed",
            n_killed,
            n_wrong,
            "0",
            Verdict::of(n_wrong == 0),
        ),
        Row::value(
            &format!("OOM burst: agent CPU over {}", show(took)),
            n_killed,
            format_args!("{} ms, {core:.1} % of a core", cpu.as_millis()),
            "1 % of a core",
            Verdict::of(core <= 1.0),
        ),
    ])
}

fn kill(record: &EventRecord) -> Option<&OomDetail> {
    match &record.event.detail {
        Some(EventDetail::Oom(kill)) => Some(kill),
        _ => None,
    }
}

fn latency(record: &EventRecord) -> Option<u64> {
    kill(record).map(|it| it.handling_latency_us)
}

fn pod_name(record: &EventRecord) -> Option<&str> {
    record.event.pod.as_ref().map(|it| it.name.as_str())
}

/// Waits for the ends of the loads; each killed child with the pod it was in.
pub(crate) fn killed_by(fleet: &Fleet, names: &[String]) -> Result<Vec<(String, u32)>> {
    let mut killed = Vec::new();
    for name in names {
        let output = fleet.wait_output(name, "done")?;
        let pids = output.lines().filter_map(|line| line.parse().ok());
        killed.extend(pids.map(|pid| (name.clone(), pid)));
    }
    Ok(killed)
}

/// The records of OOM kills in pods whose name begins with `prefix`, and of kills nobody could
/// attribute, once there are `n` or no more come.
fn records_of(fleet: &Fleet, prefix: &str, n: usize) -> Result<Vec<EventRecord>> {
    let mut n_before = 0;
    let mut last_change = Instant::now();
    loop {
        let mut records = fleet.agent.events("oom")?;
        records.retain(|it| pod_name(it).is_none_or(|name| name.starts_with(prefix)));
        if records.len() != n_before {
            n_before = records.len();
            last_change = Instant::now();
        }
        let n_ours = records.iter().filter(|it| pod_name(it).is_some()).count();
        if n_ours >= n || last_change.elapsed() > SETTLED {
            return Ok(records);
        }
        thread::sleep(Duration::from_millis(100));
    }
}
