//! The host tests, in two lanes: those of the gate, and those that take long.

use std::process::Command;

use anyhow::{Result, ensure};

use super::again::{self, Ran};
use super::programs::HostPrograms;
use super::report::Outcome;
use super::{DEADLINE, ERROR_BACKTRACE, HOST_TEST_ARGUMENTS, times};
use crate::progress::{self, Deadline, Stdout, note};
use crate::{cadvisor, python_grpc, workspace};

/// Which of the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All but those of [`STORM`].
    Host,
    Storm,
}

/// Host tests, by the beginning of their names, that take 15 s and more by themselves.
const STORM: &[&str] = &[
    // Fills in what the measured times say.
];

/// Options of a test program that are about its output.
const SHOW: [&str; 2] = ["--nocapture", "--show-output"];

impl Part {
    fn has(self, test: &str) -> bool {
        STORM.iter().any(|it| test.starts_with(it)) == (self == Self::Storm)
    }
}

/// Gives how the lane ended, and the output of the tests.
pub(super) fn run(
    programs: &HostPrograms,
    part: Part,
    pass_on: &[String],
    asked: bool,
) -> Result<(Outcome, String)> {
    note(programs.tests.display());
    let program = cadvisor::program().map_err(|error| format!("{error:#}"));
    if let Err(why) = &program
        && asked
    {
        note(format_args!("no cAdvisor: {why}"));
    }
    let mut chosen = chosen(programs, part, pass_on)?;
    let needs_modules = chosen.iter().any(|it| it.contains(python_grpc::TESTS));
    let mut about = String::new();
    let modules = match needs_modules.then(python_grpc::modules).transpose() {
        Ok(modules) => modules,
        // The test that needs them fails.
        Err(error) if asked => {
            note(format_args!("no gRPC of Python: {error:#}"));
            None
        }
        Err(error) => {
            chosen.retain(|it| !it.contains(python_grpc::TESTS));
            about = format!("without a plugin in Python: {error:#}");
            None
        }
    };
    ensure!(
        !chosen.is_empty(),
        "no test of this lane has such a name; the rest of the host tests is another lane"
    );
    let arguments: Vec<String> = HOST_TEST_ARGUMENTS
        .into_iter()
        .chain(times::ARGUMENTS)
        .chain(["--exact"])
        .map(str::to_owned)
        // The other options choose, and have chosen.
        .chain(
            pass_on
                .iter()
                .filter(|it| SHOW.contains(&it.as_str()))
                .cloned(),
        )
        .chain(chosen)
        .collect();
    let mut output = String::new();
    let outcome = again::run(&arguments, |arguments| {
        let mut command = times::command(&programs.tests);
        command
            .current_dir(workspace::root().join("tests"))
            .args(arguments)
            .env("BALLAST_BIN", &programs.agent)
            .env("BALLAST_HOG", &programs.hog)
            .env("BALLAST_PLUGIN", &programs.plugin)
            .env(ERROR_BACKTRACE, "0")
            .envs(modules.iter().map(|it| (python_grpc::MODULES, it)));
        match &program {
            Ok(path) => command.env(cadvisor::PROGRAM, path),
            // The test that needs it fails.
            Err(_) if asked => &mut command,
            Err(why) => command.env(cadvisor::WITHOUT, why),
        };
        let deadline = Deadline {
            end: Some(DEADLINE),
            ..Deadline::default()
        };
        let finished = progress::watch("host tests", &mut command, Stdout::Show, deadline)?;
        ensure!(
            !finished.timed_out,
            "stopped after {} minutes",
            DEADLINE.as_secs() / 60
        );
        output += &finished.stdout;
        Ok(Ran {
            fault: (!finished.status.success()).then(|| format!("host tests: {}", finished.status)),
            output: finished.stdout,
            about: about.clone(),
        })
    })?;
    Ok((outcome, output))
}

/// The names of the tests of `part` that `pass_on` chooses: all, or those with one of its words in their
/// name.
fn chosen(programs: &HostPrograms, part: Part, pass_on: &[String]) -> Result<Vec<String>> {
    let mut list = Command::new(&programs.tests);
    list.arg("--list").args(pass_on);
    let list = progress::quiet(&mut list)?;
    let names = list.lines().filter_map(|it| it.strip_suffix(": test"));
    Ok(names.filter(|it| part.has(it)).map(str::to_owned).collect())
}
