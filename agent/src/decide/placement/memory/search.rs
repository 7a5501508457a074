//! The best of the masks that a manager describes, found without listing them.

use crate::decide::placement::hints::cover::Cover;
use crate::decide::placement::hints::search::Budget;
use crate::decide::placement::hints::{Choices, Region};
use crate::model::numa::NumaMask;

/// Steps that one search may take: some ms. Like the limit of `least_len`, it is for demands that
/// are at odds over many nodes, where a mask that is good enough has to do.
const BUDGET: u64 = 20_000;

/// The best mask that has all nodes of `contains`, and whether it is preferred: preferred ones go
/// first, then narrower ones.
pub(super) fn best(choices: &Choices, contains: NumaMask) -> Option<(NumaMask, bool)> {
    let listed = choices
        .listed
        .iter()
        .filter_map(|it| Some((it.numa?, it.preferred)))
        .filter(|(mask, _)| contains.is_subset(*mask));
    let region = choices.region.as_ref().and_then(|region| {
        let mask = narrowest(region, contains)?;
        Some((mask, region.preferred.is_met_by(mask)))
    });
    listed
        .chain(region)
        .min_by(|(a, is_a_preferred), (b, is_b_preferred)| {
            is_b_preferred
                .cmp(is_a_preferred)
                .then_with(|| a.cmp_narrower(*b))
        })
}

/// The narrowest mask of the region that has all nodes of `contains`. None but the narrowest can be
/// preferred, as nodes have no more free than they have in all.
fn narrowest(region: &Region, contains: NumaMask) -> Option<NumaMask> {
    let conditions = region.conditions();
    let cover = Cover::new(region.nodes, contains, NumaMask::EMPTY, &conditions)?;
    let mut budget = Budget::new(BUDGET);
    let len = cover.least_len(&mut budget);
    let found = cover.best(len, None, None, &mut budget);
    // The search was ended: all of the nodes meet what a part of them might have met.
    Some(found.unwrap_or(region.nodes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::placement::hints::{Demand, Hints, Preference};
    use crate::model::numa::Hint;

    fn bit(id: u32) -> NumaMask {
        NumaMask::from_bits(1 << id)
    }

    /// Amounts of the nodes from 0 on, a row for each type.
    fn region(rows: &[(&[u64], u64)], n_nodes: u32, least: u32) -> Region {
        let demand = |(amounts, need): &(&[u64], u64)| Demand {
            supply: (0..).map(bit).zip(amounts.iter().copied()).collect(),
            need: *need,
        };
        Region {
            nodes: (0..n_nodes).map(bit).fold(NumaMask::EMPTY, NumaMask::union),
            min_len: 2,
            contains: NumaMask::EMPTY,
            touches: Vec::new(),
            demands: rows.iter().map(demand).collect(),
            preferred: Preference::Len(least),
        }
    }

    #[test]
    fn the_best_is_the_best_of_the_list() {
        // Every request and every node to contain, on five nodes of two types.
        let memory = [5, 3, 8, 3, 6];
        let pages = [0, 2, 0, 1, 2];
        let listed = [(bit(0), true), (bit(1).union(bit(4)), false)];
        let mut n_found = 0;
        for need in 0..=26 {
            for need_pages in 0..=6 {
                for contains in 0..32 {
                    let contains = NumaMask::from_bits(contains);
                    let region = region(&[(&memory, need), (&pages, need_pages)], 5, 2);
                    let choices = Choices {
                        listed: listed
                            .map(|(mask, preferred)| Hint {
                                numa: Some(mask),
                                preferred,
                            })
                            .to_vec(),
                        region: Some(region),
                    };
                    let list = Hints::OneOf(choices.clone()).list().expect("a list");
                    let expected = list
                        .iter()
                        .filter_map(|it| Some((it.numa?, it.preferred)))
                        .filter(|(mask, _)| contains.is_subset(*mask))
                        .min_by_key(|(mask, preferred)| (!preferred, mask.len(), mask.bits()));
                    n_found += usize::from(expected.is_some());
                    assert_eq!(
                        best(&choices, contains),
                        expected,
                        "{need} {need_pages} {contains}"
                    );
                }
            }
        }
        assert!(n_found > 1000);
    }

    #[test]
    fn sixty_four_nodes_are_no_more_work_than_the_budget() {
        // Either memory or huge pages: what one demand wants, the other has no use for.
        let memory: Vec<u64> = (0..64).map(|id| 1000 * (id % 2) + id).collect();
        let pages: Vec<u64> = (0..64).map(|id| 1000 * ((id + 1) % 2) + id % 7).collect();
        let rows: &[(&[u64], u64)] = &[(&memory, 17_000), (&pages, 17_000)];
        let choices = Choices {
            listed: Vec::new(),
            region: Some(region(rows, 64, 30)),
        };
        let contains = bit(3).union(bit(60));
        let (mask, _) = best(&choices, contains).expect("there is enough");
        assert!(contains.is_subset(mask));
        assert!(choices.region.expect("a region").has(mask));
    }
}
