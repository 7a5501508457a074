#![expect(
    clippy::disallowed_methods,
    reason = "golden files are read and written by the tests, on request of the environment"
)]

use std::path::Path;

use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;

use super::*;
use crate::cli::top::app::Message;
use crate::cli::top::fixture::{app, crowd, sample};
use crate::cli::top::input::Key;
use crate::cli::top::rows::Sample;

const PLAIN: Theme = Theme { has_colour: false };

fn frame(app: &App, theme: Theme, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("it has no faults");
    terminal
        .draw(|frame| draw(app, theme, frame.area(), frame.buffer_mut()))
        .expect("it has no faults");
    terminal.backend().buffer().clone()
}

fn press(app: &mut App, keys: &[Key]) {
    for key in keys {
        app.update(Message::Key(*key));
    }
}

/// Compares with `golden/NAME.txt`; with `BALLAST_UPDATE_GOLDEN` in the environment, writes it.
#[track_caller]
fn check(name: &str, app: &App, width: u16, height: u16) {
    let found = to_text(&frame(app, PLAIN, width, height));
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/cli/top/view/golden")
        .join(format!("{name}-{width}x{height}.txt"));
    if std::env::var_os("BALLAST_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &found).expect("the directory is there");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == found, "{}\n{found}", path.display());
}

#[test]
fn frames_are_as_the_golden_files_have_them() {
    let three = || app([sample(60), sample(62)]);
    let many = || app([crowd(250, 60), crowd(250, 62)]);
    for (width, height) in [(80, 24), (200, 50)] {
        check("pods", &three(), width, height);
        check("crowd", &many(), width, height);
        let mut app = three();
        press(&mut app, &[Key::Enter]);
        check("pod", &app, width, height);
        press(&mut app, &[Key::Enter]);
        check("container", &app, width, height);
        press(&mut app, &[Key::Char('?')]);
        check("help", &app, width, height);
    }
    let mut away = three();
    away.update(Message::Away {
        at: sample(64).at,
        why: "no agent listens on /run/ballast/ballast.sock".into(),
    });
    check("away", &away, 80, 24);
    check("tiny", &three(), 40, 10);
    check("none", &app([crowd(0, 60), crowd(0, 62)]), 80, 24);
}

#[test]
fn every_size_is_drawn() {
    let without_stats = |it: Sample| Sample {
        stats: Err("the agent has no statistics".into()),
        ..it
    };
    let apps = [
        app([crowd(0, 60), crowd(0, 62)]),
        app([crowd(250, 60), crowd(250, 62)]),
        app([sample(60), without_stats(sample(62))]),
    ];
    let views: [&[Key]; 5] = [
        &[],
        &[Key::End],
        &[Key::Enter],
        &[Key::Enter, Key::Enter],
        &[Key::Char('?')],
    ];
    for (mut app, keys) in apps.into_iter().zip([views; 3]) {
        for keys in keys {
            press(&mut app, keys);
            // Every width with some heights, and every height with some widths.
            for width in 1..=250 {
                for height in [1, 24] {
                    frame(&app, PLAIN, width, height);
                }
            }
            for height in 1..=80 {
                for width in [2, 80, 150] {
                    frame(&app, PLAIN, width, height);
                }
            }
            press(
                &mut app,
                &[Key::Char('?'), Key::Escape, Key::Escape, Key::Escape],
            );
            app.is_help = false;
        }
    }
}

#[test]
fn old_values_are_dim_and_a_colour_is_used_only_where_it_is_wanted() {
    let mut app = app([sample(60), sample(62)]);
    let has = |buffer: &Buffer, modifier: Modifier| {
        let cells = buffer.content();
        cells.iter().any(|it| it.modifier.contains(modifier))
    };
    assert!(!has(&frame(&app, PLAIN, 80, 24), Modifier::DIM));
    app.update(Message::Away {
        at: sample(64).at,
        why: "gone".into(),
    });
    assert!(has(&frame(&app, PLAIN, 80, 24), Modifier::DIM));

    let is_coloured = |buffer: &Buffer| {
        let plain = ratatui_core::style::Color::Reset;
        buffer
            .content()
            .iter()
            .any(|it| it.fg != plain || it.bg != plain)
    };
    assert!(!is_coloured(&frame(&app, PLAIN, 80, 24)));
    let coloured = Theme { has_colour: true };
    assert!(is_coloured(&frame(&app, coloured, 80, 24)));
}

#[test]
fn pods_keep_their_lines_and_a_usual_screen_has_every_part() {
    for height in MIN_PODS..200 {
        for n_pods in [0, 3, 250] {
            let parts = Parts::of(height, false, 9, n_pods);
            let n_lines = usize::from(parts.has_budgets) * BUDGETS
                + parts.n_signals.map_or(0, |it| it + 1)
                + usize::from(parts.has_classes) * CLASSES
                + parts.n_event_lines;
            assert!(n_lines + MIN_PODS <= height, "{height}: {parts:?}");
        }
    }
    let usual = Parts::of(22, false, 9, 3);
    assert!(usual.has_budgets && usual.has_classes && usual.n_event_lines > 0);
    assert!(usual.n_signals > Some(0), "{usual:?}");
    let low = Parts::of(MIN_PODS, false, 9, 3);
    assert!(!low.has_budgets && !low.has_classes && low.n_signals.is_none());
}
