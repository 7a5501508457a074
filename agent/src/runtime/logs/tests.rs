#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::sys::append;
use crate::sys::scratch::Scratch;

struct TestDir(Scratch);

impl TestDir {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn log(&self) -> PathBuf {
        self.0.path("0.log")
    }

    fn append(&self, name: &str, bytes: &[u8]) {
        let fd = append::open(&self.0.path(name)).unwrap();
        File::from(fd).write_all(bytes).unwrap();
    }

    fn names(&self) -> Vec<String> {
        Root::host().list(self.0.directory()).unwrap()
    }

    fn len(&self, name: &str) -> usize {
        Root::host().read(self.0.path(name)).unwrap().len()
    }

    /// The output as it was written, as far as it is kept.
    fn output(&self) -> String {
        let mut names = self.names();
        names.sort_by_key(|name| {
            let number = name.rsplit('.').next().and_then(|it| it.parse().ok());
            std::cmp::Reverse(number.unwrap_or(0))
        });
        let read = |name: &String| Root::host().read_text(self.0.path(name)).unwrap();
        names.iter().map(read).collect()
    }
}

type Rotate = fn(&Path, u64, u32) -> Result<Rotated, FsError>;

/// As on a file system that cannot take out a head.
fn rotate_whole(path: &Path, max_bytes: u64, max_files: u32) -> Result<Rotated, FsError> {
    let log = Appended::open(path)?;
    if log.len()? <= max_bytes {
        return Ok(Rotated::No);
    }
    shorten(&log, path, 0, max_bytes, max_files)
}

/// Numbers, one a line, while the log is rotated `n_rotations` times; and those that were kept.
fn write_while_rotating(
    name: &str,
    rotate: Rotate,
    n_rotations: usize,
) -> (u64, Vec<u64>, Vec<Rotated>) {
    let dir = TestDir::new(name);
    let mut writer = File::from(append::open(&dir.log()).unwrap());
    let is_done = AtomicBool::new(false);
    let (n_written, rotations) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut n = 0u64;
            while !is_done.load(Ordering::Relaxed) {
                writer.write_all(format!("{n:09}\n").as_bytes()).unwrap();
                n += 1;
            }
            n
        });
        let mut rotations = Vec::new();
        while rotations.len() < n_rotations {
            let rotated = rotate(&dir.log(), 200_000, 1_000).unwrap();
            if rotated != Rotated::No {
                rotations.push(rotated);
            }
        }
        is_done.store(true, Ordering::Relaxed);
        (writing.join().unwrap(), rotations)
    });
    assert!(dir.names().len() > n_rotations);
    let output = dir.output();
    // A write over the end of a page is seen in halves; a cut may fall between them.
    let (whole, broken): (Vec<_>, Vec<_>) = output.lines().partition(|line| line.len() == 9);
    let n_truncated = rotations
        .iter()
        .filter(|it| matches!(it, Rotated::Truncated { .. }))
        .count();
    assert!(broken.len() <= n_truncated, "{broken:?}");
    let numbers = whole.into_iter().map(|line| line.parse().unwrap());
    (n_written, numbers.collect(), rotations)
}

#[test]
fn a_writer_loses_nothing_where_the_head_can_be_taken_out() {
    let (n_written, kept, rotations) = write_while_rotating("collapse", rotate, 30);
    if rotations
        .iter()
        .any(|it| matches!(it, Rotated::Truncated { .. }))
    {
        // This file system cannot; the next test is about that.
        assert!(
            rotations
                .iter()
                .all(|it| matches!(it, Rotated::Truncated { .. }))
        );
        assert!(kept.is_sorted());
    } else {
        assert!(kept.into_iter().eq(0..n_written));
    }
}

#[test]
fn a_writer_loses_only_what_it_writes_at_the_cut_elsewhere() {
    let n_rotations = 30;
    let (n_written, kept, _) = write_while_rotating("truncate", rotate_whole, n_rotations);
    assert!(
        kept.is_sorted_by(|a, b| a < b),
        "nothing twice, nothing out of order"
    );
    let n_gaps = kept.windows(2).filter(|it| it[1] != it[0] + 1).count();
    assert!(n_gaps <= n_rotations, "{n_gaps} gaps");
    let n_lost = n_written - u64::try_from(kept.len()).unwrap();
    assert!(n_lost < n_written / 2, "{n_lost} of {n_written}");
}

#[test]
fn files_are_numbered_from_the_newest_and_bounded() {
    let dir = TestDir::new("bounds");
    assert_eq!(rotate(&dir.log(), 10, 3).unwrap(), Rotated::No, "no log");
    dir.append("0.log", b"0123456789");
    assert_eq!(
        rotate(&dir.log(), 10, 3).unwrap(),
        Rotated::No,
        "not too long"
    );
    dir.append("10.log.7", b"another attempt");
    dir.append("0.log.rotating", b"left by an agent that was killed");
    for round in 0..5 {
        let text = format!("round {round}\n").repeat(3);
        dir.append("0.log", text.as_bytes());
        // Less than a block: nothing to take out.
        let rotated = rotate(&dir.log(), 20, 3).unwrap();
        assert!(matches!(rotated, Rotated::Truncated { .. }), "{rotated:?}");
    }
    assert_eq!(dir.names(), ["0.log", "0.log.1", "0.log.2", "10.log.7"]);
    assert_eq!(dir.len("0.log"), 0);
    Root::host().remove_file(dir.0.path("10.log.7")).unwrap();
    let [newest, older] = ["round 4\n", "round 3\n"].map(|it| it.repeat(3));
    assert_eq!(dir.output(), older + &newest);

    dir.append("0.log", b"more than ten bytes");
    let rotated = rotate(&dir.log(), 10, 1).unwrap();
    assert_eq!(rotated, Rotated::Discarded { bytes: 19 });
    assert_eq!(dir.names(), ["0.log"], "one file: the log itself");
}

#[test]
fn a_log_of_any_length_leaves_what_may_be_kept() {
    let dir = TestDir::new("long");
    let text: String = (0..100_000).map(|n| format!("{n:09}\n")).collect();
    for rotate in [rotate as Rotate, rotate_whole] {
        dir.append("0.log", text.as_bytes());
        let rotated = rotate(&dir.log(), 20_000, 4).unwrap();
        let (Rotated::Collapsed {
            moved_bytes,
            skipped_bytes,
        }
        | Rotated::Truncated {
            moved_bytes,
            skipped_bytes,
        }) = rotated
        else {
            panic!("{rotated:?}");
        };
        assert_eq!(moved_bytes, 70_000);
        assert!(skipped_bytes >= 920_000, "{rotated:?}");
        assert_eq!(dir.names(), ["0.log", "0.log.1", "0.log.2", "0.log.3"]);
        let old: usize = (1..4).map(|it| dir.len(&format!("0.log.{it}"))).sum();
        assert_eq!(old, 70_000);
        // The newest, without a gap.
        let output = dir.output();
        assert!(text.ends_with(&output), "{} bytes", output.len());
        Appended::open(&dir.log()).unwrap().truncate().unwrap();
    }
}

#[test]
fn holes_stay_holes() {
    const GIB: u64 = 1 << 30;
    let dir = TestDir::new("holes");
    for rotate in [rotate as Rotate, rotate_whole] {
        let writer = File::from(append::open(&dir.log()).unwrap());
        writer.set_len(4 * GIB).unwrap();
        dir.append("0.log", b"behind the hole\n");
        let rotated = rotate(&dir.log(), GIB, 3).unwrap();
        assert!(
            !matches!(rotated, Rotated::No | Rotated::Discarded { .. }),
            "{rotated:?}"
        );
        let allocated: u64 = dir
            .names()
            .iter()
            .map(|it| Root::host().metadata(dir.0.path(it)).unwrap())
            .map(|it| std::os::unix::fs::MetadataExt::blocks(&it) * 512)
            .sum();
        assert!(allocated < 1 << 20, "{allocated} bytes on the disk");
        let lens = dir.names().into_iter().filter(|it| it != "0.log");
        for name in lens {
            assert!(Root::host().metadata(dir.0.path(name)).unwrap().len() <= GIB * 2);
        }
        writer.set_len(0).unwrap();
    }
}

#[test]
fn the_newest_attempts_keep_their_logs() {
    let dir = TestDir::new("prune");
    for name in [
        "9.log",
        "9.log.1",
        "10.log",
        "8.log",
        "8.log.2",
        "8.log.rotating",
        "x.log",
        "7.logs",
    ] {
        dir.append(name, b"");
    }
    assert_eq!(last_attempt(dir.0.directory()), Some(10));
    assert_eq!(prune(dir.0.directory(), 2).unwrap(), [8]);
    assert_eq!(
        dir.names(),
        ["10.log", "7.logs", "9.log", "9.log.1", "x.log"]
    );
    assert_eq!(prune(dir.0.directory(), 0).unwrap(), [9]);
    assert!(prune(&dir.0.path("absent"), 1).unwrap().is_empty());
    assert_eq!(last_attempt(&dir.0.path("absent")), None);
}

/// It would stay, and count for its pod, until that log is too long once more.
#[test]
fn a_copy_that_an_agent_was_killed_at_is_removed() {
    let dir = TestDir::new("unfinished");
    for name in [
        "3.log",
        "3.log.1",
        "3.log.rotating",
        "x.log.rotating",
        "rotating",
    ] {
        dir.append(name, b"");
    }
    remove_unfinished(dir.0.directory()).unwrap();
    assert_eq!(
        dir.names(),
        ["3.log", "3.log.1", "rotating", "x.log.rotating"]
    );
    remove_unfinished(&dir.0.path("absent")).unwrap();
}

#[test]
fn logs_are_named_as_kubelet_names_them() {
    let owner = ContainerOwner {
        pod_uid: crate::model::pod::PodUid("u-1".to_owned()),
        pod_namespace: "default".to_owned(),
        pod_name: "web".to_owned(),
        container: "app".to_owned(),
        attempt: 2,
    };
    let path = log_path(Path::new("/s"), &owner);
    assert_eq!(path, Path::new("/s/logs/default_web_u-1/app/2.log"));
}

#[test]
fn a_long_name_is_cut_and_the_uid_tells_pods_apart() {
    let name = |pod: &str| {
        let uid = crate::model::pod::PodUid("uid".to_owned());
        let path = pod_dir(Path::new("/"), "default", pod, &uid);
        path.file_name().unwrap().to_str().unwrap().to_owned()
    };
    assert_eq!(name("web"), "default_web_uid");
    let fits = "x".repeat(243);
    assert_eq!(name(&fits), format!("default_{fits}_uid"));
    assert_eq!(name(&format!("{fits}y")), name(&fits));
}
