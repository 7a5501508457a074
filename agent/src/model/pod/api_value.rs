//! A document as the API reads it, which takes more than the typed v1.Pod: where nothing is written for an entry of a
//! map or of a list (`labels: {a: }`) it is empty, and a quantity may be a bare number (`cpu: 2`). Of times it takes
//! less.

use std::iter;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct ApiValue<'de>(pub &'de Value);

impl<'de> Deserializer<'de> for ApiValue<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(SeqDeserializer::new(items.iter().map(Self))),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(name, it)| (name.as_str(), Self(it)));
                visitor.visit_map(MapDeserializer::new(fields))
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    /// A field that may be left out; the others are entries.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_str(""),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_i64(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_i64(0),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => {
                visitor.visit_map(MapDeserializer::new(iter::empty::<(&str, ApiValue<'_>)>()))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        match (name, self.0) {
            ("Quantity", Value::Null) => visitor.visit_str("0"),
            ("Quantity", Value::Number(number)) => visitor.visit_string(number.to_string()),
            ("Time", Value::String(text)) if !is_time(text) => Err(de::Error::custom(
                format_args!("{text:?} is no time; right would be as 2006-01-02T15:04:05Z"),
            )),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 u8 u16 u32 u64 f32 f64 char str bytes byte_buf unit unit_struct seq tuple tuple_struct map enum
        identifier ignored_any
    }
}

/// It has the form of RFC 3339 as Go reads it: with a capital T and Z.
fn is_time(text: &str) -> bool {
    let form = text.replace(|it: char| it.is_ascii_digit(), "0");
    let rest = form.strip_prefix("0000-00-00T00:00:00").unwrap_or_default();
    let offset = match rest.strip_prefix(['.', ',']) {
        Some(fraction) => fraction.trim_start_matches('0'),
        None => rest,
    };
    matches!(offset, "Z" | "+00:00" | "-00:00")
}

impl<'de> IntoDeserializer<'de, Error> for ApiValue<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}
