//! What the kernel's text files have in common: one error, numbers, and the `key value` lines of
//! flat files. And what people are shown of a text that others chose.
//!
//! Invariant: any text gives a value or a [`ParseError`]; nothing panics and nothing wraps.

use std::borrow::Cow;
use std::str::FromStr;

/// A kernel file says something that its format does not allow. The path is added by whoever
/// opened the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("`{text}` is not {expected}")]
    Invalid {
        text: String,
        expected: &'static str,
    },
    #[error("no `{key}`")]
    Missing { key: String },
}

impl ParseError {
    pub fn invalid(text: &str, expected: &'static str) -> Self {
        // A message is read by people: a hostile text is cut, at a character.
        Self::Invalid {
            text: text.chars().take(80).collect(),
            expected,
        }
    }

    pub fn missing(key: &str) -> Self {
        Self::Missing {
            key: key.to_owned(),
        }
    }
}

/// A decimal number with blanks around it; `expected` is for the message.
pub fn number<T: FromStr>(text: &str, expected: &'static str) -> Result<T, ParseError> {
    let text = text.trim();
    // `FromStr` of integers takes a leading `+`, which the kernel never writes.
    match text.parse() {
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ => Err(ParseError::invalid(text, expected)),
    }
}

/// The `key value` lines of a flat keyed file (`memory.stat`, `cgroup.events`), in file order.
/// Lines without a value are left out.
pub fn flat_keyed(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.trim().split_once([' ', '\t'])?;
        Some((key, value.trim()))
    })
}

/// A field of `/proc/meminfo`, or of `meminfo` of a NUMA node, whose lines begin with `Node 0`;
/// `None` where the file has no such line or its value is no number of kB.
pub fn meminfo_bytes(text: &str, field: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        if name.split_whitespace().next_back()? != field {
            return None;
        }
        let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    })
}

/// Soft and hard limit of a line of `/proc/PID/limits`, numbers or `unlimited`; `None` where the file has
/// no such line.
pub fn limit<'a>(text: &'a str, name: &str) -> Option<[&'a str; 2]> {
    let mut words = text
        .lines()
        .find_map(|line| line.strip_prefix(name))?
        .split_ascii_whitespace();
    Some([words.next()?, words.next()?])
}

/// `text` without what a terminal obeys: controls, and what turns the direction of a text. A process chooses its own
/// name.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let shown = |it: char| if is_obeyed(it) { '?' } else { it };
    Cow::Owned(text.chars().map(shown).collect())
}

/// Unicode's `Bidi_Control` (PropList.txt), and controls.
fn is_obeyed(it: char) -> bool {
    it.is_control()
        || matches!(it, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_does_not_reach_it() {
        for (text, shown) in [
            ("a\x1b[2Jb\n\u{9b}c", "a?[2Jb??c"),
            ("\u{202e}drowssap\u{2069}", "?drowssap?"),
            ("\u{61c}a\u{200f}", "?a?"),
            ("grüße", "grüße"),
        ] {
            assert_eq!(printable(text), shown, "{text:?}");
        }
    }

    #[test]
    fn a_limit_is_a_soft_and_a_hard_one() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max locked memory         65536                unlimited            bytes\n\
                    Max open files            1024\n";
        assert_eq!(
            limit(text, "Max locked memory"),
            Some(["65536", "unlimited"])
        );
        assert_eq!(limit(text, "Max open files"), None);
        assert_eq!(limit(text, "Max processes"), None);
    }

    #[test]
    fn numbers_allow_blanks_and_nothing_else() {
        for (text, expected) in [
            ("0", Some(0)),
            (" 42\n", Some(42)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("+1", None),
            ("-1", None),
            ("", None),
            ("1 2", None),
            ("max", None),
        ] {
            assert_eq!(number::<u64>(text, "a number").ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn meminfo_is_read_for_the_machine_and_for_one_node() {
        for (text, bytes) in [
            ("MemTotal:       24684092 kB\n", Some(25_276_510_208)),
            ("MemFree: 1 kB\nMemTotal: 2 kB\n", Some(2048)),
            ("Node 0 MemTotal:        8349908 kB\n", Some(8_550_305_792)),
            ("MemTotal: 18446744073709551615 kB\n", None),
            ("MemTotal: 12\n", None),
            ("MemTotal 12 kB\n", None),
            (": 1 kB\n", None),
            ("", None),
        ] {
            assert_eq!(meminfo_bytes(text, "MemTotal"), bytes, "{text:?}");
        }
    }

    #[test]
    fn a_message_shows_a_hostile_text_cut() {
        let error = ParseError::invalid(&"é".repeat(1000), "a number");
        assert_eq!(
            error.to_string().chars().count(),
            80 + "`` is not a number".len()
        );
    }
}
