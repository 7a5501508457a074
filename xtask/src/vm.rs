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
use crate::setup;
use crate::test::again;
use crate::test::programs::{self, HostPrograms};
use crate::test::report::{Outcome, Report, Row};
use crate::test::{HOST_TEST_ARGUMENTS, times};
use kernels::Table;

/// Run the host tests in VMs: on the default kernels, those named, or all
///
/// Kernels are those of tests/vm/kernels.toml. Arguments after `--` go to the test program, for
/// instance a part of a test's name.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(value_name = "KERNEL")]
    kernels: Vec<String>,
    /// Fetch the newest packages of each suite instead of those kept from before
    #[arg(long)]
    update: bool,
    /// Run this static program in place of the host tests, to try a kernel
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Passed on to the test program
    #[arg(last = true, value_name = "ARGUMENT")]
    pass_on: Vec<String>,
}

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
        debian::forget(&chosen)?;
    }
    let programs = match &arguments.program {
        Some(program) => Programs {
            tests: program.clone(),
            agent: None,
            hog: None,
            plugin: None,
            arguments: arguments.pass_on.clone(),
        },
        None => {
            setup::toolchain()?;
            headline("build the programs of the guests");
            let programs = programs::build(&HostPrograms::wanted())?.host()?;
            Programs::of(programs, &arguments.pass_on)
        }
    };
    let mut report = Report::start(Vec::new());
    for row in lane(&selection, &programs)?.0 {
        report.push(row.required());
    }
    Ok(report.close())
}

/// The arguments of the host tests in a guest, which has no tmux: a screen is the same on every kernel.
fn guest_arguments(pass_on: &[String]) -> Vec<String> {
    HOST_TEST_ARGUMENTS
        .into_iter()
        .chain(times::ARGUMENTS)
        .chain(["--skip", "top::"])
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

/// One row for each kernel, and the output of the tests.
pub(crate) fn lane(selection: &Selection, programs: &Programs) -> Result<(Vec<Row>, String)> {
    let table = Table::read()?;
    let emulator = debian::emulator(&table.emulator)?;
    let mut output = String::new();
    let rows = table.choose(selection)?.into_iter().map(|kernel| {
        let started = Instant::now();
        headline(format_args!("kernel {}", kernel.name));
        let outcome = debian::kernel(kernel)
            .and_then(|unpacked| {
                again::run(&programs.arguments, |arguments| {
                    let ran = guest::run(&emulator, &kernel.name, &unpacked, programs, arguments)?;
                    output += &ran.output;
                    Ok(ran)
                })
            })
            .unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
        Row {
            name: format!("vm {}", kernel.name),
            outcome,
            took: started.elapsed(),
        }
    });
    let rows: Vec<_> = rows.collect();
    ensure!(!rows.is_empty(), "no kernel chosen");
    Ok((rows, output))
}

/// The directory of the VM lane in the cache.
fn cache() -> Result<PathBuf> {
    Ok(crate::workspace::cache()
        .context("find the VM cache")?
        .join("vm"))
}
