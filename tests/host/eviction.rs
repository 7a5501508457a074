//! Pods that take more memory than there is: who goes, how soon, and that it stays so. Pods have a
//! part of the machine's memory together, so that nobody else runs short.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::container::PodPhase;
use ballast::model::eviction::Signal;
use ballast::model::record::EventRecord;
use ballast::model::status::{PodEntry, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::sampler::Sampler;
use ballast_tests::scratch::own_name;
use ballast_tests::wait::wait_for;
use ballast_tests::{cgroup, scrape};
use nix::sys::signal::{self as process, kill};
use nix::sys::statfs::{FsType, TMPFS_MAGIC, statfs};
use nix::unistd::Pid;
use serde_json::json;

use super::crash::{Dice, after, seed};
use super::look::{is_running, of_pods, pid_of, pod_dir};
use super::{say, scaled};

const MIB: u64 = 1 << 20;

/// Memory of all pods, MiB.
fn room() -> Result<u64> {
    Ok(scaled(1024, 192)?.into())
}

/// What of it has to be available, MiB: at 2 GB/s gone within 200 ms.
fn threshold() -> Result<u64> {
    Ok(scaled(400, 64)?.into())
}

pub(super) fn agent(test: &str) -> Result<Agent> {
    let mut agent = Agent::new(test)?.with_memory(room()?, threshold()?)?;
    agent.metrics = scrape::free_address()?;
    Ok(agent)
}

pub(super) fn is_evicted(pod: &PodEntry) -> bool {
    pod.phase == PodPhase::Failed && pod.reason.as_deref() == Some("Evicted")
}

/// Records of the kind `pod` with this reason.
pub(super) fn told(agent: &Agent, reason: &str) -> Result<Vec<EventRecord>> {
    let mut records = agent.events("pod")?;
    records.retain(|it| it.event.reason == reason);
    Ok(records)
}

/// Names of the pods that were evicted, in this order.
pub(super) fn evicted(agent: &Agent) -> Result<Vec<String>> {
    let records = told(agent, "Evicted")?;
    let pods = records.into_iter().filter_map(|it| it.event.pod);
    Ok(pods.map(|it| it.name).collect())
}

/// Holds so many MiB.
pub(super) fn holds(pod: &str, mib: u64) -> Result<Manifest> {
    let container = Container::new("app", &[&hog()?, "hold", &(mib * MIB).to_string()]);
    Ok(Manifest::new(pod).container(container))
}

pub(super) fn wait_usage(agent: &Agent, pod: &PodEntry, bytes: u64) -> Result<()> {
    let path = pod.cgroup_path.clone().context("a pod with a cgroup")?;
    agent.wait_for(&format!("{} uses {bytes} bytes", pod.name), || {
        match cgroup::memory_usage(&path) {
            Ok(usage) => Ok(usage >= bytes),
            // It was there, and is evicted and removed already.
            Err(_) => Ok(agent
                .status()?
                .pods
                .iter()
                .any(|it| it.uid == pod.uid && is_evicted(it))),
        }
    })
}

/// `tail` of the machine, which keeps so many MiB that it was sent, in a cgroup outside the pods.
struct HostLeak {
    child: Child,
    cgroup: PathBuf,
}

impl HostLeak {
    fn start(name: &str, mib: u64) -> Result<Self> {
        let cgroup = cgroup::dir_of("memory", &format!("/{name}"));
        fs::create_dir(&cgroup)?;
        let bytes = mib * MIB;
        let script = format!(
            "echo $$ >{}/cgroup.procs && {{ head -c {bytes} /dev/zero; exec sleep 3600; }} | \
             tail -c {bytes}",
            cgroup.display()
        );
        let mut command = Command::new("sh");
        let child = command.args(["-c", &script]).spawn()?;
        Ok(Self { child, cgroup })
    }
}

impl Drop for HostLeak {
    fn drop(&mut self) {
        cgroup::clear(&self.cgroup);
        self.child.wait().ok();
        // Its other processes end a moment later.
        let gone = wait_for("the cgroup of the leak is gone", || {
            fs::remove_dir(&self.cgroup).ok();
            Ok(!self.cgroup.exists())
        });
        if let Err(error) = gone {
            eprintln!("{error:#}");
        }
    }
}

/// Twenty of twenty pods went for it within two seconds, and none of them had caused it: a few may go,
/// nobody with a priority or guaranteed memory, and who did it is named.
#[cfg_attr(feature = "privileged", test)]
fn a_leak_outside_the_pods_does_not_take_the_pods() -> Result<()> {
    let (margin, leak, each) = (scaled(800, 200)?, scaled(1500, 330)?, scaled(20, 8)?);
    let mut agent = Agent::new("outside")?;
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    for i in 0..8 {
        agent.put(&holds(&format!("pod-{i}"), each.into())?)?;
    }
    agent.put(&holds("urgent", each.into())?.with("priority", json!(1_000_000)))?;
    let amounts = json!({"cpu": "10m", "memory": format!("{}Mi", each * 2)});
    let hold = (u64::from(each) * MIB).to_string();
    let guaranteed = Container::new("app", &[&hog()?, "hold", &hold]).resources(json!({}), amounts);
    agent.put(&Manifest::new("guaranteed").container(guaranteed))?;
    let status = agent.wait("all pods run", |status| {
        status.pods.len() == 10 && status.pods.iter().all(is_running)
    })?;
    for pod in &status.pods {
        wait_usage(&agent, pod, u64::from(each) * MIB)?;
    }
    let available = agent
        .wait("the signal is known", |it| signal(it).is_some())
        .map(|it| signal(&it))?
        .context("it is")?;
    agent.stop()?;
    let threshold = u64::try_from(available)? / MIB - u64::from(margin);
    agent.eviction_hard = format!("{{memory.available: {threshold}Mi}}");
    agent.start()?;
    agent.wait("the pods are adopted", |it| it.pods.iter().all(is_running))?;
    thread::sleep(Duration::from_secs(2));
    assert_eq!(
        evicted(&agent)?,
        [""; 0],
        "the machine is busy with something else"
    );

    let name = own_name("leak");
    let first_leak = HostLeak::start(&name, leak.into())?;
    let told = agent.wait_events("it is told", "node", |it| {
        it.iter().any(|it| it.event.reason == "EvictionIneffective")
    })?;
    // It leaks on, and stays.
    thread::sleep(Duration::from_secs(5));
    let gone = evicted(&agent)?;
    say(format!("{} of 10 pods went: {gone:?}", gone.len()));
    // Four in vain, and one after a fourth that gave hardly more than was needed: that it was in vain
    // shows only when the leak has taken half of what it gave.
    assert!(gone.len() <= 5, "{gone:?}");
    assert!(gone.iter().all(|it| it.starts_with("pod-")), "{gone:?}");
    let status = agent.status()?;
    assert_eq!(
        status.pods.iter().filter(|it| is_running(it)).count(),
        10 - gone.len()
    );
    let again = agent.events("node")?;
    let of = |it: &[EventRecord]| -> Vec<String> {
        let told = it
            .iter()
            .filter(|it| it.event.reason == "EvictionIneffective");
        told.map(|it| it.event.message.clone()).collect()
    };
    let message = of(&told);
    assert!(
        message[0].contains("(tail)") && message[0].contains(&name),
        "{message:?}"
    );
    assert_eq!(of(&again), message);

    // It ends, and another one begins: the same again, which is no news. Evictions that were in vain stay so, and
    // those that are left to be tried are no more than they were.
    let address = agent.metrics.clone();
    let n_blocked = || -> Result<f64> {
        let page = scrape::page(&address, "/metrics")?;
        Ok(page.sum(
            "ballast_eviction_blocked_total",
            &[("reason", "ineffective")],
        ))
    };
    drop(first_leak);
    agent.wait("memory is there again", |it| {
        let threshold = i64::try_from(threshold * MIB).unwrap_or(i64::MAX);
        signal(it).is_some_and(|it| it > threshold)
    })?;
    let before = n_blocked()?;
    let _second_leak = HostLeak::start(&name, leak.into())?;
    agent.wait_for("no further one goes for the second either", || {
        Ok(n_blocked()? > before)
    })?;
    assert_eq!(of(&agent.events("node")?), message);
    let gone = evicted(&agent)?;
    say(format!(
        "after a second leak {} are gone: {gone:?}",
        gone.len()
    ));
    assert!(gone.len() <= 5, "{gone:?}");
    assert!(gone.iter().all(|it| it.starts_with("pod-")), "{gone:?}");

    // The next agent knows who went in vain.
    agent.kill()?;
    agent.start()?;
    agent.wait_for("nobody goes for the next agent either", || {
        Ok(n_blocked()? > 0.0)
    })?;
    thread::sleep(Duration::from_secs(3));
    // Its events are its own.
    assert_eq!(evicted(&agent)?, [""; 0]);
    let status = agent.status()?;
    let n_running = status.pods.iter().filter(|it| is_running(it)).count();
    assert_eq!(n_running, 10 - gone.len());
    Ok(())
}

/// What is available of the node's memory, bytes.
fn signal(status: &Status) -> Option<i64> {
    let pressure = status.node.pressure.as_ref()?;
    let mut signals = pressure.signals.iter();
    let found = signals.find(|it| it.signal == Signal::MemoryAvailable)?;
    found.available
}

/// How often usage was at the limit of a cgroup.
pub(super) fn limit_hits(cgroup_path: &str) -> Result<u64> {
    if !cgroup::is_unified() {
        return Ok(cgroup::read("memory", cgroup_path, "memory.failcnt")?.parse()?);
    }
    let text = cgroup::read("memory", cgroup_path, "memory.events")?;
    let count = text.lines().find_map(|it| it.strip_prefix("max "));
    Ok(count.context("no max in memory.events")?.parse()?)
}

/// Takes memory at a rate, bytes per second, once the gate is open, and notes each of its starts.
fn leaks(pod: &str, rate: u64, gate: &Path, journal: &Path) -> Result<Manifest> {
    let leak = after(gate, &format!("exec {} leak {rate}", hog()?));
    let script = format!("echo started >>{}; {leak}", journal.display());
    Ok(Manifest::new(pod)
        .with("restartPolicy", json!("Always"))
        .container(Container::sh("app", &script)))
}

pub(super) fn n_starts(journal: &Path) -> usize {
    let text = fs::read_to_string(journal).unwrap_or_default();
    text.lines().count()
}

/// A leak of so many MB a second (10^6 bytes) takes one pod, its own, and the kernel kills nobody.
fn check_leak(test: &str, mb_per_second: u32) -> Result<()> {
    let mut agent = agent(test)?;
    agent.start()?;
    let rate = u64::from(scaled(mb_per_second, 10)?) * 1_000_000;
    let (gate, journal) = (agent.dir.join("gate"), agent.dir.join("journal"));
    agent.put(&holds("steady", 8)?)?;
    agent.put(&leaks("leak", rate, &gate, &journal)?)?;
    let steady = agent.wait_pod("steady", "runs", is_running)?;
    let leak = agent.wait_pod("leak", "runs", is_running)?;
    let sampler = Sampler::start(&agent.kubepods(), pid_of(&leak, "app").context("runs")?)?;
    fs::write(&gate, "")?;
    let leak = agent.wait_pod("leak", "is evicted", is_evicted)?;
    let seen = sampler.finish()?;

    let line = (room()? - threshold()?) * MIB;
    let overshoot = seen.most().saturating_sub(line);
    let reaction = seen.crossed(line).zip(seen.ended_at);
    let reaction = reaction.map(|(crossed, ended)| ended.saturating_sub(crossed));
    say(format!(
        "at {} MB/s gone after {reaction:?}, {} KiB beyond the threshold",
        rate / 1_000_000,
        overshoot >> 10
    ));
    ensure!(
        overshoot < threshold()? * MIB / 2,
        "{overshoot} bytes too many were used; log:\n{}",
        agent.log_tail()
    );
    assert_eq!(limit_hits(&agent.kubepods())?, 0, "the kernel had to act");
    assert_eq!(of_pods(agent.events("oom")?), []);
    let message = leak.message.unwrap_or_default();
    assert!(message.contains("low on resource: memory"), "{message}");
    assert_eq!(evicted(&agent)?, ["leak"]);
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let signal = "allocatableMemory.available";
    let of_pods = [("qos", "besteffort"), ("signal", signal)];
    assert_eq!(page.sum("ballast_eviction_pods_total", &of_pods), 1.0);
    let of_signal = [("eviction_signal", signal)];
    assert_eq!(page.sum("kubelet_evictions", &of_signal), 1.0);

    agent.stop()?;
    agent.start()?;
    let after = agent.wait_pod("steady", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&steady, "app"));
    agent.wait_pod("leak", "is evicted", is_evicted)?;
    assert_eq!(n_starts(&journal), 1);
    agent.remove_pod("leak")?;
    agent.wait("one pod", |status| status.pods.len() == 1)?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_leak_of_50_mb_per_second_takes_its_own_pod_alone() -> Result<()> {
    check_leak("leak-50", 50)
}

#[cfg_attr(feature = "privileged", test)]
fn a_leak_of_400_mb_per_second_takes_its_own_pod_alone() -> Result<()> {
    check_leak("leak-400", 400)
}

#[cfg_attr(feature = "privileged", test)]
fn a_leak_of_2_gb_per_second_takes_its_own_pod_alone() -> Result<()> {
    check_leak("leak-2000", 2000)
}

/// An agent that did not get to look is no excuse: the time counts from the crossing, as far as readings tell.
#[cfg_attr(feature = "privileged", test)]
fn a_crossing_that_is_seen_late_counts_from_when_it_was() -> Result<()> {
    let mut agent = agent("late")?;
    agent.start()?;
    let gate = agent.dir.join("gate");
    let most = room()? * 9 / 10;
    let script = after(&gate, &format!("exec {} hold {}", hog()?, most * MIB));
    agent.put(&Manifest::new("greedy").container(Container::sh("app", &script)))?;
    let pod = agent.wait_pod("greedy", "runs", is_running)?;
    let path = pod.cgroup_path.context("a pod with a cgroup")?;
    let pid = Pid::from_raw(agent.pid().context("an agent")?.try_into()?);
    kill(pid, process::Signal::SIGSTOP)?;
    let stopped = Instant::now();
    fs::write(&gate, "")?;
    wait_for("the pod has it", || {
        Ok(cgroup::memory_usage(&path)? >= most * MIB)
    })?;
    thread::sleep(Duration::from_secs(3));
    let away = stopped.elapsed().as_secs_f64();
    kill(pid, process::Signal::SIGCONT)?;
    agent.wait_pod("greedy", "is evicted", is_evicted)?;
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let sum = |name: &str| page.sum(&format!("ballast_eviction_reaction_seconds_{name}"), &[]);
    assert_eq!(sum("count"), 1.0);
    let reaction = sum("sum");
    // More than a quarter of what was taken lies beyond the threshold.
    ensure!(
        reaction > away / 5.0,
        "{reaction} s, of {away} s in which nobody looked"
    );
    Ok(())
}

/// Where the files of pods live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Files {
    OnDisk,
    /// They are memory like any other then, and no cache.
    InMemory,
}

pub(super) fn files_of(agent: &Agent) -> Result<Files> {
    files_in(&agent.state())
}

/// The same of a directory.
pub(super) fn files_in(directory: &Path) -> Result<Files> {
    const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
    let kind = statfs(directory)?.filesystem_type();
    Ok(match [TMPFS_MAGIC, RAMFS_MAGIC].contains(&kind) {
        true => Files::InMemory,
        false => Files::OnDisk,
    })
}

/// Writes twice of what pods may use and reads it twice. On a disk that is page cache, which the
/// kernel takes back, and nobody goes for it.
#[cfg_attr(feature = "privileged", test)]
fn a_flood_of_page_cache_evicts_nobody() -> Result<()> {
    let (room, threshold) = (128, 32);
    let mut agent = Agent::new("flood")?.with_memory(room, threshold)?;
    agent.sections = "eviction: {memoryMethod: estimate}\n".to_owned();
    agent.start()?;
    let write = format!("head -c {} /dev/zero", room * MIB);
    let script = format!(
        "cd volumes/shared && {write} >a && {write} >b && cat a b a b >/dev/null && echo >done; \
         exec sleep 3600"
    );
    agent.put(&Manifest::new("flood").container(Container::sh("app", &script)))?;
    if files_of(&agent)? == Files::InMemory {
        say("no disk here: files are memory");
        agent.wait_pod("flood", "is evicted", is_evicted)?;
        return Ok(());
    }
    let flood = agent.wait_pod("flood", "runs", is_running)?;
    let done = pod_dir(&agent.state(), &flood).join("volumes/shared/done");
    agent.wait_for("all is read", || Ok(done.exists()))?;
    assert!(limit_hits(&agent.kubepods())? > 0, "it was no flood");
    assert_eq!(evicted(&agent)?, [""; 0]);
    assert_eq!(of_pods(agent.events("oom")?), []);
    agent.wait_pod("flood", "runs", is_running)?;
    Ok(())
}

/// All three are over their request, which is nothing. The one that counts least goes, even if it
/// has the least; the critical one never does.
#[cfg_attr(feature = "privileged", test)]
fn the_pod_of_lowest_priority_goes_first() -> Result<()> {
    let mut agent = agent("order")?;
    agent.start()?;
    let line = room()? - threshold()?;
    let third = |pod: &str, priority: i64| -> Result<Manifest> {
        let pod = holds(pod, line * 3 / 10)?;
        Ok(pod.with("priority", json!(priority)))
    };
    agent.put(&third("critical", 2_000_000_000)?)?;
    agent.put(&third("high", 1000)?)?;
    for name in ["critical", "high"] {
        let pod = agent.wait_pod(name, "runs", is_running)?;
        wait_usage(&agent, &pod, line * 3 / 10 * MIB)?;
    }
    // Under pressure nothing that requests nothing is admitted: both are there before it.
    let (first, second) = (agent.dir.join("first"), agent.dir.join("second"));
    for (name, priority, gate, mib) in [
        ("low", -5, &first, line * 5 / 10),
        ("top", 2000, &second, line * 5 / 10),
    ] {
        let script = after(gate, &format!("exec {} hold {}", hog()?, mib * MIB));
        let pod = Manifest::new(name).container(Container::sh("app", &script));
        agent.put(&pod.with("priority", json!(priority)))?;
        agent.wait_pod(name, "runs", is_running)?;
    }
    fs::write(&first, "")?;
    agent.wait_pod("low", "is evicted", is_evicted)?;
    assert_eq!(evicted(&agent)?, ["low"]);
    fs::write(&second, "")?;
    agent.wait_pod("high", "is evicted", is_evicted)?;
    let status = agent.wait("the others run", |status| {
        let alive = status.pods.iter().filter(|it| !is_evicted(it));
        alive.clone().count() == 2 && { alive }.all(is_running)
    })?;
    assert_eq!(evicted(&agent)?, ["low", "high"]);
    assert_eq!(of_pods(agent.events("oom")?), []);
    let critical = status.pods.iter().find(|it| it.name == "critical");
    let critical = &critical.context("it is there")?.uid;
    let pressure = status.node.pressure.context("it is known")?;
    assert!(pressure.critical.contains(critical));
    Ok(())
}

/// Not before the grace of the threshold is over; then with SIGTERM, and with no more time than
/// eviction allows.
#[cfg_attr(feature = "privileged", test)]
fn a_soft_threshold_waits_and_asks_first() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(2);
    const MOST: Duration = Duration::from_secs(1);
    /// What the pod asks for.
    const OWN: Duration = Duration::from_hours(1);
    let signal = "allocatableMemory.available";
    let mut agent = agent("soft")?
        .with_kubelet(&format!("evictionSoft: {{{signal}: {}Mi}}", threshold()?))
        .with_kubelet(&format!(
            "evictionSoftGracePeriod: {{{signal}: {}s}}",
            GRACE.as_secs()
        ))
        .with_kubelet(&format!("evictionMaxPodGracePeriod: {}", MOST.as_secs()));
    agent.eviction_hard = "{memory.available: 1Mi}".to_owned();
    agent.start()?;
    let note = agent.dir.join("asked");
    let much = (room()? - threshold()? + 16) * MIB;
    let script = format!(
        "trap 'echo >{}' TERM; {} hold {much} & while :; do sleep 0.1; done",
        note.display(),
        hog()?
    );
    agent.put(
        &Manifest::new("much")
            .with("terminationGracePeriodSeconds", json!(OWN.as_secs()))
            .container(Container::sh("app", &script)),
    )?;
    let told = agent.wait_events("pressure", "node", |it| {
        it.iter()
            .any(|it| it.event.reason == "NodeHasInsufficientMemory")
    })?;
    let pressed = told
        .iter()
        .find(|it| it.event.reason == "NodeHasInsufficientMemory");
    let pressed = pressed.context("it was there")?.event.boottime_ns;
    agent.wait_for("the pod is asked to end", || Ok(note.exists()))?;
    let much = agent.wait_pod("much", "is evicted", is_evicted)?;
    assert_eq!(evicted(&agent)?, ["much"]);
    let records = agent.events("pod,container")?;
    let at = |reason: &str| {
        let found = records.iter().find(|it| it.event.reason == reason);
        found.map(|it| Duration::from_nanos(it.event.boottime_ns))
    };
    let waited = at("Evicted").context("told")? - Duration::from_nanos(pressed);
    let lived = at("PodFailed").context("told")? - at("Evicted").context("told")?;
    say(format!("evicted after {waited:?}, killed after {lived:?}"));
    // The condition is told in the pass that finds the threshold met.
    assert!(waited >= GRACE - Duration::from_millis(100), "{waited:?}");
    assert!(lived >= MOST - Duration::from_millis(100), "{lived:?}");
    assert!(lived < OWN, "{lived:?}");
    assert_eq!(much.containers.first().map(|it| it.restarts), Some(0));
    Ok(())
}

/// Killed while it evicts, again and again: a pod whose eviction was begun never runs again.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_dies_while_it_evicts_leaves_no_pod_to_return() -> Result<()> {
    let mut agent = agent("evict-crash")?;
    let mut dice = Dice(seed()?);
    let notes = agent.state().join("evictions");
    let n_rounds = scaled(10, 2)?;
    let (mut n_noted, mut n_undecided) = (0, 0);
    // What the node has left lasts longer than the start of an agent.
    let rate = u64::from(scaled(100, 10)?) * 1_000_000;
    let line = (room()? - threshold()?) * MIB;
    agent.start()?;
    for round in 0..n_rounds {
        let name = format!("leak-{round}");
        let (gate, journal) = (
            agent.dir.join(format!("gate-{round}")),
            agent.dir.join(format!("journal-{round}")),
        );
        // With a request it is admitted although the node has been short of memory.
        let mut pod = leaks(&name, rate, &gate, &journal)?;
        pod = pod.with("resources", json!({"requests": {"memory": "1Mi"}}));
        agent.put(&pod)?;
        let entry = agent.wait_pod(&name, "runs", is_running)?;
        fs::write(&gate, "")?;
        wait_usage(&agent, &entry, line - 2 * MIB)?;
        let until = Instant::now() + Duration::from_micros(dice.below(40_000));
        while Instant::now() < until {
            thread::sleep(Duration::from_micros(200));
        }
        agent.kill()?;
        let is_noted = fs::read_dir(&notes)?.count() > 0;
        n_noted += u32::from(is_noted);
        agent.start()?;
        agent.wait_pod(&name, "is evicted", is_evicted)?;
        n_undecided += u32::from(!is_noted);
        agent.wait_for("the note is taken over", || {
            Ok(fs::read_dir(&notes)?.count() == 0)
        })?;
        ensure!(
            n_starts(&journal) == 1,
            "{name} ran {} times; log:\n{}",
            n_starts(&journal),
            agent.log_tail()
        );
        agent.remove_pod(&name)?;
        agent.wait("no pods", |status| status.pods.is_empty())?;
    }
    assert_eq!(of_pods(agent.events("oom")?), []);
    say(format!(
        "{n_rounds} agents killed, {n_noted} between a decision and its record, \
         {n_undecided} before or after"
    ));
    Ok(())
}
