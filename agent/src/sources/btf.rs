//! The running kernel's type information (BTF): where a field is, what a tracepoint passes, which
//! number an enumerator has.
//!
//! In: the bytes of `/sys/kernel/btf/vmlinux`, 6 MB and 130 000 types. Out: numbers for the eBPF
//! programs. aya reads the same bytes to attach programs, but shows nothing of what it found and
//! costs six times as much; it is given [`Btf::abridged`] instead.
//!
//! Invariants: one pass over the types, remembering only the names asked for; no recursion without a
//! bound; no byte pattern makes it panic. Format: Documentation/bpf/btf.rst, Linux 7.2.

use std::collections::BTreeMap;

/// Little endian, as every architecture that the agent is built for.
const MAGIC: u16 = 0xeb9f;

/// Of version 1, the only one.
const HEADER_BYTES: usize = 24;

/// Anonymous members and typedefs nest a few deep in the kernel; a cycle in forged bytes ends here.
const MAX_NESTING: u32 = 32;

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_FWD: u32 = 7;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC: u32 = 12;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_FLOAT: u32 = 16;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    #[error("not BTF of this byte order: it starts with {found:#06x}, not {MAGIC:#06x}")]
    Magic { found: u16 },
    /// The header or a type reaches past the end.
    #[error("BTF is cut off: {what} at byte {at}")]
    Truncated { what: &'static str, at: usize },
    #[error("BTF type {id} has the unknown kind {kind}")]
    UnknownKind { id: u32, kind: u32 },
    #[error("BTF type {id} is {found}, not {wanted}")]
    UnexpectedKind {
        id: u32,
        found: &'static str,
        wanted: &'static str,
    },
    #[error("the kernel has no {kind} {name}")]
    NoType { kind: &'static str, name: String },
    #[error("the kernel has no field {field} in {structure}")]
    NoField { structure: String, field: String },
    #[error("{field} of {structure} is a bit field")]
    BitField { structure: String, field: String },
    #[error("BTF types nest deeper than {MAX_NESTING}")]
    TooDeep,
}

/// A field as it lies in memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub offset: u32,
    pub size: u32,
}

/// What a tracepoint hands to its programs, without the leading `void *`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    Pointer,
    /// An integer, a bool or an enumeration.
    Scalar,
    /// A structure by value.
    Other,
}

/// One type: its place in the table and the three words that each has.
#[derive(Clone, Copy)]
struct Type {
    id: u32,
    /// Of what follows the three words.
    at: usize,
    name: u32,
    kind: u32,
    n_members: u32,
    /// Offsets of members carry a bit size in their top byte.
    has_bit_fields: bool,
    /// Size in bytes or the type referred to, by kind.
    size_or_type: u32,
}

/// The types, borrowed from the bytes they were read from.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where type `index + 1` starts in `types`; type 0 is void.
    starts: Vec<u32>,
    named: BTreeMap<&'a str, Vec<u32>>,
}

impl<'a> Btf<'a> {
    /// Reads the table and remembers the types called one of `names`.
    pub fn parse(bytes: &'a [u8], names: &[&str]) -> Result<Self, BtfError> {
        let magic = bytes.first_chunk().map_or(0, |it| u16::from_le_bytes(*it));
        if magic != MAGIC {
            return Err(BtfError::Magic { found: magic });
        }
        let header = |at| word(bytes, at).ok_or(BtfError::Truncated { what: "header", at });
        let header_size = header(4)?;
        let section = |what, offset: u32, size: u32| {
            let start = (header_size as usize).saturating_add(offset as usize);
            bytes
                .get(start..start.saturating_add(size as usize))
                .ok_or(BtfError::Truncated { what, at: start })
        };
        let mut btf = Self {
            types: section("types", header(8)?, header(12)?)?,
            strings: section("strings", header(16)?, header(20)?)?,
            starts: Vec::new(),
            named: BTreeMap::new(),
        };
        let mut names: Vec<&str> = names.to_vec();
        names.sort_unstable();
        let mut at = 0;
        while at < btf.types.len() {
            let id = u32::try_from(btf.starts.len() + 1).map_err(|_e| BtfError::TooDeep)?;
            btf.starts
                .push(u32::try_from(at).map_err(|_e| BtfError::TooDeep)?);
            let one = btf.read_type(id, at)?;
            at = one.at.saturating_add(trailing_bytes(&one)?);
            if let Some(name) = btf.string(one.name)
                && names.binary_search(&name).is_ok()
            {
                btf.named.entry(name).or_default().push(id);
            }
        }
        if at > btf.types.len() {
            return Err(BtfError::Truncated { what: "type", at });
        }
        Ok(btf)
    }

    /// A field by its path, such as `self.parent` or `rss_stat[1].count`: members of embedded
    /// structures, never through a pointer. Members of anonymous structures need no step.
    pub fn field(&self, structure: &str, path: &str) -> Result<Field, BtfError> {
        let mut result = Err(BtfError::NoType {
            kind: "structure",
            name: structure.to_owned(),
        });
        // Several types can share a name, a forward declaration and its structure above all.
        for one in self.called(structure) {
            if matches!(one.kind, KIND_STRUCT | KIND_UNION) {
                result = self.walk(one, structure, path);
                if result.is_ok() {
                    break;
                }
            }
        }
        result
    }

    /// The value of an enumerator.
    pub fn enumerator(&self, enumeration: &str, name: &str) -> Result<i64, BtfError> {
        for one in self.called(enumeration) {
            let size = match one.kind {
                KIND_ENUM => 8,
                KIND_ENUM64 => 12,
                _ => continue,
            };
            for index in 0..one.n_members as usize {
                let at = one.at + index * size;
                if self.string(self.word(at)?) == Some(name) {
                    let low = self.word(at + 4)?;
                    return Ok(match one.kind {
                        KIND_ENUM => i64::from(low.cast_signed()),
                        _ => (u64::from(low) | u64::from(self.word(at + 8)?) << 32).cast_signed(),
                    });
                }
            }
        }
        Err(BtfError::NoType {
            kind: "enumerator",
            name: format!("{enumeration}.{name}"),
        })
    }

    /// Whether the kernel has a function of this name that a program could attach to.
    pub fn has_function(&self, name: &str) -> bool {
        self.called(name).any(|it| it.kind == KIND_FUNC)
    }

    /// What tracepoint `name` passes. The typedef `btf_trace_<name>` must have been asked for.
    pub fn tracepoint(&self, name: &str) -> Result<Vec<Argument>, BtfError> {
        let typedef = self
            .called(&format!("btf_trace_{name}"))
            .find(|it| it.kind == KIND_TYPEDEF)
            .ok_or_else(|| BtfError::NoType {
                kind: "tracepoint",
                name: name.to_owned(),
            })?;
        let pointer = self.expect(typedef.size_or_type, KIND_PTR)?;
        let function = self.expect(pointer.size_or_type, KIND_FUNC_PROTO)?;
        (1..function.n_members as usize)
            .map(|index| {
                let type_id = self.word(function.at + index * 8 + 4)?;
                Ok(match self.resolve(type_id)?.map(|it| it.kind) {
                    Some(KIND_PTR) => Argument::Pointer,
                    Some(KIND_INT | KIND_ENUM | KIND_ENUM64) => Argument::Scalar,
                    _ => Argument::Other,
                })
            })
            .collect()
    }

    /// The table for a reader that only turns names of typedefs and functions into ids: those that
    /// were asked for keep their ids, all others are nameless forward declarations. No types that
    /// they refer to are kept.
    pub fn abridged(&self) -> Vec<u8> {
        let kept: BTreeMap<u32, (&str, u32)> = self
            .named
            .iter()
            .flat_map(|(name, ids)| ids.iter().map(move |id| (*id, *name)))
            .filter_map(|(id, name)| Some((id, (name, self.get(id).ok()?.kind))))
            .filter(|(_, (_, kind))| matches!(*kind, KIND_TYPEDEF | KIND_FUNC))
            .collect();
        let last = kept.keys().next_back().copied().unwrap_or(0);
        let mut types = Vec::with_capacity(last as usize * 12);
        let mut strings = vec![0];
        for id in 1..=last {
            let (name_at, kind) = match kept.get(&id) {
                Some((name, kind)) => {
                    let at = strings.len();
                    strings.extend(name.as_bytes());
                    strings.push(0);
                    (at, *kind)
                }
                None => (0, KIND_FWD),
            };
            types.extend(length(name_at));
            types.extend((kind << 24).to_le_bytes());
            types.extend(0_u32.to_le_bytes());
        }
        let mut bytes = Vec::with_capacity(HEADER_BYTES + types.len() + strings.len());
        bytes.extend(MAGIC.to_le_bytes());
        // Version 1, no flags.
        bytes.extend([1, 0]);
        bytes.extend(length(HEADER_BYTES));
        for (offset, section) in [(0, &types), (types.len(), &strings)] {
            bytes.extend(length(offset));
            bytes.extend(length(section.len()));
        }
        bytes.extend(types);
        bytes.extend(strings);
        bytes
    }

    fn walk(&self, one: Type, structure: &str, path: &str) -> Result<Field, BtfError> {
        let no_field = || BtfError::NoField {
            structure: structure.to_owned(),
            field: path.to_owned(),
        };
        let mut place = (one, 0_u32);
        let mut field = None;
        for step in path.split('.') {
            let (name, index) = match step.strip_suffix(']').and_then(|it| it.split_once('[')) {
                Some((name, index)) => {
                    let index = index.parse::<u32>().map_err(|_e| no_field())?;
                    (name, Some(index))
                }
                None => (step, None),
            };
            let (bits, mut type_id) = self.member(place.0, name, 0)?.ok_or_else(no_field)?;
            if bits % 8 != 0 {
                return Err(BtfError::BitField {
                    structure: structure.to_owned(),
                    field: path.to_owned(),
                });
            }
            let mut offset = place.1.checked_add(bits / 8).ok_or_else(no_field)?;
            if let Some(index) = index {
                let array = self.resolve(type_id)?.ok_or_else(no_field)?;
                if array.kind != KIND_ARRAY || index >= self.word(array.at + 8)? {
                    return Err(no_field());
                }
                type_id = self.word(array.at)?;
                offset = self
                    .size_of(type_id, 0)?
                    .checked_mul(index)
                    .and_then(|it| offset.checked_add(it))
                    .ok_or_else(no_field)?;
            }
            field = Some((offset, type_id));
            if let Some(inner) = self.resolve(type_id)? {
                place = (inner, offset);
            }
        }
        let (offset, type_id) = field.ok_or_else(no_field)?;
        let size = self.size_of(type_id, 0)?;
        Ok(Field { offset, size })
    }

    /// Offset in bits and type of a member, also of anonymous members. An offset with a bit size is
    /// made odd, since a program cannot load it.
    fn member(&self, one: Type, name: &str, depth: u32) -> Result<Option<(u32, u32)>, BtfError> {
        if depth > MAX_NESTING {
            return Err(BtfError::TooDeep);
        }
        if !matches!(one.kind, KIND_STRUCT | KIND_UNION) {
            return Ok(None);
        }
        for index in 0..one.n_members as usize {
            let at = one.at + index * 12;
            let (name_at, type_id, raw) = (self.word(at)?, self.word(at + 4)?, self.word(at + 8)?);
            let (bits, bit_size) = if one.has_bit_fields {
                (raw & 0x00ff_ffff, raw >> 24)
            } else {
                (raw, 0)
            };
            match self.string(name_at) {
                Some("") => {
                    if let Some(inner) = self.resolve(type_id)?
                        && let Some((more, type_id)) = self.member(inner, name, depth + 1)?
                    {
                        return Ok(Some((bits.saturating_add(more), type_id)));
                    }
                }
                Some(it) if it == name => {
                    let bits = if bit_size == 0 { bits } else { bits | 1 };
                    return Ok(Some((bits, type_id)));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// In bytes; 0 for void.
    fn size_of(&self, type_id: u32, depth: u32) -> Result<u32, BtfError> {
        if depth > MAX_NESTING {
            return Err(BtfError::TooDeep);
        }
        let Some(one) = self.resolve(type_id)? else {
            return Ok(0);
        };
        match one.kind {
            KIND_PTR => Ok(8),
            KIND_INT | KIND_STRUCT | KIND_UNION | KIND_ENUM | KIND_ENUM64 | KIND_FLOAT => {
                Ok(one.size_or_type)
            }
            KIND_ARRAY => {
                let element = self.size_of(self.word(one.at)?, depth + 1)?;
                element
                    .checked_mul(self.word(one.at + 8)?)
                    .ok_or(BtfError::TooDeep)
            }
            _ => Ok(0),
        }
    }

    /// The type behind typedefs and qualifiers; `None` for void.
    fn resolve(&self, mut type_id: u32) -> Result<Option<Type>, BtfError> {
        for _ in 0..MAX_NESTING {
            if type_id == 0 {
                return Ok(None);
            }
            let one = self.get(type_id)?;
            match one.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    type_id = one.size_or_type;
                }
                _ => return Ok(Some(one)),
            }
        }
        Err(BtfError::TooDeep)
    }

    fn expect(&self, type_id: u32, kind: u32) -> Result<Type, BtfError> {
        match self.resolve(type_id)? {
            Some(one) if one.kind == kind => Ok(one),
            other => Err(BtfError::UnexpectedKind {
                id: type_id,
                found: other.map_or("void", |it| kind_name(it.kind)),
                wanted: kind_name(kind),
            }),
        }
    }

    fn called(&self, name: &str) -> impl Iterator<Item = Type> {
        let ids = self.named.get(name).map_or(&[][..], Vec::as_slice);
        ids.iter().filter_map(|id| self.get(*id).ok())
    }

    fn get(&self, id: u32) -> Result<Type, BtfError> {
        let at = (id as usize)
            .checked_sub(1)
            .and_then(|index| self.starts.get(index))
            .ok_or(BtfError::Truncated {
                what: "type id",
                at: id as usize,
            })?;
        self.read_type(id, *at as usize)
    }

    fn read_type(&self, id: u32, at: usize) -> Result<Type, BtfError> {
        let info = self.word(at.saturating_add(4))?;
        Ok(Type {
            id,
            at: at.saturating_add(12),
            name: self.word(at)?,
            kind: info >> 24 & 0x1f,
            n_members: info & 0xffff,
            has_bit_fields: info >> 31 != 0,
            size_or_type: self.word(at.saturating_add(8))?,
        })
    }

    fn word(&self, at: usize) -> Result<u32, BtfError> {
        word(self.types, at).ok_or(BtfError::Truncated { what: "type", at })
    }

    /// `None` for what is no text or has no end.
    fn string(&self, at: u32) -> Option<&'a str> {
        let rest = self.strings.get(at as usize..)?;
        let end = rest.iter().position(|it| *it == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    }
}

/// A size or an offset as BTF has it. The sections come from a table whose own sizes fit.
fn length(n: usize) -> [u8; 4] {
    u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// What follows the three words of a type.
fn trailing_bytes(one: &Type) -> Result<usize, BtfError> {
    let n = one.n_members as usize;
    Ok(match one.kind {
        KIND_PTR | KIND_FWD | KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT
        | KIND_FUNC | KIND_FLOAT | KIND_TYPE_TAG => 0,
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => 12,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => n * 12,
        KIND_ENUM | KIND_FUNC_PROTO => n * 8,
        kind => return Err(BtfError::UnknownKind { id: one.id, kind }),
    })
}

fn kind_name(kind: u32) -> &'static str {
    match kind {
        KIND_PTR => "a pointer",
        KIND_FUNC_PROTO => "a function type",
        KIND_STRUCT => "a structure",
        KIND_INT => "an integer",
        _ => "something else",
    }
}

#[cfg(test)]
pub(super) mod tests;
