//! `cargo xtask test`: the lanes, and one closing line that says what ran.
//!
//! Invariant: a lane is passed, failed, or left out by name with its reason. A lane that was asked
//! for by name and cannot run has failed, and so has one that ran no test.

pub(crate) mod again;
pub(crate) mod report;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::build::{self, Agent};
use crate::progress::{self, Deadline, Stdout, headline, note};
use crate::{cadvisor, fuzz, monitoring, setup, tidy, vm, workspace};
use report::{Outcome, Report, Row};

/// Run the test lanes: all that this machine can run, or those named
///
/// Arguments after `--` go to every test program of the lanes, for instance a part of a test's
/// name.
#[derive(clap::Args, Default)]
pub(crate) struct Arguments {
    #[arg(value_name = "LANE")]
    lanes: Vec<Lane>,
    /// Passed on to the test programs
    #[arg(last = true, value_name = "ARGUMENT")]
    pass_on: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lane {
    /// Formatting, lints, module edges, house rules
    Tidy,
    /// Tests next to the code and in its documentation; needs nothing
    Unit,
    /// Recorded snapshots and events to golden plans; needs nothing
    Replay,
    /// Recorded behaviour of kubelet, every case; needs nothing
    Conformance,
    /// The agent's side of device plugins against processes that are plugins; needs nothing
    Plugins,
    /// Rules and alerts in a Prometheus and an Alertmanager of their own; needs Debian's packages
    Monitoring,
    /// Each fuzz target for a minute; needs a C++ compiler
    Fuzz,
    /// Real cgroups and real eBPF on this machine; needs root
    Host,
    /// The host lane on the default kernel of tests/vm/kernels.toml, in qemu
    Vm,
}

/// What went wrong is in the error; where it went through would hide it in a long log.
const ERROR_BACKTRACE: &str = "RUST_LIB_BACKTRACE";

/// Every wait of a host test has its own deadline; this one is for a test that hangs all the same.
const HOST_DEADLINE: Duration = Duration::from_mins(20);

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let asked = !arguments.lanes.is_empty();
    let lanes = if asked {
        arguments.lanes.as_slice()
    } else {
        Lane::value_variants()
    };
    let mut runner = Runner {
        asked,
        pass_on: &arguments.pass_on,
        agent: None,
        host_tests: None,
    };
    let mut report = Report::start();
    for lane in lanes {
        for row in runner.run(*lane) {
            report.push(if asked { row.required() } else { row });
        }
    }
    Ok(report.close())
}

/// Runs lanes; what several of them need is built once.
struct Runner<'a> {
    /// Lanes were asked for by name, so what cannot run has failed.
    asked: bool,
    pass_on: &'a [String],
    agent: Option<Agent>,
    host_tests: Option<HostTests>,
}

impl Runner<'_> {
    fn run(&mut self, lane: Lane) -> Vec<Row> {
        headline(format_args!("lane {}", name(lane)));
        let started = Instant::now();
        let outcome = match lane {
            Lane::Tidy => tidy::lane(),
            Lane::Unit => self.unit(),
            Lane::Replay => self.target("replay"),
            Lane::Conformance => self.target("conformance"),
            Lane::Plugins => self.target("plugins"),
            Lane::Monitoring => self.monitoring(),
            Lane::Fuzz => fuzz::lane(),
            Lane::Host => self.host(),
            Lane::Vm => match self.vm() {
                Ok(rows) => return rows,
                Err(error) => Err(error),
            },
        };
        let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        vec![Row {
            name: name(lane),
            outcome,
            took: started.elapsed(),
        }]
    }

    fn unit(&self) -> Result<Outcome> {
        // One selection of packages for all lanes: cargo unites the features of those selected, and
        // another selection would build the dependencies once more.
        let tests = self.cargo_test(&["--lib", "--bins"])?;
        let examples = self.cargo_test(&["--doc"])?;
        passed(tests.unwrap_or(0) + examples.unwrap_or(0))
    }

    fn target(&self, name: &str) -> Result<Outcome> {
        match self.cargo_test(&["--test", name])? {
            Some(count) => passed(count),
            // A target with a report of its own, which tells by its status.
            None => Ok(Outcome::Passed(String::new())),
        }
    }

    fn monitoring(&mut self) -> Result<Outcome> {
        let programs = monitoring::programs()?;
        let mut cargo = workspace::cargo();
        cargo.env("BALLAST_MONITORING", programs);
        let no_agent = match workspace::is_root() {
            true => no_toolchain(),
            false => Some("needs root".to_owned()),
        };
        let mut more: &[&str] = &[];
        if no_agent.is_none() {
            cargo
                .env("BALLAST_BIN", &self.agent()?.path)
                .env("BALLAST_HOG", self.host_tests()?.hog);
        } else {
            more = &["--skip", "live::"];
        }
        let selection = [
            "--test",
            "monitoring",
            "--features",
            "ballast-tests/monitoring",
        ];
        let count = self.cargo_test_as(cargo, &selection, more)?.unwrap_or(0);
        match (passed(count)?, no_agent) {
            (Outcome::Passed(tests), Some(why)) => Ok(Outcome::Passed(format!(
                "{tests}; those with a live agent left out: {why}"
            ))),
            (outcome, _) => Ok(outcome),
        }
    }

    fn cargo_test(&self, selection: &[&str]) -> Result<Option<u64>> {
        self.cargo_test_as(workspace::cargo(), selection, &[])
    }

    /// `more`: arguments for the test programs.
    fn cargo_test_as(
        &self,
        mut cargo: Command,
        selection: &[&str],
        more: &[&str],
    ) -> Result<Option<u64>> {
        cargo
            .args(["test", "--locked", "--workspace"])
            .args(selection)
            .env(ERROR_BACKTRACE, "0");
        cargo.arg("--").args(more).args(self.pass_on);
        let output = progress::run("cargo test", &mut cargo)?;
        Ok(report::count_tests(&output))
    }

    fn host(&mut self) -> Result<Outcome> {
        if !workspace::is_root() {
            return Ok(Outcome::LeftOut("needs root".to_owned()));
        }
        if let Some(why) = no_toolchain() {
            return Ok(Outcome::LeftOut(why));
        }
        setup::terminal()?;
        let tests = self.host_tests()?;
        let agent = self.agent()?.path.clone();
        note(tests.tests.display());
        let program = cadvisor::program().map_err(|error| format!("{error:#}"));
        if let Err(why) = &program
            && self.asked
        {
            note(format_args!("no cAdvisor: {why}"));
        }
        again::run(&vm::host_arguments(self.pass_on), |arguments| {
            let mut command = Command::new(&tests.tests);
            command
                .current_dir(workspace::root().join("tests"))
                .args(arguments)
                .env("BALLAST_BIN", &agent)
                .env("BALLAST_HOG", &tests.hog)
                .env("BALLAST_PLUGIN", &tests.plugin)
                .env(ERROR_BACKTRACE, "0");
            match &program {
                Ok(path) => command.env(cadvisor::PROGRAM, path),
                // The test that needs it fails.
                Err(_) if self.asked => &mut command,
                Err(why) => command.env(cadvisor::WITHOUT, why),
            };
            let deadline = Deadline {
                end: Some(HOST_DEADLINE),
                ..Deadline::default()
            };
            let finished = progress::watch("host tests", &mut command, Stdout::Show, deadline)?;
            ensure!(
                !finished.timed_out,
                "stopped after {} minutes",
                HOST_DEADLINE.as_secs() / 60
            );
            Ok(again::Ran {
                fault: (!finished.status.success())
                    .then(|| format!("host tests: {}", finished.status)),
                output: finished.stdout,
                about: String::new(),
            })
        })
    }

    fn vm(&mut self) -> Result<Vec<Row>> {
        let left_out = |why| Ok(vec![Row::left_out("vm", why)]);
        if let Some(why) = vm::cannot_run() {
            return left_out(why);
        }
        if let Some(why) = no_toolchain() {
            return left_out(why);
        }
        let HostTests { tests, hog, plugin } = self.host_tests()?;
        let programs = vm::Programs {
            tests,
            hog: Some(hog),
            plugin: Some(plugin),
            agent: Some(self.agent()?.path.clone()),
            arguments: vm::guest_arguments(self.pass_on),
        };
        vm::lane(&vm::Selection::Default, &programs)
    }

    fn agent(&mut self) -> Result<&Agent> {
        match &mut self.agent {
            Some(agent) => Ok(agent),
            none => Ok(none.insert(build::release()?)),
        }
    }

    fn host_tests(&mut self) -> Result<HostTests> {
        if self.host_tests.is_none() {
            self.host_tests = Some(build_host_tests()?);
        }
        self.host_tests.clone().context("just built")
    }
}

/// Tests that touch the machine own it: one at a time.
pub(crate) const HOST_TEST_ARGUMENTS: [&str; 1] = ["--test-threads=1"];

/// The host tests, the program that misbehaves for them and their device plugin, linked statically so
/// that the same programs run in a VM.
#[derive(Clone)]
pub(crate) struct HostTests {
    pub(crate) tests: PathBuf,
    pub(crate) hog: PathBuf,
    pub(crate) plugin: PathBuf,
}

pub(crate) fn build_host_tests() -> Result<HostTests> {
    headline("build the host tests");
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "test",
            "--locked",
            "--workspace",
            "--test",
            "host",
            "--no-run",
        ])
        .args(["--features", "ballast-tests/privileged"])
        .args(["--message-format", "json-render-diagnostics"]);
    let messages = progress::capture(
        "build the host tests",
        workspace::link_statically(&mut cargo),
    )?;
    Ok(HostTests {
        tests: report::executable(&messages, "test", "host")
            .context("cargo named no test program `host`")?,
        hog: report::executable(&messages, "bin", "hog").context("cargo named no program `hog`")?,
        plugin: report::executable(&messages, "bin", "example_device_plugin")
            .context("cargo named no program `example_device_plugin`")?,
    })
}

/// Why the lanes that need eBPF cannot run; what is missing is installed first where possible.
fn no_toolchain() -> Option<String> {
    setup::toolchain()
        .err()
        .map(|error| format!("no eBPF tool chain: {error:#}"))
}

fn passed(count: u64) -> Result<Outcome> {
    match count {
        0 => bail!("no test ran"),
        _ => Ok(Outcome::Passed(report::tests(count))),
    }
}

fn name(lane: Lane) -> String {
    lane.to_possible_value()
        .map_or_else(String::new, |it| it.get_name().to_owned())
}
