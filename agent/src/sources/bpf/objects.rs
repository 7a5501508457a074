//! The eBPF objects that the build embedded; empty ones where it had no tool chain.

use aya::include_bytes_aligned;

use super::Stream;

static OOM: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/oom.o"));
static PROCESS: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/process.o"));
static CGROUP: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/cgroup.o"));
static STALL: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/stall.o"));
pub(super) static DEVICE: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/device.o"));

pub(super) fn of(stream: Stream) -> &'static [u8] {
    match stream {
        Stream::Oom => OOM,
        Stream::Process => PROCESS,
        Stream::Cgroup => CGROUP,
        Stream::Stall => STALL,
    }
}

/// The name of a stream's ring in its object.
pub(super) fn ring(stream: Stream) -> &'static str {
    match stream {
        Stream::Oom => "OOM_EVENTS",
        Stream::Process => "PROCESS_EVENTS",
        Stream::Cgroup => "CGROUP_EVENTS",
        Stream::Stall => "STALL_EVENTS",
    }
}

/// Whether this build holds programs at all.
pub(super) fn are_built() -> bool {
    [OOM, PROCESS, CGROUP, STALL, DEVICE]
        .iter()
        .all(|it| !it.is_empty())
}
