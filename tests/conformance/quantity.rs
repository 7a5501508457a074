//! Suite `quantity`: texts read, printed, and computed with.

use std::cmp::Ordering;

use anyhow::{Context, bail};
use ballast::model::quantity::{Format, Quantity, QuantityError};
use serde_json::{Value, json};

use crate::resources::text;

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    match text(input, "op")? {
        "parse" => match text(input, "text")?.parse::<Quantity>() {
            Ok(quantity) => {
                let canonical = quantity.to_string();
                let again: Quantity = canonical
                    .parse()
                    .with_context(|| format!("read {canonical} again"))?;
                let mut shown = show(&quantity);
                shown["canonical_again"] = json!(again.to_string());
                Ok(shown)
            }
            Err(error) => Ok(json!({"error": kind(&error)})),
        },
        "json" => {
            let quantity = from_json(text(input, "text")?);
            Ok(quantity.map_or_else(|| json!({"error": "json"}), |it| show(&it)))
        }
        "arith" => {
            let operand = |name| -> anyhow::Result<Quantity> {
                let text = text(input, name)?;
                text.parse().with_context(|| format!("operand {name}"))
            };
            let (a, b) = (operand("a")?, operand("b")?);
            Ok(json!({
                "add": show(&a.plus(&b)),
                "sub": show(&a.minus(&b)),
                "cmp": match a.cmp(&b) {
                    Ordering::Less => -1,
                    Ordering::Equal => 0,
                    Ordering::Greater => 1,
                },
            }))
        }
        other => bail!("unknown op {other}"),
    }
}

/// A JSON value: the text of a string, or a number as it is written. Reading a number as a float
/// would lose its form.
fn from_json(text: &str) -> Option<Quantity> {
    let text = match serde_json::from_str::<Value>(text).ok()? {
        Value::String(text) => text,
        Value::Null => return Some(Quantity::ZERO),
        _ => text.to_owned(),
    };
    text.trim().parse().ok()
}

fn kind(error: &QuantityError) -> &'static str {
    match error {
        QuantityError::Format { .. } => "format-wrong",
        QuantityError::Numeric { .. } => "bad-numeric",
        QuantityError::Suffix { .. } => "bad-suffix",
    }
}

fn show(quantity: &Quantity) -> Value {
    json!({
        "as_int64": quantity.as_i64(),
        "canonical": quantity.to_string(),
        "format": match quantity.format() {
            Format::DecimalSi => "DecimalSI",
            Format::BinarySi => "BinarySI",
            Format::DecimalExponent => "DecimalExponent",
        },
        "is_zero": quantity.is_zero(),
        "milli_value": quantity.milli_value(),
        "sign": i32::from(quantity.is_positive()) - i32::from(quantity.is_negative()),
        "value": quantity.value(),
    })
}
