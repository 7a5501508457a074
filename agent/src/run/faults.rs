//! What stands against a start by a configuration on this node, each fault told of its field and of the file that
//! sets it: one judgement, for `run` and for `check`.

use std::io::ErrorKind;

use super::observe::{PlaceError, PodSourceError};
use super::serve::ServeError;
use super::{RunError, check_config, own};
use crate::config::{Draft, Fault, FieldPath, Loaded, Origins};
use crate::decide::eviction::hidden::{Hidden, hidden_thresholds};
use crate::decide::eviction::met::Met;
use crate::model::eviction::StarvedResource;
use crate::observe::http;
use crate::sys::Root;

/// All faults of a configuration: its own, and what of it does not fit the node.
pub fn config_faults(draft: &Draft) -> Vec<Fault> {
    let mut faults = draft.faults.clone();
    // Each mode wants another node.
    if draft.is_doubtful(&FieldPath::of("mode")) {
        return faults;
    }
    if let Err(error) = check_config(&draft.loaded.config) {
        faults.extend(of_node(draft, error));
    }
    faults
}

/// What of a configuration has no effect on this node as it is, or not the one that is meant, a line each.
pub fn config_warnings(loaded: &Loaded) -> Vec<String> {
    let mut warnings = loaded.warnings.clone();
    let kubelet = &loaded.config.kubelet;
    let Some(own_config) = loaded.config.mode.own() else {
        return warnings;
    };
    if let Some(message) = own::offline_at_start(&Root::host(), kubelet) {
        let field = FieldPath::of("kubelet.reservedSystemCPUs");
        warnings.push(located(field, message, &loaded.origins));
    }
    // What keeps it from being read is a fault, which is told by itself.
    let node = own::find_node(&Root::host(), &loaded.config).ok();
    let node = node.as_ref();
    let isolated = node.and_then(|it| own::isolated_at_start(&loaded.config, own_config, it));
    if let Some(message) = isolated {
        let field = FieldPath::of("kubelet.cpuManagerPolicy");
        warnings.push(located(field, message, &loaded.origins));
    }
    if let Some(node) = node {
        let met = own::met_at_start(&loaded.config, own_config, node);
        warnings.extend(met.iter().map(|it| is_met(it, &loaded.origins)));
    }
    if !kubelet.eviction_soft.is_empty() {
        let hidden = hidden_thresholds(kubelet, node.map(|it| &it.capacity));
        warnings.extend(hidden.iter().map(|it| without_effect(it, &loaded.origins)));
    }
    warnings
}

fn without_effect(Hidden { signal, soft, hard }: &Hidden, origins: &Origins) -> String {
    let field = FieldPath::of("kubelet.evictionSoft").field(signal.as_str());
    let message = format!(
        "{soft} has no effect: evictionHard of {hard} is met no later, and gives no grace; right would be more than that"
    );
    located(field, message, origins)
}

fn is_met(met: &Met, origins: &Origins) -> String {
    let Met { signal, text, .. } = met;
    let amount = |it: i64| match signal.resource() {
        StarvedResource::Memory | StarvedResource::EphemeralStorage => {
            format!("{} MiB", it >> 20)
        }
        StarvedResource::Inodes | StarvedResource::Pids => it.to_string(),
    };
    let [available, capacity] = [met.observation.available, met.observation.capacity].map(amount);
    let message = match met.is_always {
        true => format!(
            "{text} is met at any time, as the node has no more than {capacity}: its pods are evicted; right would be less"
        ),
        false => format!(
            "{text} is met as the node is, with {available} of {capacity} available: its pods are evicted until there is more"
        ),
    };
    let field = FieldPath::of("kubelet").field(met.field);
    located(field.field(signal.as_str()), message, origins)
}

/// A line that names the file which sets the field.
fn located(field: FieldPath, message: String, origins: &Origins) -> String {
    let because = [field.clone()];
    let fault = Fault {
        file: None,
        field,
        message,
    };
    origins.locate_fault(fault, &because).to_string()
}

/// What a node has against a configuration, less what could follow from a fault of its own.
fn of_node(draft: &Draft, error: RunError) -> Vec<Fault> {
    let follows = |it: &RunError| it.fields().iter().any(|it| draft.is_doubtful(it));
    let all = error.each().into_iter();
    let all = all.filter(|it| it.is_of_config() && !follows(it));
    all.map(|it| it.fault(&draft.loaded.origins)).collect()
}

impl RunError {
    /// The user has to change the configuration, or a file that it names.
    fn is_of_config(&self) -> bool {
        match self {
            Self::Setting(_)
            | Self::Placement(_)
            | Self::Place(PlaceError::Ambiguous(_))
            | Self::Pods(
                PodSourceError::NoNode
                | PodSourceError::NoServer
                | PodSourceError::NoService
                | PodSourceError::Kubeconfig(_)
                | PodSourceError::ServiceAccount(_),
            )
            | Self::Nested { .. }
            | Self::Elsewhere { .. }
            | Self::Directory { .. }
            | Self::LinkToNothing { .. }
            | Self::Closed { .. }
            | Self::InTheWay { .. }
            | Self::InUse { .. }
            | Self::Socket(_) => true,
            Self::Serve(ServeError::Http(error)) => match error {
                http::ServeError::Access(_) => true,
                http::ServeError::Bind { source, .. } => source.kind() != ErrorKind::AddrInUse,
            },
            _ => false,
        }
    }

    /// As faults of the configuration, and those that are none.
    pub fn into_faults(self, origins: &Origins) -> (Vec<Fault>, Vec<Self>) {
        let all = self.each().into_iter();
        let (of_config, others): (Vec<_>, Vec<_>) = all.partition(Self::is_of_config);
        let faults = of_config.iter().map(|it| it.fault(origins)).collect();
        (faults, others)
    }

    /// The item of `ballast check` that says the same of the node.
    pub(super) fn check_item(&self) -> Option<&'static str> {
        match self {
            Self::Setting(error) => error.check_item(),
            _ => None,
        }
    }

    /// One by one.
    pub(super) fn each(self) -> Vec<Self> {
        match self {
            Self::Several(all) => all.into_iter().flat_map(Self::each).collect(),
            one => vec![one],
        }
    }

    fn fault(&self, origins: &Origins) -> Fault {
        let fields = self.fields();
        let field = fields.first().cloned().unwrap_or_default();
        let text = crate::observe::chain(self);
        let message = text.strip_prefix(&format!("{field}: ")).unwrap_or(&text);
        let fault = Fault {
            file: None,
            message: message.to_owned(),
            field,
        };
        origins.locate_fault(fault, &fields)
    }

    /// The fields that it is concluded from. The first is at fault, and the text begins with it.
    fn fields(&self) -> Vec<FieldPath> {
        let fields: &[&str] = match self {
            Self::Setting(error) => return error.fields(),
            Self::Placement(error) => error.fields(),
            Self::Place(_) | Self::Elsewhere { .. } => &["kubelet.cgroupRoot"],
            Self::Pods(error) => error.fields(),
            Self::Nested { .. } => &["pods.manifestDirectory", "stateDirectory"],
            Self::Directory { field, .. }
            | Self::LinkToNothing { field, .. }
            | Self::Closed { field, .. } => &[field],
            Self::InTheWay {
                field: Some(field), ..
            } => &["socket", field],
            // Who holds it may be the agent of that directory.
            Self::InUse { field, .. } => &[field, "stateDirectory"],
            Self::InTheWay { field: None, .. } | Self::Socket(_) => &["socket"],
            Self::Serve(ServeError::Http(http::ServeError::Access(error))) => &[error.field()],
            Self::Serve(ServeError::Http(http::ServeError::Bind { .. })) => &["metrics.address"],
            _ => &[],
        };
        fields.iter().map(|it| FieldPath::of(it)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::decide::placement::managers::PlacementError;
    use crate::decide::placement::memory::MemoryConfigError;
    use crate::model::eviction::{Observation, Signal};
    use crate::run::own::SettingError;

    const KUBELET_FILE: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                                memoryManagerPolicy: Static\nreservedSystemCPUs: \"9\"\n\
                                kubeReserved: {memory: 1Ti}\n";

    fn draft(sections: &str) -> Draft {
        let text = format!(
            "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
             kubeletConfigFile: /k/config.yaml\n{sections}\n"
        );
        let file = Some((Path::new("/k/config.yaml"), KUBELET_FILE));
        let drop_in = KUBELET_FILE.replace("memory: 1Ti", "cpu: 300");
        let drop_ins = [("/k/d/10.conf".into(), drop_in)];
        Config::draft(&text, file, &drop_ins, Vec::new()).expect("it is a mapping")
    }

    fn over_reserved(resource: &str, by: &[&str]) -> RunError {
        let by = by.iter().map(|it| FieldPath::of(it)).collect();
        RunError::from(SettingError::OverReserved {
            by,
            resource: resource.to_owned(),
            reserved: "2".to_owned(),
            capacity: "1".to_owned(),
        })
    }

    fn all() -> RunError {
        RunError::Several(vec![
            RunError::Directory {
                field: "stateDirectory",
                path: "/a".into(),
                source: None,
            },
            RunError::from(SettingError::ReservedCpus {
                wanted: "9".parse().expect("a set"),
                present: "0-1".parse().expect("a set"),
            }),
            RunError::Several(vec![
                over_reserved(
                    "memory",
                    &["kubelet.kubeReserved.memory", "kubelet.evictionHard"],
                ),
                over_reserved("cpu", &["kubelet.kubeReserved.cpu"]),
            ]),
            RunError::from(PlacementError::from(MemoryConfigError::NothingReserved)),
        ])
    }

    fn told(sections: &str) -> Vec<String> {
        let draft = draft(sections);
        let faults = of_node(&draft, all());
        faults.iter().map(Fault::to_string).collect()
    }

    const DIRECTORY: &str = "stateDirectory: /a is no directory";
    const CPUS: &str = "9 is not among the CPUs 0-1 of this machine; right would be only those";

    #[test]
    fn what_does_not_fit_the_node_is_told_of_the_file_that_sets_it() {
        assert_eq!(
            told(""),
            [
                DIRECTORY,
                &format!("/k/d/10.conf: reservedSystemCPUs: {CPUS}"),
                "/k/config.yaml: kubeReserved.memory: more memory is kept from pods (2) than the node has (1), \
                 together with evictionHard",
                "/k/d/10.conf: kubeReserved.cpu: more cpu is kept from pods (2) than the node has (1)",
                "/k/d/10.conf: memoryManagerPolicy: [memorymanager] you should specify the system reserved memory",
            ]
        );
        let inline = format!("kubelet.reservedSystemCPUs: {CPUS}");
        assert_eq!(told("kubelet: {reservedSystemCPUs: \"9\"}")[1], inline);
    }

    #[test]
    fn a_hidden_threshold_is_told_of_the_file_that_sets_the_soft_one() {
        let file = KUBELET_FILE.to_owned()
            + "evictionSoft: {memory.available: 1Mi}\n\
                                              evictionSoftGracePeriod: {memory.available: 1m}\n";
        let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
                    kubeletConfigFile: /k/config.yaml\n";
        let file = Some((Path::new("/k/config.yaml"), file.as_str()));
        let loaded = Config::from_yaml(text, file, &[]).expect("no faults");
        let hidden = hidden_thresholds(&loaded.config.kubelet, None);
        let told: Vec<_> = hidden
            .iter()
            .map(|it| without_effect(it, &loaded.origins))
            .collect();
        assert_eq!(
            told,
            [
                "/k/config.yaml: evictionSoft[\"memory.available\"]: 1Mi has no effect: evictionHard of 100Mi is met no \
                 later, and gives no grace; right would be more than that"
            ]
        );
    }

    #[test]
    fn a_threshold_that_is_met_at_once_is_told_of_the_file_that_sets_it() {
        let file = KUBELET_FILE.to_owned()
            + "evictionHard: {memory.available: 97%, pid.available: 40000}\n";
        let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
                    kubeletConfigFile: /k/config.yaml\n";
        let file = Some((Path::new("/k/config.yaml"), file.as_str()));
        let loaded = Config::from_yaml(text, file, &[]).expect("no faults");
        let observation = |available, capacity| Observation {
            available,
            capacity,
            at: None,
        };
        for (signal, text, is_always, observation, right) in [
            (
                Signal::PidAvailable,
                "40000",
                true,
                observation(32_000, 32_768),
                "/k/config.yaml: evictionHard[\"pid.available\"]: 40000 is met at any time, as the node has no more than \
                 32768: its pods are evicted; right would be less",
            ),
            (
                Signal::MemoryAvailable,
                "97%",
                false,
                observation(900 << 20, 1 << 30),
                "/k/config.yaml: evictionHard[\"memory.available\"]: 97% is met as the node is, with 900 MiB of 1024 MiB \
                 available: its pods are evicted until there is more",
            ),
        ] {
            let met = Met {
                signal,
                field: "evictionHard",
                text: text.to_owned(),
                is_always,
                observation,
            };
            assert_eq!(is_met(&met, &loaded.origins), right);
        }
    }

    #[test]
    fn what_may_follow_from_another_fault_is_not_told() {
        assert_eq!(
            told("kubelet: {reservedSystemCPUs: 9-, kubeReserved: {cpu: x}}").len(),
            3
        );
        assert_eq!(told("stateDirectory: a").len(), 4);
        // Of a file that cannot be read nobody knows what it sets.
        let text = "apiVersion: ballast.dev/v1alpha1\nkind: AgentConfiguration\nmode: own\n\
                    kubeletConfigFile: /k/config.yaml\n";
        let draft = Config::draft(text, None, &[], Vec::new()).expect("it is a mapping");
        assert_eq!(draft.faults.len(), 1);
        let faults = of_node(&draft, all());
        assert_eq!(
            faults.iter().map(Fault::to_string).collect::<Vec<_>>(),
            [DIRECTORY]
        );
    }
}
