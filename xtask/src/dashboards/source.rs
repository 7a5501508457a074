//! What a dashboard is, as its source says it: rows of panels, each with the queries behind it.

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::layout::{self, COLUMNS};

/// More lines than this on one panel cannot be told apart.
pub(super) const MAX_LINES: u32 = 12;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Dashboard {
    pub(super) title: String,
    /// What an operator asks when opening it.
    pub(super) question: String,
    pub(super) scope: Scope,
    pub(super) rows: Vec<Row>,
}

/// What can be chosen at the top of a dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Scope {
    /// Cluster and node.
    Nodes,
    /// Also namespace and pod.
    Pods,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) title: String,
    /// Of each of its panels, in cells of Grafana's grid.
    pub(super) height: u32,
    pub(super) panels: Vec<Panel>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Panel {
    /// Unique in its dashboard.
    pub(super) title: String,
    /// What it shows, and what a bad value looks like.
    pub(super) description: String,
    pub(super) kind: Kind,
    /// Of all queries that name none of their own.
    pub(super) unit: Unit,
    /// In columns, of which there are 24.
    pub(super) width: u32,
    /// The first is the colour below all bounds.
    #[serde(default)]
    pub(super) thresholds: Vec<Threshold>,
    /// Ends of the axis; left out: as the values need.
    #[serde(default)]
    pub(super) min: Option<f64>,
    #[serde(default)]
    pub(super) max: Option<f64>,
    /// Lines are added up.
    #[serde(default)]
    pub(super) stack: bool,
    /// Of a table: the labels that are its first columns.
    #[serde(default)]
    pub(super) labels: Vec<String>,
    /// Of a table: the least value of the first query comes first.
    #[serde(default)]
    pub(super) ascending: bool,
    pub(super) queries: Vec<Query>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Kind {
    /// One large number for each series.
    Stat,
    Lines,
    /// Counts of things that happened, as columns over time.
    Bars,
    /// A row for each set of labels, a column for each query, sorted by the first query.
    Table,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Unit {
    Count,
    /// 0 to 1, shown as a percentage.
    Ratio,
    Bytes,
    BytesPerSecond,
    PerSecond,
    /// CPUs, or CPU seconds a second.
    Cores,
    Seconds,
    /// How long ago something was, in seconds.
    Ago,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Query {
    /// PromQL. `<node>` and `<pod>` stand for the matchers of what is chosen at the top.
    pub(super) expr: String,
    /// Name of a series, with `{{label}}`; of a table, the heading of the column.
    pub(super) legend: String,
    /// The meaning of the series; left out: any colour.
    #[serde(default)]
    pub(super) color: Option<Color>,
    /// Only so many series: those with the highest maximum of the time shown.
    #[serde(default)]
    pub(super) top: Option<u32>,
    #[serde(default)]
    pub(super) unit: Option<Unit>,
    /// A promise, a limit or a dry run and not something that was measured.
    #[serde(default)]
    pub(super) dashed: bool,
    /// Points where something happened, and no line.
    #[serde(default)]
    pub(super) mark: bool,
    /// Of a column: a bar behind the number.
    #[serde(default)]
    pub(super) bar: bool,
    /// Of a column: the dashboard that a click leads to, for what the row names.
    #[serde(default)]
    pub(super) link: Option<String>,
}

/// Colours have the same meaning on every dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Color {
    /// Some tasks wait; take note.
    Some,
    /// All tasks wait; act.
    Full,
    /// Waits because of a limit of its own.
    OwnLimit,
    /// Waits because of others.
    Contention,
    Good,
    /// Context.
    Plain,
}

impl Color {
    pub(super) fn hex(self) -> &'static str {
        match self {
            Self::Some => "#ffb357",
            Self::Full => "#e02f44",
            Self::OwnLimit => "#b877d9",
            Self::Contention => "#5794f2",
            Self::Good => "#73bf69",
            Self::Plain => "#9fa7b3",
        }
    }
}

/// A colour from a value on, written as `0.1 full`; the first has the colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Threshold {
    pub(super) from: Option<f64>,
    pub(super) color: Color,
}

impl TryFrom<String> for Threshold {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Threshold {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (from, color) = match text.split_once(' ') {
            Some((from, color)) => (Some(from.parse().context("no number")?), color),
            None => (None, text),
        };
        let color = serde_yaml_ng::from_str(color)?;
        Ok(Self { from, color })
    }
}

impl Dashboard {
    /// The dashboard that `text` describes, if it keeps the rules.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let dashboard: Self = serde_yaml_ng::from_str(text)?;
        dashboard.check()?;
        Ok(dashboard)
    }

    pub(super) fn panels(&self) -> impl Iterator<Item = &Panel> {
        self.rows.iter().flat_map(|it| &it.panels)
    }

    /// Names of the dashboards that tables lead to.
    pub(super) fn links(&self) -> impl Iterator<Item = &str> {
        self.panels()
            .flat_map(|it| &it.queries)
            .filter_map(|it| it.link.as_deref())
    }

    fn check(&self) -> Result<()> {
        let mut titles = BTreeSet::new();
        for panel in self.panels() {
            let title = &panel.title;
            ensure!(titles.insert(title), "two panels `{title}`");
            panel.check().with_context(|| format!("panel `{title}`"))?;
        }
        for row in &self.rows {
            let ends = layout::cells(row).last().map(|it| it.x + it.width);
            ensure!(ends == Some(COLUMNS), "row `{}` is not filled", row.title);
        }
        Ok(())
    }
}

impl Panel {
    /// The unit of `query`.
    pub(super) fn unit(&self, query: &Query) -> Unit {
        query.unit.unwrap_or(self.unit)
    }

    /// What is counted over a time is estimated at its ends; nobody wants to read half a kill.
    pub(super) fn shows_whole_numbers(&self) -> bool {
        self.unit == Unit::Count && matches!(self.kind, Kind::Stat | Kind::Table)
    }

    /// The label that Grafana knows query number `index` by.
    pub(super) fn ref_id(index: usize) -> String {
        char::from(b'A' + u8::try_from(index).unwrap_or(25).min(25)).to_string()
    }

    fn check(&self) -> Result<()> {
        ensure!(self.description.ends_with('.'), "no description");
        ensure!((1..=26).contains(&self.queries.len()), "no query");
        ensure!(
            (self.kind == Kind::Table) != self.labels.is_empty(),
            "labels are of tables, and each has some"
        );
        let (first, rest) = match self.thresholds.split_first() {
            Some((first, rest)) => (Some(first), rest),
            None => (None, &[][..]),
        };
        ensure!(
            first.is_none_or(|it| it.from.is_none())
                && rest.iter().all(|it| it.from.is_some())
                && rest.is_sorted_by(|a, b| a.from < b.from),
            "thresholds: first a colour, then bounds with theirs, rising"
        );
        for query in &self.queries {
            ensure!(
                query.top.is_none_or(|it| it <= MAX_LINES),
                "more than {MAX_LINES} lines"
            );
            let is_rate = query.expr.contains("rate(") && !query.expr.contains("_seconds_");
            ensure!(
                !is_rate || self.unit(query) != Unit::Count,
                "a rate without a unit: {}",
                query.expr
            );
            for average in ["avg(", "avg by", "avg_over_time("] {
                ensure!(!query.expr.contains(average), "an average hides the tail");
            }
        }
        Ok(())
    }
}
