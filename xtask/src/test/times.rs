//! How long each test took, as libtest tells with `--report-time`, and what is to be said about it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::process::Command;
use std::time::Duration;

use crate::progress::Elapsed;

/// How many tests are named at the end of a lane.
const MOST_NAMED: usize = 10;

/// Shorter tests are nobody's concern.
const LEAST_NAMED: Duration = Duration::from_secs(1);

/// Makes a test program tell the time of each test: `--report-time` is for programs that take options
/// of nightly builds, and this variable makes any take them (library/test/src/cli.rs, Rust 1.95).
const VARIABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");
pub(crate) const ARGUMENTS: [&str; 2] = ["-Zunstable-options", "--report-time"];

/// A test program of libtest that takes [`ARGUMENTS`].
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env(VARIABLE.0, VARIABLE.1);
    command
}

/// How one test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) passed: bool,
    pub(crate) took: Duration,
}

/// The tests in the output of a test program. What a test prints may stand between its name and how it
/// ended, where one test runs at a time.
pub(crate) fn tests(output: &str) -> Vec<Test> {
    let mut found = Vec::new();
    let mut current = None;
    for line in output.lines().map(str::trim_end) {
        let mut rest = line;
        if let Some((name, after)) = line
            .strip_prefix("test ")
            .and_then(|it| it.split_once(" ... "))
            .or_else(|| Some((line.strip_prefix("test ")?.strip_suffix(" ...")?, "")))
        {
            current = (after != "ignored").then_some(name);
            rest = after;
        }
        if let (Some(name), Some((passed, took))) = (current, ending(rest)) {
            found.push(Test {
                name: name.to_owned(),
                passed,
                took,
            });
            current = None;
        }
    }
    found
}

/// `ok <1.234s>` or `FAILED <1.234s>`.
fn ending(text: &str) -> Option<(bool, Duration)> {
    let (word, time) = text.split_once(" <")?;
    let passed = match word {
        "ok" => true,
        "FAILED" => false,
        _ => return None,
    };
    let seconds: f64 = time.strip_suffix("s>")?.parse().ok()?;
    Some((passed, Duration::try_from_secs_f64(seconds).ok()?))
}

/// The slowest tests, one a line, the slowest first; empty where none took long.
pub(crate) fn slowest(tests: &[Test]) -> String {
    let mut slow: Vec<_> = tests.iter().filter(|it| it.took >= LEAST_NAMED).collect();
    slow.sort_by_key(|it| Reverse(it.took));
    slow.iter()
        .take(MOST_NAMED)
        .map(|it| format!("    {:>7}  {}\n", Elapsed(it.took).to_string(), it.name))
        .collect()
}

/// What many runs of a lane came to.
#[derive(Default)]
pub(crate) struct Repeated {
    n_runs: usize,
    /// By lane and name, each with its run; a second try is of the same.
    tests: BTreeMap<(String, String), Vec<(usize, Test)>>,
    /// How often a lane failed, whatever its tests did.
    failed_lanes: BTreeMap<String, usize>,
}

impl Repeated {
    /// Adds tests of the current run of `lane`.
    pub(crate) fn add(&mut self, lane: &str, tests: Vec<Test>) {
        for test in tests {
            let key = (lane.to_owned(), test.name.clone());
            let run = (self.n_runs, test);
            self.tests.entry(key).or_default().push(run);
        }
    }

    pub(crate) fn lane_failed(&mut self, lane: &str) {
        *self.failed_lanes.entry(lane.to_owned()).or_default() += 1;
    }

    pub(crate) fn next_run(&mut self) {
        self.n_runs += 1;
    }

    /// Which tests failed how often or did not come to an end, and which were now and then much slower than
    /// usual: more than three times their median, and 2 s above it.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} runs of {} tests\n", self.n_runs, self.tests.len());
        for (lane, n) in &self.failed_lanes {
            text += &format!("    {lane} FAILED {n} of {}\n", self.n_runs);
        }
        let mut unsteady = Vec::new();
        for ((lane, name), tests) in &self.tests {
            // A run that crashes or hangs tells nothing of the tests that it has not come to.
            let ended: BTreeSet<usize> = tests.iter().map(|it| it.0).collect();
            let n_unended = self.n_runs.saturating_sub(ended.len());
            let n_failed = n_unended + tests.iter().filter(|it| !it.1.passed).count();
            let mut times: Vec<_> = tests.iter().map(|it| it.1.took).collect();
            times.sort();
            let median = times[(times.len() - 1) / 2];
            let slow = median * 3 + Duration::from_secs(2);
            let n_slow = times.iter().filter(|it| **it > slow).count();
            if n_failed + n_slow > 0 {
                let most = times.last().copied().unwrap_or_default();
                unsteady.push((
                    n_failed,
                    n_slow,
                    format!(
                        "    {lane} {name}: failed {n_failed}, slow {n_slow}, of {}; median {}, at most {}\n",
                        self.n_runs,
                        Elapsed(median),
                        Elapsed(most)
                    ),
                ));
            }
        }
        unsteady.sort_by_key(|it| Reverse((it.0, it.1)));
        match unsteady.as_slice() {
            [] if self.failed_lanes.is_empty() => text += "    no test failed or was slow\n",
            some => text.extend(some.iter().map(|it| it.2.as_str())),
        }
        text
    }
}

#[cfg(test)]
mod tests_of_times {
    use super::*;

    fn test(name: &str, passed: bool, millis: u64) -> Test {
        Test {
            name: name.to_owned(),
            passed,
            took: Duration::from_millis(millis),
        }
    }

    #[test]
    fn times_are_found_also_behind_what_a_test_prints() {
        let output = "\nrunning 4 tests\n\
             test a::b ... ok <0.250s>\n\
             test c ... \n    10 cgroups: ok <so to say>\n\r\nok <12.500s>\r\n\
             test d ... FAILED <1.000s>\n\
             test e ... ignored\n\
             ok <3.000s>\n\
             test f - should panic ... ok <0.001s>\n";
        let expected = [
            test("a::b", true, 250),
            test("c", true, 12_500),
            test("d", false, 1_000),
            test("f - should panic", true, 1),
        ];
        assert_eq!(tests(output), expected);
        assert_eq!(tests("test result: ok. 3 passed\n"), []);
    }

    #[test]
    fn the_slowest_come_first_and_quick_ones_not_at_all() {
        let all = [
            test("quick", true, 999),
            test("slow", true, 1_000),
            test("slower", false, 61_000),
        ];
        assert_eq!(slowest(&all), "      1m01s  slower\n       1.0s  slow\n");
        assert_eq!(slowest(&all[..1]), "");
    }

    #[test]
    fn repeated_runs_name_who_failed_or_was_slow() {
        let mut repeated = Repeated::default();
        for n in 0..5 {
            let mut tests = vec![
                test("steady", true, 1_000),
                test("fails", n != 3, 10),
                test("lags", true, if n == 2 { 9_000 } else { 1_000 }),
            ];
            if n > 1 {
                tests.push(test("hangs", true, 10));
                tests.push(test("tried again", n != 2, 10));
            }
            if n == 2 {
                tests.push(test("tried again", true, 10));
            }
            repeated.add("host", tests);
            repeated.add("vm", vec![test("lags", true, 60_000)]);
            if n == 4 {
                repeated.lane_failed("vm 6.1");
            }
            repeated.next_run();
        }
        assert_eq!(
            repeated.describe(),
            "5 runs of 6 tests\n    \
             vm 6.1 FAILED 1 of 5\n    \
             host tried again: failed 3, slow 0, of 5; median 0.0s, at most 0.0s\n    \
             host hangs: failed 2, slow 0, of 5; median 0.0s, at most 0.0s\n    \
             host fails: failed 1, slow 0, of 5; median 0.0s, at most 0.0s\n    \
             host lags: failed 0, slow 1, of 5; median 1.0s, at most 9.0s\n"
        );
        let mut steady = Repeated::default();
        steady.add("host", vec![test("steady", true, 1)]);
        assert!(steady.describe().contains("no test failed"), "a word of it");
        steady.lane_failed("host");
        steady.next_run();
        assert_eq!(
            steady.describe(),
            "1 runs of 1 tests\n    host FAILED 1 of 1\n"
        );
    }
}
