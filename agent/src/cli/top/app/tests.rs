use super::*;
use crate::cli::top::fixture::{app, crowd, sample};
use crate::cli::top::rows::SortKey;

fn press(app: &mut App, keys: &[Key]) {
    for key in keys {
        app.update(Message::Key(*key));
    }
}

fn text(text: &str) -> Vec<Key> {
    text.chars().map(Key::Char).collect()
}

fn first(app: &App) -> String {
    app.pods()[0].full_name()
}

fn chosen(app: &App) -> String {
    app.pods()[app.row()].full_name()
}

#[test]
fn the_cursor_stays_on_its_pod_wherever_that_is_sorted_to() {
    let mut app = app([crowd(40, 60), crowd(40, 62)]);
    assert_eq!(chosen(&app), first(&app), "nobody has moved yet");
    press(&mut app, &[Key::Down, Key::Down]);
    let pod = chosen(&app);
    for _ in SortKey::ALL {
        press(&mut app, &[Key::Char('s')]);
        assert_eq!(chosen(&app), pod, "{:?}", app.sort);
    }
    assert_eq!(app.sort, SortKey::Cpu, "once around");
    press(&mut app, &[Key::Char('<')]);
    assert_eq!(app.sort, SortKey::Name);
}

#[test]
fn the_cursor_stays_within_the_pods_there_are() {
    let mut app = app([crowd(40, 60), crowd(40, 62)]);
    press(&mut app, &[Key::End]);
    assert_eq!(app.row(), 39);
    app.update(Message::Sample(Box::new(crowd(3, 64))));
    assert!(app.row() < 3);
    app.update(Message::Sample(Box::new(crowd(0, 66))));
    press(&mut app, &[Key::Down, Key::PageDown, Key::Up, Key::Enter]);
    assert_eq!((app.row(), &app.place), (0, &Place::Pods));
}

#[test]
fn a_filter_shows_the_pods_whose_name_has_it() {
    let mut app = app([crowd(40, 60), crowd(40, 62)]);
    press(&mut app, &[Key::Char('/')]);
    press(&mut app, &text("TEAM-1/pod-1"));
    let names: Vec<String> = app.pods().iter().map(|it| it.full_name()).collect();
    assert!(!names.is_empty() && names.len() < 10, "{names:?}");
    assert!(names.iter().all(|it| it.starts_with("team-1/pod-1")));
    // Keys are text now: q and p do nothing else.
    press(&mut app, &text("qp"));
    assert!(!app.is_over && !app.is_paused() && app.pods().is_empty());
    press(&mut app, &[Key::Backspace, Key::Backspace, Key::Enter]);
    assert_eq!(app.pods().len(), names.len());
    press(&mut app, &[Key::Escape]);
    assert_eq!(app.pods().len(), 40);
}

#[test]
fn one_goes_into_a_pod_and_its_container_and_back() {
    let mut app = app([sample(60), sample(62)]);
    press(&mut app, &[Key::Char('/')]);
    press(&mut app, &text("database"));
    press(&mut app, &[Key::Enter, Key::Enter, Key::Down, Key::Enter]);
    let name = app.container().map(|it| it.entry.name.clone());
    assert_eq!(
        name.as_deref(),
        Some("main"),
        "the second of its containers"
    );
    press(&mut app, &[Key::Escape]);
    assert!(app.container().is_none() && app.pod().is_some());
    press(&mut app, &[Key::Escape]);
    assert_eq!(app.place, Place::Pods);
}

#[test]
fn a_pod_that_goes_leaves_its_screen_and_not_the_program() {
    let mut app = app([sample(60), sample(62)]);
    press(&mut app, &[Key::Enter]);
    app.update(Message::Sample(Box::new(crowd(2, 64))));
    assert!(app.pod().is_none() && !app.is_over);
    press(&mut app, &[Key::Down, Key::Enter, Key::Escape]);
    assert_eq!(app.place, Place::Pods);
}

#[test]
fn a_pause_keeps_what_is_shown_and_its_end_shows_what_came() {
    let mut app = app([crowd(4, 60), crowd(4, 62)]);
    let before = app.shown().events.len();
    press(&mut app, &[Key::Char('p')]);
    app.update(Message::Sample(Box::new(crowd(9, 64))));
    let record = crate::model::record::tests::oom_record(9);
    app.update(Message::Event(Box::new(record)));
    assert_eq!((app.pods().len(), app.shown().events.len()), (4, before));
    press(&mut app, &[Key::Char('p')]);
    assert_eq!(
        (app.pods().len(), app.shown().events.len()),
        (9, before + 1)
    );
}

#[test]
fn an_agent_that_is_away_leaves_its_last_values_and_comes_back() {
    let mut app = app([sample(60), sample(62)]);
    let away = |second, why: &str| Message::Away {
        at: sample(second).at,
        why: why.into(),
    };
    app.update(away(64, "first"));
    app.update(away(66, "second"));
    let expected = Link::Away {
        since: sample(64).at,
        why: "second".into(),
    };
    assert_eq!(app.shown().link, expected);
    assert_eq!(app.pods().len(), 3);
    app.update(Message::Sample(Box::new(sample(68))));
    assert_eq!(app.shown().link, Link::Live);
    assert!(app.pods()[0].activity.cpu.is_some(), "rates span the gap");
}

#[test]
fn the_same_sweep_twice_keeps_its_rates() {
    let mut app = app([sample(60), sample(62)]);
    let rate = app.pods()[0].activity.cpu;
    assert!(rate.is_some());
    app.update(Message::Sample(Box::new(sample(62))));
    assert_eq!(app.pods()[0].activity.cpu, rate);
}

#[test]
fn old_events_go_when_there_are_many() {
    let mut app = app([sample(60), sample(62)]);
    for sequence in 0..1000 {
        let record = crate::model::record::tests::oom_record(sequence);
        app.update(Message::Event(Box::new(record)));
    }
    let events = &app.shown().events;
    assert_eq!(events.len(), MAX_EVENTS);
    assert_eq!(events.back().map(|it| it.sequence), Some(999));
}

#[test]
fn every_way_out_ends_it() {
    for message in [
        Message::Key(Key::Char('q')),
        Message::Key(Key::Interrupt),
        Message::Stop,
    ] {
        let mut app = app([sample(60), sample(62)]);
        press(&mut app, &[Key::Char('p'), Key::Enter]);
        let text = format!("{message:?}");
        app.update(message);
        assert!(app.is_over, "{text}");
    }
    let mut app = app([sample(60), sample(62)]);
    press(&mut app, &[Key::Char('/'), Key::Interrupt]);
    assert!(app.is_over, "also while a filter is typed");
}
