#![expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]

use super::*;

/// Writes BTF: types are numbered from 1 in the order of adding.
#[derive(Default)]
struct Writer {
    types: Vec<u8>,
    strings: Vec<u8>,
}

impl Writer {
    fn new() -> Self {
        let strings = vec![0];
        Self {
            strings,
            ..Self::default()
        }
    }

    fn string(&mut self, text: &str) -> u32 {
        if text.is_empty() {
            return 0;
        }
        let at = u32::try_from(self.strings.len()).unwrap();
        self.strings.extend_from_slice(text.as_bytes());
        self.strings.push(0);
        at
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.types.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn add(&mut self, name: &str, kind: u32, n: u32, size_or_type: u32, rest: &[u32]) {
        let name = self.string(name);
        self.words(&[name, kind << 24 | n, size_or_type]);
        self.words(rest);
    }

    /// `members`: name, type, offset in bits as written.
    fn structure(&mut self, name: &str, flag: bool, members: &[(&str, u32, u32)]) {
        let mut rest = Vec::new();
        for (name, type_id, bits) in members {
            rest.extend([self.string(name), *type_id, *bits]);
        }
        let flag = if flag { 1 << 31 } else { 0 };
        let name = self.string(name);
        let n = u32::try_from(members.len()).unwrap();
        self.words(&[name, flag | KIND_STRUCT << 24 | n, 64]);
        self.words(&rest);
    }

    fn finish(&self) -> Vec<u8> {
        let types = u32::try_from(self.types.len()).unwrap();
        let strings = u32::try_from(self.strings.len()).unwrap();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend([1, 0]);
        for word in [24, 0, types, types, strings] {
            bytes.extend_from_slice(&u32::to_le_bytes(word));
        }
        bytes.extend_from_slice(&self.types);
        bytes.extend_from_slice(&self.strings);
        bytes
    }
}

/// A structure with a field of so many bytes.
pub(in crate::sources) fn with_bytes(structure: &str, field: &str, n: u32) -> Vec<u8> {
    let mut btf = Writer::new();
    btf.add("char", KIND_INT, 0, 1, &[8]); // 1
    btf.add("", KIND_ARRAY, 0, 0, &[1, 1, n]); // 2
    btf.structure(structure, false, &[(field, 2, 64)]); // 3
    btf.finish()
}

const NAMES: &[&str] = &["task", "ids", "btf_trace_fire", "fire", "wide"];

fn sample() -> Vec<u8> {
    let mut btf = Writer::new();
    btf.add("int", KIND_INT, 0, 4, &[32]); // 1
    btf.add("counter_t", KIND_TYPEDEF, 0, 3, &[]); // 2
    btf.structure("", false, &[("lock", 1, 0), ("count", 1, 32)]); // 3, size 64
    btf.add("", KIND_ARRAY, 0, 0, &[2, 1, 4]); // 4: counter_t[4]
    btf.structure("", false, &[("hidden", 1, 64)]); // 5
    btf.add("task", KIND_FWD, 0, 0, &[]); // 6
    btf.structure(
        "task",
        true,
        &[
            ("flag", 1, 1 << 24 | 3),
            ("", 5, 128),
            ("rss", 4, 512),
            ("pid", 1, 32),
        ],
    ); // 7
    btf.add("", KIND_PTR, 0, 7, &[]); // 8
    btf.add("", KIND_CONST, 0, 8, &[]); // 9
    let minus_one = u32::MAX;
    let (memory, none) = (btf.string("memory"), btf.string("none"));
    btf.add("ids", KIND_ENUM, 2, 4, &[memory, 4, none, minus_one]); // 10
    btf.add("", KIND_FUNC_PROTO, 4, 0, &[0, 8, 0, 9, 0, 1, 0, 10]); // 11
    btf.add("", KIND_PTR, 0, 11, &[]); // 12
    btf.add("btf_trace_fire", KIND_TYPEDEF, 0, 12, &[]); // 13
    btf.add("fire", KIND_FUNC, 0, 11, &[]); // 14
    let big = btf.string("big");
    btf.add("wide", KIND_ENUM64, 1, 8, &[big, 1, 1]); // 15
    btf.finish()
}

#[test]
fn fields_are_found_through_anonymous_members_arrays_and_typedefs() {
    let bytes = sample();
    let btf = Btf::parse(&bytes, NAMES).unwrap();
    for (path, offset, size) in [
        ("pid", 4, 4),
        ("hidden", 24, 4),
        ("rss", 64, 256),
        ("rss[2].count", 64 + 128 + 4, 4),
    ] {
        assert_eq!(
            btf.field("task", path),
            Ok(Field { offset, size }),
            "{path}"
        );
    }
    for path in ["absent", "rss[4].count", "pid.x", "rss[x]", "", "hidden[0]"] {
        let result = btf.field("task", path);
        assert!(
            matches!(result, Err(BtfError::NoField { .. })),
            "{path}: {result:?}"
        );
    }
    let flag = btf.field("task", "flag");
    assert!(matches!(flag, Err(BtfError::BitField { .. })), "{flag:?}");
    let absent = btf.field("other", "pid");
    assert!(matches!(absent, Err(BtfError::NoType { .. })), "{absent:?}");
}

#[test]
fn enumerators_tracepoints_and_functions_are_found() {
    let bytes = sample();
    let btf = Btf::parse(&bytes, NAMES).unwrap();
    assert_eq!(btf.enumerator("ids", "memory"), Ok(4));
    assert_eq!(btf.enumerator("ids", "none"), Ok(-1));
    assert_eq!(btf.enumerator("wide", "big"), Ok(1 << 32 | 1));
    assert!(btf.enumerator("ids", "cpu").is_err());
    assert_eq!(
        btf.tracepoint("fire"),
        Ok(vec![Argument::Pointer, Argument::Scalar, Argument::Scalar])
    );
    assert!(btf.tracepoint("hold").is_err());
    assert!(btf.has_function("fire"));
    assert!(!btf.has_function("task"));
}

#[test]
fn bytes_cut_off_anywhere_are_an_error_or_less_to_find() {
    let bytes = sample();
    for length in 0..bytes.len() {
        if let Ok(btf) = Btf::parse(&bytes[..length], NAMES) {
            panic!(
                "{length} of {} bytes: {} types",
                bytes.len(),
                btf.starts.len()
            );
        }
    }
}

/// Every byte of the sample set to values that lengths, kinds, ids and offsets dislike.
#[test]
fn garbage_is_never_a_panic() {
    let bytes = sample();
    for at in 0..bytes.len() {
        for value in [0, 1, 7, 0x1f, 0x7f, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            let Ok(btf) = Btf::parse(&bytes, NAMES) else {
                continue;
            };
            for path in ["pid", "hidden", "rss[2].count", "flag"] {
                let _ = btf.field("task", path);
            }
            let _ = btf.enumerator("ids", "none");
            let _ = btf.enumerator("wide", "big");
            let _ = btf.tracepoint("fire");
        }
    }
}

#[test]
fn types_that_refer_to_themselves_come_to_an_end() {
    let mut writer = Writer::new();
    writer.add("int", KIND_INT, 0, 4, &[32]);
    writer.add("loop", KIND_TYPEDEF, 0, 2, &[]);
    writer.structure("task", false, &[("", 3, 0), ("pid", 2, 0)]);
    writer.add("", KIND_ARRAY, 0, 0, &[4, 1, u32::MAX]);
    writer.structure("ids", false, &[("all", 4, 0)]);
    let bytes = writer.finish();
    let btf = Btf::parse(&bytes, NAMES).unwrap();
    assert_eq!(btf.field("task", "pid"), Err(BtfError::TooDeep));
    assert_eq!(btf.field("ids", "all"), Err(BtfError::TooDeep));
}

#[test]
fn the_abridged_table_keeps_the_ids_of_typedefs_and_functions() {
    let bytes = sample();
    let btf = Btf::parse(&bytes, NAMES).unwrap();
    let abridged = btf.abridged();
    let again = Btf::parse(&abridged, NAMES).unwrap();
    for (name, kind) in [("btf_trace_fire", KIND_TYPEDEF), ("fire", KIND_FUNC)] {
        let ids = |btf: &Btf<'_>| -> Vec<(u32, u32)> {
            btf.called(name).map(|it| (it.id, it.kind)).collect()
        };
        assert_eq!(ids(&again), ids(&btf));
        assert_eq!(ids(&again).first().map(|it| it.1), Some(kind), "{name}");
    }
    assert_eq!(again.called("task").count(), 0);
    assert!(aya::Btf::parse(&abridged, aya::Endianness::Little).is_ok());

    let nothing = Btf::parse(&bytes, &["task"]).unwrap().abridged();
    assert_eq!(Btf::parse(&nothing, NAMES).unwrap().starts.len(), 0);
}
