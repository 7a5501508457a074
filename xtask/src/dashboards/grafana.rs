//! Grafana's model of a dashboard, schema 39 (Grafana 11). Which data source is asked is a variable:
//! no uid of an installation is in the file.

use serde_json::{Value, json};

use super::layout::{self, COLUMNS, Cell};
use super::source::{Color, Dashboard, Kind, Panel, Query, Scope, Threshold, Unit};

/// Tag by which the dashboards find each other.
const TAG: &str = "ballast";

/// A family that every agent has, and one that has a series for every container.
const OF_NODES: &str = "ballast_build_info";
const OF_PODS: &str = "ballast_oom_kills_total";

/// The file `NAME.json`.
pub(super) fn dashboard(name: &str, source: &Dashboard) -> Value {
    json!({
        "uid": uid(name),
        "title": format!("ballast / {}", source.title),
        "description": source.question,
        "tags": [TAG],
        "schemaVersion": 39,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables(source.scope)},
        "links": [{
            "type": "dashboards",
            "title": "ballast",
            "tags": [TAG],
            "asDropdown": true,
            "includeVars": true,
            "keepTime": true,
            "icon": "external link",
        }],
        "panels": panels(source),
    })
}

fn uid(name: &str) -> String {
    format!("ballast-{name}")
}

fn panels(source: &Dashboard) -> Vec<Value> {
    let mut panels = Vec::new();
    let mut y = 0;
    for row in &source.rows {
        let id = panels.len() + 1;
        let heading = Cell {
            x: 0,
            y,
            width: COLUMNS,
            height: 1,
        };
        panels.push(json!({
            "id": id,
            "type": "row",
            "title": row.title,
            "collapsed": false,
            "panels": [],
            "gridPos": grid_position(heading),
        }));
        y += 1;
        for (cell, it) in layout::cells(row).into_iter().zip(&row.panels) {
            let cell = Cell {
                y: y + cell.y,
                ..cell
            };
            panels.push(panel(panels.len() + 1, cell, it));
        }
        y += layout::height(row);
    }
    panels
}

fn grid_position(cell: Cell) -> Value {
    json!({"x": cell.x, "y": cell.y, "w": cell.width, "h": cell.height})
}

fn panel(id: usize, cell: Cell, source: &Panel) -> Value {
    let queries = || source.queries.iter().enumerate();
    let mut panel = json!({
        "id": id,
        "type": match source.kind {
            Kind::Stat => "stat",
            Kind::Lines | Kind::Bars => "timeseries",
            Kind::Table => "table",
        },
        "title": source.title,
        "description": source.description,
        "gridPos": grid_position(cell),
        "datasource": data_source(),
        "targets": queries().map(|(index, it)| target(source, index, it)).collect::<Vec<_>>(),
        "fieldConfig": {
            "defaults": defaults(source),
            "overrides": queries()
                .flat_map(|(index, it)| overrides(source, index, it))
                .collect::<Vec<_>>(),
        },
        "options": options(source),
    });
    if source.kind == Kind::Table {
        panel["transformations"] = transformations(source);
    }
    panel
}

fn data_source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn target(panel: &Panel, index: usize, query: &Query) -> Value {
    let is_table = panel.kind == Kind::Table;
    // A value over the whole time shown is one value; the same at every step would be a line of
    // ever other times.
    let instant = is_table || panel.kind == Kind::Stat && query.expr.contains("$__range");
    json!({
        "refId": Panel::ref_id(index),
        "datasource": data_source(),
        "expr": expression(query),
        "legendFormat": query.legend,
        "format": if is_table { "table" } else { "time_series" },
        "instant": instant,
        "range": !instant,
    })
}

/// The query as Grafana gets it: on one line, with the matchers of the variables, and with those
/// series alone that it asks for.
pub(super) fn expression(query: &Query) -> String {
    const NODE: &str = r#"cluster=~"$cluster",node=~"$node""#;
    let expr: Vec<&str> = query.expr.split_whitespace().collect();
    let expr = expr.join(" ").replace("<node>", NODE).replace(
        "<pod>",
        &format!(r#"{NODE},namespace=~"$namespace",pod=~"$pod""#),
    );
    match query.top {
        None => expr,
        // A plain topk chooses anew at every step, and shows everyone who was ever among the first.
        Some(n) => format!(
            "{expr} and topk({n}, max_over_time(({expr})[$__range:$__rate_interval] @ end()))"
        ),
    }
}

fn defaults(panel: &Panel) -> Value {
    let mut defaults = json!({
        "unit": unit(panel.unit),
        "color": {"mode": if panel.kind == Kind::Stat { "thresholds" } else { "palette-classic" }},
        "thresholds": thresholds(panel),
        "custom": custom(panel),
    });
    if panel.shows_whole_numbers() {
        defaults["decimals"] = json!(0);
    }
    for (name, end) in [("min", panel.min), ("max", panel.max)] {
        if let Some(end) = end {
            defaults[name] = json!(end);
        }
    }
    defaults
}

fn thresholds(panel: &Panel) -> Value {
    let plain = [Threshold {
        from: None,
        color: Color::Plain,
    }];
    let steps = match panel.thresholds.as_slice() {
        [] => plain.as_slice(),
        some => some,
    };
    let steps: Vec<Value> = steps
        .iter()
        .map(|it| json!({"value": it.from, "color": it.color.hex()}))
        .collect();
    json!({"mode": "absolute", "steps": steps})
}

fn custom(panel: &Panel) -> Value {
    let stacking = json!({"mode": if panel.stack { "normal" } else { "none" }, "group": "A"});
    let style = if panel.thresholds.len() > 1 {
        "dashed"
    } else {
        "off"
    };
    match panel.kind {
        Kind::Stat => json!({}),
        Kind::Table => json!({"align": "auto", "filterable": true}),
        Kind::Lines => json!({
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": if panel.stack { 40 } else { 8 },
            "showPoints": "never",
            "spanNulls": false,
            "stacking": stacking,
            "thresholdsStyle": {"mode": style},
        }),
        Kind::Bars => json!({
            "drawStyle": "bars",
            "lineWidth": 0,
            "fillOpacity": 80,
            "showPoints": "never",
            "stacking": stacking,
            "thresholdsStyle": {"mode": style},
        }),
    }
}

fn overrides(panel: &Panel, index: usize, query: &Query) -> Option<Value> {
    let mut properties = Vec::new();
    let mut set = |id: &str, value: Value| properties.push(json!({"id": id, "value": value}));
    if let Some(unit) = query.unit.map(unit) {
        set("unit", json!(unit));
        set("decimals", Value::Null);
    }
    if let Some(color) = query.color {
        // Several series of one meaning are shades of its colour.
        let mode = if query.legend.contains("{{") {
            "shades"
        } else {
            "fixed"
        };
        set("color", json!({"mode": mode, "fixedColor": color.hex()}));
    }
    if query.dashed {
        set("custom.lineStyle", json!({"fill": "dash", "dash": [8, 6]}));
        set("custom.fillOpacity", json!(0));
    }
    if query.mark {
        set("custom.drawStyle", json!("points"));
        set("custom.showPoints", json!("always"));
        set("custom.pointSize", json!(9));
    }
    if query.bar {
        set(
            "custom.cellOptions",
            json!({"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}),
        );
        set("min", json!(0));
    }
    if let Some(name) = &query.link {
        set(
            "links",
            json!([{"title": format!("Show {name}"), "url": link(panel, name)}]),
        );
    }
    let matcher = match panel.kind {
        Kind::Table => json!({"id": "byName", "options": query.legend}),
        _ => json!({"id": "byFrameRefID", "options": Panel::ref_id(index)}),
    };
    (!properties.is_empty()).then(|| json!({"matcher": matcher, "properties": properties}))
}

/// Another dashboard, with what is chosen here and what the row of the table names.
fn link(panel: &Panel, name: &str) -> String {
    let mut url = format!(
        "/d/{}?${{datasource:queryparam}}&${{cluster:queryparam}}",
        uid(name)
    );
    for label in &panel.labels {
        if matches!(label.as_str(), "node" | "namespace" | "pod") {
            url.push_str(&format!("&var-{label}=${{__data.fields.{label}}}"));
        }
    }
    url.push_str("&${__url_time_range}");
    url
}

fn options(panel: &Panel) -> Value {
    let last = json!({"calcs": ["lastNotNull"], "fields": "", "values": false});
    match panel.kind {
        Kind::Stat => json!({
            "reduceOptions": last,
            "colorMode": "value",
            "graphMode": "area",
            "textMode": "auto",
            "justifyMode": "auto",
            "orientation": "auto",
        }),
        Kind::Lines | Kind::Bars => json!({
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["max", "lastNotNull"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }),
        Kind::Table => json!({
            "showHeader": true,
            "cellHeight": "sm",
            "sortBy": [{"displayName": panel.queries[0].legend, "desc": !panel.ascending}],
        }),
    }
}

/// One row for each set of labels, with the columns in order and under their headings.
fn transformations(panel: &Panel) -> Value {
    let mut order = serde_json::Map::new();
    for label in &panel.labels {
        order.insert(label.clone(), json!(order.len()));
    }
    let mut names = serde_json::Map::new();
    for (index, query) in panel.queries.iter().enumerate() {
        // Grafana names the column of a lone query without its label.
        let column = match panel.queries.len() {
            1 => "Value".to_owned(),
            _ => format!("Value #{}", Panel::ref_id(index)),
        };
        order.insert(column.clone(), json!(order.len()));
        names.insert(column, json!(query.legend));
    }
    json!([
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {
            "excludeByName": {"Time": true},
            "indexByName": order,
            "renameByName": names,
        }},
    ])
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "short",
        Unit::Ratio => "percentunit",
        Unit::Bytes => "bytes",
        Unit::BytesPerSecond => "binBps",
        Unit::PerSecond => "suffix:/s",
        Unit::Cores => "suffix: cores",
        Unit::Seconds | Unit::Ago => "s",
    }
}

fn variables(scope: Scope) -> Vec<Value> {
    let mut variables = vec![json!({
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "refresh": 1,
    })];
    let cluster = r#"cluster=~"$cluster""#;
    let node = format!(r#"{cluster},node=~"$node""#);
    variables.push(variable("cluster", OF_NODES, ""));
    variables.push(variable("node", OF_NODES, cluster));
    if scope == Scope::Pods {
        variables.push(variable("namespace", OF_PODS, &node));
        let namespace = format!(r#"{node},namespace=~"$namespace""#);
        variables.push(variable("pod", OF_PODS, &namespace));
    }
    variables
}

/// The values that label `name` of a family has; all of them to begin with.
fn variable(name: &str, family: &str, matchers: &str) -> Value {
    let query = format!("label_values({family}{{{matchers}}}, {name})");
    json!({
        "name": name,
        "label": name,
        "type": "query",
        "datasource": data_source(),
        "definition": query,
        "query": {"query": query, "refId": name},
        "multi": true,
        "includeAll": true,
        // Also series that lack the label, as those of a Prometheus for one cluster.
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "refresh": 2,
        "sort": 1,
    })
}
