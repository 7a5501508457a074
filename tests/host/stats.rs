//! The sweep against the files of this kernel, read as anybody reads them, and what it costs.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use ballast::model::pod::QosClass;
use ballast::model::stats::{CgroupStats, ContainerStats, GroupKind, KnownPod, StatsSnapshot};
use ballast::sources::stats::{StatsReader, Wanted, read_once};
use ballast::sys::{HeldFile, Root, TextBuffer, clock, page_size, steady};
use ballast_tests::cgroup;
use ballast_tests::known::{stats_reader, sweep};
use ballast_tests::scratch::own_name;
use ballast_tests::wait::until;

use super::eviction::{Files, files_in};
use super::readings::{Kubepods, Scratch, pod};
use super::{say, scaled};

const MI: u64 = 1 << 20;
const BELOW: &str = "/besteffort/poda/main";

fn reader(kubepods: &Kubepods) -> Result<StatsReader> {
    let (root, trees) = (Root::host(), Arc::clone(&kubepods.trees));
    stats_reader(&root, trees, &kubepods.cgroup()?)
}

fn main_of(snapshot: &StatsSnapshot) -> Option<&ContainerStats> {
    snapshot.pods.first()?.containers.first()
}

/// What a file says: the value of a key, or the only one.
fn number(controller: &str, path: &str, file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(cgroup::dir_of(controller, path).join(file)).ok()?;
    let value = match key {
        "" => text.trim().to_owned(),
        key => text.lines().find_map(|line| {
            let (name, value) = line.split_once([' ', '='])?;
            (name == key).then(|| value.trim().to_owned())
        })?,
    };
    value.parse().ok()
}

/// Microseconds of the line of a pressure file.
fn stalled(path: &str, file: &str) -> Option<u64> {
    let mount = match cgroup::is_unified() {
        true => "/sys/fs/cgroup",
        false => "/sys/fs/cgroup/unified",
    };
    let text = fs::read_to_string(format!("{mount}{path}/{file}")).ok()?;
    text.lines().next()?.split_once("total=")?.1.parse().ok()
}

/// Every number of a cgroup, as a plain read of its file has it.
fn plain(path: &str) -> Vec<(&'static str, Option<u64>)> {
    let is_v2 = cgroup::is_unified();
    let of = |v2: (&str, &str), v1: (&str, &str, &str), factor: u64| {
        let found = match is_v2 {
            true => number("", path, v2.0, v2.1),
            false => number(v1.0, path, v1.1, v1.2),
        };
        // v1 has a number for no limit.
        let found = found.filter(|it| *it < i64::MAX.unsigned_abs() >> 1);
        found.map(|it| it * factor)
    };
    let (micro, tick) = if is_v2 { (1000, 1000) } else { (1, 10_000_000) };
    let v2_only = |file, key| is_v2.then(|| number("", path, file, key)).flatten();
    vec![
        (
            "cpu",
            of(
                ("cpu.stat", "usage_usec"),
                ("cpuacct", "cpuacct.usage", ""),
                micro,
            ),
        ),
        (
            "user",
            of(
                ("cpu.stat", "user_usec"),
                ("cpuacct", "cpuacct.stat", "user"),
                tick,
            ),
        ),
        (
            "system",
            of(
                ("cpu.stat", "system_usec"),
                ("cpuacct", "cpuacct.stat", "system"),
                tick,
            ),
        ),
        (
            "periods",
            of(
                ("cpu.stat", "nr_periods"),
                ("cpu", "cpu.stat", "nr_periods"),
                1,
            ),
        ),
        (
            "usage",
            of(
                ("memory.current", ""),
                ("memory", "memory.usage_in_bytes", ""),
                1,
            ),
        ),
        (
            "anon",
            of(
                ("memory.stat", "anon"),
                ("memory", "memory.stat", "total_rss"),
                1,
            ),
        ),
        (
            "file",
            of(
                ("memory.stat", "file"),
                ("memory", "memory.stat", "total_cache"),
                1,
            ),
        ),
        (
            "faults",
            of(
                ("memory.stat", "pgfault"),
                ("memory", "memory.stat", "total_pgfault"),
                1,
            ),
        ),
        (
            "peak",
            of(
                ("memory.peak", ""),
                ("memory", "memory.max_usage_in_bytes", ""),
                1,
            ),
        ),
        (
            "max",
            of(
                ("memory.events", "max"),
                ("memory", "memory.failcnt", ""),
                1,
            ),
        ),
        (
            "oom_kill",
            of(
                ("memory.events", "oom_kill"),
                ("memory", "memory.oom_control", "oom_kill"),
                1,
            ),
        ),
        ("low", v2_only("memory.low", "")),
        (
            "limit",
            of(
                ("memory.max", ""),
                ("memory", "memory.limit_in_bytes", ""),
                1,
            ),
        ),
        (
            "tasks",
            of(("pids.current", ""), ("pids", "pids.current", ""), 1),
        ),
        (
            "refusals",
            of(("pids.events", "max"), ("pids", "pids.events", "max"), 1),
        ),
        ("cpu stall", stalled(path, "cpu.pressure")),
        ("memory stall", stalled(path, "memory.pressure")),
        ("io stall", stalled(path, "io.pressure")),
    ]
}

/// The same of a sweep, in the same order.
fn swept(stats: &CgroupStats) -> Vec<Option<u64>> {
    let (cpu, memory) = (&stats.cpu, &stats.memory);
    let psi = |it: Option<ballast::model::psi::Psi>| it.map(|it| it.some.total.0);
    vec![
        cpu.usage_ns,
        cpu.user_ns,
        cpu.system_ns,
        cpu.n_periods,
        memory.usage,
        memory.stat.anon.map(|it| it.0),
        memory.stat.file.map(|it| it.0),
        memory.stat.page_faults,
        memory.peak,
        memory.events.max,
        memory.events.oom_kill,
        stats.spec.memory_low,
        stats.spec.memory_limit,
        stats.n_tasks,
        stats.n_fork_refusals,
        psi(stats.stalls.cpu),
        psi(stats.stalls.memory),
        psi(stats.stalls.io),
    ]
}

/// Every number lies between two plain reads around the sweep. One that falls again meanwhile does not: the kernel may
/// take memory back.
fn compare(path: &str, mut read: impl FnMut() -> Result<CgroupStats>) -> Result<usize> {
    until("every number is that of its file", || {
        let before = plain(path);
        let stats = read()?;
        let after = plain(path);
        let mut n = 0;
        for (((name, before), found), (_, after)) in
            before.into_iter().zip(swept(&stats)).zip(after)
        {
            let (low, high) = (before.min(after), before.max(after));
            ensure!(
                low <= found && found <= high,
                "{path}: {name} is {found:?}, and its file says {before:?} and then {after:?}"
            );
            n += usize::from(found.is_some());
        }
        Ok(n)
    })
}

#[cfg_attr(feature = "privileged", test)]
fn every_number_of_a_sweep_is_that_of_its_file() -> Result<()> {
    let kubepods = Kubepods::new("parity")?;
    kubepods.make(BELOW)?;
    kubepods.limit(BELOW, 32 * MI)?;
    let mut stats = reader(&kubepods)?;
    stats.keep([pod(&kubepods, "a")?]);

    // A file larger than the limit, and time of a processor. Then it stands still. Where files are
    // memory there is none: its writer would be killed.
    let file = Scratch(std::env::temp_dir().join(own_name("stats")));
    let is_on_disk = files_in(&std::env::temp_dir())? == Files::OnDisk;
    let fill = match is_on_disk {
        true => format!(
            "head -c {} /dev/zero > {}; sync;",
            64 * MI,
            file.0.display()
        ),
        false => String::new(),
    };
    let script = format!(
        "n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; {fill} sleep 60 & sleep 60 & wait"
    );
    let process = kubepods.run(BELOW, &script)?;
    let path = format!("{}{BELOW}", kubepods.path);
    let procs = cgroup::dir_of("memory", &path).join("cgroup.procs");
    until("it comes to rest", || {
        let pids = fs::read_to_string(&procs)?;
        let tasks = number("pids", &path, "pids.current", "");
        ensure!(pids.lines().count() == 3, "{pids:?}, {tasks:?} tasks");
        Ok(())
    })?;
    let all = sweep(&mut stats, None).snapshot;
    let main = main_of(&all).context("no container")?;
    let id = cgroup::id("memory", &path)?;
    assert_eq!(main.stats.cgroup_id.map(|it| it.0), Some(id));
    assert_eq!(
        (main.id.as_str(), main.stats.n_processes),
        (path.as_str(), Some(3))
    );
    assert_eq!(main.stats.spec.memory_limit, Some(32 * MI));
    assert_eq!(
        main.stats.memory.events.max > Some(0),
        is_on_disk,
        "it came to its limit"
    );
    assert_eq!(
        all.pods[0].stats.as_ref().and_then(|it| it.n_processes),
        Some(3)
    );
    let groups = all.groups.iter().filter(|it| it.kind != GroupKind::Slice);
    for group in groups {
        assert_eq!(group.stats.n_processes, Some(3), "{}", group.id);
    }

    let read = |stats: &mut StatsReader| -> Result<CgroupStats> {
        let found = sweep(stats, None).snapshot;
        Ok(main_of(&found).context("no container")?.stats.clone())
    };
    let n = compare(&path, || read(&mut stats))?;
    let least = if cgroup::is_unified() { 14 } else { 11 };
    assert!(n >= least, "{n} numbers were compared");
    // The same from files that are opened for one reading.
    let cgroup = kubepods.cgroup()?.join("besteffort/poda/main")?;
    let once = || read_once(&kubepods.trees, &cgroup, clock::boottime(), page_size());
    compare(&path, || once().context("no reading"))?;
    // The pod has what its container has.
    let pod_path = format!("{}/besteffort/poda", kubepods.path);
    compare(&pod_path, || {
        let found = sweep(&mut stats, None).snapshot;
        found.pods[0].stats.clone().context("no pod")
    })?;
    drop(process);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_cgroup_that_was_made_again_begins_anew_in_the_sweep() -> Result<()> {
    let kubepods = Kubepods::new("again")?;
    kubepods.make(BELOW)?;
    let mut stats = reader(&kubepods)?;
    stats.keep([pod(&kubepods, "a")?]);
    let process = kubepods.run(
        BELOW,
        "n=0; while [ $n -lt 50000 ]; do n=$((n+1)); done; sleep 60",
    )?;
    let before = until("it uses a processor", || {
        let found = sweep(&mut stats, None).snapshot;
        let cpu = main_of(&found).and_then(|it| it.stats.cpu.usage_ns);
        ensure!(cpu > Some(10_000_000), "{cpu:?}");
        Ok(found)
    })?;
    drop(process);
    kubepods.remove()?;
    let gone = sweep(&mut stats, Some(&before)).snapshot;
    assert_eq!(gone.pods[0].stats, None);
    assert_eq!(gone.pods[0].containers, []);
    assert!(gone.groups.iter().all(|it| it.kind == GroupKind::Slice));
    kubepods.make(BELOW)?;
    let again = sweep(&mut stats, Some(&before));
    let main = main_of(&again.snapshot).context("no container")?;
    assert_eq!(again.n_regressions, 0, "another cgroup falls behind nobody");
    assert!(main.stats.cpu.usage_ns < Some(10_000_000));
    assert_ne!(
        main.stats.cgroup_id,
        main_of(&before).and_then(|it| it.stats.cgroup_id)
    );
    Ok(())
}

/// A list of processes is a file of many records, and is given a page at a time.
#[cfg_attr(feature = "privileged", test)]
fn a_list_longer_than_a_page_is_read_whole() -> Result<()> {
    const N_THREADS: usize = 1500;
    let kubepods = Kubepods::new("long")?;
    kubepods.make("")?;
    let (file, controller) = match cgroup::is_unified() {
        true => ("cgroup.threads", ""),
        false => ("tasks", "memory"),
    };
    let dir = cgroup::dir_of(controller, &kubepods.path);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let stopped = Arc::new(std::sync::Mutex::new(stopped));
    let threads: Vec<_> = (0..N_THREADS)
        .map(|_| {
            let stopped = Arc::clone(&stopped);
            thread::Builder::new().stack_size(64 << 10).spawn(move || {
                // Ends when the other side is dropped.
                stopped.lock().map(|it| it.recv().ok()).ok();
            })
        })
        .collect::<Result<_, _>>()?;
    // Where this process is: the file of its own cgroup lists its threads.
    let own = own_cgroup(controller)?;
    let path = dir
        .ancestors()
        .find(|it| {
            it.join("cgroup.procs").exists() && !it.ends_with(kubepods.path.trim_start_matches('/'))
        })
        .context("no mount")?
        .join(own.trim_start_matches('/'))
        .join(file);
    let held = HeldFile::open(&path)?;
    let mut buffer = TextBuffer::default();
    let n_held = held.read(&mut buffer)?.lines().count();
    let whole = fs::read_to_string(&path)?;
    drop(stop);
    for thread in threads {
        thread.join().ok();
    }
    ensure!(whole.len() > 4096, "{} bytes", whole.len());
    ensure!(n_held >= N_THREADS, "{n_held} of {N_THREADS}");
    Ok(())
}

/// The path of this process below the mount of a controller; empty for v2.
fn own_cgroup(controller: &str) -> Result<String> {
    let text = fs::read_to_string("/proc/self/cgroup")?;
    let found = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let mut controllers = controllers.split(',');
        controllers.any(|it| it == controller).then_some(path)
    });
    Ok(found.context("this process has no cgroup")?.to_owned())
}

#[cfg_attr(feature = "privileged", test)]
fn readings_are_cheap() -> Result<()> {
    steady::raise_open_files()?;
    for n_pods in [scaled(55, 5)?, scaled(250, 10)?, scaled(500, 20)?] {
        let kubepods = Kubepods::new("cost")?;
        let mut known: Vec<Arc<KnownPod>> = Vec::new();
        for n in 0..n_pods {
            kubepods.make(&format!("/besteffort/pod{n}/main"))?;
            known.push(pod(&kubepods, &n.to_string())?);
        }
        cost(&kubepods, &known)?;
        kubepods.remove()?;
    }
    Ok(())
}

fn cost(kubepods: &Kubepods, known: &[Arc<KnownPod>]) -> Result<()> {
    let mut stats = reader(kubepods)?;
    let best = |n: u32, what: &mut dyn FnMut()| {
        let times = (0..n).map(|_| {
            let started = Instant::now();
            what();
            started.elapsed()
        });
        times.min().unwrap_or_default()
    };
    let n_files = || fs::read_dir("/proc/self/fd").map(Iterator::count);
    let slab = || number_of(Path::new("/proc/meminfo"), "SUnreclaim:");
    let (files_before, slab_before) = (n_files()?, slab());
    let kept = best(1, &mut || stats.keep(known.to_vec()));
    let first = sweep(&mut stats, None).snapshot;
    let n_cgroups = first.pods.len()
        + first
            .pods
            .iter()
            .map(|it| it.containers.len())
            .sum::<usize>();
    assert_eq!(n_cgroups, 2 * known.len());
    let (files, slab) = (n_files()? - files_before, slab().zip(slab_before));
    let mut costs = Vec::new();
    let swept = best(10, &mut || {
        costs.extend(sweep(&mut stats, Some(&first)).snapshot.cost_us);
    });
    let at = clock::boottime();
    let mut n_read = 0;
    let quick = best(20, &mut || {
        n_read = stats.all_figures(at, Wanted::default()).len();
    });
    assert_eq!(n_read, known.len());
    let all = Wanted {
        processes: true,
        containers: true,
    };
    let quick_all = best(5, &mut || {
        stats.all_figures(at, all);
    });
    let kubepods = first
        .groups
        .iter()
        .find(|it| it.kind == GroupKind::Kubepods);
    assert!(kubepods.is_some_and(|it| it.stats.memory.usage.is_some()));
    let class = GroupKind::Qos(QosClass::BestEffort);
    assert!(first.groups.iter().any(|it| it.kind == class));
    say(format!(
        "{n_cgroups} cgroups: kept in {kept:?}, first sweep {:?} us, then {:?} us ({swept:?}); \
         {files} files are held, kernel memory in kB {slab:?}; quick {quick:?}, with processes and \
         containers {quick_all:?}",
        first.cost_us,
        costs.iter().min()
    ));
    Ok(())
}

/// A line of a file in kB.
fn number_of(path: &Path, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|it| it.strip_prefix(key))?;
    line.split_whitespace().next()?.parse().ok()
}
