//! Readings of eviction against the files of this kernel, what they cost, and what wakes.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::eviction::WakeSource;
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::stats::KnownPod;
use ballast::sources::mounts::{cgroup_facts, open_trees};
use ballast::sources::node_reading::NodeReader;
use ballast::sources::stats::Wanted;
use ballast::sources::wakers::{Waker, WakerState, Wakers};
use ballast::sys::{Root, Trees, clock, page_size};
use ballast_tests::cgroup;
use ballast_tests::known::{known_pod, nodefs, stats_reader};
use ballast_tests::scratch::own_name;
use ballast_tests::wait::{patience, until};

use super::say;

const MI: u64 = 1 << 20;

/// A cgroup of the test in the hierarchies that are read, in the place of kubepods. Removed when
/// dropped.
pub(crate) struct Kubepods {
    pub(crate) path: String,
    pub(crate) trees: Arc<Trees>,
}

impl Kubepods {
    pub(crate) fn new(test: &str) -> Result<Self> {
        let path = format!("/{}", own_name(test));
        let root = Root::host();
        let kubepods = Self {
            path,
            trees: Arc::new(open_trees(&root, &cgroup_facts(&root)?.layout)?),
        };
        kubepods.make("")?;
        Ok(kubepods)
    }

    pub(crate) fn cgroup(&self) -> Result<CgroupPath> {
        Ok(CgroupPath::new(self.path.as_str())?)
    }

    fn mounts(&self) -> Vec<PathBuf> {
        let is_read = |controllers: &BTreeSet<String>| {
            controllers.is_empty()
                || ["memory", "pids", "cpu", "cpuacct", "blkio"]
                    .iter()
                    .any(|it| controllers.contains(*it))
        };
        let trees = self.trees.trees.iter();
        trees
            .filter(|it| self.trees.unified || is_read(&it.controllers))
            .map(|it| it.dir.path().to_owned())
            .collect()
    }

    /// Makes a cgroup below it, and those between; all have the controllers.
    pub(crate) fn make(&self, below: &str) -> Result<()> {
        let path = format!("{}{below}", self.path);
        for mut dir in self.mounts() {
            for part in path.split('/').filter(|it| !it.is_empty()) {
                if cgroup::is_unified() {
                    // The root of the machine may have it already.
                    for controller in ["+memory", "+pids", "+cpu", "+io"] {
                        fs::write(dir.join("cgroup.subtree_control"), controller).ok();
                    }
                }
                dir.push(part);
                if !dir.is_dir() {
                    fs::create_dir(&dir).with_context(|| format!("make {}", dir.display()))?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn remove(&self) -> Result<()> {
        cgroup::remove_in_all(&self.path);
        ensure!(cgroup::dirs_in_all(&self.path).is_empty());
        Ok(())
    }

    /// Starts a shell script in a cgroup below it.
    pub(crate) fn run(&self, below: &str, script: &str) -> Result<Process> {
        let mut child = Command::new("sh")
            .args(["-c", &format!("read go; {script}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut stdin = child.stdin.take().context("a pipe")?;
        let process = Process(child);
        for mount in self.mounts() {
            let path = format!("{}{below}", self.path);
            let procs = mount
                .join(path.trim_start_matches('/'))
                .join("cgroup.procs");
            fs::write(&procs, process.0.id().to_string())
                .with_context(|| format!("join {}", procs.display()))?;
        }
        stdin.write_all(b"go\n")?;
        Ok(process)
    }

    /// Memory limit of a cgroup below it.
    pub(crate) fn limit(&self, below: &str, bytes: u64) -> Result<()> {
        let file = cgroup::memory_limit_file();
        let path = format!("{}{below}", self.path);
        cgroup::write("memory", &path, file, &bytes.to_string())
    }
}

impl Drop for Kubepods {
    fn drop(&mut self) {
        // The lane's next run has another name; what stays is reported by the test that made it.
        self.remove().ok();
    }
}

/// Killed when dropped.
pub(crate) struct Process(pub(crate) Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A file that is removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

fn shared_memory(test: &str) -> Scratch {
    Scratch(Path::new("/dev/shm").join(own_name(test)))
}

fn node_reader(kubepods: &Kubepods) -> Result<NodeReader> {
    let (root, trees) = (Root::host(), kubepods.trees.clone());
    let nodefs = nodefs(&root, Path::new("/tmp"))?;
    let cgroup = kubepods.cgroup()?;
    Ok(NodeReader::open(
        &root,
        trees,
        Some(&cgroup),
        nodefs,
        page_size(),
    )?)
}

/// `some` of a pressure file in microseconds.
fn stalled_us(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let total = text
        .lines()
        .next()
        .and_then(|it| it.split_once("total="))
        .context("no total")?;
    Ok(total.1.parse()?)
}

#[cfg_attr(feature = "privileged", test)]
fn the_node_reads_as_its_files_say() -> Result<()> {
    let kubepods = Kubepods::new("node")?;
    kubepods.limit("", 64 * MI)?;
    let mut reader = node_reader(&kubepods)?;
    let pressure = Path::new("/proc/pressure/memory");

    let before = pressure
        .exists()
        .then(|| stalled_us(pressure))
        .transpose()?;
    let found = reader.read(clock::boottime());
    let fast = reader.read_fast(clock::boottime());
    let after = pressure
        .exists()
        .then(|| stalled_us(pressure))
        .transpose()?;

    let number = |path: &str| -> Result<u64> { Ok(fs::read_to_string(path)?.trim().parse()?) };
    let pids_max = number("/proc/sys/kernel/pid_max")?.min(number("/proc/sys/kernel/threads-max")?);
    assert_eq!(found.pids_max, Some(pids_max));
    assert_eq!(found.kubepods_limit, Some(64 * MI));
    let stall = found.stall.map(|it| it.some_us);
    assert!(
        before <= stall && stall <= after,
        "{before:?} {stall:?} {after:?}"
    );
    assert_eq!(fast.stall.is_some(), stall.is_some());

    let total = found.memory_total;
    let root = found.root.context("no memory of the root")?;
    assert!(
        root.usage < total && root.file > 0 && root.anon > 0,
        "{root:?}"
    );
    assert!(root.refaults_file.is_some());
    // The same pages, counted by cgroup and by zone. Each CPU keeps up to 64 pages per cgroup to
    // itself, and what was used before the cgroups were there is in none. Others may take or free
    // more between two readings.
    until("both count the same pages", || {
        let root = reader.read(clock::boottime()).root;
        let root = root.context("no memory of the root")?;
        let zones = reader.read_fast(clock::boottime()).root;
        let zones = zones.context("no memory of the zones")?;
        for (name, by_cgroup, by_zone) in [
            ("anon", root.anon, zones.anon),
            ("file", root.file, zones.file),
            ("inactive file", root.inactive_file, zones.inactive_file),
        ] {
            ensure!(
                by_cgroup.abs_diff(by_zone) < 64 * MI,
                "{name}: {by_cgroup} by cgroup, {by_zone} by zone"
            );
        }
        Ok(())
    })?;
    assert!(found.memory_free < Some(total) && found.memory_available < Some(total));
    assert!(found.low_watermark.is_some_and(|it| it > 0 && it < total));
    assert!(found.pids.is_some_and(|it| it > 1 && it < pids_max));
    assert!(found.nodefs.is_some_and(|it| it.available <= it.capacity));
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn kubepods_that_was_made_anew_is_read_anew() -> Result<()> {
    let kubepods = Kubepods::new("anew")?;
    kubepods.limit("", 64 * MI)?;
    let mut reader = node_reader(&kubepods)?;
    let limit = |reader: &mut NodeReader| reader.read(clock::boottime()).kubepods_limit;
    assert_eq!(limit(&mut reader), Some(64 * MI));
    kubepods.remove()?;
    let found = reader.read(clock::boottime());
    assert_eq!((found.kubepods, found.kubepods_limit), (None, None));
    assert_eq!(found.kubepods_stall, None);
    kubepods.make("")?;
    kubepods.limit("", 32 * MI)?;
    assert_eq!(limit(&mut reader), Some(32 * MI));
    assert!(reader.read_fast(clock::boottime()).kubepods.is_some());
    Ok(())
}

pub(crate) fn pod(kubepods: &Kubepods, uid: &str) -> Result<Arc<KnownPod>> {
    let (uid, qos) = (PodUid(uid.to_owned()), QosClass::BestEffort);
    let cgroup = kubepods.cgroup()?.join(&format!("besteffort/pod{uid}"))?;
    known_pod(&uid, qos, &cgroup, &["main"])
}

#[cfg_attr(feature = "privileged", test)]
fn a_pod_reads_as_what_it_does() -> Result<()> {
    const BELOW: &str = "/besteffort/poda/main";
    let kubepods = Kubepods::new("pod")?;
    kubepods.make(BELOW)?;
    let pod = pod(&kubepods, "a")?;
    let mut pods = stats_reader(&Root::host(), kubepods.trees.clone(), &kubepods.cgroup()?)?;
    pods.keep([pod.clone()]);
    let wanted = Wanted {
        processes: true,
        containers: true,
    };
    let mut read = || {
        let found = pods.figures(&pod.pod.uid, clock::boottime(), wanted);
        found.context("no figures")
    };
    let idle = read()?;
    assert_eq!((idle.processes, idle.tasks), (Some(0), Some(0)));

    let file = shared_memory("pod");
    let script = format!(
        "head -c {} /dev/zero > {}; sleep 60 & sleep 60; true",
        32 * MI,
        file.0.display()
    );
    let process = kubepods.run(BELOW, &script)?;
    let busy = until("its memory is in use and it sleeps", || {
        let found = read()?;
        // Each CPU keeps up to 64 pages to itself before it counts them.
        let is_full = found.memory.is_some_and(|it| it.shmem >= 31 * MI);
        ensure!(is_full && found.tasks == Some(3), "{found:?}");
        Ok(found)
    })?;
    // The shell and two that sleep.
    assert_eq!(busy.processes, Some(3));
    let memory = busy.memory.context("no memory")?;
    assert!(
        memory.usage >= memory.shmem && memory.usage < 64 * MI,
        "{memory:?}"
    );
    assert!(
        memory.working_set() >= 32 * MI,
        "no swap: it cannot be had back"
    );
    let main = busy.containers["main"].memory_working_set.context("none")?;
    assert!(main >= 31 * MI && main <= memory.usage + MI, "{main}");
    let has_psi = Path::new("/proc/pressure/memory").exists() && kubepods.trees.cgroup2().is_some();
    assert_eq!(busy.stall.is_some(), has_psi);
    assert_eq!(
        pods.qos_stalls().contains_key(&QosClass::BestEffort),
        has_psi
    );

    drop(process);
    kubepods.remove()?;
    assert_eq!(pods.figures(&pod.pod.uid, clock::boottime(), wanted), None);
    assert_eq!(pods.all_figures(clock::boottime(), wanted).len(), 0);
    Ok(())
}

/// Waits until a source wakes.
fn wait_for(wakers: &mut Wakers, source: WakeSource) -> Result<Duration> {
    let started = Instant::now();
    while started.elapsed() < patience() {
        if wakers.wait(patience()).contains(&source) {
            return Ok(started.elapsed());
        }
    }
    anyhow::bail!("{source:?} did not wake: {:#?}", wakers.states())
}

/// Takes what is left over from before.
fn settle(wakers: &mut Wakers) {
    let short = Duration::from_millis(20);
    while wakers.wait(short) != BTreeSet::from([WakeSource::Timer]) {}
}

#[cfg_attr(feature = "privileged", test)]
fn kubepods_at_its_threshold_wakes() -> Result<()> {
    let kubepods = Kubepods::new("threshold")?;
    let mut wakers = Wakers::open(&Root::host(), kubepods.trees.clone(), &kubepods.cgroup()?)?;
    kubepods.make("/main")?;
    let waker = match cgroup::is_unified() {
        true => Waker::KubepodsEvents,
        false => Waker::KubepodsUsage,
    };
    let arm = |wakers: &mut Wakers| match cgroup::is_unified() {
        true => {
            let high = (16 * MI).to_string();
            cgroup::write("memory", &kubepods.path, "memory.high", &high)
        }
        false => {
            wakers.set_thresholds(None, Some(16 * MI));
            Ok(())
        }
    };
    let file = shared_memory("threshold");
    // Twice: it is armed anew for a cgroup that took the place of another.
    for round in 0..2 {
        arm(&mut wakers)?;
        assert_eq!(wakers.states()[&waker], WakerState::Armed);
        settle(&mut wakers);
        let script = format!(
            "head -c {} /dev/zero > {}; sleep 60",
            32 * MI,
            file.0.display()
        );
        let process = kubepods.run("/main", &script)?;
        let took = wait_for(&mut wakers, WakeSource::MemoryEvents)?;
        say(format!("round {round}: woke {took:?} after the start"));
        drop(process);
        fs::remove_file(&file.0)?;
        kubepods.remove()?;
        kubepods.make("/main")?;
        wakers.rearm();
    }
    Ok(())
}

#[cfg_attr(feature = "privileged", test)]
fn a_stall_in_kubepods_wakes_where_the_kernel_has_psi() -> Result<()> {
    let kubepods = Kubepods::new("stall")?;
    kubepods.make("/main")?;
    let mut wakers = Wakers::open(&Root::host(), kubepods.trees.clone(), &kubepods.cgroup()?)?;
    let state = wakers.states()[&Waker::KubepodsPsi].clone();
    let has_psi = Path::new("/proc/pressure/memory").exists() && kubepods.trees.cgroup2().is_some();
    assert_eq!(
        wakers.states()[&Waker::NodePsi] == WakerState::Absent,
        !has_psi
    );
    if !has_psi {
        assert_eq!(state, WakerState::Absent);
        return Ok(());
    }
    ensure!(
        matches!(state, WakerState::Armed | WakerState::Slow { .. }),
        "{state:?}"
    );
    // v2 slows down who goes above `memory.high`. v1 has nothing like it: there, files that do not
    // fit below the limit, written and read by processes of the cgroup.
    let (file, rounds) = match cgroup::is_unified() {
        true => {
            let path = format!("{}/main", kubepods.path);
            cgroup::write("memory", &path, "memory.high", &(8 * MI).to_string())?;
            (shared_memory("stall"), "true")
        }
        false => {
            kubepods.limit("/main", 8 * MI)?;
            (
                Scratch(std::env::temp_dir().join(own_name("stall"))),
                "cat $FILE > /dev/null",
            )
        }
    };
    settle(&mut wakers);
    let script = format!(
        "FILE={}; while :; do head -c {} /dev/zero > $FILE; {rounds}; done",
        file.0.display(),
        64 * MI,
    );
    let process = kubepods.run("/main", &script)?;
    let took = wait_for(&mut wakers, WakeSource::PsiTrigger)?;
    say(format!("woke {took:?} after the start; {state:?}"));
    drop(process);
    Ok(())
}
