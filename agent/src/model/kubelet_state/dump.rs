//! The text that the checksums are made of: kubelet hashes a dump of the structure in memory, with
//! Go's type names, and not the bytes of the file (pkg/kubelet/checkpointmanager/checksum/checksum.go, v1.36).

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

/// A value as the dump has it. A struct writes the type before each of its fields; the elements of
/// lists and maps have none.
pub(super) trait Dump {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result;
}

/// The dump as text, as it is hashed.
pub(super) fn text(value: &impl Dump) -> String {
    let mut text = String::new();
    value
        .dump(&mut text)
        .expect("writing to a string does not fail");
    text
}

/// FNV-1a, 32 bits, of the dump.
pub(super) fn checksum(value: &impl Dump) -> u64 {
    let mut hash = Fnv1a(2_166_136_261);
    value.dump(&mut hash).expect("hashing does not fail");
    u64::from(hash.0)
}

/// The same of a text by itself.
pub(super) fn checksum_of_text(text: &str) -> u64 {
    checksum(&format!("(string){text}"))
}

struct Fnv1a(u32);

impl Write for Fnv1a {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u32::from(byte)).wrapping_mul(16_777_619);
        }
        Ok(())
    }
}

macro_rules! dump_as_displayed {
    ($($type:ty),*) => {
        $(impl Dump for $type {
            fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
                write!(out, "{self}")
            }
        })*
    };
}
dump_as_displayed!(String, i64, u64, u8);

impl<T: Dump> Dump for Vec<T> {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        out.write_char('[')?;
        for (i, element) in self.iter().enumerate() {
            if i > 0 {
                out.write_char(' ')?;
            }
            element.dump(out)?;
        }
        out.write_char(']')
    }
}

impl<K: Display, V: Dump> Dump for BTreeMap<K, V> {
    fn dump<W: Write>(&self, out: &mut W) -> fmt::Result {
        out.write_str("map[")?;
        for (i, (key, value)) in self.iter().enumerate() {
            if i > 0 {
                out.write_char(' ')?;
            }
            write!(out, "{key}:")?;
            value.dump(out)?;
        }
        out.write_char(']')
    }
}
