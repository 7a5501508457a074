//! Lines and columns over time.

use super::super::source::{Kind, Panel, Query, Unit};
use super::svg::{self, Align, Area, Stroke, Svg};
use super::{EDGE, FAINT, Recording, Series, TEXT, color_of, format};

/// A line of the legend.
const LINE: f64 = 15.0;

/// A series with all that its drawing depends on.
struct Drawn<'a> {
    query: &'a Query,
    name: String,
    color: String,
    /// One for each step; of a stack, on top of those before.
    top: Vec<Option<f64>>,
    /// Where its area begins.
    base: Vec<f64>,
    last: Option<f64>,
    unit: Unit,
}

/// Values to pixels.
struct Axes {
    plot: Area,
    low: f64,
    high: f64,
    n_steps: usize,
}

impl Axes {
    fn x(&self, step: usize) -> f64 {
        let all = self.n_steps.saturating_sub(1).max(1) as f64;
        self.plot.x + self.plot.width * step as f64 / all
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        self.plot.y + self.plot.height * (1.0 - share)
    }
}

pub(super) fn draw(svg: &mut Svg, area: Area, panel: &Panel, recording: &Recording) {
    let drawn = arrange(panel, recording);
    let columns = if area.width > 420.0 { 2 } else { 1 };
    let lines = drawn.len().div_ceil(columns).min(6);
    let legend = lines as f64 * LINE + 8.0;

    let tops = drawn.iter().flat_map(|it| it.top.iter().flatten().copied());
    let bases = drawn.iter().flat_map(|it| it.base.iter().copied());
    let values: Vec<f64> = match panel.stack {
        true => tops.chain(bases).collect(),
        false => tops.collect(),
    };
    let bound = panel.thresholds.iter().filter_map(|it| it.from);
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    // A bound far above everything would press the lines flat.
    let high = bound.filter(|it| *it < high * 4.0).fold(high, f64::max);
    let ticks = format::ticks(
        panel.unit,
        panel.min.unwrap_or(low.min(0.0)),
        panel.max.unwrap_or(high),
    );
    let (low, high) = (ticks[0], ticks.last().copied().unwrap_or(1.0));

    let labels: Vec<_> = ticks
        .iter()
        .map(|it| format::value(panel.unit, *it))
        .collect();
    let left = labels
        .iter()
        .map(|it| svg::width(it, 11.0))
        .fold(20.0, f64::max)
        + 16.0;
    let axes = Axes {
        plot: Area::new(
            area.x + left,
            area.y + 8.0,
            area.width - left - 14.0,
            area.height - legend - 36.0,
        ),
        low,
        high,
        n_steps: drawn.iter().map(|it| it.top.len()).max().unwrap_or(1),
    };
    for (tick, label) in ticks.iter().zip(&labels) {
        let y = axes.y(*tick);
        let right = axes.plot.x + axes.plot.width;
        svg.rule((axes.plot.x, y), (right, y), EDGE, Stroke::Solid);
        svg.text((axes.plot.x - 8.0, y + 4.0), 11.0, FAINT, Align::End, label);
    }
    times(svg, &axes, recording);
    for threshold in panel.thresholds.iter().skip(1) {
        if let Some(from) = threshold.from.filter(|it| (low..=high).contains(it)) {
            let (y, right) = (axes.y(from), axes.plot.x + axes.plot.width);
            svg.rule(
                (axes.plot.x, y),
                (right, y),
                threshold.color.hex(),
                Stroke::Dashed,
            );
        }
    }
    for it in &drawn {
        match panel.kind {
            Kind::Bars => bars(svg, &axes, it),
            _ if it.query.mark => marks(svg, &axes, it),
            _ => line(svg, &axes, it, panel.stack),
        }
    }
    let top = area.y + area.height - legend;
    let width = (area.width - 20.0) / columns as f64;
    for (index, it) in drawn.iter().enumerate().take(lines * columns) {
        let x = area.x + 10.0 + width * (index % columns) as f64;
        let y = top + LINE * ((index / columns) as f64 + 0.7);
        svg.rectangle(Area::new(x, y - 5.0, 12.0, 3.0), &it.color);
        let last = it
            .last
            .map_or_else(String::new, |last| format::value(it.unit, last));
        let room = width - 48.0 - svg::width(&last, 11.0);
        let name = svg::fit(&it.name, 11.0, room);
        svg.text((x + 18.0, y), 11.0, TEXT, Align::Start, &name);
        svg.text((x + width - 18.0, y), 11.0, FAINT, Align::End, &last);
    }
}

/// The series of a panel in the order of its queries, with colours, put on top of each other where
/// the panel says so.
fn arrange<'a>(panel: &'a Panel, recording: &Recording) -> Vec<Drawn<'a>> {
    let mut drawn: Vec<Drawn> = Vec::new();
    let mut n_plain = 0;
    for (index, query) in panel.queries.iter().enumerate() {
        let mut series: Vec<&Series> = recording.series(panel, index).iter().collect();
        series.retain(|it| it.last().is_some());
        series.sort_by_key(|it| it.name(&query.legend));
        for (index, it) in series.iter().enumerate() {
            drawn.push(Drawn {
                query,
                name: it.name(&query.legend),
                color: color_of(query, index, series.len(), n_plain),
                top: it.values.clone(),
                base: vec![0.0; it.values.len()],
                last: it.last(),
                unit: panel.unit(query),
            });
        }
        if query.color.is_none() {
            n_plain += series.len();
        }
    }
    if panel.stack {
        let mut sums: Vec<f64> = Vec::new();
        for it in &mut drawn {
            sums.resize(sums.len().max(it.top.len()), 0.0);
            for ((top, base), sum) in it.top.iter_mut().zip(&mut it.base).zip(&mut sums) {
                *base = *sum;
                *sum += top.unwrap_or(0.0);
                *top = top.map(|_| *sum);
            }
        }
    }
    drawn
}

/// Marks at full minutes, or fewer.
fn times(svg: &mut Svg, axes: &Axes, recording: &Recording) {
    let length = recording.step * axes.n_steps.saturating_sub(1) as f64;
    let between = [10.0, 30.0, 60.0, 120.0, 300.0];
    let fits = |it: &f64| length / it * if *it < 60.0 { 66.0 } else { 44.0 } < axes.plot.width;
    let between = between.into_iter().find(fits).unwrap_or(600.0);
    let mut at = (recording.start / between).ceil() * between;
    while at <= recording.start + length {
        let x = axes.plot.x + axes.plot.width * (at - recording.start) / length.max(1.0);
        let bottom = axes.plot.y + axes.plot.height;
        svg.rule((x, axes.plot.y), (x, bottom), "#22262b", Stroke::Solid);
        let of_day = at.rem_euclid(86_400.0);
        let (hour, minute) = ((of_day / 3600.0).floor(), (of_day / 60.0).floor() % 60.0);
        let text = match between < 60.0 {
            true => format!("{hour:02.0}:{minute:02.0}:{:02.0}", of_day % 60.0),
            false => format!("{hour:02.0}:{minute:02.0}"),
        };
        svg.text((x, bottom + 16.0), 11.0, FAINT, Align::Middle, &text);
        at += between;
    }
}

/// Parts of a series without a gap, each with the number of its first step.
fn runs(values: &[Option<f64>]) -> Vec<(usize, Vec<f64>)> {
    let mut runs: Vec<(usize, Vec<f64>)> = Vec::new();
    let mut goes_on = false;
    for (step, value) in values.iter().enumerate() {
        match (value, runs.last_mut()) {
            (Some(value), Some((_, run))) if goes_on => run.push(*value),
            (Some(value), _) => runs.push((step, vec![*value])),
            (None, _) => {}
        }
        goes_on = value.is_some();
    }
    runs
}

fn line(svg: &mut Svg, axes: &Axes, it: &Drawn<'_>, is_stacked: bool) {
    for (first, run) in runs(&it.top) {
        let at = |(i, value): (usize, &f64)| (axes.x(first + i), axes.y(*value));
        let points: Vec<_> = run.iter().enumerate().map(at).collect();
        if let [point] = points.as_slice() {
            svg.dot(*point, 2.0, &it.color);
            continue;
        }
        if !it.query.dashed {
            let mut outline = points.clone();
            for step in (first..first + run.len()).rev() {
                outline.push((axes.x(step), axes.y(it.base[step])));
            }
            svg.fill(&outline, &it.color, if is_stacked { 0.4 } else { 0.08 });
        }
        let stroke = if it.query.dashed {
            Stroke::Dashed
        } else {
            Stroke::Solid
        };
        svg.line(&points, &it.color, stroke);
    }
}

fn marks(svg: &mut Svg, axes: &Axes, it: &Drawn<'_>) {
    for (step, value) in it.top.iter().enumerate() {
        if let Some(value) = value {
            svg.dot((axes.x(step), axes.y(*value)), 4.0, &it.color);
        }
    }
}

fn bars(svg: &mut Svg, axes: &Axes, it: &Drawn<'_>) {
    let width = (axes.plot.width / axes.n_steps as f64 * 0.8).max(1.0);
    for (step, (top, base)) in it.top.iter().zip(&it.base).enumerate() {
        let Some(top) = top.filter(|top| top > base) else {
            continue;
        };
        let (y, bottom) = (axes.y(top), axes.y(*base));
        let x = (axes.x(step) - width / 2.0).max(axes.plot.x);
        let bar = Area::new(x, y, width, bottom - y);
        svg.rectangle(bar, &it.color);
        if it.query.dashed {
            svg.rectangle(bar, "url(#hatch)");
        }
    }
}

/// A line and what is below it, without axes.
pub(super) fn spark(svg: &mut Svg, area: Area, series: &Series, color: &str) {
    let values = || series.values.iter().flatten().copied();
    if series.values.len() < 2 {
        return;
    }
    let low = values().fold(f64::INFINITY, f64::min);
    let high = values().fold(f64::NEG_INFINITY, f64::max);
    let axes = Axes {
        plot: area,
        low,
        high: if high > low { high } else { low + 1.0 },
        n_steps: series.values.len(),
    };
    for (first, run) in runs(&series.values) {
        let at = |(i, value): (usize, &f64)| (axes.x(first + i), axes.y(*value));
        let points: Vec<_> = run.iter().enumerate().map(at).collect();
        let bottom = area.y + area.height;
        let mut outline = points.clone();
        outline.push((axes.x(first + run.len() - 1), bottom));
        outline.push((axes.x(first), bottom));
        svg.fill(&outline, color, 0.15);
        svg.line(&points, color, Stroke::Solid);
    }
}
