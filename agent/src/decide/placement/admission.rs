//! Whether a pod may run, and on what: the hints of the managers are merged and each allocates by
//! the answer (pkg/kubelet/cm/topologymanager/scope_container.go and scope_pod.go, v1.36).
//!
//! A pure function of the managers' books, the pod, and the answers of device plugins. Where a plugin
//! has to be asked, the question comes back and the admission is run again, from its start, with one
//! answer more.
//!
//! Invariant: all or nothing. A pod that is refused has changed no books. Kubelet leaves what was
//! allocated before the refusal until its next sweep.

use std::collections::BTreeMap;

use super::cpu::{CpuError, CpuManager, exclusive_cpus};
use super::devices::{Allocated, PluginAnswers, PluginQuestion};
use super::hints::{Hints, Preference, ProviderHints, least_len};
use super::managers::Managers;
use crate::config::{TopologyManagerPolicy, TopologyManagerScope};
use crate::model::admission::{
    AdmissionReport, AdmissionTally, Alignment, AlignmentBoundary, AlignmentScope, Provider,
    ProviderVerdict, Refusal, RefusalReason, Verdict,
};
use crate::model::numa::Hint;
use crate::model::pod::{Container, Pod};

/// Masks are counted and shown up to this many NUMA nodes, where all of them are a short list.
const MAX_LISTED_NODES: u32 = 8;

/// How many masks of a provider a report shows.
const N_SHOWN: usize = 8;

const NO_LOCALITY: &str = "Resources cannot be allocated with Topology locality";

#[derive(Clone, Debug)]
pub enum Outcome {
    /// A plugin has to say something first.
    Ask(PluginQuestion),
    Decided(Box<Decided>),
}

#[derive(Clone, Debug)]
pub struct Decided {
    /// The books after it: unchanged if the pod was refused.
    pub managers: Managers,
    pub report: AdmissionReport,
    pub tally: AdmissionTally,
}

impl Decided {
    /// The managers keep what they have, whatever they would have said.
    pub fn refused(managers: Managers, refusal: Refusal) -> Self {
        Self {
            managers,
            report: AdmissionReport {
                refusal: Some(refusal),
                ..AdmissionReport::default()
            },
            tally: AdmissionTally::default(),
        }
    }
}

/// See the module. `pod` holds nothing yet, or what an earlier admission gave it: then it is given
/// the same.
pub fn admit(managers: &Managers, pod: &Pod, answers: &PluginAnswers) -> Outcome {
    let mut draft = Draft {
        managers: managers.clone(),
        pod,
        answers,
        report: AdmissionReport::default(),
        tally: AdmissionTally::default(),
    };
    match draft.place() {
        Err(Stop::Ask(question)) => Outcome::Ask(question),
        Err(Stop::Refused(refusal)) => {
            draft.report.refusal = Some(refusal);
            Outcome::Decided(Box::new(Decided {
                managers: managers.clone(),
                report: draft.report,
                tally: draft.tally,
            }))
        }
        Ok(()) => {
            draft.report.holdings = draft.managers.holdings(pod);
            Outcome::Decided(Box::new(Decided {
                managers: draft.managers,
                report: draft.report,
                tally: draft.tally,
            }))
        }
    }
}

/// An admission in the making.
struct Draft<'a> {
    managers: Managers,
    pod: &'a Pod,
    answers: &'a PluginAnswers,
    report: AdmissionReport,
    tally: AdmissionTally,
}

/// Why an admission ends before its end.
enum Stop {
    Ask(PluginQuestion),
    Refused(Refusal),
}

impl Stop {
    fn refused(
        reason: RefusalReason,
        error: impl std::fmt::Display,
        container: Option<&str>,
    ) -> Self {
        // Kubelet puts errors that have no reason of their own into these words.
        let message = match reason {
            RefusalReason::UnexpectedAdmissionError => {
                format!("Allocate failed due to {error}, which is unexpected")
            }
            _ => error.to_string(),
        };
        Self::Refused(Refusal {
            reason,
            message,
            container: container.map(str::to_owned),
        })
    }
}

impl Draft<'_> {
    fn place(&mut self) -> Result<(), Stop> {
        let pod = self.pod;
        let settings = self.managers.topology.settings();
        match (settings.policy, settings.scope) {
            (TopologyManagerPolicy::None, _) => {
                for container in pod.all_containers() {
                    self.allocate(container, Hint::UNKNOWN)?;
                }
            }
            (_, TopologyManagerScope::Container) => {
                for container in pod.all_containers() {
                    let hints = self.hints(container);
                    let hint = self.align(Some(container), hints)?;
                    self.allocate(container, hint)?;
                    self.count_numa(AlignmentScope::Container, true);
                }
            }
            (_, TopologyManagerScope::Pod) => {
                let hints = self.pod_hints();
                let hint = self.align(None, hints)?;
                if self.managers.places_whole(pod) {
                    self.allocate_pod(hint)?;
                } else {
                    for container in pod.all_containers() {
                        self.allocate(container, hint)?;
                    }
                }
                self.count_numa(AlignmentScope::Pod, true);
            }
        }
        Ok(())
    }

    fn hints(&self, container: &Container) -> Vec<(Provider, ProviderHints)> {
        let managers = &self.managers;
        let pod = self.pod;
        let cpu = managers.cpu.as_ref();
        let memory = managers.memory.as_ref();
        by_provider(
            managers.devices.hints(pod, container),
            cpu.and_then(|it| it.hints(pod, container)),
            memory.and_then(|it| it.hints(pod, container)),
        )
    }

    fn pod_hints(&self) -> Vec<(Provider, ProviderHints)> {
        let managers = &self.managers;
        let pod = self.pod;
        let cpu = managers.cpu.as_ref();
        let memory = managers.memory.as_ref();
        by_provider(
            managers.devices.pod_hints(pod),
            cpu.and_then(|it| it.pod_hints(pod)),
            memory.and_then(|it| it.pod_hints(pod)),
        )
    }

    /// Merges, and notes how it went.
    fn align(
        &mut self,
        container: Option<&Container>,
        hints: Vec<(Provider, ProviderHints)>,
    ) -> Result<Hint, Stop> {
        let scope = match container {
            Some(_) => AlignmentScope::Container,
            None => AlignmentScope::Pod,
        };
        let container = container.map(|it| it.name.as_str());
        let (asked, lists): (Vec<Provider>, Vec<ProviderHints>) = hints.into_iter().unzip();
        let topology = &self.managers.topology;
        let merge = topology.merge(&lists);
        self.tally.n_steps += merge.n_steps;
        // What others would have led to costs two merges each.
        let is_explained = !merge.admit || topology.nodes().len() <= MAX_LISTED_NODES;
        let opinions = is_explained.then(|| topology.opinions(&lists));
        let opinions = opinions.unwrap_or_default();
        let mut providers = Vec::new();
        for (index, (provider, list)) in asked.iter().zip(&lists).enumerate() {
            for (resource, hints) in list {
                let opinion = opinions
                    .iter()
                    .find(|it| it.provider == index && it.resource == *resource);
                providers.push(ProviderVerdict {
                    provider: *provider,
                    resource: resource.clone(),
                    verdict: verdict(hints),
                    alone: opinion.map(|it| it.alone.hint),
                    without: opinion.map(|it| it.without.hint),
                });
            }
        }
        self.report.alignments.push(Alignment {
            container: container.map(str::to_owned),
            providers,
            merged: merge.hint,
            is_admitted: merge.admit,
            is_cut: merge.is_cut,
        });
        match merge.admit {
            true => Ok(merge.hint),
            false => {
                self.count_numa(scope, false);
                let reason = RefusalReason::TopologyAffinityError;
                Err(Stop::refused(reason, NO_LOCALITY, container))
            }
        }
    }

    /// Devices, CPUs and memory of one container, in this order.
    fn allocate(&mut self, container: &Container, hint: Hint) -> Result<(), Stop> {
        let pod = self.pod;
        let name = Some(container.name.as_str());
        let managers = &mut self.managers;
        match managers
            .devices
            .allocate(pod, container, hint, self.answers)
        {
            Ok(Allocated::Done) => {}
            Ok(Allocated::Ask(question)) => return Err(Stop::Ask(question)),
            Err(error) => return Err(Stop::refused(error.reason(), error, name)),
        }
        if let Some(cpu) = &mut managers.cpu {
            let was_held = cpu.cpus_of(&pod.uid, &container.name).is_some();
            let allocated = cpu.allocate(pod, container, hint);
            count_cpus(&mut self.tally, cpu, pod, container, was_held, &allocated);
            allocated.map_err(|error| Stop::refused(error.reason(), error, name))?;
        }
        if let Some(memory) = &mut managers.memory {
            let allocated = memory.allocate(pod, container, hint);
            if memory.is_managed(pod) {
                self.tally.memory.add(allocated.is_ok());
            }
            allocated.map_err(|error| Stop::refused(error.reason(), error, name))?;
        }
        Ok(())
    }

    /// Only one policy promises one NUMA node.
    fn count_numa(&mut self, scope: AlignmentScope, is_done: bool) {
        let policy = self.managers.topology.settings().policy;
        if policy == TopologyManagerPolicy::SingleNumaNode {
            let boundary = AlignmentBoundary::NumaNode;
            self.tally.align(boundary, scope, is_done);
        }
    }

    /// Devices are left out, as in kubelet.
    fn allocate_pod(&mut self, hint: Hint) -> Result<(), Stop> {
        let pod = self.pod;
        if let Some(cpu) = &mut self.managers.cpu {
            cpu.allocate_pod(pod, hint)
                .map_err(|error| Stop::refused(error.reason(), error, None))?;
        }
        if let Some(memory) = &mut self.managers.memory {
            memory
                .allocate_pod(pod, hint)
                .map_err(|error| Stop::refused(error.reason(), error, None))?;
        }
        Ok(())
    }
}

/// Counts an allocation of CPUs to a container that asks for some alone.
fn count_cpus(
    tally: &mut AdmissionTally,
    cpu: &CpuManager,
    pod: &Pod,
    container: &Container,
    was_held: bool,
    allocated: &Result<(), CpuError>,
) {
    let settings = cpu.settings();
    if exclusive_cpus(pod, container, settings.manages_pod_level) == 0 {
        return;
    }
    let scope = AlignmentScope::Container;
    tally.cpu.add(allocated.is_ok());
    if settings.options.full_pcpus_only {
        tally.align(AlignmentBoundary::PhysicalCpu, scope, allocated.is_ok());
    }
    let cpus = cpu.cpus_of(&pod.uid, &container.name);
    if let Some(cpus) = cpus.filter(|_| !was_held)
        && settings.topology.is_within_llc(cpus)
    {
        tally.align(AlignmentBoundary::UncoreCache, scope, true);
    }
}

fn by_provider(
    devices: ProviderHints,
    cpu: Option<Hints>,
    memory: Option<ProviderHints>,
) -> Vec<(Provider, ProviderHints)> {
    let cpu = cpu.map(|it| BTreeMap::from([("cpu".to_owned(), it)]));
    vec![
        (Provider::Devices, devices),
        (Provider::Cpu, cpu.unwrap_or_default()),
        (Provider::Memory, memory.unwrap_or_default()),
    ]
}

/// Hints in the form of a report.
fn verdict(hints: &Hints) -> Verdict {
    let Hints::OneOf(choices) = hints else {
        return Verdict::Any;
    };
    let region = choices.region.as_ref();
    let preferred_len = region.map(|it| match it.preferred {
        Preference::Len(len) | Preference::LenOrPackages { len, .. } => len,
    });
    if region.is_none_or(|it| it.nodes.len() <= MAX_LISTED_NODES) {
        let mut list = hints.list().unwrap_or_default();
        let narrowest = list
            .iter()
            .filter_map(|it| it.numa)
            .map(|it| it.len())
            .min();
        let Some(narrowest) = narrowest else {
            return Verdict::Impossible;
        };
        let n_masks = u64::try_from(list.len()).ok();
        list.sort_by_key(|it| !it.preferred);
        list.truncate(N_SHOWN);
        return Verdict::OneOf {
            narrowest,
            preferred_len,
            first: list,
            n_masks,
        };
    }
    let of_region = region.and_then(|it| {
        let len = least_len(it.nodes, &it.demands)?;
        Some(len.max(it.min_len).max(it.contains.len()))
    });
    let listed = choices
        .listed
        .iter()
        .filter_map(|it| it.numa)
        .map(|it| it.len());
    match listed.chain(of_region).min() {
        None => Verdict::Impossible,
        Some(narrowest) => Verdict::OneOf {
            narrowest,
            preferred_len,
            first: choices.listed.iter().take(N_SHOWN).copied().collect(),
            n_masks: None,
        },
    }
}
