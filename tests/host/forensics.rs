//! A record of every OOM kill, complete, and still there after the agent has died.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::decide::missed_kills::GRACE;
use ballast::model::forensics::{MAX_RECORD_BYTES, OomRecord, RecordId};
use ballast::model::saved_counts::SavedSeries;
use ballast::model::status::Status;
use ballast::units::Limit;
use ballast_tests::agent::{Agent, hog};
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::{cgroup, scrape};

use super::eviction::{holds, wait_usage};
use super::look::{container_path, is_running, oom_detail, pod_path, wait_kills};
use super::missed::check_all_are_counted;
use super::{say, scaled};

const MIB: u64 = 1 << 20;

/// An agent under which a kill takes one process, and where it serves its metrics.
fn agent(test: &str) -> Result<Agent> {
    let mut agent = Agent::new(test)?.with_kubelet("singleProcessOOMKill: true");
    agent.metrics = scrape::free_address()?;
    agent.start()?;
    Ok(agent)
}

/// Dies one process after the other, `n` in all, and then rests.
fn burst(pod: &str, n: u32) -> Result<Manifest> {
    let script = format!("{} burst {n} {}; exec sleep 3600", hog()?, 16 * MIB);
    let container = Container::sh("greedy", &script).limited_to(8);
    Ok(Manifest::new(pod).with_overhead(16).container(container))
}

/// Records of kills in pods; the rest of the node has kills too.
fn of_pods(agent: &Agent) -> Result<Vec<OomRecord>> {
    let mut records = agent.oom_records()?;
    records.retain(|it| it.event.pod.is_some());
    Ok(records)
}

/// What the file of counts has of a pod's container.
fn saved_kills(agent: &Agent, pod: &str) -> Result<f64> {
    let saved = agent.saved_counts()?;
    let of_pod = |it: &&SavedSeries| it.labels.get("pod").is_some_and(|it| it == pod);
    let kills = saved.0.get("ballast_oom_kills_total").into_iter().flatten();
    Ok(kills.filter(of_pod).map(|it| it.value).sum())
}

fn n_kills(records: &[OomRecord]) -> u64 {
    records.iter().map(|it| it.n_kills).sum()
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_is_on_disk_with_its_scene() -> Result<()> {
    let agent = agent("forensics-one")?;
    // More than the other pod may ever have, so which one is the largest does not depend on when
    // the scene is taken.
    agent.put(&holds("beside", 64)?)?;
    let beside = agent.wait_pod("beside", "runs", is_running)?;
    wait_usage(&agent, &beside, 64 * MIB)?;
    let other = Container::idle("other").limited_to(8);
    let greedy = Container::new("greedy", &[&hog()?, "child", "100663296"]).limited_to(24);
    agent.put(
        &Manifest::new("one")
            .with_overhead(16)
            .container(greedy)
            .container(other),
    )?;
    let kills = wait_kills(&agent, 1)?;
    let detail = oom_detail(&kills[0])?;
    let id = detail.record_id.context("the event names no record")?;
    agent.wait_for("the record with its scene", || {
        let records = of_pods(&agent)?;
        Ok(records.iter().any(|it| it.id == id && it.cut.is_empty()))
    })?;
    let path = agent.state().join("oom").join(id.file_name());
    let metadata = fs::metadata(&path).with_context(|| path.display().to_string())?;
    ensure!(metadata.len() <= MAX_RECORD_BYTES as u64);
    let records = of_pods(&agent)?;
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!(record.event, kills[0].event);
    assert_eq!(record.n_kills, 1);

    let pod = agent.wait_pod("one", "counts the kill", |it| it.oom_kills == 1)?;
    let path = container_path(&pod, "greedy")?;
    let scene = &record.scene;
    let limit = scene.limit.as_ref().context("the full cgroup")?;
    assert_eq!(limit.cgroup_path, path);
    let file = cgroup::memory_limit_file();
    assert_eq!(limit.limits.get(file), Some(&Limit::At(24 * MIB)));
    assert!(limit.stat.len() > 10, "{:?}", limit.stat);
    assert_eq!(limit.events.get("oom_kill"), Some(&1));
    let victim_pod = scene.victim_pod.as_ref().context("the victim's pod")?;
    assert_eq!(victim_pod.cgroup_path, pod_path(&pod)?);
    let siblings: Vec<_> = scene.siblings.iter().map(|it| &it.container).collect();
    assert_eq!(siblings, [&Some("other".to_owned())]);
    let pods: Vec<&str> = scene
        .pods
        .iter()
        .filter_map(|it| it.pod.as_ref())
        .map(|it| it.name.as_str())
        .collect();
    assert_eq!(pods, ["beside", "one"], "largest first");
    let main = detail.victim.parent_pid;
    let parent = scene.processes.iter().find(|it| it.pid == main);
    assert_eq!(parent.map(|it| it.comm.as_str()), Some("hog"));
    assert!(scene.meminfo.contains_key("MemAvailable"));

    let told = agent.command(&["explain", "pod", "one"])?;
    assert!(told.contains(&format!("OOM record {id}")), "{told}");
    let told = agent.command(&["explain", "pod", "beside"])?;
    assert!(!told.contains("OOM record"), "{told}");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_burst_is_kept_in_few_records_and_counted_exactly() -> Result<()> {
    let agent = agent("forensics-burst")?;
    let n = scaled(200, 20)?;
    agent.put(&burst("burst", n)?)?;
    agent.wait_pod("burst", "counts its kills", |it| {
        it.oom_kills == u64::from(n)
    })?;
    agent.wait_for("all kills in records", || {
        Ok(n_kills(&of_pods(&agent)?) == u64::from(n))
    })?;
    let records = of_pods(&agent)?;
    let n_records = records.len();
    say(format!("{n} kills in {n_records} records"));
    assert!(n_records < n as usize / 2, "{n_records}");
    let page = scrape::page(&agent.metrics, "/metrics")?;
    let result = |it| page.sum("ballast_oom_records_total", &[("result", it)]);
    let kills = page.sum("ballast_oom_scope_kills_total", &[]);
    assert_eq!(result("dropped"), 0.0);
    assert_eq!(result("kept") + result("coalesced"), kills);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn records_and_counts_are_there_after_a_restart() -> Result<()> {
    let mut agent = agent("forensics-restart")?;
    agent.put(&burst("burst", 3)?)?;
    agent.wait_for("three kills in records, with their scenes", || {
        let records = of_pods(&agent)?;
        Ok(n_kills(&records) == 3 && records.iter().all(|it| it.scene.limit.is_some()))
    })?;
    let before = of_pods(&agent)?;
    for is_orderly in [true, false] {
        match is_orderly {
            true => agent.stop()?,
            // What was counted is saved soon, not at once.
            false => {
                agent.wait_for("three kills in the saved counts", || {
                    Ok(saved_kills(&agent, "burst").ok() == Some(3.0))
                })?;
                agent.kill()?;
            }
        }
        agent.start()?;
        assert_eq!(of_pods(&agent)?, before);
        let page = scrape::page(&agent.metrics, "/metrics")?;
        let of_burst = [
            ("container", "greedy"),
            ("namespace", "default"),
            ("pod", "burst"),
        ];
        assert_eq!(page.value("ballast_oom_kills_total", &of_burst), Some(3.0));
        let told = agent.command(&["explain", "pod", "burst"])?;
        assert!(told.contains("OOM record"), "{told}");
    }
    let newest = before.last().map(|it| it.id);
    agent.put(&burst("again", 1)?)?;
    agent.wait_for("a record of the new agent", || {
        Ok(of_pods(&agent)?.last().map(|it| it.id) > newest)
    })
}

/// A directory of pins on a file system that keeps none: said by `check`, by `status` and once by an
/// event, and kills are told all the same.
#[cfg_attr(feature = "privileged", test)]
fn pins_that_cannot_be_are_told() -> Result<()> {
    let mut agent = Agent::new("forensics-unpinned")?.with_kubelet("singleProcessOOMKill: true");
    agent.pin_directory = agent.dir.join("pins");
    agent.start()?;
    let is_told = |status: &Status| status.node.ebpf.not_pinned.is_some();
    let status = agent.wait("it is told", is_told)?;
    let why = status.node.ebpf.not_pinned.unwrap_or_default();
    let place = agent.pin_directory.display().to_string();
    assert!(
        why.contains(&place) && why.contains("not on a bpffs"),
        "{why}"
    );
    assert!(!agent.pin_directory.exists(), "made for nothing");
    let told = agent.events("node")?;
    let told = told
        .iter()
        .filter(|it| it.event.reason == "KernelEventsNotPinned");
    assert_eq!(told.count(), 1);
    let table = agent.command(&["status"])?;
    assert!(
        table.contains(&format!("not pinned, ends with the agent: {why}")),
        "{table}"
    );
    agent.put(&burst("one", 1)?)?;
    let kills = wait_kills(&agent, 1)?;
    assert!(oom_detail(&kills[0])?.record_id.is_some());
    agent.stop()?;
    let line = check_of_bpffs(&agent)?;
    assert!(line.contains("is not on one"), "{line}");
    Ok(())
}

/// What `check` says of the file system for pins.
fn check_of_bpffs(agent: &Agent) -> Result<String> {
    let output = agent.check_command()?.output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    let line = told.lines().find(|it| it.contains("bpffs"));
    Ok(line.with_context(|| format!("{output:?}"))?.to_owned())
}

/// In a container that nobody gave the host's bpffs, be it that it has none, one of its own, or may not write to it:
/// said by `check` and by `status`, and nothing is pinned that would end with the container.
#[cfg_attr(feature = "privileged", test)]
fn pins_that_would_end_with_a_container_are_not_made() -> Result<()> {
    let mut agent = Agent::new("forensics-contained")?;
    let of_none = ("on no bpffs of the host", "is on none of the host");
    let read_only = ("Read-only file system", "cannot be written");
    for (mounts, (in_status, in_check)) in [
        ("umount /sys/fs/bpf", of_none),
        (
            "umount /sys/fs/bpf && mount -t bpf none /sys/fs/bpf",
            of_none,
        ),
        ("mount -o remount,bind,ro /sys/fs/bpf", read_only),
    ] {
        let script = format!("{mounts} && exec \"$@\"");
        agent.start_by(&["unshare", "-m"], &script);
        agent.start()?;
        let is_told = |status: &Status| status.node.ebpf.not_pinned.is_some();
        let status = agent.wait("it is told", is_told)?;
        let why = status.node.ebpf.not_pinned.unwrap_or_default();
        assert!(why.contains(in_status), "{why}");
        let inside = format!("/proc/{}/root", agent.pid().context("it runs")?);
        let pins = agent.pin_directory.strip_prefix("/")?;
        assert!(!Path::new(&inside).join(pins).exists(), "{mounts}");
        agent.stop()?;
        let line = check_of_bpffs(&agent)?;
        assert!(line.contains(in_check), "{line}");
    }
    agent.starter.clear();
    agent.start()?;
    let is_pinned = |it: &Status| it.node.ebpf.not_pinned.is_none();
    agent.wait("on the host it pins", is_pinned)?;
    assert!(agent.pin_directory.exists());
    Ok(())
}

/// Killed in the middle of it, again and again: no record is torn, none is counted twice, and what
/// is lost is at most what each agent had not written yet.
#[cfg_attr(feature = "privileged", test)]
fn an_agent_that_dies_in_a_storm_leaves_whole_records() -> Result<()> {
    let mut agent = agent("forensics-storm")?;
    let n = u64::from(scaled(300, 30)?);
    agent.put(&burst("storm", u32::try_from(n)?)?)?;
    let pod = agent.wait_pod("storm", "runs", is_running)?;
    let path = container_path(&pod, "greedy")?;
    let mut n_deaths = 0;
    // Once at least: in an emulated machine the storm may be over when the first agent is.
    while n_deaths == 0 || cgroup::oom_kills(&path)? < n * 3 / 4 {
        let at_start = n_kills(&of_pods(&agent)?);
        agent.wait_for("some more kills in records", || {
            let is_over = cgroup::oom_kills(&path)? == n;
            Ok(is_over || n_kills(&of_pods(&agent)?) > at_start + n / 10)
        })?;
        agent.kill()?;
        agent.start()?;
        n_deaths += 1;
    }
    agent.wait_for(
        "the end of the storm",
        || Ok(cgroup::oom_kills(&path)? == n),
    )?;
    // Nothing comes any more: the number stands when it has stood for longer than an agent takes to
    // come up and to take what waits for it, which is seconds in an emulated machine.
    let mut last = (0, Vec::new());
    agent.wait_for("the last records", || {
        thread::sleep(Duration::from_secs(scaled(1, 6)?.into()));
        let records = of_pods(&agent)?;
        let is_it = last == (n_kills(&records), records.clone());
        last = (n_kills(&records), records);
        Ok(is_it)
    })?;
    let (n_recorded, records) = last;
    say(format!(
        "{n_recorded} of {n} kills in records, {n_deaths} agents killed"
    ));
    assert!(n_deaths >= 1, "{n_deaths}");
    assert!(n_recorded <= n, "{n_recorded} of {n}");
    // What an agent had taken out of the ring and not written yet died with it: a tenth of a storm, or on a machine that
    // lets them pile up between two writes the sixteen that an agent takes at once.
    let least = (n * 9 / 10).min(n.saturating_sub(n_deaths * 16));
    assert!(n_recorded >= least, "{n_recorded} of {n}");
    // The counters have all of them.
    let all = u32::try_from(n)?;
    check_all_are_counted(&agent, "storm", all)?;
    thread::sleep(2 * GRACE);
    check_all_are_counted(&agent, "storm", all)?;
    let ids: Vec<RecordId> = records.iter().map(|it| it.id).collect();
    assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    let files = fs::read_dir(agent.state().join("oom"))?.count();
    assert_eq!(
        files,
        agent.oom_records()?.len(),
        "a file that is no record"
    );
    Ok(())
}
