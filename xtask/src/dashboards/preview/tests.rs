//! What is recorded is what is seen.

use super::*;

const SOURCE: &str = r#"
title: Test
question: Is it drawn?
scope: nodes
rows:
  - title: Everything
    height: 8
    panels:
      - {title: Big, description: A number., kind: stat, unit: count, width: 6, thresholds: [good, 5 full],
         queries: [{expr: a, legend: a}]}
      - {title: Over time, description: A line., kind: lines, unit: ratio, width: 6,
         queries: [{expr: a, legend: "of {{pod}}", color: some}]}
      - {title: Rows, description: A table., kind: table, unit: bytes, width: 6, labels: [pod],
         queries: [{expr: a, legend: Size, bar: true}]}
      - {title: Nothing, description: No answer., kind: bars, unit: count, width: 6,
         queries: [{expr: a, legend: a}]}
"#;

const RECORDING: &str = r#"{"start": 1000000000, "step": 10, "panels": {
    "Big": {"A": [{"labels": {}, "values": [7.4]}]},
    "Over time": {"A": [{"labels": {"pod": "<web>"}, "values": [0.1, null, 0.2, 0.3]}]},
    "Rows": {"A": [{"labels": {"pod": "small"}, "values": [1024]},
                   {"labels": {"pod": "large"}, "values": [4096]}]}
}}"#;

#[test]
fn a_picture_shows_what_was_recorded() -> Result<()> {
    let dashboard = Dashboard::parse(SOURCE)?;
    let picture = draw(&dashboard, &Recording::parse(RECORDING)?)?;
    for expected in [
        "ballast / Test",
        "2001-09-09 01:46:40 to 01:47:10 UTC",
        // Past its bound, without half an event.
        r##"fill="#e02f44" font-weight="600" text-anchor="middle">7</text>"##,
        "of &lt;web&gt;",
        ">30%<",
        ">4 KiB<",
        ">No data<",
    ] {
        assert!(picture.contains(expected), "{expected}\n{picture}");
    }
    let (large, small) = (picture.find(">large<"), picture.find(">small<"));
    assert!(large < small, "the most comes first");
    // A gap is no line: one point alone, then two joined.
    assert_eq!(picture.matches("<circle").count(), 1);
    Ok(())
}
