//! The Prometheus text format 0.0.4
//! (prometheus.io/docs/instrumenting/exposition_formats/#text-format-details).

use crate::model::time::WallTime;
use crate::observe::metrics::{Family, Type};

/// An exact decimal that is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// How many times ten to the minus `decimals`.
    n: u64,
    /// 0..=9.
    decimals: usize,
}

const POWERS_OF_TEN: [u64; 10] = [
    1,
    10,
    100,
    1_000,
    10_000,
    100_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

impl Value {
    pub(super) const fn count(n: u64) -> Self {
        Self { n, decimals: 0 }
    }

    /// Seconds from milliseconds; likewise the next two.
    pub(super) const fn millis(n: u64) -> Self {
        Self { n, decimals: 3 }
    }

    pub(super) const fn micros(n: u64) -> Self {
        Self { n, decimals: 6 }
    }

    pub(super) const fn nanos(n: u64) -> Self {
        Self { n, decimals: 9 }
    }

    /// Seconds since the epoch.
    pub(super) fn time(at: WallTime) -> Self {
        let since_epoch = at.since_epoch().as_micros();
        Self::micros(u64::try_from(since_epoch).unwrap_or(u64::MAX))
    }

    fn write(self, out: &mut String) {
        let one = POWERS_OF_TEN[self.decimals];
        let mut digits = itoa::Buffer::new();
        out.push_str(digits.format(self.n / one));
        let rest = self.n % one;
        if rest != 0 {
            // A leading one keeps the zeros behind the point.
            let rest = digits.format(one + rest);
            out.push('.');
            out.push_str(rest[1..].trim_end_matches('0'));
        }
    }
}

/// Appends `name="value",`; nothing for an empty value, which means the same as no label.
pub(super) fn push_label(out: &mut String, name: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    out.push_str(name);
    out.push_str("=\"");
    push_escaped(out, value);
    out.push_str("\",");
}

fn push_escaped(out: &mut String, mut value: &str) {
    while let Some(at) = value.find(['\\', '"', '\n']) {
        let (plain, rest) = value.split_at(at);
        out.push_str(plain);
        out.push_str(match rest.as_bytes()[0] {
            b'\\' => "\\\\",
            b'"' => "\\\"",
            _ => "\\n",
        });
        // All three are one byte long.
        value = &rest[1..];
    }
    out.push_str(value);
}

pub(super) fn push_header(out: &mut String, family: &Family) {
    let kind = match family.kind {
        Type::Counter => " counter\n",
        Type::Gauge => " gauge\n",
        Type::Histogram(_) => " histogram\n",
    };
    // The table's help needs no escape, its tests say.
    let help = ["# HELP ", family.name, " ", family.help, "\n"];
    let kind = ["# TYPE ", family.name, kind];
    help.iter().chain(&kind).for_each(|it| out.push_str(it));
}

/// Takes the samples of one family.
pub(super) struct Samples<'a> {
    out: &'a mut String,
    name: &'static str,
    labels: &'a str,
    stamp: &'a str,
    n: usize,
}

impl<'a> Samples<'a> {
    pub(super) fn new(out: &'a mut String, name: &'static str) -> Self {
        Self {
            out,
            name,
            labels: "",
            stamp: "",
            n: 0,
        }
    }

    /// How many were taken.
    pub(super) fn n(&self) -> usize {
        self.n
    }

    /// What the next samples are about. `labels`: rendered by [`push_label`]. `stamp`: what follows
    /// the value, with its space.
    pub(super) fn set_object(&mut self, labels: &'a str, stamp: &'a str) {
        self.labels = labels;
        self.stamp = stamp;
    }

    /// `None` is left out.
    pub(super) fn put(&mut self, value: Option<Value>) {
        self.put_with(&[], value);
    }

    /// A sample with more labels than the object has.
    pub(super) fn put_with(&mut self, more: &[(&str, &str)], value: Option<Value>) {
        let Some(value) = value else { return };
        self.out.push_str(self.name);
        self.out.push('{');
        self.out.push_str(self.labels);
        for (name, value) in more {
            push_label(self.out, name, value);
        }
        match self.out.pop() {
            // No label at all.
            Some('{') | None => self.out.push(' '),
            // The comma after the last.
            Some(_) => self.out.push_str("} "),
        }
        value.write(self.out);
        self.out.push_str(self.stamp);
        self.out.push('\n');
        self.n += 1;
    }
}
