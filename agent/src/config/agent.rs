//! Checks of the agent's own fields: everything but the `kubelet` section.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::checked::*;
use super::duration::{self, SignedDuration};
use super::fault::{Faults, FieldPath};
use super::pressure;
use super::raw::{RawConfig, RawRuntime, RawTls};
use crate::model::pod::is_dns_subdomain;
use crate::model::status::DEFAULT_SOCKET;

const API_VERSION: &str = "ballast.dev/v1alpha1";
const KIND: &str = "AgentConfiguration";

/// Beside the configuration itself, where an operator looks first.
const DEFAULT_MANIFEST_DIRECTORY: &str = "/etc/ballast/pods";
/// Survives a restart of the node, as FHS has it for state.
const DEFAULT_STATE_DIRECTORY: &str = "/var/lib/ballast";
/// Where device plugins and monitoring agents look, with or without a kubelet.
const DEFAULT_KUBELET_DIRECTORY: &str = "/var/lib/kubelet";
/// 9464 is the port registered for exporters of OpenTelemetry; local until someone opens it.
const DEFAULT_METRICS_ADDRESS: &str = "127.0.0.1:9464";
/// Three sweeps between two scrapes of Prometheus at its usual 15 s.
const DEFAULT_STATS_INTERVAL: Duration = Duration::from_secs(5);
/// More often costs more than the agent may use; seldomer and a record of an OOM kill shows nothing
/// of the minute before it.
const STATS_INTERVALS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60);
/// Below the usual mount point of the bpffs.
const DEFAULT_PIN_DIRECTORY: &str = "/sys/fs/bpf/ballast";
/// `sun_path` has 108 bytes, the last one a NUL (unix(7)).
pub(crate) const LONGEST_SOCKET_PATH: usize = 107;

/// A [`Config`] that still lacks its kubelet part.
pub(super) struct Agent {
    pub(super) mode: Mode,
    state_directory: PathBuf,
    socket: PathBuf,
    metrics: MetricsConfig,
    stats_interval: Duration,
    log: LogConfig,
    bpf: BpfConfig,
    oom_records: OomRecordsConfig,
    kubelet_metric_names: KubeletNames,
}

impl Agent {
    pub(super) fn with(self, kubelet: KubeletConfig) -> Config {
        Config {
            mode: self.mode,
            state_directory: self.state_directory,
            socket: self.socket,
            metrics: self.metrics,
            stats_interval: self.stats_interval,
            log: self.log,
            bpf: self.bpf,
            oom_records: self.oom_records,
            kubelet_metric_names: self.kubelet_metric_names,
            kubelet,
        }
    }
}

/// What stands in a field with a fault is its default.
pub(super) fn check(raw: &RawConfig, faults: &mut Faults) -> Agent {
    let root = FieldPath::root();
    for (name, found, right) in [
        ("apiVersion", &raw.api_version, API_VERSION),
        ("kind", &raw.kind, KIND),
    ] {
        match found.as_deref() {
            Some(text) if text == right => {}
            Some(text) => faults.add(
                &root.field(name),
                format!("`{text}` is not understood; right would be {right}"),
            ),
            None => faults.add(
                &root.field(name),
                format!("is missing; right would be {right}"),
            ),
        }
    }
    let log = raw.log.clone().unwrap_or_default();
    let bpf = raw.bpf.clone().unwrap_or_default();
    for (name, text) in [
        ("kubeletConfigFile", &raw.kubelet_config_file),
        ("kubeletConfigDirectory", &raw.kubelet_config_directory),
    ] {
        path(text, "", &root.field(name), faults);
    }
    let state_directory = path(
        &raw.state_directory,
        DEFAULT_STATE_DIRECTORY,
        &root.field("stateDirectory"),
        faults,
    );
    let mode = mode(raw, &state_directory, faults);
    let socket = path(&raw.socket, DEFAULT_SOCKET, &root.field("socket"), faults);
    let pin_directory = path(
        &bpf.pin_directory,
        DEFAULT_PIN_DIRECTORY,
        &root.field("bpf").field("pinDirectory"),
        faults,
    );
    let socket =
        socket_path(socket, &root.field("socket"), faults).unwrap_or_else(|| DEFAULT_SOCKET.into());
    let log_at = root.field("log");
    Agent {
        mode,
        state_directory,
        socket,
        metrics: metrics(raw, faults),
        stats_interval: stats_interval(raw, faults),
        log: LogConfig {
            format: choose(
                log.format.as_deref(),
                LOG_FORMATS,
                &log_at.field("format"),
                faults,
            ),
            level: choose(
                log.level.as_deref(),
                LOG_LEVELS,
                &log_at.field("level"),
                faults,
            ),
        },
        bpf: BpfConfig {
            pin_directory,
            diagnostics: bpf.diagnostics.unwrap_or(false),
        },
        oom_records: pressure::check_oom_records(raw.eviction.as_ref(), faults),
        kubelet_metric_names: choose(
            raw.kubelet_metric_names.as_deref(),
            KUBELET_NAMES,
            &root.field("kubeletMetricNames"),
            faults,
        ),
    }
}

/// The default where the field is absent or has a fault.
fn path(text: &Option<String>, default: &str, at: &FieldPath, faults: &mut Faults) -> PathBuf {
    text.as_deref()
        .and_then(|text| absolute_path(text, at, faults))
        .unwrap_or_else(|| default.into())
}

/// The mode says what may be written on the node, so it is never guessed.
fn mode(raw: &RawConfig, state_directory: &Path, faults: &mut Faults) -> Mode {
    let at = FieldPath::root().field("mode");
    match raw.mode.as_deref() {
        Some("own") => {}
        Some("observe") => {
            check_observe(raw, faults);
            return Mode::Observe(ObserveConfig {
                runtime: observed_runtime(raw, faults),
                pods: observed_pods(raw, faults),
                kubernetes: kubernetes(raw, faults),
                ..ObserveConfig::default()
            });
        }
        Some("assist") => faults.add(
            &at,
            "this build does not have mode assist yet; right would be own or observe",
        ),
        Some(mode) => faults.add(
            &at,
            format!("`{mode}` is not a mode; right would be own or observe"),
        ),
        None => faults.add(&at, "is missing; right would be own or observe"),
    }
    Mode::Own(own(raw, state_directory, faults))
}

fn own(raw: &RawConfig, state_directory: &Path, faults: &mut Faults) -> OwnConfig {
    let root = FieldPath::root();
    check_pod_source(raw, faults);
    check_runtime(raw, faults);
    if raw.kubernetes.is_some() {
        let problem = "mode own asks no API server; right would be to leave it out";
        faults.add(&root.field("kubernetes"), problem);
    }
    let pods = raw.pods.clone().unwrap_or_default();
    let manifests_at = root.field("pods").field("manifestDirectory");
    let manifest_directory = path(
        &pods.manifest_directory,
        DEFAULT_MANIFEST_DIRECTORY,
        &manifests_at,
        faults,
    );
    if manifest_directory.starts_with(state_directory)
        || state_directory.starts_with(&manifest_directory)
    {
        faults.add(
            &manifests_at,
            format!(
                "{} and stateDirectory {} lie one in the other; right would be two that are apart, \
                 since the agent removes and renames files of its own",
                manifest_directory.display(),
                state_directory.display()
            ),
        );
    }
    let compat = choose(
        raw.compat.as_deref(),
        COMPATS,
        &root.field("compat"),
        faults,
    );
    OwnConfig {
        pods: PodsConfig::Manifests { manifest_directory },
        remove_unknown_cgroups: pods.remove_unknown_cgroups.unwrap_or(false),
        runtime: RuntimeConfig::Process,
        kubelet_directory: path(
            &raw.kubelet_directory,
            DEFAULT_KUBELET_DIRECTORY,
            &root.field("kubeletDirectory"),
            faults,
        ),
        eviction: pressure::check(raw.eviction.as_ref(), compat, state_directory, faults),
        compat,
    }
}

/// What another mode would do is refused, and not left undone in silence.
fn check_observe(raw: &RawConfig, faults: &mut Faults) {
    let root = FieldPath::root();
    let pods = raw.pods.clone().unwrap_or_default();
    let eviction = raw.eviction.clone().unwrap_or_default();
    let [pods_at, eviction_at] = ["pods", "eviction"].map(|it| root.field(it));
    for (is_set, at) in [
        (
            pods.manifest_directory.is_some(),
            pods_at.field("manifestDirectory"),
        ),
        (
            pods.remove_unknown_cgroups.is_some(),
            pods_at.field("removeUnknownCgroups"),
        ),
        (
            raw.kubelet_directory.is_some(),
            root.field("kubeletDirectory"),
        ),
        (raw.compat.is_some(), root.field("compat")),
        (
            raw.kubelet_metric_names.is_some(),
            root.field("kubeletMetricNames"),
        ),
        (
            eviction.memory_method.is_some(),
            eviction_at.field("memoryMethod"),
        ),
        (eviction.stages.is_some(), eviction_at.field("stages")),
        (eviction.stall.is_some(), eviction_at.field("stall")),
        (eviction.record.is_some(), eviction_at.field("record")),
    ] {
        if is_set {
            faults.add(&at, "only mode own has it; right would be to leave it out");
        }
    }
}

/// The pods beside kubelet.
fn observed_pods(raw: &RawConfig, faults: &mut Faults) -> ObservedPods {
    const RIGHT: &str = "right would be apiserver, kubelet or none";
    let at = FieldPath::root().field("pods").field("source");
    let pods = raw.pods.clone().unwrap_or_default();
    match pods.source.as_deref() {
        None => return ObservedPods::Any,
        Some("none") => return ObservedPods::None,
        Some("apiserver") => return ObservedPods::ApiServer,
        Some("kubelet") => return ObservedPods::Kubelet,
        Some(source) => {
            let problem = format!("`{source}` is not a source of pods beside kubelet; {RIGHT}");
            faults.add(&at, problem);
        }
    }
    ObservedPods::Any
}

fn kubernetes(raw: &RawConfig, faults: &mut Faults) -> KubernetesConfig {
    let at = FieldPath::root().field("kubernetes");
    let kubernetes = raw.kubernetes.clone().unwrap_or_default();
    let source = raw.pods.as_ref().and_then(|it| it.source.as_deref());
    if source == Some("none") && kubernetes.kubeconfig_file.is_some() {
        let problem =
            "pods.source is none, so nobody uses it; right would be to leave out one of both";
        faults.add(&at.field("kubeconfigFile"), problem);
    }
    let node_at = at.field("nodeName");
    let events = kubernetes.events.unwrap_or_default();
    KubernetesConfig {
        events: events.enabled.unwrap_or(true),
        node_name: kubernetes.node_name.filter(|it| {
            let is_name = is_dns_subdomain(it);
            if !is_name {
                let problem = format!(
                    "`{}` is not the name of a node; right would be its metadata.name",
                    it.escape_debug()
                );
                faults.add(&node_at, problem);
            }
            is_name
        }),
        kubeconfig_file: kubernetes
            .kubeconfig_file
            .and_then(|it| absolute_path(&it, &at.field("kubeconfigFile"), faults)),
    }
}

/// The runtime beside kubelet.
fn observed_runtime(raw: &RawConfig, faults: &mut Faults) -> ObservedRuntime {
    let at = FieldPath::root().field("runtime");
    let runtime = raw.runtime.clone().unwrap_or_default();
    let endpoint_at = at.field("endpoint");
    match runtime.kind.as_deref() {
        None | Some("cri") => ObservedRuntime::Cri {
            endpoint: runtime
                .endpoint
                .and_then(|it| endpoint(&it, &endpoint_at, faults)),
            events: runtime.events.unwrap_or(true),
        },
        Some("none") => {
            only_cri_has(&runtime, &at, faults);
            ObservedRuntime::None
        }
        Some("process") => {
            let problem = "only mode own runs containers itself; right would be cri or none";
            faults.add(&at.field("type"), problem);
            ObservedRuntime::default()
        }
        Some(kind) => {
            let problem = format!("`{kind}` is not a runtime; right would be cri or none");
            faults.add(&at.field("type"), problem);
            ObservedRuntime::default()
        }
    }
}

/// A socket, as `crictl` and kubelet take it.
fn endpoint(text: &str, at: &FieldPath, faults: &mut Faults) -> Option<PathBuf> {
    let Some(path) = text.strip_prefix("unix://") else {
        faults.add(
            at,
            format!(
                "`{}` is not a Unix socket; right would be as unix:///run/containerd/containerd.sock",
                text.escape_debug()
            ),
        );
        return None;
    };
    absolute_path(path, at, faults).and_then(|it| socket_path(it, at, faults))
}

/// `None`: an address of the kernel has no room for it.
fn socket_path(path: PathBuf, at: &FieldPath, faults: &mut Faults) -> Option<PathBuf> {
    if path.as_os_str().len() > LONGEST_SOCKET_PATH {
        faults.add(
            at,
            format!("the path is longer than the {LONGEST_SOCKET_PATH} bytes of a socket address"),
        );
        return None;
    }
    Some(path)
}

fn only_cri_has(runtime: &RawRuntime, at: &FieldPath, faults: &mut Faults) {
    if runtime.endpoint.is_some() {
        let problem = "only a runtime of type cri has an endpoint";
        faults.add(&at.field("endpoint"), problem);
    }
    if runtime.events.is_some() {
        faults.add(
            &at.field("events"),
            "only a runtime of type cri tells events",
        );
    }
}

const LOG_FORMATS: &[(&str, LogFormat)] = &[
    ("auto", LogFormat::Auto),
    ("text", LogFormat::Text),
    ("json", LogFormat::Json),
];

const LOG_LEVELS: &[(&str, LogLevel)] = &[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

const COMPATS: &[(&str, Compat)] = &[("ballast", Compat::Ballast), ("kubelet", Compat::Kubelet)];

const KUBELET_NAMES: &[(&str, KubeletNames)] = &[
    ("both", KubeletNames::Both),
    ("old", KubeletNames::Old),
    ("new", KubeletNames::New),
];

/// The named value; the default where the field is absent or empty.
pub(super) fn choose<T: Copy + Default>(
    text: Option<&str>,
    choices: &[(&str, T)],
    at: &FieldPath,
    faults: &mut Faults,
) -> T {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return T::default();
    };
    let named = choices.iter().find(|(name, _)| *name == text);
    named.map_or_else(
        || {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let right = names.join(", ");
            faults.add(
                at,
                format!("`{text}` is not known; right would be one of {right}"),
            );
            T::default()
        },
        |(_, value)| *value,
    )
}

fn check_pod_source(raw: &RawConfig, faults: &mut Faults) {
    let at = FieldPath::root().field("pods").field("source");
    match raw.pods.as_ref().and_then(|pods| pods.source.as_deref()) {
        None | Some("manifests") => {}
        Some(source @ ("kubelet" | "apiserver" | "none")) => faults.add(
            &at,
            format!("mode own takes no pods from source {source}; right would be manifests"),
        ),
        Some(source) => faults.add(
            &at,
            format!("`{source}` is not a source of pods; right would be manifests"),
        ),
    }
}

fn check_runtime(raw: &RawConfig, faults: &mut Faults) {
    let at = FieldPath::root().field("runtime");
    let runtime = raw.runtime.clone().unwrap_or_default();
    match runtime.kind.as_deref() {
        None | Some("process") => {
            only_cri_has(&runtime, &at, faults);
        }
        Some("cri") => faults.add(
            &at.field("type"),
            "this build does not run containers by CRI yet; right would be process",
        ),
        Some(kind) => faults.add(
            &at.field("type"),
            format!("`{kind}` is not a runtime; right would be process"),
        ),
    }
}

fn metrics(raw: &RawConfig, faults: &mut Faults) -> MetricsConfig {
    let raw = raw.metrics.clone().unwrap_or_default();
    let at = FieldPath::root().field("metrics");
    let text = raw.address.as_deref().unwrap_or(DEFAULT_METRICS_ADDRESS);
    let token_at = at.field("bearerTokenFile");
    let token = raw.bearer_token_file.as_deref();
    MetricsConfig {
        address: metrics_address(text, &at.field("address"), faults),
        tls: raw
            .tls
            .and_then(|tls| metrics_tls(&tls, &at.field("tls"), faults)),
        bearer_token_file: token.and_then(|text| absolute_path(text, &token_at, faults)),
        timestamps: raw.timestamps.unwrap_or(false),
    }
}

/// `None` where the address is empty.
fn metrics_address(text: &str, at: &FieldPath, faults: &mut Faults) -> Option<SocketAddr> {
    if text.is_empty() {
        return None;
    }
    text.parse()
        .inspect_err(|_| {
            faults.add(
                at,
                format!(
                    "`{text}` is not an address; right would be IP:PORT as in \
                     {DEFAULT_METRICS_ADDRESS} or [::1]:9464, or an empty string for none"
                ),
            );
        })
        .ok()
}

/// One file is of no use without the other.
fn metrics_tls(raw: &RawTls, at: &FieldPath, faults: &mut Faults) -> Option<TlsConfig> {
    let mut file = |name: &str, text: &Option<String>| match text {
        Some(text) => absolute_path(text, &at.field(name), faults),
        None => {
            let problem = "is missing; TLS needs a certificate and its key, both in PEM";
            faults.add(&at.field(name), problem);
            None
        }
    };
    let certificate_file = file("certificateFile", &raw.certificate_file);
    let key_file = file("keyFile", &raw.key_file);
    Some(TlsConfig {
        certificate_file: certificate_file?,
        key_file: key_file?,
    })
}

fn stats_interval(raw: &RawConfig, faults: &mut Faults) -> Duration {
    let metrics = raw.metrics.as_ref();
    let text = metrics.and_then(|it| it.stats_interval.as_deref());
    let at = FieldPath::root().field("metrics").field("statsInterval");
    span(text, &at, STATS_INTERVALS, DEFAULT_STATS_INTERVAL, faults)
}

/// A length of time within bounds.
pub(super) fn span(
    text: Option<&str>,
    at: &FieldPath,
    range: RangeInclusive<Duration>,
    default: Duration,
    faults: &mut Faults,
) -> Duration {
    let Some(text) = text else {
        return default;
    };
    match faults.keep(at, duration::parse(text)) {
        Some(SignedDuration::Positive(it)) if range.contains(&it) => it,
        None => default,
        Some(_) => {
            let [shortest, longest] = [*range.start(), *range.end()].map(duration::format);
            faults.add(
                at,
                format!("`{text}` is out of range; right would be {shortest} to {longest}"),
            );
            default
        }
    }
}

/// A path that means the same wherever the agent was started.
pub(super) fn absolute_path(text: &str, at: &FieldPath, faults: &mut Faults) -> Option<PathBuf> {
    let path = Path::new(text);
    let climbs = path
        .components()
        .any(|it| matches!(it, Component::ParentDir | Component::CurDir));
    let problem = if !path.is_absolute() {
        "is not an absolute path"
    } else if climbs {
        "has a `.` or `..` in it"
    } else if text.contains('\0') {
        "has a NUL byte in it"
    } else {
        return Some(path.into());
    };
    faults.add(
        at,
        format!(
            "`{}` {problem}; right would be as /etc/ballast/pods",
            text.escape_debug()
        ),
    );
    None
}
