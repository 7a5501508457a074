//! What wakes the watcher of memory before its timer does: PSI triggers, limits and thresholds of
//! cgroups, and bells that other threads ring. A wake says when to look, never what is true; a lost
//! one costs the time to the next look by the clock.
//!
//! Arming writes to `memory.pressure` and `cgroup.event_control`. That registers interest under a
//! descriptor of ours and changes nothing on the node; it is undone when the descriptor is closed.
//! So it is here and not in `apply`.
//!
//! A waker that the kernel refuses is a state in [`Wakers::states`], never a failure of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::stat::Mode;

use crate::model::cgroup_path::CgroupPath;
use crate::model::eviction::WakeSource;
use crate::sources::cgroup_use;
use crate::sys::{Dir, FsError, HeldFile, Root, TextBuffer, Trees, chain};

/// Somebody waits for 5 % of a second: seen long before memory is out. With `CAP_SYS_RESOURCE`.
const TRIGGER: Trigger = Trigger("some 50000 1000000\0");
/// For others windows are multiples of 2 s (Documentation/accounting/psi.rst, Linux 6.5).
const UNPRIVILEGED_TRIGGER: Trigger = Trigger("some 100000 2000000\0");

/// A v1 threshold stays until it is wrong by this much: file pages come and go all the time, and
/// arming takes several calls.
const THRESHOLD_SLACK: u64 = 16 << 20;

/// The waker cannot work at all; looks by the clock go on.
#[derive(Debug, thiserror::Error)]
#[error("set up what wakes the watcher of memory")]
pub struct WakersError(#[from] Errno);

/// What can wake the watcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waker {
    NodePsi,
    KubepodsPsi,
    /// `memory.events.local` of kubepods, v2: its own limits, not those of single pods.
    KubepodsEvents,
    /// `memory.usage_in_bytes` crosses a threshold, v1.
    NodeUsage,
    KubepodsUsage,
    /// `memory.pressure_level` of the root, v1: the kernel finds little to reclaim on the node, not
    /// below the limit of some cgroup.
    NodeLevel,
}

impl Waker {
    pub const ALL: [Self; 6] = [
        Self::NodePsi,
        Self::KubepodsPsi,
        Self::KubepodsEvents,
        Self::NodeUsage,
        Self::KubepodsUsage,
        Self::NodeLevel,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NodePsi => "PSI trigger of the node",
            Self::KubepodsPsi => "PSI trigger of kubepods",
            Self::KubepodsEvents => "memory.events of kubepods",
            Self::NodeUsage => "usage threshold of the node",
            Self::KubepodsUsage => "usage threshold of kubepods",
            Self::NodeLevel => "memory.pressure_level of the node",
        }
    }

    const fn source(self) -> WakeSource {
        match self {
            Self::NodePsi | Self::KubepodsPsi => WakeSource::PsiTrigger,
            Self::KubepodsEvents | Self::NodeUsage | Self::KubepodsUsage | Self::NodeLevel => {
                WakeSource::MemoryEvents
            }
        }
    }

    const fn is_of_kubepods(self) -> bool {
        matches!(
            self,
            Self::KubepodsPsi | Self::KubepodsEvents | Self::KubepodsUsage
        )
    }

    const fn token(self) -> u64 {
        self as u64
    }
}

impl fmt::Display for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whether a waker works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakerState {
    Armed,
    /// It works, but wakes later than it could; why.
    Slow {
        reason: String,
    },
    /// The node does not have it: another cgroup version, PSI off, no such cgroup yet.
    Absent,
    /// The kernel refuses it; why.
    Failed {
        reason: String,
    },
}

/// Wakes a thread from another one.
#[derive(Clone, Debug)]
pub struct Bell(Arc<EventFd>);

impl Bell {
    const TRACEPOINT: u64 = 1 << 8;
    const OTHER: u64 = Self::TRACEPOINT + 1;

    pub fn new() -> nix::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        EventFd::from_flags(flags).map(|it| Self(Arc::new(it)))
    }

    /// Never blocks. Several rings before it is looked at are one.
    pub fn ring(&self) {
        // It fails when the count is full: then the bell rings already.
        let _ = self.0.write(1);
    }

    /// Waits until it is rung, and no longer than this. True: it was rung.
    pub fn wait(&self, longest: Duration) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        // Rounded up, so that what is due then is due.
        let longest = longest.saturating_add(Duration::from_micros(999));
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        // An interrupted wait is a short one.
        poll(&mut fds, timeout).ok();
        self.was_rung()
    }

    /// Whether it was rung since it was asked last.
    pub fn was_rung(&self) -> bool {
        self.0.read().is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// All wakers of the watcher.
#[derive(Debug)]
pub struct Wakers {
    root: Root,
    trees: Arc<Trees>,
    kubepods: CgroupPath,
    /// The cgroup that the wakers of kubepods are of.
    kubepods_id: Option<u64>,
    epoll: Epoll,
    tracepoint: Bell,
    other: Bell,
    armed: BTreeMap<Waker, Armed>,
    states: BTreeMap<Waker, WakerState>,
    /// Usage, bytes, at which the v1 thresholds wake.
    thresholds: BTreeMap<Waker, u64>,
    buffer: TextBuffer,
}

/// What is held for a waker. Closing it disarms.
#[derive(Debug)]
enum Armed {
    Psi(OwnedFd),
    Events(HeldFile),
    /// An eventfd that the kernel signals; for a usage the bytes.
    Event(EventFd, Option<u64>),
}

impl Armed {
    fn flags(&self) -> EpollFlags {
        match self {
            Self::Psi(_) | Self::Events(_) => EpollFlags::EPOLLPRI,
            Self::Event(..) => EpollFlags::EPOLLIN,
        }
    }
}

impl AsFd for Armed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Psi(fd) => fd.as_fd(),
            Self::Events(file) => file.as_fd(),
            Self::Event(fd, _) => fd.as_fd(),
        }
    }
}

/// Why a waker is not armed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArmError {
    #[error(transparent)]
    Fs(#[from] FsError),
    #[error("the kernel refuses {what}")]
    Refused {
        what: &'static str,
        source: io::Error,
    },
}

impl ArmError {
    pub(super) fn refused(what: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::Refused {
            what,
            source: errno.into(),
        }
    }
}

impl Wakers {
    /// Arms all that the node has. v1 thresholds wait for [`Wakers::set_thresholds`].
    pub fn open(
        root: &Root,
        trees: Arc<Trees>,
        kubepods: &CgroupPath,
    ) -> Result<Self, WakersError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let (tracepoint, other) = (Bell::new()?, Bell::new()?);
        for (bell, token) in [(&tracepoint, Bell::TRACEPOINT), (&other, Bell::OTHER)] {
            epoll.add(bell, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
        }
        let mut wakers = Self {
            root: root.clone(),
            trees,
            kubepods: kubepods.clone(),
            kubepods_id: None,
            epoll,
            tracepoint,
            other,
            armed: BTreeMap::new(),
            states: BTreeMap::new(),
            thresholds: BTreeMap::new(),
            buffer: TextBuffer::default(),
        };
        wakers.rearm();
        Ok(wakers)
    }

    /// For the thread that drains the eBPF events.
    pub fn tracepoint_bell(&self) -> Bell {
        self.tracepoint.clone()
    }

    /// For whatever else the watcher has to look at.
    pub fn bell(&self) -> Bell {
        self.other.clone()
    }

    /// How each waker is.
    pub fn states(&self) -> &BTreeMap<Waker, WakerState> {
        &self.states
    }

    /// Tries again what is not armed, and arms anew where kubepods is another cgroup than before.
    pub fn rearm(&mut self) {
        let kubepods = cgroup_use::dir(&self.trees, "memory", &self.kubepods);
        let id = kubepods.ok().flatten().map(|it| it.inode());
        if self.kubepods_id != id {
            self.kubepods_id = id;
            self.armed.retain(|waker, _| !waker.is_of_kubepods());
        }
        for waker in Waker::ALL {
            if !self.armed.contains_key(&waker) {
                self.arm(waker);
            }
        }
    }

    /// Usage of the root cgroup and of kubepods, bytes, at whose crossing v1 wakes; `None`: not to
    /// be woken. Nothing happens on v2, and while the thresholds in force are close enough.
    pub fn set_thresholds(&mut self, node: Option<u64>, kubepods: Option<u64>) {
        for (waker, threshold) in [(Waker::NodeUsage, node), (Waker::KubepodsUsage, kubepods)] {
            match threshold {
                Some(bytes) => self.thresholds.insert(waker, bytes),
                None => self.thresholds.remove(&waker),
            };
            let in_force = match self.armed.get(&waker) {
                Some(Armed::Event(_, bytes)) => *bytes,
                _ => None,
            };
            let is_close = match (in_force, threshold) {
                (Some(is), Some(wanted)) => is.abs_diff(wanted) < THRESHOLD_SLACK,
                (is, wanted) => is == wanted,
            };
            if !is_close {
                self.armed.remove(&waker);
                self.arm(waker);
            }
        }
    }

    /// Waits until something wakes, at most `timeout`, rounded down to milliseconds and at least
    /// one. What woke; [`WakeSource::Timer`] alone when nothing did.
    pub fn wait(&mut self, timeout: Duration) -> BTreeSet<WakeSource> {
        let timeout = i32::try_from(timeout.as_millis())
            .unwrap_or(i32::MAX)
            .max(1);
        let timeout = EpollTimeout::try_from(timeout).expect("it is positive");
        let mut events = [EpollEvent::empty(); 8];
        // An interrupted wait is one that is over early.
        let n = self.epoll.wait(&mut events, timeout).unwrap_or(0);
        let mut woke = BTreeSet::new();
        for event in events.iter().take(n) {
            woke.extend(self.take(event.data(), event.events()));
        }
        if woke.is_empty() {
            woke.insert(WakeSource::Timer);
        }
        woke
    }

    /// Takes one event, so that it does not wake again.
    fn take(&mut self, token: u64, flags: EpollFlags) -> Option<WakeSource> {
        let ring = |bell: &Bell, source| bell.was_rung().then_some(source);
        match token {
            Bell::TRACEPOINT => return ring(&self.tracepoint, WakeSource::Tracepoint),
            Bell::OTHER => return ring(&self.other, WakeSource::Other),
            _ => {}
        }
        let waker = Waker::ALL.into_iter().find(|it| it.token() == token)?;
        let is_alive = match self.armed.get(&waker)? {
            Armed::Psi(_) => !flags.contains(EpollFlags::EPOLLERR),
            // The kernel tells again until the file is read; its EPOLLERR says nothing.
            Armed::Events(file) => file.read(&mut self.buffer).is_ok(),
            // Also signalled when the cgroup is removed.
            Armed::Event(event, _) => event.read().is_ok(),
        };
        if !is_alive {
            // Of a removed cgroup: it would wake for ever.
            self.armed.remove(&waker);
            self.states.insert(waker, WakerState::Absent);
        }
        Some(waker.source())
    }

    fn arm(&mut self, waker: Waker) {
        let armed = match self.try_arm(waker) {
            Ok(Some((armed, state))) => {
                let event = EpollEvent::new(armed.flags(), waker.token());
                self.epoll
                    .add(&armed, event)
                    .map(|()| Some((armed, state)))
                    .map_err(ArmError::refused("to poll it"))
            }
            other => other,
        };
        let state = match armed {
            Ok(Some((armed, state))) => {
                self.armed.insert(waker, armed);
                state
            }
            Ok(None) => WakerState::Absent,
            Err(ArmError::Fs(error)) if error.is_gone() => WakerState::Absent,
            Err(error) => WakerState::Failed {
                reason: chain(&error),
            },
        };
        self.states.insert(waker, state);
    }

    fn try_arm(&mut self, waker: Waker) -> Result<Option<(Armed, WakerState)>, ArmError> {
        let cgroup = match waker.is_of_kubepods() {
            true => self.kubepods.clone(),
            false => CgroupPath::root(),
        };
        match waker {
            Waker::NodePsi => {
                let path = self.root.path("/proc/pressure/memory");
                psi_trigger(open(&path, Trigger::FLAGS, Mode::empty()))
            }
            Waker::KubepodsPsi => {
                let Some(tree) = self.trees.cgroup2() else {
                    return Ok(None);
                };
                let dir = tree.dir.descend(cgroup.components())?;
                psi_trigger(openat(
                    &dir,
                    "memory.pressure",
                    Trigger::FLAGS,
                    Mode::empty(),
                ))
            }
            Waker::KubepodsEvents => {
                let Some(dir) = self.memory_dir(&cgroup, Version::V2)? else {
                    return Ok(None);
                };
                let file = HeldFile::open_in(&dir, "memory.events.local")?;
                // What is known is no news.
                file.read(&mut self.buffer)?;
                Ok(Some((Armed::Events(file), WakerState::Armed)))
            }
            Waker::NodeUsage | Waker::KubepodsUsage => {
                let threshold = self.thresholds.get(&waker).copied();
                let dir = self.memory_dir(&cgroup, Version::V1)?;
                let (Some(bytes), Some(dir)) = (threshold, dir) else {
                    return Ok(None);
                };
                let event = v1_event(&dir, "memory.usage_in_bytes", &bytes.to_string())?;
                Ok(Some((Armed::Event(event, Some(bytes)), WakerState::Armed)))
            }
            Waker::NodeLevel => {
                let Some(dir) = self.memory_dir(&cgroup, Version::V1)? else {
                    return Ok(None);
                };
                let event = v1_event(&dir, "memory.pressure_level", "medium,local")?;
                Ok(Some((Armed::Event(event, None), WakerState::Armed)))
            }
        }
    }

    /// The directory that memory is accounted in, if that is of this cgroup version.
    fn memory_dir(&self, cgroup: &CgroupPath, version: Version) -> Result<Option<Dir>, FsError> {
        if self.trees.unified != (version == Version::V2) {
            return Ok(None);
        }
        cgroup_use::dir(&self.trees, "memory", cgroup)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// The text that arms a PSI trigger; the kernel wants its final NUL.
#[derive(Clone, Copy)]
struct Trigger(&'static str);

impl Trigger {
    const FLAGS: OFlag = OFlag::O_RDWR
        .union(OFlag::O_NONBLOCK)
        .union(OFlag::O_NOFOLLOW)
        .union(OFlag::O_CLOEXEC);

    fn arm(self, fd: &OwnedFd) -> nix::Result<()> {
        nix::unistd::write(fd, self.0.as_bytes()).map(drop)
    }
}

/// A PSI trigger on a descriptor of its own, the slower one where the other is refused.
fn psi_trigger(opened: nix::Result<OwnedFd>) -> Result<Option<(Armed, WakerState)>, ArmError> {
    let fd = match opened {
        Ok(fd) => fd,
        Err(Errno::ENOENT | Errno::ENODEV | Errno::EOPNOTSUPP) => return Ok(None),
        Err(error) => return Err(ArmError::refused("a pressure file")(error)),
    };
    let state = match TRIGGER.arm(&fd) {
        Ok(()) => WakerState::Armed,
        Err(Errno::EOPNOTSUPP) => return Ok(None),
        Err(refused @ (Errno::EINVAL | Errno::EPERM | Errno::EACCES)) => {
            UNPRIVILEGED_TRIGGER
                .arm(&fd)
                .map_err(ArmError::refused("a PSI trigger"))?;
            WakerState::Slow {
                reason: format!(
                    "a window of 1 s is refused ({}), 2 s is used: CAP_SYS_RESOURCE is missing",
                    io::Error::from(refused)
                ),
            }
        }
        Err(error) => return Err(ArmError::refused("a PSI trigger")(error)),
    };
    Ok(Some((Armed::Psi(fd), state)))
}

/// An eventfd that v1 signals about a file (Documentation/admin-guide/cgroup-v1/memory.rst).
pub(super) fn v1_event(dir: &Dir, file: &str, argument: &str) -> Result<EventFd, ArmError> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(ArmError::refused("an eventfd"))?;
    let file = dir.open_file(file)?;
    let text = format!("{} {} {argument}", event.as_raw_fd(), file.as_raw_fd());
    dir.write("cgroup.event_control", &text)?;
    Ok(event)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::*;

    fn wakers() -> Wakers {
        let trees = Trees {
            unified: false,
            trees: Vec::new(),
        };
        let kubepods = CgroupPath::new("/kubepods").unwrap();
        let root = Root::at("/proc/self/fd/no-such-node");
        Wakers::open(&root, Arc::new(trees), &kubepods).unwrap()
    }

    #[test]
    fn on_a_node_without_any_source_the_timer_wakes() {
        let mut wakers = wakers();
        wakers.set_thresholds(Some(1 << 30), Some(1 << 20));
        wakers.rearm();
        for waker in Waker::ALL {
            assert_eq!(wakers.states()[&waker], WakerState::Absent, "{waker}");
        }
        for timeout in [Duration::ZERO, Duration::from_millis(2)] {
            assert_eq!(wakers.wait(timeout), BTreeSet::from([WakeSource::Timer]));
        }
    }

    #[test]
    fn bells_wake_once_however_often_they_ring() {
        let mut wakers = wakers();
        let (tracepoint, other) = (wakers.tracepoint_bell(), wakers.bell());
        let long = Duration::from_secs(60);
        std::thread::spawn(move || {
            tracepoint.ring();
            tracepoint.ring();
        })
        .join()
        .unwrap();
        assert_eq!(wakers.wait(long), BTreeSet::from([WakeSource::Tracepoint]));
        let short = Duration::from_millis(1);
        assert_eq!(wakers.wait(short), BTreeSet::from([WakeSource::Timer]));
        wakers.tracepoint_bell().ring();
        other.ring();
        let both = BTreeSet::from([WakeSource::Tracepoint, WakeSource::Other]);
        assert_eq!(wakers.wait(long), both);
    }
}
