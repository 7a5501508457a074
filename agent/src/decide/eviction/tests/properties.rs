//! Random stories.

use super::*;
use crate::model::random::Random;

impl Random {
    fn is(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn policy(&mut self, compat: Compat) -> Policy {
        let mut thresholds = Vec::new();
        for signal in Signal::ALL {
            for grace in [0, 20] {
                if self.is(2) {
                    let amount = 1 + self.below(1000);
                    let mut it = threshold(signal, amount, grace);
                    if self.is(2) {
                        it = reclaiming(it, self.below(300));
                    }
                    thresholds.push(it);
                }
            }
        }
        let layouts = [
            FsLayout::One,
            FsLayout::ImageFs,
            FsLayout::Split,
            FsLayout::ContainerFs,
        ];
        let layout = usize::try_from(self.below(4)).expect("an index");
        Policy {
            n_known_at_first: thresholds.len(),
            transition_period: secs(self.below(60)),
            max_pod_grace: secs(self.below(40)),
            limits_local_storage: self.is(2),
            layout: layouts[layout],
            ..story(compat, &thresholds).policy
        }
    }

    fn pod_reading(&mut self, i: u64) -> PodReading {
        let mut pod = volume(self.below(200), self.below(200)).facts(|it| {
            it.pod.name = format!("p{i}");
            it.pod.uid = PodUid(format!("p{i}"));
        });
        if self.is(2) {
            pod = pod.memory(self.below(1000), self.below(1000));
        }
        let (tasks, processes) = (self.below(100), self.below(100));
        let (knows_tasks, knows_nothing) = (self.is(2), self.is(4));
        pod = pod.priority(i32::try_from(self.below(3)).expect("small"));
        pod = pod.figures(|it| {
            it.tasks = knows_tasks.then_some(tasks);
            it.processes = knows_tasks.then_some(processes);
        });
        if knows_nothing {
            pod.figures = None;
        }
        if self.is(5) {
            pod = pod.critical();
        }
        if self.is(4) {
            pod.ends_within = Some(secs(self.below(30)));
        }
        pod
    }

    fn snapshot(&mut self, at: u64) -> Snapshot {
        let mut available = Vec::new();
        for signal in Signal::ALL {
            if !self.is(4) {
                available.push((signal, self.below(1500)));
            }
        }
        let n_pods = self.below(5);
        let age = if self.is(4) { 10 } else { 0 };
        Snapshot {
            at: secs(at),
            observations: observed(at.saturating_sub(age), &available),
            pods: (0..n_pods).map(|i| self.pod_reading(i)).collect(),
            ..Snapshot::default()
        }
    }
}

fn victims(decision: &Decision) -> &[Victim] {
    match &decision.action {
        Some(Action::EvictAll { victims }) => victims,
        Some(Action::Relieve(relief)) => &relief.candidates,
        None => &[],
    }
}

/// 1, 5, 7, 10, and that nothing unknown is acted upon.
fn check_victims(policy: &Policy, snapshot: &Snapshot, decision: &Decision) {
    for victim in victims(decision) {
        let reading = snapshot
            .pods
            .iter()
            .find(|it| it.facts.pod == victim.pod)
            .expect("a pod of the snapshot");
        assert!(!reading.facts.is_critical);
        assert!(reading.ends_within.is_none_or(|left| victim.grace <= left));
        if policy.compat == Compat::Ballast {
            assert!(reading.figures.is_some() && victim.expected.is_some());
            assert!(reading.ends_within.is_none_or(|left| victim.grace < left));
        }
        match &victim.cause {
            EvictionCause::Threshold {
                threshold,
                observation,
            } => {
                let seen = snapshot.observations.get(&threshold.signal);
                assert_eq!(seen, Some(observation), "5: acts on what was observed");
                let amount = threshold_quantity(threshold, observation);
                let facts = format!(
                    ": {}. Threshold quantity: {amount}",
                    threshold.signal.resource()
                );
                assert!(victim.message.contains(&facts), "7: {}", victim.message);
            }
            EvictionCause::LocalStorage { .. } => assert!(policy.limits_local_storage),
            EvictionCause::Stall | EvictionCause::Preemption { .. } => {
                panic!("no pass decides by {}", victim.cause.label())
            }
        }
    }
}

#[test]
fn on_random_stories() {
    let mut n_acted = 0;
    for seed in 0..600 {
        let mut random = Random(seed);
        let compat = COMPATS[usize::from(random.is(2))];
        let policy = random.policy(compat);
        let mut state = State::new();
        let mut at = 0;
        for _ in 0..20 {
            at += 1 + random.below(15);
            let snapshot = random.snapshot(at);
            let before = state.condition_seen.clone();
            let decision = synchronize(&policy, &state, &snapshot);
            n_acted += u32::from(decision.action.is_some());
            check_victims(&policy, &snapshot, &decision);

            // 3: the order of the pods changes nothing but the order of those over limits.
            let mut reversed = snapshot.clone();
            reversed.pods.reverse();
            let again = synchronize(&policy, &state, &reversed);
            if !matches!(decision.action, Some(Action::EvictAll { .. })) {
                assert_eq!(again, decision, "3: seed {seed}");
            }

            // 4: a snapshot is acted upon once.
            let second = synchronize(&policy, &decision.state, &snapshot);
            match &second.action {
                None => {}
                it => assert_eq!(it, &decision.action, "4: seed {seed}"),
            }

            // 6: with more of everything nothing new is met.
            let mut better = snapshot.clone();
            for it in better.observations.values_mut() {
                it.available += 200;
            }
            let better = synchronize(&policy, &state, &better);
            for it in &better.state.met {
                assert!(decision.state.met.contains(it), "6: seed {seed}");
            }

            // 9: a condition stays for the transition period.
            for (condition, seen) in before {
                let is_young = secs(at) - seen < policy.transition_period;
                assert!(
                    !is_young || decision.conditions.contains(&condition),
                    "9: seed {seed}"
                );
            }
            state = decision.state;
        }
    }
    assert!(n_acted > 1000, "{n_acted} passes acted");
}
