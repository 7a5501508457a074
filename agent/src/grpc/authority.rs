//! What a client says is the host: on a Unix socket that means nothing, but h2 refuses what cannot
//! be one. Clients of kubelet dial a path, and their gRPC libraries say that the host is
//! `%2Fvar%2Flib%2Fkubelet%2F...` (grpc-go with a dialer of its own, gRPC core) or the bare path
//! (older grpc-go). So what comes from the client is passed on with another host.
//!
//! Header fields are compressed with tables that both ends build from what was sent (HPACK,
//! RFC 7541). The value of a field is replaced where it stands, in the same representation, by one
//! that is not longer: then the tables have the same entries at the same indices, and the reader's
//! holds at least those of the writer. Nothing is decompressed.
//!
//! A name that is given by an index beyond the static table is not followed; no library that was
//! looked at does so with this field.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use prost::bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Largest payload of a frame, and of the header fields of one request, that h2 takes unless told
/// otherwise.
const MAX_FRAME: usize = 16_384;

/// Before the first frame of a connection.
const PREFACE_BYTES: usize = 24;

const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const PRIORITY_BYTES: usize = 5;

/// `:authority` in the static table, as a name, and as a name in Huffman's code.
const INDEX: usize = 1;
const NAME: &[u8] = b":authority";
const HUFFMAN_NAME: &[u8] = b"\xb8\x3b\x53\x39\xec\x32\x7d\x7f";

/// A value of one byte in plain: no value is shorter but the empty one.
const HOST: [u8; 2] = [1, b'k'];

/// The server's end of a connection.
pub(super) struct AnyAuthority<S> {
    inner: S,
    frames: Frames,
    /// To be read.
    ready: BytesMut,
}

impl<S> AnyAuthority<S> {
    pub(super) fn new(inner: S) -> Self {
        Self {
            inner,
            frames: Frames::default(),
            ready: BytesMut::new(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready.is_empty() {
            let mut chunk = [0; 4096];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let passed = this.frames.pass(chunk.filled(), &mut this.ready);
            passed.ok_or_else(|| {
                let what = "header fields of HTTP/2 that cannot be read";
                io::Error::new(io::ErrorKind::InvalidData, what)
            })?;
        }
        let n = this.ready.len().min(out.remaining());
        out.put_slice(&this.ready[..n]);
        this.ready.advance(n);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// The frames of a client, as their bytes come.
struct Frames {
    /// Bytes that go on as they are: of the preface, of a frame without header fields.
    n_as_they_are: usize,
    /// Not passed on yet: less than the head of a frame, or a part of header fields.
    held: BytesMut,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            n_as_they_are: PREFACE_BYTES,
            held: BytesMut::new(),
        }
    }
}

impl Frames {
    /// Takes bytes, and appends to `out` what can go on. `None`: it is not HTTP/2, or too large.
    fn pass(&mut self, bytes: &[u8], out: &mut BytesMut) -> Option<()> {
        self.held.extend_from_slice(bytes);
        loop {
            let n = self.n_as_they_are.min(self.held.len());
            out.put(self.held.split_to(n));
            self.n_as_they_are -= n;
            let Some(head) = Head::of(&self.held) else {
                return Some(());
            };
            if head.kind != HEADERS {
                self.n_as_they_are = FRAME_HEAD + head.length;
                continue;
            }
            match header_fields(&self.held)? {
                Some((frame, n_read)) => {
                    self.held.advance(n_read);
                    out.put_slice(&frame);
                }
                None => return Some(()),
            }
        }
    }
}

/// The first bytes of a frame.
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Head {
    fn of(bytes: &[u8]) -> Option<Self> {
        let &[a, b, c, kind, flags, s0, s1, s2, s3] = bytes.first_chunk::<FRAME_HEAD>()?;
        Some(Self {
            length: usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c),
            kind,
            flags,
            stream: [s0, s1, s2, s3],
        })
    }
}

/// The frames at the begin of `bytes` that hold the header fields of one message, as one frame with
/// another host, and how long they are. `Some(None)`: there is more to come.
/// `None`: they cannot be read.
fn header_fields(bytes: &[u8]) -> Option<Option<(Vec<u8>, usize)>> {
    let first = Head::of(bytes)?;
    if first.length > MAX_FRAME {
        return None;
    }
    let Some(mut payload) = bytes.get(FRAME_HEAD..FRAME_HEAD + first.length) else {
        return Some(None);
    };
    if first.flags & PADDED != 0 {
        let (&n_padding, rest) = payload.split_first()?;
        payload = rest.get(..rest.len().checked_sub(usize::from(n_padding))?)?;
    }
    let n_priority = match first.flags & PRIORITY {
        0 => 0,
        _ => PRIORITY_BYTES,
    };
    let (priority, begin) = payload.split_at_checked(n_priority)?;
    let mut fields = begin.to_vec();
    let mut n_read = FRAME_HEAD + first.length;
    let mut is_whole = first.flags & END_HEADERS != 0;
    while !is_whole {
        let rest = bytes.get(n_read..)?;
        let Some(head) = Head::of(rest) else {
            return Some(None);
        };
        if head.kind != CONTINUATION || fields.len() + head.length > MAX_FRAME {
            return None;
        }
        let Some(more) = rest.get(FRAME_HEAD..FRAME_HEAD + head.length) else {
            return Some(None);
        };
        // A chain of empty frames would never end.
        if more.is_empty() && head.flags & END_HEADERS == 0 {
            return None;
        }
        fields.extend_from_slice(more);
        n_read += FRAME_HEAD + head.length;
        is_whole = head.flags & END_HEADERS != 0;
    }
    let fields = with_other_host(&fields)?;
    let length = u32::try_from(priority.len() + fields.len()).ok()?;
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.push(HEADERS);
    frame.push(first.flags & !PADDED | END_HEADERS);
    frame.extend_from_slice(&first.stream);
    frame.extend_from_slice(priority);
    frame.extend_from_slice(&fields);
    Some(Some((frame, n_read)))
}

/// Header fields in HPACK with another value of `:authority`. `None`: they are not HPACK.
fn with_other_host(mut fields: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(fields.len());
    while let Some(&first) = fields.first() {
        // RFC 7541, 6: an index; a size of the table; else a literal, added to the table or not.
        let prefix_bits = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        let (index, mut n_name) = integer(fields, prefix_bits)?;
        let is_literal = prefix_bits == 6 || prefix_bits == 4;
        let mut n_value = 0;
        let mut is_host = false;
        if is_literal {
            is_host = index == INDEX;
            if index == 0 {
                let (name, n) = string(fields.get(n_name..)?)?;
                is_host = name == NAME || name == HUFFMAN_NAME;
                n_name += n;
            }
            let (value, n) = string(fields.get(n_name..)?)?;
            is_host &= !value.is_empty();
            n_value = n;
        }
        let (name, rest) = fields.split_at_checked(n_name)?;
        let (value, rest) = rest.split_at_checked(n_value)?;
        out.extend_from_slice(name);
        out.extend_from_slice(if is_host { &HOST } else { value });
        fields = rest;
    }
    Some(out)
}

/// The integer at the begin, of which the first byte has so many bits, and its length (RFC 7541,
/// 5.1).
fn integer(bytes: &[u8], prefix_bits: u32) -> Option<(usize, usize)> {
    let most = (1_usize << prefix_bits) - 1;
    let mut value = usize::from(*bytes.first()?) & most;
    if value < most {
        return Some((value, 1));
    }
    // Four more bytes are 28 bits: more than any string that fits.
    for (i, byte) in bytes.iter().skip(1).take(4).enumerate() {
        value += usize::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 2));
        }
    }
    None
}

/// The string at the begin as it is, in Huffman's code or plain, and the length with its head
/// (RFC 7541, 5.2).
fn string(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (n, n_head) = integer(bytes, 7)?;
    Some((bytes.get(n_head..n_head + n)?, n_head + n))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.extend(payload);
        frame
    }

    /// What is passed on of a connection with these frames, however its bytes come.
    #[track_caller]
    fn check(frames: &[Vec<u8>], expected: &[Vec<u8>]) {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let input = [preface.to_vec(), frames.concat()].concat();
        let expected = [preface.to_vec(), expected.concat()].concat();
        for size in [1, 2, 7, input.len()] {
            let mut out = BytesMut::new();
            let mut passing = Frames::default();
            for chunk in input.chunks(size) {
                passing.pass(chunk, &mut out).expect("well formed");
            }
            assert_eq!(out, expected, "in pieces of {size}");
        }
    }

    /// `:method POST` by index, the host as given, a field after it, a table size before.
    fn fields(host: &[u8]) -> Vec<u8> {
        [
            b"\x3f\xe1\x1f\x83".as_slice(),
            host,
            b"\x40\x02te\x08trailers",
        ]
        .concat()
    }

    #[test]
    fn the_host_is_another_in_every_representation() {
        let long = [b"\x41\x7f\x49".as_slice(), &[b'%'; 200]].concat();
        let huffman_name = [b"\x00\x88".as_slice(), HUFFMAN_NAME, b"\x04%2Fa"].concat();
        let huffman_host = [b"\x00\x88".as_slice(), HUFFMAN_NAME, b"\x01k"].concat();
        for (host, expected) in [
            (b"\x41\x05%2Fab".as_slice(), b"\x41\x01k".as_slice()),
            (b"\x01\x02/a", b"\x01\x01k"),
            (b"\x11\x02/a", b"\x11\x01k"),
            (b"\x41\x83abc", b"\x41\x01k"),
            (b"\x40\x0a:authority\x02/a", b"\x40\x0a:authority\x01k"),
            (&huffman_name, &huffman_host),
            (&long, b"\x41\x01k"),
            (b"\x41\x00", b"\x41\x00"),
            (b"\x44\x02/a", b"\x44\x02/a"),
            (b"\xbe", b"\xbe"),
        ] {
            check(
                &[frame(HEADERS, END_HEADERS, &fields(host))],
                &[frame(HEADERS, END_HEADERS, &fields(expected))],
            );
        }
    }

    #[test]
    fn frames_of_one_message_become_one_and_others_stay() {
        let (host, expected) = (fields(b"\x41\x05%2Fab"), fields(b"\x41\x01k"));
        let data = frame(0, 1, &[HEADERS; 3000]);
        let settings = frame(4, 0, b"");
        let padded = [b"\x03\0\0\0\0\x10".as_slice(), &host, b"\0\0\0"].concat();
        let prioritized = [b"\0\0\0\0\x10".as_slice(), &expected].concat();
        check(
            &[
                settings.clone(),
                frame(HEADERS, 1, &host[..6]),
                frame(CONTINUATION, 0, &host[6..9]),
                frame(CONTINUATION, END_HEADERS, &host[9..]),
                data.clone(),
                frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded),
            ],
            &[
                settings,
                frame(HEADERS, END_HEADERS | 1, &expected),
                data,
                frame(HEADERS, END_HEADERS | PRIORITY, &prioritized),
            ],
        );
    }

    #[test]
    fn what_cannot_be_read_ends_the_connection_and_takes_no_memory() {
        let head =
            |length: [u8; 3], flags| [length.as_slice(), &[HEADERS, flags, 0, 0, 0, 1]].concat();
        for bad in [
            head([1, 0, 0], END_HEADERS),
            frame(HEADERS, END_HEADERS, b"\x41"),
            frame(HEADERS, END_HEADERS, b"\x41\x05ab"),
            frame(HEADERS, END_HEADERS, b"\xff\xff\xff\xff\xff\xff"),
            frame(HEADERS, END_HEADERS | PADDED, b"\x09a"),
            frame(HEADERS, END_HEADERS | PRIORITY, b"abc"),
            [frame(HEADERS, 0, b""), frame(0, 0, b"x")].concat(),
            [frame(HEADERS, 0, b""), frame(CONTINUATION, 0, b"")].concat(),
            [
                frame(HEADERS, 0, &[0x82; MAX_FRAME]),
                frame(CONTINUATION, 0, b"x"),
            ]
            .concat(),
        ] {
            let mut frames = Frames {
                n_as_they_are: 0,
                ..Frames::default()
            };
            let passed = frames.pass(&bad, &mut BytesMut::new());
            assert_eq!(passed, None, "{:?}", &bad[..bad.len().min(30)]);
        }
    }
}
