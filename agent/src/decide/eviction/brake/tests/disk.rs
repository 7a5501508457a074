//! Space and inodes of the disk on which pods have their files.

use super::*;
use crate::model::eviction::{DiskUse, VolumeFacts};

const KIB: u64 = 1 << 10;
const DISK: u64 = 100 << 30;
const FREE: u64 = 10 << 30;
const NODEFS: &[Signal] = &[Signal::NodeFsAvailable];
const INODES: &[Signal] = &[Signal::NodeFsInodesFree];

/// Puts a pod later in the order of eviction.
type Claim = fn(&mut PodFacts);

/// A disk on which pods and others write. What pods have is measured by each pass and known to the next; what one
/// that went had is removed a pass later. As in the agent nobody goes by what was measured before it was short.
struct Disk {
    policy: Policy,
    state: State,
    at: Duration,
    outside: u64,
    pods: BTreeMap<String, u64>,
    /// As measured a pass ago. A pod that is not in it was never measured.
    measured: BTreeMap<String, u64>,
    measured_at: Duration,
    /// Of pods that are never measured.
    unknown: Vec<String>,
    claims: BTreeMap<String, Claim>,
    /// Or since the last one was removed.
    short_since: Option<Duration>,
    removing: u64,
    /// Passes more that it takes to remove them.
    removal_takes: u32,
    gone: Vec<String>,
}

impl Disk {
    fn new(compat: Compat, signals: &[Signal], n_pods: u32, bytes: u64) -> Self {
        let pods = (0..n_pods).map(|i| (format!("pod-{i:02}"), bytes));
        let threshold = |signal: &Signal| Threshold {
            signal: *signal,
            amount: Amount::Quantity(Quantity::from_bytes(FREE)),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let mut disk = Self {
            policy: Policy {
                thresholds: signals.iter().map(threshold).collect(),
                ..Scene::new(compat, 0, 0).policy
            },
            state: State::new(),
            at: Duration::from_secs(1000),
            outside: 0,
            pods: pods.collect(),
            measured: BTreeMap::new(),
            measured_at: Duration::ZERO,
            unknown: Vec::new(),
            claims: BTreeMap::new(),
            short_since: None,
            removing: 0,
            removal_takes: 0,
            gone: Vec::new(),
        };
        disk.outside = DISK - FREE - disk.of_pods() - 10 * MIB;
        disk.pass();
        disk.pass();
        assert!(disk.gone.is_empty());
        disk
    }

    fn of_pods(&self) -> u64 {
        self.pods.values().sum()
    }

    fn brake(&self) -> &Brake {
        let layout = self.policy.layout;
        let signal = self.policy.thresholds[0].signal;
        self.state.brakes.get(layout, signal).unwrap()
    }

    fn reading(&self, name: &String) -> PodReading {
        let mut facts = PodFacts {
            volumes: vec![VolumeFacts {
                name: "data".to_owned(),
                is_local: true,
                size_limit: None,
            }],
            ..PodFacts::bare(PodRef {
                namespace: "default".to_owned(),
                name: name.clone(),
                uid: PodUid(name.clone()),
            })
        };
        if let Some(claim) = self.claims.get(name) {
            claim(&mut facts);
        }
        let measured = self.measured.get(name);
        let volumes = measured.map(|bytes| {
            // As many inodes: what a signal measures is an amount like any other.
            let (bytes, inodes) = (Some(*bytes), Some(*bytes));
            ("data".to_owned(), DiskUse { bytes, inodes })
        });
        PodReading {
            facts: Arc::new(facts),
            figures: Some(PodFigures {
                volumes: volumes.into_iter().collect(),
                disk_at: measured.map(|_| self.measured_at),
                ..PodFigures::default()
            }),
            ends_within: None,
        }
    }

    fn pass(&mut self) -> Decision {
        self.at += Duration::from_secs(1);
        match self.removal_takes.checked_sub(1) {
            Some(left) => self.removal_takes = left,
            None if self.removing > 0 => {
                self.removing = 0;
                self.short_since = None;
            }
            None => {}
        }
        let used = self.of_pods() + self.outside + self.removing;
        let observation = Observation {
            available: i64::try_from(DISK.saturating_sub(used)).unwrap(),
            capacity: i64::try_from(DISK).unwrap(),
            at: Some(self.at),
        };
        let signals = self.policy.thresholds.iter().map(|it| it.signal);
        let snapshot = Snapshot {
            at: self.at,
            observations: signals.map(|it| (it, observation)).collect(),
            pods: self.pods.keys().map(|it| self.reading(it)).collect(),
            is_leaving: self.removing > 0,
            ..Snapshot::default()
        };
        let decision = synchronize(&self.policy, &self.state, &snapshot);
        self.state = decision.state.clone();
        let is_short = !decision.state.met.is_empty();
        let short_since = self.short_since.unwrap_or(self.at);
        self.short_since = is_short.then_some(short_since);
        if let Some(Action::Relieve(relief)) = &decision.action
            && self.removing == 0
            && self.measured_at >= short_since
            && let Some(victim) = relief.candidates.first()
        {
            self.removing = self.pods.remove(&victim.pod.name).unwrap();
            self.gone.push(victim.pod.name.clone());
        }
        let known = self.pods.iter();
        let known = known.filter(|(it, _)| !self.unknown.contains(it));
        self.measured = known.map(|(name, bytes)| (name.clone(), *bytes)).collect();
        self.measured_at = self.at;
        decision
    }

    /// What is outside grows before each of so many passes. In how many of them nobody went because of it.
    fn fill(&mut self, n_passes: u32, bytes: u64) -> usize {
        let is_held = |decision: &Decision| match &decision.action {
            Some(Action::Relieve(relief)) => relief.is_ineffective,
            _ => false,
        };
        let passes = (0..n_passes).map(|_| {
            self.outside += bytes;
            self.pass()
        });
        passes.filter(is_held).count()
    }

    /// A pod writes so much before each of so many passes, and stands still for many more.
    fn write(&mut self, pod: &str, n_passes: u32, bytes: u64) {
        for i in 0..n_passes + 40 {
            if let Some(used) = self.pods.get_mut(pod).filter(|_| i < n_passes) {
                *used += bytes;
            }
            self.pass();
        }
    }
}

#[test]
fn nobody_goes_for_a_disk_that_no_pod_has_filled() {
    for signals in [NODEFS, INODES] {
        let mut disk = Disk::new(Compat::Ballast, signals, 20, 8 * KIB);
        assert_eq!(disk.fill(100, 20 * MIB), 100, "{signals:?}");
        // Nor later, when it is full to the last.
        disk.at += DISK_WINDOW * 3;
        assert_eq!(disk.fill(100, 200 * MIB), 100, "{signals:?}");
        assert!(disk.gone.is_empty(), "{signals:?}: {:?}", disk.gone);

        let mut kubelet = Disk::new(Compat::Kubelet, signals, 20, 8 * KIB);
        assert_eq!(kubelet.fill(100, 20 * MIB), 0, "{signals:?}");
        assert_eq!(
            kubelet.gone.len(),
            20,
            "{signals:?}: kubelet goes on until nobody is left"
        );
    }
}

#[test]
fn those_with_a_good_part_of_the_need_go_until_it_is_seen_to_be_in_vain() {
    for signals in [NODEFS, INODES] {
        let mut disk = Disk::new(Compat::Ballast, signals, 20, 100 * MIB);
        disk.fill(200, 20 * MIB);
        assert_eq!(disk.gone.len(), 4, "{signals:?}: {:?}", disk.gone);
        let in_vain = disk.brake().kills.iter().filter(|it| it.is_in_vain);
        assert_eq!(in_vain.count(), 4, "{signals:?}");
    }
}

/// What each of them gave lasts for ten minutes.
#[test]
fn a_slow_leak_takes_no_more_of_them() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 20, 1024 * MIB);
    for _ in 0..1000 {
        // Passes are 10 s apart while nothing is short.
        if disk.short_since.is_none() {
            disk.at += Duration::from_secs(9);
        }
        disk.fill(1, 17 * MIB);
    }
    assert_eq!(disk.gone.len(), 4, "{:?}", disk.gone);
}

#[test]
fn after_evictions_in_vain_a_pod_that_fills_it_goes_all_the_same() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 20, 100 * MIB);
    disk.fill(200, 20 * MIB);
    assert_eq!(disk.gone.len(), 4);
    // Somebody makes room, and a pod takes it.
    disk.outside -= 8 << 30;
    disk.pass();
    assert!(disk.short_since.is_none());
    for _ in 0..100 {
        let Some(bytes) = disk.pods.get_mut("pod-19") else {
            break;
        };
        *bytes += 300 * MIB;
        disk.pass();
    }
    assert_eq!(disk.gone[4..], ["pod-19"]);
}

/// Each with little of what is short: one after the other they give it back, from whenever anybody looks.
#[test]
fn a_disk_that_many_pods_have_filled_is_relieved_by_them() {
    for is_seen_calm in [true, false] {
        let mut disk = Disk::new(Compat::Ballast, NODEFS, 40, 8 * KIB);
        if !is_seen_calm {
            disk.state = State::new();
        }
        disk.outside = 10 << 30;
        let each = (DISK - disk.outside) / 40;
        disk.pods.values_mut().for_each(|bytes| *bytes = each);
        for _ in 0..200 {
            disk.pass();
        }
        assert!(disk.of_pods() + disk.outside <= DISK - FREE);
        assert!(disk.gone.len() < 20, "{:?}", disk.gone);
    }
}

#[test]
fn the_pod_that_fills_it_goes_at_once_and_alone() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 20, 8 * KIB);
    for _ in 0..5 {
        let bytes = disk.pods.entry("pod-19".to_owned()).or_default();
        *bytes += 500 * MIB;
        disk.pass();
        if !disk.gone.is_empty() {
            break;
        }
    }
    assert_eq!(disk.gone, ["pod-19"]);
    for _ in 0..20 {
        disk.pass();
    }
    assert_eq!(disk.gone.len(), 1);
}

/// All at once and then no more, or in steps that are measured as they are made.
#[test]
fn the_pod_that_fills_it_goes_before_those_that_the_order_puts_first() {
    let claims: [(&str, Claim); 2] = [
        ("priority", |it| it.priority = 1000),
        ("request", |it| {
            it.storage_request = Quantity::from_bytes(DISK);
        }),
    ];
    for (row, claim) in claims {
        for (n_passes, bytes) in [(1, 500 * MIB), (5, 10 * MIB)] {
            let gone = |compat| {
                let mut disk = Disk::new(compat, NODEFS, 9, 8 * KIB);
                disk.claims.insert("pod-08".to_owned(), claim);
                disk.write("pod-08", n_passes, bytes);
                disk.gone
            };
            let ours = gone(Compat::Ballast);
            assert_eq!(ours, ["pod-08"], "{row}, {n_passes} passes");
            let kubelets = gone(Compat::Kubelet);
            assert_eq!(kubelets.len(), 9, "{row}, {n_passes} passes");
            assert_eq!(kubelets[8], "pod-08");
        }
    }
}

/// What stands there for long is not gone for because it is the largest.
#[test]
fn those_that_have_enough_together_go_before_a_larger_one_that_ranks_later() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 11, 8 * KIB);
    disk.claims
        .insert("pod-10".to_owned(), |it| it.priority = 1000);
    disk.outside -= 3 << 30;
    *disk.pods.get_mut("pod-10").unwrap() += 3 << 30;
    disk.pass();
    disk.pass();
    for (name, used) in &mut disk.pods {
        *used += if name == "pod-10" { 0 } else { 2 << 30 };
    }
    for _ in 0..60 {
        disk.pass();
    }
    assert_eq!(disk.gone.len(), 10, "{:?}", disk.gone);
    assert!(disk.pods.contains_key("pod-10"));
}

/// What they have written since they were measured seems to be outside of them.
#[test]
fn pods_whose_figures_lag_behind_are_not_taken_for_others() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 20, 100 * MIB);
    for i in 0..10 {
        let name = format!("pod-{i:02}");
        for _ in 0..200 {
            let Some(bytes) = disk.pods.get_mut(&name) else {
                break;
            };
            *bytes += 300 * MIB;
            disk.pass();
        }
        let kills = &disk.brake().kills;
        assert!(kills.iter().all(|it| !it.is_in_vain), "{i}: {kills:#?}");
        assert!(disk.gone.contains(&name), "{name}: {:?}", disk.gone);
    }
}

#[test]
fn files_that_are_still_being_removed_prove_nothing() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 20, 100 * MIB);
    disk.outside += 50 * MIB;
    disk.pass();
    disk.pass();
    assert_eq!(disk.gone.len(), 1);
    disk.removal_takes = 10;
    for _ in 0..10 {
        disk.pass();
        let mut kills = disk.brake().kills.iter();
        assert!(kills.all(|it| !it.is_in_vain));
    }
    disk.fill(20, MIB);
    assert_eq!(disk.gone.len(), 1, "it gave enough");
}

#[test]
fn what_is_not_known_of_a_pod_proves_nothing_and_is_no_reason_to_go() {
    let mut disk = Disk::new(Compat::Ballast, NODEFS, 20, 100 * MIB);
    disk.unknown.push("pod-00".to_owned());
    disk.pass();
    disk.fill(100, 20 * MIB);
    assert!(disk.brake().kills.iter().all(|it| !it.is_in_vain));
    assert!(disk.gone.len() > 4, "it may be the one that writes");
    assert!(!disk.gone.contains(&"pod-00".to_owned()));
}

#[test]
fn signals_of_one_file_system_have_one_brake() {
    let both = [Signal::ImageFsAvailable, Signal::NodeFsAvailable];
    let mut disk = Disk::new(Compat::Ballast, &both, 20, 100 * MIB);
    // The one is met before the other.
    let more = Quantity::from_bytes(FREE + 5 * MIB);
    disk.policy.thresholds[0].amount = Amount::Quantity(more);
    disk.fill(200, 20 * MIB);
    assert_eq!(disk.gone.len(), 4, "{:?}", disk.gone);
    let brakes = &disk.state.brakes;
    let kills = |layout, signal| brakes.get(layout, signal).unwrap().kills.len();
    assert_eq!(kills(FsLayout::One, Signal::ImageFsAvailable), 4);
    assert_eq!(kills(FsLayout::ImageFs, Signal::ImageFsAvailable), 0);
}

#[test]
fn a_threshold_for_which_nobody_goes_hides_no_other() {
    let both = [Signal::NodeFsAvailable, Signal::PidAvailable];
    let mut disk = Disk::new(Compat::Ballast, &both, 3, 8 * KIB);
    disk.outside += 500 * MIB;
    let decision = disk.pass();
    // Of process ids nothing is known here: the disk stays the one that something is done about.
    let Some(Action::Relieve(relief)) = &decision.action else {
        panic!("{:?}", decision.action);
    };
    assert!(relief.is_ineffective && relief.candidates.is_empty());
    assert_eq!(relief.threshold.signal, Signal::NodeFsAvailable);
    let blocked: Vec<_> = decision.blocked.iter().map(|it| it.reason).collect();
    assert_eq!(blocked, [BlockedReason::Unknown]);
}
