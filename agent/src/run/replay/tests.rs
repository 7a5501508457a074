use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::config::{
    Compat, CpuManagerPolicy, MemoryManagerPolicy, NumaReservation, PlacementConfig,
    TopologyManagerPolicy, TopologyManagerScope,
};
use crate::decide::placement::admission::Outcome;
use crate::decide::placement::devices::{
    DeviceBooks, Plugin, PluginAnswer, PluginAnswers, PluginQuestion, Resource,
};
use crate::decide::placement::managers::{Books, Managers, PlacementSettings};
use crate::decide::placement::record::{AdmissionInput, decide};
use crate::decide::testing;
use crate::model::admission::AdmissionReport;
use crate::model::capacity::HugePages;
use crate::model::device::{Device, PluginOptions};
use crate::model::numa::NumaMask;
use crate::model::pod::{Pod, PodUid, ResourceList};
use crate::model::quantity::Quantity;
use crate::model::topology::{
    CpuFacts, CpuId, CpuSet, NumaNodeFacts, NumaNodeId, Topology, TopologyFacts,
};
use crate::units::Bytes;

const GPU: &str = "example.com/gpu";

/// SplitMix64: any state is as good as any other.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        u32::try_from((z ^ (z >> 31)) % u64::from(n)).expect("below a u32")
    }

    fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        let n = u32::try_from(items.len()).expect("a short list");
        items[self.below(n) as usize]
    }

    /// 1 to 4 NUMA nodes of 1 to 4 cores with two threads, and 8 GiB each.
    fn topology(&mut self) -> Topology {
        let (n_nodes, n_cores) = (1 + self.below(4), 1 + self.below(4));
        let n_all = n_nodes * n_cores;
        let mut facts = TopologyFacts::default();
        for node in 0..n_nodes {
            let mut cpus = CpuSet::new();
            for core in node * n_cores..(node + 1) * n_cores {
                let siblings: CpuSet = [CpuId(core), CpuId(core + n_all)].into_iter().collect();
                for cpu in siblings.iter() {
                    cpus.insert(cpu);
                    let of_cpu = CpuFacts {
                        core_id: Some(core),
                        package_id: Some(node),
                        thread_siblings: Some(siblings.clone()),
                        caches: Vec::new(),
                    };
                    facts.cpus.insert(cpu, of_cpu);
                }
            }
            let of_node = NumaNodeFacts {
                cpus,
                memory: Some(Bytes(8 << 30)),
                distances: (0..n_nodes)
                    .map(|it| if it == node { 10 } else { 20 })
                    .collect(),
                hugepages: HugePages::new(),
            };
            facts.numa_nodes.insert(NumaNodeId(node), of_node);
        }
        Topology::from_facts(&facts).expect("there are CPUs")
    }

    fn settings(&mut self) -> PlacementSettings {
        use TopologyManagerPolicy::{BestEffort, None, Restricted, SingleNumaNode};
        let gib = Quantity::from_bytes(1 << 30);
        let one: Quantity = "1".parse().expect("a quantity");
        let config = PlacementConfig {
            cpu_manager_policy: self.one_of(&[CpuManagerPolicy::None, CpuManagerPolicy::Static]),
            memory_manager_policy: self
                .one_of(&[MemoryManagerPolicy::None, MemoryManagerPolicy::Static]),
            reserved_memory: vec![NumaReservation {
                numa_node: NumaNodeId(0),
                limits: ResourceList::from([("memory".to_owned(), gib.clone())]),
            }],
            topology_manager_policy: self.one_of(&[None, BestEffort, Restricted, SingleNumaNode]),
            topology_manager_scope: self
                .one_of(&[TopologyManagerScope::Container, TopologyManagerScope::Pod]),
            ..PlacementConfig::default()
        };
        PlacementSettings {
            compat: self.one_of(&[Compat::Ballast, Compat::Kubelet]),
            config,
            reserved_system_cpus: Option::None,
            reservation: ResourceList::from([("cpu".to_owned(), one), ("memory".to_owned(), gib)]),
            topology: self.topology(),
        }
    }

    fn devices(&mut self) -> DeviceBooks {
        let devices = (0..self.below(5)).map(|i| {
            let numa = match self.below(3) {
                0 => None,
                _ => Some(NumaMask::from_bits(1 << self.below(4))),
            };
            let device = Device {
                id: format!("gpu-{i}"),
                is_healthy: self.below(4) > 0,
                numa,
            };
            (device.id.clone(), device)
        });
        let resource = Resource {
            devices: devices.collect(),
            plugin: Plugin::Connected {
                instance: 1,
                options: PluginOptions::default(),
                has_listed: true,
            },
        };
        DeviceBooks {
            prepared: BTreeSet::new(),
            resources: BTreeMap::from([(GPU.to_owned(), resource)]),
            containers: BTreeMap::new(),
        }
    }

    fn pod(&mut self, uid: u32) -> Pod {
        let mut spec = String::new();
        for kind in ["init", "sidecar", "app", "app"] {
            if kind != "app" && self.below(3) > 0 {
                continue;
            }
            let cpu = self.one_of(&["500m", "1", "2", "4"]);
            let mut list = format!("cpu={cpu} memory={}Gi", 1 + self.below(6));
            if self.below(3) == 0 {
                list.push_str(&format!(" {GPU}={}", 1 + self.below(2)));
            }
            spec.push_str(&format!("{kind} {{req {list} lim {list}}} "));
        }
        let mut pod = testing::pod(spec.trim_end());
        pod.uid = PodUid(format!("u{uid}"));
        pod
    }

    /// A machine, and pods that come to it one after the other until one is refused.
    fn records(&mut self) -> Vec<AdmissionRecord> {
        let settings = self.settings();
        let mut managers = Managers::new(&settings).expect("settings that fit");
        managers.adopt(Books {
            devices: self.devices(),
            ..managers.books()
        });
        let mut records = Vec::new();
        for uid in 0..6 {
            let pod = self.pod(uid);
            let books = managers.books();
            let (answers, report) = loop_until_decided(&mut managers, &pod);
            let is_refused = report.refusal.is_some();
            let input = AdmissionInput {
                settings: settings.clone(),
                books,
                pod,
                answers,
                barred: None,
            };
            records.push(AdmissionRecord::new(input, report));
            if is_refused {
                break;
            }
        }
        records
    }
}

/// As the agent does, with a plugin that takes the first devices.
fn loop_until_decided(managers: &mut Managers, pod: &Pod) -> (PluginAnswers, AdmissionReport) {
    let mut answers = PluginAnswers::default();
    loop {
        match decide(managers, pod, &answers) {
            Outcome::Decided(decided) => {
                *managers = decided.managers;
                return (answers, decided.report);
            }
            Outcome::Ask(question) => {
                let answer = match &question {
                    PluginQuestion::Preferred {
                        available, size, ..
                    } => PluginAnswer::Preferred {
                        ids: available.iter().take(*size as usize).cloned().collect(),
                    },
                    PluginQuestion::Allocate { ids, .. } => PluginAnswer::Allocated {
                        response: ids.iter().flat_map(|it| it.bytes()).collect(),
                    },
                };
                answers.insert(question, answer);
            }
        }
    }
}

/// Something random that was admitted with CPUs of its own.
fn record_with_cpus() -> Value {
    let mut all = (0..).flat_map(|seed| Random(seed).records());
    let record = all.find(|it| it.report.holdings.iter().any(|it| it.cpus.is_some()));
    serde_json::to_value(record).expect("records have string keys")
}

fn replay_text(text: &str) -> Replay {
    replay_bytes(text.as_bytes()).expect("a record")
}

#[test]
fn any_record_replays_to_the_same_bytes() {
    let mut n_admitted = 0;
    let mut refusals = BTreeSet::new();
    for record in (0..100).flat_map(|seed| Random(seed).records()) {
        match &record.report.refusal {
            Some(refusal) => {
                refusals.insert(refusal.reason);
            }
            None => n_admitted += 1,
        }
        let stored = serde_json::to_vec(&record).expect("records have string keys");
        let shown = serde_json::from_slice(&stored).expect("just written");
        let shown = canonical_json(&shown);
        let replay = replay_text(&shown);
        assert_eq!(replay.differences_text(), "");
        assert_eq!(replay.text, shown);
        let of_stored = replay_bytes(&stored).expect("a record");
        assert_eq!(of_stored.text, shown, "the stored form replays as well");
    }
    assert!(n_admitted > 40, "{n_admitted}");
    assert!(refusals.len() >= 2, "{refusals:?}");
}

#[test]
fn what_came_out_otherwise_is_named_by_its_place() {
    let mut record = record_with_cpus();
    let holdings = record["report"]["holdings"].as_array_mut();
    let held = &mut holdings.expect("a list")[0];
    let cpus = std::mem::replace(&mut held["cpus"], "60-63".into());
    record["report"]["extra"] = true.into();
    let replay = replay_text(&canonical_json(&record));
    assert_eq!(
        replay.differences_text(),
        format!(
            "report.extra: recorded true, replayed nothing\n\
             report.holdings[0].cpus: recorded \"60-63\", replayed {cpus}\n"
        )
    );
}

#[test]
fn lists_of_other_lengths_and_many_differences_are_told_shortly() {
    let list = |n: u32| serde_json::json!({"a": (0..n).collect::<Vec<_>>()});
    let mut differences = Vec::new();
    let (short, long) = (list(1), list(40));
    compare(
        &mut String::new(),
        Some(&short),
        Some(&long),
        &mut differences,
    );
    assert_eq!(
        differences[0].to_string(),
        "a[1]: recorded nothing, replayed 1"
    );
    let replay = Replay {
        text: String::new(),
        differences,
    };
    let text = replay.differences_text();
    assert_eq!(text.lines().count(), MAX_SHOWN + 1);
    assert!(text.ends_with("and 7 more\n"), "{text}");
}

#[test]
fn what_is_no_record_is_told_with_its_line() {
    for (text, expected) in [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("{\n\"kind\": 1}", "line 2"),
        ("[]", "invalid length 0"),
    ] {
        match replay_bytes(text.as_bytes()) {
            Err(Fault::Form(error)) => {
                assert!(error.to_string().contains(expected), "{text:?}: {error}");
            }
            other => panic!("{text:?} gave {other:?}"),
        }
    }
    let path = Path::new("/nonexistent/record.json");
    let error = replay(path, None).err().map(|it| crate::sys::chain(&it));
    assert_eq!(
        error.as_deref(),
        Some("read the record: /nonexistent/record.json is not there")
    );
}
