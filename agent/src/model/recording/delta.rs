//! The difference of two JSON values as bytes.
//!
//! Built for snapshots of a node: the same fields again and again, of which few change, and those
//! by little. What is alike costs a byte, which deflate then takes away.
//!
//! Invariant: an element of the old value is taken over at most once, so the new value is never
//! larger than the bytes that made it allow.

use serde_json::{Map, Number, Value};

/// Deeper values are not written as a difference and not read as one. A snapshot is 8 deep.
const MAX_DEPTH: usize = 32;

/// What a value is, compared with the old one.
mod tag {
    pub(super) const SAME: u8 = 0;
    /// A whole number that differs by: zigzag varint.
    pub(super) const SHIFT: u8 = 1;
    /// Another value: length, JSON.
    pub(super) const SET: u8 = 2;
    /// An object with the same keys: a difference each, in the order of the keys.
    pub(super) const FIELDS: u8 = 3;
    /// An object: number of keys; length, key and difference each.
    pub(super) const OBJECT: u8 = 4;
    /// An array: number of elements; of each the old one it is made from, and the difference.
    ///
    /// 0: from none; else 1 + how many are passed over since the last that was used.
    pub(super) const ARRAY: u8 = 5;
}

/// The bytes are no difference to the value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    #[error("ends too early")]
    Short,
    #[error("goes on after its end")]
    Long,
    #[error("has a part of no known kind")]
    Tag,
    #[error("has a value that is no JSON")]
    Json,
    #[error("does not fit the value before")]
    Unfit,
    #[error("is nested too deeply")]
    Depth,
}

/// What makes `new` out of `old`.
pub(super) fn between(old: &Value, new: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write(old, new, MAX_DEPTH, &mut out);
    out
}

fn write(old: &Value, new: &Value, depth: usize, out: &mut Vec<u8>) {
    match (old, new) {
        _ if old == new => out.push(tag::SAME),
        (Value::Number(old), Value::Number(new)) if distance(old, new).is_some() => {
            out.push(tag::SHIFT);
            write_varint(zigzag(distance(old, new).unwrap_or_default()), out);
        }
        (Value::Object(old), Value::Object(new)) if depth > 0 => {
            write_object(old, new, depth - 1, out);
        }
        (Value::Array(old), Value::Array(new)) if depth > 0 => {
            write_array(old, new, depth - 1, out);
        }
        _ => {
            out.push(tag::SET);
            write_bytes(new.to_string().as_bytes(), out);
        }
    }
}

fn write_object(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    depth: usize,
    out: &mut Vec<u8>,
) {
    if old.keys().eq(new.keys()) {
        out.push(tag::FIELDS);
        for (old, new) in old.values().zip(new.values()) {
            write(old, new, depth, out);
        }
        return;
    }
    out.push(tag::OBJECT);
    write_varint(new.len() as u64, out);
    for (key, new) in new {
        write_bytes(key.as_bytes(), out);
        write(old.get(key).unwrap_or(&Value::Null), new, depth, out);
    }
}

fn write_array(old: &[Value], new: &[Value], depth: usize, out: &mut Vec<u8>) {
    out.push(tag::ARRAY);
    write_varint(new.len() as u64, out);
    // Ascending, so that none is used twice.
    let mut next = 0;
    for new in new {
        let rest = old.get(next..).unwrap_or_default();
        let found = rest.iter().position(|old| is_alike(old, new));
        match found.and_then(|ahead| Some((ahead, rest.get(ahead)?))) {
            Some((ahead, old)) => {
                write_varint(1 + ahead as u64, out);
                write(old, new, depth, out);
                next += ahead + 1;
            }
            None => {
                write_varint(0, out);
                write(&Value::Null, new, depth, out);
            }
        }
    }
}

/// Whether two elements are about the same thing: what has a pod is about that pod, and anything
/// else is at its place.
fn is_alike(old: &Value, new: &Value) -> bool {
    uid(old) == uid(new)
}

fn uid(element: &Value) -> Option<&Value> {
    let facts = element.get("facts").unwrap_or(element);
    facts.get("pod")?.get("uid")
}

/// `None`: one is no whole number, or the difference is none of 64 bits.
fn distance(old: &Number, new: &Number) -> Option<i64> {
    i64::try_from(whole(new)? - whole(old)?).ok()
}

fn whole(number: &Number) -> Option<i128> {
    let unsigned = number.as_u64().map(i128::from);
    unsigned.or_else(|| number.as_i64().map(i128::from))
}

fn number(whole: i128) -> Option<Number> {
    match u64::try_from(whole) {
        Ok(unsigned) => Some(unsigned.into()),
        Err(_negative_or_large) => i64::try_from(whole).ok().map(Number::from),
    }
}

fn zigzag(n: i64) -> u64 {
    (n.cast_unsigned() << 1) ^ (n >> 63).cast_unsigned()
}

fn from_zigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -((n & 1).cast_signed())
}

fn write_varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push(0x80 | (n & 0x7f) as u8);
        n >>= 7;
    }
    out.push((n & 0x7f) as u8);
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// The value that [`between`] made the bytes for.
pub(super) fn apply(old: Value, bytes: &[u8]) -> Result<Value, DeltaError> {
    let mut reader = Reader { rest: bytes };
    let new = reader.value(old, MAX_DEPTH)?;
    match reader.rest.is_empty() {
        true => Ok(new),
        false => Err(DeltaError::Long),
    }
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn value(&mut self, old: Value, depth: usize) -> Result<Value, DeltaError> {
        match (self.byte()?, old) {
            (tag::SAME, old) => Ok(old),
            (tag::SET, _) => serde_json::from_slice(self.bytes()?).or(Err(DeltaError::Json)),
            (tag::SHIFT, Value::Number(old)) => {
                let shift = from_zigzag(self.varint()?);
                let old = whole(&old).ok_or(DeltaError::Unfit)?;
                let new = number(old + i128::from(shift)).ok_or(DeltaError::Unfit)?;
                Ok(Value::Number(new))
            }
            (tag::FIELDS, Value::Object(mut fields)) => {
                let depth = depth.checked_sub(1).ok_or(DeltaError::Depth)?;
                for field in fields.values_mut() {
                    *field = self.value(std::mem::take(field), depth)?;
                }
                Ok(Value::Object(fields))
            }
            (tag::OBJECT, Value::Object(old)) => self.object(old, depth),
            (tag::ARRAY, Value::Array(old)) => self.array(old, depth),
            (tag::SHIFT | tag::FIELDS | tag::OBJECT | tag::ARRAY, _) => Err(DeltaError::Unfit),
            _ => Err(DeltaError::Tag),
        }
    }

    fn object(&mut self, mut old: Map<String, Value>, depth: usize) -> Result<Value, DeltaError> {
        let depth = depth.checked_sub(1).ok_or(DeltaError::Depth)?;
        let mut new = Map::new();
        for _ in 0..self.varint()? {
            let key = std::str::from_utf8(self.bytes()?).or(Err(DeltaError::Json))?;
            let key = key.to_owned();
            let before = old.remove(&key).unwrap_or_default();
            new.insert(key, self.value(before, depth)?);
        }
        Ok(Value::Object(new))
    }

    fn array(&mut self, old: Vec<Value>, depth: usize) -> Result<Value, DeltaError> {
        let depth = depth.checked_sub(1).ok_or(DeltaError::Depth)?;
        let mut old = old.into_iter();
        let mut new = Vec::new();
        for _ in 0..self.varint()? {
            let before = match self.varint()?.checked_sub(1) {
                None => Value::Null,
                Some(ahead) => usize::try_from(ahead)
                    .ok()
                    .and_then(|ahead| old.nth(ahead))
                    .ok_or(DeltaError::Unfit)?,
            };
            new.push(self.value(before, depth)?);
        }
        Ok(Value::Array(new))
    }

    fn byte(&mut self) -> Result<u8, DeltaError> {
        let (first, rest) = self.rest.split_first().ok_or(DeltaError::Short)?;
        self.rest = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64, DeltaError> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(DeltaError::Unfit)
    }

    fn bytes(&mut self) -> Result<&[u8], DeltaError> {
        let length = usize::try_from(self.varint()?).or(Err(DeltaError::Short))?;
        let (bytes, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(DeltaError::Short)?;
        self.rest = rest;
        Ok(bytes)
    }
}
