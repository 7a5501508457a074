//! Real processes, without privileges: no cgroup is joined.

#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::start::Pipe;
use super::*;
use crate::model::pod::{PodUid, ResourceList};
use crate::runtime::{
    ContainerCgroup, ContainerExit, ContainerOwner, ContainerRecord, HostProcess, StartError,
    UnknownExit,
};
use crate::sys::launch::{Child, Launch, Limits, Progress, is_readable_within, launch};
use crate::sys::scratch::Scratch;
use crate::sys::syscall::{Reap, pidfd_send_signal, wait_child};
use crate::sys::{Root, append, clock, durable};

/// Far above what anything here takes, on a loaded machine too.
const DEADLINE: Duration = Duration::from_secs(60);

/// When the processes ended of which the kernel's event stream tells.
const REPORTED_AT: Duration = Duration::from_secs(1);

fn reported(status: ExitStatus) -> ReportedExit {
    ReportedExit {
        status,
        at: REPORTED_AT,
    }
}

struct TestDir(Scratch);

impl TestDir {
    fn new(name: &str) -> Self {
        Self(Scratch::new(name))
    }

    fn read(&self, name: &str) -> String {
        Root::host().read_text(self.0.path(name)).unwrap()
    }

    fn has(&self, name: &str) -> bool {
        Root::host().exists(self.0.path(name))
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        durable::write(&self.0.path(name), bytes).unwrap();
    }

    fn records(&self) -> Vec<String> {
        Root::host().list(self.0.path("containers")).unwrap()
    }
}

struct Fixture {
    runtime: ProcessRuntime,
    events: Receiver<RuntimeEvent>,
    /// How often exits were asked for.
    n_asked: Arc<AtomicU32>,
}

impl Fixture {
    fn new(dir: &Path) -> Self {
        Self::with(dir, Limits::default())
    }

    fn with(dir: &Path, limits: Limits) -> Self {
        let (tx, events) = channel();
        let config = ProcessRuntimeConfig {
            state_dir: dir.to_owned(),
            limits,
        };
        let sink = Box::new(move |event| {
            // The test may be over.
            let _ = tx.send(event);
        });
        let n_asked = Arc::<AtomicU32>::default();
        let asked = Arc::clone(&n_asked);
        let ask = Box::new(move || {
            asked.fetch_add(1, Ordering::Relaxed);
        });
        let runtime = ProcessRuntime::new(&config, sink, ask).unwrap();
        Self {
            runtime,
            events,
            n_asked,
        }
    }

    fn next(&self) -> RuntimeEvent {
        self.events.recv_timeout(DEADLINE).unwrap()
    }

    #[track_caller]
    fn started(&self) -> HostProcess {
        match self.next() {
            RuntimeEvent::Started { process, .. } => process,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn exited(&self) -> ContainerExit {
        match self.next() {
            RuntimeEvent::Exited { exit, .. } => exit,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn start_error(&mut self, spec: ContainerSpec) -> String {
        self.runtime.start(spec).unwrap();
        match self.next() {
            RuntimeEvent::StartFailed { error, .. } => chain(&error),
            other => panic!("{other:?}"),
        }
    }
}

/// As the top level prints it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}

fn spec(dir: &Path, id: &str, argv: &[&str]) -> ContainerSpec {
    ContainerSpec {
        id: ContainerId::new(id).unwrap(),
        owner: ContainerOwner {
            pod_uid: PodUid("0000".to_owned()),
            pod_namespace: "default".to_owned(),
            pod_name: "web".to_owned(),
            container: "app".to_owned(),
            attempt: 0,
        },
        argv: argv.iter().map(|it| (*it).to_owned()).collect(),
        env: vec![("A".to_owned(), "1".to_owned())],
        working_dir: dir.to_owned(),
        cgroup: ContainerCgroup::Split(Vec::new()),
        run_as: None,
        oom_score_adj: 500,
        log_path: dir.join(format!("logs/{id}/0.log")),
        spec_hash: "hash".to_owned(),
        pod_requests: ResourceList::new(),
    }
}

fn shell(dir: &Path, id: &str, script: &str) -> ContainerSpec {
    spec(dir, id, &["sh", "-c", script])
}

fn signal(signal: u8) -> ContainerExit {
    ContainerExit::Known(ExitStatus::Signal {
        signal,
        core_dumped: false,
    })
}

fn code(code: u8) -> ContainerExit {
    ContainerExit::Known(ExitStatus::Code(code))
}

fn wait_until(what: &str, mut is_done: impl FnMut() -> bool) {
    let start = clock::boottime();
    while !is_done() {
        assert!(clock::boottime() - start < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn every_way_to_end_is_told() {
    let dir = TestDir::new("ends");
    let mut it = Fixture::new(dir.0.directory());
    for (i, (script, want)) in [
        ("exit 0", code(0)),
        ("exit 7", code(7)),
        ("exit 255", code(255)),
        ("kill -TERM $$", signal(15)),
        ("kill -KILL $$", signal(9)),
        // Real-time signals have no name in most tables.
        ("kill -40 $$", signal(40)),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("c{i}");
        it.runtime
            .start(shell(dir.0.directory(), &id, script))
            .unwrap();
        it.started();
        assert_eq!(it.exited(), want, "{script}");
        let id = ContainerId::new(id).unwrap();
        assert_eq!(dir.records(), [format!("{id}.json")]);
        it.runtime.forget(&id).unwrap();
        it.runtime.forget(&id).unwrap();
        assert!(dir.records().is_empty());
    }
}

#[test]
fn a_signal_goes_to_a_running_container_only() {
    let dir = TestDir::new("signal");
    let mut it = Fixture::new(dir.0.directory());
    let id = ContainerId::new("c").unwrap();
    let not_running = |result| matches!(result, Err(RuntimeError::NotRunning { .. }));
    assert!(not_running(it.runtime.signal(&id, Signal::TERM)));
    it.runtime
        .start(spec(dir.0.directory(), "c", &["sleep", "100"]))
        .unwrap();
    it.started();
    assert!(matches!(
        it.runtime.start(spec(dir.0.directory(), "c", &["true"])),
        Err(RuntimeError::Duplicate { .. })
    ));
    assert!(matches!(
        it.runtime.forget(&id),
        Err(RuntimeError::StillRunning { .. })
    ));
    it.runtime.signal(&id, Signal::TERM).unwrap();
    assert_eq!(it.exited(), signal(15));
    assert!(matches!(
        it.runtime.start(spec(dir.0.directory(), "c", &["true"])),
        Err(RuntimeError::NotForgotten { .. })
    ));
    assert!(not_running(it.runtime.signal(&id, Signal::TERM)));
}

#[test]
fn a_failed_start_says_which_step_and_leaves_nothing() {
    let dir = TestDir::new("failures");
    let mut it = Fixture::new(dir.0.directory());
    dir.write("not-executable", b"#!/bin/sh\n");
    dir.write("garbage", b"no program");
    let d = dir.0.directory().display().to_string();
    let mut chmod = Command::new("chmod");
    chmod.arg("+x").arg(dir.0.path("garbage"));
    assert!(chmod.status().unwrap().success());
    let with = |change: &dyn Fn(&mut ContainerSpec)| {
        let mut spec = spec(dir.0.directory(), "c", &["true"]);
        change(&mut spec);
        spec
    };
    let argv = |argv: &[&str]| spec(dir.0.directory(), "c", argv);
    let cases = [
        (argv(&[]), "no command: the pod gives neither command nor args, and images are not used".to_owned()),
        (argv(&["no-such-program"]), "exec no-such-program: not found in PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        (argv(&["/no/such"]), "exec /no/such: No such file or directory (os error 2)".to_owned()),
        (argv(&["./not-executable"]), "exec ./not-executable: Permission denied (os error 13)".to_owned()),
        (argv(&["./garbage"]), "exec ./garbage: Exec format error (os error 8)".to_owned()),
        (argv(&["true", "a\0b"]), "argument \"a\\0b\" has a NUL byte".to_owned()),
        (
            with(&|it| it.env = vec![("A=B".to_owned(), String::new())]),
            "environment variable name \"A=B\" is empty or has a '='".to_owned(),
        ),
        (
            with(&|it| it.working_dir = "/no/such".into()),
            "change to working directory /no/such: No such file or directory (os error 2)".to_owned(),
        ),
        (
            with(&|it| it.log_path = dir.0.path("garbage/0.log")),
            format!("open the log of the container: create directory {d}/garbage: File exists (os error 17)"),
        ),
        (
            with(&|it| it.cgroup = ContainerCgroup::Split(vec!["/no/such".into()])),
            "open the cgroup of the container: /no/such is not there".to_owned(),
        ),
        (
            with(&|it| it.cgroup = ContainerCgroup::Unified(dir.0.directory().to_owned())),
            "clone a process: Bad file descriptor (os error 9)".to_owned(),
        ),
    ];
    for (spec, want) in cases {
        assert_eq!(it.start_error(spec), want);
        assert!(dir.records().is_empty(), "{:?}", dir.records());
    }
    // The id is free again.
    it.runtime.start(argv(&["true"])).unwrap();
    it.started();
    assert_eq!(it.exited(), code(0));
}

#[test]
fn a_container_gets_what_it_asks_for_and_nothing_of_the_agent() {
    let dir = TestDir::new("clean");
    let mut it = Fixture::new(dir.0.directory());
    let script = "ls /proc/self/fd; echo; env; echo; pwd; umask; cat /proc/self/oom_score_adj; \
        grep -E '^Sig(Blk|Ign)' /proc/self/status; echo; cut -d' ' -f 1,6 /proc/$$/stat; \
        echo to-stderr >&2";
    let mut spec = spec(dir.0.directory(), "c", &["/bin/sh", "-c", script]);
    spec.env = [
        ("PATH", "/bin"),
        ("A", "1"),
        ("B", "2"),
        ("A", "3"),
        ("PATH", "/usr/bin:/bin"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    it.runtime.start(spec).unwrap();
    let process = it.started();
    assert_eq!(it.exited(), code(0));
    let log = dir.read("logs/c/0.log");
    let [fds, env, facts, ids] = log.split("\n\n").collect::<Vec<_>>()[..] else {
        panic!("{log}");
    };
    // 3 is the directory that ls reads.
    assert_eq!(fds, "0\n1\n2\n3");
    let mut env: Vec<_> = env.lines().filter(|it| !it.starts_with("_=")).collect();
    env.sort_unstable();
    let pwd = format!("PWD={}", dir.0.directory().display());
    env.retain(|line| *line != pwd && *line != "SHLVL=0" && *line != "SHLVL=1");
    assert_eq!(env, ["A=3", "B=2", "PATH=/usr/bin:/bin"]);
    let none = "0000000000000000";
    assert_eq!(
        facts,
        format!(
            "{}\n0022\n500\nSigBlk:\t{none}\nSigIgn:\t{none}",
            dir.0.directory().display()
        )
    );
    assert_eq!(
        ids,
        format!("{0} {0}\nto-stderr\n", process.pid),
        "a session of its own"
    );
}

#[test]
fn what_its_processes_leave_behind_is_the_first_ones() {
    let dir = TestDir::new("orphans");
    let mut it = Fixture::new(dir.0.directory());
    let looks = "read pid name state parent rest </proc/$$/stat";
    let orphan = format!("until [ \"$parent\" = $FIRST ]; do {looks}; done; echo >adopted");
    let script =
        format!("export FIRST=$$; (sh -c '{orphan}' &); until [ -e adopted ]; do sleep 0.01; done");
    it.runtime
        .start(shell(dir.0.directory(), "c", &script))
        .unwrap();
    it.started();
    assert_eq!(it.exited(), code(0));
}

#[test]
fn what_an_agent_may_use_a_container_may_not() {
    let dir = TestDir::new("limits");
    let limits = Limits {
        open_files: Some(200),
        locked_memory: Some((16 << 10, 32 << 10)),
    };
    let mut it = Fixture::with(dir.0.directory(), limits);
    let script = "{ ulimit -Sn; ulimit -Sl; ulimit -Hl; } > limits";
    it.runtime
        .start(shell(dir.0.directory(), "c", script))
        .unwrap();
    it.started();
    assert_eq!(it.exited(), code(0));
    let text = Root::host().read_text(dir.0.path("limits")).unwrap();
    assert_eq!(text, "200\n16\n32\n");
}

#[test]
fn two_hundred_quick_containers_are_each_told_once() {
    let dir = TestDir::new("many");
    let mut it = Fixture::new(dir.0.directory());
    let n = 200;
    for i in 0..n {
        let script = format!("exit {}", i % 3);
        it.runtime
            .start(shell(dir.0.directory(), &format!("c{i}"), &script))
            .unwrap();
    }
    let mut started = BTreeMap::new();
    let mut exited = BTreeMap::new();
    while exited.len() < n {
        match it.next() {
            RuntimeEvent::Started { id, process, .. } => {
                assert_eq!(started.insert(id, process), None);
            }
            RuntimeEvent::Exited { id, exit, .. } => {
                assert!(started.contains_key(&id), "{id} ended before it started");
                assert_eq!(exited.insert(id, exit), None);
            }
            RuntimeEvent::StartFailed { id, error } => panic!("{id}: {}", chain(&error)),
        }
    }
    for i in 0..n {
        let id = ContainerId::new(format!("c{i}")).unwrap();
        assert_eq!(exited[&id], code(u8::try_from(i % 3).unwrap()), "{id}");
        it.runtime.forget(&id).unwrap();
    }
    assert!(it.events.try_recv().is_err());
    assert!(dir.records().is_empty());
    for process in started.values() {
        let stat = Root::host().read_text_if_any(format!("/proc/{}/stat", process.pid));
        let is_zombie = stat.unwrap().is_some_and(|it| it.contains(") Z "));
        assert!(!is_zombie, "{process:?} was not reaped");
    }
}

/// A child that waits at its gate, without a word to the runtime.
fn at_the_gate(dir: &TestDir, it: &Fixture, spec: &ContainerSpec) -> Child {
    dir.write(&format!("containers/{}.starting", spec.id), b"");
    let command = command::Command::resolve(spec, &it.runtime.shared.searches).unwrap();
    let plan = Launch {
        program: command.program_c,
        argv: command.argv,
        envp: command.envp,
        working_dir: command.working_dir,
        stdin: append::open_null().unwrap(),
        output: append::open(&dir.0.path("log")).unwrap(),
        join: Vec::new(),
        limits: Limits::default(),
        rename: it.runtime.shared.records.mark_run(&spec.id).unwrap(),
        identity: None,
    };
    let child = launch(&plan, None).unwrap();
    let progress = child.progress(DEADLINE).unwrap();
    assert!(matches!(progress, Progress::Ready));
    child
}

fn end_of(pidfd: &OwnedFd) -> Option<ProcessExit> {
    assert!(is_readable_within(pidfd.as_fd(), DEADLINE).unwrap());
    wait_child(pidfd.as_fd(), Reap::Yes).unwrap()
}

#[test]
fn without_an_open_gate_nothing_runs() {
    let dir = TestDir::new("gate");
    let it = Fixture::new(dir.0.directory());
    let spec = shell(dir.0.directory(), "c", "echo > ran");
    let pidfd = at_the_gate(&dir, &it, &spec).into_pidfd();
    assert_eq!(end_of(&pidfd), Some(ProcessExit::Code(126)));
    assert!(!dir.has("ran"));
    assert_eq!(dir.records(), ["c.starting"]);
}

/// As when another child holds its pipe open, or the disk hangs: what runs goes on, and nothing else ever runs.
#[test]
fn a_child_that_says_nothing_is_judged_by_its_record() {
    let dir = TestDir::new("silent");
    let it = Fixture::new(dir.0.directory());
    let shared = &it.runtime.shared;
    let starter = Starter {
        records: &shared.records,
        exits: &shared.exits,
        searches: &shared.searches,
        boot_id: &shared.boot_id,
        limits: Limits::default(),
    };
    let spec = shell(dir.0.directory(), "runs", "exec sleep 60");
    let child = at_the_gate(&dir, &it, &spec);
    child.open_gate().unwrap();
    let progress = child.progress(DEADLINE).unwrap();
    assert!(matches!(progress, Progress::Closed));
    starter.has_begun(&spec.id, &child, Pipe::Silent).unwrap();
    let pidfd = child.into_pidfd();
    pidfd_send_signal(pidfd.as_fd(), 15).unwrap();
    let ended = end_of(&pidfd);
    assert!(
        matches!(ended, Some(ProcessExit::Signal { signal: 15, .. })),
        "{ended:?}"
    );

    let spec = shell(dir.0.directory(), "waits", "echo > ran");
    let child = at_the_gate(&dir, &it, &spec);
    let error = starter.has_begun(&spec.id, &child, Pipe::Silent);
    assert!(matches!(error, Err(StartError::Stuck { .. })), "{error:?}");
    let ended = end_of(&child.into_pidfd());
    assert!(
        matches!(ended, Some(ProcessExit::Signal { signal: 9, .. })),
        "{ended:?}"
    );
    assert!(!dir.has("ran"));
}

/// Another process that is an agent, to be killed.
struct Agent {
    process: std::process::Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

/// What the test of the same name as the helper reads to know that it is one.
const HELPER_DIR: &str = "BALLAST_TEST_AGENT_DIR";

impl Agent {
    /// Runs `an_agent_to_kill` of this test binary in `dir`.
    fn spawn(dir: &Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "runtime::process::tests::an_agent_to_kill",
                "--nocapture",
            ])
            .env(HELPER_DIR, dir)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, lines }
    }

    fn wait_for(&mut self, line: &str) {
        assert!(self.lines.any(|it| it.unwrap().contains(line)), "{line}");
    }

    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// In a process of its own: starts the containers of `plan`, a script a line, and waits to be
/// killed. As a test of its own, it shows that the helper is not taken for one.
#[test]
fn an_agent_to_kill() {
    let environ = Root::host().read("/proc/self/environ").unwrap();
    let dir = environ.split(|byte| *byte == 0).find_map(|it| {
        let value = it.strip_prefix(HELPER_DIR.as_bytes())?.strip_prefix(b"=")?;
        Some(PathBuf::from(std::str::from_utf8(value).ok()?))
    });
    let Some(dir) = dir else {
        assert!(!String::from_utf8_lossy(&environ).contains(HELPER_DIR));
        return;
    };
    let mut it = Fixture::new(&dir);
    it.runtime.recover().unwrap();
    let plan = Root::host().read_text(dir.join("plan")).unwrap();
    println!("\nready");
    for (i, script) in plan.lines().enumerate() {
        it.runtime
            .start(shell(&dir, &format!("c{i}"), script))
            .unwrap();
    }
    let mut n_starting = plan.lines().count();
    while n_starting > 0 {
        match it.next() {
            RuntimeEvent::Started { .. } => n_starting -= 1,
            RuntimeEvent::Exited { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    println!("\nstarted");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_later_agent_adopts_what_runs() {
    let dir = TestDir::new("adopt");
    let wait = "while [ ! -e go ]; do sleep 0.01; done";
    let plan = [
        format!("{wait}; exit 7"),
        format!("{wait}; kill -TERM $$"),
        "exec sleep 100".to_owned(),
        "exit 3".to_owned(),
    ];
    dir.write("plan", plan.join("\n").as_bytes());
    let mut agent = Agent::spawn(dir.0.directory());
    agent.wait_for("started");
    agent.kill();
    // Containers do not notice.
    let mut it = Fixture::new(dir.0.directory());
    let recovered = it.runtime.recover().unwrap();
    assert!(
        recovered.faults.is_empty() && recovered.never_started.is_empty(),
        "{recovered:?}"
    );
    let all = [&recovered.running[..], &recovered.ended[..]].concat();
    let mut ids: Vec<_> = all.iter().map(|it| it.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["c0", "c1", "c2", "c3"]);
    let record = |id: &str| all.iter().find(|it| it.id.as_str() == id).unwrap();
    for (id, end) in [("c0", false), ("c1", false), ("c2", false)] {
        assert_eq!(record(id).end.is_some(), end, "{id}");
    }
    // Its status is in the record if the agent lived long enough to see it, and in the stream
    // else, which nobody reads here.
    let quick = record("c3").end.map(|it| it.exit);
    let unknown = ContainerExit::Unknown(UnknownExit::Unobserved);
    assert!(
        [None, Some(code(3)), Some(unknown)].contains(&quick),
        "{quick:?}"
    );

    let key = |record: &ContainerRecord| ProcessKey {
        pid: record.process.pid,
        start_boottime_ns: record.process.start_ticks * HostProcess::NS_PER_TICK + 1,
    };
    let stranger = ProcessKey {
        start_boottime_ns: 1,
        ..key(record("c0"))
    };
    it.runtime
        .report_exit(stranger, reported(ExitStatus::Code(1)));
    it.runtime
        .report_exit(key(record("c0")), reported(ExitStatus::Code(7)));
    let terminated = ExitStatus::Signal {
        signal: 15,
        core_dumped: false,
    };
    // From the thread that hears of it.
    let report = it.runtime.exit_reporter();
    let c1 = key(record("c1"));
    std::thread::spawn(move || report(c1, terminated))
        .join()
        .unwrap();
    dir.write("go", b"");
    let mut exits = BTreeMap::new();
    let n_expected = recovered.running.len() - 1;
    while exits.len() < n_expected {
        match it.next() {
            RuntimeEvent::Exited { id, exit, .. } => {
                assert_eq!(exits.insert(id.to_string(), exit), None);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(exits["c0"], code(7));
    assert_eq!(exits["c1"], signal(15));
    let sleeper = ContainerId::new("c2").unwrap();
    it.runtime.signal(&sleeper, Signal::KILL).unwrap();
    // Nobody reports it; only a kernel with PIDFD_INFO_EXIT (6.15) tells.
    let exit = it.exited();
    let n_ended = u32::try_from(n_expected + 1).unwrap();
    assert_eq!(it.n_asked.load(Ordering::Relaxed), n_ended, "of others");
    assert!([signal(9), unknown].contains(&exit), "{exit:?}");

    // The third agent finds four ends, as the second has told them.
    drop(it);
    let mut it = Fixture::new(dir.0.directory());
    let recovered = it.runtime.recover().unwrap();
    assert!(recovered.running.is_empty());
    let ends: BTreeMap<_, _> = recovered
        .ended
        .iter()
        .map(|it| (it.id.as_str(), it.end.unwrap().exit))
        .collect();
    assert_eq!(ends.len(), 4);
    assert_eq!(
        (ends["c0"], ends["c1"], ends["c2"]),
        (code(7), signal(15), exit)
    );
}

/// Who looks at the exits between the two sees none of it.
#[test]
fn an_end_between_the_look_and_the_recovery_is_told_later() {
    let dir = TestDir::new("found");
    let mut it = Fixture::new(dir.0.directory());
    it.runtime
        .start(spec(dir.0.directory(), "c0", &["sleep", "100"]))
        .unwrap();
    let process = it.started();
    drop(it);
    let mut it = Fixture::new(dir.0.directory());
    it.runtime.find().unwrap();
    let pidfd = crate::sys::syscall::pidfd_open(process.pid).unwrap();
    pidfd_send_signal(pidfd.as_fd(), 9).unwrap();
    assert!(is_readable_within(pidfd.as_fd(), DEADLINE).unwrap());
    wait_child(pidfd.as_fd(), Reap::Yes).unwrap();
    let recovered = it.runtime.recover().unwrap();
    assert!(recovered.ended.is_empty(), "{recovered:?}");
    let key = ProcessKey {
        pid: process.pid,
        start_boottime_ns: process.start_ticks * HostProcess::NS_PER_TICK,
    };
    let killed = ExitStatus::Signal {
        signal: 9,
        core_dumped: false,
    };
    it.runtime.report_exit(key, reported(killed));
    assert_eq!(it.exited(), signal(9));
}

#[test]
fn an_agent_killed_at_any_moment_leaves_no_doubt() {
    let n_containers: usize = 8;
    let (mut n_running, mut n_never) = (0, 0);
    // Killed as soon as so many programs have run; the others are anywhere on their way.
    for round in 0..=n_containers {
        let dir = TestDir::new(&format!("kill-{round}"));
        let plan: Vec<_> = (0..n_containers)
            .map(|i| format!("echo > ran-c{i}; exec sleep 100"))
            .collect();
        dir.write("plan", plan.join("\n").as_bytes());
        let mut agent = Agent::spawn(dir.0.directory());
        agent.wait_for("ready");
        wait_until("containers run", || {
            let records = dir.records();
            records.iter().filter(|it| it.ends_with(".json")).count() >= round
        });
        agent.kill();
        let mut it = Fixture::new(dir.0.directory());
        let recovered = it.runtime.recover().unwrap();
        assert!(recovered.faults.is_empty(), "{recovered:?}");
        assert!(recovered.ended.is_empty(), "{recovered:?}");
        for record in &recovered.running {
            let marker = format!("ran-{}", record.id);
            wait_until(&marker, || dir.has(&marker));
        }
        let ids: Vec<_> = recovered.running.iter().map(|it| &it.id).collect();
        // Children at their gate see its end at once; whatever could run has run by now.
        for i in 0..n_containers {
            let id = ContainerId::new(format!("c{i}")).unwrap();
            assert_eq!(
                dir.has(&format!("ran-{id}")),
                ids.contains(&&id),
                "round {round}, {id}"
            );
        }
        n_running += recovered.running.len();
        n_never += n_containers - recovered.running.len();
        for id in &ids {
            it.runtime.signal(id, Signal::KILL).unwrap();
        }
        for _ in &ids {
            it.exited();
        }
    }
    assert!(
        n_running > 0 && n_never > 0,
        "the moments are all alike: {n_running}, {n_never}"
    );
}

#[test]
fn records_that_mean_nothing_are_told_and_kept_aside() {
    let dir = TestDir::new("records");
    let mut it = Fixture::new(dir.0.directory());
    for id in ["other-boot", "reused", "good"] {
        it.runtime
            .start(spec(dir.0.directory(), id, &["sleep", "100"]))
            .unwrap();
        it.started();
    }
    drop(it);
    let mut records = records::Records::open(dir.0.directory())
        .unwrap()
        .load()
        .unwrap()
        .0;
    let mut take = |id: &str| {
        let i = records
            .iter()
            .position(|it| it.record.id.as_str() == id)
            .unwrap();
        records.remove(i).record
    };
    let good = take("good");
    let store = records::Records::open(dir.0.directory()).unwrap();
    let other_boot = take("other-boot");
    let reused = take("reused");
    for process in [other_boot.process, reused.process] {
        let pidfd = crate::sys::syscall::pidfd_open(process.pid).unwrap();
        pidfd_send_signal(pidfd.as_fd(), 9).unwrap();
        assert!(crate::sys::launch::is_readable_within(pidfd.as_fd(), DEADLINE).unwrap());
        crate::sys::syscall::wait_child(pidfd.as_fd(), crate::sys::syscall::Reap::Yes).unwrap();
    }
    store
        .update(&ContainerRecord {
            boot_id: "another".to_owned(),
            ..other_boot
        })
        .unwrap();
    // The pid belongs to another process now: the one of the good container.
    let process = HostProcess {
        start_ticks: reused.process.start_ticks - 1,
        ..good.process
    };
    store
        .update(&ContainerRecord { process, ..reused })
        .unwrap();
    let bytes = Root::host()
        .read(dir.0.path("containers/good.json"))
        .unwrap();
    let flipped: Vec<u8> = String::from_utf8(bytes.clone())
        .unwrap()
        .replace("\"web\"", "\"wEb\"")
        .into();
    dir.write("containers/flipped.json", &flipped);
    dir.write("containers/copy.json", &bytes);
    dir.write("containers/empty.starting", b"");
    let newer = String::from_utf8(bytes).unwrap();
    let newer = newer.replacen("\"format\":1", "\"format\":2", 1);
    dir.write("containers/newer.json", newer.as_bytes());
    dir.write("containers/half.json.tmp", b"half");

    let mut it = Fixture::new(dir.0.directory());
    let early = ProcessKey {
        pid: process.pid,
        start_boottime_ns: process.start_ticks * HostProcess::NS_PER_TICK,
    };
    it.runtime.report_exit(early, reported(ExitStatus::Code(4)));
    let recovered = it.runtime.recover().unwrap();
    let faults: Vec<_> = recovered
        .faults
        .iter()
        .map(|it| {
            (
                it.path.file_name().unwrap().to_str().unwrap(),
                chain(&it.source),
            )
        })
        .collect();
    assert_eq!(faults.len(), 4, "{faults:?}");
    assert_eq!(
        faults[0],
        ("copy.json", "is about container good".to_owned())
    );
    assert_eq!(faults[1], ("empty.starting", "no header line".to_owned()));
    assert!(faults[2].1.starts_with("checksum "), "{faults:?}");
    assert_eq!(faults[3], ("newer.json", "format 2, want 1".to_owned()));
    let running: Vec<_> = recovered.running.iter().collect();
    assert_eq!(running, [&good]);
    let ended: Vec<_> = recovered
        .ended
        .iter()
        .map(|it| (it.id.as_str(), it.end.unwrap()))
        .map(|(id, end)| (id, end.exit, end.finished_at))
        .collect();
    let restarted = ContainerExit::Unknown(UnknownExit::NodeRestarted);
    assert_eq!(
        ended,
        [
            ("other-boot", restarted, None),
            ("reused", code(4), Some(REPORTED_AT))
        ]
    );
    assert_eq!(
        dir.records(),
        [
            "copy.json.corrupt",
            "empty.starting.corrupt",
            "flipped.json.corrupt",
            "good.json",
            "newer.json",
            "other-boot.json",
            "reused.json"
        ]
    );
    // A child of this process, whoever started it.
    it.runtime.signal(&good.id, Signal::TERM).unwrap();
    assert_eq!(it.exited(), signal(15));
}

#[test]
fn a_container_may_run_as_another_user() {
    let dir = TestDir::new("user");
    let mut it = Fixture::new(dir.0.directory());
    let id = nix::unistd::geteuid().as_raw();
    let mut spec = shell(dir.0.directory(), "c", "id -u; id -g; id -G");
    spec.run_as = Some(crate::runtime::RunAs {
        uid: 12345,
        gid: 2345,
        groups: vec![77, 88],
    });
    it.runtime.start(spec).unwrap();
    match it.next() {
        RuntimeEvent::Started { .. } => {
            assert_eq!(it.exited(), code(0));
            assert_eq!(dir.read("logs/c/0.log"), "12345\n2345\n2345 77 88\n");
        }
        RuntimeEvent::StartFailed { error, .. } => {
            assert_ne!(id, 0, "{}", chain(&error));
            let want = "run as uid 12345 gid 2345: setgroups: Operation not permitted (os error 1)";
            assert_eq!(chain(&error), want);
        }
        other => panic!("{other:?}"),
    }
}
