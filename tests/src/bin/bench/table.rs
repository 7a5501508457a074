//! Figures beside their budgets.

use std::fmt;
use std::time::Duration;

use anyhow::Result;

/// How a figure stands to its budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Within,
    Over,
    /// The design sets none for it.
    NoBudget,
    /// With the reason.
    NotMeasured(String),
    /// It is a fact, and as it must be.
    Right,
    /// It is a fact, and not as it must be, so the run fails. With what it must be.
    Wrong(String),
}

impl Verdict {
    pub(crate) fn of(is_within: bool) -> Self {
        match is_within {
            true => Self::Within,
            false => Self::Over,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Within => f.write_str("within"),
            Self::Over => f.write_str("over"),
            Self::NoBudget => f.write_str("-"),
            Self::NotMeasured(why) => write!(f, "not measured: {why}"),
            Self::Right => f.write_str("right"),
            Self::Wrong(right) => write!(f, "wrong: must be {right}"),
        }
    }
}

/// One figure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    figure: String,
    n: String,
    /// The median of many, or the one value.
    median: String,
    p99: String,
    max: String,
    budget: String,
    verdict: Verdict,
}

impl Row {
    /// Many durations, whose p99 the budget bounds.
    pub(crate) fn durations(figure: &str, samples: &Samples, p99_budget: Option<Duration>) -> Self {
        let quantile = |percent| samples.quantile(percent);
        let (Some(median), Some(p99), Some(max)) = (quantile(50), quantile(99), quantile(100))
        else {
            return Self::not_measured(figure, "no samples");
        };
        Self {
            figure: figure.to_owned(),
            n: samples.n().to_string(),
            median: show(median),
            p99: show(p99),
            max: show(max),
            budget: p99_budget.map_or_else(String::new, |it| format!("p99 {}", show(it))),
            verdict: p99_budget.map_or(Verdict::NoBudget, |it| Verdict::of(p99 <= it)),
        }
    }

    /// Many amounts of memory, bytes.
    pub(crate) fn amounts(figure: &str, mut bytes: Vec<u64>) -> Self {
        bytes.sort_unstable();
        let quantile = |percent| Some(mebibytes(at_rank(&bytes, percent)?));
        let (Some(median), Some(p99), Some(max)) = (quantile(50), quantile(99), quantile(100))
        else {
            return Self::not_measured(figure, "no samples");
        };
        Self {
            figure: figure.to_owned(),
            n: bytes.len().to_string(),
            median,
            p99,
            max,
            budget: String::new(),
            verdict: Verdict::NoBudget,
        }
    }

    /// One value, of `n` things.
    pub(crate) fn value(
        figure: &str,
        n: usize,
        value: impl fmt::Display,
        budget: &str,
        verdict: Verdict,
    ) -> Self {
        Self {
            figure: figure.to_owned(),
            n: n.to_string(),
            median: value.to_string(),
            p99: String::new(),
            max: String::new(),
            budget: budget.to_owned(),
            verdict,
        }
    }

    /// One value that must be `right` on every machine.
    pub(crate) fn fact<T: fmt::Display + PartialEq>(figure: &str, value: T, right: T) -> Self {
        let verdict = match value == right {
            true => Verdict::Right,
            false => Verdict::Wrong(right.to_string()),
        };
        Self::value(figure, 1, value, "", verdict)
    }

    pub(crate) fn not_measured(figure: &str, why: impl fmt::Display) -> Self {
        Self {
            figure: figure.to_owned(),
            n: "0".to_owned(),
            median: String::new(),
            p99: String::new(),
            max: String::new(),
            budget: String::new(),
            verdict: Verdict::NotMeasured(why.to_string()),
        }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.figure, self.median)?;
        for (name, value) in [("p99", &self.p99), ("max", &self.max)] {
            if !value.is_empty() {
                write!(f, ", {name} {value}")?;
            }
        }
        match self.verdict {
            Verdict::NoBudget => Ok(()),
            ref verdict => write!(f, " ({verdict})"),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
    /// Why the run fails.
    faults: Vec<String>,
}

impl Table {
    /// The rows of one measurement: those before it failed, and one that says why there are no more.
    pub(crate) fn section(&mut self, name: &str, measure: impl FnOnce(&mut Self) -> Result<()>) {
        if let Err(error) = measure(self) {
            self.push(Row::not_measured(name, format_args!("{error:#}")));
        }
    }

    /// The same of a measurement with facts: if it fails, nobody knows them, and the run fails too.
    pub(crate) fn section_of_facts(
        &mut self,
        name: &str,
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) {
        self.section(name, |table| {
            let measured = measure(table);
            if measured.is_err() {
                table.faults.push(format!("{name} was not measured"));
            }
            measured
        });
    }

    /// Shows it at once, too: the whole comes after minutes.
    pub(crate) fn push(&mut self, row: Row) {
        eprintln!("{row}");
        if let Verdict::Wrong(right) = &row.verdict {
            let (figure, value) = (&row.figure, &row.median);
            self.faults
                .push(format!("{figure}: {value}, which must be {right}"));
        }
        self.rows.push(row);
    }

    pub(crate) fn extend(&mut self, rows: impl IntoIterator<Item = Row>) {
        rows.into_iter().for_each(|row| self.push(row));
    }

    /// Why the run fails. Empty: it does not.
    pub(crate) fn faults(&self) -> &[String] {
        &self.faults
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["figure", "n", "median or value", "p99", "max", "budget"].map(str::to_owned);
        let cells: Vec<[String; 6]> = std::iter::once(head)
            .chain(self.rows.iter().map(|row| {
                let Row {
                    figure,
                    n,
                    median,
                    p99,
                    max,
                    budget,
                    ..
                } = row;
                [figure, n, median, p99, max, budget].map(String::clone)
            }))
            .collect();
        let mut widths = [0; 6];
        for row in &cells {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let verdicts = std::iter::once("verdict".to_owned())
            .chain(self.rows.iter().map(|row| row.verdict.to_string()));
        let [figure, n, median, p99, max, budget] = widths;
        for ([a, b, c, d, e, g], verdict) in cells.iter().zip(verdicts) {
            writeln!(
                f,
                "{a:figure$}  {b:>n$}  {c:>median$}  {d:>p99$}  {e:>max$}  {g:budget$}  {verdict}"
            )?;
        }
        Ok(())
    }
}

/// Durations in ascending order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn new(mut samples: Vec<Duration>) -> Self {
        samples.sort_unstable();
        Self(samples)
    }

    pub(crate) fn from_micros(micros: impl IntoIterator<Item = u64>) -> Self {
        Self::new(micros.into_iter().map(Duration::from_micros).collect())
    }

    pub(crate) fn n(&self) -> usize {
        self.0.len()
    }

    /// By nearest rank: a value that was measured. With fewer than 100 samples the 99th percentile
    /// is the largest. `percent`: 1 to 100.
    pub(crate) fn quantile(&self, percent: usize) -> Option<Duration> {
        at_rank(&self.0, percent)
    }
}

fn at_rank<T: Copy>(ascending: &[T], percent: usize) -> Option<T> {
    let rank = (ascending.len() * percent).div_ceil(100);
    ascending.get(rank.checked_sub(1)?).copied()
}

/// Three digits or so: `840 ns`, `8.40 µs`, `84 µs`, `1.25 ms`, `12.3 s`.
pub(crate) fn show(duration: Duration) -> String {
    let micros = duration.as_nanos() as f64 / 1e3;
    match micros {
        ..1e0 => format!("{} ns", duration.as_nanos()),
        ..1e1 => format!("{micros:.2} µs"),
        ..1e3 => format!("{micros:.0} µs"),
        ..1e4 => format!("{:.2} ms", micros / 1e3),
        ..1e6 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

/// `12.3 MiB`.
pub(crate) fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_measured_value() {
        let samples = Samples::from_micros((1..=200).rev());
        for (percent, micros) in [(1, 2), (50, 100), (99, 198), (100, 200)] {
            let expected = Some(Duration::from_micros(micros));
            assert_eq!(samples.quantile(percent), expected, "{percent} %");
        }
        let few = Samples::from_micros([30, 10, 20]);
        assert_eq!(few.quantile(99), Some(Duration::from_micros(30)));
        assert_eq!(Samples::default().quantile(50), None);
    }

    #[test]
    fn a_wrong_fact_is_a_fault_and_an_exceeded_budget_is_none() {
        let mut table = Table::default();
        table.push(Row::fact("kills told", 3, 3));
        table.push(Row::value("CPU, percent", 1, 7, "5", Verdict::of(false)));
        table.section("oom", |_| Err(anyhow::anyhow!("no agent")));
        assert!(table.faults().is_empty(), "{table}");
        table.push(Row::fact("kills told", 2, 3));
        table.section_of_facts("outage", |_| Err(anyhow::anyhow!("no agent")));
        let right = ["kills told: 2, which must be 3", "outage was not measured"];
        assert_eq!(table.faults(), right);
        let shown = table.to_string();
        for verdict in ["right", "wrong: must be 3", "not measured: no agent"] {
            assert!(shown.contains(verdict), "{verdict} in {shown}");
        }
    }

    #[test]
    fn durations_are_short() {
        for (nanos, text) in [
            (840, "840 ns"),
            (8_400, "8.40 µs"),
            (84_400, "84 µs"),
            (1_250_000, "1.25 ms"),
            (47_000_000, "47 ms"),
            (12_340_000_000, "12.3 s"),
        ] {
            assert_eq!(show(Duration::from_nanos(nanos)), text);
        }
    }
}
