//! The kernel event streams against the kernel: what a test does is what the streams tell.

mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ballast::model::check::Bpffs;
use ballast::model::event::{
    AttributionMethod, CgroupChange, CgroupEvent, CgroupId, CgroupLineage, ExitStatus, KernelEvent,
    OomConstraint, OomKill, ProcessChange, ProcessEvent, ProcessKey, StallEvent, StallKind,
};
use ballast::sources::bpf::{
    self, LoadOptions, Pinning, ProgramState, Stream, Streams, WatchedRoot,
};
use ballast::sys::clock;
use ballast_tests::wait::{patience, until, wait_for};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use self::node::{Cgroup, Hierarchy, PinDirectory};
use super::scaled;

const MIB: u64 = 1 << 20;

/// Streams with what they have told so far.
struct Watcher {
    streams: Streams,
    events: Vec<KernelEvent>,
    /// From the kernel's time of an OOM kill in the watched root to the decoded event.
    latencies: Vec<Duration>,
}

impl Watcher {
    fn start(root: &Cgroup) -> Result<Self> {
        Self::watching(root.watched()?)
    }

    fn watching(root: WatchedRoot) -> Result<Self> {
        Self::with(LoadOptions {
            watched: Some(root),
            ..LoadOptions::default()
        })
    }

    fn with(options: LoadOptions) -> Result<Self> {
        Ok(Self {
            streams: Streams::load(&options)?,
            events: Vec::new(),
            latencies: Vec::new(),
        })
    }

    /// Waits at most `timeout` for events and takes what is there, which is what waited before.
    fn take(&mut self, timeout: Duration) -> Result<()> {
        let mut fds: Vec<_> = self
            .streams
            .rings()
            .map(|(_, fd)| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        poll(&mut fds, PollTimeout::try_from(timeout)?)?;
        drop(fds);
        for stream in Stream::ALL {
            let waiting = self.streams.waiting(stream)?;
            let n_before = self.events.len();
            let (events, latencies) = (&mut self.events, &mut self.latencies);
            let drained = self.streams.drain(stream, usize::MAX, &mut |event| {
                if let KernelEvent::Oom(kill) = &event
                    && kill.victim_cgroup.in_root
                {
                    let at = Duration::from_nanos(kill.at_ns);
                    latencies.push(clock::boottime().saturating_sub(at));
                }
                events.push(event);
            });
            ensure!(drained.malformed == 0, "{} malformed", drained.malformed);
            let taken = &self.events[n_before..];
            ensure!(
                taken.starts_with(&waiting),
                "{waiting:#?} waited, {taken:#?} came"
            );
        }
        Ok(())
    }

    /// Takes events until `done` holds.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        let deadline = Instant::now() + patience();
        while !done(self) {
            if Instant::now() > deadline {
                let n = self.events.len();
                let last = &self.events[n.saturating_sub(20)..];
                bail!("waited in vain for {what}; of {n} events the last: {last:#?}");
            }
            self.take(Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// Those in the watched root: the stream tells of the rest of the machine too.
    fn kills(&self) -> Vec<&OomKill> {
        kills_where(&self.events, |it| it.in_root)
    }

    /// Those right in a cgroup, be it in the watched root or not.
    fn kills_in(&self, cgroup: CgroupId) -> Vec<&OomKill> {
        kills_where(&self.events, |it| it.cgroup_id == cgroup)
    }

    fn processes(&self) -> Vec<&ProcessEvent> {
        self.of(|event| match event {
            KernelEvent::Process(it) => Some(it),
            _ => None,
        })
    }

    fn cgroups(&self) -> Vec<&CgroupEvent> {
        self.of(|event| match event {
            KernelEvent::Cgroup(it) => Some(it),
            _ => None,
        })
    }

    fn stalls(&self) -> Vec<&StallEvent> {
        self.of(|event| match event {
            KernelEvent::Stall(it) => Some(it),
            _ => None,
        })
    }

    fn of<'a, T>(&'a self, pick: impl Fn(&'a KernelEvent) -> Option<&'a T>) -> Vec<&'a T> {
        self.events.iter().filter_map(pick).collect()
    }

    fn exit_of(&self, pid: u32) -> Option<(ExitStatus, bool)> {
        self.processes().iter().find_map(|it| match it.change {
            ProcessChange::Exit { status, by_oom } if it.process.pid == pid => {
                Some((status, by_oom))
            }
            _ => None,
        })
    }

    fn ensure_nothing_is_lost(&self) -> Result<()> {
        let losses = self.streams.losses()?;
        ensure!(losses.len() == Stream::ALL.len(), "streams: {losses:?}");
        ensure!(losses.values().all(|it| *it == 0), "lost: {losses:?}");
        Ok(())
    }
}

/// Kills of whom it is so.
fn kills_where(events: &[KernelEvent], is_it: impl Fn(&CgroupLineage) -> bool) -> Vec<&OomKill> {
    let kills = events.iter().filter_map(|event| match event {
        KernelEvent::Oom(it) if is_it(&it.victim_cgroup) => Some(it),
        _ => None,
    });
    kills.collect()
}

/// How many kills in the watched root wait for a reader.
fn n_kills_that_wait(streams: &Streams) -> Result<usize> {
    let waiting = streams.waiting(Stream::Oom)?;
    Ok(kills_where(&waiting, |it| it.in_root).len())
}

/// A lineage inside the watched root.
fn lineage(path: &[&Cgroup]) -> Result<CgroupLineage> {
    let mut below_root = [None; 3];
    for (slot, cgroup) in below_root.iter_mut().zip(path) {
        *slot = Some(cgroup.id()?);
    }
    let leaf = path.last().context("a lineage has a leaf")?;
    Ok(CgroupLineage {
        cgroup_id: leaf.id()?,
        below_root,
        in_root: true,
    })
}

fn wait_for_kill(hog: &mut Child) -> Result<()> {
    let status = hog.wait()?;
    ensure!(status.signal() == Some(9), "the hog ended with {status}");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn every_stream_has_its_programs() -> Result<()> {
    let root = Cgroup::root("programs")?;
    let watcher = Watcher::start(&root)?;
    let reports = watcher.streams.reports();
    let attached: BTreeSet<_> = reports
        .iter()
        .filter(|it| matches!(it.state, ProgramState::Attached { .. }))
        .map(|it| it.program.trim_end_matches("_raw").trim_end_matches("_pid"))
        .collect();
    for program in [
        "oom_signal",
        "oom_victim",
        "process_fork",
        "process_exec",
        "process_exit",
        "cgroup_created",
        "cgroup_removed",
        "cgroup_attached",
        "cgroup_populated",
        "stall_cgroup_removed",
        "stall_memcg_begin",
        "stall_memcg_end",
        "stall_direct_begin",
        "stall_direct_end",
    ] {
        ensure!(attached.contains(program), "{program}: {reports:#?}");
    }
    for report in reports {
        println!("{report:?}");
    }
    Ok(())
}

/// An epoll that tells of edges has an event for each time that a ring wakes its reader.
struct Edges(Epoll);

impl Edges {
    /// From now on.
    fn of(watcher: &Watcher, stream: Stream) -> Result<Self> {
        let mut rings = watcher.streams.rings();
        let (_, ring) = rings
            .find(|(it, _)| *it == stream)
            .context("the stream runs")?;
        let epoll = Epoll::new(EpollCreateFlags::empty())?;
        let edges = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(ring, EpollEvent::new(edges, 0))?;
        let edges = Self(epoll);
        while edges.has_one(Duration::ZERO)? {}
        Ok(edges)
    }

    fn has_one(&self, timeout: Duration) -> Result<bool> {
        let mut events = [EpollEvent::empty()];
        Ok(self.0.wait(&mut events, EpollTimeout::try_from(timeout)?)? > 0)
    }
}

#[cfg_attr(feature = "privileged", test)]
fn processes_wake_a_reader_when_a_quarter_of_the_ring_waits() -> Result<()> {
    /// Records of 104 bytes in 256 KiB.
    const QUARTER: usize = 2_520;
    let root = Cgroup::root("quarter")?;
    let pod = root.child("pod")?;
    let watcher = Watcher::start(&root)?;
    let edges = Edges::of(&watcher, Stream::Process)?;
    let run = |n_children: usize| -> Result<usize> {
        let children = format!("n=0; while [ $n -lt {n_children} ]; do (:); n=$((n+1)); done");
        let status = pod.run(&children)?.wait()?;
        ensure!(status.success(), "{status}");
        Ok(watcher.streams.waiting(Stream::Process)?.len())
    };
    let n_waiting = run(100)?;
    ensure!((200..QUARTER).contains(&n_waiting), "{n_waiting} wait");
    ensure!(
        !edges.has_one(Duration::ZERO)?,
        "woken for {n_waiting} records"
    );
    let n_waiting = run(QUARTER / 2)?;
    ensure!(n_waiting > QUARTER, "{n_waiting} wait");
    ensure!(
        edges.has_one(patience())?,
        "not woken for {n_waiting} records"
    );
    watcher.ensure_nothing_is_lost()
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_and_the_end_of_its_victim_wake_a_reader_and_cgroups_do_not() -> Result<()> {
    let root = Cgroup::root("woken")?;
    let watcher = Watcher::start(&root)?;
    let edges = |stream| Edges::of(&watcher, stream);
    let (kills, processes) = (edges(Stream::Oom)?, edges(Stream::Process)?);
    let cgroups = edges(Stream::Cgroup)?;
    let waiting = Watcher::watching(WatchedRoot {
        tells_ends: true,
        ..root.watched()?
    })?;
    let ends = Edges::of(&waiting, Stream::Cgroup)?;
    let pod = root.child("pod")?;
    let ended = pod.run("exit 0")?.wait()?;
    ensure!(ended.success(), "{ended}");
    // Made, entered, empty again.
    until("what became of the cgroup waits", || {
        let n = watcher.streams.waiting(Stream::Cgroup)?.len();
        ensure!(n >= 3, "{n} records");
        Ok(())
    })?;
    ensure!(!cgroups.has_one(Duration::ZERO)?, "woken for cgroups");
    ensure!(ends.has_one(patience())?, "not woken for an end, as asked");
    ensure!(!processes.has_one(Duration::ZERO)?, "woken for processes");
    pod.limit_memory(32 * MIB)?;
    wait_for_kill(&mut pod.run_hog()?)?;
    ensure!(kills.has_one(patience())?, "not woken for a kill");
    ensure!(processes.has_one(patience())?, "not woken for its victim");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_names_victim_trigger_limit_and_their_cgroups() -> Result<()> {
    let root = Cgroup::root("oom")?;
    let pod = root.child("pod")?;
    let container = pod.child("c")?;
    pod.limit_memory(32 * MIB)?;
    let mut watcher = Watcher::start(&root)?;
    let mut hog = container.run_hog()?;
    let pid = hog.id();
    wait_for_kill(&mut hog)?;
    watcher.until("the kill and the exit", |it| {
        !it.kills().is_empty() && it.exit_of(pid).is_some()
    })?;

    let kills = watcher.kills();
    ensure!(kills.len() == 1, "{kills:#?}");
    let kill = kills[0];
    assert_eq!((kill.victim.pid, kill.victim_tid), (pid, pid));
    assert_eq!((kill.trigger_pid, &*kill.trigger_comm), (pid, "tail"));
    assert_eq!(kill.victim_comm, "tail");
    assert_eq!(kill.victim_parent_pid, std::process::id());
    assert_eq!(kill.victim_cgroup, lineage(&[&pod, &container])?);
    assert_eq!(kill.victim_names, ["pod", "c", ""]);
    assert_eq!(kill.trigger_cgroup, kill.victim_cgroup);
    assert_eq!(kill.constraint, Some(OomConstraint::Memcg));
    assert_eq!(kill.limit_cgroup, Some(lineage(&[&pod])?));
    assert_eq!(kill.limit_max_bytes, Some(32 * MIB));
    assert!(!kill.was_exiting);
    assert_ne!(kill.method, AttributionMethod::None);
    let usage = kill.limit_usage_bytes.unwrap_or_default();
    assert!((31 * MIB..=32 * MIB).contains(&usage), "usage {usage}");
    assert!(
        (16 * MIB..=32 * MIB).contains(&kill.anon_bytes),
        "{kill:#?}"
    );
    assert!(kill.total_vm_bytes > kill.anon_bytes && kill.page_table_bytes > 0);
    let killed = ExitStatus::Signal {
        signal: 9,
        core_dumped: false,
    };
    assert_eq!(watcher.exit_of(pid), Some((killed, true)));
    let start = watcher
        .processes()
        .iter()
        .find(|it| it.process.pid == pid)
        .map(|it| it.process);
    assert_eq!(start, Some(kill.victim));
    println!("method {:?}", kill.method);
    watcher.ensure_nothing_is_lost()
}

#[cfg_attr(feature = "privileged", test)]
fn a_kill_in_a_nested_cgroup_and_one_outside_of_the_root_are_told_apart() -> Result<()> {
    let root = Cgroup::root("nested")?;
    let pod = root.child("pod")?;
    let container = pod.child("c")?;
    let inner = container.child("inner")?;
    let deep = inner.child("deep")?;
    deep.limit_memory(16 * MIB)?;
    let outside = Cgroup::root("outside")?;
    outside.limit_memory(16 * MIB)?;
    let mut watcher = Watcher::start(&root)?;
    wait_for_kill(&mut deep.run_hog()?)?;
    wait_for_kill(&mut outside.run_hog()?)?;
    let (deep, outside) = (deep.id()?, outside.id()?);
    watcher.until("two kills", |it| {
        [deep, outside].iter().all(|id| it.kills_in(*id).len() == 1)
    })?;
    let kill = watcher.kills_in(deep)[0];
    let expected = CgroupLineage {
        cgroup_id: deep,
        ..lineage(&[&pod, &container, &inner])?
    };
    assert_eq!(kill.victim_cgroup, expected);
    assert_eq!(kill.victim_names, ["pod", "c", "inner"]);
    assert_eq!(kill.limit_cgroup, Some(expected));
    let kill = watcher.kills_in(outside)[0];
    let expected = CgroupLineage {
        cgroup_id: outside,
        below_root: [None; 3],
        in_root: false,
    };
    assert_eq!(kill.victim_cgroup, expected);
    assert_eq!(kill.limit_cgroup, Some(expected));
    let foreign = watcher.processes().iter().any(|it| !it.cgroup.in_root);
    ensure!(!foreign, "a process outside of the root was reported");
    Ok(())
}

/// A node that is a container sees no levels above its own.
#[cfg_attr(feature = "privileged", test)]
fn names_of_a_kill_begin_below_the_root_however_deep_that_lies() -> Result<()> {
    let root = Cgroup::root("deep")?;
    let pod = root.child("pod")?;
    let container = pod.child("c")?;
    container.limit_memory(16 * MIB)?;
    let mut watcher = Watcher::watching(WatchedRoot {
        level: 0,
        ..root.watched()?
    })?;
    wait_for_kill(&mut container.run_hog()?)?;
    watcher.until("a kill", |it| it.kills().len() == 1)?;
    let kill = watcher.kills()[0];
    assert_eq!(kill.victim_cgroup, lineage(&[&pod, &container])?);
    assert_eq!(kill.victim_names, ["pod", "c", ""]);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn processes_are_reported_with_their_ends_and_without_their_threads() -> Result<()> {
    let root = Cgroup::root("process")?;
    let pod = root.child("pod")?;
    let mut watcher = Watcher::start(&root)?;
    let mut shell = pod.run("{ sh -c 'exit 3'; sh -c 'kill -TERM $$'; exit 7; }")?;
    let pid = shell.id();
    let status = shell.wait()?;
    assert_eq!(status.code(), Some(7));
    watcher.until("the end of the shell", |it| it.exit_of(pid).is_some())?;

    let ends = |status| {
        let ended = |it: &&&ProcessEvent| matches!(it.change, ProcessChange::Exit { status: s, .. } if s == status);
        watcher.processes().iter().filter(ended).count()
    };
    let terminated = ExitStatus::Signal {
        signal: 15,
        core_dumped: false,
    };
    assert_eq!(ends(ExitStatus::Code(3)), 1);
    assert_eq!(ends(ExitStatus::Code(7)), 1);
    assert_eq!(ends(terminated), 1);
    let forks = watcher
        .processes()
        .iter()
        .filter(|it| it.change == ProcessChange::Fork { parent_pid: pid })
        .count();
    assert_eq!(forks, 2);
    let expected = lineage(&[&pod])?;
    assert!(watcher.processes().iter().all(|it| it.cgroup == expected));
    let ordered = watcher.processes().is_sorted_by_key(|it| it.at_ns);
    assert!(ordered, "{:#?}", watcher.processes());
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_cgroup_is_made_entered_emptied_and_removed() -> Result<()> {
    let root = Cgroup::root("cgroup")?;
    let mut watcher = Watcher::start(&root)?;
    let pod = root.child("pod")?;
    let expected = lineage(&[&pod])?;
    let mut shell = pod.run("true")?;
    let pid = shell.id();
    shell.wait()?;
    let empty = CgroupChange::Populated { populated: false };
    let of_pod = |it: &Watcher, change: &CgroupChange| {
        it.cgroups()
            .iter()
            .any(|it| it.cgroup == expected && it.change == *change)
    };
    watcher.until("an empty cgroup", |it| of_pod(it, &empty))?;
    drop(pod);
    watcher.until("its removal", |it| of_pod(it, &CgroupChange::Removed))?;
    for change in [
        CgroupChange::Created {
            name: "pod".to_owned(),
        },
        CgroupChange::Populated { populated: true },
        CgroupChange::Attached { pid },
    ] {
        assert!(
            of_pod(&watcher, &change),
            "{change:?}: {:#?}",
            watcher.events
        );
    }
    let created = watcher
        .cgroups()
        .iter()
        .filter(|it| matches!(it.change, CgroupChange::Created { .. }))
        .count();
    assert_eq!(created, 1, "one hierarchy alone");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn time_in_reclaim_is_counted_by_cgroup_and_forgotten_with_it() -> Result<()> {
    let root = Cgroup::root("stall")?;
    let pod = root.child("pod")?;
    pod.limit_memory(32 * MIB)?;
    let quiet = Watcher::watching(WatchedRoot {
        tells_stalls: false,
        ..root.watched()?
    })?;
    let no_edges = Edges::of(&quiet, Stream::Stall)?;
    let mut watcher = Watcher::start(&root)?;
    let edges = Edges::of(&watcher, Stream::Stall)?;
    wait_for_kill(&mut pod.run_hog()?)?;
    ensure!(edges.has_one(patience())?, "nobody is woken for it");
    watcher.until("a stall", |it| !it.stalls().is_empty())?;
    let n_waiting = quiet.streams.waiting(Stream::Stall)?.len();
    ensure!(n_waiting > 0, "the other reader is told nothing");
    ensure!(
        !no_edges.has_one(Duration::ZERO)?,
        "woken for {n_waiting} records that it asked nobody to wake it for"
    );
    drop(quiet);
    let id = pod.id()?;
    let totals = watcher.streams.stall_totals()?;
    let total = totals.get(&id).context("no total for the pod")?;
    assert_eq!(total.cgroup, lineage(&[&pod])?);
    ensure!(total.memcg_reclaims > 0, "{total:?}");
    ensure!(total.memcg_reclaim_ns > 0, "{total:?}");
    let reported: u64 = watcher.stalls().iter().map(|it| it.duration_ns).sum();
    let counted = total.memcg_reclaim_ns + total.direct_reclaim_ns;
    ensure!(reported <= counted, "{reported} reported of {counted} ns");
    println!("{total:?}");
    drop(pod);
    ensure!(!watcher.streams.stall_totals()?.contains_key(&id));
    Ok(())
}

/// Eviction is not decided by the limit of a pod.
#[cfg_attr(feature = "privileged", test)]
fn a_pod_that_thrashes_at_its_limit_wakes_a_reader_20_times_a_second_at_most() -> Result<()> {
    /// Less than a quarter of the ring.
    const N_STALLS: u32 = 100;
    let n_stalls = usize::try_from(scaled(N_STALLS, 20)?)?;
    let root = Cgroup::root("thrash")?;
    let pod = root.child("pod")?;
    pod.limit_memory(16 * MIB)?;
    let watcher = Watcher::start(&root)?;
    let edges = Edges::of(&watcher, Stream::Stall)?;
    let began = Instant::now();
    let mut thrashing = pod.run("while :; do tail -n 1 /dev/zero; done")?;
    let mut n_edges = 0;
    wait_for("stalls wait", || {
        while edges.has_one(Duration::ZERO)? {
            n_edges += 1;
        }
        Ok(watcher.streams.waiting(Stream::Stall)?.len() >= n_stalls)
    })?;
    let took = began.elapsed();
    thrashing.kill()?;
    thrashing.wait()?;
    let waiting = watcher.streams.waiting(Stream::Stall)?;
    // Of a node that is short by chance.
    let of_node = waiting
        .iter()
        .filter(|it| matches!(it, KernelEvent::Stall(it) if it.kind == StallKind::DirectReclaim));
    let most = usize::try_from(took.as_millis() / 50)? + 1 + of_node.count();
    println!("{n_edges} wake-ups in {took:?}, {} stalls", waiting.len());
    ensure!(n_edges <= most, "{n_edges} wake-ups in {took:?}");
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn of_200_kills_none_is_lost() -> Result<()> {
    const N: usize = 200;
    let root = Cgroup::root("burst")?;
    let pod = root.child("pod")?;
    let container = pod.child("c")?;
    container.limit_memory(4 * MIB)?;
    let mut watcher = Watcher::start(&root)?;
    let mut pids = BTreeSet::new();
    for _ in 0..N / 4 {
        let hogs: Result<Vec<_>> = (0..4).map(|_| container.run_hog()).collect();
        for mut hog in hogs? {
            // With four of them at the limit, a shell may be the one that is killed.
            let signal = hog.wait()?.signal();
            ensure!(signal == Some(9), "a hog ended by {signal:?}");
            pids.insert(hog.id());
            watcher.take(Duration::ZERO)?;
        }
    }
    watcher.until("all kills", |it| it.kills().len() >= N)?;
    watcher.take(Duration::from_millis(50))?;
    let expected = lineage(&[&pod, &container])?;
    let killed: BTreeSet<_> = watcher.kills().iter().map(|it| it.victim.pid).collect();
    assert_eq!(watcher.kills().len(), N);
    assert_eq!(killed, pids);
    for kill in watcher.kills() {
        assert_eq!(kill.victim_cgroup, expected);
        assert_eq!(kill.limit_cgroup, Some(expected));
    }
    let mut latencies = watcher.latencies.clone();
    latencies.sort_unstable();
    println!(
        "kill to event: median {:?}, max {:?}",
        latencies[N / 2],
        latencies[N - 1]
    );
    watcher.ensure_nothing_is_lost()
}

/// A process that kills in a burst may not be read while it does: latency has a test of its own.
#[cfg_attr(feature = "privileged", test)]
fn kills_are_known_while_the_reader_waits() -> Result<()> {
    const N: usize = 100;
    let root = Cgroup::root("latency")?;
    let pod = root.child("pod")?;
    pod.limit_memory(4 * MIB)?;
    let mut watcher = Watcher::start(&root)?;
    for n in 1..=N {
        let mut hog = pod.run_hog()?;
        watcher.until("a kill", |it| it.kills().len() == n)?;
        wait_for_kill(&mut hog)?;
    }
    let mut latencies = watcher.latencies.clone();
    latencies.sort_unstable();
    println!(
        "kill to event: median {:?}, p99 {:?}, max {:?}",
        latencies[N / 2],
        latencies[N * 99 / 100],
        latencies[N - 1]
    );
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn kills_while_nobody_reads_are_reported_by_the_next_reader() -> Result<()> {
    let pins = PinDirectory::new("adopt");
    let root = Cgroup::root("adopt")?;
    let pod = root.child("pod")?;
    pod.limit_memory(16 * MIB)?;
    let options = LoadOptions {
        pin_directory: Some(pins.0.clone()),
        watched: Some(root.watched()?),
        ..LoadOptions::default()
    };
    let first = Watcher::with(options.clone())?;
    assert_eq!(*first.streams.pinning(), Pinning::On);
    drop(first);
    let mut pids = BTreeSet::new();
    for _ in 0..3 {
        let mut hog = pod.run_hog()?;
        wait_for_kill(&mut hog)?;
        pids.insert(hog.id());
    }
    // One that looks and dies takes nothing.
    let dies = Streams::adopt(&options)?;
    assert_eq!(n_kills_that_wait(&dies)?, 3);
    drop(dies);
    // As an agent would: the root is not known yet.
    let mut next = Watcher::with(LoadOptions {
        watched: None,
        ..options
    })?;
    let adopted = next
        .streams
        .reports()
        .iter()
        .filter(|it| matches!(it.state, ProgramState::Adopted { .. }));
    assert_eq!(
        adopted.map(|it| it.stream).collect::<BTreeSet<_>>(),
        BTreeSet::from([Stream::Oom, Stream::Process])
    );
    next.until("three kills and three ends", |it| {
        it.kills().len() == 3 && pids.iter().all(|pid| it.exit_of(*pid).is_some())
    })?;
    let killed: BTreeSet<_> = next.kills().iter().map(|it| it.victim.pid).collect();
    assert_eq!(killed, pids);
    let expected = lineage(&[&pod])?;
    assert!(next.kills().iter().all(|it| it.victim_cgroup == expected));
    let mut hog = pod.run_hog()?;
    wait_for_kill(&mut hog)?;
    next.until("a kill after adopting", |it| it.kills().len() == 4)?;
    next.ensure_nothing_is_lost()
}

/// The sets of another build, as their names tell it.
fn rename_sets(pins: &PinDirectory, rename: impl Fn(&str) -> String) -> Result<()> {
    for entry in fs::read_dir(&pins.0)? {
        let path = entry?.path();
        let name = path.file_name().context("a name")?.to_string_lossy();
        fs::rename(&path, path.with_file_name(rename(&name)))?;
    }
    Ok(())
}

fn names_in(pins: &PinDirectory) -> Result<BTreeSet<String>> {
    fs::read_dir(&pins.0)?
        .map(|it| Ok(it?.file_name().to_string_lossy().into_owned()))
        .collect()
}

#[cfg_attr(feature = "privileged", test)]
fn an_upgrade_loses_nothing_and_tells_nothing_twice() -> Result<()> {
    let pins = PinDirectory::new("upgrade");
    let root = Cgroup::root("upgrade")?;
    let pod = root.child("pod")?;
    pod.limit_memory(16 * MIB)?;
    let options = LoadOptions {
        pin_directory: Some(pins.0.clone()),
        watched: Some(root.watched()?),
        ..LoadOptions::default()
    };
    drop(Watcher::with(options.clone())?);
    let whole = names_in(&pins)?;
    let mut first = pod.run_hog()?;
    wait_for_kill(&mut first)?;
    // Another object and the same records.
    rename_sets(&pins, |name| format!("{}00000000", &name[..name.len() - 8]))?;
    // It starts processes all through the change.
    let busy = root.child("busy")?;
    let mut starts = busy.run("while :; do /bin/true; done")?;
    let dies = Streams::adopt(&options)?;
    assert_eq!(n_kills_that_wait(&dies)?, 1);
    drop(dies);
    let mut next = Watcher::with(options)?;
    assert_eq!(*next.streams.pinning(), Pinning::On);
    let mut second = pod.run_hog()?;
    wait_for_kill(&mut second)?;
    next.until("both kills, and the old sets are gone", |it| {
        it.kills().len() == 2 && names_in(&pins).is_ok_and(|names| names == whole)
    })?;
    let n_before = next.processes().len();
    next.until("processes after the change, and a hundred in all", |it| {
        let events = it.processes();
        let all: BTreeSet<ProcessKey> = events.iter().map(|it| it.process).collect();
        // The shell that starts them and those that are killed are not counted below.
        events.len() > n_before + 150 && all.len() > 103
    })?;
    starts.kill()?;
    starts.wait()?;
    let killed: Vec<_> = next.kills().iter().map(|it| it.victim.pid).collect();
    assert_eq!(killed, [first.id(), second.id()]);
    assert_eq!(next.streams.rings().count(), Stream::ALL.len());

    // Every process that was seen to begin was seen to become true and to end, once each, but for
    // those of the last moment.
    next.take(Duration::from_millis(200))?;
    let mut changes = BTreeMap::<ProcessKey, [u32; 3]>::new();
    for event in next.processes() {
        let n = changes.entry(event.process).or_default();
        match event.change {
            ProcessChange::Fork { .. } => n[0] += 1,
            ProcessChange::Exec => n[1] += 1,
            ProcessChange::Exit { .. } => n[2] += 1,
        }
    }
    let mut trues: Vec<_> = changes
        .iter()
        .filter(|(it, _)| ![starts.id(), first.id(), second.id()].contains(&it.pid))
        .collect();
    // Pids begin anew at their largest.
    trues.sort_by_key(|(it, _)| it.start_boottime_ns);
    println!("{} processes through the change", trues.len());
    assert!(trues.len() > 100, "{}", trues.len());
    let (last, others) = trues.split_last().context("processes")?;
    assert!(last.1.iter().all(|n| *n <= 1), "{last:?}");
    let wrong: Vec<_> = others.iter().filter(|(_, n)| **n != [1; 3]).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    next.ensure_nothing_is_lost()
}

#[cfg_attr(feature = "privileged", test)]
fn what_cannot_be_read_is_counted_as_lost() -> Result<()> {
    let pins = PinDirectory::new("format");
    let root = Cgroup::root("format")?;
    let pod = root.child("pod")?;
    pod.limit_memory(16 * MIB)?;
    let options = LoadOptions {
        pin_directory: Some(pins.0.clone()),
        ..LoadOptions::default()
    };
    drop(Watcher::with(options.clone())?);
    let whole = names_in(&pins)?;
    for _ in 0..3 {
        wait_for_kill(&mut pod.run_hog()?)?;
    }
    rename_sets(&pins, |name| name.replacen("-v", "-v9", 1))?;
    let mut next = Watcher::with(options)?;
    next.until("the old sets are gone", |_| {
        names_in(&pins).is_ok_and(|names| names == whole)
    })?;
    assert_eq!(next.streams.unreadable().get(&Stream::Oom), Some(&3));
    let pod_id = pod.id()?;
    assert!(next.kills_in(pod_id).is_empty());
    wait_for_kill(&mut pod.run_hog()?)?;
    next.until("a kill", |it| it.kills_in(pod_id).len() == 1)
}

#[cfg_attr(feature = "privileged", test)]
fn what_is_half_pinned_foreign_or_broken_is_replaced() -> Result<()> {
    let pins = PinDirectory::new("repair");
    let options = LoadOptions {
        pin_directory: Some(pins.0.clone()),
        ..LoadOptions::default()
    };
    drop(Watcher::with(options.clone())?);
    let root = Cgroup::root("repair")?;
    root.limit_memory(16 * MIB)?;
    wait_for_kill(&mut root.run_hog()?)?;
    let whole = names_in(&pins)?;
    ensure!(whole.len() == 2, "{whole:?}");
    let oom = whole.first().context("a set")?;
    // Of another version, begun and never finished, and whole but for one map.
    fs::create_dir(pins.0.join("oom-v0-00000000"))?;
    fs::create_dir(pins.0.join(format!("new-{oom}")))?;
    fs::remove_file(pins.0.join(oom).join("watch"))?;
    let mut again = Watcher::with(options)?;
    assert_eq!(*again.streams.pinning(), Pinning::On);
    ensure!(pins.0.join(oom).join("watch").exists());
    let adopted = |stream| {
        let reports = again.streams.reports().iter();
        reports
            .filter(|it| it.stream == stream)
            .any(|it| matches!(it.state, ProgramState::Adopted { .. }))
    };
    assert!(!adopted(Stream::Oom) && adopted(Stream::Process));
    let root_id = root.id()?;
    again.until("the kill that waited in the broken set", |it| {
        it.kills_in(root_id).len() == 1
    })?;
    wait_for_kill(&mut root.run_hog()?)?;
    again.until("a kill, and what was set aside is gone", |it| {
        it.kills_in(root_id).len() == 2 && names_in(&pins).is_ok_and(|names| names == whole)
    })
}

/// Somebody removed the pin of one link while no agent ran; and the kernel refused a program to an
/// agent that could do less.
#[cfg_attr(feature = "privileged", test)]
fn a_program_that_an_adopted_set_lacks_is_attached_anew() -> Result<()> {
    let pins = PinDirectory::new("lacks");
    let options = LoadOptions {
        pin_directory: Some(pins.0.clone()),
        ..LoadOptions::default()
    };
    let states = |streams: &Streams| -> BTreeMap<String, bool> {
        let reports = streams.reports().iter();
        reports
            .filter(|it| it.stream == Stream::Oom)
            .map(|it| {
                let runs = !matches!(it.state, ProgramState::Refused { .. });
                (it.program.to_owned(), runs)
            })
            .collect()
    };
    let first = Watcher::with(options.clone())?;
    let at_first = states(&first.streams);
    // Its name is that of the kernel's way to tell.
    let mut running = at_first.iter().filter(|(_, runs)| **runs);
    let victim = running.find(|(program, _)| program.starts_with("oom_victim"));
    let (victim, _) = victim.with_context(|| format!("{at_first:?}"))?;
    drop(first);
    let root = Cgroup::root("lacks")?;
    let root_id = root.id()?;
    root.limit_memory(16 * MIB)?;
    let oom = names_in(&pins)?.first().context("a set")?.clone();
    let set = pins.0.join(&oom);
    for round in 1..=3 {
        assert_eq!(bpf::why_no_pins_in(&pins.0), None);
        if round == 1 {
            fs::remove_file(set.join(victim))?;
            let told = bpf::why_no_pins_in(&pins.0);
            let Some(Bpffs::LinksGone(_, gone)) = &told else {
                bail!("{told:?}");
            };
            assert!(
                matches!(&gone[..], [it] if it.starts_with("oom_victim")),
                "{gone:?}"
            );
        } else {
            // What the kernel refused to somebody who may do nothing is tried again, and where another form runs too.
            let noted = if round == 2 {
                fs::remove_file(set.join("oom_signal"))?;
                "oom_signal_raw"
            } else {
                fs::rename(set.join("oom_signal"), set.join("oom_signal_raw"))?;
                "oom_signal"
            };
            fs::create_dir(set.join(format!("refused-0-{noted}")))?;
            assert_eq!(bpf::why_no_pins_in(&pins.0), None);
        }
        let mut again = Watcher::with(options.clone())?;
        assert_eq!(*again.streams.pinning(), Pinning::On);
        assert_eq!(states(&again.streams), at_first, "round {round}");
        wait_for_kill(&mut root.run_hog()?)?;
        again.until("a kill, and one set", |it| {
            it.kills_in(root_id).len() == 1 && names_in(&pins).is_ok_and(|it| it.len() == 2)
        })?;
    }
    // What it was refused with the same capabilities it is refused still: nothing is loaded for it.
    let next = Streams::adopt(&options)?;
    assert_eq!(states(&next), at_first);
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn every_member_of_an_oom_group_is_reported() -> Result<()> {
    if !Hierarchy::of_memory()?.is_v2() {
        // The file exists on cgroup v2 only; that it is absent here is what there is to assert.
        let root = Cgroup::root("group")?;
        ensure!(root.kill_as_one().is_err());
        return Ok(());
    }
    let root = Cgroup::root("group")?;
    let pod = root.child("pod")?;
    pod.limit_memory(16 * MIB)?;
    pod.kill_as_one()?;
    let mut watcher = Watcher::start(&root)?;
    let mut sleepers = vec![pod.run("exec sleep 60")?, pod.run("exec sleep 60")?];
    let pids: Vec<_> = sleepers.iter().map(Child::id).collect();
    watcher.until("two sleepers", |it| {
        let came = |pid| CgroupChange::Attached { pid };
        pids.iter()
            .all(|pid| it.cgroups().iter().any(|it| it.change == came(*pid)))
    })?;
    sleepers.push(pod.run_hog()?);
    for process in &mut sleepers {
        wait_for_kill(process)?;
    }
    watcher.until("three kills", |it| it.kills().len() == 3)?;
    let limit = Some(lineage(&[&pod])?);
    assert!(watcher.kills().iter().all(|it| it.limit_cgroup == limit));
    Ok(())
}
