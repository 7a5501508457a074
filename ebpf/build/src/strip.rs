//! Leaves out the parts of an object that only a debugger reads. They are four fifths of it, and
//! every agent carries them; the verifier's source lines are in `.BTF` and `.BTF.ext`, which stay.

/// Bytes of the ELF header and of one section header, ELF64.
const HEADER: usize = 64;
const SECTION: usize = 64;

/// `SHT_NULL`, an entry of the section table without a section.
const NULL: u32 = 0;
/// `SHT_NOBITS`, a section that takes no room in the file.
const NOBITS: u32 = 8;

/// Offsets of fields, `<elf.h>`.
const SECTION_TABLE: usize = 40;
const SECTION_COUNT: usize = 60;
const NAMES_INDEX: usize = 62;
const NAME: usize = 0;
const TYPE: usize = 4;
const OFFSET: usize = 24;
const SIZE: usize = 32;
const ALIGNMENT: usize = 48;

/// `elf` without its DWARF sections and their relocations. Their entries in the section table stay,
/// empty, so that no index changes. `None`: not a relocatable object for a 64-bit little-endian
/// machine, or cut short.
pub(crate) fn strip(elf: &[u8]) -> Option<Vec<u8>> {
    let is_elf64_little_endian = elf.starts_with(b"\x7fELF\x02\x01");
    if !is_elf64_little_endian {
        return None;
    }
    let table = usize_at(elf, SECTION_TABLE)?;
    let count = usize::from(u16_at(elf, SECTION_COUNT)?);
    let mut headers: Vec<Vec<u8>> = (0..count)
        .map(|index| Some(slice(elf, table.checked_add(index * SECTION)?, SECTION)?.to_vec()))
        .collect::<Option<_>>()?;
    let names = contents(elf, headers.get(usize::from(u16_at(elf, NAMES_INDEX)?))?)?;

    let mut out = slice(elf, 0, HEADER)?.to_vec();
    for header in &mut headers {
        if is_debug(names, header)? {
            header[TYPE..].fill(0);
        } else if !matches!(u32_at(header, TYPE)?, NULL | NOBITS) {
            let contents = contents(elf, header)?;
            out.resize(
                out.len()
                    .next_multiple_of(usize_at(header, ALIGNMENT)?.max(1)),
                0,
            );
            header[OFFSET..OFFSET + 8].copy_from_slice(&(out.len() as u64).to_le_bytes());
            out.extend_from_slice(contents);
        }
    }
    out.resize(out.len().next_multiple_of(8), 0);
    let table = (out.len() as u64).to_le_bytes();
    out[SECTION_TABLE..SECTION_TABLE + 8].copy_from_slice(&table);
    out.extend(headers.concat());
    Some(out)
}

fn is_debug(names: &[u8], header: &[u8]) -> Option<bool> {
    let name = names.get(usize::try_from(u32_at(header, NAME)?).ok()?..)?;
    Some(
        [&b".debug_"[..], b".rel.debug_"]
            .iter()
            .any(|it| name.starts_with(it)),
    )
}

fn contents<'a>(elf: &'a [u8], header: &[u8]) -> Option<&'a [u8]> {
    slice(elf, usize_at(header, OFFSET)?, usize_at(header, SIZE)?)
}

fn slice(bytes: &[u8], start: usize, length: usize) -> Option<&[u8]> {
    bytes.get(start..start.checked_add(length)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(slice(bytes, at, 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(slice(bytes, at, 4)?.try_into().ok()?))
}

fn usize_at(bytes: &[u8], at: usize) -> Option<usize> {
    u64::from_le_bytes(slice(bytes, at, 8)?.try_into().ok()?)
        .try_into()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object with these sections after the empty one, and one with their names.
    fn object(sections: &[(&str, &[u8])]) -> Vec<u8> {
        let (null, names_section) = (("", &[][..]), (".shstrtab", &[][..]));
        let all: Vec<_> = std::iter::once(&null)
            .chain(sections)
            .chain([&names_section])
            .collect();
        let mut names = Vec::new();
        let mut out = vec![0; HEADER];
        out[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let mut headers = Vec::new();
        for (index, (name, _)) in all.iter().enumerate() {
            let mut header = vec![0; SECTION];
            header[..4].copy_from_slice(&u32::try_from(names.len()).expect("small").to_le_bytes());
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            header[TYPE] = u8::from(index > 0);
            header[ALIGNMENT] = 8;
            headers.push(header);
        }
        for (header, (name, contents)) in headers.iter_mut().zip(&all) {
            let contents = if *name == ".shstrtab" {
                names.as_slice()
            } else {
                contents
            };
            header[OFFSET..OFFSET + 8].copy_from_slice(&(out.len() as u64).to_le_bytes());
            header[SIZE..SIZE + 8].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            out.extend_from_slice(contents);
        }
        let table = (out.len() as u64).to_le_bytes();
        out[SECTION_TABLE..SECTION_TABLE + 8].copy_from_slice(&table);
        out[SECTION_COUNT] = u8::try_from(headers.len()).expect("few");
        out[NAMES_INDEX] = u8::try_from(headers.len() - 1).expect("few");
        out.extend(headers.concat());
        out
    }

    fn section(elf: &[u8], index: usize) -> (u32, &[u8]) {
        let table = usize_at(elf, SECTION_TABLE).expect("in the header");
        let header = slice(elf, table + index * SECTION, SECTION).expect("in the table");
        (
            u32_at(header, TYPE).expect("in the header"),
            contents(elf, header).expect("in the file"),
        )
    }

    #[test]
    fn debug_sections_become_empty_entries_and_the_others_stay() {
        let elf = object(&[
            ("tp_btf", b"program"),
            (".debug_info", &[7; 1000]),
            (".rel.debug_info", &[7; 1000]),
            (".BTF", b"types"),
        ]);
        let stripped = strip(&elf).expect("a good object");
        assert!(
            stripped.len() < elf.len() - 1900,
            "{} of {}",
            stripped.len(),
            elf.len()
        );
        assert_eq!(section(&stripped, 1), (1, &b"program"[..]));
        assert_eq!(section(&stripped, 2), (NULL, &b""[..]));
        assert_eq!(section(&stripped, 3), (NULL, &b""[..]));
        assert_eq!(section(&stripped, 4), (1, &b"types"[..]));
        assert_eq!(section(&stripped, 5).1, section(&elf, 5).1);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let elf = object(&[(".text", b"x")]);
        assert_eq!(strip(b""), None);
        assert_eq!(strip(b"\x7fELF\x01\x01"), None);
        for length in 0..elf.len() {
            assert_eq!(strip(&elf[..length]), None, "cut to {length}");
        }
    }
}
