//! The maps that every object has. Those of one stream stand in its module.
//!
//! Ring sizes are powers of two and multiples of the page size, as the kernel wants. A full ring
//! loses the newest event, which is counted in [`LOSSES`] and repaired by the agent from files.

use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::macros::btf_map;
use aya_log_ebpf::warn;
use ebpf_abi::Watch;

/// An array of one: read at every event, so it must be the cheapest lookup there is (it is inlined).
#[btf_map]
pub(crate) static WATCH: Array<Watch, 1> = Array::new();

/// Events that found the ring full. Per CPU, so that counting needs no atomic.
#[btf_map]
pub(crate) static LOSSES: PerCpuArray<u64, 1> = PerCpuArray::new();

/// 272 bytes and a header of 8 per kill. A burst of 1 000 while the agent restarts needs 274 KiB; 1 MiB
/// holds 3 744.
pub(crate) const OOM_RING_BYTES: usize = 1 << 20;

/// 104 bytes with header. 10 000 forks per second, each with exec and exit, are 3.1 MB/s: 4 MiB hold
/// 1.3 s of that without a reader, longer than any pass of the agent and than its restart.
pub(crate) const PROCESS_RING_BYTES: usize = 4 << 20;

/// 200 bytes with header. A node that starts 250 pods at once makes about 500 cgroups with four events
/// each, 391 KiB; 1 MiB leaves room for the same number to end.
pub(crate) const CGROUP_RING_BYTES: usize = 1 << 20;

/// 80 bytes with header. Bounded per cgroup in the program: at most 100 events per second each, so
/// 256 KiB hold 3 276, or 32 cgroups stalling for a second without a reader.
pub(crate) const STALL_RING_BYTES: usize = 256 << 10;

#[inline(always)]
pub(crate) fn count_loss() {
    if let Some(lost) = LOSSES.get_ptr_mut(0) {
        // SAFETY: a slot of this CPU; tracing programs do not interrupt themselves, and a count
        // that an interrupt would spoil is off by one.
        unsafe { *lost += 1 };
    }
    warn!(&(), "an event is lost: the ring is full");
}
