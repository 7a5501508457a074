//! `cargo xtask test`: the lanes, and one closing line that says what ran.
//!
//! Without a name the lanes of the gate run: what every change has to pass. What takes longer is left to
//! `all`, and the closing line names it.
//!
//! Invariant: a lane is passed, failed, or left out by name with its reason. A lane of the gate and one that was
//! asked for by name have failed where they cannot run, and so has one that ran no test.

pub(crate) mod again;
pub(crate) mod busy;
pub(crate) mod host;
pub(crate) mod programs;
pub(crate) mod report;
mod tested;
pub(crate) mod times;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::machine::Machine;
use crate::progress::{self, Deadline, Stdout, headline};
use crate::{cluster, cri, fuzz, interrupt, monitoring, reference, setup, tidy, vm, workspace};
use again::Ran;
use host::Part;
use programs::{Artifact, HostPrograms, Programs, Wanted};
use report::{Outcome, Passed, Report, Row};
use times::{Repeated, Test};

/// Run the test lanes: those of the gate, those named, or all
///
/// Without a name: tidy, unit, replay, conformance, plugins, rules and host, as CI does. A lane of these that cannot
/// run on this machine has failed, and so has one that is asked for by name; of all lanes such a one is left out and
/// named.
/// Arguments after `--` go to every test program of the lanes, for instance a part of a test's
/// name.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "LANE", value_parser = choices())]
    lanes: Vec<Choice>,
    /// Run the lanes this often, and say how often each test failed or was slow
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    times: u32,
    /// Keep every core busy with this many endless loops meanwhile
    #[arg(long, value_name = "K", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=64))]
    busy: u32,
    /// Passed on to the test programs
    #[arg(last = true, value_name = "ARGUMENT")]
    pass_on: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    All,
    Lane(Lane),
}

impl Arguments {
    /// The options by which the lanes run otherwise than once on the machine as it is.
    fn options(&self) -> Vec<String> {
        let options = [
            ("--times", self.times, self.times > 1),
            ("--busy", self.busy, self.busy > 0),
        ];
        let given = options.into_iter().filter(|it| it.2);
        given.map(|it| format!("{} {}", it.0, it.1)).collect()
    }
}

const ALL: &str = "all";

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
    /// The agent's side of device plugins and of a container runtime against programs that are none; needs nothing
    Plugins,
    /// Rules, alerts and pages in a Prometheus and an Alertmanager of their own; needs Debian's packages
    Rules,
    /// Real cgroups and real eBPF on this machine; needs root
    Host,
    /// Host tests that take long: bursts, storms, comparisons with cAdvisor; needs root
    Storm,
    /// Dashboards and queries of others asked of live agents; needs root and Debian's packages
    Live,
    /// What is known of the dependencies' faults; needs the network
    Advisories,
    /// Each fuzz target for a short time, with a new seed; needs a C++ compiler
    Fuzz,
    /// The agent beside a real kubelet, containerd and API server; needs root, Go and Debian's packages
    Cluster,
    /// The host tests on the default kernel of tests/vm/kernels.toml, in qemu, without those that are
    /// alike on every kernel
    Vm,
}

impl Lane {
    /// Whether it is of the gate. The others are run by name or by `all`.
    fn is_of_the_gate(self) -> bool {
        !matches!(
            self,
            Self::Storm | Self::Live | Self::Advisories | Self::Fuzz | Self::Cluster | Self::Vm
        )
    }

    fn name(self) -> String {
        self.to_possible_value()
            .map_or_else(String::new, |it| it.get_name().to_owned())
    }

    /// What has to be built for it, on a machine that can run it.
    fn wanted(self) -> Wanted {
        let target = |name| Wanted {
            targets: vec![name],
            ..Wanted::default()
        };
        match self {
            Self::Tidy => Wanted::bin(reference::PROGRAM),
            Self::Fuzz => Wanted::bin(fuzz::SEEDS),
            Self::Unit => Wanted {
                unit: true,
                ..Wanted::default()
            },
            Self::Replay => target("replay"),
            Self::Conformance => target("conformance"),
            Self::Plugins => target("plugins"),
            Self::Rules => target("monitoring"),
            Self::Cluster => Wanted {
                bins: vec![programs::AGENT, programs::HOG],
                ..target("cluster")
            },
            Self::Live => Wanted {
                bins: vec![programs::AGENT, programs::HOG],
                ..target("monitoring")
            },
            Self::Host | Self::Storm | Self::Vm => HostPrograms::wanted(),
            Self::Advisories => Wanted::default(),
        }
    }

    /// Whether it has tests that names can choose among.
    fn has_tests(self) -> bool {
        !matches!(
            self,
            Self::Tidy | Self::Conformance | Self::Advisories | Self::Fuzz
        )
    }

    /// Whether it looks at all of the machine.
    fn has_the_machine(self) -> bool {
        matches!(self, Self::Host | Self::Storm | Self::Live | Self::Cluster)
    }

    /// Why this machine cannot run it. What is missing is installed first where possible.
    fn cannot_run(self) -> Option<String> {
        match self {
            Self::Host | Self::Storm | Self::Live => needs_root().or_else(no_toolchain),
            Self::Cluster => needs_root()
                .or_else(cluster::cannot_run)
                .or_else(no_toolchain),
            Self::Vm => vm::cannot_run().or_else(no_toolchain),
            _ => None,
        }
    }
}

/// The names of the lanes, and that of all of them.
fn choices() -> impl TypedValueParser<Value = Choice> {
    let lanes = Lane::value_variants().iter();
    let lanes = lanes.filter_map(ValueEnum::to_possible_value);
    let all = PossibleValue::new(ALL).help("Every lane that this machine can run");
    PossibleValuesParser::new(std::iter::once(all).chain(lanes)).try_map(|name| {
        match name.as_str() {
            ALL => Ok(Choice::All),
            name => Lane::from_str(name, false).map(Choice::Lane),
        }
    })
}

/// What went wrong is in the error; where it went through would hide it in a long log.
const ERROR_BACKTRACE: &str = "RUST_LIB_BACKTRACE";

/// Of a test program; tests have deadlines of their own, this one is for a test that hangs all the same.
const DEADLINE: Duration = Duration::from_mins(30);

/// Tests that touch the machine own it.
pub(crate) const ONE_AT_A_TIME: &str = "--test-threads=1";

/// Variables by which tests look at less, wait longer, write what they compare with, or run other eBPF programs than
/// those of the commit.
const OTHERWISE: [&str; 6] = [
    "BALLAST_EBPF_OBJECTS",
    "BALLAST_RECORD_DASHBOARDS",
    "BALLAST_TEST_SCALE",
    "BALLAST_UPDATE_GOLDEN",
    "BALLAST_VECTORS",
    "BALLAST_VM",
];

/// Test programs whose tests wait most of the time, and have nothing in common.
const MANY_AT_A_TIME: &str = "--test-threads=24";

/// Options of a test program that are about its output.
const SHOW: [&str; 2] = ["--nocapture", "--show-output"];

/// Those that choose tests.
const CHOOSE: [&str; 2] = ["--exact", "--skip"];

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let every = Lane::value_variants();
    let (lanes, extent): (Vec<Lane>, Extent) = match arguments.lanes.as_slice() {
        [] => (
            every
                .iter()
                .copied()
                .filter(|it| it.is_of_the_gate())
                .collect(),
            Extent::Gate,
        ),
        choices if choices.contains(&Choice::All) => (every.to_vec(), Extent::All),
        choices => {
            let named = |lane: &&Lane| choices.contains(&Choice::Lane(**lane));
            (every.iter().filter(named).copied().collect(), Extent::Named)
        }
    };
    run_lanes(&lanes, extent, arguments)
}

/// What CI runs: the lanes of the gate.
pub(crate) fn gate() -> Result<ExitCode> {
    run(&Arguments {
        lanes: Vec::new(),
        times: 1,
        busy: 0,
        pass_on: Vec::new(),
    })
}

/// How the lanes were chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    Gate,
    All,
    /// By name: what cannot run has failed.
    Named,
}

impl Extent {
    /// Whether a lane that is left out has failed. `chooses`: only some tests are to run.
    fn requires(self, lane: Lane, chooses: bool) -> bool {
        match self {
            // That it has no tests to choose among is no fault of the machine.
            Self::Gate => lane.has_tests() || !chooses,
            Self::All => false,
            Self::Named => true,
        }
    }
}

fn run_lanes(lanes: &[Lane], extent: Extent, arguments: &Arguments) -> Result<ExitCode> {
    check_options(&arguments.pass_on)?;
    let only = only(&arguments.pass_on);
    let is_whole = extent != Extent::Named && only.is_empty();
    let before = tested::clean();
    if is_whole {
        tested::forget()?;
    }
    let left = Lane::value_variants()
        .iter()
        .filter(|it| !lanes.contains(it));
    let left_to_all = left.map(|it| it.name()).collect();
    let mut report = Report::start(left_to_all, only, arguments.options());
    let mut runner = Runner {
        asked: extent == Extent::Named,
        pass_on: &arguments.pass_on,
        busy: arguments.busy,
        programs: None,
        times: Repeated::default(),
    };
    let left_out = runner.prepare(lanes, &mut report);
    let busy = busy::Loops::start(arguments.busy);
    for n in 1..=arguments.times {
        if n > 1 && interrupt::has_come() {
            break;
        }
        if arguments.times > 1 {
            headline(format_args!("run {n} of {}", arguments.times));
        }
        for lane in lanes {
            let rows = match left_out.iter().find(|it| it.0 == *lane) {
                Some((_, why)) => vec![Row::left_out(&lane.name(), why.clone())],
                None => runner.run(*lane),
            };
            for row in rows {
                let is_required = extent.requires(*lane, chooses(&arguments.pass_on));
                let row = if is_required { row.required() } else { row };
                if matches!(row.outcome, Outcome::Failed(_)) {
                    runner.times.lane_failed(&row.name);
                }
                report.push(row);
            }
        }
        runner.times.next_run();
    }
    drop(busy);
    if arguments.times > 1 {
        println!("\n{}", runner.times.describe());
    }
    let recorded = match is_whole {
        true => tested::record(before, report.rows()),
        false => Ok(()),
    };
    // The table also where the disk is full.
    let code = report.close();
    recorded?;
    Ok(code)
}

/// What makes a run one of a part of the lanes' tests, or of other ones.
pub(crate) fn only(pass_on: &[String]) -> Vec<String> {
    only_with(pass_on, std::env::var_os)
}

/// As [`only`], with variables of this environment.
fn only_with(
    pass_on: &[String],
    variable: impl Fn(&'static str) -> Option<OsString>,
) -> Vec<String> {
    let variables = OTHERWISE.into_iter().filter_map(|it| {
        let value = variable(it)?;
        Some(format!("{it}={}", value.display()))
    });
    choosing(pass_on).cloned().chain(variables).collect()
}

/// Those of the arguments that choose tests.
fn choosing(pass_on: &[String]) -> impl Iterator<Item = &String> {
    pass_on.iter().filter(|it| !SHOW.contains(&it.as_str()))
}

/// Whether they choose tests: one that is about the output does not.
pub(crate) fn chooses(pass_on: &[String]) -> bool {
    choosing(pass_on).next().is_some()
}

/// Refuses what the lanes would pass over.
pub(crate) fn check_options(pass_on: &[String]) -> Result<()> {
    for option in pass_on.iter().filter(|it| it.starts_with('-')) {
        ensure!(
            SHOW.contains(&option.as_str()) || CHOOSE.contains(&option.as_str()),
            "{option}: the lanes know names of tests, {} and {}",
            CHOOSE.join(", "),
            SHOW.join(", ")
        );
    }
    Ok(())
}

/// Runs lanes; the programs of all of them are built once.
struct Runner<'a> {
    /// Lanes were asked for by name, so what cannot run has failed.
    asked: bool,
    pass_on: &'a [String],
    /// Endless loops that each core has beside them.
    busy: u32,
    /// `None` where no lane wants any, and where they could not be built.
    programs: Option<Programs>,
    times: Repeated,
}

impl Runner<'_> {
    /// Finds out which lanes cannot run here, and builds the programs of the others. Gives the former
    /// with the reason.
    fn prepare(&mut self, lanes: &[Lane], report: &mut Report) -> Vec<(Lane, String)> {
        let left_out: Vec<_> = lanes
            .iter()
            .filter_map(|lane| {
                let has_none = chooses(self.pass_on) && !lane.has_tests();
                let why = has_none.then(|| "it has no tests to choose among".to_owned());
                Some((*lane, why.or_else(|| lane.cannot_run())?))
            })
            .collect();
        let mut wanted = Wanted::default();
        for lane in lanes {
            if left_out.iter().all(|it| it.0 != *lane) {
                wanted.add(lane.wanted());
            }
        }
        if !wanted.is_empty() {
            headline("build the programs of the lanes");
            let started = Instant::now();
            let outcome = match programs::build(&wanted) {
                Ok(programs) => {
                    self.programs = Some(programs);
                    Outcome::passed("")
                }
                Err(error) => Outcome::Failed(format!("{error:#}")),
            };
            report.push(Row {
                name: "build".to_owned(),
                outcome,
                took: started.elapsed(),
            });
        }
        left_out
    }

    fn run(&mut self, lane: Lane) -> Vec<Row> {
        headline(format_args!("lane {}", lane.name()));
        let machine = lane.has_the_machine().then(|| {
            let what = format!("the lane {}", lane.name());
            Machine::take(&what)
        });
        let started = Instant::now();
        let outcome = match interrupt::check().and_then(|()| machine.transpose()) {
            Err(error) => Err(error),
            // Until the lane has ended.
            Ok(_machine) => match lane {
                Lane::Tidy => tidy::lane(),
                Lane::Unit => self.unit(),
                Lane::Replay | Lane::Plugins => self.target(lane),
                Lane::Conformance => self.conformance(),
                Lane::Rules | Lane::Live => self.monitoring(lane),
                Lane::Advisories => tidy::advisories(),
                Lane::Fuzz => fuzz::lane(),
                Lane::Cluster => self.cluster(),
                Lane::Host => self.host(lane, Part::Host),
                Lane::Storm => self.host(lane, Part::Storm),
                Lane::Vm => match self.vm() {
                    Ok(rows) => return rows,
                    Err(error) => Err(error),
                },
            },
        };
        let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        vec![Row {
            name: lane.name(),
            outcome,
            took: started.elapsed(),
        }]
    }

    fn programs(&self) -> Result<&Programs> {
        self.programs.as_ref().context("not built")
    }

    fn unit(&mut self) -> Result<Outcome> {
        let programs: Vec<Artifact> = self.programs()?.unit().into_iter().cloned().collect();
        let mut all = Ran::default();
        for program in &programs {
            all.add(self.run_program(program, &[], self.pass_on)?);
        }
        let mut cargo = workspace::cargo();
        cargo.args(["test", "--doc"]);
        programs::flags(&mut cargo).arg("--").args(self.pass_on);
        all.add(run_to_end(
            "tests in the documentation",
            &mut cargo,
            self.busy,
        )?);
        Ok(self.outcome(Lane::Unit, &all))
    }

    /// The lane of the test program of its name.
    fn target(&mut self, lane: Lane) -> Result<Outcome> {
        let program = self.programs()?.target(&lane.name())?.clone();
        let threads = (lane == Lane::Plugins).then(|| MANY_AT_A_TIME.to_owned());
        let arguments: Vec<_> = threads.iter().chain(self.pass_on).cloned().collect();
        let ran = self.run_program(&program, &[], &arguments)?;
        Ok(self.outcome(lane, &ran))
    }

    /// A program with a report of its own, which tells by its status.
    fn conformance(&mut self) -> Result<Outcome> {
        let program = self.programs()?.target("conformance")?;
        let mut command = Command::new(&program.path);
        command.current_dir(&program.package);
        let ran = run_to_end("conformance", &mut command, self.busy)?;
        Ok(match ran.fault {
            Some(fault) => Outcome::Failed(fault),
            None => Outcome::passed(""),
        })
    }

    /// The tests of rules, or those with live agents.
    fn monitoring(&mut self, lane: Lane) -> Result<Outcome> {
        /// The module of those with live agents.
        const LIVE: &str = "live::";
        let is_live = lane == Lane::Live;
        let programs = self.programs()?;
        let program = programs.target("monitoring")?.clone();
        let mut variables = vec![("BALLAST_MONITORING", monitoring::programs()?)];
        if is_live {
            variables.push(("BALLAST_BIN", programs.bin(programs::AGENT)?));
            variables.push(("BALLAST_HOG", programs.bin(programs::HOG)?));
        }
        let mut chosen = list(&program.path, self.pass_on)?;
        chosen.retain(|it| it.starts_with(LIVE) == is_live);
        ensure!(!chosen.is_empty(), "no test of this lane has such a name");
        let ran = self.run_program(&program, &variables, &exactly(chosen, self.pass_on))?;
        Ok(self.outcome(lane, &ran))
    }

    fn host(&mut self, lane: Lane, part: Part) -> Result<Outcome> {
        setup::terminal()?;
        let programs = self.programs()?.host()?;
        let (outcome, output) = host::run(&programs, part, self.pass_on, self.asked, self.busy)?;
        self.tell_times(lane, &output);
        Ok(outcome)
    }

    fn cluster(&mut self) -> Result<Outcome> {
        cri::run(&cri::Arguments {})?;
        let programs = self.programs()?;
        let program = programs.target("cluster")?.clone();
        let agent = programs.bin(programs::AGENT)?;
        let xtask = std::env::current_exe().context("find this program")?;
        let arguments = [ONE_AT_A_TIME.to_owned()];
        let arguments: Vec<_> = arguments.iter().chain(self.pass_on).cloned().collect();
        let ran = cluster::with(|directory| {
            let variables = [
                ("BALLAST_BIN", agent),
                ("BALLAST_CLUSTER", directory.to_owned()),
                // It restarts programs of the cluster.
                ("BALLAST_XTASK", xtask),
            ];
            self.run_program(&program, &variables, &arguments)
        })?;
        Ok(self.outcome(Lane::Cluster, &ran))
    }

    fn vm(&mut self) -> Result<Vec<Row>> {
        let programs = vm::Programs {
            is_short: !chooses(self.pass_on),
            busy: self.busy,
            ..vm::Programs::of(self.programs()?.host()?, self.pass_on)
        };
        let (rows, output) = vm::lane(&vm::Selection::Default, &programs)?;
        self.tell_times(Lane::Vm, &output);
        Ok(rows)
    }

    /// Runs a test program of libtest where cargo would.
    fn run_program(
        &self,
        program: &Artifact,
        variables: &[(&str, PathBuf)],
        arguments: &[String],
    ) -> Result<Ran> {
        let mut command = times::command(&program.path);
        command
            .args(times::ARGUMENTS)
            .current_dir(&program.package)
            .env(ERROR_BACKTRACE, "0")
            .envs(variables.iter().map(|it| (it.0, &it.1)))
            .args(arguments);
        run_to_end(&program.name, &mut command, self.busy)
    }

    fn outcome(&mut self, lane: Lane, ran: &Ran) -> Outcome {
        self.tell_times(lane, &ran.output);
        if let Some(fault) = &ran.fault {
            return Outcome::Failed(fault.clone());
        }
        match report::count_tests(&ran.output) {
            None | Some(0) => Outcome::Failed("no test ran".to_owned()),
            Some(count) => Outcome::Passed(Passed {
                detail: report::tests(count),
                without: report::left_out(&ran.output),
                ..Passed::default()
            }),
        }
    }

    fn tell_times(&mut self, lane: Lane, output: &str) {
        let tests: Vec<Test> = times::tests(output);
        let slowest = times::slowest(&tests);
        if !slowest.is_empty() {
            eprint!("    the slowest:\n{slowest}");
        }
        self.times.add(&lane.name(), tests);
    }
}

/// Arguments of a test program that run these tests, and of those passed on the ones that are about its
/// output: the others have chosen.
fn exactly(tests: Vec<String>, pass_on: &[String]) -> Vec<String> {
    let shown = pass_on.iter().filter(|it| SHOW.contains(&it.as_str()));
    let options = shown.cloned().chain(["--exact".to_owned()]);
    options.chain(tests).collect()
}

/// The names of the tests of a program that `arguments` choose.
fn list(program: &Path, arguments: &[String]) -> Result<Vec<String>> {
    let mut list = times::command(program);
    let list = progress::quiet(list.arg("--list").args(arguments))?;
    let names = list.lines().filter_map(|it| it.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs a test program to its end; one that is still running at the deadline has failed. `busy`: endless loops that
/// each core has beside it.
fn run_to_end(what: &str, command: &mut Command, busy: u32) -> Result<Ran> {
    let end = busy::deadline(DEADLINE, busy);
    let deadline = Deadline {
        end: Some(end),
        ..Deadline::default()
    };
    let finished = progress::watch(what, command, Stdout::Show, deadline)?;
    let fault = match (finished.timed_out, finished.status.success()) {
        (true, _) => Some(format!(
            "{what}: stopped after {} minutes",
            end.as_secs() / 60
        )),
        (false, false) => Some(format!("{what}: {}", finished.status)),
        (false, true) => None,
    };
    Ok(Ran {
        output: finished.stdout,
        fault,
        ..Ran::default()
    })
}

fn needs_root() -> Option<String> {
    (!workspace::is_root()).then(|| "needs root".to_owned())
}

/// Why the lanes that need eBPF cannot run; what is missing is installed first where possible.
fn no_toolchain() -> Option<String> {
    setup::toolchain()
        .err()
        .map(|error| format!("no eBPF tool chain: {error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_is_most_of_all() {
        let gate: Vec<_> = Lane::value_variants()
            .iter()
            .filter(|it| it.is_of_the_gate())
            .map(|it| it.name())
            .collect();
        let expected = [
            "tidy",
            "unit",
            "replay",
            "conformance",
            "plugins",
            "rules",
            "host",
        ];
        assert_eq!(gate, expected);
    }

    #[test]
    fn a_lane_of_the_gate_that_cannot_run_has_failed_whatever_tests_are_chosen() {
        for (lane, chooses, required) in [
            (Lane::Host, false, true),
            (Lane::Host, true, true),
            (Lane::Tidy, false, true),
            (Lane::Tidy, true, false),
        ] {
            assert_eq!(Extent::Gate.requires(lane, chooses), required, "{lane:?}");
            assert!(Extent::Named.requires(lane, chooses));
            assert!(!Extent::All.requires(lane, chooses));
        }
    }

    #[test]
    fn what_is_about_the_output_chooses_no_tests() {
        let all = |it: &[&str]| -> Vec<String> { it.iter().map(|it| (*it).to_owned()).collect() };
        assert!(!chooses(&all(&SHOW)));
        assert!(chooses(&all(&["--nocapture", "oom::"])));
    }

    #[test]
    fn options_are_named_where_they_are_not_the_usual_ones() {
        let options = |times, busy| {
            let arguments = Arguments {
                lanes: Vec::new(),
                times,
                busy,
                pass_on: Vec::new(),
            };
            arguments.options()
        };
        assert_eq!(options(1, 0), [""; 0]);
        assert_eq!(options(10, 0), ["--times 10"]);
        assert_eq!(options(5, 2), ["--times 5", "--busy 2"]);
    }

    #[test]
    fn what_is_not_compared_is_named() {
        let golden = |it: &str| (it == "BALLAST_UPDATE_GOLDEN").then(|| OsString::from("1"));
        let pass_on = ["--nocapture", "oom::"].map(str::to_owned);
        let only = only_with(&pass_on, golden);
        assert_eq!(only, ["oom::", "BALLAST_UPDATE_GOLDEN=1"]);
    }
}
