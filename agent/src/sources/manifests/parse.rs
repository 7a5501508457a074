//! The text of one manifest file to pods. Reads nothing; goes on after a fault with the next pod.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1;
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Definition, MAX_DOCUMENTS, MAX_PODS, ManifestFault, Reading};
use crate::model::document::{Budget, Chunk, parse_json_stream, parse_yaml, split_stream};
use crate::model::pod::node_requirements::named_ports;
use crate::model::pod::{ApiValue, FieldFault, Pod, Weight};

/// Faults of one file, warnings of one pod, and fields of one warning: each is in the log and in the status, and nobody
/// reads more. Arbitrary.
pub(super) const MAX_FINDINGS: usize = 100;

#[derive(Debug)]
pub(super) struct ParsedFile {
    /// No document has any content.
    pub(super) is_empty: bool,
    pub(super) pods: Vec<Definition>,
    pub(super) faults: Vec<ManifestFault>,
    pub(super) warnings: Vec<ManifestFault>,
}

/// `path` is for messages.
pub(super) fn file(path: &Path, bytes: &[u8], reading: &Reading) -> ParsedFile {
    let mut parser = Parser {
        path,
        reading,
        n_pods: 0,
        n_more_faults: 0,
        found: ParsedFile {
            is_empty: true,
            pods: Vec::new(),
            faults: Vec::new(),
            warnings: Vec::new(),
        },
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            parser.text(text.strip_prefix('\u{feff}').unwrap_or(text));
            parser.check_number("pods", parser.n_pods, MAX_PODS);
        }
        Err(error) => {
            let message = format!("is not UTF-8: byte {} is wrong", error.valid_up_to());
            parser
                .found
                .faults
                .push(ManifestFault::of_file(path.into(), message));
        }
    }
    if parser.n_more_faults > 0 {
        let message = format!("and {} more faults", parser.n_more_faults);
        let more = ManifestFault::of_file(path.into(), message);
        parser.found.faults.push(more);
    }
    parser.found
}

struct Parser<'a> {
    path: &'a Path,
    reading: &'a Reading,
    /// Pods met so far, good or not.
    n_pods: usize,
    /// Those that are left out.
    n_more_faults: usize,
    found: ParsedFile,
}

/// Where in a file a pod stands.
#[derive(Clone, Copy)]
struct Place<'a> {
    document: usize,
    /// `items[N].` inside a list, else empty.
    prefix: &'a str,
}

impl Parser<'_> {
    /// JSON by its first character, as Kubernetes guesses, and YAML otherwise, whatever the file is called. Most JSON
    /// is YAML too, but not with tabs.
    fn text(&mut self, text: &str) {
        if text.trim_start().starts_with('{')
            && let Ok(values) = parse_json_stream(text, Budget::default())
        {
            return self.documents(values);
        }
        let chunks = split_stream(text);
        for (index, chunk) in chunks.iter().take(MAX_DOCUMENTS).enumerate() {
            self.chunk(index + 1, *chunk, share(chunks.len(), chunk.text));
        }
        self.check_number("documents", chunks.len(), MAX_DOCUMENTS);
    }

    fn documents(&mut self, values: Vec<Value>) {
        let n_documents = values.len();
        for (index, value) in values.into_iter().take(MAX_DOCUMENTS).enumerate() {
            self.document(index + 1, value);
        }
        self.check_number("documents", n_documents, MAX_DOCUMENTS);
    }

    fn check_number(&mut self, of: &str, n: usize, max: usize) {
        if n > max {
            let message = format!("has {n} {of}; those after the first {max} are not read");
            self.found
                .faults
                .push(ManifestFault::of_file(self.path.into(), message));
        }
    }

    fn chunk(&mut self, document: usize, chunk: Chunk<'_>, budget: Budget) {
        match parse_yaml(chunk.text, budget) {
            Ok(value) => self.document(document, value),
            Err(mut error) => {
                if let Some((line, _)) = &mut error.place {
                    *line += chunk.lines_before;
                }
                let place = Place {
                    document,
                    prefix: "",
                };
                self.fault(place, None, None, error.to_string());
            }
        }
    }

    fn document(&mut self, document: usize, mut value: Value) {
        self.found.is_empty &= value.is_null();
        let place = Place {
            document,
            prefix: "",
        };
        let kind = value
            .get("kind")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        match kind.as_str() {
            "Pod" => self.pod(place, value),
            "PodList" | "List" => {
                self.check_api_version(place, &value);
                let items = match value.get_mut("items").map(Value::take) {
                    Some(Value::Array(items)) => items,
                    None | Some(Value::Null) => Vec::new(),
                    Some(_) => {
                        let message = "is not a list".to_owned();
                        return self.fault(place, None, Some("items".into()), message);
                    }
                };
                for (index, item) in items.into_iter().enumerate() {
                    let prefix = format!("items[{index}].");
                    self.item(document, &prefix, item, kind == "PodList");
                }
            }
            _ if value.is_null() => {}
            _ => self.wrong_kind(place, &value),
        }
    }

    /// The items of a PodList need not say what they are.
    fn item(&mut self, document: usize, prefix: &str, mut item: Value, is_pod: bool) {
        let place = Place { document, prefix };
        if let Some(fields) = item.as_object_mut().filter(|_| is_pod) {
            fields.entry("apiVersion").or_insert_with(|| "v1".into());
            fields.entry("kind").or_insert_with(|| "Pod".into());
        }
        if item.get("kind").and_then(Value::as_str) == Some("Pod") {
            self.pod(place, item);
        } else {
            self.wrong_kind(place, &item);
        }
    }

    fn wrong_kind(&mut self, place: Place<'_>, value: &Value) {
        let (field, message) = match (value.is_object(), value.get("kind")) {
            (false, _) => (
                None,
                "is not a mapping of fields; right would be a v1 Pod".into(),
            ),
            (true, None) => (Some("kind"), "is missing; right would be Pod".into()),
            (true, Some(kind)) if has_no_pod(value) => {
                let message = format!("{kind} is not a pod, and is ignored");
                return self.warn(place, None, &[FieldFault::new("kind", message)]);
            }
            (true, Some(kind)) => {
                let right = match place.prefix {
                    "" => "Pod, PodList or List",
                    _ => "Pod",
                };
                let message = format!("{kind} is not a pod; right would be {right}");
                (Some("kind"), message)
            }
        };
        let field = field.map(|it| format!("{}{it}", place.prefix));
        self.fault(place, full_name(value), field, message);
    }

    fn check_api_version(&mut self, place: Place<'_>, value: &Value) {
        if value.get("apiVersion").and_then(Value::as_str) != Some("v1") {
            let message = "right would be v1".to_owned();
            self.fault(place, full_name(value), Some("apiVersion".into()), message);
        }
    }

    fn pod(&mut self, place: Place<'_>, mut value: Value) {
        self.n_pods += 1;
        if self.n_pods > MAX_PODS {
            return;
        }
        let name = full_name(&value);
        let status = match value.as_object_mut() {
            Some(fields) if !self.reading.believes_status => fields.remove("status"),
            _ => None,
        };
        read_octal_modes(&mut value);
        let mut unknown = Vec::new();
        let mut note_unknown = |path: &serde_ignored::Path<'_>| {
            // What is written wrong may be a limit.
            unknown.push(FieldFault::new(field_path(path), "unknown field, ignored"));
        };
        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(ApiValue(&value), &mut track);
        let typed: Result<v1::Pod, _> =
            serde_ignored::deserialize(deserializer, |path| note_unknown(&path));
        self.warn(place, name.as_ref(), &unknown);
        let mut typed = match typed {
            Ok(typed) => typed,
            Err(error) => {
                let path = track.path().to_string();
                let field = (path != ".").then(|| format!("{}{path}", place.prefix));
                return self.fault(place, name, field, error.to_string());
            }
        };
        self.take_deletion(place, name.as_ref(), &mut typed);
        let own_uid = typed.metadata.uid.as_ref().filter(|it| !it.is_empty());
        let digest = own_uid.map(|_| digest(&typed));
        self.complete(&mut typed);
        if status.is_some_and(|it| !it.is_null() && it != Value::Object(Map::new())) {
            let message = "is ignored: only who runs a pod knows it";
            self.note(place, name.as_ref(), "status", message);
        }
        let leaves_out = self.reading.leaves_out_pod_resources;
        let spec = typed.spec.as_mut();
        let left_out = spec.and_then(|it| it.resources.take_if(|_| leaves_out));
        match Pod::from_manifest(&typed, self.reading.allocatable.as_ref()) {
            Ok(mut pod) => {
                if left_out.is_some() {
                    let message = "is ignored: the feature gate PodLevelResources is off";
                    pod.warnings
                        .push(FieldFault::new("spec.resources", message));
                }
                self.warn(place, name.as_ref(), &pod.warnings);
                let mut ports = typed.spec.as_ref().map(named_ports).unwrap_or_default();
                for field in ports.values_mut() {
                    field.insert_str(0, place.prefix);
                }
                self.found.pods.push(Definition {
                    document: place.document,
                    place: self.n_pods - 1,
                    digest,
                    ports,
                    pod: Arc::new(pod),
                });
            }
            Err(faults) => {
                for it in faults {
                    let field = format!("{}{}", place.prefix, it.path);
                    self.fault(place, name.clone(), Some(field), it.message);
                }
            }
        }
    }

    /// What is to be told of several fields is told once, where the first of them comes: a manifest for another runtime
    /// has dozens, among which nobody would see the one that matters.
    fn warn(&mut self, place: Place<'_>, pod: Option<&String>, faults: &[FieldFault]) {
        let mut rest: Vec<&FieldFault> = faults.iter().collect();
        // Of too many the last are left out.
        rest.sort_by_key(|it| it.weight != Weight::Stops);
        let n_before = self.found.warnings.len();
        while let Some(first) = rest.first().copied() {
            if self.found.warnings.len() - n_before == MAX_FINDINGS {
                let message = format!("and {} more warnings", rest.len());
                let more = self.finding(place, pod.cloned(), None, message);
                self.found.warnings.push(more);
                return;
            }
            let (same, others): (Vec<_>, Vec<_>) = rest
                .iter()
                .copied()
                .partition(|it| it.message == first.message);
            let field = |it: &&FieldFault| abridged(format!("{}{}", place.prefix, it.path));
            let fields = same.iter().take(MAX_FINDINGS).map(field);
            let mut fields = fields.collect::<Vec<_>>().join(", ");
            if let Some(more @ 1..) = same.len().checked_sub(MAX_FINDINGS) {
                fields.push_str(&format!(" and {more} more"));
            }
            let warning = self.finding(place, pod.cloned(), Some(fields), first.message.clone());
            self.found.warnings.push(ManifestFault {
                weight: first.weight,
                ..warning
            });
            rest = others;
        }
    }

    /// A warning of what makes no difference to what runs.
    fn note(&mut self, place: Place<'_>, pod: Option<&String>, path: &str, message: &str) {
        let fault = FieldFault {
            weight: Weight::Minor,
            ..FieldFault::new(path, message)
        };
        self.warn(place, pod, &[fault]);
    }

    /// Kubelet ends the pod of a file in the grace of its deletion, if it has one, whatever its spec says
    /// (`calculateEffectiveGracePeriod` in pkg/kubelet/pod_workers.go, v1.36). A pod that was being deleted when
    /// somebody exported it got that grace from whoever deleted it.
    fn take_deletion(&mut self, place: Place<'_>, name: Option<&String>, pod: &mut v1::Pod) {
        let metadata = &pod.metadata;
        if metadata.deletion_timestamp.is_some() {
            let message = "is ignored: the pod runs for as long as its manifest is there";
            return self.note(place, name, "metadata.deletionTimestamp", message);
        }
        let grace = metadata.deletion_grace_period_seconds;
        if let (Some(grace @ 0..), Some(spec)) = (grace, &mut pod.spec) {
            spec.termination_grace_period_seconds = Some(grace);
        }
    }

    /// What the API server would have filled in before a pod reaches a node.
    fn complete(&self, pod: &mut v1::Pod) {
        let metadata = &mut pod.metadata;
        let namespace = metadata.namespace.get_or_insert_default();
        if namespace.is_empty() {
            "default".clone_into(namespace);
        }
        if metadata.uid.as_ref().is_none_or(String::is_empty) {
            let uid = digest(pod);
            pod.metadata.uid = Some(uid);
        }
        // Whatever node the manifest names: it is run where it lies.
        if let (Some(spec), Some(name)) = (&mut pod.spec, &self.reading.node_name) {
            spec.node_name = Some(name.clone());
        }
    }

    fn fault(
        &mut self,
        place: Place<'_>,
        pod: Option<String>,
        field: Option<String>,
        message: String,
    ) {
        if self.found.faults.len() >= MAX_FINDINGS {
            self.n_more_faults += 1;
            return;
        }
        let fault = self.finding(place, pod, field.map(abridged), message);
        self.found.faults.push(fault);
    }

    fn finding(
        &self,
        place: Place<'_>,
        pod: Option<String>,
        field: Option<String>,
        message: String,
    ) -> ManifestFault {
        ManifestFault {
            file: self.path.into(),
            document: Some(place.document),
            pod: pod.map(abridged),
            field,
            message: abridged(message),
            weight: Weight::default(),
        }
    }
}

/// A text about what somebody wrote has all of that. Where it is long, its begin stays, and what is said of it.
fn abridged(text: String) -> String {
    /// Together more than the longest name of a pod with its namespace, by which warnings find it.
    const BEGIN: usize = 100;
    const END: usize = 300;
    if text.len() <= BEGIN + END {
        return text;
    }
    let begin = text.floor_char_boundary(BEGIN);
    let end = text.ceil_char_boundary(text.len() - END);
    format!("{}...{}", &text[..begin], &text[end..])
}

/// The budget of one of `n_documents`: enough for any pod and for what its `text` has without aliases, and bounded for
/// all of them together.
fn share(n_documents: usize, text: &str) -> Budget {
    /// More than ten containers with a hundred variables each.
    const SMALLEST: usize = 10_000;
    /// Bytes of one pod: more than etcd takes (1.5 MiB, `--max-request-bytes`). A record of it, in which a character may
    /// take six, is within what a record may have.
    const MOST_TEXT: usize = 2 << 20;
    let whole = Budget::default();
    let part = |all: usize, own: usize| (all / n_documents.max(1)).max(SMALLEST).max(own);
    Budget {
        // A value takes a character, and another one parts it from the next.
        nodes: part(whole.nodes, text.len() / 2).min(whole.nodes),
        text_bytes: part(whole.text_bytes, text.len()).min(MOST_TEXT),
    }
}

/// An object of another kind, as stands beside pods in what `kubectl apply` takes. One that has containers or items is
/// a pod or a list whose kind is written wrong, and a kind that is the begin of theirs may be half written.
fn has_no_pod(object: &Value) -> bool {
    let kind = object.get("kind").and_then(Value::as_str);
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    let is_begin = ["podlist", "list"].iter().any(|it| it.starts_with(&kind));
    let has_pods = object.pointer("/spec/containers").or(object.get("items"));
    !is_begin && has_pods.is_none()
}

/// `namespace/name` of a document that may be anything.
fn full_name(value: &Value) -> Option<String> {
    let text = |pointer| {
        value
            .pointer(pointer)
            .and_then(Value::as_str)
            .filter(|it| !it.is_empty())
    };
    let namespace = text("/metadata/namespace").unwrap_or("default");
    text("/metadata/name").map(|name| format!("{namespace}/{name}"))
}

/// 32 hex digits, as the UIDs of kubelet's static pods have: a hash of what defines the pod. Any
/// edit of it, labels and annotations included, makes another pod, as it does for kubelet; the
/// file it stands in and the node it runs on do not.
fn digest(pod: &v1::Pod) -> String {
    #[derive(Serialize)]
    struct Definition<'a> {
        namespace: &'a Option<String>,
        name: &'a Option<String>,
        labels: &'a Option<BTreeMap<String, String>>,
        annotations: &'a Option<BTreeMap<String, String>>,
        spec: &'a Option<v1::PodSpec>,
    }
    let definition = serde_json::to_value(Definition {
        namespace: &pod.metadata.namespace,
        name: &pod.metadata.name,
        labels: &pod.metadata.labels,
        annotations: &pod.metadata.annotations,
        spec: &pod.spec,
    })
    .expect("a v1.Pod has string keys and finite numbers only");
    // The maps of `Value` are sorted, so the text does not depend on the order of declarations.
    let digest = Sha256::digest(definition.to_string().as_bytes());
    digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Modes such as 0644 are octal numbers to Kubernetes, which reads YAML 1.1, and text to YAML 1.2.
fn read_octal_modes(pod: &mut Value) {
    let volumes = pod.pointer_mut("/spec/volumes");
    let volumes = volumes.and_then(Value::as_array_mut).into_iter().flatten();
    for volume in volumes {
        // In others, as among the options of a flexVolume, a mode is a text.
        for kind in ["configMap", "downwardAPI", "projected", "secret"] {
            if let Some(source) = volume.get_mut(kind) {
                read_octal_modes_below(source);
            }
        }
    }
}

fn read_octal_modes_below(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(read_octal_modes_below),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(text) if name == "mode" || name == "defaultMode" => {
                        let digits = text.strip_prefix("0o").or(text.strip_prefix('0'));
                        if let Some(mode) = digits.and_then(|it| i32::from_str_radix(it, 8).ok()) {
                            *field = mode.into();
                        }
                    }
                    _ => read_octal_modes_below(field),
                }
            }
        }
        _ => {}
    }
}

/// As `spec.containers[0].image`.
fn field_path(path: &serde_ignored::Path<'_>) -> String {
    use serde_ignored::Path;
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, index } => format!("{}[{index}]", field_path(parent)),
        Path::Map { parent, key } => match field_path(parent) {
            parent if parent.is_empty() => key.clone(),
            parent => format!("{parent}.{key}"),
        },
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => field_path(parent),
    }
}
