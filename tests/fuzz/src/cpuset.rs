//! Sets of CPUs as the kernel, kubelet's files and people write them.

use ballast::model::cpuset::CpuSet;
use ballast::model::kubelet_state::CpuRanges;

/// Lines of lists. What is read prints in a form that reads as the same; the two readers agree; and
/// two sets keep the laws of sets.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let sets: Vec<CpuSet> = text.split('\n').filter_map(read).collect();
    for pair in sets.windows(2) {
        if let [a, b] = pair {
            check_laws(a, b);
        }
    }
}

fn read(text: &str) -> Option<CpuSet> {
    let ranges = text.parse::<CpuRanges>();
    if let Ok(ranges) = &ranges {
        let again: CpuRanges = ranges.to_string().parse().expect("ranges print as ranges");
        assert_eq!(again, *ranges, "{text:?}");
    }
    let cpus: CpuSet = text.parse().ok()?;
    let canonical = cpus.to_string();
    assert_eq!(canonical.parse().as_ref(), Ok(&cpus), "{text:?}");
    assert_eq!(cpus.iter().collect::<CpuSet>(), cpus, "{text:?}");
    assert_eq!(cpus.iter().count(), cpus.len(), "{text:?}");
    // Kubelet takes at least what we take, and means the same.
    let ranges = ranges.expect("a set of ours is one of kubelet's");
    assert_eq!(ranges.to_string(), canonical, "{text:?}");
    assert_eq!(CpuSet::try_from(&ranges).as_ref(), Ok(&cpus), "{text:?}");
    Some(cpus)
}

fn check_laws(a: &CpuSet, b: &CpuSet) {
    let (both, either) = (a.intersection(b), a.union(b));
    let (only_a, only_b) = (a.difference(b), b.difference(a));
    assert_eq!(a.len() + b.len(), both.len() + either.len(), "{a} and {b}");
    assert_eq!(only_a.union(&both), *a, "{a} and {b}");
    assert_eq!(only_a.union(b), either, "{a} and {b}");
    assert!(
        only_a.is_disjoint(b) && only_b.is_disjoint(a),
        "{a} and {b}"
    );
    assert!(both.is_subset(a) && a.is_subset(&either), "{a} and {b}");
    assert_eq!(a.is_disjoint(b), both.is_empty(), "{a} and {b}");
    assert_eq!(a.is_subset(b), only_a.is_empty(), "{a} and {b}");
}
