//! Processes of pods begin and end without waking the agent, and whoever asks what they did is told all
//! the same.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::Agent;
use ballast_tests::kube::{Driver, KubeTree, Naming};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::scrape::{free_address, page};
use ballast_tests::wait::patience;

use super::crash::after;
use super::eviction::{Files, files_of};
use super::look::{is_running, pod_path};
use super::stalls::thrash;
use super::{leave_out, say};

/// Children of the pod, each two or three events: half of what makes a ring a quarter full.
const N_CHILDREN: u32 = 600;

/// How often the thread that reads the rings gave up its processor to wait.
fn n_waits(agent: &Agent) -> Result<u64> {
    let listener = agent.listener()?.context("no thread reads the rings")?;
    let status = fs::read_to_string(listener.join("status"))?;
    let mut lines = status.lines();
    let n = lines.find_map(|it| it.strip_prefix("voluntary_ctxt_switches:"));
    Ok(n.context("no count of switches")?.trim().parse()?)
}

/// A pod whose shell makes children once `gate` is there, leaves `done`, and stays.
fn pod(agent: &Agent, n_children: u32) -> Manifest {
    let (gate, done) = (agent.dir.join("gate"), agent.dir.join("done"));
    let script = format!(
        "n=0; while [ $n -lt {n_children} ]; do (exit 7); n=$((n+1)); done; : > {}; exec sleep 3600",
        done.display()
    );
    Manifest::new("busy").container(Container::sh("app", &after(&gate, &script)))
}

#[cfg_attr(feature = "privileged", test)]
fn children_of_a_pod_wake_nobody_and_are_told_to_who_asks() -> Result<()> {
    let mut agent = Agent::new("quiet")?;
    agent.start()?;
    agent.put(&pod(&agent, N_CHILDREN))?;
    let entry = agent.wait_pod("busy", "runs", is_running)?;
    ensure!(pod_path(&entry).is_ok(), "{entry:?}");
    let before = n_waits(&agent)?;
    fs::write(agent.dir.join("gate"), "")?;
    agent.wait_for("all children have ended", || {
        Ok(agent.dir.join("done").exists())
    })?;
    let n = n_waits(&agent)? - before;
    say(format_args!("{n} waits in {N_CHILDREN} forks and exits"));
    assert!(n < u64::from(N_CHILDREN) / 4, "{n} waits");

    // Asked once: the answer has what has happened.
    let events = agent.events("process")?;
    let ended = "exited with code 7";
    let ends = events.iter().filter(|it| {
        let pod = it.event.pod.as_ref().is_some_and(|it| it.name == "busy");
        pod && it.event.message.contains(ended)
    });
    assert_eq!(ends.count(), N_CHILDREN as usize);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn who_follows_processes_is_told_of_each() -> Result<()> {
    let mut agent = Agent::new("followed")?;
    agent.start()?;
    agent.put(&pod(&agent, 20))?;
    agent.wait_pod("busy", "runs", is_running)?;
    let mut client = agent
        .client(&["events", "-o", "json", "--follow", "--kind", "process"])
        .stdout(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(client.stdout.take().context("it was piped")?);
    let (to_test, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            // The test may be over.
            to_test.send(line).ok();
        }
    });
    fs::write(agent.dir.join("gate"), "")?;
    let mut n_ends = 0;
    while n_ends < 20 {
        let line = lines.recv_timeout(patience()).context("20 ends")?;
        n_ends += u32::from(line.contains("exited with code 7"));
    }
    client.kill()?;
    client.wait()?;
    reader.join().ok().context("the reader panicked")?;
    Ok(())
}

/// Who watches the pressure of others has what the kernel measures for that.
#[cfg_attr(feature = "privileged", test)]
fn stalls_wake_nobody_who_does_not_act_on_them() -> Result<()> {
    const N_STALLS: f64 = 150.0;
    let tree = KubeTree::new("stalling", Driver::Cgroupfs)?;
    let mut agent = Agent::observing("stalling", &tree)?;
    agent.metrics = free_address()?;
    agent.start()?;
    if files_of(&agent)? == Files::InMemory {
        leave_out("files are memory here, which no cache gives back");
        return Ok(());
    }
    let pod = tree.pod("5d3c7a90-1f2e-4b6d-8a79-3c4d5e6f7082")?;
    let container = pod.container(Naming::Containerd, 1)?;
    container.limit(16)?;
    let file = agent.dir.join("file");
    let _program = container.run(&thrash(&file.display().to_string()))?;
    let n_stalls = || -> Result<f64> {
        let page = page(&agent.metrics, "/metrics")?;
        Ok(page.sum("ballast_bpf_events_total", &[("stream", "pressure")]))
    };
    agent.wait_for("the first stall is told", || Ok(n_stalls()? > 0.0))?;
    let (began, before, n_before) = (Instant::now(), n_waits(&agent)?, n_stalls()?);
    agent.wait_for("stalls are told", || Ok(n_stalls()? >= n_before + N_STALLS))?;
    let n = n_waits(&agent)? - before;
    let took = began.elapsed();
    say(format_args!("{n} waits in {N_STALLS} stalls, {took:?}"));
    // It looks once a second, and whenever a quarter of the ring waits.
    let most = 10.0 + 2.0 * took.as_secs_f64() + N_STALLS / 8.0;
    assert!((n as f64) < most, "{n} waits in {took:?}");
    Ok(())
}
