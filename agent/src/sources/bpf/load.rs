//! From an embedded object to attached programs, or from pins to the programs of an earlier agent.
//!
//! Invariant: whatever the kernel refuses becomes a row of the report with its reason; the next
//! program, the next duty and the next stream are tried all the same.

use std::borrow::BorrowMut;

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::links::FdLink;
use aya::programs::{BtfTracePoint, FEntry, FExit, ProgramError, RawTracePoint};
use aya::{Btf, Ebpf, EbpfLoader, Endianness};
use ebpf_abi as abi;
use nix::errno::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::pins::{Pinned, Pins, PinsError};
use super::probe::{DUTIES, Duty, Hook, KernelSupport, Program, plan};
use super::{
    LIMITLESS, LoadError, ProgramReport, ProgramState, Stream, WatchedRoot, diagnostics, objects,
};

/// Bytes of a map value; aya asks for plain arrays.
type WatchBytes = [u8; size_of::<abi::Watch>()];
pub(super) type TotalBytes = [u8; size_of::<abi::StallTotal>()];

/// A stream with its programs attached. Dropping it detaches what is not pinned.
pub(super) struct Running {
    pub(super) ring: RingBuf<MapData>,
    /// Its size.
    pub(super) ring_bytes: u32,
    watch: Array<MapData, WatchBytes>,
    pub(super) losses: PerCpuArray<MapData, u64>,
    /// Of the stall stream.
    pub(super) totals: Option<HashMap<MapData, u64, TotalBytes>>,
    /// Name and kernel id of each program.
    pub(super) programs: Vec<(&'static str, u32)>,
    /// Held, not used: a link that nobody holds or pins is detached.
    _links: Vec<FdLink>,
    pub(super) diagnostics: Option<diagnostics::Reader>,
}

impl Running {
    pub(super) fn set_root(&mut self, root: WatchedRoot) -> Result<(), MapError> {
        self.update_watch(|watch| follow(watch, root))
    }

    pub(super) fn set_everything(&mut self) -> Result<(), MapError> {
        self.update_watch(|watch| watch.flags |= abi::WATCH_EVERYTHING)
    }

    fn update_watch(&mut self, change: impl FnOnce(&mut abi::Watch)) -> Result<(), MapError> {
        update_watch(&mut self.watch, change)
    }
}

fn follow(watch: &mut abi::Watch, root: WatchedRoot) {
    watch.root_id = root.cgroup_id.0;
    watch.root_level = root.level;
    watch.hierarchy_id = root.hierarchy_id;
    for (flag, is_set) in [
        (abi::WATCH_ENDS, root.tells_ends),
        (abi::WATCH_STALLS, root.tells_stalls),
    ] {
        match is_set {
            true => watch.flags |= flag,
            false => watch.flags &= !flag,
        }
    }
}

fn update_watch(
    map: &mut Array<impl BorrowMut<MapData>, WatchBytes>,
    change: impl FnOnce(&mut abi::Watch),
) -> Result<(), MapError> {
    let bytes = map.get(&0, 0)?;
    let mut watch = abi::Watch::read_from_bytes(&bytes).unwrap_or_default();
    change(&mut watch);
    let mut bytes = WatchBytes::default();
    bytes.copy_from_slice(watch.as_bytes());
    map.set(0, bytes, 0)
}

const REFUSED_BEFORE: &str = "refused when an earlier agent attached the programs";

/// The program whose link a pinned set has for a duty, or else what it lacks.
enum LinkOf {
    Pinned(&'static Program),
    /// Another program does it.
    Needless,
    /// The kernel refused it to an agent of these capabilities.
    Refused(&'static Program, u64),
    Gone(&'static Program),
}

impl LinkOf {
    fn duty(duty: &'static Duty, links: &[&str], refused: &[(String, u64)]) -> Self {
        let mut programs = duty.programs.iter();
        if let Some(program) = programs.find(|it| links.contains(&it.name)) {
            return Self::Pinned(program);
        }
        if duty.unless.is_some_and(|it| links.contains(&it)) {
            return Self::Needless;
        }
        let program = &duty.programs[0];
        // The note of the last form stands for all: a set in which another form runs has none of it.
        let last = duty.programs.last().unwrap_or(program);
        match refused.iter().find(|it| it.0 == last.name) {
            Some((_, capabilities)) => Self::Refused(program, *capabilities),
            None => Self::Gone(program),
        }
    }
}

/// The programs of a stream that its pinned set lacks: somebody removed the link, or the kernel did not take it then.
pub(super) fn gone(
    stream: Stream,
    links: &[&str],
    refused: &[(String, u64)],
) -> impl Iterator<Item = &'static str> {
    let duties = DUTIES.iter().filter(move |it| it.stream == stream);
    duties.filter_map(move |duty| match LinkOf::duty(duty, links, refused) {
        LinkOf::Gone(program) => Some(program.name),
        _ => None,
    })
}

/// A form of `pinned` that tells more, and that the kernel refused to an agent that may do less than one of these
/// capabilities.
fn better_form(
    duty: &Duty,
    pinned: &Program,
    refused: &[(String, u64)],
    capabilities: u64,
) -> Option<&'static str> {
    let mut better = duty.programs.iter().take_while(|it| it.name != pinned.name);
    let may_do_more = |name: &str| {
        let mut notes = refused.iter();
        notes.any(|(program, then)| program == name && capabilities & !then != 0)
    };
    better.find(|it| may_do_more(it.name)).map(|it| it.name)
}

/// Takes over a stream that an earlier agent pinned. Where a program is missing that the kernel might
/// take now, the stream is to be loaded anew: its link was removed, or this agent may do more.
pub(super) fn adopt(
    stream: Stream,
    pinned: Pinned,
    capabilities: u64,
    reports: &mut Vec<ProgramReport>,
) -> Result<Running, LoadError> {
    let map_failed = |map| {
        move |source| LoadError::Map {
            stream,
            map,
            source,
        }
    };
    let mut programs = Vec::new();
    let mut links = Vec::new();
    let names: Vec<&str> = pinned.links.iter().map(|it| it.0.as_str()).collect();
    for duty in DUTIES.iter().filter(|it| it.stream == stream) {
        let (program, state, fallback) = match LinkOf::duty(duty, &names, &pinned.refused) {
            LinkOf::Pinned(program) => {
                if let Some(program) = better_form(duty, program, &pinned.refused, capabilities) {
                    return Err(LoadError::MayDoMore { program });
                }
                let link = pinned.links.iter().find(|it| it.0 == program.name);
                if let Some(info) = link.and_then(|it| it.1.info().ok()) {
                    programs.push((program.name, info.program_id()));
                }
                if program.name == LIMITLESS {
                    let reason = REFUSED_BEFORE.to_owned();
                    let mut report = refused(duty, duty.programs[0].name, reason);
                    report.fallback = Some(program.name);
                    reports.push(report);
                }
                let hook = program.hook.to_string();
                (program.name, ProgramState::Adopted { hook }, None)
            }
            LinkOf::Needless => continue,
            LinkOf::Refused(program, then) if capabilities & !then == 0 => {
                let reason = REFUSED_BEFORE.to_owned();
                let state = ProgramState::Refused { reason };
                (program.name, state, Some(duty.fallback))
            }
            LinkOf::Refused(Program { name, .. }, _) => {
                return Err(LoadError::MayDoMore { program: name });
            }
            LinkOf::Gone(Program { name, .. }) => {
                return Err(LoadError::LinkGone { program: name });
            }
        };
        reports.push(ProgramReport {
            program,
            stream,
            state,
            fallback,
        });
    }
    links.extend(pinned.links.into_iter().map(|it| it.1));
    let ring = Map::from_map_data(pinned.ring).and_then(open_ring);
    let watch = Map::from_map_data(pinned.watch).and_then(Array::try_from);
    let losses = Map::from_map_data(pinned.losses).and_then(PerCpuArray::try_from);
    let (ring, ring_bytes) = ring.map_err(map_failed("ring"))?;
    Ok(Running {
        ring,
        ring_bytes,
        watch: watch.map_err(map_failed("watch"))?,
        losses: losses.map_err(map_failed("losses"))?,
        totals: None,
        programs,
        _links: links,
        diagnostics: None,
    })
}

/// The ring with its size in bytes.
pub(super) fn open_ring(map: Map) -> Result<(RingBuf<MapData>, u32), MapError> {
    let n_bytes = match &map {
        Map::RingBuf(data) => data.info()?.max_entries(),
        _ => 0,
    };
    Ok((RingBuf::try_from(map)?, n_bytes))
}

/// What loading one object after the other takes.
pub(super) struct Loader<'a> {
    objects: EbpfLoader<'a>,
    support: &'a KernelSupport,
    hook_types: Btf,
    diagnostics: bool,
    /// What may be locked is limited, and counts.
    is_memory_limited: bool,
}

impl<'a> Loader<'a> {
    /// `objects`: without globals yet. `log_level`: see [`diagnostics::level`]. `is_limited`: what this process may lock
    /// of memory.
    pub(super) fn new(
        mut objects: EbpfLoader<'a>,
        support: &'a KernelSupport,
        log_level: &'a u8,
        is_limited: bool,
    ) -> Result<Self, LoadError> {
        objects
            .override_global("OFFSETS", support.offsets.as_bytes(), true)
            .override_global(aya_log::LEVEL, log_level, true);
        // The kernel counts at least its own CPUs.
        let n_entries = recent_entries(aya::util::nr_cpus().unwrap_or(1));
        for map in ["ENDED", "RECLAIMS"] {
            objects.map_max_entries(map, n_entries);
        }
        let hook_types = Btf::parse(&support.hook_types, Endianness::default())
            .map_err(|source| LoadError::AttachBtf { source })?;
        Ok(Self {
            objects,
            support,
            hook_types,
            diagnostics: *log_level != diagnostics::OFF,
            is_memory_limited: is_limited && support.locks_memory,
        })
    }
}

/// Entries of a least-recently-used map on a machine with so many possible CPUs. Each takes 128 free ones for itself
/// (`LOCAL_FREE_TARGET` in kernel/bpf/bpf_lru_list.c, up to 6.15 whatever the size of the map), and where none are left
/// one that writes evicts what it has just written.
fn recent_entries(n_cpus: usize) -> u32 {
    let wanted = n_cpus.saturating_mul(256).max(1024);
    u32::try_from(wanted).unwrap_or(u32::MAX)
}

/// Loads the object of a stream. `None`: none of its programs runs, as the reports tell.
pub(super) fn load(
    stream: Stream,
    watched: Option<WatchedRoot>,
    loader: &mut Loader<'_>,
    reports: &mut Vec<ProgramReport>,
) -> Result<Option<Attached>, LoadError> {
    let map_failed = |map| {
        move |source| LoadError::Map {
            stream,
            map,
            source,
        }
    };
    let mut ebpf = match loader.objects.load(objects::of(stream)) {
        Ok(ebpf) => ebpf,
        Err(error) => {
            let reason = format!("load the object: {}", chain(&error));
            for duty in DUTIES.iter().filter(|it| it.stream == stream) {
                reports.push(refused(duty, duty.programs[0].name, reason.clone()));
            }
            return Ok(None);
        }
    };
    let diagnostics = loader
        .diagnostics
        .then(|| diagnostics::Reader::start(&mut ebpf))
        .flatten();
    let take = |ebpf: &mut Ebpf, name: &'static str| {
        let missing = || MapError::InvalidName {
            name: name.to_owned(),
        };
        ebpf.take_map(name).ok_or_else(missing)
    };
    let ring = take(&mut ebpf, objects::ring(stream)).map_err(map_failed("ring"))?;
    let mut watch = take(&mut ebpf, "WATCH").map_err(map_failed("watch"))?;
    let losses = take(&mut ebpf, "LOSSES").map_err(map_failed("losses"))?;
    let totals = ebpf.take_map("TOTALS");
    if let Some(root) = watched {
        // Before the first program is attached: no event is told by another root, or by none.
        let mut watch = Array::try_from(&mut watch).map_err(map_failed("watch"))?;
        update_watch(&mut watch, |it| follow(it, root)).map_err(map_failed("watch"))?;
    }
    let mut programs: Vec<(&'static str, u32)> = Vec::new();
    let mut links = Vec::new();
    let mut not_done = Vec::new();
    for duty in DUTIES.iter().filter(|it| it.stream == stream) {
        if duty
            .unless
            .is_some_and(|it| programs.iter().any(|(name, _)| *name == it))
        {
            continue;
        }
        let attached: Vec<&str> = programs.iter().map(|it| it.0).collect();
        let first = attach_first(duty, &attached, loader, &mut ebpf, &mut not_done, reports);
        let Some((program, id, link)) = first else {
            continue;
        };
        programs.push((program.name, id));
        links.push((program.name, link));
        // Before the program that relies on it is attached.
        if program.name.starts_with("oom_signal") {
            let mut watch = Array::try_from(&mut watch).map_err(map_failed("watch"))?;
            update_watch(&mut watch, |it| it.flags |= abi::WATCH_SIGNALS)
                .map_err(map_failed("watch"))?;
        }
    }
    if links.is_empty() {
        return Ok(None);
    }
    Ok(Some(Attached {
        stream,
        refused: not_done,
        ring,
        watch,
        losses,
        totals,
        programs,
        links,
        diagnostics,
    }))
}

/// A stream whose programs run, before it is decided whether it is pinned.
pub(super) struct Attached {
    stream: Stream,
    /// Programs that the next agent need not try again: those in whose place another form runs, and the last form of
    /// each duty that nothing does.
    refused: Vec<(&'static str, Refusal)>,
    ring: Map,
    watch: Map,
    losses: Map,
    totals: Option<Map>,
    programs: Vec<(&'static str, u32)>,
    links: Vec<(&'static str, FdLink)>,
    diagnostics: Option<diagnostics::Reader>,
}

impl Attached {
    /// Pins maps and links as one set. After a failure the stream is gone, since pinning takes the
    /// links; what was pinned of it is removed by the next start.
    pub(super) fn pin(
        mut self,
        pins: &Pins,
        name: &str,
        capabilities: u64,
    ) -> Result<Self, PinsError> {
        let set = pins.begin(name)?;
        set.maps(&self.ring, &self.watch, &self.losses)?;
        for (program, refusal) in &self.refused {
            let refused_to = match refusal {
                Refusal::Lasting => capabilities,
                // Whoever comes next may do more.
                Refusal::OfTheMoment => 0,
            };
            set.refused(program, refused_to)?;
        }
        self.links = self
            .links
            .into_iter()
            .map(|(program, link)| Ok((program, set.link(program, link)?)))
            .collect::<Result<_, PinsError>>()?;
        pins.commit(&set, name)?;
        Ok(self)
    }

    pub(super) fn run(self) -> Result<Running, LoadError> {
        let stream = self.stream;
        let map_failed = |map| {
            move |source| LoadError::Map {
                stream,
                map,
                source,
            }
        };
        let (ring, ring_bytes) = open_ring(self.ring).map_err(map_failed("ring"))?;
        Ok(Running {
            ring,
            ring_bytes,
            watch: Array::try_from(self.watch).map_err(map_failed("watch"))?,
            losses: PerCpuArray::try_from(self.losses).map_err(map_failed("losses"))?,
            totals: self
                .totals
                .map(HashMap::try_from)
                .transpose()
                .map_err(map_failed("totals"))?,
            programs: self.programs,
            _links: self.links.into_iter().map(|it| it.1).collect(),
            diagnostics: self.diagnostics,
        })
    }
}

/// Whether the kernel would refuse once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Lasting,
    /// It lacked memory or descriptors, or a signal came between (kernel/bpf/verifier.c).
    OfTheMoment,
}

impl Refusal {
    fn of(error: &ProgramError, is_memory_limited: bool) -> Self {
        let (error, is_loaded) = match error {
            ProgramError::LoadError { io_error, .. } => (io_error, false),
            ProgramError::SyscallError(error) => (&error.io_error, true),
            _ => return Self::Lasting,
        };
        match error.raw_os_error().map(Errno::from_raw) {
            // So many programs hang at the function as can (`BPF_MAX_TRAMP_LINKS`, include/linux/bpf.h); of a
            // program to be loaded, that it is too large.
            Some(Errno::E2BIG) if is_loaded => Self::OfTheMoment,
            // The next agent may lock more (`bpf_charge_memlock`, kernel/bpf/syscall.c of 5.10).
            Some(Errno::EPERM) if is_memory_limited => Self::OfTheMoment,
            Some(
                Errno::EAGAIN
                | Errno::EINTR
                | Errno::ENOMEM
                | Errno::EMFILE
                | Errno::ENFILE
                | Errno::EBUSY,
            ) => Self::OfTheMoment,
            _ => Self::Lasting,
        }
    }
}

/// Goes down the list of a duty until the kernel takes a program. `None`: it takes none.
fn attach_first(
    duty: &'static Duty,
    attached: &[&str],
    loader: &Loader<'_>,
    ebpf: &mut Ebpf,
    not_done: &mut Vec<(&'static str, Refusal)>,
    reports: &mut Vec<ProgramReport>,
) -> Option<(&'static Program, u32, FdLink)> {
    let plan = plan(duty, loader.support, attached);
    let mut failures = Vec::new();
    let mut refusals = Vec::new();
    for program in plan.fit {
        match attach(program, ebpf, &loader.hook_types) {
            Ok((id, link)) => {
                for (failed, reason) in failures {
                    let mut report = refused(duty, failed, reason);
                    report.fallback = Some(program.name);
                    reports.push(report);
                }
                reports.push(ProgramReport {
                    program: program.name,
                    stream: duty.stream,
                    state: ProgramState::Attached {
                        hook: program.hook.to_string(),
                    },
                    fallback: None,
                });
                not_done.extend(refusals);
                return Some((program, id, link));
            }
            Err(error) => {
                let is_memory_limited = loader.is_memory_limited;
                refusals.push((program.name, Refusal::of(&error, is_memory_limited)));
                failures.push((program.name, refusal(&error)));
            }
        }
    }
    if failures.is_empty() {
        // The last is what is left to try, so its reason is the one that counts.
        let last = plan.unfit.into_iter().next_back();
        failures.extend(last.map(|it| (duty.programs[0].name, it.1)));
    }
    for (failed, reason) in failures {
        reports.push(refused(duty, failed, reason));
    }
    if refusals.iter().all(|(_, it)| *it == Refusal::Lasting) {
        let last = duty.programs.last().map(|it| it.name);
        not_done.extend(last.map(|it| (it, Refusal::Lasting)));
    }
    None
}

fn attach(program: &Program, ebpf: &mut Ebpf, btf: &Btf) -> Result<(u32, FdLink), ProgramError> {
    let loaded = ebpf
        .program_mut(program.name)
        .ok_or(ProgramError::NotLoaded)?;
    let link = match program.hook {
        Hook::Typed(name) => {
            let it: &mut BtfTracePoint = loaded.try_into()?;
            it.load(name, btf)?;
            let id = it.attach()?;
            it.take_link(id)?.into()
        }
        Hook::Raw(name) => {
            let it: &mut RawTracePoint = loaded.try_into()?;
            it.load()?;
            let id = it.attach(name)?;
            it.take_link(id)?.into()
        }
        Hook::FunctionEntry(name) => {
            let it: &mut FEntry = loaded.try_into()?;
            it.load(name, btf)?;
            let id = it.attach()?;
            it.take_link(id)?.into()
        }
        Hook::FunctionExit(name) => {
            let it: &mut FExit = loaded.try_into()?;
            it.load(name, btf)?;
            let id = it.attach()?;
            it.take_link(id)?.into()
        }
    };
    let id = ebpf
        .program(program.name)
        .ok_or(ProgramError::NotLoaded)?
        .info()?
        .id();
    Ok((id, link))
}

pub(super) fn refused(duty: &Duty, program: &'static str, reason: String) -> ProgramReport {
    ProgramReport {
        program,
        stream: duty.stream,
        state: ProgramState::Refused { reason },
        fallback: Some(duty.fallback),
    }
}

/// Why the kernel refused, without the middle of the verifier's log, which can run to thousands of
/// lines.
pub(super) fn refusal(error: &ProgramError) -> String {
    const KEPT_LINES: usize = 10;
    let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    else {
        return chain(error);
    };
    let log = verifier_log.to_string();
    let lines: Vec<&str> = log.lines().filter(|it| !it.is_empty()).collect();
    let mut text = format!("load: {io_error}");
    let last = lines.len().saturating_sub(KEPT_LINES);
    for (index, line) in lines.iter().enumerate() {
        if index == 0 || index >= last {
            text.push_str("; ");
            text.push_str(line.trim());
        }
    }
    text
}

/// An error with its sources on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let message = source.to_string();
        // aya repeats the source in the message of some errors.
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    #[test]
    fn what_a_process_may_not_lock_the_next_one_may() {
        for (errno, is_memory_limited, expected) in [
            (Errno::EPERM, true, Refusal::OfTheMoment),
            (Errno::EPERM, false, Refusal::Lasting),
            (Errno::EACCES, true, Refusal::Lasting),
            (Errno::ENOMEM, false, Refusal::OfTheMoment),
        ] {
            let error = ProgramError::SyscallError(SyscallError {
                call: "bpf_prog_load",
                io_error: errno.into(),
            });
            let found = Refusal::of(&error, is_memory_limited);
            assert_eq!(found, expected, "{errno} {is_memory_limited}");
        }
    }
}
