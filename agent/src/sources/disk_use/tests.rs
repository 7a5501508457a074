#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "the files of a test are its own, in a directory that it made"
)]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, symlink};

use super::*;
use crate::sys::scratch::Scratch;

struct Files(Scratch);

impl Files {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn file(&self, path: &str, n_bytes: usize) -> PathBuf {
        let path = self.0.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&vec![1; n_bytes]).unwrap();
        file.sync_all().unwrap();
        path
    }

    fn walked(&self, n_entries: usize) -> Measured {
        let mut walk = Walk::begin(Place::at(self.0.directory()));
        let mut n_steps = 0;
        while !walk.is_done() {
            assert!(walk.step(n_entries) <= n_entries);
            n_steps += 1;
            assert!(n_steps < 100_000, "a walk without end");
        }
        walk.measured(Duration::ZERO)
    }
}

fn blocks(paths: &[&Path]) -> u64 {
    paths
        .iter()
        .map(|it| fs::symlink_metadata(it).unwrap().blocks() * 512)
        .sum()
}

#[test]
fn blocks_of_each_inode_are_counted_once_whatever_the_steps() {
    let tree = Files::new("once");
    let large = tree.file("a/large", 100_000);
    let small = tree.file("a/b/c/small", 1);
    fs::hard_link(&large, tree.0.path("a/b/again")).unwrap();
    let link = tree.0.path("a/link");
    symlink("/", &link).unwrap();
    let sparse = tree.0.path("sparse");
    fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();

    let dirs = ["", "a", "a/b", "a/b/c"].map(|it| tree.0.path(it));
    let mut all: Vec<&Path> = dirs.iter().map(PathBuf::as_path).collect();
    all.extend([&*large, &*small, &*link, &*sparse]);
    let expected = Measured {
        disk_use: DiskUse {
            bytes: Some(blocks(&all)),
            inodes: Some(8),
        },
        at: Duration::ZERO,
        is_complete: true,
        memory: None,
    };
    assert!(blocks(&[&large]) >= 100_000 && blocks(&[&sparse]) < 1 << 20);
    for n_entries in [1, 2, 3, 1000] {
        assert_eq!(tree.walked(n_entries), expected, "{n_entries} at a time");
    }
}

#[test]
fn files_with_many_names_count_once_also_beyond_what_is_remembered() {
    let tree = Files::new("linked");
    let mut all = vec![tree.0.directory().to_owned()];
    for n in 0..4 {
        let file = tree.file(&format!("{n}"), 300_000);
        for name in ["a", "b"] {
            fs::hard_link(&file, tree.0.path(format!("{n}{name}"))).unwrap();
        }
        all.push(file);
    }
    let all: Vec<&Path> = all.iter().map(PathBuf::as_path).collect();
    let mut walk = Walk::begin(Place::at(tree.0.directory()));
    walk.max_linked = 1;
    walk.step(1000);
    assert!(walk.is_done());
    let found = walk.measured(Duration::ZERO);
    let bytes = found.disk_use.bytes.unwrap();
    // Each part is rounded down.
    assert!(blocks(&all) - bytes < 9, "{bytes}");
    assert_eq!(found.disk_use.inodes, Some(5));
    assert!(!found.is_complete);
}

#[test]
fn a_deep_tree_is_walked_to_its_end() {
    let tree = Files::new("deep");
    let mut path = tree.0.directory().to_owned();
    for _ in 0..300 {
        path.push("d");
    }
    fs::create_dir_all(&path).unwrap();
    let found = tree.walked(7);
    assert_eq!(
        (found.disk_use.inodes, found.is_complete),
        (Some(301), true)
    );
}

#[test]
fn a_tree_beyond_the_bounds_is_at_least_as_large() {
    let tree = Files::new("wide");
    let mut path = tree.0.directory().to_owned();
    for _ in 0..MAX_DEPTH - 1 {
        path.push("d");
    }
    for n in 0..MAX_DEFERRED + 1 {
        fs::create_dir_all(path.join(format!("{n}/below"))).unwrap();
    }
    let found = tree.walked(10);
    assert!(!found.is_complete);
    // All but what is below one directory.
    let n_all = MAX_DEPTH + 2 * (MAX_DEFERRED + 1);
    assert_eq!(
        found.disk_use.inodes,
        Some(u64::try_from(n_all - 1).unwrap())
    );
}

#[test]
fn what_is_deleted_under_the_walk_is_no_fault() {
    let tree = Files::new("deleted");
    for n in 0..50 {
        tree.file(&format!("{n}/file"), 1);
    }
    let mut walk = Walk::begin(Place::at(tree.0.directory()));
    walk.step(5);
    fs::remove_dir_all(tree.0.directory()).unwrap();
    while !walk.is_done() {
        walk.step(5);
    }
    let found = walk.measured(Duration::ZERO);
    assert!(found.is_complete);
    assert!(found.disk_use.inodes < Some(101), "{found:?}");
}

#[test]
fn nothing_is_measured_where_there_is_no_directory() {
    let tree = Files::new("absent");
    let file = tree.file("file", 1);
    let link = tree.0.path("link");
    symlink(tree.0.directory(), &link).unwrap();
    for path in [tree.0.path("absent"), file, link] {
        let walk = Walk::begin(Place::at(&path));
        assert!(walk.is_done());
        let found = walk.measured(Duration::ZERO);
        assert_eq!(found.disk_use, DiskUse::default(), "{}", path.display());
        assert!(!found.is_complete);
    }
}

/// As procfs is wherever there is one.
#[test]
fn what_is_mounted_over_a_tree_or_above_it_is_no_part_of_it() {
    let is_there = |path: &Path, above: &Path, is_in_memory| {
        let tree = Tree {
            path: path.to_owned(),
            above: above.to_owned(),
            is_in_memory,
        };
        let place = tree.place(&Root::host());
        place.expect("it can be looked at").is_some()
    };
    let (root, proc) = (Path::new("/"), Path::new("/proc"));
    let process = proc.join(std::process::id().to_string());
    for is_in_memory in [false, true] {
        assert!(!is_there(proc, root, is_in_memory));
        assert!(!is_there(&process, root, is_in_memory));
        assert!(is_there(&process, proc, is_in_memory));
    }
    let tree = Files::new("link");
    fs::create_dir_all(tree.0.path("pods/uid/volumes")).unwrap();
    symlink("uid", tree.0.path("pods/link")).unwrap();
    let pods = tree.0.path("pods");
    assert!(is_there(&pods.join("uid/volumes"), &pods, false));
    assert!(!is_there(&pods.join("link/volumes"), &pods, false));
}

/// No file system has a name that is so long: it cannot be looked for.
#[test]
fn a_tree_that_cannot_be_looked_at_keeps_what_it_had_and_is_tried_again() {
    let files = Files::new("fault");
    files.file("pods/a/file", 1);
    let pods = files.0.link("link", "pods");
    let path = pods.join("a");
    let tree = Tree {
        path: path.clone(),
        above: pods.clone(),
        is_in_memory: false,
    };
    let (at, root) = (Duration::from_secs, Root::host());
    let mut uses = DiskUses::new(&root);
    uses.keep([tree.clone()]);
    assert_eq!(uses.step(100, at(1), at(1)).n_measured, 1);
    let before = uses.get(&path).unwrap();
    assert!(before.is_complete);

    fs::remove_file(&pods).unwrap();
    files.0.link("link", "a".repeat(300));
    assert_eq!(tree.place(&root).err(), Some(Errno::NAMETOOLONG));
    for now in [100, 101] {
        let stepped = Stepped {
            has_more: false,
            n_measured: 0,
        };
        assert_eq!(uses.step(100, at(now), at(now)), stepped);
        uses.keep([tree.clone()]);
        assert_eq!(uses.get(&path), Some(before));
        assert_eq!(uses.oldest(), Some(at(1)));
        let (failed, failing) = uses.failing().unwrap();
        assert_eq!((failed, failing.since), (&*path, at(100)));
    }
    let mut anew = DiskUses::new(&root);
    anew.keep([tree.clone()]);
    anew.step(100, at(101), at(101));
    assert_eq!((anew.get(&path), anew.oldest()), (None, None));

    fs::remove_file(&pods).unwrap();
    files.0.link("link", "pods");
    assert_eq!(uses.step(100, at(102), at(102)).n_measured, 1);
    assert_eq!(uses.get(&path).unwrap().at, at(102));
    assert_eq!(uses.failing(), None);
    fs::remove_dir_all(files.0.path("pods/a")).unwrap();
    uses.step(100, at(103), at(103));
    let gone = uses.get(&path).unwrap();
    assert_eq!(
        gone.disk_use,
        DiskUse::default(),
        "what is gone has nothing"
    );
}

#[test]
fn trees_are_measured_in_turn_within_the_budget() {
    let tree = Files::new("turn");
    for name in ["a", "b"] {
        for n in 0..10 {
            tree.file(&format!("{name}/{n}"), 1);
        }
    }
    let at = Duration::from_secs;
    let mut uses = DiskUses::new(&Root::at(tree.0.directory()));
    let [a, b, absent] = ["/a", "/b", "/absent"].map(PathBuf::from);
    let tree_at = |path: &PathBuf| Tree {
        path: path.clone(),
        above: PathBuf::from("/"),
        is_in_memory: false,
    };
    uses.keep([&a, &b, &absent].map(tree_at));
    let stepped = |has_more, n_measured| Stepped {
        has_more,
        n_measured,
    };
    assert_eq!(uses.step(5, at(1), at(1)), stepped(true, 0));
    assert_eq!(uses.get(&a), None);
    let (mut now, mut n_measured) = (1, 0);
    loop {
        let step = uses.step(5, at(now), at(1));
        n_measured += step.n_measured;
        if !step.has_more {
            break;
        }
        now += 1;
        assert!(now < 50, "no end");
    }
    assert_eq!(n_measured, 3);
    let inodes = |uses: &DiskUses, path| uses.get(path).map(|it| it.disk_use.inodes);
    assert_eq!(inodes(&uses, &a), Some(Some(11)));
    assert_eq!(inodes(&uses, &b), Some(Some(11)));
    assert_eq!(inodes(&uses, &absent), Some(None));

    // Nothing is due; then the oldest first; what is not kept is forgotten.
    assert_eq!(uses.step(1000, at(60), at(1)), stepped(false, 0));
    tree.file("a/more", 1);
    uses.keep([&a, &b].map(tree_at));
    assert_eq!(uses.step(1000, at(60), at(60)), stepped(false, 2));
    assert_eq!(inodes(&uses, &a), Some(Some(12)));
    assert_eq!(uses.get(&b).unwrap().at, at(60));
    assert_eq!(uses.get(&absent), None);
}
