//! A node in small: cgroups below a root of its own, a small file system, pods that are hogs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use ballast::decide::eviction::story::Deed;
use ballast::model::cgroup_name::{CgroupDriver, CgroupName};
use ballast::model::cgroup_path::CgroupPath;
use ballast::model::eviction::{
    ContainerFacts, DiskUse, NodeReading, PodFacts, PodReading, Victim, VolumeFacts,
};
use ballast::model::pod::{PodUid, QosClass};
use ballast::model::quantity::{Format, Quantity};
use ballast::model::record::PodRef;
use ballast::sources::disk_use::{Place, Walk};
use ballast::sources::mounts;
use ballast::sources::node_reading::NodeReader;
use ballast::sources::stats::{StatsReader, Wanted};
use ballast::sys::{Root, clock, page_size};
use ballast_tests::cgroup;
use ballast_tests::known::{known_pod, nodefs, stats_reader};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::stories::{PodSpec, Story};

const CONTAINER: &str = "main";
const VOLUME: &str = "data";

/// Everything is removed when it is dropped.
pub(crate) struct Node {
    root: CgroupPath,
    kubepods: CgroupName,
    directory: PathBuf,
    reader: NodeReader,
    readers: StatsReader,
    pods: Vec<Pod>,
    waiting: Vec<&'static PodSpec>,
    outside: Option<(Duration, &'static [&'static str])>,
}

struct Pod {
    facts: Arc<PodFacts>,
    cgroup: CgroupPath,
    volume: PathBuf,
    ending: Option<Ending>,
}

struct Ending {
    at: Duration,
    grace: Duration,
    is_killed: bool,
}

impl Node {
    pub(crate) fn new(story: &'static Story) -> Result<Self> {
        set_child_subreaper(true)?;
        let root = Root::host();
        let facts = mounts::cgroup_facts(&root)?;
        let trees = Arc::new(mounts::open_trees(&root, &facts.layout)?);
        let own = format!("ballast-story-{}", std::process::id());
        let name = CgroupName::root().join(own.as_str())?;
        let kubepods = CgroupName::kubepods(&name);
        let directory = std::env::temp_dir().join(&own);
        fs::create_dir_all(&directory)?;
        if let Some(options) = story.tmpfs {
            let kind = Some("tmpfs");
            mount(kind, &directory, kind, MsFlags::empty(), Some(options))?;
        }
        let path = kubepods.at(CgroupDriver::Cgroupfs);
        for mount in hierarchies() {
            fs::create_dir_all(mount.join(path.as_str().trim_start_matches('/')))?;
        }
        if let Some(limit) = story.limit {
            let file = match cgroup::is_unified() {
                true => "memory.max",
                false => "memory.limit_in_bytes",
            };
            cgroup::write("memory", path.as_str(), file, &limit.to_string())?;
        }
        Ok(Self {
            reader: NodeReader::open(
                &root,
                Arc::clone(&trees),
                Some(&path),
                nodefs(&root, &directory)?,
                page_size(),
            )?,
            readers: stats_reader(&root, trees, &path)?,
            root: name.at(CgroupDriver::Cgroupfs),
            kubepods,
            directory,
            pods: Vec::new(),
            waiting: story.pods.iter().collect(),
            outside: story.outside,
        })
    }

    /// Starts what is due by now.
    pub(crate) fn start_due(&mut self, since: Duration) -> Result<()> {
        let (due, waiting) = self.waiting.iter().partition(|it| it.starts_at <= since);
        self.waiting = waiting;
        for spec in due {
            for n in 0..spec.n {
                self.start(spec, n)?;
            }
        }
        if let Some((at, mode)) = self.outside
            && at <= since
        {
            self.hog(
                &format!("{}/outside", self.root),
                mode,
                &self.directory.clone(),
            )?;
            self.outside = None;
        }
        Ok(())
    }

    fn start(&mut self, spec: &PodSpec, n: usize) -> Result<()> {
        let name = match spec.n {
            1 => spec.name.to_owned(),
            _ => format!("{}-{n}", spec.name),
        };
        let uid = PodUid(format!("00000000-0000-0000-0000-{:012}", self.pods.len()));
        let qos = match spec.request {
            0 => QosClass::BestEffort,
            _ => QosClass::Burstable,
        };
        let cgroup = self.kubepods.pod(qos, &uid)?.at(CgroupDriver::Cgroupfs);
        let container = cgroup.join(CONTAINER)?;
        let volume = self.directory.join(&name);
        fs::create_dir_all(&volume)?;
        let request = Quantity::from_units(spec.request, Format::BinarySi);
        let facts = PodFacts {
            pod: PodRef {
                namespace: "default".to_owned(),
                name,
                uid: uid.clone(),
            },
            qos,
            priority: spec.priority,
            is_critical: false,
            termination_grace: Duration::from_secs(30),
            memory_request: request.clone(),
            storage_request: Quantity::ZERO,
            pod_level_memory_request: None,
            storage_limit: None,
            containers: vec![ContainerFacts {
                name: CONTAINER.to_owned(),
                memory_request: request,
                storage_request: Quantity::ZERO,
                storage_limit: None,
            }],
            volumes: vec![VolumeFacts {
                name: VOLUME.to_owned(),
                is_local: true,
                size_limit: None,
            }],
        };
        self.hog(container.as_str(), spec.mode, &volume)?;
        self.pods.push(Pod {
            facts: Arc::new(facts),
            cgroup,
            volume,
            ending: None,
        });
        let known = self.pods.iter().map(|it| {
            let facts = &it.facts;
            known_pod(&facts.pod.uid, facts.qos, &it.cgroup, &[CONTAINER])
        });
        self.readers.keep(known.collect::<Result<Vec<_>>>()?);
        Ok(())
    }

    /// Starts a hog in a cgroup; `DIR` in its arguments is `directory`.
    fn hog(&mut self, cgroup_path: &str, mode: &[&str], directory: &Path) -> Result<()> {
        let mut procs = Vec::new();
        for mount in hierarchies() {
            let dir = mount.join(cgroup_path.trim_start_matches('/'));
            fs::create_dir_all(&dir)?;
            procs.push(dir.join("cgroup.procs"));
        }
        let program = std::env::current_exe()?.with_file_name("hog");
        let directory = directory.to_str().context("a directory that is no text")?;
        Command::new(&program)
            .args(["in", &procs.len().to_string()])
            .args(&procs)
            .args(mode.iter().map(|it| it.replace("DIR", directory)))
            .spawn()
            .with_context(|| format!("start {}", program.display()))?;
        Ok(())
    }

    pub(crate) fn read(&mut self, at: Duration) -> NodeReading {
        self.reader.read(at)
    }

    /// What the pods use.
    pub(crate) fn pods(&mut self, at: Duration) -> Vec<PodReading> {
        let wanted = Wanted {
            processes: true,
            containers: true,
        };
        let mut readings = Vec::new();
        for pod in &self.pods {
            let uid = &pod.facts.pod.uid;
            let mut figures = self.readers.figures(uid, at, wanted);
            if let Some(figures) = &mut figures {
                let volume = disk_use(&pod.volume);
                figures.storage = volume.bytes;
                figures.volumes.insert(VOLUME.to_owned(), volume);
            }
            readings.push(PodReading {
                facts: Arc::clone(&pod.facts),
                figures,
                ends_within: pod
                    .ending
                    .as_ref()
                    .map(|it| (it.at + it.grace).saturating_sub(at)),
            });
        }
        readings
    }

    /// Begins the end of a pod, or hastens it.
    pub(crate) fn end(&mut self, victim: &Victim, at: Duration) {
        let Some(pod) = self.pods.iter_mut().find(|it| it.facts.pod == victim.pod) else {
            return;
        };
        let end = at + victim.grace;
        let ending = pod.ending.get_or_insert_with(|| {
            signal(&pod.cgroup, Signal::SIGTERM);
            Ending {
                at,
                grace: victim.grace,
                is_killed: false,
            }
        });
        if end < ending.at + ending.grace {
            ending.grace = end.saturating_sub(ending.at);
        }
        if ending.grace.is_zero() {
            ending.is_killed = true;
            signal(&pod.cgroup, Signal::SIGKILL);
        }
    }

    /// What ended since it was asked for the last time; the pods are forgotten.
    pub(crate) fn done(&mut self) -> Vec<Deed> {
        reap();
        let now = clock::boottime();
        let mut done = Vec::new();
        self.pods.retain_mut(|pod| {
            let Some(ending) = &mut pod.ending else {
                return true;
            };
            if ending.at + ending.grace <= now {
                signal(&pod.cgroup, Signal::SIGKILL);
                ending.is_killed = true;
            }
            if n_processes(&pod.cgroup) > 0 {
                return true;
            }
            // Its volumes go with it.
            fs::remove_dir_all(&pod.volume).ok();
            done.push(Deed {
                pod: pod.facts.pod.clone(),
                at: ending.at,
                grace: ending.grace,
                gone_at: Some(now),
                freed: None,
            });
            false
        });
        done
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let path = self.root.as_str();
        for _ in 0..100 {
            for dir in cgroup::dirs_in_all(path) {
                cgroup::clear(&dir);
            }
            reap();
            if cgroup::dirs_in_all(path).is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        umount2(&self.directory, MntFlags::MNT_DETACH).ok();
        fs::remove_dir_all(&self.directory).ok();
    }
}

/// Those in which pods are read and killed. In a cpuset that nobody set up nothing can run.
fn hierarchies() -> Vec<PathBuf> {
    let has_name = |it: &PathBuf| {
        let name = it.file_name().and_then(|it| it.to_str());
        name.is_some_and(|it| matches!(it, "memory" | "pids" | "unified" | "cgroup"))
    };
    cgroup::mounts().into_iter().filter(has_name).collect()
}

fn container_dir(pod: &CgroupPath) -> PathBuf {
    cgroup::dir_of("memory", pod.as_str()).join(CONTAINER)
}

fn n_processes(pod: &CgroupPath) -> usize {
    cgroup::procs(&container_dir(pod)).len()
}

fn signal(pod: &CgroupPath, signal: Signal) {
    for pid in cgroup::procs(&container_dir(pod)) {
        if let Ok(pid) = i32::try_from(pid) {
            // It may have ended since.
            kill(Pid::from_raw(pid), signal).ok();
        }
    }
}

/// What ended counts as a task until somebody asks; orphans come to this process.
fn reap() {
    while let Ok(status) = waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG))
        && status != WaitStatus::StillAlive
    {}
}

fn disk_use(volume: &Path) -> DiskUse {
    let mut walk = Walk::begin(Place::at(volume));
    while !walk.is_done() {
        walk.step(10_000);
    }
    walk.measured(Duration::ZERO).disk_use
}
