//! JSON as Go reads and writes it: keys of structs in any case, unknown ones ignored, null for
//! nothing; `<`, `>` and `&` escaped, keys of maps in the order of their text.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, PAD};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::ser::{CompactFormatter, Formatter};

use crate::model::pod::PodUid;

/// Why a text is not the JSON of a state file.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("no JSON")]
    Syntax(#[from] serde_json::Error),
    #[error("{field}: not {wanted}")]
    Type { field: String, wanted: &'static str },
}

/// Go's own base64, which lets the unused bits of the last character pass.
const BASE64: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, PAD.with_decode_allow_trailing_bits(true));

/// Any JSON value; objects keep order and repetition.
#[derive(Debug)]
pub(super) enum Node {
    Null,
    Bool,
    Unsigned(u64),
    Negative(i64),
    /// Not an integer, or not one of 64 bits.
    OtherNumber,
    Text(String),
    List(Vec<Node>),
    Object(Vec<(String, Node)>),
}

/// A value of a state file. Null and an absent field are the default.
pub(super) trait FromJson: Sized + Default {
    const WANTED: &'static str;

    /// `None`: the node is of another kind.
    fn from_json(node: Node) -> Result<Option<Self>, JsonError>;
}

pub(super) fn parse<T: FromJson>(bytes: &[u8]) -> Result<T, JsonError> {
    of(serde_json::from_slice(bytes)?, "the file")
}

fn of<T: FromJson>(node: Node, field: &str) -> Result<T, JsonError> {
    if matches!(node, Node::Null) {
        return Ok(T::default());
    }
    T::from_json(node)?.ok_or_else(|| JsonError::Type {
        field: field.to_owned(),
        wanted: T::WANTED,
    })
}

/// The fields of a struct.
pub(super) struct Fields(Vec<(String, Node)>);

impl Fields {
    /// `None`: the node is no object.
    pub(super) fn of(node: Node) -> Option<Self> {
        match node {
            Node::Object(fields) => Some(Self(fields)),
            _ => None,
        }
    }

    /// The last of that name counts.
    pub(super) fn take<T: FromJson>(&mut self, name: &str) -> Result<T, JsonError> {
        let at = self
            .0
            .iter()
            .rposition(|(key, _)| key.eq_ignore_ascii_case(name));
        let Some(at) = at else {
            return Ok(T::default());
        };
        of(std::mem::replace(&mut self.0[at].1, Node::Null), name)
    }
}

/// Go decodes a number into the kind of integer that the field has, and refuses fractions.
impl FromJson for u64 {
    const WANTED: &'static str = "an unsigned 64-bit integer";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        Ok(match node {
            Node::Unsigned(n) => Some(n),
            _ => None,
        })
    }
}

impl FromJson for i64 {
    const WANTED: &'static str = "a 64-bit integer";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        Ok(match node {
            Node::Unsigned(n) => i64::try_from(n).ok(),
            Node::Negative(n) => Some(n),
            _ => None,
        })
    }
}

impl FromJson for String {
    const WANTED: &'static str = "a string";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        Ok(match node {
            Node::Text(text) => Some(text),
            _ => None,
        })
    }
}

/// Bytes are base64; as in Go, line ends in it do not count.
impl FromJson for Vec<u8> {
    const WANTED: &'static str = "base64";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Node::Text(mut text) = node else {
            return Ok(None);
        };
        text.retain(|it| it != '\n' && it != '\r');
        Ok(BASE64.decode(text).ok())
    }
}

impl<T: FromJson> FromJson for Vec<T> {
    const WANTED: &'static str = "a list";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Node::List(nodes) = node else {
            return Ok(None);
        };
        let elements = nodes.into_iter().map(|node| of(node, "an element"));
        elements.collect::<Result<_, _>>().map(Some)
    }
}

impl<T: FromJson> FromJson for Option<T> {
    const WANTED: &'static str = T::WANTED;

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        Ok(T::from_json(node)?.map(Some))
    }
}

impl<K: Key, V: FromJson> FromJson for BTreeMap<K, V> {
    const WANTED: &'static str = "an object";

    fn from_json(node: Node) -> Result<Option<Self>, JsonError> {
        let Node::Object(fields) = node else {
            return Ok(None);
        };
        let mut map = Self::new();
        for (name, node) in fields {
            let value = of(node, &name)?;
            let key = K::from_key(name).map_err(|field| JsonError::Type {
                field,
                wanted: "a key that is an integer",
            })?;
            map.insert(key, value);
        }
        Ok(Some(map))
    }
}

/// Key of a map.
pub(super) trait Key: Ord {
    /// Gives the text back that is no such key.
    fn from_key(text: String) -> Result<Self, String>
    where
        Self: Sized;
}

impl Key for String {
    fn from_key(text: String) -> Result<Self, String> {
        Ok(text)
    }
}

impl Key for PodUid {
    fn from_key(text: String) -> Result<Self, String> {
        Ok(Self(text))
    }
}

impl Key for i64 {
    fn from_key(text: String) -> Result<Self, String> {
        text.parse().ok().ok_or(text)
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Node, E> {
        Ok(Node::Bool)
    }

    fn visit_u64<E>(self, n: u64) -> Result<Node, E> {
        Ok(Node::Unsigned(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Node, E> {
        Ok(Node::Negative(n))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Node, E> {
        Ok(Node::OtherNumber)
    }

    fn visit_str<E>(self, text: &str) -> Result<Node, E> {
        Ok(Node::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut nodes = Vec::new();
        while let Some(node) = list.next_element()? {
            nodes.push(node);
        }
        Ok(Node::List(nodes))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Node, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = object.next_entry()? {
            fields.push(field);
        }
        Ok(Node::Object(fields))
    }
}

/// The bytes that Go writes for the value: one line without an end.
pub(super) fn to_text(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, GoFormatter);
    value
        .serialize(&mut serializer)
        .expect("state files have string keys and no foreign types");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(['<', '>', '&', '\u{2028}', '\u{2029}']) {
            let (plain, special) = rest.split_at(at);
            CompactFormatter.write_string_fragment(writer, plain)?;
            let mut chars = special.chars();
            if let Some(special) = chars.next() {
                write!(writer, "\\u{:04x}", u32::from(special))?;
            }
            rest = chars.as_str();
        }
        CompactFormatter.write_string_fragment(writer, rest)
    }
}

/// For `serialize_with`: Go sorts the keys of maps by their text, so 10 before 2.
pub(super) fn by_key_text<V: Serialize, S: Serializer>(
    map: &BTreeMap<i64, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let by_text: BTreeMap<String, &V> = map.iter().map(|(k, v)| (k.to_string(), v)).collect();
    by_text.serialize(serializer)
}

/// For `serialize_with`.
pub(super) fn base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&BASE64.encode(bytes))
}
