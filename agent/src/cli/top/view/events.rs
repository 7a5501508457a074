//! What happened last.

use std::collections::VecDeque;

use ratatui_core::text::Line;

use super::text::{Theme, fit};
use crate::cli::format::{Align, Tone, printable};
use crate::model::pod::PodUid;
use crate::model::record::{EventKind, EventRecord};

/// The newest events that fit into `height` lines with a heading, newest first.
///
/// `of_pod`: only of this pod; `container`: and of it only those of this container, given by its name or
/// id, or of the whole.
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
        let of = event.container.as_deref();
        let of = of.or(event.container_id.as_deref());
        of_pod.is_none_or(|uid| event.uid() == Some(uid))
            && container.is_none_or(|it| of.is_none_or(|name| name == it))
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
    let subject = event.subject();
    let whose = subject.map_or_else(String::new, |it| format!(" {it}"));
    let text = format!("{time} {}{whose}: {}", event.reason, event.message);
    let tone = match event.kind {
        EventKind::Oom => Tone::Bad,
        _ => Tone::Plain,
    };
    theme.line(tone, fit(&printable(&text), width, Align::Left))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::record::tests::oom_record;

    #[test]
    fn what_has_no_name_has_the_events_of_its_ids() {
        let mut record = oom_record(1);
        let event = &mut record.event;
        event.pod_uid = event.pod.take().map(|it| it.uid);
        (event.container, event.container_id) = (None, Some("0123456789abcdef".into()));
        let log = VecDeque::from([record]);
        let theme = Theme { has_colour: false };
        let shown = |uid: &str, container| {
            let uid = PodUid(uid.into());
            let lines = events(&log, Some(&uid), container, (60, 3), theme);
            lines.get(1).map(ToString::to_string)
        };
        let line = shown("0c4e", Some("0123456789abcdef")).unwrap_or_default();
        assert!(
            line.contains(" OomKilledChild 0c4e/0123456789ab: "),
            "{line}"
        );
        assert!(shown("0c4e", None).is_some());
        assert_eq!(shown("0c4e", Some("other")), None);
        assert_eq!(shown("other", None), None);
    }
}
