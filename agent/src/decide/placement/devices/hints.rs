//! Where the devices of one resource could come from (pkg/kubelet/cm/devicemanager/topology_hints.go, v1.36).

use std::collections::BTreeMap;

use super::{DeviceManager, Ids};
use crate::decide::placement::hints::{Choices, Demand, Hints, Preference, Region};
use crate::model::device::Device;
use crate::model::numa::NumaMask;

/// Steps to look for the fewest nodes where devices lie on several each. Every choice of nodes of a
/// machine with 16 is less; past it the result is one that will do, not always the least.
const MAX_STEPS: u32 = 1 << 16;

impl DeviceManager {
    /// Hints for `asked` devices of one who holds `held` and may use `reusable` again.
    pub(super) fn hints_of(&self, resource: &str, asked: usize, held: Ids, reusable: Ids) -> Hints {
        let devices = self.books.resources.get(resource).map(|it| &it.devices);
        let places: BTreeMap<&str, NumaMask> = devices
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter_map(|it: &Device| Some((it.id.as_str(), self.place(it)?)))
            .collect();
        if places.values().all(|it| it.is_empty()) {
            return Hints::Any;
        }
        let (free, reusable) = match held.is_empty() {
            false if held.len() != asked => return Hints::none(),
            false => (held, Ids::new()),
            true => {
                let free = self.available(resource);
                if free.union(&reusable).count() < asked {
                    return Hints::none();
                }
                (free, reusable)
            }
        };
        let of = |ids: &Ids| -> Vec<NumaMask> {
            let places = ids.iter().filter_map(|id| places.get(id.as_str()));
            places.copied().collect()
        };
        let hosting = places.values().fold(NumaMask::EMPTY, |a, b| a.union(*b));
        let nodes = Some(hosting.intersection(self.nodes))
            .filter(|it| !it.is_empty())
            .unwrap_or(self.nodes);
        let touches = of(&reusable);
        let supply = of(&free).into_iter().chain(touches.iter().copied());
        let whole = demand(places.values().copied(), asked);
        Hints::OneOf(Choices {
            listed: Vec::new(),
            region: Some(Region {
                nodes,
                min_len: 1,
                contains: NumaMask::EMPTY,
                demands: vec![demand(supply, asked)],
                touches,
                preferred: Preference::Len(fewest(nodes, &whole)),
            }),
        })
    }
}

/// One unit from each device, those of the same place taken together.
fn demand(places: impl Iterator<Item = NumaMask>, asked: usize) -> Demand {
    let mut supply: BTreeMap<NumaMask, u64> = BTreeMap::new();
    for place in places {
        *supply.entry(place).or_default() += 1;
    }
    Demand {
        supply: supply.into_iter().collect(),
        need: u64::try_from(asked).unwrap_or(u64::MAX),
    }
}

/// How many of the nodes it takes to meet the demand; all if not even they do.
fn fewest(nodes: NumaMask, demand: &Demand) -> u32 {
    let mut by_supply: Vec<(u64, NumaMask)> = nodes
        .iter()
        .map(|id| {
            let node = NumaMask::from_bits(1 << id.0);
            (supply_of(demand, node), node)
        })
        .collect();
    by_supply.sort_by(|(a, _), (b, _)| b.cmp(a));
    let mut steps = MAX_STEPS;
    (1..=nodes.len())
        .find(|n| reaches(&by_supply, *n, NumaMask::EMPTY, demand, &mut steps))
        .unwrap_or(nodes.len())
}

/// Whether `n` nodes of `left` meet the demand together with `mask`. `left` has the richest first, so
/// where each device lies on one node the first try is the best.
fn reaches(
    left: &[(u64, NumaMask)],
    n: u32,
    mask: NumaMask,
    demand: &Demand,
    steps: &mut u32,
) -> bool {
    let have = supply_of(demand, mask);
    if have >= demand.need {
        return true;
    }
    let most = left.iter().take(n.try_into().unwrap_or(usize::MAX));
    let most = most.fold(have, |sum, (supply, _)| sum.saturating_add(*supply));
    let [(_, first), rest @ ..] = left else {
        return false;
    };
    if most < demand.need {
        return false;
    }
    if reaches(rest, n - 1, mask.union(*first), demand, steps) {
        return true;
    }
    *steps = steps.saturating_sub(1);
    *steps > 0 && reaches(rest, n, mask, demand, steps)
}

fn supply_of(demand: &Demand, mask: NumaMask) -> u64 {
    let supply = demand.supply.iter();
    let touched = supply.filter(|(nodes, _)| !nodes.is_disjoint(mask));
    touched.fold(0, |sum: u64, (_, amount)| sum.saturating_add(*amount))
}
