//! A still of a dashboard, drawn as Grafana shows it from results that were recorded.
//!
//! Invariant: the same source and the same recording give the same bytes; nothing else is read.

mod chart;
mod format;
mod svg;
mod table;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use self::svg::{Align, Area, Svg};
use super::layout::{self, COLUMNS, Cell};
use super::source::{Color, Dashboard, Kind, Panel, Query, Scope, Threshold};

const WIDTH: f64 = 1440.0;
const MARGIN: f64 = 16.0;
const HEADER: f64 = 62.0;
const FOOTER: f64 = 30.0;
/// Height of a cell of the grid with the gap below it, as in Grafana.
const CELL: f64 = 38.0;
const GAP: f64 = 8.0;

const BACKGROUND: &str = "#111217";
const SURFACE: &str = "#181b1f";
const EDGE: &str = "#2c3035";
const TEXT: &str = "#d5d8e0";
const FAINT: &str = "#8e96a3";

/// For series that have no colour of their own meaning.
const PALETTE: [&str; 12] = [
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#ca95e5", "#56c8c8", "#e08fb0", "#b0b96a",
    "#9fa7b3", "#c49a6c", "#6f8fd0", "#5fa88b",
];

/// The results that were recorded for a dashboard, `dashboards/previews/data/NAME.json`.
#[derive(Deserialize)]
pub(super) struct Recording {
    /// Seconds since the epoch.
    start: f64,
    /// Seconds between two values.
    step: f64,
    /// By panel and query.
    panels: BTreeMap<String, BTreeMap<String, Vec<Series>>>,
}

#[derive(Deserialize)]
struct Series {
    labels: BTreeMap<String, String>,
    /// One for each step, or a single one.
    values: Vec<Option<f64>>,
}

impl Series {
    fn last(&self) -> Option<f64> {
        self.values.iter().rev().find_map(|it| *it)
    }

    fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }

    /// `legend` with its labels filled in.
    fn name(&self, legend: &str) -> String {
        let labels = self.labels.iter();
        labels.fold(legend.to_owned(), |text, (label, value)| {
            text.replace(&format!("{{{{{label}}}}}"), value)
        })
    }
}

impl Recording {
    pub(super) fn parse(text: &str) -> Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    fn series(&self, panel: &Panel, query: usize) -> &[Series] {
        let of_panel = self.panels.get(&panel.title);
        let of_query = of_panel.and_then(|it| it.get(&Panel::ref_id(query)));
        of_query.map_or(&[], Vec::as_slice)
    }

    /// Seconds since the epoch of the last value of all.
    fn end(&self) -> f64 {
        let all = self.panels.values().flat_map(BTreeMap::values).flatten();
        let most = all.map(|it| it.values.len()).max().unwrap_or(1);
        self.start + self.step * most.saturating_sub(1) as f64
    }
}

/// The picture of a dashboard.
pub(super) fn draw(source: &Dashboard, recording: &Recording) -> Result<String> {
    let rows = source.rows.iter().map(|it| 1 + layout::height(it));
    let height = HEADER + f64::from(rows.sum::<u32>()) * CELL + FOOTER;
    let mut svg = Svg::new(WIDTH, height);
    svg.rectangle(Area::new(0.0, 0.0, WIDTH, height), BACKGROUND);
    header(&mut svg, source, recording)?;
    let mut y = 0;
    for row in &source.rows {
        let heading = place(Cell {
            x: 0,
            y,
            width: COLUMNS,
            height: 1,
        });
        svg.chevron(heading.x + 6.0, heading.y + 13.0, FAINT);
        let at = (heading.x + 20.0, heading.y + 20.0);
        svg.text(at, 15.0, TEXT, Align::Start, &row.title);
        y += 1;
        for (cell, it) in layout::cells(row).into_iter().zip(&row.panels) {
            panel(
                &mut svg,
                place(Cell {
                    y: y + cell.y,
                    ..cell
                }),
                it,
                recording,
            );
        }
        y += layout::height(row);
    }
    let note = "Drawn from answers of a Prometheus that scraped live agents on one small machine.";
    let at = (MARGIN, height - 12.0);
    svg.text(at, 11.0, FAINT, Align::Start, note);
    Ok(svg.finish())
}

/// Where a cell of the grid is on the page.
fn place(cell: Cell) -> Area {
    let column = (WIDTH - 2.0 * MARGIN + GAP) / f64::from(COLUMNS);
    Area::new(
        MARGIN + f64::from(cell.x) * column,
        HEADER + f64::from(cell.y) * CELL,
        f64::from(cell.width) * column - GAP,
        f64::from(cell.height) * CELL - GAP,
    )
}

fn header(svg: &mut Svg, source: &Dashboard, recording: &Recording) -> Result<()> {
    svg.rectangle(Area::new(0.0, 0.0, WIDTH, HEADER - 10.0), SURFACE);
    let title = format!("ballast / {}", source.title);
    svg.bold((MARGIN, 32.0), 18.0, TEXT, &title);
    // Bold letters are wider.
    let x = MARGIN + svg::width(&title, 20.5) + 34.0;
    svg.text((x, 32.0), 14.0, FAINT, Align::Start, &source.question);

    let name = |at: f64, format: &str| -> Result<String> {
        let seconds = format!("{at:.0}").parse()?;
        let time = jiff::Timestamp::from_second(seconds).context("time of the recording")?;
        Ok(time.strftime(format).to_string())
    };
    let time = format!(
        "{} to {} UTC",
        name(recording.start, "%Y-%m-%d %H:%M:%S")?,
        name(recording.end(), "%H:%M:%S")?
    );
    let mut right = WIDTH - MARGIN;
    let pods: &[&str] = match source.scope {
        Scope::Nodes => &[],
        Scope::Pods => &["pod: All", "namespace: All"],
    };
    let choices = [time.as_str()].into_iter().chain(pods.iter().copied());
    for choice in choices.chain(["node: All", "cluster: All"]) {
        let width = svg::width(choice, 12.0) + 20.0;
        let pill = Area::new(right - width, 14.0, width, 26.0);
        svg.framed(pill, BACKGROUND, EDGE);
        let at = (pill.x + 10.0, 31.0);
        svg.text(at, 12.0, TEXT, Align::Start, choice);
        right -= width + 8.0;
    }
    Ok(())
}

fn panel(svg: &mut Svg, area: Area, panel: &Panel, recording: &Recording) {
    svg.framed(area, SURFACE, EDGE);
    let title = svg::fit(&panel.title, 13.0, area.width - 20.0);
    svg.bold((area.x + 10.0, area.y + 20.0), 13.0, TEXT, &title);
    let inner = Area::new(area.x, area.y + 30.0, area.width, area.height - 30.0);
    let has_data = (0..panel.queries.len())
        .flat_map(|it| recording.series(panel, it))
        .any(|it| it.last().is_some());
    if !has_data {
        let at = (inner.x + inner.width / 2.0, inner.y + inner.height / 2.0);
        svg.text(at, 14.0, FAINT, Align::Middle, "No data");
        return;
    }
    match panel.kind {
        Kind::Stat => stat(svg, inner, panel, recording),
        Kind::Lines | Kind::Bars => chart::draw(svg, inner, panel, recording),
        Kind::Table => table::draw(svg, inner, panel, recording),
    }
}

/// A large number for each series, over what it was before.
fn stat(svg: &mut Svg, area: Area, panel: &Panel, recording: &Recording) {
    let numbers: Vec<(&Query, &Series)> = panel
        .queries
        .iter()
        .enumerate()
        .flat_map(|(index, query)| {
            let series = recording.series(panel, index).iter();
            series.map(move |it| (query, it))
        })
        .collect();
    let width = area.width / numbers.len() as f64;
    for (index, (query, series)) in numbers.iter().enumerate() {
        let x = area.x + width * index as f64;
        let Some(value) = series.last() else {
            continue;
        };
        let color = query
            .color
            .map_or_else(|| color_at(panel, value), Color::hex);
        let base = area.y + area.height - 4.0;
        chart::spark(
            svg,
            Area::new(x + 1.0, base - 30.0, width - 2.0, 30.0),
            series,
            color,
        );
        let at = (x + width / 2.0, area.y + area.height / 2.0 + 12.0);
        let text = number(panel, query, value);
        svg.number(at, 38.0, color, &text);
        if numbers.len() > 1 {
            let at = (x + width / 2.0, area.y + 12.0);
            svg.text(at, 12.0, FAINT, Align::Middle, &series.name(&query.legend));
        }
    }
}

/// A value of a number panel or a table as it is shown there.
fn number(panel: &Panel, query: &Query, value: f64) -> String {
    let is_whole = panel.shows_whole_numbers() && query.unit.is_none();
    let value = if is_whole { value.round() } else { value };
    format::value(panel.unit(query), value)
}

/// The colour of the highest bound that `value` has reached.
fn color_at(panel: &Panel, value: f64) -> &'static str {
    let reached = |it: &&Threshold| it.from.is_none_or(|from| value >= from);
    let threshold = panel.thresholds.iter().rev().find(reached);
    threshold.map_or(TEXT, |it| it.color.hex())
}

/// The colour of series number `index` of a query, of `n`; `before` series are drawn without a
/// colour of their own already.
fn color_of(query: &Query, index: usize, n: usize, before: usize) -> String {
    match query.color {
        Some(color) if n > 1 => svg::shade(color.hex(), index as f64 / (n - 1) as f64),
        Some(color) => color.hex().to_owned(),
        None => PALETTE[(before + index) % PALETTE.len()].to_owned(),
    }
}

#[cfg(test)]
mod tests;
