//! What promtool says about the pages whose names are not ours.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result};
use ballast_tests::prometheus;

/// Pages with every family, as the tests of the agent pin them.
const PAGES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../agent/src/observe/stats/tests"
);

/// Names of cAdvisor that Prometheus would have otherwise.
const KNOWN: &str = include_str!("../data/monitoring/cadvisor_findings.txt");

#[cfg_attr(feature = "monitoring", test)]
fn promtool_finds_what_is_known_of_foreign_names_and_nothing_else() -> Result<()> {
    assert_eq!(
        findings("cadvisor.prom")?,
        KNOWN.lines().map(str::to_owned).collect()
    );
    assert_eq!(findings("resource.prom")?, BTreeSet::new());
    Ok(())
}

fn findings(page: &str) -> Result<BTreeSet<String>> {
    let path = Path::new(PAGES).join(page);
    let page = File::open(&path).with_context(|| format!("open {}", path.display()))?;
    let mut promtool = prometheus::program("promtool");
    let output = promtool.args(["check", "metrics"]).stdin(page).output();
    let output = output.with_context(|| format!("run {promtool:?}"))?;
    let text = String::from_utf8(output.stderr).context("what promtool says")?;
    Ok(text.lines().map(str::to_owned).collect())
}
