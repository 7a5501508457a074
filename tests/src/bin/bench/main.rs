//! Measures the agent and prints the figures beside their budgets: `cargo xtask bench`.
//!
//! One program in three parts. `bench [NAME...]` supervises: it runs `bench measure` in a process
//! group of its own and, however that ends, removes what is left. `bench measure` starts agents of
//! its own, with cgroups below a root of their own, and prints the table. `bench load` is what runs
//! in their containers.
//!
//! Invariant: a figure is measured in this run or printed as not measured, with the reason; one that
//! follows from a rule of kubelet's instead says that it is computed. No figure decides whether the
//! run succeeds. Facts do (`Row::fact`): where one is wrong, the run fails after it has printed the
//! table.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it looks at the node as anybody does"
)]

mod ebpf;
mod eviction;
mod files;
mod fleet;
mod kubernetes;
mod load;
mod machine;
mod node;
mod observe;
mod oom;
mod outage;
mod placement;
mod process;
mod quiet;
mod stats;
mod supervise;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};

use self::table::Table;

/// What can be asked for by name, in the order of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Oom,
    Ebpf,
    Process,
    Start,
    Reconcile,
    Idle,
    Placement,
    Eviction,
    Stats,
    Observe,
    Kubernetes,
    Outage,
}

impl Name {
    const ALL: [(&'static str, Self); 12] = [
        ("oom", Self::Oom),
        ("ebpf", Self::Ebpf),
        ("process", Self::Process),
        ("start", Self::Start),
        ("reconcile", Self::Reconcile),
        ("idle", Self::Idle),
        ("placement", Self::Placement),
        ("eviction", Self::Eviction),
        ("stats", Self::Stats),
        ("observe", Self::Observe),
        ("kubernetes", Self::Kubernetes),
        ("outage", Self::Outage),
    ];

    /// Beside a kubelet, where no agent of another measurement would start: by name alone.
    fn needs_cluster(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Outage)
    }

    fn parse(text: &str) -> Option<Self> {
        let (_, name) = Self::ALL.into_iter().find(|(word, _)| *word == text)?;
        Some(name)
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        ["load", rest @ ..] => load::run(rest).map(|()| ExitCode::SUCCESS),
        // Starts nothing that could be left behind.
        ["placement"] => measure(&args).map(|()| ExitCode::SUCCESS),
        ["measure", names @ ..] => supervise::take_signals_again()
            .and_then(|()| measure(names))
            .map(|()| ExitCode::SUCCESS),
        names => {
            if let Some(name) = names.iter().find(|it| Name::parse(it).is_none()) {
                let known: Vec<&str> = Name::ALL.iter().map(|(word, _)| *word).collect();
                eprintln!("no measurement {name:?}: one of {}", known.join(", "));
                return ExitCode::from(2);
            }
            supervise::run(names)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("bench: {error:#}");
        ExitCode::FAILURE
    })
}

fn measure(names: &[&str]) -> Result<()> {
    let names: Vec<Name> = match names {
        [] => {
            let all = Name::ALL.iter().map(|(_, name)| *name);
            all.filter(|it| !it.needs_cluster()).collect()
        }
        names => names.iter().filter_map(|it| Name::parse(it)).collect(),
    };
    let started = Instant::now();
    let wanted = |name| names.contains(&name);
    let mut table = Table::default();
    if wanted(Name::Oom) {
        table.section("oom", oom::measure);
    }
    if wanted(Name::Ebpf) {
        table.section("ebpf", ebpf::measure);
        table.section("what being watched costs", quiet::measure);
    }
    if wanted(Name::Process) {
        table.section("process", process::measure);
    }
    if wanted(Name::Start) || wanted(Name::Reconcile) || wanted(Name::Idle) {
        table.section("pods", |table| node::measure(&names, table));
    }
    if wanted(Name::Placement) {
        table.section("placement", placement::measure);
    }
    if wanted(Name::Eviction) {
        table.section("eviction", eviction::measure);
    }
    if wanted(Name::Stats) {
        table.section("stats", stats::measure);
    }
    if wanted(Name::Observe) {
        table.section("first figures", observe::first_figures);
        table.section("observe", observe::measure);
    }
    if wanted(Name::Kubernetes) {
        table.section("kubernetes", kubernetes::measure);
    }
    if wanted(Name::Outage) {
        table.section_of_facts("outage", outage::measure);
    }
    println!("\n{}", machine::facts());
    println!("{table}");
    println!("measured in {} s", started.elapsed().as_secs());
    let faults = table.faults();
    ensure!(faults.is_empty(), "{}", faults.join("; "));
    Ok(())
}

/// A line of progress.
fn say(text: &str) {
    eprintln!("    {text}");
}
