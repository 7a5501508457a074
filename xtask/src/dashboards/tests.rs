//! What Grafana needs of a file to show it, and what this project asks of a dashboard.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

const QUESTIONS: [&str; 9] = [
    "agent",
    "evictions",
    "fleet",
    "memory-quality",
    "placement",
    "pressure",
    "reconcile",
    "throttling",
    "why-killed",
];

fn dashboards() -> BTreeMap<String, Value> {
    let sources = read(&workspace::root().join(DIRECTORY).join("source")).expect("they are right");
    sources
        .iter()
        .map(|(name, it)| (name.clone(), grafana::dashboard(name, it)))
        .collect()
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn number(value: &Value, field: &str) -> u64 {
    value["gridPos"][field].as_u64().expect("a number")
}

#[test]
fn there_is_a_dashboard_for_each_question() {
    let names: Vec<_> = dashboards().into_keys().collect();
    assert_eq!(names, QUESTIONS);
}

#[test]
fn generated_files_are_up_to_date() {
    let stale = all_stale(&workspace::root()).expect("sources are right");
    assert!(stale.is_empty(), "{stale:?}: run cargo xtask dashboards");
}

#[test]
fn identifiers_are_unique_and_short_enough() {
    let mut uids = BTreeSet::new();
    for (name, dashboard) in dashboards() {
        let uid = text(&dashboard, "uid").to_owned();
        // Grafana takes no longer ones.
        assert!(!uid.is_empty() && uid.len() <= 40, "{name}");
        assert!(uids.insert(uid), "{name}");
        let mut ids = BTreeSet::new();
        for panel in list(&dashboard, "panels") {
            assert!(ids.insert(panel["id"].as_u64()), "{name}: {}", panel["id"]);
        }
    }
}

#[test]
fn panels_lie_on_the_grid_and_none_covers_another() {
    for (name, dashboard) in dashboards() {
        let mut taken = BTreeSet::new();
        for panel in list(&dashboard, "panels") {
            let (x, y) = (number(panel, "x"), number(panel, "y"));
            let (w, h) = (number(panel, "w"), number(panel, "h"));
            assert!(w > 0 && h > 0 && x + w <= 24, "{name}: {}", panel["title"]);
            for place in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(place), "{name}: {}", panel["title"]);
            }
        }
    }
}

#[test]
fn every_panel_asks_something_and_says_what_it_shows() {
    for (name, dashboard) in dashboards() {
        let panels = list(&dashboard, "panels");
        for panel in panels.iter().filter(|it| it["type"] != "row") {
            let at = format!("{name}: {}", panel["title"]);
            assert!(text(panel, "description").len() > 40, "{at}");
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{at}");
            let mut refs = BTreeSet::new();
            for target in list(panel, "targets") {
                assert!(refs.insert(text(target, "refId")), "{at}");
                assert!(!text(target, "expr").is_empty(), "{at}");
                assert_eq!(target["datasource"], panel["datasource"], "{at}");
            }
            assert!(!refs.is_empty(), "{at}");
        }
    }
}

#[test]
fn every_variable_that_is_used_is_defined() {
    for (name, dashboard) in dashboards() {
        let mut defined: BTreeSet<String> = list(&dashboard["templating"], "list")
            .iter()
            .map(|it| text(it, "name").to_owned())
            .collect();
        assert!(
            defined.contains("datasource") && defined.contains("node"),
            "{name}"
        );
        // Grafana's own.
        for it in [
            "__all",
            "__range",
            "__rate_interval",
            "__url_time_range",
            "__data",
        ] {
            defined.insert(it.to_owned());
        }
        for used in variables(&dashboard.to_string()) {
            assert!(defined.contains(used), "{name}: ${used}");
        }
    }
}

/// Names after a dollar sign, as in `$node`, `${node:queryparam}` and `${__data.fields.node}`.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('$').map(|(at, _)| {
        let rest = text[at + 1..].trim_start_matches('{');
        let end = rest.find(|it: char| !it.is_alphanumeric() && it != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[test]
fn what_is_filtered_at_the_top_is_filtered_in_every_query() {
    for (name, dashboard) in dashboards() {
        for panel in list(&dashboard, "panels") {
            for target in list(panel, "targets") {
                let expr = text(target, "expr");
                let at = format!("{name}: {}: {expr}", panel["title"]);
                for selector in expr.split('{').skip(1) {
                    assert!(selector.contains(r#"cluster=~"$cluster""#), "{at}");
                }
                assert_eq!(expr.matches('(').count(), expr.matches(')').count(), "{at}");
                assert!(!expr.contains('<') || expr.contains("< "), "{at}");
            }
        }
    }
}

fn parse(panel: &str) -> String {
    let source = format!(
        "{{title: t, question: q, scope: nodes, rows: [{{title: r, height: 8, panels: [{panel}]}}]}}"
    );
    match Dashboard::parse(&source) {
        Ok(_) => "fine".to_owned(),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn a_source_that_breaks_a_rule_is_refused() {
    let panel = |width, fields: &str, query: &str| {
        parse(&format!(
            "{{title: p, description: A number., unit: count, width: {width}, {fields}, \
             queries: [{{legend: l, {query}}}]}}"
        ))
    };
    let good = "expr: x";
    for (found, expected) in [
        (panel(24, "kind: lines", good), "fine"),
        (panel(12, "kind: lines", good), "row `r` is not filled"),
        (
            panel(24, "kind: table", good),
            "panel `p`: labels are of tables, and each has some",
        ),
        (
            panel(24, "kind: lines", "expr: 'rate(x[5m])'"),
            "panel `p`: a rate without a unit: rate(x[5m])",
        ),
        (
            panel(24, "kind: lines", "expr: 'avg by (node) (x)'"),
            "panel `p`: an average hides the tail",
        ),
        (
            panel(24, "kind: lines", "expr: x, top: 13"),
            "panel `p`: more than 12 lines",
        ),
        (
            panel(24, "kind: stat, thresholds: [1 good]", good),
            "panel `p`: thresholds: first a colour, then bounds with theirs, rising",
        ),
    ] {
        assert_eq!(found, expected);
    }
}

#[test]
fn the_top_of_a_query_is_chosen_once_for_the_time_shown() {
    let query: source::Query =
        serde_yaml_ng::from_str("{expr: 'sum by (pod) (x{<pod>})', legend: '{{pod}}', top: 3}")
            .expect("a query");
    let sum = r#"sum by (pod) (x{cluster=~"$cluster",node=~"$node",namespace=~"$namespace",pod=~"$pod"})"#;
    assert_eq!(
        grafana::expression(&query),
        format!("{sum} and topk(3, max_over_time(({sum})[$__range:$__rate_interval] @ end()))")
    );
}

#[test]
fn a_family_is_another_one_with_another_type_unit_or_label() {
    let row = |cells: &str| format!("| name |\n| --- |\n| `a_total` | {cells} | of a panel |\n");
    let then = row("counter |  | `node`, `pod` | fixed | Words.");
    let differs = |now: &str| families(&then) != families(&row(now));
    assert_eq!(families(&then).len(), 1);
    assert!(!differs(
        "counter |  | `node`, `pod` | per pod | Other words."
    ));
    for now in [
        "gauge |  | `node`, `pod` | fixed | Words.",
        "counter | s | `node`, `pod` | fixed | Words.",
        "counter |  | `pod` | fixed | Words.",
    ] {
        assert!(differs(now), "{now}");
    }
}
