//! What a panel shows of readings that are known, by `promtool test rules`.

use std::time::Duration;

use anyhow::{Context, Result};
use ballast_tests::dashboards::{self, Window};
use ballast_tests::prometheus::{program, run};
use ballast_tests::scratch::Scratch;
use serde_json::{Value, json};

/// The query of a panel that has one, with everything chosen.
fn query(dashboard: &str, panel: &str) -> Result<String> {
    let all = dashboards::read_all()?;
    let dashboard = all.iter().find(|it| it.name == dashboard);
    let panels = dashboard.into_iter().flat_map(|it| &it.panels);
    let mut targets = panels
        .filter(|it| it.title == panel)
        .flat_map(|it| &it.targets);
    let target = targets.next().with_context(|| panel.to_owned())?;
    let window = Window {
        start: 0.0,
        end: 3600.0,
        step: Duration::from_secs(60),
        rate_interval: Duration::from_secs(120),
    };
    Ok(window.fill_in(&target.expr))
}

/// On the tenth day, of one reading every five minutes. Node m is new on the seventh.
#[cfg_attr(feature = "monitoring", test)]
fn kills_of_a_workload_are_shown_from_the_first_one_of_a_week() -> Result<()> {
    let of_workload = |node: &str, workload: &str, values: &str| {
        let labels =
            format!(r#"node="{node}",namespace="a",workload_kind="Job",workload="{workload}""#);
        json!({"series": format!("ballast_oom_workload_kills_total{{{labels}}}"), "values": values})
    };
    let series = [
        json!({"series": r#"ballast_build_info{node="n"}"#, "values": "1x2880"}),
        json!({"series": r#"ballast_build_info{node="m"}"#, "values": "_x1728 1x1152"}),
        of_workload("n", "once", "_x1728 1x1152"),
        of_workload("n", "thrice", "_x1728 1 2 3x1150"),
        of_workload("n", "again", "7x1728 8x1152"),
        of_workload("n", "away-by-now", "_x1000 2x288 _x1600"),
        of_workload("m", "once-on-a-new-node", "_x1740 1x1140"),
        of_workload("n", "long-ago", "7x2880"),
        of_workload("n", "long-ago-and-away-by-now", "5x1000 _x1880"),
        of_workload("m", "before-it-was-scraped", "_x1728 9x1152"),
    ];
    let shown = [
        ("once", 1),
        ("thrice", 3),
        ("again", 1),
        ("away-by-now", 2),
        ("once-on-a-new-node", 1),
    ];
    let shown = shown.map(|(workload, n)| {
        let labels = format!(r#"{{namespace="a",workload_kind="Job",workload="{workload}"}}"#);
        json!({"labels": labels, "value": n})
    });
    // What increase() makes of whole numbers is a little more.
    let query = query("why-killed", "By workload, in 7 days")?;
    let test = json!({
        "expr": format!("round({query})"),
        "eval_time": "10d",
        "exp_samples": shown,
    });
    run_tests(&json!([{
        "interval": "5m",
        "input_series": series,
        "promql_expr_test": [test],
    }]))
}

fn run_tests(tests: &Value) -> Result<()> {
    let scratch = Scratch::new("panels")?;
    let file = json!({"rule_files": [], "tests": tests});
    let file = scratch.write("panels.test.yaml", file.to_string())?;
    run(program("promtool").args(["test", "rules"]).arg(file))?;
    Ok(())
}
