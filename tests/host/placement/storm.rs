//! The agent is killed and started again at any moment of giving CPUs out and taking them back.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::container::PodPhase;
use ballast::model::cpuset::CpuSet;
use ballast::model::placement::CpuState;
use ballast::model::status::PodEntry;
use ballast_tests::agent::Agent;
use ballast_tests::cgroup;
use ballast_tests::manifest::{Container, Manifest};

use super::super::crash::{Dice, seed};
use super::super::look::is_running;
use super::super::{say, scaled};
use super::{
    agent, burstable, check_books, cpu_books, cpus_of_dir, guaranteed, held, kernel_cpus, machine,
    wait_all_free,
};

const ROUNDS: u32 = 200;

/// Where rounds may be fewer, as many as fit into this time.
const BUDGET: Duration = Duration::from_secs(90);

struct Storm {
    agent: Agent,
    dice: Dice,
    online: CpuSet,
    /// Pods whose manifest is there.
    pods: BTreeSet<String>,
    n_made: u32,
    n_seen: Seen,
}

/// What the looks have found to look at.
#[derive(Default)]
struct Seen {
    /// Books read while no agent ran.
    books: u32,
    /// Running containers with CPUs of their own.
    pinned: u32,
    shared: u32,
    /// Pods that hold CPUs and do not run: a kill between the two.
    unstarted: u32,
}

impl Storm {
    /// A pod with a CPU of its own comes, or one goes. There are at most as many as CPUs, one more
    /// than can have one.
    fn change_something(&mut self) -> Result<()> {
        let n = u64::try_from(self.pods.len())?;
        let is_full = self.pods.len() >= self.online.len();
        if n > 0 && (is_full || self.dice.below(3) == 0) {
            let i = usize::try_from(self.dice.below(n))?;
            let name = self.pods.iter().nth(i).cloned().context("one of them")?;
            self.pods.remove(&name);
            return self.agent.remove_pod(&name);
        }
        self.n_made += 1;
        let name = format!("pinned-{}", self.n_made);
        let container = guaranteed(Container::idle("app"), 1);
        self.agent.put(&Manifest::new(&name).container(container))?;
        self.pods.insert(name);
        Ok(())
    }

    /// Nobody writes now: what is on disk and in the cgroups is what the next agent finds.
    fn check_left_behind(&mut self) -> Result<()> {
        let path = super::state_file(&self.agent, "cpu_manager_state");
        if !path.exists() {
            return Ok(());
        }
        let books = cpu_books(&self.agent)?;
        check_books(&books, &self.online)?;
        self.n_seen.books += 1;
        self.check_cgroups(&books)
    }

    /// Every container that runs and is to have a CPU alone is on the one that is its own by the
    /// books, and nobody else that runs is.
    fn check_cgroups(&mut self, books: &CpuState) -> Result<()> {
        let kubepods = format!("/{}/kubepods", self.agent.cgroup_root);
        let kubepods = cgroup::dir_of("cpuset", &kubepods);
        let own = running(&kubepods)?;
        let shared = running(&kubepods.join("burstable"))?;
        for (uid, cpus) in &own {
            let held = books.containers.iter().find(|it| it.0.0 == *uid);
            let held = held.and_then(|it| it.1.get("app"));
            ensure!(
                held == Some(cpus),
                "{uid} is on {cpus}, and not {held:?}: {books:?}"
            );
            for (other, theirs) in own.iter().chain(&shared) {
                ensure!(
                    other == uid || theirs.is_disjoint(cpus),
                    "{uid} has {cpus} alone, and {other} is on {theirs}"
                );
            }
        }
        let n_own = u32::try_from(own.len())?;
        self.n_seen.pinned += n_own;
        self.n_seen.shared += u32::try_from(shared.len())?;
        self.n_seen.unstarted += u32::try_from(books.containers.len())?.saturating_sub(n_own);
        Ok(())
    }

    /// A ready agent soon has every pod where it says. One that was refused is asked again as soon as a CPU is free.
    fn check_ready(&self) -> Result<()> {
        let books = cpu_books(&self.agent)?;
        check_books(&books, &self.online)?;
        // One CPU is left to those that share.
        let n_own = self.pods.len().min(self.online.len() - 1);
        let mut wanted = self.pods.clone();
        wanted.insert("shared".to_owned());
        let status = self
            .agent
            .wait("every CPU that is wanted is given out", |status| {
                let names: BTreeSet<String> =
                    status.pods.iter().map(|it| it.name.clone()).collect();
                let runs = |it: &&PodEntry| is_running(it) && it.reason.is_none();
                let (run, others): (Vec<_>, Vec<_>) = status.pods.iter().partition(runs);
                names == wanted
                    && run.iter().any(|it| it.name == "shared")
                    && run.len() == n_own + 1
                    && others.iter().all(|it| it.phase == PodPhase::Failed)
            })?;
        let books = cpu_books(&self.agent)?;
        check_books(&books, &self.online)?;
        let mut n = 0;
        for pod in &status.pods {
            if pod.phase == PodPhase::Failed {
                ensure!(
                    held(&books, pod, "app").is_none(),
                    "{} was refused: {books:?}",
                    pod.name
                );
                continue;
            }
            let own = held(&books, pod, "app");
            ensure!(
                own.is_some() == (pod.name != "shared"),
                "{}: {own:?}",
                pod.name
            );
            n += u32::from(own.is_some());
            let cpus = own.unwrap_or_else(|| books.shared_pool.clone());
            self.agent
                .wait_for("the kernel has what the books have", || {
                    Ok(kernel_cpus(pod, "app")? == cpus)
                })?;
        }
        ensure!(books.containers.len() == usize::try_from(n)?, "{books:?}");
        Ok(())
    }

    /// With the last pod all CPUs are back, and can all be given out once more.
    fn check_all_is_back(&mut self) -> Result<()> {
        for name in std::mem::take(&mut self.pods) {
            self.agent.remove_pod(&name)?;
        }
        wait_all_free(&self.agent)?;
        for i in 1..self.online.len() {
            let name = format!("last-{i}");
            let container = guaranteed(Container::idle("app"), 1);
            self.agent.put(&Manifest::new(&name).container(container))?;
            self.pods.insert(name);
        }
        self.check_ready()?;
        let books = cpu_books(&self.agent)?;
        assert_eq!(books.containers.len(), self.online.len() - 1);
        assert_eq!(books.shared_pool.len(), 1, "{books:?}");
        Ok(())
    }
}

/// The containers below a directory of pods in which a process runs: UIDs of their pods, and their
/// CPUs by the kernel.
fn running(dir: &Path) -> Result<Vec<(String, CpuSet)>> {
    let mut found = Vec::new();
    for pod in cgroup::sub_dirs(dir) {
        let name = pod.file_name().and_then(|it| it.to_str());
        let Some(uid) = name.and_then(|it| it.strip_prefix("pod")) else {
            continue;
        };
        for container in cgroup::sub_dirs(&pod) {
            if cgroup::procs(&container).is_empty() {
                continue;
            }
            // It may have ended and gone by now.
            if let Ok(cpus) = cpus_of_dir(&container)
                && !cgroup::procs(&container).is_empty()
            {
                found.push((uid.to_owned(), cpus));
            }
        }
    }
    Ok(found)
}

#[cfg_attr(feature = "privileged", test)]
fn a_storm_of_kills_loses_and_doubles_no_cpu() -> Result<()> {
    let mut storm = Storm {
        agent: agent("cpu-storm")?,
        dice: Dice(seed()?),
        online: machine()?.online(),
        pods: BTreeSet::new(),
        n_made: 0,
        n_seen: Seen::default(),
    };
    storm.agent.start()?;
    let container = burstable(Container::idle("app"));
    storm
        .agent
        .put(&Manifest::new("shared").container(container))?;
    storm.agent.wait_pod("shared", "runs", is_running)?;
    let began = Instant::now();
    // How long a start takes here, until its first pass; kills fall into the time of two.
    let mut start = Duration::from_millis(100);
    let mut n_ready = 0;
    let (mut round, least) = (0, scaled(ROUNDS, 20)?);
    while round < least || round < ROUNDS && began.elapsed() < BUDGET {
        storm.change_something()?;
        if storm.dice.below(2) == 0 {
            storm.change_something()?;
        }
        let most = u64::try_from(start.as_millis())?.max(1) * 2;
        let until = Instant::now() + Duration::from_millis(storm.dice.below(most));
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        storm.agent.kill()?;
        let context = || format!("round {round}");
        storm.check_left_behind().with_context(context)?;
        let started = Instant::now();
        // Every fourth start is waited for, and all that comes of it.
        match round % 4 {
            0 => {
                storm.agent.start().with_context(context)?;
                start = started.elapsed();
                storm.check_ready().with_context(context)?;
                n_ready += 1;
            }
            _ => storm.agent.spawn()?,
        }
        round += 1;
    }
    storm.agent.wait_ready()?;
    storm.check_ready()?;
    storm.check_all_is_back()?;
    let Seen {
        books,
        pinned,
        shared,
        unstarted,
    } = storm.n_seen;
    ensure!(
        books > round / 2 && pinned > 0 && shared > 0,
        "there was little to see"
    );
    say(format_args!(
        "{round} kills in {:.0?}, {} pods: 0 CPUs lost, 0 doubled, in {books} looks at the books of \
         a dead agent and {n_ready} of a started one; {pinned} pinned and {shared} shared \
         containers ran meanwhile, {unstarted} had CPUs and did not run yet",
        began.elapsed(),
        storm.n_made,
    ));
    Ok(())
}
