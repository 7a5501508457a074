//! The screen of `ballast top`, from the state of the application to cells.
//!
//! Invariants: pure. Any size is drawn: what does not fit is left out, the least wanted first, and
//! nothing panics. Colour never says what no character says.

mod detail;
mod events;
mod node;
mod pods;
mod table;
mod text;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::Line;

pub(super) use self::text::Theme;
use self::text::fit;
use super::app::{App, Link, Place};
use crate::cli::format::{Align, Tone};

/// From this width on the QoS classes stand beside the budget of the node.
const WIDE: usize = 150;

/// Columns of the left half then.
const LEFT_HALF: u16 = 76;

/// Lines of the table of pods that other parts leave it, its heads included.
const MIN_PODS: usize = 6;

/// Lines of events on a screen of 24 lines, their heading included; a quarter of what a taller one
/// has more goes to them too.
const MIN_EVENTS: usize = 4;

/// Lines of the budgets with the stalls, and of the classes.
const BUDGETS: usize = 5;
const CLASSES: usize = 4;

/// Signals that are shown at most, those with the least headroom.
const MAX_SIGNALS: usize = 4;

/// Draws all of `area`.
pub(super) fn draw(app: &App, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let area = area.intersection(buffer.area);
    if area.is_empty() {
        return;
    }
    let mut page = Page { area, buffer, y: 0 };
    page.put(&[node::head(app, usize::from(area.width), theme)]);
    match app.is_help {
        true => page.put(&help(theme)),
        false => body(app, theme, &mut page),
    }
    page.put_last(&keys(app, theme, area.width.into()));
    if matches!(app.shown().link, Link::Away { .. }) {
        let old = Style::new().add_modifier(Modifier::DIM);
        let below = Rect {
            y: area.y.saturating_add(2),
            height: area.height.saturating_sub(3),
            ..area
        };
        page.buffer.set_style(below, old);
    }
}

/// Lines from the top down.
struct Page<'a> {
    area: Rect,
    buffer: &'a mut Buffer,
    /// The next line, from the top of the area.
    y: u16,
}

impl Page<'_> {
    fn width(&self) -> usize {
        self.area.width.into()
    }

    /// Lines that are left above the line of keys.
    fn height(&self) -> usize {
        let left = self.area.height.saturating_sub(self.y);
        usize::from(left).saturating_sub(1)
    }

    fn put(&mut self, lines: &[Line<'_>]) {
        self.put_at(0, lines);
        let n = u16::try_from(lines.len()).unwrap_or(u16::MAX);
        self.y = self.y.saturating_add(n).min(self.area.height);
    }

    /// The last line of the area, unless that is the first; over whatever did not end above it.
    fn put_last(&mut self, line: &Line<'_>) {
        let y = self.area.bottom().saturating_sub(1);
        if y > self.area.y {
            for x in self.area.left()..self.area.right() {
                self.buffer[(x, y)].reset();
            }
            put_line(self.buffer, (self.area.x, y), line, self.area.width);
        }
    }

    /// Beside what comes next: `x` columns to the right, without moving on.
    fn put_at(&mut self, x: u16, lines: &[Line<'_>]) {
        let width = self.area.width.saturating_sub(x);
        for (y, line) in (self.y..self.area.height).zip(lines) {
            let (x, y) = (self.area.x.saturating_add(x), self.area.y.saturating_add(y));
            put_line(self.buffer, (x, y), line, width);
        }
    }
}

/// One line in `width` columns, with an ellipsis at its end where it is longer.
fn put_line(buffer: &mut Buffer, (x, y): (u16, u16), line: &Line<'_>, width: u16) {
    let Some(shorter) = width.checked_sub(1) else {
        return;
    };
    if line.width() <= usize::from(width) {
        buffer.set_line(x, y, line, width);
    } else {
        // A wide character may end before the last column.
        let (end, _) = buffer.set_line(x, y, line, shorter);
        buffer.set_string(end, y, "…", Style::new());
    }
    buffer.set_style(Rect::new(x, y, width, 1), line.style);
}

fn body(app: &App, theme: Theme, page: &mut Page<'_>) {
    page.put(node::notice(app, page.width(), theme).as_slice());
    let width = page.width();
    let live = app.shown();
    match (&app.place, app.pod(), app.container()) {
        (Place::Pods, ..) => all(app, theme, page),
        (Place::Pod(_), Some(pod), _) => {
            page.put(&detail::pod(pod, app.container_row(), width, theme));
            page.put(&[Line::default()]);
            let size = (width, page.height());
            let uid = Some(&pod.entry.uid);
            page.put(&events::events(&live.events, uid, None, size, theme));
        }
        (Place::Container(..), Some(pod), Some(container)) => {
            page.put(&detail::container(pod, container, width, theme));
            page.put(&[Line::default()]);
            let size = (width, page.height());
            let (uid, name) = (Some(&pod.entry.uid), container.entry.name.as_str());
            page.put(&events::events(&live.events, uid, Some(name), size, theme));
        }
        (Place::Pod(_) | Place::Container(..), ..) => {
            let text = "it is gone: esc leads back";
            page.put(&[theme.line(Tone::Warning, text)]);
        }
    }
}

fn all(app: &App, theme: Theme, page: &mut Page<'_>) {
    let live = app.shown();
    let board = &live.board;
    let is_wide = page.width() >= WIDE;
    let parts = Parts::of(
        page.height(),
        is_wide,
        board.node.signals.len(),
        app.pods().len(),
    );
    let classes = node::classes(&board.classes, theme);
    if parts.has_budgets {
        if is_wide {
            page.put_at(LEFT_HALF, &classes);
        }
        page.put(&node::budgets(&board.node, theme));
        page.put(&[node::stalls(&board.node, theme)]);
    }
    if let Some(n_signals) = parts.n_signals {
        page.put(&node::pressure(&board.node, n_signals, theme));
    }
    if parts.has_classes {
        page.put(&classes);
    }
    let n_events = parts.n_event_lines;
    let height = page.height().saturating_sub(n_events);
    let table = pods::pods(app, page.width(), height, theme);
    let n_empty = height - table.len();
    page.put(&table);
    page.put(&vec![Line::default(); n_empty]);
    let size = (page.width(), n_events);
    page.put(&events::events(&live.events, None, None, size, theme));
}

/// Which parts of the screen about all pods there is room for, asked in this order: budgets,
/// conditions, a signal, classes, events, more signals.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    /// With the stalls, and on a wide screen with the classes beside them.
    has_budgets: bool,
    /// `None`: not even the conditions.
    n_signals: Option<usize>,
    /// Below the budgets.
    has_classes: bool,
    /// With their heading.
    n_event_lines: usize,
}

impl Parts {
    /// Of a screen with `height` lines between its first and its last.
    fn of(height: usize, is_wide: bool, n_signals: usize, n_pods: usize) -> Self {
        let mut left = height.saturating_sub(MIN_PODS);
        let mut take = |wanted: usize| {
            let is_granted = wanted <= left;
            if is_granted {
                left -= wanted;
            }
            is_granted
        };
        let has_budgets = take(BUDGETS);
        let has_conditions = take(1);
        let mut shown_signals = usize::from(n_signals > 0 && take(1));
        let has_classes = !is_wide && take(CLASSES);
        let has_events = take(MIN_EVENTS);
        while has_events && shown_signals < n_signals.min(MAX_SIGNALS) && take(1) {
            shown_signals += 1;
        }
        // What pods do not need; where they need more than there is, a quarter of it.
        let wanted = (n_pods + 1).saturating_sub(MIN_PODS);
        let more_events = left.checked_sub(wanted).unwrap_or(left / 4);
        Self {
            has_budgets,
            n_signals: has_conditions.then_some(shown_signals),
            has_classes,
            n_event_lines: match has_events {
                true => MIN_EVENTS + more_events,
                false => 0,
            },
        }
    }
}

/// The last line: what the keys do, or the filter while it is typed.
fn keys(app: &App, theme: Theme, width: usize) -> Line<'static> {
    if app.is_typing {
        let text = format!("filter: {}_   enter keeps it, esc drops it", app.filter);
        return theme.line(Tone::Heading, fit(&text, width, Align::Left));
    }
    let filter = match app.filter.is_empty() {
        true => String::new(),
        false => format!("  [filter: {}]", app.filter),
    };
    let keys = match (app.is_help, &app.place) {
        (true, _) => "any key: back".to_owned(),
        (_, Place::Pods) => format!(
            "q quit  ? help  up/down  enter details  s sort: {}  / filter  p pause{filter}",
            app.sort.as_str()
        ),
        (_, Place::Pod(_)) => "q quit  ? help  up/down  enter container  esc back  p pause".into(),
        (_, Place::Container(..)) => "q quit  ? help  esc back  p pause".into(),
    };
    let line = theme.line(Tone::Plain, fit(&keys, width, Align::Left));
    line.style(Style::new().add_modifier(Modifier::REVERSED))
}

fn help(theme: Theme) -> Vec<Line<'static>> {
    const TEXT: [&str; 22] = [
        "",
        "up, down, j, k, page up, page down, g, G   move",
        "enter, right, l                            into a pod, into a container",
        "esc, left, backspace, h                    back; drops the filter",
        "s, >, <                                    next, previous column to sort by",
        "/                                          show pods whose name has this",
        "p, space                                   pause: nothing changes until again",
        "ctrl-l                                     draw anew",
        "q, ctrl-c                                  quit",
        "",
        "THROT    share of CPU periods in which the pod had to pause",
        "MEMORY   working set: without what the kernel gives back first",
        "%LIMIT   of the nearest memory limit, the pod's or a container's; LEFT: bytes",
        "STALL    share of time in which some waited for memory / in which all did",
        "EVICT    place among those who would be evicted for memory",
        "RST, OOM restarts of containers, OOM kills",
        ">        of a class without a cgroup: stall of its worst pod",
        "",
        "!  yellow: stalls (10%), near a limit (80%), throttled (25%), threshold near",
        "!! red: stalls fully (2%), at a limit (95%), failed, OOM killed, evicting",
        "",
        "CPU is in thousandths of a CPU (250m) or whole ones; times are UTC.",
    ];
    TEXT.iter().map(|it| theme.line(Tone::Plain, *it)).collect()
}

/// Columns that a frame needs to have every column of the pods, with whole names.
pub(super) fn whole_width(app: &App) -> usize {
    pods::whole_width(app)
}

/// `area` as text: lines without spaces at their end.
pub(super) fn to_text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut line = String::new();
        let mut x = buffer.area.left();
        while x < buffer.area.right() {
            let symbol = buffer.cell((x, y)).map_or(" ", |it| it.symbol());
            line.push_str(symbol);
            // A wide character covers the cells behind it.
            let width = u16::try_from(Line::raw(symbol).width()).unwrap_or(1);
            x = x.saturating_add(width.max(1));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
