//! `ballast check`: gathers what the pure report is made from.

use super::RunError;
use crate::apply::devices::{DEVICE_PROGRAM, DevicePrograms};
use crate::check;
use crate::config::{Config, Mode};
use crate::decide::device_access::device_access;
use crate::model::check::{CgroupDetection, CheckReport, ProgramCheck};
use crate::sources::bpf::{LoadOptions, ProgramReport, ProgramState, Stream, Streams};
use crate::sources::probe;
use crate::sys::Root;

/// What this node gives the agent. Every eBPF program is loaded and attached for a moment; nothing
/// is pinned, mounted or written.
pub fn check(config: &Config) -> CheckReport {
    let facts = probe::facts(&Root::host(), &config.socket);
    let mut programs = try_programs();
    if let (Mode::Own, CgroupDetection::Found(found)) = (config.mode, &facts.cgroups)
        && check::needs_device_program(found)
    {
        programs.push(try_device_program());
    }
    check::report(&facts, config, &programs)
}

/// The judgement of [`check`] without the programs, none of which an agent needs.
pub(super) fn check_fitness(config: &Config) -> Result<(), RunError> {
    let facts = probe::facts(&Root::host(), &config.socket);
    let report = check::report(&facts, config, &[]).fatal();
    match report.items.is_empty() {
        true => Ok(()),
        false => Err(RunError::Unfit(report)),
    }
}

fn try_device_program() -> ProgramCheck {
    let tried = DevicePrograms::new(&device_access(&[]));
    ProgramCheck {
        program: DEVICE_PROGRAM.to_owned(),
        is_running: tried.is_ok(),
        state: match tried {
            Ok(_) => "cgroup/device".to_owned(),
            Err(error) => crate::observe::chain(&error),
        },
        fallback: Some("containers may open every device of the host".to_owned()),
    }
}

fn try_programs() -> Vec<ProgramCheck> {
    match Streams::load(&LoadOptions::default()) {
        Ok(streams) => streams.reports().iter().map(program_check).collect(),
        Err(error) => Stream::ALL
            .iter()
            .map(|stream| ProgramCheck {
                program: stream.name().to_owned(),
                state: crate::observe::chain(&error),
                is_running: false,
                fallback: None,
            })
            .collect(),
    }
}

fn program_check(report: &ProgramReport) -> ProgramCheck {
    let (state, is_running) = match &report.state {
        ProgramState::Attached { hook } => (hook.clone(), true),
        ProgramState::Adopted => ("adopted".to_owned(), true),
        ProgramState::Refused { reason } => (reason.clone(), false),
    };
    ProgramCheck {
        program: report.program.to_owned(),
        state,
        is_running,
        fallback: report.fallback.map(str::to_owned),
    }
}
