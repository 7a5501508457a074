use super::*;
use crate::cli::top::fixture::{app, crowd};

#[test]
fn an_interval_is_read_with_its_unit_and_kept_within_its_range() {
    let read = |text: &str| text.parse::<Interval>().ok().map(|it| it.0.as_millis());
    for (text, expected) in [
        ("2s", Some(2000)),
        ("2", Some(2000)),
        ("500ms", Some(500)),
        ("1m", Some(60_000)),
        ("199ms", None),
        ("61s", None),
        ("", None),
        ("s", None),
        ("-1s", None),
        ("1.5s", None),
        ("18446744073709551615m", None),
    ] {
        assert_eq!(read(text), expected, "{text}");
    }
}

#[test]
fn a_whole_frame_has_every_pod_with_its_whole_name_and_no_keys() {
    let app = app([crowd(250, 60), crowd(250, 62)]);
    let text = whole_frame(&app, view::whole_width(&app));
    for pod in app.pods() {
        assert!(text.contains(&pod.full_name()), "{}", pod.full_name());
    }
    assert!(!text.contains("quit") && !text.contains('…'));
    assert!(text.contains("OomKilledChild"), "{text}");
}
