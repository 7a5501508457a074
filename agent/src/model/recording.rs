//! The form of a recording: a header and steps, each a JSON value, as a file that grows at its end.
//!
//! ```text
//! ballast recording 1\n  frame(header)  frame(step)  frame(step) ...
//! frame: kind u8, length u32, CRC-32 of kind, length and payload u32, payload; little endian
//! ```
//! A step is written as what changed against the one before ([`delta`]), through one deflate stream
//! that is flushed at the end of each frame. A key frame starts anew and needs nothing before it.
//!
//! Invariants: nothing is rounded, the value that comes out is the one that went in. A file that is
//! cut short or damaged loses the frame where that is and what follows, and nothing before. A
//! decoder's memory is bounded, whatever it is given.

mod delta;

use std::io::{self, Write};

use flate2::write::{DeflateDecoder, DeflateEncoder};
use flate2::{Compression, Crc};
use serde_json::Value;

use self::delta::DeltaError;

/// The first line of a recording; its number is the version of the form.
pub const MAGIC: &[u8] = b"ballast recording 1\n";

/// What every version begins with.
const MAGIC_OF_ANY: &[u8] = b"ballast recording ";

/// Kind, length and checksum.
const HEAD_BYTES: usize = 9;

/// Of a frame before compression. A snapshot of 250 pods with 20 containers each is 2 MiB.
const MAX_FRAME_BYTES: usize = 8 << 20;

/// Of all frames from a key frame on, before compression: it bounds what a step can hold.
const MAX_GROUP_BYTES: usize = 16 << 20;

/// From here on the writer starts anew: an hour or so of an idle node.
const GROUP_BYTES: usize = MAX_GROUP_BYTES - MAX_FRAME_BYTES;

/// What a flushed deflate stream ends with: an empty stored block (RFC 1951, 3.2.4).
const FLUSHED: [u8; 4] = [0, 0, 0xff, 0xff];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameKind {
    Header,
    /// A step that needs nothing before it.
    Key,
    /// What changed since the step before.
    Delta,
}

impl FrameKind {
    const fn byte(self) -> u8 {
        match self {
            Self::Header => 0,
            Self::Key => 1,
            Self::Delta => 2,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Header),
            1 => Some(Self::Key),
            2 => Some(Self::Delta),
            _ => None,
        }
    }
}

/// Why a value cannot be recorded or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    #[error("it does not begin as a recording does")]
    NotARecording,
    #[error("it is a recording of a version that this program does not read; right would be 1")]
    Version,
    #[error("the header is cut short or damaged")]
    Header,
    #[error("the frame at byte {at} is {what}")]
    Frame { at: usize, what: &'static str },
    #[error("the frame at byte {at}")]
    Delta {
        at: usize,
        #[source]
        source: DeltaError,
    },
    #[error("a step of {bytes} bytes is larger than {MAX_FRAME_BYTES}, the most a recording takes")]
    TooLarge { bytes: usize },
}

/// Whether bytes begin as a recording of any version.
pub fn is_recording(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC_OF_ANY)
}

/// Turns steps into frames.
#[derive(Debug)]
pub struct Encoder {
    stream: DeflateEncoder<Vec<u8>>,
    last: Value,
    /// Bytes since the last key frame, before compression; `None`: the next frame is one.
    n_in_group: Option<usize>,
}

impl Encoder {
    /// With the bytes that the file begins with.
    pub fn new(header: &Value) -> Result<(Self, Vec<u8>), RecordingError> {
        let mut encoder = Self {
            stream: deflate_stream(),
            last: Value::Null,
            n_in_group: None,
        };
        let plain = delta::between(&Value::Null, header);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(encoder.frame(FrameKind::Header, &plain)?);
        Ok((encoder, bytes))
    }

    /// The bytes to append for the next step. After an error the step is not part of the recording.
    pub fn step(&mut self, step: Value) -> Result<Vec<u8>, RecordingError> {
        let frame = match self.n_in_group.filter(|bytes| *bytes <= GROUP_BYTES) {
            Some(n_before) => {
                let plain = delta::between(&self.last, &step);
                self.n_in_group = Some(n_before + plain.len());
                self.frame(FrameKind::Delta, &plain)?
            }
            None => {
                let plain = delta::between(&Value::Null, &step);
                self.n_in_group = Some(plain.len());
                self.frame(FrameKind::Key, &plain)?
            }
        };
        self.last = step;
        Ok(frame)
    }

    fn frame(&mut self, kind: FrameKind, plain: &[u8]) -> Result<Vec<u8>, RecordingError> {
        if plain.len() > MAX_FRAME_BYTES {
            self.n_in_group = None;
            return Err(RecordingError::TooLarge { bytes: plain.len() });
        }
        if kind != FrameKind::Delta {
            self.stream = deflate_stream();
        }
        let any = "deflate takes any bytes, and a Vec too";
        self.stream.write_all(plain).expect(any);
        // The first flush may do no more than empty an inner buffer that was full.
        while !self.stream.get_ref().ends_with(&FLUSHED) {
            self.stream.flush().expect(any);
        }
        let payload = std::mem::take(self.stream.get_mut());
        let length = u32::try_from(payload.len()).expect("deflate adds little to 8 MiB");
        Ok([&head(kind.byte(), length, &payload), payload.as_slice()].concat())
    }
}

fn deflate_stream() -> DeflateEncoder<Vec<u8>> {
    DeflateEncoder::new(Vec::new(), Compression::default())
}

fn head(kind: u8, length: u32, payload: &[u8]) -> [u8; HEAD_BYTES] {
    let [a, b, c, d] = length.to_le_bytes();
    let [e, f, g, h] = checksum(kind, length, payload).to_le_bytes();
    [kind, a, b, c, d, e, f, g, h]
}

fn checksum(kind: u8, length: u32, payload: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&[kind]);
    crc.update(&length.to_le_bytes());
    crc.update(payload);
    crc.sum()
}

/// Turns frames into steps.
#[derive(Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    /// Where the next frame begins.
    at: usize,
    header: Value,
    stream: DeflateDecoder<Bounded>,
    last: Value,
    /// As the encoder's; `None`: no key frame was seen.
    n_in_group: Option<usize>,
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Result<Self, RecordingError> {
        if !bytes.starts_with(MAGIC) {
            return Err(match is_recording(bytes) {
                true => RecordingError::Version,
                false => RecordingError::NotARecording,
            });
        }
        let mut decoder = Self {
            bytes,
            at: MAGIC.len(),
            header: Value::Null,
            stream: DeflateDecoder::new(Bounded::default()),
            last: Value::Null,
            n_in_group: None,
        };
        let Some((FrameKind::Header, payload)) = decoder.next_frame() else {
            return Err(RecordingError::Header);
        };
        let at = decoder.at;
        let plain = decoder.inflate(at, payload)?;
        decoder.header = delta::apply(Value::Null, &plain)
            .map_err(|source| RecordingError::Delta { at, source })?;
        decoder.at += HEAD_BYTES + payload.len();
        Ok(decoder)
    }

    pub fn header(&self) -> &Value {
        &self.header
    }

    /// Bytes at the end that are no whole frame: what was being written when the writer ended, or
    /// damage. Known when there is no next step.
    pub fn n_lost(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    /// `None`: the end, or a frame that is cut short or damaged. An error is a frame that is whole
    /// and yet none of a recording; there is nothing after it.
    pub fn next_step(&mut self) -> Result<Option<&Value>, RecordingError> {
        let Some((kind, payload)) = self.next_frame() else {
            return Ok(None);
        };
        let at = self.at;
        let wrong = |what| RecordingError::Frame { at, what };
        let (before, n_before) = match (kind, self.n_in_group) {
            (FrameKind::Key, _) => {
                self.stream = DeflateDecoder::new(Bounded::default());
                (Value::Null, 0)
            }
            (FrameKind::Delta, Some(n_before)) => (std::mem::take(&mut self.last), n_before),
            (FrameKind::Delta, None) => return Err(wrong("a change of nothing")),
            (FrameKind::Header, _) => return Err(wrong("a second header")),
        };
        let plain = self.inflate(at, payload)?;
        let n_in_group = n_before + plain.len();
        if n_in_group > MAX_GROUP_BYTES {
            return Err(wrong("further from a key frame than any that is written"));
        }
        self.n_in_group = Some(n_in_group);
        self.last =
            delta::apply(before, &plain).map_err(|source| RecordingError::Delta { at, source })?;
        self.at += HEAD_BYTES + payload.len();
        Ok(Some(&self.last))
    }

    /// The next frame, if it is whole. Stays where it is.
    fn next_frame(&self) -> Option<(FrameKind, &'a [u8])> {
        let rest = self.bytes.get(self.at..)?;
        let (&[kind, a, b, c, d, e, f, g, h], rest) = rest.split_first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_le_bytes([a, b, c, d]);
        let payload = rest.get(..usize::try_from(length).ok()?)?;
        let is_whole = checksum(kind, length, payload) == u32::from_le_bytes([e, f, g, h]);
        Some((FrameKind::from_byte(kind).filter(|_| is_whole)?, payload))
    }

    fn inflate(&mut self, at: usize, payload: &[u8]) -> Result<Vec<u8>, RecordingError> {
        let written = self.stream.write_all(payload);
        match written.and_then(|()| self.stream.flush()) {
            Ok(()) => Ok(std::mem::take(&mut self.stream.get_mut().0)),
            // The library has no more to say than that.
            Err(_no_deflate) => {
                let what = "no deflate stream, or larger than any that is written";
                Err(RecordingError::Frame { at, what })
            }
        }
    }
}

/// What a frame inflates to, as long as it is no larger than the encoder makes it.
#[derive(Debug, Default)]
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_FRAME_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
