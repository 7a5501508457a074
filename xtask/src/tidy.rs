//! `cargo xtask tidy`: what can be checked without running anything.

mod deny;
mod edges;
mod house_rules;
mod metrics;
mod source;

pub(crate) use deny::advisories;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::progress::{self, headline, note};
use crate::reference;
use crate::test::report::Outcome;
use crate::{dashboards, workspace};

/// Check formatting, lints, module edges, house rules, metric names and dependencies
#[derive(clap::Args)]
pub(crate) struct Arguments {}

/// Something that a rule forbids, and where.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// Relative to the root of the checkout.
    path: PathBuf,
    /// Counted from 1.
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.path.display(), self.line, self.what)
    }
}

pub(crate) fn run(_: &Arguments) -> Result<ExitCode> {
    match lane()? {
        Outcome::Passed(passed) => println!("tidy: {}", passed.detail),
        Outcome::Failed(why) | Outcome::LeftOut(why) => bail!("{why}"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Every check runs, also after one that failed.
pub(crate) fn lane() -> Result<Outcome> {
    let files = source::read_all(&workspace::root())?;
    let checks: [(&str, &dyn Fn() -> Result<()>); 8] = [
        ("module edges", &|| findings(edges::check(&files))),
        ("house rules", &|| findings(house_rules::check(&files))),
        ("metric names", &|| {
            findings(metrics::check(&workspace::root(), &files)?)
        }),
        ("dashboards", &|| {
            findings(stale_dashboards(&workspace::root())?)
        }),
        ("reference page", &|| reference::check()),
        ("formatting", &formatting),
        ("dependencies", &deny::check),
        ("lints", &lints),
    ];
    let (mut failed, mut passed) = (Vec::new(), Vec::new());
    for (name, check) in checks {
        headline(name);
        match check() {
            Ok(()) => passed.push(name),
            Err(error) => {
                note(format_args!("{error:#}"));
                failed.push(name);
            }
        }
    }
    if !failed.is_empty() {
        return Ok(Outcome::Failed(failed.join(", ")));
    }
    Ok(Outcome::passed(passed.join(", ")))
}

fn findings(mut findings: Vec<Finding>) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    findings.sort();
    for it in &findings {
        note(it);
    }
    bail!("{} found", findings.len())
}

fn stale_dashboards(root: &Path) -> Result<Vec<Finding>> {
    let stale = dashboards::all_stale(root)?.into_iter();
    let stale = stale.map(|path| Finding {
        path,
        line: 1,
        what: "differs from its source; `cargo xtask dashboards` writes it".to_owned(),
    });
    let changed = dashboards::not_as_recorded(root)?.into_iter();
    let changed = changed.map(|family| Finding {
        path: dashboards::RECORDED_TABLE.into(),
        line: 1,
        what: format!(
            "recorded with another {family}; `BALLAST_RECORD_DASHBOARDS=1 cargo xtask test live \
             -- what_dashboards_ask` records anew"
        ),
    });
    Ok(stale.chain(changed).collect())
}

fn formatting() -> Result<()> {
    progress::run(
        "cargo fmt",
        workspace::cargo().args(["fmt", "--all", "--check"]),
    )?;
    // A workspace of its own.
    let mut ebpf = workspace::cargo();
    ebpf.args(["fmt", "--check", "--manifest-path", "ebpf/Cargo.toml"]);
    progress::run("cargo fmt in ebpf/", &mut ebpf)?;
    Ok(())
}

fn lints() -> Result<()> {
    let mut clippy = workspace::cargo();
    // With the feature, so that the host tests are looked at as they run.
    clippy
        .args(["clippy", "--locked", "--workspace", "--all-targets"])
        .args([
            "--features",
            "ballast-tests/privileged",
            "--",
            "-D",
            "warnings",
        ]);
    progress::run("cargo clippy", &mut clippy)?;
    Ok(())
}
