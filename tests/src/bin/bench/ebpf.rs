//! The cost of each eBPF program, by the kernel's own account.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use ballast_tests::cgroup;

use super::fleet::Fleet;
use super::machine::Setting;
use super::table::{Row, Table, Verdict};
use super::{oom, say};

const BUDGET_NS: f64 = 400.0;

const RUNS: &str = "ballast_bpf_program_runs_total";
const SECONDS: &str = "ballast_bpf_program_run_seconds_total";

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    say("ebpf: starting the agent");
    let mut fleet = Fleet::new("ebpf")?;
    fleet.start()?;
    say("ebpf: programs, cgroups and kills with kernel.bpf_stats_enabled");
    let _statistics = Setting::BpfStatistics.set("1")?;
    let mount = cgroup::mount_of("memory").display().to_string();
    let killers = ["kills".to_owned()];
    let gate = oom::put_killers(&fleet, &killers, 100, 10)?;
    fleet.put_load("spawns", &["spawns", "500", "2"], "64Mi")?;
    fleet.put_load("cgroups", &["cgroups", &mount, "300"], "64Mi")?;
    gate.open()?;
    for pod in ["kills", "spawns", "cgroups"] {
        fleet.wait_output(pod, "done")?;
    }
    let programs = exported(&fleet)?;
    ensure!(!programs.is_empty(), "the agent exports no statistics");
    for (program, (runs, seconds)) in programs {
        table.push(mean(
            &format!("eBPF {program}: mean of a run"),
            runs,
            seconds,
        ));
    }
    Ok(())
}

/// Of so many runs, which took so many seconds together.
pub(crate) fn mean(figure: &str, runs: f64, seconds: f64) -> Row {
    if runs == 0.0 {
        return Row::not_measured(figure, "it did not run");
    }
    let ns = seconds * 1e9 / runs;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count of runs, which a metric shows as a float"
    )]
    let n = runs as usize;
    Row::value(
        figure,
        n,
        format_args!("{ns:.0} ns"),
        "400 ns",
        Verdict::of(ns <= BUDGET_NS),
    )
}

/// The agent reads the kernel's account this often, with the next look at its rings: a second later at most.
const EXPORTED_EVERY: Duration = Duration::from_secs(11);

/// Runs and run time by program, once the agent has read them again.
pub(crate) fn exported(fleet: &Fleet) -> Result<BTreeMap<String, (f64, f64)>> {
    thread::sleep(EXPORTED_EVERY + Duration::from_secs(1));
    let scrape = fleet.scrape()?;
    Ok(scrape
        .of(RUNS, &[])
        .map(|(series, runs)| {
            let program = series.labels.get("program").cloned().unwrap_or_default();
            let seconds = scrape.sum(SECONDS, &[("program", &program)]);
            (program, (runs, seconds))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_needs_runs() {
        for (runs, seconds, shown) in [
            (0.0, 0.0, ":  (not measured: it did not run)"),
            (4.0, 1e-6, ": 250 ns (within)"),
            (2.0, 1e-6, ": 500 ns (over)"),
        ] {
            assert_eq!(mean("", runs, seconds).to_string(), shown);
        }
    }
}
