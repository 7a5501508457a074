//! Buffers that bodies are written to, used again and again: a page of some megabytes would else
//! be as many page faults with each scrape.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

/// Kept for the next page. More are made when more pages are made at a time.
const MAX_KEPT: usize = 2;

/// A larger one is given back to the system: it would stay with the agent for nothing, as long as
/// nobody asks for such a page.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// Clones share the buffers.
#[derive(Clone, Default)]
pub(super) struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

/// Bytes whose memory goes back to the others when it is dropped.
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    home: Buffers,
}

impl Buffers {
    /// An empty one.
    pub(super) fn take(&self) -> Buffer {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Buffer {
            bytes: kept.pop().unwrap_or_default(),
            home: self.clone(),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = mem::take(&mut self.bytes);
        let mut kept = self.home.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_KEPT && bytes.capacity() <= MAX_KEPT_BYTES {
            bytes.clear();
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_what_was_written_is_not() {
        let buffers = Buffers::default();
        let mut first = buffers.take();
        first.bytes.extend_from_slice(&[7; 1000]);
        let memory = first.bytes.as_ptr();
        drop(first);
        let second = buffers.take();
        assert_eq!(second.bytes.as_ptr(), memory);
        assert!(second.as_ref().is_empty());
    }

    #[test]
    fn few_and_small_buffers_are_kept() {
        let buffers = Buffers::default();
        let taken: Vec<Buffer> = (0..5).map(|_| buffers.take()).collect();
        drop(taken);
        assert_eq!(buffers.0.lock().expect("no panic").len(), MAX_KEPT);
        let mut large = buffers.take();
        large.bytes.reserve(MAX_KEPT_BYTES + 1);
        drop(large);
        assert_eq!(buffers.0.lock().expect("no panic").len(), MAX_KEPT - 1);
    }
}
