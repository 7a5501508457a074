//! Manifests to pods: how their directory is read, which are new, which go, and which stay because nobody can say.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::Loop;
use super::beginning::Beginning;
use super::fitness::{find_node, settings};
use super::pods::{PodEntry, StatePaths};
use super::start::{resize_volume, resized_volumes};
use crate::config::{Compat, Config, OwnConfig, PodsConfig};
use crate::decide::definition::{Change, Standing, change};
use crate::decide::eviction::facts::pod_facts;
use crate::decide::pod_state::PodState;
use crate::decide::predicates;
use crate::model::admission::{Admission, Refusal};
use crate::model::check::ManifestFacts;
use crate::model::container::{Deletion, DeletionReason};
use crate::model::pod::{Pod, PodUid, Redefinition, Weight};
use crate::model::quantity::Quantity;
use crate::model::time::WallTime;
use crate::observe::metrics::labels::{Source, SourceFault};
use crate::sources::manifests::{
    ManifestDirectory, ManifestFault, ManifestScan, Origin, PatientDirectory,
};
use crate::sys::{Root, clock};

/// The configured directory, which nobody has read yet. `node`: as pods find it.
pub(super) fn directory(
    config: &Config,
    own: &OwnConfig,
    node: predicates::Node,
    beginning: Arc<Beginning>,
) -> ManifestDirectory {
    let PodsConfig::Manifests { manifest_directory } = &own.pods;
    ManifestDirectory::new(manifest_directory)
        .with_node_name(node.name)
        .with_allocatable(node.allocatable)
        .with_believed_status(own.compat == Compat::Kubelet)
        .with_pod_level_resources(config.kubelet.pod_level_resources)
        .with_witness(beginning)
}

/// For `ballast check`. `None`: the node cannot be read, which is told by itself.
pub(in crate::run) fn find_manifests(config: &Config, own: &OwnConfig) -> Option<ManifestFacts> {
    let node = find_node(&Root::host(), config).ok()?;
    let node = match settings(config, own, &node) {
        Ok((hands, _)) => hands.node_without_pods(&node, &config.kubelet),
        // So is what is wrong with the configuration.
        Err(_) => predicates::Node {
            name: node.name,
            ..predicates::Node::default()
        },
    };
    Some(read_once(config, own, node))
}

/// What a start would take and refuse, without a start.
fn read_once(config: &Config, own: &OwnConfig, node: predicates::Node) -> ManifestFacts {
    let paths = StatePaths(config.state_directory.clone());
    let beginning = Arc::new(Beginning::of_nobody(&paths));
    let directory = directory(config, own, node, beginning);
    // Nobody comes back for a reading that is late.
    let mut directory = PatientDirectory::new(directory, || {});
    let scan = directory.scan();
    let warnings = by_weight(&scan.warnings).into_iter();
    let warnings = warnings.filter(|it| it.weight != Weight::Minor);
    ManifestFacts {
        directory: directory.path().to_owned(),
        n_pods: scan.pods.len(),
        faults: scan.faults.iter().map(ToString::to_string).collect(),
        warnings: warnings.map(ToString::to_string).collect(),
    }
}

/// What the last reading said beside the pods.
#[derive(Debug, Default)]
pub(super) struct ManifestState {
    pub faults: Vec<ManifestFault>,
    /// The worst first. Each is told once, when it comes, as faults are.
    pub warnings: Vec<String>,
    /// The same of each pod, `namespace/name`, by field.
    pub warnings_of: BTreeMap<String, Vec<String>>,
    /// It had every manifest, without a fault.
    pub is_complete: bool,
    /// Pods that end because their definition is another one, which they have when they come back.
    ending_to_begin_anew: BTreeMap<PodUid, Anew>,
}

/// A pod that begins anew when it has ended.
#[derive(Debug)]
struct Anew {
    /// `None`: its manifest was put back, or changed after the pod was told to end.
    redefinition: Option<Redefinition>,
    /// As its manifest has it now.
    pod: Pod,
    keeps_place: bool,
}

/// Whether a pod ends before it has its new definition.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Yes,
    No,
}

/// It has ended, was refused or is evicted.
fn is_over(entry: &PodEntry) -> bool {
    entry.is_finished()
        || entry.state.phase.is_terminal()
        || entry.state.eviction.is_some()
        || matches!(entry.state.admission, Admission::Refused(_))
}

/// The heaviest first, those of one weight as they were.
fn by_weight(warnings: &[ManifestFault]) -> Vec<&ManifestFault> {
    let mut sorted: Vec<&ManifestFault> = warnings.iter().collect();
    sorted.sort_by_key(|it| it.weight);
    sorted
}

/// New pods in the order of their files, and of each file, with the times by which those of one priority have their turn.
fn in_turn(
    pods: BTreeMap<PodUid, Arc<Pod>>,
    origins: &BTreeMap<PodUid, Origin>,
    at: Duration,
) -> Vec<(Arc<Pod>, WallTime)> {
    let mut pods: Vec<Arc<Pod>> = pods.into_values().collect();
    pods.sort_by_key(|pod| origins.get(&pod.uid).map(|it| (&it.file, it.place)));
    let times = (0..).map(|n| WallTime::from_epoch(at.saturating_add(Duration::from_micros(n))));
    pods.into_iter().zip(times).collect()
}

impl Loop {
    /// Reads the manifests and notes what changed.
    ///
    /// A file with a fault keeps the pods of its last good version in the reading. What that was
    /// before this agent started nobody knows, so a pod that only an earlier agent has seen goes
    /// when a reading without any fault lacks it.
    pub(super) fn read_manifests(&mut self) {
        let now = clock::boottime();
        let scan = self.manifests.scan();
        self.tell_findings(&scan);
        self.metrics.source_read(Source::Manifests, now);
        self.decide_undecided(&scan.pods, scan.is_complete, now);
        self.undecided.define(&scan.pods);
        let mut wanted: BTreeMap<PodUid, Arc<Pod>> = scan.pods;
        // Not beside what runs of a pod of its name, of which nobody knows yet whether it is to go.
        let undecided = &self.undecided;
        wanted.retain(|uid, pod| !undecided.is_unread(uid) && !undecided.runs(&pod.full_name()));
        let mut going = Vec::new();
        let mut known = Vec::new();
        let mut staying = BTreeMap::new();
        for (uid, entry) in &mut self.pods {
            if let Some(pod) = wanted.remove(uid) {
                entry.is_confirmed = true;
                let Some(origin) = scan.origins.get(uid) else {
                    continue;
                };
                if entry.state.manifest.as_ref() != Some(&origin.file) {
                    entry.state.manifest = Some(origin.file.clone());
                    entry.is_unsaved = true;
                }
                let is_as_written = origin.digest.is_none() || origin.digest == entry.state.digest;
                if is_as_written && entry.state.deletion.is_none() && entry.read_anew(&pod) {
                    let facts = pod_facts(&pod, entry.qos, self.own.compat);
                    entry.facts = Arc::new(facts);
                }
                if let Some(digest) = &origin.digest {
                    known.push((pod, digest.clone()));
                }
            } else if entry.state.deletion.is_none() {
                match scan.is_complete || entry.is_confirmed {
                    true => going.push(uid.clone()),
                    false => {
                        staying.insert(entry.state.pod.full_name(), uid.clone());
                    }
                }
            }
        }
        wanted.retain(|uid, pod| {
            let Some(before) = staying.get(&pod.full_name()) else {
                return true;
            };
            // Of two of one name one runs: another definition of the same file is the edit of what goes on, and of
            // another file nobody knows.
            let file = self
                .pods
                .get(before)
                .and_then(|it| it.state.manifest.as_ref());
            let is_edit = file.is_some() && file == scan.origins.get(uid).map(|it| &it.file);
            if is_edit {
                going.push(before.clone());
            }
            is_edit
        });
        for uid in going {
            self.delete_pod(&uid, now);
        }
        for (pod, digest) in known {
            self.redefine(&pod, digest, now);
        }
        let boot_id = self.boot_id();
        for (pod, accepted_at) in in_turn(wanted, &scan.origins, clock::wall()) {
            let mut state = PodState::new(Pod::clone(&pod), boot_id.clone(), accepted_at);
            if let Some(origin) = scan.origins.get(&state.pod.uid).cloned() {
                state.manifest = Some(origin.file);
                state.digest = origin.digest;
            }
            let ending = &mut self.manifest_state.ending_to_begin_anew;
            let anew = ending.remove(&state.pod.uid);
            let keeps_place = anew.as_ref().is_some_and(|it| it.keeps_place);
            state.redefined = anew.and_then(|it| it.redefinition);
            if let Some(mut entry) = self.entry_of(state) {
                entry.keeps_place = keeps_place;
                self.go_on_after_logs(&mut entry);
                entry.is_confirmed = true;
                entry.seen_at = Some(now);
                self.told.pod_added(
                    &entry.pod_ref,
                    format!("{} pod from {}", entry.qos, self.manifests.path().display()),
                );
                self.pods.insert(entry.uid().clone(), entry);
            }
        }
        let pods = &self.pods;
        let ending = &mut self.manifest_state.ending_to_begin_anew;
        ending.retain(|uid, _| {
            let comes_back = !scan.is_complete || scan.origins.contains_key(uid);
            comes_back && pods.contains_key(uid)
        });
        self.manifest_state.is_complete = scan.is_complete;
        self.manifest_state.faults = scan.faults;
    }

    /// A pod that is there, as its manifest has it now. What was written decides whether that is another definition: what
    /// it is read as may differ by the version of the agent, its configuration and the name of the node.
    fn redefine(&mut self, pod: &Pod, digest: String, now: Duration) {
        let Some(entry) = self.pods.get_mut(&pod.uid) else {
            return;
        };
        if entry.occupied.is_some() {
            return;
        }
        if let Some(deletion) = &entry.state.deletion {
            if deletion.reason == DeletionReason::Removed {
                let has_place = entry.has_place();
                self.manifest_state.comes_back(pod, has_place);
            }
            return;
        }
        if entry.state.digest.as_ref() == Some(&digest) {
            entry.held_back = None;
            return;
        }
        // Of an earlier version of the agent, which did not look.
        if entry.state.digest.is_none() {
            entry.state.digest = Some(digest);
            entry.is_unsaved = true;
            return;
        }
        let change = self.change_of(pod);
        let refusal = match &change {
            Change::None => None,
            Change::InPlace(_) => self.lacks(pod, Ending::No),
            Change::Anew(_) => self.lacks(pod, Ending::Yes),
        };
        let at = WallTime::from_epoch(clock::wall());
        let Some(entry) = self.pods.get_mut(&pod.uid) else {
            return;
        };
        match (change, refusal) {
            (Change::None, _) => {
                entry.state.digest = Some(digest);
                entry.held_back = None;
                entry.is_unsaved = true;
            }
            (Change::InPlace(fields) | Change::Anew(fields), Some(refusal)) => {
                let why = format!(
                    "goes on with the definition that it had, for the new one ({}) is not let in: {refusal}",
                    fields.join(", ")
                );
                self.told
                    .held_back(&entry.pod_ref, &mut entry.held_back, why);
            }
            (Change::InPlace(fields), None) => {
                let text = format!("has another definition now: {}", fields.join(", "));
                self.told.redefined(&entry.pod_ref, text);
                let (plan, old) = (&self.hands.plan, &entry.state.pod);
                for (name, size) in resized_volumes(plan, (old, pod), entry.qos) {
                    match resize_volume(&self.paths, &pod.uid, &name, size) {
                        Ok(_) => {
                            entry.state.late_volumes.remove(&name);
                        }
                        Err(why) => {
                            self.told.redefined(&entry.pod_ref, why);
                            entry.state.late_volumes.insert(name, size);
                        }
                    }
                }
                entry.facts = Arc::new(pod_facts(pod, entry.qos, self.own.compat));
                entry.take(pod.clone(), digest, Redefinition { at, fields });
                self.ask_again(&pod.uid);
            }
            (Change::Anew(fields), None) => {
                let text = format!(
                    "ends, and begins anew with another definition: {}",
                    fields.join(", ")
                );
                self.told.redefined(&entry.pod_ref, text);
                let anew = Anew {
                    redefinition: Some(Redefinition { at, fields }),
                    keeps_place: entry.has_place(),
                    pod: pod.clone(),
                };
                let ending = &mut self.manifest_state.ending_to_begin_anew;
                ending.insert(pod.uid.clone(), anew);
                self.delete_pod(&pod.uid, now);
            }
        }
    }

    /// What a volume in memory held beyond its new size may be gone by now.
    pub(super) fn resize_late_volumes(&mut self) {
        let (paths, told) = (&self.paths, &self.told);
        for entry in self.pods.values_mut() {
            let (pod, uid) = (&entry.pod_ref, &entry.state.pod.uid);
            let n_late = entry.state.late_volumes.len();
            entry.state.late_volumes.retain(|name, size| {
                let resized = resize_volume(paths, uid, name, *size);
                if resized == Ok(true) {
                    let size = Quantity::from_bytes(size.0);
                    told.redefined(pod, format!("volume {name} has {size} now"));
                }
                resized.is_err()
            });
            entry.is_unsaved |= entry.state.late_volumes.len() < n_late;
        }
    }

    /// What the new definition does to the pod that is there.
    fn change_of(&self, new: &Pod) -> Change {
        let Some(entry) = self.pods.get(&new.uid) else {
            return Change::None;
        };
        let (old, managers) = (&entry.state.pod, &self.placement.managers);
        let standing = Standing {
            is_over: is_over(entry),
            has_holdings: !managers.holdings(old).is_empty(),
        };
        let is_in = entry.state.admission == Admission::Admitted;
        match change(old, new, standing) {
            // It has to be given something that only an admission gives.
            Change::InPlace(fields) if is_in && !standing.is_over && !managers.is_settled(new) => {
                Change::Anew(fields)
            }
            other => other,
        }
    }

    /// Why a pod that is in would not be let in by its new definition: nothing that runs is ended for what the node
    /// cannot give, and nothing is taken from others.
    fn lacks(&self, new: &Pod, ending: Ending) -> Option<Refusal> {
        let entry = self.pods.get(&new.uid)?;
        // Nothing of it ends for a new definition before something of it has begun.
        let is_in = match ending {
            Ending::No => entry.is_in_already(),
            Ending::Yes => entry.has_begun(),
        };
        if is_over(entry) || entry.state.admission == Admission::Open && !is_in {
            return None;
        }
        let mut others = self.count_pods_but(Some(&new.uid));
        self.keep_places(entry, &mut others);
        let refusal = others.refusal(new);
        if ending == Ending::No {
            // A pod that would not be let in any more goes on, and may be changed.
            let now = &entry.state.pod;
            let forbidden = self.forbidden_sysctl(new);
            return refusal
                .filter(|_| others.refusal(now).is_none())
                .or_else(|| forbidden.filter(|_| self.forbidden_sysctl(now).is_none()));
        }
        refusal
            .or_else(|| self.first_refusal(new))
            .or_else(|| self.managers_refusal(new))
    }

    fn delete_pod(&mut self, uid: &PodUid, now: Duration) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let deletion = Deletion {
            requested_at: now,
            grace: entry.state.pod.termination_grace,
            reason: DeletionReason::Removed,
        };
        self.told.pod_deletion(&entry.pod_ref, deletion.grace);
        entry.state.deletion = Some(deletion);
        entry.is_dirty = true;
        entry.is_unsaved = true;
    }

    fn tell_findings(&mut self, scan: &ManifestScan) {
        let texts = |list: &[ManifestFault]| list.iter().map(ToString::to_string).collect();
        let told: BTreeSet<String> = texts(&self.manifest_state.faults);
        let faults: BTreeSet<String> = texts(&scan.faults);
        for fault in faults.difference(&told) {
            self.metrics
                .source_error(Source::Manifests, SourceFault::Parse);
            self.told.manifest_fault(fault.clone());
        }
        for warning in self.manifest_state.warn(&scan.warnings) {
            self.told.manifest_warning(warning);
        }
    }
}

impl ManifestState {
    /// Of those that begin anew, as they do.
    pub(super) fn keeping_their_place(&self) -> impl Iterator<Item = &Pod> {
        let anew = self.ending_to_begin_anew.values();
        anew.filter(|it| it.keeps_place).map(|it| &it.pod)
    }

    /// The manifest of a pod that ends is there.
    fn comes_back(&mut self, pod: &Pod, has_place: bool) {
        let anew = self.ending_to_begin_anew.entry(pod.uid.clone());
        let anew = anew.or_insert_with(|| Anew {
            redefinition: None,
            pod: pod.clone(),
            keeps_place: false,
        });
        // By now it may have given up the place that is kept for it.
        anew.keeps_place |= has_place;
        if anew.pod != *pod {
            anew.pod = pod.clone();
        }
    }

    /// Takes the warnings of a reading, and gives those that are new.
    fn warn(&mut self, warnings: &[ManifestFault]) -> Vec<String> {
        let told: BTreeSet<String> = std::mem::take(&mut self.warnings).into_iter().collect();
        self.warnings_of.clear();
        for it in by_weight(warnings) {
            self.warnings.push(it.to_string());
            if let Some(pod) = &it.pod {
                let of_pod = self.warnings_of.entry(pod.clone()).or_default();
                of_pod.push(it.of_field());
            }
        }
        let is_new = |it: &&String| !told.contains(*it);
        self.warnings.iter().filter(is_new).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::testing;
    use crate::sys::scratch::Scratch;

    fn warning(field: &str, weight: Weight) -> ManifestFault {
        ManifestFault {
            file: "/m/a.yaml".into(),
            document: Some(1),
            pod: Some("default/web".to_owned()),
            field: Some(field.to_owned()),
            message: "is ignored".to_owned(),
            weight,
        }
    }

    #[test]
    fn what_makes_the_most_of_what_runs_is_told_first_and_each_once() {
        let mut state = ManifestState::default();
        let first = [
            warning("a", Weight::Minor),
            warning("b", Weight::Differs),
            warning("c", Weight::Minor),
            warning("e", Weight::Stops),
        ];
        let told = ["e", "b", "a", "c"];
        let in_full =
            |it: &str| format!("/m/a.yaml: document 1: pod default/web: {it}: is ignored");
        assert_eq!(state.warn(&first), told.map(in_full));
        assert_eq!(state.warnings, told.map(in_full));
        let of_field = told.map(|it| format!("{it}: is ignored"));
        assert_eq!(state.warnings_of["default/web"], of_field);
        let next = [first[0].clone(), warning("d", Weight::Differs)];
        assert_eq!(state.warn(&next), [in_full("d")]);
        assert_eq!(state.warnings, ["d", "a"].map(in_full));
        assert!(state.warn(&[]).is_empty() && state.warnings_of.is_empty());
    }

    #[test]
    fn new_pods_have_their_turn_in_the_order_of_their_files() {
        let new = [("d", "a.yaml", 0), ("b", "b.yaml", 0), ("a", "b.yaml", 1)];
        let mut pods = BTreeMap::new();
        let mut origins = BTreeMap::new();
        for (uid, file, place) in new {
            let mut pod = testing::pod("app {}");
            pod.uid = PodUid(uid.to_owned());
            let origin = Origin {
                file: file.to_owned(),
                place,
                digest: None,
            };
            origins.insert(pod.uid.clone(), origin);
            pods.insert(pod.uid.clone(), Arc::new(pod));
        }
        let at = Duration::from_secs(1);
        let in_turn = in_turn(pods, &origins, at);
        let uids: Vec<&str> = in_turn.iter().map(|(it, _)| it.uid.0.as_str()).collect();
        assert_eq!(uids, new.map(|(uid, ..)| uid));
        assert!(in_turn.is_sorted_by(|(_, one), (_, next)| one < next));
        assert_eq!(in_turn[0].1, WallTime::from_epoch(at));
    }

    #[test]
    fn what_a_start_would_read_is_found_without_one() {
        let (state, pods) = (Scratch::new("state"), Scratch::new("manifests"));
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             stateDirectory: {}\npods: {{manifestDirectory: {}}}\n",
            state.path("none").display(),
            pods.directory().display()
        );
        let config = Config::from_yaml(&text, None, &[])
            .expect("no faults")
            .config;
        let find = || {
            let own = config.mode.own().expect("it is");
            read_once(&config, own, predicates::Node::default())
        };
        let pod = |name: &str, more: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{{more}, containers: \
                 [{{name: app, image: none, command: [sleep]}}]}}}}"
            );
            pods.write(format!("{name}.yaml"), text)
        };
        let good = pod("good", "hostname: web, schedulerName: another");
        let bad = pod("bad", "volumes: [{name: v, secret: {secretName: s}}]");
        let found = find();
        assert_eq!(found.directory, pods.directory());
        assert_eq!(found.n_pods, 1);
        for (list, file, field) in [
            (
                &found.faults,
                bad,
                "pod default/bad: spec.volumes[0].secret",
            ),
            (&found.warnings, good, "pod default/good: spec.hostname: "),
        ] {
            let [text] = &list[..] else {
                panic!("{found:?}");
            };
            let begins = format!("{}: document 1: {field}", file.display());
            assert!(text.starts_with(&begins), "{text}");
        }
        assert!(!Root::host().exists(state.path("none")));

        let path = pods.directory().display().to_string();
        drop(pods);
        let found = find();
        let told = format!("{path}: the directory is not there");
        let [fault] = &found.faults[..] else {
            panic!("{found:?}");
        };
        assert!(found.n_pods == 0 && fault.starts_with(&told), "{fault}");
    }
}
