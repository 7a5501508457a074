//! Configuration: `raw` is the shape of the file, `checked` what the rest of the agent sees.
//! In: text. Out: a [`Config`], or every fault at once with its field path.
//!
//! Reads no file itself: [`files_needed`] says which, [`Config::from_yaml`] takes their text.

mod agent;
pub mod checked;
pub mod duration;
mod edgecore;
mod eviction;
mod fault;
pub(crate) mod feature_gates;
mod kubelet;
pub mod kubelet_fields;
mod kubelet_flags;
mod merge;
mod placement;
mod pressure;
mod raw;
mod serving;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub(crate) use agent::LONGEST_SOCKET_PATH;
pub use checked::*;
pub use edgecore::{DEFAULT_EDGECORE_FILE, EdgeCore};
pub use fault::{ConfigError, Fault, FieldPath};
pub use kubelet_flags::{DEFAULT_ROOT_DIRECTORY, KubeletFlags};
pub use merge::Origins;
pub use serving::Serving;

use crate::model::cgroup_path::CgroupPath;
use crate::model::document::{Budget, DocumentError, parse_yaml, parse_yaml_where_the_last_counts};
use fault::{Faults, suggestion};
use merge::{Layers, Origin};
use raw::{RawConfig, ReadField};

const KUBELET_API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KUBELET_KIND: &str = "KubeletConfiguration";

/// What mode `observe` looks at, beside the place of the cgroups: what kubelet evicts for, keeps from pods, and places
/// them by.
const OBSERVED: [&str; 23] = [
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "enforceNodeAllocatable",
    "evictionHard",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "mergeDefaultEvictionSettings",
    "failSwapOn",
    "featureGates",
    "kubeReserved",
    "kubeReservedCgroup",
    "maxPods",
    "memoryManagerPolicy",
    "podsPerCore",
    "reservedMemory",
    "reservedSystemCPUs",
    "systemReserved",
    "systemReservedCgroup",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
];

/// Of the `kubelet` section: not what kubelet goes by, but where its pods are looked for.
const OF_ITS_PLACE: [&str; 4] = ["apiVersion", "kind", "cgroupRoot", "cgroupDriver"];

/// A configuration without faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    pub config: Config,
    /// What is set and has no effect, a line each.
    pub warnings: Vec<String>,
    pub kubelet_fields: FieldCounts,
    /// Which file has set what of the kubelet configuration.
    pub origins: Origins,
}

/// A configuration as far as it is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// What stands in a field with a fault is its default.
    pub loaded: Loaded,
    pub faults: Vec<Fault>,
}

impl Draft {
    /// The configuration, if it has no faults.
    pub fn finish(self) -> Result<Loaded, ConfigError> {
        finish(self.loaded, Faults(self.faults))
    }

    /// Whether what the configuration has at `field` is not what was meant.
    pub fn is_doubtful(&self, field: &FieldPath) -> bool {
        self.faults.iter().any(|it| {
            let at = match &it.file {
                Some(_) => it.field.below("kubelet"),
                None if it.field.is_of_kubelet_files() => FieldPath::of("kubelet"),
                None => it.field.clone(),
            };
            at.is_prefix_of(field) || field.is_prefix_of(&at)
        })
    }
}

/// How many fields of KubeletConfiguration are set, in all files together, by what becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldCounts {
    /// Decisions use them, or they ask for what this build does anyway.
    pub honoured: usize,
    pub ignored: usize,
}

/// Files that a configuration refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilesNeeded {
    /// `kubeletConfigFile`.
    pub kubelet_config_file: Option<PathBuf>,
    /// `kubeletConfigDirectory`: the files that [`is_drop_in`] takes, in it and below it.
    pub kubelet_config_directory: Option<PathBuf>,
}

/// Which files [`Config::draft`] wants besides `text`. What is wrong with `text` is left to it.
pub fn files_needed(text: &str) -> FilesNeeded {
    let mut faults = Faults::default();
    let fields = document(text, None, &mut faults).unwrap_or_default();
    let mut path_of = |name: &str| {
        let at = FieldPath::root().field(name);
        let text = String::read(fields.get(name)?, &at, &mut faults)?;
        agent::absolute_path(&text, &at, &mut faults)
    };
    FilesNeeded {
        kubelet_config_file: path_of(fault::KUBELET_FILE),
        kubelet_config_directory: path_of(fault::KUBELET_DIRECTORY),
    }
}

/// Every field of the agent's own configuration, by path; those of the `kubelet` section are in
/// [`kubelet_fields`].
#[cfg(test)]
pub(crate) fn own_fields() -> impl Iterator<Item = String> {
    let sections = [
        ("", raw::RawConfig::FIELDS),
        ("pods.", raw::RawPods::FIELDS),
        ("runtime.", raw::RawRuntime::FIELDS),
        ("kubernetes.", raw::RawKubernetes::FIELDS),
        ("kubernetes.events.", raw::RawKubernetesEvents::FIELDS),
        ("metrics.", raw::RawMetrics::FIELDS),
        ("metrics.tls.", raw::RawTls::FIELDS),
        ("log.", raw::RawLog::FIELDS),
        ("bpf.", raw::RawBpf::FIELDS),
        ("eviction.", raw::RawEviction::FIELDS),
        ("eviction.stages.", raw::RawEvictionStages::FIELDS),
        ("eviction.stall.", raw::RawEvictionStall::FIELDS),
        ("eviction.record.", raw::RawEvictionRecord::FIELDS),
        ("eviction.oomRecords.", raw::RawOomRecords::FIELDS),
    ];
    let sections = sections.into_iter();
    // Of a section its fields are cases.
    let paths = sections.flat_map(|(at, fields)| fields.iter().map(move |it| format!("{at}{it}")));
    let heads = [
        "pods",
        "runtime",
        "kubernetes",
        "kubernetes.events",
        "metrics",
        "log",
        "bpf",
        "eviction",
    ];
    paths.filter(move |it| !heads.contains(&it.as_str()))
}

/// Whether kubelet would read a file of this name in its drop-in directory.
pub fn is_drop_in(file_name: &str) -> bool {
    file_name.ends_with(".conf")
}

impl Config {
    /// A configuration without faults, read as by [`Config::draft`].
    pub fn from_yaml(
        text: &str,
        kubelet_file: Option<(&Path, &str)>,
        drop_ins: &[(PathBuf, String)],
    ) -> Result<Loaded, ConfigError> {
        Self::draft(text, kubelet_file, drop_ins, Vec::new())?.finish()
    }

    /// Checks a configuration. `kubelet_file` and `drop_ins` are the files that [`files_needed`]
    /// named, each with its path; drop-ins are applied in the order of their paths. `unread`: those that
    /// could not be read. The error is that of a text of which nothing is understood.
    ///
    /// Fields of KubeletConfiguration are merged by name: the file, then the drop-ins, then the
    /// `kubelet` section.
    pub fn draft(
        text: &str,
        kubelet_file: Option<(&Path, &str)>,
        drop_ins: &[(PathBuf, String)],
        unread: Vec<Fault>,
    ) -> Result<Draft, ConfigError> {
        let mut faults = Faults::default();
        let mut warnings = Vec::new();
        let root = FieldPath::root();
        let fields = document(text, None, &mut faults).unwrap_or_default();
        if !faults.0.is_empty() {
            return Err(ConfigError { faults: faults.0 });
        }
        raw::refuse_unknown(&fields, RawConfig::FIELDS, &root, &mut faults);
        let raw = RawConfig::from_fields(&fields, &root, &mut faults);
        faults.0.extend(unread);

        let has_files = kubelet_file.is_some() || !drop_ins.is_empty();
        let mut layers = file_layers(kubelet_file, drop_ins, &mut warnings, &mut faults);
        let inline = raw.kubelet.clone().unwrap_or_default();
        check_type(&inline, None, &mut faults);
        let known: Vec<&str> = kubelet_fields::FIELDS
            .iter()
            .map(|(name, _)| *name)
            .collect();
        raw::refuse_unknown(&inline, &known, &root.field("kubelet"), &mut faults);
        layers.apply(&inline, &Origin::Inline);

        let mut agent = agent::check(&raw, &mut faults);
        let file_at = root.field(fault::KUBELET_FILE);
        if raw.kubelet_config_file.is_some() && kubelet_file.is_none() && !faults.has(&file_at) {
            faults.add(&file_at, "the file was not read");
        }
        let checked = match &mut agent.mode {
            Mode::Own(own) => kubelet_of_own(&layers, own.compat, &mut warnings, &mut faults),
            Mode::Observe(observe) => {
                let ignored = without_effect(&inline);
                raw::RawKubelet::from_fields(&ignored, &root.field("kubelet"), &mut faults);
                warnings.extend(ignored.keys().map(|name| {
                    format!("kubelet.{name} has no effect in mode observe: kubelet goes by its own")
                }));
                observe.knows_thresholds = has_files || inline.contains_key("evictionHard");
                observe.asks_kubelet =
                    raw.kubelet_config_file.is_none() && raw.kubelet_config_directory.is_none();
                observe.kubelet_section = inline;
                let (kubelet, roots) = kubelet_of_another(&mut layers, &mut warnings, &mut faults);
                observe.cgroup_roots = roots;
                (kubelet, FieldCounts::default())
            }
        };
        let (kubelet, kubelet_fields) = checked;
        let loaded = Loaded {
            config: agent.with(kubelet),
            warnings,
            kubelet_fields,
            origins: layers.origins,
        };
        Ok(Draft {
            loaded,
            faults: faults.0,
        })
    }
}

/// The settings that the agent is run by.
fn kubelet_of_own(
    layers: &Layers,
    compat: Compat,
    warnings: &mut Vec<String>,
    faults: &mut Faults,
) -> (KubeletConfig, FieldCounts) {
    let mut kubelet_faults = Faults::default();
    warnings.extend(kubelet_fields::warnings(&layers.fields));
    kubelet_fields::refuse(&layers.fields, &mut kubelet_faults);
    let kubelet = kubelet::check(&layers.fields, compat, warnings, &mut kubelet_faults);
    let located = kubelet_faults.0.into_iter().map(|it| layers.locate(it));
    faults.0.extend(located);
    (kubelet, kubelet_fields::counts(&layers.fields))
}

/// What of the `kubelet` section mode `observe` does not go by.
fn without_effect(inline: &Map<String, Value>) -> Map<String, Value> {
    let counts = |name: &str| OBSERVED.contains(&name) || OF_ITS_PLACE.contains(&name);
    let fields = inline.iter().filter(|(name, _)| !counts(name));
    fields
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The settings that a kubelet is run by, as far as they are looked at, and its `cgroupRoot` as either driver has it
/// on disk. What kubelet takes is never a reason not to start.
fn kubelet_of_another(
    layers: &mut Layers,
    warnings: &mut Vec<String>,
    faults: &mut Faults,
) -> (KubeletConfig, Vec<CgroupPath>) {
    let mut place_faults = Faults::default();
    let cgroup_roots = kubelet::take_cgroup_roots(&mut layers.fields, &mut place_faults);
    layers
        .fields
        .retain(|name, _| OBSERVED.contains(&name.as_str()));
    if let Some(Value::Object(gates)) = layers.fields.get_mut("featureGates") {
        feature_gates::retain_known(gates);
    }
    // That they are set is looked at; names of either driver are right.
    for name in ["kubeReservedCgroup", "systemReservedCgroup"] {
        match layers.fields.get_mut(name) {
            Some(Value::String(text)) if !text.is_empty() => *text = format!("/{name}"),
            _ => {}
        }
    }
    let mut kubelet_faults = Faults::default();
    let compat = Compat::Kubelet;
    let mut kubelet = kubelet::check(&layers.fields, compat, warnings, &mut kubelet_faults);
    if !kubelet_faults.0.is_empty() {
        kubelet_faults
            .0
            .iter()
            .for_each(|it| layers.remove(&it.field));
        // What is left is without a fault: each has been taken away.
        kubelet = kubelet::check(
            &layers.fields,
            compat,
            &mut Vec::new(),
            &mut Faults::default(),
        );
    }
    (kubelet.kube_reserved_cgroup, kubelet.system_reserved_cgroup) = (None, None);
    for fault in place_faults.0.into_iter().chain(kubelet_faults.0) {
        let fault = layers.locate(fault);
        match fault.file {
            None => faults.0.push(fault),
            Some(_) => warnings.push(not_set(&fault)),
        }
    }
    (kubelet, cgroup_roots)
}

fn not_set(fault: &Fault) -> String {
    format!("{fault}; taken as not set")
}

/// The settings of a kubelet that runs, as far as they are looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletSettings {
    pub kubelet: KubeletConfig,
    /// `cgroupRoot` as either driver has it on disk, the likelier first; empty where it is not set.
    pub cgroup_roots: Vec<CgroupPath>,
    /// Pods have cgroups of their own (`cgroupsPerQOS`); else containers lie wherever their runtime puts them.
    pub has_pod_cgroups: bool,
    pub serving: Serving,
    /// Of the container runtime, as kubelet has it. `None`: it is no socket of a path, or not told.
    pub runtime_socket: Option<PathBuf>,
    /// What of them is not understood, a line each.
    pub warnings: Vec<String>,
}

impl KubeletSettings {
    /// As kubelet reads them: its file, its drop-ins in their order, its command line. Of `section`, the
    /// `kubelet` section of the agent's configuration, that counts which does not say where the pods lie. The error is
    /// that of a file that cannot be parsed.
    pub fn new(
        file: Option<(&Path, &str)>,
        drop_ins: &[(PathBuf, String)],
        flags: &KubeletFlags,
        section: &Map<String, Value>,
    ) -> Result<Self, ConfigError> {
        let mut faults = Faults::default();
        let mut layers = Layers::default();
        let mut warnings = Vec::new();
        if let Some((path, text)) = file
            && let Some(mut fields) = document_of_kubelet(text, path, &mut warnings, &mut faults)
        {
            eviction::put_defaults(&mut fields);
            layers.apply(&fields, &Origin::File(path.to_owned()));
        }
        for (path, text) in drop_ins {
            if let Some(fields) = document_of_kubelet(text, path, &mut warnings, &mut faults) {
                layers.apply(&fields, &Origin::File(path.clone()));
            }
        }
        finish((), faults)?;
        layers.overrule(&flags.fields, &Origin::Flags);
        if !flags.feature_gates.is_empty() {
            let gates = Value::Object(flags.feature_gates.clone());
            let gates = Map::from_iter([("featureGates".to_owned(), gates)]);
            layers.apply(&gates, &Origin::Flags);
        }
        eviction::put_none(&mut layers.fields);
        let serving = Serving::new(&layers.fields, flags);
        let runtime_socket = runtime_socket(&layers.fields);
        let mut settings = Self::of(layers, serving, runtime_socket, section);
        settings.warnings.splice(0..0, warnings);
        Ok(settings)
    }

    /// As kubelet says them itself (`/configz`), with its defaults in them. `section`: as above.
    pub fn told(fields: &Map<String, Value>, section: &Map<String, Value>) -> Self {
        let mut layers = Layers::default();
        layers.apply(fields, &Origin::Asked);
        eviction::put_none(&mut layers.fields);
        // One of before 1.27 has it by its command line alone.
        let says_it = layers.fields.contains_key(RUNTIME_ENDPOINT);
        let runtime_socket = runtime_socket(&layers.fields).filter(|_| says_it);
        Self::of(layers, Serving::default(), runtime_socket, section)
    }

    fn of(
        mut layers: Layers,
        serving: Serving,
        runtime_socket: Option<PathBuf>,
        section: &Map<String, Value>,
    ) -> Self {
        let (mut warnings, mut faults) = (Vec::new(), Faults::default());
        let has_pod_cgroups = layers.fields.get("cgroupsPerQOS") != Some(&Value::Bool(false));
        let mut section = section.clone();
        section.retain(|name, _| !OF_ITS_PLACE.contains(&name.as_str()));
        layers.apply(&section, &Origin::Inline);
        let (kubelet, cgroup_roots) = kubelet_of_another(&mut layers, &mut warnings, &mut faults);
        warnings.extend(faults.0.iter().map(not_set));
        Self {
            kubelet,
            cgroup_roots,
            has_pod_cgroups,
            serving,
            runtime_socket,
            warnings,
        }
    }
}

const RUNTIME_ENDPOINT: &str = "containerRuntimeEndpoint";

/// [`RUNTIME_ENDPOINT`]. Kubelet takes a path without a scheme for one of a socket, too.
fn runtime_socket(fields: &Map<String, Value>) -> Option<PathBuf> {
    /// pkg/kubelet/apis/config/v1beta1/defaults.go
    const DEFAULT: &str = "unix:///run/containerd/containerd.sock";
    let set = fields.get(RUNTIME_ENDPOINT).and_then(Value::as_str);
    let endpoint = set.filter(|it| !it.is_empty()).unwrap_or(DEFAULT);
    let path = endpoint.strip_prefix("unix:").unwrap_or(endpoint);
    let path = Path::new(path.strip_prefix("//").unwrap_or(path));
    path.is_absolute().then(|| path.to_owned())
}

/// The file, and then the drop-ins in the order of their paths.
fn file_layers(
    file: Option<(&Path, &str)>,
    drop_ins: &[(PathBuf, String)],
    warnings: &mut Vec<String>,
    faults: &mut Faults,
) -> Layers {
    let mut layers = Layers::default();
    let mut drop_ins: Vec<_> = drop_ins.iter().collect();
    drop_ins.sort();
    let drop_ins = drop_ins.into_iter();
    let drop_ins = drop_ins.map(|(path, text)| (path.as_path(), text.as_str()));
    for (path, text) in file.into_iter().chain(drop_ins) {
        if let Some(fields) = document(text, Some(path), faults) {
            check_type(&fields, Some(path), faults);
            warnings.extend(unknown_in_file(&fields, path));
            layers.apply(&fields, &Origin::File(path.to_owned()));
        }
    }
    layers
}

fn finish<T>(value: T, Faults(faults): Faults) -> Result<T, ConfigError> {
    if faults.is_empty() {
        Ok(value)
    } else {
        Err(ConfigError { faults })
    }
}

/// The mapping that a file is, or a fault of the file.
fn document(text: &str, file: Option<&Path>, faults: &mut Faults) -> Option<Map<String, Value>> {
    mapping(parse_yaml(text, Budget::default()), file, faults)
}

/// A file of a kubelet that runs by it, which takes a field that stands twice (cmd/kubelet/app/server.go, 1.36: what the
/// strict decoder refuses of v1beta1 is decoded leniently).
fn document_of_kubelet(
    text: &str,
    file: &Path,
    warnings: &mut Vec<String>,
    faults: &mut Faults,
) -> Option<Map<String, Value>> {
    let parsed = parse_yaml_where_the_last_counts(text, Budget::default());
    let parsed = parsed.map(|(value, twice)| {
        warnings.extend(twice.iter().map(|key| {
            let file = file.display();
            format!("{file}: {key} stands twice; the last one counts")
        }));
        value
    });
    mapping(parsed, Some(file), faults)
}

fn mapping(
    parsed: Result<Value, DocumentError>,
    file: Option<&Path>,
    faults: &mut Faults,
) -> Option<Map<String, Value>> {
    let message = match parsed {
        Ok(Value::Object(fields)) => return Some(fields),
        Ok(Value::Null) => "the file is empty".to_owned(),
        Ok(_) => "the file is not a mapping of fields".to_owned(),
        Err(error) => error.to_string(),
    };
    faults.0.push(Fault {
        file: file.map(Path::to_owned),
        field: FieldPath::root(),
        message,
    });
    None
}

/// `apiVersion` and `kind`: required of a file, optional in the `kubelet` section.
fn check_type(fields: &Map<String, Value>, file: Option<&Path>, faults: &mut Faults) {
    let root = FieldPath::root();
    for (name, right) in [("apiVersion", KUBELET_API_VERSION), ("kind", KUBELET_KIND)] {
        let found = match fields.get(name) {
            Some(Value::String(text)) if text == right => continue,
            None | Some(Value::Null) if file.is_none() => continue,
            None | Some(Value::Null) => "is missing".to_owned(),
            Some(other) => format!("{other} is not understood"),
        };
        faults.0.push(Fault {
            file: file.map(Path::to_owned),
            field: match file {
                Some(_) => root.field(name),
                None => root.field("kubelet").field(name),
            },
            message: format!("{found}; right would be {right}"),
        });
    }
}

/// Warnings for names that KubeletConfiguration does not have. Kubelet itself reads such a file
/// with a warning, and the file of a newer kubelet has fields of its own.
fn unknown_in_file(fields: &Map<String, Value>, file: &Path) -> Vec<String> {
    let known = || kubelet_fields::FIELDS.iter().map(|(name, _)| *name);
    let unknown = fields.keys().filter(|name| !known().any(|it| it == *name));
    unknown
        .map(|name| {
            let near = suggestion(name, known());
            format!("{}: {name}: unknown field, ignored{near}", file.display())
        })
        .collect()
}

#[cfg(test)]
mod tests;
