//! Calls that have no safe wrapper: processes by descriptor, and the birth of one; eBPF programs of
//! cgroups, and what waits in their rings; what the allocator keeps, and whom the C library asks for names.
//!
//! Invariant: between `clone3` and `execve` the child makes system calls on memory that was
//! prepared before, and nothing else. The agent has many threads and the child has one: a lock
//! that another thread held at the clone, the allocator's above all, stays locked for ever.
#![expect(
    unsafe_code,
    reason = "the one file for calls that neither std nor nix wraps, or not for use after a clone"
)]

mod cgroup_programs;
mod ring;

use std::convert::Infallible;
use std::ffi::{CStr, CString, c_char, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow};

use super::launch::Identity;

pub use self::cgroup_programs::{attach_device_program, detach_device_program, device_programs};
pub use self::ring::peek_ring;

// setgroups, setresgid and setresuid take 16 bit ids on old 32 bit architectures.
const _: () = assert!(size_of::<usize>() == 8, "a 64 bit architecture");

/// Keeps what the allocator holds close to what is used, for a program that lives long, peaks
/// seldom and allocates little. To be called before the first thread is started.
///
/// By default glibc gives each thread a heap of its own and keeps up to 64 MiB of freed memory at
/// the top of each, by the largest block that was ever freed. Does nothing with another C library.
pub fn limit_heap() {
    #[cfg(target_env = "gnu")]
    for (option, value) in [
        (libc::M_ARENA_MAX, 1),
        // In bytes, the value that it starts with; setting it keeps it there.
        (libc::M_TRIM_THRESHOLD, 128 << 10),
    ] {
        // SAFETY: two integers, of an option that exists. A refused value leaves the default.
        unsafe { libc::mallopt(option, value) };
    }
}

/// What is made from now on others may read and enter, unless its mode says otherwise: users of containers go through
/// the directories of their pods.
pub fn set_common_umask() {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
}

/// Gives freed memory back to the kernel, also what lies below memory in use. For after a peak;
/// takes a few milliseconds. Does nothing with another C library than glibc.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: one integer. The call takes the allocator's own locks and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has host names looked up in `/etc/hosts` and DNS alone, which are in glibc itself since 2.34, whatever
/// `/etc/nsswitch.conf` names. To be called before the first thread is started.
///
/// Every other service is a library of the host (`libnss_*.so.2`), made for the host's glibc. A program that is linked
/// statically has another one, and may crash with such a library in it. Does nothing with another C library.
pub fn limit_name_services() {
    #[cfg(target_env = "gnu")]
    {
        unsafe extern "C" {
            /// `nss.h`.
            fn __nss_configure_lookup(
                database: *const c_char,
                services: *const c_char,
            ) -> libc::c_int;
        }
        // SAFETY: two strings that live on and end in a zero byte. No other thread looks a name up meanwhile. A
        // refusal leaves what the file names.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}

/// How a process ended, as `wait` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    Code(u8),
    Signal { signal: u8, core_dumped: bool },
}

impl ProcessExit {
    /// From the kernel's `exit_code`: the signal in the low 7 bits, then the core dump flag, then
    /// the status in the second byte.
    fn from_wait_status(status: i32) -> Self {
        let [low, code, ..] = status.to_le_bytes();
        match low & 0x7f {
            0 => Self::Code(code),
            signal => Self::Signal {
                signal,
                core_dumped: low & 0x80 != 0,
            },
        }
    }
}

/// Whether somebody has a regular file open to write to it (fcntl(2), `F_SETLEASE`). False also where that cannot be
/// told: a file of another user without CAP_LEASE, or a file system without leases. Who opens it to write in this
/// moment waits until the moment is over.
///
/// `file`: open to read alone.
pub fn has_writer(file: BorrowedFd<'_>) -> bool {
    // include/uapi/asm-generic/fcntl.h
    const F_SETSIG: libc::c_int = 10;
    // SAFETY: three integers. The calls touch no memory.
    let control = |command, argument: libc::c_int| unsafe {
        libc::fcntl(file.as_raw_fd(), command, argument)
    };
    // Who opens the file has the holder of a lease sent SIGIO, which ends a program; SIGURG does nothing.
    if control(F_SETSIG, libc::SIGURG) != 0 {
        return false;
    }
    if control(libc::F_SETLEASE, libc::F_RDLCK) != 0 {
        return Errno::last() == Errno::EAGAIN;
    }
    control(libc::F_SETLEASE, libc::F_UNLCK);
    false
}

/// A descriptor for the process `pid`, thread group leader of it (Linux 5.3). `ESRCH`: there is
/// none.
pub fn pidfd_open(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = descriptor(fd)?;
    // SAFETY: the kernel just made this descriptor for us, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sends a signal to the process of `pidfd`; never to another one with the same pid.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: u8) -> io::Result<()> {
    let info = ptr::null::<libc::siginfo_t>();
    let signal = i32::from(signal);
    // SAFETY: a null info asks the kernel to fill in its own; the other arguments are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            info,
            0,
        )
    };
    check(result)
}

/// Frees the memory of a process that SIGKILL is on its way to, in the time of the caller (Linux
/// 5.15, mm/oom_kill.c). `EINVAL`: it is not dying, or shares its memory with one that is not;
/// `ESRCH`: it frees its memory itself by now, or has none; `EAGAIN`: only some was freed.
pub fn process_mrelease(pidfd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two integers. The kernel touches no memory but that of a process that dies.
    check(unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd.as_raw_fd(), 0) })
}

/// The directory that has this inode number in the kernfs of `mount`, wherever in it (Linux 5.5,
/// fs/kernfs/mount.c: `kernfs_fh_to_dentry`); CAP_DAC_READ_SEARCH. Nothing can be read through the descriptor.
/// `ESTALE`: there is none.
pub fn open_kernfs_dir(mount: BorrowedFd<'_>, inode: u64) -> io::Result<OwnedFd> {
    /// `struct file_handle` of include/linux/fs.h, as kernfs makes them.
    #[repr(C)]
    struct FileHandle {
        n_bytes: u32,
        kind: i32,
        inode: [u8; 8],
    }
    /// `FILEID_KERNFS` of include/linux/exportfs.h.
    const FILEID_KERNFS: i32 = 0xfe;

    let mut handle = FileHandle {
        n_bytes: 8,
        kind: FILEID_KERNFS,
        inode: inode.to_ne_bytes(),
    };
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the handle is as long as it says, and the kernel keeps no pointer to it.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw mut handle,
            flags,
        )
    };
    let fd = descriptor(fd)?;
    // SAFETY: the kernel just made this descriptor for us, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What becomes of the process that [`wait_child`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reap {
    /// It goes away.
    Yes,
    /// It stays a zombie, to be waited for again.
    Later,
}

/// How the child behind `pidfd` ended, `None` while it runs. `ECHILD`: not a child of this
/// process, or reaped already.
pub fn wait_child(pidfd: BorrowedFd<'_>, reap: Reap) -> io::Result<Option<ProcessExit>> {
    let options = libc::WEXITED
        | libc::WNOHANG
        | match reap {
            Reap::Yes => 0,
            Reap::Later => libc::WNOWAIT,
        };
    // SAFETY: siginfo_t holds integers, pointers and unions of them; all zero is a value of it.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let fd = libc::id_t::try_from(pidfd.as_raw_fd()).expect("an open descriptor is not negative");
    // SAFETY: `info` is a siginfo_t of ours, written by the call and not kept by it.
    let result = unsafe { libc::waitid(libc::P_PIDFD, fd, &raw mut info, options) };
    check(c_long::from(result))?;
    // SAFETY: waitid left the structure as it was, zero, or filled in the fields of SIGCHLD.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if pid == 0 {
        return Ok(None);
    }
    let [number, ..] = status.to_le_bytes();
    Ok(Some(match info.si_code {
        libc::CLD_EXITED => ProcessExit::Code(number),
        code => ProcessExit::Signal {
            signal: number,
            core_dumped: code == libc::CLD_DUMPED,
        },
    }))
}

/// How the process behind `pidfd` ended, whoever reaped it: `PIDFD_GET_INFO` with
/// `PIDFD_INFO_EXIT` (Linux 6.15, include/uapi/linux/pidfd.h). `None` before it is reaped, and
/// always on an older kernel.
pub fn pidfd_exit(pidfd: BorrowedFd<'_>) -> Option<ProcessExit> {
    /// `struct pidfd_info`, its first published form.
    #[repr(C)]
    #[derive(Default)]
    struct PidfdInfo {
        mask: u64,
        cgroup_id: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const SIZE: usize = size_of::<PidfdInfo>();
    const _: () = assert!(SIZE == 64);
    const PIDFD_GET_INFO: nix::sys::ioctl::ioctl_num_type =
        nix::request_code_readwrite!(0xff, 11, SIZE);
    const PIDFD_INFO_EXIT: u64 = 1 << 3;

    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the request carries the size of the structure, so the kernel writes no more than it,
    // and it keeps no pointer.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (result == 0 && info.mask & PIDFD_INFO_EXIT != 0)
        .then(|| ProcessExit::from_wait_status(info.exit_code))
}

/// What the child does on its way to its program, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    CloseDescriptors,
    ResetSignals,
    NewSession,
    AdoptOrphans,
    JoinCgroup,
    StandardStreams,
    Limits,
    WorkingDir,
    /// All of the above is done; the child waits at the gate.
    Ready,
    Rename,
    SetGroups,
    SetGid,
    SetUid,
    Exec,
}

impl Step {
    pub const ALL: [Self; 14] = [
        Self::CloseDescriptors,
        Self::ResetSignals,
        Self::NewSession,
        Self::AdoptOrphans,
        Self::JoinCgroup,
        Self::StandardStreams,
        Self::Limits,
        Self::WorkingDir,
        Self::Ready,
        Self::Rename,
        Self::SetGroups,
        Self::SetGid,
        Self::SetUid,
        Self::Exec,
    ];

    /// The system call of the step.
    pub fn call(self) -> &'static str {
        match self {
            Self::CloseDescriptors => "close_range",
            Self::ResetSignals => "rt_sigaction",
            Self::NewSession => "setsid",
            Self::AdoptOrphans => "prctl",
            Self::JoinCgroup => "write cgroup.procs",
            Self::StandardStreams => "dup3",
            Self::Limits => "prlimit64",
            Self::WorkingDir => "chdir",
            Self::Ready => "write",
            Self::Rename => "renameat2",
            Self::SetGroups => "setgroups",
            Self::SetGid => "setresgid",
            Self::SetUid => "setresuid",
            Self::Exec => "execve",
        }
    }
}

/// The one message of the child, whole in one `write` (far below `PIPE_BUF`).
#[repr(C)]
pub(super) struct Message {
    pub(super) step: u32,
    /// Which of several, for [`Step::JoinCgroup`].
    pub(super) index: u32,
    /// 0 for [`Step::Ready`].
    pub(super) errno: i32,
}

impl Message {
    pub(super) const SIZE: usize = size_of::<Self>();
}

/// All that the child needs, in memory that stays as it is until the child has gone on to its
/// program.
pub(super) struct ChildImage<'a> {
    pub(super) program: &'a CStr,
    pub(super) argv: PointerList<'a>,
    pub(super) envp: PointerList<'a>,
    pub(super) working_dir: &'a CStr,
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) output: BorrowedFd<'a>,
    /// `cgroup.procs` files to write to.
    pub(super) join: Vec<BorrowedFd<'a>>,
    pub(super) gate: BorrowedFd<'a>,
    pub(super) progress: BorrowedFd<'a>,
    pub(super) open_files: Option<libc::rlimit>,
    pub(super) locked_memory: Option<libc::rlimit>,
    pub(super) rename: RenameImage<'a>,
    pub(super) identity: Option<&'a Identity>,
    /// Ranges of descriptors to close, both ends included: all from 3 but the ones above.
    pub(super) close: Vec<(u32, u32)>,
}

/// A rename inside one directory.
pub(super) struct RenameImage<'a> {
    pub(super) dir: BorrowedFd<'a>,
    pub(super) from: &'a CStr,
    pub(super) to: &'a CStr,
}

/// Strings as `execve` wants them: pointers, with a null one at the end.
pub(super) struct PointerList<'a> {
    pointers: Vec<*const c_char>,
    _strings: std::marker::PhantomData<&'a CString>,
}

impl<'a> PointerList<'a> {
    pub(super) fn new(strings: &'a [CString]) -> Self {
        let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
        pointers.push(ptr::null());
        Self {
            pointers,
            _strings: std::marker::PhantomData,
        }
    }
}

/// Makes a child that goes through the steps up to [`Step::Ready`], waits for one byte at the
/// gate, and goes on to its program. When the gate closes instead, it ends. With `cgroup`, the
/// directory of a cgroup v2, it is born there (Linux 5.7).
///
/// Gives its pid and a descriptor of it. Costs a copy of the page tables of the agent.
pub(super) fn clone_gated(
    image: &ChildImage<'_>,
    cgroup: Option<BorrowedFd<'_>>,
) -> io::Result<(u32, OwnedFd)> {
    const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    const CLONE_PIDFD: u64 = 1 << 12;

    let unsigned = |fd: RawFd| u64::try_from(fd).expect("an open descriptor is not negative");
    let mut pidfd: RawFd = -1;
    let mut args = libc::clone_args {
        // No handler of the agent ever runs in the child.
        flags: CLONE_PIDFD | CLONE_CLEAR_SIGHAND,
        pidfd: (&raw mut pidfd).expose_provenance() as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = unsigned(cgroup.as_raw_fd());
    }
    // A signal sent to the process group of the agent waits until the child has its own session.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
    let size = size_of::<libc::clone_args>();
    // SAFETY: `args` is a valid clone_args of `size` bytes whose only pointer is to `pidfd`, which
    // outlives the call. Without CLONE_VM and with no stack given the call is a fork: the child
    // goes on here on its own copy of this stack. It then only calls `child`, which keeps to what
    // a child of a process with threads may do (see the head of this file).
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size) };
    if pid == 0 {
        child(image);
    }
    let result = check(pid);
    mask.thread_set_mask()?;
    result?;
    let pid = u32::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: clone3 succeeded with CLONE_PIDFD, so the kernel stored a new descriptor there.
    Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))
}

/// Gives the calling thread descriptors of its own, of which it has 0 to 2 and no other (Linux 5.9).
/// It must use none that is open now; whoever has them keeps them.
pub(super) fn unshare_descriptors() -> io::Result<()> {
    let flags = libc::CLOSE_RANGE_UNSHARE;
    // SAFETY: three integers. What is closed is a copy for this thread alone, which by the contract
    // above uses none of it.
    check(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, flags) })
}

/// A step and its error number.
struct Failure {
    step: Step,
    index: u32,
    errno: i32,
}

fn child(image: &ChildImage<'_>) -> ! {
    let Err(failure) = walk(image);
    // What a shell makes of it; seen by those who only learn the exit status.
    let status = if failure.errno == libc::ENOENT {
        127
    } else {
        126
    };
    // The parent may be gone. Nobody is left to tell then.
    let _ = tell(image, failure.step, failure.index, failure.errno);
    exit(status)
}

fn walk(image: &ChildImage<'_>) -> Result<Infallible, Failure> {
    // First of all: a copy of the gate of another child would keep that one waiting after the
    // agent's death.
    for (first, last) in &image.close {
        close_range(*first, *last).at(Step::CloseDescriptors)?;
    }
    for signal in 1..=64 {
        reset_signal(signal).at(Step::ResetSignals)?;
    }
    new_session().at(Step::NewSession)?;
    adopt_orphans().at(Step::AdoptOrphans)?;
    reset_priority();
    for (index, procs) in (0..).zip(&image.join) {
        write(*procs, b"0".as_ptr(), 1).map_err(|errno| Failure {
            step: Step::JoinCgroup,
            index,
            errno,
        })?;
    }
    allow_all_cpus();
    for (from, to) in [
        (image.stdin, libc::STDIN_FILENO),
        (image.output, libc::STDOUT_FILENO),
        (image.output, libc::STDERR_FILENO),
    ] {
        duplicate(from, to).at(Step::StandardStreams)?;
    }
    set_umask();
    if let Some(limit) = &image.open_files {
        set_limit(libc::RLIMIT_NOFILE, limit).at(Step::Limits)?;
    }
    if let Some(limit) = &image.locked_memory {
        set_limit(libc::RLIMIT_MEMLOCK, limit).at(Step::Limits)?;
    }
    change_dir(image.working_dir).at(Step::WorkingDir)?;

    tell(image, Step::Ready, 0, 0).at(Step::Ready)?;
    if !wait_at_gate(image.gate) {
        exit(126);
    }

    rename(&image.rename).at(Step::Rename)?;
    if let Some(identity) = image.identity {
        set_groups(&identity.groups).at(Step::SetGroups)?;
        set_gid(identity.gid).at(Step::SetGid)?;
        set_uid(identity.uid).at(Step::SetUid)?;
    }
    unblock_signals().at(Step::ResetSignals)?;
    Err(Failure {
        step: Step::Exec,
        index: 0,
        errno: exec(image),
    })
}

trait At {
    fn at(self, step: Step) -> Result<(), Failure>;
}

impl At for Result<(), i32> {
    fn at(self, step: Step) -> Result<(), Failure> {
        self.map_err(|errno| Failure {
            step,
            index: 0,
            errno,
        })
    }
}

fn close_range(first: u32, last: u32) -> Result<(), i32> {
    // SAFETY: three integers. The child is a process of its own, so the descriptors it closes are
    // copies; none of those that it goes on to use is in a range.
    errno_of(unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) })
}

/// To the default disposition. `execve` does that for handlers, but keeps what is ignored.
fn reset_signal(signal: i32) -> Result<(), i32> {
    /// The kernel's `struct sigaction` with all fields zero, on every 64 bit architecture:
    /// SIG_DFL, no flags, no restorer, an empty mask.
    static DEFAULT: [u64; 4] = [0; 4];
    let old = ptr::null_mut::<u64>();
    // SAFETY: the kernel reads at most 32 bytes from DEFAULT and, with a null, writes nothing.
    let result = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), old, 8) };
    match errno_of(result) {
        // SIGKILL and SIGSTOP have no other disposition.
        Err(libc::EINVAL) => Ok(()),
        other => other,
    }
}

fn unblock_signals() -> Result<(), i32> {
    static NONE: u64 = 0;
    let (new, old) = (&raw const NONE, ptr::null_mut::<u64>());
    let how = libc::SIG_SETMASK;
    // SAFETY: the kernel reads 8 bytes, the size given, from NONE and, with a null, writes nothing.
    errno_of(unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, new, old, 8) })
}

fn new_session() -> Result<(), i32> {
    // SAFETY: no arguments.
    errno_of(unsafe { libc::syscall(libc::SYS_setsid) })
}

/// What its descendants leave behind becomes its own, as the first process of a PID namespace has it: whatever
/// cgroup a process goes to, it can be told whose it is (Linux 3.4, outlives the exec).
fn adopt_orphans() -> Result<(), i32> {
    // SAFETY: integers.
    errno_of(unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

fn write(fd: BorrowedFd<'_>, bytes: *const u8, len: usize) -> Result<(), i32> {
    // SAFETY: both callers pass a live object of `len` bytes; the kernel only reads it.
    errno_of(unsafe { libc::syscall(libc::SYS_write, fd.as_raw_fd(), bytes, len) })
}

fn duplicate(from: BorrowedFd<'_>, to: RawFd) -> Result<(), i32> {
    // SAFETY: integers. `to` is a standard stream of the child, which owns it.
    errno_of(unsafe { libc::syscall(libc::SYS_dup3, from.as_raw_fd(), to, 0) })
}

/// 022, whatever the agent's is: files that containers make are readable by others, as with
/// every runtime.
fn set_umask() {
    // SAFETY: one integer; the call cannot fail.
    unsafe { libc::syscall(libc::SYS_umask, 0o022) };
}

/// To what a process has by default: shares and limits of CPU time hold for SCHED_OTHER alone, and a cgroup of v1
/// without time for others takes no realtime process (kernel/sched/core.c, Linux 6.18: `cpu_cgroup_can_attach`). What
/// is refused stays as it is.
fn reset_priority() {
    static PRIORITY: libc::sched_param = libc::sched_param { sched_priority: 0 };
    const IOPRIO_WHO_PROCESS: i32 = 1;
    const IOPRIO_CLASS_NONE: i32 = 0;
    let (which, policy) = (libc::PRIO_PROCESS, libc::SCHED_OTHER);
    // SAFETY: the kernel reads PRIORITY whole; the rest are integers, and pid 0 is the caller.
    unsafe {
        libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const PRIORITY);
        libc::syscall(libc::SYS_setpriority, which, 0, 0);
        libc::syscall(
            libc::SYS_ioprio_set,
            IOPRIO_WHO_PROCESS,
            0,
            IOPRIO_CLASS_NONE,
        );
    }
}

/// Of those that its cgroup has: since Linux 6.2 (kernel/sched/core.c: `user_cpus_ptr`) CPUs that the agent was bound
/// to, as by `CPUAffinity=` of its unit, would hold for its children whatever their cpuset is. Where it is refused the
/// cpuset alone decides, as before.
fn allow_all_cpus() {
    static ALL: [u64; 128] = [u64::MAX; 128];
    // SAFETY: the kernel reads at most the size given from ALL; pid 0 is the caller.
    unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            0,
            size_of_val(&ALL),
            ALL.as_ptr(),
        )
    };
}

fn set_limit(resource: libc::__rlimit_resource_t, limit: &libc::rlimit) -> Result<(), i32> {
    let (new, old) = (&raw const *limit, ptr::null_mut::<libc::rlimit>());
    // SAFETY: the kernel reads two 64 bit numbers, which an rlimit is here, and, with a null, writes nothing; pid 0 is the caller.
    errno_of(unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, new, old) })
}

fn change_dir(path: &CStr) -> Result<(), i32> {
    // SAFETY: a NUL-terminated string that lives on.
    errno_of(unsafe { libc::syscall(libc::SYS_chdir, path.as_ptr()) })
}

fn tell(image: &ChildImage<'_>, step: Step, index: u32, errno: i32) -> Result<(), i32> {
    let message = Message {
        step: step as u32,
        index,
        errno,
    };
    let bytes = (&raw const message).cast::<u8>();
    write(image.progress, bytes, Message::SIZE)
}

/// True: go. False: the agent is gone or has given up.
fn wait_at_gate(gate: BorrowedFd<'_>) -> bool {
    let mut byte = 0u8;
    loop {
        // SAFETY: `byte` is one writable byte of this frame.
        let n = unsafe { libc::syscall(libc::SYS_read, gate.as_raw_fd(), &raw mut byte, 1) };
        match errno_of(n) {
            // A stop and a continue of the process: signals are blocked, stops are not.
            Err(libc::EINTR) => {}
            Err(_) => return false,
            Ok(()) => return n == 1,
        }
    }
}

fn rename(image: &RenameImage<'_>) -> Result<(), i32> {
    let (dir, from, to) = (
        image.dir.as_raw_fd(),
        image.from.as_ptr(),
        image.to.as_ptr(),
    );
    // SAFETY: two NUL-terminated strings that live on, below an open directory.
    errno_of(unsafe { libc::syscall(libc::SYS_renameat2, dir, from, dir, to, 0) })
}

// The C library's functions for ids change every thread of the process and take locks for that.

fn set_groups(groups: &[libc::gid_t]) -> Result<(), i32> {
    // SAFETY: a list and its length, which lives on.
    errno_of(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

fn set_gid(gid: libc::gid_t) -> Result<(), i32> {
    // SAFETY: three integers.
    errno_of(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })
}

fn set_uid(uid: libc::uid_t) -> Result<(), i32> {
    // SAFETY: three integers.
    errno_of(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

/// The error number; there is none to return where it works.
fn exec(image: &ChildImage<'_>) -> i32 {
    let (argv, envp) = (image.argv.pointers.as_ptr(), image.envp.pointers.as_ptr());
    // SAFETY: a NUL-terminated path and two lists of NUL-terminated strings, each list ending in a
    // null (`PointerList`), all borrowed by `image`.
    unsafe { libc::syscall(libc::SYS_execve, image.program.as_ptr(), argv, envp) };
    Errno::last_raw()
}

/// Ends the process without running what the agent registered for its own end.
fn exit(status: i32) -> ! {
    loop {
        // SAFETY: one integer; the call does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// The error number of a call that failed. Allocates nothing.
fn errno_of(result: c_long) -> Result<(), i32> {
    if result == -1 {
        Err(Errno::last_raw())
    } else {
        Ok(())
    }
}

fn check(result: c_long) -> io::Result<()> {
    errno_of(result).map_err(io::Error::from_raw_os_error)
}

fn descriptor(result: c_long) -> io::Result<RawFd> {
    check(result)?;
    RawFd::try_from(result).map_err(io::Error::other)
}
