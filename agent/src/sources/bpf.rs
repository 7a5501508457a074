//! Kernel events from the eBPF programs of `ebpf/`: loading, adopting, draining.
//!
//! In: the objects that the build embedded, the running kernel's BTF, pins that an earlier agent
//! left. Out: [`KernelEvent`]s in the order of their ring, counts of what was lost.
//!
//! Invariants: a program that the kernel refuses is a row of [`Streams::reports`], never a failed
//! start. No record is interpreted here beyond its layout, and no cgroup id is resolved.

mod decode;
mod device;
mod diagnostics;
mod load;
mod objects;
mod offsets;
mod older;
mod pins;
mod probe;
mod stats;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aya::EbpfLoader;
use aya::maps::{MapData, MapError, RingBuf};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{SysconfVar, sysconf};

use self::device::DeviceCounter;
use self::load::{Loader, Running};
use self::older::{Older, Side, Twins};
use self::pins::Pins;
use super::btf::BtfError;
use crate::model::check::Bpffs;
use crate::model::event::{CgroupId, KernelEvent};
use crate::model::kernel::effective_mask;
use crate::sys::syscall::peek_ring;
use crate::sys::{FsError, Root, clock};

pub use self::device::{DeviceCount, PROGRAM as DEVICE_COUNTER};
pub use self::pins::PinsError;
pub use self::probe::KernelSupport;
pub use self::stats::{MapUse, ProgramStats, StallTotals};

/// Time in reclaim wakes its reader at most this often.
pub const STALLS_WAKE_EVERY: Duration = Duration::from_nanos(ebpf_abi::STALL_WAKE_INTERVAL_NS);

/// One ring buffer, with the programs that write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    Oom,
    Process,
    Cgroup,
    Stall,
}

impl Stream {
    pub const ALL: [Self; 4] = [Self::Oom, Self::Process, Self::Cgroup, Self::Stall];

    /// The name of the object, of the pins and of the metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Process => "process",
            Self::Cgroup => "cgroup",
            Self::Stall => "stall",
        }
    }
}

/// The cgroup whose processes, cgroups and stalls are reported: `kubepods`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedRoot {
    /// Inode of its directory; on v1 in the memory hierarchy.
    pub cgroup_id: CgroupId,
    /// Depth below the root of the hierarchy, which has level 0.
    pub level: u32,
    /// 0 for cgroup v2, else the first column of `/proc/self/cgroup`.
    pub hierarchy_id: u32,
    /// The memory controller lives on the cgroup v2 hierarchy.
    pub unified: bool,
    /// A cgroup that becomes empty is to be known at once: another program removes it some milliseconds later.
    pub tells_ends: bool,
    /// Time in reclaim is to be known at once: eviction is decided by it.
    pub tells_stalls: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// A directory on a bpffs, such as `/sys/fs/bpf/ballast`, for the streams that outlive the
    /// agent. `None`: nothing is pinned and nothing adopted.
    pub pin_directory: Option<PathBuf>,
    /// `None`: OOM kills alone are reported until [`Streams::watch`] is called. A root set by an
    /// earlier agent stays in force for the streams that are adopted.
    pub watched: Option<WatchedRoot>,
    /// Forwards what the programs log; costs a map and some time per event.
    pub diagnostics: bool,
}

/// What became of one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramState {
    Attached {
        /// As `tp_btf/mark_victim`.
        hook: String,
    },
    /// Attached by an earlier agent and still running.
    Adopted {
        hook: String,
    },
    Refused {
        reason: String,
    },
}

/// The form of a victim's program that cannot look for the limit that was reached.
const LIMITLESS: &str = "oom_victim_bare";

fn tells_victims(program: &str) -> bool {
    program.starts_with("oom_victim")
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramReport {
    pub program: &'static str,
    pub stream: Stream,
    pub state: ProgramState,
    /// For a refused program: what does its work now, be it another form of it; see [`Self::instead`].
    pub fallback: Option<&'static str>,
}

impl ProgramReport {
    /// What there is instead where a stream cannot be read at all.
    pub const fn without(stream: Stream) -> &'static str {
        match stream {
            Stream::Oom => probe::OOM_FALLBACK,
            Stream::Process => probe::PROCESS_FALLBACK,
            Stream::Cgroup => probe::CGROUP_FALLBACK,
            Stream::Stall => probe::STALL_FALLBACK,
        }
    }

    /// The programs that are to run, by the names of those that are tried first.
    pub fn wanted() -> impl Iterator<Item = &'static str> {
        let first = probe::DUTIES.iter().filter_map(|it| it.programs.first());
        first.map(|it| it.name)
    }

    /// What would have been tried of the streams of which nothing is reported. `why`: it was not.
    pub fn untried(reports: &[Self], why: &str) -> Vec<Self> {
        let is_tried = |stream| reports.iter().any(|it| it.stream == stream);
        let duties = probe::DUTIES.iter().filter(|it| !is_tried(it.stream));
        duties
            .map(|it| load::refused(it, it.programs[0].name, why.to_owned()))
            .collect()
    }

    fn is_running(&self) -> bool {
        !matches!(self.state, ProgramState::Refused { .. })
    }

    /// It runs, and tells of OOM kills.
    pub fn reports_kills(&self) -> bool {
        self.is_running() && self.tells_victims()
    }

    /// It runs, and tells of cgroups that are made.
    pub fn reports_cgroups(&self) -> bool {
        self.is_running() && self.program.starts_with("cgroup_created")
    }

    /// It is refused, and what it would tell is found out otherwise: by another form of it, or the limit of a kill
    /// by its victim's program.
    pub fn has_stand_in(&self, all: &[Self]) -> bool {
        if self.is_running() {
            return false;
        }
        let is_form = |it: &Self| self.fallback == Some(it.program) && it.is_running();
        match all.iter().find(|it| is_form(it)) {
            // Without the limit.
            Some(form) => form.program != LIMITLESS,
            None => self.tells_reasons() && all.iter().any(Self::looks_for_limits),
        }
    }

    /// What does the work of a refused program, beside those that run. `None`: nothing does.
    pub fn instead(&self, all: &[Self]) -> Option<&'static str> {
        let helps_with_kills = self.stream == Stream::Oom && !self.tells_victims();
        if helps_with_kills && !all.iter().any(Self::reports_kills) {
            return None;
        }
        let fallback = self.fallback?;
        // Without the one less follows from the other, or nothing.
        let looks_for_limits = all.iter().any(Self::looks_for_limits);
        let tells_reclaim = all.iter().any(Self::tells_reclaim_at_limits);
        if self.tells_reasons() {
            return match (looks_for_limits, tells_reclaim) {
                (true, true) => Some(fallback),
                (true, false) => Some(probe::REASON_WITHOUT_RECLAIM),
                (false, true) => Some(probe::REASON_WITHOUT_LIMITS),
                (false, false) => None,
            };
        }
        if self.notes_reclaim() && !looks_for_limits && !tells_reclaim {
            return None;
        }
        Some(fallback)
    }

    fn tells_victims(&self) -> bool {
        tells_victims(self.program)
    }

    fn tells_reasons(&self) -> bool {
        self.program.starts_with("oom_reason")
    }

    fn notes_reclaim(&self) -> bool {
        let programs = ["oom_reclaim", "oom_direct_reclaim"];
        programs.iter().any(|it| self.program.starts_with(it))
    }

    /// It runs, and notes which tasks reclaim because a cgroup is at its limit.
    pub fn tells_reclaim_at_limits(&self) -> bool {
        self.is_running() && self.program.starts_with("oom_reclaim")
    }

    /// It looks for the limit that was reached: the one without helpers cannot.
    pub fn looks_for_limits(&self) -> bool {
        self.reports_kills() && self.program != LIMITLESS
    }
}

/// Before each record in a ring, and what its length is rounded up to (kernel/bpf/ringbuf.c,
/// `struct bpf_ringbuf_hdr`).
const RECORD_HEADER: usize = 8;

/// What one call of [`Streams::drain`] took from a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drained {
    /// Records that became events.
    pub n: usize,
    /// Records of the wrong size or with a value no program writes: a fault of ours, dropped.
    pub malformed: usize,
    /// What they took of the ring, 0 to 1.
    pub filled: f64,
}

impl Drained {
    /// Records that were taken out of the ring.
    pub fn n_taken(&self) -> usize {
        self.n + self.malformed
    }
}

impl std::ops::AddAssign for Drained {
    fn add_assign(&mut self, more: Self) {
        self.n += more.n;
        self.malformed += more.malformed;
        self.filled += more.filled;
    }
}

/// Whether the streams that should outlive the agent do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pinning {
    /// [`LoadOptions::pin_directory`] was `None`.
    Off,
    On,
    /// What an earlier agent has pinned is kept from this one: its programs run on, and note for the next agent. Those
    /// that this one attaches in their place end with it.
    Kept {
        reason: String,
    },
    /// Events from the time between two agents are lost.
    Failed {
        reason: String,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("this agent was built without the eBPF tool chain: it contains no programs")]
    NoObject,
    /// The kernel was built without `CONFIG_DEBUG_INFO_BTF`, or the file is hidden.
    #[error("the kernel's types are not readable, which every program needs")]
    NoBtf { source: FsError },
    #[error("read the kernel's types")]
    Btf { source: BtfError },
    /// As [`LoadError::Btf`], by aya, which is given what attaching needs.
    #[error("read the kernel's types for attaching")]
    AttachBtf { source: aya::BtfError },
    #[error("the {map} map of stream {}", .stream.name())]
    Map {
        stream: Stream,
        map: &'static str,
        source: MapError,
    },
    #[error("look at what waits in the ring of stream {}", .stream.name())]
    Waiting {
        stream: Stream,
        source: std::io::Error,
    },
    #[error("the pinned link of {program} is gone")]
    LinkGone { program: &'static str },
    #[error("{program} was refused to an agent of fewer capabilities, or for the moment")]
    MayDoMore { program: &'static str },
    #[error("unpin")]
    Unpin { source: PinsError },
    #[error("count device accesses: {reason}")]
    Device { reason: String },
}

/// `None`: what is pinned in this directory, be it there or not, outlives the agent and its container, on a bpffs
/// that [`prepare_pin_directory`] may have to mount, and what an agent of this build has pinned there is whole.
pub fn why_no_pins_in(path: &Path) -> Option<Bpffs> {
    pins::why_not_in(path).or_else(|| {
        let gone = PINNED
            .into_iter()
            .flat_map(|it| pins::gone_links(path, it, &set_name(it)));
        let gone: Vec<_> = gone.map(str::to_owned).collect();
        (!gone.is_empty()).then(|| Bpffs::LinksGone(path.into(), gone))
    })
}

/// Makes the directory of pins, and mounts a bpffs at `/sys/fs/bpf` if it is there and none is.
pub fn prepare_pin_directory(path: &Path) -> Result<(), PinsError> {
    Pins::open(path).map(drop)
}

/// The running programs. Dropping it detaches those that are not pinned.
pub struct Streams {
    options: LoadOptions,
    pins: Option<Pins>,
    running: BTreeMap<Stream, Running>,
    older: Vec<Older>,
    /// Streams whose pinned set is kept from this agent.
    kept: BTreeSet<Stream>,
    /// Of a stream that is in `running` and in `older`.
    twins: BTreeMap<Stream, Twins>,
    unreadable: BTreeMap<Stream, u64>,
    reports: Vec<ProgramReport>,
    pinning: Pinning,
    device: Option<DeviceCounter>,
    page_bytes: u64,
}

/// The streams whose programs and rings outlive the agent: kills, and what became of processes, are
/// to be known whole. Cgroups are found by a scan at start, stall totals are counters.
const PINNED: [Stream; 2] = [Stream::Oom, Stream::Process];

impl Streams {
    /// [`Streams::adopt`] and [`Streams::load_missing`].
    pub fn load(options: &LoadOptions) -> Result<Self, LoadError> {
        let mut streams = Self::adopt(options)?;
        streams.load_missing(&mut |_| {})?;
        Ok(streams)
    }

    /// Takes over the streams that an earlier agent left running, and loads nothing: milliseconds.
    /// What has waited in their rings can be drained.
    pub fn adopt(options: &LoadOptions) -> Result<Self, LoadError> {
        if !objects::are_built() {
            return Err(LoadError::NoObject);
        }
        let mut streams = Self {
            options: options.clone(),
            pins: None,
            running: BTreeMap::new(),
            older: Vec::new(),
            kept: BTreeSet::new(),
            twins: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            reports: Vec::new(),
            pinning: Pinning::Off,
            device: None,
            page_bytes: page_bytes(),
        };
        if let Some(pins) = streams.open_pins() {
            streams.adopt_pinned(&pins);
            streams.pins = Some(pins);
        }
        if let Some(root) = options.watched {
            streams.watch(root)?;
        }
        Ok(streams)
    }

    /// Loads and attaches whatever this kernel takes of the streams that do not run, in the order
    /// of [`Stream::ALL`], and says of each to `tried` when that is done. Takes 50 to 100 ms. After
    /// an error the streams that run go on.
    pub fn load_missing(&mut self, tried: &mut dyn FnMut(Stream)) -> Result<(), LoadError> {
        let missing: Vec<_> = Stream::ALL
            .into_iter()
            .filter(|it| !self.running.contains_key(it))
            .collect();
        if missing.is_empty() {
            self.supersede();
            return Ok(());
        }
        // Up to 5.10 maps count against this limit, which is small by default; raising it may be
        // refused, and then the kernel says so per map.
        let infinity = nix::sys::resource::RLIM_INFINITY;
        let is_limited = setrlimit(Resource::RLIMIT_MEMLOCK, infinity, infinity).is_err();
        let support = kernel_support()?;
        let log_level = diagnostics::level(self.options.diagnostics);
        // Parses all of the kernel's types, which nothing here needs, each time: so there is one
        // for all objects, and it forgets them at once.
        let mut objects = EbpfLoader::new();
        objects.btf(None);
        self.device = DeviceCounter::load(&mut objects)
            .inspect_err(|error| tracing::warn!(error = load::chain(error), "device counter"))
            .ok();
        let mut loader = Loader::new(objects, &support, &log_level, is_limited)?;
        for stream in missing {
            let n_reports = self.reports.len();
            match self.load_one(stream, &mut loader) {
                Ok(running) => self.running.extend(running.map(|it| (stream, it))),
                Err(error) => {
                    // Nobody reads what they tell, be it that some were attached.
                    self.reports.truncate(n_reports);
                    return Err(error);
                }
            }
            self.supersede();
            tried(stream);
        }
        Ok(())
    }

    /// How many records an earlier agent left in a format that this build cannot read.
    pub fn unreadable(&self) -> &BTreeMap<Stream, u64> {
        &self.unreadable
    }

    /// One row per program that was tried, in the order of trying; none of a stream that failed as a whole.
    pub fn reports(&self) -> &[ProgramReport] {
        &self.reports
    }

    pub fn pinning(&self) -> &Pinning {
        &self.pinning
    }

    /// Sets the watched root in every stream; takes effect with the next event.
    pub fn watch(&mut self, root: WatchedRoot) -> Result<(), LoadError> {
        self.update(|it| it.set_root(root))
    }

    /// Reports processes, cgroups and stalls of the whole node. For tests.
    pub fn watch_everything(&mut self) -> Result<(), LoadError> {
        self.update(Running::set_everything)
    }

    /// The rings, to be polled for reading; two of a stream while an earlier one is read to its end.
    pub fn rings(&self) -> impl Iterator<Item = (Stream, BorrowedFd<'_>)> {
        let running = self.running.iter();
        let running = running.map(|(stream, it)| (*stream, it.ring.as_fd()));
        // What cannot be read would be there for ever.
        let older = self.older.iter().filter(|it| it.is_readable());
        running.chain(older.map(|it| (it.stream(), it.ring())))
    }

    /// Whether a program reports kills, of this build or of an earlier one.
    pub fn reports_kills(&self) -> bool {
        let mut older = self.older.iter();
        self.reports.iter().any(ProgramReport::reports_kills)
            || older.any(|it| it.tells_victims() && it.is_readable())
    }

    /// Whether a program has noted kills until now, in records that this build can read or not.
    pub fn watched_kills(&self) -> bool {
        self.reports_kills() || self.older.iter().any(Older::tells_victims)
    }

    /// The events of one stream that wait, oldest first, without records that no program writes.
    /// They stay where they are: whoever drains the stream gets them, be it the next agent.
    pub fn waiting(&self, stream: Stream) -> Result<Vec<KernelEvent>, LoadError> {
        let mut waiting = Vec::new();
        let mut twins = self.twins.get(&stream).cloned().unwrap_or_default();
        let failed = |source| LoadError::Waiting { stream, source };
        for older in self.older.iter().filter(|it| it.stream() == stream) {
            older
                .waiting(self.page_bytes, &mut |event| {
                    if twins.is_first(Side::Older, &event) {
                        waiting.push(event);
                    }
                })
                .map_err(failed)?;
        }
        let Some(running) = self.running.get(&stream) else {
            return Ok(waiting);
        };
        let (ring, n_bytes) = (&running.ring, running.ring_bytes);
        peek(ring, n_bytes, stream, self.page_bytes, &mut |event| {
            if twins.is_first(Side::Ours, &event) {
                waiting.push(event);
            }
        })
        .map_err(failed)?;
        Ok(waiting)
    }

    /// Hands at most `max` waiting events of one stream to `sink`, oldest first.
    pub fn drain(
        &mut self,
        stream: Stream,
        max: usize,
        sink: &mut dyn FnMut(KernelEvent),
    ) -> Drained {
        let mut drained = self.drain_older(stream, max, sink);
        let Some(running) = self.running.get_mut(&stream) else {
            return drained;
        };
        let left = max.saturating_sub(drained.n_taken());
        let (ring, n_bytes) = (&mut running.ring, running.ring_bytes);
        let mut twins = self.twins.get_mut(&stream);
        drained += read_ring(ring, n_bytes, stream, self.page_bytes, left, &mut |event| {
            if twins
                .as_mut()
                .is_none_or(|it| it.is_first(Side::Ours, &event))
            {
                sink(event);
            }
        });
        // The last that an older set has told may have its twin in our ring.
        let is_read = drained.n_taken() < max;
        if is_read && !self.older.iter().any(|it| it.stream() == stream) {
            self.twins.remove(&stream);
        }
        if let Some(diagnostics) = &mut running.diagnostics {
            diagnostics.flush();
        }
        drained
    }

    fn drain_older(
        &mut self,
        stream: Stream,
        max: usize,
        sink: &mut dyn FnMut(KernelEvent),
    ) -> Drained {
        let mut drained = Drained::default();
        let Some(pins) = self.pins.as_ref().filter(|_| !self.older.is_empty()) else {
            return drained;
        };
        let now = clock::boottime();
        let older = std::mem::take(&mut self.older);
        for mut older in older {
            if older.stream() != stream {
                self.older.push(older);
                continue;
            }
            let has_ended = older.has_ended(now);
            let left = max.saturating_sub(drained.n_taken());
            // Ours tells nothing of what happened before it ran.
            let is_ours = self.running.contains_key(&stream);
            let mut twins = is_ours.then(|| self.twins.entry(stream).or_default());
            let taken = older.drain(left, self.page_bytes, &mut |event| {
                let twins = twins.as_mut();
                if twins.is_none_or(|it| it.is_first(Side::Older, &event)) {
                    sink(event);
                }
            });
            drained += taken;
            if has_ended && left > 0 && taken == Drained::default() {
                let n_unread = older.remove(pins);
                *self.unreadable.entry(stream).or_default() += n_unread;
            } else {
                self.older.push(older);
            }
        }
        drained
    }

    /// Ends the programs of earlier builds whose work those of this one do now.
    fn supersede(&mut self) {
        let Some(pins) = &self.pins else {
            return;
        };
        let now = clock::boottime();
        for older in &mut self.older {
            if self.running.contains_key(&older.stream()) {
                older.supersede(pins, now);
            }
        }
    }

    /// Attaches the device access counter, which allows everything, to a cgroup v2 directory; a
    /// second call moves it. It is loaded with the missing streams.
    pub fn attach_device_counter(&mut self, cgroup2_dir: BorrowedFd<'_>) -> Result<(), LoadError> {
        match &mut self.device {
            Some(device) => device.attach(cgroup2_dir),
            None => Err(LoadError::Device {
                reason: "its object is not loaded".to_owned(),
            }),
        }
    }

    /// Detaches and removes whatever is pinned below `pin_directory`, of every version.
    pub fn unpin_all(pin_directory: &Path) -> Result<(), LoadError> {
        Pins::remove_all(pin_directory).map_err(|source| LoadError::Unpin { source })
    }

    fn update(
        &mut self,
        change: impl Fn(&mut Running) -> Result<(), MapError>,
    ) -> Result<(), LoadError> {
        for (stream, running) in &mut self.running {
            change(running).map_err(watch_failed(*stream))?;
        }
        Ok(())
    }

    fn open_pins(&mut self) -> Option<Pins> {
        let directory = self.options.pin_directory.as_deref()?;
        let names = PINNED.map(set_name);
        let opened = Pins::open(directory)
            .and_then(|pins| pins.set_aside_others(&names).map(|aside| (pins, aside)));
        match opened {
            Ok((pins, aside)) => {
                self.pinning = Pinning::On;
                let open = |set| Older::open(&pins, set);
                self.older = aside.into_iter().filter_map(open).collect();
                Some(pins)
            }
            Err(error) => {
                self.pinning = Pinning::Failed {
                    reason: load::chain(&error),
                };
                None
            }
        }
    }

    /// A set that cannot be adopted is read to its end, and its stream loaded anew. One that is kept from this agent stays
    /// as it is.
    fn adopt_pinned(&mut self, pins: &Pins) {
        let may = capabilities();
        for stream in PINNED {
            let name = set_name(stream);
            let n_reports = self.reports.len();
            let adopted = match pins.adopt(&name) {
                Ok(None) => continue,
                Ok(Some(pinned)) => load::adopt(stream, pinned, may, &mut self.reports)
                    .map_err(|error| load::chain(&error)),
                Err(error) if error.is_refusal() => {
                    let reason = load::chain(&error);
                    tracing::warn!(%reason, pins = name, "pinned programs are kept from this agent");
                    self.kept.insert(stream);
                    if self.pinning == Pinning::On {
                        self.pinning = Pinning::Kept { reason };
                    }
                    continue;
                }
                Err(error) => Err(load::chain(&error)),
            };
            match adopted {
                Ok(running) => {
                    self.running.insert(stream, running);
                }
                Err(reason) => {
                    self.reports.truncate(n_reports);
                    tracing::warn!(%reason, pins = name, "pinned programs cannot be adopted");
                    match pins.set_aside(&name) {
                        Ok(set) => {
                            self.older
                                .extend(set.and_then(|set| Older::open(pins, set)));
                        }
                        Err(error) => {
                            let reason = load::chain(&error);
                            self.pinning = Pinning::Failed { reason };
                        }
                    }
                }
            }
        }
    }

    /// `None`: none of its programs runs, as the reports tell.
    fn load_one(
        &mut self,
        stream: Stream,
        loader: &mut Loader<'_>,
    ) -> Result<Option<Running>, LoadError> {
        let n_reports = self.reports.len();
        let watched = self.options.watched;
        let Some(mut attached) = load::load(stream, watched, loader, &mut self.reports)? else {
            return Ok(None);
        };
        // The name of a set that is kept is taken, and links that are pinned under another would run on unread.
        let is_pinned = PINNED.contains(&stream) && !self.kept.contains(&stream);
        if let Some(pins) = self.pins.as_ref().filter(|_| is_pinned) {
            attached = match attached.pin(pins, &set_name(stream), capabilities()) {
                Ok(attached) => attached,
                Err(error) => {
                    let reason = load::chain(&error);
                    self.pinning = Pinning::Failed { reason };
                    self.reports.truncate(n_reports);
                    match load::load(stream, watched, loader, &mut self.reports)? {
                        Some(again) => again,
                        None => return Ok(None),
                    }
                }
            };
        }
        attached.run().map(Some)
    }
}

/// Takes at most `max` records out of a ring, oldest first.
fn read_ring(
    ring: &mut RingBuf<MapData>,
    ring_bytes: u32,
    stream: Stream,
    page_bytes: u64,
    max: usize,
    sink: &mut dyn FnMut(KernelEvent),
) -> Drained {
    let mut drained = Drained::default();
    let mut n_bytes = 0;
    while drained.n_taken() < max
        && let Some(record) = ring.next()
    {
        n_bytes += record.len().next_multiple_of(RECORD_HEADER) + RECORD_HEADER;
        match decode::decode(stream, &record, page_bytes) {
            Some(event) => {
                drained.n += 1;
                sink(event);
            }
            None => drained.malformed += 1,
        }
    }
    drained.filled = n_bytes as f64 / f64::from(ring_bytes.max(1));
    drained
}

/// The events that wait in a ring, oldest first; they stay there.
fn peek(
    ring: &RingBuf<MapData>,
    ring_bytes: u32,
    stream: Stream,
    page_bytes: u64,
    sink: &mut dyn FnMut(KernelEvent),
) -> std::io::Result<()> {
    peek_ring(ring.as_fd(), ring_bytes as usize, &mut |record| {
        if let Some(event) = decode::decode(stream, record, page_bytes) {
            sink(event);
        }
    })
}

const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// The effective ones of this process, as the kernel numbers them.
fn capabilities() -> u64 {
    let status = Root::host().read_text("/proc/self/status");
    let mask = status.ok().and_then(|it| effective_mask(&it));
    mask.unwrap_or(0)
}

fn set_name(stream: Stream) -> String {
    Pins::set_name(stream, objects::of(stream))
}

fn watch_failed(stream: Stream) -> impl FnOnce(MapError) -> LoadError {
    move |source| LoadError::Map {
        stream,
        map: "watch",
        source,
    }
}

fn kernel_support() -> Result<KernelSupport, LoadError> {
    let root = Root::host();
    let bytes = root
        .read(BTF_PATH)
        .map_err(|source| LoadError::NoBtf { source })?;
    KernelSupport::from_btf(&bytes, memory_is_unified(&root))
        .map_err(|source| LoadError::Btf { source })
}

/// Whether the memory controller lives on cgroup v2. `/proc/cgroups` gives the hierarchy of each
/// controller, 0 for v2, and lists only controllers that v1 still knows (6.11 and newer).
fn memory_is_unified(root: &Root) -> bool {
    let text = root.read_text("/proc/cgroups").unwrap_or_default();
    text.lines()
        .filter_map(|it| it.strip_prefix("memory"))
        .all(|it| it.split_whitespace().next() == Some("0"))
}

fn page_bytes() -> u64 {
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|it| u64::try_from(it).ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(program: &'static str, fallback: Option<&'static str>) -> ProgramReport {
        let state = match fallback {
            None => ProgramState::Adopted {
                hook: String::new(),
            },
            Some(_) => ProgramState::Refused {
                reason: String::new(),
            },
        };
        ProgramReport {
            program,
            stream: Stream::Oom,
            state,
            fallback,
        }
    }

    #[test]
    fn another_form_of_a_program_stands_in_for_it() {
        let form = |name| [report("oom_victim", Some(name)), report(name, None)];
        let [refused, running] = &form("oom_victim_raw");
        assert!(refused.has_stand_in(&form("oom_victim_raw")));
        assert!(!running.has_stand_in(&form("oom_victim_raw")));
        assert!(
            !refused.has_stand_in(std::slice::from_ref(refused)),
            "it does not run"
        );
        let limitless = form(LIMITLESS);
        assert!(!limitless[0].has_stand_in(&limitless));
    }

    #[test]
    fn what_does_the_work_of_a_program_has_to_run_itself() {
        const TEXT: &str = "something else";
        const RECLAIM: Option<&str> = Some(probe::REASON_WITHOUT_RECLAIM);
        const LIMITS: Option<&str> = Some(probe::REASON_WITHOUT_LIMITS);
        let reason = report("oom_reason", Some(TEXT));
        let reclaim = report("oom_reclaim_raw", Some(TEXT));
        let direct = report("oom_direct_reclaim", Some(TEXT));
        let signal = report("oom_signal", Some(TEXT));
        let notes_reclaim = report("oom_reclaim_bare", None);
        let refused = report("oom_victim", Some(TEXT));
        let (full, limitless) = (report("oom_victim", None), report(LIMITLESS, None));
        for (victim, notes, of_reason, of_reclaim, of_signal) in [
            (&full, true, Some(TEXT), Some(TEXT), Some(TEXT)),
            // Nobody knows what a task has reclaimed before.
            (&full, false, RECLAIM, Some(TEXT), Some(TEXT)),
            (&limitless, true, LIMITS, Some(TEXT), Some(TEXT)),
            (&limitless, false, None, None, Some(TEXT)),
            (&refused, true, None, None, None),
        ] {
            let notes_reclaim = match notes {
                true => notes_reclaim.clone(),
                false => reclaim.clone(),
            };
            let all = [
                reason.clone(),
                signal.clone(),
                notes_reclaim,
                victim.clone(),
            ];
            let of = format!("{} {notes}", victim.program);
            assert_eq!(reason.instead(&all), of_reason, "{of}");
            for it in [&reclaim, &direct] {
                assert_eq!(it.instead(&all), of_reclaim, "{of} {}", it.program);
            }
            assert_eq!(signal.instead(&all), of_signal, "{of}");
            let is_derived = all.iter().any(ProgramReport::looks_for_limits);
            assert_eq!(reason.has_stand_in(&all), is_derived, "{of}");
        }
        assert_eq!(refused.instead(std::slice::from_ref(&refused)), Some(TEXT));
    }
}
