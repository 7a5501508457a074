//! The memory of the whole node is gone before anybody evicts, and the kernel kills: told as what it is,
//! by the kernel's own reason and where no program can read that.

use std::fs;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use ballast::model::event::OomConstraint;
use ballast::model::record::OomScope;
use ballast::model::status::ProgramState;
use ballast::sources::bpf::{self, LoadOptions, Streams};
use ballast_tests::agent::Agent;
use ballast_tests::cgroup::kernel_kills;
use ballast_tests::scrape;

use super::look::{end_of, is_running, oom_detail, whose};
use super::node_memory::{HugePages, STEADY, put_pods};
use super::{only_in_a_vm, say, scaled};

/// So many programs, of the two of a set, the kernel takes on one function (`BPF_MAX_TRAMP_LINKS` in
/// include/linux/bpf.h, 38 from 5.10 to 7), and some more.
const MOST: usize = 25;

/// Other programs on the function that knows why the kernel kills, until it takes no more of them.
struct Crowd(#[expect(dead_code, reason = "they run until it is dropped")] Vec<Streams>);

impl Crowd {
    fn gather() -> Result<Self> {
        let mut crowd = Vec::new();
        while crowd.len() < MOST {
            let streams = Streams::load(&LoadOptions::default())?;
            let is_full = streams.reports().iter().any(|it| {
                it.program == "oom_reason" && matches!(it.state, bpf::ProgramState::Refused { .. })
            });
            crowd.push(streams);
            if is_full {
                say(format!("{} sets of programs fill the place", crowd.len()));
                return Ok(Self(crowd));
            }
        }
        bail!("the kernel takes more than {MOST} of them");
    }
}

/// A pod takes what is left of the node, at a threshold that kubelet's formula does not reach.
fn run_out(test: &str, method: &str) -> Result<()> {
    let huge = HugePages::leave(500)?;
    // The kernel counts the first victim of a group twice.
    let mut agent = Agent::new(test)?.with_kubelet("singleProcessOOMKill: true");
    agent.eviction_hard = "{memory.available: 50Mi}".to_owned();
    agent.sections = "eviction: {memoryMethod: workingSet}\n".to_owned();
    agent.metrics = scrape::free_address()?;
    let gate = agent.dir.join("gate");
    agent.start()?;
    let status = agent.wait("the programs are loaded", |it| {
        !it.node.ebpf.programs.is_empty()
    })?;
    let programs = &status.node.ebpf.programs;
    let reason = programs.iter().find(|it| it.name == "oom_reason");
    let is_attached = reason.is_some_and(|it| it.state == ProgramState::Attached);
    ensure!(is_attached == (method == "exact"), "{programs:#?}");
    let rate = u64::from(scaled(400, 40)?) * 1_000_000;
    put_pods(&agent, &gate, &format!("leak {rate}"))?;
    let before = kernel_kills()?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    fs::write(&gate, "")?;
    let pod = agent.wait_pod("leak", "is killed", |it| end_of(it, "app").is_some())?;
    assert_eq!(
        end_of(&pod, "app"),
        Some(("OOMKilled".to_owned(), Some(137)))
    );
    let n_told = || anyhow::Ok(agent.events("oom")?.len() as u64);
    agent.wait_for("every kill is told", || {
        Ok(n_told()? == kernel_kills()? - before)
    })?;
    // Once at the end of it, and once when everything has had its time.
    for wait in [0, 5] {
        thread::sleep(Duration::from_secs(wait));
        let n_kernel = kernel_kills()? - before;
        let told = agent.events("oom")?;
        assert_eq!(told.len() as u64, n_kernel, "{told:#?}");
        for record in &told {
            let detail = oom_detail(record)?;
            assert_eq!(detail.scope, OomScope::Node, "{record:#?}");
            assert_eq!(detail.constraint, Some(OomConstraint::Global));
            assert_eq!(detail.limit, None, "{record:#?}");
            assert_eq!(whose(record), ("leak", "app"));
        }
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let by_scope = |scope| page.sum("ballast_oom_scope_kills_total", &[("scope", scope)]);
        assert_eq!(by_scope("node"), n_kernel as f64);
        assert_eq!(
            page.sum("ballast_oom_scope_kills_total", &[]),
            n_kernel as f64
        );
        let by_method = page.sum("ballast_oom_attribution_total", &[("method", method)]);
        assert_eq!(by_method, n_kernel as f64);
        assert_eq!(page.sum("ballast_oom_missed_kills_total", &[]), 0.0);
        // What `BallastNodeOom` asks: a kill of the last quarter of an hour.
        let last = "ballast_oom_last_node_kill_timestamp_seconds";
        let last = page
            .value(last, &[("scope", "node")])
            .context("the time of the last kill by the node")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        ensure!(started <= last && now - last < 900.0, "{last} at {now}");
    }
    let records = agent.oom_records()?;
    let n_recorded: u64 = records.iter().map(|it| it.n_kills).sum();
    assert_eq!(n_recorded, kernel_kills()? - before, "{records:#?}");
    // The kills of one second are one record.
    let mut begun: Vec<u64> = records.iter().map(|it| it.event.boottime_ns).collect();
    begun.sort_unstable();
    let are_apart = |it: &[u64]| it[1] - it[0] >= 1_000_000_000;
    assert!(begun.windows(2).all(are_apart), "{records:#?}");
    for record in &records {
        let after = Duration::from_micros(record.recorded_after_us);
        say(format!(
            "record {} after {after:?}, without {:?}",
            record.id, record.cut
        ));
    }
    let status = agent.status()?;
    let steady = status.pods.iter().filter(|it| it.name != "leak");
    assert_eq!(
        steady.filter(|it| is_running(it)).count(),
        3,
        "{STEADY} MiB each"
    );
    drop(huge);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_is_told_by_the_kernels_reason() -> Result<()> {
    only_in_a_vm()?;
    run_out("node-oom-exact", "exact")
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_by_the_node_is_told_where_the_reason_cannot_be_read() -> Result<()> {
    only_in_a_vm()?;
    let _crowd = Crowd::gather()?;
    run_out("node-oom-derived", "derived")
}
