//! A second try for tests of a real kernel in real time.
//!
//! They share the machine with whatever else runs on it, and an emulated one is twenty times slower:
//! each wait has room, and now and then it is not enough. What failed is run once more, by itself, and
//! is named in the table and in the closing line for as long as it does so, and in a file that outlives
//! clean clones. Many at once have one cause, and have failed. So has a test that is not of [`AGAIN`]:
//! there a rare failure is the fault that is looked for.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::{Timestamp, Unit};

use super::host::begins;
use super::report::{self, Outcome, Passed, Retried};
use super::tested;
use crate::progress::note;
use crate::workspace;

/// No more than this many get a second try.
const MOST: usize = 3;

/// Tests, by the beginning of their names, in which the speed of the machine or what else runs there decides, and of
/// which a rare failure tells nothing else. Never those of loss, double starts, wrong victims, attribution: there a
/// rare failure is the fault that is looked for.
pub(super) const AGAIN: &[&str] = &[
    // A flood of output against the agent that cuts it.
    "files::output_of_any_length",
    // The agent is killed while it parses.
    "hostile::what_ends_the_agent_twice",
    // A stopped agent, and clients that the kernel refuses.
    "hostile::an_agent_that_takes_no_clients",
    // The kernel stalls a process, or does not.
    "readings::a_stall_in_kubepods",
    "stalls::",
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
    /// Of two runs one; the first fault is that of both, and what there is to say first.
    pub(crate) fn add(&mut self, other: Self) {
        self.output += &other.output;
        self.fault = self.fault.take().or(other.fault);
        if self.about.is_empty() {
            self.about = other.about;
        }
    }
}

/// Runs the tests that each of `parts` chooses, one part after the other, and those that failed once
/// more. `run` is given the arguments of a test program of libtest.
pub(crate) fn run(
    parts: &[Vec<String>],
    mut run: impl FnMut(&[String]) -> Result<Ran>,
) -> Result<Outcome> {
    let mut first = Ran::default();
    for part in parts {
        let ran = run(part)?;
        // A crash, or a hang: nobody knows which of its tests ran.
        if let (Some(fault), []) = (&ran.fault, report::failed_tests(&ran.output).as_slice()) {
            return Ok(Outcome::Failed(fault.clone()));
        }
        first.add(ran);
    }
    let n_passed = report::count_tests(&first.output);
    let detail = |n_more: u64, about: &str| {
        let tests = n_passed.map(|it| report::tests(it + n_more));
        let parts = tests.iter().map(String::as_str).chain([about]);
        let parts: Vec<_> = parts.filter(|it| !it.is_empty()).collect();
        parts.join(", ")
    };
    let without = report::left_out(&first.output);
    let Some(fault) = first.fault else {
        return Ok(match n_passed {
            None | Some(0) => Outcome::Failed("no test ran".to_owned()),
            Some(_) => Outcome::Passed(Passed {
                detail: detail(0, &first.about),
                again: Vec::new(),
                without,
            }),
        });
    };
    let tests = report::failed_tests(&first.output);
    if tests.len() > MOST || !tests.iter().all(|it| begins(it, AGAIN)) {
        return Ok(Outcome::Failed(format!("{fault}: {}", tests.join(", "))));
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
    let n_asked = tests.len() as u64;
    Ok(match (second.fault, report::count_tests(&second.output)) {
        (None, Some(n)) if n == n_asked => Outcome::Passed(Passed {
            detail: detail(n_asked, &second.about),
            again: tests
                .into_iter()
                .map(|name| Retried {
                    message: report::failure(&first.output, &name).unwrap_or_default(),
                    name,
                })
                .collect(),
            without,
        }),
        _ => Outcome::Failed(format!("{fault}, twice: {}", tests.join(", "))),
    })
}

/// Adds the tests that passed at the second try to the file of all of them, one a line: time, commit
/// (`+changes` where the tree has some), lane, test, and how it failed, with tabs between.
pub(crate) fn remember(lane: &str, outcome: &Outcome) -> Result<()> {
    let again = match outcome {
        Outcome::Passed(Passed { again, .. }) if !again.is_empty() => again,
        _ => return Ok(()),
    };
    let now = Timestamp::now().round(Unit::Second)?;
    let commit = tested::described().unwrap_or_else(|| "unknown".to_owned());
    let path = kept()?;
    fs::create_dir_all(path.parent().unwrap_or(&path))?;
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let lines = lines(&format!("{now}\t{commit}\t{lane}"), again);
    file.and_then(|mut it| it.write_all(lines.as_bytes()))
        .with_context(|| format!("append to {}", path.display()))
}

fn lines(of_all: &str, again: &[Retried]) -> String {
    let line = |it: &Retried| format!("{of_all}\t{}\t{}\n", it.name, it.message);
    again.iter().map(line).collect()
}

/// The file; it outlives clean clones.
fn kept() -> Result<PathBuf> {
    Ok(workspace::cache()?.join("second-tries.tsv"))
}

/// What there is to say about the file.
pub(crate) fn sum_up() -> Result<Option<String>> {
    let path = kept()?;
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
        let mut output = "left out: FUSE\n".to_owned();
        if !failed.is_empty() {
            output += "\nfailures:\n\n---- stalls::a stdout ----\nError: no\n\n\
                       ---- stalls::c stdout ----\n\n\
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

    fn twice() -> Outcome {
        Outcome::Passed(Passed {
            detail: "7 tests, Linux 6.12".to_owned(),
            again: [("stalls::a", "no"), ("stalls::c", "it is not")]
                .map(|(name, message)| Retried {
                    name: name.to_owned(),
                    message: message.to_owned(),
                })
                .to_vec(),
            without: vec!["FUSE".to_owned()],
        })
    }

    fn failed(tests: &str) -> Outcome {
        Outcome::Failed(format!("status 101: {tests}"))
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
        let (found, asked) = outcome(vec![ran(&["stalls::a", "stalls::c"], 5), ran(&[], 2)]);
        assert_eq!(found, twice());
        let second = [
            "--test-threads=1",
            "-Zunstable-options",
            "--report-time",
            "--exact",
            "stalls::a",
            "stalls::c",
        ];
        let second = second.map(str::to_owned);
        assert_eq!(asked, [vec!["--skip".to_owned()], second.to_vec()]);
    }

    #[test]
    fn what_failed_in_any_part_is_run_once_more() {
        let parts = vec![ran(&["stalls::a"], 2), ran(&["stalls::c"], 3), ran(&[], 2)];
        let (found, asked) = outcome_of_parts(2, parts);
        assert_eq!((found, asked.len()), (twice(), 3));
        let parts = vec![ran(&["stalls::a"], 2), ran(&["oom::a"], 3)];
        let (found, _) = outcome_of_parts(2, parts);
        assert_eq!(found, failed("stalls::a, oom::a"));
    }

    #[test]
    fn a_part_that_crashes_has_failed_whatever_the_others_did() {
        let crashed = || Ran {
            output: "running 3 tests\n".to_owned(),
            ..ran(&["stalls::a"], 0)
        };
        for runs in [
            vec![crashed(), ran(&["stalls::c"], 3)],
            vec![ran(&["stalls::c"], 3), crashed()],
        ] {
            let (found, _) = outcome_of_parts(2, runs);
            assert_eq!(found, Outcome::Failed("status 101".to_owned()));
        }
    }

    #[test]
    fn a_second_run_without_the_tests_has_failed() {
        let (found, _) = outcome(vec![ran(&["stalls::a", "stalls::c"], 5), ran(&[], 1)]);
        let expected = "status 101, twice: stalls::a, stalls::c".to_owned();
        assert_eq!(found, Outcome::Failed(expected));
    }

    #[test]
    fn a_rare_fault_has_no_second_try() {
        for test in [
            "crash::twice",
            "oom::a",
            "top::b",
            "hostile::an_environment_that_grows_without_end_costs_its_own_pod",
            "limits::every_limit",
            "readings::a_pod_reads_as_what_it_does",
            "stats::every_number_of_a_sweep_is_that_of_its_file",
        ] {
            let (found, asked) = outcome(vec![ran(&["stalls::a", test], 5)]);
            assert_eq!(found, failed(&format!("stalls::a, {test}")));
            assert_eq!(asked.len(), 1, "{test}");
        }
    }

    #[test]
    fn second_tries_are_counted_by_test() {
        let retried = |name: &str, message: &str| Retried {
            name: name.to_owned(),
            message: message.to_owned(),
        };
        let first = lines("1\tf00\thost", &[retried("a::b", "no"), retried("c", "")]);
        assert_eq!(first, "1\tf00\thost\ta::b\tno\n1\tf00\thost\tc\t\n");
        let second = lines("2\tf00\tvm 6.12", &[retried("a::b", "no")]);
        assert_eq!(frequent(&(first + &second)), "a::b (2), c (1)");
    }

    #[test]
    fn what_fails_twice_has_failed() {
        let (found, _) = outcome(vec![ran(&["stalls::a"], 5), ran(&["stalls::a"], 0)]);
        let expected = "status 101, twice: stalls::a".to_owned();
        assert_eq!(found, Outcome::Failed(expected));
    }

    #[test]
    fn many_at_once_have_failed() {
        let many = ["stalls::a", "stalls::b", "stalls::c", "stalls::d"];
        let (found, asked) = outcome(vec![ran(&many, 5)]);
        assert_eq!((found, asked.len()), (failed(&many.join(", ")), 1));
    }

    #[test]
    fn what_passes_is_run_once() {
        let (found, asked) = outcome(vec![ran(&[], 5)]);
        let passed = Outcome::Passed(Passed {
            detail: "5 tests, Linux 6.12".to_owned(),
            without: vec!["FUSE".to_owned()],
            ..Passed::default()
        });
        assert_eq!((found, asked.len()), (passed, 1));
        let (found, _) = outcome(vec![ran(&[], 0)]);
        assert_eq!(found, Outcome::Failed("no test ran".to_owned()));
    }
}
