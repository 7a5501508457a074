//! Where a page goes as it is made: to its body as it is, or compressed.

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::buffer::Buffer;

pub(super) struct Sink {
    body: Body,
    n_bytes: usize,
}

enum Body {
    Plain(Buffer),
    // An encoder is large: it has its tables within.
    Gzip(Box<GzEncoder<Buffer>>),
}

impl Sink {
    pub(super) fn new(into: Buffer, is_compressed: bool) -> Self {
        let body = if is_compressed {
            // The fastest level is enough for names and labels that repeat.
            Body::Gzip(Box::new(GzEncoder::new(into, Compression::fast())))
        } else {
            Body::Plain(into)
        };
        Self { body, n_bytes: 0 }
    }

    /// The whole body, and the bytes of the page before they were compressed.
    pub(super) fn finish(self) -> io::Result<(Buffer, usize)> {
        let body = match self.body {
            Body::Plain(buffer) => buffer,
            Body::Gzip(encoder) => encoder.finish()?,
        };
        Ok((body, self.n_bytes))
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = match &mut self.body {
            Body::Plain(buffer) => buffer.bytes.write(bytes)?,
            Body::Gzip(encoder) => encoder.write(bytes)?,
        };
        self.n_bytes += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
