//! Starts a program in two moves: a child that is ready and waits at a gate, and the opening of
//! the gate. Between the two the caller can look at the child, and put down who it is.
//!
//! Invariant: the program runs only if [`Child::open_gate`] was called. When the caller dies or
//! drops the [`Child`] before that, the child ends.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{pipe2, read, write};

use super::dir::Dir;
use super::syscall::{ChildImage, Message, PointerList, RenameImage, Step, clone_gated};

/// What the child is to become. Every descriptor is close-on-exec.
#[derive(Debug)]
pub struct Launch {
    /// A path; no search.
    pub program: CString,
    pub argv: Vec<CString>,
    /// `NAME=value` each.
    pub envp: Vec<CString>,
    pub working_dir: CString,
    pub stdin: OwnedFd,
    /// Standard output and standard error.
    pub output: OwnedFd,
    /// `cgroup.procs` files, open for writing, to join one after the other.
    pub join: Vec<OwnedFd>,
    pub limits: Limits,
    /// Done by the child after the gate and before its program: so the new name is there if the
    /// program may have run, and the old one if it has not.
    pub rename: Rename,
    /// `None`: the caller's.
    pub identity: Option<Identity>,
}

/// Limits of a program where its caller has raised its own; `None`: the caller's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The soft one, lowered to the hard one of the caller.
    pub open_files: Option<u64>,
    /// Soft and hard, bytes. The hard one is at most the caller's.
    pub locked_memory: Option<(u64, u64)>,
}

/// Who a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary ones.
    pub groups: Vec<u32>,
}

/// A rename inside one directory.
#[derive(Debug)]
pub struct Rename {
    pub dir: Dir,
    pub from: CString,
    pub to: CString,
}

/// A child that is not its program yet, or just became it.
#[derive(Debug)]
pub struct Child {
    pub pid: u32,
    pub pidfd: OwnedFd,
    gate: OwnedFd,
    progress: OwnedFd,
}

/// What a child told.
#[derive(Debug)]
pub enum Progress {
    /// It waits at the gate.
    Ready,
    /// A step failed; the child ends.
    Failed {
        step: Step,
        /// Which entry of [`Launch::join`], for [`Step::JoinCgroup`].
        index: usize,
        source: io::Error,
    },
    /// It will tell no more: it has ended or, after the gate, runs its program.
    Closed,
    /// Nothing within the time given.
    Silent,
}

/// Makes the child; with `cgroup`, a directory of cgroup v2, it is born there.
pub fn launch(launch: &Launch, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Child> {
    let (gate_out, gate_in) = pipe2(OFlag::O_CLOEXEC)?;
    let (progress_out, progress_in) = pipe2(OFlag::O_CLOEXEC)?;
    let join: Vec<_> = launch.join.iter().map(AsFd::as_fd).collect();
    let mut keep = vec![
        launch.stdin.as_fd(),
        launch.output.as_fd(),
        launch.rename.dir.as_fd(),
        gate_out.as_fd(),
        progress_in.as_fd(),
    ];
    keep.extend(&join);
    let close = gaps(&keep)?;
    let open_files = match launch.limits.open_files {
        Some(soft) => {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
            Some(libc::rlimit {
                rlim_cur: soft.min(hard),
                rlim_max: hard,
            })
        }
        None => None,
    };
    let locked_memory = launch.limits.locked_memory;
    let image = ChildImage {
        program: &launch.program,
        argv: PointerList::new(&launch.argv),
        envp: PointerList::new(&launch.envp),
        working_dir: &launch.working_dir,
        stdin: launch.stdin.as_fd(),
        output: launch.output.as_fd(),
        join,
        gate: gate_out.as_fd(),
        progress: progress_in.as_fd(),
        open_files,
        locked_memory: locked_memory
            .map(|(rlim_cur, rlim_max)| libc::rlimit { rlim_cur, rlim_max }),
        rename: RenameImage {
            dir: launch.rename.dir.as_fd(),
            from: &launch.rename.from,
            to: &launch.rename.to,
        },
        identity: launch.identity.as_ref(),
        close,
    };
    let (pid, pidfd) = clone_gated(&image, cgroup)?;
    Ok(Child {
        pid,
        pidfd,
        gate: gate_in,
        progress: progress_out,
    })
}

/// The descriptors from 3 up that are not among `keep`, as ranges with both ends included.
fn gaps(keep: &[BorrowedFd<'_>]) -> io::Result<Vec<(u32, u32)>> {
    let mut keep: Vec<u32> = keep
        .iter()
        .map(|fd| u32::try_from(fd.as_raw_fd()).map_err(io::Error::other))
        .collect::<Result<_, _>>()?;
    keep.sort_unstable();
    let mut next = 3;
    let mut gaps = Vec::new();
    for fd in keep {
        if fd < next {
            // Putting the standard streams in place would overwrite it. The standard library
            // opens 0 to 2 before main.
            let message = format!("descriptor {fd} stands in the place of a standard stream");
            return Err(io::Error::other(message));
        }
        if fd > next {
            gaps.push((next, fd - 1));
        }
        next = fd + 1;
    }
    gaps.push((next, u32::MAX));
    Ok(gaps)
}

impl Child {
    /// Closes the gate, unless it was opened before.
    pub fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }

    /// Waits until the child tells something, at most `timeout`.
    pub fn progress(&self, timeout: Duration) -> io::Result<Progress> {
        if !is_readable_within(self.progress.as_fd(), timeout)? {
            return Ok(Progress::Silent);
        }
        let mut bytes = [0; Message::SIZE];
        let n = read(&self.progress, &mut bytes)?;
        if n == 0 {
            return Ok(Progress::Closed);
        }
        let mut fields = bytes
            .chunks_exact(4)
            .map(|it| <[u8; 4]>::try_from(it).unwrap_or_default());
        let mut next = || fields.next().unwrap_or_default();
        let (step, index, errno) = (
            u32::from_ne_bytes(next()),
            u32::from_ne_bytes(next()),
            i32::from_ne_bytes(next()),
        );
        let step = Step::ALL.into_iter().find(|it| *it as u32 == step);
        match step {
            Some(Step::Ready) if errno == 0 => Ok(Progress::Ready),
            Some(step) if n == Message::SIZE => Ok(Progress::Failed {
                step,
                index: usize::try_from(index).unwrap_or(usize::MAX),
                source: io::Error::from_raw_os_error(errno),
            }),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a garbled message from the child",
            )),
        }
    }

    /// Lets the child go on to its program.
    pub fn open_gate(&self) -> io::Result<()> {
        write(&self.gate, b"g")?;
        Ok(())
    }
}

/// Whether `fd` has something to read, or has come to its end, before `timeout` is over. A
/// process descriptor is readable once its process has ended.
pub fn is_readable_within(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let millis = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    loop {
        match poll(&mut fds, millis) {
            Ok(n) => return Ok(n > 0),
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
