//! Exact decimal numbers without a bound on their size: `±digits · 10^exponent`. Only what
//! quantities need: read, compare, add, scale by a small factor, divide by a small divisor, round
//! away from zero, print.

use std::cmp::Ordering;
use std::fmt;

/// The base of one limb. A power of ten, so that scaling and printing move digits around instead
/// of dividing.
const BASE: u64 = 1_000_000_000;
const DIGITS_PER_LIMB: usize = 9;

/// A natural number; limbs little-endian in base 10^9, without leading zeros. Empty is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Natural(Vec<u32>);

/// Splits `n` into a limb and the carry to the next one.
fn split(n: u64) -> (u32, u64) {
    let limb = u32::try_from(n % BASE).expect("a remainder of 10^9 fits 32 bits");
    (limb, n / BASE)
}

impl Natural {
    pub(super) fn from_u64(mut n: u64) -> Self {
        let mut limbs = Vec::new();
        while n > 0 {
            let (limb, carry) = split(n);
            limbs.push(limb);
            n = carry;
        }
        Self(limbs)
    }

    /// Decimal digits, possibly none and possibly with leading zeros. `None` for anything else.
    pub(super) fn from_digits(digits: &str) -> Option<Self> {
        if !digits.bytes().all(|it| it.is_ascii_digit()) {
            return None;
        }
        let limbs = digits
            .as_bytes()
            .rchunks(DIGITS_PER_LIMB)
            .map(|chunk| {
                chunk
                    .iter()
                    .fold(0, |n, digit| n * 10 + u32::from(digit - b'0'))
            })
            .collect();
        Some(Self(limbs).trimmed())
    }

    fn trimmed(mut self) -> Self {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        self
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of decimal digits; 0 for zero.
    fn n_digits(&self) -> usize {
        match self.0.last() {
            None => 0,
            Some(top) => (self.0.len() - 1) * DIGITS_PER_LIMB + top.to_string().len(),
        }
    }

    /// `None` when it does not fit.
    pub(super) fn to_u64(&self) -> Option<u64> {
        self.0.iter().rev().try_fold(0_u64, |n, &limb| {
            n.checked_mul(BASE)?.checked_add(u64::from(limb))
        })
    }

    fn add(&self, other: &Self) -> Self {
        let mut limbs = Vec::with_capacity(self.0.len().max(other.0.len()) + 1);
        let mut carry = 0;
        for i in 0..self.0.len().max(other.0.len()) {
            let a = self.0.get(i).copied().unwrap_or(0);
            let b = other.0.get(i).copied().unwrap_or(0);
            let (limb, rest) = split(u64::from(a) + u64::from(b) + carry);
            limbs.push(limb);
            carry = rest;
        }
        limbs.push(split(carry).0);
        Self(limbs).trimmed()
    }

    /// `self - other`, which must not be larger.
    fn sub(&self, other: &Self) -> Self {
        let mut limbs = Vec::with_capacity(self.0.len());
        let mut borrow = 0;
        for (i, &limb) in self.0.iter().enumerate() {
            let b = u64::from(other.0.get(i).copied().unwrap_or(0)) + borrow;
            let (limb, rest) = split(BASE + u64::from(limb) - b);
            limbs.push(limb);
            borrow = 1 - rest;
        }
        Self(limbs).trimmed()
    }

    /// `self · factor`; the factor is at most 2^30, so that no product of limbs overflows.
    fn mul_small(&self, factor: u32) -> Self {
        let mut limbs = Vec::with_capacity(self.0.len() + 1);
        let mut carry = 0;
        for &limb in &self.0 {
            let (limb, rest) = split(u64::from(limb) * u64::from(factor) + carry);
            limbs.push(limb);
            carry = rest;
        }
        while carry > 0 {
            let (limb, rest) = split(carry);
            limbs.push(limb);
            carry = rest;
        }
        Self(limbs).trimmed()
    }

    /// Quotient and remainder by a divisor above 0.
    fn div_small(&self, divisor: u32) -> (Self, u32) {
        let divisor = u64::from(divisor);
        let mut limbs = vec![0; self.0.len()];
        let mut rest = 0;
        for (i, &limb) in self.0.iter().enumerate().rev() {
            let n = rest * BASE + u64::from(limb);
            limbs[i] = split(n / divisor).0;
            rest = n % divisor;
        }
        (Self(limbs).trimmed(), split(rest).0)
    }

    fn mul_pow10(&self, power: u32) -> Self {
        if self.is_zero() {
            return Self::default();
        }
        let (whole, part) = limbs_and_digits(power);
        let mut limbs = vec![0; whole];
        limbs.extend(self.mul_small(10_u32.pow(part)).0);
        Self(limbs)
    }

    /// Quotient by `10^power`, and whether something was left over.
    fn div_pow10(&self, power: u32) -> (Self, bool) {
        let (whole, part) = limbs_and_digits(power);
        if whole >= self.0.len() {
            return (Self::default(), !self.is_zero());
        }
        let (low, high) = self.0.split_at(whole);
        let (quotient, rest) = Self(high.to_vec()).div_small(10_u32.pow(part));
        (quotient, rest != 0 || low.iter().any(|&it| it != 0))
    }

    /// How often `divisor` (at least 2) divides, and what is left after that; `(0, 0)` for zero.
    fn remove_factors(mut self, divisor: u32) -> (Self, u32) {
        let mut times = 0;
        while !self.is_zero() {
            let (quotient, rest) = self.div_small(divisor);
            if rest != 0 {
                break;
            }
            self = quotient;
            times += 1;
        }
        (self, times)
    }
}

/// Splits a power of ten into whole limbs and digits within one.
fn limbs_and_digits(power: u32) -> (usize, u32) {
    let limbs = power / 9;
    (
        usize::try_from(limbs).expect("a 32-bit count fits usize"),
        power % 9,
    )
}

impl Ord for Natural {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0
            .len()
            .cmp(&other.0.len())
            .then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }
}

impl PartialOrd for Natural {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Natural {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((top, rest)) = self.0.split_last() else {
            return f.write_str("0");
        };
        write!(f, "{top}")?;
        rest.iter()
            .rev()
            .try_for_each(|limb| write!(f, "{limb:09}"))
    }
}

/// `±digits · 10^exponent`. Zero is never negative. Several forms of one number exist; they
/// compare equal.
#[derive(Clone, Debug)]
pub(super) struct Decimal {
    negative: bool,
    digits: Natural,
    exponent: i32,
}

impl Decimal {
    pub(super) fn new(negative: bool, digits: Natural, exponent: i32) -> Self {
        Self {
            negative: negative && !digits.is_zero(),
            digits,
            exponent,
        }
    }

    pub(super) fn from_i64(value: i64, exponent: i32) -> Self {
        Self::new(value < 0, Natural::from_u64(value.unsigned_abs()), exponent)
    }

    pub(super) fn is_zero(&self) -> bool {
        self.digits.is_zero()
    }

    pub(super) fn is_negative(&self) -> bool {
        self.negative
    }

    pub(super) fn negated(self) -> Self {
        Self::new(!self.negative, self.digits, self.exponent)
    }

    /// `self · 2^power`.
    pub(super) fn mul_pow2(mut self, mut power: u32) -> Self {
        while power > 0 {
            let step = power.min(30);
            self.digits = self.digits.mul_small(1 << step);
            power -= step;
        }
        self
    }

    /// Digits at the given exponent, rounded away from zero, and whether that was exact.
    fn digits_at(&self, exponent: i32) -> (Natural, bool) {
        let shift = self.exponent.abs_diff(exponent);
        if self.exponent >= exponent {
            return (self.digits.mul_pow10(shift), true);
        }
        let (quotient, inexact) = self.digits.div_pow10(shift);
        if inexact {
            (quotient.add(&Natural::from_u64(1)), false)
        } else {
            (quotient, true)
        }
    }

    /// Rounds away from zero to a multiple of `10^exponent`.
    pub(super) fn rounded_to(&self, exponent: i32) -> Self {
        if self.exponent >= exponent {
            return self.clone();
        }
        Self::new(self.negative, self.digits_at(exponent).0, exponent)
    }

    pub(super) fn add(&self, other: &Self) -> Self {
        let exponent = self.exponent.min(other.exponent);
        let (a, _) = self.digits_at(exponent);
        let (b, _) = other.digits_at(exponent);
        if self.negative == other.negative {
            return Self::new(self.negative, a.add(&b), exponent);
        }
        if a >= b {
            Self::new(self.negative, a.sub(&b), exponent)
        } else {
            Self::new(other.negative, b.sub(&a), exponent)
        }
    }

    /// In units of `10^exponent`, rounded away from zero, saturating at the ends of `i64`.
    pub(super) fn to_i64_at(&self, exponent: i32) -> i64 {
        let (digits, _) = self.digits_at(exponent);
        let magnitude = digits.to_u64();
        if self.negative {
            magnitude
                .and_then(|it| 0_i64.checked_sub_unsigned(it))
                .unwrap_or(i64::MIN)
        } else {
            magnitude
                .and_then(|it| i64::try_from(it).ok())
                .unwrap_or(i64::MAX)
        }
    }

    /// Digits and exponent with the exponent a multiple of 3 and as large as that allows.
    pub(super) fn to_base_1000(&self) -> (Natural, i32) {
        let (digits, times) = self.digits.clone().remove_factors(10);
        let exponent = self.exponent.saturating_add_unsigned(times);
        let surplus = exponent.rem_euclid(3);
        (digits.mul_pow10(surplus.unsigned_abs()), exponent - surplus)
    }

    /// Of an integer: what is left after taking out every factor 1024, and how many there were.
    /// `None` for a number with a fraction.
    pub(super) fn to_base_1024(&self) -> Option<(Natural, u32)> {
        let (digits, exact) = self.digits_at(0);
        exact.then(|| digits.remove_factors(1024))
    }

    /// The magnitude rounded away from zero to an integer.
    pub(super) fn to_integer(&self) -> Natural {
        self.digits_at(0).0
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        // Comparing the places of the leading digits first keeps far-apart numbers from being
        // written out in full.
        let place = |it: &Self| {
            let n = i64::try_from(it.digits.n_digits()).unwrap_or(i64::MAX);
            n.saturating_add(i64::from(it.exponent))
        };
        match (self.is_zero(), other.is_zero()) {
            (true, true) => return Ordering::Equal,
            (true, false) => return Ordering::Less,
            (false, true) => return Ordering::Greater,
            (false, false) => {}
        }
        place(self).cmp(&place(other)).then_with(|| {
            let exponent = self.exponent.min(other.exponent);
            self.digits_at(exponent).0.cmp(&other.digits_at(exponent).0)
        })
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Decimal {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Decimal {}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(digits: &str, exponent: i32) -> Decimal {
        let (negative, digits) = match digits.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, digits),
        };
        let digits = Natural::from_digits(digits).expect("digits");
        Decimal::new(negative, digits, exponent)
    }

    #[test]
    fn addition_agrees_with_128_bit_arithmetic() {
        // A linear congruential generator: any spread of operands will do.
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            i64::from_ne_bytes(seed.to_ne_bytes()) >> (seed % 60)
        };
        for _ in 0..20_000 {
            let (a, b) = (next(), next());
            let sum = Decimal::from_i64(a, 0).add(&Decimal::from_i64(b, 0));
            let want = i128::from(a) + i128::from(b);
            let got = format!("{}{}", if sum.is_negative() { "-" } else { "" }, sum.digits);
            assert_eq!(got, want.to_string(), "{a} + {b}");
            assert_eq!(
                Decimal::from_i64(a, 0).cmp(&Decimal::from_i64(b, 0)),
                a.cmp(&b),
                "{a} <=> {b}"
            );
        }
    }

    #[test]
    fn rounding_goes_away_from_zero() {
        for (digits, exponent, want) in [
            ("1", -1, 1),
            ("-1", -1, -1),
            ("20", -1, 2),
            ("-21", -1, -3),
            ("1", -40, 1),
            ("0", -3, 0),
        ] {
            assert_eq!(
                decimal(digits, exponent).to_i64_at(0),
                want,
                "{digits}e{exponent}"
            );
        }
    }

    #[test]
    fn a_number_beyond_64_bits_saturates() {
        assert_eq!(decimal("9223372036854775807", 0).to_i64_at(0), i64::MAX);
        assert_eq!(decimal("9223372036854775808", 0).to_i64_at(0), i64::MAX);
        assert_eq!(decimal("-9223372036854775808", 0).to_i64_at(0), i64::MIN);
        assert_eq!(decimal("-1", 30).to_i64_at(0), i64::MIN);
    }

    #[test]
    fn forms_of_one_number_compare_equal() {
        assert_eq!(decimal("1500", -3), decimal("15", -1));
        assert_eq!(decimal("0", 5), decimal("-0", 0));
        assert!(decimal("1", 900) > decimal("999999999999999999999", 0));
    }

    #[test]
    fn digits_survive_limb_borders() {
        for text in [
            "1000000000",
            "999999999",
            "1000000000000000000",
            "123000000000000000456",
        ] {
            assert_eq!(
                Natural::from_digits(text).expect("digits").to_string(),
                text
            );
        }
        let square = decimal("1", 0).mul_pow2(120);
        assert_eq!(square.digits.to_string(), (1_u128 << 120).to_string());
        assert_eq!(
            square.to_base_1024().map(|(n, e)| (n.to_string(), e)),
            Some(("1".into(), 12))
        );
    }
}
