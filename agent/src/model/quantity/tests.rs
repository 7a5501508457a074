use super::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn check(text: &str, canonical: &str, value: i64, milli: i64, format: Format) {
    let it = q(text);
    assert_eq!(it.to_string(), canonical, "canonical form of {text}");
    assert_eq!(it.value(), value, "value of {text}");
    assert_eq!(it.milli_value(), milli, "milli value of {text}");
    assert_eq!(it.format(), format, "format of {text}");
    assert_eq!(q(canonical), it, "{canonical} reads back as {text}");
}

#[test]
fn nothing_finer_than_a_thousandth_is_left() {
    for (text, rounded) in [
        ("0.0001", "1m"),
        ("1500u", "2m"),
        ("-1n", "-1m"),
        ("0.0001Ki", "103m"),
        ("1.5", "1500m"),
        ("1e30", "1e30"),
        ("2Gi", "2Gi"),
    ] {
        assert_eq!(q(text).in_thousandths().to_string(), rounded, "{text}");
    }
}

#[test]
fn suffixes_and_exponents_are_kubernetes() {
    use Format::{BinarySi, DecimalExponent, DecimalSi};
    check("100m", "100m", 1, 100, DecimalSi);
    check("0.5", "500m", 1, 500, DecimalSi);
    check("1000k", "1M", 1_000_000, 1_000_000_000, DecimalSi);
    check("1024Ki", "1Mi", 1 << 20, 1000 << 20, BinarySi);
    check(
        "1.5Gi",
        "1536Mi",
        1_610_612_736,
        1_610_612_736_000,
        BinarySi,
    );
    check("0.1Ki", "102400m", 103, 102_400, BinarySi);
    check("4.5e3", "4500", 4500, 4_500_000, DecimalExponent);
    check("1e3", "1e3", 1000, 1_000_000, DecimalExponent);
    check("1.5n", "2n", 1, 1, DecimalSi);
    check("-1.5", "-1500m", -2, -1500, DecimalSi);
    check("0Ki", "0", 0, 0, BinarySi);
    check("-", "0", 0, 0, DecimalSi);
}

#[test]
fn a_text_the_reference_takes_for_canonical_is_kept() {
    for text in [
        "1.",
        "+1",
        "1e+3",
        "+1903Mi",
        "123456789.123456789",
        "00106",
    ] {
        assert_eq!(q(text).to_string(), text);
    }
    assert_eq!(q("+1").plus(&q("1")).to_string(), "2");
}

#[test]
fn of_an_exponent_the_low_32_bits_count() {
    assert_eq!(q("1e4294967297"), q("10"));
    assert_eq!(q("-3e-5000").to_string(), "-1e-9");
    assert_eq!(q("0e5000"), Quantity::ZERO);
}

#[test]
fn what_is_not_a_quantity_says_why() {
    for text in [
        "", " 1", "1 Ki", "1..2", "1_000", "0x10", "5MiB", "1e3k", "1Q", "µ",
    ] {
        assert!(
            matches!(text.parse::<Quantity>(), Err(QuantityError::Format { .. })),
            "{text}"
        );
    }
    for text in [
        "1ki",
        "1e",
        "1e+",
        "1i",
        "+-1",
        "1e99999999999999999999",
        "1e5000",
    ] {
        assert!(
            matches!(text.parse::<Quantity>(), Err(QuantityError::Suffix { .. })),
            "{text}"
        );
    }
    for text in ["+Ei", ".Ei", "e-10", &"9".repeat(2000)] {
        assert!(
            matches!(text.parse::<Quantity>(), Err(QuantityError::Numeric { .. })),
            "{text}"
        );
    }
}

#[test]
fn a_binary_amount_is_capped_and_figures_saturate() {
    assert_eq!(q("10Ei").value(), i64::MAX);
    assert_eq!(q("10Ei").to_string(), "9223372036854775807");
    assert_eq!(q("12E").value(), i64::MAX);
    assert_eq!(q("-12E").value(), i64::MIN);
    assert_eq!(q("12E").to_string(), "12E");
    assert_eq!(q("12E").as_i64(), None);
    assert_eq!(q("1e30").to_string(), "1e30");
    assert_eq!(q("1e999").milli_value(), i64::MAX);
}

#[test]
fn sums_beyond_the_largest_suffix_keep_their_amount() {
    let exa = q("999E").plus(&q("1E"));
    assert_eq!(exa.to_string(), "1000E");
    let mut binary = q("7Ei");
    for _ in 0..8 {
        binary = binary.plus(&binary.clone());
    }
    assert_eq!(binary.to_string(), "1792Ei");
    let binary = q("1Ei");
    let binary = (0..1023).fold(binary.clone(), |sum, _| sum.plus(&binary));
    assert_eq!(binary.to_string(), "1024Ei");
}

#[test]
fn arithmetic_keeps_the_format_of_the_first_non_zero() {
    assert_eq!(q("0").plus(&q("1Gi")).to_string(), "1Gi");
    assert_eq!(q("1Gi").plus(&q("500m")).to_string(), "1073741824500m");
    assert_eq!(q("0").minus(&q("1Gi")).to_string(), "-1Gi");
    assert_eq!(q("1Gi").minus(&q("2Gi")).or_zero().to_string(), "0");
    assert_eq!(
        q("1").minus(&q("1Gi")).or_zero().format(),
        Format::DecimalSi
    );
}

#[test]
fn order_and_equality_are_by_amount() {
    assert_eq!(q("1000m"), q("1"));
    assert_eq!(q("1Ki"), q("1024"));
    assert!(q("1e-9") > q("0") && q("-1") < q("-999m") && q("1e30") > q("7Ei"));
}

/// Every number the format can hold survives printing and reading, at every scale.
#[test]
fn printing_and_reading_again_loses_nothing() {
    let mut seed = 7_u64;
    for round in 0..20_000_u32 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let digits = seed >> (seed % 64);
        let sign = ["", "-", "+"][usize::try_from(seed % 3).expect("below 3")];
        let (point, zeros) = (
            seed >> 20,
            "0".repeat(usize::try_from(seed % 5).expect("below 5")),
        );
        let suffix = DECIMAL_SUFFIXES
            .iter()
            .chain(&BINARY_SUFFIXES)
            .chain(&["e3", "E-3", "e12", "e-9"])
            .nth(usize::try_from(seed / 7 % 21).expect("below 21"))
            .expect("21 suffixes");
        let text = format!("{sign}{digits}.{zeros}{}{suffix}", point % 100_000);
        let it = q(&text);
        let again = q(&it.to_string());
        assert_eq!(again, it, "round {round}: {text} printed as {it}");
        assert_eq!(again.to_string(), it.to_string(), "round {round}: {text}");
    }
}
