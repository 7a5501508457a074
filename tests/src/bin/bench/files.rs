//! What reading costs file by file, over the cgroups that an agent sweeps: how much of it a cgroup
//! iterator of eBPF could take over, and how much the cgroups above containers take.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::model::stats::StatsSnapshot;
use ballast::sys::clock;
use ballast_tests::cgroup;

use super::table::{Row, Samples, Verdict, show};

const N_PASSES: usize = 20;

/// Counters that the kernel keeps as numbers. An iterator reads them where they are; the others it
/// has to sum up (`memory.stat`, `cpu.stat`, `memory.numa_stat`, pressure) or cannot reach.
const NUMBERS: [(&str, &[&str]); 2] = [
    (
        "memory",
        &[
            "memory.usage_in_bytes",
            "memory.max_usage_in_bytes",
            "memory.failcnt",
            "memory.kmem.usage_in_bytes",
            "memory.oom_control",
            "memory.current",
            "memory.peak",
            "memory.swap.current",
            "memory.events",
        ],
    ),
    ("pids", &["pids.current", "pids.events"]),
];

const OTHERS: [(&str, &[&str]); 6] = [
    ("memory", &["memory.stat", "memory.numa_stat"]),
    ("memory", &["cgroup.procs"]),
    ("cpu", &["cpu.stat"]),
    ("cpuacct", &["cpuacct.usage", "cpuacct.stat"]),
    (
        "blkio",
        &[
            "blkio.throttle.io_service_bytes_recursive",
            "blkio.throttle.io_serviced_recursive",
        ],
    ),
    // Where v2 has all of its files, and a mount beside v1 the pressure alone.
    (
        "unified",
        &["io.stat", "cpu.pressure", "memory.pressure", "io.pressure"],
    ),
];

/// Rows for the cgroups of one snapshot.
pub(crate) fn measure(stats: &StatsSnapshot, name: &str) -> Result<Vec<Row>> {
    let containers = stats.pods.iter().flat_map(|it| &it.containers);
    let containers: Vec<&str> = containers.map(|it| it.id.as_str()).collect();
    let root = ["/"];
    let groups = stats.groups.iter().map(|it| it.id.as_str());
    let groups: Vec<&str> = root.into_iter().chain(groups).collect();
    let numbers = time(&containers, &NUMBERS)?;
    let others = time(&containers, &OTHERS)?;
    let above = time(&groups, &NUMBERS)?
        .into_iter()
        .zip(time(&groups, &OTHERS)?);
    let sums = |it: (Duration, Duration)| it.0 + it.1;
    let all = numbers.iter().copied().zip(others.iter().copied());
    let all = Samples::new(all.map(sums).collect());
    let above = Samples::new(above.map(sums).collect());
    let share = |part: &Samples| -> Result<String> {
        let of = |it: &Samples| it.quantile(50).context("nothing was read");
        let (part, whole) = (of(part)?, of(&all)?);
        let percent = 100.0 * part.div_duration_f64(whole);
        Ok(format!("{}, {percent:.0} % of it", show(part)))
    };
    let numbers = share(&Samples::new(numbers))?;
    let above = share(&above)?;
    let row =
        |figure: &str, n: usize, value: String| Row::value(figure, n, value, "", Verdict::NoBudget);
    Ok(vec![
        Row::durations(
            &format!("files of containers, CPU time of a read each, {name}"),
            &all,
            None,
        ),
        row(
            "of it: numbers that a cgroup iterator could give",
            containers.len(),
            numbers,
        ),
        row(
            "beside it: files of the root, of all pods, QoS classes and slices",
            groups.len(),
            above,
        ),
    ])
}

/// CPU time of each pass over the files, which are held open; those that a cgroup does not have are
/// left out.
fn time(ids: &[&str], files: &[(&str, &[&str])]) -> Result<Vec<Duration>> {
    let mut held = Vec::new();
    for id in ids {
        for (controller, names) in files {
            let dir = cgroup::dir_of(controller, id);
            held.extend(names.iter().filter_map(|it| File::open(dir.join(it)).ok()));
        }
    }
    let mut buffer = vec![0; 64 << 10];
    let mut pass = || -> Result<Duration> {
        let before = clock::thread_cpu().context("no CPU time")?;
        for file in &held {
            // One that is refused takes its time, too.
            file.read_at(&mut buffer, 0).ok();
        }
        let after = clock::thread_cpu().context("no CPU time")?;
        Ok(after.saturating_sub(before))
    };
    (0..N_PASSES).map(|_| pass()).collect()
}
