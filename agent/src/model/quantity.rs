//! `resource.Quantity` of the Kubernetes API (apimachinery 1.36): an exact decimal amount that
//! remembers which kind of suffix it was written with and prints itself in canonical form.
//!
//! Parsing, canonical form, format retention, comparison and arithmetic are Kubernetes' own, pinned
//! by the vectors of suite `quantity`. Where Kubernetes' 64-bit figures wrap (`12E` is 0 there),
//! figures here saturate: those are the cases that the vectors call irregular.
//!
//! Invariant: a quantity never holds anything finer than 10^-9.

mod decimal;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use self::decimal::{Decimal, Natural};

/// Finest amount: finer ones are rounded away from zero.
const NANO: i32 = -9;
const MILLI: i32 = -3;
/// Digits that the reference's 64-bit form takes; what has more is kept as an exact decimal.
const FAST_DIGITS: usize = 18;
/// The same for a number with a binary suffix, before the digits of the suffix are subtracted.
const FAST_BINARY_DIGITS: usize = 14;
/// Bounds what a hostile manifest can make us compute. Kubernetes has neither bound; nobody means
/// such an amount.
const MAX_TEXT: usize = 1024;
const MAX_EXPONENT: i32 = 1000;
/// Nothing that fits [`MAX_TEXT`] with an exponent below this one comes near the finest amount.
const MIN_EXPONENT: i32 = -2048;

/// Which family of suffixes an amount is printed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `m`, none, `k`, `M`, ...
    DecimalSi,
    /// `Ki`, `Mi`, ...
    BinarySi,
    /// `e3`, `E6`, ...
    DecimalExponent,
}

/// Why a text is not a quantity; the variants are Kubernetes' own distinctions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error(
        "`{text}` is not a quantity: want a number with an optional suffix, as 500m, 1.5 or 2Gi"
    )]
    Format { text: String },
    #[error("`{text}` is not a quantity: no digits, or too many, before the suffix")]
    Numeric { text: String },
    #[error(
        "`{text}` is not a quantity: the suffix must be one of n u m k M G T P E Ki Mi Gi Ti Pi Ei or an exponent as e3"
    )]
    Suffix { text: String },
}

/// The reference keeps an amount as a 64-bit integer with a scale as long as that fits, and the
/// difference shows in [`Quantity::as_i64`].
#[derive(Clone, Debug)]
enum Amount {
    /// `value · 10^scale`.
    Fast {
        value: i64,
        scale: i32,
    },
    Exact(Decimal),
}

impl Amount {
    const ZERO: Self = Self::Fast { value: 0, scale: 0 };

    fn to_decimal(&self) -> Decimal {
        match self {
            Self::Fast { value, scale } => Decimal::from_i64(*value, *scale),
            Self::Exact(decimal) => decimal.clone(),
        }
    }

    fn is_zero(&self) -> bool {
        match self {
            Self::Fast { value, .. } => *value == 0,
            Self::Exact(decimal) => decimal.is_zero(),
        }
    }

    /// The sum in the 64-bit form, if both are in it and the sum fits.
    fn fast_sum(&self, other: &Self) -> Option<Self> {
        let (
            Self::Fast {
                value: a,
                scale: at,
            },
            Self::Fast {
                value: b,
                scale: bt,
            },
        ) = (self, other)
        else {
            return None;
        };
        if *b == 0 {
            return Some(self.clone());
        }
        if *a == 0 {
            return Some(other.clone());
        }
        let scale = *at.min(bt);
        let value =
            scaled_up(*a, at.abs_diff(scale))?.checked_add(scaled_up(*b, bt.abs_diff(scale))?)?;
        Some(Self::Fast { value, scale })
    }

    fn negated(&self) -> Self {
        match self {
            Self::Fast { value, scale } => match value.checked_neg() {
                Some(value) => Self::Fast {
                    value,
                    scale: *scale,
                },
                None => Self::Exact(self.to_decimal().negated()),
            },
            Self::Exact(decimal) => Self::Exact(decimal.clone().negated()),
        }
    }
}

/// `value · 10^power`, if it fits.
fn scaled_up(value: i64, power: u32) -> Option<i64> {
    if value == 0 {
        return Some(0);
    }
    value.checked_mul(10_i64.checked_pow(power)?)
}

/// See the module. Equality and order are those of the amounts: `1000m == 1`.
#[derive(Clone, Debug)]
pub struct Quantity {
    amount: Amount,
    format: Format,
    /// The text it was parsed from, where the reference prints that text again.
    text: Option<Box<str>>,
}

impl Quantity {
    /// Zero, printed `0`.
    pub const ZERO: Self = Self {
        amount: Amount::ZERO,
        format: Format::DecimalSi,
        text: None,
    };

    /// A whole number.
    pub fn from_units(value: i64, format: Format) -> Self {
        Self {
            amount: Amount::Fast { value, scale: 0 },
            format,
            text: None,
        }
    }

    /// Thousandths, as CPU is counted.
    pub fn from_milli(value: i64) -> Self {
        let amount = Amount::Fast {
            value,
            scale: MILLI,
        };
        Self {
            amount,
            format: Format::DecimalSi,
            text: None,
        }
    }

    /// Bytes, printed with a binary suffix. Saturates at 2^63 - 1, as all binary quantities do.
    pub fn from_bytes(bytes: u64) -> Self {
        Self::from_units(i64::try_from(bytes).unwrap_or(i64::MAX), Format::BinarySi)
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn is_zero(&self) -> bool {
        self.amount.is_zero()
    }

    /// Below zero.
    pub fn is_negative(&self) -> bool {
        match &self.amount {
            Amount::Fast { value, .. } => *value < 0,
            Amount::Exact(decimal) => decimal.is_negative(),
        }
    }

    /// Above zero.
    pub fn is_positive(&self) -> bool {
        !self.is_zero() && !self.is_negative()
    }

    /// Whole units, rounded away from zero; saturates at the ends of `i64`.
    pub fn value(&self) -> i64 {
        self.scaled(0)
    }

    /// Thousandths, rounded away from zero; saturates at the ends of `i64`.
    pub fn milli_value(&self) -> i64 {
        self.scaled(MILLI)
    }

    /// [`value`](Self::value) of an amount that cannot be negative; a negative one is 0.
    pub fn units(&self) -> u64 {
        u64::try_from(self.value()).unwrap_or(0)
    }

    /// [`milli_value`](Self::milli_value) of an amount that cannot be negative; a negative one is 0.
    pub fn millis(&self) -> u64 {
        u64::try_from(self.milli_value()).unwrap_or(0)
    }

    fn scaled(&self, exponent: i32) -> i64 {
        if let Amount::Fast { value, scale } = &self.amount
            && *scale >= exponent
            && let Some(value) = scaled_up(*value, scale.abs_diff(exponent))
        {
            return value;
        }
        self.amount.to_decimal().to_i64_at(exponent)
    }

    /// The exact integer, where the reference gives one: not for amounts that it holds as exact
    /// decimals or with a scale below 1, even if they are whole (`1.0`, `1000m`).
    pub fn as_i64(&self) -> Option<i64> {
        match self.amount {
            Amount::Fast { value, scale } if scale >= 0 => scaled_up(value, scale.unsigned_abs()),
            _ => None,
        }
    }

    /// Whether the reference holds the amount as an exact decimal and not in 64 bits (`1.5Gi`, 30
    /// digits). Nothing but its own slips depends on that.
    pub fn is_exact_form(&self) -> bool {
        matches!(self.amount, Amount::Exact(_))
    }

    /// Rounded away from zero to thousandths, which is as fine as the API server keeps an amount of a resource.
    pub fn in_thousandths(&self) -> Self {
        let amount = match &self.amount {
            Amount::Fast { scale, .. } if *scale >= MILLI => return self.clone(),
            Amount::Fast { .. } => Amount::Fast {
                value: self.milli_value(),
                scale: MILLI,
            },
            Amount::Exact(decimal) => Amount::Exact(decimal.rounded_to(MILLI)),
        };
        Self {
            amount,
            format: self.format,
            text: None,
        }
    }

    /// `self + other`. Zero takes over the other's format.
    pub fn plus(&self, other: &Self) -> Self {
        let format = if self.is_zero() {
            other.format
        } else {
            self.format
        };
        let amount = self.amount.fast_sum(&other.amount).unwrap_or_else(|| {
            Amount::Exact(self.amount.to_decimal().add(&other.amount.to_decimal()))
        });
        Self {
            amount,
            format,
            text: None,
        }
    }

    /// `self - other`. Zero takes over the other's format.
    pub fn minus(&self, other: &Self) -> Self {
        let negated = Self {
            amount: other.amount.negated(),
            format: other.format,
            text: None,
        };
        self.plus(&negated)
    }

    /// The amount, or zero in the same format if it is negative.
    pub fn or_zero(self) -> Self {
        if self.is_negative() {
            Self {
                amount: Amount::ZERO,
                format: self.format,
                text: None,
            }
        } else {
            self
        }
    }

    fn canonical(&self) -> String {
        let decimal = self.amount.to_decimal();
        if decimal.is_zero() {
            return "0".to_owned();
        }
        let sign = if decimal.is_negative() { "-" } else { "" };
        if self.format == Format::BinarySi
            && !is_below_1024(&decimal)
            && let Some((digits, times)) = decimal.to_base_1024()
        {
            return format!("{sign}{}", with_binary_suffix(digits, times));
        }
        let (digits, exponent) = decimal.to_base_1000();
        match self.format {
            Format::DecimalExponent if exponent == 0 => format!("{sign}{digits}"),
            Format::DecimalExponent => format!("{sign}{digits}e{exponent}"),
            // A fraction of bytes, or too few of them, is printed with a decimal suffix.
            Format::DecimalSi | Format::BinarySi => {
                format!("{sign}{}", with_decimal_suffix(digits, exponent))
            }
        }
    }
}

fn is_below_1024(decimal: &Decimal) -> bool {
    let bound = Decimal::from_i64(1024, 0);
    *decimal < bound && *decimal > bound.negated()
}

/// Suffixes by power of ten, every third from -9.
const DECIMAL_SUFFIXES: [&str; 10] = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
/// Suffixes by power of 1024.
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

fn with_decimal_suffix(digits: Natural, exponent: i32) -> String {
    // Beyond `E` the zeros are written out: the reference loses them.
    let exponent = exponent.max(NANO);
    let place = usize::try_from((exponent - NANO) / 3).expect("the exponent is at least -9");
    let last = DECIMAL_SUFFIXES.len() - 1;
    let zeros = 3 * place.saturating_sub(last);
    format!(
        "{digits}{:0<zeros$}{}",
        "",
        DECIMAL_SUFFIXES[place.min(last)]
    )
}

fn with_binary_suffix(digits: Natural, times: u32) -> String {
    let place = usize::try_from(times).expect("a 32-bit count fits usize");
    let last = BINARY_SUFFIXES.len() - 1;
    let mut whole = Decimal::new(false, digits, 0);
    for _ in last..place {
        whole = whole.mul_pow2(10);
    }
    format!("{}{}", whole.to_integer(), BINARY_SUFFIXES[place.min(last)])
}

/// What a suffix stands for.
struct Suffix {
    /// Power of ten, or of two for binary suffixes.
    exponent: i32,
    format: Format,
}

impl Suffix {
    fn parse(text: &str) -> Option<Self> {
        if let Some(place) = DECIMAL_SUFFIXES.iter().position(|it| *it == text) {
            let exponent = 3 * i32::try_from(place).ok()? + NANO;
            return Some(Self {
                exponent,
                format: Format::DecimalSi,
            });
        }
        if let Some(place) = BINARY_SUFFIXES.iter().position(|it| *it == text) {
            let exponent = 10 * i32::try_from(place).ok()?;
            return Some(Self {
                exponent,
                format: Format::BinarySi,
            });
        }
        let digits = text.strip_prefix(['e', 'E'])?;
        let exponent: i64 = digits.parse().ok()?;
        Some(Self {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the reference keeps the low 32 bits: 1e4294967297 is 10"
            )]
            exponent: (exponent as i32).max(MIN_EXPONENT),
            format: Format::DecimalExponent,
        })
    }
}

/// The parts of a quantity as written.
struct Parts<'a> {
    negative: bool,
    /// Digits before the point without leading zeros, at least one digit.
    whole: &'a str,
    fraction: &'a str,
    suffix: &'a str,
    /// Any digit was written before the suffix.
    has_digits: bool,
}

impl<'a> Parts<'a> {
    /// `None` when the text does not have the shape of a quantity.
    fn split(text: &'a str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let (whole, rest) = take(rest, |it| it.is_ascii_digit());
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => take(rest, |it| it.is_ascii_digit()),
            None => ("", rest),
        };
        let (_, rest) = take(suffix, |it| b"eEinumkKMGTP".contains(&it));
        let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        let (_, rest) = take(rest, |it| it.is_ascii_digit());
        if !rest.is_empty() {
            return None;
        }
        let has_digits = !whole.is_empty() || !fraction.is_empty();
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole };
        Some(Self {
            negative,
            whole,
            fraction,
            suffix,
            has_digits,
        })
    }
}

impl Parts<'_> {
    fn is_zero(&self) -> bool {
        let mut digits = self.whole.bytes().chain(self.fraction.bytes());
        digits.all(|it| it == b'0')
    }
}

/// Splits where `wanted` stops holding; the bytes taken are ASCII.
fn take(text: &str, wanted: impl Fn(u8) -> bool) -> (&str, &str) {
    text.split_at(
        text.bytes()
            .position(|it| !wanted(it))
            .unwrap_or(text.len()),
    )
}

impl FromStr for Quantity {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > MAX_TEXT {
            let text = text.chars().take(32).chain("...".chars()).collect();
            return Err(QuantityError::Numeric { text });
        }
        let parts = Parts::split(text).ok_or_else(|| QuantityError::Format {
            text: text.to_owned(),
        })?;
        let suffix = Suffix::parse(parts.suffix).ok_or_else(|| QuantityError::Suffix {
            text: text.to_owned(),
        })?;
        if suffix.exponent > MAX_EXPONENT && !parts.is_zero() {
            return Err(QuantityError::Suffix {
                text: text.to_owned(),
            });
        }
        match fast(&parts, &suffix) {
            Some((amount, keeps_text)) => Ok(Self {
                amount,
                format: suffix.format,
                text: keeps_text.then(|| text.into()),
            }),
            None if !parts.has_digits => Err(QuantityError::Numeric {
                text: text.to_owned(),
            }),
            None => Ok(exact(&parts, &suffix)),
        }
    }
}

/// The reference's 64-bit form, and whether it takes the text for canonical, which it decides by
/// looking at the digits only: `+1` and `1.` pass.
fn fast(parts: &Parts<'_>, suffix: &Suffix) -> Option<(Amount, bool)> {
    let n_fraction = i32::try_from(parts.fraction.len()).ok()?;
    let digits = format!("{}{}", parts.whole, parts.fraction);
    let (factor, scale, n_max) = match suffix.format {
        Format::BinarySi if parts.fraction.is_empty() => {
            // 2^10 has about 3 decimal digits.
            let n_factor = usize::try_from(suffix.exponent * 3 / 10).ok()?;
            let factor = 1_i64.checked_shl(suffix.exponent.unsigned_abs())?;
            (factor, 0, FAST_BINARY_DIGITS.checked_sub(n_factor)?)
        }
        Format::BinarySi => return None,
        Format::DecimalSi | Format::DecimalExponent => {
            (1, suffix.exponent - n_fraction, FAST_DIGITS)
        }
    };
    if digits.len() > n_max || scale < NANO {
        return None;
    }
    let value: i64 = digits.parse().ok()?;
    let keeps_text = match suffix.format {
        Format::BinarySi => value % 8 != 0,
        Format::DecimalSi | Format::DecimalExponent => {
            scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
        }
    };
    let value = value.checked_mul(factor)?;
    let value = if parts.negative { -value } else { value };
    Some((Amount::Fast { value, scale }, keeps_text))
}

/// The exact form: rounded away from zero to 10^-9; a binary quantity is capped at 2^63 - 1, and
/// below 1 becomes a decimal one.
fn exact(parts: &Parts<'_>, suffix: &Suffix) -> Quantity {
    let digits = Natural::from_digits(&format!("{}{}", parts.whole, parts.fraction))
        .expect("the parts hold digits only");
    let n_fraction =
        i32::try_from(parts.fraction.len()).expect("the length of the text is bounded");
    let (magnitude, is_binary) = match suffix.format {
        Format::BinarySi => {
            let magnitude = Decimal::new(false, digits, -n_fraction);
            (magnitude.mul_pow2(suffix.exponent.unsigned_abs()), true)
        }
        Format::DecimalSi | Format::DecimalExponent => (
            Decimal::new(false, digits, suffix.exponent - n_fraction),
            false,
        ),
    };
    let mut magnitude = magnitude.rounded_to(NANO);
    let mut format = suffix.format;
    if is_binary {
        magnitude = magnitude.min(Decimal::from_i64(i64::MAX, 0));
        if magnitude < Decimal::from_i64(1, 0) && !magnitude.is_zero() {
            format = Format::DecimalSi;
        }
    }
    let amount = if parts.negative {
        magnitude.negated()
    } else {
        magnitude
    };
    Quantity {
        amount: Amount::Exact(amount),
        format,
        text: None,
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.text {
            Some(text) => f.pad(text),
            None => f.pad(&self.canonical()),
        }
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        match (&self.amount, &other.amount) {
            (
                Amount::Fast {
                    value: a,
                    scale: at,
                },
                Amount::Fast {
                    value: b,
                    scale: bt,
                },
            ) if at == bt => a.cmp(b),
            (a, b) => a.to_decimal().cmp(&b.to_decimal()),
        }
    }
}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl Default for Quantity {
    fn default() -> Self {
        Self::ZERO
    }
}

impl Serialize for Quantity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Quantity {
    /// A string; a bare number is taken as its decimal text, as Kubernetes does.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Raw {
            Text(String),
            Int(i64),
            Float(f64),
        }
        let text = match Raw::deserialize(deserializer)? {
            Raw::Text(text) => text,
            Raw::Int(n) => n.to_string(),
            Raw::Float(n) => n.to_string(),
        };
        text.trim().parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
