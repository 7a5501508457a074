//! Recorded eviction stories: decided again they come out the same, and other policies come out as
//! the golden texts have it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ballast::config::Config;
use ballast::decide::eviction::counterfactual::Outcome;
use ballast::run::{Replayed, StoryReplay, replay};

use super::{check_golden, data, files};

/// What a story may take in the repository, bytes.
const MAX_BYTES: u64 = 200 << 10;

#[test]
fn every_story_is_decided_as_it_was() -> Result<()> {
    let stories = stories()?;
    ensure!(stories.len() >= 10, "{} stories", stories.len());
    for path in stories {
        let story = tell(&path, None)?;
        ensure!(
            story.is_same() && story.n_lost == 0 && story.n_steps > 50,
            "{}",
            story.text()
        );
        ensure!(std::fs::metadata(&path)?.len() < MAX_BYTES, "{path:?}");
    }
    Ok(())
}

#[test]
fn other_policies_tell_the_stories_as_before() -> Result<()> {
    let earlier = policy("earlier")?;
    let kubelet = policy("kubelet")?;
    for path in stories()? {
        let mut text = tell(&path, Some(&earlier))?.text();
        let comparison = tell(&path, Some(&kubelet))?.comparison;
        text.push_str("with kubelet's rules:\n");
        text.push_str(&comparison.context("a comparison")?.text());
        check_golden(&path.with_extension("txt"), &text)?;
    }
    Ok(())
}

/// What the recorded policy does when it plays is what was recorded, as long as its victims are as
/// quickly gone.
#[test]
fn the_recorded_policy_chooses_whom_it_chose() -> Result<()> {
    let recorded = config("kubelet: {evictionHard: {memory.available: 100Mi}}")?;
    for name in ["leak", "burst", "priorities"] {
        let path = data("stories").join(format!("{name}.story"));
        let comparison = tell(&path, Some(&recorded))?.comparison;
        let comparison = comparison.context("a comparison")?;
        let first = |it: &Outcome| it.kills.first().map(|it| (it.pod.clone(), it.at_ms));
        ensure!(
            first(&comparison.recorded) == first(&comparison.policy),
            "{name}: {}",
            comparison.text()
        );
    }
    Ok(())
}

/// What a story cannot answer is said, and not left out.
#[test]
fn a_policy_with_stages_says_that_they_are_not_played() -> Result<()> {
    let path = data("stories").join("leak.story");
    for (part, is_said) in [
        ("eviction: {stages: {reclaim: true}}", true),
        ("eviction: {memoryMethod: estimate}", false),
    ] {
        let text = tell(&path, Some(&config(part)?))?.text();
        ensure!(
            text.contains("eviction.stages is not played") == is_said,
            "{part}: {text}"
        );
    }
    Ok(())
}

fn stories() -> Result<Vec<PathBuf>> {
    files("stories", "story")
}

fn tell(path: &Path, other: Option<&Config>) -> Result<Box<StoryReplay>> {
    match replay(path, other).with_context(|| path.display().to_string())? {
        Replayed::Story(story) => Ok(story),
        Replayed::Admission(_) => bail!("{} is no story", path.display()),
    }
}

fn policy(name: &str) -> Result<Config> {
    config(&std::fs::read_to_string(
        data("stories").join(format!("{name}.yaml")),
    )?)
}

fn config(part: &str) -> Result<Config> {
    let head = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";
    Ok(Config::from_yaml(&format!("{head}{part}"), None, &[])?.config)
}
