//! What people read beside an alert: its page, its row in the README, and the manifest for the
//! operator, each held against the rules and the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, ensure};
use ballast::cli::Cli;
use ballast_tests::prometheus::Prometheus;
use ballast_tests::scratch::Scratch;
use clap::Parser;
use serde_yaml_ng::Value;

use crate::rules::{self, ALERTS, RECORDED};

const PAGES: &str = "dashboards/runbooks";

/// Every page has these, in this order.
const SECTIONS: [&str; 5] = [
    "What it means",
    "Is it harmful now",
    "Look",
    "Fix",
    "Prevent",
];

/// Texts of pages by their names, `.md` left out.
fn pages() -> Result<BTreeMap<String, String>> {
    let directory = rules::path(PAGES);
    let mut pages = BTreeMap::new();
    for entry in fs::read_dir(&directory).with_context(|| format!("read {PAGES}"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|it| it.to_str());
        let name = name.with_context(|| format!("{} has no name", path.display()))?;
        pages.insert(name.to_owned(), fs::read_to_string(&path)?);
    }
    Ok(pages)
}

/// Lines in the fenced blocks of a language, each with the name of its page.
fn blocks(pages: &BTreeMap<String, String>, language: &str) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (name, text) in pages {
        let mut block = None;
        for line in text.lines() {
            match (line.strip_prefix("```"), block) {
                (Some(_), Some(_)) => block = None,
                (Some(it), None) => block = Some(it),
                (None, Some(it)) if it == language => lines.push((name.clone(), line.to_owned())),
                (None, _) => {}
            }
        }
    }
    lines
}

#[cfg_attr(feature = "monitoring", test)]
fn every_alert_has_a_page_and_every_page_an_alert() -> Result<()> {
    let mut pages = pages()?;
    for alert in rules::alerts()? {
        let name = alert.name();
        let page = pages.remove(name);
        let page = page.with_context(|| format!("{name} has no page in {PAGES}"))?;
        let url = alert.annotations.get("runbook_url").map(String::as_str);
        ensure!(
            url == Some(&format!("runbooks/{name}.md")),
            "{name}: {url:?}"
        );
        for needed in ["summary", "description"] {
            ensure!(
                alert.annotations.contains_key(needed),
                "{name}: no {needed}"
            );
        }
        let severity = alert.severity();
        ensure!(
            ["critical", "warning", "info"].contains(&severity),
            "{name}: severity {severity:?}"
        );
        let head = format!("# {name}\n\nSeverity: {severity}\n\n");
        ensure!(page.starts_with(&head), "{name}.md does not begin {head:?}");
        let sections: Vec<_> = page
            .lines()
            .filter_map(|it| it.strip_prefix("## "))
            .collect();
        ensure!(sections == SECTIONS, "{name}.md has sections {sections:?}");
    }
    ensure!(pages.is_empty(), "no alerts: {:?}", pages.keys());
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn commands_of_the_pages_are_commands() -> Result<()> {
    let mut n_checked = 0;
    for (page, line) in blocks(&pages()?, "") {
        if line.starts_with("ballast ") {
            let words = line.split_whitespace();
            Cli::try_parse_from(words).with_context(|| format!("{page}.md: {line}"))?;
            n_checked += 1;
        }
    }
    ensure!(n_checked > 0, "no page names a command");
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn queries_of_the_pages_are_queries() -> Result<()> {
    let server = Prometheus::start(Scratch::new("pages")?, "{}", &[])?;
    let queries = blocks(&pages()?, "promql");
    ensure!(!queries.is_empty(), "no page has a query");
    for (page, query) in queries {
        server
            .query(&query, Some(1e9))
            .with_context(|| format!("{page}.md"))?;
    }
    Ok(())
}

/// Targets of links that are files of the checkout.
#[cfg_attr(feature = "monitoring", test)]
fn links_of_the_pages_lead_somewhere() -> Result<()> {
    let mut pages = pages()?;
    pages.insert("../README".to_owned(), rules::read("dashboards/README.md")?);
    let mut n_links = 0;
    for (page, text) in &pages {
        let base = rules::path(PAGES).join(page);
        let base = base.parent().context("a page is in a directory")?;
        for link in text.split("](").skip(1) {
            let link = link.split(')').next().unwrap_or_default();
            if link.starts_with("https://") {
                continue;
            }
            ensure!(base.join(link).exists(), "{page}.md: {link} is not there");
            n_links += 1;
        }
    }
    ensure!(n_links > 0, "no page has a link");
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn the_readme_lists_every_alert() -> Result<()> {
    let readme = rules::read("dashboards/README.md")?;
    let rows: BTreeSet<_> = readme
        .lines()
        .filter(|it| it.starts_with("| [Ballast"))
        .filter_map(|it| Some(it.split('|').nth(1)?.trim().to_owned() + it.split('|').nth(2)?))
        .collect();
    let expected: BTreeSet<_> = rules::alerts()?
        .iter()
        .map(|it| {
            let name = it.name();
            format!("[{name}](runbooks/{name}.md) {} ", it.severity())
        })
        .collect();
    ensure!(
        rows == expected,
        "missing: {:?}, too many: {:?}",
        expected.difference(&rows),
        rows.difference(&expected)
    );
    Ok(())
}

#[cfg_attr(feature = "monitoring", test)]
fn the_manifest_of_the_operator_has_the_same_rules() -> Result<()> {
    let mut expected = Vec::new();
    for name in [RECORDED, ALERTS] {
        let file: Value = serde_yaml_ng::from_str(&rules::read(name)?)?;
        let groups = file["groups"].as_sequence();
        expected.extend(groups.context("groups are a list")?.clone());
    }
    let text = rules::read("deploy/monitoring.yaml")?;
    let mut manifests = BTreeMap::new();
    for document in serde_yaml_ng::Deserializer::from_str(&text) {
        let value = serde::Deserialize::deserialize(document)?;
        let value: Value = value;
        let kind = value["kind"].as_str().context("a manifest has a kind")?;
        manifests.insert(kind.to_owned(), value);
    }
    let kinds: Vec<_> = manifests.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["PodMonitor", "PrometheusRule"]);
    let groups = &manifests["PrometheusRule"]["spec"]["groups"];
    ensure!(
        groups.as_sequence() == Some(&expected),
        "deploy/monitoring.yaml is stale: cargo xtask dashboards"
    );
    Ok(())
}
