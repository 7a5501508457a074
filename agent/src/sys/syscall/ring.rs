//! What waits in a BPF ring buffer, without taking it out. The library reads and takes in one.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::os::raw::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::sys::page_size;

/// Before each record: its length and flags, and an offset that is the kernel's own
/// (kernel/bpf/ringbuf.c, `struct bpf_ringbuf_hdr`). Records begin at multiples of it.
const HEADER: usize = 8;
/// The two flags of the length (include/uapi/linux/bpf.h).
const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;

/// Shows `sink` every whole record that waits in a ring of `n_bytes`, oldest first, and leaves all
/// of them where they are. Nobody may take records out of the ring meanwhile.
///
/// # Errors
/// The kernel does not map the ring, or `InvalidData`: what it holds is not as its headers say.
pub fn peek_ring(
    ring: BorrowedFd<'_>,
    n_bytes: usize,
    sink: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let page = usize::try_from(page_size()).map_err(io::Error::other)?;
    if !n_bytes.is_power_of_two() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let consumer = Mapping::of(ring, 0, page)?;
    // The data lies there twice, so that no record ends in the middle.
    let producer = Mapping::of(ring, page, page + 2 * n_bytes)?;
    let mut at = consumer.position();
    let end = producer.position();
    while at != end {
        let offset = page + (at & (n_bytes - 1));
        let header = producer.header(offset);
        if header & BUSY != 0 {
            break;
        }
        let n = (header & !DISCARD) as usize;
        let taken = (HEADER + n).next_multiple_of(HEADER);
        if taken > end.wrapping_sub(at) || taken > n_bytes {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if header & DISCARD == 0 {
            sink(producer.record(offset + HEADER, n));
        }
        at = at.wrapping_add(taken);
    }
    Ok(())
}

/// Pages of a ring, read only.
struct Mapping {
    at: NonNull<c_void>,
    n_bytes: usize,
}

impl Mapping {
    fn of(ring: BorrowedFd<'_>, offset: usize, n_bytes: usize) -> io::Result<Self> {
        let length = NonZeroUsize::new(n_bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = i64::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                ring,
                offset,
            )
        }?;
        Ok(Self { at, n_bytes })
    }

    /// The first word of its first page: how far somebody has come.
    fn position(&self) -> usize {
        // SAFETY: the mapping has a page at least, which begins with an aligned word that the kernel
        // changes atomically.
        let word = unsafe { self.at.cast::<AtomicUsize>().as_ref() };
        word.load(Ordering::Acquire)
    }

    /// The first half of the header at an offset that is a multiple of its size.
    fn header(&self, offset: usize) -> u32 {
        assert!(offset.is_multiple_of(HEADER) && offset + HEADER <= self.n_bytes);
        // SAFETY: aligned and inside of the mapping; the kernel sets it in one go when the record is
        // whole, which this load is ordered after.
        let word = unsafe { self.at.byte_add(offset).cast::<AtomicU32>().as_ref() };
        word.load(Ordering::Acquire)
    }

    /// Bytes of a whole record.
    fn record(&self, offset: usize, n: usize) -> &[u8] {
        assert!(offset + n <= self.n_bytes);
        // SAFETY: inside of the mapping, and not written while nobody takes the record out.
        unsafe { std::slice::from_raw_parts(self.at.byte_add(offset).cast().as_ptr(), n) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what was mapped, and nothing borrows from it any more.
        let unmapped = unsafe { munmap(self.at, self.n_bytes) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}
