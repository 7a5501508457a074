//! The text of thresholds and of amounts to reclaim (pkg/kubelet/eviction/helpers.go, v1.36:
//! `parseThresholdStatement`, `parseMinimumReclaims`), and what it comes to of a capacity. Pinned
//! by suite `eviction_thresholds`.

use super::Amount;
use crate::model::quantity::{Format, Quantity, QuantityError};

/// Why a text is not an amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    #[error("`{0}` is not a percentage; right would be as in 10%")]
    Percentage(String),
    #[error("`{0}` is below 0%; right would be 0% to 100%")]
    BelowZero(String),
    #[error("`{0}` is above 100%; right would be 0% to 100%")]
    AboveHundred(String),
    #[error("`{0}` is not above 0; right would be as in 100Mi")]
    NotPositive(String),
    #[error("`{0}` is too little to reclaim; right would be as in 500Mi, or above 0%")]
    Reclaim(String),
    #[error(transparent)]
    Quantity(QuantityError),
}

impl Amount {
    /// The value of a threshold. `None` for `0%` and `100%`, which are no threshold.
    ///
    /// `NaN%` is taken, as by kubelet: a threshold that is never met.
    pub fn parse_threshold(text: &str) -> Result<Option<Self>, AmountError> {
        if matches!(text, "0%" | "100%") {
            return Ok(None);
        }
        if !text.ends_with('%') {
            let amount: Quantity = text.parse().map_err(AmountError::Quantity)?;
            return if amount.is_positive() {
                Ok(Some(Self::Quantity(amount)))
            } else {
                Err(AmountError::NotPositive(text.to_owned()))
            };
        }
        match fraction(text)? {
            it if it < 0.0 => Err(AmountError::BelowZero(text.to_owned())),
            it if it > 1.0 => Err(AmountError::AboveHundred(text.to_owned())),
            it => Ok(Some(Self::Fraction(it))),
        }
    }

    /// The value of an amount to reclaim; a percentage has no upper bound.
    pub fn parse_reclaim(text: &str) -> Result<Self, AmountError> {
        if !text.ends_with('%') {
            let amount: Quantity = text.parse().map_err(AmountError::Quantity)?;
            return if amount.is_negative() {
                Err(AmountError::Reclaim(text.to_owned()))
            } else {
                Ok(Self::Quantity(amount))
            };
        }
        match fraction(text)? {
            it if it <= 0.0 => Err(AmountError::Reclaim(text.to_owned())),
            it => Ok(Self::Fraction(it)),
        }
    }

    /// The amount of a capacity that this is.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "kubelet computes in floats and truncates; the conversion saturates"
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

/// As kubelet reads it: all percent signs at the end are left out, and the rest is a number for Go's
/// `strconv.ParseFloat` of 32 bits.
fn fraction(text: &str) -> Result<f32, AmountError> {
    let number = without_groups(text.trim_end_matches('%'));
    let unsigned = number.trim_start_matches(['-', '+']);
    let value = match unsigned.to_ascii_lowercase().as_str() {
        "inf" | "infinity" => number.parse().ok(),
        // Rust takes it with a sign, Go does not.
        "nan" => (unsigned == number).then_some(f32::NAN),
        // What is too large for 32 bits is out of range in Go, and infinite in Rust.
        lower => decimal_or_hex(lower)
            .filter(|it| it.is_finite())
            .map(|it| if number.starts_with('-') { -it } else { it })
            .filter(|_| number.len() - unsigned.len() <= 1),
    };
    value
        .map(|it: f32| it / 100.0)
        .ok_or_else(|| AmountError::Percentage(text.to_owned()))
}

/// A number without a sign, in lower case: decimal, or hexadecimal with its exponent of two, which Go
/// demands (`0x1p3` is 8, `0x10` is no number).
fn decimal_or_hex(text: &str) -> Option<f32> {
    let Some(hex) = text.strip_prefix("0x") else {
        return text.parse().ok();
    };
    let (digits, exponent) = hex.split_once('p')?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let digits = [whole, part].concat();
    // Thirteen digits are exact in 64 bits; nobody writes a percentage with more.
    if digits.len() > 13 || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    let mantissa = u64::from_str_radix(&digits, 16).ok()?;
    let exponent: i32 = exponent.parse().ok()?;
    let n_part = i32::try_from(part.len()).ok()?;
    let scale = 2_f64.powi(exponent.saturating_sub(4 * n_part));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "52 bits are exact in a float of 64; rounding to 32 is what is asked for"
    )]
    Some((mantissa as f64 * scale) as f32)
}

/// The text without underscores that stand between digits.
fn without_groups(number: &str) -> String {
    let is_digit = |it: Option<&u8>| it.is_some_and(u8::is_ascii_digit);
    let bytes = number.as_bytes();
    let separates = |at: usize| {
        let before = at.checked_sub(1).and_then(|it| bytes.get(it));
        is_digit(before) && is_digit(bytes.get(at + 1))
    };
    let kept = number
        .char_indices()
        .filter(|(at, it)| *it != '_' || !separates(*at));
    kept.map(|(_, it)| it).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GI: u64 = 1 << 30;

    fn threshold(text: &str) -> Option<Amount> {
        Amount::parse_threshold(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn fractions_are_32_bit_floats() {
        for (text, capacity, amount) in [
            ("5%", 10 * GI, 536_870_920),
            ("10%", 10 * GI, 1_073_741_840),
            ("10%", 100 * GI, 10_737_418_400),
            ("15%", 100 * GI, 16_106_128_000),
            ("5%", 6_553_600, 327_680),
        ] {
            let got = threshold(text).map(|it| it.of(&Quantity::from_bytes(capacity)).value());
            assert_eq!(got, Some(amount), "{text} of {capacity}");
        }
    }

    #[test]
    fn only_the_literal_ends_of_the_range_are_no_threshold() {
        assert_eq!((threshold("0%"), threshold("100%")), (None, None));
        assert_eq!(threshold("0.0%"), Some(Amount::Fraction(0.0)));
        assert_eq!(threshold("100.0%"), Some(Amount::Fraction(1.0)));
        assert_eq!(threshold("1_0%"), threshold("10%%"));
        for text in [
            "-5%", "101%", "x%", "%", "1__0%", "_1%", "1e99%", "0", "-1Mi", "1MB", "",
        ] {
            assert!(Amount::parse_threshold(text).is_err(), "{text}");
        }
    }

    /// `strconv.ParseFloat` of Go 1.25.
    #[test]
    fn percentages_are_the_numbers_that_go_reads() {
        let is_nan = |it: Option<Amount>| matches!(it, Some(Amount::Fraction(it)) if it.is_nan());
        assert!(is_nan(threshold("NaN%")) && is_nan(threshold("nan%")));
        for (text, percent) in [
            ("+10%", 10.0),
            ("1.%", 1.0),
            (".5%", 0.5),
            ("1e1%", 10.0),
            ("0x1p3%", 8.0),
            ("0X1.8P+2%", 6.0),
            ("+0x.8p1%", 1.0),
            ("1e-99%", 0.0),
        ] {
            let fraction = Amount::Fraction(percent / 100.0);
            assert_eq!(threshold(text), Some(fraction), "{text}");
        }
        let no_number = |it: &str| AmountError::Percentage(it.to_owned());
        let too_large = format!("1{}.%", "0".repeat(39));
        for text in [
            "-nan%", "+NaN%", "0x10%", "0xp1%", "0x1p%", "1e39%", "--1%", "+-1%", "- 1%", " 1%",
            "in%", &too_large,
        ] {
            assert_eq!(Amount::parse_threshold(text), Err(no_number(text)));
        }
        for text in ["Inf%", "+infinity%", "INF%"] {
            let above = AmountError::AboveHundred(text.to_owned());
            assert_eq!(Amount::parse_threshold(text), Err(above));
            assert_eq!(
                Amount::parse_reclaim(text),
                Ok(Amount::Fraction(f32::INFINITY))
            );
        }
        let below = AmountError::BelowZero("-Inf%".to_owned());
        assert_eq!(Amount::parse_threshold("-Inf%"), Err(below));
    }

    #[test]
    fn nothing_may_be_to_be_reclaimed_but_not_as_a_percentage() {
        assert_eq!(
            Amount::parse_reclaim("0"),
            Ok(Amount::Quantity(Quantity::ZERO))
        );
        assert_eq!(Amount::parse_reclaim("150%"), Ok(Amount::Fraction(1.5)));
        for text in ["0%", "-1%", "-1", "x"] {
            assert!(Amount::parse_reclaim(text).is_err(), "{text}");
        }
    }
}
