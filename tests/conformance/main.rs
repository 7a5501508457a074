//! Runs the recorded decisions of the Kubernetes 1.36 kubelet (`tests/data/vectors`, or the
//! directory that `BALLAST_VECTORS` names) through ours, with `compat: kubelet`, and prints one line
//! a suite. Fails on any difference, on a suite without cases, and on a file of no known suite.
//!
//! With `--times`, how long each decision took follows, one line a suite: `times`, the suite, and
//! nanoseconds in the order of the cases.
//!
//! A suite is a function from a case's input to what we decide, in the shape of its `expect`; all
//! comparing is done here.

#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it finds its own files"
)]

mod admission;
mod cgroup_names;
mod checkpoints;
mod cpu;
mod device_allocation;
mod eviction;
mod kube_cgroup_paths;
mod memory_static_policy;
mod node_allocatable;
mod pleg_events;
mod pod_resources;
mod quantity;
mod resources;
mod static_pod;
mod topology_merge;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use ballast_tests::timing;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};

/// What we decide for an input. An error is a fault of the case or of this program, not a decision;
/// it fails the case.
type Run = fn(&Value) -> anyhow::Result<Value>;

/// The same for a suite in which several results are right: what is expected comes out where ours is
/// one of them.
type RunAgainst = fn(&Value, &Value) -> anyhow::Result<Value>;

enum Suite {
    Implemented(Run),
    ImplementedAgainst(RunAgainst),
    /// Not cases, but what cases refer to.
    Data,
}

const SUITES: &[(&str, Suite)] = &[
    ("admission", Suite::ImplementedAgainst(admission::run)),
    ("cgroup_names", Suite::Implemented(cgroup_names::run)),
    ("checkpoints", Suite::Implemented(checkpoints::run)),
    ("cpu_hints", Suite::Implemented(cpu::run_policy)),
    ("cpu_static_policy", Suite::Implemented(cpu::run_policy)),
    ("cpu_take", Suite::Implemented(cpu::run_take)),
    (
        "device_allocation",
        Suite::ImplementedAgainst(device_allocation::run),
    ),
    ("eviction_rank", Suite::Implemented(eviction::run_rank)),
    (
        "eviction_sync",
        Suite::ImplementedAgainst(eviction::run_sync),
    ),
    (
        "eviction_thresholds",
        Suite::Implemented(eviction::run_thresholds),
    ),
    (
        "kube_cgroup_paths",
        Suite::Implemented(kube_cgroup_paths::run),
    ),
    (
        "memory_static_policy",
        Suite::Implemented(memory_static_policy::run),
    ),
    (
        "node_allocatable",
        Suite::Implemented(node_allocatable::run),
    ),
    ("pleg_events", Suite::Implemented(pleg_events::run)),
    ("pod_resources", Suite::Implemented(pod_resources::run)),
    ("quantity", Suite::Implemented(quantity::run)),
    ("static_pod", Suite::ImplementedAgainst(static_pod::run)),
    ("topologies", Suite::Data),
    ("topology_merge", Suite::Implemented(topology_merge::run)),
];

/// How many differing cases of a suite are shown.
const N_SHOWN: usize = 5;
const SUFFIX: &str = ".jsonl.gz";

fn main() -> anyhow::Result<ExitCode> {
    let own = own_vectors();
    let chosen = chosen_vectors();
    let directory = chosen.as_ref().unwrap_or(&own);
    println!("vectors: {}", directory.display());
    let files = files(directory)?;
    ensure!(
        !files.is_empty(),
        "{}: no *{SUFFIX} file",
        directory.display()
    );
    let mut is_good = true;
    // Of two rows the first would hide the second.
    let names: BTreeSet<&str> = SUITES.iter().map(|(name, _)| *name).collect();
    ensure!(names.len() == SUITES.len(), "a suite is listed twice");
    let tells_times = std::env::args().any(|it| it == "--times");
    for (name, path) in &files {
        let Some((_, suite)) = SUITES.iter().find(|(known, _)| known == name) else {
            println!(
                "{name}: FAILED, no suite of that name is known: {}",
                path.display()
            );
            is_good = false;
            continue;
        };
        is_good &= run_suite(name, suite, path)?;
        let times = timing::taken();
        if tells_times && !times.is_empty() {
            let times: Vec<String> = times.iter().map(|it| it.as_nanos().to_string()).collect();
            println!("times {name} {}", times.join(" "));
        }
    }
    for (name, _) in SUITES {
        if !files.contains_key(*name) {
            // Another directory may hold some of the suites only; our own holds all of them.
            println!("{name}: no file");
            is_good &= chosen.is_some();
        }
    }
    if is_good {
        Ok(ExitCode::SUCCESS)
    } else {
        println!("conformance: FAILED");
        Ok(ExitCode::FAILURE)
    }
}

fn own_vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/vectors")
}

fn chosen_vectors() -> Option<PathBuf> {
    std::env::var_os("BALLAST_VECTORS").map(PathBuf::from)
}

/// A file of data: of the chosen directory, or else our own.
fn file_of(name: &str) -> anyhow::Result<PathBuf> {
    let directories = chosen_vectors().into_iter().chain([own_vectors()]);
    let mut files = directories.map(|it| it.join(format!("{name}{SUFFIX}")));
    files
        .find(|it| it.exists())
        .with_context(|| format!("no {name}{SUFFIX}"))
}

/// Suite name to file.
fn files(directory: &Path) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut files = BTreeMap::new();
    let entries = directory
        .read_dir()
        .with_context(|| format!("list {}", directory.display()))?;
    for entry in entries {
        let path = entry
            .with_context(|| format!("list {}", directory.display()))?
            .path();
        let name = path
            .file_name()
            .and_then(|it| it.to_str())
            .unwrap_or_default();
        if let Some(suite) = name.strip_suffix(SUFFIX) {
            files.insert(suite.to_owned(), path);
        }
    }
    Ok(files)
}

fn lines(path: &Path) -> anyhow::Result<impl Iterator<Item = anyhow::Result<String>>> {
    let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let path = path.to_owned();
    let lines = BufReader::new(MultiGzDecoder::new(file))
        .lines()
        .enumerate();
    Ok(lines.map(move |(i, line)| {
        line.with_context(|| format!("read {}, line {}", path.display(), i + 1))
    }))
}

#[derive(Deserialize)]
struct Case {
    suite: String,
    name: String,
    input: Value,
    expect: Value,
}

#[derive(Default)]
struct Count {
    passed: usize,
    failed: usize,
}

impl Count {
    fn add(&mut self, passed: bool) {
        if passed {
            self.passed += 1;
        } else {
            self.failed += 1;
        }
    }

    fn n(&self) -> usize {
        self.passed + self.failed
    }
}

/// Whether the suite is as it should be.
fn run_suite(name: &str, suite: &Suite, path: &Path) -> anyhow::Result<bool> {
    let run: &dyn Fn(&Value, &Value) -> anyhow::Result<Value> = match suite {
        Suite::Implemented(run) => &|input, _| run(input),
        Suite::ImplementedAgainst(run) => run,
        Suite::Data => {
            let n_entries = lines(path)?.count();
            println!("{name}: data of other suites ({n_entries} entries)");
            return Ok(has_cases(name, n_entries));
        }
    };
    let mut regular = Count::default();
    let mut irregular = Count::default();
    let mut failures = Vec::new();
    for line in lines(path)? {
        let line = line?;
        let case: Case = serde_json::from_str(&line)
            .with_context(|| format!("{}: a line that is no case: {line}", path.display()))?;
        if case.suite != name {
            bail!(
                "{}: case {} is of suite {}",
                path.display(),
                case.name,
                case.suite
            );
        }
        let mut expect = case.expect;
        let got = run(&case.input, &expect);
        let mut got = got.unwrap_or_else(|error| json!(format!("not run: {error:#}")));
        let is_irregular = leave_out_incomparable(&mut expect, &mut got);
        let passed = expect == got;
        if is_irregular {
            &mut irregular
        } else {
            &mut regular
        }
        .add(passed);
        if !passed && failures.len() < N_SHOWN {
            failures.push(format!(
                "  {}\n    input:  {}\n    expect: {expect}\n    got:    {got}",
                case.name, case.input
            ));
        }
    }
    println!(
        "{name}: {} passed, {} failed",
        regular.passed, regular.failed
    );
    if irregular.n() > 0 {
        println!(
            "{name} (irregular): {} passed, {} failed",
            irregular.passed, irregular.failed
        );
    }
    for failure in &failures {
        println!("{failure}");
    }
    let has_cases = has_cases(name, regular.n() + irregular.n());
    Ok(has_cases && regular.failed == 0 && irregular.failed == 0)
}

fn has_cases(name: &str, n_cases: usize) -> bool {
    if n_cases == 0 {
        println!("{name}: FAILED, no cases");
    }
    n_cases > 0
}

/// Takes out of both sides what is not to be compared: the text of errors, notes, and fields that
/// `expect` calls irregular. Says whether there were any of those.
fn leave_out_incomparable(expect: &mut Value, got: &mut Value) -> bool {
    match (expect, got) {
        (Value::Object(expect), Value::Object(got)) => {
            if expect.contains_key("error") {
                expect.remove("message");
                got.remove("message");
            }
            // An annotation may have that name too.
            if !got.contains_key("note") {
                expect.remove("note");
            }
            let irregular = expect.remove("irregular");
            let fields = irregular.as_ref().and_then(Value::as_array);
            for field in fields.into_iter().flatten().filter_map(Value::as_str) {
                expect.remove(field);
                got.remove(field);
            }
            expect
                .iter_mut()
                .fold(irregular.is_some(), |is_irregular, (key, expect)| {
                    let got = got.get_mut(key);
                    got.is_some_and(|got| leave_out_incomparable(expect, got)) || is_irregular
                })
        }
        (Value::Array(expect), Value::Array(got)) => expect
            .iter_mut()
            .zip(got)
            .fold(false, |is_irregular, (expect, got)| {
                leave_out_incomparable(expect, got) || is_irregular
            }),
        _ => false,
    }
}
