#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
#![expect(
    clippy::disallowed_methods,
    reason = "a directory shaped like a node is written beside the code under test"
)]

use std::collections::BTreeSet;
use std::fs;

use super::*;
use crate::sys::Tree;
use crate::sys::scratch::Scratch;

/// A directory shaped like a node, removed when dropped.
struct Node(Scratch);

impl Node {
    fn new(test: &str) -> Self {
        let node = Self(Scratch::new(test));
        fs::create_dir_all(node.0.path("cgroup")).unwrap();
        node
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn process(&self, pid: u32, comm: &str, rss_kb: u64, adj: i16) {
        let status = format!("Name:\t{comm}\nVmRSS:\t {rss_kb} kB\nVmSwap:\t 4 kB\n");
        self.file(&format!("proc/{pid}/status"), &status);
        self.file(&format!("proc/{pid}/oom_score_adj"), &format!("{adj}\n"));
    }

    fn reader(&self, unified: bool) -> SceneReader {
        let controllers: &[&str] = if unified { &[] } else { &["memory"] };
        let controllers: BTreeSet<String> = controllers.iter().map(|&it| it.into()).collect();
        let tree = Tree::open(controllers, &self.0.path("cgroup")).unwrap();
        let trees = Trees {
            unified,
            trees: vec![tree],
        };
        SceneReader::new(Arc::new(trees), Root::at(self.0.directory()))
    }
}

#[test]
fn a_full_cgroup_of_v2_is_read_with_its_pod() {
    let node = Node::new("v2");
    for (file, text) in [
        ("memory.current", "4096\n"),
        ("memory.peak", "8192\n"),
        ("memory.max", "8192\n"),
        ("memory.high", "max\n"),
        ("memory.stat", "anon 100\nfile 7\nbroken x\n"),
        ("memory.events", "oom 1\noom_kill 2\n"),
        (
            "memory.pressure",
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        ),
    ] {
        node.file(&format!("cgroup/kubepods/poda/main/{file}"), text);
    }
    node.file("cgroup/kubepods/poda/memory.current", "5000\n");
    node.file("proc/meminfo", "MemTotal: 100 kB\nMemFree: 5 kB\n");
    let scene = node.reader(true).scene(Place {
        limit: Some("/kubepods/poda/main"),
        victim: Some("/kubepods/poda/main"),
        pod: Some("/kubepods/poda"),
    });
    let limit = scene.limit.unwrap();
    assert_eq!(limit.cgroup_path, "/kubepods/poda/main");
    assert_eq!(limit.usage_bytes, Some(4096));
    assert_eq!(limit.peak_bytes, Some(8192));
    assert_eq!(limit.limits["memory.max"], Limit::At(8192));
    assert_eq!(limit.limits["memory.high"], Limit::Max);
    assert_eq!(
        limit.stat,
        BTreeMap::from([("anon".into(), 100), ("file".into(), 7)])
    );
    assert_eq!(limit.events["oom_kill"], 2);
    assert_eq!(limit.stall.map(|it| it.some.total.0), Some(5));
    assert_eq!(scene.victim_pod.unwrap().usage_bytes, Some(5000));
    assert_eq!(scene.meminfo["MemTotal"], 100 << 10);
}

#[test]
fn a_full_cgroup_of_v1_is_read_by_its_own_names() {
    let node = Node::new("v1");
    for (file, text) in [
        ("memory.usage_in_bytes", "4096\n"),
        ("memory.max_usage_in_bytes", "8192\n"),
        ("memory.limit_in_bytes", "8192\n"),
        ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
        ("memory.failcnt", "17\n"),
        (
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        ),
    ] {
        node.file(&format!("cgroup/kubepods/poda/{file}"), text);
    }
    let path = "/kubepods/poda";
    let scene = node.reader(false).scene(Place {
        limit: Some(path),
        victim: None,
        pod: Some(path),
    });
    let limit = scene.limit.unwrap();
    assert_eq!(limit.peak_bytes, Some(8192));
    assert_eq!(limit.limits["memory.limit_in_bytes"], Limit::At(8192));
    assert_eq!(limit.limits["memory.soft_limit_in_bytes"], Limit::Max);
    assert_eq!(limit.events["failcnt"], 17);
    assert_eq!(limit.events["oom_kill"], 3);
    assert_eq!(scene.victim_pod, None, "the same cgroup twice");
}

#[test]
fn neighbours_are_ranked_by_what_they_use() {
    let node = Node::new("around");
    for (path, bytes) in [
        ("kubepods/a", 10),
        ("kubepods/b", 30),
        ("kubepods/c", 20),
        ("kubepods/a/x", 1),
        ("kubepods/a/y", 2),
    ] {
        node.file(&format!("cgroup/{path}/memory.current"), &bytes.to_string());
    }
    let reader = node.reader(true);
    let paths =
        |it: Vec<Usage>| -> Vec<String> { it.into_iter().map(|it| it.cgroup_path).collect() };
    let around = reader.around("/kubepods/a");
    assert_eq!(paths(around.siblings), ["/kubepods/b", "/kubepods/c"]);
    assert_eq!(paths(around.children), ["/kubepods/a/y", "/kubepods/a/x"]);
    let asked = ["/kubepods/a", "/kubepods/gone", "/kubepods/b"];
    let found = reader.usages(asked.into_iter());
    assert_eq!(paths(found), ["/kubepods/b", "/kubepods/a"]);
    assert_eq!(reader.around("/gone"), Around::default());
}

#[test]
fn processes_are_ranked_and_those_that_are_gone_or_dying_left_out() {
    let node = Node::new("processes");
    node.file("cgroup/kubepods/a/main/cgroup.procs", "10\n11\n14\n");
    node.file("cgroup/kubepods/a/other/cgroup.procs", "12\n13\n");
    node.process(10, "small", 1, 1000);
    node.process(11, "large one", 300, -5);
    node.process(12, "middle", 20, 0);
    node.process(14, "dying", 400, 0);
    let place = Place {
        limit: Some("/kubepods/a"),
        victim: Some("/kubepods/a/main"),
        pod: Some("/kubepods/a"),
    };
    let (processes, n) = node.reader(true).processes(place, |pid| pid == 14);
    let found: Vec<(u32, &str, u64, Option<i16>)> = processes
        .iter()
        .map(|it| {
            (
                it.pid,
                it.comm.as_str(),
                it.rss_bytes >> 10,
                it.oom_score_adj,
            )
        })
        .collect();
    let expected = [
        (11, "large one", 300, Some(-5)),
        (12, "middle", 20, Some(0)),
        (10, "small", 1, Some(1000)),
    ];
    assert_eq!(found, expected);
    assert_eq!(n, 5, "13 has ended, and was there");
    assert_eq!(processes[0].swap_bytes, 4 << 10);
}

#[test]
fn of_a_node_that_is_gone_nothing_is_told_and_nothing_fails() {
    let node = Node::new("gone");
    let place = Place {
        limit: Some("/kubepods/a"),
        victim: Some("/../../etc"),
        pod: Some("//"),
    };
    let reader = node.reader(true);
    let scene = reader.scene(place);
    assert_eq!(scene.limit, None);
    assert_eq!(reader.processes(place, |_| false), (Vec::new(), 0));
}
