//! The value of an eviction threshold, as far as it is a reservation: an amount, or a fraction of
//! the capacity.

use crate::model::quantity::{Format, Quantity, QuantityError};

/// A threshold: below this much available, pods are evicted.
#[derive(Clone, Debug, PartialEq)]
pub enum ThresholdValue {
    /// Above 0.
    Quantity(Quantity),
    /// 0 to 1. A 32-bit float, as in kubelet: 5 % of 10 Gi is 536870920.
    Fraction(f32),
}

impl Eq for ThresholdValue {}

/// Why a text is not a threshold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    #[error("{signal}: `{text}` is not a percentage from 0% to 100%")]
    Percentage { signal: String, text: String },
    #[error("{signal}: `{text}` must be above 0")]
    NotPositive { signal: String, text: String },
    #[error("{signal}")]
    Quantity {
        signal: String,
        source: QuantityError,
    },
}

impl ThresholdValue {
    /// A quantity or a percentage. `None` for 0% and 100%, which are no threshold.
    pub fn parse(signal: &str, text: &str) -> Result<Option<Self>, ThresholdError> {
        let Some(percent) = text.strip_suffix('%') else {
            return match text.parse::<Quantity>() {
                Ok(amount) if amount.is_positive() => Ok(Some(Self::Quantity(amount))),
                Ok(_) => Err(ThresholdError::NotPositive {
                    signal: signal.to_owned(),
                    text: text.to_owned(),
                }),
                Err(source) => Err(ThresholdError::Quantity {
                    signal: signal.to_owned(),
                    source,
                }),
            };
        };
        if matches!(percent, "0" | "100") {
            return Ok(None);
        }
        match percent.parse::<f32>() {
            Ok(percent) if (0.0..=100.0).contains(&percent) => {
                Ok(Some(Self::Fraction(percent / 100.0)))
            }
            Ok(_) | Err(_) => Err(ThresholdError::Percentage {
                signal: signal.to_owned(),
                text: text.to_owned(),
            }),
        }
    }

    /// The amount of a capacity that this is.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "kubelet computes in floats and truncates; the result lies between 0 and the capacity"
    )]
    pub fn of(&self, capacity: &Quantity) -> Quantity {
        match self {
            Self::Quantity(amount) => amount.clone(),
            Self::Fraction(fraction) => {
                let amount = capacity.value() as f64 * f64::from(*fraction);
                Quantity::from_units(amount as i64, Format::BinarySi)
            }
        }
    }
}
