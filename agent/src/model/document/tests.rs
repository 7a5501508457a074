use serde_json::json;

use super::*;

#[track_caller]
fn yaml(text: &str) -> Value {
    parse_yaml(text, Budget::default()).expect("the fixture is a document")
}

#[track_caller]
fn fault(text: &str) -> String {
    parse_yaml(text, Budget::default())
        .expect_err("the fixture is no document")
        .to_string()
}

#[test]
fn yaml_becomes_what_its_conversion_to_json_gives() {
    for (text, value) in [
        ("", json!(null)),
        ("# only a comment\n---\n...\n", json!(null)),
        (
            "a: 1\nb: [x, 0.5, true, null]\n",
            json!({"a": 1, "b": ["x", 0.5, true, null]}),
        ),
        ("1: a\ntrue: b\n", json!({"1": "a", "true": "b"})),
        ("{\"a\": {\"b\": -1}}", json!({"a": {"b": -1}})),
        (
            "x: &a {k: 1}\ny: *a\n",
            json!({"x": {"k": 1}, "y": {"k": 1}}),
        ),
        (
            "x: &a {k: 1, l: 2}\ny:\n  <<: *a\n  k: 3\n",
            json!({"x": {"k": 1, "l": 2}, "y": {"k": 3, "l": 2}}),
        ),
    ] {
        assert_eq!(yaml(text), value, "{text:?}");
    }
}

#[test]
fn a_fault_of_syntax_has_its_place() {
    assert_eq!(
        fault("a: 1\na: 2\n"),
        "line 1, column 1: the key \"a\" stands twice"
    );
    assert!(
        fault("a: [1, 2\n").starts_with("line "),
        "{}",
        fault("a: [1, 2\n")
    );
    assert!(fault("a: .nan\n").contains("finite"));
    assert!(fault("[a]: 1\n").contains("a key must be a scalar"));
}

#[test]
fn a_place_is_told_once() {
    for (text, told) in [
        (
            "a: [1, 2\nb: 3\n",
            "line 2, column 2: did not find expected ',' or ']', while parsing a flow sequence",
        ),
        (
            "a: 1\n b: 2\n",
            "line 2, column 3: mapping values are not allowed in this context",
        ),
    ] {
        assert_eq!(fault(text), told);
    }
    assert_eq!(without_places("ends at line noon"), "ends at line noon");
}

#[test]
fn directives_are_bounded() {
    let directives = |n: usize| -> String {
        let lines = (0..n).map(|i| format!("%TAG !a{i}! tag:a,2000:\n"));
        lines.chain(["---\na: 1\n".to_owned()]).collect()
    };
    assert_eq!(yaml(&directives(MAX_DIRECTIVES)), json!({"a": 1}));
    assert_eq!(
        fault(&directives(40_000)),
        "has more than 100 lines that begin with `%`"
    );
}

#[test]
fn a_stream_is_cut_at_its_markers_and_nowhere_else() {
    let text = "# head\n%YAML 1.2\n---\na: 1\n--- # next\nb: |\n  ---\n  text\n---\n# nothing\n---\nc: 1\n";
    let chunks = split_stream(text);
    let values: Vec<_> = chunks.iter().map(|chunk| yaml(chunk.text)).collect();
    assert_eq!(
        values,
        [
            json!({"a": 1}),
            json!({"b": "---\ntext\n"}),
            json!({"c": 1})
        ]
    );
    let lines: Vec<_> = chunks.iter().map(|chunk| chunk.lines_before).collect();
    assert_eq!(lines, [0, 4, 10]);
    assert!(split_stream("# nothing\n---\n").is_empty());
    assert_eq!(split_stream("--- {a: 1}").len(), 1);
    assert_eq!(split_stream("---x: 1\n---- y\n").len(), 1);
}

#[test]
fn an_alias_has_the_value_of_the_last_anchor_of_its_name_or_is_a_fault() {
    for (text, value) in [
        (
            "a: &x 1\nb: *x\nc: &x 2\nd: *x\n",
            json!({"a": 1, "b": 1, "c": 2, "d": 2}),
        ),
        (
            "a: &x 1\nb: &y 2\nc: &x 3\nd: {e: *x, f: [*y]}\n",
            json!({"a": 1, "b": 2, "c": 3, "d": {"e": 3, "f": [2]}}),
        ),
        (
            "a: &x 1\nb: &x 2\nc: &y 3\n",
            json!({"a": 1, "b": 2, "c": 3}),
        ),
        (
            "a: &x 1\nb: 'x=&x ls *x && y & '\nc: *x\n",
            json!({"a": 1, "b": "x=&x ls *x && y & ", "c": 1}),
        ),
    ] {
        assert_eq!(yaml(text), value, "{text:?}");
    }
    for (text, place) in [
        ("a: &x 1\nb: &x 2\nc: &y 3\nd: *x\n", "line 4, column 4"),
        ("- &x 1\n- &x 2\n- [*x]\n- &x 3\n", "line 3, column 4"),
        (
            "{a: &x 1, b: &y 2, c: &x 3, d: &y 4, e: *y, f: *x}",
            "line 1, column 48",
        ),
    ] {
        let right = format!("{place}: the alias *x would have the value of another anchor, ");
        assert!(fault(text).starts_with(&right), "{}", fault(text));
    }
}

#[test]
fn aliases_cannot_outgrow_the_budget() {
    let mut nodes = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..9 {
        let alias = format!("*a{}", level - 1);
        nodes.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            [alias.as_str(); 10].join(", ")
        ));
    }
    // The parser has a bound of its own, in proportion to the text; ours is absolute.
    assert!(
        fault(&nodes).contains("limit exceeded"),
        "{}",
        fault(&nodes)
    );
    let padded = format!(
        "a: &a [{}]\nb: [{}]\n",
        ["x"; 1_000].join(", "),
        ["*a"; 300].join(", ")
    );
    assert!(
        fault(&padded).contains("too many values"),
        "{}",
        fault(&padded)
    );
    let long = "y".repeat(600_000);
    let aliases = ["*long"; 100].join(", ");
    let text = format!("a: &long {long}\nb: [{aliases}]\n");
    assert!(fault(&text).contains("too much text"), "{}", fault(&text));
}

#[test]
fn deep_nesting_is_an_error() {
    let megabyte = 1 << 20;
    for text in [
        "[".repeat(megabyte),
        "{".repeat(megabyte),
        "{a: ".repeat(megabyte / 4),
        "- ".repeat(megabyte / 2),
        "? ".repeat(megabyte / 2),
        "&a ".repeat(megabyte / 3),
    ] {
        assert!(parse_yaml(&text, Budget::default()).is_err());
        assert!(parse_json_stream(&text, Budget::default()).is_err());
    }
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let right = "is nested deeper than 128 levels";
    assert!(fault(&deep).ends_with(right), "{}", fault(&deep));
}

#[test]
fn json_values_follow_each_other() {
    let values = parse_json_stream("{\"a\": 1}\n\t{\"b\": 2} ", Budget::default());
    assert_eq!(values, Ok(vec![json!({"a": 1}), json!({"b": 2})]));
    let error = parse_json_stream("{\"a\": 1}\n{\"b\" 2}", Budget::default());
    let error = error.expect_err("a colon is missing");
    assert_eq!(error.place.map(|(line, _)| line), Some(2), "{error}");
    assert!(parse_json_stream("{\"a\": 1, \"a\": 2}", Budget::default()).is_err());
}

/// Cheap generator, so that the inputs are the same on every run.
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 40).expect("24 bits fit")
}

#[test]
fn damaged_text_never_panics() {
    let text = "a: &x {b: [1, 'c', \"d\"], e: |\n  f\n}\n---\n- *x\n- <<: *x\n...\n%TAG ! x\n--- !t {g: 0x1}\n";
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for _ in 0..20_000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=next(&mut state) % 4 {
            let at = next(&mut state) % bytes.len();
            match next(&mut state) % 3 {
                0 => bytes[at] = text.as_bytes()[next(&mut state) % text.len()],
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, b" \n:-#&*!|>'\"%@`{}[]\t"[next(&mut state) % 20]),
            }
        }
        let damaged = String::from_utf8_lossy(&bytes);
        for chunk in split_stream(&damaged) {
            drop(parse_yaml(chunk.text, Budget::default()));
        }
        drop(parse_json_stream(&damaged, Budget::default()));
    }
}
