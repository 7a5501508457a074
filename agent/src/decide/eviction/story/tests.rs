use std::sync::Arc;

use super::*;
use crate::model::eviction::{
    ContainerFacts, ContainerFigures, MemoryUse, NodeReading, Observation, PodFacts, PodFigures,
    PodReading, Signal, StallSource, StallTotals,
};
use crate::model::pod::{PodUid, QosClass};
use crate::model::quantity::Quantity;
use crate::model::random::Random;
use crate::model::recording::Encoder;

fn facts(n: u64) -> Arc<PodFacts> {
    let container = |name: &str| ContainerFacts {
        name: name.to_owned(),
        memory_request: Quantity::ZERO,
        storage_request: Quantity::ZERO,
        storage_limit: None,
    };
    Arc::new(PodFacts {
        qos: QosClass::Burstable,
        containers: vec![container("main"), container("proxy")],
        ..PodFacts::bare(PodRef {
            namespace: format!("team-{}", n % 7),
            name: format!("service-{n}-7d9f{n:04x}"),
            uid: PodUid(format!("{n:08x}-8c1b-4f0a-9d2e-{:012x}", n * 7919)),
        })
    })
}

/// Of two pods in three some pages come and go between two looks; a few write files and stall.
fn stir(random: &mut Random, figures: &mut PodFigures, at: Duration) {
    figures.at = Some(at);
    if random.below(3) == 0 {
        return;
    }
    let pages = random.below(64) * 4096;
    if let Some(memory) = &mut figures.memory {
        memory.usage = (200 << 20) + pages;
        memory.anon = (150 << 20) + pages / 2;
        if random.below(4) == 0 {
            memory.file += 4096;
            memory.inactive_file += 4096;
        }
        figures.memory_working_set = Some(memory.working_set());
    }
    if random.below(10) == 0
        && let Some(stall) = &mut figures.stall
    {
        stall.some_us += random.below(500);
    }
    if let Some(main) = figures.containers.get_mut("main") {
        main.memory_working_set = Some((120 << 20) + pages);
    }
}

#[test]
fn an_idle_hour_of_a_full_node_takes_less_than_a_megabyte() {
    let mut random = Random(1);
    let figures = PodFigures {
        memory: Some(MemoryUse::default()),
        processes: Some(12),
        tasks: Some(40),
        stall: Some(StallTotals {
            source: StallSource::Psi,
            some_us: 0,
            full_us: Some(0),
        }),
        storage: Some(12 << 20),
        containers: ["main", "proxy"]
            .map(|it| (it.to_owned(), ContainerFigures::default()))
            .into(),
        ..PodFigures::default()
    };
    let mut pods: Vec<PodReading> = (0..110)
        .map(|n| PodReading {
            facts: facts(n),
            figures: Some(figures.clone()),
            ends_within: None,
        })
        .collect();
    let (mut encoder, head) = Encoder::new(&serde_json::json!({})).expect("a small header");
    let (mut n_bytes, mut n_plain) = (head.len(), 0);
    for n in 0..360 {
        let at = Duration::from_secs(1000 + n * 10) + Duration::from_nanos(random.below(1_000_000));
        for pod in &mut pods {
            if let Some(figures) = &mut pod.figures {
                stir(&mut random, figures, at);
            }
        }
        let free = (8 << 30) + random.below(1 << 24);
        let observation = Observation {
            available: i64::try_from(free).expect("some GiB"),
            capacity: 32 << 30,
            at: Some(at),
        };
        let step = Step {
            woken_by: Cow::Borrowed("timer"),
            state: State::default(),
            snapshot: Snapshot {
                at,
                observations: Signal::ALL.map(|it| (it, observation)).into(),
                node: NodeReading {
                    at,
                    memory_total: 32 << 30,
                    memory_free: Some(free / 2),
                    memory_available: Some(free),
                    ..NodeReading::default()
                },
                pods: pods.clone(),
                is_leaving: false,
            },
            decision: Decision::default(),
            done: Vec::new(),
        };
        let step = serde_json::to_value(&step).expect("plain data");
        n_plain += step.to_string().len();
        n_bytes += encoder.step(step).expect("a small step").len();
    }
    println!("{n_bytes} bytes for {n_plain}");
    assert!(n_bytes < 1_000_000, "{n_bytes} bytes for {n_plain}");
}
