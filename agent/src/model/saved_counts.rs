//! Counts that go on when the agent starts again: by metric family, and by cgroup.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::cgroup_files::{CountOf, OomCount};
use super::cgroup_path::CgroupPath;
use super::event::CgroupId;

/// What the sealed file says it holds, and its format.
pub const KIND: &str = "SavedCounts";
pub const VERSION: u32 = 1;

/// Families by name. A family that a reader does not know is passed over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SavedCounts(pub BTreeMap<String, Vec<SavedSeries>>);

/// One series of a family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedSeries {
    pub labels: BTreeMap<String, String>,
    /// A count, or seconds since the Unix epoch.
    pub value: f64,
}

/// Stands among the families: how many kills of a cgroup are known. An agent that does not know it passes
/// it over.
const KNOWN: &str = "known_oom_kills";
/// Stands there too: the number of the last kill that is counted.
const LAST_NUMBER: &str = "last_oom_kill_number";
/// Stands there too: how many kills of a cgroup are counted of which not all are known.
const OPEN: &str = "open_oom_kills";
/// Stands there too: below which cgroups these lie.
const ROOTS: &str = "known_oom_kills_below";
/// Stands there too: those of pods are among them, with what is gone of the pods (v2).
const OF_PODS: &str = "known_oom_kills_of_pods";
/// Stands there too: what of the rings is counted.
const UNTIL: &str = "oom_kills_counted_until_ns";
const BY: &str = "by";
const PROGRAMS: &str = "programs";
const COMPARISON: &str = "comparison";
const PATH: &str = "cgroup";
const POD: &str = "pod_cgroup_id";
const IS_POD: &str = "is_pod";
const UNWATCHED: &str = "unwatched";
const AMBIGUOUS: &str = "ambiguous";
const BOOT_ID: &str = "boot_id";
const CGROUP_ID: &str = "cgroup_id";

/// Stands there too: kills by the pod and the container, as [`KillsByContainer`] has them.
const BY_ID: &str = "oom_kills_by_id";
const POD_UID: &str = "pod_uid";
const CONTAINER_ID: &str = "container_id";

/// Stands there too: kills of pods whose workload nobody has told.
const WITHOUT_WORKLOAD: &str = "oom_kills_without_workload";

/// Kills of a cgroup that the kernel has counted, of which not all are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenKills {
    /// Of processes, or a count that may have some of them twice.
    pub counted: OomCount,
    pub of: CountOf,
    /// They are of a time when nobody watched.
    pub was_unwatched: bool,
    /// Of the cgroup. `None`: nobody knew.
    pub path: Option<CgroupPath>,
}

/// Until when kills are counted, boottime. What a program notes for the next agent may have been counted by this one: by a
/// program of its own, where it could not adopt that one, or from the kernel's counts, where it had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CountedUntil {
    /// When the last kill was that a program reported.
    pub reported: Duration,
    /// See [`CountedUntil::compare`].
    pub compared: Duration,
}

/// So long after the time of a reading a program may note a kill that is in it: the reading takes a moment, and the kernel
/// counts a kill before it says who it is (`__oom_kill_process`, mm/oom_kill.c). Some 0.1 ms; the rest is for a busy node. A
/// kill that is noted by then and is not in the reading is in the next one, and missed there.
const NOTED_AFTER: Duration = Duration::from_millis(5);

impl CountedUntil {
    /// Kills in pods that no program reported were counted by a reading of this time.
    pub fn compare(&mut self, at: Duration) {
        self.compared = self.compared.max(at.saturating_add(NOTED_AFTER));
    }

    pub fn has(self, at: Duration, is_in_pod: bool) -> bool {
        at <= self.reported || is_in_pod && at <= self.compared
    }
}

/// By the UID of a pod and the name of a container, or its id where nobody has told the name; empty for a kill in none
/// of its containers. A name, of 63 characters at most (RFC 1123), is none of the ids, which have 64.
pub type KillsByContainer = BTreeMap<Box<str>, BTreeMap<Box<str>, u64>>;

impl SavedCounts {
    /// Adds the kills that are known, by cgroup. Ids are those of one boot.
    pub fn set_known_kills(&mut self, known: &BTreeMap<CgroupId, u64>, boot_id: &str) {
        let series = known.iter().map(|(cgroup, n)| SavedSeries {
            labels: of_boot(*cgroup, boot_id),
            value: as_value(*n),
        });
        self.0.insert(KNOWN.to_owned(), series.collect());
    }

    /// Those of this boot. `None`: nobody has saved any, so nobody has counted on this node.
    pub fn known_kills(&self, boot_id: &str) -> Option<BTreeMap<CgroupId, u64>> {
        let known = self.0.get(KNOWN)?.iter().filter_map(|it| {
            let cgroup = cgroup_of(it, boot_id)?;
            Some((cgroup, as_count(it.value)))
        });
        Some(known.collect())
    }

    /// Adds what is counted and not known, as [`SavedCounts::set_known_kills`] does.
    pub fn set_open_kills(&mut self, open: &BTreeMap<CgroupId, OpenKills>, boot_id: &str) {
        let series = open.iter().map(|(cgroup, it)| {
            let mut labels = of_boot(*cgroup, boot_id);
            let path = it.path.iter();
            labels.extend(path.map(|it| (PATH.to_owned(), it.to_string())));
            let of = match it.of {
                CountOf::Cgroup { pod } => pod.map(|it| (POD, it.0.to_string())),
                CountOf::Pod => Some((IS_POD, true.to_string())),
            };
            let unwatched = it.was_unwatched.then(|| (UNWATCHED, true.to_string()));
            let is_ambiguous = it.counted.is_ambiguous();
            let ambiguous = is_ambiguous.then(|| (AMBIGUOUS, true.to_string()));
            let more = of.into_iter().chain(unwatched).chain(ambiguous);
            labels.extend(more.map(|(label, it)| (label.to_owned(), it)));
            let value = as_value(it.counted.kills);
            SavedSeries { labels, value }
        });
        self.set_if_any(OPEN, series);
    }

    /// Those of this boot.
    pub fn open_kills(&self, boot_id: &str) -> BTreeMap<CgroupId, OpenKills> {
        let saved = self.0.get(OPEN).into_iter().flatten();
        let open = saved.filter_map(|it| {
            let pod = it.labels.get(POD).and_then(|it| it.parse().ok());
            let open = OpenKills {
                counted: OomCount {
                    kills: as_count(it.value),
                    group_kills: (!it.labels.contains_key(AMBIGUOUS)).then_some(0),
                },
                of: match it.labels.contains_key(IS_POD) {
                    true => CountOf::Pod,
                    false => CountOf::Cgroup {
                        pod: pod.map(CgroupId),
                    },
                },
                was_unwatched: it.labels.contains_key(UNWATCHED),
                path: it.labels.get(PATH).and_then(|it| it.parse().ok()),
            };
            Some((cgroup_of(it, boot_id)?, open))
        });
        open.collect()
    }

    /// Says that known kills of pods are among them, or nobody would know how many are.
    pub fn set_of_pods(&mut self) {
        let series = SavedSeries {
            labels: BTreeMap::new(),
            value: 1.0,
        };
        self.0.insert(OF_PODS.to_owned(), vec![series]);
    }

    pub fn has_pods(&self) -> bool {
        self.0.contains_key(OF_PODS)
    }

    /// Adds until when kills of this boot are counted.
    pub fn set_counted_until(&mut self, until: CountedUntil, boot_id: &str) {
        let times = [(PROGRAMS, until.reported), (COMPARISON, until.compared)];
        let series = times.map(|(by, at)| SavedSeries {
            labels: BTreeMap::from([
                (BOOT_ID.to_owned(), boot_id.to_owned()),
                (BY.to_owned(), by.to_owned()),
            ]),
            value: as_value(u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)),
        });
        self.0.insert(UNTIL.to_owned(), series.into());
    }

    pub fn counted_until(&self, boot_id: &str) -> CountedUntil {
        let saved = self.0.get(UNTIL).into_iter().flatten();
        let of_boot = saved.filter(|it| it.labels.get(BOOT_ID).is_some_and(|it| it == boot_id));
        let mut until = CountedUntil::default();
        for it in of_boot {
            let at = Duration::from_nanos(as_count(it.value));
            match it.labels.get(BY).map(String::as_str) {
                Some(PROGRAMS) => until.reported = at,
                Some(COMPARISON) => until.compared = at,
                _ => {}
            }
        }
        until
    }

    /// Adds the number of the last kill that is counted.
    pub fn set_last_number(&mut self, number: u64) {
        let series = SavedSeries {
            labels: BTreeMap::new(),
            value: as_value(number),
        };
        self.0.insert(LAST_NUMBER.to_owned(), vec![series]);
    }

    /// `None`: who has saved them has not numbered kills.
    pub fn last_number(&self) -> Option<u64> {
        let series = self.0.get(LAST_NUMBER)?.first()?;
        Some(as_count(series.value))
    }

    /// Adds below which cgroups those with known kills lie.
    pub fn set_roots(&mut self, roots: &[CgroupPath]) {
        let series = roots.iter().map(|it| SavedSeries {
            labels: BTreeMap::from([(PATH.to_owned(), it.to_string())]),
            value: 1.0,
        });
        self.set_if_any(ROOTS, series);
    }

    /// Empty: nobody has said so.
    pub fn roots(&self) -> Vec<CgroupPath> {
        let saved = self.0.get(ROOTS).into_iter().flatten();
        let roots = saved.filter_map(|it| it.labels.get(PATH)?.parse().ok());
        roots.collect()
    }

    fn set_if_any(&mut self, name: &str, series: impl Iterator<Item = SavedSeries>) {
        let series: Vec<SavedSeries> = series.collect();
        if !series.is_empty() {
            self.0.insert(name.to_owned(), series);
        }
    }

    pub fn set_kills_by_container(&mut self, kills: &KillsByContainer) {
        let of_pods = kills.iter();
        let series = of_pods.flat_map(|(uid, of_pod)| {
            of_pod.iter().map(|(id, n)| SavedSeries {
                labels: BTreeMap::from([
                    (POD_UID.to_owned(), uid.to_string()),
                    (CONTAINER_ID.to_owned(), id.to_string()),
                ]),
                value: as_value(*n),
            })
        });
        self.set_if_any(BY_ID, series);
    }

    /// By the UID of the pod.
    pub fn set_kills_without_workload(&mut self, kills: &BTreeMap<Box<str>, u64>) {
        let series = kills.iter().map(|(uid, n)| SavedSeries {
            labels: BTreeMap::from([(POD_UID.to_owned(), uid.to_string())]),
            value: as_value(*n),
        });
        self.set_if_any(WITHOUT_WORKLOAD, series);
    }

    pub fn kills_without_workload(&self) -> BTreeMap<Box<str>, u64> {
        let saved = self.0.get(WITHOUT_WORKLOAD).into_iter().flatten();
        saved
            .filter_map(|it| Some((it.labels.get(POD_UID)?.as_str().into(), as_count(it.value))))
            .collect()
    }

    pub fn kills_by_container(&self) -> KillsByContainer {
        let mut kills = KillsByContainer::new();
        for it in self.0.get(BY_ID).into_iter().flatten() {
            if let (Some(uid), Some(id)) = (it.labels.get(POD_UID), it.labels.get(CONTAINER_ID)) {
                let of_pod = kills.entry(uid.as_str().into()).or_default();
                of_pod.insert(id.as_str().into(), as_count(it.value));
            }
        }
        kills
    }
}

fn of_boot(cgroup: CgroupId, boot_id: &str) -> BTreeMap<String, String> {
    BTreeMap::from([
        (BOOT_ID.to_owned(), boot_id.to_owned()),
        (CGROUP_ID.to_owned(), cgroup.0.to_string()),
    ])
}

/// `None`: it is of another boot, or says nothing that is understood.
fn cgroup_of(series: &SavedSeries, boot_id: &str) -> Option<CgroupId> {
    let labels = &series.labels;
    labels.get(BOOT_ID).filter(|it| *it == boot_id)?;
    labels.get(CGROUP_ID)?.parse().ok().map(CgroupId)
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
fn as_value(n: u64) -> f64 {
    n as f64
}

/// A count that was saved as a number of JSON; exact up to 2^53.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and what is no number becomes 0"
)]
pub fn as_count(value: f64) -> u64 {
    value as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kills_are_of_one_boot() {
        let mut saved = SavedCounts::default();
        assert_eq!(saved.known_kills("a"), None);
        let known = BTreeMap::from([(CgroupId(7), 3), (CgroupId(u64::MAX), 1)]);
        saved.set_known_kills(&known, "a");
        let roots = ["/", "/a.slice"].map(|it| it.parse().expect("a path"));
        assert_eq!(saved.roots(), []);
        saved.set_roots(&roots);
        let text = serde_json::to_string(&saved).expect("JSON");
        let saved: SavedCounts = serde_json::from_str(&text).expect("JSON");
        assert_eq!(saved.known_kills("a"), Some(known));
        assert_eq!(saved.known_kills("b"), Some(BTreeMap::new()));
        assert_eq!(saved.roots(), roots);
    }

    #[test]
    fn what_is_counted_is_of_one_boot() {
        let until = CountedUntil {
            reported: Duration::from_nanos(1_234_567_890_123),
            compared: Duration::from_secs(7),
        };
        let mut saved = SavedCounts::default();
        assert_eq!(saved.counted_until("a"), CountedUntil::default());
        saved.set_counted_until(until, "a");
        let text = serde_json::to_string(&saved).expect("JSON");
        let saved: SavedCounts = serde_json::from_str(&text).expect("JSON");
        assert_eq!(saved.counted_until("a"), until);
        assert_eq!(saved.counted_until("b"), CountedUntil::default());
        let later = until.reported + Duration::from_nanos(1);
        assert!(until.has(until.reported, false) && !until.has(later, true));
        let until = CountedUntil {
            compared: later,
            ..until
        };
        assert!(until.has(later, true) && !until.has(later, false));
    }

    #[test]
    fn open_kills_are_of_one_boot() {
        let path = Some("/kubepods/podb".parse().expect("a path"));
        let in_pod = |pod: Option<u64>| CountOf::Cgroup {
            pod: pod.map(CgroupId),
        };
        let open = [
            (7, Some(0), in_pod(Some(6)), true, path),
            (8, None, in_pod(None), false, None),
            (6, Some(0), CountOf::Pod, false, None),
        ];
        let open = open.map(|(id, group_kills, of, was_unwatched, path)| {
            let open = OpenKills {
                counted: OomCount {
                    kills: id,
                    group_kills,
                },
                of,
                was_unwatched,
                path,
            };
            (CgroupId(id), open)
        });
        let open = BTreeMap::from(open);
        let mut saved = SavedCounts::default();
        saved.set_open_kills(&BTreeMap::new(), "a");
        assert_eq!(saved, SavedCounts::default());
        saved.set_open_kills(&open, "a");
        let text = serde_json::to_string(&saved).expect("JSON");
        let saved: SavedCounts = serde_json::from_str(&text).expect("JSON");
        assert_eq!(saved.open_kills("a"), open);
        assert_eq!(saved.open_kills("b"), BTreeMap::new());
    }
}
