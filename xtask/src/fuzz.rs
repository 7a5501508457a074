//! `cargo xtask fuzz`: the fuzz targets of `tests/fuzz` under libFuzzer, with coverage that the
//! stable compiler instruments.
//!
//! Inputs that led somewhere new are kept from run to run in the target directory. An input that
//! breaks a target is copied to `tests/data/fuzz`, whose inputs the unit tests run, and the failure
//! names it and how to run it again.

use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::progress::{self, headline, note};
use crate::test::programs::{self, Wanted};
use crate::test::report::Outcome;
use crate::{interrupt, setup, workspace};

/// The program that writes what fuzzing starts from.
pub(crate) const SEEDS: &str = "fuzz-seeds";

/// Of each target in the test command.
const LANE_SECONDS: u32 = 15;

/// An input that takes longer has found a fault.
const MAX_INPUT_SECONDS: u32 = 10;

/// Memory of one target, MiB: a few times what any good input takes.
const MAX_MEMORY_MIB: u32 = 1024;

/// Longest input, bytes. Recorded state files are below 8 KiB.
const MAX_INPUT_BYTES: u32 = 16 << 10;

/// What cargo-fuzz asks of the compiler. None of it needs a nightly one: without an address
/// sanitizer, which safe code has little use for.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
    "--cfg=fuzzing",
];

/// Run the fuzz targets: parsers of foreign text and bytes, and what is made of them
///
/// As many at a time as there are CPUs. Needs a C++ compiler.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// All by default
    #[arg(value_name = "TARGET")]
    targets: Vec<Target>,
    /// For each target
    #[arg(long, default_value_t = LANE_SECONDS, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// Of the random choices, to repeat a run; another one each time by default
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    seed: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Target {
    /// Sets of CPUs as text
    Cpuset,
    /// Kubelet's files of CPUs and memory, read and taken over
    ManagerState,
    /// Kubelet's file of devices, read and taken over
    DeviceState,
    /// What device plugins send
    PluginMessages,
    /// Recordings of eviction, as files and as frames
    Recording,
    /// Paths of cgroups on Kubernetes nodes
    KubeCgroup,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let targets = match arguments.targets.as_slice() {
        [] => Target::value_variants(),
        some => some,
    };
    match fuzz(targets, arguments.seconds, arguments.seed)? {
        Outcome::Passed(passed) => println!("fuzz: {}", passed.detail),
        Outcome::Failed(why) | Outcome::LeftOut(why) => bail!("{why}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Every target for a short time, with other choices each time.
pub(crate) fn lane() -> Result<Outcome> {
    fuzz(Target::value_variants(), LANE_SECONDS, None)
}

fn fuzz(targets: &[Target], seconds: u32, seed: Option<u32>) -> Result<Outcome> {
    if let Err(error) = setup::cxx_compiler() {
        return Ok(Outcome::LeftOut(format!("no C++ compiler: {error:#}")));
    }
    // 0 has libFuzzer choose one by itself.
    let random = RandomState::new().build_hasher().finish() % u64::from(u32::MAX);
    let seed = seed.map_or(random + 1, u64::from);
    let programs = build()?;
    let directory = Directory::new()?;
    // Without instrumentation, which libFuzzer has to be linked for.
    let seeds = programs::build(&Wanted::bin(SEEDS))?.bin(SEEDS)?;
    let mut seeds = Command::new(seeds);
    progress::run("write the seeds", seeds.arg(&directory.seeds))?;
    let n = thread::available_parallelism().map_or(1, usize::from);
    headline(format_args!(
        "fuzz {} targets, {seconds} s each, {n} at a time, seed {seed}",
        targets.len()
    ));
    let waiting = Mutex::new(targets.iter());
    let results = Mutex::new(Vec::new());
    progress::during("fuzz", || {
        thread::scope(|scope| {
            for _ in 0..n.min(targets.len()) {
                scope.spawn(|| {
                    loop {
                        let next = waiting.lock().map_or(None, |mut it| it.next().copied());
                        let Some(target) = next else { break };
                        let result = run_target(target, seconds, seed, &programs, &directory);
                        match &result {
                            Ok(figures) => note(figures),
                            Err(error) => note(format_args!("{error:#}")),
                        }
                        if let Ok(mut results) = results.lock() {
                            results.push(result);
                        }
                    }
                });
            }
        });
    });
    let results = results.into_inner().unwrap_or_default();
    ensure!(results.len() == targets.len(), "not every target was run");
    let (mut n_runs, mut faults) = (0, Vec::new());
    for result in results {
        match result {
            Ok(figures) => n_runs += figures.n_runs,
            Err(error) => faults.push(format!("{error:#}")),
        }
    }
    Ok(match faults.as_slice() {
        [] => Outcome::passed(format!(
            "{} targets, {seconds} s each, seed {seed}, {n_runs} inputs",
            targets.len()
        )),
        faults => Outcome::Failed(format!("seed {seed}: {}", faults.join("; "))),
    })
}

/// The directory of the instrumented programs. In a profile of their own: nothing else is built
/// anew for them.
fn build() -> Result<PathBuf> {
    headline("build the fuzz targets");
    let target = workspace::static_target();
    let variable = workspace::rustflags_variable(&target);
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "build",
            "--profile",
            "fuzz",
            "--locked",
            "--target",
            &target,
        ])
        .args(["--package", "ballast-fuzz", "--features", "libfuzzer"])
        .args(
            Target::value_variants()
                .iter()
                .map(|it| format!("--bin=fuzz-{}", name(*it))),
        )
        // These would replace the flags below.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env(variable, FLAGS.join(" "));
    progress::run("build the fuzz targets", &mut cargo)?;
    Ok(workspace::target().join(target).join("fuzz"))
}

/// Where inputs and logs are.
struct Directory {
    /// Written anew each time, so that a change of them shows.
    seeds: PathBuf,
    /// What was found since.
    corpus: PathBuf,
    /// Inputs that broke a target.
    crashes: PathBuf,
    logs: PathBuf,
}

impl Directory {
    fn new() -> Result<Self> {
        let root = workspace::target().join("fuzzing");
        let directory = Self {
            seeds: root.join("seeds"),
            corpus: root.join("corpus"),
            crashes: root.join("crashes"),
            logs: root.join("logs"),
        };
        for path in [&directory.corpus, &directory.crashes, &directory.logs] {
            fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        }
        Ok(directory)
    }
}

fn run_target(
    target: Target,
    seconds: u32,
    seed: u64,
    programs: &Path,
    directory: &Directory,
) -> Result<Figures> {
    let name = name(target);
    let program = programs.join(format!("fuzz-{name}"));
    let corpus = directory.corpus.join(&name);
    fs::create_dir_all(&corpus).with_context(|| format!("create {}", corpus.display()))?;
    let log = directory.logs.join(format!("{name}.log"));
    let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    interrupt::check()?;
    let mut fuzzer = Command::new(&program)
        // The first is added to.
        .args([&corpus, &directory.seeds.join(&name)])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-seed={seed}"))
        .arg(format!("-timeout={MAX_INPUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MAX_MEMORY_MIB}"))
        .arg(format!("-max_len={MAX_INPUT_BYTES}"))
        .arg(format!(
            "-artifact_prefix={}/{name}-",
            directory.crashes.display()
        ))
        .arg("-print_final_stats=1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output)
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    let status = progress::wait(&name, &mut fuzzer)?;
    let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    if !status.success() {
        match broken(&text) {
            Some(Broken { why, input }) => {
                let kept = keep(&name, Path::new(input))?;
                let (program, kept) = (program.display(), kept.display());
                bail!("{name}: {why}; kept as {kept}; again with: {program} {kept}")
            }
            None => bail!("{name}: {status}, see {}", log.display()),
        }
    }
    Figures::parse(&name, seconds, &text)
        .with_context(|| format!("{name}: no figures in {}", log.display()))
}

/// Copies an input that broke a target to where the unit tests run it from then on.
fn keep(target: &str, input: &Path) -> Result<PathBuf> {
    let directory = workspace::root().join("tests/data/fuzz").join(target);
    fs::create_dir_all(&directory).with_context(|| format!("create {}", directory.display()))?;
    let file = input.file_name().context("an input without a name")?;
    let kept = directory.join(file);
    fs::copy(input, &kept).with_context(|| format!("write {}", kept.display()))?;
    Ok(kept)
}

fn name(target: Target) -> String {
    let value = target.to_possible_value();
    value.map_or_else(String::new, |it| it.get_name().to_owned())
}

/// What libFuzzer says of an input that broke the target.
struct Broken<'a> {
    why: String,
    /// The file that it is in.
    input: &'a str,
}

fn broken(log: &str) -> Option<Broken<'_>> {
    // One that was only slow may have been written before.
    let input = log
        .lines()
        .rev()
        .find_map(|it| it.split_once("Test unit written to "))?
        .1;
    let mut lines = log.lines().skip_while(|it| !it.contains("panicked at"));
    let why = match (lines.next(), lines.next()) {
        (Some(place), Some(message)) => {
            let place = place.split_once("panicked at ").map_or(place, |it| it.1);
            format!("panicked at {place} {message}")
        }
        // Too slow or too large, in libFuzzer's words.
        _ => {
            let error = log
                .lines()
                .find_map(|it| it.split_once("ERROR: libFuzzer: "));
            error.map_or("broken", |it| it.1).to_owned()
        }
    };
    Some(Broken { why, input })
}

/// What came of a run that found nothing.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    name: String,
    seconds: u32,
    n_runs: u64,
    /// Edges of the control flow that were taken.
    n_edges: u64,
    /// Inputs that are kept.
    n_kept: u64,
}

impl Figures {
    fn parse(name: &str, seconds: u32, log: &str) -> Option<Self> {
        let after = |text: &str, word: &str| -> Option<u64> {
            let rest = text.split_once(word)?.1.trim_start();
            let digits = rest.split(|it: char| !it.is_ascii_digit()).next()?;
            digits.parse().ok()
        };
        let last = log.lines().rfind(|it| it.contains(" cov: "))?;
        Some(Self {
            name: name.to_owned(),
            seconds,
            n_runs: after(log, "stat::number_of_executed_units:")?,
            n_edges: after(last, " cov: ")?,
            n_kept: after(last, " corp: ")?,
        })
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            name,
            seconds,
            n_runs,
            n_edges,
            n_kept,
        } = self;
        let rate = n_runs / u64::from(*seconds).max(1);
        write!(
            f,
            "{name}: {n_runs} inputs, {rate}/s, {n_edges} edges taken, {n_kept} inputs kept"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_is_run() {
        let manifest = workspace::root().join("tests/fuzz/Cargo.toml");
        let manifest: toml::Value =
            toml::from_str(&fs::read_to_string(manifest).expect("the manifest")).expect("TOML");
        let programs = manifest["bin"].as_array().expect("programs").iter();
        let programs = programs.filter_map(|it| it["name"].as_str());
        let mut programs: Vec<_> = programs.filter(|it| *it != SEEDS).collect();
        let targets = Target::value_variants().iter();
        let mut targets: Vec<_> = targets.map(|it| format!("fuzz-{}", name(*it))).collect();
        programs.sort_unstable();
        targets.sort();
        assert_eq!(targets, programs);
    }

    #[test]
    fn the_figures_are_those_of_the_last_line() {
        let log = "\
#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 30Mb
#4096\tpulse  cov: 310 ft: 900 corp: 55/2Kb lim: 43 exec/s: 2048 rss: 41Mb
#8192\tDONE   cov: 311 ft: 901 corp: 56/2Kb lim: 80 exec/s: 2730 rss: 41Mb
Done 8192 runs in 3 second(s)
stat::number_of_executed_units: 8192
stat::average_exec_per_sec:     2730
";
        let figures = Figures::parse("cpuset", 3, log).expect("figures");
        assert_eq!(
            figures.to_string(),
            "cpuset: 8192 inputs, 2730/s, 311 edges taken, 56 inputs kept"
        );
        assert_eq!(Figures::parse("cpuset", 3, "killed\n"), None);
    }

    #[test]
    fn a_broken_target_names_the_place_and_the_input() {
        let log = "\
artifact_prefix='/t/'; Test unit written to /t/slow-unit-0b
thread '<unnamed>' panicked at tests/fuzz/src/cpuset.rs:30:5:
assertion failed: a is b
note: run with `RUST_BACKTRACE=1`
==1== ERROR: libFuzzer: deadly signal
artifact_prefix='/t/'; Test unit written to /t/crash-0a
";
        let Broken { why, input } = broken(log).expect("a crash");
        assert_eq!(
            why,
            "panicked at tests/fuzz/src/cpuset.rs:30:5: assertion failed: a is b"
        );
        assert_eq!(input, "/t/crash-0a");
        let slow =
            "ERROR: libFuzzer: timeout after 10 seconds\nTest unit written to /t/timeout-1\n";
        let slow = broken(slow).expect("a slow input");
        assert_eq!(slow.why, "timeout after 10 seconds");
        assert!(broken("killed\n").is_none());
    }
}
