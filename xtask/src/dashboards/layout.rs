//! Where panels are: from left to right in lines of 24 columns, as Grafana counts them.

use super::source::Row;

pub(super) const COLUMNS: u32 = 24;

/// A place on the grid, in cells; `y` is below the top of what it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) width: u32,
    pub(super) height: u32,
}

/// The places of the panels of `row`, below its heading.
pub(super) fn cells(row: &Row) -> Vec<Cell> {
    let (mut x, mut y) = (0, 0);
    let place = |width| {
        if x + width > COLUMNS {
            (x, y) = (0, y + row.height);
        }
        let height = row.height;
        let cell = Cell {
            x,
            y,
            width,
            height,
        };
        x += width;
        cell
    };
    row.panels.iter().map(|it| it.width).map(place).collect()
}

/// Height of a row without its heading.
pub(super) fn height(row: &Row) -> u32 {
    cells(row).last().map_or(0, |it| it.y + it.height)
}
