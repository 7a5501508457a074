use serde_json::json;

use super::*;
use crate::model::recording::Decoder;
use crate::sys::scratch::Scratch;

/// A directory that is not there yet.
struct Directory {
    path: PathBuf,
    _scratch: Scratch,
}

impl Directory {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        Self {
            path: scratch.path("recordings"),
            _scratch: scratch,
        }
    }

    /// Of each file its name and the steps in it, oldest first.
    fn read(&self) -> Vec<(String, Vec<Value>)> {
        let root = Root::at(&self.path);
        let mut names = root.list("/").expect("the directory");
        names.sort_unstable();
        let steps = |name: &String| {
            let bytes = root.read(name).expect("a file");
            let mut decoder = Decoder::new(&bytes).expect("a recording");
            assert_eq!(decoder.header(), &json!({"n": 1}));
            let mut steps = Vec::new();
            while let Some(step) = decoder.next_step().expect("a step") {
                steps.push(step.clone());
            }
            steps
        };
        names.iter().map(|it| (it.clone(), steps(it))).collect()
    }
}

fn record(directory: &Directory, limits: RecordingLimits, steps: std::ops::Range<u64>) {
    let header = json!({"n": 1});
    let recorder = Recorder::open(&directory.path, limits, &header).expect("a directory");
    for step in steps {
        recorder.push(json!({ "at": step }));
    }
    let counts = recorder.counts();
    assert_eq!(counts.n_dropped, 0);
    let age = counts.oldest.expect("the name of a file says its time");
    let now = WallTime::from_epoch(clock::wall());
    assert!(age.until(now) < Duration::from_secs(60), "{age}");
}

#[test]
fn what_was_pushed_is_on_disk_when_the_recorder_is_gone() {
    let directory = Directory::new("whole");
    let limits = RecordingLimits {
        max_bytes: 1 << 20,
        max_file_bytes: 1 << 20,
    };
    record(&directory, limits, 0..100);
    record(&directory, limits, 100..102);
    let files = directory.read();
    let [(_, first), (_, second)] = files.as_slice() else {
        panic!("a start begins a file: {files:?}");
    };
    assert_eq!((first.len(), second.len()), (100, 2));
    assert_eq!(second.first(), Some(&json!({"at": 100})));
}

#[test]
fn the_oldest_files_make_room() {
    let directory = Directory::new("room");
    let limits = RecordingLimits {
        max_bytes: 2000,
        max_file_bytes: 500,
    };
    record(&directory, limits, 0..200);
    let files = directory.read();
    let n_steps: usize = files.iter().map(|(_, steps)| steps.len()).sum();
    assert!(files.len() > 2 && n_steps < 200, "{} files", files.len());
    let steps: Vec<&Value> = files.iter().flat_map(|(_, steps)| steps).collect();
    assert_eq!(steps.last(), Some(&&json!({"at": 199})));
    let root = Root::at(&directory.path);
    let size = |(name, _): &(String, _)| root.metadata(name).expect("a file").len();
    assert!(files.iter().map(size).sum::<u64>() <= 2000);
}
