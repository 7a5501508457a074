//! One pass over a snapshot (pkg/kubelet/eviction/eviction_manager.go, v1.36: `synchronize`).
//! Pinned by suite `eviction_sync`.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;

use super::brake::{Brakes, Kill, Split};
use super::message::threshold_message;
use super::rank::{Ranked, rank};
use super::{
    Action, Blocked, BlockedReason, Decision, Met, Policy, Relief, State, capacity, ends_sooner,
    grace, local_storage, threshold_quantity,
};
use crate::config::Compat;
use crate::model::eviction::{
    Amount, EvictionCause, NodeCondition, Observation, Signal, Snapshot, Threshold, Victim,
};
use crate::model::pod::PodUid;
use crate::model::quantity::{Format, Quantity};

type Observations = BTreeMap<Signal, Observation>;

/// How long after its end was due a pod still counts as about to free what it uses. Arbitrary: a
/// killed process of 100 GiB is gone sooner.
const OVERDUE: Duration = Duration::from_secs(5);

/// Decides what to do about the node as it is. Cost: one sort of the pods per threshold that is due.
pub fn synchronize(policy: &Policy, state: &State, snapshot: &Snapshot) -> Decision {
    if policy.thresholds.is_empty() && !policy.limits_local_storage {
        return Decision::default();
    }
    let now = snapshot.at;
    let observations = &snapshot.observations;
    let mut met = met(policy, state, observations);
    met.extend(unseen(policy, state, snapshot));
    let mut next = State {
        has_passed: true,
        met: since(state, met, now),
        unresolved: Vec::new(),
        condition_seen: state.condition_seen.clone(),
        observed_at: observations.iter().map(|(it, o)| (*it, o.at)).collect(),
        ending: ending(state, snapshot),
        brakes: Brakes::default(),
    };
    next.brakes = state.brakes.next(policy.layout, snapshot, &next.met);
    let is_seen = |it: &&Met| observations.contains_key(&it.threshold.signal);
    for it in next.met.iter().filter(is_seen) {
        next.condition_seen
            .insert(it.threshold.signal.condition(), now);
    }
    let is_reported = |seen: &Duration| now.saturating_sub(*seen) < policy.transition_period;
    let conditions = next
        .condition_seen
        .iter()
        .filter(|(_, seen)| is_reported(seen))
        .map(|(condition, _)| *condition)
        .collect();
    let is_due = |it: &&Met| now.saturating_sub(it.since) >= it.threshold.grace;
    // What is not seen has not been acted upon since.
    let is_acted_upon = |it: &&Met| is_seen(it) || state.unresolved.contains(&it.threshold);
    next.unresolved = next
        .met
        .iter()
        .filter(is_due)
        .filter(is_acted_upon)
        .map(|it| it.threshold.clone())
        .collect();
    let mut decision = Decision {
        state: next,
        conditions,
        action: None,
        blocked: Vec::new(),
    };

    if policy.limits_local_storage {
        let victims = local_storage::victims(policy, &snapshot.pods);
        if !victims.is_empty() {
            decision.action = Some(Action::EvictAll { victims });
            return decision;
        }
    }
    let mut due: Vec<(Threshold, Observation)> = decision
        .state
        .unresolved
        .iter()
        .filter_map(|it| Some((it.clone(), *observations.get(&it.signal)?)))
        .collect();
    due.sort_by(|a, b| urgency(policy.compat, a, b));
    for (threshold, observation) in due {
        let outcome = if is_new(state, threshold.signal, &observation) {
            relieve(policy, &decision.state, snapshot, &threshold, observation)
        } else {
            Err(BlockedReason::Stale)
        };
        let reason = BlockedReason::Ineffective;
        match outcome {
            // What the node gives back may be enough; else the next threshold may have somebody who is to go.
            Ok(relief) if relief.is_ineffective => match decision.action {
                None => decision.action = Some(Action::Relieve(relief)),
                Some(_) => decision.blocked.push(Blocked { threshold, reason }),
            },
            Ok(relief) => {
                if let Some(kill) = asked(policy, snapshot, &relief) {
                    let brakes = &mut decision.state.brakes;
                    brakes.ask(policy.layout, threshold.signal, kill);
                }
                if let Some(Action::Relieve(Relief { threshold, .. })) = decision.action.take() {
                    decision.blocked.push(Blocked { threshold, reason });
                }
                decision.action = Some(Action::Relieve(relief));
                break;
            }
            Err(reason) => {
                decision.blocked.push(Blocked { threshold, reason });
                // Of those with a new observation kubelet looks at the first only.
                if policy.compat == Compat::Kubelet && reason != BlockedReason::Stale {
                    break;
                }
            }
        }
    }
    decision
}

/// Whether a pod still has to go for `threshold` once the node gave back what it could. A signal
/// that could not be read again is not short.
///
/// Kubelet asks whether any threshold is short, also one that has nothing to do with what was given
/// back or is still in its grace.
pub fn is_still_short(
    policy: &Policy,
    threshold: &Threshold,
    observations: &BTreeMap<Signal, Observation>,
) -> bool {
    match policy.compat {
        Compat::Ballast => is_met(threshold, observations, MinReclaim::Added),
        Compat::Kubelet => policy
            .thresholds
            .iter()
            .any(|it| is_met(it, observations, MinReclaim::Added)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MinReclaim {
    Added,
    Left,
}

fn is_met(threshold: &Threshold, observations: &Observations, min_reclaim: MinReclaim) -> bool {
    let Some(observation) = observations.get(&threshold.signal) else {
        return false;
    };
    wanted(threshold, observation, min_reclaim)
        > Quantity::from_units(observation.available, Format::BinarySi)
}

/// What has to be available for the threshold not to be met.
fn wanted(threshold: &Threshold, observation: &Observation, min_reclaim: MinReclaim) -> Quantity {
    let wanted = threshold_quantity(threshold, observation);
    match &threshold.min_reclaim {
        Some(more) if min_reclaim == MinReclaim::Added => {
            wanted.plus(&more.of(&capacity(observation)))
        }
        _ => wanted,
    }
}

/// Thresholds that are met now, then those that are not over yet.
fn met(policy: &Policy, state: &State, observations: &Observations) -> Vec<Threshold> {
    let known = match policy.compat {
        Compat::Kubelet if !state.has_passed => policy.n_known_at_first,
        _ => policy.thresholds.len(),
    };
    let known = policy.thresholds.get(..known).unwrap_or(&policy.thresholds);
    let mut met: Vec<Threshold> = Vec::new();
    for it in known {
        let is_twice = met.contains(it) && is_one(policy.compat, it);
        if is_met(it, observations, MinReclaim::Left) && !is_twice {
            met.push(it.clone());
        }
    }
    for it in &state.unresolved {
        if is_met(it, observations, MinReclaim::Added) && !met.contains(it) {
            met.push(it.clone());
        }
    }
    met
}

/// Those that were met and whose signal could not be read this time, as of a disk that is busy: their grace goes on. For as
/// long as the condition is reported, so that nothing stays met for good. Kubelet makes no pass without its readings.
fn unseen(policy: &Policy, state: &State, snapshot: &Snapshot) -> Vec<Threshold> {
    let is_reported = |it: &Threshold| {
        let seen = state.condition_seen.get(&it.signal.condition());
        seen.is_some_and(|seen| snapshot.at.saturating_sub(*seen) < policy.transition_period)
    };
    let is_unseen = |it: &&Threshold| !snapshot.observations.contains_key(&it.signal);
    let met = state.met.iter().map(|it| &it.threshold);
    met.filter(|_| policy.compat == Compat::Ballast)
        .filter(is_unseen)
        .filter(|it| is_reported(it))
        .cloned()
        .collect()
}

/// Whether a threshold that is given twice is one. Kubelet tells amounts apart by their address.
fn is_one(compat: Compat, threshold: &Threshold) -> bool {
    let is_plain = threshold.min_reclaim.is_none();
    compat == Compat::Ballast || is_plain && matches!(threshold.amount, Amount::Fraction(_))
}

/// Each with the time since when it has been met; of two that are the same each has its own.
fn since(state: &State, met: Vec<Threshold>, now: Duration) -> Vec<Met> {
    let mut before: Vec<&Met> = state.met.iter().collect();
    let mut take = |threshold: &Threshold| {
        let at = before.iter().position(|it| it.threshold == *threshold)?;
        Some(before.remove(at).since)
    };
    met.into_iter()
        .map(|threshold| Met {
            since: take(&threshold).unwrap_or(now),
            threshold,
        })
        .collect()
}

/// Whether the observation is newer than what the last pass saw, as far as that is known.
fn is_new(state: &State, signal: Signal, observation: &Observation) -> bool {
    match (state.observed_at.get(&signal), observation.at) {
        (Some(Some(last)), Some(at)) => at > *last,
        _ => true,
    }
}

fn ending(state: &State, snapshot: &Snapshot) -> BTreeMap<PodUid, Duration> {
    let ends = |left: Duration| snapshot.at.saturating_add(left);
    snapshot
        .pods
        .iter()
        .filter_map(|it| {
            let uid = &it.facts.pod.uid;
            let end = ends(it.ends_within?);
            let before = state.ending.get(uid).copied().unwrap_or(end);
            Some((uid.clone(), before.min(end)))
        })
        .collect()
}

/// The most urgent first. Kubelet puts memory first and leaves the rest to chance.
fn urgency(compat: Compat, a: &(Threshold, Observation), b: &(Threshold, Observation)) -> Ordering {
    let is_soft = |it: &(Threshold, Observation)| !it.0.is_hard();
    let kind = |it: &(Threshold, Observation)| it.0.signal.condition();
    let is_memory = |it| kind(it) == NodeCondition::MemoryPressure;
    let kubelets = match compat {
        Compat::Kubelet => is_memory(b).cmp(&is_memory(a)),
        Compat::Ballast => Ordering::Equal,
    };
    kubelets
        .then_with(|| is_soft(a).cmp(&is_soft(b)))
        .then_with(|| kind(a).cmp(&kind(b)))
        .then_with(|| headroom(a).cmp(&headroom(b)))
        .then_with(|| a.0.signal.cmp(&b.0.signal))
}

/// What is available in millionths of what should be: signals of any unit compare.
fn headroom((threshold, observation): &(Threshold, Observation)) -> i128 {
    let wanted = threshold_quantity(threshold, observation).value().max(1);
    i128::from(observation.available) * 1_000_000 / i128::from(wanted)
}

fn relieve(
    policy: &Policy,
    state: &State,
    snapshot: &Snapshot,
    threshold: &Threshold,
    observation: Observation,
) -> Result<Relief, BlockedReason> {
    let ranked = rank(
        threshold.signal,
        policy.layout,
        policy.compat,
        &snapshot.pods,
    );
    if policy.compat == Compat::Ballast
        && ends_soon_enough(policy, state, snapshot, threshold, &observation, &ranked)
    {
        return Err(BlockedReason::Ending);
    }
    let may_go = |it: &&Ranked<'_>| {
        let grace = grace(policy, threshold, it.reading);
        !it.reading.facts.is_critical && !ends_sooner(policy, it.reading, grace)
    };
    // Nothing is gained by a pod without a figure, nor on a disk by one that has nothing there.
    let is_of_disk = threshold.signal.condition() == NodeCondition::DiskPressure;
    let is_known = |it: &&Ranked<'_>| {
        let frees = it.usage.is_some_and(|used| used > 0 || !is_of_disk);
        policy.compat == Compat::Kubelet || frees
    };
    let able: Vec<&Ranked<'_>> = ranked.iter().filter(may_go).filter(is_known).collect();
    let uses: Vec<u64> = able.iter().map(|it| it.usage.unwrap_or(0)).collect();
    let least_use = least_use(policy, state, snapshot, threshold, &observation, &uses);
    let is_enough = |it: &&Ranked<'_>| least_use.is_some_and(|least| it.usage >= Some(least));
    let (candidates, too_small): (Vec<_>, Vec<_>) = able
        .into_iter()
        .partition(|it| policy.compat == Compat::Kubelet || is_enough(it));
    let candidates: Vec<Victim> = candidates
        .into_iter()
        .map(|it| victim(policy, threshold, observation, it))
        .collect();
    let reclaim = policy.layout.reclaim(threshold.signal);
    if !candidates.is_empty() || !reclaim.is_empty() {
        return Ok(Relief {
            threshold: threshold.clone(),
            observation,
            reclaim,
            is_ineffective: candidates.is_empty() && !too_small.is_empty(),
            candidates,
        });
    }
    Err(if !too_small.is_empty() {
        BlockedReason::Ineffective
    } else if ranked.is_empty() {
        BlockedReason::NoPods
    } else if ranked.iter().any(|it| may_go(&it)) {
        BlockedReason::Unknown
    } else {
        BlockedReason::NoCandidate
    })
}

/// The least that a pod must use to go; `None`: nobody goes (`brake`). `uses`: what those that may go use, in their order.
fn least_use(
    policy: &Policy,
    state: &State,
    snapshot: &Snapshot,
    threshold: &Threshold,
    observation: &Observation,
    uses: &[u64],
) -> Option<u64> {
    let (layout, signal) = (policy.layout, threshold.signal);
    match state.brakes.get(layout, signal) {
        Some(brake) if policy.compat == Compat::Ballast => {
            let wanted = wanted(threshold, observation, MinReclaim::Added).value();
            let need = wanted.saturating_sub(observation.available);
            let need = u64::try_from(need).unwrap_or(0);
            brake.least_use(signal, layout, snapshot, need, uses)
        }
        _ => Some(0),
    }
}

/// The eviction that a pass asks for, for the brake to remember.
fn asked(policy: &Policy, snapshot: &Snapshot, relief: &Relief) -> Option<Kill> {
    let victim = relief.candidates.first()?;
    Some(Kill {
        pod: victim.pod.uid.clone(),
        at: snapshot.at,
        gives: victim.expected.unwrap_or(0),
        before: Split::of(relief.threshold.signal, policy.layout, snapshot)?,
        is_in_vain: false,
    })
}

fn victim(
    policy: &Policy,
    threshold: &Threshold,
    observation: Observation,
    ranked: &Ranked<'_>,
) -> Victim {
    Victim {
        pod: ranked.reading.facts.pod.clone(),
        grace: grace(policy, threshold, ranked.reading),
        message: threshold_message(threshold, &observation, ranked.reading),
        cause: EvictionCause::Threshold {
            threshold: threshold.clone(),
            observation,
        },
        expected: ranked.usage,
    }
}

/// Whether the threshold is over once the pods are gone that end as soon as one evicted for it would.
fn ends_soon_enough(
    policy: &Policy,
    state: &State,
    snapshot: &Snapshot,
    threshold: &Threshold,
    observation: &Observation,
    ranked: &[Ranked<'_>],
) -> bool {
    let is_on_time = |it: &&Ranked<'_>| {
        let end = state.ending.get(&it.reading.facts.pod.uid);
        end.is_some_and(|end| snapshot.at <= end.saturating_add(OVERDUE))
    };
    let freed: u64 = ranked
        .iter()
        .filter(|it| ends_sooner(policy, it.reading, grace(policy, threshold, it.reading)))
        .filter(is_on_time)
        .filter_map(|it| it.usage)
        .fold(0, u64::saturating_add);
    if freed == 0 {
        return false;
    }
    let freed = i64::try_from(freed).unwrap_or(i64::MAX);
    let after = Observation {
        available: observation.available.saturating_add(freed),
        ..*observation
    };
    let after = BTreeMap::from([(threshold.signal, after)]);
    !is_met(threshold, &after, MinReclaim::Added)
}
