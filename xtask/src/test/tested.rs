//! `target/tested.json`: the commit that a run of the lanes passed on. Written when everything passed
//! on a tree without changes, so that who lands a commit can ask.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use super::report::{Outcome, Row};
use crate::progress::{self, note};
use crate::workspace;

/// The commit of a work tree that has no changes.
pub(crate) struct Clean {
    commit: String,
}

#[derive(Serialize)]
struct Tested<'a> {
    commit: &'a str,
    lanes: Vec<Lane<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Lane<'a> {
    name: &'a str,
    /// Whole seconds.
    seconds: u64,
    /// Tests that passed when they were run once more.
    second_tries: Vec<&'a str>,
    /// Parts that were left out.
    without: &'a [String],
}

/// The work tree as it is, if it has no changes and git knows it.
pub(crate) fn clean() -> Option<Clean> {
    let (commit, has_changes) = state()?;
    (!has_changes).then_some(Clean { commit })
}

/// The commit of the work tree, and whether there are changes to it.
pub(crate) fn described() -> Option<String> {
    let (commit, has_changes) = state()?;
    Some(described_as(commit, has_changes))
}

fn described_as(commit: String, has_changes: bool) -> String {
    match has_changes {
        true => commit + "+changes",
        false => commit,
    }
}

/// The commit of the work tree, and whether it has changes.
fn state() -> Option<(String, bool)> {
    // Whatever the settings of whoever runs it leave out.
    let changes = git(&["status", "--porcelain", "--untracked-files=normal"])?;
    Some((git(&["rev-parse", "HEAD"])?, !changes.is_empty()))
}

fn git(arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.current_dir(workspace::root()).args(arguments);
    let output = progress::quiet(&mut command).ok()?;
    Some(output.trim().to_owned())
}

fn path() -> PathBuf {
    workspace::target().join("tested.json")
}

/// Forgets what an earlier run came to: one that fails leaves no record.
pub(crate) fn forget() -> Result<()> {
    match fs::remove_file(path()) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path().display()))
        }
        _ => Ok(()),
    }
}

/// Records that `rows` passed on the tree, if all of them did and it is still the one that it was before
/// they ran; says so, or why not. A lane that was left out has not passed.
pub(crate) fn record(before: Option<Clean>, rows: &[Row]) -> Result<()> {
    let passed = rows.iter().map(|row| match &row.outcome {
        Outcome::Passed(passed) => Some((row, passed)),
        Outcome::Failed(_) | Outcome::LeftOut(_) => None,
    });
    let Some(passed) = passed.collect::<Option<Vec<_>>>() else {
        return Ok(());
    };
    let path = path();
    let (Some(before), Some(after)) = (before, clean()) else {
        let why = "the tree has changes, or git does not know it";
        note(format_args!("no {}: {why}", path.display()));
        return Ok(());
    };
    if before.commit != after.commit {
        let why = "another commit was made meanwhile";
        note(format_args!("no {}: {why}", path.display()));
        return Ok(());
    }
    let lanes = passed.iter().map(|(row, passed)| Lane {
        name: &row.name,
        seconds: row.took.as_secs(),
        second_tries: passed.again.iter().map(|it| it.name.as_str()).collect(),
        without: &passed.without,
    });
    let tested = Tested {
        commit: &after.commit,
        lanes: lanes.collect(),
    };
    let text = serde_json::to_string_pretty(&tested).context("write JSON")?;
    let whole = path.with_added_extension("new");
    fs::write(&whole, text + "\n")
        .and_then(|()| fs::rename(&whole, &path))
        .with_context(|| format!("write {}", path.display()))?;
    note(format_args!("{} has this commit", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_with_changes_is_not_its_commit() {
        let described = |has_changes| described_as("f00".to_owned(), has_changes);
        assert_eq!(described(false), "f00");
        assert_eq!(described(true), "f00+changes");
    }
}
