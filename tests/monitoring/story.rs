//! Stories of a node, told to the agent's own metrics in simulated time, and read by a Prometheus: in
//! one everything goes wrong and every alert fires, in the other a day passes with what a day brings
//! and nobody is called.

mod node;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::model::admission::RefusalReason;
use ballast::model::event::AttributionMethod;
use ballast::model::eviction::Signal;
use ballast::model::pod::QosClass;
use ballast::model::record::OomScope;
use ballast::observe::metrics::labels::{
    BlockedReason, EvictionResult, EvictionSignal, EvictionStage, Hook, LossReason, RestoreResult,
    Stream, WriteResult,
};
use ballast::observe::metrics::{EvictionEffect, table};
use ballast_tests::prometheus::{Prometheus, program, run};
use ballast_tests::scratch::Scratch;

use self::node::{BEGIN, Node, STEP, State, bytes, pod};
use crate::rules::{self, Rule};

const MINUTE: u64 = 60 / STEP;
const HOUR: u64 = 60 * MINUTE;

/// Rules with what is recorded put in place of its name, so that an expression says all.
fn alerts() -> Result<Vec<Rule>> {
    let recorded = rules::rules(rules::RECORDED)?;
    let recorded: Vec<_> = recorded
        .groups
        .into_iter()
        .flat_map(|it| it.rules)
        .collect();
    let mut alerts = rules::alerts()?;
    for alert in &mut alerts {
        for rule in &recorded {
            let name = rule.record.as_deref().context("a rule that records")?;
            alert.expr = alert.expr.replace(name, &format!("({})", rule.expr));
        }
    }
    Ok(alerts)
}

/// Names in the expressions of the alerts.
fn wanted(alerts: &[Rule]) -> BTreeSet<String> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = alerts
        .iter()
        .flat_map(|it| it.expr.split(move |it| !is_part(it)));
    words.map(str::to_owned).collect()
}

/// A Prometheus with the pages of a story.
fn tell(pages: String) -> Result<Prometheus> {
    let scratch = Scratch::new("story")?;
    let file = scratch.write("story.om", pages)?;
    let data = Prometheus::data(&scratch);
    fs::create_dir(&data)?;
    let mut promtool = program("promtool");
    promtool
        .args(["tsdb", "create-blocks-from", "openmetrics", "--quiet"])
        .arg(&file)
        .arg(&data);
    run(&mut promtool)?;
    fs::remove_file(&file)?;
    Prometheus::start(scratch, "{}", &[])
}

/// Whether the alert fires at some time between two, in steps since the story began.
fn fires(server: &Prometheus, alert: &Rule, [from, to]: [i64; 2]) -> Result<bool> {
    let at = |step: i64| {
        let seconds = i64::try_from(BEGIN)? + step * i64::try_from(STEP)?;
        anyhow::Ok(Duration::from_secs(u64::try_from(seconds)?).as_secs_f64())
    };
    let step = Duration::from_secs(STEP).as_secs_f64();
    let hold = alert.hold.as_deref().map_or(0, rules::seconds);
    let hold = Duration::from_secs(hold).as_secs_f64();
    let series = server.query_range(&alert.expr, [at(from)?, at(to)?], step)?;
    Ok(series.iter().any(|series| {
        let mut active_since: Option<f64> = None;
        let mut last = f64::NEG_INFINITY;
        series.points.iter().any(|(at, _)| {
            if *at > last + step {
                active_since = Some(*at);
            }
            last = *at;
            active_since.is_some_and(|since| *at - since >= hold)
        })
    }))
}

/// The alerts that fire; `from` and `to` in steps.
fn firing(server: &Prometheus, alerts: &[Rule], span: [i64; 2]) -> Result<BTreeSet<String>> {
    let mut firing = BTreeSet::new();
    for alert in alerts {
        if fires(server, alert, span).with_context(|| alert.name().to_owned())? {
            firing.insert(alert.name().to_owned());
        }
    }
    Ok(firing)
}

#[cfg_attr(feature = "monitoring", test)]
fn every_alert_fires_when_everything_goes_wrong() -> Result<()> {
    let alerts = alerts()?;
    let mut node = Node::new(wanted(&alerts));
    for _ in 0..10 * MINUTE {
        node.step(&State::QUIET)?;
    }
    node.restart(RestoreResult::Rebuilt);
    let bad = State {
        stalls: [0.3, 0.5, 0.8],
        cpu_wait: 0.9,
        throttled: 0.4,
        memory_wait: 0.5,
        hits: 1,
        time_to_limit: Some(Duration::from_secs(300)),
        free_cpus: [1, 1, 1],
        n_remote: 500,
        n_unhealthy: 1,
        n_drifted: 2,
        n_dying: 5000,
        write: WriteResult::Refused,
        hook: Hook::None,
        agent_bytes: 100 << 20,
        api_tells: false,
        ..State::QUIET
    };
    node.step(&bad)?;
    // The kernel is first.
    node.oom_kill(OomScope::Node, AttributionMethod::None, true);
    for _ in 0..20 * MINUTE {
        node.step(&bad)?;
    }
    for _ in 0..3 {
        node.oom_kill(OomScope::Container, AttributionMethod::Exact, false);
    }
    node.miss_oom_kill();
    let metrics = node.metrics.clone();
    metrics.yielded("cpu.max", node.wall());
    let refusal = Some(RefusalReason::TopologyAffinityError);
    metrics.admission(&pod().uid, "restricted", refusal, None, node.wall());
    let lose = |n, at| metrics.set_bpf_lost(Stream::Process, LossReason::RingFull, n, at);
    lose(0, node.wall());
    lose(5, node.wall());
    // Then eviction, slowly and for little.
    let met = State {
        threshold_is_met: true,
        ..bad
    };
    let signal = EvictionSignal::from(Signal::MemoryAvailable);
    for n in 0..60 * MINUTE {
        let at = node.wall();
        if n % MINUTE == 0 {
            let stage = EvictionStage::Kill;
            metrics.eviction_action(signal, stage, EvictionResult::Done, false, at);
            metrics.pod_evicted(&pod().uid, signal, QosClass::Burstable, None, at);
            let effect = EvictionEffect {
                expected: bytes(100),
                freed: bytes(10),
                reaction: Some(Duration::from_secs(3)),
            };
            metrics.eviction_effect(signal, stage, &effect);
        }
        metrics.eviction_blocked(signal, BlockedReason::Critical, at);
        node.step(&met)?;
    }
    // In the end the agent hangs, and then it is gone.
    for _ in 0..10 * MINUTE {
        node.step(&State {
            passes: false,
            ..State::QUIET
        })?;
    }
    for _ in 0..10 * MINUTE {
        node.step(&State {
            answers: false,
            ..State::QUIET
        })?;
    }
    let length = i64::try_from(node.now().as_secs() / STEP)?;
    let server = tell(node.into_pages())?;
    // Before it began there was no agent.
    let before = i64::try_from(20 * MINUTE)?;
    let fired = firing(&server, &alerts, [-before, length])?;
    let all: BTreeSet<_> = alerts.iter().map(|it| it.name().to_owned()).collect();
    let silent: Vec<_> = all.difference(&fired).collect();
    ensure!(silent.is_empty(), "never fired: {silent:?}");
    Ok(())
}

/// A day on a kernel without fentry, on which a pod restarts, somebody beside the pods meets a limit of
/// their own, the agent is replaced, a pod is evicted for a short while and two busy hours come and go,
/// in which a pod is throttled by its own limit.
#[cfg_attr(feature = "monitoring", test)]
fn a_quiet_day_calls_nobody() -> Result<()> {
    let alerts = alerts()?;
    let mut node = Node::new(wanted(&alerts));
    let busy = State {
        stalls: [0.02, 0.1, 0.2],
        cpu_wait: 0.28,
        throttled: 0.2,
        memory_wait: 0.02,
        hits: 1,
        free_cpus: [1, 1, 0],
        n_remote: 100,
        n_dying: 800,
        agent_bytes: 30 << 20,
        ..State::QUIET
    };
    let signal = EvictionSignal::from(Signal::MemoryAvailable);
    for n in 0..24 * HOUR {
        let hour = n / HOUR;
        if n % HOUR == 0 {
            match hour {
                // A container meets its limit, and is started again.
                3 => node.oom_kill(OomScope::Container, AttributionMethod::Exact, true),
                5 => node.oom_kill(OomScope::Other, AttributionMethod::Derived, true),
                9 => node.restart(RestoreResult::Loaded),
                15 => {
                    let (metrics, at) = (&node.metrics, node.wall());
                    let (stage, done) = (EvictionStage::Kill, EvictionResult::Done);
                    metrics.eviction_action(signal, stage, done, false, at);
                    metrics.pod_evicted(&pod().uid, signal, QosClass::BestEffort, None, at);
                    let effect = EvictionEffect {
                        expected: bytes(100),
                        freed: bytes(90),
                        reaction: Some(Duration::from_millis(40)),
                    };
                    metrics.eviction_effect(signal, stage, &effect);
                    metrics.eviction_blocked(signal, BlockedReason::Rate, at);
                }
                _ => {}
            }
        }
        let mut state = if (12..14).contains(&hour) {
            busy.clone()
        } else {
            State::QUIET
        };
        state.threshold_is_met = hour == 15 && n % HOUR < 2 * MINUTE;
        node.step(&state)?;
    }
    let server = tell(node.into_pages())?;
    let end = i64::try_from(24 * HOUR)?;
    let fired = firing(&server, &alerts, [1, end])?;
    // Which also shows that the story was heard.
    let expected = BTreeSet::from(["BallastContainerOomKilled".to_owned()]);
    ensure!(fired == expected, "fired: {fired:?}");
    Ok(())
}

/// An alert for a metric that nobody makes would never fire.
#[cfg_attr(feature = "monitoring", test)]
fn alerts_ask_for_metrics_that_exist() -> Result<()> {
    let names: BTreeSet<_> = table().iter().map(|it| it.name).collect();
    let wanted = wanted(&alerts()?);
    let ours: Vec<_> = wanted
        .iter()
        .filter(|it| it.starts_with("ballast_"))
        .collect();
    ensure!(!ours.is_empty(), "no alert asks for anything");
    for name in ours {
        let family = name.strip_suffix("_bucket").unwrap_or(name);
        ensure!(names.contains(family), "{name} is not in the table");
    }
    Ok(())
}

/// `promtool check metrics` reads the text format as the server does, and has an opinion of names and
/// help texts besides.
#[cfg_attr(feature = "monitoring", test)]
fn an_old_server_takes_the_page() -> Result<()> {
    use std::io::Write;
    use std::process::Stdio;

    let mut node = Node::new(BTreeSet::new());
    node.step(&State::QUIET)?;
    node.oom_kill(OomScope::Container, AttributionMethod::Exact, true);
    let page = node.page()?;
    let mut promtool = program("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = promtool.stdin.take().context("stdin is a pipe")?;
    stdin.write_all(page.as_bytes())?;
    drop(stdin);
    let output = promtool.wait_with_output()?;
    let found = [output.stdout, output.stderr].concat();
    let found = String::from_utf8(found)?;
    // Kubelet's names are its own, and may not please anybody.
    let ours: Vec<_> = found
        .lines()
        .filter(|it| !it.starts_with("kubelet_"))
        .collect();
    ensure!(ours.is_empty(), "{ours:#?}");
    Ok(())
}
