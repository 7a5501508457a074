//! An agent that may have few open files: what it starts, what it tells and what it answers come first,
//! and what it holds open for readings gives way.

use std::cell::Cell;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use ballast::model::status::{PodEntry, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::manifest::{Container, Manifest};

use super::look::is_running;
use super::scaled;

const MIB: u64 = 1 << 20;

/// Lines of the log that are more than information. Kills outside the pods are not the test's.
fn n_complaints(agent: &Agent) -> Result<usize> {
    let log = fs::read_to_string(agent.dir.join("agent.log"))?;
    let is_complaint = |it: &&str| {
        (it.contains("WARN") || it.contains("ERROR")) && !it.contains("outside the pods")
    };
    Ok(log.lines().filter(is_complaint).count())
}

fn put_pods(agent: &Agent, n: u32) -> Result<()> {
    for i in 0..n {
        let pod = Manifest::new(&format!("pod{i}"))
            .with("restartPolicy", "Never".into())
            .container(Container::idle("app"));
        agent.put(&pod)?;
    }
    Ok(())
}

fn n_running(status: &Status) -> usize {
    status.pods.iter().filter(|it| is_running(it)).count()
}

/// Sixty pods whose files alone are more than the agent may have open.
#[cfg_attr(feature = "privileged", test)]
fn readings_give_their_descriptors_to_starts_and_records() -> Result<()> {
    let mut agent = Agent::new("few")?;
    agent.descriptors = Some(768);
    agent.start()?;
    let n = scaled(60, 60)?;
    put_pods(&agent, n)?;
    agent.wait("all run", |it| n_running(it) == n as usize)?;
    for _ in 0..3 {
        // Each sweep holds what it may.
        agent.stats()?;
        thread::sleep(Duration::from_millis(1100));
    }
    let script = format!("{} burst 1 {}; exec sleep 3600", hog()?, 16 * MIB);
    let greedy = Container::sh("app", &script).limited_to(8);
    agent.put(&Manifest::new("greedy").container(greedy))?;
    agent.wait_for("the record of its kill", || {
        let records = agent.oom_records()?;
        Ok(records.iter().any(|it| it.event.pod.is_some()))
    })?;
    // The kill takes the whole container where the kernel kills by the group.
    agent.wait("the others run", |it| {
        let others = it.pods.iter().filter(|it| it.name != "greedy");
        others.filter(|it| is_running(it)).count() == n as usize
    })?;
    let n_complaints = n_complaints(&agent)?;
    ensure!(n_complaints < 20, "{n_complaints}: {}", agent.log_tail());
    Ok(())
}

/// More pods than there are descriptors for: those that find none wait, whatever their restart policy,
/// and start when others have gone.
#[cfg_attr(feature = "privileged", test)]
fn a_start_without_descriptors_waits() -> Result<()> {
    let mut agent = Agent::new("none")?;
    agent.descriptors = Some(256);
    agent.start()?;
    let n = scaled(100, 100)?;
    put_pods(&agent, n)?;
    let waits = |it: &PodEntry| {
        let why = it.message.as_deref().unwrap_or_default();
        why.contains("open files")
    };
    // Asked for all at once they may all wait at first: what runs in the end is what counts.
    let n_before = Cell::new(0);
    let status = agent.wait("as many run as can, and the others wait", |it| {
        thread::sleep(Duration::from_secs(3));
        let n_running = n_running(it);
        let n_waiting = it.pods.iter().filter(|it| waits(it)).count();
        let is_steady = n_running == n_before.replace(n_running);
        is_steady && n_running > 0 && n_waiting > 0 && n_waiting + n_running == n as usize
    })?;
    let n_complaints = n_complaints(&agent)?;
    ensure!(n_complaints < 150, "{n_complaints}: {}", agent.log_tail());
    let (running, waiting): (Vec<_>, Vec<_>) = status.pods.iter().partition(|it| is_running(it));
    for pod in &running {
        agent.remove_pod(&pod.name)?;
    }
    // How many have room differs by what is being read meanwhile.
    let n_expected = waiting.len().min(running.len() / 2);
    agent.wait("those that waited run", |it| {
        let has_waited = |name: &str| waiting.iter().any(|it| it.name == name);
        let started = it
            .pods
            .iter()
            .filter(|it| is_running(it) && has_waited(&it.name));
        started.count() >= n_expected
    })?;
    Ok(())
}
