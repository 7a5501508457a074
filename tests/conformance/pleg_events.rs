//! Suite `pleg_events`: container states to lifecycle events.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use ballast::decide::pleg::{
    PlegState, PodRecord, Relist, RuntimeState, relist_events, transition,
};
use ballast::model::pod::PodUid;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::resources::text;

#[derive(Deserialize)]
struct Step {
    pods: Option<Vec<ListedPod>>,
}

#[derive(Deserialize)]
struct ListedPod {
    uid: PodUid,
    containers: Option<Vec<Listed>>,
    sandboxes: Option<Vec<Listed>>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    state: RuntimeState,
}

pub(crate) fn run(input: &Value) -> anyhow::Result<Value> {
    match text(input, "kind")? {
        "transition" => {
            let state = |field: &str| -> anyhow::Result<PlegState> {
                serde_json::from_value(input[field].clone()).with_context(|| field.to_owned())
            };
            Ok(json!({"events": transition(state("old")?, state("new")?)}))
        }
        "relist" => {
            let steps: Vec<Step> = serde_json::from_value(input["steps"].clone())?;
            let mut old = Relist::new();
            let mut shown = Vec::new();
            for step in steps {
                let new = relist(step);
                let events = relist_events(&old, &new);
                let count: usize = events
                    .values()
                    .flat_map(BTreeMap::values)
                    .map(Vec::len)
                    .sum();
                shown.push(json!({"count": count, "events": events}));
                old = new;
            }
            Ok(json!({"steps": shown}))
        }
        other => bail!("unknown kind {other}"),
    }
}

fn relist(step: Step) -> Relist {
    let mut relist = Relist::new();
    for pod in step.pods.into_iter().flatten() {
        let listed = pod.containers.into_iter().chain(pod.sandboxes).flatten();
        let record: PodRecord = listed.map(|it| (it.id, it.state)).collect();
        relist.entry(pod.uid).or_default().extend(record);
    }
    relist
}
