//! A row for each set of labels, a column for each query.

use std::collections::BTreeMap;

use super::super::source::{Color, Panel};
use super::svg::{self, Align, Area, Stroke, Svg};
use super::{EDGE, FAINT, Recording, TEXT, color_at, number};

const LINE: f64 = 26.0;

type Row<'a> = (Vec<&'a str>, Vec<Option<f64>>);

pub(super) fn draw(svg: &mut Svg, area: Area, panel: &Panel, recording: &Recording) {
    let rows = rows(panel, recording);
    let fitting = ((area.height - LINE - 6.0) / LINE).floor();
    let shown = rows
        .iter()
        .zip(0_u32..)
        .take_while(|(_, i)| f64::from(*i) < fitting);

    // Labels get what they need, if there is room, and values what is left.
    let label_width = |index: usize, label: &str| {
        let values = rows.iter().filter_map(|(labels, _)| labels.get(index));
        let widest = values.map(|it| svg::width(it, 12.0)).fold(0.0, f64::max);
        widest.max(svg::width(label, 12.0)) + 16.0
    };
    let of_labels = panel
        .labels
        .iter()
        .enumerate()
        .map(|(i, it)| label_width(i, it));
    let mut widths: Vec<f64> = of_labels.collect();
    let least = |bar| if bar { 130.0 } else { 84.0 };
    let of_values: f64 = panel.queries.iter().map(|it| least(it.bar)).sum();
    let room = area.width - 20.0;
    let labels: f64 = widths.iter().sum();
    let shrunk = ((room - of_values) / labels).min(1.0);
    widths.iter_mut().for_each(|it| *it *= shrunk);
    let rest = (room - labels * shrunk) / of_values;
    widths.extend(panel.queries.iter().map(|it| least(it.bar) * rest));

    let left = area.x + 10.0;
    let headings = panel
        .labels
        .iter()
        .chain(panel.queries.iter().map(|it| &it.legend));
    let mut x = left;
    for ((heading, width), index) in headings.zip(&widths).zip(0..) {
        let heading = svg::fit(heading, 12.0, width - 8.0);
        let is_value = index >= panel.labels.len();
        let (at, align) = match is_value {
            true => (x + width - 8.0, Align::End),
            false => (x + 4.0, Align::Start),
        };
        svg.text((at, area.y + 16.0), 12.0, "#6e9fff", align, &heading);
        x += width;
    }
    for ((labels, values), line) in shown {
        let y = area.y + LINE * (f64::from(line) + 1.0);
        let right = area.x + area.width - 10.0;
        svg.rule((left, y), (right, y), EDGE, Stroke::Solid);
        let mut x = left;
        for (label, width) in labels.iter().zip(&widths) {
            let label = svg::fit(label, 12.0, width - 8.0);
            svg.text((x + 4.0, y + 17.0), 12.0, TEXT, Align::Start, &label);
            x += width;
        }
        let of_values = widths.iter().skip(labels.len());
        for (index, (value, width)) in values.iter().zip(of_values).enumerate() {
            cell(
                svg,
                Area::new(x, y, *width, LINE),
                panel,
                index,
                (*value, &rows),
            );
            x += width;
        }
    }
}

fn cell(
    svg: &mut Svg,
    area: Area,
    panel: &Panel,
    index: usize,
    (value, rows): (Option<f64>, &[Row<'_>]),
) {
    let query = &panel.queries[index];
    let Some(value) = value else {
        return;
    };
    let text = number(panel, query, value);
    if query.bar {
        let most = rows.iter().filter_map(|(_, values)| values[index]);
        let most = most.fold(0.0, f64::max);
        let room = area.width - 84.0;
        let share = if most > 0.0 {
            (value / most).clamp(0.0, 1.0)
        } else {
            0.0
        };
        let plain = query.color.map_or("#5794f2", Color::hex);
        let color = match panel.thresholds.is_empty() {
            true => plain,
            false => color_at(panel, value),
        };
        let bar = Area::new(area.x + 8.0, area.y + 6.0, room.max(8.0), LINE - 12.0);
        svg.rectangle(bar, "#22252b");
        let bar = Area {
            width: bar.width * share,
            ..bar
        };
        svg.rectangle(bar, color);
    }
    let color = if query.bar { TEXT } else { FAINT };
    let at = (area.x + area.width - 8.0, area.y + 17.0);
    svg.text(at, 12.0, color, Align::End, &text);
}

/// What the queries say of each set of labels, sorted by the first.
fn rows<'a>(panel: &Panel, recording: &'a Recording) -> Vec<Row<'a>> {
    let mut rows: BTreeMap<Vec<&str>, Vec<Option<f64>>> = BTreeMap::new();
    for index in 0..panel.queries.len() {
        for series in recording.series(panel, index) {
            let labels = panel.labels.iter().map(|it| series.label(it)).collect();
            let values = rows
                .entry(labels)
                .or_insert_with(|| vec![None; panel.queries.len()]);
            values[index] = series.last();
        }
    }
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(_, a), (_, b)| {
        let order = |it: &[Option<f64>]| it[0].unwrap_or(f64::NEG_INFINITY);
        match panel.ascending {
            true => a[0]
                .unwrap_or(f64::INFINITY)
                .total_cmp(&b[0].unwrap_or(f64::INFINITY)),
            false => order(b).total_cmp(&order(a)),
        }
    });
    rows
}
