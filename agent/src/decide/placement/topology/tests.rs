mod exhaustive;
mod large;
mod random;

use std::collections::BTreeMap;

use super::*;
use crate::config::{Compat, PlacementConfig};
use crate::decide::placement::hints::{Choices, Hints};

fn id(n: u32) -> NumaNodeId {
    NumaNodeId(n)
}

/// `distance(a, b)` between the nodes `0..n`.
fn manager(
    policy: TopologyManagerPolicy,
    n: u32,
    distance: impl Fn(u32, u32) -> Option<u32>,
) -> TopologyManager {
    let is_close = n > 1 && distance(0, 1).is_some();
    let config = PlacementConfig {
        topology_manager_policy: policy,
        topology_manager_policy_options: is_close
            .then(|| ("prefer-closest-numa-nodes".to_owned(), "true".to_owned()))
            .into_iter()
            .collect(),
        ..PlacementConfig::default()
    };
    let settings = TopologySettings::new(&config, Compat::Ballast).expect("good settings");
    let row = |a| {
        (0..n)
            .filter_map(|b| Some((id(b), distance(a, b)?)))
            .collect()
    };
    let nodes = (0..n).map(|a| (id(a), row(a))).collect();
    TopologyManager::new(settings, &nodes).expect("good nodes")
}

/// `"0+ 0,1-"`: masks, and whether they are preferred. `"nil"`: no opinion.
fn hints(text: &str) -> Hints {
    if text == "nil" {
        return Hints::Any;
    }
    let listed = text.split_whitespace().map(|it| {
        let (ids, flag) = it.split_at(it.len() - 1);
        let ids = ids.split(',').map(|it| id(it.parse().expect("an id")));
        Hint {
            numa: Some(NumaMask::new(ids).expect("small ids")),
            preferred: flag == "+",
        }
    });
    Hints::OneOf(Choices {
        listed: listed.collect(),
        region: None,
    })
}

/// Name, number of nodes, lists, the mask of best-effort, whether it is preferred, and the mask of
/// single-numa-node where that admits.
type Row = (
    &'static str,
    u32,
    &'static [&'static str],
    &'static str,
    bool,
    Option<&'static str>,
);

#[test]
fn the_worked_examples_come_out() {
    use TopologyManagerPolicy::{BestEffort, Restricted, SingleNumaNode};
    const CPU: &str = "0+ 1+ 0,1-";
    const PAIRS: &str = "0,1+ 0,2+ 0,3+ 1,2+ 1,3+ 2,3+";
    let rows: &[Row] = &[
        ("M-1", 2, &[], "0-1", true, Some("any")),
        ("M-2", 2, &[CPU], "0", true, Some("0")),
        ("M-3", 2, &[CPU, "1+ 0,1-"], "1", true, Some("1")),
        ("M-4", 2, &["0+ 0,1-", "1+ 0,1-"], "0", false, None),
        ("M-5", 2, &["0,1+", "1+ 0,1-"], "0-1", false, None),
        ("M-6", 2, &[CPU, ""], "0", false, None),
        ("M-7", 2, &[CPU, "nil"], "0", true, Some("0")),
        ("M-8", 2, &["0+", "1+"], "0-1", false, None),
        ("M-9", 2, &["0,1-", "0,1-"], "0-1", false, None),
        ("M-10", 4, &[PAIRS], "0-1", true, None),
        (
            "M-12",
            4,
            &["0,1- 0,1,2- 0,1,2,3-", "1+ 1,2-"],
            "1-2",
            false,
            None,
        ),
        (
            "M-13",
            4,
            &["0,1+ 2,3+ 0,1,2,3-", "2+ 0,2- 2,3- 0,1,2,3-"],
            "0-1",
            false,
            None,
        ),
        ("M-14", 1, &["0+"], "0", true, Some("any")),
    ];
    for (name, n, lists, mask, preferred, single) in rows {
        let provider = |it: &&str| ProviderHints::from([(String::new(), hints(it))]);
        let given: Vec<ProviderHints> = lists.iter().map(provider).collect();
        let merge = |policy| manager(policy, *n, |_, _| None).merge(&given);
        let text = |it: Hint| it.numa.map_or("any".to_owned(), |it| it.to_string());
        for policy in [BestEffort, Restricted] {
            let merge = merge(policy);
            assert_eq!(text(merge.hint), *mask, "{name} {policy:?}");
            assert_eq!(merge.hint.preferred, *preferred, "{name} {policy:?}");
            assert_eq!(merge.admit, *preferred || policy == BestEffort, "{name}");
        }
        let merge = merge(SingleNumaNode);
        let admitted = merge.admit.then(|| text(merge.hint));
        assert_eq!(admitted.as_deref(), *single, "{name}");
    }
}

#[test]
fn of_masks_of_as_many_nodes_the_closest_wins() {
    let distance = |a: u32, b: u32| match a.abs_diff(b) {
        0 => 10,
        2 => 12,
        _ => 20,
    };
    let manager = manager(TopologyManagerPolicy::Restricted, 4, |a, b| {
        Some(distance(a, b))
    });
    let pairs = hints("0,1+ 0,2+ 0,3+ 1,2+ 1,3+ 2,3+");
    let merge = manager.merge(&[BTreeMap::from([("cpu".to_owned(), pairs)])]);
    assert_eq!(merge.hint.numa, Some(NumaMask::from_bits(0b101)));
    assert!(merge.admit && merge.hint.preferred);
}

#[test]
fn opinions_say_who_stands_in_the_way() {
    let manager = manager(TopologyManagerPolicy::Restricted, 2, |_, _| None);
    let one = |name: &str, text: &str| ProviderHints::from([(name.to_owned(), hints(text))]);
    let given = [
        one("gpu", "1+ 0,1-"),
        one("cpu", "0+ 0,1-"),
        one("memory", "nil"),
    ];
    let merge = manager.merge(&given);
    assert!(!merge.admit);
    let opinions = manager.opinions(&given);
    let shown = opinions.iter().map(|it| {
        let mask = |merge: Merge| merge.hint.numa.map(|it| it.to_string()).unwrap_or_default();
        (
            it.provider,
            it.resource.as_str(),
            mask(it.alone),
            mask(it.without),
        )
    });
    let expected = [
        (0, "gpu", "1".to_owned(), "0".to_owned()),
        (1, "cpu", "0".to_owned(), "1".to_owned()),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), expected);
    assert!(opinions.iter().all(|it| it.alone.admit && it.without.admit));
}

#[test]
fn settings_are_read_as_kubelet_reads_them() {
    let read = |compat, options: &[(&str, &str)]| {
        let options = options.iter().map(|it| (it.0.to_owned(), it.1.to_owned()));
        let config = PlacementConfig {
            topology_manager_policy: TopologyManagerPolicy::Restricted,
            topology_manager_policy_options: options.collect(),
            ..PlacementConfig::default()
        };
        TopologySettings::new(&config, compat)
    };
    let max = "max-allowable-numa-nodes";
    let max_of = |compat, options: &[_]| read(compat, options).map(|it| it.max_numa_nodes);
    assert_eq!(max_of(Compat::Ballast, &[]), Ok(None));
    assert_eq!(max_of(Compat::Kubelet, &[]), Ok(Some(8)));
    assert_eq!(max_of(Compat::Ballast, &[(max, "+09")]), Ok(Some(9)));
    let error =
        |options: &[(&str, &str)]| read(Compat::Ballast, options).map_err(|it| it.to_string());
    for (option, value, message) in [
        (
            max,
            "7",
            "topologyManagerPolicyOptions.max-allowable-numa-nodes: 7; right would be 8 or more",
        ),
        (
            max,
            "8.0",
            "topologyManagerPolicyOptions.max-allowable-numa-nodes: \"8.0\"; right would be a whole number",
        ),
        (
            "prefer-closest-numa-nodes",
            "yes",
            "topologyManagerPolicyOptions.prefer-closest-numa-nodes: \"yes\"; right would be true or false",
        ),
    ] {
        assert_eq!(error(&[(option, value)]), Err(message.to_owned()));
    }
    assert!(matches!(
        read(Compat::Ballast, &[("nearest", "true")]),
        Err(TopologyConfigError::UnknownOption(_))
    ));
}
