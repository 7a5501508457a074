//! One cgroup: what changes all the time from files that are held open, what seldom does by opening
//! them now and then.
//!
//! A held file costs the kernel some 5 KiB (`seq_file` keeps its page), and opening one for each
//! reading five to ten times the processor time of the reading. So files are held while there are
//! descriptors for it, those that decisions need the longest.

use std::sync::Arc;
use std::time::Duration;

use super::settings::Settings;
use crate::model::cgroup_files::{
    CpuStat, MemoryEvents, OomControl, parse_count, parse_cpuacct_usage, parse_pids,
};
use crate::model::cgroup_path::CgroupPath;
use crate::model::event::CgroupId;
use crate::model::eviction::{MemoryUse, StallTotals};
use crate::model::psi::Psi;
use crate::model::stats::text::{
    parse_blkio, parse_cpuacct_stat, parse_fork_refusals, parse_io_stat, parse_numa_stat,
};
use crate::model::stats::{CgroupStats, DeviceIo, MemoryFigures};
use crate::model::text::ParseError;
use crate::model::time::WallTime;
use crate::sources::ReadError;
use crate::sources::cgroup_use::{self, MemoryFiles, StallFile, cgroup2_dir, dir, if_any};
use crate::sys::{Dir, FsError, HeldFile, TextBuffer, Trees};

/// How long settings are taken to stay: the agent itself writes them, seldom. The first are of a
/// cgroup that may not have been written yet, and stay for no time. As long, at most, what belongs to
/// running stays without it.
const SETTINGS_STAY: Duration = Duration::from_secs(30);
/// How deep processes are counted below a cgroup; what nests deeper is left out.
const MAX_DEPTH: usize = 32;

/// What readings of all cgroups share.
#[derive(Debug)]
pub(super) struct Context {
    pub trees: Arc<Trees>,
    pub buffer: TextBuffer,
    /// Bytes.
    pub page_size: u64,
    /// Names of the sizes of huge pages, as in `hugetlb.2MB.current`.
    pub hugepages: Vec<String>,
    pub held: Held,
    pub faults: Faults,
}

/// Files that are held open, and how many may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub n: usize,
    pub max: usize,
}

impl Held {
    /// No more than the files of decisions fit, the last to be given up.
    fn is_too_many(self) -> bool {
        self.n > self.max
    }

    /// The others have two thirds.
    pub(super) fn is_too_many_for_a_sweep(self) -> bool {
        self.n > self.max / 3 * 2
    }
}

/// Files that could not be read although they are there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The kernel refused or failed.
    pub io: u64,
    /// What was read was not understood.
    pub parse: u64,
}

impl Faults {
    pub(super) fn count(&mut self, error: &ReadError) {
        match error {
            ReadError::Fs(_) => self.io += 1,
            ReadError::Parse { .. } => self.parse += 1,
        }
    }

    /// `None`: it failed, which is counted.
    pub(super) fn counted<T>(&mut self, found: Result<T, impl Into<ReadError>>) -> Option<T> {
        match found {
            Ok(found) => Some(found),
            Err(error) => {
                self.count(&error.into());
                None
            }
        }
    }

    /// `None`: it is not there, or it could not be opened, which is counted.
    pub(super) fn opened<T>(&mut self, found: Result<Option<T>, FsError>) -> Option<T> {
        self.counted(found).flatten()
    }
}

/// The cgroup behind the files was removed.
#[derive(Debug)]
struct Gone;

/// How processes of the cgroups below one are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Below {
    /// There are this many with so many processes; if there are others, they are looked for.
    Known { n_cgroups: u64, n_processes: u64 },
    /// They are looked for.
    Unknown,
    /// They are looked for when settings are read: there may be hundreds.
    Seldom,
    /// The caller knows better.
    Uncounted,
}

/// What decisions are made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Quick {
    pub memory: Option<MemoryUse>,
    pub tasks: Option<u64>,
    pub stall: Option<StallTotals>,
}

/// See the module. Nothing is open before the first reading.
#[derive(Debug)]
pub(super) struct CgroupReader {
    path: CgroupPath,
    /// The cgroup that is known.
    inode: Option<u64>,
    made_at: Option<WallTime>,
    quick: Option<QuickFiles>,
    full: Option<FullFiles>,
    /// With when they are due again.
    settings: Option<(Duration, Settings)>,
    /// As counted then, where they are counted that seldom.
    n_processes: Option<u64>,
    /// As of the last full reading.
    running: Option<OfRunning>,
    /// Nothing had run between the last two full readings.
    was_idle: bool,
}

/// What changes only when a process of the cgroup runs, or one comes or goes: it stays with the CPU
/// time and the number of tasks. The rest others change as well: by reclaim and writeback, and by
/// making huge pages, which charges for both for a moment.
#[derive(Clone, Copy, Debug)]
struct OfRunning {
    n_tasks: Option<u64>,
    cpu: CpuStat,
    /// v1, which has a file for it.
    n_oom_kills: Option<u64>,
    n_fork_refusals: Option<u64>,
    n_processes: Option<u64>,
}

/// Memory, tasks and stalls for memory: five files.
#[derive(Debug, Default)]
struct QuickFiles {
    memory: Option<MemoryFiles>,
    tasks: Option<HeldFile>,
    stall: Option<StallFile>,
    /// Some that are missing could not be opened.
    has_failed: bool,
}

/// The others. A kernel without one stays so.
#[derive(Debug, Default)]
struct FullFiles {
    is_unified: bool,
    cpu: Option<HeldFile>,
    /// v1: time as a whole, and of user space and kernel.
    cpu_usage: Option<HeldFile>,
    cpu_times: Option<HeldFile>,
    events: Option<HeldFile>,
    peak: Option<HeldFile>,
    /// v2.
    swap: Option<HeldFile>,
    /// v1.
    oom: Option<HeldFile>,
    kernel: Option<HeldFile>,
    /// v2 has one, v1 another for operations.
    io: Option<HeldFile>,
    io_operations: Option<HeldFile>,
    numa: Option<HeldFile>,
    refusals: Option<HeldFile>,
    processes: Option<HeldFile>,
    /// Where processes are listed.
    dir: Option<Dir>,
    cpu_stall: Option<StallFile>,
    io_stall: Option<StallFile>,
    /// Some that are missing could not be opened.
    has_failed: bool,
}

/// What opens the files of one cgroup.
struct Opener<'a> {
    trees: &'a Trees,
    path: &'a CgroupPath,
    faults: &'a mut Faults,
    /// Those before it.
    before: Faults,
}

impl Context {
    /// No file may be held, and no huge pages are looked for.
    pub(super) fn new(trees: Arc<Trees>, page_size: u64) -> Self {
        Self {
            trees,
            buffer: TextBuffer::default(),
            page_size,
            hugepages: Vec::new(),
            held: Held::default(),
            faults: Faults::default(),
        }
    }

    /// `None`: there is no such file, or it could not be read, which is counted.
    fn value<T>(
        &mut self,
        file: Option<&HeldFile>,
        parse: impl Fn(&str) -> Result<T, ParseError>,
    ) -> Result<Option<T>, Gone> {
        let Some(file) = file else {
            return Ok(None);
        };
        let found = cgroup_use::read(file, &mut self.buffer, parse);
        self.checked(found.map(Some))
    }

    fn stall(&mut self, file: Option<&StallFile>) -> Result<Option<Psi>, Gone> {
        match file {
            Some(file) => {
                let found = file.read_all(&mut self.buffer);
                self.checked(found)
            }
            None => Ok(None),
        }
    }

    fn checked<T>(&mut self, found: Result<Option<T>, ReadError>) -> Result<Option<T>, Gone> {
        match found {
            Ok(found) => Ok(found),
            Err(error) if error.is_gone() => Err(Gone),
            // A threaded cgroup lists no processes.
            Err(ReadError::Fs(error)) if error.errno() == Some(nix::libc::EOPNOTSUPP) => Ok(None),
            Err(error) => {
                self.faults.count(&error);
                Ok(None)
            }
        }
    }
}

impl CgroupReader {
    pub(super) fn at(path: CgroupPath) -> Self {
        Self {
            path,
            inode: None,
            made_at: None,
            quick: None,
            full: None,
            settings: None,
            n_processes: None,
            running: None,
            was_idle: false,
        }
    }

    pub(super) fn path(&self) -> &CgroupPath {
        &self.path
    }

    /// Its name in what is shown: the path as text.
    pub(super) fn id(&self) -> String {
        self.path.to_string()
    }

    /// When it was made, at the latest; `None`: not known.
    pub(super) fn made_at(&self) -> Option<WallTime> {
        self.made_at
    }

    /// What decisions need: five reads. `None`: there is no such cgroup.
    pub(super) fn quick(&mut self, cx: &mut Context) -> Option<Quick> {
        self.renewed(cx, |it, cx| it.quick.as_ref().ok_or(Gone)?.read(cx))
    }

    /// Its memory alone: two reads.
    pub(super) fn memory(&mut self, cx: &mut Context) -> Option<MemoryUse> {
        self.renewed(cx, |it, cx| match &it.quick.as_ref().ok_or(Gone)?.memory {
            Some(files) => {
                let found = files.read(&mut cx.buffer);
                cx.checked(found)
            }
            None => Ok(None),
        })?
    }

    /// All of it: about 15 reads, 5 (v1) or 2 (v2) fewer where nothing ran since the last, and as many
    /// files opened every half minute. `below`: what is known of the cgroups below it. `None`: there is
    /// no such cgroup.
    pub(super) fn full(
        &mut self,
        cx: &mut Context,
        at: Duration,
        below: Below,
    ) -> Option<CgroupStats> {
        let stats = self.renewed(cx, |it, cx| it.read_full(cx, at, below));
        if cx.held.is_too_many_for_a_sweep() {
            self.close_full(cx);
        }
        stats
    }

    /// Reads with the files that are open, or with those of the cgroup that took the place of theirs.
    fn renewed<T>(
        &mut self,
        cx: &mut Context,
        read: impl Fn(&mut Self, &mut Context) -> Result<T, Gone>,
    ) -> Option<T> {
        let is_complete = self
            .quick
            .as_ref()
            .is_some_and(|it| it.is_complete(&cx.trees));
        let mut found = None;
        if is_complete {
            match read(self, cx) {
                Ok(it) => found = Some(it),
                Err(Gone) => self.close(cx),
            }
        }
        if found.is_none() && self.open_quick(cx) {
            found = read(self, cx).ok();
        }
        if found.is_none() {
            self.close(cx);
        } else if cx.held.is_too_many() {
            self.close_quick(cx);
        }
        found
    }

    /// False: there is no such cgroup.
    fn open_quick(&mut self, cx: &mut Context) -> bool {
        self.close_quick(cx);
        let opened = QuickFiles::open(&cx.trees, &self.path, &mut cx.faults);
        if !opened.is_any() {
            return false;
        }
        let inode = opened.memory.as_ref().map(MemoryFiles::inode);
        if self.inode != inode {
            self.close(cx);
            self.inode = inode;
            self.made_at = None;
        }
        if self.made_at.is_none() {
            let dir = cx.faults.opened(dir(&cx.trees, "memory", &self.path));
            self.made_at = dir.and_then(|it| made_at(&it, cx.trees.unified));
        }
        cx.held.n += opened.n_files();
        self.quick = Some(opened);
        true
    }

    /// Lets go of files of a cgroup that is not the one at its path any more.
    pub(super) fn renew(&mut self, cx: &mut Context) {
        let held = self.inode;
        let found = dir(&cx.trees, "memory", &self.path);
        if matches!(found, Ok(found) if found.as_ref().map(Dir::inode) != held) {
            self.close(cx);
        }
    }

    pub(super) fn close(&mut self, cx: &mut Context) {
        self.inode = None;
        self.settings = None;
        self.running = None;
        self.close_quick(cx);
        self.close_full(cx);
    }

    fn close_quick(&mut self, cx: &mut Context) {
        if let Some(quick) = self.quick.take() {
            cx.held.n -= quick.n_files();
        }
    }

    /// Nothing of it ran between the last two full readings, as far as the CPU time tells.
    pub(super) fn was_idle(&self) -> bool {
        self.was_idle
    }

    /// Processes of the cgroup itself. Where it has none, those of the cgroups below it: crun puts all of them
    /// there, and so does systemd as the first process of a container on v2. `None`: not read.
    pub(super) fn processes(&self, cx: &mut Context) -> Option<Vec<u32>> {
        let opened;
        let (own, dir) = match &self.full {
            Some(files) => {
                let own = cx.value(files.processes.as_ref(), parse_pids).ok()??;
                (own, files.dir.as_ref()?)
            }
            None => {
                opened = cx.faults.opened(dir(&cx.trees, "memory", &self.path))?;
                let list = opened.read_text_if_any("cgroup.procs");
                let list = cx.checked(list.map_err(ReadError::from)).ok()??;
                (parse_pids(&list).ok()?, &opened)
            }
        };
        let are_below = own.is_empty() && !matches!(dir.n_dirs(), Ok(Some(0)));
        if !are_below {
            return Some(own);
        }
        let mut all = Vec::new();
        let listed = each_list(dir, &mut |list| {
            all.extend(parse_pids(list).unwrap_or_default())
        });
        cx.faults.counted(listed)?;
        Some(all)
    }

    fn close_full(&mut self, cx: &mut Context) {
        if let Some(full) = self.full.take() {
            cx.held.n -= full.n_files();
        }
    }

    fn read_full(
        &mut self,
        cx: &mut Context,
        at: Duration,
        below: Below,
    ) -> Result<CgroupStats, Gone> {
        let is_due = self.settings.as_ref().is_none_or(|(due, _)| *due <= at);
        let full = self.full.as_ref();
        if full.is_some_and(|it| it.has_failed || is_due && !it.is_complete(&cx.trees)) {
            self.close_full(cx);
        }
        if is_due {
            let due = match self.settings {
                Some(_) => at + SETTINGS_STAY,
                None => at,
            };
            match Settings::read(cx, &self.path, self.inode) {
                Ok(settings) => self.settings = settings.map(|it| (due, it)),
                // Those that are known stay, and are still due.
                Err(error) => cx.faults.count(&error),
            }
        }
        if self.full.is_none() {
            let full = FullFiles::open(&cx.trees, &self.path, &mut cx.faults);
            cx.held.n += full.n_files();
            self.full = Some(full);
        }
        let (Some(quick), Some(full)) = (&self.quick, &self.full) else {
            return Err(Gone);
        };
        let mut stats = CgroupStats {
            at,
            cgroup_id: self.inode.map(CgroupId),
            n_tasks: cx.value(quick.tasks.as_ref(), parse_count)?,
            ..CgroupStats::default()
        };
        if let Some(files) = &quick.memory {
            let found = files.read_all(&mut cx.buffer);
            if let Some((usage, stat)) = cx.checked(found.map(Some))? {
                stats.memory = MemoryFigures {
                    usage: usage.map(|it| it.0),
                    swap: stat.swap.map(|it| it.0),
                    kernel: stat.kernel.map(|it| it.0),
                    stat,
                    ..MemoryFigures::default()
                };
            }
        }
        stats.stalls.memory = cx.stall(quick.stall.as_ref())?;
        let before = self.running.filter(|_| !is_due);
        let running = full.read(cx, &mut stats, below, before)?;
        self.was_idle = before.is_some_and(|it| it.is_of(&running.cpu, running.n_tasks));
        self.running = Some(running);
        if matches!(below, Below::Seldom) {
            if is_due {
                self.n_processes = full.n_processes(cx, Below::Unknown)?;
            }
            stats.n_processes = self.n_processes;
        }
        if let Some((_, settings)) = &self.settings {
            stats.spec = settings.spec;
            stats.hugetlb.clone_from(&settings.hugetlb);
        }
        Ok(stats)
    }
}

impl OfRunning {
    /// Nothing has run since. An unknown time says nothing.
    fn is_of(&self, cpu: &CpuStat, n_tasks: Option<u64>) -> bool {
        cpu.usage_ns.is_some() && self.cpu.usage_ns == cpu.usage_ns && self.n_tasks == n_tasks
    }
}

impl<'a> Opener<'a> {
    fn new(trees: &'a Trees, path: &'a CgroupPath, faults: &'a mut Faults) -> Self {
        Self {
            trees,
            path,
            before: *faults,
            faults,
        }
    }

    fn has_failed(&self) -> bool {
        *self.faults != self.before
    }

    fn dir(&mut self, controller: &str) -> Option<Dir> {
        self.faults.opened(dir(self.trees, controller, self.path))
    }

    fn file(&mut self, dir: Option<&Dir>, name: &'static str) -> Option<HeldFile> {
        self.faults.opened(if_any(HeldFile::open_in(dir?, name)))
    }

    fn stall(&mut self, dir: Option<&Dir>, name: &'static str) -> Option<StallFile> {
        self.faults.opened(StallFile::open_in(dir?, name))
    }
}

impl QuickFiles {
    fn open(trees: &Trees, path: &CgroupPath, faults: &mut Faults) -> Self {
        let mut opener = Opener::new(trees, path, faults);
        let tasks = opener.dir("pids");
        Self {
            memory: opener.faults.opened(MemoryFiles::open(trees, path)),
            tasks: opener.file(tasks.as_ref(), "pids.current"),
            stall: opener.faults.opened(StallFile::open(trees, path)),
            has_failed: opener.has_failed(),
        }
    }

    fn n_files(&self) -> usize {
        self.memory.as_ref().map_or(0, MemoryFiles::n_files)
            + usize::from(self.tasks.is_some())
            + usize::from(self.stall.is_some())
    }

    fn is_any(&self) -> bool {
        self.memory.is_some() || self.tasks.is_some()
    }

    /// A controller whose cgroup was not there yet may have it by now.
    fn is_complete(&self, trees: &Trees) -> bool {
        !self.has_failed
            && (self.memory.is_some() || trees.of("memory").is_none())
            && (self.tasks.is_some() || trees.of("pids").is_none())
    }

    fn read(&self, cx: &mut Context) -> Result<Quick, Gone> {
        let memory = match &self.memory {
            Some(files) => {
                let found = files.read(&mut cx.buffer);
                cx.checked(found)?
            }
            None => None,
        };
        Ok(Quick {
            memory,
            tasks: cx.value(self.tasks.as_ref(), parse_count)?,
            stall: cx.stall(self.stall.as_ref())?.map(|it| it.totals()),
        })
    }
}

impl FullFiles {
    fn open(trees: &Trees, path: &CgroupPath, faults: &mut Faults) -> Self {
        let mut opener = Opener::new(trees, path, faults);
        let unified = opener.faults.opened(cgroup2_dir(trees, path));
        let opened = match trees.unified {
            true => Self::of_v2(&mut opener, unified),
            false => Self::of_v1(&mut opener, unified.as_ref()),
        };
        Self {
            has_failed: opener.has_failed(),
            ..opened
        }
    }

    fn of_v2(opener: &mut Opener<'_>, dir: Option<Dir>) -> Self {
        let mut file = |name| opener.file(dir.as_ref(), name);
        Self {
            is_unified: true,
            cpu: file("cpu.stat"),
            events: file("memory.events"),
            peak: file("memory.peak"),
            swap: file("memory.swap.current"),
            io: file("io.stat"),
            numa: file("memory.numa_stat"),
            refusals: file("pids.events"),
            processes: file("cgroup.procs"),
            cpu_stall: opener.stall(dir.as_ref(), "cpu.pressure"),
            io_stall: opener.stall(dir.as_ref(), "io.pressure"),
            dir,
            ..Self::default()
        }
    }

    /// `unified`: of the cgroup in the hierarchy beside those of v1.
    fn of_v1(opener: &mut Opener<'_>, unified: Option<&Dir>) -> Self {
        let [cpu, cpuacct, memory, blkio, pids] =
            ["cpu", "cpuacct", "memory", "blkio", "pids"].map(|it| opener.dir(it));
        let mut file = |dir: &Option<Dir>, name| opener.file(dir.as_ref(), name);
        // The files without `_recursive` leave out the cgroups below.
        let mut blkio_file = |[recursive, own]: [&'static str; 2]| {
            file(&blkio, recursive).or_else(|| file(&blkio, own))
        };
        let io = blkio_file([
            "blkio.throttle.io_service_bytes_recursive",
            "blkio.throttle.io_service_bytes",
        ]);
        let io_operations = blkio_file([
            "blkio.throttle.io_serviced_recursive",
            "blkio.throttle.io_serviced",
        ]);
        Self {
            is_unified: false,
            cpu: file(&cpu, "cpu.stat"),
            cpu_usage: file(&cpuacct, "cpuacct.usage"),
            cpu_times: file(&cpuacct, "cpuacct.stat"),
            events: file(&memory, "memory.failcnt"),
            peak: file(&memory, "memory.max_usage_in_bytes"),
            swap: None,
            oom: file(&memory, "memory.oom_control"),
            kernel: file(&memory, "memory.kmem.usage_in_bytes"),
            io,
            io_operations,
            numa: file(&memory, "memory.numa_stat"),
            refusals: file(&pids, "pids.events"),
            processes: file(&memory, "cgroup.procs"),
            cpu_stall: opener.stall(unified, "cpu.pressure"),
            io_stall: opener.stall(unified, "io.pressure"),
            dir: memory,
            has_failed: false,
        }
    }

    /// A controller whose cgroup was not there yet may have it by now.
    fn is_complete(&self, trees: &Trees) -> bool {
        let has =
            |file: &Option<HeldFile>, controller| file.is_some() || trees.of(controller).is_none();
        has(&self.cpu, "cpu") && has(&self.events, "memory") && has(&self.io, "blkio")
    }

    fn n_files(&self) -> usize {
        let files = [
            &self.cpu,
            &self.cpu_usage,
            &self.cpu_times,
            &self.events,
            &self.peak,
            &self.swap,
            &self.oom,
            &self.kernel,
            &self.io,
            &self.io_operations,
            &self.numa,
            &self.refusals,
            &self.processes,
        ];
        files.into_iter().flatten().count()
            + usize::from(self.dir.is_some())
            + usize::from(self.cpu_stall.is_some())
            + usize::from(self.io_stall.is_some())
    }

    /// Fills in what these files tell; `before`: what belongs to running, to be taken over where
    /// nothing ran since.
    fn read(
        &self,
        cx: &mut Context,
        stats: &mut CgroupStats,
        below: Below,
        before: Option<OfRunning>,
    ) -> Result<OfRunning, Gone> {
        let cpu = match self.is_unified {
            true => cx.value(self.cpu.as_ref(), CpuStat::parse)?,
            false => None,
        };
        let cpu = match cpu {
            Some(cpu) => cpu,
            None => CpuStat {
                usage_ns: cx.value(self.cpu_usage.as_ref(), parse_cpuacct_usage)?,
                ..CpuStat::default()
            },
        };
        let running = match before.filter(|it| it.is_of(&cpu, stats.n_tasks)) {
            Some(before) => before,
            None => self.running(cx, cpu, stats.n_tasks, below)?,
        };
        stats.cpu = running.cpu;
        stats.n_fork_refusals = running.n_fork_refusals;
        stats.n_processes = running.n_processes;
        let memory = &mut stats.memory;
        memory.peak = cx.value(self.peak.as_ref(), parse_count)?;
        if self.is_unified {
            let events = cx.value(self.events.as_ref(), MemoryEvents::parse)?;
            memory.events = events.unwrap_or_default();
            memory.swap = cx.value(self.swap.as_ref(), parse_count)?;
        } else {
            memory.events = MemoryEvents {
                max: cx.value(self.events.as_ref(), parse_count)?,
                oom_kill: running.n_oom_kills,
                ..MemoryEvents::default()
            };
            memory.kernel = cx.value(self.kernel.as_ref(), parse_count)?;
        }
        stats.io = self.io(cx)?;
        stats.stalls.cpu = cx.stall(self.cpu_stall.as_ref())?;
        stats.stalls.io = cx.stall(self.io_stall.as_ref())?;
        let (is_unified, page_size) = (self.is_unified, cx.page_size);
        let numa = |text: &str| parse_numa_stat(text, is_unified, page_size);
        stats.numa = cx.value(self.numa.as_ref(), numa)?.unwrap_or_default();
        Ok(running)
    }

    /// `cpu`: whole on v2, the time as a whole on v1.
    fn running(
        &self,
        cx: &mut Context,
        mut cpu: CpuStat,
        n_tasks: Option<u64>,
        below: Below,
    ) -> Result<OfRunning, Gone> {
        let mut n_oom_kills = None;
        if !self.is_unified {
            let of_controller = cx.value(self.cpu.as_ref(), CpuStat::parse)?;
            cpu = CpuStat {
                usage_ns: cpu.usage_ns,
                ..of_controller.unwrap_or_default()
            };
            let times = cx.value(self.cpu_times.as_ref(), parse_cpuacct_stat)?;
            (cpu.user_ns, cpu.system_ns) = times.unwrap_or_default();
            let oom = cx.value(self.oom.as_ref(), OomControl::parse)?;
            n_oom_kills = oom.and_then(|it| it.oom_kill);
        }
        let refusals = cx.value(self.refusals.as_ref(), parse_fork_refusals)?;
        Ok(OfRunning {
            n_tasks,
            cpu,
            n_oom_kills,
            n_fork_refusals: refusals.flatten(),
            n_processes: self.n_processes(cx, below)?,
        })
    }

    fn io(&self, cx: &mut Context) -> Result<Vec<DeviceIo>, Gone> {
        let io = self.io.as_ref();
        if self.is_unified {
            return Ok(cx.value(io, parse_io_stat)?.unwrap_or_default());
        }
        let bytes = cx.value(io, |text| parse_blkio(text, ""))?;
        let operations = cx.value(self.io_operations.as_ref(), |text| parse_blkio("", text))?;
        let (mut all, operations) = (bytes.unwrap_or_default(), operations.unwrap_or_default());
        // Both files have the same devices, in one order: what is in one alone is not known.
        all.retain_mut(|device| {
            let found = operations.binary_search_by_key(&device.number, |it| it.number);
            let Ok(index) = found else {
                return false;
            };
            device.read.operations = operations[index].read.operations;
            device.written.operations = operations[index].written.operations;
            true
        });
        Ok(all)
    }

    /// Of the cgroup and those below it.
    fn n_processes(&self, cx: &mut Context, below: Below) -> Result<Option<u64>, Gone> {
        let Some(dir) = self
            .dir
            .as_ref()
            .filter(|_| !matches!(below, Below::Uncounted | Below::Seldom))
        else {
            return Ok(None);
        };
        let known = match below {
            Below::Known {
                n_cgroups,
                n_processes,
            } => [(0, 0), (n_cgroups, n_processes)],
            Below::Unknown | Below::Seldom | Below::Uncounted => [(0, 0); 2],
        };
        let n_dirs = dir.n_dirs().ok().flatten();
        match known.iter().find(|(n, _)| Some(*n) == n_dirs) {
            Some((_, of_others)) => {
                let count = |text: &str| Ok(text.lines().map(|_| 1).sum::<u64>());
                let own = cx.value(self.processes.as_ref(), count)?;
                Ok(own.map(|it| it.saturating_add(*of_others)))
            }
            None => cx.checked(count_processes(dir).map(Some).map_err(ReadError::from)),
        }
    }
}

/// CPU time of one cgroup and of those below it, ns, from a file that is opened for it. `None`: there is no such cgroup, or
/// nothing counts there.
pub fn cpu_time(trees: &Trees, path: &CgroupPath) -> Option<u64> {
    if trees.unified {
        let dir = cgroup2_dir(trees, path).ok()??;
        return CpuStat::parse(&dir.read_text("cpu.stat").ok()?)
            .ok()?
            .usage_ns;
    }
    let dir = dir(trees, "cpuacct", path).ok()??;
    parse_cpuacct_usage(&dir.read_text("cpuacct.usage").ok()?).ok()
}

/// When a cgroup was made, at the latest. Its directory may change with each cgroup in it, and such a file does not
/// (cAdvisor 0.56, `container/common/helpers.go`).
fn made_at(dir: &Dir, is_unified: bool) -> Option<WallTime> {
    let file = match is_unified {
        true => "cgroup.events",
        false => "cgroup.clone_children",
    };
    let both = [dir.changed_at(), dir.file_changed_at(file)];
    let earliest = both.into_iter().filter_map(Result::ok).min()?;
    Some(WallTime::from_epoch(earliest))
}

/// Processes of a cgroup and of those below it, by opening a file of each.
pub(super) fn count_processes(dir: &Dir) -> Result<u64, FsError> {
    let mut n = 0;
    each_list(dir, &mut |list| n += list.lines().map(|_| 1).sum::<u64>())?;
    Ok(n)
}

/// `cgroup.procs` of a cgroup and of those below it.
fn each_list(dir: &Dir, take: &mut dyn FnMut(&str)) -> Result<(), FsError> {
    dir.walk(MAX_DEPTH, &mut |dir| {
        take(&dir.process_list()?.unwrap_or_default());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::stats::CgroupSpec;
    use crate::sys::scratch::Scratch;
    use crate::sys::{Root, Tree};

    #[test]
    fn a_cgroup_is_as_old_as_what_does_not_change_with_those_in_it() {
        let scratch = Scratch::new("made-at");
        scratch.write("cgroup.events", "populated 0\n");
        let dir = Dir::open(scratch.directory()).expect("a directory");
        let made = dir.file_changed_at("cgroup.events").expect("it is there");
        // The clock of a file system has its ticks.
        for n in 0_u32.. {
            dir.make_dir(&n.to_string()).expect("a new directory");
            if dir.changed_at().expect("it is there") > made {
                break;
            }
        }
        assert_eq!(made_at(&dir, true), Some(WallTime::from_epoch(made)));
    }

    /// Of a pod of v2 with these files.
    fn reader(scratch: &Scratch, files: &[(&str, &str)]) -> (Context, CgroupReader) {
        let root = Root::at(scratch.directory());
        root.create_dir_all("pod").expect("a directory");
        let least = [
            ("memory.current", "1\n"),
            ("memory.stat", "anon 1\n"),
            ("pids.current", "1\n"),
        ];
        for (file, text) in least.iter().chain(files) {
            scratch.write(format!("pod/{file}"), text);
        }
        let tree = Tree::open(BTreeSet::new(), scratch.directory()).expect("a directory");
        let trees = Trees {
            unified: true,
            trees: vec![tree],
        };
        let reader = CgroupReader::at(CgroupPath::new("/pod").expect("a path"));
        (Context::new(Arc::new(trees), 4096), reader)
    }

    /// As without a free descriptor.
    #[test]
    fn a_file_that_cannot_be_opened_is_a_fault_and_tried_again() {
        let scratch = Scratch::new("unopened");
        let root = Root::at(scratch.directory());
        let files = ["cgroup.procs", "cpu.stat", "memory.events", "io.stat"];
        let (mut cx, mut reader) = reader(&scratch, &files.map(|it| (it, "")));
        cx.held.max = 100;
        root.create_dir_all("pod/below").expect("a directory");
        let files = ["pids.current", "memory.peak", "below/cgroup.procs"];
        let files = files.map(|it| format!("pod/{it}"));
        for file in &files {
            root.remove_file(file).expect("it may be there");
            scratch.unreadable(file);
        }
        let mut read = || {
            let stats = reader.full(&mut cx, Duration::ZERO, Below::Unknown);
            let stats = stats.expect("it is there");
            let found = (stats.n_tasks, stats.memory.peak, stats.n_processes);
            (found, cx.faults)
        };
        let faults = Faults { io: 3, parse: 0 };
        assert_eq!(read(), ((None, None, None), faults));
        for file in &files {
            root.remove_file(file).expect("it is there");
            scratch.write(file, "7\n");
        }
        assert_eq!(read(), ((Some(7), Some(7), Some(1)), faults));
    }

    #[test]
    fn of_a_device_of_v1_is_shown_what_both_files_tell() {
        let scratch = Scratch::new("blkio");
        let controllers = ["memory", "blkio"].map(str::to_owned);
        let trees = Trees {
            unified: false,
            trees: vec![Tree::open(controllers.into(), scratch.directory()).expect("a directory")],
        };
        let mut cx = Context::new(Arc::new(trees), 4096);
        for (file, text) in [
            ("memory.usage_in_bytes", "1\n"),
            ("memory.stat", "total_rss 1\n"),
            (
                "blkio.throttle.io_service_bytes",
                "8:0 Read 1\n8:0 Write 2\n254:0 Read 9\n254:0 Write 9\nTotal 21\n",
            ),
        ] {
            scratch.write(file, text);
        }
        let mut shown = || {
            let mut reader = CgroupReader::at(CgroupPath::root());
            let stats = reader.full(&mut cx, Duration::ZERO, Below::Uncounted);
            let devices = stats.expect("it is there").io.into_iter();
            let shown = devices.map(|it| (it.number.major, it.read.operations, it.written.bytes));
            shown.collect::<Vec<_>>()
        };
        assert!(shown().is_empty());
        scratch.write(
            "blkio.throttle.io_serviced",
            "8:0 Read 3\n8:0 Write 4\nTotal 7\n",
        );
        assert_eq!(shown(), [(8, 3, 2)]);
    }

    #[test]
    fn limits_that_cannot_be_read_stay_as_they_were_and_before_that_are_not_known() {
        const LIMIT: &str = "pod/memory.max";
        let scratch = Scratch::new("settings");
        let root = Root::at(scratch.directory());
        let (mut cx, mut reader) = reader(&scratch, &[("cpu.max", "50000 100000\n")]);
        let mut read = |second| {
            let at = Duration::from_secs(second);
            let stats = reader.full(&mut cx, at, Below::Uncounted);
            stats.expect("it is there").spec
        };
        let known = |memory_limit| CgroupSpec {
            is_known: true,
            cpu_quota_us: Some(50_000),
            cpu_period_us: Some(100_000),
            memory_limit,
            ..CgroupSpec::default()
        };

        scratch.unreadable(LIMIT);
        assert_eq!(read(0), CgroupSpec::default());
        root.remove_file(LIMIT).expect("it is there");
        scratch.write(LIMIT, "9000\n");
        for second in [5, 10] {
            assert_eq!(read(second), known(Some(9000)));
        }
        root.remove_file(LIMIT).expect("it is there");
        scratch.unreadable(LIMIT);
        assert_eq!(read(50), known(Some(9000)));
        root.remove_file(LIMIT).expect("it is there");
        scratch.write(LIMIT, "max\n");
        assert_eq!(read(55), known(None), "it is looked at again at once");
        scratch.write(LIMIT, "some\n");
        assert_eq!(read(90), known(None));
        scratch.write(LIMIT, "7000\n");
        assert_eq!(read(95), known(Some(7000)));
        assert_eq!(cx.faults, Faults { io: 2, parse: 1 });
    }
}
