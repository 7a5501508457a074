//! Numbers with their units, and the marks of an axis.

use super::super::source::Unit;

const KIB: f64 = 1024.0;

/// A value as a person reads it, to three digits.
pub(super) fn value(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Count => scaled(value, 1000.0, &["", " K", " Mil", " Bil"]),
        Unit::Ratio => format!("{}%", digits(value * 100.0)),
        Unit::Bytes => scaled(value, KIB, &[" B", " KiB", " MiB", " GiB", " TiB"]),
        Unit::BytesPerSecond => scaled(value, KIB, &[" B/s", " KiB/s", " MiB/s", " GiB/s"]),
        Unit::PerSecond => scaled(value, 1000.0, &["/s", " K/s", " Mil/s"]),
        Unit::Cores => format!("{} cores", digits(value)),
        Unit::Seconds | Unit::Ago => seconds(value),
    }
}

fn seconds(value: f64) -> String {
    let size = value.abs();
    let (factor, name) = match size {
        _ if size == 0.0 => (1.0, "s"),
        _ if size < 1e-3 => (1e6, "µs"),
        _ if size < 1.0 => (1e3, "ms"),
        _ if size < 120.0 => (1.0, "s"),
        _ if size < 7200.0 => (1.0 / 60.0, "min"),
        _ if size < 172_800.0 => (1.0 / 3600.0, "h"),
        _ => (1.0 / 86_400.0, "days"),
    };
    format!("{} {name}", digits(value * factor))
}

fn scaled(mut value: f64, base: f64, names: &[&str]) -> String {
    let mut names = names.iter();
    let mut name = names.next().copied().unwrap_or_default();
    while value.abs() >= base {
        let Some(next) = names.next() else { break };
        name = next;
        value /= base;
    }
    format!("{}{name}", digits(value))
}

/// Three digits, without zeros at the end.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    // What is next to nothing is no negative number.
    text.strip_prefix('-')
        .filter(|it| *it == "0")
        .unwrap_or(text)
        .to_owned()
}

/// Round numbers from below `low` to above `high`, at most six.
pub(super) fn ticks(unit: Unit, low: f64, high: f64) -> Vec<f64> {
    let high = if high > low { high } else { low + 1.0 };
    let rough = (high - low) / 4.0;
    let step = match unit {
        Unit::Bytes | Unit::BytesPerSecond => rough.log2().ceil().exp2(),
        _ => {
            let power = 10f64.powf(rough.log10().floor());
            let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|it| it * power);
            steps
                .into_iter()
                .find(|it| *it >= rough * 0.999)
                .unwrap_or(10.0 * power)
        }
    };
    let mut ticks = vec![(low / step).floor() * step];
    while let Some(last) = ticks.last()
        && *last < high - step * 1e-6
        && ticks.len() < 12
    {
        ticks.push(last + step);
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_carry_their_unit() {
        for (unit, number, expected) in [
            (Unit::Count, 1234.0, "1.23 K"),
            (Unit::Count, 7.0, "7"),
            (Unit::Ratio, 0.1234, "12.3%"),
            (Unit::Bytes, 67_108_864.0, "64 MiB"),
            (Unit::Seconds, 0.000_25, "250 µs"),
            (Unit::Seconds, 0.0, "0 s"),
            (Unit::Ago, 150.0, "2.5 min"),
            (Unit::Ratio, -0.000_001, "0%"),
            (Unit::PerSecond, 12.0, "12/s"),
        ] {
            assert_eq!(value(unit, number), expected);
        }
    }

    #[test]
    fn marks_enclose_the_values() {
        for (unit, low, high, expected) in [
            (Unit::Ratio, 0.0, 1.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]),
            (Unit::Count, -3.0, 5.0, vec![-4.0, -2.0, 0.0, 2.0, 4.0, 6.0]),
            (
                Unit::Bytes,
                0.0,
                1000.0,
                vec![0.0, 256.0, 512.0, 768.0, 1024.0],
            ),
            (Unit::Count, 2.0, 2.0, vec![2.0, 2.25, 2.5, 2.75, 3.0]),
        ] {
            assert_eq!(ticks(unit, low, high), expected, "{low} to {high}");
        }
    }
}
