//! The guest's system as one archive: format newc of cpio, which the kernel unpacks into memory
//! before it starts `/init` (Documentation/driver-api/early-userspace/buffer-format.rst).

use std::io::{self, Write};

/// Type and permissions as in `st_mode`.
const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Writes entries to `out`. Parents come before what is in them.
pub(super) struct Archive<W> {
    out: W,
    next_inode: u32,
}

struct Entry<'a> {
    path: &'a str,
    mode: u32,
    device: (u32, u32),
    contents: &'a [u8],
}

impl<W: Write> Archive<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, next_inode: 1 }
    }

    /// `path` has no leading slash, here and below.
    pub(super) fn directory(&mut self, path: &str) -> io::Result<()> {
        self.entry(&Entry {
            path,
            mode: DIRECTORY,
            device: (0, 0),
            contents: &[],
        })
    }

    pub(super) fn program(&mut self, path: &str, contents: &[u8]) -> io::Result<()> {
        self.entry(&Entry {
            path,
            mode: PROGRAM,
            device: (0, 0),
            contents,
        })
    }

    pub(super) fn character_device(&mut self, path: &str, device: (u32, u32)) -> io::Result<()> {
        self.entry(&Entry {
            path,
            mode: CHARACTER_DEVICE,
            device,
            contents: &[],
        })
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.entry(&Entry {
            path: "TRAILER!!!",
            mode: 0,
            device: (0, 0),
            contents: &[],
        })?;
        self.out.flush()
    }

    fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        let size = u32::try_from(entry.contents.len()).map_err(io::Error::other)?;
        let name_size = u32::try_from(entry.path.len() + 1).map_err(io::Error::other)?;
        let (major, minor) = entry.device;
        // inode, mode, uid, gid, links, mtime, size, device, device of a node, name, checksum
        let fields = [
            self.next_inode,
            entry.mode,
            0,
            0,
            1,
            0,
            size,
            0,
            0,
            major,
            minor,
            name_size,
            0,
        ];
        self.next_inode += 1;
        self.out.write_all(b"070701")?;
        for field in fields {
            write!(self.out, "{field:08x}")?;
        }
        self.out.write_all(entry.path.as_bytes())?;
        self.out.write_all(b"\0")?;
        self.pad(6 + 13 * 8 + entry.path.len() + 1)?;
        self.out.write_all(entry.contents)?;
        self.pad(entry.contents.len())
    }

    /// The next part starts at a multiple of 4.
    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.out
            .write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_sized_and_the_trailer_ends_the_archive() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);
        archive.directory("dev").expect("a vector takes everything");
        archive
            .character_device("dev/console", (5, 1))
            .expect("a vector takes everything");
        archive
            .program("init", b"#!x\n!")
            .expect("a vector takes everything");
        archive.finish().expect("a vector takes everything");

        let mut rest = bytes.as_slice();
        let mut found = Vec::new();
        while !rest.is_empty() {
            let field = |index: usize| {
                let text = std::str::from_utf8(&rest[6 + index * 8..][..8]).expect("hex digits");
                usize::from_str_radix(text, 16).expect("hex digits")
            };
            let (mode, size, name_size) = (field(1), field(6), field(11));
            let name = std::str::from_utf8(&rest[110..110 + name_size - 1]).expect("ASCII");
            let start = (110 + name_size).next_multiple_of(4);
            found.push((
                name,
                mode,
                (field(9), field(10)),
                &rest[start..start + size],
            ));
            rest = &rest[(start + size).next_multiple_of(4)..];
        }
        assert_eq!(
            found,
            [
                ("dev", 0o040_755, (0, 0), &b""[..]),
                ("dev/console", 0o020_600, (5, 1), &b""[..]),
                ("init", 0o100_755, (0, 0), &b"#!x\n!"[..]),
                ("TRAILER!!!", 0, (0, 0), &b""[..]),
            ]
        );
    }
}
