//! An eviction story decided again, and beside it another policy.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Difference, compare};
use crate::cli::format::{bytes, printable};
use crate::config::{Config, OwnConfig, StagesConfig};
use crate::decide::eviction::counterfactual::{self, Kill, Outcome, Rules, Shortage};
use crate::decide::eviction::story::{Step, StoryHeader};
use crate::decide::eviction::thresholds::ThresholdError;
use crate::decide::eviction::{Action, Decision, Policy, threshold_quantity};
use crate::model::eviction::{EvictionCause, Signal, StarvedResource, Victim};
use crate::model::recording::{Decoder, RecordingError};
use crate::units::Bytes;

/// Differences shown of one decision, at most.
const MAX_SHOWN: usize = 8;

/// Why a story cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum StoryError {
    #[error(transparent)]
    Recording(#[from] RecordingError),
    #[error("the header is none of an eviction story")]
    Header(#[source] serde_json::Error),
    #[error("step {n} is none of an eviction story")]
    Step { n: usize, source: serde_json::Error },
    #[error("step {n} as JSON")]
    Json { n: usize, source: serde_json::Error },
    #[error("the other policy")]
    Policy(#[from] ThresholdError),
}

/// A story, and what came of it now.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StoryReplay {
    pub header: StoryHeader,
    pub n_steps: usize,
    /// From the first step to the last.
    pub lasts_ms: u64,
    /// Bytes at the end that are no whole step.
    pub n_lost: usize,
    /// Decisions that came out otherwise, by their time.
    pub different: Vec<Different>,
    /// `None`: no other policy was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    #[serde(skip)]
    lines: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Different {
    pub at_ms: u64,
    pub differences: Vec<Difference>,
}

/// The same story under two policies.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    pub recorded: Outcome,
    pub policy: Outcome,
    /// Fields of the other configuration that a recording cannot answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_played: Vec<&'static str>,
}

/// Decides a story again, and with the policy of another configuration.
pub(super) fn replay(
    recording: &[u8],
    other: Option<(&Config, &OwnConfig)>,
) -> Result<StoryReplay, StoryError> {
    let mut decoder = Decoder::new(recording)?;
    let header = StoryHeader::deserialize(decoder.header()).map_err(StoryError::Header)?;
    let other = match other {
        Some((config, own)) => Some((
            Policy::new(&config.kubelet, header.policy.layout, own.compat)?,
            &own.eviction,
        )),
        None => None,
    };
    let mut replay = StoryReplay {
        header,
        n_steps: 0,
        lasts_ms: 0,
        n_lost: 0,
        different: Vec::new(),
        comparison: None,
        lines: Vec::new(),
    };
    let mut steps = Vec::new();
    let mut start = None;
    let mut last_line = String::new();
    while let Some(step) = decoder.next_step()? {
        let n = replay.n_steps;
        let step = Step::deserialize(step).map_err(|source| StoryError::Step { n, source })?;
        let start = *start.get_or_insert(step.snapshot.at);
        replay.take(
            &step,
            step.snapshot.at.saturating_sub(start),
            &mut last_line,
        )?;
        if other.is_some() {
            steps.push(step);
        }
    }
    replay.n_lost = decoder.n_lost();
    if let Some((policy, eviction)) = &other {
        let rules = Rules {
            policy,
            memory_method: Some(eviction.memory_method),
            stall: eviction.stall.as_ref(),
        };
        let has_stages = eviction.stages != StagesConfig::default();
        replay.comparison = Some(Comparison {
            recorded: counterfactual::recorded(&replay.header.policy, &steps),
            policy: counterfactual::play(rules, &replay.header.policy, &steps),
            not_played: has_stages
                .then_some("eviction.stages")
                .into_iter()
                .collect(),
        });
    }
    Ok(replay)
}

impl StoryReplay {
    pub fn is_same(&self) -> bool {
        self.different.is_empty()
    }

    fn take(
        &mut self,
        step: &Step,
        at: Duration,
        last_line: &mut String,
    ) -> Result<(), StoryError> {
        let n = self.n_steps;
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        self.n_steps += 1;
        self.lasts_ms = at_ms;
        let again = step.decide_again(&self.header.policy);
        let json = |it| serde_json::to_value(it).map_err(|source| StoryError::Json { n, source });
        let (recorded, replayed) = (json(&step.decision)?, json(&again)?);
        let mut differences = Vec::new();
        let mut path = String::new();
        compare(
            &mut path,
            Some(&recorded),
            Some(&replayed),
            &mut differences,
        );
        let line = tell(&step.decision);
        let is_news = subject(&step.decision) != *last_line;
        *last_line = subject(&step.decision);
        if is_news || !differences.is_empty() {
            let verdict = match differences.is_empty() {
                true => "same",
                false => "different",
            };
            self.lines
                .push(format!("{}  {verdict:<9}  {line}", time(at_ms)));
        }
        if !differences.is_empty() {
            let shown = differences.iter().take(MAX_SHOWN);
            let shown = shown.map(|it| format!("{:>13}{}", "", printable(&it.to_string())));
            self.lines.extend(shown);
            let n_more = differences.len().saturating_sub(MAX_SHOWN);
            if n_more > 0 {
                self.lines.push(format!("{:>13}and {n_more} more", ""));
            }
            self.different.push(Different { at_ms, differences });
        }
        Ok(())
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let header = &self.header;
        let title = header.title.as_deref().unwrap_or("eviction story");
        line(
            &mut text,
            &format!(
                "{}: recorded {} by ballast {}, {} steps in {}",
                printable(title),
                header.began,
                printable(&header.ballast),
                self.n_steps,
                time(self.lasts_ms).trim_start(),
            ),
        );
        for it in &self.lines {
            line(&mut text, it);
        }
        if self.n_lost > 0 {
            let lost = format!("the last {} bytes are cut short or damaged", self.n_lost);
            line(&mut text, &lost);
        }
        let n_same = self.n_steps - self.different.len();
        let n_different = self.different.len();
        line(
            &mut text,
            &format!("decisions: {n_same} same, {n_different} different"),
        );
        if let Some(comparison) = &self.comparison {
            text.push_str(&comparison.text());
        }
        text
    }
}

impl Comparison {
    /// For people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, outcome) in [("recorded", &self.recorded), ("policy", &self.policy)] {
            let n_needless = outcome.kills.iter().filter(|it| it.is_needless).count();
            line(
                &mut text,
                &format!(
                    "{name}: {} evicted, {n_needless} of them needlessly",
                    outcome.kills.len(),
                ),
            );
            for kill in &outcome.kills {
                line(&mut text, &tell_kill(kill));
            }
        }
        for field in &self.not_played {
            line(
                &mut text,
                &format!("{field} is not played: what it would have given back is not recorded"),
            );
        }
        let none = Shortage {
            short_ms: 0,
            lowest: 0,
        };
        for (signal, recorded) in &self.recorded.shortages {
            let policy = self.policy.shortages.get(signal).unwrap_or(&none);
            line(
                &mut text,
                &format!(
                    "{signal}: below the threshold for {} as recorded, {} with the policy; at least {} \
                 and {} available",
                    time(recorded.short_ms).trim_start(),
                    time(policy.short_ms).trim_start(),
                    signed(*signal, recorded.lowest),
                    signed(*signal, policy.lowest),
                ),
            );
        }
        text
    }
}

fn line(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a String takes all");
}

fn tell_kill(kill: &Kill) -> String {
    let signal = kill.cause.and_then(|it| it.parse::<Signal>().ok());
    let amount = |n| signal.map_or_else(|| bytes(Bytes(n)), |it| amount(it, n));
    let mut text = format!("{}  {}", time(kill.at_ms), printable(&kill.pod.to_string()));
    text.push_str(&format!(
        " for {}",
        kill.cause.unwrap_or("what is not recorded")
    ));
    if let Some(freed) = kill.freed {
        text.push_str(&format!(", {} freed", amount(freed)));
    }
    if let Some(after) = kill.gone_after_ms {
        text.push_str(&format!(", gone after {}", time(after).trim_start()));
    }
    if kill.is_needless {
        text.push_str(", needless: it passed by itself");
    }
    if let Some(regret) = &kill.regret {
        let pod = regret.pod.to_string();
        let more = amount(regret.more);
        text.push_str(&format!(
            "; {} would have freed {more} more",
            printable(&pod)
        ));
    }
    text
}

/// What a decision comes to, in one line.
fn tell(decision: &Decision) -> String {
    match &decision.action {
        Some(Action::EvictAll { victims }) => {
            let pods: Vec<String> = victims.iter().map(tell_victim).collect();
            format!("over limits of local storage: {}", pods.join(", "))
        }
        Some(Action::Relieve(relief)) => {
            let signal = relief.threshold.signal;
            let wanted = threshold_quantity(&relief.threshold, &relief.observation).value();
            let mut text = format!(
                "{signal} {}, below {}: ",
                signed(signal, relief.observation.available),
                signed(signal, wanted),
            );
            if !relief.reclaim.is_empty() {
                text.push_str("after what the node can give back ");
            }
            match relief.candidates.first() {
                Some(victim) => text.push_str(&tell_victim(victim)),
                None => text.push_str("nobody can go"),
            }
            text
        }
        None => {
            let blocked = decision.blocked.iter();
            let blocked =
                blocked.map(|it| format!("{}: {}", it.threshold.signal, it.reason.as_str()));
            let conditions = decision.conditions.iter().map(ToString::to_string);
            let parts: Vec<String> = blocked.chain(conditions).collect();
            match parts.is_empty() {
                true => "nothing to do".to_owned(),
                false => format!("nobody goes; {}", parts.join(", ")),
            }
        }
    }
}

fn tell_victim(victim: &Victim) -> String {
    let pod = victim.pod.to_string();
    let grace = victim.grace.as_secs();
    match &victim.cause {
        EvictionCause::LocalStorage { .. } => {
            format!("{} goes for {}", printable(&pod), victim.cause.label())
        }
        EvictionCause::Threshold { .. }
        | EvictionCause::Stall
        | EvictionCause::Preemption { .. } => {
            format!("{} goes, grace {grace} s", printable(&pod))
        }
    }
}

/// What a decision is about, without figures: what is the same as at the step before is no news.
fn subject(decision: &Decision) -> String {
    let victims: Vec<&str> = match &decision.action {
        Some(Action::EvictAll { victims }) => {
            victims.iter().map(|it| it.pod.uid.0.as_str()).collect()
        }
        Some(Action::Relieve(relief)) => {
            let first = relief.candidates.first();
            let pod = first.map_or("", |it| it.pod.uid.0.as_str());
            vec![relief.threshold.signal.as_str(), pod]
        }
        None => Vec::new(),
    };
    let blocked: BTreeMap<&Signal, &str> = decision
        .blocked
        .iter()
        .map(|it| (&it.threshold.signal, it.reason.as_str()))
        .collect();
    format!("{victims:?} {blocked:?} {:?}", decision.conditions)
}

/// Seconds with thousandths, as wide as an hour needs.
fn time(ms: u64) -> String {
    format!("{:>5}.{:03} s", ms / 1000, ms % 1000)
}

fn amount(signal: Signal, n: u64) -> String {
    match signal.resource() {
        StarvedResource::Memory | StarvedResource::EphemeralStorage => bytes(Bytes(n)),
        StarvedResource::Inodes => format!("{n} inodes"),
        StarvedResource::Pids => format!("{n} tasks"),
    }
}

fn signed(signal: Signal, n: i64) -> String {
    let sign = if n < 0 { "-" } else { "" };
    format!("{sign}{}", amount(signal, n.unsigned_abs()))
}
