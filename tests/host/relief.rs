//! The kill of a pod and the relief before it, on cgroups without an agent: how long until a pod is
//! empty, what is freed and by whom, and that everything is undone.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::apply::cgroupfs::{ApplyError, CgroupWriter};
use ballast::apply::relief::ReliefWriter;
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::pod::PodUid;
use ballast::model::record::PodRef;
use ballast::model::relief::{ReliefAction, ReliefEffect, ReliefStep, Stage};
use ballast::sources::mounts;
use ballast::sys::{Root, syscall};
use ballast::units::Limit;
use ballast_tests::agent::hog;
use ballast_tests::cgroup;
use ballast_tests::scratch::own_name;
use ballast_tests::wait::{comes_true, patience, wait_for};
use nix::errno::Errno;

use super::{say, scaled};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A pod's cgroup in every hierarchy, or in those of v1 alone; removed with all in it.
struct Pod {
    path: CgroupPath,
    dirs: Vec<PathBuf>,
    relief: ReliefWriter,
    children: Vec<Child>,
}

/// Which hierarchies a process joins.
#[derive(Clone, Copy, PartialEq)]
enum Join {
    All,
    /// Not the cgroup2 mount beside v1, where the kernel kills by itself.
    LegacyOnly,
}

impl Pod {
    fn new(test: &str, join: Join) -> Result<Self> {
        let root = Root::host();
        let facts = mounts::cgroup_facts(&root)?;
        let trees = Arc::new(mounts::open_trees(&root, &facts.layout)?);
        let controllers = facts.controllers.iter().map(|it| it.0.clone()).collect();
        let writer = CgroupWriter::new(trees, controllers, PAGE);
        let path = CgroupPath::new(format!("/{}", own_name(test)))?;
        writer.create(&path)?;
        let mut dirs = cgroup::dirs_in_all(path.as_str());
        if join == Join::LegacyOnly && !cgroup::is_unified() {
            let beside = dirs.iter().position(|it| it.join("cgroup.kill").exists());
            if let Some(beside) = beside {
                std::fs::remove_dir(dirs.remove(beside))?;
            }
        }
        Ok(Self {
            relief: ReliefWriter::new(writer, root, PAGE),
            path,
            dirs,
            children: Vec::new(),
        })
    }

    /// Runs a program of the pod; it joins before it begins.
    fn run(&mut self, command: &[&str]) -> Result<u32> {
        let joins: String = self
            .dirs
            .iter()
            .map(|it| format!("echo $$ >{}/cgroup.procs && ", it.display()))
            .collect();
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("{joins}exec \"$@\""), "sh"])
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let pid = child.id();
        self.children.push(child);
        Ok(pid)
    }

    /// A process that holds so many bytes, when it has them.
    fn hold(&mut self, bytes: u64) -> Result<u32> {
        let pid = self.run(&[&hog()?, "hold", &bytes.to_string()])?;
        self.wait("the memory is in use", |pod| Ok(pod.usage()? >= bytes))?;
        Ok(pid)
    }

    fn usage(&self) -> Result<u64> {
        cgroup::memory_usage(self.path.as_str())
    }

    /// In the hierarchy with the fewest and in that with the most: a process joins one after the
    /// other.
    fn n_processes(&self) -> [usize; 2] {
        let counts = self.dirs.iter().map(|it| cgroup::procs(it).len());
        let most = counts.clone().max().unwrap_or(0);
        [counts.min().unwrap_or(0), most]
    }

    #[track_caller]
    fn wait(&self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        wait_for(what, || is_so(self))
    }

    /// Without a pause, for times that are measured.
    fn wait_closely(&self, is_so: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + patience();
        while !is_so(self) && Instant::now() < deadline {
            thread::yield_now();
        }
    }

    fn step(&self, stage: Stage, action: ReliefAction) -> Result<ReliefStep> {
        Ok(ReliefStep {
            stage,
            pod: PodRef {
                namespace: "default".to_owned(),
                name: self.path.to_string(),
                uid: PodUid("0c1ee4ba-0000-4000-8000-000000000000".to_owned()),
            },
            cgroup: self.path.clone(),
            action,
            expected: 0,
        })
    }

    fn carry_out(
        &self,
        stage: Stage,
        action: ReliefAction,
    ) -> Result<Result<ReliefEffect, ApplyError>> {
        Ok(self
            .relief
            .carry_out(&self.step(stage, action)?, patience()))
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let children = &mut self.children;
        comes_true(|| {
            self.dirs.iter().for_each(|it| cgroup::clear(it));
            for child in children.iter_mut() {
                // Its end is told again by the next call.
                child.try_wait().ok();
            }
            !self.dirs.iter().any(|it| it.exists())
        });
    }
}

/// Both ways of killing, where the node has both.
fn ways() -> &'static [Join] {
    match cgroup::is_unified() {
        true => &[Join::All],
        false => &[Join::All, Join::LegacyOnly],
    }
}

fn label(join: Join) -> &'static str {
    match join {
        Join::All => "cgroup.kill",
        Join::LegacyOnly => "freezer",
    }
}

#[cfg_attr(feature = "privileged", test)]
fn a_pod_with_many_processes_is_empty_after_one_kill() -> Result<()> {
    let n = scaled(200, 20)? as usize;
    for &join in ways() {
        let mut pod = Pod::new("many", join)?;
        for _ in 0..n {
            pod.run(&["sleep", "3600"])?;
        }
        pod.wait("all are in it", |pod| Ok(pod.n_processes()[0] >= n))?;
        let outcome = pod.relief.kill_pod(&pod.path, patience())?;
        ensure!(outcome.empty_after.is_some(), "{outcome:?}");
        assert_eq!(outcome.n_processes, n, "{outcome:?}");
        assert_eq!(outcome.n_released, 0, "nobody has much to free");
        assert_eq!(pod.n_processes(), [0, 0]);
        say(format_args!(
            "{n} processes by {}: {outcome:?}",
            label(join)
        ));
    }
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_fork_bomb_does_not_outrun_the_kill() -> Result<()> {
    let limit = scaled(300, 50)?;
    for &join in ways() {
        let mut pod = Pod::new("bomb", join)?;
        cgroup::write("pids", pod.path.as_str(), "pids.max", &limit.to_string())?;
        pod.run(&[&hog()?, "bomb"])?;
        let enough = limit as usize * 9 / 10;
        pod.wait("the bomb is at its limit", |pod| {
            Ok(pod.n_processes()[0] >= enough)
        })?;
        let outcome = pod.relief.kill_pod(&pod.path, patience())?;
        ensure!(outcome.empty_after.is_some(), "{outcome:?}");
        assert_eq!(pod.n_processes(), [0, 0]);
        say(format_args!("fork bomb by {}: {outcome:?}", label(join)));
    }
    Ok(())
}

/// The same kill with and without help, in turn: what the help is worth.
#[cfg_attr(feature = "privileged", test)]
fn a_large_process_is_freed_with_the_help_of_the_killer() -> Result<()> {
    let bytes = u64::from(scaled(1536, 64)?) * MIB;
    for &join in ways() {
        let mut pod = Pod::new("large", join)?;
        pod.hold(bytes)?;
        let plain = Instant::now();
        for dir in &pod.dirs {
            for pid in cgroup::procs(dir) {
                let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).ok();
            }
        }
        pod.wait_closely(|pod| pod.n_processes() == [0, 0]);
        let plain = plain.elapsed();
        pod.hold(bytes)?;
        let outcome = pod.relief.kill_pod(&pod.path, patience())?;
        ensure!(outcome.empty_after.is_some(), "{outcome:?}");
        let freed = outcome.freed.context("the usage was read")?;
        ensure!(freed >= bytes * 9 / 10, "freed {freed} of {bytes}");
        assert_eq!(outcome.n_processes, 1);
        say(format_args!(
            "{} MiB by {}: empty after {plain:?} alone, with help {outcome:?}",
            bytes / MIB,
            label(join)
        ));
    }
    Ok(())
}

/// v1 lets no frozen process die. Its memory goes all the same.
#[cfg_attr(feature = "privileged", test)]
fn the_memory_of_a_process_that_cannot_die_yet_is_freed() -> Result<()> {
    let bytes = u64::from(scaled(512, 64)?) * MIB;
    let mut pod = Pod::new("stuck", Join::LegacyOnly)?;
    let pid = pod.hold(bytes)?;
    pod.carry_out(Stage::Freeze, ReliefAction::Freeze)??;
    let pidfd = syscall::pidfd_open(pid)?;
    let refused = syscall::process_mrelease(pidfd.as_fd());
    let refused = refused.map_err(|it| it.raw_os_error());
    assert_eq!(refused, Err(Some(Errno::EINVAL as i32)), "it is not dying");
    syscall::pidfd_send_signal(pidfd.as_fd(), 9)?;
    let begin = Instant::now();
    let released = syscall::process_mrelease(pidfd.as_fd());
    let took = begin.elapsed();
    if !cgroup::is_unified() {
        released?;
        assert_eq!(cgroup::procs(&pod.dirs[0]), [pid]);
    }
    pod.wait("the memory is free", |pod| Ok(pod.usage()? < bytes / 10))?;
    say(format_args!(
        "{} MiB freed from outside in {took:?}",
        bytes / MIB
    ));
    let outcome = pod.relief.kill_pod(&pod.path, patience())?;
    ensure!(outcome.empty_after.is_some(), "{outcome:?}");
    Ok(())
}

/// What is frozen does not run, goes on when it is thawed, and can be killed as it is.
#[cfg_attr(feature = "privileged", test)]
fn a_frozen_pod_stands_still_goes_on_and_can_be_killed() -> Result<()> {
    let mut pod = Pod::new("freeze", Join::LegacyOnly)?;
    let pid = pod.run(&["sh", "-c", "while :; do :; done"])?;
    let ticks = || -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields = stat.rsplit_once(')').context("a stat line")?.1;
        Ok(fields
            .split_whitespace()
            .nth(11)
            .context("utime")?
            .parse()?)
    };
    pod.wait("it runs", |pod| {
        Ok(pod.n_processes() == [1, 1] && ticks()? > 1)
    })?;
    let effect = pod.carry_out(Stage::Freeze, ReliefAction::Freeze)??;
    ensure!(effect.is_complete, "{effect:?}");
    say(format_args!("frozen: {effect:?}"));
    let frozen_at = ticks()?;
    // Time passes here, which is the point: more than a tick of the clock that is looked at.
    thread::sleep(Duration::from_millis(100));
    assert_eq!(ticks()?, frozen_at);
    pod.carry_out(Stage::Freeze, ReliefAction::Thaw)??;
    pod.wait("it goes on", |_| Ok(ticks()? > frozen_at + 1))?;
    pod.carry_out(Stage::Freeze, ReliefAction::Freeze)??;
    let outcome = pod.relief.kill_pod(&pod.path, patience())?;
    ensure!(outcome.empty_after.is_some(), "{outcome:?}");
    Ok(())
}

/// `memory.high` and `memory.reclaim` are of v2; elsewhere the refusal names them.
#[cfg_attr(feature = "privileged", test)]
fn memory_high_and_reclaim_work_or_are_refused_by_name() -> Result<()> {
    let mut pod = Pod::new("reclaim", Join::All)?;
    let file = std::env::temp_dir().join(pod.path.last().context("it is not the root")?);
    std::fs::write(&file, vec![1_u8; 64 << 20])?;
    std::fs::File::open(&file)?.sync_all()?;
    let copy = format!("while cat {}; do sleep 1; done", file.display());
    pod.run(&["sh", "-c", &copy])?;
    let reclaim = ReliefAction::Reclaim { bytes: 16 * MIB };
    let high = |before, to| ReliefAction::SetMemoryHigh { before, to };
    let limit = Limit::At(512 * MIB + 1);
    let outcomes = [
        pod.carry_out(Stage::Reclaim, reclaim)?,
        pod.carry_out(Stage::Throttle, high(Limit::Max, limit))?,
    ];
    std::fs::remove_file(&file)?;
    let names = ["memory.reclaim", "memory.high"];
    for (name, outcome) in names.into_iter().zip(outcomes) {
        let is_there = cgroup::dir_of("memory", pod.path.as_str())
            .join(name)
            .exists();
        match outcome {
            Ok(effect) => {
                ensure!(is_there);
                say(format_args!("{name}: {effect:?}"));
            }
            Err(ApplyError::NoController { file, .. }) => {
                ensure!(!is_there);
                assert_eq!(file, name);
            }
            Err(error) => return Err(error.into()),
        }
    }
    if cgroup::is_unified() {
        let kept = cgroup::read("memory", pod.path.as_str(), "memory.high")?;
        assert_eq!(kept, (512 * MIB).to_string());
        pod.carry_out(Stage::Throttle, high(limit, Limit::Max))??;
        assert_eq!(
            cgroup::read("memory", pod.path.as_str(), "memory.high")?,
            "max"
        );
    }
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_cgroup_that_is_gone_is_empty_and_cannot_be_relieved() -> Result<()> {
    let pod = Pod::new("gone", Join::All)?;
    for dir in &pod.dirs {
        std::fs::remove_dir(dir)?;
    }
    let outcome = pod.relief.kill_pod(&pod.path, patience())?;
    assert_eq!((outcome.n_processes, outcome.freed), (0, None));
    ensure!(outcome.empty_after.is_some());
    let refused = pod.carry_out(Stage::Freeze, ReliefAction::Freeze)?;
    ensure!(
        matches!(refused, Err(ApplyError::Gone { .. })),
        "{refused:?}"
    );
    Ok(())
}
