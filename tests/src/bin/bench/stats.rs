//! What statistics cost: a sweep over all cgroups, a scrape of the page, the agent and cAdvisor over
//! the same cgroups, and pods that come and go.
//!
//! cAdvisor reads every cgroup of the machine as often as the agent sweeps its own. It counts for as
//! much per cgroup, and for more cgroups where the machine has others.

use std::fs;
use std::io::Read;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast_tests::cadvisor::{self, Cadvisor};
use ballast_tests::exposition::Exposition;
use ballast_tests::scrape;
use flate2::read::GzDecoder;

use super::fleet::{Fleet, n_running};
use super::table::{Row, Samples, Table, Verdict, mebibytes, show};
use super::{files, machine, say};

/// Pods, containers of each, and whether the budgets of the design are for this size.
const SIZES: [Size; 3] = [
    Size {
        n_pods: 110,
        n_containers: 1,
        sweep_budget: None,
        scrape_budget: None,
        cpu_budget_percent: Some(0.5),
        resident_budget: None,
    },
    Size {
        n_pods: 125,
        n_containers: 4,
        sweep_budget: Some(Duration::from_millis(10)),
        scrape_budget: Some(Duration::from_millis(20)),
        cpu_budget_percent: None,
        resident_budget: None,
    },
    Size {
        n_pods: 250,
        n_containers: 4,
        sweep_budget: None,
        scrape_budget: None,
        cpu_budget_percent: None,
        resident_budget: Some(30 << 20),
    },
];

struct Size {
    n_pods: usize,
    /// Of each pod.
    n_containers: usize,
    sweep_budget: Option<Duration>,
    scrape_budget: Option<Duration>,
    cpu_budget_percent: Option<f64>,
    resident_budget: Option<u64>,
}

const PAGE: &str = "/metrics/cadvisor";

/// The agent's own, and so cAdvisor's here.
const SWEEP_EVERY: Duration = Duration::from_secs(5);
const SCRAPE_EVERY: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);

const N_SWEEPS: usize = 30;
const N_SCRAPES: usize = 100;
/// One takes a second at a thousand containers.
const N_CADVISOR_SCRAPES: usize = 20;

const CHURN_RATE: u32 = 100;
const CHURN: Duration = Duration::from_secs(20);
/// How long a manifest of the churn is there.
const CHURN_LIFE: Duration = Duration::from_secs(2);
/// Ended containers are shown for two minutes.
const FORGET: Duration = Duration::from_secs(180);

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    for size in &SIZES {
        measure_size(size, table).with_context(|| format!("at {}", size.name()))?;
    }
    churn(table).context("churn")
}

impl Size {
    fn n_all(&self) -> usize {
        self.n_pods * self.n_containers
    }

    fn name(&self) -> String {
        format!("{} pods, {} containers", self.n_pods, self.n_all())
    }
}

fn measure_size(size: &Size, table: &mut Table) -> Result<()> {
    let name = size.name();
    say(&format!("stats: starting {name}"));
    let mut fleet = Fleet::new("stats")?;
    for n in 0..size.n_pods {
        fleet.put_idle(&format!("idle{n:03}"), size.n_containers)?;
    }
    fleet.start()?;
    fleet.wait("all running", |it| n_running(it) == size.n_all())?;
    // Memory of the start is given back, or is not, as in an agent that has run for long.
    fleet.agent.stop()?;
    fleet.start()?;
    settle(&fleet, size)?;

    say(&format!("stats: {N_SWEEPS} sweeps over {name}"));
    table.push(sweeps(&fleet, size)?);
    table.extend(files::measure(&fleet.agent.stats()?, &name)?);
    say(&format!("stats: {N_SCRAPES} scrapes of {name}"));
    let ours = scrapes(&fleet.agent.metrics, PAGE, N_SCRAPES)?;
    ours.rows("scrape", size, size.scrape_budget, table);
    say(&format!("stats: a minute of {name}, a scrape every 10 s"));
    let agent = spend_minute(fleet.pid()?, || {
        scrape::text(&fleet.agent.metrics, PAGE).map(drop)
    })?;
    agent.rows(size, table);

    let figure = format!("cAdvisor 0.38, {name}");
    match cadvisor::program() {
        Ok(_) => {
            say(&format!("stats: cAdvisor beside {name}"));
            beside(&fleet, size, &ours, &agent, table)?;
        }
        Err(error) => table.push(Row::not_measured(&figure, format_args!("{error:#}"))),
    }
    Ok(())
}

/// Waits until the page shows every container and the agent has nothing else to do.
fn settle(fleet: &Fleet, size: &Size) -> Result<()> {
    let deadline = Instant::now() + MINUTE;
    loop {
        let stats = fleet.agent.stats();
        let n_shown = stats.map_or(0, |it| it.pods.iter().map(|it| it.containers.len()).sum());
        if n_shown == size.n_all() {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "the statistics show {n_shown} of {} containers",
            size.n_all()
        );
        thread::sleep(Duration::from_millis(500));
    }
    thread::sleep(SWEEP_EVERY);
    Ok(())
}

fn sweeps(fleet: &Fleet, size: &Size) -> Result<Row> {
    let mut costs = Vec::new();
    let mut last = 0;
    while costs.len() < N_SWEEPS {
        // Older than a second, so that the agent is asked for a new one.
        thread::sleep(Duration::from_millis(1_100));
        let stats = fleet.agent.stats()?;
        ensure!(stats.sweep > last, "no sweep after {last}");
        last = stats.sweep;
        costs.push(stats.cost_us.context("the agent knows no CPU time")?);
    }
    Ok(Row::durations(
        &format!("sweep, CPU time, {}", size.name()),
        &Samples::from_micros(costs),
        size.sweep_budget,
    ))
}

/// Many scrapes of one page, one after another.
struct Scrapes {
    plain: Samples,
    compressed: Samples,
    /// Bytes of the last answer, and of the last compressed one; `None`: the server compresses none.
    plain_bytes: usize,
    compressed_bytes: Option<usize>,
    n_series: usize,
}

fn scrapes(address: &str, path: &str, n: usize) -> Result<Scrapes> {
    let timed = |headers: &[&str]| -> Result<(Samples, Vec<u8>)> {
        let mut times = Vec::new();
        let mut body = Vec::new();
        for _ in 0..n {
            let started = Instant::now();
            let answer = scrape::get(address, path, headers)?;
            times.push(started.elapsed());
            ensure!(answer.status == 200, "{path} answers {}", answer.status);
            body = answer.body;
        }
        Ok((Samples::new(times), body))
    };
    let (plain, text) = timed(&[])?;
    let (compressed, bytes) = timed(&["Accept-Encoding: gzip"])?;
    let mut unpacked = Vec::new();
    // What was not compressed has no header.
    let is_compressed = GzDecoder::new(bytes.as_slice())
        .read_to_end(&mut unpacked)
        .is_ok();
    let page = Exposition::parse(std::str::from_utf8(&text)?)?;
    Ok(Scrapes {
        plain,
        compressed,
        plain_bytes: text.len(),
        compressed_bytes: is_compressed.then_some(bytes.len()),
        n_series: page.samples.len(),
    })
}

impl Scrapes {
    fn rows(&self, what: &str, size: &Size, budget: Option<Duration>, table: &mut Table) {
        let name = size.name();
        table.push(Row::durations(
            &format!("{what}, {name}"),
            &self.plain,
            budget,
        ));
        let packed = match self.compressed_bytes {
            Some(bytes) => {
                let figure = format!("{what} with gzip, {name}");
                table.push(Row::durations(&figure, &self.compressed, budget));
                format!("{} with gzip", mebibytes(bytes as u64))
            }
            None => "no gzip".to_owned(),
        };
        table.push(Row::value(
            &format!("{what}: size and series, {name}"),
            1,
            format_args!(
                "{}, {packed}, {} series",
                mebibytes(self.plain_bytes as u64),
                self.n_series
            ),
            "",
            Verdict::NoBudget,
        ));
    }
}

/// What a program took in a minute of scrapes every 10 s.
struct Minute {
    cpu: Duration,
    took: Duration,
    /// The most of it, bytes.
    resident: u64,
}

fn spend_minute(pid: u32, mut scrape: impl FnMut() -> Result<()>) -> Result<Minute> {
    let before = machine::cpu_time(pid)?;
    let started = Instant::now();
    let mut resident = 0;
    while started.elapsed() < MINUTE {
        scrape()?;
        resident = resident.max(machine::resident(pid)?);
        thread::sleep(SCRAPE_EVERY);
    }
    Ok(Minute {
        cpu: machine::cpu_time(pid)?.saturating_sub(before),
        took: started.elapsed(),
        resident,
    })
}

impl Minute {
    fn percent(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.took.as_secs_f64()
    }

    fn rows(&self, size: &Size, table: &mut Table) {
        let name = size.name();
        let percent = self.percent();
        let budget = size.cpu_budget_percent;
        table.push(Row::value(
            &format!("agent CPU, a scrape every 10 s, {name}"),
            1,
            format_args!("{} ms, {percent:.2} % of a core", self.cpu.as_millis()),
            &budget.map_or_else(String::new, |it| format!("{it} % of a core")),
            budget.map_or(Verdict::NoBudget, |it| Verdict::of(percent <= it)),
        ));
        let budget = size.resident_budget;
        table.push(Row::value(
            &format!("agent resident memory, {name}"),
            1,
            mebibytes(self.resident),
            &budget.map_or_else(String::new, mebibytes),
            budget.map_or(Verdict::NoBudget, |it| Verdict::of(self.resident <= it)),
        ));
    }
}

/// The same of cAdvisor, over the same cgroups, with how many times the agent's it is.
fn beside(
    fleet: &Fleet,
    size: &Size,
    ours: &Scrapes,
    agent: &Minute,
    table: &mut Table,
) -> Result<()> {
    let name = size.name();
    let cadvisor = Cadvisor::start(SWEEP_EVERY, &fleet.agent.dir)?;
    let wanted = format!("id=\"{}/", fleet.agent.kubepods());
    // QoS classes and pods have cgroups, too.
    let n_wanted = size.n_pods + size.n_all();
    let deadline = Instant::now() + 2 * MINUTE;
    let seen = loop {
        let text = scrape::text(cadvisor.address(), "/metrics")?;
        let seen = text
            .lines()
            .filter(|it| it.starts_with("container_memory_usage_bytes"));
        let n = seen.filter(|it| it.contains(&wanted)).count();
        if n >= n_wanted || Instant::now() > deadline {
            break n;
        }
        thread::sleep(Duration::from_secs(1));
    };
    table.push(Row::value(
        &format!("cAdvisor: cgroups of ours that it reads, {name}"),
        seen,
        format_args!("{seen} of {n_wanted}"),
        "",
        Verdict::NoBudget,
    ));
    let theirs = scrapes(cadvisor.address(), "/metrics", N_CADVISOR_SCRAPES)?;
    theirs.rows("cAdvisor: scrape", size, None, table);
    let minute = spend_minute(cadvisor.pid(), || cadvisor.page().map(drop))?;
    table.push(Row::value(
        &format!("cAdvisor: CPU, a scrape every 10 s, {name}"),
        1,
        format_args!(
            "{} ms, {:.2} % of a core",
            minute.cpu.as_millis(),
            minute.percent()
        ),
        "",
        Verdict::NoBudget,
    ));
    table.push(Row::value(
        &format!("cAdvisor: resident memory, {name}"),
        1,
        mebibytes(minute.resident),
        "",
        Verdict::NoBudget,
    ));
    let median = |it: &Samples| it.quantile(50).unwrap_or_default().as_secs_f64();
    table.push(Row::value(
        &format!("cAdvisor in terms of the agent, {name}"),
        1,
        format_args!(
            "CPU {:.0}, scrape {:.0}, memory {:.1} times",
            minute.percent() / agent.percent(),
            median(&theirs.plain) / median(&ours.plain),
            minute.resident as f64 / agent.resident as f64
        ),
        "",
        Verdict::NoBudget,
    ));
    Ok(())
}

/// Pods that come, run a program and go, twice: what the second time adds is growth.
fn churn(table: &mut Table) -> Result<()> {
    say("stats: churn");
    let mut fleet = Fleet::new("churn")?;
    fleet.start()?;
    thread::sleep(SWEEP_EVERY);
    let mut held = vec![Held::of(&fleet)?];
    for round in 0..2 {
        say(&format!("stats: churn, round {}", round + 1));
        table.push(churn_round(&fleet, round)?);
        held.push(forget(&fleet, held.first().map_or(0, |it| it.n_series))?);
    }
    let series: Vec<String> = held.iter().map(|it| it.n_series.to_string()).collect();
    let grown = held.first().map(|it| it.n_series) < held.last().map(|it| it.n_series);
    table.push(Row::value(
        "churn: series before and after each round",
        held.len(),
        series.join(", "),
        "no growth",
        Verdict::of(!grown),
    ));
    let resident: Vec<String> = held.iter().map(|it| mebibytes(it.resident)).collect();
    table.push(Row::value(
        "churn: resident memory before and after each round",
        held.len(),
        resident.join(", "),
        "",
        Verdict::NoBudget,
    ));
    Ok(())
}

struct Held {
    /// Of all pages.
    n_series: usize,
    resident: u64,
}

impl Held {
    fn of(fleet: &Fleet) -> Result<Self> {
        let mut n_series = 0;
        for path in ["/metrics", PAGE] {
            n_series += scrape::page(&fleet.agent.metrics, path)?.samples.len();
        }
        Ok(Self {
            n_series,
            resident: machine::resident(fleet.pid()?)?,
        })
    }
}

fn churn_round(fleet: &Fleet, round: u32) -> Result<Row> {
    let file = fleet.agent.dir.join(format!("churn-{round}"));
    let pause = Duration::from_secs(1) / CHURN_RATE;
    let n_alive = (CHURN_LIFE.as_millis() / pause.as_millis().max(1)) as usize;
    let pod = |n: usize| format!("churn-{round}-{n}");
    let started = Instant::now();
    let mut n = 0;
    while started.elapsed() < CHURN {
        fleet.put_short(&pod(n), &file)?;
        if let Some(old) = n.checked_sub(n_alive) {
            fleet.agent.remove_pod(&pod(old))?;
        }
        n += 1;
        let due = pause * u32::try_from(n)?;
        thread::sleep(due.saturating_sub(started.elapsed()));
    }
    let took = started.elapsed();
    for old in n.saturating_sub(n_alive)..n {
        fleet.agent.remove_pod(&pod(old))?;
    }
    fleet.wait("without pods", |it| it.pods.is_empty())?;
    // A program that could not run has left no line.
    let n_ran = fs::read_to_string(&file)
        .unwrap_or_default()
        .lines()
        .count();
    let per_second = |n: usize| n as f64 / took.as_secs_f64();
    Ok(Row::value(
        &format!("churn: pods a second, round {}", round + 1),
        n,
        format_args!(
            "{:.0} manifests, {:.0} ran, all gone after {}",
            per_second(n),
            per_second(n_ran),
            show(started.elapsed())
        ),
        "",
        Verdict::NoBudget,
    ))
}

/// Waits until what has ended is shown no more.
fn forget(fleet: &Fleet, n_series: usize) -> Result<Held> {
    let deadline = Instant::now() + FORGET;
    loop {
        let held = Held::of(fleet)?;
        if held.n_series <= n_series || Instant::now() > deadline {
            return Ok(held);
        }
        thread::sleep(SWEEP_EVERY);
    }
}
