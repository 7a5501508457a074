//! Buffers that bodies are written to, used again and again: a page of some megabytes would else
//! be as many page faults with each scrape.

use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

/// Kept for the next pages: what one is written to and its body, of two at a time. More are made
/// when they are needed.
const MAX_KEPT: usize = 4;

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

/// The same for text.
pub(super) struct TextBuffer {
    pub(super) text: String,
    home: Buffers,
}

impl Buffers {
    /// An empty one.
    pub(super) fn take_text(&self) -> TextBuffer {
        let bytes = mem::take(&mut self.take().bytes);
        TextBuffer {
            // It is empty, and so UTF-8.
            text: String::from_utf8(bytes).unwrap_or_default(),
            home: self.clone(),
        }
    }

    fn give_back(&self, mut bytes: Vec<u8>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < MAX_KEPT && (1..=MAX_KEPT_BYTES).contains(&bytes.capacity()) {
            bytes.clear();
            kept.push(bytes);
        }
    }
}

impl Drop for TextBuffer {
    fn drop(&mut self) {
        let text = mem::take(&mut self.text);
        self.home.give_back(text.into_bytes());
    }
}

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.give_back(mem::take(&mut self.bytes));
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
        let mut taken: Vec<Buffer> = (0..5).map(|_| buffers.take()).collect();
        for buffer in &mut taken {
            buffer.bytes.push(1);
        }
        drop(taken);
        assert_eq!(buffers.0.lock().expect("no panic").len(), MAX_KEPT);
        let mut large = buffers.take();
        large.bytes.reserve(MAX_KEPT_BYTES + 1);
        drop(large);
        assert_eq!(buffers.0.lock().expect("no panic").len(), MAX_KEPT - 1);
    }
}
