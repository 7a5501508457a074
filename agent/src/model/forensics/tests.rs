use super::*;
use crate::model::eviction::{StallSource, StallTotals};
use crate::model::pod::PodUid;
use crate::model::random::Random;
use crate::model::record::tests::oom_record;

impl Random {
    fn index_below(&mut self, n: u64) -> usize {
        usize::try_from(self.below(n)).unwrap_or(0)
    }

    /// Up to `max` characters that JSON writes with one, two or six.
    fn text(&mut self, max: u64) -> String {
        const CHARACTERS: [char; 4] = ['a', '"', '\u{1}', 'é'];
        let n = self.index_below(max + 1);
        (0..n)
            .map(|_| CHARACTERS[self.index_below(CHARACTERS.len() as u64)])
            .collect()
    }

    fn list<T>(&mut self, max: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let n = self.index_below(max + 1);
        (0..n).map(|_| make(self)).collect()
    }

    fn pod_ref(&mut self) -> PodRef {
        PodRef {
            namespace: self.text(63),
            name: self.text(253),
            uid: PodUid(self.text(36)),
        }
    }

    fn cgroup_use(&mut self) -> CgroupUse {
        CgroupUse {
            cgroup_path: self.text(1024),
            usage_bytes: self.next(),
            pod: Some(self.pod_ref()),
            container: Some(self.text(63)),
        }
    }

    fn numbers(&mut self) -> BTreeMap<String, u64> {
        let numbers = self.list(80, |it| (it.text(40), it.next()));
        numbers.into_iter().collect()
    }

    fn cgroup(&mut self) -> CgroupScene {
        CgroupScene {
            cgroup_path: self.text(4096),
            usage_bytes: Some(self.next()),
            stat: self.numbers(),
            events: BTreeMap::from([("oom_kill".into(), self.next())]),
            ..CgroupScene::default()
        }
    }

    /// Larger than any that a node gives.
    fn record(&mut self) -> OomRecord {
        let stall = StallTotals {
            source: StallSource::Psi,
            some_us: u64::MAX,
            full_us: Some(u64::MAX),
        };
        let mut record = record(RecordId(self.next()));
        record.event.message = self.text(4096);
        if let Some(EventDetail::Oom(detail)) = &mut record.event.detail {
            detail.victim.cgroup_path = Some(self.text(4096));
            detail.victim.comm = self.text(64);
        }
        record.more_victims = self.list(200, |it| LaterVictim {
            boottime_ns: it.next(),
            pod: Some(it.pod_ref()),
            container: Some(it.text(63)),
            comm: it.text(16),
            anon_bytes: it.next(),
            is_main_process: Some(false),
            ..later_victim(1)
        });
        record.scene = Scene {
            limit: Some(self.cgroup()),
            victim_pod: Some(self.cgroup()),
            siblings: self.list(100, Self::cgroup_use),
            children: self.list(100, Self::cgroup_use),
            pods: self.list(300, Self::cgroup_use),
            processes: self.list(300, |it| ProcessScene {
                pid: 1,
                comm: it.text(16),
                rss_bytes: it.next(),
                swap_bytes: 0,
                oom_score_adj: Some(-1000),
            }),
            n_processes: self.next(),
            meminfo: self.numbers(),
            stall: None,
        };
        record.trend.node = self.list(60, |it| NodeSample {
            at_ns: it.next(),
            available: Some(it.next()),
            available_min: Some(it.next()),
            kubepods_usage: Some(it.next()),
            stall: Some(stall),
            kubepods_stall: Some(stall),
        });
        record.trend.pod = self.list(60, |it| PodSample {
            at_ns: it.next(),
            usage: it.next(),
            usage_max: it.next(),
            stall: Some(stall),
        });
        record
    }
}

/// One kill with nothing around it.
pub(crate) fn record(id: RecordId) -> OomRecord {
    OomRecord {
        counted: None,
        id,
        event: oom_record(1).event,
        n_kills: 1,
        boot_id: None,
        more_victims: Vec::new(),
        recorded_after_us: 900,
        scene: Scene::default(),
        trend: Trend::default(),
        agent: AgentState::default(),
        cut: BTreeSet::new(),
    }
}

/// A kill after the first, of nobody known.
pub(crate) fn later_victim(pid: u32) -> LaterVictim {
    LaterVictim {
        counted: None,
        boottime_ns: 0,
        pod: None,
        container: None,
        pod_uid: None,
        container_id: None,
        pid,
        comm: String::new(),
        anon_bytes: 0,
        file_bytes: 0,
        shmem_bytes: 0,
        oom_score_adj: 0,
        is_main_process: None,
        took_container: Some(false),
        unknown_cgroup_id: None,
    }
}

fn open(bytes: &[u8]) -> Option<OomRecord> {
    sealed::open(KIND, VERSION, bytes).ok()
}

#[test]
fn a_record_of_any_size_fits_and_reads_back() {
    let mut random = Random(7);
    let mut n_cut = 0;
    for round in 0..24 {
        let mut record = random.record();
        let n_kills = record.n_kills;
        let bytes = record.seal();
        assert!(bytes.len() <= MAX_RECORD_BYTES, "round {round}");
        assert_eq!(open(&bytes).as_ref(), Some(&record), "round {round}");
        assert_eq!(record.n_kills, n_kills, "round {round}");
        n_cut += usize::from(!record.cut.is_empty());
    }
    assert!(n_cut > 12, "{n_cut}");
}

#[test]
fn what_fits_is_left_whole() {
    let mut record = record(RecordId(1));
    record.scene.pods = vec![Random(1).cgroup_use()];
    let before = record.clone();
    assert!(record.seal().len() <= MAX_RECORD_BYTES);
    assert_eq!(record, before);
}

#[test]
fn the_least_important_goes_first_and_the_record_says_so() {
    let mut record = record(RecordId(1));
    let used = CgroupUse {
        cgroup_path: "p".repeat(1000),
        usage_bytes: 1,
        pod: None,
        container: None,
    };
    record.scene.siblings = vec![used.clone(); 40];
    record.scene.pods = vec![used; 40];
    record.seal();
    assert_eq!(record.cut, BTreeSet::from([Part::Siblings]));
    assert_eq!(record.scene.pods.len(), 40);
    assert_eq!(record.scene.siblings.len(), 20);
}

#[test]
fn later_kills_are_all_counted_and_the_first_and_the_last_of_them_named() {
    let mut record = record(RecordId(1));
    for pid in 0..1000 {
        record.add_victim(later_victim(pid));
    }
    assert_eq!(record.n_kills, 1001);
    assert_eq!(record.more_victims.len(), MAX_VICTIMS);
    let named: Vec<u32> = record.more_victims.iter().map(|it| it.pid).collect();
    let (first, last) = named.split_at(FIRST_VICTIMS);
    assert!(first.iter().copied().eq((0..1000).take(first.len())));
    assert!(
        last.iter()
            .rev()
            .copied()
            .eq((0..1000).rev().take(last.len()))
    );
}

#[test]
fn kills_without_a_name_may_all_be_later_than_the_record_itself() {
    let mut record = record(RecordId(1));
    let since = Duration::from_nanos(record.event.boottime_ns);
    assert_eq!(record.n_unnamed_after(since), 0, "there is none");
    record.n_kills = 5;
    assert_eq!(record.n_unnamed_after(since), 4);
}

#[test]
fn file_names_sort_as_their_records_and_nothing_else_is_one() {
    assert!(RecordId(9).file_name() < RecordId(10).file_name());
    let id = RecordId(u64::MAX);
    assert_eq!(RecordId::of_file(&id.file_name()), Some(id));
    for name in [
        "",
        "1.json",
        "00000000000000000001.json.tmp",
        "+0000000000000000001.json",
        "99999999999999999999.json",
        "lock",
    ] {
        assert_eq!(RecordId::of_file(name), None, "{name}");
    }
}

#[test]
fn a_record_with_only_what_must_be_there_is_read() {
    let event = serde_json::to_value(oom_record(1).event).expect("plain data");
    let text = serde_json::json!({
        "id": 4, "event": event, "nKills": 1, "recordedAfterUs": 5, "scene": {}, "later": true,
    });
    let read: OomRecord = serde_json::from_value(text).expect("of a newer agent");
    assert_eq!(read.id, RecordId(4));
    assert!(read.oom().is_some());
    assert!(read.has_victim_in(|pod, _| pod.is_some_and(|it| it.name == "hungry")));
}
