//! The rules as a resource of the Prometheus operator.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Relative to the root of the checkout. Its groups are written, the rest is by hand.
pub(super) const MANIFEST: &str = "deploy/monitoring.yaml";

const RULES: [&str; 2] = ["dashboards/rules.yaml", "dashboards/alerts.yaml"];

/// The line of the manifest after which the groups come; the same in a file of rules, less
/// indentation.
const GROUPS: &str = "groups:";

/// The manifest with the groups of all rules.
pub(super) fn manifest(root: &Path) -> Result<String> {
    let (mut text, _) = split(&read(root, MANIFEST)?, MANIFEST)?;
    for name in RULES {
        let (_, groups) = split(&read(root, name)?, name)?;
        for line in groups.lines() {
            if !line.is_empty() {
                text.push_str("  ");
                text.push_str(line);
            }
            text.push('\n');
        }
    }
    Ok(text)
}

fn read(root: &Path, name: &str) -> Result<String> {
    fs::read_to_string(root.join(name)).with_context(|| format!("read {name}"))
}

/// What comes up to the line with the groups, and what comes after.
fn split(text: &str, name: &str) -> Result<(String, String)> {
    let lines: Vec<_> = text.split_inclusive('\n').collect();
    let at = lines.iter().position(|it| it.trim() == GROUPS);
    let at = at.with_context(|| format!("{name} has no line {GROUPS:?}"))?;
    let (head, groups) = lines.split_at(at + 1);
    Ok((head.concat(), groups.concat()))
}
