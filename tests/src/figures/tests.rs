use super::*;

fn figures(rows: &[(&str, &str, f64)]) -> Figures {
    rows.iter()
        .map(|(family, id, value)| (Figure::new(family, id, &[]), *value))
        .collect()
}

#[track_caller]
fn check(found: &[(&str, &str, f64)], readings: &[&[(&str, &str, f64)]], expected: &[Difference]) {
    let readings: Vec<Figures> = readings.iter().map(|it| figures(it)).collect();
    let readings: Vec<&Figures> = readings.iter().collect();
    let comparison = compare(&figures(found), &readings, |_| 0.5);
    let differing: Vec<Difference> = comparison.differing.into_values().collect();
    assert_eq!(differing, expected);
}

#[test]
fn a_figure_is_right_between_the_readings_around_it() {
    let readings: &[&[_]] = &[
        &[("a", "/x", 3.0)],
        &[("a", "/x", 1.0)],
        &[("a", "/x", 2.0)],
    ];
    for good in [0.5, 1.0, 2.0, 3.0, 3.5] {
        check(&[("a", "/x", good)], readings, &[]);
    }
    for found in [0.4, 3.6] {
        let outside = Difference::Outside {
            found,
            low: 1.0,
            high: 3.0,
        };
        check(&[("a", "/x", found)], readings, &[outside]);
    }
}

#[test]
fn presence_is_compared_where_the_readings_agree_about_it() {
    let both: &[(&str, &str, f64)] = &[("a", "/x", 1.0), ("a", "/y", 1.0)];
    let x: &[(&str, &str, f64)] = &[("a", "/x", 1.0)];
    let absent = Difference::Absent {
        low: 1.0,
        high: 1.0,
    };
    check(x, &[both, both], &[absent]);
    check(both, &[x, x], &[Difference::Extra { found: 1.0 }]);
    check(x, &[both, x], &[]);
    check(both, &[both, x], &[]);
}

#[test]
fn families_of_one_side_are_left_out() {
    check(
        &[("a", "/x", 1.0), ("ours", "/x", 1.0)],
        &[&[("a", "/x", 1.0), ("theirs", "/x", 1.0)]],
        &[],
    );
}

#[test]
fn a_page_becomes_figures_of_the_cgroups_asked_for() {
    let text = "cpu{cpu=\"cpu00\",id=\"/x\",image=\"i\",pod=\"p\"} 1\n\
                cpu{cpu=\"cpu01\",id=\"/x\",image=\"i\",pod=\"p\"} 2\n\
                faults{failure_type=\"pgfault\",id=\"/x\"} 5\nfaults{id=\"/y\"} 7\nmachine 1\n";
    let page = Exposition::parse(text).expect("good text");
    let expected = Figures::from([
        (Figure::new("cpu", "/x", &[("cpu", "total")]), 3.0),
        (
            Figure::new("faults", "/x", &[("failure_type", "pgfault")]),
            5.0,
        ),
    ]);
    assert_eq!(of_page(&page, &["/x".to_owned()].into()), expected);
}

#[test]
fn a_listed_deviation_has_to_show() {
    let listed = "- {family: b, against: [files, more], how: absent, reason: it is so}\n\
                  - {family: b, against: [others], how: extra, reason: it is so}\n";
    let listed = deviations(listed, "files").expect("good text");
    assert_eq!(listed.len(), 1);
    let a = ("a", "/x", 1.0);
    let readings = figures(&[a, ("b", "/x", 1.0), ("b", "/y", 1.0)]);
    let compare = |found: &[(&str, &str, f64)]| compare(&figures(found), &[&readings], |_| 0.0);
    let deviating = compare(&[a, ("b", "/x", 1.0)]);
    settle(&deviating, &listed).expect("it is listed");
    settle(&deviating, &[]).expect_err("it is not listed");
    let same = compare(&[a, ("b", "/x", 1.0), ("b", "/y", 1.0)]);
    settle(&same, &[]).expect("nothing differs");
    settle(&same, &listed).expect_err("it does not show");
    settle(&Comparison::default(), &[]).expect_err("nothing was compared");
}

#[test]
fn the_readings_around_a_time_are_its_bracket() {
    let readings: Vec<Reading> = [1.0, 2.0, 3.0, 4.0]
        .map(|at| Reading {
            begun: at,
            ended: at + 0.5,
            figures: Figures::new(),
        })
        .into();
    let times = |from, to| {
        let found = around(&readings, from, to)?;
        Some(found.iter().map(|it| it.begun).collect::<Vec<_>>())
    };
    assert_eq!(times(2.6, 2.7), Some(vec![2.0, 3.0]));
    // One that is under way tells nothing about before.
    assert_eq!(times(2.4, 2.4), Some(vec![1.0, 2.0, 3.0]));
    assert_eq!(times(1.4, 2.0), None);
    assert_eq!(times(2.0, 4.1), None);
}
