use serde_json::json;

use super::*;

fn encoded(header: &Value, steps: &[Value]) -> Vec<u8> {
    let (mut encoder, mut bytes) = Encoder::new(header).expect("a small header");
    for step in steps {
        bytes.extend(encoder.step(step.clone()).expect("a small step"));
    }
    bytes
}

/// Of each step that can be read, and how many bytes at the end can not.
fn decoded(bytes: &[u8]) -> (Vec<Value>, usize) {
    let mut decoder = Decoder::new(bytes).expect("a recording");
    let mut steps = Vec::new();
    while let Some(step) = decoder.next_step().expect("a step") {
        steps.push(step.clone());
    }
    (steps, decoder.n_lost())
}

fn story() -> Vec<Value> {
    let pod = |uid: &str, usage: u64| json!({"facts": {"pod": {"uid": uid}}, "usage": usage});
    vec![
        json!({"pods": [pod("a", 5), pod("b", u64::MAX)], "at": 1, "low": i64::MIN}),
        json!({"pods": [pod("a", 7), pod("b", 0)], "at": 2, "low": i64::MAX}),
        json!({"pods": [pod("b", 1), pod("c", 2)], "at": null, "share": 0.25}),
        json!({"pods": [pod("c", 2), pod("b", 1), pod("b", 1)], "at": "later", "low": -3}),
        json!({"pods": [], "at": [1, [2, {}], true]}),
        json!([]),
        json!({"pods": [pod("a", 5)]}),
    ]
}

#[test]
fn what_went_in_comes_out() {
    let header = json!({"policy": {"amount": 0.1}});
    let bytes = encoded(&header, &story());
    assert_eq!(Decoder::new(&bytes).expect("whole").header(), &header);
    assert_eq!(decoded(&bytes), (story(), 0));
}

#[test]
fn a_value_deeper_than_any_snapshot_comes_out_too() {
    let deep = |n: u64| (0..60).fold(json!(n), |inner, _| json!([inner, {"in": n}]));
    let steps = [deep(1), deep(2)];
    assert_eq!(decoded(&encoded(&json!({}), &steps)), (steps.to_vec(), 0));
}

#[test]
fn a_torn_tail_loses_the_last_step_alone() {
    let story = story();
    let (last, before) = story.split_last().expect("steps");
    let whole = encoded(&json!({}), before);
    let all = encoded(&json!({}), &story);
    assert!(
        all.starts_with(&whole),
        "frames before do not depend on {last}"
    );
    for cut in whole.len()..all.len() {
        let (steps, n_lost) = decoded(all.get(..cut).expect("within"));
        assert_eq!(
            (steps.as_slice(), n_lost),
            (before, cut - whole.len()),
            "cut at {cut}"
        );
    }
}

#[test]
fn damage_never_gives_another_step() {
    let story = story();
    let bytes = encoded(&json!({}), &story);
    for at in MAGIC.len()..bytes.len() {
        let mut damaged = bytes.clone();
        if let Some(byte) = damaged.get_mut(at) {
            *byte ^= 1 << (at % 8);
        }
        if Decoder::new(&damaged).is_ok() {
            let (steps, n_lost) = decoded(&damaged);
            assert!(n_lost > 0 && story.starts_with(&steps), "byte {at}");
        }
    }
}

#[test]
fn other_files_and_versions_are_told_apart() {
    let error = |bytes: &[u8]| match Decoder::new(bytes) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    assert!(error(b"{}").contains("does not begin"));
    assert!(error(b"ballast recording 2\n").contains("version"));
    assert!(error(MAGIC).contains("header"));
}

#[test]
fn a_long_recording_begins_anew_before_it_is_too_long_to_read() {
    let noise = |seed: u64| {
        let mut state = seed;
        let text: String = (0..1 << 20)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                char::from(b'a' + u8::try_from(state >> 60).unwrap_or(0))
            })
            .collect();
        json!({ "text": text })
    };
    let steps: Vec<Value> = (0..20).map(noise).collect();
    assert_eq!(decoded(&encoded(&json!({}), &steps)), (steps, 0));
}

#[test]
fn a_step_that_is_too_large_is_left_out_and_the_next_is_not() {
    let (mut encoder, mut bytes) = Encoder::new(&json!({})).expect("a small header");
    bytes.extend(encoder.step(json!(1)).expect("a small step"));
    let huge = json!("x".repeat(MAX_FRAME_BYTES));
    assert!(matches!(
        encoder.step(huge),
        Err(RecordingError::TooLarge { .. })
    ));
    bytes.extend(encoder.step(json!(2)).expect("a small step"));
    assert_eq!(decoded(&bytes), (vec![json!(1), json!(2)], 0));
}
