//! A second try for tests of a real kernel in real time.
//!
//! They share the machine with whatever else runs on it, and an emulated one is twenty times slower:
//! each wait has room, and now and then it is not enough. What failed is run once more, by itself, and
//! is named in the table and in the closing line for as long as it does so, and in a file that outlives
//! clean clones. Many at once have one cause, and have failed. So has a test of [`ONCE`]: there a rare
//! failure is the fault that is looked for.

use std::fs::{self, OpenOptions};
use std::io::Write;

use anyhow::{Context, Result};
use jiff::{Timestamp, Unit};

use super::report::{self, Outcome, Retried};
use super::tested;
use crate::progress::note;
use crate::workspace;

/// No more than this many get a second try.
const MOST: usize = 3;

/// Tests, by the beginning of their names, of what happens rarely if it happens: loss, double starts,
/// wrong victims, kills that are somebody else's.
const ONCE: [&str; 10] = [
    "beside::",
    "crash::",
    "ebpf::",
    "escapes::",
    "eviction::",
    "forensics::",
    "node_memory::",
    "observe::",
    "oom::",
    "placement::storm::",
];

/// One run of a test program.
#[derive(Debug, Default)]
pub(crate) struct Ran {
    pub(crate) output: String,
    /// Why it has failed.
    pub(crate) fault: Option<String>,
    /// What there is to say about a run without a fault; may be empty.
    pub(crate) about: String,
}

impl Ran {
    /// Of two runs one; the first fault is that of both.
    pub(crate) fn add(&mut self, other: Self) {
        self.output += &other.output;
        self.fault = self.fault.take().or(other.fault);
    }
}

/// Runs the tests that each of `parts` chooses, one part after the other, and those that failed once
/// more. `run` is given the arguments of a test program of libtest.
pub(crate) fn run(
    parts: &[Vec<String>],
    mut run: impl FnMut(&[String]) -> Result<Ran>,
) -> Result<Outcome> {
    let mut first = Ran::default();
    for (n, part) in parts.iter().enumerate() {
        let ran = run(part)?;
        match n {
            0 => first = ran,
            _ => first.add(ran),
        }
    }
    let n_passed = report::count_tests(&first.output);
    let detail = |n_more: u64, about: &str| {
        let tests = n_passed.map(|it| report::tests(it + n_more));
        let parts = tests.iter().map(String::as_str).chain([about]);
        let parts: Vec<_> = parts.filter(|it| !it.is_empty()).collect();
        parts.join(", ")
    };
    let Some(fault) = first.fault else {
        return Ok(match n_passed {
            Some(0) => Outcome::Failed("no test ran".to_owned()),
            _ => Outcome::Passed(detail(0, &first.about)),
        });
    };
    let tests = report::failed_tests(&first.output);
    let is_once = |test: &String| ONCE.iter().any(|it| test.starts_with(it));
    if tests.is_empty() || tests.len() > MOST || tests.iter().any(is_once) {
        return Ok(Outcome::Failed(fault));
    }
    note(format_args!("once more: {}", tests.join(", ")));
    let again: Vec<String> = [super::ONE_AT_A_TIME]
        .into_iter()
        .chain(super::times::ARGUMENTS)
        .chain(["--exact"])
        .map(str::to_owned)
        .chain(tests.iter().cloned())
        .collect();
    let second = run(&again)?;
    Ok(match second.fault {
        None => Outcome::PassedAgain {
            detail: detail(tests.len() as u64, &second.about),
            tests: tests
                .into_iter()
                .map(|name| Retried {
                    message: report::failure(&first.output, &name).unwrap_or_default(),
                    name,
                })
                .collect(),
        },
        Some(_) => Outcome::Failed(format!("{fault}, twice: {}", tests.join(", "))),
    })
}

/// Adds the tests that passed at the second try to the file of all of them, one a line: time, commit,
/// lane, test, and how it failed, with tabs between. Gives what there is to say about the file.
pub(crate) fn remember(outcomes: &[(&str, &Outcome)]) -> Result<Option<String>> {
    let path = workspace::cache()?.join("second-tries.tsv");
    let now = Timestamp::now().round(Unit::Second)?;
    let mut lines = String::new();
    for (lane, outcome) in outcomes {
        if let Outcome::PassedAgain { tests, .. } = outcome {
            let commit = tested::commit().unwrap_or_else(|| "unknown".to_owned());
            for Retried { name, message } in tests {
                lines += &format!("{now}\t{commit}\t{lane}\t{name}\t{message}\n");
            }
        }
    }
    if !lines.is_empty() {
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut it| it.write_all(lines.as_bytes()))
            .with_context(|| format!("append to {}", path.display()))?;
    }
    let all = fs::read_to_string(&path).unwrap_or_default();
    Ok((!all.is_empty()).then(|| format!("{} has them: {}", path.display(), frequent(&all))))
}

/// Which tests stand in the file, and how often, the most frequent first.
fn frequent(lines: &str) -> String {
    let mut counts: Vec<(usize, &str)> = Vec::new();
    for test in lines.lines().filter_map(|it| it.split('\t').nth(3)) {
        match counts.iter_mut().find(|it| it.1 == test) {
            Some(count) => count.0 += 1,
            None => counts.push((1, test)),
        }
    }
    counts.sort_by_key(|it| std::cmp::Reverse(it.0));
    let counts: Vec<String> = counts
        .iter()
        .map(|(n, test)| format!("{test} ({n})"))
        .collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(failed: &[&str], n_passed: usize) -> Ran {
        let mut output = String::new();
        if !failed.is_empty() {
            output += "\nfailures:\n\n---- a::b stdout ----\nError: no\n\n---- c stdout ----\n\n\
                       thread 'c' (7) panicked at tests/c.rs:1:2:\nit is not\n\nfailures:\n";
            for it in failed {
                output += &format!("    {it}\r\n");
            }
            output += "\n";
        }
        output += &format!(
            "test result: any. {n_passed} passed; {} failed\n",
            failed.len()
        );
        Ran {
            output,
            fault: (!failed.is_empty()).then(|| "status 101".to_owned()),
            about: "Linux 6.12".to_owned(),
        }
    }

    fn outcome(runs: Vec<Ran>) -> (Outcome, Vec<Vec<String>>) {
        outcome_of_parts(1, runs)
    }

    fn outcome_of_parts(n: usize, runs: Vec<Ran>) -> (Outcome, Vec<Vec<String>>) {
        let mut asked = Vec::new();
        let mut runs = runs.into_iter();
        let parts = vec![vec!["--skip".to_owned()]; n];
        let outcome = run(&parts, |arguments| {
            asked.push(arguments.to_vec());
            Ok(runs.next().expect("no more runs than parts and one"))
        });
        (outcome.expect("every run comes to an end"), asked)
    }

    #[test]
    fn what_failed_is_run_once_more_and_named() {
        let (found, asked) = outcome(vec![ran(&["a::b", "c"], 5), ran(&[], 2)]);
        let expected = Outcome::PassedAgain {
            detail: "7 tests, Linux 6.12".to_owned(),
            tests: ["a::b", "c"]
                .map(|it| Retried {
                    name: it.to_owned(),
                    message: if it == "c" { "it is not" } else { "no" }.to_owned(),
                })
                .to_vec(),
        };
        assert_eq!(found, expected);
        let second = [
            "--test-threads=1",
            "-Zunstable-options",
            "--report-time",
            "--exact",
            "a::b",
            "c",
        ];
        let second = second.map(str::to_owned);
        assert_eq!(asked, [vec!["--skip".to_owned()], second.to_vec()]);
    }

    #[test]
    fn what_failed_in_any_part_is_run_once_more() {
        let (found, asked) = outcome_of_parts(2, vec![ran(&["a"], 2), ran(&["c"], 3), ran(&[], 2)]);
        let Outcome::PassedAgain { detail, tests } = found else {
            panic!("{found:?}");
        };
        assert_eq!(detail, "7 tests, Linux 6.12");
        let names: Vec<_> = tests.iter().map(|it| it.name.as_str()).collect();
        assert_eq!((names, asked.len()), (vec!["a", "c"], 3));
        let (found, _) = outcome_of_parts(2, vec![ran(&["a"], 2), ran(&["oom::a"], 3)]);
        assert_eq!(found, Outcome::Failed("status 101".to_owned()));
    }

    #[test]
    fn a_rare_fault_has_no_second_try() {
        for test in ["crash::twice", "oom::a", "placement::storm::b"] {
            let (found, asked) = outcome(vec![ran(&["a::b", test], 5)]);
            assert_eq!(found, Outcome::Failed("status 101".to_owned()));
            assert_eq!(asked.len(), 1, "{test}");
        }
    }

    #[test]
    fn second_tries_are_counted_by_test() {
        let lines = "1\tf00\thost\ta::b\tno\n2\tf00\tvm 6.12\tc\t\n3\tf00\thost\ta::b\tno\n";
        assert_eq!(frequent(lines), "a::b (2), c (1)");
    }

    #[test]
    fn what_fails_twice_has_failed() {
        let (found, _) = outcome(vec![ran(&["a"], 5), ran(&["a"], 0)]);
        assert_eq!(found, Outcome::Failed("status 101, twice: a".to_owned()));
    }

    #[test]
    fn many_at_once_and_none_that_is_named_have_failed() {
        let failed = Outcome::Failed("status 101".to_owned());
        let (found, asked) = outcome(vec![ran(&["a", "b", "c", "d"], 5)]);
        assert_eq!((found, asked.len()), (failed.clone(), 1));
        let crashed = Ran {
            output: "running 3 tests\n".to_owned(),
            ..ran(&["a"], 0)
        };
        let (found, asked) = outcome(vec![crashed]);
        assert_eq!((found, asked.len()), (failed, 1));
    }

    #[test]
    fn what_passes_is_run_once() {
        let (found, asked) = outcome(vec![ran(&[], 5)]);
        let passed = Outcome::Passed("5 tests, Linux 6.12".to_owned());
        assert_eq!((found, asked.len()), (passed, 1));
        let (found, _) = outcome(vec![ran(&[], 0)]);
        assert_eq!(found, Outcome::Failed("no test ran".to_owned()));
    }
}
