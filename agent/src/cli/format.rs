//! Amounts, times and columns as people read them.

use std::time::Duration;

pub(crate) use crate::model::text::printable;
use crate::units::{Bytes, MilliCpu};

/// Stands for what is not known or does not apply.
pub(super) const NOTHING: &str = "-";

/// As Kubernetes writes it: `4`, `250m`.
pub(super) fn cpu(amount: MilliCpu) -> String {
    match amount.0 {
        milli if milli % 1000 == 0 => (milli / 1000).to_string(),
        milli => format!("{milli}m"),
    }
}

/// In the largest binary unit of which there is at least one, rounded down, with one digit behind
/// the point below 10: `7.4Gi`, `612Mi`, `0`.
pub(crate) fn bytes(amount: Bytes) -> String {
    const UNITS: [(&str, u32); 5] = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10), ("", 0)];
    let n = amount.0;
    let (unit, shift) = UNITS
        .into_iter()
        .find(|(_, shift)| n >> shift > 0)
        .unwrap_or(("", 0));
    let whole = n >> shift;
    if shift == 0 || whole >= 10 {
        return format!("{whole}{unit}");
    }
    let tenths = ((n - (whole << shift)) * 10) >> shift;
    format!("{whole}.{tenths}{unit}")
}

/// `37s`, `12m5s`, `3h4m`, `12d3h`: the two largest units.
pub(super) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days}d{}h", hours % 24),
        () if hours > 0 => format!("{hours}h{}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{}s", seconds % 60),
        () => format!("{seconds}s"),
    }
}

/// A short duration in microseconds: `84 us`, `1.8 ms`, `2.5 s`.
pub(super) fn micros(us: u64) -> String {
    match us {
        0..1000 => format!("{us} us"),
        1000..1_000_000 => format!("{}.{} ms", us / 1000, us % 1000 / 100),
        _ => format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

/// Share of `whole` in percent, rounded to the nearest; `None` of nothing.
pub(super) fn percent(part: u64, whole: u64) -> Option<u64> {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let percent = (part * 100 + whole / 2).checked_div(whole)?;
    u64::try_from(percent).ok()
}

/// `1 restart`, `3 restarts`.
pub(super) fn count(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
}

/// What a piece of text means; shown as colour where there is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Heading,
    Warning,
    Bad,
}

/// Paints or does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint {
    pub(super) has_colour: bool,
}

impl Paint {
    pub(super) fn apply(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Heading => "1",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Plain => return text.to_owned(),
        };
        if self.has_colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// Columns as wide as their widest cell, two spaces apart.
#[derive(Debug)]
pub(super) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    cells: Vec<String>,
    tone: Tone,
    /// Lines that belong to the row, shown below it as they are.
    below: Vec<String>,
}

impl Table {
    pub(super) fn new<const N: usize>(columns: [(&'static str, Align); N]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N], tone: Tone) {
        self.row_with(cells, tone, Vec::new());
    }

    pub(super) fn row_with<const N: usize>(
        &mut self,
        cells: [String; N],
        tone: Tone,
        below: Vec<String>,
    ) {
        self.rows.push(Row {
            cells: cells.to_vec(),
            tone,
            below,
        });
    }

    /// The table in at most `width` columns where that can be: a first cell that is too long for
    /// that gets a line of its own.
    pub(super) fn render(&self, width: usize, paint: Paint, out: &mut String) {
        let widths = self.widths(width);
        let heads: Vec<String> = self
            .columns
            .iter()
            .map(|(it, _)| (*it).to_owned())
            .collect();
        self.line(&heads, Tone::Heading, &widths, paint, out);
        for row in &self.rows {
            self.line(&row.cells, row.tone, &widths, paint, out);
            for line in &row.below {
                out.push_str(line);
                out.push('\n');
            }
        }
    }

    fn widths(&self, width: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(it, _)| it.len()).collect();
        for row in &self.rows {
            for (widest, cell) in widths.iter_mut().zip(&row.cells) {
                *widest = (*widest).max(cell.chars().count());
            }
        }
        if let Some((first, others)) = widths.split_first_mut() {
            let taken: usize = others.iter().map(|it| it + 2).sum();
            let shortest = self.columns.first().map_or(0, |(it, _)| it.len());
            *first = (*first).min(width.saturating_sub(taken)).max(shortest);
        }
        widths
    }

    fn line(&self, cells: &[String], tone: Tone, widths: &[usize], paint: Paint, out: &mut String) {
        let mut line = String::new();
        for (i, ((cell, width), (_, align))) in
            cells.iter().zip(widths).zip(&self.columns).enumerate()
        {
            if i > 0 {
                line.push_str("  ");
            }
            let padding = width.saturating_sub(cell.chars().count());
            if i == 0 && cell.chars().count() > *width {
                line.push_str(cell);
                line.push('\n');
                line.extend(std::iter::repeat_n(' ', *width));
                continue;
            }
            let spaces = std::iter::repeat_n(' ', padding);
            match align {
                Align::Left => {
                    line.push_str(cell);
                    line.extend(spaces);
                }
                Align::Right => {
                    line.extend(spaces);
                    line.push_str(cell);
                }
            }
        }
        out.push_str(&paint.apply(tone, line.trim_end()));
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_short_and_never_more_than_there_is() {
        for (n, expected) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0Ki"),
            (612 << 20, "612Mi"),
            ((8 << 30) - (612 << 20), "7.4Gi"),
            ((10 << 30) - 1, "9.9Gi"),
            (10 << 30, "10Gi"),
            (3 << 50, "3072Ti"),
            (u64::MAX, "16777215Ti"),
        ] {
            assert_eq!(bytes(Bytes(n)), expected, "{n}");
        }
        for (milli, expected) in [(0, "0"), (250, "250m"), (1000, "1"), (1500, "1500m")] {
            assert_eq!(cpu(MilliCpu(milli)), expected, "{milli}");
        }
    }

    #[test]
    fn times_show_two_units() {
        for (seconds, expected) in [
            (0, "0s"),
            (59, "59s"),
            (60, "1m0s"),
            (3725, "1h2m"),
            (86_400 * 12 + 3 * 3600, "12d3h"),
        ] {
            assert_eq!(age(Duration::from_secs(seconds)), expected);
        }
        for (us, expected) in [
            (84, "84 us"),
            (1840, "1.8 ms"),
            (999_999, "999.9 ms"),
            (2_500_000, "2.5 s"),
        ] {
            assert_eq!(micros(us), expected);
        }
    }

    #[test]
    fn percent_of_nothing_is_nothing() {
        for (part, whole, expected) in [
            (1, 3, Some(33)),
            (2, 3, Some(67)),
            (5, 0, None),
            (u64::MAX, u64::MAX, Some(100)),
            (u64::MAX, 1, None),
        ] {
            assert_eq!(percent(part, whole), expected, "{part} of {whole}");
        }
    }

    #[test]
    fn a_long_first_cell_gets_a_line_of_its_own() {
        let mut table = Table::new([("POD", Align::Left), ("N", Align::Right)]);
        for (name, n) in [("short", "1"), ("much-longer-than-that", "22")] {
            table.row([name.to_owned(), n.to_owned()], Tone::Plain);
        }
        let mut text = String::new();
        table.render(12, Paint { has_colour: false }, &mut text);
        assert_eq!(
            text,
            "POD        N\nshort      1\nmuch-longer-than-that\n          22\n"
        );
    }
}
