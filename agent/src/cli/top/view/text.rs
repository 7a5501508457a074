//! Pieces of lines: cells of a width, amounts, and what a value means.

use ratatui_core::style::{Color, Modifier, Style};
use ratatui_core::text::{Line, Span};

use crate::cli::format::{self, Align, NOTHING, Tone, printable};
use crate::cli::top::rows::{Room, Stall};
use crate::model::psi::StallShare;
use crate::units::{Bytes, MilliCpu};

/// Shares of stalled time from which a value is pointed out, hundredths of a percent: 10 % of some,
/// and 2 % of full, in which nothing runs. Both are arbitrary.
const SOME_STALL: u32 = 1000;
const FULL_STALL: u32 = 200;

/// Share of the CPU periods, hundredths of a percent: the alert of kubernetes-mixin has 25 % too.
const THROTTLED: u32 = 2500;

/// Percent of a memory limit: where reclaim begins to be felt, and where a kill is near. Arbitrary.
const NEAR_LIMIT: u64 = 80;
const AT_LIMIT: u64 = 95;

/// Turns meaning into the look of cells.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli::top) struct Theme {
    pub(in crate::cli::top) has_colour: bool,
}

impl Theme {
    pub(super) fn style(self, tone: Tone) -> Style {
        let style = Style::new();
        match (tone, self.has_colour) {
            (Tone::Plain, _) => style,
            (Tone::Heading, _) => style.add_modifier(Modifier::BOLD),
            (Tone::Warning, true) => style.fg(Color::Yellow),
            (Tone::Warning, false) => style.add_modifier(Modifier::BOLD),
            (Tone::Bad, true) => style.fg(Color::Red).add_modifier(Modifier::BOLD),
            (Tone::Bad, false) => style.add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
        }
    }

    pub(super) fn span(self, tone: Tone, text: impl Into<String>) -> Span<'static> {
        Span::styled(text.into(), self.style(tone))
    }

    pub(super) fn line(self, tone: Tone, text: impl Into<String>) -> Line<'static> {
        Line::from(self.span(tone, text))
    }
}

/// A value and what it means.
pub(super) type Cell = (String, Tone);

pub(super) fn plain(text: impl Into<String>) -> Cell {
    (text.into(), Tone::Plain)
}

/// `text` in exactly `width` columns, the last of them an ellipsis where it is longer. Nothing in it
/// controls the terminal.
pub(super) fn fit(text: &str, width: usize, align: Align) -> String {
    let text = printable(text);
    let whole = Span::raw(&*text).width();
    if whole <= width {
        let spaces = " ".repeat(width - whole);
        return match align {
            Align::Left => format!("{text}{spaces}"),
            Align::Right => format!("{spaces}{text}"),
        };
    }
    let (mut cut, mut used) = (String::new(), 0);
    let span = Span::raw(&*text);
    for grapheme in span.styled_graphemes(Style::new()) {
        let next = used + Span::raw(grapheme.symbol).width();
        if next + 1 > width {
            break;
        }
        cut.push_str(grapheme.symbol);
        used = next;
    }
    if used < width {
        cut.push('…');
        // A wide character may leave a column over.
        cut.extend(std::iter::repeat_n(' ', width - used - 1));
    }
    cut
}

pub(super) fn cpu(milli: Option<u64>) -> String {
    milli.map_or_else(nothing, |it| format::cpu(MilliCpu(it)))
}

pub(super) fn bytes(n: Option<u64>) -> String {
    n.map_or_else(nothing, |it| format::bytes(Bytes(it)))
}

pub(super) fn count(n: Option<u64>) -> String {
    n.map_or_else(nothing, |it| it.to_string())
}

fn nothing() -> String {
    NOTHING.to_owned()
}

/// `0%`, `0.4%`, `12%`: one digit behind the point below ten, rounded down.
pub(super) fn percent(share: StallShare) -> String {
    let tenths = share.0 / 10;
    match tenths {
        0 if share.0 == 0 => "0%".to_owned(),
        0..100 => format!("{}.{}%", tenths / 10, tenths % 10),
        _ => format!("{}%", tenths / 10),
    }
}

/// `12%/3.0%`: some and full.
pub(super) fn stall(stall: Option<Stall>) -> Cell {
    let Some(it) = stall else {
        return plain(NOTHING);
    };
    let full = it.full.map_or_else(nothing, percent);
    (format!("{}/{full}", percent(it.some)), stall_tone(&it))
}

pub(super) fn stall_tone(stall: &Stall) -> Tone {
    match stall.full {
        Some(full) if full.0 >= FULL_STALL => Tone::Bad,
        _ if stall.some.0 >= SOME_STALL => Tone::Warning,
        _ => Tone::Plain,
    }
}

pub(super) fn throttled(share: Option<StallShare>) -> Cell {
    let Some(share) = share else {
        return plain(NOTHING);
    };
    let tone = match share.0 >= THROTTLED {
        true => Tone::Warning,
        false => Tone::Plain,
    };
    (percent(share), tone)
}

/// The share of a limit that is used.
pub(super) fn room_percent(room: Option<&Room>) -> Cell {
    match room {
        Some(room) => (format!("{}%", room.percent()), room_tone(room)),
        None => plain(NOTHING),
    }
}

/// What is left of a limit.
pub(super) fn room_left(room: Option<&Room>) -> Cell {
    match room {
        Some(room) => (bytes(Some(room.left())), room_tone(room)),
        None => plain(NOTHING),
    }
}

fn room_tone(room: &Room) -> Tone {
    match room.percent() {
        AT_LIMIT.. => Tone::Bad,
        NEAR_LIMIT.. => Tone::Warning,
        _ => Tone::Plain,
    }
}

/// `[|||     ]`, `width` columns wide, with at least one bar for anything above 0.
pub(super) fn bar(permille: u64, width: usize) -> String {
    let inside = width.saturating_sub(2);
    let permille = usize::try_from(permille.min(1000)).unwrap_or(1000);
    let n_bars = (inside * permille).div_ceil(1000);
    format!("[{}{}]", "|".repeat(n_bars), " ".repeat(inside - n_bars))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_to_columns_and_not_to_characters() {
        for (text, width, expected) in [
            ("web", 5, "web  "),
            ("database", 8, "database"),
            ("database", 5, "data…"),
            ("database", 1, "…"),
            ("database", 0, ""),
            ("数据库服务", 10, "数据库服务"),
            ("数据库服务", 6, "数据… "),
            ("e\u{301}e\u{301}e\u{301}", 2, "e\u{301}…"),
            ("a\x1b[2Jb", 8, "a?[2Jb  "),
        ] {
            assert_eq!(fit(text, width, Align::Left), expected, "{text} in {width}");
        }
        assert_eq!(fit("7", 3, Align::Right), "  7");
    }

    #[test]
    fn shares_are_short() {
        for (hundredths, expected) in [
            (0, "0%"),
            (4, "0.0%"),
            (37, "0.3%"),
            (999, "9.9%"),
            (1000, "10%"),
            (10_000, "100%"),
        ] {
            assert_eq!(percent(StallShare(hundredths)), expected);
        }
    }

    #[test]
    fn a_bar_is_full_at_the_end_only() {
        for (permille, expected) in [
            (0, "[          ]"),
            (1, "[|         ]"),
            (900, "[||||||||| ]"),
            (1000, "[||||||||||]"),
            (u64::MAX, "[||||||||||]"),
        ] {
            assert_eq!(bar(permille, 12), expected, "{permille}");
        }
        assert_eq!(bar(500, 0), "[]");
    }

    #[test]
    fn without_colour_no_style_has_one() {
        let theme = Theme { has_colour: false };
        for tone in [Tone::Plain, Tone::Heading, Tone::Warning, Tone::Bad] {
            let style = theme.style(tone);
            assert_eq!((style.fg, style.bg), (None, None), "{tone:?}");
        }
        let told_apart = theme.style(Tone::Warning) != theme.style(Tone::Bad);
        assert!(told_apart, "colour is never the only difference");
    }
}
