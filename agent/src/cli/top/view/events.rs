//! What happened last.

use std::collections::VecDeque;

use ratatui_core::text::Line;

use super::text::{Theme, fit};
use crate::cli::format::{Align, Tone, printable};
use crate::model::pod::PodUid;
use crate::model::record::{EventKind, EventRecord};

/// The newest events that fit into `height` lines with a heading, newest first.
///
/// `of_pod`: only of this pod; `container`: and of it only those of this container or of the whole.
pub(super) fn events(
    events: &VecDeque<EventRecord>,
    of_pod: Option<&PodUid>,
    container: Option<&str>,
    (width, height): (usize, usize),
    theme: Theme,
) -> Vec<Line<'static>> {
    let Some(n_shown) = height.checked_sub(1) else {
        return Vec::new();
    };
    let is_wanted = |it: &&EventRecord| {
        let event = &it.event;
        of_pod.is_none_or(|uid| event.pod.as_ref().is_some_and(|pod| pod.uid == *uid))
            && container.is_none_or(|it| event.container.as_deref().is_none_or(|name| name == it))
    };
    let newest = events.iter().rev().filter(is_wanted).take(n_shown);
    let mut lines: Vec<Line<'static>> = newest.map(|it| line(it, width, theme)).collect();
    let head = match lines.is_empty() {
        true => "EVENTS  none so far",
        false => "EVENTS",
    };
    lines.insert(0, theme.line(Tone::Heading, fit(head, width, Align::Left)));
    lines
}

fn line(record: &EventRecord, width: usize, theme: Theme) -> Line<'static> {
    let event = &record.event;
    let time = event.time.time_of_day();
    let time = time.get(..8).unwrap_or_default();
    let whose = match (&event.pod, &event.container) {
        (Some(pod), Some(container)) => format!(" {pod}/{container}"),
        (Some(pod), None) => format!(" {pod}"),
        (None, _) => String::new(),
    };
    let text = format!("{time} {}{whose}: {}", event.reason, event.message);
    let tone = match event.kind {
        EventKind::Oom => Tone::Bad,
        _ => Tone::Plain,
    };
    theme.line(tone, fit(&printable(&text), width, Align::Left))
}
