//! YAML and JSON text as JSON values, the way Kubernetes reads manifests: YAML is converted to
//! JSON first, so keys are strings and only the types of JSON are left.
//!
//! Invariants: a key stands once in a mapping, unless it is read as kubelet reads its own configuration; an alias
//! stands for the last anchor of its name before it, and cannot grow a document beyond [`Budget`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// How large a document may become once its aliases are expanded. A manifest of a thousand
/// containers has about 50 000 nodes; the bounds keep the value of a hostile one below 100 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Scalars, sequences and mappings together.
    pub nodes: usize,
    /// Bytes of all keys and strings.
    pub text_bytes: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            nodes: 200_000,
            text_bytes: 16 << 20,
        }
    }
}

/// The text is not a document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct DocumentError {
    /// Line and column, both from 1, where the parser knows them.
    pub place: Option<(usize, usize)>,
    pub message: String,
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "line {line}, column {column}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// More than any document has. libyaml compares each with all before it, so a megabyte of them takes
/// it seconds.
const MAX_DIRECTIVES: usize = 100;

/// One document of a YAML stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    pub text: &'a str,
    /// Lines of the stream before `text`.
    pub lines_before: usize,
}

/// Cuts a YAML stream at its `---` lines, so that a fault in one document leaves the others
/// readable. Documents without content (comments alone) are left out.
///
/// YAML 1.2 (9.1.2) gives a line that begins with `---` no other meaning, not even inside a block
/// scalar.
pub fn split_stream(text: &str) -> Vec<Chunk<'_>> {
    let mut chunks = Vec::new();
    let mut start = 0;
    let mut lines_before = 0;
    let mut has_content = false;
    let mut has_marker = false;
    let mut offset = 0;
    for (line_number, line) in text.split_inclusive('\n').enumerate() {
        if is_marker(line) && (has_content || has_marker) {
            if has_content {
                chunks.push(Chunk {
                    text: &text[start..offset],
                    lines_before,
                });
            }
            start = offset;
            lines_before = line_number;
            has_content = false;
        }
        has_marker |= is_marker(line);
        has_content |= is_content(line);
        offset += line.len();
    }
    if has_content {
        chunks.push(Chunk {
            text: &text[start..],
            lines_before,
        });
    }
    chunks
}

fn is_marker(line: &str) -> bool {
    line.strip_prefix("---")
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_content(line: &str) -> bool {
    let text = if is_marker(line) { &line[3..] } else { line }.trim();
    !text.is_empty() && !text.starts_with('#') && !line.starts_with('%') && text != "..."
}

/// Parses one YAML document. A text without content is `Null`.
pub fn parse_yaml(text: &str, budget: Budget) -> Result<Value, DocumentError> {
    parse(text, &Meter::new(budget))
}

/// As [`parse_yaml`], but of a key that stands twice in a mapping the last one counts. Gives these keys too.
pub fn parse_yaml_where_the_last_counts(
    text: &str,
    budget: Budget,
) -> Result<(Value, Vec<String>), DocumentError> {
    let meter = Meter {
        twice: Some(RefCell::default()),
        ..Meter::new(budget)
    };
    let value = parse(text, &meter)?;
    let twice = meter.twice.map(RefCell::into_inner);
    Ok((value, twice.unwrap_or_default()))
}

fn parse(text: &str, meter: &Meter) -> Result<Value, DocumentError> {
    // The parser sees "no document" as an error; for Kubernetes it is a document without content.
    if !text.lines().any(is_content) {
        return Ok(Value::Null);
    }
    if nests_too_deep(text) {
        return Err(DocumentError {
            place: None,
            message: "brackets are nested too deep".into(),
        });
    }
    if text.lines().filter(|it| it.starts_with('%')).count() > MAX_DIRECTIVES {
        return Err(DocumentError {
            place: None,
            message: format!("has more than {MAX_DIRECTIVES} lines that begin with `%`"),
        });
    }
    if let Some((at, name)) = mistaken_alias(text) {
        let before = &text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|it| *it != '\n').count() + 1;
        return Err(DocumentError {
            place: Some((line, column)),
            message: format!(
                "the alias *{name} would have the value of another anchor, since an anchor is defined more than once: \
                 give each a name of its own"
            ),
        });
    }
    let seed = Node { meter };
    seed.deserialize(serde_yaml_ng::Deserializer::from_str(text))
        .map_err(|error| {
            let place = error.location().map(|it| (it.line(), it.column()));
            let message = without_places(&error.to_string());
            DocumentError {
                place,
                message: match message.as_str() {
                    "recursion limit exceeded" => "is nested deeper than 128 levels".into(),
                    _ => message,
                },
            }
        })
}

/// The first alias that the parser takes for another anchor than the last of its name before it, and where it stands.
///
/// The parser numbers an anchor by how many names there are by then, so one that is defined anew can share its number
/// with another, and the last of them counts for all (serde_yaml_ng 0.10, loader.rs: `next_document`). What looks like
/// an anchor inside a string counts too.
fn mistaken_alias(text: &str) -> Option<(usize, &str)> {
    // Of a name the number of its last anchor, and where that stands.
    let mut anchors: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    let mut last_of_number: BTreeMap<usize, usize> = BTreeMap::new();
    let mut aliases = Vec::new();
    for (at, sign) in text.match_indices(['&', '*']) {
        let before = text[..at].chars().next_back();
        let begins = before.is_none_or(|it| it.is_whitespace() || "[{,:".contains(it));
        let rest = &text[at + 1..];
        let end = rest.find(|it: char| !it.is_ascii_alphanumeric() && it != '_' && it != '-');
        let name = &rest[..end.unwrap_or(rest.len())];
        if name.is_empty() || !begins {
            continue;
        }
        if sign == "&" {
            let number = anchors.len();
            anchors.insert(name, (number, at));
            last_of_number.insert(number, at);
        } else if let Some(anchor) = anchors.get(name) {
            aliases.push((at, name, *anchor));
        }
    }
    let mut aliases = aliases.into_iter();
    let (at, name, _) =
        aliases.find(|(_, _, (number, anchor))| last_of_number.get(number) != Some(anchor))?;
    Some((at, name))
}

/// The place is told by its own field, and that of the context (`while parsing ... at line 1
/// column 1`) is counted from the begin of one document.
fn without_places(message: &str) -> String {
    let digits = |it: &str| it.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let after_place = |it: &str| -> Option<usize> {
        let line = &it[it.len() - digits(it)..];
        let column = line.strip_prefix(" column ")?;
        Some(digits(column))
    };
    let mut parts = message.split(" at line ");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match after_place(part) {
            Some(n) => text.push_str(&part[part.len() - n..]),
            None => {
                text.push_str(" at line ");
                text.push_str(part);
            }
        }
    }
    text
}

/// Whether more brackets are open at some place than any document needs.
///
/// libyaml's scanner looks at every open flow collection for every token, so a mebibyte of
/// `{a: ` takes it minutes. Brackets inside strings count too: 512 of them left open is no
/// manifest either.
fn nests_too_deep(text: &str) -> bool {
    let mut depth: u32 = 0;
    text.bytes().any(|byte| {
        depth = match byte {
            b'[' | b'{' => depth + 1,
            b']' | b'}' => depth.saturating_sub(1),
            _ => depth,
        };
        depth > 512
    })
}

/// Parses JSON values that follow each other.
pub fn parse_json_stream(text: &str, budget: Budget) -> Result<Vec<Value>, DocumentError> {
    let meter = Meter::new(budget);
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut values = Vec::new();
    while deserializer.end().is_err() {
        let seed = Node { meter: &meter };
        let value = seed.deserialize(&mut deserializer).map_err(|error| {
            let mut message = error.to_string();
            if let Some(cut) = message.rfind(" at line ") {
                message.truncate(cut);
            }
            DocumentError {
                place: Some((error.line(), error.column())),
                message,
            }
        })?;
        values.push(value);
    }
    Ok(values)
}

/// What is left of a [`Budget`], and what was found on the way.
struct Meter {
    nodes: Cell<usize>,
    text_bytes: Cell<usize>,
    /// Keys that stand twice; `None`: they are faults.
    twice: Option<RefCell<Vec<String>>>,
}

impl Meter {
    fn new(budget: Budget) -> Self {
        Self {
            nodes: Cell::new(budget.nodes),
            text_bytes: Cell::new(budget.text_bytes),
            twice: None,
        }
    }

    fn node<E: Error>(&self) -> Result<(), E> {
        spend(&self.nodes, 1)
            .ok_or_else(|| E::custom("the document has too many values (aliases count each time)"))
    }

    fn text<E: Error>(&self, text: &str) -> Result<(), E> {
        spend(&self.text_bytes, text.len())
            .ok_or_else(|| E::custom("the document has too much text (aliases count each time)"))
    }
}

fn spend(left: &Cell<usize>, amount: usize) -> Option<()> {
    left.set(left.get().checked_sub(amount)?);
    Some(())
}

/// Builds one value and pays for it.
#[derive(Clone, Copy)]
struct Node<'a> {
    meter: &'a Meter,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag of its own")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.meter.node()?;
        Ok(Value::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        self.meter.node()?;
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        self.meter.node()?;
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        self.meter.node()?;
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        self.meter.node()?;
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.meter.node()?;
        self.meter.text(value)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        self.meter.node()?;
        let mut items = Vec::new();
        while let Some(item) = from.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        self.meter.node()?;
        let mut fields = Map::new();
        let mut merged = Vec::new();
        while let Some(key) = from.next_key_seed(self)? {
            let key = key_text(key).ok_or_else(|| A::Error::custom("a key must be a scalar"))?;
            let value = from.next_value_seed(self)?;
            if key == "<<" && matches!(value, Value::Object(_) | Value::Array(_)) {
                merged.push(value);
                continue;
            }
            if fields.contains_key(&key) {
                let Some(twice) = &self.meter.twice else {
                    let message = format_args!("the key {key:?} stands twice");
                    return Err(A::Error::custom(message));
                };
                twice.borrow_mut().push(key.clone());
            }
            fields.insert(key, value);
        }
        merged.into_iter().for_each(|it| merge(&mut fields, it));
        Ok(Value::Object(fields))
    }
}

/// A key as the conversion to JSON writes it; `None` for a sequence or mapping.
fn key_text(key: Value) -> Option<String> {
    match key {
        Value::String(text) => Some(text),
        Value::Null => Some("null".into()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(value) => Some(value.to_string()),
        Value::Array(_) | Value::Object(_) => None,
    }
}

/// YAML 1.1 merge key: adds what is not there yet; of several mappings the first wins.
fn merge(fields: &mut Map<String, Value>, from: Value) {
    match from {
        Value::Object(more) => {
            for (key, value) in more {
                fields.entry(key).or_insert(value);
            }
        }
        Value::Array(items) => items.into_iter().for_each(|item| merge(fields, item)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
