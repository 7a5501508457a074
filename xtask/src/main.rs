//! The project's tasks. One file per verb; a bare `cargo xtask` lists them.
#![expect(
    clippy::disallowed_methods,
    reason = "a build tool: it works with files, the environment and the clock"
)]

mod bench;
mod build;
mod build_ebpf;
mod cadvisor;
mod ci;
mod cluster;
mod cri;
mod dashboards;
mod debian;
mod demo;
mod fuzz;
mod interrupt;
mod machine;
mod monitoring;
mod progress;
mod python_grpc;
mod reference;
mod setup;
mod test;
mod tidy;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

/// Builds, tests and shows ballast.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Subcommand)]
enum Verb {
    Setup(setup::Arguments),
    Build(build::Arguments),
    BuildEbpf(build_ebpf::Arguments),
    Demo(demo::Arguments),
    Test(test::Arguments),
    Vm(vm::Arguments),
    Cluster(cluster::Arguments),
    Cri(cri::Arguments),
    Fuzz(fuzz::Arguments),
    Bench(bench::Arguments),
    Dashboards(dashboards::Arguments),
    Reference(reference::Arguments),
    Tidy(tidy::Arguments),
    Ci(ci::Arguments),
}

fn main() -> ExitCode {
    let Some(verb) = Arguments::parse().verb else {
        return match Arguments::command().print_help() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    };
    match run(verb) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<ExitCode> {
    if ends_in_order(&verb) {
        interrupt::listen()?;
    }
    match verb {
        Verb::Setup(arguments) => setup::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Build(arguments) => build::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::BuildEbpf(arguments) => build_ebpf::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Demo(arguments) => demo::verb(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Test(arguments) => test::run(&arguments),
        Verb::Vm(arguments) => vm::run(&arguments),
        Verb::Cluster(arguments) => cluster::run(&arguments),
        Verb::Cri(arguments) => cri::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Fuzz(arguments) => fuzz::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Dashboards(arguments) => dashboards::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Reference(arguments) => reference::run(&arguments).map(|()| ExitCode::SUCCESS),
        Verb::Tidy(arguments) => tidy::run(&arguments),
        Verb::Ci(arguments) => ci::run(&arguments),
    }
}

/// Whether it takes long, and whatever it waits for ends when a signal asks for it.
fn ends_in_order(verb: &Verb) -> bool {
    matches!(
        verb,
        Verb::Test(_) | Verb::Vm(_) | Verb::Fuzz(_) | Verb::Bench(_) | Verb::Ci(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_verb_says_what_it_does() {
        let command = Arguments::command();
        command.clone().debug_assert();
        for verb in command.get_subcommands() {
            assert!(verb.get_about().is_some(), "{}", verb.get_name());
        }
    }
}
