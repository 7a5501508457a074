//! Process events: how old they are when they are handled, and whether all of a storm arrive.

use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ballast::model::record::EventRecord;
use ballast_tests::exposition::Exposition;

use super::fleet::Fleet;
use super::table::{Row, Samples, Table, Verdict, show};
use super::{machine, say};

/// The agent looks every 50 ms while somebody follows, and every second else; in a storm it is woken.
const FOLLOWED_BUDGET: Duration = Duration::from_millis(60);
/// The bound of the histogram above it.
const HISTOGRAM_BUDGET: Duration = Duration::from_millis(100);
const STORM_BUDGET: Duration = Duration::from_secs(1);

const N_SPAWNS: usize = 300;

const STORM_RATE: u32 = 10_000;
const STORM_SECONDS: u32 = 10;

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    say("process: starting the agent");
    let mut fleet = Fleet::new("process")?;
    fleet.start()?;
    table.extend(paced(&fleet)?);
    table.extend(storm(&fleet, "storm", "")?);
    let _busy = Busy::start();
    table.extend(storm(&fleet, "busystorm", "two busy loops a CPU, ")?);
    Ok(())
}

fn paced(fleet: &Fleet) -> Result<Vec<Row>> {
    say("process: 300 programs, 5 ms apart");
    let follower = Follower::start(fleet)?;
    let before = fleet.scrape()?;
    fleet.put_load("spawns", &["spawns", &N_SPAWNS.to_string(), "5"], "64Mi")?;
    fleet.wait_output("spawns", "done")?;
    // The last exits are on their way.
    thread::sleep(Duration::from_millis(200));
    let after = fleet.scrape()?;
    let delays = follower.stop()?;
    let age = Age::between(&before, &after);
    Ok(vec![
        match age.quantiles() {
            Some((median, p99)) => Row::value(
                "fork, exec, exit to handled event (histogram)",
                age.n(),
                format_args!("median {}, p99 {}", within(median), within(p99)),
                "p99 100 ms",
                Verdict::of(p99 <= HISTOGRAM_BUDGET),
            ),
            None => Row::not_measured("fork, exec, exit to handled event", "no events"),
        },
        Row::durations(
            "fork, exec, exit to a reader of `ballast events`",
            &Samples::new(delays),
            Some(FOLLOWED_BUDGET),
        ),
    ])
}

/// Loops beside the storm, until it is dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        for _ in 0..2 * cpus {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// `pod`: its name; `beside`: what else goes on.
fn storm(fleet: &Fleet, pod: &str, beside: &str) -> Result<Vec<Row>> {
    say(&format!("process: {beside}10000 forks a second"));
    let before = fleet.scrape()?;
    let pid = fleet.pid()?;
    let cpu_before = machine::cpu_time(pid)?;
    let (rate, seconds) = (STORM_RATE.to_string(), STORM_SECONDS.to_string());
    fleet.put_load(pod, &["storm", &rate, "2", &seconds], "64Mi")?;
    let output = fleet.wait_output(pod, "done")?;
    let cpu = machine::cpu_time(pid)?.saturating_sub(cpu_before);
    let (n_forks, micros) = output
        .lines()
        .find_map(|line| line.split_once(' '))
        .context("the storm says nothing")?;
    let n_forks: usize = n_forks.parse()?;
    let took = Duration::from_micros(micros.parse()?);
    let after = settled(fleet)?;
    let seen = after.sum("ballast_process_forks_total", &[("pod", pod)]);
    let lost = after.sum(LOST, &[STREAM]) - before.sum(LOST, &[STREAM]);
    // The pod's own first process is a fork of the agent outside the pod's cgroup on v1, inside on
    // v2: it is not counted among those that were made on purpose.
    let missed = (n_forks as f64 - seen).max(0.0);
    let rate = n_forks as f64 / took.as_secs_f64();
    let age = Age::between(&before, &after);
    let core = 100.0 * cpu.as_secs_f64() / took.as_secs_f64();
    // The budget is for the full rate, which a machine with few cores does not come to.
    let is_full = rate >= 0.95 * f64::from(STORM_RATE);
    Ok(vec![
        Row::value(
            &format!(
                "{beside}{rate:.0} forks a second for {}: events lost",
                show(took)
            ),
            n_forks,
            format_args!("{lost} by the kernel's count, {missed} forks not seen"),
            if is_full { "0" } else { "0, at 10000" },
            match is_full || lost + missed > 0.0 {
                true => Verdict::of(lost == 0.0 && missed == 0.0),
                false => Verdict::NoBudget,
            },
        ),
        match age.quantiles() {
            Some((median, p99)) => Row::value(
                "the same: to handled event (histogram)",
                age.n(),
                format_args!("median {}, p99 {}", within(median), within(p99)),
                "p99 1 s",
                Verdict::of(p99 <= STORM_BUDGET),
            ),
            None => Row::not_measured("the same: to handled event", "no events"),
        },
        Row::value(
            "the same: agent CPU",
            n_forks,
            format_args!("{} ms, {core:.1} % of a core", cpu.as_millis()),
            "",
            Verdict::NoBudget,
        ),
    ])
}

const LOST: &str = "ballast_bpf_events_lost_total";
const STREAM: (&str, &str) = ("stream", "process");

/// A scrape after the last event was handled.
fn settled(fleet: &Fleet) -> Result<Exposition> {
    let mut before = -1.0;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let scrape = fleet.scrape()?;
        let handled = scrape.sum("ballast_bpf_events_total", &[STREAM]);
        if handled == before || Instant::now() > deadline {
            return Ok(scrape);
        }
        before = handled;
        // Losses are read about once a second.
        thread::sleep(Duration::from_millis(1_200));
    }
}

/// The agent's histogram of event ages over a time: upper bounds in seconds with the number of
/// events within each.
struct Age {
    buckets: Vec<(f64, f64)>,
}

impl Age {
    fn between(before: &Exposition, after: &Exposition) -> Self {
        const NAME: &str = "ballast_bpf_event_age_seconds_bucket";
        let mut buckets: Vec<(f64, f64)> = after
            .of(NAME, &[STREAM])
            .filter_map(|(series, n)| {
                let bound = series.labels.get("le")?;
                let earlier = before.sum(NAME, &[STREAM, ("le", bound)]);
                Some((bound.parse().ok()?, n - earlier))
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self { buckets }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of events, which a metric shows as a float"
    )]
    fn n(&self) -> usize {
        self.buckets.last().map_or(0, |(_, n)| *n as usize)
    }

    /// Bounds that half of the events and 99 % of them are within, [`Duration::MAX`] beyond the last. `None` without
    /// events.
    fn quantiles(&self) -> Option<(Duration, Duration)> {
        let (_, all) = self.buckets.last()?;
        if *all == 0.0 {
            return None;
        }
        let bound = |share: f64| {
            let (bound, _) = self.buckets.iter().find(|(_, n)| *n >= share * all)?;
            Some(Duration::try_from_secs_f64(*bound).unwrap_or(Duration::MAX))
        };
        Some((bound(0.5)?, bound(0.99)?))
    }
}

fn within(bound: Duration) -> String {
    match bound {
        Duration::MAX => "beyond the last bucket".to_owned(),
        _ => format!("within {}", show(bound)),
    }
}

/// Reads `ballast events --follow`, and notes how old each record of the load is when it comes.
pub(crate) struct Follower {
    child: Child,
    reader: JoinHandle<Result<Vec<Duration>>>,
}

impl Follower {
    pub(crate) fn start(fleet: &Fleet) -> Result<Self> {
        let mut child = fleet
            .agent
            .client(&["events", "-o", "json", "--follow", "--kind", "process"])
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("it was piped")?;
        let reader = thread::spawn(move || {
            let mut delays = Vec::new();
            for line in BufReader::new(output).lines() {
                let line = line?;
                let now = machine::boottime()?;
                let event = serde_json::from_str::<EventRecord>(&line)?.event;
                if event.pod.is_some_and(|pod| pod.name == "spawns") {
                    delays.push(now.saturating_sub(Duration::from_nanos(event.boottime_ns)));
                }
            }
            Ok(delays)
        });
        // What was there before it began to follow would look old; there is nothing yet of the load.
        Ok(Self { child, reader })
    }

    pub(crate) fn stop(mut self) -> Result<Vec<Duration>> {
        self.child.kill()?;
        self.child.wait()?;
        self.reader.join().ok().context("the reader panicked")?
    }
}
