//! `cargo xtask demo`: the agent on real cgroups, with real events.
//!
//! Tells the story as it happens and checks every promise in it. Everything lives under names of
//! the demo's own, and what an interrupted demo left is swept up by the next one.

mod beside;
mod promises;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::promises::Promises;
use self::stage::Stage;
use crate::build;
use crate::machine::Machine;
use crate::progress::{self, Elapsed};
use crate::setup;

/// The whole demo after the build; what takes longer has failed.
const DEADLINE: Duration = Duration::from_secs(60);

/// Build the agent and show what it does with the example pods, in about a minute
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Leave the agent and its pods running
    #[arg(long)]
    keep: bool,
    /// Beside a real kubelet, on a cluster of one node that is brought up for it: an OOM kill as people see it
    /// there. Kubernetes is built once per machine, in ten minutes
    #[arg(long, conflicts_with = "keep")]
    cluster: bool,
}

pub(crate) fn verb(arguments: &Arguments) -> Result<()> {
    let began = Instant::now();
    setup::toolchain()?;
    let equipped = began.elapsed();
    let agent = build::quick()?;
    let built = began.elapsed();
    let _machine = Machine::take("cargo xtask demo")?;
    match arguments.cluster {
        true => beside::run(&agent)?,
        false => run(&agent, arguments.keep)?,
    }
    progress::note(format_args!(
        "of {}: tools {}, build {}, demo {}",
        Elapsed(began.elapsed()),
        Elapsed(equipped),
        Elapsed(built - equipped),
        Elapsed(began.elapsed() - built),
    ));
    Ok(())
}

/// Tells the story with `agent`; fails when anything it promised did not happen.
fn run(agent: &Path, keep: bool) -> Result<()> {
    let began = Instant::now();
    let mut stage = Stage::new(agent);
    stage.sweep_leftovers()?;
    let mut promises = Promises::default();
    let told = tell(&mut stage, &mut promises, began);
    if told.is_ok() && keep && promises.all_kept() {
        progress::headline("The agent and its pods go on");
        stage.leave_running();
        return Ok(());
    }
    progress::headline("Cleaning up");
    let swept = stage.sweep();
    promises.check(
        "nothing is left: no process, no cgroup, no pin, no file",
        swept.is_ok(),
    );
    told?;
    swept?;
    conclude(&promises, began)
}

/// Fails when a promise was broken.
fn conclude(promises: &Promises, began: Instant) -> Result<()> {
    let took = Elapsed(began.elapsed());
    match promises.broken() {
        [] => {
            progress::headline(format_args!(
                "Demo: {} promises kept in {took}",
                promises.count()
            ));
            Ok(())
        }
        broken => bail!("after {took}, not kept: {}", broken.join("; ")),
    }
}

fn tell(stage: &mut Stage, promises: &mut Promises, began: Instant) -> Result<()> {
    let deadline = began + DEADLINE;
    progress::headline("Five example pods, and the agent");
    for name in stage.add_examples()? {
        progress::note(format_args!("deploy/examples/{name}"));
    }
    let started = Instant::now();
    stage.start()?;
    stage.wait_until(deadline, "the agent answers", |_| true)?;
    progress::note(format_args!(
        "the agent answers after {}",
        Elapsed(started.elapsed())
    ));

    progress::headline("Pods start, each in cgroups of its own");
    let status = stage.wait_until(deadline, "all pods are under way", |status| {
        pods(status).len() == 5 && pods(status).iter().all(|it| it["phase"] == "Running")
    })?;
    promises.check("all five pods run", true);
    for pod in pods(&status) {
        progress::note(format_args!(
            "{:12} {:10} {}",
            text(&pod["name"]),
            text(&pod["qos"]),
            text(&pod["cgroupPath"]),
        ));
    }

    progress::headline("Their limits, read back from the kernel");
    limits(stage, &status, promises)?;

    progress::headline("A child of pod oom takes more memory than it may");
    let kill = stage.wait_for_event(deadline, "oom", |event| event["pod"]["name"] == "oom")?;
    oom(&kill, promises, "greedy");
    let kernel_events = stage.events("process,cgroup")?;
    promises.check(
        "process and cgroup events came from the kernel",
        kernel_events.iter().any(|it| it["kind"] == "process")
            && kernel_events.iter().any(|it| it["kind"] == "cgroup"),
    );

    progress::headline("The init container prepared a file");
    let greeting = "prepared by the init container";
    let log = stage.wait_for_log(deadline, "init", "reader", greeting);
    promises.check("the main container read it", log.is_ok());
    if let Ok(log) = log {
        progress::note(format_args!("{}: {greeting}", log.display()));
    }

    progress::headline("ballast status");
    stage.show_status()?;

    progress::headline("Metrics");
    let metrics = stage.metrics()?;
    let kills: Vec<&str> = metrics
        .lines()
        .filter(|line| line.starts_with("ballast_oom_kills_total") && line.contains("\"oom\""))
        .collect();
    for line in &kills {
        progress::note(line);
    }
    promises.check(
        "the kill is counted for its container",
        kills.iter().any(|line| line.ends_with(" 1")),
    );
    progress::note(format_args!("http://{}/metrics", stage.metrics_address()?));
    ensure!(
        Instant::now() < deadline,
        "the demo took longer than {} s",
        DEADLINE.as_secs()
    );
    Ok(())
}

fn limits(stage: &Stage, status: &Value, promises: &mut Promises) -> Result<()> {
    let expected = [
        ("guaranteed", "memory", 32 << 20),
        ("burstable", "memory", 64 << 20),
        ("oom", "memory", 64 << 20),
    ];
    for (name, resource, bytes) in expected {
        let pod = pods(status)
            .into_iter()
            .find(|it| it["name"] == name)
            .with_context(|| format!("pod {name} is not in the status"))?;
        let (file, value) = stage.memory_limit(text(&pod["cgroupPath"]))?;
        progress::note(format_args!("{}: {value}", file.display()));
        promises.check(
            &format!("pod {name} has its {resource} limit"),
            value == bytes.to_string(),
        );
    }
    let (file, shares) = stage.cpu_share(status)?;
    progress::note(format_args!("{}: {shares}", file.display()));
    promises.check(
        "BestEffort pods have the least CPU share",
        matches!(shares.as_str(), "1" | "2"),
    );
    Ok(())
}

fn oom(kill: &Value, promises: &mut Promises, container: &str) {
    let detail = &kill["detail"];
    progress::note(format_args!(
        "{}: {}",
        text(&kill["reason"]),
        text(&kill["message"])
    ));
    progress::note(format_args!(
        "attributed to {}/{}, container {}, {} µs after the kill; limit of the {} ({})",
        text(&kill["pod"]["namespace"]),
        text(&kill["pod"]["name"]),
        text(&kill["container"]),
        detail["handlingLatencyUs"],
        text(&detail["scope"]),
        text(&kill["method"]),
    ));
    promises.check(
        "the kill is attributed to the container",
        kill["container"] == container,
    );
    promises.check(
        "it is seen to be a child's, which no restart would show",
        kill["reason"] == "OomKilledChild",
    );
    promises.check(
        "the limit that was reached is named: the container's, or its pod's equal one",
        detail["scope"] == "container" || detail["scope"] == "pod",
    );
}

/// The pods of a status document.
fn pods(status: &Value) -> Vec<&Value> {
    status["pods"]
        .as_array()
        .map(|it| it.iter().collect())
        .unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}
