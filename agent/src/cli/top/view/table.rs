//! Tables whose columns come and go with the width of the screen.

use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::text::{Cell, Theme, fit};
use crate::cli::format::{Align, Tone};
use crate::cli::top::rows::SortKey;

/// Between two columns.
const GAP: usize = 1;

/// The first column is the name, which gets what the others leave, but not less than this while
/// others could go.
const MIN_NAME: usize = 16;

/// Columns of this rank and above go also where a name would be cut, up to this length of it.
const LUXURY: u8 = 2;
const LONG_NAME: usize = 48;

/// A column of rows of type `R`.
pub(super) struct Column<R> {
    pub(super) head: &'static str,
    pub(super) width: usize,
    pub(super) align: Align,
    /// The order that it stands for.
    pub(super) sort: Option<SortKey>,
    /// Columns with a higher number go first when it gets narrow.
    pub(super) rank: u8,
    pub(super) cell: fn(&R) -> Cell,
}

/// A table of which the rows from `first` on are shown.
pub(super) struct Table<'a, R> {
    pub(super) columns: &'a [Column<R>],
    /// Head and cell of the column of names.
    pub(super) name: (&'static str, fn(&R) -> Cell),
    pub(super) sort: Option<SortKey>,
    /// Columns of the longest name, shown or not: so columns do not change while one scrolls.
    pub(super) longest_name: usize,
    /// Row of the cursor.
    pub(super) cursor: Option<usize>,
}

impl<R> Table<'_, R> {
    /// Heads and as many of `rows` as fit into `height` lines, those around the cursor.
    pub(super) fn lines(
        &self,
        rows: &[&R],
        width: usize,
        height: usize,
        theme: Theme,
    ) -> Vec<Line<'static>> {
        let Some(n_shown) = height.checked_sub(1) else {
            return Vec::new();
        };
        let shown = self.columns_in(width);
        let taken: usize = shown.iter().map(|it| it.width + GAP).sum();
        let name_width = width.saturating_sub(taken);
        let mut lines = vec![self.heads(&shown, name_width, theme)];
        let first = self.first_row(rows.len(), n_shown);
        for (i, row) in rows.iter().enumerate().skip(first).take(n_shown) {
            let mut line = row_line(&shown, self.name.1, row, name_width, theme);
            if self.cursor == Some(i) {
                line = line.style(Style::new().add_modifier(Modifier::REVERSED));
            }
            lines.push(line);
        }
        lines
    }

    /// Of the table with all its columns and whole names.
    pub(super) fn whole_width(&self) -> usize {
        self.longest_name + self.columns.iter().map(|it| it.width + GAP).sum::<usize>()
    }

    fn columns_in(&self, width: usize) -> Vec<&Column<R>> {
        let mut shown: Vec<&Column<R>> = self.columns.iter().collect();
        while let Some(last) = shown.iter().map(|it| it.rank).max() {
            let taken: usize = shown.iter().map(|it| it.width + GAP).sum();
            let name = match last {
                LUXURY.. => self.longest_name.clamp(MIN_NAME, LONG_NAME),
                _ => MIN_NAME,
            };
            if taken + name <= width {
                break;
            }
            shown.retain(|it| it.rank < last);
        }
        shown
    }

    /// The cursor stays in the middle as far as the ends allow.
    fn first_row(&self, n_rows: usize, n_shown: usize) -> usize {
        let cursor = self.cursor.unwrap_or(0);
        let furthest = n_rows.saturating_sub(n_shown);
        cursor.saturating_sub(n_shown / 2).min(furthest)
    }

    fn heads(&self, shown: &[&Column<R>], name_width: usize, theme: Theme) -> Line<'static> {
        let head = |text: &str, sort: Option<SortKey>, width: usize, align: Align| {
            let is_sort = sort.is_some() && sort == self.sort;
            let text = match is_sort {
                true => format!("{text}▼"),
                false => text.to_owned(),
            };
            theme.span(Tone::Heading, fit(&text, width, align))
        };
        let sort = self.sort.filter(|it| *it == SortKey::Name);
        let mut spans = vec![head(self.name.0, sort, name_width, Align::Left)];
        for column in shown {
            spans.push(Span::raw(" ".repeat(GAP)));
            spans.push(head(column.head, column.sort, column.width, column.align));
        }
        Line::from(spans).style(Style::new().add_modifier(Modifier::UNDERLINED))
    }
}

fn row_line<R>(
    shown: &[&Column<R>],
    name: fn(&R) -> Cell,
    row: &R,
    name_width: usize,
    theme: Theme,
) -> Line<'static> {
    let (text, tone) = name(row);
    let mut spans = vec![theme.span(tone, fit(&text, name_width, Align::Left))];
    for column in shown {
        let (text, tone) = (column.cell)(row);
        spans.push(Span::raw(" ".repeat(GAP)));
        spans.push(theme.span(tone, fit(&text, column.width, column.align)));
    }
    Line::from(spans)
}
