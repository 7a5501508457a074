//! Whole lives of random pods on a runtime that is only arithmetic. What must hold in every one of
//! them is asserted at every step; a failure names the seed, which replays it.

use std::collections::BTreeMap;

use super::*;
use crate::model::random::Random;

const SEEDS: u64 = 2_000;
/// Lives are cut off here; long enough for the back-off to reach its maximum.
const HORIZON: Duration = Duration::from_secs(3_600);
/// From SIGKILL to the last process gone.
const DEATH: Duration = Duration::from_millis(50);

impl Random {
    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.below(below))
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        let n = u64::try_from(items.len()).expect("a short list");
        items[usize::try_from(self.below(n)).expect("below its length")]
    }
}

/// One instance in the world, whatever the records say.
struct Instance {
    attempt: u32,
    /// When it shows as running, or as failed to start.
    shows_at: Duration,
    fails_to_start: bool,
    started_at: Option<Duration>,
    ends_at: Duration,
    exit: ContainerExit,
    ignores_sigterm: bool,
    /// Forks that outlive the main process until they are killed.
    leaves_children: bool,
}

/// What has happened to one container so far.
#[derive(Default)]
struct History {
    has_run: bool,
    has_succeeded: bool,
    last_end: Option<Duration>,
    last_attempt: Option<u32>,
    last_delay: Duration,
}

struct World {
    seed: u64,
    random: Random,
    story: Story,
    alive: BTreeMap<String, Instance>,
    history: BTreeMap<String, History>,
    deletions: Vec<(Duration, Deletion)>,
    spec_changes: Vec<Duration>,
    /// Ends of absences of the agent, all before the first deletion.
    away: Vec<(Duration, Duration)>,
    was_running: bool,
    n_starts: u64,
    n_kills: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let policy = random.pick(&[
            RestartPolicy::Always,
            RestartPolicy::OnFailure,
            RestartPolicy::Never,
        ]);
        let mut words = Vec::new();
        for n in 0..random.below(4) {
            let kind = random.pick(&["init", "sidecar"]);
            words.push(format!("{kind}:i{n}=new"));
        }
        for n in 0..=random.below(2) {
            words.push(format!("main:m{n}=new"));
        }
        let mut story = story(policy, &words.join(" "));
        story.pod.termination_grace = secs(random.pick(&[0, 1, 5, 30]));
        story.settings.compat = random.pick(&[Compat::Ballast, Compat::Kubelet]);
        story.now = secs(100);

        let mut deletions = Vec::new();
        let mut until = HORIZON;
        if random.chance(75) {
            let within = random.pick(&[100, 3_000, 60_000, 1_000_000]);
            let at = secs(100) + random.millis(within);
            until = at;
            let mut push = |at: Duration, grace: u64, reason| {
                deletions.push((
                    at,
                    Deletion {
                        requested_at: at,
                        grace: secs(grace),
                        reason,
                    },
                ));
            };
            push(at, random.pick(&[0, 1, 2, 5, 30]), DeletionReason::Removed);
            if random.chance(30) {
                let later = at + random.millis(20_000);
                push(later, random.pick(&[0, 1, 5]), DeletionReason::Evicted);
            }
        }
        let mut spec_changes = Vec::new();
        let mut away = Vec::new();
        while random.chance(40) {
            spec_changes.push(secs(100) + random.millis(600_000));
            let from = secs(100) + random.millis(600_000);
            let to = from + random.millis(120_000);
            if to < until {
                away.push((from, to));
            }
        }
        spec_changes.sort();
        Self {
            seed,
            random,
            story,
            alive: BTreeMap::new(),
            history: BTreeMap::new(),
            deletions,
            spec_changes,
            away,
            was_running: false,
            n_starts: 0,
            n_kills: 0,
        }
    }

    /// Lives the life to its end or to the horizon.
    fn live(&mut self) -> PodDecision {
        let mut is_over = false;
        loop {
            self.let_things_happen();
            let decision = self.decide_and_act();
            assert!(
                !is_over || decision.phase.is_terminal(),
                "seed {}: a terminal phase came back",
                self.seed
            );
            is_over = decision.phase.is_terminal();
            let next = self.next_event(&decision);
            match next {
                Some(at) if at < HORIZON => self.story.now = at,
                _ => return decision,
            }
        }
    }

    /// Everything of the world up to now becomes visible.
    fn let_things_happen(&mut self) {
        let now = self.story.now;
        while self.spec_changes.first().is_some_and(|it| *it <= now) {
            self.spec_changes.remove(0);
            let n = self.random.below(1 << 32);
            let mains = &mut self.story.pod.containers;
            if let Some(container) = mains.last_mut() {
                container.args = vec![n.to_string()];
            }
        }
        while self.deletions.first().is_some_and(|it| it.0 <= now) {
            let (_, deletion) = self.deletions.remove(0);
            let merged = self
                .story
                .deletion
                .map_or(deletion, |first| first.merge(deletion));
            self.story.deletion = Some(merged);
        }
        let names: Vec<String> = self.alive.keys().cloned().collect();
        for name in names {
            self.show(&name, now);
        }
    }

    fn show(&mut self, name: &str, now: Duration) {
        let Some(instance) = self.alive.get_mut(name) else {
            return;
        };
        let history = self.history.entry(name.to_owned()).or_default();
        let status = self.story.status(name);
        if instance.started_at.is_none() && instance.shows_at <= now && !instance.fails_to_start {
            instance.started_at = Some(instance.shows_at);
            history.has_run = true;
            status.state = ContainerState::Running {
                started_at: instance.shows_at,
            };
        }
        let (finished_at, exit) = match instance.started_at {
            None if instance.fails_to_start && instance.shows_at <= now => {
                (instance.shows_at, ContainerExit::StartFailed)
            }
            _ if instance.ends_at <= now => (instance.ends_at, instance.exit),
            _ => return,
        };
        let termination = Termination {
            started_at: instance.started_at,
            finished_at,
            exit,
            oom_killed: false,
            message: None,
        };
        if instance.leaves_children && instance.started_at.is_some() {
            status.state = ContainerState::Ending(termination);
            return;
        }
        status.state = ContainerState::Exited(termination);
        history.has_succeeded |= exit.is_success();
        history.last_end = Some(finished_at);
        self.alive.remove(name);
    }

    fn decide_and_act(&mut self) -> PodDecision {
        let (seed, now) = (self.seed, self.story.now);
        let before = self.story.clone();
        let decision = self.story.step();
        assert_eq!(before.decide(), decision, "seed {seed}: same view");
        let again = self.story.decide();
        assert_eq!(again.actions, [], "seed {seed}: asked again at {now:?}");
        assert_eq!(again.backoff, decision.backoff, "seed {seed}");
        assert_eq!(again.next_wake, decision.next_wake, "seed {seed}: wake");
        assert!(
            decision.next_wake.is_none_or(|it| it > now),
            "seed {seed}: wake in the past"
        );
        assert!(
            !(decision.phase.is_terminal() || decision.is_finished) || self.alive.is_empty(),
            "seed {seed}: over while something runs"
        );
        assert!(
            !(self.was_running && decision.phase == PodPhase::Pending),
            "seed {seed}: back to pending at {now:?}"
        );
        self.was_running |= decision.phase == PodPhase::Running;

        for action in &decision.actions {
            match action {
                ContainerAction::Start {
                    container, attempt, ..
                } => self.start(&before, container, *attempt),
                ContainerAction::Terminate {
                    container, grace, ..
                } => self.terminate(&before, container, *grace),
                ContainerAction::Kill { container, .. } => self.kill(&before, container),
            }
        }
        if let Some(deletion) = self.story.deletion {
            // The grace, the minimum for whoever was told last, and the time to die.
            let end = deletion.requested_at + deletion.grace.max(MINIMUM_GRACE) + MINIMUM_GRACE;
            assert!(
                now <= end + DEATH || self.alive.is_empty(),
                "seed {seed}: {:?} outlived {deletion:?}",
                self.alive.keys()
            );
        }
        decision
    }

    fn start(&mut self, before: &Story, name: &str, attempt: u32) {
        let (seed, now) = (self.seed, self.story.now);
        assert!(
            !self.alive.contains_key(name),
            "seed {seed}: two instances of {name}"
        );
        assert_eq!(
            self.story.deletion, None,
            "seed {seed}: {name} started though the pod is to go"
        );
        self.check_order(name);
        self.check_backoff(before, name);

        let history = self.history.entry(name.to_owned()).or_default();
        let expected = history.last_attempt.map_or(0, |it| it + 1);
        assert_eq!(attempt, expected, "seed {seed}: attempt of {name}");
        history.last_attempt = Some(attempt);

        self.n_starts += 1;
        let random = &mut self.random;
        let shows_at = now + Duration::from_millis(1) + random.millis(1_000);
        let lasts = random.pick(&[10, 2_000, 60_000, 700_000, 5_000_000]);
        let instance = Instance {
            attempt,
            shows_at,
            fails_to_start: random.chance(5),
            started_at: None,
            ends_at: shows_at + Duration::from_millis(1) + random.millis(lasts),
            exit: random.pick(&[
                ContainerExit::Code(0),
                ContainerExit::Code(0),
                ContainerExit::Code(1),
                ContainerExit::Signal(9),
                ContainerExit::Unknown,
            ]),
            ignores_sigterm: random.chance(30),
            leaves_children: random.chance(20),
        };
        self.alive.insert(name.to_owned(), instance);
    }

    /// Every init container before this one has had its turn.
    fn check_order(&self, name: &str) {
        let pod = &self.story.pod;
        for earlier in pod.init_containers.iter().take_while(|it| it.name != name) {
            let history = self.history.get(&earlier.name);
            let is_passed = history.is_some_and(|it| match earlier.is_sidecar {
                true => it.has_run,
                false => it.has_succeeded,
            });
            assert!(
                is_passed,
                "seed {}: {name} before {}",
                self.seed, earlier.name
            );
            assert!(
                earlier.is_sidecar || !self.alive.contains_key(&earlier.name),
                "seed {}: {name} beside {}",
                self.seed,
                earlier.name
            );
        }
    }

    /// The wait that was promised has passed, and the next is longer up to the maximum, unless the
    /// record is a clean one.
    fn check_backoff(&mut self, before: &Story, name: &str) {
        let seed = self.seed;
        let history = self.history.entry(name.to_owned()).or_default();
        let Some(end) = history.last_end else { return };
        let entry = self
            .story
            .backoff
            .entry(name)
            .expect("a restart is counted");
        assert!(entry.delay <= secs(300), "seed {seed}: wait of {name}");
        assert_eq!(entry.last_start, self.story.now, "seed {seed}: {name}");
        let held_back = before.backoff.entry(name).filter(|it| {
            it.spec_hash == entry.spec_hash && end.saturating_sub(it.last_start) <= secs(600)
        });
        match held_back {
            Some(previous) => {
                assert!(
                    self.story.now >= end + previous.delay,
                    "seed {seed}: {name} did not wait"
                );
                let doubled = (history.last_delay * 2).min(secs(300));
                assert_eq!(entry.delay, doubled, "seed {seed}: wait of {name}");
            }
            None => assert_eq!(entry.delay, secs(10), "seed {seed}: wait of {name}"),
        }
        history.last_delay = entry.delay;
    }

    fn terminate(&mut self, before: &Story, name: &str, grace: Duration) {
        let (seed, now) = (self.seed, self.story.now);
        assert!(grace >= MINIMUM_GRACE, "seed {seed}: grace of {name}");
        if let Some(deletion) = before.deletion {
            let is_time_up = now >= deletion.requested_at + deletion.grace;
            let pod = &before.pod;
            let index = pod.init_containers.iter().position(|it| it.name == name);
            let is_sidecar = index.is_some_and(|it| pod.init_containers[it].is_sidecar);
            if is_sidecar && !is_time_up {
                let later = &pod.init_containers[index.expect("a sidecar") + 1..];
                let first: Vec<_> = later
                    .iter()
                    .filter(|it| it.is_sidecar)
                    .chain(&pod.containers)
                    .filter(|it| self.alive.contains_key(&it.name))
                    .map(|it| &it.name)
                    .collect();
                assert!(first.is_empty(), "seed {seed}: {name} before {first:?}");
            }
        }
        let takes = self.random.millis(40_000);
        let instance = self.alive.get_mut(name).expect("only the living are told");
        assert!(
            instance.started_at.is_some(),
            "seed {seed}: {name} is only starting"
        );
        if !instance.ignores_sigterm && now + takes < instance.ends_at {
            instance.ends_at = now + Duration::from_millis(1) + takes;
            instance.exit = ContainerExit::Signal(15);
        }
    }

    fn kill(&mut self, before: &Story, name: &str) {
        let (seed, now) = (self.seed, self.story.now);
        self.n_kills += 1;
        let status = before.containers.iter().find(|it| it.name == name);
        let status = status.expect("it has a record");
        let is_left_over = matches!(status.state, ContainerState::Ending(_));
        match status.stop {
            _ if is_left_over => {}
            Some(stop) => {
                let since = now - stop.requested_at;
                let is_at_once = before.deletion.is_some_and(|it| it.grace.is_zero());
                assert!(
                    since >= stop.grace.min(MINIMUM_GRACE) || is_at_once,
                    "seed {seed}: {name} killed after {since:?}"
                );
            }
            None => assert!(
                before.deletion.is_some_and(
                    |it| it.grace.is_zero() || status.state == ContainerState::Starting
                ),
                "seed {seed}: {name} was not told first"
            ),
        }
        let instance = self
            .alive
            .get_mut(name)
            .expect("only the living are killed");
        assert_eq!(instance.attempt, status.attempt, "seed {seed}: {name}");
        instance.leaves_children = false;
        instance.shows_at = instance.shows_at.min(now + DEATH);
        if is_left_over {
            instance.ends_at = now + DEATH;
        } else if now + DEATH < instance.ends_at {
            instance.ends_at = now + DEATH;
            instance.exit = ContainerExit::Signal(9);
        }
    }

    /// `None`: nothing is to come, so the pod must be over.
    fn next_event(&self, decision: &PodDecision) -> Option<Duration> {
        let now = self.story.now;
        let instances = self.alive.values().map(|it| match it.started_at {
            None => it.shows_at,
            Some(_) => it.ends_at,
        });
        let next = instances
            .chain(decision.next_wake)
            .chain(self.deletions.iter().map(|it| it.0))
            .chain(self.spec_changes.iter().copied())
            .min();
        assert!(
            next.is_some() || decision.is_finished,
            "seed {}: the pod is stuck at {now:?}: {:?}",
            self.seed,
            self.story.containers
        );
        // An agent that is away sees it all when it is back.
        let back = |at: Duration| {
            let absence = self.away.iter().find(|it| it.0 <= at && at < it.1);
            absence.map_or(at, |it| it.1)
        };
        next.map(|at| back(at.max(now + Duration::from_millis(1))))
    }
}

#[test]
fn every_life_keeps_the_rules() {
    let (mut n_starts, mut n_kills, mut n_finished) = (0, 0, 0);
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        let has_deletion = !world.deletions.is_empty();
        let last = world.live();
        assert!(
            !has_deletion || last.is_finished,
            "seed {seed}: the pod did not go"
        );
        n_starts += world.n_starts;
        n_kills += world.n_kills;
        n_finished += u64::from(last.is_finished);
    }
    // The lives must reach what the rules are about.
    assert!(n_starts > 4 * SEEDS, "{n_starts} starts");
    assert!(n_kills > SEEDS / 4, "{n_kills} kills");
    assert!(n_finished > SEEDS / 2, "{n_finished} pods finished");
}
