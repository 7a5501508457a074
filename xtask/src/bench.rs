//! `cargo xtask bench`: measures the agent beside its budgets.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;

use crate::machine::Machine;
use crate::progress::{self, Deadline, Stdout, headline};
use crate::test::programs;
use crate::{build, cadvisor, cluster, setup, workspace};

/// Measure the agent and print the figures beside their budgets
///
/// As root, in more than twenty minutes; `placement` alone needs no root. Without a name everything that needs no
/// cluster is measured.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "PART")]
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// OOM kills to handled events, alone and in bursts
    Oom,
    /// What the eBPF programs cost per event, and a pod whose processes they watch; how soon the end of a container is
    /// known; the agent's memory
    Ebpf,
    /// Processes and cgroups that come and go, to handled events
    Process,
    /// Start of the agent with hundreds of pods, until it is ready
    Start,
    /// A look at every cgroup where nothing has changed
    Reconcile,
    /// What the agent takes of CPU and memory while nothing happens
    Idle,
    /// CPU, device and memory placement: the recorded decisions of kubelet, and admissions on up to
    /// 512 CPUs and 64 NUMA nodes; needs no root and no agent
    Placement,
    /// Memory leaks until the pod is gone, beside kubelet's rule; what watching costs; the ranking
    Eviction,
    /// Sweeps, scrapes and churn of statistics at up to 1 000 containers, beside cAdvisor
    Stats,
    /// Starts of an agent that observes somebody else's cgroups: one pod with a kill before it, and ten thousand
    Observe,
    /// How soon a cluster is up, and beside its real kubelet OOM kills to Events and counters, and containers to names;
    /// by name alone, since no other agent starts beside a kubelet
    Kubernetes,
    /// An API server that is away for longer than the agent's token lives: what is known and told then and after it, and
    /// that no cgroup is changed; in a quarter of an hour, on a cluster and by name alone as `kubernetes`. It fails if
    /// a kill is not counted or not told once, or a cgroup is changed
    Outage,
}

impl Part {
    fn needs_cluster(self) -> bool {
        matches!(self, Self::Kubernetes | Self::Outage)
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let parts = &arguments.parts;
    let needs_cluster = parts.iter().any(|it| it.needs_cluster());
    if needs_cluster {
        ensure!(
            parts.len() == 1,
            "what needs a cluster is measured alone: no other agent starts beside a kubelet"
        );
        if let Some(why) = cluster::cannot_run() {
            bail!(why);
        }
    }
    let mut variables = Vec::new();
    if parts.iter().any(|it| *it != Part::Placement) || parts.is_empty() {
        ensure!(workspace::is_root(), "run as root: it makes cgroups");
        setup::toolchain()?;
        variables.push(("BALLAST_BIN", build::release()?.path));
    }
    let Programs { bench, conformance } = build_programs()?;
    variables.push(("BALLAST_CONFORMANCE", conformance));
    // Of those that need root each looks at all of it.
    let is_of_the_machine = variables.iter().any(|it| it.0 == "BALLAST_BIN");
    let machine = is_of_the_machine.then(|| Machine::take("cargo xtask bench"));
    let _machine = machine.transpose()?;
    if !needs_cluster {
        return measure(&bench, parts, &variables);
    }
    cluster::with(|directory| {
        variables.push(("BALLAST_CLUSTER", directory.to_owned()));
        measure(&bench, parts, &variables)
    })
}

fn measure(bench: &Path, parts: &[Part], variables: &[(&str, PathBuf)]) -> Result<()> {
    headline("measure");
    let mut command = Command::new(bench);
    command
        .current_dir(workspace::root())
        .args(
            parts
                .iter()
                .filter_map(ValueEnum::to_possible_value)
                .map(|it| it.get_name().to_owned()),
        )
        .envs(variables.iter().cloned());
    match cadvisor::program() {
        Ok(path) => command.env(cadvisor::PROGRAM, path),
        Err(error) => command.env(cadvisor::WITHOUT, format!("{error:#}")),
    };
    let finished = progress::watch("bench", &mut command, Stdout::Keep, Deadline::default())?;
    // A run with a wrong fact fails, and has a table.
    print!("{}", finished.stdout);
    let status = finished.status;
    ensure!(status.success(), "bench: {status}");
    Ok(())
}

/// What measures, and the lane whose decisions are timed.
struct Programs {
    bench: PathBuf,
    conformance: PathBuf,
}

fn build_programs() -> Result<Programs> {
    headline("build the measurements");
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--profile", "bench", "--locked"])
        .args(["--package", "ballast-tests", "--bin", "bench"])
        .args(["--test", "conformance"])
        .args(["--message-format", "json-render-diagnostics"]);
    let messages = progress::capture("build the measurements", &mut cargo)?;
    let built = programs::parse(&messages);
    Ok(Programs {
        bench: built.bin("bench")?,
        conformance: built.target("conformance")?.path.clone(),
    })
}
