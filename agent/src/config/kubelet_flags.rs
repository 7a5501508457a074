//! What the command line of a kubelet says: where its files are, and fields of KubeletConfiguration, which count
//! before those of its files (kubelet 1.36, cmd/kubelet/app/options/options.go and cmd/kubelet/app/server.go,
//! `kubeletConfigFlagPrecedence`).

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::placement::go_bool;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KubeletFlags {
    /// `--config`. Relative: to where kubelet was started.
    pub config_file: Option<PathBuf>,
    /// `--config-dir`, as above.
    pub config_directory: Option<PathBuf>,
    /// `--root-dir`, as above; `None`: [`DEFAULT_ROOT_DIRECTORY`].
    pub root_directory: Option<PathBuf>,
    /// `--cert-dir`, as above; `None`: [`DEFAULT_CERTIFICATE_DIRECTORY`].
    pub certificate_directory: Option<PathBuf>,
    /// `--feature-gates`, which count gate by gate before those of the files.
    pub feature_gates: Map<String, Value>,
    /// Fields of KubeletConfiguration, as far as they are looked at.
    pub fields: Map<String, Value>,
}

/// Where kubelet keeps its state unless it is told otherwise.
pub const DEFAULT_ROOT_DIRECTORY: &str = "/var/lib/kubelet";

/// Where it keeps its certificates unless it is told otherwise.
pub(super) const DEFAULT_CERTIFICATE_DIRECTORY: &str = "/var/lib/kubelet/pki";

enum Kind {
    Text,
    /// `a=1,b=2` with this between the name and its value; said again it adds to what was said before.
    Map(char),
    /// `a,b`
    List,
    /// `0:memory=1Gi,hugepages-2Mi=2Gi;1:memory=1Gi`, said again as for a map
    /// (pkg/util/flag/flags.go, `ReservedMemoryVar`).
    ReservedMemory,
    Number,
    /// Alone it is `true`.
    Bool,
}

/// Those that are looked at, and their fields.
const FLAGS: &[(&str, &str, Kind)] = &[
    ("address", "address", Kind::Text),
    ("cgroup-driver", "cgroupDriver", Kind::Text),
    ("cgroup-root", "cgroupRoot", Kind::Text),
    ("cgroups-per-qos", "cgroupsPerQOS", Kind::Bool),
    (
        "container-runtime-endpoint",
        "containerRuntimeEndpoint",
        Kind::Text,
    ),
    ("cpu-manager-policy", "cpuManagerPolicy", Kind::Text),
    (
        "cpu-manager-policy-options",
        "cpuManagerPolicyOptions",
        Kind::Map('='),
    ),
    (
        "enforce-node-allocatable",
        "enforceNodeAllocatable",
        Kind::List,
    ),
    ("eviction-hard", "evictionHard", Kind::Map('<')),
    ("eviction-soft", "evictionSoft", Kind::Map('<')),
    (
        "eviction-soft-grace-period",
        "evictionSoftGracePeriod",
        Kind::Map('='),
    ),
    (
        "eviction-minimum-reclaim",
        "evictionMinimumReclaim",
        Kind::Map('='),
    ),
    (
        "eviction-pressure-transition-period",
        "evictionPressureTransitionPeriod",
        Kind::Text,
    ),
    ("fail-swap-on", "failSwapOn", Kind::Bool),
    ("kube-reserved", "kubeReserved", Kind::Map('=')),
    ("kube-reserved-cgroup", "kubeReservedCgroup", Kind::Text),
    ("max-pods", "maxPods", Kind::Number),
    ("memory-manager-policy", "memoryManagerPolicy", Kind::Text),
    ("pods-per-core", "podsPerCore", Kind::Number),
    ("port", "port", Kind::Number),
    ("reserved-cpus", "reservedSystemCPUs", Kind::Text),
    ("reserved-memory", "reservedMemory", Kind::ReservedMemory),
    ("system-reserved", "systemReserved", Kind::Map('=')),
    ("system-reserved-cgroup", "systemReservedCgroup", Kind::Text),
    ("tls-cert-file", "tlsCertFile", Kind::Text),
    (
        "topology-manager-policy",
        "topologyManagerPolicy",
        Kind::Text,
    ),
    (
        "topology-manager-policy-options",
        "topologyManagerPolicyOptions",
        Kind::Map('='),
    ),
    ("topology-manager-scope", "topologyManagerScope", Kind::Text),
];

impl KubeletFlags {
    /// `arguments`: those after the name of the program. What kubelet itself would refuse is left out: one that runs
    /// has no such flag.
    pub fn parse(arguments: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let mut found = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            // What follows a flag that is not looked at, and has a value, is no flag.
            let Some(flag) = argument.as_ref().strip_prefix("--") else {
                continue;
            };
            let (name, given) = match flag.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (flag, None),
            };
            // As kubelet takes it (k8s.io/component-base/cli/flag, `WordSepNormalizeFunc`).
            let name = name.replace('_', "-");
            let mut value = || {
                let next = || Some(arguments.next()?.as_ref().to_owned());
                given.clone().or_else(next)
            };
            match name.as_str() {
                "config" => found.config_file = path(value()),
                "config-dir" => found.config_directory = path(value()),
                "root-dir" => found.root_directory = path(value()),
                "cert-dir" => found.certificate_directory = path(value()),
                "feature-gates" => {
                    let gates = value();
                    let gates = pairs(gates.as_deref().unwrap_or_default(), '=');
                    found.feature_gates.extend(gates.filter_map(is_on));
                }
                _ => {
                    if let Some((_, field, kind)) = FLAGS.iter().find(|(it, ..)| *it == name) {
                        let value = match kind {
                            Kind::Bool => given,
                            Kind::Text
                            | Kind::List
                            | Kind::ReservedMemory
                            | Kind::Number
                            | Kind::Map(_) => value(),
                        };
                        found.set(field, kind, value);
                    }
                }
            }
        }
        found
    }

    fn set(&mut self, field: &str, kind: &Kind, value: Option<String>) {
        let value = match (kind, value) {
            (Kind::Text, Some(text)) => text.into(),
            (Kind::List, Some(text)) => {
                let parts = text.split(',').filter(|it| !it.is_empty());
                parts.collect::<Vec<_>>().into()
            }
            (Kind::Number, Some(text)) => match text.parse::<i64>() {
                Ok(number) => number.into(),
                Err(_) => return,
            },
            (Kind::Bool, None) => true.into(),
            (Kind::Bool, Some(text)) => match go_bool(&text) {
                Some(is_on) => is_on.into(),
                None => return,
            },
            (Kind::Map(separator), Some(text)) => {
                let mut all = match self.fields.remove(field) {
                    Some(Value::Object(all)) => all,
                    _ => Map::new(),
                };
                all.extend(pairs(&text, *separator));
                all.into()
            }
            (Kind::ReservedMemory, Some(text)) => {
                let mut all = match self.fields.remove(field) {
                    Some(Value::Array(all)) => all,
                    _ => Vec::new(),
                };
                all.extend(text.split(';').filter_map(reserved_memory));
                all.into()
            }
            (
                Kind::Text | Kind::List | Kind::ReservedMemory | Kind::Number | Kind::Map(_),
                None,
            ) => return,
        };
        self.fields.insert(field.to_owned(), value);
    }
}

fn path(value: Option<String>) -> Option<PathBuf> {
    value.filter(|it| !it.is_empty()).map(PathBuf::from)
}

fn pairs(text: &str, separator: char) -> impl Iterator<Item = (String, Value)> {
    let pairs = text
        .split(',')
        .filter_map(move |it| it.split_once(separator));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().into()))
}

/// `NAME=true`
fn is_on((name, value): (String, Value)) -> Option<(String, Value)> {
    Some((name, go_bool(value.as_str()?)?.into()))
}

/// `0:memory=1Gi,hugepages-2Mi=2Gi`
fn reserved_memory(text: &str) -> Option<Value> {
    let (node, limits) = text.split_once(':')?;
    let node: u64 = node.trim().parse().ok()?;
    let limits: Map<String, Value> = pairs(limits, '=').collect();
    Some(json!({"numaNode": node, "limits": limits}))
}

#[cfg(test)]
mod tests {

    use super::*;

    fn parsed(line: &str) -> Value {
        let flags = KubeletFlags::parse(line.split_whitespace());
        let shown = |it: Option<PathBuf>| it.map(|it| it.display().to_string());
        json!({
            "file": shown(flags.config_file),
            "directory": shown(flags.config_directory),
            "fields": flags.fields,
        })
    }

    #[test]
    fn a_command_line_is_read_as_kubelet_reads_it() {
        for (line, file, directory, fields) in [
            ("", Value::Null, Value::Null, json!({})),
            // As kubeadm starts it.
            (
                "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
                 --config=/var/lib/kubelet/config.yaml --container-runtime-endpoint=unix:///run/containerd/containerd.sock",
                json!("/var/lib/kubelet/config.yaml"),
                Value::Null,
                json!({"containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock"}),
            ),
            (
                "--config /etc/kubelet.json --config-dir /etc/kubelet.json.d --node-labels a=b --v 2",
                json!("/etc/kubelet.json"),
                json!("/etc/kubelet.json.d"),
                json!({}),
            ),
            (
                "--config= --config-dir",
                Value::Null,
                Value::Null,
                json!({}),
            ),
            ("--config=a --config=b", json!("b"), Value::Null, json!({})),
            // Maps, in one flag or more.
            (
                "--eviction-hard=memory.available<100Mi,nodefs.available<10% --eviction-hard memory.available<1Gi",
                Value::Null,
                Value::Null,
                json!({"evictionHard": {"memory.available": "1Gi", "nodefs.available": "10%"}}),
            ),
            (
                "--eviction_hard=memory.available<5%, --eviction-soft=memory.available<1Gi \
                 --eviction-soft-grace-period=memory.available=90s --eviction-minimum-reclaim=imagefs.available=2Gi \
                 --eviction-pressure-transition-period=30s",
                Value::Null,
                Value::Null,
                json!({
                    "evictionHard": {"memory.available": "5%"},
                    "evictionSoft": {"memory.available": "1Gi"},
                    "evictionSoftGracePeriod": {"memory.available": "90s"},
                    "evictionMinimumReclaim": {"imagefs.available": "2Gi"},
                    "evictionPressureTransitionPeriod": "30s",
                }),
            ),
            // None at all.
            (
                "--eviction-hard=",
                Value::Null,
                Value::Null,
                json!({"evictionHard": {}}),
            ),
            (
                "--kube-reserved=cpu=100m,memory=1Gi --system-reserved cpu=200m --reserved-cpus=0-1 --max-pods 58",
                Value::Null,
                Value::Null,
                json!({
                    "kubeReserved": {"cpu": "100m", "memory": "1Gi"},
                    "systemReserved": {"cpu": "200m"},
                    "reservedSystemCPUs": "0-1",
                    "maxPods": 58,
                }),
            ),
            (
                "--fail-swap-on --cgroup-root=/a --cgroup-driver systemd --enforce-node-allocatable=pods,kube-reserved",
                Value::Null,
                Value::Null,
                json!({"enforceNodeAllocatable": ["pods", "kube-reserved"], "failSwapOn": true, "cgroupRoot": "/a", "cgroupDriver": "systemd"}),
            ),
            (
                // What follows is the value, whatever it is.
                "--fail-swap-on=false --eviction-hard --eviction-soft=x<1 --kube-reserved",
                Value::Null,
                Value::Null,
                json!({"failSwapOn": false, "evictionHard": {"--eviction-soft=x": "1"}}),
            ),
            (
                "--cpu-manager-policy=static --cpu-manager-policy-options=full-pcpus-only=true \
                 --memory-manager-policy Static --reserved-memory 0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi \
                 --reserved-memory=2:memory=1 --topology-manager-policy=restricted --topology-manager-scope=pod",
                Value::Null,
                Value::Null,
                json!({
                    "cpuManagerPolicy": "static",
                    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
                    "memoryManagerPolicy": "Static",
                    "reservedMemory": [
                        {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}},
                        {"numaNode": 1, "limits": {"memory": "2Gi"}},
                        {"numaNode": 2, "limits": {"memory": "1"}},
                    ],
                    "topologyManagerPolicy": "restricted",
                    "topologyManagerScope": "pod",
                }),
            ),
        ] {
            let right = json!({"file": file, "directory": directory, "fields": fields});
            assert_eq!(parsed(line), right, "{line}");
        }
    }

    #[test]
    fn gates_and_directories_are_no_fields() {
        let line =
            "--feature-gates=A=true,B=false --root-dir /k --cert-dir=pki --feature-gates C=T,D=x,E";
        let flags = KubeletFlags::parse(line.split(' '));
        assert_eq!(flags.root_directory, Some("/k".into()));
        assert_eq!(flags.certificate_directory, Some("pki".into()));
        let right = json!({"A": true, "B": false, "C": true});
        assert_eq!(Value::from(flags.feature_gates), right);
        assert!(flags.fields.is_empty());
    }
}
