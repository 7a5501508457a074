//! Which alerts silence which, asked of a real Alertmanager with the sample configuration.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use ballast_tests::prometheus::{Alertmanager, program, run};
use ballast_tests::scratch::Scratch;
use ballast_tests::wait::until;

use crate::rules;

const CONFIG: &str = "dashboards/alertmanager.yaml";

/// Alerts that fire together on one node, in one namespace, for one container; and those of them
/// that are silenced.
const TOGETHER: &[(&[&str], &[&str])] = &[
    (
        &[
            "BallastNodeOom",
            "BallastContainerOomKilled",
            "BallastSilentOomKill",
        ],
        &["BallastContainerOomKilled"],
    ),
    (
        &[
            "BallastNodeOom",
            "BallastNodeMemoryStalled",
            "BallastNodeMemoryPressureRising",
            "BallastNodeIoStalled",
        ],
        &[
            "BallastNodeMemoryStalled",
            "BallastNodeMemoryPressureRising",
        ],
    ),
    (
        &[
            "BallastNodeMemoryStalled",
            "BallastNodeMemoryPressureRising",
        ],
        &["BallastNodeMemoryPressureRising"],
    ),
    // Which kill is of which workload no label tells.
    (
        &["BallastWorkloadOomRepeats", "BallastContainerOomKilled"],
        &[],
    ),
    (
        &["BallastThrottledWithIdleCpu", "CPUThrottlingHigh"],
        &["CPUThrottlingHigh"],
    ),
    (
        &["BallastCpuContended", "CPUThrottlingHigh"],
        &["CPUThrottlingHigh"],
    ),
    (
        &[
            "BallastDown",
            "BallastLoopStalled",
            "BallastNodeOom",
            "KubePodCrashLooping",
        ],
        &["BallastLoopStalled", "BallastNodeOom"],
    ),
    (&["BallastAbsent", "BallastLoopStalled"], &[]),
];

/// What silences every other alert of its node.
const ALL_OF_THE_NODE: [&str; 2] = ["BallastDown", "BallastLoopStalled"];

type Labels = BTreeMap<String, String>;

/// The labels that the alert would have on this node; as much as inhibition goes by.
fn labels(alert: &str, node: &str) -> Labels {
    let workload = ["namespace"].as_slice();
    let container = ["node", "namespace", "pod", "container"].as_slice();
    let names = match alert {
        "BallastAbsent" => &[],
        "BallastWorkloadOomRepeats" => workload,
        // Of kubernetes-mixin, which does not know the node.
        "CPUThrottlingHigh" => &container[1..],
        _ => container,
    };
    let label = |name: &&str| (name.to_string(), format!("{name} of {node}"));
    let mut labels: Labels = names.iter().map(label).collect();
    labels.insert("alertname".to_owned(), alert.to_owned());
    labels.insert("cluster".to_owned(), "c".to_owned());
    labels
}

/// What is silenced when these fire, `n` of them at least.
fn inhibited(alerts: &[Labels], n: usize) -> Result<BTreeSet<Labels>> {
    let config = rules::read(CONFIG)?;
    let server = Alertmanager::start(Scratch::new("inhibition")?, &config)?;
    server.post(alerts)?;
    until("the alerts are known and silenced", || {
        let known = server.alerts()?;
        let mut found = BTreeSet::new();
        for it in &known {
            let by = it["status"]["inhibitedBy"].as_array();
            if by.is_some_and(|it| !it.is_empty()) {
                found.insert(serde_json::from_value(it["labels"].clone()).context("labels")?);
            }
        }
        // Alerts come to the part that inhibits a little after they are known.
        ensure!(
            known.len() == alerts.len() && found.len() >= n,
            "{} are known, silenced: {found:#?}",
            known.len()
        );
        Ok(found)
    })
}

#[cfg_attr(feature = "monitoring", test)]
fn alertmanager_takes_the_configuration() -> Result<()> {
    let mut amtool = program("amtool");
    let answer = run(amtool.arg("check-config").arg(rules::path(CONFIG)))?;
    ensure!(answer.contains("SUCCESS"), "{answer}");
    Ok(())
}

/// All in one Alertmanager, each on a node of its own, so that what one silences is seen to leave
/// the others alone.
#[cfg_attr(feature = "monitoring", test)]
fn alerts_silence_others_of_the_same_story_alone() -> Result<()> {
    let mut alerts = Vec::new();
    let mut expected = BTreeSet::new();
    for (n, (firing, silenced)) in TOGETHER.iter().enumerate() {
        let node = n.to_string();
        alerts.extend(firing.iter().map(|it| labels(it, &node)));
        expected.extend(silenced.iter().map(|it| labels(it, &node)));
        for it in *firing {
            // The same where nothing else fires.
            alerts.push(labels(it, &format!("{n} {it}")));
        }
    }
    for (n, source) in ALL_OF_THE_NODE.iter().enumerate() {
        let node = format!("all {n}");
        for alert in rules::alerts()? {
            let labels = labels(alert.name(), &node);
            // Alerts of no node, and what speaks for itself.
            let speaks = alert.name() == *source || alert.name() == "BallastDown";
            if labels.contains_key("node") && !speaks {
                expected.insert(labels.clone());
            }
            if alert.name() != "BallastDown" || *source == "BallastDown" {
                alerts.push(labels);
            }
        }
    }
    alerts.sort();
    alerts.dedup();
    let found = inhibited(&alerts, expected.len())?;
    ensure!(
        found == expected,
        "silenced wrongly: {:#?}\nnot silenced: {:#?}",
        found.difference(&expected).collect::<Vec<_>>(),
        expected.difference(&found).collect::<Vec<_>>()
    );
    Ok(())
}
