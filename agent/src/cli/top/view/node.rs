//! The head of the screen: the node, what it is short of, and the QoS classes.

use ratatui_core::style::{Modifier, Style};
use ratatui_core::text::{Line, Span};

use super::pods;
use super::text::{Theme, bar, bytes, count, cpu, fit, percent, stall, stall_tone};
use crate::cli::format::{self, Align, NOTHING, Tone};
use crate::cli::pressure::amount;
use crate::cli::top::app::{App, Link};
use crate::cli::top::rows::{Budget, ClassRow, Headroom, NodeRow, Stall};
use crate::model::status::SignalStatus;

/// Headroom below which a signal is pointed out, thousandths. Arbitrary.
const LITTLE: u64 = 100;

/// Columns of the bar of a signal, its brackets included.
const BAR: usize = 16;

/// Who, since when, and whether what is shown is what is.
pub(super) fn head(app: &App, width: usize, theme: Theme) -> Line<'static> {
    let live = app.shown();
    let (node, at) = (&live.board.node, live.board.at);
    let up = format::age(node.started_at.until(at));
    let left = format!(
        "{}  {} mode, up {up}, {}",
        node.name,
        node.mode,
        format::count(u64::try_from(live.board.pods.len()).unwrap_or(0), "pod"),
    );
    let clock = at.time_of_day();
    let clock = clock.get(..8).unwrap_or_default();
    let (right, tone) = match &live.link {
        Link::Away { since, .. } => {
            let since = since.time_of_day();
            let since = since.get(..8).unwrap_or_default();
            (format!("AGENT AWAY since {since}"), Tone::Bad)
        }
        Link::Live if app.is_paused() => (format!("PAUSED {clock}"), Tone::Warning),
        Link::Live => {
            let every = app.interval.as_secs_f64();
            (format!("every {every} s  {clock} UTC"), Tone::Plain)
        }
    };
    let right_width = Span::raw(&*right).width().min(width);
    let left_width = width.saturating_sub(right_width + 1);
    let mut spans = Vec::new();
    if left_width > 0 {
        spans.push(theme.span(Tone::Heading, fit(&left, left_width, Align::Left)));
        spans.push(Span::raw(" "));
    }
    let right = fit(&right, right_width, Align::Left);
    spans.push(theme.span(tone, right));
    Line::from(spans)
}

/// Why the screen is not what it should be.
pub(super) fn notice(app: &App, width: usize, theme: Theme) -> Option<Line<'static>> {
    let live = app.shown();
    let (text, tone) = match (&live.link, &live.board.no_stats) {
        (Link::Away { why, .. }, _) => (why, Tone::Bad),
        (Link::Live, Some(why)) => (why, Tone::Warning),
        (Link::Live, None) => return None,
    };
    Some(theme.line(tone, fit(text, width, Align::Left)))
}

/// The budget of each resource.
pub(super) fn budgets(node: &NodeRow, theme: Theme) -> Vec<Line<'static>> {
    let heads = [
        "",
        "NODE USES",
        "PODS USE",
        "REQUESTED",
        "ALLOCATABLE",
        "CAPACITY",
    ];
    let mut lines = vec![row_of(heads.map(str::to_owned), theme, Tone::Heading)];
    for budget in &node.budgets {
        lines.push(row_of(budget_cells(budget), theme, Tone::Plain));
    }
    lines
}

fn budget_cells(budget: &Budget) -> [String; 6] {
    let show = |n: Option<u64>| match budget.resource {
        "cpu" => cpu(n),
        "memory" => bytes(n),
        _ => count(n),
    };
    let amounts = &budget.amounts;
    let requested = show(amounts.requested);
    let share = amounts.requested.zip(amounts.allocatable);
    let requested = match share.and_then(|(part, whole)| format::percent(part, whole)) {
        Some(percent) => format!("{requested} {percent:>3}%"),
        None => requested,
    };
    [
        budget.resource.to_owned(),
        show(budget.used),
        show(budget.used_by_pods),
        requested,
        show(amounts.allocatable),
        show(Some(amounts.capacity)),
    ]
}

/// Six columns: a name, and five amounts.
fn row_of(cells: [String; 6], theme: Theme, tone: Tone) -> Line<'static> {
    const WIDTHS: [usize; 6] = [8, 10, 10, 14, 12, 10];
    let mut spans = Vec::new();
    for (i, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        let (align, tone) = match i {
            0 => (Align::Left, Tone::Heading),
            _ => (Align::Right, tone),
        };
        spans.push(theme.span(tone, fit(cell, width, align)));
    }
    Line::from(spans)
}

/// `STALLED  cpu 1.2% some 0% full  memory ...`.
pub(super) fn stalls(node: &NodeRow, theme: Theme) -> Line<'static> {
    let mut spans = vec![theme.span(Tone::Heading, "STALLED ")];
    let stalls = &node.stalls;
    for (name, stall) in [
        ("cpu", stalls.cpu),
        ("memory", stalls.memory),
        ("io", stalls.io),
    ] {
        let (text, tone) = match stall {
            Some(stall) => (stall_words(&stall), stall_tone(&stall)),
            None => (NOTHING.to_owned(), Tone::Plain),
        };
        spans.push(Span::raw(format!(" {name} ")));
        spans.push(theme.span(tone, text));
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn stall_words(stall: &Stall) -> String {
    let some = percent(stall.some);
    match stall.full {
        Some(full) => format!("{some} some {} full", percent(full)),
        None => format!("{some} some"),
    }
}

/// The conditions and the stages of relief, then the `n_signals` signals with the least headroom.
pub(super) fn pressure(node: &NodeRow, n_signals: usize, theme: Theme) -> Vec<Line<'static>> {
    let conditions: Vec<&str> = node.conditions.iter().map(|it| it.as_str()).collect();
    let (text, tone) = match conditions.as_slice() {
        [] => ("no condition".to_owned(), Tone::Plain),
        some => (some.join(", "), Tone::Bad),
    };
    let mut spans = vec![
        theme.span(Tone::Heading, "PRESSURE "),
        theme.span(tone, text),
    ];
    if !node.stages.is_empty() {
        let stages: Vec<&str> = node.stages.iter().map(|it| it.as_str()).collect();
        let text = format!("  relief: {}", stages.join(", "));
        spans.push(theme.span(Tone::Warning, text));
    }
    let mut lines = vec![Line::from(spans)];
    let signals = node.signals.iter().take(n_signals);
    lines.extend(signals.map(|it| signal_line(it, theme)));
    lines
}

fn signal_line(status: &SignalStatus, theme: Theme) -> Line<'static> {
    let signal = status.signal;
    let name = fit(signal.as_str(), 27, Align::Left);
    let Some(room) = Headroom::of(status) else {
        let text = format!("!  {name} not known");
        return theme.line(Tone::Warning, text);
    };
    let (mark, tone) = match (room.is_met, room.is_hard) {
        (true, true) => ("!!", Tone::Bad),
        (true, false) => ("! ", Tone::Warning),
        (false, _) if room.permille < LITTLE => ("! ", Tone::Warning),
        (false, _) => ("  ", Tone::Plain),
    };
    let kind = match room.is_hard {
        true => "hard",
        false => "soft",
    };
    let met = if room.is_met { " MET" } else { "" };
    let text = format!(
        "{} left, {kind} {}{met}",
        amount(signal, Some(room.available)),
        amount(signal, Some(room.threshold)),
    );
    Line::from(vec![
        theme.span(tone, format!("{mark} {name} ")),
        theme.span(tone, bar(room.permille, BAR)),
        Span::raw(" "),
        theme.span(tone, text),
    ])
}

/// The classes with what they use.
pub(super) fn classes(classes: &[ClassRow], theme: Theme) -> Vec<Line<'static>> {
    const WIDTHS: [usize; 7] = [13, 5, 8, 9, 12, 12, 12];
    let heads = [
        "QOS",
        "PODS",
        "CPU",
        "MEMORY",
        "CPU STALL",
        "MEM STALL",
        "IO STALL",
    ];
    let underlined = Style::new().add_modifier(Modifier::UNDERLINED);
    let row = |cells: Vec<(String, Tone)>| {
        let mut spans = Vec::new();
        for (i, ((text, tone), width)) in cells.into_iter().zip(WIDTHS).enumerate() {
            let align = if i == 0 { Align::Left } else { Align::Right };
            spans.push(theme.span(tone, fit(&text, width, align)));
        }
        Line::from(spans)
    };
    let heads = heads.map(|it| (it.to_owned(), Tone::Heading));
    let mut lines = vec![row(heads.to_vec()).style(underlined)];
    for class in classes {
        let activity = &class.activity;
        let of = |it: Option<Stall>| {
            let (text, tone) = stall(it);
            match class.is_sum && it.is_some() {
                // Of its worst pod: the class stalls at least as long.
                true => (format!(">{text}"), tone),
                false => (text, tone),
            }
        };
        lines.push(row(vec![
            (
                format!("{} {}", pods::short_class(class.class), class.class),
                Tone::Plain,
            ),
            (class.n_pods.to_string(), Tone::Plain),
            (cpu(activity.cpu), Tone::Plain),
            (bytes(activity.memory), Tone::Plain),
            of(activity.stalls.cpu),
            of(activity.stalls.memory),
            of(activity.stalls.io),
        ]));
    }
    lines
}
