//! The agent dies, at any moment; the containers do not. What happened meanwhile is known after its
//! next start, and nothing is leaked, doubled or lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::record::OomScope;
use ballast::model::status::{PodEntry, Status};
use ballast_tests::agent::{Agent, hog};
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};
use serde_json::json;

use super::look::{
    container, container_path, end_of, is_running, oom_detail, pid_of, wait_kills, whose,
};
use super::scaled;

/// Waits for a file, so that a test says when to go on.
pub(super) fn after(file: &Path, then: &str) -> String {
    format!(
        "while [ ! -e {} ]; do sleep 0.05; done; {then}",
        file.display()
    )
}

#[cfg_attr(feature = "privileged", test)]
fn kills_while_the_agent_is_down_are_told_after_its_start() -> Result<()> {
    let mut agent = Agent::new("oom-down")?.with_kubelet("singleProcessOOMKill: true");
    agent.start()?;
    let go = agent.dir.join("go");
    let hog = hog()?;
    let burst = after(&go, &format!("{hog} burst 3 33554432; exec sleep 3600"));
    let ends = after(&go, &format!("exec {hog} alloc 33554432"));
    agent.put(
        &Manifest::new("burst")
            .with_overhead(16)
            .container(Container::sh("app", &burst).limited_to(16)),
    )?;
    agent.put(
        &Manifest::new("ends")
            .with_overhead(16)
            .container(Container::sh("app", &ends).limited_to(16)),
    )?;
    let status = agent.wait("two running pods", |status| {
        status.pods.len() == 2 && status.pods.iter().all(is_running)
    })?;
    let pod = |name: &str| {
        let found = status.pods.iter().find(|it| it.name == name);
        found.context("a pod that runs")
    };
    let path = container_path(pod("burst")?, "app")?;
    let short_path = container_path(pod("ends")?, "app")?;
    agent.kill()?;
    fs::write(&go, "")?;
    agent.wait_for("three kills in the one and the end of the other", || {
        let is_empty = cgroup::procs(&cgroup::dir_of("memory", &short_path)).is_empty();
        Ok(cgroup::oom_kills(&path)? == 3 && is_empty)
    })?;
    agent.start()?;
    let kills = wait_kills(&agent, 4)?;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for kill in &kills {
        let (pod, container) = whose(kill);
        *counts.entry(pod).or_default() += 1;
        assert_eq!(container, "app");
        let detail = oom_detail(kill)?;
        assert_eq!(detail.scope, OomScope::Container);
        let limit = detail.limit.as_ref().and_then(|it| it.cgroup_path.clone());
        let wanted = if pod == "burst" { &path } else { &short_path };
        assert_eq!(limit.as_ref(), Some(wanted));
        assert_eq!(detail.victim.is_main_process, Some(pod == "ends"));
    }
    assert_eq!(counts, BTreeMap::from([("burst", 3), ("ends", 1)]));
    let burst = agent.wait_pod("burst", "counts its kills", |it| it.oom_kills == 3)?;
    assert_eq!(pid_of(&burst, "app"), pid_of(pod("burst")?, "app"));
    agent.wait_pod("ends", "ended by OOM", |it| {
        end_of(it, "app") == Some(("OOMKilled".to_owned(), Some(137)))
    })?;
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn an_exit_while_the_agent_is_down_is_known_after_its_start() -> Result<()> {
    let mut agent = Agent::new("exit-down")?;
    agent.start()?;
    let go = agent.dir.join("go");
    let names = [("zero", "exit 0"), ("code", "exit 42")];
    for (name, end) in names {
        agent.put(&Manifest::new(name).container(Container::sh("app", &after(&go, end))))?;
    }
    let status = agent.wait("two running pods", |status| {
        status.pods.len() == 2 && status.pods.iter().all(is_running)
    })?;
    let paths: Vec<String> = status
        .pods
        .iter()
        .map(|it| container_path(it, "app"))
        .collect::<Result<_>>()?;
    agent.kill()?;
    fs::write(&go, "")?;
    agent.wait_for("both have ended", || {
        let is_empty = |path: &String| cgroup::procs(&cgroup::dir_of("memory", path)).is_empty();
        Ok(paths.iter().all(is_empty))
    })?;
    agent.start()?;
    for (name, reason, code) in [("zero", "Completed", 0), ("code", "Error", 42)] {
        let pod = agent.wait_pod(name, "ended", |it| end_of(it, "app").is_some())?;
        let wanted = Some((reason.to_owned(), Some(code)));
        assert_eq!(end_of(&pod, "app"), wanted, "{name}");
        assert_eq!(pod.containers[0].restarts, 0);
    }
    Ok(())
}

/// An adopted container is the agent's as its own are: its end, seen live, has its exit code.
#[cfg_attr(feature = "privileged", test)]
fn an_adopted_containers_end_is_seen() -> Result<()> {
    let mut agent = Agent::new("adopted")?;
    agent.start()?;
    let go = agent.dir.join("go");
    let script = after(&go, "exit 7");
    agent.put(&Manifest::new("pod").container(Container::sh("app", &script)))?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    agent.stop()?;
    agent.start()?;
    let after = agent.wait_pod("pod", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&before, "app"));
    fs::write(&go, "")?;
    let pod = agent.wait_pod("pod", "ended", |it| end_of(it, "app").is_some())?;
    assert_eq!(end_of(&pod, "app"), Some(("Error".to_owned(), Some(7))));
    Ok(())
}

/// An agent stores that it asks a container to end before it asks: the next one asks again, since nobody knows how far
/// the last one came.
#[cfg_attr(feature = "privileged", test)]
fn a_container_that_was_asked_to_end_is_asked_again_by_the_next_agent() -> Result<()> {
    let mut agent = Agent::new("asked-again")?.with_quick_passes();
    agent.start()?;
    let (go, journal) = (agent.dir.join("go"), agent.dir.join("journal"));
    let script = format!(
        "trap 'echo asked >>{}' TERM; {}",
        journal.display(),
        after(&go, "exit 0")
    );
    let pod = Manifest::new("pod").with("terminationGracePeriodSeconds", json!(3600));
    agent.put(&pod.container(Container::sh("app", &script)))?;
    let before = agent.wait_pod("pod", "runs", is_running)?;
    agent.remove_pod("pod")?;
    let n_asked = || {
        fs::read_to_string(&journal)
            .unwrap_or_default()
            .lines()
            .count()
    };
    for n in 1..=3 {
        agent.wait_for("it is asked", || Ok(n_asked() >= n))?;
        agent.wait_full_passes(2)?;
        let now = agent.wait_pod("pod", "goes on", is_running)?;
        assert_eq!(pid_of(&now, "app"), pid_of(&before, "app"));
        assert_eq!(n_asked(), n, "by each agent once");
        agent.kill()?;
        agent.start()?;
    }
    agent.wait_for("it is asked", || Ok(n_asked() == 4))?;
    fs::write(&go, "")?;
    agent.wait("it has ended", |it| it.pods.is_empty())?;
    Ok(())
}

/// A script that fails once `go` is there, and runs on where it is run again.
pub(super) fn fails_once(agent: &Agent, go: &Path) -> String {
    let first = agent.dir.join("first");
    let (first, crash) = (first.display(), after(go, "exit 1"));
    format!("[ -e {first} ] && exec sleep 3600; touch {first}; {crash}")
}

/// Waits until a pod runs and is stored. No new record can be written beside its old one from then on, until what is
/// returned is gone.
fn keep_from_storing(agent: &Agent, pod: &str) -> Result<PathBuf> {
    let pod = agent.wait_pod(pod, "runs", is_running)?;
    agent.wait_full_passes(1)?;
    let in_the_way = agent.state().join(format!("pods/{}.json.tmp", pod.uid));
    fs::create_dir(&in_the_way)?;
    Ok(in_the_way)
}

fn let_store(agent: &Agent, in_the_way: &Path) -> Result<()> {
    fs::remove_dir(in_the_way)?;
    agent.wait_events("it is stored", "node", |it| {
        it.iter().any(|it| it.event.reason == "StateStored")
    })?;
    Ok(())
}

/// A container that was started again while the record of its pod could not be replaced, as on a full disk, goes on.
/// `spoilt`: how the names of records of the runtime begin that are spoilt before the next agent starts.
fn goes_on_unstored(test: &str, spoilt: Option<&str>) -> Result<()> {
    let mut agent = Agent::new(test)?.with_quick_passes();
    agent.start()?;
    let go = agent.dir.join("go");
    let script = fails_once(&agent, &go);
    let pod = Manifest::new("pod").with("restartPolicy", json!("Always"));
    agent.put(&pod.container(Container::sh("app", &script)))?;
    let in_the_way = keep_from_storing(&agent, "pod")?;
    fs::write(&go, "")?;
    let before = agent.wait_pod("pod", "runs again", |it| {
        is_running(it) && it.containers[0].restarts == 1
    })?;
    agent.kill()?;
    if let Some(spoilt) = spoilt {
        spoil(&agent.state().join("containers"), spoilt)?;
    }
    agent.start()?;
    agent.wait_full_passes(3)?;
    let after = agent.wait_pod("pod", "goes on", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(&before, "app"));
    assert_eq!(after.containers[0].restarts, 1);
    let_store(&agent, &in_the_way)
}

/// The files of a directory whose names begin so, of which there is one at least.
fn spoil(directory: &Path, names: &str) -> Result<()> {
    let mut n_spoilt = 0;
    for file in fs::read_dir(directory)? {
        let file = file?;
        if file.file_name().to_string_lossy().starts_with(names) {
            fs::write(file.path(), "spoilt")?;
            n_spoilt += 1;
        }
    }
    ensure!(n_spoilt > 0, "no file {names}* in {}", directory.display());
    Ok(())
}

/// The container's own record says which one runs.
#[cfg_attr(feature = "privileged", test)]
fn a_restart_that_was_not_stored_with_its_pod_is_adopted() -> Result<()> {
    goes_on_unstored("unstored", None)
}

/// Nor can the container's own record be read, or any of it: no second copy starts beside what runs.
#[cfg_attr(feature = "privileged", test)]
fn a_restart_of_which_every_record_is_lost_goes_on() -> Result<()> {
    goes_on_unstored("unstored-all", Some("app-"))?;
    goes_on_unstored("unstored-last", Some("app-1-"))
}

/// The same for one that ended well: it does not run a second time.
#[cfg_attr(feature = "privileged", test)]
fn an_end_that_was_not_stored_with_its_pod_is_known_to_the_next_agent() -> Result<()> {
    let mut agent = Agent::new("unstored-end")?.with_quick_passes();
    agent.start()?;
    let (go, journal) = (agent.dir.join("go"), agent.dir.join("journal"));
    let script = format!("echo >> {}; {}", journal.display(), after(&go, "exit 0"));
    let pod = Manifest::new("pod").with("restartPolicy", json!("OnFailure"));
    agent.put(&pod.container(Container::sh("app", &script)))?;
    let in_the_way = keep_from_storing(&agent, "pod")?;
    fs::write(&go, "")?;
    let ended = |it: &PodEntry| end_of(it, "app") == Some(("Completed".to_owned(), Some(0)));
    agent.wait_pod("pod", "has ended", ended)?;
    agent.kill()?;
    agent.start()?;
    agent.wait_full_passes(2)?;
    agent.wait_pod("pod", "has ended", ended)?;
    let_store(&agent, &in_the_way)?;
    assert_eq!(fs::read_to_string(&journal)?.lines().count(), 1);
    agent.wait_for("its record goes", || {
        Ok(fs::read_dir(agent.state().join("containers"))?.count() == 0)
    })
}

/// The cgroup of a pod whose record was spoilt and whose manifest is gone is removed, with what runs
/// in it: the name of the record still says whose it is.
#[cfg_attr(feature = "privileged", test)]
fn orphan_cgroups_are_cleaned_after_a_restart() -> Result<()> {
    let mut agent = Agent::new("orphans")?;
    agent.start()?;
    agent.put(&Manifest::new("kept").container(Container::idle("app")))?;
    agent.put(&Manifest::new("lost").container(Container::idle("app")))?;
    let status = agent.wait("two running pods", |status| {
        status.pods.len() == 2 && status.pods.iter().all(is_running)
    })?;
    let find = |name: &str| {
        let found = status.pods.iter().find(|it| it.name == name);
        found.context("a pod that runs")
    };
    let (kept, lost) = (find("kept")?, find("lost")?);
    let lost_path = lost.cgroup_path.clone().context("a cgroup")?;
    agent.kill()?;
    agent.remove_pod("lost")?;
    let state = agent.state();
    let record = state.join("pods").join(format!("{}.json", lost.uid));
    fs::write(&record, "spoilt")?;
    for entry in fs::read_dir(state.join("containers"))? {
        let path = entry?.path();
        if fs::read_to_string(&path)?.contains(&format!("\"{}\"", lost.uid)) {
            fs::remove_file(path)?;
        }
    }
    agent.start()?;
    agent.wait_for("the orphan is gone from every hierarchy", || {
        Ok(cgroup::dirs_in_all(&lost_path).is_empty())
    })?;
    let told = agent.wait_events("the orphan is told", "node", |it| {
        it.iter().any(|it| it.event.reason == "OrphanCgroup")
    })?;
    assert!(told.iter().any(|it| it.event.message.contains(&lost_path)));
    let after = agent.wait_pod("kept", "runs", is_running)?;
    assert_eq!(pid_of(&after, "app"), pid_of(kept, "app"));
    Ok(())
}

/// `BALLAST_TEST_SEED`, not 0, for another storm than the usual one.
pub(super) fn seed() -> Result<u64> {
    let Some(seed) = std::env::var_os("BALLAST_TEST_SEED") else {
        return Ok(0x5eed_ba11_a57e_d001);
    };
    let seed = seed.to_str().and_then(|it| it.parse().ok());
    seed.filter(|it| *it != 0)
        .context("BALLAST_TEST_SEED is a number above 0")
}

/// Numbers that look random and are the same each time (xorshift64, Marsaglia 2003).
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What a storm has put on the node and what it took away.
struct Storm {
    agent: Agent,
    dice: Dice,
    journals: PathBuf,
    /// Pods that are to run for ever.
    steady: BTreeSet<String>,
    /// Pods that are to run once, with the exit code that they end with.
    jobs: BTreeMap<String, u8>,
    n_made: u32,
}

impl Storm {
    fn new(seed: u64) -> Result<Self> {
        let agent = Agent::new("storm")?;
        let journals = agent.dir.join("journals");
        fs::create_dir_all(&journals)?;
        Ok(Self {
            agent,
            dice: Dice(seed),
            journals,
            steady: BTreeSet::new(),
            jobs: BTreeMap::new(),
            n_made: 0,
        })
    }

    fn lone(&self, pod: &str, millis: u64, code: u8) -> Result<Container> {
        let journal = self.journals.join(pod);
        let journal = journal.to_str().context("a path of text")?;
        let (millis, code) = (millis.to_string(), code.to_string());
        let command = [&hog()?, "lone", journal, &millis, &code];
        Ok(Container::new("app", &command))
    }

    fn add_steady(&mut self) -> Result<()> {
        self.n_made += 1;
        let name = format!("steady-{}", self.n_made);
        let pod = Manifest::new(&name)
            .container(self.lone(&name, 0, 0)?)
            .with("restartPolicy", json!("Always"));
        self.agent.put(&pod)?;
        self.steady.insert(name);
        Ok(())
    }

    /// Ends every now and then, and is to come back each time.
    fn add_restarting(&mut self) -> Result<()> {
        let pod = Manifest::new("restarting")
            .container(self.lone("restarting", 80, 1)?)
            .with("restartPolicy", json!("Always"));
        self.agent.put(&pod)
    }

    fn add_job(&mut self) -> Result<()> {
        self.n_made += 1;
        let name = format!("job-{}", self.n_made);
        let millis = 1 + self.dice.below(400);
        let code = u8::try_from(self.dice.below(5))?;
        let pod = Manifest::new(&name).container(self.lone(&name, millis, code)?);
        self.agent.put(&pod)?;
        self.jobs.insert(name, code);
        Ok(())
    }

    fn change_something(&mut self) -> Result<()> {
        match self.dice.below(4) {
            0 => self.add_steady(),
            1 if self.steady.len() > 2 => {
                let i = usize::try_from(self.dice.below(self.steady.len() as u64))?;
                let name = self.steady.iter().nth(i).cloned().context("one of them")?;
                self.steady.remove(&name);
                self.agent.remove_pod(&name)
            }
            _ => self.add_job(),
        }
    }

    /// What the containers themselves have noted: first word of each line.
    fn journal(&self, pod: &str) -> Vec<String> {
        let text = fs::read_to_string(self.journals.join(pod)).unwrap_or_default();
        text.lines()
            .filter_map(|line| line.split(' ').next().map(str::to_owned))
            .collect()
    }
}

/// Kills the agent at fifty points, from the first moment of its start to the middle of its work,
/// while pods come, go, end and restart.
#[cfg_attr(feature = "privileged", test)]
fn a_storm_of_kills_leaks_doubles_and_loses_nothing() -> Result<()> {
    let mut storm = Storm::new(seed()?)?;
    storm.agent.start()?;
    storm.add_restarting()?;
    for _ in 0..3 {
        storm.add_steady()?;
    }
    for round in 0..scaled(50, 5)? {
        storm.change_something()?;
        storm.change_something()?;
        let delay = Duration::from_millis(storm.dice.below(600));
        let until = Instant::now() + delay;
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        storm.agent.kill()?;
        if storm.dice.below(3) == 0 {
            storm.change_something()?;
        }
        // Every third start is waited for, so that there is a middle of its work.
        match round % 3 {
            0 => storm.agent.start()?,
            _ => storm.agent.spawn()?,
        }
    }
    storm.agent.wait_ready()?;
    let status = storm.check_nothing_is_lost()?;
    storm.check_nothing_is_doubled()?;
    storm.check_cgroups(&status)?;
    storm.check_all_goes()
}

impl Storm {
    fn check_nothing_is_lost(&self) -> Result<Status> {
        let is_settled = |pod: &PodEntry| {
            pod.name == "restarting"
                || (self.steady.contains(&pod.name) && is_running(pod))
                || (self.jobs.contains_key(&pod.name) && end_of(pod, "app").is_some())
        };
        let n_wanted = 1 + self.steady.len() + self.jobs.len();
        let status = self
            .agent
            .wait("what shall run runs, what shall end has", |status| {
                status.pods.len() == n_wanted && status.pods.iter().all(is_settled)
            })?;
        let mut n_unknown = 0;
        for (name, &code) in &self.jobs {
            let pod = status.pods.iter().find(|it| it.name == *name);
            let end = end_of(pod.context("a job")?, "app").context("it has ended")?;
            let n_runs = self.journal(name).len();
            if end.0 == "ContainerStatusUnknown" {
                n_unknown += 1;
                ensure!(n_runs <= 1, "{name} ran {n_runs} times");
                continue;
            }
            ensure!(
                n_runs == 1,
                "{name} ran {n_runs} times, and ended with {end:?}"
            );
            assert_eq!(end.1, Some(i32::from(code)), "{name}: {end:?}");
        }
        println!(
            "{} jobs, the end of {n_unknown} is not known",
            self.jobs.len()
        );
        // Only an agent killed between hearing of an end and writing it down knows nothing of it.
        ensure!(
            n_unknown <= 2 + self.jobs.len() / 10,
            "the ends of {n_unknown} of {} jobs are not known",
            self.jobs.len()
        );
        let restarting = status.pods.iter().find(|it| it.name == "restarting");
        let restarting = restarting.and_then(|it| container(it, "app"));
        let n_restarts = restarting.context("it is there")?.restarts;
        ensure!(n_restarts > 0, "nothing restarted");
        Ok(status)
    }

    /// The containers hold a lock while they run.
    fn check_nothing_is_doubled(&self) -> Result<()> {
        let mut n_journals = 0;
        for entry in fs::read_dir(&self.journals)? {
            let name = entry?.file_name();
            let name = name.to_str().context("a name of text")?;
            let words = self.journal(name);
            ensure!(
                words.iter().all(|it| it == "alone"),
                "{name} ran twice at the same time: {words:?}"
            );
            n_journals += 1;
        }
        ensure!(n_journals > 3, "only {n_journals} containers have run");
        Ok(())
    }

    /// Of every pod that runs there is one cgroup with one container and one process, and no other.
    fn check_cgroups(&self, status: &Status) -> Result<()> {
        let running: BTreeSet<&str> = status
            .pods
            .iter()
            .filter(|it| self.steady.contains(&it.name))
            .filter_map(|it| it.cgroup_path.as_deref())
            .collect();
        let restarting = status.pods.iter().find(|it| it.name == "restarting");
        let restarting = restarting.and_then(|it| it.cgroup_path.as_deref());
        let kubepods = format!("/{}/kubepods", self.agent.cgroup_root);
        self.agent.wait_for("no other cgroups and processes", || {
            for dir in cgroup::dirs_in_all(&kubepods) {
                let mut left = running.clone();
                for pod in pods_below(&dir) {
                    let path =
                        pod.strip_prefix(dir.parent().and_then(Path::parent).unwrap_or(&dir))?;
                    let path = format!("/{}", path.display());
                    if Some(path.as_str()) == restarting {
                        continue;
                    }
                    let containers = cgroup::sub_dirs(&pod);
                    let n_procs: usize = containers.iter().map(|it| cgroup::procs(it).len()).sum();
                    if !left.remove(path.as_str()) || containers.len() != 1 || n_procs != 1 {
                        return Ok(false);
                    }
                }
                if !left.is_empty() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// With the last manifest everything is gone: processes, cgroups, records, logs.
    fn check_all_goes(&mut self) -> Result<()> {
        for entry in fs::read_dir(self.agent.dir.join("pods"))? {
            fs::remove_file(entry?.path())?;
        }
        self.agent
            .wait("no pods", |status| status.pods.is_empty())?;
        let kubepods = format!("/{}/kubepods", self.agent.cgroup_root);
        self.agent.wait_for("no cgroups of pods", || {
            let dirs = cgroup::dirs_in_all(&kubepods);
            Ok(dirs.iter().all(|it| pods_below(it).is_empty()))
        })?;
        // Directories of pods are emptied by a thread that nobody waits for.
        self.agent.wait_for("no files of pods", || {
            let left = ["containers", "pods", "logs"].map(|it| self.agent.state().join(it));
            let mut directories = left.iter().map(fs::read_dir);
            directories.try_fold(true, |is_empty, it| Ok(is_empty && it?.next().is_none()))
        })
    }
}

/// Directories of pods, of all classes.
fn pods_below(kubepods: &Path) -> Vec<PathBuf> {
    let classes = ["burstable", "besteffort"].map(|it| cgroup::sub_dirs(&kubepods.join(it)));
    let guaranteed = cgroup::sub_dirs(kubepods);
    guaranteed
        .into_iter()
        .chain(classes.into_iter().flatten())
        .filter(|dir| {
            let name = dir.file_name().and_then(|it| it.to_str());
            name.is_some_and(|it| it.starts_with("pod"))
        })
        .collect()
}
