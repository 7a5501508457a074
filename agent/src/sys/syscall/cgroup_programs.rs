//! eBPF programs that belong to a cgroup and live as long as it does, whoever attached them. The
//! library attaches by links alone, which end with the agent, and detaches what it lists.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;

use super::check;

/// `bpf(2)` commands and flags, include/uapi/linux/bpf.h.
const BPF_PROG_ATTACH: u32 = 8;
const BPF_PROG_DETACH: u32 = 9;
const BPF_PROG_QUERY: u32 = 16;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_F_ALLOW_MULTI: u32 = 1 << 1;
const BPF_F_REPLACE: u32 = 1 << 2;

/// More programs than the kernel lets a cgroup have of one type (`BPF_CGROUP_MAX_PROGS`).
const MAX_PROGRAMS: usize = 64;

/// The part of `union bpf_attr` for attaching and detaching.
#[repr(C)]
#[derive(Default)]
struct Attach {
    target_fd: u32,
    program_fd: u32,
    attach_type: u32,
    flags: u32,
    replaced_fd: u32,
}

/// The part of `union bpf_attr` for querying, whole as of Linux 6.18: the kernel writes to its last
/// field without asking for the size that it was given.
#[repr(C)]
#[derive(Default)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    n_programs: u32,
    reserved: u32,
    program_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}
const _: () = assert!(size_of::<Query>() == 64);

/// Ids of the device programs attached to this cgroup itself, links included, in the order in which
/// they run. `EINVAL`: the kernel has none (CONFIG_CGROUP_BPF), or the directory is no cgroup v2.
pub fn device_programs(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = [0_u32; MAX_PROGRAMS];
    let mut query = Query {
        target_fd: unsigned(cgroup),
        attach_type: BPF_CGROUP_DEVICE,
        program_ids: (&raw mut ids).expose_provenance() as u64,
        n_programs: 64,
        ..Query::default()
    };
    // SAFETY: `query` is at least as long as what the kernel writes of it (see there), and it writes
    // at most `n_programs` ids to `ids`, which has as many. Both outlive the call.
    unsafe { bpf(BPF_PROG_QUERY, (&raw mut query).cast(), size_of::<Query>()) }?;
    let n = usize::try_from(query.n_programs).unwrap_or(usize::MAX);
    Ok(ids.into_iter().take(n).collect())
}

/// Attaches a device program beside those of others, in the place of `replaced` if that is given:
/// no access goes unchecked between the two. It stays until it is detached or the cgroup is removed
/// (Linux 5.6). `EPERM` where a cgroup above has a program that tolerates no other.
pub fn attach_device_program(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    replaced: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attach = Attach {
        target_fd: unsigned(cgroup),
        program_fd: unsigned(program),
        attach_type: BPF_CGROUP_DEVICE,
        flags: BPF_F_ALLOW_MULTI,
        replaced_fd: 0,
    };
    if let Some(replaced) = replaced {
        attach.flags |= BPF_F_REPLACE;
        attach.replaced_fd = unsigned(replaced);
    }
    // SAFETY: the kernel reads as many bytes as the structure has and keeps no pointer.
    unsafe {
        bpf(
            BPF_PROG_ATTACH,
            (&raw mut attach).cast(),
            size_of::<Attach>(),
        )
    }
}

/// Detaches what [`attach_device_program`] attached. `ENOENT`: it is not there.
pub fn detach_device_program(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut detach = Attach {
        target_fd: unsigned(cgroup),
        program_fd: unsigned(program),
        attach_type: BPF_CGROUP_DEVICE,
        ..Attach::default()
    };
    // SAFETY: the kernel reads as many bytes as the structure has and keeps no pointer.
    unsafe {
        bpf(
            BPF_PROG_DETACH,
            (&raw mut detach).cast(),
            size_of::<Attach>(),
        )
    }
}

fn unsigned(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).expect("an open descriptor is not negative")
}

/// # Safety
///
/// `attributes` points to `size` bytes that hold the attributes of `command`, writable where the
/// kernel writes to them, and so does every pointer among them to what `command` says.
unsafe fn bpf(command: u32, attributes: *mut libc::c_void, size: usize) -> io::Result<()> {
    // SAFETY: what the caller promises is what the call asks for.
    check(unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size) })
}
