//! The `eviction` section: what the agent does under pressure beyond kubelet's thresholds, which stay
//! in the `kubelet` section, and what it keeps on record.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent::{absolute_path, choose, span};
use super::checked::{Compat, as_text, from_text};
use super::eviction::percent;
use super::fault::{Faults, FieldPath};
use super::raw::{RawEviction, RawEvictionRecord, RawEvictionStall};
use crate::model::eviction::{Amount, MemoryMethod};
use crate::model::quantity::Quantity;

/// The limits of systemd-oomd, which is run on many machines: nearly all work stands still most of
/// the time, for half a minute; and a pause in which the freed memory can show.
const DEFAULT_STALL_RATIO: f64 = 0.6;
const DEFAULT_STALL_DURATION: Duration = Duration::from_secs(30);
const DEFAULT_STALL_COOL_DOWN: Duration = Duration::from_secs(15);
/// A tenth, as earlyoom: a node that stalls with more than that left is short of something else.
const DEFAULT_STALL_HEADROOM: Amount = Amount::Fraction(0.1);
/// A stall ratio is measured over a second at least.
const SHORTEST_STALL: Duration = Duration::from_secs(1);
/// Arbitrary; what is longer is a slip in the unit.
const LONGEST_STALL: Duration = Duration::from_secs(3600);

/// Some hundred OOM kills, each of which takes at most 64 KiB.
const DEFAULT_OOM_RECORD_BYTES: u64 = 16 << 20;
/// Sixteen of the largest records, so that one burst does not push itself out.
const LEAST_OOM_RECORD_BYTES: u64 = 1 << 20;

/// Below the state directory.
const DEFAULT_RECORD_DIRECTORY: &str = "recordings";
/// Two and a half days at the default rate, so that a weekend can be looked at on Monday.
const DEFAULT_RECORD_BYTES: u64 = 64 << 20;
const DEFAULT_RECORD_BYTES_PER_HOUR: u64 = 1 << 20;
/// A snapshot of a full node, compressed, with some to spare.
const LEAST_RECORD_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionConfig {
    /// What counts as memory in use, for thresholds and for `stall.headroom`.
    pub memory_method: MemoryMethod,
    pub stages: StagesConfig,
    /// `None`: stalls evict nobody.
    pub stall: Option<StallConfig>,
    /// `None`: snapshots are not recorded.
    pub record: Option<RecordConfig>,
}

/// What may be tried before a pod is evicted for memory. All of it is off by default: kubelet does
/// none of it, and each stage costs pods something that their owners do not expect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StagesConfig {
    /// Lift `memory.high` of pods that stall below their request. It frees nothing: it spares those
    /// pods at the cost of the others.
    pub relax_memory_high: bool,
    /// Set `memory.high` of the first candidate to what it uses. It is slowed down to the speed of
    /// reclaim, and may fail its probes for it.
    pub set_memory_high: bool,
    /// `memory.reclaim` on pods with cache to spare. What is read again has to come from the disk.
    pub reclaim: bool,
    /// Freeze BestEffort pods that grow. A frozen pod answers nobody.
    pub freeze_best_effort: bool,
}

/// Eviction for a node that stands still before a threshold is met (not in kubelet). Two keys: the
/// stall and the lack of headroom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StallConfig {
    /// Share of time in which every task that is not idle waits for memory; in (0, 1].
    pub memory_full_ratio: f64,
    /// For how long, without interruption; 1 s to 1 h.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub duration: Duration,
    /// Less than this is available, by `memoryMethod`.
    pub headroom: Amount,
    /// After an eviction; at most 1 h.
    #[serde(serialize_with = "as_text", deserialize_with = "from_text")]
    pub cool_down: Duration,
    /// Decide and tell, but evict nobody.
    pub dry_run: bool,
}

// No float of a checked configuration is NaN.
impl Eq for StallConfig {}

impl Default for StallConfig {
    fn default() -> Self {
        Self {
            memory_full_ratio: DEFAULT_STALL_RATIO,
            duration: DEFAULT_STALL_DURATION,
            headroom: DEFAULT_STALL_HEADROOM,
            cool_down: DEFAULT_STALL_COOL_DOWN,
            dry_run: false,
        }
    }
}

/// Recording of the snapshots that decisions are made from, for `ballast replay`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordConfig {
    pub directory: PathBuf,
    /// Of all recordings together; the oldest goes first.
    pub max_bytes: u64,
    /// While nothing happens, at most `max_bytes`.
    pub max_bytes_per_hour: u64,
}

/// What is kept of OOM kills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OomRecordsConfig {
    /// On disk; the oldest goes first.
    pub max_bytes: u64,
}

impl Default for OomRecordsConfig {
    fn default() -> Self {
        Self {
            max_bytes: DEFAULT_OOM_RECORD_BYTES,
        }
    }
}

const METHODS: &[(&str, MemoryMethod)] = &[
    ("least", MemoryMethod::Least),
    ("workingSet", MemoryMethod::WorkingSet),
    ("estimate", MemoryMethod::Estimate),
];

/// What stands in a field with a fault is its default; the caller throws all of it away.
pub(super) fn check(
    raw: Option<&RawEviction>,
    compat: Compat,
    state_directory: &Path,
    faults: &mut Faults,
) -> EvictionConfig {
    let at = FieldPath::root().field("eviction");
    let usual = match compat {
        Compat::Ballast => MemoryMethod::Least,
        Compat::Kubelet => MemoryMethod::WorkingSet,
    };
    let Some(raw) = raw else {
        return EvictionConfig {
            memory_method: usual,
            ..EvictionConfig::default()
        };
    };
    let stages = raw.stages.clone().unwrap_or_default();
    EvictionConfig {
        memory_method: match raw.memory_method.as_deref() {
            None => usual,
            given => choose(given, METHODS, &at.field("memoryMethod"), faults),
        },
        stages: StagesConfig {
            relax_memory_high: stages.relax_memory_high.unwrap_or(false),
            set_memory_high: stages.set_memory_high.unwrap_or(false),
            reclaim: stages.reclaim.unwrap_or(false),
            freeze_best_effort: stages.freeze_best_effort.unwrap_or(false),
        },
        stall: raw
            .stall
            .as_ref()
            .map(|it| check_stall(it, &at.field("stall"), faults)),
        record: raw
            .record
            .as_ref()
            .map(|it| check_record(it, state_directory, &at.field("record"), faults)),
    }
}

/// Of every mode.
pub(super) fn check_oom_records(
    raw: Option<&RawEviction>,
    faults: &mut Faults,
) -> OomRecordsConfig {
    let records = raw.and_then(|it| it.oom_records.as_ref());
    let at = FieldPath::root().field("eviction").field("oomRecords");
    OomRecordsConfig {
        max_bytes: bytes(
            records.and_then(|it| it.max_bytes.as_deref()),
            &at.field("maxBytes"),
            LEAST_OOM_RECORD_BYTES,
            DEFAULT_OOM_RECORD_BYTES,
            faults,
        ),
    }
}

fn check_stall(raw: &RawEvictionStall, at: &FieldPath, faults: &mut Faults) -> StallConfig {
    let default = StallConfig::default();
    let memory_full_ratio = raw.memory_full_ratio.unwrap_or(default.memory_full_ratio);
    if !(memory_full_ratio > 0.0 && memory_full_ratio <= 1.0) {
        faults.add(
            &at.field("memoryFullRatio"),
            format!("{memory_full_ratio} is no share of time; right would be above 0, at most 1"),
        );
    }
    let headroom_at = at.field("headroom");
    StallConfig {
        memory_full_ratio,
        duration: span(
            raw.duration.as_deref(),
            &at.field("duration"),
            SHORTEST_STALL..=LONGEST_STALL,
            default.duration,
            faults,
        ),
        headroom: raw.headroom.as_deref().map_or(default.headroom, |text| {
            amount(text).unwrap_or_else(|| {
                faults.add(
                    &headroom_at,
                    format!(
                        "`{text}` is not an amount of memory; right would be as in 500Mi, \
                         or above 0% up to 100%"
                    ),
                );
                DEFAULT_STALL_HEADROOM
            })
        }),
        cool_down: span(
            raw.cool_down.as_deref(),
            &at.field("coolDown"),
            Duration::ZERO..=LONGEST_STALL,
            default.cool_down,
            faults,
        ),
        dry_run: raw.dry_run.unwrap_or(default.dry_run),
    }
}

fn check_record(
    raw: &RawEvictionRecord,
    state_directory: &Path,
    at: &FieldPath,
    faults: &mut Faults,
) -> RecordConfig {
    let directory = raw
        .directory
        .as_deref()
        .and_then(|text| absolute_path(text, &at.field("directory"), faults))
        .unwrap_or_else(|| state_directory.join(DEFAULT_RECORD_DIRECTORY));
    let max_bytes = bytes(
        raw.max_bytes.as_deref(),
        &at.field("maxBytes"),
        LEAST_RECORD_BYTES,
        DEFAULT_RECORD_BYTES,
        faults,
    );
    let rate_at = at.field("maxBytesPerHour");
    let max_bytes_per_hour = bytes(
        raw.max_bytes_per_hour.as_deref(),
        &rate_at,
        LEAST_RECORD_BYTES,
        DEFAULT_RECORD_BYTES_PER_HOUR.min(max_bytes),
        faults,
    );
    if max_bytes_per_hour > max_bytes {
        faults.add(
            &rate_at,
            format!("is more than maxBytes; right would be at most {max_bytes}"),
        );
    }
    RecordConfig {
        directory,
        max_bytes,
        max_bytes_per_hour,
    }
}

/// Above 0, and no more than all of it.
fn amount(text: &str) -> Option<Amount> {
    match percent(text) {
        Some(percent) => percent
            .filter(|it| *it > 0.0 && *it <= 100.0)
            .map(|it| Amount::Fraction(it / 100.0)),
        None => text
            .parse()
            .ok()
            .filter(Quantity::is_positive)
            .map(Amount::Quantity),
    }
}

fn bytes(text: Option<&str>, at: &FieldPath, least: u64, default: u64, faults: &mut Faults) -> u64 {
    let Some(text) = text else {
        return default;
    };
    let Some(size) = faults.keep(at, text.parse::<Quantity>()) else {
        return default;
    };
    if size.units() < least {
        let right = Quantity::from_bytes(least);
        faults.add(
            at,
            format!("`{text}` is too little; right would be {right} or more"),
        );
    }
    size.units()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed fixture fails the test")]
mod tests {
    use super::super::{Config, ConfigError, Fault, OwnConfig};
    use super::*;

    const HEAD: &str = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n";

    fn load(section: &str) -> Result<EvictionConfig, ConfigError> {
        let text = format!("{HEAD}eviction: {section}\n");
        load_all(&text).map(|it| own(&it).eviction.clone())
    }

    fn load_all(text: &str) -> Result<Config, ConfigError> {
        Config::from_yaml(text, None, &[]).map(|it| it.config)
    }

    fn own(config: &Config) -> &OwnConfig {
        config.mode.own().unwrap()
    }

    #[test]
    fn nothing_beyond_kubelets_thresholds_happens_by_default() {
        let default = load("{}").unwrap();
        assert_eq!(default, EvictionConfig::default());
        assert_eq!(default.memory_method, MemoryMethod::Least);
        assert_eq!(default.stages, StagesConfig::default());
        assert_eq!((&default.stall, &default.record), (&None, &None));
        assert_eq!(load_all(HEAD).unwrap().oom_records.max_bytes, 16 << 20);
    }

    #[test]
    fn kubelets_formula_decides_alone_where_it_is_asked_for() {
        let methods = |tail: &str| {
            let text = format!("{HEAD}{tail}");
            own(&load_all(&text).unwrap()).eviction.memory_method
        };
        let (working_set, least) = (MemoryMethod::WorkingSet, MemoryMethod::Least);
        assert_eq!(methods("compat: kubelet\n"), working_set);
        assert_eq!(methods("compat: kubelet\neviction: {}\n"), working_set);
        let asked = "compat: kubelet\neviction: {memoryMethod: least}\n";
        assert_eq!(methods(asked), least);
        assert_eq!(
            methods("eviction: {memoryMethod: workingSet}\n"),
            working_set
        );
    }

    #[test]
    fn a_section_that_is_there_is_on_with_its_defaults() {
        let config = load("{stall: {}, record: {}}").unwrap();
        let stall = config.stall.unwrap();
        assert_eq!(stall, StallConfig::default());
        assert_eq!(stall.duration, Duration::from_secs(30));
        let record = config.record.unwrap();
        assert_eq!(record.directory, Path::new("/var/lib/ballast/recordings"));
        assert_eq!(record.max_bytes_per_hour, 1 << 20);
        // A small budget is one for the rate too.
        let small = load("{record: {maxBytes: 512Ki}}").unwrap();
        assert_eq!(small.record.unwrap().max_bytes_per_hour, 512 << 10);
    }

    #[test]
    fn every_field_is_taken_and_the_effective_configuration_reads_back() {
        let config = load(
            "{memoryMethod: estimate, \
              stages: {relaxMemoryHigh: true, setMemoryHigh: true, reclaim: true, freezeBestEffort: true}, \
              stall: {memoryFullRatio: 0.4, duration: 10s, headroom: 1Gi, coolDown: 1m, dryRun: true}, \
              record: {directory: /tmp/r, maxBytes: 2Mi, maxBytesPerHour: 1Mi}, \
              oomRecords: {maxBytes: 4Mi}}",
        )
        .unwrap();
        assert_eq!(config.memory_method, MemoryMethod::Estimate);
        let stages = config.stages;
        assert!(stages.relax_memory_high && stages.set_memory_high);
        assert!(stages.reclaim && stages.freeze_best_effort);
        let stall = config.stall.clone().unwrap();
        assert_eq!(stall.headroom, Amount::Quantity("1Gi".parse().unwrap()));
        assert_eq!(stall.cool_down, Duration::from_secs(60));
        assert!(stall.dry_run);
        let json = serde_json::to_string(&config).unwrap();
        let back: EvictionConfig = serde_json::from_str(&json).unwrap();
        assert_eq!(back, config, "{json}");
    }

    #[test]
    fn every_fault_names_its_field_and_what_would_be_right() {
        for (section, fault) in [
            (
                "{memoryMethod: meminfo}",
                "eviction.memoryMethod: `meminfo` is not known; right would be one of least, workingSet, \
                 estimate",
            ),
            (
                "{stages: {freeze: true}}",
                "eviction.stages.freeze: unknown field",
            ),
            (
                "{stages: {reclaim: 1}}",
                "eviction.stages.reclaim: expected true or false, found the number 1",
            ),
            (
                "{stall: {memoryFullRatio: 60}}",
                "eviction.stall.memoryFullRatio: 60 is no share of time; right would be above 0, at \
                 most 1",
            ),
            (
                "{stall: {duration: 100ms}}",
                "eviction.stall.duration: `100ms` is out of range; right would be 1s to 1h",
            ),
            (
                "{stall: {coolDown: -1s}}",
                "eviction.stall.coolDown: `-1s` is out of range; right would be 0s to 1h",
            ),
            (
                "{stall: {headroom: 0%}}",
                "eviction.stall.headroom: `0%` is not an amount of memory; right would be as in \
                 500Mi, or above 0% up to 100%",
            ),
            (
                "{record: {directory: here}}",
                "eviction.record.directory: `here` is not an absolute path; right would be as \
                 /etc/ballast/pods",
            ),
            (
                "{record: {maxBytes: 1Mi, maxBytesPerHour: 2Mi}}",
                "eviction.record.maxBytesPerHour: is more than maxBytes; right would be at most \
                 1048576",
            ),
            (
                "{oomRecords: {maxBytes: 64Ki}}",
                "eviction.oomRecords.maxBytes: `64Ki` is too little; right would be 1Mi or more",
            ),
        ] {
            let error = load(section).expect_err(section);
            let faults: Vec<String> = error.faults.iter().map(Fault::to_string).collect();
            assert_eq!(faults, [fault], "{section}");
        }
    }
}
