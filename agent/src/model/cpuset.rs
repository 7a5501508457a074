//! Sets of logical CPUs in the kernel's list format (`0-3,8`), which is also Kubernetes'
//! (`cpuset.cpus`, `/sys/devices/system/cpu/online`, `reservedSystemCPUs`).

use std::fmt;
use std::iter;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A logical CPU, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuId(pub u32);

impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Ids above are refused: the kernel's own bound is 8192 (NR_CPUS, x86), and a set costs memory up
/// to its largest id.
pub const MAX_CPU: CpuId = CpuId(65_535);
const BITS: u32 = u64::BITS;

/// Why a text is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuSetError {
    #[error("`{part}` is neither a CPU nor a range of CPUs, as 8 or 0-3")]
    Syntax { part: String },
    #[error("range `{part}` runs backwards")]
    Backwards { part: String },
    #[error("CPU {cpu} is above {MAX_CPU}")]
    TooLarge { cpu: u64 },
}

/// A set of CPUs. One bit each, in words of 64; the last word is never 0, so that equal sets are
/// equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuSet(Vec<u64>);

fn place(cpu: CpuId) -> (usize, u64) {
    let word = usize::try_from(cpu.0 / BITS).expect("a 32-bit number fits usize");
    (word, 1 << (cpu.0 % BITS))
}

impl CpuSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// CPUs 0 to `n - 1`.
    pub fn first(n: u32) -> Self {
        (0..n.min(MAX_CPU.0 + 1)).map(CpuId).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of CPUs.
    pub fn len(&self) -> usize {
        self.0
            .iter()
            .map(|it| usize::try_from(it.count_ones()).unwrap_or(0))
            .sum()
    }

    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        self.0.get(word).is_some_and(|it| it & bit != 0)
    }

    /// Whether the CPU was new. A CPU above [`MAX_CPU`] is not taken.
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        if cpu > MAX_CPU {
            return false;
        }
        let (word, bit) = place(cpu);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Whether the CPU was there.
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu);
        let Some(bits) = self.0.get_mut(word) else {
            return false;
        };
        let was_there = *bits & bit != 0;
        *bits &= !bit;
        self.trim();
        was_there
    }

    pub fn union(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    pub fn intersection(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & b)
    }

    /// CPUs of `self` that are not in `other`.
    pub fn difference(&self, other: &Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    pub fn is_subset(&self, other: &Self) -> bool {
        self.difference(other).is_empty()
    }

    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = CpuId> {
        (0_u32..)
            .step_by(64)
            .zip(&self.0)
            .flat_map(|(base, &word)| {
                // Each step clears the lowest bit that is set.
                let first = Some(word).filter(|it| *it != 0);
                iter::successors(first, |it| Some(it & (it - 1)).filter(|it| *it != 0))
                    .map(move |it| CpuId(base + it.trailing_zeros()))
            })
    }

    /// Ranges of consecutive CPUs, both ends included, in ascending order.
    fn ranges(&self) -> Vec<(CpuId, CpuId)> {
        let mut ranges: Vec<(CpuId, CpuId)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if last.0 + 1 == cpu.0 => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        ranges
    }

    fn zip(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let word = |set: &Self, i: usize| set.0.get(i).copied().unwrap_or(0);
        let n = self.0.len().max(other.0.len());
        let mut set = Self((0..n).map(|i| of(word(self, i), word(other, i))).collect());
        set.trim();
        set
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl FromIterator<CpuId> for CpuSet {
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> Self {
        let mut set = Self::new();
        for cpu in cpus {
            set.insert(cpu);
        }
        set
    }
}

fn cpu(text: &str, part: &str) -> Result<CpuId, CpuSetError> {
    let is_number = !text.is_empty() && text.bytes().all(|it| it.is_ascii_digit());
    if !is_number {
        return Err(CpuSetError::Syntax {
            part: part.to_owned(),
        });
    }
    let cpu = text.parse::<u64>().unwrap_or(u64::MAX);
    match u32::try_from(cpu) {
        Ok(cpu) if CpuId(cpu) <= MAX_CPU => Ok(CpuId(cpu)),
        _ => Err(CpuSetError::TooLarge { cpu }),
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// The empty text is the empty set; parts may overlap and come in any order. The caller trims
    /// the line end of a kernel file.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut set = Self::new();
        if text.is_empty() {
            return Ok(set);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (cpu(first, part)?, cpu(last, part)?);
            if first > last {
                return Err(CpuSetError::Backwards {
                    part: part.to_owned(),
                });
            }
            for id in first.0..=last.0 {
                set.insert(CpuId(id));
            }
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.ranges().into_iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            if first == last {
                write!(f, "{first}")?;
            } else {
                write!(f, "{first}-{last}")?;
            }
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn lists_are_read_and_printed_in_canonical_form() {
        for (text, canonical, len) in [
            ("", "", 0),
            ("0", "0", 1),
            ("8,0-3", "0-3,8", 5),
            ("0,1,2,3", "0-3", 4),
            ("0-3,2-5", "0-5", 6),
            ("63,64", "63-64", 2),
            ("0-65535", "0-65535", 65_536),
            ("007", "7", 1),
        ] {
            assert_eq!(set(text).to_string(), canonical);
            assert_eq!(set(text).len(), len, "{text}");
        }
    }

    #[test]
    fn garbage_is_an_error_and_a_huge_range_costs_nothing() {
        for text in [
            ",", "0,", "a", "-1", "1-", "-", "0-1-2", " 0", "0\n", "+1", "0x1", "0-3:2",
        ] {
            assert!(
                matches!(text.parse::<CpuSet>(), Err(CpuSetError::Syntax { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            "3-1".parse::<CpuSet>(),
            Err(CpuSetError::Backwards { .. })
        ));
        for text in ["0-4294967295", "65536", "0-99999999999999999999999"] {
            assert!(
                matches!(text.parse::<CpuSet>(), Err(CpuSetError::TooLarge { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn operations_agree_with_a_plain_set() {
        let mut seed = 3_u64;
        let mut next = |n: u32| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            u32::try_from(seed >> 33).expect("31 bits") % n
        };
        for round in 0..500 {
            let mut random =
                || -> BTreeSet<CpuId> { (0..next(60)).map(|_| CpuId(next(300))).collect() };
            let (a, b) = (random(), random());
            let of = |plain: &BTreeSet<CpuId>| plain.iter().copied().collect::<CpuSet>();
            let (x, y) = (of(&a), of(&b));
            assert_eq!(x.union(&y), of(&(&a | &b)), "union, round {round}");
            assert_eq!(
                x.intersection(&y),
                of(&(&a & &b)),
                "intersection, round {round}"
            );
            assert_eq!(
                x.difference(&y),
                of(&(&a - &b)),
                "difference, round {round}"
            );
            assert_eq!(x.is_subset(&y), a.is_subset(&b), "subset, round {round}");
            assert_eq!(x.len(), a.len(), "length, round {round}");
            assert!(x.iter().eq(a.iter().copied()), "order, round {round}");
            assert_eq!(set(&x.to_string()), x, "print and read, round {round}");
        }
    }

    #[test]
    fn removing_the_last_cpu_leaves_the_empty_set() {
        let mut cpus = set("200");
        assert!(cpus.remove(CpuId(200)) && !cpus.remove(CpuId(200)));
        assert_eq!(cpus, CpuSet::new());
        assert!(!cpus.insert(CpuId(MAX_CPU.0 + 1)));
        assert_eq!(CpuSet::first(4), set("0-3"));
    }
}
