#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the files are looked at beside the code under test"
)]

use std::fs;
use std::sync::mpsc::Sender;

use super::*;
use crate::decide::attribution::CgroupIndex;
use crate::decide::testing::oom_kill;
use crate::model::event::{AttributionMethod, CgroupId};
use crate::model::history::{NodeSample, PodSample};
use crate::model::record::tests::oom_record;
use crate::model::workload::Workload;
use crate::sys::Root;
use crate::sys::Trees;
use crate::sys::scratch::Scratch;

/// For more records than a test makes.
const ROOM: u64 = 16 << 20;

/// A state directory of a node that has no cgroups, removed when dropped.
struct Place(Scratch);

impl Place {
    fn new(test: &str) -> Self {
        Self(Scratch::new(test))
    }

    fn start(&self, background: &Arc<Background>) -> (Started, Metrics) {
        self.start_with(ROOM, background)
    }

    fn start_with(&self, max_bytes: u64, background: &Arc<Background>) -> (Started, Metrics) {
        self.start_all(max_bytes, background, Arc::default())
    }

    fn start_as(&self, shared: Arc<Shared>) -> (Started, Metrics) {
        self.start_all(ROOM, &Arc::default(), shared)
    }

    fn start_all(
        &self,
        max_bytes: u64,
        background: &Arc<Background>,
        shared: Arc<Shared>,
    ) -> (Started, Metrics) {
        let trees = Trees {
            unified: true,
            trees: Vec::new(),
        };
        let reader = SceneReader::new(Arc::new(trees), Root::at(self.0.directory()));
        let metrics = Metrics::default();
        let background = Arc::clone(background);
        let started = start(
            self.0.directory(),
            max_bytes,
            reader,
            Some("a-boot".to_owned()),
            shared,
            background,
            metrics.clone(),
        );
        (started.unwrap(), metrics)
    }

    /// What the thread works with, and both ends of the one that would read scenes.
    fn keeper(&self, metrics: &Metrics) -> (Keeper, Receiver<Box<Kill>>, Sender<SceneOf>) {
        let directory = self.0.path(RECORDS);
        let (ring, _) = OomRing::open(&directory, ROOM).unwrap();
        let (to_read, asked) = mpsc::sync_channel(QUEUE);
        let (read, scenes) = mpsc::channel();
        let keeper = Keeper {
            ring,
            directory,
            counts: Some(self.0.path(COUNTS)),
            background: Arc::default(),
            shared: Arc::default(),
            boot_id: Some("a-boot".to_owned()),
            metrics: metrics.clone(),
            open: BTreeMap::new(),
            to_read,
            scenes,
            counts_due: None,
            counts_saved: Duration::ZERO,
            to_sync: mpsc::sync_channel(1).0,
        };
        (keeper, asked, read)
    }

    fn records(&self) -> Vec<OomRecord> {
        let directory = self.0.path(RECORDS);
        let ids = oom_records::ids(&directory).unwrap();
        ids.into_iter()
            .map(|id| oom_records::read(&directory, id).unwrap())
            .collect()
    }
}

fn kill(at: Duration, limit: u64) -> OomKill {
    let kill = oom_kill(0, CgroupId(limit));
    OomKill {
        at_ns: u64::try_from(at.as_nanos()).unwrap(),
        limit_cgroup: Some(kill.victim_cgroup),
        method: AttributionMethod::Exact,
        ..kill
    }
}

fn record_id(event: &Event) -> Option<RecordId> {
    match &event.detail {
        Some(EventDetail::Oom(detail)) => detail.record_id,
        _ => None,
    }
}

/// Hands a kill over as the listener does.
fn hand_over(recorder: &mut Recorder, kill: &OomKill) -> Option<RecordId> {
    let mut event = oom_record(1).event;
    event.boottime_ns = kill.at_ns;
    recorder.number(kill, &mut event);
    let attribution = CgroupIndex::default().attribute_kill(kill);
    recorder.take(&mut event, &attribution, None);
    record_id(&event)
}

/// One whose queue, which nobody serves yet, has room for ten.
fn recorder() -> (Recorder, Receiver<Job>) {
    let (queue, kills) = mpsc::sync_channel(10);
    let recorder = Recorder {
        bursts: OomBursts::new(RecordId(1)),
        queue,
        metrics: Metrics::default(),
    };
    (recorder, kills)
}

/// Kills kept, coalesced and dropped.
fn results(metrics: &Metrics) -> [f64; 3] {
    let saved = metrics.oom_counts();
    let series = saved.0.get("ballast_oom_records_total").unwrap();
    ["kept", "coalesced", "dropped"].map(|result| {
        let found = series.iter().find(|it| it.labels["result"] == result);
        found.map_or(0.0, |it| it.value)
    })
}

fn sum(metrics: &Metrics, family: &str) -> f64 {
    let saved = metrics.oom_counts();
    let series = saved.0.get(family).into_iter().flatten();
    series.map(|it| it.value).sum()
}

/// Drops both ends in their order, which waits for the disk.
fn finish(started: Started) {
    let Started {
        recorder, handle, ..
    } = started;
    drop(recorder);
    drop(handle);
}

#[test]
fn what_a_storm_writes_is_synced_together() {
    let (queue, files) = mpsc::sync_channel(TO_SYNC);
    for name in ["a", "b"].repeat(50) {
        queue.send(PathBuf::from(name)).unwrap();
    }
    drop(queue);
    let mut synced = Vec::new();
    sync_all(&files, |it| synced.push(it.to_owned()));
    assert_eq!(synced, ["a", "a", "b"].map(PathBuf::from));
}

#[test]
fn a_burst_is_one_record_that_counts_all_of_it() {
    let place = Place::new("burst");
    let (mut started, metrics) = place.start(&Arc::default());
    let now = clock::boottime();
    for i in 0..200 {
        let at = now + Duration::from_micros(i);
        let id = hand_over(&mut started.recorder, &kill(at, 1));
        assert_eq!(id, Some(RecordId(1)));
    }
    finish(started);
    let records = place.records();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].n_kills, 200);
    assert_eq!(
        records[0].oom().and_then(|it| it.record_id),
        Some(RecordId(1))
    );
    assert_eq!(results(&metrics), [1.0, 199.0, 0.0]);
}

#[test]
fn records_take_no_more_than_what_is_configured() {
    let place = Place::new("bound");
    let max_bytes = 8 << 10;
    let (mut started, _) = place.start_with(max_bytes, &Arc::default());
    let now = clock::boottime();
    for limit in 0..50 {
        hand_over(&mut started.recorder, &kill(now, limit));
    }
    finish(started);
    let n_bytes = |it: &OomRecord| {
        let path = place.0.path(RECORDS).join(it.id.file_name());
        fs::metadata(path).unwrap().len()
    };
    let records = place.records();
    assert!(!records.is_empty());
    let sum: u64 = records.iter().map(n_bytes).sum();
    assert!(sum <= max_bytes, "{sum} bytes in {} records", records.len());
}

#[test]
fn numbers_and_counts_go_on_after_a_restart() {
    let place = Place::new("restart");
    for round in 1..=3 {
        let (mut started, metrics) = place.start(&Arc::default());
        assert_eq!(started.faults, Vec::<String>::new());
        let now = clock::boottime();
        let id = hand_over(&mut started.recorder, &kill(now, 1));
        assert_eq!(id, Some(RecordId(round)));
        finish(started);
        let saved = fs::read(place.0.path(COUNTS)).unwrap();
        assert!(!saved.is_empty());
        assert_eq!(
            results(&metrics)[0],
            f64::from(u32::try_from(round).unwrap())
        );
    }
    assert_eq!(place.records().len(), 3);
}

/// The agent before had counted three kills and saved two.
#[test]
fn a_kill_that_is_on_record_and_not_counted_is_counted_at_the_next_start() {
    let counted = |number| {
        Some(Counted {
            number,
            cgroups: vec![CgroupId(7)],
            workload: Some(Workload {
                namespace: "default".to_owned(),
                kind: "Deployment".to_owned(),
                name: "shop".to_owned(),
            }),
        })
    };
    for (saved, expected) in [(Some(2), 1.0), (Some(3), 0.0), (Some(0), 3.0), (None, 0.0)] {
        let place = Place::new("unsaved");
        let (mut keeper, _asked, _read) = place.keeper(&Metrics::default());
        let mut event = oom_record(1).event;
        event.boottime_ns = u64::try_from(clock::boottime().as_nanos()).unwrap();
        for number in 1..=3 {
            keeper.take(Kill {
                id: RecordId(1),
                event: event.clone(),
                counted: counted(number),
                victim_path: None,
                pod_path: None,
            });
        }
        keeper.write_due(clock::boottime() + FLUSH);
        let mut counts = SavedCounts::default();
        counts.set_known_kills(&BTreeMap::new(), "a-boot");
        saved.into_iter().for_each(|it| counts.set_last_number(it));
        checkpoint::replace(&place.0.path(COUNTS), KIND, VERSION, &counts).unwrap();

        let shared = Arc::<Shared>::default();
        let (started, metrics) = place.start_as(Arc::clone(&shared));
        assert_eq!(*shared.kill_counts.telling(), 3, "{saved:?}");
        let known = shared.kill_counts.known().unwrap();
        let n_known = known.get(&CgroupId(7)).copied().unwrap_or_default();
        assert_eq!(n_known as f64, expected, "{saved:?}");
        let sums = |it: &Metrics| {
            let families = ["scope_kills", "records", "workload_kills"];
            families.map(|family| sum(it, &format!("ballast_oom_{family}_total")))
        };
        assert_eq!(sums(&metrics), [expected; 3], "{saved:?}");
        let counts = metrics.oom_counts();
        let of_workloads = counts.0.get("ballast_oom_workload_kills_total");
        for it in of_workloads.into_iter().flatten() {
            assert_eq!(it.labels["workload_kind"], "Deployment");
        }
        started.recorder.saver().save();
        finish(started);
        // They are counted once.
        let (started, metrics) = place.start_as(Arc::default());
        assert_eq!(sums(&metrics), [expected; 3], "{saved:?}");
        finish(started);
    }
}

#[test]
fn what_is_counted_is_on_record_before_its_count_is_saved() {
    let place = Place::new("before");
    let (mut recorder, kills) = recorder();
    let metrics = recorder.metrics.clone();
    let (mut keeper, _asked, _read) = place.keeper(&metrics);
    let now = clock::boottime();
    // One is written, one has joined it and waits for its time, one waits in the queue.
    for _ in 0..2 {
        hand_over(&mut recorder, &kill(now, 1));
        assert!(keeper.step(&kills));
    }
    hand_over(&mut recorder, &kill(now, 1));
    keeper.counts_due = Some(now);
    keeper.save_counts_if_due(now, &kills);
    assert_eq!(place.records()[0].n_kills, 3);
    let saved: SavedCounts = stored::read(&place.0.path(COUNTS), KIND, VERSION).unwrap();
    let results = saved.0["ballast_oom_records_total"].iter();
    assert_eq!(results.map(|it| it.value).sum::<f64>(), 3.0);
}

#[test]
fn counts_that_could_not_be_saved_are_tried_again() {
    let place = Place::new("again");
    let (_recorder, kills) = recorder();
    let (mut keeper, _asked, _read) = place.keeper(&Metrics::default());
    keeper.counts = Some(place.0.path("away/counts"));
    *keeper.shared.kill_counts.telling() = 3;
    keeper.save_soon();
    keeper.save_counts_if_due(Duration::MAX, &kills);
    assert_eq!(keeper.counts_due, Some(keeper.counts_saved + AGAIN));
    assert_eq!(keeper.shared.kill_counts.last_saved(), 3, "nobody waits");
    keeper.counts = Some(place.0.path(COUNTS));
    keeper.save_counts_if_due(Duration::MAX, &kills);
    assert_eq!(keeper.counts_due, None);
    assert!(place.0.path(COUNTS).exists());
}

#[test]
fn counts_that_cannot_be_read_are_told_and_begin_anew() {
    let place = Place::new("damaged");
    fs::write(place.0.path(COUNTS), "half").unwrap();
    let (started, metrics) = place.start(&Arc::default());
    assert_eq!(started.faults.len(), 1);
    assert!(started.faults[0].contains(COUNTS), "{:?}", started.faults);
    assert_eq!(results(&metrics), [0.0; 3]);
    finish(started);
}

#[test]
fn who_hands_over_never_waits_and_every_kill_is_counted() {
    let place = Place::new("full");
    let (mut recorder, kills) = recorder();
    let metrics = recorder.metrics.clone();
    let now = clock::boottime();
    let ids: Vec<_> = (0..100)
        .map(|i| hand_over(&mut recorder, &kill(now, i / 2)))
        .collect();
    assert!(ids[..10].iter().all(Option::is_some));
    assert!(ids[10..].iter().all(Option::is_none), "nobody takes them");
    drop(recorder);
    let (keeper, ..) = place.keeper(&metrics);
    keeper.work(&kills);
    assert_eq!(results(&metrics), [5.0, 5.0, 90.0]);
    assert_eq!(place.records().len(), 5);
}

#[test]
fn no_kill_waits_for_a_scene() {
    let place = Place::new("scenes");
    let (mut recorder, kills) = recorder();
    let metrics = recorder.metrics.clone();
    // Nobody reads scenes meanwhile.
    let (mut keeper, asked, read) = place.keeper(&metrics);
    let now = clock::boottime();
    for n in 1..=3 {
        hand_over(&mut recorder, &kill(now, n as u64));
        assert!(keeper.step(&kills));
        let records = place.records();
        assert_eq!(records.len(), n);
        let is_cut = |it: &OomRecord| it.cut == BTreeSet::from(scenes::PARTS);
        assert!(records.iter().all(is_cut));
    }
    for (n, kill) in asked.try_iter().enumerate() {
        let scene = Some((Scene::default(), BTreeSet::new()));
        read.send(SceneOf { id: kill.id, scene }).unwrap();
        assert!(keeper.step(&kills));
        let records = place.records();
        let whole = records.iter().filter(|it| it.cut.is_empty());
        assert_eq!(whole.count(), n + 1);
    }
    assert_eq!(results(&metrics), [3.0, 0.0, 0.0]);
}

#[test]
fn a_record_that_could_not_be_written_at_once_is_kept_once() {
    for is_mended in [true, false] {
        let place = Place::new("unwritten");
        let (mut recorder, kills) = recorder();
        let metrics = recorder.metrics.clone();
        let (mut keeper, asked, read) = place.keeper(&metrics);
        let records = place.0.path(RECORDS);
        let away = place.0.path("away");
        fs::rename(&records, &away).unwrap();
        hand_over(&mut recorder, &kill(clock::boottime(), 1));
        assert!(keeper.step(&kills));
        if is_mended {
            fs::rename(&away, &records).unwrap();
        }
        let id = asked.recv().unwrap().id;
        let scene = Some((Scene::default(), BTreeSet::new()));
        read.send(SceneOf { id, scene }).unwrap();
        drop(recorder);
        keeper.work(&kills);
        let n_kept = f64::from(u8::from(is_mended));
        assert_eq!(results(&metrics), [n_kept, 0.0, 1.0 - n_kept]);
    }
}

#[test]
fn a_kill_that_comes_after_its_record_was_closed_is_added_to_it() {
    let place = Place::new("closed");
    let now = clock::boottime();
    let (mut started, _) = place.start(&Arc::default());
    hand_over(&mut started.recorder, &kill(now, 1));
    finish(started);
    let (started, metrics) = place.start(&Arc::default());
    let Recorder { queue, .. } = &started.recorder;
    queue
        .send(Job::Record(Box::new(Kill {
            id: RecordId(1),
            counted: None,
            event: oom_record(1).event,
            victim_path: None,
            pod_path: None,
        })))
        .unwrap();
    finish(started);
    assert_eq!(place.records()[0].n_kills, 2);
    assert_eq!(results(&metrics), [1.0, 1.0, 0.0]);
}

#[test]
fn the_minute_before_a_kill_is_known_of_a_pod_without_a_name_too() {
    let background = Background::default();
    let mut event = oom_record(1).event;
    event.pod_uid = event.pod.take().map(|it| it.uid);
    let uid = event.pod_uid.clone().unwrap();
    let sample = PodSample {
        at_ns: event.boottime_ns,
        ..PodSample::default()
    };
    background.history.write().unwrap().push_pod(&uid, sample);
    assert_eq!(background.trend(&event).pod, [sample]);
}

#[test]
fn a_record_has_the_minute_before_and_what_the_agent_knew() {
    let place = Place::new("trend");
    let background = Arc::new(Background::default());
    let now = clock::boottime();
    let at_ns = u64::try_from(now.as_nanos()).unwrap();
    let uid = oom_record(1).event.pod.unwrap().uid;
    {
        let mut history = background.history.write().unwrap();
        for ago in (0..50).rev() {
            let at_ns = at_ns.saturating_sub(ago * 1_000_000_000);
            history.push_node(NodeSample {
                at_ns,
                ..NodeSample::default()
            });
            let sample = PodSample {
                at_ns,
                ..PodSample::default()
            };
            history.push_pod(&uid, sample);
        }
    }
    let conditions = BTreeSet::from([crate::model::eviction::NodeCondition::MemoryPressure]);
    background.agent.write().unwrap().conditions = conditions.clone();
    let (mut started, _) = place.start(&background);
    hand_over(&mut started.recorder, &kill(now, 1));
    hand_over(
        &mut started.recorder,
        &kill(now.saturating_sub(STALE * 2), 2),
    );
    finish(started);
    let records = place.records();
    assert!(records[0].trend.node.len() > 40, "{:?}", records[0].trend);
    assert!(records[0].trend.pod.len() > 40, "{:?}", records[0].trend);
    assert_eq!(records[0].agent.conditions, conditions);
    // Nobody looked when it happened, and what is there now is of another time.
    assert_eq!(records[1].agent, AgentState::default());
    assert!(records[1].cut.contains(&Part::Processes));
}

#[test]
fn a_victim_that_was_exiting_has_no_record() {
    let place = Place::new("exiting");
    let (mut started, metrics) = place.start(&Arc::default());
    let exiting = OomKill {
        was_exiting: true,
        ..kill(clock::boottime(), 1)
    };
    let mut event = oom_record(1).event;
    set_record(&mut event, None);
    let Started { recorder, .. } = &mut started;
    recorder.number(&exiting, &mut event);
    let attribution = CgroupIndex::default().attribute_kill(&exiting);
    recorder.take(&mut event, &attribution, None);
    assert_eq!(record_id(&event), None);
    finish(started);
    assert_eq!(results(&metrics), [0.0; 3]);
}

#[test]
fn counts_that_the_kernel_fails_to_read_are_kept() {
    let place = Place::new("unread");
    let counts = place.0.path(COUNTS);
    // ELOOP.
    std::os::unix::fs::symlink(&counts, &counts).unwrap();
    let (mut started, _) = place.start(&Arc::default());
    let faults = started.faults.join("\n");
    assert!(faults.contains("it stays as it is"), "{faults}");
    hand_over(&mut started.recorder, &kill(clock::boottime(), 1));
    finish(started);
    assert_eq!(place.records().len(), 1);
    assert_eq!(fs::read_link(&counts).unwrap(), counts);
}
