//! Checks of eviction thresholds (pkg/kubelet/eviction/helpers.go, v1.36: `ParseThresholdConfig`).
//! Their text is kept as it is; the decisions read it with the same parser.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

use super::duration::{self, SignedDuration};
use super::fault::{Faults, FieldPath, suggestion};
use super::raw::{RawKubelet, TextMap};
use crate::model::eviction::{Amount, Signal};

const HARD: &str = "evictionHard";
const MERGE: &str = "mergeDefaultEvictionSettings";

/// `evictionHard` where it is absent. A present map replaces all of it, also an empty one, unless
/// `mergeDefaultEvictionSettings` is true.
const DEFAULT_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Puts them into the file that a kubelet is started with, which alone can ask for them: drop-ins and the command line
/// come on top, and without a file there are none (kubelet 1.36, cmd/kubelet/app/server.go, `loadConfigFile`).
pub(super) fn put_defaults(fields: &mut Map<String, Value>) {
    let merges = fields.get(MERGE) == Some(&Value::Bool(true));
    let hard = fields.entry(HARD).or_insert(Value::Null);
    let is_absent = hard.is_null();
    if is_absent {
        *hard = Value::Object(Map::new());
    }
    if let Value::Object(hard) = hard
        && (is_absent || merges)
    {
        for (signal, threshold) in DEFAULT_HARD {
            hard.entry(signal).or_insert_with(|| threshold.into());
        }
    }
}

/// Without thresholds there are none.
pub(super) fn put_none(fields: &mut Map<String, Value>) {
    fields.remove(MERGE);
    fields.entry(HARD).or_insert_with(|| Map::new().into());
}

pub(super) struct Eviction {
    pub(super) hard: TextMap,
    pub(super) soft: TextMap,
    pub(super) soft_grace_period: BTreeMap<String, Duration>,
    pub(super) minimum_reclaim: TextMap,
}

pub(super) fn check(raw: &RawKubelet, faults: &mut Faults) -> Eviction {
    let root = FieldPath::root();
    let soft = raw.eviction_soft.clone().unwrap_or_default();
    let graces = raw.eviction_soft_grace_period.clone().unwrap_or_default();
    let minimum_reclaim = raw.eviction_minimum_reclaim.clone().unwrap_or_default();
    let mut hard = raw.eviction_hard.clone();
    if hard.is_none() || raw.merge_default_eviction_settings == Some(true) {
        let fields = hard.get_or_insert_default();
        for (signal, threshold) in DEFAULT_HARD {
            fields
                .entry(signal.into())
                .or_insert_with(|| threshold.into());
        }
    }
    let soft_at = root.field("evictionSoft");
    let hard = thresholds(
        hard.unwrap_or_default(),
        &root.field("evictionHard"),
        faults,
    );
    let soft = thresholds(soft, &soft_at, faults);
    for signal in soft.keys().filter(|signal| !graces.contains_key(*signal)) {
        let message = "a soft threshold needs a grace period in evictionSoftGracePeriod";
        faults.add(&soft_at.field(signal), message);
    }
    let reclaim_at = root.field("evictionMinimumReclaim");
    for (signal, amount) in &minimum_reclaim {
        let at = reclaim_at.field(signal);
        check_signal(signal, &at, faults);
        check_reclaim(amount, &at, faults);
    }
    Eviction {
        soft_grace_period: grace_periods(&graces, &root.field("evictionSoftGracePeriod"), faults),
        hard,
        soft,
        minimum_reclaim,
    }
}

fn check_signal(signal: &str, at: &FieldPath, faults: &mut Faults) {
    if signal.parse::<Signal>().is_err() {
        let signals = Signal::ALL.map(Signal::as_str);
        let near = suggestion(signal, signals);
        let right = signals.join(", ");
        faults.add(
            at,
            format!("unknown signal{near}; right would be one of {right}"),
        );
    }
}

/// Those without a fault.
fn thresholds(mut values: TextMap, at: &FieldPath, faults: &mut Faults) -> TextMap {
    values.retain(|signal, value| {
        let at = at.field(signal);
        let n_faults = faults.0.len();
        check_signal(signal, &at, faults);
        match Amount::parse_threshold(value) {
            // Kubelet takes `NaN%` and `10%%`; nobody means the first, and the second is a slip.
            Ok(_) if is_plain(value) => {}
            Ok(_) => {
                let message = format!("`{value}` is not a threshold; right would be as in 10%");
                faults.add(&at, message);
            }
            Err(error) => faults.add(&at, error.to_string()),
        }
        faults.0.len() == n_faults
    });
    values
}

fn check_reclaim(value: &str, at: &FieldPath, faults: &mut Faults) {
    match Amount::parse_reclaim(value) {
        Ok(_) if is_plain(value) => {}
        Ok(_) => {
            let message = format!("`{value}` is not an amount to reclaim; right would be as in 5%");
            faults.add(at, message);
        }
        Err(error) => faults.add(at, error.to_string()),
    }
}

/// `None`: not written as a percentage. `Some(None)`: written as one, but not a number.
///
/// Kubelet takes `NaN%` too, a threshold that is never met; nobody means that.
pub(super) fn percent(value: &str) -> Option<Option<f32>> {
    let number = value.strip_suffix('%')?;
    Some(number.parse().ok().filter(|it: &f32| it.is_finite()))
}

/// No percentage, or one of a finite number with one percent sign.
fn is_plain(value: &str) -> bool {
    percent(value).is_none_or(|it| it.is_some())
}

fn grace_periods(
    values: &TextMap,
    at: &FieldPath,
    faults: &mut Faults,
) -> BTreeMap<String, Duration> {
    let mut periods = BTreeMap::new();
    for (signal, text) in values {
        let at = at.field(signal);
        check_signal(signal, &at, faults);
        match duration::parse(text) {
            Ok(SignedDuration::Positive(period)) => {
                periods.insert(signal.clone(), period);
            }
            Ok(SignedDuration::Negative(_)) => {
                faults.add(
                    &at,
                    format!("`{text}` is negative; right would be 0s or more"),
                );
            }
            Err(error) => faults.add(&at, error.to_string()),
        }
    }
    periods
}
