//! `cargo xtask vm`: the host tests on other kernels, each in a virtual machine of its own.
//!
//! Invariant: nothing is installed on this machine. Kernels and emulator are unpacked from Debian's
//! packages into the cache, and the guest has no disk and no network: its whole system is one
//! archive that the kernel unpacks into memory.

mod debian;
mod guest;
mod initramfs;
mod kernels;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::progress::headline;
use crate::test::again;
use crate::test::host;
use crate::test::programs::{self, HostPrograms};
use crate::test::report::{Outcome, Report, Row};
use crate::test::{ONE_AT_A_TIME, check_options, chooses, only, times};
use crate::{python_grpc, setup};
use guest::Cgroups;
use kernels::{Kernel, Table};

/// Run the host tests in VMs: on the default kernels, those named, or all
///
/// Kernels are those of tests/vm/kernels.toml. What is about numbers is a twentieth of its size there,
/// since emulated machines are that slow; `--full` runs it as it is, an hour and more for each kernel.
/// Arguments after `--` go to the test program, for instance a part of a test's name.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Fetch the newest packages of each suite instead of those kept from before
    #[arg(long)]
    update: bool,
    /// At full size; without a name of a test, those that are about numbers
    #[arg(long, conflicts_with = "program")]
    full: bool,
    /// Run this static program in place of the host tests, to try a kernel
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Passed on to the test program
    #[arg(last = true, value_name = "ARGUMENT")]
    pass_on: Vec<String>,
}

/// A thousand kills, two hundred amid restarts of the agent, fifty and more deaths of it, two hundred restarts amid
/// placement.
const ABOUT_NUMBERS: [&str; 8] = [
    "a_burst_of_a_thousand_kills_is_counted_exactly",
    "of_200_kills_none_is_lost",
    "an_agent_that_dies_amid_kills_loses_none_and_doubles_none",
    "an_agent_without_programs_that_dies_amid_kills_loses_none_and_doubles_none",
    "without_programs_an_agent_that_dies_amid_kills_counts_each_once",
    "an_agent_that_dies_in_a_storm_leaves_whole_records",
    "a_storm_of_kills_leaks_doubles_and_loses_nothing",
    "placement::storm",
];

/// Which kernels to run.
pub(crate) enum Selection {
    Default,
    All,
    Named(Vec<String>),
}

/// What runs in the guest.
pub(crate) struct Programs {
    /// Linked statically; it exits with 0 when all is well.
    pub(crate) tests: PathBuf,
    /// The agent, which the tests find as `BALLAST_BIN`.
    pub(crate) agent: Option<PathBuf>,
    /// The program that misbehaves, which they find as `BALLAST_HOG`.
    pub(crate) hog: Option<PathBuf>,
    /// The device plugin, which they find as `BALLAST_PLUGIN`.
    pub(crate) plugin: Option<PathBuf>,
    /// Tests run at their full size.
    pub(crate) is_full: bool,
    /// Without the tests that are alike on every kernel.
    pub(crate) is_short: bool,
    /// Endless loops that each core of this machine has beside it.
    pub(crate) busy: u32,
    /// Of the tests; those that fail are run once more with others.
    pub(crate) arguments: Vec<String>,
}

impl Programs {
    /// The host tests in a guest; `pass_on`: their arguments.
    pub(crate) fn of(programs: HostPrograms, pass_on: &[String]) -> Self {
        Self {
            tests: programs.tests,
            agent: Some(programs.agent),
            hog: Some(programs.hog),
            plugin: Some(programs.plugin),
            is_full: false,
            is_short: false,
            busy: 0,
            arguments: guest_arguments(pass_on),
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let selection = match arguments.kernels.as_slice() {
        [] => Selection::Default,
        [all] if all == "all" => Selection::All,
        named => Selection::Named(named.to_vec()),
    };
    let table = Table::read()?;
    let chosen = table.choose(&selection)?;
    if arguments.update {
        debian::forget(&table.emulator, &chosen)?;
    }
    let programs = match &arguments.program {
        Some(program) => Programs {
            tests: program.clone(),
            agent: None,
            hog: None,
            plugin: None,
            is_full: false,
            is_short: false,
            busy: 0,
            arguments: arguments.pass_on.clone(),
        },
        None => {
            check_options(&arguments.pass_on)?;
            setup::toolchain()?;
            headline("build the programs of the guests");
            let programs = programs::build(&HostPrograms::wanted())?.host()?;
            let pass_on = of_size(arguments.full, &arguments.pass_on);
            Programs {
                is_full: arguments.full,
                ..Programs::of(programs, &pass_on)
            }
        }
    };
    let mut report = Report::start(Vec::new(), only(&arguments.pass_on), Vec::new());
    for row in lane(&selection, &programs)?.0 {
        report.push(row.required());
    }
    Ok(report.close())
}

/// What is passed on to the host tests: those at full size are the ones about numbers, unless others are chosen.
fn of_size(is_full: bool, pass_on: &[String]) -> Vec<String> {
    let about_numbers = (is_full && !chooses(pass_on)).then_some(ABOUT_NUMBERS);
    let about_numbers = about_numbers.into_iter().flatten().map(str::to_owned);
    about_numbers.chain(pass_on.iter().cloned()).collect()
}

/// The arguments of the host tests in a guest, which has neither tmux nor Python: a screen and a plugin
/// are the same on every kernel.
fn guest_arguments(pass_on: &[String]) -> Vec<String> {
    [ONE_AT_A_TIME]
        .into_iter()
        .chain(times::ARGUMENTS)
        .chain(["--skip", "top::", "--skip", python_grpc::TESTS])
        .map(str::to_owned)
        .chain(pass_on.iter().cloned())
        .collect()
}

/// Why this machine cannot run VMs.
pub(crate) fn cannot_run() -> Option<String> {
    if env::consts::ARCH != "x86_64" {
        return Some(format!(
            "the kernels of the table are for x86_64, this is {}",
            env::consts::ARCH
        ));
    }
    let table = match Table::read() {
        Ok(table) => table,
        Err(error) => return Some(format!("{error:#}")),
    };
    debian::cannot_fetch(&table)
}

/// Gets what the default kernels need into the cache.
pub(crate) fn prepare() -> Result<Vec<String>> {
    let table = Table::read()?;
    debian::emulator(&table.emulator)?;
    let kernels = table.choose(&Selection::Default)?;
    kernels
        .iter()
        .map(|kernel| Ok(debian::kernel(kernel)?.release))
        .collect()
}

/// One row for each kernel, one more for what runs on cgroup v1 there, and the output of the tests.
pub(crate) fn lane(selection: &Selection, programs: &Programs) -> Result<(Vec<Row>, String)> {
    let table = Table::read()?;
    let emulator = debian::emulator(&table.emulator)?;
    let alike = match programs.is_short {
        true => table.alike.as_slice(),
        false => &[],
    };
    let skipped = alike
        .iter()
        .flat_map(|it| ["--skip".to_owned(), it.clone()]);
    let arguments: Vec<_> = programs.arguments.iter().cloned().chain(skipped).collect();
    let (guests, legacy) = match programs.agent {
        Some(_) => (
            host::guests(&programs.tests, arguments.clone())?,
            host::that_begin(&programs.tests, &arguments, &table.legacy)?,
        ),
        None => (vec![arguments], None),
    };
    let legacy: Vec<Vec<String>> = legacy.into_iter().collect();
    let mut output = String::new();
    let mut run = |kernel: &Kernel, cgroups: Cgroups, guests: &[Vec<String>]| {
        let started = Instant::now();
        let name = match cgroups {
            Cgroups::V1 => format!("{} on cgroup v1", kernel.name),
            Cgroups::V2 => kernel.name.clone(),
        };
        headline(format_args!("kernel {name}"));
        let mut outcome = debian::kernel(kernel)
            .and_then(|unpacked| {
                again::run(guests, |arguments| {
                    let ran = guest::run(
                        &emulator,
                        &kernel.name,
                        &unpacked,
                        cgroups,
                        programs,
                        arguments,
                    )?;
                    output += &ran.output;
                    Ok(ran)
                })
            })
            .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        if let (Outcome::Passed(passed), Cgroups::V2, [_, ..]) = (&mut outcome, cgroups, alike) {
            passed.detail += ", without those that are alike on every kernel";
        }
        Row {
            name: format!("vm {name}"),
            outcome,
            took: started.elapsed(),
        }
    };
    let mut rows = Vec::new();
    for kernel in table.choose(selection)? {
        rows.push(run(kernel, Cgroups::V2, &guests));
        if kernel.has_legacy_memory && !legacy.is_empty() {
            rows.push(run(kernel, Cgroups::V1, &legacy));
        }
    }
    ensure!(!rows.is_empty(), "no kernel chosen");
    Ok((rows, output))
}

/// The directory of the VM lane in the cache.
fn cache() -> Result<PathBuf> {
    Ok(crate::workspace::cache()
        .context("find the VM cache")?
        .join("vm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_about_the_output_leaves_a_run_at_full_size_to_what_is_about_numbers() {
        let size = |is_full, pass_on: &[&str]| {
            let pass_on: Vec<_> = pass_on.iter().map(|it| (*it).to_owned()).collect();
            of_size(is_full, &pass_on)
        };
        let shown = [&ABOUT_NUMBERS[..], &["--nocapture"]].concat();
        assert_eq!(size(true, &["--nocapture"]), shown);
        assert_eq!(size(true, &[]), ABOUT_NUMBERS);
        assert_eq!(
            size(true, &["--nocapture", "oom::"]),
            ["--nocapture", "oom::"]
        );
        assert_eq!(size(false, &["--nocapture"]), ["--nocapture"]);
    }
}
