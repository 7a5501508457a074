//! What the lanes came to: a table, and one line that can be quoted.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::again;
use crate::progress::{Elapsed, note};

/// How a lane ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed(Passed),
    /// With the reason.
    Failed(String),
    /// It cannot run here, with the reason.
    LeftOut(String),
}

/// What there is to say about a lane that passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Such as the number of tests.
    pub(crate) detail: String,
    /// Tests that passed when they were run once more.
    pub(crate) again: Vec<Retried>,
    /// Parts of the lane that were left out, with the reason.
    pub(crate) without: Vec<String>,
}

impl Outcome {
    pub(crate) fn passed(detail: impl Into<String>) -> Self {
        Self::Passed(Passed {
            detail: detail.into(),
            ..Passed::default()
        })
    }
}

/// A test that passed when it was run once more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Retried {
    pub(crate) name: String,
    /// How it failed before, one line; empty where it did not say.
    pub(crate) message: String,
}

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

impl Row {
    pub(crate) fn left_out(name: &str, why: String) -> Self {
        Self {
            name: name.to_owned(),
            outcome: Outcome::LeftOut(why),
            took: Duration::ZERO,
        }
    }

    /// As the row of something that was asked for by name: leaving it out is a failure.
    pub(crate) fn required(self) -> Self {
        match self.outcome {
            Outcome::LeftOut(why) => Self {
                outcome: Outcome::Failed(format!("cannot run here: {why}")),
                ..self
            },
            _ => self,
        }
    }
}

pub(crate) struct Report {
    started: Instant,
    rows: Vec<Row>,
    /// Lanes that only a run of all lanes has.
    left_to_all: Vec<String>,
    /// Names of tests and variables, where not all that the lanes have was looked at.
    only: Vec<String>,
    /// Options by which the lanes ran otherwise than once on the machine as it is.
    options: Vec<String>,
}

impl Report {
    pub(crate) fn start(left_to_all: Vec<String>, only: Vec<String>, options: Vec<String>) -> Self {
        Self {
            started: Instant::now(),
            rows: Vec::new(),
            left_to_all,
            only,
            options,
        }
    }

    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether there is a row, and none has failed.
    pub(crate) fn has_passed(&self) -> bool {
        let mut outcomes = self.rows.iter().map(|it| &it.outcome);
        !self.rows.is_empty() && outcomes.all(|it| !matches!(it, Outcome::Failed(_)))
    }

    /// Second tries are kept at once, since a run may be ended in the middle.
    pub(crate) fn push(&mut self, row: Row) {
        if let Err(error) = again::remember(&row.name, &row.outcome) {
            note(format_args!("second tries cannot be kept: {error:#}"));
        }
        self.rows.push(row);
    }

    /// Prints the table and the closing line.
    pub(crate) fn close(&self) -> ExitCode {
        println!();
        print!("{}", table(&self.rows));
        match again::sum_up() {
            Ok(Some(text)) => println!("second tries of this machine: {text}"),
            Ok(None) => {}
            Err(error) => println!("second tries cannot be kept: {error:#}"),
        }
        let took = self.started.elapsed();
        println!("{}", self.closing_line(took));
        if self.has_passed() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn closing_line(&self, took: Duration) -> String {
        let lanes = |wanted: fn(&Outcome) -> bool| {
            let mut lanes: Vec<(&str, usize)> = Vec::new();
            for row in self.rows.iter().filter(|it| wanted(&it.outcome)) {
                match lanes.iter_mut().find(|it| it.0 == row.name) {
                    Some(lane) => lane.1 += 1,
                    None => lanes.push((&row.name, 1)),
                }
            }
            let lanes: Vec<_> = lanes
                .into_iter()
                .map(|(name, n_runs)| match n_runs {
                    1 => name.to_owned(),
                    n => format!("{name} {n} times"),
                })
                .collect();
            if lanes.is_empty() {
                "none".to_owned()
            } else {
                lanes.join(", ")
            }
        };
        let passed = lanes(|it| matches!(it, Outcome::Passed(_)));
        let failed = lanes(|it| matches!(it, Outcome::Failed(_)));
        let left_out = lanes(|it| matches!(it, Outcome::LeftOut(_)));
        let details = self.rows.iter().filter_map(|it| match &it.outcome {
            Outcome::Passed(passed) => Some((&it.name, passed)),
            _ => None,
        });
        let (mut again, mut without) = (Vec::new(), Vec::new());
        for (lane, passed) in details {
            again.extend(passed.again.iter().map(|it| it.name.clone()));
            for what in &passed.without {
                let text = format!("{lane}: {what}");
                if !without.contains(&text) {
                    without.push(text);
                }
            }
        }
        let listed = |before: &str, what: &[String]| match what {
            [] => String::new(),
            some => format!("; {before}: {}", some.join(", ")),
        };
        let again = listed("at the second try", &again) + &listed("without", &without);
        let all = listed("left to `all`", &self.left_to_all);
        let which = match self.only.as_slice() {
            [] => "all lanes",
            _ => "parts of lanes",
        };
        let only = listed("only", &self.only) + &listed("with", &self.options);
        let took = Elapsed(took);
        match (failed.as_str(), left_out.as_str()) {
            ("none", "none") => {
                format!(
                    "ballast: {which} passed ({passed}); left out: none{only}{all}{again}; {took}"
                )
            }
            ("none", _) => {
                format!(
                    "ballast: lanes passed ({passed}); left out: {left_out}{only}{all}{again}; {took}"
                )
            }
            _ => format!(
                "ballast: FAILED: {failed}; passed: {passed}; left out: {left_out}{only}{all}{again}; {took}"
            ),
        }
    }
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|it| it.name.len()).max().unwrap_or(0);
    rows.iter()
        .map(|row| {
            let (word, detail) = match &row.outcome {
                Outcome::Passed(passed) => ("passed", passed.describe()),
                Outcome::Failed(why) => ("FAILED", why.clone()),
                Outcome::LeftOut(why) => ("left out", why.clone()),
            };
            let took = Elapsed(row.took).to_string();
            let line = format!("{:width$}  {word:8}  {took:>7}  {detail}", row.name);
            format!("{}\n", line.trim_end())
        })
        .collect()
}

impl Passed {
    fn describe(&self) -> String {
        let again: Vec<_> = self.again.iter().map(|it| it.name.as_str()).collect();
        let mut parts = vec![self.detail.clone()];
        for (before, what) in [
            ("at the second try", again.join(", ")),
            ("without", self.without.join(", ")),
        ] {
            if !what.is_empty() {
                parts.push(format!("{before}: {what}"));
            }
        }
        parts.join("; ")
    }
}

/// `1 test`, `2 tests`.
pub(crate) fn tests(count: u64) -> String {
    if count == 1 {
        "1 test".to_owned()
    } else {
        format!("{count} tests")
    }
}

/// The sum over the result lines of libtest in `output`; `None` when there is none.
pub(crate) fn count_tests(output: &str) -> Option<u64> {
    let counts = output.lines().filter_map(|line| {
        let (_, rest) = line.split_once("test result: ")?;
        let (_, rest) = rest.split_once(". ")?;
        rest.split_once(" passed")?.0.parse::<u64>().ok()
    });
    counts.fold(None, |sum, it| Some(sum.unwrap_or(0) + it))
}

/// What tests said that they left out, each once: lines that begin with the words.
pub(crate) fn left_out(output: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let lines = output.lines();
    for what in lines.filter_map(|it| it.trim().strip_prefix("left out: ")) {
        if !found.iter().any(|it| it == what) {
            found.push(what.to_owned());
        }
    }
    found
}

/// The names that libtest lists last, after what the failed tests printed; of each run, where `output` has
/// several.
pub(crate) fn failed_tests(output: &str) -> Vec<String> {
    let lines: Vec<&str> = output.lines().map(str::trim_end).collect();
    let runs = lines.split(|it| it.starts_with("test result: "));
    let listed = runs.filter_map(|run| {
        let at = run.iter().rposition(|it| *it == "failures:")?;
        let names = run[at + 1..].iter();
        Some(names.map_while(|it| Some(it.strip_prefix("    ")?.to_owned())))
    });
    listed.flatten().collect()
}

/// How `test` failed, in one line: what its error or its panic says first.
pub(crate) fn failure(output: &str, test: &str) -> Option<String> {
    let head = format!("---- {test} stdout ----");
    let mut lines = output
        .lines()
        .map(str::trim_end)
        .skip_while(|it| *it != head)
        .skip(1)
        .take_while(|it| !it.starts_with("---- ") && *it != "failures:");
    while let Some(line) = lines.next() {
        if let Some(error) = line.strip_prefix("Error: ") {
            return Some(error.to_owned());
        }
        if line.contains("' panicked at ") || line.contains(") panicked at ") {
            return lines.next().map(str::to_owned);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, outcome: Outcome) -> Row {
        Row {
            name: name.to_owned(),
            outcome,
            took: Duration::from_secs(12),
        }
    }

    fn passed() -> Outcome {
        Outcome::passed("")
    }

    /// The closing line of these rows; what was left to all, what they were restricted to, and options.
    fn closed(rows: Vec<Row>, [left_to_all, only, options]: [&[String]; 3]) -> String {
        let report = Report {
            rows,
            ..Report::start(left_to_all.to_vec(), only.to_vec(), options.to_vec())
        };
        report.closing_line(Duration::from_secs(432))
    }

    #[test]
    fn the_closing_line_names_every_lane_once() {
        let left_out = || Outcome::LeftOut("needs root".to_owned());
        let failed = || Outcome::Failed("exit status: 101".to_owned());
        let again = || {
            Outcome::Passed(Passed {
                again: ["a::b", "c"]
                    .map(|it| Retried {
                        name: it.to_owned(),
                        message: String::new(),
                    })
                    .to_vec(),
                without: vec!["FUSE".to_owned()],
                ..Passed::default()
            })
        };
        let none: &[String] = &[];
        let left_to_all = ["fuzz".to_owned(), "vm".to_owned()];
        for (rows, left_to_all, line) in [
            (
                vec![row("unit", passed()), row("vm 6.12", passed())],
                none,
                "ballast: all lanes passed (unit, vm 6.12); left out: none; 7m12s",
            ),
            (
                vec![row("unit", passed())],
                &left_to_all,
                "ballast: all lanes passed (unit); left out: none; left to `all`: fuzz, vm; 7m12s",
            ),
            (
                vec![
                    row("host", passed()),
                    row("host", passed()),
                    row("host", failed()),
                ],
                none,
                "ballast: FAILED: host; passed: host 2 times; left out: none; 7m12s",
            ),
            (
                vec![row("unit", passed()), row("host", left_out())],
                none,
                "ballast: lanes passed (unit); left out: host; 7m12s",
            ),
            (
                vec![
                    row("unit", passed()),
                    row("host", failed()),
                    row("vm", left_out()),
                ],
                none,
                "ballast: FAILED: host; passed: unit; left out: vm; 7m12s",
            ),
            (
                vec![row("unit", passed()), row("host", again())],
                none,
                "ballast: all lanes passed (unit, host); left out: none; at the second try: \
                 a::b, c; without: host: FUSE; 7m12s",
            ),
        ] {
            assert_eq!(closed(rows, [left_to_all, &[], &[]]), line);
        }
        let only = ["oom::".to_owned(), "BALLAST_VECTORS=x".to_owned()];
        assert_eq!(
            closed(vec![row("host", passed())], [&left_to_all, &only, &[]]),
            "ballast: parts of lanes passed (host); left out: none; only: oom::, BALLAST_VECTORS=x; \
             left to `all`: fuzz, vm; 7m12s"
        );
    }

    #[test]
    fn the_closing_line_has_what_a_proof_rests_on() {
        let options = ["--times 2".to_owned(), "--busy 2".to_owned()];
        let rows = || vec![row("host", passed()), row("host", passed())];
        assert_eq!(
            closed(rows(), [&[], &[], &options]),
            "ballast: all lanes passed (host 2 times); left out: none; with: --times 2, --busy 2; 7m12s"
        );
    }

    #[test]
    fn the_table_gives_the_reason() {
        let rows = [
            row("unit", passed()),
            row("host", Outcome::LeftOut("needs root".to_owned())),
        ];
        let expected = "unit  passed        12s\nhost  left out      12s  needs root\n";
        assert_eq!(table(&rows), expected);
    }

    #[test]
    fn a_required_lane_cannot_be_left_out() {
        let row = Row::left_out("host", "needs root".to_owned()).required();
        assert_eq!(
            row.outcome,
            Outcome::Failed("cannot run here: needs root".to_owned())
        );
    }

    #[test]
    fn what_tests_leave_out_is_found_once() {
        let output = "test a ... \n    left out: no FUSE\nok <1.0s>\nleft out: no FUSE\n";
        assert_eq!(left_out(output), ["no FUSE"]);
    }

    #[test]
    fn tests_are_counted_over_all_programs() {
        let output = "\
running 3 tests
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
";
        assert_eq!(count_tests(output), Some(7));
        assert_eq!(count_tests("QUANTITY: 3 passed, 0 failed\n"), None);
    }
}
