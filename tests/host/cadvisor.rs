//! What the agent says about pods at work, beside the kernel's files and beside cAdvisor.
//!
//! A figure is right if it lies between what was read before and after the time that the agent says
//! it read that cgroup. What differs on purpose is listed in `tests/data/cadvisor_deviations.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cadvisor::{self, Cadvisor};
use ballast_tests::exposition::Exposition;
use ballast_tests::figures::{
    self, Comparison, Figure, Figures, Reading, around, compare, deviations, settle,
};
use ballast_tests::formulas::Tree;
use ballast_tests::manifest::{Container, Manifest};
use ballast_tests::wait::{patience, until};
use ballast_tests::{cgroup, scrape};
use nix::sys::stat::{major, minor};
use serde_json::json;

use super::{leave_out, say};

const DEVIATIONS: &str = include_str!("../data/cadvisor_deviations.yaml");

const PAGE: &str = "/metrics/cadvisor";

/// How many readings of the agent's are compared for each cgroup.
const N_READINGS: usize = 3;

/// The agent reads the files of a cgroup one after another, around the time that it tells.
const MARGIN: f64 = 0.25;

const DISK_BYTES: &str = "container_fs_writes_bytes_total";

const LAST_SEEN: &str = "container_last_seen";

/// The pod with memory enough for huge pages, and the bytes of one.
const HOLDING: &str = "anon";
const HUGE_PAGE: f64 = 2_097_152.0;

/// Pods whose figures move; those of the others are compared to the byte.
const MOVING: [&str; 4] = ["burner", "cache", "forks", "threads"];

#[cfg_attr(feature = "privileged", test)]
fn figures_of_pods_lie_between_two_reads_of_the_files() -> Result<()> {
    let mut node = Node::start("files")?;
    let tree = Tree::at(Path::new("/"));
    let name = if tree.is_unified() { "v2" } else { "v1" };
    let comparison = node.compare(Duration::from_millis(100), |ids| {
        let readings = ids.iter().map(|id| {
            let begun = now();
            let figures = tree.figures(id)?;
            let ended = now();
            let reading = Reading {
                begun,
                ended,
                figures,
            };
            Ok((id.clone(), reading))
        });
        readings.collect()
    })?;
    node.settle(&comparison, name)
}

#[cfg_attr(feature = "privileged", test)]
fn figures_of_pods_lie_between_two_readings_of_cadvisors() -> Result<()> {
    if cgroup::is_unified() {
        leave_out("cAdvisor, which reads no raw cgroups of v2");
        return Ok(());
    }
    if let Some(why) = cadvisor::without() {
        leave_out(format_args!("cAdvisor: {why}"));
        return Ok(());
    }
    let mut node = Node::start("cadvisor")?;
    let cadvisor = Cadvisor::start(Duration::from_secs(1), &node.agent.dir)?;
    let comparison = node.compare(Duration::from_millis(500), |ids| {
        Ok(cadvisor::readings(&cadvisor.page()?, ids))
    })?;
    node.settle(&comparison, "cadvisor")
}

/// Has v1 count what is done to the disk of a directory: since Linux 6.10 it does not before some
/// cgroup had a rule for that disk once.
fn count_disk(directory: &Path) -> Result<()> {
    if cgroup::is_unified() {
        return Ok(());
    }
    let device = fs::metadata(directory)?.dev();
    let (major, minor) = (major(device), minor(device));
    let mut block = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    if !block.exists() {
        say(format_args!(
            "{major}:{minor} is no disk: it is not counted"
        ));
        return Ok(());
    }
    if block.join("partition").exists() {
        block = fs::canonicalize(block)?;
        block.pop();
    }
    let disk = fs::read_to_string(block.join("dev"))?;
    expect_uncounted(disk.trim())?;
    let rule = format!("{} {}", disk.trim(), u64::MAX >> 1);
    let name = format!("/ballast-counted-{}", std::process::id());
    let own = cgroup::dir_of("blkio", &name);
    fs::create_dir(&own)?;
    let ruled = fs::write(own.join("blkio.throttle.write_bps_device"), rule);
    fs::remove_dir(&own)?;
    ruled.with_context(|| format!("a rule for disk {}", disk.trim()))
}

/// Where the kernel counts nothing of a disk, `ballast check` says so.
fn expect_uncounted(disk: &str) -> Result<()> {
    let counts = cgroup::dir_of("blkio", "/").join("blkio.throttle.io_service_bytes_recursive");
    let counts = fs::read_to_string(counts)?;
    let is_counted = counts.lines().any(|it| it.split(' ').next() == Some(disk));
    let agent = Agent::new("uncounted")?;
    let output = agent.check_command()?.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|it| it.contains("block-io"));
    let line = line.context("nothing of block IO")?;
    let is_told = line.starts_with("degraded");
    ensure!(is_told || is_counted, "{disk} is not counted: {line}");
    say(format_args!("before the rule: {}", line.trim()));
    Ok(())
}

/// An agent with pods that do something.
struct Node {
    agent: Agent,
    /// Cgroups to compare, with the pod that each belongs to; none for those above pods.
    cgroups: BTreeMap<String, Option<String>>,
}

impl Node {
    fn start(test: &str) -> Result<Self> {
        let mut agent = Agent::new(test)?;
        agent.metrics = scrape::free_address()?;
        count_disk(&agent.dir)?;
        agent.start()?;
        let hog = hog()?;
        let file = agent.dir.join("cached").display().to_string();
        let limits = |cpu: &str, memory: &str| json!({"cpu": cpu, "memory": memory});
        let containers = [
            (
                "burner",
                Container::sh("main", "while :; do :; done")
                    .resources(json!({}), limits("100m", "32Mi")),
            ),
            (
                "cache",
                Container::new("main", &[&hog, "cache", &file, "8388608"]).limited_to(64),
            ),
            (
                HOLDING,
                Container::new("main", &[&hog, "hold", "33554432"])
                    .resources(json!({"memory": "40Mi"}), json!({"memory": "64Mi"})),
            ),
            ("threads", Container::new("main", &[&hog, "threads", "40"])),
            (
                "forks",
                Container::sh("main", "while :; do (exit 0); sleep 0.05; done"),
            ),
            (
                "disk",
                Container::sh(
                    "main",
                    &format!(
                        "dd if=/dev/zero of={file}.disk bs=4096 count=16 conv=fsync; sleep 3600"
                    ),
                ),
            ),
            ("idle", Container::idle("main")),
        ];
        let n_pods = containers.len();
        for (name, container) in containers {
            agent.put(&Manifest::new(name).container(container))?;
        }
        let mut node = Self {
            agent,
            cgroups: BTreeMap::new(),
        };
        // With the pods' own cgroups.
        let n_cgroups = 2 * n_pods;
        until("the page has the cgroups", || {
            // Until the first sweep there is no page.
            node.find_cgroups(&node.page()?);
            let n_found = node.cgroups.values().flatten().count();
            ensure!(n_found >= n_cgroups, "it has {:#?}", node.cgroups);
            Ok(())
        })
        .with_context(|| format!("log: {}", node.agent.log_tail()))?;
        Ok(node)
    }

    fn page(&self) -> Result<Exposition> {
        scrape::page(&self.agent.metrics, PAGE)
    }

    fn find_cgroups(&mut self, page: &Exposition) {
        let kubepods = self.agent.kubepods();
        for series in page.samples.keys().filter(|it| it.name == LAST_SEEN) {
            if let Some(id) = series.labels.get("id")
                && id.starts_with(&kubepods)
            {
                let pod = series.labels.get("pod").cloned();
                self.cgroups.insert(id.clone(), pod);
            }
        }
    }

    /// Compares several readings of each cgroup with what `read` says before and after.
    fn compare(
        &mut self,
        pause: Duration,
        mut read: impl FnMut(&BTreeSet<String>) -> Result<BTreeMap<String, Reading>>,
    ) -> Result<Comparison> {
        let ids: BTreeSet<String> = self.cgroups.keys().cloned().collect();
        let mut theirs: BTreeMap<String, Vec<Reading>> = BTreeMap::new();
        let mut ours: BTreeMap<String, Vec<Reading>> = BTreeMap::new();
        let deadline = Instant::now() + patience();
        loop {
            for (id, reading) in read(&ids)? {
                push_new(theirs.entry(id).or_default(), reading);
            }
            for (id, reading) in own_readings(&self.page()?, &ids) {
                push_new(ours.entry(id).or_default(), reading);
            }
            let found: Vec<Option<Comparison>> = ids
                .iter()
                .map(|id| self.compare_cgroup(id, &ours, &theirs))
                .collect();
            if found.iter().all(Option::is_some) {
                let mut all = Comparison::default();
                found.into_iter().flatten().for_each(|it| all.add(it));
                return Ok(all);
            }
            ensure!(
                Instant::now() < deadline,
                "not every cgroup was read by both within {:?}; log: {}",
                patience(),
                self.agent.log_tail()
            );
            thread::sleep(pause);
        }
    }

    /// `None`: there are not enough readings yet.
    fn compare_cgroup(
        &self,
        id: &str,
        ours: &BTreeMap<String, Vec<Reading>>,
        theirs: &BTreeMap<String, Vec<Reading>>,
    ) -> Option<Comparison> {
        let (ours, theirs) = (ours.get(id)?, theirs.get(id)?);
        let pod = self.cgroups.get(id)?.as_deref();
        let compared: Vec<Comparison> = ours
            .iter()
            .filter_map(|it| {
                let bracket = around(theirs, it.begun - MARGIN, it.ended + MARGIN)?;
                let bracket: Vec<&Figures> = bracket.iter().map(|it| &it.figures).collect();
                Some(compare(&it.figures, &bracket, |figure| slack(figure, pod)))
            })
            .collect();
        if compared.len() < N_READINGS {
            return None;
        }
        let mut all = Comparison::default();
        compared.into_iter().for_each(|it| all.add(it));
        Some(all)
    }

    /// Not in memory, nor in layers of which the kernel tells no device.
    fn is_on_disk(&self) -> Result<bool> {
        Ok(major(self.agent.dir.metadata()?.dev()) != 0)
    }

    fn settle(&mut self, comparison: &Comparison, against: &str) -> Result<()> {
        let families: BTreeSet<&str> = comparison
            .agreeing
            .iter()
            .map(|it| it.family.as_str())
            .collect();
        say(format_args!(
            "{} figures of {} cgroups in {} families agree, {} differ",
            comparison.agreeing.len(),
            self.cgroups.len(),
            families.len(),
            comparison.differing.len()
        ));
        ensure!(
            !self.is_on_disk()? || families.contains(DISK_BYTES),
            "a pod writes to a disk, and {DISK_BYTES} is not there"
        );
        settle(comparison, &deviations(DEVIATIONS, against)?)?;
        self.agent.stop()
    }
}

/// What a figure may be outside of the readings around it; above the pods there is no pod.
fn slack(figure: &Figure, pod: Option<&str>) -> f64 {
    let moves = pod.is_none_or(|it| MOVING.contains(&it));
    match figure.family.as_str() {
        // Other readers round to seconds.
        LAST_SEEN => 1.0,
        // The cgroup is made before its first process is started.
        "container_start_time_seconds" => 5.0,
        // While the kernel makes one huge page of many, both are charged.
        "container_memory_usage_bytes" | "container_memory_working_set_bytes"
            if pod == Some(HOLDING) =>
        {
            HUGE_PAGE
        }
        // Up and down again between two readings.
        family if moves && family.starts_with("container_memory_") => match family {
            "container_memory_numa_pages" => 1_024.0,
            "container_memory_failures_total" | "container_memory_failcnt" => 0.0,
            _ => 4_194_304.0,
        },
        "container_processes" | "container_threads" if moves => 2.0,
        // Input, output and errors of each.
        "container_file_descriptors" if moves => 6.0,
        _ => 0.0,
    }
}

/// What the agent says, at the times that it says it read the cgroups.
fn own_readings(page: &Exposition, ids: &BTreeSet<String>) -> BTreeMap<String, Reading> {
    figures::readings(page, ids, |id| page.value(LAST_SEEN, &[("id", id)]))
}

fn push_new(readings: &mut Vec<Reading>, reading: Reading) {
    if readings.last().is_none_or(|it| it.ended < reading.begun) {
        readings.push(reading);
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}
