//! The maps that every object has. Those of one stream stand in its module.
//!
//! Ring sizes are powers of two and multiples of the page size, as the kernel wants. The kernel maps the
//! data of a ring twice, and both count as memory of the agent. A full ring loses the newest event,
//! which is counted in [`LOSSES`] and repaired by the agent from files.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::btf_maps::{Array, PerCpuArray, RingBuf};
use aya_ebpf::helpers::bpf_ringbuf_query;
use aya_ebpf::macros::btf_map;
use aya_ebpf::maps::ring_buf::RingBufEntry;
use aya_log_ebpf::warn;
use ebpf_abi::Watch;

/// An array of one: read at every event, so it must be the cheapest lookup there is (it is inlined).
#[btf_map]
pub(crate) static WATCH: Array<Watch, 1> = Array::new();

/// Events that found the ring full. Per CPU, so that counting needs no atomic.
#[btf_map]
pub(crate) static LOSSES: PerCpuArray<u64, 1> = PerCpuArray::new();

/// 744 bytes with header. A burst of 1 000 while the agent restarts needs 727 KiB; 1 MiB holds 1 409.
pub(crate) const OOM_RING_BYTES: usize = 1 << 20;

/// 104 bytes with header. 10 000 forks per second, each with exec and exit, are 3.1 MB/s. The reader is
/// woken when 256 KiB of it wait, which is after 84 ms, and the other three quarters last for 250 ms
/// more, which is how long it may take to come. The whole is a third of a second without a reader, and
/// ten seconds of a node that starts 300 programs a second: an agent restarts in less. Of a longer absence
/// the newest events are lost, and with them how adopted containers have ended where the kernel does not
/// tell otherwise (before 6.15).
pub(crate) const PROCESS_RING_BYTES: usize = 1 << 20;

/// 200 bytes with header. A node that starts 250 pods at once makes about 500 cgroups with four events
/// each, 391 KiB, of which the reader is woken for the first 128.
pub(crate) const CGROUP_RING_BYTES: usize = 512 << 10;

/// 80 bytes with header. Bounded per cgroup in the program: at most 100 events per second each, so
/// 128 KiB hold 1 638, or 16 cgroups stalling for a second without a reader.
pub(crate) const STALL_RING_BYTES: usize = 128 << 10;

/// Hands a record to the reader without waking it. It looks once a second, and more often while somebody
/// waits for what it finds. It is woken when a quarter of the ring waits, and at each further one, by the records within
/// half a quarter of that mark: by more than one, since those of many CPUs may pass it together and of processes few look
/// here, and not by all, since a reader that is late or gone would cost each of them an interrupt.
#[inline(always)]
pub(crate) fn submit_quietly<T, const BYTES: usize>(
    ring: &'static RingBuf<T, BYTES>,
    entry: RingBufEntry<T>,
) {
    let map = core::ptr::from_ref(ring).cast_mut().cast();
    // SAFETY: the loader puts the map in place of the address of the static.
    let n_waiting = unsafe { bpf_ringbuf_query(map, u64::from(BPF_RB_AVAIL_DATA)) };
    let quarter = BYTES as u64 / 4;
    let is_at_mark = n_waiting >= quarter && n_waiting % quarter < quarter / 2;
    let flags = match is_at_mark {
        true => BPF_RB_FORCE_WAKEUP,
        false => BPF_RB_NO_WAKEUP,
    };
    entry.submit(u64::from(flags));
}

#[inline(always)]
pub(crate) fn count_loss() {
    if let Some(lost) = LOSSES.get_ptr_mut(0) {
        // SAFETY: a slot of this CPU; tracing programs do not interrupt themselves, and a count
        // that an interrupt would spoil is off by one.
        unsafe { *lost += 1 };
    }
    warn!(&(), "an event is lost: its ring or its map is full");
}
