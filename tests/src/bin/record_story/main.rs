//! Records the stories of `tests/data/stories`: real workloads in real cgroups, read by the agent's
//! own readers, decided and acted upon as the agent does.
//!
//! `cargo run -p ballast-tests --features privileged --bin record_story -- DIRECTORY [NAME..]`, as
//! root, with `hog` built beside it.
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own, with workloads of its own"
)]

mod node;
mod stories;

use std::borrow::Cow;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ballast::config::Config;
use ballast::decide::eviction::signals::observations;
use ballast::decide::eviction::story::{Deed, Step, StoryHeader, StoryKind};
use ballast::decide::eviction::{Action, Decision, FsLayout, Policy, State, synchronize};
use ballast::model::eviction::{MemoryMethod, NodeReading, Snapshot, Victim};
use ballast::model::recording::Encoder;
use ballast::model::time::WallTime;
use ballast::sys::clock;

use self::node::Node;
use self::stories::{STORIES, Story};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let directory = args.next().context("want a directory to write to")?;
    let names: Vec<String> = args.collect();
    for story in STORIES {
        if names.is_empty() || names.iter().any(|it| it == story.name) {
            let path = Path::new(&directory).join(format!("{}.story", story.name));
            record(story, &path).with_context(|| story.name.to_owned())?;
        }
    }
    Ok(())
}

fn record(story: &'static Story, path: &Path) -> Result<()> {
    let mut node = Node::new(story)?;
    let first = node.read(clock::boottime());
    let policy = policy(story, &first)?;
    let header = StoryHeader {
        kind: StoryKind::EvictionStory,
        ballast: env!("CARGO_PKG_VERSION").to_owned(),
        began: WallTime::from_epoch(clock::wall()),
        began_boottime: clock::boottime(),
        policy,
        title: Some(story.title.to_owned()),
    };
    let (mut encoder, mut recording) = Encoder::new(&serde_json::to_value(&header)?)?;
    let mut state = State::new();
    let mut n_deeds = 0;
    let began = clock::boottime();
    loop {
        let at = clock::boottime();
        let since = at.saturating_sub(began);
        if since > story.lasts {
            break;
        }
        node.start_due(since)?;
        let done = node.done();
        let reading = node.read(at);
        n_deeds += done.len();
        let step = look(&mut node, &header.policy, state, reading, done);
        state = step.decision.state.clone();
        if let Some(victims) = victims(&step.decision) {
            for victim in victims {
                node.end(victim, at);
            }
        }
        recording.extend(encoder.step(serde_json::to_value(&step)?)?);
        thread::sleep(LOOK_EVERY.saturating_sub(clock::boottime().saturating_sub(at)));
    }
    ensure!(
        (n_deeds > 0) == story.ends_somebody,
        "{n_deeds} pods were ended"
    );
    std::fs::write(path, &recording).with_context(|| format!("write {}", path.display()))?;
    println!("{}: {} bytes, {n_deeds} ended", story.name, recording.len());
    Ok(())
}

fn look(
    node: &mut Node,
    policy: &Policy,
    state: State,
    reading: NodeReading,
    done: Vec<Deed>,
) -> Step {
    let snapshot = Snapshot {
        at: reading.at,
        observations: observations(&reading, None, MemoryMethod::WorkingSet, policy.compat),
        pods: node.pods(reading.at),
        node: reading,
        is_leaving: false,
    };
    let decision = synchronize(policy, &state, &snapshot);
    Step {
        woken_by: Cow::Borrowed("timer"),
        state,
        snapshot,
        decision,
        done,
    }
}

/// Whom the agent would end, as it would: there is nothing else to give back.
fn victims(decision: &Decision) -> Option<&[Victim]> {
    match decision.action.as_ref()? {
        Action::EvictAll { victims } => Some(victims),
        Action::Relieve(relief) => relief.candidates.get(..1),
    }
}

/// The story's own, with amounts that are counted from what is available at its beginning.
fn policy(story: &Story, first: &NodeReading) -> Result<Policy> {
    let memory = observations(first, None, MemoryMethod::WorkingSet, Default::default());
    let available = |name: &str| -> Result<i64> {
        let signal = name.parse()?;
        Ok(memory.get(&signal).context("no such reading")?.available)
    };
    let mut text = story.policy.to_owned();
    for (mark, signal) in [("MEMORY-", "memory.available"), ("PIDS-", "pid.available")] {
        while let Some((before, after)) = text.split_once(mark) {
            let digits = after
                .find(|it: char| !it.is_ascii_digit())
                .unwrap_or(after.len());
            let (less, rest) = after.split_at(digits);
            let amount = available(signal)? - less.parse::<i64>()?;
            text = format!("{before}{amount}{rest}");
        }
    }
    let head = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";
    let config = Config::from_yaml(&format!("{head}{text}"), None, &[])?.config;
    Ok(Policy::new(
        &config.kubelet,
        FsLayout::One,
        config
            .mode
            .own()
            .map_or_else(Default::default, |it| it.compat),
    )?)
}
